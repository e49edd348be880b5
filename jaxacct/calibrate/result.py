"""What a calibration returns: a setting, what it was certified to reach, and how the search ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Array, Float, Int

from jaxacct.bounds import Bounds
from jaxacct.numerics.platforms import OUTWARD, outward
from jaxacct.numerics.pytrees import register_dataclass


class Status(enum.IntEnum):
    """How a search ended. Every status but the last two comes with a setting that satisfies the budget.

    ==============  =====================================================================================
    CONVERGED       satisfies the budget, and is within the tolerance of the best setting: one that is nearer than
                    that on its other side was refuted, by a certified lower bound above the budget
    NOT_BINDING     satisfies the budget at the end of the range: no noise is needed, or every example may
                    be sampled, or any number of steps run
    LOOSE           satisfies the budget; that it is within the tolerance of the best setting was not proved
    INFEASIBLE      no setting in the range satisfies the budget: a lower bound exceeds it at the end
    UNKNOWN         nothing was certified; use concrete arguments, which the certified mesh accountant takes over
    ==============  =====================================================================================
    """

    CONVERGED = 0
    NOT_BINDING = 1
    LOOSE = 2
    INFEASIBLE = 3
    UNKNOWN = 4


@register_dataclass
@dataclass(frozen=True)
class Calibrated:
    """A setting that satisfies a privacy budget.

    Attributes:
        value: the setting, float64, the shape of the batch. Where ``status`` is INFEASIBLE or UNKNOWN it is on the safe
            side: infinite noise, no sampling, no steps.
        reached: certified bounds on the budgeted quantity at ``value``: on epsilon, or on delta where the target is an
            advantage. ``reached.upper`` is at most the budget. Where it took the mesh, :func:`jaxacct.epsilon` needs a
            ``tolerance`` as small to say so.
        status: a :class:`Status`, int32.

    >>> bool(Calibrated(2.0, Bounds(0.9, 0.95, 1.0), 0).satisfied)
    True
    """

    value: Float[Array, ...] | np.ndarray | float
    reached: Bounds
    status: Int[Array, ...] | np.ndarray | int

    @property
    def satisfied(self) -> Array | np.ndarray | bool:
        """Whether ``value`` was certified to satisfy the budget."""
        return self.status < Status.INFEASIBLE


# The setting is one that leaves as it is (:func:`.precision.representable`).
OUTWARD[Calibrated] = lambda found: replace(found, reached=outward(found.reached))
