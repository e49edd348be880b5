"""Functions of pairs of float32: within their bounds of exact references, however they are compiled."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import draws

from jaxacct.numerics.float_pairs import functions, wide
from jaxacct.numerics.float_pairs.wide import Wide

UNIT = mp.mpf(2) ** -48
EMITTERS = {"xla_cpu_use_fusion_emitters": True} if jax.__version_info__ < (0, 11) else {}  # later there is no other
SEPARATE = EMITTERS | {
    "xla_backend_optimization_level": "0",
    "xla_disable_hlo_passes": "fusion,cpu-instruction-fusion",
}
FUSED = EMITTERS | {"xla_backend_optimization_level": "3"}
RANDOM = np.random.default_rng(0)
MOST = 1024


def pairs(values) -> Wide:
    """Numbers near values, with low parts of all 24 bits."""
    high, _, exponent = wide.constant(np.asarray(values, float))
    high = np.asarray(high)
    low = (high * RANDOM.uniform(-0.4, 0.4, high.shape) * 2.0**-24).astype(np.float32)
    return Wide(jnp.asarray(high), jnp.asarray(np.where(high + low == high, low, 0)), exponent)


def exact(x: Wide) -> list:
    return [
        (mp.mpf(float(a)) + mp.mpf(float(b))) * mp.mpf(2) ** int(e) for a, b, e in zip(*map(np.asarray, x), strict=True)
    ]


@functools.cache
def program(function):
    """A function of so many pairs, each operation compiled by itself."""
    return jax.jit(function).lower(wide.constant(np.ones(MOST))).compile(SEPARATE)


def separately(function, x: Wide) -> Wide:
    """Its values, by one program for any number of pairs: ones fill up."""
    count = len(x.high)
    padded = [np.pad(part, (0, MOST - count), constant_values=one) for part, one in zip(x, (1, 0, 0), strict=True)]
    return jax.tree.map(lambda part: np.asarray(part)[:count], program(function)(Wide(*padded)))


def both_signs(low, high, count):
    size = np.exp(RANDOM.uniform(np.log(low), np.log(high), count))
    return np.concatenate([size, -size])


def relative(x, truth):
    return abs(truth)


NEAR = np.concatenate([RANDOM.uniform(-1, 1, 150), both_signs(1e-17, 0.1, 50)])
WIDE = np.concatenate([RANDOM.uniform(-745, 745, 100), both_signs(0.5, 700, 50), NEAR])
POSITIVE = np.concatenate(
    [np.exp(RANDOM.uniform(-700, 700, 150)), RANDOM.uniform(0.5, 2, 150), 1 + both_signs(1e-15, 0.1, 50)]
)
ANGLES = np.concatenate([RANDOM.uniform(-10, 10, 300), both_signs(1e-17, 1, 50)])
TURNS = RANDOM.uniform(-1e6, 1e6, 400)
CASES = {
    "exp": (functions.exp, mp.exp, WIDE, 10, relative),
    "exp2": (functions.exp2, lambda x: mp.mpf(2) ** x, WIDE, 10, relative),
    "expm1": (functions.expm1, mp.expm1, WIDE, 68, relative),
    "log": (functions.log, mp.log, POSITIVE, 44, relative),
    "log1p": (functions.log1p, mp.log1p, np.concatenate([POSITIVE, NEAR]), 53, relative),
    "tanh": (functions.tanh, mp.tanh, WIDE, 69, relative),
    "logistic": (functions.logistic, lambda x: 1 / (1 + mp.exp(-x)), WIDE, 24, relative),
    "sin": (functions.sin, mp.sin, ANGLES, 40, relative),
    "cos": (functions.cos, mp.cos, ANGLES, 40, relative),
    "sin of many turns": (functions.sin, mp.sin, TURNS, 64, lambda x, _: 1 + abs(x) * mp.mpf(2) ** -44),
    "erf": (functions.erf, mp.erf, np.concatenate([RANDOM.uniform(-6, 6, 200), NEAR]), 75, relative),
    "erfc": (functions.erfc, mp.erfc, RANDOM.uniform(-6, 26.2, 400), 64, lambda x, t: t * (1 + 2 * x * x)),
}


def worst(found: Wide, x: Wide, truth, scale) -> float:
    with mp.workprec(220):
        rows = [(v, truth(a), a) for v, a in zip(exact(found), exact(x), strict=True)]
        return float(max(abs(v - t) / (scale(a, t) * UNIT) for v, t, a in rows))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_functions_are_within_their_bounds(name):
    function, truth, values, bound, scale = CASES[name]
    x = pairs(values[:: draws(3, 1)])
    assert worst(separately(function, x), x, truth, scale) <= bound


@pytest.mark.exhaustive
def test_fused_products_change_no_bound():
    x = pairs(NEAR[:: draws(3, 1)])
    a, b = x.high, x.high[::-1]
    plain = jax.jit(lambda a, b: a * b + (a - b)).lower(a, b).compile(FUSED)(a, b)
    if np.array_equal(plain, np.asarray(a) * np.asarray(b) + (np.asarray(a) - np.asarray(b))):
        pytest.skip("this compiler fuses no product with a sum")
    for name in ("exp", "expm1", "log1p"):
        function, truth, _, bound, scale = CASES[name]
        assert worst(jax.jit(function).lower(x).compile(FUSED)(x), x, truth, scale) <= bound


@pytest.mark.exhaustive
def test_operation_by_operation_nothing_changes():
    x = pairs(NEAR[:20])
    function, truth, _, bound, scale = CASES["exp"]
    with jax.disable_jit():
        assert worst(function(x), x, truth, scale) <= bound


@pytest.mark.exhaustive
def test_sines_next_to_multiples_of_a_quarter_turn():
    """All pairs within 2^-46 of one, up to seven quarters."""
    rows = []
    with mp.workprec(220):
        for k in [*range(-7, 0), *range(1, 8)]:
            exponent = int(mp.floor(mp.log(abs(k * mp.pi / 2), 2)))
            over = k * mp.pi / 2 / mp.mpf(2) ** exponent
            high = np.float32(float(over))
            low = np.float32(float(over - mp.mpf(float(high))))
            for step in range(-16, 17):
                near = (low.view(np.int32) + np.int32(step)).view(np.float32)
                rows.append((high, near, exponent))
    high, low, exponent = (np.array(c) for c in zip(*rows, strict=True))
    x = Wide(jnp.asarray(high, jnp.float32), jnp.asarray(low, jnp.float32), jnp.asarray(exponent, jnp.int32))
    for function, truth in ((functions.sin, mp.sin), (functions.cos, mp.cos)):
        assert worst(separately(function, x), x, truth, relative) <= 40


@pytest.mark.exhaustive
def test_angles_are_within_their_bound():
    x, y = pairs(both_signs(1e-12, 1e12, 200)), pairs(RANDOM.permutation(both_signs(1e-12, 1e12, 200)))
    found = jax.jit(functions.atan2).lower(y, x).compile(SEPARATE)(y, x)
    with mp.workprec(220):
        errors = [abs(v / mp.atan2(b, a) - 1) for v, a, b in zip(exact(found), exact(x), exact(y), strict=True)]
    assert max(errors) <= 80 * UNIT


def single(x: Wide) -> np.ndarray:
    """Numbers as float64, for those that float64 has."""
    high, low, exponent = (np.asarray(part) for part in x)
    finite = np.abs(exponent) < 2**17
    return np.where(finite, np.ldexp(high.astype(float) + low, np.where(finite, exponent, 0)), high)


SPECIAL = np.array([0.0, np.inf, -np.inf, np.nan, 1e-300, -1e-300, -2.0, -1.0, 1e5, -1e5])
EXPECTED = {
    functions.exp: [1, np.inf, 0, np.nan, 1, 1, np.exp(-2), np.exp(-1), np.inf, 0],
    functions.expm1: [0, np.inf, -1, np.nan, 1e-300, -1e-300, np.expm1(-2), np.expm1(-1), np.inf, -1],
    functions.log: [-np.inf, np.inf, *[np.nan] * 2, np.log(1e-300), *[np.nan] * 3, np.log(1e5), np.nan],
    functions.log1p: [0, np.inf, *[np.nan] * 2, 1e-300, -1e-300, np.nan, -np.inf, np.log1p(1e5), np.nan],
    functions.tanh: [0, 1, -1, np.nan, 1e-300, -1e-300, np.tanh(-2), np.tanh(-1), 1, -1],
    functions.sin: [0, *[np.nan] * 3, 1e-300, -1e-300, np.sin(-2), np.sin(-1), np.sin(1e5), np.sin(-1e5)],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("function", EXPECTED, ids=lambda f: f.__name__)
def test_what_is_not_a_number_is_as_in_ieee(function):
    x = wide.constant(SPECIAL)
    np.testing.assert_allclose(single(separately(function, x)), EXPECTED[function], rtol=1e-12)


def beside(places, apart=1e-8):
    places = np.asarray(places, float)
    return np.concatenate([places * (1 - apart), places, places * (1 + apart)])


STEPS_OF_ROWS = (np.arange(-20, 26) + 0.5) / 64
BETWEEN_FAR_ROWS = 64 / (np.arange(2, 43) + 0.5) - 1


def of_tails(x, t):
    return t * (1 + 2 * x * x)


EDGES = {
    "exp": (beside((np.arange(-1074, 1024, 40) + 0.5) * np.log(2)), 10, relative),
    "exp of large numbers": (np.array([745.2, -745.2, 5309.5, -5676.0, 5676.0]), 24, relative),
    "expm1": (beside([*STEPS_OF_ROWS, 0.34657359, -0.34657359, 1.0397]), 68, relative),
    "log": (np.concatenate([beside([*(1 + STEPS_OF_ROWS), 2**0.5, 0.5**0.5]), [1 - 1e-14, 1 + 1e-14]]), 44, relative),
    "log1p": (np.concatenate([beside([-0.29, 0.41, -0.5, 0.4142, -0.2929]), [-1 + 1e-12, -1 + 1e-6]]), 53, relative),
    "tanh": (beside(both_signs(0.17, 0.21, 30)), 69, relative),
    "erf": (beside([0.5, -0.5, 0.7066, 3.0]), 75, relative),
    "erfc": (beside([0.5, 3.0, *BETWEEN_FAR_ROWS, 26.6, 30.0, 41.6]), 64, of_tails),
    "erfc far out": (np.array([41.67, 41.7, 42.0, 42.9]), 64, of_tails),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EDGES)
def test_functions_are_within_their_bounds_where_rows_and_forms_change(name):
    function, truth, *_ = CASES[name.split(" ")[0]]
    values, bound, scale = EDGES[name]
    x = pairs(values)
    with mp.workprec(400):
        assert worst(separately(function, x), x, truth, scale) <= bound


def test_beyond_43_the_complement_of_erf_is_0():
    """Which is below the smallest float64."""
    x = pairs(np.array([43.5, 50.0, 60.0, 76.0, 1e4]))
    assert exact(separately(functions.erfc, x)) == [0] * 5
