"""A privacy number as an interval: what is proved from below and from above, and the best guess between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct.precision import TINY, as_float64, in_float64, is_concrete, outside, scope


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bounds:
    """Certified bracket of a privacy number: ``lower <= truth <= upper``; report ``upper``.

    Attributes:
        lower: proved lower bound, float64, the shape of the batch.
        estimate: best guess between the two; proves nothing.
        upper: proved upper bound. ``inf`` (for an epsilon) or 1 (for a delta) where nothing is known: parameters out
            of range inside a trace, a mechanism without noise, an accountant that did not converge.
        converged: whether the bracket is as tight as was asked; where nothing was asked, a relative gap of 1e-3 of an
            epsilon, 1e-2 of a delta (:mod:`jaxacct.prv`), or 1e-9 (:mod:`jaxacct.saddlepoint`), or a width of 1e-2 of a
            trade-off curve. A bracket between equal ends has converged, be they infinite; so has one below the smallest
            normal float64. It is valid either way.

    Formal guarantee: floating-point rounding is inside the bracket. The leaves are float64 even where
    ``jax_enable_x64`` is off. Inside a trace, arithmetic on them then rounds to the nearest float32, which can fall
    below the bound: use :meth:`to_float32` first, which rounds outward.

    >>> float(Bounds(lower=1.0, estimate=1.5, upper=2.0).gap)
    0.5
    """

    lower: Float[Array, ...] | np.ndarray | float
    estimate: Float[Array, ...] | np.ndarray | float
    upper: Float[Array, ...] | np.ndarray | float
    converged: Bool[Array, ...] | np.ndarray | bool = True

    @property
    def gap(self) -> Float[Array, ...] | float:
        """Relative width ``(upper - lower) / upper``, float64: 0 where upper is 0, inf where it is infinite."""
        return _gap(self.lower, self.upper)

    def to_float32(self) -> Bounds:
        """Returns the same bracket in float32, ``lower`` rounded down and ``upper`` rounded up."""
        return _outward_float32(self)


def zero() -> Bounds:
    """Returns the bracket of what is exactly 0."""
    return Bounds(*(np.float64(0.0),) * 3, np.asarray(True)[()])


def _gap(lower: ArrayLike, upper: ArrayLike) -> Array:
    # By NumPy where that can be: JAX compiles each operation.
    library: Any = np if is_concrete(lower, upper) else jnp
    with scope(by_programs=True), np.errstate(invalid="ignore", over="ignore"):
        low, high = (library.asarray(end, library.float64) for end in (lower, upper))
        relative = (high - low) / library.where(high == 0, 1.0, high)
        gap = library.where(high == 0, 0.0, library.where(library.isfinite(high), relative, library.inf))
        return outside(gap)


@in_float64
def _outward_float32(bounds: Bounds) -> Bounds:
    lower, upper = as_float64(bounds.lower), as_float64(bounds.upper)
    low, high = lower.astype(jnp.float32), upper.astype(jnp.float32)
    smallest = jnp.float32(2.0**-126)  # the smallest normal float32: below it XLA may flush to zero
    down = jnp.where(low < 2 * smallest, jnp.float32(0), jnp.nextafter(low, jnp.float32(-jnp.inf)))
    up = jnp.nextafter(jnp.maximum(high, smallest), jnp.float32(jnp.inf))
    return Bounds(
        lower=jnp.where(low.astype(jnp.float64) > lower, down, low),
        estimate=as_float64(bounds.estimate).astype(jnp.float32),
        upper=jnp.where((high.astype(jnp.float64) < upper) | ((upper > TINY) & (high < smallest)), up, high),
        converged=bounds.converged,
    )
