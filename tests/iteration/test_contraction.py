"""The contraction coefficient of Gaussian noise: its value, its theorem, and what it says of hidden iterations."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.chains import hockey_stick, rounded_kernel
from scipy.special import ndtr

from jaxacct.iteration import contracted_delta, theta

COUNT = 240


def exact_log_theta(epsilon, ratio):
    with mp.workdps(60):
        e, r = mp.mpf(float(epsilon)), mp.mpf(float(ratio))
        tail = lambda x: mp.erfc(x / mp.sqrt(2)) / 2  # noqa: E731
        return mp.log(tail(e / r - r / 2) - mp.exp(e) * tail(e / r + r / 2))


def random_cases(seed):
    rng = np.random.default_rng(seed)
    ratio = 10 ** rng.uniform(-7, 1.7, COUNT)
    # a = eps/r - r/2 from the least possible to far in the tail, and some eps = 0
    epsilon = ratio * (ratio / 2 + 10 ** rng.uniform(-3, 2, COUNT) * rng.choice([1.0, -0.1], COUNT))
    return np.where(rng.random(COUNT) < 0.1, 0.0, np.maximum(epsilon, 0)), ratio


def test_theta_is_above_its_exact_value_and_near():
    epsilon, ratio = random_cases(0)
    ours = theta(epsilon, ratio, log=True)
    for e, r, value in zip(epsilon, ratio, ours, strict=True):
        truth = exact_log_theta(e, r)
        a = e / r - r / 2
        with mp.workdps(60):
            excess = float(mp.mpf(float(value)) - truth)
        assert 0 <= excess <= 1e-13 * (1 + a * a), (e, r)


def test_theta_in_linear_scale_is_above_its_exact_value():
    epsilon, ratio = random_cases(1)
    for e, r, value in zip(epsilon, ratio, theta(epsilon, ratio), strict=True):
        with mp.workdps(60):
            assert mp.mpf(float(value)) >= mp.exp(exact_log_theta(e, r))
    assert np.all(theta(epsilon, ratio) <= 1)


def test_theta_is_the_hockey_stick_divergence_by_brute_force():
    x = np.linspace(-12, 15, 200_001)
    density = lambda mean: np.exp(-((x - mean) ** 2) / 2) / np.sqrt(2 * np.pi)  # noqa: E731
    for e, r in [(0.0, 1.0), (0.3, 0.5), (1.0, 2.0), (2.0, 1.0), (4.0, 3.0)]:
        brute = np.trapezoid(np.maximum(density(r) - np.exp(e) * density(0), 0), x)
        assert theta(e, r) == pytest.approx(brute, rel=1e-6)


def test_limits():
    assert theta(0.0, 0.0) == 0
    assert theta(np.inf, 1.0) == 0
    assert theta(1.0, np.inf) == 1
    assert theta(1e4, 1e-4) > 0  # never flushed
    assert theta(1e300, 1e-10, log=True) > -np.inf


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0, 3.0])
def test_contraction_holds_for_random_pairs_of_inputs(epsilon):
    rng = np.random.default_rng(2)
    diameter, noise = 1.0, 0.6
    points = np.linspace(0, diameter, 41)
    kernel = rounded_kernel(points, 0.0, noise)
    eta = theta(epsilon, diameter / noise)
    for concentration in (0.02, 0.2, 2.0):
        p, q = rng.dirichlet(np.full(41, concentration), size=(2, 300))
        before, after = hockey_stick(p, q, epsilon), hockey_stick(p @ kernel, q @ kernel, epsilon)
        assert np.all(after <= eta * before + 1e-14)
        assert np.all(after <= contracted_delta(epsilon, np.minimum(before, 1), diameter / noise, 1.0) + 1e-14)


def test_contraction_is_attained_by_the_ends_of_the_set():
    edges = np.linspace(-8, 9, 20_001)
    p, q = (np.diff(ndtr((edges - mean) / 0.7)) for mean in (0.0, 1.0))
    attained = hockey_stick(p, q, 0.5)
    assert attained <= theta(0.5, 1 / 0.7)
    assert attained == pytest.approx(float(theta(0.5, 1 / 0.7)), rel=1e-6)


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_hidden_iterations_cost_at_most_the_bound(noise):
    """T iterations of a drift on an interval, of which the first differs, exactly, against both rules."""
    points = np.linspace(0, 1, 61)
    first, other = (rounded_kernel(points, shift, noise)[30] for shift in (-0.05, 0.05))
    later = rounded_kernel(points, 0.02, noise)
    epsilons = np.array([0.0, 0.05, 0.2, 0.5])
    for steps in range(6):
        exact = np.array([hockey_stick(first, other, e) for e in epsilons])
        begin = theta(epsilons, 0.1 / noise)
        linear, recursive = (
            contracted_delta(epsilons, begin, 1 / noise, float(steps), method=method)
            for method in ("linear", "recursive")
        )
        assert np.all(exact <= recursive)
        assert np.all(recursive <= linear * (1 + 1e-12))
        first, other = first @ later, other @ later


def test_linear_rule_is_the_product_and_recursive_one_equals_it_at_epsilon_0():
    linear = contracted_delta([0.0, 1.0], 0.1, 2.0, 5.0, method="linear")
    assert linear == pytest.approx(0.1 * theta([0.0, 1.0], 2.0) ** 5, rel=1e-12)
    assert contracted_delta([0.0], 0.1, 2.0, 5.0) == pytest.approx(linear[:1], rel=1e-12)


def test_recursive_rule_against_arithmetic_of_60_digits():
    with mp.workdps(60):
        delta = mp.mpf("0.01")
        for _ in range(3):
            delta *= mp.exp(exact_log_theta(mp.log(1 + (mp.e - 1) / delta), 2.0))
    ours = float(contracted_delta(1.0, 0.01, 2.0, 3))
    assert delta * (1 - mp.mpf(10) ** -15) <= ours <= delta * (1 + mp.mpf(10) ** -8)


def test_traced_values_in_a_float32_program():
    eager = theta(np.array([0.0, 1.0]), 0.5)
    assert not jax.config.jax_enable_x64
    traced = jax.jit(jax.vmap(lambda e: theta(e, 0.5)))(jnp.array([0.0, 1.0]))
    assert np.asarray(traced).dtype == np.float64
    assert np.array_equal(np.asarray(traced), eager)
    assert float(jax.jit(theta)(-1.0, 1.0)) == 1
    assert float(jax.jit(theta)(1.0, jnp.nan)) == 1
    run = jax.jit(lambda d, k: contracted_delta(1.0, d, 1.0, k))
    assert float(run(0.1, 2)) == contracted_delta(1.0, float(np.float32(0.1)), 1.0, 2)
    for delta, steps in ((-0.1, 2), (0.1, 2.5), (0.1, -1.0), (jnp.nan, 1)):
        assert float(run(delta, steps)) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theta(-1.0, 1.0), ["epsilon", "-1"]),
        (lambda: theta(1.0, -2.0), ["ratio", "-2"]),
        (lambda: contracted_delta(1.0, 1.5, 1.0, 1), ["delta", "1.5"]),
        (lambda: contracted_delta(1.0, 0.5, 1.0, 1.5), ["steps", "whole"]),
        (lambda: contracted_delta(1.0, 0.5, 1.0, 1, method="square"), ["method", "recursive"]),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("ratio", [1e-9, 1.0, 100.0, 1e3, 1e4, 1e6])
def test_theta_is_near_its_exact_value_however_large_the_ratio(ratio):
    """The roundings of a, which are units of the ratio, tell most where a = 0, and the tails are halves."""
    a = np.array([-1.0, 0.0, 1.0, 5.0, 20.0])
    epsilon = ratio * (a + ratio / 2)
    epsilon, found = epsilon[epsilon >= 0], np.asarray(theta(np.maximum(epsilon, 0.0), ratio))[epsilon >= 0]
    with mp.workdps(120):
        for value, at in zip(found, epsilon, strict=True):
            e, r = mp.mpf(float(at)), mp.mpf(float(ratio))
            truth = mp.ncdf(r / 2 - e / r) - mp.exp(e) * mp.ncdf(-r / 2 - e / r)
            a = e / r - r / 2
            share = mp.mpf("1e-13") * (1 + a**2) + mp.mpf("1e-15") * r * (1 + abs(a))
            assert truth <= mp.mpf(float(value)) <= truth * (1 + share), at
