"""Rare losses that are left out of the contour's integral: what is left, what it misses, and what they come to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import draws

import jaxacct as ja
from jaxacct.composition import directed_parts
from jaxacct.mechanisms import SubsampledGaussianPair
from jaxacct.mechanisms.gaussian import (
    CELL_BEGINS,
    ENDING,
    FLAT_BY,
    FRONTS,
    HEIGHTS,
    WIDEST_END,
    _places,
)
from jaxacct.mechanisms.pair import law_of, moments
from jaxacct.numerics.pytrees import without_axes
from jaxacct.saddlepoint.contour import ends_of, leave_out_marked, rare_beyond, scan_nodes

FINE = 20_000
"""Panels of the truth, sixteen Gauss-Legendre nodes each, over the losses that are kept."""

POINTS, WEIGHTS = np.polynomial.legendre.leggauss(16)


@jax.jit
def look(s, q, removes, place, order, w):
    """Everything that the accountant takes from a law without the losses beyond a place."""
    law = law_of(SubsampledGaussianPair(s, q, removes))
    law = law.without_marked(law.mark(place))
    scan = law.scan()
    known = moments(scan, order)
    window = law.window(order, scan)
    pieces = law.pieces(order, w, window)

    def add(i, total):
        nodes = law.piece(window, i, pieces)
        phases = w * nodes.losses
        weights = jnp.exp(nodes.log_p + order * nodes.losses)
        return total + jnp.stack([jnp.sum(weights * jnp.cos(phases)), jnp.sum(weights * jnp.sin(phases))])

    total = jax.lax.fori_loop(0, pieces, add, jnp.zeros(2))
    missed = jnp.exp(law.log_quadrature_error(order, w, law.step(window, pieces)))
    of_moment = jnp.exp(law.log_quadrature_error(order, 0 * w, scan.places[1] - scan.places[0]))
    nothing = scan.infinite, scan.missing
    return known.value, total, missed, of_moment, law.log_envelope(order, w, scan), law.largest_order(), nothing


@jax.jit
def truth(s, q, removes, place, order, w):
    """The same by a rule of very many nodes: the log of a moment, that of order + iw over it, and what is left out."""
    step = (place + 12) / FINE
    z = (place - step * (jnp.arange(FINE)[:, None] + (POINTS[None] + 1) / 2)).reshape(-1)
    log_weights = jnp.log(step / 2) + jnp.tile(jnp.log(WEIGHTS), FINE)
    log_r = jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + (z - 0.5 / s) / s)
    losses = jnp.where(removes, log_r, -log_r)
    base = -0.5 * z**2 - 0.5 * jnp.log(2 * jnp.pi) + log_weights
    logs = base + jnp.where(removes, log_r, 0.0) + order * losses
    value = jax.nn.logsumexp(logs)
    weights = jnp.exp(logs - value)
    of_w = jnp.stack([jnp.sum(weights * jnp.cos(w * losses)), jnp.sum(weights * jnp.sin(w * losses))])
    p, of_q = (
        1 - jnp.sum(jnp.exp(base + rest)) for rest in (jnp.where(removes, log_r, 0), jnp.where(removes, 0, log_r))
    )
    return value, of_w, p, of_q


def test_where_the_losses_end_on_lines_beside_the_real_one():
    """What bounds the rule's error there, at random points of each line."""
    random = np.random.default_rng(7)
    real, scale = 5.0, WIDEST_END

    def on_line(y):
        a = 1 / (1 + np.exp(y))
        return np.log1p(-a) + a + a**2 / 2 + a**3 / 3, a**4

    y = np.concatenate([random.uniform(-12, 14, 4000), random.uniform(-4, 2, 4000)])
    at, slope = on_line(y)
    with jax.enable_x64(True):
        x = real + scale * (y + FLAT_BY)
        places, log_slope = _places(1.0, real, jnp.asarray(x))
    np.testing.assert_allclose(places, real + scale * at, atol=1e-13)
    np.testing.assert_allclose(log_slope, np.log(slope), atol=1e-12)
    for (line, height, ahead, back, growth), heights, fronts in zip(ENDING.T, HEIGHTS, FRONTS, strict=True):
        found, steep = on_line(y + 1j * line)
        cell = np.maximum(np.searchsorted(CELL_BEGINS, y, side="right") - 1, 0)
        assert np.all(np.abs(found.imag) <= height)
        assert np.all(np.abs(found.imag) <= heights[cell])
        assert np.all(found.real <= fronts[cell])
        assert np.all(found.real - at <= ahead)
        assert np.all(at - found.real <= back)
        below = np.maximum(-at, 0) * np.maximum(found.real - at, 0) * scale**2
        assert np.all(np.log(np.abs(steep) / slope) + below <= growth)
        assert height < 1.2 * np.max(np.abs(found.imag)) + 0.01  # of use, too


def settings(count):
    random = np.random.default_rng(3)
    for _ in range(count):
        s, q = np.exp(random.uniform(np.log([0.5, 1e-5]), np.log([8.0, 0.3])))
        place, removes = random.uniform(4.0, 8.0), bool(random.integers(2))
        spread = q * np.sqrt(np.expm1(1 / s**2))
        yield s, q, removes, place, np.exp(random.uniform(-1, 3)) / max(spread, 0.02), random.uniform(0.1, 20) / spread


@pytest.mark.exhaustive
def test_what_is_kept_is_integrated_to_what_is_said():
    asked, tight = 0, 0
    with jax.enable_x64(True):
        for setting in settings(draws(12, 300)):
            value, found, missed, of_moment, envelope, largest, (infinite, missing) = look(*setting)
            if setting[4] > largest:
                continue
            log_moment, of_w, p, of_q = truth(*setting)
            asked += 1
            assert abs(value - log_moment) <= of_moment + 1e-8
            assert np.hypot(*(found / np.exp(value) - of_w)) <= missed + 1e-8
            assert np.hypot(*of_w) <= np.exp(envelope) + 1e-8
            assert float(infinite) == pytest.approx(float(p), abs=1e-9)
            assert float(missing) == pytest.approx(float(of_q), abs=1e-9)
            tight += missed < 1e-9
    assert tight > 0.5 * asked > 0


@jax.jit
def rare_without(parts, place):
    ((pair, steps),) = without_axes(parts)
    parts, marks = ((pair, steps),), (law_of(pair).mark(place),)
    return rare_beyond(parts, marks, scan_nodes(leave_out_marked(parts, marks)), ends_of(parts))


@pytest.mark.exhaustive
def test_what_is_left_out_is_known_up_to_an_epsilon():
    """By enumeration of two runs: E[(1 - e^(eps - S))+; any run marked] lies between the bounds."""
    s, q, steps = 0.8, 0.01, 2.0
    with jax.enable_x64(True):
        for removes in (True, False):
            parts = directed_parts(ja.PoissonSubsampledGaussian(s, q), steps, "remove" if removes else "add")[0]
            for place in (2.0, 3.0, 5.0):
                rare = rare_without(parts, place)
                z = np.arange(-1600, 2201) / 200  # with an edge at each place
                z = (z[1:] + z[:-1]) / 2
                log_r = np.log1p(q * np.expm1((z - 0.5 / s) / s))
                mass = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * (z[1] - z[0]) * (np.exp(log_r) if removes else 1.0)
                losses = log_r if removes else -log_r
                sums, masses = losses[:, None] + losses, mass[:, None] * mass
                marked = (z[:, None] > place) | (z > place)
                for epsilon in (0.0, 0.01, 0.1, 1.0):
                    exact = np.sum(np.where(marked, masses * np.maximum(-np.expm1(epsilon - sums), 0.0), 0.0))
                    least, more, off = rare.between(epsilon)
                    assert least - off - 2e-5 * exact - 1e-12 <= exact <= (least + more + off) * (1 + 2e-5) + 1e-12
                    known = epsilon <= rare.above if removes else epsilon >= rare.below
                    assert not known or more == 0


FEW = [(2.059, 1.1e-4, 20), (4.288, 3.1e-4, 15), (1.259, 1.99e-3, 25), (3.789, 1.3e-4, 4615), (1.8, 1.3e-4, 2534)]
"""Noise, rate and steps, of few runs of small rates."""


@pytest.mark.first_tier("setting0")
@pytest.mark.parametrize("setting", FEW[: draws(3, 5)])
def test_few_runs_of_small_rates_converge_and_the_referee_agrees(setting):
    mechanism, steps = ja.PoissonSubsampledGaussian(*setting[:2]), setting[2]
    bounds = ja.saddlepoint.epsilon(mechanism, steps, 1e-5)
    assert bounds.converged
    assert bounds.gap < 1e-8
    assert ja.verify.epsilon(mechanism, steps, 1e-5, (bounds.lower, bounds.upper)).status == "PROVED"
    back = ja.saddlepoint.delta(mechanism, steps, bounds.upper)
    assert back.lower <= 1e-5 <= back.upper * (1 + 1e-9)


@pytest.mark.exhaustive
def test_rare_losses_beside_others():
    """Two mechanisms composed, one of them with rare losses, beside the mesh."""
    rare, usual = ja.PoissonSubsampledGaussian(0.9, 3e-4), ja.PoissonSubsampledGaussian(2.0, 0.02)
    exact = ja.saddlepoint.epsilon((rare, usual), (40, 100), 1e-6)
    mesh = ja.prv.epsilon((rare, usual), (40, 100), 1e-6)
    assert exact.converged
    assert mesh.lower <= exact.upper
    assert exact.lower <= mesh.upper


MISSING = [(0.6, 1e-3, 30, 0.0), (1.0, 1e-3, 10, 0.0), (0.6, 1e-4, 3, 0.5)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", MISSING[: draws(1, 3)])
def test_rare_losses_beside_a_run_that_may_lose_minus_infinity(setting):
    """Where P has mass the pair beside them loses log 2 always, so it moves epsilon by that and does nothing else."""
    *fields, steps, epsilon = setting
    beside = ja.DiscretePair(np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5]))
    rare = ja.PoissonSubsampledGaussian(*fields)
    alone = ja.prv.delta(rare, steps, epsilon, relation="remove")
    both = ja.saddlepoint.delta((rare, beside), (steps, 1), epsilon + np.log(2), relation="remove")
    assert both.lower <= alone.upper * (1 + 1e-9)
    assert alone.lower <= both.upper * (1 + 1e-9)


@pytest.mark.exhaustive
def test_most_settings_of_few_runs_converge():
    random = np.random.default_rng(0)
    count = draws(200, 5000)
    noise, rate, steps = np.exp(random.uniform(np.log([0.8, 1e-4, 10]), np.log([8.0, 0.01, 1000]), (count, 3))).T

    def bounds(noise, rate, steps):
        return ja.saddlepoint.epsilon(ja.PoissonSubsampledGaussian(noise, rate), steps, 1e-5)

    found = jax.jit(jax.vmap(bounds))(noise, rate, np.round(steps))
    assert np.mean(found.converged) >= 0.98
