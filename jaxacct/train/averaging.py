"""A running average of the parameters, kept by the optimizer: post-processing of what it releases, at no cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Int32, PyTree

from jaxacct import validation
from jaxacct.train.moving import weight, widened
from jaxacct.train.trainer import DPTrainer


class AveragingState(NamedTuple):
    """State of :func:`averaging`.

    Attributes:
        inner: the optimizer's own.
        average: the average so far, in float32 or wider; the parameters themselves before the first update.
        updates (): how many so far.
    """

    inner: PyTree
    average: PyTree
    updates: Int32[Array, ""]


def averaging(optimizer: optax.GradientTransformation, decay: float = 0.999) -> optax.GradientTransformationExtraArgs:
    """Returns ``optimizer``, which also keeps an exponential moving average of the parameters it makes.

    After t updates the average is ``sum_s decay^(t-s) params_s / sum_s decay^(t-s)`` over s = 1, ..., t: the initial
    parameters are not in it, and early averages need no correction. Training itself is the same to the bit. Read it by
    :func:`averaged`, of a trainer by :func:`averaged_model`.

    Args:
        optimizer: any Optax transformation that makes the whole update: put it around a chain, not into one.
        decay: in [0, 1); about 1 / (1 - decay) updates count. 0 is no average. Raise it in long runs of much noise.

    Formal guarantee: a function of the released parameters, so that it costs nothing (post-processing).

    Raises ValueError where ``decay`` is out of range, or ``update`` gets no parameters.

    Source: Polyak and Juditsky (1992), "Acceleration of stochastic approximation by averaging"; under noise for
    privacy, De et al. (2022), "Unlocking high-accuracy differentially private image classification through scale".

    >>> optimizer = averaging(optax.sgd(1.0), decay=0.5)
    >>> params, state = jnp.zeros(()), optimizer.init(jnp.zeros(()))
    >>> for _ in range(2):
    ...     updates, state = optimizer.update(jnp.array(-3.0), state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> float(params), float(averaged(state))  # (3 / 2 + 6) / (1 / 2 + 1)
    (6.0, 5.0)
    """
    validation.check_decay(decay, "decay")
    inner = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> AveragingState:
        return AveragingState(inner.init(params), widened(params), jnp.zeros((), jnp.int32))

    def update(
        updates: PyTree, state: AveragingState, params: PyTree | None = None, **extra: Any
    ) -> tuple[PyTree, AveragingState]:
        if params is None:
            raise ValueError("params = None: averaging needs them; call update(updates, state, params).")
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        count = optax.safe_increment(state.updates)
        share = (1 - decay) / weight(decay, count)  # of the new one: 1 at first
        made = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda old, new: old + share * (new - old), state.average, made)
        return updates, AveragingState(inner_state, average, count)

    return optax.GradientTransformationExtraArgs(init, update)


def averaged(state: PyTree) -> PyTree:
    """Returns the average that an optimizer's state holds: a pytree like the parameters, in float32 or wider.

    Raises ValueError where the state, with what other transformations keep in it, is not of exactly one
    :func:`averaging`.

    >>> averaged(averaging(optax.sgd(1.0)).init(jnp.ones(2))).tolist()  # no update yet
    [1.0, 1.0]
    """
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, AveragingState))
    found = [leaf.average for leaf in leaves if isinstance(leaf, AveragingState)]
    if len(found) != 1:
        raise ValueError(f"the optimizer keeps {len(found)} averages of the parameters: give averaging(optimizer).")
    return found[0]


def averaged_model(trainer: DPTrainer) -> nnx.Module:
    """Returns the module with the average of its parameters in place of the last ones, in their dtypes: a copy.

    Under the guarantee of :attr:`.DPTrainer.model`. ``fit`` evaluates it by ``evaluate=lambda _:
    score(averaged_model(trainer))``. Raises ValueError where the trainer's optimizer is not :func:`averaging`.

    >>> trainer = DPTrainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), lambda m, x: m(x)[0], averaging(optax.sgd(0.1)),
    ...                     (jnp.ones((50, 1)),), epsilon=2.0, delta=1e-3, noise_multiplier=3.0,
    ...                     expected_batch_size=10, clip_norm=1.0, ledger="filter")
    >>> bool(averaged_model(trainer).kernel[0, 0] == trainer.model.kernel[0, 0])  # no update yet
    True
    """
    model, state = trainer.model, trainer.state
    average = averaged(state.opt_state)
    nnx.update(model, jax.tree.map(lambda mean, last: mean.astype(last.dtype), average, state.params))
    return model
