"""Batches of one uniform shuffle: bounds on one epoch's privacy, from above and from below.

The batches of an epoch are the pieces, of b examples each, of one uniformly random order of the data. So the places of
the others tell of an example's own: this is no random allocation, and costs more. In reading order:

1. the profile of one epoch from above (:func:`bound_profile`), and its pair (:class:`ShuffledPair`);
2. the mechanism, :class:`ShuffledGaussian`, with what its neighbours attain, from below.

*From above.* Let there be T batches, z the example that differs, s the noise over the clipping norm; P is the run with
z, and in Q z contributes 0. The places are a table of T rows, the batches, and b columns. Reveal who is in which
column, and the order of all columns but z's. Given that, z and T - 1 companions go to the T batches by a uniform
permutation, whose law is the same under P and Q; divergences are jointly convex, so it is enough to bound those given
what is revealed. Step i then releases N(m_i + g, s^2 I), m_i fixed by the past and g, |g| <= 1, the contribution of the
element at i. For any p in (0, 1],

    W_g = p N(0) + (1 - p) R_g,    R_g the normalized positive part of N(g) - p N(0),

is at the distance in total variation tau_g = p G(log 1/p; |g|) <= p G(log 1/p; 1) = tau from N(g), G(eps; m) being
delta of N(m, s^2) against N(0, s^2). Let all companions use W for N. Then, by a coupling step by step, each of P and Q
moves by at most (T - 1) tau in total variation, and delta(eps) by at most (1 + e^eps) (T - 1) tau. But now a companion
tosses its coin before the run, for p depends on nothing. Reveal the coins, and the places of companions with tails. The
K companions with heads and z are left, in a uniform order, on the K + 1 places left, and all but z under P contribute
nothing: that is random allocation to K + 1 steps (:mod:`.allocation`), K being binomial. So, both ways,

    delta(eps) <= sum over k of Bin(T - 1, p)(k) delta_(k+1)(eps) + (1 + e^eps) (T - 1) p G(log 1/p),

delta_t being that of random allocation to t steps. It also is at most G(eps). Since delta_t falls in t, k + 1 may be
taken for any smaller size, and K for any variable that is stochastically smaller. We know of no source for this bound.
Its argument is that of Feldman, McMillan and Talwar (2021), "Hiding among the clones", with the clone at "nothing", the
exact profile of N(g) in place of (epsilon, delta), and that of random allocation in place of a closed form.

Rounding. Everything that is computed errs by far less than SLACK, by which it is raised: laws by their own eta, counted
in them; values and their logarithms by 1e-9, as a law's theta would say; binomial weights as :func:`_binomial` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.mechanisms.allocation import (
    LEAST_NOISE,
    MOST_BATCHES,
    Grid,
    RatioLaw,
    add_laws,
    average,
    join_rare,
    law_of_one_term,
    law_of_sum,
    normal_masses,
)
from jaxacct.mechanisms.by_profile import dominate
from jaxacct.mechanisms.finite import DiscretePair, FinitePair, surely_seen
from jaxacct.mechanisms.gaussian import Gaussian
from jaxacct.mechanisms.mechanism import (
    Mechanism,
    NoisyMechanism,
    Relation,
    by_numpy_if_concrete,
    choose,
    counts_of,
    directions,
    is_count,
)
from jaxacct.mechanisms.normal import delta_above, lower_tail
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import roundoff, scale_error
from jaxacct.numerics.precision import as_float64, first_index, is_concrete, leave_scope, log_complement, within_scope
from jaxacct.numerics.pytrees import register_dataclass

# ----------------------------------------------------------------------------------------------------
# One epoch from above.
# ----------------------------------------------------------------------------------------------------

POINTS = 384
"""Number of points of a law. Any value is sound."""

COINS = 48
"""Number of probabilities p that are tried. Any value is sound."""

EPSILONS = 200
"""Number of epsilons evenly spaced, and as many dense near 0, between which the profile is by chords. Any is sound."""

ALL_SIZES = 96
"""Sizes up to this one all have a law; half as many to each octave beyond. Any even value is sound."""

WINDOW = 8192
"""Number of values of a binomial variable that are told apart. Any value is sound."""

FARTHEST = 9.0
"""Standard deviations beyond which a Gaussian step's loss counts as infinite, either way. Any value is sound."""

SLACK = 1e-9
"""Relative error allowed for a few dozen float64 operations, and for theta of laws of sizes up to 2^30."""


@register_dataclass
@dataclass(frozen=True)
class ShuffledPair(FinitePair):
    """A pair that dominates an epoch of shuffled batches; its Rényi divergences are those of one Gaussian step.

    An epoch diverges no more than that: given all places an example is in one step.

    Attributes:
        noise_multiplier (): s.
    """

    noise_multiplier: ArrayLike = 1.0

    def largest_loss(self) -> Array:
        # The pair's finite losses end where the profile was cut off; the mechanism's need not.
        return jnp.full((), jnp.inf)

    def divergence(self, orders: Array) -> Array:
        s = as_float64(self.noise_multiplier)
        return jnp.where(self.is_valid(), orders / (2 * s**2) * (1 + 8 * roundoff()), jnp.nan)


@jax.jit
def shuffled_pair(s: Array, t: Array) -> ShuffledPair:
    """Returns the pair (P, Q) of one epoch, s and t being scalars; one out of range holds NaN."""
    valid = (s >= LEAST_NOISE) & (s < jnp.inf) & (t >= 1) & (t <= MOST_BATCHES) & (t == jnp.floor(t))
    s = jnp.where(valid, s, 1.0)
    p, q, losses, rounding = dominate(*bound_profile(s, jnp.where(valid, t, 1.0)))
    return ShuffledPair(jnp.where(valid, p, jnp.nan), jnp.where(valid, q, jnp.nan), losses, rounding, s)


def bound_profile(s: Array, t: Array) -> tuple[Array, Array, Array]:
    """Returns epsilons (n,), rising from 0, and upper bounds there on delta of one epoch, removing and adding.

    ``s`` and ``t`` are valid scalars: the noise multiplier, and the number of batches.
    """
    epsilons = _epsilons(s, t)
    gaussian = _gaussian_profile(s, epsilons)
    bounds = bound_by_coins(s, t, epsilons, _coins(s, gaussian[0] / (t - 1)))
    return epsilons, *jnp.minimum(jnp.min(bounds, axis=0), gaussian[None])


def bound_by_coins(s: Array, t: Array, epsilons: Array, coins: Array) -> Array:
    """Returns upper bounds (p, 2, n) on delta of one epoch, removing and adding, one for each coin.

    ``coins`` (p,) are the logarithms of 1/p; the least counts for which sizes are told apart.
    """
    # No more companions than give so many heads that the window holds most of their law. The places of the others are
    # revealed: fewer are sound.
    most = (WINDOW / 13) ** 2
    companions = jnp.minimum(t - 1, jnp.floor(most * jnp.exp(coins)))
    # Far more heads than the likeliest coin shows hardly occur.
    heads = jnp.max((companions + 1) * jnp.exp(-coins))
    limit = jnp.minimum(heads + 6 * jnp.sqrt(heads) + 1, t)
    mixed = _mix_allocations(s, epsilons, _binomial(companions, coins), limit)
    away = companions * _remainder(s, coins)
    return mixed + ((1 + jnp.exp(epsilons))[None] * away[:, None] * (1 + scale_error(SLACK)))[:, None]


def _gaussian_profile(s: Array, epsilons: Array) -> Array:
    """Returns G, rounded up."""
    return jax.vmap(delta_above, (None, 0))((1 + 4 * roundoff()) / s, epsilons)


def _remainder(s: Array, coins: Array) -> Array:
    """Returns upper bounds on p G(log 1/p), from the logarithms of 1/p."""
    return jnp.exp(-coins) * _gaussian_profile(s, coins) * (1 + scale_error(SLACK))


def _coins(s: Array, most: Array) -> Array:
    """Returns the logarithms of 1/p that are tried: from about where 2 p G(log 1/p) is ``most``. Any are sound.

    A likelier coin has more to pay at epsilon 0 than what the Gaussian profile is there, and so at all others.
    """
    # Logarithms of 1/p, times s, beyond which coins are too rare to be of use.
    least, far = 0.2, 8.0
    places = jnp.linspace(least, far, 4 * COINS) / s
    first = jnp.min(jnp.where(2 * _remainder(s, places) < most, places, far / s))
    return first + (1.25 * far / s - first) * jnp.linspace(0.0, 1.0, COINS)


def _epsilons(s: Array, t: Array) -> Array:
    """Returns the epsilons of the profile: half of them evenly spaced, half dense at the scale of an even mean."""
    top = 0.5 / s**2 + FARTHEST / s
    width = jnp.clip(_deviation(s) / jnp.sqrt(t) / 2, 1e-6, top)
    dense = width * jnp.sinh(jnp.arcsinh(top / width) * jnp.linspace(0.0, 1.0, EPSILONS + 1)[:-1])
    even = top * (jnp.arange(EPSILONS) + 1) / EPSILONS
    return jnp.sort(jnp.concatenate([dense, even]))


def _deviation(s: Array) -> Array:
    """Returns about the standard deviation of a step's likelihood ratio."""
    return jnp.sqrt(jnp.expm1(jnp.minimum(1 / s**2, 40.0)))


def _grid_of_mean(s: Array, low: Array, high: Array, terms: Array, points: int) -> Grid:
    """Returns a grid for the mean of so many ratios, from the logarithms of the least and of the largest ratio.

    Any width is sound, and any least value: the mean less so many deviations of it, or less than any mean.
    """
    least = jnp.log(jnp.maximum(1 - FARTHEST * jnp.sqrt((1 + _deviation(s) ** 2) / terms), 1e-300))
    width = jnp.clip(1.5 * _deviation(s) / jnp.sqrt(terms), 1e-9, 1.0)
    return Grid(jnp.maximum(low - jnp.log(terms), least), high, width, points)


class _Binomial(NamedTuple):
    """Bounds on the distribution functions of binomial laws, of several numbers of coins and p.

    Attributes:
        start (p,): first value of each window.
        below (p, WINDOW): P(K <= k), rounded up, at the values of the window.
        before (p,): P(K < start), rounded up.
    """

    start: Array
    below: Array
    before: Array

    def at(self, value: Array) -> Array:
        """Returns upper bounds (p,) on P(K <= value)."""
        place = value - self.start
        inside = jnp.take_along_axis(self.below, jnp.clip(place, 0, WINDOW - 1).astype(jnp.int32)[:, None], axis=1)
        return jnp.where(place < 0, jnp.where(value < 0, 0.0, self.before), inside[:, 0])


def _binomial(count: Array, coins: Array) -> _Binomial:
    """Returns the laws of the number of heads of ``count`` (p,) coins, with the probabilities e^-coins (p,).

    Weights within a window of values are products of ratios of neighbours, over their sum. Those above the window are
    left out of the sum, so that P(K <= k) is too large; those below are at most a geometric series, as the ratios fall.
    A logarithm is a sum of 2^13 others of at most 40 each, in which the sums before it round by at most 3e5 u 2^13 =
    3e-7, and sums of weights by 2^13 u.
    """
    mean = count * jnp.exp(-coins)
    start = jnp.maximum(jnp.floor(mean) - WINDOW // 2, 0.0)
    k = start[:, None] + jnp.arange(WINDOW - 1.0)[None]
    odds = jnp.log(jnp.maximum(count[:, None] - k, 0.0) / (k + 1)) - jnp.log(jnp.expm1(coins))[:, None]
    logs = jnp.concatenate([jnp.zeros_like(start)[:, None], jnp.cumsum(odds, axis=1)], axis=1)
    weights = jnp.exp(logs - jnp.max(logs, axis=1, keepdims=True))
    # The ratio of a weight to the next one, at the first value of the window.
    fall = start / (count - start + 1) * jnp.expm1(coins)
    rest = jnp.where(start > 0, jnp.where(fall < 1, weights[:, 0] * fall / (1 - fall), jnp.inf), 0.0)
    sums, total = jnp.cumsum(weights, axis=1), jnp.sum(weights, axis=1)
    growth = 1 + scale_error(1e-6)
    before = jnp.minimum(rest / total * growth + 1e-300, 1.0)
    return _Binomial(start, jnp.minimum((rest[:, None] + sums) / total[:, None] * growth, 1.0), before)


def _mix_allocations(s: Array, epsilons: Array, law: _Binomial, limit: Array) -> Array:
    """Returns upper bounds (p, 2, n) on the mean delta of random allocation to K + 1 steps, removing and adding.

    Sizes above ``limit`` count as the largest one below it.
    """
    first, (low, high), infinite, _ = law_of_one_term(s, jnp.int32(1), POINTS, far=FARTHEST)
    gaussian = _gaussian_profile(s, epsilons)
    # Ratios are moved by more than values err, theta, which is at most 2 32 702 VALUE_ERROR.
    ratios = jnp.exp(epsilons)[:, None] * (1 - scale_error(SLACK))

    def size(place: Array) -> Array:
        half = ALL_SIZES // 2
        octave, lane = jnp.divmod(place - ALL_SIZES, half)
        return jnp.where(place < ALL_SIZES, place + 1.0, (half + 1 + lane) * 2.0 ** (1 + octave))

    def weigh(place: Array) -> Array:
        """Returns the probabilities (p,) that K + 1 is from this size up to the next, which count as this size."""
        up_to = jnp.where(size(place + 1) > limit, 1.0, law.at(size(place + 1) - 2))
        return jnp.maximum(up_to - law.at(size(place) - 2), 0.0)

    def step(carry: tuple[Array, RatioLaw, Array]) -> tuple[Array, RatioLaw, Array]:
        """Adds the law of the next size, the sum of its halves, and its profile with its weight."""
        place, laws, mixed = carry
        terms = size(place)
        is_whole = place < ALL_SIZES
        halves = [jnp.where(is_whole, at, place - ALL_SIZES // 2) for at in (place // 2 + place % 2 - 1, place // 2)]
        parts = [jax.tree.map(lambda leaf, at=at: leaf[at % ALL_SIZES], laws) for at in halves]
        shares = [size(at) / terms for at in halves]
        mean = add_laws(parts[0], shares[0], parts[1], shares[1], _grid_of_mean(s, low, high, terms, POINTS))
        laws = jax.tree.map(lambda leaf, new: leaf.at[place % ALL_SIZES].set(new), laws, mean)
        values = mean.values[None]
        removed, added = (
            jnp.sum(mean.masses[None] * jnp.maximum(gains, 0.0), axis=1)
            for gains in (values - ratios, 1 - ratios * values)
        )
        growth = 1 + scale_error(SLACK) + 2 * mean.eta
        profile = jnp.minimum(jnp.stack([removed + infinite, added]) * growth, gaussian[None])
        return place + 1, laws, mixed + weigh(place)[:, None, None] * profile[None]

    laws = jax.tree.map(lambda leaf: jnp.zeros((ALL_SIZES, *leaf.shape)).at[0].set(leaf), first)
    one = weigh(jnp.int32(0))[:, None, None] * jnp.stack([gaussian, gaussian])[None]
    start = jnp.int32(1), laws, one
    # The state is the place of the next size, the laws of the last ALL_SIZES of them, and the sum of weighted profiles.
    # Sizes up to ALL_SIZES are sums of two halves, the one longer by one where they are odd; larger ones are twice a
    # size that is ALL_SIZES / 2 places before.
    _, _, mixed = jax.lax.while_loop(lambda carry: size(carry[0]) <= limit, step, start)
    return mixed * (1 + scale_error(SLACK))


# ----------------------------------------------------------------------------------------------------
# One epoch from below: what the results of two neighbouring data sets tell, the example's contribution being u.
#
# 1. All others contribute -u: with 1 added to the results along u, and what the others of its own batch contribute,
#    results are N(0), and that of z's batch is N(2) under P and N(1) under Q. Release the largest of them, in cells: it
#    is below c with probability Phi((c - 2)/s) Phi(c/s)^(T - 1) under P, and Phi((c - 1)/s) Phi(c/s)^(T - 1) under Q.
# 2. All others contribute 0: this is random allocation to T steps. Its likelihood ratio M_T is made smaller in convex
#    order: cells of values are taken to their conditional means, in X and in every partial sum.
# 3. As in 1, but released is a sum over steps of a rounded score, which adds up what all results tell.
#
# Under "replace" z contributes -u in Q, and so do all others: that is random allocation with half the noise, exactly.
#
# Where z is in one of the T steps with probability w only, and else in none, P and Q both are mixtures with the run R
# without z: P = w P' + (1 - w) R, and so is the law of everything that is released. Such a mechanism releases the less,
# the smaller w is: with v < w its laws are v/w times those of w, and 1 - v/w times R, and R tells nothing.
#
# *Remainders.* Let n = T b + r, 0 <= r < b. With a last batch of r all is as above with T + 1 steps: the others fill
# every batch (in 2, uneven sizes are larger in convex order than even ones). Where r examples are left out, w is T b/n.
# And whoever does not look at the last step of T + 1 has w >= T/(T + 1), and so has, looking at all, whoever has no
# remainder. So T steps with w = T/(T + 1) serve all n. If an epoch ends after S steps, w is S/T, and S/(T + 1) serves
# all n.
#
# Sources: for 1, Chua et al. (2024), "How private are DP-SGD implementations?"; for the others' best choice we know of
# none: they may adapt, too.
# ----------------------------------------------------------------------------------------------------

OUTCOMES = 4 * EPSILONS + 1
"""Number of outcomes of a pair from below. Any value is sound; that of a pair from above lets both be one program."""

MOST_SUMMED = 2**14
"""Largest number of steps of which scores are summed: direct products of their laws take time. Any value is sound."""


@register_dataclass
@dataclass(frozen=True)
class AttainedPair(DiscretePair):
    """A mechanism of two laws on finitely many outcomes, known up to rounding: the fields of a :class:`.FinitePair`.

    Attributes:
        rounding (..., m): bounds on the relative errors of p and q.
    """

    rounding: Float[ArrayLike, "*batch m"]

    vectors: ClassVar[tuple[str, ...]] = ("p", "q", "rounding")

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns pairs that tell no more than the laws do: losses are quotients, and err by twice what masses do.

        Q's masses that go with the losses so lowered are larger by as much, which is part of the pairs' rounding. They
        are of the class of pairs from above, so that programs serve both; their Rényi divergences are not bounded.
        """
        rounding = as_float64(self.rounding)

        def lower(pair: FinitePair) -> ShuffledPair:
            p, q = as_float64(pair.p), as_float64(pair.q)
            shared = (p > 0) & (q > 0)
            losses = jnp.log(jnp.where(shared, p, 1.0) / jnp.where(shared, q, 1.0)) - 2 * rounding
            return ShuffledPair(p, q, jnp.where(shared, losses, -jnp.inf), 4 * rounding, jnp.zeros(()))

        pairs = cast(tuple[FinitePair, ...], super().dominating_pairs(relation))
        return tuple(leave_scope(lower(pair)) for pair in pairs)


@jax.jit
def _largest_result(s: Array, t: Array, w: Array) -> AttainedPair:
    """Returns the pair of the largest of t results, in cells."""
    # Logarithm of the probability, of all below, from which the cells begin. Any value is sound, and any ends.
    seldom = -30.0
    low = ndtri(jnp.exp(seldom / t))
    high = jnp.maximum(jnp.minimum(2 / s + FARTHEST, 1 / s + 36), low + 1)
    ends = low + (high - low) * jnp.linspace(0.0, 1.0, OUTCOMES - 1)
    shifted = ends[None] - jnp.array([2.0, 1.0, 0.0])[:, None] / s
    tails = lower_tail(-jnp.abs(shifted))
    logs = jnp.where(shifted < 0, jnp.log(tails), log_complement(tails))
    # In P, in Q, and in the run without z; the first and the last cell have no other end.
    logs = logs + (t - 1) * logs[2:]
    edge = jnp.zeros((3, 1))
    below = jnp.concatenate([edge, jnp.exp(logs), edge + 1], 1)
    above = jnp.concatenate([edge + 1, -jnp.expm1(logs), edge], 1)
    # A logarithm errs by so many units of itself: 8 (1 + z^2) of the tail, as many of z, and a few.
    unit = 64 * roundoff() * (1 + jnp.max(shifted**2))
    errors = unit * jnp.concatenate([edge, (1 - logs) * jnp.exp(logs), edge], 1), unit * above
    by_below = jnp.concatenate([logs, edge], 1) < -0.5
    masses = jnp.where(by_below, jnp.diff(below, axis=1), -jnp.diff(above, axis=1))
    of_below, of_above = (each[:, :-1] + each[:, 1:] for each in errors)
    both = jnp.stack([masses, jnp.where(by_below, of_below, of_above)])
    (p, q), off = w * both[:, :2] + (1 - w) * both[:, 2:]
    return _join_unknown(p, q, jnp.max(off / jnp.maximum(jnp.stack([p, q]), 1e-300), axis=0))


@jax.jit
def _contracted_allocation(s: Array, t: Array, w: Array) -> AttainedPair:
    """Returns a pair of a smaller ratio, in convex order, than that of random allocation to t steps.

    Masses of Q are right to eta, and the ratios to 2 eta for each of two means a merge: eta grows at least as the
    number of terms does, so that all of them together are at most 15 eta of the last.
    """
    terms = t.astype(jnp.int32)
    first, ends, _, _ = law_of_one_term(s, terms, OUTCOMES, contracts=True)
    law = average(first, terms, ends, _deviation(s), OUTCOMES, contracts=True)
    ratios = 1 - w + w * law.values
    return _join_unknown(ratios * law.masses, law.masses, jnp.full(OUTCOMES, 16 * law.eta))


def _join_unknown(p: Array, q: Array, rounding: Array) -> AttainedPair:
    """Returns the pair of masses, outcomes that are hardly known joined to the likeliest one, and sums made one."""
    # Relative error, and mass, from which an outcome is known. Any values are sound, within the range of float64.
    known = (rounding < 1e-4) & (jnp.minimum(p, q) > 1e-290)
    likeliest = jnp.arange(OUTCOMES) == first_index(q == jnp.max(q))
    rounding = jnp.where(known, rounding, 0.0)

    def join(masses: Array) -> tuple[Array, Array]:
        joined = jnp.where(known, masses, 0.0) + jnp.where(likeliest, jnp.sum(jnp.where(known, 0.0, masses)), 0.0)
        total = jnp.sum(joined)
        return joined / total, jnp.abs(total - 1)

    (p, p_off), (q, q_off) = join(p), join(q)
    return AttainedPair(p, q, rounding + p_off + q_off + 4 * OUTCOMES * roundoff())


def _summed_scores(s: float, t: int, w: float, rate: float) -> AttainedPair:
    """Returns the pair of a sum over steps of a rounded score, on OUTCOMES groups of values of like loss."""
    # Results that are told apart, levels of a score, and masses that are cut off. Any values are sound.
    cells, levels, rare = 8000, min(128, int(2**13 / math.sqrt(t))), 1e-25
    ends = np.linspace(-FARTHEST, 2 / s + FARTHEST, cells - 1)
    middle = np.concatenate([ends[:1], (ends[1:] + ends[:-1]) / 2, ends[-1:]])
    # A Poisson sample's loss, as if the example were in each step with probability ``rate``.
    one, two = (np.logaddexp(np.log1p(-rate), np.log(rate) + (k * middle - k * k / (2 * s)) / s) for k in (1, 2))
    score = two - one
    # Of so much noise that rounding leaves one score all have the least level.
    level = np.minimum((score - np.min(score)) / (np.ptp(score) or 1.0) * levels, levels - 1).astype(int)
    absent, without, present = (np.bincount(level, normal_masses(ends - k / s), levels) for k in (0, 1, 2))
    others = law_of_sum(absent, t - 1, rare)
    p, q, neither = (np.convolve(others, masses) for masses in (present, without, absent))
    p, q = join_rare(w * p + (1 - w) * neither, w * q + (1 - w) * neither, 1e-14)
    held = p > 0
    p, q = p[held], q[held]
    loss = np.log(p / q)
    # Groups of like loss: half of them of equal widths where the masses are, half of equal masses. Any are sound.
    seen = loss[np.maximum(p, q) > 1e-12]
    order = np.argsort(loss)
    shares = np.searchsorted(np.cumsum((p + q)[order]) / 2, np.linspace(0, 1, OUTCOMES // 2))
    edges = [np.linspace(seen.min(), seen.max(), OUTCOMES // 2 - 1), loss[order][np.minimum(shares, len(loss) - 1)]]
    group = np.searchsorted(np.sort(np.concatenate(edges)), loss)
    p, q = (np.bincount(group, masses, OUTCOMES) for masses in (p, q))
    # Masses of cells are differences of tails, at most 1e3 of them, and those of sums products of t, of which 4 t
    # times the rare mass is missing.
    return AttainedPair(p, q, np.full(OUTCOMES, (t + 100) * 1e-12 + 4 * t * rare / 1e-14))


# ----------------------------------------------------------------------------------------------------
# The mechanism.
# ----------------------------------------------------------------------------------------------------

REMAINDERS = "even", "small", "dropped"
"""Kinds of what is left of the data by whole batches: nothing, a last, smaller batch, or examples that are left out."""


@register_dataclass
@dataclass(frozen=True)
class ShuffledGaussian(NoisyMechanism):
    """Noisy sums over the batches of one shuffle of the data: an epoch of most training pipelines.

    The data are put into one uniformly random order, which stays secret, and its pieces are the batches: of b examples
    each, one after the other. Their sums of clipped contributions get Gaussian noise, and each step is free to depend
    on all results before. E epochs, each shuffled afresh, are ``steps=E`` of this mechanism.

    Attributes:
        noise_multiplier (...): standard deviation of the noise of one step over the clipping norm.
        batches (...): T, the number of batches of b examples, the number of examples over b, rounded down; whole, from
            1 to 2**30. Shapes broadcast.
        epochs_per_shuffle (...): epochs that one shuffle is used for, in the same order. Those are hardly amplified.
        remainder: what becomes of examples that do not fill a batch, static: "even" where there are none, "small" where
            they are one more batch, "dropped" where they are left out of the epoch; None, the default, where it is not
            known. It changes the lower end alone.
        stop_after: the batches that are run of the epoch, or of the last one with this order; static. None is for all.

    Relations: "zero_out" (default), under which an example's contribution becomes 0 and its place stays; "replace".
    "add_or_remove" is *not* among them: with one example less all batches after its place are cut elsewhere, and there
    may be a step less. Nothing is known of it.

    Formal guarantee: the pairs dominate, so the upper bounds of accountants hold, under these conditions: the order is
    uniform and secret (a seed that is published, a default or guessable amplifies nothing); the noise is the same at
    all steps of an epoch, or is at least this; an example is in each batch at most once, and contributes on its own,
    without packing or statistics of its batch. The proof reveals all places but those of the example and of one
    companion in each other batch, which are in a uniform order. A companion's noisy contribution is, up to a small
    distance, pure noise with a probability p, whatever it is; so some of the companions hide the example as random
    allocation does (:mod:`jaxacct.mechanisms.shuffled`). The distance is paid for T - 1 companions, which is why the
    bound is that of the :class:`.Gaussian` mechanism where noise is small. For "replace" the pair is that of half the
    noise; outside of a trace :func:`jaxacct.epsilon` also takes the bound of two steps of zeroing out.

    The ``lower`` of :func:`jaxacct.epsilon` is one of the mechanism itself (:meth:`attained`): of what results tell
    where all others contribute the opposite of the example, or nothing. Others that adapt may do worse, which is open.

    Epsilons where batches are even, and those that an accountant of Poisson samples of the same size would say of the
    same runs, too low:

    ===== ===== ====== ===== ====== ====== =======
    noise T     epochs delta lower  upper  Poisson
    ===== ===== ====== ===== ====== ====== =======
    1.0   938   10     1e-5  4.576  6.224  0.493
    1.5   98    90     1e-5  6.953  12.93  3.038
    2.0   20    5      1e-5  1.914  3.092  1.097
    0.6   1,000 1      1e-6  8.833  8.841  2.107
    ===== ===== ====== ===== ====== ====== =======

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead, as does
    noise below 0.05. Rényi divergences are those of one Gaussian step, for no better bound is known.

    Source: the argument from above is that of Feldman, McMillan and Talwar (2021), "Hiding among the clones", with the
    exact profiles of this noise; we know of no source for the bound itself. From below: Chua et al. (2024), "How
    private are DP-SGD implementations?", for the largest result.

    >>> import jaxacct as ja
    >>> epochs = ShuffledGaussian(noise_multiplier=2.0, batches=20, remainder="even")
    >>> bracket = ja.epsilon(epochs, steps=5, delta=1e-5, relation="zero_out")
    >>> bool(1.91 < bracket.lower < bracket.upper < 3.1)
    True
    """

    noise_multiplier: ArrayLike
    batches: ArrayLike
    epochs_per_shuffle: ArrayLike = 1
    remainder: str | None = field(default=None, metadata={"static": True})
    stop_after: int | None = field(default=None, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("zero_out", "replace")
    unknown: ClassVar[str] = (
        ", as with one example less all batches after its place are cut elsewhere, and there may be a step less"
    )

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_batches(self.batches, MOST_BATCHES)
        validation.check_whole_numbers(
            self.epochs_per_shuffle, "epochs_per_shuffle", MOST_BATCHES, "epochs", "a whole number with one order,"
        )
        if self.remainder is not None:
            validation.check_one_of(self.remainder, "remainder", REMAINDERS, ", and None is for any of them")
        if self.stop_after is not None:
            batches = validation.concrete_value(self.batches)
            most = MOST_BATCHES if batches is None else int(np.min(batches, initial=MOST_BATCHES))
            validation.check_whole(self.stop_after, "stop_after", 1, most, "the batches of an epoch that are run")

    noiseless_pairs = surely_seen

    def with_unit_parameters(self, nothing: Bool[ArrayLike, "*batch"]) -> Self:
        noise, batches = choose(nothing, 1.0, self.noise_multiplier), choose(nothing, 1, self.batches)
        return replace(self, noise_multiplier=noise, batches=batches)

    @property
    def composed(self) -> bool:
        return False  # it lists itself

    def decompose(self, steps: ArrayLike) -> list[tuple[Mechanism, ArrayLike]]:
        """Returns runs of the Gaussian mechanism for a single batch of all examples, which it is, and else this.

        Traced numbers, and several with a leading axis, may be of either kind: then both are listed, with 0 runs of the
        one that does not apply. Where examples may be left over there is more than one batch, or one not of all.
        """
        if self.remainder != "even" or self.stop_after is not None:
            return [(self, steps)]
        steps, batches, epochs = map(counts_of, (steps, self.batches, self.epochs_per_shuffle))
        single = batches == 1
        # Fractions could make a whole number of runs, or none.
        steps = choose(is_count(steps), steps, np.nan)
        epochs = choose(is_count(epochs) & (epochs >= 1), epochs, np.nan)
        runs: list[tuple[Mechanism, ArrayLike]] = [
            (Gaussian(choose(single, self.noise_multiplier, 1.0)), choose(single, steps * epochs, 0)),
            (replace(self, batches=choose(single, 2, batches)), choose(single, 0, steps)),
        ]
        if not is_concrete(single, steps, epochs):
            return runs
        return [(part, count) for part, count in runs if np.any(count)] or runs[:1]

    @within_scope
    def dominating_pairs(self, relation: Relation = "zero_out") -> tuple[DominatingPair, ...]:
        """Returns a pair (P, Q) and its reverse (Q, P) for "zero_out"; those of half the noise for "replace"."""
        directions(self, relation)
        pair = leave_scope(shuffled_pair(as_float64(self._noise(relation, -1.0)), as_float64(self.batches)))
        return pair, replace(pair, p=pair.q, q=pair.p, losses=-pair.losses)

    @within_scope
    def attained(self, relation: Relation) -> tuple[tuple[Mechanism, ...], ...]:
        """Returns the pairs of what two data sets release, in one case, for these serve all remainders if asked to.

        Sums of scores, of concrete numbers alone, tell more than random allocation does, which then is left out.
        """
        directions(self, relation)

        def settle(xp: Any, s: Any, t: Any) -> tuple[Any, ...]:
            """Returns noise, steps, and the probability that the example is in one of them; invalid ones tell nothing.

            More noise tells less.
            """
            total = t + (self.remainder != "even")
            run = total if self.remainder == "small" else t
            run = run if self.stop_after is None else xp.minimum(self.stop_after, t)
            valid = (s >= 0) & (s < xp.inf) & (t >= 1) & (t <= MOST_BATCHES) & (t == xp.floor(t))
            share = xp.where(valid, run / total * (1 - 2 * roundoff()), 0.0)
            settled = xp.where(valid, xp.maximum(s, LEAST_NOISE), 1.0), xp.where(valid, run, 1.0), share
            return tuple(xp.broadcast_arrays(*settled))

        s, t, w = by_numpy_if_concrete(settle, self._noise(relation, 1.0), self.batches)
        is_summed = not self.batch_shape and is_concrete(s, t) and 1 < t <= MOST_SUMMED
        if relation == "replace":
            ways = [_contracted_allocation]
        else:
            ways = [_largest_result] if is_summed else [_largest_result, _contracted_allocation]
        pairs: list[Mechanism] = [leave_scope((jax.vmap(way) if self.batch_shape else way)(s, t, w)) for way in ways]
        if relation != "replace" and is_summed:
            # Rates, times t, of the samples whose losses are summed. Any are sound.
            rates = sorted({min(rate / float(t), 0.5) for rate in (1, 8)})
            pairs += [_summed_scores(float(s), int(t), float(w), rate) for rate in rates]
        return (tuple(pairs),)

    def _noise(self, relation: Relation, side: float) -> Any:
        """Returns the noise multiplier of one epoch, rounded down where ``side`` is -1, and up where it is 1."""
        unit = side * 4 * roundoff()

        def divide(xp: Any, s: Any, epochs: Any) -> Any:
            s = s / 2 if relation == "replace" else s
            epochs = xp.where((epochs >= 1) & (epochs == xp.floor(epochs)), epochs, xp.nan)
            return xp.where(epochs == 1, s, s / xp.sqrt(epochs) * (1 + unit))

        return by_numpy_if_concrete(divide, self.noise_multiplier, self.epochs_per_shuffle)
