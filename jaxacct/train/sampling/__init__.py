"""Samplers: ways of drawing batches, each with the mechanism that accounts for exactly that way.

=============================  ==================================================  =================================
sampler                        a batch                                             accounted as
=============================  ==================================================  =================================
:class:`.PoissonSampler`       each example independently, overflow as a failure   :class:`.PoissonSubsampledGaussian`
:class:`.TruncatedPoissonSampler`  the same, cut at random at any size             :class:`.TruncatedPoissonGaussian`
:class:`.WithoutReplacementSampler`  a uniform subset of fixed size                :class:`.GaussianWithoutReplacement`
:class:`.ShuffledSampler`      the next ones of an order that an epoch draws       :class:`.ShuffledGaussian`
:class:`.RandomAllocationSampler`  k of the epoch's batches for each example      :class:`.RandomAllocation`
:class:`.BallsInBinsSampler`   one batch for each example, kept for some epochs     :class:`.BallsInBins`
:class:`.CyclicPoissonSampler`  each example of a group independently, by turns     :class:`.MatrixMechanism`, cycles
=============================  ==================================================  =================================

:class:`.Correlated` joins the last three to a strategy of correlated noise.
"""

from jaxacct.train.sampling.correlated import (
    BallsInBinsSampler,
    Correlated,
    CyclicPoissonSampler,
    RandomAllocationSampler,
)
from jaxacct.train.sampling.sampler import (
    ALLOWANCE,
    Batch,
    PoissonSampler,
    Sampler,
    Separating,
    TruncatedPoissonSampler,
    WithoutReplacementSampler,
    log_binomial_tail,
    log_overflow_bound,
    pack,
    present_of,
    runs_of,
)
from jaxacct.train.sampling.shuffled import ShuffledSampler

__all__ = [
    "ALLOWANCE",
    "BallsInBinsSampler",
    "Batch",
    "Correlated",
    "CyclicPoissonSampler",
    "PoissonSampler",
    "RandomAllocationSampler",
    "Sampler",
    "Separating",
    "ShuffledSampler",
    "TruncatedPoissonSampler",
    "WithoutReplacementSampler",
    "log_binomial_tail",
    "log_overflow_bound",
    "pack",
    "present_of",
    "runs_of",
]
