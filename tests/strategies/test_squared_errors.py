"""Errors of workloads against matrices written out, and strategies of least error against what is known of them."""

import numpy as np
import pytest

import jaxacct as ja
from jaxacct import factorize
from jaxacct.strategies import (
    BufferedToeplitz,
    CyclicPoisson,
    Dense,
    FixedEpochs,
    HonakerTree,
    SinglePass,
    Workload,
    square_root,
    squared_errors,
)

STEPS = 12
RATES = np.linspace(1.0, 0.1, STEPS)


def matrix_of(workload: Workload) -> np.ndarray:
    """A, from the recursion of a single gradient at each step."""
    matrix = np.zeros((STEPS, STEPS))
    rates = np.ones(STEPS) if workload.rates is None else workload.rates
    for source in range(STEPS):
        velocity = iterate = 0.0
        for step in range(STEPS):
            velocity = workload.momentum * velocity + (step == source)
            iterate = workload.decay * iterate + rates[step] * velocity
            matrix[step, source] = iterate
    return matrix


@pytest.mark.first_tier("banded-both", "buffered-both", "tree-both")
@pytest.mark.parametrize(
    "workload", [Workload(), Workload(0.9, 0.99), Workload(0.5, 1.0, RATES)], ids=("plain", "both", "rates")
)
@pytest.mark.parametrize("strategy", [square_root(4), BufferedToeplitz([0.3, 0.1], [0.5, 0.9]), HonakerTree(STEPS)],
                         ids=("banded", "buffered", "tree"))  # fmt: skip
def test_errors_are_squared_rows(strategy, workload):
    impulses = np.eye(STEPS, dtype=np.float32)
    inverse = np.linalg.inv(np.asarray(strategy.multiply(impulses), np.float64))
    truth = np.sum((matrix_of(workload) @ inverse) ** 2, axis=1)
    np.testing.assert_allclose(squared_errors(strategy, STEPS, workload), truth, rtol=1e-5)


def test_the_square_root_of_a_workload():
    for workload in (Workload(), Workload(0.9, 0.99)):
        root = square_root(STEPS, float(workload.momentum), float(workload.decay))
        matrix = np.asarray(root.multiply(np.eye(STEPS, dtype=np.float32)), np.float64)
        np.testing.assert_allclose(matrix @ matrix, matrix_of(workload), rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_no_toeplitz_strategy_has_less_maximal_error_than_the_square_root():
    found = factorize.banded_toeplitz(8, SinglePass(8), worst=True)
    np.testing.assert_allclose(found.first_column, square_root(8).normalized().first_column, atol=2e-4)
    best = factorize.error(square_root(8), SinglePass(8))[1]
    assert factorize.error(found, SinglePass(8))[1] == pytest.approx(best, rel=1e-6)
    assert found.sensitivity(SinglePass(8).pattern) == pytest.approx(1, rel=1e-6)


@pytest.mark.exhaustive
def test_noise_for_a_budget_keeps_it_and_hardly_less_would():
    strategy = square_root(3)
    for participation in (CyclicPoisson(90, 3, 0.1), FixedEpochs(30, 3)):
        found = factorize.noise_multiplier(strategy, participation, 2.0, 1e-6)
        assert found.satisfied
        for share, kept in ((1.0, True), (1 - 1e-4, False)):
            mechanism = ja.MatrixMechanism(strategy, found.value * share, participation)
            bounds = ja.epsilon(mechanism, 1, 1e-6)
            assert bounds.upper <= 2.0 if kept else bounds.lower > 2.0
    with pytest.raises(ValueError, match="equal size"):
        factorize.noise_multiplier(strategy, CyclicPoisson(90, 3, 0.1, equal_groups=True), 2.0, 1e-6)


def test_wrong_uses():
    for wrong in (lambda: squared_errors(square_root(2), 4, Workload(rates=np.ones(3))), lambda: Workload(momentum=1.0),
                  lambda: Workload(decay=1.5), lambda: factorize.banded_toeplitz(5, SinglePass(4)),
                  lambda: factorize.buffered_toeplitz(0, SinglePass(4)),
                  lambda: factorize.best_bands(10, 0.6, 1.0, 1e-5, bands=(2,)),
                  lambda: squared_errors(Dense(np.eye(2)), 0)):  # fmt: skip
        with pytest.raises(ValueError):
            wrong()
