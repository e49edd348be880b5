"""Precision: float64 by scope, and functions of float64 that keep every digit.

In reading order:

- :func:`scope` and :func:`kernel`, in which everything is computed whatever JAX's settings are,
- casts that lose nothing (:func:`exact_float64`), and logarithms that lose no digits.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey
from jaxtyping import ArrayLike

from jaxacct.numerics import elementary
from jaxacct.numerics.arithmetic import FLOAT32, FLOAT64, arithmetic, float64_elsewhere, is_decided, platform
from jaxacct.numerics.derivatives import Differences, by_slopes, differences, in_scope
from jaxacct.numerics.elementary import By
from jaxacct.numerics.programs import Program, by_platform
from jaxacct.numerics.pytrees import is_concrete as is_concrete
from jaxacct.processes import COMPUTING, check_not_forked

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

TINY = FLOAT64.tiny
"""Smallest normal float64. XLA flushes subnormals to zero, so a positive number that must not vanish is kept above.

In a program in float32 it, and its multiples, are those of the smallest normal float32
(:func:`.float32.of_constant`)."""

Params = ParamSpec("Params")
Result = TypeVar("Result")
Tree = TypeVar("Tree")


def scope(*, x64: bool = True) -> contextlib.AbstractContextManager[None]:
    """Returns the context that everything is computed in: float64 enabled or not, debugging settings at rest.

    The first time on a backend its arithmetic is checked (:mod:`jaxacct.numerics.elementary`), however what runs here
    will be compiled, and refused where it fails.

    Raises RuntimeError in a process that was forked from one that had computed: JAX's threads are not forked with it,
    and its first computation would wait for them for ever.
    """
    if COMPUTING["before a fork"]:
        check_not_forked()
    COMPUTING["here"] = True
    if x64:
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
def kernel(function: Callable[Params, Result]) -> Callable[Params, Result]: ...


@overload
def kernel(
    function: None = None, *, compiles: By, static: int = 0, of_one_shape: bool = False, derivatives: Differences | None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


@overload
def kernel(
    function: None = None,
    *,
    derivatives: Differences | None = None,
    gathers: bool = False,
    own_float64: bool = False,
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]: ...


def kernel(
    function: Any = None,
    *,
    compiles: By | None = None,
    static: int = 0,
    of_one_shape: bool = False,
    derivatives: Differences | None = None,
    gathers: bool = False,
    own_float64: bool = False,
) -> Any:
    """Returns ``function`` run, and traced, in the :func:`scope` with float64 for its own extent: the way into float64.

    A traced call is made for the platform that it is lowered for (:func:`.programs.by_platform`), once for all that is
    called within. For concrete arguments on a device without float64, the CPU beside it computes. Of what enters
    float64, take

    - ``kernel`` for what users call, and for what is traced or differentiated by itself,
    - ``kernel(compiles=...)`` for a function of numbers alone, which is one program for eager calls of one shape,
    - ``kernel`` over :func:`.programs.compiled` for one of states, whose numbers keep their types,
    - :func:`within_scope` for what those call, and mechanisms' methods: its callers care for platform and derivatives,
    - :func:`scope` for a few statements.

    Args:
        function: function of pytrees and of static arguments, to a pytree of arrays.
        compiles: the way that eager calls are compiled (:func:`.programs.compiled`). Arguments are positional then, and
            come in as float64, for otherwise an int and a float would be two programs; concrete results leave as
            NumPy arrays.
        static: how many of the last arguments are hashable and part of that program.
        of_one_shape: whether all of its numbers are broadcast against one another first.
        derivatives: how derivatives are taken by :func:`.derivatives.differences`, where arguments and fields that are
            named in :data:`COUNTS` move by whole runs; None for JAX's own.
        gathers: whether JAX's own are taken by :func:`.derivatives.in_scope`, as a function needs that slices or
            gathers its arguments.
        own_float64: whether what a device has for float64 will do, for numbers that are drawn or summed and bound
            nothing: on a TPU XLA makes it of two float32 numbers, of 48 bits, and promises nothing of its functions.
    """
    if function is None:
        return functools.partial(
            kernel,
            compiles=compiles,
            static=static,
            of_one_shape=of_one_shape,
            derivatives=derivatives,
            gathers=gathers,
            own_float64=own_float64,
        )
    run, names = function, tuple(inspect.signature(function).parameters) if derivatives else ()
    if compiles is not None:
        run, take = _of_numbers(function, compiles, static, of_one_shape)
        if derivatives is not None and (inside := derivatives.inside) is not None:
            derivatives = replace(derivatives, inside=lambda *args: inside(*take(args)))
    as_it_is = within_scope(run)

    @functools.wraps(function)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        concrete, decided = is_concrete(args, kwargs), is_decided()
        if concrete and (own_float64 or not decided) and platform() == "tpu":
            return by_host(as_it_is, args, kwargs)
        if own_float64:
            with float64_elsewhere():
                return as_it_is(*args, **kwargs)
        if concrete or (decided and (derivatives is None or not derivatives.nested)):
            return as_it_is(*args, **kwargs)
        call, moving = _Call.split(args, kwargs)
        with float64_elsewhere():
            context = scope()
        with context:
            result_of = functools.partial(_result_of, run, call)
            if derivatives is None:
                return (in_scope(result_of) if gathers else result_of)(moving)
            marks = [*_count(dict(zip(names, args, strict=False))), *_count(kwargs)]
            counts = tuple(mark for mark, moves in zip(marks, call.moves, strict=True) if moves)

            def value_of(moving: list[Any]) -> Any:
                # Concrete within a derivative, they take the programs of eager calls.
                return call.apply(scoped, moving) if is_concrete(moving) else result_of(moving)

            def slopes_of(moving: list[Any], which: tuple[int, ...]) -> Any:
                if is_concrete(moving):
                    return _differ(value_of, call, counts, derivatives, which, moving)
                return _slopes(run, call, counts, derivatives, which, moving)

            return by_slopes(value_of, slopes_of, f"{function.__module__}.{function.__name__}")(moving)

    return scoped


def _of_numbers(
    function: Callable[..., Any], by: By, static: int, of_one_shape: bool
) -> tuple[Callable[..., Any], Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
    """Returns a function as one program for eager calls, within the scope, and what makes its arguments float64."""
    count = function.__code__.co_argcount
    program: Program[Any] = Program(function, function.__code__.co_varnames[count - static : count], by)

    def take(args: tuple[Any, ...]) -> tuple[Any, ...]:
        leaves = jax.tree.map(float64_leaf, args[: count - static])
        if of_one_shape:
            shape = np.broadcast_shapes(*map(np.shape, jax.tree.leaves(leaves)))
            broadcast: Any = np.broadcast_to if is_concrete(leaves) else jnp.broadcast_to
            leaves = jax.tree.map(lambda leaf: broadcast(leaf, shape), leaves)
        return *leaves, *args[count - static :]

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        taken = take(args)
        # Within a caller's trace concrete values stay concrete: they decide which parts need not be traced.
        return leave_scope((program if is_concrete(taken) else function)(*taken))

    return run, take


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
    """Returns a copy of an array that its owner cannot write into; what is no array, as it is.

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
        # By bits: 0.0 and -0.0 differ, and so do numbers of one value and two types.
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


@dataclass(frozen=True)
class _Call:
    """The arguments of a call, of whose leaves some move and the others are known: those are part of a program."""

    structure: Any
    moves: tuple[bool, ...]
    known: tuple[_Known, ...]

    @classmethod
    def split(cls, args: Any, kwargs: Any) -> tuple[_Call, list[Any]]:
        """Returns a call and the leaves that move, which are traced; as :func:`settle` does, outside the scope."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        moves = tuple(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        known = tuple(_Known(leaf) for leaf, moving in zip(leaves, moves, strict=True) if not moving)
        traced = [jnp.array(leaf, copy=True) for leaf, moving in zip(leaves, moves, strict=True) if moving]
        return cls(structure, moves, known), traced

    def apply(self, function: Callable[..., Any], moving: list[Any]) -> Any:
        """Returns a function's result."""
        traced, known = iter(moving), iter(self.known)
        leaves = [next(traced) if moves else next(known).value for moves in self.moves]
        args, kwargs = jax.tree.unflatten(self.structure, leaves)
        return function(*args, **kwargs)


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _result_of(function: Callable[..., Any], call: _Call, moving: list[Any]) -> Any:
    """Returns the result of a function for its platform."""
    return by_platform(functools.partial(call.apply, function), moving)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), inline=True)
def _slopes(
    function: Callable[..., Any],
    call: _Call,
    counts: tuple[bool, ...],
    derivatives: Differences,
    which: tuple[int, ...],
    moving: list[Any],
) -> Any:
    """Returns the result of a function for its platform, and its slopes."""
    run = functools.partial(call.apply, function)
    return by_platform(functools.partial(_differ, run, call, counts, derivatives, which), moving)


def _differ(
    run: Callable[[list[Any]], Any],
    call: _Call,
    counts: tuple[bool, ...],
    derivatives: Differences,
    which: tuple[int, ...],
    moving: list[Any],
) -> Any:
    """Returns :func:`differences` of a function of those leaves of its arguments that move."""
    inside = derivatives.inside and functools.partial(call.apply, derivatives.inside)
    return differences(run, moving, which, counts, derivatives.known, inside)


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


def within_scope(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Returns ``function`` run in the :func:`scope`; the function that calls it takes care of platforms."""

    @functools.wraps(function)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        if not _PLAIN.issuperset(map(type, leaves)):
            args, kwargs = settle((args, kwargs))
        with scope(), _as_constants(leaves):
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


def float64_leaf(leaf: Any) -> Any:
    """Returns a number or an array as float64, inside the scope: as a NumPy array where it is concrete."""
    return exact_float64(leaf) if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf, np.float64)


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
    if arithmetic() == FLOAT32:  # which holds none of them: they are not known
        signed = jnp.where(magnitude == 0, 0.0, jnp.nan)
    return jnp.where(magnitude < 2**limits.nmant, signed, value.astype(jnp.float64))


@_widen.defjvp
def _widened_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    with scope():  # what was traced may be differentiated outside of it
        return _widen(*primals), tangents[0].astype(jnp.float64)


def _bits(value: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(value, f"uint{8 * value.dtype.itemsize}")


def is_zero(value: jax.Array) -> jax.Array:
    """Returns where floats are 0 to the bit: compared as numbers, XLA takes subnormals for 0.

    A program in float32 has no bits of a float64.
    """
    if value.dtype == jnp.float64 and arithmetic() == FLOAT32:
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


def few_bits(value: jax.Array) -> jax.Array:
    """Returns numbers of 11 bits, below the given positive ones, by at most 2^-9 of themselves.

    Products with whole numbers of 13 bits are exact in float32. Rounding to 11 bits moves by 2^-11 at most.
    """
    return jax.lax.reduce_precision(value * (1 - 1.1 * 2.0**-11), exponent_bits=8, mantissa_bits=10)


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
