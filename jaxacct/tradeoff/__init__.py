"""f-DP: the least false-negative rate of any attack as a function of its false-positive rate.

* :mod:`.curve`: certified curves of compositions, and the risks that follow: :func:`curve`, :func:`advantage`,
  :func:`true_positive_rate`, :func:`bayes_risk`, where ``lower`` of a curve is what protects; :class:`TradeOff`, the
  same of one composition as methods, with what can be reconstructed; f_{epsilon,delta}, G_mu and Id, elementwise; and
  certified deltas at many epsilons, with bounds between them.
* :mod:`.polygons`: curves as arrays: conversions to and from delta(epsilon), subsampling, inverse, double conjugate,
  and the mechanism of a polygon, by which curves are composed.
"""

from jaxacct.tradeoff.curve import (
    TradeOff,
    advantage,
    approximate_dp,
    bayes_risk,
    curve,
    gaussian,
    perfect,
    true_positive_rate,
)
from jaxacct.tradeoff.polygons import at, convex_minorant, from_delta, inverse, pair, subsampled, symmetrized, to_delta

__all__ = [
    "TradeOff",
    "advantage",
    "approximate_dp",
    "at",
    "bayes_risk",
    "convex_minorant",
    "curve",
    "from_delta",
    "gaussian",
    "inverse",
    "pair",
    "perfect",
    "subsampled",
    "symmetrized",
    "to_delta",
    "true_positive_rate",
]
