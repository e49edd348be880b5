"""Planned runs: the noise, length or epsilon that the certified accountant finds before training, and their ledger.

* :class:`PlannedLedger`: a counter of runs, which is all that a planned run needs; the proof stands below it;
* :class:`SideQuery`, :class:`Plan`, :func:`plan`: what two of epsilon, noise multiplier and steps leave for the third.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jax import numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float64, Int32

import jaxacct
from jaxacct import calibrate, rdp
from jaxacct.bounds import Bounds
from jaxacct.display import rounded_up
from jaxacct.mechanisms import Gaussian, Mechanism, Mechanisms, PoissonSubsampledGaussian, Steps
from jaxacct.numerics.precision import kernel, leave_scope
from jaxacct.numerics.pytrees import register_dataclass, takes_python_values
from jaxacct.numerics.root_search import least_by_secants
from jaxacct.train.integer_noise import noise_delta
from jaxacct.train.sampling import ALLOWANCE, Correlated, PoissonSampler, Sampler, ShuffledSampler, runs_of
from jaxacct.train.sampling.correlated import drawn_by
from jaxacct.validation import MOST_COUNT, whole_steps


@register_dataclass
@dataclass(frozen=True)
class PlannedLedger:
    """A counter of a plan's runs, which grants them while there are some left: enough for the loop of a planned run.

    Attributes:
        made (): number of runs granted so far, int32.
        runs: number of runs of the plan; static.
        certified: the plan's certified epsilon; static, so that no record can change it.

    >>> ledger = PlannedLedger.of(2, certified=0.5)
    >>> granted, ledger = ledger.spend(2)
    >>> bool(granted), bool(ledger.spend(1)[0]), float(ledger.epsilon())
    (True, False, 0.5)
    """

    made: Int32[Array, ""]
    runs: int = field(metadata={"static": True})
    certified: float = field(metadata={"static": True})

    @classmethod
    def of(cls, runs: int, *, certified: float) -> PlannedLedger:
        """Returns the ledger of a plan before its first run."""
        return cls(jnp.zeros((), jnp.int32), runs, certified)

    def spend(self, runs: ArrayLike) -> tuple[Bool[Array, ""], PlannedLedger]:
        """Returns whether the plan has so many more runs, and the ledger after them: the same one if it has not."""
        more = whole_steps(runs, "runs")
        granted = (more >= 0) & (more <= self.remaining())
        return granted, dataclasses.replace(self, made=jnp.where(granted, self.made + more, self.made))

    def resume(self, spent: PlannedLedger) -> PlannedLedger:
        """Returns this ledger after the runs that another one of a plan of as many has granted.

        Raises ValueError where ``spent`` is of another plan, or no such ledger.
        """
        if not isinstance(spent, PlannedLedger) or spent.runs != self.runs:
            kind = f"{spent.runs} runs" if isinstance(spent, PlannedLedger) else f"kind {type(spent).__name__}"
            raise ValueError(f"the ledger of {kind} is not that of a plan of {self.runs} runs: give this plan's.")
        return dataclasses.replace(self, made=spent.made)

    def remaining(self) -> Int32[Array, ""]:
        """Returns how many runs the plan has left; 0 where a restored count is out of range."""
        return jnp.where((self.made >= 0) & (self.made <= self.runs), self.runs - self.made, 0)

    def epsilon(self) -> Float64[Array, ""]:
        """Returns the certified epsilon of the whole plan, which holds wherever a run stops; 0 before its first."""
        return leave_scope(_reading(self.made, self.certified))


@kernel(own_float64=True)
def _reading(made: Array, certified: float) -> Array:
    """Returns 0 before the first run, else the plan's epsilon, in float64."""
    return jnp.where(made == 0, 0.0, certified)


# ----------------------------------------------------------------------------------------------------
# Plan of a budget: the noise, the steps or the epsilon that the two others leave, by the certified accountant.
#
# Why the plan's guarantee holds wherever the run stops
# -----------------------------------------------------
# A plan fixes the sampler, the noise multiplier, the number of steps and the side queries
# (:class:`SideQuery`). Let R be the number of runs of the sampler's mechanism that so many steps begin
# (:func:`.runs_of`), and M = (M_1, ..., M_R, Q_1, ...) their composition with the queries. Each M_i sees what was
# released before it: the parameters, the clipping norm, the learning rate and whatever the caller does may follow from
# that. The dominating pair of M_i is fixed, for every past: the noise is that multiple of the sensitivity, and the
# batch is drawn by the same law. So M is dominated by the product of these pairs (Zhu, Dong and Wang 2022, Theorem 10),
# and the certified accountant's upper bound on that product's hockey-stick divergence at ``epsilon`` is at most delta',
# what is left of delta once batches cut at capacity are paid for: M is (epsilon, delta')-DP, and the run with cut
# batches (epsilon, delta)-DP (:mod:`.sampling.sampler`).
#
# A run may stop early, at a time tau that follows by any rule from what was released so far, or from events that know
# nothing of the data, such as a crash of the machine. Let the remaining steps be made all the same and thrown away.
# Then all of M was run, tau is a function of its outputs and of independent randomness, and (Y_1, ..., Y_tau) is a
# function of (Y_1, ..., Y_R) and of that: post-processing. Hence no odometer and no filter is needed, and nothing is
# lost to one. Nor does it matter into how many calls the steps were divided, or that an interruption lost some: those
# are steps of M as well, and the ledger has counted them. The run must not make one run of the mechanism more than R;
# :class:`PlannedLedger` refuses that. A rule that looks at the data themselves is a release of its own, here as
# everywhere.
#
# Where tau does not depend on what was released, as for a length that was fixed beforehand, M may be replaced by the
# composition of the steps made: then the smaller epsilon of that holds
# (:func:`~jaxacct.train.report.certified_epsilon`).
# ----------------------------------------------------------------------------------------------------

Drawn = Callable[[float, int], Sampler]
"""Maker of the sampler for an epsilon and a number of steps: its capacity may depend on them."""


class SideQuery(NamedTuple):
    """A release of the data beside a run's steps: a part of its plan, paid for from its start.

    Examples are a noisy mean that examples are centred by, or a noisy count after each epoch. When it is released does
    not matter, as long as it is no more often than planned. Queries on a step's own batch, which share its noise, are
    no side queries: they are in the noise multiplier (:meth:`.ClippingRule.gradient_noise_multiplier`).

    Attributes:
        mechanism: the mechanism of one release; it supports the sampler's relation.
        every: steps of the plan for one release, the last ones rounded up to one: a query whose ``every`` is the plan's
            length is a single release. Raise it to leave more of the budget to the steps.
    """

    mechanism: Mechanism
    every: int = 1

    def count(self, steps: int) -> int:
        """Returns how often a plan of so many steps pays for it."""
        return -(-steps // self.every)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run's sampler, noise and length, fixed before it begins, and the cost of all of it. Prints as a table.

    Attributes:
        sampler: draws its batches.
        noise_multiplier: noise multiplier of every step, all its releases counted: rules that count on the batch take
            their share of it.
        steps: number of steps of the whole run.
        epsilon: the budget, which :attr:`certified` keeps to.
        delta: the budget; cut batches take :attr:`overflow_delta` of it, and integer noise :attr:`noise_delta`.
        queries: releases other than the steps'.
        samples: integer noise values that one step draws at most; 0 where noise is drawn in float64.
        certified: bounds on the epsilon of the whole plan at :attr:`delta_for_accounting`; ``upper`` holds.

    >>> sampler = PoissonSampler(60_000, 0.01, capacity=800)
    >>> made = plan(lambda epsilon, steps: sampler, 1e-5, epsilon=3.0, steps=3000)
    >>> f"{made.noise_multiplier:.4f}", made.steps, bool(2.999 < made.certified.upper <= 3.0)
    ('1.0330', 3000, True)
    """

    sampler: Sampler
    noise_multiplier: float
    steps: int
    epsilon: float
    delta: float
    queries: tuple[SideQuery, ...] = ()
    samples: int = 0
    certified: Bounds = field(compare=False)

    @property
    def runs(self) -> int:
        """Number of runs of the sampler's mechanism."""
        return runs_of(self.sampler, self.steps)

    def ledger(self) -> PlannedLedger:
        """Returns the ledger that grants the plan's runs, before the first of them."""
        return PlannedLedger.of(self.runs, certified=float(self.certified.upper))

    def composition(self, steps: int | None = None) -> tuple[Mechanisms, Steps]:
        """Returns the mechanisms of the first steps (None: of all), and how often each of them is run."""
        sampler = self.sampler
        if steps is not None and isinstance(sampler, Correlated):  # the first rows make a matrix mechanism of their own
            sampler = Correlated(sampler.batches, sampler.strategy, max(steps, 1))
        mechanisms, counts = composition_of(sampler, self.noise_multiplier, self.steps, self.queries)
        if steps is None:
            return mechanisms, counts
        runs = runs_of(sampler, steps)
        return mechanisms, (runs, *counts[1:]) if self.queries else runs

    @property
    def query_descriptions(self) -> list[str]:
        """Descriptions, in words, of the side queries that the plan pays for, and how often."""
        return [f"{query.mechanism}, {query.count(self.steps)} times" for query in self.queries]

    @property
    def overflow_delta(self) -> float:
        """Part of delta that cut batches cost."""
        return _overflow(self.sampler, self.steps, self.epsilon)

    @property
    def noise_delta(self) -> float:
        """Part of delta that the distance of integer noise from its account costs (:func:`.integer_noise.bill`)."""
        return noise_delta(self.samples * _count_covered(self.sampler, self.steps), self.epsilon, self.delta)

    @property
    def delta_for_accounting(self) -> float:
        """Part of delta that is left for the mechanisms."""
        return delta_left(self.sampler, self.steps, self.epsilon, self.delta, self.samples)

    @property
    def renyi_epsilon(self) -> float:
        """Epsilon of the same plan by the best Rényi accountant: for comparison."""
        return self.renyi_epsilon_after(self.steps)

    def renyi_epsilon_after(self, steps: int) -> float:
        """Returns the Rényi accountant's epsilon, an upper bound, of the first steps."""
        relation = self.sampler.relation
        return float(rdp.epsilon(*self.composition(steps), self.delta_for_accounting, relation=relation))

    def epsilon_so_far(self, steps: int) -> float | None:
        """Returns what the first ``steps`` steps cost, had the run been planned to end with them.

        Show it with the plan's epsilon, which holds even if results decide on the end. None with correlated
        noise, whose single steps have no cost of their own. Rounded up to six digits: the same run always shows the
        same number.
        """
        if isinstance(self.sampler, Correlated):
            return None
        mechanisms, counts = self.composition(steps)
        made = jaxacct.epsilon(mechanisms, counts, self.delta_for_accounting, relation=self.sampler.relation).upper
        return float(rounded_up(min(float(made), float(self.certified.upper))))

    def __str__(self) -> str:
        rate = self.sampler.expected_batch_size / self.sampler.num_examples
        budget = f"{rounded_up(self.epsilon)} at delta {rounded_up(self.delta)}"
        cut = rounded_up(self.overflow_delta, ".3g")
        rows = [
            ("noise multiplier", f"{self.noise_multiplier:.12g}"),
            ("sampling rate", f"{rate:.6g}, batches of about {self.sampler.expected_batch_size:.6g}"),
            ("steps", f"{self.steps}, {self.steps * share_of_pass(self.sampler):.4g} epochs"),
            ("epsilon, certified", f"{self.certified:.6f} of {budget}"),
            ("epsilon, Rényi", f"{rounded_up(self.renyi_epsilon, '.6f')} for the same"),
            ("paid for overflow", f"{cut} of delta, batches of at most {self.sampler.capacity}"),
        ]
        if self.samples:
            cost = rounded_up(self.noise_delta, ".3g")
            rows.append(("paid for the noise", f"{cost} of delta, integers of a law that is known so closely"))
        if isinstance(self.sampler, Correlated):
            rows.append(("noise", self.sampler.noise))
        rows += [("beside the steps", query) for query in self.query_descriptions]
        return "\n".join(f"{name:<20}{value}" for name, value in rows)


@takes_python_values
def plan(
    draw: Drawn,
    delta: float,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    queries: tuple[SideQuery, ...] = (),
    samples: int = 0,
) -> Plan:
    """Returns the plan that two of epsilon, noise and steps leave: the least noise or epsilon, or the most steps.

    Args:
        draw: makes the sampler for an epsilon and a number of steps.
        delta: budget of the whole run; the cost of cut batches is taken off it first.
        epsilon: budget of the whole run.
        noise_multiplier: noise multiplier of every step.
        steps: number of steps of the whole run, at most 2^31 - 1.
        queries: releases other than the steps'.
        samples: integer noise values that one step draws at most, whose bill is taken off delta first, too; 0 for noise
            of float64.

    Formal guarantee: the plan is (epsilon, delta)-DP for the sampler's relation, wherever it stops (proof above). It
    rests on the last call, in which the certified accountant bounds what was found, and not on how that was found.

    Raises ValueError where there is no such plan: the noise pays for no step, has no finite epsilon, or cut batches
    cost all of delta.

    >>> sampler = PoissonSampler(60_000, 0.01, capacity=800)
    >>> plan(lambda epsilon, steps: sampler, 1e-5, epsilon=3.0, noise_multiplier=1.1).steps
    3712
    """
    if sum(value is None for value in (epsilon, noise_multiplier, steps)) > 1:
        raise ValueError(
            f"epsilon = {epsilon}, noise_multiplier = {noise_multiplier}, steps = {steps}: give two of them; the third "
            "follows."
        )
    # Relative margins, of more noise or fewer steps, tried in turn until the rounded plan is certified. Sound for any
    # values.
    margins = 0.0, 1e-4, 1e-3
    if epsilon is None:
        assert noise_multiplier is not None
        assert steps is not None
        epsilon, sampler = _least_epsilon(draw, delta, noise_multiplier, steps, queries, samples)
        tried = [(noise_multiplier, steps)]
    elif steps is None:
        assert noise_multiplier is not None
        most, sampler = _most_steps(draw, epsilon, delta, noise_multiplier, queries, samples)
        run = sampler.steps_per_run
        tried = [(noise_multiplier, max(math.floor(most / run / (1 + more)), 1) * run) for more in margins]
    else:
        sampler = draw(epsilon, steps)
        left = delta_left(sampler, steps, epsilon, delta, samples)
        least = _least_noise(sampler, epsilon, left, queries, steps)
        tried = [(_rounded_up(least * (1 + more)), steps) for more in margins]
    # One pass per margin: the first plan that the accountant certifies is the answer.
    for noise, count in tried:
        left = delta_left(sampler, count, epsilon, delta, samples)
        bounds = _certify(sampler, noise, count, epsilon, left, queries)
        if bounds is not None:
            return Plan(
                sampler=sampler, noise_multiplier=noise, steps=count, epsilon=epsilon, delta=delta, queries=queries,
                samples=samples, certified=bounds,
            )  # fmt: skip
    noise, count = tried[-1]
    raise ValueError(
        f"{count} steps at noise_multiplier = {noise:g} were not certified to cost at most epsilon = {epsilon:g} at "
        f"delta = {delta:g}: raise noise_multiplier or epsilon, or make fewer steps."
    )


def _least_epsilon(
    draw: Drawn, delta: float, noise: float, steps: int, queries: tuple[SideQuery, ...], samples: int
) -> tuple[float, Sampler]:
    """Returns the epsilon that the steps cost, and the sampler whose cut batches keep to their share of delta."""
    # Epsilon, the sampler's capacity and the cost of cut batches depend on each other: this reserves a share of delta
    # for the cost, and takes it if it suffices. A sampler made for the budget needs the first share only.
    # Sound for any shares below 1, for the cost is checked.
    ideal = draw(1.0, steps)
    for share in (2 * ALLOWANCE, 0.5):
        mechanisms, counts = composition_of(ideal, noise, steps, queries)
        bounds = jaxacct.epsilon(mechanisms, counts, delta * (1 - share), relation=ideal.relation)
        epsilon = _rounded_up(float(bounds.upper))
        if not math.isfinite(epsilon):
            raise ValueError(
                f"noise_multiplier = {noise:g} has no finite epsilon over {steps} steps at delta = {delta}: raise "
                "noise_multiplier, or give epsilon."
            )
        sampler = draw(epsilon, steps)
        drawn = noise_delta(samples * _count_covered(sampler, steps), epsilon, delta)
        if _overflow(sampler, steps, epsilon) + drawn < share * delta:
            # Both cost less than their share; the rest goes back to the mechanisms, whose epsilon then falls, and at a
            # smaller epsilon both cost no more.
            left = delta_left(sampler, steps, epsilon, delta, samples)
            bounds = jaxacct.epsilon(mechanisms, counts, left, relation=ideal.relation)
            return min(_rounded_up(float(bounds.upper)), epsilon), sampler
    raise ValueError(_overflow_message(delta, steps))


def _most_steps(
    draw: Drawn, epsilon: float, delta: float, noise: float, queries: tuple[SideQuery, ...], samples: int
) -> tuple[int, Sampler]:
    """Returns the most steps that epsilon and delta pay for, and the sampler for them."""
    ideal = draw(epsilon, 1)
    relation, run = ideal.relation, ideal.steps_per_run
    mechanisms, counts = composition_of(ideal, noise, run, queries)
    hopeless = isinstance(ideal, PoissonSampler) and least_delta_of_a_step(ideal.sampling_rate, noise, epsilon) >= delta
    if hopeless or not float(jaxacct.delta(mechanisms, counts, epsilon, relation=relation).upper) < delta:
        raise ValueError(
            f"noise_multiplier = {noise:g} at an expected batch size of {ideal.expected_batch_size:.3g} pays for no "
            f"step within (epsilon = {epsilon}, delta = {delta}): raise noise_multiplier or epsilon, or sample smaller "
            "batches."
        )

    @functools.cache  # both searches ask for many of the same runs
    def delta_at(runs: int) -> Bounds:
        mechanisms, counts = composition_of(ideal, noise, runs * run, queries)
        return jaxacct.delta(mechanisms, counts, epsilon, relation=relation)

    def most(left: float) -> int:
        runs = _most_runs(ideal, epsilon, left, queries, noise, delta_at)
        return int(min(runs, MOST_COUNT // run)) * run

    steps = most(delta)  # an upper bound: cut batches leave less of delta, hence no more steps
    sampler = draw(epsilon, steps)
    return most(delta_left(sampler, steps, epsilon, delta, samples)), sampler


def least_delta_of_a_step(rate: float, noise: float, epsilon: float) -> float:
    """Returns a lower bound on delta at ``epsilon`` of one step that samples with probability ``rate``.

    The bound is that of one event: the noisy sum is above 1/2, half the example's norm. Its probability is at least
    ``rate`` P(Z > -1/2s) with the example there, Z normal and s the noise, and at most P(Z > 1/2s) without, also where
    another that points away took its place. No delta is below what one event shows; the last factor is for roundings.

    >>> [f"{least_delta_of_a_step(0.25, noise, 1.0):.6f}" for noise in (0.0, 0.2, 1.0)]
    ['0.250000', '0.231568', '0.000000']
    """
    reach = 0.5 / noise / math.sqrt(2) if noise > 0 else math.inf
    missed = math.erfc(reach) / 2
    # The tail's logarithm is below -reach^2, which takes its place where the tail underflows.
    without = math.exp(min(epsilon + (math.log(missed) if missed > 0 else -(reach**2)), 0.0))
    return max((rate * (1 - missed) - without) * (1 - 1e-12), 0.0)


def _gaussian_of(sampler: Sampler) -> tuple[float, float, bool]:
    """Returns the noise and the rate of one run at noise multiplier 1, and whether it is a Gaussian, sampled or not.

    Otherwise they are those of Poisson sampling, with which the searches for other mechanisms begin.
    """
    at_one = sampler.mechanism(1.0)
    if not isinstance(at_one, (Gaussian, PoissonSubsampledGaussian)):
        return 1.0, min(sampler.expected_batch_size / sampler.num_examples, 1.0), False
    # Whatever is drawn, and however noise is correlated.
    rate = at_one.sampling_rate if isinstance(at_one, PoissonSubsampledGaussian) else 1.0
    return float(np.asarray(at_one.noise_multiplier)), float(np.asarray(rate)), True


def _most_runs(
    sampler: Sampler, epsilon: float, delta: float, queries: tuple[SideQuery, ...], noise: float,
    delta_at: Callable[[int], Bounds],
) -> float:  # fmt: skip
    """Returns the most runs of the sampler's mechanism that a noise multiplier pays for; ``delta_at`` is their cost."""
    unit, rate, is_gaussian = _gaussian_of(sampler)
    if is_gaussian and not queries:
        return float(calibrate.steps(epsilon, delta, noise * unit, rate, relation=sampler.relation).value)
    guess = float(calibrate.steps(epsilon, delta, noise * unit, rate).value) / sampler.steps_per_run
    return calibrate.most_certified(delta_at, delta, guess)


def _least_noise(sampler: Sampler, epsilon: float, delta: float, queries: tuple[SideQuery, ...], steps: int) -> float:
    """Returns the least noise multiplier for so many steps."""
    unit, rate, is_gaussian = _gaussian_of(sampler)
    if is_gaussian and not queries:
        runs = runs_of(sampler, steps)
        return float(calibrate.noise_multiplier(epsilon, delta, rate, runs, relation=sampler.relation).value) / unit
    # From a noise multiplier of .01 at least, to within 3e-4 of the logarithm of the budget. Sound for any values, for
    # the result is certified afterwards; wider ones cost tightness.
    start = math.log(max(float(calibrate.noise_multiplier(epsilon, delta, rate, steps).value) / unit, 1e-2))

    def cost(u: float) -> float:
        mechanisms, counts = composition_of(sampler, math.exp(u), steps, queries)
        return float(jaxacct.epsilon(mechanisms, counts, delta, relation=sampler.relation).upper) / epsilon

    return math.exp(least_by_secants(cost, start, close=3e-4, rounds=15))


def _certify(
    sampler: Sampler, noise: float, steps: int, epsilon: float, left: float, queries: tuple[SideQuery, ...]
) -> Bounds | None:
    """Returns bounds on the epsilon of the plan at ``left``; None where ``epsilon`` is not certified.

    Delta at ``epsilon`` and epsilon at delta are bounded separately, each up to its own rounding: either certificate is
    enough, and bounds the other as well.
    """
    mechanisms, counts = composition_of(sampler, noise, steps, queries)
    bounds = jaxacct.epsilon(mechanisms, counts, left, relation=sampler.relation)
    if not float(bounds.upper) <= epsilon:
        at_epsilon = jaxacct.delta(mechanisms, counts, epsilon, relation=sampler.relation)
        if not float(at_epsilon.upper) <= left:
            return None
    upper, made, steps_ended = min(float(bounds.upper), epsilon), bounds, whole_steps_of(sampler, steps)
    if steps_ended < steps:
        mechanisms, counts = composition_of(sampler, noise, steps_ended, queries)
        made = jaxacct.epsilon(mechanisms, counts, left, relation=sampler.relation)
    lower = min(float(made.lower), upper)
    return Bounds(lower, float(np.clip(bounds.estimate, lower, upper)), upper, bool(bounds.converged))


def composition_of(sampler: Sampler, noise: float, steps: int, queries: tuple[SideQuery, ...]) -> tuple[Any, Any]:
    """Returns the mechanisms of the first steps, and how often each is run; without queries, one and its number."""
    mechanism, runs = sampler.mechanism(noise), runs_of(sampler, steps)
    if not queries:
        return mechanism, runs
    return (mechanism, *(query.mechanism for query in queries)), (runs, *(query.count(steps) for query in queries))


def share_of_pass(sampler: Sampler) -> float:
    """Returns which part of an expected pass over the data a step is: of shuffled data each has equally many steps.

    >>> from jaxacct.train.sampling import ShuffledSampler
    >>> share_of_pass(ShuffledSampler(num_examples=10, batch_size=6)), share_of_pass(PoissonSampler(10, 0.5, 11))
    (0.5, 0.5)
    """
    if isinstance(drawn_by(sampler), ShuffledSampler):
        return 1 / drawn_by(sampler).steps_per_run
    return sampler.expected_batch_size / sampler.num_examples


def whole_steps_of(sampler: Sampler, steps: int) -> int:
    """Returns how many of the first steps make whole runs of the sampler's mechanism: a lower bound counts no others.

    An upper bound counts the run that has begun as a whole one (:func:`.runs_of`).

    >>> from jaxacct.train.sampling import RandomAllocationSampler
    >>> whole_steps_of(RandomAllocationSampler(num_examples=10, batches=4, capacity=11), 11)
    8
    """
    if isinstance(sampler, Correlated) and not sampler.is_sampled:  # the first rows make a mechanism of their own
        return steps
    return steps - steps % sampler.steps_per_run


def _overflow(sampler: Sampler, steps: int, epsilon: float) -> float:
    """Returns what cut batches cost over all the steps that the plan's runs cover."""
    return sampler.overflow_delta(_count_covered(sampler, steps), epsilon)


def _count_covered(sampler: Sampler, steps: int) -> int:
    """Returns the number of steps that the plan's runs cover: no more can be made."""
    return runs_of(sampler, steps) * sampler.steps_per_run


def delta_left(sampler: Sampler, steps: int, epsilon: float, delta: float, samples: int = 0) -> float:
    """Returns what is left of ``delta`` once batches cut in so many steps, and integer noise, are paid for.

    ``samples``: integer noise values that one step draws at most.

    Raises ValueError where nothing is, or integer noise takes more than a hundredth.
    """
    drawn = noise_delta(samples * _count_covered(sampler, steps), epsilon, delta)
    left = math.nextafter(delta - (_overflow(sampler, steps, epsilon) + drawn) * (1 + 2.0**-50), 0.0)
    if left <= 0:
        raise ValueError(_overflow_message(delta, steps))
    return left


def _overflow_message(delta: float, steps: int) -> str:
    return (
        f"sampler cuts batches so often that they cost all of delta = {delta} over {steps} steps: give it a larger "
        "capacity."
    )


def _rounded_up(value: float) -> float:
    """Returns a number of six significant digits that is not below the given one.

    So a run that is taken up again on another machine, whose accountant rounds differently in the last place, has the
    same plan. Sound for any number of digits; six cost less than 2e-5 of epsilon.
    """
    return float(rounded_up(value, ".6g"))
