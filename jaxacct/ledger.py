"""What filters and odometers are: a pytree of one child, the state that changes, and settings that are static."""

from __future__ import annotations

import abc
from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass
from typing import Self

import jax
import numpy as np
from jaxtyping import Array, Bool, PyTree

from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.outward import rounded_up
from jaxacct.precision import is_concrete
from jaxacct.rounded_sum import RoundedSum


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Ledger(abc.ABC):
    """Base of filters and odometers; each is registered as a pytree by itself.

    Attributes:
        state: a registered dataclass of float32 leaves. The fields that a subclass adds are hashable and static.
    """

    state: PyTree

    @abc.abstractmethod
    def spend(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation = "add_or_remove"
    ) -> tuple[Bool[Array, ""], Self]:
        """Returns whether ``steps`` runs of ``mechanism`` are granted, and the ledger after them.

        All of them or none: where it refuses, the new ledger is the old one bit for bit. Nothing may be released before
        it is granted. A mechanism whose fields have one leading axis, with as many steps, or a tuple with a tuple of
        steps, is granted together. What costs nothing, no runs or a mechanism that releases nothing, is granted always.
        Invalid mechanisms, NaN and traced steps that are no whole number up to 2^53 are refused; concrete ones raise
        ValueError. An odometer has no budget: it refuses only these, and what has no finite cost.
        """

    def would_grant(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation = "add_or_remove"
    ) -> Bool[Array, ""]:
        """Returns whether :meth:`spend` would grant, spending nothing."""
        return self.spend(mechanism, steps, relation=relation)[0]

    def __repr__(self) -> str:
        parts = [(entry.name, getattr(self, entry.name)) for entry in fields(self)[1:]]
        state = self.state
        parts += [(entry.name, getattr(state, entry.name)) for entry in fields(state)] if is_dataclass(state) else []
        return f"{type(self).__name__}({', '.join(f'{name}={_short(value)}' for name, value in parts)})"

    def _fill(self, state: PyTree, *settings: Hashable) -> Self:
        for entry, value in zip(fields(self), (state, *settings), strict=True):
            object.__setattr__(self, entry.name, value)
        return self

    def _with(self, state: PyTree) -> Self:
        """Returns the same ledger with another state."""
        return object.__new__(type(self))._fill(state, *self._settings())

    def _settings(self) -> tuple[Hashable, ...]:
        return tuple(getattr(self, entry.name) for entry in fields(self)[1:])

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[jax.tree_util.GetAttrKey, PyTree]], tuple[Hashable, ...]]:
        """Returns the state, a leaf or a pytree of them, and the settings, which are static: for JAX."""
        return ((jax.tree_util.GetAttrKey("state"), self.state),), self._settings()

    @classmethod
    def tree_unflatten(cls, settings: tuple[Hashable, ...], children: tuple[PyTree, ...]) -> Self:
        """Returns the ledger with these settings and this state: for JAX."""
        return object.__new__(cls)._fill(*children, *settings)


def _short(value: object) -> str:
    """Returns a setting or a number of the state in few characters; of many, how many and their ends."""
    if isinstance(value, RoundedSum) and is_concrete(value.high, value.low):
        sums = np.asarray(value.high, np.float64) + np.where(np.isinf(value.high), 0.0, value.low)
        return _short(tuple(sums.ravel().tolist()) if sums.ndim else float(sums))
    if isinstance(value, tuple) and len(value) > 3:
        return f"<{len(value)} from {_short(min(value))} to {_short(max(value))}>"
    if isinstance(value, float) or (isinstance(value, jax.Array) and value.shape == () and is_concrete(value)):
        return rounded_up(float(value))
    return "..." if isinstance(value, RoundedSum) else repr(value)
