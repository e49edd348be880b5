"""A dominating pair that is one of several, by a coin that neither data set moves and that is given away."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import roundoff, scaled
from jaxacct.dominating_pairs.pair import CellMasses, DominatingPair
from jaxacct.precision import as_float64, first_index
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class PublicCoinPair(DominatingPair):
    """Each of the pairs with its probability; the loss is that of the pair that was drawn.

    Its law is the mixture of their laws, so every expectation is a weighted sum. One loop runs over the pairs, so that
    their code is compiled once.

    Attributes:
        pairs: of one class, every leaf with the leading axis (m,); without infinite losses.
        weights (m,): their probabilities, each right to fourteen roundings.
    """

    pairs: DominatingPair
    weights: Float[ArrayLike, " m"]

    def _weights(self) -> Array:
        return as_float64(self.weights)

    def _rounding(self) -> float:
        """Returns a bound on the relative error of a weighted sum: the weights', one for each product, the sum's."""
        return (16 + len(self._weights())) * roundoff()

    def is_valid(self) -> Array:
        w = self._weights()
        proper = jnp.all((w >= 0) & (w <= 1)) & (jnp.abs(jnp.sum(w) - 1) < scaled(1e-12))
        return proper & jnp.all(jax.vmap(lambda pair: pair.is_valid())(self.pairs))

    def loss_range(self) -> tuple[Array, Array]:
        lowest, highest = jax.vmap(lambda pair: pair.loss_range())(self.pairs)
        drawn = self._weights() > 0
        return jnp.min(jnp.where(drawn, lowest, jnp.inf)), jnp.max(jnp.where(drawn, highest, -jnp.inf))

    def supremum(self) -> tuple[Array, Array]:
        lowest, highest = jax.vmap(lambda pair: pair.supremum())(self.pairs)
        drawn = self._weights() > 0
        return jnp.max(jnp.where(drawn, lowest, -jnp.inf)), jnp.max(jnp.where(drawn, highest, -jnp.inf))

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        w = self._weights()
        lower, upper = jax.lax.map(lambda pair: pair.one_run(epsilon), self.pairs)
        rounding = self._rounding()
        return jnp.sum(w * lower) * (1 - rounding), jnp.sum(w * upper) * (1 + rounding)

    def central_loss(self) -> Array:
        w = self._weights()
        heaviest = jnp.arange(len(w)) == first_index(w == jnp.max(w))
        return jnp.sum(jnp.where(heaviest, jax.vmap(lambda pair: pair.central_loss())(self.pairs), 0.0))

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        weighted = jax.lax.map(
            lambda row: jax.tree.map(lambda mass: row[0] * mass, row[1].cell_masses(boundaries)),
            (self._weights(), self.pairs),
        )
        p, q, p_error, q_error = (jnp.sum(masses, axis=0) for masses in weighted)
        rounding = self._rounding()
        return CellMasses(p=p, q=q, p_error=p_error + rounding * p, q_error=q_error + rounding * q)

    def boundary_error(self, largest: Array) -> Array:
        return jnp.max(jax.vmap(lambda pair: pair.boundary_error(largest))(self.pairs))

    def log_tail(self, order: Array, loss: Array) -> Array:
        return self._mixed(jax.lax.map(lambda pair: pair.log_tail(order, loss), self.pairs)) + scaled(1e-14)

    def _mixed(self, logs: Array) -> Array:
        """Returns the log of the weighted sum of exponentials (m, ...); what is never drawn does not count."""
        w = self._weights().reshape(-1, *(1,) * (logs.ndim - 1))
        return jax.nn.logsumexp(jnp.where(w > 0, jnp.log(w) + logs, -jnp.inf), axis=0)

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y)]``; small ones are the weighted sum of what the moments have beyond one."""
        logs = jax.lax.map(lambda pair: pair.cumulant(order), self.pairs)
        w = self._weights().reshape(-1, *(1,) * (logs.ndim - 1))
        excess = jnp.sum(jnp.where(w > 0, w * jnp.expm1(jnp.minimum(logs, 1.0)), 0.0), axis=0)
        near = jnp.max(jnp.where(w > 0, logs, -jnp.inf), axis=0) < 1.0
        return jnp.where(near, jnp.log1p(excess), self._mixed(logs))
