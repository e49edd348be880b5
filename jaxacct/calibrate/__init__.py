"""From a privacy budget to the setting that spends it: noise, sampling rate, steps, or the scale of a schedule.

Every setting returned satisfies its budget by a certified upper bound, and says how near it is to the best one:

* :mod:`.targets`: what is called; :mod:`.result`: what comes back.
* :mod:`.search`: the search, by certified bounds; :mod:`.solve`: where it starts, and what it asks, as one program;
  :mod:`.by_mesh`: the same by calls, where the exact accountant does not converge.
* :mod:`.users`: the noise of a guarantee for people, sampled by example and by user.
* :mod:`.runs`: how many runs of any mechanism a budget pays for; :mod:`.secants`: a search for what need not be exact.
* :mod:`.searches`: the noise of a search whose best run is released, and how many runs it may make.
* :mod:`.attack`: from an attack's success to an (epsilon, delta).
"""

from jaxacct.calibrate.result import Calibrated, Status
from jaxacct.calibrate.runs import most_runs
from jaxacct.calibrate.searches import most_trials, noise_multiplier_for_search
from jaxacct.calibrate.targets import (
    noise_multiplier,
    noise_multiplier_for_advantage,
    noise_multiplier_for_tpr,
    sampling_rate,
    scale,
    steps,
)
from jaxacct.calibrate.users import Sampling, UserLevel, user_level

__all__ = [
    "Calibrated",
    "Sampling",
    "Status",
    "UserLevel",
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
