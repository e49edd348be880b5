"""Rényi divergences and (epsilon, delta): the optimal relation against searches over pairs of two outcomes."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import draws

from jaxacct import PoissonSubsampledGaussian, rdp
from jaxacct.convert import METHODS, least_rdp, rdp_to_delta, rdp_to_epsilon
from jaxacct.convert.renyi import log_deficit_above, log_falling_deficit
from jaxacct.numerics.arithmetic import FLOAT64

GRID = [
    (order, epsilon, delta)
    for order in (1.01, 1.5, 2.0, 7.3, 64.0, 1000.0)
    for epsilon in (0.0, 0.3, 5.0)
    for delta in (1e-12, 1e-5, 0.01, 0.3)
]


def brute_force(order, epsilon, delta):
    """Returns the least divergence of two Bernoulli laws with that delta(epsilon), by golden section over p alone.

    Fifty digits, the definition of the divergence, no derivative; p = delta + (1 - delta) x with x on a log scale of
    either end, where the least one may hide.
    """
    mp.mp.dps = 50
    order, epsilon, delta = mp.mpf(order), mp.mpf(epsilon), mp.mpf(delta)

    def divergence(u):
        x = 1 / (1 + mp.exp(-u))
        p = delta + (1 - delta) * x
        q = (1 - delta) * x / mp.exp(epsilon)
        rest, other = (1 - delta) / (1 + mp.exp(u)), 1 - q
        return mp.log(p**order * q ** (1 - order) + rest**order * other ** (1 - order)) / (order - 1)

    grid = [mp.mpf(u) for u in range(-40, 61, 2)]
    values = [divergence(u) for u in grid]
    i = min(range(len(grid)), key=values.__getitem__)
    low, high = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
    share = (mp.sqrt(5) - 1) / 2
    inner = [high - share * (high - low), low + share * (high - low)]
    heights = [divergence(u) for u in inner]
    for _ in range(55):
        if heights[0] < heights[1]:
            high, inner = inner[1], [inner[1] - share * (inner[1] - low), inner[0]]
            heights = [divergence(inner[0]), heights[0]]
        else:
            low, inner = inner[0], [inner[1], inner[0] + share * (high - inner[0])]
            heights = [heights[1], divergence(inner[1])]
    return min(*heights, *values)


@pytest.fixture(scope="module")
def searched():
    return [brute_force(*setting) for setting in GRID]


@pytest.mark.exhaustive
def test_least_divergence_is_that_of_a_search(searched):
    for (order, epsilon, delta), truth in zip(GRID, searched, strict=True):
        value = mp.mpf(float(least_rdp(epsilon, delta, [order])[0]))
        assert 0 <= 1 - value / truth < 1e-9


def test_epsilon_and_delta_are_those_of_a_search(searched):
    for (order, epsilon, delta), truth in zip(GRID, searched, strict=True):
        # Rounded up, lest the number handed over be below the truth.
        divergence = np.nextafter(float(truth), np.inf)
        assert rdp_to_epsilon([divergence], [order], delta) >= epsilon
        assert rdp_to_epsilon([divergence], [order], delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-9)
        assert rdp_to_delta([divergence], [order], epsilon) >= delta
        assert rdp_to_delta([divergence], [order], epsilon) == pytest.approx(delta, rel=1e-9)


def random_pairs(seed, count, outcomes):
    """Returns laws on so many outcomes, with masses down to 1e-9."""
    rng = np.random.default_rng(seed)
    p, q = np.exp(rng.uniform(-20, 0, (2, count, outcomes)) * rng.uniform(0, 1, (2, count, 1)))
    return p / p.sum(axis=-1, keepdims=True), q / q.sum(axis=-1, keepdims=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("outcomes", [2, 5])
def test_no_pair_is_outside_the_relation(outcomes):
    p, q = random_pairs(outcomes, 2_000, outcomes)
    rng = np.random.default_rng(1)
    loss = np.log(p / q)
    epsilon = np.maximum(np.max(loss, axis=-1) * rng.uniform(0, 1, len(p)), 0)
    delta = np.sum(np.maximum(p - np.exp(epsilon)[:, None] * q, 0), axis=-1)
    orders = np.array([1.01, 1.3, 2.0, 5.0, 40.0, 1000.0])
    power = (orders - 1)[:, None, None] * loss
    top = np.max(power, axis=-1)
    divergence = ((top + np.log(np.sum(p * np.exp(power - top[..., None]), axis=-1))) / (orders - 1)[:, None]).T
    # What is computed here has a rounding of its own, far above the functions' where the divergence is small.
    counts = (delta > 1e-9) & (delta < 0.999) & np.all(divergence > 1e-4, axis=-1)
    counts = np.flatnonzero(counts)[: draws(500, 2000)]  # equally many of either kind: one program
    assert len(counts) >= 500
    epsilon, delta, divergence = epsilon[counts], delta[counts], divergence[counts]
    assert np.all(least_rdp(epsilon, delta, orders) <= divergence * (1 + 1e-9))
    for i in range(len(orders)):
        single = divergence[:, i : i + 1] * (1 + 1e-9), orders[i : i + 1]
        for method in METHODS:
            assert np.all(rdp_to_epsilon(*single, delta, method) >= epsilon - 1e-9)
            assert np.all(rdp_to_delta(*single, epsilon, method) >= delta * (1 - 1e-9))


def random_settings(seed, count):
    rng = np.random.default_rng(seed)
    order = 1 + np.exp(rng.uniform(np.log(0.01), np.log(1000), count))
    divergence, delta, epsilon = (
        np.exp(rng.uniform(np.log(low), np.log(high), count)) for low, high in ((1e-9, 50), (1e-100, 0.9), (1e-6, 60))
    )
    return order, divergence, delta, epsilon


def test_no_method_beats_the_ones_before_it():
    order, divergence, delta, epsilon = random_settings(2, draws(100, 300))
    epsilons, deltas = (
        np.array([[f([r], [a], x, m) for r, a, x in zip(divergence, order, v, strict=True)] for m in METHODS])
        for f, v in ((rdp_to_epsilon, delta), (rdp_to_delta, epsilon))
    )
    scale = 1e-12 * (1 + np.max(np.where(np.isfinite(epsilons), epsilons, 0), axis=0))
    assert np.all(np.diff(epsilons, axis=0) >= -scale)
    assert np.all(np.diff(deltas, axis=0) >= -1e-9 * deltas[1:])
    assert np.mean(epsilons[0] < 0.9 * epsilons[2]) > 0.2


def test_closed_lower_bounds_are_below_the_least_divergence():
    order, _, delta, epsilon = random_settings(3, draws(100, 300))
    for a, d, e in zip(order, delta, epsilon, strict=True):
        best, g, f = (least_rdp(e, d, [a], method)[0] for method in ("optimal", "g", "f"))
        assert max(g, f) <= best * (1 + 1e-9) + 1e-15


def test_total_variation_is_within_bretagnolle_and_huber():
    # delta(0) <= sqrt(1 - e^-KL) <= sqrt(1 - e^-rdp).
    for order in (1.01, 2.0, 50.0):
        for divergence in (1e-4, 0.1, 2.0):
            assert rdp_to_delta([divergence], [order], 0.0) <= math.sqrt(-math.expm1(-divergence))


def test_certain_outcome_beyond_one_over_the_order():
    # Where order delta >= 1 the relation is rdp = epsilon - log(1 - delta).
    assert rdp_to_epsilon([2.0], [20.0], 0.1) == pytest.approx(2 + math.log(0.9), rel=1e-12)
    assert rdp_to_delta([2.0], [20.0], 1.9) == pytest.approx(1 - math.exp(-0.1), rel=1e-12)
    assert least_rdp(1.0, 0.1, [20.0])[0] == pytest.approx(1 - math.log(0.9), rel=1e-12)


def steps_within(epsilon, method, curve, orders, delta=1e-5):
    """Returns how many steps of divergences ``curve`` stay within epsilon."""
    low, high = 0, 1
    while rdp_to_epsilon(high * curve, orders, delta, method) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if rdp_to_epsilon(middle * curve, orders, delta, method) <= epsilon else (low, middle)
        )
    return low


def test_steps_that_the_optimal_relation_buys():
    # Asoodeh et al. (2021), noisy SGD with rate 0.04 and noise 4: by their approximation, order q^2/((1-q) s^2) a step,
    # a hundred steps more than by Mironov's rule at an epsilon of 1.
    orders = np.array(rdp.DEFAULT_ORDERS)
    approximation = 0.04**2 / 0.96 / 16 * orders
    gained = steps_within(1.0, "optimal", approximation, orders) - steps_within(1.0, "mironov", approximation, orders)
    assert 80 < gained < 120
    exact = rdp.curve(PoissonSubsampledGaussian(4.0, 0.04), orders)
    gained = [steps_within(1.0, method, exact, orders) for method in METHODS]
    assert gained == sorted(gained, reverse=True)
    assert gained[0] - gained[-1] > 150


def test_inverses_of_one_another():
    order, divergence, _, epsilon = random_settings(4, 40)
    for r, a, e in zip(divergence, order, epsilon, strict=True):
        delta = float(rdp_to_delta([r], [a], e))
        if 1e-300 < delta < 0.99:  # beyond, epsilon is lost in its rounding
            assert rdp_to_epsilon([r], [a], delta) == pytest.approx(e, rel=1e-6)
            assert least_rdp(e, delta, [a])[0] == pytest.approx(r, rel=1e-6)


def test_extremes():
    for method in METHODS:
        assert rdp_to_epsilon([0.0, 0.0], [2.0, 3.0], 1e-5, method) == 0
        assert rdp_to_delta([0.0], [2.0], 0.0, method) == 0
        assert rdp_to_epsilon([math.inf], [2.0], 1e-5, method) == math.inf
        assert rdp_to_delta([math.inf], [2.0], 1.0, method) == 1
        assert rdp_to_epsilon([math.inf, 1.0], [2.0, 4.0], 1e-5, method) < math.inf
        assert 0 < rdp_to_delta([1.0], [2.0], math.inf, method) < 1e-300
        assert 0 <= rdp_to_epsilon([1e-300], [1024.0], 1e-300, method) < 1
        assert rdp_to_epsilon([1e9], [1024.0], 1e-300, method) == pytest.approx(1e9, rel=1e-6)
        assert 0 < rdp_to_delta([1e-6], [1000.0], 700.0, method) < 1e-300
    assert least_rdp(1.0, 0.0, [2.0])[0] == 0
    assert least_rdp(2000.0, 1e-9, [1000.0])[0] == pytest.approx(2000, rel=1e-4)


@pytest.mark.exhaustive
def test_batches_jit_vmap_and_scan_without_x64():
    """And what makes no sense is on the safe side, in the same batches."""
    assert not jax.config.jax_enable_x64
    orders = (2.0, 4.0, 8.0, 16.0)
    divergences = np.outer([0.01, 0.1, 1.0], orders)
    rows = rdp_to_epsilon(divergences, orders, np.array([1e-5, 1e-6, 1e-7]))
    single = [rdp_to_epsilon(row, orders, d) for row, d in zip(divergences, (1e-5, 1e-6, 1e-7), strict=True)]
    np.testing.assert_array_equal(rows, single)
    # Divergence, order, and delta or epsilon.
    bad = np.array([[-1.0, 2.0, 0.1], [1.0, 1.0, 0.1], [1.0, 2.0, -0.1], *(np.where(np.eye(3), np.nan, 1.0))])

    def followed_by_bad(rows, given):
        """Four divergences and orders in a row; of a bad one, one and the same four times."""
        values = (*((np.tile(bad[:, i : i + 1], 4)) for i in (0, 1)), bad[:, 2])
        good = rows, np.tile(orders, (len(rows), 1)), given
        return tuple(jnp.asarray(np.concatenate(both), jnp.float32) for both in zip(good, values, strict=True))

    mapped = jax.jit(jax.vmap(rdp_to_epsilon))(*followed_by_bad(divergences, [1e-5, 1e-6, 1e-7]))
    assert mapped.dtype == jnp.float64
    np.testing.assert_allclose(np.asarray(mapped)[:3], rows, rtol=1e-5)
    assert np.all(np.asarray(mapped)[3:] == np.inf)
    some = np.outer(np.arange(1, 4) / 64, orders)
    _, scanned = jax.lax.scan(lambda c, row: (c, rdp_to_delta(*row)), 0, followed_by_bad(some, np.ones(3)))
    expected = [rdp_to_delta([k * a / 64 for a in orders], orders, 1.0) for k in (1, 2, 3)]
    np.testing.assert_allclose(np.asarray(scanned)[:3], expected, rtol=1e-9)
    assert np.all(np.asarray(scanned)[3:] == 1)
    asked = jnp.asarray(np.concatenate([[[1.0, a, 2.0**-20] for a in (2.0, 3.0)], bad]), jnp.float32)
    least = np.asarray(jax.jit(jax.vmap(lambda e, a, d: least_rdp(e, d, [a])[0]))(*asked.T))
    np.testing.assert_allclose(least[:2], least_rdp(1.0, 2.0**-20, [2.0, 3.0]), rtol=1e-12)
    assert np.all(least[2:] == 0)


def test_concrete_nonsense_raises():
    with pytest.raises(ValueError, match=r"rdp = -1.0"):
        rdp_to_epsilon([1.0, -1.0], [2.0, 3.0], 1e-5)
    with pytest.raises(ValueError, match=r"rdp of shape \(1,\) does not match 2 orders"):
        rdp_to_epsilon([1.0], [2.0, 3.0], 1e-5)
    with pytest.raises(ValueError, match=r"orders = \[1.0\]"):
        rdp_to_delta([1.0], [1.0], 1.0)
    with pytest.raises(ValueError, match=r"delta = 2"):
        rdp_to_epsilon([1.0], [2.0], 2)
    with pytest.raises(ValueError, match=r"epsilon = -1"):
        rdp_to_delta([1.0], [2.0], -1)
    with pytest.raises(ValueError, match=r"method = 'best'.*'optimal'"):
        rdp_to_epsilon([1.0], [2.0], 0.1, method="best")
    with pytest.raises(ValueError, match=r"method = 'mironov'.*'f'"):
        least_rdp(1.0, 0.1, [2.0], method="mironov")


def exact_log_deficit(y, power):
    """log(1 - B(e^-y)), from series where the remainders would cancel."""

    def remainder(z):
        return mp.expm1(z) - z if abs(z) > 1e-8 else z * z / 2 * (1 + z / 3 * (1 + z / 4 * (1 + z / 5)))

    y, power = mp.mpf(float(y)), mp.mpf(float(power))
    return mp.log(mp.exp(-power * y) * (remainder(power * y) + power * remainder(-y)))


# Both sides of the places where either form changes, and of the cut of e^-y.
SWITCHES = [
    (x / b, b) for b in (1e-6, 0.1, 1.0, 30.0, 1e3) for x in (1.0, 1 + 1e-9, 0.5, 0.5 + 1e-12, -0.5, -0.5 - 1e-12)
]
SWITCHES += [(y, b) for b in (1e-8, 0.13, 7.0) for y in (0.5, -0.5, -0.5 - 1e-12, 599.9, -599.9, -600.1, 1e-12, -1e-12)]
UNDERFLOWS = [(side * 1.0987e-155, 1605.7) for side in (-1, 1)] + [(3e-155, 1e4), (1e-154, 100.0)]


@pytest.mark.first_tier("squares that underflow")
@pytest.mark.parametrize("places", [SWITCHES, UNDERFLOWS], ids=["switches", "squares that underflow"])
def test_deficits_are_rounded_up_by_no_more_than_is_said(places):
    y, power = map(np.array, zip(*places, strict=True))
    with jax.enable_x64(True):
        either = np.asarray(log_deficit_above(jnp.asarray(y), jnp.asarray(power)))
        falling = np.asarray(log_falling_deficit(jnp.asarray(np.abs(y)), jnp.asarray(power)))
    unit = 32 * mp.mpf(FLOAT64.function) * (1 + mp.mpf(10) ** -9)
    with mp.workdps(60):
        for each, value, less in zip(places, either, falling, strict=True):
            truth = exact_log_deficit(*each)
            assert truth <= mp.mpf(float(value)), each
            assert exact_log_deficit(abs(each[0]), each[1]) <= mp.mpf(float(less)), each
            if truth > -650:  # below, the smallest normal number is added
                more = mp.mpf(FLOAT64.function) * 16 * abs(each[0] * each[1]) if each[0] < 0 else 0
                assert mp.mpf(float(value)) <= truth + unit * (1 + abs(truth)) + more, each
