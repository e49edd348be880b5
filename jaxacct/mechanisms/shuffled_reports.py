"""Randomized response of many users, shuffled: what the histogram of their reports tells of one of them.

Each of n users sends one value through k-ary randomized response (:class:`.RandomizedResponse`), and a shuffler hides
who sent what. With e its epsilon and a = e^e, a report is a given other value with probability q = 1/(a + k - 1), and
the true one with a q. One user's value changes from 0 to 1.

*Above.* With probability kq a report is uniform and says nothing (the blanket). Reveal for every other user whether it
was, and what it is where it was not. Then count, among the reports left, n0 zeros, n1 ones and n2 others: under a law N
by which each of n reports is 0, 1, another value, or none with probabilities q, q, (k - 2) q and 1 - kq, the pair has
the densities (Balle, Bell, Gascón and Nissim 2019)

    A = (a n0 + n1 + n2)/n,        B = (n0 + a n1 + n2)/n,

so that its profile is E_N[(A - c B)+]. *Below.* All others hold the value 2. Under the law N of n such reports the
ratios of both histograms to it are those numbers again, with n2/a + (n - n0 - n1 - n2) in place of n2, n2 the number of
twos. For k = 2 all others hold 1, and B is 1.

*Convex order.* (A - c B)+ is convex in (n0, n1, n2). Let W = n0 + n1. Given W, the numbers n0 and n2 are binomial and
independent: each may be spread onto a lattice (above), or go to the means of cells (below). Where W itself has too many
values it goes to points of a lattice in the sum that A and B have in common. There the two other laws have to serve all
W beside a point: above with more trials of n0 (and of n2, moved to the right mean), below with fewer, for a sum of more
independent terms is larger in convex order, about its mean. Last, the ratio A/B goes to points of a mesh in the same
ways. So what comes out is a finite pair, larger or smaller than the true one, at every epsilon.

*Rounding.* Binomial masses come from Stirling's series and deviances, whose error is some units of the distance from
the mean; all sums are of positive terms. Windows leave out at most e^-40 on each side, by Bernstein's and Hoeffding's
inequalities, also where one of the trials has another law; above it is given away. Losses are moved by their error.

Sources: the upper bound, Balle, Bell, Gascón and Nissim (2019), "The privacy blanket of the shuffle model", section 5.
Of the lower bound by one histogram, and of its four values, we know of no source.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlog1py, xlogy
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.mechanisms.finite import FinitePair
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, is_exact_zero
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, leave_scope, within_scope
from jaxacct.numerics.pytrees import register_dataclass

MOST_USERS = 2**26
"""Largest valid number of users: a limit of time alone."""

LEFT_OUT = 40.0
"""Minus the log of the mass that a side of a window leaves out. Any value is sound."""

ROWS, COLUMNS, LAYERS = 2048, 768, 384
"""Largest numbers of points of W, of n0 and of n2. Any are sound."""

MESH = 2**13 + 1
"""Points of the ratio A/B, with 1 among them. Any number is sound."""

TERMS = 1.2e7
"""About how many combinations are added up. Any number is sound."""

LARGEST_EPSILON = 16.0
"""Largest epsilon of a report: above it a shuffler hides nothing of any use."""

KNOWN_SUM = 1e-7
"""Largest distance from one of the sum of a law's masses, which round by less. Beyond it the answer is inf."""

CHUNK, VALUES = 4096, 512
"""Combinations, and values of a binomial law, that are computed together. Speed only."""


class BinomialLaw(NamedTuple):
    """A binomial law: number of trials, probability of success, and of failure, each right to few units."""

    trials: Array
    success: Array
    failure: Array

    def window(self) -> tuple[Array, Array]:
        """Returns the ends of the values outside of which there is little mass, two trials more or less."""
        mean, variance = self.trials * self.success, self.trials * self.success * self.failure
        x = LEFT_OUT / 3
        most = jnp.minimum(x + jnp.sqrt(x**2 + 2 * LEFT_OUT * variance), jnp.sqrt(LEFT_OUT * self.trials / 2)) + 3
        return jnp.maximum(jnp.floor(mean - most), 0.0), jnp.minimum(jnp.ceil(mean + most), self.trials)

    def masses(self, x: Array) -> Array:
        """Returns the masses at whole numbers, right to 64 units of roundoff and of the distance from the mean."""
        n, p, f = self
        y = n - x
        inside = (x > 0) & (y > 0)
        x1, y1, n1 = jnp.where(inside, x, 1.0), jnp.where(inside, y, 1.0), jnp.where(inside, n, 2.0)
        logs = _stirling(n1) - _stirling(x1) - _stirling(y1) - _deviance(x1, n1 * p) - _deviance(y1, n1 * f)
        logs = logs + 0.5 * jnp.log(n1 / (2 * np.pi * x1 * y1))
        none, all_of_them = (
            jnp.where(each < 0.5, xlog1py(n, -each), xlogy(n, other)) for each, other in ((p, f), (f, p))
        )
        ends = jnp.where(x == 0, none, all_of_them)
        return jnp.where((x >= 0) & (y >= 0), jnp.exp(jnp.where(inside, logs, ends)), 0.0)


def _stirling(x: Array) -> Array:
    """Returns log x! less x log x - x + log(2 pi x)/2, for whole x from 1 on."""
    few = 16
    z = jnp.maximum(x, few)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / z**2) / z**2) / z**2) / z**2) / z
    k = np.arange(1.0, few)
    exact = np.array([math.lgamma(each + 1) for each in k]) - (k * np.log(k) - k + np.log(2 * np.pi * k) / 2)
    return jnp.where(x < few, jnp.asarray(exact)[jnp.clip(x - 1, 0, few - 2).astype(jnp.int32)], series)


def _deviance(x: Array, mean: Array) -> Array:
    """Returns x log(x/mean) + mean - x, inf where the mean is 0."""
    m = jnp.where(mean > 0, mean, 1.0)
    d = (x - m) / m
    return jnp.where(mean > 0, m * ((1 + d) * jnp.log1p(d) - d), jnp.inf)


class LatticeLaw(NamedTuple):
    """A law on neighbouring points, or on means of cells that begin there.

    Attributes:
        low (), stride (), number (): the first point, the distance from one to the next, and how many there are.
        values (m,): the points, or means, with more that have no mass.
        masses (m,): their masses.
    """

    low: Array
    stride: Array
    number: Array
    values: Array
    masses: Array


def _on_lattice(law: BinomialLaw, most: Array | int, size: int, contracts: bool) -> LatticeLaw:
    """Returns a law on at most ``most`` points, or as means of cells; ``size`` is static, and above ``most``."""
    low, high = law.window()
    stride = jnp.maximum(jnp.ceil((high - low) / (most - 1)), 1.0)
    count = jnp.ceil((high - low) / stride) + 1
    points = jnp.minimum(low + stride * jnp.arange(float(size)), high)

    def add(i: Array, into: Array) -> Array:
        x = low + i * VALUES + jnp.arange(float(VALUES))
        mass = jnp.where(x <= high, law.masses(x), 0.0)
        j = jnp.clip(jnp.floor((x - low) / stride), 0, size - 2).astype(jnp.int32)
        if contracts:
            return into.at[0, j].add(mass).at[1, j].add(mass * x)
        left, right = points[j], points[j + 1]
        share = jnp.clip((x - left) / jnp.maximum(right - left, 1.0), 0.0, 1.0)
        return into.at[0, j].add(mass * (1 - share)).at[0, j + 1].add(mass * share)

    # The values of the law, a chunk at a time: its window may be much wider than the lattice has points.
    chunks = ((high - low) // VALUES + 1).astype(jnp.int32)
    masses, firsts = jax.lax.fori_loop(0, chunks, add, jnp.zeros((2, size)))
    seen = (masses > 0) & contracts
    return LatticeLaw(low, stride, count, jnp.where(seen, firsts / jnp.where(seen, masses, 1.0), points), masses)


def _put_on_mesh(e: Array, n: Array, k: Array, contracts: bool, has_two: bool) -> tuple[Array, Array, Array]:
    """Returns points of the ratio, as (P - Q)/(P + Q), masses of the cells, and the number of terms of all sums.

    ``has_two`` says of a law that ``contracts`` that users choose between two values; both are static.
    Masses are (MESH + 1, 2), a row for each cell, the first of them below the points, the last above: Q's that go to
    the point before the cell, or to the ratio 0, and to the one after it, or P's to infinity; where it ``contracts``,
    P's and Q's in the cell.
    """
    a, more = jnp.exp(e), jnp.expm1(e)
    known = BinomialLaw(n, 2 / (a + (k - 1)), (a + (k - 3)) / (a + (k - 1)))
    # Where W has too many values one more or less tells little: half as many points are enough.
    low, high = known.window()
    rows = _on_lattice(known, jnp.where(high - low < ROWS, ROWS, ROWS // 2), ROWS + 2, contracts)
    parts = (a, k - 3.0) if contracts else (k - 2.0, more)
    success, failure = (part / (parts[0] + parts[1]) for part in parts)

    # The mesh, of y = (P - Q)/(P + Q), is dense where that has its mass: ``width`` is about four standard deviations.
    mean = n * known.success
    shared = (n - mean if contracts else n * (k - 2) / (a + (k - 1))) + (a + 1) / 2 * mean
    width = jnp.minimum(4 * more * jnp.sqrt(mean + 1) / shared, e)
    reach = jnp.arcsinh(jnp.tanh(jnp.minimum(6 * width, e) / 2) / width)
    step = 2 * reach / (MESH - 1)
    mesh = width * jnp.sinh(step * jnp.arange(float(MESH)) - reach)
    ratios = (1 + mesh) / (1 - mesh)
    slopes = (1 - mesh[1:]) / (mesh[1:] - mesh[:-1])

    def add(weights: Array, p: Array, q: Array, difference: Array, into: Array) -> Array:
        """Adds combinations of some weights, and of densities p and q."""
        counts = (weights > 0) & ~((p <= 0) & (q <= 0))  # without any report there is neither
        y = jnp.where(counts, difference / (p + q), 0.0)
        p, q = jnp.where(counts, weights * p, 0.0), jnp.where(counts, weights * q, 0.0)
        x = y / width
        v = jnp.sign(x) * jnp.log(jnp.abs(x) + jnp.sqrt(x**2 + 1))
        cell = jnp.clip(jnp.floor((v + reach) / step), -1, MESH - 1).astype(jnp.int32)
        if contracts:
            return into.at[cell + 1].add(jnp.stack([p, q], axis=-1))
        inner = jnp.clip(cell, 0, MESH - 2)
        share = jnp.clip((y - mesh[inner]) / (1 - y) * slopes[inner], 0.0, 1.0)
        share = jnp.where(cell < 0, jnp.clip(p / (q * ratios[0]), 0.0, 1.0), share)
        # Beyond the last point Q's mass stays there, and what P has more goes to infinity.
        beyond = cell == MESH - 1
        left = jnp.where(beyond, q, q * (1 - share))
        right = jnp.where(beyond, jnp.maximum(p - q * ratios[-1], 0.0), q * share)
        return into.at[cell + 1].add(jnp.where(counts[:, None], jnp.stack([left, right], axis=-1), 0.0))

    def twos_of(trials: Array) -> LatticeLaw:
        return _on_lattice(BinomialLaw(trials, success, failure), layers, LAYERS + 2, contracts)

    # Where n2 has more values than layers one law of it serves all rows: that of the most trials, or of the least.
    end, half = jnp.minimum(rows.low + rows.stride * rows.number, n), jnp.full((), 0.5)
    low, high = BinomialLaw(end, half, half).window()
    layers = jnp.floor(TERMS / rows.number / jnp.minimum(high - low + 1, COLUMNS))
    layers = jnp.clip(layers, 8.0, LAYERS)
    most_shared = n - (end if contracts else jnp.maximum(rows.low - rows.stride, 0.0))
    shared_twos = twos_of(most_shared)
    is_shared = shared_twos.stride > 8

    def add_row(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Adds what belongs to a point, or cell, of W."""
        first = jnp.minimum(rows.low + rows.stride * i, n)
        extra = jnp.where(rows.stride > 1, rows.stride, 0.0)
        last, w = jnp.minimum(first + rows.stride - 1, n), rows.values[i]
        if contracts:
            trials, rest = first, n - last
        else:
            trials, rest = first + extra, n - first + extra
        zeros = _on_lattice(BinomialLaw(trials, half, half), COLUMNS, COLUMNS + 2, contracts)
        rest = jnp.where(is_shared, most_shared, rest)
        twos = jax.lax.cond(is_shared, lambda: shared_twos, lambda: twos_of(rest))
        moved = n - w - rest

        def add_chunk(c: Array, into: Array) -> Array:
            index = c * CHUNK + jnp.arange(float(CHUNK))
            layer = jnp.floor(index / zeros.number)
            column = jnp.clip(index - layer * zeros.number, 0, COLUMNS).astype(jnp.int32)
            inside, layer = layer < twos.number, jnp.minimum(layer, LAYERS).astype(jnp.int32)
            weights = jnp.where(inside, rows.masses[i] * zeros.masses[column] * twos.masses[layer] / n, 0.0)
            n0, n2 = zeros.values[column], twos.values[layer]
            n1 = trials - n0
            n2 = n2 + moved * success
            base = (n2 / a + n - w - n2 if contracts else n2) + (a + 1) / 2 * (w - trials)
            return add(weights, base + a * n0 + n1, base + n0 + a * n1, more * (n0 - n1), into)

        into, terms = state
        combinations = zeros.number * twos.number
        into = jax.lax.fori_loop(0, jnp.ceil(combinations / CHUNK).astype(jnp.int32), add_chunk, into)
        return into, terms + combinations

    start = jnp.zeros((MESH + 1, 2))
    if contracts and has_two:
        zeros = _on_lattice(BinomialLaw(n, 1 / (a + 1), a / (a + 1)), 2 * MESH, 2 * MESH + 2, contracts)
        n0, n1 = zeros.values, n - zeros.values
        masses = add(zeros.masses / n, a * n0 + n1 / a, jnp.full_like(n0, n), more * (n0 - n1 / a), start)
        return mesh, masses, zeros.number
    # A row of combinations for each point of W that there is.
    masses, terms = jax.lax.fori_loop(0, rows.number.astype(jnp.int32), add_row, (start, jnp.zeros(())))
    return mesh, masses, terms


@functools.partial(jax.jit, static_argnames=("contracts", "has_two"))
def _pair(epsilon: Array, choices: Array, users: Array, contracts: bool, has_two: bool) -> FinitePair:
    valid = (epsilon > 0) & (epsilon <= LARGEST_EPSILON) & (users >= 1) & (users <= MOST_USERS)
    valid = valid & (users == jnp.floor(users))
    e, n = jnp.where(valid, epsilon, 1.0), jnp.where(valid, users, 1.0)
    mesh, masses, terms = _put_on_mesh(e, n, choices, contracts, has_two)
    mesh = 2 * jnp.arctanh(mesh)
    u, left_out = roundoff(), 8 * math.exp(-LEFT_OUT)
    # Three binomial masses, by their distances from the mean, the densities and the sums.
    error = u * (3 * 64 * (2 * LEFT_OUT + jnp.sqrt(LEFT_OUT * n)) + 64 * (2 + e) + terms)
    theta = u * (128 + 400 * e)
    if contracts:
        # What is left out is told apart from nothing: it belongs to a cell, of a mass of 1/MESH at least.
        error = error + 2 * left_out * MESH
        p, q = masses.T
        sums = jnp.sum(p), jnp.sum(q)
        p, q = p / sums[0], q / sums[1]
        seen = (p > 0) & (q > 0)
        losses = jnp.where(seen, jnp.log(jnp.where(seen, p, 1.0) / jnp.where(seen, q, 1.0)) - 4 * error - theta, 0.0)
    else:
        left, right = masses.T
        zero, infinite, none = left[:1] + left_out, right[-1:] + left_out, jnp.zeros(1)
        at = left[1:] + right[:-1]
        p, q = jnp.concatenate([at * jnp.exp(mesh), infinite, none]), jnp.concatenate([at, none, zero])
        sums = jnp.sum(p), jnp.sum(q)
        p, q = p / sums[0], q / sums[1]
        losses = jnp.concatenate([mesh + theta, jnp.array([jnp.inf, -jnp.inf])])
    # Both laws come to one but for rounding and what is left out, or something is wrong.
    valid = valid & (jnp.abs(sums[0] - 1) < KNOWN_SUM) & (jnp.abs(sums[1] - 1) < KNOWN_SUM)
    return FinitePair(jnp.where(valid, p, jnp.nan), q, losses, jnp.where(valid, 4 * error + theta, jnp.nan))


@dataclass(frozen=True)
class _Reports(Mechanism):
    """The base of both bounds on shuffled reports: their fields."""

    epsilon: ArrayLike
    choices: int = field(metadata={"static": True})
    users: ArrayLike = 1

    relations: ClassVar[tuple[Relation, ...]] = ("replace",)

    def validate(self) -> None:
        validation.check_epsilon(self.epsilon)
        largest = validation.concrete_value(self.epsilon)
        if largest is not None and np.any(largest > LARGEST_EPSILON):
            raise ValueError(f"epsilon = {self.epsilon} is above {LARGEST_EPSILON}: take the reports as not shuffled.")
        validation.check_whole(self.choices, "choices", 2, 2**20, "the number of values that a user may have")
        validation.check_whole_numbers(self.users, "users", MOST_USERS, "users", "how many report,")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_exact_zero(self.epsilon)

    contracts: ClassVar[bool] = False

    @within_scope
    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which serves both directions; of a smaller law for two values, one for each."""
        directions(self, relation)
        has_two = self.contracts and self.choices == 2
        numbers = (as_float64(number) for number in (self.epsilon, self.choices, self.users))
        pair = _pair(*numbers, self.contracts, has_two)
        if not has_two:
            return (leave_scope(pair),)
        losses = as_float64(pair.losses)
        return leave_scope((pair, FinitePair(pair.q, pair.p, -losses, pair.rounding)))


@register_dataclass
@dataclass(frozen=True)
class ShuffledRandomizedResponse(_Reports):
    """Randomized response of many users, one report each, of which a shuffler releases the histogram.

    Attributes:
        epsilon (...): that of each report, as for :class:`.RandomizedResponse`; from 0 to 16.
        choices: k, the number of values that a user may have, at least 2; static.
        users (...): n, how many send a report, the one in question among them; whole, up to 2**26.

    Relations: "replace": one user's value is another one. The randomizers are fixed before anything is released:
    reports that depend on the results of others, or several of one user, are *not* this mechanism.

    Formal guarantee: the pair dominates one run, whatever the others' values are, and so dominates adaptive
    compositions of several. ``lower`` is the mechanism's, of the data sets in which all others hold a third value, or,
    of two, the new one. Both are right to what a mesh of 8,193 losses and lattices for many users cost: for k = 10,
    epsilon 3 and a delta of 1e-6 the exact ends are .663125 and .663360 for 1,000 users.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead.

    Source: Balle, Bell, Gascón and Nissim (2019), "The privacy blanket of the shuffle model", for the upper bound;
    :mod:`jaxacct.mechanisms.shuffled_reports`.

    >>> from jaxacct import epsilon
    >>> print(epsilon(ShuffledRandomizedResponse(3.0, choices=10, users=1000), 1, 1e-6, relation="replace"))
    [0.663124, 0.663361]
    """

    def attained(self, relation: Relation) -> tuple[tuple[Mechanism, ...], ...]:
        directions(self, relation)
        return ((HistogramsFromBelow(self.epsilon, self.choices, self.users),),)


@register_dataclass
@dataclass(frozen=True)
class HistogramsFromBelow(_Reports):
    """The histograms of two data sets in which all others hold one value, up to cells of their ratio."""

    contracts: ClassVar[bool] = True
    tight: ClassVar[bool] = True
