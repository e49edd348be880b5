"""Composition on an evolving mesh: sums of privacy losses by Fourier transforms of one size, for any number of runs.

Ghazi, Kamath, Kumar and Manurangsi (2022), "Faster privacy accounting via evolving discretization": the sum of k losses
is about sqrt(k) times as wide as one of them, so while runs are added the mesh may coarsen at the same rate, and the
number of points stays what it is. A *stage* adds as many runs as the circle of points holds; then the mesh doubles.
Meshes that let the first circle hold sqrt(k) runs are the paper's two stages; meshes from which every stage adds a few
runs are its recursion. Both are one loop here (:class:`Method`), in which k is any number, traced or not.

In reading order:

- :func:`plan_sum`, the tilt, and the tails that count; :func:`cap`, which needs no room for losses far beyond epsilon;
- :func:`put_on_mesh`, one loss as masses on a mesh, from above and from below;
- :func:`coarsen`, from a mesh to one twice as wide;
- :func:`evolve`, the stages; :func:`join`, the sum of two sums; :func:`compose`, that of many laws;
- :func:`bound_delta` and :func:`bound_epsilon`, read off a :class:`Sum`, any number of times.

**Domination.** A law of the loss is a measure of P's mass over losses y, of Q-mass e^(-y) each. Write D(eps) for the
sum of (1 - e^(eps - y))+ over it. Every step from one law to the next either raises D at every eps (for the upper
bound), or lowers it (for the lower one), as :func:`put_on_mesh` and :func:`coarsen` prove; composition with any other
law keeps that (Zhu, Dong and Wang 2022, "Optimal accounting of differential privacy via characteristic function",
Theorem 10: D of a composition is a mixture of D's of the one law, at shifted eps). A lower law may leave out mass.

**One number for all that is lost.** Everything else is an error in the *tilted* measure w = p e^(ty), of one order t >
0 for all laws. As (1 - e^(eps - y))+ = e^(-ty) e^(ty) (1 - e^(eps - y))+, two laws whose tilted measures are within d
of one another in L1 have D's within d e^(-t eps) sup_x e^(-tx) (1 - e^-x) (:func:`.precision.log_peak`). A law m is
held with numbers e and K such that for the true law L, every R, and every further law r of tilted mass e^(K_r)

    D(L^R * r)  <=  D(m^R * r) + ((1 + e)^R - 1) e^(R K + K_r) peak e^(-t eps),   |m| <= (1 + e) e^K,   |L| <= e^K,

here for the upper bound; for the lower one the laws change places. The following keep it:

1. m is replaced by a law that dominates it: e stays, and K is raised to the log of the new mass if that is larger.
2. m moves by d e^K in L1: e becomes e + d. For |m'^R - m^R| <= e^(RK) ((1 + e + d)^R - (1 + e)^R), by the binomial
   theorem.
3. m becomes m^j: K becomes jK, and e becomes (1 + e)^j - 1.
4. Two sums are joined: K's add, and 1 + e is the product of both.

So truncation, aliasing (mass that wraps around the circle), and rounding are one number a bound, and never of the size
of a probability that is lost: the tilt makes them shares of delta itself.

**Windows.** Where mass of a sum lies is known by Chernoff's bound from moments of the very rows that are multiplied
(:func:`_log_moments`): nothing is assumed about them. Rounding leaves noise in all points of a row, some 1e-16 of its
mass, which large moments would magnify; so points beyond those that count are set to 0 first, and their mass is part of
the error (:func:`_trim`).

**What is wide.** One run's atoms have to lie on the first circle, and a sum is coarsened only once it is smooth. Where
losses are rare and large (rates below 1e-3 with noise below 1, and on the order of one of them in all runs), the first
mesh may be coarser than one run's bulk: the bounds hold, and differ by some hundredths, or more. Otherwise, and there
once the mesh resolves the bulk, twice as many points divide the gap by four, until the cells of the law are what is
wide: these have to grow with the points.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Complex, Float

from jaxacct.mechanisms.atoms import Atoms
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import TINY, log_complement, log_peak

SIDES = np.array([1.0, -1.0])
"""Signs of the two bounds: the upper law is row 0, the lower one row 1."""


class Method(enum.Enum):
    """The choice of meshes: how many runs the first circle holds, and how many a stage adds at least.

    Attributes:
        RECURSIVE: every stage adds what fits; the first circle holds as many runs as make the sum smooth.
        TWO_STAGE: two stages of about sqrt(k) runs each, with as many coarsenings in between as the second one needs.
        FIXED: one stage, on a mesh whose circle holds all runs, up to 2^24 of them.
    """

    RECURSIVE = "recursive"
    TWO_STAGE = "two_stage"
    FIXED = "fixed"


ORDERS = 32
"""Orders that one look compares, of a tilt and of moments each; even. Tightness only."""

LEAST_LEFT = 1 / 64
"""Least share of delta that finite losses may be taken to have once losses are capped. Tightness only."""

STEEPEST = 600.0
"""Largest size of an exponent t y that is computed with. Beyond it points prove nothing. Tightness only."""

ENDLESS = 128
"""Largest number of turns of the stages' loop: none ever takes as many, and a sum that does is no bound at all."""

TRIES = np.unique(np.concatenate([2.0 ** np.arange(25), 3 * 2.0 ** np.arange(23)]))
"""Numbers of runs that a stage may add, besides all that are left, which are as many at most."""


class MeshPlan(NamedTuple):
    """The tilt and the tails that all laws of a sum share. Bounds hold for any positive order."""

    order: Array
    """The tilt, positive."""
    nats: Array
    """Tails of e^-nats of the tilted mass are small beside what is read off the sum."""
    log_rare: Array
    """Log of the mass of the upper law's largest atoms, together, that count as infinite losses."""
    farthest: ArrayLike = np.inf
    """Loss of one run beyond which it matters no more how large it is (:func:`cap`)."""


class Sum(NamedTuple):
    """The law of a sum of losses on a mesh, above and below, in units that are tilted.

    The masses are ``P(first + j mesh) = rows[:, j] exp(log_mass - order (first + j mesh))``. What they lack is in
    ``error``, as the module derives. A sum can be kept, joined (:func:`join`), and read (:func:`bound_delta`,
    :func:`bound_epsilon`).
    """

    rows: Float[Array, "2 points"]
    first: Array
    mesh: Array
    order: Array
    nats: Array
    log_mass: Float[Array, " 2"]
    log_bound: Float[Array, " 2"]
    """K of the module: the log of a bound on the tilted mass."""
    error: Float[Array, " 2"]
    """e of the module. Infinite where nothing is known."""
    log_finite: Float[Array, " 2"]
    """Log of the probability that all losses are finite: a lower and an upper bound."""
    shift: Array
    """Bound, in nats, on the distance of the points from the losses for which they stand."""


# ----------------------------------------------------------------------------------------------------
# The plan: a tilt at which losses near epsilon have most of the mass
# ----------------------------------------------------------------------------------------------------


def plan_sum(
    laws: Atoms,
    counts: Float[Array, " m"],
    points: int,
    *,
    log_delta: ArrayLike | None = None,
    epsilon: ArrayLike = 0.0,
    last: ArrayLike | None = None,
) -> MeshPlan:
    """Returns a plan for reading epsilon near a delta, or delta near an epsilon if ``log_delta`` is None.

    The first order is the one of the least bound by moments: delta <= e^(K(t) - t eps) / (t + 1) (1 - 1/(t + 1))^t, K
    the sum of the laws' cumulants (Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy",
    Proposition 12). It need not be exact. Its bound on epsilon, and how far below 0 all runs together may fall, tell
    beyond what loss of one run it matters no more how large it is (:func:`cap`). The order that is taken is at most as
    large: the one whose window is the shortest, of those that need few more nats. Rare losses weigh so much less.

    ``last`` is the log of the least delta, or the largest epsilon, that is read; the one of the question by default.
    """
    y, mass = laws.losses[:, 0], jnp.where(counts[:, None] > 0, laws.masses[:, 0], 0.0)
    log_target = None if log_delta is None else jnp.asarray(log_delta)
    last = (epsilon if log_target is None else log_target) if last is None else last

    def rare_of(log_delta: Array) -> Array:
        return log_delta - _slack(points) - jnp.log(jnp.maximum(jnp.sum(counts), 1.0))

    known = mass > 0
    if log_target is not None:
        known = known & (_sums_beyond(mass)[1] > jnp.exp(rare_of(log_target)))
    log_mass = jnp.where(known, jnp.log(mass), -jnp.inf)

    def cumulants_at(orders: Array, kept: Array) -> Array:
        def at(order: Array) -> Array:
            terms = log_mass - (y - kept) + order * kept
            top = jnp.maximum(jnp.max(terms, -1), -1e300)
            cumulants = top + jnp.log(jnp.sum(jnp.exp(terms - top[:, None]), -1))
            return jnp.sum(jnp.where(counts > 0, counts * cumulants, 0.0))

        return jax.vmap(at)(orders)

    def steepest_of(kept: Array) -> Array:
        return STEEPEST / jnp.maximum(jnp.max(jnp.where(known, jnp.abs(kept), 0.0)), 1e-30)

    def look(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        before, *_, farthest = state
        kept = jnp.minimum(y, farthest)
        near, wide = np.geomspace(0.5, 2.0, ORDERS), np.geomspace(2.0**-20, 2.0**20, ORDERS)
        falls = np.geomspace(2.0**-6, 2.0**6, ORDERS)
        # Where nothing is lost any order is as good: wide looks begin anew, or it would grow from one to the next.
        each = jnp.stack([jnp.where(i % 2 > 0, near * before, wide), falls * before])
        every = jnp.minimum(each, steepest_of(kept))
        orders, falls = every
        cumulants, of_falls = cumulants_at((every * SIDES[:, None]).reshape(-1), kept).reshape(2, ORDERS)
        heights = cumulants + log_peak(orders)
        # What is infinite once losses are capped is no part of what is left to be read.
        endless = jnp.sum(counts[:, None] * jnp.where(known, -mass * jnp.expm1(kept - y), 0.0))
        left = (
            jnp.zeros(2) if log_target is None else 1 - endless * jnp.exp(-jnp.stack([log_target, jnp.asarray(last)]))
        )
        log_finite = jnp.log(jnp.maximum(left, LEAST_LEFT))
        if log_target is None:
            values, largest = heights - orders * epsilon, jnp.asarray(last)
        else:
            values = (heights - log_target - log_finite[0]) / orders
            largest = jnp.min((heights - last - log_finite[1]) / orders)
            largest = jnp.where(left[1] > LEAST_LEFT, jnp.maximum(largest, 0.0), jnp.inf)
        least = jnp.min(values)
        order = jnp.max(jnp.where(values == least, orders, 0.0))
        # The sum of all other runs is hardly ever lower.
        lowest = -jnp.min((of_falls + _slack(points)) / falls)
        return order, least, log_finite[0], jnp.minimum(farthest, largest - jnp.minimum(lowest, 0.0))

    # Twice two looks: over 12 decades, and about the best of those; at all losses, and at losses that are capped.
    start = jnp.asarray(1.0, y.dtype)
    begin = (start, start, start, jnp.asarray(jnp.inf, y.dtype))
    steepest, least, log_finite, farthest = jax.lax.fori_loop(0, 4, look, begin)
    kept = jnp.minimum(y, farthest)
    if log_target is None:
        at, log_finite, log_target = jnp.asarray(epsilon), jnp.minimum(least, 0.0), jnp.minimum(least, 0.0)
    else:
        at, log_finite = jnp.maximum(least, 0.0), log_target + log_finite
    # Among smaller orders, that of the shortest window: by Chernoff's bound at all orders, those below 0 among them.
    size = 2 * ORDERS
    orders = jnp.minimum(2.0 ** np.linspace(-4.0, 8.0, size + 1)[:-1] * steepest, steepest_of(kept))
    every = jnp.concatenate([orders, -orders])
    cumulants = cumulants_at(every, kept)
    excess = jnp.maximum(cumulants[:size] + log_peak(orders) - orders * at - log_finite, 0.0)
    nats = excess + jnp.log1p(orders) + 2.0 + _slack(points) + math.log(len(counts))
    gaps = every[None] - orders[:, None]
    ends = (cumulants[None] - cumulants[:size, None] + nats[:, None]) / jnp.where(gaps == 0, 1.0, gaps)
    lengths = jnp.min(jnp.where(gaps > 0, ends, jnp.inf), -1) - jnp.max(jnp.where(gaps < 0, ends, -jnp.inf), -1)
    is_lower = orders <= steepest * (1 + 1e-9)
    least_excess = jnp.min(jnp.where(is_lower, excess, jnp.inf))
    # Nats that the tails may need more for the sake of a shorter window. Tightness only.
    more_nats = 3.0
    lengths = jnp.where(is_lower & (excess <= least_excess + more_nats), lengths, jnp.inf)
    order, nats = jnp.max(jnp.where(lengths == jnp.min(lengths), jnp.stack([orders, nats]), -jnp.inf), -1)
    return MeshPlan(order, nats, rare_of(log_target), farthest)


def _sums_beyond(rows: Float[Array, "... n"]) -> Float[Array, "2 ... n"]:
    """Returns the sums of a row's entries up to each, and of those from each on, itself among them."""
    n = rows.shape[-1]
    inner = 2 ** (round(math.log2(n)) // 2)
    outer = -(-n // inner)
    table = jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, outer * inner - n)]).reshape(*rows.shape[:-1], outer, inner)
    in_blocks = jnp.einsum("...bj,dij->d...bi", table, np.stack(_triangles(inner)), precision="highest")
    strict = np.stack([np.tri(outer, k=-1), np.tri(outer, k=-1).T])
    others = jnp.einsum("...b,dcb->d...c", jnp.sum(table, -1), strict, precision="highest")
    return (in_blocks + others[..., None]).reshape(2, *rows.shape[:-1], outer * inner)[..., :n]


def _slack(points: int) -> float:
    """Returns the nats by which truncation is below delta: less than the mesh of so many points costs."""
    return 10.0 + 2.0 * math.log(points / 1024)


def cap(law: Atoms, farthest: ArrayLike) -> Atoms:
    """Returns laws beside those of ``law`` whose losses reach hardly beyond ``farthest``; any number is sound.

    *Below*, telling all atoms beyond it as one is post-processing: one atom of their masses P and Q, with the loss
    log P/Q or any smaller one. D stays what it is up to their least loss.

    *Above*, let c be that loss. An atom y beyond it moves to c and to an infinite loss such that P and Q stay: p
    e^(c - y) to c, the rest to infinity. These are the dots connected, with a chord that ends at x = e^(-y) = 0, so D
    is raised nowhere up to c and lowered nowhere. Of a sum, D changes where all other runs together are so low that
    such an atom does not decide: :func:`plan_sum` chooses c.

    *Rounding.* Below: a sum errs by nu of itself; exponentials of exponents up to 745 by 745u for these and by 4u, and
    products by u, or are flushed, and then below TINY each, which is added to Q. So log P/Q errs by (2n + 800)u, 8u of
    itself and u of the sum with c. Above: the same exponentials, and expm1, which errs by 8u, and passes on no larger
    share of its argument's error: 2^11 u are more than all of these, and nu for the sum. A compiler may compute c
    twice, and to other bits, at most 2^11 u (1 + |c|) apart: D of an atom is p (1 - e^(eps - c)), and changes by p
    times that.
    """
    u, n = roundoff(), law.losses.shape[-1]
    (y, y_low), (p, p_low) = law.losses, law.masses
    is_far = (y_low > farthest) & (p_low > 0)
    far, behind = jnp.where(is_far, p_low, 0.0), jnp.where(is_far, farthest - y_low, 0.0)
    far_p, far_q = jnp.sum(jnp.stack([far, far * jnp.exp(behind)]), -1)
    above = jnp.log(far_p / (far_q + n * TINY))
    end = farthest + above
    end = end - u * (4 * n + 2.0**10 + 16 * (jnp.abs(above) + jnp.abs(farthest)))
    pools = (far_p > 0) & jnp.isfinite(end)
    # The last atom of the lower law is the pool.
    is_last = np.arange(n) == n - 1
    y_low = jnp.where(pools, jnp.where(is_last, end, jnp.minimum(y_low, end)), y_low)
    p_low = jnp.where(pools, jnp.where(is_last, far_p * (1 - 2 * n * u), jnp.where(is_far, 0.0, p_low)), p_low)
    is_far = pools & (y > end) & (p > 0)
    fall = jnp.where(is_far, end - y, 0.0)
    stays = jnp.where(is_far, p * jnp.exp(fall) * (1 + 2.0**11 * u) + TINY, p)
    doubt = 2.0**11 * u * (1 + jnp.abs(end))
    rest = jnp.where(is_far, -p * jnp.expm1(fall) * (1 + 2.0**11 * u) + stays * doubt + TINY, 0.0)
    endless = jnp.sum(rest) * (1 + 2 * n * u)
    infinite = jnp.stack([jnp.minimum((law.infinite[0] + endless) * (1 + 4 * u), 1.0), law.infinite[1]])
    return law._replace(
        losses=jnp.stack([jnp.where(pools, jnp.minimum(y, end), y), y_low]),
        masses=jnp.stack([stays, p_low]),
        infinite=infinite,
    )


# ----------------------------------------------------------------------------------------------------
# One loss on a mesh
# ----------------------------------------------------------------------------------------------------


class _StageState(NamedTuple):
    """Sums while they evolve; ``kinds`` are the sum of the current power of runs, and of those that are set aside."""

    rows: Float[Array, "kinds 2 points"]
    first: Float[Array, " kinds"]
    log_mass: Float[Array, "kinds 2"]
    log_bound: Float[Array, "kinds 2"]
    error: Float[Array, "kinds 2"]
    drift: Float[Array, " kinds"]
    """Bound on the error of ``first``."""


def put_on_mesh(
    law: Atoms, count: Array, plan: MeshPlan, points: int, runs: Array, least: float, *, is_shared: bool
) -> tuple[_StageState, Array, Array, Array, Array]:
    """Returns one run as rows on a mesh (kinds of length 1), and what its sums need.

    These are the mesh, the runs of the first stage, the logs of bounds on a finite loss's probability, and the shift of
    a run.

    *The mesh* is such that the circle holds the atoms of the upper law that count, and the sum of one of ``runs`` runs,
    of which ``least`` are outside of the point with most mass (:func:`_first_mesh`); a power of two if ``is_shared``.
    A point of it lies where the largest atom and its neighbours have their pooled loss, and another, unless
    ``is_shared``, at the atom that is furthest from it: losses of two values, and those that end in two atoms, lie on
    it. Any mesh is sound.

    *Above*: the dots are connected (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, "Connect the dots: tighter
    discrete approximations of privacy loss distributions", section 4). An atom moves to the points c, c + h beside it
    such that P- and Q-mass stay; in x = e^(-y), where (1 - e^eps x)+ is convex, this replaces a value by its chord, so
    it raises D. The share that goes up is (1 - e^(c - y)) / (1 - e^-h).

    *Below*: one pass pools sorted atoms. Telling only the pool, and not the atom, is post-processing, so a pool may
    stand for its atoms at the loss log P/Q of their sums, and at any smaller loss. A pool begins with an atom, and its
    target is the next point ahead; it takes atoms, or the part of the last one, until P/Q is e^target exactly; the
    rest of that atom begins the next pool. What the pass ends with has a loss above the point behind, and is moved
    there. There is a pass upwards and one downwards, and the one that keeps more tilted mass stands: an end in the bulk
    costs a whole mesh, and pools that begin there may take all rare losses into it. Atoms outside of the upper law's
    window are left out first, and so are no part of the law that K bounds.

    *Rounding of losses*: 2u(|y| + |offset|) for (y - offset)/h times h, which all uses of it share, and 8u of the same
    where an atom that is so close to a point counts as on it. A pool's balance is a sum of up to n terms p (e^(target -
    y) - 1), right to 11u each (two differences and products, u each, and expm1, 8u). All but the last are within
    p (e^h - 1), or balance others that are; so is the part that is taken of the last, which errs by 5u for itself: in
    all 2(n + 16)u (e^h - 1) of the pool's mass, and so of its loss.

    *Rounding of masses*, in tilted mass. The share that goes up errs by 20u (a difference and a product, u each, and
    expm1, 8u, above the line; expm1 below it; a quotient and a product), so both parts together by 41u of the one that
    goes up and u of the other. A pool's mass is a sum of up to n atoms, nu; a point's one of up to 2n weights, 2nu. A
    weight's exponent, of three products and sums, rounds by 4u of its terms' sizes, the exponential by 4u, the product
    by u. The sum of a row is no error, as rows are divided by it and log_mass is its logarithm: u for the quotient,
    8u of the logarithm and u of log_mass. What falls outside of the window counts for the upper law.

    *Rounding of K*, the logarithm of a sum of n products: nu, and for each product 8u of log p and 2u of ty and of the
    whole exponent. Exponents, and so both terms, that matter are within 1,500 or cancel: 2^14 u is more than that, and
    also more than what is wrong with the tilted masses of the atoms that are left out.
    """
    law = cap(law, plan.farthest)
    u, n = roundoff(), law.losses.shape[-1]
    t = plan.order
    (y, y_low), (p, p_low) = law.losses, law.masses
    # Rare atoms count as infinite losses, and the row drops those that are rare after the tilt: neither can widen the
    # window.
    rare = _sums_beyond(p)[1] < jnp.exp(plan.log_rare)
    log_w = jnp.where(rare | ~(p > 0), -jnp.inf, jnp.log(p) + t * y)
    top = jnp.maximum(jnp.max(log_w), -3 * STEEPEST)
    total = jnp.maximum(jnp.sum(jnp.exp(log_w - top)), TINY)
    scale = top + jnp.log(total)
    w = jnp.exp(log_w - scale)
    counts = jnp.min(_sums_beyond(w), 0) > jnp.exp(-plan.nats) / jnp.maximum(count, 1.0)
    # One reduction for several sums: a program of fewer compiles sooner.
    terms = [jnp.where(rare, p, 0.0), jnp.where(counts, 0.0, w), y + p + y_low + p_low]
    mass_rare, mass_missing, anything = jnp.sum(jnp.stack(terms), -1)
    infinite = law.infinite + jnp.stack([mass_rare * (1 + n * u), jnp.zeros_like(t)])
    log_finite = log_complement(jnp.clip(infinite, 0.0, 1.0))
    largest_mass = jnp.max(jnp.stack([p_low, w]), -1)
    places = [jnp.where(p_low == largest_mass[0], y_low, -jnp.inf), jnp.where(w == largest_mass[1], y, -jnp.inf)]
    places += [jnp.where(counts, y, -jnp.inf), jnp.where(counts, -y, -jnp.inf)]
    there, most, high, low = jnp.max(jnp.stack(places), -1) * np.array([1.0, 1.0, 1.0, -1.0])
    low, high = (jnp.where(jnp.isfinite(end), end, 0.0) for end in (low, high))
    h, planned = _first_mesh(jnp.where(counts, w, 0.0), y, most, low, high, count, runs, least, plan, points)
    if is_shared:
        h = jnp.ldexp(jnp.ones_like(h), jnp.ceil(jnp.log2(h)).astype(jnp.int32))
    else:
        inside = (p_low > 0) & (y_low >= low - h) & (y_low <= high)
        far = jnp.max(jnp.where(inside, jnp.abs(y_low - there), 0.0))
        h = jnp.where(far > h, far / jnp.maximum(jnp.floor(far / h), 1.0), h)
    # What the upper law sends to infinity is left out below, or the two would need different windows.
    p_low = jnp.where((y_low >= low - h) & (y_low <= high), p_low, 0.0)
    near = jnp.where(jnp.abs(y_low - there) < h / 2, p_low, 0.0)
    # The law whose mass is bounded below does not have what the row drops.
    w_low = jnp.exp(jnp.minimum(jnp.where(p_low > 0, jnp.log(p_low) + t * y_low, -jnp.inf) - scale, 700.0))
    near_q, near_p, mass_low = jnp.sum(jnp.stack([near * jnp.exp(there - y_low), near, w_low]), -1)
    offset = there - jnp.log(near_q / near_p)
    offset = jnp.where(jnp.isfinite(offset), offset, low)

    at = (y - offset) / h
    cell = jnp.floor(at)
    p = jnp.where(counts, p, 0.0)
    moved_up = p * (jnp.expm1((cell - at) * h) / jnp.expm1(-h))
    index, mass = jnp.concatenate([cell, cell + 1]), jnp.concatenate([p - moved_up, moved_up])
    at = (y_low - offset) / h
    on_point = jnp.abs(at - jnp.round(at)) * h <= 8 * u * (jnp.abs(y_low) + jnp.abs(offset))
    pooled = pool(jnp.where(on_point, jnp.round(at), at), p_low, h, t)
    index, mass = (jnp.stack([row, jnp.pad(less, (0, n - 1))]) for row, less in zip((index, mass), pooled, strict=True))

    begin = jnp.floor(((low + high) / 2 - offset) / h) - points // 2
    exponents = t * (offset + index * h) - scale
    weights = jnp.maximum(mass, 0.0) * jnp.exp(jnp.minimum(exponents, 700.0))
    place = index - begin
    fits = (place >= 0) & (place < points)
    place = jnp.where(fits, place, points).astype(jnp.int32)
    rows = jnp.zeros((2, points)).at[np.arange(2)[:, None], place].add(weights, mode="drop")
    sizes = 4 * (t * (jnp.abs(offset) + jnp.abs(index) * h) + jnp.abs(scale)) + 3 * n + 64
    too_large = jnp.where((mass > 0) & (exponents >= 700.0), 1.0, 0.0)
    wrong, outside, failures = jnp.sum(jnp.stack([(u * sizes) * weights, jnp.where(fits, 0.0, weights), too_large]), -1)
    missing = outside[0] + mass_missing * (1 + (n + 2.0**14) * u)
    floor = jnp.maximum(jnp.sum(rows, -1), TINY)
    log_mass = scale + jnp.log(floor)
    log_bound = jnp.maximum(log_mass, scale + jnp.log(jnp.stack([jnp.ones_like(t), jnp.maximum(mass_low, TINY)])))
    log_bound = log_bound + u * (4 * n + 2.0**14 + 4 * jnp.abs(log_bound))
    error = wrong / floor + jnp.stack([missing / floor[0], jnp.zeros_like(t)])
    error = error * (1 + 1e-9) + u * (8 * jnp.abs(log_mass - scale) + 2 * jnp.abs(log_mass) + 8)
    known = jnp.isfinite(anything + law.infinite[0] + law.infinite[1] + law.shift + t) & (t > 0)
    known = known & (count >= 0) & (count == jnp.floor(count)) & (count < 2.0**45)
    error = jnp.where(known & (failures[0] + failures[1] == 0), error, jnp.inf)
    largest = jnp.maximum(jnp.abs(low), jnp.abs(high)) + h + jnp.abs(offset)
    shift = law.shift + u * (12 * largest + 2 * (n + 16) * jnp.expm1(h))
    first = offset + begin * h
    drift = 3 * u * (jnp.abs(offset) + jnp.abs(begin) * h)
    state = _StageState(*(leaf[None] for leaf in (rows / floor[:, None], first, log_mass, log_bound, error, drift)))
    return state, h, planned, log_finite, shift


def _first_mesh(
    w: Array,
    y: Array,
    most: Array,
    low: Array,
    high: Array,
    count: Array,
    runs: Array,
    least: float,
    plan: MeshPlan,
    points: int,
) -> tuple[Array, Array]:
    """Returns the least mesh whose circle holds all atoms that count and a sum of some runs, and the number of these.

    It is one of ``runs`` of which ``least`` are outside of the point ``most`` with most mass, in the mean, or all.
    """
    # Where one atom alone counts, the circle reaches down to all epsilons that do beside it: some 32/t below it.
    largest = jnp.maximum(jnp.maximum(jnp.abs(low), jnp.abs(high)), 2.0**-30)
    smallest = jnp.minimum(64 / plan.order, 4 * largest) / points
    smallest = jnp.where(high > low, 2.0**-40 * largest, smallest)
    runs = jnp.minimum(runs, jnp.maximum(count, 1.0))
    share = jnp.log(jnp.maximum(count, 1.0) / runs)

    def improve(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        h, _ = state
        gaps = _gaps(points) / h
        reference = jnp.where(gaps > 0, high, low)
        moments = jnp.exp(jnp.minimum(gaps[:, None] * (y[None] - reference[:, None]), 0.0)) @ w
        begin, end = _window(runs[:, None] * (jnp.log(moments) + gaps * reference)[None], plan.nats + share, points)
        # The lower law's moments are not known yet: so there is some more room than the upper law needs.
        meshes = jnp.maximum(jnp.maximum(1.02 * h * (end - begin), high - low) / (points - 8), smallest)
        outside = (jnp.abs(y - most)[None] >= meshes[:, None] / 2) @ w
        meshes = jnp.where((runs * outside >= least) | (runs >= count), meshes, jnp.inf)
        h = jnp.min(meshes)
        return h, jnp.max(jnp.where(meshes == h, runs, 1.0))

    # The moments' orders are multiples of the mesh, as those of the rows will be: so it is improved three times.
    begin = jnp.maximum((high - low) / points, smallest)
    return jax.lax.fori_loop(0, 3, improve, (begin, jnp.ones_like(begin)))


def pool(at: Array, mass: Array, h: Array, order: Array) -> tuple[Array, Array]:
    """Returns points and masses (n + 1,) of pools of sorted atoms, at most the atoms' law (:func:`put_on_mesh`)."""
    atoms = jnp.stack([at, at[::-1]], -1), jnp.stack([mass, mass[::-1]], -1)
    ways = np.array([1.0, -1.0])

    def gather(
        pool: tuple[Array, Array, Array], atom: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        target, held, due = pool
        at, p = atom
        # What the pool owes, e^target Q - P: owed upwards where the pass is upwards, and so settled when negative.
        behind = (target - at) * h
        more = due + p * jnp.expm1(jnp.minimum(behind, STEEPEST))
        closes = more * ways < 0
        part = jnp.where(closes & (behind < STEEPEST), p * (due / (due - more)), 0.0)
        point = ways * jnp.ceil(ways * at)
        rest = jnp.stack([point, p - part, (p - part) * jnp.expm1((point - at) * h)])
        after = jnp.where(closes, rest, jnp.stack([target, held + p, more]))
        return (after[0], after[1], after[2]), (target, jnp.where(closes, held + part, 0.0))

    zeros = jnp.zeros_like(h, shape=2)
    # One pass over the atoms from either end.
    begin = (jnp.ceil(atoms[0][0] * ways) * ways, zeros, zeros)
    (target, held, due), (targets, pools) = jax.lax.scan(gather, begin, atoms)
    behind = target - jnp.where(due > 0, 1.0, 0.0)
    index, mass = jnp.concatenate([targets, behind[None]]), jnp.concatenate([pools, held[None]])
    exponents = jnp.where(mass > 0, index * (order * h), -jnp.inf)
    heights = jnp.sum(mass * jnp.exp(exponents - jnp.max(exponents)), 0)
    is_better = heights[1] > heights[0]
    return jnp.where(is_better, index[:, 1], index[:, 0]), jnp.where(is_better, mass[:, 1], mass[:, 0])


def coarsen(rows: Float[Array, "... 2 points"], h: Array, order: Array) -> Float[Array, "... 2 points"]:
    """Returns rows on a mesh of 2h: even points stay, and odd ones go to their neighbours. Tilted masses.

    *Above* dots are connected: the share 1 / (1 + e^-h) goes up and the rest down, which keeps P and Q.

    *Below* a flow goes up and the rest goes down (:func:`_flow`).

    *Rounding* (:func:`_coarsening_error`), in L1 beside the masses that exact arithmetic makes of the same odd masses
    and, below, of the same flow: e^-h errs by 4u, so the share by 3u and its quotient by u, and what goes up and what
    is left of it by 4u of what goes up. e^(th) errs by th u for its exponent and by 4u; a product or a quotient, and
    two sums, by u each. In all (11 + th)u of what goes up, (8 + th)u of what goes down, and 4u of what goes up again,
    as the share is wrong on both sides; what is moved down by the share that is missing above weighs e^(-2th) of it.
    """
    points = rows.shape[-1]
    even, odd = jnp.moveaxis(rows.reshape(*rows.shape[:-1], points // 2, 2), -1, 0)
    moved_up = jnp.stack([odd[..., 0, :] / (1 + jnp.exp(-h)), _flow(odd[..., 1, :], h, order)], -2)
    raised = jnp.exp(order * h)
    halves = [
        even
        + (odd - moved_up) / raised
        + jnp.pad(moved_up * raised, [(0, 0)] * (moved_up.ndim - 1) + [(1, 0)])[..., :-1],
        jnp.zeros_like(even),
    ]
    halves[1] = halves[1].at[..., 0].set((moved_up * raised)[..., -1])
    return jnp.concatenate(halves, -1)


def _coarsening_error(h: Array, order: Array) -> Array:
    """Returns a bound on the share of the mass by which :func:`coarsen` rounds."""
    return roundoff() * (16 + order * h)


def _flow(odd: Float[Array, "... n"], h: Array, order: Array) -> Float[Array, "... n"]:
    """Returns how much of the lower law's odd points may go up to the next even point, if the rest goes down.

    *What may go up.* If shares a_i of the Q-masses q_i go up by h, and the rest down, D rises at no eps if, for all i,

        a_i q_i (1 - e^-h)  <=  sum over j > i of q_j ((1 - a_j)(e^h - 1) - a_j (1 - e^-h)).

    At an even point the sum over the points above it, times e^eps, is by how much D falls; the new D is linear in e^eps
    between two even points, and at the odd one between them the old one is below its own chord by the left side with
    a_i = 1. In words: what goes up is paid for by what goes down from farther above, e^-h of its Q-mass by each. A flow
    that is cut pays more than it takes.

    *Who pays for whom.* Points are paired by blocks of 1, 2, 4, ... of them: in each pair of blocks the lower one goes
    up and the upper one goes down, until the Q-mass of either is used up; what remains is part of the next, longer
    block. On smooth rows nearly all is settled between neighbours, which costs the square of the mesh. A point without
    neighbours finds whatever balances it, and one sum over the whole row is all that is left to fall: where losses lie
    on a lattice, nothing else keeps them from falling by a mesh at each stage.

    *Rounding.* Shares, and what they keep, are what they are to the bit, and add up to less than 1, as what is kept is
    cut by 2u. A sum of Q-masses errs at each level by 3u for two products and a sum, and for e^(-2(t+1)h size) by 4u
    and 2u of the argument: this is at most 750 where the product is not flushed to 0, and doubles from level to level.
    In all, of 32 levels or fewer, by 3,300u; so the ratio of two by 6,600u, and by 6u for e^h and two operations. The
    share of a point is a sum of products of one number a level, 3u each. What goes up is cut by 2^13 u at each level,
    and once more in the end. A sum below 1e-290 may be short of what was flushed, and goes nowhere.
    """
    u, size = roundoff(), odd.shape[-1]
    cut = 1 - 2.0**13 * u

    def pair(sums: Array, fall: Array) -> tuple[Array, tuple[Array, Array]]:
        left, right = jnp.moveaxis(sums.reshape(*sums.shape[:-1], size // 2, 2), -1, 0)
        right = right * fall
        ratio = jnp.where(jnp.minimum(left, right) > 1e-290, right * jnp.exp(h) / left, 0.0)
        upward = jnp.minimum(ratio * cut, 1.0) * cut
        downward = jnp.where(ratio > 0, jnp.minimum(1 / ratio, 1.0), 0.0)
        keeps = (1 - jnp.stack([upward, downward], -1)) * (1 - 2 * u)
        rest = keeps[..., 0] * left + keeps[..., 1] * right
        ups = jnp.stack([upward, jnp.zeros_like(upward)], -1).reshape(sums.shape)
        return jnp.concatenate([rest, jnp.zeros_like(rest)], -1), (ups, keeps.reshape(sums.shape))

    def spread(later: Array, level: tuple[Array, Array]) -> tuple[Array, None]:
        ups, keeps = level
        return ups + keeps * jnp.repeat(later[..., : size // 2], 2, -1), None

    # Up the levels of blocks, then down: a point's share is what its block sends, and its part of what is kept.
    falls = jnp.exp(-2 * (order + 1) * h * 2.0 ** np.arange(round(math.log2(size))))
    _, levels = jax.lax.scan(pair, odd, falls)
    shares, _ = jax.lax.scan(spread, jnp.zeros_like(odd), levels, reverse=True)
    return odd * (shares * cut)


# ----------------------------------------------------------------------------------------------------
# Stages
# ----------------------------------------------------------------------------------------------------


def transform_error(points: int) -> float:
    """Returns a bound on the L2 error of a Fourier transform of ``points``, over the L2 norm of the exact result.

    Higham, "Accuracy and Stability of Numerical Algorithms", Theorem 24.2: log2(N) e / (1 - log2(N) e), where a
    level of butterflies errs by e = m + g (sqrt 2 + m), m the error of the factors and g = 4u/(1 - 4u): 6.7u for
    factors right to u. :attr:`.Arithmetic.of_level` takes 12u, as a real transform packs its rows, and as a library's
    factors may be wrong by a unit more; levels of four points are two of two, with fewer roundings.
    """
    error = math.log2(points) * (arithmetic().of_level * roundoff())
    return error / (1 - error)


def _blocks(points: int) -> tuple[int, int]:
    """Returns the shape of a row as a table of blocks: both about the root of the number of points, powers of two."""
    inner = 2 ** (round(math.log2(points)) // 2)
    return points // inner, inner


def _gaps(points: int) -> np.ndarray:
    """Returns distances of the moments' orders from the tilt, times the mesh: positive ones, then negative ones.

    The smallest resolve a window of all points with tails of e^-5; the largest are as steep as a block allows
    (:func:`_log_moments`). Any are sound.
    """
    gaps = np.geomspace(10.0 / points, 512.0 / _blocks(points)[1], ORDERS // 2)
    return np.concatenate([gaps, -gaps])


def _trim(rows: Float[Array, "kinds 2 points"], most: Float[Array, " kinds"]) -> tuple[Array, Array, Array, Array]:
    """Returns rows without the blocks at their ends that hold ``most`` at either end, what they held, and the ends.

    The ends are the first and the last block that are left of either side's row. What is held rounds by as many units
    as a block has points, and as there are blocks.
    """
    outer, inner = _blocks(rows.shape[-1])
    table = rows.reshape(*rows.shape[:-1], outer, inner)
    sums = jnp.sum(table, -1)
    sums_up_to, sums_from = (
        jnp.einsum("ksb,cb->ksc", sums, triangle, precision="highest") for triangle in _triangles(outer)
    )
    keeps = (sums_up_to > most[:, None, None]) & (sums_from > most[:, None, None])
    numbers = np.arange(float(outer))
    cut = jnp.sum(jnp.where(keeps, 0.0, sums), -1) * (1 + (2 * (inner + outer)) * roundoff())
    ends = jnp.min(jnp.where(keeps, numbers, outer - 1.0), (-1, -2)), jnp.max(jnp.where(keeps, numbers, 0.0), (-1, -2))
    return jnp.where(keeps[..., None], table, 0.0).reshape(rows.shape), cut, *ends


def _triangles(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the matrices of sums of all entries up to each, and of all from each."""
    return np.tril(np.ones((size, size))), np.triu(np.ones((size, size)))


def _log_moments(rows: Float[Array, "kinds 2 points"], low: Array, high: Array) -> Float[Array, "kinds orders"]:
    """Returns upper bounds on log sum of rows_j e^(g j), g of :func:`_gaps`; the larger one of both sides.

    The exponential is a product of one of the block and one within it, as is the sum; exponents count from the last
    block that is not empty, or from the first, so that none is positive. Of those within a block the largest is 512,
    which rounds by u of itself; of those of blocks, 745, by 2u. Both exponentials err by 4u and a product by u, a sum
    of a block's points or of all blocks by as many units as it has terms, at most 512 at 2^17 points: below 2,800u in
    all. The logarithm, at most 700 in size, errs by 8u of itself: 2^14 u are more than both. Products that vanish are
    each below TINY. The last product and sum round by 2u of the result's size, as do those with numbers of runs later:
    where moments are used as exponents this is counted (:func:`_convolve`).
    """
    outer, inner = _blocks(rows.shape[-1])
    gaps = _gaps(rows.shape[-1])
    in_block = np.arange(inner) - np.where(gaps > 0, inner - 1, 0)[:, None]
    tables = rows.reshape(*rows.shape[:-1], outer, inner)
    partial = jnp.einsum("ksbi,gi->ksgb", tables, np.exp(gaps[:, None] * in_block), precision="highest")
    ends = jnp.where(gaps[None] > 0, high[:, None], low[:, None])
    falls = jnp.exp(jnp.minimum((gaps[:, None] * inner)[None] * (np.arange(outer)[None, None] - ends[..., None]), 0.0))
    sums = jnp.max(jnp.sum(partial * falls[:, None], -1), 1) + rows.shape[-1] * TINY
    reference = ends * inner + np.where(gaps > 0, inner - 1, 0)[None]
    return jnp.log(sums) + gaps[None] * reference + 2.0**14 * roundoff()


def _window(logs: Array, nats: Array, points: int) -> tuple[Array, Array]:
    """Returns the ends between which all but e^-nats of a sum lies on each side, from its log-moments (..., orders)."""
    ends = (logs + nats[..., None]) / jnp.expand_dims(_gaps(points), range(logs.ndim - 1))
    return jnp.max(ends[..., ORDERS // 2 :], -1), jnp.min(ends[..., : ORDERS // 2], -1)


def _multiply(
    rows: Float[Array, "kinds 2 points"], powers: Float[Array, " kinds"], others: Float[Array, " kinds"]
) -> Complex[Array, "kinds 2 frequencies"]:
    """Returns the spectra of row 0 to the ``powers``, times those of row 1 to ``others``, which are 0 or 1."""
    spectra = jnp.fft.rfft(rows)
    most = jnp.max(powers)

    def turn(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        bit, square, product = state
        is_set = jnp.mod(jnp.floor(powers / bit), 2.0) == 1
        return 2 * bit, square * square, jnp.where(is_set[:, None, None], product * square[None], product)

    begin = jnp.where(others[:, None, None] > 0, spectra[1][None], jnp.ones_like(spectra[:1]))
    # One turn for each binary digit of the powers: the square of the last square.
    _, _, product = jax.lax.while_loop(lambda state: state[0] <= most, turn, (jnp.ones_like(most), spectra[0], begin))
    return product


def _convolve(
    state: _StageState, h: Array, powers: Array, others: Array, logs: Array, nats: Array, wrong: Array
) -> _StageState:
    """Returns sums of ``powers`` of the first kind and ``others`` of the second, in windows where their mass lies.

    ``logs`` are the sums' log-moments, ``nats`` their tails, and ``wrong`` (kinds, 2) what the sums' errors are before.

    *Aliasing*: what lies outside of the window is missing there, and wraps around to where it is not: twice its mass,
    which is at most e^(K(g) - g end), for each end (Chernoff). Rows begin at 0 and stages add 2^24 runs at most, so
    ends are whole numbers to the bit, and with g at most 512 over the points of a block neither term is above 2^42: the
    exponent, of four operations, rounds by 6u 2^42, below .003, and 2.02 covers that.

    *Rounding*, for rows of mass 1 at most, so spectra within 1: with a the L2 error of a transform, spectra err by
    a sqrt(N) |x|, and a power k of one by k times that, and by 3u k of itself, as a complex product errs by sqrt(5) u
    (Higham, section 3.6) and a square doubles what was; the spectrum of the result is no larger in L2 than that of
    either factor, and is transformed back with a. By Parseval, the L2 error is (2a + 3u)(k |x| + |y|) in all; the L1
    error is at most sqrt(N) times that. Moduli beyond 1 by rounding, of the transform and of the sum that rows were
    divided by: e^(k (a sqrt(N) + Nu)), and as much is taken again.
    """
    u, points = roundoff(), state.rows.shape[-1]
    gaps = _gaps(points)[None]
    # Where the circle is too short, as much more is spilled at one end as at the other.
    more = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])[None]
    low, high = _window(logs[:, None], nats[:, None] - more, points)
    low, high = _window(logs, nats - jnp.min(jnp.where(high - low < points - 2, more, more[0, -1]), -1), points)
    start = jnp.floor((low + high - points) / 2) + 1
    circle = jnp.maximum(jnp.fft.irfft(_multiply(state.rows, powers, others), points), 0.0)
    # Odd points of the next mesh are those with less mass: a law with all mass on every other point has no odd ones.
    alternates = jnp.sum(circle[:, 1].reshape(-1, points // 2, 2), 1)
    heavier = jnp.where(alternates[:, 1] > alternates[:, 0], 1.0, 0.0)
    start = start + jnp.mod(start + heavier, 2.0)
    turned = jnp.mod(start[:, None] + np.arange(points)[None], points).astype(jnp.int32)
    rows = jnp.take_along_axis(circle, turned[:, None], -1)
    ends = jnp.where(gaps > 0, (start + points)[:, None], (start - 1)[:, None])
    tails = logs - gaps * ends
    spill = jnp.sum(jnp.exp(jnp.min(tails.reshape(-1, 2, ORDERS // 2), -1)), -1)
    norms = jnp.sqrt(jnp.sum(state.rows * state.rows, -1))
    unit = transform_error(points)
    rounding = math.sqrt(points) * (2 * unit + 3 * u) * (powers[:, None] * norms[:1] + others[:, None] * norms[1:])
    rounding = rounding * jnp.exp(powers * (2 * unit * math.sqrt(points) + 2 * points * u))[:, None]

    def of_both(row: Array) -> Array:
        powers_of, others_of = (numbers.reshape(-1, *[1] * (row.ndim - 1)) for numbers in (powers, others))
        return powers_of * row[:1] + others_of * row[1:]

    moved = of_both(state.first), start * h
    first = moved[0] + moved[1]
    drift = of_both(state.drift) + 4 * u * (jnp.abs(moved[0]) + jnp.abs(moved[1]))
    error = wrong + 2.02 * spill[:, None] + rounding * (1 + 8 * u)
    return _normalize(_StageState(rows, first, of_both(state.log_mass), of_both(state.log_bound), error, drift))


def _normalize(state: _StageState) -> _StageState:
    """Returns the state with rows that sum to 1, the bound on their mass raised to it, and the rounding of both.

    Any number will do as a row's sum, as log_mass is raised by its logarithm: the quotient errs by u, the logarithm by
    8u of itself and the sum of both by u. Rows then sum to 1 up to Nu, which is added to the bound on the mass.
    """
    u, points = roundoff(), state.rows.shape[-1]
    sums = jnp.maximum(jnp.sum(state.rows, -1), TINY)
    logs = jnp.log(sums)
    log_mass = state.log_mass + logs
    rounding = u * (4 + 8 * jnp.abs(logs) + 2 * jnp.abs(log_mass))
    bound = jnp.maximum(state.log_bound, log_mass + points * u)
    return state._replace(
        rows=state.rows / sums[..., None], log_mass=log_mass, log_bound=bound, error=state.error + rounding
    )


def _power_of_error(powers: Array, others: Array, error: Float[Array, "2 2"]) -> Float[Array, "kinds 2"]:
    """Returns (1 + e)^powers (1 + f)^others - 1 for errors e, f of both kinds, 16u or more too large.

    The logarithms err by 8u, their products and sum by u each; expm1 errs by 8u, and passes on its argument's error, at
    most 1 plus the argument times as large a share of itself.
    """
    logs = powers[:, None] * jnp.log1p(error[:1]) + jnp.where(others[:, None] > 0, jnp.log1p(error[1:]), 0.0)
    logs = jnp.where(jnp.isnan(logs), jnp.inf, logs)
    return jnp.expm1(logs) * (1 + roundoff() * (32 + 16 * jnp.minimum(logs, 1e3)))


def evolve(law: Atoms, count: Array, plan: MeshPlan, points: int, *, method: Method, is_shared: bool) -> Sum:
    """Returns the sum of ``count`` runs of a law (2, n), a whole number from 0.

    The state is the sum of a power of runs, the number of further such powers that are due, and the runs that are set
    aside, as digits of the count in the radices of the stages.
    """
    root = jnp.ldexp(jnp.ones_like(count), jnp.ceil(jnp.log2(jnp.maximum(count, 1.0)) / 2).astype(jnp.int32))
    runs, outside, least = root[None], 0.0, root / 2
    if method is Method.RECURSIVE:
        # Numbers of runs among which a recursion chooses its first stage; sound for any whole numbers. It adds so many
        # runs outside of the point with most mass, in the mean: a sum of fewer is not smooth, so its odd points do not
        # find the mass that balances them when it is coarsened. Tightness only.
        runs, outside, least = jnp.append(2.0 ** np.arange(24), count), 8.0, jnp.full_like(root, 2.0)
    elif method is Method.FIXED:
        runs, least = count[None], jnp.minimum(count, TRIES[-1])
    one, h, planned, log_finite, shift = put_on_mesh(law, count, plan, points, runs, outside, is_shared=is_shared)
    planned = jnp.minimum(planned, TRIES[-1])
    nothing = _StageState(*map(jnp.zeros_like, one))
    nothing = nothing._replace(rows=nothing.rows.at[..., 0].set(1.0))
    state = _StageState(*(jnp.concatenate(pair) for pair in zip(one, nothing, strict=True)))

    def stage(carry: tuple[Array, Array, Array, _StageState]) -> tuple[Array, Array, Array, _StageState]:
        turn, left, h, state = carry
        copies = jnp.stack([left, jnp.ones_like(left)])
        most = jnp.max(state.error, -1)
        rows, cut, low, high = _trim(state.rows, jnp.exp(-plan.nats) / copies + most / 64)
        error = state.error + cut * np.array([[1.0, 0.0]])
        state = state._replace(rows=rows, error=error)
        logs = _log_moments(rows, low, high)
        # A stage adds the largest number of runs whose sum fits on the circle, or all that remain.
        tries = jnp.append(TRIES, left + 1)
        digits, after = jnp.mod(left, tries), jnp.floor(left / tries)
        powers = jnp.stack([jnp.where(after > 0, tries, 0.0), digits], -1)
        of_tries = powers[..., None] * logs[None, :1] + np.array([[[0.0], [1.0]]]) * logs[None, 1:]
        share = jnp.exp(-plan.nats) / jnp.stack([jnp.maximum(after, 1.0), jnp.ones_like(after)], -1)
        nats = -jnp.log(share + jnp.maximum(powers, 1.0) * most[0] / 32)
        ends = _window(of_tries, nats, points)
        fits = jnp.all(ends[1] - ends[0] <= points - 4, -1) & ((tries >= least) | (tries > left))
        # The first stage was planned from the upper law alone, and goes ahead; what it spills is counted.
        due = jnp.where(planned < left, planned, left + 1)
        fits = (fits | ((turn == 0) & (tries == due))) & (tries <= jnp.minimum(left + 1, TRIES[-1]))
        chosen = tries == jnp.maximum(jnp.max(jnp.where(fits, tries, 1.0)), 1.0)

        def pick(rows: Array) -> Array:
            return jnp.max(_where(chosen, rows, jnp.full_like(rows, -jnp.inf)), 0)

        added, now, others = pick(tries), pick(powers), jnp.asarray([0.0, 1.0], left.dtype)

        def add() -> _StageState:
            wrong = _power_of_error(now, others, error)
            return _convolve(state, h, now, others, pick(of_tries), pick(nats), wrong)

        state = jax.lax.cond(added > 1, add, lambda: state)
        left = jnp.floor(left / added)
        wide = _normalize(state._replace(rows=coarsen(state.rows, h, plan.order)))
        wide = wide._replace(error=wide.error + _coarsening_error(h, plan.order))
        goes_on = left > 0
        state = _StageState(*(jnp.where(goes_on, *pair) for pair in zip(wide, state, strict=True)))
        return turn + 1, left, jnp.where(goes_on, 2 * h, h), state

    begin = (jnp.int32(0), jnp.where(jnp.isfinite(one.error[0, 0]), count, 0.0), h, state)
    _, left, h, state = jax.lax.while_loop(lambda carry: (carry[1] > 0) & (carry[0] < ENDLESS), stage, begin)
    rows, first, log_mass, log_bound, error, drift = (leaf[1] for leaf in state)
    error = jnp.where((left == 0) & jnp.isfinite(one.error[0]), error, jnp.inf)
    log_finite = jnp.where(count > 0, count * log_finite, 0.0)
    return Sum(rows, first, h, plan.order, plan.nats, log_mass, log_bound, error, log_finite, count * shift + drift)


class _Joint(NamedTuple):
    """Two sums on their way to one mesh."""

    turn: Array
    mesh: Float[Array, " 2"]
    state: _StageState
    logs: Float[Array, " orders"]
    """Log-moments of their sum."""
    nats: Array
    """Tails of their sum that may be spilled."""
    fits: Array


def join(left: Sum, right: Sum) -> Sum:
    """Returns the sum of two sums of one order, whose meshes are powers of two of one another.

    The finer mesh is coarsened until both are one whose circle holds the sum.
    """
    nats, points = jnp.minimum(left.nats, right.nats), left.rows.shape[-1]
    pair = jax.tree.map(lambda *leaves: jnp.stack(leaves), left, right)
    state = _StageState(pair.rows, pair.first, pair.log_mass, pair.log_bound, pair.error, pair.shift)
    # A sum of no losses lies on any mesh.
    mesh = jnp.where(pair.mesh > 0, pair.mesh, jnp.max(pair.mesh))

    def even(joint: _Joint) -> _Joint:
        _, mesh, state, _, _, fits = joint
        is_finer = (mesh < jnp.max(mesh)) | (mesh[0] == mesh[1]) & ~fits
        is_finer = is_finer & (joint.turn > 0)
        rows = jax.vmap(coarsen, (0, 0, None))(state.rows, mesh, left.order)
        rounding = _coarsening_error(mesh, left.order)
        wide = _normalize(state._replace(rows=rows, error=state.error + rounding[:, None]))
        state = _StageState(*(_where(is_finer, *leaves) for leaves in zip(wide, state, strict=True)))
        rows, cut, low, high = _trim(state.rows, jnp.exp(-nats) + jnp.max(state.error, -1) / 64)
        state = state._replace(rows=rows, error=state.error + cut * np.array([[1.0, 0.0]]))
        logs = jnp.sum(_log_moments(rows, low, high), 0)
        tails = -jnp.log(jnp.exp(-nats) + jnp.sum(state.error) / 32)
        begin, end = _window(logs, tails, points)
        return _Joint(
            joint.turn + 1, jnp.where(is_finer, 2 * mesh, mesh), state, logs, tails, end - begin <= points - 4
        )

    def is_uneven(joint: _Joint) -> Array:
        return (joint.turn < ENDLESS) & ((joint.mesh[0] != joint.mesh[1]) | ~joint.fits)

    begin = _Joint(jnp.int32(0), mesh, state, jnp.zeros(ORDERS, mesh.dtype), nats, jnp.zeros((), bool))
    # Until there is one mesh, and the circle holds the sum; the first turn only looks.
    _, mesh, state, logs, tails, fits = jax.lax.while_loop(is_uneven, even, begin)
    both = jnp.ones_like(mesh[:1])
    wrong = _power_of_error(both, both, state.error)
    convolved = _convolve(state, mesh[0], both, both, logs[None], tails[None], wrong)
    rows, first, log_mass, log_bound, error, drift = (leaf[0] for leaf in convolved)
    is_one = (mesh[0] == mesh[1]) & fits & (left.order == right.order)
    error = jnp.where(is_one, error, jnp.inf)
    finite = left.log_finite + right.log_finite
    joined = Sum(rows, first, mesh[0], left.order, nats, log_mass, log_bound, error, finite, drift)
    # Beside nothing a sum stays what it is. Two sums of nothing have no mesh, on which points would be places.
    return jax.tree.map(
        lambda one, other, new: jnp.where(right.mesh > 0, jnp.where(left.mesh > 0, new, other), one),
        left, right, joined,
    )  # fmt: skip


def _where(choice: Array, yes: Array, no: Array) -> Array:
    """Returns rows of one array or the other by their first axis."""
    return jnp.where(choice.reshape(-1, *[1] * (yes.ndim - 1)), yes, no)


def compose(
    laws: Atoms,
    counts: Float[Array, " m"],
    points: int,
    *,
    log_delta: ArrayLike | None = None,
    epsilon: ArrayLike = 0.0,
    method: Method = Method.RECURSIVE,
    plan: MeshPlan | None = None,
    last: ArrayLike | None = None,
) -> Sum:
    """Returns the sum of ``counts`` runs of each of the laws (m, 2, n), to be read near a delta or near an epsilon.

    The laws evolve one after the other, each to its own mesh, and join the sum.

    Args:
        laws: stacked.
        counts: whole numbers from 0, below 2^45.
        points: number of points of the mesh, a power of two from 256.
        log_delta: log of the delta at which the sum is to be read; if None, it is ``epsilon`` that counts.
        epsilon: the epsilon at which the sum is to be read.
        method: the choice of meshes.
        plan: a plan that is made already, in place of one for ``log_delta`` or ``epsilon``.
        last: that of :func:`plan_sum`. Beyond it bounds hold, and are wide.
    """
    if plan is None:
        plan = plan_sum(laws, counts, points, log_delta=log_delta, epsilon=epsilon, last=last)
    if len(counts) == 1:
        return evolve(jax.tree.map(lambda leaf: leaf[0], laws), counts[0], plan, points, method=method, is_shared=False)
    zeros = jnp.zeros((2, points), counts.dtype)
    one, two = jnp.zeros_like(counts[0]), jnp.zeros_like(counts, shape=2)
    nothing = Sum(zeros.at[:, 0].set(1.0), one, one, plan.order, plan.nats, two, two, two, two, one)

    def add(total: Sum, row: tuple[Atoms, Array]) -> tuple[Sum, None]:
        law, count = row
        one = evolve(law, count, plan, points, method=method, is_shared=True)
        one = one._replace(mesh=jnp.where(count > 0, one.mesh, 0.0))
        return join(total, one), None

    return jax.lax.scan(add, nothing, (laws, counts))[0]


# ----------------------------------------------------------------------------------------------------
# Reading a sum
# ----------------------------------------------------------------------------------------------------


def _log_errors(total: Sum, epsilon: Float[Array, "... n"]) -> Float[Array, "2 n"]:
    """Returns the logs of what the errors can change D at epsilons (n,), or (2, n), by; it falls with epsilon.

    A logarithm of an error is at most 745 in size, as are those in log_peak, and each errs by 8u of itself, so all
    three by 18,000u; a product and three sums round by u of their sizes, of which K's is within 1,500 of the first
    sum's, and an exponential, later, by 4u: 16u of the sum and the product, and 2^15 u, are more than these.
    """
    fixed = jnp.log(jnp.maximum(total.error, TINY)) + total.log_bound + log_peak(total.order)
    fall = jnp.broadcast_to(total.order * epsilon, (2, epsilon.shape[-1]))
    return fixed[:, None] - fall + roundoff() * (16 * (jnp.abs(fixed)[:, None] + jnp.abs(fall)) + 2.0**15)


def error_of_delta(total: Sum, epsilon: Array) -> Float[Array, " 2"]:
    """Returns the most that all that was lost on the way can change delta by at an epsilon, above and below."""
    return jnp.exp(_log_errors(total, epsilon[None])[:, 0])


def infinite_mass(total: Sum) -> Float[Array, " 2"]:
    """Returns an upper and a lower bound on the probability that the sum is infinite.

    The log of a run errs by 8u of itself and the product by u; so does expm1 by 8u, and it passes on no larger share of
    its argument's error than there was.
    """
    return -jnp.expm1(total.log_finite) * (1 + SIDES * (32 * roundoff()))


def _reading_error(total: Sum, size: Array) -> Array:
    """Returns the relative error of a mass of P, or Q, of points with |t y| up to ``size``, and of sums of them.

    The exponent is a sum of four terms, each right to 2u of itself, its products to u more: 8u of all sizes with those
    of first + j mesh in it. The exponential errs by 4u, 1 - e^(eps - y) by 12u, products by u each: 64u are more. A sum
    of N terms errs by Nu in any order. Where points are off by ``shift``, masses that hold at their true places are off
    by e^(t shift): a tilted mass is not P's.
    """
    sizes = jnp.max(jnp.abs(total.log_mass)) + size
    rounding = roundoff() * (64 + total.rows.shape[-1] + 8 * sizes)
    return rounding + (1 + rounding) * jnp.expm1(jnp.minimum(total.order * total.shift * (1 + 1e-9), STEEPEST))


def _points_of(total: Sum) -> Array:
    return total.first + total.mesh * np.arange(float(total.rows.shape[-1]))


def bound_delta(total: Sum, epsilon: Array) -> tuple[Array, Array]:
    """Returns the lower and the upper bound on delta at an epsilon, a number.

    D is read off directly, as a sum of positive terms: 1 - e^(eps - y) of points above eps. The points stand for losses
    that differ from them by ``shift`` at most, so it is read at that much less, or more. The rounding of first + j mesh
    and of its difference from eps are 4u of their sizes, and counted with the shift.
    """
    y = _points_of(total)
    u = roundoff()
    shift = total.shift + 8 * u * (jnp.max(jnp.abs(y)) + jnp.abs(epsilon))
    at = epsilon - SIDES * shift
    above = y[None] - at[:, None]
    exponents = total.log_mass[:, None] - total.order * y[None]
    terms = jnp.where(
        above > 0, total.rows * jnp.exp(jnp.minimum(exponents, STEEPEST)) * -jnp.expm1(-jnp.abs(above)), 0.0
    )
    doubt = _reading_error(total, total.order * jnp.max(jnp.abs(y)))
    is_read = ~jnp.any((above > 0) & (exponents > STEEPEST), -1)
    change = jnp.exp(_log_errors(total, at[:, None])[:, 0])
    values = jnp.sum(terms, -1) * (1 + SIDES * doubt) + SIDES * change + infinite_mass(total)
    upper = jnp.where(is_read[0] & (values[0] <= 1), values[0] * (1 + 8 * u) + TINY, 1.0)
    lower = jnp.where(is_read[1] & (values[1] > 0), values[1] - 8 * u * jnp.abs(values[1]), 0.0)
    return lower, upper


def bound_epsilon(total: Sum, delta: Array) -> tuple[Array, Array]:
    """Returns the lower and the upper bound on epsilon at a delta, a number.

    Between two points D is P - e^eps Q, P and Q the masses from the upper point on, and so there is one logarithm for
    each pair of points, and no search. Of the errors, which fall with eps, those at the lower point hold. The upper
    bound is the least epsilon at which the upper law is at most delta; the lower one is the largest at which the lower
    law is above it. Beyond all points there are infinite losses, and errors: a bound by moments.
    """
    u, points = roundoff(), total.rows.shape[-1]
    sides = SIDES[:, None]
    y, log_delta, infinite = _points_of(total)[None], jnp.log(delta), infinite_mass(total)
    # In units of delta. Points with larger exponents prove nothing, nor does a sum that begins at a smaller loss.
    exponents = total.log_mass[:, None] - total.order * y - log_delta
    middle = jnp.clip((total.log_mass[:1, None] - log_delta) / total.order, y[:, :1], y[:, -1:])
    both = jnp.exp(jnp.minimum(jnp.stack([exponents, exponents - (y - middle)]), STEEPEST))
    outer, inner = _blocks(points)
    table = (total.rows[None] * both).reshape(2, 2, outer, inner)
    in_blocks = jnp.einsum("...j,ij->...i", table, _triangles(inner)[1], precision="highest")
    beyond = jnp.einsum("...j,ij->...i", in_blocks[..., 0], np.triu(np.ones((outer, outer)), 1), precision="highest")
    p, q = (in_blocks + beyond[..., None]).reshape(2, 2, points)
    former = y - total.mesh
    doubt = sides * _reading_error(total, jnp.abs(log_delta) + (total.order + 1) * jnp.max(jnp.abs(y)))
    log_change = _log_errors(total, former) - log_delta
    change = jnp.exp(jnp.minimum(log_change, STEEPEST))
    rest = (infinite / delta - 1)[:, None]
    owed = p * (1 + doubt) + sides * change + rest
    owed = owed + sides * (8 * u) * (p + change + jnp.abs(rest))
    q = q * (1 - doubt) + points * TINY * np.array([[0.0], [1.0]])
    epsilons = middle + jnp.log(jnp.maximum(owed, TINY) / jnp.maximum(q, TINY))
    above = (owed[:1] <= 0) | (q[:1] > TINY) & (epsilons[:1] <= y)
    holds = jnp.concatenate([above, (owed[1:] > 0) & (epsilons[1:] > former)])
    holds = holds & (jnp.maximum(exponents, exponents - (y - middle)) < STEEPEST) & (log_change < STEEPEST)
    values = jnp.where(holds, jnp.minimum(jnp.maximum(epsilons, former), y), sides * jnp.inf)
    moments = (_log_errors(total, jnp.zeros(1))[0, 0] - jnp.log(jnp.maximum(delta - infinite[0], 0.0))) / total.order
    moments = jnp.maximum(moments, y[0, -1]) + 64 * u * (jnp.abs(moments) + jnp.abs(y[0, -1]))
    upper = jnp.minimum(jnp.min(values[0]), jnp.where(infinite[0] < delta, moments, jnp.inf))
    lower = jnp.where(infinite[1] > delta, jnp.inf, jnp.max(values[1]))
    # Points, their logarithms and the middle round by 12u of the largest loss.
    shift = total.shift + 16 * u * (jnp.max(jnp.abs(y)) + 1)
    upper, lower = jnp.maximum(upper + shift, 0.0), jnp.maximum(lower - shift, 0.0)
    return jnp.where(jnp.isnan(lower), 0.0, lower), jnp.where(jnp.isnan(upper), jnp.inf, upper)
