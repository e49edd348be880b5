"""Sums of many pairs with exponents, exact in whole numbers, running sums, and Fourier transforms.

*Sums.* Over the largest exponent of the terms, numbers are cut into pieces of a few bits, as whole numbers whose sums
int32 holds exactly, whatever the order. Each number loses less than 2^-(BITS - 1) of the largest, so n of them err by
less than n 2^-(BITS - 2) of the sum of absolute values: far below n roundings.

*Running sums* need more than that, for each has to be right relative to its own terms. They are made in log2(n) rounds,
each of which adds to every number the one that stands 2^i before it (Hillis and Steele): a term goes through at most
one addition a round, each with its own relative error.

*Fourier transforms* work in block floating point; their order and errors are below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Complex128

from jaxacct.numerics.float_pairs import pair, wide
from jaxacct.numerics.float_pairs.pair import Complex, Pair, Single
from jaxacct.numerics.float_pairs.wide import Wide

Numbers = TypeVar("Numbers")


def over_axes(x: Wide, axes: Sequence[int]) -> Wide:
    """Returns the sums over some axes."""
    count = math.prod(x.shape[axis] for axis in axes)
    if count == 0:
        return wide.fill(0.0, tuple(n for i, n in enumerate(x.shape) if i not in axes))
    axes = tuple(axes)
    if count == 1:
        return Wide(*(jnp.squeeze(part, axes) for part in x))
    largest = jnp.max(x.exponent, axes, keepdims=True)
    return _by_pieces(
        wide.align(x, largest), jnp.squeeze(largest, axes), count, lambda part: jnp.sum(part, axes, dtype=part.dtype)
    )


def _by_pieces(x: Pair, exponent: Array, count: int, total: Callable[[Array], Array]) -> Wide:
    """Returns 2^exponent times the sums of numbers below 2, inf or NaN; ``total`` sums arrays, of ``count`` terms."""
    # Bits below the largest exponent that a sum keeps. The errors of sums rest on it.
    bits = 54
    high, low = x
    # So many whole numbers of this many bits stay below 2^30 in sum, and so with a carry.
    piece = min(22, 29 - math.ceil(math.log2(count)))
    if piece < 8:
        raise NotImplementedError(f"a sum of {count} numbers in pairs of float32: at most 2^21 are summed.")
    is_number = jnp.isfinite(high)
    plain = total(jnp.where(is_number, 0.0, high))
    high, low = jnp.where(is_number, high, 0.0), jnp.where(is_number, low, 0.0)
    factor, done, pieces = 2.0 ** (piece - 1), piece - 1, []
    # Piece by piece from the top: each cuts so many bits off the rest, and sums them exactly.
    for _ in range(-(-bits // piece)):
        (whole_high, high), (whole_low, low) = cut(high, factor), cut(low, factor)
        pieces.append(total(whole_high + whole_low))
        factor = 2.0**piece
    # Carries go up, from the last piece: then all pieces but the first are from 0 to 2^piece.
    for i in range(len(pieces) - 1, 0, -1):
        carry = pieces[i] >> piece
        pieces[i], pieces[i - 1] = pieces[i] - (carry << piece), pieces[i - 1] + carry
    first = pieces[0] >> 8
    parts = [first.astype(jnp.float32) * 2.0 ** (8 - done), (pieces[0] - (first << 8)).astype(jnp.float32) * 2.0**-done]
    parts += [p.astype(jnp.float32) * 2.0 ** -(done + piece * i) for i, p in enumerate(pieces) if i]
    found = wide.normal(join(parts), exponent)
    return wide.select(plain == 0, found, wide.normal(Pair(plain, jnp.zeros_like(plain)), 0))


def join(parts: Sequence[Single]) -> Pair:
    """Returns the sum of whole numbers over powers of two, the largest first, all but that not negative.

    It goes from the least up: each sum is exact, but for parts below 2^-24 of the second last.
    """
    sums = Pair(parts[-1], jnp.zeros_like(parts[-1]))
    # The state is the sum of the parts so far, as a pair.
    for part in reversed(parts[:-1]):
        high, low = pair.two_sum(part, sums.high)
        sums = pair.quick_two_sum(high, low + sums.low)
    return sums


def cut(value: Single, factor: float) -> tuple[Array, Single]:
    """Returns the whole part of ``value factor``, and the rest, exactly."""
    moved = value * factor
    whole = moved.astype(jnp.int32)
    return whole, moved - whole.astype(jnp.float32)


def scatter(into: Wide, indices: Array, updates: Wide, params: dict[str, Any]) -> Wide:
    """Returns the result of ``lax.scatter_add``, each sum over the largest exponent that is added there.

    Exponents are scattered by their maximum and gathered back, so that an update has that of its target. Dropped
    updates have no target and may have any.
    """
    numbers, mode = params["dimension_numbers"], params["mode"]
    options = {name: params[name] for name in ("indices_are_sorted", "unique_indices", "mode")}
    largest = lax.scatter_max(
        jnp.full(into.shape, wide.NOTHING, jnp.int32), indices, updates.exponent, dimension_numbers=numbers, **options
    )
    window = iter(numbers.update_window_dims)
    alone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    there = lax.gather(
        largest,
        indices,
        lax.GatherDimensionNumbers(
            offset_dims=numbers.update_window_dims,
            collapsed_slice_dims=numbers.inserted_window_dims,
            start_index_map=numbers.scatter_dims_to_operand_dims,
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=numbers.scatter_indices_batching_dims,
        ),
        slice_sizes=[1 if i in alone else updates.shape[next(window)] for i in range(len(into.shape))],
        mode=mode,
        fill_value=wide.INFINITE,
    )
    batch = numbers.scatter_indices_batching_dims
    count = math.prod(size for i, size in enumerate(indices.shape[:-1]) if i not in batch)

    def total(part: Array) -> Array:
        zero = jnp.zeros(into.shape, part.dtype)
        return lax.scatter_add(zero, indices, part, dimension_numbers=numbers, **options)

    if count == 0:
        return into
    found = _by_pieces(wide.align(updates, jnp.maximum(there, updates.exponent)), largest, count, total)
    return wide.add(into, found)


def convolution(x: Wide, y: Wide, params: dict[str, Any]) -> Wide:
    """Returns ``lax.conv_general_dilated`` of rows (n, 1, size) and one short window (1, 1, width)."""
    plain = (
        len(x.shape) == 3 == len(y.shape)
        and x.shape[1] == y.shape[0] == y.shape[1] == 1
        and all(tuple(spec) == (0, 1, 2) for spec in params["dimension_numbers"])
        and all(tuple(params[name]) == (1,) for name in ("window_strides", "lhs_dilation", "rhs_dilation"))
        and params["feature_group_count"] == params["batch_group_count"] == 1
    )
    if not plain:
        raise NotImplementedError("of convolutions pairs know those of rows with one window, at every place.")
    padding, width = [(0, 0), (0, 0), *params["padding"]], y.shape[2]

    def windows(part: Array, fill: Any) -> Array:
        padded = jnp.pad(part, padding, constant_values=fill)
        size = padded.shape[2] - width + 1
        return jnp.stack([padded[..., i : i + size] for i in range(width)], axis=-1)

    parts = zip(x, (0.0, 0.0, wide.NOTHING), strict=True)
    window = Wide(*(part[:, :, None] for part in y))
    return over_axes(wide.multiply(Wide(*(windows(part, fill) for part, fill in parts)), window), (3,))


def running(x: Wide, axis: int, *, reverse: bool = False) -> Wide:
    """Returns the sums of the first 1, 2, ... numbers along an axis."""
    size = x.shape[axis]
    places = jnp.arange(size).reshape([-1 if i == axis else 1 for i in range(len(x.shape))])
    if reverse:
        places = size - 1 - places

    def one_round(i: Array, sums: Wide) -> Wide:
        # After round i each number is the sum of the 2^(i+1) numbers up to its place, or of all that there are.
        apart = jnp.left_shift(jnp.int32(1), i)
        moved = Wide(*(jnp.roll(part, jnp.where(reverse, -apart, apart), axis) for part in sums))
        added = wide.add(sums, moved)
        return wide.select(places >= apart, added, sums)

    return jax.lax.fori_loop(0, max(0, math.ceil(math.log2(max(size, 1)))), one_round, x)


def product_of_matrices(x: Wide, y: Wide, dimension_numbers: Any) -> Wide:
    """Returns the result of ``lax.dot_general``, by products of all pairs, for small matrices."""
    return products_summed(x, y, dimension_numbers, wide.multiply, over_axes)


def products_summed(
    x: Numbers,
    y: Numbers,
    dimension_numbers: Any,
    multiply: Callable[[Numbers, Numbers], Numbers],
    total: Callable[[Numbers, Sequence[int]], Numbers],
) -> Numbers:
    """Returns the result of ``lax.dot_general`` for numbers of several parts, by their product and sum over axes."""
    ((of_x, of_y), (batch_x, batch_y)) = dimension_numbers
    rank_x, rank_y = (len(jax.tree.leaves(number)[0].shape) for number in (x, y))
    free_x = [i for i in range(rank_x) if i not in (*of_x, *batch_x)]
    free_y = [i for i in range(rank_y) if i not in (*of_y, *batch_y)]

    def laid_out(numbers: Numbers, order: Sequence[int], at: int, gaps: int) -> Numbers:
        def of(part: Array) -> Array:
            part = lax.transpose(part, tuple(order))
            return part.reshape(part.shape[:at] + (1,) * gaps + part.shape[at:])

        return jax.tree.map(of, numbers)

    batch, ends = len(batch_x), len(batch_x) + len(free_x)
    left = laid_out(x, [*batch_x, *free_x, *of_x], ends, len(free_y))
    right = laid_out(y, [*batch_y, *free_y, *of_y], batch, len(free_x))
    rank = ends + len(free_y) + len(of_x)
    return total(multiply(left, right), range(rank - len(of_x), rank))


def largest_over(x: Wide, axes: Sequence[int]) -> Wide:
    """Returns the largest numbers over some axes; NaN where one of them is NaN."""
    axes = tuple(axes)
    order = wide.order(x)
    first = jnp.max(order, axes, keepdims=True)
    high = jnp.max(jnp.where(order == first, x.high, -jnp.inf), axes, keepdims=True)
    high = jnp.where(jnp.any(jnp.isnan(x.high), axes, keepdims=True), jnp.nan, high)
    is_first = (order == first) & (x.high == high)
    low = jnp.max(jnp.where(is_first, x.low, -jnp.inf), axes, keepdims=True)
    exponent = jnp.max(jnp.where(is_first, x.exponent, wide.NOTHING), axes, keepdims=True)
    special = jnp.isnan(high)
    found = Wide(high, jnp.where(special, 0.0, low), jnp.where(special, wide.INFINITE, exponent))
    return Wide(*(jnp.squeeze(part, axes) for part in found))


# ----------------------------------------------------------------------------------------------------
# Fourier transforms in block floating point: natural order, one loop whose body is one stage
#
# *Range.* The numbers of a transform are taken over one power of two, that of the largest. Parts below 2^-126 of it are
# off by as much, and so are those that a device flushes to zero: together below 2^-90 of the largest.
#
# *Order.* N = r m^2 points, r one of 1, 2, 3 and 6 and m a power of two. m^2 points are a square, row by row:
# transforms of its columns, a factor for each entry and a transposition, twice, the second time with factors of 1,
# leave it in natural order. Columns begin with their bits reversed. A stage takes numbers two by two and leaves sums in
# the upper and differences in the lower half, so that stages are the same but for their factors (Pease, 1968). Numbers
# of one column never meet along the last axis: the lanes of a vector unit stay as they are. For r, every r-th number is
# a transform of its own, beside the others, and one stage joins them. A real transform is a complex one of half the
# length, folded.
#
# *Errors*, with u = 2^-24, relative to the moduli of the exact results of an operation. Sums of complex pairs err by
# 3 u^2, whatever cancels, as their parts do. Products err by 14 u^2 in each of four, which comes to sqrt(2) 14 u^2, for
# (|a c| + |b d|)^2 + (|a d| + |b c|)^2 <= 2 |a + b i|^2 |c + d i|^2; by 3 u^2 in two sums; and by 0.75 u^2 in a factor
# from a table: 23.6 u^2. Products with 1, i and powers of two are exact.
#
# - A stage of two, a +- w b with |w| = 1, errs by 23.6 u^2 |b|, with both signs, and by 3 u^2 of each result. In L2
#   that is 26.6 u^2 of the norm of the results, and all stages are sqrt(2) times a unitary map: relative errors add up.
#   As to single results, one path leads from each input to each result, with factors of modulus 1: so a stage adds at
#   most 26.6 u^2 of the sum of the inputs' moduli (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
#   section 24.1, has both). The first stage of a column has factors of 1 alone: the factors of the square's entries
#   take the place of those, and the second columns err by 3 u^2 there.
# - A stage of three is two products and two sums, (23.6 sqrt(2) + 6) u^2 < 39.4 u^2 in L2 and 29.6 u^2 of the sum of
#   moduli: less than log2(3) stages of two.
# - Folding is a sum, a difference and its product with a factor, and a sum: below 30 u^2 in L2 and, forward, of the sum
#   of moduli; backward 36 u^2 of that. It is sqrt(2) times an isometry; as to single results, those of the complex
#   transform count with |1 + i w| / 2 and |1 - i w| / 2, together at most sqrt(2).
# - 1 / n is a product where 3 divides n: 14.5 u^2.
#
# So log2(n) levels err by 26.6 (log2(n) - 2) u^2 + 48 u^2 in L2 and by sqrt(2) (26.6 (log2(n) - 2) + 3) u^2 + 51 u^2 of
# the sum of moduli: both below 38 log2(n) u^2 from 128 points on. 40 u^2 a level, :attr:`.Arithmetic.of_level` of
# pairs, leaves room for terms of higher order.
#
# Factors are constants of the program: for n real numbers 16 n bytes where r is 1, 20 n for 2, 27 n for 3, 28 n for 6.
# ----------------------------------------------------------------------------------------------------

SHORTEST, LONGEST = 128, 2**19
"""Fewest and most points of a transform: the range for which the errors above were counted."""


def rfft(x: Wide) -> tuple[Wide, Wide]:
    """Returns the transform of real numbers (..., n), as real and imaginary parts (..., n // 2 + 1)."""
    batch, n = x.shape[:-1], x.shape[-1]
    _check_length(n)
    even, odd = (jax.tree.map(lambda part, k=k: part[..., k::2], x) for k in (0, 1))
    z, exponent = _over_largest(even, odd)
    z = jax.tree.map(lambda part: jnp.concatenate([part, part[:, :1]], axis=1), _transform(z))
    return _numbers(_fold(z, _half_circle(n)), exponent - 1, (*batch, n // 2 + 1))


def irfft(real: Wide, imaginary: Wide, n: int) -> Wide:
    """Returns the real numbers (..., n) of a transform (..., n // 2 + 1), imaginary parts at its ends taken as 0."""
    batch, half = real.shape[:-1], n // 2
    _check_length(n)
    if real.shape[-1] != half + 1:
        raise ValueError(f"real has {real.shape[-1]} entries, which are not those of n = {n}: give n // 2 + 1")
    ends = jnp.broadcast_to((np.arange(half + 1) % half == 0).reshape((1,) * len(batch) + (-1,)), real.shape)
    z, exponent = _over_largest(real, wide.select(ends, wide.fill(0.0, real.shape), imaginary))
    z = jax.tree.map(lambda part: part[:, :half], _fold(z, np.conj(_half_circle(n))))
    z, exponent = _divide(_conjugate(_transform(_conjugate(z))), exponent, n)
    found = wide.in_range(wide.normal(jax.tree.map(lambda a, b: jnp.stack([a, b], axis=-1), *z), exponent[..., None]))
    return jax.tree.map(lambda part: part.reshape(*batch, n), found)


def _check_length(n: int) -> None:
    if not (SHORTEST <= n <= LONGEST and n // (n & -n) in (1, 3)):
        raise ValueError(
            f"n is {n}: transforms of pairs have 2^k or 3 2^k points, from {SHORTEST} to {LONGEST}; choose one of these"
        )


def _over_largest(real: Wide, imaginary: Wide) -> tuple[Complex[Pair], Array]:
    """Returns complex numbers (batch, n) over powers of two (batch, 1), so that no part is 2 or larger, and those."""
    real, imaginary = (jax.tree.map(lambda part: part.reshape(-1, part.shape[-1]), x) for x in (real, imaginary))
    exponent = jnp.max(jnp.maximum(real.exponent, imaginary.exponent), axis=1, keepdims=True)
    return Complex(wide.align(real, exponent), wide.align(imaginary, exponent)), exponent


def _numbers(z: Complex[Pair], exponent: Array, shape: tuple[int, ...]) -> tuple[Wide, Wide]:
    found = (wide.in_range(wide.normal(part, exponent)) for part in z)
    real, imaginary = (jax.tree.map(lambda part: part.reshape(shape), x) for x in found)
    return real, imaginary


def _conjugate(z: Complex[Pair]) -> Complex[Pair]:
    return Complex(z.real, pair.negative(z.imaginary))


def _divide(z: Complex[Pair], exponent: Array, n: int) -> tuple[Complex[Pair], Array]:
    """Returns z / n, as pairs with exponents."""
    if n % 3 == 0:
        third = jax.tree.map(lambda part: part.reshape(1, 1), pair.constant(1 / 3))
        z, n = Complex(*(pair.multiply(part, third) for part in z)), n // 3
    return z, exponent - (n.bit_length() - 1)


def add(x: Complex[Pair], y: Complex[Pair]) -> Complex[Pair]:
    """Returns x + y."""
    return Complex(pair.add(x.real, y.real), pair.add(x.imaginary, y.imaginary))


def multiply(x: Complex[Pair], y: Complex[Pair]) -> Complex[Pair]:
    """Returns x y."""
    real = pair.subtract(pair.multiply(x.real, y.real), pair.multiply(x.imaginary, y.imaginary))
    imaginary = pair.add(pair.multiply(x.real, y.imaginary), pair.multiply(x.imaginary, y.real))
    return Complex(real, imaginary)


def _roots(index: np.ndarray, n: int) -> Complex128[np.ndarray, " ..."]:
    """Returns exp(-2 pi i index / n), each part right to 2^-50 of itself: angles are at most an eighth of a turn."""
    quarters, rest = np.divmod(4 * (index % n) + n // 2, n)
    angle = 2 * np.pi * ((rest - n // 2) / (4 * n))
    cosine, sine = np.cos(angle), np.sin(angle)
    real = np.choose(quarters % 4, [cosine, -sine, -cosine, sine])
    return real - 1j * np.choose(quarters % 4, [sine, cosine, -sine, -cosine])


def _constants(values: Complex128[np.ndarray, " ..."]) -> Complex[Pair]:
    """Returns numbers of the host as pairs, each part right to 2^-49 of itself."""

    def split(part: np.ndarray) -> Pair:
        high = part.astype(np.float32)
        return Pair(jnp.asarray(high), jnp.asarray((part - high).astype(np.float32)))

    return Complex(split(values.real), split(values.imag))


def _half_circle(n: int) -> Complex128[np.ndarray, " half"]:
    """Returns -i exp(-2 pi i k / n), for k from 0 to n / 2."""
    return -1j * _roots(np.arange(n // 2 + 1), n)


def _fold(x: Complex[Pair], factors: Complex128[np.ndarray, " half"]) -> Complex[Pair]:
    """Returns x + y + factors (x - y), where y is the conjugate of x (batch, half) from its end to its start."""
    y = _conjugate(jax.tree.map(lambda part: jnp.flip(part, 1), x))
    difference = add(x, jax.tree.map(jnp.negative, y))
    return add(add(x, y), multiply(difference, _constants(factors[None])))


def _transform(z: Complex[Pair]) -> Complex[Pair]:
    """Returns transforms of complex numbers (batch, n), n = r m^2."""
    batch, n = z.real.high.shape
    if n % 3 and n.bit_length() % 2:
        return _square(z)
    r = 2 if n % 3 else 3
    # Every r-th number from the first, from the second, and so on have transforms of their own; one stage of r joins.
    parts = _transform(jax.tree.map(lambda p: jnp.moveaxis(p.reshape(batch, n // r, r), 2, 0).reshape(-1, n // r), z))
    parts = jax.tree.map(lambda p: p.reshape(r, batch, 1, n // r), parts)
    index = np.arange(1, r)[:, None] * np.arange(n)
    factors = _constants(_roots(index, n).reshape(r - 1, 1, r, n // r))
    products = multiply(jax.tree.map(lambda p: p[1:], parts), factors)
    total = jax.tree.map(lambda p: p[r - 2], products)
    if r == 3:
        total = add(jax.tree.map(lambda p: p[0], products), total)
    total = add(jax.tree.map(lambda p: p[0], parts), total)
    return jax.tree.map(lambda p: p.reshape(batch, n), total)


def _square(z: Complex[Pair]) -> Complex[Pair]:
    """Returns transforms of complex numbers (batch, m^2)."""
    batch, n = z.real.high.shape
    stages = n.bit_length() // 2
    m = 2**stages
    k = np.arange(m)
    reverse = sum((k >> bit & 1) << stages - 1 - bit for bit in range(stages))
    stage = np.arange(stages)[:, None]
    # Before stage s the upper s bits of an index are done: the factor is that of so many out of 2^(s + 1) points.
    done = np.arange(m // 2) >> stages - 1 - stage
    of_stages = _constants(_roots(done << stages - 1 - stage, m)[..., None, None])
    between, ones = _constants(_roots(k[:, None] * k, n)[:, None]), _constants(np.ones((1, 1, 1), complex))
    # Columns are laid side by side to fill a vector unit, with 128 numbers in a row. Speed only.
    width = batch * m
    lanes = math.gcd(width, 128)

    # One stage: numbers two by two along the first axis, sums to the upper and differences to the lower half.
    def run(z: Complex[Pair], factors: Complex[Pair]) -> tuple[Complex[Pair], None]:
        z = jax.tree.map(lambda p: p.reshape(m // 2, 2, width // lanes, lanes), z)
        first, second = (jax.tree.map(lambda p, k=k: p[:, k], z) for k in (0, 1))
        second = multiply(second, factors)
        signs = np.array([1, -1], np.float32).reshape(2, 1, 1, 1)
        both = add(jax.tree.map(lambda p: p[None], first), jax.tree.map(lambda p: p[None] * signs, second))
        return jax.tree.map(lambda p: p.reshape(m, width // lanes, lanes), both), None

    # One of two turns: the columns' transforms, the factors of the entries (of 1 the second time), a transposition.
    def turn(k: Array, z: Complex[Pair]) -> Complex[Pair]:
        z, _ = lax.scan(run, jax.tree.map(lambda p: p[reverse].reshape(m, width // lanes, lanes), z), of_stages)
        factors = jax.tree.map(lambda p, q: jnp.where(k == 0, p, q), between, ones)
        z = multiply(jax.tree.map(lambda p: p.reshape(m, batch, m), z), factors)
        return jax.tree.map(lambda p: jnp.swapaxes(p, 0, 2), z)

    z = lax.fori_loop(0, 2, turn, jax.tree.map(lambda p: jnp.swapaxes(p.reshape(batch, m, m), 0, 1), z))
    # The last transposition is undone: the second turn needs none.
    return jax.tree.map(lambda p: jnp.transpose(p, (1, 2, 0)).reshape(batch, n), z)
