"""Strategies of correlated noise for the matrix mechanism: their streams, their sensitivities, and their errors.

All are in :mod:`jaxacct.strategies.strategy`: the strategies themselves, participation in steps, bounds on the
sensitivity with proofs, and the squared error of prefix sums, or of another workload.

:class:`.MatrixMechanism` accounts for them, and :mod:`jaxacct.factorize` finds those of least error.
"""

from jaxacct.strategies.strategy import (
    BandedToeplitz,
    BufferedToeplitz,
    CyclicPoisson,
    Dense,
    FixedEpochs,
    MinSeparation,
    NoiseState,
    Participation,
    Pattern,
    SinglePass,
    Strategy,
    Streamed,
    TreeAggregation,
    Workload,
    identity,
    square_root,
    squared_errors,
)

__all__ = [
    "BandedToeplitz",
    "BufferedToeplitz",
    "CyclicPoisson",
    "Dense",
    "FixedEpochs",
    "MinSeparation",
    "NoiseState",
    "Participation",
    "Pattern",
    "SinglePass",
    "Strategy",
    "Streamed",
    "TreeAggregation",
    "Workload",
    "identity",
    "square_root",
    "squared_errors",
]
