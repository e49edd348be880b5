"""Independent routes to delta, that share no code with the library.

Closed forms and enumerations in 60 digits. Compositions of other laws are judged by :mod:`jaxacct.verify`.
"""

import itertools
import math

import mpmath
import numpy as np
from scipy.optimize import brentq

PI = np.longdouble("3.14159265358979323846264338")


def integral(function, ends, panels):
    """Of a function of arrays, smooth between each two ends: in so many panels, by the tanh-sinh rule, in 18 digits."""
    t = np.arange(-52, 53) / np.longdouble(16)
    angles = np.sinh(t) * PI / 2
    nodes, weights = np.tanh(angles), PI / 2 * np.cosh(t) / np.cosh(angles) ** 2 / 16
    edges = [np.linspace(a, b, panels + 1, dtype=np.longdouble)[:, None] for a, b in itertools.pairwise(ends)]
    low, high = (np.concatenate([row[which] for row in edges]) for which in (slice(-1), slice(1, None)))
    return np.sum(function((low + high) / 2 + (high - low) / 2 * nodes) * weights * (high - low) / 2)


def gaussian_delta(mu, epsilon):
    """Closed form for the Gaussian mechanism of total mu, in 60 digits."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def gaussian_epsilon(mu, delta):
    def excess(epsilon):
        return float(mpmath.log(gaussian_delta(mu, epsilon)) - mpmath.log(delta))

    high = 1.0
    while excess(high) > 0:
        high *= 2
    return brentq(excess, 0.0, high, xtol=1e-15, rtol=1e-14)


NOTHING = mpmath.mpf(10) ** -50
"""Relative differences below it are rounding: the loss is epsilon itself there."""

NOISES = {
    "gaussian": (mpmath.ncdf, mpmath.npdf),
    "laplace": (
        lambda z: mpmath.exp(z) / 2 if z < 0 else 1 - mpmath.exp(-z) / 2,
        lambda z: mpmath.exp(-abs(z)) / 2,
    ),
}


def shifted_noise_delta(p, q, scale, epsilon, noise="gaussian"):
    """delta of a pair of mixtures ``[(weight, location), ...]`` whose ratio P/Q rises with x, in 60 digits.

    The set where P > e^epsilon Q is a half-line, found by bisection; on it both masses are known.
    """
    cdf, density = NOISES[noise]
    with mpmath.workdps(60):
        scale, factor = mpmath.mpf(scale), mpmath.exp(mpmath.mpf(epsilon))

        def total(mixture, function):
            return sum(mpmath.mpf(weight) * function(mpmath.mpf(location)) for weight, location in mixture)

        def gains(x):
            p_density, q_density = (total(m, lambda a: density((x - a) / scale)) for m in (p, q))
            return p_density > factor * q_density

        low, high = -60 * scale - 10, 60 * scale + 10
        if not gains(high):  # the loss never exceeds epsilon
            return mpmath.mpf(0)
        if gains(low):
            low = high = -mpmath.inf
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if gains(middle) else (middle, high)
        p_mass, q_mass = (total(m, lambda a: cdf((a - high) / scale)) for m in (p, q))
        gained = p_mass - factor * q_mass
        return gained if gained > NOTHING * p_mass else mpmath.mpf(0)


def subsampled(rate, direction):
    """The pair of mixtures of a Poisson sample, locations rising with the loss."""
    rate = mpmath.mpf(rate)
    kept = 1 - rate
    return {
        "remove": ([(kept, 0), (rate, 1)], [(1, 0)]),
        "add": ([(1, 0)], [(kept, 0), (rate, -1)]),
        "replace": ([(kept, 0), (rate, 1)], [(kept, 0), (rate, -1)]),
    }[direction]


def composed_atoms(p, q, steps):
    """Yields every multiset of ``steps`` outcomes as (count, P, Q): multinomial enumeration."""

    def extend(index, remaining, count, p_product, q_product):
        if remaining == 0:
            yield count, p_product, q_product
            return
        if index == len(p) - 1:
            yield count, p_product * p[index] ** remaining, q_product * q[index] ** remaining
            return
        for taken in range(remaining + 1):
            yield from extend(
                index + 1, remaining - taken, count * math.comb(remaining, taken),
                p_product * p[index] ** taken, q_product * q[index] ** taken,
            )  # fmt: skip

    return extend(0, steps, 1, mpmath.mpf(1), mpmath.mpf(1))


def finite_delta(p, q, steps, epsilon):
    """delta of ``steps`` runs of a pair of finitely many outcomes, given as mpmath numbers or floats, in 60 digits."""
    with mpmath.workdps(60):
        p, q = ([mpmath.mpf(v) for v in masses] for masses in (p, q))
        factor = mpmath.exp(mpmath.mpf(epsilon))
        gains = ((count, a, a - factor * b) for count, a, b in composed_atoms(p, q, steps))
        return mpmath.fsum(count * gain for count, a, gain in gains if gain > NOTHING * a)
