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

Source: Dong, Durfee and Rogers (2020), "Optimal differential privacy composition for exponential mechanisms", Lemma 4.2
(two losses) and section 6 (the recursion); chords, Doroshenko et al. (2022), "Connect the dots".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike

from jaxacct.mechanisms.approximate_dp import ExponentialMechanism
from jaxacct.mechanisms.atoms import Atoms, atoms_of_masses
from jaxacct.mechanisms.finite import FinitePair
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Relation, directions, is_count, without_noops
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import arithmetic, roundoff, scale_error
from jaxacct.numerics.precision import as_float64, exact_float64, is_concrete, kept_positive, leave_scope, within_scope
from jaxacct.numerics.pytrees import register_dataclass

MOST = 128
"""Most runs of a block. Sound for any value; a block of n loses about a quarter of 1/n of epsilon."""

FINE, FINEST = 128, 1024
"""Mesh points in a range, for the longest blocks and at most. Sound for any values; more are tighter and slower."""

SIZE = FINE * (MOST + 1)
"""Mesh points above 0, whatever the number of runs: fewer runs have more of them in a range."""

KEPT = 1024
"""Most points above 0 at which a block's profile is kept. Sound for any value; more are tighter and slower."""

WIDEST = 512.0
"""Most that the squares of a block's ranges, in nats, add up to. Beyond it less than 1e-9 of the losses are near 0, and
the rounding of the others' masses, which is put there, would leave none. Sound for any value."""

STEP_ERROR = 4e-14
"""Relative error, in float64, of one evaluation of (*): t is off by an ulp of the range, which near its end is 64 of
p(t), and the mirror image by four more. The pair rests on it: it must not be lowered."""

RARE = 1e-200
"""Mass that the largest loss has beyond what the profile asks for, so that it stays above 0. Sound for any value."""


@register_dataclass
@dataclass(frozen=True)
class RangeBlock(Mechanism):
    """Several runs of mechanisms of one range, from 2 to ``MOST + 1``, as one; accountants make it of many runs."""

    epsilon: ArrayLike
    runs: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)

    def validate(self) -> None:
        """Raises never: what it is made of was checked."""

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        return (leave_scope(_pair(kept_positive(exact_float64(self.epsilon)), as_float64(self.runs))),)


@register_dataclass
@dataclass(frozen=True)
class RangeBlockPair(FinitePair):
    """The pair of a block, which dominates its worst adaptive composition, with a composition that it dominates.

    The pair's profile is a supremum of profiles, and no single composition has it: so of several blocks the pair is an
    upper bound alone. From below there is a mechanism that is as good as any for one purpose, the same two losses, t
    and t - e, in all runs (:meth:`discretize`).

    Attributes:
        p, q, losses, rounding: those of :class:`.FinitePair`.
        epsilon (): e, the range of a run.
        runs (): runs of the block.
    """

    epsilon: ArrayLike = np.nan
    runs: ArrayLike = np.nan

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns the law of the pair, and from below that of runs that have the losses t and t - e each.

        P gives t the probability p(t), so that j of k runs have the lower loss with that of a binomial law. Any t is
        sound. The one that is taken has, of 63, the largest loss beyond which about e^(12 - nats) of the block's is, as
        Chernoff's bound says for a few runs, and the normal law for more.

        *Rounding.* p(t) and 1 - p(t) are right to 40 units, and their logarithms count k times at most. Each of k
        ratios of binomial coefficients has a logarithm below 5 in size, right to 42 units; their sizes sum to less than
        180, so that their sums are right to 42 k, and to 180 k for the additions. With k <= 129 all that is below
        2^15.3 units, and with the exponential's 8 of itself and of an exponent below 745 it is below 2^16.
        """
        few = 8  # sound for any number
        above = super().discretize(cells, nats)
        e, k, count = as_float64(self.epsilon), as_float64(self.runs), above.losses.shape[-1]
        choices, orders = e * jnp.asarray(np.arange(1, 64) / 64), jnp.asarray(np.geomspace(1e-3, 1e3, 32))[:, None]
        high, low = _share_of_high(choices, e)[:, None]
        bounds = k * jnp.log(high + low * jnp.exp(-orders)) + jnp.maximum(nats - 12.0, 1.0)
        # Half as many deviations as one block has there, as there may be several blocks.
        far = jnp.sqrt(jnp.maximum(nats - 12.0, 0.0) / (2 * k))
        normal = choices - e * low[0] + far * e * jnp.sqrt(high[0] * low[0])
        score = jnp.where(k > few, normal, jnp.min(k * choices[None] + e * bounds / orders, 0))
        t = jnp.max(jnp.where(score == jnp.max(score), choices, 0.0))
        logs, j = jnp.log(_share_of_high(t, e)), jnp.asarray(np.arange(min(MOST + 2.0, count)))
        is_run = j <= k
        ratios = jnp.where(is_run & (j > 0), jnp.log((k - j + 1) / jnp.maximum(j, 1.0)), 0.0)
        coefficients = jnp.matmul(jnp.asarray(np.tri(j.shape[-1])), ratios, precision="highest")
        masses = jnp.where(is_run, jnp.exp(coefficients + (k - j) * logs[0] + j * logs[1]), 0.0)
        losses, units = jnp.where(is_run, k * t - e * j, 0.0), 2.0**16
        off = 4 * roundoff() * (k * t + e * j)
        rows = jnp.stack([losses, masses, off, units * roundoff() * masses])
        losses, masses, off, mass_off = jnp.pad(rows, ((0, 0), (0, count - j.shape[-1])))
        below = atoms_of_masses(losses, masses, off, mass_off, valid=self.is_valid())
        return jax.tree.map(lambda upper, lower: jnp.stack([upper[0], lower[1]]) if upper.ndim else upper, above, below)


def _share_of_high(t: Array, e: Array) -> Array:
    """Returns p(t) and 1 - p(t), (2, ...), right to 40 units of roundoff for t strictly within the range."""
    below_one = -jnp.expm1(-e)
    return jnp.stack([-jnp.expm1(t - e) / below_one, jnp.exp(t - e) * -jnp.expm1(-t) / below_one])


@jax.jit
def _pair(e: Array, runs: Array) -> RangeBlockPair:
    valid = (runs >= 2) & (runs <= MOST + 1) & (runs == jnp.floor(runs)) & (e >= 0)
    x, above = _masses(e, jnp.where(valid, runs, 2.0))
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
    return RangeBlockPair(jnp.where(valid & (rest >= 0), p, jnp.nan), q, signed, rounding, e, runs)


def _masses(e: Array, runs: Array) -> tuple[Array, Array]:
    """Returns the positive losses of a block, in units of the range, and P's masses there, each (KEPT,).

    They are points of the mesh at a distance at which KEPT of them reach the largest loss. A mass is the change of the
    chords' slope, or 0 where that is negative, which makes the profile larger. Then the profile of the masses as they
    are, rounding included, is compared with that of (*), and all masses are raised until it is nowhere below.
    """
    profile, fine = _profile(e, runs)
    places = jnp.minimum(jnp.ceil(fine * runs / KEPT) * jnp.arange(KEPT + 1.0), fine * runs)
    x, worst = places / fine, profile[places.astype(int)]
    apart = jnp.diff(x) * e
    # e^x Q(Y > x) between neighbours; points that are one have none.
    slope = jnp.where(apart > 0, -jnp.diff(worst) / jnp.expm1(jnp.where(apart > 0, apart, 1.0)), 0.0)
    masses = jnp.maximum(slope * jnp.exp(apart) - jnp.append(slope[1:], 0.0), 0.0).at[-1].add(RARE)

    def add(state: tuple[Array, Array], row: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (mass, apart), (ahead, found) = row, state
        ahead = mass + ahead
        found = found - jnp.expm1(-apart) * ahead
        return (ahead * jnp.exp(-apart), found), found

    # The profile at a point is that at the next one, and (1 - e^-h) sum over losses Y from there on of P e^-(Y - y).
    _, found = lax.scan(add, (jnp.zeros(()), jnp.zeros(())), (masses, apart), reverse=True)
    ratio = jnp.max(jnp.where(found > 0, worst[:-1] / jnp.where(found > 0, found, 1.0), 0.0))
    return x[1:], masses * (jnp.maximum(ratio, 1.0) * (1 + 64 * KEPT * roundoff()))


def _profile(e: Array, runs: Array) -> tuple[Array, Array]:
    """Returns upper bounds on D_k at 0, h, 2 h, ..., and the number of mesh points in a range, e/h."""
    # A power of two, so that h is e but for its exponent.
    fine = FINE * 2.0 ** jnp.clip(jnp.floor(jnp.log2(MOST / runs) + 1e-9), 0, math.log2(FINEST // FINE))
    h, last = e / fine, fine.astype(int)
    t = jnp.minimum(h * jnp.arange(FINEST + 1.0), e)
    off, below_one = 1 + scale_error(STEP_ERROR), -jnp.expm1(-e)
    high, low = _share_of_high(t, e)
    # The bulge of (*) between two t's: (h_s)^2 / (4 s^3) at the smaller s, times e^-e / (1 - e^-e).
    bulge = jnp.exp(t[1:] - e) * jnp.expm1(h) ** 2 / 4 / below_one
    x = h * jnp.arange(1.0, FINEST + 2)
    inside = jnp.where(jnp.arange(SIZE + 1) < last, jnp.minimum(h * jnp.arange(SIZE + 1.0) - e, 0.0), 0.0)
    single = jnp.expm1(inside / 2) ** 2 / below_one * off

    def step(_: Any, worst: Array) -> Array:
        mirrored = -jnp.expm1(-x) + jnp.exp(-x) * worst[1 : FINEST + 2]
        padded = jnp.concatenate([mirrored[::-1], worst, jnp.zeros(FINEST + 1)])
        # The chord from each mesh point to the one before it, at its left end: its value at e^x = 0.
        ends = padded[:-1] + (padded[:-1] - padded[1:]) / jnp.expm1(h)
        ends = jnp.concatenate([jnp.ones(1), ends])

        def shift(values: Array, by: Array) -> Array:
            return lax.dynamic_slice(values, (FINEST + 1 + by,), (SIZE + 1,))

        def at(j: Array) -> Array:
            return shift(padded, -j) * high[j] + shift(padded, last - j) * low[j]

        # At each t of the mesh its value of (*); between two of them the larger one and the bulge.
        def between(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            before, best = state
            value = at(j)
            gap = jnp.maximum(shift(ends, 1 - j) - shift(ends, last + 1 - j), 0.0)
            return value, jnp.maximum(best, jnp.maximum(before, value) + bulge[j - 1] * gap)

        _, best = lax.fori_loop(1, last + 1, between, (at(jnp.asarray(0)), jnp.zeros(SIZE + 1)))
        return jnp.minimum(best * off, 1.0)

    return lax.fori_loop(1, runs.astype(int), step, single), fine


# ----------------------------------------------------------------------------------------------------
# From the exponential mechanisms of a composition to blocks.
# ----------------------------------------------------------------------------------------------------


def has_blocks() -> bool:
    """Returns whether runs are taken together: not in pairs of float32, where that would take minutes."""
    return arithmetic().has_quick_loops


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
    spans, counts = zip(*(_rows(mechanism.epsilon, count) for mechanism, count in ranges), strict=True)
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
        return _blocks(span, count, jnp)
    span, count = (np.concatenate([np.asarray(row, np.float64) for row in rows]) for rows in (spans, counts))
    span, where = np.unique(span, return_inverse=True)
    count = np.bincount(where, weights=count, minlength=len(span))
    if np.any(count):
        span, count = span[count != 0], count[count != 0]
    if len(span) == 1:
        span, count = span[0], count[0]
    runs = _blocks(span, count, np)
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
    return RangeBlock(mechanism.epsilon, count), jnp.where(known, 1.0, jnp.nan)


def _rows(span: Any, count: Any) -> tuple[Any, Any]:
    xp: Any = np if is_concrete(span, count) else jnp
    return xp.broadcast_arrays(xp.atleast_1d(xp.asarray(span)), xp.atleast_1d(xp.asarray(count)))


def _blocks(span: Any, count: Any, xp: Any) -> list[tuple[Mechanism, Any]]:
    """Returns single runs, and blocks of two sizes, one more than the other, with numbers of each."""
    most = most_of(span)
    # What is no number of runs stays none, and so does a range that is none.
    several = (count > 1) & (count == xp.floor(count)) & (count < np.inf) & (most > 1)
    number = xp.where(several, xp.ceil(count / most), 1.0)
    size = xp.where(several, xp.floor(count / number), 2.0)
    longer = xp.where(several, count - size * number, 0.0)
    return [
        (ExponentialMechanism(span), xp.where(several, 0.0, count)),
        (RangeBlock(span, size), xp.where(several, number - longer, 0.0)),
        (RangeBlock(span, size + 1), longer),
    ]
