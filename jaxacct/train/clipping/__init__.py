"""Clipping: per-example gradients, scaled by a rule and summed, a query whose sensitivity is the rule's.

Reading order: ``rules`` has the rules, ``query`` the query, ``contributions`` the bounds on computed norms and sums,
``ghost`` the gradients that need not be formed, and ``rows`` the batch as a map over its rows.

>>> PerLayer.equally({"kernel": 0.0, "bias": 0.0}, 1.0).groups
(('bias',), ('kernel',))
"""

from jaxacct.train.clipping.ghost import Route, Routes
from jaxacct.train.clipping.query import ClippedSum, clip_and_sum, clipped_sum, routes
from jaxacct.train.clipping.rules import AdaptiveQuantile, Automatic, ClippingRule, Flat, PerLayer

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "ClippedSum",
    "ClippingRule",
    "Flat",
    "PerLayer",
    "Route",
    "Routes",
    "clip_and_sum",
    "clipped_sum",
    "routes",
]
