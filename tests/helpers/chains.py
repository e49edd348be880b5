"""Exact laws of small one-dimensional noisy iterations, as oracles for the bounds."""

import functools

import numpy as np
from scipy.special import ndtr


def hockey_stick(p, q, epsilon):
    """E_epsilon of two laws given as masses on the same points (..., m)."""
    return np.sum(np.maximum(p - np.exp(epsilon) * q, 0), axis=-1)


def rounded_kernel(points, shift, noise):
    """Transition masses of w -> round(clip(w + shift + noise Z)) on equidistant points: exact, since finite."""
    edges = np.concatenate([[-np.inf], (points[1:] + points[:-1]) / 2, [np.inf]])
    return np.diff(ndtr((edges[None, :] - points[:, None] - shift) / noise), axis=1)


gauss_legendre = functools.cache(np.polynomial.legendre.leggauss)


def interval_kernel(diameter, shift, noise, nodes=400):
    """The same without rounding: two atoms at the ends of [0, diameter] and a density at Gauss-Legendre nodes between.

    Returns the points, first and last the atoms, and the transition masses, density times weight between.
    """
    x, weight = gauss_legendre(nodes)
    inner, weight = diameter * (x + 1) / 2, diameter * weight / 2
    points = np.concatenate([[0.0], inner, [diameter]])
    mean = points[:, None] + shift
    density = np.exp(-(((inner - mean) / noise) ** 2) / 2) / (noise * np.sqrt(2 * np.pi)) * weight
    return points, np.concatenate([ndtr(-mean / noise), density, ndtr((mean - diameter) / noise)], axis=1)
