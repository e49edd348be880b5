"""Tests that a pair made of a bounded privacy profile dominates it, and is that of the hull."""

import jax
import numpy as np
import pytest

from jaxacct.mechanisms.by_profile import dominate
from jaxacct.numerics.precision import scope

EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 6.0, 99)])
RUN = jax.jit(dominate)


def profile(p, q, epsilon):
    return np.maximum(p - np.exp(epsilon) * q, 0.0).sum()


def laws(seed, spread):
    """Returns P and Q on a few outcomes, rare ones and infinite losses either way among them."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(12, spread))
    q = rng.dirichlet(np.full(12, spread))
    p[0] = q[1] = 0.0
    p[2], q[3] = 1e-30, 1e-40
    return p / p.sum(), q / q.sum()


def dominating(forth, back):
    with scope():
        return [np.asarray(each) for each in RUN(EPSILONS, np.asarray(forth), np.asarray(back))]


def check(p, q, losses):
    """Asserts that these are two laws, and of these losses."""
    assert min(p.min(), q.min()) >= 0
    assert abs(p.sum() - 1) < 1e-13
    assert abs(q.sum() - 1) < 1e-13
    inside = np.isfinite(losses) & (q > 0)
    np.testing.assert_allclose(p[inside], np.exp(losses[inside]) * q[inside], rtol=1e-13)
    assert p[-1] == 0 == q[0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("slack", [0.0, 0.3])
def test_it_dominates_everywhere_and_is_below_every_bound(seed, slack):
    p, q = laws(seed, [0.3, 1.0, 5.0][seed % 3])
    rng = np.random.default_rng(seed)
    forth, back = (
        np.minimum([profile(*way, e) * (1 + slack * rng.random()) for e in EPSILONS], 1.0) for way in ((p, q), (q, p))
    )
    above, below, losses, _ = dominating(forth, back)
    check(above, below, losses)
    for epsilon in [*EPSILONS, *-EPSILONS, *rng.uniform(-9, 9, 40)]:
        assert profile(above, below, epsilon) >= profile(p, q, epsilon) * (1 - 1e-12)
        assert profile(below, above, epsilon) >= profile(q, p, epsilon) * (1 - 1e-12)
    for epsilon, there, here in zip(EPSILONS, forth, back, strict=True):
        assert profile(above, below, epsilon) <= there * (1 + 2e-7)
        assert profile(below, above, epsilon) <= here * (1 + 2e-7)


def test_what_is_beyond_the_last_point_is_infinite():
    p, q = laws(1, 1.0)
    forth, back = ([profile(*way, e) for e in EPSILONS] for way in ((p, q), (q, p)))
    above, below, losses, _ = dominating(forth, back)
    assert losses[0] == np.inf
    np.testing.assert_allclose(above[0], forth[-1], rtol=1e-10)
    np.testing.assert_allclose(below[-1], back[-1], rtol=1e-10)


def test_halves_that_do_not_meet_are_lowered_to_a_chord():
    bounds = np.full(100, 1.0)
    bounds[60:] = 1e-3
    above, below, losses, _ = dominating(bounds, bounds)
    check(above, below, losses)
    assert 0 < above[losses == 0] < 1e-13
    # The chord between (1/a, 1 - 1/a + h/a) and (a, h).
    a, h = np.exp(EPSILONS[60]), 1e-3
    np.testing.assert_allclose(profile(above, below, 0.0), (a - 1 + 2 * h) / (a + 1), rtol=1e-9)


def test_bounds_that_say_nothing_dominate_everything():
    above, below, *_ = dominating(np.ones(100), np.ones(100))
    assert profile(above, below, 50.0) > 1 - 1e-12
