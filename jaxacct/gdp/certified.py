"""The certified mu of a composition: the least Gaussian trade-off function G_mu below its own, and the regret of it.

The privacy profile is bounded at a grid of epsilons, and :func:`summarize` proves from these finitely many deltas a mu
whose Gaussian trade-off curve lies below the composition's, and how far below (the regret). Outside a trace the grid is
refined where the proof is worst, until both gaps are small. Gomez, Kulynych et al. (2025); Kaissis et al. (2024).

In reading order: :func:`certified_mu`, with the choice of the grid; its refinement; then the statement, its proof and
the arithmetic of it, from :class:`GaussianSummary` on.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.bounds import Bounds
from jaxacct.composition import check
from jaxacct.mechanisms import Gaussian
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps, listed
from jaxacct.mechanisms.normal import delta_bounds, quantile, solve_mu
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import TINY, as_float64, first_index, in_float64, is_concrete, outside
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.tradeoff.curve import BATCH, Lines, Profile, certified, infinite_share, largest_epsilon, lines_below

LEAST_RATE = 1e-10
"""Default of the least error rate that mu covers."""

LARGEST_RATE = 0.1
"""Largest value that may be given for the least error rate that mu covers."""

TOLERANCES = 5e-6, 2e-6
"""Gaps of mu, relative, and of the regret at which the grid is fine enough. Sound for any value."""

FIRST, ROUNDS = 2 * BATCH, 4
"""Points of the first grid, and number of times that BATCH more are put where they are worth most. Sound for any value.
"""

POINTS = FIRST + ROUNDS * BATCH
"""Points of the last grid; all of the grid's arrays have this size."""

FARTHER = 1.1
"""Factor by which the grid goes farther than a Gaussian trade-off curve would ask for; each step beyond, if need be, is
by this factor too. Sound for any value."""

SHORTEST = 1e-6
"""Least end of a grid of epsilons (nats). Sound for any value."""


@in_float64
def certified_mu(
    mechanism: Mechanisms,
    steps: Steps,
    *,
    fpr: ArrayLike = LEAST_RATE,
    relation: Relation = "add_or_remove",
    accountant: str = "best",
) -> GaussianSummary:
    """Returns the least mu whose Gaussian trade-off curve lies below that of a composition, and its regret.

    Args:
        mechanism: as of :func:`jaxacct.epsilon`: one mechanism, a sequence by a leading axis, or a tuple.
        steps: likewise. May be traced.
        fpr (): least error rate to be covered, in (0, 0.1]: mu is the least for which f(a) >= G_mu(a) where a and
            G_mu(a) are at least this. Few mechanisms have a mu for all rates: k steps with a Poisson sample and noise
            multiplier s are as bad as sqrt(k)/s far enough out, where every batch has the example.
        relation: neighbouring relation, one that the mechanisms support.
        accountant: "best" (the exact accountant where it converges, else meshes), "saddlepoint" or "prv"; the last
            inside a trace where the exact one does not converge.

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
    not converge is not replaced: if ``mu.upper`` is ``inf`` there, accountant="prv" can help.

    Formal guarantee: the above, rounding included; the proofs are in the comments above :class:`GaussianSummary`.

    Source: Gomez, Kulynych et al. (2025), "Gaussian DP for reporting differential privacy guarantees in machine
    learning" (arXiv 2503.10945); regret, Kaissis et al. (2024), "Beyond the calibration point".

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> found = certified_mu(PoissonSubsampledGaussian(9.4, 0.328), steps=2000)
    >>> print(f"{found.mu.upper:.4f} {found.regret.upper:.5f}")
    1.5685 0.00102
    """
    check(mechanism, steps)
    _check_rate(fpr)
    rate = as_float64(fpr)
    squares = _squares(mechanism, steps, relation)
    if squares is not None:
        return outside(_exact_summary(squares))
    last = largest_epsilon(mechanism, steps, fpr, relation)
    end = _end(last, rate)
    if not is_concrete(mechanism, steps, fpr):
        sound = jnp.isfinite(last) & (rate > 0) & (rate <= LARGEST_RATE)
        profile = certified(mechanism, steps, jnp.where(sound, end, 1.0) * _grid(POINTS), relation, accountant)
        return outside(summarize(profile, rate, sound)[0])
    known = bool(np.isfinite(last))
    share = float(infinite_share(mechanism, steps, relation))
    grid = (float(end) if known else 1.0) * _grid(FIRST)
    profile = certified(mechanism, steps, grid, relation, accountant) if known else _unknown(grid)
    # Each round proves what it can from the places so far, and asks BATCH more where the proof loses most.
    for spent in range(ROUNDS + 1):
        summary, gains = summarize(_padded(profile, share), rate, known)
        gaps = float(summary.mu.gap), float(summary.regret.upper - summary.regret.lower)
        if not known or all(gap <= wanted for gap, wanted in zip(gaps, TOLERANCES, strict=True)) or spent == ROUNDS:
            break
        profile = _refined(profile, float(rate), gains, summary, mechanism, steps, (relation, accountant))
    return outside(summary)


def _squares(mechanism: Mechanisms, steps: Steps, relation: Relation) -> list[Array] | None:
    """Returns steps over squared noise multipliers of Gaussian mechanisms; None if another one is among them.

    A mechanism that is seen to release nothing is a Gaussian one of infinite noise.
    """
    squares = []
    for part, count in listed(mechanism, steps):
        if isinstance(part, Gaussian):
            pair: Any = part.dominating_pairs(relation)[0]
            noise, counts = as_float64(pair.noise_multiplier), as_float64(count)
            valid = (noise > 0) & (counts > 0) & (counts == jnp.floor(counts))
            square = jnp.where(valid, counts / noise**2, jnp.where(counts == 0, 0.0, jnp.inf))
            squares.append(jnp.atleast_1d(square))
        elif not is_concrete(part, count) or not bool(jnp.all(part.releases_nothing())):
            return None
    return squares or [jnp.zeros(1)]


def _exact_summary(squares: list[Array]) -> GaussianSummary:
    """Returns the summary of Gaussian mechanisms: their composition has mu^2 = sum of steps over squared noise."""
    terms = jnp.concatenate(squares)
    mu = jnp.sqrt(jnp.sum(terms))
    known = mu < jnp.inf
    error = jnp.where(known, (len(terms) + 8) * roundoff() * mu, jnp.inf)
    bounds = Bounds(lower=jnp.where(known, mu - error, 0.0), estimate=mu, upper=mu + error, converged=known)
    # delta_mu rises by less than 0.4 for each unit of mu, so an error of mu is more than the regret it makes.
    above = jnp.minimum(error, 1.0)
    regret = Bounds(lower=jnp.zeros_like(mu), estimate=above, upper=above, converged=known)
    return GaussianSummary(bounds, regret, jnp.where(known, 0.0, 1.0))


def _grid(points: int) -> np.ndarray:
    """Returns places in [0, 1], denser at both ends: one end mostly decides mu, the other the regret."""
    return (1 - np.cos(np.pi * np.linspace(0, 1, points))) / 2


@compiled
def _end(last: Array, rate: Array) -> Array:
    """Returns about the epsilon at which the trade-off curve has the least rate, given epsilon at that delta.

    The Gaussian curve through that point stands for it: G_mu has slope -e^eps at a = Phi(-eps/mu - mu/2).
    """
    mu, _ = solve_mu(jnp.where(jnp.isfinite(last), last, 1.0), jnp.clip(rate, TINY, LARGEST_RATE))
    return jnp.maximum(jnp.maximum(FARTHER * mu * (-ndtri(rate) - mu / 2), last / 16), SHORTEST)


def _check_rate(fpr: ArrayLike) -> None:
    seen = validation.concrete_value(fpr)
    if seen is not None and not (seen.ndim == 0 and 1e-300 <= seen <= LARGEST_RATE):
        raise ValueError(f"fpr = {fpr} is not an error rate in [1e-300, {LARGEST_RATE}]: give the least to be covered.")


def _unknown(grid: np.ndarray) -> Profile:
    return Profile(jnp.asarray(grid), jnp.zeros(len(grid)), jnp.ones(len(grid)))


def _padded(profile: Profile, share: float) -> Profile:
    """Returns the profile with POINTS places: beyond the last one delta falls, though not below ``share``."""
    missing = POINTS - len(profile.epsilon)
    # NumPy does this, as JAX would compile each operation for each number of places.
    epsilon, lower, upper = (np.asarray(values) for values in profile)
    more = epsilon[-1] + np.arange(1.0, missing + 1), np.full(missing, share), np.full(missing, upper[-1])
    every = zip((epsilon, lower, upper), more, strict=True)
    return Profile(*(jnp.asarray(np.concatenate([values, added])) for values, added in every))


MOST_PIECES = 6
"""Most pieces of one segment in one round: the next round knows better where the segment is loose. Speed only."""


def _between(epsilon: np.ndarray, gain: Gain, enough: float, tolerance: float, count: int) -> list[float]:
    """Returns about ``count`` new places in the segments that keep a bound above ``enough``, worst first.

    The share of a segment falls with the square of its width, so it gets as many pieces as bring it below ``enough``,
    or in proportion to them.
    """
    bound, local = (np.asarray(values)[: len(epsilon) - 1] for values in gain)
    allowed = np.maximum(enough - local, tolerance / 2)
    wanted = np.clip(np.sqrt(np.maximum(bound - local, 0) / allowed), 2, MOST_PIECES) - 1
    wanted = np.where(bound > enough + tolerance / 2, wanted, 0)
    added = np.ceil(wanted * min(count / max(np.sum(wanted), 1), 1)).astype(int)
    return [
        epsilon[i] + (epsilon[i + 1] - epsilon[i]) * share
        for i in np.argsort(-bound, kind="stable")
        for share in np.arange(1, added[i] + 1) / (added[i] + 1)
    ]


def _touching(profile: Profile, rate: float) -> float:
    """Returns about the epsilon of the tangent that the trade-off curve has at ``rate``, from the slopes of chords."""
    epsilon, upper = np.asarray(profile.epsilon), np.asarray(profile.upper)
    slopes = np.maximum(upper[:-1] - upper[1:], TINY) / np.expm1(np.diff(epsilon)) * np.exp(-epsilon[:-1])
    middles = (epsilon[:-1] + epsilon[1:]) / 2
    return float(np.interp(-np.log(rate), -np.log(slopes), middles))


def _refined(
    profile: Profile,
    rate: float,
    gains: tuple[Gain, Gain],
    summary: GaussianSummary,
    mechanism: Mechanisms,
    steps: Steps,
    options: Any,
) -> Profile:
    """Returns the profile with BATCH more places, where they may lower mu and where they may lower the regret."""
    old = np.asarray(profile.epsilon)
    mu, regret = float(summary.mu.lower), float(summary.regret.lower)
    for_mu = _between(old, gains[0], mu, TOLERANCES[0] * mu, BATCH)
    for_regret = _between(old, gains[1], regret, TOLERANCES[1], BATCH)
    for_mu = [_touching(profile, rate), *for_mu]
    # Half of the places are for each of the two, or more where the other needs less.
    places = dict.fromkeys([*for_mu[: BATCH // 2], *for_regret[: BATCH // 2], *for_mu, *for_regret])
    if float(summary.delta) <= float(profile.upper[-1]):  # the last place decides: the curve is steeper than foreseen
        places = dict.fromkeys([*(old[-1] * FARTHER ** np.arange(1, 5)), *places])
    new = sorted([place for place in places if place not in old][:BATCH])
    if not new:
        return profile
    found = certified(mechanism, steps, np.asarray(new), *options)
    order = np.argsort(np.concatenate([old, new]), kind="stable")
    epsilon, lower, upper = (
        np.concatenate([np.asarray(a), np.asarray(b)])[order] for a, b in zip(profile, found, strict=True)
    )
    lower, upper = np.maximum.accumulate(lower[::-1])[::-1], np.minimum.accumulate(upper)
    return Profile(*jax.device_put((epsilon, lower, upper)))


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


class Gain(NamedTuple):
    """Share of each segment in an upper bound, (segments,): as the bound stands, and if the segment had no width."""

    bound: Array
    local: Array


@compiled
def summarize(profile: Profile, rate: Array, known: Array) -> tuple[GaussianSummary, tuple[Gain, Gain]]:
    """Returns the summary, and each segment's demand on mu and its share in the regret."""
    lines = lines_below(profile)
    of_mu, most, least, missed = _needed(profile, lines, rate)
    most = jnp.where(known, jnp.where(profile.upper[0] > 0, most, 0.0), jnp.inf)
    least = jnp.minimum(least, most)
    above, below = _excess(most, profile, lines)
    above = jnp.where(jnp.isnan(above), 1.0, above)
    # Reading mu may move it up by 4 u, and its profile by less.
    highest = jnp.where(known, jnp.clip(jnp.max(above) + 4 * roundoff() * most, 0.0, 1.0), 1.0)
    lowest = jnp.clip(jnp.max(below), 0.0, highest)
    some = most < jnp.inf
    summary = GaussianSummary(
        mu=Bounds(lower=least, estimate=(least + most) / 2, upper=most, converged=some),
        regret=Bounds(lower=lowest, estimate=(lowest + highest) / 2, upper=highest, converged=some),
        delta=jnp.where(some, missed, 1.0),
    )
    return summary, (of_mu, Gain(above[:-1], jnp.maximum(below[:-1], below[1:])))


def _needed(profile: Profile, lines: Lines, rate: Array) -> tuple[Gain, Array, Array, Array]:
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
    wide = _lengths_rounding(length)
    slope = (left - right) / jnp.expm1(length)  # times -x_0
    top = jnp.maximum(left + slope, right + slope * jnp.exp(length)) * (1 + wide)
    tangent = slope * jnp.exp(-epsilon[:-1])
    by_chord = _distance(top, tangent, 1.0)

    def solved(epsilon: Array, delta: Array) -> tuple[Array, Array]:
        inside = (delta > TINY) & (delta < 1)
        mu, error = jax.vmap(solve_mu)(epsilon, jnp.where(inside, delta, 0.5))
        return jnp.where(inside, mu, jnp.where(delta >= 1, jnp.inf, 0.0)), jnp.where(inside, error, 0.0)

    # One call for both: half the code to compile. A delta below TINY asks for no more than one of 2 TINY.
    mus, errors = solved(jnp.concatenate([epsilon[1:], epsilon]), jnp.concatenate([jnp.maximum(left, 2 * TINY), lower]))
    count = len(left)
    needed = jnp.where(covered, jnp.minimum(by_chord, mus[:count] + errors[:count]), -jnp.inf)
    at_rate = _distance(jnp.min(misses), rate, 1.0)
    most = jnp.maximum(jnp.maximum(jnp.max(needed), at_rate), 0.0)

    # f touches its tangent of slope -x at a rate of at least the chord ahead: where that is a0, G_mu is to be below f.
    ahead = (lower[:-1] - right) / jnp.expm1(length) * (1 - wide) >= rate * x[:-1]
    attained = jnp.max(jnp.where(ahead & (lower[:-1] < 1), (mus - errors)[count:-1], 0.0))
    # 1 - f(a0) is at least the least of delta + x a0.
    below = jnp.concatenate(
        [
            jnp.maximum(lines.from_left[0], lines.from_right[0]) + x[:-1] * rate,
            jnp.maximum(lines.from_left[1], lines.from_right[1]) + x[1:] * rate,
            lines.highest_crossing() + x[:-1] * (1 + lines.crossing * jnp.expm1(length)) * rate,
        ]
    )
    reached = jnp.min(below) * (1 - wide)
    # Where G_mu(a0) < a0 there is nothing left to cover: ``least`` is capped at the mu with G_mu(a0) = a0.
    least = jnp.minimum(jnp.maximum(attained, _distance(reached, rate, -1.0)), -2 * sum(quantile(rate)))
    # The segments beside the place i decide the bound at a0, so their refinement is worth its gap.
    beside = jnp.abs(jnp.arange(len(length)) + 0.5 - last) < 1
    local = jnp.where(beside, _distance(reached, rate, -1.0), jnp.maximum(mus[count:-1], mus[count + 1 :]))
    return Gain(jnp.where(beside, jnp.maximum(needed, at_rate), needed), local), most, least, upper[last]


def _distance(high: Array, low: Array, side: float) -> Array:
    """Returns Phi^-1(high) - Phi^-1(low), rounded to ``side``; ``inf`` or -inf where it is not defined."""
    inside = (high > low) & (low > TINY) & (high < 1)
    p, q = jnp.where(inside, high, 0.6), jnp.where(inside, low, 0.4)
    places, errors = jnp.vectorize(quantile)(jnp.stack([p, q]))
    rounded = places[0] - places[1] + side * (errors[0] + errors[1]) * (1 + arithmetic().function)
    return jnp.where(inside, rounded, side * jnp.inf)


def _lengths_rounding(length: Array) -> Array:
    """Returns the relative rounding of a few products, e^length and e^length - 1 among them.

    A length rounds relative to itself, and the exponential multiplies that by the length.
    """
    return 4 * arithmetic().function + 4 * roundoff() * jnp.max(length)


def _excess(mu: Array, profile: Profile, lines: Lines) -> tuple[Array, Array]:
    """Returns how far G_mu's profile exceeds the true one, over 1 + e^eps.

    The first is an upper bound by segment, the second a lower bound by place.
    """
    epsilon, _, upper = profile
    low, high = jax.vmap(delta_bounds, in_axes=(None, 0))(mu, epsilon)
    x = jnp.exp(epsilon)
    wide = _lengths_rounding(jnp.diff(epsilon))

    def over(delta: Array, line: Array, x: Array) -> Array:
        return (delta - line + arithmetic().function * delta) / (1 + x) * (1 + wide)

    share = lines.crossing
    by_segment = [
        over(high[:-1], jnp.maximum(lines.from_left[0], lines.from_right[0]), x[:-1]),
        over(high[1:], jnp.maximum(lines.from_left[1], lines.from_right[1]), x[1:]),
        over(
            high[:-1] + share * (high[1:] - high[:-1]),
            lines.highest_crossing(),
            x[:-1] * (1 + share * jnp.expm1(jnp.diff(epsilon))),
        ),
    ]
    # Beyond the last place the Gaussian profile falls.
    above = jnp.concatenate([functools.reduce(jnp.maximum, by_segment), high[-1:] / (1 + x[-1:])])
    return above, (low - upper) / (1 + x) * (1 - 4 * arithmetic().function)
