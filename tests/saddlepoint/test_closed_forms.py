"""Closed forms of one run, and of plain Gaussian ones, against mpmath: inequalities apart from tightness."""

import jax
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import draws, program

import jaxacct as ja


def hockey_stick(p, q, x, epsilon):
    """P - e^epsilon Q of the half line above x, in 60 digits; p and q are lists of (weight, upper tail)."""
    above = sum(weight * tail(x) for weight, tail in p)
    return above - mp.exp(epsilon) * sum(weight * tail(x) for weight, tail in q)


def normal(center, scale, side=1):
    """The mass of a normal law above x, or below it."""
    return lambda x: mp.ncdf(side * (center - x) / scale)


def sampled_truth(s, q, epsilon, removes):
    with mp.workdps(60):
        s, q, e = mp.mpf(s), mp.mpf(q), mp.mpf(epsilon)
        side, none, one = 1 if removes else -1, mp.mpf(0), mp.mpf(1)
        base = [(one, normal(none, s, side))]
        mixture = [(1 - q, normal(none, s, side)), (q, normal(one, s, side))]
        level = mp.exp(e) if removes else mp.exp(-e)
        if level <= 1 - q:
            return mp.mpf(0)
        x = s**2 * mp.log((level - (1 - q)) / q) + mp.mpf(1) / 2
        return hockey_stick(mixture, base, x, e) if removes else hockey_stick(base, mixture, x, e)


def settings(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        s, q = float(np.exp(rng.uniform(-3, 4))), float(10 ** rng.uniform(-12, 0)) if rng.random() < 0.9 else 1.0
        yield s, q, float(np.exp(rng.uniform(-12, 3.5)))


@pytest.mark.parametrize("relation", ["remove", "add"])
def test_delta_of_one_sampled_gaussian(relation):
    worst = 0.0
    for s, q, epsilon in settings(150, 1):
        bounds = ja.saddlepoint.delta(ja.PoissonSubsampledGaussian(s, q), 1, epsilon, relation=relation)
        truth = sampled_truth(s, q, epsilon, relation == "remove")
        assert bounds.lower <= truth <= bounds.upper, (s, q, epsilon)
        if truth > 1e-300:
            worst = max(worst, float((bounds.upper - bounds.lower) / truth))
    assert worst < 1e-8


@pytest.mark.parametrize("relation", ["remove", "add"])
def test_epsilon_of_one_sampled_gaussian(relation):
    for s, q, epsilon in settings(draws(15, 40), 2):
        delta = float(sampled_truth(s, q, epsilon, relation == "remove"))
        if not 1e-290 < delta < 1:
            continue
        mechanism = ja.PoissonSubsampledGaussian(s, q)
        bounds = ja.saddlepoint.epsilon(mechanism, 1, delta, relation=relation)
        # delta falls: at the upper end it is at most delta, at the lower one at least.
        removes = relation == "remove"
        assert (
            sampled_truth(s, q, bounds.upper, removes)
            <= delta
            <= sampled_truth(s, q, bounds.lower, removes) * (1 + mp.mpf(2) ** -52)
        )


def laplace_truth(scale, epsilon):
    return -mp.expm1((mp.mpf(epsilon) - 1 / mp.mpf(scale)) / 2)


def test_other_kinds_of_loss():
    rng = np.random.default_rng(3)
    for _ in range(draws(10, 30)):
        scale, share = float(np.exp(rng.uniform(-2, 3))), float(rng.uniform(0.05, 0.95))
        epsilon = share / scale
        with mp.workdps(60):
            truth = laplace_truth(scale, epsilon)
            q = float(10 ** rng.uniform(-6, 0))
            # P - e^eps Q of a sampled pair is q times the plain one at log(1 + (e^eps - 1)/q).
            inner = mp.log(1 + mp.expm1(mp.mpf(q) * epsilon) / mp.mpf(q))
            sampled = mp.mpf(q) * laplace_truth(scale, inner)
            p, other = rng.dirichlet(np.ones(4), 2)
            exact = [mp.mpf(float(v)) for v in p], [mp.mpf(float(v)) for v in other]
            finite = sum(max(a - mp.exp(mp.mpf(epsilon)) * b, mp.mpf(0)) for a, b in zip(*exact, strict=True))
        for bounds, value in (
            (ja.saddlepoint.delta(ja.Laplace(scale), 1, epsilon), truth),
            (ja.saddlepoint.delta(ja.PoissonSubsampledLaplace(scale, q), 1, q * epsilon, relation="remove"), sampled),
            (ja.saddlepoint.delta(ja.DiscretePair(p, other), 1, epsilon, relation="remove"), finite),
        ):
            assert bounds.lower <= value <= bounds.upper
            assert bounds.upper - bounds.lower <= 1e-7 * bounds.upper + 1e-14


def test_one_run_of_laplace_noise_is_known_to_all_digits():
    rng = np.random.default_rng(5)
    for _ in range(draws(20, 100)):
        scale, share = float(np.exp(rng.uniform(-4, 30))), float(rng.uniform(0, 1))
        with mp.workdps(60):
            epsilon = float(share / mp.mpf(scale))
            delta = laplace_truth(scale, epsilon)
            level = float(laplace_truth(scale, mp.mpf(epsilon) / 2))
            sharp = 1 / mp.mpf(scale) + 2 * mp.log(1 - mp.mpf(level))
        for relation in ("remove", "add"):
            bounds = ja.delta(ja.Laplace(scale), 1, epsilon, relation=relation)
            assert bounds.lower <= delta <= bounds.upper
            assert bounds.upper - bounds.lower <= 1e-14 * (delta + 1 / mp.mpf(scale))
            bounds = ja.epsilon(ja.Laplace(scale), 1, level, relation=relation)
            assert bounds.lower <= sharp <= bounds.upper
            assert (bounds.upper - bounds.lower) * scale < 2e-14


def test_plain_gaussians_are_one():
    rng = np.random.default_rng(4)
    for _ in range(draws(8, 20)):
        noises, counts = np.exp(rng.uniform(-1, 8, 3)), rng.integers(1, 10**6, 3)
        with mp.workdps(60):
            mu = mp.sqrt(sum(int(k) / mp.mpf(float(s)) ** 2 for s, k in zip(noises, counts, strict=True)))
            epsilon = float(mu * rng.uniform(0, 4))
            truth = mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)
        bounds = ja.saddlepoint.delta(tuple(map(ja.Gaussian, noises)), tuple(counts), epsilon)
        assert bounds.lower <= truth <= bounds.upper
        assert bounds.gap < 1e-9


def test_the_closed_form_holds_in_traces_and_has_slopes():
    def upper(noise):
        return ja.saddlepoint.epsilon(ja.PoissonSubsampledGaussian(noise, 0.01), 1, 1e-5, relation="remove").upper

    with jax.enable_x64(True):
        value, slope = program(jax.value_and_grad(upper))(1.0)
    assert float(value) == pytest.approx(upper(1.0), rel=1e-12)
    assert float(slope) == pytest.approx((upper(1.0001) - upper(0.9999)) / 2e-4, rel=1e-5)
    plain = jax.vmap(lambda noise: ja.saddlepoint.epsilon(ja.Gaussian(noise), 262_144, 1e-5).upper)(
        np.array([256.0, 512.0])
    )
    assert float(plain[1]) == pytest.approx(4.37717809568, rel=1e-11)
    assert ja.epsilon(ja.Gaussian(512.0), 262_144, 1e-5).gap < 1e-12


def test_no_bracket_of_one_run_is_upside_down():
    """A bracket whose upper end is infinite has not converged, whatever its width is."""
    for accountant in (ja, ja.saddlepoint):
        unknown = jax.jit(lambda noise: accountant.epsilon(ja.Gaussian(noise), 1, 1e-5))(0.0)  # noqa: B023
        assert np.asarray(unknown.upper) == np.inf
        assert not unknown.converged


def test_ends_of_the_range_of_plain_gaussians():
    for given in (0.0, 1e-307, 1 - 2.0**-53):
        bounds = ja.epsilon(ja.Gaussian(1.0), 1, given)
        with jax.enable_x64(True):
            traced = jax.jit(lambda delta: ja.epsilon(ja.Gaussian(1.0), 1, delta))(given)
            traced = jax.tree.map(np.asarray, traced)
        for found in (bounds, traced):
            assert found.lower <= found.upper
            assert (found.upper == np.inf) == (given == 0)
            assert found.converged
    mass = ja.delta(ja.Gaussian(1.0), 1, np.inf)
    assert mass.lower == mass.upper == 0
    for invalid in ((-1.0, 1, 1e-5), (1.0, 0.5, 1e-5), (1.0, -1, 1e-5), (1.0, 1, 1.5), (np.nan, 1, 1e-5)):
        bounds = jax.jit(lambda s, k, d: ja.epsilon(ja.Gaussian(s), k, d))(*invalid)
        assert np.asarray(bounds.upper) == np.inf
        assert not bounds.converged
    for idle in ((0.0, 0, 1e-5), (np.inf, 3, 1e-5)):
        assert np.asarray(jax.jit(lambda s, k, d: ja.epsilon(ja.Gaussian(s), k, d))(*idle).upper) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-6, 1e-9])
def test_derivatives_next_to_the_largest_loss(delta):
    """Of one Laplace run epsilon is 1/b + 2 log(1 - delta); sampled ones have the slopes of their differences."""
    epsilon = lambda b, d: ja.saddlepoint.epsilon(ja.Laplace(b), 1, d).estimate  # noqa: E731
    by_scale, by_delta = jax.grad(epsilon, argnums=(0, 1))(1.25, delta)
    np.testing.assert_allclose(by_scale, -1 / 1.25**2, rtol=1e-4)
    np.testing.assert_allclose(by_delta, -2 / (1 - delta), rtol=1e-4)
    sampled = lambda b: ja.saddlepoint.epsilon(ja.PoissonSubsampledLaplace(b, 0.3), 1, delta)  # noqa: E731
    slope = jax.grad(lambda b: sampled(b).estimate)(1.0)
    step = 1e-3 * delta
    found = [sampled(1.0 + sign * step) for sign in (1, -1)]
    doubt = sum(float(bounds.gap) for bounds in found) / (2 * step)
    assert abs(slope - (found[0].estimate - found[1].estimate) / (2 * step)) < 1e-3 + doubt
