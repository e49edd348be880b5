"""The progress of a run: its records, its goal, and the line that shows it.

* :class:`Evaluation`: one look at a run;
* :class:`Progress`: a run's goal, and whether it kept to that;
* :func:`show_progress`: a bar or lines on standard error, or the caller's own;
* :func:`score_of`: what a caller's function says of a model, as a number.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from jaxacct import processes
from jaxacct.train.planned import Plan


class ShortRunWarning(UserWarning):
    """A warning that a call of ``fit`` made fewer steps than it was asked for: the budget pays for no more."""


class _Look(NamedTuple):
    """The values of an :class:`Evaluation`."""

    step: int
    accuracy: float | None
    epsilon: float
    metrics: Mapping[str, float] = MappingProxyType({})


class Evaluation(_Look):
    """One look at a run, a named tuple.

    Attributes:
        step: noisy updates so far.
        accuracy: what ``evaluate`` returned; None without it.
        epsilon: the ledger's so far, an upper bound.
        metrics: private means over the updates since the record before, by name; none without
            :class:`~jaxacct.train.metrics.Metrics`.
        plan: the run's plan, None without one; like ``paid`` no entry of the tuple.
        paid: the number of updates that the ledger had paid for until then, lost ones as well.
    """

    plan: Plan | None = None
    paid: int = 0

    @functools.cached_property
    def epsilon_so_far(self) -> float:
        """Upper bound on the epsilon of the updates until this look, as if the run had been planned to end here.

        It grows with the steps where the plan's :attr:`epsilon` is one number, and is a curve to look at: if results
        decide on the run's end, :attr:`epsilon` is what holds. Lost updates count. The ledger's :attr:`epsilon` where
        there is no plan, and with correlated noise, whose steps are one release. Computed when it is first asked for:
        milliseconds for Poisson samples, and up to a minute where an accountant does not converge.
        """
        so_far = None if self.plan is None else self.plan.epsilon_so_far(self.paid)
        return self.epsilon if so_far is None else so_far


class Progress(NamedTuple):
    """A run's goal, and whether it kept to that.

    Attributes:
        goal: the number of updates at which its call of ``fit`` is to end; None before the first one.
        kept: whether no other call of ``fit`` set another goal.
        ended: whether the last call came to its end.
        lost_steps: number of updates that the ledger has paid for and whose results an interruption lost.
    """

    goal: int | None = None
    kept: bool = True
    ended: bool = True
    lost_steps: int = 0

    def describe_resume(self, steps: int, checkpoint: int, before: Progress, *, repeats: bool) -> str:
        """Returns, in a line, what became of a run taken up at a checkpoint, where it had come to ``before``."""
        where = f"resumed at step {steps}" + ("" if self.goal is None else f" of {self.goal}")
        lost, again = self.lost_steps - before.lost_steps, steps - checkpoint
        if lost:
            why = "they did not give the same bits again" if repeats else "no seed was given to make them again"
            return f"{where}: {lost} steps begun after step {checkpoint} are lost and stay paid for, as {why}."
        if again and not repeats:  # another key draws other batches, and the ledger refused the epoch that they are of
            return f"{where}: {again} steps that its epoch had left are not made, for no other order is paid for."
        return f"{where}: nothing is lost" + (f"; {again} steps gave the same bits again." if again else ".")


def show_progress(
    steps: int, goal: int, wanted: bool | Callable[[int, str], None] | None
) -> AbstractContextManager[Callable[..., None]]:
    """Returns a block whose value is a function to call with the number of steps made, and words about them.

    ``wanted`` is as :meth:`.DPTrainer.fit` takes it: such a function, or whether there is a line; None: on a terminal.
    """
    if callable(wanted):
        return contextlib.nullcontext(wanted)
    if wanted is None:
        wanted = sys.stderr.isatty() and jax.process_index() == 0
    return processes.progress("private steps", goal, done=steps, wanted=bool(wanted))


def score_of(value: Any, source: str, note: str = "") -> float:
    """Returns what ``source`` returned as a number; raises TypeError, with a ``note``, where it is none.

    >>> score_of("0.5", "score")
    0.5
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        shown = repr(value)[:200]
        raise TypeError(f"{source} returned {shown}: return one number, such as an accuracy.{note}") from None
