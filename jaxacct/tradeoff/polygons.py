"""Trade-off curves as polygons: arrays of false-positive rates, increasing from 0 to 1, and of false-negative rates.

Between its vertices a polygon is linear. Everything here is exact for polygons, up to a few roundings of 1, so a result
errs to the same side as the polygon it is made from. A polygon below the true curve (:func:`from_delta` of deltas that
are upper bounds) stays below it; one through points of the true curve, which is convex, lies above it.

All functions work on single curves, arrays of one axis; batches are ``jax.vmap``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.mechanisms import DiscretePair
from jaxacct.numerics.precision import as_float64, in_float64, is_concrete, outside
from jaxacct.numerics.programs import as_it_is, compiled, lowered

Curve = tuple[Float[Array, " n"], Float[Array, " n"]]
"""Type of a polygon: false-positive rates from 0 to 1, increasing, and false-negative rates, falling."""


@in_float64(safe=lowered)
def from_delta(epsilon: ArrayLike, delta: ArrayLike, fpr: ArrayLike) -> Float[Array, " n"]:
    """Returns the least false-negative rates that are consistent with finitely many (epsilon, delta).

    Args:
        epsilon (m,): increasing, at least 0.
        delta (m,): in [0, 1]; holding under both exchanges of the two data sets.
        fpr (n,): false-positive rates in [0, 1].

    Returns float64 (n,), the supremum of the f_{epsilon,delta}: convex, its own inverse, at most 1 - fpr.

    Formal guarantee: a lower bound on the trade-off function, hence on every attack's false-negative rate, where each
    delta is an upper bound at its epsilon; up to a few roundings of 1. Traced arguments out of range, or NaN, give 0.

    Raises ValueError where a concrete epsilon or delta is out of range, or an argument has not one axis.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Proposition 2.12.

    >>> from_delta([0.0, 1.0], [0.3, 0.1], [0.0, 0.2, 0.5]).round(4).tolist()
    [0.9, 0.5, 0.2]
    """
    e, d, rates = (
        as_float64(_checked(value, name)) for value, name in ((epsilon, "epsilon"), (delta, "delta"), (fpr, "fpr"))
    )
    validation.check_epsilon(_seen(epsilon))
    validation.check_probability(_seen(delta), "delta")
    return outside(_supremum(e, d, rates))


@in_float64
def to_delta(fpr: ArrayLike, fnr: ArrayLike, epsilon: ArrayLike) -> Float[Array, " m"]:
    """Returns the deltas of a polygon (n,), (n,) at ``epsilon`` (m,), any real numbers; float64 (m,).

    delta(epsilon) = max of 1 - fnr - e^epsilon fpr over the vertices, 0 at least.

    Formal guarantee: an upper bound on delta if the polygon lies below the trade-off function, a lower bound if its
    vertices are points of it, an identity if the polygon is the trade-off function; up to a few roundings of 1. It is
    for the relation of the curve. Traced rates outside [0, 1], or NaN, give 1; that they fall is not checked.

    Raises ValueError where concrete rates are no trade-off curve, or an argument has not one axis.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Proposition 2.12.

    >>> to_delta([0.0, 0.2, 1.0], [1.0, 0.2, 0.0], [0.0]).round(4).tolist()
    [0.6]
    """
    a, b = _curve(fpr, fnr)
    return outside(_deltas(a, b, as_float64(_checked(epsilon, "epsilon"))))


@in_float64(safe=lowered)
def subsampled(fpr: ArrayLike, fnr: ArrayLike, sampling_rate: ArrayLike) -> Float[Array, ...]:
    """Returns p f + (1 - p) Id, the curve of a mechanism on a Poisson sample with rate p; float64, elementwise.

    It is the curve for telling the data without an example (null hypothesis) from those with it: the curve of the
    relation "remove". Its inverse is that of "add", and both together are bounded by :func:`symmetrized`.

    Args:
        fpr (...): false-positive rates in [0, 1].
        fnr (...): the mechanism's false-negative rates there; errors keep their side.
        sampling_rate (): p, in (0, 1].

    Formal guarantee: a lower bound on the trade-off function of the mechanism on the sample where ``fnr`` is one on
    that of the mechanism, for removing an example (the inverse: for adding it); up to a few roundings of 1. Traced
    arguments out of range, or NaN, give 0.

    Raises ValueError where a concrete sampling rate is out of range.

    Source: Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", Proposition A.1.

    >>> subsampled([0.0, 0.5, 1.0], [1.0, 0.1, 0.0], 0.5).round(4).tolist()
    [1.0, 0.3, 0.0]
    """
    validation.check_sampling_rate(sampling_rate)
    a, b, p = (as_float64(value) for value in (_seen(fpr), _seen(fnr), sampling_rate))
    return outside(jnp.where(_is_rate(p) & _is_rate(a) & _is_rate(b), p * b + (1 - p) * (1 - a), 0.0))


@in_float64(safe=as_it_is)
def inverse(fpr: ArrayLike, fnr: ArrayLike) -> Curve:
    """Returns the polygon of the inverse: the two errors exchanged. For a curve below 1 at 0 it ends there.

    Formal guarantee: an identity, without any rounding. The inverse of T(P, Q) is T(Q, P), for to exchange the
    hypotheses is to exchange the errors: a bound for removing an example becomes one, from its side, for adding it.

    Raises ValueError where concrete rates are no trade-off curve.

    >>> rates, misses = inverse([0.0, 0.2, 1.0], [1.0, 0.2, 0.0])
    >>> rates.tolist(), misses.tolist()
    ([0.0, 0.2, 1.0], [1.0, 0.2, 0.0])
    """
    a, b = _curve(fpr, fnr)
    return outside((b[::-1], a[::-1]))


@in_float64(safe=lowered)
def convex_minorant(fpr: ArrayLike, fnr: ArrayLike) -> Float[Array, " n"]:
    """Returns the greatest convex function below a polygon, at its vertices: the double conjugate; float64 (n,).

    Each value is the least of all chords over its place. The cost is n^2 for n vertices.

    Formal guarantee: at most the polygon, so a lower bound on a trade-off function stays one. Trade-off functions are
    convex, so nothing is lost where the polygon lies above one. Up to a few roundings of 1. Traced arguments are not
    checked.

    Raises ValueError where concrete rates are no trade-off curve.

    >>> convex_minorant([0.0, 0.25, 0.5, 1.0], [1.0, 0.7, 0.2, 0.0]).round(4).tolist()
    [1.0, 0.6, 0.2, 0.0]
    """
    a, b = _curve(fpr, fnr)
    return outside(_lower_hull(a, b))


@in_float64(safe=as_it_is)
def symmetrized(fpr: ArrayLike, fnr: ArrayLike) -> Curve:
    """Returns min(f, f^-1)**, the curve for both exchanges of the two data sets: a polygon of 2 n vertices, float64.

    Where f <= 1 - fpr the greatest convex function below both is the lower hull of the vertices of both: their minimum
    is concave where they cross.

    Formal guarantee: where the polygon is a lower bound on the trade-off function for removing an example and its
    inverse one for adding it, the result is a lower bound under "add_or_remove"; up to a few roundings of 1. Traced
    arguments are not checked.

    Raises ValueError where concrete rates are no trade-off curve.

    Source: Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy", section 2.2.

    >>> rates, misses = symmetrized([0.0, 0.1, 1.0], [1.0, 0.5, 0.0])
    >>> rates.tolist(), misses.round(4).tolist()
    ([0.0, 0.0, 0.1, 0.5, 1.0, 1.0], [1.0, 1.0, 0.5, 0.1, 0.0, 0.0])
    """
    a, b = _curve(fpr, fnr)
    return outside(_symmetrized(a, b))


@in_float64(safe=as_it_is)
def at(fpr: ArrayLike, fnr: ArrayLike, rates: ArrayLike) -> Float[Array, " m"]:
    """Returns a polygon's false-negative rates at ``rates`` (m,); float64 (m,).

    Formal guarantee: an identity up to a few roundings of 1, so the values bound what the polygon bounds, from the same
    side. Beyond the polygon's ends the value is that of the end. Traced arguments are not checked.

    Raises ValueError where concrete rates are no trade-off curve.

    >>> at([0.0, 0.5, 1.0], [1.0, 0.2, 0.0], [0.25]).round(4).tolist()
    [0.6]
    """
    a, b = _curve(fpr, fnr)
    return outside(jnp.interp(as_float64(_checked(rates, "rates")), a, b))


def pair(fpr: ArrayLike, fnr: ArrayLike) -> DiscretePair:
    """Returns a mechanism whose trade-off curve is a convex polygon: it lets curves be composed, f tensor g.

    Each segment is an outcome, with its width in ``fpr`` as its probability without the example, and its fall in
    ``fnr`` as that with it; what the curve misses of 1 at 0 is an outcome that tells all. Concrete arguments only. Give
    a tuple of such mechanisms to :func:`curve`, under the relation "remove" (or "add" for the inverse).

    Formal guarantee: an identity up to the rounding of differences. A polygon below the trade-off function of some
    mechanism thus gives a pair that dominates it. Where a polygon is not convex, the mechanism's curve lies below it.

    Raises ValueError where the rates are no trade-off curve.

    Source: Dong, Roth and Su (2022), "Gaussian differential privacy", Definition 3.1 and Proposition 2.2.

    >>> mechanism = pair([0.0, 0.5, 1.0], [1.0, 0.2, 0.0])
    >>> mechanism.p.tolist(), mechanism.q.tolist()
    ([0.0, 0.8, 0.2, 0.0], [0.0, 0.5, 0.5, 0.0])
    """
    a, b = (np.asarray(_checked(value, name), np.float64) for value, name in ((fpr, "fpr"), (fnr, "fnr")))
    _check_polygon(a, b)
    p = np.concatenate([[1 - b[0]], -np.diff(b), [b[-1]]])
    q = np.concatenate([[a[0]], np.diff(a), [1 - a[-1]]])
    return DiscretePair(p=p, q=q)


def _is_rate(values: Array) -> Array:
    """Returns whether values are probabilities; NaN is none."""
    return (values >= 0) & (values <= 1)


@compiled
def _supremum(epsilons: Array, deltas: Array, rates: Array) -> Array:
    def at(rate: Array) -> Array:
        steep = jnp.where(rate > 0, 1 - deltas - jnp.exp(epsilons) * rate, 1 - deltas)
        return jnp.max(jnp.maximum(steep, jnp.exp(-epsilons) * (1 - deltas - rate)))

    known = jnp.all((epsilons >= 0) & _is_rate(deltas))
    return jnp.where(known & _is_rate(rates), jnp.clip(jax.vmap(at)(rates), 0.0, 1.0), 0.0)


@compiled
def _deltas(a: Array, b: Array, epsilons: Array) -> Array:
    def at(epsilon: Array) -> Array:
        return jnp.max(1 - b - jnp.where(a > 0, jnp.exp(epsilon) * a, 0.0))

    known = jnp.all(_is_rate(a) & _is_rate(b)) & ~jnp.isnan(epsilons)
    return jnp.where(known, jnp.clip(jax.vmap(at)(epsilons), 0.0, 1.0), 1.0)


@compiled
def _symmetrized(a: Array, b: Array) -> Curve:
    rates, misses = jnp.concatenate([a, b]), jnp.concatenate([b, a])
    order = jnp.argsort(rates)
    return rates[order], _lower_hull(rates[order], misses[order])


@compiled
def _lower_hull(a: Array, b: Array) -> Array:
    """Returns the lower convex hull of points with nondecreasing a, at each a.

    A point is a vertex if no slope to its left exceeds one to its right, and none lies below it.
    """

    def is_vertex(i: Array) -> Array:
        run, rise = a - a[i], b - b[i]
        slopes = rise / jnp.where(run == 0, 1.0, run)
        left = jnp.max(jnp.where(run < 0, slopes, -jnp.inf))
        right = jnp.min(jnp.where(run > 0, slopes, jnp.inf))
        return (left <= right) & ~jnp.any((run == 0) & (rise < 0))

    count = len(a)
    index = jnp.arange(count)
    # One point at a time, in O(n) memory; all pairs at once would take n^2.
    vertex = jax.lax.map(is_vertex, index)
    before = jax.lax.cummax(jnp.where(vertex, index, 0))
    after = jax.lax.cummin(jnp.where(vertex, index, count - 1), reverse=True)
    width = a[after] - a[before]
    share = jnp.where(width > 0, (a - a[before]) / jnp.where(width > 0, width, 1.0), 1.0)
    return jnp.minimum(b[before] + share * (b[after] - b[before]), b)


def _seen(value: Any) -> Any:
    """Returns a list as an array, anything else as it is."""
    return np.asarray(value, np.float64) if isinstance(value, (list, tuple)) else value


def _checked(value: Any, name: str) -> Any:
    array = _seen(value)
    if np.ndim(array) != 1 or not np.size(array):
        raise ValueError(f"{name} of shape {np.shape(array)} is no list: give one axis, at least one entry.")
    return array


def _check_polygon(a: np.ndarray, b: np.ndarray) -> None:
    inside = np.all((a >= 0) & (a <= 1) & (b >= 0) & (b <= 1))
    if a.shape != b.shape or not inside or np.any(np.diff(a) < 0) or np.any(np.diff(b) > 0):
        raise ValueError(
            f"fpr and fnr of shapes {a.shape} and {b.shape} are no trade-off curve: give as many rates in [0, 1] of "
            "the one, increasing, as of the other, falling."
        )


def _curve(fpr: Any, fnr: Any) -> tuple[Array, Array]:
    a, b = _checked(fpr, "fpr"), _checked(fnr, "fnr")
    if is_concrete(a, b):
        _check_polygon(np.asarray(a), np.asarray(b))
    return as_float64(a), as_float64(b)
