"""What is asked of a composition: epsilon at a delta, or delta at an epsilon.

A question is a pytree with one leaf, the number that it gives, so it passes through ``jit``, ``vmap`` and ``jvp``;
which of the two it is, is its type, which is static. It knows what its answers look like: the worst of them, when one
has converged, and how what is known without composing (:class:`.Facts`) closes a bracket at the ends of the range. How
an answer is found is the accountants'.

The loss of a composition is at most the sum S of its losses' suprema, if it is finite. So for a mass m of infinite
losses delta(eps) = m from eps = S on, delta(inf) = m, and epsilon(delta) <= S for every delta >= m. At delta = 0, if
m = 0, epsilon is S itself: the pure guarantee. Below S delta is above 0, however little float64 can hold of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct import validation
from jaxacct.arithmetic import roundoff
from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, check
from jaxacct.precision import TINY
from jaxacct.pytrees import register_dataclass

NEGLIGIBLE = 1e-9
"""Relative width below which a bracket has converged by any standard, and its middle is an estimate.

So has one below the smallest normal float64, within which XLA tells no numbers apart.
"""


@register_dataclass
@dataclass(frozen=True)
class ForEpsilon:
    """Asks for epsilon at ``delta`` (), in [0, 1); 0 asks for the pure epsilon."""

    delta: Any

    name: ClassVar[str] = "epsilon"
    given: ClassVar[str] = "delta"
    worst: ClassVar[float] = math.inf
    tolerance: ClassVar[float] = 1e-3
    """Relative gap that is aimed at where none is asked for."""

    @property
    def value(self) -> Any:
        """The number given."""
        return self.delta

    def at(self, value: Any) -> ForEpsilon:
        """Returns the same question of another number."""
        return ForEpsilon(value)

    def check(self) -> None:
        """Raises where the number is none, or is concrete and out of range."""
        validation.check_delta(self.delta, pure=True)

    def close(self, bounds: Bounds, facts: Facts, is_inside: bool = False) -> Bounds:
        """Returns a bracket of epsilon closed by the supremum, and exact where nothing is run.

        ``is_inside`` says that delta is known to be in (0, 1). By the supremum s of finite losses delta(eps) is at most
        1 - e^(eps - s), besides the mass of infinite ones: so eps is at most s + log(1 - delta).
        """
        delta = self.delta
        lower, upper = jnp.asarray(bounds.lower), jnp.asarray(bounds.upper)
        valid = facts.is_valid if is_inside else facts.is_valid & (delta >= 0) & (delta < 1)
        least, most = facts.masses or (0.0, 0.0)
        upper = upper if is_inside else jnp.where(delta == 0, jnp.inf, upper)
        pure = jnp.full_like(lower, jnp.inf)
        if facts.suprema is not None:
            low, high = facts.suprema
            pure = jnp.maximum(lower, low)
            room = jnp.clip(delta - most, 0.0, 1.0)
            below = high + jnp.log1p(-room * (1 - 4 * roundoff()))
            below = jnp.maximum(below + 16 * roundoff() * (high + jnp.abs(below)), 0.0)
            below = jnp.where(room > 0, jnp.minimum(below, high), high)
            upper = jnp.where(delta >= most, jnp.minimum(upper, below), upper)
        lower = lower if is_inside else jnp.where(delta == 0, pure, lower)
        if facts.masses is not None:
            lower = jnp.where(delta < least, jnp.inf, lower)
        return _settled(bounds, lower, upper, valid, facts.is_idle, self.worst)


@register_dataclass
@dataclass(frozen=True)
class ForDelta:
    """Asks for delta at ``epsilon`` (), at least 0; ``inf`` asks for the mass of infinite losses."""

    epsilon: Any

    name: ClassVar[str] = "delta"
    given: ClassVar[str] = "epsilon"
    worst: ClassVar[float] = 1.0
    tolerance: ClassVar[float] = 1e-2
    """Delta moves about ten times faster than epsilon."""

    @property
    def value(self) -> Any:
        """The number given."""
        return self.epsilon

    def at(self, value: Any) -> ForDelta:
        """Returns the same question of another number."""
        return ForDelta(value)

    def check(self) -> None:
        """Raises where the number is none, or is concrete and out of range."""
        validation.check_epsilon(self.epsilon)

    def close(self, bounds: Bounds, facts: Facts, is_inside: bool = False) -> Bounds:
        """Returns a bracket of delta closed by the mass of infinite losses, and exact where nothing is run.

        ``is_inside`` says that epsilon is known to be in (0, inf).
        By the supremum s of finite losses it is at most 1 - e^(eps - s), besides the mass of infinite ones.
        The upper end is not below the smallest normal float64 unless delta is 0, for the truth may be.
        """
        epsilon = self.epsilon
        lower, upper = jnp.asarray(bounds.lower), jnp.asarray(bounds.upper)
        valid = facts.is_valid if is_inside else facts.is_valid & (epsilon >= 0)
        least, most = facts.masses or (0.0, 0.0)
        beyond = epsilon == jnp.inf
        lower = jnp.where(beyond, least, lower if facts.masses is None else jnp.maximum(lower, least))
        if facts.suprema is not None:
            past = epsilon - facts.suprema[1]
            beyond = (past >= 0) | beyond
            # The difference errs by a unit of itself, its exponential's distance from 1 by eight.
            below = most - jnp.expm1(jnp.minimum(past, 0.0)) * (1 + 16 * roundoff())
            upper = jnp.minimum(upper, below * (1 + 4 * roundoff()))
        upper = jnp.where(beyond, jnp.minimum(most, 1.0), jnp.maximum(upper, TINY))
        return _settled(bounds, jnp.minimum(lower, upper), upper, valid, facts.is_idle, self.worst)


Question: TypeAlias = ForEpsilon | ForDelta

Kind: TypeAlias = type[ForEpsilon] | type[ForDelta]
"""Which of the two, before its number is known."""


def check_asked(mechanism: Any, steps: Any, question: Question) -> None:
    """Raises where an accountant is asked of no composition, or no one number, or of concrete ones out of range."""
    question.check()
    validation.check_scalar(question.value, question.given)
    check(mechanism, steps)


def unknown(question: Question) -> Bounds:
    """Returns the bracket that says nothing, of the shape of the question."""
    nothing = jnp.zeros_like(question.value)
    return Bounds(nothing, nothing + jnp.nan, nothing + question.worst, nothing > 0)


def _settled(bounds: Bounds, lower: Array, upper: Array, valid: Array, idle: Array, worst: float) -> Bounds:
    """Returns the bracket with these ends, 0 where nothing is run, and the whole range where arguments are wrong."""
    valid = valid & (idle | (lower <= upper))  # nor NaN
    # Of a 0 the size is without a sign.
    lower = jnp.abs(jnp.where(valid & ~idle, lower, 0.0))
    upper = jnp.where(valid, jnp.abs(jnp.where(idle, 0.0, upper)), worst)
    closed = valid & (((1 - NEGLIGIBLE) * upper <= lower) | (upper <= TINY))
    estimate = jnp.where(closed & jnp.isnan(bounds.estimate), 0.5 * (lower + upper), bounds.estimate)
    estimate = jnp.clip(estimate, lower, upper)
    return replace(bounds, lower=lower, estimate=estimate, upper=upper, converged=valid & (bounds.converged | closed))
