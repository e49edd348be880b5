"""What changes during training, as one pytree; and who is called to write it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
from jaxtyping import Array, Float32, Int32, PyTree

from jaxacct.pytrees import register_dataclass
from jaxacct.strategies import NoiseState
from jaxacct.train.clipping import ClippingRule


@register_dataclass
@dataclass(frozen=True, kw_only=True, repr=False)
class TrainState:
    """All that changes during training.

    Attributes:
        params: the module's trained ``nnx.Param`` leaves.
        opt_state: Optax's state.
        ledger: what has been spent: a filter, or an odometer.
        rule: the clipping rule; an adaptive one carries its norm.
        policy: the policy's state.
        step (): noisy updates so far; also the counter that keys are folded with.
        key (): typed key of the run; never changes, never used itself.
        metrics: sums of the steps' noisy means, by name (:class:`~jaxacct.train.metrics.Metrics`).
        noise: what correlated noise remembers, float64; secret like the key. None: noise is independent.
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


class Evaluation(NamedTuple):
    """One look at a run.

    Attributes:
        step: noisy updates so far.
        accuracy: what ``evaluate`` returned; None without it.
        epsilon: the ledger's so far, an upper bound.
        metrics: private means over the updates since the record before, by name; none without
            :class:`~jaxacct.train.metrics.Metrics`.
    """

    step: int
    accuracy: float | None
    epsilon: float
    metrics: Mapping[str, float] = MappingProxyType({})


class Progress(NamedTuple):
    """Where a run is to end, and whether it kept to that.

    Attributes:
        goal: the number of updates at which its call of ``fit`` is to end; None before the first one.
        kept: whether no other call set another end.
        ended: whether the last call came to its end.
        lost_steps: updates that the ledger has paid for and whose results an interruption lost.
    """

    goal: int | None = None
    kept: bool = True
    ended: bool = True
    lost_steps: int = 0

    def resumed(self, steps: int, checkpoint: int, before: Progress, *, repeats: bool) -> str:
        """Returns, in a line, what became of a run taken up at a checkpoint, where it had come to ``before``."""
        where = f"resumed at step {steps}" + ("" if self.goal is None else f" of {self.goal}")
        lost, again = self.lost_steps - before.lost_steps, steps - checkpoint
        if lost:
            why = "they did not give the same bits again" if repeats else "no seed was given to make them again"
            return f"{where}: {lost} steps begun after step {checkpoint} are lost and stay paid for, as {why}."
        return f"{where}: nothing is lost" + (f"; {again} steps gave the same bits again." if again else ".")


class Keeper(Protocol):
    """Whom :meth:`.DPTrainer.fit` calls with the trainer, so that nothing is released that is not written down."""

    def begin(self, trainer: Any, steps: int) -> int:
        """Called before up to ``steps`` steps are computed: returns for how many it wrote down what they will spend."""
        ...

    def finish(self, trainer: Any) -> None:
        """Called when they are computed, before anybody sees what they gave: writes down the state."""
        ...

    def end(self, trainer: Any) -> None:
        """Called when a call of ``fit`` has come to its end."""
        ...
