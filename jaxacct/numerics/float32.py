"""Programs in float32: a traced program of float64, run with every operation replaced by one of float32.

So a formula is written once, in ``jax.numpy``, and its certificate with it: only the unit of roundoff is another
(:mod:`jaxacct.numerics.arithmetic`), which the program asks for while it is traced. What is replaced:

- exp, log and the like are the functions of :mod:`.elementary_float32`, of ``+ - *`` and bits, whose errors are
  derived: the same bits on every device. Quotients and roots are mended to 1.01 units (:func:`divide`,
  :func:`square_root`), for a device's own are not what IEEE 754 says;
- sums are nested (:func:`.sums_float32.total`), and so are products of matrices, which a device would make of bfloat16;
- constants beyond float32's range are the nearest numbers in it that are neither 0 nor infinite. Those below 2^-1000
  stand for multiples of the smallest normal number, and become multiples of float32's;
- whole numbers that float32 does not hold, beyond 2^24, are NaN, which bounds take for unknown.

Operations without a form here are refused by name: nothing falls back to the device's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array

from jaxacct.numerics import arithmetic
from jaxacct.numerics import elementary_float32 as own
from jaxacct.numerics.elementary_float32 import LARGEST, TINY
from jaxacct.numerics.pytrees import scan_counts
from jaxacct.numerics.sums_float32 import total

FLOAT64, COMPLEX128, SINGLE = (np.dtype(kind) for kind in (np.float64, np.complex128, np.float32))
Params = dict[str, Any]
"""Parameters of an operation."""


def as_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function`` of arrays with all its float64 arithmetic done in float32.

    It is traced anew, in the context that makes its certificates count float32's roundings. It has to be called with
    float64 enabled; float64 arguments are rounded to the nearest float32, results are float64 that float32 holds.

    Raises NotImplementedError where ``function`` has an operation that has no form in float32, and UnsoundBackendError
    on a device without float64 whose float32 is not what the functions assume (:func:`.elementary_float32.check`).
    """

    def run(*args: Any) -> Any:
        if arithmetic.platform() == "tpu":
            own.check()
        with arithmetic.in_float32():
            # Traced anew each time: a trace for float64 has that one's constants.
            closed, shape = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        results = _run_program(closed, [inward(jnp.asarray(leaf)) for leaf in jax.tree.leaves(args)])
        types = [value.aval for value in closed.jaxpr.outvars]
        return jax.tree.unflatten(jax.tree.structure(shape), list(map(_outward, results, types)))

    return run


def inward(value: Any) -> Any:
    """Returns an array or constant of float64 in float32; others as they are."""
    if getattr(value, "dtype", None) != FLOAT64:
        return value
    return value.astype(SINGLE) if isinstance(value, jax.core.Tracer | jax.Array) else of_constant(value)


def of_constant(value: Any) -> np.ndarray:
    """Returns the float32 that stands for a constant of float64.

    >>> bool(of_constant(np.float64(2.0**-1022)) == 2.0**-126), bool(of_constant(np.float64(1e300)) < np.inf)
    (True, True)
    """
    value = np.asarray(value, FLOAT64)
    value = value * np.where(np.abs(value) < 2.0**-1000, 2.0**896, 1.0)
    size = np.abs(value)
    size = np.where((size > 0) & (size < TINY), TINY, np.where(np.isfinite(size), np.minimum(size, LARGEST), size))
    return np.copysign(size, value).astype(SINGLE)


def _outward(value: Any, kind: Any) -> Any:
    # An array of JAX's: what is lowered after the scope was left would make float32 of one of NumPy's.
    return jnp.asarray(value, FLOAT64) if getattr(kind, "dtype", None) == FLOAT64 else value


def _run_program(program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    return _evaluate(program.jaxpr, list(map(inward, program.consts)), args)


def _evaluate(program: Jaxpr, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Returns the results of a program of float64, given its constants and arguments in float32."""
    values: dict[Any, Any] = dict(zip((*program.constvars, *program.invars), (*constants, *args), strict=True))

    def read(atom: Any) -> Any:
        kind: Any = atom.aval
        if not isinstance(atom, Literal):
            return values[atom]
        return inward(np.asarray(atom.val, kind.dtype)) if kind.dtype == FLOAT64 else atom.val

    for equation in program.eqns:
        results = _result(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in program.outvars]


CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "closed_call": "call_jaxpr", "custom_vmap_call": "call", "remat": "jaxpr", "checkpoint": "jaxpr",
}  # fmt: skip
"""Operations that are programs within a program, with the parameter that holds each."""


def _result(equation: JaxprEqn, args: list[Any]) -> list[Any]:
    """Returns the results of an operation in float32."""
    name, params = equation.primitive.name, equation.params
    if name in ("jit", "pjit") and params["name"].startswith(arithmetic.OWN):
        result = FORMS[params["name"].removeprefix(arithmetic.OWN)](*args)
        return list(result) if isinstance(result, tuple) else [result]
    if name in CALLS:
        inner = params[CALLS[name]]
        return _run_program(inner, args) if isinstance(inner, ClosedJaxpr) else _evaluate(inner, [], args)
    if name in LOOPS:
        return list(LOOPS[name](params, args))
    if name == "later":
        function = as_float32(params["function"])
        kinds_of: list[Any] = [atom.aval for atom in equation.invars]
        wide = [jnp.asarray(arg, kind.dtype) for arg, kind in zip(args, kinds_of, strict=True)]
        return [inward(jnp.asarray(value)) for value in function(*wide)]
    kinds = {getattr(atom.aval, "dtype", None) for atom in (*equation.invars, *equation.outvars)}
    if not kinds & {FLOAT64, COMPLEX128}:
        return _bind(equation, args, params)
    if COMPLEX128 in kinds or name not in {*RULES, *EXACT}:
        raise NotImplementedError(
            f"{name} of {', '.join(str(atom.aval) for atom in equation.invars)} has no form in float32: ask with "
            'arithmetic="float64" on a device that has it.'
        )
    if name in RULES:
        return [RULES[name](params, *args)]
    single = {key: SINGLE if isinstance(kind, np.dtype) and kind == FLOAT64 else kind for key, kind in params.items()}
    return _bind(equation, [jnp.asarray(arg) for arg in args], single)


def _bind(equation: JaxprEqn, args: list[Any], params: dict[str, Any]) -> list[Any]:
    """Returns the results of an operation, as it is."""
    result = equation.primitive.bind(*args, **params)
    return list(result) if equation.primitive.multiple_results else [result]


# ----------------------------------------------------------------------------------------------------
# Loops and branches
# ----------------------------------------------------------------------------------------------------


def _scan(params: Params, args: list[Any]) -> list[Any]:
    consts, carry = scan_counts(params)
    fixed, first, rows = args[:consts], args[consts : consts + carry], args[consts + carry :]

    def body(state: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _run_program(params["jaxpr"], [*fixed, *state, *row])
        return results[:carry], results[carry:]

    last, each = lax.scan(body, first, rows, length=params["length"], reverse=params["reverse"])
    return [*last, *each]


def _while(params: Params, args: list[Any]) -> list[Any]:
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    for_condition, for_body = args[:of_condition], args[of_condition : of_condition + of_body]
    axes = len(params["cond_jaxpr"].out_avals[0].shape)

    def goes_on(state: list[Any]) -> Any:
        return _run_program(params["cond_jaxpr"], [*for_condition, *state])[0]

    def body(state: list[Any]) -> list[Any]:
        results = _run_program(params["body_jaxpr"], [*for_body, *state])
        if not axes:
            return results
        # A batch of loops has a condition for each: loops that are done stay as they are.
        going = goes_on(state)
        return [
            jnp.where(going.reshape(going.shape + (1,) * (jnp.ndim(new) - axes)), new, old)
            for new, old in zip(results, state, strict=True)
        ]

    first = [jnp.asarray(arg) for arg in args[of_condition + of_body :]]
    results: list[Any] = lax.while_loop(lambda state: jnp.any(goes_on(state)), body, first)
    return results


def _cond(params: Params, args: list[Any]) -> list[Any]:
    which, *rest = args
    branches = [lambda *rest, branch=branch: _run_program(branch, rest) for branch in params["branches"]]
    return list(lax.switch(jnp.asarray(which, jnp.int32), branches, *map(jnp.asarray, rest)))


LOOPS: dict[str, Callable[[Params, list[Any]], list[Any]]] = {"scan": _scan, "while": _while, "cond": _cond}


# ----------------------------------------------------------------------------------------------------
# Quotients and roots, to 1.01 units
# ----------------------------------------------------------------------------------------------------


def _split(x: Array) -> tuple[Array, Array]:
    """Returns a number's first 12 bits and the rest, both exact."""
    high = lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32) & ~0xFFF, SINGLE)
    return high, x - high


def _mantissa(x: Array) -> tuple[Array, Array]:
    """Returns m of x's sign, with 1 <= |m| < 2, and int32 e, with x = m 2^e, for normal numbers."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return lax.bitcast_convert_type((bits & ~0x7F800000) | 0x3F800000, SINGLE), (bits >> 23 & 0xFF) - 127


@own.of_float32
def divide(x: Array, y: Array) -> Array:
    """Returns x / y, to 1.01 units; 0 where the truth is below 2^-126, inf with its sign above the largest float32.

    Of mantissas: a = m (1/n) errs by 3.1 units. Its residual m - a n is formed from parts of 12 bits, whose products
    are exact: m - a' n', of the first parts, is a multiple of 2^-23 below 2^-10, exact; further differences round
    numbers below 2^-9 by less than 2^-32 in all. Added times 1/n it leaves (3.1 u)^2, that, and the rounding of one
    sum: 1.01 units. By the power of two it is multiplied in two steps, of which the first does not leave the range.
    """
    (m, e), (n, f) = _mantissa(x), _mantissa(y)
    inverse = own.reciprocal(n)
    a = m * inverse
    (a1, a2), (n1, n2) = _split(a), _split(n)
    rest = (((m - a1 * n1) - a1 * n2) - a2 * n1) - a2 * n2
    quotient = a + rest * inverse
    power = e - f
    half = power >> 1
    quotient = _choose(power < -127, 0.0, (quotient * own.power_of_two(half)) * own.power_of_two(power - half))
    quotient = _choose(jnp.abs(quotient) < TINY, 0.0, quotient)
    # Zeros, infinities and NaN; subnormal numbers count as 0.
    sign = _choose(_sign(x) == _sign(y), 1.0, -1.0).astype(SINGLE)
    size_x, size_y = jnp.abs(x), jnp.abs(y)
    none, endless = (size_x < TINY) | (size_y > LARGEST), (size_x > LARGEST) | (size_y < TINY)
    quotient = _choose(none, sign * 0.0, _choose(endless, sign * jnp.inf, quotient))
    return _choose((none & endless) | jnp.isnan(x) | jnp.isnan(y), jnp.nan, quotient)


def _choose(condition: Array, a: Any, b: Any) -> Array:
    """Returns a or b; numbers of Python are float32, which with float64 enabled they would not be."""
    a, b = (np.float32(value) if isinstance(value, float) else value for value in (a, b))
    return jnp.where(condition, a, b)


def _sign(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.int32) < 0


@own.of_float32
def square_root(x: Array) -> Array:
    """Returns the square root, to 1.01 units: that of :func:`.elementary_float32.square_root`, whose residual is added.

    x is brought to [1, 4) by an even power of two. The residual m - a^2 is formed as in :func:`divide`: exact but for
    2^-33. Halved and over a, to 3.1 units, it leaves (1.7 u)^2/2 and the rounding of one sum.
    """
    size = lax.bitcast_convert_type(x, jnp.int32)
    half = size - 0x3F800000 >> 24
    m = lax.bitcast_convert_type(size - (half << 24), SINGLE)
    m = _choose((x >= TINY) & (x <= LARGEST), m, 1.0)
    a = own.square_root(m)
    a1, a2 = _split(a)
    rest = ((m - a1 * a1) - 2 * (a1 * a2)) - a2 * a2
    root = (a + 0.5 * rest * own.reciprocal(a)) * own.power_of_two(half)
    root = _choose(x > LARGEST, x, _choose(x < TINY, 0.0, root))
    return _choose((x <= -TINY) | jnp.isnan(x), jnp.nan, root)


# ----------------------------------------------------------------------------------------------------
# Operations, by the names that JAX gives them
# ----------------------------------------------------------------------------------------------------

EXACT = frozenset(
    {
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice", "dynamic_slice"),
        *("dynamic_update_slice", "concatenate", "pad", "gather", "select_n", "copy", "copy_p", "stop_gradient"),
        *("optimization_barrier", "reshard", "stack", "unstack", "split", "tile", "scatter", "pvary", "add", "sub"),
        *("mul", "neg", "add_any", "abs", "max", "min", "sign", "square", "clamp", "floor", "ceil", "round", "iota"),
        *("is_finite", "eq", "ne", "lt", "le", "gt", "ge", "lt_to", "le_to", "reduce_max", "reduce_min", "cummax"),
        *("cummin", "sort", "argmax", "argmin", "reduce_precision", "copysign", "rem"),
    }
)
"""Operations that every device does as IEEE 754 says: those that are exact, and ``+ - *``."""


def _floats(*args: Any) -> list[Array]:
    return [jnp.asarray(arg, SINGLE) for arg in args]


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the rule of an operation that has no parameters."""
    return lambda params, *args: function(*_floats(*args))


def _convert(params: Params, value: Any) -> Array:
    kind = np.dtype(params["new_dtype"])
    if kind == FLOAT64 and not isinstance(value, jax.core.Tracer):
        return jnp.asarray(of_constant(value))
    value = jnp.asarray(value)
    if kind != FLOAT64:
        if jnp.issubdtype(kind, jnp.integer):
            # Towards 0, and to the ends of the range: the largest float32 below 2^31, say.
            ends = jnp.iinfo(kind)
            value = jnp.clip(value, np.float32(ends.min), np.nextafter(np.float32(ends.max), np.float32(0)))
        return value.astype(kind)
    if jnp.issubdtype(value.dtype, jnp.integer) and value.dtype.itemsize > 2:
        most = 1 << 24
        inside = (value <= most) & (value >= -most if jnp.issubdtype(value.dtype, jnp.signedinteger) else True)
        return _choose(inside, value.astype(SINGLE), np.float32(np.nan))
    return value.astype(SINGLE)


def _whole_power(params: Params, x: Any) -> Array:
    """Returns x^n by squares: at most |n| - 1 products, and a quotient for a negative n."""
    (x,), n = _floats(x), abs(params["y"])
    power, square = jnp.ones_like(x), x
    while n:
        power = power * square if n & 1 else power
        n >>= 1
        square = square * square if n else square
    return divide(jnp.ones_like(x), power) if params["y"] < 0 else power


def _power(params: Params, x: Any, y: Any) -> Array:
    """Returns x^y for x >= 0, as e^(y log x): to 2 + 4 |y log x| units. No certificate has one."""
    x, y = jnp.broadcast_arrays(*_floats(x, y))
    power = own.exp(_choose(y == 0, 0.0, y * own.log(x)))
    return _choose(x < 0, jnp.nan, power)


def _tanh(x: Array) -> Array:
    """Returns e/(e + 2), e = e^(2|x|) - 1, with x's sign, to 9 units: e's 5 count once, two operations round."""
    e = own.expm1(2 * jnp.minimum(jnp.abs(x), 20.0))
    quotient = divide(e, e + 2)
    return _choose(jnp.isnan(x), x, _choose(x < 0, -quotient, quotient))


def _logistic(x: Array) -> Array:
    """Returns 1/(1 + e^-x), to 5 units."""
    return divide(jnp.ones_like(x), 1 + own.exp(-x))


def sine_and_cosine(x: Array) -> tuple[Array, Array]:
    """Returns sin and cos, to 15 units of 1 beside the error that 2 |x| units of x make beyond 2^17."""
    less, more = own.cos_and_sin_remainders(x)
    # Up to 2 the sine is x and a remainder; beyond, that of the half angle, in which x is not subtracted again.
    half, of_half = own.cos_and_sin_remainders(0.5 * x)
    twice = 2 * (0.5 * x + of_half) * (1 + half)
    return _choose(jnp.abs(x) < 2, x + more, twice), 1 + less


def _erf(x: Array) -> Array:
    """Returns 1 - 2 Phi(-x sqrt 2), and near 0 the series of 8 terms. No certificate has one."""
    size = jnp.abs(x)
    far = 1 - 2 * own.normal_tail(size * np.float32(np.sqrt(2)))
    w, term = (
        jnp.minimum(x * x, 1.0),
        [(-1.0) ** n / (2 * n + 1) / float(np.prod(np.arange(1, n + 1))) for n in range(10)],
    )
    value = jnp.full_like(x, term[-1])
    for c in term[-2::-1]:
        value = value * w + np.float32(c)
    near = x * value * np.float32(2 / np.sqrt(np.pi))
    return _choose(size < 0.7, near, _choose(x < 0, -far, far))


def _sum(x: Any, axes: Sequence[int]) -> Array:
    (x,) = _floats(x)
    if not axes:
        return x
    x = jnp.moveaxis(x, axes, range(-len(axes), 0))
    x = x.reshape(*x.shape[: x.ndim - len(axes)], -1)
    # Few terms in one go: nesting would gain nothing.
    few = 4
    return total(x) if x.shape[-1] > few else jnp.sum(x, -1)


def _running_sum(params: Params, x: Any) -> Array:
    sums: Array = lax.associative_scan(jnp.add, _floats(x)[0], axis=params["axis"], reverse=params["reverse"])
    return sums


def _product_of_matrices(params: Params, x: Any, y: Any) -> Array:
    """Returns a product of matrices as sums of products, nested."""
    ((of_x, of_y), (batch_x, batch_y)), (x, y) = params["dimension_numbers"], _floats(x, y)
    free_x = [i for i in range(x.ndim) if i not in (*of_x, *batch_x)]
    free_y = [i for i in range(y.ndim) if i not in (*of_y, *batch_y)]
    x, y = jnp.transpose(x, (*batch_x, *free_x, *of_x)), jnp.transpose(y, (*batch_y, *free_y, *of_y))
    first = x.shape[: len(batch_x) + len(free_x)]
    x = x.reshape(*first, *(1,) * len(free_y), -1)
    y = y.reshape(
        *y.shape[: len(batch_y)], *(1,) * len(free_x), *y.shape[len(batch_y) : len(batch_y) + len(free_y)], -1
    )
    return _sum(x * y, (x.ndim - 1,))


def _scatter_add(params: Params, into: Any, indices: Any, updates: Any) -> Array:
    how = {key: params[key] for key in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")}
    into, updates = _floats(into, updates)
    return lax.scatter_add(into, indices, updates, **how)


def _asinh(x: Array) -> Array:
    """Returns log(|x| + root(1 + x^2)) with x's sign: the argument less 1 is |x| + x^2/(1 + root)."""
    size = jnp.minimum(jnp.abs(x), 1e18)
    value = own.log1p(size + divide(size * size, 1 + square_root(1 + size * size)))
    return _choose(jnp.isfinite(x), _choose(x < 0, -value, value), x)


def _sinh(x: Array) -> Array:
    """Returns (e + e/(e + 1))/2, e = e^|x| - 1, with x's sign."""
    e = own.expm1(jnp.abs(x))
    value = 0.5 * _choose(e < jnp.inf, e + divide(e, e + 1), e)
    return _choose(x < 0, -value, value)


RULES: dict[str, Callable[..., Any]] = {
    "convert_element_type": _convert,
    "integer_pow": _whole_power,
    "pow": _power,
    "div": lambda params, x, y: divide(*jnp.broadcast_arrays(*_floats(x, y))),
    "sqrt": _of(square_root),
    "rsqrt": _of(lambda x: divide(jnp.ones_like(x), square_root(x))),
    "exp": _of(own.exp),
    "exp2": _of(lambda x: own.exp(x * np.float32(np.log(2)))),
    "expm1": _of(own.expm1),
    "log": _of(own.log),
    "log1p": _of(own.log1p),
    "logistic": _of(_logistic),
    "tanh": _of(_tanh),
    "sin": _of(lambda x: sine_and_cosine(x)[0]),
    "cos": _of(lambda x: sine_and_cosine(x)[1]),
    "atan2": lambda params, y, x: own.angle(*jnp.broadcast_arrays(*_floats(y, x))),
    "erf": _of(_erf),
    "erfc": _of(lambda x: 2 * own.normal_tail(x * np.float32(np.sqrt(2)))),
    "cbrt": _of(lambda x: jnp.sign(x) * own.exp(own.log(jnp.abs(x)) * np.float32(1 / 3))),
    "asinh": _of(_asinh),
    "sinh": _of(_sinh),
    "reduce_sum": lambda params, x: _sum(x, params["axes"]),
    "cumsum": _running_sum,
    "dot_general": _product_of_matrices,
    "scatter-add": _scatter_add,
    "scatter_add": _scatter_add,
}
"""Forms of operations that are not :data:`EXACT`."""


def _cosm1_and_sin(angle: Array) -> tuple[Array, Array]:
    less, more = own.cos_and_sin_remainders(angle)
    return less, angle + more


def _missing_above(value: Array, high: Array) -> Array:
    """Returns 0: ``high`` is the value."""
    return jnp.zeros_like(value)


def _remaining_weight(least: Array, slack: Array) -> Array:
    """Returns 1 - least - slack, or less: the first difference is lowered by the units of all that rounds."""
    return (1 - least) * np.float32(1 - 4 * own.UNIT) - slack


FORMS: dict[str, Callable[..., Any]] = {
    "lower_tail": lambda z: own.normal_tail(-z),
    "cosm1_and_sin": _cosm1_and_sin,
    "turn": own.cos_and_sin_remainders,
    "sine_and_cosine": sine_and_cosine,
    "remaining_weight": _remaining_weight,
    "missing_above": _missing_above,
}
"""Functions that are jitted by these names, behind :data:`.arithmetic.OWN`, in their forms for float32."""
