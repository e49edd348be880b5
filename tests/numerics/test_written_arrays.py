"""Arrays into which their owner writes between calls: programs that outlive a call keep numbers of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import convert, iteration
from jaxacct.numerics.precision import within_scope

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")

RUNS = np.array([1, 2])

VERBS = {
    "amplified_mu": lambda a, d: iteration.amplified_mu(jnp.stack([d, d]), a),
    "rdp_to_epsilon": lambda a, d: convert.rdp_to_epsilon(a, np.array([2.0, 4.0]), d),
    "rdp_to_delta": lambda a, d: convert.rdp_to_delta(a, np.array([2.0, 4.0]), d),
    "gdp_to_epsilon": convert.gdp_to_epsilon,
    "theta": lambda a, d: iteration.theta(d, a),
    "rdp.epsilon": lambda a, d: ja.rdp.epsilon(ja.Gaussian(a), RUNS, d),
    "rdp.delta": lambda a, d: ja.rdp.delta(ja.Gaussian(a), RUNS, d),
    "gdp.epsilon": lambda a, d: ja.gdp.epsilon(ja.Gaussian(a), RUNS, d),
    "epsilon": lambda a, d: ja.epsilon(ja.Gaussian(a), RUNS, d).upper,
    "saddlepoint.delta": lambda a, d: ja.saddlepoint.delta(ja.PoissonSubsampledGaussian(a, 0.1), RUNS, d).upper,
    "curve": lambda a, d: ja.curve(ja.Gaussian(a), RUNS, deltas=jnp.stack([d])).upper,
    "mechanism_to_dp": lambda a, d: convert.mechanism_to_dp(ja.PoissonSubsampledLaplace(jnp.stack([d, d]), a / 9))[0],
    "filter": lambda a, d: ja.filters.ZCDPFilter(300.0, d).spend(ja.Gaussian(a), RUNS)[1].epsilon(),
    "tradeoff": lambda a, d: ja.tradeoff.gaussian(d, a / 10),
}


@pytest.mark.first_tier("amplified_mu-True", "rdp_to_epsilon-True", "rdp_to_epsilon-False")
@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("name", VERBS)
def test_what_was_traced_keeps_the_numbers_that_it_was_traced_with(name, x64):
    verb = VERBS[name]
    with jax.enable_x64(x64):
        mine = np.array([0.5, 0.75])
        first = np.asarray(jax.jit(lambda d: verb(mine, d))(1e-3))
        mine[:] = 5.0
        # Other arrays of the same numbers find what was traced for the first one, by the numbers' bits.
        again = np.asarray(jax.jit(lambda d: verb(np.array([0.5, 0.75]), d))(1e-3))
        assert np.all(again == first)
        assert not np.any(np.asarray(jax.jit(lambda d: verb(mine, d))(1e-3)) == first)


def test_what_enters_the_scope_is_copied_once_and_by_no_more_than_its_numbers():
    taken = []
    inner = within_scope(lambda *args: taken.append(args) or args[0])
    outer = within_scope(lambda *args: inner(*args))
    for x64 in (True, False):
        with jax.enable_x64(x64):
            mine, number, view = np.ones(2), 1.5, np.broadcast_to(np.ones(1), (2,))
            found = outer(mine, number, view)
            assert not np.shares_memory(taken[-1][0], mine)
            assert not np.shares_memory(taken[-1][2], view)
            assert taken[-1][1] is number
            assert found is taken[-1][0], "within the scope it was copied again"
