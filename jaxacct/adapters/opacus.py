"""Accountants for Opacus, under the names "jaxacct" and "jaxacct-rdp", and the reading of its histories.

Importing this module registers the accountants: ``PrivacyEngine(accountant="jaxacct")``. The functions that read a
history or checkpoint after a run are those of :mod:`.events`, which need neither Opacus nor torch.

An accountant is told the noise and the rate of each step, and not how the loader drew: with ``poisson_sampling=False``
its epsilon is that of another run. :func:`judge_history` says whether it holds all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxacct import certified, rdp
from jaxacct.adapters.events import checkpoint_history, from_history, judge_history, stand_in, upper_end
from jaxacct.adapters.loaders import ShuffledBatches

try:
    from opacus.accountants import IAccountant, register_accountant
except ImportError:
    IAccountant, register_accountant = stand_in("opacus", __name__), None

__all__ = [
    "OpacusExactAccountant",
    "OpacusRenyiAccountant",
    "ShuffledBatches",
    "checkpoint_history",
    "from_history",
    "judge_history",
]


class _OpacusAccountant(IAccountant):
    """The common part of both accountants: the history of runs, as Opacus's own accountants keep it."""

    _name: str
    _epsilon: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Counts one step; a step like the last one raises the last entry's count."""
        run, count = (noise_multiplier, sample_rate), 1
        if self.history and tuple(self.history[-1][:2]) == run:
            count += self.history.pop()[2]
        self.history.append((*run, count))

    def __len__(self) -> int:
        return sum(count for _, _, count in self.history)

    def get_epsilon(self, delta: float) -> float:
        """Returns an upper bound on epsilon of all steps so far at ``delta``, rounding included."""
        return upper_end(self._epsilon(*from_history(self.history), delta)) if self.history else 0.0

    @classmethod
    def mechanism(cls) -> str:
        """Returns the name that the class is registered under."""
        return cls._name


class OpacusExactAccountant(_OpacusAccountant):
    """Opacus's accountant "jaxacct": :func:`jaxacct.epsilon` of the history.

    Formal guarantee: that of :func:`from_history`.
    """

    _name, _epsilon = "jaxacct", staticmethod(certified.epsilon)


class OpacusRenyiAccountant(_OpacusAccountant):
    """Opacus's accountant "jaxacct-rdp": :func:`jaxacct.rdp.epsilon` of the history; the guarantee is the same."""

    _name, _epsilon = "jaxacct-rdp", staticmethod(rdp.epsilon)


if register_accountant is not None:
    for _accountant in (OpacusExactAccountant, OpacusRenyiAccountant):
        register_accountant(_accountant.mechanism(), _accountant, force=True)
