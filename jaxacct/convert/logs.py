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
from jaxacct.dominating_pairs.moments import exp_remainder
from jaxacct.precision import TINY, log_complement

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

    * Where x = b y is at most 1, it is -x + log(phi(x) + b phi(-y)), phi(z) = e^z - 1 - z. phi is right to 11.1 F + 6
      u, worst at z = 1/2, where e^z is 11.1 of it (below it is a series; far to the other side phi is about |z|). x is
      off by u, which phi takes at most 2.4-fold (z phi'/phi at 1); log adds F (|value| + |x|): 13 F + 1.3 F (|value| +
      |x|). The smallest normal number is added, as squares of y underflow: it raises.
    * Elsewhere B itself, t^b (1 + b (1 - t)) <= (1 + x) e^-x <= 0.74: B is right to 2 F + (x + 3) u, which is at most
      7 F of 1 - B (B/(1 - B) <= 2.8, x B/(1 - B) too), and the logarithm adds 4 u + F |value|: 8 F + F |value|.
    * Where e^-y would overflow, t^b (b t) alone: 1 - B = 1 - a t^b + b t^a is below it, for t > 1.

    -y has a cap above alone: what is capped below, where phi(-y) is about y, would be a deficit that is too small, and
    with it every bound made of it.
    """
    x = power * y
    up, down = jnp.minimum(x, LARGEST), jnp.minimum(-y, LARGEST)
    remainders = [exp_remainder(z, jnp.exp(z) - 1) for z in (up, down)]
    near = -x + jnp.log(remainders[0] + power * remainders[1] + TINY)
    far = log_complement(jnp.exp(-jnp.maximum(x, 1.0)) * (1 - power * jnp.expm1(-jnp.maximum(y, 0.0))))
    value = jnp.where(-y > LARGEST, jnp.log(power) - y - x, jnp.where(x > 1, far, near))
    return value + 16 * arithmetic().function * (1 + jnp.abs(value) + jnp.abs(jnp.minimum(x, 1.0)))
