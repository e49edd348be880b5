"""The moments from which windows are foreseen: upper bounds for sure, and close enough that windows stay small."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from thorough import program

from jaxacct.prv.lattice import LossLattice
from jaxacct.prv.windows import RATES, log_moments, reach

SIGNED = np.concatenate([RATES, -RATES])
MOMENTS = program(log_moments)
RANDOM = np.random.default_rng(11)


def rough(points):
    return np.exp(RANDOM.uniform(-60, 0, points)) * (RANDOM.random(points) > 0.3)


def bulk(points):
    """A Gaussian with tails of e^-30 at the window's ends."""
    return np.exp(-60 * (np.arange(points) / points - RANDOM.uniform(0.45, 0.55)) ** 2 * 2)


def jumps(points):
    """Nearly all at one point, and a few rare ones far above."""
    weights = np.zeros(points)
    weights[RANDOM.integers(0, points // 8)] = 1.0
    weights[RANDOM.integers(0, points, 5)] += np.exp(RANDOM.uniform(-40, -5, 5))
    return weights


def lattice_of(weights):
    zero, one, weights = jnp.asarray(0.0), jnp.asarray(1.0), jnp.asarray(weights / weights.sum())
    return LossLattice(weights, zero, zero, 0.1 * one, one, zero, zero, zero, jnp.asarray(True))


def exact_moments(lattice):
    """log sum w e^(s y), in long doubles, scaled by the greatest term."""
    weights = np.asarray(lattice.weights, np.longdouble)
    places = np.arange(lattice.points) / np.longdouble(lattice.points)
    held = weights > 0
    exponents = np.asarray(SIGNED, np.longdouble)[:, None] * places[held] + np.log(weights[held])
    tops = np.max(exponents, axis=1)
    return tops + np.log(np.sum(np.exp(exponents - tops[:, None]), axis=1))


@pytest.mark.parametrize("shape", [rough, bulk, jumps])
@pytest.mark.parametrize("points", [192, 1024, 6144])
def test_moments_are_upper_bounds(points, shape):
    with jax.enable_x64(True):
        for _ in range(10):
            lattice = lattice_of(shape(points))
            excess = np.asarray(MOMENTS(lattice), np.longdouble) - exact_moments(lattice)
            assert np.all(excess >= 0)
            assert np.max(excess[np.abs(SIGNED) < 256]) < 1e-2


@pytest.mark.parametrize("points", [1024, 6144])
def test_a_single_point_has_the_moments_of_its_place(points):
    """At either end, where growth is measured from the other one, and where a cell ends."""
    with jax.enable_x64(True):
        for place in (0, 1, points // 2, points // 2 + 1, points - 1):
            lattice = lattice_of(np.eye(1, points, place)[0])
            excess = np.asarray(MOMENTS(lattice)) - SIGNED * place / points
            lower = np.abs(SIGNED) < 256
            assert np.all(excess >= 0)
            assert np.max(excess[lower]) < 1e-2


@pytest.mark.parametrize("shape", [rough, bulk, jumps])
def test_what_lies_beyond_the_reach_is_below_the_tail(shape):
    with jax.enable_x64(True):
        for log_tail in (-5.0, -20.0, -40.0):
            lattice = lattice_of(shape(1024))
            low, high = (float(end) for end in reach(MOMENTS(lattice), jnp.asarray(log_tail)))
            places, weights = np.arange(1024) / 1024, np.asarray(lattice.weights, np.longdouble)
            # A place right on the end counts as inside.
            assert weights[places < low * (1 - 1e-12)].sum() <= np.exp(log_tail)
            assert weights[places > high * (1 + 1e-12)].sum() <= np.exp(log_tail)
