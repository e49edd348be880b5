"""Numbers whose squares or quotients leave the range of float64: bounds stay on their sides of the truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import convert, gdp, iteration
from jaxacct.numerics.precision import TINY, is_zero, scope

SMALL = [5e-324, 1e-310, 1e-300, 1e-200, 1e-160]


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_a_subnormal_number_is_told_from_0_in_a_program_that_computes_with_it(kind):
    """LLVM makes of a comparison of bits one of floats, where the program has such a float at hand."""
    tiny = float(jnp.finfo(kind).tiny)

    def found(x):
        return jnp.where(x >= 0, jnp.where(is_zero(x), 0.0, jnp.maximum(x * jnp.tanh(x / 2), tiny)), jnp.inf)

    with scope():
        values = jnp.asarray(np.array([tiny / 16, 0.0, -0.0, tiny, 1.0], kind))
        program = jax.jit(found)
        for row in (np.asarray(program(values)), np.array([program(x) for x in values])):
            assert np.all((row > 0) == [True, False, False, True, True])


@pytest.mark.parametrize("noise", [1e-300, 1e-160, 1.0, 1e160, 1e200, 1e300, 1.7e308])
def test_mu_of_plain_noise(noise):
    for runs in (1, 10**6):
        mu = gdp.certified_mu(ja.Gaussian(noise), runs).mu
        root = np.sqrt(runs)
        assert np.longdouble(mu.lower) <= np.longdouble(root) / np.longdouble(noise) <= np.longdouble(mu.upper)
        assert mu.upper > 0


@pytest.mark.parametrize("shift", [1.0, 1e-200, 1e-310, 1e200])
def test_mu_of_hidden_iterations(shift):
    for noise in (1e140, 1e-140, 1e200, 1e-200, 1e300, 1e-300):
        truth = np.longdouble(shift) / np.longdouble(noise)
        assert np.longdouble(iteration.amplified_mu([shift], noise)) >= truth
        assert np.longdouble(iteration.amplified_rdp([2.0], [shift], noise)[0]) >= truth**2
    usual = iteration.amplified_mu([1e-200, 0.0, 2e-200], [1e-200, 3e-200, 1e-200])
    assert usual == pytest.approx(float(iteration.amplified_mu([1.0, 0.0, 2.0], [1.0, 3.0, 1.0])), rel=1e-13)
    assert iteration.amplified_mu([0.0, 0.0], 2.0) == 0


@pytest.mark.parametrize("value", SMALL)  # one program each
def test_conversions_of_small_numbers(value):
    exact = np.longdouble(value)
    assert np.longdouble(convert.pure_to_zcdp(value)) >= exact**2 / 2 * (1 - 1e-12) > 0
    assert np.longdouble(convert.pure_to_rdp(value, [2.0])[0]) >= exact**2 * (1 - 1e-12)
    assert np.longdouble(convert.gdp_to_rdp(value, [2.0])[0]) >= exact**2
    assert np.longdouble(convert.tcdp_to_rdp(value, 10.0, [2.0])[0]) >= 2 * exact
    assert convert.zcdp_to_delta(value, 1e-5) > 0
    assert np.longdouble(gdp.gaussian_delta(value, 0.0)) >= exact * 0.3989


@pytest.mark.exhaustive
@pytest.mark.parametrize("runs", [1, 10**6])
def test_lower_ends_do_not_count_what_was_raised(runs):
    """XLA takes 1e-310 for 0, and so it is counted as the smallest normal number: from above alone."""
    found = ja.delta(ja.ApproximateDP(0.0, 1e-310), runs, 0.0)
    assert found.lower <= 1e-310 * runs <= found.upper <= 4 * TINY * runs
    found = ja.epsilon(ja.PureDP(1e-310), runs, 0.0)
    assert found.lower <= 1e-310 * runs <= found.upper
    found = ja.delta(ja.ApproximateDP(0.5, 1e-310), runs, 0.5 * runs, relation="remove")
    assert found.lower <= 1e-310 * runs <= found.upper


def test_noise_next_to_infinite_is_not_infinite():
    assert ja.delta(ja.Gaussian(1e308), 1, 0.0).upper > 0
    assert ja.delta((ja.Gaussian(1e308), ja.Gaussian(1.5e308)), (1, 1), 0.0).upper > 0
    assert ja.delta(ja.Gaussian(np.inf), 1, 0.0).upper == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("lipschitz", [1.0, 1e-160, 1e-300])
@pytest.mark.parametrize("noise", [1e140, 1e160, 1e300])
def test_projected_sgd_with_hardly_any_gradient(lipschitz, noise):
    sgd = iteration.ProjectedNoisySGD(
        learning_rate=0.05, lipschitz=lipschitz, noise=noise, steps=10, smoothness=1.0
    )  # fmt: skip
    for method in ("contraction", "recursive", "renyi", "shifted", "best"):
        assert iteration.stopped_delta(sgd, 0.0, method=method) > 0
    assert iteration.stopped_rdp(sgd, [2.0])[0] > 0
    assert iteration.last_iterate_rdp(sgd, [2.0])[0] > 0
    assert iteration.last_iterate_delta(sgd, 0.0) > 0
