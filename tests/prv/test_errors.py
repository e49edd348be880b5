"""Errors of epsilon and of delta in place of a relative gap: what converged answers promise, and who may ask."""

import jax
import pytest

import jaxacct as ja

MECHANISM = ja.PoissonSubsampledGaussian(1.0, 0.01)
STEPS, DELTA = 1_000, 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize("error", [(0.1, 1e-10), (0.01, 1e-6), (0.003, 0.0)])
def test_epsilon_is_within_its_errors(error):
    bounds = ja.prv.epsilon(MECHANISM, STEPS, DELTA, error=error)
    below, above = (ja.epsilon(MECHANISM, STEPS, DELTA + side * error[1]) for side in (-1, 1))
    assert bounds.converged
    assert bounds.upper <= below.upper + error[0]
    assert bounds.lower >= above.lower - error[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("error", [(0.01, 1e-6), (0.0, 1e-7), (0.02, 1e-9)])
def test_delta_is_within_its_errors(error):
    bounds = ja.prv.delta(MECHANISM, STEPS, 1.0, error=error)
    before, after = (ja.delta(MECHANISM, STEPS, 1.0 + side * error[0]) for side in (-1, 1))
    assert bounds.converged
    assert bounds.upper <= before.upper + error[1]
    assert bounds.lower >= after.lower - error[1]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"error": (0.0, 1e-6)}, "above 0"),
        ({"error": (0.1, -1e-6)}, "0 or above"),
        ({"error": (0.1, 1e-4)}, "below delta"),
        ({"error": 0.1}, "pair"),
        ({"error": (0.1, 0.0), "tolerance": 1e-3}, "one of the three"),
        ({"error": (0.1, 0.0), "points": 1024}, "one of the three"),
    ],
)
def test_errors_that_cannot_be(options, match):
    with pytest.raises(ValueError, match=match):
        ja.prv.epsilon(MECHANISM, STEPS, DELTA, **options)


def test_errors_need_concrete_arguments():
    with pytest.raises(ValueError, match="inside jit"):
        jax.jit(lambda delta: ja.prv.epsilon(MECHANISM, STEPS, delta, error=(0.1, 0.0)).upper)(DELTA)
