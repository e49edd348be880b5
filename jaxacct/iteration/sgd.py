"""Projected noisy SGD in one pass, of which only the last iterate is released: its delta and its Rényi divergence.

Each record is read once, in one iteration; the noise of all later iterations hides it. The bounds are the contraction
of the hockey-stick divergence (Asoodeh, Diaz and Calmon 2020) and amplification by iteration (Feldman et al. 2018;
Bok, Su and Altschuler 2024), both of :mod:`jaxacct.iteration.contraction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct import validation
from jaxacct.convert.renyi import Orders, checked_orders, log_delta_of_orders
from jaxacct.iteration.contraction import (
    as_array,
    check_not_negative,
    extended,
    from_log,
    kernel,
    log_theta,
    raised_epsilon,
)
from jaxacct.mechanisms.mechanism import Fields
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.pytrees import register_dataclass

NEEDS_CONVEXITY = ("renyi", "shifted")
"""Names of the methods that need convex smooth losses."""
METHODS = ("contraction", "recursive", *NEEDS_CONVEXITY, "best")
"""Names of the methods of :func:`last_iterate_delta`."""

HIGHEST_ORDER, ORDERS = 4096.0, 128
"""Highest order of the Rényi methods, and number of orders that they try, geometric in order - 1, up to the highest one
that the bound admits. Sound for any value."""


def rounded_up() -> float:
    """Returns a factor that covers the four roundings of each ratio below."""
    return 1 + 16 * roundoff()


@register_dataclass
@dataclass(frozen=True)
class ProjectedNoisySGD(Fields):
    """Projected noisy SGD: w <- projection onto K of w - learning_rate (gradient at w of record t's loss + Z).

    Z ~ N(0, noise^2 I). Iteration t reads record t and no other, so there are as many records as steps; data sets are
    neighbours if one record is *replaced* by another.

    Attributes:
        learning_rate (...): above 0.
        lipschitz (...): L, the Lipschitz constant of the loss in w: bound on the gradient's norm on K, above 0.
        noise (...): standard deviation of Z in each coordinate, at least 0. 0 promises nothing: delta is 1.
        steps (...): number of iterations T, at least 1.
        diameter (...): diameter of K, which the contraction bounds need; infinity for none. 1 in the reference.
        smoothness (...): beta, Lipschitz constant of the gradients, 0 for linear losses; giving it states that losses
            and K are *convex*. None claims nothing, and only the contraction bounds apply.

    Fields broadcast; they may be traced, and then what cannot raise promises nothing.

    Source: Feldman, Mironov, Talwar and Thakurta (2018), "Privacy amplification by iteration", Algorithm 1.

    >>> ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100).diameter
    1.0
    """

    learning_rate: ArrayLike
    lipschitz: ArrayLike
    noise: ArrayLike
    steps: ArrayLike
    diameter: ArrayLike = 1.0
    smoothness: ArrayLike | None = None

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        validation.check_positive(self.learning_rate, "learning_rate")
        validation.check_positive(self.lipschitz, "lipschitz")
        check_not_negative(self.noise, "noise", "the standard deviation of the noise added to each gradient")
        validation.check_steps(self.steps)
        steps = validation.concrete_value(self.steps)
        if steps is not None and not np.all(steps >= 1):
            raise ValueError(f"steps = {self.steps}: nothing is run, so nothing is released; give at least 1.")
        check_not_negative(self.diameter, "diameter", "the diameter of the set projected onto")
        if self.smoothness is not None:
            check_not_negative(self.smoothness, "smoothness", "beta, the Lipschitz constant of the losses' gradients")

    def check_contractive(self, method: str) -> None:
        """Raises ValueError unless gradient steps are known to be 1-Lipschitz, which ``method`` needs."""
        if self.smoothness is None:
            raise ValueError(
                f"smoothness = None: method {method!r} needs convex and smooth losses; give their smoothness (0 for "
                "linear ones) if they are, or choose method 'contraction' or 'recursive'."
            )
        rate, beta = validation.concrete_value(self.learning_rate), validation.concrete_value(self.smoothness)
        if rate is not None and beta is not None and np.any(rate * beta > 2):
            raise ValueError(
                f"learning_rate = {self.learning_rate} is above 2 / smoothness = {2 / np.max(beta):.6g}: gradient "
                f"steps are then no contractions, which method {method!r} needs; lower it, or choose 'contraction'."
            )


def last_iterate_delta(
    sgd: ProjectedNoisySGD,
    epsilon: ArrayLike,
    *,
    position: ArrayLike | None = None,
    method: str = "best",
    log: bool = False,
) -> Float[Array, ...]:
    """Returns an upper bound on delta of releasing the last iterate alone.

    Args:
        sgd: the algorithm; its fields broadcast with the other arguments.
        epsilon (...): at least 0. May be traced.
        position (...): the iteration, from 1 to ``sgd.steps``, that reads the record in question; the earlier, the more
            noise hides it. None: the last one, which is the worst and has one noise alone.
        method: with k = steps - position iterations after it, ratio r0 = 2 L / noise and
            "contraction": theta(r0) theta(r)^k, r = (diameter + 2 learning_rate L) / (learning_rate noise);
            "recursive": the same with the recursive rule of :func:`contracted_delta`, never larger;
            "renyi": by Feldman et al.'s 2 order L^2 / (noise^2 (k + 1)), for convex smooth losses;
            "shifted": theta(r0 / sqrt(k + 1)), likewise;
            "best": the least that any of these gives at any iteration; the middle two only where they apply.
        log: whether to return the natural logarithm, for what float64 does not hold.

    Returns float64 (...), in [0, 1].

    Formal guarantee: an upper bound on delta at epsilon for replacing the record read at ``position``, earlier iterates
    hidden; rounding is included. 1 for no noise and for traced values out of range.

    Raises ValueError where a concrete argument is out of range, or where ``method`` needs convexity, smoothness and a
    learning rate of at most 2 / smoothness, and they are not given.

    Source: Asoodeh, Diaz and Calmon (2020), arXiv:2012.11035; Feldman et al. (2018), from their Theorem 22; Bok, Su and
    Altschuler (2024). Proofs in :mod:`jaxacct.iteration.contraction`: at its position the record moves the iterate by
    at most 2 learning_rate L, under noise of learning_rate * noise.

    >>> sgd = ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100)
    >>> last_iterate_delta(sgd, 0.1, method="contraction").round(6).tolist()
    0.119383
    >>> bool(last_iterate_delta(sgd, 0.1, position=90, method="contraction") < 0.09)
    True
    """
    check_delta_call(sgd, epsilon, method, METHODS)
    if position is None:
        position = sgd.steps
    position = as_array(position)
    seen, steps = validation.concrete_value(position), validation.concrete_value(sgd.steps)
    if seen is not None and steps is not None and not np.all((seen >= 1) & (seen <= steps) & (seen == np.floor(seen))):
        raise ValueError(f"position = {position} is no iteration: give a whole number from 1 to steps = {sgd.steps}.")
    return _last_iterate_delta(sgd, as_array(epsilon), position, method=method, log=log)


def last_iterate_rdp(
    sgd: ProjectedNoisySGD, orders: Orders, *, position: ArrayLike | None = None
) -> Float[Array, " orders"]:
    """Returns the Rényi divergence of releasing the last iterate alone, at each order, rounded up.

    Args:
        sgd: the algorithm, scalar fields; batches are ``jax.vmap``. Its smoothness must be given.
        orders (orders,): Rényi orders above 1.
        position (): the iteration that reads the record in question; the last one by default, which is the worst.

    Returns float64 (orders,): 2 order L^2 / (noise^2 (steps - position + 1)).

    Formal guarantee: an upper bound on the divergence for replacing the record read at ``position``, earlier iterates
    hidden, rounding included, for convex smooth losses and a learning rate of at most 2 / smoothness. ``inf`` for
    traced values out of range.

    Raises ValueError as :func:`last_iterate_delta` does.

    Source: Feldman et al. (2018), Theorem 22 with one shift of 2 learning_rate L.

    >>> sgd = ProjectedNoisySGD(learning_rate=0.05, lipschitz=1.0, noise=5.0, steps=100, smoothness=1.0)
    >>> last_iterate_rdp(sgd, [2.0, 4.0], position=91).round(6).tolist()
    [0.016, 0.032]
    """
    sgd.check_contractive("renyi")
    return _last_iterate_rdp(sgd, checked_orders(orders), sgd.steps if position is None else position)


def check_delta_call(sgd: ProjectedNoisySGD, epsilon: Any, method: str, methods: tuple[str, ...]) -> None:
    """Raises where the arguments that all deltas have in common are not valid."""
    sgd.validate()
    validation.check_one_of(method, "method", methods)
    validation.check_epsilon(as_array(epsilon))
    if method not in ("contraction", "recursive", "best"):
        sgd.check_contractive(method)


def is_valid(sgd: Any) -> Array:
    """Returns whether traced fields are in range; inside the scope."""
    whole = (sgd.steps >= 1) & (jnp.floor(sgd.steps) == sgd.steps) & (sgd.steps < jnp.inf)
    sizes = (sgd.learning_rate > 0) & (sgd.lipschitz > 0) & (sgd.noise > 0) & (sgd.diameter >= 0)
    return whole & sizes & (sgd.learning_rate < jnp.inf) & (sgd.lipschitz < jnp.inf)


def is_contractive(sgd: Any) -> Array:
    """Returns whether gradient steps are known to be 1-Lipschitz; inside the scope."""
    if sgd.smoothness is None:
        return jnp.zeros(sgd.steps.shape, bool)
    return (sgd.smoothness >= 0) & (sgd.learning_rate * sgd.smoothness <= 2)


def first_ratio(sgd: Any) -> Array:
    """Returns 2 L / noise, rounded up: how far the record moves the iterate at its own position, over the noise."""
    return 2 * sgd.lipschitz / sgd.noise * rounded_up()


def image_ratio(sgd: Any, *, use_convexity: bool) -> Array:
    """Returns the diameter of a gradient step's images over the noise, rounded up.

    Two gradients differ by at most 2 L; where gradient steps are contractions, images are no farther apart than inputs.
    """
    apart = sgd.diameter + 2 * sgd.learning_rate * sgd.lipschitz
    if use_convexity:
        apart = jnp.where(is_contractive(sgd), sgd.diameter, apart)
    return apart / (sgd.learning_rate * sgd.noise) * rounded_up()


def next_log_delta(sgd: Any, epsilon: Array, before: Array, count: Array, method: str) -> Array:
    """Returns log delta after ``count`` iterations from the record's own on, given log delta after one fewer."""
    own = epsilon, first_ratio(sgd) / jnp.sqrt(count) * rounded_up()
    if method == "shifted":
        return log_theta(*own)
    further = raised_epsilon(epsilon, before), image_ratio(sgd, use_convexity=method == "best")
    # One batch of two: half the code to compile.
    shifted, factor = log_theta(*map(jnp.stack, zip(own, further, strict=True)))
    hidden = extended(before, factor)
    if method == "best":
        hidden = jnp.where(is_contractive(sgd), jnp.minimum(hidden, shifted), hidden)
    # At count 1 nothing came before: the record's own noise alone decides, and both bounds are theta(r0).
    return jnp.where(count == 1, shifted, hidden)


def by_order(sgd: Any) -> Any:
    """Returns the algorithm with a leading axis for the orders."""
    return jax.tree.map(lambda field: field[None], sgd)


def log_delta_of_rdp(divergence: Array, orders: Array, epsilon: Array) -> Array:
    """Returns the least log delta over the orders (orders, ...) that Rényi divergences imply at epsilon (...).

    The rule is that of Asoodeh et al.'s corollary, in two branches: close to the optimum at a fraction of its cost.
    """
    known = divergence < jnp.inf
    divergence, epsilon = jnp.where(known, divergence, 1.0), jnp.broadcast_to(epsilon, divergence.shape)
    logs = log_delta_of_orders(divergence, orders, jnp.minimum(epsilon, 1e300), "closed")
    return jnp.min(jnp.where(known, logs, 0.0), axis=0)


def order_grid(highest: Array) -> Array:
    """Returns orders (ORDERS, ...) up to ``highest`` (...)."""
    grid = np.geomspace(1e-5, 1.0, ORDERS).reshape((ORDERS,) + (1,) * highest.ndim)
    return 1 + (highest - 1)[None] * grid


@kernel
def _last_iterate_delta(sgd: Any, epsilon: Array, position: Array, *, method: str, log: bool) -> Array:
    after = sgd.steps - position
    known = is_valid(sgd) & (position >= 1) & (after >= 0) & (jnp.floor(position) == position) & (epsilon >= 0)
    if method in NEEDS_CONVEXITY:
        known &= is_contractive(sgd)
    if method == "contraction":
        ratios = first_ratio(sgd), image_ratio(sgd, use_convexity=False)
        start, factor = log_theta(jnp.stack([epsilon, epsilon]), jnp.stack(ratios))
        result = start + jnp.where(after > 0, after * factor * (1 - 4 * roundoff()), 0.0)
    elif method == "shifted":
        result = next_log_delta(sgd, epsilon, epsilon, after + 1, method)
    elif method == "renyi":
        orders = order_grid(jnp.full_like(epsilon, HIGHEST_ORDER))
        result = log_delta_of_rdp(_divergence(by_order(sgd), orders, after[None] + 1), orders, epsilon)
    else:
        # One step adds one hidden iteration to every lane; ``before`` is log delta after the iterations so far, and
        # stays as it is in lanes that are done. The loop ends with the longest.
        def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
            count, before = state
            later = next_log_delta(sgd, epsilon, before, count, method)
            return count + 1, jnp.where(count <= after + 1, later, before)

        most = jnp.max(jnp.where(known, after + 1, 0.0))
        _, result = jax.lax.while_loop(lambda state: state[0] <= most, body, (jnp.ones(()), jnp.zeros_like(epsilon)))
    return from_log(jnp.where(known, result, 0.0), log=log)


def _divergence(sgd: Any, orders: Array, count: Array) -> Array:
    """Returns 2 order L^2 / (noise^2 count), rounded up."""
    return orders * 2 * (sgd.lipschitz / sgd.noise) ** 2 / count * rounded_up()


@kernel
def _last_iterate_rdp(sgd: Any, orders: Array, position: Array) -> Array:
    after = sgd.steps - position
    known = is_valid(sgd) & is_contractive(sgd) & (orders > 1) & (position >= 1) & (after >= 0)
    return jnp.where(known & (jnp.floor(position) == position), _divergence(sgd, orders, after + 1), jnp.inf)
