"""What pairs assume of a backend, and whether it keeps to it.

Everything here rests on little: sums and differences of float32 are rounded to nearest, ties to even; products that fit
into 24 bits are exact and others off by at most two units of roundoff; rounding to whole numbers and operations on the
bits are exact; nothing is rewritten as in exact arithmetic. Products may be fused with sums, and subnormal numbers be
flushed to zero. Quotients and roots need be right to 2^-15 only: what they leave is looked at wherever they are used.

When pairs are first used on a backend, one small compiled program does all that with a fixed table of operands, and the
result is compared with Python's whole numbers. A table proves nothing of the numbers between its entries; it does find
sums that are rounded another way, products of fewer bits, and a compiler that simplifies.

*What compilers do rewrite.* XLA makes (x + c) - c into x where c is a constant of the program, on all its backends. So
no constant is an operand of a sum of which the error is asked for; those here are numbers that depend on an argument.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxacct.numerics.arithmetic import UnsoundBackendError, platform
from jaxacct.numerics.float_pairs.functions import rounded
from jaxacct.numerics.float_pairs.pair import U, halves

Operation = Callable[[Any, Any], Any]


class Operations(NamedTuple):
    """Those of a backend."""

    plus: Operation = lax.add
    minus: Operation = lax.sub
    times: Operation = lax.mul


FIRST = (1.0, 1 / 3, 0.1, 1 + 2.0**-23, 1 - 2.0**-24, 2.0**20 / 7, 2.0**-20 / 11, 4097 / 4096)
SECOND = (2.0**-24, 2.0**-24 * 1.5, 3 * 2.0**-24, 3.0, -1 / 3, 1 - 2.0**-24, 2.0**-15 / 7, 2.0**13 / 13, -1e3 / 3)
OPERANDS = tuple((float(np.float32(a)), float(np.float32(b))) for a in FIRST for b in SECOND)
"""Ties, carries, and numbers with all their bits, close to each other and far apart."""


class Row(NamedTuple):
    """Something that is computed of two numbers.

    Attributes:
        what: in words.
        computed: of arrays.
        exact: of fractions, before it is rounded.
        error: the relative error that it may have beside the exact one, rounded to nearest.
    """

    what: str
    computed: Callable[[Operations, Array, Array], Array]
    exact: Callable[[Fraction, Fraction], Fraction]
    error: float = 0.0


def _nearest(value: Fraction, bits: int = 24) -> Fraction:
    return Fraction(float(rounded(value, bits)))


def _error_of_sum(do: Operations, a: Array, b: Array) -> Array:
    total = do.plus(a, b)
    part = do.minus(total, a)
    return do.plus(do.minus(a, do.minus(total, part)), do.minus(b, part))


def _head(a: Fraction) -> Fraction:
    """Returns the number of 12 bits nearest to ``a``, and of two the one that is larger in absolute value."""
    unit = Fraction(2) ** (int(np.frexp(float(a))[1]) - 12)
    return (1 if a > 0 else -1) * unit * ((abs(a) / unit + Fraction(1, 2)).__floor__())


TABLE = (
    Row("x + y", lambda do, a, b: do.plus(a, b), lambda a, b: a + b),
    Row("x - y", lambda do, a, b: do.minus(a, b), lambda a, b: a - b),
    Row("(x + y) - x", lambda do, a, b: do.minus(do.plus(a, b), a), lambda a, b: _nearest(a + b) - a),
    Row("the error of x + y", _error_of_sum, lambda a, b: a + b - _nearest(a + b)),
    Row("x to 12 bits", lambda _, a, b: halves(a)[0] + 0 * b, lambda a, b: _head(a)),
    Row("x y of 12 bits each", lambda do, a, b: do.times(halves(a)[0], halves(b)[0]), lambda a, b: _head(a) * _head(b)),
    Row(
        "the rest of x by y to 12 bits",
        lambda do, a, b: do.times(do.minus(a, halves(a)[0]), halves(b)[0]),
        lambda a, b: (a - _head(a)) * _head(b),
    ),
    Row("x y", lambda do, a, b: do.times(a, b), lambda a, b: a * b, 2 * U),
    Row("x / y", lambda _, a, b: a / b, lambda a, b: a / b, 2.0**-15),
    Row("the root of x^2", lambda do, a, b: jnp.sqrt(do.times(b, b)), lambda a, b: abs(b), 2.0**-15),
    Row(
        "x rounded to whole numbers",
        lambda _, a, b: lax.round(a * np.float32(4), lax.RoundingMethod.TO_NEAREST_EVEN) + 0 * b,
        lambda a, b: Fraction(round(4 * a)),
    ),
    Row(
        "inf - inf",
        lambda do, a, b: jnp.where(jnp.isnan(do.minus(jnp.abs(a) * jnp.inf, jnp.abs(b) * jnp.inf)), 1.0, 0.0),
        lambda a, b: Fraction(1),
    ),
)


@functools.cache
def expected() -> list[list[Fraction]]:
    """Returns what each row of the table gives, rounded to nearest."""
    pairs = [(Fraction(a), Fraction(b)) for a, b in OPERANDS]
    return [[_nearest(row.exact(a, b)) for a, b in pairs] for row in TABLE]


def computed(do: Operations | None = None) -> np.ndarray:
    """Returns what the backend in use makes of the table (rows, operands)."""
    operations = do or Operations()
    a, b = (np.asarray(column, np.float32) for column in zip(*OPERANDS, strict=True))
    with jax.transfer_guard("allow"), jax.numpy_dtype_promotion("standard"), jax.debug_nans(False):
        program = jax.jit(lambda a, b: jnp.stack([row.computed(operations, a, b) for row in TABLE]))
        with jax.core.eval_context():
            return np.asarray(program(a, b))


def failures(values: np.ndarray) -> list[str]:
    """Returns a line for each row in which values are not as assumed."""
    found = []
    for row, given, exact in zip(TABLE, values, expected(), strict=True):
        for value, truth, (x, y) in zip(given, exact, OPERANDS, strict=True):
            if not (np.isfinite(value) and abs(Fraction(float(value)) - truth) <= Fraction(row.error) * abs(truth)):
                found.append(f"{row.what} is {float(value)!r} at x = {x!r}, y = {y!r}, where it is {float(truth)!r}")
                break
    return found


_sound: set[str] = set()
"""Platforms that have passed."""


def check() -> None:
    """Computes the table on the backend in use, once a process, and raises where it fails.

    Raises:
        UnsoundBackendError: the backend breaks an assumption.
    """
    name = platform()
    if name in _sound:
        return
    broken = failures(computed())
    if broken:
        raise UnsoundBackendError(
            f"the backend {name!r} does not compute with float32 as pairs of them assume: {'; '.join(broken)}. No "
            "number would be a bound there: run the accounting on another one, under "
            "jax.default_device(jax.devices('cpu')[0])"
        )
    _sound.add(name)
