"""The contour composer: brackets of delta and epsilon of any number of runs, from laws that are arrays.

One program serves every mechanism, for its input is the law of one run's privacy loss as atoms
(:class:`~jaxacct.mechanisms.atoms.Atoms`), one row for each mechanism of a sequence, and the numbers of runs. Its size
and time do not depend on these. Let S be the sum of the losses of all runs under P, K(z) = sum of k log E[e^(z Y)] over
the rows its cumulant function, and f(v) = (1 - e^-v)+. Then delta(eps) is the mass of infinite losses and

    E f(S - eps) = (1/2 pi) integral of e^(K(z) - z eps) / (z (z + 1)) dw,    z = t + iw, for any t > 0.

*Smoothing.* The transform of atoms does not fall with w, so the kernel has to. Above, S is composed with a Gaussian
mechanism of small mu, whose loss G is normal with mean mu^2/2 and variance mu^2. That only adds privacy loss: E f(S +
G - eps) is an upper bound, and the kernel is times e^(z (z + 1) mu^2 / 2). Below, F(v) = E f(v + G) exceeds f by no
more than a *bump*, a multiple of a normal density, which is subtracted (:func:`smoothing_of`). Both cost about mu^2 of
delta's second derivative, and end the line in closed form.

*Aliases.* The rule with spacing dw sums to the quantity at eps and, for every j but 0, the quantity at eps + j L times
e^(t j L), L = 2 pi/dw. All these are positive above, where nothing need be subtracted. Below they are bounded by
Chernoff's bounds at orders on either side of t, and by delta <= 1.

*The line.* Any t > 0 will do. Of the orders that the search has looked at that one is taken whose bracket will be the
narrowest: the shorter L may be, the less smoothing there is; the higher the integrand, the more rounding.

*Frequencies by powers.* The transform at side^2 frequencies is made of two tables of powers and one product of
matrices. It is summed as e^(iwX) - 1, X the distance from the tilted mean, which is small where w is, and so keeps its
digits when it is raised to the power of the runs.

Functions are taken to err by eight units of roundoff of themselves (:attr:`.Arithmetic.function`), the argument of a
complex number too.

The two bounds have a line each: the laws may lie further apart than a circle is long. All but the questions is a
program for one side, which is mapped over both.

In reading order: :class:`Runs` (one side of a composition); :func:`search` (orders and cumulants); :func:`split` (rare
losses); :func:`lay_line` (a line, and the spectrum on it); :func:`read` (a bound on delta at any eps from a line);
:func:`epsilon`, :func:`delta` and :func:`curve`, which ask these.

Everything is a bracket with rounding included. Constants of rounding are in units of roundoff u and derived where they
stand; "may not be lowered" says that a bound rests on a number, all others cost width or time alone. Products of errors
of two roundings are covered by ``SLACK``. NaN anywhere is an infinite epsilon, a delta of 1, or 0 from below.

Sources: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function", for the
inversion; Trefethen and Weideman (2014), "The exponentially convergent trapezoidal rule", for the rule.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxacct.mechanisms.atoms import Atoms
from jaxacct.mechanisms.normal import cosm1_and_sin
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import log_complement, log_peak

SLACK = 1.01
"""Factor of every bound on rounding, over errors of the bound's own rounding and products of errors. May not be
lowered."""

SIDE = 32
"""Number of powers in each of the two tables; there are its square of frequencies. A power of two."""

LADDER = np.array([0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 1.9, 2.5, 3.5])
"""Orders of the last look, over the one of least height: lines to choose from, and Chernoff bounds. Tightness only."""

LOOKS = np.stack(
    [2.0 ** np.linspace(-24, 36, 16), 2.0 ** np.linspace(-4, 4, 16), 2.0 ** np.linspace(-0.6, 0.6, 16), LADDER]
)
"""Orders of each look, over the best of the look before. Tightness only."""

ROUNDS, MOVED = 3, 2.0
"""Largest number of lines of a side. Another is laid while the last was chosen for an eps that is so many nats of delta
from the one that it gave. Tightness only."""

WIDE = 0.02
"""Share of delta that smoothing may cost before rare losses are taken out. Tightness only."""


def cut(side: int) -> float:
    """Returns the nats below delta at which aliases, and the smoothed integrand's end, lie. Tightness only.

    Smoothing costs about 1/side^4 of delta, so nothing is gained by going further than that.
    """
    return 4 * math.log(side) - 2


class Runs(NamedTuple):
    """One side of a composition: rows of laws with their numbers of runs, and what follows of them at once.

    Attributes:
        sign (): 1 for the laws above, -1 for those below.
        losses, masses, log_masses (m, n): atoms of the rows.
        excess (m,): sum of the masses less 1, without cancellation.
        counts (m,): numbers of runs.
        infinite (): P's mass of an infinite sum, at most or at least.
        largest (m,): largest |loss|.
        most (): the supremum of the sum, rounded up.
        shift (): bound on the error of the sum that those of the losses make.
    """

    sign: Array
    losses: Array
    masses: Array
    log_masses: Array
    excess: Array
    counts: Array
    infinite: Array
    largest: Array
    most: Array
    shift: Array

    def total(self, values: Array) -> Array:
        """Returns the sum over all runs of a quantity of each row, the first axis. Rows without runs do not count."""
        return _total(self.counts, values)


def _total(counts: Array, values: Array) -> Array:
    counts = jnp.reshape(counts, (-1,) + (1,) * (values.ndim - 1))
    return jnp.sum(jnp.where(counts > 0, counts * values, 0.0), axis=0)


def _excess(masses: Array) -> Array:
    """Returns the sums of masses, less 1 (:func:`compose`)."""
    unit = 4 * roundoff()
    coarse = jnp.round(masses / unit) * unit
    return (jnp.sum(coarse, -1) - 1) + jnp.sum(masses - coarse, -1)


def compose(sign: Array, laws: Atoms, counts: Array) -> Runs:
    """Returns one side of the composition of rows of laws, each leaf without the axis of sides, run so many times each.

    *Excess.* A mass is split into a multiple of 4u and a rest of at most 2u. Sums of the first are exact while they are
    below 2, in any order, and so is the difference from 1; the rests add up to 2nu, and err by n u of that.

    *Infinite sums.* Let M_i be the mass of row i with infinite losses, and c_i that of infinite losses. The product of
    M_i^k less that of (M_i - c_i)^k is the product of M_i^k times 1 - prod (1 - c_i/M_i)^k. Above, M_i is replaced by
    the larger of it and 1, as x^k - (x - c)^k rises with x, and c_i/M_i by c_i. Each of three functions errs by 8u, and
    a sum over m rows by m u: 40 + 2 m units in all, besides those of M, which are 2 of 1 and of the excess, and 8 of
    log M.
    """
    u, tiny = roundoff(), jnp.finfo(laws.masses.dtype).tiny
    losses, masses, infinite = laws.losses, laws.masses, laws.infinite
    rows, there = masses.shape[0], masses > 0
    excess = _excess(masses)
    whole = jnp.maximum(1 + excess + infinite, jnp.where(sign > 0, 1.0, tiny))
    log_whole = jnp.log(whole) + sign * u * (8 * jnp.abs(jnp.log(whole)) + 4)
    share = jnp.minimum(infinite / jnp.where(sign > 0, 1.0, whole), 1.0)
    largest = jnp.max(jnp.where(there, jnp.abs(losses), 0.0), -1)
    parts = jnp.stack(
        [log_complement(share), log_whole, jnp.max(jnp.where(there, losses, -jnp.inf), -1), largest, laws.shift], 1
    )
    none, scale, most, size, shift = _total(counts, parts)
    return Runs(
        sign=sign,
        losses=losses,
        masses=masses,
        log_masses=jnp.where(there, jnp.log(jnp.maximum(masses, tiny)), -jnp.inf),
        excess=excess,
        counts=counts,
        infinite=jnp.clip(-jnp.expm1(none) * jnp.exp(scale) * (1 + sign * (40 + 2 * rows) * u), 0.0, 1.0),
        largest=largest,
        most=most + (4 + rows) * u * size,
        shift=shift * (1 + (4 + rows) * u),
    )


# ----------------------------------------------------------------------------------------------------
# Orders: the search, and Chernoff's bounds
# ----------------------------------------------------------------------------------------------------


class Orders(NamedTuple):
    """The orders of the last look, with what is known there.

    Attributes:
        orders (j,): orders t > 0.
        rows (j, m): cumulants of one run of each row.
        cumulants (j,): K of the sum.
        log_chernoff (j,): upper bounds on log of sup E f(S - eps) e^(t eps).
        guess (): the eps that Laplace's method finds, where none was given.
    """

    orders: Array
    rows: Array
    cumulants: Array
    log_chernoff: Array
    guess: Array


def search(runs: Runs, start: Array, log_target: Array, is_given: Array | bool) -> Orders:
    """Returns orders about the one of least height at an eps that is given, or of least eps for a delta that is.

    A height is that of Laplace's method, K(t) - t eps - log t (1 + t). Chernoff's bound is e^(K(t) - t eps) times the
    peak of e^(-tv) f(v) (:func:`.log_peak`).

    *Rounding* of a cumulant: a logarithm of a mass, at most 709 in size, errs by 8u of itself, the product of t and a
    loss by u, their sum, and its distance from the largest (at most 745 where it counts) by u; the sum of n
    exponentials by 8 + n, its logarithm by 8u of at most log n < 20, the last sum by u of itself. With x = t |loss|
    these are 9 * 709 + 745 + 2 x + 8 + n + 160 + (x + 709) < 9,000 + n + 3 x units; the sum over m rows adds m + 2 of
    709 + x. Peaks err by 30 units of 1 + |log peak|. May not be lowered.
    """
    u = roundoff()
    rows, size = runs.masses.shape

    def look(i: Any, state: Any) -> Any:
        orders = jnp.asarray(LOOKS, start.dtype)[i] * state[0]
        terms = runs.log_masses[:, None] + orders[None, :, None] * runs.losses[:, None]
        top = jnp.max(terms, -1)
        top = jnp.where(top > -jnp.inf, top, 0.0)
        each = top + jnp.log(jnp.sum(jnp.exp(terms - top[..., None]), -1))
        heights = runs.total(each) - jnp.log(orders) - jnp.log1p(orders)
        cost = jnp.where(is_given, heights - orders * start, (heights - log_target) / orders)
        best = jnp.min(jnp.where(cost < jnp.inf, cost, jnp.inf))
        return jnp.max(jnp.where(cost == best, orders, 0.0)), best, orders, each

    nothing = jnp.zeros((LADDER.size,), start.dtype), jnp.zeros((rows, LADDER.size), start.dtype)
    # Each look narrows the ladder about the best order of the one before; the last is LADDER.
    *_, orders, each = jax.lax.fori_loop(0, len(LOOKS), look, (jnp.ones_like(start), start, *nothing))
    doubt = 9000 + size + 709 * (rows + 2) + (rows + 5) * (orders[None] * runs.largest[:, None])
    cumulants, doubt = runs.total(jnp.stack([each, doubt], 1))
    peak = log_peak(orders)
    chernoff = cumulants + peak + SLACK * u * (doubt + 30 * (1 + jnp.abs(peak)) + jnp.abs(cumulants))
    # Laplace's method at the best order: t^2 K''(t) by differences, and the normal tail about as 1/(2 + sqrt(2 pi) x).
    below, here, above = (int(np.argmin(np.abs(LADDER - place))) for place in (0.8, 1.0, 1.2))
    curvature = jnp.maximum(cumulants[below] + cumulants[above] - 2 * cumulants[here], 0.0) / 0.2**2
    height = cumulants[here] - jnp.log1p(orders[here]) - jnp.log(2 + jnp.sqrt(2 * math.pi * curvature))
    return Orders(orders, each.T, cumulants, chernoff, jnp.maximum((height - log_target) / orders[here], 0.0))


def chernoff_delta(found: Orders, at: Array) -> Array:
    """Returns Chernoff's upper bound on log E f(S - eps)."""
    logs, size = found.log_chernoff, found.orders * jnp.abs(at)
    return jnp.min(logs - found.orders * at + 4 * roundoff() * (jnp.abs(logs) + size))


def chernoff_epsilon(found: Orders, log_target: Array) -> Array:
    """Returns the eps from which on Chernoff's bound is below a delta."""
    logs, u = found.log_chernoff, roundoff()
    room = logs - log_target + 4 * u * (jnp.abs(logs) + jnp.abs(log_target))
    return jnp.min(jnp.where(room < jnp.inf, room * (1 + 4 * u * jnp.sign(room)) / found.orders, jnp.inf))


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


class Rare(NamedTuple):
    """The event that any run has a loss above a threshold.

    Attributes:
        p, q (): P's probability, and Q's, of finite losses.
        p_error, q_error (): bounds on their relative errors.
        reach (): the largest eps up to which the sum is at least eps on the event.
    """

    p: Array
    q: Array
    p_error: Array
    q_error: Array
    reach: Array

    def bound(self, at: Array, sign: Array) -> tuple[Array, Array]:
        """Returns a bound on E[f(S - eps); A], and its slope."""
        u = roundoff()
        # Rounding: e^eps errs by 8 + |eps| units, the product and the difference by one.
        log_q = jnp.log(jnp.maximum(self.q, jnp.finfo(at.dtype).tiny))
        of_q = jnp.where(self.q > 0, jnp.exp(at + log_q), 0.0)
        of_q = of_q * (1 - sign * (self.q_error + u * (24 + 2 * jnp.abs(at) + 9 * jnp.abs(log_q))))
        of_p = self.p * (1 + sign * (self.p_error + 4 * u))
        is_exact = (at <= self.reach) | (sign < 0)
        least = jnp.maximum(of_p - of_q, 0.0) * (1 + sign * 4 * u)
        return jnp.where(is_exact, least, of_p), jnp.where(is_exact & (least > 0), -of_q, 0.0)


def split(runs: Runs, threshold: Array) -> tuple[Runs, Rare]:
    """Returns the runs without losses above a threshold, and the event that any run has one.

    *Rounding.* A sum of n masses errs by n u; Q's masses are exponentials of log p - y, whose parts are at most 709 and
    |y|: they err by 8 * 709 + 709 + 2 |y| + 8 units. With M the mass of a row and r that of its rare losses, P(A) is
    the product of M^k times 1 - prod (1 - r/M)^k. The latter errs by n + 40 + 2 m units of itself, for it moves by no
    more than r does, relative to itself; the former by those of log M times k, which are 10 of 1 + |log M|. Likewise
    for Q, whose M errs as its masses do. May not be lowered.
    """
    u = roundoff()
    rows, n = runs.masses.shape
    is_rare = runs.losses > threshold
    kept = jnp.where(is_rare, 0.0, runs.masses)
    q = jnp.exp(runs.log_masses - runs.losses)
    whole = jnp.stack([1 + runs.excess, jnp.sum(q, -1)])
    share = jnp.sum(jnp.where(is_rare[None], jnp.stack([runs.masses, q]), 0.0), -1) / whole
    there = runs.masses > 0
    lowest = jnp.minimum(jnp.min(jnp.where(there, runs.losses, 0.0), -1), 0.0)
    parts = jnp.concatenate(
        [log_complement(jnp.clip(share, 0.0, 1.0)), jnp.log(whole), lowest[None], runs.largest[None]]
    )
    *none, log_p, log_q, lowest, largest = runs.total(parts.T)
    p, q = -jnp.expm1(none[0]) * jnp.exp(log_p), -jnp.expm1(none[1]) * jnp.exp(log_q)
    of_losses = u * (7000 + 2 * jnp.max(runs.largest))
    of_whole = runs.total(10 * u * (1 + jnp.abs(jnp.log(whole.T))))
    p_error = u * (n + 40 + 2 * rows) + of_whole[0]
    q_error = p_error + of_losses + of_whole[1] + (of_losses + n * u) * jnp.sum(runs.counts)
    rest = runs._replace(
        masses=kept,
        log_masses=jnp.where(is_rare, -jnp.inf, runs.log_masses),
        excess=_excess(kept),
        largest=jnp.max(jnp.where(kept > 0, jnp.abs(runs.losses), 0.0), -1),
    )
    reach = threshold + lowest - (4 + rows) * u * (jnp.abs(threshold) + largest)
    reach = jnp.where(threshold < jnp.inf, reach, jnp.inf)
    return rest, Rare(p, q, SLACK * p_error, SLACK * q_error, reach)


# ----------------------------------------------------------------------------------------------------
# A line, and the spectrum on it
# ----------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """The integrand on a line of order t at frequencies w, but for the factor e^(-i w (eps - start)), and error bounds.

    Attributes:
        sign (): 1 where it bounds delta from above, -1 from below.
        order, start (): t, and the eps about which the line is made.
        spacing (): the distance of frequencies, which has so few digits that its multiples are exact.
        spectrum (2, side, side): real and imaginary parts at w = spacing (side a + b).
        unit (): log of the common factor, but for -t eps.
        unit_error (): bound on its error.
        allowance (): bound on what the sum may be off by, rounding of :func:`read` aside.
        size, lever (): sums of the moduli, and of the moduli times w.
        orders (j,), log_aliases (j,): orders beside t, and logs of bounds on aliases on the order's side of eps,
            without the factor e^(-order eps), in units of 1.
        drift (): bound on the error of eps that rounding of the means makes.
        smoothing (): about the share of delta that the smoothing costs.
    """

    sign: Array
    order: Array
    start: Array
    spacing: Array
    spectrum: Array
    unit: Array
    unit_error: Array
    allowance: Array
    size: Array
    lever: Array
    orders: Array
    log_aliases: Array
    drift: Array
    smoothing: Array


class Smoothing(NamedTuple):
    """A normal law that is added to the sum, and the multiple of a normal density that is subtracted below.

    Attributes:
        half (): half of the added law's variance.
        mean (): its mean.
        bump (): mass of what is subtracted.
        wider (): half of the variance of that.
    """

    half: Array
    mean: Array
    bump: Array
    wider: Array


def smoothing_of(mu: Array, sign: Array) -> Smoothing:
    """Returns the smoothing by mu: G is normal, F(v) = E f(v + G), F >= f above, F less the bump <= f below.

    Above, G is the loss of a Gaussian mechanism, N(mu^2/2, mu^2).

    *Below, mu < 1.* G is the same. With x = |v|/mu, phi the normal density and R Mills' ratio (1 - Phi)/phi, F(v) -
    f(v) is, for v < 0,

        phi(x) e^(x mu/2 - mu^2/8) (R(x - mu/2) - R(x + mu/2)),

    and for v > 0 no more, with e^(-x mu/2) in place of e^(x mu/2). R is convex and falls, so the difference is at most
    mu |R'(x - mu/2)| <= mu |R'(-mu/2)| = mu (1 + (mu/2) R(-mu/2)) <= mu (1 + mu sqrt(pi/2) e^(mu^2/8)), as 1 - Phi <=
    1. And x mu/2 - x^2 mu/(2 (1 + mu)) is at most mu (1 + mu)/8, so that e^(x mu/2 - mu^2/8) is at most e^(mu/8)
    e^(x^2 mu/(2 (1 + mu))). Hence

        F - f <= mu/sqrt(2 pi) A e^(-x^2/(2 (1 + mu))),   A = e^(mu/8) (1 + mu sqrt(pi/2) e^(mu^2/8)),

    whose integral over v is mu^2 sqrt(1 + mu) A.

    *Below, mu >= 1.* G is N(0, mu^2). For v < 0, F(v) <= P(G > -v) <= e^(-x^2/2)/2. For v > 0, F - f is e^(-mu x) -
    e^(-x^2/2) (R(x) + R(mu - x))/sqrt(2 pi); it is at most 0.55 e^(-x^2/2), whose integral is 0.55 sqrt(2 pi) mu, if

        e^(x^2/2 - mu x) <= 0.55 + (R(x) + R(mu - x))/sqrt(2 pi).

    For x <= mu, the left side is at most e^(x^2/2 - x), convex and so at most 1 - 0.3934 x, up to x = 1, and R(x) >=
    sqrt(pi/2) - x makes the right side at least 1.05 - 0.399 x; for larger x it is at most e^(-x^2/2), which is at most
    0.607, and below 0.55 from 1.1 on, and R(1.1)/sqrt(2 pi) > 0.2. For x = mu + y > mu it is e^(y^2/2) e^(-mu^2/2) <=
    0.607 e^(y^2/2), and the right side at least 0.55 + Phi(y) e^(y^2/2), which is more: for e^(y^2/2) < 4 as Phi >=
    1/2, and beyond, y > 1.6, as Phi > 0.9.

    The mass has four functions and ten operations: it is raised by 64u. May not be lowered.
    """
    square = mu * mu
    factor = jnp.exp(mu / 8) * (1 + mu * math.sqrt(math.pi / 2) * jnp.exp(square / 8))
    is_wide = (sign < 0) & (mu >= 1)
    mass = jnp.where(is_wide, (0.55 * math.sqrt(2 * math.pi)) * mu, square * jnp.sqrt(1 + mu) * factor)
    return Smoothing(
        half=square / 2,
        mean=jnp.where(is_wide, 0.0, square / 2),
        bump=jnp.where(sign > 0, 0.0, mass * (1 + 64 * roundoff())),
        wider=square / 2 * jnp.where(is_wide, 1.0, 1 + mu),
    )


class Chosen(NamedTuple):
    """A line that is chosen: its order, spacing, and cumulants of one run of each row."""

    order: Array
    spacing: Array
    cumulants: Array


def choose_line(found: Orders, starts: Array, log_targets: Array, side: int) -> Chosen:
    """Returns the line for values of eps (q,) with log delta (q,).

    On the line t the alias at eps + L, times e^(tL), is bounded by e^(-(a - t) L) of Chernoff's bound at a > t, and
    that at eps - L by e^(-(t - a) L) of that at a < t, or of 1 at a = 0. Each L will do for which both are e^-cut of
    delta.
    Smoothing then costs about (mu t)^2 of delta; rounding some 2^20 u of the height above the least. Tightness only.
    """
    lines, zero = found.orders, jnp.zeros(1, found.orders.dtype)
    orders, logs = jnp.concatenate([lines, zero]), jnp.concatenate([found.log_chernoff, zero])
    room = jnp.max(logs[:, None] - orders[:, None] * starts[None] - log_targets[None], 1) + cut(side)
    apart = orders[:, None] - lines[None]
    needed = jnp.maximum(room, cut(side) / 2)[:, None] / jnp.abs(apart)
    lengths = jnp.max(jnp.min(jnp.where(jnp.stack([apart > 0, apart < 0]), needed[None], jnp.inf), 1), 0)
    heights = (found.cumulants - jnp.log(lines) - jnp.log1p(lines))[:, None] - lines[:, None] * starts[None]
    excess = jnp.max(heights - jnp.min(heights, 0)[None], 1)
    saddle = jnp.max(jnp.where(excess == jnp.min(excess), lines, 0.0))
    smoothing = 2 * cut(side) * (lengths / (2 * math.pi * side**2)) ** 2 * saddle * (1 + saddle)
    cost = smoothing + 2.0**20 * roundoff() * jnp.exp(jnp.minimum(excess, 80.0))
    is_best = cost == jnp.min(jnp.where(cost < jnp.inf, cost, jnp.inf))
    columns = jnp.concatenate([jnp.stack([lines, lengths], 1), found.rows], 1)
    order, length, *cumulants = jnp.max(jnp.where(is_best[:, None], columns, -jnp.inf), 0)
    # Few digits, such that multiples of the spacing up to the number of frequencies are exact.
    info = jnp.finfo(lines.dtype)
    spacing = jax.lax.reduce_precision(2 * math.pi / length, info.nexp, info.nmant - 2 * side.bit_length())
    return Chosen(order, spacing, jnp.stack(cumulants))


class Transform(NamedTuple):
    """The transform of a row's tilted law about its mean, at the frequencies of a line.

    Attributes:
        parts (2, side, side): real and imaginary part of E_t[e^(iwX)] - 1.
        error (): bound on the error of these as complex numbers, over w.
        surplus, surplus_error (): tilted mass less 1, which is about 0, and a bound on its error.
        mean (): the mean about which it is.
    """

    parts: Array
    error: Array
    surplus: Array
    surplus_error: Array
    mean: Array


def transform(
    losses: Array, masses: Array, excess: Array, order: Array, cumulant: Array, spacing: Array, side: int
) -> Transform:
    """Returns the transform of one row (n,) at order t, given its cumulant g, roughly.

    Write a = t y - g for an atom's exponent. The tilted mass less 1 is the sum of p (e^a - 1) and of p - 1, whatever g
    is; weights are w = p e^a; and the mean c may be any number near the mean: the transform is taken of X = y - c.

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
    |B|: 3 n + 22 units of the sum of w |w x|, with those of the three's sum and of its sum with 1 later.

    All but the surplus are thus a multiple of w times the sum of the weights times |x|.
    """
    u, n = roundoff(), masses.shape[-1]
    lever, there = order * losses, masses > 0
    exponent = jnp.where(there, lever - cumulant, 0.0)
    grown, weights = jnp.expm1(exponent), masses * jnp.exp(exponent)
    units = jnp.abs(lever) + jnp.abs(exponent)
    terms = jnp.stack([masses * grown, masses * jnp.abs(grown), weights * units, weights * losses])
    gained, moved, off, mean = terms.sum(-1)
    surplus = gained + excess
    flushed = n * jnp.finfo(masses.dtype).tiny
    surplus_error = SLACK * (u * ((9 + n) * moved + off + 2 * (jnp.abs(gained) + jnp.abs(excess))) + flushed)
    x = jnp.where(there, losses - mean, 0.0)
    spread = weights * jnp.abs(x)
    first, second = jnp.stack([spread, spread * units]).sum(-1)
    error = SLACK * ((u * (55 + side + 3 * n) + jnp.abs(surplus) + surplus_error) * first + u * second)
    angles = (spacing * x)[None] * jnp.asarray([[1.0], [side]], x.dtype)
    start = jnp.stack(cosm1_and_sin(angles))  # (parts, tables, n)

    def power(table: Array, _: Any) -> tuple[Array, Array]:
        (re, im), (one_re, one_im) = table, start
        product = jnp.stack([re * one_re - im * one_im, re * one_im + im * one_re])
        return (table + start) + product, table

    # Each step multiplies both tables' powers by their first.
    _, tables = jax.lax.scan(power, jnp.zeros_like(start), None, side)
    # Beside each table of powers less 1 stands a row for the parts that only the other table turns.
    inner, outer = tables[:, :, 0], tables[:, :, 1] * weights[None, None]  # (side, parts, n)
    both = jnp.einsum("bcn,adn->cdab", inner, outer, precision="highest")
    alone = jnp.einsum("bcn,n->cb", inner, weights, precision="highest")[:, None, :] + outer.sum(-1).T[:, :, None]
    parts = jnp.stack([both[0, 0] - both[1, 1], both[0, 1] + both[1, 0]]) + alone
    return Transform(parts, error, surplus, surplus_error, mean)


def lay_line(runs: Runs, found: Orders, starts: Array, log_targets: Array, side: int) -> Line:
    """Returns a line for values of eps (q,) at which log delta is about (q,).

    With r the surplus of a row, e^(K(z) - z eps) is the product over the rows of (e^g (1 + r))^k e^(-t eps), the common
    factor, and of phi(w)^k e^(iw (k c - eps)), where phi is off by at most ``error`` w.

    *Powers.* If each factor is off by at most e |phi|, their product is off by at most prod (1 + e)^k - 1 of itself.

    *Moduli and angles*, in units of roundoff, with x, y the parts of phi - 1. The modulus's square less 1 is right to
    3 |x (2 + x)| + 2 y^2 + itself, its logarithm to 8 of itself, so that log |phi| is to 12 |x| + 4 y^2 + 9 |log phi|
    (where the square is below 3/4 it is right to 3 units of 1, and |x| is at least .13). The argument is right to 8 of
    itself, and one for 1 + x. Powers and sums add m + 2 of both. A modulus below u is not told from u: ``error`` w is
    above that, for it is at least (3 n) u (1 - |phi|).

    *Phase.* w times the distance of start from the sum of means errs by a unit of itself, the sum of all angles by
    their sizes, and cosine and sine by seven: nine of all angles, and 13 of those of the kernel, which err by four
    themselves. That distance itself errs by the rounding of k c, m +
    3 units: this moves eps, and nothing else (``drift``).

    *Kernel.* z (z + 1) has a modulus of at least t (t + 1) + w^2; its parts err by 4 units of it. Its inverse, two
    exponentials and six products err by 40, and the exponents by 4 of mu^2 (t (t + 1) + w^2) (1 + mu). Smoothing may be
    by any mu; that it is mu is counted with the exponents.

    *End.* Frequencies from W on are left out. What falls with w sums to at most its value at W times the spacing and
    its integral from W on: with h = mu^2/2 that of e^(-h w^2)/w^2 is at most e^(-h W^2)/(2 h W^3), and that of
    e^(-h w^2) at most e^(-h W^2)/(2 h W). A transform's modulus is at most 1 there, in units of the common factor.
    """
    u, tiny = roundoff(), jnp.finfo(runs.masses.dtype).tiny
    (rows, n), count = runs.masses.shape, side * side
    t, spacing, cumulants = chosen = choose_line(found, starts, log_targets, side)
    start = jnp.mean(starts)

    def of_row(row: Any) -> Transform:
        losses, masses, excess, cumulant = row
        return transform(losses, masses, excess, chosen.order, cumulant, chosen.spacing, side)

    given = runs.losses, runs.masses, runs.excess, cumulants
    if rows == 1:
        each = jax.tree.map(lambda leaf: leaf[None], of_row(jax.tree.map(lambda leaf: leaf[0], given)))
    else:
        each = jax.lax.map(of_row, given)
    index = np.arange(count, dtype=np.float64).reshape(side, side)
    w = spacing * jnp.asarray(index, t.dtype)
    # The characteristic function to the power of the runs.
    x, y = each.parts[:, 0], each.parts[:, 1]
    real, imaginary = 1 + x, y * y
    excess, square = x * (2 + x) + imaginary, jnp.maximum(real * real + imaginary, u * u)
    log_size = 0.5 * jnp.where(excess > -0.25, jnp.log1p(jnp.maximum(excess, -0.25)), jnp.log(square))
    argument = jnp.arctan2(y, real)
    doubt = jnp.log1p((each.error[:, None, None] * w[None] + 16 * n * tiny) * jnp.exp(-log_size))
    units = 12 * jnp.abs(x) + 4 * imaginary + (11 + rows) * (jnp.abs(log_size) + jnp.abs(argument))
    log_modulus, phase, grows, units = runs.total(jnp.stack([log_size, argument, doubt, units], 1))
    # What follows of the rows without an axis of frequencies.
    surplus = jnp.abs(each.surplus) + each.surplus_error
    logs = cumulants + jnp.log1p(each.surplus)
    # A surplus that is not small says that the cumulants were none.
    unit_error = jnp.where(surplus < 0.25, each.surplus_error / jnp.maximum(1 - surplus, 0.5), jnp.inf)
    unit_error = unit_error + u * ((rows + 3) * jnp.abs(logs) + jnp.abs(cumulants) + 8 * surplus)
    unit, unit_error, center, drift = runs.total(jnp.stack([logs, unit_error, each.mean, jnp.abs(each.mean)], 1))
    drift = SLACK * u * ((rows + 3) * drift + 3 * jnp.abs(start))
    far = start - center
    turn = phase - far * w
    # The kernel, with its smoothing, and the bump.
    end = count * spacing
    half, mean, bump, wider = smoothing_of(math.sqrt(2 * cut(side)) / end, runs.sign)
    plus, least, square = t * (t + 1), t * t, w * w
    d_re, d_im = plus - square, (2 * t + 1) * w
    inverse = 1 / (d_re * d_re + d_im * d_im)
    weight = spacing / math.pi * jnp.asarray(np.where(index == 0, 0.5, 1.0), t.dtype)
    height = jnp.exp(half * (least - square) + mean * t) * weight
    low = bump * (jnp.exp(wider * (least - square)) * weight)
    bends = w[None] * jnp.reshape(jnp.stack([2 * half * t + mean, 2 * wider * t]), (2, 1, 1))
    less, sine = cosm1_and_sin(turn[None] + bends)
    cosine = 1 + less
    modulus = jnp.exp(log_modulus)
    re = height * inverse * (cosine[0] * d_re + sine[0] * d_im) - low * cosine[1]
    im = height * inverse * (sine[0] * d_re - cosine[0] * d_im) - low * sine[1]
    kernel = height * jnp.sqrt(inverse) + low
    units = (
        units
        + 9 * jnp.abs(turn)
        + 13 * jnp.sum(bends, 0)
        + jnp.abs(far) * w
        + 60
        + 8 * (half + wider) * (plus + square)
    )
    grown = modulus * jnp.expm1(jnp.minimum(grows, 1.0))
    grown = jnp.where(grows < 1, grown, jnp.exp(log_modulus + grows))
    sizes = modulus * kernel
    # Nodes' sizes, levers and errors.
    size, lever, off = jnp.stack([sizes, sizes * w, kernel * grown + u * (sizes * units)]).sum((-1, -2))
    after = jnp.exp(half * (least - end * end) + mean * t) * (spacing / (end * end) + 1 / (2 * half * end * end * end))
    after = after + bump * jnp.exp(wider * (least - end * end)) * (spacing + 1 / (2 * wider * end))
    # Aliases: Chernoff's bounds at the orders beside t, and delta <= 1 at order 0.
    none = jnp.zeros(1, t.dtype)
    orders, log_beside = jnp.concatenate([found.orders, none]), jnp.concatenate([found.log_chernoff, none])
    fall = -jnp.abs(orders - t) * (2 * math.pi / spacing) * (1 - 8 * u)
    return Line(
        sign=runs.sign,
        order=t,
        start=start,
        spacing=spacing,
        spectrum=jnp.stack([modulus * re, modulus * im]),
        unit=unit,
        unit_error=SLACK * unit_error + drift * t,
        allowance=SLACK * (off + after / math.pi + 16 * count * tiny),
        size=size,
        lever=lever,
        orders=orders,
        log_aliases=log_beside + fall - jnp.log(-jnp.expm1(fall)) + 16 * u * (1 + jnp.abs(log_beside) + jnp.abs(fall)),
        drift=drift,
        smoothing=2 * half * plus,
    )


def read(line: Line, at: Array) -> tuple[Array, Array, Array]:
    """Returns a bound on log E f(S - eps), and an estimate with its slope in eps.

    *Rounding.* The angle w (eps - start), of a power in each of two tables, errs by 3 + 7 units of itself, a turn by 16
    units; sums over nodes by their number. The common factor errs by four units of its two parts, and the logarithm of
    the sum by 8 of itself. Aliases are subtracted as they are bounded, with the rounding of their logs.
    """
    u, side, tiny = roundoff(), line.spectrum.shape[-1], jnp.finfo(at.dtype).tiny
    t, distance, sign = line.order, at - line.start, line.sign
    counts = np.arange(side) * np.array([[side], [1.0]])
    less, sine = cosm1_and_sin((distance * line.spacing) * jnp.asarray(counts, at.dtype))
    cosine = 1 + less
    (outer_c, inner_c), (outer_s, inner_s) = cosine, sine
    outer_c, outer_s, inner_c, inner_s = outer_c[:, None], outer_s[:, None], inner_c[None], inner_s[None]
    turn_c, turn_s = outer_c * inner_c - outer_s * inner_s, outer_s * inner_c + outer_c * inner_s
    re, im = line.spectrum
    w = line.spacing * jnp.asarray(counts[0][:, None] + counts[1], at.dtype)
    value, fall = jnp.stack([re * turn_c + im * turn_s, w * (im * turn_c - re * turn_s)]).sum((-1, -2))
    rounding = SLACK * u * ((side * side + 24) * line.size + 11 * jnp.abs(distance) * line.lever)
    common = line.unit_error + 4 * u * (jnp.abs(line.unit) + t * jnp.abs(at))
    log_unit = line.unit - t * at
    logs = line.log_aliases - line.orders * at - log_unit + common
    logs = logs + 8 * u * (jnp.abs(line.log_aliases) + line.orders * jnp.abs(at))
    beside = jnp.stack([line.orders > t, line.orders < t])
    aliases = jnp.sum(jnp.exp(jnp.min(jnp.where(beside, logs, jnp.inf), -1)))
    bound = value + sign * (line.allowance + rounding) - jnp.where(sign > 0, 0.0, aliases)
    log_bound = jnp.log(jnp.maximum(bound, tiny))
    log_bound = jnp.where((bound > tiny) | (sign > 0), log_bound, -jnp.inf)
    margin = common + 10 * u * (1 + jnp.abs(log_bound))
    log_bound = log_bound + log_unit + sign * jnp.where(log_bound > -jnp.inf, margin, 0.0)
    return log_bound, jnp.log(value) + log_unit, fall / value - t


# ----------------------------------------------------------------------------------------------------
# Questions
# ----------------------------------------------------------------------------------------------------

NEWTON, ASIDE = 8, 4
"""Numbers of Newton's steps, and of looks beside the root, the first at the root itself. Tightness only."""


def solve(line: Line, rare: Rare, log_target: Array, shift: Array) -> tuple[Array, Array]:
    """Returns the eps at which delta's bound is about a target, and a bound on eps.

    A bound is returned only where delta's was evaluated, and was on the right side of the target: after Newton's steps
    there are looks at distances from the root that grow by 2^8.
    """
    u, sign = roundoff(), line.sign
    doubt = 10 * u * (1 + jnp.abs(log_target))

    def look(i: Any, state: Any) -> Any:
        root, best = state
        aside = jnp.where(i > NEWTON, jnp.exp2(8.0 * (i - NEWTON) + 4.0) * u, 0.0)
        at = jnp.maximum(root + sign * (aside * (jnp.abs(root) + 1 / line.order)), -sign * shift)
        log_bound, log_value, slope = read(line, at)
        more, fall = rare.bound(at, sign)
        # The logarithm of a sum of two is right to ten units and its own eight.
        is_value = (log_value < jnp.inf) & ((log_bound > -jnp.inf) | (more <= 0))
        value = jnp.where(is_value, jnp.exp(log_value), 0.0)
        log_value, slope = jnp.log(value + more), (value * slope + fall) / (value + more)
        log_bound = jnp.where(more > 0, jnp.logaddexp(log_bound, jnp.log(more)) + sign * 2 * doubt, log_bound)
        over = log_bound - log_target + sign * doubt
        # An eps is a bound where delta is on the right side of the target there.
        bound = jnp.where(sign * over <= 0, jnp.maximum(at + sign * shift, 0.0) * (1 + sign * 2 * u), best)
        best = sign * jnp.minimum(sign * best, sign * bound)
        most = jnp.where(is_value, jnp.pi / (2 * line.spacing), jnp.abs(at) / 4)
        # The last steps are to the root of the bound, the others to that of the estimate, which need not be a bound.
        is_near = (i >= NEWTON // 2) & (jnp.abs(over) < jnp.inf)
        move = jnp.clip(-jnp.where(is_near, over, log_value - log_target) / slope, -most, most)
        return jnp.where((i < NEWTON) & (jnp.abs(move) < jnp.inf), at + move, root), best

    nothing = jnp.where(sign > 0, jnp.inf, jnp.zeros_like(line.start))
    return jax.lax.fori_loop(0, NEWTON + ASIDE, look, (line.start, nothing))


def _at_top(runs: Runs, room: Array, log_target: Array) -> Array:
    """Returns a bound on eps by the supremum of the sum, s, and the probability p of all losses being the largest.

    E f(S - eps) is at most f(s - eps), and at least p f(s - eps), as f rises: so eps is between s + log(1 - delta/p)
    and s + log(1 - delta). Few runs of a law with an atom at its top, and deltas close to 0, need no line.

    *Rounding.* A logarithm errs by 8u, that of p by k times that and k u; a ratio by 4 of 1 and of its logarithms.
    """
    u, sign = roundoff(), runs.sign
    there = runs.masses > 0
    highest = jnp.max(jnp.where(there, runs.losses, -jnp.inf), -1)
    log_mass = jnp.max(jnp.where(runs.losses == highest[:, None], runs.log_masses, -jnp.inf), -1)
    rows = runs.counts.size
    log_p, doubt, size = runs.total(jnp.stack([log_mass, 1 + jnp.abs(log_mass), runs.largest], 1))
    log_share = log_target - log_p + u * ((12 + rows) * doubt + 16 * (1 + jnp.abs(log_target)))
    share = jnp.where(sign > 0, room * (1 - 4 * u), jnp.exp(log_share) * (1 + 16 * u))
    less = log_complement(jnp.clip(share, 0.0, 1.0)) * (1 - 16 * sign * u)
    end = jnp.where(sign > 0, runs.most, runs.most - 2 * (4 + rows) * u * size)
    found = end + less + 2 * sign * (runs.shift + u * (jnp.abs(end) + jnp.abs(less)))
    return jnp.where(jnp.isnan(found), jnp.where(sign > 0, jnp.inf, 0.0), jnp.maximum(found, 0.0))


def _epsilon_of(sign: Array, laws: Atoms, counts: Array, delta: Array, side: int) -> Array:
    """Returns the bound on epsilon of one side."""
    runs = compose(sign, laws, counts)
    u, tiny = roundoff(), jnp.finfo(delta.dtype).tiny
    room = delta - runs.infinite
    log_target = jnp.log(jnp.maximum(room, tiny))
    lowest = runs.total(jnp.minimum(jnp.min(jnp.where(runs.masses > 0, runs.losses, 0.0), -1), 0.0))
    # Beyond the highest loss that counts all runs together have e^-cut of delta.
    tails = runs.counts[:, None] * jax.lax.cumsum(runs.masses, 1, reverse=True)
    counts_for = tails > math.exp(-cut(side)) / runs.counts.size * jnp.maximum(room, 0.0)
    highest = jnp.max(jnp.where(counts_for, runs.losses, -jnp.inf))
    # Above, a target below the normal numbers is not met.
    log_target = jnp.where((sign < 0) | (room > 2 * tiny), log_target, -jnp.inf)

    def goes_on(state: Any) -> Array:
        i, nats, *_ = state
        return (i < ROUNDS) & ~(nats < MOVED)

    def improve(state: Any) -> Any:
        i, _, start, best = state
        # From the second round on there is an eps, and atoms so large that the sum is above it are taken out. Below any
        # threshold will do, and the last is eps itself.
        is_last = (sign < 0) & (i == ROUNDS - 1)
        threshold = jnp.where(i > 0, jnp.where(is_last, start, 1.02 * start - lowest), jnp.inf)
        threshold = jnp.minimum(threshold, highest)
        rest, rare = split(runs, threshold)
        share, _ = rare.bound(start, sign)
        target = jnp.log(jnp.maximum(jnp.exp(log_target) - share, 1e-3 * jnp.exp(log_target)))
        target = jnp.where(share > 0, target, log_target)
        found = search(rest, start, target, i > 0)
        start = jnp.where(i > 0, start, found.guess)
        line = lay_line(rest, found, start[None], target[None], side)
        shift = runs.shift + line.drift
        root, bound = solve(line, rare, log_target, shift)
        # A root far off, without a bound about it, is none.
        is_bound = jnp.where(sign > 0, bound < jnp.inf, bound > 0.9 * root)
        is_root = jnp.isfinite(root) & (is_bound | (root > start / 4))
        root = jnp.where(is_root, jnp.maximum(root, 0.0), start)
        # By Chernoff's bound on the rest, and P(A).
        left = jnp.where(log_target > -jnp.inf, room, 0.0) * (1 - 4 * u) - rare.p * (1 + rare.p_error)
        left = jnp.log(jnp.maximum(left, 0.0))
        left = left - 16 * u * (1 + jnp.abs(left))
        by_chernoff = jnp.maximum(chernoff_epsilon(found, left) + shift, 0.0) * (1 + 4 * u)
        bound = jnp.where(sign > 0, jnp.fmin(bound, by_chernoff), bound)
        is_better = sign * bound < sign * best
        # Where the smoothing is not small another round may take out rare losses.
        nats = jnp.where((line.smoothing < WIDE) & is_bound & is_root, jnp.abs(root - start) * line.order, jnp.inf)
        return i + 1, nats, root, jnp.where(is_better, bound, best)

    # Each round lays a line, the later ones for the eps found.
    first = (
        jnp.int32(0),
        jnp.inf * jnp.ones_like(delta),
        jnp.zeros_like(delta),
        jnp.where(sign > 0, jnp.inf, 0.0 * delta),
    )
    *_, best = jax.lax.while_loop(goes_on, improve, first)
    top = _at_top(runs, room, log_target)
    best = jnp.where(sign * top < sign * best, top, best)
    # Where more than delta is infinite, no eps will do.
    return jnp.where(sign > 0, jnp.where(room >= 0, best, jnp.inf), jnp.where(room < 0, jnp.inf, best))


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
    delta, counts = (jnp.asarray(value, laws.masses.dtype) for value in (delta, counts))
    upper, lower = _both(lambda sign, rows: _epsilon_of(sign, rows, counts, delta, side), laws)
    is_known = _are_counts(counts) & (delta >= 0) & (delta <= 1)
    upper = jnp.where(is_known, jnp.where(delta < 1, upper, 0.0), jnp.inf)
    return jnp.where(is_known & (delta < 1), lower, 0.0), upper


def _both(of_side: Any, laws: Atoms) -> Any:
    """Returns the results of a function of a sign and of a side's laws, above and below."""
    losses, masses, infinite = (jnp.moveaxis(leaf, 1, 0) for leaf in laws[:3])
    signs = jnp.asarray([1.0, -1.0], losses.dtype)
    return jax.vmap(of_side)(signs, Atoms(losses, masses, infinite, jnp.stack([laws.shift, laws.shift])))


def _are_counts(counts: Array) -> Array:
    return jnp.all((counts >= 0) & (counts < jnp.inf) & (counts == jnp.round(counts)))


def delta(
    laws: Atoms, counts: ArrayLike, epsilon: ArrayLike, *, side: int = SIDE
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns lower and upper bounds on the delta of a composition at an epsilon; arguments as for :func:`epsilon`."""
    lower, upper = curve(laws, counts, jnp.asarray(epsilon)[None], side=side)
    return lower[0], upper[0]


def _curve_of(sign: Array, laws: Atoms, counts: Array, epsilons: Array, side: int) -> Array:
    """Returns the bounds on delta (q,) of one side."""
    runs = compose(sign, laws, counts)
    u, tiny = roundoff(), jnp.finfo(epsilons.dtype).tiny
    # A line is made for the least and the largest.
    which = jnp.stack([jnp.argmin(epsilons), jnp.argmax(epsilons)]) if epsilons.size > 1 else np.zeros(1, int)
    ends = epsilons[which]
    lowest = runs.total(jnp.minimum(jnp.min(jnp.where(runs.masses > 0, runs.losses, 0.0), -1), 0.0))
    of_rest = jax.vmap(Rare.bound, (None, 0, None))

    def goes_on(state: Any) -> Array:
        i, nats, *_ = state
        return (i < ROUNDS) & ~(nats < MOVED)

    def improve(state: Any) -> Any:
        i, _, targets, best = state
        # From the second round on atoms so large that the sum is above eps are taken out, as for epsilon.
        is_last = (sign < 0) & (i == ROUNDS - 1)
        threshold = jnp.where(i > 0, jnp.where(is_last, ends[0], 1.02 * ends[-1] - lowest), jnp.inf)
        rest, rare = split(runs, threshold)
        found = search(rest, jnp.mean(ends), jnp.zeros_like(ends[0]), True)
        # At first, about the nats by which Chernoff's bound is above delta. Tightness only.
        targets = jnp.where(i > 0, targets, jax.vmap(chernoff_delta, (None, 0))(found, ends) - 2.0)
        share, _ = of_rest(rare, ends, sign)
        left = jnp.log(jnp.maximum(jnp.exp(targets) - share, 1e-3 * jnp.exp(targets)))
        line = lay_line(rest, found, ends, jnp.where(share > 0, left, targets), side)
        at = epsilons - sign * (runs.shift + line.drift + 2 * u * epsilons)
        logs, *_ = jax.vmap(read, (None, 0))(line, at)
        logs = jnp.where(sign > 0, jnp.fmin(logs, jax.vmap(chernoff_delta, (None, 0))(found, at)), logs)
        more, _ = of_rest(rare, at, sign)
        bounds = jnp.exp(logs) * (1 + sign * (16 * u)) + jnp.where(sign > 0, tiny, 0.0) + more + runs.infinite
        bounds = bounds * (1 + sign * (8 * u))
        best = jnp.where(sign * bounds < sign * best, bounds, best)
        seen = jnp.log(jnp.maximum(best[which], tiny))
        # Where the smoothing is not small another round may take out rare losses.
        nats = jnp.where(line.smoothing < WIDE, jnp.max(jnp.abs(seen - targets)), jnp.inf)
        return i + 1, nats, seen, best

    first = jnp.int32(0), jnp.inf * ends[0], ends, jnp.where(sign > 0, 1.0, jnp.zeros_like(epsilons))
    # Each round lays a line, the later ones for the deltas found.
    *_, best = jax.lax.while_loop(goes_on, improve, first)
    is_over = (sign > 0) & (epsilons >= runs.most + 2 * runs.shift)
    return jnp.clip(jnp.where(is_over, jnp.minimum(best, runs.infinite), best), 0.0, 1.0)


def curve(
    laws: Atoms, counts: ArrayLike, epsilons: Array, *, side: int = SIDE
) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
    """Returns lower and upper bounds on delta at several values of epsilon (q,), from one spectrum of each side.

    They hold for any values. They are close where delta changes by a few factors of ten, for one line is to serve all.
    """
    epsilons, counts = (jnp.asarray(value, laws.masses.dtype) for value in (epsilons, counts))
    upper, lower = _both(lambda sign, rows: _curve_of(sign, rows, counts, epsilons, side), laws)
    is_known = _are_counts(counts) & (epsilons >= 0)
    return jnp.where(is_known, lower, 0.0), jnp.where(is_known & ~jnp.isnan(upper), upper, 1.0)
