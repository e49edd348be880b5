"""DP-SGD's noise as an Optax transformation: any optimizer chained after it is post-processing."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, PyTree

from jaxacct import validation
from jaxacct.precision import is_concrete
from jaxacct.strategies import NoiseState, Strategy
from jaxacct.train.clipping.rules import check_finite_clip_norm
from jaxacct.train.keys import run_key
from jaxacct.train.noise import privatized, start
from jaxacct.train.owned import owned_settings


class AddNoiseState(NamedTuple):
    """State of :func:`add_noise`.

    Attributes:
        key (): typed key that the next update splits. Secret, as the noise can be redone from it.
        noise: what correlated noise remembers; as secret.
    """

    key: jax.Array
    noise: NoiseState | None = None

    def __repr__(self) -> str:
        return "<AddNoiseState>"  # not its key


def add_noise(
    noise_multiplier: float,
    clip_norm: ArrayLike | None = None,
    *,
    expected_batch_size: float,
    seed: int | jax.Array | None = None,
    strategy: Strategy | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation of a sum of clipped gradients into a private estimate of their mean.

    ``update`` adds Gaussian noise of deviation ``noise_multiplier`` times ``clip_norm`` to every entry and divides by
    the expected batch size: :func:`~jaxacct.train.privatize`. Put it first in ``optax.chain``, and give the chain what
    :func:`~jaxacct.train.clip_and_sum` returns: a sum, not a mean.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity; of the gradients, where an adaptive rule
            pays for a count as well.
        clip_norm: L2 sensitivity of the sum. None: ``update`` takes it as ``sensitivity=rule.sensitivity``, which a
            chain passes on.
        expected_batch_size: a public number.
        seed: as :func:`~jaxacct.train.run_key` takes it. None: each ``init`` draws from the operating system's entropy.
            With a seed or key, each ``init`` starts the same noise: use one for one training only.
        strategy: correlates the noise of updates (:mod:`jaxacct.strategies`); None: it is independent.

    Returns:
        A transformation; its updates have the parameters' dtypes where ``params`` are given, else those of the updates
        under the ambient precision.

    Formal guarantee: each ``update`` is a Gaussian mechanism for adding or removing one example, of that noise
    multiplier, if the sum's sensitivity is as stated. With a strategy all updates since ``init`` are together a
    :class:`.MatrixMechanism`, if examples come to them as its participation says. The key is split at every update, so
    that none is used twice as long as each state is used once. Anything that sets the state back after having looked at
    the updates, such as ``optax.apply_if_finite``, would use noise again: do not wrap this in it.

    Raises ValueError where an argument is out of range, where no or two sensitivities are given, and where ``init``
    without a seed is traced, since the compiled program would repeat its noise.

    Source: Abadi et al. (2016), "Deep learning with differential privacy", Algorithm 1.

    >>> import jax.numpy as jnp, optax
    >>> optimizer = optax.chain(add_noise(0.0, 1.0, expected_batch_size=4.0, seed=1), optax.sgd(1.0))
    >>> state = optimizer.init(jnp.zeros(2))
    >>> updates, state = optimizer.update(jnp.array([2.0, 4.0]), state, jnp.zeros(2))
    >>> updates.tolist()
    [-0.5, -1.0]
    """
    validation.check_noise_multiplier(noise_multiplier)
    validation.check_positive(expected_batch_size, "expected_batch_size")
    for name, value in (("noise_multiplier", noise_multiplier), ("expected_batch_size", expected_batch_size)):
        validation.check_scalar(value, name)
    if clip_norm is not None:
        validation.check_scalar(clip_norm, "clip_norm")
        check_finite_clip_norm(clip_norm)
    if seed is not None:
        run_key(seed)
    if strategy is not None and not isinstance(strategy, Strategy):
        raise TypeError(f"strategy = {strategy!r} is none: give one of jaxacct.strategies.")
    noise_multiplier, clip_norm, expected_batch_size = map(_own, (noise_multiplier, clip_norm, expected_batch_size))
    strategy = owned_settings(strategy, "strategy")

    def init(params: PyTree) -> AddNoiseState:
        if seed is None and not is_concrete(params):
            raise ValueError(
                "seed = None within a compiled init: its noise would be the same at each call. Call init outside of "
                "jit, or give a typed key as the seed."
            )
        return AddNoiseState(run_key(seed), None if strategy is None else start(strategy, params))

    def update(
        updates: PyTree,
        state: AddNoiseState,
        params: PyTree | None = None,
        *,
        sensitivity: ArrayLike | None = None,
        **_: Any,
    ) -> tuple[PyTree, AddNoiseState]:
        bound = sensitivity if clip_norm is None else clip_norm
        if bound is None or (clip_norm is not None and sensitivity is not None):
            given = "neither" if bound is None else "both"
            raise ValueError(f"{given} of clip_norm and update's sensitivity is given: give one.")
        next_key, noise_key = jax.random.split(state.key)
        noisy, kept = privatized(
            noise_key, updates, strategy, state.noise, noise_multiplier=noise_multiplier, clip_norm=bound,
            expected_batch_size=expected_batch_size,
        )  # fmt: skip
        narrowed = jax.tree.map(_narrow, noisy, updates if params is None else params)
        return narrowed, AddNoiseState(next_key, kept)

    return optax.GradientTransformationExtraArgs(init, update)


def _own(value: Any) -> Any:
    """NumPy's arrays may be written to later: what was checked is what is used."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _narrow(noisy: Array, like: Array) -> Array:
    return noisy.astype(jax.dtypes.canonicalize_dtype(like.dtype))
