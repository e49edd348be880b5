"""Trade-off curves of compositions, certified, and what they say of attacks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.bounds import Bounds
from jaxacct.composition import check
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.precision import as_float64, in_float64, is_concrete, log_complement, outside
from jaxacct.programs import compiled
from jaxacct.tradeoff.closed import checked_rates
from jaxacct.tradeoff.profile import BATCH, Profile, certified, infinite_share, largest_epsilon, lines_below

LEAST_DELTA = 1e-9
"""Delta up to which the grid of epsilons goes, times the least false-positive rate if that is below 1."""

TIGHT = 1e-2
"""Width up to which a bracket of a false-negative rate counts as converged."""

REVERSE: dict[Relation, Relation] = {"remove": "add", "add": "remove"}
"""The relation whose pair is the other way round; all others are their own."""


@in_float64
def curve(
    mechanism: Mechanisms,
    steps: Steps,
    fpr: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    accountant: str = "best",
) -> Bounds:
    """Returns certified bounds on the least false-negative rate of any attack, at each false-positive rate: f-DP.

    Args:
        mechanism: as of :func:`jaxacct.epsilon`: one mechanism, a sequence by a leading axis, or a tuple.
        steps: likewise. May be traced.
        fpr (n,): false-positive rates in [0, 1]; or one, (). May be traced.
        relation: neighbouring relation, one that the mechanisms support. "remove" and "add" alone give curves that are
            not their own inverses; the null hypothesis is the data set that is left with "remove".
        accountant: "best" (the exact accountant where it converges, else meshes), "saddlepoint" or "prv".

    Returns :class:`~jaxacct.bounds.Bounds` of the shape of ``fpr``. Here ``lower`` is what protects: no attack has
    fewer false negatives. It is convex in fpr and at most 1 - fpr. 0 where nothing is known.

    Formal guarantee: ``lower <= f(fpr) <= upper``, f the trade-off function of the dominating pairs' composition,
    rounding included. f(a) is the supremum over real eps of 1 - delta(eps) - e^eps a (Dong, Roth and Su 2022,
    Proposition 2.12), so any certified delta gives a bound from below. Between two epsilons of a grid delta is at least
    the larger of two lines (:func:`~jaxacct.tradeoff.profile.lines_below`), and on each piece what is to be maximized
    is linear: that bounds f from above. The grid has 64 epsilons and, outside a trace, those of the tangents at the
    rates asked for: ``lower`` is within 1e-4 of f there.

    Raises ValueError where a concrete argument is out of range.

    >>> from jaxacct import Gaussian
    >>> rates = curve(Gaussian(noise_multiplier=10.0), 100, [0.1, 0.5])
    >>> [f"{low:.4f} {high:.3f}" for low, high in zip(rates.lower, rates.upper)]
    ['0.6109 0.611', '0.1587 0.159']
    """
    check(mechanism, steps)
    rates = checked_rates(fpr)
    if np.ndim(rates) > 1 or not np.size(rates):
        raise ValueError(f"fpr of shape {np.shape(rates)} is no list: give one axis of rates, at least one, or a rate.")
    a = as_float64(rates)
    if not np.ndim(rates):
        found = curve(mechanism, steps, a[None], relation=relation, accountant=accountant)
        return outside(jax.tree.map(lambda leaf: leaf[0], found))
    concrete = is_concrete(mechanism, steps, rates)
    positive = np.asarray(rates)[np.asarray(rates) > 0] if concrete else np.ones(0)
    delta = LEAST_DELTA * float(np.clip(np.min(positive, initial=1.0), 1e-200, 1.0))
    sides = [relation, REVERSE.get(relation, relation)]
    every = [relation] if sides[0] == sides[1] else sides
    last = functools.reduce(jnp.maximum, [largest_epsilon(mechanism, steps, delta, r) for r in every])
    known = jnp.isfinite(last)
    grid = jnp.where(known, jnp.maximum(last, 1e-6), 1.0) * jnp.linspace(0.0, 1.0, 2 * BATCH)
    if concrete and not known:
        return outside(_unknown(a))
    profiles = {r: certified(mechanism, steps, np.asarray(grid) if concrete else grid, r, accountant) for r in every}
    if concrete:
        middle = _both_sides(profiles[sides[0]], profiles[sides[1]])
        for r, sign in zip(sides, (1.0, -1.0), strict=True):
            profiles[r] = _with(profiles[r], np.asarray(_tangents(middle, a)) * sign, mechanism, steps, r, accountant)
    share = infinite_share(mechanism, steps, relation)
    lower, upper = _curve_of(_both_sides(profiles[sides[0]], profiles[sides[1]]), share, a)
    valid = known & (a >= 0) & (a <= 1)
    lower, upper = jnp.where(valid, lower, 0.0), jnp.where(valid, upper, 1.0)
    converged = valid & (upper - lower <= TIGHT)
    return outside(Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper, converged=converged))


@in_float64
def advantage(
    mechanism: Mechanisms, steps: Steps, *, relation: Relation = "add_or_remove", accountant: str = "best"
) -> Bounds:
    """Returns certified bounds on the largest difference of an attack's true- and false-positive rate, ().

    It is delta at epsilon = 0, the total variation distance. Arguments, errors and the accountants are those of
    :func:`curve`.

    Formal guarantee: ``lower <= advantage <= upper`` for the dominating pairs' composition under ``relation``, rounding
    included; ``upper`` is what protects. It is 1 where nothing is known, as for invalid traced arguments.

    Source: Kairouz, Oh and Viswanath (2015), "The composition theorem for differential privacy", section 2.

    >>> from jaxacct import Gaussian
    >>> bounds = advantage(Gaussian(noise_multiplier=10.0), 100)
    >>> f"{bounds.lower:.8f} {bounds.upper:.8f}"
    '0.38292492 0.38292492'
    """
    check(mechanism, steps)
    found = certified(mechanism, steps, np.zeros(1), relation, accountant)
    lower, upper = found.lower[0], found.upper[0]
    return outside(Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper, converged=upper < 1))


@in_float64
def true_positive_rate(
    mechanism: Mechanisms,
    steps: Steps,
    fpr: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    accountant: str = "best",
) -> Bounds:
    """Returns certified bounds on the largest true-positive rate of any attack, at each false-positive rate.

    One less what :func:`curve` returns, whose arguments and errors these are.

    Formal guarantee: ``lower <= 1 - f(fpr) <= upper``, f as of :func:`curve`, rounding included; ``upper`` is what
    protects. It is 1 where nothing is known.

    >>> from jaxacct import Gaussian
    >>> bounds = true_positive_rate(Gaussian(noise_multiplier=10.0), 100, [0.1])
    >>> bool(bounds.lower[0] <= 0.38913739 <= bounds.upper[0])
    True
    """
    found = curve(mechanism, steps, fpr, relation=relation, accountant=accountant)
    rounding = 2 * roundoff()
    lower = jnp.maximum(1 - as_float64(found.upper) - rounding, 0.0)
    upper = jnp.minimum(1 - as_float64(found.lower) + rounding, 1.0)
    return outside(Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper, converged=found.converged))


@in_float64
def bayes_risk(
    mechanism: Mechanisms,
    steps: Steps,
    prior: ArrayLike = 0.5,
    *,
    relation: Relation = "add_or_remove",
    accountant: str = "best",
) -> Bounds:
    """Returns certified bounds on the least error of an attack that knows how likely the example took part, ().

    Args:
        mechanism: as of :func:`curve`.
        steps: likewise.
        prior (): probability, in (0, 1), that the example took part.
        relation: as of :func:`curve`; all but "add" and "remove" alone.
        accountant: likewise.

    Formal guarantee: the error is the minimum of (1 - prior) a + prior f(a) over a, that is the smaller of both
    probabilities times 1 - delta(|log odds|). ``lower`` is what protects, rounding included. 0 where nothing is known.

    Raises ValueError where a concrete argument is out of range.

    >>> from jaxacct import Gaussian
    >>> bounds = bayes_risk(Gaussian(noise_multiplier=10.0), 100)
    >>> f"{bounds.lower:.8f} {bounds.upper:.8f}"
    '0.30853754 0.30853754'
    """
    check(mechanism, steps)
    if relation in REVERSE:
        raise ValueError(f'relation = {relation!r} has no Bayes risk of its own: give "add_or_remove".')
    if is_concrete(prior) and not 0 < float(np.asarray(prior)) < 1:
        raise ValueError(f"prior = {prior} is not in (0, 1): give the probability that the example took part.")
    chance = as_float64(prior)
    rarer = jnp.minimum(chance, 1 - chance)
    # The rounding of the odds moves delta by less than that of epsilon itself: delta has slope at least -1.
    odds = jnp.abs(jnp.log(chance) - log_complement(chance))
    error = 16 * roundoff() * (1 + jnp.abs(jnp.log(rarer)))
    places = odds + error * jnp.arange(-1.0, 2.0)
    places = jnp.maximum(places, jnp.arange(3.0) * 1e-300)
    found = certified(mechanism, steps, np.asarray(places) if is_concrete(places) else places, relation, accountant)
    lower = jnp.maximum(rarer * (1 - found.upper[0]) * (1 - 8 * roundoff()) - 4 * roundoff(), 0.0)
    upper = rarer * (1 - found.lower[2]) * (1 + 8 * roundoff())
    valid = (chance > 0) & (chance < 1)
    lower, upper = jnp.where(valid, lower, 0.0), jnp.where(valid, upper, 0.5)
    return outside(
        Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper, converged=valid & (found.upper[0] < 1))
    )


def _unknown(a: Array) -> Bounds:
    nothing = jnp.zeros_like(a)
    return Bounds(lower=nothing, estimate=nothing, upper=1 - a, converged=nothing > 0)


@compiled
def _both_sides(ahead: Profile, behind: Profile) -> Profile:
    """Returns the profile over negative epsilons too, from the profile of the pair the other way round.

    delta(-e) = 1 - e^-e (1 - delta'(e)), delta' that of the reverse pair.
    """

    def reflected(delta: Array, side: float) -> Array:
        values = -jnp.expm1(-behind.epsilon) + jnp.exp(-behind.epsilon) * delta
        return jnp.clip(values * (1 + side * 2 * arithmetic().function), 0.0, 1.0)[:0:-1]

    lower, upper = reflected(behind.lower, -1.0), reflected(behind.upper, 1.0)
    return Profile(
        jnp.concatenate([-behind.epsilon[:0:-1], ahead.epsilon]),
        jax.lax.cummax(jnp.concatenate([lower, ahead.lower]), reverse=True),
        jax.lax.cummin(jnp.concatenate([upper, ahead.upper])),
    )


@compiled
def _tangents(profile: Profile, rates: Array) -> Array:
    """Returns about the epsilons whose tangents touch the trade-off curve at the rates, from the slopes of chords."""
    falls = profile.upper[:-1] - profile.upper[1:]
    log_slopes = (
        jnp.log(jnp.maximum(falls, 1e-300)) - jnp.log(jnp.expm1(jnp.diff(profile.epsilon))) - profile.epsilon[:-1]
    )
    middles = (profile.epsilon[1:] + profile.epsilon[:-1]) / 2
    return jnp.interp(-jnp.log(jnp.maximum(rates, 1e-300)), -log_slopes, middles)


def _with(
    profile: Profile, epsilons: np.ndarray, mechanism: Mechanisms, steps: Steps, relation: Relation, accountant: str
) -> Profile:
    """Returns the profile with further places, of those ``epsilons`` that are above 0."""
    old = np.asarray(profile.epsilon)
    new = np.setdiff1d(epsilons[epsilons > 0], old)
    if not new.size:
        return profile
    found = certified(mechanism, steps, new, relation, accountant)
    order = np.argsort(np.concatenate([old, new]), kind="stable")
    values = (np.concatenate([np.asarray(x), np.asarray(y)])[order] for x, y in zip(profile, found, strict=True))
    return Profile(*map(jnp.asarray, values))


@compiled
def _curve_of(profile: Profile, share: Array, rates: Array) -> tuple[Array, Array]:
    """Returns bounds from below and above on the trade-off curve at the rates; delta is at least ``share``."""
    epsilon, _, upper = profile
    x = jnp.exp(epsilon)
    lines = lines_below(profile)
    crossing = lines.highest_crossing()
    # An end is itself, however long the segment.
    inner = jnp.where(lines.crossing == 0, 0.0, lines.crossing * jnp.expm1(jnp.diff(epsilon)))
    between = x[:-1] * (1 + inner)
    corners = jnp.concatenate([x[:-1], x[1:], between])
    deltas = jnp.concatenate(
        [jnp.maximum(first, second) for first, second in zip(lines.from_left, lines.from_right, strict=True)]
        + [crossing]
    )

    def at(rate: Array) -> tuple[Array, Array]:
        margin = 8 * roundoff()
        # Where lines cross is a sum and a product more, of a length that rounds with the segment's.
        wider = 4 * arithmetic().function + 4 * roundoff() * jnp.max(jnp.diff(epsilon))

        def weighed(x: Array) -> Array:
            """Returns e^eps a: nothing of a = 0, though e^eps may be beyond float64."""
            return jnp.where(rate == 0, 0.0, x * rate)

        below = jnp.max(1 - upper - weighed(x) * (1 + margin) - margin)
        above = jnp.max(1 - deltas - weighed(corners) * (1 - wider) + margin)
        # Beyond the ends: a steeper line of the least delta; and x below the first, where delta is at least 1 - x.
        beyond = jnp.maximum(1 - (share + weighed(x[-1])) * (1 - margin), x[0] * (1 - rate) * (1 + margin))
        return below, jnp.maximum(above, beyond)

    below, above = jax.lax.map(at, rates)
    known = ~(jnp.isnan(below) | jnp.isnan(above))
    return jnp.where(known, jnp.maximum(below, 0.0), 0.0), jnp.where(known, jnp.clip(above, 0.0, 1 - rates), 1 - rates)
