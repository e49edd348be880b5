"""Tests that mechanisms without protection cost everything, and that those which release nothing cost nothing."""

from dataclasses import dataclass

import jax
import mpmath
import numpy as np
import pytest
from helpers.brackets import assert_holds
from helpers.oracle import gaussian_delta

import jaxacct as ja
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.prv import accountant

POINTS = 2**10


@pytest.mark.exhaustive
@pytest.mark.parametrize("mechanism", [ja.Gaussian(0.0), ja.Laplace(0.0), ja.PoissonSubsampledGaussian(0.0, 0.1)])
def test_no_noise(mechanism):
    for steps in (1, 5):
        epsilon = ja.prv.epsilon(mechanism, steps, 1e-5, points=POINTS)
        delta = ja.prv.delta(mechanism, steps, 1.0, points=POINTS)
        # An example that is sampled is seen; one that never is, is not told apart.
        rate = mechanism.sampling_rate if isinstance(mechanism, ja.PoissonSubsampledGaussian) else 1.0
        assert epsilon.lower == epsilon.upper == np.inf
        assert delta.lower <= 1 - (1 - rate) ** steps <= delta.upper <= 1 - (1 - rate) ** steps + 1e-12
        assert epsilon.converged
        assert delta.converged


@pytest.mark.exhaustive
def test_infinite_losses_above_delta_have_no_epsilon():
    bounds = ja.prv.epsilon(ja.ApproximateDP(0.5, 1e-3), 10, 1e-3, points=POINTS)
    assert bounds.upper == np.inf
    assert bounds.lower == np.inf  # ten times 1e-3 is more than delta, for sure
    assert ja.prv.epsilon(ja.ApproximateDP(0.5, 1e-3), 10, 2e-2, points=POINTS).upper < 5.1


@pytest.mark.exhaustive
def test_delta_is_never_below_infinite_losses():
    for steps in (1, 7, 10**4, 10**9):
        with mpmath.workdps(40):
            infinite = 1 - (1 - mpmath.mpf(1e-6)) ** steps
        # At an epsilon beyond every finite loss nothing else is left.
        assert_holds(ja.prv.delta(ja.ApproximateDP(1e-12, 1e-6), steps, 1.0, points=POINTS), infinite)


@pytest.mark.exhaustive
def test_disjoint_outcomes():
    mechanism = ja.DiscretePair([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5])
    for steps in (1, 3):
        assert_holds(ja.prv.delta(mechanism, steps, 3.0, points=POINTS), 1.0)
        assert ja.prv.epsilon(mechanism, steps, 0.5, points=POINTS).upper == np.inf


@pytest.mark.parametrize("mechanism", [ja.PureDP(0.0), ja.DiscretePair([0.25, 0.75], [0.25, 0.75])])
def test_what_says_nothing(mechanism):
    for steps in (1, 1000):
        bounds = ja.prv.delta(mechanism, steps, 0.0, points=POINTS)
        assert bounds.lower == 0
        assert bounds.upper < 1e-6


def test_the_greatest_number_of_steps():
    with mpmath.workdps(40):
        mu = mpmath.sqrt(2**53) / 10**8
        truth = gaussian_delta(mu, 1.0)
    # So many roundings add up to more than is to be told: the bracket says so, and holds.
    assert_holds(ja.prv.delta(ja.Gaussian(1e8), 2**53, 1.0, points=POINTS), truth)
    many = ja.prv.delta(ja.PoissonSubsampledGaussian(1.0, 0.01), 2**53, 1.0, points=POINTS)
    assert many.upper >= 1 - 1e-9
    with pytest.raises(ValueError, match="steps"):
        ja.prv.epsilon(ja.Gaussian(1.0), 2**53 + 2, 1e-5)


def test_no_steps_cost_nothing():
    mechanism = ja.Gaussian(1.0)
    for bounds in (ja.prv.epsilon(mechanism, 0, 1e-5, points=POINTS), ja.prv.delta(mechanism, 0, 0.0, points=POINTS)):
        assert (bounds.lower, bounds.estimate, bounds.upper) == (0, 0, 0)
        assert bounds.converged


def test_delta_of_zero_is_met_by_no_epsilon():
    bounds = ja.prv.epsilon(ja.Gaussian(1.0), 1, 0.0)
    assert bounds.lower == bounds.upper == np.inf


@register_dataclass
@dataclass(frozen=True)
class Wrong(ja.Mechanism):
    """A user's own, made of pairs that are not valid."""

    noise: float
    relations = ("add_or_remove",)

    def validate(self):
        pass

    def dominating_pairs(self, relation="add_or_remove"):
        return tuple(jax.tree.map(lambda leaf: -leaf, pair) for pair in ja.Gaussian(self.noise).dominating_pairs())


@pytest.mark.parametrize(("mechanism", "steps"), [(Wrong(1.0), 1), ((Wrong(1.0), ja.Laplace(1.0)), (3, 1))])
def test_no_mesh_is_composed_of_what_is_not_valid(mechanism, steps, monkeypatch):
    def refused(*_, **__):
        raise AssertionError

    monkeypatch.setattr(accountant, "answers", refused)
    with pytest.warns(ja.prv.ToleranceWarning, match="gap of inf"):
        bounds = ja.prv.epsilon(mechanism, steps, 1e-5)
    assert (bounds.lower, bounds.upper, bool(bounds.converged)) == (0, np.inf, False)
    bounds = ja.prv.delta(mechanism, steps, np.inf, points=POINTS)
    assert (bounds.lower, bounds.upper, bool(bounds.converged)) == (0, 1, False)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("mechanism", "steps"),
    [
        (ja.PoissonSubsampledGaussian(0.0, 0.1), 100),
        (ja.Laplace(np.array([0.0, 1.0])), np.array([2, 1])),
        ((ja.Gaussian(1.0), ja.Laplace(0.0)), (3, 1)),
    ],
)
def test_what_has_no_noise_is_known(mechanism, steps):
    bounds = ja.prv.epsilon(mechanism, steps, 1e-5)
    assert (bounds.lower, bounds.upper, bool(bounds.converged)) == (np.inf, np.inf, True)
    bounds = ja.prv.delta(mechanism, steps, np.inf, points=POINTS)
    infinite = 1 - 0.9**100 if np.ndim(steps) == 0 and steps == 100 else 1.0
    assert bounds.lower <= infinite <= bounds.upper <= infinite + 1e-12
    assert bounds.converged
