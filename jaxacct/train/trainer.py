"""The DP-SGD trainer: it samples, clips, sums, adds noise and updates while a ledger grants the steps.

:class:`DPTrainer` checks and copies what it is given, makes the ledger and the compiled program
(:mod:`jaxacct.train.step`), and says what is left and what is spent; :mod:`jaxacct.train.loop` runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array

from jaxacct.filters import MenuFilter, RenyiFilter
from jaxacct.menus import Menu, certify
from jaxacct.odometers import MenuOdometer, VilleOdometer
from jaxacct.outward import rounded_up
from jaxacct.policies import Constant, Policy
from jaxacct.processes import check_not_forked
from jaxacct.strategies import Strategy
from jaxacct.train import settings
from jaxacct.train.clipping import ClippingRule, Routes
from jaxacct.train.groups import Augmentation, Batches, Budget, Placement, Short, check_one, group_of
from jaxacct.train.keys import ENTROPY, DerivedKey, describe_seed, run_key
from jaxacct.train.loop import Loop
from jaxacct.train.metrics import Metrics
from jaxacct.train.models import ExampleLoss, Trainable, check_module, merged, split_params
from jaxacct.train.noise import start
from jaxacct.train.owned import fixed_setting, owned, owned_settings, placed
from jaxacct.train.planned import PlannedLedger, delta_left
from jaxacct.train.sampling import present_of
from jaxacct.train.saving import agreed_key, check_same, check_settings, fingerprint, save_model
from jaxacct.train.settings import items_of, spending
from jaxacct.train.sources import ArraySource, source_of
from jaxacct.train.state import Progress, TrainState
from jaxacct.train.step import StepProgram, strongly_typed

OTHER_NAMES = {
    **dict.fromkeys(("max_grad_norm", "l2_norm_clip", "clipping_norm", "clipping_threshold"), "clip_norm"),
    **dict.fromkeys(("batch_size", "lot_size", "logical_batch_size"), "expected_batch_size"),
    **dict.fromkeys(("sample_rate", "rate"), "sampling_rate"),
    **dict.fromkeys(("target_epsilon", "target_delta"), "epsilon and delta"),
    "max_physical_batch_size": "microbatch_size",
}
"""Names that other libraries have for arguments of the trainer, and the trainer's. For an error message only."""


class DPTrainer(Loop):
    """A trainer of one Flax module on one data set by DP-SGD, within a budget.

    Two of ``epsilon``, ``noise_multiplier`` and a length (``epochs`` or ``steps``) are given, and :attr:`plan` says
    what the third is: the run spends all of its budget. A policy that chooses on the way has epsilon, and no length.

    Args:
        model: an ``nnx.Module``; called by ``loss`` on one example at a time. Its random streams (``nnx.Dropout``) get
            new keys for each example and step. BatchNorm is refused unless its averages are frozen
            (:func:`~jaxacct.train.to_group_norm`). Not modified: read :attr:`model`, and ``eval()`` it.
        loss: ``loss(model, *example)``, the scalar loss of one example without a batch axis; where it is
            ``loss(model, *example, key)``, with a typed key for that example and step. Its writes into the model's
            state are dropped; :func:`~jaxacct.train.unprotected_intermediates` gives what it sows.
        optimizer: any Optax transformation; sees the noisy mean of clipped gradients in the parameters' dtype. Lower
            its rate where noise moves the loss more than learning does; a falling one averages the last steps' noise.
        data: the examples: a pytree of arrays with a common leading axis, or a data set read by index, batch by batch
            (:class:`~jaxacct.train.sources.IndexedSource`). A tuple is the loss's arguments, anything else is one.
        budget: epsilon and delta for ``data``, of this trainer, the length that is planned, and the ledger that keeps
            to them; another trainer on the same data costs another budget. Short: ``epsilon``, ``delta``, ``epochs`` or
            ``steps``, ``ledger``. Plan a longer run where training has not converged at its end.
        noise_multiplier: standard deviation of the noise over the sensitivity, for all steps; None where epsilon and a
            length say what it is. Give it to reproduce a run: raise it for more steps, lower it for better ones.
        noise: correlates the noise of steps (:mod:`jaxacct.strategies`); None: it is independent. Mostly better in few
            epochs and at large budgets (``docs/correlated-noise.md``). Batches are then drawn from as many groups as it
            has bands, by turns, or by a ``sampler`` that bounds how examples take part.
        policy: chooses noise and sampling rate (:mod:`jaxacct.policies`) in place of ``noise_multiplier`` and
            ``batches``: for schedules, and for noise that follows what was released.
        batches: how large they are and how they are drawn. Short: ``sampling_rate``, ``expected_batch_size`` or
            ``sampler``. Raise the size, with the learning rate, as far as time allows: noise is added once a batch.
        clipping: a rule of :mod:`jaxacct.train.clipping`, where one norm for all is not wanted. Short: ``clip_norm``,
            bound on the L2 norm of each example's gradient: lower it where noise drowns the gradients, raise it where
            most of them are cut.
        placement: microbatches, devices, a mesh: time and memory alone; where one of them runs out. Short:
            ``microbatch_size``, ``ghost``, ``devices``, ``mesh``, ``rules``, ``row_axes``.
        augmentation: views of an example whose gradients are averaged before they are clipped. Short: ``augment``,
            ``views``.
        trainable: which parameters train, as :func:`~jaxacct.train.models.split_params` takes it; None: all,
            or all adapters (:func:`~jaxacct.train.lora`). Fewer, for fine-tuning: noise grows with their number.
        correct: for policies that ask how many training examples are right: ``correct(model, *example)``, 0 or 1;
            let it ``eval()`` a model with dropout. Needed by those alone.
        metrics: private means over each batch, such as that of the loss, for a share of each step's noise.
        seed: None for the operating system's entropy. A whole number or typed key, for experiments and tests, makes the
            run repeatable bit for bit and its noise known to whoever knows the seed.
        **short: fields of the groups, by themselves.

    Formal guarantee: the parameters after any number of :meth:`fit` calls, with all those in between, are (epsilon,
    delta)-DP for the sampler's relation (adding or removing one example, or replacing one), however the policy chose
    its settings. A planned run has it from the certified accountant, wherever it stops (:mod:`jaxacct.train.planned`),
    others from their ledger, both at a delta reduced by what cut batches cost (:mod:`jaxacct.train.sampling`).
    Where settings were fixed in advance and nothing released decided when to stop (:attr:`stopping_was_planned`), the
    certified epsilon of the steps made holds as well, and is smaller
    (:func:`~jaxacct.train.report.certified_epsilon`). The size of the data set is taken as public, but with
    ``most_examples``. ``evaluate`` must not see ``data``.

    The compiled step takes the spend from the ledger before it makes the update that the spend pays for; a keeper
    (:class:`~jaxacct.train.checkpoints.Checkpoints`) has written it to disk before.

    Raises ValueError or TypeError where an argument is out of range, the budget pays for no step at all, or too few or
    too many of epsilon, noise and length are given.

    >>> from jaxacct.train import DPTrainer
    >>> x, y = np.ones((100, 2), np.float32), np.ones(100, np.float32)
    >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> trainer = DPTrainer(model, lambda m, x, y: jnp.sum((m(x) - y) ** 2), optax.sgd(0.1), (x, y), epsilon=2.0,
    ...                     delta=1e-3, epochs=2, expected_batch_size=20, clip_norm=1.0)
    >>> [entry.step for entry in trainer.fit()], trainer.plan.steps, trainer.plan.certified.upper > 1.999
    ([5, 10], 10, True)
    """

    def __init__(
        self,
        model: nnx.Module,
        loss: Callable[..., Array],
        optimizer: optax.GradientTransformation,
        data: Any,
        *,
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
        noise: Strategy | None = None,
        policy: Policy | None = None,
        batches: Batches | None = None,
        clipping: ClippingRule | None = None,
        placement: Placement | None = None,
        augmentation: Augmentation | None = None,
        trainable: Trainable = None,
        correct: Callable[..., Array] | None = None,
        metrics: Metrics | None = None,
        seed: int | jax.Array | DerivedKey | None = None,
        **short: Unpack[Short],
    ) -> None:
        # First what was given: checked, and copied where the caller could change it later.
        check_not_forked()
        check_module(model)
        given: dict[str, Any] = {**short}
        budget = group_of(Budget, budget, "budget", given)
        batches = group_of(Batches, batches, "batches", given)
        self.placement = placement = group_of(Placement, placement, "placement", given)
        self.augmentation = augmentation = group_of(Augmentation, augmentation, "augmentation", given)
        for name in sorted(given.keys() - {"clip_norm"}):
            meant = f": {OTHER_NAMES[name]} is meant" if name in OTHER_NAMES else ""
            raise TypeError(f"DPTrainer() got an unexpected keyword argument {name!r}{meant}.")
        rule = owned_settings(settings.rule_of(given.pop("clip_norm", None), clipping), "clipping")
        if not isinstance(optimizer, optax.GradientTransformation):
            raise TypeError(f"optimizer = {optimizer!r}: give an Optax transformation, such as optax.adam(1e-3).")
        if noise_multiplier is not None:
            check_one(noise_multiplier, "noise_multiplier")
        if correct is not None and not callable(correct):
            raise TypeError(f"correct is a {type(correct).__name__}: give a function of the model and an example.")
        if metrics is not None and not isinstance(metrics, Metrics):
            raise TypeError(f"metrics = {metrics!r}: give a jaxacct.train.Metrics.")
        self.source = source_of(data)
        arrays: tuple[Any, ...] = self.source.data if isinstance(self.source, ArraySource) else ()
        self.noise = owned_settings(noise, "noise")
        self.budget, self.policy, self.sampler, self.plan = spending(
            budget, policy, noise_multiplier, batches, len(self.source), self.noise
        )
        assert self.budget.epsilon is not None
        self.epsilon: float = self.budget.epsilon
        self.delta, self.ledger_kind = self.budget.delta, self.budget.ledger
        self.microbatch_size, self.ghost, self.clipping = placement.microbatch_size, placement.ghost, rule
        self.seed = describe_seed(seed)
        if self.policy.query is not None and (correct is None or not arrays):
            raise ValueError("correct = None or data read by index: this policy counts correct examples in arrays.")
        if len(self.source) != present_of(self.sampler):
            raise ValueError(f"sampler is for {present_of(self.sampler)} examples, and data has {len(self.source)}.")
        # Then the parameters, the ledger and the program. The ledger's delta is what cut batches leave of it.
        self._graph, params, self._constants = split_params(model, trainable)
        settings.check_params(params)
        of_one = ExampleLoss.of(loss, self._graph, params, self._constants, self.source.example, augmentation)
        book = self._ledger(self.delta_after_overflow)
        policy_state = owned(self.policy.start(book))
        self.program = StepProgram(
            loss=of_one, correct=correct, optimizer=optimizer, sampler=self.sampler,
            policy=self.policy, setting=fixed_setting(self.policy, policy_state), epsilon=self.epsilon,
            gradient_noise=settings.gradient_noise(self.policy, rule, metrics, self.noise), metrics=metrics,
            microbatch_size=placement.microbatch_size, ghost=placement.ghost,
            layout=placement.layout(),
        )  # fmt: skip
        if self.program.rate_varies and not arrays:
            raise ValueError(
                "policy changes the sampling rate, and data is read by index, for batches drawn at one rate: give the "
                "data in arrays."
            )
        layout = self.program.layout
        # All processes have to begin with the same bits.
        params = jax.tree.map(strongly_typed, params)
        check_same((params, self._constants, arrays), "what a run begins with")
        if layout:  # before the optimizer allocates as much again for them
            layout.check_rules(params, self._constants)
            params = jax.tree.map(placed, params, layout.of_variables(params))
        self._state = TrainState(
            params=params,
            opt_state=jax.tree.map(strongly_typed, owned(optimizer.init(owned(params)))),
            ledger=book,
            rule=jax.tree.map(strongly_typed, rule),
            policy=policy_state,
            step=jnp.zeros((), jnp.int32),
            key=agreed_key(owned(run_key(seed))),
            metrics={} if metrics is None else metrics.start(),
            noise=None if self.noise is None else start(self.noise, params),
        )
        self.program.check_counts(self._state, self._constants, self.source.example)
        places = None if layout is None else layout.of_state(self._state)
        if layout:
            self._state = jax.tree.map(placed, self._state, places)
            self._constants = jax.tree.map(placed, self._constants, layout.of_variables(self._constants))
            arrays = jax.tree.map(lambda part: placed(part, layout.everywhere), arrays)
        self.data = arrays
        self._progress, self._fitting, self._at_once = Progress(), False, 8
        self._run = jax.jit(self.program.run, out_shardings=(places, None))
        self._step_on = jax.jit(self.program.step_on, out_shardings=(None, places))
        self._adapt = jax.jit(self.program.adapt, out_shardings=places)
        self._foresee = jax.jit(self.program.foresee)
        if jax.process_count() > 1:
            given = {"the seed": seed if isinstance(seed, int) else type(seed).__name__, "placement": placement}
            given |= {"examples of its data": len(self.source)}
            check_settings({**fingerprint(self), **given, "noise_multiplier": self.noise_multiplier})
            check_same((rule, policy_state), "clipping or policy")
        # The curve of one run of the mechanism, computed once where the setting stays for several steps.
        self._curve = None if self.policy.every_step else self.program.curve(self._state)
        if self.remaining_steps == 0:
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier:g} at an expected batch size of "
                f"{self.sampler.expected_batch_size:.3g} pays for no step within (epsilon = {self.epsilon}, delta = "
                f"{self.delta}): raise noise_multiplier or epsilon, or sample smaller batches."
            )

    def __repr__(self) -> str:
        spent = f"step {self.steps}, epsilon {rounded_up(self.spent_epsilon, '.4g')} of {rounded_up(self.epsilon)}"
        spent += f" spent at delta {rounded_up(self.delta)}"
        return f"<DPTrainer: {spent}; {self.policy}, {self.sampler}, {self.clipping}>"

    def _ledger(self, delta: float) -> Any:
        """Returns the ledger of the run's kind before its first step; a planned one has its delta in the plan."""
        if self.plan is not None:
            return PlannedLedger.of(self.plan.runs, certified=float(self.plan.certified.upper))
        if self.ledger_kind == "filter":
            return RenyiFilter(self.epsilon, delta)
        if self.ledger_kind == "odometer" and not self.budget.menu:
            return VilleOdometer(delta)
        items, kind = items_of(self.budget, self.policy, self.sampler), self.ledger_kind
        menu = certify(self.epsilon, delta, items, relation=self.sampler.relation)
        return MenuFilter.of(menu) if kind == "menu" else MenuOdometer.of(menu)

    @property
    def menu(self) -> Menu | None:
        """The menu of what the run may spend, with prices; None without a menu filter. Prints as a table."""
        ledger = self._state.ledger
        return ledger.menu if isinstance(ledger, MenuFilter) else None

    @property
    def horizon(self) -> int:
        """Largest number of steps of the run: cut batches are paid for over that many."""
        if self.plan is not None:
            return self.plan.steps
        if isinstance(self.policy, Constant) and self.ledger_kind == "filter":
            runs = int(self._ledger(self.delta).remaining(self.mechanism, relation=self.sampler.relation))
            return runs * self.sampler.steps_per_run
        return settings.MOST_STEPS

    @property
    def delta_after_overflow(self) -> float:
        """The part of delta that is left once batches cut at capacity are paid for, over the longest run allowed."""
        if self.plan is not None:
            return self.plan.delta_after_overflow
        return delta_left(self.sampler, self.horizon, self.epsilon, self.delta)

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of the next step."""
        if isinstance(self.policy, Constant):
            return float(self.policy.noise_multiplier)
        return float(self.program.setting(self._state.policy, self._state.step).noise_multiplier)

    @property
    def mechanism(self) -> Any:
        """The mechanism that the next step is accounted as, or the epoch's where the sampler covers an epoch."""
        return self.sampler.mechanism(self.policy.noise_multiplier) if isinstance(self.policy, Constant) else (
            self.program.mechanism(self._state)
        )  # fmt: skip

    @property
    def clip_norm(self) -> float:
        """The L2 sensitivity of the next step's sum."""
        return float(np.asarray(self._state.rule.sensitivity))

    @property
    def model(self) -> nnx.Module:
        """The module as trained so far: a copy, to do with as one likes."""
        return merged(self._graph, owned(self._state.params), owned(self._constants))

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes :attr:`model`, as :func:`~jaxacct.train.saving.save_model` does; ``load_model`` reads it again."""
        save_model(self.model, folder, overwrite=overwrite)

    @property
    def state(self) -> TrainState:
        """State that changes during training: a copy. The trainer's own cannot be set."""
        return owned(self._state)

    @property
    def constants(self) -> nnx.State:
        """The module's state that does not train: a copy."""
        return owned(self._constants)

    @property
    def routes(self) -> Routes:
        """The form in which the gradients by each parameter are held, and why; prints as a table."""
        return self.program.routes(self._state, self._constants, self.source.example)

    @property
    def progress(self) -> Progress:
        """The run's goal, and whether it kept to that."""
        return self._progress

    @property
    def remaining_steps(self) -> int:
        """Number of further updates that the budget pays for at the present setting."""
        if self.plan is not None:
            runs = int(self._state.ledger.remaining())
        else:
            ledger = self._state.ledger
            limit = (self.epsilon,) if isinstance(ledger, VilleOdometer) else ()
            runs = int(ledger.remaining(self.mechanism, *limit, relation=self.sampler.relation))
        # The rest of a run of the mechanism that has begun is paid for already.
        paid = -self.steps % self.sampler.steps_per_run
        left = max(self.horizon - self.steps - self._progress.lost_steps, 0)
        return min(runs * self.sampler.steps_per_run + paid, left)

    @property
    def spent_epsilon(self) -> float:
        """The ledger's epsilon of the updates so far, an upper bound.

        An odometer's reading holds if the run stops here. A planned ledger gives the epsilon of the whole plan,
        wherever the run stops.
        """
        if self.plan is not None and self.plan.queries:  # they may have been released before the first step
            return float(self.plan.certified.upper)
        return float(self._state.ledger.epsilon())

    @property
    def repeats(self) -> bool:
        """Whether updates that an interruption lost are made again from the same keys: with a seed, as it may be.

        With correlated noise always: other keys would make noise that does not continue the stream already released.
        """
        return self.seed != ENTROPY or self.noise is not None

    @property
    def stopping_was_planned(self) -> bool:
        """Whether settings were fixed in advance and the run went to the end that its first :meth:`fit` set for it.

        Then its length depends on the settings and the budget only, and the non-adaptive accountant applies. A run that
        was interrupted, or continued to another end, may have been so because somebody looked at the model. A run that
        was taken up again and went to the same end was not, unless updates were lost on the way. A plan that pays for
        queries beside the steps has to be made whole: their answers may have ended it.
        """
        asked_before = self.plan is not None and self.plan.queries and self._progress.goal != self.plan.steps
        return not self.policy.adaptive and self._progress.kept and self._progress.ended and not asked_before
