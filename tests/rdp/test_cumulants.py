"""Moments of the likelihood ratio, against 40-digit quadrature and the binomial closed form."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import draws

from jaxacct.mechanisms import gaussian
from jaxacct.mechanisms.gaussian import log_moment_of_ratio
from jaxacct.mechanisms.pair import exp_remainder
from jaxacct.numerics import precision
from jaxacct.rdp import ALLOWANCE

TOLERANCE = 1e-12
"""Relative error allowed for s >= 0.15; measured 2e-13 over 150,000 settings (a log q near 2000 costs three digits)."""


def log_moments(s, q, a, nodes=512):
    return jax.vmap(lambda *v: log_moment_of_ratio(*v, nodes))(*(jnp.asarray(v, jnp.float64) for v in (s, q, a)))


_kernel = precision.kernel(jax.jit(log_moments))

ROWS = 500
"""Settings that are computed at once, whatever number is asked for: one shape, one program."""


def kernel(s, q, a):
    settings = [np.asarray(values, np.float64) for values in (s, q, a)]
    count = len(settings[0])
    rows = [np.pad(values, (0, -count % ROWS), mode="edge").reshape(-1, ROWS) for values in settings]
    return np.concatenate([np.asarray(_kernel(*row)) for row in zip(*rows, strict=True)])[:count]


def log_moment(s, q, a, digits=40):
    """Returns log E[r^a] by mpmath: the plain moment, enough digits for its distance from 1, no clever form."""
    mp.mp.dps = digits
    depth = 2.3 * (digits - 5)
    reach = max(abs(a), 1) / s + np.sqrt(2 * depth) + 2
    grid = np.linspace(-reach, reach, 100_001)
    u = (grid - 0.5 / s) / s
    with np.errstate(over="ignore"):
        log_r = np.where(
            u > 0, u + np.log(q + (1 - q) * np.exp(-np.abs(u))), np.log1p(q * np.expm1(-np.abs(u)) * (1 - 1e-16))
        )
    height = a * log_r - grid**2 / 2
    keep = height > height.max() - depth
    share = 1 / (1 + np.exp(-np.clip(u + np.log(q) - np.log1p(-q + 1e-300), -500, 500)))
    curvature = 1 + max(-a, 0) * np.max((share * (1 - share))[keep]) / s**2
    h = min(0.28 * s, 0.35 / np.sqrt(curvature), 0.4)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], keep.astype(int), [0]]))).reshape(-1, 2)
    nodes = sorted({i for lo, hi in edges for i in range(int(grid[lo] / h) - 2, int(grid[min(hi, 100_000)] / h) + 3)})
    step, scale, rate = mp.mpf(h), mp.mpf(s), mp.mpf(q)
    terms = (
        mp.exp(a * mp.log(1 + rate * mp.expm1((step * i - 1 / (2 * scale)) / scale)) - (step * i) ** 2 / 2)
        for i in nodes
    )
    return mp.log(mp.fsum(terms) * step / mp.sqrt(2 * mp.pi))


def binomial(s, q, a):
    """Returns log E[r^a] of an integer order by its binomial expansion (Mironov, Talwar and Zhang 2019).

    The terms are binom(a, k) (1 - q)^(a - k) q^k e^(k (k - 1)/2s^2), each from the one before.
    """
    mp.mp.dps = 60
    rate = mp.mpf(q)
    term, factor, growth = (1 - rate) ** a, rate / (1 - rate), mp.exp(1 / mp.mpf(s) ** 2)
    total = term
    for k in range(a):
        term *= factor * (a - k) / (k + 1)
        total += term
        factor *= growth
    return mp.log(total)


def random_settings(seed, count, smallest_noise):
    rng = np.random.default_rng(seed)
    s = np.exp(rng.uniform(np.log(smallest_noise), np.log(20), count))
    q = np.exp(rng.uniform(np.log(1e-5), 0, count))
    # A third of the orders close to 1 (exponents near 1 and near 0), a third up to 30, a third up to 200.
    top = rng.choice([0.05, 30.0, 200.0], count)
    m = np.exp(rng.uniform(np.log(top / 1000), np.log(top), count))
    return s, q, np.where(rng.random(count) < 0.5, 1 + m, -m)


def relative_errors(values, truths):
    return np.array([float((mp.mpf(float(v)) - t) / t) for v, t in zip(values, truths, strict=True)])


@pytest.mark.exhaustive
def test_random_settings_agree_with_mpmath():
    s, q, a = random_settings(0, draws(50, 150), 0.2)
    truths = [log_moment(*map(float, setting)) for setting in zip(s, q, a, strict=True)]
    assert np.max(np.abs(relative_errors(kernel(s, q, a), truths))) < TOLERANCE


def test_little_noise_agrees_with_mpmath():
    s, q, a = random_settings(1, draws(10, 30), 0.2)
    s = s / 10
    truths = [log_moment(*map(float, setting)) for setting in zip(s, q, a, strict=True)]
    assert np.max(np.abs(relative_errors(kernel(s, q, a), truths))) < 1e-11


def test_mpmath_oracle_agrees_with_the_binomial_form():
    for s, q, a in ((0.2, 1e-3, 15), (1.0, 0.01, 7), (5.0, 0.3, 30)):
        assert abs(log_moment(s, q, a) / binomial(s, q, a) - 1) < 1e-25


@pytest.mark.parametrize("a", [2, 17, 64, 1024])
def test_integer_orders_agree_with_the_binomial_form(a):
    settings = [(s, q) for s in (0.1, 0.3, 1.0, 4.0, 16.0) for q in (1e-6, 1e-3, 0.1, 0.9)]
    values = kernel([s for s, _ in settings], [q for _, q in settings], [a] * len(settings))
    assert np.max(np.abs(relative_errors(values, [binomial(s, q, a) for s, q in settings]))) < TOLERANCE


def test_merging_peaks_agree_with_the_binomial_form():
    # The valley between the two peaks of r^a is shallow or gone where a p (1 - p) = s^2, p = sigmoid(...) there.
    settings = []
    rng = np.random.default_rng(2)
    while len(settings) < draws(10, 25):
        s = rng.uniform(1, 16)
        a = int(4 * s**2 * np.exp(rng.uniform(0.05, 1.5))) + 1
        root = np.sqrt(1 - 4 * s**2 / a)
        p = (1 + rng.choice([-1, 1]) * root) / 2
        logit = np.log(p / (1 - p)) - (a * p - 0.5) / s**2 + rng.normal() * 10 ** rng.uniform(-8, 0)
        q = float(1 / (1 + np.exp(-logit)))
        if q > 1e-12:
            settings.append((float(s), q, a))
    truths = [binomial(*setting) for setting in settings]
    assert np.max(np.abs(relative_errors(kernel(*zip(*settings, strict=True)), truths))) < TOLERANCE


def test_sampling_rate_close_to_one_keeps_its_digits():
    settings = [
        (s, q, a) for q in (1 - 1e-12, 1 - 1e-6) for s, a in ((0.12, 1.0016), (0.2, 1.3), (1.0, -5.5), (0.5, 40.0))
    ]
    truths = [log_moment(*setting) for setting in settings]
    assert np.max(np.abs(relative_errors(kernel(*zip(*settings, strict=True)), truths))) < TOLERANCE


def test_certain_sampling_is_the_closed_form():
    s, a = np.array([0.1, 1.0, 30.0]), np.array([1024.0, -7.5, 1.01])
    np.testing.assert_allclose(kernel(s, np.ones(3), a), a * (a - 1) / (2 * s**2), rtol=1e-14)


def test_inside_zero_and_one_the_moment_is_below_one():
    truths = [log_moment(1.3, 0.02, a) for a in (0.1, 0.5, 0.9, 0.999)]
    errors = relative_errors(kernel([1.3] * 4, [0.02] * 4, [0.1, 0.5, 0.9, 0.999]), truths)
    assert np.max(np.abs(errors)) < TOLERANCE
    np.testing.assert_array_equal(kernel([1.3, 1.3], [0.02, 0.02], [0.0, 1.0]), 0.0)


def test_every_setting_is_finite_and_positive():
    rng, count = np.random.default_rng(3), draws(5_000, 20_000)
    s = np.exp(rng.uniform(np.log(1e-4), np.log(1e6), count))
    q = np.exp(rng.uniform(np.log(1e-120), 0, count))  # squares of smaller ones underflow
    m = np.exp(rng.uniform(np.log(1e-6), np.log(1e5), count))
    values = np.asarray(kernel(s, q, np.where(rng.random(count) < 0.5, 1 + m, -m)))
    assert np.all(np.isfinite(values) & (values > 0))


def test_a_finer_rule_changes_nothing(monkeypatch):
    # What befalls one setting in 160, or thoroughly in 650, would be seen with probability 0.95.
    s, q, a = random_settings(4, draws(500, 2_000), 0.15)
    values = kernel(s, q, a)
    monkeypatch.setattr(gaussian, "FINEST_SAMPLED", 0.05)
    monkeypatch.setattr(gaussian, "COARSEST_SAMPLED", 0.1)
    finer = np.asarray(precision.kernel(jax.jit(functools.partial(log_moments, nodes=4096)))(s, q, a))
    assert np.any(finer != values)
    np.testing.assert_allclose(values, finer, rtol=TOLERANCE)


def test_orders_together_agree_with_mpmath():
    s, q, a = random_settings(5, draws(20, 150), 0.1)
    orders = np.where(a > 1, a, 1 - a)
    truths = [log_moment(*map(float, setting)) for setting in zip(s, q, orders, strict=True)]
    every = np.stack([orders, 0 * orders + 2, orders[::-1]], axis=1)
    found = [np.asarray(together(*setting)) for setting in zip(s, q, every, strict=True)]
    assert np.max(np.abs(relative_errors([row[0] for row in found], truths))) < ALLOWANCE / 10
    assert all(row[2] > 0 for row in found)


def test_orders_together_agree_with_one_by_one():
    """At all orders that are tried, from little noise to much, and where two peaks of the integrand merge."""
    rng, count = np.random.default_rng(6), draws(500, 5_000)
    s, q = np.exp(rng.uniform(np.log(0.1), np.log(300), count)), np.exp(rng.uniform(np.log(1e-14), 0, count))
    orders = 1 + np.exp(rng.uniform(np.log(1e-9), np.log(1500), (count, 8)))
    merging = orders[:, 0] > 4 * s**2
    p = (1 + rng.choice([-1, 1], count) * np.sqrt(1 - np.minimum(4 * s**2 / orders[:, 0], 1))) / 2
    with np.errstate(all="ignore"):
        logit = np.log(p / (1 - p)) - (orders[:, 0] * p - 0.5) / s**2 + rng.normal(size=count)
        q = np.where(merging & (np.abs(logit) < 30) & (rng.random(count) < 0.5), 1 / (1 + np.exp(-logit)), q)
    orders[:, 1] = np.floor(orders[:, 1]) + 1
    found = np.stack([together(*setting) for setting in zip(s, q, orders, strict=True)])
    one = kernel(*(np.broadcast_to(values, orders.shape).ravel() for values in (s[:, None], q[:, None], orders)))
    assert np.max(np.abs(found.ravel() / one - 1)) < ALLOWANCE / 5


def test_hardly_any_noise_is_bounded_above():
    for s, q, a in ((0.009, 1e-3, 1.01), (0.005, 0.3, 1.5), (0.002, 1e-9, 30.0), (0.0099, 1e-9, 1.001)):
        (found,), (truth,) = np.asarray(together(s, q, np.array([a]))), np.asarray(kernel([s], [q], [a]))
        assert truth * (1 - 1e-9) <= found <= truth * (1.02 if a == 1.001 else 1 + 1e-9)


@precision.kernel
@jax.jit
def together(s, q, orders):
    return gaussian.log_moments(s, q, orders)


def test_what_is_left_of_an_exponential_is_right_to_its_bound():
    rng = np.random.default_rng(6)
    sizes = np.concatenate([rng.uniform(0, 0.5, 2_000), 0.5 * 10.0 ** rng.uniform(-150, 0, 500), [0.5 - 2**-54]])
    x = sizes * rng.choice([-1, 1], sizes.size)
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(exp_remainder)(x, np.full(x.shape, np.nan)))
    with mp.workdps(340):
        errors = [abs(mp.mpf(value) / (mp.expm1(at) - at) - 1) for value, at in zip(found, map(mp.mpf, x), strict=True)]
    assert max(errors) <= 23 * 2.0**-53
