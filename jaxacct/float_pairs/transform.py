"""Fourier transforms of pairs of float32 in block floating point: natural order, one loop whose body is one stage.

*Range.* The numbers of a transform are taken over one power of two, that of the largest. What is below 2^-126 of it is
off by as much, and so is what a device flushes to zero: together below 2^-90 of the largest.

*Order.* N = r m^2 points, r one of 1, 2, 3 and 6 and m a power of two. m^2 points are a square, row by row: transforms
of its columns, a factor for each entry and a transposition, twice, the second time with factors of 1, leave it in
natural order. Columns begin with their bits reversed. A stage takes numbers two by two and leaves sums in the upper and
differences in the lower half, so that stages are the same but for their factors (Pease, 1968). Numbers of one column
never meet along the last axis: the lanes of a vector unit stay as they are. For r, every r-th number is a transform of
its own, beside the others, and one stage joins them. A real transform is a complex one of half the length, folded.

*Errors*, with u = 2^-24, relative to the moduli of the exact results of an operation. Sums of complex pairs err by
3 u^2, whatever cancels, as their parts do. Products err by 14 u^2 in each of four, which comes to sqrt(2) 14 u^2, for
(|a c| + |b d|)^2 + (|a d| + |b c|)^2 <= 2 |a + b i|^2 |c + d i|^2; by 3 u^2 in two sums; and by 0.75 u^2 in a factor
from a table: 23.6 u^2. Products with 1, i and powers of two are exact.

- A stage of two, a +- w b with |w| = 1, errs by 23.6 u^2 |b|, with both signs, and by 3 u^2 of each result. In L2 that
  is 26.6 u^2 of the norm of the results, and all stages are sqrt(2) times a unitary map: relative errors add up. As to
  single results, one path leads from each input to each result, with factors of modulus 1: so a stage adds at most
  26.6 u^2 of the sum of the inputs' moduli (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section
  24.1, has both). The first stage of a column has factors of 1 alone: the factors of the square's entries take the
  place of those, and the second columns err by 3 u^2 there.
- A stage of three is two products and two sums, (23.6 sqrt(2) + 6) u^2 < 39.4 u^2 in L2 and 29.6 u^2 of the sum of
  moduli: less than log2(3) stages of two.
- Folding is a sum, a difference and its product with a factor, and a sum: below 30 u^2 in L2 and, forward, of the sum
  of moduli; backward 36 u^2 of that. It is sqrt(2) times an isometry; as to single results, those of the complex
  transform count with |1 + i w| / 2 and |1 - i w| / 2, together at most sqrt(2).
- 1 / n is a product where 3 divides n: 14.5 u^2.

So log2(n) levels err by 26.6 (log2(n) - 2) u^2 + 48 u^2 in L2 and by sqrt(2) (26.6 (log2(n) - 2) + 3) u^2 + 51 u^2 of
the sum of moduli: both below 38 log2(n) u^2 from 128 points on. 40 u^2 leaves room for terms of higher order.

Factors are constants of the program: for n real numbers 16 n bytes where r is 1, 20 n for 2, 27 n for 3, 28 n for 6.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Complex128

from jaxacct.arithmetic import PAIR
from jaxacct.float_pairs import pair, wide
from jaxacct.float_pairs.pair import Pair
from jaxacct.float_pairs.wide import Wide

TRANSFORM_ERROR = PAIR.of_level * PAIR.roundoff
"""Error of one of log2(n) levels, 40 u^2: of each result relative to the sum of the magnitudes, of all in L2 to the
norm."""

SHORTEST, LONGEST = 128, 2**19
"""Numbers of points for which the above was counted."""

LANES = 128
"""Numbers of a row of a vector unit: columns are laid side by side to fill it."""


class ComplexPair(NamedTuple):
    """Complex numbers (...)."""

    real: Pair
    imaginary: Pair


def rfft(x: Wide) -> tuple[Wide, Wide]:
    """Returns the transform of real numbers (..., n), as real and imaginary parts (..., n // 2 + 1)."""
    batch, n = x.shape[:-1], x.shape[-1]
    _check_length(n)
    even, odd = (jax.tree.map(lambda part, k=k: part[..., k::2], x) for k in (0, 1))
    z, exponent = _over_largest(even, odd)
    z = jax.tree.map(lambda part: jnp.concatenate([part, part[:, :1]], axis=1), _transform(z))
    return _numbers(_folded(z, _half_circle(n)), exponent - 1, (*batch, n // 2 + 1))


def irfft(real: Wide, imaginary: Wide, n: int) -> Wide:
    """Returns the real numbers (..., n) of a transform (..., n // 2 + 1), imaginary parts at its ends taken as 0."""
    batch, half = real.shape[:-1], n // 2
    _check_length(n)
    if real.shape[-1] != half + 1:
        raise ValueError(f"real has {real.shape[-1]} entries, which are not those of n = {n}: give n // 2 + 1")
    ends = jnp.broadcast_to((np.arange(half + 1) % half == 0).reshape((1,) * len(batch) + (-1,)), real.shape)
    z, exponent = _over_largest(real, wide.select(ends, wide.filled(0.0, real.shape), imaginary))
    z = jax.tree.map(lambda part: part[:, :half], _folded(z, np.conj(_half_circle(n))))
    z, exponent = _divided(_conjugate(_transform(_conjugate(z))), exponent, n)
    found = wide.in_range(wide.normal(jax.tree.map(lambda a, b: jnp.stack([a, b], axis=-1), *z), exponent[..., None]))
    return jax.tree.map(lambda part: part.reshape(*batch, n), found)


def _check_length(n: int) -> None:
    if not (SHORTEST <= n <= LONGEST and n // (n & -n) in (1, 3)):
        raise ValueError(
            f"n is {n}: transforms of pairs have 2^k or 3 2^k points, from {SHORTEST} to {LONGEST}; choose one of these"
        )


def _over_largest(real: Wide, imaginary: Wide) -> tuple[ComplexPair, Array]:
    """Returns complex numbers (batch, n) over powers of two, so that no part is 2 or larger, and those (batch, 1)."""
    real, imaginary = (jax.tree.map(lambda part: part.reshape(-1, part.shape[-1]), x) for x in (real, imaginary))
    exponent = jnp.max(jnp.maximum(real.exponent, imaginary.exponent), axis=1, keepdims=True)
    return ComplexPair(wide.aligned(real, exponent), wide.aligned(imaginary, exponent)), exponent


def _numbers(z: ComplexPair, exponent: Array, shape: tuple[int, ...]) -> tuple[Wide, Wide]:
    found = (wide.in_range(wide.normal(part, exponent)) for part in z)
    real, imaginary = (jax.tree.map(lambda part: part.reshape(shape), x) for x in found)
    return real, imaginary


def _conjugate(z: ComplexPair) -> ComplexPair:
    return ComplexPair(z.real, pair.negative(z.imaginary))


def _divided(z: ComplexPair, exponent: Array, n: int) -> tuple[ComplexPair, Array]:
    """Returns z / n, as pairs with exponents."""
    if n % 3 == 0:
        third = jax.tree.map(lambda part: part.reshape(1, 1), pair.constant(1 / 3))
        z, n = ComplexPair(*(pair.multiply(part, third) for part in z)), n // 3
    return z, exponent - (n.bit_length() - 1)


def add(x: ComplexPair, y: ComplexPair) -> ComplexPair:
    """Returns x + y."""
    return ComplexPair(pair.add(x.real, y.real), pair.add(x.imaginary, y.imaginary))


def multiply(x: ComplexPair, y: ComplexPair) -> ComplexPair:
    """Returns x y."""
    real = pair.subtract(pair.multiply(x.real, y.real), pair.multiply(x.imaginary, y.imaginary))
    imaginary = pair.add(pair.multiply(x.real, y.imaginary), pair.multiply(x.imaginary, y.real))
    return ComplexPair(real, imaginary)


def _roots(index: np.ndarray, n: int) -> Complex128[np.ndarray, " ..."]:
    """Returns exp(-2 pi i index / n), each part right to 2^-50 of itself: functions are of an eighth of a turn."""
    quarters, rest = np.divmod(4 * (index % n) + n // 2, n)
    angle = 2 * np.pi * ((rest - n // 2) / (4 * n))
    cosine, sine = np.cos(angle), np.sin(angle)
    real = np.choose(quarters % 4, [cosine, -sine, -cosine, sine])
    return real - 1j * np.choose(quarters % 4, [sine, cosine, -sine, -cosine])


def _constants(values: Complex128[np.ndarray, " ..."]) -> ComplexPair:
    """Returns numbers of the host as pairs, each part right to 2^-49 of itself."""

    def split(part: np.ndarray) -> Pair:
        high = part.astype(np.float32)
        return Pair(jnp.asarray(high), jnp.asarray((part - high).astype(np.float32)))

    return ComplexPair(split(values.real), split(values.imag))


def _half_circle(n: int) -> Complex128[np.ndarray, " half"]:
    """Returns -i exp(-2 pi i k / n), k to n / 2."""
    return -1j * _roots(np.arange(n // 2 + 1), n)


def _folded(x: ComplexPair, factors: Complex128[np.ndarray, " half"]) -> ComplexPair:
    """Returns x + y + factors (x - y), y the conjugate of x (batch, half) from its end to its start."""
    y = _conjugate(jax.tree.map(lambda part: jnp.flip(part, 1), x))
    difference = add(x, jax.tree.map(jnp.negative, y))
    return add(add(x, y), multiply(difference, _constants(factors[None])))


def _transform(z: ComplexPair) -> ComplexPair:
    """Returns transforms of complex numbers (batch, n), n = r m^2."""
    batch, n = z.real.high.shape
    if n % 3 and n.bit_length() % 2:
        return _square(z)
    r = 2 if n % 3 else 3
    # Every r-th number from the first, from the second, and so on: transforms of their own, then one stage of r.
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


def _square(z: ComplexPair) -> ComplexPair:
    """Returns transforms of complex numbers (batch, m^2)."""
    batch, n = z.real.high.shape
    stages = n.bit_length() // 2
    m = 2**stages
    k = np.arange(m)
    reverse = sum((k >> bit & 1) << stages - 1 - bit for bit in range(stages))
    stage = np.arange(stages)[:, None]
    # Before stage s the upper s bits of an index are done: the factor is that of so many of 2^(s + 1) points.
    done = np.arange(m // 2) >> stages - 1 - stage
    of_stages = _constants(_roots(done << stages - 1 - stage, m)[..., None, None])
    between, ones = _constants(_roots(k[:, None] * k, n)[:, None]), _constants(np.ones((1, 1, 1), complex))
    width = batch * m
    lanes = math.gcd(width, LANES)

    def run(z: ComplexPair, factors: ComplexPair) -> tuple[ComplexPair, None]:
        z = jax.tree.map(lambda p: p.reshape(m // 2, 2, width // lanes, lanes), z)
        first, second = (jax.tree.map(lambda p, k=k: p[:, k], z) for k in (0, 1))
        second = multiply(second, factors)
        signs = np.array([1, -1], np.float32).reshape(2, 1, 1, 1)
        both = add(jax.tree.map(lambda p: p[None], first), jax.tree.map(lambda p: p[None] * signs, second))
        return jax.tree.map(lambda p: p.reshape(m, width // lanes, lanes), both), None

    def turn(k: Array, z: ComplexPair) -> ComplexPair:
        z, _ = lax.scan(run, jax.tree.map(lambda p: p[reverse].reshape(m, width // lanes, lanes), z), of_stages)
        factors = jax.tree.map(lambda p, q: jnp.where(k == 0, p, q), between, ones)
        z = multiply(jax.tree.map(lambda p: p.reshape(m, batch, m), z), factors)
        return jax.tree.map(lambda p: jnp.swapaxes(p, 0, 2), z)

    z = lax.fori_loop(0, 2, turn, jax.tree.map(lambda p: jnp.swapaxes(p.reshape(batch, m, m), 0, 1), z))
    # The second transposition was one too many.
    return jax.tree.map(lambda p: jnp.transpose(p, (1, 2, 0)).reshape(batch, n), z)
