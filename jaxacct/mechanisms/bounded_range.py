"""Several runs of exponential mechanisms, taken together: one pair for a block of runs of one range.

Of the mechanisms whose losses lie in [t - e, t] the one with these two losses is the worst, t with the P-mass
p(t) = (1 - e^(t-e)) / (1 - e^-e), for a t in [0, e] (:class:`.BoundedRangePair`). Whoever composes k of them chooses
each t by the losses so far. With D_0(x) = (1 - e^x)+ the worst delta at x of k of them is

    D_k(x) = max over t in [0, e] of p(t) D_(k-1)(x - t) + (1 - p(t)) D_(k-1)(x - t + e).                        (*)

A supremum of profiles is a profile, so k runs are dominated by one run of the pair that has D_k, or any larger profile:
by much less than k runs of the pair of one, whose losses have a third more variance. Losses of others that lie between
these runs change nothing: the best t for each of their values is on average no less than the best for all of them, so
the runs of ranges may be taken to come last, one after another.

*On a mesh.* With x and t on a mesh of width h = e/m, (*) is exact sums of mesh values. Between two t's of the mesh let
s = e^-t. D_(k-1) is convex in e^x, so at x - t it is at most its chord's value a + b s, and a' + b' s at x - t + e; a
and a' are the chords' ends at s = 0, and a is the larger one. The chord's (*) is A + B s - C/s, with
C = (a - a') e^-e / (1 - e^-e) at least 0. That is concave, and so at most (h_s)^2/8 times 2C/s^3 above the larger of
its ends. Right of k e the profile is 0, and left of 0 it is the mirror image, D(-x) = 1 - e^-x + e^-x D(x).

*As a pair.* Between the points that are kept the profile is replaced by its chords in e^x, which are above it. Their
slopes are the pair's masses.

*From below.* Let Y be the loss of all other runs. Whoever makes them first, and then the runs of one block with what
D_k(x - Y) is attained by, attains E[D_k(x - Y)] at x: composed with others, D_k of *one* block is attained, and any
law with a profile nowhere above D_k bounds from below. Let h be the distance of the points that are kept, F at most D_k
and U at least D_k, at the points, and U the profile of the pair. With s at most F(x_j)/U(x_(j+1)) for all points, the
law of the pair with losses lowered by 2 h, and masses times s, has such a profile: for x between x_i and x_(i+1)

    s U(x + 2h)  <=  s U(x_(i+2))  <=  F(x_(i+1))  <=  D_k(x_(i+1))  <=  D_k(x),

as profiles fall. Left of all points D_k is 1 - e^x, which no profile of losses in [-k e - 2h, k e - 2h] exceeds: with
y = -x - 2h, U(-y) = 1 - e^-y (1 - U(y)) by its mirror image, and U(y) is at most 1 - e^-2h from y = k e - 2h on. Of
several blocks, and of single runs beside them, one may be so; of the others a composition is known that they dominate,
the same two losses in all runs.

Source: Dong, Durfee and Rogers (2020), "Optimal differential privacy composition for exponential mechanisms", Lemma 4.2
(two losses) and section 6 (the recursion); chords, Doroshenko et al. (2022), "Connect the dots".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike

from jaxacct.mechanisms.approximate_dp import BoundedRangePair, ExponentialMechanism, bounded_range_pair
from jaxacct.mechanisms.atoms import Atoms, atoms_of_masses
from jaxacct.mechanisms.finite import FinitePair
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Relation, directions, is_count, without_noops
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import arithmetic, roundoff, scale_error
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    exact_float64,
    is_concrete,
    kept_positive,
    leave_scope,
    within_scope,
)
from jaxacct.numerics.pytrees import register_dataclass

MOST = 128
"""Most runs of a block. Any value is sound; a block of n loses about a quarter of 1/n of epsilon."""

FINE, FINEST = 128, 1024
"""Mesh points in a range, for the longest blocks and at most. Any value is sound; more are tighter and slower."""

SIZE = FINE * (MOST + 1)
"""Mesh points above 0, whatever the number of runs: fewer runs have more of them in a range."""

KEPT = 1024
"""Most points above 0 at which a block's profile is kept. Any value is sound; more are tighter and slower."""

WIDEST = 512.0
"""Most that the squares of a block's ranges, in nats, add up to. Beyond it less than 1e-9 of the losses are near 0, and
the rounding of the others' masses, which is put there, would leave none. Any value is sound."""

STEP_ERROR = 3e-13
"""Relative error, in float64, of one evaluation of (*): t is off by an ulp of the range, which near its end is FINEST
units of p(t), and twice as many of a single run's square; the mirror image is off by four more. The pair rests on it:
it must not be lowered."""

RARE = 1e-200
"""Mass that the largest loss has beyond what the profile asks for, so that it stays above 0. Any value is sound."""


@register_dataclass
@dataclass(frozen=True)
class RangeRun(Mechanism):
    """One run of a mechanism of some range beside others of some range; accountants make it of these.

    ``is_last`` is 1 where it is the one whose losses may be chosen by those of all others, else 0. ``spread`` is the
    sum of the squares of the ranges of all runs.
    """

    epsilon: ArrayLike
    is_last: ArrayLike
    spread: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)

    def validate(self) -> None:
        """Raises never: what it is made of was checked."""

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        pair = bounded_range_pair(kept_positive(exact_float64(self.epsilon)))
        return (leave_scope(RangeRunPair(**vars(pair), is_last=self.is_last, spread=self.spread)),)


@register_dataclass
@dataclass(frozen=True)
class RangeRunPair(BoundedRangePair):
    """The pair of one run of some range, with a law that it dominates where other such runs are composed with it.

    Attributes:
        is_last (): 1 where the run's losses may be chosen by those of all others, so that its profile is attained;
            else 0, and from below it has the two losses t and t - e.
        spread (): the sum of the squares of the ranges of all runs.
    """

    is_last: ArrayLike = 0.0
    spread: ArrayLike = 1.0

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns the law of the pair, and from below that or one with two losses.

        Any t is sound (:func:`_best_choice`).
        """
        above = super().discretize(cells, nats)
        e = as_float64(self.highest)
        t = _best_choice(e, nats, self.spread)
        fixed = _two_losses(e, jnp.ones(()), t, above.losses.shape[-1], self.is_valid())
        return _with_below(above, above, fixed, as_float64(self.is_last))


@register_dataclass
@dataclass(frozen=True)
class RangeBlock(Mechanism):
    """Several runs of mechanisms of one range, from 2 to ``MOST + 1``, as one; accountants make it of many runs.

    ``is_last`` and ``spread`` are as those of :class:`RangeRun`.
    """

    epsilon: ArrayLike
    runs: ArrayLike
    is_last: ArrayLike = 0.0
    spread: ArrayLike = 1.0

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)

    def validate(self) -> None:
        """Raises never: what it is made of was checked."""

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        numbers = kept_positive(exact_float64(self.epsilon)), *map(as_float64, (self.runs, self.is_last, self.spread))
        return (leave_scope(_pair_of_block(*numbers)),)


@register_dataclass
@dataclass(frozen=True)
class RangeBlockPair(FinitePair):
    """The pair of a block, which dominates its worst adaptive composition, with a composition that it dominates.

    The pair's profile is a supremum of profiles, and no single composition has it: so of several blocks the pair is an
    upper bound alone, and it has no law to be read as the truth. Of one block (:meth:`one_run`) each point of the
    profile is that of an adversary, and known from both sides, also beside others (:mod:`.bounded_range`). From below
    several blocks have a mechanism that is as good as any for one purpose, the same two losses, t and t - e, in all
    runs (:meth:`discretize`).

    Attributes:
        p, q, losses, rounding: those of :class:`.FinitePair`.
        epsilon (): e, the range of a run.
        runs (): runs of the block.
        floor (KEPT + 1,): lower bounds on the block's delta at 0 and at the positive losses.
        is_last (): 1 where its losses may be chosen by those of all others, else 0.
        spread (): the sum of the squares of the ranges of all runs.
        share (): s, the share of the masses that a law from below may have whose losses are two steps smaller.
        cap (): the largest loss of that law, but for the two steps.
        step (): h, the distance of losses.
    """

    has_attained_product: ClassVar[bool] = False

    epsilon: ArrayLike = np.nan
    runs: ArrayLike = np.nan
    floor: ArrayLike = np.nan
    is_last: ArrayLike = 0.0
    spread: ArrayLike = 1.0
    share: ArrayLike = 0.0
    cap: ArrayLike = 0.0
    step: ArrayLike = np.nan

    def law(self) -> None:
        """Returns None: no composition has this law."""

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        """Returns bounds on the worst delta of a block; from below that of adversaries whose t are on the mesh.

        The profile D falls, and is convex in z = e^x. Let x_i be the first point beyond epsilon, and x_j the next. Left
        of x_i D is above the line through D(x_i) and D(x_j), and so above the one through any numbers at most D(x_i)
        and at least D(x_j), if it falls: ``floor`` and the pair's profile.

        *Rounding.* Points err by 4u of themselves, so D is read at 16u more of epsilon. Differences of points, which
        are at least 1/KEPT of them, so err by 2^14 u of themselves with expm1's 8u; the one from epsilon by 16u x_i.
        """
        u, edge = roundoff(), jnp.asarray(epsilon) * (1 + 16 * roundoff())
        points = jnp.concatenate([jnp.zeros(1), as_float64(self.losses)[:KEPT]])
        floor = as_float64(self.floor)
        first = jnp.sum(jnp.where(points < edge, 1, 0))
        here, after = points[jnp.minimum(first, KEPT)], points[jnp.minimum(first + 1, KEPT)]
        _, upper = super().one_run(epsilon)
        _, beyond = super().one_run(after)
        ahead = jnp.maximum(-jnp.expm1(jnp.minimum(edge - here, 0.0)) - 16 * u * here, 0.0)
        length = jnp.expm1(after - here)
        slope = jnp.where(length > 0, ahead / jnp.where(length > 0, length, 1.0), 0.0) * (1 - 2.0**15 * u)
        height = floor[jnp.minimum(first, KEPT)]
        lower = (height + jnp.maximum(height - beyond, 0.0) * slope) * (1 - 8 * u)
        lower = jnp.where((first <= KEPT) & ~jnp.isnan(lower), lower, 0.0)
        return jnp.minimum(lower, upper), upper

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns the law of the pair, and from below that of runs that have the losses t and t - e each, or its own.

        Any t is sound (:func:`_best_choice`). Of the block that is the last its own law is taken, with losses two steps
        smaller and a share of its masses.
        """
        above = super().discretize(cells, nats)
        e, k, count = as_float64(self.epsilon), as_float64(self.runs), above.losses.shape[-1]
        t = _best_choice(e, nats, self.spread)
        fixed = _two_losses(e, k, t, count, self.is_valid())
        # The law that is below the pair's is so, too, with smaller losses and masses: by 8u of the sum, and 4u.
        u, step = roundoff(), as_float64(self.step)
        losses = jnp.minimum(above.losses, as_float64(self.cap))
        lowered = losses - 2 * step - 8 * u * (jnp.abs(losses) + 2 * step)
        own = above._replace(losses=lowered, masses=above.masses * (as_float64(self.share) * (1 - 4 * u)))
        # The one with the larger moment, about where losses count: either is sound.
        b = _tilt(nats, self.spread)
        first, second = (jax.nn.logsumexp(b * law.losses[1], b=law.masses[1]) for law in (own, fixed))
        return _with_below(above, own, fixed, jnp.where(first > second, as_float64(self.is_last), 0.0))


def _best_choice(e: Array, nats: Array, spread: ArrayLike) -> Array:
    """Returns about the best t of one of several runs that have the losses t and t - e each. It only steers.

    The moment at the order 1 + b decides, with b of :func:`_tilt`. The t of the largest moment is in closed form
    (:class:`.BoundedRangePair`). Of wide ranges the largest losses count, which all runs have with a probability of
    about e^(12 - nats).
    """
    # Ranges from which on the largest losses count, in nats. Tightness only.
    wide = 8.0
    e, spread = jnp.maximum(e, TINY), jnp.maximum(as_float64(spread), TINY)
    b = _tilt(nats, spread)
    t = jnp.log(b / (1 + b)) + jnp.log(jnp.expm1(-(1 + b) * e) / jnp.expm1(-b * e)) + e
    t = jnp.where(e > wide, e + jnp.log1p(-jnp.exp(-jnp.maximum(nats - 12.0, 1.0) * (e * e / spread))), t)
    most = e * (1 - 2.0**-10)
    return jnp.where((t > 0) & (t < most), t, jnp.where(t > 0, most, e / 2))


def _tilt(nats: Array, spread: ArrayLike) -> Array:
    """Returns about the b by which a tilt moves the mean of all losses to those about as likely as e^(12 - nats).

    The losses' variance is about a quarter of the ranges' squares.
    """
    return jnp.sqrt(8 * jnp.maximum(nats - 12.0, 1.0) / jnp.maximum(as_float64(spread), TINY))


def _with_below(above: Atoms, own: Atoms, fixed: Atoms, is_last: Array) -> Atoms:
    """Returns the upper law of ``above`` with a lower one: that of ``own`` of the last run or block, else ``fixed``."""

    def stack(upper: Array, own: Array, fixed: Array) -> Array:
        return jnp.stack([upper[0], jnp.where(is_last > 0, own[1], fixed[1])]) if upper.ndim else upper

    return jax.tree.map(stack, above, own, fixed)


def _two_losses(e: Array, k: Array, t: Array, count: int, valid: Array) -> Atoms:
    """Returns the laws, of ``count`` atoms, of k runs that have the losses t and t - e each.

    P gives t the probability p(t), so that j of k runs have the lower loss with that of a binomial law.

    *Rounding.* p(t) and 1 - p(t) are right to 40 units, and their logarithms count k times at most. Each of k ratios of
    binomial coefficients has a logarithm below 5 in size, right to 42 units; their sizes sum to less than 180, so that
    their sums are right to 42 k, and to 180 k for the additions. With k <= 129 all that is below 2^15.3 units, and with
    the exponential's 8 of itself and of an exponent below 745 it is below 2^16.
    """
    logs, j = jnp.log(_share_of_high(t, e)), jnp.asarray(np.arange(min(MOST + 2.0, count)))
    is_run = j <= k
    masses = jnp.where(is_run, jnp.exp(_log_binomials(k, j) + (k - j) * logs[0] + j * logs[1]), 0.0)
    losses, units = jnp.where(is_run, k * t - e * j, 0.0), 2.0**16
    off = 4 * roundoff() * (k * t + e * j)
    rows = jnp.stack([losses, masses, off, units * roundoff() * masses])
    losses, masses, off, mass_off = jnp.pad(rows, ((0, 0), (0, count - j.shape[-1])))
    return atoms_of_masses(losses, masses, off, mass_off, valid=valid)


def _log_binomials(k: Array, j: Array) -> Array:
    """Returns the logs of k over j, j = 0, 1, ...; beyond k they are those of k."""
    ratios = jnp.where((j <= k) & (j > 0), jnp.log(jnp.where(j <= k, k - j + 1, 1.0) / jnp.maximum(j, 1.0)), 0.0)
    return jnp.matmul(jnp.asarray(np.tri(j.shape[-1])), ratios, precision="highest")


def _share_of_high(t: Array, e: Array) -> Array:
    """Returns p(t) and 1 - p(t), (2, ...), right to 40 units of roundoff for t strictly within the range."""
    below_one = -jnp.expm1(-e)
    return jnp.stack([-jnp.expm1(t - e) / below_one, jnp.exp(t - e) * -jnp.expm1(-t) / below_one])


@jax.jit
def _pair_of_block(e: Array, runs: Array, is_last: Array, spread: Array) -> RangeBlockPair:
    valid = (runs >= 2) & (runs <= MOST + 1) & (runs == jnp.floor(runs)) & (e >= 0)
    x, above, floor, share, cap, step = _masses_of_block(e, jnp.where(valid, runs, 2.0))
    losses = x * e
    below = above * jnp.exp(-losses)
    # Rounding of the masses: that of an exponential, whose argument is off by three units of itself. The mass at 0 is
    # what the others leave of 1, by a sum of some thousand terms.
    function, each = 8 * roundoff(), (16 + 4 * losses) * roundoff()
    rest = 1 - jnp.sum(above) - jnp.sum(below)
    of_rest = jnp.where(rest > 0, (4 * KEPT * roundoff() + function) / jnp.where(rest > 0, rest, 1.0), 0.0)
    p, q = (jnp.concatenate([one, rest[None], two]) for one, two in ((above, below), (below, above)))
    signed = jnp.concatenate([losses, jnp.zeros(1), -losses])
    rounding = jnp.concatenate([each, of_rest[None], each])
    p = jnp.where(valid & (rest >= 0), p, jnp.nan)
    return RangeBlockPair(p, q, signed, rounding, e, runs, floor, is_last, spread, share, cap, step)


def _masses_of_block(e: Array, runs: Array) -> tuple[Array, ...]:
    """Returns the positive losses of a block, in units of the range, P's masses there, and lower bounds on its profile.

    The first two are (KEPT,), the bounds (KEPT + 1,): at 0 as well. Then the share, the largest loss and the step of a
    law from below (:func:`_lower_share`).

    They are points of the mesh at a distance at which KEPT of them reach the largest loss. A mass is the change of the
    chords' slope, or 0 where that is negative, which makes the profile larger. Then the profile of the masses as they
    are, rounding included, is compared with that of (*), and all masses are raised until it is nowhere below.
    """
    (profile, least), fine = _worst_profile(e, runs)
    places = jnp.minimum(jnp.ceil(fine * runs / KEPT) * jnp.arange(KEPT + 1.0), fine * runs)
    x, worst = places / fine, profile[places.astype(int)]
    gaps = jnp.diff(x) * e
    # e^x Q(Y > x) between neighbours; points that are one have none.
    slope = jnp.where(gaps > 0, -jnp.diff(worst) / jnp.expm1(jnp.where(gaps > 0, gaps, 1.0)), 0.0)
    masses = jnp.maximum(slope * jnp.exp(gaps) - jnp.append(slope[1:], 0.0), 0.0).at[-1].add(RARE)

    def add(state: tuple[Array, Array], row: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (mass, gaps), (ahead, profile_of_masses) = row, state
        ahead = mass + ahead
        profile_of_masses = profile_of_masses - jnp.expm1(-gaps) * ahead
        return (ahead * jnp.exp(-gaps), profile_of_masses), profile_of_masses

    # The profile at a point is that at the next one, and (1 - e^-h) sum over losses Y from there on of P e^-(Y - y).
    _, profile_of_masses = lax.scan(add, (jnp.zeros(()), jnp.zeros(())), (masses, gaps), reverse=True)
    ratio = jnp.max(
        jnp.where(profile_of_masses > 0, worst[:-1] / jnp.where(profile_of_masses > 0, profile_of_masses, 1.0), 0.0)
    )
    raised = jnp.maximum(ratio, 1.0) * (1 + 64 * KEPT * roundoff())
    floor = least[places.astype(int)]
    step = jnp.ceil(fine * runs / KEPT) / fine * e
    share, cap = _lower_share(x * e, floor, jnp.append(profile_of_masses * raised, 0.0))
    return x[1:], masses * raised, floor, share, cap, step


def _lower_share(x: Array, least: Array, most: Array) -> tuple[Array, Array]:
    """Returns the share s of the module, and the largest loss, from the points (n,) from 0 up, and bounds there.

    They are bounds on D_k from below and on U from above. Bounds left of 0 are the mirror images. Losses above the
    largest one that is returned are lowered to it, which lowers U to 0 from there on: so where D_k is small, and from
    the first point on that needs a share, the law needs none. The bounds on U err by 256 KEPT units of themselves,
    which their mirror images do not magnify, and the share is lowered by as much.
    """
    # Deltas of a block from which on losses are lowered to one, if need be and in any case. Tightness only, but the
    # second is far above RARE, which U has more.
    small, smallest = 1e-25, 1e-180
    asks = (least[:-1] < most[1:]) & (least[:-1] < small)
    is_kept = (least > smallest) & (jnp.cumsum(jnp.append(False, asks)) == 0)
    cap = jnp.max(jnp.where(jnp.append(True, is_kept[:-1]), x, 0.0))
    mirrored, mirrored_most = ((-jnp.expm1(-x) + jnp.exp(-x) * bound)[::-1] for bound in (least, most))
    least, most = (
        jnp.concatenate([mirrored, least[1:]]),
        jnp.concatenate([mirrored_most, jnp.where(is_kept, most, 0.0)[1:]]),
    )
    ratios = jnp.where(most[1:] > 0, least[:-1] / jnp.where(most[1:] > 0, most[1:], 1.0), 1.0)
    return jnp.minimum(jnp.min(ratios), 1.0) * (1 - 512 * KEPT * roundoff()), cap


def _worst_profile(e: Array, runs: Array) -> tuple[Array, Array]:
    """Returns bounds on D_k at 0, h, 2 h, ..., from above and below (2, n), and the mesh points in a range, e/h.

    From below t is a point of the mesh, so that all values that (*) asks for are on it: an adversary's own profile.
    """
    # A power of two, so that h is e but for its exponent.
    fine = FINE * 2.0 ** jnp.clip(jnp.floor(jnp.log2(MOST / runs) + 1e-9), 0, math.log2(FINEST // FINE))
    h, last = e / fine, fine.astype(int)
    t = jnp.minimum(h * jnp.arange(FINEST + 1.0), e)
    off, below_one = 1 + jnp.array([1.0, -1.0]) * scale_error(STEP_ERROR), -jnp.expm1(-e)
    high, low = _share_of_high(t, e)
    # The bulge of (*) between two t's: (h_s)^2 / (4 s^3) at the smaller s, times e^-e / (1 - e^-e).
    bulge = jnp.exp(t[1:] - e) * jnp.expm1(h) ** 2 / 4 / below_one
    x = h * jnp.arange(1.0, FINEST + 2)
    inside = jnp.where(jnp.arange(SIZE + 1) < last, jnp.minimum(h * jnp.arange(SIZE + 1.0) - e, 0.0), 0.0)
    single = (jnp.expm1(inside / 2) ** 2 / below_one)[None] * off[:, None]
    # From below nothing lies between two t's.
    bulges = jnp.stack([bulge, jnp.zeros_like(bulge)])

    def step(_: Any, bounds: Array) -> Array:
        return jax.vmap(step_of)(bounds, bulges, off)

    def step_of(worst: Array, bulge: Array, off: Array) -> Array:
        mirrored = -jnp.expm1(-x) + jnp.exp(-x) * worst[1 : FINEST + 2]
        padded = jnp.concatenate([mirrored[::-1], worst, jnp.zeros(FINEST + 1)])
        # The chord from each mesh point to the one before it, at its left end: its value at e^x = 0.
        ends = padded[:-1] + (padded[:-1] - padded[1:]) / jnp.expm1(h)
        ends = jnp.concatenate([jnp.ones(1), ends])

        def shift(values: Array, by: Array) -> Array:
            return lax.dynamic_slice(values, (FINEST + 1 + by,), (SIZE + 1,))

        def value_at(j: Array) -> Array:
            return shift(padded, -j) * high[j] + shift(padded, last - j) * low[j]

        # At each t of the mesh its value of (*); between two of them the larger one and the bulge.
        def between(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            before, best = state
            value = value_at(j)
            gap = jnp.maximum(shift(ends, 1 - j) - shift(ends, last + 1 - j), 0.0)
            return value, jnp.maximum(best, jnp.maximum(before, value) + bulge[j - 1] * gap)

        _, best = lax.fori_loop(1, last + 1, between, (value_at(jnp.asarray(0)), jnp.zeros(SIZE + 1)))
        return jnp.minimum(best * off, 1.0)

    return lax.fori_loop(1, runs.astype(int), step, single), fine


# ----------------------------------------------------------------------------------------------------
# From the exponential mechanisms of a composition to blocks.
# ----------------------------------------------------------------------------------------------------


def has_blocks() -> bool:
    """Returns whether runs are taken together: not in float32, where their laws are not composed."""
    return arithmetic().has_transforms


def together(ranges: Sequence[tuple[Any, Any]]) -> list[tuple[Mechanism, Any]]:
    """Returns what dominates all runs of exponential mechanisms: a run by itself, and blocks of runs of one range.

    Mechanisms and numbers of runs may have a leading axis. It is one list whatever the composition was written as:
    runs of equal ranges count as runs of one mechanism. Concrete ones that are not run are left out.
    """
    ranges = [without_noops(*run) for run in ranges]
    if not has_blocks():
        return list(ranges)
    span: Any
    count: Any
    spans, counts = zip(*(_broadcast_rows(mechanism.epsilon, count) for mechanism, count in ranges), strict=True)
    if not is_concrete(spans, counts):
        span, count = (jnp.concatenate([as_float64(row) for row in rows]) for rows in (spans, counts))
        if len(span) > 1:
            # A sum would hide that one of its terms is no number of runs, and NaN is not equal to itself.
            count = jnp.where(is_count(count), count, jnp.nan)
            equal = (span[:, None] == span[None]) | np.eye(len(span), dtype=bool)
            is_first = ~jnp.any(equal & np.tri(len(span), k=-1, dtype=bool), axis=1)
            count = jnp.where(is_first, jnp.sum(jnp.where(equal, count[None], 0.0), axis=1), 0.0)
        else:
            span, count = span[0], count[0]
        return _split_into_blocks(span, count, jnp)
    span, count = (np.concatenate([np.asarray(row, np.float64) for row in rows]) for rows in (spans, counts))
    span, where = np.unique(span, return_inverse=True)
    count = np.bincount(where, weights=count, minlength=len(span))
    if np.any(count):
        span, count = span[count != 0], count[count != 0]
    if len(span) == 1:
        span, count = span[0], count[0]
    runs = _split_into_blocks(span, count, np)
    return [run for run in runs if np.any(run[1])] or runs[:1]


def most_of(span: Any) -> Any:
    """Returns the most runs of a range that are one block, from 1, where they are not taken together, to ``MOST``."""
    xp: Any = np if is_concrete(span) else jnp
    span = xp.asarray(span)
    # Also of ranges that are 0, or so small that their squares are.
    return xp.clip(xp.floor(WIDEST / xp.maximum(span * span, WIDEST / (2 * MOST))), 1.0, MOST)


def is_block(mechanism: ExponentialMechanism, count: Any) -> bool:
    """Returns whether concrete runs of an exponential mechanism are seen to be one block."""
    if not is_concrete(mechanism, count) or np.ndim(mechanism.epsilon):
        return False
    span = np.asarray(mechanism.epsilon, np.float64)
    return bool(span > 0 and 2 <= np.asarray(count) <= most_of(span))


def block(mechanism: Any, count: Any) -> tuple[Mechanism, Any]:
    """Returns the one block that runs of an exponential mechanism are known to be, though they may be traced."""
    known = (count >= 2) & (count <= MOST) & (count == jnp.floor(count))
    return RangeBlock(mechanism.epsilon, count, 1.0, 1.0), jnp.where(known, 1.0, jnp.nan)


RANGES = (RangeRunPair, RangeBlockPair)
"""The pairs of runs of exponential mechanisms: each is the worst of many, of which one adversary attains one."""


def without_choice(pairs: DominatingPair, spread: float) -> DominatingPair:
    """Returns pairs that may be composed with themselves: all of their runs attain the law from below at once.

    Pairs of a composition by itself may be those of the run, or block, whose losses are chosen by those of all others.
    Of pairs that are composed with themselves, or with other such, not all can be the last. So from below each run has
    two fixed losses, those that suit runs of this spread in all. Other pairs are returned as they are.
    """
    if not isinstance(pairs, RANGES):
        return pairs
    shape = np.shape(pairs.spread)
    return replace(pairs, is_last=np.zeros(shape), spread=np.full(shape, spread))


def _broadcast_rows(span: Any, count: Any) -> tuple[Any, Any]:
    xp: Any = np if is_concrete(span, count) else jnp
    return xp.broadcast_arrays(xp.atleast_1d(xp.asarray(span)), xp.atleast_1d(xp.asarray(count)))


def _split_into_blocks(span: Any, count: Any, xp: Any) -> list[tuple[Mechanism, Any]]:
    """Returns single runs, and blocks of two sizes, one more than the other, with numbers of each."""
    most = most_of(span)
    # What is no number of runs stays none, and so does a range that is none.
    several = (count > 1) & (count == xp.floor(count)) & (count < np.inf) & (most > 1)
    number = xp.where(several, xp.ceil(count / most), 1.0)
    size = xp.where(several, xp.floor(count / number), 2.0)
    longer = xp.where(several, count - size * number, 0.0)
    alone, shorter = xp.where(several, 0.0, count), xp.where(several, number - longer, 0.0)
    # One run, or one block, may choose its losses by those of all others: the one that is widest.
    times, sizes = xp.stack([alone, shorter, longer]), xp.stack([xp.ones_like(size), size, size + 1])
    squares = sizes * (span * span)[None]
    spread = xp.sum(times * squares) * xp.ones_like(span)
    width = xp.where(times == 1, squares, -1.0)
    is_widest = (width == xp.max(width)) & (width > 0)
    is_first = xp.cumsum(is_widest.reshape(-1)).reshape(width.shape) == 1
    last = xp.where(is_widest & is_first, 1.0, 0.0)
    return [
        (RangeRun(span, last[0], spread), alone),
        (RangeBlock(span, size, last[1], spread), shorter),
        (RangeBlock(span, size + 1, last[2], spread), longer),
    ]
