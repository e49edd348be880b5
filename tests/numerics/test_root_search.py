"""Root searches: the end that is returned was evaluated and held, monotone or not, and is as near as was asked."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxacct.numerics.root_search import (
    bisect,
    bisect_traced,
    bracket,
    geometric_mean,
    least_by_secants,
    least_near_root,
)

FINITE = st.floats(-1e6, 1e6)


@given(root=FINITE, safe=FINITE, other=FINITE)
def test_a_real_bracket_ends_at_neighbours(root, safe, other):
    """From whichever side: the result holds, and its neighbour toward the other end does not."""
    holds = (lambda x: x >= root) if safe >= other else (lambda x: x <= root)
    if not holds(safe) or holds(other):
        return
    found = bisect(holds, safe, other)
    assert holds(found)
    assert not holds(math.nextafter(found, other))


@given(root=st.integers(-(10**9), 10**9), width=st.integers(1, 10**9), place=st.floats(0, 1), up=st.booleans())
def test_a_whole_bracket_ends_at_neighbours(root, width, place, up):
    far = root + (width if up else -width)
    near = root - (1 + int(place * width)) * (1 if up else -1)
    holds = (lambda n: n >= root) if up else (lambda n: n <= root)
    found = bisect(holds, far, near)
    assert isinstance(found, int)
    assert found == root


@given(st.lists(st.booleans(), min_size=64, max_size=64), st.integers(0, 63), st.integers(0, 63))
def test_what_is_returned_held_whether_or_not_the_condition_is_monotone(values, safe, other):
    asked = {}

    def holds(n):
        asked[n] = values[n]
        return values[n]

    found = bisect(holds, safe, other)
    assert found == safe or asked[found]
    assert len(asked) <= 6


def test_what_says_nothing_does_not_hold():
    assert bisect(lambda x: math.nan < 1.0, 0.0, 1.0, steps=20) == 0.0
    found = bisect_traced(lambda x: jnp.full_like(x, jnp.nan) < 1, jnp.zeros(2), jnp.ones(2), steps=20)
    assert found.tolist() == [0.0, 0.0]


def test_it_may_end_earlier():
    asked = []
    found = bisect(lambda x: asked.append(x) or x >= 1 / 3, 1.0, 0.0, close=1e-3)
    assert 1 / 3 <= found <= (1 / 3) * (1 + 2e-3)
    assert len(asked) == 12


def test_ratios_are_halved_in_logarithms():
    found = bisect(lambda x: x <= 3.0, 1e-8, 1e8, steps=60, middle=geometric_mean)
    assert found == pytest.approx(3.0, rel=1e-14)
    assert found <= 3.0
    found = bisect_traced(lambda x: x <= 3.0, jnp.array(1e-2), jnp.array(1e2), steps=30, middle=geometric_mean)
    assert float(found) == pytest.approx(3.0, rel=1e-6)


@given(most=st.integers(1, 10**6), root=st.integers(0, 10**6), start=st.integers(1, 100))
def test_doubling_brackets_the_last_number_that_holds(most, root, start):
    start = min(start, most)
    safe, other = bracket(lambda n: n <= root, start, most, safe=0)
    if root >= most:
        assert safe == other == most
    else:
        assert safe <= root < other <= most
        assert bisect(lambda n: n <= root, safe, other) == root


@jax.jit
def traced(roots, safe, other):
    return bisect_traced(lambda x: (x - roots) * jnp.sign(safe - other) >= 0, safe, other, steps=40)


def test_lanes_end_on_their_safe_sides():
    rng = np.random.default_rng(0)
    roots = rng.uniform(-1, 1, 200).astype(np.float32)
    up = rng.integers(0, 2, 200) * 2 - 1
    safe, other = (roots + sign * up * rng.uniform(0.1, 5, 200) for sign in (1, -1))
    found = np.asarray(traced(roots, safe.astype(np.float32), other.astype(np.float32)))
    assert np.all((found - roots) * up >= 0)
    assert np.all(np.abs(found - roots) <= 1e-6)


def test_ends_that_are_not_known_are_evaluated_in_the_same_loop():
    """Every lane as its ends are: the other end holds itself, the safe one alone, or neither."""
    roots, traces = jnp.array([-1.0, 0.3, 2.0]), []

    def holds(x):
        traces.append(x.shape)
        return x >= roots

    found = bisect_traced(holds, jnp.ones(3), jnp.zeros(3), steps=30, otherwise=math.inf)
    assert len(traces) == 1
    assert found[0] == 0
    assert 0.3 <= float(found[1]) <= 0.3 + 1e-6
    assert found[2] == math.inf


@given(root=st.floats(-20, 20), start=st.floats(-20, 20), power=st.floats(0.5, 2))
def test_secants_end_at_a_setting_that_passes(root, start, power):
    asked = {}

    def cost(u):
        asked[u] = math.exp(min(power * (root - u), 700.0))
        return asked[u]

    found = least_by_secants(cost, start, close=1e-6, rounds=60)
    assert asked[found] <= 1
    assert math.log(asked[found]) >= -1e-6
    assert least_by_secants(lambda u: 2.0, start, close=1e-6, rounds=5) == math.inf
    assert least_by_secants(lambda u: math.nan, start, close=1e-6, rounds=5) == math.inf


@pytest.mark.parametrize("power", [6.0, 12.0, 30.0])
@pytest.mark.parametrize("start", [-0.3, 0.2, 0.4])
def test_secants_do_not_swing_about_the_root_of_a_steep_cost(start, power):
    found = least_by_secants(lambda u: math.exp(min(-power * u, 700.0)), start, close=3e-4, rounds=10)
    assert 0 <= power * found <= 3e-4


def test_a_search_near_a_root_returns_the_least_bound_it_met():
    roots = jnp.linspace(0.5, 3.0, 6)
    found = least_near_root(lambda x: (x - roots, 1 + (x - roots) ** 2), jnp.zeros(6), jnp.full(6, 4.0), 14)
    assert np.all(np.asarray(found) >= 1)
    np.testing.assert_allclose(found, 1.0, atol=1e-6)
