"""An example of every mechanism that is exported, for the tests that go through all of them."""

import jax.numpy as jnp
import numpy as np

import jaxacct as ja
from jaxacct import selection, strategies

P, Q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])


def cdf_p(y, b):
    return jnp.where(y < -1 / b, 0.0, jnp.where(y >= 1 / b, 1.0, jnp.exp((y - 1 / b) / 2) / 2))


def survival_p(y, b):
    return 1 - cdf_p(y, b)


def survival_q(y, b):
    return jnp.where(y < -1 / b, 1.0, jnp.where(y >= 1 / b, 0.0, jnp.exp(-(y + 1 / b) / 2) / 2))


def cdf_q(y, b):
    return 1 - survival_q(y, b)


def laplace_by_its_loss(scale):
    return ja.PrivacyLoss(
        cdf_p, cdf_q, lowest=-1 / scale, highest=1 / scale, parameters=scale, survival_p=survival_p,
        survival_q=survival_q, atoms=(-1 / scale, 1 / scale),
    )  # fmt: skip


STRATEGY = strategies.BandedToeplitz([4.0, 3.0])

EXAMPLES = {
    "AboveThreshold": [ja.AboveThreshold(4.0, 8.0)],
    "AllocatedMechanism": [ja.AllocatedMechanism(ja.RandomizedResponse(0.5), 3.0)],
    "ApproximateDP": [ja.ApproximateDP(0.5, 1e-6)],
    "BallsInBins": [ja.BallsInBins(STRATEGY, 5.0, 4), ja.BallsInBins(STRATEGY, 5.0, 2)],
    "DPWithoutReplacement": [ja.DPWithoutReplacement(0.5, 1e-6, 0.1)],
    "DiscreteGaussian": [ja.DiscreteGaussian(2.0)],
    "DiscreteGaussianVector": [ja.DiscreteGaussianVector(100.0, 50.0, 20.0, 0.1)],
    "DiscreteLaplace": [ja.DiscreteLaplace(2.0)],
    "DiscretePair": [ja.DiscretePair(P, Q)],
    "ExponentialMechanism": [ja.ExponentialMechanism(0.5)],
    "Gaussian": [ja.Gaussian(1.5)],
    "GaussianAboveThreshold": [ja.GaussianAboveThreshold(8.0, 16.0, 10)],
    "GaussianMixture": [ja.GaussianMixture(1.5, (0.0, 1.0, 2.0), (0.7, 0.2, 0.1))],
    "GaussianWithReplacement": [ja.GaussianWithReplacement.for_batches(1.5, 100, 10)],
    "GaussianWithoutReplacement": [ja.GaussianWithoutReplacement(1.5, 0.1)],
    "Laplace": [ja.Laplace(2.0)],
    "LaplaceWithoutReplacement": [ja.LaplaceWithoutReplacement(2.0, 0.1)],
    "MatrixMechanism": [ja.MatrixMechanism(STRATEGY, 3.5, strategies.CyclicPoisson(2, 2, 0.01))],
    "PoissonSampledMechanism": [ja.PoissonSampledMechanism(ja.DiscreteLaplace(2.0), 0.1)],
    "PoissonSubsampled": [ja.PoissonSubsampled(ja.ZeroConcentratedDP(0.05), 2, 0.1)],
    "PoissonSubsampledDP": [ja.PoissonSubsampledDP(0.5, 1e-6, 0.1)],
    "PoissonSubsampledGaussian": [ja.PoissonSubsampledGaussian(1.2, 0.1), ja.PoissonSubsampledGaussian(1.2, 1.0)],
    "PoissonSubsampledGroup": [ja.PoissonSubsampledGroup(2.0, 0.1, 3)],
    "PoissonSubsampledLaplace": [ja.PoissonSubsampledLaplace(2.0, 0.1)],
    "PrivacyLoss": [laplace_by_its_loss(2.0)],
    "PureDP": [ja.PureDP(0.5)],
    "RandomAllocation": [
        ja.RandomAllocation(0.7, 2.0, points=64),
        ja.RandomAllocation(0.7, 1.0, points=64),
        ja.RandomAllocation(2.0, 2.0, points=64, participations=2),
        ja.RandomAllocation(1.0, 7.0, points=64, participations=3),
        ja.RandomAllocation(1.0, 3.0, points=64, participations=3),
    ],
    "RandomizedResponse": [ja.RandomizedResponse(0.5, outcomes=3)],
    "RepeatAndSelect": [ja.RepeatAndSelect(ja.Gaussian(5.0), 1, selection.Geometric(10.0))],
    "ShuffledGaussian": [ja.ShuffledGaussian(1.5, 10.0)],
    "ShuffledRandomizedResponse": [ja.ShuffledRandomizedResponse(2.0, 4, 100)],
    "SubsampledWithoutReplacement": [ja.SubsampledWithoutReplacement(ja.ZeroConcentratedDP(0.05), 2, 0.1)],
    "TreeAggregation": [ja.TreeAggregation(2.0, 3)],
    "TruncatedPoissonGaussian": [ja.TruncatedPoissonGaussian(1.2, 0.1, 1e-7)],
    "WithoutReplacementGroup": [ja.WithoutReplacementGroup(1.5, 100, 10, 2)],
    "ZeroConcentratedDP": [ja.ZeroConcentratedDP(0.05)],
}
"""One or more of every public class, by its name."""

UNSTATED = {
    "DiscreteGaussianVector": "a bound by Gaussian mechanisms near to it, and what the distance adds to delta",
    **dict.fromkeys(("PoissonSubsampled", "RepeatAndSelect", "SubsampledWithoutReplacement"), "known by a curve alone"),
    "ZeroConcentratedDP": "known by a curve alone",
    "ExponentialMechanism": "a bound over all mechanisms of one range",
    **dict.fromkeys(("DPWithoutReplacement", "PoissonSubsampledDP"), "the pair of another, by a bound"),
    **dict.fromkeys(("GaussianWithReplacement", "WithoutReplacementGroup"), "a bound that is found on the host"),
    "BallsInBins": "a bound by nested means of likelihood ratios, and not a law of its own",
    **dict.fromkeys(("AboveThreshold", "GaussianAboveThreshold"), "a bound on the whole profile"),
    **dict.fromkeys(("AllocatedMechanism", "PoissonSampledMechanism"), "the law of another pair's ratio, on a grid"),
    "ShuffledRandomizedResponse": "a bound on the whole profile",
    **dict.fromkeys(("MatrixMechanism", "TreeAggregation"), "taken for the Gaussian mechanisms that it is"),
}
"""Mechanisms that the referee has no statement of, and why."""
