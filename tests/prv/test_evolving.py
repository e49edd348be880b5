"""The evolving mesh: each step's inequality and each term of its error by itself, and whole brackets."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.mechanisms.atoms import Atoms, atoms_of_masses
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import scope
from jaxacct.prv import evolving
from tests.helpers.oracle import gaussian_delta, gaussian_epsilon

POINTS, ATOMS = 1024, 256
LONG = np.longdouble


@pytest.fixture(autouse=True)
def within_scope():
    with scope():
        yield


def divergences(losses, masses, epsilons):
    """The D of a law at many epsilons, in 18 digits."""
    y, p, at = (np.asarray(v, LONG) for v in (losses, masses, epsilons))
    above = np.maximum(y - at[:, None], 0)
    return -(np.expm1(-above) * p).sum(1)


@functools.cache
def program(rows=1, method=evolving.Method.RECURSIVE, by_delta=True):
    """One compiled program of laws, counts, the delta or epsilon to plan for, and what is read."""

    def run(laws, counts, planned, delta, epsilon):
        plan = {"log_delta": planned} if by_delta else {"epsilon": planned}
        found = evolving.compose(laws, counts, POINTS, method=method, **plan)
        return evolving.bound_epsilon(found, delta), evolving.bound_delta(found, epsilon), found

    return jax.jit(run)


def read(laws, counts, delta, epsilon=1.0, planned=None, **options):
    laws = laws if isinstance(laws, list) else [laws]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *laws)
    planned = math.log(delta) if planned is None else planned
    given = (jnp.asarray(counts, float).reshape(len(laws)), *map(jnp.asarray, (planned, delta, epsilon)))
    epsilons, deltas, found = program(len(laws), **options)(stacked, *given)
    return tuple(map(float, epsilons)), tuple(map(float, deltas)), found


def of_masses(losses, masses, infinite=0.0):
    """The laws of a discrete loss, filled up with atoms of no mass."""
    losses, masses = (np.pad(np.asarray(v, float), (0, ATOMS - len(v))) for v in (losses, masses))
    return atoms_of_masses(jnp.asarray(losses), jnp.asarray(masses), infinite=(infinite, infinite))


def responses(epsilon):
    """Randomized response: P's law."""
    p = 1 / (1 + math.exp(-epsilon))
    return of_masses([-epsilon, epsilon], [1 - p, p])


@functools.cache
def gaussian_law(s, nats):
    return jax.jit(lambda s, nats: ja.Gaussian(s).dominating_pairs()[0].discretize(ATOMS, nats))(
        jnp.asarray(s), jnp.asarray(nats)
    )


def response_delta(epsilon, count, at):
    """Of the sum of so many randomized responses, in 50 digits."""
    with mpmath.workdps(50):
        e, at = mpmath.mpf(epsilon), mpmath.mpf(at)
        p = 1 / (1 + mpmath.exp(-e))
        terms = [
            mpmath.binomial(count, j) * p**j * (1 - p) ** (count - j) * (1 - mpmath.exp(at - (2 * j - count) * e))
            for j in range(count + 1)
            if (2 * j - count) * e > at
        ]
        return mpmath.fsum(terms)


# ------------------------------------------------------------------------------------------------ steps


@pytest.mark.first_tier("smooth")
@pytest.mark.parametrize("kind", ["smooth", "spiky", "sparse"])
def test_a_coarser_mesh_dominates_above_and_is_dominated_below(kind):
    rng, h, t = np.random.default_rng(len(kind)), 0.07, 3.1
    coarsen = jax.jit(evolving.coarsen)
    y = -4 + h * np.arange(256)
    for _ in range(20):
        center, width = rng.uniform(2, 8), rng.uniform(0.4, 1.5)
        p = np.exp(-(((y - center) / width) ** 2) / 2)
        p = p if kind == "smooth" else p * rng.exponential(size=256) ** rng.integers(1, 6)
        p = p * (rng.random(256) < 0.1) if kind == "sparse" else p
        p = p / p.sum()
        w = p * np.exp(t * y)
        found = np.asarray(coarsen(jnp.asarray([w, w]), h, t), LONG)
        points = y[0] + 2 * h * np.arange(256)
        masses = found * np.exp(-LONG(t) * points)
        at = np.linspace(-5, 14, 400)
        fine, above, below = divergences(y, p, at), *(divergences(points, row, at) for row in masses)
        slack = 1e-13 * p.sum()
        assert (above >= fine - slack).all()
        assert (below <= fine + slack).all()
        # P's mass stays on both sides, and Q's above.
        assert np.allclose(masses.sum(1).astype(float), 1, rtol=1e-12)
        assert float((masses[0] * np.exp(-points)).sum() / (p * np.exp(-y)).sum()) == pytest.approx(1, rel=1e-12)
        if kind == "smooth":
            middle = (at > center - 2) & (at < center + 2)
            assert (above - below)[middle].max() < h * h
            assert (above - below)[middle].max() > 0


@pytest.mark.exhaustive
def test_paid_flows_are_of_second_order():
    """Half the mesh, a quarter of what coarsening costs, or less."""
    costs = []
    for h in (0.2, 0.1, 0.05):
        y = -6 + h * np.arange(512)
        p = np.exp(-((y - 4) ** 2) / 2)
        w = p / p.sum() * np.exp(y)
        found = np.asarray(evolving.coarsen(jnp.asarray([w, w]), h, 1.0), LONG)
        points = y[0] + 2 * h * np.arange(512)
        above, below = (divergences(points, row, np.array([3.7])) for row in found * np.exp(-LONG(1) * points))
        costs.append(float((above - below)[0]))
    assert 3 < costs[0] / costs[1] < 6
    assert 3 < costs[1] / costs[2] < 6


@pytest.mark.first_tier("0")
@pytest.mark.parametrize("seed", range(6))
def test_pools_are_dominated_and_lie_on_the_mesh(seed):
    rng = np.random.default_rng(seed)
    pool = jax.jit(evolving.pool)
    for h in (1e-4, 0.03, 0.5):
        y = np.sort(rng.normal(size=64) * rng.choice([0.01, 1.0, 10.0]))
        y[rng.random(64) < 0.2] = y[7]
        y = np.sort(y)
        p = rng.exponential(size=64) ** rng.integers(1, 8) * (rng.random(64) < 0.7)
        p /= p.sum()
        index, mass = map(np.asarray, pool(jnp.asarray(y / h), jnp.asarray(p), jnp.asarray(h), jnp.asarray(2.0)))
        assert (index == np.floor(index)).all()
        assert (mass >= 0).all()
        assert mass.sum() == pytest.approx(1, rel=1e-13)
        at = np.concatenate([np.linspace(y[0] - 1, y[-1] + 1, 300), y])
        # (n + 16) u (e^h - 1) of the loss, and nu of the mass.
        assert (divergences(index * h, mass, at) <= divergences(y, p, at) + 1e-13).all()


@pytest.mark.exhaustive
def test_pools_lose_the_square_of_the_mesh():
    """A Gaussian's loss: pools are between one and two points wide, so D falls by h^2/24 to h^2/6 of the density."""
    y = np.linspace(-5, 6, 4001)
    p = np.exp(-((y - 0.5) ** 2) / 2)
    p /= p.sum()
    at = np.linspace(-2, 2, 401)
    pool = jax.jit(evolving.pool)
    for h in (0.2, 0.1, 0.05):
        falls = []
        for offset in (0.0, 0.31, 0.62):
            index, mass = pool(jnp.asarray((y - offset) / h), jnp.asarray(p), jnp.asarray(h), jnp.asarray(2.0))
            found = divergences(offset + np.asarray(index) * h, np.asarray(mass), at)
            falls.append(float((divergences(y, p, at) - found).mean()))
        assert all(0.004 < fall / h**2 < 0.05 for fall in falls), (h, falls)


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_shared", [False, True])
def test_one_loss_on_a_mesh(is_shared):
    rng = np.random.default_rng(1)
    place = jax.jit(
        lambda law, plan: evolving.put_on_mesh(
            law, jnp.asarray(50.0), plan, POINTS, jnp.append(evolving.RUNS, 50.0), 8.0, is_shared=is_shared
        )
    )
    for scale in (0.02, 1.0):
        y, p = np.sort(rng.normal(size=200) * scale), rng.exponential(size=200) ** 3
        p /= p.sum()
        plan = evolving.Plan(jnp.asarray(2.0), jnp.asarray(18.0), jnp.asarray(-90.0))
        state, h, _, _, shift = place(of_masses(y, p), plan)
        assert not is_shared or math.log2(float(h)) == round(math.log2(float(h)))
        points = LONG(float(state.first[0])) + LONG(float(h)) * np.arange(POINTS)
        logs = np.asarray(state.log_mass[0], LONG)[:, None] - 2 * points
        above, below = np.asarray(state.rows[0], LONG) * np.exp(logs)
        at = np.linspace(y[0] - 0.1, y[-1] + 0.1, 400)
        truth = divergences(y, p, at)
        change = np.asarray(state.error[0], LONG)[:, None] * np.exp(
            np.asarray(state.log_bound[0], LONG)[:, None] - 2 * at + float(evolving.log_peak(jnp.asarray(2.0)))
        )
        assert (divergences(points, above, at - float(shift)) + change[0] >= truth).all()
        assert (divergences(points, below, at + float(shift)) - change[1] <= truth).all()
        assert 0 < float(state.error.max()) < 1e-7


# ------------------------------------------------------------------------------------------------ errors


def test_the_transform_errs_by_less_than_is_allowed():
    """In L2, beside the same transform in 18 digits; and the bound is within 500 times of what is seen."""
    scipy_fft = pytest.importorskip("scipy.fft")
    rng = np.random.default_rng(0)
    for points in (256, 4096, 2**17):
        for x in (
            rng.exponential(size=points),
            np.exp(-(((np.arange(points) - points / 2) / 9) ** 2)),
            np.eye(1, points, 5)[0],
        ):
            truth = scipy_fft.rfft(x.astype(LONG))
            assert truth.dtype == np.clongdouble
            off = np.asarray(jnp.fft.rfft(jnp.asarray(x))) - truth
            share = float(np.sqrt((np.abs(off) ** 2).sum() / (np.abs(truth) ** 2).sum()))
            back = np.asarray(jnp.fft.irfft(jnp.asarray(truth.astype(complex)), points)) - x
            again = float(np.sqrt((back**2).sum() / (x**2).sum()))
            bound = evolving.transform_error(points)
            assert max(share, again - roundoff()) <= bound
            assert max(share, again) > bound / 500 or np.count_nonzero(x) == 1


@pytest.mark.exhaustive
def test_log_moments_are_those_of_the_rows():
    rng = np.random.default_rng(2)
    rows = rng.exponential(size=(2, 2, POINTS)) ** 4
    rows[:, :, :70] = rows[:, :, -300:] = 0
    rows /= rows.sum(-1, keepdims=True)
    kept, cut, low, high = evolving._trim(jnp.asarray(rows), jnp.full(2, 0.01))
    found = np.asarray(evolving._log_moments(kept, low, high))
    gaps = evolving._gaps(POINTS)
    exponents = LONG(1) * gaps[:, None] * (np.arange(POINTS) - np.where(gaps > 0, POINTS, 0)[:, None])
    exact = np.log((np.asarray(kept, LONG)[:, :, None] * np.exp(exponents)).sum(-1)).max(1)
    exact = (exact + gaps * np.where(gaps > 0, POINTS, 0)).astype(float)
    assert (found >= exact).all()
    assert np.allclose(found, exact, rtol=1e-12, atol=1e-11)
    assert np.allclose(np.asarray(kept).sum(-1) + np.asarray(cut), 1, rtol=1e-13)
    assert float(cut[0].min()) > 0
    assert float(cut.max()) <= 0.02


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [4.0, 9.0, 20.0])
@pytest.mark.parametrize("power", [3.0, 16.0])
def test_what_wraps_around_and_what_rounds_is_within_the_error(width, power):
    """A sum on 256 points beside the whole sum in 18 digits, also where the circle is too short for it."""
    points = 256
    j = np.arange(points)
    row = np.exp(-(((j - 100) / width) ** 2) / 2) * (np.abs(j - 100) < 90)
    row /= row.sum()
    # Reflected, below: any two rows will do.
    rows = np.stack([[row, row[::-1]], [np.eye(1, points, 3)[0]] * 2])
    zeros = jnp.zeros((2, 2))
    state = evolving._State(jnp.asarray(rows), jnp.zeros(2), zeros, zeros, zeros, jnp.zeros(2))
    powers, others = jnp.asarray([power, 2.0]), jnp.asarray([0.0, 1.0])
    _, _, low, high = evolving._trim(state.rows, jnp.zeros(2))
    moments = evolving._log_moments(state.rows, low, high)
    logs = powers[:, None] * moments[:1] + others[:, None] * moments[1:]
    found = evolving._convolve(state, jnp.asarray(1.0), powers, others, logs, jnp.full(2, 25.0), zeros)
    for kind, side in itertools.product(range(2), range(2)):
        whole = np.ones(1, LONG)
        for _ in range(int(powers[kind])):
            whole = np.convolve(whole, rows[0, side].astype(LONG))
        whole = np.convolve(whole, rows[1, side].astype(LONG)) if kind else whole
        first = round(float(found.first[kind]))
        got = np.asarray(found.rows[kind, side], LONG) * np.exp(LONG(float(found.log_mass[kind, side])))
        at = first + np.arange(points)
        inside = (at >= 0) & (at < len(whole))
        off = np.abs(got[inside] - whole[at[inside]]).sum() + np.abs(got[~inside]).sum()
        off += whole.sum() - whole[at[inside]].sum()
        bound = float(found.error[kind, side])
        assert off <= bound
        # Aliasing is known up to Chernoff's factor; rounding up to what a worst case is worse than a mean one.
        assert bound <= max(300 * off, 1e-11) or bound > 1


# ------------------------------------------------------------------------------------------------ brackets


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [0, 1, 2, 3, 17, 300])
def test_randomized_responses_are_exact(count):
    epsilon, at = 0.3, 0.31
    truth = float(response_delta(epsilon, count, at))
    _, (lower, upper), _ = read(responses(epsilon), count, 1e-5, at, planned=at, by_delta=False)
    assert lower <= truth <= upper
    assert upper - lower <= 1e-4 * truth + 1e-9


@pytest.mark.first_tier("0.1-1-0.001")
@pytest.mark.parametrize(
    ("mu", "count", "delta"), [(0.1, 1, 1e-3), (3.0, 1000, 1e-5), (0.7, 10**8, 1e-6), (1.0, 10**4, 1e-40)]
)
def test_gaussians(mu, count, delta):
    law = gaussian_law(math.sqrt(count) / mu, math.log(count) - math.log(delta) + 12)
    (lower, upper), _, found = read(law, count, delta)
    truth = gaussian_epsilon(mu, delta)
    assert lower <= truth * (1 + 1e-12)
    assert upper >= truth * (1 - 1e-12)
    assert upper - lower <= 0.02 * upper
    # The sum is kept, and read elsewhere.
    for epsilon in (0.97 * truth, 1.03 * truth):
        low, high = map(float, evolving.bound_delta(found, jnp.asarray(epsilon)))
        assert low <= float(gaussian_delta(mu, epsilon)) * (1 + 1e-9)
        assert high >= float(gaussian_delta(mu, epsilon)) * (1 - 1e-9)
        assert low > 0
        assert high < 4 * low


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", evolving.Method)
def test_all_choices_of_meshes_hold(method):
    mu, count, delta = 1.3, 400, 1e-6
    law = gaussian_law(math.sqrt(count) / mu, math.log(count) - math.log(delta) + 12)
    (lower, upper), _, _ = read(law, count, delta, method=method)
    assert lower <= gaussian_epsilon(mu, delta) <= upper
    assert upper - lower < 0.3 * upper


@pytest.mark.exhaustive
def test_different_mechanisms_and_rows_without_runs():
    noises, counts, delta = (10.0, 25.0, 60.0), (30, 200, 0), 1e-6
    mu = math.sqrt(sum(c / s**2 for s, c in zip(noises, counts, strict=True)))
    laws = [gaussian_law(s, 40.0) for s in noises]
    (lower, upper), _, _ = read(laws, counts, delta)
    truth = gaussian_epsilon(mu, delta)
    assert lower <= truth <= upper
    assert upper - lower < 0.05 * upper
    (lower, upper), (low, high), _ = read(laws, (0, 0, 0), delta)
    assert lower == low == 0
    assert upper < 1e-9
    assert high < 1e-9


@pytest.mark.exhaustive
def test_sums_are_joined():
    law, plan = gaussian_law(20.0, 40.0), None
    laws = jax.tree.map(lambda leaf: leaf[None], law)
    plan = evolving.plan_sum(laws, jnp.asarray([400.0]), POINTS, log_delta=math.log(1e-6))
    evolve = jax.jit(
        lambda law, count: evolving.evolve(law, count, plan, POINTS, method=evolving.Method.RECURSIVE, is_shared=True)
    )
    parts = [evolve(law, jnp.asarray(count)) for count in (100.0, 300.0)]
    found = jax.jit(evolving.join)(*parts)
    lower, upper = map(float, evolving.bound_epsilon(found, jnp.asarray(1e-6)))
    truth = gaussian_epsilon(1.0, 1e-6)
    assert lower <= truth <= upper
    assert upper - lower < 0.05 * upper
    # Of two orders there is no sum.
    other = parts[1]._replace(order=parts[1].order * 2)
    lower, upper = map(float, evolving.bound_epsilon(jax.jit(evolving.join)(parts[0], other), jnp.asarray(1e-6)))
    assert (lower, upper) == (0.0, math.inf)


@pytest.mark.exhaustive
def test_infinite_losses():
    p = 0.25
    law = of_masses([0.0], [1 - p], infinite=p)
    (lower, upper), (low, high), _ = read(law, 2, 0.1, planned=1.0, by_delta=False)
    assert lower == upper == math.inf  # delta is below what is lost for certain
    assert low <= 1 - (1 - p) ** 2 <= high
    assert high - low < 1e-9
    (lower, upper), _, _ = read(law, 2, 0.5)
    assert lower == 0
    assert upper < 1e-6


@pytest.mark.exhaustive
def test_edges():
    law = responses(0.5)
    # Delta near 1: no epsilon is needed. Epsilon 0: the total variation.
    (lower, upper), (low, high), _ = read(law, 5, 0.9999, 0.0, planned=0.0, by_delta=False)
    assert lower == 0
    assert upper < 1e-6
    truth = float(response_delta(0.5, 5, 0.0))
    assert low <= truth <= high
    assert high - low < 1e-3
    # All losses are one: P's mass is there, and the rest of Q's is elsewhere.
    (lower, upper), (low, high), _ = read(of_masses([0.7], [1.0]), 3, 1e-3, 2.0)
    truth = 2.1 + math.log1p(-1e-3)
    assert lower <= truth <= upper
    assert upper - lower < 1e-6
    assert low <= -math.expm1(2.0 - 2.1) <= high
    # Nothing is known below.
    known = responses(0.5)
    nothing = known._replace(masses=known.masses.at[1].set(0.0))
    (lower, upper), (low, high), _ = read(nothing, 5, 1e-3)
    assert lower == low == 0
    assert math.isfinite(upper)
    assert high > 0


@pytest.mark.parametrize("count", [math.nan, -1.0, 2.5, math.inf])
def test_a_count_that_is_none_proves_nothing(count):
    (lower, upper), (low, high), _ = read(responses(0.5), count, 1e-3)
    assert (lower, upper, low, high) == (0.0, math.inf, 0.0, 1.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("leaf", ["losses", "masses"])
def test_numbers_that_are_none_prove_nothing(leaf):
    law = responses(0.5)
    wrong = law._replace(**{leaf: getattr(law, leaf).at[:, 100].set(math.nan)})
    (lower, upper), (low, high), _ = read(wrong, 5, 1e-3)
    assert (lower, upper, low, high) == (0.0, math.inf, 0.0, 1.0)


@pytest.mark.exhaustive
def test_batches_are_their_rows():
    law = jax.tree.map(lambda leaf: leaf[None], responses(0.2))
    deltas = jnp.asarray([1e-2, 1e-4, 1e-8])

    def bound(delta):
        found = evolving.compose(law, jnp.asarray([90.0]), POINTS, log_delta=jnp.log(delta))
        return jnp.stack(evolving.bound_epsilon(found, delta))

    together = np.asarray(jax.jit(jax.vmap(bound))(deltas))
    alone = [read(responses(0.2), 90, float(delta))[0] for delta in deltas]
    assert np.allclose(together, alone, rtol=1e-9)


@pytest.mark.exhaustive
def test_random_settings_agree_with_the_other_bounds():
    rng = np.random.default_rng(11)
    atoms = jax.jit(
        lambda s, q, nats: [
            pair.discretize(ATOMS, nats) for pair in ja.PoissonSubsampledGaussian(s, q).dominating_pairs()
        ]
    )
    for _ in range(30):
        s, q = (math.exp(rng.uniform(math.log(a), math.log(b))) for a, b in ((0.5, 8.0), (1e-3, 0.9)))
        count, delta = float(round(math.exp(rng.uniform(0, 11)))), math.exp(rng.uniform(-27, -3))
        laws = atoms(*map(jnp.asarray, (s, q, math.log(count) - math.log(delta) + 12)))
        brackets = [read(law, count, delta)[0] for law in laws]
        known = ja.epsilon(ja.PoissonSubsampledGaussian(s, q), count, delta)
        assert max(lower for lower, _ in brackets) <= float(known.upper) * (1 + 1e-12)
        assert max(upper for _, upper in brackets) >= float(known.lower) * (1 - 1e-12)


def test_the_law_is_a_pytree():
    assert isinstance(responses(0.1), Atoms)
    assert len(jax.tree.leaves(read(responses(0.1), 1, 0.1)[2])) == len(evolving.Sum._fields)
