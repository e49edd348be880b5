"""Monte Carlo estimates of delta, with intervals that may fail, for mechanisms without a tight bound by an accountant.

The result is neither a bracket nor certified. An :class:`Interval` holds the truth except with a probability that it
carries: over the draws, which are fresh from the operating system, and as far as the generator's bits pass for random
ones. Draws are made in float64, in blocks, on JAX's device: what rounding does to them, a relative 1e-10 or so, is not
counted.

*What may be released.* Fix epsilon and delta. Draw once, and train if the upper end is at most delta, else release
nothing. All of it is (epsilon, max(delta, eta))-DP, eta the failure probability: the draws know nothing of the data, so
that the profile is the mechanism's times the probability to go ahead. That is at most eta where the mechanism's own
exceeds delta, and the profile is at most delta where it does not. Drawing again until it passes adds eta up.
Source: Wang et al. (2023), "A randomized approach for tight privacy accounting", and arXiv 2605.07072.
"""

from jaxacct.monte_carlo.draws import BallsInBins, Interval, delta

__all__ = ["BallsInBins", "Interval", "delta"]
