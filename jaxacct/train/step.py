"""The training step of DP-SGD, as a pure function of the state, and the compiled loop over many of them.

Each purpose has a key of its own, folded with the step's number: none is used twice, also by a run that is continued.
One step, with the account on the right::

    the update                                         the account
                                                       Keeper.begin: foresee() computes what the next steps will have
                                                         | spent; the write-ahead record of it is on disk
                                                       pay(): the ledger pays for this step, or refuses it
                                  granted                |
    rows sampled: draw()     <---------------------------+---> refused: the state stays as it was
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
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jaxtyping import Array, ArrayLike, Bool, Float64, Int32, PyTree

from jaxacct.filters import MenuFilter, RenyiFilter
from jaxacct.numerics.precision import kernel, scope
from jaxacct.policies import Constant, Policy, Setting
from jaxacct.strategies import Strategy
from jaxacct.train.clipping import ClippedSum, Routes, clip_and_sum, routes
from jaxacct.train.clipping.query import check_loss
from jaxacct.train.clipping.rows import map_rows
from jaxacct.train.keys import standard_normal, threefry
from jaxacct.train.metrics import UNIT, Metrics, all_finite, check_gradients, no_finite_gradient, one_number
from jaxacct.train.models import ExampleLoss, merge_params
from jaxacct.train.noise import deviation_of_mean, privatize_step
from jaxacct.train.placement import Layout
from jaxacct.train.planned import PlannedLedger
from jaxacct.train.sampling import Correlated, PoissonSampler, Sampler
from jaxacct.train.sampling.sampler import Batch
from jaxacct.train.state import PrivateState, TrainState

SAMPLE, NOISE, ANSWER, RULE, LOSS, METRICS = range(6)
"""Purposes of keys: the number that is folded into the run's key before the step's. Any distinct numbers are sound;
others change what a seed gives."""

S = TypeVar("S", TrainState, PrivateState)
"""Type of a state that one step moves on: a trainer's, or that of a loop of one's own."""

Data = tuple[Any, ...]
"""A pytree of arrays with a leading axis; the tuple's entries are the loss's arguments."""


def key_of(state: TrainState | PrivateState, purpose: int) -> jax.Array:
    """Returns the key of a purpose at the state's step."""
    return jax.random.fold_in(jax.random.fold_in(state.key, purpose), state.step)


def runs_begun(sampler: Sampler, step: Array) -> Int32[Array, ""]:
    """Returns how many runs of the sampler's mechanism a step begins, 1 or 0: a run is paid for as a whole."""
    return (step % sampler.steps_per_run == 0).astype(jnp.int32)


def loss_of_row(
    loss: Callable[[PyTree, Any, jax.Array | None], Array], state: TrainState | PrivateState, *, random: bool
) -> Callable[[PyTree, tuple[Any, Any]], Array]:
    """Returns the loss at the state's step by the parameters and a row: an example and its index in the data.

    The example's key is made from its index, which is not looked at where nothing is random.
    """
    key = threefry(key_of(state, LOSS)) if random else None

    def of_row(params: PyTree, row: tuple[Any, Any]) -> Array:
        example, index = row
        return loss(params, example, None if key is None else jax.random.fold_in(key, index))

    return of_row


def strategy_of(sampler: Sampler) -> Strategy | None:
    """Returns the strategy that correlates the noise on a sampler's batches; None: it is independent."""
    return sampler.strategy if isinstance(sampler, Correlated) else None


def sample_key(state: TrainState | PrivateState) -> jax.Array:
    """Returns the key that the sampler derives every step's draw from."""
    return jax.random.fold_in(state.key, SAMPLE)


@dataclass(frozen=True)
class Door:
    """The one way by which gradients of private examples leave, of a trainer's step and of a loop of one's own.

    Whoever holds it has a ledger pay first; between :meth:`clip` and :meth:`release` the sum is private.

    Attributes:
        sampler: draws the batches, and says how the noise of steps is correlated.
        microbatch_size, ghost: as :func:`.clip_and_sum` takes them.
        sharding: its first entry names the axes over which a batch's rows are dealt; None: one device.
        shardings: pytree like the parameters: where they, their gradients and their noise lie; None: on every device.
    """

    sampler: Any
    microbatch_size: int | None
    ghost: bool
    sharding: NamedSharding | None = None
    shardings: PyTree | None = None

    def draw(self, state: TrainState | PrivateState, rate: ArrayLike | None = None) -> Batch:
        """Returns the indices and the mask of the step's batch, at a ``rate`` of its own where one is given."""
        if rate is None:
            return self.sampler.sample(sample_key(state), state.step)
        return self.sampler.sample_at(sample_key(state), state.step, rate)

    def clip(
        self,
        loss: Callable[[PyTree, Any], Array],
        params: PyTree,
        state: TrainState | PrivateState,
        rows: tuple[Any, Any],
        mask: Array,
        *,
        batch: int | None = None,
    ) -> ClippedSum:
        """Returns the sum of the clipped gradients of a batch, of sensitivity ``state.rule.sensitivity``: private.

        ``loss`` is that of a row (:func:`loss_of_row`), ``rows`` are examples and their indices; ``batch`` is as
        :func:`.clip_and_sum` takes it.
        """
        specs = None if self.shardings is None else jax.tree.map(lambda sharding: sharding.spec, self.shardings)
        return clip_and_sum(
            loss, params, rows, mask, rule=state.rule, microbatch_size=self.microbatch_size, ghost=self.ghost,
            sharding=self.sharding, specs=specs, batch=batch,
        )  # fmt: skip

    def release(
        self,
        params: PyTree,
        state: S,
        clipped: ClippedSum,
        *,
        noise_multiplier: ArrayLike,
        expected_batch_size: ArrayLike,
    ) -> tuple[PyTree, S]:
        """Returns the noisy mean of a clipped sum, in the parameters' dtypes, and the state after it.

        The noise is the sampler's: correlated if it is a :class:`.Correlated`, else independent. The state's rule moves
        by a noisy count, which the step has paid for; its noise and step go on.
        """
        noisy, noise = privatize_step(
            key_of(state, NOISE), clipped.total, strategy_of(self.sampler), state.noise,
            noise_multiplier=noise_multiplier, clip_norm=state.rule.sensitivity,
            expected_batch_size=expected_batch_size, shardings=self.shardings,
        )  # fmt: skip
        rule = state.rule.update(key_of(state, RULE), clipped.unclipped, self.sampler.expected_batch_size)
        after = dataclasses.replace(state, rule=rule, noise=noise, step=state.step + 1)
        return jax.tree.map(lambda entry, leaf: entry.astype(leaf.dtype), noisy, params), after


@dataclass(frozen=True)
class StepProgram:
    """The parts of a training step that do not change.

    Attributes:
        loss: of one example.
        correct: what an adaptive policy counts: ``correct(model, *example)``, between 0 and 1. None without one.
        optimizer: an Optax transformation.
        sampler: draws the batches.
        policy: chooses noise and rate.
        setting: the policy's noise and rate of a step, fixed when the program was made
            (:func:`~jaxacct.train.copies.fixed_setting`): what is charged is what is used.
        epsilon: the reading at which an odometer stops; a filter has its own budget.
        gradient_noise: noise multiplier of the gradients under a constant policy; None under others.
        microbatch_size, ghost: as :func:`~jaxacct.train.clipping.clip_and_sum` takes them.
        layout: how rows and parameters lie on several devices; None for one.
        metrics: private means over each batch, paid for by the step; None: none.
    """

    loss: ExampleLoss
    correct: Callable[..., Array] | None
    optimizer: optax.GradientTransformation
    sampler: Any
    policy: Policy
    setting: Callable[[Any, Any], Setting]
    epsilon: float
    gradient_noise: float | None
    microbatch_size: int | None
    ghost: bool
    layout: Layout | None
    metrics: Metrics | None = None

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
        finite = check_loss(loss, params, row, rows, microbatch_size=self.microbatch_size, ghost=self.ghost)
        if not finite and self.layout is None:
            raise no_finite_gradient()

    @functools.cached_property
    def rate_varies(self) -> bool:
        """Whether the policy changes the rate at which batches are drawn."""
        least, most = self.policy.sampling_rates
        return isinstance(self.sampler, PoissonSampler) and least < most

    def spend(self, ledger: Any, curve: Array, count: Any = 1) -> tuple[Bool[Array, ""], Any]:
        """Returns whether the ledger grants runs of that curve, and the ledger after them."""
        if isinstance(ledger, PlannedLedger):
            return ledger.spend(count)
        granted, after = ledger.spend_cost(curve, count)
        # A filter refuses by itself what would pass its budget.
        if isinstance(ledger, (RenyiFilter, MenuFilter)):
            return granted, after
        # An odometer counts everything; the run ends before its reading would pass epsilon.
        with scope():  # outside, the reading would be rounded to float32 first
            within = granted & (after.epsilon() <= self.epsilon)
        return within, jax.tree.map(lambda new, old: jnp.where(within, new, old), after, ledger)

    def pay(self, state: TrainState, curve: Array) -> tuple[Bool[Array, ""], TrainState]:
        """Returns whether the next step is granted, and the state that has paid for it.

        Where a parameter is not finite, the step is refused and nothing is paid: the result would be noise alone
        (:mod:`jaxacct.train.metrics`). A mechanism that covers several steps is paid for at the first of them.
        ``curve`` is not looked at where the setting may change at every step.
        """
        curve = self.curve(state) if self.policy.every_step else curve
        learns = all_finite(state.params, whole=self.layout is None)
        runs = runs_begun(self.sampler, state.step) * learns.astype(jnp.int32)
        granted, ledger = self.spend(state.ledger, curve, runs)
        return granted & learns, dataclasses.replace(state, ledger=ledger)

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

    def door(self, state: TrainState) -> Door:
        """Returns the door of the step: with a layout, parameters and gradients lie by it."""
        if self.layout is None:
            return Door(self.sampler, self.microbatch_size, self.ghost)
        shardings = self.layout.of_variables(state.params)
        return Door(self.sampler, self.microbatch_size, self.ghost, self.layout.rows, shardings)

    def draw(self, state: TrainState) -> Batch:
        """Returns the indices and the mask of the step's batch."""
        rate = self.setting(state.policy, state.step).sampling_rate if self.rate_varies else None
        return Door(self.sampler, self.microbatch_size, self.ghost).draw(state, rate)

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
        door = self.door(state)
        clipped = door.clip(self.loss_of_row(state, constants), state.params, state, (examples, indices), mask)
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
        gradient, after = door.release(state.params, state, clipped, noise_multiplier=noise, expected_batch_size=size)
        told = {}
        if strategy_of(self.sampler) is None:  # correlated noise has another deviation at each step
            told["noise_deviation"] = deviation_of_mean(noise, state.rule.sensitivity, size)
        optimizer = optax.with_extra_args_support(self.optimizer)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params, **told)
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
        return routes(self.loss_of_row(state, constants), state.params, row, ghost=self.ghost)

    @property
    def _rows_at_once(self) -> int | None:
        """Examples that all devices together work on at a time; None: all of them."""
        parts = 1 if self.layout is None else self.layout.row_parts
        return None if self.microbatch_size is None else self.microbatch_size * parts

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
        _, asked = self.spend(after.ledger, after.ledger.cost(query, relation=self.sampler.relation))
        ledger = jax.tree.map(lambda new, old: jnp.where(adapts, new, old), asked, after.ledger)
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
        granted, ledger = self.spend(state.ledger, curve)

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
    return count + deviation * standard_normal(key, ())


def strongly_typed(leaf: Any, dtype: Any = None) -> Array:
    """Returns ``leaf`` as an array of a fixed dtype, never a weak one: the state of a compiled loop keeps its types."""
    array = jnp.asarray(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return array
    return array.astype(array.dtype if dtype is None else dtype)
