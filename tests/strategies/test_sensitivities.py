"""Sensitivities against all sets of steps and all signs, in exact arithmetic; never below, and equal where they are."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from jaxacct.strategies import (
    BandedToeplitz,
    BufferedToeplitz,
    CyclicPoisson,
    Dense,
    FixedEpochs,
    HonakerTree,
    MinSeparation,
    Pattern,
    SinglePass,
    _best,
    identity,
    of_matrix,
    square_root,
)

PATTERNS = [
    *(SinglePass(steps).pattern for steps in (1, 7, 12)),
    *(MinSeparation(*numbers).pattern for numbers in ((12, 3), (12, 4, 2), (11, 5), (9, 1, 3), (8, 1), (7, 9))),
    *(FixedEpochs(*numbers).pattern for numbers in ((4, 3), (3, 4), (1, 6), (6, 2))),
]  # fmt: skip


def sets_of(pattern: Pattern):
    """Yields every set of steps of a pattern that is not empty."""
    for size in range(1, pattern.most + 1):
        for steps in itertools.combinations(range(pattern.steps), size):
            gaps = np.diff(steps)
            if np.all(gaps >= pattern.separation) and not (pattern.is_fixed and np.any(gaps % pattern.separation)):
                yield steps


def square(matrix: np.ndarray, pattern: Pattern, *, signs: bool) -> Fraction:
    """The largest squared norm of a sum of columns, with any signs, of numbers as they are."""
    exact = np.vectorize(Fraction)(matrix)
    gram = exact.T @ exact
    found = Fraction(0)
    for steps in sets_of(pattern):
        block = gram[np.ix_(steps, steps)]
        moves = itertools.product((1, -1), repeat=len(steps) - 1) if signs else [(1,) * (len(steps) - 1)]
        for rest in moves:
            move = np.array([1, *rest], dtype=object)
            found = max(found, move @ block @ move)
    return found


def toeplitz(column: np.ndarray, steps: int) -> np.ndarray:
    padded = np.pad(np.asarray(column, np.float64)[:steps], (0, max(steps - len(column), 0)))
    return np.array([[padded[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


def holds(bound: float, truth: Fraction, *, exact: bool) -> None:
    assert Fraction(bound) ** 2 >= truth
    if exact:
        assert bound <= float(truth) ** 0.5 * (1 + 1e-12)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_toeplitz(pattern):
    rng = np.random.default_rng(pattern.steps + 100 * pattern.separation)
    falling = np.sort(rng.integers(0, 64, 12))[::-1] / 64 + 1 / 64
    banded = [identity(), square_root(12), BandedToeplitz(falling), BandedToeplitz(falling[:4])]
    cases = [(strategy, True) for strategy in banded]
    uneven = np.concatenate([[1.0], rng.integers(0, 64, 6) / 64])
    # Exact where no two participations share noise, where distances are fixed, and of one.
    apart = pattern.most == 1 or pattern.is_fixed or pattern.separation >= len(uneven)
    cases += [(BandedToeplitz(uneven), apart)]
    cases += [(BandedToeplitz(uneven * [1, *rng.choice([-1, 1], 6)]), apart and not pattern.is_fixed)]
    for strategy, exact in cases:
        column = np.asarray(strategy.first_column, np.float64)
        matrix = toeplitz(column, pattern.steps)
        truth = square(matrix, pattern, signs=bool(np.any(column < 0)) and pattern.most <= 4)
        holds(strategy.sensitivity(pattern), truth, exact=exact)
        holds(Dense(matrix).sensitivity(pattern), truth, exact=pattern.most == 1 or (pattern.is_fixed and exact))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_buffered(pattern):
    strategy = BufferedToeplitz(weights=[0.25, 0.125], rates=[0.5, 0.75])  # dyadic: powers are exact
    matrix = toeplitz(strategy.coefficients(pattern.steps), pattern.steps)
    holds(strategy.sensitivity(pattern), square(matrix, pattern, signs=False), exact=True)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_any_matrix(pattern):
    rng = np.random.default_rng(pattern.steps)
    for bands, signed in itertools.product((2, 12), (False, True)):
        matrix = np.tril(np.triu(rng.integers(-63 if signed else 0, 64, (pattern.steps,) * 2), 1 - bands)) / 64
        np.fill_diagonal(matrix, 1.0)
        truth = square(matrix, pattern, signs=signed and pattern.most <= 4)
        exact = pattern.most == 1 or pattern.separation >= bands or (pattern.is_fixed and not signed)
        holds(Dense(matrix).sensitivity(pattern), truth, exact=exact)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_tree(pattern):
    tree = HonakerTree(12)
    holds(tree.sensitivity(pattern), square(tree.matrix(pattern.steps), pattern, signs=False), exact=pattern.most == 1)


def test_the_sums_of_the_dynamic_program():
    weights = np.random.default_rng(0).random((3, 9))
    for separation, most in ((1, 3), (2, 4), (4, 2), (9, 1)):
        patterns = [list(steps) for steps in sets_of(Pattern(9, separation, most))]
        best = [max(row[steps].sum() for steps in patterns) for row in weights]
        np.testing.assert_allclose(_best(weights, separation, most), best, rtol=1e-14)


def test_contributions_of_other_directions_are_within_the_bound():
    """Vectors in place of signs: what an adversary may choose."""
    rng = np.random.default_rng(1)
    matrix = np.tril(rng.normal(size=(9, 9)))
    pattern = MinSeparation(9, 2).pattern
    bound = of_matrix(matrix, pattern)
    for steps in sets_of(pattern):
        moves = rng.normal(size=(9, 3))
        moves /= np.linalg.norm(moves, axis=1, keepdims=True)
        moves[[t for t in range(9) if t not in steps]] = 0
        assert np.linalg.norm(matrix @ moves) <= bound


def test_rounding_is_counted():
    """A column whose squares sum to one ulp above what float64 says: the bound is above the truth still."""
    for seed in range(20):
        column = np.sort(np.random.default_rng(seed).random(300).astype(np.float32))[::-1]
        truth = sum((Fraction(float(c)) ** 2 for c in column), Fraction(0))
        holds(BandedToeplitz(column).sensitivity(SinglePass(300).pattern), truth, exact=True)


def test_tree_aggregation_is_below_its_depth():
    """As events of dp-accounting have it: a step is in one block of each level."""
    for steps in (1, 2, 3, 8, 100, 1024, 3000):
        bound = HonakerTree(steps).sensitivity(SinglePass(steps).pattern)
        assert bound <= np.sqrt(steps.bit_length()) * (1 + 1e-6)
    assert bound < 0.95 * np.sqrt(12)


def test_patterns_and_their_wrong_uses():
    assert MinSeparation(10, 3).pattern == Pattern(10, 3, 4)
    assert MinSeparation(10, 30, 5).pattern == Pattern(10, 10, 1)
    assert CyclicPoisson(10, 4, 0.5).cycles == 3
    for wrong in (lambda: SinglePass(0), lambda: MinSeparation(4, 0), lambda: FixedEpochs(2**20, 2**20),
                  lambda: CyclicPoisson(4, 2, 1.5), lambda: HonakerTree(0), lambda: square_root(0),
                  lambda: square_root(3, momentum=0.9, decay=0.5), lambda: BandedToeplitz([0.0, 1.0]),
                  lambda: BandedToeplitz([1.0, np.nan]), lambda: Dense([[1.0, 1.0], [0.0, 1.0]]),
                  lambda: BufferedToeplitz([-0.5], [0.5]), lambda: BufferedToeplitz([0.5], [1.5]),
                  lambda: HonakerTree(4).sensitivity(SinglePass(5).pattern),
                  lambda: Dense(np.eye(3)).sensitivity(SinglePass(4).pattern),
                  lambda: HonakerTree(9000).sensitivity(MinSeparation(9000, 10).pattern)):  # fmt: skip
        with pytest.raises(ValueError):
            wrong()


def test_fixed_patterns_begin_anywhere():
    """Where steps are left over, a late start may be the worst: here {1, 2}."""
    matrix = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 9.0, 1.0]]
    found = Dense(matrix).sensitivity(Pattern(3, 1, 2, True))
    assert np.hypot(1.0, 10.0) <= found <= np.hypot(1.0, 10.0) * (1 + 1e-12)
