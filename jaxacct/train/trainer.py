"""The DP-SGD trainer: it samples, clips, sums, noises and updates while a privacy filter grants the steps."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int32, PyTree

from jaxacct import validation
from jaxacct.filters import RenyiFilter
from jaxacct.train.clipping import clipped_sum
from jaxacct.train.keys import describe_seed, run_key
from jaxacct.train.modules import check_module
from jaxacct.train.noise import privatize
from jaxacct.train.sampling import PoissonSampler


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that changes during training, as one pytree.

    Attributes:
        params: the module's ``nnx.Param`` leaves.
        opt_state: Optax's state.
        filter: what has been spent of the budget.
        step (): noisy updates so far; also the counter that keys are folded with.
        key (): typed key of the run; never changes, never used itself.
    """

    params: PyTree
    opt_state: PyTree
    filter: RenyiFilter
    step: Int32[Array, ""]
    key: jax.Array


class Evaluation(NamedTuple):
    """One look at a run: the step, what ``evaluate`` returned (None without it), and the filter's epsilon so far."""

    step: int
    accuracy: float | None
    epsilon: float


class DPTrainer:
    """Trains a Flax module on one data set by DP-SGD until a step would exceed the budget.

    Args:
        model: an ``nnx.Module``; called by ``loss`` on one example at a time. BatchNorm and modules with random state
            (Dropout) are refused. Not modified: read :attr:`model`.
        loss: ``loss(model, *example)``, the scalar loss of one example without a batch axis. What it writes into the
            model's state is dropped.
        optimizer: any Optax transformation; sees the noisy mean of clipped gradients in the parameters' dtype.
        data: tuple of arrays with a common leading axis, the examples: ``(inputs, labels)``.
        epsilon, delta: the budget for ``data``, of this trainer. Another trainer on the same data costs another budget.
        noise_multiplier: standard deviation of the noise over ``clip_norm``.
        sampling_rate or expected_batch_size: exactly one of them; the batch size is Poisson sampled.
        clip_norm: bound on the L2 norm of each example's gradient.
        microbatch_size: examples whose gradients are held in memory at a time. None: the whole batch.
        seed: None for the operating system's entropy, or a whole number or typed key, which makes the run repeatable
            bit for bit and its noise known to whoever knows the seed.

    Formal guarantee: the parameters after any number of :meth:`fit` calls, with all those in between, are (epsilon,
    delta)-DP for adding or removing one example. The Rényi filter shows it, at a delta reduced by what cut batches cost
    (:mod:`jaxacct.train.sampling`); it would cover settings chosen adaptively, too. Noise and rate are fixed here, so
    the certified accountant at the realized number of steps holds as well, and is tighter
    (:func:`~jaxacct.train.accounting.certified_epsilon`), as long as nothing released decides when to stop
    (:attr:`stopping_was_planned`). The size of the data set is taken as public. ``evaluate`` must not see ``data``.

    The spend is taken from the filter in the compiled step, before the update that it pays for. Filter and parameters
    are in memory only: a process that dies has released nothing but what its caller has written down.

    Raises ValueError or TypeError where an argument is out of range, or the budget pays for no step at all.

    >>> from jaxacct.train import DPTrainer
    >>> x, y = np.ones((100, 2), np.float32), np.ones(100, np.float32)
    >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> trainer = DPTrainer(model, lambda m, x, y: jnp.sum((m(x) - y) ** 2), optax.sgd(0.1), (x, y), epsilon=2.0,
    ...                     delta=1e-3, noise_multiplier=2.0, expected_batch_size=20, clip_norm=1.0)
    >>> [entry.step for entry in trainer.fit(steps=3)], trainer.steps
    ([3], 3)
    """

    def __init__(
        self,
        model: nnx.Module,
        loss: Callable[..., Array],
        optimizer: optax.GradientTransformation,
        data: tuple[Any, ...],
        *,
        epsilon: float,
        delta: float,
        noise_multiplier: float,
        clip_norm: float,
        sampling_rate: float | None = None,
        expected_batch_size: float | None = None,
        microbatch_size: int | None = None,
        seed: int | jax.Array | None = None,
    ) -> None:
        check_module(model)
        validation.check_positive(clip_norm, "clip_norm")
        validation.check_epsilon(epsilon)
        validation.check_delta(delta)
        validation.check_noise_multiplier(noise_multiplier)
        self.data = tuple(jnp.asarray(part) for part in data)
        size = _common_size(self.data)
        rate = rate_of(sampling_rate, expected_batch_size, size)
        self.epsilon, self.delta = float(epsilon), float(delta)
        self.noise_multiplier, self.clip_norm = float(noise_multiplier), float(clip_norm)
        self.microbatch_size = microbatch_size
        self.seed = describe_seed(seed)
        self.horizon = affordable_steps(size, rate, self.noise_multiplier, epsilon=self.epsilon, delta=self.delta)
        if self.horizon == 0:
            raise ValueError(
                f"noise_multiplier = {noise_multiplier} at sampling rate {rate:.3g} pays for no step within "
                f"(epsilon = {epsilon}, delta = {delta}): raise noise_multiplier or epsilon, or sample smaller batches."
            )
        self.sampler = PoissonSampler.for_budget(size, rate, epsilon=self.epsilon, delta=self.delta, steps=self.horizon)
        self.mechanism = self.sampler.mechanism(self.noise_multiplier)
        budget = RenyiFilter(self.epsilon, self.delta_after_overflow)
        self._curve = budget.curve(self.mechanism)
        self._loss, self._optimizer = loss, optimizer
        self._graph: Any
        self._constants: PyTree
        self._graph, params, self._constants = nnx.split(model, nnx.Param, ...)  # type: ignore[misc]
        _check_params(params)
        self._check_loss(params)
        self.state = TrainState(
            params=jax.tree.map(_strongly_typed, params),
            opt_state=jax.tree.map(_strongly_typed, optimizer.init(params)),
            filter=budget,
            step=jnp.zeros((), jnp.int32),
            key=run_key(seed),
        )
        self._calls = self._finished = 0
        self._run = jax.jit(self._run_chunk)

    @property
    def delta_after_overflow(self) -> float:
        """What is left of delta once batches cut at capacity are paid for, over the longest run the budget allows."""
        return math.nextafter(self.delta - self.sampler.overflow_delta(self.horizon, self.epsilon), 0.0)

    @property
    def model(self) -> nnx.Module:
        """The module as trained so far: a copy."""
        return nnx.merge(self._graph, self.state.params, self._constants)

    @property
    def steps(self) -> int:
        """Noisy updates so far."""
        return int(self.state.step)

    @property
    def remaining_steps(self) -> int:
        """How many more updates the budget pays for."""
        return int(self.state.filter.remaining(self.mechanism))

    @property
    def spent_epsilon(self) -> float:
        """The Rényi filter's epsilon of the updates so far, at :attr:`delta`: an upper bound."""
        return float(self.state.filter.epsilon())

    @property
    def stopping_was_planned(self) -> bool:
        """Whether the run was at most one call of :meth:`fit` that went to its end.

        Then its length depends on noise, rate and budget only, and the non-adaptive accountant applies. Several calls,
        or an interrupted one, may have been decided on by looking at the model.
        """
        return self._calls == self._finished <= 1

    def fit(
        self,
        steps: int | None = None,
        *,
        every: int | None = None,
        evaluate: Callable[[nnx.Module], float] | None = None,
        on_evaluation: Callable[[Evaluation], None] | None = None,
    ) -> list[Evaluation]:
        """Trains from the present state for ``steps`` updates, or until the budget refuses the next one.

        Args:
            steps: most updates of this call; None: what the budget pays for.
            every: updates between evaluations; None: one expected pass over the data.
            evaluate: gets the module, returns a number to record. Called outside the compiled step.
            on_evaluation: called with each record, for progress bars.

        Returns:
            The records of this call, one every ``every`` updates and one at its end; none if nothing was granted.

        A later call goes on with keys that no earlier one used. Interrupted between two evaluations, the state is that
        of the last one; what was computed since has been seen by nobody.
        """
        validation.check_steps(0 if steps is None else steps)
        every = max(1, round(1 / self.sampler.sampling_rate)) if every is None else every
        if every < 1:
            raise ValueError(f"every = {every} is not a number of updates between evaluations: give at least 1.")
        self._calls += 1
        left = 2**31 - 1 - self.steps if steps is None else int(steps)
        history: list[Evaluation] = []
        granted = True
        while granted and left > 0:
            before, chunk = self.steps, min(every, left)
            self.state, refused = self._run(self.state, self._curve, self._constants, self.data, chunk)
            granted, done = not bool(refused), self.steps - before
            left -= done
            if done:
                accuracy = None if evaluate is None else float(evaluate(self.model))
                history.append(Evaluation(self.steps, accuracy, self.spent_epsilon))
                if on_evaluation is not None:
                    on_evaluation(history[-1])
        self._finished += 1
        return history

    def step(self, state: TrainState) -> tuple[Bool[Array, ""], TrainState]:
        """Returns whether one update was granted, and the state after it: the old one, bit for bit, if refused.

        A pure function of the state: works under ``jit`` and in ``lax.scan``. Does not change :attr:`state`.
        """
        return self._step(state, self._curve, self._constants, self.data)

    def _step(
        self, state: TrainState, curve: Float[Array, " orders"], constants: PyTree, data: tuple[Array, ...]
    ) -> tuple[Array, TrainState]:
        granted, filter_ = state.filter.spend_curve(curve)
        paid = dataclasses.replace(state, filter=filter_)
        update = functools.partial(self._update, constants=constants, data=data)
        return granted, jax.lax.cond(granted, update, lambda unchanged: unchanged, paid)

    def _update(self, state: TrainState, constants: PyTree, data: tuple[Array, ...]) -> TrainState:
        sample_key, noise_key = jax.random.split(jax.random.fold_in(state.key, state.step))
        indices, mask = self.sampler.sample(sample_key)
        total = clipped_sum(
            lambda params, example: self._loss(nnx.merge(self._graph, params, constants), *example),
            state.params,
            tuple(part[indices] for part in data),
            mask,
            clip_norm=self.clip_norm,
            microbatch_size=self.microbatch_size,
        )
        gradient = privatize(
            noise_key,
            total,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            expected_batch_size=self.sampler.expected_batch_size,
        )
        gradient = jax.tree.map(lambda entry, leaf: entry.astype(leaf.dtype), gradient, state.params)
        updates, opt_state = self._optimizer.update(gradient, state.opt_state, state.params)
        return dataclasses.replace(
            state,
            params=optax.apply_updates(state.params, updates),
            opt_state=jax.tree.map(lambda new, old: _strongly_typed(new, old.dtype), opt_state, state.opt_state),
            step=state.step + 1,
        )

    def _run_chunk(
        self, state: TrainState, curve: Array, constants: PyTree, data: tuple[Array, ...], steps: Array
    ) -> tuple[TrainState, Array]:
        """Runs up to ``steps`` steps, a traced number, so that chunks of any length share one compilation."""

        def advance(carry: tuple[Array, Array, TrainState]) -> tuple[Array, Array, TrainState]:
            done, _, state = carry
            granted, state = self._step(state, curve, constants, data)
            return done + 1, ~granted, state

        def goes_on(carry: tuple[Array, Array, TrainState]) -> Array:
            return (carry[0] < steps) & ~carry[1]

        _, refused, state = jax.lax.while_loop(goes_on, advance, (jnp.zeros((), jnp.int32), jnp.array(False), state))
        return state, refused

    def _check_loss(self, params: PyTree) -> None:
        def one(params: PyTree, example: tuple[Array, ...]) -> Array:
            return self._loss(nnx.merge(self._graph, params, self._constants), *example)

        value = jax.eval_shape(one, params, tuple(part[0] for part in self.data))
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"loss returned {value} for one example: it must return a floating-point scalar, of one example "
                "without a batch axis."
            )


def affordable_steps(
    num_examples: int, sampling_rate: float, noise_multiplier: float, *, epsilon: float, delta: float
) -> int:
    """Returns the most steps that a Rényi filter over (epsilon, delta) grants; a run may stop a few earlier.

    Known before training, from public numbers: for learning-rate schedules. The few are what cut batches cost in delta.

    >>> affordable_steps(60_000, 0.01, 1.0, epsilon=3.0, delta=1e-5) > 1500
    True
    """
    # A sampler with room for everyone, for its exact rate: the capacity depends on the number of steps.
    mechanism = PoissonSampler(num_examples, sampling_rate, num_examples + 1).mechanism(noise_multiplier)
    return int(RenyiFilter(epsilon, delta).remaining(mechanism))


def _common_size(data: tuple[Array, ...]) -> int:
    shapes = [np.shape(part) for part in data]
    if not shapes or any(len(shape) == 0 for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
        raise ValueError(f"data has parts of shapes {shapes}: give arrays with one common leading axis, the examples.")
    if shapes[0][0] == 0:
        raise ValueError("data has no examples.")
    return shapes[0][0]


def rate_of(sampling_rate: float | None, expected_batch_size: float | None, size: int) -> float:
    """Returns the sampling rate that exactly one of the two gives, for a data set of ``size`` examples.

    Raises ValueError where both or none are given, or the one is out of range.

    >>> rate_of(None, 50, 200)
    0.25
    """
    if (sampling_rate is None) == (expected_batch_size is None):
        raise ValueError("give exactly one of sampling_rate and expected_batch_size.")
    if sampling_rate is not None:
        validation.check_sampling_rate(sampling_rate)
        return float(sampling_rate)
    assert expected_batch_size is not None
    if not 0 < expected_batch_size <= size:
        raise ValueError(
            f"expected_batch_size = {expected_batch_size} does not fit {size} examples: give a number above 0, at most "
            f"{size}."
        )
    return expected_batch_size / size


def _strongly_typed(leaf: Any, dtype: Any = None) -> Array:
    """Returns ``leaf`` as an array whose type is fixed: a loop's state must keep its types, weak ones included."""
    array = jnp.asarray(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return array
    return array.astype(array.dtype if dtype is None else dtype)


def _check_params(params: PyTree) -> None:
    leaves = jax.tree.leaves(params)
    if not leaves or not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        raise ValueError(
            f"model has parameters of dtypes {sorted({str(leaf.dtype) for leaf in leaves})}: it needs nnx.Param "
            "leaves, all of a real floating-point dtype."
        )
