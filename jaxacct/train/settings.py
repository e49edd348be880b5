"""Settings of a run: from a budget, a policy, batches and a clipping rule as given to what the trainer works with.

Each function checks one of them and fills in what is open. :func:`spending`, the second part, chooses the ledger and
the sampler, and solves for the third where a plan is given two of epsilon, noise multiplier and length.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxacct import validation
from jaxacct.filters import RenyiFilter
from jaxacct.menus.menu import Items
from jaxacct.outward import steps_of
from jaxacct.policies import Constant, FinitePolicy, Policy
from jaxacct.strategies import CyclicPoisson, Strategy
from jaxacct.train.clipping import ClippingRule, Flat
from jaxacct.train.clipping.rules import check_finite_clip_norm
from jaxacct.train.groups import Batches, Budget, Ledger, check_one
from jaxacct.train.metrics import Metrics
from jaxacct.train.owned import owned_settings
from jaxacct.train.planned import Plan, SideQuery, plan
from jaxacct.train.sampling import Correlated, CyclicPoissonSampler, PoissonSampler
from jaxacct.train.sampling.correlated import separating
from jaxacct.validation import MOST_COUNT

MOST_STEPS = 10**6
"""Number of steps over which cut batches are paid for where the run's length is not known before. Sound for any value,
for such a run ends after as many (:attr:`.DPTrainer.horizon`); a larger one costs capacity, or delta."""


def affordable_steps(
    num_examples: int, sampling_rate: float, noise_multiplier: float, *, epsilon: float, delta: float
) -> int:
    """Returns the most steps that a Rényi filter over (epsilon, delta) grants; a run may stop a few earlier.

    Known before training, from public numbers: for learning-rate schedules. A run stops earlier because batches that
    are cut at capacity cost some of its delta.

    >>> affordable_steps(60_000, 0.01, 1.0, epsilon=3.0, delta=1e-5) > 1500
    True
    """
    # A sampler with room for everyone: the capacity of the run's own depends on the number of steps, which is sought.
    mechanism = PoissonSampler(num_examples, sampling_rate, num_examples + 1).mechanism(noise_multiplier)
    return int(RenyiFilter(epsilon, delta).remaining(mechanism))


def rate_of(sampling_rate: float | None, expected_batch_size: float | None, size: int) -> float:
    """Returns the sampling rate that exactly one of the two gives, for a data set of ``size`` examples.

    Raises ValueError where both or none are given, or the one is out of range.

    >>> rate_of(None, 50, 200)
    0.25
    """
    if (sampling_rate is None) == (expected_batch_size is None):
        raise ValueError("give exactly one of sampling_rate and expected_batch_size.")
    if sampling_rate is not None:
        validation.check_sampling_rate(sampling_rate)
        return float(sampling_rate)
    assert expected_batch_size is not None
    validation.check_number(expected_batch_size, "expected_batch_size")
    if not 0 < expected_batch_size <= size:
        raise ValueError(
            f"expected_batch_size = {expected_batch_size} does not fit {size} examples: give a number above 0, at most "
            f"{size}."
        )
    return expected_batch_size / size


def policy_of(policy: Policy | None, noise: float | None, batches: Batches, size: int) -> Policy:
    """Returns the policy that the settings make; raises ValueError where they say too little or too much.

    Where a plan will solve for the noise, the policy's noise multiplier is 1.
    """
    sampler, rate, batch = batches.sampler, batches.sampling_rate, batches.expected_batch_size
    if policy is not None:
        if noise is not None:
            raise ValueError("give exactly one of noise_multiplier and policy.")
        if sampler is not None or rate is not None or batch is not None:
            raise ValueError("policy has its own sampling rate: leave out sampling_rate, expected_batch_size, sampler.")
        planned = getattr(policy, "num_examples", size)
        if planned != size:
            raise ValueError(
                f"policy is for num_examples = {planned}, and {size} were planned for: its rates would be others."
            )
        if isinstance(policy, Constant):
            return Constant(float(policy.noise_multiplier), float(policy.sampling_rate))
        return owned_settings(policy, "policy")
    noise = 1.0 if noise is None else noise
    validation.check_noise_multiplier(noise)
    if sampler is None:
        return Constant(float(noise), rate_of(rate, batch, size))
    if rate is not None or batch is not None:
        raise ValueError("sampler has its own batch size: leave out sampling_rate and expected_batch_size.")
    return Constant(float(noise), min(sampler.expected_batch_size / sampler.num_examples, 1.0))


def rule_of(clip_norm: float | None, clipping: ClippingRule | None) -> ClippingRule:
    """Returns the clipping rule that exactly one of the two gives; raises ValueError otherwise."""
    if (clip_norm is None) == (clipping is None):
        raise ValueError("give exactly one of clip_norm and clipping.")
    if clipping is not None:
        if not isinstance(clipping, ClippingRule):
            raise TypeError(f"clipping is a {type(clipping).__name__}: give a rule of jaxacct.train.clipping.")
        return clipping
    assert clip_norm is not None
    check_one(clip_norm, "clip_norm")
    check_finite_clip_norm(clip_norm)
    return Flat(float(clip_norm))


def gradient_noise(
    policy: Policy, rule: ClippingRule, metrics: Metrics | None = None, strategy: Strategy | None = None
) -> float | None:
    """Returns the noise multiplier of the gradients under a constant policy; None under others.

    Raises ValueError where a step pays for something else as well, and the noise is not constant or not independent.
    """
    shares = type(rule).gradient_noise_multiplier is not ClippingRule.gradient_noise_multiplier
    if strategy is not None and (shares or metrics is not None):
        name = f"clipping = {type(rule).__name__}" if shares else "metrics"
        raise ValueError(f"{name} takes a share of independent noise: leave it out, or leave noise out.")
    if isinstance(policy, Constant):
        noise = policy.noise_multiplier
        return rule.gradient_noise_multiplier(noise if metrics is None else metrics.gradient_noise_multiplier(noise))
    if metrics is not None:
        raise ValueError("metrics take their share of a constant noise: leave policy out.")
    if shares:
        raise ValueError(f"clipping = {type(rule).__name__} takes its share of a constant noise: leave policy out.")
    return None


def poisson_sampler(size: int, policy: Policy, epsilon: float, delta: float, *, known_length: bool) -> PoissonSampler:
    """Returns the sampler at the policy's largest rate, cut for the steps that constant noise pays for, if it is that.

    ``known_length``: whether the ledger ends a run of constant noise after those; otherwise it is cut for the most.
    """
    _, rate = policy.sampling_rates
    steps = MOST_STEPS
    if isinstance(policy, Constant) and known_length:
        steps = affordable_steps(size, rate, policy.noise_multiplier, epsilon=epsilon, delta=delta)
    return PoissonSampler.for_budget(size, rate, epsilon=epsilon, delta=delta, steps=max(steps, 1))


def check_params(params: Any) -> None:
    """Raises where there are no trained parameters, or some are not of a real floating-point dtype."""
    leaves = jax.tree.leaves(params)
    if not leaves or not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        raise ValueError(
            f"model has parameters of dtypes {sorted({str(leaf.dtype) for leaf in leaves})}: it needs nnx.Param "
            "leaves, all of a real floating-point dtype."
        )


# ----------------------------------------------------------------------------------------------------
# Spending of a run: two of epsilon, noise and length make a plan; other settings have their ledger's budget.
# ----------------------------------------------------------------------------------------------------


class Spending(NamedTuple):
    """The spending of a run: the budget with nothing left open, policy, sampler, and plan if any."""

    budget: Budget
    policy: Policy
    sampler: Any
    plan: Plan | None


def spending(
    budget: Budget,
    policy: Policy | None,
    noise: float | None,
    batches: Batches,
    size: int,
    strategy: Strategy | None = None,
) -> Spending:
    """Returns what a run on ``size`` examples spends; solves for what a plan leaves open.

    ``strategy`` correlates its noise.

    Raises ValueError or TypeError where too little or too much is given.

    >>> made = spending(Budget(1.0, 1e-3, epochs=2), None, None, Batches(sampling_rate=0.1), 200)
    >>> made.budget.ledger, made.plan.steps, made.policy.noise_multiplier == made.plan.noise_multiplier
    ('planned', 20, True)
    """
    present, size = size, batches.size_for(size)
    if strategy is not None and batches.most_examples is not None:
        raise ValueError(f"most_examples = {size} and noise are both given: correlated noise takes the size as public.")
    # The ledger: the one asked for, else a menu for finitely many choices, a plan for constant settings, a filter else.
    chosen = policy_of(policy, noise, batches, size)
    constant = isinstance(chosen, Constant)
    of_policy = isinstance(chosen, FinitePolicy) and bool(chosen.choices)
    usual: Ledger = "menu" if budget.menu or (of_policy and not constant) else "planned" if constant else "filter"
    ledger = budget.ledger or usual
    if ledger == "menu" and not (budget.menu or of_policy):
        raise ValueError(
            f"ledger = 'menu', and {type(chosen).__name__} does not say among which settings it chooses: give "
            "menu=(...), mechanisms that dominate them, or ledger='filter'."
        )
    budget = dataclasses.replace(budget, ledger=ledger)
    has_length = budget.steps is not None or budget.epochs is not None
    length = f"epochs = {budget.epochs}" if budget.steps is None else f"steps = {budget.steps}"
    has_noise = noise is not None or policy is not None
    if budget.epsilon is None and (ledger != "planned" or not has_length or not has_noise):
        raise TypeError(
            "epsilon missing: give budget=Budget(...), or by itself; or else, for a planned run of constant noise, "
            "noise_multiplier with epochs or steps."
        )
    if not has_noise and (ledger != "planned" or not has_length):
        raise ValueError(
            "give exactly one of noise_multiplier and policy; or else, for a planned run of constant noise, epsilon "
            "with epochs or steps."
        )
    sampler: Any = owned_settings(batches.sampler, "sampler")
    if isinstance(sampler, Correlated):  # such as another trainer's: by itself it would not correlate any noise
        raise ValueError(
            "sampler is a Correlated, which says what is accounted and draws no noise: give the trainer its batches as "
            "sampler and its strategy as noise."
        )
    if strategy is not None:
        _check_correlated(strategy, chosen, sampler, ledger, is_open=ledger != "planned" or not has_length)
    # Ledgers that are not planned end the run by themselves; their sampler is cut for the longest run they may grant.
    if ledger != "planned":
        assert budget.epsilon is not None
        if budget.queries:
            raise ValueError(
                f"queries = {budget.queries} are of a planned run, and the ledger is {ledger!r}: leave them out, and "
                "spend them from the ledger of what releases them."
            )
        if has_length:
            raise ValueError(
                f"{length} is of a planned run, and the ledger is {ledger!r}: leave it out, and give fit its steps."
            )
        sampler = sampler or poisson_sampler(
            size, chosen, budget.epsilon, budget.delta, known_length=ledger == "filter"
        )
        if strategy is not None:
            sampler = Correlated(sampler, strategy, MOST_STEPS)
        if batches.most_examples is not None:
            sampler = dataclasses.replace(sampler, present=present)
        return Spending(budget, chosen, sampler, None)
    # A plan: exactly two of epsilon, noise and length.
    if not isinstance(chosen, Constant):
        raise ValueError(
            f"ledger = 'planned' and policy = {type(chosen).__name__}: what is chosen on the way is not planned; give "
            "ledger='menu', 'filter' or 'odometer'."
        )
    if budget.epsilon is not None and has_noise and has_length:
        raise ValueError(
            f"epsilon = {budget.epsilon}, noise_multiplier = {chosen.noise_multiplier:g} and {length} are all "
            "given, and any two of them fix the third: leave one out; or give ledger='filter' and fit its steps."
        )
    rate = chosen.sampling_rate
    steps = budget.steps if budget.epochs is None else steps_of(budget.epochs, rate)
    if steps is not None and steps > MOST_COUNT:
        raise ValueError(f"{length} are {steps:.3g} steps at a sampling rate of {rate:.3g}: plan at most {MOST_COUNT}.")

    # Plain numbers, so that an equal plan is found in the cache.
    noise = float(chosen.noise_multiplier) if has_noise else None
    steps = None if steps is None else int(steps)
    solve = _planned if sampler or strategy or budget.queries else _planned_once
    made = solve(sampler, strategy, size, budget.queries, float(rate), budget.delta, budget.epsilon, noise, steps)
    if batches.most_examples is not None:
        drawn: Any = made.sampler
        made = dataclasses.replace(made, sampler=dataclasses.replace(drawn, present=present))
    budget = dataclasses.replace(budget, epsilon=made.epsilon)
    return Spending(budget, Constant(made.noise_multiplier, rate), made.sampler, made)


def _check_correlated(strategy: Strategy, policy: Policy, sampler: Any, ledger: Ledger, *, is_open: bool) -> None:
    """Raises where correlated noise has no account with a policy, a sampler, a ledger, or a length that is open."""
    if not isinstance(strategy, Strategy):
        raise TypeError(f"noise = {strategy!r} is no strategy: give one of jaxacct.strategies, such as square_root(8).")
    if not isinstance(policy, Constant):
        raise ValueError(
            f"policy = {type(policy).__name__} and noise are both given: correlated noise is accounted for settings "
            "that are fixed before the first step. Give a noise_multiplier or epochs, or leave noise out."
        )
    if sampler is None:
        if ledger != "planned":
            raise ValueError(f"noise is given, and the ledger is {ledger!r}: give sampler=CyclicPoissonSampler(...).")
        return
    bands = strategy.bands(MOST_STEPS)
    if is_open and not isinstance(separating(sampler).participation(1, bands), CyclicPoisson):
        raise ValueError(
            "noise without amplification is one mechanism from the first step to the last, whose number it has to "
            "know: give steps or epochs, with epsilon or noise_multiplier, and no other ledger than 'planned'."
        )


def _planned(
    sampler: Any, strategy: Strategy | None, size: int, queries: tuple[SideQuery, ...], rate: float, delta: float,
    epsilon: float | None, noise: float | None, steps: int | None,
) -> Plan:  # fmt: skip
    """Returns the plan for the sampler that is given, or a Poisson sampler at that rate; cyclic for a strategy."""

    # The sampler for an epsilon and a length; with a strategy, one group for each band, or the sampler given.
    def draw(epsilon: float, steps: int) -> Any:
        if strategy is None:
            return sampler or PoissonSampler.for_budget(size, rate, epsilon=epsilon, delta=delta, steps=steps)
        groups = strategy.bands(MOST_COUNT)
        if sampler is None and groups * rate > 1:
            raise ValueError(
                f"noise has {groups} bands, and batches are {rate:.3g} of the data: more than one of as many groups. "
                "Give fewer bands or smaller batches; or a sampler, which need not amplify: CyclicPoissonSampler at "
                "rate 1, or RandomAllocationSampler."
            )
        cyclic = sampler or CyclicPoissonSampler.for_budget(
            size, groups, groups * rate, epsilon=epsilon, delta=delta, steps=steps
        )
        return Correlated(cyclic, strategy, steps)

    return plan(draw, delta, epsilon=epsilon, noise_multiplier=noise, steps=steps, queries=queries)


_planned_once = functools.lru_cache(maxsize=64, typed=True)(_planned)
""":func:`_planned` with a cache, for plans of numbers alone: trainers that differ in their seeds, or one that takes a
run up again, solve theirs once."""


def items_of(budget: Budget, policy: Policy, sampler: Any) -> Items:
    """Returns the menu that is given, or a menu of the settings that a policy chooses among, with its query."""
    if budget.menu:
        return budget.menu
    assert isinstance(policy, FinitePolicy)
    varies = isinstance(sampler, PoissonSampler) and len({rate for _, rate in policy.choices}) > 1
    steps = [
        sampler.mechanism_at(noise, rate) if varies else sampler.mechanism(noise) for noise, rate in policy.choices
    ]
    return (*steps, *([policy.query] if policy.query is not None else []))
