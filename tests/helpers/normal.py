"""Masses of normal laws in 40-digit arithmetic."""

import mpmath

mpmath.mp.dps = 40


def exact_mass(low, high, center, scale):
    low, high = (mpmath.mpf(v) - center for v in (low, high))
    if low > 0:
        low, high = -high, -low
    return mpmath.ncdf(high / scale) - mpmath.ncdf(low / scale)
