"""JAX's operations as NumPy's: by the name of a primitive, what makes a function of arrays of its parameters.

All that is made can be pickled: functions of modules, and parts of them. IEEE arithmetic rounds in NumPy as it does
anywhere; sums are pairwise, which is one of the orders that certificates allow; and elementary functions are NumPy's
and SciPy's, held to the same table as a compiler's (:func:`jaxacct.elementary.check`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from jaxacct.numpy_programs import indexing

Value = Any
"""An array, or one number of NumPy's."""

Operation = Callable[..., Value]

Maker = Callable[[dict[str, Any], list[Any], list[Any]], Operation]
"""Of an operation's parameters and the types of its operands and results."""


def _same(x: Value) -> Value:
    return x


def _sign_of_quotient(x: Value, y: Value) -> Value:
    """The quotient of whole numbers towards zero, where NumPy's is towards minus infinity."""
    quotient = x // y
    quotient = quotient + ((quotient < 0) & (quotient * y != x))
    found: Value = np.where(y == 0, ~np.zeros_like(quotient), quotient)  # as XLA has it
    return found[()]


def _remainder(x: Value, y: Value) -> Value:
    found = np.fmod(x, y)
    whole: Value = np.where(y == 0, x, found)
    return found if x.dtype.kind == "f" else whole[()]


def _square(x: Value) -> Value:
    return x * x


def _power(x: Value, exponent: int) -> Value:
    """By squaring, as XLA does: one rounding for each product."""
    total, square, left = None, x, abs(exponent)
    while left:
        if left & 1:
            total = square if total is None else total * square
        left >>= 1
        square = square * square if left else square
    total = np.ones_like(x)[()] if total is None else total
    return 1 / total if exponent < 0 else total


def _logistic(x: Value) -> Value:
    return 1 / (1 + np.exp(-x))


def _each(function: Callable[[float], float], x: Value) -> Value:
    """A function of Python's, of which NumPy has none."""
    return np.asarray([function(value) for value in np.ravel(x).tolist()], x.dtype).reshape(np.shape(x))[()]


def _complex(x: Value, y: Value) -> Value:
    found = np.empty(np.shape(x), np.result_type(x.dtype, np.complex64))
    found.real, found.imag = x, y
    return found[()]


def _clamped(low: Value, x: Value, high: Value) -> Value:
    return np.minimum(np.maximum(x, low), high)


def _rounded_away(x: Value) -> Value:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _selected(which: Value, *cases: Value) -> Value:
    if which.ndim == 0:
        return cases[min(max(int(which), 0), len(cases) - 1)]
    if len(cases) == 2:
        return np.where(which > 0, cases[1], cases[0])
    return np.choose(which, cases, mode="clip")


def _whole(x: Value, dtype: Any) -> Value:
    """A float as a whole number: towards zero, the nearest that there is, 0 for NaN."""
    info = np.iinfo(dtype)
    # The largest float below 2^bits: rounding the largest integer may go above it.
    top = math.nextafter(float(info.max) + 1.0, 0.0) if info.bits > 32 else float(info.max)
    found = np.clip(np.nan_to_num(x.astype(np.float64), nan=0.0), float(info.min), top).astype(dtype)
    return np.where(x.astype(np.float64) > top, dtype.type(info.max), found)[()]


def _converted(x: Value, dtype: Any) -> Value:
    return x.astype(dtype)


def _make_conversion(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    old, new = np.dtype(operands[0].dtype), np.dtype(results[0].dtype)
    if old == new:
        return _same
    return partial(_whole if old.kind == "f" and new.kind in "iu" else _converted, dtype=new)


def _viewed(x: Value, dtype: Any) -> Value:
    return np.asarray(x).view(dtype)[()]


def _shifted(x: Value, by: Value, shift: Any, bits: int) -> Value:
    return np.where(by < bits, shift(x, by), x.dtype.type(0))[()]


def _make_view(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    if operands[0].shape != results[0].shape:
        raise NotImplementedError("views of another width")
    return partial(_viewed, dtype=np.dtype(params["new_dtype"]))


def _make_shift(shift: Any) -> Maker:
    return lambda params, operands, results: partial(_shifted, shift=shift, bits=operands[0].dtype.itemsize * 8)


def _shifted_unsigned(x: Value, by: Value) -> Value:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return np.right_shift(x.view(unsigned), by.view(unsigned)).view(x.dtype)


def _before(x: Value, y: Value) -> Value:
    """In the total order, -0 before 0 and NaN last."""
    of_zeros = (x == y) & np.signbit(x) & ~np.signbit(y)
    return (x < y) | of_zeros | (np.isnan(y) & ~np.isnan(x))


def _not_after(x: Value, y: Value) -> Value:
    return ~_before(y, x)


def _reduced(x: Value, reduction: Any, axes: Any, options: dict[str, Any]) -> Value:
    return reduction(x, axis=axes, dtype=x.dtype, **options)


def _make_reduction(reduction: Any, initial: Callable[[Any], Any] | None = None) -> Maker:
    def make(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
        options = {} if initial is None else {"initial": initial(np.dtype(operands[0].dtype))}
        return partial(_reduced, reduction=reduction.reduce, axes=tuple(params["axes"]), options=options)

    return make


def _least(dtype: Any) -> Any:
    return False if dtype.kind == "b" else dtype.type(-np.inf) if dtype.kind in "fc" else np.iinfo(dtype).min


def _most(dtype: Any) -> Any:
    return True if dtype.kind == "b" else dtype.type(np.inf) if dtype.kind in "fc" else np.iinfo(dtype).max


def _located(x: Value, find: Any, axis: int, dtype: Any) -> Value:
    return find(x, axis=axis).astype(dtype)


def _make_location(find: Any) -> Maker:
    return lambda params, operands, results: partial(
        _located, find=find, axis=int(params["axes"][0]), dtype=np.dtype(params["index_dtype"])
    )


def _accumulated(x: Value, accumulate: Any, axis: int, reverse: bool) -> Value:
    turned = np.flip(x, axis) if reverse else x
    found = accumulate(turned, axis=axis, dtype=x.dtype)
    return np.flip(found, axis) if reverse else found


def _make_accumulation(reduction: Any) -> Maker:
    return lambda params, operands, results: partial(
        _accumulated, accumulate=reduction.accumulate, axis=int(params["axis"]), reverse=params["reverse"]
    )


def _product(x: Value, y: Value, contracted: Any, batched: Any, dtype: Any) -> Value:
    """Batch axes first, then those of x, then those of y, as JAX has it."""
    x, y = np.asarray(x, dtype), np.asarray(y, dtype)
    free = [
        [axis for axis in range(np.ndim(value)) if axis not in (*sums, *batches)]
        for value, sums, batches in zip((x, y), contracted, batched, strict=True)
    ]
    left, right = (
        np.transpose(value, (*batches, *rest, *sums) if is_left else (*batches, *sums, *rest))
        for is_left, value, sums, batches, rest in zip((True, False), (x, y), contracted, batched, free, strict=True)
    )
    shape = [x.shape[axis] for axis in batched[0]]
    rows, columns = ([value.shape[axis] for axis in rest] for value, rest in zip((x, y), free, strict=True))
    inner = math.prod(x.shape[axis] for axis in contracted[0])
    left = left.reshape((*shape, math.prod(rows), inner))
    right = right.reshape((*shape, inner, math.prod(columns)))
    found = np.matmul(left, right).reshape((*shape, *rows, *columns))
    return found[()]


def _make_product(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    contracted, batched = (
        tuple(tuple(int(axis) for axis in axes) for axes in both) for both in params["dimension_numbers"]
    )
    return partial(_product, contracted=contracted, batched=batched, dtype=np.dtype(results[0].dtype))


def _sorted(*operands: Value, axis: int, keys: int) -> Value:
    if len(operands) == 1:
        return (np.sort(operands[0], axis=axis, kind="stable"),)
    order = np.lexsort(operands[:keys][::-1], axis=axis)
    return tuple(np.take_along_axis(operand, order, axis) for operand in operands)


def _make_sort(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    return partial(_sorted, axis=int(params["dimension"]), keys=params["num_keys"])


def _transformed(x: Value, transform: Any, length: int | None) -> Value:
    return transform(x) if length is None else transform(x, length)


def _make_transform(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    if len(params["fft_lengths"]) != 1:
        raise NotImplementedError("transforms over several axes")
    (length,) = params["fft_lengths"]
    kind = params["fft_type"].name
    transform = {"FFT": np.fft.fft, "IFFT": np.fft.ifft, "RFFT": np.fft.rfft, "IRFFT": np.fft.irfft}[kind]
    return partial(_transformed, transform=transform, length=int(length) if kind == "IRFFT" else None)


def _barrier(*values: Value) -> Value:
    return values


def _log2(x: Value) -> Value:
    return np.log(x) * 1.4426950408889634  # as JAX lowers it


def _one_minus_square(x: Value) -> Value:
    return (1 - x) * (1 + x)


def _polynomial(x: Value, *coefficients: Value) -> Value:
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _make_rounding(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    return np.rint if params["rounding_method"].name == "TO_NEAREST_EVEN" else _rounded_away


def _make_division(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    return operator.truediv if np.dtype(operands[0].dtype).kind in "fc" else _sign_of_quotient


def _make_power(params: dict[str, Any], operands: list[Any], results: list[Any]) -> Operation:
    return _square if params["y"] == 2 else partial(_power, exponent=int(params["y"]))


_PLAIN: dict[str, Operation] = {
    "add": operator.add, "add_any": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg,
    "rem": _remainder, "max": np.maximum, "min": np.minimum, "abs": np.abs, "sign": np.sign, "square": _square,
    "sqrt": np.sqrt, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log,
    "log1p": np.log1p, "log2": _log2, "polynomial": _polynomial, "one_minus_square": _one_minus_square,
    "logistic": _logistic, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
    "sinh": np.sinh, "cosh": np.cosh, "atan2": np.arctan2, "erf": partial(_each, math.erf), "erfc": partial(_each,
    math.erfc),
    "floor": np.floor, "ceil": np.ceil, "nextafter": np.nextafter,
    "is_finite": np.isfinite, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "lt_to": _before, "le_to": _not_after,
    "gt": operator.gt, "ge": operator.ge, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "not": operator.invert, "select_n": _selected, "clamp": _clamped, "real": np.real, "imag": np.imag,
    "complex": _complex, "conj": np.conj, "copy": _same, "copy_p": _same, "stop_gradient": _same,
    "optimization_barrier": _barrier,
}  # fmt: skip


def _always(operation: Operation) -> Maker:
    return lambda params, operands, results: operation


MAKERS: dict[str, Maker] = {
    **{name: _always(made) for name, made in _PLAIN.items()},
    **indexing.MAKERS,
    "div": _make_division,
    "integer_pow": _make_power,
    "pow": lambda params, operands, results: partial(np.power, dtype=np.dtype(results[0].dtype)),
    "round": _make_rounding,
    "convert_element_type": _make_conversion,
    "bitcast_convert_type": _make_view,
    "shift_left": _make_shift(np.left_shift),
    "shift_right_logical": _make_shift(_shifted_unsigned),
    "reduce_sum": _make_reduction(np.add),
    "reduce_prod": _make_reduction(np.multiply),
    "reduce_max": _make_reduction(np.maximum, _least),
    "reduce_min": _make_reduction(np.minimum, _most),
    "reduce_and": _make_reduction(np.bitwise_and),
    "reduce_or": _make_reduction(np.bitwise_or),
    "argmax": _make_location(np.argmax),
    "argmin": _make_location(np.argmin),
    "cumsum": _make_accumulation(np.add),
    "cumprod": _make_accumulation(np.multiply),
    "cummax": _make_accumulation(np.maximum),
    "cummin": _make_accumulation(np.minimum),
    "dot_general": _make_product,
    "sort": _make_sort,
    "fft": _make_transform,
}
"""What is not here is left to a compiler."""
