"""A composition's trade-off as an object, against the closed forms of Gaussian noise, and against a reconstruction."""

import numpy as np
import pytest
from scipy import stats

import jaxacct as ja
from jaxacct.tradeoff import TradeOff

RUN = TradeOff(ja.Gaussian(10.0), 100)  # mu = 1


def gaussian(a):
    return stats.norm.cdf(stats.norm.ppf(1 - np.asarray(a)) - 1)


@pytest.mark.parametrize("alpha", [0.2, [0.1, 0.5], [[0.3], [0.01]]])
def test_beta_holds_the_closed_form_in_the_shape_of_alpha(alpha):
    found = RUN.beta(alpha)
    assert np.shape(found.lower) == np.shape(alpha)
    assert np.all((found.lower <= gaussian(alpha)) & (gaussian(alpha) <= found.upper))
    assert np.all(found.upper - found.lower < 1e-2)


def test_what_attacks_reach():
    """Of the advantage 2 Phi(1/2) - 1; of a prior of 0.5 half of what is left."""
    truth = 2 * stats.norm.cdf(0.5) - 1
    assert RUN.advantage().lower <= truth * (1 + 1e-12)
    assert RUN.advantage().upper >= truth * (1 - 1e-12)
    assert float(RUN.bayes_risk().lower) == pytest.approx((1 - truth) / 2, rel=1e-9)


def test_an_example_is_reconstructed_no_more_often_than_is_said():
    """One of m orthogonal examples, all alike likely, by the largest coordinate: the best attack there is."""
    m, noise, draws = 20, 0.7, 200_000
    y = noise * np.random.default_rng(0).standard_normal((draws, m))
    y[:, 0] += 1
    success = np.mean(np.argmax(y, axis=1) == 0)
    found = TradeOff(ja.Gaussian(noise), 1).reconstruction([1 / m, 0.0, 1.0])
    assert success + 5 / np.sqrt(draws) < found.upper[0] < 1.6 * success
    assert found.upper[0] == pytest.approx(1 - stats.norm.cdf(stats.norm.ppf(1 - 1 / m) - 1 / noise), rel=2e-2)
    assert (found.lower[1], found.upper[2]) == (0.0, 1.0)


def test_the_direction_of_a_reconstruction_is_that_without_the_example():
    """Of a pair that is not symmetric: the attack says it is there where that is likelier with it."""
    pair = ja.DiscretePair(p=[0.5, 0.5], q=[0.1, 0.9])
    for relation in ("remove", "add_or_remove"):
        found = TradeOff(pair, 1, relation).reconstruction(0.1)
        assert found.lower <= 0.5 + 1e-12
        assert found.upper >= 0.5 - 1e-12
