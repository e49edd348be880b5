"""Matrix factorization: from a workload, a participation and a budget to the correlated noise of least error.

* :mod:`.optimize`: strategies, by L-BFGS (Optax, of the extra "train"); their error at equal budgets; the noise for a
  budget, and the number of bands under amplification.
"""

from jaxacct.factorize.optimize import Bands, banded_toeplitz, best_bands, buffered_toeplitz, error, noise_multiplier

__all__ = ["Bands", "banded_toeplitz", "best_bands", "buffered_toeplitz", "error", "noise_multiplier"]
