"""Ready-made configurations: one for each data set, which the command line starts from, and those of published tables.

A recipe's choice looked at the test accuracy of public data sets. On private data, tuning costs budget of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import optax
from flax import nnx

from jaxacct import validation
from jaxacct.filters import RenyiFilter
from jaxacct.policies import Policy
from jaxacct.train.algorithms import noisy_adam, noisy_sgd
from jaxacct.train.datasets import Dataset, load, ratings, reviews
from jaxacct.train.keys import DerivedKey, describe_seed, run_key
from jaxacct.train.models import (
    MLP,
    CollaborativeFilter,
    Linear,
    PatchCNN,
    PooledEmbedding,
    ResNet9,
    TwoConvolutions,
    accuracy,
    cross_entropy,
    root_mean_squared_error,
)
from jaxacct.train.sampling import ALLOWANCE, PoissonSampler
from jaxacct.train.settings import affordable_steps, rate_of
from jaxacct.train.trainer import DPTrainer

Optimizer = Callable[[float, int], optax.GradientTransformation]
"""From the learning rate and the planned number of steps."""

BUDGET_ROUNDING = 1e-6
"""Relative room above what the planned steps cost, for the filter's rounding at the last of them."""


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


def constant_sgd(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """Returns NoisySGD at a constant rate, as in Bu et al.'s tables."""
    del steps
    return noisy_sgd(learning_rate)


def constant_adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """Returns NoisyAdam at a constant rate, as in Bu et al.'s tables."""
    del steps
    return noisy_adam(learning_rate)


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
        epochs: expected passes over the data. None: as many as the budget pays for.
        delta: at which the source states its epsilon. None: the user's choice.
        test_size: examples held out of the training files, where the source does that.
        metric: "accuracy", a share of the test examples, or "rmse", in stars.
        reported: what the source reached in that metric; None without a source.
        source: where the settings come from.

    >>> import dataclasses
    >>> larger = dataclasses.replace(RECIPES["digits"], batch_size=512)
    >>> larger.dataset, larger.batch_size, larger.metric
    ('digits', 512, 'accuracy')
    """

    dataset: str
    module: Callable[[tuple[int, ...], int, nnx.Rngs], nnx.Module]
    noise_multiplier: float
    batch_size: float
    clip_norm: float
    learning_rate: float
    optimizer: Optimizer = adam_decaying
    optimizer_name: str = "adam, rate falling over the second half"
    microbatch_size: int | None = None
    epochs: float | None = None
    delta: float | None = None
    test_size: int | None = None
    metric: Literal["accuracy", "rmse"] = "accuracy"
    reported: float | None = None
    source: str = "tuned at epsilon = 3, delta = 1e-5"

    def load(self, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
        """Returns the recipe's data set, split as its source splits it. Errors as of ``datasets.load``."""
        return load(self.dataset, data_dir, test_size=self.test_size)

    def evaluate(self, model: nnx.Module, dataset: Dataset) -> float:
        """Returns the recipe's metric of ``model`` on the test part, which is public."""
        measure = accuracy if self.metric == "accuracy" else root_mean_squared_error
        return measure(model, dataset.test_inputs, dataset.test_labels)


UNTUNED = "a starting point that no run has tuned"


def _mnist(name: str) -> Recipe:
    return Recipe(
        dataset=name, module=lambda shape, classes, rngs: PatchCNN(shape, classes, rngs=rngs),
        noise_multiplier=1.5, batch_size=2048, clip_norm=1.0, learning_rate=0.01, microbatch_size=64,
        source="tuned at epsilon = 3, delta = 1e-5" if name == "mnist" else UNTUNED,
    )  # fmt: skip


def _adult(name: str) -> Recipe:
    return Recipe(
        dataset=name, module=lambda shape, classes, rngs: MLP(shape, classes, width=16, rngs=rngs),
        noise_multiplier=2.0, batch_size=1024, clip_norm=1.0, learning_rate=0.01, microbatch_size=128,
        source="tuned at epsilon = 3, delta = 1e-5" if name == "adult" else UNTUNED,
    )  # fmt: skip


BU = 'Bu et al. (2020), "Deep learning with Gaussian differential privacy"'


def _bu_mnist(row: int, rate: float, clip: float, noise: float, epochs: float, reported: float) -> Recipe:
    return Recipe(
        dataset="mnist", module=lambda shape, classes, rngs: TwoConvolutions(shape, classes, rngs=rngs),
        noise_multiplier=noise, batch_size=256, clip_norm=clip, learning_rate=rate, epochs=epochs, delta=1e-5,
        optimizer=constant_sgd, optimizer_name="NoisySGD, constant rate", microbatch_size=24,
        reported=reported, source=f"{BU}, Table 1, row {row}",
    )  # fmt: skip


def _reviews(**settings: object) -> Recipe:
    shared: dict = {
        "dataset": "imdb",
        "module": lambda shape, classes, rngs: PooledEmbedding(reviews.VOCABULARY, classes, rngs=rngs),
        "batch_size": 512, "clip_norm": 1.0, "learning_rate": 0.02, "microbatch_size": 16,
    }  # fmt: skip
    return Recipe(**{**shared, **settings})


def _ratings(**settings: object) -> Recipe:
    shared: dict = {
        "dataset": "movielens",
        "module": lambda shape, classes, rngs: CollaborativeFilter(ratings.USERS, ratings.MOVIES, classes, rngs=rngs),
        "clip_norm": 5.0, "learning_rate": 0.01, "microbatch_size": 16, "metric": "rmse",
    }  # fmt: skip
    return Recipe(**{**shared, **settings})


MOVIELENS_TEST = 200_042
"""A fifth of the 1,000,209 ratings, to the next whole one."""

RECIPES: dict[str, Recipe] = {
    "digits": Recipe(
        dataset="digits", module=lambda shape, classes, rngs: Linear(shape, classes, center=0.3, rngs=rngs),
        noise_multiplier=10.0, batch_size=1024, clip_norm=1.0, learning_rate=0.1,
    ),
    "mnist": _mnist("mnist"),
    "fashion-mnist": _mnist("fashion-mnist"),
    "adult": _adult("adult"),
    "adult-uci": _adult("adult-uci"),
    "cifar10": Recipe(
        dataset="cifar10", module=lambda shape, classes, rngs: ResNet9(shape, classes, width=16, rngs=rngs),
        noise_multiplier=1.5, batch_size=2048, clip_norm=1.0, learning_rate=0.002, microbatch_size=16, source=UNTUNED,
    ),
    "imdb": _reviews(noise_multiplier=1.0, source=UNTUNED),
    "movielens": _ratings(noise_multiplier=1.0, batch_size=10_000, source=UNTUNED),
    "bu-mnist-1": _bu_mnist(1, 0.25, 1.5, 1.3, 15, 0.950),
    "bu-mnist-2": _bu_mnist(2, 0.15, 1.0, 1.1, 60, 0.966),
    "bu-mnist-3": _bu_mnist(3, 0.25, 1.5, 0.7, 45, 0.970),
    "bu-mnist-4": _bu_mnist(4, 0.25, 1.5, 0.6, 62, 0.976),
    "bu-mnist-5": _bu_mnist(5, 0.25, 1.5, 0.55, 68, 0.978),
    "bu-mnist-6": _bu_mnist(6, 0.25, 1.5, 0.5, 100, 0.980),
    "bu-adult": Recipe(
        dataset="adult",
        module=lambda shape, classes, rngs: MLP(shape, classes, width=16, activation=nnx.relu, rngs=rngs),
        noise_multiplier=0.55, batch_size=256, clip_norm=1.0, learning_rate=0.15, epochs=18, delta=1e-5,
        optimizer=constant_sgd, optimizer_name="NoisySGD, constant rate", microbatch_size=128, test_size=3256,
        reported=0.840, source=f"{BU}, Table 2",
    ),
    "bu-imdb": _reviews(
        noise_multiplier=0.56, epochs=9, delta=1e-5, optimizer=constant_adam,
        optimizer_name="NoisyAdam, constant rate", reported=0.838, source=f"{BU}, Table 3",
    ),
    "bu-movielens": _ratings(
        noise_multiplier=0.6, batch_size=(1_000_209 - MOVIELENS_TEST) / 80, epochs=20, delta=1e-6,
        optimizer=constant_adam, optimizer_name="NoisyAdam, constant rate", test_size=MOVIELENS_TEST,
        reported=0.915, source=f"{BU}, Table 4",
    ),
    "lecuyer-cifar10": Recipe(
        dataset="cifar10", module=lambda shape, classes, rngs: ResNet9(shape, classes, norm="layer", rngs=rngs),
        noise_multiplier=1.0, batch_size=512, clip_norm=1.0, learning_rate=0.05, epochs=100, delta=1e-6,
        optimizer=constant_sgd, optimizer_name="NoisySGD, constant rate", microbatch_size=8,
        source='Lécuyer (2021), "Practical privacy filters and odometers with Rényi differential privacy", section 5.1',
    ),
}  # fmt: skip
"""By name: a data set's own, which :func:`make_trainer` takes by default, and those of published experiments."""


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
    **options: Any,
) -> tuple[DPTrainer, int]:
    """Returns a trainer by a recipe, and for how many steps to fit it.

    Its settings are the recipe's, with what is given in place of the defaults. The module's first parameters and the
    training have their own keys.

    Args:
        dataset: from :meth:`Recipe.load` or :func:`~jaxacct.train.datasets.load`.
        epsilon: of the budget. None: what the planned epochs cost, by :func:`planned_epsilon`.
        delta: of the budget. None: the recipe's.
        recipe: a :class:`Recipe`, or a name in :data:`RECIPES`. None: the one named like the data set.
        noise_multiplier: standard deviation of the noise over ``clip_norm``.
        batch_size: the expected one.
        clip_norm: bound on each example's gradient norm.
        learning_rate: of the recipe's optimizer.
        epochs: most expected passes over the data; None: the recipe's, or what the budget pays for.
        seed: None for the operating system's entropy; a number makes the run repeatable, and its noise known.
        policy: makes a policy from the noise multiplier, the sampling rate and the planned number of steps. None: these
            throughout.
        options: more of :class:`~jaxacct.train.trainer.DPTrainer`'s arguments.

    Raises ValueError where an argument is out of range, a recipe is unknown or for another data set, or neither the
    budget nor the epochs are known.

    >>> from jaxacct.train.datasets import load
    >>> trainer, steps = make_trainer(load("digits"), epsilon=3.0, delta=1e-5, epochs=10, seed=0)
    >>> trainer.steps, steps
    (0, 14)
    """
    recipe = _recipe_for(dataset, recipe)
    size = len(dataset.train_labels)
    delta = recipe.delta if delta is None else delta
    epochs = recipe.epochs if epochs is None else epochs
    if delta is None or (epsilon is None and epochs is None):
        raise ValueError(
            f"epsilon = {epsilon}, delta = {delta}, epochs = {epochs}: this recipe has no plan of its own. "
            "Give delta, and epsilon or epochs."
        )
    noise_multiplier = recipe.noise_multiplier if noise_multiplier is None else noise_multiplier
    clip_norm = recipe.clip_norm if clip_norm is None else clip_norm
    learning_rate = recipe.learning_rate if learning_rate is None else learning_rate
    validation.check_positive(learning_rate, "learning_rate")
    batch_size = min(recipe.batch_size, size) if batch_size is None else batch_size
    rate = rate_of(None, batch_size, size)
    planned = None
    if epochs is not None:
        validation.check_positive(epochs, "epochs")
        planned = max(1, round(epochs / rate))
    if epsilon is None:
        assert planned is not None
        epsilon = planned_epsilon(size, rate, noise_multiplier, steps=planned, delta=delta)
    steps = affordable_steps(size, rate, noise_multiplier, epsilon=epsilon, delta=delta)
    steps = steps if planned is None else min(steps, planned)
    constant = {"noise_multiplier": noise_multiplier, "sampling_rate": rate}
    spending = constant if policy is None else {"policy": policy(noise_multiplier, rate, steps)}
    module_key, training_key = jax.random.split(run_key(seed))
    trainer = DPTrainer(
        recipe.module(dataset.train_inputs.shape[1:], dataset.num_classes, nnx.Rngs(module_key)),
        cross_entropy,
        recipe.optimizer(learning_rate, steps),
        (dataset.train_inputs, dataset.train_labels),
        epsilon=epsilon,
        delta=delta,
        seed=DerivedKey(training_key, describe_seed(seed)),
        **({"clip_norm": clip_norm, "microbatch_size": recipe.microbatch_size} | spending | options),
    )
    return trainer, steps


def _recipe_for(dataset: Dataset, recipe: str | Recipe | None) -> Recipe:
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

    Formal guarantee: an upper bound on what they cost under adding or removing one example, Poisson sampling, by the
    filter's conversion, at a delta less the trainer's allowance for cut batches. The certified accountant's is smaller.

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
