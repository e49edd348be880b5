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


@pytest.mark.exhaustive
def test_final_brackets_of_random_settings():
    rng, narrow = np.random.default_rng(0), 0
    for _ in range(60):
        mechanism = ja.PoissonSubsampledGaussian(10 ** rng.uniform(-0.5, 2), 10 ** rng.uniform(-6, -0.5))
        steps, relation = int(10 ** rng.uniform(1, 7)), str(rng.choice(["remove", "add"]))
        bounds = ja.saddlepoint.delta(mechanism, steps, 10 ** rng.uniform(-4, 1), relation=relation)
        assert 0 <= bounds.lower <= bounds.upper <= 1
        if bounds.converged:
            assert bounds.gap <= 1e-2 or bounds.upper < 1e-306 * steps
        if bounds.gap <= 1e-2:
            narrow += 1
            assert bounds.lower <= bounds.estimate <= bounds.upper
        elif not bounds.converged:
            assert np.isnan(bounds.estimate)
    assert narrow > 20
