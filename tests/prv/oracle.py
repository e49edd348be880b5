"""Independent routes to delta, that share no code with the library.

Closed forms and enumerations in 60 digits; for a composition of subsampled Gaussians the characteristic function
inverted on a contour through the saddle point, in NumPy:

delta(eps) = (1/2 pi) integral over w of exp(K(z) - z eps) / (z (z+1)), z = t + iw, K the cumulant function of the
composed loss. Its own relative error is about 1e-11 where it is used.
"""

import math

import mpmath
import numpy as np
from scipy.optimize import brentq, minimize_scalar


def gaussian_delta(mu, epsilon):
    """Closed form for the Gaussian mechanism of total mu, in 60 digits."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def gaussian_epsilon(mu, delta):
    def excess(epsilon):
        return float(mpmath.log(gaussian_delta(mu, epsilon)) - mpmath.log(delta))

    high = 1.0
    while excess(high) > 0:
        high *= 2
    return brentq(excess, 0.0, high, xtol=1e-15, rtol=1e-14)


def saddlepoint_delta(noise_multiplier, sampling_rate, steps, epsilon, direction, nodes=4001):
    s, q, k = noise_multiplier, sampling_rate, steps

    @np.errstate(over="ignore", invalid="ignore")
    def log_moment(z):
        exponent = z + 1 if direction == "remove" else -z
        top = max(np.max(np.real(exponent)), 1.0)
        low = min(np.min(np.real(exponent)), 0.0)
        x = np.linspace(low - 13 * s, top + 13 * s, nodes)
        density = np.exp(-(x**2) / (2 * s**2)) / (s * np.sqrt(2 * np.pi)) * (x[1] - x[0])
        log_ratio = np.log1p(q * np.expm1((2 * x - 1) / (2 * s**2)))
        # power - 1 - first order, in real numbers: the exponents of a call have one real part, and one power for all.
        real = np.real(exponent)[0]
        size, slope = np.exp(real * log_ratio), np.expm1(log_ratio)
        angle = np.multiply.outer(np.imag(exponent), log_ratio)
        along = (size * np.cos(angle) - 1 - real * slope) @ density
        across = (size * np.sin(angle) - np.multiply.outer(np.imag(exponent), slope)) @ density
        return np.log1p(along + 1j * across)

    def exponent_at(t):
        return float(np.real(k * log_moment(np.array([t]))[0])) - t * epsilon - np.log(t) - np.log1p(t)

    found = minimize_scalar(lambda u: exponent_at(np.exp(u)), bounds=(-4.0, 5.0), method="bounded")
    t = float(np.exp(found.x))
    width = 1e-3
    curvature = (exponent_at(t + width) - 2 * exponent_at(t) + exponent_at(t - width)) / width**2

    def integral(reach, points):
        w = np.linspace(0, reach, points) / np.sqrt(curvature)  # the integrand at -w is the conjugate of that at w
        z = t + 1j * w
        logs = np.concatenate([k * log_moment(part) for part in np.array_split(z, 32)]) - z * epsilon
        logs -= np.log(z) + np.log(z + 1)
        top = logs[0].real
        terms = np.exp(logs - top).real
        total = 2 * np.sum(terms) - terms[0]
        return total * (w[1] - w[0]) / (2 * np.pi) * np.exp(top)

    coarse, fine = integral(12, 401), integral(20, 801)
    return float(fine) if abs(coarse - fine) < 1e-10 * fine else np.nan


NOTHING = mpmath.mpf(10) ** -50
"""Relative differences below it are rounding: the loss is epsilon itself there."""

NOISES = {
    "gaussian": (mpmath.ncdf, mpmath.npdf),
    "laplace": (
        lambda z: mpmath.exp(z) / 2 if z < 0 else 1 - mpmath.exp(-z) / 2,
        lambda z: mpmath.exp(-abs(z)) / 2,
    ),
}


def shifted_noise_delta(p, q, scale, epsilon, noise="gaussian"):
    """delta of a pair of mixtures ``[(weight, location), ...]`` whose ratio P/Q rises with x, in 60 digits.

    The set where P > e^epsilon Q is a half-line, found by bisection; on it both masses are known.
    """
    cdf, density = NOISES[noise]
    with mpmath.workdps(60):
        scale, factor = mpmath.mpf(scale), mpmath.exp(mpmath.mpf(epsilon))

        def total(mixture, function):
            return sum(mpmath.mpf(weight) * function(mpmath.mpf(location)) for weight, location in mixture)

        def gains(x):
            p_density, q_density = (total(m, lambda a: density((x - a) / scale)) for m in (p, q))
            return p_density > factor * q_density

        low, high = -60 * scale - 10, 60 * scale + 10
        if not gains(high):  # the loss never exceeds epsilon
            return mpmath.mpf(0)
        if gains(low):
            low = high = -mpmath.inf
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if gains(middle) else (middle, high)
        p_mass, q_mass = (total(m, lambda a: cdf((a - high) / scale)) for m in (p, q))
        gained = p_mass - factor * q_mass
        return gained if gained > NOTHING * p_mass else mpmath.mpf(0)


def subsampled(rate, direction):
    """The pair of mixtures of a Poisson sample, locations rising with the loss."""
    rate = mpmath.mpf(rate)
    kept = 1 - rate
    return {
        "remove": ([(kept, 0), (rate, 1)], [(1, 0)]),
        "add": ([(1, 0)], [(kept, 0), (rate, -1)]),
        "replace": ([(kept, 0), (rate, 1)], [(kept, 0), (rate, -1)]),
    }[direction]


def composed_atoms(p, q, steps):
    """Yields every multiset of ``steps`` outcomes as (count, P, Q): multinomial enumeration."""

    def extend(index, remaining, count, p_product, q_product):
        if remaining == 0:
            yield count, p_product, q_product
            return
        if index == len(p) - 1:
            yield count, p_product * p[index] ** remaining, q_product * q[index] ** remaining
            return
        for taken in range(remaining + 1):
            yield from extend(
                index + 1, remaining - taken, count * math.comb(remaining, taken),
                p_product * p[index] ** taken, q_product * q[index] ** taken,
            )  # fmt: skip

    return extend(0, steps, 1, mpmath.mpf(1), mpmath.mpf(1))


def finite_delta(p, q, steps, epsilon):
    """delta of ``steps`` runs of a pair of finitely many outcomes, given as mpmath numbers or floats, in 60 digits."""
    with mpmath.workdps(60):
        p, q = ([mpmath.mpf(v) for v in masses] for masses in (p, q))
        factor = mpmath.exp(mpmath.mpf(epsilon))
        gains = ((count, a, a - factor * b) for count, a, b in composed_atoms(p, q, steps))
        return mpmath.fsum(count * gain for count, a, gain in gains if gain > NOTHING * a)
