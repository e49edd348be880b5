"""Checks of arguments: a concrete value out of range raises, with name, value, reason and remedy.

Traced values cannot raise; what is computed of them lands on the safe side.
"""

from __future__ import annotations

import inspect
import numbers
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxacct.numerics.precision import exact_float64, is_zero, within_scope
from jaxacct.numerics.pytrees import integer

# ----------------------------------------------------------------------------------------------------
# Checks of arguments: a concrete value out of range raises, with the argument's name, value, the reason and the remedy.
#
# Traced values cannot raise: each accountant turns an invalid one into the safe side (inf for epsilon, 1 for delta).
# ----------------------------------------------------------------------------------------------------

MOST_COUNT = 2**31 - 1
"""Largest number of anything that programs count in 32-bit integers, as they do by default."""

MOST_STEPS = 2**53
"""Largest number of runs: up to here float64 holds every whole number, so raising it could break a bound."""


MOST_SHOWN = 120
"""Most characters of a value that a message shows."""


def shorten(value: object) -> str:
    """Returns a value as a message shows it: its ``repr``, of a long one its beginning, and its type.

    >>> shorten((1.0, 2.0)), len(shorten(list(range(10_000)))) < 200
    ('(1.0, 2.0)', True)
    """
    try:
        text = (
            repr(value)
            if not isinstance(value, int) or abs(value) < 10**MOST_SHOWN
            else f"{value.bit_length()}-bit int"
        )
    except Exception:  # a repr of somebody else's, of which an error message must not depend
        text = f"<{type(value).__name__}>"
    text = " ".join(text.split())
    if len(text) <= MOST_SHOWN:
        return text
    size = f" of {len(value)}" if isinstance(value, (list, tuple, dict, set, str, bytes)) else ""
    shape = f" of shape {value.shape}" if isinstance(value, (np.ndarray, jax.Array)) else size
    return f"{text[: MOST_SHOWN - 40]}... ({type(value).__name__}{shape})"


def _with_type(value: object) -> str:
    return f"{shorten(value)} of type {type(value).__name__}"


def concrete_value(value: object) -> np.ndarray | None:
    """Returns ``value`` as a NumPy array, of floats in float64; None where Python cannot see it, or it is no number.

    A mechanism may be made of what is none, for the axes of ``jax.vmap``: None, say. So classes let it pass, and
    functions check their arguments by :func:`check_number`.
    """
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise TypeError(f"expected a number, got {shorten(value)} of type {type(value).__name__}.")
    if isinstance(value, (list, tuple)):
        raise TypeError(f"expected a number or an array, got {shorten(value)}: give numpy.array(...) for a sequence.")
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        is_float = jnp.issubdtype(value.dtype, jnp.floating)
        if not (is_float or jnp.issubdtype(value.dtype, jnp.integer)):
            raise TypeError(f"expected a number, got one of dtype {value.dtype}: give real numbers.")
        if isinstance(value, jax.core.Tracer):
            return None
        # A narrow float would be compared in its own type, where 2**-1022 is 0 and 2**53 infinite.
        return np.asarray(value, np.float64) if is_float and value.dtype.itemsize < 8 else np.asarray(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        shown = shorten(value)
        raise OverflowError(f"expected a number, got {shown}, which 64 bits do not hold: give a float, or less.")
    return np.asarray(value) if isinstance(value, (int, float)) else None


def as_array(value: Any, name: str = "value") -> Any:
    """Returns a list or tuple of numbers as a float64 array; everything else as it is."""
    try:
        return np.asarray(value, np.float64) if isinstance(value, (list, tuple)) else value
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} = {shorten(value)}: give an array, or a list of numbers.") from None


COUNTS = ("steps", "count", "batches", "queries", "depth")
"""Arguments that are whole numbers of something, far below 2^63. For messages alone."""


def seen_value(value: object, name: str) -> np.ndarray | None:
    """Returns :func:`concrete_value`, whose errors name the argument."""
    if isinstance(value, numbers.Number) and not isinstance(value, (int, float, np.generic)):
        raise TypeError(f"{name} = {_with_type(value)}: give a number, that is an int, a float or an array.")
    try:
        return concrete_value(value)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    except OverflowError as error:
        # What is counted has no such number as a float either.
        text = str(error).replace("a float, or less", "less") if name in COUNTS else error
        raise ValueError(f"{name}: {text}") from None


def _require(value: object, name: str, holds: Callable[[np.ndarray], Any], reason: str) -> None:
    """Raises where a concrete value, or one of an array, does not hold; the message shows the first that does not."""
    seen = seen_value(value, name)
    if seen is None or np.all(holds(seen)):
        return
    first = value if seen.ndim == 0 else seen[~np.broadcast_to(holds(seen), seen.shape)].ravel()[0]
    text = str(first) if isinstance(first, (float, np.generic, np.ndarray)) else shorten(first)
    raise ValueError(f"{name} = {text} {reason}")


def check_number(value: object, name: str) -> None:
    """Raises TypeError where an argument is neither a number, nor an array, nor traced."""
    if seen_value(value, name) is None and not isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} = {_with_type(value)}: give a number, or an array of them.")
    if isinstance(value, (np.ndarray, jax.Array)) and not value.size:
        raise ValueError(f"{name} is an empty array: give a number, or an array of them.")


def check_numbers(**values: object) -> None:
    """Raises where one of a function's arguments, by its name, is neither a number, nor an array or a list of numbers.

    Traced ones pass, and lists that hold some.
    """
    for name, value in values.items():
        if not isinstance(value, (list, tuple)):
            check_number(value, name)
        elif not value:
            raise ValueError(f"{name} is empty: give a number, or an array or list of them.")
        elif not any(isinstance(each, jax.core.Tracer) for each in value):
            try:
                check_number(np.asarray(value), name)
            except (TypeError, ValueError, OverflowError):
                raise TypeError(f"{name} = {shorten(value)}: give a number, or an array or list of them.") from None


def check_type(value: object, name: str, kind: type) -> None:
    """Raises where an argument is of another class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} = {_with_type(value)}: give a {kind.__name__}.")


def check_scalar(value: ArrayLike, name: str) -> None:
    """Raises where a value, concrete or traced, is no number or has axes."""
    check_number(value, name)
    if np.ndim(value):
        raise ValueError(f"{name} of shape {np.shape(value)}: give a scalar, and use jax.vmap for batches.")


def check_not_negative(value: object, name: str, meaning: str, what: str = "out of range") -> None:
    """Raises where a concrete value is negative or NaN; infinity passes. ``meaning`` says what it is to be."""
    _require(value, name, lambda v: v >= 0, f"is {what}: give {meaning}, at least 0.")


def check_noise_multiplier(value: object, name: str = "noise_multiplier") -> None:
    """Raises where a concrete noise multiplier is negative or NaN. Zero passes: it costs an infinite epsilon."""
    meaning = "the standard deviation of the noise over the clipping norm"
    check_not_negative(value, name, meaning, "not a noise multiplier")


def check_sampling_rate(value: object, name: str = "sampling_rate", *, zero: bool = False) -> None:
    """Raises where a concrete sampling rate is outside (0, 1]; 0, at which nobody takes part, passes if asked."""
    _require(
        value, name, lambda v: ((v >= 0) if zero else (v > 0)) & (v <= 1),
        f"is not a probability in {'[' if zero else '('}0, 1]: give the expected batch size over the number of "
        "examples (a fraction, not a percentage).",
    )  # fmt: skip


def check_steps(value: object, name: str = "steps") -> None:
    """Raises where a concrete number of steps is negative, fractional or above :data:`MOST_STEPS`."""
    reason = (
        "is not a number of steps: give a whole number of noisy updates, at least 0 and at most 2**53 "
        "(epochs times the number of batches an epoch)."
    )
    if isinstance(value, int) and abs(value) > MOST_STEPS:
        raise ValueError(f"{name} = {shorten(value)} {reason}")

    def countable(steps: np.ndarray) -> Any:
        # In float64 2**53 + 1 would become 2**53, so integers are compared as they are.
        return (steps >= 0) & (steps == np.floor(steps)) & (steps <= MOST_STEPS)

    _require(value, name, countable, reason)


def exact_steps(value: object, name: str = "steps") -> Any:
    """Returns numbers of steps in float64 with none lost, of one mechanism or of a tuple; all ledgers count by this.

    A NumPy integer read outside the float64 scope would lose its upper bits: 2**32 + 1 runs would be 1. Concrete
    numbers come back as NumPy ones, or raise as :func:`check_steps` does. Traced ones come back as tracers, NaN where
    they are no number of steps; everything downstream takes NaN for an infinite cost.
    """
    if isinstance(value, (list, tuple)):
        each = [exact_steps(part, name) for part in value]
        return each if isinstance(value, list) else tuple(each)
    check_number(value, name)
    if isinstance(value, jax.core.Tracer):
        return _traced_steps(value)
    check_steps(value, name)
    return np.asarray(value, np.float64)


@within_scope
def _traced_steps(value: Array) -> Array:
    steps = exact_float64(value)
    wide = jnp.issubdtype(value.dtype, jnp.integer) and value.dtype.itemsize == 8
    fits = value <= MOST_STEPS if wide else steps <= MOST_STEPS  # 64-bit integers are compared before they are rounded
    is_whole = (steps >= 1) & (jnp.floor(steps) == steps) & fits
    return jnp.where(is_whole | is_zero(steps), steps, jnp.nan)


@within_scope
def whole_steps(value: object, name: str = "steps") -> Array:
    """Returns a number of steps in int32, into which no larger one wraps: -1 where it is none or above MOST_COUNT.

    Concrete numbers that are none raise, as in :func:`exact_steps`.
    """
    steps = jnp.asarray(exact_steps(value, name))
    return jnp.where((steps >= 0) & (steps <= MOST_COUNT), steps, -1.0).astype(jnp.int32)


def check_whole_numbers(value: object, name: str, most: int, what: str, meaning: str) -> None:
    """Raises where a concrete value, or one of an array, is no whole number from 1 to ``most``."""
    reason = f"is not a number of {what}: give {meaning} from 1 to {most}."
    _require(value, name, lambda v: (v >= 1) & (v == np.floor(v)) & (v <= most), reason)


def check_batches(value: object, most: int, name: str = "batches") -> None:
    """Raises where a concrete number of batches is not whole, below 1 or above ``most``."""
    check_whole_numbers(value, name, most, "batches", "a whole number of batches an epoch,")


def check_queries(value: object, most: int, name: str = "queries") -> None:
    """Raises where a concrete number of queries is not whole, below 1 or above ``most``."""
    check_whole_numbers(value, name, most, "queries", "the most that a run asks, a whole number")


def check_delta(value: object, name: str = "delta", *, pure: bool = False) -> None:
    """Raises where a concrete delta is no number, or outside (0, 1). Where ``pure``, 0 asks for the pure epsilon."""
    check_number(value, name)
    _require(
        value, name, lambda v: ((v >= 2.0**-1022) & (v < 1)) | ((v == 0) & pure),
        f"is not in (0, 1){', nor 0 for the pure epsilon' if pure else ''}: give the failure probability, well below "
        "one over the number of examples (1e-5, say); a value above 1 is often an epsilon in delta's place.",
    )  # fmt: skip


def check_epsilon(value: object, name: str = "epsilon") -> None:
    """Raises where a concrete epsilon is negative or NaN."""
    _require(value, name, lambda v: v >= 0, "is not an epsilon: give a number of at least 0.")


def check_positive(value: object, name: str) -> None:
    """Raises where a concrete value is not above 0 and finite."""
    _require(value, name, lambda v: (v > 0) & np.isfinite(v), "is out of range: give a finite number above 0.")


def check_discrete_scale(value: object, name: str = "scale") -> None:
    """Raises where a concrete scale of noise on the integers is not above 0. Infinity passes: nothing is released."""
    _require(value, name, lambda v: v > 0, "is no scale of noise on the integers: give a number above 0.")


def check_one_of(value: object, name: str, choices: tuple[str, ...], why: str = "") -> None:
    """Raises where ``value`` is not one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        shown = shorten(value)
        raise ValueError(f"{name} = {shown} is not supported{why}: give one of {', '.join(map(repr, choices))}.")


def check_probability(value: object, name: str) -> None:
    """Raises where a concrete value is outside [0, 1]."""
    _require(value, name, lambda v: (v >= 0) & (v <= 1), "is not a probability: give a number in [0, 1].")


def check_decay(value: object, name: str) -> None:
    """Raises where a concrete decay of a moving average is outside [0, 1)."""
    _require(value, name, lambda v: (v >= 0) & (v < 1), "is no decay of an average: give a number in [0, 1).")


def check_whole(value: object, name: str, least: int, most: int, meaning: str) -> int:
    """Returns a static value as a Python integer; raises unless it is a whole number, of whatever type, in range.

    Args:
        value: the number.
        name: the argument's.
        least: smallest number allowed.
        most: largest number allowed.
        meaning: what it is to be, in words.
    """
    number = integer(value, name, meaning)
    if not least <= number <= most:
        raise ValueError(f"{name} = {shorten(number)} is out of range: give {meaning}, from {least} to {most}.")
    return number


def check_count(value: object, name: str, meaning: str) -> int:
    """Returns :func:`check_whole` of a number from 1 to :data:`MOST_COUNT`."""
    return check_whole(value, name, 1, MOST_COUNT, meaning)


def check_probabilities(value: object, name: str, tolerance: float) -> None:
    """Raises where concrete probabilities (..., m) are negative, subnormal, NaN, or do not sum to one."""
    seen = seen_value(value, name)
    if seen is None:
        return
    if seen.ndim == 0 or seen.shape[-1] == 0:
        raise ValueError(f"{name} = {shorten(value)} has no axis of outcomes: give probabilities (..., m).")
    seen = seen.astype(np.float64)
    _require(
        seen, name, lambda v: (v == 0) | ((v >= 2.0**-1022) & (v <= 1)),
        "is not a probability in [0, 1] that float64 holds in full: give 0 or at least 2.3e-308; "
        "for an upper bound 0 is safe in Q alone.",
    )  # fmt: skip
    off = np.max(np.abs(np.sum(seen, axis=-1) - 1))
    if off > tolerance:
        raise ValueError(
            f"{name} sums to one only within {off:.3g}: give float64 probabilities that sum to one, with a further "
            "outcome for what is missing (where Q has 0, P's mass is an infinite loss)."
        )


def check_finite(value: object, name: str) -> None:
    """Raises where a concrete value is infinite or NaN."""
    _require(value, name, np.isfinite, "is out of range: give a finite number.")


def check_noise_scale(value: object, name: str = "scale") -> None:
    """Raises where a concrete Laplace scale is negative or NaN. Zero passes: it costs an infinite epsilon."""
    check_not_negative(value, name, "the scale over the query's L1 sensitivity", "not a scale of Laplace noise")


def check_sensitivities(value: object, name: str = "sensitivities") -> None:
    """Raises where concrete sensitivities (..., m) are negative, not finite, all 0, or no vector."""
    _require(value, name, lambda v: (v >= 0) & np.isfinite(v), "is not a sensitivity: give finite numbers, at least 0.")
    seen = concrete_value(value)
    if seen is not None and (seen.ndim == 0 or not np.all(np.any(seen > 0, axis=-1))):
        raise ValueError(
            f"{name} = {shorten(value)} are no sensitivities: give (..., m), with one above 0 in each row."
        )


# ----------------------------------------------------------------------------------------------------
# Warnings
# ----------------------------------------------------------------------------------------------------

PACKAGE = os.path.dirname(__file__)
"""The folder of this package's files."""


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line outside of this package whose call led here, from however deep within it."""
    level, frame = 1, inspect.currentframe()
    # The level of a frame is its distance from here and one more, as ``warnings.warn`` counts.
    while (frame := None if frame is None else frame.f_back) is not None:
        level += 1
        if not frame.f_code.co_filename.startswith(PACKAGE):
            break
    warnings.warn(message, category, stacklevel=level)
