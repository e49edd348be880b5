"""Algorithms that hide all but one of their iterates: contraction coefficients and amplification by iteration."""

from jaxacct.iteration.contraction import amplified_mu, amplified_rdp, contracted_delta, theta
from jaxacct.iteration.sgd import ProjectedNoisySGD, last_iterate_delta, last_iterate_rdp
from jaxacct.iteration.stopped import highest_order, stopped_delta, stopped_epsilon, stopped_rdp

__all__ = [
    "ProjectedNoisySGD",
    "amplified_mu",
    "amplified_rdp",
    "contracted_delta",
    "highest_order",
    "last_iterate_delta",
    "last_iterate_rdp",
    "stopped_delta",
    "stopped_epsilon",
    "stopped_rdp",
    "theta",
]
