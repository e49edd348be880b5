"""Correlated noise accounted for: what it reduces to, what is refused, and divergences summed up on a grid."""

import itertools

import jax
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.mechanisms.mechanism import parts_of
from jaxacct.strategies import (
    BandedToeplitz,
    CyclicPoisson,
    FixedEpochs,
    HonakerTree,
    MinSeparation,
    SinglePass,
    identity,
    square_root,
)

ROOT = square_root(4)
SAMPLED = CyclicPoisson(steps=1000, groups=4, sampling_rate=0.04)


def test_cyclic_sampling_is_dp_sgd_of_as_many_steps_as_turns():
    mechanism = ja.MatrixMechanism(ROOT, 2.0, SAMPLED)
    norm = float(np.linalg.norm(np.asarray(ROOT.first_column, np.float64)))
    for runs in (1, 3):  # a run is the whole training, never one turn
        found = ja.epsilon(mechanism, runs, 1e-5)
        plain = ja.epsilon(ja.PoissonSubsampledGaussian(2.0 / norm, 0.04), 250 * runs, 1e-5)
        assert found.upper == pytest.approx(plain.upper, rel=1e-9)
        assert found.upper >= plain.lower
    assert parts_of(mechanism, 3) == [(mechanism.cycle, 750)]  # what filters, Rényi and GDP's accountants take
    with jax.enable_x64(True):
        found = jax.jit(lambda m: (m.decompose(3)[0][0].noise_multiplier, m.decompose(3)[0][1]))(mechanism)
    noise, runs = map(np.asarray, found)
    assert noise == pytest.approx(mechanism.cycle.noise_multiplier, rel=1e-14)
    assert noise <= mechanism.cycle.noise_multiplier
    assert runs == 750


@pytest.mark.parametrize("participation", [SinglePass(100), MinSeparation(100, 20), FixedEpochs(25, 4)], ids=str)
def test_without_sampling_it_is_one_gaussian(participation):
    for strategy in (identity(), square_root(100), HonakerTree(100)):
        mechanism = ja.MatrixMechanism(strategy, 3.0, participation)
        plain = ja.Gaussian(3.0 / strategy.sensitivity(participation.pattern))
        for relation in ("add_or_remove", "replace"):
            found = ja.epsilon(mechanism, 1, 1e-5, relation=relation)
            assert found.upper == pytest.approx(ja.epsilon(plain, 1, 1e-5, relation=relation).upper, rel=1e-9)
    with pytest.raises(ValueError, match="whole training"):
        _ = mechanism.cycle


def test_scaling_strategy_and_noise_changes_nothing():
    pattern = MinSeparation(50, 10)
    small, large = (
        ja.MatrixMechanism(BandedToeplitz(scale * np.array([1, 0.5])), 2.0 * scale, pattern) for scale in (1, 4)
    )
    assert ja.epsilon(small, 1, 1e-5).upper == ja.epsilon(large, 1, 1e-5).upper


def test_edges():
    assert parts_of(ja.MatrixMechanism(ROOT, 0.0, SAMPLED), 1)[0][0].noise_multiplier == 0
    assert ja.epsilon(ja.MatrixMechanism(ROOT, np.inf, SAMPLED), 1, 1e-5).upper == 0
    weak = ja.MatrixMechanism(BandedToeplitz([0.25]), 1e308, SAMPLED)  # over its sensitivity it is past float64's range
    assert weak.cycle.noise_multiplier < np.inf
    assert ja.epsilon(ja.MatrixMechanism(ROOT, 1.0, CyclicPoisson(100, 4, 0.0)), 1, 1e-5).upper == 0
    assert ja.epsilon(ja.MatrixMechanism(ROOT, 1.0, SAMPLED), 0, 1e-5).upper == 0


def test_relations_are_those_that_the_groups_are_valid_for():
    equal = ja.MatrixMechanism(ROOT, 2.0, CyclicPoisson(1000, 4, 0.04, equal_groups=True))
    with pytest.raises(ValueError, match="'replace'"):
        ja.epsilon(equal, 1, 1e-5)
    plain = ja.MatrixMechanism(ROOT, 2.0, SAMPLED)
    assert "add_or_remove" in plain.cycle.relations
    found, same = (jax.tree.leaves(m.cycle.dominating_pairs("replace")) for m in (equal, plain))
    assert all(map(np.array_equal, found, same))


def test_what_has_no_account_is_refused():
    with pytest.raises(ValueError, match="fewer than the strategy's 4 bands"):
        ja.MatrixMechanism(ROOT, 2.0, CyclicPoisson(1000, 3, 0.04))
    with pytest.raises(ValueError, match="bands"):
        ja.MatrixMechanism(HonakerTree(8), 2.0, CyclicPoisson(8, 4, 0.04))
    with pytest.raises(TypeError, match="only Monte Carlo estimates"):
        ja.MatrixMechanism(ROOT, 2.0, ja.RandomAllocation(2.0, 10))
    with pytest.raises(TypeError, match="strategy"):
        ja.MatrixMechanism(np.eye(3), 2.0, SAMPLED)
    for wrong in (-1.0, np.array([1.0, 2.0])):
        with pytest.raises(ValueError, match="noise_multiplier"):
            ja.MatrixMechanism(ROOT, wrong, SAMPLED)
    with pytest.raises(ValueError, match="composition of cycles"):
        ja.MatrixMechanism(ROOT, 2.0, SAMPLED).dominating_pairs()


def test_filters_grant_whole_cycles():
    mechanism = ja.MatrixMechanism(ROOT, 2.0, SAMPLED)
    ledger = ja.filters.RenyiFilter(3.0, 1e-5)
    whole, after = ledger.spend(mechanism)
    by_cycles = ledger.spend(mechanism.cycle, 250)[1]
    np.testing.assert_allclose(after.spent, by_cycles.spent, rtol=1e-6)
    assert bool(whole)
    assert not bool(after.spend(mechanism)[0])
    equal = ja.MatrixMechanism(ROOT, np.inf, CyclicPoisson(1000, 4, 0.04, equal_groups=True)).cycle
    assert bool(ledger.would_grant(equal, 2, relation="replace"))
    with pytest.raises(ValueError, match="'replace'"):
        ledger.would_grant(equal, 2)


# Divergences of 4 steps, 2 bands, 3 examples, by summing up densities.

NOISE, RATE, COLUMN = 1.3, 0.4, np.array([1.0, 0.75])
EPSILONS = np.array([0.0, 0.5, 1.0, 2.0])
WIDTH, CELLS = 0.6, 30


def grid() -> np.ndarray:
    """Points in the middle of cells that meet at 0, where the inputs' dependence on the past jumps."""
    return WIDTH * (np.arange(CELLS) - CELLS / 2 + 0.5)


def normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * (x / NOISE) ** 2) / (NOISE * np.sqrt(2 * np.pi))


def law(inputs, rates) -> np.ndarray:
    """The density of 4 steps on the grid: ``inputs[t](i, past)`` is what example i of step t's group adds.

    ``rates[t]`` are the rates of the examples that step t samples from; the past is the row before.
    """
    past = [np.zeros(1), grid(), grid(), grid()]
    # Sums of inputs and their probabilities for each outcome of the coins: (outcomes, past), (outcomes,).
    sums, weights = [], []
    for t in range(4):
        coins = list(itertools.product((0, 1), repeat=len(rates[t])))
        sums.append(
            np.array([sum((c * inputs[t](i, past[t]) for i, c in enumerate(coin)), 0 * past[t]) for coin in coins])
        )
        weights.append(
            np.array([np.prod([q if c else 1 - q for c, q in zip(coin, rates[t], strict=True)]) for coin in coins])
        )
    y = grid()
    first, second = COLUMN
    density = weights[0][:, None] * normal(y[None] - first * sums[0])  # k0, y0
    at = y[None, None, None] - first * sums[1][None, :, :, None] - second * sums[0][:, None, :, None]
    density = np.einsum("ax,b,abxy->bxy", density, weights[1], normal(at))  # k1, y0, y1
    at = y[None, None, None, None] - first * sums[2][None, :, None, :, None] - second * sums[1][:, None, :, None, None]
    density = np.einsum("axy,b,abxyz->bxyz", density, weights[2], normal(at))  # k2, y0, y1, y2
    at = y[None, None, None, None] - first * sums[3][None, :, None, :, None] - second * sums[2][:, None, :, None, None]
    last = np.einsum("b,abyzw->ayzw", weights[3], normal(at))  # k2, y1, y2, y3
    return np.einsum("axyz,ayzw->xyzw", density, last) * WIDTH**4


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.array([np.maximum(p - np.exp(eps) * q, 0).sum() for eps in EPSILONS])


def adaptive(i: int, past: np.ndarray) -> np.ndarray:
    """A third example follows what it saw; the second one goes against it; the first, at issue, by its sign."""
    return (np.where(past >= 0, 1.0, -1.0), -np.tanh(past), 0.5 + 0 * past)[i]


def plain(i: int, past: np.ndarray) -> np.ndarray:
    return 1.0 + 0 * past


@pytest.mark.exhaustive
@pytest.mark.parametrize(("at_issue", "others_rate"), [(adaptive, RATE), (adaptive, 1.0), (plain, 1.0)])
def test_divergences_are_those_of_the_account(at_issue, others_rate):
    """Steps 0 and 2 sample from examples 0 and 1, steps 1 and 3 from example 2; example 0 is there or not."""
    others = [lambda i, past, first=first: adaptive(first + i, past) for first in (1, 2, 1, 2)]
    with_it = [lambda i, past: adaptive(1, past) if i else at_issue(0, past), others[1]] * 2
    p = law(with_it, [[RATE, others_rate], [others_rate]] * 2)
    q = law(others, [[others_rate]] * 4)
    assert p.sum() == pytest.approx(1, abs=2e-4)
    account = ja.MatrixMechanism(BandedToeplitz(COLUMN), NOISE, CyclicPoisson(4, 2, RATE))
    for divergences, relation in ((divergence(p, q), "remove"), (divergence(q, p), "add")):
        bounds = [ja.prv.delta(account, 1, eps, relation=relation, points=1024) for eps in EPSILONS]
        for found, bound in zip(divergences, bounds, strict=True):
            assert found <= bound.upper + 3e-4  # the sum over cells in place of the integral
            # Inputs of norm 1 lose nothing, wherever they point, and only coins of others hide anything.
            assert others_rate < 1 or found >= bound.lower - 3e-4
    wrong = ja.MatrixMechanism(BandedToeplitz(COLUMN / np.linalg.norm(COLUMN)), NOISE, CyclicPoisson(4, 2, RATE))
    # The column's norm forgotten.
    assert divergence(p, q)[1] > ja.prv.delta(wrong, 1, EPSILONS[1], points=1024).upper + 0.01


def sampled_divergence(columns: np.ndarray, epsilon: float) -> float:
    """Of sampled contributions along two vectors, in the plane that they span."""
    shifts = np.linalg.qr(columns)[1].T / NOISE  # a row for each participation
    y = np.arange(-8, 11, 0.05)
    points = np.stack(np.meshgrid(y, y, indexing="ij"), -1)
    ratio = 0.0
    for coins in itertools.product((0, 1), repeat=2):
        moved = np.array(coins) @ shifts
        ratio = ratio + RATE ** sum(coins) * (1 - RATE) ** (2 - sum(coins)) * np.exp(points @ moved - moved @ moved / 2)
    base = np.exp(-(points**2).sum(-1) / 2) / (2 * np.pi) * 0.05**2
    return float(np.sum(base * np.maximum(ratio - np.exp(epsilon), 0)))


def rows_of(column, steps: int) -> np.ndarray:
    return np.array([[column[i - j] if 0 <= i - j < len(column) else 0.0 for j in range(steps)] for i in range(steps)])


@pytest.mark.exhaustive
def test_broken_variants_are_caught():
    """Each of them is above the account of the sound mechanism, which itself is at its account."""
    bound = ja.delta(ja.MatrixMechanism(BandedToeplitz(COLUMN), NOISE, CyclicPoisson(4, 2, RATE)), 1, 1.0).upper
    matrix = rows_of(COLUMN, 4)
    sound = sampled_divergence(matrix[:, [0, 2]], 1.0)
    assert sound == pytest.approx(bound, rel=1e-3)
    closer = sampled_divergence(matrix[:, [0, 1]], 1.0)  # turns of a group one step apart
    three_bands = sampled_divergence(rows_of([1.0, 0.75, 0.5], 4)[:, [0, 2]], 1.0)  # turns share noise
    redrawn = sampled_divergence(np.concatenate([matrix, matrix[2:3]])[:, [0, 2]], 1.0)  # a step told with other noise
    for broken in (closer, three_bands, redrawn):
        assert broken > bound * 1.05
