"""Fourier transforms of pairs of float32, in block floating point: one loop whose body is one stage.

*Range.* The numbers of a transform are taken over one power of two, that of the largest. What is below 2^-126 of it is
off by as much, and so is what a device flushes to zero: all of it is below 2^-100 of the sum of the magnitudes.

*Order.* N = r m^2 points, r one of 1, 2, 3 and 6 and m a power of two. m^2 points are a square, row by row: transforms
of its columns, a factor for each entry and a transposition, twice, without factors the second time, leave it in natural
order. A column takes the numbers at a half of its length from one another and leaves results side by side, so that all
stages are the same but for their factors (Pease, 1968), and its order is reversed bit by bit in the end. It is never
along the last axis that numbers meet, so the lanes of a vector unit stay as they are. The factor r is taken by
transforms of every r-th number, as more of them side by side. A real transform is a complex one of half the length.

*Errors*, with u = 2^-24, relative to the modulus of an exact result of the operation. A sum of complex pairs errs by
3 u^2, whatever cancels, for both of its parts do. A product errs by 14 u^2 in each of its four, together at most
sqrt(2) 14 u^2 (the moduli of the two parts, summed from their terms' moduli, come to at most sqrt(2) of it), by 3 u^2
in the sums, and by 0.7 u^2 in the factor: 23.5 u^2. Products with 1 are exact, and with powers of two.

A stage of two is a sum and a product with a factor of modulus 1: 26.5 u^2 of each of its results. It is sqrt(2) times a
unitary map, so in L2 these errors add up, relative to the norm of what there is. As to single results, one is reached
from one input by one path, whose factors are of modulus 1: a stage adds 26.5 u^2 of the sum of the inputs' moduli
(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 24.1 and theorem 24.2). Of m^2 points the last
stage of either loop has no product but with 1; the factors in between take the first one's place.

The factors r are two products or one, and as many sums: 26.5 u^2 for 2; for 3, of which a, b, c are the parts, 23.5 u^2
(|b| + |c|) and two sums, 29.5 u^2 of the sum of moduli, and (23.5 sqrt(2) + 6) u^2 = 39.3 u^2 in L2: less than log2(3)
stages of two.

The real transform is E + w O with E and O half of the sum and difference of entries of the complex one: it errs by two
sums and a product, 29.5 u^2, and leaves L2 norms as a stage does. For single results, the complex one's entries have an
error each, which appear with moduli (1 + i w) / 2 and (1 - i w) / 2, together at most sqrt(2). So log2(n) levels come
to sqrt(2) (26.5 (log2(n) - 2) + 3) u^2 + 29.5 u^2 < 37.5 log2(n) u^2, backward as well but for the last product, with
1/n where n has a factor of 3, 14.5 u^2: all within 40 u^2 a level, from 128 points on, with terms of higher order.

Factors are constants of the program: for n real numbers, 16 n bytes, and 8 n more where r is 2; for 3 16 n, for 6 24 n.
"""

from __future__ import annotations

import numpy as np
from jax import lax
from jax import numpy as jnp
from jaxtyping import Array, Complex, Float64

from jaxacct.float_pairs import pair, wide
from jaxacct.float_pairs.pair import U, Pair, Single
from jaxacct.float_pairs.wide import Wide

TRANSFORM_ERROR = 2.5 * pair.ROUNDING
"""Error of one of log2(n) levels: of each result relative to the sum of the magnitudes, of all in L2 to the norm."""

SHORTEST, LONGEST = 128, 2**19
"""Numbers of points for which the above was counted."""


def fft(real: Wide, imaginary: Wide) -> tuple[Wide, Wide]:
    """Returns the transform of complex numbers (..., n), as real and imaginary parts."""
    n = _checked(real.shape[-1])
    x, exponent = _block(real, imaginary, n)
    return _numbers(_complex(x), exponent, real.shape)


def ifft(real: Wide, imaginary: Wide) -> tuple[Wide, Wide]:
    """Returns the inverse transform of complex numbers (..., n), as real and imaginary parts."""
    n = _checked(real.shape[-1])
    x, exponent = _block(real, imaginary, n)
    x, exponent = _divided(_conjugate(_complex(_conjugate(x))), exponent, n)
    return _numbers(x, exponent, real.shape)


def rfft(x: Wide) -> tuple[Wide, Wide]:
    """Returns the transform of real numbers (..., n), as real and imaginary parts (..., n // 2 + 1)."""
    batch, n = x.shape[:-1], _checked(x.shape[-1])
    paired = Wide(*(part.reshape(*batch, n // 2, 2) for part in x))
    z, exponent = _block(*(Wide(*(part[..., k] for part in paired)) for k in (0, 1)), n // 2)
    z = _complex(z)
    closed = Pair(*(jnp.concatenate([part, part[..., :1]], axis=-1) for part in z))
    return _numbers(_folded(closed, _half_turn(n)), exponent - 1, (*batch, n // 2 + 1))


def irfft(real: Wide, imaginary: Wide, n: int) -> Wide:
    """Returns the real numbers (..., n) of a transform (..., n // 2 + 1)."""
    batch, half = real.shape[:-1], _checked(n) // 2
    if real.shape[-1] != half + 1:
        raise ValueError(f"real has {real.shape[-1]} entries, which are not those of n = {n}: give n // 2 + 1")
    # As for every inverse real transform, the imaginary parts at both ends are taken to be 0.
    ends = np.zeros((1,) * len(batch) + (half + 1,), bool)
    ends[..., [0, -1]] = True
    imaginary = wide.select(jnp.broadcast_to(ends, imaginary.shape), wide.zeros(imaginary.shape), imaginary)
    x, exponent = _block(real, imaginary, half + 1)
    folded = _folded(x, np.conj(_half_turn(n)))
    z = _complex(_conjugate(Pair(*(part[..., :half] for part in folded))))
    z, exponent = _divided(_conjugate(z), exponent, n)
    found = Pair(*(jnp.moveaxis(part, 0, -1).reshape(*batch, n) for part in z))
    return wide.in_range(wide.normal(found, exponent.reshape(*batch, 1)))


def _checked(n: int) -> int:
    odd = n // (n & -n) if n > 0 else 0
    if odd not in (1, 3) or not SHORTEST <= n <= LONGEST:
        raise ValueError(
            f"n is {n}: transforms of pairs have 2^k or 3 2^k points, from {SHORTEST} to {LONGEST}; choose one of these"
        )
    return n


# Complex pairs: two arrays (2, batch, ...) of high and low parts, real parts first.


def _block(real: Wide, imaginary: Wide, n: int) -> tuple[Pair, Array]:
    """Returns the numbers (2, batch, n) over powers of two (batch, 1), so that none is 2 or larger."""
    both = Wide(*(jnp.stack([a.reshape(-1, n), b.reshape(-1, n)]) for a, b in zip(real, imaginary, strict=True)))
    exponent = jnp.max(both.exponent, axis=(0, 2))[:, None]
    return wide.aligned(both, exponent[None]), exponent


def _numbers(x: Pair, exponent: Array, shape: tuple[int, ...]) -> tuple[Wide, Wide]:
    found = wide.in_range(wide.normal(x, exponent[None]))
    real, imaginary = (Wide(*(part[k].reshape(shape) for part in found)) for k in (0, 1))
    return real, imaginary


def _signs(signs: tuple[int, int], rank: int, axis: int) -> Single:
    return jnp.asarray(signs, jnp.float32).reshape([2 if k == axis else 1 for k in range(rank)])


def _conjugate(x: Pair) -> Pair:
    return pair.scale(x, _signs((1, -1), x.high.ndim, 0))


def _divided(x: Pair, exponent: Array, n: int) -> tuple[Pair, Array]:
    """Returns x / n, as pairs with exponents."""
    if n % 3 == 0:
        third = Pair(*(jnp.full((1,) * x.high.ndim, part) for part in pair.constant(1 / 3)))
        x, n = pair.multiply(x, third), n // 3
    return x, exponent - (n.bit_length() - 1)


def _roots(index: np.ndarray, n: int) -> Complex[np.ndarray, " ..."]:
    """Returns exp(-2 pi i index / n), each part right to 2^-51 of itself: angles of at most an eighth of a turn."""
    index = np.asarray(index) % n
    quarter, rest = np.divmod(4 * index + n // 2, n)  # the nearest quarter turn
    angle = 2 * np.pi * ((rest - n // 2) / (4 * n))
    cosine, sine = np.cos(angle), np.sin(angle)
    real = np.choose(quarter % 4, [cosine, -sine, -cosine, sine])
    return real - 1j * np.choose(quarter % 4, [sine, cosine, -sine, -cosine])


def _constants(values: Complex[np.ndarray, " ..."]) -> Pair:
    """Returns complex numbers of the host (...) as pairs (2, ...), each part right to 2^-49 of itself."""
    parts: Float64[np.ndarray, " ..."] = np.stack([values.real, values.imag])
    high = parts.astype(np.float32)
    return Pair(jnp.asarray(high), jnp.asarray((parts - high).astype(np.float32)))


def _product(x: Pair, factors: Pair) -> Pair:
    """Returns products of complex numbers (2, ...): 23.5 u^2, with what the factors are off by."""
    turn = _signs((-1, 1), factors.high.ndim, 0)
    by_parts = Pair(*(jnp.stack([part, part[::-1] * turn]) for part in factors))
    found = pair.multiply(Pair(*(part[:, None] for part in x)), by_parts)
    return pair.add(Pair(*(part[0] for part in found)), Pair(*(part[1] for part in found)))


def _half_turn(n: int) -> Complex[np.ndarray, " half"]:
    """Returns -i exp(-2 pi i k / n), k to n / 2."""
    return -1j * _roots(np.arange(n // 2 + 1), n)


def _folded(x: Pair, factors: Complex[np.ndarray, " half"]) -> Pair:
    """Returns x + y + factors (x - y), y the conjugate of x (2, batch, half) from its end to its start."""
    y = _conjugate(Pair(*(jnp.flip(part, -1) for part in x)))
    signs = _signs((1, -1), 4, 0)
    both = pair.add(Pair(*(part[None] for part in x)), Pair(*(part[None] * signs for part in y)))
    constants = Pair(*(part[:, None] for part in _constants(factors)))
    return pair.add(Pair(*(part[0] for part in both)), _product(Pair(*(part[1] for part in both)), constants))


def _complex(x: Pair) -> Pair:
    """Returns transforms of complex numbers (2, batch, n), n = r m^2."""
    _, batch, n = x.high.shape
    if n % 3 and n.bit_length() % 2:
        return _square(x)
    r = 2 if n % 3 else 3
    # Every r-th number from the first, from the second, and so on: transforms of their own, then one stage of r.
    parts = _complex(Pair(*(jnp.moveaxis(p.reshape(2, batch, n // r, r), 3, 1).reshape(2, -1, n // r) for p in x)))
    parts = Pair(*(p.reshape(2, r, batch, 1, n // r) for p in parts))
    index = np.arange(1, r)[:, None] * np.arange(n)
    factors = _constants(_roots(index, n).reshape(r - 1, 1, r, n // r))
    products = _product(Pair(*(p[:, 1:] for p in parts)), factors)
    total = Pair(*(p[:, r - 2] for p in products))
    if r == 3:
        total = pair.add(Pair(*(p[:, 0] for p in products)), total)
    total = pair.add(Pair(*(jnp.broadcast_to(p[:, 0], total.high.shape) for p in parts)), total)
    return Pair(*(p.reshape(2, batch, n) for p in total))


def _square(x: Pair) -> Pair:
    """Returns transforms of complex numbers (2, batch, m^2)."""
    _, batch, n = x.high.shape
    stages = n.bit_length() // 2
    m = 2**stages
    column = np.arange(m)
    pairs, stage = np.arange(m // 2), np.arange(stages)[:, None]
    lower = _roots(pairs >> stage << stage, m)
    # (stages, 2, m / 2, 2, 1, 1)
    of_stages = Pair(*(jnp.moveaxis(p, 0, 1)[..., None, None] for p in _constants(np.stack([lower**0, lower], -1))))
    between = Pair(*(p.reshape(2, m, 1, m) for p in _constants(_roots(column[:, None] * column, n))))
    one = Pair(*(p.reshape(2, 1, 1, 1) for p in _constants(np.ones(1, complex))))
    reverse = np.zeros(m, int)
    for bit in range(stages):
        reverse = 2 * reverse + (column >> bit & 1)

    def run(x: Pair, factors: Pair) -> tuple[Pair, None]:
        a, b = (Pair(*(p.reshape(2, 2, m // 2, 1, batch, m)[:, k] for p in x)) for k in (0, 1))
        both = pair.add(a, pair.scale(b, _signs((1, -1), 5, 2)))
        return Pair(*(p.reshape(2, m, batch, m) for p in _product(both, factors))), None

    def turn(k: Array, x: Pair) -> Pair:
        x, _ = lax.scan(run, x, of_stages)
        factors = Pair(*(jnp.where(k == 0, p, q) for p, q in zip(between, one, strict=True)))
        x = _product(Pair(*(p[:, reverse] for p in x)), factors)
        return Pair(*(jnp.swapaxes(p, 1, 3) for p in x))

    x = lax.fori_loop(0, 2, turn, Pair(*(jnp.swapaxes(p.reshape(2, batch, m, m), 1, 2) for p in x)))
    # The second transposition is one too many for the order; undone on the way out.
    return Pair(*(jnp.transpose(p, (0, 2, 3, 1)).reshape(2, batch, n) for p in x))
