"""One epoch of random allocation over two batches, by one integral.

An example is in one of two sums with noise N(0, s^2), and moves it by 1. With x_i the sums over s, independent and
standard normal where nobody is added, and sigma = 1/s, the likelihood ratio is L = (W_1 + W_2)/2, where W_i = e^(sigma
x_i - sigma^2/2) is log-normal with mean 1. So with P the data with the example

    delta = E[(L - e^eps)+] = E[(W_1 + W_2 - K)+]/2,   K = 2 e^eps,             ("remove")
    delta = e^eps E[(K - W_1 - W_2)+]/2,               K = 2 e^-eps,            ("add")

means over the data without it. Given W_1 = w the mean over W_2 is closed: with k = K - w, if that is above 0, and d =
sigma/2 - log(k)/sigma, E[(W - k)+] = Phi(d) - k Phi(d - sigma), E[(k - W)+] = k Phi(sigma - d) - Phi(-d); else 1 - k,
and 0. What is left is an integral over x_1 up to where w = K, which Arb does with its error; of the last 2^-BITS before
that point, and of what lies beyond FAR, the integrand's bound is taken.
"""

from __future__ import annotations

from flint import acb, arb, ctx

FAR = 60
"""Standard deviations; beyond lies less than e^-1800."""


def delta(direction: str, noise: arb, epsilon: arb) -> arb:
    """Returns a ball for delta of one epoch, for the direction "remove" or "add"."""
    sigma, removes = 1 / noise, direction == "remove"
    bound = 2 * (epsilon if removes else -epsilon).exp()
    last = bound.log() / sigma + sigma / 2

    def inner(x: acb, analytic: bool) -> acb:
        k = bound - (sigma * x - sigma**2 / 2).exp()
        if not k.real > 0:  # a branch of the logarithm may be crossed, where an analytic function is asked for
            return acb(arb.nan(), arb.nan()) if analytic else acb(arb(0).union(bound + 1))
        d = sigma / 2 - k.log() / sigma
        found = _phi(d) - k * _phi(d - sigma) if removes else k * _phi(sigma - d) - _phi(-d)
        return found * (-x * x / 2).exp()

    low = arb(-FAR)
    if not last > low + 1:
        raise ArithmeticError("noise so small that all lies beyond what is integrated")
    end = last - arb(2) ** -ctx.prec
    high = end if not end > FAR else arb(FAR)
    value = acb.integral(inner, acb(low), acb(high)).real / (2 * arb.pi()).sqrt()
    # Both means are at most 1, or K: so much is left of the ends that were cut off.
    most = arb(1).max(bound)
    left_out = most * (2 * _phi(acb(-FAR)).real + (arb(2) ** -ctx.prec))
    value += arb(0).union(left_out)
    if removes:
        value += (1 - bound) * _phi(acb(-last)).real + _phi(acb(sigma - last)).real
        return value / 2
    return value * epsilon.exp() / 2


def _phi(x: acb) -> acb:
    """Returns the normal distribution function."""
    return (-x / acb(2).sqrt()).erfc() / 2
