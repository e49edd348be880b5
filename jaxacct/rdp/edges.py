"""Edges of a Rényi curve: the orders 1 and infinity.

The divergence rises with its order, continuously where it is finite. So that of an order just above 1 bounds the
Kullback-Leibler divergence, order 1, from above, at a relative cost of about the distance; and that of order infinity
is the supremum of the privacy loss, infinite where P has mass that Q lacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ABOVE_ONE = 1 + 2.0**-33
"""The order that stands for order 1."""


def tried_orders(orders: Any) -> Any:
    """Returns the orders that are computed in the place of ``orders``: one above 1 for 1, any for infinity."""
    if isinstance(orders, np.ndarray):
        return np.where(np.isinf(orders), 2.0, np.where(orders == 1, ABOVE_ONE, orders))
    return orders
