"""The individual Rényi filter: one budget for each example, spent by what that example contributes.

Feldman and Zrnic (2021), "Individual privacy accounting via a Rényi filter", Algorithm 2 and Theorem 4.5: let every
example stay in the computation only while the divergences of its own contributions, each measured before it is made,
stay within the budget. Then the whole is differentially private for adding or removing an example, though small
contributions have been charged less than the largest possible one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxacct import rdp, validation
from jaxacct.filters.renyi import FILTER_ORDERS, RenyiFilter
from jaxacct.mechanisms import Mechanism
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.numerics.precision import as_float64, exact_float64, in_float64
from jaxacct.numerics.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class IndividualRenyiFilter:
    """Filter that grants each example's contributions while its own budget of (epsilon, delta) lasts.

    Made by :meth:`create`. Attributes:
        filters: a :class:`.RenyiFilter` whose leaves have a leading axis (examples,).

    Formal guarantee: if an example takes part in a release only where it is granted, and contributes nothing where it
    is not, all releases together are (epsilon, delta)-DP for adding or removing one example, however they are chosen
    from earlier results, with delta as :attr:`.RenyiFilter.proven_delta`. The mechanism charged for an example must
    bound the divergence between the release with its contribution and without it, *given all other examples*, both
    ways; for a sum with Gaussian noise s that is ``Gaussian(s / norm)``, norm that of the example's own contribution.
    Which examples are still active, and what they have spent, depends on the data and must not be released.

    Source: Feldman and Zrnic (2021), Theorem 4.5; the orders as in :mod:`jaxacct.filters.renyi`.

    >>> import jaxacct as ja
    >>> budgets = IndividualRenyiFilter.create(examples=3, epsilon=1.0, delta=1e-5)
    >>> norms = np.array([0.0, 0.1, 1.0])
    >>> granted, budgets = budgets.spend(ja.Gaussian(noise_multiplier=4.0 / np.maximum(norms, 1e-30)))
    >>> granted.tolist(), budgets.remaining(ja.Gaussian(noise_multiplier=np.full(3, 20.0))).tolist()
    ([True, True, False], [16, 16, 16])
    """

    filters: RenyiFilter

    @classmethod
    def create(
        cls,
        examples: int,
        epsilon: ArrayLike,
        delta: ArrayLike,
        orders: Sequence[float] = FILTER_ORDERS,
        conversion: str = "mironov",
    ) -> IndividualRenyiFilter:
        """Returns the filter before the first release, with the same budget for each of ``examples`` examples.

        Arguments and errors are those of :class:`.RenyiFilter`; memory is 16 bytes for each order and example.
        """
        validation.check_count(examples, "examples", "the number of examples")
        one = RenyiFilter(epsilon, delta, orders, conversion)
        return cls(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (examples, *jnp.shape(leaf))), one))

    @in_float64
    def spend(
        self,
        mechanism: Mechanism,
        steps: Int[ArrayLike, " examples"] | int = 1,
        *,
        relation: Relation = "add_or_remove",
    ) -> tuple[Bool[Array, " examples"], IndividualRenyiFilter]:
        """Returns whether each example may take part in ``steps`` runs, and the filter after them.

        Args:
            mechanism: fields with the leading axis (examples,): the mechanism that each one's contribution amounts to.
            steps (examples,): or one number for all.
            relation: neighbouring relation, one that the mechanism supports.

        An example that is not granted spends nothing. Errors are those of :meth:`.RenyiFilter.spend`, and ValueError
        where shapes do not fit.
        """
        return self.spend_curves(self._curves(mechanism, relation), steps)

    @in_float64
    def spend_curves(
        self, curves: Float[Array, "examples orders"], steps: Int[ArrayLike, " examples"] | int = 1
    ) -> tuple[Bool[Array, " examples"], IndividualRenyiFilter]:
        """Returns :meth:`spend` of mechanisms with the given Rényi curves (examples, orders)."""
        runs = validation.exact_steps(steps)
        if np.shape(curves)[:1] != self._shape:
            raise ValueError(f"curves of shape {np.shape(curves)} do not fit {self._shape[0]} examples.")
        if np.shape(runs) not in ((), self._shape):
            raise ValueError(
                f"steps of shape {np.shape(runs)} do not fit {self._shape[0]} examples: give one number for all, or "
                "one for each."
            )
        granted, filters = _spend(self.filters, curves, runs)
        return granted, IndividualRenyiFilter(filters)

    def would_grant(
        self, mechanism: Mechanism, steps: ArrayLike = 1, *, relation: Relation = "add_or_remove"
    ) -> Bool[Array, " examples"]:
        """Returns whether :meth:`spend` would grant each example, spending nothing."""
        return self.spend(mechanism, steps, relation=relation)[0]

    @in_float64
    def remaining(self, mechanism: Mechanism, *, relation: Relation = "add_or_remove") -> Int[Array, " examples"]:
        """Returns how many more runs of its mechanism each example would be granted; int32."""
        self._check(mechanism)
        return jax.vmap(lambda one, each: one.remaining(each, relation=relation))(
            self.filters, _spread(mechanism, self._shape)
        )

    @in_float64
    def epsilon(self) -> Float[Array, " examples"]:
        """Returns the epsilon that each example has spent; not to be released, for it depends on the data."""
        return jax.vmap(RenyiFilter.epsilon)(self.filters)

    @property
    def _shape(self) -> tuple[int, ...]:
        return jax.tree.leaves(self.filters)[0].shape[:1]

    def _check(self, mechanism: Mechanism) -> None:
        mechanism.validate()
        if mechanism.batch_shape != self._shape:
            raise ValueError(
                f"a mechanism of shape {mechanism.batch_shape} does not fit {self._shape[0]} examples: give fields "
                "with that leading axis, what each example's own contribution amounts to."
            )

    def _curves(self, mechanism: Mechanism, relation: Relation) -> Float[Array, "examples orders"]:
        self._check(mechanism)
        each = jax.vmap(lambda one: rdp.curve(one, self.filters.orders, relation=relation))
        return in_float64(each)(_spread(mechanism, self._shape))


@in_float64
def _spread(mechanism: Mechanism, shape: tuple[int, ...]) -> Mechanism:
    """Returns the mechanism with every field of the batch's shape, in float64."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(exact_float64(leaf), shape), mechanism)


@in_float64  # outside the scope vmap would make float32 of the runs, and int32 of integers
def _spend(filters: RenyiFilter, curves: ArrayLike, runs: ArrayLike) -> tuple[Array, RenyiFilter]:
    each = jnp.broadcast_to(as_float64(runs), jnp.shape(curves)[:1])
    return jax.vmap(lambda one, curve, count: one.spend_curve(curve, count))(filters, curves, each)
