"""Settings of published experiments, and of the data sets that only they need.

A recipe's choice looked at the test accuracy of public data sets. On private data, tuning costs budget of its own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optax
from flax import nnx
from jaxtyping import ArrayLike

import jaxacct_recipes
from bench.papers import cifar, ratings, reviews
from bench.papers.algorithms import noisy_adam, noisy_sgd
from bench.papers.convolution import TwoConvolutions
from bench.papers.networks import CollaborativeFilter, PooledEmbedding, root_mean_squared_error
from bench.papers.residual import ResNet9
from jaxacct.train import DPTrainer, accuracy
from jaxacct_recipes import MLP, Dataset
from jaxacct_recipes.datasets import LOADERS as OWN
from jaxacct_recipes.recipes import UNTUNED

LOADERS = OWN | {
    "cifar10": (cifar.load, cifar.SOURCE),
    "imdb": (reviews.load, reviews.SOURCE),
    "movielens": (ratings.load, ratings.SOURCE),
}
"""The library's data sets and three more, as the library has them."""

load = functools.partial(jaxacct_recipes.load, loaders=LOADERS)


def constant_sgd(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """Returns NoisySGD at a constant rate."""
    del steps
    return noisy_sgd(learning_rate)


def constant_adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """Returns NoisyAdam at a constant rate."""
    del steps
    return noisy_adam(learning_rate)


@dataclass(frozen=True, kw_only=True)
class Recipe(jaxacct_recipes.Recipe):
    """Settings of a run and, where they are published, what it reached.

    Attributes:
        epochs: expected passes over the data. None: as many as a budget pays for.
        delta: at which the source states its epsilon.
        test_size: examples held out of the training files, where the source does that.
        metric, measure: the name of what the source reports, and what computes it.
        reported: what the source reached in that metric.
    """

    epochs: float | None = None
    delta: float | None = None
    test_size: int | None = None
    metric: str = "accuracy"
    measure: Callable[[nnx.Module, ArrayLike, ArrayLike], float] = accuracy
    reported: float | None = None

    def load(self, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
        """Returns the data set, split as the source splits it; errors as of ``jaxacct_recipes.load``."""
        return load(self.dataset, data_dir, test_size=self.test_size)

    def evaluate(self, model: nnx.Module, dataset: Dataset) -> float:
        """Returns the metric of ``model`` on the test part, which is public."""
        return self.measure(model, dataset.test_inputs, dataset.test_labels)


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
        "measure": root_mean_squared_error,
    }  # fmt: skip
    return Recipe(**{**shared, **settings})


MOVIELENS_TEST = 200_042
"""A fifth of the 1,000,209 ratings, to the next whole one."""

RECIPES: dict[str, Recipe] = {
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
"""By name: those of published experiments, and starting points for the data sets."""


def make_trainer(dataset: Dataset, *, recipe: str | Recipe, **settings: Any) -> tuple[DPTrainer, int]:
    """Returns what ``jaxacct_recipes.make_trainer`` does, with the recipe's own delta, epochs and noise by default."""
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe = {recipe!r} is not known: give one of {', '.join(sorted(RECIPES))}.")
        recipe = RECIPES[recipe]
    published = {"delta": recipe.delta, "epochs": recipe.epochs, "noise_multiplier": recipe.noise_multiplier}
    return jaxacct_recipes.make_trainer(dataset, recipe=recipe, **(published | settings))
