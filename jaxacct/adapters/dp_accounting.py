"""Accountants of dp_accounting's own kind, which wherever it takes a ``PrivacyAccountant`` can be given.

Without dp_accounting (pip install dp-accounting) this module can be imported, and nothing of it made.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, SupportsFloat

from jaxacct import certified, rdp, validation
from jaxacct.adapters.events import MOST_STEPS, NO_PRIVACY, Parts, UnknownEvent, lacking, made, parts_of, stand_in
from jaxacct.bounds import Bounds
from jaxacct.calibrate import search
from jaxacct.mechanisms import DIRECTIONS, GaussianWithoutReplacement, PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.validation import up

try:
    from dp_accounting import NeighboringRelation, PrivacyAccountant
except ImportError:
    PrivacyAccountant = stand_in("dp-accounting", __name__)
    NeighboringRelation = None

__all__ = ["ExactAccountant", "RenyiAccountant", "calibrate"]

RELATIONS: dict[str, str] = {
    "ADD_OR_REMOVE_ONE": "add_or_remove",
    "REPLACE_ONE": "replace",
    "REPLACE_SPECIAL": "zero_out",
}
"""Neighbouring relations as they are called there and here."""


class _Accountant(PrivacyAccountant):
    """What both accountants share: which events they take, and how these add up."""

    def __init__(self, neighboring_relation: Any = None) -> None:
        super().__init__(neighboring_relation or getattr(NeighboringRelation, "ADD_OR_REMOVE_ONE", None))
        relation = RELATIONS[self.neighboring_relation.name]
        if relation not in DIRECTIONS:
            raise ValueError(
                f"neighboring_relation = {neighboring_relation} has no counterpart here: give another one."
            )
        self._relation: Relation = relation
        self._parts: Parts = {}

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        error = PrivacyAccountant.CompositionErrorDetails
        try:
            parts = parts_of(event)
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

    @abc.abstractmethod
    def _epsilon(self, mechanisms: Mechanisms, steps: Steps, delta: float) -> SupportsFloat:
        """Returns the upper bound that is reported."""

    @abc.abstractmethod
    def _delta(self, mechanisms: Mechanisms, steps: Steps, epsilon: float) -> SupportsFloat:
        """Returns the upper bound that is reported."""

    def get_epsilon(self, target_delta: float) -> float:
        """Returns an upper bound on epsilon of all that was composed, rounding included, at ``target_delta``.

        A ``target_delta`` of 1 asks for nothing, and is answered by 0; by ``inf`` where a part is not private at all.

        Raises ValueError where ``target_delta`` is not in [0, 1].
        """
        if target_delta == 1:
            return math.inf if NO_PRIVACY in self._parts else 0.0
        return float(self._epsilon(*made(self._parts), target_delta))

    def get_delta(self, target_epsilon: float) -> float:
        """Returns an upper bound on delta of all that was composed, rounding included, at ``target_epsilon``.

        Raises ValueError where ``target_epsilon`` is below 0 or NaN.
        """
        return 1.0 if NO_PRIVACY in self._parts else float(self._delta(*made(self._parts), target_epsilon))


class ExactAccountant(_Accountant):
    """dp_accounting's accountant by certified bounds on the privacy loss: :func:`jaxacct.epsilon` and its delta.

    Args:
        neighboring_relation: dp_accounting's ``NeighboringRelation``; ``ADD_OR_REMOVE_ONE`` unless given.

    Formal guarantee: what is reported is an upper bound, rounding included, for the events as dp_accounting documents
    them, composed adaptively, under the relation (:func:`jaxacct.adapters.from_dp_event`). Where an event is known by
    its Rényi curve alone it is that of :class:`RenyiAccountant`.

    Raises ``UnsupportedEventError`` for an event that has no counterpart, and ValueError for a field out of range.

    .. code-block:: python

        ExactAccountant().compose(dp_accounting.GaussianDpEvent(2.0), 10).get_epsilon(1e-5)
    """

    def _epsilon(self, mechanisms: Mechanisms, steps: Steps, delta: float) -> SupportsFloat:
        return certified.epsilon(mechanisms, steps, delta, relation=self._relation).upper

    def _delta(self, mechanisms: Mechanisms, steps: Steps, epsilon: float) -> SupportsFloat:
        return certified.delta(mechanisms, steps, epsilon, relation=self._relation).upper


class RenyiAccountant(_Accountant):
    """dp_accounting's accountant by Rényi divergences: :func:`jaxacct.rdp.epsilon` and its delta.

    Args:
        neighboring_relation: as of :class:`ExactAccountant`, whose events, guarantee and errors these are.

    Looser, and the same 0.2 milliseconds for any number of runs.
    """

    def _epsilon(self, mechanisms: Mechanisms, steps: Steps, delta: float) -> SupportsFloat:
        return rdp.epsilon(mechanisms, steps, delta, relation=self._relation)

    def _delta(self, mechanisms: Mechanisms, steps: Steps, epsilon: float) -> SupportsFloat:
        return rdp.delta(mechanisms, steps, epsilon, relation=self._relation)


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

    What ``dp_accounting.calibrate_dp_mechanism`` returns, for a parameter of which more is more private.

    Args:
        make_event: from a parameter above 0, a noise multiplier say, to its event.
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        make_accountant: makes the accountant, without events yet; its relation counts.
        start: a parameter to start from.
        tolerance: relative distance, in epsilon, below the budget at which the search ends.

    Formal guarantee: the accountant's epsilon at the parameter that is returned is at most ``epsilon``.

    Raises ValueError where no parameter was found.
    """
    if not 0 < epsilon < math.inf or not 0 < delta < 1 or not start > 0:
        raise ValueError(f"epsilon = {epsilon}, delta = {delta}, start = {start}: give a budget and a start above 0.")

    def cost(setting: float) -> float:
        return make_accountant().compose(make_event(math.exp(setting))).get_epsilon(delta) / epsilon

    found = search.least(cost, math.log(start), close=tolerance, rounds=40)
    if found == math.inf:
        raise ValueError(f"epsilon = {epsilon} at delta = {delta} was reached by no parameter that was tried.")
    return math.exp(found)


# ----------------------------------------------------------------------------------------------------
# What other libraries compute by one call, by one call.
# ----------------------------------------------------------------------------------------------------


def compute_dp_sgd_privacy(n: int, batch_size: int, noise_multiplier: float, epochs: float, delta: float) -> Bounds:
    """Returns bounds on epsilon of DP-SGD, by the arguments of TensorFlow Privacy's function of this name.

    Args:
        n: number of examples.
        batch_size: expected number of examples in a batch, at most n.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        epochs: above 0; there are ``ceil(epochs * n / batch_size)`` steps.
        delta: failure probability in (0, 1).

    Formal guarantee: that of :func:`jaxacct.epsilon`, for batches by Poisson's law at the rate batch_size / n under
    "add_or_remove", and for clipping by example. Where data was shuffled, or microbatches hold several examples, what
    ran is another mechanism.

    Raises ValueError or TypeError where an argument is out of range.

    >>> print(compute_dp_sgd_privacy(60_000, 256, 1.1, 15, 1e-5))
    [1.133874, 1.133875]
    """
    validation.check_whole(n, "n", 1, MOST_STEPS, "the number of examples")
    validation.check_whole(batch_size, "batch_size", 1, n, "the size of a batch")
    validation.check_positive(epochs, "epochs")
    steps = -(-Fraction(float(epochs)) * n // batch_size)
    return certified.epsilon(
        PoissonSubsampledGaussian(noise_multiplier, up(Fraction(batch_size, n))), int(steps), delta
    )


def flower_privacy(
    noise_multiplier: float, num_sampled_clients: int, num_clients: int, rounds: int, delta: float
) -> Bounds:
    """Returns bounds on epsilon of Flower's central differential privacy with fixed clipping, for its clients.

    Args:
        noise_multiplier: as of ``DifferentialPrivacyServerSideFixedClipping`` (or ``ClientSide``): the noise of the
            average is this times the clipping norm over the number of clients in it.
        num_sampled_clients: clients in each round, as Flower is told.
        num_clients: clients to choose from, taken as public.
        rounds: number of rounds.
        delta: failure probability in (0, 1), well below one over ``num_clients``.

    Formal guarantee: that of :func:`jaxacct.epsilon`, for one client's data replaced by any other, where every round
    samples its clients uniformly without replacement, all of them answer, and all count alike in the average.

    Raises ValueError or TypeError where an argument is out of range.

    >>> print(flower_privacy(4.0, num_sampled_clients=50, num_clients=10_000, rounds=1000, delta=1e-5))
    [0.3380154, 0.3380155]
    """
    validation.check_whole(num_clients, "num_clients", 1, MOST_STEPS, "the number of clients")
    validation.check_whole(num_sampled_clients, "num_sampled_clients", 1, num_clients, "the clients of a round")
    rate = up(Fraction(num_sampled_clients, num_clients))
    return certified.epsilon(GaussianWithoutReplacement(noise_multiplier, rate), rounds, delta, relation="replace")
