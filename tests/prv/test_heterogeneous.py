"""Mechanisms of different kinds and parameters composed together."""

import mpmath
import numpy as np
import pytest
from helpers.brackets import assert_holds, assert_judged
from helpers.oracle import gaussian_delta, gaussian_epsilon
from helpers.thorough import cases

import jaxacct as ja

POINTS = 2**10


def total_mu(noise, steps):
    with mpmath.workdps(60):
        return mpmath.sqrt(sum(mpmath.mpf(k) / mpmath.mpf(s) ** 2 for s, k in zip(noise, steps, strict=True)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", cases([(1, 4000), (1, 0)], [(1, 1), (3, 10**6)]))
def test_gaussians_of_very_different_noise(steps):
    noise = (0.6, 50.0)
    mu = total_mu(noise, steps)
    for deviations in (-0.3, 1.0, 5.0, 15.0):  # delta from 0.6 down to 1e-51
        epsilon = max(float(mu**2 / 2 + deviations * mu), 0.0)
        bounds = ja.prv.delta(ja.Gaussian(np.array(noise)), np.array(steps), epsilon, points=POINTS)
        assert_holds(bounds, gaussian_delta(mu, epsilon))
        assert deviations > 1 or bounds.gap < 0.1


@pytest.mark.exhaustive
def test_order_and_grouping_do_not_matter():
    noise, rate, steps = np.array([0.8, 5.0]), np.array([0.01, 1.0]), np.array([1000, 20])
    sequence = ja.prv.delta(ja.PoissonSubsampledGaussian(noise, rate), steps, 1.5, points=POINTS)
    turned = ja.prv.delta(ja.PoissonSubsampledGaussian(noise[::-1], rate[::-1]), steps[::-1], 1.5, points=POINTS)
    parts = ja.PoissonSubsampledGaussian(0.8, 0.01), ja.PoissonSubsampledGaussian(5.0, 1.0)
    together = ja.prv.delta(parts, (1000, 20), 1.5, points=POINTS)
    assert_judged("delta", parts, (1000, 20), 1.5, sequence, turned, together)
    assert sequence.gap < 0.1


@pytest.mark.exhaustive
def test_rare_and_certain_sampling():
    mechanism, steps = ja.PoissonSubsampledGaussian(np.array([1.0, 4.0]), np.array([1e-4, 1.0])), np.array([1000, 9])
    both = ja.prv.delta(mechanism, steps, 1.0, points=POINTS)
    assert_judged("delta", mechanism, steps, 1.0, both)
    assert both.gap < 0.1


@pytest.mark.exhaustive
def test_equal_mechanisms_in_a_sequence_are_a_composition():
    row = ja.PoissonSubsampledGaussian(np.full(2, 1.0), np.full(2, 0.01))
    apart = ja.prv.delta(row, np.array([600, 400]), 0.5, points=POINTS)
    one = ja.PoissonSubsampledGaussian(1.0, 0.01)
    assert_judged("delta", one, 1000, 0.5, apart, ja.prv.delta(one, 1000, 0.5, points=POINTS))
    assert apart.gap < 0.1


@pytest.mark.exhaustive
def test_counts_of_zero_cost_nothing():
    mechanism = ja.PoissonSubsampledGaussian(np.array([0.1, 2.0]), np.array([1.0, 1.0]))
    for steps in ([0, 16], [0, 0]):
        bounds = ja.prv.delta(mechanism, np.array(steps), 1.0, points=POINTS)
        mu = np.sqrt(steps[1]) / 2
        assert_holds(bounds, gaussian_delta(mu, 1.0) if mu else 0.0)


def laplace_and_gaussian_delta(scale, noise, epsilon):
    """Integral over the Laplace outcome x of the Gaussian's delta at what is left of epsilon, in 30 digits."""
    with mpmath.workdps(30):
        b, mu = mpmath.mpf(scale), 1 / mpmath.mpf(noise)

        def term(x):
            loss = (abs(x) - abs(x - 1)) / b
            return mpmath.exp(-abs(x - 1) / b) / (2 * b) * gaussian_delta(mu, epsilon - loss)

        # Outside [0, 1] the loss is constant.
        below, above = mpmath.exp(-1 / b) / 2, mpmath.mpf(1) / 2
        ends = below * gaussian_delta(mu, epsilon + 1 / b) + above * gaussian_delta(mu, epsilon - 1 / b)
        return ends + mpmath.quad(term, [0, 0.25, 0.5, 0.75, 1])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scale", "noise"), cases([(0.4, 3.0)], [(1.0, 1.0), (10.0, 0.7)]))
def test_laplace_with_gaussian_against_quadrature(scale, noise):
    for epsilon in cases([0.7, 6.0], [0.0, 2.0]):
        truth = laplace_and_gaussian_delta(scale, noise, epsilon)
        both = ja.prv.delta((ja.Laplace(scale), ja.Gaussian(noise)), (1, 1), epsilon, points=POINTS)
        assert_holds(both, truth, 1e-20)
    assert both.upper < 1


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="steps of shape"):
        ja.prv.epsilon(ja.Gaussian(np.ones(3)), np.ones(2), 1e-5)
    with pytest.raises(ValueError, match="vmap"):
        ja.prv.epsilon(ja.Gaussian(np.ones((2, 3))), 1, 1e-5)
    with pytest.raises(ValueError, match="tuple with one number for each"):
        ja.prv.epsilon((ja.Gaussian(1.0), ja.Laplace(1.0)), 3, 1e-5)
    with pytest.raises(ValueError, match="holds nothing"):
        ja.prv.epsilon((), (), 1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("noises", [(204.8767460539229, 0.11483426534075307), (12.67188647118679, 0.07598548710109)])
@pytest.mark.parametrize("points", [128, 512])
def test_a_loss_whose_ends_share_a_point(noises, points):
    """Beside a wide loss the mesh is wider than a narrow one's whole range: its atoms lie in one bin, counted once."""
    mechanisms = tuple(map(ja.Laplace, noises))
    for epsilon in (0.25, 0.5, 1.0, 4.0):
        bounds = ja.prv.delta(mechanisms, (1, 1), epsilon, points=points)
        assert_judged("delta", mechanisms, (1, 1), epsilon, bounds, refutes=False)


@pytest.mark.exhaustive
def test_what_no_mesh_bounds_is_as_wide_as_that():
    with pytest.warns(ja.prv.ToleranceWarning):
        bounds = ja.prv.epsilon(ja.Gaussian(1594.4142848202869), 10**9, 0.9)
    assert bounds.lower <= gaussian_epsilon(np.sqrt(1e9) / 1594.4142848202869, 0.9) <= bounds.upper
