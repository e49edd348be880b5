"""Dominating pairs of distributions, one module for each kind; :mod:`.pair` says what an accountant may ask."""

from jaxacct.dominating_pairs.counted_shifts import CountedShiftsPair
from jaxacct.dominating_pairs.finite import DiscreteGaussianPair, FinitePair, LossDistributionPair
from jaxacct.dominating_pairs.pair import CellMasses, DominatingPair
from jaxacct.dominating_pairs.shifted_noise import ShiftedNoisePair
from jaxacct.dominating_pairs.subsampled_gaussian import SubsampledGaussianPair
from jaxacct.dominating_pairs.without_replacement import WithoutReplacementPair

__all__ = [
    "CellMasses",
    "CountedShiftsPair",
    "DiscreteGaussianPair",
    "DominatingPair",
    "FinitePair",
    "LossDistributionPair",
    "ShiftedNoisePair",
    "SubsampledGaussianPair",
    "WithoutReplacementPair",
]
