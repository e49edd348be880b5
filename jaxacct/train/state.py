"""The state of a run as one pytree, and the interface of what writes it down.

* :class:`TrainState`, :class:`PrivateState`: what changes, in the trainer and in a loop of one's own;
* :class:`Keeper`: the writer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float32, Int32, PyTree, UInt32

from jaxacct.ledger import Ledger
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.strategies import NoiseState
from jaxacct.train.clipping import ClippingRule
from jaxacct.train.planned import PlannedLedger


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
        key: of the run; never changes, never used itself. Words (8,) of ChaCha20; for noise of float64 a typed key.
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
        key: of the run, as above. Secret, as the noise can be redone from it.
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
