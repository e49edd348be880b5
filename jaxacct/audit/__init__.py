"""Audits of the trainer: how much its releases show of examples that were put in to be found, and what that proves.

* :mod:`.approximate`: right guesses against (epsilon, delta): :func:`epsilon_lower_bound`, for any mechanism.
* :mod:`.profiles`: right guesses against a whole profile of (epsilon, delta(epsilon)), and several runs together.
* :mod:`.gaussian`: right guesses against mu-GDP: :func:`mu_lower_bound`.
* :mod:`.canaries`, :mod:`.attack`: examples with gradients of their own, and guesses from the noisy sums.
* :mod:`.faults`: broken trainers.
* :mod:`.experiment`: all of it together: :func:`run`.

An accountant's upper bound and an audit's lower bound meet from two sides. The audit cannot show that a trainer is
private: a low bound may be a weak audit. A bound above the claim shows that it is not as private as claimed.
"""

from jaxacct.audit.approximate import epsilon_lower_bound
from jaxacct.audit.attack import guess, scores
from jaxacct.audit.experiment import Audit, Settings, run
from jaxacct.audit.faults import FAULTS
from jaxacct.audit.gaussian import mu_lower_bound
from jaxacct.audit.profiles import combined, p_value

__all__ = [
    "FAULTS",
    "Audit",
    "Settings",
    "combined",
    "epsilon_lower_bound",
    "guess",
    "mu_lower_bound",
    "p_value",
    "run",
    "scores",
]
