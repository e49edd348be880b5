"""The dominating pair of a batch of fixed size, sampled without replacement, and the law of its privacy loss.

A is the noise around 2, B that around 0, and q the sampling rate. :class:`WithoutReplacementPair` derives the pair,
from Theorem 11 of Zhu, Dong and Wang (2022). :class:`LawWithoutReplacement` gives its characteristic function by panels
of a Gauss-Legendre rule, whose error is bounded here.

With M = (1-q) B + q A the loss is L = log M/B above 0, of density M in x > 1, and -L below, of density B there
(:class:`WithoutReplacementPair`). log A/B = u grows linearly in x, so that M/B = 1 - q + q e^u is analytic for |Im
u| < pi. Tilted by t + iw the two halves are B (M/B)^(1+t+iw) and B (M/B)^-(t+iw). With a = q e^u B/M, at Im u = theta,
|M/B| is at most its value at Re u, and 1 - 4 a (1-a) sin(theta/2)^2 times that, squared; its argument is that of 1 - a
+ a e^(i theta), which grows with a.

The rule of :mod:`.shifted_noise` errs relative to a half's largest density, which its own moment bounds: it does not
fall too fast to the right.

* Laplace noise: the density ends at x = 2 with atoms of twice the density in u. The logarithm's slopes are at most
  k = t a + 1/2 in u, so that the moment is at least the largest density times min(2, 1/k), and an ellipse around a
  panel meets densities larger by that slope where it reaches beyond the ends.
* Gaussian noise, in z = x/s: at x = 1, where a = q, and left of it, the logarithm falls at most at k = (1 + 2tq)/s; at
  that rate densities may be larger there. Its second derivative is at least -c^2 = -(1 + t/s^2). So the moment is
  at least the largest density times the integral of e^(-k z - c^2 z^2/2), which is at least 1/(k + c) (Mills' ratio).
  At Im z = y the modulus of B is e^(y^2/2) times larger.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.dominating_pairs.gaussian_profile import sampled_delta
from jaxacct.dominating_pairs.pair import (
    CellMasses,
    DominatingPair,
    Law,
    Nodes,
    in_float64_only,
    log_excess,
    log_moment,
    reflected,
    tilted,
)
from jaxacct.dominating_pairs.shifted_noise import (
    CELLS,
    LARGEST_POWER,
    THETAS,
    Ellipses,
    PanelLaw,
    ShiftedNoisePair,
    argument,
    log_decay,
    log_shrinkage,
    panels,
    stretches,
)
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import as_float64, log_complement
from jaxacct.numerics.pytrees import register_dataclass

SHIFT = 2.0
"""Distance of A and B, in clipping norms: replacing an example changes a sum of contributions of norm 1 by up to 2."""

MIDDLE = SHIFT / 2
"""Place x at which the loss is 0."""

PANELS = 4
"""Panels of a piece, on either side. Sound for any value, as the rule's error is bounded from their width."""

SCAN = 20
"""Panels of the scan, on either side. Sound for any value: more serve larger orders."""

WIDEST, WIDEST_TURN = 4.0, 4.5
"""Largest width of the scan's panels, in z and in u, which decides the largest order.

For small sampling rates the rule then errs by less than e^-46.
"""


@register_dataclass
@dataclass(frozen=True)
class WithoutReplacementPair(DominatingPair):
    """The law of the loss under replacement, when a fraction of the examples is drawn without replacement.

    With A and B the noise around 2 and around 0, and M = (1-q) B + q A, the mechanism is dominated by H(M || B) above
    epsilon = 0 and by H(A || (1-q) A + q B) below (Zhu, Dong and Wang 2022, Theorem 11). The part of a loss's law above
    0 determines the one curve, the part below 0 the other. So the law is that of log M/B under M above 0, that of the
    second pair below 0, and an atom at 0 of the remaining mass. Reflecting x -> 2 - x turns the second pair into (B,
    M): below 0 the law is that of -log M/B under B, with the Q-mass of M. The remaining mass is the same for P and for
    Q,

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
        """Returns the mass at 0, right to some ulps: that of the noise within 1 of its centre, times 1 - q."""
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
        return sampled_delta(SHIFT / s, q, epsilon) if self.noise == "gaussian" else super().one_run(epsilon)

    def central_loss(self) -> Array:
        _, q = self._fields()
        return jnp.where(q <= 0.5, 0.0, self._above().central_loss())

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
        rounding = 24 * roundoff()
        p, q = above.p + below.q + atom, above.q + below.p + atom
        return CellMasses(
            p=p,
            q=q,
            p_error=above.p_error + below.q_error + rounding * atom + 4 * roundoff() * p,
            q_error=above.q_error + below.p_error + rounding * atom + 4 * roundoff() * q,
        )

    def boundary_error(self, largest: Array) -> Array:
        return self._above().boundary_error(largest)

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y)]``."""
        orders = as_float64(order)
        return jax.vmap(self._cumulant)(orders.reshape(-1)).reshape(orders.shape)

    def _cumulant(self, order: Array) -> Array:
        # The pair is its own mirror image: exchanging P and Q leaves the law as it is.
        _, used = reflected(order)
        pair = self._above()

        def height(x: Array) -> Array:
            loss, log_m, log_b = pair.log_densities(x)
            return jnp.logaddexp(log_m + log_excess(loss, used), log_b + log_excess(-loss, used))

        return log_moment(pair.log_integral(height, used, start=as_float64(SHIFT / 2)), order)

    def law(self) -> Law | None:
        return in_float64_only(LawWithoutReplacement(self))


@dataclass(frozen=True)
class LawWithoutReplacement(PanelLaw):
    """The law of the loss by Gauss-Legendre panels in x > 1, each node of which stands for a loss L and for -L.

    The module's docstring derives its bounds.
    """

    pair: WithoutReplacementPair

    def _is_laplace(self) -> bool:
        return self.pair.noise == "laplace"

    def _rate(self) -> Array:
        """Returns du/dx."""
        s, _ = self.pair._fields()
        return SHIFT / s if self._is_laplace() else SHIFT / s**2

    def largest_order(self) -> Array:
        s, _ = self.pair._fields()
        if self._is_laplace():
            largest = self.pair.loss_range()[1]
            return jnp.where(largest < LARGEST_POWER, LARGEST_POWER / largest, 0.0)
        # SCAN panels of the largest width cover the middle, the noise's reach, and SHIFT for each unit of the order.
        room = SCAN * jnp.minimum(WIDEST * s, WIDEST_TURN / self._rate()) - arithmetic().reach * s - MIDDLE
        return jnp.maximum(room / SHIFT, 0.0)

    def _end(self, order: Array) -> Array:
        """Returns the x where nodes end: densities tilted up to this order are negligible, or 0, beyond."""
        s, _ = self.pair._fields()
        # Beyond 2 (1 + t) the logarithm falls as that of a Gaussian there.
        return jnp.full_like(s, SHIFT) if self._is_laplace() else SHIFT * (1 + order) + arithmetic().reach * s

    def scan(self) -> Nodes:
        return self._nodes(self._end(self.largest_order()), 0, 1, SCAN)

    def window(self, order: Array, scan: Nodes) -> tuple[Array, Array]:
        """Returns the x between which the nodes lie."""
        end = self._end(order)
        return jnp.full_like(end, MIDDLE), end

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        return self._nodes(window[1], index, pieces, PANELS)

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        """Returns the half-width of the panels."""
        return (window[1] - window[0]) / (2 * PANELS * pieces)

    def _nodes(self, end: Array, index: Array | int, pieces: Array | int, count: int) -> Nodes:
        index, width = jnp.asarray(index, end.dtype), (end - MIDDLE) / (count * pieces)
        nodes = _nodes(self._is_laplace(), count, *self.pair._above()._fields(), self.pair._atom(), width, index)
        places = width / 2 * np.arange(len(nodes[0]))  # half a panel apart, as step says
        nothing = jnp.zeros_like(end)
        losses, log_p, log_q = nodes
        return Nodes(losses, log_p, log_q, nothing, nothing, places)

    def _logit(self) -> Array:
        """Returns the log of q e^u over 1 - q in the middle."""
        _, q = self.pair._fields()
        return jnp.log(q) - log_complement(q)

    def ellipses(self, order: Array) -> Ellipses:
        (s, q), end, is_laplace = self.pair._fields(), self._end(order), self._is_laplace()
        # The unit is that of u for Laplace noise, that of z for Gaussian.
        unit, turn = (self._rate(), 1.0) if is_laplace else (1 / s, SHIFT / s)
        # Shares of A in M, at the ends and as far beyond as an ellipse may reach.
        theta, logit = jnp.asarray(THETAS), self._logit()
        low, high = jax.nn.sigmoid(logit - theta), jax.nn.sigmoid(logit + self._rate() * (end - MIDDLE) + theta)
        fall = 0.5 + order * high if is_laplace else (1 + 2 * order * q) / s
        peak = fall[0] if is_laplace else fall + jnp.sqrt(1 + order / s**2)
        heights, costs = theta / turn, -order * log_shrinkage(low, high, theta)
        costs = costs if is_laplace else costs + 0.5 * heights**2
        # The panels' half-widths add up to half of the length.
        return Ellipses(unit, heights, costs, argument(high, theta), fall, jnp.log(unit * (end - MIDDLE) / 2 * peak))

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        (s, q), end, rate, is_laplace = self.pair._fields(), self._end(order), self._rate(), self._is_laplace()
        log_total, error = self.log_total(order, nodes)
        # Finer towards the middle, where the bulk of Gaussian noise is.
        fractions = np.linspace(0.0, 1.0, CELLS + 1) ** (1 if is_laplace else 2)
        x = MIDDLE + (end - MIDDLE) * fractions
        u = rate * (x - MIDDLE)
        share, loss = jax.nn.sigmoid(self._logit() + u), jnp.logaddexp(log_complement(q), jnp.log(q) + u)
        log_b = self.pair._above()._noise.log_density(x, jnp.zeros_like(s), s)
        # Two rows: the mixture's half, where losses are positive, and the base's, with the mirror image of the losses.
        side, powers = jnp.asarray([[1.0], [-1.0]]), jnp.stack([1 + order, -order])[:, None]
        at = log_b[None] + powers * loss[None] - (log_total + jnp.log(share * rate))[None]
        # Slopes of the logarithms: that of B, which falls ever faster; of M/B, the share; of the rate, 1 - share.
        base = jnp.full_like(x, -1 / s) if is_laplace else -x / s**2
        first, last = (powers + 1) * share[None, :-1], (powers + 1) * share[None, 1:]
        steepest = base[None, :-1] + rate * (jnp.maximum(first, last) - 1)
        flattest = base[None, 1:] + rate * (jnp.minimum(first, last) - 1)
        parts = stretches(side * loss[None], at, steepest, flattest, jnp.diff(x)[None])
        # Atoms are the last node of each side, for Laplace noise, and the last of all, at 0.
        half = len(nodes.losses) // 2
        atoms = np.array([half - 1, 2 * half - 1, 2 * half] if is_laplace else [2 * half])
        return log_decay(w, (nodes.losses[atoms], tilted(nodes, order)[atoms]), parts, error)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _nodes(
    is_laplace: bool,
    count: int,
    s: Array,
    locations: Array,
    p: Array,
    q: Array,
    atom: Array,
    width: Array,
    index: Array,
) -> tuple[Array, Array, Array]:
    """Returns losses and logs of P's and Q's masses on ``count`` panels on either side, with the atoms on the first."""
    x, log_weight = panels(jnp.asarray(MIDDLE), width, index, count)
    first = jnp.where(index == 0, 0.0, -jnp.inf)
    if is_laplace:
        x, log_weight = jnp.append(x, SHIFT), jnp.append(log_weight, jnp.log(s) + first)
    losses, log_m, log_b = ShiftedNoisePair(s, locations, p, q, "laplace" if is_laplace else "gaussian").log_densities(
        x
    )
    log_m, log_b, at_zero = log_m + log_weight, log_b + log_weight, (jnp.log(atom) + first)[None]
    # The nodes above 0, their mirror images with P and Q exchanged, and the atom at 0.
    return (
        jnp.concatenate([losses, -losses, jnp.zeros(1)]),
        jnp.concatenate([log_m, log_b, at_zero]),
        jnp.concatenate([log_b, log_m, at_zero]),
    )
