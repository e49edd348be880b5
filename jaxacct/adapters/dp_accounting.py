"""Accountants of dp_accounting's own kind, and a calibration by them.

The accountants can be given wherever dp_accounting takes a ``PrivacyAccountant``. Without dp_accounting (pip install
dp-accounting) this module can be imported, and the accountants cannot be made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxacct import certified, rdp
from jaxacct.adapters.events import (
    NO_PRIVACY,
    Parts,
    UnknownEvent,
    by_curves,
    join_parts,
    lacking,
    parts_of,
    stand_in,
    upper_end,
)
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.numerics.root_search import least_by_secants

try:
    from dp_accounting import NeighboringRelation, PrivacyAccountant
except ImportError:
    PrivacyAccountant = stand_in("dp-accounting", __name__)
    NeighboringRelation = None

__all__ = ["ExactAccountant", "RenyiAccountant", "calibrate"]


class _Accountant(PrivacyAccountant):
    """The common part of both accountants: the events that they take, and the counts of mechanisms so far."""

    _epsilon: Callable[..., Any]
    _delta: Callable[..., Any]
    _parts_of: Callable[[object], Parts] = staticmethod(parts_of)

    def __init__(self, neighboring_relation: Any = None) -> None:
        super().__init__(neighboring_relation or getattr(NeighboringRelation, "ADD_OR_REMOVE_ONE", None))
        names: dict[str, Relation] = {
            "ADD_OR_REMOVE_ONE": "add_or_remove", "REPLACE_ONE": "replace", "REPLACE_SPECIAL": "zero_out",
        }  # fmt: skip
        self._relation = names[self.neighboring_relation.name]
        self._parts: Parts = {}

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        error = PrivacyAccountant.CompositionErrorDetails
        # dp_accounting expects a description of what cannot be composed, and no exception.
        try:
            parts = self._parts_of(event)
        except UnknownEvent as unknown:
            return error(invalid_event=unknown.event, error_message=str(unknown))
        kind = lacking(parts, self._relation)
        if kind is not None:
            message = f"{kind.__name__} is not known under {self.neighboring_relation}, but {', '.join(kind.relations)}"
            return error(invalid_event=event, error_message=message)
        if do_compose:
            for part, runs in parts.items():
                self._parts[part] = self._parts.get(part, 0) + runs * count
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """Returns an upper bound on epsilon of all that was composed, rounding included, at ``target_delta``.

        At a ``target_delta`` of 1 every epsilon holds, and the answer is 0; ``inf`` where a part is not private at all.

        Raises ValueError where ``target_delta`` is not in [0, 1].
        """
        if target_delta == 1:
            return math.inf if NO_PRIVACY in self._parts else 0.0
        return upper_end(self._epsilon(*join_parts(self._parts), target_delta, relation=self._relation))

    def get_delta(self, target_epsilon: float) -> float:
        """Returns an upper bound on delta of all that was composed, rounding included, at ``target_epsilon``.

        Raises ValueError where ``target_epsilon`` is below 0 or NaN.
        """
        if NO_PRIVACY in self._parts:
            return 1.0
        return upper_end(self._delta(*join_parts(self._parts), target_epsilon, relation=self._relation))


class ExactAccountant(_Accountant):
    """An accountant of dp_accounting's kind by certified bounds: :func:`jaxacct.epsilon` and :func:`jaxacct.delta`.

    Args:
        neighboring_relation: dp_accounting's ``NeighboringRelation``; ``ADD_OR_REMOVE_ONE`` unless given.

    Formal guarantee: the number reported is an upper bound, rounding included, for the events as dp_accounting
    documents them, composed adaptively, under the relation (:func:`jaxacct.adapters.from_dp_event`). Where an event is
    known by its Rényi curve alone the bound is that of :class:`RenyiAccountant`. No event stands for shuffled batches:
    :func:`jaxacct.adapters.judge_dp_event` of the accountant's ``ledger`` says whether a number for Poisson samples
    holds for them.

    Raises ``UnsupportedEventError`` for an event that has no counterpart, and ValueError for a field out of range.

    .. code-block:: python

        ExactAccountant().compose(dp_accounting.GaussianDpEvent(2.0), 10).get_epsilon(1e-5)
    """

    _epsilon, _delta = staticmethod(certified.epsilon), staticmethod(certified.delta)


class RenyiAccountant(_Accountant):
    """An accountant of dp_accounting's kind by Rényi divergences: :func:`jaxacct.rdp.epsilon` and its delta.

    Args:
        neighboring_relation: as for :class:`ExactAccountant`; events, guarantee and errors are the same too.

    The bound is looser, and takes 0.2 milliseconds for any number of runs.
    """

    _epsilon, _delta = staticmethod(rdp.epsilon), staticmethod(rdp.delta)
    _parts_of = staticmethod(lambda event: by_curves(parts_of(event)))


@takes_python_values
def calibrate(
    make_event: Callable[[float], object],
    epsilon: float,
    delta: float,
    *,
    make_accountant: Callable[[], _Accountant] = ExactAccountant,
    start: float = 1.0,
    tolerance: float = 1e-6,
) -> float:
    """Returns the least parameter whose event is (epsilon, delta)-DP, by about six evaluations.

    It is what ``dp_accounting.calibrate_dp_mechanism`` returns, for a parameter whose larger values are more private.

    Args:
        make_event: a function from a parameter above 0, a noise multiplier say, to its event.
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        make_accountant: a function that makes an accountant without events, whose relation counts.
        start: a parameter to start from.
        tolerance: relative distance, in epsilon, below the budget at which the search ends.

    Formal guarantee: the accountant's epsilon at the parameter that is returned is at most ``epsilon``.

    Raises ValueError where no parameter was found.
    """
    if not 0 < epsilon < math.inf or not 0 < delta < 1 or not start > 0:
        raise ValueError(f"epsilon = {epsilon}, delta = {delta}, start = {start}: give a budget and a start above 0.")

    def cost(setting: float) -> float:
        """Returns the share of the budget that the parameter e^setting takes."""
        return make_accountant().compose(make_event(math.exp(setting))).get_epsilon(delta) / epsilon

    log_value = least_by_secants(cost, math.log(start), close=tolerance, rounds=40)
    if log_value == math.inf:
        raise ValueError(f"epsilon = {epsilon} at delta = {delta} was reached by no parameter that was tried.")
    return math.exp(log_value)
