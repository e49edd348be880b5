"""Rényi curves and what they say about (epsilon, delta)."""

import json
import math
import pathlib

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import cases, draws

import jaxacct as ja
from jaxacct import Gaussian, PoissonSubsampledGaussian, rdp
from jaxacct.mechanisms.gaussian import log_moment_of_ratio
from jaxacct.numerics.precision import kernel

PUBLISHED = json.loads((pathlib.Path(__file__).parents[1] / "data" / "rdp_published.json").read_text())

FEW_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Whole ones: less to compile, where the orders are beside the point."""

PUBLISHED_ORDERS = sorted({fact["order"] for fact in PUBLISHED})
"""All in one program, each on its own in it: they are too few to share nodes."""

PUBLISHED_INEXACT = {"F120": 0.000650070897188, "F121": 0.00108541805691810}
"""Fractional orders where a published value is 3 % and 6e-5 above the divergence: the divergence, by mpmath."""


@pytest.mark.parametrize("fact", PUBLISHED, ids=lambda fact: fact["id"])
def test_published_divergences(fact):
    mechanism = PoissonSubsampledGaussian(fact["sigma"], fact["q"])
    curve = rdp.composed_curve(mechanism, fact["steps"], PUBLISHED_ORDERS, relation="remove")
    value = curve[PUBLISHED_ORDERS.index(fact["order"])]
    assert value == pytest.approx(PUBLISHED_INEXACT.get(fact["id"], fact["value"]), rel=5e-9)


def test_inexact_published_values_are_still_inexact():
    facts = {fact["id"]: fact["value"] for fact in PUBLISHED}
    assert all(abs(facts[name] / truth - 1) > 1e-5 for name, truth in PUBLISHED_INEXACT.items())


@pytest.mark.parametrize("relation", ["add_or_remove", "add", "remove"])
def test_gaussian_is_the_closed_form_rounded_up(relation):
    orders = np.array(rdp.DEFAULT_ORDERS)
    for s in (0.3, 1.0, 20.0):
        values, truth = rdp.curve(Gaussian(s), orders, relation=relation), orders / (2 * s**2)
        assert np.all(values >= truth)
        np.testing.assert_allclose(values, truth, rtol=1e-9)


def test_upper_bound_on_integer_orders():
    mp.mp.dps = 60
    settings = ((0.5, 0.01, 2), (0.9, 0.003, 32), (2.0, 0.2, 64), (8.0, 1e-4, 256), (1.1, 0.4, 3))
    orders = [float(a) for *_, a in settings]
    for i, (s, q, a) in enumerate(settings):
        rate = mp.mpf(q)
        moment = mp.fsum(
            mp.binomial(a, k) * (1 - rate) ** (a - k) * rate**k * mp.exp(mp.mpf(k) * (k - 1) / (2 * mp.mpf(s) ** 2))
            for k in range(a + 1)
        )
        truth = mp.log(moment) / (a - 1)
        value = rdp.curve(PoissonSubsampledGaussian(s, q), orders)[i]
        assert 0 <= mp.mpf(float(value)) / truth - 1 < 2e-10


def moment_by_mpmath(s, q, order):
    """Returns log E[r^order] by a trapezoid rule of 30 digits over the plain integrand, fine beside s and beside 1."""
    mp.mp.dps = 30
    s, q, order = mp.mpf(s), mp.mpf(q), mp.mpf(order)
    h = min(s, mp.mpf(1)) / 4
    left, right = -12, order / s + 12
    terms = []
    for i in range(int((right - left) / h) + 1):
        z = left + i * h
        terms.append(mp.exp(order * mp.log(1 + q * mp.expm1((z - 1 / (2 * s)) / s)) - z * z / 2))
    return mp.log(mp.fsum(terms) * h / mp.sqrt(2 * mp.pi))


def test_random_settings_agree_with_mpmath():
    rng = np.random.default_rng(3)
    # One order of each kind of computation a setting: fractional, and whole; a curve has enough of the former.
    orders = np.concatenate([1.03 + 0.51 * np.arange(20), [2.0, 3.0, 7.0, 12.0, 40.0]])
    for i in range(draws(5, 10)):
        s, q = np.exp(rng.uniform(np.log(0.4), np.log(8))), np.exp(rng.uniform(np.log(1e-4), np.log(0.9)))
        values = rdp.curve(PoissonSubsampledGaussian(s, q), orders)
        for j in (2 * i, 20 + i % 5):
            truth = moment_by_mpmath(s, q, orders[j]) / (mp.mpf(orders[j]) - 1)
            assert 0 <= mp.mpf(float(values[j])) / truth - 1 < 2e-10


@pytest.mark.exhaustive
def test_orders_computed_together_agree_with_those_computed_apart():
    # Little noise and many orders in one go, rates next to 0 and to 1; 0.1 is below where orders share their nodes.
    s = np.array([0.1, 0.19, 0.21, 0.5, 1.0, 3.0, 20.0, 1e4])
    q = np.array([1e-9, 0.9, 1e-3, 0.05, 1 - 1e-9, 0.3, 1e-12, 0.5])
    apart = kernel(jax.jit(lambda s, q, a: jax.vmap(lambda *v: log_moment_of_ratio(*v, a))(s, q)))(
        *(np.asarray(v, np.float64) for v in (s, q, rdp.DEFAULT_ORDERS))
    )
    curves = [rdp.curve(PoissonSubsampledGaussian(*pair), rdp.DEFAULT_ORDERS) for pair in zip(s, q, strict=True)]
    power = np.array(rdp.DEFAULT_ORDERS) - 1
    np.testing.assert_allclose(np.array(curves) * power[None], np.asarray(apart) * (1 + rdp.ALLOWANCE), rtol=3e-11)


@pytest.mark.parametrize(("s", "q"), [(0.1, 0.5), (0.1, 1e-12), (0.02, 0.01), (1e8, 0.9), (1e100, 1e-30)])
def test_nothing_overflows_or_vanishes(s, q):
    values = rdp.curve(PoissonSubsampledGaussian(s, q), rdp.DEFAULT_ORDERS)
    assert np.all(np.isfinite(values) & (values > 0) & (np.diff(values, prepend=0) >= 0))
    # Of order 2, log(1 + q^2 (e^(1/s^2) - 1)) in closed form.
    mp.mp.dps = 400
    truth = mp.log1p(mp.mpf(q) ** 2 * mp.expm1(1 / mp.mpf(s) ** 2))
    assert 0 <= mp.mpf(float(rdp.curve(PoissonSubsampledGaussian(s, q), FEW_ORDERS)[0])) / truth - 1 < 2e-10


@pytest.mark.parametrize(
    ("name", "neighbours", "order", "value"),
    [
        ("F126", "REPLACE_SPECIAL", 2.5, 1.7801182478869704),
        ("F127", "REPLACE_SPECIAL", 5.0, 1.9091969256833639),
        ("F129", "REPLACE_SPECIAL", 100.0, 1.9846954517418232),
        ("F132", "REPLACE_ONE", 2.5, 2.983865364028855),
        ("F133", "REPLACE_ONE", 5.0, 3.11316970070507),
        ("F135", "REPLACE_ONE", 100.0, 3.1886682560677593),
    ],
)
def test_published_randomized_response(name, neighbours, order, value):
    # The answer is drawn afresh from 10 values with probability 0.3; the special neighbour always draws afresh.
    true, other = 0.7 + 0.03, 0.03
    mechanism = (
        ja.RandomizedResponse(math.log(true / other), 10)
        if neighbours == "REPLACE_ONE"
        else ja.DiscretePair([true] + [other] * 9, [0.1] * 10)
    )
    assert rdp.curve(mechanism, [order], relation="replace")[0] == pytest.approx(value, rel=1e-6)


def test_laplace_is_the_closed_form():
    orders = np.array([1.0001, 1.5, 2.0, 30.0, 1000.0])
    for scale, relation, shift in ((0.01, "add", 1), (1.3, "add_or_remove", 1), (50.0, "replace", 2)):
        mp.mp.dps = 40
        for order, value in zip(orders, rdp.curve(ja.Laplace(scale), orders, relation=relation), strict=True):
            a, t = mp.mpf(order), shift / mp.mpf(scale)
            truth = mp.log(a * mp.exp((a - 1) * t) + (a - 1) * mp.exp(-a * t)) - mp.log(2 * a - 1)
            assert 0 <= mp.mpf(float(value)) * (a - 1) / truth - 1 < 2e-10


MECHANISMS = (
    ja.Gaussian(2.0),
    ja.PoissonSubsampledGaussian(1.0, 0.05),
    ja.GaussianWithoutReplacement(2.0, 0.05),
    ja.GaussianMixture(1.0, [0.0, 1.0, 2.0], [0.9, 0.09, 0.01]),
    ja.Laplace(1.3),
    ja.PoissonSubsampledLaplace(1.0, 0.05),
    ja.LaplaceWithoutReplacement(2.0, 0.05),
    ja.PureDP(0.5),
    ja.ApproximateDP(0.5, 0.0),
    ja.RandomizedResponse(1.0, 4),
    ja.DiscreteGaussian(3.0),
    ja.DiscreteLaplace(2.0, 3),
    ja.DiscretePair([0.5, 0.5], [0.4, 0.6]),
)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: type(mechanism).__name__)
def test_every_mechanism_has_a_curve(mechanism):
    orders = np.array([1.01, 1.7, 2.0, 8.0, 500.5])  # five, as in most tests: one program serves all of a kind
    values = rdp.curve(mechanism, orders, relation=mechanism.relations[0])
    assert np.all(np.isfinite(values) & (values > 0) & (np.diff(values, prepend=0) >= 0))


@pytest.mark.exhaustive
def test_continuous_orders_are_at_least_as_good_as_any_grid():
    dense = np.linspace(5.03, 9.03, 15)
    mechanism = PoissonSubsampledGaussian(1.0, 0.02)
    grid, best = (rdp.epsilon(mechanism, 1000, 1e-5, orders=orders) for orders in (rdp.DEFAULT_ORDERS, "continuous"))
    between = rdp.epsilon(mechanism, 1000, 1e-5, orders=dense)
    assert grid * (1 - 2e-3) < best <= min(grid, between * (1 + 1e-7))
    # Where the best order is sharpest, and the grid loses most.
    sharp = PoissonSubsampledGaussian(3.23, 0.00058)
    loss = rdp.epsilon(sharp, 218, 1e-5) / rdp.epsilon(sharp, 218, 1e-5, orders="continuous") - 1
    assert 0.02 < loss < 0.04
    for mu in cases([1.0], [0.01, 30.0]):
        best = rdp.epsilon(Gaussian(1 / mu), 1, 1e-6, orders="continuous")
        assert ja.convert.gdp_to_epsilon(mu, 1e-6) <= best <= rdp.epsilon(Gaussian(1 / mu), 1, 1e-6)
        assert best == pytest.approx(ja.convert.zcdp_to_epsilon(mu**2 / 2, 1e-6), rel=2e-6)
        assert rdp.delta(Gaussian(1 / mu), 1, best, orders="continuous") == pytest.approx(1e-6, rel=1e-4)
    assert rdp.epsilon(Gaussian(1.0), 0, 1e-6, orders="continuous") == 0
    assert rdp.epsilon(Gaussian(0.0), 1, 1e-6, orders="continuous") == math.inf


@pytest.mark.exhaustive
def test_continuous_orders_beside_infinite_losses():
    """Orders between the default ones lower the bound, which stays above the certified lower end."""
    mechanism = ja.mechanisms.DiscretePair(np.array([0.5, 0.2, 0.299, 0.001]), np.array([0.3, 0.3, 0.4, 0.0]))
    assert mechanism.may_fail
    for verb, exact in ((rdp.epsilon, ja.epsilon), (rdp.delta, ja.delta)):
        for steps, at in ((3, 0.2), (50, 0.5)):
            best = verb(mechanism, steps, at, orders="continuous")
            assert exact(mechanism, steps, at, points=512).lower <= best < verb(mechanism, steps, at)
    assert rdp.epsilon(mechanism, 50, 1e-5, orders="continuous") == math.inf
    assert rdp.delta(mechanism, 0, 1.0, orders="continuous") == 0


@pytest.mark.exhaustive
def test_no_conversion_is_better_than_the_optimal():
    mechanism = PoissonSubsampledGaussian(2.0, 0.01)
    for steps in (1, 30, 5000):
        epsilons = [rdp.epsilon(mechanism, steps, 1e-6, conversion=name) for name in rdp.CONVERSIONS]
        deltas = [rdp.delta(mechanism, steps, 0.3, conversion=name) for name in rdp.CONVERSIONS]
        assert epsilons[0] <= np.min(epsilons) * (1 + 1e-9)
        assert deltas[0] <= np.min(deltas) * (1 + 1e-9)
    assert rdp.epsilon(mechanism, 1, 1e-6) < 0.9 * rdp.epsilon(mechanism, 1, 1e-6, conversion="improved")


def test_removing_costs_at_least_adding():
    # Mironov, Talwar and Zhang (2019), Theorem 5.
    for s in (0.4, 5.0):
        for q in cases([1e-4, 0.7], [0.05]):
            mechanism = PoissonSubsampledGaussian(s, q)
            add, both = (rdp.curve(mechanism, rdp.DEFAULT_ORDERS, relation=v) for v in ("add", "add_or_remove"))
            assert np.all(add <= both * (1 + 1e-12))
            few = [rdp.curve(mechanism, FEW_ORDERS, relation=relation) for relation in ("remove", "add_or_remove")]
            np.testing.assert_array_equal(*few)


def test_rises_with_the_order_and_the_rate_and_falls_with_the_noise():
    values = [rdp.curve(PoissonSubsampledGaussian(1.0, 0.02), rdp.DEFAULT_ORDERS)]
    assert np.all(np.diff(values[0]) >= 0)
    assert np.all(rdp.curve(PoissonSubsampledGaussian(1.0, 0.03), rdp.DEFAULT_ORDERS) > values[0])
    assert np.all(rdp.curve(PoissonSubsampledGaussian(1.1, 0.02), rdp.DEFAULT_ORDERS) < values[0])


def test_f138_conversion():
    orders = np.arange(2.0, 33.0)
    convert = kernel(lambda: rdp.epsilon_improved(jnp.full(31, 1.1), jnp.asarray(orders), 1e-5).min())
    assert float(convert()) == pytest.approx(1.32783806176, abs=5e-8)


def test_f139_gaussian_over_many_orders():
    value = rdp.epsilon(
        Gaussian(4.530877117), 1, 1e-6, orders=[0.001 * i for i in range(1001, 100_000)], conversion="improved"
    )
    assert value == pytest.approx(1.0, abs=5e-8)


TF_PRIVACY_ORDERS = [*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512]


def test_f144_subsampled():
    value = rdp.epsilon(
        PoissonSubsampledGaussian(1.0, 0.001), 30_000, 1e-7, orders=TF_PRIVACY_ORDERS, conversion="improved"
    )
    assert value == pytest.approx(1.4154988495444842, abs=5e-8)


@pytest.mark.exhaustive
def test_conversions_undo_each_other():
    mechanism = PoissonSubsampledGaussian(0.9, 0.02)
    for conversion in rdp.CONVERSIONS:
        epsilon = rdp.epsilon(mechanism, 500, 1e-6, conversion=conversion)
        assert rdp.delta(mechanism, 500, epsilon, conversion=conversion) == pytest.approx(1e-6, rel=1e-9)
    assert rdp.epsilon(mechanism, 500, 1e-6) < rdp.epsilon(mechanism, 500, 1e-6, conversion="mironov")


@pytest.mark.parametrize(("mu", "delta"), [(0.05, 1e-5), (1.0, 1e-5), (5.0, 1e-9), (1.0, 1e-200)])
def test_epsilon_and_delta_are_above_the_gaussians(mu, delta):
    def truth(epsilon):
        mp.mp.dps = 250
        return mp.ncdf(mu / 2 - epsilon / mp.mpf(mu)) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mp.mpf(mu))

    epsilon = float(rdp.epsilon(Gaussian(1 / mu), 1, delta))
    assert truth(mp.mpf(epsilon)) <= delta
    assert mp.mpf(float(rdp.delta(Gaussian(1 / mu), 1, epsilon))) >= truth(mp.mpf(epsilon))


def test_default_orders_lose_little():
    for target in np.geomspace(0.05, 30, draws(5, 25)):
        # The noise at which the continuous optimum of the conversion is about the target.
        s = np.sqrt(2 * np.log(1e5)) / target
        dense = np.unique(np.concatenate([1 + np.geomspace(0.01, 2000, 20_000)]))
        best = rdp.epsilon(Gaussian(s), 1, 1e-5, orders=dense)
        # Among so many orders the best one is itself missed by some 1e-8.
        assert -1e-6 <= rdp.epsilon(Gaussian(s), 1, 1e-5) / best - 1 < 2e-3


def test_no_steps_cost_nothing_and_tiny_ones_something():
    mechanism = PoissonSubsampledGaussian(1.0, 0.01)
    assert rdp.epsilon(mechanism, 0, 1e-5) == 0
    assert rdp.delta(mechanism, 0, 0.0) == 0
    assert rdp.epsilon(PoissonSubsampledGaussian(0.0, 0.01), 0, 1e-5) == 0
    faint = PoissonSubsampledGaussian(1e6, 1e-300)
    assert np.all(rdp.curve(faint, PUBLISHED_ORDERS) > 0)
    assert rdp.delta(faint, 1, 100.0) > 0
    assert 0 < rdp.delta(mechanism, 1, math.inf) < 1e-300


def test_no_noise_costs_everything():
    for mechanism in (Gaussian(0.0), PoissonSubsampledGaussian(0.0, 0.5)):
        assert np.all(np.isinf(rdp.curve(mechanism, PUBLISHED_ORDERS)))
        assert rdp.epsilon(mechanism, 1, 1e-5) == math.inf
        assert rdp.delta(mechanism, 1, 3.0) == 1


def test_sequences_and_tuples_compose():
    s, q, steps = np.array([1.0, 2.0, 0.8]), np.array([0.01, 0.1, 0.002]), np.array([100, 5, 1000])
    parts = [
        rdp.composed_curve(PoissonSubsampledGaussian(*pair), int(k), FEW_ORDERS)
        for *pair, k in zip(s, q, steps, strict=True)
    ]
    gaussian = rdp.composed_curve(Gaussian(30.0), 2, FEW_ORDERS)
    sequence = PoissonSubsampledGaussian(s, q)
    np.testing.assert_allclose(rdp.composed_curve(sequence, steps, FEW_ORDERS), sum(parts), rtol=1e-14)
    mixed = rdp.composed_curve((sequence, Gaussian(30.0)), (steps, 2), FEW_ORDERS)
    np.testing.assert_allclose(mixed, sum(parts) + gaussian, rtol=1e-14)


def jitted(function):
    """Returns ``function`` jitted, its results as NumPy arrays: JAX would compare them in float32."""
    return lambda *args: np.asarray(jax.jit(function)(*args))


@pytest.mark.exhaustive
def test_jit_vmap_scan_and_tracers_without_x64():
    assert not jax.config.jax_enable_x64

    def epsilon(s, q, steps, delta):
        return rdp.epsilon(PoissonSubsampledGaussian(s, q), steps, delta, orders=FEW_ORDERS)

    expected = [epsilon(1.5, 0.02, k, 1e-5) for k in (299, 300)]

    # Float32 arguments: 1.5 and 300 are exact, the others are rounded before the library sees them.
    assert jitted(epsilon)(1.5, 0.02, 300, 1e-5) == pytest.approx(expected[1], rel=1e-6)

    def scanned_and_chosen(counts):
        _, scanned = jax.lax.scan(lambda c, k: (c, epsilon(1.5, 0.02, k, 1e-5)), 0, counts)
        return scanned, jax.lax.cond(counts[0] > 0, lambda k: scanned[k], lambda k: jnp.full_like(scanned[0], k), 1)

    scanned, chosen = jax.jit(scanned_and_chosen)(jnp.arange(299, 301))
    np.testing.assert_allclose(scanned, expected, rtol=1e-14)
    assert float(chosen) == pytest.approx(expected[1], rel=1e-14)


@pytest.mark.exhaustive
def test_other_verbs_without_x64():
    mechanism = PoissonSubsampledGaussian(1.5, 0.02)
    delta = jitted(lambda e: rdp.delta(mechanism, 300, e, orders=FEW_ORDERS))(1.0)
    assert delta == pytest.approx(rdp.delta(mechanism, 300, 1.0, orders=FEW_ORDERS), rel=1e-13)
    np.testing.assert_allclose(jitted(lambda a: rdp.curve(Gaussian(2.0), [a, 2 * a]))(2.0), [0.25, 0.5], rtol=1e-9)


def test_mechanisms_pass_through_transformations():
    mechanism = PoissonSubsampledGaussian(jnp.array([1.0, 2.0]), jnp.array([0.5, 0.25]))
    curves = jitted(jax.vmap(lambda m: rdp.curve(m, FEW_ORDERS)))(mechanism)
    assert curves.shape == (2, len(FEW_ORDERS))
    np.testing.assert_allclose(curves[1], rdp.curve(PoissonSubsampledGaussian(2.0, 0.25), FEW_ORDERS), rtol=1e-13)


@pytest.mark.exhaustive
def test_traced_nonsense_is_infinite():
    epsilon = jitted(jax.vmap(lambda s, q, k, d: rdp.epsilon(PoissonSubsampledGaussian(s, q), k, d, orders=FEW_ORDERS)))
    good = (1.0, 0.5, 10.0, 1e-5)
    bad = [tuple(value if i == j else v for j, v in enumerate(good)) for i in range(4) for value in (-1.0, math.nan)]
    others = [(1.0, 1.5, 10.0, 1e-5), (1.0, 0.5, 10.5, 1e-5), (1.0, 0.5, 10.0, 1.0), (math.inf, 1.5, 10.0, 1e-5)]
    values = epsilon(*jnp.array([good, *bad, *others]).T)
    assert values.dtype == np.float64
    assert values[0] == pytest.approx(rdp.epsilon(PoissonSubsampledGaussian(1.0, 0.5), 10, 1e-5, orders=FEW_ORDERS))
    assert np.all(values[1:] == math.inf)
    delta = jitted(jax.vmap(lambda s, k, e: rdp.delta(Gaussian(s), k, e, orders=FEW_ORDERS)))
    values = delta(*jnp.array([(1.0, 1.0, 1.0), *(tuple(row) for row in 1 - np.eye(3) * math.nan), (1.0, 1.5, 1.0)]).T)
    assert values[0] < 1
    assert np.all(values[1:] == 1)
    orders = jitted(lambda a: rdp.curve(Gaussian(1.0), a))(jnp.array([2.0, 1.0, -3.0, math.nan]))
    assert np.isfinite(orders[0])
    assert np.all(orders[1:] == math.inf)


def test_concrete_nonsense_raises():
    mechanism = PoissonSubsampledGaussian(1.0, 0.01)
    with pytest.raises(ValueError, match=r"orders = \[0.5\] .* at least 1"):
        rdp.curve(mechanism, [0.5])
    with pytest.raises(ValueError, match="orders"):
        rdp.curve(mechanism, [2.0, math.nan])
    with pytest.raises(ValueError, match=r"orders = \[1.0\] .* above 1"):
        rdp.epsilon(mechanism, 1, 1e-5, orders=[1.0])
    with pytest.raises(ValueError, match=r"steps = -1 .*whole number"):
        rdp.epsilon(mechanism, -1, 1e-5)
    with pytest.raises(ValueError, match=r"steps = 2.5"):
        rdp.epsilon(mechanism, 2.5, 1e-5)
    with pytest.raises(ValueError, match=r"delta = 1.5 .*\(0, 1\)"):
        rdp.epsilon(mechanism, 1, 1.5)
    with pytest.raises(ValueError, match=r"epsilon = -1"):
        rdp.delta(mechanism, 1, -1)
    with pytest.raises(ValueError, match=r"relation = 'swap' .*PoissonSubsampledGaussian.*'remove'"):
        rdp.epsilon(mechanism, 1, 1e-5, relation="swap")
    with pytest.raises(ValueError, match=r"conversion = 'best'"):
        rdp.epsilon(mechanism, 1, 1e-5, conversion="best")
    with pytest.raises(ValueError, match="vmap"):
        rdp.curve(Gaussian(np.ones(3)), [2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match=r"steps of shape \(\)"):
        rdp.epsilon(Gaussian(np.ones(3)), 5, 1e-5)
    with pytest.raises(ValueError, match="2 mechanisms"):
        rdp.epsilon((mechanism, mechanism), (1,), 1e-5)
