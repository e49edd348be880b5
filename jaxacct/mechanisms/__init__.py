"""What is released: mechanisms as pytrees, each knowing the pairs of distributions that dominate it.

A mechanism says nothing about accountants. They ask it for its dominating pairs under a neighbouring relation
(:mod:`jaxacct.dominating_pairs`) and work on those.
"""

from jaxacct.mechanisms.above_threshold import AboveThreshold, GaussianAboveThreshold
from jaxacct.mechanisms.approximate_dp import ApproximateDP, PureDP
from jaxacct.mechanisms.custom import DiscretePair, PrivacyLoss
from jaxacct.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace
from jaxacct.mechanisms.exponential import ExponentialMechanism
from jaxacct.mechanisms.gaussian import Gaussian, PoissonSubsampledGaussian
from jaxacct.mechanisms.group import PoissonSubsampledGroup, group
from jaxacct.mechanisms.group_without_replacement import WithoutReplacementGroup
from jaxacct.mechanisms.laplace import Laplace, PoissonSubsampledLaplace
from jaxacct.mechanisms.matrix import MatrixMechanism
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Mechanisms, Relation, Steps
from jaxacct.mechanisms.mixture import GaussianMixture
from jaxacct.mechanisms.random_allocation import RandomAllocation
from jaxacct.mechanisms.randomized_response import RandomizedResponse
from jaxacct.mechanisms.renyi_only import RenyiOnly, ZeroConcentratedDP
from jaxacct.mechanisms.repeat_and_select import RepeatAndSelect
from jaxacct.mechanisms.sampled_dp import DPWithoutReplacement, PoissonSubsampledDP
from jaxacct.mechanisms.sampled_renyi import PoissonSubsampled, SubsampledWithoutReplacement
from jaxacct.mechanisms.tree_aggregation import TreeAggregation
from jaxacct.mechanisms.truncated import TruncatedPoissonGaussian
from jaxacct.mechanisms.with_replacement import GaussianWithReplacement
from jaxacct.mechanisms.without_replacement import GaussianWithoutReplacement, LaplaceWithoutReplacement

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
