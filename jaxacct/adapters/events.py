"""Records of other libraries' runs as mechanisms and steps: events of dp_accounting, histories of Opacus.

None of these libraries is imported: events are known by the names of their classes and fields. An event first becomes
counts of hashable parts, so that equal mechanisms are counted together before any is made.

In reading order:

- :func:`stand_in`: base classes for libraries that are not installed; :func:`upper_end`.
- :class:`EventPart` to :func:`join_parts`: counts of mechanisms, and the mechanisms and steps that they become.
- :func:`from_dp_event`: an event of dp_accounting as mechanisms and steps.
- :func:`parts_of` to :data:`CONVERSIONS`: the conversion of each kind of event.
- :func:`from_history`, :func:`checkpoint_history`: runs of Opacus; :func:`judge_history` to :func:`shuffled_run`:
  records of runs whose loader shuffled.
- :func:`compute_dp_sgd_privacy`, :func:`flower_privacy`: bounds for a run of TensorFlow Privacy, or of Flower.
"""

from __future__ import annotations

import io
import math
import numbers
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import certified, validation
from jaxacct.adapters.loaders import ShuffledBatches
from jaxacct.bounds import Bounds
from jaxacct.choices import Verdict
from jaxacct.display import round_up
from jaxacct.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteGaussianVector,
    DiscreteLaplace,
    DPWithoutReplacement,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GaussianWithoutReplacement,
    GaussianWithReplacement,
    Laplace,
    LaplaceWithoutReplacement,
    Mechanism,
    PoissonSubsampled,
    PoissonSubsampledDP,
    PoissonSubsampledGaussian,
    PoissonSubsampledLaplace,
    PureDP,
    RandomAllocation,
    RandomizedResponse,
    Relation,
    RepeatAndSelect,
    SubsampledWithoutReplacement,
    TreeAggregation,
    TruncatedPoissonGaussian,
    ZeroConcentratedDP,
)
from jaxacct.mechanisms.finite import LARGEST_SENSITIVITY
from jaxacct.mechanisms.fixed_batches import LEAST_NOISE
from jaxacct.numerics.precision import UNIT_ROUNDOFF
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.rounded_sum import binomial_tail
from jaxacct.selection import Poisson, TruncatedNegativeBinomial
from jaxacct.validation import MOST_STEPS


def stand_in(package: str, needed_for: str) -> type:
    """Returns a base class whose instances cannot be made: the ImportError says what to install.

    A module with classes for a missing library can so be imported, and its other functions used.
    """

    class Absent:
        """The base class in place of the missing one."""

        def __init__(self, *_: Any, **__: Any) -> None:
            raise ImportError(f"{needed_for} needs {package}: pip install {package}.")

    return Absent


def upper_end(bounds: Any) -> float:
    """Returns the upper bound that an accountant's answer is or has."""
    return float(bounds.upper if isinstance(bounds, Bounds) else bounds)


# ----------------------------------------------------------------------------------------------------
# Parts: mechanisms as classes, fields and counts, which are compared and counted before any mechanism is made.
# ----------------------------------------------------------------------------------------------------


class EventPart(NamedTuple):
    """One mechanism, hashable.

    Attributes:
        kind: its class.
        fields: its fields, numbers or tuples of them, in order.
        static: its static fields, by name.
        inner: for a mechanism of other mechanisms, these with their counts; else None.
    """

    kind: type[Mechanism]
    fields: tuple[Any, ...]
    static: tuple[tuple[str, Any], ...] = ()
    inner: tuple[tuple[EventPart, int], ...] | None = None


Parts = dict[EventPart, int]
"""Mechanisms and the number of runs of each. Their order does not matter: the loss of a composition is a sum."""

NO_PRIVACY = EventPart(PureDP, (math.inf,))
"""The mechanism that releases the data."""


def one(kind: type[Mechanism], *fields: Any, inner: Parts | None = None, **static: Any) -> Parts:
    """Returns a single run of a mechanism, or of one that is known by the Rényi curves of others ``inner``."""
    members = None if inner is None else tuple(by_curves(inner).items())
    return {EventPart(kind, fields, tuple(static.items()), members): 1}


def by_curves(parts: Parts) -> Parts:
    """Returns parts that all have Rényi curves: discrete Gaussian noise on vectors by its concentrated privacy.

    Events mean the discrete Gaussian itself, which has that guarantee: noise on each coordinate, of every scale, is as
    concentrated as Gaussian noise (Canonne, Kamath and Steinke (2020), Theorem 4 and its composition).
    """
    total: Parts = {}
    for part, count in parts.items():
        if part.kind is DiscreteGaussianVector:
            sigma, sensitivity, _, rate = part.fields
            unsampled = _one_zcdp(sigma, sensitivity)
            part = next(iter(unsampled if rate == 1 else one(PoissonSubsampled, rate, inner=unsampled)))
        total[part] = total.get(part, 0) + count
    return total


def _one_zcdp(sigma: float, sensitivity: float) -> Parts:
    return one(ZeroConcentratedDP, round_up(Fraction(sensitivity) ** 2 / Fraction(sigma) ** 2 / 2), 0.0)


def lacking(parts: Parts, relation: Relation) -> type[Mechanism] | None:
    """Returns the class of a mechanism among them, or within one, that is not known under a relation; else None."""
    for part in parts:
        if relation not in part.kind.relations:
            return part.kind
        if part.inner and (kind := lacking(dict(part.inner), relation)):
            return kind
    return None


def join_parts(parts: Parts) -> tuple[tuple[Mechanism, ...], tuple[ArrayLike, ...]]:
    """Returns mechanisms and steps; the mechanisms of one class become one sequence, by a leading axis."""
    if not parts:
        return (PureDP(0.0),), (1,)
    # A sequence has one class, the same static fields and the same shapes; a mechanism with others within stays alone.
    groups: dict[tuple[Any, ...], list[tuple[EventPart, int]]] = {}
    for part, count in parts.items():
        alike = part if part.inner else tuple(np.shape(value) for value in part.fields)
        groups.setdefault((part.kind, part.static, alike), []).append((part, count))
    mechanisms: list[Mechanism] = []
    steps: list[ArrayLike] = []
    # Members of a group differ in numbers alone: one mechanism with arrays for fields stands for them.
    for members in groups.values():
        kind, _, static, inner = members[0][0]
        inner_mechanisms = join_parts(dict(inner)) if inner else ()
        counts = [count for _, count in members]
        columns = list(zip(*(part.fields for part, _ in members), strict=True))
        if len(members) == 1:
            mechanisms.append(kind(*inner_mechanisms, *(column[0] for column in columns), **dict(static)))
            steps.append(counts[0])
        else:
            mechanisms.append(kind(*(np.array(column, np.float64) for column in columns), **dict(static)))
            steps.append(np.array(counts, np.float64))
    return tuple(mechanisms), tuple(steps)


# ----------------------------------------------------------------------------------------------------
# Conversion: a ``DpEvent`` of dp_accounting as mechanisms and steps; dp_accounting is not imported.
# ----------------------------------------------------------------------------------------------------


def from_dp_event(event: object) -> tuple[tuple[Mechanism, ...], tuple[ArrayLike, ...]]:
    """Returns the mechanisms that a dp_accounting event is composed of, and how often each runs.

    Args:
        event: an instance of dp_accounting's ``DpEvent``, what its ``to_named_tuple`` returns, or any object whose
            class and attributes have the same names.

    Returns:
        ``(mechanisms, steps)``, two tuples of one length for :func:`jaxacct.epsilon` and every other accountant. Equal
        mechanisms are counted together, and those of one class are one sequence: fields and steps of shape (m,), for
        one of them scalars. An event of no cost is ``PureDP(0.0)``, and ``NonPrivateDpEvent`` ``PureDP(inf)``.

    All events of dp_accounting are understood, some by their Rényi curves alone; the table in docs/coming-from.md says
    which, and which are refused. Gaussian events composed *inside* a sampling event act on one sample, and are one
    Gaussian of less noise; Poisson samples of Poisson samples are Poisson samples.

    Formal guarantee: an upper bound of an accountant on the result holds for the event as dp_accounting documents it.
    The neighbouring relation is not part of an event, so name it to the accountant: ``ADD_OR_REMOVE_ONE`` is
    "add_or_remove", ``REPLACE_ONE`` is "replace", ``REPLACE_SPECIAL`` (a record becomes a special one, zero say) is
    "zero_out". A noise multiplier is taken relative to the norm of one record's value, as events define it: under
    "replace" a sum moves by twice that. (dp_accounting's Rényi accountant counts it once there, and so reads the same
    sample without replacement as one with twice the noise.)

    Raises:
        TypeError: the argument is no event.
        ValueError: an event without a counterpart here, with advice on an alternative, or a field out of range.

    Source: dp_accounting 0.6, ``dp_event.py``. Gaussian events of noise s_i on one sample: their adaptive composition
    is dominated by one Gaussian of noise ``(sum_i s_i^-2)^(-1/2)`` given the sample (Dong, Roth and Su (2022),
    "Gaussian differential privacy", Corollary 3.3), and the dominating pairs under sampling are made of those given the
    sample (Zhu, Dong and Wang (2022), Theorem 11). The cut of a truncated sample is counted as
    :class:`jaxacct.TruncatedPoissonGaussian` does.

    >>> class GaussianDpEvent:
    ...     noise_multiplier = 2.0
    >>> from_dp_event(GaussianDpEvent())
    ((Gaussian(noise_multiplier=2.0),), (1,))
    """
    return join_parts(parts_of(event))


# ----------------------------------------------------------------------------------------------------
# Kinds of events: each event of dp_accounting as mechanisms, by the names of its class and fields.
#
# An event that was turned into a named tuple for storage reads the same. Where a field has to be converted, rounding
# errs on the side of more privacy loss: noise is rounded down, rates and epsilons up, by a bound on the error.
# ----------------------------------------------------------------------------------------------------


class UnknownEvent(ValueError):
    """The error of an event, perhaps within another, without a counterpart here; not that of a field out of range.

    Attributes:
        event: the event without a counterpart.
    """

    def __init__(self, event: object, message: str) -> None:
        super().__init__(message)
        self.event = event


def parts_of(event: object) -> Parts:
    """Returns the mechanisms that an event is composed of, and the number of runs of each."""
    name = name_of(event)
    if name in CONVERSIONS:
        return CONVERSIONS[name](event)
    if name == "UnsupportedDpEvent":
        raise UnknownEvent(
            event,
            f"event = {event!r} has no mechanism here: it stands for an operation whose cost nobody has given.",
        )
    if not name.endswith("DpEvent"):
        raise TypeError(f"event = {event!r} of type {name} is no DpEvent: give one of dp_accounting's.")
    raise UnknownEvent(
        event,
        f"event = {event!r} of type {name} is not known: give events of {', '.join(sorted(CONVERSIONS))}, or its "
        "privacy loss as a jaxacct.DiscretePair or jaxacct.PrivacyLoss.",
    )


def name_of(event: object) -> str:
    """Returns the name of an event's class, also of one that was turned into a named tuple."""
    name = getattr(event, "class_name", type(event).__name__)
    return name.decode() if isinstance(name, bytes) else str(name)


def _field(event: object, name: str) -> Any:
    """Returns a field of an event; raises ValueError where it is missing."""
    if not hasattr(event, name):
        raise ValueError(f"event = {event!r} has no {name}: give a {name_of(event)} as dp_accounting defines it.")
    return getattr(event, name)


def _number_field(event: object, name: str, least: float = 0.0, most: float = math.inf) -> float:
    """Returns a field that is a number from ``least`` to ``most``."""
    value = _field(event, name)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name_of(event)}.{name} = {value!r} of type {type(value).__name__}: give a number.")
    if not least <= float(value) <= most:
        raise ValueError(f"{name_of(event)}.{name} = {value} is out of range: give a number from {least} to {most}.")
    return float(value)


def _integer_field(event: object, name: str, least: int = 0, most: int = MOST_STEPS) -> int:
    """Returns a field that is a whole number from ``least`` to ``most``."""
    value = _field(event, name)
    return validation.check_whole(value, f"{name_of(event)}.{name}", least, most, "a whole number")


def _numbers(event: object, name: str) -> tuple[float, ...]:
    """Returns a field that is a number or several, as a tuple."""
    return tuple(float(value) for value in np.asarray(_field(event, name), np.float64).ravel())


def _parts_of_composition(event: object) -> Parts:
    """Returns the parts of all events in a composition, added up."""
    total: Parts = {}
    for inner in _field(event, "events"):
        for part, count in parts_of(inner).items():
            total[part] = total.get(part, 0) + count
    return total


def _self_composed(event: object) -> Parts:
    """Returns an event's parts with multiplied counts, which have to stay exact in float64."""
    count = _integer_field(event, "count")
    repeated = {part: runs * count for part, runs in parts_of(_field(event, "event")).items() if count}
    for runs in repeated.values():
        validation.check_whole(runs, "count", 0, MOST_STEPS, "numbers of runs whose product is exact in float64")
    return repeated


def _run_once(parts: Parts) -> Any:
    """Returns the only part, where there is one that runs once; else None."""
    return next(iter(parts)) if list(parts.values()) == [1] else None


def _poisson_sampled(event: object) -> Parts:
    """A Poisson sample: the sampled form of a mechanism where there is one, else its Rényi curve amplified."""
    rate = Fraction(_number_field(event, "sampling_probability", 0, 1))
    inner = _field(event, "event")
    # Poisson samples of a Poisson sample: independent choices of the same records, whose rates multiply.
    while name_of(inner) == "PoissonSampledDpEvent":
        rate *= Fraction(_number_field(inner, "sampling_probability", 0, 1))
        inner = _field(inner, "event")
    parts = _on_sample(parts_of(inner), rate)
    part = _run_once(parts)
    if part is not None and part.kind is GaussianMixture:
        noise, shifts, chances = part.fields
        # The mixture runs with probability ``rate``; before its shifts stands the shift 0 of its absence.
        rate_up, weight = round_up(rate), math.fsum(chances)
        mixed = (1 - rate_up, *(rate_up * chance / weight for chance in chances))
        return one(GaussianMixture, noise, (0.0, *shifts), mixed)
    if part is not None and part.kind in (DiscreteGaussian, DiscreteGaussianVector):
        sigma, *others = part.fields
        sensitivity, dimension, inner_rate = others or (float(dict(part.static)["sensitivity"]), 1.0, 1.0)
        if sigma >= LEAST_SAMPLED and inner_rate == 1:
            return one(DiscreteGaussianVector, sigma, sensitivity, dimension, round_up(rate))
    forms = (PoissonSubsampledGaussian, PoissonSubsampledLaplace, PoissonSubsampledDP, PoissonSubsampled)
    return _in_sampled_form(parts, rate, *forms)


def _without_replacement(event: object) -> Parts:
    """A sample of fixed size without replacement, as :func:`_poisson_sampled` for its own sampled forms."""
    source = _integer_field(event, "source_dataset_size", least=1)
    rate = Fraction(_integer_field(event, "sample_size", most=source), source)
    forms = GaussianWithoutReplacement, LaplaceWithoutReplacement, DPWithoutReplacement, SubsampledWithoutReplacement
    return _in_sampled_form(_on_sample(parts_of(_field(event, "event")), rate), rate, *forms)


def _in_sampled_form(
    parts: Parts,
    rate: Fraction,
    of_gaussian: type[Mechanism],
    of_laplace: type[Mechanism],
    of_dp: type[Mechanism],
    by_curve: type[Mechanism],
) -> Parts:
    """Returns the sampled form of a mechanism that runs once on its sample; of others, their Rényi curve amplified."""
    sampled = {Gaussian: of_gaussian, Laplace: of_laplace, PureDP: of_dp, ApproximateDP: of_dp}
    part = _run_once(parts)
    if part is not None and part.kind in sampled:
        # Pure privacy is approximate privacy with a delta of 0.
        fields = (*part.fields, 0.0) if part.kind is PureDP else part.fields
        return one(sampled[part.kind], *fields, round_up(rate))
    return one(by_curve, round_up(rate), inner=parts) if parts else {}


def _with_replacement(event: object) -> Parts:
    """A sample with replacement, of Gaussian releases alone."""
    source, draws = _integer_field(event, "source_dataset_size", least=1), _integer_field(event, "sample_size")
    refusal = (
        "does more with its sample than Gaussian releases: with replacement no bound is known for it here. Sample "
        "without replacement."
    )
    parts, noise = _gaussian_on_sample(event, Fraction(draws), refusal)
    if noise is None:
        return parts
    if source == 1:  # every draw is the one record
        return one(GaussianWithoutReplacement, noise / draws * (1 - 4 * UNIT_ROUNDOFF), 1.0)
    if noise < LEAST_NOISE:
        return {NO_PRIVACY: 1}
    mechanism = GaussianWithReplacement.for_batches(noise, source, draws)
    return one(GaussianWithReplacement, *(tuple(leaf.tolist()) for leaf in jax.tree.leaves(mechanism)))


def _on_sample(parts: Parts, rate: Fraction) -> Parts:
    """Returns the mechanisms that run on one sample, with all Gaussian releases joined into one."""
    if rate == 0 or not parts:
        return {}
    if NO_PRIVACY in parts or EventPart(Gaussian, (0.0,)) in parts:  # as dp_accounting counts it, however rare it is
        return {NO_PRIVACY: 1}
    gaussian = {part: count for part, count in parts.items() if part.kind is Gaussian}
    others = {part: count for part, count in parts.items() if part.kind is not Gaussian}
    return {**others, **one(Gaussian, _one_noise(gaussian))} if gaussian else others


def _gaussian_on_sample(event: object, rate: Fraction, refusal: str) -> tuple[Parts, float | None]:
    """Returns what runs on a sample, and its noise multiplier; None where nothing does, or no privacy is left.

    Raises UnknownEvent, with the ``refusal``, where it is no Gaussian release.
    """
    parts = _on_sample(parts_of(_field(event, "event")), rate)
    if not parts or NO_PRIVACY in parts:
        return parts, None
    part = _run_once(parts)
    if part is None or part.kind is not Gaussian:
        raise UnknownEvent(event, f"event = {event!r} {refusal}")
    return parts, part.fields[0]


def _one_noise(parts: Parts) -> float:
    """Returns the noise multiplier of one Gaussian that dominates all of them together, rounded down."""
    noises = [(part.fields[0], count) for part, count in parts.items()]
    least = min(noise for noise, _ in noises)
    if noises == [(least, 1)] or least in (0.0, math.inf):
        return least
    # Relative to the least noise no square overflows; one that underflows is below the rounding of the sum, 1 or more.
    precision = sum(count * (least / noise) ** 2 for noise, count in noises)
    return least / math.sqrt(precision) * (1 - (2 * len(noises) + 8) * UNIT_ROUNDOFF)


def _truncated_parts(event: object) -> Parts:
    """A Poisson sample that is cut at a batch's capacity, with Gaussian noise."""
    size, capacity = _integer_field(event, "dataset_size"), _integer_field(event, "truncated_batch_size")
    rate, noise = _number_field(event, "sampling_probability", 0, 1), _number_field(event, "noise_multiplier")
    if rate == 0 or size == 0 or capacity == 0:
        return {}
    # dp_accounting counts ``size`` records in the larger of two neighbours. The bound on overflows is for one record
    # more, which is safe.
    mechanism = TruncatedPoissonGaussian.for_batches(noise, rate, size, capacity)
    overflow = binomial_tail(size, rate, capacity).most
    return one(TruncatedPoissonGaussian, *jax.tree.leaves(replace(mechanism, overflow_probability=overflow)))


def _discrete_laplace(event: object) -> Parts:
    """Discrete Laplace noise, whose parameter is 1/scale."""
    parameter, sensitivity = _number_field(event, "noise_parameter"), _integer_field(event, "sensitivity")
    if sensitivity == 0:
        return {}
    if parameter == 0:
        # No noise parameter means no decay, so unbounded noise; dp_accounting counts it as no privacy.
        return {NO_PRIVACY: 1}
    return one(DiscreteLaplace, 1 / parameter * (1 - 4 * UNIT_ROUNDOFF), sensitivity=sensitivity)


def _mixture(event: object) -> Parts:
    """A mixture of Gaussians at several sensitivities."""
    sensitivities, probabilities = _numbers(event, "sensitivities"), _numbers(event, "sampling_probs")
    if sensitivities and not any(sensitivities):
        return {}
    return one(GaussianMixture, _number_field(event, "standard_deviation"), sensitivities, probabilities)


def _randomized_response(event: object) -> Parts:
    """Randomized response over buckets: with probability p a uniform one, else the true one."""
    noise, outcomes = _number_field(event, "noise_parameter", 0, 1), _integer_field(event, "num_buckets", least=1)
    if outcomes == 1:
        return {}
    if noise == 0:
        return {NO_PRIVACY: 1}
    # The true bucket has probability 1 - p + p/k, each other one p/k.
    return one(
        RandomizedResponse, math.log1p(outcomes * (1 - noise) / noise) * (1 + 12 * UNIT_ROUNDOFF), outcomes=outcomes
    )


def _approximate(event: object) -> Parts:
    """An (epsilon, delta) guarantee."""
    epsilon, delta = _number_field(event, "epsilon"), _number_field(event, "delta", 0, 1)
    return one(ApproximateDP, epsilon, delta) if delta else one(PureDP, epsilon)


def _exponential(event: object) -> Parts:
    """The exponential mechanism."""
    epsilon = _number_field(event, "epsilon")
    return one(ExponentialMechanism if epsilon < math.inf else PureDP, epsilon)


LEAST_SAMPLED, LEAST_WHOLE = 2.0, 4.0
"""Scales from which discrete Gaussian noise on vectors is :class:`DiscreteGaussianVector`, on a sample and without one;
below, concentrated privacy is mostly less. Tightness only."""


def _discrete_gaussian(event: object) -> Parts:
    """Discrete Gaussian noise: one number by its own law; several by Gaussian noise near to it, or as concentrated."""
    sigma, sensitivity = _number_field(event, "sigma"), _number_field(event, "sensitivity")
    dimension = _field(event, "dimension")
    if dimension is not None:
        dimension = _integer_field(event, "dimension", least=1)
    if sensitivity == 0 or sigma == math.inf:
        return {}
    if sigma == 0 or sensitivity == math.inf:
        return {NO_PRIVACY: 1}
    if dimension == 1:
        steps = math.floor(sensitivity)
        if steps == 0:  # integers do not move by less than 1
            return {}
        # A wider law of its own than 1700 takes long; near to a Gaussian it is at every scale.
        if sigma <= 1700.0 and steps <= LARGEST_SENSITIVITY:
            return one(DiscreteGaussian, sigma, sensitivity=steps)
    if dimension is not None and sigma >= LEAST_WHOLE:
        return one(DiscreteGaussianVector, sigma, sensitivity, float(dimension), 1.0)
    return _one_zcdp(sigma, sensitivity)


def _tree(event: object) -> Parts:
    """Tree aggregation over a single epoch: the deepest tree, as each record is in one tree only."""
    noise = _number_field(event, "noise_multiplier")
    steps = _field(event, "step_counts")
    counts = list(steps) if isinstance(steps, Sequence) or np.ndim(steps) else [steps]
    if not counts:
        raise ValueError(f"{name_of(event)}.step_counts = {steps!r} holds no tree: give a number of steps for each.")
    most = max(validation.check_whole(count, "step_counts", 0, MOST_STEPS, "the numbers of steps") for count in counts)
    return one(TreeAggregation, noise, most.bit_length()) if most else {}


def _selection_parts(event: object) -> Parts:
    """Private selection: the best of a random number of runs."""
    mean, shape = _number_field(event, "mean", least=1), _number_field(event, "shape")
    parts = parts_of(_field(event, "event"))
    if NO_PRIVACY in parts:
        return {NO_PRIVACY: 1}
    law = Poisson(mean) if shape == math.inf else TruncatedNegativeBinomial(mean, shape)
    return one(RepeatAndSelect, law, inner=parts) if parts else {}


def _allocation_parts(event: object) -> Parts:
    """Random allocation: each record in k different steps of t, drawn uniformly, as one epoch with k participations."""
    steps = _integer_field(event, "num_steps", least=1)
    selected = _integer_field(event, "num_selected", most=steps)
    refusal = "allocates more than Gaussian releases: no bound is known for it here."
    parts, noise = _gaussian_on_sample(event, Fraction(selected), refusal)
    return parts if noise is None else one(RandomAllocation, noise, steps, participations=selected)


CONVERSIONS: dict[str, Callable[[object], Parts]] = {
    "ComposedDpEvent": _parts_of_composition,
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "DiscreteLaplaceDpEvent": _discrete_laplace,
    "EpsilonDeltaDpEvent": _approximate,
    "ExponentialMechanismDpEvent": _exponential,
    "GaussianDpEvent": lambda event: one(Gaussian, _number_field(event, "noise_multiplier")),
    "LaplaceDpEvent": lambda event: one(Laplace, _number_field(event, "noise_multiplier")),
    "MixtureOfGaussiansDpEvent": _mixture,
    "NoOpDpEvent": lambda event: {},
    "NonPrivateDpEvent": lambda event: {NO_PRIVACY: 1},
    "PermuteAndFlipDpEvent": lambda event: one(PureDP, _number_field(event, "epsilon")),
    "PoissonSampledDpEvent": _poisson_sampled,
    "RandomAllocationDpEvent": _allocation_parts,
    "RandomizedResponseDpEvent": _randomized_response,
    "RepeatAndSelectDpEvent": _selection_parts,
    "SampledWithReplacementDpEvent": _with_replacement,
    "SampledWithoutReplacementDpEvent": _without_replacement,
    "SelfComposedDpEvent": _self_composed,
    "SingleEpochTreeAggregationDpEvent": _tree,
    "TruncatedSubsampledGaussianDpEvent": _truncated_parts,
    "ZCDpEvent": lambda event: one(ZeroConcentratedDP, _number_field(event, "rho"), _number_field(event, "xi")),
}
"""Conversions, by the name of an event's class."""

# ----------------------------------------------------------------------------------------------------
# Runs of Opacus, after the fact: histories and checkpoints. Neither Opacus nor torch is imported.
# ----------------------------------------------------------------------------------------------------


def from_history(history: Iterable[tuple[float, float, int]]) -> tuple[tuple[Mechanism, ...], tuple[ArrayLike, ...]]:
    """Returns the mechanisms of a history of Opacus, and the number of runs of each, for every accountant.

    Args:
        history: entries (noise_multiplier, sample_rate, steps): ``accountant.history``, that of a state dict, or the
            result of :func:`checkpoint_history`.

    Formal guarantee: an upper bound of an accountant on the result holds for the run if its loader drew Poisson
    samples, as Opacus does unless ``poisson_sampling=False``, under "add_or_remove". For a loader that shuffled see
    :func:`judge_history`.

    Raises ValueError or TypeError where a number is out of range.

    >>> import jaxacct as ja
    >>> mechanisms, steps = from_history([(1.0, 0.01, 600), (1.5, 0.01, 400)])
    >>> f"{ja.epsilon(mechanisms, steps, delta=1e-5).upper:.4f}"
    '1.5506'
    """
    return join_parts(parts_of_history(history))


def parts_of_history(history: Iterable[tuple[float, float, int]]) -> Parts:
    """Returns the counts of mechanisms that a history of Opacus describes, as :func:`parts_of` of an event."""
    parts: Parts = {}
    # Entries of equal settings become one, with the sum of their counts.
    for noise_multiplier, rate, count in history:
        count = validation.check_whole(count, "steps", 0, MOST_STEPS, "the number of steps")
        PoissonSubsampledGaussian(noise_multiplier, rate)  # raises where a field is out of range
        part = EventPart(PoissonSubsampledGaussian, (float(noise_multiplier), float(rate)))
        parts[part] = parts.get(part, 0) + count
    return parts


def judge_history(
    history: Iterable[tuple[float, float, int]], batches: ShuffledBatches, delta: float, relation: Relation = "zero_out"
) -> Verdict:
    """Returns whether the epsilon holds that Poisson samples would have cost, for a run whose loader shuffled.

    Args:
        history: as for :func:`from_history`, of a ``PrivacyEngine`` with ``poisson_sampling=False``.
        batches: what the loader did.
        delta: at which epsilon is claimed.
        relation: "zero_out" or "replace".

    Formal guarantee: that of :meth:`.ShuffledBatches.judge`.

    Raises ValueError where the history is no run of these batches with one noise multiplier.

    >>> public = ShuffledBatches(examples=60_000, batch_size=64, seed=42)
    >>> verdict = judge_history([(1.0, 1 / 938, 9380)], public, delta=1e-5)
    >>> verdict.status.value, f"{verdict.truth[0]:.2f}"  # Poisson samples: 0.49; of a secret order [4.57, 6.23]
    ('REFUTED', '17.86')
    """
    return _verdict_on(parts_of_history(history), batches, delta, relation)


def judge_dp_event(event: object, batches: ShuffledBatches, delta: float, relation: Relation = "zero_out") -> Verdict:
    """Returns :func:`judge_history` of an event of ``dp_accounting``: Gaussian noise on Poisson samples, many times.

    >>> class GaussianDpEvent:
    ...     noise_multiplier = 1.0
    >>> class PoissonSampledDpEvent:
    ...     sampling_probability, event = 64 / 60_000, GaussianDpEvent()
    >>> class SelfComposedDpEvent:
    ...     event, count = PoissonSampledDpEvent(), 9380
    >>> judge_dp_event(SelfComposedDpEvent(), ShuffledBatches(60_000, 64, seed=0), delta=1e-5).status.value
    'REFUTED'
    """
    return _verdict_on(parts_of(event), batches, delta, relation)


def _verdict_on(parts: Parts, batches: ShuffledBatches, delta: float, relation: Relation) -> Verdict:
    """Returns the verdict on the epsilon of parts that were accounted as Poisson samples."""
    noise, steps = shuffled_run(parts, batches)
    claimed = upper_end(certified.epsilon(*join_parts(parts), delta))
    return batches.judge(noise, steps, claimed, delta, relation)


def shuffled_run(parts: Parts, batches: ShuffledBatches) -> tuple[float, int]:
    """Returns the noise multiplier and the steps of a run that was recorded as Poisson samples, and was not.

    Raises ValueError where that is no run of these batches.
    """
    kinds = {part.kind for part in parts}
    if len(parts) != 1 or kinds != {PoissonSubsampledGaussian}:
        raise ValueError(
            f"the record has {len(parts)} kinds of steps ({', '.join(sorted(kind.__name__ for kind in kinds))}): of "
            "shuffled batches only Gaussian noise of one multiplier is known, recorded with one sampling rate."
        )
    ((part, steps),) = parts.items()
    noise, rate = part.fields
    # Opacus records one over the number of batches, others the size of a batch over the number of examples.
    recorded = 1 / rate if rate else math.inf
    if not abs(recorded - batches.examples / batches.batch_size) <= 1:
        raise ValueError(
            f"the record's sampling rate {rate:.6g} is that of {recorded:.6g} batches an epoch, and not of "
            f"{batches.examples} examples in batches of {batches.batch_size}: give those of the run."
        )
    return noise, steps


def checkpoint_history(path: str | os.PathLike[str]) -> list[tuple[float, float, int]]:
    """Returns the history in a checkpoint that ``PrivacyEngine.save_checkpoint`` wrote; torch is not needed.

    Args:
        path: the file.

    No code in the file is run: of the pickled objects only dicts, lists and numbers are read, and not even tensors.

    Raises ValueError where the file is no such checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as file:
            (name,) = (name for name in file.namelist() if name.endswith("/data.pkl"))
            state = _PlainUnpickler(io.BytesIO(file.read(name))).load()["privacy_accountant_state_dict"]
        history = [(noise, rate, count) for noise, rate, count in state["history"]]
    except (zipfile.BadZipFile, pickle.UnpicklingError, AttributeError, LookupError, OverflowError, TypeError,
            ValueError, EOFError) as wrong:  # fmt: skip
        raise ValueError(
            f"path = {path} is no checkpoint of PrivacyEngine.save_checkpoint: {wrong}; give one."
        ) from wrong
    for run in history:
        if not all(isinstance(value, (int, float)) for value in run) or run[2] != int(run[2]):
            raise ValueError(f"path = {path} has a run {run}, which is no (noise, rate, whole number of steps).")
    return [(float(noise), float(rate), int(count)) for noise, rate, count in history]


class _Nothing:
    """A stand-in for tensors and every other object that is no plain value: it takes anything and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Nothing:
        return super().__new__(cls)

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def __setstate__(self, _: Any) -> None: ...

    def __setitem__(self, _: Any, __: Any) -> None: ...


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that makes plain values alone: no class named in a file is ever imported."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the stand-in for every class but OrderedDict."""
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Nothing

    def persistent_load(self, _: Any) -> Any:
        """Returns the stand-in for a tensor's storage."""
        return _Nothing()


# ----------------------------------------------------------------------------------------------------
# One-call functions: bounds for a run, by the arguments of other libraries' functions.
# ----------------------------------------------------------------------------------------------------


@takes_python_values
def compute_dp_sgd_privacy(n: int, batch_size: int, noise_multiplier: float, epochs: float, delta: float) -> Bounds:
    """Returns bounds on epsilon of DP-SGD, by the arguments of TensorFlow Privacy's function of this name.

    Args:
        n: number of examples.
        batch_size: expected number of examples in a batch, at most n.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        epochs: above 0; there are ``ceil(epochs * n / batch_size)`` steps.
        delta: failure probability in (0, 1).

    Formal guarantee: that of :func:`jaxacct.epsilon`, for batches by Poisson's law at the rate batch_size / n under
    "add_or_remove", and for clipping by example. Where data was shuffled (:meth:`.ShuffledBatches.judge`), or
    microbatches hold several examples, what ran is another mechanism.

    Raises ValueError or TypeError where an argument is out of range.

    >>> print(compute_dp_sgd_privacy(60_000, 256, 1.1, 15, 1e-5))
    [1.133874, 1.133875]
    """
    n = validation.check_whole(n, "n", 1, MOST_STEPS, "the number of examples")
    batch_size = validation.check_whole(batch_size, "batch_size", 1, n, "the size of a batch")
    validation.check_scalar(epochs, "epochs")
    validation.check_numbers(noise_multiplier=noise_multiplier)
    validation.check_positive(epochs, "epochs")
    steps = -(-Fraction(float(epochs)) * n // batch_size)
    return certified.epsilon(
        PoissonSubsampledGaussian(noise_multiplier, round_up(Fraction(batch_size, n))), int(steps), delta
    )


@takes_python_values
def flower_privacy(
    noise_multiplier: float, num_sampled_clients: int, num_clients: int, rounds: int, delta: float
) -> Bounds:
    """Returns bounds on epsilon of Flower's central differential privacy with fixed clipping, for its clients.

    Args:
        noise_multiplier: as for ``DifferentialPrivacyServerSideFixedClipping`` (or ``ClientSide``): the noise of the
            average is this times the clipping norm over the number of clients in it.
        num_sampled_clients: number of clients in each round, as given to Flower.
        num_clients: number of clients to choose from, taken as public.
        rounds: number of rounds.
        delta: failure probability in (0, 1), well below one over ``num_clients``.

    Formal guarantee: that of :func:`jaxacct.epsilon`, for one client's data replaced by any other, where every round
    samples its clients uniformly without replacement, all of them answer, and all count alike in the average.

    Raises ValueError or TypeError where an argument is out of range.

    >>> print(flower_privacy(4.0, num_sampled_clients=50, num_clients=10_000, rounds=1000, delta=1e-5))
    [0.3380154, 0.3380155]
    """
    rounds = validation.check_whole(rounds, "rounds", 0, MOST_STEPS, "the number of rounds")
    validation.check_numbers(noise_multiplier=noise_multiplier)
    num_clients = validation.check_whole(num_clients, "num_clients", 1, MOST_STEPS, "the number of clients")
    num_sampled_clients = validation.check_whole(
        num_sampled_clients, "num_sampled_clients", 1, num_clients, "the clients of a round"
    )
    rate = round_up(Fraction(num_sampled_clients, num_clients))
    return certified.epsilon(GaussianWithoutReplacement(noise_multiplier, rate), rounds, delta, relation="replace")
