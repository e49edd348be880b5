"""Certified root searches: each returns a point that was itself evaluated and seen to hold, wherever the search ends.

A search brackets the place where a condition begins to hold. Of the two ends of the bracket one is *safe*: there the
condition held when it was evaluated (or the caller has a proof). A step evaluates a point between the ends and moves
one of them to it: the safe end only if the condition held there, the other one otherwise. So by induction the safe end
holds after any number of steps, whatever the rounding, and whether or not the condition is monotone; monotonicity and
the number of steps decide how near it comes to the last point that holds. What is unknown (NaN) does not compare, so
the condition does not hold there. The certificate is the condition itself, an argument: an upper bound on a delta that
is at most the budget, a p-value below a level, a count that fits.

Which search, by what is evaluated:

- :func:`bisect` for Python's and NumPy's numbers, real or whole; :func:`bracket` finds its ends by doubling;
- :func:`bisect_traced` for JAX's, elementwise and inside a program, which holds the condition once;
- :func:`least_by_secants` for a function that takes seconds a call: a handful of calls;
- :func:`least_near_root` for a traced function of which every value is a bound: superlinear, elementwise.

Searches that stay elsewhere know more than a condition, and prove more than that it held:

- :func:`jaxacct.calibrate.search.search`: secants from bounds on both sides, which also prove how near the best is;
- Newton's steps with an error bound of their own: for a normal tail (:mod:`jaxacct.mechanisms.normal`), for the inverse
  of an increasing loss (:mod:`jaxacct.mechanisms.shifted_noise`), for the epsilon of a line over atoms, and a bound on
  it (:mod:`jaxacct.saddlepoint.composer`), and of another line or its saddle point
  (:mod:`jaxacct.saddlepoint.contour`, :mod:`jaxacct.saddlepoint.solve`);
- Newton's steps that are monotone by convexity, in a fixed number: stationary points of a sampled Gaussian's moments
  (:mod:`jaxacct.mechanisms.gaussian`), the reading of a mixture (:mod:`jaxacct.odometers`, which checks the result);
- the epsilon of one run of Laplace noise, whose bracket grows first (:mod:`jaxacct.saddlepoint.closed_forms`);
- the referee's, in ball arithmetic: it shares no code with what it judges (:mod:`jaxacct.verify`).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

Number = TypeVar("Number", int, float)


def mean(one: Any, other: Any) -> Any:
    """Returns the middle of two numbers, of Python's or of JAX's; of whole ones the whole part of it.

    >>> mean(1, 4), mean(1.0, 4.0)
    (2, 2.5)
    """
    total = one + other
    return total // 2 if isinstance(total, numbers.Integral) else total / 2


def geometric_mean(one: Any, other: Any) -> Any:
    """Returns the middle of two positive numbers in logarithms, of Python's numbers or of JAX's.

    >>> geometric_mean(1.0, 4.0)
    2.0
    """
    product = one * other
    return jnp.sqrt(product) if isinstance(product, jax.Array) else math.sqrt(product)


def bisect(
    holds: Callable[[Number], Any],
    safe: Number,
    other: Number,
    *,
    steps: int = 2000,
    close: float = 0.0,
    middle: Callable[[Any, Any], Any] = mean,
) -> Number:
    """Returns the end of a bracket at which ``holds`` is true, after so many halvings or where the ends are neighbours.

    Args:
        holds: whether a number is allowed; the certificate. The search does not call it at the ends.
        safe: an end that is known to hold; above or below the other.
        other: an end that is not known to hold.
        steps: most halvings; by default as many as float64 or whole numbers have, of which 53 to 1,100 are used.
        close: distance of the ends, as a share of the safe one, at which to end earlier.
        middle: the point between two others that is tried next; :func:`geometric_mean` for ratios.

    Formal guarantee: the result is ``safe``, or a number at which ``holds`` was true when it was called.

    >>> bisect(lambda n: n * n <= 50, 0, 50)
    7
    >>> bisect(lambda x: x * x >= 2.0, 2.0, 0.0) ** 2 >= 2.0
    True
    """
    # Invariant: ``safe`` holds. Each pass moves one of the ends to the point between them.
    for _ in range(steps):
        point = middle(safe, other)
        if point in (safe, other) or abs(other - safe) <= close * abs(safe):
            break
        safe, other = (point, other) if holds(point) else (safe, point)
    return safe


def bracket(holds: Callable[[Number], Any], start: Number, most: Number, *, safe: Number) -> tuple[Number, Number]:
    """Returns the largest number that was seen to hold, and the next one that was not, by doubling up to ``most``.

    Args:
        holds: as of :func:`bisect`.
        start: the first number that is tried, above 0.
        most: the last one that is tried.
        safe: a number below, which is returned in the first place where ``start`` does not hold.

    Both are ``most`` where all of them hold.

    >>> bracket(lambda n: n * n <= 50, 1, 100, safe=0), bracket(lambda n: True, 1, 100, safe=0)
    ((4, 8), (100, 100))
    """
    # Doubling until one does not hold; ``safe`` is the last that did.
    point = start
    while holds(point):
        if point >= most:
            return point, point
        safe, point = point, min(2 * point, most)
    return safe, point


def bisect_traced(
    holds: Callable[[Array], Array],
    safe: Array,
    other: Array,
    *,
    steps: int,
    middle: Callable[[Any, Any], Any] = mean,
    otherwise: float | None = None,
) -> Array:
    """Returns, elementwise, the end of a bracket at which ``holds`` is true, after so many halvings; inside a program.

    Args:
        holds: whether numbers are allowed, elementwise; the certificate. It is traced once.
        safe (...): ends that are known to hold; above or below the others, or equal to them.
        other (...): ends that are not known to hold.
        steps: halvings, static. The loop has a fixed length: lanes of a batch take equally long.
        middle: the points between two others that are tried next.
        otherwise: where it is given, neither end is known to hold, and both are evaluated first, in the same loop, so
            that the program holds the condition once still: the result is ``other`` where that holds, and this number
            where ``safe`` does not.

    Formal guarantee: each result is ``safe``, or a number at which ``holds`` was true in the loop, or ``otherwise``.

    >>> bisect_traced(lambda x: x * x >= 2.0, jnp.full(1, 2.0), jnp.zeros(1), steps=20).round(4).tolist()
    [1.414199948310852]
    """

    # The state is a bracket, the safe end of which holds, and the last point that held where neither end is known to;
    # each step moves one of the ends to the point that it tries.
    def halve(index: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        safe, other, *allowed = state
        point: Array = middle(safe, other)
        is_first: Array | bool = False
        if allowed:
            # The first step tries the safe end, and the second the other one.
            is_first = index == 0
            point = jnp.where(is_first, safe, jnp.where(index == 1, other, point))
        is_allowed = holds(point)
        ends = jnp.where(is_allowed, point, safe), jnp.where(is_allowed | is_first, other, point)
        return (*ends, *(jnp.where(is_allowed, point, last) for last in allowed))

    if otherwise is None:
        return jax.lax.fori_loop(0, steps, halve, (safe, other))[0]
    return jax.lax.fori_loop(0, steps + 2, halve, (safe, other, jnp.full_like(safe, otherwise)))[2]


# ----------------------------------------------------------------------------------------------------
# Superlinear searches: for functions that take seconds a call, or of which every value is a bound.
# ----------------------------------------------------------------------------------------------------


def least_by_secants(
    cost: Callable[[float], float], start: float, *, close: float, rounds: int, slope: float = -1.0
) -> float:
    """Returns a setting u of cost at most 1 that is near the least, one that was evaluated; inf where none was found.

    Args:
        cost: falls in u, about as a power of e^u. A cost that is NaN does not count as at most 1.
        start: the first setting.
        close: distance from 0 in the logarithm of the cost at which to end.
        rounds: most evaluations.
        slope: about d log(cost) / du.

    Formal guarantee: ``cost`` was at most 1 at the result, when it was called there.

    >>> u = least_by_secants(lambda u: 100.0 * math.exp(-u), 0.0, close=1e-3, rounds=10)
    >>> 0.0 <= u - math.log(100.0) <= 1e-3
    True
    """
    # Caps of a height (nats), and of the ratio of a secant's slope to the expected one, either way: upwards only until
    # there is a bracket, for a steep cost swings about its root if steps are too long. They cost evaluations only.
    most, steeper = 2.0, 4.0
    passed, failed = math.inf, -math.inf
    u, expected, before = start, slope, None
    # A bracket (failed, passed] with secants inside; the search halves it where a secant leaves it, so that rough costs
    # cannot send it astray. It evaluated the result itself, at a cost of at most 1, however the loop ends.
    for _ in range(rounds):
        height = math.log(min(max(cost(u), math.exp(-most)), math.exp(most)))
        if height <= 0:
            passed = min(passed, u)
        else:
            failed = max(failed, u)
        if -close <= height <= 0:
            break
        if before is not None and abs(height) < most and u != before[0]:
            secant = (height - before[1]) / (u - before[0])
            steepest = -math.inf if failed > -math.inf and passed < math.inf else steeper * expected
            slope = min(max(secant, steepest), expected / steeper)
        before = u, height
        u -= (height + close / 2) / slope
        if not failed < u < passed:
            u = (failed + passed) / 2 if passed < math.inf else failed + most / 2
    return passed


def least_near_root(function: Callable[[Array], tuple[Array, Array]], low: Array, high: Array, rounds: int) -> Array:
    """Returns the least bound seen in a search for a root between ``low`` and ``high``, in ``rounds`` evaluations.

    ``function`` gives a value, which rises through 0 at the root, and a bound, which holds wherever it is taken and is
    best at the root: so the search decides how good a bound is found and never whether it is one.

    Source: Chandrupatla (1997), "A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear
    function without using derivatives": inverse quadratic interpolation where three points allow it, bisection
    elsewhere. So a fixed number of rounds, 10 to 28 in a compiled conversion, is enough for all elements; bisection
    would trace as much and run twice as many. The ends are not evaluated: the value is taken to
    be negative at ``low`` and positive at ``high``, and the search runs into one of them where it is not. A value that
    is NaN counts as positive; a bound that is NaN is ignored.
    """

    def narrow(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        near, near_value, far, far_value, share, least = state
        point = near + share * (far - near)
        value, bound = function(point)
        least = jnp.where(bound < least, bound, least)
        keeps = (value < 0) == (near_value < 0)
        other, other_value = jnp.where(keeps, near, far), jnp.where(keeps, near_value, far_value)
        far, far_value = jnp.where(keeps, far, near), jnp.where(keeps, far_value, near_value)
        # Where the values at the three points are monotone enough, interpolation stays between the two (Chandrupatla).
        position, height = (point - far) / (other - far), (value - far_value) / (other_value - far_value)
        is_safe = (height**2 < position) & ((1 - height) ** 2 < 1 - position)
        step = value / (far_value - value) * other_value / (far_value - other_value) + (other - point) / (
            far - point
        ) * value / (other_value - value) * far_value / (other_value - far_value)
        share = jnp.where(is_safe & (jnp.abs(step) < jnp.inf), jnp.clip(step, 1e-9, 1 - 1e-9), 0.5)
        return point, value, far, far_value, share, least

    # The state is the newest point, the end on the root's other side, their values, the next step's share of the
    # distance between them, and the least bound so far.
    unknown = jnp.full_like(low, jnp.inf)
    start = (low, -unknown, high, unknown, jnp.full_like(low, 0.5), unknown)
    return jax.lax.fori_loop(0, rounds, narrow, start)[-1]
