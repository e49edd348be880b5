"""Guesses: one float32 number with an exponent beside it, for what decides where something is computed, not what it is.

Some six digits, and the range of :mod:`jaxacct.float_pairs.wide`. No bound rests on it: quotients, roots and functions
are as good as the device's, and products and sums may be fused. What is not written here is done in pairs, and rounded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool

from jaxacct.float_pairs import sums, wide
from jaxacct.float_pairs.operations import Params, Rule
from jaxacct.float_pairs.pair import Single, bits, from_bits, power_of_two
from jaxacct.float_pairs.wide import INFINITE, LARGEST, NOTHING, Wide


class Rough(NamedTuple):
    """Numbers (...): ``high 2^exponent``, as of :class:`Wide` without the low parts."""

    high: Single
    exponent: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the numbers."""
        return self.high.shape


def of_wide(x: Any) -> Any:
    """Returns numbers rounded to float32; what is not of pairs as it is."""
    return Rough(x.high, x.exponent) if isinstance(x, Wide) else x


def to_wide(x: Any) -> Any:
    """Returns rough numbers as pairs, exactly; what is not rough as it is."""
    return Wide(x.high, jnp.zeros_like(x.high), x.exponent) if isinstance(x, Rough) else x


def normal(high: Single, exponent: Array | int) -> Rough:
    """Returns ``high 2^exponent``, for high parts that are 0, inf, NaN or between 2^-120 and 2^120."""
    field = (bits(high) >> 23) & 0xFF
    special = field == 255
    found = exponent + (field - 127)
    under = (field == 0) | (found < -LARGEST)
    over = special | ((found > LARGEST) & ~under)
    factor = jnp.where(over, np.float32(np.inf), from_bits(jnp.maximum(254 - field, 1) << 23))
    return Rough(
        jnp.where(under, np.float32(0), high * factor), jnp.where(over, INFINITE, jnp.where(under, NOTHING, found))
    )


def _aligned(x: Rough, exponent: Array) -> Single:
    return x.high * power_of_two(jnp.maximum(x.exponent - exponent, -126))


def plain(x: Rough, least: int = -120, most: int = 120) -> Single:
    """Returns the float32 numbers, of exponents between these; those beyond are brought there."""
    return x.high * power_of_two(jnp.clip(x.exponent, least, most))


def add(x: Rough, y: Rough) -> Rough:
    """Returns x + y."""
    exponent = jnp.maximum(x.exponent, y.exponent)
    return normal(_aligned(x, exponent) + _aligned(y, exponent), exponent)


def negative(x: Rough) -> Rough:
    """Returns -x."""
    return Rough(-x.high, x.exponent)


def multiply(x: Rough, y: Rough) -> Rough:
    """Returns x y."""
    return normal(x.high * y.high, x.exponent + y.exponent)


def divide(x: Rough, y: Rough) -> Rough:
    """Returns x / y."""
    return normal(x.high / y.high, x.exponent - y.exponent)


def square_root(x: Rough) -> Rough:
    """Returns the root; NaN below 0."""
    odd = x.exponent & 1
    return normal(jnp.sqrt(x.high * power_of_two(odd)), (x.exponent - odd) >> 1)


def select(which: Bool[Array, " ..."], yes: Rough, no: Rough) -> Rough:
    """Returns ``yes`` where ``which`` holds, else ``no``."""
    return Rough(jnp.where(which, yes.high, no.high), jnp.where(which, yes.exponent, no.exponent))


def less(x: Rough, y: Rough) -> Bool[Array, " ..."]:
    """Returns whether x < y."""
    a, b = wide.order(x), wide.order(y)
    return ((a < b) | ((a == b) & (x.high < y.high))) & ~(jnp.isnan(x.high) | jnp.isnan(y.high))


def equal(x: Rough, y: Rough) -> Bool[Array, " ..."]:
    """Returns whether x == y."""
    return (x.high == y.high) & (x.exponent == y.exponent)


def exp(x: Rough) -> Rough:
    """Returns e^x: k ln 2 is taken away in parts of which products with k are exact."""
    value = plain(x, -100, 13)
    k = lax.round(value * np.float32(1 / math.log(2)), lax.RoundingMethod.TO_NEAREST_EVEN)
    first = np.float32(math.floor(math.log(2) * 2**11) / 2**11)
    rest = jnp.exp((value - k * first) - k * np.float32(math.log(2) - float(first)))
    at_end = x.exponent == INFINITE
    limit = jnp.where(x.high < 0, 0.0, x.high)
    # No whole number is inf, and what a device makes of it may be any.
    return normal(jnp.where(at_end, limit, rest), jnp.where(at_end, 0, k).astype(jnp.int32))


def log(x: Rough) -> Rough:
    """Returns log x, of numbers between the roots of 1/2 and 2 and their exponents."""
    large = x.high > np.float32(math.sqrt(2))
    e = (x.exponent + large.astype(jnp.int32)).astype(jnp.float32)
    near = jnp.log1p(jnp.where(large, x.high / 2, x.high) - 1)
    ends = (x.high <= 0) | (x.exponent == INFINITE)
    return normal(jnp.where(ends, jnp.log(x.high), e * np.float32(math.log(2)) + near), 0)


def log1p(x: Rough) -> Rough:
    """Returns log(1 + x)."""
    near = normal(jnp.log1p(plain(x, -120, 0)), 0)
    one = Rough(jnp.ones_like(x.high), jnp.zeros_like(x.exponent))
    return select(x.exponent < -30, x, select(x.exponent < -2, near, log(add(x, one))))


def expm1(x: Rough) -> Rough:
    """Returns e^x - 1."""
    near = normal(jnp.expm1(plain(x, -120, -1)), 0)
    less_one = Rough(jnp.full_like(x.high, -1), jnp.zeros_like(x.exponent))
    return select(x.exponent < -30, x, select(x.exponent < -1, near, add(exp(x), less_one)))


def lower_tail(z: Rough) -> Rough:
    """Returns Phi(z) for z <= 0, e^(-z^2/2) times a rational function of z: to 1e-5 (Abramowitz and Stegun, 26.2.16),
    and far out to a third of itself.
    """
    size = -plain(z, -60, 20)
    t = 1 / (1 + np.float32(0.33267) * size)
    factor = t * (np.float32(0.4361836) + t * (np.float32(-0.1201676) + t * np.float32(0.9372980)))
    square = multiply(z, z)
    return multiply(normal(factor * np.float32(1 / math.sqrt(2 * math.pi)), 0), exp(negative(_halved(square))))


def _halved(x: Rough) -> Rough:
    return normal(x.high / 2, x.exponent)


def total(params: Params, x: Rough) -> Rough:
    """Returns the sums over some axes."""
    axes = tuple(params["axes"])
    largest = jnp.max(x.exponent, axes, keepdims=True)
    return normal(jnp.sum(_aligned(x, largest), axes), jnp.squeeze(largest, axes))


def largest_over(params: Params, x: Rough) -> Rough:
    """Returns the largest numbers over some axes."""
    axes = tuple(params["axes"])
    order = wide.order(x)
    first = jnp.max(order, axes, keepdims=True)
    high = jnp.max(jnp.where((order == first) | jnp.isnan(x.high), x.high, -jnp.inf), axes)
    exponent = jnp.max(jnp.where(order == first, x.exponent, NOTHING), axes)
    return Rough(high, jnp.where(jnp.isfinite(high), exponent, INFINITE))


def _running(params: Params, x: Rough) -> Rough:
    found = lax.associative_scan(add, x, axis=params["axis"], reverse=params["reverse"])
    return Rough(*found)


def _product_of_matrices(params: Params, x: Rough, y: Rough) -> Rough:
    def summed(products: Rough, axes: Any) -> Rough:
        return total({"axes": axes}, products)

    return sums.products_summed(x, y, params["dimension_numbers"], multiply, summed)


def _plain(function: Callable[..., Any]) -> Rule:
    return lambda params, *args: function(*args)


def _whole_power(params: Params, x: Rough) -> Rough:
    power = functools.reduce(multiply, [x] * abs(params["y"]))
    one = Rough(jnp.ones_like(x.high), jnp.zeros_like(x.exponent))
    return divide(one, power) if params["y"] < 0 else power


ROUGH: dict[str, Rule] = {
    "add": _plain(add),
    "add_any": _plain(add),
    "sub": lambda params, x, y: add(x, negative(y)),
    "mul": _plain(multiply),
    "div": _plain(divide),
    "neg": _plain(negative),
    "abs": lambda params, x: Rough(jnp.abs(x.high), x.exponent),
    "max": lambda params, x, y: select(less(x, y) | jnp.isnan(y.high), y, x),
    "min": lambda params, x, y: select(less(y, x) | jnp.isnan(y.high), y, x),
    "square": lambda params, x: multiply(x, x),
    "sqrt": _plain(square_root),
    "integer_pow": _whole_power,
    "is_finite": lambda params, x: x.exponent < INFINITE,
    "eq": _plain(equal),
    "ne": lambda params, x, y: ~equal(x, y),
    "lt": _plain(less),
    "le": lambda params, x, y: less(x, y) | equal(x, y),
    "gt": lambda params, x, y: less(y, x),
    "ge": lambda params, x, y: less(y, x) | equal(x, y),
    "exp": _plain(exp),
    "exp2": lambda params, x: exp(multiply(x, normal(jnp.float32(math.log(2)), 0))),
    "log": _plain(log),
    "log1p": _plain(log1p),
    "expm1": _plain(expm1),
    "pow": lambda params, x, y: exp(multiply(log(x), y if isinstance(y, Rough) else normal(y.astype(jnp.float32), 0))),
    "reduce_sum": total,
    "reduce_max": largest_over,
    "reduce_min": lambda params, x: negative(largest_over(params, negative(x))),
    "cumsum": _running,
    "dot_general": _product_of_matrices,
    "lower_tail": _plain(lower_tail),
}
"""What operations are of rough numbers."""
