"""Clipping: per-example gradients, scaled by a rule and summed, a query whose sensitivity is the rule's.

Reading order: ``rules`` has the rules, ``query`` the query, ``contributions`` the bounds on computed norms and sums,
``ghost`` the gradients that need not be formed, and ``rows`` the batch as a map over its rows. The sums are for the
trainer and for :class:`.PrivateGradients`, which add noise and have it paid for: they are no public names here.

>>> PerLayer.equally({"kernel": 0.0, "bias": 0.0}, 1.0).groups
(('bias',), ('kernel',))
"""

from jaxacct.train.clipping.ghost import Route, Routes
from jaxacct.train.clipping.query import ClippedSum, routes
from jaxacct.train.clipping.query import clip_and_sum as clip_and_sum
from jaxacct.train.clipping.query import clipped_sum as clipped_sum
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
    "routes",
]
