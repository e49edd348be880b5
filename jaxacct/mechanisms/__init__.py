"""The mechanisms: pytrees of numbers, each of which knows the pairs of distributions that dominate one run of it.

A mechanism knows nothing of accountants. They ask it for its dominating pairs under a neighbouring relation
(:mod:`jaxacct.dominating_pairs`) and work on those.
"""

from jaxacct.mechanisms.allocation import RandomAllocation
from jaxacct.mechanisms.approximate_dp import (
    ApproximateDP,
    DPWithoutReplacement,
    ExponentialMechanism,
    PoissonSubsampledDP,
    PureDP,
    RandomizedResponse,
)
from jaxacct.mechanisms.by_curve import (
    PoissonSubsampled,
    RenyiOnly,
    RepeatAndSelect,
    SubsampledWithoutReplacement,
    ZeroConcentratedDP,
)
from jaxacct.mechanisms.finite import DiscreteGaussian, DiscreteLaplace, DiscretePair, PrivacyLoss
from jaxacct.mechanisms.fixed_batches import (
    GaussianWithoutReplacement,
    GaussianWithReplacement,
    LaplaceWithoutReplacement,
)
from jaxacct.mechanisms.gaussian import Gaussian, PoissonSubsampledGaussian, TruncatedPoissonGaussian
from jaxacct.mechanisms.groups import PoissonSubsampledGroup, WithoutReplacementGroup, group
from jaxacct.mechanisms.matrix import MatrixMechanism, TreeAggregation
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Mechanisms, Relation, Steps
from jaxacct.mechanisms.shifted_noise import GaussianMixture, Laplace, PoissonSubsampledLaplace
from jaxacct.mechanisms.sparse_vector import AboveThreshold, GaussianAboveThreshold

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
