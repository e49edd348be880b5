"""Clipping: per-example gradients, scaled by a rule and summed, a query whose sensitivity is the rule's.

Reading order: ``query`` has the rules and the query, ``contributions`` the bounds on computed norms and sums, ``ghost``
the gradients that need not be formed, ``rows`` the batch as a map over its rows, and ``adaptive`` a norm that follows a
quantile.

>>> PerLayer.equally({"kernel": 0.0, "bias": 0.0}, 1.0).groups
(('bias',), ('kernel',))
"""

from jaxacct.train.clipping.adaptive import AdaptiveQuantile
from jaxacct.train.clipping.ghost import Route, Routes
from jaxacct.train.clipping.query import (
    Automatic,
    ClippedSum,
    ClippingRule,
    Flat,
    PerLayer,
    clip_and_sum,
    clipped_sum,
    routes,
)

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
