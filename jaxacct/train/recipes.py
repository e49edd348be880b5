"""Settings for the named data sets, tuned at (epsilon = 3, delta = 1e-5); the command line starts from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import optax
from flax import nnx

from jaxacct import validation
from jaxacct.train.data import Dataset
from jaxacct.train.keys import describe_seed, run_key
from jaxacct.train.models import MLP, Linear, PatchCNN, cross_entropy
from jaxacct.train.trainer import DPTrainer, affordable_steps, rate_of


@dataclass(frozen=True)
class Recipe:
    """Default settings for one data set; ``batch_size`` is the expected one.

    Their choice looked at the test accuracy of public data sets. On private data, tuning costs budget of its own.
    """

    module: Callable[[tuple[int, ...], int, nnx.Rngs], nnx.Module]
    noise_multiplier: float
    batch_size: int
    clip_norm: float
    learning_rate: float
    microbatch_size: int | None = None


RECIPES: dict[str, Recipe] = {
    "digits": Recipe(
        lambda shape, classes, rngs: Linear(shape, classes, center=0.3, rngs=rngs),
        noise_multiplier=10.0, batch_size=1024, clip_norm=1.0, learning_rate=0.1,
    ),
    "mnist": Recipe(
        lambda shape, classes, rngs: PatchCNN(shape, classes, rngs=rngs),
        noise_multiplier=1.5, batch_size=2048, clip_norm=1.0, learning_rate=0.01, microbatch_size=64,
    ),
    "adult": Recipe(
        lambda shape, classes, rngs: MLP(shape, classes, width=16, rngs=rngs),
        noise_multiplier=2.0, batch_size=1024, clip_norm=1.0, learning_rate=0.01, microbatch_size=128,
    ),
}  # fmt: skip
"""By the name of the data set."""


def decaying_in_the_second_half(learning_rate: float, steps: int) -> optax.Schedule:
    """Returns a constant rate for half of the steps, then one that falls to zero: averages the noise of the last steps.

    >>> schedule = decaying_in_the_second_half(0.5, 100)
    >>> [round(float(schedule(step)), 3) for step in (0, 50, 75, 100)]
    [0.5, 0.5, 0.25, 0.0]
    """
    return optax.linear_schedule(learning_rate, 0.0, max(1, steps - steps // 2), transition_begin=steps // 2)


def make_trainer(
    dataset: Dataset,
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float | None = None,
    batch_size: float | None = None,
    clip_norm: float | None = None,
    learning_rate: float | None = None,
    epochs: float | None = None,
    seed: int | None = None,
) -> tuple[DPTrainer, int]:
    """Returns a trainer for one of the named data sets, and for how many steps to fit it.

    Its settings are the data set's recipe, with what is given in place of the defaults. The optimizer is Adam, its
    learning rate falling to zero over the second half. The module's first parameters and the training have their own
    keys.

    Args:
        dataset: from :func:`~jaxacct.train.data.load`.
        epsilon: of the budget.
        delta: of the budget.
        noise_multiplier: standard deviation of the noise over ``clip_norm``.
        batch_size: the expected one.
        clip_norm: bound on each example's gradient norm.
        learning_rate: of the first half.
        epochs: most expected passes over the data; None: what the budget pays for.
        seed: None for the operating system's entropy; a number makes the run repeatable, and its noise known.

    Raises ValueError where an argument is out of range.

    >>> from jaxacct.train.data import load
    >>> trainer, steps = make_trainer(load("digits"), epsilon=3.0, delta=1e-5, epochs=10, seed=0)
    >>> trainer.steps, steps
    (0, 14)
    """
    recipe = RECIPES[dataset.name]
    size = len(dataset.train_labels)
    noise_multiplier = recipe.noise_multiplier if noise_multiplier is None else noise_multiplier
    clip_norm = recipe.clip_norm if clip_norm is None else clip_norm
    learning_rate = recipe.learning_rate if learning_rate is None else learning_rate
    validation.check_positive(learning_rate, "learning_rate")
    batch_size = min(recipe.batch_size, size) if batch_size is None else batch_size
    rate = rate_of(None, batch_size, size)
    steps = affordable_steps(size, rate, noise_multiplier, epsilon=epsilon, delta=delta)
    if epochs is not None:
        validation.check_positive(epochs, "epochs")
        steps = min(steps, max(1, round(epochs / rate)))
    module_key, training_key = jax.random.split(run_key(seed))
    trainer = DPTrainer(
        recipe.module(dataset.train_inputs.shape[1:], dataset.num_classes, nnx.Rngs(module_key)),
        cross_entropy,
        optax.adam(decaying_in_the_second_half(learning_rate, steps)),
        (dataset.train_inputs, dataset.train_labels),
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        sampling_rate=rate,
        clip_norm=clip_norm,
        microbatch_size=recipe.microbatch_size,
        seed=training_key,
    )
    trainer.seed = describe_seed(seed)  # what the reader of a report knows, not the key made from it
    return trainer, steps
