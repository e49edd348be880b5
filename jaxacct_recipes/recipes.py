"""Recipes: settings of a run for each of the named data sets, which the command line starts from, and their trainer.

Recipes were chosen by the test accuracy on public data sets. On private data, choosing settings costs budget of its
own: :func:`jaxacct.train.tune` pays for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax
from flax import nnx

from jaxacct import validation
from jaxacct.display import steps_of
from jaxacct.filters import RenyiFilter
from jaxacct.policies import Policy
from jaxacct.train import DPTrainer, PoissonSampler, cross_entropy, run_key
from jaxacct.train.config import KEYWORDS, PlannedRun, affordable_steps, run_of
from jaxacct.train.keys import DerivedKey, as_threefry, describe_seed
from jaxacct.train.sampling import ALLOWANCE
from jaxacct.train.settings import drawn_rate, public_size
from jaxacct_recipes.datasets import Dataset
from jaxacct_recipes.networks import MLP, Linear, PatchCNN

Optimizer = Callable[[float, int], optax.GradientTransformation]
"""Maker of an Optax transformation from the learning rate and the planned number of steps."""


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
        dataset: its name, for :func:`~jaxacct_recipes.load`.
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
        dataset: from :func:`~jaxacct_recipes.load`.
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

    >>> from jaxacct_recipes import load
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
    # Other settings of the budget are among the options. Constant settings are planned; a policy, or another ledger, is
    # trained for the steps that a filter affords.
    budget = {name: options.pop(name) for name in KEYWORDS & options.keys()}
    start = recipe.noise_multiplier if noise_multiplier is None else noise_multiplier
    if policy is None and budget.get("ledger") in (None, "planned"):
        spent, steps = _plan(epsilon, delta, planned, noise_multiplier, start, rate, size)
    else:
        spent, steps = _afford(epsilon, delta, planned, policy, start, rate, size)
    module_key, training_key = jax.random.split(run_key(seed))
    trainer = DPTrainer(
        recipe.module(dataset.train_inputs.shape[1:], dataset.num_classes, nnx.Rngs(as_threefry(module_key))),
        cross_entropy,
        recipe.optimizer(learning_rate, steps),
        (dataset.train_inputs, dataset.train_labels),
        run=run_of(**({"delta": delta, "most_examples": most_examples} | spent | budget)),
        seed=DerivedKey(training_key, describe_seed(seed)),
        **({"clip_norm": clip_norm, "microbatch_size": recipe.microbatch_size} | options),
    )
    return trainer, steps


def _plan(
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
    run = PlannedRun(epsilon=epsilon, delta=delta, noise_multiplier=start, sampling_rate=rate)
    plan = run.resolve(size).plan
    assert plan is not None
    if noise is None:
        return made | {"steps": plan.steps}, plan.steps
    return made | {"steps": None, "noise_multiplier": noise}, min(plan.steps, steps or plan.steps)


def _afford(
    epsilon: float | None,
    delta: float,
    steps: int | None,
    policy: Callable[[float, float, int], Policy] | None,
    start: float,
    rate: float,
    size: int,
) -> tuple[dict[str, Any], int]:
    """Returns what a ledger other than a plan's is given, and the steps to fit: those that a filter affords."""
    if epsilon is None:
        assert steps is not None
        epsilon = planned_epsilon(size, rate, start, steps=steps, delta=delta)
    afforded = affordable_steps(size, rate, start, epsilon=epsilon, delta=delta)
    afforded = afforded if steps is None else min(afforded, steps)
    if policy is None:
        return {"epsilon": epsilon, "noise_multiplier": start, "sampling_rate": rate}, afforded
    return {"epsilon": epsilon, "policy": policy(start, rate, afforded)}, afforded


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
    # Relative room for the filter's rounding at the last step. Sound for any value, as the filter keeps to its epsilon:
    # less could lose that step.
    return float(spent.epsilon()) * (1 + 1e-6)
