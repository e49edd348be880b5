"""The verdict on a claimed bracket."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from flint import arb, ctx

from jaxacct.verify.routes import BITS, Direction
from jaxacct.verify.statements import Unstated, composition, exact

if TYPE_CHECKING:
    from jaxacct.bounds import Bounds
    from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps

LARGEST = arb(2) ** 1024
"""Above every float64 but infinity."""


Claim: TypeAlias = "Bounds | tuple[float | None, float]"
"""A bracket that is claimed, or its two ends; a lower one of None is 0."""


class Status(enum.StrEnum):
    """What is known of a claim.

    Attributes:
        PROVED: ``lower <= truth <= upper``.
        REFUTED: the truth lies outside.
        UNDECIDED: neither was proved; the reason says what is missing.
    """

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class Verdict:
    """What the referee says of a bracket.

    Attributes:
        status: PROVED, REFUTED or UNDECIDED.
        truth: (low, high), float64, between which the truth was proved to lie: the bracket itself where it was proved
            and no more was needed, a narrow one where it was refuted.
        reason: by what, or what is missing, in words.

    >>> Verdict(Status.PROVED, (1.0, 1.1), "").status == "PROVED"
    True
    """

    status: Status
    truth: tuple[float, float]
    reason: str


def epsilon(
    mechanism: Mechanisms,
    steps: Steps,
    delta: float,
    bracket: Claim,
    *,
    relation: Relation = "add_or_remove",
) -> Verdict:
    """Returns whether ``lower <= epsilon <= upper`` holds for the tight epsilon of a composition at ``delta``.

    The truth is the largest, over the relation's directions, of the least epsilon >= 0 with delta(epsilon) <= delta;
    at delta = 0 that is the supremum of the loss.

    Args:
        mechanism: as for :func:`jaxacct.epsilon`: one, a sequence by a leading axis, or a tuple.
        steps: number of runs, of the same shape; Python integers of any size.
        delta: in [0, 1].
        bracket: (lower, upper), or what has these as attributes, as :class:`~jaxacct.Bounds`; a lower of None is 0.
        relation: neighbouring relation, one that the mechanisms support.

    Formal guarantee: PROVED and REFUTED are theorems about the exact values of the floats given, in ball arithmetic and
    without the accountants' code: :mod:`jaxacct.verify` states them. A wrong statement of a mechanism's pair, or a
    defect of Arb, would be shared by no accountant.

    Raises:
        ValueError: an argument out of range, NaN, or an unsupported relation.

    Source: :mod:`jaxacct.verify`.

    >>> from jaxacct import Gaussian
    >>> epsilon(Gaussian(10.0), 100, 1e-5, (4.377178, 4.377179)).status.value
    'PROVED'
    >>> verdict = epsilon(Gaussian(10.0), 100, 1e-5, (4.3, 4.377178))
    >>> verdict.status.value, verdict.truth[0] > 4.377178
    ('REFUTED', True)
    """
    delta = number(delta, "delta")
    if not 0 <= delta <= 1:
        raise ValueError(f"delta = {delta} is not in [0, 1]: give the failure probability.")
    lower, upper = claimed(bracket)
    return _judged(mechanism, steps, relation, lower, upper, lambda directions: _Epsilon(directions, delta), math.inf)


def delta(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: float,
    bracket: Claim,
    *,
    relation: Relation = "add_or_remove",
) -> Verdict:
    """Returns whether ``lower <= delta <= upper`` holds for the tight delta of a composition at ``epsilon``.

    Args, guarantee, errors and source are those of :func:`epsilon`; ``epsilon``, in [0, inf], stands in for delta. At
    inf the truth is the mass of infinite losses. ``truth`` is a narrow ball wherever one was computed.

    >>> from jaxacct import Gaussian
    >>> delta(Gaussian(10.0), 100, 1.0, (0.12693673, 0.12693675)).status.value
    'PROVED'
    """
    epsilon = number(epsilon, "epsilon")
    if not epsilon >= 0:
        raise ValueError(f"epsilon = {epsilon} is not an epsilon: give a number of at least 0.")
    lower, upper = claimed(bracket)
    return _judged(mechanism, steps, relation, lower, upper, lambda directions: _Delta(directions, epsilon), 1.0)


def number(value: object, name: str) -> float:
    """Returns a float64; raises where there is none, it is NaN, or it would have to be rounded to be one."""
    given = exact(value, name)
    found = float(given)
    if math.isnan(found):
        raise ValueError(f"{name} is nan: give a number.")
    if not isinstance(given, float) and Fraction(found) != given:
        raise ValueError(f"{name} = {value} is no float64, and what is near it would be judged: give one.")
    return found


def claimed(bracket: Claim) -> tuple[float, float]:
    """Returns the two ends of a claim."""
    lower, upper = bracket if isinstance(bracket, (tuple, list)) else (bracket.lower, bracket.upper)
    return number(0.0 if lower is None else lower, "lower"), number(upper, "upper")


def _judged(
    mechanism: Mechanisms,
    steps: Steps,
    relation: Relation,
    lower: float,
    upper: float,
    ask: Callable[[list[Direction]], _Epsilon | _Delta],
    most: float,
) -> Verdict:
    with ctx.workprec(BITS + 64):
        try:
            question = ask([Direction(runs) for runs in composition(mechanism, steps, relation)])
        except Unstated as missing:
            trivial = lower <= 0 and upper >= most
            status = Status.PROVED if trivial else Status.UNDECIDED
            return Verdict(status, (0.0, most), "the bracket says nothing" if trivial else f"{missing}.")
        above, below = question.at_most(upper), question.at_least(lower)
        if above is False or below is False:
            wrong = f"upper = {upper} is below the truth" if above is False else f"lower = {lower} is above the truth"
            return Verdict(Status.REFUTED, question.truth(lower, upper, above), f"{wrong}.")
        if above and below:
            return Verdict(Status.PROVED, question.known(lower, upper), "both ends, in ball arithmetic.")
        open_ends = " and ".join(name for name, known in (("lower", below), ("upper", above)) if not known)
        known = question.known(lower if below else 0.0, upper if above else most)
        refused = dict.fromkeys(direction.refused for direction in question.directions if direction.refused)
        why = "; ".join(refused) or "the ball for delta holds the value claimed"
        return Verdict(Status.UNDECIDED, known, f"{open_ends}: {why}.")


class _Question:
    """What the two questions share: delta of each direction, computed once at each epsilon."""

    def __init__(self, directions: list[Direction]) -> None:
        self.directions = directions
        self.seen: dict[tuple[int, float], arb] = {}
        self.bounds: dict[tuple[int, float], arb] = {}
        self.narrows = True

    def ball(self, i: int, epsilon: float) -> arb:
        """Returns a ball for delta of direction i."""
        if (i, epsilon) not in self.seen:
            self.seen[i, epsilon] = self.directions[i].delta(epsilon)
        return self.seen[i, epsilon]

    def judged(self, i: int, epsilon: float, delta: float | arb) -> arb:
        """Returns a ball narrow enough to tell whether delta is above ``delta``, if that is possible."""
        if self.narrows and len(self.directions) > 1 and (i, epsilon) not in self.seen:
            bound = self.directions[i].below(epsilon, float(delta))  # most often one direction is far below the other
            if bound is not None and bound < delta:
                self.bounds[i, epsilon] = bound
                return bound
        ball = self.ball(i, epsilon)
        if self.narrows and not (ball <= delta or ball > delta):
            ball = self.seen[i, epsilon] = self.directions[i].narrowed(
                epsilon, ball, lambda found: bool(found <= delta or found > delta)
            )
        return ball


class _Epsilon(_Question):
    """The least epsilon at which delta, of every direction, is at most a given one."""

    def __init__(self, directions: list[Direction], delta: float) -> None:
        super().__init__(directions)
        self.given = arb(delta)

    def at_most(self, epsilon: float) -> bool | None:
        """Returns whether the truth is at most ``epsilon``; None where that is not known."""
        if epsilon == math.inf or epsilon < 0:
            return epsilon > 0
        return _all(self._reached(i, epsilon) for i in range(len(self.directions)))

    def _reached(self, i: int, epsilon: float) -> bool | None:
        direction = self.directions[i]
        if self.given == 0 and direction.runs:
            # The essential supremum: delta is 0 from there on, and nowhere before.
            if not direction.bounded:
                # A ball that overflowed says nothing; infinity itself does.
                return False if direction.infinite > 0 or direction.supremum > LARGEST else None
            return _decided(direction.supremum <= epsilon, direction.supremum > epsilon)
        ball = self.judged(i, epsilon, self.given)
        return _decided(ball <= self.given, ball > self.given)

    def at_least(self, epsilon: float) -> bool | None:
        """Returns whether the truth is at least ``epsilon``; None where that is not known."""
        return True if epsilon <= 0 else _any(self._before(i, epsilon) for i in range(len(self.directions)))

    def _before(self, i: int, epsilon: float) -> bool | None:
        """Returns whether delta exceeds the given one everywhere below ``epsilon``."""
        direction = self.directions[i]
        if not direction.runs:
            return False
        if direction.infinite > self.given:
            return True
        if self.given == 0 or (direction.infinite >= self.given and direction.infinite <= self.given):
            return _decided(direction.supremum >= epsilon, direction.supremum < epsilon)
        if math.isinf(epsilon):
            return _decided(False, direction.infinite < self.given)
        ball = self.judged(i, epsilon, self.given)
        return _decided(ball > self.given, ball < self.given)

    def known(self, lower: float, upper: float) -> tuple[float, float]:
        """Returns what the proved ends say."""
        return max(lower, 0.0), upper

    def truth(self, lower: float, upper: float, above: bool | None) -> tuple[float, float]:
        """Returns a narrow bracket of the truth, which lies above ``upper`` or below ``lower``."""
        wrong = upper if above is False else lower
        low, high = (max(upper, 0.0), math.inf) if above is False else (0.0, lower)
        some = [direction for direction in self.directions if direction.runs]
        if any(direction.infinite > self.given for direction in some):
            return math.inf, math.inf
        if self.given == 0 and some:
            return max(low, *(down(d.supremum) for d in some)), min(high, max(up(d.supremum) for d in some))
        self.narrows = False  # a narrow bracket asks for narrow balls
        guess = self._secant(max(wrong, 0.0))
        if guess is None:
            return low, high
        for margin in (1e-13, 1e-12, 1e-11, 1e-10, 1e-9):
            left, right = guess * (1 - margin), guess * (1 + margin) + 5e-324
            if self.at_most(right) and self.at_least(left):
                return max(low, left), min(high, right)
        return low, high

    def _secant(self, start: float) -> float | None:
        """Returns about where the largest delta is the one given, by floats; None where that was not found."""

        def above(x: float) -> float:
            balls = [self.ball(i, x) for i in range(len(self.directions))]
            if any(ball.rad() > 1e-6 * abs(ball) for ball in balls):
                return math.nan
            largest = max((ball.mid() for ball in balls), key=float)
            return float((largest / self.given).log()) if largest > 0 else -math.inf

        x, y = start, max(start * 1.0001, 1e-9)
        f, g = above(x), above(y)
        for _ in range(60):
            if math.isnan(f) or math.isnan(g):
                return None
            if abs(y - x) <= 1e-15 * abs(y) or g == 0 or f == g:
                return y if abs(g) < 1e-6 else None
            step = -g * (y - x) / (g - f) if math.isfinite(f) and math.isfinite(g) else -y / 2
            x, f, y = y, g, max(y / 4, min(y + step, 4 * y + 1))
            g = above(y)
        return None


class _Delta(_Question):
    """delta at a given epsilon: the largest of the directions'."""

    def __init__(self, directions: list[Direction], epsilon: float) -> None:
        super().__init__(directions)
        self.given = epsilon

    def _balls(self, delta: float) -> Iterator[arb]:
        return (self.judged(i, self.given, delta) for i in range(len(self.directions)))

    def at_most(self, delta: float) -> bool | None:
        """Returns whether the truth is at most ``delta``; None where that is not known."""
        return True if delta >= 1 else _all(_decided(b <= delta, b > delta) for b in self._balls(delta))

    def at_least(self, delta: float) -> bool | None:
        """Returns whether the truth is at least ``delta``; None where that is not known."""
        return True if delta <= 0 else _any(_decided(b >= delta, b < delta) for b in self._balls(delta))

    def known(self, lower: float, upper: float) -> tuple[float, float]:
        """Returns the ball for delta, as far as it was computed, within the proved ends."""
        low, high = max(lower, 0.0), min(upper, 1.0)
        balls = list({**self.bounds, **self.seen}.values())
        if len(balls) == len(self.directions):
            high = min(high, max([0.0, *map(up, balls)]))
        return max([low, *map(down, balls)]), high

    def truth(self, lower: float, upper: float, above: bool | None) -> tuple[float, float]:
        """Returns the ball."""
        for i in range(len(self.directions)):
            if (i, self.given) not in self.bounds:
                self.ball(i, self.given)
        return self.known(0.0, 1.0)


def _decided(yes: bool, no: bool) -> bool | None:
    """Returns which of two statements about balls was proved; None where neither was."""
    return True if yes else False if no else None


def _all(known: Iterable[bool | None]) -> bool | None:
    """Returns whether all hold; what comes after one that does not is not asked."""
    answers = []
    for entry in known:
        if entry is False:
            return False
        answers.append(entry)
    return None if None in answers else True


def _any(known: Iterable[bool | None]) -> bool | None:
    """Returns whether any holds; what comes after it is not asked."""
    found = _all(None if entry is None else not entry for entry in known)
    return None if found is None else not found


def down(ball: arb) -> float:
    """Returns a float64 at or below all of a ball."""
    found = float(ball.lower())
    return found if arb(found) <= ball.lower() else math.nextafter(found, -math.inf)


def up(ball: arb) -> float:
    """Returns a float64 at or above all of a ball."""
    found = float(ball.upper())
    return found if arb(found) >= ball.upper() else math.nextafter(found, math.inf)
