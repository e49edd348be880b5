"""Policies: how a run chooses its noise and its sampling rate, step by step, and when it stops.

A policy is a small pure program: :meth:`~Policy.start` gives its state, a pytree; :meth:`~Policy.setting` the setting
of a step; every :attr:`~Policy.period` steps :meth:`~Policy.adapt` looks at the ledger and at a noisy answer to
:attr:`~Policy.query`, whose cost is the ledger's to grant like any other. All of it works under ``jit`` and ``scan``.

A policy with :attr:`~Policy.adaptive` false chooses nothing from results, and the run it makes may be accounted as if
fixed in advance. One that is adaptive is covered by a filter or an odometer only.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, ArrayLike, Bool, Float32, PyTree

from jaxacct.ledger import Ledger
from jaxacct.mechanisms import Gaussian


class Setting(NamedTuple):
    """What one step uses: ``noise_multiplier`` () and ``sampling_rate`` (), float32."""

    noise_multiplier: Float32[Array, ""]
    sampling_rate: Float32[Array, ""]


@runtime_checkable
class Policy(Protocol):
    """What the trainer asks of a policy.

    Attributes:
        adaptive: whether anything it chooses depends on results.
        period: steps between calls of :meth:`adapt`; 0 for never.
        every_step: whether the setting may change at every step, and not after :meth:`adapt` alone.
        query: the mechanism of the answer that :meth:`adapt` gets, a count of sensitivity 1; None if it gets none.
        sampling_rates: the least and the largest sampling rate that it can choose, for static shapes.
    """

    @property
    def adaptive(self) -> bool: ...

    @property
    def period(self) -> int: ...

    @property
    def every_step(self) -> bool: ...

    @property
    def query(self) -> Gaussian | None: ...

    @property
    def sampling_rates(self) -> tuple[float, float]: ...

    def start(self, ledger: Ledger) -> PyTree:
        """Returns the state before the first step."""
        ...

    def setting(self, state: PyTree, step: ArrayLike) -> Setting:
        """Returns what the step with this number, from 0, uses."""
        ...

    def adapt(self, state: PyTree, ledger: Ledger, step: ArrayLike, answer: ArrayLike) -> PyTree:
        """Returns the state after ``step`` steps, with the ledger as it is after the query."""
        ...

    def stopped(self, state: PyTree) -> Bool[Array, ""]:
        """Returns whether training ends here."""
        ...


@runtime_checkable
class FinitePolicy(Policy, Protocol):
    """A policy that chooses among finitely many settings: a run may pay for it by a menu, nearly at a plan's price.

    Attributes:
        choices: settings such that each that it chooses has at least the noise and at most the rate of one of them;
            a dozen at most, for each makes the choice a little dearer. Empty where none are known.
    """

    @property
    def choices(self) -> tuple[tuple[float, float], ...]: ...
