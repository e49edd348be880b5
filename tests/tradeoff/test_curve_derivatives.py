"""Derivatives of curves with x64 off, where JAX transposes outside of the scope."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import tradeoff

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")


def rates(x):
    return jnp.stack([0.0 * x, x, 0.6 + 0.0 * x, 1.0 + 0.0 * x])


MISSES = [1.0, 0.45, 0.2, 0.0]

CURVES = {
    "symmetrized": (lambda x: jnp.sum(tradeoff.symmetrized(rates(x), MISSES)[1]), 0.3),
    "at": (lambda x: tradeoff.at(rates(x), MISSES, [0.25])[0], 0.3),
    "inverse": (lambda x: tradeoff.inverse(rates(x), MISSES)[1][2], 0.3),
    "convex_minorant": (lambda x: tradeoff.convex_minorant(rates(x), [1.0, 0.7, 0.2, 0.0])[1], 0.3),
    "to_delta": (lambda x: tradeoff.to_delta(rates(x), MISSES, [0.1])[0], 0.3),
    "bayes_risk": (lambda s: tradeoff.bayes_risk(ja.Gaussian(s), 3).lower, 2.0),
    "curve": (lambda s: tradeoff.curve(ja.Gaussian(s), 3, 0.2).lower, 2.0),
    "true_positive_rate": (lambda s: tradeoff.true_positive_rate(ja.Gaussian(s), 3, 0.2).upper, 2.0),
}


@pytest.mark.first_tier("symmetrized")
@pytest.mark.parametrize("name", CURVES)
def test_curves_have_derivatives_with_x64_off(name):
    function, at = CURVES[name]
    step = 1e-4
    slope = (float(function(at + step)) - float(function(at - step))) / (2 * step)
    assert slope != 0
    assert float(jax.grad(function)(at)) == pytest.approx(slope, rel=2e-3)
    assert float(jax.jit(jax.grad(function))(at)) == pytest.approx(slope, rel=2e-3)
    assert float(jax.vmap(jax.jacrev(function))(np.array([at]))[0]) == pytest.approx(slope, rel=2e-3)
