"""Tests of the promise of CONVERGED where epsilon at a delta is 0, and of settings that delta pays for by itself."""

import numpy as np
import pytest
from helpers.thorough import cases

import jaxacct as ja
from jaxacct import calibrate
from jaxacct.calibrate import Status


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 1e-3])
def test_the_least_noise_where_epsilon_is_nothing(epsilon):
    found = calibrate.noise_multiplier(epsilon, 0.5, 1, 1)
    assert found.status == Status.CONVERGED
    assert found.reached.upper <= epsilon
    # The Gaussian's own curve: delta is above the budget's with a millionth less noise.
    assert ja.convert.gdp_to_delta(1 / found.value, epsilon) <= 0.5 * (1 + 1e-12)
    assert ja.convert.gdp_to_delta(1 / (found.value * (1 - 1e-6)), epsilon) > 0.5
    if epsilon == 0:
        assert found.value == pytest.approx(0.741301, rel=2e-6)


@pytest.mark.exhaustive
def test_rates_and_steps_that_delta_pays_for():
    # Hardly any noise: 1 - e^-1 times nothing is spared of a rate of 1e-5.
    found = calibrate.sampling_rate(1.0, 1e-5, 0.02, 1)
    assert found.status == Status.CONVERGED
    assert found.value == pytest.approx(1e-5, rel=1e-6)
    # No noise: the rate at which an example is missed 10 times with probability 1/2; and as many steps at that rate.
    bare = calibrate.sampling_rate(1.0, 0.5, 0.0, 10)
    assert bare.status == Status.CONVERGED
    assert 0 <= 1 - bare.value / -np.expm1(np.log(0.5) / 10) < 1e-12
    assert calibrate.steps(1.0, 0.5, 0.0, bare.value).value == 10
    with pytest.raises(ValueError, match="single step"):
        calibrate.steps(1.0, 0.01, 0.0, 0.5)


def test_nothing_is_called_infeasible_that_was_not_refuted():
    for epsilon, delta, noise, steps in cases([(5.0, 1e-6, 0.6, 100)], [(0.1, 1e-3, 0.3, 1000)]):
        found = calibrate.sampling_rate(epsilon, delta, noise, steps)
        assert found.satisfied
        assert found.value >= -np.expm1(np.log1p(-delta) / steps) * (1 - 1e-6)


@pytest.mark.parametrize(("epsilon", "delta", "steps"), [(0.0, 1e-30, 1), (1e-20, 1e-30, 10), (0.0, 1e-300, 1)])
def test_the_least_noise_for_a_delta_that_no_search_reaches(epsilon, delta, steps):
    found = calibrate.noise_multiplier(epsilon, delta, 1.0, steps)
    assert found.status == Status.CONVERGED
    assert found.reached.upper <= epsilon
    mu = np.sqrt(steps) / found.value
    assert ja.convert.gdp_to_delta(mu, epsilon) <= delta * (1 + 1e-12)
    assert ja.convert.gdp_to_delta(mu * (1 + 1e-6), epsilon) > delta
