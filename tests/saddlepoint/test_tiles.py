"""Tests of e^(ix) - 1 of one angle, and of many multiples of it as the characteristic function's tiles join them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import draws, program

from jaxacct.mechanisms.normal import cosm1_and_sin
from jaxacct.saddlepoint.contour import TILE, _sums

U = 2.0**-53
SCALES = [1e-8, 1e-4, 1e-2, 0.3, 1.0, 4.0, 100.0, 1e5]
TILES = 16
COUNT = draws(100, 10_000)

alone = program(cosm1_and_sin)


def off(real, imaginary, angle):
    """How far both are off, in units of roundoff of the angle."""
    x = angle.astype(np.longdouble)
    return np.hypot(real + 2 * np.sin(x / 2) ** 2, imaginary - np.sin(x)) / np.abs(x) / U


@program
def in_tiles(angles):
    """Rows of multiples of each angle, from sums of one node."""

    def one(angle):
        weights, angles = (jnp.zeros(256).at[0].set(value) for value in (1.0, angle))
        return tuple(_sums(weights, angles, jnp.int32(TILES), jnp.zeros((2, TILE * TILES))))

    return jax.lax.map(one, angles)


@pytest.mark.parametrize("scale", SCALES)
def test_a_turn_errs_by_five_units_of_the_angle(scale):
    angles = np.random.default_rng(0).uniform(-scale, scale, 100 * COUNT)
    with jax.enable_x64(True):
        real, imaginary = map(np.asarray, alone(angles))
    assert np.max(off(real, imaginary, angles)) <= 5.0


@pytest.mark.parametrize("scale", SCALES)
def test_multiples_err_by_eight(scale):
    angles = np.random.default_rng(1).uniform(-scale, scale, COUNT)
    with jax.enable_x64(True):
        real, imaginary = map(np.asarray, in_tiles(angles))
    multiples = angles[:, None].astype(np.longdouble) * np.arange(1, TILE * TILES + 1)
    assert np.max(off(real, imaginary, multiples)) <= 8.0
