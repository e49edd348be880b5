"""Strategies of correlated noise: how they are streamed, what they are sensitive to, and what error they leave.

* :mod:`.strategy`: what all are; :mod:`.strategy`, :mod:`.strategy`, :mod:`.strategy`: those there are.
* :mod:`.strategy`: in which steps examples take part; :mod:`.strategy`: bounds over these, with proofs.
* :mod:`.strategy`: the squared error of prefix sums, or of another workload.

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
