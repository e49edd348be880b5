"""Tests of the tightness of the bounds, at default settings and by tolerance."""

import numpy as np
import pytest
from helpers.brackets import assert_judged
from helpers.oracle import gaussian_epsilon
from helpers.thorough import cases

import jaxacct as ja
from jaxacct import verify


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "truth"),
    # The other one is in test_default_tolerance_is_met_without_a_word.
    cases([(0.8, 0.005, 1000, 1e-6, 2.0041)], [(1.0, 0.01, 10**4, 1e-5, 6.1877)]),
)
def test_reference_configurations(noise, rate, steps, delta, truth):
    bounds = ja.prv.epsilon(ja.PoissonSubsampledGaussian(noise, rate), steps, delta)
    assert bounds.lower <= truth + 5e-5
    assert truth - 5e-5 <= bounds.upper
    assert bounds.gap <= 1e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("mu", "steps", "delta", "truth"),
    [
        (1.0, 10**4, 1e-12, 7.238494),
        (0.05, 10**6, 1e-9, 0.260197),
        (0.01, 10**4, 1e-9, 0.048866),
        (3.0, 10**8, 1e-6, 18.163446),
        (10.0, 1, 1e-9, 109.195597),
    ],
)
def test_gaussians_split_into_many_steps(mu, steps, delta, truth):
    noise_multiplier = np.sqrt(steps) / mu
    bounds = ja.prv.epsilon(ja.Gaussian(noise_multiplier), steps, delta)
    assert gaussian_epsilon(mu, delta) == pytest.approx(truth, abs=1e-6)
    assert bounds.lower <= gaussian_epsilon(mu, delta) <= bounds.upper
    assert bounds.gap <= 1e-3


@pytest.mark.parametrize("tolerance", [1e-2, 1e-3])
def test_tolerance_is_met(tolerance):
    bounds = ja.prv.epsilon(ja.PoissonSubsampledGaussian(1.1, 0.004), 5000, 1e-6, tolerance=tolerance)
    assert bounds.gap <= tolerance


@pytest.mark.exhaustive
def test_error_falls_with_the_square_of_the_mesh():
    gaps = [ja.prv.epsilon(ja.Gaussian(10.0), 64, 1e-6, points=points).gap for points in (2**12, 2**14)]
    assert 10.0 < gaps[0] / gaps[1] < 25.0


def test_a_rare_large_loss_does_not_cost_the_bulk_its_mesh():
    bounds = ja.prv.epsilon(ja.PoissonSubsampledGaussian(1.8, 1.5e-4), 94_275, 3.6e-5, points=2**12)
    assert bounds.gap <= 1e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (0.457, 2.38e-5, 10, 8.3e-9),
        (0.357, 3.84e-5, 5, 9.4e-7),
        (0.345, 1.96e-4, 42, 2.8e-6),
        (0.685, 1.17e-4, 1, 3.6e-9),
    ],
)
def test_where_single_rare_losses_decide(noise, rate, steps, delta):
    """Atoms lie where such losses exceed epsilon, however many they are. A mesh that holds them is coarse beside the
    bulk: its bracket is wide, and holds."""
    mechanism = ja.PoissonSubsampledGaussian(noise, rate)
    bounds = [ja.prv.epsilon(mechanism, steps, delta, relation="remove", points=2**n) for n in (12, 14)]
    bounds.append(ja.epsilon(mechanism, steps, delta, relation="remove", tolerance=3e-4))
    assert bounds[-1].gap <= 3e-4
    upper = min(one.upper for one in bounds)
    verdict = verify.epsilon(mechanism, steps, delta, (0.0, upper), relation="remove")
    assert verdict.status == "PROVED"
    assert max(one.lower for one in bounds) <= verdict.truth[1] <= upper


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    cases([(4.19754, 0.00119757, 137_857, 1.004e-12)], [(3.10209, 2.19456e-4, 40_572, 1.855e-12)]),
)
def test_cut_losses_cost_little_of_a_small_delta(noise, rate, steps, delta):
    """One step's losses end far below epsilon, and what is beyond has no tilted mass to speak of, or all of it."""
    mechanism = ja.PoissonSubsampledGaussian(noise, rate)
    bounds = ja.prv.epsilon(mechanism, steps, delta, points=2**12)
    assert_judged("epsilon", mechanism, steps, delta, bounds, refutes=steps > 10**5)
    assert bounds.gap < 1e-3
