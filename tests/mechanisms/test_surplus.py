"""Inequalities on random inputs, in 60 digits: what the roundings of a surplus and of cells are said to be at most."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import program

from jaxacct.mechanisms.finite import bound_distance_from_one
from jaxacct.mechanisms.normal import normal_cells
from jaxacct.mechanisms.pair import hockey_stick

RANDOM = np.random.default_rng(5)


def test_surplus_is_right_to_its_rounding():
    n = 3000
    q = np.exp(RANDOM.uniform(-300, 0, n))
    loss = np.exp(RANDOM.uniform(-40, 5, n)) * RANDOM.choice([-1, 1], n)
    # Near balance, where it cancels, and far from it.
    off = np.exp(RANDOM.uniform(-40, 1, n)) * RANDOM.choice([-1, 0, 1], n)
    p = q * np.exp(np.clip(loss, -100, 100)) * np.maximum(1 + off, 0)
    with jax.enable_x64(True):
        values, roundings = (np.asarray(v) for v in program(hockey_stick)(p, q, loss))
    with mp.workdps(60):
        for a, b, y, value, rounding in zip(
            *(map(mp.mpf, v.tolist()) for v in (p, q, loss, values, roundings)), strict=True
        ):
            assert abs(a - mp.exp(y) * b - value) <= rounding


def test_surplus_of_close_masses_keeps_its_digits():
    with jax.enable_x64(True):
        _, rounding = hockey_stick(jnp.asarray(0.25 + 2.0**-45), jnp.asarray(0.25), jnp.asarray(2.0**-44))
        assert rounding < 1e-14 * 2.0**-44


def test_cells_of_a_normal_far_from_the_origin():
    """The centre is up to 10^4 scales away, as for a noise multiplier of 10^-4."""
    scales = np.array([1e-4, 3e-3, 0.05, 1.0])
    with jax.enable_x64(True), mp.workdps(60):
        for scale in scales:
            z = RANDOM.uniform(-25, 25) + np.linspace(0.0, 10 * 10 ** RANDOM.uniform(-4, -2), 11)
            x = 1.0 + scale * z
            masses, errors = (np.asarray(v) for v in program(normal_cells)(x, 1.0, scale))
            points = [(mp.mpf(float(v)) - 1) / mp.mpf(float(scale)) for v in x]
            for i in range(10):
                a, b = points[i : i + 2]
                truth = mp.ncdf(b) - mp.ncdf(a) if b < 0 else mp.ncdf(-a) - mp.ncdf(-b)
                assert abs(mp.mpf(float(masses[i])) - truth) <= mp.mpf(float(errors[i]))


@pytest.mark.first_tier("7")
@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 1000], ids=str)
def test_distance_from_one_is_bounded_and_next_to_nothing_for_sums_that_are_one(n):
    """Masses are traced and constants, of any size and number, and miss one by much, by a last bit, or not at all."""
    with jax.enable_x64(True):
        for miss in (0.0, 1e-16, 1e-13, -3e-15, 1e-9):
            raw = np.exp(RANDOM.uniform(-30 if n > 3 else -2, 0, n))
            masses = raw / raw.sum() * (1 + miss)
            if miss == 0.0:  # the largest takes what is left, as far as float64 holds it
                largest = int(np.argmax(masses))
                others = sum(map(Fraction, np.delete(masses, largest).tolist()), Fraction(0))
                masses[largest] = float(1 - others)
            truth = abs(sum(map(Fraction, masses.tolist()), Fraction(-1)))
            for bound in (
                program(bound_distance_from_one)(masses),
                jax.jit(lambda masses=masses: bound_distance_from_one(jnp.asarray(masses)))(),
            ):
                assert truth <= Fraction(float(bound)) <= truth * Fraction(1 + 1e-14) + Fraction(1e-26)
