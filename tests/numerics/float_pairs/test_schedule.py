"""Programs worked off in another order and side by side, and guesses: the numbers are the same, or near enough."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.mechanisms.normal import lower_tail
from jaxacct.numerics.arithmetic import PAIR, roughly
from jaxacct.numerics.float_pairs import interpret
from jaxacct.numerics.float_pairs.interpret import as_pairs


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def mixed(x, y):
    """Things of one kind that wait for each other: of other shapes, of constants, in a loop, of results."""
    a, b, c = jnp.exp(x[0]), jnp.exp(y[1]), jnp.exp(jnp.asarray(0.25) * x[:3])
    first = jnp.log(a + b) + jnp.log(c) / (1 + b)
    rows = jnp.exp(x) + jnp.exp(-y) * jnp.log1p(x**2)
    again = jnp.exp(x[0]) - jnp.log(2 * jnp.pi)
    total = jax.lax.fori_loop(0, 3, lambda i, s: jnp.sqrt(s) + jnp.sqrt(a) / (b + i), first[0])
    return first, rows / c[0], y[2] / rows, again, total, jnp.exp(first) > rows[:3]


def numbers():
    rng = np.random.default_rng(5)
    return rng.uniform(-2, 2, 80), rng.uniform(-2, 2, 80)


@pytest.mark.exhaustive
def test_side_by_side_numbers_are_those_of_each_by_itself():
    x, y = numbers()
    found = jax.jit(as_pairs(mixed))(x, y)
    for one, other in zip(found, as_pairs(mixed, stepwise=True)(x, y), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_done_twice_is_done_once_and_what_waits_is_done_together():
    x, y = numbers()
    program = jax.make_jaxpr(mixed)(x, y)
    plan = interpret.Plan(program.jaxpr, interpret.is_whole)
    groups = [sorted(step.name for step in steps) for kind, steps in interpret.in_turn(plan) if kind is not None]
    assert sum(len(group) for group in groups if group[0] == "exp") == 6  # of 7, of which two are one
    assert max(len(group) for group in groups if group[0] == "exp") >= 3
    assert not any(step.name == "log" and not step.equation.invars[0].aval.shape for step in plan.steps[-1:])
    done = [out for _, steps in interpret.in_turn(plan) for step in steps for out in step.outputs]
    assert sorted(done) == sorted(out for step in plan.steps for out in step.outputs)


@pytest.mark.first_tier("-0.5", "1.0", "-1.0", "4.909093465297727e-91")
@pytest.mark.parametrize("constant", [0.0, 2.0, -0.5, 1.0, -1.0, 3.0, 1e-200, 2.0**-300])
def test_beside_a_constant_operations_are_the_same(constant):
    x = np.array([0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 1e-30, -1e30, 0.7])

    def every(x):
        quotient = x / constant if constant else x
        products = x * constant, constant * x, quotient
        compared = x < constant, constant < x, x >= constant, x == constant, jnp.maximum(x, constant)
        return *products, *compared, jnp.minimum(constant, x), x**2

    for found, truth in zip(jax.jit(as_pairs(every))(x), every(jnp.asarray(x)), strict=True):
        np.testing.assert_allclose(found, truth, rtol=2 * PAIR.roundoff)


@pytest.mark.exhaustive
def test_a_guess_is_right_to_some_digits_over_the_whole_range():
    x = np.concatenate([-(10.0 ** np.arange(-12.0, 2.5, 0.5)), 10.0 ** np.arange(-12.0, 2.5, 0.5)])

    def guess(x):
        size = jnp.abs(x)
        functions = jnp.exp(x), jnp.expm1(x), jnp.log(size), jnp.log1p(size), jnp.sqrt(size), jnp.exp2(x)
        others = x / (1 + size), size**3, jnp.maximum(x, 0.1), jnp.exp(-1000 * size), jnp.cumsum(size)
        return *functions, *others, jnp.sum(size), jnp.max(x), jnp.min(x), lower_tail(-jnp.minimum(size, 40.0)), x > 0.5

    truth = guess(x)
    for found, exact in zip(jax.jit(as_pairs(roughly(guess)))(x), truth, strict=True):
        np.testing.assert_allclose(found, exact, rtol=0.35 if exact is truth[-2] else 2e-4, atol=1e-300)


@pytest.mark.exhaustive
def test_guesses_at_the_ends_of_the_range_go_on_as_such():
    x = np.array([-np.inf, -1e300, -1e6, -0.0, 0.0, 1e6, 1e300, np.inf, np.nan])

    def guess(x):
        size = jnp.abs(x)
        functions = jnp.exp(x), jnp.expm1(x), jnp.log(size), jnp.log1p(size), jnp.sqrt(size), lower_tail(-size)
        # What is nothing is nothing beside others.
        return *functions, *(value + 1 for value in functions), *(jnp.sum(jnp.exp(x[:n])) for n in (1, 3, 5))

    for found, exact in zip(jax.jit(as_pairs(roughly(guess)))(x), guess(x), strict=True):
        np.testing.assert_allclose(found, exact, rtol=2e-4)
