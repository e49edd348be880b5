"""Exponential mechanisms against exact divergences, adaptive and not; by NumPy, apart from one composition each."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import cases

import jaxacct as ja
from jaxacct import register_dataclass
from jaxacct.composition import directed_parts
from jaxacct.convert import bounded_range_to_delta, bounded_range_to_epsilon
from jaxacct.mechanisms.approximate_dp import bounded_range_pair
from jaxacct.mechanisms.bounded_range import RangeBlock, without_choice
from jaxacct.numerics.precision import scope


def profile(x, span):
    """The closed form of one run, at epsilons of either sign."""
    inside = np.clip(x, -span, span)
    single = np.expm1((inside - span) / 2) ** 2 / -math.expm1(-span)
    return np.where(x < -span, -np.expm1(np.minimum(x, 0.0)), np.where(x > span, 0.0, single))


def two_runs(x, span):
    """The worst adaptive delta of two runs, by many values of the first one's t."""
    t = np.linspace(0.0, span, 20_001)
    high = -np.expm1(t - span) / -math.expm1(-span)
    return np.max(high * profile(x - t, span) + (1 - high) * profile(x - t + span, span))


@pytest.mark.parametrize("seed", range(8))
def test_one_run_is_within_the_profile_and_the_rényi_curve(seed):
    rng = np.random.default_rng(seed)
    epsilon, scores = rng.uniform(0.05, 4.0), rng.normal(size=5)
    other = scores + rng.uniform(-1, 1, size=5)
    p, q = (np.exp(epsilon * s / 2) / np.sum(np.exp(epsilon * s / 2)) for s in (scores, other))
    x = np.linspace(0.0, 1.2 * epsilon, 30)
    assert np.all(np.sum(np.maximum(p - np.exp(x)[:, None] * q, 0), axis=1) <= profile(x, epsilon) + 1e-15)
    orders = np.array([1.01, 1.5, 2.0, 8.0, 100.0])
    exact = [math.log(np.sum(p**a * q ** (1 - a))) / (a - 1) for a in orders]
    curve = np.asarray(ja.rdp.curve(ja.ExponentialMechanism(epsilon), orders))
    assert np.all(exact <= curve)
    assert np.all(curve <= np.minimum(orders * epsilon**2 / 8, epsilon) * (1 + 2e-10))


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 5.0, 60.0])
def test_rényi_curves_are_those_of_the_worst_two_losses(epsilon):
    mpmath = pytest.importorskip("mpmath")
    orders = np.array([1.01, 2.0, 30.0])
    curve = np.asarray(ja.rdp.curve(ja.ExponentialMechanism(epsilon), orders))
    with mpmath.workdps(50):
        e = mpmath.mpf(epsilon)
        for order, found in zip(orders, curve, strict=True):
            a = mpmath.mpf(float(order))

            def log_moment(t, a=a):
                high = (1 - mpmath.exp(t - e)) / (1 - mpmath.exp(-e))
                return mpmath.log(high * mpmath.exp((a - 1) * t) + (1 - high) * mpmath.exp((a - 1) * (t - e))) / (a - 1)

            best = mpmath.log((a - 1) * (1 - mpmath.exp(-a * e)) / (a * mpmath.exp(-e) * (1 - mpmath.exp((1 - a) * e))))
            worst = log_moment(min(max(best, 0), e))
            assert worst <= found <= worst * mpmath.mpf(1 + 1e-4)
            assert all(log_moment(e * i / 50) <= found for i in range(50))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("span", "x"), [(0.5, 0.1), (1.0, 0.7), (3.0, 2.0), (0.01, 0.001)])
def test_two_runs_are_those_of_the_best_adversary(span, x):
    bounds, worst = bounded_range_to_delta(span, 2, x), two_runs(x, span)
    assert bounds.lower <= worst <= bounds.upper <= worst * (1 + 2e-3)
    assert worst <= ja.prv.delta(ja.ExponentialMechanism(span), 2, x).upper <= bounds.upper * (1 + 1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("span", "x"), [(0.5, 0.1), (1.0, 0.7), (3.0, 2.0), (0.01, 0.001), (2.0, 3.9)])
def test_a_block_of_two_is_bounded_from_both_sides(span, x):
    (pair,) = RangeBlock(span, 2.0).dominating_pairs()
    with scope():
        lower, upper = map(float, jax.jit(lambda pair, x: pair.one_run(x))(pair, x))
    worst = two_runs(x, span)
    # The grid of the reference misses the best t by as little as this.
    assert lower <= worst * (1 + 1e-6)
    assert worst <= upper
    assert upper - lower <= 1e-2 * upper


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", cases(range(6), range(6, 12)))
def test_a_lower_bound_is_below_what_curves_prove(seed):
    rng = np.random.default_rng(seed)
    span, delta = math.exp(rng.uniform(-5, 1)), 10.0 ** rng.uniform(-9, -3)
    steps = int(min(math.exp(rng.uniform(0, 6)), 400 / span**2))
    found = ja.epsilon(ja.ExponentialMechanism(span), steps, delta)
    assert 0 < found.lower <= ja.rdp.epsilon(ja.ExponentialMechanism(span), steps, delta)
    assert found.lower <= bounded_range_to_epsilon(span, steps, delta).upper
    assert found.gap < (1e-3 if steps <= 128 and span * span * steps < 500 else 2e-2)


@pytest.mark.exhaustive
def test_adaptivity_costs():
    """More than any choice made beforehand: the paper's point."""
    t = np.linspace(0.0, 0.5, 2001)
    high = -np.expm1(t - 0.5) / -math.expm1(-0.5)
    first, second = (np.meshgrid(t, t), np.meshgrid(high, high))
    (t1, t2), (p1, p2) = first, second
    total = sum(
        a * b * np.maximum(-np.expm1(0.1 - x), 0.0)
        for a, x1 in ((p1, t1), (1 - p1, t1 - 0.5))
        for b, x2 in ((p2, t2), (1 - p2, t2 - 0.5))
        for x in [x1 + x2]
    )
    assert np.max(total) < two_runs(0.1, 0.5) * (1 - 0.02)
    assert bounded_range_to_delta(0.5, 2, 0.1).lower <= np.max(total) + 1e-12


@pytest.mark.first_tier("0.5-10-1e-06")
@pytest.mark.parametrize(("span", "steps", "delta"), [(0.1, 100, 1e-6), (0.5, 10, 1e-6), (1.0, 30, 1e-5)])
def test_epsilon_and_delta_invert_each_other_below_rényi(span, steps, delta):
    bounds = bounded_range_to_epsilon(span, steps, delta)
    assert bounds.lower <= bounds.upper <= ja.rdp.epsilon(ja.ExponentialMechanism(span), steps, delta)
    assert bounds.gap < 1e-2
    assert bounded_range_to_delta(span, steps, bounds.upper).upper <= delta * (1 + 1e-9)
    assert bounded_range_to_delta(span, steps, bounds.lower * (1 - 1e-9)).lower >= delta * (1 - 1e-6)
    assert bounds.lower <= ja.epsilon(ja.ExponentialMechanism(span), steps, delta).upper <= bounds.upper * (1 + 1e-3)


@pytest.mark.exhaustive
def test_beside_others_blocks_cost_less_than_curves():
    run = (ja.ExponentialMechanism(0.1), ja.Gaussian(20.0)), (100, 10)
    found, mesh = ja.epsilon(*run, 1e-6), ja.prv.epsilon(*run, 1e-6)
    assert mesh.lower <= found.upper < 0.95 * ja.rdp.epsilon(*run, 1e-6)
    assert found.lower <= mesh.upper


@pytest.mark.exhaustive
def test_many_different_ranges_cost_no_more_than_curves_say():
    """Of these each has its own pair alone; where curves prove less it is the estimate."""
    run = ja.ExponentialMechanism(np.linspace(0.5, 0.8, 40)), np.ones(40)
    found = ja.epsilon(*run, 1e-6)
    assert found.estimate == found.upper == ja.rdp.epsilon(*run, 1e-6)
    assert 0.9 * found.upper < found.lower
    assert not found.converged


def best_adversary(spans, beside, x):
    """Returns the largest delta at x of runs of ranges after one run of losses and masses, their t's on a fine mesh.

    Each t is chosen by the losses so far. The last run is known in closed form; of the one before it, and of no other,
    all t's of a mesh are tried.
    """

    def last(y, e):
        inside = np.clip(y, -e, e)
        return np.where(y <= -e, -np.expm1(np.minimum(y, 0.0)), np.expm1((inside - e) / 2) ** 2 / -math.expm1(-e))

    losses, masses = beside
    if len(spans) == 1:
        return float(np.sum(masses * last(x - losses, spans[0])))
    (first, second), t = spans, np.linspace(1e-6, spans[0] - 1e-6, 800)[:, None]
    high = -np.expm1(t - first) / -math.expm1(-first)
    left = x - np.asarray(losses)[None]
    values = high * last(left - t, second) + (1 - high) * last(left - t + first, second)
    return float(np.sum(masses * np.max(values, axis=0)))


@pytest.mark.exhaustive
@pytest.mark.first_tier("0")
@pytest.mark.parametrize("seed", cases(range(6), range(6, 12)))
def test_lower_ends_beside_others_are_attained(seed):
    """Runs of one range, or of two, after randomized response: brackets hold the delta of the best adversary."""
    rng = np.random.default_rng(seed)
    told, known = 0, 0
    for _ in range(4):
        r, e = np.exp(rng.uniform(-2, 1, 2))
        other = e if rng.random() < 0.5 else e * math.exp(rng.uniform(-0.3, 0.3))
        few = rng.random() < 0.3
        spans = (e,) if few else (e, other)
        p = math.exp(r) / (1 + math.exp(r))
        x = rng.uniform(0.05, 0.8) * (r + sum(spans))
        # Of two different ranges either may come first, and before or after the response: any order is an adversary.
        truth = best_adversary(spans, (np.array([r, -r]), np.array([p, 1 - p])), x)
        run = (ja.RandomizedResponse(r), *map(E, spans)), (1,) * (1 + len(spans))
        for found in (ja.delta(*run, x), ja.prv.delta(*run, x, points=4096)):
            assert truth <= found.upper * (1 + 1e-9)
            if other == e or few:  # all adversaries are known: those of one block
                assert found.lower <= truth * (1 + 1e-4) + 1e-15
                told, known = told + (found.lower > 0.9 * truth), known + 1
    assert told >= known / 2


E, DELTA = ja.ExponentialMechanism, 1e-6

SPELLINGS = {
    "its own tolerance": lambda e, k: ja.epsilon(E(e), k, DELTA, tolerance=1e-3),
    "points": lambda e, k: ja.epsilon(E(e), k, DELTA, points=1024),
    "float64": lambda e, k: ja.epsilon(E(e), k, DELTA, arithmetic="float64"),
    "relation": lambda e, k: ja.epsilon(E(e), k, DELTA, relation="replace"),
    "an array of one": lambda e, k: ja.epsilon(E(np.array([e])), np.array([k]), DELTA),
    "an array of equals": lambda e, k: ja.epsilon(E(np.full(k, e)), np.ones(k), DELTA),
    "a tuple of one": lambda e, k: ja.epsilon((E(e),), (k,), DELTA),
    "a tuple of equals": lambda e, k: ja.epsilon((E(e), E(e)), (k - 3, 3), DELTA),
    "a tuple of arrays": lambda e, k: ja.epsilon((E(e), E(np.array([e, e]))), (k - 3, np.array([1, 2])), DELTA),
    "beside nothing": lambda e, k: ja.epsilon((E(0.0), E(e), ja.Gaussian(np.inf)), (9, k, 4), DELTA),
    "curve": lambda e, k: jax.tree.map(lambda leaf: leaf[0], ja.curve(E(e), k, deltas=[DELTA])),
    "a traced delta": lambda e, k: jax.jit(lambda at: ja.epsilon(E(e), k, at))(DELTA),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("span", "steps"), [(0.8, 40)])
def test_one_number_by_every_spelling(span, steps):
    """No option, and no way to write the composition, decides which theorem bounds it."""
    told, best = ja.epsilon(E(span), steps, DELTA), bounded_range_to_epsilon(span, steps, DELTA)
    assert best.lower <= told.upper <= best.upper * (1 + 1e-3)
    assert told.converged
    for name, asked in SPELLINGS.items():
        found = asked(span, steps)
        assert found.converged, name
        assert found.estimate == pytest.approx(told.estimate, rel=1e-7), name
        assert told.lower <= found.upper * (1 + 1e-7), name
        assert found.lower <= told.upper * (1 + 1e-7), name
    # A block is known to 2e-4, from below by adversaries on a mesh: the same bracket, and no ten digits.
    exact = ja.saddlepoint.epsilon(E(span), steps, DELTA)
    np.testing.assert_allclose([exact.lower, exact.upper], [told.lower, told.upper], rtol=1e-9)
    assert not exact.converged


@pytest.mark.exhaustive
@pytest.mark.parametrize("span", cases([0.8], [0.02, 4.0]))
def test_one_number_traced_too(span):
    """A range takes minutes: its blocks are composed anew for each lane, count and half."""
    traced = jax.jit(jax.vmap(lambda e, k: ja.epsilon(E(e), k, DELTA), in_axes=(None, 0)))
    rows = jax.jit(lambda e, k: ja.epsilon(E(e), k, DELTA))
    steps = np.array(cases([12], [1, 2, 40, 300]))
    with jax.enable_x64(True):
        found = traced(np.float64(span), steps)
        halves = [rows(np.full(2, span), np.array([k - k // 2, k // 2])) for k in steps.tolist()]
    for i, k in enumerate(steps.tolist()):
        told, mesh = ja.epsilon(E(span), k, DELTA), ja.prv.epsilon(E(span), k, DELTA)
        ends = [(told.lower, told.upper), (found.lower[i], found.upper[i]), (halves[i].lower, halves[i].upper)]
        if told.lower > 0:
            ends.append((mesh.lower, mesh.upper))
        else:  # Rényi curves prove less than blocks cost: `ja.epsilon` gives the bound of curves, the mesh of blocks.
            assert (span, k) == (4, 300)
            assert told.upper == ja.rdp.epsilon(E(span), k, DELTA) < mesh.lower
            assert mesh.upper <= told.upper * (1 + 3e-3)
        assert max(low for low, _ in ends) <= min(high for _, high in ends) * (1 + 1e-7), (k, ends)
        assert max(high for _, high in ends) <= min(high for _, high in ends) * (1 + 2e-3), (k, ends)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("span", "steps"), [(0.5, 2), (0.8, 40), (3.0, 7), (0.05, 128)])
def test_what_is_attained_is_below(span, steps):
    """All runs with one t attain their delta; wherever it is asked for, the block's is no less, and not much more."""
    epsilons = np.linspace(0.1, 0.9, 3) * ja.epsilon(E(span), steps, 1e-6).upper
    upper = ja.curve(E(span), steps, epsilons=epsilons).upper
    t = span * np.arange(1, 256)[:, None] / 256
    high = -np.expm1(t - span) / -math.expm1(-span)
    k = np.arange(steps + 1)
    logs = np.array([math.lgamma(i + 1) for i in range(steps + 1)])
    mass = np.exp(logs[-1] - logs - logs[::-1] + (steps - k) * np.log(high) + k * np.log1p(-high))
    for at, bound in zip(epsilons, upper, strict=True):
        attained = np.max(np.sum(mass * -np.expm1(np.minimum(at - (steps * t - k * span), 0.0)), axis=1))
        assert attained * (1 - 1e-9) <= bound <= 1.25 * attained


@pytest.mark.exhaustive
def test_ends():
    assert bounded_range_to_delta(0.5, 3, 1.5).upper == 0.0
    assert ja.epsilon(ja.ExponentialMechanism(0.5), 3, 0.0).upper == pytest.approx(1.5, rel=1e-9)
    assert ja.epsilon(ja.ExponentialMechanism(0.0), 3, 1e-6).upper == 0.0
    assert ja.epsilon(ja.ExponentialMechanism(0.01), 5000, 1e-6).upper < 5
    assert ja.delta(ja.ExponentialMechanism(0.5), 2, 0.0).upper <= bounded_range_to_delta(0.5, 2, 0.0).upper
    assert ja.delta(ja.ExponentialMechanism(0.5), 2, math.inf).upper == 0.0
    for wrong in (lambda: bounded_range_to_delta(-1.0, 3, 1.0), lambda: bounded_range_to_delta(1.0, 3000, 1.0)):
        with pytest.raises(ValueError, match="give"):
            wrong()


@pytest.mark.parametrize("span", [1e-6, 1.0, 8 / 3, 40.0, 100.0, 700.0])
def test_distribution_functions_err_by_what_their_pair_says(span):
    """At both ends of the losses, where their distance from the end is rounded to a share of the other end."""
    y = np.concatenate(
        [span * side * (1 - np.array([0, 1e-15, 1e-12, 1.65e-4, 1e-3, 0.3])) for side in (-1, 1)] + [[0]]
    )
    with jax.enable_x64(True):
        pair = bounded_range_pair(span)
        found = [np.asarray(f(jnp.asarray(y), jnp.asarray(span))) for f in (pair.cdf_p, pair.survival_q)]
        error = float(pair.value_error)
    with mp.workdps(60):
        e = mp.mpf(span)
        for at, below, above in zip(y, *found, strict=True):
            truth = mp.expm1((mp.mpf(float(at)) + e) / 2) / mp.expm1(e)
            assert abs(mp.mpf(float(below)) - truth) <= error, (at, "cdf_p")
            truth = mp.expm1((e - mp.mpf(float(at))) / 2) / mp.expm1(e)
            if truth > 1e-300:
                assert abs(mp.mpf(float(above)) - truth) <= error * truth * (1 + abs(mp.log(truth))), (at, "survival_q")


@pytest.mark.parametrize("span", [20.0, 36.5, 40.0, 100.0])
def test_long_ranges_have_numbers_on_both_sides(span):
    bounds = bounded_range_to_delta(span, 2, 1.0)
    assert 0 <= bounds.lower <= bounds.upper <= 1


def test_no_lower_end_of_a_mesh_is_that_of_the_pairs_product():
    """Rényi curves prove that no adversary of 400 wide runs has a delta near 1."""
    assert ja.prv.delta(E(20.0), 400, 7000.0).lower <= ja.rdp.delta(E(20.0), 400, 7000.0) * (1 + 1e-9)


@pytest.mark.exhaustive
def test_no_lower_end_is_that_of_the_pairs_product():
    """Likewise beside others, of many ranges that differ, and of epsilon."""
    many = E(np.linspace(2.0, 2.0001, 20)), np.ones(20)
    for run, x in ((((E(20.0), ja.Gaussian(5.0)), (400, 10)), 7000.0), (many, 30.0)):
        assert ja.prv.delta(*run, x).lower <= ja.rdp.delta(*run, x) * (1 + 1e-9)
    assert ja.prv.epsilon(E(20.0), 400, 0.5).lower <= ja.rdp.epsilon(E(20.0), 400, 0.5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("runs", [4, 33, 64, 100, 128])
def test_long_blocks_beside_others_are_known_from_below(runs):
    for beside, span, at in ((ja.Gaussian(2.0), 0.1, 1e-6), (ja.RandomizedResponse(0.5), 0.3, 1e-3)):
        found = ja.epsilon((beside, E(span)), (1, runs), at)
        assert 0 < found.gap < 2e-2


@register_dataclass
@dataclass(frozen=True)
class Chosen(ja.ExponentialMechanism):
    """A class of a user's, which adds nothing."""


def test_a_derived_class_is_a_range_as_well():
    one, other = (ja.epsilon(tuple(kind(e) for e in (1.0, 1.001)), (1, 1), 0.1) for kind in (E, Chosen))
    assert (one.lower, one.upper) == (other.lower, other.upper)


def test_a_search_by_scores_says_nothing_from_below():
    """No scores lose more than range and law allow: the log of 2.2 by the order of the results, and half of 1."""
    search = ja.RepeatAndSelect(E(1.0), 1, ja.selection.Geometric(10.0))
    assert ja.delta(search, 1, 1.5).lower == 0


def test_laws_of_what_is_composed_with_itself_are_attained_together():
    """Of runs in a game not each has its losses chosen by those of all others, as a run by itself would."""
    span, runs, x = 0.25, 20, 1.0
    worst = float(ja.delta(E(span), runs, x).upper)
    with scope():
        ((pair, _),) = directed_parts(E(span), 1.0, "add_or_remove")[0]
        single, shared = (
            jax.tree.map(lambda leaf: leaf[0], one)
            for one in (pair, without_choice(pair, runs * float(pair.spread[0])))
        )
        laws = [jax.jit(lambda one: one.discretize(1024, jnp.asarray(20.0)))(one) for one in (single, shared)]
    alone, together = (sum_above(np.asarray(law.losses[1]), np.asarray(law.masses[1]), runs, x) for law in laws)
    assert alone > worst
    assert 0.7 * worst < together <= worst


def sum_above(losses, masses, runs, x):
    """Returns about the delta of ``runs`` runs of a law, on a mesh to whose points below losses are lowered."""
    step = 1e-3
    places = np.floor(losses / step).astype(int)
    least = places.min()
    single = np.bincount(places - least, masses)
    total = np.ones(1)
    for _ in range(runs):
        total = np.convolve(total, single)
    y = (runs * least + np.arange(len(total))) * step
    return float(np.sum(np.maximum(-np.expm1(np.minimum(x - y, 0.0)), 0.0) * total))
