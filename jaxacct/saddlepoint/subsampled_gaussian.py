"""The law of the subsampled Gaussian's loss: a trapezoid rule in the noise, which converges geometrically.

With z = x/s standard normal, r = 1 - q + q e^u and u = (z - 1/(2s))/s, the loss is log r ("remove") or -log r ("add"),
and a moment of order t + iw is the integral of the normal density times r^a, a = t + 1 + iw or -(t + iw). In the strip
|Im z| < pi s this is analytic, for r vanishes on its edge only. On the line Im z = b the argument of r lies between 0
and theta = b/s, and |r| between r(Re z) cos(theta/2) and r(Re z). Two bounds follow.

*Quadrature.* A trapezoid rule of spacing h errs by at most 2/(e^(2 pi b/h) - 1) times the integral of the modulus over
the lines Im z = +-b (Trefethen and Weideman 2014, "The exponentially convergent trapezoidal rule", Theorem 5.1), which
is at most e^(b^2/2 + w theta) times the moment of order t, and for "add" times cos(theta/2)^-t more.

*Decay.* Moved to Im z = b the integral of order t + iw is at most the sum of |r(z + ib)|^a-weights with e^(-w arg r)
and e^(b^2/2): a bound that falls with w, so it holds from w on. b = w times the deviation of the loss is about best; a
linear loss then gives the Gaussian's own e^(-w^2 sigma^2/2).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.cumulants import log_ratio
from jaxacct.dominating_pairs import SubsampledGaussianPair
from jaxacct.precision import as_real
from jaxacct.saddlepoint.laws import Nodes, law_of, precision

NODES = 256
"""Nodes of the scan, and of each piece of the rule for complex orders, which must resolve their oscillation."""

PIECES = 12
"""Most pieces."""

FINEST, COARSEST = 0.3, 0.5
"""Largest spacing of the scan in z, ``min(FINEST s, COARSEST)``: it errs by e^(-2 pi pi s / (0.3 s)) = 3e-29.

For q = 1 it is COARSEST whatever s, for all is a normal density there, for which the rule errs by 2 e^(-2 pi^2 / 0.25),
1e-34. For "add" it is half as much, as high orders cost more there, but not below ``LEAST_ADD``, which leaves room for
some of them.
"""

LEAST_ADD = 0.09

BEYOND = 14.0
"""Nats below the cut at which nodes end: what k steps leave out is k times as much as what one does."""

STEEPEST = 1.5
"""Largest theta of the decay's bound: beyond a right angle the argument of r gains nothing where r is near 1.

Up to there arg(1 - p + p e^(i theta)) >= p sin(theta): with x = p (1 - cos(theta)) and y = p sin(theta) it is the arc
tangent of y/(1-x). At p = 1 that is theta >= sin(theta); tests/saddlepoint/test_laws.py asks for it on a grid.
"""

ANGLES = np.array([0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0])
"""Values of theta that the quadrature's bound may use."""

WIDE_ANGLES = np.concatenate([ANGLES, [4.5, 7.0, 11.0, 17.0, 26.0, 40.0]])
"""For q = 1, where r is an exponential and vanishes nowhere."""


@dataclass(frozen=True)
class LawOfSubsampledGaussian:
    """See the module."""

    pair: SubsampledGaussianPair

    def _fields(self) -> tuple[Array, Array, Array]:
        pair = self.pair
        return as_real(pair.noise_multiplier), as_real(pair.sampling_rate), jnp.asarray(pair.removes)

    def _room(self) -> tuple[Array, Array]:
        """Returns the length of the scan beyond the reach of two normal laws, and how far each order moves the law.

        "remove": a tilted law lies between normal ones around 0 and (order + 1)/s. "add": its density, log-concave, is
        steepest by order/s times the share of q e^u in r, which is at most q where z < 0.
        """
        s, q, removes = self._fields()
        spacing = jnp.minimum(FINEST * s, COARSEST)
        finer = jnp.minimum(jnp.maximum(spacing / 2, LEAST_ADD), spacing)
        spacing = jnp.where(q == 1, COARSEST, jnp.where(removes, spacing, finer))
        return jnp.maximum(NODES * spacing - 2 * precision().reach, 0.0), jnp.where(removes, 1.0, q) / s

    def largest_order(self) -> Array:
        room, each = self._room()
        return jnp.maximum(room / each - 1, 0.0)

    def scan(self) -> Nodes:
        _, _, removes = self._fields()
        reach, (far, _) = precision().reach, self._room()
        return self._nodes(jnp.where(removes, -reach, -reach - far), (2 * reach + far) / NODES)

    def window(self, order: Array, scan: Nodes) -> tuple[Array, Array]:
        """Returns the z between which the law tilted by ``order`` has more than e^-(cut + BEYOND) of its maximum."""
        logs = scan.log_p + order * scan.losses
        counts = logs > jnp.max(logs) - precision().cut - BEYOND
        z = scan.places
        apart = z[1] - z[0]
        return jnp.min(jnp.where(counts, z, jnp.inf)) - apart, jnp.max(jnp.where(counts, z, -jnp.inf)) + apart

    def pieces(self, order: Array, w: Array, window: tuple[Array, Array]) -> Array:
        s, q, _ = self._fields()

        def widest(angles: np.ndarray, secants: Array | float) -> Array:
            theta = jnp.asarray(angles, s.dtype)
            gain = precision().cut + BEYOND + 0.5 * (theta * s) ** 2 + w * theta + order * secants
            return jnp.max(2 * jnp.pi * theta * s / gain)

        step = jnp.where(q == 1, widest(WIDE_ANGLES, 0.0), widest(ANGLES, self._secants()))
        return jnp.clip(jnp.ceil((window[1] - window[0]) / (step * NODES)), 1, PIECES).astype(jnp.int32)

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        step = self.step(window, pieces)
        return self._nodes(window[0] + step * NODES * index, step)

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        return (window[1] - window[0]) / (NODES * pieces)

    def _nodes(self, low: Array, step: Array) -> Nodes:
        s, q, removes = self._fields()
        z = low + step * (jnp.arange(NODES) + 0.5).astype(s.dtype)
        log_r = log_ratio(s, q, z)[0]
        base = -0.5 * z**2 + jnp.log(step) - 0.5 * jnp.log(2 * jnp.pi).astype(s.dtype)
        mixture, nothing = base + log_r, jnp.zeros_like(s)
        return Nodes(
            losses=jnp.where(removes, log_r, -log_r),
            log_p=jnp.where(removes, mixture, base),
            log_q=jnp.where(removes, base, mixture),
            infinite=nothing,
            missing=nothing,
            places=z,
        )

    def _secants(self) -> Array:
        """Returns log sec(theta/2), what the line costs a negative power of r, for each of ANGLES."""
        s, _, removes = self._fields()
        return jnp.where(removes, 0.0, jnp.asarray(-np.log(np.cos(ANGLES / 2)), s.dtype))

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        s, q, removes = self._fields()
        logs = nodes.log_p + order * nodes.losses
        weights = jnp.exp(logs - jnp.max(logs))
        weights = weights / jnp.sum(weights)
        log_r = jnp.where(removes, nodes.losses, -nodes.losses)
        share = jnp.exp(jnp.minimum((nodes.places - 0.5 / s) / s + jnp.log(q) - log_r, 0.0))
        rest = jnp.where(q == 1, 0.0, 1 - share)
        # The loss rises by share/s in z; its mean square counts the bulk, and not the rare jumps, as a deviation would.
        slopes = jnp.sqrt(jnp.sum(weights * share**2)), jnp.sum(jnp.where(weights == jnp.max(weights), share, 0.0))

        def bound(slope: Array) -> Array:
            b = jnp.where(q == 1, w * slope / s, jnp.minimum(w * slope / s, STEEPEST * s))
            theta = b / s
            # The argument of r/|r(Re z)| = 1 - share + share e^(i theta), and the logarithm of its modulus, by bounds.
            angle = jnp.where(q == 1, theta, share * jnp.sin(theta))
            shrink = 4 * share * rest * jnp.sin(theta / 2) ** 2
            modulus = 0.5 * jnp.where(removes, -(order + 1) * shrink, order * shrink / (1 - shrink))
            exponents = modulus - w * angle
            return 0.5 * b**2 + jnp.log(jnp.sum(weights * jnp.exp(exponents)))

        found = jnp.fmin(bound(slopes[0]), bound(slopes[1]))
        return jnp.where(jnp.isnan(found), 0.0, jnp.minimum(found, 0.0))

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        s, q, _ = self._fields()

        def gained(angles: np.ndarray) -> Array:
            theta = jnp.asarray(angles, s.dtype)
            return 2 * jnp.pi * theta * s / step - 0.5 * (theta * s) ** 2 - w * theta

        gain = jnp.where(q == 1, jnp.max(gained(WIDE_ANGLES)), jnp.max(gained(ANGLES) - order * self._secants()))
        return jnp.logaddexp(jnp.log(2.0) - gain, -(precision().cut + BEYOND - 4.0))


@law_of.register
def _(pair: SubsampledGaussianPair) -> LawOfSubsampledGaussian:
    return LawOfSubsampledGaussian(pair)
