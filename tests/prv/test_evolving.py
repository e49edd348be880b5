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
        above, below = (divergences(points, row, np.linspace(3, 5, 201)) for row in found * np.exp(-LONG(1) * points))
        costs.append(float((above - below).mean()))
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
            law, jnp.asarray(50.0), plan, POINTS, jnp.append(2.0 ** np.arange(24), 50.0), 8.0, is_shared=is_shared
        )
    )
    for scale in (0.02, 1.0):
        y, p = np.sort(rng.normal(size=200) * scale), rng.exponential(size=200) ** 3
        p /= p.sum()
        plan = evolving.MeshPlan(jnp.asarray(2.0), jnp.asarray(18.0), jnp.asarray(-90.0))
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
    state = evolving._StageState(jnp.asarray(rows), jnp.zeros(2), zeros, zeros, zeros, jnp.zeros(2))
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


# ------------------------------------------------------------------------------------------------ rounding


def tilted_chords(rows, h, t):
    """The upper law on a mesh of 2h, as the docstring has it, in 18 digits."""
    even, odd = rows.astype(LONG)[::2], rows.astype(LONG)[1::2]
    h, t = LONG(h), LONG(t)
    up = odd / (1 + np.exp(-h))
    found = np.zeros(len(rows), LONG)
    found[: len(even)] = even + (odd - up) * np.exp(-t * h)
    found[1 : len(even) + 1] += up * np.exp(t * h)
    return found


def is_of_size(seen, bound):
    """Whether a bound holds, and would not if it were a ten-thousandth of what it is."""
    return 1e-4 * bound < seen <= bound


@pytest.mark.exhaustive
@pytest.mark.parametrize("h", [1e-6, 0.07, 1.3])
def test_coarsening_rounds_by_less_than_is_counted(h):
    rng, t = np.random.default_rng(3), 3.1
    rows = rng.exponential(size=(12, 256)) ** 3
    rows /= rows.sum(-1, keepdims=True)
    found = np.asarray(jax.jit(evolving.coarsen)(jnp.asarray(np.stack([rows, rows], 1)), h, t))[:, 0]
    exact = np.stack([tilted_chords(row, h, t) for row in rows])
    shares = np.abs(found - exact).sum(-1) / exact.sum(-1)
    assert is_of_size(float(shares.max()), float(evolving._coarsening_error(jnp.asarray(h), jnp.asarray(t))))


@pytest.mark.first_tier("0.07-sparse", "0.07-lattice")
@pytest.mark.parametrize("kind", ["smooth", "sparse", "lattice", "steep"])
@pytest.mark.parametrize("h", [1e-5, 0.07, 1.0])
def test_what_goes_up_is_paid_from_above_to_the_bit(h, kind):
    """The condition of the docstring at every point, in 60 digits, with no slack."""
    rng, t, size = np.random.default_rng(7), 3.1, 128
    flow = jax.jit(evolving._flow)
    for _ in range(3):
        odd = rng.exponential(size=size) ** rng.integers(1, 5)
        odd = odd * (rng.random(size) < 0.15) if kind == "sparse" else odd
        odd = np.where(np.arange(size) % 13 == 5, 1.0, 0.0) if kind == "lattice" else odd
        odd = odd * np.exp(-0.5 * np.arange(size)) if kind == "steep" else odd
        odd /= odd.sum()
        up = np.asarray(flow(jnp.asarray(odd), jnp.asarray(h), jnp.asarray(t)))
        assert (up >= 0).all()
        assert (up <= odd).all()
        with mpmath.workdps(60):
            step = mpmath.mpf(h)
            rises, falls = 1 - mpmath.exp(-step), mpmath.exp(step) - 1
            # Tilted masses of places 2h apart, as masses of Q up to a factor.
            q_of = [mpmath.exp(-2 * (mpmath.mpf(t) + 1) * step * i) for i in range(size)]
            bank = mpmath.mpf(0)
            # From the last point to the first: what is paid so far, and what is owed.
            for i in reversed(range(size)):
                rising, falling = (mpmath.mpf(float(v)) * q_of[i] for v in (up[i], 0.0))
                falling = mpmath.mpf(float(odd[i])) * q_of[i] - rising
                assert rising * rises <= bank
                bank += falling * falls - rising * rises
        # Near half of the mass goes up, on neighbours' account or that of blocks: all but a sum or two are balanced.
        assert h > 1e-4 or kind == "steep" or up.sum() > 0.3


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", [2.0, 200.0])
def test_placing_rounds_by_less_than_is_counted(order):
    """Losses that are points of the mesh to the bit: rounding is all that is in the error, on both sides."""
    rng, place = np.random.default_rng(2), jax.jit(evolving.put_on_mesh, static_argnums=3, static_argnames="is_shared")
    plan = evolving.MeshPlan(jnp.asarray(order), jnp.asarray(30.0), jnp.asarray(-90.0))
    seen = []
    for _ in range(8):
        y = 2 + np.sort(rng.choice(np.arange(12), 3, replace=False)) * 2.0**-8
        p = rng.uniform(0.5, 1.0, size=3)
        p /= p.sum()
        law = Atoms(jnp.asarray([y, y]), jnp.asarray([p, p]), jnp.zeros(2), jnp.asarray(0.0))
        state, h, _, _, _ = place(law, jnp.asarray(1.0), plan, POINTS, jnp.asarray([1.0]), 0.0, is_shared=True)
        exact = np.zeros(POINTS, LONG)
        places = np.round((y - float(state.first[0])) / float(h)).astype(int)
        for side, masses in enumerate(np.asarray(law.masses, LONG)):
            exact[places] = masses * np.exp(LONG(order) * y)
            got = np.asarray(state.rows[0, side], LONG) * np.exp(LONG(float(state.log_mass[0, side])))
            seen.append(float(np.abs(got - exact).sum() / exact.sum()) / float(state.error[0, side]))
            assert float(state.log_bound[0, side]) >= float(np.log(exact.sum()))
    assert is_of_size(max(seen), 1.0)


@pytest.mark.exhaustive
def test_the_bound_on_the_mass_is_not_rounded_down():
    """Where logarithms of masses and the tilt are large, and cancel."""
    rng, place = np.random.default_rng(13), jax.jit(evolving.put_on_mesh, static_argnums=3, static_argnames="is_shared")
    plan = evolving.MeshPlan(jnp.asarray(200.0), jnp.asarray(30.0), jnp.asarray(-690.0))
    for _ in range(30):
        y = 2 + np.sort(rng.uniform(0, 0.05, size=2))
        p = rng.uniform(0.5, 1.0, size=2) * np.exp(-200 * y)
        law = Atoms(jnp.asarray([y, y]), jnp.asarray([p, p]), jnp.zeros(2), jnp.asarray(0.0))
        state, *_ = place(law, jnp.asarray(1.0), plan, POINTS, jnp.asarray([1.0]), 0.0, is_shared=False)
        exact = np.log((p.astype(LONG) * np.exp(200 * y.astype(LONG))).sum())
        assert (np.asarray(state.log_bound[0], LONG) >= exact).all()
        assert (np.asarray(state.log_bound[0], LONG) <= exact + 1e-9).all()


@pytest.mark.exhaustive
def test_what_is_left_out_below_is_not_in_the_bound():
    """A rare loss beyond the upper law's window would make every error e^40 times as large."""
    y, p = np.array([-0.01, 0.01, 0.02, 30.0]), np.array([0.5, 0.4, 0.1, 1e-30])
    plan = evolving.MeshPlan(jnp.asarray(3.0), jnp.asarray(18.0), jnp.asarray(-40.0))
    place = jax.jit(
        lambda law: evolving.put_on_mesh(law, jnp.asarray(5.0), plan, POINTS, jnp.asarray([5.0]), 0.0, is_shared=False)
    )
    state, _, _, _, _ = place(of_masses(y, p))
    assert float(state.log_bound[0, 1]) < 1


@pytest.mark.exhaustive
def test_moments_round_by_less_than_is_added():
    rng = np.random.default_rng(4)
    rows = rng.exponential(size=(2, 2, 4096)) ** 4
    rows /= rows.sum(-1, keepdims=True)
    kept, _, low, high = evolving._trim(jnp.asarray(rows), jnp.full(2, 0.01))
    found = np.asarray(evolving._log_moments(kept, low, high), LONG)
    gaps = evolving._gaps(4096)
    ends = np.where(gaps > 0, 4095, 0)
    exponents = LONG(1) * gaps[:, None] * (np.arange(4096) - ends[:, None])
    exact = np.log((np.asarray(kept, LONG)[:, :, None] * np.exp(exponents)).sum(-1)).max(1) + gaps * LONG(1) * ends
    added = 2.0**14 * roundoff()
    off = np.abs(found - added - exact)
    assert (off <= added + 2 * roundoff() * np.abs(exact)).all()
    assert float(off.max()) > 1e-4 * added


def some_sum(rng, points=256, order=2.0, shift=0.0):
    """A sum with nothing lost, and its places and P's masses in 18 digits."""
    rows = rng.exponential(size=(2, points)) ** 3 * np.exp(-(((np.arange(points) - 120) / 40) ** 2))
    rows /= rows.sum(-1, keepdims=True)
    zeros = np.zeros(2)
    first, mesh, log_mass = -1.3, 0.02, np.log(np.array([0.3, 0.25]))
    numbers = (rows, first, mesh, order, 20.0, log_mass, zeros, zeros, zeros, shift)
    places = LONG(first) + LONG(mesh) * np.arange(points)
    masses = rows.astype(LONG) * np.exp(LONG(1) * log_mass[:, None] - order * places)
    return evolving.Sum(*map(jnp.asarray, numbers)), places, masses


@pytest.mark.exhaustive
def test_reading_rounds_by_less_than_is_counted():
    rng, delta = np.random.default_rng(5), jax.jit(evolving.bound_delta)
    seen = []
    for _ in range(20):
        found, y, p = some_sum(rng)
        for epsilon in (*rng.uniform(-0.5, 2.0, 4), -60.0):
            lower, upper = map(float, delta(found, jnp.asarray(epsilon)))
            up, down = (divergences(y, row, [LONG(epsilon)])[0] for row in p)
            assert lower <= down
            assert up <= upper
        # The last epsilon is below all places, which their own rounding cannot change.
        counted = float(evolving._reading_error(found, jnp.asarray(float(found.order) * float(np.abs(y).max()))))
        read_off = LONG(upper) / ((1 + LONG(counted)) * (1 + 8 * LONG(roundoff())))
        seen.append(float(np.abs(read_off / up - 1)) / counted)
    assert is_of_size(max(seen), 1.0)


def test_epsilon_is_read_between_its_own_neighbours():
    """Beside a search in 18 digits: both bounds are right to rounding, at places between all sorts of neighbours."""
    rng, epsilon = np.random.default_rng(6), jax.jit(evolving.bound_epsilon)
    for _ in range(4):
        found, y, p = some_sum(rng)
        for delta in np.exp(rng.uniform(-9, -1.8, 12)):
            lower, upper = map(float, epsilon(found, jnp.asarray(delta)))
            # The least epsilon at which each row's D is at most delta, by halving.
            for row, bound, sign in ((p[0], upper, 1), (p[1], lower, -1)):
                if divergences(y, row, [LONG(0)])[0] <= LONG(delta):
                    assert bound <= (1e-12 if sign > 0 else 0)
                    continue
                low, high = LONG(0), LONG(6)
                for _ in range(70):
                    middle = (low + high) / 2
                    is_above = divergences(y, row, [middle])[0] > LONG(delta)
                    low, high = (middle, high) if is_above else (low, middle)
                assert sign * (bound - high) >= 0
                assert abs(bound - high) < 1e-11


@pytest.mark.first_tier("0.01")
@pytest.mark.parametrize("moved", [0.01, -0.01])
def test_places_that_are_off_are_read_on_the_safe_side(moved):
    """Tilted masses are what a sum keeps: at other places they are other masses of P."""
    rng, read_delta, read_epsilon = (
        np.random.default_rng(8),
        jax.jit(evolving.bound_delta),
        jax.jit(evolving.bound_epsilon),
    )
    found, y, p = some_sum(rng, order=4.0, shift=0.01)
    truth = p * np.exp(-4 * LONG(moved))
    for epsilon in np.linspace(-1.5, 2.5, 40):
        lower, upper = map(float, read_delta(found, jnp.asarray(epsilon)))
        up, down = (float(divergences(y + LONG(moved), row, [LONG(epsilon)])[0]) for row in truth)
        assert lower <= down
        assert up <= upper
    for delta in (1e-3, 0.05, 0.2):
        lower, upper = map(float, read_epsilon(found, jnp.asarray(delta)))
        assert float(divergences(y + LONG(moved), truth[0], [LONG(upper)])[0]) <= delta
        assert lower == 0 or float(divergences(y + LONG(moved), truth[1], [LONG(lower)])[0]) >= delta


@pytest.mark.exhaustive
def test_powers_of_an_error():
    with mpmath.workdps(40):
        rng = np.random.default_rng(9)
        for _ in range(40):
            e, f = np.exp(rng.uniform(-34, 1, (2, 2)))
            k = float(rng.integers(1, 300))
            found = evolving._power_of_error(jnp.asarray([k, 0.0]), jnp.asarray([0.0, 1.0]), jnp.asarray([e, f]))
            for i in range(2):
                both = (1 + mpmath.mpf(float(e[i]))) ** int(k) - 1, mpmath.mpf(float(f[i]))
                assert all(float(found[kind, i]) >= both[kind] for kind in range(2))
                assert all(float(found[kind, i]) <= both[kind] * (1 + 1e-9) for kind in range(2))


@pytest.mark.exhaustive
def test_an_error_of_many_sizes_is_not_rounded_down():
    rng = np.random.default_rng(10)
    for _ in range(20):
        found, _, _ = some_sum(rng)
        error, bound = np.exp(rng.uniform(-34, -3, 2)), rng.uniform(-30, 600, 2)
        found = found._replace(error=jnp.asarray(error), log_bound=jnp.asarray(bound))
        epsilon = rng.uniform(0, 200)
        logs = np.asarray(evolving._log_errors(found, jnp.asarray([epsilon])))[:, 0]
        with mpmath.workdps(40):
            t = mpmath.mpf(float(found.order))
            peak = -t * mpmath.log(1 + 1 / t) - mpmath.log(1 + t)
            for side in range(2):
                exact = mpmath.log(float(error[side])) + float(bound[side]) + peak - t * mpmath.mpf(float(epsilon))
                assert exact <= logs[side] <= exact + 1e-9


@pytest.mark.exhaustive
def test_a_stage_adds_no_more_runs_than_it_can_place():
    """Nearly all mass on one point: a circle would hold 2^44 runs, at places beyond all whole numbers of a double."""
    assert evolving.TRIES[-1] == 2.0**24
    law = of_masses([-0.5, 0.0, 0.5], [0.4e-13, 1 - 1e-13, 0.6e-13])
    count = 2.0**43
    (lower, upper), _, _ = read(law, count, 1e-3, planned=math.log(1e-3))
    # About a Poisson number of losses of each sign: within 12 deviations of its mean.
    mean, deviation = 0.5 * 0.2e-13 * count, 0.5 * math.sqrt(1e-13 * count)
    assert lower <= mean + 12 * deviation
    assert upper >= mean - 12 * deviation


@pytest.mark.exhaustive
def test_a_power_rounds_by_less_than_is_counted():
    """Where nothing wraps around, so that transforms are what is wrong, beside convolutions in 18 digits."""
    rng, points, power = np.random.default_rng(12), 4096, 64
    row = np.zeros(points)
    row[:50] = rng.exponential(size=50) ** 4
    row /= row.sum()
    rows, zeros = jnp.asarray([[row, row], [np.eye(1, points)[0]] * 2]), jnp.zeros((2, 2))
    state = evolving._StageState(rows, jnp.zeros(2), zeros, zeros, zeros, jnp.zeros(2))
    powers, others = jnp.asarray([float(power), 1.0]), jnp.asarray([0.0, 1.0])
    _, _, low, high = evolving._trim(rows, jnp.zeros(2))
    logs = powers[:, None] * evolving._log_moments(rows, low, high)[:1]
    found = evolving._convolve(state, jnp.asarray(1.0), powers, others, logs, jnp.full(2, 60.0), zeros)
    whole = row[:50].astype(LONG)
    for _ in range(6):
        whole = np.convolve(whole, whole)
    got = np.asarray(found.rows[0, 0], LONG) * np.exp(LONG(float(found.log_mass[0, 0])))
    inside = round(float(found.first[0])) + np.arange(points)
    exact = np.where((inside >= 0) & (inside < len(whole)), whole[np.clip(inside, 0, len(whole) - 1)], 0)
    off = float(np.abs(got - exact).sum() + whole.sum() - exact.sum())
    assert is_of_size(off, float(found.error[0, 0]))
    # More than what dividing by the sum may cost, which is counted apart.
    assert off > 8 * roundoff()


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


# ------------------------------------------------------------------------------------------------ capped losses


@pytest.mark.exhaustive
@pytest.mark.first_tier("0")
@pytest.mark.parametrize("seed", range(8))
def test_capped_laws_lie_on_their_sides_and_are_exact_before_the_cap(seed):
    rng = np.random.default_rng(seed)
    losses = np.sort(rng.normal(0.0, 2.0 ** rng.integers(-8, 4), ATOMS))
    masses = np.exp(-40.0 * rng.random(ATOMS))
    masses *= np.where(rng.random(ATOMS) < 0.2, 0.0, 1.0) / masses.sum()
    law = of_masses(losses, masses, infinite=1e-9)
    farthest = float(rng.choice(losses)) if seed else 0.0
    capped = jax.jit(evolving.cap)(law, farthest)
    end = float(np.max(np.asarray(capped.losses)[1]))
    at = np.concatenate([losses, end + np.linspace(-1.0, 1.0, 65), [-100.0, 0.0, 100.0]])
    above, below = (divergences(law.losses[i], law.masses[i], at) for i in (0, 1))
    over, under = (divergences(capped.losses[i], capped.masses[i], at) for i in (0, 1))
    over, above = over + LONG(capped.infinite[0]), above + LONG(law.infinite[0])
    assert np.all(over >= above)
    assert np.all(under <= below)
    before = at <= min(end, farthest)
    np.testing.assert_allclose(over[before].astype(float), above[before].astype(float), rtol=1e-11)
    np.testing.assert_allclose(under[before].astype(float), below[before].astype(float), rtol=1e-11)
    assert np.max(capped.losses[0]) <= max(end, farthest)
    assert np.all(np.diff(np.asarray(capped.losses)) >= 0)
    assert float(capped.infinite[1]) == float(law.infinite[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("farthest", [np.inf, np.nan, -np.inf, 1e300, -1e300])
def test_a_cap_that_is_none_changes_nothing_or_stays_sound(farthest):
    law = of_masses([-1.0, 0.5, 2.0], [0.3, 0.4, 0.3])
    capped, at = evolving.cap(law, jnp.asarray(farthest)), np.linspace(-3.0, 3.0, 50)
    over = divergences(capped.losses[0], capped.masses[0], at) + LONG(capped.infinite[0])
    assert np.all(over >= divergences(law.losses[0], law.masses[0], at))
    assert np.all(divergences(capped.losses[1], capped.masses[1], at) <= divergences(law.losses[1], law.masses[1], at))
    if not farthest < 0:
        assert np.array_equal(capped.losses, law.losses)
        assert np.array_equal(capped.masses, law.masses)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("q", "s", "k", "delta"), [(5e-5, 0.81, 102, 2e-7), (2e-5, 1.07, 2022, 8e-6)])
def test_rare_losses_far_beyond_epsilon_need_no_room(q, s, k, delta):
    mechanism = ja.PoissonSubsampledGaussian(s, q)
    found, exact = ja.prv.epsilon(mechanism, k, delta, points=8192), ja.saddlepoint.epsilon(mechanism, k, delta)
    assert found.lower <= exact.upper
    assert exact.lower <= found.upper
    assert found.gap < 5e-3
