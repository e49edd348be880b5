"""Dominating pairs of distributions, one module for each kind; :mod:`.protocol` says what an accountant may ask."""

from jaxacct.dominating_pairs.protocol import CellMasses, DominatingPair
from jaxacct.dominating_pairs.subsampled_gaussian import SubsampledGaussianPair

__all__ = ["CellMasses", "DominatingPair", "SubsampledGaussianPair"]
