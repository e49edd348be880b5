"""Private selection, the release of the best of a random number of runs: laws of that number, and its privacy profile.

A search looks at private data once for each setting that it tries. Draw the number of trials from one of these laws,
release the best run alone, and account for it by :class:`jaxacct.RepeatAndSelect`: it costs about as much as two or
three runs, however many there are on average.

* :mod:`.laws`: laws of the number of trials, and how to draw from them;
* :mod:`.profile`: upper and lower bounds on delta of the best run, from the privacy profile of one, with proofs.
"""

from jaxacct.selection.laws import Binomial, Fixed, Geometric, Logarithmic, Poisson, Trials, TruncatedNegativeBinomial

__all__ = ["Binomial", "Fixed", "Geometric", "Logarithmic", "Poisson", "Trials", "TruncatedNegativeBinomial"]
