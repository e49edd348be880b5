"""The grid of integer noise: never less noise than is accounted, whatever a sum's last bits; and what fails closed."""

import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import draws as so_many

from jaxacct.numerics.precision import scope
from jaxacct.train import integer_noise as noise
from jaxacct.train import run_key
from jaxacct.train.integer_noise import draws_of, grid_of, on_grid
from jaxacct.train.noise import deviation_of_mean, privatize

DITHER = Fraction(49, 16)
SQUARES = {2: Fraction(2**40) - DITHER, 3: Fraction(2**40, 765**2 + 1) + 2**50 - DITHER}
"""s'^2, what accounted noise may have as its variance."""

PER_ENTRY = 1 + Fraction(2) ** 45 / 2**47
"""The most that rounding may move an entry of a difference: 1, and what the scaling errs by at 2^40."""


def root_above(x):
    """A rational number above the root of one."""
    return Fraction(math.isqrt(x.numerator * x.denominator * 2**400) + 1, x.denominator * 2**200)


def is_paid(grid, sigma, norm, entries, draws, rounding=0.0):
    """Whether s' over the sensitivity of what is rounded is at least the multiplier, exactly."""
    grid, sigma, norm, rounding = map(Fraction, (grid, sigma, norm, rounding))
    return (sigma * (norm / grid + root_above(Fraction(entries)) * PER_ENTRY + rounding)) ** 2 <= SQUARES[draws]


def test_the_constants_are_those_of_the_proof():
    assert Fraction(noise.ROUNDING_OF_ENTRY) >= PER_ENTRY
    for draws, square in SQUARES.items():
        below = Fraction(noise.deviation_below(draws))
        assert below**2 < square * (1 - Fraction(1, 2**51))
        assert below**2 > square * (1 - Fraction(1, 2**47))
    assert noise.VARIANCES[2] == 2**40
    assert noise.VARIANCES[3] == Fraction(2**40, 765**2 + 1) + 2**50


@functools.cache
def grids_of(entries, draws):
    """One program for all multipliers, norms and roundings."""
    of = lambda sigma, norm, rounding: grid_of(sigma, norm, entries, draws, rounding)  # noqa: E731
    compiled = jax.jit(jax.vmap(of))

    def grids(*numbers):
        with scope():
            return np.asarray(compiled(*map(jnp.asarray, numbers)))

    return grids


def settings(count, seed):
    rng = np.random.default_rng(seed)
    sigma, norm = 10.0 ** rng.uniform(-3, 3, count), 10.0 ** rng.uniform(-6, 6, count)
    single = rng.random(count) < 0.5  # numbers of float32, as adaptive rules have them
    sigma, norm = (np.where(single, x.astype(np.float32).astype(np.float64), x) for x in (sigma, norm))
    return sigma, norm, np.where(rng.random(count) < 0.5, 0.0, 10.0 ** rng.uniform(0, 5, count))


@pytest.mark.parametrize(("entries", "draws"), [(1, 2), (670_000, 3), (10**9, 3), (0, 3), (64, 2)])
@pytest.mark.first_tier("1-2", "670000-3")
def test_no_grid_gives_less_noise_than_is_accounted(entries, draws):
    """And up to the last multiplier that has one, where nearly all of the noise pays for roundings."""
    sigma, norm, rounding = settings(so_many(100, 5000), entries)
    if entries:  # up to the limit
        with np.errstate(over="ignore"):
            limit = noise.deviation_below(draws) / (math.sqrt(entries) * float(PER_ENTRY) + rounding)
        close = np.random.default_rng(1).uniform(0.01, 6.0, len(sigma))
        near = np.arange(len(sigma)) % 2 == 0
        sigma = np.where(near, limit * (1 - 2.0**-close), sigma)
    found = grids_of(entries, draws)(sigma, norm, rounding)
    usable = np.isfinite(found)
    assert np.mean(usable) > 0.4
    assert entries == 0 or not np.all(usable)
    for grid, *given in zip(found[usable], sigma[usable], norm[usable], rounding[usable], strict=True):
        assert grid > 0
        assert is_paid(grid, given[0], given[1], entries, draws, given[2])
    # And little more than is needed, where rounding takes little.
    for grid, *given in zip(found[usable], sigma[usable], norm[usable], rounding[usable], strict=True):
        room = noise.deviation_below(draws) - given[0] * (math.sqrt(entries) * float(PER_ENTRY) + given[2])
        if room > noise.deviation_below(draws) / 2:
            assert not is_paid(grid * (1 - 1e-11), given[0], given[1], entries, draws, given[2])


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
@pytest.mark.first_tier("float64")
def test_concrete_settings_get_draws_and_a_grid_that_pay(dtype):
    rng = np.random.default_rng(0)
    seen = set()
    for entries in (1, 10**4, 5 * 10**8):
        for _ in range(so_many(4, 40)):
            sigma, norm = dtype(10.0 ** rng.uniform(-3, 2)), dtype(10.0 ** rng.uniform(-3, 3))
            draws = draws_of(sigma, entries)
            seen.add(draws)
            assert is_paid(float(grid_of(sigma, norm, entries, draws)), float(sigma), float(norm), entries, draws)
            # Two draws only where they cost less than a thousandth.
            lost = float(sigma) * math.sqrt(entries) * float(PER_ENTRY)
            assert (draws == 2) == (lost <= 1e-3 * 2**20 * (1 - 1e-9))
    assert seen == {2, 3}


BAD = [0.0, -1.0, math.inf, -math.inf, math.nan, 1e9, 1e-20, 1e-320, 5e-7 * 2.0**-20]


def release_of():
    """Releases at traced numbers, as one program."""
    key = run_key()

    @jax.jit
    def of(sigma, norm, total):
        return privatize(key, total, noise_multiplier=sigma, clip_norm=norm, expected_batch_size=1.0)

    def released(sigma, norm, total):
        with scope():
            tree = of(jnp.float64(sigma), jnp.float64(norm), jax.tree.map(jnp.asarray, total))
            return np.concatenate([np.ravel(leaf) for leaf in tree])

    return released


def test_traced_multipliers_without_a_grid_give_nan_and_never_a_number():
    release = release_of()
    total = [np.array([0.0, 1.0, -3.0]), np.array(0.5)]
    assert np.isfinite(release(1.0, 1.0, total)).all()
    for sigma in BAD:
        assert np.isnan(release(sigma, 1.0, total)).all(), sigma
    for norm in (math.inf, math.nan, -1.0, -math.inf, 0.0, 1e-320):
        assert np.isnan(release(1.0, norm, total)).all(), norm


@pytest.mark.parametrize(
    ("sigma", "words"),
    [
        (-1.0, "noise_multiplier"), (math.nan, "noise_multiplier"), (1e9, "more than half"), (1e-20, "so small"),
    ],
)  # fmt: skip
def test_concrete_multipliers_without_a_grid_are_refused_with_their_name(sigma, words):
    with pytest.raises(ValueError, match=words) as refused:
        privatize(run_key(), np.ones(3), noise_multiplier=sigma, clip_norm=1.0, expected_batch_size=1.0)
    assert "noise_multiplier" in str(refused.value)
    assert len(str(refused.value)) <= 600
    with pytest.raises(ValueError, match="noise_multiplier"):
        draws_of(sigma, 3)


def test_none_and_all_of_the_noise_are_as_with_other_keys():
    settings = {"clip_norm": 1.0, "expected_batch_size": 4.0}
    assert privatize(run_key(), np.ones(3), noise_multiplier=0.0, **settings).tolist() == [0.25] * 3
    assert privatize(run_key(), np.ones(3), noise_multiplier=np.inf, **settings).tolist() == [0.0] * 3
    with pytest.raises(ValueError, match="clip_norm"):
        privatize(run_key(), np.ones(3), noise_multiplier=1.0, clip_norm=np.inf, expected_batch_size=1.0)


def test_optimizers_are_told_what_is_added():
    """The deviation s of Z times the grid, which is more than sigma C; and no less than what is released varies by."""
    for sigma, entries in ((1.0, 3000), (2.0, 10**8)):
        told = float(deviation_of_mean(sigma, 0.5, 4.0, entries))
        draws = draws_of(sigma, entries)
        exact = math.sqrt(noise.VARIANCES[draws]) * float(grid_of(sigma, 0.5, entries, draws)) / 4
        assert told == pytest.approx(exact, rel=1e-6)
        assert told >= sigma * 0.5 / 4 * (1 - 1e-7)
    total = np.linspace(-5, 5, 3000)
    y = np.asarray(privatize(run_key(), total, noise_multiplier=1.0, clip_norm=0.5, expected_batch_size=4.0))
    assert np.std(y - total / 4) == pytest.approx(float(deviation_of_mean(1.0, 0.5, 4.0, 3000)), rel=0.08)
    # And it is a whole multiple of the grid.
    multiples = 4 * y / float(grid_of(1.0, 0.5, 3000, draws_of(1.0, 3000)))
    np.testing.assert_allclose(multiples, np.rint(multiples), atol=1e-7)
    assert np.abs(multiples).max() > 2**18


# ----------------------------------------------------------------------------------------------------
# What rounding does to neighbours.
# ----------------------------------------------------------------------------------------------------

LIMIT = 2**44


def clipped(u):
    return max(min(u, Fraction(LIMIT)), Fraction(-LIMIT))


@jax.jit
def on_traced(leaf, grid):
    return on_grid(leaf, grid), leaf / grid


GRID = 0.3 / 1_048_572.1


@jax.jit
def on_constant(leaf, grid):
    return on_grid(leaf, jnp.float64(GRID)), leaf / jnp.float64(GRID)


def adversarial(grid, rng, count):
    """Sums at midpoints of the grid, at the clip's edge, far beyond, and anywhere; and neighbours of each."""
    whole = np.concatenate([rng.integers(-(2**39), 2**39, count), rng.integers(-50, 50, count), [0, 1, -1]])
    middles = (whole + 0.5) * grid
    edge = np.array([sign * (LIMIT + off) * grid for sign in (-1, 1) for off in (-1, -0.5, 0, 0.5, 1, 1e3)])
    far = np.array([1e18, -1e18, 1e300, -1e300, 2.0**1000]) * min(grid, 1.0)
    sums = np.concatenate([middles, edge, far, rng.normal(size=count) * grid * 10.0 ** rng.uniform(-3, 12, count)])
    moved = [np.nextafter(sums, np.inf), np.nextafter(sums, -np.inf), sums + 1e-12, sums - 1e-12, sums + grid / 2]
    moved += [sums + grid * rng.normal(size=len(sums)), sums * (1 + 1e-12), sums]
    return sums, moved


@pytest.mark.parametrize("on", [on_traced, on_constant])
def test_rounding_errs_by_half_and_neighbours_part_by_no_more_than_is_paid_for(on):
    rng = np.random.default_rng(0)
    for grid in (GRID,) if on is on_constant else (GRID, 1.0, 2.0**-30 / 3, 7e5):
        sums, moved = adversarial(grid, rng, so_many(20, 2000))
        with scope():
            multiples = [[np.asarray(x) for x in on(jnp.asarray(s), jnp.float64(grid))] for s in (sums, *moved)]
        exact = [[Fraction(float(x)) / Fraction(grid) for x in s] for s in (sums, *moved)]
        eta = Fraction(1, 2**51)
        for (found, quotients), wanted in zip(multiples, exact, strict=True):
            for x, q, u in zip(found.tolist(), quotients.tolist(), wanted, strict=True):
                assert abs(Fraction(q) - u) <= eta * abs(u)  # 2^-47 is what grids pay for
                assert x == int(x)
                assert abs(Fraction(x) - clipped(u)) <= Fraction(1, 2) + LIMIT * eta
        for (found, _), wanted in zip(multiples[1:], exact[1:], strict=True):
            d = len(found)
            apart = sum((Fraction(x) - Fraction(y)) ** 2 for x, y in zip(multiples[0][0], found, strict=True))
            real = sum((u - v) ** 2 for u, v in zip(exact[0], wanted, strict=True))
            # |x - x'| <= |u - u'| + sqrt(d) (1 + 2^41 eta), squared so that roots are of one side.
            extra = Fraction(d) * (1 + 2 * LIMIT * eta) ** 2
            assert apart <= real + extra + 2 * root_above(real * extra)


def test_the_rounding_of_neighbours_is_attained():
    """At 1/2 - e and 1/2 + e of the grid all entries part: without sqrt(d) the noise would be too little."""
    d, grid = 100, 1.0
    below, above = np.full(d, 0.5 - 1e-9), np.full(d, 0.5 + 1e-9)
    with scope():
        x, y = (np.asarray(on_grid(jnp.asarray(s), jnp.float64(grid))) for s in (below, above))
    assert np.linalg.norm(x - y) == math.sqrt(d) > 1e6 * np.linalg.norm(above - below)


def test_a_sum_is_rounded_after_it_is_clipped_and_stays_whole_with_its_noise():
    most = 16383 * (1 + 32 + 32 * 765)
    assert LIMIT + most < 2**53
    assert most < 2**31
    with scope():
        x = np.asarray(on_grid(jnp.array([1e300, -1e300, 2.0**44 + 3, -(2.0**45)]), jnp.float64(1.0)))
    assert x.tolist() == [2.0**44, -(2.0**44), 2.0**44, -(2.0**44)]
