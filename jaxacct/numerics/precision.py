"""Precision: float64 by scope, and functions of float64 that keep every digit.

In reading order:

- :func:`scope` and :func:`in_float64`, in which everything is computed whatever JAX's settings are,
- casts that lose nothing (:func:`exact_float64`), and logarithms that lose no digits.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey
from jaxtyping import ArrayLike

from jaxacct.numerics import elementary
from jaxacct.numerics.arithmetic import FLOAT64, PAIR, arithmetic, float64_elsewhere, is_decided, platform
from jaxacct.numerics.derivatives import Inside, Known, by_slopes, differences, in_scope
from jaxacct.numerics.programs import by_platform, outward
from jaxacct.numerics.pytrees import is_concrete as is_concrete
from jaxacct.processes import note_computing

# ----------------------------------------------------------------------------------------------------
# Float64 by scope, and the constants of directed rounding
#
# The library computes in float64 whatever the ambient JAX setting is, by entering ``jax.enable_x64`` around its own
# trace. Nothing global changes. Concrete results leave it as NumPy values, so that later operations on them keep
# float64. Traced ones stay float64 arrays; arithmetic done on them outside the scope follows the ambient setting, that
# is float32 by default.
#
# The scope also shields the library from settings that its user debugs a program with: strict promotion of types,
# guards of transfers, checks for NaN and inf (which here are answers), and the running of programs operation by
# operation. They are changed only where they differ from JAX's defaults, so that nothing is compiled anew for them.

UNIT_ROUNDOFF = FLOAT64.roundoff
"""Half the distance from 1 to the next float64: the relative error of one operation on the host. Traced code asks
:func:`~jaxacct.numerics.arithmetic.roundoff` instead."""

FUNCTION = FLOAT64.function
"""Bound on the relative error of an elementary function in float64 (:attr:`.Arithmetic.function`)."""

TINY = 2.0**-1022
"""Smallest normal float64. XLA flushes subnormals to zero, so a positive number that must not vanish is kept above."""

Params = ParamSpec("Params")
Result = TypeVar("Result")
Tree = TypeVar("Tree")


def scope(*, x64: bool = True, by_programs: bool = False) -> contextlib.AbstractContextManager[None]:
    """Returns the context that everything is computed in: float64 enabled or not, debugging settings at rest.

    The first time on a backend its arithmetic is checked (:mod:`jaxacct.numerics.elementary`), and refused where it
    fails. The check is left out ``by_programs``, where nothing is computed in the scope but comparisons, + and -, and
    programs of :mod:`jaxacct.numerics.programs`: those check their own compiler, which is mostly another one.

    Raises RuntimeError in a process that was forked from one that had computed: JAX's threads are not forked with it,
    and its first computation would wait for them for ever.
    """
    note_computing()
    if x64 and not by_programs:
        elementary.check()
    config: Any = jax.config
    # Entering contexts that change nothing would make JAX compile anew, for settings are part of its keys.
    settings = (
        config.jax_numpy_dtype_promotion,
        config.jax_debug_nans,
        config.jax_debug_infs,
        config.jax_disable_jit,
        config.jax_transfer_guard_host_to_device,
        config.jax_transfer_guard_device_to_device,
        config.jax_transfer_guard_device_to_host,
    )
    # They are JAX's defaults, those within a scope that was entered because they were not, or the user's.
    at_rest = ("standard", False, False, False)
    is_shielded = settings in ((*at_rest, None, None, None), (*at_rest, "allow", "allow", "allow"))
    return jax.enable_x64(x64) if is_shielded else _at_rest(x64=x64)


@contextlib.contextmanager
def _at_rest(*, x64: bool) -> Iterator[None]:
    with elementary.without_debugging(), jax.enable_x64(x64):
        yield


@overload
def in_float64(function: Callable[Params, Result]) -> Callable[Params, Result]: ...


@overload
def in_float64(
    function: None = None,
    *,
    by_programs: bool = False,
    safe: Callable[[Any], Any] = outward,
    known: Known | None = None,
    inside: Inside | None = None,
    outermost: bool = False,
    gathers: bool = False,
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]: ...


def in_float64(
    function: Any = None,
    *,
    by_programs: bool = False,
    safe: Callable[[Any], Any] = outward,
    known: Known | None = None,
    inside: Inside | None = None,
    outermost: bool = False,
    gathers: bool = False,
) -> Any:
    """Returns ``function`` run, and traced, in the :func:`scope` with float64 for its own extent.

    A traced call is made for the platform that it is lowered for (:func:`.programs.by_platform`), once for all that is
    called within. For concrete arguments on a device without float64, the CPU beside it computes.

    Args:
        function: function of pytrees and of static arguments, to a pytree of arrays.
        by_programs: as in :func:`scope`.
        safe: as in :func:`.programs.by_platform`.
        known: tells of a result whether it says anything. If it is given, derivatives are those of
            :func:`.derivatives.differences`, where arguments and fields that are named in :data:`COUNTS` move by whole
            runs; else they are JAX's.
        inside: tells of the arguments whether they are in range, where the result does not.
        outermost: whether that is so of calls from outside alone, and not of those within others, which trace less.
        gathers: whether JAX's derivatives are taken by :func:`.derivatives.in_scope`, as a function needs that slices
            or gathers its arguments.
    """
    if function is None:
        return functools.partial(
            in_float64,
            by_programs=by_programs,
            safe=safe,
            known=known,
            inside=inside,
            outermost=outermost,
            gathers=gathers,
        )
    as_it_is = within_scope(by_programs=by_programs)(function)
    names = tuple(inspect.signature(function).parameters) if known is not None else ()

    @functools.wraps(function)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        decided = is_decided()
        if decided and (known is None or outermost or is_concrete(args, kwargs)):
            return as_it_is(*args, **kwargs)
        if not decided and is_concrete(args, kwargs):
            return by_host(scoped, args, kwargs) if platform() == "tpu" else as_it_is(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        moves = tuple(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        fixed = tuple(_Known(leaf) for leaf, move in zip(leaves, moves, strict=True) if not move)
        # As :func:`settle` does, outside the scope.
        moving = [jnp.array(leaf, copy=True) for leaf, move in zip(leaves, moves, strict=True) if move]
        with float64_elsewhere():
            context = scope(by_programs=by_programs)
        with context:
            if known is None:
                plain = functools.partial(_call, function, safe, structure, moves, fixed)
                return in_scope(plain)(moving) if gathers else plain(moving)
            placed = dict(zip(names, args, strict=False))
            marks = [*_count(placed), *_count(kwargs)]
            counts = tuple(mark for mark, move in zip(marks, moves, strict=True) if move)
            call = functools.partial(_call, function, safe, structure, moves, fixed)
            slopes = functools.partial(_slopes, function, safe, structure, moves, fixed, counts, known, inside)
            in_range = None if inside is None else functools.partial(_apply, inside, structure, moves, fixed)

            def value_of(moving: list[Any]) -> Any:
                # Concrete within a derivative, they take the programs of eager calls.
                return _apply(scoped, structure, moves, fixed, moving) if is_concrete(moving) else call(moving)

            def slopes_of(moving: list[Any], which: tuple[int, ...]) -> Any:
                if is_concrete(moving):
                    return differences(value_of, moving, which, counts, known, in_range)
                return slopes(which, moving)

            return by_slopes(value_of, slopes_of, f"{function.__module__}.{function.__name__}")(moving)

    return scoped


COUNTS = frozenset({"steps", "position"})
"""Names of arguments, and of fields of arguments, that count runs: they move by one in differences."""


def _count(arguments: dict[str, Any]) -> list[bool]:
    """Returns, for each leaf of arguments with their names, whether it counts runs."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tuple(arguments.values()))
    names = list(arguments)
    # The name nearest to the leaf counts: that of a field, or the argument's.
    return [
        ([names[path[0].idx]] + [key.name for key in path[1:] if isinstance(key, GetAttrKey)])[-1] in COUNTS
        for path, _ in paths
    ]


def settle(tree: Tree) -> Tree:
    """Returns ``tree`` ready to enter the scope: its tracers' numbers have the types that the tracers say.

    Where float64 is off JAX maps and differentiates float64 numbers of NumPy as float32, but converts them with the
    first operation only. Within the scope that would see float64, beside tangents of float32. What is mapped and not
    differentiated has no tangents, and keeps all of its digits.

    Arrays of NumPy are copied (:func:`_own`). JAX remembers an array that was a constant of a float32 trace as one of
    float32, and in the scope passes that to a program of float64 numbers, which refuses it. And a trace keeps its
    constants by their memory, into which their owner may write: what was decided of the old numbers would then stand
    beside the new ones. Within the scope what was copied already is not copied again.
    """
    is_inside = jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            is_own = is_inside and leaf.flags.owndata and not leaf.flags.writeable
            return leaf if is_own else _own(leaf)
        is_moving = not is_inside and isinstance(leaf, jax.core.Tracer) and not _is_batch(leaf)
        return jnp.array(leaf, copy=True) if is_moving else leaf

    return jax.tree.map(convert, tree)


def _own(value: Any) -> Any:
    """Returns an array of numbers that nobody else can write into; what is no array, as it is.

    JAX's arrays may share their memory with the NumPy array that they were made of.
    """
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    elif isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.extended):
        with jax.core.eval_context():
            value = value.copy()
    return value


def _is_batch(leaf: Any) -> bool:
    """Returns whether a tracer stands for a batch of concrete numbers, with no derivative in between."""
    while isinstance(leaf, jax.core.Tracer) and hasattr(leaf, "batch_dim"):
        leaf = leaf.val
    return not isinstance(leaf, jax.core.Tracer)


class _Known:
    """A value that a program is made for; two of one type, shape and bits are equal.

    The program outlives the call, and is found again by the bits: so the memory that they were read from is its own.
    """

    def __init__(self, value: Any) -> None:
        self.value = value = _own(value)
        # By bits, so that 0.0 and -0.0, and numbers of one value and two types, are told apart.
        if isinstance(getattr(value, "dtype", None), np.dtype):  # not a key's
            bits = np.asarray(value)
            self.key: Any = type(value), bits.shape, bits.dtype, bits.tobytes()
        else:
            self.key = type(value), value.hex() if isinstance(value, float) else value
        try:
            self.hash = hash(self.key)
        except TypeError:
            self.key = type(value), id(value)
            self.hash = hash(self.key)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.key == other.key


def _apply(
    function: Callable[..., Any], structure: Any, moves: tuple[bool, ...], fixed: tuple[_Known, ...], moving: list[Any]
) -> Any:
    """Returns a function's result; of its arguments' leaves some are known, and the others move."""
    traced, known = iter(moving), iter(fixed)
    leaves = [next(traced) if move else next(known).value for move in moves]
    args, kwargs = jax.tree.unflatten(structure, leaves)
    return function(*args, **kwargs)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), inline=True)
def _call(
    function: Callable[..., Any],
    safe: Callable[[Any], Any],
    structure: Any,
    moves: tuple[bool, ...],
    fixed: tuple[_Known, ...],
    moving: list[Any],
) -> Any:
    """Returns the result of a function for its platform."""
    return by_platform(functools.partial(_apply, function, structure, moves, fixed), moving, safe=safe)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5, 6, 7, 8), inline=True)
def _slopes(
    function: Callable[..., Any],
    safe: Callable[[Any], Any],
    structure: Any,
    moves: tuple[bool, ...],
    fixed: tuple[_Known, ...],
    counts: tuple[bool, ...],
    known: Known,
    inside: Inside | None,
    which: tuple[int, ...],
    moving: list[Any],
) -> Any:
    """Returns the result of a function for its platform, and its slopes."""
    run = functools.partial(_apply, function, structure, moves, fixed)
    in_range = None if inside is None else functools.partial(_apply, inside, structure, moves, fixed)
    return by_platform(
        lambda moving: differences(run, moving, which, counts, known, in_range),
        moving,
        safe=lambda found: (safe(found[0]), found[1]),
    )


def by_host(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Returns the function's result for numbers, computed by the CPU beside a device, wherever the numbers are."""
    cpu = jax.local_devices(backend="cpu")[0]

    def brought(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.device_put(leaf, cpu) if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else np.asarray(leaf)

    args, kwargs = jax.tree.map(brought, (args, kwargs))
    with jax.default_device(cpu):
        return function(*args, **kwargs)


_PLAIN = frozenset({int, float, bool, str, np.float64})
"""Types of leaves that :func:`settle` leaves as they are. Speed only."""


@overload
def within_scope(function: Callable[Params, Result]) -> Callable[Params, Result]: ...


@overload
def within_scope(
    function: None = None, *, by_programs: bool
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]: ...


def within_scope(function: Any = None, *, by_programs: bool = False) -> Any:
    """Returns ``function`` run in the :func:`scope`; the function that calls it takes care of platforms.

    Args:
        function: any function.
        by_programs: as in :func:`scope`.
    """
    if function is None:
        return functools.partial(within_scope, by_programs=by_programs)

    @functools.wraps(function)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        if not _PLAIN.issuperset(map(type, leaves)):
            args, kwargs = settle((args, kwargs))
        with scope(by_programs=by_programs), _as_constants(leaves):
            return function(*args, **kwargs)

    return scoped


def _as_constants(leaves: list[Any]) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which concrete arguments are computed with at once, inside a caller's trace, too.

    There operations of JAX would make tracers of them, which are of no use to what decides by their values. What is
    traced for a platform stays a trace.
    """
    is_traced = is_decided()
    # A function among the arguments may have tracers in its closure.
    for leaf in leaves:
        is_open = callable(leaf) and getattr(leaf, "__closure__", leaf) is not None
        is_traced = is_traced or is_open or isinstance(leaf, jax.core.Tracer)
    return contextlib.nullcontext() if is_traced else jax.core.eval_context()


def as_float64(value) -> jax.Array:
    """Returns ``value`` as a float64 array. It may be called inside the scope only."""
    return jnp.asarray(value, dtype=jnp.float64)


def exact_float64(value) -> jax.Array:
    """Returns ``value``, an argument and no tangent of one, as a float64 array, subnormals included, in the scope.

    A plain cast from a narrower type flushes them to zero, so that a small cost would vanish.
    """
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize < 8:
        return _widen(value)
    return as_float64(value)


def exact_real(value: ArrayLike) -> jax.Array:
    """Returns :func:`exact_float64` of ``value`` inside the scope, and its float32 outside."""
    return exact_float64(value) if jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64 else as_real(value)


@jax.custom_jvp
@functools.partial(jax.jit, inline=True)
def _widen(value: jax.Array) -> jax.Array:
    limits, bits = jnp.finfo(value.dtype), _bits(value)
    # A subnormal number is its bits, as a whole number, times the smallest one: no operation meets it as a float of the
    # narrow type.
    magnitude = jnp.right_shift(jnp.left_shift(bits, 1), 1)
    units = magnitude.astype(jnp.float64) * float(limits.smallest_subnormal)
    signed = jnp.where(bits == magnitude, units, -units)
    return jnp.where(magnitude < 2**limits.nmant, signed, value.astype(jnp.float64))


@_widen.defjvp
def _widened_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    with scope():  # what was traced may be differentiated outside of it
        return _widen(*primals), tangents[0].astype(jnp.float64)


def _bits(value: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(value, f"uint{8 * value.dtype.itemsize}")


def is_zero(value: jax.Array) -> jax.Array:
    """Returns where floats are 0 to the bit: compared as numbers, XLA takes subnormals for 0.

    A pair has no bits of a float64, but its range holds all of those numbers.
    """
    if value.dtype == jnp.float64 and arithmetic() == PAIR:
        return value == 0
    # LLVM makes of "all bits but the sign are 0" a comparison of floats, in which a subnormal is 0 again. So the digits
    # of a number below the smallest normal one are read as those of a number from 1 to 2, which is normal.
    limits = jnp.finfo(value.dtype)
    digits = _bits(value) & ((1 << limits.nmant) - 1)
    from_one = jax.lax.bitcast_convert_type(digits | _bits(jnp.ones((), value.dtype)), value.dtype)
    return (jnp.abs(value) < limits.tiny) & (from_one == 1)


def kept_positive(value: jax.Array, least: float = TINY) -> jax.Array:
    """Returns ``value`` with every number in (0, least) raised to ``least``, subnormals included; 0 stays 0."""
    # As numbers subnormals may count as 0, so they are at least 0 and below ``least``; their bits tell them from 0.
    small = (value >= 0) & (value < least) & ~is_zero(value)
    return jnp.where(small, jnp.asarray(least, value.dtype), value)


def as_real(value: ArrayLike) -> jax.Array:
    """Returns ``value`` as an array of the widest real type at hand: float64 inside the scope, float32 outside."""
    return jnp.asarray(value, dtype=jax.dtypes.canonicalize_dtype(jnp.float64))


def leave_scope(tree: Tree) -> Tree:
    """Returns ``tree`` ready to leave the scope: concrete arrays as NumPy arrays, tracers as they are.

    NumPy compares and adds float64 as float64 whatever JAX is set to; a JAX array would be rounded to the nearest
    float32 first, to the wrong side half the time.
    """
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf)[()], tree)


def representable(value: jax.Array) -> jax.Array:
    """Returns numbers near those given that leave the scope unchanged: float32 ones where float64 is made of pairs."""
    return value if arithmetic() == FLOAT64 else jax.lax.reduce_precision(value, 8, 23)


def representable_below(value: jax.Array) -> jax.Array:
    """Returns such numbers that are not above the given ones, which are positive."""
    return value if arithmetic() == FLOAT64 else representable(value * (1 - 2.0**-23))


def log_complement(probability: jax.Array) -> jax.Array:
    """Returns log(1 - p), right to a few units of roundoff for every p in [0, 1].

    XLA's log1p on a CPU was measured 240 units off for arguments between -0.42 and -0.35; the plain logarithm is right
    there, for 1 - p rounds once and is not near 1.
    """
    return jnp.where(probability < 0.25, jnp.log1p(-jnp.minimum(probability, 0.25)), jnp.log(1 - probability))


def log_peak(order: jax.Array) -> jax.Array:
    """Returns log(t^t / (1+t)^(1+t)), t the order, to a few units of 1 + log(1 + t).

    It is the log of the maximum of e^(-tx) (1 - e^-x) over x > 0, which is at x = log(1 + 1/t).
    """
    return -order * jnp.log1p(1 / order) - jnp.log1p(order)


def first_index(condition: jax.Array) -> jax.Array:
    """Returns the first index where a vector of booleans is true, its length where none is.

    It stands in for argmin and argmax: within a caller's trace those are lowered after the scope is left, and then mix
    float64 operands with float32 constants.
    """
    size = condition.shape[-1]
    return jnp.min(jnp.where(condition, jnp.arange(size), size), axis=-1)
