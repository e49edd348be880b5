"""The central-limit estimate: closed forms, functionals by quadrature, heterogeneous compositions."""

import jax
import numpy as np
import pytest
from helpers.thorough import program
from scipy import stats

import jaxacct as ja
from jaxacct import gdp
from jaxacct.gdp import functionals_of


def functionals(pair):
    with jax.enable_x64(True):
        return [float(value) for value in program(functionals_of)(pair)]


def moments(p, q, loss):
    """The six functionals as sums over points of masses p and q."""
    divergences = np.sum(p * (np.expm1(-loss) + loss)), np.sum(q * (np.expm1(loss) - loss))
    return [*divergences, *(np.sum(w * np.abs(loss) ** n) for n in (2, 3) for w in (p, q))]


@pytest.mark.parametrize(("s", "q"), [(1.0, 0.01), (0.6, 0.004), (10.0, 0.3), (0.5, 1e-5)])
@pytest.mark.parametrize("removes", [True, False])
def test_functionals_of_a_subsampled_gaussian(s, q, removes):
    # Trapezoid sums of an analytic integrand: right to rounding.
    x = np.linspace(-14 * s, 14 * s + 1 + 3 / s, 400_001)
    step = x[1] - x[0]
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * s**2)))
    base = stats.norm.pdf(x, 0, s) * step
    mixture = (1 - q) * base + q * stats.norm.pdf(x, 1, s) * step
    direct = moments(mixture, base, loss) if removes else moments(base, mixture, -loss)
    pair = ja.PoissonSubsampledGaussian(s, q).dominating_pairs("remove" if removes else "add")[0]
    np.testing.assert_allclose(functionals(pair), direct, rtol=1e-6)


def test_functionals_of_laplace_noise_with_its_atoms():
    b = 2.0
    high = np.exp(-1 / b) + 1 / b - 1  # Gil, Alajaji and Linder (2013)
    loss = np.linspace(-1 / b, 1 / b, 200_001)
    density = np.exp((loss - 1 / b) / 2) / 4
    ends = 0.5 * np.exp(-1 / b), 0.5
    squares, cubes = (np.trapezoid(density * np.abs(loss) ** n, loss) + sum(ends) * b**-n for n in (2, 3))
    found = functionals(ja.Laplace(b).dominating_pairs()[0])
    np.testing.assert_allclose(found, [high, high, squares, squares, cubes, cubes], rtol=1e-6)


def test_functionals_of_atoms():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    found = functionals(ja.DiscretePair(p, q).dominating_pairs("remove")[0])
    np.testing.assert_allclose(found, moments(p, q, np.log(p / q)), rtol=1e-12)


def test_gaussian_mechanisms_are_exact():
    assert gdp.mu(ja.Gaussian(10.0), 100) == pytest.approx(1.0, rel=1e-7)
    mixed = gdp.mu((ja.Gaussian(2.0), ja.Gaussian(np.array([1.0, 4.0]))), (4, np.array([1, 2])))
    assert mixed == pytest.approx(np.sqrt(4 / 4 + 1 + 2 / 16), rel=1e-7)


def test_closed_forms():
    s, q, k = 1.1, 0.01, 1000
    poisson = gdp.mu(ja.PoissonSubsampledGaussian(s, q), k)
    assert poisson == pytest.approx(q * np.sqrt(k * np.expm1(1 / s**2)), rel=1e-14)
    half = s / 2
    inside = np.exp(half**-2) * stats.norm.cdf(1.5 / half) + 3 * stats.norm.cdf(-0.5 / half) - 2
    uniform = gdp.mu(ja.GaussianWithoutReplacement(s, q), k, relation="replace")
    assert uniform == pytest.approx(q * np.sqrt(2 * k * inside), rel=1e-12)


def test_closed_form_of_uniform_batches_is_the_limit_of_its_law():
    """The pair of a batch of fixed size, summed: above 0 log M/B under M, below 0 minus the same under B."""
    s, q = 2.0, 1e-5
    x = np.linspace(1.0, 1 + 16 * s, 200_001)
    base = stats.norm.pdf(x, 0, s)
    ratio = np.expm1((4 * x - 4) / (2 * s**2))
    loss = np.log1p(q * ratio)
    mixture = base * (1 + q * ratio)
    second = np.trapezoid((mixture + base) * loss**2, x)
    found = gdp.mu(ja.GaussianWithoutReplacement(s, q), 1, relation="replace")
    assert found == pytest.approx(np.sqrt(second), rel=1e-3)


def test_closed_form_is_the_limit_of_the_functionals():
    # Relative difference of the order of the rate.
    mechanism = ja.PoissonSubsampledGaussian(1.0, 1e-4)
    by_quadrature = gdp.mu(mechanism, 10_000, method="functionals")
    assert by_quadrature == pytest.approx(gdp.mu(mechanism, 10_000), rel=1e-3)


def test_sequences_add_squares():
    noise, rate, steps = np.array([1.0, 2.0]), np.array([0.01, 0.02]), np.array([100, 200])
    parts = [gdp.mu(ja.PoissonSubsampledGaussian(s, q), k) for s, q, k in zip(noise, rate, steps, strict=True)]
    found = gdp.mu(ja.PoissonSubsampledGaussian(noise, rate), steps)
    assert found == pytest.approx(np.hypot(*parts), rel=1e-12)


def test_published_value():
    """F043 of the published values: epsilon between 6.59 and 6.60."""
    assert 6.59 < gdp.epsilon(ja.PoissonSubsampledGaussian(1.5, 0.04), 2249, 1e-5) < 6.60


def test_epsilon_and_delta_are_those_of_mu():
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.01)
    mu = gdp.mu(mechanism, 1000)
    assert gdp.epsilon(mechanism, 1000, 1e-5) == gdp.gaussian_epsilon(mu, 1e-5)
    assert gdp.delta(mechanism, 1000, 1.0) == gdp.gaussian_delta(mu, 1.0)


def test_error_falls_like_the_root_of_the_steps():
    few, many = (gdp.clt_error(ja.PureDP(0.1), k) for k in (100, 400))
    assert many == pytest.approx(few / 2, rel=1e-12)


def test_error_covers_the_distance_to_the_exact_curve():
    """Composed randomized response: f(a) >= G_mu(a + g) - g, by the binomial law of the sum of losses."""
    epsilon, k = 0.1, 400
    mu = gdp.mu(ja.PureDP(epsilon), k)
    error = gdp.clt_error(ja.PureDP(epsilon), k)
    chance = 1 / (1 + np.exp(-epsilon))
    wins = np.arange(k + 1)
    fpr, fnr = stats.binom.sf(wins, k, 1 - chance), stats.binom.cdf(wins, k, chance)
    inside = fpr + error < 1
    normal = stats.norm.cdf(stats.norm.isf((fpr + error)[inside]) - mu) - error
    assert np.all(fnr[inside] >= normal)
    assert error < 0.1


def test_transformations():
    found = jax.jit(jax.vmap(lambda s: gdp.epsilon(ja.PoissonSubsampledGaussian(s, 0.01), 1000, 1e-5)))(
        np.array([1.0, 2.0, 0.0, -1.0])
    )
    expected = [gdp.epsilon(ja.PoissonSubsampledGaussian(s, 0.01), 1000, 1e-5) for s in (1.0, 2.0)]
    np.testing.assert_allclose(found[:2], expected, rtol=1e-5)
    assert np.all(np.isinf(found[2:]))


def test_nothing_and_infinite_losses():
    assert gdp.mu(ja.PoissonSubsampledGaussian(1.0, 0.01), 0) == 0
    assert gdp.mu(ja.ApproximateDP(0.1, 1e-3), 10) == np.inf
    assert gdp.mu(ja.Gaussian(0.0), 1) == np.inf


def test_methods_are_checked():
    with pytest.raises(ValueError, match="no closed form for Laplace"):
        gdp.mu(ja.Laplace(1.0), 1, method="small_rate")
    with pytest.raises(ValueError, match="method = 'other'"):
        gdp.mu(ja.Laplace(1.0), 1, method="other")
