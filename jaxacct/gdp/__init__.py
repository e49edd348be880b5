"""Gaussian differential privacy: the central-limit estimate of a composition's mu, and a certified one.

* :mod:`jaxacct.convert.gaussian`: delta, epsilon and mu of a Gaussian trade-off function, rounded to the safe side.
* :mod:`.clt`: the central-limit *estimate*, which can under-report, and the moments it is made of.
* :mod:`.certified`: the least mu that is proved to lie below a composition's trade-off curve, its regret, and the
  proof.
"""

from jaxacct.convert.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from jaxacct.gdp.certified import GaussianSummary, certified_mu
from jaxacct.gdp.clt import clt_error, delta, epsilon, mu

__all__ = [
    "GaussianSummary",
    "certified_mu",
    "clt_error",
    "delta",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "mu",
]
