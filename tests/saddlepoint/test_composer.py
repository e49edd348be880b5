"""The contour composer: every error bound as an inequality, and its brackets against sums that are exact."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.mechanisms.atoms import Atoms, atoms_of_masses
from jaxacct.mechanisms.gaussian import SubsampledGaussianPair
from jaxacct.numerics.precision import scope
from jaxacct.saddlepoint import composer

U = 2.0**-53


@pytest.fixture(autouse=True)
def float64():
    with scope():
        yield


def stacked(*laws):
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *laws)


def alone(law, count):
    """Rows and counts for one law that is run so often, beside one that is not run: as many rows as elsewhere here."""
    return stacked(law, law), jnp.array([count, 0.0])


def sampled(s, q, removes, steps, delta, cells=512):
    return SubsampledGaussianPair(s, q, removes).discretize(
        cells, jnp.maximum(jnp.log(steps) - jnp.log(delta), 0.0) + 12
    )


@jax.jit
def sampled_epsilon(s, q, steps, delta):
    """Bounds on epsilon of subsampled Gaussian steps, the larger of both directions."""

    def of_direction(removes):
        return composer.epsilon(stacked(sampled(s, q, removes, steps, delta)), jnp.reshape(steps, 1), delta)

    lower, upper = jax.vmap(of_direction)(jnp.array([True, False]))
    return lower.max(), upper.max()


epsilon, delta, curve = (
    jax.jit(ask, static_argnames="side") for ask in (composer.epsilon, composer.delta, composer.curve)
)


def random_law(random, size=4, spread=1.0, infinite=0.0):
    """One law, the same on both sides, whose masses add up to 1 less the infinite one, to the bit; of eight atoms."""
    shares = random.dirichlet(np.full(size, 0.5)) * (1 - infinite)
    masses = np.round(shares * 2.0**40) * 2.0**-40
    masses[0] += 1 - infinite - masses.sum()
    losses = np.pad(np.sort(random.normal(0, spread, size)), (0, 8 - size), "edge")
    masses = np.pad(masses, (0, 8 - size))
    return Atoms(np.stack([losses] * 2), np.stack([masses] * 2), np.full(2, infinite), np.zeros(()))


def exact_delta(laws, counts, eps):
    """Delta of few runs of few atoms, by every path."""
    runs = [law for law, count in zip(laws, counts, strict=True) for _ in range(count)]
    found, finite = mpmath.mpf(0), mpmath.mpf(1)
    for path in itertools.product(*(np.flatnonzero(law.masses[0]) for law in runs)):
        mass, loss = mpmath.mpf(1), mpmath.mpf(0)
        for law, atom in zip(runs, path, strict=True):
            mass, loss = mass * mpmath.mpf(law.masses[0, atom]), loss + mpmath.mpf(law.losses[0, atom])
        if loss > eps:
            found += mass * -mpmath.expm1(eps - loss)
    for law in runs:
        finite *= 1 - mpmath.mpf(law.infinite[0])
    return found + 1 - finite


# ----------------------------------------------------------------------------------------------------
# Smoothing
# ----------------------------------------------------------------------------------------------------


def smoothed(v, half, mean):
    """E (1 - e^-(v + G))+ for normal G of variance 2 half."""
    mu, v, mean = mpmath.sqrt(2 * mpmath.mpf(half)), mpmath.mpf(v), mpmath.mpf(mean)
    tilted = mpmath.exp(-v - mean + mu * mu / 2)
    return mpmath.ncdf((v + mean) / mu) - tilted * mpmath.ncdf((v + mean) / mu - mu)


@pytest.mark.first_tier("0.1", "6.0")
@pytest.mark.parametrize("mu", [1e-3, 0.1, 0.7, 1.0, 1.4, 6.0, 80.0])
def test_smoothing_is_above_and_less_the_bump_below(mu):
    half = mu * mu / 2
    (mean, bump), (mean_below, bump_below) = (
        tuple(map(float, composer.smoothing_of(jnp.float64(half), sign))) for sign in (1.0, -1.0)
    )
    assert bump == 0 < bump_below
    least, places = np.inf, np.concatenate([np.linspace(-9, 9, 73), [-1e-9, 1e-9, 2 * mu, mu, 30.0]])
    with mpmath.workdps(60):
        for v in places * mu:
            f = -mpmath.expm1(-v) if v > 0 else mpmath.mpf(0)
            assert smoothed(v, half, mean) >= f - mpmath.mpf(10) ** -50
            density = mpmath.exp(-(mpmath.mpf(v) ** 2) / (4 * half)) / mpmath.sqrt(4 * mpmath.pi * half)
            room = bump_below * density - (smoothed(v, half, mean_below) - f)
            assert room >= -(mpmath.mpf(10) ** -50)
            least = min(least, room / (bump_below * density))
    assert least < 0.95  # and not far more than is needed


# ----------------------------------------------------------------------------------------------------
# Rounding, term by term
# ----------------------------------------------------------------------------------------------------


@pytest.mark.first_tier("0")
@pytest.mark.parametrize("seed", range(3))
def test_excess_of_masses_keeps_its_digits(seed):
    random = np.random.default_rng(seed)
    masses = random.dirichlet(np.full(512, 0.3)) * (1 + seed * 1e-9)
    law = Atoms(np.zeros(512), masses, np.zeros(()), np.zeros(()))
    found = float(jax.jit(composer.compose)(1.0, stacked(law), jnp.ones(1)).excess[0])
    exact = sum(map(Fraction, masses)) - 1
    assert abs(Fraction(found) - exact) <= 2 * U * abs(exact) + Fraction(512 * 512, 2**105)


@pytest.mark.first_tier("0.3-3.0")
@pytest.mark.parametrize(("spread", "order"), [(1e-4, 30.0), (0.3, 3.0), (20.0, 0.2), (300.0, 1.5)])
def test_transform_errs_by_no_more_than_its_bound(spread, order):
    side, n, random = 8, 48, np.random.default_rng(7)
    losses = np.sort(random.normal(0, spread, n))
    masses = random.dirichlet(np.full(n, 0.2)) + 1e-30
    exponents = np.log(masses) + order * losses
    cumulant = float(np.logaddexp.reduce(exponents)) * (1 + 1e-15)
    spacing = float(np.float32(1.3 / spread))
    excess = float(sum(map(Fraction, masses)) - 1)
    mean = np.sum(losses * np.exp(exponents - cumulant)) + 0.1 * spread  # any number near the mean will do
    given = losses, masses, excess, 1e-16 * abs(excess), order, cumulant, mean, spacing
    found = jax.jit(composer.transform, static_argnums=8)(*given, side)
    worst = 0.0
    with mpmath.workdps(50):
        y, p, t = [mpmath.mpf(v) for v in losses], [mpmath.mpf(v) for v in masses], mpmath.mpf(order)
        weights = [a * mpmath.exp(t * b - mpmath.mpf(cumulant)) for a, b in zip(p, y, strict=True)]
        mass = mpmath.fsum(weights)
        assert abs(mass - 1 - float(found.surplus)) <= float(found.surplus_error)
        for a, b in itertools.product(range(side), range(0, side, 3)):
            w = mpmath.mpf(spacing) * (side * a + b)
            turned = [
                u * mpmath.expjpi(w * (v - mpmath.mpf(mean)) / mpmath.pi) for u, v in zip(weights, y, strict=True)
            ]
            true = mpmath.fsum(turned) / mass - 1
            off = abs(true - mpmath.mpc(*map(float, found.parts[:, a, b])))
            assert off <= float(found.error) * w
            worst = max(worst, float(off / (float(found.error) * w))) if w else worst
    assert worst > 1e-3  # and not far less


def true_spectrum(line, laws, counts, half, mean, bump, side):
    """The integrand at all frequencies but for the common factor, in mpmath, by its definition."""
    t, found = mpmath.mpf(float(line.numbers.order)), np.empty((side, side), object)
    for a, b in itertools.product(range(side), range(side)):
        w = mpmath.mpf(float(line.numbers.spacing)) * (side * a + b)
        z = mpmath.mpc(t, w)
        value = mpmath.exp(z * z * half + (z - t) * mean) * (1 / (z * (z + 1)) - bump)
        for law, count in zip(laws, counts, strict=True):
            terms = [mpmath.mpf(p) * mpmath.exp(z * mpmath.mpf(y)) for y, p in zip(law.losses, law.masses, strict=True)]
            at_zero = [
                mpmath.mpf(p) * mpmath.exp(t * mpmath.mpf(y)) for y, p in zip(law.losses, law.masses, strict=True)
            ]
            value *= (mpmath.fsum(terms) / mpmath.fsum(at_zero)) ** count
        value *= mpmath.exp(mpmath.mpc(0, -w * mpmath.mpf(float(line.numbers.start))))
        found[a, b] = value * mpmath.mpf(float(line.numbers.spacing)) / mpmath.pi / (1 if w else 2)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("spread", "counts"), [(1.0, (3, 2)), (1e-3, (10**6, 0)), (0.02, (10**8, 7))])
def test_spectrum_errs_by_no_more_than_its_allowance(sign, spread, counts):
    side, random = 8, np.random.default_rng(11)
    laws = [jax.tree.map(lambda leaf: leaf[0] if leaf.ndim else leaf, random_law(random, 6, spread)) for _ in counts]
    runs = composer.compose(jnp.float64(sign), stacked(*laws), jnp.asarray(counts, float))
    log_target = jnp.log(1e-3)
    found = composer.search(runs, jnp.zeros(()), log_target, False)
    line = jax.jit(composer.lay_line, static_argnums=4)(runs, found, found.guess[None], log_target[None], side)
    half = composer.cut(side) / (side**2 * line.numbers.spacing) ** 2
    mean, bump = map(float, composer.smoothing_of(half, sign))
    with mpmath.workdps(40):
        truth = true_spectrum(line, laws, counts, float(half), mean, bump, side)
        re, im = np.asarray(line.spectrum)
        nodes = [[mpmath.mpc(re[i, j], im[i, j]) for j in range(side)] for i in range(side)]
        off = mpmath.fsum(abs(truth[i, j] - nodes[i][j]) for i in range(side) for j in range(side))
        w = [[mpmath.mpf(float(line.numbers.spacing)) * (side * i + j) for j in range(side)] for i in range(side)]
        # The rounding of the means moves eps, and that of the unit is the unit's.
        moved = float(line.numbers.drift) * mpmath.fsum(
            w[i][j] * abs(nodes[i][j]) for i in range(side) for j in range(side)
        )
        assert 0 < off <= float(line.numbers.allowance) + moved
        assert mpmath.fsum(abs(node) for row in nodes for node in row) <= float(line.numbers.size)
        unit = mpmath.mpf(mean) * float(line.numbers.order)
        for law, count in zip(laws, counts, strict=True):
            terms = [
                mpmath.mpf(p) * mpmath.exp(float(line.numbers.order) * mpmath.mpf(y))
                for y, p in zip(law.losses, law.masses, strict=True)
            ]
            unit += count * mpmath.log(mpmath.fsum(terms))
        assert abs(unit - float(line.numbers.unit)) <= float(line.numbers.unit_error)
        # Reading multiplies by a turn, and sums.
        for at in (float(line.numbers.start) * 1.01 + spread, float(line.numbers.start) * 0.99):
            log_unit = float(line.numbers.unit) - float(line.numbers.order) * at
            bound, value, slope = composer.read(line, jnp.float64(at), jnp.float64(log_unit))
            exact = mpmath.fsum(
                (nodes[i][j] * mpmath.exp(mpmath.mpc(0, -w[i][j] * (at - float(line.numbers.start))))).real
                for i in range(side)
                for j in range(side)
            )
            if exact > 0:
                assert float(value) == pytest.approx(float(exact), rel=1e-9)
                assert sign * float(bound) >= sign * exact
            assert slope < 0


@pytest.mark.exhaustive
def test_chernoff_bounds_hold():
    random = np.random.default_rng(3)
    law = random_law(random, 5, 0.7)
    side = jax.tree.map(lambda leaf: leaf[0] if leaf.ndim else leaf, law)
    runs = composer.compose(jnp.float64(1.0), stacked(side), jnp.full(1, 3.0))
    found = composer.search(runs, jnp.float64(0.5), jnp.zeros(()), True)
    for share in (0.1, 0.3, 0.7):
        eps = share * 3 * float(law.losses.max())
        truth = mpmath.log(exact_delta([law], [3], eps))
        assert truth <= float(composer.chernoff_delta(found, eps)) < truth + 3
        assert float(composer.chernoff_epsilon(found, jnp.float64(float(truth)))) >= eps


@pytest.mark.exhaustive
def test_rare_losses_are_bounded_by_their_paths():
    random, counts = np.random.default_rng(13), (2, 1)
    laws = [random_law(random, 4, 1.0) for _ in counts]
    sides = [jax.tree.map(lambda leaf: leaf[0] if leaf.ndim else leaf, law) for law in laws]
    losses = np.sort(np.concatenate([law.losses[law.masses > 0] for law in sides]))
    paths = list(itertools.product(*(np.flatnonzero(law.masses) for law in (sides[0], sides[0], sides[1]))))
    for threshold in (losses[-1] + 1, losses[-2], losses[-5]):
        for sign in (1.0, -1.0):
            runs = composer.compose(jnp.float64(sign), stacked(*sides), jnp.asarray(counts, float))
            rest, rare = composer.split(runs, jnp.float64(threshold))
            kept = [law.masses[law.losses <= threshold] for law in sides]
            left = np.where(np.isfinite(rest.log_masses), rest.both[:, 0], 0.0)
            assert left.sum() == pytest.approx(sum(masses.sum() for masses in kept))
            for i, masses in enumerate(kept):
                off = abs(Fraction(float(rest.excess[i])) - (sum(map(Fraction, masses)) - 1))
                assert off <= Fraction(float(rest.excess_error[i]))
            for eps in (0.0, float(rare.packed[2]), float(rare.packed[2]) + 0.5, threshold + 2.0):
                truth = mpmath.mpf(0)
                for path in paths:
                    atoms = list(zip((sides[0], sides[0], sides[1]), path, strict=True))
                    loss = mpmath.fsum(mpmath.mpf(law.losses[i]) for law, i in atoms)
                    if loss > eps and any(law.losses[i] > threshold for law, i in atoms):
                        truth -= mpmath.fprod(mpmath.mpf(law.masses[i]) for law, i in atoms) * mpmath.expm1(eps - loss)
                bound, _ = rare.bound(jnp.float64(eps), jnp.float64(sign))
                assert sign * float(bound) >= sign * truth
                if 0 <= eps <= float(rare.packed[2]):
                    assert float(bound) == pytest.approx(float(truth), rel=1e-9)


# ----------------------------------------------------------------------------------------------------
# Events
# ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("infinite", [0.0, 2.0**-8])
def test_events_that_need_no_line_bound_delta(infinite):
    random, counts = np.random.default_rng(17), (2, 1)
    laws = [random_law(random, 4, 1.5, infinite) for _ in counts]
    # Losses such that Q is a law, too.
    laws = [law._replace(losses=law.losses + np.log(np.sum(law.masses * np.exp(-law.losses)) / 2)) for law in laws]
    sides = stacked(*(jax.tree.map(lambda leaf: leaf[0] if leaf.ndim else leaf, law) for law in laws))
    most = sum(count * float(law.losses.max()) for law, count in zip(laws, counts, strict=True))
    above, below = (
        composer.sure_events(composer.compose(jnp.float64(sign), sides, jnp.asarray(counts, float)))
        for sign in (1.0, -1.0)
    )
    best = 0.0
    with mpmath.workdps(30):
        none = 1 - (1 - mpmath.mpf(infinite)) ** sum(counts)
        for share in (0.0, 0.3, 0.8, 0.999, 1 - 1e-6):
            eps = share * most
            truth = exact_delta(laws, counts, eps) - none
            each, top = (float(jnp.max(event.delta(eps, -1.0)[0])) for event in below)
            assert max(each, top) <= truth <= float(above[1].delta(eps, 1.0)[0])
            best = max(best, each / float(truth))
            assert share < 0.99 or top > 0.99 * truth  # near the supremum no other path counts
        assert best > 0.5
        # The same bounds, inverted.
        for room in (1e-3, 0.2):
            found = max(float(jnp.max(event.epsilon(room, -1.0))) for event in below)
            assert found > 0
            assert exact_delta(laws, counts, found) - none >= room


@pytest.mark.parametrize(("infinite", "spread"), [(0.0, 1.0), (2.0**-8, 4.0)])
def test_a_single_run_is_read_off_its_atoms(infinite, spread):
    law = random_law(np.random.default_rng(19), 6, spread, infinite)
    law = law._replace(losses=law.losses + np.log(np.sum(law.masses * np.exp(-law.losses)) / 2))
    rows, counts = alone(law, 1.0)
    for share in (0.01, 0.5, 0.95):
        eps = share * float(law.losses.max())
        with mpmath.workdps(30):
            truth = exact_delta([law], [1], eps)
            lower, upper = map(float, delta(rows, counts, eps))
            assert lower <= truth <= upper <= lower * (1 + 1e-9)
            least, most = map(float, epsilon(rows, counts, float(truth)))
        assert least <= eps * (1 + 1e-12)
        assert most >= eps * (1 - 1e-12)
        assert most - least <= 1e-5 * eps


# ----------------------------------------------------------------------------------------------------
# Brackets against exact sums
# ----------------------------------------------------------------------------------------------------


def check_against_paths(seed, number):
    random = np.random.default_rng(seed)
    for _ in range(number):
        spread = float(np.exp(random.uniform(np.log(1e-3), np.log(30.0))))
        laws = [random_law(random, 4, spread, infinite) for infinite in (0.0, 2.0 ** -random.integers(5, 40))]
        counts = random.integers(0, 4, 2)
        eps = float(abs(random.normal(0, spread)) * np.sqrt(max(counts.sum(), 1)))
        with mpmath.workdps(30):
            truth = exact_delta(laws, counts, eps)
            lower, upper = map(float, delta(stacked(*laws), counts, eps))
            assert lower <= truth <= upper
            # Delta falls strictly where it is above the mass of infinite losses: the inverse is known.
            level = float(truth)
            if truth - exact_delta(laws, counts, 1e6) > 1e-9 * truth:
                least, most = map(float, epsilon(stacked(*laws), counts, level))
                assert least <= eps * (1 + 1e-12) + 1e-15 * spread
                assert most >= eps * (1 - 1e-12) - 1e-15 * spread


@pytest.mark.exhaustive
def test_brackets_hold_the_sum_over_all_paths():
    check_against_paths(1, 8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 12))
def test_brackets_hold_the_sum_over_all_paths_at_large(seed):
    check_against_paths(seed, 60)


def gaussian_delta(mu, eps):
    return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)


@pytest.mark.exhaustive
def test_a_curve_from_one_spectrum_holds_the_gaussian_mechanism():
    eps = np.linspace(1.5, 2.5, 9)
    law = jax.jit(sampled, static_argnames="cells")(30.0, 1.0, True, 400.0, 1e-9)
    lower, upper = curve(stacked(law), jnp.full(1, 400.0), eps)
    with mpmath.workdps(30):
        truth = [gaussian_delta(mpmath.mpf(20) / 30, mpmath.mpf(e)) for e in eps]
    assert all(float(low) <= true <= float(high) for low, true, high in zip(lower, truth, upper, strict=True))
    assert np.max(np.asarray(upper - lower) / np.asarray(upper)) < 0.02


def test_losses_whose_exponentials_are_no_numbers():
    losses = np.array([-900.0, 0.0, 999.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0])
    masses = np.array([0.0, 0.25, 0.25, 0.5, 0.0, 0.0, 0.0, 0.0])
    law = Atoms(np.stack([losses] * 2), np.stack([masses] * 2), np.zeros(2), np.zeros(()))
    for count, eps in ((1, 999.9), (1, 998.5), (2, 1999.5), (2, 999.5), (3, 2000.0)):
        with mpmath.workdps(30):
            truth = exact_delta([law], [count], eps)
            lower, upper = map(float, delta(*alone(law, float(count)), eps))
            assert lower <= truth <= upper
            least, most = map(float, epsilon(*alone(law, float(count)), float(truth)))
            assert least <= eps * (1 + 1e-12)
            assert most >= eps * (1 - 1e-12)


@pytest.mark.exhaustive
def test_an_epsilon_beyond_all_losses_spoils_no_other():
    law = random_law(np.random.default_rng(23), infinite=2.0**-9)
    most = float(law.losses.max())
    rows, counts = alone(law, 4.0)
    eps = np.array([0.2 * most, 3 * most, 5 * most, np.inf])
    lower, upper = curve(rows, counts, eps)
    none = 1 - (1 - 2.0**-9) ** 4
    for i, at in enumerate(eps[:2]):
        least, upmost = delta(rows, counts, at)
        assert max(least, lower[i]) <= min(upmost, upper[i])
        assert upper[i] <= lower[i] * 1.2 < 1
    np.testing.assert_allclose(np.stack([lower, upper])[:, 2:], none, rtol=1e-12)
    assert np.all(lower <= upper)


@pytest.mark.exhaustive
def test_several_sizes_narrow():
    gaps = []
    for cells, side in ((128, 16), (512, 32), (2048, 64)):
        law = stacked(sampled(1.0, 0.01, True, 1e4, 1e-5, cells))
        lower, upper = map(float, epsilon(law, jnp.full(1, 1e4), 1e-5, side=side))
        assert lower <= 6.187712389970937 * (1 + 1e-13)
        assert upper >= 6.187712389970937 * (1 - 1e-13)
        gaps.append((upper - lower) / upper)
    assert gaps[0] > 6 * gaps[1] > 36 * gaps[2]
    assert gaps[1] < 4e-4


# ----------------------------------------------------------------------------------------------------
# Edges
# ----------------------------------------------------------------------------------------------------


def test_nothing_is_run():
    law = random_law(np.random.default_rng(0))
    assert tuple(map(float, epsilon(*alone(law, 0.0), 1e-30))) == (0.0, 0.0)
    lower, upper = map(float, delta(*alone(law, 0.0), 0.0))
    assert lower == 0 <= upper <= 1e-300


def test_rows_without_runs_do_not_count():
    random = np.random.default_rng(5)
    one, other = random_law(random), random_law(random, infinite=0.25)
    both = epsilon(stacked(one, other), jnp.array([4.0, 0.0]), 1e-4)
    np.testing.assert_allclose(both, epsilon(*alone(one, 4.0), 1e-4), rtol=1e-12)


@pytest.mark.parametrize("broken", ["losses", "masses", "infinite", "shift"])
def test_a_number_that_is_none_proves_nothing(broken):
    law = random_law(np.random.default_rng(1))
    leaf = np.array(getattr(law, broken))
    leaf[...] = np.nan
    law = law._replace(**{broken: leaf})
    assert tuple(map(float, epsilon(*alone(law, 1.0), 1e-5))) == (0.0, np.inf)
    assert tuple(map(float, delta(*alone(law, 1.0), 0.1))) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("counts", "level", "bounds"),
    [(np.nan, 1e-5, (0, np.inf)), (-1.0, 1e-5, (0, np.inf)), (np.inf, 1e-5, (0, np.inf)), (1.0, np.nan, (0, np.inf)),
     (1.0, -1e-9, (0, np.inf)), (1.0, 1.1, (0, np.inf)), (1.0, 1.0, (0, 0))],
)  # fmt: skip
def test_arguments_out_of_range(counts, level, bounds):
    law = random_law(np.random.default_rng(2))
    assert tuple(map(float, epsilon(*alone(law, counts), level))) == bounds


@pytest.mark.exhaustive
def test_a_delta_below_the_mass_of_infinite_losses_has_no_epsilon():
    law = random_law(np.random.default_rng(3), infinite=2.0**-20)
    assert tuple(map(float, epsilon(*alone(law, 8.0), 7.9 * 2.0**-20))) == (np.inf, np.inf)
    lower, upper = map(float, epsilon(*alone(law, 8.0), 8.1 * 2.0**-20))
    assert 0 < lower < upper < np.inf


@pytest.mark.exhaustive
def test_a_delta_of_zero_needs_the_supremum():
    law = random_law(np.random.default_rng(4))
    lower, upper = map(float, epsilon(*alone(law, 3.0), 0.0))
    most = 3 * float(law.losses.max())
    assert lower <= most <= upper <= most * (1 + 1e-12)


@pytest.mark.exhaustive
def test_a_loss_that_is_constant():
    law = atoms_of_masses(jnp.zeros(8).at[0].set(0.5), jnp.zeros(8).at[0].set(1.0))
    lower, upper = map(float, epsilon(*alone(law, 10.0), 1e-3))
    truth = 5 + np.log1p(-1e-3)
    assert lower <= truth <= upper <= 5 * (1 + 1e-9)
    assert lower > 4.9
    nothing = atoms_of_masses(jnp.zeros(8), jnp.full(8, 0.125))
    lower, upper = map(float, epsilon(*alone(nothing, 1e8), 1e-9))
    assert lower == 0 <= upper < 1e-9


@pytest.mark.exhaustive
def test_an_empty_law_below_leaves_the_bound_above():
    law = random_law(np.random.default_rng(6))
    empty = law._replace(masses=np.stack([law.masses[0], 0 * law.masses[0]]))
    lower, upper = epsilon(*alone(empty, 5.0), 1e-4)
    _, known = epsilon(*alone(law, 5.0), 1e-4)
    assert lower == 0
    assert upper == known < np.inf


@pytest.mark.exhaustive
def test_the_shift_of_losses_counts_for_every_run():
    law = random_law(np.random.default_rng(8))
    plain = epsilon(*alone(law, 100.0), 1e-4)
    moved = epsilon(*alone(law._replace(shift=np.float64(1e-3)), 100.0), 1e-4)
    np.testing.assert_allclose(np.subtract(moved, plain), [-0.1, 0.1], rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("s", "q", "steps"), [(0.02, 0.3, 10), (0.06, 1.0, 1000), (1e3, 0.01, 1e8), (1e5, 1.0, 1e6)])
def test_little_and_huge_noise(s, q, steps):
    lower, upper = map(float, sampled_epsilon(s, q, steps, 1e-6))
    known = ja.epsilon(ja.PoissonSubsampledGaussian(s, q), int(steps), 1e-6)
    assert lower <= float(known.upper)
    assert float(known.lower) <= upper < np.inf
    assert upper - lower < 0.02 * upper


@pytest.mark.exhaustive
@pytest.mark.parametrize("level", [0.999, 0.5, 1e-22, 1e-40, 1e-150])
def test_deltas_near_one_and_tiny(level):
    lower, upper = map(float, sampled_epsilon(2.0, 0.1, 3000.0, level))
    known = ja.epsilon(ja.PoissonSubsampledGaussian(2.0, 0.1), 3000, level)
    assert lower <= float(known.upper)
    assert float(known.lower) <= upper
    assert upper - lower <= 0.01 * upper


@pytest.mark.exhaustive
def test_a_batch_has_the_bounds_of_its_entries():
    s, levels = jnp.array([0.7, 1.0, 3.0]), jnp.array([1e-6, 1e-5, 1e-9])
    together = jax.vmap(sampled_epsilon, (0, None, None, 0))(s, 0.02, 500.0, levels)
    each = [sampled_epsilon(*each) for each in zip(s, [0.02] * 3, [500.0] * 3, levels, strict=True)]
    np.testing.assert_allclose(np.transpose(together), each, rtol=1e-6)


# ----------------------------------------------------------------------------------------------------
# At large
# ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_brackets_agree_with_those_of_the_exact_accountant():
    random = np.random.default_rng(0)
    for _ in range(100):
        s, q, steps, level = np.exp(random.uniform(*np.log([(0.4, 1e-4, 1, 1e-12), (8.0, 0.9, 1e6, 0.1)])))
        steps = round(steps)
        known = ja.epsilon(ja.PoissonSubsampledGaussian(s, q), steps, level)
        lower, upper = sampled_epsilon(s, q, float(steps), level)
        assert lower <= float(known.upper)
        assert upper >= float(known.lower)


SUPREMA = [
    (5.983759282304653, 2, 0),
    (0.006757862552945369, 100, 0),
    (3.5016395140129415, 10, 0),
    (4.770198012365221, 10, 4),
]


@pytest.mark.filterwarnings("ignore::jaxacct.prv.ToleranceWarning")
@pytest.mark.parametrize(("loss", "runs", "units"), SUPREMA)
def test_nothing_is_left_of_delta_at_the_supremum(loss, runs, units):
    """Losses of two values: from runs times the larger on delta is 0, and there is no bound below but that."""
    epsilon = runs * loss * (1 + units * 2.0**-52)
    bounds = ja.delta(ja.RandomizedResponse(epsilon=loss), runs, epsilon)
    assert bounds.lower == 0
    assert bounds.upper < 1e-12
