"""Laws as arrays: each privacy profile lies between those of its two discrete laws, rounding included."""

import functools
import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.mechanisms.approximate_dp import bounded_range_pair
from jaxacct.mechanisms.atoms import atoms_in_order, atoms_of_cells, atoms_of_masses, places_about
from jaxacct.mechanisms.bounded_range import RangeBlock, _best_choice
from jaxacct.mechanisms.discrete_gaussian import DiscreteGaussianPair
from jaxacct.mechanisms.finite import FinitePair, PublicCoinPair
from jaxacct.mechanisms.fixed_batches import WithoutReplacementPair
from jaxacct.mechanisms.gaussian import SubsampledGaussianPair, _log_ratio_and_error
from jaxacct.mechanisms.groups import CountedShiftsPair
from jaxacct.mechanisms.normal import normal_masses
from jaxacct.mechanisms.shifted_noise import ShiftedNoisePair
from jaxacct.numerics.precision import scope

NATS = 30.0
CELLS = 64


@functools.cache
def compiled(function):
    """The function as one program in float64, of arrays."""

    def call(*args):
        with scope():
            return jax.tree.map(np.asarray, jax.jit(function)(*args))

    return call


def profile(losses, masses, infinite, epsilons):
    """The hockey-stick divergences of a discrete law at some epsilons, in the arithmetic of NumPy."""
    return infinite + np.sum(masses * -np.expm1(np.minimum(epsilons[:, None] - losses, 0.0)), axis=1)


def exact(losses, masses, infinite, epsilon):
    """The same at one epsilon, in the digits of mpmath."""
    terms = (
        mp.mpf(m) * -mp.expm1(mp.mpf(epsilon) - mp.mpf(y)) for y, m in zip(losses, masses, strict=True) if y > epsilon
    )
    return mp.mpf(infinite) + mp.fsum(terms)


def assert_between(atoms, losses, masses, infinite):
    """Asserts the inequality at every epsilon: profiles are linear in e^epsilon but at the losses of the three laws."""
    above, below = zip(*(tuple(part) for part in (atoms.losses, atoms.masses, atoms.infinite)), strict=True)
    ends = np.unique(np.concatenate([atoms.losses.ravel(), losses]))
    for epsilon in [*ends, ends[0] - 1, *(ends[-1] + np.array([1e-12, 1.0]))]:
        true = exact(losses, masses, infinite, epsilon)
        assert exact(*below, epsilon) <= true <= exact(*above, epsilon), epsilon


def random_law(rng, size, scale):
    losses = np.sort(rng.normal(size=size) * scale)
    losses[rng.random(size) < 0.2] = losses[size // 2]
    masses = rng.exponential(size=size) * np.exp(-rng.exponential(size=size) * 10)
    return np.sort(losses), masses / masses.sum() * 0.999


def rounded(rng, value, error):
    """A float near an exact number, and a bound on its distance from it."""
    found = float(value) + error * rng.uniform(-1, 1)
    return max(found, 0.0), float(abs(mp.mpf(max(found, 0.0)) - value)) * (1 + 1e-9) + 1e-300


@pytest.mark.parametrize("scale", [1e-10, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("error", [0.0, 1e-6])
def test_cells_of_random_laws(scale, error):
    rng = np.random.default_rng(int(1 + error * 1e6))
    found = compiled(lambda *args: atoms_of_cells(*args[:6], infinite=args[6:]))
    with mp.workdps(60):
        for _ in range(3):
            losses, masses = random_law(rng, 40, scale)
            # Edges at losses, some of them equal: the cells between those are atoms.
            edges = np.sort(np.concatenate([losses[:1], rng.choice(losses, 8), losses[20:21], losses[-1:]]))
            edges[0], edges[-1] = (-np.inf, np.inf) if rng.random() < 0.5 else (edges[0], edges[-1])
            slot = np.clip(np.searchsorted(edges, losses), 1, len(edges) - 1) - 1
            cells = [[], [], [], []]
            for i in range(len(edges) - 1):
                inside = [
                    (mp.mpf(m), mp.mpf(m) * mp.exp(-mp.mpf(y)))
                    for y, m in zip(losses[slot == i], masses[slot == i], strict=True)
                ]
                for row, column in ((0, 0), (2, 1)):
                    value = mp.fsum(each[column] for each in inside)
                    cells[row], cells[row + 1] = (
                        [*old, new]
                        for old, new in zip(
                            cells[row : row + 2], rounded(rng, value, error * float(value)), strict=True
                        )
                    )
            doubt = np.where(np.isfinite(edges), error * scale * rng.random(len(edges)), 0.0)
            given = np.where(np.isfinite(edges), edges + doubt * rng.uniform(-1, 1, len(edges)), edges)
            atoms = found(given, *map(np.array, cells), doubt * (1 + 1e-9), 0.001, 0.0009)
            assert_between(atoms, losses, masses, 0.00095)


def worst(values, error, sign):
    """Floats beside exact numbers, as far to one side as the bounds on their errors that come with them allow."""
    found = np.array([float(value * (1 + sign * error)) for value in values])
    return found, np.array([float(abs(mp.mpf(f) - v)) * (1 + 1e-15) for f, v in zip(found, values, strict=True)])


@pytest.mark.parametrize("scale", [1e-10, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("error", [0.0, 1e-9])
def test_cells_where_nothing_is_lost_but_by_errors(scale, error):
    """Losses at the edges of cells, which connecting the dots keeps, and one in each cell, which telling it keeps."""
    rng, found = np.random.default_rng(12), compiled(lambda *args: atoms_of_cells(*args))
    with mp.workdps(60):
        for above in (True, False):
            edges, masses = np.sort(rng.normal(size=12)) * scale, rng.exponential(size=(2, 11)) / 40
            inside = np.stack([edges[:-1], edges[1:]] if above else [edges[:-1] * 0.4 + edges[1:] * 0.6] * 2)
            p = [mp.mpf(one) + mp.mpf(other) for one, other in masses.T]
            q = [
                mp.fsum(mp.mpf(m) * mp.exp(-mp.mpf(y)) for m, y in zip(*column, strict=True))
                for column in zip(masses.T, inside.T, strict=True)
            ]
            side = 1 if above else -1
            moved = edges - error * np.abs(edges) if above else edges
            doubt = 1.01 * error * np.abs(edges)
            atoms = found(moved, *worst(p, error, -side), *worst(q, error, side), doubt)
            law, (losses, found_masses, infinite, _) = 0 if above else 1, atoms
            for epsilon in np.unique(np.concatenate([edges, inside.ravel(), losses[law], [edges[0] - scale]])):
                true = exact(inside.ravel(), masses.ravel(), 0, epsilon)
                value = exact(losses[law], found_masses[law], infinite[law], epsilon)
                assert (true <= value) if above else (value <= true), epsilon
                assert abs(value - true) <= min(10 * scale, 100 * error * (1 + scale) + 1e-12)


@pytest.mark.parametrize("scale", [1e-10, 1.0, 300.0])
def test_atoms_of_random_laws(scale):
    rng = np.random.default_rng(3)
    found = compiled(lambda *args: atoms_of_masses(*args))
    with mp.workdps(60):
        losses, masses = random_law(rng, 30, scale)
        moved, off = losses + 1e-7 * scale * rng.uniform(-1, 1, 30), masses * (1 + 1e-7 * rng.uniform(-1, 1, 30))
        order = rng.permutation(30)
        atoms = found(moved[order], off[order], 1.0001e-7 * scale, (1.0001e-7 * masses)[order], (0.001, 0.001))
        assert_between(atoms, losses, masses, 0.001)


def test_an_infinite_loss_among_atoms_and_one_that_is_no_number():
    found = compiled(lambda losses, masses: atoms_of_masses(losses, masses))
    atoms = found(np.array([0.5, np.inf, -np.inf]), np.array([0.5, 0.25, 0.25]))
    assert 0.25 <= atoms.infinite[0] < 0.25 + 1e-15
    assert atoms.infinite[1] == 0
    assert 0.5 <= atoms.masses[0].sum() < 0.5 + 1e-15
    atoms = found(np.array([0.5, np.nan]), np.array([0.5, 0.5]))
    assert atoms.infinite.tolist() == [1, 0]
    assert not atoms.masses.any()


def test_a_number_that_is_none_makes_the_loss_infinite():
    """Of edges, of P's masses and of the mass of infinite losses; where Q's is none all of the cell moves up."""
    found = compiled(lambda *args: atoms_of_cells(*args[:6], infinite=args[6:]))
    p = np.array([0.5, 0.25, 0.25])
    given = [np.array([-1.0, 0.0, 0.5, 1.0]), p, 1e-16 * p, p[::-1], 1e-16 * p, np.zeros(4), 0.0, 0.0]
    assert found(*given).infinite[0] == 0
    for i in (0, 1, 2, 6):
        worse = [np.array(value) for value in given]
        worse[i] = worse[i] * np.nan
        atoms = found(*worse)
        assert atoms.infinite.tolist() == [1, 0], i
        assert not atoms.masses.any()
    atoms = found(*given[:3], np.full(3, np.nan), *given[4:])
    assert profile(atoms.losses[0], atoms.masses[0], 0, np.array([0.4])) >= 0.5 * -np.expm1(-0.1)
    assert profile(atoms.losses[1], atoms.masses[1], 0, np.array([0.4])) <= 0.25 * -np.expm1(-0.1) + 1e-15


def test_laws_are_sorted_and_keep_their_masses():
    found = compiled(lambda losses, masses: atoms_in_order(losses, masses, (0.0, 0.0), True))
    losses, masses = np.array([[3.0, 1.0, 2.0]] * 2), np.array([[0.5, 0.2, 0.3]] * 2)
    atoms = found(losses, masses)
    assert atoms.losses.tolist() == [[1, 2, 3]] * 2
    assert atoms.masses.tolist() == [[0.2, 0.3, 0.5]] * 2


# ----------------------------------------------------------------------------------------------------
# Masses and losses of Gaussian noise
# ----------------------------------------------------------------------------------------------------


def normal_between(a, b, center, scale):
    """The exact mass of a cell, by the tails on its own side."""
    low, high = ((mp.mpf(v) - mp.mpf(center)) / mp.mpf(scale) for v in (a, b))
    if low > 0:
        low, high = -high, -low
    return (mp.erfc(-high / mp.sqrt(2)) - mp.erfc(-low / mp.sqrt(2))) / 2


@pytest.mark.parametrize("apart", [1e-4, 0.03, 0.5, 3.0])
def test_normal_masses_are_right_to_their_bounds(apart):
    rng, found = np.random.default_rng(5), compiled(jax.vmap(normal_masses, (None, None, 0, None)))
    with mp.workdps(60):
        for _ in range(4):
            scale, centers = np.exp(rng.uniform(-4, 4)), np.sort(rng.normal(size=2))
            x = centers[0] + scale * (apart * (np.arange(14) - 6.3) + rng.uniform(-0.3, 0.3) * apart)
            x[0], x[-1] = min(x[0], centers[0] - 5 * scale), max(x[-1], centers[1] + 5 * scale)
            ends = np.concatenate([[-np.inf], x, [np.inf]])
            masses, errors = found(*((ends[:-1], ends[1:]) if scale > 1 else (ends[1:], ends[:-1])), centers, scale)
            for k, center in enumerate(centers):
                true = [normal_between(a, b, center, scale) for a, b in itertools.pairwise(ends)]
                off = [float(abs(mp.mpf(m) - t)) for m, t in zip(masses[k], true, strict=True)]
                assert np.all(off <= errors[k]), (scale, center, x)
            if apart < 0.1:
                inner, farthest = slice(2, -2), np.max(np.abs(x[1:-1] - centers[:, None])) / scale
                assert np.all(errors[:, inner] <= (1e-14 + 1e-15 * farthest**2) * masses[:, inner] + 1e-300)


def test_losses_of_a_sampled_gaussian_are_right_to_their_bounds():
    rng, found = np.random.default_rng(6), compiled(_log_ratio_and_error)
    with mp.workdps(80):
        for i in range(60):
            s = np.exp(rng.uniform(np.log(0.02), np.log(1e3))) if i % 7 else 10.0 ** rng.uniform(100, 160)
            q = [1.0, 1 - 1e-9, np.exp(rng.uniform(-300, -30))][i % 5] if i % 5 < 3 else np.exp(rng.uniform(-30, 0))
            x = np.concatenate([rng.uniform(-10 * s, 1 + 10 * s, 20), 0.5 + s * s * rng.normal(size=5) * 1e-8])
            losses, errors = found(s, q, x)
            for at, loss, error in zip(x, losses, errors, strict=True):
                v = (mp.mpf(at) - mp.mpf(0.5)) / mp.mpf(s) ** 2
                true = mp.log1p(mp.mpf(q) * mp.expm1(v))
                assert abs(mp.mpf(loss) - true) <= mp.mpf(error), (s, q, at)
                assert error <= 1e-12 * abs(loss) + 1e-14 * abs(float(v)), (s, q, at)


@pytest.mark.parametrize("reaches", [(0.5, 0.5), (0.0, 0.25), (1.0, np.inf)])
def test_places_rise_and_reach_as_far_as_they_should(reaches):
    with scope():
        x, following = map(np.asarray, places_about(jnp.asarray(-1.0), jnp.asarray(2.0), *reaches, 34))
        back, before = places_about(jnp.asarray(-1.0), jnp.asarray(2.0), *reaches, 34, False)
    assert (x[0], x[-1]) == (-np.inf, np.inf)
    assert np.array_equal(following[:-1], x[1:])
    assert np.array_equal(back, x[::-1])
    assert np.array_equal(before[:-1], back[1:])
    x = x[1:-1]
    assert np.all(np.diff(x) > 0)
    assert (x[0], x[-1]) == (-1 - reaches[0], 2 + reaches[0])
    assert np.ptp(np.delete(np.diff(x), 15)) < 1e-12
    if reaches[1] < np.inf:
        assert x[15] == pytest.approx(-1 + reaches[1], abs=x[15] - x[14])


# ----------------------------------------------------------------------------------------------------
# Every kind of pair
# ----------------------------------------------------------------------------------------------------


def sampled_gaussian(s, q, removes):
    return SubsampledGaussianPair(s, q, removes)


def plain_laplace(b, *_):
    return ShiftedNoisePair(b, jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0]), "laplace")


def sampled_laplace(b, q, _):
    return ShiftedNoisePair(b, jnp.array([0.0, 1.0]), jnp.stack([1 - q, q]), jnp.array([1.0, 0.0]), "laplace")


def replaced_gaussian(s, q, _):
    none = 0 * q
    return ShiftedNoisePair(
        s, jnp.array([0.0, 1.0, -1.0]), jnp.stack([1 - q, q, none]), jnp.stack([1 - q, none, q]), "gaussian"
    )


def counted(s, q, _):
    masses = jnp.stack([(1 - q) ** 2, 2 * q * (1 - q), q * q])
    return CountedShiftsPair(s, jnp.arange(3.0), masses, jnp.array([1.0, 0.0, 0.0]), "gaussian", 8.0)


def without_replacement(noise):
    return functools.partial(lambda s, q, _, noise: WithoutReplacementPair(s, q, noise), noise=noise)


def finite(s, q, _):
    p = jnp.stack([q / 2, 0.5 - q / 2, 0.25, 0.25])
    return FinitePair(p, jnp.stack([0.25, 0.25, 0.5 - q / 2, q / 2]) * jnp.ones_like(s))


def many_outcomes(s, q, _):
    logs = -0.5 * (jnp.linspace(-6.0, 6.0, 999) / s) ** 2
    p, other = (jax.nn.softmax(logs + v * jnp.linspace(-1.0, 1.0, 999)) for v in (1.0, -q))
    return FinitePair(p, other)


def discrete(reach):
    return functools.partial(lambda s, *_, reach: DiscreteGaussianPair(s, 1, reach), reach=reach)


def ranged(s, *_):
    return bounded_range_pair(1 / s)


def coin(s, q, removes):
    pairs = SubsampledGaussianPair(jnp.stack([s, s / 2]), jnp.stack([q, q / 2]), jnp.stack([removes, removes]))
    return PublicCoinPair(pairs, jnp.array([0.75, 0.25]))


KINDS = {
    "sampled gaussian": (sampled_gaussian, 0.06, 1e3),
    "plain laplace": (plain_laplace, 0.01, 1e3),
    "sampled laplace": (sampled_laplace, 0.05, 1e3),
    "replaced gaussian": (replaced_gaussian, 0.1, 1e2),
    "counted shifts": (counted, 0.2, 1e2),
    "gaussian without replacement": (without_replacement("gaussian"), 0.3, 1e2),
    "laplace without replacement": (without_replacement("laplace"), 0.1, 1e2),
    "finite": (finite, 1.0, 2.0),
    "many outcomes": (many_outcomes, 0.3, 3.0),
    "discrete gaussian": (discrete(64), 0.3, 1.6),
    "discrete gaussian in cells": (discrete(512), 0.3, 13.0),
    "bounded range": (ranged, 0.1, 1e3),
    "public coin": (coin, 0.2, 1e2),
}
"""Functions from (noise, rate, whether an example is removed) to a pair, and the range of the noise."""


@functools.cache
def law_and_run(kind):
    pair_of = KINDS[kind][0]
    law = compiled(lambda s, q, removes, nats: pair_of(s, q, removes).discretize(CELLS, nats))
    return law, compiled(lambda s, q, removes, epsilons: jax.lax.map(pair_of(s, q, removes).one_run, epsilons))


@pytest.mark.first_tier("sampled gaussian", "plain laplace")
@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_is_between_those_of_the_laws(kind):
    """Against the pair's own bounds on delta of one run, which are made of tails at the epsilon asked for."""
    rng, (law, run) = np.random.default_rng(7), law_and_run(kind)
    _, least, most = KINDS[kind]
    for i in range(12):
        s, q = np.exp(rng.uniform(np.log(least), np.log(most))), np.exp(rng.uniform(np.log(1e-8), 0.0))
        removes, nats = bool(i % 2), rng.uniform(16, 50)
        atoms = law(s, q, removes, nats)
        assert np.all(np.diff(atoms.losses) >= 0)
        assert np.all(np.isfinite(atoms.losses))
        assert np.all(atoms.masses >= 0)
        assert atoms.masses[1].sum() <= 1 + 1e-14
        assert 1 - 1e-12 - np.exp(-nats) <= atoms.masses[0].sum() + atoms.infinite[0] <= 1 + 1e-9
        assert 1 - atoms.masses[1].sum() - atoms.infinite[1] <= 1e-9 + 2 * np.exp(-nats)
        places = atoms.losses.ravel()[atoms.masses.ravel() > 1e-12]
        epsilons = np.append(np.maximum(rng.choice(places, 7) * rng.uniform(0.9, 1.1, 7), 0.0), 0.0)
        lower, upper = run(s, q, removes, epsilons)
        slack = 1e-14  # the sum of NumPy
        above, below = (profile(*(part[side] for part in atoms[:3]), epsilons) for side in (0, 1))
        assert np.all(below * (1 - slack) - 1e-300 <= upper)
        assert np.all(above * (1 + slack) + 1e-300 >= lower)
        # The gap of the total variation distance: wide laws could hide a wrong one.
        assert above[-1] - below[-1] <= 0.2 * upper[-1] + 1e-12, (s, q, removes, nats)


@pytest.mark.first_tier("sampled gaussian")
@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_static_and_a_batch_gives_what_its_rows_give(kind):
    pair_of, least, most = KINDS[kind]
    if kind == "discrete gaussian":
        most = 1.5
    s, q = np.geomspace(least, most, 3), np.array([1e-3, 0.1, 0.5])
    removes, nats = np.array([True, False, True]), np.array([16.0, 30.0, 50.0])
    law = lambda *args: pair_of(*args[:3]).discretize(CELLS, args[3])  # noqa: E731
    batch = compiled(jax.vmap(law))(s, q, removes, nats)
    single = law_and_run(kind)[0](*(row[1] for row in (s, q, removes, nats)))
    assert batch.losses.shape == batch.masses.shape == (3, *single.losses.shape)
    assert batch.infinite.shape == (3, 2)
    epsilons = np.linspace(0, 1, 5)
    for side in (0, 1):
        one, other = (
            profile(*(part[side] for part in law[:3]), epsilons)
            for law in (single, jax.tree.map(lambda x: x[1], batch))
        )
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("finite", "many outcomes")])
@pytest.mark.parametrize("noise", [np.nan, -1.0])
def test_noise_that_is_none_makes_every_loss_infinite(kind, noise):
    atoms = law_and_run(kind)[0](noise, 0.1, True, NATS)
    assert atoms.infinite.tolist() == [1, 0]
    assert not atoms.masses.any()
    assert np.all(np.isfinite(atoms.losses))


def test_a_rate_that_is_none_makes_every_loss_infinite():
    for rate in (np.nan, -0.1, 1.5):
        assert law_and_run("sampled gaussian")[0](1.0, rate, True, NATS).infinite.tolist() == [1, 0]


# ----------------------------------------------------------------------------------------------------
# Profiles that are known in closed form, in 50 digits
# ----------------------------------------------------------------------------------------------------


def delta_of_sampled_gaussian(s, q, removes, epsilon):
    s, q, epsilon = mp.mpf(s), mp.mpf(q), mp.mpf(epsilon)
    # The place where log r is epsilon, or minus that.
    r = mp.exp(epsilon if removes else -epsilon)
    if r <= 1 - q:
        return 1 - mp.exp(epsilon) if removes else mp.mpf(0)
    x = s**2 * mp.log((r - 1) / q + 1) + mp.mpf(1) / 2
    side = 1 if removes else -1
    base, shifted = (mp.erfc(side * (x - center) / s / mp.sqrt(2)) / 2 for center in (0, 1))
    mixture = (1 - q) * base + q * shifted
    return mixture - r * base if removes else base - mixture / r


@pytest.mark.parametrize("removes", [True, False])
def test_a_sampled_gaussian_in_fifty_digits(removes):
    rng, (law, _) = np.random.default_rng(8), law_and_run("sampled gaussian")
    with mp.workdps(50):
        for i in range(12):
            s = np.exp(rng.uniform(np.log(0.06), np.log(1e3)))
            q = 1.0 if i % 4 == 0 else np.exp(rng.uniform(np.log(1e-12), 0.0))
            atoms = law(s, q, removes, NATS)
            above, below = zip(*(tuple(part) for part in atoms[:3]), strict=True)
            for epsilon in np.maximum(rng.choice(atoms.losses[0], 5) * rng.uniform(0.95, 1.05, 5), 0.0):
                true = delta_of_sampled_gaussian(s, q, removes, epsilon)
                assert exact(*below, epsilon) <= true <= exact(*above, epsilon), (s, q, epsilon)


def test_laplace_in_fifty_digits():
    rng, (law, _) = np.random.default_rng(9), law_and_run("plain laplace")
    with mp.workdps(50):
        for b in np.exp(rng.uniform(np.log(0.01), np.log(1e4), 8)):
            above, below = zip(*(tuple(part) for part in law(b, 1.0, True, NATS)[:3]), strict=True)
            for epsilon in [0.0, *rng.uniform(0, 1 / b, 5)]:
                true = -mp.expm1((mp.mpf(epsilon) - 1 / mp.mpf(b)) / 2)
                assert exact(*below, epsilon) <= true <= exact(*above, epsilon), (b, epsilon)


@pytest.mark.parametrize("kind", ["discrete gaussian", "discrete gaussian in cells"])
def test_a_discrete_gaussian_in_fifty_digits(kind):
    rng, (law, _) = np.random.default_rng(10), law_and_run(kind)
    _, least, most = KINDS[kind]
    with mp.workdps(50):
        for s in np.exp(rng.uniform(np.log(least), np.log(most), 3)):
            above, below = zip(*(tuple(part) for part in law(s, 1.0, True, NATS)[:3]), strict=True)
            n = [mp.mpf(i) for i in range(-int(40 * s) - 5, int(40 * s) + 7)]
            weights = [mp.exp(-(i**2) / (2 * mp.mpf(s) ** 2)) for i in n]
            total = mp.fsum(weights)
            for epsilon in rng.uniform(0, 4 / s, 4):
                scale = mp.exp(mp.mpf(epsilon))
                both = itertools.pairwise(weights)
                true = mp.fsum(max(p - scale * q, 0) for p, q in both) / total
                assert exact(*below, epsilon) <= true <= exact(*above, epsilon), (s, epsilon)


def test_more_cells_are_tighter():
    """The gap of the laws falls with the square of the cells' width, as connecting the dots promises."""
    gaps = []
    for cells in (64, 256):
        law = compiled(
            functools.partial(lambda s, cells: sampled_gaussian(s, 0.1, True).discretize(cells, NATS), cells=cells)
        )
        atoms = law(1.0)
        above, below = (profile(*(part[side] for part in atoms[:3]), np.array([0.2])) for side in (0, 1))
        gaps.append(float(above[0] - below[0]))
    assert 0 < gaps[1] < gaps[0] / 7


def test_examples_of_users_losses():
    """A law by distribution functions that a user gives: the pair of a Gaussian, by its loss."""

    def cdf(losses, mu, mean):
        return jax.scipy.special.ndtr((losses - mean) / mu)

    mechanism = ja.PrivacyLoss(
        lambda y, mu: cdf(y, mu, mu**2 / 2),
        lambda y, mu: cdf(y, mu, -(mu**2) / 2),
        lowest=-12.0,
        highest=12.0,
        parameters=1.0,
        infinite_mass=1e-30,
    )
    (pair, *_) = mechanism.dominating_pairs()
    atoms = compiled(lambda nats: pair.discretize(128, nats))(NATS)
    with mp.workdps(50):
        above, below = zip(*(tuple(part) for part in atoms[:3]), strict=True)
        for epsilon in (0.0, 0.5, 2.0, 4.0):
            true = delta_of_sampled_gaussian(1.0, 1.0, True, epsilon)
            assert exact(*below, epsilon) <= true <= exact(*above, epsilon)
            assert exact(*above, epsilon) - exact(*below, epsilon) < 0.1 * true


@pytest.mark.first_tier("2.0-2")
@pytest.mark.parametrize(("span", "runs"), [(4.0, 30), (2.0, 2), (0.5, 100)])
def test_a_block_of_ranges_has_one_of_its_compositions_below(span, runs):
    """Runs of the losses t and t - e each, whatever t was taken: in 40 digits."""
    (pair,) = RangeBlock(span, float(runs)).dominating_pairs()
    atoms = compiled_block()(pair, NATS)
    losses, masses = (part[1][atoms.masses[1] > 0] for part in (atoms.losses, atoms.masses))
    with mp.workdps(40):
        e = mp.mpf(span)
        t = mp.mpf(float(best_choice()(np.float64(span), NATS, 1.0)))
        high = (1 - mp.exp(t - e)) / (1 - mp.exp(-e))
        true = [
            (runs * t - j * e, mp.binomial(runs, j) * high ** (runs - j) * (1 - high) ** j) for j in range(runs + 1)
        ]
        for y, m in zip(losses, masses, strict=True):
            loss, mass = min(true, key=lambda atom: abs(atom[0] - y))
            assert loss - 1e-12 * (1 + abs(loss)) <= y <= loss
            assert mass * (1 - 2e-11) <= m <= mass
    epsilons = np.linspace(0, span * runs, 40)
    above, below = (profile(*(part[side] for part in atoms[:3]), epsilons) for side in (0, 1))
    assert np.all(below <= above)
    lower, upper = compiled(lambda pair, epsilons: jax.lax.map(pair.one_run, epsilons))(pair, epsilons)
    assert np.all(above >= lower * (1 - 1e-13))
    assert np.all(above[:-1] <= upper[:-1] * (1 + 1e-9) + 1e-190)


@functools.cache
def compiled_block():
    return compiled(lambda pair, nats: pair.discretize(512, nats))


@functools.cache
def best_choice():
    return compiled(_best_choice)


@pytest.mark.exhaustive
def test_several_blocks_are_not_said_to_cost_more_than_curves_say():
    """300 runs of a range of 4 cost at most an epsilon of 647.20 by their Renyi curve; the lower laws obey that."""
    (pair,) = RangeBlock(4.0, 30.0, spread=300 * 16.0).dominating_pairs()
    atoms = compiled_block()(pair, 30.0)
    is_atom = atoms.masses[1] > 0
    # From the largest loss, of 30 t, down: each is 4 less than the one before.
    largest, law = np.max(atoms.losses[1][is_atom]), atoms.masses[1][is_atom][::-1]
    np.testing.assert_allclose(np.diff(atoms.losses[1][is_atom]), 4.0, rtol=1e-9)
    total = np.ones(1)
    for _ in range(10):
        total = np.convolve(total, law)
    losses, total = (10 * largest - 4.0 * np.arange(len(total)))[::-1], total[::-1]
    assert profile(losses, total, 0.0, np.array([647.20]))[0] < 1e-5
    assert profile(losses, total, 0.0, np.array([612.0]))[0] > 1e-5
