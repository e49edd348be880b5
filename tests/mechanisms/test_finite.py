"""Finite pairs against 40-digit arithmetic on the numbers they are given: every claim is an inequality."""

import jax
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import program

from jaxacct.mechanisms import FinitePair
from jaxacct.numerics.precision import UNIT_ROUNDOFF, as_float64, kernel

mp.mp.dps = 40
RNG = np.random.default_rng(7)


def normalized(weights):
    weights = np.asarray(weights, np.float64)
    return weights / weights.sum()


P = normalized(RNG.exponential(size=40))
CASES = {
    "mixed": (normalized([3, 2, 4, 0, 1, 0]), normalized([1, 2, 0, 3, 4, 0])),
    "proper": (P, normalized(P * np.exp(RNG.normal(size=40)))),
    "close": (P, normalized(P * (1 + 1e-7 * RNG.normal(size=40)))),
    "far": (normalized([1, 1e-200, 1e-3]), normalized([1e-250, 1, 1e-100])),
    "equal": (np.array([0.5, 0.5]), np.array([0.5, 0.5])),
    "all infinite": (np.array([1.0, 0.0]), np.array([0.0, 1.0])),
}


# Outcomes that nobody has change nothing, and let one compilation serve all cases.
CASES = {name: tuple(np.pad(side, (0, 40 - side.size)) for side in sides) for name, sides in CASES.items()}

losses_of = program(lambda pair: pair._losses())
cells_of = program(lambda pair, boundaries: pair.cell_masses(boundaries))
cumulants_of = program(lambda pair, orders: pair.cumulant(orders))
places_of = program(lambda pair: (pair.central_loss(), pair.loss_range(), pair.infinite_mass()))
are_valid = program(lambda pair: pair.is_valid())


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return CASES[request.param]


def atoms(p, q):
    """The finite losses and their masses, exactly."""
    return [(mp.log(mp.mpf(a) / mp.mpf(b)), mp.mpf(a), mp.mpf(b)) for a, b in zip(p, q, strict=True) if a > 0 and b > 0]


def test_losses_are_right_to_less_than_is_allowed(case):
    with jax.enable_x64(True):
        pair = FinitePair(*case)
        found = sorted(float(y) for y in np.asarray(losses_of(pair)) if np.isfinite(y))
        for loss, (truth, _, _) in zip(found, sorted(atoms(*case)), strict=True):
            assert abs(loss - truth) <= 0.75 * abs(truth) * mp.mpf(float(pair.boundary_error(1.0)))


def test_losses_near_zero_keep_their_digits():
    with jax.enable_x64(True):
        ratio = np.exp(RNG.normal(size=500) * 10.0 ** RNG.uniform(-14, 2, size=500))
        p = np.full(500, 1e-60)
        losses = np.asarray(losses_of(FinitePair(p, p * ratio)))
        for y, a, b in zip(losses, p, p * ratio, strict=True):
            truth = mp.log(mp.mpf(a) / mp.mpf(b))
            assert abs(float(y) - truth) <= 6 * UNIT_ROUNDOFF * abs(truth)


def test_cell_masses_are_right_to_the_error_they_state(case):
    with jax.enable_x64(True):
        boundaries = np.concatenate([[-np.inf], np.linspace(-3, 3, 8) + 0.01, [np.inf]])
        cells = cells_of(FinitePair(*case), boundaries)
        for i in range(len(boundaries) - 1):
            inside = [(p, q) for y, p, q in atoms(*case) if boundaries[i] < y <= boundaries[i + 1]]
            for index, (mass, error) in enumerate(((cells.p, cells.p_error), (cells.q, cells.q_error))):
                truth = mp.fsum(atom[index] for atom in inside)
                assert abs(mp.mpf(float(mass[i])) - truth) <= mp.mpf(float(error[i]))
                assert error[i] <= 1e-14 * mass[i] + 1e-300


def test_cells_bracket_the_hockey_stick_divergence(case):
    p, q = (list(map(mp.mpf, side)) for side in case)
    mesh = np.linspace(-4, 4, 401)
    with jax.enable_x64(True):
        pair = FinitePair(*case)
        cells = jax.tree.map(np.asarray, cells_of(pair, np.concatenate([[-np.inf], mesh, [np.inf]])))
        infinite = float(places_of(pair)[2])
    for epsilon in (0.0, 0.3, 2.0):
        truth = mp.fsum(max(a - mp.exp(epsilon) * b, 0) for a, b in zip(p, q, strict=True))
        share = np.maximum(cells.p - np.exp(epsilon) * cells.q, 0)
        lower = share.sum() + infinite
        upper = infinite + cells.p[-1] + np.sum(cells.p[:-1] * np.maximum(-np.expm1(epsilon - mesh), 0))
        assert lower - 1e-15 <= truth <= upper + 1e-15


def test_infinite_mass_is_exact(case):
    p, q = case
    truth = mp.fsum(mp.mpf(a) for a, b in zip(p, q, strict=True) if b == 0)
    with jax.enable_x64(True):
        assert abs(mp.mpf(float(places_of(FinitePair(p, q))[2])) - truth) <= 4 * UNIT_ROUNDOFF * truth


def test_cumulants(case):
    with jax.enable_x64(True):
        orders = np.array([-3.0, -1.0, -0.6, -0.3, 0.0, 0.01, 0.7, 4.0, 60.0, 500.0])
        found = np.asarray(cumulants_of(FinitePair(*case), orders))
    losses = atoms(*case)
    # What the sums miss of one by rounding is not in the cumulant: the truth is that of the normalized pair.
    sums = [mp.fsum(mp.mpf(v) for v in side) for side in case]
    shift = mp.log(sums[0] / sums[1])
    for order, value in zip(orders, found, strict=True):
        moment = mp.fsum(p / sums[0] * mp.exp(mp.mpf(order) * (y - shift)) for y, p, _ in losses)
        if moment == 0:
            assert value == -np.inf
        else:
            truth = mp.log(moment)
            # The masses, normalized, are off by a unit; that is seen only where all losses are near it.
            assert abs(mp.mpf(float(value)) - truth) <= 2e-12 * abs(truth) + 1e-14 * abs(order) * (
                max(abs(y) for y, _, _ in losses)
            )


def test_range_and_centre():
    with jax.enable_x64(True):
        pair = FinitePair(*CASES["mixed"])
        central, ends, _ = places_of(pair)
        assert np.allclose(ends, [np.log(0.1 / 0.4), np.log(3)])
        assert float(central) == 0.0


def test_nothing_is_nan_where_all_of_p_is_infinite():
    with jax.enable_x64(True):
        pair = FinitePair(*CASES["all infinite"])
        found = (
            cells_of(pair, np.concatenate([[-np.inf], np.linspace(-1, 1, 8), [np.inf]])),
            places_of(pair),
        )
    cells, (central, ends, infinite) = jax.tree.map(np.asarray, found)
    for value in (*cells, *ends, central, infinite):
        assert not np.any(np.isnan(value))
    assert infinite == 1
    assert np.all(np.concatenate(cells) == 0)


def test_invalid_pairs():
    good = np.array([0.5, 0.5])
    with jax.enable_x64(True):
        assert are_valid(FinitePair(good, good))
        for bad in ([0.5, 0.4], [1.5, -0.5], [np.nan, 0.5], [np.inf, 0.0], [0.5 + 1e-9, 0.5]):
            assert not are_valid(FinitePair(np.array(bad), good))
            assert not are_valid(FinitePair(good, np.array(bad)))


@pytest.mark.first_tier("True")
@pytest.mark.parametrize("batched", [False, True])
def test_inside_a_float32_trace(batched):
    boundaries = np.array([-np.inf, -0.5, 0.0, 0.7, np.inf])

    def everything(p, q):
        pair = FinitePair(as_float64(p), as_float64(q))
        return (
            pair.cell_masses(as_float64(boundaries)), pair.central_loss(), pair.cumulant(2.0),
            pair.loss_range(), pair.infinite_mass(), pair.is_valid(),
        )  # fmt: skip

    p, q = (np.asarray(side, np.float32) for side in ([0.25, 0.5, 0.25], [0.5, 0.25, 0.25]))
    run = kernel(everything)
    with jax.enable_x64(True):
        expected = jax.jit(everything)(p, q)
    traced = jax.jit(lambda p, q: run(p, q))
    if batched:
        found = jax.tree.map(
            lambda x: x[1], jax.jit(jax.vmap(lambda p, q: run(p, q)))(np.stack([q, p]), np.stack([p, q]))
        )
    else:
        found = traced(p, q)
        looped = jax.jit(lambda *rows: jax.lax.scan(lambda c, x: (c, run(*x)), 0.0, rows)[1])(p[None], q[None])
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b), looped, found)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-15)
