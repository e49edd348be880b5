"""The state of a training run as one pytree, its records and its keeper.

* :class:`TrainState`, :class:`PrivateState`: what changes, in the trainer and in a loop of one's own;
* :class:`Evaluation`, :class:`Progress`, :class:`Keeper`: what is told of it, and the interface by which it is written
  down.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float32, Int32, PyTree, UInt32

from jaxacct.ledger import Ledger
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.strategies import NoiseState
from jaxacct.train.clipping import ClippingRule
from jaxacct.train.planned import Plan, PlannedLedger


@register_dataclass
@dataclass(frozen=True, kw_only=True, repr=False)
class TrainState:
    """All that changes during training.

    Attributes:
        params: the module's trained ``nnx.Param`` leaves.
        opt_state: Optax's state.
        ledger: what has been spent: a planned ledger, a filter, or an odometer.
        rule: the clipping rule; an adaptive one carries its norm.
        policy: the policy's state.
        step (): noisy updates so far; also the counter that keys are folded with.
        key (): typed key of the run; never changes, never used itself.
        metrics: sums of the steps' noisy means, by name (:class:`~jaxacct.train.metrics.Metrics`).
        noise: the memory of correlated noise, float64; secret like the key. None: noise is independent.
    """

    params: PyTree
    opt_state: PyTree
    ledger: Any
    rule: ClippingRule
    policy: Any
    step: Int32[Array, ""]
    key: jax.Array
    metrics: dict[str, Float32[Array, ""]] = field(default_factory=dict)
    noise: NoiseState | None = None

    def __repr__(self) -> str:
        return f"<TrainState: step {self.step}>"  # neither parameters nor, above all, the key


@register_dataclass
@dataclass(frozen=True, kw_only=True, repr=False)
class PrivateState:
    """The state of a loop of one's own (:class:`.PrivateGradients`), which changes from one gradient to the next.

    Attributes:
        ledger: what has been spent: the count of a plan's steps, a filter or an odometer.
        rule: the clipping rule; an adaptive one carries its norm.
        step (): noisy gradients so far, which the key is folded with.
        key (): typed key of the run. Secret, as the noise can be redone from it.
        owner (8,): digest of the settings of the :class:`.PrivateGradients` that began it, and that alone take it.
        noise: the memory of correlated noise, float64; secret like the key. None: noise is independent.
    """

    ledger: PlannedLedger | Ledger
    rule: ClippingRule
    step: Int32[Array, ""]
    key: jax.Array
    owner: UInt32[Array, 8]
    noise: NoiseState | None = None

    def __repr__(self) -> str:
        return f"<PrivateState: step {self.step}>"


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
        plan: the run's plan, None without one; beside the tuple's entries, as is
        paid: the number of updates that were paid for until then, lost ones as well.
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
        return f"{where}: nothing is lost" + (f"; {again} steps gave the same bits again." if again else ".")


@runtime_checkable
class Keeper(Protocol):
    """The writer that :meth:`.DPTrainer.fit` calls, so that nothing is released before it is written down."""

    def begin(self, trainer: Any, steps: int) -> int:
        """Called before up to ``steps`` steps are computed. Returns for how many of them it wrote the spend down."""
        ...

    def finish(self, trainer: Any) -> None:
        """Called when they are computed, before anybody sees the result: writes down the state."""
        ...

    def end(self, trainer: Any) -> None:
        """Called when a call of ``fit`` has come to its end."""
        ...
