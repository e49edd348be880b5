"""The dominating pairs are public here: their interface, and the kinds of them that mechanisms are made of.

Each kind stands in the file of its family of mechanisms, in :mod:`jaxacct.mechanisms`, with the law of its loss.
:class:`DominatingPair` is the base class of kinds of one's own (:mod:`jaxacct.mechanisms.pair`).
"""

from jaxacct.mechanisms.finite import DiscreteGaussianPair, FinitePair, LossDistributionPair
from jaxacct.mechanisms.fixed_batches import WithoutReplacementPair
from jaxacct.mechanisms.gaussian import SubsampledGaussianPair
from jaxacct.mechanisms.groups import CountedShiftsPair
from jaxacct.mechanisms.pair import CellMasses, DominatingPair
from jaxacct.mechanisms.shifted_noise import ShiftedNoisePair

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
"""Names of the interface, and of the kinds; a mechanism of one's own is made of these, or has a kind of its own."""
