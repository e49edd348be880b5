"""Brackets of some thousand settings, frozen as bits, and what any other accountant says of the same settings.

    python -m bench.frozen write [--only WORD] [--seconds S]     # goes on where it stopped, family by family
    python -m bench.frozen compare [--only WORD] [--sample N --seed S] [--evaluator MODULE:FUNCTION] [--json FILE]
    python -m bench.frozen cross                                 # the file's verbs beside each other: computes nothing

A setting is data: how its mechanism is made, the numbers of runs, the relation, the verb, what it is asked at, and
options. Families of settings are drawn from a seed, every public mechanism, relation, sequence, tuple and group among
them; epsilons that deltas are asked at are rounded from the answers to earlier settings of the family, so the file
holds what was asked as it was asked. An answer is one or more brackets, each number the 16 hexadecimal digits of its
64 bits, or the type and first words of what was raised.

The file is gzipped strict JSON: one file that any language reads, a quarter of its text, and the same bytes each time.

A comparison reports contradictions (brackets without a common number, doubles compared exactly), bounds that are no
bracket, answers that are raised on one side alone, changed bits, widths by family and verb, and what got wider. An
evaluator is a function of a :class:`Setting` that returns bounds (``lower``, ``estimate``, ``upper``, ``converged``),
or None where it does not answer; the default is the library.
"""

from __future__ import annotations

import functools
import gzip
import importlib
import itertools
import json
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct as ja
from bench import report
from jaxacct import json_files, rdp
from jaxacct.bounds import Bounds
from jaxacct.numerics.programs import Program

FILE = Path(__file__).parent.parent / "tests" / "data" / "frozen.json.gz"
SEED = 23
SHARES = (1e-9, 5e-5, 1e-3)
"""Relative widths whose shares are reported."""

Description = Any
"""A mechanism as JSON: an object with "make" and arguments, or a list of them for a tuple."""

# ----------------------------------------------------------------------------------------------------
# Settings, and what is made of their data.
# ----------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A question as data."""

    family: str
    mechanism: Description
    steps: Any
    relation: Any
    verb: str
    at: Any
    """What is given: a delta, an epsilon, a list of them, false-positive rates, a budget [epsilon, delta], or null."""
    options: dict[str, Any]

    def run(self) -> tuple[Any, Any]:
        """Returns the mechanism, or tuple of mechanisms, and its numbers of runs."""
        if isinstance(self.mechanism, list):
            return build(self.mechanism), tuple(counts(count) for count in self.steps)
        return build(self.mechanism), counts(self.steps)

    def key(self) -> str:
        """Returns the setting's name."""
        return json_files.dumps(list(self))


def counts(steps: Any) -> Any:
    """Returns numbers of runs: an int, or an array of a sequence's."""
    return np.array(steps) if isinstance(steps, list) else steps


def build(description: Any) -> Any:
    """Returns what a description describes."""
    if isinstance(description, dict):
        given = {name: build(value) for name, value in description.items() if name != "make"}
        return find(description["make"])(**given)
    if isinstance(description, list):
        if any(isinstance(each, dict) for each in description):
            return tuple(build(each) for each in description)
        return np.array([build(each) for each in description])
    return float(description) if description in ("inf", "-inf", "nan") else description


def find(name: str) -> Callable[..., Any]:
    """Returns a maker by its dotted name: one of this file, or of the library."""
    found: Any = functools.reduce(getattr, name.split("."), ja) if name not in OWN else OWN[name]
    return found


def finite_cdf_p(y: Any, scale: Any) -> Any:
    """P(Y <= y) for Laplace noise, P centred at 1: atoms of 1/2 at 1/scale and e^(-1/scale)/2 at -1/scale."""
    return jnp.where(y >= 1 / scale, 1.0, jnp.where(y >= -1 / scale, 0.5 * jnp.exp(0.5 * (y - 1 / scale)), 0.0))


def finite_survival_q(y: Any, scale: Any) -> Any:
    """Q(Y > y)."""
    return jnp.where(y >= 1 / scale, 0.0, jnp.where(y >= -1 / scale, 0.5 * jnp.exp(-0.5 * (y + 1 / scale)), 1.0))


def finite_survival_p(y: Any, scale: Any) -> Any:
    """P(Y > y)."""
    return 1 - finite_cdf_p(y, scale)


def finite_cdf_q(y: Any, scale: Any) -> Any:
    """Q(Y <= y)."""
    return 1 - finite_survival_q(y, scale)


def laplace_by_loss(scale: float) -> Any:
    """Returns Laplace noise as a user states it who knows the law of its loss alone."""
    return ja.PrivacyLoss(
        finite_cdf_p, finite_cdf_q, lowest=-1 / scale, highest=1 / scale, parameters=scale,
        survival_p=finite_survival_p, survival_q=finite_survival_q, atoms=(-1 / scale, 1 / scale),
    )  # fmt: skip


OWN: dict[str, Callable[..., Any]] = {"laplace_by_loss": laplace_by_loss}

# ----------------------------------------------------------------------------------------------------
# Verbs, and answers as bits.
# ----------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Brackets (n,), or the words of what was raised."""

    lower: np.ndarray
    estimate: np.ndarray
    upper: np.ndarray
    converged: np.ndarray
    raised: str = ""

    @classmethod
    def of(cls, bounds: Any) -> Answer:
        """Returns an answer from bounds of any shape."""
        upper = np.ravel(np.asarray(bounds.upper, np.float64))
        numbers = [
            np.ravel(np.broadcast_to(np.asarray(each, kind), np.shape(bounds.upper)))
            for each, kind in ((bounds.lower, np.float64), (bounds.estimate, np.float64), (bounds.converged, bool))
        ]
        return cls(numbers[0], numbers[1], upper, numbers[2])

    @classmethod
    def of_error(cls, error: Exception) -> Answer:
        """Returns the record of what was raised."""
        nothing = np.zeros(0)
        words = " ".join(str(error).split())[:80]
        return cls(nothing, nothing, nothing, nothing, f"{type(error).__name__}: {words}")

    def as_data(self) -> Any:
        """Returns the answer as JSON."""
        columns = zip(self.lower, self.estimate, self.upper, self.converged, strict=True)
        return self.raised or [f"{bits(low)} {bits(mid)} {bits(high)} {done:d}" for low, mid, high, done in columns]

    @classmethod
    def from_data(cls, data: Any) -> Answer:
        """Returns the answer that :meth:`as_data` wrote."""
        if isinstance(data, str):
            nothing = np.zeros(0)
            return cls(nothing, nothing, nothing, nothing, data)
        rows = [line.split() for line in data]
        numbers = [np.array([number(row[i]) for row in rows]) for i in range(3)]
        return cls(numbers[0], numbers[1], numbers[2], np.array([row[3] == "1" for row in rows]))

    def gaps(self) -> np.ndarray:
        """Returns relative widths (n,): 0 of a bracket of equal ends, inf of one that says nothing."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            size = np.maximum(np.abs(self.upper), np.abs(self.lower))
            gaps = (self.upper - self.lower) / size
        return np.where(self.upper == self.lower, 0.0, np.where(np.isfinite(gaps), gaps, np.inf))


def bits(value: Any) -> str:
    """Returns the 64 bits of a number as 16 hexadecimal digits.

    >>> bits(1.0), float(number(bits(0.1)))
    ('3ff0000000000000', 0.1)
    """
    return f"{int(np.float64(value).view(np.uint64)):016x}"


def number(digits: str) -> np.float64:
    """Returns the number of 16 hexadecimal digits."""
    return np.uint64(int(digits, 16)).view(np.float64)


def from_above(upper: Any) -> Bounds:
    """Returns the bounds of a number that is known from above alone."""
    upper = np.asarray(upper, np.float64)
    return Bounds(np.zeros_like(upper), upper, upper, False)


def by_name(module: Any, verb: str) -> Callable[[Setting], Any]:
    """Returns the evaluator of an accountant's verb of mechanism, steps and what is given."""

    def evaluate(setting: Setting) -> Any:
        return getattr(module, verb)(*setting.run(), build(setting.at), relation=setting.relation, **setting.options)

    return evaluate


@functools.cache
def program_of(verb: str, structure: Any, relation: str, options: tuple[tuple[str, Any], ...]) -> Program[Any]:
    """Returns the program of a verb with all numbers traced."""

    def asked(leaves: list[Any], steps: Any, at: Any) -> Any:
        mechanism = jax.tree.unflatten(structure, leaves)
        found = getattr(ja, verb)(mechanism, steps, at, relation=relation, **dict(options))
        return found.lower, found.estimate, found.upper, found.converged

    return Program(asked)


def traced(verb: str) -> Callable[[Setting], Any]:
    """Returns the evaluator of one of the top level's verbs inside a trace."""

    def evaluate(setting: Setting) -> Any:
        mechanism, steps = setting.run()
        leaves, structure = jax.tree.flatten(mechanism)
        program = program_of(verb, structure, setting.relation, tuple(sorted(setting.options.items())))
        with jax.enable_x64(True):
            given = [np.asarray(leaf, np.float64) for leaf in leaves]
            steps = jax.tree.map(lambda count: np.asarray(count, np.float64), steps)
            return Bounds(*program(given, steps, np.float64(setting.at)))

    return evaluate


def curve(given: str) -> Callable[[Setting], Any]:
    """Returns the evaluator of a profile."""

    def evaluate(setting: Setting) -> Any:
        mechanism, steps = setting.run()
        asked = {given: build(setting.at)}
        return ja.curve(mechanism, steps, relation=setting.relation, **asked, **setting.options)

    return evaluate


def mesh_curve(setting: Setting) -> Any:
    """Returns the mesh's deltas at many epsilons."""
    return ja.prv.curve(*setting.run(), build(setting.at), relation=setting.relation, **setting.options).delta


def rates(setting: Setting) -> Any:
    """Returns false-negative rates."""
    return ja.tradeoff.curve(*setting.run(), build(setting.at), relation=setting.relation, **setting.options)


def advantage(setting: Setting) -> Any:
    """Returns the advantage of the best attack, which is delta at 0."""
    return ja.tradeoff.advantage(*setting.run(), relation=setting.relation, **setting.options)


def mu(setting: Setting) -> Any:
    """Returns the bracket of the least mu."""
    return ja.gdp.certified_mu(*setting.run(), relation=setting.relation, **setting.options).mu


def altered(description: Any, field: str, change: Callable[[float], float]) -> Any:
    """Returns a description with a field changed, of every mechanism that has it."""
    if isinstance(description, list):
        return [altered(each, field, change) if isinstance(each, dict) else each for each in description]
    found = {}
    # A field is a number, or a list of one for each mechanism of a sequence.
    for name, value in description.items():
        if name == field:
            found[name] = [change(each) for each in value] if isinstance(value, list) else change(value)
        else:
            found[name] = altered(value, field, change) if isinstance(value, dict) else value
    return found


def with_fields(description: Any, field: str, change: Callable[[Any], Any]) -> Any:
    """Returns the mechanism with a field changed, which may be traced."""
    if isinstance(description, list):
        return tuple(with_fields(each, field, change) for each in description)
    given = {name: build(value) for name, value in description.items() if name != "make"}
    return find(description["make"])(**(given | {field: change(given[field])}))


STEPS_DOWN = (4e-6, 1e-4, 1e-2, 0.5)
"""By how much less than the least scale that was found a scale is tried that shall exceed the budget."""


def calibrated(setting: Setting) -> Any:
    """Returns a bracket of the least factor of a field: one that was certified, and one that is proved too small."""
    options = dict(setting.options)
    field, (budget, delta) = options.pop("field"), setting.at
    steps = setting.run()[1]
    found = ja.calibrate.scale(
        lambda factor: with_fields(setting.mechanism, field, lambda value: value * factor),
        budget, delta, steps, relation=setting.relation, **options,
    )  # fmt: skip
    value = float(found.value)

    def epsilon(factor: float) -> Bounds:
        mechanism = with_fields(setting.mechanism, field, lambda value: value * factor)
        return ja.epsilon(mechanism, steps, delta, relation=setting.relation)

    below = (value * (1 - step) for step in STEPS_DOWN)
    lower = next((factor for factor in below if float(epsilon(factor).lower) > budget), 0.0)
    return Bounds(lower, value, value, int(found.status) == 0)


def slope(setting: Setting) -> Any:
    """Returns the derivative of epsilon's bound by a field: a number that nothing brackets."""
    options = dict(setting.options)
    field, steps = options.pop("field"), setting.run()[1]

    def epsilon(factor: Any) -> Any:
        mechanism = with_fields(setting.mechanism, field, lambda value: value * factor)
        return ja.epsilon(mechanism, steps, setting.at, relation=setting.relation, **options).upper

    return Bounds(-np.inf, np.asarray(jax.grad(epsilon)(1.0), np.float64), np.inf, False)


def upper_of(verb: str) -> Callable[[Setting], Any]:
    """Returns the evaluator of a Rényi accountant's verb, which bounds from above alone."""
    evaluate = by_name(rdp, verb)
    return lambda setting: from_above(evaluate(setting))


VERBS: dict[str, Callable[[Setting], Any]] = {
    "epsilon": by_name(ja, "epsilon"),
    "delta": by_name(ja, "delta"),
    "saddlepoint.epsilon": by_name(ja.saddlepoint, "epsilon"),
    "saddlepoint.delta": by_name(ja.saddlepoint, "delta"),
    "prv.epsilon": by_name(ja.prv, "epsilon"),
    "prv.delta": by_name(ja.prv, "delta"),
    "traced.epsilon": traced("epsilon"),
    "traced.delta": traced("delta"),
    "rdp.epsilon": upper_of("epsilon"),
    "rdp.delta": upper_of("delta"),
    "curve.epsilons": curve("epsilons"),
    "curve.deltas": curve("deltas"),
    "prv.curve": mesh_curve,
    "tradeoff.curve": rates,
    "tradeoff.advantage": advantage,
    "gdp.certified_mu": mu,
    "calibrate.scale": calibrated,
    "slope.epsilon": slope,
}
"""The library's evaluators, by the setting's verb."""

EPSILONS = ("epsilon", "saddlepoint.epsilon", "prv.epsilon", "traced.epsilon", "rdp.epsilon", "curve.deltas")
DELTAS = ("delta", "saddlepoint.delta", "prv.delta", "traced.delta", "rdp.delta", "curve.epsilons", "prv.curve")


def library(setting: Setting) -> Any:
    """Returns the library's bounds."""
    return VERBS[setting.verb](setting)


def answer(evaluate: Callable[[Setting], Any], setting: Setting) -> Answer | None:
    """Returns an evaluator's answer, with what it raised as a record of that."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = evaluate(setting)
            return None if found is None else Answer.of(found)
    except Exception as error:
        return Answer.of_error(error)


# ----------------------------------------------------------------------------------------------------
# Families of settings.
# ----------------------------------------------------------------------------------------------------

Draw = np.random.Generator
RUNS = (1, 1, 2, 7, 60)


def log_uniform(draw: Draw, low: float, high: float, digits: int = 4) -> float:
    """Returns a number of a few digits."""
    return float(f"{np.exp(draw.uniform(np.log(low), np.log(high))):.{digits}g}")


def count(draw: Draw, most: float) -> int:
    """Returns a number of runs."""
    few = [runs for runs in RUNS if runs <= most]
    return int(draw.choice(few)) if draw.uniform() < 0.5 else int(log_uniform(draw, 1, most))


def noise(draw: Draw, runs: int, low: float = 0.5, high: float = 8.0, most: float = 1e5) -> float:
    """Returns a noise, mostly one with which so many runs cost about as much as one."""
    times = np.sqrt(runs) if draw.uniform() < 0.75 else 1.0
    return float(f"{min(times * log_uniform(draw, low, high), most):.4g}")


def level(draw: Draw, runs: int, low: float = 0.03, high: float = 2.0) -> float:
    """Returns a pure epsilon, mostly one with which so many runs cost about as much as one."""
    return float(f"{log_uniform(draw, low, high) / (np.sqrt(runs) if draw.uniform() < 0.75 else 1.0):.4g}")


def rate(draw: Draw, low: float = 1e-4, high: float = 0.9) -> float:
    """Returns a sampling rate."""
    return log_uniform(draw, low, high)


def weights(draw: Draw, size: int) -> list[float]:
    """Returns probabilities of few digits that sum to exactly one: multiples of a power of two."""
    cuts = np.sort(draw.integers(1, 4096, size - 1))
    parts = np.diff(cuts, prepend=0, append=4096)
    return [float(part) / 4096 for part in np.where(np.min(parts) > 0, parts, np.full(size, 4096 / size))]


def pair(draw: Draw, runs: int) -> Description:
    """Returns a pair of four outcomes, mostly close ones where there are many runs."""
    far = 1 / np.sqrt(runs) if draw.uniform() < 0.75 else 1.0
    p = np.array([0.25, 0.25, 0.25, 0.25]) + 0.08 * far * draw.uniform(-1, 1, 4)
    q = np.array([0.25, 0.25, 0.25, 0.25]) + 0.08 * far * draw.uniform(-1, 1, 4)
    p, q = np.round(p * 2**20) / 2**20, np.round(q * 2**20) / 2**20
    p[0], q[0] = 1 - np.sum(p[1:]), 1 - np.sum(q[1:])
    return {"make": "DiscretePair", "p": p.tolist(), "q": q.tolist()}


def truncated(draw: Draw, runs: int) -> Description:
    """Returns a truncated batch."""
    examples, share = int(log_uniform(draw, 100, 1e6)), rate(draw, 1e-3, 0.5)
    deviation = np.sqrt(examples * share * (1 - share))
    capacity = int(np.clip(np.round(examples * share + draw.uniform(0, 6) * deviation), 1, examples))
    return {
        "make": "TruncatedPoissonGaussian.for_batches", "noise_multiplier": log_uniform(draw, 0.5, 8),
        "sampling_rate": share, "num_examples": examples, "capacity": capacity,
    }  # fmt: skip


def vector(draw: Draw, runs: int) -> Description:
    """Returns integer noise on vectors on a Poisson sample, of a scale from the least to a training's."""
    scale = log_uniform(draw, 16, 2**20)
    return {
        "make": "DiscreteGaussianVector", "scale": scale, "sensitivity": float(f"{scale / noise(draw, runs):.4g}"),
        "dimensions": int(log_uniform(draw, 1, 1e8)), "sampling_rate": rate(draw, 1e-3, 1),
    }  # fmt: skip


def made(name: str, **fields: Callable[[Draw, int], Any] | Any) -> Callable[[Draw, int], Description]:
    """Returns the maker of descriptions whose fields are drawn for a number of runs, or fixed."""

    def make(draw: Draw, runs: int) -> Description:
        drawn = {field: value(draw, runs) if callable(value) else value for field, value in fields.items()}
        return {"make": name, **drawn}

    return make


def rates_of(low: float = 1e-4, high: float = 0.9) -> Callable[[Draw, int], float]:
    """Returns the maker of sampling rates."""
    return lambda draw, runs: rate(draw, low, high)


def noises_of(low: float, high: float, most: float = 1e5) -> Callable[[Draw, int], float]:
    """Returns the maker of noises."""
    return lambda draw, runs: noise(draw, runs, low, high, most)


def fixed(low: float, high: float) -> Callable[[Draw, int], float]:
    """Returns the maker of numbers that do not depend on the runs."""
    return lambda draw, runs: log_uniform(draw, low, high)


def failure(draw: Draw, runs: int) -> float:
    """Returns a mechanism's own delta."""
    return log_uniform(draw, 1e-12, 1e-6)


CURVES = made("ZeroConcentratedDP", rho=lambda draw, runs: float(f"{log_uniform(draw, 1e-3, 0.5) / runs:.4g}"))
STRATEGY = {"make": "strategies.BandedToeplitz", "first_column": [4.0, 3.0]}

LAWS: dict[str, Callable[[Draw, int], Description]] = {
    "Gaussian": made("Gaussian", noise_multiplier=noise),
    "PoissonSubsampledGaussian": made(
        "PoissonSubsampledGaussian", noise_multiplier=fixed(0.4, 8), sampling_rate=rates_of()
    ),
    "GaussianMixture": made(
        "GaussianMixture", noise_multiplier=noises_of(1, 16), sensitivities=[0.0, 1.0, 2.0],
        probabilities=lambda draw, runs: weights(draw, 3),
    ),
    "TruncatedPoissonGaussian": truncated,
    "GaussianWithoutReplacement": made(
        "GaussianWithoutReplacement", noise_multiplier=fixed(1, 16), sampling_rate=rates_of(1e-3, 0.9)
    ),
    "GaussianWithReplacement": made(
        "GaussianWithReplacement.for_batches", noise_multiplier=fixed(1, 8), num_examples=100, batch_size=10
    ),
    "PoissonSubsampledGroup": made(
        "PoissonSubsampledGroup", scale=fixed(1, 16), sampling_rate=rates_of(1e-3, 0.5), size=3
    ),
    "WithoutReplacementGroup": made(
        "WithoutReplacementGroup", noise_multiplier=fixed(1, 16), num_examples=100, batch_size=10, size=2
    ),
    "Laplace": made("Laplace", scale=noise),
    "PoissonSubsampledLaplace": made("PoissonSubsampledLaplace", scale=fixed(0.5, 8), sampling_rate=rates_of(1e-3)),
    "LaplaceWithoutReplacement": made(
        "LaplaceWithoutReplacement", scale=fixed(1, 16), sampling_rate=rates_of(1e-3, 0.9)
    ),
    "DiscreteGaussian": made("DiscreteGaussian", scale=noises_of(0.5, 8, 60)),
    "DiscreteGaussianVector": vector,
    "DiscreteLaplace": made("DiscreteLaplace", scale=noises_of(0.5, 8, 60)),
    "DiscretePair": pair,
    "RandomizedResponse": made("RandomizedResponse", epsilon=level, outcomes=3),
    "PureDP": made("PureDP", epsilon=level),
    "ApproximateDP": made("ApproximateDP", epsilon=level, delta=failure),
    "DPWithoutReplacement": made("DPWithoutReplacement", epsilon=level, delta=failure, sampling_rate=rates_of(1e-3)),
    "PoissonSubsampledDP": made("PoissonSubsampledDP", epsilon=level, delta=failure, sampling_rate=rates_of(1e-3)),
    "ExponentialMechanism": made("ExponentialMechanism", epsilon=level),
    "PrivacyLoss": made("laplace_by_loss", scale=noise),
    "AboveThreshold": made("AboveThreshold", threshold_scale=noise, query_scale=noises_of(1, 16)),
    "GaussianAboveThreshold": made(
        "GaussianAboveThreshold", threshold_noise=noises_of(4, 32), query_noise=noises_of(8, 64), queries=10
    ),
    "ZeroConcentratedDP": CURVES,
    "PoissonSubsampled": made("PoissonSubsampled", mechanism=CURVES, steps=2, sampling_rate=rates_of(1e-3)),
    "SubsampledWithoutReplacement": made(
        "SubsampledWithoutReplacement", mechanism=CURVES, steps=2, sampling_rate=rates_of(1e-3)
    ),
    "RepeatAndSelect": made(
        "RepeatAndSelect", mechanism=made("Gaussian", noise_multiplier=fixed(2, 16)), steps=1,
        trials=made("selection.Geometric", mean=fixed(2, 50)),
    ),
    "TreeAggregation": made("TreeAggregation", noise_multiplier=noise, depth=3),
    "MatrixMechanism": made(
        "MatrixMechanism", strategy=STRATEGY, noise_multiplier=fixed(2, 16),
        participation=made("strategies.CyclicPoisson", steps=2, groups=2, sampling_rate=rates_of(1e-3, 0.2)),
    ),
    "RandomAllocation": made(
        "RandomAllocation", noise_multiplier=fixed(0.6, 4), batches=lambda draw, runs: int(draw.integers(2, 200)),
        points=64,
    ),
    "RandomAllocation, paired": made(
        "RandomAllocation", noise_multiplier=fixed(0.8, 4), batches=lambda draw, runs: int(draw.integers(3, 40)),
        points=64, participations=2,
    ),
    "ShuffledGaussian": made(
        "ShuffledGaussian", noise_multiplier=fixed(0.6, 4), batches=lambda draw, runs: int(draw.integers(2, 200))
    ),
    "BallsInBins": made("BallsInBins", strategy=STRATEGY, noise_multiplier=fixed(4, 16), batches=8),
    "AllocatedMechanism": made(
        "AllocatedMechanism", mechanism=made("DiscreteLaplace", scale=fixed(1, 8)), batches=5, points=64
    ),
    "PoissonSampledMechanism": made(
        "PoissonSampledMechanism", mechanism=made("DiscreteLaplace", scale=fixed(1, 8)), sampling_rate=rates_of(1e-3)
    ),
    "ShuffledRandomizedResponse": made("ShuffledRandomizedResponse", epsilon=fixed(0.5, 4), choices=4, users=100),
}  # fmt: skip
"""A maker of every public mechanism, by its class."""

CLOSED = ("Gaussian", "PoissonSubsampledGaussian")
EXACT = ("Gaussian", "PoissonSubsampledGaussian", "GaussianMixture", "GaussianWithoutReplacement",
         "PoissonSubsampledGroup", "MatrixMechanism", "TreeAggregation")  # fmt: skip
"""Laws that the exact accountant answers within milliseconds."""
BY_CURVES = ("ZeroConcentratedDP", "PoissonSubsampled", "SubsampledWithoutReplacement", "RepeatAndSelect")
BY_OTHERS = ("DiscreteGaussianVector",)
"""Laws that the top level alone answers, by mechanisms near to them."""
FROM_BOTH_SIDES = ("ShuffledGaussian", "BallsInBins", "AllocatedMechanism", "PoissonSampledMechanism",
                   "ShuffledRandomizedResponse")  # fmt: skip
"""Laws whose lower ends are those of others, which take a second each."""
DEAR = ("RandomAllocation", "RandomAllocation, paired", *FROM_BOTH_SIDES)
MOST = {
    "DiscretePair": 1e4, "GaussianWithReplacement": 1e4, "WithoutReplacementGroup": 1e4, "RandomAllocation": 20,
    "RandomAllocation, paired": 20, "RepeatAndSelect": 1, "MatrixMechanism": 100, "TreeAggregation": 1e3,
    "AboveThreshold": 1e3, "GaussianAboveThreshold": 1e3, "ExponentialMechanism": 1e4,
    **dict.fromkeys(FROM_BOTH_SIDES, 20),
}  # fmt: skip
"""The most runs of a law, where that is not a million."""


class Ask(NamedTuple):
    """A question to the first compositions of a family."""

    verb: str
    most: int
    options: Mapping[str, Any] = MappingProxyType({})
    at: Any = None
    """What is given; None: the composition's own delta or epsilon."""


def scan(*asks: Ask | tuple[Any, ...]) -> tuple[Ask, ...]:
    """Returns questions from tuples."""
    return tuple(Ask(*each) for each in asks)


SIZE = {"points": 4096}
"""The mesh of most questions: one program for all of them, where each size of its own choice would be another."""
ENDS = scan(
    ("epsilon", 1, SIZE, 0.0), ("saddlepoint.epsilon", 1, {}, 0.0), ("prv.epsilon", 1, SIZE, 0.0),
    ("delta", 1, SIZE, 0.0), ("saddlepoint.delta", 1, {}, 0.0), ("prv.delta", 1, SIZE, 0.0), ("delta", 1, SIZE, "inf"),
)  # fmt: skip
"""The pure epsilon, the total variation, and the mass of infinite losses."""
OF_CLOSED = scan(
    ("epsilon", 48), ("delta", 40), ("saddlepoint.epsilon", 24), ("saddlepoint.delta", 24), ("rdp.epsilon", 12),
    ("rdp.delta", 8), ("saddlepoint.delta", 1, {}, 0.0), ("saddlepoint.epsilon", 1, {}, 0.0),
    ("prv.epsilon", 24, SIZE),
) + ENDS + scan(("prv.delta", 20, SIZE))  # fmt: skip
"""Of the two laws that are asked most."""
OF_EXACT = scan(
    ("saddlepoint.epsilon", 48), ("saddlepoint.delta", 40), ("rdp.epsilon", 12), ("rdp.delta", 8),
    ("epsilon", 32, SIZE), ("prv.epsilon", 20, SIZE), ("delta", 24, SIZE), ("prv.delta", 20, SIZE),
) + ENDS  # fmt: skip
OF_MESH = scan(
    ("rdp.epsilon", 16), ("rdp.delta", 8), ("saddlepoint.epsilon", 8), ("saddlepoint.delta", 6),
    ("epsilon", 32, SIZE), ("prv.epsilon", 24, SIZE), ("delta", 32, SIZE), ("prv.delta", 10, SIZE),
) + ENDS  # fmt: skip
OF_CURVES = scan(
    ("rdp.epsilon", 24), ("rdp.delta", 20), ("epsilon", 20), ("delta", 20), ("epsilon", 1, {}, 0.0),
    ("delta", 1, {}, 0.0), ("curve.epsilons", 2),
)  # fmt: skip
OF_NEAR = scan(("epsilon", 12), ("delta", 8), ("curve.epsilons", 1))
OF_DEAR = scan(("rdp.epsilon", 4), ("epsilon", 4, SIZE), ("prv.epsilon", 3, SIZE), ("prv.delta", 3, SIZE))
OF_BOTH_SIDES = scan(("epsilon", 3), ("delta", 2))
OF_OTHER = scan(("rdp.epsilon", 8), ("saddlepoint.epsilon", 8), ("saddlepoint.delta", 8), ("epsilon", 12, SIZE))
"""Of relations that are not a mechanism's first."""
OF_SEVERAL = scan(
    ("rdp.epsilon", 10), ("rdp.delta", 4), ("saddlepoint.epsilon", 10), ("saddlepoint.delta", 10),
    ("epsilon", 24, SIZE), ("prv.epsilon", 8, SIZE), ("delta", 12, SIZE),
)  # fmt: skip


def in_full(field: str) -> tuple[Ask, ...]:
    """Returns the questions that compile long programs, for laws that have a noise to change."""
    return scan(
        ("traced.epsilon", 24), ("traced.delta", 12), ("prv.epsilon", 8), ("prv.delta", 8), ("epsilon", 8),
        ("delta", 8), ("prv.epsilon", 4, {"tolerance": 1e-2}), ("epsilon", 4, {"tolerance": 1e-6}),
        ("curve.epsilons", 3), ("tradeoff.advantage", 2), ("curve.deltas", 2), ("prv.curve", 3),
        ("tradeoff.curve", 2, {}, [0.05, 0.3]),
        ("gdp.certified_mu", 2), ("calibrate.scale", 3, {"field": field}), ("slope.epsilon", 3, {"field": field}),
    )  # fmt: skip


IN_FULL = {"Gaussian": "noise_multiplier", "PoissonSubsampledGaussian": "noise_multiplier", "Laplace": "scale"}
"""Laws of which every verb is asked, with the field that calibrations and derivatives change."""
IN_TRACES = ("GaussianMixture", "GaussianWithoutReplacement", "DiscreteGaussian", "RandomizedResponse",
             "PoissonSubsampledLaplace")  # fmt: skip
"""Further laws that are asked with all of their numbers traced."""


AT_LENGTH = ("RandomizedResponse", "PoissonSubsampledLaplace", "DiscreteGaussian", "LaplaceWithoutReplacement")
"""Laws of whose losses with atoms, or without a strip, the mesh of a default call takes seconds."""


class Family(NamedTuple):
    """Compositions that are drawn alike, and the questions to them."""

    name: str
    relation: str
    compose: Callable[[Draw], tuple[Description, Any]]
    """Returns a mechanism and its numbers of runs."""
    asks: tuple[Ask, ...]


def once(law: str) -> Callable[[Draw], tuple[Description, Any]]:
    """Returns the maker of a law's compositions."""

    def compose(draw: Draw) -> tuple[Description, Any]:
        runs = count(draw, MOST.get(law, 1e6))
        return LAWS[law](draw, runs), runs

    return compose


def sequence(law: str, size: int) -> Callable[[Draw], tuple[Description, Any]]:
    """Returns the maker of a law's sequences: each field that is drawn gets a leading axis."""

    def compose(draw: Draw) -> tuple[Description, Any]:
        runs = [count(draw, min(MOST.get(law, 1e6), 1e5)) for _ in range(size)]
        rows = [LAWS[law](draw, size * each) for each in runs]
        stacked = {name: [row[name] for row in rows] for name in rows[0]}
        kept = ("make", "outcomes", "points", "participations", "size")
        sequence_of: Description = {name: values[0] if name in kept else values for name, values in stacked.items()}
        return sequence_of, runs

    return compose


def together(*laws: str) -> Callable[[Draw], tuple[Description, Any]]:
    """Returns the maker of tuples; a law may be the name of a sequence of two."""

    def compose(draw: Draw) -> tuple[Description, Any]:
        parts = [sequence(law[:-2], 2)(draw) if law.endswith("x2") else once(law)(draw) for law in laws]
        return [mechanism for mechanism, _ in parts], [runs for _, runs in parts]

    return compose


def group(law: str, size: int) -> Callable[[Draw], tuple[Description, Any]]:
    """Returns the maker of groups."""

    def compose(draw: Draw) -> tuple[Description, Any]:
        mechanism, runs = once(law)(draw)
        return {"make": "group", "mechanism": mechanism, "size": size}, runs

    return compose


def corner(draw: Draw) -> tuple[Description, Any]:
    """Returns one of the corners: rare and large, hardly ever, hardly any noise, next to all, very long."""
    noise_multiplier, share, runs = CORNERS[draw.integers(len(CORNERS))]
    return {"make": "PoissonSubsampledGaussian", "noise_multiplier": noise_multiplier, "sampling_rate": share}, runs


CORNERS = (
    (0.1, 1.024e-5, 976_563), (0.02, 1e-12, 1), (0.02, 1e-12, 10**6), (0.6, 1e-4, 100), (1e-3, 1e-3, 10),
    (0.3, 0.1, 10**6), (1.2, 1.0, 7), (1.0, 1 - 2.0**-30, 7), (200.0, 0.5, 10**8), (1e4, 1e-6, 10**8), (1.0, 0.0, 7),
    ("inf", 0.5, 7), (0.0, 0.5, 3), (1.0, 0.5, 0), (0.8, 1e-4, 2), (50.0, 0.999, 10**4),
)  # fmt: skip

FREE: tuple[Description, ...] = (
    {"make": "PureDP", "epsilon": 0.0}, {"make": "RandomizedResponse", "epsilon": 0.0, "outcomes": 3},
    {"make": "ApproximateDP", "epsilon": 0.0, "delta": 0.0}, {"make": "Gaussian", "noise_multiplier": "inf"},
    {"make": "Laplace", "scale": "inf"}, {"make": "Gaussian", "noise_multiplier": 0.0},
    {"make": "Laplace", "scale": 0.0}, {"make": "PoissonSubsampledLaplace", "scale": 2.0, "sampling_rate": 0.0},
    {"make": "DiscreteLaplace", "scale": "inf"}, {"make": "DiscreteGaussian", "scale": "inf"},
    {"make": "GaussianMixture", "noise_multiplier": "inf", "sensitivities": [1.0, 2.0], "probabilities": [0.5, 0.5]},
    {"make": "DiscretePair", "p": [0.25, 0.75], "q": [0.25, 0.75]},
    {"make": "DiscretePair", "p": [0.25, 0.75, 0.0], "q": [0.0, 0.75, 0.25]},
    {"make": "ApproximateDP", "epsilon": 0.0, "delta": 0.001}, {"make": "Gaussian", "noise_multiplier": 1e-4},
    {"make": "Laplace", "scale": 1e-3}, {"make": "RandomAllocation", "noise_multiplier": 2.0, "batches": 1},
    {"make": "ExponentialMechanism", "epsilon": 0.0},
)  # fmt: skip


def free(draw: Draw) -> tuple[Description, Any]:
    """Returns a mechanism at an edge of its range, which costs nothing, or all, or is another one."""
    return FREE[draw.integers(len(FREE))], int(draw.choice([0, 1, 3, 2**40]))


def relations_of(law: str) -> tuple[str, ...]:
    """Returns the relations that a law supports, those of its own first."""
    return build(LAWS[law](np.random.default_rng(0), 1)).relations


SEVERAL: dict[str, tuple[str, Callable[[Draw], tuple[Description, Any]], tuple[Ask, ...]]] = {
    "PoissonSubsampledGaussian, 3 in sequence": (
        "add_or_remove", sequence("PoissonSubsampledGaussian", 3), OF_EXACT + scan(("traced.epsilon", 12))
    ),
    "Gaussian, 3 in sequence": ("add_or_remove", sequence("Gaussian", 3), OF_EXACT),
    "Laplace, 2 in sequence": ("add_or_remove", sequence("Laplace", 2), OF_SEVERAL),
    "PoissonSubsampledLaplace, 2 in sequence": ("add_or_remove", sequence("PoissonSubsampledLaplace", 2), OF_SEVERAL),
    "RandomizedResponse, 3 in sequence": ("replace", sequence("RandomizedResponse", 3), OF_SEVERAL),
    "ApproximateDP, 2 in sequence": ("add_or_remove", sequence("ApproximateDP", 2), OF_SEVERAL),
    "GaussianWithoutReplacement, 2 in sequence": ("replace", sequence("GaussianWithoutReplacement", 2), OF_SEVERAL),
    "ExponentialMechanism, 2 in sequence": ("replace", sequence("ExponentialMechanism", 2), OF_OTHER),
    "ZeroConcentratedDP, 2 in sequence": ("replace", sequence("ZeroConcentratedDP", 2), OF_CURVES),
    "Poisson and Gaussian": ("add_or_remove", together("PoissonSubsampledGaussian", "Gaussian"), OF_SEVERAL),
    "Poisson, Poisson and Poisson": (
        "replace", together("PoissonSubsampledGaussian", "PoissonSubsampledGaussian", "PoissonSubsampledGaussian"),
        OF_OTHER,
    ),
    "Poisson and response": ("add_or_remove", together("PoissonSubsampledGaussian", "RandomizedResponse"), OF_SEVERAL),
    "Poisson and Laplace": ("add_or_remove", together("PoissonSubsampledGaussian", "Laplace"), OF_SEVERAL),
    "Gaussian, pure and approximate": ("replace", together("Gaussian", "PureDP", "ApproximateDP"), OF_SEVERAL),
    "Poisson and a sequence": (
        "add_or_remove", together("PoissonSubsampledGaussian", "PoissonSubsampledGaussianx2"), OF_OTHER
    ),
    "discrete Gaussian and Laplace": ("remove", together("DiscreteGaussian", "DiscreteLaplace"), OF_OTHER),
    "pair and zCDP": ("add_or_remove", together("DiscretePair", "ZeroConcentratedDP"), OF_CURVES),
    "without replacement, both": (
        "replace", together("GaussianWithoutReplacement", "LaplaceWithoutReplacement"), OF_OTHER
    ),
    "allocation and Gaussian": ("add_or_remove", together("RandomAllocation", "Gaussian"), OF_DEAR),
    "group of Poisson": ("add_or_remove", group("PoissonSubsampledGaussian", 4), OF_EXACT),
    "group of Poisson, replaced": ("replace", group("PoissonSubsampledGaussian", 4), OF_OTHER),
    "group of Gaussian": ("add_or_remove", group("Gaussian", 2), OF_OTHER),
    "group of Laplace": ("add_or_remove", group("Laplace", 2), OF_OTHER),
    "group of sampled Laplace": ("add_or_remove", group("PoissonSubsampledLaplace", 3), OF_OTHER),
    "group of discrete Laplace": ("zero_out", group("DiscreteLaplace", 2), OF_OTHER),
    "group of pure": ("add_or_remove", group("PureDP", 3), OF_OTHER),
    "group of approximate": ("replace", group("ApproximateDP", 2), OF_OTHER),
    "corners": (
        "add_or_remove", corner,
        scan(("saddlepoint.epsilon", 48), ("saddlepoint.delta", 48), ("rdp.epsilon", 24), ("epsilon", 64, SIZE),
             ("delta", 64, SIZE)) + ENDS,
    ),
    "edges": (
        "add_or_remove", free,
        scan(("rdp.epsilon", 60), ("saddlepoint.epsilon", 60), ("epsilon", 60, SIZE), ("epsilon", 30, SIZE, 0.0),
             ("delta", 60, SIZE), ("delta", 30, SIZE, 0.0), ("delta", 30, SIZE, "inf"), ("prv.epsilon", 40, SIZE)),
    ),
    "small deltas": (
        "add_or_remove", once("PoissonSubsampledGaussian"),
        scan(("saddlepoint.epsilon", 30, {}, 1e-80), ("epsilon", 40, SIZE, 1e-20), ("epsilon", 40, SIZE, 1e-40),
             ("epsilon", 20, SIZE, 0.5), ("epsilon", 20, SIZE, 0.999)),
    ),
}  # fmt: skip
"""Sequences, tuples, groups, corners and edges: relation, maker and questions."""


def families() -> list[Family]:
    """Returns all families, those that answer quickly first."""
    found = []
    # Each law under its first relation in full, and under the others with fewer questions.
    for law in LAWS:
        kinds = ((CLOSED, OF_CLOSED), (EXACT, OF_EXACT), (BY_CURVES, OF_CURVES), (BY_OTHERS, OF_NEAR))
        kinds += ((FROM_BOTH_SIDES, OF_BOTH_SIDES), (DEAR, OF_DEAR))
        asks = next((asks for laws, asks in kinds if law in laws), OF_MESH)
        if law in IN_FULL:
            asks += in_full(IN_FULL[law])
        if law in IN_TRACES:
            asks += scan(("traced.epsilon", 16))
        if law in AT_LENGTH:
            asks += scan(("epsilon", 4), ("delta", 3))
        first, *others = relations_of(law)
        found.append(Family(f"{law}, {first}", first, once(law), asks))
        few = OF_CURVES[:4] if law in BY_CURVES else OF_DEAR if law in DEAR else OF_OTHER
        few = OF_BOTH_SIDES if law in FROM_BOTH_SIDES else few
        few = OF_NEAR[1:] if law in BY_OTHERS else few
        few = tuple(ask._replace(most=max(ask.most // 4, 1)) for ask in few) if law in BY_CURVES else few
        found += [Family(f"{law}, {relation}", relation, once(law), few) for relation in others]
    found += [Family(name, *several) for name, several in SEVERAL.items()]
    return sorted(found, key=_turn)


def _turn(family: Family) -> int:
    """Returns the turn of a family in writing: what answers quickly, other laws, several, other relations."""
    law, _, relation = family.name.rpartition(", ")
    is_first = law in LAWS and relation == relations_of(law)[0]
    if law in DEAR or "allocation" in family.name:
        return 2 if is_first else 5
    if law in BY_CURVES or (law in EXACT and is_first):
        return 0
    return 1 if is_first else 3 if family.name in SEVERAL else 4


def compositions(family: Family, number_of_them: int) -> list[tuple[Description, Any, float]]:
    """Returns the first compositions of a family, each with a delta."""
    found = []
    for index in range(number_of_them):
        draw = np.random.default_rng([SEED, zlib.crc32(family.name.encode()), index])
        mechanism, steps = family.compose(draw)
        found.append((mechanism, steps, log_uniform(draw, 1e-12, 0.1)))
    return found


def asked_at(verb: str, given: Any, epsilon: float, delta: float) -> Any:
    """Returns what a composition is asked at by a verb."""
    if given is not None or verb in ("gdp.certified_mu", "tradeoff.advantage"):
        return given
    if verb in ("curve.epsilons", "prv.curve"):
        return [0.0, float(f"{epsilon / 2:.4g}"), epsilon]
    if verb == "curve.deltas":
        return [delta, float(f"{delta**0.5:.4g}")]
    if verb == "calibrate.scale":
        return [epsilon, delta]
    return delta if verb in EPSILONS or verb == "slope.epsilon" else epsilon


def questions(family: Family) -> Iterable[tuple[bool, Ask, int]]:
    """Yields a family's questions in their order: whether one is the first of its kind, it, and the composition."""
    for ask in family.asks:
        for index in range(ask.most):
            yield index == 0, ask, index


def freeze(family: Family, seconds: float, earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns a family's settings and answers, after those of an earlier run.

    After so many CPU seconds no further kind of question is begun, after four times as many none; how many are left out
    is part of the result, and a later run goes on there.
    """
    start, left_out = time.process_time(), 0
    settings: list[Any] = []
    answers: list[Any] = []
    spent: dict[str, float] = dict(earlier["seconds"]) if earlier else {}
    drawn = compositions(family, max(ask.most for ask in family.asks))
    epsilons: dict[int, float] = {}
    # The answers of an earlier run are those to the first questions: what is left out is left out at the end.
    for is_first, ask, index in questions(family):
        so_far = time.process_time() - start
        known = len(settings) < len(earlier["settings"]) if earlier else False
        if left_out or (not known and so_far > (seconds if is_first else 4 * seconds)):
            left_out += 1
            continue
        mechanism, steps, delta = drawn[index]
        at = asked_at(ask.verb, ask.at, epsilons.get(index, _some_epsilon(family, index)), delta)
        setting = Setting(family.name, mechanism, steps, family.relation, ask.verb, at, dict(ask.options))
        if known and earlier:
            data = earlier["answers"][len(answers)]
            if list(setting)[1:] != earlier["settings"][len(settings)]:
                raise ValueError(f"{family.name}: the file has other settings than the seed draws. Write it anew.")
        else:
            before = time.process_time()
            found = answer(library, setting)
            name = " ".join([ask.verb, *(f"{option}={value}" for option, value in ask.options.items())])
            spent[name] = round(spent.get(name, 0.0) + time.process_time() - before, 2)
            data = found.as_data() if found else "no answer"
        settings.append(list(setting)[1:])
        answers.append(data)
        said = Answer.from_data(data)
        # The first epsilon is about where deltas of the composition are asked.
        if ask.verb in EPSILONS and ask.at is None and not said.raised and 0 < said.upper[0] < 1e5:
            share = np.random.default_rng([SEED, zlib.crc32(family.name.encode()), index, 2]).uniform(0.4, 1.1)
            epsilons.setdefault(index, float(f"{said.upper[0] * share:.4g}"))
    return {"seconds": spent, "left out": left_out, "settings": settings, "answers": answers}


def _some_epsilon(family: Family, index: int) -> float:
    return log_uniform(np.random.default_rng([SEED, zlib.crc32(family.name.encode()), index, 1]), 0.01, 5)


# ----------------------------------------------------------------------------------------------------
# The file.
# ----------------------------------------------------------------------------------------------------


def load(path: Path = FILE) -> dict[str, Any]:
    """Returns the file's contents."""
    return json.loads(gzip.decompress(path.read_bytes()))


def save(contents: dict[str, Any], path: Path = FILE) -> None:
    """Writes the file, whole or not at all; equal contents are equal bytes."""
    text = gzip.compress(json_files.dumps(contents).encode(), mtime=0)
    json_files.write_whole(path, lambda file: file.write(text))


def records(contents: dict[str, Any], only: str = "") -> Iterable[tuple[Setting, Answer]]:
    """Yields settings with their frozen answers, of families whose names contain a word."""
    for name, family in contents["families"].items():
        if only in name:
            for setting, data in zip(family["settings"], family["answers"], strict=True):
                yield Setting(name, *setting), Answer.from_data(data)


def write(only: str, seconds: float, path: Path = FILE) -> None:
    """Answers what the file has no answers to yet, and writes it after each family."""
    contents = load(path) if path.exists() else report.write(None, {"seed": SEED, "families": {}})
    wanted = [family for family in families() if only in family.name]
    # New families first, then those of which an earlier run left something out.
    for family in sorted(wanted, key=lambda family: family.name in contents["families"]):
        earlier = contents["families"].get(family.name)
        if earlier and not earlier["left out"]:
            continue
        contents["families"][family.name] = found = freeze(family, seconds, earlier)
        save(contents, path)
        raised = sum(isinstance(data, str) for data in found["answers"])
        line = f"{len(found['settings'])} settings, {found['left out']} left out, {raised} raised"
        print(f"{family.name}: {line}, {sum(found['seconds'].values()):.1f} s: {found['seconds']}", flush=True)


# ----------------------------------------------------------------------------------------------------
# Comparisons.
# ----------------------------------------------------------------------------------------------------


def disjoint(one: Answer, other: Answer) -> bool:
    """Returns whether any two brackets have no number in common, doubles compared as they are."""
    return bool(np.any((one.lower > other.upper) | (other.lower > one.upper)))


def is_nonsense(found: Answer) -> bool:
    """Returns whether any bound is no number, or a lower one above the upper one."""
    return not bool(np.all(found.lower <= found.upper))


WIDER = 1.01
"""From how much of its frozen width on a bracket is said to be wider."""


def quantiles(gaps: Sequence[float]) -> dict[str, float]:
    """Returns the shares of widths within each of SHARES, their median and their .9 quantile."""
    ordered = np.sort(np.asarray(gaps, float))
    found = {f"within {share:g}": float(np.mean(ordered <= share)) for share in SHARES}
    places = {"median": 0.5, ".9": 0.9}
    return found | {name: float(ordered[int(place * (len(ordered) - 1))]) for name, place in places.items()}


class Comparison(NamedTuple):
    """What an evaluator says of frozen settings."""

    asked: int
    answered: int
    contradictions: list[dict[str, Any]]
    nonsense: list[dict[str, Any]]
    raised: list[dict[str, Any]]
    """Settings that one side answered and the other raised an error for."""
    changed: int
    """Answers with any other bits."""
    wider: list[dict[str, Any]]
    """Settings whose bracket got wider, the widest first."""
    moved: float
    """The largest relative change of a number that nothing brackets: a derivative."""
    widths: dict[str, dict[str, Any]]
    """By family and verb, and by verb: the number of brackets, and shares and quantiles, frozen and new."""
    seconds: float

    def is_clean(self) -> bool:
        """Returns whether nothing contradicts the file, is nonsense, or raises where the file has an answer."""
        return not (self.contradictions or self.nonsense or self.raised)


def compare(
    evaluate: Callable[[Setting], Any] = library, frozen: Iterable[tuple[Setting, Answer]] | None = None
) -> Comparison:
    """Returns how an evaluator's answers compare with frozen ones, those of the file by default.

    ``evaluate`` takes a :class:`Setting` and returns bounds, or None where it does not answer.
    """
    start = time.process_time()
    contradictions, nonsense, raised, wider = [], [], [], []
    asked = answered = changed = 0
    moved = 0.0
    gaps: dict[str, list[tuple[float, float]]] = {}
    for setting, old in frozen if frozen is not None else records(load()):
        asked += 1
        new = answer(evaluate, setting)
        if new is None:
            continue
        answered += 1
        changed += new.as_data() != old.as_data()
        said = {"setting": setting._asdict(), "frozen": said_of(old), "new": said_of(new)}
        if new.raised or old.raised:
            if bool(new.raised) != bool(old.raised):
                raised.append(said)
            continue
        # What nothing brackets, a derivative, lies between infinite ends of opposite signs.
        unbounded = np.isneginf(old.lower) & np.isposinf(old.upper)
        lost = np.isnan(new.estimate) & ~np.isnan(old.estimate) if np.any(unbounded) else np.zeros(1, bool)
        if new.lower.shape != old.lower.shape or is_nonsense(new) or np.any(lost):
            nonsense.append(said)
            continue
        if disjoint(old, new):
            contradictions.append(said)
        if np.any(unbounded):
            change = np.abs(new.estimate - old.estimate) / np.maximum(np.abs(old.estimate), 1e-12)
            moved = max(moved, float(np.max(np.where(np.isnan(change), 0.0, change))))
            continue
        pairs = list(zip(old.gaps().tolist(), new.gaps().tolist(), strict=True))
        for name in (setting.verb, f"{setting.family}: {setting.verb}"):
            gaps.setdefault(name, []).extend(pairs)
        # Of what is known from above alone on both sides, the bounds themselves are compared.
        one_sided = (old.lower == 0) & (new.lower == 0) & np.isfinite(old.upper)
        sizes = zip(one_sided, old.upper.tolist(), new.upper.tolist(), pairs, strict=True)
        ends = [(high, most) if alone else gaps_of for alone, high, most, gaps_of in sizes]
        if any(now > WIDER * then + 1e-12 for then, now in ends):
            wider.append(said | {"ratio": max(now / max(then, 1e-12) for then, now in ends)})
    widths = {}
    # Each pair is a width in the file and a new one.
    for name, pairs in gaps.items():
        then, now = zip(*pairs, strict=True)
        widths[name] = {"brackets": len(pairs), "frozen": quantiles(then), "new": quantiles(now)}
    wider.sort(key=lambda said: -said["ratio"])
    seconds = time.process_time() - start
    return Comparison(asked, answered, contradictions, nonsense, raised, changed, wider, moved, widths, seconds)


def said_of(found: Answer) -> Any:
    """Returns an answer in decimal digits."""
    return found.raised or list(zip(found.lower.tolist(), found.upper.tolist(), strict=True))


def sample(contents: dict[str, Any], number_of_them: int, seed: int, only: str = "") -> list[tuple[Setting, Answer]]:
    """Returns so many settings of the file, drawn from a seed."""
    every = list(records(contents, only))
    chosen = np.random.default_rng(seed).choice(len(every), min(number_of_them, len(every)), replace=False)
    return [every[index] for index in sorted(chosen)]


def cross(frozen: Iterable[tuple[Setting, Answer]]) -> tuple[int, list[dict[str, Any]]]:
    """Returns how many pairs of verbs answer one question in the file, and those that contradict each other."""
    groups: dict[str, list[tuple[Setting, float, float]]] = {}
    for setting, found in frozen:
        kind = "epsilon" if setting.verb in EPSILONS else "delta"
        if setting.verb not in (*EPSILONS, *DELTAS, "tradeoff.advantage") or found.raised:
            continue
        places = [0.0] if setting.verb == "tradeoff.advantage" else np.ravel(setting.at).tolist()
        for at, low, high in zip(places, found.lower, found.upper, strict=True):
            key = json_files.dumps([setting.mechanism, setting.steps, setting.relation, kind, float(at)])
            groups.setdefault(key, []).append((setting, float(low), float(high)))
    pairs, wrong = 0, []
    # Every two brackets of one number share a point.
    for several in groups.values():
        for (one, low, high), (other, least, most) in itertools.combinations(several, 2):
            pairs += 1
            if low > most or least > high:
                verbs = [{"verb": each.verb, **each.options} for each in (one, other)]
                wrong.append({"setting": one._asdict(), "verbs": verbs, "brackets": [(low, high), (least, most)]})
    return pairs, wrong


def lines_of(found: Comparison, most: int = 5) -> list[str]:
    """Returns a comparison as lines of text."""
    lines = [
        f"{found.asked} settings, {found.answered} answered in {found.seconds:.1f} s; {found.changed} with other bits; "
        f"{len(found.contradictions)} contradictions, {len(found.nonsense)} no brackets, {len(found.raised)} raised on "
        f"one side; {len(found.wider)} wider; derivatives moved by {found.moved:.1e} at most",
        f"{'brackets, verb':58s} {'within ' + ', '.join(f'{share:g}' for share in SHARES):>30s}  median    .9",
    ]
    for name, widths in found.widths.items():
        for when in ("frozen", "new"):
            shares = " ".join(f"{100 * widths[when][f'within {share:g}']:5.1f} %" for share in SHARES)
            head = f"{widths['brackets']:5d} {name}" if when == "frozen" else ""
            lines.append(f"{head:60s} {when:6s} {shares}  {widths[when]['median']:.1e}  {widths[when]['.9']:.1e}")
    for title in ("contradictions", "nonsense", "raised", "wider"):
        lines += [f"{title}: {json_files.dumps(said)}" for said in getattr(found, title)[:most]]
    return lines


def main() -> int:
    """Writes the file, or compares with it."""
    parser = report.arguments_of(__doc__)
    parser.add_argument("what", choices=["write", "compare", "cross"])
    parser.add_argument("--only", default="", help="families whose names contain it")
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds of a family, when writing")
    parser.add_argument("--sample", type=int, help="so many settings, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluator", help="MODULE:FUNCTION")
    parser.add_argument("--file", type=Path, default=FILE)
    arguments = parser.parse_args()
    if arguments.what == "write":
        write(arguments.only, arguments.seconds, arguments.file)
        return 0
    contents = load(arguments.file)
    if arguments.what == "cross":
        pairs, wrong = cross(records(contents, arguments.only))
        print(f"{pairs} pairs of verbs, {len(wrong)} contradictions")
        for said in wrong:
            print(json_files.dumps(said))
        return bool(wrong)
    chosen = sample(contents, arguments.sample, arguments.seed, arguments.only) if arguments.sample else None
    evaluate = library
    if arguments.evaluator:
        module, _, name = arguments.evaluator.partition(":")
        evaluate = getattr(importlib.import_module(module), name)
    found = compare(evaluate, chosen if chosen is not None else records(contents, arguments.only))
    print("\n".join(lines_of(found)))
    if arguments.json:
        report.write(arguments.json, found._asdict())
    return not found.is_clean()


if __name__ == "__main__":
    sys.exit(main())
