"""Functions of the kernel that pairs have forms of their own for, against numbers of 40 digits."""

from __future__ import annotations

import jax
import mpmath
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

import jaxacct as ja
from jaxacct.mechanisms.gaussian import remaining_weight
from jaxacct.mechanisms.normal import cosm1_and_sin, lower_tail, sine_and_cosine
from jaxacct.mechanisms.pair import exp_remainder
from jaxacct.numerics.arithmetic import in_pairs
from jaxacct.numerics.float_pairs import tiles, wide
from jaxacct.numerics.float_pairs.interpret import as_pairs
from jaxacct.rounded_sum import RoundedSum, missing_above

U = 2.0**-24


def exact(number: wide.Wide, i: int) -> mpmath.mpf:
    parts = mpmath.mpf(float(number.high[i])) + mpmath.mpf(float(number.low[i]))
    return mpmath.ldexp(parts, int(number.exponent[i]))


@pytest.mark.parametrize("name", [name for name in tiles.WHOLE if name != "turned_sums"])
def test_pairs_know_what_is_traced(name):
    function, count = {
        "exp_remainder": (exp_remainder, 2), "sine_and_cosine": (sine_and_cosine, 1), "lower_tail": (lower_tail, 1),
        "cosm1_and_sin": (cosm1_and_sin, 1), "missing_above": (missing_above, 2),
        "remaining_weight": (remaining_weight, 2),
    }[name]  # fmt: skip
    with jax.enable_x64(True):
        args = (np.full(64, 0.1),) * count
        traced = jax.make_jaxpr(as_pairs(function))(*args)
        plain = jax.make_jaxpr(function)(*args)
    assert len(str(traced).splitlines()) < 1200  # operation by operation either is some 3,000
    assert f"name={name}" not in str(plain)


def test_what_is_left_of_an_exponential_is_right_to_its_bound():
    rng = np.random.default_rng(0)
    sizes = np.concatenate([rng.uniform(0, 0.5, 300), 0.5 * 10.0 ** rng.uniform(-40, 0, 90), [0.4999999, 1e-300]])
    x = wide.constant(sizes * rng.choice([-1, 1], sizes.size))
    (found,) = jax.jit(tiles.exp_remainder)(x, wide.fill(np.nan, x.shape))
    with mpmath.workprec(2200):
        for i in range(sizes.size):
            at = exact(x, i)
            truth = mpmath.expm1(at) - at
            assert abs(exact(found, i) - truth) <= 32 * U**2 * truth, float(at)


def test_beyond_a_half_it_is_the_difference_and_at_0_it_is_0():
    x = wide.constant(np.array([0.0, 3.0, -20.0, 0.5, -np.inf, 700.0]))
    (found,) = jax.jit(tiles.exp_remainder)(x, wide.constant(np.expm1(np.array([0, 3, -20, 0.5, -np.inf, 700]))))
    values = [float(exact(found, i)) for i in (0, 1, 2, 3, 5)]
    truth = [0.0, *(float(mpmath.expm1(v) - v) for v in (3, -20, 0.5, 700))]
    np.testing.assert_allclose(values, truth, rtol=1e-12)
    assert float(found.high[4]) == np.inf


@pytest.mark.exhaustive
def test_sine_and_cosine_are_right_to_four_units():
    rng = np.random.default_rng(1)
    angles = np.concatenate([rng.uniform(-9e5, 9e5, 150), rng.uniform(-4, 4, 150), 10.0 ** rng.uniform(-30, 0, 60)])
    x = wide.constant(angles)
    sine, cosine = jax.jit(tiles.WHOLE["sine_and_cosine"])(x)
    with mpmath.workprec(200):
        for i in range(angles.size):
            at = exact(x, i)
            for found, truth in ((sine, mpmath.sin(at)), (cosine, mpmath.cos(at))):
                assert abs(exact(found, i) - truth) <= 4 * 16 * U**2 * abs(truth), float(at)


@pytest.mark.exhaustive
def test_turns_are_right_to_six_units_of_the_angle():
    rng = np.random.default_rng(3)
    x = wide.constant(
        np.concatenate([rng.uniform(-9e5, 9e5, 99), rng.uniform(-7, 7, 99), 10.0 ** rng.uniform(-30, 0, 60)])
    )
    less, sine = jax.jit(tiles.WHOLE["cosm1_and_sin"])(x)
    with mpmath.workprec(300):
        for i in range(x.shape[0]):
            at = exact(x, i)
            off = mpmath.mpc(exact(less, i) - (mpmath.cos(at) - 1), exact(sine, i) - mpmath.sin(at))
            assert abs(off) <= 90 * U**2 * abs(at), float(at)


@pytest.mark.exhaustive
def test_what_is_missing_of_a_number_is_raised_to_whole_bits_and_no_farther():
    rng = np.random.default_rng(4)
    values = np.concatenate(
        [10.0 ** rng.uniform(-20, 20, 200), 1 + 2.0**-44 * rng.integers(-9, 9, 50), [0.0, 1.0, 2.0**-140]]
    )
    high = np.where(values < 2.0**-126, 0, values).astype(np.float32).astype(np.float64)
    given, parts = wide.constant(values), wide.constant(high)
    (found,) = jax.jit(tiles.missing_above)(given, parts)
    with mpmath.workprec(400):
        for i in range(values.size):
            bit = mpmath.mpf(2) ** (int(np.frexp(max(high[i], 2.0**-126))[1]) - 1 - 52)
            missing, told = exact(given, i) - exact(parts, i), exact(found, i)
            assert 0 <= told - missing <= bit + 6 * 16 * U**2 * abs(missing)
            assert told / bit == mpmath.nint(told / bit)
    with np.errstate(over="ignore"):
        (beyond,) = tiles.missing_above(wide.constant(np.array([np.inf])), wide.constant(np.array([np.inf])))
    assert float(beyond.high[0]) == 0


def test_a_rounded_sum_made_in_pairs_is_not_below_and_near():
    values = 10.0 ** np.random.default_rng(5).uniform(-25, 25, 300)
    with jax.enable_x64(True):
        found = jax.jit(as_pairs(RoundedSum.above))(values)
    high, low = (np.asarray(part, np.float64) for part in (found.high, found.low))
    total = high + low
    assert np.all(low == total - high)  # both have 53 bits together, so that any device reads them
    assert np.all(total >= values * (1 - 2.0**-49))  # as which pairs know them
    assert np.all(total <= values * (1 + 2.0**-46))


@pytest.mark.exhaustive
def test_a_remaining_weight_is_right_to_its_bounds():
    rng = np.random.default_rng(6)
    least = np.concatenate([rng.uniform(0, 1, 200), 1 - 10.0 ** rng.uniform(-12, 0, 200)])
    slack = (1 - least) * np.where(
        rng.integers(2, size=400), rng.uniform(0, 1, 400), 1 - 10.0 ** rng.uniform(-9, 0, 400)
    )
    a, b = wide.constant(least), wide.constant(slack)
    (found,) = jax.jit(tiles.remaining_weight)(a, b)
    with mpmath.workprec(200):
        for i in range(400):
            truth, unit = 1 - exact(a, i) - exact(b, i), 16 * U**2
            off = exact(found, i) - truth
            assert abs(off) <= 14 * unit * abs(truth) or -10 * unit * exact(b, i) <= off <= 0


@pytest.mark.exhaustive
def test_tails_are_right_to_their_bound():
    z = wide.constant(-np.concatenate([np.random.default_rng(2).uniform(0, 40, 200), [0.0, 1e-9, 0.5, 40.0]]))
    (found,) = jax.jit(tiles.lower_tail)(z)
    with mpmath.workprec(200):
        for i in range(z.shape[0]):
            at = exact(z, i)
            truth = mpmath.erfc(-at / mpmath.sqrt(2)) / 2
            assert abs(exact(found, i) - truth) <= 75 * (1 + at**2) * U**2 * truth, float(at)


def test_a_compiled_product_has_no_dust():
    x, y = (wide.constant(1 + 2.0**-46 * np.arange(1.0, 400.0) * step) for step in (1, 3))
    found = jax.jit(wide.multiply)(x, y)
    multiples = np.asarray(found.low, np.float64) / wide.DUST
    assert np.all(multiples == np.round(multiples))
    tiny = np.full(8, 1.2345678 * 2.0**-60, np.float32)
    assert (
        np.asarray(jax.jit(lambda low: wide.normal(wide.Pair(1 + 0 * low, low), 0).low)(tiny))[0] / wide.DUST % 1 == 0
    )


def _steps(program):
    for step in program.eqns:
        yield step
        for inner in step.params.values():
            if isinstance(inner, (Jaxpr, ClosedJaxpr)):
                yield from _steps(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize("function", [sine_and_cosine, lower_tail, lambda x: exp_remainder(x, x + 1)])
@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (2, 1), (0, 2)])
def test_an_axis_of_a_batch_comes_out_where_it_went_in(function, axes):
    """Which a form for pairs takes for granted."""

    def nested(x):
        return jax.vmap(jax.vmap(function, in_axes=axes[1]), in_axes=axes[0])(x)

    with jax.enable_x64(True), in_pairs():
        program = jax.make_jaxpr(nested)(jax.ShapeDtypeStruct((2, 3, 5, 7), np.float64))
    named = [step for step in _steps(program.jaxpr) if step.params.get("name") in tiles.WHOLE]
    assert named
    for step in named:
        assert {result.aval.shape for result in step.outvars} == {step.invars[0].aval.shape}


@pytest.mark.exhaustive
def test_losses_of_other_kinds_are_traced_in_pairs():
    def ask(noise_multiplier):
        mechanism = ja.GaussianWithoutReplacement(noise_multiplier, 0.1)
        return ja.saddlepoint.epsilon(mechanism, 100, 1e-5, relation="replace").upper

    with jax.enable_x64(True):
        assert jax.eval_shape(as_pairs(ask), np.float64(2.0)).shape == ()
