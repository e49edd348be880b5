"""Recipes, ready-made settings for the named data sets, and a private search for the best settings of one's own.

* :class:`Recipe`, :data:`RECIPES`, :func:`make_trainer`: one recipe for each data set, which the command line starts
  from. Recipes were chosen by the test accuracy on public data sets. On private data, tuning costs budget of its own.
* :func:`tune`: a search whose cost is part of the budget.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import jax
import numpy as np
import optax
from flax import nnx

from jaxacct import validation
from jaxacct.bounds import Bounds
from jaxacct.calibrate.targets import least_noise
from jaxacct.filters import RenyiFilter
from jaxacct.mechanisms import Mechanisms, Steps
from jaxacct.outward import rounded_down, rounded_up, steps_of
from jaxacct.policies import Policy
from jaxacct.selection import Trials
from jaxacct.selection.laws import DRAWING
from jaxacct.train.datasets import Dataset
from jaxacct.train.keys import ENTROPY, DerivedKey, describe_seed, run_key
from jaxacct.train.models import MLP, Linear, PatchCNN, cross_entropy
from jaxacct.train.planned import Plan, composition_of
from jaxacct.train.report import RELATIONS, unit_of
from jaxacct.train.sampling import ALLOWANCE, PoissonSampler
from jaxacct.train.settings import affordable_steps, drawn_rate, public_size, spending
from jaxacct.train.trainer import DPTrainer

Optimizer = Callable[[float, int], optax.GradientTransformation]
"""Maker of an Optax transformation from the learning rate and the planned number of steps."""

BUDGET_ROUNDING = 1e-6
"""Relative room above what the planned steps cost, for the filter's rounding at the last of them. Sound for any value:
the filter keeps to its epsilon; less could lose the last step."""


def decaying_in_the_second_half(learning_rate: float, steps: int) -> optax.Schedule:
    """Returns a constant rate for half of the steps, then one that falls to zero: averages the noise of the last steps.

    >>> schedule = decaying_in_the_second_half(0.5, 100)
    >>> [round(float(schedule(step)), 3) for step in (0, 50, 75, 100)]
    [0.5, 0.5, 0.25, 0.0]
    """
    return optax.linear_schedule(learning_rate, 0.0, max(1, steps - steps // 2), transition_begin=steps // 2)


def adam_decaying(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """Returns Adam at the rate of :func:`decaying_in_the_second_half`."""
    return optax.adam(decaying_in_the_second_half(learning_rate, steps))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a run.

    Attributes:
        dataset: its name, for :func:`~jaxacct.train.datasets.load`.
        module: makes the module from the shape of an example, the number of classes and the keys.
        noise_multiplier: standard deviation of the noise over ``clip_norm``.
        batch_size: the expected one.
        clip_norm: bound on each example's gradient norm.
        learning_rate: of the optimizer, or of its first half where it falls.
        optimizer: makes the Optax transformation.
        optimizer_name: in words, for a report.
        microbatch_size: examples whose gradients are in memory at a time.
        source: origin of the settings, in words.

    >>> import dataclasses
    >>> larger = dataclasses.replace(RECIPES["digits"], batch_size=512)
    >>> larger.dataset, larger.batch_size
    ('digits', 512)
    """

    dataset: str
    module: Callable[[tuple[int, ...], int, nnx.Rngs], nnx.Module]
    noise_multiplier: float
    batch_size: float
    clip_norm: float
    learning_rate: float
    optimizer: Optimizer = adam_decaying
    optimizer_name: str = "adam, rate falling over the second half"
    microbatch_size: int = 32
    source: str = "tuned at epsilon = 3, delta = 1e-5"


UNTUNED = "a starting point that no run has tuned"
"""Origin of a recipe's settings that were taken over from another data set's."""


def _mnist(name: str) -> Recipe:
    """Returns the recipe for images of MNIST's format."""
    return Recipe(
        dataset=name, module=lambda shape, classes, rngs: PatchCNN(shape, classes, rngs=rngs),
        noise_multiplier=1.5, batch_size=2048, clip_norm=1.0, learning_rate=0.01, microbatch_size=64,
        source="tuned at epsilon = 3, delta = 1e-5" if name == "mnist" else UNTUNED,
    )  # fmt: skip


def _adult(name: str) -> Recipe:
    """Returns the recipe for the Adult census data, in either encoding."""
    return Recipe(
        dataset=name, module=lambda shape, classes, rngs: MLP(shape, classes, width=16, rngs=rngs),
        noise_multiplier=2.0, batch_size=1024, clip_norm=1.0, learning_rate=0.01, microbatch_size=128,
        source="tuned at epsilon = 3, delta = 1e-5" if name == "adult" else UNTUNED,
    )  # fmt: skip


RECIPES: dict[str, Recipe] = {
    "digits": Recipe(
        dataset="digits",
        module=lambda shape, classes, rngs: Linear(shape, classes, center=0.3, rngs=rngs),
        noise_multiplier=10.0,
        batch_size=1024,
        clip_norm=1.0,
        learning_rate=0.1,
    ),
    "mnist": _mnist("mnist"),
    "fashion-mnist": _mnist("fashion-mnist"),
    "adult": _adult("adult"),
    "adult-uci": _adult("adult-uci"),
}
"""Recipes by the names of their data sets: :func:`make_trainer` takes that of its data set unless given another."""


def make_trainer(
    dataset: Dataset,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    recipe: str | Recipe | None = None,
    noise_multiplier: float | None = None,
    batch_size: float | None = None,
    clip_norm: float | None = None,
    learning_rate: float | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    policy: Callable[[float, float, int], Policy] | None = None,
    most_examples: int | None = None,
    **options: Any,
) -> tuple[DPTrainer, int]:
    """Returns a trainer by a recipe, and for how many steps to fit it.

    Its settings are the recipe's, with what is given in place of the defaults. The module's first parameters and the
    training have their own keys.

    Args:
        dataset: from :func:`~jaxacct.train.datasets.load`.
        epsilon: of the budget. None: what the epochs cost.
        delta: of the budget.
        recipe: a :class:`Recipe`, or a name in :data:`RECIPES`. None: the one named like the data set.
        noise_multiplier: standard deviation of the noise over ``clip_norm``. None: the least that epsilon allows for
            the epochs; without epochs about the recipe's, for as many steps as the budget then pays for.
        batch_size: the expected one.
        clip_norm: bound on each example's gradient norm.
        learning_rate: of the recipe's optimizer.
        epochs: expected passes over the data; None: what the budget pays for. With epsilon and noise given, the most.
        seed: None for the operating system's entropy; a number makes the run repeatable, and its noise known.
        policy: makes a policy from the noise multiplier, the sampling rate and the planned number of steps. None: these
            throughout.
        most_examples: a public number that the data set has at most, in the place of its size (:class:`.DPTrainer`).
        options: more of :class:`~jaxacct.train.trainer.DPTrainer`'s arguments.

    Raises ValueError where an argument is out of range, a recipe is unknown or for another data set, or neither the
    budget nor the epochs are known.

    >>> from jaxacct.train.datasets import load
    >>> trainer, steps = make_trainer(load("digits"), epsilon=3.0, delta=1e-5, epochs=10, seed=0)
    >>> trainer.steps, steps
    (0, 15)
    """
    recipe = _recipe_for(dataset, recipe)
    size = public_size(len(dataset.train_labels), most_examples)
    if delta is None or (epsilon is None and epochs is None):
        raise ValueError(f"epsilon = {epsilon}, delta = {delta}, epochs = {epochs}. Give delta, and epsilon or epochs.")
    clip_norm = recipe.clip_norm if clip_norm is None else clip_norm
    learning_rate = recipe.learning_rate if learning_rate is None else learning_rate
    validation.check_positive(learning_rate, "learning_rate")
    batch_size = min(recipe.batch_size, size) if batch_size is None else batch_size
    rate = drawn_rate(None, batch_size, size)
    planned = None
    if epochs is not None:
        validation.check_positive(epochs, "epochs")
        planned = steps_of(epochs, rate)
    # Constant settings are planned; a policy, or another ledger, is trained for the steps that a filter affords.
    start = recipe.noise_multiplier if noise_multiplier is None else noise_multiplier
    if policy is None and options.get("ledger") in (None, "planned"):
        spent, steps = _planned(epsilon, delta, planned, noise_multiplier, start, rate, size)
    else:
        if epsilon is None:
            assert planned is not None
            epsilon = planned_epsilon(size, rate, start, steps=planned, delta=delta)
        steps = affordable_steps(size, rate, start, epsilon=epsilon, delta=delta)
        steps = steps if planned is None else min(steps, planned)
        constant = {"noise_multiplier": start, "sampling_rate": rate}
        spent = {"epsilon": epsilon} | (constant if policy is None else {"policy": policy(start, rate, steps)})
    module_key, training_key = jax.random.split(run_key(seed))
    trainer = DPTrainer(
        recipe.module(dataset.train_inputs.shape[1:], dataset.num_classes, nnx.Rngs(module_key)),
        cross_entropy,
        recipe.optimizer(learning_rate, steps),
        (dataset.train_inputs, dataset.train_labels),
        delta=delta,
        most_examples=most_examples,
        seed=DerivedKey(training_key, describe_seed(seed)),
        **({"clip_norm": clip_norm, "microbatch_size": recipe.microbatch_size} | spent | options),
    )
    return trainer, steps


def _planned(
    epsilon: float | None, delta: float, steps: int | None, noise: float | None, start: float, rate: float, size: int
) -> tuple[dict[str, Any], int]:
    """Returns what makes the trainer's plan, and the steps to fit.

    Without epochs the recipe's noise fixes the number of steps, and the noise is then the least that the whole budget
    allows for them. With epochs, noise and epsilon all given, epsilon and noise make the plan, and epochs end it
    earlier.
    """
    made = {"epsilon": epsilon, "steps": steps, "sampling_rate": rate}
    if epsilon is None:
        assert steps is not None
        return made | {"noise_multiplier": start}, steps
    if noise is None and steps is not None:
        return made, steps
    plan = spending(size, epsilon=epsilon, delta=delta, noise_multiplier=start, sampling_rate=rate).plan
    assert plan is not None
    if noise is None:
        return made | {"steps": plan.steps}, plan.steps
    return made | {"steps": None, "noise_multiplier": noise}, min(plan.steps, steps or plan.steps)


def _recipe_for(dataset: Dataset, recipe: str | Recipe | None) -> Recipe:
    """Returns the recipe given or named; raises ValueError where there is none, or it is for another data set."""
    name = dataset.name if recipe is None else recipe
    if isinstance(name, str):
        if name not in RECIPES:
            raise ValueError(f"recipe = {name!r} is not known: give a Recipe, or one of {', '.join(sorted(RECIPES))}.")
        name = RECIPES[name]
    if name.dataset != dataset.name:
        raise ValueError(
            f"recipe is for the data set {name.dataset}, not for {dataset.name}: load that, or choose another."
        )
    return name


def planned_epsilon(
    num_examples: int, sampling_rate: float, noise_multiplier: float, *, steps: int, delta: float
) -> float:
    """Returns an epsilon whose Rényi filter, at ``delta``, grants ``steps`` steps of a trainer and hardly one more.

    Formal guarantee: an upper bound on the epsilon of these steps under adding or removing one example, with Poisson
    sampling, by the filter's conversion, at a delta less the trainer's allowance for cut batches. The certified
    accountant's is smaller.

    Raises ValueError where ``delta``, the size, the rate or the noise is out of range.

    >>> planned = planned_epsilon(60_000, 256 / 60_000, 1.3, steps=3516, delta=1e-5)
    >>> 1.1 < planned < 1.6, affordable_steps(60_000, 256 / 60_000, 1.3, epsilon=planned, delta=1e-5) >= 3516
    (True, True)
    """
    validation.check_delta(delta)
    mechanism = PoissonSampler(num_examples, sampling_rate, num_examples + 1).mechanism(noise_multiplier)
    unlimited = RenyiFilter(float("inf"), delta * (1 - 2 * ALLOWANCE))
    _, spent = unlimited.spend(mechanism, steps=steps)
    return float(spent.epsilon()) * (1 + BUDGET_ROUNDING)


# ----------------------------------------------------------------------------------------------------
# Private search for the best settings, whose cost is part of the budget.
# ----------------------------------------------------------------------------------------------------

SHARE = 1e-3
"""Share of delta that is set aside for cut batches. Sound for any value in (0, 1/2), for :func:`tune` checks the
cost."""

Setting = TypeVar("Setting")
"""Type of a setting, in any form that ``make`` takes."""


@dataclass(frozen=True)
class Tuned(Generic[Setting]):
    """The release of a search. Nothing of the other runs is kept.

    Attributes:
        setting: the winner's; None where the law drew no trial at all.
        model: the winner, as trained.
        score: the winner's score; -inf where every run failed.
        noise_multiplier: noise multiplier of every run.
        certified: bounds on the epsilon of the whole search, at ``delta`` less what cut batches and the
            drawing of trials may cost.
        delta: the budget.
        certificate: the statement to publish, as plain values for :func:`~jaxacct.train.write_report`: the law of the
            number of trials and not the number, the total, and in words what it holds for.
    """

    setting: Setting | None
    model: nnx.Module | None
    score: float | None
    noise_multiplier: float
    certified: Bounds
    delta: float
    certificate: dict[str, Any] = field(repr=False)


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
            then a :class:`SideQuery` of every run; without it there is no guarantee.
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
    or has a seed, or no noise suffices; TypeError where ``trials`` is no law; RuntimeError in a group of processes.

    Source: Papernot and Steinke (2022), "Hyperparameter tuning with Rényi differential privacy".

    A search for a learning rate::

        def make(rate, **run):
            return DPTrainer(model(), loss, optax.sgd(rate), data, steps=1000, sampling_rate=0.01, clip_norm=1.0, **run)

        found = tune(make, [0.1, 1.0, 10.0], score, trials=Geometric(10.0), epsilon=3.0, delta=1e-5)
        write_report(found.certificate, "certificate.json")
    """
    if not isinstance(trials, Trials):
        raise TypeError(f"trials = {trials!r} is no law: give one of jaxacct.selection, such as Geometric(10.0).")
    validation.check_positive(epsilon, "epsilon")
    validation.check_delta(delta)
    space = list(space)
    if not space:
        raise ValueError("space is empty: give at least one setting.")
    if jax.process_count() > 1:
        raise RuntimeError("tune was called in a group of processes, which would draw different trials: use one.")
    # Delta is divided: a share for cut batches of all runs expected, the distance between the drawn number of trials
    # and its law, which counts 1 + e^epsilon times, and the rest for the mechanisms.
    mean = float(trials.mean)
    run_delta = SHARE * delta / mean
    drawing = DRAWING * math.ceil(mean / 1000) * (1 + math.exp(min(epsilon, 700.0)))
    if not drawing < delta / 2:
        raise ValueError(
            f"delta = {delta} at epsilon = {epsilon}: how the number of trials is drawn costs "
            f"{rounded_up(drawing, '.2g')} of it: give a larger delta, or a smaller epsilon."
        )
    left = delta * (1 - SHARE) - drawing
    one = make(space[0], noise_multiplier=1.0, delta=run_delta)
    first, unit = _plan(one), unit_of(one)
    del one

    def run(noise: float) -> tuple[Mechanisms, Steps]:
        return composition_of(first.sampler, noise, first.steps, first.queries)

    found = least_noise(run, trials, epsilon, left, first.sampler.relation, first.noise_multiplier)
    noise, costs = float(found.value), run(float(found.value))
    best: tuple[float, Setting, nnx.Module] | None = None
    # One run per trial, of settings drawn by the operating system's entropy; ``best`` is all that is kept of them. Each
    # run is checked to cost what was accounted, and a failed one counts as the worst instead of ending the search.
    for _ in range(trials.draw()):
        drawn = space[secrets.randbelow(len(space))]
        trainer = make(drawn, noise_multiplier=noise, delta=run_delta)
        _check_same(trainer, costs, drawn, epsilon, SHARE * delta, mean)
        try:
            trainer.fit()
            reached = float(score(trainer.model))
        except FloatingPointError:
            reached = -math.inf
        reached = -math.inf if math.isnan(reached) else reached
        if best is None or reached > best[0]:
            best = reached, drawn, trainer.model
        del trainer
    certificate = {
        "search": {"trials": str(trials), "settings": len(space), "steps": first.steps, "noise_multiplier": noise},
        "epsilon_certified": {"lower": float(found.reached.lower), "upper": float(found.reached.upper)},
        "budget": {"epsilon": float(epsilon), "delta": float(delta)},
        "guarantee": (
            "The best of a random number of runs, its setting and its score were released, and nothing of the others. "
            "All runs together are (epsilon, delta)-differentially private. Neighbours: "
            f"{RELATIONS[first.sampler.relation].format(unit=unit)}. The score is taken to depend on the model alone, "
            "and the number of runs and the time they took not to be known."
        ),
    }
    value, setting, model = (None, None, None) if best is None else best
    return Tuned(setting, model, value, noise, found.reached, delta, certificate)


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
    trainer: DPTrainer, costs: tuple[Mechanisms, Steps], setting: object, epsilon: float, share: float, mean: float
) -> None:
    """Raises where a run costs anything but what was accounted for, or cut batches cost more than their share."""
    plan = _plan(trainer)
    steps = math.ceil(mean * plan.runs * plan.sampler.steps_per_run)
    cut = plan.sampler.overflow_delta(steps, epsilon)
    given = plan.composition()
    kinds: set[Any] = {jax.tree.structure(given), jax.tree.structure(costs)}
    if len(kinds) > 1 or not all(map(np.array_equal, jax.tree.leaves(given), jax.tree.leaves(costs))):
        raise ValueError(
            f"space has {setting!r}, a run of which is {given} and not {costs}: give all settings the same batches and "
            "steps, and each trainer the noise multiplier that make gets."
        )
    if not cut <= share:
        raise ValueError(
            f"cut batches cost {rounded_up(cut)} of delta and not the {rounded_down(share)} that is set aside: give "
            "samplers a larger capacity, or a larger delta."
        )
