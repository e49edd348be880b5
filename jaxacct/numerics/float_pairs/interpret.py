"""The interpreter that runs a traced program in pairs of float32, and the order in which it works the program off.

A sum of two pairs is sixty operations of float32, and a logarithm two hundred; a device compiles them anew at every
place. So a program is first made one list of steps: calls are taken apart, equal operations are done once, and those on
numbers of the host alone are computed there. Then steps wait for others of their kind as long as something else can be
done, and those that have met are one step, of their numbers side by side. The numbers are the same to the last bit. In
reading order:

- the plan of a program (:class:`Plan`), and its order (:func:`in_turn`),
- rough numbers, for guesses (:class:`Rough`),
- the interpreter (:func:`as_pairs`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array, Bool

from jaxacct.numerics import arithmetic
from jaxacct.numerics.float_pairs import functions, sums, wide
from jaxacct.numerics.float_pairs.operations import (
    COMPLEX,
    MOVING,
    REAL,
    Params,
    Rule,
    beside_constant,
    of_operands,
)
from jaxacct.numerics.float_pairs.pair import Complex, Single, bits, from_bits, power_of_two
from jaxacct.numerics.float_pairs.tiles import WHOLE
from jaxacct.numerics.float_pairs.wide import INFINITE, LARGEST, NOTHING, Wide
from jaxacct.numerics.pytrees import scan_counts

FLOAT64, COMPLEX128 = np.dtype(np.float64), np.dtype(np.complex128)
"""Types whose operations are replaced."""

CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "closed_call": "call_jaxpr", "custom_vmap_call": "call",
}  # fmt: skip
"""Operations that are programs within a program, with the parameter that holds each."""

COSTS = {
    "mul": 54, "add": 57, "sub": 59, "div": 126, "sqrt": 195, "log": 200, "exp": 245, "exp2": 245, "log1p": 280,
    "expm1": 290, "exp_remainder": 360, "sin": 477, "cos": 477, "pow": 520, "sine_and_cosine": 610, "atan2": 680,
    "cosm1_and_sin": 720, "erf": 810, "erfc": 820, "lower_tail": 820,
}  # fmt: skip
"""Operations that are done to many numbers at once, with about how many float32 operations each takes. Speed only."""

CHEAP = ("mul", "add", "sub")
"""Operations that cost no more than moving many numbers: only few numbers are done at once. Speed only."""

SMALL = 64
"""Size up to which shapes do not matter: longer values are done at once with those of their shape. Speed only."""


class Step(NamedTuple):
    """One operation of a plan."""

    equation: JaxprEqn
    name: str
    inputs: tuple[Any, ...]
    """Numbers of values, or arrays of the host, which the program holds."""
    outputs: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        outcome: Any = self.equation.outvars[0].aval
        return outcome.shape

    @property
    def operands(self) -> list[Any]:
        """Shapes and types of the inputs."""
        return [variable.aval for variable in self.equation.invars]


class Plan:
    """A program as one list of steps, without programs within it except in loops and branches.

    Attributes:
        steps: in the order of the program; only those that the results need.
        constants: numbers of values, with their arrays.
        arguments: numbers of values, those of the program's own constants first.
        results: numbers of values, or arrays of the host.
    """

    def __init__(self, program: Jaxpr, whole: Callable[[JaxprEqn], bool]) -> None:
        """Makes the plan; ``whole`` tells of an equation that is a program whether it is one operation all the same."""
        self.whole, self.numbers = whole, itertools.count()
        self.done: dict[Any, tuple[int, ...]] = {}
        self.steps: list[Step] = []
        self.constants: list[tuple[int, Any]] = []
        self.arguments = [self.fresh() for _ in (*program.constvars, *program.invars)]
        self.results = self.inline(program, self.arguments)
        needed, kept = {atom for atom in self.results if isinstance(atom, int)}, []
        # Backwards: a step is kept if a later one, or the result, needs it.
        for step in reversed(self.steps):
            if step.equation.effects or not needed.isdisjoint(step.outputs):
                needed.update(atom for atom in step.inputs if isinstance(atom, int))
                kept.append(step)
        self.steps = kept[::-1]
        self.constants = [(number, value) for number, value in self.constants if number in needed]

    def fresh(self) -> int:
        return next(self.numbers)

    def inline(self, program: Jaxpr, arguments: Sequence[Any]) -> list[Any]:
        """Appends the steps of a program of known arguments, its constants first; returns its results."""
        # Values are numbers in the plan, so that a program that is called twice has two sets of them; constants of the
        # host stay themselves.
        values: dict[Var, Any] = dict(zip((*program.constvars, *program.invars), arguments, strict=True))

        def read(atom: Any) -> Any:
            return np.asarray(atom.val, _dtype(atom)) if isinstance(atom, Literal) else values[atom]

        # Calls are replaced by the operations within, so that a plan has no calls but those that are one operation
        # here.
        for equation in program.eqns:
            inputs = tuple(map(read, equation.invars))
            inner = CALLS.get(equation.primitive.name)
            if inner is not None and not self.whole(equation):
                closed, constants = equation.params[inner], []
                for const in closed.consts:
                    constants.append(self.fresh())
                    self.constants.append((constants[-1], const))
                found = self.inline(closed.jaxpr, [*constants, *inputs])
            else:
                found = list(self.step(equation, inputs))
            values.update(zip(equation.outvars, found, strict=True))
        return [read(atom) for atom in program.outvars]

    def step(self, equation: JaxprEqn, inputs: tuple[Any, ...]) -> Sequence[Any]:
        """Returns the results of one operation, which is done only if it was not before and is not the host's."""
        name = equation.params["name"] if equation.primitive.name in CALLS else equation.primitive.name
        shape, dtype = (getattr(equation.outvars[0].aval, key, None) for key in ("shape", "dtype"))
        # Single numbers of the host alone are computed there, right to a unit of float64: they would be constants of
        # the program, which a compiler might rewrite.
        on_host: dict[str, Callable[..., Any]] = {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
            "sqrt": np.sqrt, "log": np.log, "exp": np.exp,
        }  # fmt: skip
        folded = on_host.get(name)
        if folded and shape == () and dtype == FLOAT64 and all(isinstance(atom, np.ndarray) for atom in inputs):
            with np.errstate(all="ignore"):
                return [np.asarray(folded(*inputs), FLOAT64)]
        # Programs within loops and branches are compared by their identity.
        key = name, tuple(sorted(equation.params.items())), tuple(map(_key, inputs))
        is_known = not equation.effects and _is_hashable(key)
        if is_known and key in self.done:
            return self.done[key]
        outputs = tuple(self.fresh() for _ in equation.outvars)
        self.steps.append(Step(equation, name, inputs, outputs))
        if is_known:
            self.done[key] = outputs
        return outputs


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _key(atom: Any) -> Any:
    return (str(atom.dtype), atom.shape, atom.tobytes()) if isinstance(atom, np.ndarray) else atom


class Side(NamedTuple):
    """Place of a value among others of its kind: ``rows`` rows of ``among``, from row ``first`` on."""

    among: Any
    first: int
    rows: int
    shape: tuple[int, ...]

    def follows(self, other: Side) -> bool:
        """Returns whether its rows come next after those of another value."""
        return self.among is other.among and self.first == other.first + other.rows


def alone(side: Side) -> Any:
    """Returns the value by itself."""

    def cut(part: Any) -> Any:
        return jax.lax.slice_in_dim(part, side.first, side.first + side.rows).reshape(side.shape)

    return jax.tree.map(cut, side.among)


def together(values: Sequence[Any], shape: tuple[int, ...], inward: Callable[[Any], Any]) -> Any:
    """Returns values of one kind as rows; small ones are rows of single numbers.

    Args:
        values: each a :class:`Side`, an array of the host, or numbers by themselves.
        shape: the shape of one row.
        inward: function that turns numbers of the host into numbers of this arithmetic.
    """
    pieces: list[Any] = []
    # Neighbours that are rows of one array, or both of the host, are joined, so that they need no concatenation.
    for value in values:
        last = pieces[-1] if pieces else None
        piece = value.reshape(-1, *shape) if isinstance(value, np.ndarray) else value
        if isinstance(piece, np.ndarray) and isinstance(last, np.ndarray):
            pieces[-1] = np.concatenate([last, piece])
        elif isinstance(piece, Side) and isinstance(last, Side) and piece.follows(last):
            pieces[-1] = last._replace(rows=last.rows + piece.rows)
        else:
            pieces.append(piece)

    def rows_of(piece: Any) -> Any:
        if isinstance(piece, np.ndarray):
            return inward(piece)
        if isinstance(piece, Side):
            first, last = piece.first, piece.first + piece.rows
            whole = first == 0 and last == jax.tree.leaves(piece.among)[0].shape[0]
            return piece.among if whole else jax.tree.map(
                lambda part: jax.lax.slice_in_dim(part, first, last), piece.among
            )  # fmt: skip
        return jax.tree.map(lambda part: part.reshape(-1, *shape), piece)

    found = [rows_of(piece) for piece in pieces]
    return found[0] if len(found) == 1 else jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)


def constant_of(step: Step) -> tuple[Callable[[Any], Any], Any] | None:
    """Returns the function that a step with one constant operand is of the other, and that operand; None for others."""
    if len(step.inputs) != 2 or getattr(step.operands[0], "dtype", None) != FLOAT64:
        return None
    # Either operand may be the constant one; most functions have a short form for one side alone.
    for place, atom in enumerate(step.inputs):
        other = step.inputs[1 - place]
        if isinstance(atom, np.ndarray) and atom.size == 1 and not isinstance(other, np.ndarray):
            # Only where the other operand has the result's shape: the short form does not broadcast.
            done = beside_constant(step.name, float(atom.reshape(())), place == 1)
            if done is not None and step.operands[1 - place].shape == step.shape:
                return done, other
    return None


def kind_of(step: Step) -> Any:
    """Returns the key of steps that can be done at once, None for a step that is done by itself."""
    name, shape = step.name, step.shape
    if name not in COSTS or any(getattr(operand, "dtype", None) != FLOAT64 for operand in step.operands):
        return None
    # A step with a constant has a shorter form by itself, and cheap steps on many numbers gain nothing side by side.
    size = math.prod(shape)
    if not size or constant_of(step) is not None or (name in CHEAP and size > SMALL):
        return None
    of_calls = "" if step.equation.primitive.name in CALLS else str(step.equation.params)
    return name, of_calls, () if size <= SMALL else shape


def in_turn(plan: Plan) -> Any:
    """Yields the steps of a plan as lists that are done at once, each after the steps it needs.

    Steps that can be done at once wait as long as anything else can be done: first for those that cannot, then for all
    of their kind to be ready, then for cheaper kinds.
    """
    kinds = [kind_of(step) for step in plan.steps]
    left, makers = Counter(kinds), {out: i for i, step in enumerate(plan.steps) for out in step.outputs}
    users: list[list[int]] = [[] for _ in plan.steps]
    missing = []
    # For each step: from how many others it waits, and which steps wait for it.
    for i, step in enumerate(plan.steps):
        # A plan is in the order of its program, so makers come before users; arguments and constants have no maker.
        needed = {makers[atom] for atom in step.inputs if isinstance(atom, int) and atom in makers}
        missing.append(len(needed))
        for maker in needed:
            users[maker].append(i)
    single: list[int] = []
    ready: dict[Any, list[int]] = {}

    def enter(i: int) -> None:
        single.append(i) if kinds[i] is None else ready.setdefault(kinds[i], []).append(i)

    def after(done: Sequence[int]) -> None:
        # A step whose last operand has been computed can be computed next.
        for i in done:
            for user in users[i]:
                missing[user] -= 1
                if not missing[user]:
                    enter(user)

    for i, count in enumerate(missing):
        if not count:
            enter(i)
    # ``missing`` counts for each step the makers that are not done; a step enters when none is missing. The loop ends
    # because a plan has no cycles: some step is ready until all are done.
    while single or ready:
        if single:
            chosen, single[:] = sorted(single), []
            for i in chosen:
                yield None, [plan.steps[i]]
        else:
            # Kinds of which all steps are ready go first, for waiting gains them nothing; then the cheap ones.
            kind = min(ready, key=lambda kind: (len(ready[kind]) < left[kind], COSTS[kind[0]], kind[1:]))
            chosen = ready.pop(kind)
            left[kind] -= len(chosen)
            yield kind, [plan.steps[i] for i in chosen]
        after(chosen)


# ----------------------------------------------------------------------------------------------------
# Rough numbers: one float32 number with an exponent beside it, for guesses that decide where something is computed
#
# They have some six digits, and the range of :mod:`jaxacct.numerics.float_pairs.wide`. No bound rests on them:
# quotients, roots and functions are as good as the device's, and products and sums may be fused. Operations without a
# rough form are done in pairs, and rounded.
# ----------------------------------------------------------------------------------------------------


class Rough(NamedTuple):
    """Numbers (...): ``high 2^exponent``, as those of :class:`Wide` without the low parts."""

    high: Single
    exponent: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the numbers."""
        return self.high.shape


def of_wide(x: Any) -> Any:
    """Returns numbers rounded to float32; values other than pairs as they are."""
    return Rough(x.high, x.exponent) if isinstance(x, Wide) else x


def to_wide(x: Any) -> Any:
    """Returns rough numbers as pairs, exactly; other values as they are."""
    return Wide(x.high, jnp.zeros_like(x.high), x.exponent) if isinstance(x, Rough) else x


def normal(high: Single, exponent: Array | int) -> Rough:
    """Returns ``high 2^exponent``, for high parts that are 0, inf, NaN or between 2^-120 and 2^120."""
    # As :func:`jaxacct.numerics.float_pairs.wide.normal`, with the range in one step.
    field = (bits(high) >> 23) & 0xFF
    special = field == 255
    found = exponent + (field - 127)
    under = (field == 0) | (found < -LARGEST)
    over = special | ((found > LARGEST) & ~under)
    factor = jnp.where(over, np.float32(np.inf), from_bits(jnp.maximum(254 - field, 1) << 23))
    return Rough(
        jnp.where(under, np.float32(0), high * factor), jnp.where(over, INFINITE, jnp.where(under, NOTHING, found))
    )


def _align(x: Rough, exponent: Array) -> Single:
    return x.high * power_of_two(jnp.maximum(x.exponent - exponent, -126))


def plain(x: Rough, least: int = -120, most: int = 120) -> Single:
    """Returns the float32 numbers, for exponents in this range; exponents beyond are brought to its ends."""
    return x.high * power_of_two(jnp.clip(x.exponent, least, most))


def add(x: Rough, y: Rough) -> Rough:
    """Returns x + y."""
    exponent = jnp.maximum(x.exponent, y.exponent)
    return normal(_align(x, exponent) + _align(y, exponent), exponent)


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
    """Returns e^x: k ln 2 is taken away in parts whose products with k are exact."""
    value = plain(x, -100, 13)
    k = lax.round(value * np.float32(1 / math.log(2)), lax.RoundingMethod.TO_NEAREST_EVEN)
    first = np.float32(math.floor(math.log(2) * 2**11) / 2**11)
    rest = jnp.exp((value - k * first) - k * np.float32(math.log(2) - float(first)))
    at_end = x.exponent == INFINITE
    limit = jnp.where(x.high < 0, 0.0, x.high)
    # At inf k is no whole number, and its conversion may give any: it is replaced.
    return normal(jnp.where(at_end, limit, rest), jnp.where(at_end, 0, k).astype(jnp.int32))


def log(x: Rough) -> Rough:
    """Returns log x, from a number between the roots of 1/2 and 2 and its exponent."""
    large = x.high > np.float32(math.sqrt(2))
    e = (x.exponent + large.astype(jnp.int32)).astype(jnp.float32)
    near = jnp.log1p(jnp.where(large, x.high / 2, x.high) - 1)
    ends = (x.high <= 0) | (x.exponent == INFINITE)
    return normal(jnp.where(ends, jnp.log(x.high), e * np.float32(math.log(2)) + near), 0)


def log1p(x: Rough) -> Rough:
    """Returns log(1 + x)."""
    # For tiny x it is x itself, for small x the device's function, which is right near 0; elsewhere 1 + x loses nothing
    # that counts.
    near = normal(jnp.log1p(plain(x, -120, 0)), 0)
    one = Rough(jnp.ones_like(x.high), jnp.zeros_like(x.exponent))
    return select(x.exponent < -30, x, select(x.exponent < -2, near, log(add(x, one))))


def expm1(x: Rough) -> Rough:
    """Returns e^x - 1."""
    near = normal(jnp.expm1(plain(x, -120, -1)), 0)
    # Likewise: x itself, the device's function near 0, and the difference elsewhere.
    less_one = Rough(jnp.full_like(x.high, -1), jnp.zeros_like(x.exponent))
    return select(x.exponent < -30, x, select(x.exponent < -1, near, add(exp(x), less_one)))


def lower_tail(z: Rough) -> Rough:
    """Returns Phi(z) for z <= 0, to 1e-5, and far out to a third of itself.

    It is e^(-z^2/2) times a rational function of z (Abramowitz and Stegun, 26.2.16).
    """
    size = -plain(z, -60, 20)
    t = 1 / (1 + np.float32(0.33267) * size)
    factor = t * (np.float32(0.4361836) + t * (np.float32(-0.1201676) + t * np.float32(0.9372980)))
    square = multiply(z, z)
    falls = exp(negative(normal(square.high / 2, square.exponent)))
    return multiply(normal(factor * np.float32(1 / math.sqrt(2 * math.pi)), 0), falls)


def total(params: Params, x: Rough) -> Rough:
    """Returns the sums over some axes."""
    axes = tuple(params["axes"])
    largest = jnp.max(x.exponent, axes, keepdims=True)
    return normal(jnp.sum(_align(x, largest), axes), jnp.squeeze(largest, axes))


def largest_over(params: Params, x: Rough) -> Rough:
    """Returns the largest numbers over some axes."""
    axes = tuple(params["axes"])
    order = wide.order(x)
    first = jnp.max(order, axes, keepdims=True)
    high = jnp.max(jnp.where((order == first) | jnp.isnan(x.high), x.high, -jnp.inf), axes)
    exponent = jnp.max(jnp.where(order == first, x.exponent, NOTHING), axes)
    return Rough(high, jnp.where(jnp.isfinite(high), exponent, INFINITE))


def _product_of_matrices(params: Params, x: Rough, y: Rough) -> Rough:
    def add_up(products: Rough, axes: Any) -> Rough:
        return total({"axes": axes}, products)

    return sums.products_summed(x, y, params["dimension_numbers"], multiply, add_up)


def _whole_power(params: Params, x: Rough) -> Rough:
    power = functools.reduce(multiply, [x] * abs(params["y"]))
    one = Rough(jnp.ones_like(x.high), jnp.zeros_like(x.exponent))
    return divide(one, power) if params["y"] < 0 else power


ROUGH: dict[str, Rule] = {
    "add": of_operands(add),
    "add_any": of_operands(add),
    "sub": lambda params, x, y: add(x, negative(y)),
    "mul": of_operands(multiply),
    "div": of_operands(divide),
    "neg": of_operands(negative),
    "abs": lambda params, x: Rough(jnp.abs(x.high), x.exponent),
    "max": lambda params, x, y: select(less(x, y) | jnp.isnan(y.high), y, x),
    "min": lambda params, x, y: select(less(y, x) | jnp.isnan(y.high), y, x),
    "square": lambda params, x: multiply(x, x),
    "sqrt": of_operands(square_root),
    "integer_pow": _whole_power,
    "is_finite": lambda params, x: x.exponent < INFINITE,
    "eq": of_operands(equal),
    "ne": lambda params, x, y: ~equal(x, y),
    "lt": of_operands(less),
    "le": lambda params, x, y: less(x, y) | equal(x, y),
    "gt": lambda params, x, y: less(y, x),
    "ge": lambda params, x, y: less(y, x) | equal(x, y),
    "exp": of_operands(exp),
    "exp2": lambda params, x: exp(multiply(x, normal(jnp.float32(math.log(2)), 0))),
    "log": of_operands(log),
    "log1p": of_operands(log1p),
    "expm1": of_operands(expm1),
    "pow": lambda params, x, y: exp(multiply(log(x), y if isinstance(y, Rough) else normal(y.astype(jnp.float32), 0))),
    "reduce_sum": total,
    "reduce_max": largest_over,
    "reduce_min": lambda params, x: negative(largest_over(params, negative(x))),
    "cumsum": lambda params, x: lax.associative_scan(add, x, axis=params["axis"], reverse=params["reverse"]),
    "dot_general": _product_of_matrices,
    "lower_tail": of_operands(lower_tail),
}
"""Forms of operations on rough numbers."""


# ----------------------------------------------------------------------------------------------------
# The interpreter: programs of float64 run in pairs, each operation of a traced program as one of :class:`Wide`
#
# So a formula is written once, in ``jax.numpy``, and its certificate with it: only the unit of roundoff is another
# (:mod:`jaxacct.numerics.arithmetic`), which the program asks for while it is traced. Operations without a form for
# pairs are refused by name: nothing falls back to the device's own float64.
# ----------------------------------------------------------------------------------------------------

NUMBERS = (Wide, Complex, Rough)
"""Classes of numbers that stand for float64 or complex128."""


def as_pairs(function: Callable[..., Any], *, stepwise: bool = False) -> Callable[..., Any]:
    """Returns ``function`` of arrays with all its float64 arithmetic done in pairs of float32.

    It is traced anew, in the context that makes its certificates count pairs' roundings. It has to be called with
    float64 enabled; numbers come and go as float64, where a device that lacks it rounds once more
    (:func:`jaxacct.numerics.float_pairs.wide.to_float64`).

    Args:
        function: function of arrays, to a pytree of arrays.
        stepwise: whether operations are compiled one by one, and loops run by the host: for concrete arrays, where the
            whole program would take minutes to compile (XLA's CPU backend) and is not run often.

    Raises:
        UnsoundBackendError: the backend in use rounds in another way than pairs assume.
        NotImplementedError: ``function`` has an operation that is not written for pairs.
    """

    def run(*args: Any) -> Any:
        functions.check()
        with arithmetic.in_pairs():
            # Traced anew each time: a trace for float64 has that one's constants.
            closed, shape = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        values = [_inward(jnp.asarray(leaf)) for leaf in jax.tree.leaves(args)]
        found = (_Stepwise() if stepwise else _Interpreter()).call(closed, values)
        return jax.tree.unflatten(jax.tree.structure(shape), [_outward(value) for value in found])

    return run


def _inward(value: Any) -> Any:
    """Returns an array or constant of the program as the number that stands for it."""
    if isinstance(value, NUMBERS):
        return value
    # The value's own type: that of a weakly typed one in an expression is float64, whatever it is itself.
    dtype = value.dtype if hasattr(value, "dtype") else jnp.result_type(value)
    if dtype == COMPLEX128:
        return Complex(_inward(jnp.real(value)), _inward(jnp.imag(value)))
    if dtype != FLOAT64:
        return value
    if isinstance(value, jax.core.Tracer):
        return wide.of_array(value)
    return wide.constant(np.asarray(value, np.float64))


def _once(values: list[Any]) -> list[Any]:
    """Returns numbers that are computed once: a compiler would rather compute them anew for each of their uses."""
    found: list[Any] = jax.lax.optimization_barrier(values)
    return found


def _outward(value: Any) -> Any:
    return _to_float64(value) if isinstance(value, Wide) else value


_to_float64 = jax.jit(wide.to_float64)
"""Compiled :func:`~jaxacct.numerics.float_pairs.wide.to_float64`, for concrete numbers and traces."""


def _dtype(atom: Any) -> Any:
    return getattr(atom.aval, "dtype", None)  # a token has none


def is_whole(equation: JaxprEqn) -> bool:
    """Returns whether an equation that is a program has a form of its own for pairs."""
    return (
        equation.primitive.name in ("jit", "pjit")
        and equation.params["name"] in WHOLE
        and all(_dtype(atom) == FLOAT64 or jnp.issubdtype(_dtype(atom), jnp.integer) for atom in equation.invars)
    )


def is_rough(equation: JaxprEqn) -> bool:
    """Returns whether an equation is a guess, :func:`jaxacct.numerics.arithmetic.roughly`."""
    # Name of the jitted function of :func:`jaxacct.numerics.arithmetic.roughly`.
    roughly = "roughly_done"
    return equation.primitive.name in ("jit", "pjit") and equation.params["name"] == roughly


class _Interpreter:
    """The interpreter within a trace: it replaces operations, and the result is one program."""

    def __init__(self) -> None:
        self.plans: dict[int, tuple[Jaxpr, Plan]] = {}

    def is_whole(self, equation: JaxprEqn) -> bool:
        """Returns whether an equation that is a program is an operation here."""
        return is_rough(equation) or is_whole(equation)

    def roughly(self, program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """Returns the results of a guess."""
        return [to_wide(value) for value in _Rough().call(program, [of_wide(arg) for arg in args])]

    def call(self, program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """Returns the results of a traced program."""
        _, plan = self.plans.get(id(program.jaxpr), (None, None))
        if plan is None:
            plan = Plan(program.jaxpr, self.is_whole)
            self.plans[id(program.jaxpr)] = program.jaxpr, plan
        # Plans are kept by the program's identity; the program is kept with its plan, so that no other can take its
        # place in memory.
        values: dict[int, Any] = {number: self.inward(const) for number, const in plan.constants}
        values.update(zip(plan.arguments, [*map(self.inward, program.consts), *args], strict=True))

        def read(atom: Any) -> Any:
            if isinstance(atom, np.ndarray):
                return self.inward(atom)
            value = values[atom]
            if isinstance(value, Side):
                value = values[atom] = alone(value)
            return value

        self.work_off(plan, values, read)
        return [read(atom) for atom in plan.results]

    def inward(self, value: Any) -> Any:
        """Returns an array or constant of the program as the number that stands for it."""
        return _inward(value)

    def work_off(self, plan: Plan, values: dict[int, Any], read: Callable[[Any], Any]) -> None:
        """Adds the values of all steps."""
        # Steps of one kind that are ready together are one operation of stacked rows; all others go one by one.
        for kind, steps in in_turn(plan):
            if len(steps) > 1:
                self.at_once(kind[0], steps, values)
                continue
            (step,) = steps
            short = constant_of(step)
            if short is None:
                found = self.result(step.equation, [read(atom) for atom in step.inputs])
            else:
                function, other = short
                found = [function(read(other))]
            # A result that many operations made is computed once; cheap ones are left to the compiler to fuse.
            is_dear = kind is not None and kind[0] not in CHEAP
            values.update(zip(step.outputs, _once(found) if is_dear else found, strict=True))

    def at_once(self, name: str, steps: Sequence[Step], values: dict[int, Any]) -> None:
        """Adds the values of steps of one kind."""
        # Small values are joined as single numbers whatever their shapes, long ones row by row.
        shapes = [step.shape for step in steps]
        is_small = math.prod(shapes[0]) <= SMALL
        row = () if is_small else shapes[0]
        rows = [math.prod(shape) if is_small else 1 for shape in shapes]

        def operand(step: Step, place: int) -> Any:
            atom, shape = step.inputs[place], step.shape
            if isinstance(atom, np.ndarray):
                return np.broadcast_to(atom, shape)
            value = values[atom]
            if step.operands[place].shape == shape:
                return value
            value = alone(value) if isinstance(value, Side) else value
            return jax.tree.map(lambda part: jnp.broadcast_to(part, shape), value)

        columns = [
            together([operand(step, place) for step in steps], row, _inward) for place in range(len(steps[0].inputs))
        ]
        rule = WHOLE[name] if name in WHOLE else functools.partial(REAL[name], steps[0].equation.params)
        found = rule(*columns)
        # Each step takes its rows of the stacked results.
        for place, among in enumerate(_once(found if isinstance(found, list) else [found])):
            first = 0
            for step, shape, count in zip(steps, shapes, rows, strict=True):
                values[step.outputs[place]] = Side(among, first, count, shape)
                first += count

    def result(self, equation: JaxprEqn, args: list[Any]) -> list[Any]:
        """Returns the results of one operation."""
        name, params = equation.primitive.name, equation.params
        if is_rough(equation):
            return self.roughly(params["jaxpr"], args)
        if is_whole(equation):
            return self.compute(params["name"], {}, WHOLE[params["name"]], args)
        if name == "scan":
            return self.scan(params, args)
        if name == "while":
            return self.while_loop(params, args)
        if name == "cond":
            return self.cond(params, args)
        # Operations without float64 or complex128 run as they are.
        kinds = {_dtype(atom) for atom in (*equation.invars, *equation.outvars)}
        if not kinds & {FLOAT64, COMPLEX128}:
            found = equation.primitive.bind(*args, **params)
            return list(found) if equation.primitive.multiple_results else [found]
        if name in MOVING:
            return self.move(equation, args)
        rule = (COMPLEX if COMPLEX128 in kinds else REAL).get(name)
        if rule is None:
            raise NotImplementedError(
                f"{name} of {', '.join(str(atom.aval) for atom in equation.invars)} is not written for pairs of "
                'float32: ask with arithmetic="float64" on a device that has it.'
            )
        return self.compute(name, params, functools.partial(rule, params), args)

    def compute(self, name: str, params: dict[str, Any], rule: Callable[..., Any], args: list[Any]) -> list[Any]:
        """Returns the results of a rule, which is traced once for numbers of a shape, not wherever it is met again."""
        is_complex = any(isinstance(arg, Complex) for arg in args)  # complex numbers have other rules by the same names
        key = name, is_complex, str(sorted(params.items(), key=lambda item: item[0]))
        if key not in _OPERATIONS:
            _OPERATIONS[key] = jax.jit(rule)
        found = _OPERATIONS[key](*args)
        return found if isinstance(found, list) else [found]

    def move(self, equation: JaxprEqn, args: list[Any]) -> list[Any]:
        """Returns numbers that are only moved about."""
        return _move(equation, args)

    def scan(self, params: dict[str, Any], args: list[Any]) -> list[Any]:
        """Returns the results of a loop over rows."""
        consts, carry = scan_counts(params)
        fixed, first, rows = args[:consts], args[consts : consts + carry], args[consts + carry :]

        def body(state: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            found = self.call(params["jaxpr"], [*fixed, *state, *row])
            return found[:carry], found[carry:]

        last, each = self.over_rows(body, first, rows, params)
        return [*last, *each]

    def over_rows(self, body: Callable[..., Any], first: Any, rows: Any, params: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the result of ``lax.scan``."""
        return jax.lax.scan(body, first, rows, length=params["length"], reverse=params["reverse"])

    def while_loop(self, params: dict[str, Any], args: list[Any]) -> list[Any]:
        """Returns the results of a loop under a condition."""
        of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
        for_condition, for_body = args[:of_condition], args[of_condition : of_condition + of_body]

        # A batch of loops has a condition for each: it goes on while one holds, and loops that are done stay as they
        # are.
        axes = tuple(range(len(params["cond_jaxpr"].out_avals[0].shape)))

        def each(state: list[Any]) -> Any:
            return self.call(params["cond_jaxpr"], [*for_condition, *state])[0]

        def condition(state: list[Any]) -> Any:
            return jnp.any(each(state)) if axes else each(state)

        def body(state: list[Any]) -> list[Any]:
            found = self.call(params["body_jaxpr"], [*for_body, *state])
            if not axes:
                return found
            going = each(state)
            return jax.tree.map(
                lambda new, old: jnp.where(jnp.expand_dims(going, tuple(range(len(axes), jnp.ndim(new)))), new, old),
                found,
                state,
            )

        return self.repeat(condition, body, args[of_condition + of_body :])

    def repeat(self, condition: Callable[[Any], Any], body: Callable[[Any], Any], first: list[Any]) -> list[Any]:
        """Returns the result of ``lax.while_loop``."""
        found: list[Any] = jax.lax.while_loop(condition, body, first)
        return found

    def cond(self, params: dict[str, Any], args: list[Any]) -> list[Any]:
        """Returns the results of the branch that is chosen."""
        which, *rest = args
        # All branches are traced, with the same operands; the device chooses.
        branches = [lambda *rest, branch=branch: self.call(branch, rest) for branch in params["branches"]]
        return list(jax.lax.switch(jnp.asarray(which, jnp.int32), branches, *rest))


class _Rough(_Interpreter):
    """The interpreter of guesses: it uses the operations of rough numbers, as far as there are some."""

    def is_whole(self, equation: JaxprEqn) -> bool:
        """Returns whether an equation is an operation for pairs; a guess within a guess is part of it."""
        return is_whole(equation)

    def inward(self, value: Any) -> Any:
        """Returns constants as rough numbers."""
        return of_wide(_inward(value))

    def work_off(self, plan: Plan, values: dict[int, Any], read: Callable[[Any], Any]) -> None:
        """Adds the values of all steps, each by itself: they are short."""
        for step in plan.steps:
            found = self.result(step.equation, [read(atom) for atom in step.inputs])
            values.update(zip(step.outputs, map(of_wide, found), strict=True))

    def compute(self, name: str, params: dict[str, Any], rule: Callable[..., Any], args: list[Any]) -> list[Any]:
        """Returns the result of the rule for rough numbers, or that of the rule for pairs where there is none."""
        own = ROUGH.get(name)
        if own is None:
            return super().compute(name, params, rule, [to_wide(arg) for arg in args])
        return [own(params, *args)]


class _Stepwise(_Interpreter):
    """The interpreter of concrete arrays, operation by operation."""

    def move(self, equation: JaxprEqn, args: list[Any]) -> list[Any]:
        # The key holds the number of results, which the operation's name does not tell.
        name = f"{equation.primitive.name} to {[str(_dtype(atom)) for atom in equation.outvars]}"
        return self.compute(name, equation.params, lambda *args: _move(equation, args), args)

    def roughly(self, program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """Returns the results in pairs like all others: their operations are compiled already."""
        return self.call(program, args)

    def work_off(self, plan: Plan, values: dict[int, Any], read: Callable[[Any], Any]) -> None:
        for step in plan.steps:
            found = self.result(step.equation, [read(atom) for atom in step.inputs])
            values.update(zip(step.outputs, found, strict=True))

    def over_rows(self, body: Callable[..., Any], first: Any, rows: Any, params: dict[str, Any]) -> tuple[Any, Any]:
        state, found = first, []
        order = range(params["length"])
        for i in reversed(order) if params["reverse"] else order:
            state, each = body(state, jax.tree.map(lambda leaf, i=i: leaf[i], rows))
            found.append(each)
        found = found[::-1] if params["reverse"] else found
        return state, jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *found)

    def repeat(self, condition: Callable[[Any], Any], body: Callable[[Any], Any], first: list[Any]) -> list[Any]:
        state = first
        while bool(condition(state)):
            state = body(state)
        return state

    def cond(self, params: dict[str, Any], args: list[Any]) -> list[Any]:
        which, *rest = args
        branches = params["branches"]
        return self.call(branches[min(max(int(which), 0), len(branches) - 1)], rest)


_OPERATIONS: dict[Any, Callable[..., Any]] = {}
"""Compiled rules, by operation, kind of numbers and parameters."""


def _move(equation: JaxprEqn, args: Sequence[Any]) -> list[Any]:
    """Returns the results of an operation that only moves numbers about, done to each of their parts."""
    numbers = [arg for arg in args if isinstance(arg, NUMBERS)]
    structure: Any = jax.tree.structure(numbers[0])
    # Indices and the like are the same for every part; so the operation is bound once for each part of the numbers.
    columns = [jax.tree.leaves(arg) if isinstance(arg, NUMBERS) else [arg] * structure.num_leaves for arg in args]
    rows = [equation.primitive.bind(*parts, **equation.params) for parts in zip(*columns, strict=True)]
    if not equation.primitive.multiple_results:
        return [jax.tree.unflatten(structure, rows)]
    return [
        jax.tree.unflatten(structure, [row[i] for row in rows]) if _dtype(atom) in (FLOAT64, COMPLEX128) else rows[0][i]
        for i, atom in enumerate(equation.outvars)
    ]
