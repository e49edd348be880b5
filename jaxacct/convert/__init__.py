"""Conversions between notions of differential privacy, each with its theorem and on its safe side.

They turn Rényi divergences into (epsilon, delta), by the optimal relation and by older rules, and pure, concentrated
and Gaussian differential privacy into one another. Each function says whether it returns an upper or a lower bound;
rounding is counted.
"""

from jaxacct.convert.one_parameter import (
    bounded_range_to_delta,
    bounded_range_to_epsilon,
    gdp_to_rdp,
    mechanism_to_dp,
    mechanism_to_gdp,
    mechanism_to_zcdp,
    pure_to_rdp,
    pure_to_zcdp,
    rdp_to_tcdp,
    tcdp_to_delta,
    tcdp_to_epsilon,
    tcdp_to_rdp,
    zcdp_to_delta,
    zcdp_to_epsilon,
    zcdp_to_rdp,
)
from jaxacct.convert.one_parameter import gaussian_delta as gdp_to_delta
from jaxacct.convert.one_parameter import gaussian_epsilon as gdp_to_epsilon
from jaxacct.convert.one_parameter import gaussian_mu as dp_to_gdp
from jaxacct.convert.renyi import METHODS, least_rdp, rdp_to_delta, rdp_to_epsilon

__all__ = [
    "METHODS",
    "bounded_range_to_delta",
    "bounded_range_to_epsilon",
    "dp_to_gdp",
    "gdp_to_delta",
    "gdp_to_epsilon",
    "gdp_to_rdp",
    "least_rdp",
    "mechanism_to_dp",
    "mechanism_to_gdp",
    "mechanism_to_zcdp",
    "pure_to_rdp",
    "pure_to_zcdp",
    "rdp_to_delta",
    "rdp_to_epsilon",
    "rdp_to_tcdp",
    "tcdp_to_delta",
    "tcdp_to_epsilon",
    "tcdp_to_rdp",
    "zcdp_to_delta",
    "zcdp_to_epsilon",
    "zcdp_to_rdp",
]
