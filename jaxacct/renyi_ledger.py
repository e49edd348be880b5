"""What Rényi filters and odometers share: they add up divergences at a set of orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import rdp, validation
from jaxacct.ledger import Ledger
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.precision import as_float64, in_float64, outside
from jaxacct.rounded_sum import RoundedSum, precise


@dataclass(frozen=True, init=False, eq=False, repr=False)
class RenyiLedger(Ledger):
    """A ledger whose ``state.total`` holds the divergences so far, one for each of its orders; a subclass decides.

    Attributes:
        orders: the Rényi orders; static.
    """

    orders: tuple[float, ...]

    def _decide(self, curve: ArrayLike, steps: ArrayLike | None) -> tuple[Bool[Array, ""], RoundedSum]:
        """Returns whether ``steps`` runs of that curve are granted, and the total then; None for what is composed."""
        raise NotImplementedError

    @in_float64(by_programs=True)
    def curve(self, mechanism: Mechanism, *, relation: Relation = "add_or_remove") -> Float[Array, " orders"]:
        """Returns the RDP of one run of ``mechanism`` at the ledger's orders, for :meth:`spend_curve`.

        A float64 JAX array, which stays one as an argument of a jitted function (a NumPy one would become float32).
        """
        return _as_jax(rdp.curve(mechanism, self.orders, relation=relation))

    @in_float64(by_programs=True)
    def spend(
        self, mechanism: Mechanisms, steps: Steps = 1, *, relation: Relation = "add_or_remove"
    ) -> tuple[Bool[Array, ""], Self]:
        steps = validation.exact_steps(steps)
        return self._spent(rdp.composed_curve(mechanism, steps, self.orders, relation=relation), None)

    @in_float64(by_programs=True)
    def spend_curve(self, curve: Float[Array, " orders"], steps: ArrayLike = 1) -> tuple[Bool[Array, ""], Self]:
        """Returns :meth:`spend` of a mechanism with the given :meth:`curve`: cheap, for a step of a training loop.

        A curve that was made less precise than float64 on its way is rounded up by its last bit.
        """
        return self._spent(curve, validation.exact_steps(steps))

    def _spent(self, curve: ArrayLike, steps: ArrayLike | None) -> tuple[Bool[Array, ""], Self]:
        if np.shape(curve) != (len(self.orders),):
            raise ValueError(f"a curve of shape {np.shape(curve)} does not fit {len(self.orders)} orders.")
        granted, total = self._decide(curve, steps)
        return granted, self._with(replace(self.state, total=total))

    @property
    def spent(self) -> Float[Array, " orders"]:
        """The Rényi divergence granted so far at each order, rounded up; float64."""
        return outside(_value(self.state.total))


def with_runs(total: RoundedSum, curve: ArrayLike, steps: ArrayLike | None) -> tuple[Array, Array, Array]:
    """Returns the divergences after so many more runs, rounded up, where they change, and whether the runs are valid.

    Inside the float64 scope; ``steps`` are :func:`.validation.exact_steps`, or None for a curve of :mod:`.rdp` that
    counts once: it is of float64, and 0 or no less than LEAST_COST. An order whose curve is 0 has nothing to round up.
    """
    if steps is None:
        curve = jnp.asarray(curve)
        return total.plus(curve), curve != 0, jnp.all(curve >= 0)
    curve, steps = precise(curve), as_float64(steps)
    added = jnp.where(steps == 0, 0.0, steps * curve)
    return total.plus(added), added != 0, (steps >= 0) & jnp.all(curve >= 0)


def checked_orders(orders: Sequence[float]) -> tuple[float, ...]:
    """Returns orders as a tuple of floats; raises ValueError where one is not above 1 and finite, or there is none."""
    orders = tuple(float(order) for order in orders)
    if not orders or not all(1 < order < math.inf for order in orders):
        raise ValueError(f"orders = {orders} are not Rényi orders: give at least one, each finite and above 1.")
    return orders


_as_jax = in_float64(by_programs=True)(as_float64)
_value = in_float64(by_programs=True)(RoundedSum.value)
