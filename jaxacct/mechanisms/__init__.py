"""The mechanisms: pytrees of numbers, each of which knows the pairs of distributions that dominate one run of it.

A mechanism knows nothing of accountants. They ask it for its dominating pairs under a neighbouring relation
(:mod:`jaxacct.dominating_pairs`) and work on those.
"""

from jaxacct.mechanisms.approximate_dp import (
    ApproximateDP,
    DPWithoutReplacement,
    ExponentialMechanism,
    PoissonSubsampledDP,
    PureDP,
    RandomizedResponse,
)
from jaxacct.mechanisms.custom import DiscretePair, PrivacyLoss
from jaxacct.mechanisms.fixed_batches import (
    Gaussian,
    GaussianMixture,
    GaussianWithoutReplacement,
    GaussianWithReplacement,
    LaplaceWithoutReplacement,
    PoissonSubsampledGaussian,
    TruncatedPoissonGaussian,
)
from jaxacct.mechanisms.group import PoissonSubsampledGroup, WithoutReplacementGroup, group
from jaxacct.mechanisms.laplace import DiscreteGaussian, DiscreteLaplace, Laplace, PoissonSubsampledLaplace
from jaxacct.mechanisms.matrix import MatrixMechanism, TreeAggregation
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Mechanisms, Relation, Steps
from jaxacct.mechanisms.random_allocation import RandomAllocation
from jaxacct.mechanisms.renyi_only import PoissonSubsampled, RenyiOnly, SubsampledWithoutReplacement, ZeroConcentratedDP
from jaxacct.mechanisms.selection import AboveThreshold, GaussianAboveThreshold, RepeatAndSelect

__all__ = [
    "DIRECTIONS",
    "AboveThreshold",
    "ApproximateDP",
    "DPWithoutReplacement",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "DiscretePair",
    "ExponentialMechanism",
    "Gaussian",
    "GaussianAboveThreshold",
    "GaussianMixture",
    "GaussianWithReplacement",
    "GaussianWithoutReplacement",
    "Laplace",
    "LaplaceWithoutReplacement",
    "MatrixMechanism",
    "Mechanism",
    "Mechanisms",
    "PoissonSubsampled",
    "PoissonSubsampledDP",
    "PoissonSubsampledGaussian",
    "PoissonSubsampledGroup",
    "PoissonSubsampledLaplace",
    "PrivacyLoss",
    "PureDP",
    "RandomAllocation",
    "RandomizedResponse",
    "Relation",
    "RenyiOnly",
    "RepeatAndSelect",
    "Steps",
    "SubsampledWithoutReplacement",
    "TreeAggregation",
    "TruncatedPoissonGaussian",
    "WithoutReplacementGroup",
    "ZeroConcentratedDP",
    "group",
]
