"""Amplification by iteration: what hidden iterations with contractive updates cost, for given shifts and noise.

Two processes X_t = psi_t(X_{t-1}) + Z_t and X'_t = psi'_t(X'_{t-1}) + Z'_t with all psi 1-Lipschitz, Z_t and Z'_t ~
N(0, s_t^2 I), the same start, and sup |psi_t - psi'_t| <= c_t. Choose a_t >= 0 whose partial sums stay at or below
those of c and end at the same total. Then the last iterates are at most as far apart as N(0, 1) and N(mu, 1),

    mu^2 = sum of a_t^2 / s_t^2,

in trade-off functions (Bok, Su and Altschuler 2024), hence in hockey-stick and in Rényi divergence, alpha mu^2 / 2; the
last is Theorem 22 of Feldman et al. (2018).

*Proof idea.* With the noise of X, let Y_0 = X_0 and Y_t = psi'_t(Y_{t-1}) + v_t + Z_t, where v_t points from
psi'_t(Y_{t-1}) to psi_t(X_{t-1}) and covers as much of the way as a_t allows. The distance |X_t - Y_t| <= c_1 + ... +
c_t - (a_1 + ... + a_t) by the Lipschitz property, so it ends at 0 and Y_T = X_T. Given the past, Y_t is
N(psi'_t(Y_{t-1}) + v, s_t^2) averaged over v of norm at most a_t, against N(psi'_t(Y'), s_t^2): a Gaussian mechanism of
ratio a_t / s_t. Adaptive composition over t adds the squares.

*The best a.* Over v_t = s_1^2 + ... + s_t^2 the partial sums of a form a path from 0 to the total, below the points of
c's; the path of least energy is their greatest convex minorant, and its slopes are the isotonic regression of c_t /
s_t^2 with weights s_t^2, which has a closed form in minima and maxima of averages.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.arithmetic import roundoff
from jaxacct.convert.orders import Orders, checked_orders
from jaxacct.iteration.contraction import as_array, check_not_negative, kernel
from jaxacct.precision import in_float64


def amplified_mu(shifts: Float[ArrayLike, " steps"] | Sequence[float], noise: ArrayLike) -> Float[Array, ""]:
    """Returns the mu of N(mu, 1) against N(0, 1) that bounds a contractive noisy iteration's last iterate, rounded up.

    Args:
        shifts (T,): bounds on sup |psi_t(w) - psi'_t(w)|, at least 0; 0 where an iteration is the same on both data
            sets. For a distance of the starting points prepend it to the first.
        noise (T,): standard deviation of each iteration's Gaussian noise in each coordinate, above 0, or () for all.

    Returns float64 (). Memory grows as T^2.

    Formal guarantee: with every update 1-Lipschitz (a gradient step on a convex, beta-smooth loss with a learning rate
    of at most 2/beta; a projection onto a convex set) the last iterate is mu-GDP, ``theta(eps, mu)`` bounds its delta
    and ``alpha mu^2 / 2`` its Rényi divergence. Earlier iterates must stay hidden. Rounding is included. ``inf`` where
    a traced value is out of range.

    Raises ValueError where a concrete argument is out of range or the shapes do not match.

    Source: Bok, Su and Altschuler (2024), "Shifted interpolation for differential privacy", arXiv:2403.00278; in Rényi
    divergence Feldman, Mironov, Talwar and Thakurta (2018), "Privacy amplification by iteration", Theorem 22. The proof
    and the choice of the a_t are in this module's comment.

    >>> amplified_mu([1.0, 0.0, 0.0, 0.0], noise=2.0).round(6).tolist()  # 1 / (2 sqrt(4))
    0.25
    """
    shifts, noise = as_array(shifts), as_array(noise)
    check_not_negative(shifts, "shifts", "bounds on how far the two updates can be apart")
    validation.check_positive(noise, "noise")
    if np.ndim(shifts) != 1 or np.ndim(noise) > 1 or np.shape(noise) not in ((), np.shape(shifts)):
        raise ValueError(
            f"shifts of shape {np.shape(shifts)} and noise of shape {np.shape(noise)} do not match: give one shift for "
            "each iteration, and one standard deviation for each or one for all."
        )
    return _amplified_mu(shifts, noise)


@in_float64
def amplified_rdp(
    orders: Orders, shifts: Float[ArrayLike, " steps"] | Sequence[float], noise: ArrayLike
) -> Float[Array, " orders"]:
    """Returns the Rényi divergence of a contractive noisy iteration's last iterate at each order, rounded up.

    Arguments, guarantee, errors and source are those of :func:`amplified_mu`; ``orders`` (orders,) are above 1, and a
    traced one that is not gives ``inf``.

    >>> amplified_rdp([2.0, 8.0], shifts=[1.0, 0.0], noise=1.0).round(6).tolist()
    [0.5, 2.0]
    """
    orders = checked_orders(orders)
    mu = amplified_mu(shifts, noise)
    return _rdp_of_mu(orders, mu)


@kernel
def _amplified_mu(shifts: Array, noise: Array) -> Array:
    count = shifts.shape[0]
    ordered = jnp.arange(count)[:, None] <= jnp.arange(count)[None, :]

    def sums_from_each_to_each(terms: Array) -> Array:
        # Not differences of partial sums, in which a small term behind large ones would vanish.
        return jnp.cumsum(jnp.where(ordered, terms[None, :], 0.0), axis=1)

    variance = noise**2
    averages = jnp.where(ordered, sums_from_each_to_each(shifts) / sums_from_each_to_each(variance), jnp.inf)
    least_after = jax.lax.cummin(averages, axis=1, reverse=True)
    slopes = jnp.max(jnp.where(ordered, least_after, 0.0), axis=0)
    # A sum of T positive terms errs by a relative T u; three of them count, and a few single operations.
    mu = jnp.sqrt(jnp.sum(slopes**2 * variance)) * (1 + roundoff() * (4 * count + 64))
    valid = jnp.all((shifts >= 0) & (noise > 0) & (noise < jnp.inf))
    return jnp.where(valid & (mu >= 0), mu, jnp.inf)


@kernel
def _rdp_of_mu(orders: Array, mu: Array) -> Array:
    return jnp.where(orders > 1, orders * mu**2 / 2 * (1 + 8 * roundoff()), jnp.inf)
