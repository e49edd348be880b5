"""The elementary functions of float32: their bounds over float32 arguments, their ends, and the same bits everywhere.

References are NumPy's and SciPy's in float64, whose errors are 10^-8 of a unit of float32.
"""

import functools
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from jaxacct.numerics import elementary_float32 as elementary
from jaxacct.numerics.elementary_float32 import LARGEST, TINY, UNIT
from tests.helpers.thorough import draws

CHUNK = 2**20
BLOCK = 2**15
"""Arguments in float64 at a time, so that they stay in a processor's cache."""


def less_than_two_terms(x):
    """e^x - 1 - x in float64, by its series where it would cancel."""
    small = np.abs(x) < 0.5
    found = np.expm1(x) - x
    if small.any():
        v, terms = x[small], 0.0
        for n in range(15, 2, -1):
            terms = (1 + terms) * v / n
        found[small] = 0.5 * v * v * (1 + terms)
    return found


def sin_less(x):
    """sin x - x in float64, by its series where it would cancel."""
    small = np.abs(x) < 1
    found = np.sin(x) - x
    if small.any():
        v, terms = x[small], 0.0
        w = v * v
        for n in range(9, 1, -1):
            terms = (1 + terms) * w / (-2 * n * (2 * n + 1))
        found[small] = -v * w / 6 * (1 + terms)
    return found


class Bound(NamedTuple):
    """A function, its reference in float64, its bound in units, and what that is relative to, if not the truth."""

    function: Callable
    truth: Callable
    units: float
    size: Callable = lambda x, truth: np.abs(truth)


BOUNDS = {
    "exp": Bound(elementary.exp, np.exp, 2.0),
    "expm1": Bound(elementary.expm1, np.expm1, 5.0),
    "exp_remainder": Bound(elementary.exp_remainder, less_than_two_terms, 6.0),
    "log": Bound(elementary.log, np.log, 2.5),
    "log1p": Bound(elementary.log1p, np.log1p, 3.0),
    "reciprocal": Bound(elementary.reciprocal, np.reciprocal, 2.1),
    "square_root": Bound(elementary.square_root, np.sqrt, 1.7),
    "cos": Bound(
        lambda x: elementary.cos_and_sin_remainders(x)[0],
        lambda x: -2 * np.sin(0.5 * x) ** 2,
        7.0,
        # 7 units of 4/7 |x| are 2 units of 2 |x|.
        lambda x, _: np.minimum(0.5 * x * x, np.where(np.abs(x) <= 2**17, 2.0, 4 / 7 * np.abs(x))),
    ),
    "sin": Bound(lambda x: elementary.cos_and_sin_remainders(x)[1], sin_less, 6.0),
    "normal_tail": Bound(elementary.normal_tail, lambda x: ndtr(-x), 10.0),
    "log_normal_tail": Bound(elementary.log_normal_tail, lambda x: log_ndtr(-x), 16.0),
}


@functools.cache
def program(name):
    return jax.jit(BOUNDS[name].function)


def arguments(step, offset=0):
    """Chunks of the float32 numbers, in the order of their bits, of which each ``step``-th is taken."""
    for start in range(offset, 2**32, step * CHUNK):
        bits = np.arange(start, min(start + step * CHUNK, 2**32), step, dtype=np.int64).astype(np.uint32)
        yield np.resize(bits, CHUNK).view(np.float32)


def excess(bound, x, values):
    """The errors, in units; inf where a value is NaN or infinite and the truth is not, or the other way round."""
    x, values = x.astype(np.float64), values.astype(np.float64)
    x[np.abs(x) < TINY] *= 0.0
    truth = bound.truth(x)
    error = np.abs(values - truth)
    size = np.maximum(bound.size(x, truth), TINY)
    units = error / (size * UNIT)
    # What may be flushed: results below the smallest normal number, or at it.
    units[error <= 1.0001 * TINY] = 0.0
    odd = ~np.isfinite(units)
    if odd.any() or np.abs(truth).max(initial=0.0) > LARGEST:
        rounded = np.where(np.abs(truth) > LARGEST * (1 + UNIT / 2), np.copysign(np.inf, truth), truth)
        is_same = (values == rounded) | (np.isnan(values) & np.isnan(rounded))
        units = np.where(is_same, 0.0, np.where(np.isfinite(rounded) & np.isfinite(values), units, np.inf))
    return units


def worst_of(name, step, offset=0):
    """The largest error in units, and where it is."""
    bound, worst, at = BOUNDS[name], 0.0, 0.0
    # All arguments of a step, by chunks in float32, and by blocks in float64.
    for x in arguments(step, offset):
        values = np.asarray(program(name)(x))
        for start in range(0, CHUNK, BLOCK):
            with np.errstate(all="ignore"):
                units = excess(bound, x[start : start + BLOCK], values[start : start + BLOCK])
            i = int(np.argmax(units))
            if units[i] > worst:
                worst, at = float(units[i]), float(x[start + i])
    return worst, at


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_hold_for_every_251st_float32(name):
    worst, at = worst_of(name, 251)
    assert worst <= BOUNDS[name].units, at


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_hold_for_every_float32(name):
    """One in 17 of them, and all in a thorough run."""
    worst, at = worst_of(name, draws(17, 1), draws(5, 0))
    assert worst <= BOUNDS[name].units, at
