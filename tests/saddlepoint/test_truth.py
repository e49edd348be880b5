"""The exact accountant against values known to many more digits: where it claims to have converged, and its bracket."""

import json
import pathlib

import mpmath
import numpy as np
import pytest
from helpers.brackets import assert_holds, assert_judged
from helpers.oracle import gaussian_delta
from helpers.thorough import draws

import jaxacct as ja
from jaxacct import saddlepoint

TRUTHS = json.loads((pathlib.Path(__file__).parent.parent / "data" / "delta_truth.json").read_text())


def test_values_known_to_160_bits():
    converged = 0
    for row in TRUTHS:
        mechanism = ja.PoissonSubsampledGaussian(row["sigma"], row["q"])
        bounds = saddlepoint.delta(mechanism, row["k"], row["eps"], relation=row["direction"])
        assert bounds.lower <= row["delta"] <= bounds.upper
        converged += bool(bounds.converged)
        if bounds.converged:
            assert bounds.estimate == pytest.approx(row["delta"], rel=1e-12)
        else:
            assert np.isnan(bounds.estimate)
    assert converged >= 0.95 * len(TRUTHS)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "epsilon", "truth"),
    [
        (0.33622011050197304, 0.05543430730118734, 141_136, 4814.3543566305325, 6.483844178929072e-12),
        (0.2844659322157392, 0.013514560724938797, 9_451, 114.30597798789105, 2.7217637625507e-33),
    ],
)
def test_little_noise_under_add(noise, rate, steps, epsilon, truth):
    """Q has its mass about 1/noise, farther out than P: truths of 40 digits, by the same integral over more nodes."""
    bounds = saddlepoint.delta(ja.PoissonSubsampledGaussian(noise, rate), steps, epsilon, relation="add")
    assert_holds(bounds, truth, 1e-13)
    assert bounds.converged


def test_float32_against_the_same():
    narrow = 0
    for row in TRUTHS:
        # The truths are of these numbers, which float32 holds to 6e-8 of themselves: that moves delta by the slack.
        mechanism = ja.PoissonSubsampledGaussian(row["sigma"], row["q"])
        bounds = saddlepoint.delta(mechanism, row["k"], row["eps"], relation=row["direction"], arithmetic="float32")
        if np.float32(row["delta"]) < 1e-35:
            continue
        slack = 1e-5
        assert bounds.lower * (1 - slack) <= row["delta"] <= bounds.upper * (1 + slack)
        narrow += bool(bounds.gap < 0.02)
    assert narrow >= 0.6 * len(TRUTHS)


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 30.0])
def test_gaussian_against_the_closed_form(noise_multiplier):
    for steps in (1, 7, 1000, 10**6):
        with mpmath.workdps(60):
            mu = mpmath.sqrt(steps) / mpmath.mpf(noise_multiplier)
        if mu > 100:  # epsilon in the tens of thousands
            continue
        for deviations in (-1.3, 0.0, 3.0, 8.0, 20.0, 36.0):  # delta from 0.9 down to 1e-286
            epsilon = np.float64(mu**2 / 2 + deviations * mu)
            if epsilon < 0:
                continue
            truth = gaussian_delta(mu, epsilon)
            bounds = saddlepoint.delta(ja.Gaussian(noise_multiplier), steps, epsilon, relation="remove")
            assert bounds.converged, (steps, deviations)
            assert bounds.lower <= truth <= bounds.upper
            assert bounds.estimate == pytest.approx(float(truth), rel=1e-10)


@pytest.mark.exhaustive
def test_brackets_are_right_by_the_referee():
    """The integral's are a million times narrower than the mesh's where it converges: both at once are."""
    random = np.random.default_rng(11)
    count, converged = draws(6, 16), 0
    for i in range(count):
        noise, rate = np.exp(random.uniform(np.log(0.7), np.log(8))), np.exp(random.uniform(np.log(1e-2), np.log(0.2)))
        steps = round(np.exp(random.uniform(np.log(20), np.log(1e6))))
        mechanism = ja.PoissonSubsampledGaussian(noise, rate)
        exact = saddlepoint.epsilon(mechanism, steps, 1e-5)
        mesh = ja.prv.epsilon(mechanism, steps, 1e-5, points=1024)
        assert_judged("epsilon", mechanism, steps, 1e-5, exact, mesh, refutes=not i % 8)
        if exact.converged:
            converged += 1
            assert exact.upper - exact.lower <= 1e-7 * exact.upper + 1e-9
    assert converged >= 0.6 * count


@pytest.mark.exhaustive
def test_two_mechanisms_and_an_infinite_loss():
    """Homogeneous in disguise, and an atom at infinity beside a Gaussian."""
    twice = ja.PoissonSubsampledGaussian(np.array([1.0, 1.0]), np.array([0.01, 0.01]))
    halves = saddlepoint.epsilon(twice, np.array([4000, 6000]), 1e-5)
    whole = saddlepoint.epsilon(ja.PoissonSubsampledGaussian(1.0, 0.01), 10_000, 1e-5)
    assert halves.estimate == pytest.approx(float(whole.estimate), rel=1e-11)
    run = (ja.Gaussian(10.0), ja.ApproximateDP(0.0, 1e-6))
    truth = 1e-6 + (1 - mpmath.mpf(1e-6)) * gaussian_delta(mpmath.mpf(1), 2.0)
    assert_holds(saddlepoint.delta(run, (100, 1), 2.0), float(truth), 1e-14)


@pytest.mark.exhaustive
def test_what_has_not_converged_says_so():
    for mechanism, steps in ((ja.PoissonSubsampledGaussian(1.0, 1e-3), 3), (ja.RandomizedResponse(1.0), 10)):
        bounds = saddlepoint.epsilon(mechanism, steps, 1e-6)
        assert not bounds.converged
        assert np.isnan(bounds.estimate)
        assert bounds.upper >= ja.prv.epsilon(mechanism, steps, 1e-6, points=1024).lower
    unknown = saddlepoint.epsilon(ja.DiscreteGaussian(1.0), 10, 1e-6)
    assert (unknown.lower, unknown.upper, bool(unknown.converged)) == (0, np.inf, False)


def test_ends_of_the_range():
    assert saddlepoint.epsilon(ja.Gaussian(1.0), 0, 1e-5).upper == 0
    assert saddlepoint.epsilon(ja.Gaussian(0.0), 1, 1e-5).upper == np.inf
    assert saddlepoint.delta(ja.Gaussian(0.0), 1, 1.0).upper == 1
    large = saddlepoint.epsilon(ja.Gaussian(100.0), 1, 0.3)
    assert large.lower == 0
    assert large.upper >= 0
