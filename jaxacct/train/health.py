"""Whether a run still learns, by what may be looked at for nothing; where it does not, it ends with its budget unspent.

Free to look at, being post-processing or public: parameters after a noisy update and whatever is computed of them, the
settings and the ledger, examples that are nobody's. Not free: the data, its losses, its gradients, and whether one of
them is NaN. Gradients that are not finite add nothing to the sum (:mod:`jaxacct.train.clipping`), which nobody may see
without noise. So gradients are looked at on made-up examples, before anything is paid for, parameters after updates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from jaxacct.train.leaves import on_host

MOST_GROWTH = 1e4
"""Of the root mean square of the parameters within a call of ``fit``, measured from 1 where it is less: layers start
below 1, and where targets are standardized they stay near it. Chosen for only a rate that is beyond use to get here."""


SMALL = 2**16
"""Entries of parameters that are looked at together: less to compile. Speed only."""


def all_finite(params: PyTree, *, whole: bool = False) -> Bool[Array, ""]:
    """Returns whether no parameter is infinite or NaN; traceable. ``whole``: none lies over several devices."""
    leaves = jax.tree.leaves(params)
    small = [leaf for leaf in leaves if whole and leaf.size <= SMALL]
    joined = [
        jnp.concatenate([leaf.reshape(-1) for leaf in small if leaf.dtype == dtype])
        for dtype in dict.fromkeys(leaf.dtype for leaf in small)
    ]
    others = [leaf for leaf in leaves if not whole or leaf.size > SMALL]
    return jnp.array([jnp.isfinite(leaf).all() for leaf in joined + others], bool).all()


def root_mean_square(params: PyTree) -> float:
    """Returns that of all entries together; inf or NaN where one is.

    >>> root_mean_square({"kernel": jnp.array([3.0, 4.0]), "bias": jnp.zeros(2)})
    2.5
    """
    leaves = [on_host(leaf).astype(np.float64) for leaf in jax.tree.leaves(params)]
    return float(np.sqrt(sum(np.square(leaf).sum() for leaf in leaves) / sum(leaf.size for leaf in leaves)))


def check_parameters(params: PyTree, before: float, steps: int) -> None:
    """Raises FloatingPointError where parameters are not finite, or out of all proportion to ``before``.

    Args:
        params: after ``steps`` updates.
        before: their :func:`root_mean_square` when the call of ``fit`` began.
        steps: for the message.
    """
    after = root_mean_square(params)
    if math.isfinite(after) and after <= MOST_GROWTH * max(1.0, before):
        return
    spent = f"The run ends after {steps} updates and spends no more:"
    if not math.isfinite(after):
        raise FloatingPointError(
            f"{spent} not all of its parameters are finite, and no gradient would be. Lower the learning rate, or look "
            "for what overflows in the optimizer; clipping bounds the gradients."
        )
    raise FloatingPointError(
        f"{spent} the root mean square of its parameters went from {before:.3g} to {after:.3g}, which noise does where "
        "the learning rate is too large. Lower it, or standardize targets of that size; fit called again goes on from "
        "here."
    )


def check_gradients(loss: Callable[[PyTree, Any], Array], params: PyTree, example: Any) -> None:
    """Raises FloatingPointError where the loss has no finite gradient at any of some made-up examples.

    Every example of the data would then most likely count as zero, and the budget would buy noise.

    Args:
        loss: ``loss(params, example)``, a scalar.
        params: where training is to begin.
        example: pytree of ``jax.ShapeDtypeStruct``, one example without a batch axis.
    """
    finite = jax.jit(lambda params, example: all_finite(jax.grad(loss)(params, example)))
    if not any(bool(finite(params, made)) for made in _made_up(example)):
        raise no_finite_gradient()


def no_finite_gradient() -> FloatingPointError:
    """Returns the error of a loss that has no finite gradient at any made-up example."""
    return FloatingPointError(
        "the gradient of loss is infinite or NaN at the initial parameters, for examples of zeros, of ones, and of "
        "uniform and of normal numbers: nothing would be learned, and the budget would be spent on noise. Look for "
        "0 / 0, log(0), or a norm or root whose argument is 0, and for initial parameters that are not finite."
    )


def _made_up(example: Any) -> Iterator[Any]:
    """Yields examples of these shapes: the first is mostly enough, and one program does for all."""
    rng = np.random.default_rng(0)
    draws: tuple[Callable[[tuple[int, ...]], Any], ...] = (np.zeros, np.ones, rng.random, rng.standard_normal)

    def part(shape: jax.ShapeDtypeStruct, draw: Callable[[tuple[int, ...]], Any]) -> Array:
        values = np.asarray(draw(shape.shape))
        return jnp.asarray(values if jnp.issubdtype(shape.dtype, jnp.floating) else np.abs(values), shape.dtype)

    for draw in draws:
        yield jax.tree.map(functools.partial(part, draw=draw), example)
