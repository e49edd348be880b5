"""The DP-SGD trainer: it samples, clips, sums, adds noise and updates while a ledger grants the steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool

from jaxacct import validation
from jaxacct.filters import RenyiFilter
from jaxacct.odometers import VilleOdometer
from jaxacct.policies import Constant, Policy
from jaxacct.processes import check_not_forked
from jaxacct.train import health, settings
from jaxacct.train.clipping import ClippingRule
from jaxacct.train.groups import Batches, Budget, Placement, Short, group_of
from jaxacct.train.keys import DerivedKey, describe_seed, run_key
from jaxacct.train.metrics import Metrics
from jaxacct.train.modules import Trainable, check_module, merged, split_params
from jaxacct.train.owned import Sealed, fixed_setting, owned, owned_settings
from jaxacct.train.sources import ArraySource, IndexedSource, stream
from jaxacct.train.state import Evaluation, Keeper, Plan, TrainState
from jaxacct.train.step import Program, strongly_typed


class DPTrainer(Sealed):
    """Trains a Flax module on one data set by DP-SGD until a step would exceed the budget.

    Args:
        model: an ``nnx.Module``; called by ``loss`` on one example at a time. BatchNorm and modules with random state
            (Dropout) are refused. Not modified: read :attr:`model`.
        loss: ``loss(model, *example)``, the scalar loss of one example without a batch axis. What it writes into the
            model's state is dropped.
        optimizer: any Optax transformation; sees the noisy mean of clipped gradients in the parameters' dtype.
        data: tuple of arrays with a common leading axis, the examples: ``(inputs, labels)``; or a
            :class:`~jaxacct.train.sources.IndexedSource` of data that need not fit into memory.
        budget: epsilon and delta for ``data``, of this trainer, and the ledger that keeps to them; another trainer on
            the same data costs another budget. Short: ``epsilon``, ``delta``, ``ledger``.
        noise_multiplier: standard deviation of the noise over the sensitivity, for all steps. Raise it for more steps,
            lower it for better ones; :func:`jaxacct.calibrate.noise_multiplier` finds the least for a number of steps.
        policy: chooses noise and sampling rate (:mod:`jaxacct.policies`) in place of ``noise_multiplier`` and
            ``batches``: for schedules, and for noise that follows what was released.
        batches: how large they are and how they are drawn. Short: ``sampling_rate``, ``expected_batch_size`` or
            ``sampler``.
        clipping: a rule of :mod:`jaxacct.train.clipping`, where one norm for all is not wanted. Short: ``clip_norm``,
            bound on the L2 norm of each example's gradient: lower it where noise drowns the gradients, raise it where
            most of them are cut.
        placement: microbatches, devices: time and memory alone. Short: ``microbatch_size``, ``ghost``, ``devices``.
        trainable: which parameters train, as :func:`~jaxacct.train.modules.split_params` takes it, for fine-tuning;
            None: all.
        correct: for policies that ask how many training examples are right: ``correct(model, *example)``, 0 or 1.
        metrics: private means over each batch, such as that of the loss, for a share of each step's noise.
        seed: None for the operating system's entropy. A whole number or typed key, for experiments and tests, makes the
            run repeatable bit for bit and its noise known to whoever knows the seed.
        **short: fields of the groups, by themselves.

    Formal guarantee: the parameters after any number of :meth:`fit` calls, with all those in between, are (epsilon,
    delta)-DP for the sampler's relation (adding or removing one example, or replacing one), however the policy chose
    its settings. The ledger shows it, at a delta reduced by what cut batches cost (:mod:`jaxacct.train.sampling`).
    Where settings were fixed in advance and nothing released decided when to stop (:attr:`stopping_was_planned`), the
    certified accountant at the realized number of steps holds as well, and is tighter
    (:func:`~jaxacct.train.claims.certified_epsilon`). The size of the data set is taken as public. ``evaluate``
    must not see ``data``.

    The spend is taken from the ledger in the compiled step, before the update that it pays for; with a keeper
    (:class:`~jaxacct.train.checkpoints.Checkpoints`) it is on disk before.

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
        data: tuple[Any, ...] | IndexedSource,
        *,
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
        policy: Policy | None = None,
        batches: Batches | None = None,
        clipping: ClippingRule | None = None,
        placement: Placement | None = None,
        trainable: Trainable = None,
        correct: Callable[..., Array] | None = None,
        metrics: Metrics | None = None,
        seed: int | jax.Array | DerivedKey | None = None,
        **short: Unpack[Short],
    ) -> None:
        check_not_forked()
        check_module(model)
        given: dict[str, Any] = {**short}
        self.budget = budget = group_of(Budget, budget, "budget", given)
        batches = group_of(Batches, batches, "batches", given)
        self.placement = placement = group_of(Placement, placement, "placement", given)
        rule = owned_settings(settings.rule_of(given.pop("clip_norm", None), clipping), "clipping")
        if given:
            raise TypeError(f"DPTrainer() got an unexpected keyword argument {next(iter(given))!r}")
        self.source = data if isinstance(data, IndexedSource) else ArraySource(data)
        arrays: tuple[Array, ...] = self.source.data if isinstance(self.source, ArraySource) else ()
        self.epsilon, self.delta, self.ledger_kind = budget.epsilon, budget.delta, budget.ledger
        self.microbatch_size, self.ghost, self.clipping = placement.microbatch_size, placement.ghost, rule
        self.seed = describe_seed(seed)
        self.policy = settings.policy_of(policy, noise_multiplier, batches, len(self.source))
        if self.policy.query is not None and (correct is None or not arrays):
            raise ValueError("correct = None or data read by index: this policy counts correct examples in arrays.")
        self.sampler: Any = owned_settings(batches.sampler, "sampler") or settings.poisson_sampler(
            len(self.source), self.policy, self.epsilon, self.delta, known_length=budget.ledger == "filter"
        )
        if len(self.source) != self.sampler.num_examples:
            raise ValueError(f"sampler is for {self.sampler.num_examples} examples, and data has {len(self.source)}.")
        self._graph, params, self._constants = split_params(model, trainable)
        settings.check_params(params)
        settings.check_loss(loss, self._graph, params, self._constants, self.source.example)
        book = self._ledger(self.delta_after_overflow)
        policy_state = owned(self.policy.start(book))
        self.program = Program(
            loss=loss, correct=correct, graph=self._graph, optimizer=optimizer, sampler=self.sampler,
            policy=self.policy, setting=fixed_setting(self.policy, policy_state), epsilon=self.epsilon,
            gradient_noise=settings.gradient_noise(self.policy, rule, metrics), metrics=metrics,
            microbatch_size=placement.microbatch_size, ghost=placement.ghost,
            sharding=settings.sharding_over(placement.devices),
        )  # fmt: skip
        if self.program.rate_varies and not arrays:
            raise ValueError(
                "policy changes the sampling rate, and data is read by index, for batches drawn at one rate: give the "
                "data in arrays."
            )
        self._state = TrainState(
            params=jax.tree.map(strongly_typed, params),
            opt_state=jax.tree.map(strongly_typed, owned(optimizer.init(owned(params)))),
            ledger=book,
            rule=jax.tree.map(strongly_typed, rule),
            policy=policy_state,
            step=jnp.zeros((), jnp.int32),
            key=owned(run_key(seed)),
            metrics={} if metrics is None else metrics.start(),
        )
        if sharding := self.program.sharding:
            everywhere = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
            self._state, self._constants = jax.device_put((self._state, self._constants), everywhere)
            arrays = jax.device_put(arrays, everywhere)
        self.data = arrays
        self._plan, self._fitting, self._finite = Plan(), False, False
        self._run = jax.jit(self.program.run)
        self._step_on = jax.jit(self.program.step_on)
        self._adapt = jax.jit(self.program.adapt)
        self._foresee = jax.jit(self.program.foresee)
        self._curve = None if self.policy.every_step else self.program.curve(self._state)
        if self.remaining_steps == 0:
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier:g} at an expected batch size of "
                f"{self.sampler.expected_batch_size:.3g} pays for no step within (epsilon = {budget.epsilon}, delta = "
                f"{budget.delta}): raise noise_multiplier or epsilon, or sample smaller batches."
            )

    def __repr__(self) -> str:
        spent = f"step {self.steps}, epsilon {self.spent_epsilon:.4g} of {self.epsilon:g} spent at delta {self.delta:g}"
        return f"<DPTrainer: {spent}; {self.policy}, {self.sampler}, {self.clipping}>"

    def _ledger(self, delta: float) -> Any:
        return RenyiFilter(self.epsilon, delta) if self.ledger_kind == "filter" else VilleOdometer(delta)

    @property
    def horizon(self) -> int:
        """The most steps of the run: cut batches are paid for over that many."""
        if isinstance(self.policy, Constant) and self.ledger_kind == "filter":
            runs = int(self._ledger(self.delta).remaining(self.mechanism, relation=self.sampler.relation))
            return runs * self.sampler.steps_per_run
        return settings.MOST_STEPS

    @property
    def delta_after_overflow(self) -> float:
        """What is left of delta once batches cut at capacity are paid for, over the longest run the budget allows."""
        left = math.nextafter(self.delta - self.sampler.overflow_delta(self.horizon, self.epsilon), 0.0)
        if left <= 0:
            raise ValueError(
                f"sampler cuts batches so often that they cost all of delta = {self.delta} over {self.horizon} steps: "
                "give it a larger capacity."
            )
        return left

    @property
    def noise_multiplier(self) -> float:
        """Of the next step."""
        if isinstance(self.policy, Constant):
            return float(self.policy.noise_multiplier)
        return float(self.program.setting(self._state.policy, self._state.step).noise_multiplier)

    @property
    def mechanism(self) -> Any:
        """What the next step is accounted as, or the epoch where the sampler covers one."""
        return self.sampler.mechanism(self.policy.noise_multiplier) if isinstance(self.policy, Constant) else (
            self.program.mechanism(self._state)
        )  # fmt: skip

    @property
    def clip_norm(self) -> float:
        """The sensitivity of the next step's sum."""
        return float(np.asarray(self._state.rule.sensitivity))

    @property
    def model(self) -> nnx.Module:
        """The module as trained so far: a copy, to do with as one likes."""
        return merged(self._graph, owned(self._state.params), owned(self._constants))

    @property
    def state(self) -> TrainState:
        """All that changes during training: a copy. What :meth:`fit` trains cannot be set."""
        return owned(self._state)

    @property
    def constants(self) -> nnx.State:
        """What of the module does not train: a copy."""
        return owned(self._constants)

    @property
    def plan(self) -> Plan:
        """Where the run is to end, and whether it kept to that."""
        return self._plan

    @property
    def steps(self) -> int:
        """Noisy updates so far."""
        return int(self._state.step)

    @property
    def remaining_steps(self) -> int:
        """How many more updates the budget pays for, at the present setting."""
        limit = () if self.ledger_kind == "filter" else (self.epsilon,)
        runs = int(self._state.ledger.remaining(self.mechanism, *limit, relation=self.sampler.relation))
        paid = -self.steps % self.sampler.steps_per_run
        return min(runs * self.sampler.steps_per_run + paid, max(self.horizon - self.steps - self._plan.lost_steps, 0))

    @property
    def spent_epsilon(self) -> float:
        """The ledger's epsilon of the updates so far: an upper bound; an odometer's holds if the run stops here."""
        return float(self._state.ledger.epsilon())

    @property
    def stopping_was_planned(self) -> bool:
        """Whether settings were fixed in advance and the run went to the end that its first :meth:`fit` set for it.

        Then its length depends on the settings and the budget only, and the non-adaptive accountant applies. A run that
        was interrupted, or continued to another end, may have been so by looking at the model. One that was taken up
        again and went to the same end was not, unless updates were lost on the way.
        """
        return not self.policy.adaptive and self._plan.kept and self._plan.ended

    def fit(
        self,
        steps: int | None = None,
        *,
        every: int | None = None,
        evaluate: Callable[[nnx.Module], float] | None = None,
        on_evaluation: Callable[[Evaluation], None] | None = None,
        keeper: Keeper | None = None,
    ) -> list[Evaluation]:
        """Trains from the present state for ``steps`` updates, or until the budget refuses the next one.

        Args:
            steps: most updates of this call, for runs that are to end before their budget; None: what that pays for.
            every: updates between evaluations; None: one expected pass over the data. Compiled loops end there: raise
                it where steps are short.
            evaluate: gets a copy of the module, returns a number to record. Called outside the compiled step.
            on_evaluation: called with each record, for progress bars.
            keeper: writes the run down, ledger first (:class:`~jaxacct.train.checkpoints.Checkpoints`).

        Returns:
            The records of this call, one at each multiple of ``every`` updates and one at its end; none if nothing was
            granted.

        A later call goes on with keys that no earlier one used. Interrupted between two evaluations, the state is that
        of the last one; what was computed since has been seen by nobody.

        Raises RuntimeError where it is called while it runs, or in a process that was forked from one where JAX ran;
        FloatingPointError, with nothing more spent, where nothing is learned any longer (:mod:`jaxacct.train.health`).
        """
        validation.check_steps(0 if steps is None else steps)
        every = self._pass if every is None else every
        if every < 1:
            raise ValueError(f"every = {every} is not a number of updates between evaluations: give at least 1.")
        check_not_forked()
        if self._fitting:
            raise RuntimeError("fit was called while it runs, by a callback or another thread: let it return first.")
        self._fitting = True
        try:
            return self._fit(steps, every, evaluate, on_evaluation, keeper)
        finally:
            self._fitting = False

    def _fit(
        self,
        steps: int | None,
        every: int,
        evaluate: Callable[[nnx.Module], float] | None,
        on_evaluation: Callable[[Evaluation], None] | None,
        keeper: Keeper | None,
    ) -> list[Evaluation]:
        left = self.horizon - self.steps - self._plan.lost_steps
        left = left if steps is None else min(int(steps), left)
        goal = self.steps + left
        kept = self._plan.kept and self._plan.goal in (None, goal)
        self._plan = self._plan._replace(goal=goal, kept=kept, ended=False)
        history: list[Evaluation] = []
        granted, size, sums = True, health.root_mean_square(self._state.params), self._state.metrics
        self._check_gradients()
        while granted and left > 0 and not bool(self.policy.stopped(self._state.policy)):
            before = self.steps
            granted = self._advance(min(every - before % every, left), keeper)
            done = self.steps - before
            left -= done
            if done:
                accuracy = None if evaluate is None else float(evaluate(self.model))
                means = {name: float(total - sums[name]) / done for name, total in self._state.metrics.items()}
                history.append(Evaluation(self.steps, accuracy, self.spent_epsilon, means))
                sums = self._state.metrics
                if on_evaluation is not None:
                    on_evaluation(history[-1])
            health.check_parameters(self._state.params, size, self.steps)
        self._plan = self._plan._replace(ended=True)
        if keeper is not None:
            keeper.end(self)
        return history

    def _check_gradients(self) -> None:
        if self._state.step > 0 or self._finite:
            return
        loss = lambda params, example: self.program.loss(merged(self._graph, params, self._constants), *example)  # noqa: E731
        health.check_gradients(loss, self._state.params, self.source.example)
        self._finite = True

    @property
    def _pass(self) -> int:
        return max(1, round(self.sampler.num_examples / self.sampler.expected_batch_size))

    def _advance(self, steps: int, keeper: Keeper | None) -> bool:
        """Runs so many steps, adapting in between; returns whether all were granted, or the policy stopped."""
        while steps > 0 and not bool(self.policy.stopped(self._state.policy)):
            period = self.policy.period
            chunk = min(steps, period - self.steps % period) if period else steps
            if keeper is not None:
                chunk = keeper.begin(self, chunk)
            before = self.steps
            state, granted = self._compute(self._state, chunk)
            done = int(state.step) - before
            adapts = bool(period) and done > 0 and int(state.step) % period == 0
            if adapts:
                state = self._adapt(state, self._constants, self.data)
            self._state = state
            if adapts and not self.policy.every_step:
                self._curve = self.program.curve(state)
            if keeper is not None:
                keeper.finish(self)
            if not granted:
                return False
            steps -= done
        return True

    def _compute(self, state: TrainState, steps: int) -> tuple[TrainState, bool]:
        curve = self._present_curve()
        if isinstance(self.source, ArraySource):
            state, refused = self._run(state, curve, self._constants, self.data, steps)
            return state, not bool(refused)
        key = self.program.sample_key(state)
        for batch in stream(self.source, self.sampler, key, steps, start=int(state.step)):
            granted, state = self._step_on(state, curve, self._constants, batch.examples, batch.mask)
            if not bool(granted):
                return state, False
        return state, True

    def step(self, state: TrainState) -> tuple[Bool[Array, ""], TrainState]:
        """Returns whether one update was granted, and the state after it: the old one, bit for bit, if refused.

        A pure function of the state: works under ``jit`` and in ``lax.scan``. Does not adapt a policy, needs data in
        memory, and does not change :attr:`state`: what it returns is paid for in the ledger of the state that it
        returns, and not in this trainer's.
        """
        return self.program.step(state, self._present_curve(), self._constants, self.data)

    def foreseen(self, steps: int) -> tuple[Any, int]:
        """Returns the ledger after up to ``steps`` more updates and an adaptation that follows them, and how many.

        Spends nothing and looks at no data: what the updates will have cost is known before they are made.
        """
        ledger, step = self._foresee(self._state, self._present_curve(), steps)
        return ledger, int(step) - self.steps

    def _restore(self, state: TrainState, plan: Plan, constants: Any = None) -> None:
        """Goes on from a state that this trainer's program made; ``constants`` replace what does not train.

        For what takes a run up and answers for what was spent before (:class:`~jaxacct.train.checkpoints.Checkpoints`).
        """
        self._state, self._plan = owned(state), plan
        self._constants = self._constants if constants is None else owned(constants)
        self._curve = None if self.policy.every_step else self.program.curve(self._state)

    def _present_curve(self) -> Array:
        return jnp.zeros(len(self._state.ledger.orders)) if self._curve is None else self._curve
