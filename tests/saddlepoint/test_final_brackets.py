"""Convergence and estimates belong to the bracket that is returned, after it was closed."""

import jax
import numpy as np
import pytest

import jaxacct as ja


def test_a_bracket_that_closing_widened_has_not_converged():
    """A delta so small that what is taken off a lower bound for the smallest numbers is half of it."""
    mechanism = ja.PoissonSubsampledGaussian(52.509216354920184, 0.0029029496276444565)
    bounds = ja.saddlepoint.delta(mechanism, 17502243, 8.553346926732505, relation="remove")
    assert 0 < bounds.lower < bounds.upper < 1e-299
    assert not bounds.converged or bounds.gap <= 1e-2


def test_a_narrow_bracket_has_an_estimate_and_slopes():
    """Far fewer digits than ten are known, but more than a tolerance asks for."""
    mechanism = ja.PoissonSubsampledGaussian(0.7041400873841483, 1.0832376204303804e-05)
    delta = lambda epsilon: ja.saddlepoint.delta(mechanism, 71078, epsilon, relation="add")  # noqa: E731
    at, step = 0.01986823237882613, 1e-4
    bounds = delta(at)
    assert 0 < bounds.gap < 1e-2
    assert bounds.lower <= bounds.estimate <= bounds.upper
    slope = (delta(at + step).upper - delta(at - step).upper) / (2 * step)
    assert jax.grad(lambda epsilon: delta(epsilon).estimate)(at) == pytest.approx(slope, rel=1e-2)


def test_a_bracket_without_an_upper_end_has_no_estimate():
    mechanism = ja.PoissonSubsampledGaussian(3.3639578202819926, 0.00013171921395570518)
    bounds = ja.saddlepoint.epsilon(mechanism, 76, 0.025080101316599886, relation="remove")
    assert bounds.upper < np.inf or (np.isnan(bounds.estimate) and not bounds.converged)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_final_brackets_of_random_settings(name):
    rng, narrow = np.random.default_rng(0), 0
    ask, tolerance = getattr(ja.saddlepoint, name), {"epsilon": 1e-3, "delta": 1e-2}[name]
    for _ in range(60):
        mechanism = ja.PoissonSubsampledGaussian(10 ** rng.uniform(-0.5, 2), 10 ** rng.uniform(-6, -0.5))
        steps, relation = int(10 ** rng.uniform(1, 7)), str(rng.choice(["remove", "add"]))
        number = 10 ** (rng.uniform(-4, 1) if name == "delta" else rng.uniform(-12, -0.1))
        bounds = ask(mechanism, steps, number, relation=relation)
        assert 0 <= bounds.lower <= bounds.upper
        if bounds.converged:
            # An epsilon below 1e-6 nats is as good as 0, and a delta among the smallest numbers, too.
            assert bounds.gap <= tolerance or bounds.upper < (1.01e-6 if name == "epsilon" else 1e-306 * steps)
        if bounds.gap <= tolerance:
            narrow += 1
            assert bounds.lower <= bounds.estimate <= bounds.upper
        elif not bounds.converged:
            assert np.isnan(bounds.estimate)
    assert narrow > 20
