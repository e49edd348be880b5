"""Audits of the trainer: how much its releases show of examples that were put in to be found, and what that proves.

* :mod:`.lower_bounds`: right guesses against (epsilon, delta), for any mechanism: :func:`epsilon_lower_bound`; against
  a whole profile of (epsilon, delta(epsilon)): :func:`p_value`, with several runs together: :func:`combined`; and
  against mu-GDP: :func:`mu_lower_bound`.
* :mod:`.experiment`: examples with gradients of their own, guesses from the noisy sums, broken trainers, and all of it
  together: :func:`run`.
An accountant's upper bound and an audit's lower bound meet from two sides. The audit cannot show that a trainer is
private: a low bound may be a weak audit. A bound above the claim shows that it is not as private as claimed.
"""

from jaxacct import train as _train  # noqa: F401  (says what to install)
from jaxacct.audit.experiment import FAULTS, Audit, Settings, guess, run, scores
from jaxacct.audit.lower_bounds import combined, epsilon_lower_bound, mu_lower_bound
from jaxacct.audit.lower_bounds import p_value_of_profile as p_value

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
