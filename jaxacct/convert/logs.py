"""Logarithms of sums and differences, and how far each of them may be off: what the margins of this room rest on.

One assumption on a device's elementary functions is made, ``arithmetic().function``; all else follows from it and from
sums, products, quotients and roots right to a relative ``roundoff()``. In the proofs F is the one, u the other, F is
8 u; an error is absolute where nothing else is said; what is of second order is left to the slack of the last factor.
An argument that is a float64 is exact: errors of arguments are added where they arise.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic
from jaxacct.dominating_pairs.moments import exp_remainder, weighted_remainder
from jaxacct.precision import TINY

LARGEST = 600.0
"""Exponent at which e^x is cut off, below float64's 709; what stands beside it is then below e^-500 of it."""


def softplus(x: Array) -> Array:
    """Returns ``log(1 + e^x)``; relative error 3 F.

    The exponential is within F, log1p carries a relative error of a positive argument over at most whole, and adds F.
    As its slope, the sigmoid, is at most itself, an error d of x, d small, is a relative error of at most d.
    """
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def log_below(power: Array) -> Array:
    """Returns ``log(1 - 1/order)`` for order = power + 1, as -log(1 + 1/power): relative error 2 F."""
    return -jnp.log1p(1 / power)


def log_excess_above(x: Array) -> Array:
    """Returns ``log(e^x - 1)`` for x >= 0, rounded up; x may have a relative error of u.

    In x + log(-expm1(-x)) expm1 contributes F and log F |log|, |log| <= |result| + x; x itself, whose slope is
    x/(1 - e^-x) <= 1 + x relative to it, u (1 + x); the sum u |result|. Together below 2 F (1 + |result| + x). An x
    that underflowed counts as the smallest normal number: a larger divergence.
    """
    x = jnp.maximum(x, TINY)
    value = x + jnp.log(-jnp.expm1(-x))
    return value + 2 * arithmetic().function * (1 + jnp.abs(value) + x)


def log_deficit_above(y: Array, power: Array) -> Array:
    """Returns ``log(1 - B(e^-y))``, rounded up, y of either sign: B(t) = a t^b - b t^a, ``power`` is b = a - 1.

    It is above the exact value by at most 32 F (1 + |value|), and by at most 16 F |b y| more where y is below 0.

    With x = b y and s = max(-x, 0) it is s + log(w phi(x) + w b phi(-y)), w = e^(-x - s), phi(z) = e^z - 1 - z: a sum
    of positive terms. w phi(x) is a series times w next to 0 and e^-s - w (1 + x) elsewhere, so that nothing overflows.

    * Where x is at most 1, phi is right to 11.1 F + 6 u, worst at z = 1/2, where e^z is 11.1 of it (below it is a
      series; far to the other side phi is about |z|); w adds F. x is off by u, which phi takes at most 2.4-fold (z
      phi'/phi at 1); log adds F (|value| + |x|): 14 F + 1.3 F (|value| + |x|). The smallest normal number is added, as
      squares of y underflow: it raises.
    * Where x is above 1, w (1 + x) <= 0.74 is right to 2 F + (x + 3) u, which is at most 7 F of 1 - w (1 + x) (that
      ratio is at most 2.8, and so is x times it), and w b phi(-y), at most x^2/2 w, is right to 13 F + x u of itself,
      less than 3 F of the sum; and the logarithm adds 4 u + F |value|: 11 F + F |value|.
    * Where e^-y would overflow, t^b (b t) alone: 1 - B = 1 - a t^b + b t^a is below it, for t > 1.

    -y has a cap above alone: what is capped below, where phi(-y) is about y, would be a deficit that is too small, and
    with it every bound made of it.
    """
    x = power * y
    surplus, back = jnp.maximum(-x, 0.0), jnp.minimum(-y, LARGEST)
    weight = jnp.exp(-x - surplus)
    ahead = weighted_remainder(x, weight, jnp.exp(-surplus))
    value = surplus + jnp.log(ahead + power * weight * exp_remainder(back, jnp.exp(back) - 1) + TINY)
    value = jnp.where(-y > LARGEST, jnp.log(power) - y - x, value)
    return value + 16 * arithmetic().function * (1 + jnp.abs(value) + jnp.abs(jnp.minimum(x, 1.0)))


def log_falling_deficit(y: Array, power: Array) -> Array:
    """Returns :func:`log_deficit_above` of y >= 0, where it is at most 0: in fewer operations.

    The margin is that function's, with 1 for what is at most 1 there.
    """
    x = power * y
    weight = jnp.exp(-x)
    part = weighted_remainder(x, weight, jnp.ones_like(x)) + power * weight * exp_remainder(-y, jnp.exp(-y) - 1)
    margin = 16 * arithmetic().function
    return jnp.log(part + TINY) * (1 - margin) + 2 * margin
