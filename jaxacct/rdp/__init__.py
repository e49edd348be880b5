"""Rényi differential privacy: the curve of a mechanism over the orders, and the (epsilon, delta) it implies."""

from jaxacct.convert.renyi import epsilon_improved, epsilon_mironov, log_delta_improved, log_delta_mironov
from jaxacct.rdp.accountant import ALLOWANCE, CONVERSIONS, DEFAULT_ORDERS, FLOOR, composed_curve, curve, delta, epsilon

__all__ = [
    "ALLOWANCE",
    "CONVERSIONS",
    "DEFAULT_ORDERS",
    "FLOOR",
    "composed_curve",
    "curve",
    "delta",
    "epsilon",
    "epsilon_improved",
    "epsilon_mironov",
    "log_delta_improved",
    "log_delta_mironov",
]
