"""What a module sows while it works on examples, for a look inside: without any promise of privacy."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PyTree

from jaxacct.train.example_loss import reseeded, takes_key
from jaxacct.train.owned import fresh


def unprotected_intermediates(
    model: nnx.Module, loss: Callable[..., Array], examples: tuple[PyTree, ...], *, key: jax.Array | None = None
) -> PyTree:
    """Returns what ``loss`` sows into ``model`` as ``nnx.Intermediate``, for each example.

    Args:
        model: not modified; for instance :attr:`.DPTrainer.model`.
        loss: as the trainer takes it.
        examples: of the form of the trainer's data: each part has a leading axis.
        key: typed key that dropout and ``loss`` draw from, one for each example folded in. None: streams of ``model``
            are used as they are, by all examples alike, and ``loss`` must not take a key.

    Returns:
        A nested dict as the modules are nested, of what was sown (a tuple, unless it was reduced), each with a leading
        axis: the examples.

    No guarantee: this is a function of the examples without noise, and no ledger knows of it. Give it public data, or
    keep what it returns to yourself: what is chosen by looking at it is no longer covered by a guarantee either.

    Raises ValueError where ``loss`` takes a key and there is none.

    >>> class Sows(nnx.Module):
    ...     def __call__(self, x):
    ...         self.sow(nnx.Intermediate, "squares", x**2)
    ...         return x
    >>> found = unprotected_intermediates(Sows(), lambda model, x: jnp.sum(model(x)), (jnp.array([1.0, 3.0]),))
    >>> found["squares"][0].tolist()
    [1.0, 9.0]
    """
    graph, state = nnx.split(model)
    wants_key = takes_key(loss, len(examples))
    if wants_key and key is None:
        raise ValueError("key = None, and loss takes a key: give one, such as jax.random.key(0).")

    def of_one(index: Array, example: tuple[PyTree, ...]) -> PyTree:
        own = None if key is None else jax.random.split(jax.random.fold_in(key, index))
        copied = nnx.merge(graph, fresh(state if own is None else reseeded(state, own[0])))
        more = {"key": own[1]} if wants_key and own is not None else {}
        _, sown = nnx.capture(lambda model: loss(model, *example, **more), nnx.Intermediate)(copied)
        return nnx.to_pure_dict(sown)

    rows = len(jax.tree.leaves(examples)[0])
    return jax.jit(jax.vmap(of_one))(jnp.arange(rows), examples)
