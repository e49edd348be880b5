"""A private search for the best settings of a training, whose cost is part of the budget.

A random number of trainings, each with a setting drawn at random, is a single mechanism if only the best of them is
seen: what it costs follows from the privacy profile of one training and the law of their number
(:class:`jaxacct.RepeatAndSelect`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from flax import nnx

from jaxacct import validation
from jaxacct.bounds import Bounds
from jaxacct.calibrate.targets import least_noise
from jaxacct.display import rounded_down, rounded_up
from jaxacct.mechanisms import Mechanisms, Steps
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.selection import DRAWING, Trials
from jaxacct.train.integer_noise import noise_delta
from jaxacct.train.keys import ENTROPY
from jaxacct.train.planned import Plan, composition_of
from jaxacct.train.progress import score_of
from jaxacct.train.report import RELATIONS, unit_of
from jaxacct.train.trainer import DPTrainer

Setting = TypeVar("Setting")
"""Type of a setting, in any form that ``make`` takes."""

SHARE = 1e-3
"""Share of delta for cut batches and integer noise. Sound for any value in (0, 1/2), as each run's cost is checked."""


@dataclass(frozen=True)
class Tuned(Generic[Setting]):
    """The release of a search. Nothing of the other runs is kept.

    Attributes:
        setting: the winner's; None where the law drew no trial at all.
        model: the winner, as trained.
        score: the winner's score; -inf where every run failed.
        noise_multiplier: noise multiplier of every run.
        certified: bounds on the epsilon of the whole search, at ``delta`` less what cut batches, integer
            noise and the drawing of trials may cost.
        delta: the budget.
        certificate: the statement to publish, as plain values for :func:`~jaxacct.train.write_report`: the law of the
            number of trials and not the number, the total, and in words what it holds for.
    """

    setting: Setting | None
    model: nnx.Module | None = field(repr=False)
    score: float | None
    noise_multiplier: float
    certified: Bounds
    delta: float
    certificate: dict[str, Any] = field(repr=False)


@takes_python_values
def tune(
    make: Callable[..., DPTrainer],
    space: Sequence[Setting],
    score: Callable[[nnx.Module], float],
    *,
    trials: Trials,
    epsilon: float,
    delta: float,
) -> Tuned[Setting]:
    """Trains with settings drawn at random, and returns the best model; the whole search is (epsilon, delta)-DP.

    Args:
        make: ``make(setting, noise_multiplier=..., delta=...)`` returns a :class:`DPTrainer` that is planned: it passes
            both on, with ``steps`` or ``epochs`` and the batches, the same for all settings, and no ``seed``.
        space: the settings, from which each trial draws one, all with equal probabilities: learning rates, clipping
            norms, models, in any form that ``make`` takes. Public: chosen without looking at the data.
        score: ``score(model)``, a number, the higher the better, of the model and public examples alone. Validation
            examples that were split off the private data are private: a score on them needs noise of its own, which is
            then a :class:`.SideQuery` of every run; without it there is no guarantee.
        trials: law of the number of runs (:mod:`jaxacct.selection`). More of them cost little. A law that varies less
            costs more, and finds more: :func:`jaxacct.calibrate.most_trials` weighs that.
        epsilon: budget of all runs together, above 0.
        delta: budget of all runs together, in (0, 1).

    Returns:
        :class:`Tuned`. The noise is the least with which the search keeps to the budget. A run in which nothing is
        learned any longer (FloatingPointError), or whose score is NaN, comes last.

    Formal guarantee: the result is (epsilon, delta)-DP for the sampler's relation, by the certified upper bound of
    :class:`jaxacct.RepeatAndSelect`, if it is all that anybody learns of the search: not how many runs there were, thus
    not how long it took, nor what ``make`` and ``score`` print. An interruption may tell that.

    Raises ValueError where an argument is out of range, settings differ in what a run costs, a trainer is not planned
    or has a seed, or no noise suffices; TypeError where ``trials`` is no law, or ``score`` gives no number, which the
    model of a trainer that has not trained shows; RuntimeError in a group of processes.

    Source: Papernot and Steinke (2022), "Hyperparameter tuning with Rényi differential privacy".

    ``docs/sweeps.md`` has a whole program, a search for a learning rate.
    """
    for name, function in (("make", make), ("score", score)):
        if not callable(function):
            raise TypeError(f"{name} = {function!r} is a {type(function).__name__}: give a function.")
    if not isinstance(trials, Trials):
        raise TypeError(f"trials = {trials!r} is no law: give one of jaxacct.selection, such as Geometric(10.0).")
    validation.check_positive(epsilon, "epsilon")
    validation.check_delta(delta)
    space = list(space)
    if not space:
        raise ValueError("space is empty: give at least one setting.")
    if jax.process_count() > 1:
        raise RuntimeError("tune was called in a group of processes, which would draw different trials: use one.")
    # Delta is divided: a share for cut batches and integer noise of all runs expected, the distance between the drawn
    # number of trials and its law, which counts 1 + e^epsilon times, and the rest for the mechanisms.
    mean = float(trials.mean)
    run_delta = SHARE * delta / mean
    drawing = DRAWING * math.ceil(mean / 1000) * (1 + math.exp(min(epsilon, 700.0)))
    if not drawing < delta / 2:
        raise ValueError(
            f"delta = {delta} at epsilon = {epsilon}: how the number of trials is drawn costs "
            f"{rounded_up(drawing, '.2g')} of it: give a larger delta, or a smaller epsilon."
        )
    left = delta * (1 - SHARE) - drawing
    one = _make_first(make, space[0], run_delta)
    first, unit = _plan(one), unit_of(one)
    # The model has seen no data: a score that is no number shows itself before anything is paid for.
    score_of(score(one.model), "score")
    del one

    def run(noise: float) -> tuple[Mechanisms, Steps]:
        return composition_of(first.sampler, noise, first.steps, first.queries)

    least = least_noise(run, trials, epsilon, left, first.sampler.relation, first.noise_multiplier)
    noise, costs = float(least.value), run(float(least.value))
    best: tuple[float, Setting, nnx.Module] | None = None
    # One run per trial, of settings drawn by the operating system's entropy; ``best`` is all that is kept of them. Each
    # run is checked to cost what was accounted, and a failed one counts as the worst instead of ending the search.
    for _ in range(trials.draw()):
        drawn = space[secrets.randbelow(len(space))]
        trainer = make(drawn, noise_multiplier=noise, delta=run_delta)
        _check_same(trainer, costs, drawn, epsilon, delta, mean)
        try:
            trainer.fit()
            reached = score_of(score(trainer.model), "score")
        except FloatingPointError:
            reached = -math.inf
        reached = -math.inf if math.isnan(reached) else reached
        if best is None or reached > best[0]:
            best = reached, drawn, trainer.model
        del trainer
    certificate = {
        "search": {"trials": str(trials), "settings": len(space), "steps": first.steps, "noise_multiplier": noise},
        "epsilon_certified": {"lower": float(least.reached.lower), "upper": float(least.reached.upper)},
        "budget": {"epsilon": float(epsilon), "delta": float(delta)},
        "guarantee": (
            "The best of a random number of runs, its setting and its score were released, and nothing of the others. "
            "All runs together are (epsilon, delta)-differentially private. Neighbours: "
            f"{RELATIONS[first.sampler.relation].format(unit=unit)}. The score is taken to depend on the model alone, "
            "and the number of runs and the time they took not to be known."
        ),
    }
    value, setting, model = (None, None, None) if best is None else best
    return Tuned(setting, model, value, noise, least.reached, delta, certificate)


def _make_first(make: Callable[..., DPTrainer], setting: Any, delta: float) -> DPTrainer:
    """Returns a trainer whose batches and steps are looked at; its noise is any for which it has a plan."""
    for noise in (1.0, 8.0):
        try:
            return make(setting, noise_multiplier=noise, delta=delta)
        except ValueError:  # an epsilon so large that integer noise has no bill for it
            continue
    return make(setting, noise_multiplier=64.0, delta=delta)


def _plan(trainer: DPTrainer) -> Plan:
    """Returns a trainer's plan; raises ValueError where it has none, or a seed."""
    if trainer.plan is None:
        raise ValueError(
            "make gives a trainer that is not planned: give it steps or epochs, and pass its arguments on."
        )
    if trainer.seed != ENTROPY:
        raise ValueError("make gives a seed: its runs would have the same noise. Leave it out.")
    return trainer.plan


def _check_same(
    trainer: DPTrainer, costs: tuple[Mechanisms, Steps], setting: object, epsilon: float, delta: float, mean: float
) -> None:
    """Raises where a run costs anything but what was accounted for, or the rest costs more than its share of delta.

    The rest are cut batches, and the distance of integer noise: that of all runs is at most the number of runs expected
    times that of one, as how many there are does not depend on the data.
    """
    plan = _plan(trainer)
    steps = math.ceil(mean * plan.runs * plan.sampler.steps_per_run)
    drawn = noise_delta(plan.samples * plan.runs * plan.sampler.steps_per_run, epsilon, delta)
    cost = plan.sampler.overflow_delta(steps, epsilon) + mean * drawn * (1 + 2.0**-50)
    composition = plan.composition()
    kinds: set[Any] = {jax.tree.structure(composition), jax.tree.structure(costs)}
    if len(kinds) > 1 or not all(map(np.array_equal, jax.tree.leaves(composition), jax.tree.leaves(costs))):
        raise ValueError(
            f"space has {setting!r}, a run of which is {composition} and not {costs}: give all settings the same "
            "batches and steps, and each trainer the noise multiplier that make gets."
        )
    if not cost <= SHARE * delta:
        raise ValueError(
            f"cut batches and integer noise cost {rounded_up(cost)} of delta and not the {rounded_down(SHARE * delta)} "
            "that is reserved: give samplers a larger capacity, or a larger delta."
        )
