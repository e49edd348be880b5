"""Ctrl-C during a run: when it is heard, and how long compiled steps may take until then.

* :class:`RunInterrupts`: the block in which a run notes Ctrl-C, and whether any of its processes did;
* :class:`Pieces`: compiled loops of many steps, in pieces between which Ctrl-C is heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxacct.processes import Interrupts
from jaxacct.train.state import TrainState


class RunInterrupts(Interrupts):
    """A block of a run, which looks at Ctrl-C itself where nothing is half done; a second one raises at once."""

    def __init__(self) -> None:
        super().__init__(deferred=True)

    @property
    def heard(self) -> bool:
        """Whether somebody pressed Ctrl-C, at any process of the run: all of them have to ask."""
        if jax.process_count() == 1:
            return self.is_pending
        from jax.experimental import multihost_utils

        return bool(np.any(multihost_utils.process_allgather(np.asarray(self.is_pending))))


class Pieces:
    """Compiled loops of a number of steps that doubles or halves until Ctrl-C is heard soon enough."""

    def __init__(self) -> None:
        self.steps = 8

    def run(
        self,
        piece: Callable[[TrainState, Any], tuple[TrainState, Array]],
        state: TrainState,
        steps: int,
        interrupts: RunInterrupts,
        show: Callable[[int, str], None],
    ) -> tuple[TrainState, bool]:
        """Returns the state after ``steps`` steps, or fewer at a refusal or Ctrl-C, and whether none was refused.

        ``piece`` takes a state and a number of steps, and returns the state after them and whether one was refused.
        """
        # Seconds that a piece may take: Ctrl-C is heard within about as many, or within one step. Speed and response
        # only. The last piece of a call is short, and says little about a longer one.
        patience = 0.5
        while steps > 0 and not interrupts.heard:
            count = min(steps, self.steps)
            begun = time.monotonic()
            state, refused = piece(state, count)
            if bool(refused):
                return state, False
            show(int(state.step), "")
            took, steps = time.monotonic() - begun, steps - count
            if jax.process_count() > 1:  # all have to make as many
                continue
            if count == self.steps and took < patience / 2:
                self.steps *= 2
            elif took > patience:
                self.steps = max(count // 2, 1)
        return state, True
