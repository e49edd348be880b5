"""The central-limit estimate of a composition's mu, and the moments of the privacy loss that it is made of.

Sums of many privacy losses are nearly normal, so a composition's trade-off function tends to a Gaussian one, whose mu
needs only the first moments of the losses under both distributions of the dominating pair. Nothing here is a bound.

The moments come first (:class:`Functionals`, :func:`functionals_of`), then :func:`mu`, :func:`epsilon`, :func:`delta`
and :func:`clt_error`.

For f = T(P, Q) the slope at a uniform point is distributed like dQ/dP under P, so with Y = log P/Q the functionals of
Theorem 7 in Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", are

    kl = E_P[Y],  kl~ = E_Q[-Y],  kappa_n = E_P|Y|^n,  kappa~_n = E_Q|Y|^n.

As E_P[e^-Y] = 1 the first is E_P[Y - 1 + e^-Y], of one sign, so it does not cancel where P and Q are close; likewise
the second. The quadrature is over cells of the loss, whose P- and Q-masses every pair knows. Put a cell's mass at the
loss log p/q, or at the cell's two ends such that both masses stay: for a convex function of e^-Y the first gives less
than the truth and the second more (Jensen). Two parts of the one and one of the other, Simpson's weights, leave an
error of fourth order in the width where the density is smooth. Atoms are summed as they are.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.composition import check, directed_parts
from jaxacct.convert.gaussian import gaussian_delta, gaussian_epsilon
from jaxacct.mechanisms import GaussianWithoutReplacement, PoissonSubsampledGaussian
from jaxacct.mechanisms.finite import DiscreteGaussianPair, FinitePair
from jaxacct.mechanisms.fixed_batches import SHIFT
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation, Steps, listed
from jaxacct.mechanisms.pair import LARGEST_EXPONENT, DominatingPair, exp_remainder
from jaxacct.numerics.arithmetic import scaled
from jaxacct.numerics.precision import as_float64, in_float64, outside
from jaxacct.numerics.programs import compiled

CELLS = 24
"""Cells for each halving of the distance from the bulk, on either side. More make the estimate more accurate."""

DISTANCES = np.exp2(np.arange(-60 * CELLS, 20 * CELLS + 1) / CELLS)
"""Distances of the cells' edges from the bulk (nats): from below any loss that counts to above it."""


class Functionals(NamedTuple):
    """Moments of one loss, scalars; the second of each pair under Q. ``inf`` where they are not finite."""

    kl: Array
    reverse_kl: Array
    kappa2: Array
    reverse_kappa2: Array
    kappa3: Array
    reverse_kappa3: Array


@functools.singledispatch
def functionals_of(pair: Any) -> Functionals:
    """Returns the functionals of a dominating pair. To be called inside the float64 scope.

    Their relative error is below 1e-6 for the mechanisms of this package (tests/gdp/test_clt.py); nothing is proved.
    """
    edges = _edges(pair)
    cells = pair.cell_masses(edges)
    low, high = edges[:-1], edges[1:]
    ratio = jnp.log(cells.p) - jnp.log(cells.q)
    # A cell that only one of the two fills, or whose masses are mostly rounding, keeps its loss between its ends.
    middle = jnp.clip(jnp.where(jnp.isfinite(ratio), ratio, (low + high) / 2), low, high)
    width = high - low
    upward = jnp.clip(-jnp.expm1(low - middle) / -jnp.expm1(-jnp.where(width > 0, width, 1.0)), 0.0, 1.0)
    share = jnp.where(width > 0, upward, 0.0)
    losses = jnp.concatenate([middle, low, high])
    p, q = cells.p / 3, cells.q / 3
    # The upper end gets the share ``upward`` of p, and a share of q that is smaller by e^(high - middle).
    share_q = jnp.clip(share * jnp.exp(middle - high), 0.0, 1.0)
    # Simpson's weights: two thirds of the mass at the middle, one third at the two ends.
    p_masses = jnp.concatenate([2 * p, p * (1 - share), p * share])
    q_masses = jnp.concatenate([2 * q, q * (1 - share_q), q * share_q])
    return _of_points(pair, p_masses, q_masses, losses)


@functionals_of.register
def _(pair: FinitePair) -> Functionals:
    p, q, losses, _ = pair._atoms()
    missing = (pair.missing_mass() > 0) | (pair.infinite_mass() > 0)
    found = _of_points(pair, p, q, losses)
    return Functionals(*(jnp.where(missing, jnp.inf, value) for value in found))


@functionals_of.register
def _(pair: DiscreteGaussianPair) -> Functionals:
    return functionals_of(pair._finite())


def _of_points(pair: DominatingPair, p: Array, q: Array, losses: Array) -> Functionals:
    magnitude = jnp.abs(losses)

    def mean(masses: Array, values: Array) -> Array:
        return jnp.sum(jnp.where(masses > 0, masses * values, 0.0))

    def divergence(masses: Array, loss: Array, opposite: Array) -> Array:
        # masses e^-loss is the other's mass; where e^-loss would overflow it is taken from there.
        back = jnp.minimum(-loss, LARGEST_EXPONENT)
        values = jnp.where(-loss > 30.0, opposite - masses * (1 - loss), masses * exp_remainder(back, jnp.expm1(back)))
        return jnp.sum(jnp.where((masses > 0) | (opposite > 0), values, 0.0))

    found = Functionals(
        divergence(p, losses, q),
        divergence(q, -losses, p),
        *(mean(masses, magnitude**n) for n in (2, 3) for masses in (p, q)),
    )
    known = pair.is_valid() & (pair.infinite_mass() == 0)
    return Functionals(*(jnp.where(known & ~jnp.isnan(value), value, jnp.inf) for value in found))


def _edges(pair: DominatingPair) -> Array:
    """Returns the cells' edges: narrow about the bulk, wide far out, and close about both ends of a bounded loss."""
    center = pair.central_loss()
    distances = jnp.asarray(DISTANCES)
    ends = jnp.clip(jnp.stack(pair.loss_range()), -DISTANCES[-1], DISTANCES[-1])
    # An atom at an end of the range gets a cell without width.
    margin = scaled(1e-12) * (1 + jnp.abs(ends))
    return jnp.sort(
        jnp.concatenate([center - distances, center[None], center + distances, ends - margin, ends + margin])
    )


# ----------------------------------------------------------------------------------------------------
# The central-limit estimate of a composition: mu, and the epsilon and delta of that mu. Nothing here is a bound.
# ----------------------------------------------------------------------------------------------------

METHODS = ("small_rate", "functionals")
"""Names of the two ways to mu: a closed form to leading order in the sampling rate, and quadrature over the loss."""

BERRY_ESSEEN = 0.56
"""Constant of the theorem of Berry and Esseen for summands that differ.

Shevtsova (2010), "An improvement of convergence rate estimates in the Lyapunov theorem".
"""


@in_float64
def mu(
    mechanism: Mechanisms, steps: Steps, *, relation: Relation = "add_or_remove", method: str | None = None
) -> Float[Array, ""]:
    """Returns the mu of the Gaussian trade-off function that a composition tends to: an *estimate*, not a bound.

    Formal guarantee: none; it can under-report at any number of steps. The certified counterpart is
    :func:`~jaxacct.gdp.certified_mu`, or :func:`jaxacct.epsilon`.

    Args:
        mechanism: one mechanism (scalar fields), a sequence by a leading axis, or a tuple, as of
            :func:`jaxacct.prv.epsilon`. Batches are ``jax.vmap``.
        steps: how many runs of it. May be traced.
        relation: neighbouring relation, one that the mechanisms support.
        method: "small_rate", the closed form to leading order in the sampling rate, for
            :class:`~jaxacct.PoissonSubsampledGaussian` (adding or removing) and
            :class:`~jaxacct.GaussianWithoutReplacement` only; "functionals", by quadrature over the loss, for any
            mechanism. By default the closed form where there is one; for large rates, which it is not made for, the
            other.

    Returns float64 (). NoisySGD, NoisyAdam and any other optimizer of the same noisy gradients have the same mu.
    ``inf`` for no noise, infinite losses and invalid traced values; 0 for no steps.

    The closed forms, for k steps with rate q and noise multiplier s: q sqrt(k (e^(1/s^2) - 1)) with Poisson sampling;
    q sqrt(2 k (e^(1/s^2) Phi(3/(2s)) + 3 Phi(-1/(2s)) - 2)) with batches of fixed size, where s is half the noise
    multiplier, for replacing an example moves a sum by twice the clipping norm. The functionals: mu = K/S with K = sum
    of k (kl + kl~) and S^2 = the mean of the sums of k (kappa_2 - kl^2) and of k (kappa~_2 - kl~^2). In Theorem 7 both
    have one limit, and kl^2 vanishes in it; kept, it makes mu exact for Gaussian mechanisms.

    Raises ValueError where a concrete argument is out of range, or "small_rate" is asked of another mechanism.

    Source: Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", eq. 3.1 and Theorem 7;
    batches of fixed size, Dong, Roth and Su (2022), "Gaussian differential privacy", Corollary 5.4.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> print(f"{mu(PoissonSubsampledGaussian(1.1, 256 / 60000), steps=14063):.4f}")
    0.5736
    """
    check(mechanism, steps)
    if method is not None:
        validation.check_one_of(method, "method", METHODS)
    return _estimates(mechanism, steps, relation, method)[0]


@in_float64
def epsilon(
    mechanism: Mechanisms,
    steps: Steps,
    delta: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    method: str | None = None,
) -> Float[Array, ""]:
    """Returns the central-limit *estimate* of a composition's epsilon at ``delta`` (): it can under-report.

    Arguments, errors and source are those of :func:`mu`; ``delta`` () is in (0, 1).

    Formal guarantee: none, as of :func:`mu`: that mu is an estimate, though its epsilon is rounded up. ``inf`` for
    invalid traced values.

    >>> from jaxacct import PoissonSubsampledGaussian
    >>> print(f"{epsilon(PoissonSubsampledGaussian(1.1, 256 / 60000), steps=14063, delta=1e-5):.3f}")
    2.324
    """
    validation.check_delta(delta)
    return gaussian_epsilon(mu(mechanism, steps, relation=relation, method=method), delta)


@in_float64
def delta(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: ArrayLike,
    *,
    relation: Relation = "add_or_remove",
    method: str | None = None,
) -> Float[Array, ""]:
    """Returns the central-limit *estimate* of a composition's delta at ``epsilon`` (): it can under-report.

    Arguments, errors and source are those of :func:`mu`; ``epsilon`` () is at least 0.

    Formal guarantee: none, as of :func:`mu`: that mu is an estimate, though its delta is rounded up. 1 where
    it is ``inf``.

    >>> from jaxacct import Gaussian
    >>> print(f"{delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0):.8f}")
    0.12693674
    """
    validation.check_epsilon(epsilon)
    return gaussian_delta(mu(mechanism, steps, relation=relation, method=method), epsilon)


@in_float64
def clt_error(mechanism: Mechanisms, steps: Steps, *, relation: Relation = "add_or_remove") -> Float[Array, ""]:
    """Returns about how far the composed trade-off function f may be from G_mu, mu by the functionals; float64 ().

    With g what is returned, V and V~ the sums of variances under P and under Q, their ratio r = sqrt(V/V~):

        f(a) >= Phi(r Phi^-1(1 - a - g) - K/sqrt(V~)) - g,    which is    f(a) >= G_mu(a + g) - g    for r = 1.

    Idea of the proof: the sum of the losses is within g of normal under P and under Q (Berry and Esseen); the most
    powerful test compares it with a threshold. It falls like 1/sqrt(steps), and 1 or more means that nothing follows.

    Formal guarantee: none: as the functionals come from a quadrature without an error bound, this is an *estimate* too,
    which can be too small. It says how good :func:`mu` may be taken to be. ``inf`` for invalid traced values.

    Arguments and errors are those of :func:`mu`.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Theorem 3.5, for symmetric functions.

    >>> from jaxacct import Laplace
    >>> few, many = (clt_error(Laplace(scale=10.0 * n), 100 * n**2) for n in (1, 10))
    >>> bool(many < few / 9 < 0.01)
    True
    """
    check(mechanism, steps)
    return _estimates(mechanism, steps, relation, "functionals")[1]


def _estimates(mechanism: Mechanisms, steps: Steps, relation: Relation, method: str | None) -> tuple[Any, Any]:
    """Returns mu and the error of Berry and Esseen, each of the direction where it is largest."""
    leaves = jax.tree.map(_as_float64_leaf, (mechanism, steps))
    return outside(_compiled(*leaves, relation, method))


def _as_float64_leaf(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf, np.float64)


class Sums(NamedTuple):
    """Sums over a composition, for each direction, (directions,)."""

    mean: Array
    """K, the sum of kl + kl~."""
    variance: Array
    """Sum of kappa_2 - kl^2."""
    reverse_variance: Array
    """The same under Q."""
    third: Array
    """Bound on the sum of the third absolute central moments."""
    reverse_third: Array


@compiled(
    static=(
        "relation",
        "method",
    )
)
def _compiled(mechanism: Mechanisms, steps: Steps, relation: Relation, method: str | None) -> tuple[Array, Array]:
    sums = _composed(mechanism, steps, relation, method)
    spread = jnp.sqrt((sums.variance + sums.reverse_variance) / 2)
    mus = jnp.where(sums.mean == 0, 0.0, sums.mean / spread)
    errors = [
        third / jnp.sqrt(v) ** 3
        for third, v in ((sums.third, sums.variance), (sums.reverse_third, sums.reverse_variance))
    ]
    error = jnp.where(sums.mean == 0, 0.0, BERRY_ESSEEN * jnp.maximum(*errors))
    # The worse direction counts; a NaN, as of inf - inf, counts as inf.
    largest, farthest = (jnp.max(jnp.where(jnp.isnan(value), jnp.inf, value)) for value in (mus, error))
    return largest, farthest


def _composed(mechanism: Mechanisms, steps: Steps, relation: Relation, method: str | None) -> Sums:
    parts = [_of_one(part, count, relation, method) for part, count in listed(mechanism, steps)]
    directions = max(len(part.mean) for part in parts)
    # A symmetric mechanism has one direction, which stands for both.
    wide = [Sums(*(jnp.broadcast_to(row, (directions,)) for row in part)) for part in parts]
    return _added(wide)


def _of_one(mechanism: Mechanism, steps: ArrayLike, relation: Relation, method: str | None) -> Sums:
    closed = _closed_form(mechanism, relation) if method != "functionals" else None
    if closed is None and method == "small_rate":
        raise ValueError(
            f'method = "small_rate" has no closed form for {type(mechanism).__name__} under "{relation}": give '
            '"functionals".'
        )
    # Runs that release nothing count as no runs.
    counted = as_float64(steps)
    steps = jnp.where(mechanism.releases_nothing() & (counted >= 0), 0.0, counted)
    if closed is not None:
        counts = _counts(jnp.broadcast_to(as_float64(steps), np.shape(closed)))
        total = jnp.sum(jnp.where(counts == 0, 0.0, counts * closed))[None]
        return Sums(total, total, total, total, total)
    rows: list[Sums] = []
    for parts in directed_parts(mechanism, steps, relation):
        rows.append(_added([_sums_of(pairs, number) for pairs, number in parts]))
    return Sums(*(jnp.stack(values) for values in zip(*rows, strict=True)))


def _added(sums: list[Sums]) -> Sums:
    return functools.reduce(lambda a, b: Sums(*map(jnp.add, a, b)), sums)


def _sums_of(pairs: Any, number: Array) -> Sums:
    # One pair at a time: each takes some 4,000 cells, and a batch would hold them for all pairs.
    found = jax.lax.map(functionals_of, pairs)
    return Sums(*(jnp.sum(jnp.where(number == 0, 0.0, _counts(number) * x)) for x in _moments(found)))


def _moments(of: Functionals) -> Sums:
    variances = of.kappa2 - of.kl**2, of.reverse_kappa2 - of.reverse_kl**2
    # E|Y - m|^3 <= (|Y|_3 + |m|)^3, by Minkowski's inequality.
    thirds = [(jnp.cbrt(k3) + kl) ** 3 for k3, kl in ((of.kappa3, of.kl), (of.reverse_kappa3, of.reverse_kl))]
    return Sums(of.kl + of.reverse_kl, *variances, *thirds)


def _counts(steps: Array) -> Array:
    """Returns the counts, ``inf`` where a count is no whole number of at least 0."""
    return jnp.where((steps >= 0) & (steps == jnp.floor(steps)), steps, jnp.inf)


def _closed_form(mechanism: Any, relation: Relation) -> Array | None:
    """Returns both functionals of one step to leading order in the rate, where they are known."""
    if isinstance(mechanism, PoissonSubsampledGaussian) and relation != "replace":
        s, q = jnp.broadcast_arrays(as_float64(mechanism.noise_multiplier), as_float64(mechanism.sampling_rate))
        square = q**2 * jnp.expm1(1 / s**2)
    elif isinstance(mechanism, GaussianWithoutReplacement):
        s, q = jnp.broadcast_arrays(as_float64(mechanism.noise_multiplier), as_float64(mechanism.sampling_rate))
        x = SHIFT / s
        # e^(x^2) Phi(3x/2) + 3 Phi(-x/2) - 2, written so that it does not cancel near x = 0, where it vanishes.
        bend = jax.lax.erf(1.5 * x * math.sqrt(0.5)) / 2 - 1.5 * jax.lax.erf(0.5 * x * math.sqrt(0.5))
        square = 2 * q**2 * (jnp.expm1(x**2) * ndtr(1.5 * x) + bend)
    else:
        return None
    return jnp.where((s > 0) & (q > 0) & (q <= 1), square, jnp.inf)
