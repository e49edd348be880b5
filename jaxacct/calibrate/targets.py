"""Calibrations by name: the setting for a privacy budget, by the certified accountants.

Each function checks its arguments, makes a target of them (:class:`.Config`, :class:`.Numbers`), and hands it to the
search of :mod:`jaxacct.calibrate.search`. Concrete targets take all accountants of the top level, traced ones the exact
accountant.

In reading order:

* :func:`noise_multiplier`, :func:`sampling_rate`, :func:`steps`, :func:`scale`: the settings for (epsilon, delta);
* :func:`noise_multiplier_for_advantage` and :func:`noise_multiplier_for_tpr`: the noise that an attack calls for, and
  :func:`tangent`, the (epsilon, delta) that rules an attack out (Dong, Roth and Su 2022, Proposition 6);
* :func:`most_runs`: the number of runs of any mechanism;
* :func:`user_level`: the noise of a guarantee for people (Charles et al. 2024);
* :func:`noise_multiplier_for_search` and :func:`most_trials`: budgets of a search whose best run is released.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, ArrayLike

from jaxacct import certified, rdp, validation
from jaxacct.bounds import Bounds
from jaxacct.calibrate.search import (
    Calibrated,
    Config,
    Numbers,
    SearchAim,
    SearchState,
    Status,
    run_search,
    search,
    solve,
    solve_in_trace,
    solve_traced,
    start_at,
)
from jaxacct.composition import ForDelta, ForEpsilon, Kind, check
from jaxacct.mechanisms import PoissonSubsampledGaussian, RepeatAndSelect, group
from jaxacct.mechanisms.by_curve import has_renyi_only
from jaxacct.mechanisms.groups import MOST_EXAMPLES
from jaxacct.mechanisms.mechanism import DIRECTIONS, REVERSE, Mechanism, Mechanisms, Relation, Steps, check_parts
from jaxacct.numerics.arithmetic import arithmetic
from jaxacct.numerics.precision import TINY, as_float64, is_concrete, kernel, leave_scope, scope
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.numerics.root_search import bisect, least_by_secants
from jaxacct.refinement import ToleranceWarning
from jaxacct.selection import Poisson, Selection, Trials, TruncatedNegativeBinomial
from jaxacct.validation import MOST_COUNT

TOLERANCE = 1e-6
"""Relative distance from the best setting. Three or four evaluations; 1e-4 mostly takes two, and 1e-8 four or five.
Sound for any value."""


@takes_python_values
def noise_multiplier(
    epsilon: ArrayLike,
    delta: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
    group: int = 1,
) -> Calibrated:
    """Returns the least noise multiplier for (epsilon, delta)-DP of a Poisson-subsampled Gaussian run for some steps.

    Args:
        epsilon (): budget, at least 0. May be traced, as the next three; batches are ``jax.vmap``.
        delta (): budget, in (0, 1).
        sampling_rate (): probability of each example to be in a batch, in (0, 1].
        steps (): number of runs, whole.
        relation: "add_or_remove", "add" or "remove".
        tolerance: relative distance from the least noise aimed at.
        group: the most examples that change together, one person's say: the budget is then that of the group, as of
            :func:`jaxacct.group`. Static.

    Returns:
        :class:`~jaxacct.calibrate.Calibrated`: ``value`` the noise multiplier, ``reached`` its certified epsilon. NumPy
        scalars, or JAX ones inside a trace. No noise (0) where delta covers every run that an example is in.
        Derivatives of ``value`` are those of the exact setting (:mod:`jaxacct.calibrate.search`), first order.

    Formal guarantee: where ``status`` is CONVERGED, NOT_BINDING or LOOSE the returned value satisfies the budget by a
    certified upper bound, ``reached.upper <= epsilon``. Where the exact accountant does not converge, concrete targets
    are answered as :func:`jaxacct.epsilon` answers; traced ones have status LOOSE or UNKNOWN (then value inf).

    Raises:
        ValueError: a concrete argument out of range, or a concrete target that cannot be met.

    Source: secants on the certified bounds, from where the central limit has it: :mod:`jaxacct.calibrate`.

    >>> found = noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=10_000)
    >>> f"{found.value:.4f}", bool(found.reached.upper <= 1.0)
    ('3.8128', True)
    >>> f"{noise_multiplier(3.0, 1e-5, 0.01, 1000, group=8).value:.4f}"  # for people with up to 8 examples
    '3.6453'
    """
    numbers = Numbers(epsilon, delta, sampling_rate=sampling_rate, steps=steps)
    return _calibrate("noise_multiplier", numbers, relation, tolerance, group=group)


@takes_python_values
def sampling_rate(
    epsilon: ArrayLike,
    delta: ArrayLike,
    noise_multiplier: ArrayLike,
    steps: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
    group: int = 1,
) -> Calibrated:
    """Returns the largest sampling rate for (epsilon, delta)-DP; 1, NOT_BINDING, where every example may be in a batch.

    Args, result, guarantee, errors and source are those of :func:`noise_multiplier`, with ``noise_multiplier`` (), at
    least 0, given in the rate's place. The value is 0 where nothing is certified. A rate that delta covers by itself is
    always certified, 1 - (1 - delta)^(1/steps): at it no example is likelier than delta to be sampled at all.

    >>> f"{sampling_rate(epsilon=1.0, delta=1e-5, noise_multiplier=3.8128189, steps=10_000).value:.6f}"
    '0.010000'
    """
    numbers = Numbers(epsilon, delta, noise_multiplier=noise_multiplier, steps=steps)
    return _calibrate("sampling_rate", numbers, relation, tolerance, group=group)


@takes_python_values
def steps(
    epsilon: ArrayLike,
    delta: ArrayLike,
    noise_multiplier: ArrayLike,
    sampling_rate: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
    group: int = 1,
) -> Calibrated:
    """Returns the largest whole number of steps for (epsilon, delta)-DP, as float64; up to 2^53 are considered.

    Args, result, guarantee, errors and source are those of :func:`noise_multiplier`, with ``noise_multiplier`` (), at
    least 0, given in the steps' place. INFEASIBLE (ValueError on concrete arguments) where a single step is too much.

    >>> steps(epsilon=1.0, delta=1e-5, noise_multiplier=3.8128189, sampling_rate=0.01).value
    np.float64(10000.0)
    """
    numbers = Numbers(epsilon, delta, noise_multiplier=noise_multiplier, sampling_rate=sampling_rate)
    return _calibrate("steps", numbers, relation, tolerance, group=group)


@takes_python_values
def scale(
    make: Callable[[Any], Any],
    epsilon: ArrayLike,
    delta: ArrayLike,
    steps: Any,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
    least: float = 1e-2,
    most: float = 1e4,
) -> Calibrated:
    """Returns the least scale of a whole schedule of noise for (epsilon, delta)-DP.

    Args:
        make: gives the mechanism, or tuple of mechanisms, for a scale (), which is traced; more scale must mean more
            privacy. Programs are kept by ``make`` itself: pass the same function again, not a new lambda.
        epsilon (): budget.
        delta (): budget.
        steps: as of :func:`jaxacct.epsilon`, for what ``make`` returns.
        relation: neighbouring relation, one that the mechanisms support.
        tolerance: relative distance from the least scale aimed at.
        least: smallest scale considered.
        most: largest scale considered.

    Returns, guarantee, errors and source as of :func:`noise_multiplier`. NOT_BINDING where ``least`` suffices. LOOSE
    where mechanisms are known by their Rényi curves alone, which never refute.

    >>> def falling(scale):
    ...     return PoissonSubsampledGaussian(scale * np.array([1.2, 1.0, 0.8]), 0.01)
    >>> found = scale(falling, epsilon=1.0, delta=1e-5, steps=np.array([3000, 3000, 3000]))
    >>> f"{found.value:.3f}"
    '3.788'
    """
    validation.check_one_of(relation, "relation", tuple(DIRECTIONS))
    validation.check_numbers(epsilon=epsilon, tolerance=tolerance)
    validation.check_epsilon(epsilon)
    validation.check_finite(epsilon, "epsilon")
    validation.check_delta(delta)
    validation.check_positive(tolerance, "tolerance")
    if not callable(make):
        raise TypeError(f"make = {validation.shorten(make)}: give a function from a scale to a mechanism.")
    validation.check_positive(least, "least")
    validation.check_positive(most, "most")
    if not least < most:
        raise ValueError(f"least = {least} is not below most = {most}: give the range of the scale that is searched.")
    check(make(np.float64(least)), steps)
    config, numbers = Config("scale", ForEpsilon, relation, float(tolerance)), Numbers(epsilon, delta)
    ends = math.log(least), math.log(most)
    if not is_concrete(numbers, steps):
        with scope():
            counts = jax.tree.map(as_float64, steps)
            return solve_in_trace(config, Numbers(*map(as_float64, numbers)), make, counts, (*map(as_float64, ends),))
    result = solve(config, numbers, make, steps, ends)
    if result.status == Status.UNKNOWN and has_renyi_only(make(np.float64(least))):
        raise ValueError(
            f"epsilon = {float(np.asarray(epsilon)):g} was not met by any scale up to most = {most:.3g}, by Rényi "
            "curves, which are all that is known here: allow a larger epsilon, or a larger scale."
        )
    return result


@takes_python_values
def noise_multiplier_for_advantage(
    advantage: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
    group: int = 1,
) -> Calibrated:
    """Returns the least noise multiplier with which no membership test has more than some advantage.

    The advantage is the true-positive rate less the false-positive rate, at its greatest: delta at epsilon 0.

    Args, result, errors as of :func:`noise_multiplier`; ``advantage`` () in (0, 1). ``reached`` bounds the advantage.

    Formal guarantee: as of :func:`noise_multiplier`, for every test that sees all that is released.

    Source: Kairouz, Oh and Viswanath (2015), Theorem 2.1, at epsilon 0.

    >>> found = noise_multiplier_for_advantage(0.1, sampling_rate=0.01, steps=10_000)
    >>> f"{found.value:.3f}", bool(found.reached.upper <= 0.1)
    ('4.039', True)
    """
    validation.check_numbers(advantage=advantage, sampling_rate=sampling_rate, steps=steps, tolerance=tolerance)
    _check_rate(advantage, "advantage")
    numbers = Numbers(0.0, advantage, sampling_rate=sampling_rate, steps=steps)
    return _calibrate("noise_multiplier", numbers, relation, tolerance, ForDelta, group=group)


@takes_python_values
def noise_multiplier_for_tpr(
    tpr: ArrayLike,
    fpr: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
) -> Calibrated:
    """Returns about the least noise multiplier with which no membership test reaches ``tpr`` at ``fpr``.

    Args:
        tpr (): greatest true-positive rate allowed, in (fpr, 1). May be traced, as the next three.
        fpr (): false-positive rate, in (0, 1).
        sampling_rate (): as of :func:`noise_multiplier`.
        steps (): likewise.
        relation: likewise. With "remove" the test is for the example's presence, as of :func:`jaxacct.tradeoff.curve`:
            the null hypothesis of ``fpr`` is the data set without it; with "add" it is the one with it.
        tolerance: likewise; at the epsilon that was chosen, whose choice costs less than 1e-4 beside it, or up to 4e-3
            where the delta that belongs to it is above a half.

    Returns, errors as of :func:`noise_multiplier`; ``reached`` bounds delta at the epsilon that rules the test out.

    Formal guarantee: as of :func:`noise_multiplier`, for every test that sees all that is released.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Proposition 6; :mod:`jaxacct.calibrate.targets`.

    >>> found = noise_multiplier_for_tpr(tpr=0.05, fpr=0.01, sampling_rate=0.01, steps=10_000)
    >>> bool(found.satisfied)
    True
    """
    validation.check_one_of(relation, "relation", tuple(DIRECTIONS))
    validation.check_numbers(tpr=tpr, fpr=fpr, sampling_rate=sampling_rate, steps=steps, tolerance=tolerance)
    _check_rate(tpr, "tpr")
    _check_rate(fpr, "fpr")
    if is_concrete(tpr, fpr) and not np.all(np.asarray(tpr) > np.asarray(fpr)):
        raise ValueError(
            f"tpr = {tpr} is not above fpr = {fpr}: a test that guesses blindly reaches as much, whatever the noise; "
            "give a true-positive rate above the false-positive rate."
        )
    _check_run(1.0, sampling_rate, steps)
    validation.check_one_of(relation, "relation", PoissonSubsampledGaussian.relations)

    def least(relation: Relation) -> tuple[Calibrated, Array]:
        with scope():
            rate, false_rate, is_second = as_form(as_float64(tpr), as_float64(fpr))
            budget = tangent(relation, rate, false_rate, as_float64(sampling_rate), as_float64(steps))
            epsilon, delta, is_second = leave_scope((*budget, is_second))
        numbers = Numbers(epsilon, delta, sampling_rate=sampling_rate, steps=steps)
        return _calibrate("noise_multiplier", numbers, relation, tolerance, ForDelta), is_second

    # The second form asks the delta of the data sets in the other order.
    other = REVERSE.get(relation, relation)
    if other == relation:
        return least(relation)[0]
    if is_concrete(tpr, fpr):
        with scope():
            takes_reverse = bool(as_form(as_float64(tpr), as_float64(fpr))[2])
        return least(other if takes_reverse else relation)[0]
    (first, is_second), (second, _) = least(relation), least(other)
    return jax.tree.map(lambda one, other: jnp.where(is_second, other, one), first, second)


@kernel
@compiled
def as_form(rate: Array, false_rate: Array) -> tuple[Array, Array, Array]:
    """Returns the rates of the form of a target that needs less noise, and whether that is the second form."""
    is_second = _log_slope(rate, false_rate) < 0
    return jnp.where(is_second, 1 - false_rate, rate), jnp.where(is_second, 1 - rate, false_rate), is_second


def _log_slope(rate: Array, false_rate: Array) -> Array:
    """Returns the logarithm of the steepness, at a target, of the Gaussian trade-off curve through it.

    It is e^(c mu - mu^2/2), c the test's threshold. Below 0 the second form needs less noise; for that form's rates it
    has the other sign.
    """
    mu = ndtri(rate) - ndtri(false_rate)
    return -ndtri(false_rate) * mu - mu**2 / 2


def _check_rate(value: Any, name: str) -> None:
    validation.check_positive(value, name)
    seen = validation.concrete_value(value)
    if seen is not None and not np.all(seen < 1):
        raise ValueError(f"{name} = {value} is not in (0, 1): give a rate below 1; at 1 no noise is needed.")


def _check_run(noise_multiplier: Any, sampling_rate: Any, steps: Any) -> None:
    validation.check_noise_multiplier(noise_multiplier)
    validation.check_sampling_rate(sampling_rate)
    validation.check_steps(steps)


def _calibrate(
    unknown: str, numbers: Numbers, relation: Relation, tolerance: float, budget: Kind = ForEpsilon, *, group: int = 1
) -> Calibrated:
    validation.check_epsilon(numbers.epsilon)
    validation.check_finite(numbers.epsilon, "epsilon")
    validation.check_delta(numbers.delta)
    _check_run(numbers.noise_multiplier, numbers.sampling_rate, numbers.steps)
    validation.check_positive(tolerance, "tolerance")
    validation.check_one_of(relation, "relation", PoissonSubsampledGaussian.relations)
    validation.check_whole(group, "group", 1, MOST_EXAMPLES, "the number of examples that change together")
    for name, value in numbers._asdict().items():
        validation.check_scalar(value, name)
    rate, steps = numbers.sampling_rate, numbers.steps
    config = Config(
        unknown, budget, relation, float(tolerance),
        is_plain=unknown != "sampling_rate" and is_concrete(rate) and float(rate) == 1,
        is_single=unknown != "steps" and is_concrete(steps) and float(steps) == 1,
        group=int(group),
    )  # fmt: skip
    return solve(config, numbers) if is_concrete(numbers) else solve_traced(config, numbers)


# ----------------------------------------------------------------------------------------------------
# Attacks: from the success of one to an (epsilon, delta) that rules it out.
#
# Let a test between neighbours have the false-positive rate a and the true-positive rate b. Under (eps, delta)-DP,
# applied to the test's own outcome with either neighbour in the first place,
#
#     b <= e^eps a + delta,        1 - a <= e^eps (1 - b) + delta,
#
# for eps >= 0; so b <= min(delta + e^eps a, 1 - e^-eps (1 - delta - a)). Dong, Roth and Su (2022), Proposition 6: the
# minimum of these over all eps is what the best test reaches, no more. Hence a target (a, b) is met if for *any one*
# eps
#
#     delta(eps) <= b - e^eps a    or    delta(eps) <= 1 - a - e^eps (1 - b).
#
# The second is the first for the target (1 - b, 1 - a), and for the neighbours in the other order: with P the law that
# the test is to find and Q that of the null hypothesis, the first asks delta of (P, Q) and the second that of (Q, P).
# Under "remove" P has the example, so that its second form asks the delta of "add", and the other way round; all other
# relations have both orders. It remains to choose the eps that needs least noise: the slope of the trade-off curve at
# the target. A poor choice costs noise, of second order, and never the guarantee.
# ----------------------------------------------------------------------------------------------------


def as_delta(rate: Array, false_rate: Array, epsilon: Array) -> Array:
    """Returns the delta at ``epsilon`` that rules a target out, rounded down: b - e^eps a."""
    return rate - jnp.exp(epsilon) * false_rate - 2 * arithmetic().function


@kernel
@compiled(static=("relation",))
def tangent(
    relation: Relation, rate: Array, false_rate: Array, sampling_rate: Array, steps: Array
) -> tuple[Array, Array]:
    """Returns the epsilon and the delta of ``relation`` by which the first form rules a target out.

    It is with about the least noise; any such pair suffices. The search starts at the tangent of the Gaussian's
    trade-off curve through the target. ``rate`` () and ``false_rate`` () are the true- and false-positive rates, as
    :func:`as_form` gives them. NaN where they are no rates.
    """
    slope = _log_slope(rate, false_rate)
    widest = jnp.log(rate / false_rate)
    config = Config("noise_multiplier", ForDelta, relation, tolerance=1e-6)

    def setting_at(epsilon: Array) -> Array:
        delta = as_delta(rate, false_rate, epsilon)
        return run_search(config, Numbers(epsilon, delta, jnp.ones(()), sampling_rate, steps))[1].best

    # A zoom tries three epsilons, in the logit of their share of the largest that leaves room for a delta: 0.3 from
    # each other, and each time a third as far. Sound for any numbers; a poor choice costs noise.
    def zoom(i: Array, centre: Array) -> Array:
        tried = centre + 0.3 * jnp.arange(-1.0, 2.0) / 3.0**i
        left, here, right = jax.lax.map(lambda place: setting_at(widest * jax.nn.sigmoid(place)), tried)
        bend = left - 2 * here + right
        moved = centre + jnp.clip(0.5 * (left - right) / bend, -2.0, 2.0) * 0.3 / 3.0**i
        return jnp.where((bend > 0) & jnp.isfinite(moved), moved, centre)

    share = jnp.minimum(jnp.abs(slope) / widest, 0.99)
    # Each zoom moves to the lowest point of the parabola through three noises, where they make one that opens upwards.
    # It takes the three one by one, as each is a whole search.
    place = jax.lax.fori_loop(0, 2, zoom, jnp.log(share) - jnp.log1p(-share))
    epsilon = widest * jax.nn.sigmoid(place)
    return epsilon, as_delta(rate, false_rate, epsilon)


# ----------------------------------------------------------------------------------------------------
# Runs of any mechanism: how many of them, or of a composition, a budget pays for.
# ----------------------------------------------------------------------------------------------------


@takes_python_values
def most_runs(mechanism: Mechanism, epsilon: float, delta: float, *, relation: Relation = "add_or_remove") -> int:
    """Returns how many runs of ``mechanism`` cost at most (epsilon, delta), fixed in advance; at most 2^31 - 1.

    Args:
        mechanism: one, concrete.
        epsilon: budget, at least 0.
        delta: budget, in (0, 1).
        relation: one that the mechanism supports.

    Formal guarantee: that many runs are (epsilon, delta)-DP by the certified accountant's upper bound. 0 where a single
    run costs more. One more is not certified, unless bounds are loose or the number is above 10^8.

    Raises ValueError where an argument is out of range.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> most_runs(PoissonSubsampledGaussian(3.8128189, 0.01), 1.0, 1e-5)
    10000
    """
    validation.check_numbers(epsilon=epsilon)
    check(mechanism, 1)
    validation.check_epsilon(epsilon)
    validation.check_delta(delta)
    if np.all(np.asarray(mechanism.releases_nothing())):
        return MOST_COUNT
    guess = guessed_runs(mechanism, epsilon, delta, relation)
    return most_certified(lambda runs: certified.delta(mechanism, runs, epsilon, relation=relation), delta, guess)


def guessed_runs(mechanism: Mechanism, epsilon: float, delta: float, relation: Relation) -> float:
    """Returns about how many runs a budget pays for: by Rényi divergences, and by how far these usually fall short."""
    orders = 1 + 0.5 * 1.7 ** np.arange(32)
    curve = np.asarray(rdp.curve(mechanism, tuple(orders.tolist()), relation=relation))
    with np.errstate(all="ignore"):
        of_orders = (epsilon + math.log(1 / delta) / (1 - orders)) / curve
    # A budget pays for 1.4 times as many, typically. Sound for any number.
    return min(1.4 * float(np.nanmax(of_orders, initial=1.0)), float(MOST_COUNT))


@kernel
def most_certified(delta_at: Callable[[int], Bounds], delta: float, guess: float) -> int:
    """Returns the most runs of any composition whose certified delta is at most ``delta``; 0 for none.

    Args:
        delta_at: certified bounds on the delta of so many runs, with whatever is released beside them; rises with them.
        delta: budget, in (0, 1).
        guess: about the result: decides how often ``delta_at`` is called.

    Formal guarantee: the upper bound of ``delta_at`` at the result, which was called, is at most ``delta``.

    >>> from jaxacct import Gaussian
    >>> most_certified(lambda runs: certified.delta(Gaussian(30.0), runs, 1.0), 1e-5, guess=50.0)
    64
    """
    aim = SearchAim(
        np.float64(delta), least=-math.log(MOST_COUNT), most=0.0, tolerance=0.0, is_whole=True,
        start=np.float64(-math.log(min(max(guess, 1.0), MOST_COUNT))), slope=0.0,
    )  # fmt: skip
    # Log delta typically falls by 8 for each unit of u, which is minus the logarithm of the runs. Sound for any number.
    aim = dataclasses.replace(aim, slope=-8.0 * float(aim.steepness()))

    def evaluate(state: SearchState, _: None) -> Bounds:
        return delta_at(int(state.value))

    state = search(evaluate, aim, leave_scope(start_at(aim)))
    return int(state.best_value) if math.isfinite(state.best) else 0


# ----------------------------------------------------------------------------------------------------
# Users: privacy of people and not of rows. The noise of the two ways of sampling a user's examples, and which needs
# less.
# ----------------------------------------------------------------------------------------------------


class Sampling(NamedTuple):
    """Way of sampling, with the noise that makes it private for users.

    Attributes:
        mechanism: one step, for the accountants: its epsilon is that of a user.
        noise_multiplier: standard deviation of the noise over the clipping norm, of an example or of a user's mean.
        sampling_rate: probability of each example, or of each user, to be in a batch.
        deviation: standard deviation of the noise in the mean gradient, over the clipping norm.
        reached: certified bounds on the epsilon of all steps.
    """

    mechanism: Mechanism
    noise_multiplier: float
    sampling_rate: float
    deviation: float
    reached: Bounds


class UserLevel(NamedTuple):
    """Both ways of sampling, for one budget and the same number of gradients a step.

    Attributes:
        by_example: each example independently, its gradient clipped; accounted for the group of a user's examples.
        by_user: each user independently, the mean of the gradients of some of its examples clipped once.
    """

    by_example: Sampling
    by_user: Sampling

    @property
    def crossover(self) -> float:
        """Ratio of a user's clipping norm to an example's up to which sampling by user adds less noise.

        Above 1, sampling by user adds less at equal norms. The mean of diverse gradients is short, and may be clipped
        at a smaller norm.
        """
        return self.by_example.deviation / self.by_user.deviation

    @property
    def by_user_is_better(self) -> bool:
        """Whether sampling by user adds less noise to the mean gradient at equal clipping norms."""
        return self.crossover > 1


@takes_python_values
def user_level(
    epsilon: float,
    delta: float,
    *,
    users: int,
    examples_per_user: int,
    batch_size: float,
    steps: int,
    sampled_per_user: int | None = None,
) -> UserLevel:
    """Returns what the noise has to be for a guarantee for users, sampled by example and by user.

    Args:
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        users: N, the number of users, public.
        examples_per_user: m, the most examples that a user owns (:func:`jaxacct.train.bounded_contributions` sees to
            it), and what each is taken to own.
        batch_size: gradients a step, expected; at most N m.
        steps: number of steps, fixed in advance.
        sampled_per_user: h, how many of its examples a sampled user's mean is over, at most m; m by default. Few mean
            more users a step.

    Returns:
        :class:`UserLevel`. By example the rate is ``batch_size / (N m)`` and the mechanism
        :class:`.PoissonSubsampledGroup` of size m; by user ``batch_size / (N h)`` and
        :class:`.PoissonSubsampledGaussian`, in which a user is the one example. The divisor is the expected number
        of gradients, or of users, which depends on public numbers only.

    Formal guarantee: each way satisfies (epsilon, delta) for one user added, removed or zeroed out with all examples,
    by a certified upper bound: ``reached.upper <= epsilon``. Which of a sampled user's examples are taken may depend on
    that user's data alone: then one user adds to the sum a vector of norm 1 at most, or none, and all others' vectors
    are as before. That a noise is smaller does not say how well a mean over few users stands for all.

    Raises ValueError or TypeError where an argument is out of range, or no noise below 10^6 suffices.

    Source: Charles et al. (2024), "Fine-tuning large language models with user-level differential privacy".

    >>> found = user_level(2.0, 1e-6, users=100, examples_per_user=4, batch_size=40, steps=20)
    >>> f"{found.by_example.noise_multiplier:.3f} {found.by_user.noise_multiplier:.3f} {found.crossover:.3f}"
    '4.444 1.504 0.738'
    """
    validation.check_numbers(epsilon=epsilon, delta=delta, batch_size=batch_size)
    validation.check_positive(epsilon, "epsilon")
    validation.check_delta(delta)
    users = validation.check_count(users, "users", "the number of users")
    examples_per_user = validation.check_count(examples_per_user, "examples_per_user", "the most examples of a user")
    per_user = examples_per_user if sampled_per_user is None else sampled_per_user
    per_user = validation.check_whole(
        per_user, "sampled_per_user", 1, examples_per_user, "the examples of a sampled user's mean"
    )
    steps = validation.check_count(steps, "steps", "the number of steps")
    validation.check_positive(batch_size, "batch_size")
    if batch_size > users * per_user:
        raise ValueError(
            f"batch_size = {batch_size} is above the {users * per_user} gradients of all users: give the expected "
            "number of gradients a step."
        )

    def sample_at(rate: float, size: int, sums: float) -> Sampling:
        least = noise_multiplier(epsilon, delta, rate, steps, group=size)
        noise = float(least.value)
        if not least.satisfied or not noise < 1e6:
            raise ValueError(f"epsilon = {epsilon} at delta = {delta} was not met by any noise: give a larger budget.")
        return Sampling(group(PoissonSubsampledGaussian(noise, rate), size), noise, rate, noise / sums, least.reached)

    rate = batch_size / (users * examples_per_user)
    by_example = sample_at(rate, examples_per_user, float(batch_size))
    return UserLevel(by_example, sample_at(batch_size / (users * per_user), 1, batch_size / per_user))


# ----------------------------------------------------------------------------------------------------
# Searches over settings: budgets for whole ones, by the noise of their runs or the number of trials.
# ----------------------------------------------------------------------------------------------------


@takes_python_values
def noise_multiplier_for_search(
    trials: Trials,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    *,
    relation: Relation = "add_or_remove",
) -> Calibrated:
    """Returns about the least noise multiplier with which a whole search is (epsilon, delta)-DP.

    Args:
        trials: how many runs of Poisson sampled DP-SGD there are, of which the best alone is released.
        epsilon: budget of all of them, above 0.
        delta: budget, in (0, 1).
        sampling_rate: of each run, in (0, 1].
        steps: of each run.
        relation: "add_or_remove".

    Returns:
        :class:`~jaxacct.calibrate.Calibrated`: ``value`` the noise multiplier of every run, ``reached`` the search's
        certified epsilon, within 1e-3 of the budget; status LOOSE. Some ten seconds.

    Formal guarantee: ``reached.upper <= epsilon``, that of :class:`jaxacct.RepeatAndSelect`.

    Raises ValueError where an argument is out of range, or no noise was found that suffices.

    >>> from jaxacct.selection import Geometric
    >>> found = noise_multiplier_for_search(Geometric(10.0), 2.0, 1e-5, sampling_rate=1.0, steps=1)
    >>> f"{found.value:.2f} {found.reached.upper:.2f}"
    '2.93 2.00'
    """
    validation.check_numbers(epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps)
    validation.check_positive(epsilon, "epsilon")
    validation.check_delta(delta)
    validation.check_sampling_rate(sampling_rate)
    steps = validation.check_count(steps, "steps", "the steps of a run")
    # The start is about the noise of a Gaussian whose sensitivity is the average one.
    start = max(sampling_rate * math.sqrt(steps * math.log(1 / delta)) / epsilon, 0.3)

    def run(noise: float) -> tuple[Mechanisms, Steps]:
        return PoissonSubsampledGaussian(noise, sampling_rate), steps

    return least_noise(run, trials, epsilon, delta, relation, start)


def least_noise(
    run: Callable[[float], tuple[Mechanisms, Steps]],
    trials: Trials,
    epsilon: float,
    delta: float,
    relation: Relation,
    start: float,
) -> Calibrated:
    """Returns what :func:`noise_multiplier_for_search` does, for runs that are any composition of their noise."""
    brackets: dict[float, Bounds] = {}

    def cost(log_noise: float) -> float:
        search = RepeatAndSelect(*run(math.exp(log_noise)), trials)
        brackets[log_noise] = certified.epsilon(search, 1, delta, relation=relation)
        return float(brackets[log_noise].upper) / max(epsilon, TINY)

    # A bracket of a search takes a second, and its lower end is too far down to refute anything: secants of the upper
    # ends, to within 1e-3 of the budget. Sound for any numbers.
    with warnings.catch_warnings(action="ignore", category=ToleranceWarning):
        least = least_by_secants(cost, math.log(start), close=1e-3, rounds=20)
    if least not in brackets:
        raise ValueError(
            f"epsilon = {epsilon} at delta = {delta} was not met by any noise for {trials}: give a larger budget, or "
            "fewer trials."
        )
    return Calibrated(np.float64(math.exp(least)), brackets[least], int(Status.LOOSE))


@takes_python_values
def most_trials(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: float,
    delta: float,
    *,
    share: float = 0.1,
    relation: Relation = "add_or_remove",
) -> Trials:
    """Returns the law of the number of runs that a budget pays for with which a search is likeliest to succeed.

    Args:
        mechanism: what one run is composed of, as of :func:`jaxacct.epsilon`; concrete.
        steps: likewise.
        epsilon: budget of the search, more than one run costs.
        delta: budget, in (0, 1).
        share: of the settings, those that would do: the search succeeds if it tries one, each being drawn with equal
            probabilities. Less means more trials of a law that varies more.
        relation: one of those of :class:`jaxacct.RepeatAndSelect` that what is within supports. "remove" and "add" are
            none: the bound on a search in one direction takes both directions of a run.

    Returns:
        The law of the least :meth:`~jaxacct.selection.Trials.missed` among Poisson's and the truncated negative
        binomial laws of a few shapes, each with the largest mean up to 1e5 that is certified. (For a mean that is given
        the logarithmic law always costs least: most of its searches try one or two settings.)

    Formal guarantee: a search with this law is (epsilon, delta)-DP, that of :class:`jaxacct.RepeatAndSelect`.

    Raises ValueError where an argument is out of range, or the budget does not pay for a single run.

    >>> from jaxacct import Gaussian
    >>> law = most_trials(Gaussian(5.0), 1, 2.0, 1e-5)
    >>> print(f"eta {law.shape}, {law.mean:.0f} trials on average, misses in {law.missed(0.1):.2%}")
    eta 2.0, 414 trials on average, misses in 0.21%
    """
    validation.check_numbers(epsilon=epsilon)
    validation.check_one_of(relation, "relation", tuple(DIRECTIONS))
    check_parts(mechanism, steps)
    validation.check_one_of(relation, "relation", RepeatAndSelect.relations, " by searches, which take both directions")
    validation.check_delta(delta)
    validation.check_positive(epsilon, "epsilon")
    validation.check_positive(share, "share")
    validation.check_probability(share, "share")
    question = ForDelta(np.array([epsilon]))
    ways = certified.profile_of_one_run((mechanism, steps), question, 1.0, relation)

    def most(law: Callable[[float], Trials]) -> Trials | None:
        def pays(mean: float) -> bool:
            return max(Selection(way, law(mean)).upper(epsilon) for way in ways) <= delta

        if not ways or not pays(1.0):
            return None
        # Up to a mean of 1e5, in 14 halvings of its logarithm to 1e-3. Sound for any numbers: what is returned pays.
        return law(math.exp(bisect(lambda log_mean: pays(math.exp(log_mean)), 0.0, math.log(1e5), steps=14)))

    # The law of shape 0 is the logarithmic one.
    families: list[Callable[[float], Trials]] = [
        *(functools.partial(TruncatedNegativeBinomial, shape=shape) for shape in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
        Poisson,
    ]
    laws = [law for law in map(most, families) if law is not None]
    if not laws:
        raise ValueError(f"epsilon = {epsilon} does not pay for a single run: give more, or add noise.")
    return min(laws, key=lambda law: law.missed(share))
