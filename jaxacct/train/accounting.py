"""What a finished run may claim: certified bounds for its realized steps, and the words that say when they hold."""

from __future__ import annotations

import math

import jaxacct
from jaxacct.bounds import Bounds
from jaxacct.train.trainer import DPTrainer


def certified_epsilon(trainer: DPTrainer) -> Bounds:
    """Returns certified bounds on the epsilon of a trainer's run so far, at its delta.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars; zeros before the first step.

    Formal guarantee: ``upper`` holds for adding or removing one example, for noise and rate fixed before training,
    which a trainer's are, and a stopping time that depends on them alone
    (:attr:`~jaxacct.train.trainer.DPTrainer.stopping_was_planned`; not checked here). Batches cut at capacity are paid
    for on both sides: ``upper`` is computed at delta less their cost, ``lower`` at delta plus it. ``lower`` bounds the
    epsilon of the worst gradients, not of those that occurred.

    >>> import jax.numpy as jnp, numpy as np, optax
    >>> from flax import nnx
    >>> from jaxacct.train import DPTrainer
    >>> trainer = DPTrainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), lambda m, x: jnp.sum(m(x) ** 2), optax.sgd(0.1),
    ...                     (np.ones((100, 1), np.float32),), epsilon=2.0, delta=1e-3, noise_multiplier=4.0,
    ...                     expected_batch_size=20, clip_norm=1.0)
    >>> _ = trainer.fit(steps=2)
    >>> bounds = certified_epsilon(trainer)
    >>> bool(0 < bounds.lower <= bounds.upper <= trainer.spent_epsilon)
    True
    """
    steps = trainer.steps
    left = trainer.delta_after_overflow
    above = jaxacct.epsilon(trainer.mechanism, steps=steps, delta=left)
    cost = trainer.sampler.overflow_delta(steps, trainer.epsilon)
    if cost == 0.0:
        return above
    more = math.nextafter(trainer.delta + cost, 1.0)
    below = jaxacct.epsilon(trainer.mechanism, steps=steps, delta=more)
    return Bounds(lower=below.lower, estimate=above.estimate, upper=above.upper)


def guarantee(trainer: DPTrainer) -> str:
    """Returns, in words, which of the run's epsilons holds and why."""
    if trainer.stopping_was_planned:
        text = (
            "The noise multiplier and the sampling rate were fixed before training and the stopping time depends only "
            "on them, so the certified epsilon of the non-adaptive composition holds for the realized number of steps. "
            "The Rényi filter's epsilon would also hold had they been chosen adaptively."
        )
    else:
        text = (
            "Training was interrupted or continued, so its length may depend on what was seen of the model. The "
            f"certified epsilon of the non-adaptive composition does not apply. The Rényi filter's budget, epsilon = "
            f"{trainer.epsilon:g}, holds however the length was chosen."
        )
    text += (
        " Neighbours: one example added or removed. Batches: Poisson sampled; "
        "those cut at capacity are paid for in delta."
    )
    if trainer.seed != "operating system":
        text += " The random seed was given by the user: the guarantee holds only against those who do not know it."
    return text
