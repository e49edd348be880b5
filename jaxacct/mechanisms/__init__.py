"""The mechanisms: pytrees of numbers, each of which knows the pairs of distributions that dominate one run of it.

A mechanism knows nothing of accountants. They ask it for its dominating pairs under a neighbouring relation, and work
on those. A family stands in one file, read from top to bottom: its pair, with the cells of its loss for the mesh, the
law for the contour and the moments for Rényi curves, and then the mechanisms.

* :mod:`.mechanism` and :mod:`.pair`: the interfaces of both; :mod:`.normal`: functions of the normal law;
* :mod:`.gaussian`: Gaussian noise, also on Poisson samples; :mod:`.fixed_batches`: on batches of a fixed size;
* :mod:`.laplace`: Laplace noise; :mod:`.shifted_noise`: mixtures of shifts; :mod:`.groups`: several examples at once;
* :mod:`.finite`: losses that are atoms, or known by their distribution; :mod:`.discrete_gaussian`: of integers;
* :mod:`.approximate_dp`: a guarantee alone;
* :mod:`.allocation`: random allocation; :mod:`.shuffled`: batches of one shuffle, by :mod:`.by_profile`;
* :mod:`.balls_in_bins`: correlated noise on bins; :mod:`.matrix`: correlated noise; :mod:`.sparse_vector`: one event
  among many;
* :mod:`.ratio_law`: allocation and Poisson sampling of any pair; :mod:`.shuffled_reports`: reports of many, shuffled;
* :mod:`.by_curve`: mechanisms known by their Rényi curve alone;
* :mod:`.records`: mechanisms as JSON.

The pairs are public, too: :class:`DominatingPair`, which is their interface, and the kinds that mechanisms are made
of. A mechanism of one's own is made of these, or has a kind of its own.

A new mechanism is exported here, in one line and in ``__all__``: the top level, specs and the command line follow, and
``tests/mechanisms/test_every_mechanism.py`` says what is missing.
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
from jaxacct.mechanisms.balls_in_bins import BallsInBins
from jaxacct.mechanisms.by_curve import (
    PoissonSubsampled,
    RenyiOnly,
    RepeatAndSelect,
    SubsampledWithoutReplacement,
    ZeroConcentratedDP,
)
from jaxacct.mechanisms.discrete_gaussian import DiscreteGaussian, DiscreteGaussianPair, DiscreteGaussianVector
from jaxacct.mechanisms.finite import (
    DiscreteLaplace,
    DiscretePair,
    FinitePair,
    LossDistributionPair,
    PrivacyLoss,
)
from jaxacct.mechanisms.fixed_batches import (
    GaussianWithoutReplacement,
    GaussianWithReplacement,
    LaplaceWithoutReplacement,
    WithoutReplacementPair,
)
from jaxacct.mechanisms.gaussian import (
    Gaussian,
    PoissonSubsampledGaussian,
    SubsampledGaussianPair,
    TruncatedPoissonGaussian,
)
from jaxacct.mechanisms.groups import CountedShiftsPair, PoissonSubsampledGroup, WithoutReplacementGroup, group
from jaxacct.mechanisms.laplace import Laplace, PoissonSubsampledLaplace
from jaxacct.mechanisms.matrix import MatrixMechanism, TreeAggregation
from jaxacct.mechanisms.mechanism import DIRECTIONS as DIRECTIONS
from jaxacct.mechanisms.mechanism import Mechanism, Mechanisms, Relation, Steps
from jaxacct.mechanisms.pair import CellMasses, DominatingPair
from jaxacct.mechanisms.ratio_law import AllocatedMechanism, PoissonSampledMechanism
from jaxacct.mechanisms.shifted_noise import GaussianMixture, ShiftedNoisePair
from jaxacct.mechanisms.shuffled import ShuffledGaussian
from jaxacct.mechanisms.shuffled_reports import ShuffledRandomizedResponse
from jaxacct.mechanisms.sparse_vector import AboveThreshold, GaussianAboveThreshold

__all__ = [
    "AboveThreshold",
    "AllocatedMechanism",
    "ApproximateDP",
    "BallsInBins",
    "CellMasses",
    "CountedShiftsPair",
    "DPWithoutReplacement",
    "DiscreteGaussian",
    "DiscreteGaussianPair",
    "DiscreteGaussianVector",
    "DiscreteLaplace",
    "DiscretePair",
    "DominatingPair",
    "ExponentialMechanism",
    "FinitePair",
    "Gaussian",
    "GaussianAboveThreshold",
    "GaussianMixture",
    "GaussianWithReplacement",
    "GaussianWithoutReplacement",
    "Laplace",
    "LaplaceWithoutReplacement",
    "LossDistributionPair",
    "MatrixMechanism",
    "Mechanism",
    "Mechanisms",
    "PoissonSampledMechanism",
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
    "ShiftedNoisePair",
    "ShuffledGaussian",
    "ShuffledRandomizedResponse",
    "Steps",
    "SubsampledGaussianPair",
    "SubsampledWithoutReplacement",
    "TreeAggregation",
    "TruncatedPoissonGaussian",
    "WithoutReplacementGroup",
    "WithoutReplacementPair",
    "ZeroConcentratedDP",
    "group",
]
