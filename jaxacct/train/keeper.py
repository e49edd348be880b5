"""What a training run tells whoever writes it down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jaxacct.train.trainer import DPTrainer


class Keeper(Protocol):
    """What :meth:`DPTrainer.fit` tells of its progress, so that nothing is released that is not written down."""

    def begin(self, trainer: DPTrainer, steps: int) -> int:
        """Called before up to ``steps`` steps are computed: returns for how many it wrote down what they will spend."""
        ...

    def finish(self, trainer: DPTrainer) -> None:
        """Called when they are computed, before anybody sees what they gave: writes down the state."""
        ...

    def end(self, trainer: DPTrainer) -> None:
        """Called when a call of :meth:`DPTrainer.fit` has come to its end."""
        ...
