"""Compositions whose characteristic function cannot fall: known by their supremum, and left to the mesh."""

import jax
import numpy as np
import pytest

import jaxacct as ja

KINDS = {
    "response": ja.RandomizedResponse(0.3),
    "laplace": ja.Laplace(5.0),
    "sampled": ja.PoissonSubsampledLaplace(1.0, 0.1),
}
RUNS = 20


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_beyond_the_largest_loss(kind):
    largest = float(ja.epsilon(KINDS[kind], 1, 0.0).upper)
    beyond = ja.saddlepoint.delta(KINDS[kind], RUNS, RUNS * largest * 1.001)
    assert (beyond.lower, beyond.upper, bool(beyond.converged)) == (0.0, 0.0, True)
    bounds = ja.saddlepoint.epsilon(KINDS[kind], RUNS, 1e-5)
    assert bounds.upper <= RUNS * largest * (1 + 1e-12)
    assert not bounds.converged


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_the_top_level_has_the_mesh_s_answer(kind):
    bounds = ja.epsilon(KINDS[kind], RUNS, 1e-5)
    assert bounds.converged
    assert bounds.gap <= 1e-3


@pytest.mark.exhaustive
def test_traced_curves_come_from_the_mesh():
    rates = np.array([0.01, 0.1, 0.5])
    eager = ja.tradeoff.curve(KINDS["response"], RUNS, rates)
    traced = jax.jit(lambda a: ja.tradeoff.curve(KINDS["response"], RUNS, a))(rates)
    assert np.all(np.asarray(traced.lower) <= eager.upper + 1e-6)
    assert np.all(eager.lower <= np.asarray(traced.upper) + 1e-6)
    assert np.all(np.asarray(traced.upper) - np.asarray(traced.lower) < 0.01)


def test_a_traced_scale_is_found_by_the_supremum():
    found = jax.jit(lambda e: ja.calibrate.scale(lambda s: ja.RandomizedResponse(1 / s), e, 1e-5, 3).value)(1.0)
    assert 2.9 < np.asarray(found) < 3.0


@pytest.mark.exhaustive
def test_runs_enough_of_laplace_noise_converge():
    assert ja.saddlepoint.epsilon(ja.Laplace(20.0), 2000, 1e-5).converged
