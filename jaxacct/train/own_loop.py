"""Private gradients for training loops other than the trainer's: batches, clipped sums, noise and a count of steps.

* :class:`PrivateGradients`: noisy mean gradients of any loss of a pytree, as many as a certified plan has;
* :func:`make_private`: a trainer from a model, its data and a budget in one call;
* :func:`add_noise`: the noise of DP-SGD as an Optax transformation, accounted by the caller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float32, Int32, PyTree

from jaxacct import validation
from jaxacct.numerics.precision import is_concrete
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.strategies import NoiseState, Strategy
from jaxacct.train.clipping import ClippingRule, clip_and_sum
from jaxacct.train.clipping.query import check_finite_clip_norm, check_rows
from jaxacct.train.keys import run_key, threefry
from jaxacct.train.models import takes_key
from jaxacct.train.noise import deviation_of_mean, privatize, privatized, start
from jaxacct.train.owned import owned_settings
from jaxacct.train.planned import Plan, PlannedLedger
from jaxacct.train.sampling import Correlated
from jaxacct.train.sampling.sampler import Batch, check_num_examples
from jaxacct.train.settings import public_size, rule_of, spending
from jaxacct.train.sources import source_of
from jaxacct.train.step import LOSS, NOISE, RULE, SAMPLE, strongly_typed
from jaxacct.train.trainer import DPTrainer


@register_dataclass
@dataclass(frozen=True, kw_only=True, repr=False)
class PrivateState:
    """The state that changes from one gradient to the next.

    Attributes:
        ledger: the count of the plan's steps.
        rule: the clipping rule; an adaptive one carries its norm.
        step (): noisy gradients so far, which the key is folded with.
        key (): typed key of the run. Secret, as the noise can be redone from it.
    """

    ledger: PlannedLedger
    rule: ClippingRule
    step: Int32[Array, ""]
    key: jax.Array

    def __repr__(self) -> str:
        return f"<PrivateState: step {self.step}>"


@dataclass(frozen=True)
class PrivateGradients:
    """Private gradients of any loss of a pytree of parameters, as many as a plan has; made by :meth:`planned`.

    Attributes:
        loss: ``loss(params, *example)``, the scalar loss of one example without a batch axis; or
            ``loss(params, *example, key=...)``, which gets a key of its own for each example and step.
        plan: what is drawn, how much noise there is, how many steps, and what all of it costs.
        rule: how gradients are clipped, at the start.
        microbatch_size: as :func:`~jaxacct.train.clip_and_sum` takes it.
        ghost: as :func:`~jaxacct.train.clip_and_sum` takes it.

    A loop: :meth:`start` once, and then for each step :meth:`batch`, the examples at its indices from wherever they
    are, :meth:`gradient`, any optimizer. All but :meth:`start` work under ``jit`` and in ``lax.scan``.

    Formal guarantee: the gradients of one :meth:`start`, and all that is made of them, are (epsilon, delta)-DP for the
    addition or removal of one example, wherever the loop ends and whatever was chosen from what they gave
    (:mod:`jaxacct.train.planned`), if each state is used for one gradient, with the examples of its batch, and the loss
    reaches the data in no other way. :class:`.DPTrainer` sees to all of that by itself. Made-up examples tell before
    the first gradient whether the loss mixes examples (:mod:`jaxacct.train.clipping.rows`).

    >>> private = PrivateGradients.planned(lambda w, x: jnp.sum((w - x) ** 2), 1000, epsilon=2.0, delta=1e-5,
    ...                                    epochs=4, expected_batch_size=100, clip_norm=1.0)
    >>> private.plan.steps, bool(1.99 < private.plan.certified.upper <= 2.0)
    (40, True)
    >>> state = private.start()
    >>> indices, mask = private.batch(state)
    >>> indices.shape == mask.shape == (private.plan.sampler.capacity,), state
    (True, <PrivateState: step 0>)
    """

    loss: Callable[..., Array]
    plan: Plan
    rule: ClippingRule
    microbatch_size: int | None = None
    ghost: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.plan.sampler, Correlated):
            raise ValueError(
                "plan is of correlated noise, and these gradients have independent noise: give it to DPTrainer as "
                "noise; or, in a loop of one's own, to add_noise as strategy."
            )

    @classmethod
    def planned(
        cls,
        loss: Callable[..., Array],
        num_examples: int,
        *,
        epsilon: float,
        delta: float,
        epochs: float,
        expected_batch_size: float,
        clip_norm: float | None = None,
        clipping: ClippingRule | None = None,
        microbatch_size: int | None = None,
        ghost: bool = True,
        most_examples: int | None = None,
    ) -> PrivateGradients:
        """Returns the gradients with the least noise that the certified accountant allows for so many epochs.

        Args:
            loss: ``loss(params, *example)``, or with ``key=`` besides.
            num_examples: size of the data set; public without ``most_examples``.
            epsilon: budget of all gradients together.
            delta: budget of all gradients together; the cost of batches cut at capacity is paid from it.
            epochs: expected passes over the data; steps are whole.
            expected_batch_size: of the Poisson sampled batches.
            clip_norm: bound on the L2 norm of each example's gradient, or
            clipping: a rule of :mod:`jaxacct.train.clipping`.
            microbatch_size: examples whose gradients are held in memory at a time; None: all.
            ghost: whether norms are taken without gradients where that is possible.
            most_examples: a public number, chosen without looking, that the data has at most: it protects
                ``num_examples``, as for :class:`.DPTrainer`. Indices are then below ``num_examples``, and all else that
                is made of it speaks of ``most_examples``.

        Raises ValueError where an argument is out of range, or there is no such plan.
        """
        check_num_examples(num_examples)
        rule = rule_of(clip_norm, clipping)
        made = spending(
            num_examples, epsilon=epsilon, delta=delta, epochs=epochs, expected_batch_size=expected_batch_size,
            most_examples=most_examples,
        ).plan  # fmt: skip
        assert made is not None
        return cls(loss, made, rule, microbatch_size, ghost)

    @property
    def steps(self) -> int:
        """Number of steps of the plan: :meth:`gradient` makes no more."""
        return self.plan.steps

    @property
    def gradient_noise(self) -> float:
        """Noise multiplier of the gradients: the plan's, raised where the clipping rule pays for a count as well."""
        return self.rule.gradient_noise_multiplier(self.plan.noise_multiplier)

    def start(self, seed: int | jax.Array | None = None) -> PrivateState:
        """Returns the state before the first gradient.

        ``seed`` as :func:`~jaxacct.train.run_key` takes it; None outside of experiments.
        """
        ledger = PlannedLedger.of(self.plan.runs, certified=float(self.plan.certified.upper))
        rule = jax.tree.map(strongly_typed, self.rule)
        return PrivateState(ledger=ledger, rule=rule, step=jnp.zeros((), jnp.int32), key=run_key(seed))

    def batch(self, state: PrivateState) -> Batch:
        """Returns the indices of the step's examples, in a fixed number of rows, and which rows are real."""
        return self.plan.sampler.sample(jax.random.fold_in(state.key, SAMPLE), state.step)

    def noise_deviation(self, state: PrivateState) -> Float32[Array, ""]:
        """Returns the standard deviation of the noise in each entry of the next gradient, for :func:`.adam_bc`."""
        return deviation_of_mean(self.gradient_noise, state.rule.sensitivity, self.plan.sampler.expected_batch_size)

    def gradient(
        self, params: PyTree, state: PrivateState, examples: tuple[PyTree, ...], mask: Bool[Array, " rows"]
    ) -> tuple[PyTree, PrivateState]:
        """Returns the noisy mean of the batch's clipped gradients, and the state after it.

        Args:
            params: pytree of floating-point arrays: what is trained.
            state: used once.
            examples: the parts of the examples at the indices of :meth:`batch`, each with the leading axis ``rows``.
            mask (rows,): which rows are real, as :meth:`batch` gave it.

        Returns:
            A pytree like ``params``, in their dtypes. When the plan's steps are made: zeros, without a look at the
            data, and the state as it was; ValueError where that is known before (outside ``jit``).
        """
        # The ledger pays before anything below looks at the data; a traced refusal takes the branch of zeros.
        granted, ledger = state.ledger.spend(1)
        if is_concrete(granted) and not granted:
            raise ValueError(f"state has made all {self.steps} steps of its plan: plan more epochs to begin with.")
        rows = self.plan.sampler.capacity
        if np.shape(mask) != (rows,) or any(np.shape(part)[:1] != (rows,) for part in jax.tree.leaves(examples)):
            shapes = [np.shape(part) for part in jax.tree.leaves(examples)]
            raise ValueError(
                f"mask has shape {np.shape(mask)} and examples {shapes}: give the mask of batch(state), and the "
                f"{rows} examples at its indices."
            )
        loss, given = _of_rows(self.loss, examples, state, self)
        _check_once(self, *_shapes((params, examples)))

        def release(state: PrivateState) -> tuple[PyTree, PrivateState]:
            size = self.plan.sampler.expected_batch_size
            total, unclipped = clip_and_sum(
                loss, params, given, mask, rule=state.rule, microbatch_size=self.microbatch_size, ghost=self.ghost
            )
            noise, sensitivity = self.gradient_noise, state.rule.sensitivity
            noisy = privatize(
                _key(state, NOISE), total, noise_multiplier=noise, clip_norm=sensitivity, expected_batch_size=size
            )
            rule = state.rule.update(_key(state, RULE), unclipped, size)
            after = dataclasses.replace(state, ledger=ledger, rule=rule, step=state.step + 1)
            return jax.tree.map(lambda entry, leaf: entry.astype(leaf.dtype), noisy, params), after

        if is_concrete(granted):
            return release(state)
        return jax.lax.cond(granted, release, lambda state: (jax.tree.map(jnp.zeros_like, params), state), state)


def _of_rows(
    loss: Callable[..., Array], examples: tuple[PyTree, ...], state: PrivateState, private: PrivateGradients
) -> tuple[Callable[[PyTree, Any], Array], Any]:
    """Returns the loss by parameters and a row, and the rows: examples, with what their keys are made from."""
    if not takes_key(loss, len(examples)):
        return lambda params, row: loss(params, *row), examples
    key = threefry(_key(state, LOSS))

    def keyed(params: PyTree, row: Any) -> Array:
        return loss(params, *row[0], key=jax.random.fold_in(key, row[1]))

    return keyed, (examples, private.batch(state)[0])


def _shapes(tree: PyTree) -> tuple[Any, tuple[Any, ...]]:
    """Returns the structure of a pytree of arrays, and their shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves)


@functools.lru_cache(maxsize=64)
def _check_once(private: PrivateGradients, structure: Any, kinds: tuple[Any, ...]) -> None:
    """Raises ValueError where the loss mixes examples: made-up ones, at parameters that are made up as well.

    The check also works while the caller is being traced, for it uses none of the caller's values. A loss that itself
    refers to traced values cannot be checked, and passes.
    """
    params, examples = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*kind) for kind in kinds])
    one = jax.tree.map(lambda part: jax.ShapeDtypeStruct(part.shape[1:], part.dtype), examples)
    with jax.core.eval_context():
        loss, rows = _of_rows(private.loss, one, private.start(0), private)
        row = rows if rows is one else (one, jax.ShapeDtypeStruct((), jnp.int32))
        with contextlib.suppress(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
            check_rows(
                loss, params, row, private.plan.sampler.capacity, microbatch_size=private.microbatch_size,
                ghost=private.ghost,
            )  # fmt: skip


def _key(state: PrivateState, purpose: int) -> jax.Array:
    """Returns the key of a purpose at the state's step."""
    return jax.random.fold_in(jax.random.fold_in(state.key, purpose), state.step)


# ----------------------------------------------------------------------------------------------------
# A trainer in one call, from a model, its data and a budget.
# ----------------------------------------------------------------------------------------------------

LEAST_BATCH, LEAST_RATE = 256, 0.01
"""Least default size of a batch, in examples, and its least default share of the data. Noise is divided by the batch's
size, so that small batches drown in it. Sound for any values: the plan's noise follows them."""


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
        epsilon: budget of the whole run.
        delta: budget of the whole run; well below one over the number of examples.
        epochs: expected passes over the data. More of them train longer, under more noise.
        clip_norm: bound on the L2 norm of each example's gradient.
        expected_batch_size: of the Poisson sampled batches. None: a hundredth of the data, but at least 256 examples,
            or all. Larger ones mostly do better, for more work.
        most_examples: a public number, chosen without looking, that the data has at most: how many there are is then
            protected, too (:class:`.DPTrainer`). None: it is taken as public.

    Formal guarantee: that of :class:`.DPTrainer`.

    >>> import numpy as np
    >>> x = np.ones((300, 2), np.float32)
    >>> trainer = make_private(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), lambda model, x: model(x)[0] ** 2, optax.sgd(0.1),
    ...                        (x,), epsilon=2.0, delta=1e-4, epochs=3)
    >>> trainer.plan.steps, bool(1.99 < trainer.plan.certified.upper <= 2.0)
    (4, True)
    """
    source = source_of(data)
    size = public_size(len(source), most_examples)
    if expected_batch_size is None:
        expected_batch_size = min(size, max(LEAST_BATCH, LEAST_RATE * size))
    return DPTrainer(
        model, loss, optimizer, source, epsilon=epsilon, delta=delta, epochs=epochs, clip_norm=clip_norm,
        expected_batch_size=expected_batch_size, most_examples=most_examples,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# Noise of DP-SGD as an Optax transformation: any optimizer chained after it is post-processing.
# ----------------------------------------------------------------------------------------------------


class AddNoiseState(NamedTuple):
    """State of :func:`add_noise`.

    Attributes:
        key (): typed key that the next update splits. Secret, as the noise can be redone from it.
        noise: the memory of correlated noise; as secret.
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
        noise_multiplier: standard deviation of the noise over the sensitivity; where an adaptive rule pays for a count
            as well, the multiplier that is left for the gradients.
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
        # Split at every update: a key makes noise for one sum only.
        next_key, noise_key = jax.random.split(state.key)
        noisy, kept = privatized(
            noise_key, updates, strategy, state.noise, noise_multiplier=noise_multiplier, clip_norm=bound,
            expected_batch_size=expected_batch_size,
        )  # fmt: skip
        narrowed = jax.tree.map(_narrow, noisy, updates if params is None else params)
        return narrowed, AddNoiseState(next_key, kept)

    return optax.GradientTransformationExtraArgs(init, update)


def _own(value: Any) -> Any:
    """Returns a copy of a NumPy array, which may be written to later: what was checked is what is used."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _narrow(noisy: Array, like: Array) -> Array:
    """Returns float64 noise in the dtype that ``like`` has under the ambient precision."""
    return noisy.astype(jax.dtypes.canonicalize_dtype(like.dtype))
