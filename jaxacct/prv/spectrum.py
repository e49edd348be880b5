"""Sums of independent privacy losses: products of spectra, with their rounding errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from jaxacct.arithmetic import FLOAT64, PAIR, arithmetic, roundoff
from jaxacct.float_pairs import transform as of_pairs
from jaxacct.precision import first_index
from jaxacct.prv.lattice import LossLattice, normalize
from jaxacct.pytrees import register_dataclass

TRANSFORM_ERROR = 12 * FLOAT64.roundoff
"""What :func:`transform_error` is for float64: on the host."""

PRODUCT = 4
"""Units of roundoff by which a complex product errs, relative to its modulus.

Parts ac - bd and ad + bc err by at most 2u (|ac| + |bd|) and 2u (|ad| + |bc|), however they are rounded; each sum is at
most the product of the moduli (Cauchy and Schwarz), so the product errs by 2 sqrt(2) u of it. The rest is for the
rounding of sums of such errors.
"""


def transform_error() -> float:
    """Returns the error of one level of a fast Fourier transform, relative to the sum of the inputs' magnitudes.

    Each of the log2(N) levels multiplies by exact factors of modulus 1 up to (1 + 4 sqrt 2) u < 7u for correctly
    rounded twiddle factors (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Theorem 24.2, whose bound
    holds entry by entry: every output reaches every input by one path). 12u in place of 7u covers the packing of a real
    transform and twiddle factors wrong by one unit. A level of three, of 3 2^k points, multiplies likewise and then
    errs by five more roundings of parts that sum to 1.37 times the input: 13u, and it counts as log2(3) levels.
    Pairs have a transform of their own (:mod:`jaxacct.float_pairs.transform`).
    """
    return of_pairs.TRANSFORM_ERROR if arithmetic() == PAIR else 12 * roundoff()


@register_dataclass
@dataclass(frozen=True)
class Spectrum:
    """Fourier transform of a lattice's weights, on the circle of ``points`` mesh points.

    Attributes:
        values (points // 2 + 1,): the transform; index 0 of the circle has the loss ``lattice.start``.
        uniform_error: bound on the error of each value.
        modulus: bound on the modulus of each exact value: the sum of the weights, which are not negative.
        l2_error: bound on the L2 norm of the errors of all ``points`` values.
        lattice: what else is known of the measure, without weights.
        points: number of mesh points of the circle, static.
    """

    values: Complex[Array, " half"]
    uniform_error: Float[Array, ""]
    modulus: Float[Array, ""]
    l2_error: Float[Array, ""]
    lattice: LossLattice
    points: int = field(metadata={"static": True})


def heaviest(lattices: LossLattice) -> Array:
    """Returns the index of the largest weight of the first of several lattices (rows, n) that are alike."""
    weights = lattices.weights[0]
    return first_index(weights >= jnp.max(weights))


def transform(lattice: LossLattice, index: Array) -> Spectrum:
    """Returns the spectrum of a lattice on the circle that begins at the mesh point ``index``.

    The weight there is not transformed: it adds itself to every value. With a small sampling rate the heaviest is
    almost everything, and then rounds once and not log2(N) times.
    """
    n = lattice.points
    turned = jnp.roll(lattice.weights, -index)
    rest = turned.at[0].set(0.0)
    error = (math.log2(n) * transform_error() * jnp.sum(rest) + 4 * roundoff()) * (1 + n * roundoff())
    start = lattice.start + index * lattice.mesh
    return Spectrum(
        values=turned[0] + jnp.fft.rfft(rest),
        uniform_error=error,
        # A sum of n terms rounds n - 1 times.
        modulus=jnp.sum(turned) * (1 + n * roundoff()),
        l2_error=error * math.sqrt(n),
        points=n,
        lattice=replace(
            lattice,
            weights=lattice.weights[:0],
            start=start,
            shift=lattice.shift + 4 * roundoff() * (jnp.abs(lattice.start) + jnp.abs(start)),
        ),
    )


def _norm(spectrum: Spectrum) -> Array:
    """Returns a bound on the L2 norm of all values as computed, each conjugate pair being kept once."""
    values = spectrum.values
    rounding = 1 + spectrum.points * roundoff()
    return jnp.sqrt(2 * jnp.sum(values.real**2 + values.imag**2)) * rounding


def multiply(first: Spectrum, second: Spectrum) -> Spectrum:
    """Returns the spectrum of the sum of two independent losses on meshes, orders and readings that agree.

    Errors. With A, B exact, |A| <= m_a, and d_a, d_b the errors, at most e_a, e_b, the product of what was computed is
    off by A d_b + d_a B + d_a d_b: by m_a e_b + e_a m_b + e_a e_b in each value, and by (m_a + e_a) (m_b + e_b) times
    PRODUCT roundings once it is rounded. In L2 d_a B' + A d_b, B' as computed, with |A|_2 <= |A'|_2 + sqrt(n) e_a.

    Slack, in units of the product of the two masses. Upper: with T_a <= a + E_a and likewise b, T_a*T_b is below a*b +
    (a*E_b + E_a*b + E_a*E_b), of tilted mass m_a s_b + s_a m_b + s_a s_b. Lower: a <= T_a + E_a gives a*b <= T_a*b +
    E_a*b <= T_a*T_b + T_a*E_b + E_a*b, where T_a's tilted mass is bounded by ``log_total``.
    """
    a, b = first.lattice, second.lattice
    values = first.values * second.values
    (e_a, m_a), (e_b, m_b) = (first.uniform_error, first.modulus), (second.uniform_error, second.modulus)
    up, product_error = 1 + 8 * roundoff(), PRODUCT * roundoff()
    uniform = (m_a * e_b + e_a * m_b + e_a * e_b + product_error * (m_a + e_a) * (m_b + e_b)) * up
    norms = _norm(first), _norm(second)
    rounded = product_error * jnp.minimum(norms[0] * (m_b + e_b), (m_a + e_a) * norms[1])
    l2 = e_a * norms[1] + e_b * (norms[0] + math.sqrt(first.points) * e_a) + rounded
    # log_total and log_mass are sums, each off by some units of itself; see evaluate.LOG_MASS_ROUNDINGS.
    apart = a.log_total - a.log_mass + 512 * roundoff() * (jnp.abs(a.log_total) + jnp.abs(a.log_mass))
    crossed = jnp.where(
        a.is_upper, m_a * b.slack + a.slack * m_b + a.slack * b.slack, a.slack * m_b + b.slack * jnp.exp(apart)
    )
    start = a.start + b.start
    return Spectrum(
        values=values,
        uniform_error=uniform,
        modulus=m_a * m_b * up,
        l2_error=l2 * up,
        points=first.points,
        lattice=replace(
            a,
            log_mass=a.log_mass + b.log_mass,
            start=start,
            slack=crossed * up,
            shift=a.shift + b.shift + 2 * roundoff() * jnp.abs(start),
            log_total=a.log_total + b.log_total,
        ),
    )


def offset_to(low: Array, lattice: LossLattice) -> Array:
    """Returns the even number of mesh points from the start of a lattice to about ``low``."""
    return 2 * jnp.floor((low - lattice.start) / (2 * lattice.mesh))


def invert(spectrum: Spectrum, offset: Array, tail: Array) -> LossLattice:
    """Returns the lattice of a spectrum on the window that begins ``offset`` mesh points above the circle's index 0.

    What lies outside the window appears inside it, a window's length off. At most ``tail`` of the tilted mass does: it
    is slack of an upper lattice for what is missing, and of a lower one for what is there too much.

    The window begins an even number of points after the circle's index 0, where the largest weight was: it then stays
    when the mesh doubles. It is a whole number, so its remainder is taken of integers: of floats it need not be exact.
    """
    lattice, n = spectrum.lattice, spectrum.points
    weights = jnp.fft.irfft(spectrum.values, n)
    # In L1, at most sqrt(n) times the L2 norm; the inverse transform divides the latter by sqrt(n). Its own error is
    # relative to the norm of what it should give, which is that of what it gives but for the error.
    levels = math.log2(n) * transform_error()
    inverse = math.sqrt(n) * levels / (1 - levels) * jnp.sqrt(jnp.sum(weights**2))
    # The truth is not negative, so this only takes the error down.
    weights = jnp.maximum(weights, 0.0)
    start = lattice.start + offset * lattice.mesh
    turned = jnp.roll(weights, -jnp.mod(offset.astype(jnp.int64), n).astype(jnp.int32))
    tail = jnp.where(jnp.abs(offset) < 2.0**62, tail, jnp.inf)
    return normalize(
        replace(
            lattice,
            weights=turned,
            start=start,
            slack=lattice.slack + (spectrum.l2_error + inverse + tail) * (1 + 4 * n * roundoff()),
            shift=lattice.shift + 4 * roundoff() * (jnp.abs(lattice.start) + jnp.abs(start)),
        )
    )
