"""One call from a model, its data and a budget to a trainer that spends the budget."""

from __future__ import annotations

from collections.abc import Callable

import optax
from flax import nnx
from jaxtyping import Array, PyTree

from jaxacct.train.groups import Batches
from jaxacct.train.sources import source_of
from jaxacct.train.trainer import DPTrainer

LEAST_BATCH, LEAST_RATE = 256, 0.01
"""Of batches, where nothing is said. Noise is divided by the batch's size, so that small ones drown in it."""


def make_private(
    model: nnx.Module,
    loss: Callable[..., Array],
    optimizer: optax.GradientTransformation,
    data: PyTree,
    epsilon: float,
    delta: float,
    epochs: float,
    *,
    clip_norm: float = 1.0,
    expected_batch_size: float | None = None,
    most_examples: int | None = None,
) -> DPTrainer:
    """Returns a trainer that spends (epsilon, delta) on so many passes over the data, with the least noise for that.

    A short form of :class:`.DPTrainer`, which has everything else; ``trainer.fit()`` makes all the steps. For
    parameters that are in no Flax module, :class:`.PrivateGradients`.

    Args:
        model: a Flax module, called by ``loss`` on one example at a time.
        loss: ``loss(model, *example)``, the scalar loss of one example without a batch axis.
        optimizer: any Optax transformation.
        data: the examples, along a common leading axis: ``(inputs, labels)``.
        epsilon: of the whole run.
        delta: likewise; well below one over the number of examples.
        epochs: expected passes over the data. More of them train longer, under more noise.
        clip_norm: bound on the L2 norm of each example's gradient.
        expected_batch_size: of the Poisson sampled batches. None: a hundredth of the data, but at least 256 examples,
            or all. Larger ones mostly do better, for more work.
        most_examples: a public number, chosen without looking, that the data has at most: how many there are is then
            protected, too (:class:`.Batches`). None: it is taken as public.

    Formal guarantee: that of :class:`.DPTrainer`.

    >>> import numpy as np
    >>> x = np.ones((300, 2), np.float32)
    >>> trainer = make_private(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), lambda model, x: model(x)[0] ** 2, optax.sgd(0.1),
    ...                        (x,), epsilon=2.0, delta=1e-4, epochs=3)
    >>> trainer.plan.steps, bool(1.99 < trainer.plan.certified.upper <= 2.0)
    (4, True)
    """
    source = source_of(data)
    size = Batches(most_examples=most_examples).size_for(len(source))
    if expected_batch_size is None:
        expected_batch_size = min(size, max(LEAST_BATCH, LEAST_RATE * size))
    return DPTrainer(
        model, loss, optimizer, source, epsilon=epsilon, delta=delta, epochs=epochs, clip_norm=clip_norm,
        expected_batch_size=expected_batch_size, most_examples=most_examples,
    )  # fmt: skip
