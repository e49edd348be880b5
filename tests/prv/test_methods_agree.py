"""2,000 random subsampled Gaussians: three ways of composing must have room for one truth."""

import jax
import numpy as np
from brackets import assert_overlap
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxacct as ja

BATCH = 50


def brackets(points, method):
    """Returns a compiled function from rows (noise, rate, steps, delta) to epsilon for removing and for adding."""

    def one(row):
        noise, rate, steps, delta = row
        mechanism = ja.PoissonSubsampledGaussian(noise, rate)
        return tuple(
            ja.prv.epsilon(mechanism, steps, delta, relation=relation, points=points, method=method)
            for relation in ("remove", "add")
        )

    return jax.jit(lambda rows: jax.lax.map(one, rows))


RECURSIVE, TWO_STAGE, FIXED = (
    brackets(points, method) for points, method in ((2**8, "recursive"), (2**8, "two_stage"), (2**10, "fixed"))
)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_methods_overlap(seed):
    random = np.random.default_rng(seed)
    noise = 10 ** random.uniform(np.log10(0.3), np.log10(20), BATCH)
    rate = 10 ** random.uniform(-5, 0, BATCH)
    steps = np.floor(10 ** random.uniform(0, 7, BATCH))
    delta = 10 ** random.uniform(-12, -2, BATCH)
    with jax.enable_x64(True):
        rows = (noise, rate, steps, delta)
        found = [jax.tree.map(np.asarray, method(rows)) for method in (RECURSIVE, TWO_STAGE, FIXED)]
    for direction in range(2):
        assert_overlap(*(answer[direction] for answer in found))
