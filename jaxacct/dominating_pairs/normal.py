"""Functions that laws and meshes of normal noise rest on, each with a bound on its rounding: sines, cosines and tails.

1. :func:`turned`: e^(ix) - 1 without cancellation, and :func:`sine_and_cosine`, both as fast as a CPU allows;
2. :func:`normal_cells`, :func:`lower_tail`: masses and tails of normal distributions.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array

from jaxacct.numerics.arithmetic import roundoff, with_pair_form

# ----------------------------------------------------------------------------------------------------
# Sines and cosines of angles, to a few units of roundoff and of the angle.
# ----------------------------------------------------------------------------------------------------

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
"""Coefficients of sin(r)/r in powers of r^2, interpolated at Chebyshev's points of [0, (pi/4)^2].

There they are off by 2e-17 of it at most, the rounding of the coefficients counted (compared at 1,500 points in 50
digits).
"""


@with_pair_form
def turned(angle: Array) -> tuple[Array, Array]:
    """Returns cos - 1 and sin, the first without cancellation, of angles below 2^52: XLA's take a CPU ten times longer.

    In float64 they err by five units of roundoff of the angle (tests/saddlepoint/test_tiles.py). Let h be a quarter of
    what is left of the angle after whole turns, and s = sin h, which is one series. The sine of 2h is 2 s sqrt(1 - s^2)
    and its cosine 1 - 2 s^2, and doubling h once more gives the angle: nothing cancels, for |h| <= pi/4. Where the
    products of turns round, as they do beyond 6 10^6, they move the angle by two units of itself, and the differences
    by three at most.
    """
    turns = jnp.round(angle * (0.5 / math.pi))
    h = (((angle - turns * TURN[0]) - turns * TURN[1]) - turns * TURN[2]) * 0.25
    square = h * h
    # Horner's scheme for sin(h)/h - 1, which is small: added to h last, its rounding hardly counts.
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
"""Coefficients of the Taylor series of sin(x)/x in x^2; for |x| <= pi/4 the first term left out is 5e-17."""

COSINES = [(-1.0) ** n / math.factorial(2 * n) for n in range(9)]
"""Coefficients of the Taylor series of cos(x) in x^2; for |x| <= pi/4 the first term left out is 2e-18."""


@with_pair_form
def sine_and_cosine(x: Array) -> tuple[Array, Array]:
    """Returns sin and cos for |x| < 10^6, to two units of roundoff: XLA's float64 ones take a CPU ten times longer.

    Where the products round, as they do beyond 10^6, they move the argument, beyond pi/4, by two units of itself, and
    the differences by three at most, as if the angle had been rounded five times more. Up to pi/4 nothing is
    subtracted. This holds up to 2^52, where what is left of a turn may be off by 2.5, and the series are by 2.
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
    # An odd number of quarter turns swaps sine and cosine; every half turn changes the sign.
    pairs = jnp.floor(turns / 2)
    is_odd, sign = turns - 2 * pairs > 0.5, 1 - 2 * (pairs - 2 * jnp.floor(pairs / 2))
    return sign * jnp.where(is_odd, cosine, sine), sign * jnp.where(is_odd, -sine, cosine)


# ----------------------------------------------------------------------------------------------------
# Masses and tails of normal distributions, with bounds on their rounding.
#
# An accountant of many steps raises a mesh's masses to high powers, and every cell's error counts. So a narrow cell's
# mass is a product, right relative to itself, and only a wide cell's is a difference of tails.
# ----------------------------------------------------------------------------------------------------


def normal_cells(x: Array, center: Array, scale: Array) -> tuple[Array, Array]:
    """Returns the masses that N(center, scale^2) gives the cells between the monotone points x, with error bounds.

    A narrow cell's mass comes from the density at its middle, right to a few ulps: x[i+1] - x[i] rounds relative to
    itself, and the series in the width stops below 2e-16 relative. The middle is formed from the two ends' distances
    from the centre, each of which rounds relative to itself; formed from the ends' sum it would be off by units of
    |center| / scale, however near the centre it lies. A wide cell's mass is the difference of the tails on its own
    side, right to a few ulps of the tail. With differences alone the error of a mesh of n points would be n times
    larger, and tell after 10^6 compositions.
    """
    z = (x - center) / scale
    width = jnp.abs(x[..., 1:] - x[..., :-1]) / scale
    mass, error = _narrow_cell((z[..., 1:] + z[..., :-1]) / 2, width)
    wide, wide_error = _wide_cells(jnp.clip(z, -40.0, 40.0))
    # The series holds for narrow cells; an infinite end makes a cell a wide one.
    is_narrow = width * (1 + jnp.abs(z[..., 1:] + z[..., :-1]) / 2) < 0.1
    return jnp.where(is_narrow, mass, wide), jnp.where(is_narrow, error, wide_error)


def _wide_cells(z: Array) -> tuple[Array, Array]:
    """Returns the masses between the points, in standard deviations, by differences of tails."""
    tail = lower_tail(-jnp.abs(z))
    # The rounding of z, 2u of itself, moves the tail by a relative 2u |z| (|z| + 1) <= 3 (1 + z^2) u, for the density
    # is at most |z| + 1 times it; ndtr errs by 8 (1 + z^2) u (:data:`jaxacct.numerics.elementary.ASSUMED`).
    error = 12 * roundoff() * (1 + z**2) * tail
    # A cell about the centre holds all but the two tails.
    is_right = z > 0
    step = jnp.where(is_right, -tail, tail)
    step = jnp.abs(step[..., 1:] - step[..., :-1])
    mass = jnp.where(is_right[..., 1:] != is_right[..., :-1], 1.0 - step, step)
    return mass, error[..., 1:] + error[..., :-1] + 2 * roundoff() * mass


@with_pair_form
def lower_tail(z: Array) -> Array:
    """Returns Phi(z) for z <= 0, right to 8 (1 + z^2) units of roundoff (:data:`.elementary.ASSUMED`)."""
    return ndtr(z)


def _narrow_cell(middle: Array, width: Array) -> tuple[Array, Array]:
    """Returns the normal mass of [middle - width/2, middle + width/2] where width (1 + |middle|) < 0.1.

    The mass is phi(m) w (1 + He2(m) w^2/24 + He4(m) w^4/1920 + He6(m) w^6/322560), He the Hermite polynomials; the next
    term is below (w (1 + |m|))^8 / 9 10^7 < 2e-16, 2u. The ends round by 2u of themselves and m by u: by 3u (|m| +
    0.05), and the density by |m| times that and by u m^2 / 2 more. exp errs by 4u, the width by 2u, the products by 4u.
    """
    m = jnp.where(jnp.isfinite(middle), middle, 0.0)
    w = jnp.where(jnp.isfinite(width), width, 0.0)
    m2, w2 = m**2, w**2
    he2, he4, he6 = m2 - 1, (m2 - 6) * m2 + 3, ((m2 - 15) * m2 + 45) * m2 - 15
    series = 1 + w2 * (he2 / 24 + w2 * (he4 / 1920 + w2 * he6 / 322560))
    mass = jnp.exp(-0.5 * m2) * (w * series * (1 / math.sqrt(2 * math.pi)))
    return mass, roundoff() * (24 + 8 * m2) * mass
