"""The base of filters and odometers: ledgers, which add up the privacy loss of adaptively chosen runs.

A ledger is a pytree with one child, the state that changes, and with settings that are static. :class:`Ledger` is the
base of all; :class:`RenyiLedger` is that of the ledgers that add up Rényi divergences at a set of orders.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from jaxacct import rdp, validation
from jaxacct.convert.renyi import checked_orders
from jaxacct.display import rounded_up
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.numerics.precision import as_float64, is_concrete, kernel, leave_scope
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.rounded_sum import RoundedSum, log_inverse_above, precise
from jaxacct.validation import shorten

FIXED = {"fixed": True}
"""Metadata of the fields of a ledger's state that no spending changes: budgets, and the delta that they hold at. A
field without it comes from whatever state is resumed: of a budget that would be whatever budget somebody brings."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Ledger(abc.ABC):
    """Base of filters and odometers; each subclass is registered as a pytree by itself.

    Attributes:
        state: a registered dataclass of float32 leaves, or of int32 where whole units are counted. The fields that a
            subclass adds are hashable and static.
    """

    has_budget: ClassVar[bool] = True
    """Whether there is a budget of which something may remain: a filter's; an odometer has none."""

    state: PyTree

    @property
    def relation(self) -> Relation:
        """The neighbouring relation that is meant where none is given: a menu's own, else "add_or_remove"."""
        return "add_or_remove"

    @abc.abstractmethod
    def cost(self, mechanism: Mechanism, *, relation: Relation | None = None) -> Any:
        """Returns what one run of ``mechanism`` costs, in the ledger's own currency, for :meth:`spend_cost`.

        It is a pytree of arrays, to be handed on as it is. Errors are those of :meth:`spend`.
        """

    @abc.abstractmethod
    def spend_cost(self, cost: Any, steps: ArrayLike = 1) -> tuple[Bool[Array, ""], Self]:
        """Returns :meth:`spend` of a mechanism with the given :meth:`cost`: cheap, for a step of a training loop."""

    @abc.abstractmethod
    def spend(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation | None = None
    ) -> tuple[Bool[Array, ""], Self]:
        """Returns whether ``steps`` runs of ``mechanism`` are granted, and the ledger after them.

        All runs are granted or none: where it refuses, the new ledger is the old one bit for bit. Nothing may be
        released before it is granted. A mechanism whose fields have one leading axis, with as many steps, or a tuple
        with a tuple of steps, is granted as a whole. Runs that cost nothing, none at all or those of a mechanism that
        releases nothing, are always granted. Invalid mechanisms, NaN and traced steps that are no whole number up to
        2^53 are refused; concrete ones raise ValueError. An odometer has no budget: it refuses only these, and runs
        that have no finite cost. ``relation`` is the neighbouring relation; None is :attr:`relation`.
        """

    def would_grant(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation | None = None
    ) -> Bool[Array, ""]:
        """Returns whether :meth:`spend` would grant, spending nothing."""
        return self.spend(mechanism, steps, relation=relation)[0]

    def resume(self, spent: Ledger) -> Self:
        """Returns this ledger, with its own budget, after what another one of the same settings has spent.

        It is for a state that was saved, or handed around: a budget that comes with it does not count. Works under
        ``jit``.

        Raises ValueError where ``spent`` is of another kind, or has other settings or shapes.

        >>> from jaxacct import Gaussian
        >>> from jaxacct.filters import ZCDPFilter
        >>> _, generous = ZCDPFilter(100.0, 1e-5).spend(Gaussian(5.0))
        >>> ZCDPFilter(1.0, 1e-5).resume(generous)
        ZCDPFilter(epsilon=1, delta=1e-05, spent=0.794308, conversion='optimal', budget=0.030511, ...
        """
        if _kind(spent) != _kind(self):
            raise ValueError(
                f"spent is a {type(spent).__name__} of other settings than this {type(self).__name__}: what it counts "
                "is not what this one's budget is of. Give one that was made with the same settings."
            )
        state = self.state
        if not is_dataclass(state):
            return self._with(spent.state)
        own = {entry.name: getattr(state, entry.name) for entry in fields(state) if entry.metadata.get("fixed", False)}
        return self._with(replace(spent.state, **own))

    def _promise(self) -> tuple[ArrayLike, ArrayLike] | None:
        """Returns the (epsilon, delta) that a filter keeps; None for what has no budget, and for stacked filters."""
        return None

    def __repr__(self) -> str:
        """Returns what the ledger keeps and what of it is spent, and then its settings and its state."""
        state = self.state
        # JAX and its friends rebuild a ledger of shapes, names or masks as well: such a one has no account.
        leaves = jax.tree.leaves(state)
        are_numbers = all(isinstance(leaf, (np.ndarray, np.generic, jax.Array)) for leaf in leaves)
        parts = self._account() if leaves and are_numbers and is_concrete(state) else []
        parts += [(entry.name, getattr(self, entry.name)) for entry in fields(self)[1:]]
        kept = [(entry.name, getattr(state, entry.name)) for entry in fields(state)] if is_dataclass(state) else []
        shown = {name for name, _ in parts}
        parts += [(name, value) for name, value in kept if value is not None and name not in shown]
        return f"{type(self).__name__}({', '.join(f'{name}={_short(value)}' for name, value in parts)})"

    def _account(self) -> list[tuple[str, Any]]:
        """Returns the (epsilon, delta) that is kept, and the epsilon that is spent of it."""
        leaves = jax.tree.leaves(self.state, is_leaf=lambda leaf: leaf is None)
        promise = self._promise() if all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves) else None
        if promise is None:  # it has no budget, or JAX has put something else into its state
            return []
        epsilon, delta = (float(np.asarray(value)) for value in promise)
        # The nearest number of six digits: the budget is a few roundings below what was given, delta above.
        kept = [(name, float(f"{value:.6g}")) for name, value in (("epsilon", epsilon), ("delta", delta))]
        return [*kept, ("spent", float(self.epsilon()))]

    @abc.abstractmethod
    def epsilon(self) -> Float[Array, ""]:
        """Returns the epsilon of what has been granted so far, or an odometer's reading; float64."""

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


def _kind(ledger: object) -> tuple[Any, list[tuple[int, ...]]]:
    """Returns the structure of a ledger, with its settings, and the shapes of what it counts."""
    return jax.tree.structure(ledger), [np.shape(leaf) for leaf in jax.tree.leaves(ledger)]


def _short(value: object) -> str:
    """Returns a setting or a number of the state in few characters; for many numbers, their count and extremes."""
    parts = (value.high, value.low) if isinstance(value, RoundedSum) else ()
    if parts and is_concrete(parts) and all(isinstance(part, (np.ndarray, np.generic, jax.Array)) for part in parts):
        sums = np.asarray(parts[0], np.float64) + np.where(np.isinf(parts[0]), 0.0, parts[1])
        return _short(tuple(sums.ravel().tolist()) if sums.ndim else float(sums))
    if isinstance(value, tuple) and len(value) > 3:
        return f"<{len(value)} from {_short(min(value))} to {_short(max(value))}>"
    if isinstance(value, float) or (isinstance(value, jax.Array) and value.shape == () and is_concrete(value)):
        return rounded_up(float(value))
    return "..." if isinstance(value, RoundedSum) else repr(value)


# ----------------------------------------------------------------------------------------------------
# The ledger of Rényi filters and odometers, which add up divergences at a set of orders.
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class RenyiState:
    """State of a Rényi filter or odometer; float32 leaves.

    Attributes:
        budget (orders,): the most that the divergences may sum to at each order; None for an odometer.
        total (orders,): the divergences' sums, rounded up.
        log_inverse_delta (): log(1/delta), rounded up.
    """

    budget: RoundedSum | None = field(metadata=FIXED)
    total: RoundedSum
    log_inverse_delta: RoundedSum = field(metadata=FIXED)


@compiled(static=("orders",))
def open_sums(delta: Array, orders: int, budget: Array | None) -> RenyiState:
    """Returns the state before the first release, at so many orders; inside the float64 scope."""
    nothing = RoundedSum(jnp.zeros(orders, jnp.float32), jnp.zeros(orders, jnp.float32))
    kept = None if budget is None else RoundedSum.below(jnp.maximum(budget, 0.0))
    return RenyiState(kept, nothing, RoundedSum.above(log_inverse_above(delta)))


@dataclass(frozen=True, init=False, eq=False, repr=False)
class RenyiLedger(Ledger):
    """A ledger whose ``state.total`` holds the divergences so far, one for each of its orders.

    Runs are granted while some order is within its budget; of an odometer, which has none, while some sum is finite.

    Attributes:
        orders: the Rényi orders; static.
    """

    state: RenyiState
    orders: tuple[float, ...]

    @kernel
    def cost(self, mechanism: Mechanism, *, relation: Relation | None = None) -> Float[Array, " orders"]:
        """Returns the RDP of one run of ``mechanism`` at the ledger's orders, for :meth:`spend_cost`.

        It is a float64 JAX array, which stays float64 as an argument of a jitted function (a NumPy array would become
        float32).
        """
        return _as_jax(rdp.curve(mechanism, self.orders, relation=relation or self.relation))

    @kernel
    def spend(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation | None = None
    ) -> tuple[Bool[Array, ""], Self]:
        steps = validation.exact_steps(steps)
        return self._spend(rdp.composed_curve(mechanism, steps, self.orders, relation=relation or self.relation), None)

    @kernel
    def spend_cost(self, cost: Float[Array, " orders"], steps: ArrayLike = 1) -> tuple[Bool[Array, ""], Self]:
        """Returns :meth:`spend` of a mechanism with the given :meth:`cost`: cheap, for a step of a training loop.

        A cost that was made less precise than float64 on its way is rounded up by its last bit.
        """
        runs = validation.exact_steps(steps)
        if np.shape(runs):  # an order would be charged its own number of runs
            raise ValueError(f"steps of shape {np.shape(runs)} are several: give one number of runs of one cost.")
        return self._spend(cost, runs)

    def _spend(self, cost: ArrayLike, steps: ArrayLike | None) -> tuple[Bool[Array, ""], Self]:
        if np.shape(cost) != (len(self.orders),):
            raise ValueError(
                f"cost of shape {np.shape(cost)} does not match {len(self.orders)} orders: give what the ledger's own "
                "cost returns."
            )
        granted, total = _grant(self.state, cost, steps)
        return granted, self._with(replace(self.state, total=total))

    @property
    def spent(self) -> Float[Array, " orders"]:
        """The Rényi divergence granted so far at each order, rounded up; float64."""
        return read_sum(self.state.total)


@kernel
@compiled
def _grant(state: RenyiState, curve: ArrayLike, steps: ArrayLike | None) -> tuple[Array, RoundedSum]:
    """Returns whether so many runs of a curve are granted, and the divergences after them, rounded up.

    ``steps`` come from :func:`.validation.exact_steps`, or are None for a curve of :mod:`.rdp` that counts once. Such a
    curve is float64, and each entry is 0 or no less than LEAST_COST. An order whose curve is 0 has nothing to round up.
    """
    if steps is None:
        added = jnp.asarray(curve)
        valid = jnp.all(added >= 0)
    else:
        curve, steps = precise(curve), as_float64(steps)
        added = jnp.where(steps == 0, 0.0, steps * curve)
        valid = (steps >= 0) & jnp.all(curve >= 0)
    new, changed = state.total.plus(added), added != 0
    fits = new < jnp.inf
    if state.budget is not None:
        budget = state.budget.value()
        fits &= (new <= budget) & (budget > 0)
    # One order within its budget is enough, as delta was divided over all of them. A release of no cost is granted.
    granted = valid & (jnp.any(fits) | ~jnp.any(changed))
    return granted, state.total.replace_where(new, granted & changed)


def fixed_orders(orders: Sequence[float], *, infinity: bool = False) -> tuple[float, ...]:
    """Returns :func:`.checked_orders` as a tuple of floats, which are static; raises ValueError where traced."""
    if not is_concrete(orders):
        raise ValueError(f"orders = {shorten(orders)} are traced: give numbers, which are settings of a ledger.")
    known = checked_orders(tuple(orders) if isinstance(orders, list) else orders, infinity=infinity)
    return tuple(known.tolist())


_as_jax = kernel(as_float64)


@kernel
def read_sum(total: RoundedSum) -> Float[Array, ...]:
    """Returns the value of a sum that is kept in two float32, float64 outside the scope as well."""
    return leave_scope(total.value())
