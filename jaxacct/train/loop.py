"""The loop of a training run: it computes updates while the ledger grants them, and evaluates and records in between.

:meth:`Loop.fit` is made of calls of compiled programs (:mod:`jaxacct.train.step`). Around each of them a keeper writes
the spend down before and the state after, so that an interrupted run can be taken up.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool

from jaxacct import validation
from jaxacct.processes import Interrupts, check_not_forked
from jaxacct.processes import progress as shown
from jaxacct.train.metrics import check_parameters, root_mean_square
from jaxacct.train.owned import Sealed, Sole, owned
from jaxacct.train.planned import Plan
from jaxacct.train.saving import asked_anywhere, check_same
from jaxacct.train.sources import ArraySource, IndexedSource, stream
from jaxacct.train.state import Evaluation, Keeper, OwnRows, Progress, TrainState
from jaxacct.train.step import StepProgram

PATIENCE = 0.5
"""Seconds that compiled steps may take in one piece: Ctrl-C is heard within about as many, or within one step. Speed
and response only."""


class ShortRunWarning(UserWarning):
    """A warning that a call of ``fit`` made fewer steps than it was asked for: the budget pays for no more."""


class Loop(Sole, Sealed):
    """A trainer once it is made: a program, the state that it changes, and how far it is to go.

    :class:`~jaxacct.train.trainer.DPTrainer` fills in what is declared here and says how much the ledger pays for.
    """

    source: ArraySource | IndexedSource
    sampler: Any
    policy: Any
    program: StepProgram
    data: tuple[Array, ...]
    _state: TrainState
    _constants: nnx.State
    _curve: Array | None
    _progress: Progress
    _fitting: bool
    _interrupts: Interrupts
    _say: Callable[..., None]
    _at_once: int
    ledger_kind: str | None
    plan: Plan | None
    _run: Callable[..., Any]
    _step_on: Callable[..., Any]
    _adapt: Callable[..., Any]
    _foresee: Callable[..., Any]

    @property
    def horizon(self) -> int:
        """Largest number of steps of the run."""
        raise NotImplementedError

    @property
    def spent_epsilon(self) -> float:
        """The ledger's epsilon of the updates so far."""
        raise NotImplementedError

    @property
    def model(self) -> nnx.Module:
        """The module as trained so far."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Number of noisy updates so far."""
        return int(self._state.step)

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
                is; None: where that is a terminal. Or a function that is told instead: of the steps made, and words.

        Returns:
            The records of this call, one at each multiple of ``every`` updates and one at its end; none if nothing was
            granted.

        A later call goes on with keys that no earlier one used. Ctrl-C ends it at the next step, if it is the main
        thread that fits: the state is that of the steps made and is written down, then KeyboardInterrupt is raised. A
        second one raises at once; nobody has then seen what was being computed.

        Warns (:class:`ShortRunWarning`) where fewer than ``steps`` steps are paid for.

        Raises RuntimeError where it is called while it runs, or in a process that was forked from one where JAX ran;
        TypeError where ``evaluate`` returns no number;
        FloatingPointError, with nothing more spent, where nothing is learned any longer (:mod:`jaxacct.train.metrics`).
        """
        validation.check_steps(0 if steps is None else steps)
        every = self._pass if every is None else every
        validation.check_count(every, "every", "the updates between evaluations")
        check_not_forked()
        if self._fitting:
            raise RuntimeError("fit was called while it runs, by a callback or another thread: let it return first.")
        self._fitting = True
        try:
            with Interrupts(deferred=True) as self._interrupts, self._shown(steps, progress) as self._say:
                return self._fit(steps, every, evaluate, on_evaluation, keeper)
        finally:
            self._fitting = False

    def _shown(self, steps: int | None, wanted: Any) -> Any:
        """Returns a context whose value is a function that is told how far the run is."""
        if callable(wanted):
            return contextlib.nullcontext(wanted)
        if wanted is None:
            wanted = sys.stderr.isatty() and jax.process_index() == 0
        left = max(self.horizon - self.steps, 0)
        goal = self.steps + (left if steps is None else min(int(steps), left))
        return shown("private steps", goal, done=self.steps, wanted=bool(wanted))

    def _fit(
        self,
        steps: int | None,
        every: int,
        evaluate: Callable[[nnx.Module], float] | None,
        on_evaluation: Callable[[Evaluation], None] | None,
        keeper: Keeper | None,
    ) -> list[Evaluation]:
        """Returns the records of a call of :meth:`fit`, whose arguments were checked."""
        left = max(self.horizon - self.steps - self._progress.lost_steps, 0)
        left = left if steps is None else min(int(steps), left)
        start = self.steps
        goal = self.steps + left
        kept = self._progress.kept and self._progress.goal in (None, goal)
        self._progress = self._progress._replace(goal=goal, kept=kept, ended=False)
        history: list[Evaluation] = []
        if start == 0 < left:
            self._say(start, "compiling a look at made-up examples")
            self.program.check_gradients(self._state, self._constants, self.source.example)
        if left:
            self._say(start, "compiling the update")
        granted, size, sums = True, root_mean_square(self._state.params), self._state.metrics
        # Each pass makes the updates up to the next multiple of ``every`` and looks at them. It ends when all asked for
        # are made, the ledger refuses one, the policy stops, or Ctrl-C is pressed: ``left`` falls at each pass or
        # ``granted`` turns false. ``size`` and ``sums`` are the values from which growth and means are measured.
        while granted and left > 0 and not (self._asked or bool(self.policy.stopped(self._state.policy))):
            before = self.steps
            granted = self._advance(min(every - before % every, left), keeper)
            done = self.steps - before
            left -= done
            if done and not (self._asked and left > 0):
                accuracy = None if evaluate is None else _number(evaluate(self.model))
                means = {name: float(total - sums[name]) / done for name, total in self._state.metrics.items()}
                sums = self._state.metrics
                history.append(Evaluation(self.steps, accuracy, self.spent_epsilon, means))
                if on_evaluation is not None:
                    on_evaluation(history[-1])
            # After the record, so that what has been paid for is shown before the run ends with an error.
            check_parameters(self._state.params, size, self.steps)
        if self._asked and granted and left > 0:
            if keeper is not None:
                keeper.end(self)
            raise KeyboardInterrupt
        if steps is not None and self.steps < start + int(steps) and not bool(self.policy.stopped(self._state.policy)):
            self._warn(self.steps - start, int(steps))
        self._progress = self._progress._replace(ended=True)
        if keeper is not None:
            keeper.end(self)
        return history

    def _warn(self, made: int, asked: int) -> None:
        """Warns that fewer steps were made than asked for, and says why and what to do."""
        if self.plan is not None:
            lost = self._progress.lost_steps
            why = f"its plan is of {self.plan.steps}" + (f", of which an interruption lost {lost}" if lost else "")
            remedy = "a trainer made with more steps= or epochs= gives each of them more noise"
        else:
            why = f"the {self.ledger_kind} pays for no more"
            remedy = "raise noise_multiplier or epsilon; for constant settings ledger='planned' pays for more"
        warnings.warn(
            f"fit made {made} of the {asked} steps it was asked for, {self.steps} in all: {why}. To go on: {remedy}.",
            ShortRunWarning, stacklevel=4,
        )  # fmt: skip

    @property
    def _asked(self) -> bool:
        """Whether somebody pressed Ctrl-C."""
        return asked_anywhere(self._interrupts.asked)

    @property
    def _pass(self) -> int:
        """Number of updates in one expected pass over the data."""
        return max(1, round(self.sampler.num_examples / self.sampler.expected_batch_size))

    def _advance(self, steps: int, keeper: Keeper | None) -> bool:
        """Runs so many steps, adapting in between; returns whether all were granted, or the policy stopped."""
        # A pass makes one chunk: at most up to the policy's next adaptation and to the keeper's next checkpoint. The
        # order is what the guarantee needs: the keeper writes the spend of the chunk (begin), the chunk is computed,
        # and the keeper writes its result (finish) before ``fit`` shows it to anybody. ``steps`` falls by the updates
        # made, and a refusal, after which ``done`` may be 0, ends the loop.
        while steps > 0 and not bool(self.policy.stopped(self._state.policy)):
            period = self.policy.period
            chunk = min(steps, period - self.steps % period) if period else steps
            if keeper is not None:
                chunk = keeper.begin(self, chunk)
            before = self.steps
            state, granted = self._compute(self._state, chunk)
            check_same(state.ledger, "the ledger")
            done = int(state.step) - before
            self._say(int(state.step), "")
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
            if self._asked:
                return True
            steps -= done
        return True

    def _compute(self, state: TrainState, steps: int) -> tuple[TrainState, bool]:
        """Returns the state after ``steps`` updates, or fewer at a refusal or Ctrl-C, and whether none was refused."""
        curve = self._present_curve()
        if isinstance(self.source, ArraySource):
            # Each pass is one compiled loop of ``count`` steps. Their number doubles or halves until a pass takes
            # between half of PATIENCE and all of it; ``steps`` is what is left.
            while steps > 0 and not self._asked:
                begun, count = time.monotonic(), min(steps, self._at_once)
                state, refused = self._run(state, curve, self._constants, self.data, count)
                if bool(refused):
                    return state, False
                self._say(int(state.step), "")
                took, steps = time.monotonic() - begun, steps - count
                if jax.process_count() > 1:  # all have to make as many
                    continue
                if count == self._at_once and took < PATIENCE / 2:
                    self._at_once *= 2
                elif took > PATIENCE:
                    self._at_once = max(count // 2, 1)
            return state, True
        # Data read by index: batches are drawn and fetched ahead of the steps, by the key that a step draws with.
        key = self.program.sample_key(state)
        source: Any = self.source
        if self.program.layout is not None:
            source = OwnRows(source, self.program.layout)
        for batch in stream(source, self.sampler, key, steps, start=int(state.step)):
            granted, state = self._step_on(state, curve, self._constants, batch.examples, batch.mask)
            if not bool(granted):
                return state, False
            if self._asked:
                break
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

    def _restore(self, state: TrainState, progress: Progress, constants: Any = None) -> None:
        """Goes on from a state that this trainer's program made; ``constants`` replace what does not train.

        Only for callers that take a run up and answer for what it spent
        (:class:`~jaxacct.train.checkpoints.Checkpoints`).
        """
        self._state, self._progress = owned(state), progress
        self._constants = self._constants if constants is None else owned(constants)
        self._curve = None if self.policy.every_step else self.program.curve(self._state)

    def _present_curve(self) -> Array:
        """Returns the cost of one run of the mechanism, or zeros of its shape where each step computes its own."""
        if self._curve is not None:
            return self._curve
        # The program computes the curve itself at every step: only the shape of this argument counts.
        return jnp.zeros(jax.eval_shape(self.program.curve, self._state).shape)


def _number(value: Any) -> float:
    """Returns what ``evaluate`` returned."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"evaluate returned {value!r}: return one number, such as an accuracy. The steps so far are made and paid "
            "for; fit called again goes on from there."
        ) from None
