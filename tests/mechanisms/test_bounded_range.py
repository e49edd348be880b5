"""Exponential mechanisms against exact divergences, adaptive and not; by NumPy, apart from one composition each."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.convert import bounded_range_to_delta, bounded_range_to_epsilon
from jaxacct.mechanisms.approximate_dp import bounded_range_pair


def profile(x, span):
    """The closed form of one run, at epsilons of either sign."""
    inside = np.clip(x, -span, span)
    single = np.expm1((inside - span) / 2) ** 2 / -math.expm1(-span)
    return np.where(x < -span, -np.expm1(np.minimum(x, 0.0)), np.where(x > span, 0.0, single))


def two_runs(x, span):
    """The worst adaptive delta of two runs, by many values of the first one's t."""
    t = np.linspace(0.0, span, 20_001)
    high = -np.expm1(t - span) / -math.expm1(-span)
    return np.max(high * profile(x - t, span) + (1 - high) * profile(x - t + span, span))


@pytest.mark.parametrize("seed", range(8))
def test_one_run_is_within_the_profile_and_the_rényi_curve(seed):
    rng = np.random.default_rng(seed)
    epsilon, scores = rng.uniform(0.05, 4.0), rng.normal(size=5)
    other = scores + rng.uniform(-1, 1, size=5)
    p, q = (np.exp(epsilon * s / 2) / np.sum(np.exp(epsilon * s / 2)) for s in (scores, other))
    x = np.linspace(0.0, 1.2 * epsilon, 30)
    assert np.all(np.sum(np.maximum(p - np.exp(x)[:, None] * q, 0), axis=1) <= profile(x, epsilon) + 1e-15)
    orders = np.array([1.01, 1.5, 2.0, 8.0, 100.0])
    exact = [math.log(np.sum(p**a * q ** (1 - a))) / (a - 1) for a in orders]
    curve = np.asarray(ja.rdp.curve(ja.ExponentialMechanism(epsilon), orders))
    assert np.all(exact <= curve)
    assert np.all(curve <= np.minimum(orders * epsilon**2 / 8, epsilon) * (1 + 2e-10))


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 5.0, 60.0])
def test_rényi_curves_are_those_of_the_worst_two_losses(epsilon):
    mpmath = pytest.importorskip("mpmath")
    orders = np.array([1.01, 2.0, 30.0])
    curve = np.asarray(ja.rdp.curve(ja.ExponentialMechanism(epsilon), orders))
    with mpmath.workdps(50):
        e = mpmath.mpf(epsilon)
        for order, found in zip(orders, curve, strict=True):
            a = mpmath.mpf(float(order))

            def log_moment(t, a=a):
                high = (1 - mpmath.exp(t - e)) / (1 - mpmath.exp(-e))
                return mpmath.log(high * mpmath.exp((a - 1) * t) + (1 - high) * mpmath.exp((a - 1) * (t - e))) / (a - 1)

            best = mpmath.log((a - 1) * (1 - mpmath.exp(-a * e)) / (a * mpmath.exp(-e) * (1 - mpmath.exp((1 - a) * e))))
            worst = log_moment(min(max(best, 0), e))
            assert worst <= found <= worst * mpmath.mpf(1 + 1e-4)
            assert all(log_moment(e * i / 50) <= found for i in range(50))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("span", "x"), [(0.5, 0.1), (1.0, 0.7), (3.0, 2.0), (0.01, 0.001)])
def test_two_runs_are_those_of_the_best_adversary(span, x):
    bounds, worst = bounded_range_to_delta(span, 2, x), two_runs(x, span)
    assert bounds.lower <= worst <= bounds.upper <= worst * (1 + 2e-3)
    assert bounds.upper <= ja.prv.delta(ja.ExponentialMechanism(span), 2, x).upper


@pytest.mark.exhaustive
def test_adaptivity_costs():
    """More than any choice made beforehand: the paper's point."""
    t = np.linspace(0.0, 0.5, 2001)
    high = -np.expm1(t - 0.5) / -math.expm1(-0.5)
    first, second = (np.meshgrid(t, t), np.meshgrid(high, high))
    (t1, t2), (p1, p2) = first, second
    total = sum(
        a * b * np.maximum(-np.expm1(0.1 - x), 0.0)
        for a, x1 in ((p1, t1), (1 - p1, t1 - 0.5))
        for b, x2 in ((p2, t2), (1 - p2, t2 - 0.5))
        for x in [x1 + x2]
    )
    assert np.max(total) < two_runs(0.1, 0.5) * (1 - 0.02)
    assert bounded_range_to_delta(0.5, 2, 0.1).lower <= np.max(total) + 1e-12


@pytest.mark.parametrize(("span", "steps", "delta"), [(0.1, 100, 1e-6), (0.5, 10, 1e-6), (1.0, 30, 1e-5)])
def test_epsilon_and_delta_invert_each_other_below_rényi(span, steps, delta):
    bounds = bounded_range_to_epsilon(span, steps, delta)
    assert bounds.lower <= bounds.upper <= ja.rdp.epsilon(ja.ExponentialMechanism(span), steps, delta)
    assert bounds.gap < 1e-2
    assert bounded_range_to_delta(span, steps, bounds.upper).upper <= delta * (1 + 1e-9)
    assert bounded_range_to_delta(span, steps, bounds.lower * (1 - 1e-9)).lower >= delta * (1 - 1e-6)
    assert ja.epsilon(ja.ExponentialMechanism(span), steps, delta).upper == bounds.upper


@pytest.mark.exhaustive
def test_beside_others_the_less_of_pairs_and_curves_counts():
    run = (ja.ExponentialMechanism(0.1), ja.ZeroConcentratedDP(0.0), ja.Gaussian(20.0)), (100, 1, 10)
    pairs = (run[0][0], run[0][2]), (100, 10)
    found = ja.epsilon(*pairs, 1e-6)
    assert found.lower <= found.upper == ja.rdp.epsilon(*pairs, 1e-6) < ja.prv.epsilon(*pairs, 1e-6).lower
    assert ja.epsilon(*run, 1e-6).upper == pytest.approx(float(found.upper), rel=1e-9)


def test_alone_is_alone_in_a_tuple_too():
    run = ja.ExponentialMechanism(0.5), 10
    assert ja.epsilon(run[:1], run[1:], 1e-6).upper == ja.epsilon(*run, 1e-6).upper


def test_ends():
    assert bounded_range_to_delta(0.5, 3, 1.5).upper == 0.0
    assert ja.epsilon(ja.ExponentialMechanism(0.5), 3, 0.0).upper == pytest.approx(1.5, rel=1e-9)
    assert ja.epsilon(ja.ExponentialMechanism(0.0), 3, 1e-6).upper == 0.0
    assert ja.epsilon(ja.ExponentialMechanism(0.01), 5000, 1e-6).upper < 5
    assert ja.delta(ja.ExponentialMechanism(0.5), 2, 0.0).upper == bounded_range_to_delta(0.5, 2, 0.0).upper
    assert ja.delta(ja.ExponentialMechanism(0.5), 2, math.inf).upper == 0.0
    for wrong in (lambda: bounded_range_to_delta(-1.0, 3, 1.0), lambda: bounded_range_to_delta(1.0, 3000, 1.0)):
        with pytest.raises(ValueError, match="give"):
            wrong()


@pytest.mark.parametrize("span", [1e-6, 1.0, 8 / 3, 40.0, 100.0, 700.0])
def test_distribution_functions_err_by_what_their_pair_says(span):
    """At both ends of the losses, where their distance from the end is rounded to a share of the other end."""
    y = np.concatenate(
        [span * side * (1 - np.array([0, 1e-15, 1e-12, 1.65e-4, 1e-3, 0.3])) for side in (-1, 1)] + [[0]]
    )
    with jax.enable_x64(True):
        pair = bounded_range_pair(span)
        found = [np.asarray(f(jnp.asarray(y), jnp.asarray(span))) for f in (pair.cdf_p, pair.survival_q)]
        error = float(pair.value_error)
    with mp.workdps(60):
        e = mp.mpf(span)
        for at, below, above in zip(y, *found, strict=True):
            truth = mp.expm1((mp.mpf(float(at)) + e) / 2) / mp.expm1(e)
            assert abs(mp.mpf(float(below)) - truth) <= error, (at, "cdf_p")
            truth = mp.expm1((e - mp.mpf(float(at))) / 2) / mp.expm1(e)
            if truth > 1e-300:
                assert abs(mp.mpf(float(above)) - truth) <= error * truth * (1 + abs(mp.log(truth))), (at, "survival_q")


@pytest.mark.parametrize("span", [20.0, 36.5, 40.0, 100.0])
def test_long_ranges_have_numbers_on_both_sides(span):
    bounds = bounded_range_to_delta(span, 2, 1.0)
    assert 0 <= bounds.lower <= bounds.upper <= 1
