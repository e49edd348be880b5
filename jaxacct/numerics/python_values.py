"""Values of Python for what callers give: whole numbers, floats, flags and strings, whatever type they came in.

NumPy's and JAX's narrow numbers wrap and round where Python's do not: ``np.uint8(4) * np.uint8(64)`` is 0. And
``np.int32(65536)`` equals 65536 and has its hash, so that what JAX compiled with the one would be run for the other. So
numbers are converted once, where they come in: counts and settings to Python's (:func:`whole`,
:func:`takes_python_values`), parameters of mechanisms to float64 (:func:`wide`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Taker = TypeVar("Taker", bound=Callable[..., Any])


def _dtype(value: object) -> Any:
    """Returns the dtype of a concrete number of NumPy or JAX without axes; None of anything else."""
    if isinstance(value, (np.generic, np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer):
        return value.dtype if np.ndim(value) == 0 else None
    return None


def python_value(value: Any) -> Any:
    """Returns concrete numbers of NumPy and JAX as those of Python, and strings as plain ones; all else as it is.

    >>> import ml_dtypes
    >>> python_value(np.uint8(200)), python_value(ml_dtypes.bfloat16(0.1)), python_value(np.bool_(True))
    (200, 0.10009765625, True)
    """
    dtype = _dtype(value)
    if dtype is None:
        return str.__str__(value) if isinstance(value, str) else value
    if jnp.issubdtype(dtype, jnp.integer):
        return int(value)
    if jnp.issubdtype(dtype, jnp.floating):
        return float(value)
    return bool(value) if dtype == np.bool_ else str.__str__(value) if isinstance(value, str) else value


def whole(value: Any, name: str, meaning: str = "a whole number") -> int:
    """Returns a whole number as a Python integer; raises TypeError, with its name, where it is none, or traced.

    >>> whole(np.uint8(200), "size")
    200
    """
    number = python_value(value)
    if isinstance(number, bool) or not isinstance(number, int):
        shown = "a traced number" if isinstance(value, jax.core.Tracer) else f"{value!r} of type {type(value).__name__}"
        raise TypeError(f"{name} = {shown}: give {meaning} as a Python integer.")
    return int(number)


def real(value: Any, name: str) -> float:
    """Returns a number as a Python float; raises TypeError, with its name, where it is none, or traced."""
    number = python_value(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        shown = "a traced number" if isinstance(value, jax.core.Tracer) else f"{value!r} of type {type(value).__name__}"
        raise TypeError(f"{name} = {shown}: give a number.")
    try:
        return float(number)
    except OverflowError:
        raise ValueError(
            f"{name} is a whole number of {len(str(abs(number)))} digits: give a float, or less."
        ) from None


def flag(value: Any, name: str) -> bool:
    """Returns a flag as a Python bool; raises TypeError, with its name, where it is none, or traced."""
    seen = python_value(value)
    if not isinstance(seen, bool):
        shown = "a traced flag" if isinstance(value, jax.core.Tracer) else f"{value!r} of type {type(value).__name__}"
        raise TypeError(f"{name} = {shown}: give True or False.")
    return seen


def wide(value: Any) -> Any:
    """Returns concrete numbers of narrow types so that Python may compute with them: float64, or integers of Python.

    Arrays become NumPy's of float64; lists and tuples stay such. Booleans, numbers of Python and whatever is no number
    stay as they are. So do traced numbers, but that whole ones have 32 bits at least.

    >>> wide(np.uint8(200)), wide(np.float32(0.5)), wide(jnp.array([1, 2]))
    (200, np.float64(0.5), array([1., 2.]))
    """
    if isinstance(value, jax.core.Tracer):
        narrow = jnp.issubdtype(value.dtype, jnp.integer) and value.dtype.itemsize < 4
        return value.astype(jnp.int32) if narrow else value
    if isinstance(value, (np.generic, np.ndarray, jax.Array)):
        if np.ndim(value) == 0 and jnp.issubdtype(value.dtype, jnp.integer):
            return int(value)
        if jnp.issubdtype(value.dtype, jnp.integer) or jnp.issubdtype(value.dtype, jnp.floating):
            is_wide = isinstance(value, (np.generic, np.ndarray)) and value.dtype == np.float64 and np.ndim(value)
            return value if is_wide else np.asarray(value, np.float64)[()]
    if type(value) in (list, tuple):
        return type(value)(map(wide, value))
    return value


def widen_fields(made: Any) -> None:
    """Widens the numbers in the fields of a new dataclass that are not static: a constructor's work, once."""
    for entry in dataclasses.fields(made):
        if entry.init and not entry.metadata.get("static", False):
            object.__setattr__(made, entry.name, wide(getattr(made, entry.name)))


# ----------------------------------------------------------------------------------------------------
# Functions and constructors of dataclasses that convert what they are given, by annotations
# ----------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Any, str], Any]] = {"int": whole, "float": real, "bool": flag}
"""Conversion for each annotation that has one."""


def takes_python_values(target: Taker) -> Taker:
    """Returns a function, or a dataclass, that converts numbers of NumPy and JAX: a decorator, above all others.

    What is annotated ``int``, ``float`` or ``bool``, or as one of these or None, becomes a number of Python; a bool is
    refused by name where a number is asked for. What is of another kind is left to the function's own checks.

    >>> @takes_python_values
    ... @dataclasses.dataclass(frozen=True)
    ... class Batches:
    ...     size: int
    >>> Batches(np.int16(100))
    Batches(size=100)
    >>> @takes_python_values
    ... def rate(batch: float, size: int) -> float:
    ...     return batch / size
    >>> rate(np.float16(100), np.int32(70_000)) == 1 / 700
    True
    """
    if isinstance(target, type):
        return converting(target, [field.name for field in dataclasses.fields(target)], is_strict=False)
    positional, annotations = [], {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(name)
        if _kind(parameter.annotation)[0]:
            annotations[name] = parameter.annotation
    return _taking(target, positional, annotations, is_strict=False)


def converting(cls: Any, names: Iterable[str], *, is_strict: bool) -> Any:
    """Returns a dataclass whose constructor converts the fields of these names.

    If ``is_strict``, what is not of the annotated kind raises; otherwise only a bool in a number's place does.
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]
    annotations = {field.name: field.type for field in fields if field.name in names}
    if annotations and "__init__" in vars(cls):
        positional = ["self", *(field.name for field in fields if not field.kw_only)]
        cls.__init__ = _taking(cls.__init__, positional, annotations, is_strict=is_strict)
    return cls


def _taking(function: Any, positional: Sequence[str], annotations: Mapping[str, Any], *, is_strict: bool) -> Any:
    """Returns a function that converts its arguments by their annotations; ``positional`` are named in their order."""
    conversions = {
        name: functools.partial(_converted, name, *_kind(annotation), is_strict)
        for name, annotation in annotations.items()
    }
    places = [(place, conversions[name]) for place, name in enumerate(positional) if name in conversions]

    @functools.wraps(function)
    def taking(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for place, convert in places:
            if place < len(given):
                given[place] = convert(given[place])
        for name, value in kwargs.items():
            if name in conversions:
                kwargs[name] = conversions[name](value)
        return function(*given, **kwargs)

    return taking


def _kind(annotation: Any) -> tuple[Callable[[Any, str], Any] | None, bool]:
    """Returns the conversion that an annotation asks for, None for none, and whether None is a value as well."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    parts = [part.strip() for part in text.split("|")]
    kinds = [part for part in parts if part != "None"]
    return (KINDS.get(kinds[0]) if len(kinds) == 1 else None), len(kinds) < len(parts)


def _converted(
    name: str, convert: Callable[[Any, str], Any] | None, has_none: bool, is_strict: bool, value: Any
) -> Any:
    """Returns an argument as the number of Python that it stands for."""
    seen = python_value(value)
    if convert is None or (value is None and has_none):
        return seen
    # A number of Python is taken as it is: it neither wraps nor has a dtype. So what is left is a bool in its place.
    if not is_strict and (convert is flag or not isinstance(seen, bool)):
        return seen
    return convert(value, name)
