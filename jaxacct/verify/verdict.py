"""Verdicts of the referee: delta of a composition by the best route, and the judgement of a claimed bracket.

:class:`Direction` chooses among the routes (closed forms, lists of sums, the contour integral, laws on a lattice), each
of which gives a ball that holds delta at an epsilon. :func:`epsilon` and :func:`delta` compare such balls with the two
ends of a claim. A ball on one side of an end proves or refutes; a ball that holds it decides nothing.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from flint import arb, ctx

from jaxacct.choices import Ruling, Verdict
from jaxacct.verify import border, cells, contour, statements
from jaxacct.verify.contour import Loss, TooMuch
from jaxacct.verify.statements import Unstated, composition, exact

if TYPE_CHECKING:
    from jaxacct.bounds import Bounds
    from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps

ENOUGH = 1e-14
"""Relative radius of a ball at which no further route is tried. Any value is sound."""

MOST_ATOMS = 2000
"""Largest number of sums of finite losses, for each of which a closed form is evaluated. Any value is sound."""

BITS = 192
"""Bits of precision; the routes that fail are tried once more with three times as many. Any value is sound."""


class Direction:
    """A composition's losses in one direction of the relation: delta as a function of epsilon, in balls.

    Args:
        runs: laws and how often each is run, all different.

    Attributes:
        seen: by epsilon, the balls of delta computed so far.
        bounds: likewise, balls from 0 to a Chernoff bound that was enough.
    """

    def __init__(self, runs: contour.Runs) -> None:
        # A sum of normal losses is the normal loss of the sum of mu^2, so all Gaussians become one run.
        normals = [law.normal * k for law, k in runs if law.normal is not None]
        self.runs = [(law, k) for law, k in runs if law.normal is None]
        if normals:
            self.runs.append((Loss(("normal",), normal=sum(normals, arb(0))), 1))
        self.infinite = self._infinite()
        self.supremum = sum((k * law.supremum() for law, k in self.runs), arb(0))
        # Laws with atoms alone, whose sums may be listed, and the others.
        self.finite = [run for run in self.runs if run[0].is_finite]
        self.rest = [run for run in self.runs if not run[0].is_finite]
        self.refused = "; ".join(law.gap for law, _ in self.runs if law.gap)
        self.seen: dict[float, arb] = {}
        self.bounds: dict[float, arb] = {}
        self.lines: list[tuple[float, contour.BallLine, arb, float]] = []
        self.composed: dict[int, tuple[float, cells.Composed]] = {}

    def _infinite(self) -> arb:
        """Returns the mass of infinite losses, 1 - prod (1 - m)^k."""
        some = [(law.infinite, k) for law, k in self.runs if law.infinite != 0]
        if len(some) == 1 and some[0][1] == 1:
            return some[0][0]
        if any(m == 1 for m, _ in some):
            return arb(1)
        # Where no digits are lost the product keeps simple numbers exact; tiny masses need log1p and expm1.
        if all(m > 1e-15 for m, _ in some):
            left = arb(1)
            for m, k in some:
                left *= (1 - m) ** k
            return 1 - left
        return -sum((k * (-m).log1p() for m, k in some), arb(0)).expm1() if some else arb(0)

    @property
    def bounded(self) -> bool:
        """Whether no loss is infinite and all lie below a finite supremum."""
        return self.infinite == 0 and self.supremum.is_finite()

    def delta(self, epsilon: float) -> arb:
        """Returns a ball that holds the delta at ``epsilon``.

        Where no route is short enough the ball reaches to 1, and ``refused`` says why each was given up.
        """
        if not self.runs:
            return arb(0)
        if math.isinf(epsilon) or self.infinite == 1 or self.supremum <= epsilon:
            return self.infinite
        best, refusals = None, dict[str, None]()
        for ball in self._enclosures(epsilon, refusals):
            best = ball if best is None or ball.rad() < best.rad() else best
            if best.rad() <= ENOUGH * abs(best):
                return best
        if best is None:
            self.refused = "; ".join(refusals) or "no ball is finite"
        return self.infinite.union(arb(1)) if best is None else best

    def _enclosures(self, epsilon: float, refusals: dict[str, None]) -> Iterator[arb]:
        """Yields finite balls that hold the delta at ``epsilon``, of each route in turn, then again with more bits.

        A route that fails adds its reason to ``refusals``. Too much work stays too much; failures of arithmetic may
        vanish with more bits.
        """
        routes = self._routes()
        for bits in (BITS, 3 * BITS):
            for route in list(routes):
                try:
                    with ctx.workprec(bits + sum(k for _, k in self.runs).bit_length()):
                        ball = self.infinite + route(arb(epsilon))
                except (TooMuch, ArithmeticError, OverflowError) as failure:
                    refusals[str(failure) or type(failure).__name__] = None
                    if isinstance(failure, TooMuch):
                        routes.remove(route)
                else:
                    if ball.is_finite():
                        yield ball

    def ball(self, epsilon: float) -> arb:
        """Returns the ball of :meth:`delta`, computed once at each epsilon."""
        if epsilon not in self.seen:
            self.seen[epsilon] = self.delta(epsilon)
        return self.seen[epsilon]

    def judge(self, epsilon: float, delta: float | arb, bound_first: bool) -> arb:
        """Returns a ball narrow enough to tell whether delta is above ``delta``, if that is possible.

        With ``bound_first`` a cheap bound is tried first: most often one direction is far below the other.
        """
        if bound_first and epsilon not in self.seen:
            bound = self.below(epsilon, float(delta))
            if bound is not None and bound < delta:
                self.bounds[epsilon] = bound
                return bound
        # A ball that holds ``delta`` is narrowed until it lies on one side, and replaces the one seen.
        ball = self.ball(epsilon)
        if not (ball <= delta or ball > delta):
            ball = self.seen[epsilon] = self.narrow(epsilon, ball, lambda part: bool(part <= delta or part > delta))
        return ball

    def below(self, epsilon: float, delta: float) -> arb | None:
        """Returns a ball for the delta at ``epsilon`` that is below ``delta``, by Chernoff's bound; else None.

        This costs far less than :meth:`delta`, and is enough for the direction that is far from the claim.
        """
        if not self.runs or math.isinf(epsilon) or not self.infinite < delta or self.runs[0][0].alone is not None:
            return None
        t = self._tilt(arb(epsilon))
        if not contour.log_most(self.runs, t, epsilon) < math.log(delta):
            return None
        with ctx.workprec(BITS):
            try:
                ball = self.infinite + arb(0).union(contour.chernoff(self.runs, arb(epsilon)))
            except (TooMuch, ArithmeticError, OverflowError):
                return None
        return ball if ball < delta else None

    def narrow(self, epsilon: float, ball: arb, enough: Callable[[arb], bool]) -> arb:
        """Returns a part of a ball for delta at ``epsilon``, by pairs of lattice laws ever finer until it is enough.

        The ball is returned unchanged where it is narrow already, and where no lattice is worth its time.
        """
        # A ball of that relative radius is narrower than a lattice would make it. Any value is sound.
        if not self.runs or ball.rad() <= 1e-10 * abs(ball) or len(self.runs) == sum(k for _, k in self.runs) == 1:
            return ball
        start = time.process_time()
        # Each lattice is four times as fine as the one before, and takes about five times as long. None is begun after
        # 16 seconds of processor time: whether a close claim is decided or UNDECIDED may depend on the machine's speed.
        # Both balls hold delta, so their intersection does. Any sizes and any time are sound.
        for size in (2**11, 2**13, 2**15, 2**17, 2**19):
            if enough(ball) or time.process_time() - start > 16.0:
                break
            try:
                with ctx.workprec(BITS + 32):
                    sandwich = self.infinite + self._sandwich(arb(epsilon), size)
            except (TooMuch, ArithmeticError, OverflowError, ValueError):
                continue
            if sandwich.is_finite() and sandwich.overlaps(ball):
                ball = sandwich.intersection(ball)
        return ball

    def _sandwich(self, epsilon: arb, size: int) -> arb:
        """Returns delta between the values of two lattice laws, finite losses alone.

        Laws with atoms alone are listed exactly where their sums are few; the lattice is for the rest.
        """
        finite, rest = self.finite, self.rest
        try:
            cells.list_sums(finite, self._tilt(epsilon), most=MOST_ATOMS)
        except TooMuch:
            finite, rest = [], self.runs
        return self._shift(finite if rest else [], self._place(rest or self.runs, epsilon, size).delta, epsilon)

    def _place(self, runs: contour.Runs, epsilon: arb, size: int, points: Any = None) -> cells.Composed:
        """Returns composed lattice laws that were placed for this epsilon or for one nearby."""
        # Laws stay valid at every epsilon, and nearly as narrow within one percent of their own.
        where, composed = self.composed.get(size, (math.inf, None))
        if composed is None or not abs(where - float(epsilon)) <= 1e-2 * abs(where):
            likely, beyond = statements.likely(runs, float(epsilon), cells.TAIL)
            composed = cells.Composed(likely, float(epsilon), size, points, beyond)
            self.composed[size] = float(epsilon), composed
        return composed

    def _routes(self) -> list[Callable[[arb], arb]]:
        """Returns functions from epsilon to a ball for delta, finite losses alone, the cheapest first.

        One run has a closed form; atoms alone a lattice or a list; a single law with a closed form, or two runs, are
        shifted by the sums of the atoms; all else is a contour integral.
        """
        finite, rest = self.finite, self.rest
        if len(self.runs) == 1 and self.runs[0][1] == 1:
            return [self.runs[0][0].single]
        if not rest:
            points = cells.common(self.runs)
            routes = [lambda e: cells.delta(self.runs, e, self._tilt(e))]
            return [lambda e: self._place(self.runs, e, 0, points).delta(e), *routes] if points else routes
        if len(rest) == 1 and (closed := closed_form(*rest[0])) is not None:
            return [lambda e: self._shift(finite, closed, e), self._integrate]
        # Up to three runs of a law are enough to tell whether there are two in all.
        pair = [law for law, k in rest for _ in range(min(k, 3))]
        if len(pair) == 2:
            # Each sum of the atoms takes an integral: at most 20. Any number is sound.
            both = functools.partial(statements.delta_of_two_runs, *pair)
            return [lambda e: self._shift(finite, both, e, 20), self._integrate]
        return [self._integrate]

    def _tilt(self, epsilon: arb) -> float:
        """Returns the saddle point, by floats."""
        return contour.sketched_saddle(self.runs, float(epsilon))

    def _shift(self, finite: contour.Runs, closed: Callable[[arb], arb], epsilon: arb, most: int = MOST_ATOMS) -> arb:
        """Returns the mean of closed(epsilon - s) over the sums s of the laws with atoms alone."""
        if not finite:
            return closed(epsilon)
        (entries,) = cells.list_sums(finite, self._tilt(epsilon), 5 * most, count=1)
        if len(entries) > most:
            raise TooMuch(f"more than {most} sums of finite losses")
        lost = sum((law.lost * k for law, k in finite), arb(0))
        value = sum((mass * closed(epsilon - loss) for mass, loss in entries), arb(0))
        return value + arb(0).union(lost.upper())

    def _integrate(self, epsilon: arb) -> arb:
        """Returns the contour integral, on a line placed for this epsilon or for one nearby."""
        # A line from an epsilon nearby is taken first: it costs nothing new.
        for where, line, beyond, share in self.lines:
            # A line is valid at every epsilon; the radius shows whether it is still tight at this one.
            if abs(where - float(epsilon)) <= 1e-3 * abs(where):
                ball = line.delta(epsilon) + beyond
                if ball.rad() <= share * abs(ball):
                    return ball
        # Where the transform falls slowly, each try wants less accuracy, until a line is short enough: e^-27 =
        # 2e-12 and e^-16 = 1e-7. The last try, of four times the work, is for few runs at small sampling rates, whose
        # loss is nearly an atom; only its failure is raised. Any values are sound.
        products = contour.MOST_PRODUCTS
        for wanted, most in ((contour.ACCURACY, products), (27.0, products), (16.0, products), (16.0, 4 * products)):
            try:
                runs, beyond = statements.likely(self.runs, float(epsilon), wanted)
                line = contour.line(runs, float(epsilon), wanted, most)
                break
            except TooMuch:
                if most > products:
                    raise
        beyond = arb(0).union(beyond)
        self.lines.append((float(epsilon), line, beyond, max(ENOUGH, math.exp(5 - wanted))))
        return line.delta(epsilon) + beyond


def closed_form(law: Loss, count: int) -> Callable[[arb], arb] | None:
    """Returns delta of ``count`` runs as a function of epsilon of any sign in closed form; None where there is none."""
    if count == 1:
        return law.single
    if law.laplace is not None and count <= 1000:  # a sum of count^2/2 terms; any number is sound
        return lambda epsilon: statements.delta_of_many_laplace(law.laplace, count, epsilon)
    return None


# ----------------------------------------------------------------------------------------------------
# Verdicts: the judgement of a claimed bracket.
#
# A question (:class:`_Epsilon`, :class:`_Delta`) answers whether the truth is at most, or at least, a number: True and
# False are proved, None is neither. The bracket is PROVED by two answers of True and REFUTED by one of False.
# ----------------------------------------------------------------------------------------------------


Claim: TypeAlias = "Bounds | tuple[float | None, float]"
"""A claimed bracket, or its two ends; a lower end of None is 0."""


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
        bracket: (lower, upper), or an object with these attributes, as :class:`~jaxacct.Bounds`; a lower of None is 0.
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
    lower, upper = ends_of_claim(bracket)
    return _judge(mechanism, steps, relation, lower, upper, lambda directions: _Epsilon(directions, delta), math.inf)


def delta(
    mechanism: Mechanisms,
    steps: Steps,
    epsilon: float,
    bracket: Claim,
    *,
    relation: Relation = "add_or_remove",
) -> Verdict:
    """Returns whether ``lower <= delta <= upper`` holds for the tight delta of a composition at ``epsilon``.

    Args, guarantee, errors and source are those of :func:`epsilon`, with ``epsilon``, in [0, inf], in the place of
    delta. At inf the truth is the mass of infinite losses. ``truth`` is a narrow ball wherever one was computed.

    >>> from jaxacct import Gaussian
    >>> delta(Gaussian(10.0), 100, 1.0, (0.12693673, 0.12693675)).status.value
    'PROVED'
    """
    epsilon = number(epsilon, "epsilon")
    if not epsilon >= 0:
        raise ValueError(f"epsilon = {epsilon} is not an epsilon: give a number of at least 0.")
    lower, upper = ends_of_claim(bracket)
    return _judge(mechanism, steps, relation, lower, upper, lambda directions: _Delta(directions, epsilon), 1.0)


def number(value: object, name: str) -> float:
    """Returns a number as a float64; raises TypeError or ValueError for no number, NaN, or one that is no float64."""
    fraction = exact(value, name)
    try:
        rounded = float(fraction)
    except OverflowError:
        raise ValueError(f"{name} is beyond float64: give a float.") from None
    if math.isnan(rounded):
        raise ValueError(f"{name} is nan: give a number.")
    if not isinstance(fraction, float) and Fraction(rounded) != fraction:
        raise ValueError(f"{name} = {value} is no float64, and what is near it would be judged: give one.")
    return rounded


def ends_of_claim(bracket: Claim) -> tuple[float, float]:
    """Returns the two ends of a claim."""
    if isinstance(bracket, (tuple, list)) and len(bracket) != 2:
        raise TypeError(f"bracket = {repr(bracket)[:80]}: give (lower, upper), or an object with these attributes.")
    ends = hasattr(bracket, "lower") and hasattr(bracket, "upper") and not isinstance(bracket, (str, bytes))
    if not isinstance(bracket, (tuple, list)) and not ends:
        raise TypeError(f"bracket = {repr(bracket)[:80]}: give (lower, upper), or an object with these attributes.")
    lower, upper = bracket if isinstance(bracket, (tuple, list)) else (bracket.lower, bracket.upper)
    return number(0.0 if lower is None else lower, "bracket: lower"), number(upper, "bracket: upper")


def _judge(
    mechanism: Mechanisms,
    steps: Steps,
    relation: Relation,
    lower: float,
    upper: float,
    ask: Callable[[list[Direction]], _Epsilon | _Delta],
    most: float,
) -> Verdict:
    """Returns the verdict on a bracket; ``ask`` makes the question, and ``most`` is its largest possible truth."""
    with ctx.workprec(BITS + 64):
        try:
            runs = border.runs_of(mechanism, steps, relation)
            question = ask([Direction(laws) for laws in composition(runs, relation)])
        except Unstated as missing:
            trivial = lower <= 0 and upper >= most
            status = Ruling.PROVED if trivial else Ruling.UNDECIDED
            return Verdict(status, (0.0, most), "the bracket says nothing" if trivial else f"{missing}.")
        # Each is True or False where that was proved. One False end refutes the bracket, whatever the other is.
        above, below = question.at_most(upper), question.at_least(lower)
        if above is False or below is False:
            wrong = f"upper = {upper} is below the truth" if above is False else f"lower = {lower} is above the truth"
            return Verdict(Ruling.REFUTED, question.truth(lower, upper, above), f"{wrong}.")
        if above and below:
            return Verdict(Ruling.PROVED, question.bracket_of(lower, upper), "both ends, in ball arithmetic.")
        return _leave_open(question, {"lower": lower if below else None, "upper": upper if above else None}, most)


def _leave_open(question: _Epsilon | _Delta, proved: dict[str, float | None], most: float) -> Verdict:
    """Returns the verdict where an end is not proved: its reason is that of the routes, or a ball that is too wide."""
    open_ends = " and ".join(name for name, end in proved.items() if end is None)
    lower, upper = (default if end is None else end for end, default in zip(proved.values(), (0.0, most), strict=True))
    refused = dict.fromkeys(direction.refused for direction in question.directions if direction.refused)
    why = "; ".join(refused) or "the ball for delta holds the value claimed"
    return Verdict(Ruling.UNDECIDED, question.bracket_of(lower, upper), f"{open_ends}: {why}.")


class _Epsilon:
    """The least epsilon at which delta, of every direction, is at most a given one.

    Attributes:
        narrows: whether cheap bounds are tried first and undecided balls are narrowed.
    """

    def __init__(self, directions: list[Direction], delta: float) -> None:
        self.directions, self.delta, self.narrows = directions, arb(delta), True

    def _ball(self, direction: Direction, epsilon: float) -> arb:
        """Returns a ball for delta of a direction."""
        if self.narrows:
            return direction.judge(epsilon, self.delta, bound_first=len(self.directions) > 1)
        return direction.ball(epsilon)

    def at_most(self, epsilon: float) -> bool | None:
        """Returns whether the truth is at most ``epsilon``; None where that is not known."""
        if epsilon == math.inf or epsilon < 0:
            return epsilon > 0
        return _all(self._reaches(direction, epsilon) for direction in self.directions)

    def _reaches(self, direction: Direction, epsilon: float) -> bool | None:
        """Returns whether delta of a direction at ``epsilon`` is at most the given one."""
        if self.delta == 0 and direction.runs:
            # delta is 0 from the essential supremum on, and nowhere before.
            if not direction.bounded:
                # A ball that overflowed decides nothing; one certainly beyond all finite float64 does.
                return False if direction.infinite > 0 or direction.supremum > arb(2) ** 1024 else None
            return _decide(direction.supremum <= epsilon, direction.supremum > epsilon)
        ball = self._ball(direction, epsilon)
        return _decide(ball <= self.delta, ball > self.delta)

    def at_least(self, epsilon: float) -> bool | None:
        """Returns whether the truth is at least ``epsilon``; None where that is not known."""
        return True if epsilon <= 0 else _any(self._before(direction, epsilon) for direction in self.directions)

    def _before(self, direction: Direction, epsilon: float) -> bool | None:
        """Returns whether delta of a direction exceeds the given one everywhere below ``epsilon``."""
        if not direction.runs:
            return False
        # delta falls to the mass of infinite losses and is equal to it from the supremum of the finite ones on.
        if direction.infinite > self.delta:
            return True
        if self.delta == 0 or (direction.infinite >= self.delta and direction.infinite <= self.delta):
            return _decide(direction.supremum >= epsilon, direction.supremum < epsilon)
        if math.isinf(epsilon):
            return _decide(False, direction.infinite < self.delta)
        ball = self._ball(direction, epsilon)
        return _decide(ball > self.delta, ball < self.delta)

    def bracket_of(self, lower: float, upper: float) -> tuple[float, float]:
        """Returns the bracket that the proved ends give."""
        return max(lower, 0.0), upper

    def truth(self, lower: float, upper: float, above: bool | None) -> tuple[float, float]:
        """Returns a narrow bracket of the truth, which lies above ``upper`` or below ``lower``."""
        wrong = upper if above is False else lower
        low, high = (max(upper, 0.0), math.inf) if above is False else (0.0, lower)
        some = [direction for direction in self.directions if direction.runs]
        if any(direction.infinite > self.delta for direction in some):
            return math.inf, math.inf
        # At delta = 0 the truth is the largest supremum: at least each ball's low end, at most the largest high end.
        if self.delta == 0 and some:
            lows, highs = ([end(direction.supremum) for direction in some] for end in (float_below, float_above))
            return max(low, *lows), min(high, max(highs))
        self.narrows = False  # a narrow bracket asks for narrow balls
        guess = self._secant(max(wrong, 0.0))
        if guess is None:
            return low, high
        # The guess is unproved. Brackets around it widen until both ends are proved.
        for margin in (1e-13, 1e-12, 1e-11, 1e-10, 1e-9):
            left, right = guess * (1 - margin), guess * (1 + margin) + 5e-324
            if self.at_most(right) and self.at_least(left):
                return max(low, left), min(high, right)
        return low, high

    def _secant(self, start: float) -> float | None:
        """Returns an estimate of the epsilon at which the largest delta is the given one; None where none was found."""

        def above(x: float) -> float:
            """Returns the log of the largest delta over the given one; NaN where a ball is wide."""
            balls = [direction.ball(x) for direction in self.directions]
            if any(ball.rad() > 1e-6 * abs(ball) for ball in balls):
                return math.nan
            largest = max((ball.mid() for ball in balls), key=float)
            return float((largest / self.delta).log()) if largest > 0 else -math.inf

        x, y = start, max(start * 1.0001, 1e-9)
        f, g = above(x), above(y)
        # The secant method on log delta, with steps kept between a quarter and four times the point.
        for _ in range(60):
            if math.isnan(f) or math.isnan(g):
                return None
            if abs(y - x) <= 1e-15 * abs(y) or g == 0 or f == g:
                return y if abs(g) < 1e-6 else None
            step = -g * (y - x) / (g - f) if math.isfinite(f) and math.isfinite(g) else -y / 2
            x, f, y = y, g, max(y / 4, min(y + step, 4 * y + 1))
            g = above(y)
        return None


class _Delta:
    """The largest delta of the directions at a given epsilon."""

    def __init__(self, directions: list[Direction], epsilon: float) -> None:
        self.directions, self.epsilon = directions, epsilon

    def _balls(self, delta: float) -> Iterator[arb]:
        """Yields a ball for each direction, and computes it only then."""
        several = len(self.directions) > 1
        return (direction.judge(self.epsilon, delta, bound_first=several) for direction in self.directions)

    def at_most(self, delta: float) -> bool | None:
        """Returns whether the truth is at most ``delta``; None where that is not known."""
        return True if delta >= 1 else _all(_decide(b <= delta, b > delta) for b in self._balls(delta))

    def at_least(self, delta: float) -> bool | None:
        """Returns whether the truth is at least ``delta``; None where that is not known."""
        return True if delta <= 0 else _any(_decide(b >= delta, b < delta) for b in self._balls(delta))

    def bracket_of(self, lower: float, upper: float) -> tuple[float, float]:
        """Returns the ball for delta, as far as it was computed, within the proved ends."""
        low, high = max(lower, 0.0), min(upper, 1.0)
        known = [{**direction.bounds, **direction.seen} for direction in self.directions]
        balls = [each[self.epsilon] for each in known if self.epsilon in each]
        if len(balls) == len(self.directions):
            high = min(high, max([0.0, *map(float_above, balls)]))
        return max([low, *map(float_below, balls)]), high

    def truth(self, lower: float, upper: float, above: bool | None) -> tuple[float, float]:
        """Returns the ball."""
        for direction in self.directions:
            if self.epsilon not in direction.bounds:
                direction.ball(self.epsilon)
        return self.bracket_of(0.0, 1.0)


def _decide(yes: bool, no: bool) -> bool | None:
    """Returns which of two statements about balls was proved; None where neither was."""
    return True if yes else False if no else None


def _all(known: Iterable[bool | None]) -> bool | None:
    """Returns whether all hold; entries after a False one are not evaluated."""
    answers = []
    for entry in known:
        if entry is False:
            return False
        answers.append(entry)
    return None if None in answers else True


def _any(known: Iterable[bool | None]) -> bool | None:
    """Returns whether any holds; entries after a True one are not evaluated."""
    none_holds = _all(None if entry is None else not entry for entry in known)
    return None if none_holds is None else not none_holds


def float_below(ball: arb) -> float:
    """Returns a float64 at or below all of a ball."""
    rounded = float(ball.lower())
    return rounded if arb(rounded) <= ball.lower() else math.nextafter(rounded, -math.inf)


def float_above(ball: arb) -> float:
    """Returns a float64 at or above all of a ball."""
    rounded = float(ball.upper())
    return rounded if arb(rounded) >= ball.upper() else math.nextafter(rounded, math.inf)
