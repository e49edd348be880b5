"""The training step of DP-SGD, as a pure function of the state, and the compiled loop over many of them.

Each purpose has a key of its own, folded with the step's number: none is used twice, also by a run that is continued.
One step, with the account on the right::

    the update                                         the account
                                                       Keeper.begin: foresee() computes what the next steps will have
                                                         | spent; the write-ahead record of it is on disk
                                                       Door.pay(): the ledger pays for this step, or refuses it
                                  granted                |
    rows sampled: Door.draw() <--------------------------+---> refused: the state stays as it was
      |
    per-example gradients    |
    clipping                 | Door.clip()
    sum                      |
      |---> metrics: private means of the batch, for a share of the step's noise
    noise, then division     |
    by the expected size     | Door.release()
      |---> rule: an adaptive clipping norm moves, by a noisy count that the step pays for
      |
    optimizer: its update, applied to the parameters
      |
    averages, where the optimizer keeps them: averaging()
      |
    the next state: params, opt_state, rule, step + 1 -----> Keeper.finish: written down before anybody sees it

One write-ahead record covers a chunk of steps, at most up to the next checkpoint. A sampler's mechanism that covers
several steps is paid for at the first of them. Data that is read by index is drawn and fetched ahead, by the same key.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Bool, Float64, PyTree

from jaxacct.numerics.precision import kernel
from jaxacct.policies import Constant, Policy, Setting
from jaxacct.train.clipping import Routes, routes
from jaxacct.train.clipping.query import check_loss
from jaxacct.train.clipping.rows import map_rows
from jaxacct.train.gradients import ANSWER, METRICS, Door, key_of, loss_of_row, strategy_of, strongly_typed
from jaxacct.train.integer_noise import add_noise
from jaxacct.train.metrics import UNIT, Metrics, all_finite, check_gradients, no_finite_gradient, one_number
from jaxacct.train.models import ExampleLoss, merge_params
from jaxacct.train.placement import Layout
from jaxacct.train.planned import PlannedLedger
from jaxacct.train.sampling import PoissonSampler
from jaxacct.train.sampling.sampler import Batch
from jaxacct.train.state import TrainState

Data = tuple[Any, ...]
"""A pytree of arrays with a leading axis; the tuple's entries are the loss's arguments."""


@dataclass(frozen=True)
class StepProgram:
    """The parts of a training step that do not change.

    Attributes:
        loss: of one example.
        correct: what an adaptive policy counts: ``correct(model, *example)``, between 0 and 1. None without one.
        optimizer: an Optax transformation.
        door: pays, draws, clips and adds the noise.
        policy: chooses noise and rate.
        setting: the policy's noise and rate of a step, fixed when the program was made
            (:func:`~jaxacct.train.ownership.fixed_setting`): what is charged is what is used.
        gradient_noise: noise multiplier of the gradients under a constant policy; None under others.
        layout: how rows and parameters lie on several devices; None for one.
        metrics: private means over each batch, paid for by the step; None: none.
    """

    loss: ExampleLoss
    correct: Callable[..., Array] | None
    optimizer: optax.GradientTransformation
    door: Door
    policy: Policy
    setting: Callable[[Any, Any], Setting]
    gradient_noise: float | None
    layout: Layout | None
    metrics: Metrics | None = None

    @property
    def sampler(self) -> Any:
        """The sampler that draws the batches."""
        return self.door.sampler

    def curve(self, state: TrainState) -> Array:
        """Returns what one run of the sampler's mechanism costs at the state's setting, for the ledger.

        A planned ledger, which knows already, gets nothing to look at.
        """
        if isinstance(state.ledger, PlannedLedger):
            return jnp.zeros(())
        return state.ledger.cost(self.mechanism(state), relation=self.sampler.relation)

    def mechanism(self, state: TrainState) -> Any:
        """Returns the mechanism that the next step is accounted as."""
        if isinstance(self.policy, Constant):
            return self.sampler.mechanism(self.policy.noise_multiplier)
        setting = self.setting(state.policy, state.step)
        if not self.rate_varies:
            return self.sampler.mechanism(setting.noise_multiplier)
        return self.sampler.mechanism_at(setting.noise_multiplier, setting.sampling_rate)

    def check_gradients(self, state: TrainState, constants: PyTree, example: Any) -> None:
        """Raises where the loss has no finite gradient at made-up examples of those shapes, or mixes examples.

        Where tensors lie over several devices, whether it mixes examples is not looked at.
        """
        row = (example, jax.ShapeDtypeStruct((), jnp.int32))
        loss, params, parts = self.loss_of_row(state, constants), state.params, 1
        if self.layout is not None:
            check_gradients(loss, params, row)
            if not self.layout.replicated:
                return
            parts = self.layout.row_parts
            params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
        rows = -(-self.sampler.capacity // parts)
        finite = check_loss(loss, params, row, rows, microbatch_size=self.door.microbatch_size, ghost=self.door.ghost)
        if not finite and self.layout is None:
            raise no_finite_gradient()

    @functools.cached_property
    def rate_varies(self) -> bool:
        """Whether the policy changes the rate at which batches are drawn."""
        least, most = self.policy.sampling_rates
        return isinstance(self.sampler, PoissonSampler) and least < most

    def pay(self, state: TrainState, curve: Array) -> tuple[Bool[Array, ""], TrainState]:
        """Returns whether the next step is granted, and the state that has paid for it.

        Where a parameter is not finite, the step is refused and nothing is paid: the result would be noise alone
        (:mod:`jaxacct.train.metrics`). ``curve`` is not looked at where the setting may change at every step.
        """
        curve = self.curve(state) if self.policy.every_step else curve
        return self.door.pay(state, curve, all_finite(state.params, on_one_device=self.layout is None))

    def step(self, state: TrainState, curve: Array, constants: PyTree, data: Data) -> tuple[Array, TrainState]:
        """Returns whether one update was granted, and the state after it: the old one if it was refused."""

        def update(state: TrainState) -> TrainState:
            indices, mask = self.draw(state)
            return self.update(state, constants, jax.tree.map(lambda part: part[indices], data), mask, indices)

        return self._if_paid(state, curve, update)

    def step_on(
        self, state: TrainState, curve: Array, constants: PyTree, examples: Data, mask: Array
    ) -> tuple[Array, TrainState]:
        """Returns :meth:`step` on a batch that was fetched outside; with a layout, by :meth:`.Layout.fetch`."""
        if self.layout is not None:
            examples = self.layout.as_drawn(examples, len(mask))
        return self._if_paid(state, curve, lambda state: self.update(state, constants, examples, mask))

    def _if_paid(
        self, state: TrainState, curve: Array, update: Callable[[TrainState], TrainState]
    ) -> tuple[Array, TrainState]:
        # The update starts from the state that has paid: no branch reaches the data without a payment.
        granted, paid = self.pay(state, curve)
        return granted, jax.lax.cond(granted, update, lambda unchanged: unchanged, paid)

    def draw(self, state: TrainState) -> Batch:
        """Returns the indices and the mask of the step's batch."""
        rate = self.setting(state.policy, state.step).sampling_rate if self.rate_varies else None
        return self.door.draw(state, rate)

    def loss_of_row(self, state: TrainState, constants: PyTree) -> Callable[[PyTree, tuple[Data, Any]], Array]:
        """Returns the step's :func:`loss_of_row` by the trained parameters."""
        loss = lambda params, example, key: self.loss(params, constants, example, key)  # noqa: E731
        return loss_of_row(loss, state, random=self.loss.random)

    def update(
        self, state: TrainState, constants: PyTree, examples: Data, mask: Array, indices: Array | None = None
    ) -> TrainState:
        """Returns the state after the noisy update on a batch; the step has been paid for.

        ``indices``: places of the batch's examples in the data; None: those that the sampler draws.
        """
        # A batch that was fetched outside comes without its indices; the same key draws them again.
        if indices is None and self.loss.random:
            indices, _ = self.draw(state)
        # Gradients of private examples are formed within the next call alone; it returns their sum, of sensitivity
        # ``state.rule.sensitivity``, and a count that is private as well.
        clipped = self.door.clip(self.loss_of_row(state, constants), state.params, state, (examples, indices), mask)
        # Means take their share of all the step's noise; what is left for the gradients is in ``gradient_noise``.
        metrics = state.metrics
        if self.metrics is not None:
            assert isinstance(self.policy, Constant)
            metrics = self.metrics.after(
                metrics,
                key_of(state, METRICS),
                lambda: merge_params(self.loss.graph, state.params, constants),
                examples,
                mask,
                clipped.unclipped,
                noise_multiplier=float(self.policy.noise_multiplier),
                expected_batch_size=self.sampler.expected_batch_size,
                microbatch_size=self._rows_at_once,
            )
        noise, size = self._noise_and_size(state)
        # The sum leaves here with its noise, and all that follows is post-processing.
        gradient, after = self.door.release(
            state.params, state, clipped, noise_multiplier=noise, expected_batch_size=size
        )
        public = {}
        if strategy_of(self.sampler) is None:  # correlated noise has another deviation at each step
            public["noise_deviation"] = self.door.deviation(state, noise, size, state.params)
        optimizer = optax.with_extra_args_support(self.optimizer)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params, **public)
        return dataclasses.replace(
            after,
            params=optax.apply_updates(state.params, updates),
            # Weak types would change the carry's type, which a compiled loop refuses.
            opt_state=jax.tree.map(lambda new, old: strongly_typed(new, old.dtype), opt_state, state.opt_state),
            metrics=metrics,
        )

    def routes(self, state: TrainState, constants: PyTree, example: tuple[Any, ...]) -> Routes:
        """Returns in which form the gradients by each parameter are held, and why."""
        row = (example, jax.ShapeDtypeStruct((), jnp.int32))
        return routes(self.loss_of_row(state, constants), state.params, row, ghost=self.door.ghost)

    @property
    def _rows_at_once(self) -> int | None:
        """Examples that all devices together work on at a time; None: all of them."""
        parts = 1 if self.layout is None else self.layout.row_parts
        return None if self.door.microbatch_size is None else self.door.microbatch_size * parts

    def _noise_and_size(self, state: TrainState) -> tuple[Any, Any]:
        """Returns the noise multiplier of the step's gradients, and the expected size of its batch."""
        if self.gradient_noise is not None:
            return self.gradient_noise, self.sampler.expected_batch_size
        setting = self.setting(state.policy, state.step)
        if self.rate_varies:
            return setting.noise_multiplier, setting.sampling_rate * self.sampler.num_examples
        return setting.noise_multiplier, self.sampler.expected_batch_size

    def run(
        self, state: TrainState, curve: Array, constants: PyTree, data: Data, steps: Array
    ) -> tuple[TrainState, Array]:
        """Runs up to ``steps`` steps, a traced number, so that runs of any length share one compilation.

        Returns the state and whether a step was refused.
        """
        return _while_granted(lambda state: self.step(state, curve, constants, data), state, steps)

    def foresee(self, state: TrainState, curve: Array, steps: Array) -> tuple[Any, Array]:
        """Returns the ledger and the step after :meth:`run` and the query that may follow, from the state before.

        The same payments without the updates, for a record that has to be on disk before they are made. Parameters are
        left out: :meth:`pay` finds an empty tree finite, so that a run that ends early spent no more than this says.
        """

        def pay(state: TrainState) -> tuple[Array, TrainState]:
            granted, paid = self.pay(state, curve)
            return granted, dataclasses.replace(paid, step=state.step + granted)

        after, _ = _while_granted(pay, dataclasses.replace(state, params=(), opt_state=(), noise=None), steps)
        # The query follows where the steps end at a multiple of the period, and the ledger pays for it or stays.
        query = self.policy.query
        if query is None or not self.policy.period:
            return after.ledger, after.step
        adapts = (after.step > state.step) & (after.step % self.policy.period == 0)
        _, queried = self.door.spend(after.ledger, after.ledger.cost(query, relation=self.sampler.relation))
        ledger = jax.tree.map(lambda new, old: jnp.where(adapts, new, old), queried, after.ledger)
        return ledger, after.step

    def adapt(self, state: TrainState, constants: PyTree, data: Data) -> TrainState:
        """Returns the state after the policy has looked at the ledger, and at a noisy count that the ledger pays for.

        Where the count is refused the policy stays as it is.
        """
        query = self.policy.query
        if query is None:
            policy = self.policy.adapt(state.policy, state.ledger, state.step, jnp.zeros(()))
            return dataclasses.replace(state, policy=policy)
        curve = state.ledger.cost(query, relation=self.sampler.relation)
        granted, ledger = self.door.spend(state.ledger, curve)

        def ask(state: TrainState) -> TrainState:
            one = lambda example: self.count(state, constants, example)  # noqa: E731
            parts = map_rows(one, data, min(self._rows_at_once or 512, 512))  # time and memory only
            answer = noisy_count(key_of(state, ANSWER), parts, query.noise_multiplier)
            return dataclasses.replace(state, policy=self.policy.adapt(state.policy, ledger, state.step, answer))

        paid = dataclasses.replace(state, ledger=ledger)
        return jax.lax.cond(granted, ask, lambda unchanged: unchanged, paid)

    def count(self, state: TrainState, constants: PyTree, example: Data) -> Array:
        """Returns what one example adds to the count, between 0 and 1, whatever ``correct`` returns.

        Raises ValueError where that is no scalar.
        """
        assert self.correct is not None
        model = merge_params(self.loss.graph, state.params, constants)
        value = one_number(self.correct(model, *example), "correct")
        return jnp.where(value >= 0, jnp.minimum(value, 1.0), 0.0)

    def check_counts(self, state: TrainState, constants: PyTree, example: Data) -> None:
        """Raises ValueError where ``correct`` or a measure gives no scalar of one example of those shapes."""
        if self.policy.query is not None:
            jax.eval_shape(self.count, state, constants, example)
        if self.metrics is not None:
            metrics, graph = self.metrics, self.loss.graph
            jax.eval_shape(
                lambda params, rest, example: metrics.fractions(lambda: merge_params(graph, params, rest), example),
                state.params, constants, example,
            )  # fmt: skip


def _while_granted(
    once: Callable[[TrainState], tuple[Array, TrainState]], state: TrainState, steps: Array
) -> tuple[TrainState, Array]:
    """Returns the state after up to ``steps`` steps, traced, that are granted, and whether one was refused."""

    # The loop's state is the number of steps tried, whether the last one was refused, and the state. It ends after
    # ``steps`` or at the first refusal: a later step is never granted instead.
    def advance(carry: tuple[Array, Array, TrainState]) -> tuple[Array, Array, TrainState]:
        done, _, state = carry
        granted, state = once(state)
        return done + 1, ~granted, state

    def goes_on(carry: tuple[Array, Array, TrainState]) -> Array:
        return (carry[0] < steps) & ~carry[1]

    _, refused, state = jax.lax.while_loop(goes_on, advance, (jnp.zeros((), jnp.int32), jnp.array(False), state))
    return state, refused


@kernel(own_float64=True)
def noisy_count(key: jax.Array, parts: Array, deviation: ArrayLike) -> Float64[Array, ""]:
    """Returns a sum of sensitivity 1 with Gaussian noise of standard deviation ``deviation``; float64.

    ``parts`` (examples,), in [0, 1], are rounded to multiples of :data:`.UNIT` and summed exactly.

    >>> float(noisy_count(jax.random.key(0), jnp.ones(10), 0.0))
    10.0
    """
    count = jnp.sum(jnp.round(parts.astype(jnp.float64) / UNIT)) * UNIT
    noisy: Array = add_noise(key, count, noise_multiplier=deviation, sensitivity=1.0)
    return noisy
