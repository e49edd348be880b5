"""The central-limit estimate of a composition: mu, and the epsilon and delta of that mu. Nothing here is a bound."""

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
from jaxacct.dominating_pairs.without_replacement import SHIFT
from jaxacct.gdp.functionals import Functionals, functionals_of
from jaxacct.mechanisms import GaussianWithoutReplacement, PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation, Steps, listed
from jaxacct.precision import as_float64, in_float64, outside
from jaxacct.programs import compiled

METHODS = ("small_rate", "functionals")

BERRY_ESSEEN = 0.56
"""Constant of the theorem of Berry and Esseen for summands that differ.

Shevtsova (2010), "An improvement of convergence rate estimates in the Lyapunov theorem".
"""


@in_float64
def mu(
    mechanism: Mechanisms, steps: Steps, *, relation: Relation = "add_or_remove", method: str | None = None
) -> Float[Array, ""]:
    """Returns the mu of the Gaussian trade-off function that a composition tends to: an *estimate*, not a bound.

    Formal guarantee: none; it can under-report at any number of steps. What is certified is
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
    """K, of kl + kl~."""
    variance: Array
    """Of kappa_2 - kl^2."""
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
    largest, farthest = (jnp.max(jnp.where(jnp.isnan(value), jnp.inf, value)) for value in (mus, error))
    return largest, farthest


def _composed(mechanism: Mechanisms, steps: Steps, relation: Relation, method: str | None) -> Sums:
    parts = [_of_one(part, count, relation, method) for part, count in listed(mechanism, steps)]
    directions = max(len(part.mean) for part in parts)
    # A symmetric mechanism has one direction for all.
    wide = [Sums(*(jnp.broadcast_to(row, (directions,)) for row in part)) for part in parts]
    return _added(wide)


def _of_one(mechanism: Mechanism, steps: ArrayLike, relation: Relation, method: str | None) -> Sums:
    closed = _closed_form(mechanism, relation) if method != "functionals" else None
    if closed is None and method == "small_rate":
        raise ValueError(
            f'method = "small_rate" has no closed form for {type(mechanism).__name__} under "{relation}": give '
            '"functionals".'
        )
    # Runs that release nothing are none.
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
    found = jax.lax.map(functionals_of, pairs)
    return Sums(*(jnp.sum(jnp.where(number == 0, 0.0, _counts(number) * x)) for x in _moments(found)))


def _moments(of: Functionals) -> Sums:
    variances = of.kappa2 - of.kl**2, of.reverse_kappa2 - of.reverse_kl**2
    # E|Y - m|^3 <= (|Y|_3 + |m|)^3, by Minkowski's inequality.
    thirds = [(jnp.cbrt(k3) + kl) ** 3 for k3, kl in ((of.kappa3, of.kl), (of.reverse_kappa3, of.reverse_kl))]
    return Sums(of.kl + of.reverse_kl, *variances, *thirds)


def _counts(steps: Array) -> Array:
    """Returns the counts, ``inf`` where they are none."""
    return jnp.where((steps >= 0) & (steps == jnp.floor(steps)), steps, jnp.inf)


def _closed_form(mechanism: Any, relation: Relation) -> Array | None:
    """Returns both functionals of one step to leading order in the rate, where they are known."""
    if isinstance(mechanism, PoissonSubsampledGaussian) and relation != "replace":
        s, q = jnp.broadcast_arrays(as_float64(mechanism.noise_multiplier), as_float64(mechanism.sampling_rate))
        square = q**2 * jnp.expm1(1 / s**2)
    elif isinstance(mechanism, GaussianWithoutReplacement):
        s, q = jnp.broadcast_arrays(as_float64(mechanism.noise_multiplier), as_float64(mechanism.sampling_rate))
        x = SHIFT / s
        # e^(x^2) Phi(3x/2) + 3 Phi(-x/2) - 2 by its distance from x = 0, where it vanishes.
        bend = jax.lax.erf(1.5 * x * math.sqrt(0.5)) / 2 - 1.5 * jax.lax.erf(0.5 * x * math.sqrt(0.5))
        square = 2 * q**2 * (jnp.expm1(x**2) * ndtr(1.5 * x) + bend)
    else:
        return None
    return jnp.where((s > 0) & (q > 0) & (q <= 1), square, jnp.inf)
