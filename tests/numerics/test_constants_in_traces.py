"""Concrete numbers inside a caller's trace: they are computed with at once, as they are outside of it."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.public_names import NAMES

import jaxacct as ja
from jaxacct import convert, tradeoff

ANSWERS = {
    "advantage": lambda: tradeoff.advantage(ja.Gaussian(1.3), 3).upper,
    "gaussian": lambda: tradeoff.gaussian(1.0, 0.25),
    "gdp_to_delta": lambda: convert.gdp_to_delta(0.8, 0.5),
    "mechanism_to_zcdp": lambda: convert.mechanism_to_zcdp(ja.PureDP(1.0))[0],
    "curve": lambda: tradeoff.curve(ja.Gaussian(1.3), 3, 0.25).lower,
    "select": lambda: ja.epsilon(ja.RepeatAndSelect(ja.Gaussian(5.0), 1, ja.selection.Geometric(10.0)), 1, 1e-5).upper,
}


@pytest.mark.first_tier("advantage", "gaussian", "gdp_to_delta")
@pytest.mark.parametrize("name", ANSWERS)
def test_concrete_numbers_stay_concrete_in_a_trace(name):
    found = []

    @jax.jit
    def traced(x):
        found.append(ANSWERS[name]())
        return x * jnp.asarray(found[0], jnp.float32)

    times = float(traced(1.0))
    assert not isinstance(found[0], jax.core.Tracer)
    assert found[0] == ANSWERS[name]()
    assert times == np.float32(found[0])


ROOMS = ("convert", "iteration", "tradeoff", "gdp", "saddlepoint")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [n for n in NAMES if n.count(".") == 2 and n.split(".")[1] in ROOMS])
def test_examples_answer_the_same_in_a_trace(name):
    wrong = []

    @jax.jit
    def traced(x):
        for test in doctest.DocTestFinder(exclude_empty=True).find(NAMES[name], name):
            flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
            doctest.DocTestRunner(verbose=False, optionflags=flags).run(test, out=wrong.append)
        return x

    traced(1.0)
    assert not wrong, "".join(wrong)
