"""Private gradients: the door by which they leave, and an object for training loops other than the trainer's.

* :func:`key_of` to :func:`loss_of_row`: the keys of a step, and its loss;
* :class:`Door`: pays, draws, clips and releases, for the trainer's step (:mod:`jaxacct.train.step`, which has a
  diagram) and for a loop of one's own;
* :class:`PrivateGradients`: such a loop's sampler, clipping, noise and account in one object, for any loss of any
  pytree. One step is :meth:`PrivateGradients.gradient`::

    batch   rows sampled, by the state's key and step
    clip    per-example gradients, clipped and summed: private
    sum     sums of microbatches, of processes, added: private
    noise   the ledger pays, or refuses; noise; division by the expected batch size: released, and the next state
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, ArrayLike, Bool, Float32, Int32, PyTree, UInt32

from jaxacct import validation
from jaxacct.filters import MenuFilter
from jaxacct.ledger import Ledger
from jaxacct.numerics.chacha20 import as_stored, as_typed, is_chacha20
from jaxacct.numerics.precision import is_concrete, scope
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.strategies import BufferedStrategy, Strategy
from jaxacct.train.clipping import ClippedSum, ClippingRule, clip_and_sum
from jaxacct.train.clipping.query import added_up, check_loss
from jaxacct.train.clipping.rows import Shards
from jaxacct.train.config import OpenRun, PlannedRun, against_integers
from jaxacct.train.integer_noise import draws_of, rounding_of_rows
from jaxacct.train.keys import as_threefry, run_key
from jaxacct.train.models import takes_key
from jaxacct.train.noise import deviation_of_mean, privatize_step, start
from jaxacct.train.ownership import as_words, entries_of
from jaxacct.train.planned import Plan, PlannedLedger
from jaxacct.train.sampling import Correlated, Sampler
from jaxacct.train.sampling.correlated import describe_noise, drawn_by
from jaxacct.train.sampling.sampler import Batch, check_num_examples
from jaxacct.train.settings import NoiseArithmetic, check_placement, check_shares, key_for, rule_of
from jaxacct.train.state import PrivateState, TrainState

SAMPLE, NOISE, ANSWER, RULE, LOSS, METRICS = range(6)
"""Purposes of keys: the number that is folded into the run's key before the step's. Any distinct numbers are sound;
others change what a seed gives."""

MOST_ENTRIES = 2**30
"""Entries of parameters that a plan pays integer noise for where it does not know them yet: a few 1e-13 of delta."""

S = TypeVar("S", TrainState, PrivateState)
"""Type of a state that one step moves on: a trainer's, or that of a loop of one's own."""


def key_of(state: TrainState | PrivateState, purpose: int) -> jax.Array:
    """Returns the key of a purpose at the state's step."""
    return jax.random.fold_in(jax.random.fold_in(as_typed(state.key), purpose), state.step)


def sample_key(state: TrainState | PrivateState) -> jax.Array:
    """Returns the key that the sampler derives every step's draw from."""
    return jax.random.fold_in(as_typed(state.key), SAMPLE)


def strategy_of(sampler: Sampler) -> Strategy | None:
    """Returns the strategy that correlates the noise on a sampler's batches; None: it is independent."""
    return sampler.strategy if isinstance(sampler, Correlated) else None


def loss_of_row(
    loss: Callable[[PyTree, Any, jax.Array | None], Array], state: TrainState | PrivateState, *, random: bool
) -> Callable[[PyTree, tuple[Any, Any]], Array]:
    """Returns the loss at the state's step by the parameters and a row: an example and its index in the data.

    The example's key is made from its index, which is not looked at where nothing is random.
    """
    key = as_threefry(key_of(state, LOSS)) if random else None

    def of_row(params: PyTree, row: tuple[Any, Any]) -> Array:
        example, index = row
        return loss(params, example, None if key is None else jax.random.fold_in(key, index))

    return of_row


def strongly_typed(leaf: Any, dtype: Any = None) -> Array:
    """Returns ``leaf`` as an array of a fixed dtype, never a weak one: the state of a compiled loop keeps its types."""
    array = jnp.asarray(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return array
    return array.astype(array.dtype if dtype is None else dtype)


@dataclass(frozen=True)
class Door:
    """The one way by which gradients of private examples leave: it has a ledger pay, draws, clips and adds the noise.

    The trainer's step and a loop of one's own (:class:`PrivateGradients`) both go through it. Between :meth:`clip` and
    :meth:`release` the sum is private.

    Attributes:
        sampler: draws the batches, and says how the noise of steps is correlated.
        microbatch_size, ghost: as :func:`.clip_and_sum` takes them.
        epsilon: the reading at which an odometer refuses a step; None: it counts all. A filter has its own budget.
        sharding: its first entry names the axes over which a batch's rows are dealt; None: one device.
        shardings: pytree like the parameters: where they, their gradients and their noise lie; None: on every device.
    """

    sampler: Any
    microbatch_size: int | None
    ghost: bool
    epsilon: float | None = None
    sharding: NamedSharding | None = None
    shardings: PyTree | None = None

    def spend(self, ledger: Any, cost: Any, runs: ArrayLike = 1) -> tuple[Bool[Array, ""], Any]:
        """Returns whether the ledger grants runs of that cost, and the ledger after them; a plan counts runs alone."""
        if isinstance(ledger, PlannedLedger):
            return ledger.spend(runs)
        granted, after = ledger.spend_cost(cost, runs)
        if self.epsilon is None or ledger.has_budget:
            return granted, after
        # An odometer counts everything; the run ends before its reading would pass epsilon.
        with scope():  # outside, the reading would be rounded to float32 first
            granted &= after.epsilon() <= self.epsilon
        return granted, jax.tree.map(lambda new, old: jnp.where(granted, new, old), after, ledger)

    def is_paid_up(self, state: TrainState | PrivateState) -> Any:
        """Returns whether the ledger has paid for all runs begun: a plan's shows it where parts of a state disagree."""
        if not isinstance(state.ledger, PlannedLedger):
            return True
        return (state.step >= 0) & (-(-state.step // self.sampler.steps_per_run) <= state.ledger.made)

    def pay(self, state: S, cost: Any, allowed: Any = True) -> tuple[Bool[Array, ""], S]:
        """Returns whether the next step is granted, and the state that has paid for it: as it was where it is refused.

        The sampler's mechanism is paid for as a whole, at the first of the steps that one run of it covers. A step that
        is not ``allowed`` is refused, and nothing is paid.
        """
        allowed = self.is_paid_up(state) & allowed
        runs = (state.step % self.sampler.steps_per_run == 0) & allowed
        granted, ledger = self.spend(state.ledger, cost, runs.astype(jnp.int32))
        return granted & allowed, dataclasses.replace(state, ledger=ledger)

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
            rounding=self.rounding(state, clipped.total),
        )  # fmt: skip
        rule = state.rule.update(key_of(state, RULE), clipped.unclipped, self.sampler.expected_batch_size)
        after = dataclasses.replace(state, rule=rule, noise=noise, step=state.step + 1)
        return jax.tree.map(lambda entry, leaf: entry.astype(leaf.dtype), noisy, params), after

    def rounding(self, state: TrainState | PrivateState, total: PyTree) -> float | None:
        """Returns what integers take of correlated noise (:func:`.rounding_of_rows`); None: nothing of the kind."""
        if not (isinstance(self.sampler, Correlated) and is_chacha20(state.key)):
            return None
        return _rounding(self.sampler, entries_of(total))

    def check_noise(self, state: TrainState | PrivateState, params: PyTree, noise: ArrayLike) -> None:
        """Raises ValueError where integers cannot make noise of that multiplier for the parameters."""
        if is_chacha20(state.key) and is_concrete(noise) and 0 < float(np.asarray(noise)) < math.inf:
            rounding = self.rounding(state, params)
            draws_of(noise, entries_of(params) if rounding is None else 0, rounding or 0.0)

    def deviation(self, state: TrainState | PrivateState, noise: ArrayLike, size: ArrayLike, params: PyTree) -> Array:
        """Returns the deviation of independent noise in each entry of a release, float32, for optimizers."""
        entries = entries_of(params) if is_chacha20(state.key) else 0
        return deviation_of_mean(noise, state.rule.sensitivity, size, entries)


@functools.lru_cache(maxsize=64)
def _rounding(sampler: Correlated, entries: int) -> float:
    """Returns :func:`.rounding_of_rows` of a sampler's noise, once: all of its steps are looked at."""
    assert isinstance(sampler.strategy, BufferedStrategy)
    return rounding_of_rows(sampler.strategy, sampler.sensitivity, sampler.covered, entries)


# ----------------------------------------------------------------------------------------------------
# Loop of the caller's own, which decides when a batch is fetched, what is made of a gradient, and when to stop.
#
# A caller may hold a state of another object, or parts of two states: the object knows its states by a digest of its
# settings, and refuses others. Its own ledger has the budget; a state's says only what was spent.
# ----------------------------------------------------------------------------------------------------


@takes_python_values
@dataclass(frozen=True, eq=False)  # one is equal to itself alone: a loss, or a rule with arrays, may have no hash
class PrivateGradients:
    """Private gradients of any loss of a pytree of parameters; made by :meth:`planned`,
    :meth:`paid_by` or :meth:`from_run`.

    Attributes:
        loss: ``loss(params, *example)``, the scalar loss of one example without a batch axis; or
            ``loss(params, *example, key=...)``, which gets a key of its own for each example and step. None: the loop
            forms each example's gradient itself, a pytree like ``params``, and gives those as its examples.
        plan: what is drawn, how much noise there is, how many steps, and what all of it costs. None under
            :meth:`paid_by`.
        rule: how gradients are clipped, at the start.
        microbatch_size: rows whose gradients are in memory at a time; None: all.
        ghost: whether norms and sums are taken without forming gradients where that is possible.
        sharding: its first entry names the mesh's axes over which a batch's rows are dealt; None: one device.
        specs: pytree like ``params`` of ``PartitionSpec``: how they, and their gradients, lie on that mesh.
        sampler: draws the batches; the plan's, if there is one.
        ledger: pays for each step, before the first; the plan's, if there is one.
        noise_arithmetic: as :class:`.DPTrainer` has it. A plan pays for integer noise of up to so many
            ``entries``, 2^30; where a ledger pays, its delta is reduced by you (:func:`.noise_delta`).

    A loop: :meth:`start` once, and then for each step :meth:`batch`, the examples at its indices from wherever they
    are, :meth:`gradient`, any optimizer. :meth:`clip`, :meth:`sum` and :meth:`noise` are the parts of a gradient, for
    loops that come to a batch in pieces. All but :meth:`start` work under ``jit`` and in ``lax.scan``.

    Formal guarantee: the gradients of one :meth:`start`, and all that is made of them, are (epsilon, delta)-DP for the
    sampler's relation, wherever the loop ends and whatever was chosen from what they gave
    (:mod:`jaxacct.train.planned`), if each state is used for one gradient, with the examples of its batch, each of them
    once, and the loss reaches the data in no other way. :class:`.DPTrainer` sees to all of that by itself. Made-up
    examples tell before the first gradient whether the loss mixes examples (:mod:`jaxacct.train.clipping.rows`); of
    gradients that the loop forms itself nobody can tell.

    A state belongs to the settings that began it: plan, ledger, sampler and rule. An object of the same settings takes
    it, in another process as well, and one of other settings refuses it. Of a ledger that a state brings only what was
    spent counts: the budget is the object's. A state that was used before, or is older than the last gradient (which a
    restored one may be), nobody can tell from one that was not: save the next state before its gradient is used.

    Raises ValueError where there is neither a plan nor a sampler and a ledger, or the sampler's steps are not paid for
    one by one; TypeError where the ledger does not pay for noise that is chosen; either where a setting is out of
    range.

    >>> private = PrivateGradients.planned(lambda w, x: jnp.sum((w - x) ** 2), 1000, epsilon=2.0, delta=1e-5,
    ...                                    epochs=4, expected_batch_size=100, clip_norm=1.0)
    >>> private.plan.steps, bool(1.99 < private.plan.certified.upper <= 2.0)
    (40, True)
    >>> state = private.start()
    >>> indices, mask = private.batch(state)
    >>> indices.shape == mask.shape == (private.plan.sampler.capacity,), state
    (True, <PrivateState: step 0>)
    """

    loss: Callable[..., Array] | None
    plan: Plan | None
    rule: ClippingRule
    microbatch_size: int | None = None
    ghost: bool = True
    sharding: NamedSharding | None = None
    specs: PyTree | None = None
    sampler: Sampler = None  # type: ignore[assignment]
    ledger: PlannedLedger | Ledger = None  # type: ignore[assignment]
    noise_arithmetic: NoiseArithmetic | None = None

    def __post_init__(self) -> None:
        if not (self.loss is None or callable(self.loss)):
            raise TypeError(f"loss = {self.loss!r} is a {type(self.loss).__name__}: give a function, or None.")
        if not (self.plan is None or isinstance(self.plan, Plan)):
            raise TypeError(f"plan is a {type(self.plan).__name__}: use PrivateGradients.planned, which makes one.")
        rule_of(self.rule)
        check_placement(self.microbatch_size, self.ghost, None, None)
        if not (self.sharding is None or isinstance(self.sharding, NamedSharding)):
            raise TypeError(f"sharding is a {type(self.sharding).__name__}: give a NamedSharding, or None.")
        if self.plan is not None:
            object.__setattr__(self, "sampler", self.plan.sampler)
            object.__setattr__(self, "ledger", self.plan.ledger())
        elif self.sampler is None or self.ledger is None:
            raise ValueError("plan is None: give a sampler and a ledger that pays, or PrivateGradients.planned(...).")
        else:
            OpenRun(self.ledger, self.sampler)  # type: ignore[arg-type]
        check_shares(self.rule, None, strategy_of(self.sampler))

    @classmethod
    def from_run(
        cls,
        run: PlannedRun | OpenRun,
        loss: Callable[..., Array] | None,
        num_examples: int,
        *,
        clip_norm: float | ClippingRule,
        microbatch_size: int | None = None,
        ghost: bool = True,
        sharding: NamedSharding | None = None,
        specs: PyTree | None = None,
        noise_arithmetic: NoiseArithmetic | None = None,
        entries: int = MOST_ENTRIES,
    ) -> PrivateGradients:
        """Returns the gradients of a configuration on a data set of ``num_examples`` examples.

        Under a :class:`.PlannedRun` the plan fixes noise and steps (:meth:`planned` says the same by keywords); under
        an :class:`.OpenRun` each step is given its noise (:meth:`paid_by`). Other arguments are those of
        :meth:`planned`.

        Formal guarantee: the configuration's, as the class has it.

        Raises ValueError or TypeError where an argument is out of range, or the budget pays for no such run.
        """
        check_num_examples(num_examples)
        if not isinstance(run, (PlannedRun, OpenRun)):
            raise TypeError(
                f"run is a {type(run).__name__}: give a PlannedRun, or an OpenRun of a ledger and a sampler."
            )
        rule = rule_of(clip_norm)
        is_integer = noise_arithmetic != "float64" and not run.against_integers
        most = validation.check_count(entries, "entries", "the entries of all parameters") + 2
        budget = run.resolve(num_examples, int(most) if is_integer else 0)
        return cls(
            loss, budget.plan, rule, microbatch_size, ghost, sharding, specs, budget.sampler,
            budget.ledger, noise_arithmetic,
        )  # fmt: skip

    @classmethod
    @takes_python_values
    def planned(
        cls,
        loss: Callable[..., Array] | None,
        num_examples: int,
        *,
        epsilon: float,
        delta: float,
        epochs: float,
        expected_batch_size: float | None = None,
        clip_norm: float | ClippingRule | None = None,
        microbatch_size: int | None = None,
        ghost: bool = True,
        most_examples: int | None = None,
        sampler: Sampler | None = None,
        noise: Strategy | None = None,
        sharding: NamedSharding | None = None,
        specs: PyTree | None = None,
        noise_arithmetic: NoiseArithmetic | None = None,
        entries: int = MOST_ENTRIES,
    ) -> PrivateGradients:
        """Returns the gradients with the least noise that the certified accountant allows for so many epochs.

        Args:
            loss: ``loss(params, *example)``, or with ``key=`` besides; None: gradients of the loop's own.
            num_examples: size of the data set; public without ``most_examples``.
            epsilon: budget of all gradients together.
            delta: budget of all gradients together; the cost of batches cut at capacity is paid from it.
            epochs: expected passes over the data; steps are whole.
            expected_batch_size: of the Poisson sampled batches, or of the cyclic ones of correlated noise; or
            sampler: one of :mod:`jaxacct.train.sampling`.
            clip_norm: bound on the L2 norm of each example's gradient, or a rule of :mod:`jaxacct.train.clipping`.
            microbatch_size: examples whose gradients are held in memory at a time; None: all.
            ghost: whether norms are taken without gradients where that is possible.
            most_examples: a public number, chosen without looking, that the data has at most: it protects
                ``num_examples``, as for :class:`.DPTrainer`. Indices are then below ``num_examples``, and all else that
                is made of it speaks of ``most_examples``.
            noise: correlates the noise of steps, a strategy of :mod:`jaxacct.strategies`; None: it is independent.
            sharding: as the attribute.
            specs: as the attribute.
            noise_arithmetic: as the attribute.
            entries: most entries of all parameters together, for which the plan pays integer noise. Give their number
                where a large epsilon or a small delta leaves too little for the default.

        Raises ValueError where an argument is out of range, or there is no such plan.
        """
        run = PlannedRun(
            epsilon=epsilon, delta=delta, epochs=epochs, expected_batch_size=expected_batch_size,
            most_examples=most_examples, sampler=sampler, noise=noise,
        )  # fmt: skip
        return cls.from_run(
            run, loss, num_examples, clip_norm=clip_norm,  # type: ignore[arg-type]  # None is refused there
            microbatch_size=microbatch_size, ghost=ghost, sharding=sharding, specs=specs,
            noise_arithmetic=noise_arithmetic, entries=entries,
        )  # fmt: skip

    @classmethod
    def paid_by(
        cls,
        ledger: Ledger,
        loss: Callable[..., Array] | None,
        sampler: Sampler,
        *,
        clip_norm: float | ClippingRule,
        microbatch_size: int | None = None,
        ghost: bool = True,
        sharding: NamedSharding | None = None,
        specs: PyTree | None = None,
        noise_arithmetic: NoiseArithmetic | None = None,
    ) -> PrivateGradients:
        """Returns gradients whose noise is chosen at each step, and which a filter or an odometer pays for.

        Arguments are those of :meth:`planned`, but for ``ledger``: one of :mod:`jaxacct.filters` or
        :mod:`jaxacct.odometers`. The sampler's steps are paid for one by one: :class:`.PoissonSampler`, or another one
        whose runs are a single step, as the noise of a longer run is one. What cut batches cost,
        ``sampler.overflow_delta``, and integer noise, :func:`.noise_delta`, is taken off its delta by you.

        Formal guarantee: the ledger's, and the sampler's for cut batches.

        >>> from jaxacct.filters import RenyiFilter
        >>> from jaxacct.train.sampling import PoissonSampler
        >>> sampler = PoissonSampler(num_examples=100, sampling_rate=0.1, capacity=101)
        >>> private = PrivateGradients.paid_by(RenyiFilter(1.0, 1e-5), None, sampler, clip_norm=1.0)
        >>> state = private.start(seed=0)
        >>> indices, mask = private.batch(state)
        >>> _, state = private.gradient(jnp.zeros(2), state, (jnp.ones((101, 2)),), mask, noise_multiplier=4.0)
        >>> state
        <PrivateState: step 1>
        """
        return cls.from_run(
            OpenRun(ledger, sampler), loss, sampler.num_examples, clip_norm=clip_norm,
            microbatch_size=microbatch_size, ghost=ghost, sharding=sharding, specs=specs,
            noise_arithmetic=noise_arithmetic,
        )  # fmt: skip

    @property
    def steps(self) -> int:
        """Number of steps of the plan: :meth:`gradient` makes no more."""
        return self._of_plan.steps

    @property
    def gradient_noise(self) -> float:
        """Noise multiplier of the gradients: the plan's, raised where the clipping rule pays for a count as well."""
        return self.rule.gradient_noise_multiplier(self._of_plan.noise_multiplier)

    @functools.cached_property
    def _door(self) -> Door:
        """The door of each step; gradients that the loop forms itself have no norms to take without them."""
        shardings = None
        if self.sharding is not None and self.specs is not None:
            mesh = self.sharding.mesh
            shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.specs)
        return Door(
            self.sampler, self.microbatch_size, self.ghost and self.loss is not None, sharding=self.sharding,
            shardings=shardings,
        )  # fmt: skip

    @property
    def _against_integers(self) -> str:
        """Why the noise cannot be drawn in integers; empty where it can."""
        return against_integers(drawn_by(self.sampler), strategy_of(self.sampler))

    @property
    def _of_plan(self) -> Plan:
        if self.plan is None:
            raise ValueError("there is no plan: each step's noise_multiplier is given with it, and the ledger ends it.")
        return self.plan

    def start(self, seed: int | jax.Array | None = None, params: PyTree | None = None) -> PrivateState:
        """Returns the state before the first gradient.

        Args:
            seed: as :func:`~jaxacct.train.run_key` takes it; None outside of experiments.
            params: what is trained, or its shapes: correlated noise remembers copies of it.

        Raises ValueError where the plan's noise is correlated and there are no ``params``.
        """
        noise = None
        if isinstance(self.sampler, Correlated):
            if params is None:
                raise ValueError(
                    "plan is of correlated noise, which remembers copies of what is trained; independent noise in its "
                    "place is not accounted: give params to start."
                )
            noise = start(self.sampler.strategy, params)
        rule = jax.tree.map(strongly_typed, self.rule)
        return PrivateState(
            ledger=self.ledger, rule=rule, step=jnp.zeros((), jnp.int32),
            key=as_stored(key_for(self.noise_arithmetic, run_key(seed), self._against_integers)),
            owner=jnp.asarray(self._digest), noise=noise,
        )  # fmt: skip

    def batch(self, state: PrivateState) -> Batch:
        """Returns the indices of the step's examples, in a fixed number of rows, and which rows are real.

        Raises ValueError where an object of other settings began the state; TypeError where it is none.
        """
        self._check(state)
        return self._door.draw(state)

    def noise_deviation(self, state: PrivateState, params: PyTree | None = None) -> Float32[Array, ""]:
        """Returns the standard deviation of the noise in each entry of the next gradient, for :func:`.adam_bc`.

        Integer noise also pays for the rounding of all entries: ``params``, or their shapes, tell how many there are.
        None: that is left out, less than a thousandth mostly.

        Raises ValueError where there is no plan, or its noise is correlated: each step has another deviation.
        """
        self._check(state)
        if isinstance(self.sampler, Correlated):
            raise ValueError("plan is of correlated noise, whose deviation differs from step to step.")
        return self._door.deviation(state, self.gradient_noise, self.sampler.expected_batch_size, params)

    def clip(
        self,
        params: PyTree,
        state: PrivateState,
        examples: tuple[PyTree, ...],
        mask: Bool[Array, " rows"],
        indices: Int32[Array, " rows"] | None = None,
    ) -> ClippedSum:
        """Returns the sum of the clipped gradients of a batch, or of a part of it, and how many were not clipped.

        Both are private, and only for :meth:`sum` and :meth:`noise`.

        Args:
            params: pytree of floating-point arrays: what is trained.
            state: that of the step.
            examples: the parts of the examples, each with the leading axis ``rows``; without a loss, the tuple of one:
                their gradients by ``params``.
            mask (rows,): which rows are real.
            indices (rows,): of the examples, for a loss with a key on a part of the batch; None: those of the batch.

        Raises ValueError where mask and examples differ in their rows or have more than a batch, the loss mixes
        examples, ``indices`` are missing, or an object of other settings began the state; TypeError where an argument
        is of a wrong kind.
        """
        self._check(state)
        rows = self.sampler.capacity
        if np.size(mask) > rows:
            raise ValueError(f"mask has {np.size(mask)} rows, and a batch {rows}: its rows would outweigh their noise.")
        loss, random = self._loss(len(examples))
        if random and indices is None:
            if np.size(mask) != rows:
                raise ValueError(
                    "the loss makes keys from the examples' indices: give those of this part of the batch."
                )
            indices, _ = self.batch(state)
        batch_rows = (examples, indices if random else None)
        parts = 1 if self.sharding is None else Shards(self.sharding, ()).devices
        if self.loss is not None:
            _check_once(self, random, -(-np.size(mask) // parts), *_shapes((params, batch_rows)))
        return self._door.clip(loss_of_row(loss, state, random=random), params, state, batch_rows, mask, batch=rows)

    def sum(self, parts: Iterable[ClippedSum]) -> ClippedSum:
        """Returns the clipped sums of parts of one batch, of microbatches or processes, added up; each row in one.

        Raises TypeError where a part is no such sum; ValueError where there is none, or they are of other parameters.
        """
        summed = tuple(parts)
        if not summed:
            raise ValueError("parts is empty: give what clip returned for each part of the batch.")
        for part in summed:
            _check_sum(part, summed[0].total, "parts has")
        return added_up(summed)

    def noise(
        self, params: PyTree, state: PrivateState, clipped: ClippedSum, *, noise_multiplier: ArrayLike | None = None
    ) -> tuple[PyTree, PrivateState]:
        """Returns the noisy mean of a batch's clipped gradients, and the state after it; the ledger pays first.

        Arguments and results are those of :meth:`gradient`, which is this of :meth:`clip`. Also raises ValueError or
        TypeError where ``clipped`` is no sum by these parameters.
        """
        _check_sum(clipped, params, "clipped is")
        return self._release(params, state, noise_multiplier, lambda: clipped)

    def gradient(
        self,
        params: PyTree,
        state: PrivateState,
        examples: tuple[PyTree, ...],
        mask: Bool[Array, " rows"],
        *,
        noise_multiplier: ArrayLike | None = None,
    ) -> tuple[PyTree, PrivateState]:
        """Returns the noisy mean of the batch's clipped gradients, and the state after it.

        Args:
            params: pytree of floating-point arrays: what is trained.
            state: used once.
            examples: the parts of the examples at the indices of :meth:`batch`, each with the leading axis ``rows``.
            mask (rows,): which rows are real, as :meth:`batch` gave it.
            noise_multiplier: of this step, all that it releases counted, under :meth:`paid_by` alone.

        Returns:
            A pytree like ``params``, in their dtypes. When the plan's steps are made, the ledger refuses, or an object
            of other settings began the state: zeros, without a look at the data, and the state as it was; ValueError
            where that is known before (outside ``jit``).
        """

        def clip_examples() -> ClippedSum:
            rows = self.sampler.capacity
            if np.shape(mask) != (rows,) or any(np.shape(part)[:1] != (rows,) for part in jax.tree.leaves(examples)):
                shapes = [np.shape(part) for part in jax.tree.leaves(examples)]
                raise ValueError(
                    f"mask has shape {np.shape(mask)} and examples {shapes}: give the mask of batch(state), and the "
                    f"{rows} examples at its indices."
                )
            return self.clip(params, state, examples, mask)

        return self._release(params, state, noise_multiplier, clip_examples)

    def _release(
        self, params: PyTree, state: PrivateState, noise: ArrayLike | None, clipped: Callable[[], ClippedSum]
    ) -> tuple[PyTree, PrivateState]:
        """Returns the noisy mean of ``clipped()`` and the state after it where the ledger grants the step."""
        # The ledger pays before ``clipped`` looks at the data; a traced refusal takes the branch of zeros. The budget
        # is this object's, whatever ledger the state brings.
        self._check(state)
        entries = entries_of(params)
        if is_chacha20(state.key) and self.plan is not None and entries + 2 > self.plan.samples:
            raise ValueError(
                f"params have {entries} entries, and the plan pays for integer noise on {self.plan.samples - 2}: "
                "give that number as entries."
            )
        multiplier = self._gradient_noise(noise)
        ledger = self.ledger.resume(state.ledger)  # type: ignore[arg-type]
        state = dataclasses.replace(state, ledger=ledger)
        cost = None
        if not isinstance(ledger, PlannedLedger):
            mechanism = self.sampler.mechanism(noise)  # type: ignore[arg-type]
            cost = ledger.cost(mechanism, relation=self.sampler.relation)
        is_ours = True if is_concrete(state.owner) else jnp.all(state.owner == self._digest)
        granted, paid = self._door.pay(state, cost, is_ours)

        def release(paid: PrivateState) -> tuple[PyTree, PrivateState]:
            return self._door.release(
                params, paid, clipped(), noise_multiplier=multiplier,
                expected_batch_size=self.sampler.expected_batch_size,
            )  # fmt: skip

        if not is_concrete(granted):
            return jax.lax.cond(granted, release, lambda _: (jax.tree.map(jnp.zeros_like, params), state), paid)
        if not granted:
            raise self._refusal(state)
        return release(paid)

    def _refusal(self, state: PrivateState) -> ValueError:
        """Returns the error that says why the next step of a state is not paid for."""
        if not self._door.is_paid_up(state):
            return ValueError(
                f"state is at step {state.step}, and its ledger has paid for {state.ledger.made} runs: they are of "  # type: ignore[union-attr]
                "different states. Restore both from one."
            )
        if self.plan is not None:
            return ValueError(f"state has made all {self.steps} steps of its plan: plan more epochs to begin with.")
        return ValueError("the state's ledger refuses this step: give it more noise, or stop.")

    def _check(self, state: PrivateState) -> None:
        """Raises where ``state`` is none, or is known to be that of an object of other settings."""
        if not isinstance(state, PrivateState):
            raise TypeError(f"state is a {type(state).__name__}: give what start or the last gradient returned.")
        structures: list[Any] = [jax.tree.structure(state.rule), jax.tree.structure(self.rule)]
        same = structures[0] == structures[1] and np.shape(state.owner) == (8,)
        same &= self.noise_arithmetic is None or is_chacha20(state.key) == (self.noise_arithmetic == "integer")
        if not same or (is_concrete(state.owner) and not np.array_equal(state.owner, self._digest)):
            raise ValueError(
                "state was begun by PrivateGradients of other settings, whose key and count it has: give what start or "
                "the last gradient of this object returned, or of one that was made with the same settings."
            )

    @functools.cached_property
    def _digest(self) -> UInt32[np.ndarray, 8]:
        """Digest of all settings that what a state has spent depends on.

        As :func:`.fingerprint` of a trainer it has nothing of the loss, which may change from step to step, and knows
        numbers by the digits that are shown, which another machine finds as well.
        """
        entries: dict[str, Any] = {
            "sampler": drawn_by(self.sampler),
            "noise": None,
            "rule": jax.tree.structure(self.rule),
            "norms": [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(self.rule) if is_concrete(leaf)],
            "ledger": self.ledger,
        }
        if isinstance(self.sampler, Correlated):
            with jax.core.eval_context():  # the first use may be in a trace
                entries["noise"] = describe_noise(self.sampler)
        if self.plan is not None:
            plan = self.plan
            entries["plan"] = (plan.noise_multiplier, plan.steps, plan.epsilon, plan.delta, plan.queries)
            del entries["ledger"]
        elif isinstance(self.ledger, MenuFilter):
            entries["menu"] = self.ledger.menu.fingerprint()
        text = "\n".join(f"{name}: {as_words(value)}" for name, value in entries.items())
        return np.frombuffer(hashlib.sha256(text.encode()).digest(), "<u4").astype(np.uint32)

    def _gradient_noise(self, noise: ArrayLike | None) -> ArrayLike:
        """Returns the noise multiplier of the gradients in a step of noise multiplier ``noise``, None under a plan."""
        if self.plan is not None:
            if noise is not None:
                raise ValueError(f"noise_multiplier = {noise}: the plan has fixed {self.plan.noise_multiplier:g}.")
            return self.gradient_noise
        if noise is None:
            raise ValueError("noise_multiplier is missing: without a plan each step is given its own.")
        if type(self.rule).gradient_noise_multiplier is ClippingRule.gradient_noise_multiplier:
            return noise
        if not is_concrete(noise):
            raise ValueError(
                f"{type(self.rule).__name__} takes its share of noise that is known before: give a number."
            )
        return self.rule.gradient_noise_multiplier(float(np.asarray(noise)))

    def _loss(self, parts: int) -> tuple[Callable[[PyTree, Any, jax.Array | None], Array], bool]:
        """Returns the loss by parameters, an example and a key, and whether it looks at the key."""
        loss = self.loss
        if loss is None:  # its derivative by the parameters is the gradient that is given, bit for bit
            return lambda params, example, _: sum(jax.tree.leaves(_products(params, *example)), jnp.zeros(())), False
        if takes_key(loss, parts):
            return lambda params, example, key: loss(params, *example, key=key), True
        return lambda params, example, _: loss(params, *example), False


def _check_sum(clipped: Any, like: PyTree, name: str) -> None:
    """Raises where ``clipped`` is no clipped sum of the structure and shapes of ``like``."""
    if not isinstance(clipped, ClippedSum):
        raise TypeError(f"{name} a {type(clipped).__name__}: give what clip or sum returned.")
    structures: list[Any] = [jax.tree.structure(clipped.total), jax.tree.structure(like)]
    shapes, wanted = ([np.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (clipped.total, like))
    if structures[0] != structures[1] or shapes != wanted or np.shape(clipped.unclipped):
        unlike = f"shapes {shapes}, and not {wanted}" if shapes != wanted else "another structure"
        raise ValueError(f"{name} a sum of {unlike[:300]}: give the sum of gradients by the same parameters.")


def _products(params: PyTree, gradient: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf, slope: jnp.sum(leaf * slope.astype(leaf.dtype)), params, gradient)


def _shapes(tree: PyTree) -> tuple[Any, tuple[Any, ...]]:
    """Returns the structure of a pytree of arrays, and their shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves)


@functools.lru_cache(maxsize=64)
def _check_once(private: PrivateGradients, random: bool, rows: int, structure: Any, kinds: tuple[Any, ...]) -> None:
    """Raises ValueError where the loss mixes examples: made-up ones, at parameters that are made up as well.

    The check also works while the caller is being traced, for it uses none of the caller's values. A loss that itself
    refers to traced values cannot be checked, and passes.
    """
    params, batch_rows = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*kind) for kind in kinds])
    row = jax.tree.map(lambda part: jax.ShapeDtypeStruct(part.shape[1:], part.dtype), batch_rows)
    with jax.core.eval_context():
        loss, _ = private._loss(len(batch_rows[0]))
        state = PrivateState(
            ledger=private.ledger, rule=private.rule, step=jnp.zeros((), jnp.int32), key=run_key(0),
            owner=private._digest,  # type: ignore[arg-type]
        )  # fmt: skip
        with contextlib.suppress(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
            check_loss(
                loss_of_row(loss, state, random=random), params, row, rows, microbatch_size=private.microbatch_size,
                ghost=private.ghost,
            )  # fmt: skip
