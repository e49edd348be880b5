"""Random subsampled Gaussians: what three ways of composing say together is true, by the referee."""

import numpy as np
import pytest
from brackets import assert_judged
from thorough import draws

import jaxacct as ja

METHODS = (2**10, "recursive"), (2**10, "two_stage"), (2**10, "fixed")

REFINED = (2**8, "recursive"), (2**10, "two_stage"), (2**12, "fixed")
"""With points enough for a window of ten deviations of 4,096 steps and four points a step's."""


@pytest.mark.parametrize("seed", range(draws(1, 4)))
def test_each_method_is_right(seed):
    random = np.random.default_rng(seed)
    for i in range(draws(6, 10)):
        mechanism = ja.PoissonSubsampledGaussian(10 ** random.uniform(np.log10(0.7), np.log10(20)),
                                                 10 ** random.uniform(-3, 0))  # fmt: skip
        steps, delta = np.floor(10 ** random.uniform(0, 7)), 10 ** random.uniform(-12, -2)
        relation = "remove" if random.random() < 0.5 else "add"
        brackets = [
            ja.prv.epsilon(mechanism, steps, delta, relation=relation, points=points, method=method)
            for points, method in METHODS
        ]
        assert_judged("epsilon", mechanism, steps, delta, *brackets, relation=relation, refutes=not i)


@pytest.mark.parametrize("steps", [64, 1024, 4096])
def test_each_method_says_something(steps):
    """What is true may be all there is."""
    mechanism = ja.Gaussian(4 * steps**0.5)
    brackets = [ja.prv.epsilon(mechanism, steps, 1e-6, points=points, method=method) for points, method in REFINED]
    assert_judged("epsilon", mechanism, steps, 1e-6, *brackets)
    for bounds in brackets:
        assert bounds.gap < 0.1
