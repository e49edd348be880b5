"""Budgets that a search is part of: the noise of its runs, and how often to draw."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from jaxacct import certified, validation
from jaxacct.calibrate.result import Calibrated, Status
from jaxacct.calibrate.secants import least
from jaxacct.mechanisms import PoissonSubsampledGaussian, RepeatAndSelect
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps, check_parts
from jaxacct.question import ForDelta
from jaxacct.selection import Poisson, Trials, TruncatedNegativeBinomial
from jaxacct.selection.profile import Selection

CLOSE = 1e-3
"""Relative distance of the epsilon reached from the budget at which the search for the noise ends."""

ROUNDS = 20

SHAPES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

MOST_MEAN = 1e5


def noise_multiplier_for_search(
    trials: Trials,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    *,
    relation: Relation = "add_or_remove",
) -> Calibrated:
    """Returns about the least noise multiplier with which a whole search is (epsilon, delta)-DP.

    Args:
        trials: how many runs of Poisson sampled DP-SGD there are, of which the best alone is released.
        epsilon: budget of all of them, above 0.
        delta: budget, in (0, 1).
        sampling_rate: of each run, in (0, 1].
        steps: of each run.
        relation: "add_or_remove".

    Returns:
        :class:`~jaxacct.calibrate.Calibrated`: ``value`` the noise multiplier of every run, ``reached`` the search's
        certified epsilon, within 1e-3 of the budget; status LOOSE. Some ten seconds.

    Formal guarantee: ``reached.upper <= epsilon``, that of :class:`jaxacct.RepeatAndSelect`.

    Raises ValueError where an argument is out of range, or no noise was found that suffices.

    >>> from jaxacct.selection import Geometric
    >>> found = noise_multiplier_for_search(Geometric(10.0), 2.0, 1e-5, sampling_rate=1.0, steps=1)
    >>> f"{found.value:.2f} {found.reached.upper:.2f}"
    '2.93 2.00'
    """
    validation.check_positive(epsilon, "epsilon")
    validation.check_delta(delta)
    validation.check_sampling_rate(sampling_rate)
    validation.check_count(steps, "steps", "the steps of a run")
    # About the noise of a Gaussian of that sensitivity on average.
    start = max(sampling_rate * math.sqrt(steps * math.log(1 / delta)) / epsilon, 0.3)

    def run(noise: float) -> tuple[Mechanisms, Steps]:
        return PoissonSubsampledGaussian(noise, sampling_rate), steps

    return least_noise(run, trials, epsilon, delta, relation, start)


def least_noise(
    run: Callable[[float], tuple[Mechanisms, Steps]],
    trials: Trials,
    epsilon: float,
    delta: float,
    relation: Relation,
    start: float,
) -> Calibrated:
    """Returns what :func:`noise_multiplier_for_search` does, for runs that are any composition of their noise."""
    tried = {}

    def cost(log_noise: float) -> float:
        search = RepeatAndSelect(*run(math.exp(log_noise)), trials)
        tried[log_noise] = certified.epsilon(search, 1, delta, relation=relation)
        return float(tried[log_noise].upper) / epsilon

    found = least(cost, math.log(start), close=CLOSE, rounds=ROUNDS)
    if found == math.inf:
        raise ValueError(
            f"epsilon = {epsilon} at delta = {delta} was not met by any noise for {trials}: give a larger budget, or "
            "fewer trials."
        )
    return Calibrated(np.float64(math.exp(found)), tried[found], int(Status.LOOSE))


def most_trials(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: float,
    delta: float,
    *,
    share: float = 0.1,
    relation: Relation = "add_or_remove",
) -> Trials:
    """Returns the law of the number of runs that a budget pays for with which a search is likeliest to succeed.

    Args:
        mechanism: what one run is composed of, as of :func:`jaxacct.epsilon`; concrete.
        steps: likewise.
        epsilon: budget of the search, more than one run costs.
        delta: budget, in (0, 1).
        share: of the settings, those that would do: the search succeeds if it tries one, each being drawn with equal
            probabilities. Less means more trials of a law that varies more.
        relation: one that what is within supports.

    Returns:
        Of Poisson's law and the truncated negative binomial ones of a few shapes, each with the largest mean up to 1e5
        that is certified, that of the least :meth:`~jaxacct.selection.Trials.missed`. (For a mean that is given the
        logarithmic law always costs least: most of its searches try one or two settings.)

    Formal guarantee: a search with this law is (epsilon, delta)-DP, that of :class:`jaxacct.RepeatAndSelect`.

    Raises ValueError where an argument is out of range, or the budget does not pay for a single run.

    >>> from jaxacct import Gaussian
    >>> law = most_trials(Gaussian(5.0), 1, 2.0, 1e-5)
    >>> print(f"eta {law.shape}, {law.mean:.0f} trials on average, misses in {law.missed(0.1):.2%}")
    eta 2.0, 414 trials on average, misses in 0.21%
    """
    check_parts(mechanism, steps)
    validation.check_delta(delta)
    validation.check_positive(epsilon, "epsilon")
    validation.check_positive(share, "share")
    validation.check_probability(share, "share")
    ways = certified.profile((mechanism, steps), ForDelta(np.array([epsilon])), 1.0, relation)

    def most(law: Callable[[float], Trials]) -> Trials | None:
        def pays(mean: float) -> bool:
            return max(Selection(way, law(mean)).upper(epsilon) for way in ways) <= delta

        low, high = 0.0, math.log(MOST_MEAN)
        if not ways or not pays(1.0):
            return None
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (middle, high) if pays(math.exp(middle)) else (low, middle)
        return law(math.exp(low))

    families: list[Callable[[float], Trials]] = [
        *(functools.partial(TruncatedNegativeBinomial, shape=shape) for shape in SHAPES),
        Poisson,
    ]
    found = [law for law in map(most, families) if law is not None]
    if not found:
        raise ValueError(f"epsilon = {epsilon} does not pay for a single run: give more, or add noise.")
    return min(found, key=lambda law: law.missed(share))
