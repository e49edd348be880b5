"""What a cell's P-mass has beyond e^y times its Q-mass, and the rounding of that.

Every splitting of a cell between mesh points, from above and from below, is a question of this difference, and where P
and Q are close it is all that counts.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.precision import TINY

NEAR = 0.25
"""Losses below which P - e^y Q is formed without e^y, which rounds by a unit of one, however near to 1 it is."""


def surplus(p: Array, q: Array, loss: Array) -> tuple[Array, Array]:
    """Returns P - e^y Q, elementwise, and a bound on its rounding; NaN where e^y Q is infinity times 0.

    Near y = 0 as (P - Q) - (e^y - 1) Q: the first difference rounds by u of itself, and by IEEE 754 not at all where P
    and Q are within a factor of two of one another (Sterbenz); each further rounding is relative to a part of the size
    of y. So the result keeps its digits however small the losses are. exp errs by 4u and expm1 by 8u
    (:data:`jaxacct.elementary.ASSUMED`), the product by u, a difference by u of itself; what is flushed to zero is
    below the smallest normal float64 each time.
    """
    is_near = jnp.abs(loss) < NEAR
    difference = p - q
    grown = jnp.expm1(jnp.where(is_near, loss, 0.0)) * q
    whole = jnp.exp(loss) * q
    value = jnp.where(is_near, difference - grown, p - whole)
    size = jnp.abs(difference)
    rounded = jnp.where((q <= 2 * p) & (p <= 2 * q), arithmetic().of_close * size, size)
    near = rounded + 12 * jnp.abs(grown)
    rounding = roundoff() * (jnp.where(is_near, near, 6 * whole) + 2 * jnp.abs(value))
    return value, rounding + 4 * TINY * (1 + jnp.exp(loss))
