"""The dominating pair of a mechanism on a batch of fixed size, sampled without replacement."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxacct.cumulants import QUADRATURE_NODES
from jaxacct.dominating_pairs.gaussian_profile import sampled_delta
from jaxacct.dominating_pairs.moments import log_excess, log_moment, reflected
from jaxacct.dominating_pairs.one_run import one_run_by_masses
from jaxacct.dominating_pairs.pair import CellMasses
from jaxacct.dominating_pairs.shifted_noise import ShiftedNoisePair
from jaxacct.precision import UNIT_ROUNDOFF, as_float64

SHIFT = 2.0
"""Distance of A and B: replacing an example changes a sum of contributions of norm 1 by up to 2."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WithoutReplacementPair:
    """The law of the loss under replacement, when a fraction of the examples is drawn without replacement.

    With A and B the noise around 2 and around 0, and M = (1-q) B + q A, the mechanism is dominated by H(M || B) above
    epsilon = 0 and by H(A || (1-q) A + q B) below (Zhu, Dong and Wang 2022, Theorem 11). The part of a loss's law above
    0 determines the one curve, the part below 0 the other. So the law is that of log M/B under M above 0, that of the
    second pair below 0, and an atom at 0 of what remains. Reflecting x -> 2 - x turns the second pair into (B, M):
    below 0 the law is that of -log M/B under B, with the Q-mass of M. What remains is the same for P and for Q,

        1 - M(x > 1) - B(x > 1) = (1-q) (1 - 2 B(x > 1)),

    and the pair is its own mirror image.

    Attributes:
        scale (): width of the noise: standard deviation, or Laplace scale, over the clipping norm.
        sampling_rate (): batch size over the number of examples.
        noise: "gaussian" or "laplace"; static.

    >>> pair = WithoutReplacementPair(scale=2.0, sampling_rate=0.5, noise="laplace")
    >>> with jax.enable_x64(True):
    ...     print([round(float(loss), 4) for loss in pair.loss_range()])  # log(1 - q + q e^(2/2))
    [-0.6201, 0.6201]
    """

    scale: ArrayLike
    sampling_rate: ArrayLike
    noise: str = field(default="gaussian", metadata=dict(static=True))

    def _fields(self) -> tuple[Array, Array]:
        return as_float64(self.scale), as_float64(self.sampling_rate)

    def _above(self) -> ShiftedNoisePair:
        """Returns the pair (M, B), whose law is this one's above 0."""
        s, q = self._fields()
        weights = jnp.stack([1 - q, q]), jnp.array([1.0, 0.0])
        return ShiftedNoisePair(s, jnp.array([0.0, SHIFT]), *weights, noise=self.noise)

    def _atom(self) -> Array:
        """Returns the mass at 0, right to some ulps: of the noise within 1 of its centre, times 1 - q."""
        s, q = self._fields()
        within = -jnp.expm1(-1 / s) if self.noise == "laplace" else jax.scipy.special.erf(1 / (s * jnp.sqrt(2.0)))
        return (1 - q) * within

    def is_valid(self) -> Array:
        _, q = self._fields()
        return self._above().is_valid() & (q > 0) & (q <= 1)

    def loss_range(self) -> tuple[Array, Array]:
        _, supremum = self._above().loss_range()
        return -supremum, supremum

    def supremum(self) -> tuple[Array, Array]:
        return self._above().supremum()

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        s, q = self._fields()
        return sampled_delta(SHIFT / s, q, epsilon) if self.noise == "gaussian" else one_run_by_masses(self, epsilon)

    def central_loss(self) -> Array:
        _, q = self._fields()
        return jnp.where(q <= 0.5, 0.0, self._above().central_loss())

    def infinite_mass(self) -> Array:
        return jnp.zeros_like(self._fields()[0])

    def infinite_mass_error(self) -> Array:
        return self.infinite_mass()

    def anchors(self) -> tuple[Array, Array]:
        _, upper = self._above().anchors()  # NaN for Gaussian noise; the lowest atom is -upper, in step with these
        return jnp.zeros_like(upper), upper

    def _edges(self, loss: Array) -> Array:
        """Returns x with log M/B = loss where that is above 0, and exactly 1 elsewhere."""
        return jnp.where(loss > 0, jnp.maximum(self._above()._threshold(jnp.maximum(loss, 0.0)), SHIFT / 2), SHIFT / 2)

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        # Both halves end at x = 1 exactly, so that no mass is lost or counted twice beside the atom.
        above = self._above().masses_between(self._edges(boundaries))
        below = self._above().masses_between(self._edges(-boundaries))
        holds = (boundaries[:-1] < 0) & (boundaries[1:] >= 0)
        atom = jnp.where(holds, self._atom(), 0.0)
        rounding = 24 * UNIT_ROUNDOFF
        p, q = above.p + below.q + atom, above.q + below.p + atom
        return CellMasses(
            p=p,
            q=q,
            p_error=above.p_error + below.q_error + rounding * atom + 4 * UNIT_ROUNDOFF * p,
            q_error=above.q_error + below.p_error + rounding * atom + 4 * UNIT_ROUNDOFF * q,
        )

    def boundary_error(self, largest: Array) -> Array:
        return self._above().boundary_error(largest)

    def log_tail(self, order: Array, loss: Array) -> Array:
        # Below 0 the tilted mass between the loss and 0 is at most 1.
        above = self._above().log_tail(order, jnp.maximum(loss, 0.0))
        return jnp.where(loss >= 0, above, jnp.logaddexp(above, 0.0) + 1e-14)

    def log_head(self, loss: Array) -> Array:
        # Below 0: the B-mass of what is above -loss.
        above = self._above().log_head(jnp.maximum(loss, 0.0))
        below = self._reverse().log_head(jnp.minimum(loss, 0.0))
        return jnp.where(loss >= 0, above, below)

    def _reverse(self) -> ShiftedNoisePair:
        """Returns the mirror image of (B, M), whose law is this one's below 0."""
        s, q = self._fields()
        weights = jnp.array([1.0, 0.0]), jnp.stack([1 - q, q])
        return ShiftedNoisePair(s, jnp.array([0.0, -SHIFT]), *weights, noise=self.noise)

    def cumulant(self, order: ArrayLike, nodes: int = QUADRATURE_NODES) -> Array:
        """Returns ``log E_P[exp(order Y)]``; ``nodes`` is not used, their number follows from the integrand."""
        orders = as_float64(order)
        return jax.vmap(self._cumulant)(orders.reshape(-1)).reshape(orders.shape)

    def _cumulant(self, order: Array) -> Array:
        # The pair is its own mirror image: exchanging P and Q leaves the law as it is.
        _, used = reflected(order)
        pair = self._above()

        def height(x: Array) -> Array:
            loss, log_m, log_b = pair.log_densities(x)
            return jnp.logaddexp(log_m + log_excess(loss, used), log_b + log_excess(-loss, used))

        return log_moment(pair.integrate(height, used, start=as_float64(SHIFT / 2)), order)
