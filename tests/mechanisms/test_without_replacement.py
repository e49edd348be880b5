"""Sampling without replacement: the law pieced together, against the two hockey-stick functions it comes from."""

import jax
import mpmath
import numpy as np
import pytest
from helpers.oracle import PI, integral
from helpers.thorough import program

from jaxacct.mechanisms import SubsampledGaussianPair, WithoutReplacementPair

masses_of_cells = program(lambda pair, boundaries: pair.cell_masses(boundaries))
cumulant = program(lambda pair, order: pair.cumulant(order))
error_of = program(lambda pair, loss: pair.boundary_error(loss))
MOST_CELLS = 512
SETTINGS = [("gaussian", 2.0, 0.01), ("gaussian", 0.8, 0.3), ("gaussian", 1.0, 1.0), ("laplace", 1.5, 0.05)]


@pytest.fixture(autouse=True)
def _digits():
    with mpmath.workdps(30):
        yield


def cell_masses(pair, boundaries):
    """Returns the masses of cells, by one program for any number of them: empty ones fill up."""
    count = len(boundaries) - 1
    padded = np.pad(np.asarray(boundaries), (0, MOST_CELLS - count), mode="edge")
    return jax.tree.map(lambda values: np.asarray(values)[:count], masses_of_cells(pair, padded))


def noise_above(noise, z):
    if noise == "gaussian":
        return mpmath.ncdf(-z)
    return mpmath.exp(-z) / 2 if z > 0 else 1 - mpmath.exp(z) / 2


def hockey_stick(noise, s, rate, epsilon):
    """H((1-q) B + q A || B) for epsilon >= 0, H(A || (1-q) A + q B) below: the best half-line, by golden search."""
    s, rate, scale = mpmath.mpf(s), mpmath.mpf(rate), mpmath.exp(epsilon)
    a, b = (lambda t, m=m: noise_above(noise, (t - m) / s) for m in (2, 0))
    if epsilon >= 0:
        gain = lambda t: (1 - rate) * b(t) + rate * a(t) - scale * b(t)  # noqa: E731
    else:
        gain = lambda t: a(t) - scale * ((1 - rate) * a(t) + rate * b(t))  # noqa: E731
    reach = 2 if noise == "laplace" else 2 + 40 * s
    low, high = (mpmath.mpf(0), mpmath.mpf(2)) if noise == "laplace" else (-reach, reach)
    shrink = (mpmath.sqrt(5) - 1) / 2
    for _ in range(75):
        left, right = high - shrink * (high - low), low + shrink * (high - low)
        low, high = (low, right) if gain(left) > gain(right) else (left, high)
    return max(gain((low + high) / 2), 1 - scale, mpmath.mpf(0))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("noise", "s", "rate"), SETTINGS)
def test_delta_is_the_hockey_stick_divergence(noise, s, rate):
    pair = WithoutReplacementPair(s, rate, noise)
    with jax.enable_x64(True):
        top = min(float(pair.loss_range()[1]), 6.0)
        for epsilon in (0.0, 0.05 * top, 0.5 * top, -0.05 * top, -0.3 * top):
            edges = np.concatenate([np.linspace(epsilon, top, 400), [np.inf]])
            cells = cell_masses(pair, edges)
            delta = float(np.sum(cells.p) - np.exp(epsilon) * np.sum(cells.q))
            slack = float(np.sum(cells.p_error) + np.exp(epsilon) * np.sum(cells.q_error))
            slack += 4 * float(error_of(pair, top))
            assert delta == pytest.approx(float(hockey_stick(noise, s, rate, epsilon)), abs=slack + 1e-15)
        whole = cell_masses(pair, [-np.inf, -1.0, -1e-3, 0.0, 1e-3, 1.0, np.inf])
        assert float(np.sum(whole.p)) == pytest.approx(1, abs=1e-15)
        assert float(np.sum(whole.q)) == pytest.approx(1, abs=1e-15)


@pytest.mark.first_tier("gaussian-0.8-0.3")
@pytest.mark.parametrize(("noise", "s", "rate"), SETTINGS)
def test_is_its_own_mirror_image_with_an_atom_at_zero(noise, s, rate):
    pair = WithoutReplacementPair(s, rate, noise)
    with jax.enable_x64(True):
        edges = np.asarray([0.001, 0.01, 0.1, 0.2])
        cells, mirrored = cell_masses(pair, edges), cell_masses(pair, -edges[::-1])
        np.testing.assert_allclose(cells.p, mirrored.q[::-1], rtol=1e-11, atol=1e-300)
        atom = (1 - rate) * (1 - 2 * float(noise_above(noise, mpmath.mpf(1) / s)))
        around = cell_masses(pair, [-1e-300, 0.0])
        assert float(around.p[0]) == pytest.approx(atom, abs=1e-15)
        assert float(around.q[0]) == pytest.approx(atom, abs=1e-15)


@pytest.mark.first_tier("gaussian-0.8-0.3")
@pytest.mark.parametrize(("noise", "s", "rate"), SETTINGS)
def test_cumulant_against_quadrature(noise, s, rate):
    pair = WithoutReplacementPair(s, rate, noise)
    scale, q = np.longdouble(s), np.longdouble(rate)

    def density(x, m):
        z = (np.longdouble(x) - m) / scale
        return (np.exp(-(z**2) / 2) / np.sqrt(2 * PI) if noise == "gaussian" else np.exp(-np.abs(z)) / 2) / scale

    def loss(x):
        return np.log1p(q * (density(x, 2) / density(x, 0) - 1))

    def above(function, order):
        """Integral over x > 1 of a function of the base's density and the loss."""
        at = lambda x: function(density(x, 0), loss(x))  # noqa: E731
        if noise == "laplace":  # the loss is constant beyond 2
            return integral(at, [1, 2], 8) + scale * at(2)
        return integral(at, [1, 2 + (2 * order / s + 14) * scale], 100)

    def excess(order):
        """E[e^(tL)] - 1: of M above the base, and of B below it."""
        return above(lambda base, y: base * (np.exp(y) * np.expm1(order * y) + np.expm1(-order * y)), order)

    with jax.enable_x64(True):
        orders = np.asarray([0.01, 1.0, 6.0])
        values = cumulant(pair, orders)
        reflected = cumulant(pair, -1 - orders)
        np.testing.assert_allclose(values, reflected, rtol=1e-10)
        for order, value in zip(orders, np.asarray(values), strict=True):
            assert float(value) == pytest.approx(float(np.log1p(excess(order))), rel=1e-11)


@pytest.mark.exhaustive
def test_rate_one_is_the_gaussian_at_half_the_noise():
    with jax.enable_x64(True):
        pair, closed = WithoutReplacementPair(1.4, 1.0), SubsampledGaussianPair(0.7, 1.0, True)
        edges = np.linspace(-3.0, 5.0, 20)
        np.testing.assert_allclose(cell_masses(pair, edges).p, cell_masses(closed, edges).p, rtol=1e-11)
        orders = np.asarray([0.5, 3.0, 6.0])
        np.testing.assert_allclose(cumulant(pair, orders), cumulant(closed, orders), rtol=1e-12)
        np.testing.assert_allclose(pair.central_loss(), closed.central_loss(), rtol=1e-12)


def test_invalid_fields_make_no_valid_pair():
    with jax.enable_x64(True):
        for s, q in ((0.0, 0.1), (np.nan, 0.1), (np.inf, 0.1), (1.0, 0.0), (1.0, 1.5), (1.0, np.nan)):
            assert not WithoutReplacementPair(s, q).is_valid()
        assert WithoutReplacementPair(1.0, 0.5).is_valid()
