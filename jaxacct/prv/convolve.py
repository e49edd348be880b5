"""Sums of independent privacy losses: FFT convolution with its rounding error."""

from __future__ import annotations

import math
from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxacct.precision import UNIT_ROUNDOFF
from jaxacct.prv.lattice import LossLattice


def fft_error(size: int, first: Array, second: Array, result: Array) -> Array:
    """Returns a bound on the L1 error of a computed cyclic convolution of two vectors of L1 norm at most 1.

    One transform of length N errs in L2 by at most log2(N) eta relative, eta = (1 + 4 sqrt 2) u + O(u^2) < 7u for
    correctly rounded twiddle factors (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Theorem 24.2).
    Of A = F a and B = F b, |A|_2 = sqrt N |a|_2 and |B|_inf <= |b|_1 <= 1, so the product errs by at most sqrt N
    log2(N) eta (|a|_2 + |b|_2) plus its own rounding, and the inverse transform divides by sqrt N and adds log2(N) eta
    |a*b|_2. The L1 norm is at most sqrt N times the L2 norm. 12u in place of 7u covers the product, the packing of
    a real transform, and twiddle factors wrong by one unit.

    ``size`` is N, a power of two; ``first``, ``second`` and ``result`` are the L2 norms of a, b and a*b.
    """
    return math.sqrt(size) * math.log2(size) * 12 * UNIT_ROUNDOFF * (first + second + result)


def convolve(first: LossLattice, second: LossLattice) -> tuple[LossLattice, Array]:
    """Returns the lattice of the sum of two independent losses, with twice the points, and its FFT error alone.

    Both must have the same mesh, order, number of points and reading; their starts are free.

    Slack, in units of the product of the two masses. Upper: with T_a <= a + E_a and likewise b, T_a*T_b is below a*b +
    (a*E_b + E_a*b + E_a*E_b), of tilted mass (1+e_a)(1+e_b) - 1. Lower: a <= T_a + E_a gives a*b <= T_a*b + E_a*b <=
    T_a*T_b + T_a*E_b + E_a*b, where T_a's tilted mass is bounded by ``log_total``.
    """
    n = first.points
    a, b = first.weights, second.weights
    product = jnp.fft.irfft(jnp.fft.rfft(a, 2 * n) * jnp.fft.rfft(b, 2 * n), 2 * n)
    # The last point is zero in exact arithmetic; so is whatever came out negative, or less than it.
    product = jnp.maximum(product, 0.0).at[-1].set(0.0)
    rounding = fft_error(2 * n, _norm(a), _norm(b), _norm(product))
    mass_ratio = jnp.exp(first.log_total - first.log_mass)
    crossed = jnp.where(
        first.is_upper,
        first.slack + second.slack + first.slack * second.slack,
        first.slack + second.slack * mass_ratio,
    )
    start = first.start + second.start
    lattice = replace(
        first,
        weights=product,
        log_mass=first.log_mass + second.log_mass,
        start=start,
        # The weights sum to 1 up to n u.
        slack=(crossed + rounding) * (1 + 4 * n * UNIT_ROUNDOFF),
        shift=first.shift + second.shift + 2 * UNIT_ROUNDOFF * jnp.abs(start),
        log_total=first.log_total + second.log_total,
    )
    return lattice, rounding


def _norm(values: Float[Array, " n"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(values**2))
