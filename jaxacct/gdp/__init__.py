"""Gaussian differential privacy: the central-limit estimate of a composition's mu, and a certified one.

* :mod:`.gaussian`: delta, epsilon and mu of a Gaussian trade-off function, exact and rounded to the safe side.
"""

from jaxacct.gdp.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu

__all__ = ["gaussian_delta", "gaussian_epsilon", "gaussian_mu"]
