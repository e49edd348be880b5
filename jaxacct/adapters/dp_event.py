"""A ``DpEvent`` of dp_accounting as mechanisms and steps.

Events are known by the names of their classes and fields: nothing is imported, and an event that was turned into a
named tuple for storage reads the same. Where a field has to be converted, rounding errs on the side of more loss.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.binomial import binomial_tail
from jaxacct.mechanisms import (
    ApproximateDP,
    DiscreteLaplace,
    Gaussian,
    GaussianMixture,
    GaussianWithoutReplacement,
    Laplace,
    LaplaceWithoutReplacement,
    Mechanism,
    PoissonSubsampledGaussian,
    PoissonSubsampledLaplace,
    PureDP,
    RandomizedResponse,
    TruncatedPoissonGaussian,
)

UNIT = 2.0**-53
"""Relative error of one float64 operation. ``log1p`` and ``exp`` are taken to be right to four of it."""

MOST_STEPS = 2**53
"""Most runs of one mechanism: whole numbers up to here are exact in float64."""


class Part(NamedTuple):
    """One mechanism: its class, its fields (numbers or tuples of them) and its static fields."""

    kind: type
    fields: tuple[Any, ...]
    static: tuple[tuple[str, Any], ...] = ()


Parts = dict[Part, int]
"""How often each mechanism runs. Their order does not matter: the loss of a composition is a sum."""

NO_PRIVACY = Part(PureDP, (math.inf,))


def from_dp_event(event: object) -> tuple[tuple[Mechanism, ...], tuple[ArrayLike, ...]]:
    """Returns the mechanisms that a dp_accounting event is composed of, and how often each runs.

    Args:
        event: an instance of dp_accounting's ``DpEvent``, what its ``to_named_tuple`` returns, or any object whose
            class and attributes have the same names.

    Returns:
        ``(mechanisms, steps)``, two tuples of one length for :func:`jaxacct.epsilon` and every other accountant. Equal
        mechanisms are counted together, and those of one class are one sequence: fields and steps of shape (m,), for
        one of them scalars. An event of no cost is ``PureDP(0.0)``, and ``NonPrivateDpEvent`` ``PureDP(inf)``.

    Understood: no-op, non-private, (epsilon, delta), Gaussian, Laplace, discrete Laplace, mixture of Gaussians,
    randomized response, composed and self-composed events; Gaussian and Laplace ones on Poisson samples and on samples
    without replacement; truncated Poisson samples. Gaussian events composed *inside* a sampling event act on one
    sample, and are one Gaussian of less noise; Poisson samples of Poisson samples are Poisson samples.

    Formal guarantee: an upper bound of an accountant on the result holds for the event as dp_accounting documents it.
    The neighbouring relation is not part of an event, so name it to the accountant: ``ADD_OR_REMOVE_ONE`` is
    "add_or_remove", ``REPLACE_ONE`` is "replace". ``REPLACE_SPECIAL`` (a record becomes a special one, zero say) has no
    counterpart. A noise multiplier is taken relative to the norm of one record's value, as events define it: under
    "replace" a sum moves by twice that. (dp_accounting's Rényi accountant counts it once there, and so reads the same
    sample without replacement as one with twice the noise.)

    Raises:
        TypeError: no event.
        ValueError: an event without a counterpart here, with what to do instead, or one whose field is out of range.

    Source: dp_accounting 0.6, ``dp_event.py``. Gaussian events of noise s_i on one sample: what follows adaptively is
    dominated by one Gaussian of noise ``(sum_i s_i^-2)^(-1/2)`` given the sample (Dong, Roth and Su (2022), "Gaussian
    differential privacy", Corollary 3.3), and the pairs of a sample are made of those given it (Zhu, Dong and Wang
    (2022), Theorem 11). The cut of a truncated sample is counted as :class:`jaxacct.TruncatedPoissonGaussian` does.

    >>> class GaussianDpEvent:
    ...     noise_multiplier = 2.0
    >>> from_dp_event(GaussianDpEvent())
    ((Gaussian(noise_multiplier=2.0),), (1,))
    """
    parts = _parts(event)
    if not parts:
        return (PureDP(0.0),), (1,)
    groups: dict[tuple[Any, ...], list[tuple[Part, int]]] = {}
    for part, count in parts.items():
        shape = tuple(np.shape(value) for value in part.fields)
        groups.setdefault((part.kind, part.static, shape), []).append((part, count))
    mechanisms: list[Mechanism] = []
    steps: list[ArrayLike] = []
    for members in groups.values():
        kind, _, static = members[0][0]
        counts = [count for _, count in members]
        columns = list(zip(*(part.fields for part, _ in members), strict=True))
        if len(members) == 1:
            mechanisms.append(kind(*(column[0] for column in columns), **dict(static)))
            steps.append(counts[0])
        else:
            mechanisms.append(kind(*(np.array(column, np.float64) for column in columns), **dict(static)))
            steps.append(np.array(counts, np.float64))
    return tuple(mechanisms), tuple(steps)


def _parts(event: object) -> Parts:
    name = _name(event)
    if name in CONVERSIONS:
        return CONVERSIONS[name](event)
    if name in REFUSED:
        raise ValueError(f"event = {event!r} has no mechanism here: {REFUSED[name]}")
    if not name.endswith("DpEvent"):
        raise TypeError(f"event = {event!r} of type {name} is no DpEvent: give one of dp_accounting's.")
    raise ValueError(
        f"event = {event!r} of type {name} is not known: give events of {', '.join(sorted(CONVERSIONS))}, or its "
        "privacy loss as a jaxacct.DiscretePair or jaxacct.PrivacyLoss."
    )


def _name(event: object) -> str:
    """Returns the name of an event's class, also of one that was turned into a named tuple."""
    name = getattr(event, "class_name", type(event).__name__)
    return name.decode() if isinstance(name, bytes) else str(name)


def _field(event: object, name: str) -> Any:
    if not hasattr(event, name):
        raise ValueError(f"event = {event!r} has no {name}: give a {_name(event)} as dp_accounting defines it.")
    return getattr(event, name)


def _number(event: object, name: str, least: float = 0.0, most: float = math.inf) -> float:
    value = _field(event, name)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{_name(event)}.{name} = {value!r} of type {type(value).__name__}: give a number.")
    if not least <= float(value) <= most:
        raise ValueError(f"{_name(event)}.{name} = {value} is out of range: give a number from {least} to {most}.")
    return float(value)


def _whole(event: object, name: str, least: int = 0, most: int = MOST_STEPS) -> int:
    value = _field(event, name)
    validation.check_whole(value, f"{_name(event)}.{name}", least, most, "a whole number")
    return int(value)


def _numbers(event: object, name: str) -> tuple[float, ...]:
    return tuple(float(value) for value in np.asarray(_field(event, name), np.float64).ravel())


def _one(kind: type, *fields: Any, **static: Any) -> Parts:
    return {Part(kind, fields, tuple(static.items())): 1}


def _composed(event: object) -> Parts:
    total: Parts = {}
    for inner in _field(event, "events"):
        for part, count in _parts(inner).items():
            total[part] = total.get(part, 0) + count
    return total


def _self_composed(event: object) -> Parts:
    count = _whole(event, "count")
    repeated = {part: runs * count for part, runs in _parts(_field(event, "event")).items() if count}
    for runs in repeated.values():
        validation.check_whole(runs, "count", 0, MOST_STEPS, "numbers of runs whose product is exact in float64")
    return repeated


def _poisson_sampled(event: object) -> Parts:
    rate = Fraction(_number(event, "sampling_probability", 0, 1))
    inner = _field(event, "event")
    while _name(inner) == "PoissonSampledDpEvent":  # independent choices of the same records
        rate *= Fraction(_number(inner, "sampling_probability", 0, 1))
        inner = _field(inner, "event")
    kinds: dict[type, type] = {Gaussian: PoissonSubsampledGaussian, Laplace: PoissonSubsampledLaplace}
    return _sampled(event, inner, _up(rate), kinds)


def _without_replacement(event: object) -> Parts:
    source = _whole(event, "source_dataset_size", least=1)
    rate = Fraction(_whole(event, "sample_size", most=source), source)
    kinds: dict[type, type] = {Gaussian: GaussianWithoutReplacement, Laplace: LaplaceWithoutReplacement}
    return _sampled(event, _field(event, "event"), _up(rate), kinds)


def _sampled(event: object, inner: Any, rate: float, kinds: Mapping[type, type]) -> Parts:
    """Returns what happens on one sample; ``kinds`` are the mechanisms with sampling of those without."""
    parts = _parts(inner)
    if rate == 0 or not parts:
        return {}
    if NO_PRIVACY in parts:
        return {NO_PRIVACY: 1}
    if all(part.kind is Gaussian for part in parts):
        parts = {Part(Gaussian, (_one_noise(parts),)): 1}
    (part, count), *others = parts.items()
    if others or count != 1 or part.kind not in kinds:
        raise ValueError(
            f"event = {event!r} does more on its sample than one Laplace or some Gaussian releases: no pair is known "
            "for it here. Compose the samples themselves (each release with one of its own), if that is what runs."
        )
    return _one(kinds[part.kind], *part.fields, rate)


def _one_noise(parts: Parts) -> float:
    """Returns the noise multiplier of one Gaussian that says as much as all of them, rounded down."""
    noises = [(part.fields[0], count) for part, count in parts.items()]
    least = min(noise for noise, _ in noises)
    if noises == [(least, 1)] or least in (0.0, math.inf):
        return least
    # Relative to the least noise no square overflows; one that underflows is below the rounding of the sum, 1 or more.
    precision = sum(count * (least / noise) ** 2 for noise, count in noises)
    return least / math.sqrt(precision) * (1 - (2 * len(noises) + 8) * UNIT)


def _truncated(event: object) -> Parts:
    size, capacity = _whole(event, "dataset_size"), _whole(event, "truncated_batch_size")
    rate, noise = _number(event, "sampling_probability", 0, 1), _number(event, "noise_multiplier")
    if rate == 0 or size == 0 or capacity == 0:
        return {}
    # As dp_accounting counts, of two neighbours the larger has ``size`` records. The bound on overflows, which no more
    # than caps what is not known, is that of one more.
    mechanism = TruncatedPoissonGaussian.for_batches(noise, rate, size, capacity)
    overflow = binomial_tail(size, rate, capacity).most
    return _one(TruncatedPoissonGaussian, *jax.tree.leaves(replace(mechanism, overflow_probability=overflow)))


def _discrete_laplace(event: object) -> Parts:
    parameter, sensitivity = _number(event, "noise_parameter"), _whole(event, "sensitivity")
    if sensitivity == 0:
        return {}
    if parameter == 0:
        # No noise parameter means no decay, so unbounded noise; dp_accounting counts it as no privacy.
        return {NO_PRIVACY: 1}
    return _one(DiscreteLaplace, 1 / parameter * (1 - 4 * UNIT), sensitivity=sensitivity)


def _mixture(event: object) -> Parts:
    sensitivities, probabilities = _numbers(event, "sensitivities"), _numbers(event, "sampling_probs")
    if sensitivities and not any(sensitivities):
        return {}
    return _one(GaussianMixture, _number(event, "standard_deviation"), sensitivities, probabilities)


def _randomized_response(event: object) -> Parts:
    noise, outcomes = _number(event, "noise_parameter", 0, 1), _whole(event, "num_buckets", least=1)
    if outcomes == 1:
        return {}
    if noise == 0:
        return {NO_PRIVACY: 1}
    # The true bucket has probability 1 - p + p/k, each other one p/k.
    return _one(RandomizedResponse, math.log1p(outcomes * (1 - noise) / noise) * (1 + 12 * UNIT), outcomes=outcomes)


def _approximate(event: object) -> Parts:
    epsilon, delta = _number(event, "epsilon"), _number(event, "delta", 0, 1)
    return _one(ApproximateDP, epsilon, delta) if delta else _one(PureDP, epsilon)


def _up(value: Fraction) -> float:
    """Returns a float64 that is not below the exact value."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


CONVERSIONS: dict[str, Callable[[object], Parts]] = {
    "ComposedDpEvent": _composed,
    "DiscreteLaplaceDpEvent": _discrete_laplace,
    "EpsilonDeltaDpEvent": _approximate,
    "GaussianDpEvent": lambda event: _one(Gaussian, _number(event, "noise_multiplier")),
    "LaplaceDpEvent": lambda event: _one(Laplace, _number(event, "noise_multiplier")),
    "MixtureOfGaussiansDpEvent": _mixture,
    "NoOpDpEvent": lambda event: {},
    "NonPrivateDpEvent": lambda event: {NO_PRIVACY: 1},
    "PoissonSampledDpEvent": _poisson_sampled,
    "RandomizedResponseDpEvent": _randomized_response,
    "SampledWithoutReplacementDpEvent": _without_replacement,
    "SelfComposedDpEvent": _self_composed,
    "TruncatedSubsampledGaussianDpEvent": _truncated,
}

REFUSED: dict[str, str] = {
    "RepeatAndSelectDpEvent": "a random number of runs of which the best is released is no composition. "
    "Use dp_accounting's Rényi accountant.",
    "SampledWithReplacementDpEvent": "sampling with replacement has no dominating pair here. "
    "Sample without replacement, or by Poisson's law.",
    "SingleEpochTreeAggregationDpEvent": "it is stated for zeroed-out records, a relation that is not offered. "
    "For those it is jaxacct.Gaussian(noise_multiplier / sqrt(d)), d the number of nodes that one record is in.",
    "UnsupportedDpEvent": "it stands for an operation whose cost nobody has given.",
    "ZCDpEvent": "concentrated privacy bounds all Rényi orders and gives no dominating pair. "
    "Use jaxacct.convert.zcdp_to_epsilon, or zcdp_to_rdp to compose it with Rényi curves.",
}
