"""Fourier transforms of pairs: certified errors against transforms in extended precision, which has 64 bits."""

import math

import jax
import numpy as np
import pytest

from jaxacct.numerics.arithmetic import PAIR
from jaxacct.numerics.float_pairs import pair, wide
from jaxacct.numerics.float_pairs.sums import (
    _numbers,
    _over_largest,
    _transform,
    irfft,
    multiply,
    rfft,
)
from jaxacct.numerics.float_pairs.wide import Wide

U2 = pair.U**2


def exact(x):
    return np.ldexp(np.asarray(x.high, np.longdouble) + np.asarray(x.low), np.maximum(x.exponent, -16000))


def roots(n):
    angle = 8 * np.arctan(np.longdouble(1)) * np.arange(n) / n
    return np.cos(angle) - 1j * np.sin(angle)


def transformed(x):
    """Transforms (rows, n) by halves, and by their definition where n is odd."""
    n = x.shape[-1]
    if n % 2:
        return x @ roots(n)[np.outer(np.arange(n), np.arange(n)) % n]
    even, odd = transformed(x[:, ::2]), roots(n)[: n // 2] * transformed(x[:, 1::2])
    return np.concatenate([even + odd, even - odd], axis=1)


def hostile(n):
    """Vectors, and float64's whole range of sizes from one to the next, which one block for all would lose."""
    random = np.random.default_rng(n)
    normal = random.standard_normal((5, n))
    normal[1] *= 2.0 ** random.uniform(-100, 0, n)
    normal[2, 1::2] = 0
    normal[3, np.arange(n) != n // 3] *= 2.0**-140
    equal, alternating = np.full(n, 1 / 3), (-1.0) ** np.arange(n) / 3
    spike, tone = np.where(np.arange(n) == n - 1, 0.7, 0), np.cos(2 * np.pi * 5 * np.arange(n) / n)
    rows = np.stack([*normal, equal, alternating, spike, tone])
    return rows * 2.0 ** np.linspace(-900, 900, len(rows)).round()[:, None]


def assert_certified(found, truth, inputs, n):
    """Both senses of the constant: each result by the sum of magnitudes, all of them by their norm."""
    levels = math.log2(n) * PAIR.of_level * PAIR.roundoff
    error = np.abs(found - truth)
    assert np.all(error.max(axis=1) <= levels * np.abs(inputs).sum(axis=1))
    assert np.all(np.sum(error**2, axis=1) <= levels**2 * np.sum(np.abs(truth) ** 2, axis=1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [192, 2048])
def test_errors_of_real_transforms_are_within_their_certificate(n):
    x = wide.constant(hostile(n))
    real, imaginary = jax.jit(rfft)(x)
    half = exact(real) + 1j * exact(imaginary)
    found = np.concatenate([half, half[:, -2:0:-1].conj()], axis=1)
    assert_certified(found, transformed(exact(x)), exact(x), n)

    back = exact(jax.jit(irfft, static_argnums=2)(real, imaginary, n))
    found[:, [0, n // 2]] = found[:, [0, n // 2]].real
    truth = transformed(found.conj()).conj() / n
    assert_certified(back, truth, found / n, n)


def test_errors_of_complex_transforms_are_within_their_certificate():
    n = 128
    parts = hostile(n), hostile(n)[:, ::-1]
    x = tuple(wide.constant(part) for part in parts)
    z = exact(x[0]) + 1j * exact(x[1])

    @jax.jit
    def fft(x):
        over, exponent = _over_largest(*x)
        return _numbers(_transform(over), exponent, z.shape)

    found = fft(x)
    assert_certified(exact(found[0]) + 1j * exact(found[1]), transformed(z), z, n)


def test_complex_products_are_within_what_the_proof_counts():
    random = np.random.default_rng(0)
    turns = random.uniform(0, 2 * np.pi, (2, 100_000))
    sizes = random.uniform(1, 2, (2, 100_000))
    parts = [f(turns[k]) * sizes[k] for k in (0, 1) for f in (np.cos, np.sin)]
    high = [part.astype(np.float32) for part in parts]
    low = [(part - top).astype(np.float32) for part, top in zip(parts, high, strict=True)]
    x, y = (pair.Complex(*(pair.Pair(high[i], low[i]) for i in (k, k + 1))) for k in (0, 2))

    def value(z):
        real, imaginary = (np.asarray(p.high, np.longdouble) + np.asarray(p.low) for p in z)
        return real + 1j * imaginary

    truth = value(x) * value(y)
    assert np.max(np.abs(value(jax.jit(multiply)(x, y)) - truth) / np.abs(truth)) <= 22.8 * U2


@pytest.mark.exhaustive
def test_what_is_not_finite_spoils_its_own_transform_and_no_other():
    rows = np.ones((9, 192))
    rows[0], rows[1, 5], rows[2, 190] = 0, np.inf, np.nan
    real, imaginary = jax.jit(rfft)(wide.constant(rows))
    assert not np.any(exact(Wide(*(part[0] for part in real))))
    assert not np.any(imaginary.high[0])
    assert not np.any(np.isfinite(real.high[1:3]))
    assert not np.any(np.isfinite(imaginary.high[1:3]))
    assert np.all(np.isfinite(real.high[3:]))
    back = jax.jit(irfft, static_argnums=2)(real, imaginary, 192)
    assert not np.any(back.high[0])
    assert not np.any(np.isfinite(back.high[1:3]))


@pytest.mark.parametrize("n", [0, 64, 127, 160, 2**20])
def test_lengths_without_a_certificate_are_refused(n):
    with pytest.raises(ValueError, match=rf"n is {n}: .*2\^k or 3 2\^k"):
        rfft(wide.fill(0.0, (n,)))


def test_a_transform_of_another_length_is_refused():
    with pytest.raises(ValueError, match="65 entries"):
        irfft(wide.fill(0.0, (65,)), wide.fill(0.0, (65,)), 256)
