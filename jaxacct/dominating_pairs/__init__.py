"""Dominating pairs (P, Q) of distributions, by the kind of their privacy loss.

:mod:`.pair` is the interface: what an accountant may ask of any pair. The kinds, each in a module of its own:

* :mod:`.finite`: losses that are atoms, losses known by their distribution functions, and mixtures of pairs by a coin;
* :mod:`.subsampled_gaussian`: Gaussian noise on a Poisson sample, which the accountants meet most;
* :mod:`.shifted_noise`: mixtures of shifted Gaussian or Laplace noise;
* :mod:`.counted_shifts`: a group of examples, each of which takes part or not;
* :mod:`.without_replacement`: batches of a fixed size;
* :mod:`.allocation`: random allocation of an example to one or two of many steps;
* :mod:`.above_threshold`: one event among many, as the sparse vector technique releases it.

:mod:`.normal` and :mod:`.gaussian_profile` hold the functions of the normal law that these rest on.
"""

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
