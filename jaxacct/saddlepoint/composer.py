"""The contour composer: brackets of delta and epsilon of any number of runs, from laws that are arrays.

One program serves every mechanism, for its input is the law of one run's privacy loss as atoms
(:class:`~jaxacct.mechanisms.atoms.Atoms`), one row for each mechanism of a sequence, and the numbers of runs. Its size
and time do not depend on these. Let S be the sum of the losses of all runs under P, K(z) = sum of k log E[e^(z Y)] over
the rows its cumulant function, and f(v) = (1 - e^-v)+. Then delta(eps) is the mass of infinite losses and

    E f(S - eps) = (1/2 pi) integral of e^(K(z) - z eps) / (z (z + 1)) dw,    z = t + iw, for any t > 0.

*Smoothing.* The transform of atoms does not fall with w, so the kernel has to. Above, S is composed with a Gaussian
mechanism of small mu, whose loss G is normal with mean mu^2/2 and variance mu^2. That only adds privacy loss: E f(S +
G - eps) is an upper bound, and the kernel is times e^(z (z + 1) mu^2 / 2). Below, F(v) = E f(v + G) exceeds f by no
more than a *bump*, a multiple of the density of a normal law, which is subtracted (:func:`bump_mass`). Both cost about
mu^2 of delta's second derivative, and end the line in closed form.

*Aliases.* The rule with spacing dw sums to the quantity at eps and, for every j but 0, the quantity at eps + j L times
e^(t j L), L = 2 pi/dw. All these are positive above, where nothing need be subtracted. Below they are bounded by
Chernoff's bounds at orders on either side of t, and by delta <= 1.

*The line.* Any t > 0 will do. Of the orders that the search has looked at that one is taken whose bracket will be the
narrowest: the shorter L may be, the less smoothing there is; the higher the integrand, the more rounding.

*Frequencies by powers.* The transform at side^2 frequencies is made of two tables of powers and one product of
matrices. It is summed as e^(iwX) - 1, X the distance from the tilted mean, which is small where w is, and so keeps its
digits when it is raised to the power of the runs.

In reading order: :class:`Runs` (the composition); :func:`search` (orders and cumulants); :func:`lay_line` (a line, and
the spectrum on it); :func:`read` (delta's bounds at any eps from a line); :func:`epsilon`, :func:`delta` and
:func:`curve`, which ask these.

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
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import log_complement, log_peak

SLACK = 1.01
"""Factor of every bound on rounding, over errors of the bound's own rounding and products of errors. May not be
lowered."""

SIDE = 32
"""Number of powers in each of the two tables; there are its square of frequencies. A power of two."""

LADDER = np.array([0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 1.9, 2.5, 3.5])
"""Orders of the last look, over the order of least height: lines to choose from, and Chernoff bounds. Tightness only."""

LOOKS = np.stack([2.0 ** np.linspace(-24, 36, 16), 2.0 ** np.linspace(-4, 4, 16), 2.0 ** np.linspace(-0.6, 0.6, 16), LADDER])
"""Orders of each look, over the best of the look before. Tightness only."""

ROUNDS = 3
"""Largest number of lines. A second is laid where the first was chosen for an eps far from the one found."""

SIDES = np.array([1.0, -1.0])
"""Signs of errors: above, below."""


def cut(side: int) -> float:
    """Returns the nats below delta at which aliases, and the smoothed integrand's end, lie. Tightness only.

    Smoothing costs about 1/side^4 of delta, so nothing is gained by going further than that.
    """
    return 4 * math.log(side) - 2


class Runs(NamedTuple):
    """A composition: rows of laws with their numbers of runs, and what follows of them at once.

    Attributes:
        losses, masses, log_masses (m, 2, n): atoms of the rows, above and below.
        excess (m, 2): sum of the masses less 1, without cancellation.
        counts (m,): numbers of runs.
        infinite (2,): P's mass of an infinite sum, at most and at least.
        largest (m, 2): largest |loss|.
        most (2,): the supremum of the sum, rounded up.
        shift (): bound on the error of the sum that those of the losses make.
        valid (): whether the counts are numbers of runs.
    """

    losses: Array
    masses: Array
    log_masses: Array
    excess: Array
    counts: Array
    infinite: Array
    largest: Array
    most: Array
    shift: Array
    valid: Array

    def total(self, values: Array) -> Array:
        """Returns the sum over all runs of a quantity of each row, the first axis. Rows without runs do not count."""
        counts = jnp.reshape(self.counts, (-1,) + (1,) * (values.ndim - 1))
        return jnp.sum(jnp.where(counts > 0, counts * values, 0.0), axis=0)


def compose(laws: Atoms, counts: ArrayLike) -> Runs:
    """Returns the composition of rows of laws, each leaf with a leading axis (m,), run so many times each (m,).

    *Excess.* A mass is split into a multiple of 4u and a rest of at most 2u. Sums of the first are exact while they are
    below 2, in any order, and so is the difference from 1; the rests add up to 2nu, and err by n u of that.

    *Infinite sums.* Let M_i be the mass of row i with infinite losses, and c_i that of infinite losses. The product of
    M_i^k less that of (M_i - c_i)^k is the product of M_i^k times 1 - prod (1 - c_i/M_i)^k. Above, 1 - c/M may be
    replaced by 1 - c where M >= 1; and where M < 1 by monotony: x^k - (x - c)^k rises with x. Each function errs by 8u,
    and a sum over m rows by m u: 40 + m units in all, besides the errors of M.
    """
    u, tiny = roundoff(), jnp.finfo(laws.masses.dtype).tiny
    losses, masses = laws.losses, laws.masses
    counts = jnp.asarray(counts, masses.dtype)
    rows, _, size = masses.shape
    there = masses > 0
    coarse = jnp.round(masses / (4 * u)) * (4 * u)
    excess = (jnp.sum(coarse, -1) - 1) + jnp.sum(masses - coarse, -1)
    largest = jnp.max(jnp.where(there, jnp.abs(losses), 0.0), -1)
    runs = Runs(
        losses=losses,
        masses=masses,
        log_masses=jnp.where(there, jnp.log(jnp.maximum(masses, tiny)), -jnp.inf),
        excess=excess,
        counts=counts,
        infinite=jnp.zeros(2),
        largest=largest,
        most=jnp.zeros(2),
        shift=jnp.zeros(()),
        valid=jnp.all(counts >= 0) & jnp.all(counts < jnp.inf),
    )
    # The mass of a row, to 2u and the rounding of its parts; its logarithm to 8u more of itself.
    whole = excess + laws.infinite
    log_above = jnp.log(1 + jnp.maximum(whole[:, 0], 0.0)) * (1 + 8 * u) + 4 * u * (jnp.abs(whole[:, 0]) > 0)
    mass = 1 + whole[:, 1]
    log_below = jnp.log(jnp.maximum(mass, tiny))
    log_below = log_below - 8 * u * jnp.abs(log_below) - 4 * u
    share = jnp.minimum(laws.infinite[:, 1] / jnp.maximum(mass, tiny), 1.0)
    none = runs.total(jnp.stack([log_complement(laws.infinite[:, 0]), log_complement(share)], -1))
    scale = jnp.exp(runs.total(jnp.stack([log_above, log_below], -1)))
    infinite = -jnp.expm1(none) * scale * (1 + SIDES * (40 + 2 * rows) * u)
    highest = runs.total(jnp.max(jnp.where(there, losses, -jnp.inf), -1))
    return runs._replace(
        infinite=jnp.clip(infinite, 0.0, 1.0),
        most=highest + (4 + rows) * u * runs.total(largest),
        shift=runs.total(laws.shift) * (1 + (4 + rows) * u),
    )


# ----------------------------------------------------------------------------------------------------
# Orders: the search, and Chernoff's bounds
# ----------------------------------------------------------------------------------------------------


class Orders(NamedTuple):
    """The orders of the last look, with what is known there.

    Attributes:
        orders (j,): orders t > 0.
        rows (j, m, 2): cumulants of one run of each row.
        cumulants (j, 2): K of the sum.
        log_chernoff (j, 2): upper bounds on log of sup E f(S - eps) e^(t eps), of both laws.
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
    rows, _, size = runs.masses.shape

    def look(i: Any, state: Any) -> Any:
        orders = jnp.asarray(LOOKS, start.dtype)[i] * state[0]
        terms = runs.log_masses + orders[:, None, None, None] * runs.losses
        top = jnp.maximum(jnp.max(terms, -1), -1e6)
        each = top + jnp.log(jnp.sum(jnp.exp(terms - top[..., None]), -1))
        heights = runs.total(jnp.moveaxis(each[..., 0], 1, 0)) - jnp.log(orders) - jnp.log1p(orders)
        cost = jnp.where(is_given, heights - orders * start, (heights - log_target) / orders)
        best = jnp.min(jnp.where(cost < jnp.inf, cost, jnp.inf))
        return jnp.max(jnp.where(cost == best, orders, 0.0)), best, orders, each

    nothing = jnp.zeros((LADDER.size,), start.dtype), jnp.zeros((LADDER.size, rows, 2), start.dtype)
    # Each look narrows the ladder about the best order of the one before; the last is LADDER.
    _, best, orders, each = jax.lax.fori_loop(0, len(LOOKS), look, (jnp.ones_like(start), start, *nothing))
    cumulants, peak = runs.total(jnp.moveaxis(each, 1, 0)), log_peak(orders)[:, None]
    size_of_loss = orders[:, None, None] * runs.largest
    doubt = 9000 + size + 709 * (rows + 2) + (rows + 5) * size_of_loss
    doubt = runs.total(jnp.moveaxis(doubt, 1, 0)) + 30 * (1 + jnp.abs(peak)) + jnp.abs(cumulants)
    chernoff = cumulants + peak + SLACK * u * doubt
    return Orders(orders, each, cumulants, chernoff, jnp.maximum(best, 0.0))


def chernoff_delta(found: Orders, at: Array) -> Array:
    """Returns Chernoff's upper bound on log E f(S - eps), of the upper law."""
    logs, size = found.log_chernoff[:, 0], found.orders * jnp.abs(at)
    return jnp.min(logs - found.orders * at + 4 * roundoff() * (jnp.abs(logs) + size))


def chernoff_epsilon(found: Orders, log_target: Array) -> Array:
    """Returns the eps from which on Chernoff's bound is below a delta, of the upper law."""
    logs = found.log_chernoff[:, 0]
    room = logs - log_target + 4 * roundoff() * (jnp.abs(logs) + jnp.abs(log_target))
    return jnp.min(jnp.where(room < jnp.inf, room / found.orders, jnp.inf)) * (1 + 4 * roundoff())


# ----------------------------------------------------------------------------------------------------
# A line, and the spectrum on it
# ----------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """The integrand on a line of order t at frequencies w, but for the factor e^(-i w (eps - start)), and error bounds.

    Attributes:
        order, start (): t, and the eps about which the line is made.
        spacing (): the distance of frequencies, which has so few digits that its multiples are exact.
        spectrum (2, 2, side, side): real and imaginary parts, above and below, at w = spacing (side a + b).
        unit (2,): log of the common factor, but for -t eps.
        unit_error (2,): bound on its error.
        allowance (2,): bound on what the sum may be off by, rounding of :func:`read` aside.
        size, lever (2,): sums of the moduli, and of the moduli times w.
        orders (j,), log_aliases (j,): orders beside t, and logs of bounds on aliases on the order's side of eps, without
            the factor e^(-order eps), in units of 1.
        drift (): bound on the error of eps that rounding of the means makes.
    """

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


def bump_mass(mu: Array) -> Array:
    """Returns B, for which F - f is at most the density of N(0, mu^2 (1 + mu)) times B; F is f smoothed by mu.

    With x = |v|/mu, phi the normal density and R Mills' ratio (1 - Phi)/phi, F(v) - f(v) is, for v < 0,

        phi(x) e^(x mu/2 - mu^2/8) (R(x - mu/2) - R(x + mu/2)),

    and for v > 0 no more, with e^(-x mu/2) in place of e^(x mu/2). R is convex and falls, so the difference is at most
    mu |R'(x - mu/2)| <= mu |R'(-mu/2)| = mu (1 + (mu/2) R(-mu/2)) <= mu (1 + mu sqrt(pi/2) e^(mu^2/8)), as 1 - Phi <=
    1. And x mu/2 - x^2 mu/(2 (1 + mu)) is at most mu (1 + mu)/8, so that e^(x mu/2 - mu^2/8) is at most e^(mu/8)
    e^(x^2 mu/(2 (1 + mu))). Hence

        F - f <= mu/sqrt(2 pi) A e^(-x^2/(2 (1 + mu))),   A = e^(mu/8) (1 + mu sqrt(pi/2) e^(mu^2/8)),

    whose integral over v is mu^2 sqrt(1 + mu) A. Four functions and ten operations: raised by 64u.
    """
    factor = jnp.exp(mu / 8) * (1 + mu * math.sqrt(math.pi / 2) * jnp.exp(mu * mu / 8))
    return mu * mu * jnp.sqrt(1 + mu) * factor * (1 + 64 * roundoff())


def choose_line(
    found: Orders, starts: Array, log_targets: Array, side: int
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Returns the order of a line for values of eps (q,) with log delta (q,), its L, its cumulants, and Chernoff's.

    On the line t the alias at eps + L, times e^(tL), is bounded by e^(-(a - t) L) of Chernoff's bound at a > t, and that
    at eps - L by e^(-(t - a) L) of that at a < t, or of 1 at a = 0. Each L will do for which both are e^-cut of delta.
    Smoothing then costs about (mu t)^2 of delta; rounding some 2^20 u of the height above the least. Tightness only.
    """
    orders = jnp.concatenate([found.orders, jnp.zeros(1, found.orders.dtype)])
    logs = jnp.concatenate([found.log_chernoff[:, 1], jnp.zeros(1, found.orders.dtype)])
    lines = found.orders
    room = logs[:, None] - orders[:, None] * starts - log_targets + cut(side)
    apart = orders[:, None] - lines
    needed = jnp.maximum(jnp.max(room, 1), cut(side) / 2)[:, None] / jnp.abs(apart)
    above, below = (jnp.min(jnp.where(beside, needed, jnp.inf), 0) for beside in (apart > 0, apart < 0))
    lengths = jnp.maximum(above, below)
    heights = (found.cumulants[:, 0] - jnp.log(lines) - jnp.log1p(lines))[:, None] - lines[:, None] * starts
    excess = jnp.max(heights - jnp.min(heights, 0), 1)
    saddle = jnp.max(jnp.where(excess == jnp.min(excess), lines, 0.0))
    smoothing = 2 * cut(side) * (lengths / (2 * math.pi * side**2)) ** 2 * saddle * (1 + saddle)
    cost = smoothing + 2.0**20 * roundoff() * jnp.exp(jnp.minimum(excess, 80.0))
    is_best = cost == jnp.min(jnp.where(cost < jnp.inf, cost, jnp.inf))

    def at_best(values: Array) -> Array:
        return jnp.max(jnp.where(jnp.reshape(is_best, (-1,) + (1,) * (values.ndim - 1)), values, -jnp.inf), 0)

    # Few digits, such that multiples of the spacing up to the number of frequencies are exact.
    digits = jnp.finfo(lines.dtype).nmant
    spacing = jax.lax.reduce_precision(2 * math.pi / at_best(lengths), 11 if digits > 23 else 8, digits - 2 * side.bit_length())
    return at_best(lines), spacing, at_best(found.cumulants), at_best(found.rows), orders, logs


class Transform(NamedTuple):
    """The transform of a row's tilted law about its mean, at the frequencies of a line.

    Attributes:
        real, imaginary (2, side, side): parts of E_t[e^(iwX)] - 1.
        error (2,): bound on the error of these as complex numbers, over w.
        surplus, surplus_error (2,): tilted mass less 1, which is about 0, and a bound on its error.
        mean (2,): the mean about which it is.
    """

    real: Array
    imaginary: Array
    error: Array
    surplus: Array
    surplus_error: Array
    mean: Array


def transform(
    losses: Array, masses: Array, excess: Array, order: Array, cumulant: Array, spacing: Array, side: int
) -> Transform:
    """Returns the transform of one row (2, n) at order t, given its cumulants g (2,), roughly.

    Write a = t y - g for an atom's exponent. The tilted mass less 1 is the sum of p (e^a - 1) and of p - 1, whatever g
    is; weights are w = p e^a; and the mean c may be any number near the mean: the transform is taken of X = y - c.

    *Surplus.* The exponent errs by u (|t y| + |a|) =: u b; e^a - 1 by 8u of itself and e^a u b; the product by u, the
    sum by n u; the sums with the excess by u of each. So 9 + n units of p |e^a - 1|, one of w b.

    *Weights* err by (9 + b) u of themselves, and for the surplus, which they are not divided by.

    *Tables.* Let T = e^(i angle) - 1 be the first power less 1 and A_j = (1 + T)^j - 1. An angle, spacing x and times
    side, errs by 2u of itself, and T by 7 more (five for each part, :func:`.cosm1_and_sin`), 14 beyond 6 10^6: at most
    16u |angle|. With A_(j+1) = A_j + T + A_j T the products err by 3u |A_j T|, the sums by u (|A_j + T| + |A_(j+1)|),
    and |1 + T| = 1. As |A_j| <= min(2, j |angle|), after J powers all this is at most u J |angle| (16 + 6 + 2 + J): the
    three are those of T, of 3u |A_j T|, of T in the sums; J is that of A_j in the sums. So a table errs by (24 + side) u
    of the angle of its power, and both together by as much of w |x|, as (1 + A)(1 + B) - 1 moves by |dA| + |dB|.

    *Sums* over atoms of w A, w B and w A B: n + 3 units of the sizes' sum, times 1.5 for two parts, and |A B| <= |A| +
    |B|: 3 n + 18 units of the sum of w |w x|, with three units for the sums of the three.

    All but the surplus are thus a multiple of w times the sum of the weights times |x|.
    """
    u, n = roundoff(), masses.shape[-1]
    tiny = jnp.finfo(masses.dtype).tiny
    lever = order * losses
    exponent = lever - cumulant[:, None]
    exponent = jnp.where(masses > 0, exponent, 0.0)
    grown = jnp.expm1(exponent)
    weights = masses * jnp.exp(exponent)
    units = jnp.abs(lever) + jnp.abs(exponent)
    gained, moved, off, mean = jnp.stack(
        [masses * grown, masses * jnp.abs(grown), weights * units, weights * losses]
    ).sum(-1)
    surplus = gained + excess
    surplus_error = SLACK * (u * ((9 + n) * moved + off + 2 * (jnp.abs(gained) + jnp.abs(excess))) + n * tiny)
    x = jnp.where(masses > 0, losses - mean[:, None], 0.0)
    spread = weights * jnp.abs(x)
    first, second = jnp.stack([spread, spread * units]).sum(-1)
    error = SLACK * ((u * (9 + 24 + side + 3 * n + 18) + jnp.abs(surplus) + surplus_error) * first + u * second)
    angle = spacing * x
    start = jnp.stack(cosm1_and_sin(jnp.stack([angle, side * angle])))  # (parts, tables, 2, n)

    def power(table: Array, _: Any) -> tuple[Array, Array]:
        (re, im), (one_re, one_im) = table, start
        product = jnp.stack([re * one_re - im * one_im, re * one_im + im * one_re])
        return (table + start) + product, table

    # Each step multiplies both tables' powers by their first.
    _, tables = jax.lax.scan(power, jnp.zeros_like(start), None, side)
    inner, outer = tables[:, :, 0], tables[:, :, 1] * weights  # (side, parts, 2, n)
    both = jnp.einsum("bcxn,adxn->cdxab", inner, outer, precision="highest")
    alone = jnp.einsum("bcxn,xn->cxb", inner, weights, precision="highest")[:, :, None, :]
    alone = alone + jnp.moveaxis(jnp.sum(outer, -1), 0, -1)[..., None]
    return Transform(both[0, 0] - both[1, 1] + alone[0], both[0, 1] + both[1, 0] + alone[1], error, surplus, surplus_error, mean)


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
    their sizes, and cosine and sine by seven: nine of all angles. That distance itself errs by the rounding of k c, m +
    3 units: this moves eps, and nothing else (``drift``).

    *Kernel.* z (z + 1) has a modulus of at least t (t + 1) + w^2; its parts err by 4 units of it. Its inverse, two
    exponentials and six products err by 40, and the exponents by 4 of mu^2 (t (t + 1) + w^2) (1 + mu).

    *End.* Frequencies from W on are left out. What falls with w sums to at most its value at W times the spacing and
    its integral from W on: with h = mu^2/2 that of e^(-h w^2)/w^2 is at most e^(-h W^2)/(2 h W^3), and that of
    e^(-h w^2) at most e^(-h W^2)/(2 h W). A transform's modulus is at most 1 there, in units of the common factor.
    """
    u, tiny = roundoff(), jnp.finfo(runs.masses.dtype).tiny
    rows, most_terms = runs.masses.shape[0], side * side
    t, spacing, cumulants, each, orders, logs = choose_line(found, starts, log_targets, side)
    start = jnp.mean(starts)

    def of_row(row: Any) -> Transform:
        losses, masses, excess, cumulant = row
        return transform(losses, masses, excess, t, cumulant, spacing, side)

    given = runs.losses, runs.masses, runs.excess, each
    if rows == 1:
        found_rows = jax.tree.map(lambda leaf: leaf[None], of_row(jax.tree.map(lambda leaf: leaf[0], given)))
    else:
        found_rows = jax.lax.map(of_row, given)
    x, y, error, surplus, surplus_error, mean = found_rows
    wide = lambda values: values[..., None, None]  # noqa: E731
    index = np.arange(most_terms, dtype=np.float64).reshape(side, side)
    w = spacing * jnp.asarray(index, t.dtype)
    # The characteristic function to the power of the runs.
    excess, real = x * (2 + x) + y * y, 1 + x
    square = jnp.maximum(real * real + y * y, u * u)
    log_size = 0.5 * jnp.where(excess > -0.25, jnp.log1p(jnp.maximum(excess, -0.25)), jnp.log(square))
    argument = jnp.arctan2(y, real)
    doubt = jnp.log1p((wide(error) * w + 16 * runs.masses.shape[-1] * tiny) * jnp.exp(-log_size))
    units = 12 * jnp.abs(x) + 4 * y * y + (11 + rows) * (jnp.abs(log_size) + jnp.abs(argument))
    log_modulus, phase, grows, units = runs.total(jnp.stack([log_size, argument, doubt, units], 1))
    center = runs.total(mean)
    far = start - center
    turn = phase - wide(far) * w
    modulus = jnp.exp(log_modulus)
    grown = modulus * jnp.expm1(jnp.minimum(grows, 1.0))
    grown = jnp.where(grows < 1, grown, jnp.exp(jnp.minimum(log_modulus + grows, 700.0)))
    # The kernel, with its smoothing, and the bump.
    end = most_terms * spacing
    half = cut(side) / (end * end)
    mu = jnp.sqrt(2 * half)
    wider = half * (1 + mu)
    bump = jnp.stack([jnp.zeros_like(mu), bump_mass(mu)])
    plus = t * (t + 1)
    d_re, d_im = plus - w * w, (2 * t + 1) * w
    inverse = 1 / (d_re * d_re + d_im * d_im)
    weight = spacing / math.pi * jnp.asarray(np.where(index == 0, 0.5, 1.0), t.dtype)
    height = jnp.exp(half * d_re) * weight
    low = wide(bump) * (jnp.exp(wider * (t * t - w * w)) * weight)
    bends = jnp.stack([half * d_im, 2 * wider * t * w])
    less, sine = cosm1_and_sin(turn + bends[:, None])
    cosine = 1 + less
    re = height * inverse * (cosine[0] * d_re + sine[0] * d_im) - low * cosine[1]
    im = height * inverse * (sine[0] * d_re - cosine[0] * d_im) - low * sine[1]
    kernel = height * jnp.sqrt(inverse) + low
    units = units + 9 * (jnp.abs(turn) + jnp.sum(jnp.abs(bends), 0)) + jnp.abs(wide(far) * w) + 60
    units = units + 8 * (half + wider) * (plus + w * w)
    sizes = modulus * kernel
    # Nodes' sizes, levers and errors.
    size, lever, off = jnp.stack([sizes, sizes * w, kernel * grown + u * (sizes * units)]).sum((-1, -2))
    after = jnp.exp(half * (plus - end * end)) * (spacing / (end * end) + 1 / (2 * half * end * end * end))
    after = after + bump * jnp.exp(wider * (t * t - end * end)) * (spacing + 1 / (2 * wider * end))
    drift = SLACK * u * ((rows + 3) * runs.total(jnp.abs(mean)) + 3 * jnp.abs(start))
    each_best = each + jnp.log1p(surplus)
    unit_error = surplus_error / jnp.maximum(1 - jnp.abs(surplus) - surplus_error, 0.5)
    unit_error = unit_error + u * ((rows + 3) * jnp.abs(each_best) + jnp.abs(each) + 8 * jnp.abs(surplus))
    # A surplus that is not small says that the cumulants were none.
    unit_error = jnp.where(jnp.abs(surplus) + surplus_error < 0.25, unit_error, jnp.inf)
    length = 2 * math.pi / spacing
    fall = -jnp.abs(orders - t) * length * (1 - 8 * u)
    return Line(
        order=t,
        start=start,
        spacing=spacing,
        spectrum=jnp.stack([modulus * re, modulus * im]),
        unit=runs.total(each_best),
        unit_error=SLACK * runs.total(unit_error) + drift * t,
        allowance=SLACK * (off + after / math.pi + 16 * most_terms * tiny),
        size=size,
        lever=lever,
        orders=orders,
        log_aliases=logs + fall - jnp.log(-jnp.expm1(fall)) + 16 * u * (1 + jnp.abs(logs) + jnp.abs(fall)),
        drift=jnp.max(drift),
    )


def read(line: Line, at: Array) -> tuple[Array, Array]:
    """Returns bounds (2,) on log E f(S - eps), above at the first eps and below at the second, and their slopes (2,).

    *Rounding.* The angle w (eps - start), of a power in each of two tables, errs by 3 + 7 units of itself, a turn by 16
    units; sums over nodes by their number. The common factor errs by four units of its two parts, and the logarithm of
    the sum by 8 of itself. Aliases are subtracted as they are bounded, with the rounding of their logs.
    """
    u, side, tiny = roundoff(), line.spectrum.shape[-1], jnp.finfo(at.dtype).tiny
    t, distance = line.order, at - line.start
    counts = jnp.asarray(np.arange(side) * np.array([[side], [1.0]]), at.dtype)
    less, sine = cosm1_and_sin((distance * line.spacing)[:, None, None] * counts)  # (2, tables, side)
    cosine = 1 + less
    (outer_c, inner_c), (outer_s, inner_s) = (
        (part[:, 0, :, None], part[:, 1, None, :]) for part in (cosine, sine)
    )
    turn_c, turn_s = outer_c * inner_c - outer_s * inner_s, outer_s * inner_c + outer_c * inner_s
    re, im = line.spectrum
    w = line.spacing * (counts[0][:, None] + counts[1])
    value, fall = jnp.stack([re * turn_c + im * turn_s, w * (im * turn_c - re * turn_s)]).sum((-1, -2))
    rounding = SLACK * u * ((side * side + 24) * line.size + 11 * jnp.abs(distance) * line.lever)
    size = jnp.abs(line.unit) + t * jnp.abs(at)
    common = line.unit_error + 4 * u * size
    log_unit = line.unit - t * at
    logs = line.log_aliases - line.orders * at[1] - log_unit[1] + common[1]
    logs = logs + 8 * u * (jnp.abs(line.log_aliases) + line.orders * jnp.abs(at[1]))
    sides = jnp.stack([line.orders > t, line.orders < t])
    aliases = jnp.sum(jnp.exp(jnp.min(jnp.where(sides, logs, jnp.inf), -1)))
    bound = value + SIDES * (line.allowance + rounding) - jnp.stack([jnp.zeros_like(aliases), aliases])
    log_bound = jnp.where((bound > tiny) | (SIDES < 0), jnp.log(bound), jnp.log(tiny))
    return log_bound + log_unit + SIDES * (common + 10 * u * (1 + jnp.abs(log_bound))), fall / value - t


# ----------------------------------------------------------------------------------------------------
# Questions
# ----------------------------------------------------------------------------------------------------

NEWTON, ASIDE = 8, 4
"""Numbers of Newton's steps, and of looks beside the root, the first at the root itself. Tightness only."""


def solve(line: Line, log_target: Array, shift: Array) -> tuple[Array, Array, Array]:
    """Returns the eps at which delta's upper bound is about a target (), and bounds on eps from above and from below.

    A bound is returned only where delta's was evaluated, and was on the right side of the target: after Newton's steps
    there are looks at distances from the root that grow by 2^8.
    """
    u = roundoff()
    doubt = 10 * u * (1 + jnp.abs(log_target))
    nothing = jnp.asarray([jnp.inf, 0.0], log_target.dtype)

    def look(i: Any, state: Any) -> Any:
        root, best = state
        aside = jnp.where(i > NEWTON, jnp.exp2(8.0 * (i - NEWTON) + 4.0) * u, 0.0)
        at = root + SIDES * (aside * (root + 1 / line.order))
        at = jnp.maximum(at, -SIDES * shift)
        log_bound, slope = read(line, at)
        over = log_bound - log_target + SIDES * doubt
        bound = jnp.maximum(at + SIDES * shift, 0.0)
        is_bound = SIDES * over <= 0
        # An eps is a bound where delta is on the right side of the target there.
        best = jnp.where(is_bound, jnp.where(SIDES > 0, jnp.minimum(best, bound), jnp.maximum(best, bound)), best)
        most = jnp.pi / (2 * line.spacing)
        move = jnp.clip(-over / slope, -most, most)
        return jnp.where((i < NEWTON) & (jnp.abs(move) < jnp.inf), at + move, root), best

    start = jnp.broadcast_to(line.start, (2,))
    root, best = jax.lax.fori_loop(0, NEWTON + ASIDE, look, (start, nothing))
    return root[0], best[0], best[1]


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
    runs = compose(laws, counts)
    delta = jnp.asarray(delta, runs.masses.dtype)
    tiny = jnp.finfo(delta.dtype).tiny
    room = delta - runs.infinite
    log_target = jnp.log(jnp.maximum(room, tiny))
    # Below what is known of delta from below nothing is finite; a target below the normal numbers is not met above.
    log_target = jnp.where((SIDES < 0) | (room > 2 * tiny), log_target, -jnp.inf)

    def is_wide(state: Any) -> Array:
        i, _, lower, upper = state
        return (i < ROUNDS) & ((upper == jnp.inf) | (upper - lower > upper / side**2))

    def improve(state: Any) -> Any:
        i, start, lower, upper = state
        found = search(runs, start, log_target[0], i > 0)
        start = jnp.where(i > 0, start, found.guess)
        line = lay_line(runs, found, start[None], log_target[:1], side)
        shift = runs.shift + line.drift
        root, above, below = solve(line, log_target, shift)
        by_chernoff = jnp.maximum(chernoff_epsilon(found, log_target[0]) + shift, 0.0)
        root = jnp.where(jnp.isfinite(root), jnp.maximum(root, 0.0), start)
        return i + 1, root, jnp.fmax(lower, below), jnp.fmin(upper, jnp.fmin(above, by_chernoff))

    # Each round lays a line, the later ones for the eps found.
    zero = jnp.zeros_like(delta)
    _, _, lower, upper = jax.lax.while_loop(is_wide, improve, (0, zero, zero, zero + jnp.inf))
    upper = jnp.fmin(upper, jnp.maximum(runs.most[0] + 2 * runs.shift, 0.0))
    upper = jnp.where(room[0] >= 0, upper, jnp.inf)
    lower = jnp.where(room[1] < 0, jnp.inf, lower)
    is_known = runs.valid & (delta >= 0) & (delta <= 1)
    is_free = is_known & (delta >= 1)
    lower = jnp.where(is_known & ~is_free, lower, 0.0)
    return lower, jnp.where(is_free, 0.0, jnp.where(is_known, upper, jnp.inf))


def delta(
    laws: Atoms, counts: ArrayLike, epsilon: ArrayLike, *, side: int = SIDE
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns lower and upper bounds on the delta of a composition at an epsilon; arguments as for :func:`epsilon`."""
    lower, upper = curve(laws, counts, jnp.asarray(epsilon)[None], side=side)
    return lower[0], upper[0]


def curve(
    laws: Atoms, counts: ArrayLike, epsilons: Array, *, side: int = SIDE
) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
    """Returns lower and upper bounds on delta at several values of epsilon (q,), from one spectrum."""
    runs = compose(laws, counts)
    epsilons = jnp.asarray(epsilons, runs.masses.dtype)
    u, tiny = roundoff(), jnp.finfo(epsilons.dtype).tiny
    # The line is made for the least and the largest.
    which = jnp.stack([jnp.argmin(epsilons), jnp.argmax(epsilons)]) if epsilons.size > 1 else np.zeros(1, int)
    ends = epsilons[which]

    def is_wide(state: Any) -> Array:
        i, lower, upper = state
        return (i < ROUNDS) & ~jnp.all(upper - lower <= upper / side)

    def improve(state: Any) -> Any:
        i, lower, upper = state
        found = search(runs, jnp.mean(ends), jnp.zeros_like(u * ends[0]), True)
        by_chernoff = jax.vmap(lambda at: chernoff_delta(found, at))
        # Nats by which Chernoff's bound is above delta, about. Tightness only.
        targets = jnp.where(i > 0, jnp.log(jnp.maximum(upper[which], tiny)), by_chernoff(ends) - 3.0)
        line = lay_line(runs, found, ends, targets, side)
        shift = runs.shift + line.drift
        at = epsilons[:, None] - SIDES * shift
        log_bounds, _ = jax.vmap(lambda at: read(line, at))(at)
        above = jnp.exp(jnp.fmin(log_bounds[:, 0], by_chernoff(at[:, 0])))
        below = jnp.exp(log_bounds[:, 1])
        above = above * (1 + 16 * u) + tiny + runs.infinite[0]
        below = jnp.where(below >= tiny, below * (1 - 16 * u), 0.0) + runs.infinite[1]
        return i + 1, jnp.fmax(lower, below * (1 - 4 * u)), jnp.fmin(upper, above * (1 + 4 * u))

    zero = jnp.zeros_like(epsilons)
    # Each round lays a line for the deltas found.
    _, lower, upper = jax.lax.while_loop(is_wide, improve, (0, zero, zero + 1))
    is_most = epsilons >= runs.most[0] + 2 * runs.shift
    upper = jnp.where(is_most, jnp.fmin(upper, runs.infinite[0]), upper)
    is_known = runs.valid & (epsilons >= 0)
    return jnp.where(is_known, jnp.clip(lower, 0.0, 1.0), 0.0), jnp.where(is_known, upper, 1.0)
