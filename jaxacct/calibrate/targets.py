"""What is called: the setting for a budget, by the exact accountant, or by the mesh where that one falls short."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import certified, validation
from jaxacct.bounds import Bounds
from jaxacct.calibrate.attack import tangent
from jaxacct.calibrate.by_mesh import improved
from jaxacct.calibrate.implicit import solved
from jaxacct.calibrate.result import Calibrated, Status
from jaxacct.calibrate.search import LEAST_PADDING, PROBE
from jaxacct.calibrate.solve import ENDS, Config, Given, composition, scaled
from jaxacct.composition import check
from jaxacct.convert import dp_to_gdp
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.precision import as_float64, is_concrete, outside, scope
from jaxacct.question import ForDelta, ForEpsilon, Kind

TOLERANCE = 1e-6
"""Relative distance from the best setting. Three or four evaluations; 1e-4 mostly takes two, and 1e-8 four or five."""


def noise_multiplier(
    epsilon: ArrayLike,
    delta: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
) -> Calibrated:
    """Returns the least noise multiplier for (epsilon, delta)-DP of a Poisson-subsampled Gaussian run for some steps.

    Args:
        epsilon (): budget, at least 0. May be traced, as the next three; batches are ``jax.vmap``.
        delta (): budget, in (0, 1).
        sampling_rate (): probability of each example to be in a batch, in (0, 1].
        steps (): number of runs, whole.
        relation: "add_or_remove", "add" or "remove".
        tolerance: relative distance from the least noise aimed at.

    Returns:
        :class:`~jaxacct.calibrate.Calibrated`: ``value`` the noise multiplier, ``reached`` its certified epsilon. NumPy
        scalars, or JAX ones inside a trace. No noise (0) where delta covers every run that an example is in.
        Derivatives of ``value`` are those of the exact setting (:mod:`jaxacct.calibrate.implicit`), first order.

    Formal guarantee: where ``status`` is CONVERGED, NOT_BINDING or LOOSE the returned value satisfies the budget by a
    certified upper bound, ``reached.upper <= epsilon``. Where the exact accountant does not converge, concrete targets
    are answered by :mod:`jaxacct.prv`; traced ones have status LOOSE or UNKNOWN (then value inf).

    Raises:
        ValueError: a concrete argument out of range, or a concrete target that cannot be met.

    Source: secants on the certified bounds, from where the central limit has it: :mod:`jaxacct.calibrate`.

    >>> found = noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=10_000)
    >>> f"{found.value:.4f}", bool(found.reached.upper <= 1.0)
    ('3.8128', True)
    """
    return _calibrated("noise_multiplier", Given(epsilon, delta, 1.0, sampling_rate, steps), relation, tolerance)


def sampling_rate(
    epsilon: ArrayLike,
    delta: ArrayLike,
    noise_multiplier: ArrayLike,
    steps: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
) -> Calibrated:
    """Returns the largest sampling rate for (epsilon, delta)-DP; 1, NOT_BINDING, where every example may be in a batch.

    Args, result, guarantee, errors and source are those of :func:`noise_multiplier`, with ``noise_multiplier`` (), at
    least 0, given in the rate's place. Where nothing is certified the value is 0; what delta covers by
    itself always is, 1 - (1 - delta)^(1/steps): then no example is likelier than that to be sampled at all.

    >>> f"{sampling_rate(epsilon=1.0, delta=1e-5, noise_multiplier=3.8128189, steps=10_000).value:.6f}"
    '0.010000'
    """
    return _calibrated("sampling_rate", Given(epsilon, delta, noise_multiplier, 1.0, steps), relation, tolerance)


def steps(
    epsilon: ArrayLike,
    delta: ArrayLike,
    noise_multiplier: ArrayLike,
    sampling_rate: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
) -> Calibrated:
    """Returns the largest whole number of steps for (epsilon, delta)-DP, as float64; up to 2^53 are considered.

    Args, result, guarantee, errors and source are those of :func:`noise_multiplier`, with ``noise_multiplier`` (), at
    least 0, given in the steps' place. INFEASIBLE (ValueError on concrete arguments) where a single step is too much.

    >>> steps(epsilon=1.0, delta=1e-5, noise_multiplier=3.8128189, sampling_rate=0.01).value
    np.float64(10000.0)
    """
    return _calibrated("steps", Given(epsilon, delta, noise_multiplier, sampling_rate, 1.0), relation, tolerance)


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

    Returns, guarantee, errors and source as of :func:`noise_multiplier`. NOT_BINDING where ``least`` suffices.

    >>> def falling(scale):
    ...     return PoissonSubsampledGaussian(scale * np.array([1.2, 1.0, 0.8]), 0.01)
    >>> found = scale(falling, epsilon=1.0, delta=1e-5, steps=np.array([3000, 3000, 3000]))
    >>> f"{found.value:.3f}"
    '3.788'
    """
    validation.check_epsilon(epsilon)
    validation.check_delta(delta)
    validation.check_positive(tolerance, "tolerance")
    validation.check_positive(least, "least")
    validation.check_positive(most, "most")
    if not least < most:
        raise ValueError(f"least = {least} is not below most = {most}: give the range of the scale that is searched.")
    check(make(np.float64(least)), steps)
    config = Config("scale", ForEpsilon, relation, float(tolerance))
    ends = (math.log(least), math.log(most))
    with scope():
        given = Given(as_float64(epsilon), as_float64(delta), 1.0, 1.0, 1.0)
        counts = jax.tree.map(as_float64, steps)
        result, start = scaled(config, make, given, counts, (as_float64(ends[0]), as_float64(ends[1])))
    if not is_concrete(result):
        return result
    return _settled(config, lambda value: (make(value), steps), result, start, given, ends)


def noise_multiplier_for_advantage(
    advantage: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    tolerance: float = TOLERANCE,
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
    validation.check_positive(advantage, "advantage")
    _check_below_one(advantage, "advantage")
    given = Given(0.0, advantage, 1.0, sampling_rate, steps)
    return _calibrated("noise_multiplier", given, relation, tolerance, ForDelta)


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
        relation: likewise.
        tolerance: likewise; at the epsilon that was chosen, whose choice costs less than 1e-4 beside it, or up to 4e-3
            where the delta that belongs to it is above a half.

    Returns, errors as of :func:`noise_multiplier`; ``reached`` bounds delta at the epsilon that rules the test out.

    Formal guarantee: as of :func:`noise_multiplier`, for every test that sees all that is released.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Proposition 6; :mod:`jaxacct.calibrate.attack`.

    >>> found = noise_multiplier_for_tpr(tpr=0.05, fpr=0.01, sampling_rate=0.01, steps=10_000)
    >>> bool(found.satisfied)
    True
    """
    for rate, name in ((tpr, "tpr"), (fpr, "fpr")):
        validation.check_positive(rate, name)
        _check_below_one(rate, name)
    if is_concrete(tpr, fpr) and not np.all(np.asarray(tpr) > np.asarray(fpr)):
        raise ValueError(
            f"tpr = {tpr} is not above fpr = {fpr}: a test that guesses blindly reaches as much, whatever the noise; "
            "give a true-positive rate above the false-positive rate."
        )
    _check_run(1.0, sampling_rate, steps)
    with scope():
        numbers = [as_float64(number) for number in (tpr, fpr, sampling_rate, steps)]
        at, allowed = outside(tangent(relation, *numbers))
    given = Given(at, allowed, 1.0, sampling_rate, steps)
    return _calibrated("noise_multiplier", given, relation, tolerance, ForDelta)


def _check_below_one(value: Any, name: str) -> None:
    seen = validation.concrete_value(value)
    if seen is not None and not np.all(seen < 1):
        raise ValueError(f"{name} = {value} is not in (0, 1): give a rate below 1; at 1 no noise is needed.")


def _check_run(noise_multiplier: Any, sampling_rate: Any, steps: Any) -> None:
    validation.check_noise_multiplier(noise_multiplier)
    validation.check_sampling_rate(sampling_rate)
    validation.check_steps(steps)


def _calibrated(
    unknown: str, given: Given, relation: Relation, tolerance: float, budget: Kind = ForEpsilon
) -> Calibrated:
    validation.check_epsilon(given.epsilon)
    validation.check_delta(given.delta)
    _check_run(given.noise_multiplier, given.sampling_rate, given.steps)
    validation.check_positive(tolerance, "tolerance")
    validation.check_one_of(relation, "relation", PoissonSubsampledGaussian.relations)
    for name, value in given._asdict().items():
        validation.check_scalar(value, name)
    config = Config(
        unknown, budget, relation, float(tolerance),
        is_plain=unknown != "sampling_rate" and is_concrete(given.sampling_rate) and float(given.sampling_rate) == 1,
        is_single=unknown != "steps" and is_concrete(given.steps) and float(given.steps) == 1,
    )  # fmt: skip
    result, start = solved(config, given)
    if not is_concrete(result):
        return result
    numbers = Given(*(float(number) for number in given))
    compose = functools.partial(composition, config, numbers)
    return _settled(config, compose, result, start, numbers, ENDS[unknown])


def _settled(
    config: Config,
    compose: Callable[[Any], tuple[Any, Any]],
    result: Calibrated,
    start: Any,
    given: Given,
    ends: tuple[float, float],
) -> Calibrated:
    """Returns a concrete result: by the mesh where the exact accountant fell short. Raises where nothing satisfies."""
    result = outside(result)
    unknown, budgeted = config.unknown, config.budget.name
    if result.status in (Status.LOOSE, Status.UNKNOWN):
        result = improved(config, compose, result, float(start), given, ends)
    if result.status in (Status.UNKNOWN, Status.INFEASIBLE) and unknown == "noise_multiplier":
        result = _of_everyone(config, compose, result, given)
    if result.status == Status.LOOSE:
        result = _proved(config, compose, result, given)
    if result.status == Status.INFEASIBLE:
        end = {"steps": "a single step", "sampling_rate": f"a rate of {math.exp(-ends[1]):.3g}"}.get(
            unknown, f"a {unknown.replace('_', ' ')} of {math.exp(ends[1]):.3g}"
        )
        raise ValueError(
            f"{budgeted} = {float(given.allowed(config.budget)):g} cannot be met by any {unknown}: even {end} costs "
            f"more; allow a larger {budgeted}" + (", or add noise." if unknown in ("steps", "sampling_rate") else ".")
        )
    return result


def _of_everyone(
    config: Config, compose: Callable[[Any], tuple[Any, Any]], before: Calibrated, given: Given
) -> Calibrated:
    """Returns the noise that suffices where every example is in every batch, in closed form and at any delta."""
    mu = float(dp_to_gdp(given.epsilon, given.delta)) * (1 - LEAST_PADDING)
    value = math.sqrt(given.steps) / mu if mu > 0 else math.inf
    at_delta = certified.delta(*compose(value), given.epsilon, relation=config.relation)
    if not float(at_delta.upper) <= given.delta:
        return before
    found = Calibrated(np.float64(value), at_delta, int(Status.LOOSE))
    if config.budget is ForDelta:
        return found
    # At most the budget's, where its delta has been certified.
    reached = certified.epsilon(*compose(value), given.delta, relation=config.relation)
    lower, middle, upper = (np.minimum(end, given.epsilon) for end in (reached.lower, reached.estimate, reached.upper))
    return dataclasses.replace(found, reached=Bounds(lower, middle, upper, reached.converged))


def _proved(config: Config, compose: Callable[[Any], tuple[Any, Any]], result: Calibrated, given: Given) -> Calibrated:
    """Returns the result as CONVERGED where the next setting that would cost more, within the tolerance, is refuted."""
    value = float(result.value)
    next_one = {"steps": value + 1, "sampling_rate": min(value * (1 + PROBE * config.tolerance), 1.0)}.get(
        config.unknown, value * (1 - PROBE * config.tolerance)
    )
    refuted = float(certified.delta(*compose(next_one), given.epsilon, relation=config.relation).lower) > given.delta
    return dataclasses.replace(result, status=int(Status.CONVERGED)) if refuted else result
