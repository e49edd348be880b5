"""e^(ix) - 1 to a few units of roundoff, and of the angle, as fast as a CPU allows."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import with_pair_form

TURN = (6.28318530693650245666, 2.43084020252158637e-10, 8.08906498518380252e-21)
"""2 pi in three parts of 33 bits, so that in float64 the first two times a whole number below 2^20 are exact."""

QUARTERS = (
    1.0,
    -0.16666666666666666,
    0.008333333333330946,
    -0.0001984126983675497,
    2.755731610068312e-06,
    -2.5051131455447428e-08,
    1.591810123167728e-10,
)
"""Of sin(r)/r in powers of r^2, from Chebyshev's points of [0, (pi/4)^2]: there 2e-17 of it off at most, the rounding
of the coefficients counted (compared at 1,500 points in 50 digits)."""


@with_pair_form
def turned(angle: Array) -> tuple[Array, Array]:
    """Returns cos - 1 and sin, the first without cancellation, of angles below 2^52: XLA's take a CPU ten times longer.

    In float64 they err by five units of roundoff of the angle (tests/saddlepoint/test_tiles.py). With h a quarter
    of what is left of it after whole turns, and s = sin h, one series, the sine of 2h is 2 s sqrt(1 - s^2), its cosine
    1 - 2 s^2, and so once more: nothing cancels, for |h| <= pi/4. Where the products of turns round, as they do beyond
    6 10^6, they move the angle by two units of itself, and the differences by three at most.
    """
    turns = jnp.round(angle * (0.5 / math.pi))
    h = (((angle - turns * TURN[0]) - turns * TURN[1]) - turns * TURN[2]) * 0.25
    square = h * h
    value = QUARTERS[-1] * square
    for c in QUARTERS[-2:0:-1]:
        value = (value + c) * square
    sine = h + h * value
    square = sine * sine
    rest = 1 - square
    double = 2 * sine * jnp.sqrt(jnp.abs(rest))
    return -2 * double * double, 2 * double * (rest - square)


HALF_PI = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
"""pi/2 in three parts of 33 bits, so that in float64 the first two times a whole number below 2^20 are exact."""

SINES = [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(8)]
COSINES = [(-1.0) ** n / math.factorial(2 * n) for n in range(9)]
"""Taylor series; for |x| <= pi/4 the first terms left out are 5e-17 and 2e-18."""


@with_pair_form
def sine_and_cosine(x: Array) -> tuple[Array, Array]:
    """Returns sin and cos for |x| < 10^6, to two units of roundoff: XLA's float64 ones take a CPU ten times longer.

    Where the products round, as they do beyond 10^6, they move the argument, beyond pi/4, by two units of itself, and
    the differences by three at most: that is as if the angle had been rounded five times more. Up to pi/4 nothing is
    subtracted. It holds up to 2^52, where what is left of a turn may be off by 2.5, and the series are by 2.
    """
    turns = jnp.round(x * (2 / math.pi))
    r = ((x - turns * HALF_PI[0]) - turns * HALF_PI[1]) - turns * HALF_PI[2]
    square = r * r

    def series(coefficients: list[float]) -> Array:
        value = coefficients[-1] * square
        for c in coefficients[-2:0:-1]:
            value = (value + c) * square
        return value + coefficients[0]

    sine, cosine = r * series(SINES), series(COSINES)
    pairs = jnp.floor(turns / 2)
    is_odd, sign = turns - 2 * pairs > 0.5, 1 - 2 * (pairs - 2 * jnp.floor(pairs / 2))
    return sign * jnp.where(is_odd, cosine, sine), sign * jnp.where(is_odd, -sine, cosine)
