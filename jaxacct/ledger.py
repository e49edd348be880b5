"""What filters and odometers are: a pytree of one child, the state that changes, and settings that are static."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import jax


@dataclass(frozen=True, init=False, eq=False)
class Ledger:
    """Base of filters and odometers; each is registered as a pytree by itself.

    Attributes:
        state: a registered dataclass of float32 leaves. The fields that a subclass adds are hashable and static.
    """

    state: Any

    def _fill(self, state: Any, *settings: Any) -> Self:
        for entry, value in zip(fields(self), (state, *settings), strict=True):
            object.__setattr__(self, entry.name, value)
        return self

    def _with(self, state: Any) -> Self:
        """Returns the same ledger with another state."""
        return object.__new__(type(self))._fill(state, *self._settings())

    def _settings(self) -> tuple[Any, ...]:
        return tuple(getattr(self, entry.name) for entry in fields(self)[1:])

    def tree_flatten_with_keys(self):
        """Returns the state, a leaf or a pytree of them, and the settings, which are static: for JAX."""
        return ((jax.tree_util.GetAttrKey("state"), self.state),), self._settings()

    @classmethod
    def tree_unflatten(cls, settings, children) -> Self:
        """Returns the ledger with these settings and this state: for JAX."""
        return object.__new__(cls)._fill(*children, *settings)
