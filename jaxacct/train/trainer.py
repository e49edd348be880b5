"""The DP-SGD trainer: it samples, clips, sums, adds noise and updates while a ledger grants the steps.

:class:`DPTrainer` checks and copies what it is given (:mod:`jaxacct.train.settings`), keeps the state, and runs the
step (:class:`.StepProgram`, where a diagram shows one). The road of a step is :meth:`DPTrainer.fit`, which evaluates
and records; ``_advance``, which has a keeper write the spend down before and the state after; ``_compute``, which calls
the compiled program; and :meth:`.StepProgram.run`. :func:`fingerprint` has the settings by which a run is known again.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, PyTree

from jaxacct import validation
from jaxacct.display import rounded_up
from jaxacct.filters import FILTER_ORDERS, MenuFilter, RenyiFilter
from jaxacct.menus import Menu
from jaxacct.numerics.chacha20 import as_stored, is_chacha20
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.odometers import VilleOdometer
from jaxacct.policies import Constant, Policy
from jaxacct.processes import check_not_forked
from jaxacct.strategies import NoiseState, Strategy
from jaxacct.train import settings
from jaxacct.train.clipping import ClippingRule, Routes
from jaxacct.train.config import Items, LedgerName, TrainerRun, run_of
from jaxacct.train.gradients import Door, sample_key, strategy_of, strongly_typed
from jaxacct.train.interrupts import Pieces, RunInterrupts
from jaxacct.train.keys import ENTROPY, DerivedKey, describe_seed, run_key
from jaxacct.train.metrics import Metrics, check_parameters, root_mean_square
from jaxacct.train.models import ExampleLoss, Trainable, check_module, merge_params, split_params
from jaxacct.train.noise import start
from jaxacct.train.ownership import (
    Sealed,
    arrays_of,
    as_words,
    copy_tree,
    describe,
    digest,
    fixed_setting,
    owned_settings,
    place,
)
from jaxacct.train.placement import Rules, layout_of, name_of
from jaxacct.train.planned import SideQuery, share_of_pass
from jaxacct.train.progress import Evaluation, Progress, ShortRunWarning, score_of, show_progress
from jaxacct.train.sampling import Sampler, present_of
from jaxacct.train.sampling.correlated import Correlated, describe_noise, drawn_by
from jaxacct.train.saving import agreed_key, check_same, check_settings, save_model
from jaxacct.train.settings import NoiseArithmetic
from jaxacct.train.sources import ArraySource, source_of, stream
from jaxacct.train.state import Keeper, TrainState
from jaxacct.train.step import StepProgram

P = ParamSpec("P")
"""Parameters of a compiled function."""

T = TypeVar("T")
"""Type of what it returns."""


class DPTrainer(Sealed):
    """A trainer of one Flax module on one data set by DP-SGD, within a budget.

    Two of ``epsilon``, ``noise_multiplier`` and a length (``epochs`` or ``steps``) are given, and :attr:`plan` says
    what the third is: the run spends all of its budget. A policy that chooses on the way has epsilon, and no length.

    What is trained:

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

    Budget, of this trainer; another one on the same data costs another budget:

    Args:
        epsilon: of the whole run; above 0. Raise it where more steps or less noise are worth a weaker guarantee; None
            where a planned run's noise and length are given.
        delta: probability that the guarantee leaves open, in (0, 1); needed. Well below one over the number of
            examples; what batches cut at capacity cost is taken off it.
        epochs: length of a planned run in expected passes over the data. Longer runs take more noise a step; mostly
            that pays until training has converged.
        steps: the same as a number of steps.
        noise_multiplier: standard deviation of the noise over the sensitivity, for all steps; None where epsilon and a
            length say what it is. Give it to reproduce a run: raise it for more steps, lower it for better ones.
        policy: chooses noise and sampling rate (:mod:`jaxacct.policies`) in place of ``noise_multiplier`` and the size
            of batches: for schedules, and for noise that follows what was released.
        ledger: "planned", for settings that do not change, spends all of the budget on a length that is known
            before, and may stop earlier at any time; "menu", a :class:`~jaxacct.filters.MenuFilter`, is for settings
            that are chosen on the way among finitely many, at a few per cent more than a plan; "filter", a Rényi
            filter, for whatever is chosen; "odometer" ends the run before it reads more than ``epsilon``, where a run
            that stops early is to be charged less than its budget: a :class:`~jaxacct.odometers.MenuOdometer` where a
            ``menu`` is given, else a :class:`~jaxacct.odometers.VilleOdometer`. None: "planned" for constant settings,
            "menu" for policies that know their choices or where ``menu`` is given, "filter" for others.
        menu: what may be spent, as :class:`~jaxacct.filters.MenuFilter` takes it: mechanisms of single runs, those of
            side queries among them. Empty: the policy's choices and its query.
        queries: of a planned run: all else that is released of the data, by whomever (:class:`.SideQuery`); the plan
            pays for it with the steps.
        run: the budget and the batches as one configuration, a :class:`.PlannedRun`, :class:`.FilteredRun` or
            :class:`.MenuRun`, in place of the keywords of both, ``noise`` among them.

    Batches, whose size is given in exactly one way, or by a policy:

    Args:
        expected_batch_size: of Poisson sampled batches. Raise it, with the learning rate, as far as time allows: noise
            is added once a batch.
        sampling_rate: the same over the number of examples, in (0, 1].
        sampler: one of :mod:`jaxacct.train.sampling`: for batches that are truncated, of a fixed size, drawn by turns
            or allocated by epochs; other neighbours may come with it.
        most_examples: a public number, chosen without looking, that the data has at most. Rate, size of a batch (what
            sums are divided by) and noise then follow from it, and how many examples there are is protected like
            anything else: a missing example is one whose gradient is zero. The noise is that of ``most_examples``:
            choose it a little too large. None: the number of examples is taken as public.

    Gradients:

    Args:
        clip_norm: bound on the L2 norm of each example's gradient: lower it where noise drowns the gradients, raise it
            where most of them are cut. Or a rule of :mod:`jaxacct.train.clipping`, where one norm for all is not
            wanted.
        noise: correlates the noise of steps (:mod:`jaxacct.strategies`); None: it is independent. Mostly better in few
            epochs and at large budgets (``docs/correlated-noise.md``). Batches are then drawn from as many groups as it
            has bands, by turns, or by a ``sampler`` that bounds how examples take part.
        augment: ``augment(key, example)`` returns another view of an example, a tuple as ``loss`` takes it, as random
            as its typed key makes it. It must look at that example alone. None: as it is; views then differ by what
            the loss draws.
        views: number of views of an example whose gradients are averaged before they are clipped (De et al. 2022). An
            example still moves the sum by at most the clipping norm. Raise it, to 8 or 16, as far as time allows.
        trainable: which parameters train, as :func:`~jaxacct.train.models.split_params` takes it; None: all,
            or all adapters (:func:`jaxacct_recipes.lora`). Fewer, for fine-tuning: noise grows with their number.
        correct: for policies that ask how many training examples are right: ``correct(model, *example)``, 0 or 1;
            let it ``eval()`` a model with dropout. Needed by those alone.
        metrics: private means over each batch, such as that of the loss, for a share of each step's noise.
        noise_arithmetic: "integer" draws noise whose law is known exactly, by ChaCha20, on a grid
            (:mod:`jaxacct.train.integer_noise`), and so do batches; delta pays for the distance from the account.
            "float64" draws normal numbers, whose law nobody has proved and whose last bits tell what they were added
            to. None: integers without a seed, where they can be (not for correlated noise that sampling amplifies).
        seed: None for the operating system's entropy. A whole number or typed key, for experiments and tests, makes the
            run repeatable bit for bit and its noise known to whoever knows the seed.

    Time and memory, on which no guarantee depends:

    Args:
        microbatch_size: examples whose gradients are held in memory at a time, on each device; the default is for a
            CPU's caches. Lower it where memory runs out, raise it for an accelerator. Blocks of padding alone are left
            out, so that a step's time shows how many examples were drawn, in blocks; the guarantee does not speak of
            time. Metrics are measured for as many at a time. None: the whole batch, padding included.
        ghost: whether to leave out the gradients of single examples where norms follow without them: the same sums up
            to rounding, in less time and memory. False where a layer's rule is doubted, to compare.
        devices: over which a batch's rows are dealt. None: one. Noise is added once, to the sum over all of them.
        mesh: the same, and parameters, what the optimizer keeps of them, their sums and their noise lie in shards on
            it (:mod:`jaxacct.train.placement`): for models that one device has no room for. Rows are dealt over
            ``row_axes``; along the mesh's other axes the compiler divides the layers' products. The noise is the same
            to the bit on any mesh.
        rules: how parameters lie on it: ``PartitionSpec`` by regular expressions that are searched in their paths, the
            first that fits. A parameter that none fits lies as the model's own metadata says, else as evenly as it can.
        row_axes: names of the mesh's axes. None: the first.

    Formal guarantee: the parameters after any number of :meth:`fit` calls, with all those in between, are (epsilon,
    delta)-DP for the sampler's relation (adding or removing one example, or replacing one), however the policy chose
    its settings. A planned run has it from the certified accountant, wherever it stops (:mod:`jaxacct.train.planned`),
    others from their ledger, both at a delta reduced by what cut batches cost (:mod:`jaxacct.train.sampling`).
    Noise in integers is that of the account; of noise in float64 that is assumed.
    Where settings were fixed in advance and nothing released decided when to stop (:attr:`stopping_was_planned`), the
    certified epsilon of the steps made holds as well, and is smaller
    (:func:`~jaxacct.train.report.certified_epsilon`). The size of the data set is taken as public, but with
    ``most_examples``. ``evaluate`` adds no noise: give it public data, and never ``data``.

    The compiled step takes the spend from the ledger before it makes the update that the spend pays for; a keeper
    (:class:`~jaxacct.train.checkpoints.Checkpoints`) has written it to disk before.

    Raises ValueError or TypeError where an argument is out of range, the budget pays for no step at all, or too few or
    too many of epsilon, noise and length are given.

    Source of ``views``: De et al. (2022), "Unlocking high-accuracy differentially private image classification through
    scale", section 3.2.

    >>> from jaxacct.train import DPTrainer
    >>> x, y = np.ones((100, 2), np.float32), np.ones(100, np.float32)
    >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> trainer = DPTrainer(model, lambda m, x, y: jnp.sum((m(x) - y) ** 2), optax.sgd(0.1), (x, y), epsilon=2.0,
    ...                     delta=1e-3, epochs=2, expected_batch_size=20, clip_norm=1.0)
    >>> [entry.step for entry in trainer.fit()], trainer.plan.steps, trainer.plan.certified.upper > 1.999
    ([5, 10], 10, True)
    """

    @settings.names_what_is_meant
    @takes_python_values
    def __init__(
        self,
        model: nnx.Module,
        loss: Callable[..., Array],
        optimizer: optax.GradientTransformation,
        data: Any,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        policy: Policy | None = None,
        ledger: LedgerName | None = None,
        menu: Items = (),
        queries: tuple[SideQuery, ...] = (),
        expected_batch_size: float | None = None,
        sampling_rate: float | None = None,
        sampler: Sampler | None = None,
        most_examples: int | None = None,
        clip_norm: float | ClippingRule | None = None,
        noise: Strategy | None = None,
        augment: Callable[[jax.Array, PyTree], PyTree] | None = None,
        views: int = 1,
        trainable: Trainable = None,
        correct: Callable[..., Array] | None = None,
        metrics: Metrics | None = None,
        seed: int | jax.Array | DerivedKey | None = None,
        microbatch_size: int | None = 32,
        ghost: bool = True,
        devices: Sequence[jax.Device] | None = None,
        mesh: jax.sharding.Mesh | None = None,
        rules: Rules | None = None,
        row_axes: str | Sequence[str] | None = None,
        run: TrainerRun | None = None,
        noise_arithmetic: NoiseArithmetic | None = None,
    ) -> None:
        # First what was given: checked, and copied where the caller could change it later.
        check_not_forked()
        check_module(model)
        rule = owned_settings(settings.rule_of(clip_norm), "clip_norm")
        settings.check_parts(optimizer, loss, correct, metrics)
        settings.check_views(augment, views)
        settings.check_placement(microbatch_size, ghost, devices, mesh)
        layout = layout_of(devices, mesh, rules, row_axes)
        self.source = source_of(data)
        arrays: tuple[Any, ...] = self.source.data if isinstance(self.source, ArraySource) else ()
        config = run_of(
            run, epsilon=epsilon, delta=delta, epochs=epochs, steps=steps, noise_multiplier=noise_multiplier,
            policy=policy, ledger=ledger, menu=menu, queries=queries, expected_batch_size=expected_batch_size,
            sampling_rate=sampling_rate, sampler=sampler, most_examples=most_examples, noise=noise,
        )  # fmt: skip
        key = settings.key_for(noise_arithmetic, copy_tree(run_key(seed)), config.against_integers)
        self._graph, params, self._constants = split_params(model, trainable)
        settings.check_params(params)
        budget = config.resolve(len(self.source), settings.samples_of_step(key, params, metrics))
        self.budget, self.epsilon, self.delta, self.ledger_kind = budget, budget.epsilon, budget.delta, budget.kind
        self.policy, self.plan = budget.policy, budget.plan
        self.sampler: Any = budget.sampler
        self.noise = strategy_of(self.sampler)
        self._one_pass = max(1, round(1 / share_of_pass(self.sampler)))  # updates
        self.clipping, self.seed = rule, describe_seed(seed)
        self.microbatch_size, self.ghost, self.augment, self.views = microbatch_size, ghost, augment, views
        if self.policy.query is not None and (correct is None or not arrays):
            raise ValueError("correct = None or data read by index: this policy counts correct examples in arrays.")
        if len(self.source) != present_of(self.sampler):
            raise ValueError(f"sampler is for {present_of(self.sampler)} examples, and data has {len(self.source)}.")
        # Then the parameters and the program.
        of_one = ExampleLoss.of(loss, self._graph, params, self._constants, self.source.example, augment, views)
        rows, shardings = None, None
        if layout is not None:
            layout.check_rules(params, self._constants)
            rows, shardings = layout.rows, layout.of_variables(params)
        policy_state = copy_tree(self.policy.start(budget.ledger))  # type: ignore[arg-type]
        self.program = StepProgram(
            loss=of_one, correct=correct, optimizer=optimizer,
            door=Door(self.sampler, microbatch_size, ghost, self.epsilon, rows, shardings),
            policy=self.policy, setting=fixed_setting(self.policy, policy_state),
            gradient_noise=settings.gradient_noise(self.policy, rule, metrics, self.noise), metrics=metrics,
            layout=layout,
        )  # fmt: skip
        if self.program.rate_varies and not arrays:
            raise ValueError(
                "policy changes the sampling rate, and data is read by index, for batches drawn at one rate: give the "
                "data in arrays."
            )
        # All processes have to begin with the same bits.
        params = jax.tree.map(strongly_typed, params)
        check_same((params, self._constants, arrays), "what a run begins with")
        if layout is not None:  # before the optimizer allocates as much again for them
            params = jax.tree.map(place, params, shardings)
        opt_state = jax.tree.map(strongly_typed, copy_tree(optimizer.init(copy_tree(params))))
        settings.check_optimizer(optimizer, params, opt_state)
        self._state = TrainState(
            params=params,
            opt_state=opt_state,
            ledger=budget.ledger,
            rule=jax.tree.map(strongly_typed, rule),
            policy=policy_state,
            step=jnp.zeros((), jnp.int32),
            key=as_stored(agreed_key(key)),
            metrics={} if metrics is None else metrics.start(),
            noise=self._first_noise(params),
        )
        self.program.check_counts(self._state, self._constants, self.source.example)
        if self.program.gradient_noise is not None:
            self.program.door.check_noise(self._state, params, self.program.gradient_noise)
        self._places = None
        if layout is not None:
            self._places = layout.of_state(self._state)
            self._state = jax.tree.map(place, self._state, self._places)
            self._constants = jax.tree.map(place, self._constants, layout.of_variables(self._constants))
            arrays = jax.tree.map(lambda part: place(part, layout.everywhere), arrays)
        self.data = arrays
        self._progress, self._fitting, self._pieces = Progress(), False, Pieces()
        self._programs: dict[str, Any] = {}
        if jax.process_count() > 1:
            self._check_processes(seed)
        self._renew_curve()
        if self.remaining_steps == 0:
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier:g} at an expected batch size of "
                f"{self.sampler.expected_batch_size:.3g} pays for no step within (epsilon = {self.epsilon}, delta = "
                f"{self.delta}): raise noise_multiplier or epsilon, or sample smaller batches."
            )

    def _check_processes(self, seed: int | jax.Array | DerivedKey | None) -> None:
        """Raises RuntimeError where the processes of the run were given different settings."""
        own = {
            "the seed": seed if isinstance(seed, int) else type(seed).__name__,
            "placement": self.program.layout,
            "microbatch_size": self.microbatch_size,
            "ghost": self.ghost,
            "examples of its data": len(self.source),
            "noise_multiplier": self.noise_multiplier,
        }
        check_settings(fingerprint(self) | own)
        check_same((self._state.rule, self._state.policy), "clipping or policy")

    # Training: from a call of fit to the compiled step, in the order in which they call each other.

    def fit(
        self,
        steps: int | None = None,
        *,
        every: int | None = None,
        evaluate: Callable[[nnx.Module], float] | None = None,
        on_evaluation: Callable[[Evaluation], None] | None = None,
        keeper: Keeper | None = None,
        progress: bool | Callable[[int, str], None] | None = None,
    ) -> list[Evaluation]:
        """Trains from the present state for ``steps`` updates, or until the budget refuses the next one.

        Args:
            steps: most updates of this call, for runs that are to end before their budget; None: what that pays for.
            every: updates between evaluations; None: one expected pass over the data. Compiled loops end there: raise
                it where steps are short.
            evaluate: gets a copy of the module, returns a number to record. Called outside the compiled step.
            on_evaluation: called with each record, for progress bars.
            keeper: writes the run down, ledger first (:class:`~jaxacct.train.checkpoints.Checkpoints`).
            progress: whether to say on standard error what is compiled, which may take a minute, and how far the run
                is; None: where that is a terminal. Or a function to call instead, with the steps made and words.

        Returns:
            The records of this call, one at each multiple of ``every`` updates and one at its end; none if nothing was
            granted.

        A later call goes on with keys that no earlier one used. Ctrl-C ends it at the next step, if it is the main
        thread that fits: the state is that of the steps made and is written down, then KeyboardInterrupt is raised. A
        second one raises at once; nobody has then seen what was being computed.

        Warns (:class:`ShortRunWarning`) where fewer than ``steps`` steps are paid for.

        Raises RuntimeError where it is called while it runs, or in a process that was forked from one where JAX ran;
        TypeError where an argument is of a wrong kind, before anything is paid for, or ``evaluate`` returns no number;
        FloatingPointError, with nothing more spent, where nothing is learned any longer (:mod:`jaxacct.train.metrics`).
        """
        validation.check_steps(0 if steps is None else steps)
        steps = None if steps is None else int(steps)
        every = self._one_pass if every is None else every
        every = validation.check_count(every, "every", "the updates between evaluations")
        settings.check_callbacks(evaluate, on_evaluation, keeper, progress)
        check_not_forked()
        if self._fitting:
            raise RuntimeError("fit was called while it runs, by a callback or another thread: let it return first.")
        self._fitting = True
        goal = self.steps + (self._steps_left if steps is None else min(steps, self._steps_left))
        self._interrupts = RunInterrupts()
        try:
            with self._interrupts, show_progress(self.steps, goal, progress) as self._show_progress:
                return self._fit(steps, goal, every, evaluate, on_evaluation, keeper)
        finally:
            self._fitting = False

    def _fit(
        self,
        steps: int | None,
        goal: int,
        every: int,
        evaluate: Callable[[nnx.Module], float] | None,
        on_evaluation: Callable[[Evaluation], None] | None,
        keeper: Keeper | None,
    ) -> list[Evaluation]:
        """Returns the records of a call of :meth:`fit`, whose arguments were checked."""
        first = self.steps
        kept = self._progress.kept and self._progress.goal in (None, goal)
        self._progress = self._progress._replace(goal=goal, kept=kept, ended=False)
        if first < goal:
            if first == 0:
                self._show_progress(first, "compiling a look at made-up examples")
                self.program.check_gradients(self._state, self._constants, self.source.example)
            self._show_progress(first, "compiling the update")
        history: list[Evaluation] = []
        for record in self._records(goal, every, evaluate, keeper):
            history.append(record)
            if on_evaluation is not None:
                on_evaluation(record)
        if steps is not None and self.steps < first + steps and not self._has_stopped:
            self._warn(self.steps - first, steps)
        self._progress = self._progress._replace(ended=True)
        if keeper is not None:
            keeper.end(self)
        return history

    def _records(
        self, goal: int, every: int, evaluate: Callable[[nnx.Module], float] | None, keeper: Keeper | None
    ) -> Iterator[Evaluation]:
        """Makes the updates until the goal, and yields a record at each multiple of ``every`` and at the end.

        Raises KeyboardInterrupt where Ctrl-C ended it, once the state is written down.
        """
        granted, size, sums = True, root_mean_square(self._state.params), self._state.metrics
        # Each pass makes the updates up to the next multiple of ``every`` and looks at them. It ends when all asked for
        # are made, the ledger refuses one, the policy stops, or Ctrl-C is pressed: the step grows at each pass or
        # ``granted`` turns false. ``size`` and ``sums`` are the values from which growth and means are measured.
        while granted and self.steps < goal and not (self._interrupts.heard or self._has_stopped):
            before = self.steps
            granted = self._advance(min(every - before % every, goal - before), keeper)
            if self.steps > before and not (self._interrupts.heard and self.steps < goal):
                yield self._look(evaluate, sums, self.steps - before)
                sums = self._state.metrics
            # After the record, so that what has been paid for is shown before the run ends with an error.
            check_parameters(self._state.params, size, self.steps)
        if self._interrupts.heard and granted and self.steps < goal:
            if keeper is not None:
                keeper.end(self)
            raise KeyboardInterrupt

    def _look(self, evaluate: Callable[[nnx.Module], float] | None, sums: dict[str, Any], done: int) -> Evaluation:
        """Returns the record of the present state, ``done`` updates after the metrics had summed up to ``sums``."""
        accuracy = None
        if evaluate is not None:
            note = " The steps so far are made and paid for; fit called again goes on from there."
            accuracy = score_of(evaluate(self.model), "evaluate", note)
        means = {name: float(total - sums[name]) / done for name, total in self._state.metrics.items()}
        record = Evaluation(self.steps, accuracy, self.spent_epsilon, means)
        record.plan, record.paid = self.plan, self.steps + self._progress.lost_steps
        return record

    def _warn(self, made: int, wanted: int) -> None:
        """Warns that fewer steps were made than asked for, and says why and what to do."""
        if self.plan is not None:
            lost = self._progress.lost_steps
            why = f"its plan is of {self.plan.steps}" + (f", of which an interruption lost {lost}" if lost else "")
            remedy = "a trainer made with more steps= or epochs= gives each of them more noise"
        else:
            why = f"the {self.ledger_kind} pays for no more"
            remedy = "raise noise_multiplier or epsilon; for constant settings ledger='planned' pays for more"
        warnings.warn(
            f"fit made {made} of the {wanted} steps it was asked for, {self.steps} in all: {why}. To go on: {remedy}.",
            ShortRunWarning, stacklevel=4,
        )  # fmt: skip

    @property
    def _has_stopped(self) -> bool:
        """Whether the policy has ended the run."""
        return bool(self.policy.stopped(self._state.policy))

    def _advance(self, steps: int, keeper: Keeper | None) -> bool:
        """Runs so many steps, adapting in between; returns whether all were granted, or the policy stopped."""
        # A pass makes one chunk: at most up to the policy's next adaptation and to the keeper's next checkpoint. The
        # order is what the guarantee needs: the keeper writes the spend of the chunk (begin), the chunk is computed,
        # and the keeper writes its result (finish) before ``fit`` shows it to anybody. ``steps`` falls by the updates
        # made, and a refusal, after which ``done`` may be 0, ends the loop.
        while steps > 0 and not self._has_stopped:
            period = self.policy.period
            chunk = min(steps, period - self.steps % period) if period else steps
            if keeper is not None:
                chunk = keeper.begin(self, chunk)
            before = self.steps
            state, granted = self._compute(self._state, chunk)
            check_same(state.ledger, "the ledger")
            done = int(state.step) - before
            self._show_progress(int(state.step), "")
            adapts = bool(period) and done > 0 and int(state.step) % period == 0
            if adapts:
                adapt = self._compile(self.program.adapt, self._places)
                state = adapt(state, self._constants, self.data)
            self._state = state
            if adapts:
                self._renew_curve()
            if keeper is not None:
                keeper.finish(self)
            if not granted:
                return False
            if self._interrupts.heard:
                return True
            steps -= done
        return True

    def _compile(self, function: Callable[P, T], out_shardings: Any = None) -> Callable[P, T]:
        """Returns a method of the program as one compiled program, which is made at its first call and kept."""
        name = function.__name__
        if name not in self._programs:
            self._programs[name] = jax.jit(function, out_shardings=out_shardings)
        return self._programs[name]

    def _compute(self, state: TrainState, steps: int) -> tuple[TrainState, bool]:
        """Returns the state after ``steps`` updates, or fewer at a refusal or Ctrl-C, and whether none was refused."""
        curve = self._present_curve()
        if isinstance(self.source, ArraySource):
            run = self._compile(self.program.run, (self._places, None))
            return self._pieces.run(
                lambda state, count: run(state, curve, self._constants, self.data, count),
                state, steps, self._interrupts, self._show_progress,
            )  # fmt: skip
        # Data read by index: batches are drawn and fetched ahead of the steps, by the key that a step draws with.
        key, step_on = sample_key(state), self._compile(self.program.step_on, (None, self._places))
        for batch in stream(self.source, self.sampler, key, steps, start=int(state.step), layout=self.program.layout):
            granted, state = step_on(state, curve, self._constants, batch.examples, batch.mask)
            if not bool(granted):
                return state, False
            if self._interrupts.heard:
                break
        return state, True

    def step(self, state: TrainState) -> tuple[Bool[Array, ""], TrainState]:
        """Returns whether one update was granted, and the state after it: the old one, bit for bit, if refused.

        A pure function of the state: works under ``jit`` and in ``lax.scan``. Does not adapt a policy, needs data in
        memory, and does not change :attr:`state`: what it returns is paid for in the ledger of the state that it
        returns, and not in this trainer's. Of the ledger that ``state`` brings only what was spent counts: the budget
        is this trainer's.

        Raises ValueError where ``state`` is of a trainer with another model, optimizer, rule, policy or ledger.
        """
        if not isinstance(state, TrainState):
            raise TypeError(f"state is a {type(state).__name__}: give a state of a DPTrainer.")
        ledger = self._state.ledger.resume(state.ledger)
        state = dataclasses.replace(state, ledger=ledger)
        structures: list[Any] = [jax.tree.structure(state), jax.tree.structure(self._state)]
        if structures[0] != structures[1] or is_chacha20(state.key) != is_chacha20(self._state.key):
            raise ValueError(
                "state is of a trainer with another model, optimizer, rule or policy, or noise of another arithmetic: "
                "give one that this trainer made."
            )
        return self.program.step(state, self._present_curve(), self._constants, self.data)

    def foreseen(self, steps: int) -> tuple[Any, int]:
        """Returns the ledger after up to ``steps`` more updates and an adaptation that follows them, and how many.

        Spends nothing and looks at no data: what the updates will have cost is known before they are made.
        """
        most: Any = steps
        ledger, step = self._compile(self.program.foresee)(self._state, self._present_curve(), most)
        return ledger, int(step) - self.steps

    def _restore(self, state: TrainState, progress: Progress, constants: Any = None) -> None:
        """Goes on from a state that this trainer's program made; ``constants`` replace what does not train.

        Only for callers that take a run up and answer for what it spent
        (:class:`~jaxacct.train.checkpoints.Checkpoints`).
        """
        self._state, self._progress = copy_tree(state), progress
        self._constants = self._constants if constants is None else copy_tree(constants)
        self._renew_curve()

    def _renew_curve(self) -> None:
        """Computes the cost of one run of the mechanism, once where the setting stays for several steps."""
        self._curve = None if self.policy.every_step else self.program.curve(self._state)

    def _first_noise(self, params: PyTree) -> NoiseState | None:
        """Returns the memory of a stream of correlated noise before its first step; None: noise is independent."""
        return None if self.noise is None else start(self.noise, params)

    def _present_curve(self) -> Array:
        """Returns the cost of one run of the mechanism, or zeros of its shape where each step computes its own."""
        if self._curve is not None:
            return self._curve
        # The program computes the curve itself at every step: only the shape of this argument counts.
        return jnp.zeros(jax.eval_shape(self.program.curve, self._state).shape)

    # What the run is, has spent and may spend.

    @property
    def steps(self) -> int:
        """Number of noisy updates so far."""
        return int(self._state.step)

    @property
    def menu(self) -> Menu | None:
        """The menu of what the run may spend, with prices; None without a menu filter. Prints as a table."""
        ledger = self._state.ledger
        return ledger.menu if isinstance(ledger, MenuFilter) else None

    @property
    def horizon(self) -> int:
        """Largest number of steps of the run: cut batches are paid for over that many."""
        return self.budget.horizon

    @property
    def delta_for_accounting(self) -> float:
        """The part of delta that cut batches and the law of drawn noise leave, over the longest run allowed."""
        return self.budget.delta_for_accounting

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of the next step."""
        if isinstance(self.policy, Constant):
            return float(self.policy.noise_multiplier)
        return float(self.program.setting(self._state.policy, self._state.step).noise_multiplier)

    @property
    def mechanism(self) -> Any:
        """The mechanism that the next step is accounted as, or the epoch's where the sampler covers an epoch."""
        return self.program.mechanism(self._state)

    @property
    def clip_norm(self) -> float:
        """The L2 sensitivity of the next step's sum."""
        return float(np.asarray(self._state.rule.sensitivity))

    @property
    def model(self) -> nnx.Module:
        """The module as trained so far: a copy, to do with as one likes."""
        return merge_params(self._graph, copy_tree(self._state.params), copy_tree(self._constants))

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes :attr:`model`, as :func:`~jaxacct.train.saving.save_model` does; ``load_model`` reads it again."""
        save_model(self.model, folder, overwrite=overwrite)

    @property
    def state(self) -> TrainState:
        """State that changes during training: a copy. The trainer's own cannot be set."""
        return copy_tree(self._state)

    @property
    def constants(self) -> nnx.State:
        """The module's state that does not train: a copy."""
        return copy_tree(self._constants)

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
        return min(runs * self.sampler.steps_per_run + paid, self._steps_left)

    @property
    def _steps_left(self) -> int:
        """Number of further updates until the horizon; lost ones count as made."""
        return max(self.horizon - self.steps - self._progress.lost_steps, 0)

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
        queries as well has to be made to its end: their answers may have ended it.
        """
        asked_before = self.plan is not None and self.plan.queries and self._progress.goal != self.plan.steps
        return not self.policy.adaptive and self._progress.kept and self._progress.ended and not asked_before

    def __repr__(self) -> str:
        spent = f"step {self.steps}, epsilon {rounded_up(self.spent_epsilon, '.4g')} of {rounded_up(self.epsilon)}"
        spent += f" spent at delta {rounded_up(self.delta)}"
        return f"<DPTrainer: {spent}; {self.policy}, {self.sampler}, {self.clipping}>"


# ----------------------------------------------------------------------------------------------------
# Fingerprint of a run: the public settings by which it is known again.
# ----------------------------------------------------------------------------------------------------


def fingerprint(trainer: DPTrainer) -> dict[str, str]:
    """Returns what must be the same for a run to be continued by ``trainer``, by name.

    It has the public size of the data and the shape of an example, nothing of the loss, the names of functions in a
    policy, a digest of the frozen parameters, which are public, and the shapes of the optimizer's state: the learning
    rate may change. A digest of the examples would be a statement on private data.

    >>> import numpy as np, optax
    >>> from flax import nnx
    >>> from jaxacct.train import DPTrainer
    >>> trainer = DPTrainer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), lambda m, x: m(x)[0], optax.sgd(0.1),
    ...                     (np.ones((50, 2), np.float32),), epsilon=2.0, delta=1e-3, noise_multiplier=3.0,
    ...                     expected_batch_size=10, clip_norm=1.0, seed=0)
    >>> fingerprint(trainer)["clipping"], fingerprint(trainer)["parameters kernel"]
    ('Flat(clip_norm=1.0)', 'float32 (2, 1)')
    """
    entries = {
        "examples": trainer.sampler.num_examples,  # the public number
        "an example": ", ".join(describe(part) for part in jax.tree.leaves(trainer.source.example)),
        "epsilon": trainer.epsilon,
        "delta": trainer.delta,
        "ledger": trainer.ledger_kind,
        "policy": trainer.policy,
        "sampler": drawn_by(trainer.sampler),
        "clipping": trainer.clipping,
        "metrics": trainer.program.metrics,
        "seed": trainer.seed,
    }
    if isinstance(trainer.seed, str) and trainer.seed != ENTROPY:
        entries["seed"] = f"{trainer.seed}, {digest(arrays_of(trainer.state.key))[:16]}"
    if is_chacha20(trainer.state.key):
        entries["noise arithmetic"] = "integer"
    if isinstance(trainer.sampler, Correlated):
        entries["noise"] = describe_noise(trainer.sampler)
    if trainer.menu is not None:
        entries["menu"] = trainer.menu.fingerprint()
    ledger = trainer.state.ledger
    if isinstance(ledger, (RenyiFilter, VilleOdometer)) and ledger.orders != FILTER_ORDERS:
        entries["orders"] = ledger.orders  # what is spent at some orders would be read at others
    if trainer.plan is not None:
        entries["planned steps"] = trainer.plan.steps
        entries["beside the steps"] = trainer.plan.queries
    if frozen := arrays_of(nnx.filter_state(trainer.constants, nnx.Param)):
        entries["frozen parameters"] = digest(frozen)[:16]
    parts = {"parameters": trainer.state.params, "frozen": trainer.constants, "optimizer": trainer.state.opt_state}
    for name, tree in parts.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            entries[f"{name} {name_of(path)}"] = describe(leaf)
    return {name: as_words(value) for name, value in entries.items()}
