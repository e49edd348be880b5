"""Certified trade-off functions (f-DP) of compositions, the success of attacks that they bound, and curves as polygons.

A trade-off function f gives the least false-negative rate of any test between neighbouring data sets at each
false-positive rate. It and the privacy profile delta(eps) determine one another: f(a) is the supremum of
1 - delta(eps) - e^eps a over real eps (Dong, Roth and Su 2022, Proposition 2.12). So certified deltas on a grid of
epsilons bound f from below, and, as delta is convex in e^eps, from above as well.

In reading order:

* :class:`TradeOff`: the trade-off of one composition as an object, with methods for each kind of attack;
* :func:`approximate_dp`, :func:`gaussian`, :func:`perfect`: trade-off functions with closed forms;
* :func:`certify_profile` and :func:`lines_below`: a profile's bounds at many epsilons, and between them;
* :func:`curve`, :func:`advantage`, :func:`true_positive_rate`, :func:`bayes_risk`: certified curves and risks, where
  ``lower`` of a curve is what protects;
* :func:`from_delta`, :func:`to_delta` and what follows them: polygons as arrays, their conversions, subsampling,
  inverse and double conjugate, and the mechanism of a polygon, by which curves are composed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, ArrayLike, Float

from jaxacct import saddlepoint, validation
from jaxacct.bounds import Bounds, enclose
from jaxacct.certified import narrow_down
from jaxacct.composition import ForDelta, Parts, check, directed_parts, facts_of, query_of
from jaxacct.convert.one_parameter import check_mu
from jaxacct.mechanisms import DiscretePair
from jaxacct.mechanisms.mechanism import REVERSE, Mechanisms, Relation, Steps, knows_both_ways
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.derivatives import Differences
from jaxacct.numerics.precision import as_float64, is_concrete, kernel, leave_scope, log_complement
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import of_each
from jaxacct.rdp import compose
from jaxacct.saddlepoint import of_atoms
from jaxacct.saddlepoint.accountant import ROW, may_answer

__all__ = [
    "TradeOff",
    "advantage",
    "approximate_dp",
    "at",
    "bayes_risk",
    "convex_minorant",
    "curve",
    "from_delta",
    "gaussian",
    "inverse",
    "pair",
    "perfect",
    "subsampled",
    "symmetrized",
    "to_delta",
    "true_positive_rate",
]


@dataclass(frozen=True)
class TradeOff:
    """Trade-off between the errors of a test for one example, given the results of a composition: f-DP.

    Attributes:
        mechanism, steps, relation: as of :func:`jaxacct.epsilon`; concrete numbers.

    Guarantee: every method returns certified :class:`~jaxacct.bounds.Bounds`, rounding included, for the dominating
    pairs' composition. Each says which end protects. :func:`jaxacct.epsilon` and :func:`jaxacct.curve` give the
    (epsilon, delta) of the same run; :func:`jaxacct.group` covers several examples at once.

    Raises ValueError or TypeError as :func:`jaxacct.epsilon` does.

    >>> from jaxacct import Gaussian
    >>> run = TradeOff(Gaussian(noise_multiplier=10.0), 100)
    >>> [f"{found:.4f}" for found in (run.beta(0.5).lower, run.advantage().upper, run.bayes_risk(0.5).lower)]
    ['0.1587', '0.3829', '0.3085']
    """

    mechanism: Mechanisms
    steps: Steps
    relation: Relation = "add_or_remove"

    def __post_init__(self) -> None:
        check(self.mechanism, self.steps)

    def beta(self, alpha: ArrayLike) -> Bounds:
        """Returns the least false-negative rate at false-positive rates (...); ``lower`` protects: :func:`.curve`."""
        return self._at_each(curve, alpha, self.relation)

    def advantage(self) -> Bounds:
        """Returns :func:`.advantage`, the total variation; ``upper`` protects."""
        return advantage(self.mechanism, self.steps, relation=self.relation)

    def bayes_risk(self, prior: ArrayLike = 0.5) -> Bounds:
        """Returns :func:`.bayes_risk`, the least error of whoever knows the prior; ``lower`` protects.

        The largest difference of two mechanisms' risks over all priors is the loss in taking one for the other
        (Kaissis et al. 2024, "Beyond the calibration point").
        """
        return bayes_risk(self.mechanism, self.steps, prior, relation=self.relation)

    def reconstruction(self, baseline: ArrayLike) -> Bounds:
        """Returns the largest probability that an example is reconstructed; ``upper`` protects.

        Args:
            baseline (...): kappa in [0, 1], the success of the best guess without any result: under the prior of
                examples, the largest probability that any one guess is near enough.

        Guarantee: 1 - f(kappa), f the trade-off whose null hypothesis is the data without the example, whatever else
        the attack knows, for any prior and any notion of being near. *Proof.* The results from which example z is
        reconstructed have probabilities p_z with it and q_z without; q_z has a mean of at most kappa, for without z
        the results tell nothing of it; p_z <= 1 - f(q_z), which is concave. ``lower`` is for the worst prior, and pairs
        that are attained.

        Raises ValueError under the relation "add", whose null hypothesis is the data with the example.

        Source: Balle, Cherubin and Hayes (2022), "Reconstructing training data with informed adversaries", Theorem 2;
        in this form Hayes, Mahloujifar and Balle (2023), "Bounding training data reconstruction in DP-SGD", Theorem 2.
        """
        if self.relation == "add":
            raise ValueError('relation = "add" has the example under the null hypothesis: give "remove".')
        has_both_directions = self.relation == "add_or_remove" and knows_both_ways(self.mechanism, self.steps)
        relation: Relation = "remove" if has_both_directions else self.relation
        return self._at_each(true_positive_rate, baseline, relation)

    def _at_each(self, bounds_of: Callable[..., Bounds], fpr: ArrayLike, relation: Relation) -> Bounds:
        """Returns the bounds of :func:`curve`, or of a function like it, at rates of any shape."""
        rates = np.asarray(fpr, np.float64)
        bounds = bounds_of(self.mechanism, self.steps, rates.reshape(-1), relation=relation)
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(rates.shape)[()], bounds)


# ----------------------------------------------------------------------------------------------------
# Closed forms: trade-off functions elementwise in all arguments.
# ----------------------------------------------------------------------------------------------------


def approximate_dp(epsilon: ArrayLike, delta: ArrayLike, fpr: ArrayLike) -> Float[Array, ...]:
    """Returns f_{epsilon,delta}: the least false-negative rate that (epsilon, delta)-DP allows an attack.

    Args:
        epsilon (...): at least 0.
        delta (...): in [0, 1].
        fpr (...): false-positive rates in [0, 1]; the three broadcast.

    Returns float64, max(0, 1 - delta - e^epsilon fpr, e^-epsilon (1 - delta - fpr)).

    Formal guarantee: the exact value, up to a few roundings of 1, of what (epsilon, delta)-DP is equivalent to: a lower
    bound on the false-negative rate of every attack, under each relation that holds in both orders of two data sets:
    "add_or_remove", "replace" and "zero_out". A guarantee that is stated for "remove" or "add" alone allows
    max(0, 1 - delta - e^epsilon fpr), which is less: :func:`curve` of :class:`.ApproximateDP` under it. Traced
    arguments out of range give 0, no protection.

    Raises ValueError where a concrete argument is out of range.

    Source: Wasserman and Zhou (2010), "A statistical framework for differential privacy", Theorem 2.4.

    >>> approximate_dp(1.0, 0.1, [0.0, 0.2, 1.0]).round(4).tolist()
    [0.9, 0.3563, 0.0]
    """
    validation.check_numbers(epsilon=epsilon, delta=delta, fpr=fpr)
    validation.check_epsilon(epsilon)
    validation.check_probability(delta, "delta")
    return _elementwise(_approximate_dp, epsilon, delta, checked_rates(fpr))


def gaussian(mu: ArrayLike, fpr: ArrayLike) -> Float[Array, ...]:
    """Returns G_mu: the least false-negative rate that mu-GDP allows an attack at each false-positive rate.

    Args:
        mu (...): at least 0.
        fpr (...): false-positive rates in [0, 1]; the two broadcast.

    Returns float64, Phi(Phi^-1(1 - fpr) - mu).

    Formal guarantee: what mu-GDP is by definition, not rounded to a side: right to 1e-12 of itself where it is above
    1e-200 (tests/tradeoff). It bounds attacks where ``mu`` does: with an estimate of mu it is an estimate. Traced
    arguments out of range give 0, no protection.

    Raises ValueError where a concrete argument is out of range.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", eq. 6.

    >>> gaussian(1.0, [0.0, 0.5, 1.0]).round(6).tolist()
    [1.0, 0.158655, 0.0]
    """
    validation.check_numbers(mu=mu, fpr=fpr)
    check_mu(mu)
    return _elementwise(_gaussian, mu, checked_rates(fpr))


def perfect(fpr: ArrayLike) -> Float[Array, ...]:
    """Returns Id: 1 - fpr, of a mechanism that says nothing; float64, as ``fpr`` (...), which is in [0, 1].

    Formal guarantee: exact up to one rounding; an upper bound on every trade-off function. Traced rates out of range
    give 0.

    Raises ValueError where a concrete rate is out of range.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Proposition 2.2.

    >>> perfect([0.25]).tolist()
    [0.75]
    """
    validation.check_numbers(fpr=fpr)
    return _elementwise(_perfect, checked_rates(fpr))


def checked_rates(fpr: ArrayLike) -> ArrayLike:
    """Returns false-positive rates, a list as an array; raises ValueError where a concrete one is out of [0, 1]."""
    rates = validation.as_array(fpr)
    validation.check_probability(rates, "fpr")
    return rates


@kernel
def _elementwise(function: Callable[..., Array], *arguments: ArrayLike) -> Array:
    return leave_scope(_clipped_rates(function, *(as_float64(argument) for argument in arguments)))


@compiled(static=("function",))
def _clipped_rates(function: Callable[..., Array], *arguments: Array) -> Array:
    *_, rates = values = jnp.broadcast_arrays(*arguments)
    rates_missed = function(*values)
    return jnp.where(_is_rate(rates) & ~jnp.isnan(rates_missed), jnp.clip(rates_missed, 0.0, 1.0), 0.0)


def _approximate_dp(epsilon: Array, delta: Array, rate: Array) -> Array:
    return jnp.where((epsilon >= 0) & _is_rate(delta), _two_lines(epsilon, delta, rate), 0.0)


def _two_lines(epsilon: Array, delta: Array, rate: Array) -> Array:
    """Returns the larger of the lines 1 - delta - e^epsilon rate and e^-epsilon (1 - delta - rate); may be below 0."""
    # An infinite epsilon makes e^epsilon rate NaN at a rate of 0, where it counts as 0.
    steep = jnp.where(rate > 0, 1 - delta - jnp.exp(epsilon) * rate, 1 - delta)
    return jnp.maximum(steep, jnp.exp(-epsilon) * (1 - delta - rate))


def _perfect(rate: Array) -> Array:
    return 1 - rate


def _gaussian(mu: Array, rate: Array) -> Array:
    inside = (rate > 0) & (rate < 1) & (mu < jnp.inf)
    inner = ndtr(-ndtri(jnp.where(inside, rate, 0.5)) - jnp.where(inside, mu, 1.0))
    ends = jnp.where(rate == 0, 1.0, 0.0)
    return jnp.where(mu >= 0, jnp.where(inside, inner, ends), 0.0)


# ----------------------------------------------------------------------------------------------------
# Certified profiles: bounds on delta at many epsilons, from whichever accountant is sharpest, and between them.
#
# As a function of x = e^eps delta is convex and falls, with slopes in [-1, 0]: it is the supremum of the lines 1 - f(a)
# - a x, f the trade-off function. So bounds at finitely many places bound it everywhere: from above by chords, from
# below by chords prolonged.
# ----------------------------------------------------------------------------------------------------

ORDERS = np.geomspace(0.1, 1e5, 28)
"""Orders by which the end of a profile is placed: for losses that deviate by 1e-4 to 10 to be within a quarter. Sound
for any value: the grid's end decides tightness only."""


class Profile(NamedTuple):
    """Bounds on delta at increasing epsilons, each (n,)."""

    epsilon: Float[Array, " n"]
    lower: Float[Array, " n"]
    upper: Float[Array, " n"]


@kernel
def certify_profile(mechanism: Any, steps: Any, epsilons: Any, relation: Relation) -> Profile:
    """Returns the profile at ``epsilons`` (n,), at least 0 and increasing, of what :func:`jaxacct.curve` takes.

    The exact accountant is asked where it may have an answer, and laws of atoms where it does not or, outside a trace,
    where it did not converge; both brackets are valid, and so is what they share.
    """
    query = query_of(mechanism, steps, ForDelta(epsilons), relation)
    if not may_answer(query):
        bounds = _monotone(of_atoms.curve(query))
    else:
        bounds = _monotone(saddlepoint.accountant.curve(query))
        if query.is_concrete:
            # A gap of delta of 1e-13, or of 1e-6 of itself, needs no more. Any value is sound.
            small = bounds.upper - bounds.lower <= 1e-13
            other = functools.partial(of_atoms.curve, query)
            bounds = _monotone(narrow_down(replace(bounds, converged=small), other, 1e-6))
    return Profile(as_float64(epsilons), as_float64(bounds.lower), as_float64(bounds.upper))


def _monotone(bounds: Bounds) -> Bounds:
    """Returns the bounds that follow from those at all places together, as delta falls."""
    if is_concrete(bounds):  # NumPy takes any length without a program for each
        least, most = np.asarray(bounds.lower, np.float64), np.asarray(bounds.upper, np.float64)
        return replace(bounds, lower=np.maximum.accumulate(least[::-1])[::-1], upper=np.minimum.accumulate(most))
    lower, upper = as_float64(bounds.lower), as_float64(bounds.upper)
    return replace(bounds, lower=jax.lax.cummax(lower, reverse=True), upper=jax.lax.cummin(upper))


@kernel
def largest_epsilon(mechanism: Any, steps: Any, delta: ArrayLike, relation: Relation) -> Array:
    """Returns about how far a profile has to go for deltas down to ``delta``: an epsilon, no number if none is known.

    It uses Chernoff's bound for finite losses, at a few orders; it need not be sharp here. Infinite losses add their
    probability to delta everywhere. Where there are none, Rényi divergences give the moments of all directions at once.
    """
    directions, level = directed_parts(mechanism, steps, relation), as_float64(delta)
    # A class of pairs that keeps the base's infinite_mass has no infinite losses.
    has_moments = all(
        type(pairs).infinite_mass is DominatingPair.infinite_mass for parts in directions for pairs, _ in parts
    )
    curve = as_float64(compose(mechanism, steps, ORDERS + 1, relation)) if has_moments else None
    return _chernoff_epsilon(directions, curve, level)


@compiled
def _chernoff_epsilon(directions: list[Parts], curve: Array | None, delta: Array) -> Array:
    """Returns the least epsilon over the orders t at which E[e^(tY)] leaves no direction more than delta.

    ``curve`` are Rényi divergences of all directions; where it is None the pairs give the moments. Beyond epsilon
    e^(-ty) (1 - e^(eps - y)) is at most e^(-t eps) t^t/(1+t)^(1+t): this is how a moment bounds delta.
    """
    cumulants = of_each(lambda pair: pair.cumulant(jnp.asarray(ORDERS)))
    log_most = ORDERS * np.log(ORDERS) - (1 + ORDERS) * np.log1p(ORDERS)

    def end(parts: Parts) -> Array:
        if curve is None:
            rows = [jnp.where(k[:, None] > 0, k[:, None] * cumulants(pairs), 0.0) for pairs, k in parts]
            log_moments = functools.reduce(jnp.add, [jnp.sum(row, axis=0) for row in rows])
        else:
            log_moments = curve * ORDERS
        least: Array = jnp.min((log_moments + log_most - jnp.log(delta)) / ORDERS)
        highest = facts_of(parts).suprema
        return jnp.maximum(least if highest is None else jnp.minimum(least, highest[1]), 0.0)

    return functools.reduce(jnp.maximum, map(end, directions))


@kernel
def infinite_share(mechanism: Any, steps: Any, relation: Relation) -> Array:
    """Returns a lower bound on the probability of an infinite loss, which delta does not fall below."""
    masses = [facts_of(parts).infinite[0] for parts in directed_parts(mechanism, steps, relation)]
    return functools.reduce(jnp.maximum, masses)


class SupportLines(NamedTuple):
    """Two lines below delta on each of n - 1 segments between neighbouring x = e^eps, by their values at its ends."""

    from_left: tuple[Array, Array]
    """Chord of the segment before, prolonged; the first segment has none, and 0 in its place."""
    from_right: tuple[Array, Array]
    """Chord of the segment after, prolonged; the last segment has the constant of its end."""
    crossing: Array
    """Place where they cross, as a share of the segment's length in x: in [0, 1], an end if they do not cross."""

    def corners(self) -> tuple[Array, Array, Array]:
        """Returns the larger line at both ends of each segment and at the crossing; between these it is linear."""
        left, right = (jnp.maximum(*lines) for lines in zip(self.from_left, self.from_right, strict=True))
        return left, right, self.highest_crossing()

    def highest_crossing(self) -> Array:
        """Returns the larger of the two lines where they cross."""
        rises = [(first, self.crossing * (last - first)) for first, last in (self.from_left, self.from_right)]
        # The terms round, and their sum may be small beside them; the crossing itself moves by 4 u of itself.
        return jnp.maximum(
            *(first + rise - 16 * roundoff() * (jnp.abs(first) + jnp.abs(rise)) for first, rise in rises)
        )


def rounding_of_lengths(length: Array) -> Array:
    """Returns the relative rounding of a few products, e^length and e^length - 1 among them, on any segment.

    A length rounds relative to itself, and the exponential multiplies that by the length.
    """
    return 4 * arithmetic().function + 4 * roundoff() * jnp.max(length)


def lines_below(profile: Profile) -> SupportLines:
    """Returns two lines below delta on each segment; the larger of them is within second order of delta.

    With d_0, d_1 the values at x_0 < x_1 a convex function is at least d_1 + (x - x_1) (d_1 - d_0)/(x_1 - x_0) beyond
    x_1, which rises in d_1 and falls in d_0; and likewise to the left of two places. Rounded down.
    """
    epsilon, lower, upper = profile
    steps = jnp.diff(epsilon)
    # Rounding of a ratio of two lengths, and of what it is multiplied by.
    margin = rounding_of_lengths(steps)
    # Lengths in x over the value at the left end, and over that at the right one.
    ahead, back = jnp.expm1(steps), -jnp.expm1(-steps)

    def prolong(inner: Array, outer: Array, ratio: Array) -> Array:
        line = inner - (outer - inner) * ratio - margin * (inner + outer * ratio)
        # On a segment longer than e^709 it is only known that delta is not negative.
        return jnp.where(jnp.isfinite(line), line, 0.0)

    far_right = prolong(lower[1:-1], upper[:-2], ahead[1:] / back[:-1])
    far_left = prolong(lower[1:-1], upper[2:], back[:-1] / ahead[1:])
    zero = jnp.zeros(1)
    # Both lines by their values at the left and at the right end of each segment.
    left = jnp.concatenate([zero, lower[1:-1]]), jnp.concatenate([zero, far_right])
    right = jnp.concatenate([jnp.maximum(far_left, lower[1:-1]), lower[-1:]]), lower[1:]
    at_left, at_right = left[0] - right[0], left[1] - right[1]
    crosses = at_left * at_right < 0
    share = jnp.where(crosses, at_left / jnp.where(crosses, at_left - at_right, 1.0), 0.0)
    return SupportLines(left, right, share)


# ----------------------------------------------------------------------------------------------------
# Trade-off curves of compositions, certified, and the success of attacks.
# ----------------------------------------------------------------------------------------------------


def _has_converged(bounds: Bounds) -> Any:
    return bounds.converged


@kernel(derivatives=Differences(_has_converged))
def curve(
    mechanism: Mechanisms,
    steps: Steps,
    fpr: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
) -> Bounds:
    """Returns certified bounds on the least false-negative rate of any attack, at each false-positive rate: f-DP.

    Args:
        mechanism: as of :func:`jaxacct.epsilon`: one mechanism, a sequence by a leading axis, or a tuple.
        steps: likewise. May be traced.
        fpr (n,): false-positive rates in [0, 1]; or one, (). May be traced.
        relation: neighbouring relation, one that the mechanisms support. "remove" and "add" alone give curves that are
            not their own inverses; the null hypothesis is the data set that is left with "remove", and the one before
            it with "add".

    Returns :class:`~jaxacct.bounds.Bounds` of the shape of ``fpr``. Here ``lower`` is what protects: no attack has
    fewer false negatives. It is convex in fpr and at most 1 - fpr. 0 where nothing is known.

    Formal guarantee: ``lower <= f(fpr) <= upper``, f the trade-off function of the dominating pairs' composition,
    rounding included. f(a) is the supremum over real eps of 1 - delta(eps) - e^eps a (Dong, Roth and Su 2022,
    Proposition 2.12), so any certified delta gives a bound from below. Between two epsilons of a grid delta is at least
    the larger of two lines (:func:`~jaxacct.tradeoff.lines_below`), and on each piece what is to be maximized is
    linear: that bounds f from above. The grid has 64 epsilons and, outside a trace, those of the tangents at the rates
    asked for: ``lower`` is within 1e-4 of f there, or 1e-3 where losses are few numbers, as f has corners then. Under
    "remove" and "add" the deltas at negative epsilons are those of the other one's pair. Where the composition holds a
    guarantee of one direction alone (:class:`.PureDP` or :class:`.ApproximateDP` under these two) that is another claim
    and not the pair's reverse: then they are taken for unknown, and ``lower`` is less where f falls less steeply than 1
    - fpr.

    Raises ValueError where a concrete argument is out of range.

    >>> from jaxacct import Gaussian
    >>> rates = curve(Gaussian(noise_multiplier=10.0), 100, [0.1, 0.5])
    >>> [f"{low:.4f} {high:.3f}" for low, high in zip(rates.lower, rates.upper)]
    ['0.6109 0.611', '0.1587 0.159']
    """
    validation.check_numbers(fpr=fpr)
    validation.check_type(relation, "relation", str)
    check(mechanism, steps)
    rates = checked_rates(fpr)
    if np.ndim(rates) > 1 or not np.size(rates):
        raise ValueError(f"fpr of shape {np.shape(rates)} is no list: give one axis of rates, at least one, or a rate.")
    a = as_float64(rates)
    if not np.ndim(rates):
        bounds = curve(mechanism, steps, a[None], relation=relation)
        return leave_scope(jax.tree.map(lambda leaf: leaf[0], bounds))
    concrete = is_concrete(mechanism, steps, rates)
    positive = np.asarray(rates)[np.asarray(rates) > 0] if concrete else np.ones(0)
    # The grid of epsilons goes to this delta, by the least rate above 0. Any value is sound.
    delta = 1e-9 * float(np.clip(np.min(positive, initial=1.0), 1e-200, 1.0))
    is_one_way = relation in REVERSE and not knows_both_ways(mechanism, steps)
    sides = [relation, relation if is_one_way else REVERSE.get(relation, relation)]
    every = [relation] if sides[0] == sides[1] else sides
    last = functools.reduce(jnp.maximum, [largest_epsilon(mechanism, steps, delta, r) for r in every])
    known = jnp.isfinite(last)
    grid = jnp.where(known, jnp.maximum(last, 1e-6), 1.0) * jnp.linspace(0.0, 1.0, 2 * ROW)
    if concrete and not known:
        nothing = jnp.zeros_like(a)
        return leave_scope(Bounds(lower=nothing, estimate=nothing, upper=1 - a, converged=nothing > 0))
    ask = {r: functools.partial(certify_profile, mechanism, steps, relation=r) for r in every}
    profiles = {r: ask[r](np.asarray(grid) if concrete else grid) for r in every}
    if concrete:
        # Places of the tangents at the rates: there the bound from below is nearly attained.
        middle = _both_sides(profiles[sides[0]], profiles[sides[1]], is_one_way)
        for r, sign in zip(sides, (1.0, -1.0), strict=True):
            profiles[r] = extend(profiles[r], tangents(middle, rates) * sign, ask[r])
    share = infinite_share(mechanism, steps, relation)
    lower, upper = _curve_of(_both_sides(profiles[sides[0]], profiles[sides[1]], is_one_way), share, a)
    valid = known & (a >= 0) & (a <= 1)
    lower, upper = jnp.where(valid, lower, 0.0), jnp.where(valid, upper, 1.0)
    converged = valid & (upper - lower <= 1e-2)
    return leave_scope(enclose(lower, upper, converged))


@kernel
def advantage(mechanism: Mechanisms, steps: Steps, *, relation: Relation = "add_or_remove") -> Bounds:
    """Returns certified bounds on the largest difference of an attack's true- and false-positive rate, ().

    It is delta at epsilon = 0, the total variation distance. Arguments and errors are those of :func:`curve`.

    Formal guarantee: ``lower <= advantage <= upper`` for the dominating pairs' composition under ``relation``, rounding
    included; ``upper`` is what protects. It is 1 where nothing is known, as for invalid traced arguments.

    Source: Kairouz, Oh and Viswanath (2015), "The composition theorem for differential privacy", section 2.

    >>> from jaxacct import Gaussian
    >>> bounds = advantage(Gaussian(noise_multiplier=10.0), 100)
    >>> f"{bounds.lower:.8f} {bounds.upper:.8f}"
    '0.38292492 0.38292492'
    """
    check(mechanism, steps)
    profile = certify_profile(mechanism, steps, np.zeros(1), relation)
    lower, upper = profile.lower[0], profile.upper[0]
    return leave_scope(enclose(lower, upper, upper < 1))


@kernel(derivatives=Differences(_has_converged))
def true_positive_rate(
    mechanism: Mechanisms,
    steps: Steps,
    fpr: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
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
    validation.check_numbers(fpr=fpr)
    validation.check_type(relation, "relation", str)
    bounds = curve(mechanism, steps, fpr, relation=relation)
    rounding = 2 * roundoff()
    lower = jnp.maximum(1 - as_float64(bounds.upper) - rounding, 0.0)
    upper = jnp.minimum(1 - as_float64(bounds.lower) + rounding, 1.0)
    return leave_scope(enclose(lower, upper, bounds.converged))


@kernel(derivatives=Differences(_has_converged))
def bayes_risk(
    mechanism: Mechanisms,
    steps: Steps,
    prior: ArrayLike = 0.5,
    *,
    relation: Relation = "add_or_remove",
) -> Bounds:
    """Returns certified bounds on the least error, (), of an attack that knows how likely the example is to be in.

    Args:
        mechanism: as of :func:`curve`.
        steps: likewise.
        prior (): probability, in (0, 1), that the example took part.
        relation: as of :func:`curve`; all but "add" and "remove" alone.

    Formal guarantee: the error is the minimum of (1 - prior) a + prior f(a) over a, that is the smaller of both
    probabilities times 1 - delta(|log odds|). ``lower`` is what protects, rounding included. 0 where nothing is known.

    Raises ValueError where a concrete argument is out of range.

    >>> from jaxacct import Gaussian
    >>> bounds = bayes_risk(Gaussian(noise_multiplier=10.0), 100)
    >>> f"{bounds.lower:.8f} {bounds.upper:.8f}"
    '0.30853754 0.30853754'
    """
    validation.check_numbers(prior=prior)
    validation.check_type(relation, "relation", str)
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
    profile = certify_profile(mechanism, steps, np.asarray(places) if is_concrete(places) else places, relation)
    lower = jnp.maximum(rarer * (1 - profile.upper[0]) * (1 - 8 * roundoff()) - 4 * roundoff(), 0.0)
    upper = rarer * (1 - profile.lower[2]) * (1 + 8 * roundoff())
    valid = (chance > 0) & (chance < 1)
    lower, upper = jnp.where(valid, lower, 0.0), jnp.where(valid, upper, 0.5)
    return leave_scope(enclose(lower, upper, valid & (profile.upper[0] < 1)))


def _both_sides(ahead: Profile, behind: Profile, is_one_way: bool) -> Profile:
    """Returns the profile over negative epsilons too, from the profile of the pair the other way round.

    delta(-e) = 1 - e^-e (1 - delta'(e)), delta' that of the reverse pair; between 0 and 1 if ``is_one_way``, where
    nothing is known of that.
    """
    if is_one_way:
        behind = Profile(behind.epsilon, jnp.zeros_like(behind.lower), jnp.ones_like(behind.upper))
    return _join_sides(ahead, behind)


@compiled
def _join_sides(ahead: Profile, behind: Profile) -> Profile:
    def reflect(delta: Array, side: float) -> Array:
        values = -jnp.expm1(-behind.epsilon) + jnp.exp(-behind.epsilon) * delta
        return jnp.clip(values * (1 + side * 2 * arithmetic().function), 0.0, 1.0)[:0:-1]

    # delta falls along the whole line of epsilons, so bounds on one side of 0 may sharpen those on the other.
    lower, upper = reflect(behind.lower, -1.0), reflect(behind.upper, 1.0)
    return Profile(
        jnp.concatenate([-behind.epsilon[:0:-1], ahead.epsilon]),
        jax.lax.cummax(jnp.concatenate([lower, ahead.lower]), reverse=True),
        jax.lax.cummin(jnp.concatenate([upper, ahead.upper])),
    )


def tangents(profile: Profile, rates: ArrayLike) -> np.ndarray:
    """Returns about the epsilons whose tangents touch the trade-off curve at the rates, from the slopes of chords.

    They are where a profile is worth asking next: a choice, by NumPy, as the number of places differs each time.
    """
    epsilon, upper = np.asarray(profile.epsilon), np.asarray(profile.upper)
    falls = np.maximum(upper[:-1] - upper[1:], 1e-300)
    with np.errstate(over="ignore"):
        steepness = np.log(np.expm1(np.diff(epsilon))) + epsilon[:-1] - np.log(falls)
    middles = (epsilon[1:] + epsilon[:-1]) / 2
    return np.interp(-np.log(np.maximum(np.asarray(rates, np.float64), 1e-300)), steepness, middles)


def extend(profile: Profile, epsilons: Any, ask: Callable[[np.ndarray], Profile]) -> Profile:
    """Returns the profile with further places: those of ``epsilons`` that are above 0 and not among its own.

    ``ask`` gives the profile there. As delta falls, bounds at one place bound it at the others.
    """
    old = np.asarray(profile.epsilon)
    new = np.setdiff1d(np.asarray(epsilons)[np.asarray(epsilons) > 0], old)
    if not new.size:
        return profile
    added = ask(new)
    order = np.argsort(np.concatenate([old, new]), kind="stable")
    epsilon, lower, upper = (
        np.concatenate([np.asarray(x), np.asarray(y)])[order] for x, y in zip(profile, added, strict=True)
    )
    lower, upper = np.maximum.accumulate(lower[::-1])[::-1], np.minimum.accumulate(upper)
    return Profile(*jax.device_put((epsilon, lower, upper)))


@compiled
def _curve_of(profile: Profile, share: Array, rates: Array) -> tuple[Array, Array]:
    """Returns bounds from below and above on the trade-off curve at the rates; delta is at least ``share``."""
    epsilon, _, upper = profile
    x = jnp.exp(epsilon)
    lines = lines_below(profile)
    # Where the lines do not cross, the corner is the segment's left end exactly, however long the segment.
    inner = jnp.where(lines.crossing == 0, 0.0, lines.crossing * jnp.expm1(jnp.diff(epsilon)))
    # What is maximized over eps is largest at a corner of the larger line.
    corners = jnp.concatenate([x[:-1], x[1:], x[:-1] * (1 + inner)])
    deltas = jnp.concatenate(lines.corners())

    def bounds_at(rate: Array) -> tuple[Array, Array]:
        margin = 8 * roundoff()
        wider = rounding_of_lengths(jnp.diff(epsilon))  # a crossing takes a sum and a product more

        def weigh(x: Array) -> Array:
            """Returns e^eps a, which is 0 at a = 0 even where e^eps is beyond float64."""
            return jnp.where(rate == 0, 0.0, x * rate)

        below = jnp.max(1 - upper - weigh(x) * (1 + margin) - margin)
        above = jnp.max(1 - deltas - weigh(corners) * (1 - wider) + margin)
        # Beyond the ends: a steeper line of the least delta; and x below the first, where delta is at least 1 - x.
        beyond = jnp.maximum(1 - (share + weigh(x[-1])) * (1 - margin), x[0] * (1 - rate) * (1 + margin))
        return below, jnp.maximum(above, beyond)

    # One rate at a time: a batch of them would hold rates times corners.
    below, above = jax.lax.map(bounds_at, rates)
    known = ~(jnp.isnan(below) | jnp.isnan(above))
    return jnp.where(known, jnp.maximum(below, 0.0), 0.0), jnp.where(known, jnp.clip(above, 0.0, 1 - rates), 1 - rates)


# ----------------------------------------------------------------------------------------------------
# Polygons: arrays of false-positive rates, increasing from 0 to 1, and of false-negative rates.
#
# Between its vertices a polygon is linear. Everything here is exact for polygons, up to a few roundings of 1, so a
# result errs to the same side as the polygon it is made from. A polygon below the true curve (:func:`from_delta` of
# deltas that are upper bounds) stays below it; one through points of the true curve, which is convex, lies above it.
#
# All functions work on single curves, arrays of one axis; batches are ``jax.vmap``.
# ----------------------------------------------------------------------------------------------------

Curve = tuple[Float[Array, " n"], Float[Array, " n"]]
"""Type of a polygon: false-positive rates from 0 to 1, increasing, and false-negative rates, falling."""


@kernel
def from_delta(epsilon: ArrayLike, delta: ArrayLike, fpr: ArrayLike) -> Float[Array, " n"]:
    """Returns the least false-negative rates that are consistent with finitely many (epsilon, delta).

    Args:
        epsilon (m,): increasing, at least 0.
        delta (m,): in [0, 1]; holding under both exchanges of the two data sets.
        fpr (n,): false-positive rates in [0, 1].

    Returns float64 (n,), the supremum of the f_{epsilon,delta}: convex, its own inverse, at most 1 - fpr.

    Formal guarantee: a lower bound on the trade-off function, hence on every attack's false-negative rate, where each
    delta is an upper bound at its epsilon; up to a few roundings of 1. Traced arguments out of range, or NaN, give 0.

    Raises ValueError where a concrete epsilon or delta is out of range, or an argument has not one axis.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Proposition 2.12.

    >>> from_delta([0.0, 1.0], [0.3, 0.1], [0.0, 0.2, 0.5]).round(4).tolist()
    [0.9, 0.5, 0.2]
    """
    validation.check_numbers(epsilon=epsilon, delta=delta, fpr=fpr)
    e, d, rates = (
        as_float64(_checked_list(value, name)) for value, name in ((epsilon, "epsilon"), (delta, "delta"), (fpr, "fpr"))
    )
    validation.check_epsilon(validation.as_array(epsilon))
    validation.check_probability(validation.as_array(delta), "delta")
    return leave_scope(_supremum_of_lines(e, d, rates))


@kernel
def to_delta(fpr: ArrayLike, fnr: ArrayLike, epsilon: ArrayLike) -> Float[Array, " m"]:
    """Returns the deltas of a polygon (n,), (n,) at ``epsilon`` (m,), any real numbers; float64 (m,).

    delta(epsilon) = max of 1 - fnr - e^epsilon fpr over the vertices, 0 at least.

    Formal guarantee: an upper bound on delta if the polygon lies below the trade-off function, a lower bound if its
    vertices are points of it, an identity if the polygon is the trade-off function; up to a few roundings of 1. It is
    for the relation of the curve. Traced rates outside [0, 1], or NaN, give 1; that they fall is not checked.

    Raises ValueError where concrete rates are no trade-off curve, or an argument has not one axis.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Proposition 2.12.

    >>> to_delta([0.0, 0.2, 1.0], [1.0, 0.2, 0.0], [0.0]).round(4).tolist()
    [0.6]
    """
    validation.check_numbers(fpr=fpr, fnr=fnr, epsilon=epsilon)
    a, b = _checked_curve(fpr, fnr)
    return leave_scope(_deltas_of_polygon(a, b, as_float64(_checked_list(epsilon, "epsilon"))))


@kernel
def subsampled(fpr: ArrayLike, fnr: ArrayLike, sampling_rate: ArrayLike) -> Float[Array, ...]:
    """Returns p f + (1 - p) Id, the curve of a mechanism on a Poisson sample with rate p; float64, elementwise.

    It is the curve for telling the data without an example (null hypothesis) from those with it: the curve of the
    relation "remove". Its inverse is that of "add", and both together are bounded by :func:`symmetrized`.

    Args:
        fpr (...): false-positive rates in [0, 1].
        fnr (...): the mechanism's false-negative rates there; errors keep their side.
        sampling_rate (): p, in (0, 1].

    Formal guarantee: a lower bound on the trade-off function of the mechanism on the sample where ``fnr`` is one on
    that of the mechanism, for removing an example (the inverse: for adding it); up to a few roundings of 1. Traced
    arguments out of range, or NaN, give 0.

    Raises ValueError where a concrete sampling rate is out of range.

    Source: Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", Proposition A.1.

    >>> subsampled([0.0, 0.5, 1.0], [1.0, 0.1, 0.0], 0.5).round(4).tolist()
    [1.0, 0.3, 0.0]
    """
    validation.check_numbers(fpr=fpr, fnr=fnr, sampling_rate=sampling_rate)
    validation.check_sampling_rate(sampling_rate)
    a, b, p = (as_float64(value) for value in (validation.as_array(fpr), validation.as_array(fnr), sampling_rate))
    return leave_scope(jnp.where(_is_rate(p) & _is_rate(a) & _is_rate(b), p * b + (1 - p) * (1 - a), 0.0))


@kernel
def inverse(fpr: ArrayLike, fnr: ArrayLike) -> Curve:
    """Returns the polygon of the inverse: the two errors exchanged. For a curve below 1 at 0 it ends there.

    Formal guarantee: an identity, without any rounding. The inverse of T(P, Q) is T(Q, P), for to exchange the
    hypotheses is to exchange the errors: a bound for removing an example becomes one, from its side, for adding it.

    Raises ValueError where concrete rates are no trade-off curve.

    >>> rates, misses = inverse([0.0, 0.2, 1.0], [1.0, 0.2, 0.0])
    >>> rates.tolist(), misses.tolist()
    ([0.0, 0.2, 1.0], [1.0, 0.2, 0.0])
    """
    validation.check_numbers(fpr=fpr, fnr=fnr)
    a, b = _checked_curve(fpr, fnr)
    return leave_scope((b[::-1], a[::-1]))


@kernel(gathers=True)
def convex_minorant(fpr: ArrayLike, fnr: ArrayLike) -> Float[Array, " n"]:
    """Returns the greatest convex function below a polygon, at its vertices: the double conjugate; float64 (n,).

    Each value is the least of all chords over its place. The cost is n^2 for n vertices.

    Formal guarantee: at most the polygon, so a lower bound on a trade-off function stays one. Trade-off functions are
    convex, so nothing is lost where the polygon lies above one. Up to a few roundings of 1. Traced arguments are not
    checked.

    Raises ValueError where concrete rates are no trade-off curve.

    >>> convex_minorant([0.0, 0.25, 0.5, 1.0], [1.0, 0.7, 0.2, 0.0]).round(4).tolist()
    [1.0, 0.6, 0.2, 0.0]
    """
    validation.check_numbers(fpr=fpr, fnr=fnr)
    a, b = _checked_curve(fpr, fnr)
    return leave_scope(_lower_hull(a, b))


@kernel(gathers=True)
def symmetrized(fpr: ArrayLike, fnr: ArrayLike) -> Curve:
    """Returns min(f, f^-1)**, the curve for both exchanges of the two data sets: a polygon of 2 n vertices, float64.

    Where f <= 1 - fpr the greatest convex function below both is the lower hull of the vertices of both: their minimum
    is concave where they cross.

    Formal guarantee: where the polygon is a lower bound on the trade-off function for removing an example and its
    inverse one for adding it, the result is a lower bound under "add_or_remove"; up to a few roundings of 1. Traced
    arguments are not checked.

    Raises ValueError where concrete rates are no trade-off curve.

    Source: Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", section 2.2.

    >>> rates, misses = symmetrized([0.0, 0.1, 1.0], [1.0, 0.5, 0.0])
    >>> rates.tolist(), misses.round(4).tolist()
    ([0.0, 0.0, 0.1, 0.5, 1.0, 1.0], [1.0, 1.0, 0.5, 0.1, 0.0, 0.0])
    """
    validation.check_numbers(fpr=fpr, fnr=fnr)
    a, b = _checked_curve(fpr, fnr)
    return leave_scope(_symmetrize(a, b))


@kernel(gathers=True)
def at(fpr: ArrayLike, fnr: ArrayLike, rates: ArrayLike) -> Float[Array, " m"]:
    """Returns a polygon's false-negative rates at ``rates`` (m,); float64 (m,).

    Formal guarantee: an identity up to a few roundings of 1, so the values bound what the polygon bounds, from the same
    side. Beyond the polygon's ends the value is that of the end. Traced arguments are not checked.

    Raises ValueError where concrete rates are no trade-off curve.

    >>> at([0.0, 0.5, 1.0], [1.0, 0.2, 0.0], [0.25]).round(4).tolist()
    [0.6]
    """
    validation.check_numbers(fpr=fpr, fnr=fnr, rates=rates)
    a, b = _checked_curve(fpr, fnr)
    return leave_scope(jnp.interp(as_float64(_checked_list(rates, "rates")), a, b))


def pair(fpr: ArrayLike, fnr: ArrayLike) -> DiscretePair:
    """Returns a mechanism whose trade-off curve is a convex polygon: it lets curves be composed, f tensor g.

    Each segment is an outcome, with its width in ``fpr`` as its probability without the example, and its fall in
    ``fnr`` as that with it; what the curve misses of 1 at 0 is an outcome that tells all. Concrete arguments only. Give
    a tuple of such mechanisms to :func:`curve`, under the relation "remove" (or "add" for the inverse).

    Formal guarantee: an identity up to the rounding of differences. A polygon below the trade-off function of some
    mechanism thus gives a pair that dominates it. Where a polygon is not convex, the mechanism's curve lies below it.

    Raises ValueError where the rates are no trade-off curve.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Definition 3.1 and Proposition 2.2.

    >>> mechanism = pair([0.0, 0.5, 1.0], [1.0, 0.2, 0.0])
    >>> mechanism.p.tolist(), mechanism.q.tolist()
    ([0.0, 0.8, 0.2, 0.0], [0.0, 0.5, 0.5, 0.0])
    """
    validation.check_numbers(fpr=fpr, fnr=fnr)
    a, b = (np.asarray(_checked_list(value, name), np.float64) for value, name in ((fpr, "fpr"), (fnr, "fnr")))
    _check_polygon(a, b)
    p = np.concatenate([[1 - b[0]], -np.diff(b), [b[-1]]])
    q = np.concatenate([[a[0]], np.diff(a), [1 - a[-1]]])
    return DiscretePair(p=p, q=q)


def _is_rate(values: Array) -> Array:
    """Returns whether values are probabilities; NaN is none."""
    return (values >= 0) & (values <= 1)


@compiled
def _supremum_of_lines(epsilons: Array, deltas: Array, rates: Array) -> Array:
    highest = jax.vmap(lambda rate: jnp.max(_two_lines(epsilons, deltas, rate)))(rates)
    known = jnp.all((epsilons >= 0) & _is_rate(deltas))
    return jnp.where(known & _is_rate(rates), jnp.clip(highest, 0.0, 1.0), 0.0)


@compiled
def _deltas_of_polygon(a: Array, b: Array, epsilons: Array) -> Array:
    def delta_at(epsilon: Array) -> Array:
        return jnp.max(1 - b - jnp.where(a > 0, jnp.exp(epsilon) * a, 0.0))

    known = jnp.all(_is_rate(a) & _is_rate(b)) & ~jnp.isnan(epsilons)
    return jnp.where(known, jnp.clip(jax.vmap(delta_at)(epsilons), 0.0, 1.0), 1.0)


@compiled
def _symmetrize(a: Array, b: Array) -> Curve:
    rates, misses = jnp.concatenate([a, b]), jnp.concatenate([b, a])
    order = jnp.argsort(rates)
    return rates[order], _lower_hull(rates[order], misses[order])


@compiled
def _lower_hull(a: Array, b: Array) -> Array:
    """Returns the lower convex hull of points with nondecreasing a, at each a.

    A point is a vertex if no slope to its left exceeds one to its right, and none lies below it.
    """

    def is_vertex(i: Array) -> Array:
        run, rise = a - a[i], b - b[i]
        slopes = rise / jnp.where(run == 0, 1.0, run)
        left = jnp.max(jnp.where(run < 0, slopes, -jnp.inf))
        right = jnp.min(jnp.where(run > 0, slopes, jnp.inf))
        return (left <= right) & ~jnp.any((run == 0) & (rise < 0))

    count = len(a)
    index = jnp.arange(count)
    # One point at a time, in O(n) memory; all pairs at once would take n^2.
    vertex = jax.lax.map(is_vertex, index)
    before = jax.lax.cummax(jnp.where(vertex, index, 0))
    after = jax.lax.cummin(jnp.where(vertex, index, count - 1), reverse=True)
    width = a[after] - a[before]
    share = jnp.where(width > 0, (a - a[before]) / jnp.where(width > 0, width, 1.0), 1.0)
    return jnp.minimum(b[before] + share * (b[after] - b[before]), b)


def _checked_list(value: Any, name: str) -> Any:
    array = validation.as_array(value)
    if np.ndim(array) != 1 or not np.size(array):
        raise ValueError(f"{name} of shape {np.shape(array)} is no list: give one axis, at least one entry.")
    return array


def _check_polygon(a: np.ndarray, b: np.ndarray) -> None:
    inside = np.all((a >= 0) & (a <= 1) & (b >= 0) & (b <= 1))
    if a.shape != b.shape or not inside or np.any(np.diff(a) < 0) or np.any(np.diff(b) > 0):
        raise ValueError(
            f"fpr and fnr of shapes {a.shape} and {b.shape} are no trade-off curve: give as many rates in [0, 1] of "
            "the one, increasing, as of the other, falling."
        )


def _checked_curve(fpr: Any, fnr: Any) -> tuple[Array, Array]:
    a, b = _checked_list(fpr, "fpr"), _checked_list(fnr, "fnr")
    if is_concrete(a, b):
        _check_polygon(np.asarray(a), np.asarray(b))
    return as_float64(a), as_float64(b)
