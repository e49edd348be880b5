"""JAX-accelerated accounting of differential privacy, and a Flax trainer that asks it for its budget.

>>> import jaxacct as ja
>>> mechanism = ja.PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01)
>>> bool(ja.epsilon(mechanism, steps=1000, delta=1e-5).upper < 2.2)
True
"""

import importlib
from typing import Any

from jaxacct import calibrate, convert, filters, gdp, iteration, odometers, policies, prv, rdp, saddlepoint, tradeoff
from jaxacct.bounds import Bounds
from jaxacct.certified import delta, epsilon
from jaxacct.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    DiscretePair,
    Gaussian,
    GaussianMixture,
    GaussianWithoutReplacement,
    Laplace,
    LaplaceWithoutReplacement,
    PoissonSubsampledGaussian,
    PoissonSubsampledLaplace,
    PrivacyLoss,
    PureDP,
    RandomAllocation,
    RandomizedResponse,
    TruncatedPoissonGaussian,
)

__version__ = "0.1.0"

__all__ = [
    "ApproximateDP",
    "Bounds",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "DiscretePair",
    "Gaussian",
    "GaussianMixture",
    "GaussianWithoutReplacement",
    "Laplace",
    "LaplaceWithoutReplacement",
    "PoissonSubsampledGaussian",
    "PoissonSubsampledLaplace",
    "PrivacyLoss",
    "PureDP",
    "RandomAllocation",
    "RandomizedResponse",
    "TruncatedPoissonGaussian",
    "adapters",
    "audit",
    "calibrate",
    "convert",
    "delta",
    "epsilon",
    "filters",
    "gdp",
    "iteration",
    "odometers",
    "policies",
    "prv",
    "rdp",
    "saddlepoint",
    "sweep",
    "tradeoff",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports what accounting does without when it is asked for: it need not wait for Flax, Optax and Rich."""
    if name in ("adapters", "audit", "sweep", "train"):
        return importlib.import_module(f"jaxacct.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
