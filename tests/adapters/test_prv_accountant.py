"""The classes of prv-accountant, by this library's accountants: names, numbers, and what is refused."""

import math

import pytest
from scipy import stats

import jaxacct as ja
from jaxacct.adapters import prv_accountant as prv


def gaussian_delta(mu, epsilon):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.exhaustive
def test_its_example_of_three_mechanisms_has_the_bounds_of_their_composition():
    """The example of its page, whose own bounds are within 0.1 of an epsilon."""
    prvs = [
        prv.PoissonSubsampledGaussianMechanism(noise_multiplier=0.8, sampling_probability=5e-3),
        prv.GaussianMechanism(noise_multiplier=8.0),
        prv.LaplaceMechanism(mu=0.1),
    ]
    accountant = prv.PRVAccountant(prvs, max_self_compositions=[1_000] * 3, eps_error=0.1, delta_error=1e-10)
    low, estimate, up = accountant.compute_epsilon(delta=1e-6, num_self_compositions=[100, 200, 100])
    runs = (ja.PoissonSubsampledGaussian(0.8, 5e-3), ja.Gaussian(8.0), ja.Laplace(10.0))
    known = ja.epsilon(runs, (100, 200, 100), 1e-6)
    assert (low, up) == pytest.approx((float(known.lower), float(known.upper)), rel=1e-9)
    assert 0 < low <= estimate <= up < low * 1.01
    assert all(type(end) is float for end in (low, estimate, up))


def test_bounds_hold_for_gaussian_noise_of_a_sensitivity():
    """100 runs with noise 5 over a sensitivity of 2, and 50 with 10: one of mu^2 = 100 (2/5)^2 + 50/100, and none."""
    prvs = [prv.GaussianMechanism(50.0, l2_sensitivity=2.0), prv.GaussianMechanism(10.0)]
    accountant = prv.PRVAccountant(prvs, 0.1, 1e-10, [100, 50])
    low, _, up = accountant.compute_delta(2.0, [100, 50])
    exact = gaussian_delta(math.sqrt(100 * (2 / 50) ** 2 + 50 / 100), 2.0)
    assert low <= exact <= up < low * (1 + 1e-3)
    # A quotient is rounded to less noise.
    assert prv.GaussianMechanism(1.0, 3.0).mechanism.noise_multiplier <= 1 / 3


@pytest.mark.exhaustive
def test_guarantees_and_own_mechanisms_compose():
    accountant = prv.PRVAccountant([prv.PureDPMechanism(0.1), prv.ApproximateDPMechanism(0.2, 1e-8)], 0.1, 1e-9)
    low, _, up = accountant.compute_epsilon(1e-6, None)
    known = ja.epsilon((ja.PureDP(0.1), ja.ApproximateDP(0.2, 1e-8)), (1, 1), 1e-6)
    assert (low, up) == pytest.approx((float(known.lower), float(known.upper)))
    own = prv.PRVAccountant(ja.DiscreteLaplace(2.0), 0.1, 1e-9, 10).compute_epsilon(1e-6, 10)
    assert own[2] == pytest.approx(float(ja.epsilon(ja.DiscreteLaplace(2.0), 10, 1e-6).upper))


def test_dp_sgd_by_either_class_is_the_verb():
    known = ja.epsilon(ja.PoissonSubsampledGaussian(0.8, 5e-3), 1000, 1e-6)
    newer = prv.DPSGDAccountant(noise_multiplier=0.8, sampling_probability=5e-3, max_steps=1000)
    assert newer.compute_epsilon(delta=1e-6, num_steps=1000)[2] == float(known.upper)
    with pytest.warns(DeprecationWarning, match="use PRVAccountant"):
        oldest = prv.Accountant(
            noise_multiplier=0.8, sampling_probability=5e-3, delta=1e-6, eps_error=0.1, max_compositions=1000
        )
    assert oldest.compute_epsilon(num_compositions=1000)[0] == float(known.lower)


@pytest.mark.exhaustive
def test_the_noise_found_meets_its_target():
    noise = prv.find_noise_multiplier(2e-3, num_steps=10_000, target_epsilon=4.0, target_delta=1e-7)
    assert ja.epsilon(ja.PoissonSubsampledGaussian(noise, 2e-3), 10_000, 1e-7).upper <= 4.0
    with pytest.raises(RuntimeError, match=r"is above mu_max = 0\.5"):
        prv.find_noise_multiplier(2e-3, 10_000, 4.0, 1e-7, mu_max=0.5)


class OfOnesOwn(prv.PrivacyRandomVariable):
    def __init__(self):
        pass

    def cdf(self, t):
        return t


def test_what_has_no_certified_answer_is_refused():
    gauss = prv.GaussianMechanism(2.0)
    with pytest.raises(TypeError, match="no law that is certified"):
        prv.PRVAccountant([OfOnesOwn()], 0.1, 1e-9)
    with pytest.raises(ValueError, match="are above max_self_compositions"):
        prv.PRVAccountant([gauss], 0.1, 1e-9, [10]).compute_epsilon(1e-5, [11])
    with pytest.raises(ValueError, match="do not match 1 prvs"):
        prv.PRVAccountant([gauss], 0.1, 1e-9, [10, 10])
    with pytest.raises(ValueError, match=r"delta_error = 0\.0 is not above 0"):
        prv.PRVAccountant([gauss], 0.1, 0.0)
    with pytest.raises(NotImplementedError, match="ask compute_epsilon"):
        prv.PRVAccountant([gauss], 0.1, 1e-9, 10).compute_composition(10)
    with pytest.raises(NotImplementedError, match="GaussianMechanism has no law of its own here"):
        gauss.cdf(0.5)
    with pytest.raises(ValueError, match="mu = 0 is no finite number above 0"):
        prv.LaplaceMechanism(0)
    with pytest.warns(DeprecationWarning, match="oldest"), pytest.raises(ValueError, match=r"mesh_size = 0\.1"):
        prv.Accountant(1.0, 0.1, 1e-5, 10, mesh_size=0.1)
