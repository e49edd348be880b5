"""The contour composer: brackets of delta and epsilon of any number of runs, from laws that are arrays.

One program serves every mechanism, for its input is the law of one run's privacy loss as atoms
(:class:`~jaxacct.mechanisms.atoms.Atoms`), one row for each mechanism of a sequence, and the numbers of runs. Its size
and time do not depend on these. Let S be the sum of the losses of all runs under P, K(z) = sum of k log E[e^(z Y)] over
the rows its cumulant function, and f(v) = (1 - e^-v)+. Then delta(eps) is the mass of infinite losses and

    E f(S - eps) = (1/2 pi) integral of e^(K(z) - z eps) / (z (z + 1)) dw,    z = t + iw, for any t > 0.

*Smoothing.* The transform of atoms does not fall with w, so the kernel has to. Let G be normal with variance mu^2, and
F(v) = E f(v + G). Above, G's mean is mu^2/2, as that of the loss of a Gaussian mechanism: then E e^-G = 1 and F >= f by
Jensen's inequality for s -> (1 - e^-v s)+. The kernel is times e^(z^2 mu^2/2), and eps is less by mu^2/2. Below, G's
mean is 0, and F exceeds f by no more than a *bump*, mu^2 or less times the normal density of variance mu^2, which is
subtracted (:func:`smoothing_of`): the kernel is e^(z^2 mu^2/2) (1/(z (z + 1)) - mu^2). Both cost about mu^2 of delta's
second derivative, and end the line in closed form.

*Aliases.* The rule with spacing dw sums to the quantity at eps and, for every j but 0, the quantity at eps + j L times
e^(t j L), L = 2 pi/dw. All these are positive above, where nothing need be subtracted. Below they are bounded by
Chernoff's bounds at orders on either side of t, and by delta <= 1.

*The line.* Any t > 0 will do. Of the orders that the search has looked at that one is taken whose bracket will be the
narrowest: the shorter L may be, the less smoothing there is; the higher the integrand, the more rounding.

*Frequencies by powers.* The transform at side^2 frequencies is made of two tables of powers and one product of
matrices. It is summed as e^(iwX) - 1, X the distance from the tilted mean, which is small where w is, and so keeps its
digits when it is raised to the power of the runs.

*Events.* Whatever the runs, delta(eps) is at least P(A) - e^eps Q(A) for any event A, and that difference itself where
S >= eps on A alone. Events that any run's loss is above a threshold, and that all are the largest, need no line: the
former are all of delta of a single run, and a bound from below where losses are rare.

Functions are taken to err by eight units of roundoff of themselves (:attr:`.Arithmetic.function`), the argument of a
complex number too.

The two bounds have a line each: the laws' distance may be more than a circle's length. All but the questions is a
program for one side, which is mapped over both.

In reading order: :class:`Runs` (one side of a composition); :class:`Events`; :func:`search` (orders and cumulants);
:func:`split` (rare losses); :func:`lay_line` (a line, and the spectrum on it); :func:`read` (a bound on delta at any
eps from a line); :func:`epsilon`, :func:`delta` and :func:`curve`, which ask these.

Everything is a bracket with rounding included. Constants of rounding are in units of roundoff u and derived where they
stand; "may not be lowered" says that a bound rests on a number, all others cost width or time alone. Products of errors
of two roundings are covered by ``SLACK``. NaN anywhere is an infinite epsilon, a delta of 1, or 0 from below.

Sources: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function", for the
inversion; Trefethen and Weideman (2014), "The exponentially convergent trapezoidal rule", for the rule.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.mechanisms.atoms import Atoms
from jaxacct.mechanisms.normal import cosm1_and_sin
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import log_complement

SLACK = 1.01
"""Factor of every bound on rounding, over errors of the bound's own rounding and products of errors. May not be
lowered."""

SIDE = 32
"""Number of powers in each of the two tables; there are its square of frequencies. A power of two."""

LADDER = np.array([0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 1.9, 2.5, 3.5])
"""Orders of the last look, over the one of least height: lines to choose from, and Chernoff bounds. Tightness only."""

AT = int(np.argmin(np.abs(LADDER - 1)))
"""The place of 1 among these, which has 0.8 two places before it and 1.2 after it."""

LOOKS = np.stack(
    [2.0 ** np.linspace(-24, 36, 16), 2.0 ** np.linspace(-4, 4, 16), 2.0 ** np.linspace(-0.6, 0.6, 16), LADDER]
)
"""Orders of each look, over the best of the look before. Tightness only."""


def cut(side: int) -> float:
    """Returns the nats below delta at which aliases, and the smoothed integrand's end, lie. Tightness only.

    Smoothing costs about 1/side^4 of delta, so nothing is gained by going further than that.
    """
    return 4 * math.log(side) - 2


class Named:
    """The rows of an array, by the names of a class's fields.

    A loop so holds one array in place of many numbers, each of which would be a part of its program.
    """

    def __init__(self, kind: Any, packed: Array) -> None:
        self._names, self._packed = kind._fields, packed

    def __getattr__(self, name: str) -> Array:
        row: Array = self._packed[self._names.index(name)]
        return row


class Sums(NamedTuple):
    """Sums over all runs.

    Attributes:
        none, log_whole: logs of which :attr:`Runs.infinite` is made.
        log_p, log_q: logs of P's and Q's mass of a finite sum.
        top: log of P's mass of all losses being the largest; above of all masses, or 1.
        lowest, most: the sums of the lowest losses, and of the largest.
        number: number of runs; of those whose mass is far from 1 in ``far``.
        shift: bound on the error of the sum that those of the losses make.
    """

    none: Array
    log_whole: Array
    log_p: Array
    log_q: Array
    top: Array
    lowest: Array
    most: Array
    number: Array
    far: Array
    shift: Array


class Runs(NamedTuple):
    """One side of a composition: rows of laws with their numbers of runs, and what follows of them at once.

    Attributes:
        sign (): 1 for the laws above, -1 for those below.
        losses, log_masses (m, n): atoms of the rows.
        both (m, 2, n): P's masses, and Q's.
        excess, excess_error (m,): sum of P's masses less 1, without cancellation, and a bound on its error.
        counts (m,): numbers of runs.
        wholes (m, 2): P's and Q's masses of finite losses.
        packed (2, 10): the sums over all runs, :class:`Sums`, and those of their sizes.
    """

    sign: Array
    losses: Array
    log_masses: Array
    both: Array
    excess: Array
    excess_error: Array
    counts: Array
    wholes: Array
    packed: Array

    @property
    def sums(self) -> Named:
        """Sums over all runs."""
        return Named(Sums, self.packed[0])

    @property
    def sizes(self) -> Named:
        """Sums over all runs of the sizes of what :attr:`sums` has."""
        return Named(Sums, self.packed[1])

    @property
    def flushed(self) -> Array:
        """Bounds (2,) on what sums of P's and Q's masses lose where terms are flushed to 0.

        It counts for P's above, and for Q's below.
        """
        lost = self.losses.shape[1] * jnp.finfo(self.losses.dtype).tiny
        return jnp.where(jnp.asarray([1.0, -1.0], self.losses.dtype) * self.sign > 0, lost, 0.0)

    @property
    def largest(self) -> Array:
        """Bound on the sum of all |losses|."""
        return self.sizes.lowest + self.sizes.most

    def total(self, values: Array) -> Array:
        """Returns the sum over all runs of a quantity of each row, the first axis. Rows without runs do not count."""
        return _total(self.counts, values)

    @property
    def infinite(self) -> Array:
        """P's mass of an infinite sum, at most or at least."""
        u, (rows, n) = roundoff(), self.losses.shape
        sums, sizes = self.sums, self.sizes
        scale = sums.log_whole + self.sign * u * (8 * sizes.log_whole + 4 * sums.number + n * sums.far)
        return jnp.clip(-jnp.expm1(sums.none) * jnp.exp(scale) * (1 + self.sign * (40 + 2 * rows) * u), 0.0, 1.0)

    @property
    def most(self) -> Array:
        """The supremum of the sum, rounded to its side."""
        return self.sums.most + self.sign * (4 + self.counts.size) * roundoff() * self.sizes.most


def _total(counts: Array, values: Array) -> Array:
    counts = jnp.reshape(counts, (-1,) + (1,) * (values.ndim - 1))
    return jnp.sum(jnp.where(counts > 0, counts * values, 0.0), axis=0)


def compose(sign: Array, laws: Atoms, counts: Array) -> Runs:
    """Returns one side of the composition of rows of laws, each leaf without the axis of sides, run so many times each.

    Losses do not fall within a row: so the first and the last bound all others.

    *Excess.* A mass is split into a multiple of 4u and a rest of at most 2u. Sums of the first are exact while they are
    below 2, in any order, and so is the difference from 1; the rests add up to 2nu, and err by n u of that: 2 (nu)^2,
    and the last sum by u of itself. A mass that is far from 1 is the sum of both, right to n units of itself, for no
    rest is larger than its mass.

    *Infinite sums.* Let M_i be the mass of row i with infinite losses, and c_i that of infinite losses. The product of
    M_i^k less that of (M_i - c_i)^k is the product of M_i^k times 1 - prod (1 - c_i/M_i)^k. Above, M_i is replaced by
    the larger of it and 1, as x^k - (x - c)^k rises with x, and c_i/M_i by c_i. Each of three functions errs by 8u, and
    a sum over m rows by m u: 40 + 2 m units in all, besides those of M, which are 2 of 1 and of the excess, and 8 of
    log M.

    *Q's masses* are exponentials of log p - y, whose parts are at most 709 and |y|: they err by 8 * 709 + 709 + 2 |y| +
    8 units. Above less will do, and none is above 1. Below those that are flushed to 0 count (:attr:`Runs.flushed`).
    """
    u, tiny = roundoff(), jnp.finfo(laws.masses.dtype).tiny
    losses, masses, infinite = laws.losses, laws.masses, laws.infinite
    there = masses > 0
    log_masses = jnp.where(there, jnp.log(jnp.maximum(masses, tiny)), -jnp.inf)
    q = jnp.minimum(jnp.exp(log_masses - losses), jnp.where(sign > 0, 1.0, jnp.inf))
    coarse, top = jnp.round(masses * (0.25 / u)) * (4 * u), jnp.where(losses == losses[:, -1:], masses, 0.0)
    coarse, rest, of_q, top = jnp.stack([coarse, masses - coarse, q, top]).sum(-1)
    of_q = of_q + jnp.where(sign > 0, 0.0, masses.shape[1] * tiny)
    excess = (coarse - 1) + rest
    far = excess < -0.5
    mass = jnp.where(far, coarse + rest, 1 + excess)
    total = jnp.maximum(mass + infinite, jnp.where(sign > 0, 1.0, tiny))
    share = jnp.minimum(infinite / jnp.where(sign > 0, 1.0, total), 1.0)
    log_mass, log_whole, log_q, log_top = jnp.log(jnp.maximum(jnp.stack([mass, total, of_q, top]), tiny))
    none, log_p = log_complement(jnp.stack([share, -excess]))
    log_p = jnp.where(far, log_mass, log_p)
    log_top = jnp.where(sign > 0, jnp.maximum(log_p, 0.0), jnp.where(top > 0, log_top, -jnp.inf))
    number = jnp.ones_like(mass)
    each = Sums(none, log_whole, log_p, log_q, log_top, losses[:, 0], losses[:, -1], number, far * number, laws.shift)
    parts = jnp.stack(each, 1)
    n = masses.shape[1]
    return Runs(
        sign=sign,
        losses=losses,
        log_masses=log_masses,
        both=jnp.stack([masses, q], 1),
        excess=excess,
        excess_error=2 * u * jnp.abs(excess) + 2 * (n * u) ** 2,
        counts=counts,
        wholes=jnp.stack([mass, of_q], 1),
        packed=_total(counts, jnp.stack([parts, jnp.abs(parts)], 1)),
    )


# ----------------------------------------------------------------------------------------------------
# Events
# ----------------------------------------------------------------------------------------------------


class Events(NamedTuple):
    """Events, with bounds on the logs of their masses of finite sums.

    Above, P's are at most these and Q's at least; below, P's at least and Q's at most.
    """

    log_p: Array
    log_q: Array

    def delta(self, at: Array, sign: Array, unit: Array | float = 0.0) -> tuple[Array, Array]:
        """Returns a bound on (P - e^at Q)+, and its slope in ``at``, both over e^unit.

        Exponents err by a unit of each part for each sum, exponentials by eight, the difference by one of itself.
        """
        u = roundoff()
        size_p, size_q = (jnp.where(log > -jnp.inf, jnp.abs(log), 0.0) for log in self)
        of_p = jnp.exp(self.log_p - unit + sign * u * (10 + 2 * (size_p + jnp.abs(unit))))
        of_q = jnp.exp(at + self.log_q - unit - sign * u * (10 + 3 * (size_q + jnp.abs(at) + jnp.abs(unit))))
        return jnp.maximum(of_p - of_q, 0.0) * (1 + sign * 4 * u), jnp.where(of_p > of_q, -of_q, 0.0)

    def epsilon(self, room: Array, sign: Array) -> Array:
        """Returns a bound on the eps at which P - e^eps Q is a delta, -inf where it is below that at any.

        P errs by eight units, its difference by two of 1 and itself, its log by eight of itself, and the last
        difference by one of both.
        """
        u = roundoff()
        left = jnp.exp(self.log_p) * (1 + sign * 10 * u) - room * (1 - sign * 2 * u)
        log_left = jnp.log(jnp.maximum(left * (1 + sign * 2 * u), 0.0))
        bound = log_left - self.log_q + sign * 10 * u * (jnp.abs(log_left) + jnp.abs(self.log_q))
        return jnp.where(left > 0, bound, jnp.where(jnp.isnan(left), jnp.nan, -jnp.inf))


def events_of(runs: Runs, none: Array) -> Events:
    """Returns events, given the logs of P's and Q's probability that one does not happen, of all finite sums (2, ...).

    With M P's mass of a row and r that of the atoms of an event, in row after row, its mass is the product of M^k times
    1 - prod (1 - r/M)^k. The latter errs by 2 n + 40 + 2 m units of itself, for it moves by no more than r/M does,
    relative to itself; the former by those of log M times k, which are 10 of 1 + |log M|. Likewise for Q, whose M and r
    err by n units and as its masses do. The logs err by eight units of themselves and one of each part. May not be
    lowered.
    """
    u, (rows, n) = roundoff(), runs.losses.shape
    sums, sizes, shape = runs.sums, runs.sizes, (2,) + (1,) * (none.ndim - 1)
    p_error = (2 * n + 40 + 2 * rows) + 10 * (sums.number + sizes.log_p) + n * sums.far
    q_error = p_error + 10 * (sums.number + sizes.log_q) + (7000 + n) * (1 + sums.number) + 4 * runs.largest
    error, log_totals = u * jnp.stack([p_error, q_error]), jnp.stack([sums.log_p, sums.log_q])
    bent = runs.sign * SLACK * np.array([1.0, -1.0])
    logs = jnp.log(-jnp.expm1(none))
    size = jnp.where(logs > -jnp.inf, jnp.abs(logs), 0.0)
    base = jnp.reshape(log_totals + bent * (error + 12 * u * jnp.abs(log_totals)), shape)
    return Events(*(logs + base + jnp.reshape(bent, shape) * (12 * u) * size))


def sure_events(runs: Runs) -> tuple[Events, Events]:
    """Returns events that need no line: that a run of one row has one of the i last atoms, (m, n); and all the largest.

    *Above* the first are all of delta where there is one run: for one run D(eps) is the sum of (p - e^eps q)+ over its
    atoms, those of losses above eps, and so the largest P - e^eps Q of all thresholds. Else they are not bounds above.

    All losses together are at most s, so E f(S - eps) <= f(s - eps) times the mass, and it is P - e^eps Q of the event
    of mass 1 at s. *Below*, let p be the probability of all losses being the largest: then it is that of their event.

    *Rounding* of log p: k times 8 units of a log mass, n of the mass, its product and sum m + 2.
    """
    u, sign = roundoff(), runs.sign
    tails = jax.lax.cumsum(runs.both, 2, reverse=True) + runs.flushed[None, :, None]
    tiny = jnp.finfo(tails.dtype).tiny
    shares = jnp.moveaxis(tails / jnp.maximum(tails[..., :1], tiny), 1, 0)
    counts = runs.counts[None, :, None]
    each = events_of(runs, jnp.where(counts > 0, counts * log_complement(jnp.clip(shares, 0.0, 1.0)), 0.0))
    sums, most, (rows, n) = runs.sums, runs.most, runs.losses.shape
    # Nothing is added to the size of -inf.
    size = jnp.where(sums.top > -jnp.inf, runs.sizes.top, 0.0)
    off = sign * u * ((n + 16 + rows) * sums.number + (16 + rows) * size)
    log_q = sums.top - most - off - sign * 2 * u * (size + jnp.abs(most))
    return each, Events(sums.top + off, jnp.where(sums.top > -jnp.inf, log_q, -jnp.inf))


# ----------------------------------------------------------------------------------------------------
# Orders: the search, and Chernoff's bounds
# ----------------------------------------------------------------------------------------------------


class Orders(NamedTuple):
    """The orders of the last look, with what is known there.

    Attributes:
        orders (j,): orders t > 0.
        rows (j, m): cumulants of one run of each row.
        means (j, m): about the tilted means of these, by differences.
        cumulants (j,): K of the sum.
        log_chernoff (j,): upper bounds on log of sup E f(S - eps) e^(t eps).
        guess (): the eps that Laplace's method finds, where none was given.
    """

    orders: Array
    rows: Array
    means: Array
    cumulants: Array
    log_chernoff: Array
    guess: Array


def search(runs: Runs, start: Array, log_target: Array, is_given: Array | bool) -> Orders:
    """Returns orders about the one of least height at an eps that is given, or of least eps for a delta that is.

    A height is that of Laplace's method, K(t) - t eps - log t (1 + t). Chernoff's bound is e^(K(t) - t eps) times the
    peak of e^(-tv) f(v), whose log is -t log(1 + 1/t) - log(1 + t), and log(1 + x) >= 2x/(2 + x).

    *Rounding* of a cumulant: a logarithm of a mass, at most 709 in size, errs by 8u of itself, the product of t and a
    loss by u, their sum, and its distance from the largest (at most 745 where it counts) by u; the sum of n
    exponentials by 8 + n, its logarithm by 8u of at most log n < 20, the last sum by u of itself. With x = t |loss|
    these are 9 * 709 + 745 + 2 x + 8 + n + 160 + (x + 709) < 9,000 + n + 3 x units; the sum over m rows adds m + 2 of
    709 + x. Peaks err by 30 units of their two parts. May not be lowered.

    *Steepest.* Orders whose exponents t |loss| round by more than 2^-24 are not chosen: there losses that differ by
    units of roundoff alone would be told apart, next to the supremum.
    """
    u = roundoff()
    rows, size = runs.losses.shape
    largest = jnp.max(jnp.where((runs.counts > 0)[:, None] & (runs.log_masses > -jnp.inf), jnp.abs(runs.losses), 0.0))
    steepest = 2.0**-24 / u / largest

    def look(i: Any, state: Any) -> Any:
        orders = jnp.asarray(LOOKS, start.dtype)[i] * state[0]
        terms = runs.log_masses[:, None] + orders[None, :, None] * runs.losses[:, None]
        top = jnp.max(terms, -1)
        top = jnp.where(top > -jnp.inf, top, 0.0)
        each = top + jnp.log(jnp.sum(jnp.exp(terms - top[..., None]), -1))
        fall = jnp.log1p(orders)
        heights = runs.total(each) - jnp.log(orders) - fall
        cost = jnp.where(is_given, heights - orders * start, (heights - log_target) / orders)
        cost = jnp.where((cost < jnp.inf) & (orders <= steepest), cost, jnp.inf)
        best = jnp.min(cost)
        return jnp.max(jnp.where(cost == best, orders, 0.0)), best, orders, fall, each

    none = jnp.zeros((LADDER.size,), start.dtype)
    nothing = none, none, jnp.zeros((rows, LADDER.size), start.dtype)
    # Each look narrows the ladder about the best order of the one before; the last is LADDER.
    *_, orders, fall, each = jax.lax.fori_loop(0, len(LOOKS), look, (jnp.ones_like(start), start, *nothing))
    doubt = (9000 + size + 709 * (rows + 2)) * runs.sums.number + (rows + 5) * (orders * runs.largest)
    cumulants = runs.total(each)
    chernoff = cumulants - fall - 2 * orders / (2 * orders + 1)
    chernoff = chernoff + SLACK * u * (doubt + 30 * (1 + fall) + jnp.abs(cumulants))
    # Means between neighbours are those at an order between.
    means = (each[:, 1:] - each[:, :-1]) / (orders[1:] - orders[:-1])[None]
    means = jnp.concatenate([means[:, :1], (means[:, 1:] + means[:, :-1]) / 2, means[:, -1:]], 1)
    # Laplace's method at the best order: t^2 K''(t) by differences, and the normal tail about as 1/(2 + sqrt(2 pi) x).
    below, here, above = AT - 2, AT, AT + 1
    curvature = jnp.maximum(cumulants[below] + cumulants[above] - 2 * cumulants[here], 0.0) / 0.2**2
    height = cumulants[here] - fall[here] - jnp.log(2 + jnp.sqrt(2 * math.pi * curvature))
    guess = jnp.maximum((height - log_target) / orders[here], 0.0)
    return Orders(orders, each.T, means.T, cumulants, chernoff, guess)


def chernoff_delta(chernoff: Orders, at: Array) -> Array:
    """Returns Chernoff's upper bound on log E f(S - eps)."""
    logs, size = chernoff.log_chernoff, chernoff.orders * jnp.abs(at)
    return jnp.min(logs - chernoff.orders * at + 4 * roundoff() * (jnp.abs(logs) + size))


def chernoff_epsilon(chernoff: Orders, log_target: Array) -> Array:
    """Returns the eps from which on Chernoff's bound is below a delta."""
    logs, u = chernoff.log_chernoff, roundoff()
    room = logs - log_target + 4 * u * (jnp.abs(logs) + jnp.abs(log_target))
    return jnp.min(jnp.where(room < jnp.inf, room * (1 + 4 * u * jnp.sign(room)) / chernoff.orders, jnp.inf))


# ----------------------------------------------------------------------------------------------------
# Rare losses
#
# Where few runs have losses that are rare and far above all others, no line resolves both: its circle has to hold the
# rare ones, and its smoothing to be small beside the others. So an atom above a threshold is taken out. With A the
# event that any run has one,
#
#     E f(S - eps) = E[f(S - eps); no A] + E[f(S - eps); A],
#
# and as f(v) = 1 - e^-v for v >= 0 and is above that below, and at most 1, the second term is between P(A) - e^eps Q(A)
# and P(A). It is the former if S >= eps on A, which holds up to the threshold and the infimum of all other losses.
# ----------------------------------------------------------------------------------------------------


class RareEvent(NamedTuple):
    """The event that any run has a loss above a threshold.

    Attributes:
        packed (3,): the logs of its masses, as :class:`Events` has them, and the largest eps that the sum is not below
            on it.
    """

    packed: Array

    def bound(self, at: Array, sign: Array, unit: Array | float = 0.0) -> tuple[Array, Array]:
        """Returns a bound on E[f(S - eps); A], and its slope, over e^unit."""
        log_p, log_q, reach = self.packed
        return Events(log_p, jnp.where((sign > 0) & (at > reach), -jnp.inf, log_q)).delta(at, sign, unit)


def split(runs: Runs, threshold: Array) -> tuple[Runs, RareEvent]:
    """Returns the runs without losses above a threshold, and the event that any run has one.

    What is left has an excess less by the sum of what is not: that errs by n units of itself, and the difference by
    one.
    """
    u = roundoff()
    rows, n = runs.losses.shape
    is_rare = runs.losses > threshold
    taken = jnp.sum(jnp.where(is_rare[:, None], runs.both, 0.0), -1)
    none = runs.total(log_complement(jnp.clip((taken + runs.flushed[None]) / runs.wholes, 0.0, 1.0)))
    excess = runs.excess - taken[:, 0]
    rest = runs._replace(
        log_masses=jnp.where(is_rare, -jnp.inf, runs.log_masses),
        excess=excess,
        excess_error=runs.excess_error + n * u * taken[:, 0] + u * jnp.abs(excess),
    )
    reach = threshold - runs.sizes.lowest - (4 + rows) * u * (jnp.abs(threshold) + runs.largest)
    return rest, RareEvent(jnp.stack([*events_of(runs, none), jnp.where(threshold < jnp.inf, reach, jnp.inf)]))


# ----------------------------------------------------------------------------------------------------
# A line, and the spectrum on it
# ----------------------------------------------------------------------------------------------------


class LineNumbers(NamedTuple):
    """Numbers of a line.

    Attributes:
        order, start: t, and the eps about which the line is made.
        spacing: the distance of frequencies, which has so few digits that its multiples are exact.
        unit, unit_error: log of the common factor, but for -t eps, and a bound on its error.
        allowance: bound on what the sum may be off by, rounding of :func:`read` aside.
        size: bound on the sum of the moduli.
        drift: bound on the error of eps that rounding of the means makes.
        smoothing: about the share of delta that the smoothing costs.
    """

    order: Array
    start: Array
    spacing: Array
    unit: Array
    unit_error: Array
    allowance: Array
    size: Array
    drift: Array
    smoothing: Array


class AtomsLine(NamedTuple):
    """The integrand on a line of order t at frequencies w, but for the factor e^(-i w (eps - start)), and error bounds.

    Attributes:
        sign (): 1 where it bounds delta from above, -1 from below.
        spectrum (2, side, side): real and imaginary parts at w = spacing (side a + b).
        aliases (2, j): orders beside t, and logs of bounds on aliases on the order's side of eps, without the factor
            e^(-order eps).
        packed (9,): :class:`LineNumbers`.
    """

    sign: Array
    spectrum: Array
    aliases: Array
    packed: Array

    @property
    def numbers(self) -> Named:
        """Numbers of the line."""
        return Named(LineNumbers, self.packed)


def smoothing_of(half: Array, sign: Array) -> tuple[Array, Array]:
    """Returns the mean of what is added, a normal number of variance mu^2 = 2 half, and the bump's integral.

    *Below,* with x = |v|/mu, phi the normal density and R Mills' ratio (1 - Phi)/phi, F - f <= mu phi(x). For
    v < 0, F(v) <= E (v + G)+ = mu phi(x) (1 - x R(x)). For v > 0 let y = x - mu. Then

        F(v) - f(v) = e^-v - e^(mu^2/2 - v) Phi(y) - (1 - Phi(x))
                    = phi(x) (R(y) - R(y + mu) - sqrt(2 pi) e^(y^2/2) (1 - e^(-mu^2/2))),

    as e^(-v) is phi(x) sqrt(2 pi) e^(y^2/2) e^(-mu^2/2), and Phi(y)/phi(y) is sqrt(2 pi) e^(y^2/2) - R(y). As -R'(s) =
    1 - s R(s), R(y) - R(y + mu) is at most mu and, where y < 0, the integral of |s| R(s) from y to 0, which is at most
    sqrt(2 pi) (e^(y^2/2) - 1), for R(s) <= sqrt(2 pi) e^(s^2/2). As |y| < mu there, e^(y^2/2) - 1 is no more than
    e^(y^2/2) (1 - e^(-mu^2/2)). The integral over v of mu phi(x) is mu^2.

    Where mu is large that is more than is needed. For v < 0, F(v) <= P(G > -v) <= e^(-x^2/2)/2, too. For v > 0, if
    mu is at least 1, F - f = e^(-mu x) - phi(x) (R(x) + R(mu - x)) is at most 0.55 e^(-x^2/2), whose integral is 0.55
    sqrt(2 pi) mu, if

        e^(x^2/2 - mu x) <= 0.55 + (R(x) + R(mu - x))/sqrt(2 pi).

    For x <= mu, the left side is at most e^(x^2/2 - x), convex and so at most 1 - 0.3934 x, up to x = 1, and R(x) >=
    sqrt(pi/2) - x makes the right side at least 1.05 - 0.399 x; for larger x it is at most e^(-x^2/2), which is at most
    0.607, and below 0.55 from 1.1 on, and R(1.1)/sqrt(2 pi) > 0.2. For x = mu + y > mu it is e^(y^2/2) e^(-mu^2/2) <=
    0.607 e^(y^2/2), and the right side at least 0.55 + Phi(y) e^(y^2/2), which is more: for e^(y^2/2) < 4 as Phi >=
    1/2, and beyond, y > 1.6, as Phi > 0.9. The bump is the lesser, and for mu < 1 that is mu^2.

    A multiple of the half has no rounding; the other is raised by 8u.
    """
    square = 2 * half
    bump = jnp.minimum(square, jnp.sqrt(square) * (0.55 * math.sqrt(2 * math.pi) * (1 + 8 * roundoff())))
    return jnp.where(sign > 0, half, 0.0), jnp.where(sign > 0, 0.0, bump)


class Chosen(NamedTuple):
    """A line that is chosen: its order, spacing, length to 2^-30, and cumulants and means of one run of each row."""

    order: Array
    spacing: Array
    length: Array
    cumulants: Array
    means: Array


def choose_line(chernoff: Orders, starts: Array, log_targets: Array, side: int) -> Chosen:
    """Returns the line for values of eps (q,) with log delta (q,).

    On the line t the alias at eps + L, times e^(tL), is bounded by e^(-(a - t) L) of Chernoff's bound at a > t, and
    that at eps - L by e^(-(t - a) L) of that at a < t, or of 1 at a = 0. Each L will do for which both are e^-cut of
    delta.
    Smoothing then costs about (mu t)^2 of delta; rounding some 2^20 u of the height above
    the least, which is about as Chernoff's bounds differ. Tightness only.
    """
    lines, zero = chernoff.orders, jnp.zeros(1, chernoff.orders.dtype)
    orders, logs = jnp.concatenate([lines, zero]), jnp.concatenate([chernoff.log_chernoff, zero])
    room = logs[:, None] - orders[:, None] * starts[None] - log_targets[None]
    excess = jnp.max(room[:-1] - jnp.min(room[:-1], 0)[None], 1)
    distances = orders[:, None] - lines[None]
    needed = jnp.maximum(jnp.max(room, 1) + cut(side), cut(side) / 2)[:, None] / jnp.abs(distances)
    lengths = jnp.max(jnp.min(jnp.where(jnp.stack([distances > 0, distances < 0]), needed[None], jnp.inf), 1), 0)
    saddle = lines[AT]
    smoothing = 2 * cut(side) * (lengths / (2 * math.pi * side**2)) ** 2 * saddle * (1 + saddle)
    cost = smoothing + 2.0**20 * roundoff() * jnp.exp(jnp.minimum(excess, 80.0))
    is_best = cost == jnp.min(jnp.where(cost < jnp.inf, cost, jnp.inf))
    columns = jnp.concatenate([jnp.stack([lines, lengths], 1), chernoff.rows, chernoff.means], 1)
    order, length, *rows = jnp.max(jnp.where(is_best[:, None], columns, -jnp.inf), 0)
    # Few digits, such that multiples of the spacing up to the number of frequencies are exact.
    info = jnp.finfo(lines.dtype)
    spacing = jax.lax.reduce_precision((2 * math.pi) / length, info.nexp, info.nmant - 2 * side.bit_length())
    half = len(rows) // 2
    return Chosen(order, spacing, length, jnp.stack(rows[:half]), jnp.stack(rows[half:]))


class Transform(NamedTuple):
    """The transform of a row's tilted law about a number near its mean, at the frequencies of a line.

    Attributes:
        parts (2, side, side): real and imaginary part of E_t[e^(iwX)] - 1.
        error (): bound on the error of these as complex numbers, over w.
        surplus, surplus_error (): tilted mass less 1, which is about 0, and a bound on its error.
    """

    parts: Array
    error: Array
    surplus: Array
    surplus_error: Array


def transform(
    losses: Array,
    masses: Array,
    excess: Array,
    excess_error: Array,
    order: Array,
    cumulant: Array,
    mean: Array,
    spacing: Array,
    side: int,
) -> Transform:
    """Returns the transform of one row (n,) at order t, given its cumulant g and its mean c, roughly.

    Write a = t y - g for an atom's exponent. The tilted mass less 1 is the sum of p (e^a - 1) and of p - 1, whatever g
    is; weights are w = p e^a; and c may be any number near the mean: the transform is taken of X = y - c.

    *Surplus.* The exponent errs by u (|t y| + |a|) =: u b; e^a - 1 by 8u of itself and e^a u b; the product by u, the
    sum by n u; the sums with the excess by u of each. So 9 + n units of p |e^a - 1|, one of w b.

    *Weights* err by (9 + b) u of themselves, and for the surplus, which they are not divided by.

    *Tables.* Let T = e^(i angle) - 1 be the first power less 1 and A_j = (1 + T)^j - 1. An angle, spacing x and times
    side, errs by 2u of itself, and T by 7 more (five for each part, :func:`.cosm1_and_sin`): at most 16u |angle|. With
    A_(j+1) = A_j + T + A_j T the products err by 3u |A_j T|, the sums by u (|A_j + T| + |A_(j+1)|), and |1 + T| = 1. As
    |A_j| <= min(2, j |angle|), after J powers all this is at most u J |angle| (16 + 6 + 2 + J): the three are those of
    T, of 3u |A_j T|, of T in the sums; J is that of A_j in the sums. So a table errs by (24 + side) u of the angle of
    its power, and both together by as much of w |x|, as (1 + A)(1 + B) - 1 moves by |dA| + |dB|.

    *Sums* over atoms of w A, w B and w A B: n + 3 units of the sizes' sum, times 1.5 for two parts, and |A B| <= |A| +
    |B|: 3 n + 22 units of the sum of w |w x|, with those of the three's sum and of its sum with 1 later. One product of
    matrices makes all three: A_0 is 0, and 1 stands in its place.

    All but the surplus are thus a multiple of w times the sum of the weights times |x|.
    """
    u, n = roundoff(), masses.shape[-1]
    lever, there = order * losses, masses > 0
    exponent = jnp.where(there, lever - cumulant, 0.0)
    grown, weights = jnp.expm1(exponent), masses * jnp.exp(exponent)
    units = jnp.abs(lever) + jnp.abs(exponent)
    x = jnp.where(there, losses - mean, 0.0)
    spread = weights * jnp.abs(x)
    terms = jnp.stack([masses * grown, masses * jnp.abs(grown), weights * units, spread, spread * units])
    gained, moved, off, first, second = terms.sum(-1)
    surplus = gained + excess
    flushed = n * jnp.finfo(masses.dtype).tiny + excess_error
    surplus_error = SLACK * (u * ((9 + n) * moved + off + 2 * (jnp.abs(gained) + jnp.abs(excess))) + flushed)
    error = SLACK * ((u * (55 + side + 3 * n) + jnp.abs(surplus) + surplus_error) * first + u * second)
    angles = (spacing * x)[None] * jnp.asarray([[1.0], [side]], x.dtype)
    start = jnp.stack(cosm1_and_sin(angles))  # (parts, tables, n)

    def power(table: Array, _: Any) -> tuple[Array, Array]:
        (re, im), (one_re, one_im) = table, start
        product = jnp.stack([re * one_re - im * one_im, re * one_im + im * one_re])
        return (table + start) + product, table

    # Each step multiplies both tables' powers by their first.
    _, tables = jax.lax.scan(power, jnp.zeros_like(start), None, side)
    first_is_one = np.zeros((side, 2, 1))
    first_is_one[0, 0] = 1.0
    inner, outer = (tables[:, :, i] + jnp.asarray(first_is_one, x.dtype) for i in range(2))  # (side, parts, n)
    both = jnp.einsum("bcn,adn->cdab", inner, outer * weights[None, None], precision="highest")
    turned = jnp.stack([both[0, 0] - both[1, 1], both[0, 1] + both[1, 0]])
    index = np.arange(side)
    none = jnp.asarray((index[:, None] == 0) & (index == 0))
    turned = jnp.where(none[None], 0.0, turned)
    # Row 0 and column 0 are those that only one table turns.
    alone = jnp.asarray(((index[:, None] > 0) & (index > 0))[None], x.dtype) * (turned[:, :1] + turned[:, :, :1])
    return Transform(turned + alone, error, surplus, surplus_error)


def lay_line(runs: Runs, chernoff: Orders, starts: Array, log_targets: Array, side: int) -> AtomsLine:
    """Returns a line for values of eps (q,) at which log delta is about (q,).

    With r the surplus of a row, e^(K(z) - z eps) is the product over the rows of (e^g (1 + r))^k e^(-t eps), the common
    factor, and of phi(w)^k e^(iw (k c - eps)), where phi is off by at most ``error`` w.

    *Powers.* If each factor is off by at most e |phi|, their product is off by at most prod (1 + e)^k - 1 of itself. So
    with d the sum of the logs of all such factors, k log (1 + e) and units of rounding alike, a node of size s is off
    by s (e^d - 1) <= s e^d min(d, 1).

    *Moduli and angles*, in units of roundoff, with x, y the parts of phi - 1. The modulus's square less 1 is right to
    3 |x (2 + x)| + 2 y^2 + itself, its logarithm to 8 of itself, so that log |phi| is to 12 |x| + 4 y^2 + 9 |log phi|
    (where the square is below 3/4 it is right to 3 units of 1, and |x| is at least .13). The argument is right to 8 of
    itself, and one for 1 + x. Powers and sums add m + 2 of both, and one for the sum with another exponent. A modulus
    below u is not told from u: ``error`` w is above that, for it is at least (3 n) u (1 - |phi|).

    *Phase.* w times the distance of start from the sum of means errs by a unit of itself, the sum of all angles by
    their sizes, and cosine and sine by seven: nine of all angles. That distance itself errs by the rounding of k c, m +
    3 units, and of what is added to it: this moves eps, and nothing else (``drift``).

    *Kernel.* z (z + 1) has a modulus of at least t (t + 1) + w^2; its parts err by 4 units of it. Its inverse, two
    exponentials and six products err by 40, and the exponents by 8 of mu^2 (t (t + 1) + w^2)/2. Smoothing may be by any
    mu.

    *End.* Frequencies from W on are left out. What falls with w sums to at most its value at W times the spacing and
    its integral from W on: with h = mu^2/2 that of e^(-h w^2)/w^2 is at most e^(-h W^2)/(2 h W^3), and that of
    e^(-h w^2) at most e^(-h W^2)/(2 h W). A transform's modulus is at most 1 there, in units of the common factor. As h
    is ``cut``/W^2, 1/(2 h W) is W/(2 cut); a length stands for 2 pi/spacing, which differ by less than 2^-30.
    """
    u, tiny = roundoff(), jnp.finfo(runs.losses.dtype).tiny
    (rows, n), count = runs.losses.shape, side * side
    chosen = choose_line(chernoff, starts, log_targets, side)
    t, spacing = chosen.order, chosen.spacing
    start = jnp.mean(starts)
    masses = jnp.where(runs.log_masses > -jnp.inf, runs.both[:, 0], 0.0)

    def of_row(row: Any) -> Transform:
        losses, masses, excess, excess_error, cumulant, mean = row
        return transform(losses, masses, excess, excess_error, t, cumulant, mean, spacing, side)

    rows_of_laws = runs.losses, masses, runs.excess, runs.excess_error, chosen.cumulants, chosen.means
    if rows == 1:
        each = jax.tree.map(lambda leaf: leaf[None], of_row(jax.tree.map(lambda leaf: leaf[0], rows_of_laws)))
    else:
        each = jax.lax.map(of_row, rows_of_laws)
    index = np.arange(count, dtype=np.float64).reshape(side, side)
    w = spacing * jnp.asarray(index, t.dtype)
    # The characteristic function to the power of the runs.
    x, y = each.parts[:, 0], each.parts[:, 1]
    real, imaginary = 1 + x, y * y
    excess, square = x * (2 + x) + imaginary, jnp.maximum(real * real + imaginary, u * u)
    log_size = 0.5 * jnp.where(excess > -0.25, jnp.log1p(jnp.maximum(excess, -0.25)), jnp.log(square))
    argument = jnp.arctan2(y, real)
    units = 12 * jnp.abs(x) + 4 * imaginary + (12 + rows) * (jnp.abs(log_size) + jnp.abs(argument))
    doubt = jnp.log1p((each.error[:, None, None] * w[None] + 16 * n * tiny) * jnp.exp(-log_size)) + u * units
    log_modulus, phase, doubt = runs.total(jnp.stack([log_size, argument, doubt], 1))
    # What follows of the rows without an axis of frequencies.
    surplus = jnp.abs(each.surplus) + each.surplus_error
    logs = chosen.cumulants + each.surplus
    # The log of 1 + r is r to r^2 for |r| < 1/2. A surplus that is not small says that the cumulants were none.
    unit_error = jnp.where(surplus < 0.25, 2 * each.surplus_error + surplus * surplus, jnp.inf)
    unit_error = unit_error + u * ((rows + 3) * jnp.abs(logs) + jnp.abs(chosen.cumulants) + 8 * surplus)
    unit, unit_error, center, drift = runs.total(jnp.stack([logs, unit_error, chosen.means, jnp.abs(chosen.means)], 1))
    # The kernel, with its smoothing, and the bump.
    end = count * spacing
    short = chosen.length * (1 / (2 * math.pi * count))  # 1/end, to 2^-30
    half = cut(side) * (short * short)
    mean, bump = smoothing_of(half, runs.sign)
    plus, square = t * (t + 1), w * w
    drift = SLACK * u * ((rows + 3) * drift + 4 * (jnp.abs(start) + half * (1 + 2 * t)))
    far = (start - mean) - center - 2 * half * t
    turn = phase - far * w
    d_re, d_im = plus - square, (2 * t + 1) * w
    inverse = 1 / (d_re * d_re + d_im * d_im)
    weight = spacing * jnp.asarray(np.where(index == 0, 0.5, 1.0) / math.pi, t.dtype)
    level = log_modulus + half * (t * t - square)
    height = weight * jnp.exp(level)
    less, sine = cosm1_and_sin(turn)
    cosine = 1 + less
    a, b = height * (d_re * inverse - bump), height * (d_im * inverse)
    doubt = doubt + u * (9 * jnp.abs(turn) + jnp.abs(far) * w + 60 + 8 * half * (plus + square))
    sizes = weight * jnp.exp(level + doubt) * (jnp.sqrt(inverse) + bump)
    size, off = jnp.stack([sizes, sizes * jnp.minimum(doubt, 1.0)]).sum((-1, -2))
    after = jnp.exp(half * (t * t - end * end)) * (short * short + bump) * (spacing + end * (1 / (2 * cut(side))))
    # Aliases: Chernoff's bounds at the orders beside t, and delta <= 1 at order 0.
    none = jnp.zeros(1, t.dtype)
    orders, log_beside = jnp.concatenate([chernoff.orders, none]), jnp.concatenate([chernoff.log_chernoff, none])
    fall = -jnp.abs(orders - t) * chosen.length * (1 - 2.0**-30)
    log_aliases = log_beside + fall - jnp.log(-jnp.expm1(fall)) + 16 * u * (1 + jnp.abs(log_beside) + jnp.abs(fall))
    numbers = LineNumbers(
        order=t,
        start=start,
        spacing=spacing,
        unit=unit + mean * t,
        unit_error=SLACK * (unit_error + 4 * u * mean * t) + drift * t,
        allowance=SLACK * (off + after * (1 / math.pi) + 16 * count * tiny),
        size=SLACK * size,
        drift=drift,
        smoothing=2 * half * plus,
    )
    spectrum = jnp.stack([a * cosine + b * sine, a * sine - b * cosine])
    return AtomsLine(runs.sign, spectrum, jnp.stack([orders, log_aliases]), jnp.stack(numbers))


def read(line: AtomsLine, at: Array, unit: Array) -> tuple[Array, Array, Array]:
    """Returns a bound on E f(S - eps), an estimate and its slope in eps, all over e^unit.

    *Rounding.* The angle w (eps - start), of a power in each of two tables, errs by 3 + 7 units of itself, a turn by 16
    units; sums over nodes by their number. The exponent of the common factor errs by four units of its parts; what is
    made of it and of the sum by 16 of itself. Aliases are subtracted as they are bounded, with the rounding of their
    logs.
    """
    u, side = roundoff(), line.spectrum.shape[-1]
    numbers, sign, (orders, log_aliases) = line.numbers, line.sign, line.aliases
    t, spacing, level = numbers.order, numbers.spacing, numbers.unit
    distance = at - numbers.start
    # Powers of the outer table and of the inner one, and the sums over the latter, also with its index as a factor.
    counts = np.arange(side) * np.array([[side], [1.0]])
    less, sine = cosm1_and_sin((distance * spacing) * jnp.asarray(counts, at.dtype))
    (outer_c, inner_c), (outer_s, inner_s) = 1 + less, sine
    index = jnp.asarray(counts[1], at.dtype)
    inner = jnp.stack([inner_c, inner_s, index * inner_c, index * inner_s])
    (re_c, re_s, more_re_c, more_re_s), (im_c, im_s, more_im_c, more_im_s) = jnp.einsum(
        "pab,qb->pqa", line.spectrum, inner, precision="highest"
    )
    along, across = re_c + im_s, im_c - re_s
    turned = side * index * across + (more_im_c - more_re_s), side * index * along + (more_re_c + more_im_s)
    value, fall = jnp.stack([outer_c * along + outer_s * across, outer_c * turned[0] - outer_s * turned[1]]).sum(-1)
    rounding = u * (side * side + 24 + 11 * side * side * (jnp.abs(distance) * spacing)) * numbers.size
    lever = t * at
    scale = jnp.exp(level - lever - unit)
    common = numbers.unit_error + 4 * u * (6 + jnp.abs(level) + jnp.abs(lever) + jnp.abs(unit))
    # Of e^common no more than 1 + 2 common above, and 1 - common below.
    factor = jnp.where(sign > 0, jnp.where(common < 1, 1 + 2 * common, jnp.inf), jnp.maximum(1 - common, 0.0))
    moved = orders * at
    logs = log_aliases - moved - unit + 8 * u * (3 + jnp.abs(log_aliases) + jnp.abs(moved) + jnp.abs(unit))
    is_beside = jnp.stack([orders > t, orders < t])
    aliases = jnp.sum(jnp.exp(jnp.min(jnp.where(is_beside, logs[None], jnp.inf), -1)))
    bound = (value + sign * (numbers.allowance + SLACK * rounding)) * scale * factor
    bound = bound - jnp.where(sign > 0, 0.0, aliases)
    bound = jnp.where(bound >= 0, bound, jnp.where(sign > 0, jnp.inf, 0.0))
    return bound, value * scale, (spacing * fall - t * value) * scale


# ----------------------------------------------------------------------------------------------------
# Questions
# ----------------------------------------------------------------------------------------------------


def solve(line: AtomsLine, rare: RareEvent, log_target: Array, shift: Array) -> tuple[Array, Array]:
    """Returns the eps at which delta's bound is about a target, and a bound on eps.

    A bound is returned only where delta's was evaluated, and was on the right side of the target: after Newton's steps
    there are looks at distances from the root that grow by 2^8, until one is.
    """
    # Largest numbers of Newton's steps, the latter half to the root of the bound, and of looks beside that, the first
    # at the root itself; and the share of eps that a step changes if it is the last. Tightness only.
    newton, looks, small = 8, 4, 2.0**-26
    u, sign, start, held = roundoff(), line.sign, line.numbers.start, (line, rare, log_target, shift)

    def look(state: Any) -> Any:
        i, root, best = state
        (line, rare, log_target, shift), i = in_step(held, i)
        order, spacing = line.numbers.order, line.numbers.spacing
        aside = jnp.where(i > newton, jnp.exp2(8.0 * (i - newton) + 4.0) * u, 0.0)
        at = jnp.maximum(root + sign * (aside * (jnp.abs(root) + 1 / order)), -sign * shift)
        bound, value, slope = read(line, at, log_target)
        more, fall = rare.bound(at, sign, log_target)
        delta = bound + more
        # An eps is a bound where delta is on the right side of the target there; the sum errs by a unit.
        is_bound = sign * (delta * (1 + sign * 4 * u) - 1) <= 0
        epsilon = jnp.where(is_bound, jnp.maximum(at + sign * shift, 0.0) * (1 + sign * 2 * u), best)
        best = sign * jnp.minimum(sign * best, sign * epsilon)
        is_value = (value > 0) & (value < jnp.inf) & ((bound > 0) | (more <= 0))
        about = jnp.where(is_value, value, 0.0) + more
        slope = jnp.where(is_value, slope, 0.0) + fall
        # The last steps are to the root of the bound, the others to that of the estimate, which need not be a bound.
        is_near = (i >= newton // 2) & (delta > 0) & (delta < jnp.inf)
        most = jnp.where(is_value, jnp.pi / (2 * spacing), jnp.abs(at) / 4)
        # What the bound has besides falls as the common factor does.
        about = jnp.where(is_near, delta, about)
        slope = jnp.where(is_near, slope - order * (bound - value), slope) / about
        move = jnp.clip(-jnp.log(about) / slope, -most, most)
        root = jnp.where((i < newton) & (jnp.abs(move) < jnp.inf), at + move, root)
        # Steps of half of the digits need no other: on to the root of the bound, and then to the looks beside it.
        half = newton // 2
        is_done = jnp.where(i < newton, jnp.abs(move) <= small * (jnp.abs(at) + 1 / order), is_bound)
        return jnp.where(is_done, jnp.where(i < half, half, jnp.where(i < newton, newton, last)), i + 1), root, best

    nothing, last = jnp.where(sign > 0, jnp.inf, jnp.zeros_like(start)), newton + looks
    _, root, best = jax.lax.while_loop(lambda state: state[0] < last, look, (jnp.int32(0), start, nothing))
    return root, best


def in_step(held: Any, i: Array) -> Any:
    """Returns what a loop holds and the number of its step, such that nothing is moved out of the step.

    What a compiler moves out of a loop is a part of the program for each number, and here all is little work.
    """
    return jax.lax.optimization_barrier((held, i))


def _bounds_of(sign: Array, laws: Atoms, counts: Array, levels: Array, side: int, asks_epsilon: bool) -> Array:
    """Returns the bounds of one side on epsilon at a delta (), or on delta at epsilons (q,)."""
    runs = compose(sign, laws, counts)
    u, tiny = roundoff(), jnp.finfo(levels.dtype).tiny
    infinite, moved = runs.infinite, runs.sums.shift * (1 + (8 + counts.size) * u)
    room = levels - infinite
    each, top = sure_events(runs)
    # A line is for values of eps (e,) with logs of delta: the question gives one of the two, the search the other.
    if asks_epsilon:
        logs = jnp.log(jnp.maximum(room, tiny))[None]
        first = jnp.zeros_like(logs), logs, jnp.where(sign > 0, jnp.inf, 0.0 * levels)
    else:
        # From the supremum on there is nothing to find.
        inside = levels < runs.most
        ends = levels if levels.size == 1 else _ends(levels, inside)
        first = ends, jnp.full_like(ends, -jnp.inf), jnp.where(sign > 0, 1.0, jnp.zeros_like(levels))

    # Largest number of lines of a side. Another is laid while the last was chosen for an eps that is so many nats of
    # delta from the one that it gave. Tightness only.
    rounds, moved_enough = 3, 2.0
    # Share of delta that smoothing may cost before rare losses are taken out. Tightness only.
    wide = 0.02

    def goes_on(state: Any) -> Array:
        i, nats, *_ = state
        return (i < rounds) & ~(nats < moved_enough)

    held = runs, each.log_p, room, infinite, moved

    def improve(state: Any) -> Any:
        i, _, ends, logs, best = state
        (runs, log_tails, room, infinite, moved), i = in_step(held, i)
        sign = runs.sign
        is_later = i > 0
        # From the second round on there is an eps, and atoms so large that the sum is above it are taken out. Below any
        # threshold will do, and the last is eps itself.
        is_last = (sign < 0) & (i == rounds - 1)
        threshold = jnp.where(is_last, jnp.min(ends), 1.02 * jnp.max(ends) + runs.sizes.lowest)
        # Losses beyond the highest that counts have e^-cut of delta together, and bend K where t is large.
        highest = jnp.max(jnp.where(log_tails > jnp.min(logs) - cut(side), runs.losses, -jnp.inf))
        rest, rare = split(runs, jnp.minimum(jnp.where(is_later, threshold, jnp.inf), highest))
        chernoff = search(rest, jnp.mean(ends), logs[0], is_later | (not asks_epsilon))
        if asks_epsilon:
            ends = jnp.where(is_later, ends, chernoff.guess)
        else:
            # At first, about the nats by which Chernoff's bound is above delta. Tightness only.
            logs = jnp.where(is_later, logs, jax.vmap(chernoff_delta, (None, 0))(chernoff, ends) - 2.0)
        share, _ = rare.bound(ends, sign, logs)
        line = lay_line(rest, chernoff, ends, logs + jnp.log(jnp.clip(1 - share, 1e-3, 1.0)), side)
        shift = moved + line.numbers.drift * (1 + 2 * u)
        if asks_epsilon:
            # The target's logarithm errs by eight units of itself, and the difference under it by one.
            target = logs[0] - sign * u * (4 + 10 * jnp.abs(logs[0]))
            root, bound = solve(line, rare, target, shift)
            # A root far off, without a bound about it, is none.
            is_bound = jnp.where(sign > 0, bound < jnp.inf, bound > 0.9 * root)
            is_root = jnp.isfinite(root) & (is_bound | (root > ends[0] / 4))
            root = jnp.where(is_root, jnp.maximum(root, 0.0), ends[0])
            # By Chernoff's bound on the rest, and P(A).
            left = jnp.log(jnp.maximum(room * (1 - 4 * u) - jnp.exp(rare.packed[0]) * (1 + 10 * u), 0.0))
            by_chernoff = chernoff_epsilon(chernoff, left - 16 * u * (1 + jnp.abs(left))) + shift
            by_chernoff = jnp.maximum(by_chernoff, 0.0) * (1 + 4 * u)
            bound = jnp.where(sign > 0, jnp.fmin(bound, by_chernoff), bound)
            nats = jnp.where(is_bound & is_root, jnp.abs(root - ends[0]) * line.numbers.order, jnp.inf)
            ends = root[None]
        else:
            at = levels * (1 - sign * 2 * u) - sign * shift
            units = jax.vmap(chernoff_delta, (None, 0))(chernoff, at)
            bound, *_ = jax.vmap(read, (None, 0, 0))(line, at, units)
            bound = jnp.where(sign > 0, jnp.minimum(bound, 1.0), bound)
            more, _ = rare.bound(at, sign)
            # The exponential errs by eight units and those of its argument.
            bound = bound * jnp.exp(units + sign * u * (12 + jnp.abs(units))) + more
            bound = (bound + jnp.where(sign > 0, tiny, 0.0) + infinite) * (1 + sign * 8 * u)
            nats = logs
            logs = jnp.log(jnp.maximum(bound if levels.size == 1 else _ends(bound, inside)[::-1], tiny))
            nats = jnp.max(jnp.abs(logs - nats))
        best = _tightest(sign, best, bound)
        # Where the smoothing is not small another round may take out rare losses.
        return i + 1, jnp.where(line.numbers.smoothing < wide, nats, jnp.inf), ends, logs, best

    # Each round lays a line, the later ones for the eps or the deltas found.
    *_, best = jax.lax.while_loop(goes_on, improve, (jnp.int32(0), jnp.full((), jnp.inf, levels.dtype), *first))
    is_sure = (sign < 0) | (jnp.sum(counts) <= 1)
    # NaN where any number of the laws is none.
    unknown = jnp.where(jnp.any(jnp.isnan(runs.packed)), jnp.nan, 0.0)
    if asks_epsilon:
        room = jnp.where(sign > 0, room, jnp.maximum(room, tiny))
        # A target below the normal numbers is not met by a line.
        best = jnp.where((sign < 0) | (room > 2 * tiny), best, jnp.inf)
        plain = jnp.where(sign > 0, runs.most, 0.0)
        sure = jnp.stack([jnp.where(is_sure, jnp.max(each.epsilon(room, sign)), plain), top.epsilon(room, sign)])
        sure = jnp.maximum(jnp.maximum(sure, 0.0) * (1 + sign * 4 * u) + sign * moved, 0.0)
        # Below, no eps from the supremum on.
        best = jnp.where(sign > 0, best, jnp.minimum(best, jnp.maximum(runs.most, 0.0)))
        # Where more than delta is infinite, no eps will do.
        return jnp.where(levels < infinite, jnp.inf, _tightest(sign, best, *sure)) + unknown
    at = levels * (1 - sign * 2 * u) - sign * moved
    # Below, what no sum of losses exceeds has no delta but that of infinite ones.
    best = jnp.where((sign < 0) & (at >= runs.most), infinite * (1 - 8 * u), best)
    bounds = jax.vmap(lambda eps: jnp.max(each.delta(eps, sign)[0]))(at)
    sure = jnp.stack([jnp.where(is_sure, bounds, jnp.where(sign > 0, 1.0, 0.0)), top.delta(at, sign)[0]])
    sure = (jnp.where((sign > 0) & (at >= runs.most), 0.0, sure) + infinite) * (1 + sign * 2 * u)
    return jnp.clip(_tightest(sign, best, *sure), 0.0, 1.0) + unknown


def _ends(values: Array, where: Array) -> Array:
    """Returns the least and the largest of some values."""
    return jnp.stack([jnp.min(jnp.where(where, values, jnp.inf)), jnp.max(jnp.where(where, values, -jnp.inf))])


def _tightest(sign: Array, *bounds: Array) -> Array:
    """Returns the least of the bounds above, and the largest of those below; none is better than one that is NaN."""
    return sign * functools.reduce(jnp.fmin, [sign * bound for bound in bounds])


def _answer(laws: Atoms, counts: ArrayLike, levels: Array, side: int, asks_epsilon: bool) -> tuple[Array, Array, Array]:
    """Returns lower and upper bounds, and whether the counts and the laws are numbers that mean something."""
    levels, counts = (jnp.asarray(value, laws.masses.dtype) for value in (levels, counts))
    losses, masses, infinite = (jnp.moveaxis(leaf, 1, 0) for leaf in laws[:3])
    signs = jnp.asarray([1.0, -1.0], losses.dtype)
    sides = signs, Atoms(losses, masses, infinite, jnp.stack([laws.shift, laws.shift]))
    # One program for a side, mapped over both: the bound from above, and the one from below.
    upper, lower = jax.lax.map(lambda each: _bounds_of(each[0], each[1], counts, levels, side, asks_epsilon), sides)
    is_known = jnp.all((counts >= 0) & (counts < jnp.inf) & (counts == jnp.round(counts)))
    return lower, upper, is_known


def epsilon(
    laws: Atoms, counts: ArrayLike, delta: ArrayLike, *, side: int = SIDE
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns lower and upper bounds on the epsilon of a composition at a delta.

    Args:
        laws: rows of atoms, leaves (m, ...).
        counts (m,): numbers of runs of each row.
        delta: from 0 to 1.
        side: number of powers in each of the two tables of frequencies.
    """
    delta = jnp.asarray(delta, laws.masses.dtype)
    lower, upper, is_known = _answer(laws, counts, delta, side, asks_epsilon=True)
    is_known = is_known & (delta >= 0) & (delta <= 1)
    upper = jnp.where(is_known & ~jnp.isnan(upper), jnp.where(delta < 1, upper, 0.0), jnp.inf)
    return jnp.where(is_known & (delta < 1) & ~jnp.isnan(lower), lower, 0.0), upper


def delta(
    laws: Atoms, counts: ArrayLike, epsilon: ArrayLike, *, side: int = SIDE
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns lower and upper bounds on the delta of a composition at an epsilon; arguments as for :func:`epsilon`."""
    lower, upper = curve(laws, counts, jnp.asarray(epsilon)[None], side=side)
    return lower[0], upper[0]


def curve(
    laws: Atoms, counts: ArrayLike, epsilons: ArrayLike, *, side: int = SIDE
) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
    """Returns lower and upper bounds on delta at several values of epsilon (q,), from one spectrum of each side.

    They hold for any values. They are close where delta changes by a few factors of ten, for one line is to serve all.
    """
    epsilons = jnp.asarray(epsilons, laws.masses.dtype)
    lower, upper, is_known = _answer(laws, counts, epsilons, side, asks_epsilon=False)
    is_known = is_known & (epsilons >= 0)
    lower, upper = (
        jnp.where(is_known & ~jnp.isnan(bound), bound, worst) for bound, worst in ((lower, 0.0), (upper, 1.0))
    )
    return lower, upper
