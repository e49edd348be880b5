"""Sums of independent privacy losses: products of spectra, with their rounding errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from jaxacct.precision import UNIT_ROUNDOFF, first_index
from jaxacct.prv.lattice import LossLattice, normalize

TRANSFORM_ERROR = 12 * UNIT_ROUNDOFF
"""Error of one level of a fast Fourier transform, relative to the sum of the inputs' magnitudes.

Each of the log2(N) levels multiplies by exact factors of modulus 1 up to (1 + 4 sqrt 2) u < 7u for correctly rounded
twiddle factors (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Theorem 24.2, whose bound holds entry
by entry: every output reaches every input by one path). 12u in place of 7u covers the packing of a real transform and
twiddle factors wrong by one unit. A level of three, of 3 2^k points, multiplies likewise and then errs by five more
roundings of parts that sum to 1.37 times the input: 13u, and it counts as log2(3) levels.
"""

PRODUCT_ERROR = 4 * UNIT_ROUNDOFF
"""Relative error of a complex product: sqrt(5) u (Higham, Lemma 3.5), and the rounding of sums of them."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Spectrum:
    """Fourier transform of a lattice's weights, on the circle of ``points`` mesh points.

    Attributes:
        values (points // 2 + 1,): the transform; index 0 of the circle has the loss ``lattice.start``.
        uniform_error: bound on the error of each value.
        l2_error: bound on the L2 norm of the errors of all ``points`` values.
        lattice: what else is known of the measure, without weights.
        points: number of mesh points of the circle, static.
    """

    values: Complex[Array, " half"]
    uniform_error: Float[Array, ""]
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
    error = math.log2(n) * TRANSFORM_ERROR * jnp.sum(rest) + 4 * UNIT_ROUNDOFF
    start = lattice.start + index * lattice.mesh
    return Spectrum(
        values=turned[0] + jnp.fft.rfft(rest),
        uniform_error=error,
        l2_error=error * math.sqrt(n),
        points=n,
        lattice=replace(
            lattice,
            weights=lattice.weights[:0],
            start=start,
            # The weights sum to 1 up to n u; from here on the sum counts as 1.
            slack=lattice.slack * (1 + 4 * n * UNIT_ROUNDOFF),
            shift=lattice.shift + 4 * UNIT_ROUNDOFF * (jnp.abs(lattice.start) + jnp.abs(start)),
        ),
    )


def _norm(spectrum: Spectrum) -> Array:
    """Returns a bound on the L2 norm of all values, each conjugate pair being kept once."""
    values = spectrum.values
    return jnp.sqrt(2 * jnp.sum(values.real**2 + values.imag**2))


def multiply(first: Spectrum, second: Spectrum) -> Spectrum:
    """Returns the spectrum of the sum of two independent losses on meshes, orders and readings that agree.

    No value exceeds 1, for the weights are positive and sum to 1, so uniform errors add; in L2 each is multiplied by
    the norm of the other factor.

    Slack, in units of the product of the two masses. Upper: with T_a <= a + E_a and likewise b, T_a*T_b is below a*b +
    (a*E_b + E_a*b + E_a*E_b), of tilted mass (1+e_a)(1+e_b) - 1. Lower: a <= T_a + E_a gives a*b <= T_a*b + E_a*b <=
    T_a*T_b + T_a*E_b + E_a*b, where T_a's tilted mass is bounded by ``log_total``.
    """
    a, b = first.lattice, second.lattice
    values = first.values * second.values
    uniform = (first.uniform_error + second.uniform_error + PRODUCT_ERROR) * (1 + 4 * UNIT_ROUNDOFF)
    norms = _norm(first), _norm(second)
    size = math.sqrt(first.points)
    l2 = first.uniform_error * (norms[1] + PRODUCT_ERROR * size) + second.uniform_error * (
        norms[0] + first.uniform_error * size
    )
    mass_ratio = jnp.exp(a.log_total - a.log_mass)
    crossed = jnp.where(a.is_upper, a.slack + b.slack + a.slack * b.slack, a.slack + b.slack * mass_ratio)
    start = a.start + b.start
    return Spectrum(
        values=values,
        uniform_error=uniform,
        l2_error=l2 + PRODUCT_ERROR * jnp.minimum(norms[0], norms[1]),
        points=first.points,
        lattice=replace(
            a,
            log_mass=a.log_mass + b.log_mass,
            start=start,
            slack=crossed * (1 + 8 * UNIT_ROUNDOFF),
            shift=a.shift + b.shift + 2 * UNIT_ROUNDOFF * jnp.abs(start),
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
    when the mesh doubles.
    """
    lattice, n = spectrum.lattice, spectrum.points
    weights = jnp.fft.irfft(spectrum.values, n)
    # The truth is not negative, so this only takes the error down.
    weights = jnp.maximum(weights, 0.0)
    # In L1, at most sqrt(n) times the L2 norm; the inverse transform divides the latter by sqrt(n).
    inverse = math.sqrt(n) * math.log2(n) * TRANSFORM_ERROR * jnp.sqrt(jnp.sum(weights**2))
    start = lattice.start + offset * lattice.mesh
    turned = jnp.roll(weights, -jnp.mod(offset, n).astype(jnp.int32))
    return normalize(
        replace(
            lattice,
            weights=turned,
            start=start,
            slack=lattice.slack + (spectrum.l2_error + inverse + tail) * (1 + 4 * n * UNIT_ROUNDOFF),
            shift=lattice.shift + 4 * UNIT_ROUNDOFF * (jnp.abs(lattice.start) + jnp.abs(start)),
        )
    )
