"""Optax transformations for noisy gradients: averages of parameters, Adam without the noise's variance, norms.

* :func:`averaging`: an exponential moving average of the parameters, kept by the optimizer;
* :func:`adam_bc`: Adam whose second moment leaves out the noise's variance (DP-AdamBC);
* :func:`observing`: the norms of the last update, and of the noise in it.

All of it is post-processing of what was released, and costs nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, ArrayLike, Float32, Int32, PyTree

from jaxacct import validation
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.train.ownership import entries_of
from jaxacct.train.trainer import DPTrainer

T = TypeVar("T")
"""Type of an optimizer's state."""


class AveragingState(NamedTuple):
    """State of :func:`averaging`.

    Attributes:
        inner: the optimizer's own.
        average: the average so far, in float32 or wider; the parameters themselves before the first update.
        updates (): number of updates so far.
    """

    inner: PyTree
    average: PyTree
    updates: Int32[Array, ""]


@takes_python_values
def averaging(optimizer: optax.GradientTransformation, decay: float = 0.999) -> optax.GradientTransformationExtraArgs:
    """Returns ``optimizer``, which also keeps an exponential moving average of the parameters it makes.

    After t updates the average is ``sum_s decay^(t-s) params_s / sum_s decay^(t-s)`` over s = 1, ..., t: the initial
    parameters are not in it, and early averages need no correction. Training itself is the same to the bit. Read it by
    :func:`averaged`, of a trainer by :func:`averaged_model`.

    Args:
        optimizer: any Optax transformation that makes the whole update: put it around a chain, not into one.
        decay: in [0, 1); about 1 / (1 - decay) updates count. 0 is no average. Raise it in long runs of much noise.

    Formal guarantee: the average is a function of the released parameters, so that it costs nothing (post-processing).

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
        return AveragingState(inner.init(params), widen(params), jnp.zeros((), jnp.int32))

    def update(
        updates: PyTree, state: AveragingState, params: PyTree | None = None, **extra: Any
    ) -> tuple[PyTree, AveragingState]:
        if params is None:
            raise ValueError("params = None: averaging needs them; call update(updates, state, params).")
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        count = optax.safe_increment(state.updates)
        share = (1 - decay) / weight(decay, count)  # weight of the new parameters: 1 at the first update
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
    return _only(state, AveragingState, "{} averages of the parameters: give averaging(optimizer)").average


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


def weight(decay: ArrayLike, updates: Array) -> Float32[Array, ""]:
    """Returns ``1 - decay^updates``, without cancellation; the decay may be traced, as where Optax injects it.

    >>> round(float(weight(0.5, jnp.array(3))), 4)
    0.875
    """
    logarithm: ArrayLike = -math.inf
    if not isinstance(decay, (int, float)):
        logarithm = jnp.log(jnp.asarray(decay, jnp.float32))
    elif decay > 0:
        logarithm = math.log(decay)
    return -jnp.expm1(jnp.asarray(updates * logarithm, jnp.float32))


def widen(tree: PyTree) -> PyTree:
    """Returns ``tree`` in float32 or wider: narrow types would round away what a late step adds to an average."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), tree)


# ----------------------------------------------------------------------------------------------------
# DP-AdamBC: Adam whose second moment is that of the gradients, without the noise's variance.
# ----------------------------------------------------------------------------------------------------


class AdamBCState(NamedTuple):
    """State of :func:`adam_bc`.

    Attributes:
        mean, square: decayed sums of the gradients and of their squares, in float32 or wider.
        updates (): number of updates so far.
    """

    mean: PyTree
    square: PyTree
    updates: Int32[Array, ""]


@takes_python_values
def adam_bc(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    floor: float | None = None,
    noise_deviation: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns Adam for noisy gradients, with the noise's variance taken out of the second moment.

    The noise of deviation s on every entry adds s^2 to the mean square of the gradients, mostly far more than the
    gradients have: all entries are then divided by about s, and Adam is gradient descent with momentum. This one makes
    ``-learning_rate m / sqrt(max(v - s^2, floor))``, m and v Adam's bias-corrected moments.

    Args:
        learning_rate: a number or a schedule of Optax.
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second one, in [0, 1).
        floor: least value of the corrected second moment, the source's gamma'; above 0. Larger is more like gradient
            descent. None: one standard deviation of what the noise alone leaves of it after t updates, ``s^2 sqrt(2 (1
            - b2) (1 + b2^t) / ((1 + b2) (1 - b2^t)))``, below which an entry is like noise.
        noise_deviation: s, ``noise_multiplier * clip_norm / expected_batch_size``. None: each ``update`` gets it, as
            :class:`.DPTrainer` does, also of noise and clipping norms that change on the way; that goes first.

    Returns:
        A transformation that makes the whole update.

    Formal guarantee: post-processing of noisy gradients and of s, which is public.

    Raises ValueError where an argument is out of range, and where nobody gives the deviation.

    Source: Tang, Shpilevskiy and Lécuyer (2024), "DP-AdamBC: your DP-Adam is actually DP-SGD (unless you apply bias
    correction)", Algorithm 1. The default floor is ours: the squares of s N have mean s^2 and variance 2 s^4, and the
    weights of a bias-corrected moment have the sum of squares ``(1 - b2) (1 + b2^t) / ((1 + b2) (1 - b2^t))``.

    >>> optimizer = adam_bc(0.1, noise_deviation=3.0, floor=1e-3)
    >>> updates, _ = optimizer.update(jnp.array([5.0, 1.0]), optimizer.init(jnp.zeros(2)))
    >>> [round(float(update), 4) for update in updates]  # 5 / sqrt(25 - 9), 1 / sqrt(floor)
    [-0.125, -3.1623]
    """
    if not callable(learning_rate):
        validation.check_number(learning_rate, "learning_rate")
    validation.check_decay(b1, "b1")
    validation.check_decay(b2, "b2")
    if floor is not None:
        validation.check_positive(floor, "floor")
    if noise_deviation is not None:
        validation.check_noise_multiplier(noise_deviation, "noise_deviation")

    def init(params: PyTree) -> AdamBCState:
        zeros = jax.tree.map(jnp.zeros_like, widen(params))
        return AdamBCState(zeros, zeros, jnp.zeros((), jnp.int32))

    def update(
        updates: PyTree,
        state: AdamBCState,
        params: PyTree | None = None,
        *,
        noise_deviation: ArrayLike | None = noise_deviation,
        **_: Any,
    ) -> tuple[PyTree, AdamBCState]:
        if noise_deviation is None:
            raise ValueError(
                "noise_deviation = None: nobody says how much noise the updates have. Give it to adam_bc, or to each "
                "update: noise_multiplier * clip_norm / expected_batch_size."
            )
        count = optax.safe_increment(state.updates)
        mean, square = _update_moment(b1, state.mean, updates, 1), _update_moment(b2, state.square, updates, 2)
        weights = weight(b1, count), weight(b2, count)
        variance = jnp.asarray(noise_deviation, jnp.float32) ** 2
        # The default floor: one standard deviation of what noise alone leaves of the corrected moment. Where there is
        # no noise, the square of Adam's usual epsilon: sound for any value above 0.
        least = jnp.asarray(floor, jnp.float32) if floor is not None else (
            jnp.maximum(variance * jnp.sqrt(2 * _squared_weights(b2, count)), 1e-16)
        )  # fmt: skip

        def direction(mean: Array, square: Array, like: Array) -> Array:
            corrected = jnp.maximum(square / weights[1] - variance, least)
            return (mean / weights[0] / jnp.sqrt(corrected)).astype(like.dtype)

        made = jax.tree.map(direction, mean, square, updates)
        return made, AdamBCState(mean, square, count)

    return optax.chain(  # chains hand update's keywords on
        optax.GradientTransformationExtraArgs(init, update), optax.scale_by_learning_rate(learning_rate)
    )


def _update_moment(decay: float, moment: PyTree, updates: PyTree, power: int) -> PyTree:
    """Returns a moment after one more gradient, taken to that power; not yet bias-corrected."""
    return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new.astype(old.dtype) ** power, moment, updates)


def _squared_weights(decay: float, count: Array) -> Array:
    """Returns the sum of the squares of a bias-corrected moment's weights."""
    # With w = 1 - b^t, 1 + b^t is 2 - w: no cancellation at small t.
    there = weight(decay, count)
    return (1 - decay) * (2 - there) / ((1 + decay) * there)


# ----------------------------------------------------------------------------------------------------
# Norms of the last update and of the noise in it, computed from released and public numbers, at no cost.
# ----------------------------------------------------------------------------------------------------


class Norms(NamedTuple):
    """L2 norms of the last update, zero before the first; float32.

    Attributes:
        gradient (): norm of the noisy mean of clipped gradients, as released.
        noise (): root mean square of the norm of the noise in it, a public number: deviation times sqrt(entries).
        update (): norm of the update that the optimizer made of it.
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

    Put it around everything else. Its noise is the ``noise_deviation`` that ``update`` gets, from :class:`.DPTrainer`
    for one; NaN without it.

    Formal guarantee: the norms are functions of released and public numbers, so that they cost nothing
    (post-processing).

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
        entries = entries_of(updates)
        noise = jnp.asarray(extra.get("noise_deviation", math.nan), jnp.float32) * math.sqrt(entries)
        return made, ObservingState(inner_state, Norms(_norm(updates), noise, _norm(made)))

    return optax.GradientTransformationExtraArgs(init, update)


def last_norms(trainer: DPTrainer) -> Norms:
    """Returns the norms of a trainer's last update; its optimizer is :func:`observing`.

    The noise is divided by the batch's expected size, ``trainer.sampler.expected_batch_size``. The size that was drawn
    is private. Raises ValueError where the optimizer keeps no norms.

    >>> trainer = DPTrainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), lambda m, x: m(x)[0], observing(optax.sgd(0.1)),
    ...                     (jnp.ones((50, 1)),), epsilon=2.0, delta=1e-3, noise_multiplier=3.0,
    ...                     expected_batch_size=10, clip_norm=1.0, ledger="filter")
    >>> float(last_norms(trainer).update)  # no update yet
    0.0
    """
    return _only(trainer.state.opt_state, ObservingState, "the norms of {} updates: give observing(optimizer)").norms


def _norm(tree: PyTree) -> Array:
    """Returns the L2 norm of all entries together, in float32."""
    return jnp.sqrt(sum(jnp.square(leaf.astype(jnp.float32)).sum() for leaf in jax.tree.leaves(tree)))


def _only(state: PyTree, kind: type[T], what: str) -> T:
    """Returns the one state of a kind in an optimizer's state; raises ValueError where it has none or several."""
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    states = [leaf for leaf in leaves if isinstance(leaf, kind)]
    if len(states) != 1:
        raise ValueError(f"the optimizer keeps {what.format(len(states))}.")
    return states[0]
