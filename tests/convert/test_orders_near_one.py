"""The optimal relation at every order, next to 1 and at infinity too: never on the wrong side of the exact frontier."""

import math

import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import draws

from jaxacct import Gaussian
from jaxacct.convert import (
    METHODS,
    gdp_to_epsilon,
    least_rdp,
    pure_to_rdp,
    rdp_to_delta,
    rdp_to_epsilon,
    zcdp_to_epsilon,
)
from jaxacct.filters import ZCDPFilter


def frontier(seed, count, lowest, highest):
    """Yields order, divergence, epsilon and delta of pairs of two outcomes that attain the optimum, at 60 digits.

    Of likelihood ratios t1 > t2, with e^epsilon the ratio at which a t^b e^epsilon - b t^a agrees at both.
    """
    mp.mp.dps = 60
    rng = np.random.default_rng(seed)
    found = 0
    while found < count:
        order = 1 + float(np.exp(rng.uniform(np.log(lowest), np.log(highest))))
        a, b = mp.mpf(order), mp.mpf(order) - 1
        high = mp.mpf(np.exp(rng.uniform(np.log(1e-6), np.log(700))))
        low = -mp.mpf(np.exp(rng.uniform(np.log(1e-6), np.log(rng.choice([3e3, 3e7])))))
        ratio = b / a * (mp.exp(a * high) - mp.exp(a * low)) / (mp.exp(b * high) - mp.exp(b * low))
        q = (1 - mp.exp(low)) / (mp.exp(high) - mp.exp(low))
        delta = q * (mp.exp(high) - ratio)
        if ratio < 1 or not 1e-200 < delta < 0.999:
            continue
        found += 1
        yield order, mp.log(q * mp.exp(a * high) + (1 - q) * mp.exp(a * low)) / b, mp.log(ratio), delta


def toward(number, end):
    """Returns the next float64 in the direction of ``end``, so that an argument is on the side that asks for more."""
    return float(np.nextafter(float(number), end))


@pytest.mark.parametrize(("lowest", "highest"), [(1e-8, 5e-3), (1e-2, 2e3)])
def test_no_bound_is_on_the_wrong_side_of_the_frontier(lowest, highest):
    for order, divergence, epsilon, delta in frontier(7, draws(30, 120), lowest, highest):
        above = toward(divergence, math.inf)
        for method in METHODS:
            assert rdp_to_epsilon([above], [order], toward(delta, 0), method) >= epsilon
            assert rdp_to_delta([above], [order], toward(epsilon, 0), method) >= delta
        least = least_rdp(toward(epsilon, 0), toward(delta, 0), [order])[0]
        assert 0 <= least <= divergence
        assert rdp_to_delta([above], [order], toward(epsilon, 0)) <= delta * (1 + mp.mpf(1e-9))
        assert least >= divergence * (1 - mp.mpf(1e-6)) * (1 - mp.mpf(1e-12))


def test_a_gaussian_at_an_order_next_to_one():
    # Noise 1/8: delta(0) is 0.99994, so that epsilon at 0.999 is the Gaussian's or more.
    assert rdp_to_epsilon([32.0000032], [1.0000001], 0.999) >= gdp_to_epsilon(8.0, 0.999) > 6
    assert zcdp_to_epsilon(50.0, 0.998) >= gdp_to_epsilon(10.0, 0.998) > 15
    # By a search over pairs of two outcomes.
    assert least_rdp(1.0, 0.999, [1.0001])[0] == pytest.approx(7.9078, rel=1e-5)
    assert not ZCDPFilter(0.5, 0.998).spend(Gaussian(0.1))[0]


def test_randomized_response_at_orders_next_to_one():
    mp.mp.dps = 60
    for epsilon in (1e-3, 2.0, 40.0):
        for order in (1 + 2.0**-40, 1 + 1e-8, 1.001):
            a, x = mp.mpf(order), mp.mpf(epsilon)
            truth = mp.log((mp.exp(a * x) + mp.exp((1 - a) * x)) / (1 + mp.exp(x))) / (a - 1)
            assert 0 <= pure_to_rdp(epsilon, [order])[0] / truth - 1 < 1e-12


def test_an_infinite_order_is_a_pure_epsilon():
    assert rdp_to_epsilon([2.0], [math.inf], 0.0) == 2
    assert rdp_to_epsilon([0.5, 2.0], [2.0, math.inf], 0.0) == 2
    assert rdp_to_epsilon([0.5], [2.0], 0.0) == math.inf
    assert rdp_to_epsilon([0.0], [2.0], 0.0) == 0
    assert rdp_to_delta([2.0], [math.inf], 2.0) == 0
    # Randomized response with e^2 to 1 has P - e^epsilon Q = 1 - e^(epsilon - 2), less what the other outcome has.
    for method in METHODS[:2]:
        assert rdp_to_epsilon([2.0], [math.inf], 0.1, method) == pytest.approx(2 + math.log(0.9), rel=1e-12)
        assert rdp_to_delta([2.0], [math.inf], 1.9, method) == pytest.approx(-math.expm1(-0.1), rel=1e-12)
    assert [rdp_to_epsilon([2.0], [math.inf], 0.1, method) for method in METHODS[2:]] == [2, 2]
    assert least_rdp(1.0, 0.1, [math.inf])[0] == pytest.approx(1 - math.log(0.9), rel=1e-12)
