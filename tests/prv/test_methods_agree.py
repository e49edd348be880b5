"""2,000 random subsampled Gaussians: three ways of composing must have room for one truth."""

import numpy as np
import pytest
from brackets import assert_overlap
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxacct as ja

BATCH = 50


METHODS = (2**8, "recursive"), (2**8, "two_stage"), (2**10, "fixed")

REFINED = (2**8, "recursive"), (2**10, "two_stage"), (2**12, "fixed")
"""With points enough for a window of ten deviations of 4,096 steps and four points a step's."""


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_methods_overlap(seed):
    random = np.random.default_rng(seed)
    noise = 10 ** random.uniform(np.log10(0.3), np.log10(20), BATCH)
    rate = 10 ** random.uniform(-5, 0, BATCH)
    steps = np.floor(10 ** random.uniform(0, 7, BATCH))
    delta = 10 ** random.uniform(-12, -2, BATCH)
    for row in zip(noise, rate, steps, delta, strict=True):
        mechanism = ja.PoissonSubsampledGaussian(*row[:2])
        for relation in ("remove", "add"):
            assert_overlap(
                *(
                    ja.prv.epsilon(mechanism, *row[2:], relation=relation, points=points, method=method)
                    for points, method in METHODS
                )
            )


@pytest.mark.parametrize("steps", [64, 1024, 4096])
def test_each_method_says_something(steps):
    """Overlap alone is met by a bracket that is all there is."""
    mechanism = ja.Gaussian(4 * steps**0.5)
    brackets = [ja.prv.epsilon(mechanism, steps, 1e-6, points=points, method=method) for points, method in REFINED]
    assert_overlap(*brackets)
    for bounds in brackets:
        assert bounds.gap < 0.1
