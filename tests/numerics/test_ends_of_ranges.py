"""Derivatives at the ends of ranges, where one side has no answer, and beside entries that have none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import convert, iteration

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")


def sgd(**fields):
    usual = dict(learning_rate=0.0113, lipschitz=1.1, noise=2.3, steps=20, diameter=1.0, smoothness=1.0)
    return iteration.ProjectedNoisySGD(**{**usual, **fields})


R, ORDERS = np.array([0.1, 0.2, 0.4]), np.array([2.0, 4.0, 8.0])

ENDS = {
    "rdp_to_delta": (lambda e: convert.rdp_to_delta(R, ORDERS, e), 0.0, 1),
    "zcdp_to_delta": (lambda e: convert.zcdp_to_delta(0.1, e), 0.0, 1),
    "zcdp_to_delta of rho": (lambda rho: convert.zcdp_to_delta(rho, 0.0), 0.0, 1),
    "least_rdp": (lambda e: convert.least_rdp(e, 1e-2, [4.0])[0], 0.0, 1),
    "least_rdp of rows": (lambda e: convert.least_rdp(jnp.stack([e, 1.0]), 1e-2, [4.0, 8.0])[0, 1], 0.0, 1),
    "least_rdp of delta": (lambda d: convert.least_rdp(0.1, d, [4.0])[0], 0.0, 1),
    "rdp_to_epsilon": (lambda r: convert.rdp_to_epsilon(jnp.stack([r, 1.0]), [2.0, 4.0], 1e-5), 0.0, 1),
    "gdp_to_delta of mu": (lambda mu: convert.gdp_to_delta(mu, 0.0), 0.0, 1),
    "theta": (lambda e: iteration.theta(e, 0.5), 0.0, 1),
    "theta of the ratio": (lambda r: iteration.theta(0.0, r), 0.0, 1),
    "contracted_delta": (lambda e: iteration.contracted_delta(e, 1e-2, 2.0, 3), 0.0, 1),
    "contracted_delta of 1": (lambda d: iteration.contracted_delta(0.3, d, 2.0, 1), 1.0, -1),
    "last_iterate_delta": (lambda e: iteration.last_iterate_delta(sgd(), e), 0.0, 1),
    "stopped_delta": (lambda e: iteration.stopped_delta(sgd(), e), 0.0, 1),
    "mechanism_to_dp of the rate": (lambda q: convert.mechanism_to_dp(ja.PoissonSubsampledLaplace(2.0, q))[0], 1.0, -1),
    "mechanism_to_gdp": (lambda e: convert.mechanism_to_gdp(ja.PureDP(e)), 0.0, 1),
    "delta": (lambda e: ja.delta(ja.Gaussian(2.0), 3, e).upper, 0.0, 1),
    "rdp.delta": (lambda e: ja.rdp.delta(ja.PoissonSubsampledGaussian(1.0, 0.1), 10, e), 0.0, 1),
}
"""A function, the end of its range, and the side on which the range is."""

WAYS = {
    "grad": lambda f, x: jax.grad(f)(x),
    "jit of grad": lambda f, x: jax.jit(jax.grad(f))(x),
    "vmap of grad": lambda f, x: jax.vmap(jax.grad(f))(np.array([x]))[0],
    "jacfwd": lambda f, x: jax.jacfwd(f)(x),
}


@pytest.mark.first_tier("theta", "gdp_to_delta of mu")
@pytest.mark.parametrize("name", ENDS)
def test_the_slope_at_an_end_is_the_one_on_the_side_of_the_range(name):
    function, end, side = ENDS[name]
    step = 3e-4 * side
    slope = (float(function(end + step)) - float(function(end))) / step
    assert slope != 0
    for way, derive in WAYS.items():
        assert float(derive(function, end)) == pytest.approx(slope, rel=2e-3), way


def test_counts_of_runs_move_by_whole_runs_as_fields_too():
    bound = lambda n: iteration.stopped_rdp(sgd(steps=n), [1.5])[0]  # noqa: E731
    slope = (float(bound(21)) - float(bound(19))) / 2
    for derive in (WAYS["grad"], WAYS["jit of grad"]):
        assert float(derive(bound, 20.0)) == pytest.approx(slope, rel=1e-5)


@pytest.mark.exhaustive
def test_a_position_moves_within_the_run():
    bound = lambda n: iteration.last_iterate_rdp(sgd(), [2.0], position=n)[0]  # noqa: E731
    assert jax.grad(bound)(20.0) == pytest.approx(float(bound(20)) - float(bound(19)), rel=1e-5)
    last = lambda n: iteration.last_iterate_delta(sgd(steps=n), 0.1)  # noqa: E731
    assert abs(jax.jit(jax.grad(last))(20.0)) < 1e-6, "of the last record the number of steps tells nothing"


def test_an_entry_without_an_answer_leaves_the_others_their_slopes():
    """Orders above omega have no bound: their slopes are not known, and whoever does not ask for them is not told."""
    bound = lambda rho: convert.tcdp_to_rdp(rho, 20.0, [2.0, 32.0])  # noqa: E731
    assert jax.grad(lambda rho: bound(rho)[0])(0.1) == pytest.approx(2.0, rel=1e-5)
    assert jax.vmap(jax.grad(lambda rho: bound(rho)[0]))(np.array([0.1]))[0] == pytest.approx(2.0, rel=1e-5)
    assert np.isnan(jax.grad(lambda rho: bound(rho)[1])(0.1)), "an unknown slope is no 0"
    forward = jax.jacfwd(bound)(0.1)
    assert forward[0] == pytest.approx(2.0, rel=1e-5)
    assert np.isnan(forward[1])


@pytest.mark.exhaustive
def test_a_row_without_an_answer_leaves_the_others_their_slopes():
    def rows(r):
        return convert.rdp_to_epsilon(jnp.stack([r * R, jnp.full(3, jnp.inf)]), ORDERS, 1e-5)

    step = 1e-4
    slope = (float(rows(1 + step)[0]) - float(rows(1 - step)[0])) / (2 * step)
    for derive in WAYS.values():
        assert float(derive(lambda r: rows(r)[0], 1.0)) == pytest.approx(slope, rel=1e-3)


@pytest.mark.exhaustive
def test_the_divergence_of_hidden_iterations_has_derivatives():
    bound = lambda noise: iteration.amplified_rdp([2.0, 4.0], [1.0, 1.0], noise)[0]  # noqa: E731
    slope = (float(bound(1.3001)) - float(bound(1.2999))) / 2e-4
    for way, derive in WAYS.items():
        assert float(derive(bound, 1.3)) == pytest.approx(slope, rel=1e-4), way
