"""How large the last update was, and how much of it is noise: of released and public numbers, at no cost."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float32, PyTree

from jaxacct.train.trainer import DPTrainer


class Norms(NamedTuple):
    """L2 norms of the last update, zero before the first; float32.

    Attributes:
        gradient (): of the noisy mean of clipped gradients, as released.
        noise (): root mean square of that of the noise in it, a public number: deviation times sqrt(entries).
        update (): of what the optimizer made of it.
    """

    gradient: Float32[Array, ""]
    noise: Float32[Array, ""]
    update: Float32[Array, ""]

    @property
    def signal(self) -> float:
        """Estimate of the norm of the mean clipped gradient: ``sqrt(gradient^2 - noise^2)``, 0 where noise drowns it.

        The square is unbiased before it is cut at 0; of d entries, it errs by about ``noise^2 sqrt(2 / d)``.
        """
        return math.sqrt(max(float(self.gradient) ** 2 - float(self.noise) ** 2, 0.0))


class ObservingState(NamedTuple):
    """State of :func:`observing`.

    Attributes:
        inner: the optimizer's own.
        norms: of the last update.
    """

    inner: PyTree
    norms: Norms


def observing(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns ``optimizer``, which also keeps the :class:`Norms` of its last update; :func:`last_norms` reads them.

    Put it around everything else. Its noise is what ``update`` is told as ``noise_deviation``, as :class:`.DPTrainer`
    does; NaN where it is not told.

    Formal guarantee: a function of released and public numbers, so that it costs nothing (post-processing).

    >>> optimizer = observing(optax.sgd(0.5))
    >>> _, state = optimizer.update(jnp.array([3.0, 4.0]), optimizer.init(jnp.zeros(2)), noise_deviation=2.0)
    >>> [round(float(norm), 3) for norm in state.norms], round(state.norms.signal, 3)
    ([5.0, 2.828, 2.5], 4.123)
    """
    inner = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> ObservingState:
        zero = jnp.zeros((), jnp.float32)
        return ObservingState(inner.init(params), Norms(zero, zero, zero))

    def update(
        updates: PyTree,
        state: ObservingState,
        params: PyTree | None = None,
        **extra: Any,
    ) -> tuple[PyTree, ObservingState]:
        made, inner_state = inner.update(updates, state.inner, params, **extra)
        entries = sum(leaf.size for leaf in jax.tree.leaves(updates))
        noise = jnp.asarray(extra.get("noise_deviation", math.nan), jnp.float32) * math.sqrt(entries)
        return made, ObservingState(inner_state, Norms(_norm(updates), noise, _norm(made)))

    return optax.GradientTransformationExtraArgs(init, update)


def last_norms(trainer: DPTrainer) -> Norms:
    """Returns the norms of a trainer's last update; its optimizer is :func:`observing`.

    What stands against the noise is the batch's expected size, ``trainer.sampler.expected_batch_size``. The size that
    was drawn is private. Raises ValueError where the optimizer keeps no norms.

    >>> from flax import nnx
    >>> trainer = DPTrainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), lambda m, x: m(x)[0], observing(optax.sgd(0.1)),
    ...                     (jnp.ones((50, 1)),), epsilon=2.0, delta=1e-3, noise_multiplier=3.0,
    ...                     expected_batch_size=10, clip_norm=1.0, ledger="filter")
    >>> float(last_norms(trainer).update)  # no update yet
    0.0
    """
    leaves = jax.tree.leaves(trainer.state.opt_state, is_leaf=lambda node: isinstance(node, ObservingState))
    found = [leaf.norms for leaf in leaves if isinstance(leaf, ObservingState)]
    if len(found) != 1:
        raise ValueError(f"the optimizer keeps the norms of {len(found)} updates: give observing(optimizer).")
    return found[0]


def _norm(tree: PyTree) -> Array:
    return jnp.sqrt(sum(jnp.square(leaf.astype(jnp.float32)).sum() for leaf in jax.tree.leaves(tree)))
