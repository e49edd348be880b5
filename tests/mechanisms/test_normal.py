"""Masses of cells of normal laws, against 40-digit arithmetic: every error bound is an inequality."""

import jax
import mpmath
import numpy as np
import pytest
from helpers.normal import exact_mass
from helpers.thorough import program

from jaxacct.mechanisms.normal import normal_cells

# As one program, as accountants compile it.
normal_cells = program(normal_cells)


def test_normal_cells_are_right_to_the_error_they_state():
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        for scale in (0.3, 1.0, 250.0):
            for center in (0.0, 1.0):
                x = np.sort(
                    np.concatenate([rng.normal(size=40) * 6 * scale, 2.5 * scale + 1e-7 * rng.random(20) * scale])
                )
                x = np.concatenate([[-np.inf], x, [np.inf]])
                masses, errors = normal_cells(x, center, scale)
                for i, (mass, error) in enumerate(zip(np.asarray(masses), np.asarray(errors), strict=True)):
                    truth = exact_mass(x[i], x[i + 1], center, mpmath.mpf(scale))
                    assert abs(mpmath.mpf(float(mass)) - truth) <= mpmath.mpf(float(error)) + mpmath.mpf(10) ** -300
                    assert error <= 1e-12 * max(float(truth), 1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("center", [0.0, 1.0])
def test_cells_up_to_the_widest_narrow_one_are_right_to_the_error_they_state(center):
    """Each cell by itself, about points from the centre to far out, among them zeros of the series' terms.

    Its width goes up to the 0.1 over 1 + |middle| at which differences of tails take over, and just beyond.
    """
    middles = np.concatenate([[0.0], np.sqrt([1.0, 0.742, 5.258]), np.geomspace(1e-3, 30.0, 40)])
    middles = np.concatenate([middles, -middles[1:]])
    shares = np.array([1e-3, 0.1, 0.5, 0.8, 0.9, 0.99, 1.0, 1.001])
    with jax.enable_x64(True):
        for share in shares:
            half = 0.05 * share / (1 + np.abs(middles))
            # Cells may overlap: each has two edges of its own, one row for each.
            ends = np.stack([middles - half, middles + half], axis=-1) + center
            masses, errors = (np.asarray(found)[:, 0] for found in normal_cells(ends, center, 1.0))
            for (low, high), mass, error in zip(ends, masses, errors, strict=True):
                off = abs(mpmath.mpf(float(mass)) - exact_mass(low, high, center, mpmath.mpf(1)))
                assert off <= error, (low, high, float(off / error))
