"""Gaussian differential privacy: a certified mu of a composition with its regret, and the central-limit estimate of mu.

G_mu is the trade-off function of N(0, 1) against N(mu, 1); its delta, epsilon and mu are converted into one another by
:mod:`jaxacct.convert.one_parameter`.

*Certified.* :func:`certified_mu` gives the least mu that is proved to have G_mu below the composition's trade-off
function, and how far below (the regret). The privacy profile is bounded at a grid of epsilons, and :func:`summarize`
proves both from these finitely many deltas. Outside a trace the grid is refined where the proof is worst, until both
gaps are small. Gomez, Kulynych et al. (2025); Kaissis et al. (2024).

*Estimated.* :func:`mu`, :func:`epsilon`, :func:`delta` and :func:`clt_error` come from the first moments of the privacy
loss (:class:`Functionals`): sums of many losses are nearly normal. Nothing of these is a bound.

In reading order: the choice of the grid and its refinement; the statement, its proof and the arithmetic of it, from
:class:`GaussianSummary` on; the moments; the central-limit estimates.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.bounds import Bounds, enclose
from jaxacct.composition import check, directed_parts
from jaxacct.convert.one_parameter import gaussian_delta, gaussian_epsilon, gaussian_mu
from jaxacct.mechanisms import Gaussian, GaussianWithoutReplacement, PoissonSubsampledGaussian
from jaxacct.mechanisms.discrete_gaussian import DiscreteGaussianPair
from jaxacct.mechanisms.finite import FinitePair
from jaxacct.mechanisms.fixed_batches import SHIFT
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Mechanisms, Relation, Steps, parts_of
from jaxacct.mechanisms.normal import delta_bounds, quantile, solve_mu
from jaxacct.mechanisms.pair import DominatingPair, exp_remainder
from jaxacct.numerics.arithmetic import arithmetic, roundoff, scale_error
from jaxacct.numerics.derivatives import Differences, is_below_one
from jaxacct.numerics.precision import TINY, as_float64, first_index, is_concrete, kernel, leave_scope
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.saddlepoint.accountant import ROW
from jaxacct.tradeoff import (
    Profile,
    SupportLines,
    certify_profile,
    extend,
    infinite_share,
    largest_epsilon,
    lines_below,
    rounding_of_lengths,
    tangents,
)

__all__ = [
    "GaussianSummary",
    "certified_mu",
    "clt_error",
    "delta",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "mu",
]


LARGEST_RATE = 0.1
"""Largest value that may be given for the least error rate that mu covers."""

TOLERANCES = 5e-6, 2e-6
"""Gaps of mu, relative, and of the regret at which the grid is fine enough. Any value is sound."""

FIRST, ROUNDS = 2 * ROW, 4
"""Points of the first grid, and number of times that ROW more are put where they are worth most. Any value is sound.
"""

POINTS = FIRST + ROUNDS * ROW
"""Points of the last grid; all of the grid's arrays have this size."""

FARTHER = 1.1
"""Factor by which the grid goes farther than a Gaussian trade-off curve would ask for; each step beyond, if need be, is
by this factor too. Any value is sound."""


@kernel
def certified_mu(
    mechanism: Mechanisms,
    steps: Steps,
    *,
    fpr: ArrayLike = 1e-10,
    relation: Relation = "add_or_remove",
) -> GaussianSummary:
    """Returns the least mu whose Gaussian trade-off curve lies below that of a composition, and its regret.

    Args:
        mechanism: as of :func:`jaxacct.epsilon`: one mechanism, a sequence by a leading axis, or a tuple.
        steps: likewise. May be traced.
        fpr (): least error rate to be covered, in (0, 0.1]: mu is the least for which f(a) >= G_mu(a) where a and
            G_mu(a) are at least this. Few mechanisms have a mu for all rates: k steps with a Poisson sample and noise
            multiplier s are as bad as sqrt(k)/s far enough out, where every batch has the example.
        relation: neighbouring relation, one that the mechanisms support.

    Returns :class:`GaussianSummary`. With f the trade-off function, delta(eps) the privacy profile, delta_mu that of
    G_mu (:func:`gaussian_delta`), and mu what is called ``mu.upper``:

    * delta(eps) <= max(delta_mu(eps), ``delta``) for every eps >= 0.
    * Hence, if the relation is symmetric (all but "add" or "remove" alone), f >= G_mu where a and G_mu(a) are at least
      ``fpr``, and f >= G_mu - ``delta`` on all of [0, 1].
    * delta_mu(eps) <= delta(eps) + ``regret.upper`` (1 + e^eps) for every eps >= 0; if the relation is symmetric, f(a +
      r) - r <= G_mu(a) on [0, 1], r the regret: G_mu understates no attack's Bayes risk by more than r.
    * No mu below ``mu.lower`` is below f at all those rates; a difference of ``regret.lower`` occurs.

    For :class:`~jaxacct.Gaussian` mechanisms mu is exact, ``delta`` and the regret are 0. Where nothing is known (no
    noise, hardly any finite losses, invalid traced values; inside a trace, any infinite losses) ``mu.upper`` is
    ``inf``, ``delta`` and the regret are 1. Inside a trace the grid is not refined, and an exact accountant that does
    not converge is not replaced.

    Formal guarantee: the above, rounding included; the proofs are in the comments above :class:`GaussianSummary`.

    Source: Gomez, Kulynych et al. (2025), "Gaussian DP for reporting differential privacy guarantees in machine
    learning" (arXiv 2503.10945); regret, Kaissis et al. (2024), "Beyond the calibration point".

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> found = certified_mu(PoissonSubsampledGaussian(9.4, 0.328), steps=2000)
    >>> print(f"{found.mu.upper:.4f} {found.regret.upper:.5f}")
    1.5685 0.00102
    """
    check(mechanism, steps)
    seen = validation.concrete_value(fpr)
    if seen is not None and not (seen.ndim == 0 and 1e-300 <= seen <= LARGEST_RATE):
        raise ValueError(f"fpr = {fpr} is not an error rate in [1e-300, {LARGEST_RATE}]: give the least to be covered.")
    rate = as_float64(fpr)
    rows = _plain_rows(mechanism, steps, relation)
    if rows is not None:
        return leave_scope(_exact_summary(rows))
    last = largest_epsilon(mechanism, steps, fpr, relation)
    end = _last_epsilon(last, rate)
    ask = functools.partial(certify_profile, mechanism, steps, relation=relation)
    if not is_concrete(mechanism, steps, fpr):
        sound = jnp.isfinite(last) & (rate > 0) & (rate <= LARGEST_RATE)
        profile = ask(jnp.where(sound, end, 1.0) * _grid(POINTS))
        return leave_scope(summarize(profile, rate, sound)[0])
    known = bool(np.isfinite(last))
    share = float(infinite_share(mechanism, steps, relation))
    grid = (float(end) if known else 1.0) * _grid(FIRST)
    profile = ask(grid) if known else Profile(jnp.asarray(grid), jnp.zeros(len(grid)), jnp.ones(len(grid)))
    # Each round proves what it can from the places so far, and asks ROW more where the proof loses most.
    for spent in range(ROUNDS + 1):
        summary, gains = summarize(_padded_profile(profile, share), rate, known)
        gaps = float(summary.mu.gap), float(summary.regret.upper - summary.regret.lower)
        if not known or all(gap <= wanted for gap, wanted in zip(gaps, TOLERANCES, strict=True)) or spent == ROUNDS:
            break
        profile = extend(profile, _worth_asking(profile, float(rate), gains, summary), ask)
    return leave_scope(summary)


def _plain_rows(mechanism: Mechanisms, steps: Steps, relation: Relation) -> list[tuple[Array, Array]] | None:
    """Returns the noise multipliers (n,) and numbers of runs of Gaussian mechanisms; None if another one is among them.

    A mechanism that is seen to release nothing, or is not run, is a Gaussian one of infinite noise; invalid numbers are
    one of no noise.
    """
    rows = []
    for part, count in parts_of(mechanism, steps):
        if isinstance(part, Gaussian):
            pair: Any = part.dominating_pairs(relation)[0]
            noise, counts = as_float64(pair.noise_multiplier), as_float64(count)
            valid = (noise > 0) & (counts > 0) & (counts == jnp.floor(counts)) & (counts < jnp.inf)
            noise = jnp.where(valid, noise, jnp.where(counts == 0, jnp.inf, 0.0))
            rows.append((jnp.atleast_1d(noise), jnp.atleast_1d(jnp.where(valid, counts, 1.0))))
        elif not is_concrete(part, count) or not bool(jnp.all(part.releases_nothing())):
            return None
    return rows or [(jnp.full(1, jnp.inf), jnp.ones(1))]


def _exact_summary(rows: list[tuple[Array, Array]]) -> GaussianSummary:
    """Returns the summary of Gaussian mechanisms: their composition has mu^2 = sum of steps over squared noise."""
    each = [jnp.broadcast_arrays(*row) for row in rows]
    noise, counts = (jnp.concatenate(column) for column in zip(*each, strict=True))
    # With noise relative to the least neither squares nor their inverses leave the range of float64.
    least = jnp.min(noise)
    share = jnp.where(noise < jnp.inf, least / noise, 0.0)
    mu = jnp.where(least < jnp.inf, jnp.sqrt(jnp.sum(counts * share**2)) / least, 0.0)
    known = (least > 0) & (mu < jnp.inf)
    # What is below the smallest normal number is flushed to 0, the error of a small mu or mu itself.
    error = jnp.where(known, (len(noise) + 8) * roundoff() * mu + TINY, jnp.inf)
    upper = jnp.where(least < jnp.inf, mu + error, 0.0)
    lower = jnp.where(known, jnp.maximum(mu - error, 0.0), 0.0)
    bounds = Bounds(lower=lower, estimate=mu, upper=jnp.where(known, upper, jnp.inf), converged=known)
    error = jnp.where(known, upper - lower, jnp.inf)
    # delta_mu rises by less than 0.4 for each unit of mu, so an error of mu is more than the regret it makes.
    above = jnp.minimum(error, 1.0)
    regret = Bounds(lower=jnp.zeros_like(mu), estimate=above, upper=above, converged=known)
    return GaussianSummary(bounds, regret, jnp.where(known, 0.0, 1.0))


def _grid(points: int) -> np.ndarray:
    """Returns places in [0, 1], denser at both ends: one end mostly decides mu, the other the regret."""
    return (1 - np.cos(np.pi * np.linspace(0, 1, points))) / 2


@compiled
def _last_epsilon(last: Array, rate: Array) -> Array:
    """Returns about the epsilon at which the trade-off curve has the least rate, given epsilon at that delta.

    The Gaussian curve through that point stands for it: G_mu has slope -e^eps at a = Phi(-eps/mu - mu/2).
    """
    mu, _ = solve_mu(jnp.where(jnp.isfinite(last), last, 1.0), jnp.clip(rate, TINY, LARGEST_RATE))
    # At least 1e-6 nats: sound for any value.
    return jnp.maximum(jnp.maximum(FARTHER * mu * (-ndtri(rate) - mu / 2), last / 16), 1e-6)


def _padded_profile(profile: Profile, share: float) -> Profile:
    """Returns the profile with POINTS places: beyond the last one delta falls, though not below ``share``."""
    missing = POINTS - len(profile.epsilon)
    # NumPy does this, as JAX would compile each operation for each number of places.
    epsilon, lower, upper = (np.asarray(values) for values in profile)
    more = epsilon[-1] + np.arange(1.0, missing + 1), np.full(missing, share), np.full(missing, upper[-1])
    every = zip((epsilon, lower, upper), more, strict=True)
    return Profile(*(jnp.asarray(np.concatenate([values, added])) for values, added in every))


def _refine_places(epsilon: np.ndarray, gain: Gain, enough: float, tolerance: float, count: int) -> list[float]:
    """Returns about ``count`` new places in the segments that keep a bound above ``enough``, worst first.

    The share of a segment falls with the square of its width, so it gets as many pieces as bring it below ``enough``,
    or in proportion to them.
    """
    bound, local = (np.asarray(values)[: len(epsilon) - 1] for values in gain)
    allowed = np.maximum(enough - local, tolerance / 2)
    # At most six pieces in one round: the next one knows better where the segment is loose. Speed only.
    wanted = np.clip(np.sqrt(np.maximum(bound - local, 0) / allowed), 2, 6) - 1
    wanted = np.where(bound > enough + tolerance / 2, wanted, 0)
    added = np.ceil(wanted * min(count / max(np.sum(wanted), 1), 1)).astype(int)
    return [
        epsilon[i] + (epsilon[i + 1] - epsilon[i]) * share
        for i in np.argsort(-bound, kind="stable")
        for share in np.arange(1, added[i] + 1) / (added[i] + 1)
    ]


def _worth_asking(profile: Profile, rate: float, gains: tuple[Gain, Gain], summary: GaussianSummary) -> list[float]:
    """Returns ROW more places for the profile, where they may lower mu and where they may lower the regret."""
    old = np.asarray(profile.epsilon)
    mu, regret = float(summary.mu.lower), float(summary.regret.lower)
    for_mu = _refine_places(old, gains[0], mu, TOLERANCES[0] * mu, ROW)
    for_regret = _refine_places(old, gains[1], regret, TOLERANCES[1], ROW)
    for_mu = [float(tangents(profile, rate)), *for_mu]
    # Half of the places are for each of the two, or more where the other needs less.
    places = dict.fromkeys([*for_mu[: ROW // 2], *for_regret[: ROW // 2], *for_mu, *for_regret])
    if float(summary.delta) <= float(profile.upper[-1]):  # the last place decides: the curve is steeper than foreseen
        places = dict.fromkeys([*(old[-1] * FARTHER ** np.arange(1, 5)), *places])
    return [place for place in places if place not in old][:ROW]


# ----------------------------------------------------------------------------------------------------
# The proof: from finitely many certified deltas to a mu whose Gaussian trade-off curve lies below, and its regret.
#
# Let f be the trade-off function and delta the privacy profile, a convex function of x = e^eps known within bounds at
# x_0 = 1 < ... < x_n. G_mu is the Gaussian trade-off function, delta_mu its profile, the supremum of all lines
# 1 - G_mu(a) - a x. The mu found has two properties, for an i that is chosen for a0, the least error rate to be
# covered.
#
# 1. delta <= delta_mu on [x_0, x_i]. Between neighbours delta is at most its chord 1 - b - a x, a > 0, and delta_mu is
#    at least that if G_mu(a) <= b, that is if mu >= Phi^-1(1 - b) - Phi^-1(a). Any a does, with b such that the line is
#    not below the chord at either end: the rounding of a does not matter. Where delta hardly falls (the chord says
#    nothing then) a mu with delta_mu(x_1) >= delta(x_0) will do.
# 2. The line l(a) = 1 - u - x_i a, u the bound on delta(x_i), which is below f, has l(a0) >= G_mu(a0).
#
# Let a* be where G_mu has slope -x_i. For a in [a*, 1/2], say, G_mu(a) is the supremum of 1 - delta_mu(x) - x a over x
# <= x_i, so by 1 it is at most f(a). On [a0, a*] it is below l: G_mu - l is convex, at most 0 at a0 by 2, and at a* as
# u <= delta_mu(x_i). On [0, a0] the same convex function is u at 0, so f >= l >= G_mu - u. By symmetry all this holds
# for large a, where the roles of the two errors are exchanged. (For i = 0 the line is its own mirror image: it is above
# G_mu at a0 and at the mirror image of that, and so between.)
#
# *Regret.* f(a + r) - r <= G_mu(a) for all a in [0, 1] exactly if delta_mu - delta <= r (1 + e^eps) for all real eps,
# for shifting f's graph by (-r, -r) adds r (1 + e^eps) to its profile. For a symmetric f this is the same for eps and
# -eps, so eps >= 0 will do. Between neighbours delta_mu is at most its chord and delta at least the larger of two
# lines: their difference over 1 + x is largest at an end, or where the two cross.
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class GaussianSummary:
    """Gaussian summary of a composition: one mu, its regret, and the delta that it leaves uncovered.

    Attributes:
        mu: bounds on the least mu that covers the trade-off curve, (); report ``upper``.
        regret: bounds on how much G_mu, with ``mu.upper``, understates the errors, ().
        delta: what is not covered, (): for every epsilon >= 0 the true delta is at most this or that of G_mu.
    """

    mu: Bounds
    regret: Bounds
    delta: Float[Array, ""] | float


Gain = tuple[Array, Array]
"""Type of each segment's share in an upper bound, (segments,): as the bound stands, and if the segment had no width."""


@compiled
def summarize(profile: Profile, rate: Array, known: Array) -> tuple[GaussianSummary, tuple[Gain, Gain]]:
    """Returns the summary, and each segment's demand on mu and its share in the regret."""
    lines = lines_below(profile)
    of_mu, most, least, missed = _demands(profile, lines, rate)
    most = jnp.where(known, jnp.where(profile.upper[0] > 0, most, 0.0), jnp.inf)
    least = jnp.minimum(least, most)
    above, below = _profile_excess(most, profile, lines)
    above = jnp.where(jnp.isnan(above), 1.0, above)
    # Reading mu may move it up by 4 u, and its profile by less.
    highest = jnp.where(known, jnp.clip(jnp.max(above) + 4 * roundoff() * most, 0.0, 1.0), 1.0)
    lowest = jnp.clip(jnp.max(below), 0.0, highest)
    some = most < jnp.inf
    summary = GaussianSummary(
        mu=enclose(least, most, some),
        regret=enclose(lowest, highest, some),
        delta=jnp.where(some, missed, 1.0),
    )
    return summary, (of_mu, (above[:-1], jnp.maximum(below[:-1], below[1:])))


def _demands(profile: Profile, lines: SupportLines, rate: Array) -> tuple[Gain, Array, Array, Array]:
    """Returns each segment's demand on mu, a mu that is enough, one that is not too much, and the delta not covered.

    Segments beyond the place i of the proof ask for nothing.
    """
    epsilon, lower, upper = profile
    x, length = jnp.exp(epsilon), jnp.diff(epsilon)
    # A bound on 1 - l(a0), l the line that is highest at a0: the place i.
    misses = (upper + x * rate) * (1 + 2 * arithmetic().function)
    last = first_index(misses <= jnp.min(misses))
    covered = jnp.arange(len(length)) < last

    left, right = upper[:-1], upper[1:]
    wide = rounding_of_lengths(length)
    slope = (left - right) / jnp.expm1(length)  # times -x_0
    top = jnp.maximum(left + slope, right + slope * jnp.exp(length)) * (1 + wide)
    tangent = slope * jnp.exp(-epsilon[:-1])
    by_chord = _quantile_distance(top, tangent, 1.0)

    def solve(epsilon: Array, delta: Array) -> tuple[Array, Array]:
        inside = (delta > TINY) & (delta < 1)
        mu, error = jax.vmap(solve_mu)(epsilon, jnp.where(inside, delta, 0.5))
        return jnp.where(inside, mu, jnp.where(delta >= 1, jnp.inf, 0.0)), jnp.where(inside, error, 0.0)

    # One call for both: half the code to compile. A delta below TINY asks for no more than one of 2 TINY.
    mus, errors = solve(jnp.concatenate([epsilon[1:], epsilon]), jnp.concatenate([jnp.maximum(left, 2 * TINY), lower]))
    count = len(left)
    needed = jnp.where(covered, jnp.minimum(by_chord, mus[:count] + errors[:count]), -jnp.inf)
    at_rate = _quantile_distance(jnp.min(misses), rate, 1.0)
    most = jnp.maximum(jnp.maximum(jnp.max(needed), at_rate), 0.0)

    # f touches its tangent of slope -x at a rate of at least the chord ahead: where that is a0, G_mu is to be below f.
    ahead = (lower[:-1] - right) / jnp.expm1(length) * (1 - wide) >= rate * x[:-1]
    attained = jnp.max(jnp.where(ahead & (lower[:-1] < 1), (mus - errors)[count:-1], 0.0))
    # 1 - f(a0) is at least the least of delta + x a0.
    places = x[:-1], x[1:], x[:-1] * (1 + lines.crossing * jnp.expm1(length))
    below = jnp.concatenate([line + place * rate for line, place in zip(lines.corners(), places, strict=True)])
    reached = jnp.min(below) * (1 - wide)
    # Where G_mu(a0) < a0 there is nothing left to cover: ``least`` is capped at the mu with G_mu(a0) = a0.
    least = jnp.minimum(jnp.maximum(attained, _quantile_distance(reached, rate, -1.0)), -2 * sum(quantile(rate)))
    # The segments beside the place i decide the bound at a0, so their refinement is worth its gap.
    is_adjacent = jnp.abs(jnp.arange(len(length)) + 0.5 - last) < 1
    local = jnp.where(
        is_adjacent, _quantile_distance(reached, rate, -1.0), jnp.maximum(mus[count:-1], mus[count + 1 :])
    )
    return (jnp.where(is_adjacent, jnp.maximum(needed, at_rate), needed), local), most, least, upper[last]


def _quantile_distance(high: Array, low: Array, side: float) -> Array:
    """Returns Phi^-1(high) - Phi^-1(low), rounded to ``side``; ``inf`` or -inf where it is not defined."""
    inside = (high > low) & (low > TINY) & (high < 1)
    p, q = jnp.where(inside, high, 0.6), jnp.where(inside, low, 0.4)
    places, errors = jnp.vectorize(quantile)(jnp.stack([p, q]))
    rounded = places[0] - places[1] + side * (errors[0] + errors[1]) * (1 + arithmetic().function)
    return jnp.where(inside, rounded, side * jnp.inf)


def _profile_excess(mu: Array, profile: Profile, lines: SupportLines) -> tuple[Array, Array]:
    """Returns how far G_mu's profile exceeds the true one, over 1 + e^eps.

    The first is an upper bound by segment, the second a lower bound by place.
    """
    epsilon, _, upper = profile
    low, high = jax.vmap(delta_bounds, in_axes=(None, 0))(mu, epsilon)
    x = jnp.exp(epsilon)
    wide = rounding_of_lengths(jnp.diff(epsilon))
    share = lines.crossing
    places = x[:-1], x[1:], x[:-1] * (1 + share * jnp.expm1(jnp.diff(epsilon)))
    chords = high[:-1], high[1:], high[:-1] + share * (high[1:] - high[:-1])
    by_corner = [
        (chord - line + arithmetic().function * chord) / (1 + place) * (1 + wide)
        for chord, line, place in zip(chords, lines.corners(), places, strict=True)
    ]
    # Beyond the last place the Gaussian profile falls.
    above = jnp.concatenate([functools.reduce(jnp.maximum, by_corner), high[-1:] / (1 + x[-1:])])
    return above, (low - upper) / (1 + x) * (1 - 4 * arithmetic().function)


# ----------------------------------------------------------------------------------------------------
# The moments of the privacy loss that the central-limit estimate is made of, by quadrature over cells of the loss.
#
# For f = T(P, Q) the slope at a uniform point is distributed like dQ/dP under P, so with Y = log P/Q the functionals of
# Theorem 7 in Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", are
#
#     kl = E_P[Y],  kl~ = E_Q[-Y],  kappa_n = E_P|Y|^n,  kappa~_n = E_Q|Y|^n.
#
# As E_P[e^-Y] = 1 the first is E_P[Y - 1 + e^-Y], of one sign, so it does not cancel where P and Q are close; likewise
# the second. The quadrature is over cells of the loss, whose P- and Q-masses every pair knows. Put a cell's mass at the
# loss log p/q, or at the cell's two ends such that both masses stay: for a convex function of e^-Y the first gives less
# than the truth and the second more (Jensen). Two parts of the one and one of the other, Simpson's weights, leave an
# error of fourth order in the width where the density is smooth. Atoms are summed as they are.
# ----------------------------------------------------------------------------------------------------


class Functionals(NamedTuple):
    """Moments of one loss, scalars; the second of each pair under Q. ``inf`` where they are not finite."""

    kl: Array
    reverse_kl: Array
    kappa2: Array
    reverse_kappa2: Array
    kappa3: Array
    reverse_kappa3: Array


@functools.singledispatch
def functionals_of(pair: Any) -> Functionals:
    """Returns the functionals of a dominating pair. To be called inside the float64 scope.

    Their relative error is below 1e-6 for the mechanisms of this package (tests/gdp/test_clt.py); nothing is proved.
    """
    edges = _cell_edges(pair)
    cells = pair.cell_masses(edges)
    low, high = edges[:-1], edges[1:]
    ratio = jnp.log(cells.p) - jnp.log(cells.q)
    # A cell that only one of the two fills, or whose masses are mostly rounding, keeps its loss between its ends.
    middle = jnp.clip(jnp.where(jnp.isfinite(ratio), ratio, (low + high) / 2), low, high)
    width = high - low
    upward = jnp.clip(-jnp.expm1(low - middle) / -jnp.expm1(-jnp.where(width > 0, width, 1.0)), 0.0, 1.0)
    share = jnp.where(width > 0, upward, 0.0)
    losses = jnp.concatenate([middle, low, high])
    p, q = cells.p / 3, cells.q / 3
    # The upper end gets the share ``upward`` of p, and a share of q that is smaller by e^(high - middle).
    share_q = jnp.clip(share * jnp.exp(middle - high), 0.0, 1.0)
    # Simpson's weights: two thirds of the mass at the middle, one third at the two ends.
    p_masses = jnp.concatenate([2 * p, p * (1 - share), p * share])
    q_masses = jnp.concatenate([2 * q, q * (1 - share_q), q * share_q])
    return _of_points(pair, p_masses, q_masses, losses)


@functionals_of.register
def _(pair: FinitePair) -> Functionals:
    p, q, losses, _ = pair._atoms()
    missing = (pair.missing_mass() > 0) | (pair.infinite_mass() > 0)
    return Functionals(*(jnp.where(missing, jnp.inf, value) for value in _of_points(pair, p, q, losses)))


@functionals_of.register
def _(pair: DiscreteGaussianPair) -> Functionals:
    return functionals_of(pair._finite())


def _of_points(pair: DominatingPair, p: Array, q: Array, losses: Array) -> Functionals:
    magnitude = jnp.abs(losses)

    def mean(masses: Array, values: Array) -> Array:
        return jnp.sum(jnp.where(masses > 0, masses * values, 0.0))

    def divergence(masses: Array, loss: Array, opposite: Array) -> Array:
        # masses e^-loss is the other's mass, which stands in for it where e^-loss would overflow.
        back = jnp.minimum(-loss, arithmetic().largest_exponent)
        values = jnp.where(-loss > 30.0, opposite - masses * (1 - loss), masses * exp_remainder(back, jnp.expm1(back)))
        return jnp.sum(jnp.where((masses > 0) | (opposite > 0), values, 0.0))

    functionals = Functionals(
        divergence(p, losses, q),
        divergence(q, -losses, p),
        *(mean(masses, magnitude**n) for n in (2, 3) for masses in (p, q)),
    )
    known = pair.is_valid() & (pair.infinite_mass() == 0)
    return Functionals(*(jnp.where(known & ~jnp.isnan(value), value, jnp.inf) for value in functionals))


def _cell_edges(pair: DominatingPair) -> Array:
    """Returns the cells' edges: narrow about the bulk, wide far out, and close about both ends of a bounded loss."""
    center = pair.central_loss()
    # Distances from the bulk in nats, from below any loss that counts to above it: 24 cells for each halving. More make
    # the estimate more accurate.
    farthest = 2.0**20
    distances = jnp.asarray(np.exp2(np.arange(-60 * 24, 20 * 24 + 1) / 24))
    ends = jnp.clip(jnp.stack(pair.loss_range()), -farthest, farthest)
    # An atom at an end of the range gets a cell without width.
    margin = scale_error(1e-12) * (1 + jnp.abs(ends))
    return jnp.sort(
        jnp.concatenate([center - distances, center[None], center + distances, ends - margin, ends + margin])
    )


# ----------------------------------------------------------------------------------------------------
# The central-limit estimate of a composition: mu, and the epsilon and delta of that mu. Nothing here is a bound.
# ----------------------------------------------------------------------------------------------------


@kernel(derivatives=Differences(nested=True))
def mu(
    mechanism: Mechanisms, steps: Steps, *, relation: Relation = "add_or_remove", method: str | None = None
) -> Float[Array, ""]:
    """Returns the mu of the Gaussian trade-off function that a composition tends to: an *estimate*, not a bound.

    Formal guarantee: none; it can under-report at any number of steps. The certified counterpart is
    :func:`~jaxacct.gdp.certified_mu`, or :func:`jaxacct.epsilon`.

    Args:
        mechanism: one mechanism (scalar fields), a sequence by a leading axis, or a tuple, as of
            :func:`jaxacct.prv.epsilon`. Batches are ``jax.vmap``.
        steps: how many runs of it. May be traced.
        relation: neighbouring relation, one that the mechanisms support.
        method: "small_rate", the closed form to leading order in the sampling rate, for
            :class:`~jaxacct.PoissonSubsampledGaussian` (adding or removing) and
            :class:`~jaxacct.GaussianWithoutReplacement` only; "functionals", by quadrature over the loss, for any
            mechanism. By default the closed form where there is one; for large rates, which it is not made for, the
            other.

    Returns float64 (). NoisySGD, NoisyAdam and any other optimizer of the same noisy gradients have the same mu.
    ``inf`` for no noise, infinite losses and invalid traced values; 0 for no steps.

    The closed forms, for k steps with rate q and noise multiplier s: q sqrt(k (e^(1/s^2) - 1)) with Poisson sampling;
    q sqrt(2 k (e^(1/s^2) Phi(3/(2s)) + 3 Phi(-1/(2s)) - 2)) with batches of fixed size, where s is half the noise
    multiplier, for replacing an example moves a sum by twice the clipping norm. The functionals: mu = K/S with K = sum
    of k (kl + kl~) and S^2 = the mean of the sums of k (kappa_2 - kl^2) and of k (kappa~_2 - kl~^2). In Theorem 7 both
    have one limit, and kl^2 vanishes in it; kept, it makes mu exact for Gaussian mechanisms.

    Raises ValueError where a concrete argument is out of range, or "small_rate" is asked of another mechanism.

    Source: Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", eq. 3.1 and Theorem 7;
    batches of fixed size, Dong, Roth and Su (2022), "Gaussian differential privacy", Corollary 5.4.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> print(f"{mu(PoissonSubsampledGaussian(1.1, 256 / 60000), steps=14063):.4f}")
    0.5736
    """
    check(mechanism, steps)
    validation.check_one_of(relation, "relation", tuple(DIRECTIONS))
    if method is not None:
        validation.check_one_of(method, "method", ("small_rate", "functionals"))
    return _estimates(mechanism, steps, relation, method)[0]


@kernel(derivatives=Differences(nested=True))
def epsilon(
    mechanism: Mechanisms,
    steps: Steps,
    delta: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    method: str | None = None,
) -> Float[Array, ""]:
    """Returns the central-limit *estimate* of a composition's epsilon at ``delta`` (): it can under-report.

    Arguments, errors and source are those of :func:`mu`; ``delta`` () is in (0, 1).

    Formal guarantee: none, as of :func:`mu`: that mu is an estimate, though its epsilon is rounded up. ``inf`` for
    invalid traced values.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> print(f"{epsilon(PoissonSubsampledGaussian(1.1, 256 / 60000), steps=14063, delta=1e-5):.3f}")
    2.324
    """
    validation.check_delta(delta)
    return gaussian_epsilon(mu(mechanism, steps, relation=relation, method=method), delta)


@kernel(derivatives=Differences(is_below_one, nested=True))
def delta(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    method: str | None = None,
) -> Float[Array, ""]:
    """Returns the central-limit *estimate* of a composition's delta at ``epsilon`` (): it can under-report.

    Arguments, errors and source are those of :func:`mu`; ``epsilon`` () is at least 0.

    Formal guarantee: none, as of :func:`mu`: that mu is an estimate, though its delta is rounded up. 1 where
    it is ``inf``.

    >>> from jaxacct import Gaussian
    >>> print(f"{delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0):.8f}")
    0.12693674
    """
    validation.check_numbers(epsilon=epsilon)
    validation.check_epsilon(epsilon)
    return gaussian_delta(mu(mechanism, steps, relation=relation, method=method), epsilon)


@kernel(derivatives=Differences(nested=True))
def clt_error(mechanism: Mechanisms, steps: Steps, *, relation: Relation = "add_or_remove") -> Float[Array, ""]:
    """Returns about how far the composed trade-off function f may be from G_mu, mu by the functionals; float64 ().

    With g what is returned, V and V~ the sums of variances under P and under Q, their ratio r = sqrt(V/V~):

        f(a) >= Phi(r Phi^-1(1 - a - g) - K/sqrt(V~)) - g,    which is    f(a) >= G_mu(a + g) - g    for r = 1.

    Idea of the proof: the sum of the losses is within g of normal under P and under Q (Berry and Esseen); the most
    powerful test compares it with a threshold. It falls like 1/sqrt(steps), and 1 or more means that nothing follows.

    Formal guarantee: none: as the functionals come from a quadrature without an error bound, this is an *estimate* too,
    which can be too small. It says how good :func:`mu` may be taken to be. ``inf`` for invalid traced values.

    Arguments and errors are those of :func:`mu`.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Theorem 3.5, for symmetric functions.

    >>> from jaxacct import Laplace
    >>> few, many = (clt_error(Laplace(scale=10.0 * n), 100 * n**2) for n in (1, 10))
    >>> bool(many < few / 9 < 0.01)
    True
    """
    validation.check_one_of(relation, "relation", tuple(DIRECTIONS))
    check(mechanism, steps)
    return _estimates(mechanism, steps, relation, "functionals")[1]


def _estimates(mechanism: Mechanisms, steps: Steps, relation: Relation, method: str | None) -> tuple[Any, Any]:
    """Returns mu and the error of Berry and Esseen, each of the direction where it is largest."""

    def float64_leaf(leaf: Any) -> Any:
        return leaf if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf, np.float64)

    return leave_scope(_summarize_in_program(*jax.tree.map(float64_leaf, (mechanism, steps)), relation, method))


@compiled(static=("relation", "method"))
def _summarize_in_program(
    mechanism: Mechanisms, steps: Steps, relation: Relation, method: str | None
) -> tuple[Array, Array]:
    parts = [_sum_runs(part, count, relation, method) for part, count in parts_of(mechanism, steps)]
    # A symmetric mechanism has one direction, which stands for both.
    directions = max(len(mean) for mean, *_ in parts)
    wide = [[jnp.broadcast_to(row, (directions,)) for row in part] for part in parts]
    mean, variance, reverse_variance, third, reverse_third = _add_runs(wide)
    mus = jnp.where(mean == 0, 0.0, mean / jnp.sqrt((variance + reverse_variance) / 2))
    errors = third / jnp.sqrt(variance) ** 3, reverse_third / jnp.sqrt(reverse_variance) ** 3
    # The constant of the theorem of Berry and Esseen for summands that differ: Shevtsova (2010), "An improvement of
    # convergence rate estimates in the Lyapunov theorem".
    error = jnp.where(mean == 0, 0.0, 0.56 * jnp.maximum(*errors))
    # The worse direction counts; a NaN, as of inf - inf, counts as inf.
    largest, farthest = (jnp.max(jnp.where(jnp.isnan(value), jnp.inf, value)) for value in (mus, error))
    return largest, farthest


def _sum_runs(mechanism: Mechanism, steps: ArrayLike, relation: Relation, method: str | None) -> list[Array]:
    """Returns the sums of :func:`_sum_pairs` over the runs of one mechanism, each (directions,)."""
    closed = _closed_form(mechanism, relation) if method != "functionals" else None
    if closed is None and method == "small_rate":
        raise ValueError(
            f'method = "small_rate" has no closed form for {type(mechanism).__name__} under "{relation}": give '
            '"functionals".'
        )
    # Runs that release nothing count as no runs.
    counted = as_float64(steps)
    steps = jnp.where(mechanism.releases_nothing() & (counted >= 0), 0.0, counted)
    if closed is not None:
        counts = _valid_counts(jnp.broadcast_to(as_float64(steps), np.shape(closed)))
        return [jnp.sum(jnp.where(counts == 0, 0.0, counts * closed))[None]] * 5
    directions = directed_parts(mechanism, steps, relation)
    sums = [_add_runs([_sum_pairs(pairs, number) for pairs, number in parts]) for parts in directions]
    return [jnp.stack(each) for each in zip(*sums, strict=True)]


def _add_runs(sums: list[list[Array]]) -> list[Array]:
    return [functools.reduce(jnp.add, each) for each in zip(*sums, strict=True)]


def _sum_pairs(pairs: Any, number: Array) -> list[Array]:
    """Returns what adds up over runs: K = kl + kl~, two variances, and bounds on two third absolute central moments."""
    # One pair at a time: each takes some 4,000 cells, and a batch would hold them for all pairs.
    of = jax.lax.map(functionals_of, pairs)
    variances = of.kappa2 - of.kl**2, of.reverse_kappa2 - of.reverse_kl**2
    # E|Y - m|^3 <= (|Y|_3 + |m|)^3, by Minkowski's inequality.
    thirds = [(jnp.cbrt(k3) + kl) ** 3 for k3, kl in ((of.kappa3, of.kl), (of.reverse_kappa3, of.reverse_kl))]
    moments = [of.kl + of.reverse_kl, *variances, *thirds]
    return [jnp.sum(jnp.where(number == 0, 0.0, _valid_counts(number) * row)) for row in moments]


def _valid_counts(steps: Array) -> Array:
    """Returns the counts, ``inf`` where a count is no whole number of at least 0."""
    return jnp.where((steps >= 0) & (steps == jnp.floor(steps)), steps, jnp.inf)


def _closed_form(mechanism: Any, relation: Relation) -> Array | None:
    """Returns both functionals of one step to leading order in the rate, where they are known."""
    if isinstance(mechanism, PoissonSubsampledGaussian) and relation != "replace":
        s, q = jnp.broadcast_arrays(as_float64(mechanism.noise_multiplier), as_float64(mechanism.sampling_rate))
        square = q**2 * jnp.expm1(1 / s**2)
    elif isinstance(mechanism, GaussianWithoutReplacement):
        s, q = jnp.broadcast_arrays(as_float64(mechanism.noise_multiplier), as_float64(mechanism.sampling_rate))
        x = SHIFT / s
        # e^(x^2) Phi(3x/2) + 3 Phi(-x/2) - 2, written so that it does not cancel near x = 0, where it vanishes.
        bend = jax.lax.erf(1.5 * x * math.sqrt(0.5)) / 2 - 1.5 * jax.lax.erf(0.5 * x * math.sqrt(0.5))
        square = 2 * q**2 * (jnp.expm1(x**2) * ndtr(1.5 * x) + bend)
    else:
        return None
    return jnp.where((s > 0) & (q > 0) & (q <= 1), square, jnp.inf)
