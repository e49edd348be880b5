"""Pytrees: callers' numbers as Python's, dataclasses that JAX compares by class, and rows of stacked trees."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Returns the numbers of constants and of carried values that a traced ``lax.scan`` takes, before its rows.

    >>> import jax, jax.numpy as jnp
    >>> looped = lambda k, c, rows: jax.lax.scan(lambda c, row: (c + k * row, c), c, rows)
    >>> scan_counts(jax.make_jaxpr(looped)(2.0, 0.0, jnp.ones(3)).eqns[-1].params)
    (1, 1)
    """
    if "num_carry" in params:  # until JAX 0.10
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


# ----------------------------------------------------------------------------------------------------
# Numbers of Python for what callers give
#
# NumPy's and JAX's narrow numbers wrap and round where Python's do not: ``np.uint8(4) * np.uint8(64)`` is 0. And
# ``np.int32(65536)`` equals 65536 and has its hash, so that what JAX compiled with the one would be run for the other.
# So numbers are converted once, where they come in: counts and settings to Python's (:func:`integer`,
# :func:`takes_python_values`), parameters of mechanisms to float64 (:func:`wide`).
# ----------------------------------------------------------------------------------------------------

Taker = TypeVar("Taker", bound=Callable[..., Any])


def python_value(value: Any) -> Any:
    """Returns concrete numbers of NumPy and JAX as those of Python, and strings as plain ones; all else as it is.

    >>> import ml_dtypes
    >>> python_value(np.uint8(200)), python_value(ml_dtypes.bfloat16(0.1)), python_value(np.bool_(True))
    (200, 0.10009765625, True)
    """
    if isinstance(value, str):
        return str.__str__(value)
    if not isinstance(value, (np.generic, np.ndarray, jax.Array)) or isinstance(value, jax.core.Tracer):
        return value
    if np.ndim(value):
        return value
    if jnp.issubdtype(value.dtype, jnp.integer):
        return int(value)
    if jnp.issubdtype(value.dtype, jnp.floating):
        return float(value)
    return bool(value) if value.dtype == np.bool_ else value


def integer(value: Any, name: str, meaning: str = "a whole number") -> int:
    """Returns a whole number as a Python integer; raises TypeError, with its name, where it is none, or traced.

    >>> integer(np.uint8(200), "size")
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

KINDS: dict[str, Callable[[Any, str], Any]] = {"int": integer, "float": real, "bool": flag}
"""Conversion for each annotation that has one."""


def takes_python_values(target: Taker) -> Taker:
    """Returns a function, or a dataclass, that converts numbers of NumPy and JAX: a decorator, above all others.

    What is annotated ``int``, ``float`` or ``bool``, or as one of these or None, becomes a number of Python; a bool in
    the place of a number raises, with the argument's name. The function's own checks see what is of another kind.

    >>> @takes_python_values
    ... @dataclasses.dataclass(frozen=True)
    ... class Split:
    ...     size: int
    >>> Split(np.int16(100))
    Split(size=100)
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
        name: functools.partial(_convert, name, *_kind(annotation)) for name, annotation in annotations.items()
    }
    # Most are right already, and constructors are called often.
    right = {name: {"int": int, "float": float, "bool": bool}.get(str(kind)) for name, kind in annotations.items()}
    places = [(place, name) for place, name in enumerate(positional) if name in conversions]

    @functools.wraps(function)
    def taking(*args: Any, **kwargs: Any) -> Any:
        positions = list(args)
        for place, name in places:
            if place < len(positions) and type(positions[place]) is not right[name]:
                positions[place] = conversions[name](False, positions[place])
        for name, value in kwargs.items():
            if name in conversions and type(value) is not right[name]:
                kwargs[name] = conversions[name](False, value)
        result = function(*positions, **kwargs)
        if is_strict:  # what the class's own checks, whose words say more, let pass
            for name, convert in conversions.items():
                if type(value := getattr(positions[0], name)) is not right[name]:
                    object.__setattr__(positions[0], name, convert(True, value))
        return result

    return taking


def _kind(annotation: Any) -> tuple[Callable[[Any, str], Any] | None, bool]:
    """Returns the conversion that an annotation asks for, None for none, and whether None is a value as well."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    parts = [part.strip() for part in text.split("|")]
    kinds = [part for part in parts if part != "None"]
    return (KINDS.get(kinds[0]) if len(kinds) == 1 else None), len(kinds) < len(parts)


def _convert(name: str, convert: Callable[[Any, str], Any] | None, has_none: bool, is_strict: bool, value: Any) -> Any:
    """Returns an argument as the number of Python that it stands for."""
    seen = python_value(value)
    if convert is None or (value is None and has_none):
        return seen
    # A number of Python is taken as it is: it neither wraps nor has a dtype. So what is left is a bool in its place.
    if not is_strict and (convert is flag or not isinstance(seen, bool)):
        return seen
    return convert(value, name)


# ----------------------------------------------------------------------------------------------------
# Dataclasses as pytrees that JAX compares by their class
#
# ``jax.tree_util.register_dataclass`` makes a node whose structure JAX (0.10.2) compares *without its class*: two
# classes with as many fields have equal structures, of different hashes. JAX's own caches look for keys by a few bits
# of the hash and compare then, so a compiled function of the one is now and then run on the other: about once in 64
# pairs and processes. ``Gaussian(0.02)`` in the place of ``PureDP(0.02)``, or a bound on delta in the place of one on
# epsilon, would then be reported. Nodes registered by functions are compared by their class. So are those of
# :func:`register_dataclass` here; accountants refuse dataclasses that are registered otherwise
# (:func:`check_compared_by_class`).
# ----------------------------------------------------------------------------------------------------

Class = TypeVar("Class", bound=type)


def register_dataclass(cls: Class) -> Class:
    """Registers a dataclass as a pytree, and returns it: a decorator, to stand above ``@dataclass``.

    Fields are children, in their order; those declared as ``field(metadata={"static": True})`` are part of the
    structure and must be hashable. It differs from ``jax.tree_util.register_dataclass`` as stated above, and in two
    more ways. Numbers of NumPy and JAX that are given for static fields become those of Python
    (:func:`python_value`): what equals has one program; those with ``"as_it_is": True`` besides stay. And JAX rebuilds
    an instance without its constructor, so that anything may stand in its fields, as pytrees of masks, gradients, names
    or shapes want: checks are the constructor's. A field that ``__post_init__`` fills in (``field(init=False)``) is a
    child like the others, or static, unless it has a default, which is the class's.

    >>> @register_dataclass
    ... @dataclasses.dataclass(frozen=True)
    ... class Pair:
    ...     first: float
    ...     second: float
    >>> jax.tree.leaves(Pair(1.0, 2.0))
    [1.0, 2.0]
    """
    children, settings = _parts(cls)
    keys = tuple(map(GetAttrKey, children))

    def flatten(tree: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(tree, name) for name in children), tuple(getattr(tree, name) for name in settings)

    def flatten_with_keys(tree: Any) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
        leaves, fixed = flatten(tree)
        return tuple(zip(keys, leaves, strict=True)), fixed

    def unflatten(fixed: tuple[Any, ...], leaves: Any) -> Any:
        made: Any = object.__new__(cls)
        for names, values in ((children, leaves), (settings, fixed)):
            for name, value in zip(names, values, strict=True):
                object.__setattr__(made, name, value)
        return made

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    as_it_is = [field.name for field in dataclasses.fields(cls) if field.metadata.get("as_it_is", False)]
    return converting(cls, [name for name in settings if name not in as_it_is], is_strict=True)


def _parts(cls: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the fields of a dataclass that are children, and of those that are static."""
    fields = [field for field in dataclasses.fields(cls) if field.init or field.default is dataclasses.MISSING]
    static = [field.name for field in fields if field.metadata.get("static", False)]
    return tuple(field.name for field in fields if field.name not in static), tuple(static)


def check_compared_by_class(value: Any) -> None:
    """Raises TypeError where a dataclass is registered such that JAX may take it for one of another class."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not _is_compared_by_class(type(value)):
        name = type(value).__name__
        raise TypeError(
            f"{name} is registered by jax.tree_util.register_dataclass: JAX compares such classes by their number of "
            f"fields alone, and may run on a {name} what was compiled for another. Put @jaxacct.register_dataclass "
            "above its @dataclass instead."
        )


@functools.cache
def _is_compared_by_class(cls: type) -> bool:
    """Returns whether the class's structures differ from those of another with the same fields."""
    children, static = _parts(cls)
    names = children + static
    other = dataclasses.make_dataclass("Other", names)
    jax.tree_util.register_dataclass(other, list(children), list(static))
    blank: Any = object.__new__(cls)
    another: Any = object.__new__(other)
    for name in names:
        for made in (blank, another):
            object.__setattr__(made, name, 0)
    structures: list[Any] = [jax.tree.structure(blank), jax.tree.structure(another)]
    return bool(structures[0] != structures[1])


def is_concrete(*trees) -> bool:
    """Returns whether no leaf of ``trees`` is a tracer, so that Python may look at the values."""
    for leaf in jax.tree.leaves(trees):  # noqa: SIM110  (every call asks this several times: a loop is fastest)
        if isinstance(leaf, jax.core.Tracer):
            return False
    return True


def of_each(function: Callable[..., Any], in_axes: tuple[int | None, ...] = (0,)) -> Callable[..., Any]:
    """Returns ``jax.vmap`` of a function, except for axes of length 1, where it calls the function itself.

    Most compositions are of one loss, and tracing an operation under ``vmap`` takes three times as long.

    >>> import jax.numpy as jnp
    >>> of_each(lambda x, y: x + y, (0, None))(jnp.ones((1, 3)), 2.0).shape
    (1, 3)
    """
    batched = jax.vmap(function, in_axes)

    def each(*args: Any) -> Any:
        leaves = [leaf for axis, arg in zip(in_axes, args, strict=True) if axis == 0 for leaf in jax.tree.leaves(arg)]
        if any(jnp.shape(leaf)[:1] != (1,) for leaf in leaves):
            return batched(*args)
        entries = [
            arg if axis is None else jax.tree.map(lambda leaf: leaf.reshape(jnp.shape(leaf)[1:]), arg)
            for axis, arg in zip(in_axes, args, strict=True)
        ]
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*entries))

    return each


def map_pairs(function: Callable[..., Any], parts: Sequence[tuple[Any, Any]], *columns: Sequence[Any]) -> list[Any]:
    """Returns, for each part, ``function(pair, *row)`` of each of its pairs, or of the one pair that has no axis.

    >>> import jax.numpy as jnp
    >>> part = jnp.ones(2), jnp.ones(2)
    >>> [found.tolist() for found in map_pairs(lambda x, y: x + y, [part, (2.0, 1.0)], [jnp.ones(2), jnp.ones(())])]
    [[2.0, 2.0], 3.0]
    """
    results = []
    for (pairs, counts), *rows in zip(parts, *columns, strict=True):
        call = function if np.ndim(counts) == 0 else of_each(function, (0,) * (1 + len(rows)))
        results.append(call(pairs, *rows))
    return results


def without_axes(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the parts, with the row axis removed from those that have one row."""
    return tuple(jax.tree.map(lambda leaf: leaf[0], part) if np.shape(part[1]) == (1,) else part for part in parts)
