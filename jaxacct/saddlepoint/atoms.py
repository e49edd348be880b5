"""The law of finitely many atoms: every moment is a finite sum.

Alone its characteristic function does not fade, for a lattice of losses not at all; together with a smooth law it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.dominating_pairs import FinitePair
from jaxacct.saddlepoint.laws import Nodes, law_of, precision


@dataclass(frozen=True)
class LawOfAtoms:
    """See the module."""

    pair: FinitePair

    def largest_order(self) -> Array:
        """Returns the order for which e^(order Y) stays a number."""
        return precision().largest_exponent / jnp.maximum(jnp.max(jnp.abs(self.scan().losses)), 1e-3)

    def scan(self) -> Nodes:
        p, q, losses, _ = self.pair._atoms()
        all_p, all_q, every = self.pair._all()
        nothing = jnp.zeros_like(losses)
        return Nodes(
            losses=losses,
            log_p=jnp.log(p),
            log_q=jnp.log(q),
            infinite=jnp.sum(jnp.where(every == jnp.inf, all_p, 0.0)),
            missing=jnp.sum(jnp.where(every == -jnp.inf, all_q, 0.0)),
            places=nothing,
        )

    def window(self, order: Array, scan: Nodes) -> tuple[Array, Array]:
        return jnp.zeros_like(order), jnp.zeros_like(order)

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        return jnp.int32(1)

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        return self.scan()

    def step(self, window: tuple[Array, Array], pieces: Array) -> Array:
        return window[0]

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        return jnp.zeros_like(w)

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        # The probabilities themselves are right to this.
        error = jnp.max(jnp.asarray(self.pair.rounding, order.dtype)) + precision().roundoff
        return jnp.log(2 * error) + jnp.zeros_like(w)


@law_of.register
def _(pair: FinitePair) -> LawOfAtoms:
    return LawOfAtoms(pair)
