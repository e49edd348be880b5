"""Batches of a fixed size, drawn without replacement or with it: the pairs, the law of the loss, and the mechanisms.

In reading order: the pair without replacement, its law, and the mechanisms with Gaussian or Laplace noise; then draws
with replacement (:class:`GaussianWithReplacement`), in which an example may be several times.

*Without replacement.* A is the noise around 2, B that around 0, and q the sampling rate.
:class:`WithoutReplacementPair` derives the pair, from Theorem 11 of Zhu, Dong and Wang (2022).
:class:`LawWithoutReplacement` gives its characteristic function by panels of a Gauss-Legendre rule, whose error is
bounded here.

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

import decimal
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.mechanisms.atoms import Atoms, atoms_of_cells, short
from jaxacct.mechanisms.finite import FinitePair, seen_where_sampled
from jaxacct.mechanisms.gaussian import SampledGaussian
from jaxacct.mechanisms.laplace import SampledLaplace
from jaxacct.mechanisms.mechanism import Mechanism, Relation, SampledNoise, directions
from jaxacct.mechanisms.normal import sampled_delta
from jaxacct.mechanisms.pair import (
    CELLS,
    LARGEST_POWER,
    THETAS,
    CellMasses,
    DominatingPair,
    Ellipses,
    Law,
    Nodes,
    PanelLaw,
    argument,
    in_float64_only,
    log_decay,
    log_excess,
    log_moment,
    log_shrinkage,
    panel_nodes,
    reflect,
    tilted_shares,
)
from jaxacct.mechanisms.shifted_noise import ShiftedNoisePair
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import (
    UNIT_ROUNDOFF,
    as_float64,
    log_complement,
)
from jaxacct.numerics.pytrees import register_dataclass, takes_python_values
from jaxacct.numerics.root_search import bisect

SHIFT = 2.0
"""Distance of A and B, in clipping norms: replacing an example changes a sum of contributions of norm 1 by up to 2."""

MIDDLE = SHIFT / 2
"""Place x at which the loss is 0."""


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

    def _pair_above(self) -> ShiftedNoisePair:
        """Returns the pair (M, B), whose law is this one's above 0."""
        s, q = self._fields()
        weights = jnp.stack([1 - q, q]), jnp.array([1.0, 0.0])
        return ShiftedNoisePair(s, jnp.array([0.0, SHIFT]), *weights, noise=self.noise)

    def _atom(self) -> Array:
        """Returns the mass at 0, right to some ulps: that of the noise within 1 of its centre, times 1 - q."""
        s, q = self._fields()
        central_mass = -jnp.expm1(-1 / s) if self.noise == "laplace" else jax.scipy.special.erf(1 / (s * jnp.sqrt(2.0)))
        return (1 - q) * central_mass

    def is_valid(self) -> Array:
        _, q = self._fields()
        return self._pair_above().is_valid() & (q > 0) & (q <= 1)

    def loss_range(self) -> tuple[Array, Array]:
        _, supremum = self._pair_above().loss_range()
        return -supremum, supremum

    def supremum(self) -> tuple[Array, Array]:
        return self._pair_above().supremum()

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        s, q = self._fields()
        return sampled_delta(SHIFT / s, q, epsilon) if self.noise == "gaussian" else super().one_run(epsilon)

    def central_loss(self) -> Array:
        _, q = self._fields()
        return jnp.where(q <= 0.5, 0.0, self._pair_above().central_loss())

    def _edges(self, loss: Array) -> Array:
        """Returns x with log M/B = loss where that is above 0, and exactly 1 elsewhere."""
        return jnp.where(loss > 0, jnp.maximum(self._pair_above()._threshold(jnp.maximum(loss, 0.0)), MIDDLE), MIDDLE)

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        # Both halves end at x = 1 exactly, so that beside the atom each mass counts once.
        above = self._pair_above().masses_between(self._edges(boundaries))
        below = self._pair_above().masses_between(self._edges(-boundaries))
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

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns the laws from cells that are equal in the noise on either side of the atom at 0."""
        pair, (s, _) = self._pair_above(), self._fields()
        outwards, inwards = pair._noise.reaches(s, nats)
        first, count = jnp.maximum(SHIFT - short(inwards), MIDDLE), cells // 2 - 1
        step = short((SHIFT + outwards - first) / (count - 1))
        # The last place is that of the largest loss of Laplace noise.
        places = first + step * jnp.asarray(np.arange(count - 1.0), s.dtype)
        last = SHIFT if self.noise == "laplace" else first + step * (count - 1)
        x = jnp.concatenate([jnp.full(1, MIDDLE, s.dtype), jnp.append(jnp.minimum(places, last), last)])
        following = jnp.append(x[1:], jnp.inf)
        rows = jnp.stack(pair.masses_of(x, following))
        losses, errors = pair.losses_at(jnp.append(x, jnp.inf), MIDDLE, x[-1])
        losses, errors = losses.at[0].set(0.0), errors.at[0].set(0.0)
        rounding = 24 * roundoff()
        atom = self._atom() * jnp.asarray([1.0, rounding, 1.0, rounding])
        mirrored = rows[jnp.array([2, 3, 0, 1]), ::-1]
        p, p_error, q, q_error = jnp.concatenate([mirrored, atom[:, None], rows], 1)
        edges, doubts = jnp.concatenate([-losses[::-1], losses]), jnp.concatenate([errors[::-1], errors])
        return atoms_of_cells(edges, p, p_error, q, q_error, doubts, valid=self.is_valid())

    def boundary_error(self, largest: Array) -> Array:
        return self._pair_above().boundary_error(largest)

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y)]``."""
        orders = as_float64(order)
        return jax.vmap(self._cumulant)(orders.reshape(-1)).reshape(orders.shape)

    def _cumulant(self, order: Array) -> Array:
        # The pair is its own mirror image: exchanging P and Q leaves the law as it is.
        _, used = reflect(order)
        pair = self._pair_above()

        def height(x: Array) -> Array:
            loss, log_m, log_b = pair.log_densities(x)
            return jnp.logaddexp(log_m + log_excess(loss, used), log_b + log_excess(-loss, used))

        return log_moment(pair.log_integral(height, used, start=as_float64(MIDDLE)), order)

    def law(self) -> Law | None:
        return in_float64_only(LawWithoutReplacement(self))


@dataclass(frozen=True)
class LawWithoutReplacement(PanelLaw):
    """The law of the loss by Gauss-Legendre panels in x > 1, each node of which stands for a loss L and for -L.

    The module's docstring derives its bounds.
    """

    pair: WithoutReplacementPair

    # Panels of the scan and of a piece, on either side. Any number is sound, as the rule's error is bounded from
    # their width; more serve larger orders.
    panels_of_scan, panels_of_piece = 20, 4

    def _is_laplace(self) -> bool:
        return self.pair.noise == "laplace"

    def _rate(self) -> Array:
        """Returns du/dx."""
        s, _ = self.pair._fields()
        return SHIFT / s if self._is_laplace() else SHIFT / s**2

    def largest_order(self) -> Array:
        # Largest width of the scan's panels, in z and in u, which decides the largest order. For small sampling rates
        # the rule then errs by less than e^-46.
        widest, widest_turn = 4.0, 4.5
        s, _ = self.pair._fields()
        if self._is_laplace():
            largest = self.pair.loss_range()[1]
            return jnp.where(largest < LARGEST_POWER, LARGEST_POWER / largest, 0.0)
        # The scan's panels, of the largest width, cover the middle, the noise's reach, and SHIFT for each unit of the
        # order.
        covered = self.panels_of_scan * jnp.minimum(widest * s, widest_turn / self._rate())
        room = covered - arithmetic().reach * s - MIDDLE
        return jnp.maximum(room / SHIFT, 0.0)

    def _end(self, order: Array) -> Array:
        """Returns the x where nodes end: densities tilted up to this order are negligible, or 0, beyond."""
        s, _ = self.pair._fields()
        # Beyond 2 (1 + t) the logarithm falls as that of a Gaussian there.
        return jnp.full_like(s, SHIFT) if self._is_laplace() else SHIFT * (1 + order) + arithmetic().reach * s

    def scan(self) -> Nodes:
        return self._panel_nodes(self._end(self.largest_order()), 0, 1, self.panels_of_scan)

    def window(self, order: Array, scan: Nodes) -> tuple[Array, Array]:
        """Returns the x between which the nodes lie."""
        end = self._end(order)
        return jnp.full_like(end, MIDDLE), end

    def piece(self, window: tuple[Array, Array], index: Array | int, pieces: Array | int) -> Nodes:
        return self._panel_nodes(window[1], index, pieces, self.panels_of_piece)

    def step(self, window: tuple[Array, Array], pieces: Array | int) -> Array:
        """Returns the half-width of the panels."""
        return (window[1] - window[0]) / (2 * self.panels_of_piece * pieces)

    def _panel_nodes(self, end: Array, index: Array | int, pieces: Array | int, count: int) -> Nodes:
        index, width = jnp.asarray(index, end.dtype), (end - MIDDLE) / (count * pieces)
        nodes = _panel_nodes(
            self._is_laplace(), count, *self.pair._pair_above()._fields(), self.pair._atom(), width, index
        )
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
        log_b = self.pair._pair_above()._noise.log_density(x, jnp.zeros_like(s), s)
        # Two rows: the mixture's half, where losses are positive, and the base's, with the mirror image of the losses.
        side, powers = jnp.asarray([[1.0], [-1.0]]), jnp.stack([1 + order, -order])[:, None]
        at = log_b[None] + powers * loss[None] - (log_total + jnp.log(share * rate))[None]
        # Slopes of the logarithms: that of B, which falls ever faster; of M/B, the share; of the rate, 1 - share.
        base = jnp.full_like(x, -1 / s) if is_laplace else -x / s**2
        first, last = (powers + 1) * share[None, :-1], (powers + 1) * share[None, 1:]
        steepest = base[None, :-1] + rate * (jnp.maximum(first, last) - 1)
        flattest = base[None, 1:] + rate * (jnp.minimum(first, last) - 1)
        # Atoms are the last node of each side, for Laplace noise, and the last of all, at 0.
        half = len(nodes.losses) // 2
        atoms = np.array([half - 1, 2 * half - 1, 2 * half] if is_laplace else [2 * half])
        held = nodes.losses[atoms], tilted_shares(nodes, order)[atoms]
        return log_decay(w, held, side * loss[None], at, steepest, flattest, jnp.diff(x)[None], error)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _panel_nodes(
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
    x, log_weight = panel_nodes(jnp.asarray(MIDDLE), width, index, count)
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


# ----------------------------------------------------------------------------------------------------
# Batches of fixed size, sampled without replacement
# ----------------------------------------------------------------------------------------------------


class WithoutReplacement(SampledNoise):
    """The base of both kinds of noise on a batch of fixed size."""

    noise: ClassVar[str]

    relations: ClassVar[tuple[Relation, ...]] = ("replace", "zero_out")

    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        scale, rate = jax.tree.leaves(self)
        return (WithoutReplacementPair(scale, rate, noise=self.noise),)

    def noiseless_pairs(self, relation: Relation) -> tuple[DominatingPair, ...]:
        """Returns the one pair of an example that is seen where it is sampled."""
        directions(self, relation)
        return seen_where_sampled(self, "replace")


@register_dataclass
@dataclass(frozen=True)
class GaussianWithoutReplacement(WithoutReplacement, SampledGaussian):
    """Gaussian mechanism on a batch of fixed size, drawn uniformly without replacement, afresh for every step.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the clipping norm. (Replacing an example changes
            the sum of a batch by up to twice that norm: the pair counts this.)
        sampling_rate (...): batch size over the number of examples, in (0, 1]; shapes broadcast.

    Relations: "replace" (default), under which the number of examples is public; "zero_out", which is a case of it and
    has the same pair, larger than need be: a record of zeros still takes another's place in the batch. Batches from one
    shuffle of the data are *not* this mechanism.

    Source: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function",
    Theorem 11; Balle, Barthe and Gaboardi (2018), "Privacy amplification by subsampling", Theorem 9.

    >>> GaussianWithoutReplacement(noise_multiplier=2.0, sampling_rate=0.01).relations
    ('replace', 'zero_out')
    """


@register_dataclass
@dataclass(frozen=True)
class LaplaceWithoutReplacement(WithoutReplacement, SampledLaplace):
    """Laplace mechanism on a batch of fixed size, drawn uniformly without replacement, afresh for every step.

    Attributes:
        scale (...): scale of the Laplace noise over the L1 norm of one example's contribution. (Replacing an example
            changes the sum by up to twice that norm: the pair counts this.)
        sampling_rate (...): batch size over the number of examples, in (0, 1]; shapes broadcast.

    Relations: "replace" (default), under which the number of examples is public; "zero_out" as a case of it.

    Source: as for :class:`GaussianWithoutReplacement`; many coordinates as for :class:`.Laplace`.

    >>> len(LaplaceWithoutReplacement(scale=2.0, sampling_rate=0.01).dominating_pairs())
    1
    """


# ----------------------------------------------------------------------------------------------------
# Batches drawn with replacement, in which an example may be several times
#
# The host computes the pair, once for each mechanism: the law of an example's number of copies, a bound on the
# privacy profile at finitely many c, and the masses of a pair with a profile that is nowhere less.
# ----------------------------------------------------------------------------------------------------

NEGLIGIBLE = 1e-30
"""Probability, given that an example is drawn, of the numbers of copies, and of the losses, that the pair merges:
they count as infinite losses. Any value is sound."""

LEAST_NOISE = 0.1
"""Smallest noise multiplier; with less, losses are too large for float64 to distinguish."""

SLACK = 1e-11
"""Relative amount by which the profile is raised, for the rounding of the masses made of it. Chosen by measuring;
:func:`_masses_of_profile` checks that it was enough, and raises otherwise."""


@register_dataclass
@dataclass(frozen=True)
class GaussianWithReplacement(Mechanism):
    """Gaussian mechanism on a batch of B draws from n examples, each draw uniform and independent of the others.

    :meth:`for_batches` makes one from n and B; noise is relative to the norm of one example's contribution.

    Attributes:
        losses (..., m): privacy losses of the pair, including the infinite ones.
        p (..., m): their probabilities under P.
        q (..., m): their probabilities under Q.

    Relations: "replace" (default), under which n is public.

    Formal guarantee: the pair dominates. It is above that of the worst data sets by the little that the proof gives
    away (it is not :attr:`~.Mechanism.tight`).

    Proof. Let x be replaced by x', c >= 1, and H_c the hockey-stick divergence. Each of the B draws is the example with
    probability 1/n, independently, and else another, y_j: given all y_j, the sum is that of the y_j, moved by x - y_j,
    or x' - y_j, for each draw that is the example. With probability 1 - p = (1 - 1/n)^B no draw is the example; then
    the law is R either way, and else P' or Q'. By advanced joint convexity, with a = 1 + (c-1)/p and b = c/a =
    (1-p)/a + p,

        H_c((1-p) R + p P', (1-p) R + p Q') = p H_a(P', (1-b) R + b Q') <= p ((1-b) H_a(P', R) + b H_a(P', Q')).

    P' is a mixture of R moved by vectors of norm 2K at most, K the number of copies given that there is one. Of all
    events of one probability under R a half-space has the most under each part of it, by Neyman and Pearson: so
    H_a(P', R) is at most S(a), that of the mixture of N(2K, s^2) against N(0, s^2) on a line. Given which draws are the
    example, P' and Q' are K |x - x'| apart: H_a(P', Q') is at most V(a), the mean of H_a(N(2K, s^2), N(0, s^2)).
    Therefore H_c <= p ((1-p) (S + (V - S)/a) + p V). The divergence is convex in c, and for c < 1 it is that of x and
    x' exchanged. So it is at most the greatest convex function below this bound at finitely many c, which is the
    profile of a pair of as many losses and their mirror images.

    Source: advanced joint convexity, Balle, Barthe and Gaboardi (2018), "Privacy amplification by subsampling",
    Theorem 2, and Theorem 10 for p V, which this bound replaces; mixtures of vectors, Choquette-Choo, Ganesh, Steinke
    and Thakurta (2024), "Privacy amplification for matrix mechanisms"; finitely many losses, Doroshenko et al. (2022),
    "Connect the dots".

    >>> from jaxacct import epsilon
    >>> drawn = GaussianWithReplacement.for_batches(2.0, num_examples=1000, batch_size=10)
    >>> bool(epsilon(drawn, steps=100, delta=1e-5, relation="replace").upper < 0.9)
    True
    """

    losses: Float[ArrayLike, "*batch m"] | Sequence[float]
    p: Float[ArrayLike, "*batch m"] | Sequence[float]
    q: Float[ArrayLike, "*batch m"] | Sequence[float]

    relations: ClassVar[tuple[Relation, ...]] = ("replace",)
    may_fail: ClassVar[bool] = True
    vectors: ClassVar[tuple[str, ...]] = ("losses", "p", "q")

    @classmethod
    @takes_python_values
    def for_batches(cls, noise_multiplier: float, num_examples: int, batch_size: int) -> GaussianWithReplacement:
        """Returns the mechanism of B = ``batch_size`` draws from n = ``num_examples``.

        Args:
            noise_multiplier: standard deviation s of the noise over the norm of one example's contribution, a number of
                at least 0.1. (Replacing a draw changes the sum by up to twice that norm: the pair counts this.)
            num_examples: n, at least 2.
            batch_size: B, at least 1.

        Raises ValueError or TypeError where an argument is out of range, or an example may be drawn too often.

        >>> bool(GaussianWithReplacement.for_batches(2.0, num_examples=2, batch_size=1).q.sum() <= 1)
        True
        """
        validation.check_scalar(noise_multiplier, "noise_multiplier")
        s = float(noise_multiplier)
        if not LEAST_NOISE <= s < math.inf:
            raise ValueError(f"noise_multiplier = {noise_multiplier} is out of range: give a number of at least 0.1.")
        rate, copies, beyond = _law_of_copies(num_examples, batch_size)
        above, losses, profile = _profile_above(s, rate, copies, beyond)
        q, infinite = _masses_of_profile(above, profile)
        losses, p = losses[1:], q * (1 + above[1:])
        middle = max(1.0 - float(np.sum(p + q)) - infinite, 0.0)
        ends = [np.inf], [-np.inf]
        return cls(
            np.concatenate([ends[0], losses, [0.0], -losses[::-1], ends[1]]),
            np.concatenate([[infinite], p, [middle], q[::-1], [0.0]]),
            np.concatenate([[0.0], q, [middle], p[::-1], [infinite]]),
        )

    def validate(self) -> None:
        for name in ("p", "q"):
            validation.check_probabilities(getattr(self, name), name, 1e-9)

    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        losses, p, q = (cast(ArrayLike, value) for value in (self.losses, self.p, self.q))
        return (FinitePair(p, q, losses, np.full(np.shape(p), 16 * UNIT_ROUNDOFF)),)


def _law_of_copies(n: int, draws: int) -> tuple[float, np.ndarray, float]:
    """Returns p, rounded up; the law of K from 1 up, given that it is above 0; and a bound on the mass left out."""
    # Decimal digits of the copies' law, and most copies that are counted. Fewer digits would make the law inexact; the
    # second is a limit of work alone.
    digits, most_copies = 60, 512
    n = validation.check_whole(n, "num_examples", 2, 2**53, "the number of examples, of which one is replaced")
    draws = validation.check_whole(draws, "batch_size", 1, 2**53, "the number of draws")
    with decimal.localcontext(prec=digits):
        size, chance = decimal.Decimal(draws), 1 / decimal.Decimal(n)
        law = [(size * (1 - chance).ln()).exp()]
        some = 1 - law[0]
        # Binomial masses, each from the one before, until the rest is negligible or no draws are left.
        for k in range(draws):
            law.append(law[-1] * (size - k) / ((k + 1) * (n - 1)))
            # From four times the mean on each mass is at most half of the one before, so all that follow sum to at most
            # the last one.
            if k > 4 * size * chance and law[-1] < decimal.Decimal(NEGLIGIBLE) * some:
                break
            if k > most_copies:
                raise ValueError(
                    f"batch_size = {draws} draws from num_examples = {n} may hold one more than {most_copies} times: "
                    "give a smaller batch."
                )
        beyond = float(law[-1] / some) if len(law) <= draws else 0.0
        return min(float(some) * (1 + 2.0**-52), 1.0), np.array([float(w / some) for w in law[1:]]), beyond


def _normal_tail(z: np.ndarray) -> np.ndarray:
    """Returns P(N(0, 1) > z)."""
    return np.vectorize(math.erfc, otypes=[float])(z / math.sqrt(2.0)) / 2


def _profile_above(
    s: float, rate: float, copies: np.ndarray, beyond: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns c - 1, log c and an upper bound on the profile there, at c = 1 and at points c above it.

    Each c belongs to a point x of the line, at which the mixture's density is a times that of N(0, s^2).
    """
    # Bound on the relative error of a normal tail, and of sums of them: a few units of erfc, some hundred terms, and
    # the three roundings of its argument z, which move it by 3 z^2 units: 4.7e-13 where z is 37.5. Farther out it is
    # below the smallest normal number. The proof rests on it: a lower value is wrong.
    rounding = 6e-13
    # Largest loss of the pair that is finite, in nats: its exponential has to be a float64 number. Larger losses count
    # as infinite, so it is sound for any value below that.
    largest_loss = 600.0
    # Number of points above c = 1 that have a bound on the profile, and so of the pair's losses above 0. Sound for any
    # value; twice as many cost twice as much.
    points = 1024
    k = np.arange(1.0, len(copies) + 1)[:, None]
    weights = copies[:, None]

    def log_a(x: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(np.log(np.maximum(weights, 1e-300)) + (2 * k * x - 2 * k**2) / s**2, axis=0)

    def where(falls: bool, target: float, low: float, high: float) -> float:
        # The last x before the mixture's tail falls, or log a rises, to the target.
        def is_before(x: float) -> bool:
            at = np.array([x])
            value = float(np.sum(weights * _normal_tail((at - 2 * k) / s))) if falls else float(log_a(at)[0])
            return (value > target) == falls

        return bisect(is_before, low, high)

    first = where(False, 0.0, 0.0, 2.0 * len(copies))
    # The last point is where the tail is negligible, or where c is as large as is counted, whichever comes first.
    last = min(
        where(True, NEGLIGIBLE, first, first + 2.0 * len(copies) + 40 * s),
        where(False, largest_loss - math.log(rate), first, first + largest_loss * s**2 + 2.0 * len(copies)),
    )
    x = np.linspace(first, last, points + 1)
    log_ratio = log_a(x)
    log_ratio[0] = 0.0
    a = np.exp(log_ratio)
    # S(a), of the half-line from x on, and V(a), of the best half-line for each number of copies; both rounded up.
    own, base = weights * _normal_tail((x - 2 * k) / s), _normal_tail(x / s)
    secret = np.sum(own, axis=0) * (1 + rounding) - a * base * (1 - rounding)
    edges = (s**2 * log_ratio + 2 * k**2) / (2 * k)
    each = _normal_tail((edges - 2 * k) / s) * (1 + rounding) - a * _normal_tail(edges / s) * (1 - rounding)
    known = np.sum(weights * np.clip(each, 0.0, 1.0), axis=0)
    secret = np.clip(np.minimum(secret, known), 0.0, 1.0)
    bound = rate * ((1 - rate) * (secret + (known - secret) / a) + rate * known) + rate * beyond
    bound = np.minimum(bound * (1 + SLACK), 1.0)
    return rate * (a - 1), np.log1p(rate * (a - 1)), bound


def _masses_of_profile(above: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns Q's masses at c > 1, and the infinite loss's, of a pair whose profile is no less than ``bound`` at all c.

    The masses are the increases of the slopes of the greatest convex function below the points. Where its slope at
    c = 1 is too steep for a mass at loss 0 to be left beside the mirror images, the points are first raised to the
    steepest line that leaves one.
    """
    bound = np.maximum.accumulate(bound[::-1])[::-1]
    bound = np.maximum(bound, bound[0] - above * (1 - bound[0]) / 2 * (1 - SLACK))
    kept = [0]
    # The lower convex hull, from left to right: a point leaves when it is above the chord from the one before to a new
    # one.
    for i in range(1, len(above)):
        while len(kept) > 1 and (bound[kept[-1]] - bound[kept[-2]]) * (above[i] - above[kept[-2]]) >= (
            bound[i] - bound[kept[-2]]
        ) * (above[kept[-1]] - above[kept[-2]]):
            kept.pop()
        kept.append(i)
    slopes = np.append(np.diff(bound[kept]) / np.diff(above[kept]), 0.0)
    q = np.zeros(len(above))
    q[kept[1:]] = np.maximum(np.diff(slopes), 0.0)
    q[q < 1e-300] = 0.0
    infinite = float(bound[-1])
    # The profile of these masses: the sum over j > i of q_j (c_j - c_i), with the infinite mass.
    mass, moment = (np.cumsum(values[::-1])[::-1] for values in (q, q * above))
    profile = moment - above * mass + infinite
    if not np.all(profile >= bound * (1 - SLACK / 2)):
        raise ValueError("noise_multiplier is too small for the masses of its privacy losses: give more.")
    return q[1:], infinite
