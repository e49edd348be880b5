"""What is released: mechanisms as pytrees, each knowing the pairs of distributions that dominate it.

A mechanism says nothing about accountants. They ask it for its dominating pairs under a neighbouring relation
(:mod:`jaxacct.dominating_pairs`) and work on those.
"""

from jaxacct.mechanisms.gaussian import Gaussian, PoissonSubsampledGaussian
from jaxacct.mechanisms.protocol import DIRECTIONS, Mechanism

__all__ = ["DIRECTIONS", "Gaussian", "Mechanism", "PoissonSubsampledGaussian"]
