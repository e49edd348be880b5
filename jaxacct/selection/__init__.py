"""The best of a random number of runs: laws of that number, and what it costs.

A search looks at private data once for each setting that it tries. Draw the number of trials from one of these laws,
release the best run alone, and account for it by :class:`jaxacct.RepeatAndSelect`: it costs about as much as two or
three runs, however many there are on average. The proof is in :mod:`.curve`.
"""

from jaxacct.selection.laws import Binomial, Fixed, Geometric, Logarithmic, Poisson, Trials, TruncatedNegativeBinomial

__all__ = ["Binomial", "Fixed", "Geometric", "Logarithmic", "Poisson", "Trials", "TruncatedNegativeBinomial"]
