"""Float32 beside float64 on random settings: what it claims to have converged is right, and it claims most of them."""

import numpy as np
import pytest
from helpers.thorough import draws

import jaxacct as ja
from jaxacct import saddlepoint

COUNT = draws(50, 150)


@pytest.mark.exhaustive
def test_float32_is_right_where_it_says_so():
    random = np.random.default_rng(5)
    converged, claimed, worst = 0, 0, 0.0
    for _ in range(COUNT):
        noise, rate = np.exp(random.uniform(np.log([0.5, 1e-3]), np.log([8.0, 0.2])))
        steps, epsilon = round(np.exp(random.uniform(np.log(30), np.log(1e6)))), np.exp(random.uniform(-4, 2.5))
        run = ja.PoissonSubsampledGaussian(noise, rate), steps, epsilon
        exact = saddlepoint.delta(*run, relation="remove")
        single = saddlepoint.delta(*run, relation="remove", arithmetic="float32")
        # Below lie float32's subnormal numbers.
        if not exact.converged or exact.estimate < 1e-30:
            continue
        converged += 1
        if single.converged:
            claimed += 1
            worst = max(worst, abs(float(single.estimate) / exact.estimate - 1))
    assert converged > COUNT / 3
    assert claimed >= 0.9 * converged
    assert worst <= 1e-3


@pytest.mark.parametrize("arithmetic", ["float16", None])
def test_other_arithmetics_are_refused(arithmetic):
    with pytest.raises(ValueError, match="arithmetic"):
        saddlepoint.delta(ja.Gaussian(1.0), 1, 1.0, arithmetic=arithmetic)
