"""Dominating pairs of finitely many outcomes, whose privacy losses are atoms.

No density is integrated: every mass is a sum of given numbers. What the pair claims of its rounding is therefore a
count of the additions, and of what the caller says of the numbers themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.arithmetic import arithmetic, roundoff, scaled
from jaxacct.dominating_pairs.law import Law, Nodes, moments
from jaxacct.dominating_pairs.moments import reflected
from jaxacct.dominating_pairs.pair import CellMasses, DominatingPair
from jaxacct.dominating_pairs.surplus import surplus
from jaxacct.precision import TINY, as_real, first_index
from jaxacct.pytrees import register_dataclass

LOSS_UNITS = 8
"""Units of roundoff by which a computed loss errs relative to itself: that of a quotient, which tells 3.9-fold in a
logarithm above 0.26, or of a difference and a quotient, which tell 1.2-fold in a log1p from -1/4 up; and that of log or
log1p. tests/dominating_pairs/test_finite.py asks for three quarters of it."""

SUM_TOLERANCE = 1e-12
"""By how much masses may miss a sum of one in float64, besides two roundings for each of them."""

LARGEST_LOG = 709.0
"""Largest |log p| of a normal float64 p <= 1."""


@register_dataclass
@dataclass(frozen=True)
class FinitePair(DominatingPair):
    """P- and Q-probabilities of m outcomes, in any order.

    An outcome with q = 0 < p has an infinite loss and belongs to no cell; neither does one with p = 0. In float64 the
    numbers given are the truth, up to ``rounding``. Where they miss a sum of one by rounding, cumulants take that for
    the rounding of a sum of one.

    Attributes:
        p (m,), q (m,): probabilities; normal float64 numbers or 0, since XLA takes subnormal ones for 0.
        losses (m,): ``log p/q`` where it is known better than by dividing, right to three ulps; infinite ones too.
        rounding (m,) or (): bound on the relative error of p and of q.

    >>> pair = FinitePair(p=[0.75, 0.25], q=[0.25, 0.75])  # randomized response with epsilon = log 3
    >>> with jax.enable_x64(True):
    ...     print([round(float(loss), 4) for loss in pair.loss_range()])
    [-1.0986, 1.0986]
    """

    p: ArrayLike
    q: ArrayLike
    losses: ArrayLike | None = None
    rounding: ArrayLike = 0.0

    def _atoms(self) -> tuple[Array, Array, Array, Array]:
        """Returns p, q, the losses (0 where infinite), and which outcomes have a finite loss."""
        p, q, losses = as_real(self.p), as_real(self.q), self._losses()
        finite = jnp.isfinite(losses)
        return jnp.where(finite, p, 0.0), jnp.where(finite, q, 0.0), jnp.where(finite, losses, 0.0), finite

    def _losses(self) -> Array:
        p, q = as_real(self.p), as_real(self.q)
        if self.losses is not None:
            return as_real(self.losses)
        shared = (p > 0) & (q > 0)
        above, below = jnp.where(shared, p, 1.0), jnp.where(shared, q, 1.0)
        # Near one the quotient's rounding would be all of its logarithm; a difference rounds relative to itself.
        # No lower: XLA's log1p was measured off by 240 units near -0.41. From 0.3 on 3.9 units of a quotient's and four
        # of the logarithm's are no more than LOSS_UNITS.
        excess = (above - below) / below
        log_ratio = jnp.where((excess > -0.25) & (excess < 0.3), jnp.log1p(excess), jnp.log(above / below))
        return jnp.where(shared, log_ratio, jnp.where(p > 0, jnp.inf, -jnp.inf))

    def is_valid(self) -> Array:
        p, q = as_real(self.p), as_real(self.q)
        allowed = scaled(SUM_TOLERANCE) + 2 * roundoff() * p.shape[-1]
        is_pair = jnp.all((p >= 0) & (p <= 1) & (q >= 0) & (q <= 1)) & ~jnp.any(jnp.isnan(self._losses()))
        return is_pair & (jnp.abs(jnp.sum(p) - 1) <= allowed) & (jnp.abs(jnp.sum(q) - 1) <= allowed)

    def loss_range(self) -> tuple[Array, Array]:
        p, _, losses, _ = self._atoms()
        infimum = jnp.min(jnp.where(p > 0, losses, jnp.inf))
        supremum = jnp.max(jnp.where(p > 0, losses, -jnp.inf))
        # Nothing finite: any range will do, and 0 keeps NaN out of what is computed from it.
        some = infimum <= supremum
        return jnp.where(some, infimum, 0.0), jnp.where(some, supremum, 0.0)

    def central_loss(self) -> Array:
        """Returns a median of the finite losses under P."""
        p, _, losses, _ = self._atoms()
        order = jnp.argsort(jnp.where(p > 0, losses, jnp.inf))
        below = jnp.cumsum(p[order])
        return losses[order][jnp.minimum(first_index(below >= below[-1] / 2), p.shape[-1] - 1)]

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        p, q, losses, finite = self._atoms()
        cells = boundaries.shape[0] - 1
        rounding = jnp.broadcast_to(as_real(self.rounding), p.shape)
        # Cell i is slot i + 1; the first and the last slot take what lies outside.
        slot = jnp.where(finite, jnp.searchsorted(boundaries, losses), cells + 1)
        rows = jnp.stack([p, q, rounding * p, rounding * q, jnp.where(finite, 1.0, 0.0)], axis=-1)
        sums = jnp.zeros((cells + 2, 5), jnp.float64).at[slot].add(rows)[1:-1]
        p_mass, q_mass, p_given, q_given, count = sums.T
        # A sum of n terms of one sign rounds n - 1 times; each term may have been flushed to zero.
        additions = roundoff() * jnp.maximum(count - 1, 0.0)
        growth = 1 + 2 * roundoff() * (count + 2)
        return CellMasses(
            p=p_mass,
            q=q_mass,
            p_error=growth * (p_given + additions * p_mass) + 2 * TINY * count,
            q_error=growth * (q_given + additions * q_mass) + 2 * TINY * count,
        )

    def boundary_error(self, largest: Array) -> Array:
        return LOSS_UNITS * roundoff() * jnp.abs(largest)

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        """Returns bounds on the sum over finite outcomes of (p - e^epsilon q)+, each known to its own rounding."""
        p, q, _, finite = self._atoms()
        value, rounding = surplus(p, q, epsilon)
        u, shared = roundoff(), finite & (p > 0)
        rounding = rounding + as_real(self.rounding) * (p + jnp.exp(epsilon) * q) * (1 + 16 * u)
        # Where e^eps q is 0 times infinity nothing is known of what Q takes off.
        known = ~jnp.isnan(value + rounding)
        most = jnp.where(known, value + rounding * (1 + 4 * u), p)
        least = jnp.where(known, value - rounding * (1 + 4 * u), 0.0)
        lower, upper = jnp.sum(jnp.where(shared[None], jnp.maximum(jnp.stack([least, most]), 0.0), 0.0), axis=1)
        summed = 2 * u * p.shape[-1]
        return lower * (1 - summed), jnp.minimum(upper * (1 + summed), 1.0)

    def infinite_mass(self) -> Array:
        return jnp.minimum(jnp.sum(jnp.where(self._losses() == jnp.inf, as_real(self.p), 0.0)), 1.0)

    def missing_mass(self) -> Array:
        """Returns Q's mass where P has none."""
        return jnp.sum(jnp.where(self._losses() == -jnp.inf, as_real(self.q), 0.0))

    def infinite_mass_error(self) -> Array:
        infinite = (self._losses() == jnp.inf) & (as_real(self.p) > 0)
        given = jnp.max(jnp.where(infinite, as_real(self.rounding), 0.0))
        # A sum of n terms rounds n - 1 times; one that is given is itself.
        return given + 2 * roundoff() * jnp.maximum(jnp.sum(jnp.where(infinite, 1.0, 0.0)) - 1, 0.0)

    def anchors(self) -> tuple[Array, Array]:
        """Returns P's heaviest loss and the heavier of its two neighbours, the lower one first.

        So both losses of a pair with two, and two neighbours of an arithmetic progression. The upper one is NaN where
        there is a single loss, both where there is none.
        """
        p, _, losses, _ = self._atoms()
        has_mass = p > 0
        size = p.shape[-1]
        first = losses[jnp.minimum(first_index(has_mass & (p == jnp.max(p))), size - 1)]
        # Losses that differ by their rounding are one loss.
        same = 2 * LOSS_UNITS * roundoff() * jnp.abs(first)
        below = jnp.max(jnp.where(has_mass & (losses < first - same), losses, -jnp.inf))
        above = jnp.min(jnp.where(has_mass & (losses > first + same), losses, jnp.inf))

        def mass_at(loss: Array) -> Array:
            near = jnp.abs(losses - loss) <= 2 * LOSS_UNITS * roundoff() * jnp.abs(loss)
            return jnp.where(jnp.isfinite(loss), jnp.sum(jnp.where(near, p, 0.0)), -1.0)

        goes_up = mass_at(above) >= mass_at(below)
        single = jnp.isinf(below) & jnp.isinf(above)
        low = jnp.where(goes_up, first, below)
        high = jnp.where(goes_up, above, first)
        some = jnp.any(has_mass)
        return (
            jnp.where(some, jnp.where(single, first, low), jnp.nan),
            jnp.where(some & ~single, high, jnp.nan),
        )

    def log_tail(self, order: Array, loss: Array) -> Array:
        p, _, losses, finite = self._atoms()
        error = jnp.max(jnp.broadcast_to(as_real(self.rounding), p.shape))
        # Upwards, where an arithmetic has room for less than float64's smallest number.
        log_p = jnp.where(p > 0, jnp.maximum(jnp.log(p), -LARGEST_LOG), -jnp.inf)
        largest = jnp.max(jnp.abs(losses))

        def bound(order: Array, loss: Array) -> Array:
            beyond = finite & (losses > loss - LOSS_UNITS * roundoff() * jnp.abs(loss))
            # Without the order as well: the tilted mass is the smaller one where the finite losses are negative.
            of_both = [jnp.where(beyond, logs, -jnp.inf) for logs in (log_p + order * losses, log_p)]
            log_mass = jnp.max(jax.nn.logsumexp(jnp.stack(of_both), axis=1))
            # Each log p is at most 709; the losses, the products, the exponentials and the sum round a few times each.
            rounds = p.shape[-1] + 8 * (LARGEST_LOG + jnp.abs(order) * largest) + 16 * jnp.abs(order) * largest
            return log_mass + roundoff() * rounds + 2 * error

        return jnp.vectorize(bound)(order, loss)

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y); Y < inf]``, a sum over all atoms, for any order."""
        scan = self.law().scan()
        back = Nodes(-scan.losses, scan.log_q, scan.log_p, scan.missing, scan.infinite, scan.places)

        def log_moment(order: Array) -> Array:
            exchange, used = reflected(order)
            nodes = jax.tree.map(lambda ahead, back: jnp.where(exchange, back, ahead), scan, back)
            return moments(nodes, used).value

        return jnp.vectorize(log_moment)(as_real(order))

    def law(self) -> LawOfAtoms:
        return LawOfAtoms(self)


@dataclass(frozen=True)
class LawOfAtoms(Law):
    """Every moment is a finite sum.

    Alone its characteristic function does not fade, for a lattice of losses not at all; together with a smooth law it
    does.
    """

    recurring: ClassVar[float] = 1.0

    pair: FinitePair

    def largest_order(self) -> Array:
        """Returns the order for which e^(order Y) stays a number."""
        return arithmetic().largest_exponent / jnp.maximum(jnp.max(jnp.abs(self.scan().losses)), 1e-3)

    def scan(self) -> Nodes:
        p, q, losses, _ = self.pair._atoms()
        nothing = jnp.zeros_like(losses)
        return Nodes(losses, jnp.log(p), jnp.log(q), self.pair.infinite_mass(), self.pair.missing_mass(), nothing)

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        # The probabilities themselves are right to this.
        error = jnp.max(jnp.asarray(self.pair.rounding, order.dtype)) + arithmetic().roundoff
        return jnp.log(2 * error) + jnp.zeros_like(w)
