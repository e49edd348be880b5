"""2,000 random subsampled Gaussians: three ways of composing must have room for one truth."""

import numpy as np
from brackets import assert_overlap
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxacct as ja

BATCH = 50


METHODS = (2**8, "recursive"), (2**8, "two_stage"), (2**10, "fixed")


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
