"""Operations: the form in pairs of float32 of each operation of a traced program, by the name that JAX gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxacct.numerics.float_pairs import functions, sums, wide
from jaxacct.numerics.float_pairs.pair import Complex
from jaxacct.numerics.float_pairs.wide import Wide

Params = dict[str, Any]
"""Parameters of an operation."""

Rule = Callable[..., Any]
"""A form of an operation for pairs: a function of its parameters and operands."""

MOVING = frozenset(
    {
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice", "dynamic_slice"),
        *("dynamic_update_slice", "concatenate", "pad", "gather", "select_n", "copy", "copy_p", "stop_gradient"),
        *("optimization_barrier", "reshard", "stack", "unstack", "split", "tile", "scatter", "pvary"),
    }
)
"""Operations that move numbers about without looking at them: they are done to each part by itself."""


def of_operands(function: Callable[..., Any]) -> Rule:
    """Returns the rule of an operation that has no parameters."""
    return lambda params, *args: function(*args)


def _ordinary(value: Any) -> Wide:
    return value if isinstance(value, Wide) else wide.of_array(value)


def _convert(params: Params, value: Any) -> Any:
    # To float64 is no change of number here; to whole numbers is towards 0, as XLA has it.
    dtype = np.dtype(params["new_dtype"])
    if dtype == np.float64:
        return _ordinary(value)
    if dtype == np.bool_:
        return value.high != 0
    if np.issubdtype(dtype, np.integer):
        return wide.to_whole(value, dtype)
    return wide.to_float32(value).astype(dtype)


def _whole_power(params: Params, x: Wide) -> Wide:
    """Returns x^n by squares, as XLA does: at most |n| - 1 products."""
    n = abs(params["y"])
    found: Wide | None = None
    square = x
    # ``square`` is x^(2^i) at bit i of n, and ``found`` the product of those of the bits so far, None for 1.
    while n:
        if n & 1:
            found = square if found is None else wide.multiply(found, square)
        n >>= 1
        if n:
            square = wide.square(square)
    if found is None:
        found = wide.fill(1.0, x.shape)
    return wide.divide(wide.fill(1.0, x.shape), found) if params["y"] < 0 else found


def _remainder(params: Params, x: Wide, y: Wide) -> Wide:
    """Returns x less y times the whole part of x / y, or that plus or minus 1: exact where both are whole, to 2^46."""
    # The rounded quotient may be on the wrong side of a whole number, so its whole part is mended by the sign and the
    # size of the rest.
    quotient = wide.divide(x, y)
    whole = wide.select(quotient.high < 0, wide.ceiling(quotient), wide.floor(quotient))
    rest = wide.subtract(x, wide.multiply(whole, y))
    are_whole = wide.equal(wide.floor(x), x) & wide.equal(wide.floor(y), y)
    rest = wide.select(are_whole, wide.nearest_whole(rest), rest)
    size, of_y = wide.absolute(rest), wide.absolute(y)
    # Where the whole part was off by 1, y is added or taken away. Then the rest has x's sign, or is 0, and is smaller
    # than y.
    rest = wide.select(
        (rest.high * x.high < 0), wide.add(rest, wide.select(x.high < 0, wide.negative(of_y), of_y)), rest
    )
    return wide.select(
        wide.less(size, of_y), rest, wide.subtract(rest, wide.select(x.high < 0, wide.negative(of_y), of_y))
    )


def _reduce_precision(params: Params, x: Wide) -> Wide:
    # Whoever asks for few digits wants products that are exact: those of a float32 are few enough.
    if params["exponent_bits"] < 8 or params["mantissa_bits"] < 23:
        raise NotImplementedError("of reductions of precision pairs know that to float32.")
    return wide.single(wide.to_float32(x))


def _sort(params: Params, *args: Any) -> list[Any]:
    """Returns operands sorted by exponents with the sign first, then by either part: the order of the numbers."""
    if params["num_keys"] != 1 or not isinstance(args[0], Wide):
        raise NotImplementedError("of sorts pairs know those by one key.")
    # The keys are the three parts; all parts of all operands go along as values.
    leaves, structure = jax.tree.flatten(args)
    first = jnp.where(jnp.isnan(args[0].high), jnp.iinfo(jnp.int32).max, wide.order(args[0]))  # NaN comes last
    keys = [first, args[0].high, args[0].low]
    found = lax.sort((*keys, *leaves), dimension=params["dimension"], is_stable=params["is_stable"], num_keys=3)
    return list(jax.tree.unflatten(structure, found[3:]))


def _fft(params: Params, x: Any) -> Any:
    kind, lengths = params["fft_type"], params["fft_lengths"]
    if len(lengths) != 1:
        raise NotImplementedError("of transforms pairs know those along one axis.")
    if kind == lax.FftType.RFFT:
        return Complex(*sums.rfft(x))
    if kind == lax.FftType.IRFFT:
        return sums.irfft(x.real, x.imaginary, lengths[0])
    raise NotImplementedError(f"of transforms pairs know those of real numbers, not {kind}.")


def _with_sign_of(x: Wide, size: Wide) -> Wide:
    return wide.select(x.high < 0, wide.negative(size), size)


def _asinh(params: Params, x: Wide) -> Wide:
    """Returns log(|x| + root(1 + x^2)), within 16 units of roundoff.

    The argument less 1 is |x| + x^2 / (1 + root), all of one sign.
    """
    size, one = wide.absolute(x), wide.constant(1.0)
    square = wide.multiply(x, x)
    rest = wide.divide(square, wide.add(one, wide.square_root(wide.add(one, square))))
    found = _with_sign_of(x, functions.log1p(wide.add(size, rest)))
    return wide.select(wide.is_finite(x), found, x)


def _sinh(params: Params, x: Wide) -> Wide:
    """Returns (e + e / (e + 1)) / 2 with e = e^|x| - 1, within 16 units of roundoff."""
    # No terms of different sign are added, so nothing cancels near 0.
    e = functions.expm1(wide.absolute(x))
    found = wide.add(e, wide.divide(e, wide.add(e, wide.constant(1.0))))
    found = _with_sign_of(x, wide.times_power(wide.select(wide.is_finite(e), found, e), jnp.int32(-1)))
    return found


def _cube_root(params: Params, x: Wide) -> Wide:
    """Returns the cube root, by the logarithm of a number between 1 and 8: within 4 units of roundoff."""
    # The exponent is divided by 3 towards minus infinity: the offset makes the dividend positive, as lax.div rounds
    # towards 0. The rest, 0 to 2, stays with the number.
    third = lax.div(x.exponent + 3 * wide.INFINITE, jnp.int32(3)) - wide.INFINITE
    near = Wide(jnp.abs(x.high), jnp.where(x.high < 0, -x.low, x.low), x.exponent - 3 * third)
    found = wide.times_power(functions.power(near, wide.constant(1 / 3)), third)
    return wide.select((x.high == 0) | ~wide.is_finite(x), x, _with_sign_of(x, found))


REAL: dict[str, Rule] = {
    "add": of_operands(wide.add),
    "add_any": of_operands(wide.add),
    "sub": of_operands(wide.subtract),
    "mul": of_operands(wide.multiply),
    "div": of_operands(wide.divide),
    "neg": of_operands(wide.negative),
    "abs": of_operands(wide.absolute),
    "max": of_operands(wide.largest),
    "min": of_operands(wide.smallest),
    "sign": lambda params, x: wide.single(jnp.sign(x.high)),
    "square": of_operands(wide.square),
    "sqrt": of_operands(wide.square_root),
    "rsqrt": lambda params, x: wide.divide(wide.fill(1.0, x.shape), wide.square_root(x)),
    "integer_pow": _whole_power,
    "rem": _remainder,
    "clamp": lambda params, least, x, most: wide.smallest(wide.largest(x, least), most),
    "floor": of_operands(wide.floor),
    "ceil": of_operands(wide.ceiling),
    "round": of_operands(wide.nearest_whole),
    "is_finite": of_operands(wide.is_finite),
    "eq": of_operands(wide.equal),
    "ne": lambda params, x, y: ~wide.equal(x, y),
    "lt": of_operands(wide.less),
    "le": of_operands(wide.less_or_equal),
    "gt": lambda params, x, y: wide.less(y, x),
    "ge": lambda params, x, y: wide.less_or_equal(y, x),
    "lt_to": of_operands(wide.less),
    "le_to": of_operands(wide.less_or_equal),
    "convert_element_type": _convert,
    "reduce_precision": _reduce_precision,
    "iota": lambda params: wide.steps(params["shape"], params["dimension"]),
    "exp": of_operands(functions.exp),
    "exp2": of_operands(functions.exp2),
    "expm1": of_operands(functions.expm1),
    "log": of_operands(functions.log),
    "log1p": of_operands(functions.log1p),
    "logistic": of_operands(functions.logistic),
    "tanh": of_operands(functions.tanh),
    "pow": lambda params, x, y: functions.power(x, _ordinary(y)),
    "sin": of_operands(functions.sin),
    "cos": of_operands(functions.cos),
    "atan2": of_operands(functions.atan2),
    "erf": of_operands(functions.erf),
    "erfc": of_operands(functions.erfc),
    "reduce_sum": lambda params, x: sums.over_axes(x, params["axes"]),
    "reduce_max": lambda params, x: sums.largest_over(x, params["axes"]),
    "reduce_min": lambda params, x: wide.negative(sums.largest_over(wide.negative(x), params["axes"])),
    "cumsum": lambda params, x: sums.running(x, params["axis"], reverse=params["reverse"]),
    # Comparisons are exact, so any order of them gives the same numbers.
    "cummax": lambda params, x: lax.associative_scan(wide.largest, x, axis=params["axis"], reverse=params["reverse"]),
    "cummin": lambda params, x: lax.associative_scan(wide.smallest, x, axis=params["axis"], reverse=params["reverse"]),
    "dot_general": lambda params, x, y: sums.product_of_matrices(x, y, params["dimension_numbers"]),
    "sort": _sort,
    "scatter-add": lambda params, into, indices, updates: sums.scatter(into, indices, updates, params),
    "scatter_add": lambda params, into, indices, updates: sums.scatter(into, indices, updates, params),
    "conv_general_dilated": lambda params, x, y: sums.convolution(x, y, params),
    "asinh": _asinh,
    "sinh": _sinh,
    "cbrt": _cube_root,
    "fft": _fft,
    "complex": lambda params, x, y: Complex(x, y),
}
"""Forms of operations on real numbers."""


def beside_constant(name: str, constant: float, is_second: bool) -> Callable[[Wide], Any] | None:
    """Returns an operation with one operand of the host as a function of the other, where that takes less work.

    Products with powers of two are exact. A quotient is a product with the reciprocal, which is right to 2^-49 and a
    unit of float64, 0.53 u^2: within 11 u^2, less than a quotient by itself. For comparisons with 0 the sign suffices.
    """
    # The reciprocal must be within float64's range, with some to spare.
    if name == "div" and is_second and 1e-300 < abs(constant) < 1e300:
        return beside_constant("mul", 1 / constant, True) or (lambda x: wide.multiply(x, wide.constant(1 / constant)))
    if name == "mul" and constant and np.isfinite(constant) and abs(np.frexp(constant)[0]) == 0.5:
        power = np.int32(np.frexp(constant)[1] - 1)
        sign = wide.negative if constant < 0 else lambda x: x
        return lambda x: sign(wide.by_power(x, power) if power else x)
    if constant:
        return None
    if name in ("max", "min"):
        # A NaN is kept.
        drops = (lambda x: x.high <= 0) if name == "max" else (lambda x: x.high >= 0)
        return lambda x: wide.select(drops(x), wide.fill(0.0, x.shape), x)
    # A constant in the first place turns the comparison round.
    name = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(name, name) if not is_second else name
    compared = {"lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge, "eq": lax.eq, "ne": lax.ne}.get(name)
    return None if compared is None else (lambda x: compared(x.high, jnp.zeros_like(x.high)))


def _complex_product(params: Params, x: Complex[Wide], y: Complex[Wide]) -> Complex[Wide]:
    # By four products: relative errors are those of the moduli, as :mod:`jaxacct.numerics.float_pairs.sums` counts
    # them.
    (a, b), (c, d) = x, y
    real = wide.subtract(wide.multiply(a, c), wide.multiply(b, d))
    return Complex(real, wide.add(wide.multiply(a, d), wide.multiply(b, c)))


def _to_complex(params: Params, x: Any) -> Complex[Wide]:
    if isinstance(x, Complex):
        return x
    real = _ordinary(x)
    return Complex(real, wide.fill(0.0, real.shape))


COMPLEX: dict[str, Rule] = {
    "add": lambda params, x, y: Complex(*map(wide.add, x, y)),
    "sub": lambda params, x, y: Complex(*map(wide.subtract, x, y)),
    "neg": lambda params, x: Complex(*map(wide.negative, x)),
    "mul": _complex_product,
    "real": lambda params, x: x.real,
    "imag": lambda params, x: x.imaginary,
    "complex": lambda params, x, y: Complex(x, y),
    "conj": lambda params, x: Complex(x.real, wide.negative(x.imaginary)),
    "convert_element_type": _to_complex,
    "fft": _fft,
}
"""Forms of operations on complex numbers."""
