"""A dominating pair that is one of two, by a coin that neither data set moves and that is given away."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.cumulants import QUADRATURE_NODES
from jaxacct.dominating_pairs.protocol import CellMasses, DominatingPair
from jaxacct.precision import UNIT_ROUNDOFF, as_float64


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PublicCoinPair:
    """The second pair with probability ``weight``, else the first; the loss is that of the pair that was drawn.

    Its law is the mixture of the two laws, so every expectation is the weighted sum of two.

    Attributes:
        first, second: pairs without infinite losses.
        weight (): probability of the second.
    """

    first: DominatingPair
    second: DominatingPair
    weight: ArrayLike

    def _weights(self) -> tuple[Array, Array]:
        second = as_float64(self.weight)
        return 1 - second, second

    def is_valid(self) -> Array:
        _, second = self._weights()
        return self.first.is_valid() & self.second.is_valid() & (second >= 0) & (second <= 1)

    def loss_range(self) -> tuple[Array, Array]:
        (a, b), (c, d) = self.first.loss_range(), self.second.loss_range()
        return jnp.minimum(a, c), jnp.maximum(b, d)

    def supremum(self) -> tuple[Array, Array]:
        a, b = self._weights()
        (low, high), (other_low, other_high) = self.first.supremum(), self.second.supremum()
        lower = jnp.maximum(jnp.where(a > 0, low, -jnp.inf), jnp.where(b > 0, other_low, -jnp.inf))
        return lower, jnp.maximum(high, other_high)

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        a, b = self._weights()
        both = zip(self.first.one_run(epsilon), self.second.one_run(epsilon), (-1.0, 1.0), strict=True)
        lower, upper = ((a * one + b * other) * (1 + side * 8 * UNIT_ROUNDOFF) for one, other, side in both)
        return lower, upper

    def central_loss(self) -> Array:
        return jnp.where(as_float64(self.weight) > 0.5, self.second.central_loss(), self.first.central_loss())

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        a, b = self._weights()
        one, other = self.first.cell_masses(boundaries), self.second.cell_masses(boundaries)
        p, q = a * one.p + b * other.p, a * one.q + b * other.q
        return CellMasses(
            p=p,
            q=q,
            p_error=a * one.p_error + b * other.p_error + 4 * UNIT_ROUNDOFF * p,
            q_error=a * one.q_error + b * other.q_error + 4 * UNIT_ROUNDOFF * q,
        )

    def boundary_error(self, largest: Array) -> Array:
        return jnp.maximum(self.first.boundary_error(largest), self.second.boundary_error(largest))

    def infinite_mass(self) -> Array:
        return jnp.zeros_like(as_float64(self.weight))

    def anchors(self) -> tuple[Array, Array]:
        return jnp.asarray(jnp.nan), jnp.asarray(jnp.nan)

    def log_tail(self, order: Array, loss: Array) -> Array:
        return self._mixed(self.first.log_tail(order, loss), self.second.log_tail(order, loss)) + 1e-14

    def log_head(self, loss: Array) -> Array:
        return self._mixed(self.first.log_head(loss), self.second.log_head(loss))

    def _mixed(self, one: Array, other: Array) -> Array:
        a, b = self._weights()
        return jnp.logaddexp(jnp.log(a) + one, jnp.log(b) + other)

    def cumulant(self, order: ArrayLike, nodes: int = QUADRATURE_NODES) -> Array:
        """Returns ``log E_P[exp(order Y)]``; small ones are the weighted sum of what the moments have beyond one."""
        a, b = self._weights()
        one, other = self.first.cumulant(order, nodes), self.second.cumulant(order, nodes)
        excess = a * jnp.expm1(jnp.minimum(one, 1.0)) + b * jnp.expm1(jnp.minimum(other, 1.0))
        return jnp.where(jnp.maximum(one, other) < 1.0, jnp.log1p(excess), self._mixed(one, other))
