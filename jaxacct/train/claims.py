"""What a finished run may claim: certified bounds for its realized steps, and the words that say when they hold."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct
from jaxacct.bounds import Bounds
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.mechanisms.records import KINDS, record_of
from jaxacct.outward import rounded_up
from jaxacct.policies import Constant
from jaxacct.train.datasets.by_user import LossOfUser
from jaxacct.train.keys import ENTROPY
from jaxacct.train.sampling import Correlated, PoissonSampler, runs_of
from jaxacct.train.sampling.correlated import drawn_by
from jaxacct.train.trainer import DPTrainer


def certified_epsilon(trainer: DPTrainer) -> Bounds:
    """Returns certified bounds on the epsilon of a trainer's run so far, at its delta.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars; zeros before the first step.

    Formal guarantee: ``upper`` holds for the sampler's relation, for settings that were fixed before training. It is
    that of the steps made, for a stopping time that depends on the settings alone
    (:attr:`~jaxacct.train.trainer.DPTrainer.stopping_was_planned`). Of a run that ended otherwise it is what holds even
    if what was released decided on the end: the epsilon of the whole plan (:mod:`jaxacct.train.planned`), a filter's
    budget, an odometer's reading; ``lower`` is that of the steps made. Batches cut at capacity are paid for on both
    sides: ``upper`` is computed at delta less their cost, ``lower`` at delta plus it. ``lower`` bounds the epsilon of
    the worst gradients, not of those that occurred.

    Raises ValueError for an adaptive policy: its settings were chosen from results, and no composition of what they
    happened to be bounds their privacy loss. The ledger does (:attr:`~jaxacct.train.trainer.DPTrainer.spent_epsilon`).

    >>> import optax
    >>> from flax import nnx
    >>> trainer = DPTrainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), lambda m, x: jnp.sum(m(x) ** 2), optax.sgd(0.1),
    ...                     (np.ones((100, 1), np.float32),), epsilon=2.0, delta=1e-3, noise_multiplier=4.0,
    ...                     expected_batch_size=20, clip_norm=1.0)
    >>> _ = trainer.fit(steps=2)
    >>> bounds = certified_epsilon(trainer)
    >>> bool(0 < bounds.lower <= bounds.upper <= trainer.spent_epsilon)
    True
    """
    if trainer.policy.adaptive:
        raise ValueError(
            f"policy = {type(trainer.policy).__name__} chose its settings from results: the certified epsilon of the "
            "non-adaptive composition does not apply. Use the ledger's: trainer.spent_epsilon, or the budget."
        )
    lost = trainer.progress.lost_steps
    if trainer.plan is None and lost:
        raise ValueError(
            f"an interruption lost {lost} updates, which may have been released and stay paid for: the epsilon of "
            "those that were kept is too small. Use the ledger's: trainer.spent_epsilon, or the budget."
        )
    made = epsilon_after(trainer, trainer.steps)
    if trainer.steps + lost == 0 or (trainer.stopping_was_planned and not lost):
        return made
    if trainer.plan is not None:
        whole = trainer.plan.certified
        return Bounds(lower=made.lower, estimate=whole.estimate, upper=whole.upper, converged=whole.converged)
    upper = trainer.spent_epsilon if trainer.ledger_kind == "odometer" else trainer.epsilon
    return Bounds(lower=min(float(made.lower), upper), estimate=upper, upper=upper, converged=False)


def epsilon_after(trainer: DPTrainer, steps: int) -> Bounds:
    """Returns :func:`certified_epsilon` of the first ``steps`` steps, of a trainer whose settings were fixed before."""
    mechanism, counts = _composition(trainer, steps)
    relation = trainer.sampler.relation
    left = trainer.delta_after_overflow
    above = jaxacct.epsilon(mechanism, counts, delta=left, relation=relation)
    if trainer.plan is not None:  # what is certified of all its steps is certified of some
        upper = min(float(above.upper), float(trainer.plan.certified.upper))
        above = Bounds(min(float(above.lower), upper), min(float(above.estimate), upper), upper, above.converged)
    cost = trainer.sampler.overflow_delta(steps, trainer.epsilon)
    queries = () if trainer.plan is None else trainer.plan.queries
    if cost == 0.0 and not queries:
        return above
    more = math.nextafter(trainer.delta + cost, 1.0)
    if queries:  # they may not have been asked
        mechanism, counts = mechanism[0], counts[0]
    below = jaxacct.epsilon(mechanism, counts, delta=more, relation=relation)
    return Bounds(lower=below.lower, estimate=above.estimate, upper=above.upper)


def epsilon_so_far(trainer: DPTrainer, steps: int) -> float | None:
    """Returns what the first ``steps`` steps of a planned run cost, had it been planned to end with them.

    To be shown beside the plan's epsilon, which is what holds if results decide on the end. None where there is no
    plan, whose ledger then tells what is spent; and of correlated noise, of which steps have no cost of their own. Six
    digits, rounded up: what is shown of one run is the same however often it was asked.
    """
    if trainer.plan is None or isinstance(trainer.sampler, Correlated):
        return None
    mechanism, counts = _composition(trainer, steps)
    made = jaxacct.epsilon(mechanism, counts, trainer.delta_after_overflow, relation=trainer.sampler.relation).upper
    return float(rounded_up(min(float(made), float(trainer.plan.certified.upper))))


def renyi_epsilon(trainer: DPTrainer) -> float:
    """Returns the epsilon of a trainer's run so far by Rényi divergences: the ledger's, or that of a planned run.

    Formal guarantee: an upper bound, for planned runs of what :func:`certified_epsilon` speaks of.
    """
    if trainer.plan is None:
        return trainer.spent_epsilon
    made = trainer.steps + trainer.progress.lost_steps
    return trainer.plan.renyi_epsilon_after(made if trainer.stopping_was_planned or not made else trainer.plan.steps)


def composition(trainer: DPTrainer) -> dict[str, Any] | None:
    """Returns what the certified epsilon is of, for JSON.

    None where nothing that was fixed before bounds the run, or a mechanism of the user's own is in it, which no JSON
    holds.

    ``mechanisms`` and ``steps`` are of the steps made where their number was fixed before, else of the whole plan;
    ``cut_probability`` bounds the probability that a batch of theirs was cut, or that what was drawn is another law's.
    """
    if trainer.policy.adaptive or (trainer.plan is None and not trainer.stopping_was_planned):
        return None
    whole = trainer.plan is not None and (not trainer.stopping_was_planned or trainer.progress.lost_steps > 0)
    steps = trainer.plan.steps if whole and trainer.plan is not None else trainer.steps
    mechanisms, counts = _composition(trainer, steps)
    parts, times = (mechanisms, counts) if isinstance(mechanisms, tuple) else ((mechanisms,), (counts,))
    if any(KINDS.get(type(part).__name__) is not type(part) for part in parts):
        return None
    runs = runs_of(trainer.sampler, steps) * trainer.sampler.steps_per_run
    return {
        "mechanisms": [record_of(part) for part in parts],
        "steps": [np.asarray(count).tolist() for count in times],
        "relation": trainer.sampler.relation,
        # What they cost of delta at an epsilon is 1 + e^epsilon times the probability.
        "cut_probability": math.nextafter(trainer.sampler.overflow_delta(runs, 0.0) / 2, 1.0) if runs else 0.0,
    }


def _composition(trainer: DPTrainer, steps: int) -> tuple[Any, Any]:
    """Returns the mechanisms of the first steps, and how often each of them ran."""
    if trainer.plan is not None:
        return trainer.plan.composition(steps)
    if isinstance(trainer.policy, Constant):
        return trainer.mechanism, runs_of(trainer.sampler, steps)
    setting, state = trainer.program.setting, trainer.state.policy
    noises = jax.vmap(lambda step: setting(state, step).noise_multiplier)(jnp.arange(max(steps, 1)))
    distinct, counts = np.unique(np.asarray(noises, np.float64), return_counts=True)
    rates = np.full(len(distinct), trainer.sampler.sampling_rate)
    return PoissonSubsampledGaussian(distinct, rates), counts if steps else np.zeros_like(counts)


BOOKS = {"menu": "menu filter", "filter": "Rényi filter", "odometer": "odometer"}

RELATIONS = {
    "add_or_remove": "{unit} added or removed",
    "replace": "{unit} replaced by another",
}

BATCHES = {
    "PoissonSampler": "Poisson sampled; those cut at capacity are paid for in delta",
    "TruncatedPoissonSampler": "Poisson sampled and cut at random, which the mechanism counts",
    "WithoutReplacementSampler": "of fixed size, drawn without replacement",
    "CyclicPoissonSampler": "Poisson sampled from groups that take turns; those cut at capacity are paid for in delta",
    "RandomAllocationSampler": "by random allocation, each example in equally many batches of every epoch",
}


def unit_of(trainer: DPTrainer) -> str:
    """Returns in words whose privacy the guarantee speaks of: that of one example of the data, or of one user."""
    return "one user with all its examples" if isinstance(trainer.program.loss.loss, LossOfUser) else "one example"


def _number_of(trainer: DPTrainer) -> str:
    """Returns in words what is told of the number of examples, by which sums and rates are made."""
    size = trainer.sampler.num_examples
    if isinstance(trainer.sampler, PoissonSampler) and trainer.sampler.present is not None:
        return f" How many there are is protected, too: at most {size}, a number taken to be chosen without looking."
    return f" How many there are, {size}, is taken as public." if trainer.sampler.relation != "replace" else ""


def guarantee(trainer: DPTrainer) -> str:
    """Returns, in words, which of the run's epsilons holds and why, for which neighbours and which batches.

    The certified one where noise, rate and stopping time were fixed before training: of the steps made, or of a plan
    that ended otherwise. Elsewhere that of the ledger, a filter's budget or an odometer's running bound
    (:mod:`jaxacct.filters`, :mod:`jaxacct.odometers`). It is what
    :func:`~jaxacct.train.build_report` puts into a report.
    """
    odometer, book = trainer.ledger_kind == "odometer", BOOKS.get(trainer.ledger_kind or "", "plan")
    if trainer.plan is not None and not trainer.stopping_was_planned:
        text = (
            f"The noise multiplier, the sampling rate and at most {trainer.plan.steps} steps were fixed "
            "before training. What was released is a part of what that plan releases, so the plan's certified "
            "epsilon holds, even if what was seen of the model decided when to stop."
        )
    elif trainer.stopping_was_planned:
        text = (
            "The noise multiplier and the sampling rate were fixed before training and the stopping time depends only "
            "on them, so the certified epsilon of the non-adaptive composition holds for the realized number of steps. "
        )
        text += (
            f"That of the whole plan, {rounded_up(trainer.epsilon)}, would hold even if the model had decided when to "
            "stop."
            if trainer.plan is not None
            else f"The {book}'s epsilon would also hold had they been chosen adaptively."
        )
    else:
        why = (
            f"The policy {type(trainer.policy).__name__} chose settings from what was released."
            if trainer.policy.adaptive
            else "Training was interrupted or continued, so its length may depend on what was seen of the model."
        )
        text = f"{why} The certified epsilon of the non-adaptive composition does not apply. "
        text += (
            "The odometer's epsilon of the steps made holds, whenever and why ever training stopped."
            if odometer
            else f"The {book}'s budget, epsilon = {rounded_up(trainer.epsilon)}, holds however everything was chosen."
        )
    if trainer.plan is not None and trainer.plan.queries:
        text += f" What the plan pays for beside the steps is included: {', '.join(trainer.plan.beside)}."
    sampler = type(drawn_by(trainer.sampler)).__name__
    text += (
        f" Neighbours: {RELATIONS[trainer.sampler.relation].format(unit=unit_of(trainer))}.{_number_of(trainer)}"
        f" Batches: {BATCHES.get(sampler, f'drawn by {sampler}')}."
    )
    if isinstance(trainer.sampler, Correlated):
        text += f" Noise: {trainer.sampler.noise}, fixed before training."
    if trainer.seed != ENTROPY:
        text += " The random seed was given by the user: the guarantee holds only against those who do not know it."
    return text
