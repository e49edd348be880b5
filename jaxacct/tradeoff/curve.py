"""Certified trade-off functions of compositions, and the success of attacks that they bound: f-DP.

A trade-off function f gives the least false-negative rate of any test between neighbouring data sets at each
false-positive rate. It and the privacy profile delta(eps) determine one another: f(a) is the supremum of
1 - delta(eps) - e^eps a over real eps (Dong, Roth and Su 2022, Proposition 2.12). So certified deltas on a grid of
epsilons bound f from below, and, as delta is convex in e^eps, from above as well.

In reading order:

* :class:`TradeOff`: the trade-off of one composition as an object, with methods for each kind of attack;
* :func:`approximate_dp`, :func:`gaussian`, :func:`perfect`: trade-off functions with closed forms;
* :func:`certified` and :func:`lines_below`: a profile's bounds at many epsilons, and between them;
* :func:`curve`, :func:`advantage`, :func:`true_positive_rate`, :func:`bayes_risk`: certified curves and risks.
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

from jaxacct import prv, saddlepoint, validation
from jaxacct.bounds import Bounds
from jaxacct.certified import with_mesh
from jaxacct.composition import ForDelta, Parts, check, directed_parts, facts_of
from jaxacct.convert.gaussian import check_mu
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.by_work import rows
from jaxacct.numerics.precision import as_float64, in_float64, is_concrete, log_complement, outside
from jaxacct.numerics.programs import compiled, lowered
from jaxacct.numerics.pytrees import of_each
from jaxacct.rdp import composed
from jaxacct.saddlepoint.accountant import ROW, may_answer


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
        rates = np.asarray(alpha, np.float64)
        found = curve(self.mechanism, self.steps, rates.reshape(-1), relation=self.relation)
        return _shaped(found, rates)

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
        relation: Relation = "remove" if self.relation == "add_or_remove" else self.relation
        rates = np.asarray(baseline, np.float64)
        found = true_positive_rate(self.mechanism, self.steps, rates.reshape(-1), relation=relation)
        return _shaped(found, rates)


def _shaped(found: Bounds, like: np.ndarray) -> Bounds:
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(like.shape)[()], found)


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
    bound on the false-negative rate of every attack, whatever the relation it holds for. Traced arguments out of range
    give 0, no protection.

    Raises ValueError where a concrete argument is out of range.

    Source: Wasserman and Zhou (2010), "A statistical framework for differential privacy", Theorem 2.4.

    >>> approximate_dp(1.0, 0.1, [0.0, 0.2, 1.0]).round(4).tolist()
    [0.9, 0.3563, 0.0]
    """
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
    return _elementwise(_perfect, checked_rates(fpr))


def checked_rates(fpr: ArrayLike) -> ArrayLike:
    """Returns false-positive rates, a list as an array; raises ValueError where a concrete one is out of [0, 1]."""
    rates = np.asarray(fpr, np.float64) if isinstance(fpr, (list, tuple)) else fpr
    validation.check_probability(rates, "fpr")
    return rates


@in_float64(safe=lowered)
def _elementwise(function: Callable[..., Array], *arguments: ArrayLike) -> Array:
    return outside(_clipped(function, *(as_float64(argument) for argument in arguments)))


@compiled(static=("function",))
def _clipped(function: Callable[..., Array], *arguments: Array) -> Array:
    values = jnp.broadcast_arrays(*arguments)
    found = function(*values)
    rates = values[-1]
    return jnp.where((rates >= 0) & (rates <= 1) & ~jnp.isnan(found), jnp.clip(found, 0.0, 1.0), 0.0)


def _approximate_dp(epsilon: Array, delta: Array, rate: Array) -> Array:
    # An infinite epsilon makes e^epsilon fpr NaN at fpr = 0, where it counts as 0.
    steep = jnp.where(rate > 0, 1 - delta - jnp.exp(epsilon) * rate, 1 - delta)
    found = jnp.maximum(steep, jnp.exp(-epsilon) * (1 - delta - rate))
    return jnp.where((epsilon >= 0) & (delta >= 0) & (delta <= 1), found, 0.0)


def _perfect(rate: Array) -> Array:
    return 1 - rate


def _gaussian(mu: Array, rate: Array) -> Array:
    inside = (rate > 0) & (rate < 1) & (mu < jnp.inf)
    found = ndtr(-ndtri(jnp.where(inside, rate, 0.5)) - jnp.where(inside, mu, 1.0))
    ends = jnp.where(rate == 0, 1.0, 0.0)
    return jnp.where(mu >= 0, jnp.where(inside, found, ends), 0.0)


# ----------------------------------------------------------------------------------------------------
# Certified profiles: bounds on delta at many epsilons, from whichever accountant is sharpest, and between them.
#
# As a function of x = e^eps delta is convex and falls, with slopes in [-1, 0]: it is the supremum of the lines 1 - f(a)
# - a x, f the trade-off function. So bounds at finitely many places bound it everywhere: from above by chords, from
# below by chords prolonged.
# ----------------------------------------------------------------------------------------------------

ACCOUNTANTS = ("best", "saddlepoint", "prv")
"""Names of the choices of an accountant."""

BATCH = ROW
"""Epsilons of one call of the exact accountant. Speed only."""

MESH_BATCH = 2 * BATCH
"""Epsilons of one call of the accountant by meshes, which composes afresh in each call: one size, so one compilation.
Speed only."""

WIDE = 1e-6
"""Relative gap of delta above which the exact accountant counts as not converged, and meshes are tried as well. Sound
for any value."""

NOTHING = 1e-13
"""Gap of delta that no mesh needs to close. Sound for any value."""

ORDERS = np.geomspace(0.1, 1e5, 28)
"""Orders by which the end of a profile is placed: for losses that deviate by 1e-4 to 10 to be within a quarter. Sound
for any value: the grid's end decides tightness only."""


class Profile(NamedTuple):
    """Bounds on delta at increasing epsilons, each (n,)."""

    epsilon: Float[Array, " n"]
    lower: Float[Array, " n"]
    upper: Float[Array, " n"]


@in_float64
def certified(mechanism: Any, steps: Any, epsilons: Any, relation: Relation, accountant: str = "best") -> Profile:
    """Returns the profile at ``epsilons`` (n,), at least 0 and increasing, of what :func:`jaxacct.curve` takes.

    "best" asks the exact accountant where it may have an answer, and meshes (:func:`jaxacct.prv.curve`) where it does
    not or, outside a trace, where it did not converge; both brackets are valid, and so is what they share.
    """
    validation.check_one_of(accountant, "accountant", ACCOUNTANTS)

    def mesh() -> Bounds:
        found = [prv.curve(mechanism, steps, row, relation=relation).delta for row in rows(epsilons, MESH_BATCH)]
        return _monotone(jax.tree.map(lambda *parts: jnp.concatenate(parts)[: np.shape(epsilons)[0]], *found))

    if accountant == "prv" or (accountant == "best" and not may_answer(mechanism, steps, relation)):
        bounds = mesh()
    else:
        bounds = _monotone(saddlepoint.accountant.curve(mechanism, steps, ForDelta(epsilons), relation))
        if accountant == "best" and is_concrete(mechanism, steps, epsilons):
            # A bracket that is open by no more than this needs no mesh.
            small = bounds.upper - bounds.lower <= NOTHING
            bounds = _monotone(with_mesh(replace(bounds, converged=small), mesh, WIDE))
    return Profile(as_float64(epsilons), as_float64(bounds.lower), as_float64(bounds.upper))


def _monotone(bounds: Bounds) -> Bounds:
    """Returns the bounds that follow from those at all places together, as delta falls."""
    if is_concrete(bounds):  # NumPy takes any length without a program for each
        least, most = np.asarray(bounds.lower, np.float64), np.asarray(bounds.upper, np.float64)
        return replace(bounds, lower=np.maximum.accumulate(least[::-1])[::-1], upper=np.minimum.accumulate(most))
    lower, upper = as_float64(bounds.lower), as_float64(bounds.upper)
    return replace(bounds, lower=jax.lax.cummax(lower, reverse=True), upper=jax.lax.cummin(upper))


@in_float64
def largest_epsilon(mechanism: Any, steps: Any, delta: ArrayLike, relation: Relation) -> Array:
    """Returns about how far a profile has to go for deltas down to ``delta``: an epsilon, no number if none is known.

    It uses Chernoff's bound for finite losses, at a few orders; it need not be sharp here. Infinite losses add their
    probability to delta everywhere. Where there are none, Rényi divergences give the moments of all directions at once.
    """
    directions, level = directed_parts(mechanism, steps, relation), as_float64(delta)
    # A class of pairs that keeps the base's infinite_mass has no infinite losses.
    if all(type(pairs).infinite_mass is DominatingPair.infinite_mass for parts in directions for pairs, _ in parts):
        return _last_of_all(directions, as_float64(composed(mechanism, steps, ORDERS + 1, relation)), level)
    return functools.reduce(jnp.maximum, [_last(parts, level) for parts in directions])


@compiled
def _last_of_all(directions: list[Parts], curve: Array, delta: Array) -> Array:
    """Returns how far the profiles of all directions go, given the largest Rényi divergences of them."""
    return functools.reduce(jnp.maximum, [_end(parts, curve * ORDERS, delta) for parts in directions])


@compiled
def _last(parts: Parts, delta: Array) -> Array:
    """Returns how far the profile of one direction goes."""
    log_moments = [jnp.where(k[:, None] > 0, k[:, None] * of_each(_cumulants)(pairs), 0.0) for pairs, k in parts]
    return _end(parts, functools.reduce(jnp.add, [jnp.sum(rows, axis=0) for rows in log_moments]), delta)


def _end(parts: Parts, log_moments: Array, delta: Array) -> Array:
    """Returns the least epsilon over the orders t at which E[e^(tY)] leaves no more than delta.

    Beyond epsilon e^(-ty) (1 - e^(eps - y)) is at most e^(-t eps) t^t/(1+t)^(1+t): this is how a moment bounds delta.
    """
    log_most = ORDERS * np.log(ORDERS) - (1 + ORDERS) * np.log1p(ORDERS)
    end: Array = jnp.min((log_moments + log_most - jnp.log(delta)) / ORDERS)
    highest = facts_of(parts).suprema
    return jnp.maximum(end if highest is None else jnp.minimum(end, highest[1]), 0.0)


def _cumulants(pair: DominatingPair) -> Array:
    return pair.cumulant(jnp.asarray(ORDERS))


@in_float64
def infinite_share(mechanism: Any, steps: Any, relation: Relation) -> Array:
    """Returns a lower bound on the probability of an infinite loss, which delta does not fall below."""
    masses = [facts_of(parts).infinite[0] for parts in directed_parts(mechanism, steps, relation)]
    return functools.reduce(jnp.maximum, masses)


class Lines(NamedTuple):
    """Two lines below delta on each of n - 1 segments between neighbouring x = e^eps, by their values at its ends."""

    from_left: tuple[Array, Array]
    """Chord of the segment before, prolonged; the first segment has none, and 0 in its place."""
    from_right: tuple[Array, Array]
    """Chord of the segment after, prolonged; the last segment has the constant of its end."""
    crossing: Array
    """Place where they cross, as a share of the segment's length in x: in [0, 1], an end if they do not cross."""

    def highest_crossing(self) -> Array:
        """Returns the larger of the two lines where they cross."""
        rises = [(first, self.crossing * (last - first)) for first, last in (self.from_left, self.from_right)]
        # The terms round, and their sum may be small beside them; the crossing itself moves by 4 u of itself.
        return jnp.maximum(
            *(first + rise - 16 * roundoff() * (jnp.abs(first) + jnp.abs(rise)) for first, rise in rises)
        )


def lines_below(profile: Profile) -> Lines:
    """Returns two lines below delta on each segment; the larger of them is within second order of delta.

    With d_0, d_1 the values at x_0 < x_1 a convex function is at least d_1 + (x - x_1) (d_1 - d_0)/(x_1 - x_0) beyond
    x_1, which rises in d_1 and falls in d_0; and likewise to the left of two places. Rounded down.
    """
    epsilon, lower, upper = profile
    steps = jnp.diff(epsilon)
    # Rounding of a ratio of two lengths, and of what it is multiplied by.
    margin = 4 * arithmetic().function + 4 * roundoff() * jnp.max(steps)
    # Lengths in x over the value at the left end, and over that at the right one.
    ahead, back = jnp.expm1(steps), -jnp.expm1(-steps)

    def prolonged(inner: Array, outer: Array, ratio: Array) -> Array:
        line = inner - (outer - inner) * ratio - margin * (inner + outer * ratio)
        # On a segment longer than e^709 it is only known that delta is not negative.
        return jnp.where(jnp.isfinite(line), line, 0.0)

    far_right = prolonged(lower[1:-1], upper[:-2], ahead[1:] / back[:-1])
    far_left = prolonged(lower[1:-1], upper[2:], back[:-1] / ahead[1:])
    zero = jnp.zeros(1)
    # Both lines by their values at the left and at the right end of each segment.
    left = jnp.concatenate([zero, lower[1:-1]]), jnp.concatenate([zero, far_right])
    right = jnp.concatenate([jnp.maximum(far_left, lower[1:-1]), lower[-1:]]), lower[1:]
    at_left, at_right = left[0] - right[0], left[1] - right[1]
    crosses = at_left * at_right < 0
    share = jnp.where(crosses, at_left / jnp.where(crosses, at_left - at_right, 1.0), 0.0)
    return Lines(left, right, share)


# ----------------------------------------------------------------------------------------------------
# Trade-off curves of compositions, certified, and the success of attacks.
# ----------------------------------------------------------------------------------------------------

LEAST_DELTA = 1e-9
"""Delta up to which the grid of epsilons goes, times the least false-positive rate if that is below 1. Sound for any
value."""

TIGHT = 1e-2
"""Width up to which a bracket of a false-negative rate counts as converged. It decides ``converged`` only."""

REVERSE: dict[Relation, Relation] = {"remove": "add", "add": "remove"}
"""Relation whose pair is the other way round; all others are their own."""


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
    the larger of two lines (:func:`~jaxacct.tradeoff.curve.lines_below`), and on each piece what is to be maximized
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
        # Places of the tangents at the rates that are asked for: there the bound from below is nearly attained.
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
    """Returns certified bounds on the least error, (), of an attack that knows how likely the example is to be in.

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

    # delta falls along the whole line of epsilons, so bounds on one side of 0 may sharpen those on the other.
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
    """Returns the profile with further places: those of ``epsilons`` that are above 0."""
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
    # Where the lines do not cross, the corner is the segment's left end exactly, however long the segment.
    inner = jnp.where(lines.crossing == 0, 0.0, lines.crossing * jnp.expm1(jnp.diff(epsilon)))
    between = x[:-1] * (1 + inner)
    # The larger line of a segment is linear up to the crossing and from it on, so what is maximized over eps is
    # largest at a corner: an end of a segment, or a crossing.
    corners = jnp.concatenate([x[:-1], x[1:], between])
    deltas = jnp.concatenate(
        [jnp.maximum(first, second) for first, second in zip(lines.from_left, lines.from_right, strict=True)]
        + [crossing]
    )

    def at(rate: Array) -> tuple[Array, Array]:
        margin = 8 * roundoff()
        # A crossing takes a sum and a product more, of a length whose rounding grows with the segment's.
        wider = 4 * arithmetic().function + 4 * roundoff() * jnp.max(jnp.diff(epsilon))

        def weighed(x: Array) -> Array:
            """Returns e^eps a, which is 0 at a = 0 even where e^eps is beyond float64."""
            return jnp.where(rate == 0, 0.0, x * rate)

        below = jnp.max(1 - upper - weighed(x) * (1 + margin) - margin)
        above = jnp.max(1 - deltas - weighed(corners) * (1 - wider) + margin)
        # Beyond the ends: a steeper line of the least delta; and x below the first, where delta is at least 1 - x.
        beyond = jnp.maximum(1 - (share + weighed(x[-1])) * (1 - margin), x[0] * (1 - rate) * (1 + margin))
        return below, jnp.maximum(above, beyond)

    # One rate at a time: a batch of them would hold rates times corners.
    below, above = jax.lax.map(at, rates)
    known = ~(jnp.isnan(below) | jnp.isnan(above))
    return jnp.where(known, jnp.maximum(below, 0.0), 0.0), jnp.where(known, jnp.clip(above, 0.0, 1 - rates), 1 - rates)
