"""Certified trade-off curves of compositions."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxacct as ja
from jaxacct import gdp, tradeoff
from jaxacct.tradeoff import SupportLines

RATES = np.concatenate([[0, 1e-8, 1e-4], np.linspace(0.01, 0.99, 27), [1 - 1e-6, 1]])


def test_gaussian_is_inside_and_the_lower_end_is_sharp():
    found = tradeoff.curve(ja.Gaussian(10.0), 100, RATES)
    exact = tradeoff.gaussian(1.0, RATES)
    assert np.all(found.lower <= exact)
    assert np.all(exact <= found.upper + 1e-15)
    assert np.max(exact - found.lower) < 1e-5
    assert np.max(found.upper - exact) < 1e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", [(1.1, 0.0331, 234), (1.0, 0.01, 1000)])
def test_curve_is_convex_and_below_perfect(setting):
    s, q, k = setting
    # Without meshes, whose program takes long to compile.
    found = tradeoff.curve(ja.PoissonSubsampledGaussian(s, q), k, RATES)
    slopes = np.diff(found.lower) / np.diff(RATES)
    assert np.all(np.diff(slopes) >= -1e-9)
    assert np.all(found.upper <= 1 - RATES)
    assert np.all(found.lower <= found.upper)
    assert np.max(found.upper - found.lower) < 1e-3
    # Its own inverse, within the brackets.
    again = tradeoff.curve(ja.PoissonSubsampledGaussian(s, q), k, found.lower)
    assert np.all(again.upper >= RATES - 1e-15)
    np.testing.assert_allclose(again.lower, RATES, atol=1e-4)


@pytest.mark.exhaustive
def test_one_direction_against_figure_a1():
    """(p G_{1/s} + (1-p) Id) composed 234 times against its limit, p such that p sqrt(T) is that of 60 epochs."""
    rate = 256 / 60_000 * np.sqrt(14_062 / 234)
    mechanism = ja.PoissonSubsampledGaussian(1.1, rate)
    found = tradeoff.curve(mechanism, 234, RATES, relation="remove")
    limit = tradeoff.gaussian(gdp.mu(mechanism, 234), RATES)
    assert f"{gdp.mu(mechanism, 234):.2f}" == "0.57"
    apart = np.maximum(np.abs(limit - found.lower), np.abs(limit - found.upper))
    assert np.max(apart) < 0.012
    # They are not the same: the limit is above the certified curve, that is, promises more than is true.
    assert np.any(limit > found.upper + 1e-3)
    other = tradeoff.curve(mechanism, 234, RATES, relation="add")
    inverse = np.interp(RATES, found.lower[::-1], RATES[::-1])
    assert np.max(np.abs(other.lower - inverse)) < 5e-3


def test_risks_are_those_of_the_gaussian():
    mechanism = ja.Gaussian(10.0)
    found = tradeoff.advantage(mechanism, 100)
    assert found.lower <= 2 * stats.norm.cdf(0.5) - 1 <= found.upper
    for prior in (0.5, 0.2, 0.8, 1e-3):
        odds = np.log((1 - prior) / prior)
        # Threshold of the likelihood ratio: where prior N(1, 1) is above (1 - prior) N(0, 1).
        place = 0.5 + odds
        risk = (1 - prior) * stats.norm.sf(place) + prior * stats.norm.cdf(place - 1)
        bounds = tradeoff.bayes_risk(mechanism, 100, prior)
        assert bounds.lower <= risk * (1 + 1e-12)
        assert risk <= bounds.upper * (1 + 1e-12)
        assert bounds.upper - bounds.lower < 1e-9
    found = tradeoff.true_positive_rate(mechanism, 100, RATES)
    exact = 1 - tradeoff.gaussian(1.0, RATES)
    assert np.all((found.lower <= exact + 1e-15) & (exact <= found.upper + 1e-15))


@pytest.mark.exhaustive
def test_tensor_product_of_two_polygons():
    """Two curves composed through their pairs, against all likelihood-ratio tests of the product."""
    # Of equally many points, so that both are one program.
    curves = [([0.0, 0.1, 0.5, 1.0], [1.0, 0.6, 0.1, 0.0]), ([0.0, 0.3, 0.65, 1.0], [0.98, 0.3, 0.1, 0.0])]
    pairs = [tradeoff.pair(*curve) for curve in curves]
    p, q = (np.multiply.outer(getattr(pairs[0], n), getattr(pairs[1], n)).ravel() for n in "pq")
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.nan_to_num(p / q, nan=-1, posinf=np.inf))
    a, b = np.concatenate([[0], np.cumsum(q[order])]), np.concatenate([[1], 1 - np.cumsum(p[order])])
    found = tradeoff.curve(tuple(pairs), (1, 1), RATES, relation="remove")
    exact = np.array([np.min(np.where(a <= rate, b, 1.0)) for rate in RATES])
    line = np.array([np.interp(rate, a, np.minimum.accumulate(b)) for rate in RATES])
    line[0] = exact[0]
    assert np.all(found.lower <= line + 1e-12)
    assert np.all(line <= found.upper + 1e-12)
    assert np.max(found.upper - found.lower) < 0.02


def test_no_noise_is_no_protection():
    found = tradeoff.curve(ja.Gaussian(0.0), 1, [0.0, 0.3])
    assert np.all(found.lower == 0)
    assert np.all(found.upper <= [1.0, 0.7])
    assert tradeoff.advantage(ja.Gaussian(0.0), 1).upper == 1


def test_traced():
    found = jax.jit(lambda s: tradeoff.curve(ja.Gaussian(s), 100, np.array([0.1, 0.5])))(10.0)
    exact = tradeoff.gaussian(1.0, [0.1, 0.5])
    assert np.all(np.asarray(found.lower) <= exact)
    assert np.all(exact <= np.asarray(found.upper))
    np.testing.assert_allclose(np.asarray(found.lower), exact, atol=2e-3)


def test_one_rate_is_answered_as_in_a_list():
    for accountant in (tradeoff.curve, tradeoff.true_positive_rate):
        alone, listed = (accountant(ja.Gaussian(10.0), 100, rates) for rates in (0.1, [0.1]))
        assert alone.lower.shape == alone.converged.shape == ()
        assert (alone.lower, alone.upper) == (listed.lower[0], listed.upper[0])
    traced = jax.jit(lambda s, a: tradeoff.curve(ja.Gaussian(s), 100, a).lower)(10.0, 0.1)
    assert traced.shape == ()
    assert float(traced) == pytest.approx(0.6109, abs=2e-3)


@pytest.mark.parametrize("rates", [[-0.1], [1.5], 1.5, [[0.5]], []])
def test_rates_out_of_range_are_refused(rates):
    with pytest.raises(ValueError, match="fpr"):
        tradeoff.curve(ja.Gaussian(1.0), 1, rates)


def test_priors_and_relations_are_checked():
    with pytest.raises(ValueError, match="prior = 0"):
        tradeoff.bayes_risk(ja.Gaussian(1.0), 1, 0.0)
    with pytest.raises(ValueError, match="no Bayes risk"):
        tradeoff.bayes_risk(ja.Gaussian(1.0), 1, relation="add")


def test_lines_are_below_themselves_where_they_cross():
    """Each falls over many orders of magnitude, so that what is left of it is rounding for the most part."""
    random = np.random.default_rng(0)
    ends = np.exp(random.uniform(-40, 0, (4, 2000)))
    share = 1 - np.exp(random.uniform(-36, 0, 2000))
    with jax.enable_x64(True):
        lines = SupportLines(
            (jnp.asarray(ends[0]), jnp.asarray(ends[1])), (jnp.asarray(ends[2]), jnp.asarray(ends[3])), share
        )
        found = np.asarray(lines.highest_crossing())
    for low, high, *row in zip(found, share, *ends, strict=True):
        a, b, c, d = map(Fraction, row)
        assert Fraction(low) <= max(a + Fraction(high) * (b - a), c + Fraction(high) * (d - c))


def test_a_traced_argument_beside_plain_ones():
    """What is computed of plain numbers within a trace is traced as well."""
    risk = jax.eval_shape(lambda s: tradeoff.bayes_risk(ja.Gaussian(s), 1), 1.0)
    rates = jax.eval_shape(lambda a: tradeoff.curve(ja.Gaussian(1.0), 1, a), RATES[:3])
    assert risk.upper.shape == ()
    assert rates.lower.shape == (3,)
