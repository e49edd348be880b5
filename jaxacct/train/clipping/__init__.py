"""Per-example gradients, scaled by a clipping rule and summed: the query whose sensitivity is the rule's.

>>> PerLayer.equally({"kernel": 0.0, "bias": 0.0}, 1.0).groups
(('bias',), ('kernel',))
"""

from jaxacct.train.clipping.adaptive import AdaptiveQuantile
from jaxacct.train.clipping.ghost import Route, Routes
from jaxacct.train.clipping.query import Automatic, ClippingRule, Flat, PerLayer, clip_and_sum, clipped_sum, routes

__all__ = [
    "AdaptiveQuantile",
    "Automatic",
    "ClippingRule",
    "Flat",
    "PerLayer",
    "Route",
    "Routes",
    "clip_and_sum",
    "clipped_sum",
    "routes",
]
