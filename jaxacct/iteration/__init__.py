"""Algorithms that hide all but one of their iterates: contraction coefficients and amplification by iteration.

* :mod:`.contraction`: what one hidden noisy iteration does to a delta (:func:`theta`, :func:`contracted_delta`), and
  what contractive ones do to a mu or a Rényi divergence (:func:`amplified_mu`, :func:`amplified_rdp`).
* :mod:`.sgd`: projected noisy SGD in one pass, of which the last iterate is released.
* :mod:`.stopped`: the same, stopped at a random iteration.
"""

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
