"""The bracket of a privacy number: :class:`Bounds`, proved from below and from above, with the best guess between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct.display import rounded_down, rounded_up
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    is_concrete,
    kernel,
    leave_scope,
    scope,
    within_scope,
)
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True, repr=False)
class Bounds:
    """Certified bracket of a privacy number: ``lower <= truth <= upper``; report ``upper``.

    Attributes:
        lower: proved lower bound, float64, the shape of the batch.
        estimate: best guess between the two; proves nothing.
        upper: proved upper bound. ``inf`` (for an epsilon) or 1 (for a delta) where nothing is known: parameters out
            of range inside a trace, a mechanism without noise, an accountant that did not converge.
        converged: whether the bracket is as tight as was asked. Where nothing was asked that is a relative gap of 1e-3
            for an epsilon, 1e-2 for a delta (:mod:`jaxacct.prv`), or 1e-9 (:mod:`jaxacct.saddlepoint`), or a width of
            1e-2 for a trade-off curve. A bracket between equal ends has converged, be they infinite; so has one below
            the smallest normal float64. The bracket is valid either way.

    Formal guarantee: floating-point rounding is inside the bracket. The truth for a composition is the number of its
    dominating pairs. The mechanism's own number is never above that, and so not above ``upper``; where its class is not
    :attr:`~jaxacct.Mechanism.tight`, its own number may be below ``lower``. The leaves are float64 even where
    ``jax_enable_x64`` is off. Inside a trace, arithmetic on them then rounds to the nearest float32, which can fall
    below the bound: use :meth:`to_float32` first, which rounds outward.

    ``float(bounds)`` is ``upper``. A format specification prints ``upper`` rounded up, so a printed number is a bound,
    too.

    >>> bounds = Bounds(lower=2.15340123, estimate=2.15340125, upper=2.15340127)
    >>> print(bounds, f"{bounds:.4f}", float(bounds))
    [2.153401, 2.153402] 2.1535 2.15340127
    >>> Bounds(lower=1.0, estimate=1.5, upper=2.0)
    Bounds([1, 2])
    """

    lower: Float[Array, "*batch"] | Float[np.ndarray, "*batch"]
    estimate: Float[Array, "*batch"] | Float[np.ndarray, "*batch"]
    upper: Float[Array, "*batch"] | Float[np.ndarray, "*batch"]
    converged: Bool[Array, "*batch"] | Bool[np.ndarray, "*batch"] | bool = True

    if TYPE_CHECKING:  # the constructor takes any numbers, the attributes are arrays

        def __init__(
            self, lower: ArrayLike, estimate: ArrayLike, upper: ArrayLike, converged: ArrayLike = True
        ) -> None: ...

    @property
    def gap(self) -> Float[Array, "*batch"]:
        """Relative width ``(upper - lower) / upper``, float64: 0 where upper is 0, inf where it is infinite."""
        # NumPy computes concrete numbers, as JAX would compile each operation.
        library: Any = np if is_concrete(self.lower, self.upper) else jnp
        with scope(), np.errstate(invalid="ignore", over="ignore"):
            low, high = (library.asarray(end, library.float64) for end in (self.lower, self.upper))
            relative = (high - low) / library.where(high == 0, 1.0, high)
            gap = library.where(high == 0, 0.0, library.where(library.isfinite(high), relative, library.inf))
            return leave_scope(gap)

    @kernel
    def to_float32(self) -> Bounds:
        """Returns the same bracket in float32, ``lower`` rounded down and ``upper`` rounded up."""
        lower, upper = as_float64(self.lower), as_float64(self.upper)
        low, high = lower.astype(jnp.float32), upper.astype(jnp.float32)
        smallest = jnp.float32(2.0**-126)  # the smallest normal float32: below it XLA may flush to zero
        # Where rounding to nearest went the wrong way the next float32 is taken, but never a subnormal one.
        next_down = jnp.where(low < 2 * smallest, jnp.float32(0), jnp.nextafter(low, jnp.float32(-jnp.inf)))
        next_up = jnp.nextafter(jnp.maximum(high, smallest), jnp.float32(jnp.inf))
        return Bounds(
            lower=jnp.where(low.astype(jnp.float64) > lower, next_down, low),
            estimate=as_float64(self.estimate).astype(jnp.float32),
            upper=jnp.where((high.astype(jnp.float64) < upper) | ((upper > TINY) & (high < smallest)), next_up, high),
            converged=self.converged,
        )

    @within_scope
    def intersection(self, other: Bounds) -> Bounds:
        """Returns the intersection of two brackets of one number, which have the same shape.

        It has converged where either has. The estimate is this one's where that has converged, else the other's. Of
        brackets that contradict each other it is the least that holds both, and has not converged.
        """
        return leave_scope(_intersection(self, other))

    def __float__(self) -> float:
        if np.ndim(self.upper):
            raise TypeError(f"bounds of shape {np.shape(self.upper)} are no one number: take an entry of bounds.upper.")
        return float(self.upper)

    def __format__(self, spec: str) -> str:
        return rounded_up(Decimal(float(self)), spec) if spec else str(self)

    def __str__(self) -> str:
        try:
            lower, upper = np.asarray(self.lower, np.float64), np.asarray(self.upper, np.float64)
            missed = np.size(self.converged) - int(np.sum(self.converged))
            shown = _bracket(float(np.min(lower, initial=np.inf)), float(np.max(upper, initial=-np.inf)))
        except (TypeError, ValueError, ArithmeticError):  # traced, or a pytree of something else
            return f"[{self.lower}, {self.upper}]"
        if upper.ndim:
            return f"{upper.shape} within {shown}" + (f", {missed} not converged" if missed else "")
        return shown + (" not converged" if missed else "")

    def __repr__(self) -> str:
        return f"Bounds({self})"


def _bracket(lower: float, upper: float) -> str:
    """Returns an interval rounded outward, in as many digits as its ends need to differ, from four to seven."""
    gap = (upper - lower) / upper if 0 < upper < math.inf else 1.0
    # About one digit more than the ends need to differ.
    digits = min(max(2 - math.floor(math.log10(gap)), 4), 7) if gap > 0 else 7
    spec = f".{digits}g"
    return f"[{rounded_down(Decimal(lower), spec)}, {rounded_up(Decimal(upper), spec)}]"


def enclose(lower: Any, upper: Any, converged: Any) -> Bounds:
    """Returns the bracket with these ends, whose best guess is the middle."""
    return Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper, converged=converged)


def zero() -> Bounds:
    """Returns the bracket of a number that is exactly 0."""
    return Bounds(*(np.float64(0.0),) * 3, np.asarray(True)[()])


@compiled
def _intersection(first: Bounds, second: Bounds) -> Bounds:
    lower, upper = jnp.maximum(first.lower, second.lower), jnp.minimum(first.upper, second.upper)
    # Brackets that share no number: one of them is wrong, and nothing tells which. All between them may be the truth.
    is_shared = ~(lower > upper)
    lower = jnp.where(is_shared, lower, jnp.minimum(first.lower, second.lower))
    upper = jnp.where(is_shared, upper, jnp.maximum(first.upper, second.upper))
    estimate = jnp.where(first.converged, first.estimate, jnp.clip(second.estimate, lower, upper))
    return Bounds(lower, estimate, upper, is_shared & (first.converged | second.converged))
