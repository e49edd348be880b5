"""Sums over atoms in float32, with bounds on their errors: totals, moments, and characteristic functions.

An atom has a mass p and a place x. Composition needs numbers that are small, and of which a caller has the first-order
part, the mean, from elsewhere: E[e^(tX) - 1 - tX] and E[e^(iwX) - 1 - iwX]. Summed without the linear part they are
right to some units of themselves, or of E[min((wX)^2/2, 2 |wX|)]. With it the errors would be units of E|wX|: sqrt(k)
times as large for the k-th power, where w is about 1/sqrt(k) over the deviation.

Units are u = 2^-24, as in :mod:`jaxacct.numerics.elementary_float32`. Errors are those of the atoms as they are given:
a caller whose masses err by r units of themselves, and places by s, adds r + 2s units.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.numerics.elementary_float32 import TINY, UNIT, UNITS, cos_and_sin_remainders, exp_remainder, of_float32


def _nested_sizes(count: int) -> tuple[int, ...]:
    """Returns the sizes of three nested sums that hold so many terms: powers of two, as equal as can be."""
    bits = max(count - 1, 0).bit_length()
    return tuple(2 ** ((bits + more) // 3) for more in (2, 1, 0))


def units_of_total(count: int) -> float:
    """Returns the bound on the error of :func:`total` of so many terms, in units of the sum of their sizes.

    A term passes through at most sum(side - 1) additions, in whatever order each sum is taken. Each rounds by a factor
    within 1 + u; n of them by one within 1 + n u/(1 - n u) (Higham, Accuracy and Stability, section 4.2).

    >>> round(units_of_total(1024), 3)
    29.0
    """
    height = sum(side - 1 for side in _nested_sizes(count))
    return height / (1 - height * UNIT)


@of_float32
def total(x: Array) -> Array:
    """Returns the sum over the last axis, to :func:`units_of_total` of the sum of sizes; subnormal sums may be flushed.

    Three sums are nested, 16, 8 and 8 for 1,024 terms. Compilers would merge them into one; barriers keep them apart.

    >>> total(jnp.ones(1000, jnp.float32)).item()
    1000.0
    """
    sides = _nested_sizes(x.shape[-1])
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, math.prod(sides) - x.shape[-1])])
    # Each turn adds the slices that are furthest apart, so that neighbours stay neighbours (vectors of a device).
    for side in sides:
        if side > 1:
            x = jax.lax.optimization_barrier(x.reshape(*x.shape[:-1], side, -1).sum(-2))
    return x[..., 0]


class NestedSum(NamedTuple):
    """A sum over atoms, and a bound on its absolute error."""

    value: Array
    error: Array


class NestedTransform(NamedTuple):
    """E[cos wX - 1] and E[sin wX - wX], and a bound on the absolute error of each of the two."""

    real: Array
    imaginary: Array
    error: Array


SLACK = 1 + 2.0**-12
"""A factor over the rounding of a computed bound, some 100 u: it can break a bound if it is below that."""


def _flushes(masses: Array) -> Array:
    """Returns what flushes may take from a sum: of each term, its factor of the mass, and each of the additions."""
    return TINY * (4.0 * masses.shape[-1] + 2.0 * total(masses))


def moment_remainder(masses: Array, places: Array, orders: Array) -> NestedSum:
    """Returns E[e^(tX) - 1 - tX], over the last axis of atoms, for each order t.

    All terms are positive, so that units of them are units of the sum. A term is e^a - 1 - a to 6 units at a rounded
    a = t x. The rounding moves it by a (e^a - 1) u, which is at most 2 + max(a, 0) units of it. For a > 0,
    (2 + a)(e^a - 1 - a) - a (e^a - 1) = 2 e^a - 2 - 2a - a^2 is positive. Below 0, 2 (e^a - 1 - a) - a (e^a - 1) has
    the slope (1 - a) e^a - 1 <= 0 and is 0 at 0, so it is positive. The product by the mass rounds, and the sum.

    Args:
        masses: (..., n), not negative.
        places: (..., n).
        orders: (..., m); products with places beyond 88.7 give inf.

    Returns:
        Value and error, (..., m); the error is inf or NaN where the value is.
    """
    a = orders[..., :, None] * places[..., None, :]
    terms = masses[..., None, :] * exp_remainder(a)
    units = UNITS.exp_remainder + 3 + jnp.maximum(a, 0.0) + units_of_total(masses.shape[-1])
    value, error = total(jnp.stack([terms, terms * units]))
    return NestedSum(value, SLACK * UNIT * error + _flushes(masses)[..., None])


def transform_remainder(masses: Array, places: Array, frequencies: Array, tile: int = 16) -> NestedTransform:
    """Returns E[cos wX - 1] and E[sin wX - wX], over the last axis of atoms, for each frequency w.

    Let s(a) = min(a^2/2, 2|a|). A term is cos a - 1 to 7 units of s(a), and sin a - a to 6 (|sin a - a| <= s(a)), at a
    rounded a = w x. The rounding moves the first by |a sin a| u and the second by |a (1 - cos a)| u: both at most
    2 s(a) u, as |sin a| <= min(|a|, 1), and 1 - cos a <= min(a^2/2, 2) with |a| min(a^2/2, 2) <= 2 s(a). The product by
    the mass rounds, and the sum: 10 units and those of a total, of the sum of p s(w x). That is at most
    min(w^2 E[X^2]/2, 2|w| E|X|), which the error is stated by.

    Args:
        masses: (..., n), not negative.
        places: (..., n).
        frequencies: (..., m), m a multiple of ``tile``.
        tile: number of frequencies whose terms are in memory at a time. Speed only.

    Returns:
        Real part, imaginary part, error, each (..., m). Where a product of frequency and place is inf or NaN the parts
        are NaN and the error is inf.
    """

    def of_tile(w: Array) -> tuple[Array, Array]:
        cosine, sine = cos_and_sin_remainders(w[..., :, None] * places[..., None, :])
        p = masses[..., None, :]
        return total(p * cosine), total(p * sine)

    tiles = jnp.moveaxis(frequencies.reshape(*frequencies.shape[:-1], -1, tile), -2, 0)
    # One tile of frequencies after the other, so that their terms need not be in memory together.
    parts = jax.lax.map(of_tile, tiles)
    real, imaginary = (jnp.moveaxis(part, 0, -2).reshape(frequencies.shape) for part in parts)
    square, size = total(jnp.stack([masses * places * places, masses * jnp.abs(places)]))[..., None]
    w = jnp.abs(frequencies)
    units = UNITS.cos_less_one + 3 + units_of_total(masses.shape[-1])
    of_terms = jnp.minimum(0.5 * w * (w * square), 2 * w * size)
    error = SLACK * UNIT * units * of_terms + _flushes(masses)[..., None]
    return NestedTransform(
        real, imaginary, jnp.where(jnp.isnan(real + imaginary), jnp.full_like(error, jnp.inf), error)
    )
