"""The exact composer over nodes: every bound as an inequality, and its brackets against known truths."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.mechanisms.gaussian import SubsampledGaussianPair
from jaxacct.mechanisms.nodes import (
    CELL,
    NARROWER,
    PIECES,
    SCAN,
    Wishes,
    exact_steps,
    log_fading,
    log_left_out,
    log_missed,
    over_sum,
)
from jaxacct.numerics.precision import scope
from jaxacct.saddlepoint import exact

TRUTHS = Path(__file__).parents[1] / "data" / "delta_truth.json"
U = 2.0**-53

SETTINGS = [(1.0, 0.01, True), (0.5, 0.2, True), (3.0, 0.001, False), (0.7, 0.6, False), (2.0, 1.0, True)]
"""Noise, rate, and whether an example is removed."""

MARKED = [(1.0, 0.01, 1.0), (0.5, 0.001, 2.0)]
"""Noise and rate of removed examples, and the loss from which on outcomes are marked."""


@pytest.fixture(autouse=True)
def float64():
    with scope():
        yield


def ask(runs=100.0, loss=np.inf, nats=16.0):
    return Wishes(*map(jnp.float64, (nats, runs, loss, -np.inf)))


@jax.jit
def laws(s, q, removes, asked):
    """Few nodes, so that what a rule misses is seen, and many."""
    pair = SubsampledGaussianPair(s, q, removes)
    return pair.nodes(128, asked), pair.nodes(exact.NODES, asked)


def window(s, q, removes, nats):
    """Where the law's nodes begin and end, without marks."""
    reach = np.sqrt(2 * (nats + 34))
    return (1 / s if removes and q == 1 else 0.0) - reach, np.sqrt(2 * nats) + 8.7 + 1 / s if removes else reach


def places(low, high, size):
    """The nodes' places, as the law lays them."""
    return np.asarray(exact_steps(jnp.float64(low), jnp.float64(high), size)[0])


def ratio(s, q, z):
    return 1 - q + q * mpmath.exp((z - 1 / (2 * s)) / s)


def tilted(nodes, order):
    """Weights of cells at an order, those beyond the nodes with them, and all weights."""
    logs = np.asarray(nodes.log_p + order * nodes.losses)
    cumulant = np.log(np.sum(np.exp(logs - logs.max()))) + logs.max()
    weights = np.exp(logs - cumulant)
    outside = log_left_out(nodes, order, cumulant)
    cells = np.max((logs - cumulant).reshape(-1, CELL), -1) + np.log(CELL)
    return weights, jnp.concatenate([cells, outside]), cumulant


def beyond(cells):
    """What cells beyond the nodes have together."""
    return float(jnp.sum(jnp.exp(cells[-len(PIECES) - 1 :])))


# ----------------------------------------------------------------------------------------------------
# What a law gives
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("s", "q", "removes"), SETTINGS)
def test_nodes_are_right_to_their_errors(s, q, removes):
    nodes, _ = laws(s, q, removes, ask())
    z, p, largest = places(*window(s, q, removes, 16.0), 128), mpmath.mpf(0), 0.0
    with mpmath.workdps(50):
        step, ms, mq = mpmath.mpf(float(nodes.step)), mpmath.mpf(s), mpmath.mpf(q)
        for i, x in enumerate(z):
            r = ratio(ms, mq, mpmath.mpf(x))
            mass = step * mpmath.npdf(mpmath.mpf(x)) * (r if removes else 1)
            p += mass
            loss = mpmath.log(r) * (1 if removes else -1)
            assert abs(mpmath.mpf(float(nodes.losses[i])) - loss) <= float(nodes.loss_error[i])
            off = abs(mpmath.exp(mpmath.mpf(float(nodes.log_p[i]))) / mass - 1)
            assert off <= float(nodes.mass_error[i])
            largest = max(largest, float(off))
    assert abs(p - 1) < 1e-12
    assert largest > U / 8


@pytest.mark.exhaustive
@pytest.mark.parametrize(("s", "q", "loss"), MARKED)
def test_marked_and_unmarked_outcomes_are_all(s, q, loss):
    _, nodes = laws(s, q, True, ask(loss=loss))
    p, of_q = nodes.marked
    assert 0 < of_q < p < 0.1
    assert float(jnp.sum(jnp.exp(nodes.log_p)) + p) == pytest.approx(1, abs=1e-13)
    assert float(jnp.sum(jnp.exp(nodes.log_p - nodes.losses)) + of_q) == pytest.approx(1, abs=1e-13)
    assert loss <= float(nodes.marked_loss) * (1 + 1e-9) <= loss * (1 + 2e-9)
    # Unmarked losses above it are there, but fade.
    assert float(nodes.losses[-1]) > loss


def beside(s, q, removes, place, soft, z, height, order, w):
    """Log of the modulus of the integrand at z + i height over that at z."""

    def log_size(z):
        r = ratio(s, q, z)
        found = -z * z / 2 + (order + 1 if removes else -order) * mpmath.log(r)
        found += 1j * w * mpmath.log(r) * (1 if removes else -1)
        return found + (mpmath.log(mpmath.erfc((z - place) / soft / mpmath.sqrt(2))) if place else 0)

    # The principal logarithm will do, for |theta| < pi.
    return (log_size(mpmath.mpc(z, height)) - log_size(mpmath.mpc(z, 0))).real


@pytest.mark.exhaustive
@pytest.mark.parametrize(("s", "q", "removes"), SETTINGS[:4])
def test_strips_bound_the_integrand_beside_the_real_line(s, q, removes):
    nodes, _ = laws(s, q, removes, ask())
    z, step = places(*window(s, q, removes, 16.0), 128), float(nodes.step)
    beside_it = SCAN // 2 * step
    low = np.concatenate([z[::CELL] - beside_it, [z[0] - 20], z[-1] + PIECES])
    high = np.concatenate([z[CELL - 1 :: CELL] + beside_it + step, z[:1], z[-1] + PIECES[1:], [z[-1] + 60]])
    random, close = np.random.default_rng(1), []
    with mpmath.workdps(40):
        for _ in range(150):
            i, j = random.integers(len(nodes.heights)), random.integers(len(low))
            order, w, share = 10 ** random.uniform(-1, 2), 10 ** random.uniform(-1, 3), random.uniform()
            x, b = low[j] + share * (high[j] - low[j]), float(nodes.heights[i])
            for rows, height, sign in ((nodes.rising, b, 1), (nodes.falling, b, -1)):
                # A removed example's loss turns as its height does; an added one's the other way.
                turns = -sign if removes else sign
                found = beside(*map(mpmath.mpf, (s, q)), removes, None, None, x, turns * height, order, w)
                terms = [float(getattr(rows, name)[i, j]) for name in ("constant", "of_order", "turn")]
                size = abs(terms[0]) + order * abs(terms[1]) + w * terms[2]
                room = terms[0] + order * terms[1] + sign * w * terms[2] - float(found)
                # Heights are moved inwards by NARROWER of themselves.
                assert room >= -4 * NARROWER * size
                close.append(room / size)
    assert min(close) < 0.1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("s", "q", "loss"), MARKED)
def test_marks_grow_no_faster_than_strips_say(s, q, loss):
    _, nodes = laws(s, q, True, ask(loss=loss))
    # The place and the scale follow from the last nodes, and the marked masses from both.
    place = float(mpmath.findroot(lambda x: mpmath.log(ratio(s, q, x)) - loss, 5.0))
    low, high = window(s, q, True, 16.0)
    soft = max(0.06 * min(s, 1.0), 6 * (high - low) / exact.NODES)
    place += 10 * soft
    z = places(low, min(high, place + 12 * soft), exact.NODES)
    random, close = np.random.default_rng(2), []
    with mpmath.workdps(60):
        for _ in range(60):
            i = random.integers(len(nodes.heights))
            j = random.integers(exact.NODES // CELL * 3 // 4, exact.NODES // CELL)
            x, b = z[CELL * j + random.integers(CELL)], float(nodes.heights[i])
            order, w = 10 ** random.uniform(-1, 2), 10 ** random.uniform(-1, 3)
            found = beside(*map(mpmath.mpf, (s, q)), True, mpmath.mpf(place), mpmath.mpf(soft), x, -b, order, w)
            terms = [float(getattr(nodes.rising, name)[i, j]) for name in ("constant", "of_order", "turn")]
            size = abs(terms[0]) + order * abs(terms[1]) + w * terms[2]
            room = terms[0] + order * terms[1] + w * terms[2] - float(found)
            assert room >= -1e-9 * size
            close.append(room / size)
    assert min(close) < 0.1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("s", "q", "removes"), SETTINGS)
@pytest.mark.parametrize("order", [0.5, 8.0])
def test_cells_beyond_the_nodes_have_no_more(s, q, removes, order):
    nodes, _ = laws(s, q, removes, ask())
    z, shares = places(*window(s, q, removes, 16.0), 128), np.asarray(jnp.exp(log_left_out(nodes, order, 0.0)))

    def density(x):
        r = ratio(mpmath.mpf(s), mpmath.mpf(q), x)
        return mpmath.npdf(x) * r ** (order + 1 if removes else -order)

    # The last pieces are far away and too small to integrate.
    ends = [z[0] - 30, z[0], *(z[-1] + PIECES[:8])]
    with mpmath.workdps(30):
        for i, (low, high) in enumerate(itertools.pairwise(ends)):
            if i == 1:
                continue
            low, high = mpmath.mpf(low), mpmath.mpf(high)
            inside = mpmath.quad(density, mpmath.linspace(low, high, 9))
            bound = shares[i - 1 if i else 0]
            assert inside <= bound
            # Pieces next to the nodes are short.
            assert bound < 1e3 * inside or i > 3


# ----------------------------------------------------------------------------------------------------
# Bounds that follow
# ----------------------------------------------------------------------------------------------------

tilt = jax.jit(exact.tilt)
coarsely = jax.jit(lambda nodes, order, w, cells: log_missed(nodes, order, w, cells, SCAN))
bounds = jax.jit(
    lambda nodes, order, w, cells: (
        log_missed(nodes, order, w, cells),
        log_fading(nodes, order, w, jnp.exp(cells[: -len(PIECES) - 1]) / CELL, cells),
    )
)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.exhaustive
@pytest.mark.parametrize(("s", "q", "removes"), SETTINGS)
def test_what_few_nodes_miss_is_bounded(s, q, removes):
    few, many = laws(s, q, removes, ask())
    random, seen = np.random.default_rng(3), 0
    for _ in range(40):
        order, w = 10 ** random.uniform(-1, 0.7), 10 ** random.uniform(-1, 2) / q
        weights, cells, cumulant = tilted(few, order)
        bound = np.exp(float(bounds(few, order, w, cells)[0])) + 2 * beyond(cells)
        right = np.sum(np.exp(np.asarray(many.log_p + (order + 1j * w) * many.losses) - cumulant))
        wrong = abs(np.sum(weights * np.exp(1j * w * np.asarray(few.losses))) - right)
        # Rounding of many nodes aside.
        assert wrong <= bound + 1e-12
        seen += wrong > 1e-10
        # The coarser rule of many nodes.
        weights, cells, cumulant = tilted(many, order)
        bound = np.exp(float(coarsely(many, order, w, cells)))
        losses = np.asarray(many.losses)
        right = np.sum(weights * np.exp(1j * w * losses))
        chosen = slice(SCAN // 2, None, SCAN)
        wrong = abs(SCAN * np.sum(weights[chosen] * np.exp(1j * w * losses[chosen])) - right)
        assert wrong <= bound + 2 * beyond(cells) + 1e-12
    assert seen > 0


@pytest.mark.exhaustive
def test_what_is_next_to_nothing_counts_beside_the_real_line():
    # Marked outcomes that no node reaches grow most there: both rules err, and say so.
    s, q = 1.7212, 0.003123
    _, nodes = laws(s, q, True, ask(runs=1.0, loss=0.0202, nats=30.0))
    order, losses, seen = 687.0, np.asarray(nodes.losses), 0
    weights, cells, _ = tilted(nodes, order)
    for w in np.geomspace(1e2, 2e5, 40):
        terms = weights * np.exp(1j * w * losses)
        wrong = abs(SCAN * np.sum(terms[SCAN // 2 :: SCAN]) - np.sum(terms))
        missed = np.exp(min(float(coarsely(nodes, order, w, cells)), 99.0))
        missed += np.exp(min(float(bounds(nodes, order, w, cells)[0]), 99.0))
        assert wrong <= missed + 1e-10
        # The sum is of a modulus that the characteristic function has no more.
        fading = np.exp(float(bounds(nodes, order, w, cells)[1]))
        missed = np.exp(min(float(bounds(nodes, order, w, cells)[0]), 99.0))
        assert abs(np.sum(terms)) <= fading + missed + 1e-10
        seen += wrong > 0.01
    assert seen > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(("s", "q", "removes"), SETTINGS)
@pytest.mark.parametrize("loss", [np.inf, 1.0])
def test_fading_bounds_the_characteristic_function_from_there_on(s, q, removes, loss):
    _, nodes = laws(s, q, removes, ask(loss=loss))
    random, ratios = np.random.default_rng(4), []
    for _ in range(40):
        order, w = 10 ** random.uniform(-1, 2.7), 10 ** random.uniform(-1, 4)
        weights, cells, _ = tilted(nodes, order)
        if beyond(cells) > 1e-12:
            continue
        missed, bound = map(float, bounds(nodes, order, w, cells))
        farther = w * np.append(1.0, 2 ** random.uniform(0, 3, 4))
        sizes = abs(np.exp(1j * farther[:, None] * np.asarray(nodes.losses)) @ weights)
        missed = [float(bounds(nodes, order, v, cells)[0]) for v in farther]
        is_right = np.array(missed) < -30
        assert np.all(sizes[is_right] <= np.exp(bound) + 1e-11)
        if is_right[0] and bound < 0:
            ratios.append(bound / np.log(sizes[0]))
    assert max(ratios, default=1.0) > 0.4


@pytest.mark.exhaustive
@pytest.mark.parametrize(("s", "q", "removes"), SETTINGS)
def test_moments_of_few_nodes_are_right_to_what_they_miss(s, q, removes):
    few, many = laws(s, q, removes, ask())
    random, seen = np.random.default_rng(5), 0
    for order in 10 ** random.uniform(-1, 0.9, 12):
        _, cells, cumulant = tilted(few, order)
        row = tilt(few, order, cumulant)
        # What is missed at the order, and of P's mass.
        missed = sum(
            over_sum(jnp.exp(bounds(few, at, 0.0, of)[0]) + beyond(of))
            for at, of in ((order, cells), (0.0, row.log_cells[2]))
        )
        right = np.sum(np.exp(np.asarray(many.log_p + order * many.losses) - cumulant)) - 1
        wrong = abs(float(row.surplus) - right)
        assert wrong <= float(row.surplus_error + missed) + 1e-12
        seen += float(row.surplus_error + missed) < 0.1
    assert seen > 0


@pytest.mark.exhaustive
def test_tilted_sums_are_right_to_their_errors():
    _, nodes = laws(1.0, 0.01, True, ask())
    order = 3.0
    *_, cumulant = tilted(nodes, order)
    cumulant = float(cumulant)
    row = exact.tilt(nodes, jnp.float64(order), jnp.float64(cumulant))
    spacing, tables = jnp.float64(0.5), jnp.int32(2)
    found = jax.jit(exact.transform)(row, spacing, tables, False)
    coarse = jax.jit(exact.transform)(row, spacing, tables, True)
    with mpmath.workdps(40):
        p = [mpmath.exp(mpmath.mpf(float(x))) for x in nodes.log_p]
        y = [mpmath.mpf(float(x)) for x in nodes.losses]
        weights = [m * mpmath.exp(order * v - mpmath.mpf(cumulant)) for m, v in zip(p, y, strict=True)]
        moved = sum(w - m for w, m in zip(weights, p, strict=True))
        assert abs(moved - float(row.surplus)) <= float(row.surplus_error)
        for a, b in ((0, 1), (0, 31), (1, 0), (1, 17)):
            w = float(spacing) * (exact.SIDE * a + b)
            phi = sum(m * mpmath.expj(w * (v - mpmath.mpf(float(row.mean)))) for m, v in zip(weights, y, strict=True))
            phi = phi / sum(weights) - 1
            off = abs(phi - mpmath.mpc(float(found[0, a, b]), float(found[1, a, b])))
            assert off <= float(row.error) * w
            # The coarser rule is as good here.
            off = abs(phi - mpmath.mpc(float(coarse[0, a, b]), float(coarse[1, a, b])))
            assert off <= float(row.error) * w + 1e-16
    assert float(row.surplus_error) < 1e-13
    assert float(row.error) < 1e-14


@pytest.mark.exhaustive
@pytest.mark.parametrize("runs", [1.0, 1000.0, 2.0**40])
def test_marks_of_all_runs_are_between_two_events(runs):
    _, nodes = laws(1.0, 0.01, True, ask(loss=1.0))
    rows = exact.gather(jax.tree.map(lambda leaf: leaf[None], nodes), jnp.array([runs]))
    above, below = (np.asarray(rows.rare(sign).packed) for sign in (1.0, -1.0))
    with mpmath.workdps(50):
        logs = [mpmath.log(-mpmath.expm1(runs * mpmath.log1p(-mpmath.mpf(float(mass))))) for mass in nodes.marked]
    # P's mass is more above and less below, and Q's the other way.
    error = float(nodes.marked_error)
    for log, most, least in zip(logs, (above[0], below[1]), (below[0], above[1]), strict=True):
        assert log + error < float(most) <= log + 1.1 * error + 1e-13
        assert log - error > float(least) >= log - 1.1 * error - 1e-13
    assert above[2] == below[2] <= nodes.marked_loss + (runs - 1) * nodes.lowest


# ----------------------------------------------------------------------------------------------------
# Brackets
# ----------------------------------------------------------------------------------------------------


@jax.jit
def law(s, q, removes, asked):
    """Rows of sampled Gaussian mechanisms, (m,) each."""
    of_row = lambda s, q, removes: SubsampledGaussianPair(s, q, removes).nodes(exact.NODES, asked)  # noqa: E731
    return jax.vmap(of_row)(s, q, removes)


improve_epsilon, improve_delta = jax.jit(exact.improve_epsilon), jax.jit(exact.improve_delta)


def solve(improve, first, rows, counts, value):
    """Bounds by rounds of two programs, as an eager caller asks for them; always of two rows."""
    missing = 2 - len(rows)
    s, q, removes = map(jnp.asarray, zip(*rows, *[(1.0, 0.5, True)] * missing, strict=True))
    counts, value = jnp.asarray([*counts, *[0.0] * missing], float), jnp.float64(value)
    state = first(counts, value)
    while exact.goes_on(state):
        state = improve(law(s, q, removes, state.ask), counts, value, state)
    return float(state.lower), float(state.upper)


def epsilon(rows, counts, delta):
    return solve(improve_epsilon, exact.epsilon_state, rows, counts, delta)


def delta(rows, counts, eps):
    return solve(improve_delta, exact.delta_state, rows, counts, eps)


@pytest.mark.exhaustive
@pytest.mark.parametrize("removes", [True, False])
def test_brackets_hold_values_of_160_bits(removes):
    truths = [row for row in json.loads(TRUTHS.read_text()) if row["direction"] == ("remove" if removes else "add")]
    widths = []
    for row in truths:
        rows, counts = [(row["sigma"], row["q"], removes)], [float(row["k"])]
        lower, upper = delta(rows, counts, row["eps"])
        assert lower <= row["delta"] <= upper
        widths.append(upper / lower - 1 if lower > 0 else np.inf)
        lower, upper = epsilon(rows, counts, row["delta"])
        # The truth is rounded: it moves eps by an ulp of delta.
        assert lower * (1 - 1e-14) <= row["eps"] <= upper * (1 + 1e-14)
    assert np.median(widths) < 1e-9


@pytest.mark.parametrize(
    ("s", "runs", "value"), [(1.0, 1.0, 1e-5), (5.0, 100.0, 1e-8), (0.6, 3.0, 1e-12), (50.0, 1e4, 0.01)]
)
@pytest.mark.exhaustive
def test_gaussian_mechanisms_have_a_closed_form(s, runs, value):
    known = ja.epsilon(ja.Gaussian(s / np.sqrt(runs)), 1, value)
    lower, upper = epsilon([(s, 1.0, True)], [runs], value)
    # s over the root of the runs is rounded.
    assert lower <= float(known.upper) * (1 + 4e-16)
    assert upper >= float(known.lower) * (1 - 4e-16)
    assert upper - lower <= 1e-9 * upper
    # Runs may be split into rows.
    split = epsilon([(s, 1.0, True), (s, 1.0, False)], [runs - 1, 1.0], value)
    assert split[0] <= upper
    assert split[1] >= lower


@pytest.mark.parametrize(
    ("s", "q", "steps", "eps", "truth"),
    [
        (0.33622011050197304, 0.05543430730118734, 141136.0, 4814.3543566305325, 6.483844178929072e-12),
        (0.2844659322157392, 0.013514560724938797, 9451.0, 114.30597798789105, 2.7217637625507e-33),
    ],
)
def test_added_examples_of_little_noise(s, q, steps, eps, truth):
    # Truths of 40 digits, by the same integral over 1,600 and more nodes. Q lies farther out than P, by 1/s.
    lower, upper = delta([(s, q, False)], [steps], eps)
    assert lower <= truth * (1 + 1e-13)
    assert upper >= truth * (1 - 1e-13)
    assert upper <= (1 + 1e-8) * lower


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_no_contradiction_to_the_accountant(seed):
    random, close = np.random.default_rng(seed), []
    for _ in range(25):
        s, q, k, value = np.exp(
            [random.uniform(*np.log(ends)) for ends in ((0.4, 8), (1e-4, 0.9), (1, 1e6), (1e-12, 0.1))]
        )
        removes, k = bool(random.integers(2)), float(round(k))
        mechanism = ja.PoissonSubsampledGaussian(s, q)
        known = ja.saddlepoint.epsilon(mechanism, k, value, relation="remove" if removes else "add")
        lower, upper = epsilon([(s, q, removes)], [k], value)
        assert lower <= upper
        assert lower <= float(known.upper)
        assert upper >= float(known.lower)
        close.append(upper - lower <= 1e-9 * upper)
        if 0 < upper < 50:
            eps = upper * random.uniform(0.5, 1.1)
            known = ja.saddlepoint.delta(mechanism, k, eps, relation="remove" if removes else "add")
            lower, upper = delta([(s, q, removes)], [k], eps)
            assert lower <= upper
            assert lower <= float(known.upper)
            assert upper >= float(known.lower)
    assert np.mean(close) > 0.7


@pytest.mark.exhaustive
def test_two_mechanisms_in_a_sequence():
    known = ja.saddlepoint.epsilon(
        (ja.PoissonSubsampledGaussian(1.0, 0.01), ja.PoissonSubsampledGaussian(3.0, 0.2)),
        (1000, 50),
        1e-6,
        relation="remove",
    )
    lower, upper = epsilon([(1.0, 0.01, True), (3.0, 0.2, True)], [1000.0, 50.0], 1e-6)
    assert lower <= float(known.upper)
    assert upper >= float(known.lower)
    assert upper - lower < 1e-9 * upper


@pytest.mark.exhaustive
def test_edges():
    row = [(1.0, 0.1, True)]
    assert epsilon(row, [0.0], 1e-5) == (0.0, 0.0)
    assert epsilon(row, [10.0], 1.0) == (0.0, 0.0)
    assert epsilon(row, [10.0], 0.0)[1] == np.inf
    for wrong in (np.nan, -1e-3):
        assert epsilon(row, [10.0], wrong) == (0.0, np.inf)
        assert delta(row, [10.0], wrong) == (0.0, 1.0)
    for counts in ([0.5], [-1.0], [np.nan], [np.inf]):
        assert epsilon(row, counts, 1e-5) == (0.0, np.inf)
        assert delta(row, counts, 1.0) == (0.0, 1.0)
    for pair in ((np.nan, 0.1, True), (1.0, 2.0, True), (0.0, 0.1, True), (-1.0, 0.1, False)):
        assert epsilon([pair], [10.0], 1e-5) == (0.0, np.inf)
        assert delta([pair], [10.0], 1.0) == (0.0, 1.0)
    # Nodes that do not resolve the law say nothing.
    assert delta([(1e-4, 1.0, True)], [2.0**40], 0.01)[1] > 0.99
    assert delta([(1e-4, 0.5, True)], [1.0], 1.0)[1] > 0.49
    lower, upper = delta(row, [10.0], 30.0)
    assert 0 < lower <= upper < 1e-20


@pytest.mark.exhaustive
def test_one_program_of_both():
    def of_noise(s):
        def rows(asked):
            return jax.tree.map(
                lambda leaf: leaf[None], SubsampledGaussianPair(s, 0.01, True).nodes(exact.NODES, asked)
            )

        return exact.epsilon(rows, jnp.array([1000.0]), 1e-5)

    found = jax.jit(jax.vmap(of_noise))(jnp.array([0.8, 1.5]))
    for i, s in enumerate((0.8, 1.5)):
        lower, upper = epsilon([(s, 0.01, True)], [1000.0], 1e-5)
        assert found[0][i] <= upper
        assert found[1][i] >= lower
        assert found[1][i] - found[0][i] <= 1e-9 * found[1][i]
