"""From a privacy budget to the setting that spends it: noise, sampling rate, steps, or the scale of a schedule.

Every setting returned satisfies its budget by a certified upper bound, and says how near it is to the best one:

* :mod:`.targets` holds the functions that are called: noise, rate, steps and scale for a budget; the noise of a
  guarantee for people, and of a search whose best run is released; the most runs of any mechanism; the budget that an
  attack stands for.
* :mod:`.search` holds the result (:class:`Calibrated`, :class:`Status`) and the search by certified bounds: by calls
  of the top level's accountants for concrete targets, and in a trace as one loop around the exact one.
"""

from jaxacct.calibrate.search import Calibrated, Status
from jaxacct.calibrate.targets import (
    Sampling,
    UserLevel,
    most_certified,
    most_runs,
    most_trials,
    noise_multiplier,
    noise_multiplier_for_advantage,
    noise_multiplier_for_search,
    noise_multiplier_for_tpr,
    sampling_rate,
    scale,
    steps,
    user_level,
)

__all__ = [
    "Calibrated",
    "Sampling",
    "Status",
    "UserLevel",
    "most_certified",
    "most_runs",
    "most_trials",
    "noise_multiplier",
    "noise_multiplier_for_advantage",
    "noise_multiplier_for_search",
    "noise_multiplier_for_tpr",
    "sampling_rate",
    "scale",
    "steps",
    "user_level",
]
