"""The two verbs of the certified accountant."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxacct import validation
from jaxacct.batching import stack
from jaxacct.bounds import Bounds
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.mechanisms import Mechanism
from jaxacct.precision import as_float64, first_index, in_float64, is_concrete, outside
from jaxacct.prv.compose import self_compose, truncation_tail
from jaxacct.prv.discretize import discretize, mesh, window
from jaxacct.prv.evaluate import delta_of, epsilon_of
from jaxacct.prv.lattice import LossLattice

DEFAULT_TOLERANCE = {"epsilon": 1e-3, "delta": 1e-2}
"""Relative gap aimed at where the caller names none; delta moves about ten times faster than epsilon."""

DEFAULT_POINTS = 2**13
"""Mesh points inside a trace, where no gap can be looked at."""

LADDER = (2**12, 2**14, 2**16, 2**18)
"""Mesh points tried in turn until the gap is within the tolerance: few sizes, so few compilations.
Each narrows the gap about sixteenfold and costs about four times more than the one before."""


def epsilon(
    mechanism: Mechanism,
    steps: ArrayLike,
    delta: ArrayLike,
    *,
    relation: str = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
) -> Bounds:
    """Returns certified bounds on epsilon of a mechanism run ``steps`` times, at ``delta``.

    Args:
        mechanism: one mechanism, scalar fields. Batches are ``jax.vmap``.
        steps (): number of adaptive runs, a whole number, at least 0. May be traced.
        delta (): failure probability in (0, 1). May be traced.
        relation: neighbouring relation, one that the mechanism supports.
        tolerance: wanted relative gap ``(upper - lower) / upper``; concrete arguments only. The mesh is refined until
            the gap is that small or the largest mesh is reached; the gap of the result says which. Default 1e-3.
        points: mesh points, a power of two, in place of ``tolerance``. Inside a trace the default is 8192.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars: NumPy ones, or JAX ones inside a trace.

    Formal guarantee: ``lower <= epsilon <= upper`` for the tight epsilon of the dominating pair's ``steps``-fold
    product, hence ``upper`` holds for the mechanism composed adaptively with parameters fixed beforehand, under the
    given relation and the mechanism's own sampling. Discretization, truncation and rounding are inside the bounds.
    Invalid traced parameters and no noise give ``upper = inf``.

    Raises:
        ValueError: a concrete argument out of range, an unsupported relation, both or bad ``tolerance`` and ``points``.

    Source: discretization, Doroshenko et al. (2022), "Connect the dots"; composition, Ghazi et al. (2022), "Faster
    privacy accounting via evolving discretization".

    >>> from jaxacct import Gaussian
    >>> bounds = epsilon(Gaussian(noise_multiplier=10.0), steps=100, delta=1e-5)
    >>> bool(bounds.lower <= 4.377178 <= bounds.upper), bool(bounds.gap < 1e-3)
    (True, True)
    """
    validation.check_delta(delta)
    return _bounds("epsilon", mechanism, steps, delta, relation, tolerance, points)


def delta(
    mechanism: Mechanism,
    steps: ArrayLike,
    epsilon: ArrayLike,
    *,
    relation: str = "add_or_remove",
    tolerance: float | None = None,
    points: int | None = None,
) -> Bounds:
    """Returns certified bounds on delta of a mechanism run ``steps`` times, at ``epsilon``.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon`` (), at least 0, stands in for delta,
    and ``tolerance`` is the relative gap of delta, 1e-2 by default. Where nothing is known ``upper`` is 1.

    >>> from jaxacct import Gaussian
    >>> bounds = delta(Gaussian(noise_multiplier=10.0), steps=100, epsilon=1.0)
    >>> bool(bounds.lower <= 0.12693674 <= bounds.upper), bool(bounds.gap < 1e-2)
    (True, True)
    """
    validation.check_epsilon(epsilon)
    return _bounds("delta", mechanism, steps, epsilon, relation, tolerance, points)


def _bounds(
    quantity: str,
    mechanism: Mechanism,
    steps: ArrayLike,
    value: ArrayLike,
    relation: str,
    tolerance: float | None,
    points: int | None,
) -> Bounds:
    mechanism.validate()
    validation.check_steps(steps)
    _check_scalar(mechanism, steps, value)
    if points is not None:
        if tolerance is not None:
            raise ValueError("tolerance and points are both given: give the gap wanted, or the size of the mesh.")
        if points < 2**6 or points & (points - 1):
            raise ValueError(f"points = {points} is not a number of mesh points: give a power of two, at least 64.")
        return _compute(quantity, mechanism, steps, value, relation, points)
    if not is_concrete(mechanism, steps, value):
        if tolerance is not None:
            raise ValueError(
                f"tolerance = {tolerance} cannot be used inside jit, vmap or scan, where the shapes are fixed before "
                "the gap is known: give points, the number of mesh points, instead."
            )
        return _compute(quantity, mechanism, steps, value, relation, DEFAULT_POINTS)
    wanted = DEFAULT_TOLERANCE[quantity] if tolerance is None else tolerance
    validation.check_positive(wanted, "tolerance")
    bounds = _compute(quantity, mechanism, steps, value, relation, LADDER[0])
    gap = float("inf")
    for size in LADDER[1:]:
        previous, gap = gap, float(bounds.gap)
        # A finer mesh cannot help where nothing is finite, nor where rounding or truncation is what is left.
        if gap <= wanted or gap == float("inf") or 0.9 * previous < gap < 0.5:
            break
        bounds = _tighter(bounds, _compute(quantity, mechanism, steps, value, relation, size))
    return bounds


def _tighter(first: Bounds, second: Bounds) -> Bounds:
    """Returns the intersection of two valid brackets, which is valid."""
    lower, upper = max(first.lower, second.lower), min(first.upper, second.upper)
    return Bounds(lower=lower, estimate=min(max(second.estimate, lower), upper), upper=upper)


def _check_scalar(mechanism: Mechanism, steps: ArrayLike, value: ArrayLike) -> None:
    shapes = {jnp.shape(leaf) for leaf in jax.tree.leaves((mechanism, steps, value))}
    if shapes != {()}:
        raise ValueError(
            f"mechanism, steps and delta or epsilon have shapes {sorted(shapes)}: prv composes one mechanism with "
            "itself; give scalars, and use jax.vmap for batches."
        )


@in_float64
def _compute(
    quantity: str, mechanism: Mechanism, steps: ArrayLike, value: ArrayLike, relation: str, points: int
) -> Bounds:
    pairs = mechanism.dominating_pairs(relation)
    # The directions as one batch: their pairs differ in data only. One dtype whatever came in, so one compilation.
    directions = stack(*pairs)
    return outside(_jitted(directions, as_float64(steps), as_float64(value), quantity, points))


@functools.partial(jax.jit, static_argnames=("quantity", "points"))
def _jitted(directions: DominatingPair, steps: Array, value: Array, quantity: str, points: int) -> Bounds:
    valid = jnp.all(jax.vmap(lambda pair: pair.is_valid())(directions))
    valid &= (steps >= 0) & (steps == jnp.floor(steps)) & (steps <= 2.0**53)
    is_epsilon = quantity == "epsilon"
    valid &= (value > 0) & (value < 1) if is_epsilon else value >= 0
    worst = jnp.inf if is_epsilon else 1.0
    rows = jax.vmap(lambda pair: stack(*_discretized(pair, steps, value, quantity, points)))(directions)
    rows = jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), rows)
    composed = self_compose(rows, steps.astype(jnp.int64))
    results = jax.vmap(epsilon_of if is_epsilon else delta_of, in_axes=(0, None))(composed, value)
    # The relation asks for the larger of the directions; rows alternate upper, lower.
    upper, lower = jnp.max(results[0::2]), jnp.max(results[1::2])
    idle = valid & (steps == 0)
    upper = jnp.where(idle, 0.0, jnp.where(valid & ~jnp.isnan(upper), upper, worst))
    lower = jnp.where(valid & ~idle, lower, 0.0)
    estimate = jnp.where(upper < worst, (lower + upper) / 2, upper)
    return Bounds(lower=lower, estimate=estimate, upper=upper)


def _discretized(
    pair: DominatingPair, steps: Array, value: Array, quantity: str, points: int
) -> tuple[LossLattice, LossLattice]:
    order, low, high = _tilt(pair, steps, value, quantity)
    start, h = mesh(pair, low, high, points)
    return discretize(pair, order, start, h, points)


TILT_NODES = 256
"""Quadrature nodes of the cumulants by which the tilt is chosen; no bound depends on their accuracy."""

TILT_EXCESS = 8.0
"""How far, in nats, the Chernoff exponent may lie above its least for the sake of a smaller window, at most."""

TILT_LOSS = 1e-4
"""Relative error of delta that this may cost by the rounding of all compositions, about ROUNDING_PER_STEP each."""

ROUNDING_PER_STEP = 2e-13
"""The bound of convolve.fft_error for a bulk of an eighth of the window; hardly depends on the number of points."""


def _tilt(pair: DominatingPair, steps: Array, value: Array, quantity: str) -> tuple[Array, Array, Array]:
    """Returns the order by which the loss is tilted, and the window of one tilted step.

    Any t > 0 is valid. What truncation and rounding cost is, relative to delta, their share of the tilted mass times
    the exponential of k K(t) - t eps + t log t - (1 + t) log(1 + t) - log delta, so the t that makes this least loses
    least. A smaller t has a smaller window where large losses are rare, hence a finer mesh. Of the orders that lose
    only so much more than the best, the one with the smallest window is taken.
    """
    orders = jnp.exp2(jnp.linspace(-8.0, 20.0, 64))
    cumulants = jax.vmap(lambda t: pair.cumulant(t, nodes=TILT_NODES))(orders)
    exponent = steps * cumulants + orders * jnp.log(orders) - (1 + orders) * jnp.log1p(orders)
    exponent = jnp.where(jnp.isfinite(exponent), exponent, jnp.inf)
    epsilon = jnp.min((exponent - jnp.log(value)) / orders) if quantity == "epsilon" else value
    loss = exponent - orders * epsilon
    low, high = jax.vmap(lambda t, log_mass: window(pair, t, log_mass, truncation_tail(steps)))(orders, cumulants)
    excess = jnp.clip(jnp.log(TILT_LOSS / ROUNDING_PER_STEP) - jnp.log(jnp.maximum(steps, 1.0)), 0.1, TILT_EXCESS)
    width = jnp.where(loss <= jnp.min(loss) + excess, high - low, jnp.inf)
    best = first_index(width <= jnp.nanmin(width))
    return orders[best], low[best], high[best]
