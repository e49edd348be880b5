"""Sums over turned angles in pairs, against sums in extended precision, and the arguments of which nothing is said."""

import jax
import numpy as np
import pytest

from jaxacct.numerics.arithmetic import PAIR
from jaxacct.numerics.float_pairs import few_digits, tiles
from jaxacct.numerics.float_pairs.interpret import as_pairs
from jaxacct.saddlepoint import contour

FIRST = np.array([0, 240, 16, 0, 8, 0], np.int32)
LANES, NODES, WANTED = 6, 256, np.array([20, 3, 20, 17, 1, 9], np.int32)
UNITS = 19


@pytest.fixture(scope="module")
def added():
    with jax.enable_x64(True):
        return jax.jit(as_pairs(contour.turned_sums))


def arguments(seed):
    rng = np.random.default_rng(seed)
    weights = np.exp(-rng.uniform(0, 50, (LANES, NODES))) * np.array([1, 1, 1, 1, 1, 1e-200])[:, None]
    sizes = 10.0 ** rng.uniform(-15, 2, LANES)
    angles = rng.normal(size=(LANES, NODES)) * sizes[:, None]
    weights[1, 7], angles[2, 3], weights[3] = 0.0, 0.0, np.where(np.arange(NODES) == 5, 1.0, 1e-30)
    return weights, angles, FIRST, WANTED, *np.zeros((2, LANES, 256))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_sums_are_right_to_the_units_that_are_counted(added, seed):
    weights, angles, *_ = given = arguments(seed)
    with jax.enable_x64(True):
        real, imaginary = map(np.asarray, added(*given))
    count = tiles.TILE * WANTED.max()
    frequencies = (tiles.TILE * FIRST[:, None] + np.arange(1, count + 1))[..., None].astype(np.longdouble)
    turns = frequencies * angles[:, None]
    truth = np.sum(weights[:, None] * (-2 * np.sin(turns / 2) ** 2 + 1j * np.sin(turns)), axis=-1)
    sizes = np.sum(weights[:, None] * np.abs(turns), axis=-1)
    off = np.abs(real[:, :count] + 1j * imaginary[:, :count] - truth)
    assert np.all(off <= UNITS * PAIR.roundoff * sizes)
    assert np.max(off / sizes) < PAIR.roundoff  # far better than counted, at random
    assert not np.any(np.stack([real, imaginary])[:, :, count:])


@pytest.mark.exhaustive
def test_what_is_added_to_stays(added):
    with jax.enable_x64(True):
        weights, angles, *_, real, imaginary = arguments(0)
        found = added(weights, angles, FIRST, np.zeros(LANES, np.int32), real + 1.5, imaginary - 0.25)
    np.testing.assert_array_equal(found[0], 1.5)
    np.testing.assert_array_equal(found[1], -0.25)


@pytest.mark.first_tier("inf angle", "nan angle", "angles of millions")
@pytest.mark.parametrize("wrong", ["nan weight", "inf angle", "nan angle", "angles of millions", "next to no angle"])
def test_nothing_is_said_of_what_is_not_known(added, wrong):
    weights, angles, *rest = arguments(0)
    if wrong == "nan weight":
        weights[0, 3] = np.nan
    elif wrong == "next to no angle":
        angles[0] *= 1e-25 / np.abs(angles[0]).max()
    else:
        angles[0, 3] = {"inf angle": np.inf, "nan angle": np.nan, "angles of millions": 4e6}[wrong]
    with jax.enable_x64(True):
        real, imaginary = added(weights, angles, *rest)
    count = tiles.TILE * WANTED.max()
    both = np.isnan(np.stack([real, imaginary], axis=1))
    assert np.all(both[0, :, :count])
    assert not np.any(both[1:])


def test_pairs_know_the_sums_by_their_name():
    with jax.enable_x64(True):
        given = [leaf[:1] for leaf in arguments(0)]
        traced = str(jax.make_jaxpr(as_pairs(contour.turned_sums))(*given))
        assert "i8[1,7,16,256]" in traced
        assert "turned_sums" not in str(jax.make_jaxpr(contour.turned_sums)(*given))


def test_the_certificate_counts_what_the_sums_err_by():
    assert tiles.TILE == contour.TILE
    assert few_digits.IN_PAIRS >= UNITS - 8
