"""The coefficients of :mod:`jaxacct.numerics.elementary_float32`: near-minimax polynomials with float32 coefficients.

``python -m bench.studies.float32_coefficients`` prints each list as it stands in the file, lowest degree first, with
the largest error of the polynomial (rounded coefficients, exact arithmetic) relative to the function, in units
of 2^-24.

A function is sampled in 50 digits at Chebyshev points. Lawson's iteration (weighted least squares, weights multiplied
by the errors) approaches the polynomial whose largest relative error is least. Coefficients are rounded to float32 one
after the other, the constant first, and the others fitted again each time: so they take up each rounding.
"""

from collections.abc import Callable
from typing import NamedTuple

import mpmath
import numpy as np

UNIT = 2.0**-24
ROOT = 0.7071067811865476


class Fit(NamedTuple):
    """A function on an interval, to be approximated by a polynomial in x (or in x^2, where it is even)."""

    function: Callable[[mpmath.mpf], mpmath.mpf]
    low: float
    high: float
    degree: int


def _of_square(function: Callable[[mpmath.mpf], mpmath.mpf]) -> Callable[[mpmath.mpf], mpmath.mpf]:
    """Returns an even function as one of the square."""
    return lambda w: function(mpmath.sqrt(w))


def _mills(x: mpmath.mpf) -> mpmath.mpf:
    """Returns Mills' ratio Phi(-x)/phi(x)."""
    if x > 1000:  # the asymptotic series: its terms fall until far beyond the digits here
        return sum((-1) ** n * mpmath.fac2(2 * n - 1) / x ** (2 * n + 1) for n in range(12))
    return mpmath.erfc(x / mpmath.sqrt(2)) * mpmath.exp(x * x / 2) * mpmath.sqrt(mpmath.pi / 2)


FITS = {
    "EXP, (e^r - 1 - r)/r^2": Fit(lambda r: (mpmath.expm1(r) - r) / r**2, -0.3475, 0.3475, 5),
    "REMAINDER, (e^x - 1 - x)/x^2": Fit(lambda x: (mpmath.expm1(x) - x) / x**2, -1.001, 1.501, 9),
    "LOG, (log(1 + f) - f + f^2/2)/f^3": Fit(
        lambda f: (mpmath.log1p(f) - f + f * f / 2) / f**3, ROOT - 1.0001, 2 * ROOT - 0.9999, 8
    ),
    "SIN, (sin h - h)/h^3 in h^2": Fit(_of_square(lambda h: (mpmath.sin(h) - h) / h**3), 0.0, 0.787**2, 3),
    "COS, (cos h - 1 + h^2/2)/h^4 in h^2": Fit(
        _of_square(lambda h: (mpmath.cos(h) - 1 + h * h / 2) / h**4), 0.0, 0.787**2, 3
    ),
    "SIN_LESS, (sin x - x)/x^3 in x^2": Fit(_of_square(lambda x: (mpmath.sin(x) - x) / x**3), 0.0, 4.001, 6),
    "RECIPROCAL, 1/m": Fit(lambda m: 1 / m, 1.0, 2.0, 3),
    "ROOT, 1/sqrt(m)": Fit(lambda m: 1 / mpmath.sqrt(m), 1.0, 4.0, 3),
    "ARCTAN, (atan t - t)/t^3 in t^2": Fit(_of_square(lambda t: (mpmath.atan(t) - t) / t**3), 0.0, 0.1717, 4),
    "MILLS, Phi(-x)/phi(x) in x - 1": Fit(lambda t: _mills(1 + t), -1.0, 1.0, 10),
    "MILLS_FAR, x Phi(-x)/phi(x) in 1/x^2 - 1/8": Fit(
        lambda t: _mills(1 / mpmath.sqrt(t + mpmath.mpf("0.125"))) / mpmath.sqrt(t + mpmath.mpf("0.125")),
        -0.125 + 1e-12,
        0.1251,
        10,
    ),
}


def fit(wanted: Fit, points: int = 400, rounds: int = 60) -> tuple[np.ndarray, float]:
    """Returns float32 coefficients, lowest degree first, and the largest relative error of their polynomial."""
    middle, half = (wanted.high + wanted.low) / 2, (wanted.high - wanted.low) / 2
    x = middle - half * np.cos(np.pi * (np.arange(points) + 0.5) / points)
    with mpmath.workdps(50):
        truth = np.array([float(wanted.function(mpmath.mpf(float(v)))) for v in x])
    scale = max(abs(wanted.low), abs(wanted.high))
    powers = (x / scale)[:, None] ** np.arange(wanted.degree + 1)
    coefficients: list[np.float32] = []
    # Each turn rounds one more coefficient; the errors of the others are made even again, by Lawson's iteration.
    while len(coefficients) <= wanted.degree:
        fixed = len(coefficients)
        rest = truth - powers[:, :fixed] @ (np.float64(coefficients) * scale ** np.arange(fixed))
        weights = np.ones(points)
        for _ in range(rounds):
            rows = np.sqrt(weights) / np.abs(truth)
            found = np.linalg.lstsq(powers[:, fixed:] * rows[:, None], rest * rows, rcond=None)[0]
            weights *= np.abs((powers[:, fixed:] @ found - rest) / truth) + 1e-30
            weights /= weights.max()
        coefficients.append(np.float32(found[0] / scale**fixed))
    values = powers @ (np.float64(coefficients) * scale ** np.arange(wanted.degree + 1))
    return np.array(coefficients), float(np.max(np.abs(values / truth - 1)))


def main() -> None:
    for name, wanted in FITS.items():
        coefficients, error = fit(wanted)
        print(f"{name} on [{wanted.low:.4g}, {wanted.high:.4g}]: {error / UNIT:.2g} units")
        print("   ", ", ".join(f"{c:.9g}" for c in coefficients))


if __name__ == "__main__":
    main()
