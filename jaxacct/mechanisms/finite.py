"""Privacy losses that are atoms, or are known by masses alone: pairs, noise on the integers, and a user's own pairs.

No density is integrated here: every mass is a sum, or a difference, of given numbers. So a bound on its rounding is a
count of the operations, besides what the caller claims of the numbers themselves. In reading order:

1. :class:`FinitePair`, of finitely many outcomes, its law :class:`LawOfAtoms`, and the mechanism
   :class:`DiscretePair`, whose user gives the outcomes' probabilities;
2. :class:`LossDistributionPair`, and the mechanism :class:`PrivacyLoss`, whose user gives distribution functions;
3. the pairs of mechanisms without noise, which are finite: :func:`noiseless_pairs`;
4. noise on one integer, :class:`NoiseOnIntegers`: :class:`DiscreteLaplace`;
5. :class:`PublicCoinPair`, of one of several pairs, drawn by a public coin.

That a pair of the user's own dominates the mechanism is for the user to prove.

Source: Doroshenko et al. (2022), "Connect the dots", for the upper discretization of the second.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from jaxacct import validation
from jaxacct.mechanisms.atoms import Atoms, atoms_in_order, atoms_of_cells, atoms_of_masses
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, NoisyMechanism, Relation, SampledNoise, directions
from jaxacct.mechanisms.pair import (
    CellMasses,
    DominatingPair,
    Law,
    Nodes,
    hockey_stick,
    in_float64_only,
    moments,
    reflect,
)
from jaxacct.numerics.arithmetic import FLOAT64, arithmetic, roundoff, scale_error
from jaxacct.numerics.precision import (
    TINY,
    as_float64,
    as_real,
    first_index,
    is_concrete,
    leave_scope,
    within_scope,
)
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.numerics.root_search import bisect_traced

# ----------------------------------------------------------------------------------------------------
# The pair of finitely many outcomes.
# ----------------------------------------------------------------------------------------------------

LOSS_UNITS = 8
"""Units of roundoff by which a computed loss errs relative to itself; a smaller one would break bounds.

Two errors add up. The one is that of a quotient, which tells 3.9-fold in a logarithm above 0.26, or of a difference and
a quotient, which tell 1.2-fold in a log1p from -1/4 up. The other is that of log or log1p.
tests/mechanisms/test_finite.py asks for three quarters of it.
"""


def bound_distance_from_one(masses: Array) -> Array:
    """Returns a bound on the distance from one of the sum of masses (n,), at least 0, which is near one.

    Rows of masses are added one after the other, and then the places of a row. The rounding of each addition is a
    number itself, found without an error (Knuth's two-sum), so that sum and roundings together are exact but for the
    addition of the roundings. The m additions of rows, and of places, round by at most u of the total, about one, each.
    So the roundings add up to m u at most, and their additions err by at most m u of that. Sums that are one so have a
    distance of about 1e-30, and not of n u, which as many runs would multiply.

    Source: Knuth, The Art of Computer Programming, volume 2, section 4.2.2, Theorem B.
    """
    # Places of a row: about as many as there are rows of a thousand masses. Speed only.
    width = 1 if masses.shape[-1] <= 8 else 32
    rows = -(-masses.shape[-1] // width)
    # Of constants XLA makes y of (x + y) - x, which for others it computes.
    masses = jax.lax.optimization_barrier(jnp.pad(masses, (0, rows * width - masses.shape[-1])))
    total, rounded = _add_rows_exactly(masses.reshape(rows, width))
    if width > 1:
        (total, last), rounded = _add_rows_exactly(total[:, None]), jnp.sum(rounded)[None]
        rounded = rounded + last
    # The difference from one is exact for sums in [1/2, 2].
    distance = jnp.abs((total[0] - 1) + rounded[0]) * (1 + 4 * roundoff())
    return distance + 4 * ((rows + 2 * width) * roundoff()) ** 2


def _add_rows_exactly(rows: Array) -> tuple[Array, Array]:
    """Returns the sum (w,) of rows (n, w) in working precision, and the sum of what its additions rounded off."""

    def add(state: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], None]:
        old, rounded = state
        new = old + row
        added = new - old
        return (new, rounded + ((old - (new - added)) + (row - added))), None

    state = rows[0], jnp.zeros_like(rows[0])
    if len(rows) > 8:
        return jax.lax.scan(add, state, rows[1:])[0]
    # Few rows are quicker without a loop.
    for row in rows[1:]:
        state, _ = add(state, row)
    return state


@register_dataclass
@dataclass(frozen=True)
class FinitePair(DominatingPair):
    """P- and Q-probabilities of m outcomes, in any order.

    An outcome with q = 0 < p has an infinite loss and belongs to no cell; neither does one with p = 0. In float64 the
    numbers given are the truth, up to ``rounding``. Where their sum misses one by rounding, cumulants take it for one.

    Attributes:
        p (m,), q (m,): probabilities; normal float64 numbers or 0, since XLA takes subnormal ones for 0.
        losses (m,): ``log p/q`` where it is known better than by dividing, right to three ulps; infinite ones too.
        rounding (m,) or (): bound on the relative error of p and of q.

    >>> pair = FinitePair(p=[0.75, 0.25], q=[0.25, 0.75])  # randomized response with epsilon = log 3
    >>> with jax.enable_x64(True):
    ...     print([round(float(loss), 4) for loss in pair.loss_range()])
    [-1.0986, 1.0986]
    """

    p: ArrayLike
    q: ArrayLike
    losses: ArrayLike | None = None
    rounding: ArrayLike = 0.0

    def _atoms(self) -> tuple[Array, Array, Array, Array]:
        """Returns p, q, the losses (0 where infinite), and which outcomes have a finite loss."""
        p, q, losses = as_real(self.p), as_real(self.q), self._losses()
        finite = jnp.isfinite(losses)
        return jnp.where(finite, p, 0.0), jnp.where(finite, q, 0.0), jnp.where(finite, losses, 0.0), finite

    def _losses(self) -> Array:
        p, q = as_real(self.p), as_real(self.q)
        if self.losses is not None:
            return as_real(self.losses)
        shared = (p > 0) & (q > 0)
        above, below = jnp.where(shared, p, 1.0), jnp.where(shared, q, 1.0)
        # Near one the quotient's rounding would be all of its logarithm; a difference rounds relative to itself. The
        # lower limit is -1/4, for XLA's log1p was measured off by 240 units near -0.41. From 0.3 on, 3.9 units of the
        # quotient and four of the logarithm are no more than LOSS_UNITS.
        excess = (above - below) / below
        log_ratio = jnp.where((excess > -0.25) & (excess < 0.3), jnp.log1p(excess), jnp.log(above / below))
        return jnp.where(shared, log_ratio, jnp.where(p > 0, jnp.inf, -jnp.inf))

    def is_valid(self) -> Array:
        p, q = as_real(self.p), as_real(self.q)
        # The distance from one that the sum of masses may have: 1e-12 in float64, besides two roundings for each of
        # them. The epsilon of a pair that misses it is infinite.
        allowed = scale_error(1e-12) + 2 * roundoff() * p.shape[-1]
        is_pair = jnp.all((p >= 0) & (p <= 1) & (q >= 0) & (q <= 1)) & ~jnp.any(jnp.isnan(self._losses()))
        return is_pair & (jnp.abs(jnp.sum(p) - 1) <= allowed) & (jnp.abs(jnp.sum(q) - 1) <= allowed)

    def surplus(self) -> tuple[Array, Array]:
        """Returns bounds on the distances of the sums of p and of q from one, where the numbers given are the truth.

        Numbers that round, of ``rounding`` above 0, stand for laws, and miss none but where losses were moved.
        """
        is_given = jnp.all(as_real(self.rounding) == 0)
        distances = [bound_distance_from_one(as_real(masses)) for masses in (self.p, self.q)]
        return jnp.where(is_given, distances[0], 0.0), jnp.where(is_given, distances[1], 0.0)

    def loss_range(self) -> tuple[Array, Array]:
        p, _, losses, _ = self._atoms()
        infimum = jnp.min(jnp.where(p > 0, losses, jnp.inf))
        supremum = jnp.max(jnp.where(p > 0, losses, -jnp.inf))
        # Where no loss is finite any range will do, and 0 keeps NaN out of what is computed from it.
        some = infimum <= supremum
        return jnp.where(some, infimum, 0.0), jnp.where(some, supremum, 0.0)

    def central_loss(self) -> Array:
        """Returns a median of the finite losses under P."""
        p, _, losses, _ = self._atoms()
        order = jnp.argsort(jnp.where(p > 0, losses, jnp.inf))
        below = jnp.cumsum(p[order])
        return losses[order][jnp.minimum(first_index(below >= below[-1] / 2), p.shape[-1] - 1)]

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        p, q, losses, finite = self._atoms()
        cells = boundaries.shape[0] - 1
        rounding = jnp.broadcast_to(as_real(self.rounding), p.shape)
        # Cell i is slot i + 1; the first and the last slot take what lies outside.
        slot = jnp.where(finite, jnp.searchsorted(boundaries, losses), cells + 1)
        rows = jnp.stack([p, q, rounding * p, rounding * q, jnp.where(finite, 1.0, 0.0)], axis=-1)
        sums = jnp.zeros((cells + 2, 5), jnp.float64).at[slot].add(rows)[1:-1]
        p_mass, q_mass, p_given, q_given, count = sums.T
        # A sum of n terms of one sign rounds n - 1 times; each term may have been flushed to zero.
        additions = roundoff() * jnp.maximum(count - 1, 0.0)
        growth = 1 + 2 * roundoff() * (count + 2)
        return CellMasses(
            p=p_mass,
            q=q_mass,
            p_error=growth * (p_given + additions * p_mass) + 2 * TINY * count,
            q_error=growth * (q_given + additions * q_mass) + 2 * TINY * count,
        )

    def boundary_error(self, largest: Array) -> Array:
        return LOSS_UNITS * roundoff() * jnp.abs(largest)

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        """Returns bounds on the sum over finite outcomes of (p - e^epsilon q)+, each known to its own rounding."""
        p, q, _, finite = self._atoms()
        value, rounding = hockey_stick(p, q, epsilon)
        u, shared = roundoff(), finite & (p > 0)
        rounding = rounding + as_real(self.rounding) * (p + jnp.exp(epsilon) * q) * (1 + 16 * u)
        # Where e^eps q is infinity times 0 it is not known: the bounds are p and 0.
        known = ~jnp.isnan(value + rounding)
        most = jnp.where(known, value + rounding * (1 + 4 * u), p)
        least = jnp.where(known, value - rounding * (1 + 4 * u), 0.0)
        lower, upper = jnp.sum(jnp.where(shared[None], jnp.maximum(jnp.stack([least, most]), 0.0), 0.0), axis=1)
        summed = 2 * u * p.shape[-1]
        return lower * (1 - summed), jnp.minimum(upper * (1 + summed), 1.0)

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns the atoms as they are, or, where they are many, cells of neighbours (:func:`atoms_of_many`)."""
        p, q, losses, _ = self._atoms()
        rounding = jnp.broadcast_to(as_real(self.rounding), p.shape)
        infinite = self._infinite()
        if p.shape[-1] <= MANY * cells:
            off = LOSS_UNITS * roundoff() * jnp.abs(losses)
            return atoms_of_masses(losses, p, off, rounding * p, infinite, self.is_valid())
        return atoms_of_many(cells, losses, p, rounding * p, q, rounding * q, infinite, self.is_valid())

    def infimum(self) -> Array:
        lowest, _ = self.loss_range()
        return lowest - self.boundary_error(jnp.abs(lowest))

    def infinite_mass(self) -> Array:
        return jnp.minimum(jnp.sum(jnp.where(self._losses() == jnp.inf, as_real(self.p), 0.0)), 1.0)

    def missing_mass(self) -> Array:
        """Returns Q(Y = -inf), Q's mass where P has none."""
        return jnp.sum(jnp.where(self._losses() == -jnp.inf, as_real(self.q), 0.0))

    def infinite_mass_error(self) -> Array:
        infinite = (self._losses() == jnp.inf) & (as_real(self.p) > 0)
        largest_rounding = jnp.max(jnp.where(infinite, as_real(self.rounding), 0.0))
        # A sum of n terms rounds n - 1 times; a single term does not round.
        return largest_rounding + 2 * roundoff() * jnp.maximum(jnp.sum(jnp.where(infinite, 1.0, 0.0)) - 1, 0.0)

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y); Y < inf]``, a sum over all atoms, for any order."""
        scan = LawOfAtoms(self).scan()
        back = Nodes(-scan.losses, scan.log_q, scan.log_p, scan.missing, scan.infinite, scan.places)

        def log_moment(order: Array) -> Array:
            exchange, used = reflect(order)
            nodes = jax.tree.map(lambda ahead, back: jnp.where(exchange, back, ahead), scan, back)
            return moments(nodes, used).value

        return jnp.vectorize(log_moment)(as_real(order))

    def law(self) -> Law | None:
        return in_float64_only(LawOfAtoms(self))


MANY = 8
"""Number of outcomes, for each cell, up to which each is an atom. Any value is sound."""


def atoms_of_many(
    cells: int,
    losses: Array,
    p: Array,
    p_error: Array,
    q: Array,
    q_error: Array,
    infinite: tuple[Array, Array],
    valid: Array,
) -> Atoms:
    """Returns the laws of outcomes (m,) of finite losses, in any order, in cells of as many neighbouring outcomes each.

    A cell is between its first and its last loss, and between two cells there is an empty one. Outcomes without mass
    come last. A sum of n terms rounds n - 1 times.
    """
    has_mass = p + q > 0
    order = jnp.argsort(jnp.where(has_mass, losses, jnp.inf))
    size = -(-p.shape[-1] // (cells // 2))
    pad = size * (cells // 2) - p.shape[-1]
    rows = jnp.stack([losses, p, p_error, q, q_error])[:, order]
    rows = rows.at[0].set(jnp.where(has_mass[order], rows[0], jnp.max(jnp.where(has_mass, losses, losses[0]))))
    rows = jnp.pad(rows, ((0, 0), (0, pad)), mode="edge")
    is_kept = np.arange(size * (cells // 2)) < p.shape[-1]
    rows = jnp.where(np.stack([np.ones_like(is_kept), *(is_kept,) * 4]), rows, 0.0)
    rows = rows.reshape(5, cells // 2, size)
    edges = rows[0][:, jnp.array([0, -1])].reshape(-1)
    masses = jnp.sum(rows[1:], -1)
    off = (2 * size * roundoff()) * (masses[::2] + masses[1::2]) + 4 * size * TINY
    return atoms_of_separate_cells(edges, masses, off, infinite, valid)


def atoms_of_separate_cells(
    edges: Array, sums: Array, off: Array, infinite: tuple[Array, Array], valid: Array
) -> Atoms:
    """Returns the laws of cells with an empty one between each two, from both edges of each (2 cells,).

    ``sums`` (4, cells) are P's masses and their errors, and Q's; ``off`` (2, cells) the rounding of these.
    """
    parts = jnp.stack([sums[0], sums[1] + off[0], sums[2], sums[3] + off[1]])
    p, p_error, q, q_error = jnp.stack([parts, jnp.zeros_like(parts)], -1).reshape(4, -1)[:, :-1]
    doubt = LOSS_UNITS * roundoff() * jnp.abs(edges)
    return atoms_of_cells(edges, p, p_error, q, q_error, doubt, infinite, valid)


@dataclass(frozen=True)
class LawOfAtoms(Law):
    """The law of finitely many outcomes, whose moments are finite sums.

    Its characteristic function alone does not fade; for a lattice of losses it comes back to one. The product with a
    smooth law's does fade.
    """

    recurring: ClassVar[float] = 1.0

    pair: FinitePair

    def largest_order(self) -> Array:
        """Returns the order for which e^(order Y) stays a number."""
        return arithmetic().largest_exponent / jnp.maximum(jnp.max(jnp.abs(self.scan().losses)), 1e-3)

    def scan(self) -> Nodes:
        p, q, losses, _ = self.pair._atoms()
        nothing = jnp.zeros_like(losses)
        return Nodes(losses, jnp.log(p), jnp.log(q), self.pair.infinite_mass(), self.pair.missing_mass(), nothing)

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        # There is no quadrature: the error is that of the probabilities, and of sums that miss one. A moment near 1,
        # above e^-0.25, takes sums for 1 (:func:`.pair.moments`): at the order z it is off by (S_P - 1) + z (S_P -
        # S_Q).
        of_p, of_q = self.pair.surplus()
        missed = math.exp(0.25) * (of_p + (jnp.abs(order) + w) * (of_p + of_q)) * (1 + 8 * roundoff())
        error = jnp.max(jnp.asarray(self.pair.rounding, order.dtype)) + arithmetic().roundoff + missed
        return jnp.log(2 * error) + jnp.zeros_like(w)


@register_dataclass
@dataclass(frozen=True)
class DiscretePair(Mechanism):
    """A mechanism dominated by a pair of distributions on m outcomes, which the caller has to know and to prove.

    Attributes:
        p (..., m), q (..., m): probabilities of the outcomes without and with the change, in float64; each sums to one.
            A list is taken for an array. An outcome with q = 0 < p is an infinite loss of probability p. The numbers
            given are taken for exact.

    Relations: "remove" is (p, q) and "add" is (q, p); "add_or_remove" (default), "replace" and "zero_out" take both.
    Whether the pair dominates the mechanism under the relation in use is the caller's to prove.

    Raises ValueError where concrete probabilities are out of range, of different shapes or do not sum to one; traced
    ones cannot raise and cost inf instead. JAX arrays made with ``jax_enable_x64`` off are float32, and hardly ever sum
    to one in float64: give NumPy arrays.

    Source: dominating pairs, Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via
    characteristic function", Definition 7.

    >>> from jaxacct import rdp
    >>> mechanism = DiscretePair(p=[0.5, 0.5, 0.0], q=[0.25, 0.5, 0.25])
    >>> round(float(rdp.curve(mechanism, [2.0], relation="remove")[0]), 6)  # log(0.5^2/0.25 + 0.5^2/0.5)
    0.405465
    >>> float(rdp.curve(mechanism, [2.0], relation="add")[0])  # (q, p) has an infinite loss
    inf
    """

    p: Float[ArrayLike, "*batch m"] | Sequence[float]
    q: Float[ArrayLike, "*batch m"] | Sequence[float]

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)
    may_fail: ClassVar[bool] = True
    tight: ClassVar[bool] = True

    vectors: ClassVar[tuple[str, ...]] = ("p", "q")

    def validate(self) -> None:
        for name in ("p", "q"):
            value = getattr(self, name)
            # They may miss one by as much as :meth:`FinitePair.is_valid` allows in float64, where nothing is traced.
            validation.check_probabilities(value, name, 1e-12 + 2.0**-52 * np.size(value))
        if hasattr(self.p, "shape") and hasattr(self.q, "shape") and self.p.shape != self.q.shape:
            raise ValueError(
                f"p of shape {self.p.shape} and q of shape {self.q.shape} differ: give a probability of each for every "
                "outcome."
            )

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        if is_concrete(self.p, self.q):
            return np.all(np.asarray(self.p, np.float64) == np.asarray(self.q, np.float64), axis=-1)
        # A traced law that is no law at all costs inf, so it has to be valid before it counts as releasing nothing.
        p, q = as_float64(self.p), as_float64(self.q)
        valid = jnp.vectorize(lambda p, q: FinitePair(p, q).is_valid(), signature="(m),(m)->()")(p, q)
        return valid & jnp.all(p == q, axis=-1)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns (p, q) for "remove", (q, p) for "add", and both for the other relations."""
        directions(self, relation)
        p, q = cast(ArrayLike, self.p), cast(ArrayLike, self.q)
        pairs = {"remove": (FinitePair(p, q),), "add": (FinitePair(q, p),)}
        return pairs.get(relation, pairs["remove"] + pairs["add"])


# ----------------------------------------------------------------------------------------------------
# Mechanisms on a sample whose noise is 0.
#
# Without noise an example is seen where it takes part, and P and Q agree where it does not. Let it take part with
# probability c. Under "remove" P gives what Q never does with probability c, and else what Q always gives: losses inf
# and log(1 - c). Under "add" the two are exchanged. Under "replace" P and Q give different things with probability c
# each, and else the same with loss 0. Each is the limit of the mechanism's pair as the noise falls to 0, and attained.
# A public coin that decides c is an outcome more of each kind.
# ----------------------------------------------------------------------------------------------------


def log_absence(present: ArrayLike, absent: ArrayLike) -> np.ndarray:
    """Returns log(1 - c) from concrete c and 1 - c, by whichever keeps its digits: NumPy's, -inf where c is 1."""
    present, absent = np.asarray(present, np.float64), np.asarray(absent, np.float64)
    with np.errstate(divide="ignore"):
        return np.where(present < 0.5, np.log1p(-np.minimum(present, 0.5)), np.log(absent))


def noiseless_pairs(
    direction_names: Sequence[str], log_absent: ArrayLike, weights: ArrayLike = 1.0
) -> tuple[FinitePair, ...]:
    """Returns the pair of each direction for a mechanism without noise, by NumPy.

    Args:
        direction_names: the directions.
        log_absent (n,): log(1 - c), the logarithm of the probability that the example does not take part, for each
            outcome of a public coin; right to two roundings of itself. Or one, ().
        weights (n,): probabilities of the coin's outcomes, right to two roundings.
    """
    logs, coin = np.broadcast_arrays(np.atleast_1d(np.asarray(log_absent, np.float64)), np.asarray(weights, np.float64))
    absent, none = coin * np.exp(logs), np.zeros(1)
    present = -np.sum(coin * np.expm1(logs), keepdims=True)
    # An exponential moves by what its exponent errs by; the sum of the coin's outcomes rounds as often as there are.
    exponents = np.where(logs > -745.0, -logs, 0.0)
    rounding = np.full(2 + coin.size, (16 + 4 * coin.size + 4 * np.max(exponents)) * FLOAT64.roundoff)
    outcomes = {
        "remove": ((present, absent, none), (none, coin, none), logs),
        "add": ((none, coin, none), (none, absent, present), -logs),
        "replace": ((present, absent, none), (none, absent, present), 0.0 * np.maximum(logs, -1.0)),
    }
    return tuple(
        FinitePair(np.concatenate(p), np.concatenate(q), np.concatenate([[np.inf], losses, [-np.inf]]), rounding)
        for p, q, losses in (outcomes[direction] for direction in direction_names)
    )


def surely_seen(mechanism: Mechanism, relation: Relation) -> tuple[DominatingPair, ...]:
    """Returns the pair of an infinite loss, surely: a method of mechanisms."""
    directions(mechanism, relation)
    return noiseless_pairs(("replace",), -np.inf)


def seen_where_sampled(mechanism: SampledNoise, relation: Relation) -> tuple[DominatingPair, ...]:
    """Returns the pairs of an example that is seen where it is sampled: a method of mechanisms."""
    rate = np.asarray(mechanism.sampling_rate, np.float64)
    return noiseless_pairs(directions(mechanism, relation), log_absence(rate, 1 - rate))


# ----------------------------------------------------------------------------------------------------
# A pair known by the distribution functions of its privacy loss, which the user gives as callables.
#
# Between two losses only the masses of the laws are known. So the code bounds moments from above by moving each
# piece's mass to its two ends, such that P- and Q-mass stay: r^a is convex in r = p/q for a >= 1, and lies below its
# chord. That is the discretization of Doroshenko et al. (2022), "Connect the dots", on a mesh of its own.
# ----------------------------------------------------------------------------------------------------

Distribution = Callable[[Array, Any], Array]
"""Type of a function of (losses, parameters) that returns a probability for each of the losses, in float64."""

JUMP_UNITS = 8
"""Units of roundoff, relative, that are allowed for the losses at which the callables jump.

It is part of the contract with the user's callables: a bound fails where they jump farther off.
"""


@register_dataclass
@dataclass(frozen=True)
class LossDistributionPair(DominatingPair):
    """A pair (P, Q) given by the distribution functions of its privacy loss under P and under Q.

    Attributes:
        cdf_p, cdf_q: P(Y <= y) and Q(Y <= y), asked at finite losses up to ``highest`` only. Q's mass at -inf counts.
        survival_p, survival_q: P(y < Y < inf) and Q(y < Y < inf) at the same losses, or None.
        parameters: any pytree of numbers and arrays, handed to the callables as float64.
        lowest (): loss below which hardly any mass lies; moments count the mass below it as if it lay there.
        highest (): supremum of the finite losses.
        infinite_mass_p (): P(Y = inf).
        value_error (): bound on the absolute error of the values of ``cdf_p`` and ``cdf_q``, on that of a survival
            function's at losses below 0, where it may be a difference from 1, and from 0 on over ``S (1 + |log S|)``,
            S its value; as computed in float64, and elsewhere in proportion.
        atoms (), (): two neighbouring losses with atoms, the lower one first, or NaN.

    :class:`~jaxacct.PrivacyLoss` is the mechanism that has it.

    >>> def uniform(losses, _):  # any two laws will do here; an accountant needs those of one loss
    ...     return jnp.clip((losses + 1) / 2, 0.0, 1.0)
    >>> free = float("nan")
    >>> pair = LossDistributionPair(-1.0, 1.0, (), 0.0, 1e-15, (free, free), uniform, uniform)
    >>> with jax.enable_x64(True):
    ...     pair.cell_masses(jnp.array([-1.0, 0.0, 1.0])).p.tolist()
    [0.5, 0.5]
    """

    lowest: ArrayLike
    highest: ArrayLike
    parameters: Any
    infinite_mass_p: ArrayLike
    value_error: ArrayLike
    atoms: tuple[ArrayLike, ArrayLike]
    cdf_p: Distribution = field(metadata={"static": True})
    cdf_q: Distribution = field(metadata={"static": True})
    survival_p: Distribution | None = field(default=None, metadata={"static": True})
    survival_q: Distribution | None = field(default=None, metadata={"static": True})

    def _value_error(self) -> Array:
        return as_float64(self.value_error) * scale_error(1.0)

    def _evaluate(self, distribution: Distribution, losses: Array) -> Array:
        highest = as_float64(self.highest)
        # The callables see no infinite loss, and none above ``highest``; the callers replace the results there.
        inside = jnp.where(losses == -jnp.inf, highest, jnp.minimum(losses, highest))
        return as_float64(distribution(inside, jax.tree.map(as_float64, self.parameters)))

    def is_valid(self) -> Array:
        low, high, infinite = (as_float64(v) for v in (self.lowest, self.highest, self.infinite_mass_p))
        error = self._value_error()
        ordered = (low < high) & jnp.isfinite(low) & jnp.isfinite(high)
        some = (infinite >= 0) & (infinite <= 1) & (error >= 0)
        # All mass above ``highest`` must have been counted as infinite; else it would be lost.
        counted = jnp.abs(self._evaluate(self.cdf_p, high) + infinite - 1) <= 2 * error + 8 * roundoff()
        return ordered & some & counted & (self._evaluate(self.cdf_q, high) <= 1 + error)

    def loss_range(self) -> tuple[Array, Array]:
        return as_float64(self.lowest), as_float64(self.highest)

    def supremum(self) -> tuple[Array, Array]:
        """Returns ``highest``, below which the callables may have their last loss anywhere."""
        highest = as_float64(self.highest)
        return jnp.full_like(highest, -jnp.inf), highest + JUMP_UNITS * roundoff() * jnp.abs(highest)

    def central_loss(self) -> Array:
        """Returns a median of the finite losses under P, by bisection."""
        half = (1 - as_float64(self.infinite_mass_p)) / 2

        # It only steers: its rounding breaks no bound.
        return bisect_traced(
            lambda loss: self._evaluate(self.cdf_p, loss) >= half,
            as_float64(self.highest),
            as_float64(self.lowest),
            steps=64,
        )

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        p, p_error = self._differences(self.cdf_p, self.survival_p, boundaries)
        q, q_error = self._differences(self.cdf_q, self.survival_q, boundaries)
        return CellMasses(p, q, p_error, q_error)

    def _differences(self, cdf: Distribution, survival: Distribution | None, boundaries: Array) -> tuple[Array, Array]:
        """Returns the masses between the boundaries, and their errors, from the function that knows them better."""
        error = self._value_error()
        below = jnp.where(boundaries == -jnp.inf, 0.0, self._evaluate(cdf, boundaries))
        mass = jnp.maximum(below[1:] - below[:-1], 0.0)
        mass_error = 2 * error + 2 * roundoff() * mass
        if survival is None:
            return mass, mass_error
        # Where the distribution function is close to 1 its absolute error swamps a tail, which the survival function
        # keeps.
        above = jnp.where(boundaries >= self.highest, 0.0, self._evaluate(survival, boundaries))
        logs = jnp.abs(jnp.log(jnp.maximum(above, TINY)))
        above_error = error * jnp.where(boundaries < 0, 1.0, above * (1 + logs)) + 2 * TINY
        tail_mass = jnp.maximum(above[:-1] - above[1:], 0.0)
        tail_error = above_error[:-1] + above_error[1:] + 2 * roundoff() * tail_mass
        better = (tail_error < mass_error) & (boundaries[:-1] > -jnp.inf)
        return jnp.where(better, tail_mass, mass), jnp.where(better, tail_error, mass_error)

    def boundary_error(self, largest: Array) -> Array:
        return JUMP_UNITS * roundoff() * jnp.abs(largest)

    def infinite_mass(self) -> Array:
        return as_float64(self.infinite_mass_p)

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns an upper bound on ``log E_P[exp(order Y); Y < inf]`` for orders from 0 up.

        Its relative error is about (range / (deviation pieces))^2, and some thousand ulps of one. For orders between -1
        and 0 the value is fit for planning only.
        """
        # Pieces of a moment's mesh. Those at a fraction x of its length are 3 x^(2/3) / pieces of it wide. Sound for
        # any value: fewer pieces loosen the bound.
        pieces = 2048
        low, high, center = as_float64(self.lowest), as_float64(self.highest), self.central_loss()
        fractions = jnp.linspace(0.0, 1.0, pieces + 1) ** 3
        mesh = jnp.concatenate([center - (center - low) * fractions[::-1], center + (high - center) * fractions[1:]])
        # The last point is the supremum exactly, and none lies beyond it.
        mesh = jnp.concatenate([jnp.minimum(mesh[:-1], high), high[None]])
        raised = self._raise_losses(mesh)
        return jnp.vectorize(lambda order: _log_moment(raised, order))(as_float64(order))

    def _raise_losses(self, mesh: Float[Array, " n"]) -> tuple[Array, Array]:
        """Returns losses and P-masses whose moments bound those of the finite losses.

        The mass below the mesh moves up to its first point. The upper end's share of a piece from y to y + h,
        (P - e^y Q)/(1 - e^-h), is rounded up by its own error, the whole mass by its own.
        """
        cells = self.cell_masses(jnp.concatenate([jnp.full(1, -jnp.inf, jnp.float64), mesh]))
        mass = cells.p + cells.p_error
        p, q, q_error = cells.p[1:], cells.q[1:], cells.q_error[1:]
        lower, width = mesh[:-1], mesh[1:] - mesh[:-1]
        value, rounding = hockey_stick(p, q, lower)
        # The losses at which the callables jump are off by JUMP_UNITS, on either side.
        error = (
            cells.p_error[1:]
            + jnp.exp(lower) * q_error
            + roundoff() * (4 + 4 * JUMP_UNITS * jnp.abs(lower)) * p
            + rounding
        )
        upward = (value + error) / -jnp.expm1(-width) * (1 + 16 * roundoff())
        # Where the share is 0/0 or inf - inf it is not known: all of the mass moves up.
        upward = jnp.clip(jnp.where(jnp.isnan(upward), mass[1:], upward), 0.0, mass[1:])
        stays = mass[1:] - upward
        return mesh, jnp.concatenate([mass[:1], upward]) + jnp.concatenate([stays, jnp.zeros(1)])


@functools.cache  # one pair of functions, one program
def mirrored_laws(survival_p: Distribution, survival_q: Distribution) -> tuple[Distribution, ...]:
    """Returns the functions of a loss without atoms whose pair is its own mirror image: P(Y <= y) is Q(Y > -y)."""

    def cdf_p(loss: Array, parameters: Any) -> Array:
        return survival_q(-loss, parameters)

    def cdf_q(loss: Array, parameters: Any) -> Array:
        return survival_p(-loss, parameters)

    return cdf_p, cdf_q, survival_p, survival_q


def _log_moment(raised: tuple[Array, Array], order: Array) -> Array:
    """Returns the log of the sum of ``e^(order y) p`` over the points, rounded up."""
    # Largest |log p| of a normal float64 p <= 1, in nats.
    largest_log = 709.0
    losses, masses = raised
    largest = jnp.maximum(jnp.abs(losses[0]), jnp.abs(losses[-1]))
    # The sum rounds once a point; logarithms are below 709; the losses at jumps are off by JUMP_UNITS.
    rounds = losses.shape[0] + 8 * largest_log + 4 * JUMP_UNITS * jnp.abs(order) * largest
    return jax.nn.logsumexp(jnp.log(masses) + order * losses) + roundoff() * rounds


@register_dataclass
@dataclass(frozen=True)
class PrivacyLoss(Mechanism):
    """A mechanism given by the law of its privacy loss Y = log P/Q under a dominating pair (P, Q).

    The callables take an array of losses and ``parameters``, and return probabilities in float64. They are part of the
    structure and the parameters are data: write them as functions at module level, and one compilation serves all
    parameters. They are called at finite losses up to ``highest``, and have to be right there, 0 below the infimum.

    Attributes:
        cdf_p, cdf_q: P(Y <= y) and Q(Y <= y), the latter with Q's mass at -inf.
        lowest (...), highest (...): finite losses. Hardly any mass of P may lie below ``lowest``, and no finite loss
            above ``highest``: if the loss is unbounded, choose a highest one and count P(Y > highest) as infinite.
        parameters: pytree of numbers and arrays; in a sequence of mechanisms each array has its leading axis.
        infinite_mass (...): P(Y = inf), with what was cut off above ``highest``. Default 0.
        survival_p, survival_q: P(y < Y < inf) and Q(y < Y < inf). Optional; giving both is recommended, for their error
            is relative to small values, while 1 - cdf says nothing of a tail below 1e-15, which a delta of 1e-10 needs.
        value_error (...): bound on the absolute error of the CDFs' values and of survival values at losses below 0,
            and on that of a survival value S at others over S (1 + |log S|). Default: four ulps of one. The bounds of
            the accountants rest on it: raise it for a CDF that comes of a quadrature or a series.
        atoms: two neighbouring losses of positive probability, the lower first, which meshes then contain; NaN if any
            mesh will do (default). A jump has to be within 8 rounding errors of its loss.
        reverse: the same for (Q, P), if that is another law; None where the pair is its own mirror image.

    Relations: "remove" is this law and "add" the reverse; "add_or_remove" (default), "replace" and "zero_out" take
    both. Whether the pair dominates the mechanism under the relation in use is the caller's to prove.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf, as does a ``cdf_p``
    that does not come to 1 - infinite_mass at ``highest``. The Rényi divergence is an upper bound, by a fixed mesh of
    4096 pieces: within 1e-5 for a loss range of ten standard deviations.

    Source: dominating pairs, Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via
    characteristic function", Definition 7; moments, Doroshenko et al. (2022), "Connect the dots".

    Laplace noise of scale b on a query of sensitivity 1, P at 1 and Q at 0: the loss is (2x - 1)/b, cut off at 1/b.

    >>> import jax.numpy as jnp
    >>> def cdf_p(y, b):
    ...     return jnp.where(y < -1 / b, 0.0, jnp.where(y >= 1 / b, 1.0, jnp.exp((y - 1 / b) / 2) / 2))
    >>> def survival_p(y, b):
    ...     return 1 - cdf_p(y, b)
    >>> def survival_q(y, b):
    ...     return jnp.where(y < -1 / b, 1.0, jnp.where(y >= 1 / b, 0.0, jnp.exp(-(y + 1 / b) / 2) / 2))
    >>> def cdf_q(y, b):
    ...     return 1 - survival_q(y, b)
    >>> laplace = PrivacyLoss(cdf_p, cdf_q, lowest=-0.5, highest=0.5, parameters=2.0, survival_p=survival_p,
    ...     survival_q=survival_q, atoms=(-0.5, 0.5))
    >>> from jaxacct import rdp
    >>> import math
    >>> divergence = math.log(2 / 3 * math.exp(1 / 2) + 1 / 3 * math.exp(-2 / 2))  # of order 2: Mironov (2017)
    >>> 0 <= float(rdp.curve(laplace, [2.0])[0]) - divergence < 1e-6
    True
    """

    cdf_p: Distribution = field(metadata={"static": True})
    cdf_q: Distribution = field(metadata={"static": True})
    lowest: ArrayLike
    highest: ArrayLike
    parameters: PyTree = ()
    infinite_mass: ArrayLike = 0.0
    survival_p: Distribution | None = field(default=None, metadata={"static": True}, kw_only=True)
    survival_q: Distribution | None = field(default=None, metadata={"static": True}, kw_only=True)
    value_error: ArrayLike = field(default=8 * FLOAT64.roundoff, kw_only=True)
    atoms: tuple[ArrayLike, ArrayLike] = field(default=(np.nan, np.nan), kw_only=True)
    reverse: PrivacyLoss | None = field(default=None, kw_only=True)

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)
    may_fail: ClassVar[bool] = True
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_probability(self.infinite_mass, "infinite_mass")
        validation.check_probability(self.value_error, "value_error")
        for name in ("lowest", "highest"):
            validation.check_finite(getattr(self, name), name)
        low, high = (validation.concrete_value(bound) for bound in (self.lowest, self.highest))
        if low is not None and high is not None and not np.all(low < high):
            raise ValueError(f"lowest = {self.lowest} is not below highest = {self.highest}: give a range of losses.")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of ``lowest`` and ``highest``."""
        return np.broadcast_shapes(np.shape(self.lowest), np.shape(self.highest))

    def check_numbers(self) -> None:
        """Raises TypeError where a field is no number; the parameters are the callables' own."""
        for name in ("lowest", "highest", "infinite_mass", "value_error"):
            validation.check_number(getattr(self, name), f"{type(self).__name__}.{name}")
        for atom in self.atoms:
            validation.check_number(atom, f"{type(self).__name__}.atoms")
        if self.reverse is not None:
            self.reverse.check_numbers()

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pair for "remove", its reverse for "add", and both, if they differ, for the other relations."""
        directions(self, relation)
        laws = self.cdf_p, self.cdf_q, self.survival_p, self.survival_q
        numbers = self.parameters, self.infinite_mass, self.value_error, self.atoms
        pair = LossDistributionPair(self.lowest, self.highest, *numbers, *laws)
        if self.reverse is None or relation == "remove":
            return (pair,)
        reverse = self.reverse.dominating_pairs("remove")
        return reverse if relation == "add" else (pair, *reverse)


# ----------------------------------------------------------------------------------------------------
# Noise on the integers: discrete Laplace; for the discrete Gaussian see :mod:`.discrete_gaussian`
# ----------------------------------------------------------------------------------------------------

LARGEST_SENSITIVITY = 2**16
"""Largest change of a query's integer value: discrete Laplace noise has an atom for each unit of it. A limit of memory
alone."""


@dataclass(frozen=True)
class NoiseOnIntegers(NoisyMechanism):
    """The base of mechanisms that add noise on the integers to one integer."""

    scale: ArrayLike
    sensitivity: int = field(default=1, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_discrete_scale(self.scale)
        largest_change = "the largest change of the query's value"
        validation.check_whole(self.sensitivity, "sensitivity", 1, LARGEST_SENSITIVITY, largest_change)

    def of_group(self, size: int) -> Self:
        return replace(self, sensitivity=self.sensitivity * size)


@register_dataclass
@dataclass(frozen=True)
class DiscreteLaplace(NoiseOnIntegers):
    """Discrete Laplace (two-sided geometric) mechanism: an integer query plus noise n of mass prop. to e^(-|n|/scale).

    Attributes:
        scale (...): above 0. The mechanism is (sensitivity/scale)-DP.
        sensitivity: largest change of the query's value, a whole number of at least 1; static.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out". All are the same pair by symmetry, and the pair
    of the largest shift dominates those of smaller ones, since the likelihood ratio is monotone. For replace-one
    neighbours give the sensitivity to a replacement.

    Source: Ghosh, Roughgarden and Sundararajan (2009), "Universally utility-maximizing privacy mechanisms",
    Definition 2.1; the loss from the definition.

    >>> pair, = DiscreteLaplace(scale=2.0, sensitivity=2).dominating_pairs()
    >>> [float(loss) for loss in pair.losses]
    [-1.0, 0.0, 1.0]
    """

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair: the noise moved by the sensitivity D against the noise itself.

        Outcomes up to 0 have the loss -D/scale, those from D on D/scale, and n between (2n - D)/scale.
        """
        directions(self, relation)
        return (leave_scope(_laplace_pair(as_float64(self.scale), self.sensitivity)),)


@functools.partial(jax.jit, static_argnums=1, inline=True)
def _laplace_pair(scale: Array, width: int) -> FinitePair:
    scale = jnp.where((scale > 0) & (scale < jnp.inf), scale, jnp.nan)[..., None]
    n = jnp.arange(width + 1, dtype=jnp.float64).reshape((1,) * (scale.ndim - 1) + (-1,))
    # An outcome between the ends has (1 - a)/(1 + a) a^distance, a = e^(-1/scale); an end has all beyond it too.
    growth = 1 + jnp.exp(-1 / scale)
    share = jnp.where((n == 0) | (n == width), 1.0, -jnp.expm1(-1 / scale)) / growth
    p = share * jnp.exp((n - width) / scale)
    rounding = roundoff() * (24 + 4 * width / scale)
    return FinitePair(p, p[..., ::-1], (2 * n - width) / scale, jnp.broadcast_to(rounding, p.shape))


# ----------------------------------------------------------------------------------------------------
# The pair that is one of several, drawn by a public coin, whose law is the same for both data sets.
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class PublicCoinPair(DominatingPair):
    """A mixture of pairs, each drawn with its probability; the loss is that of the pair that was drawn.

    Its law is the mixture of their laws, so every expectation is a weighted sum. One loop runs over the pairs, so that
    their code is compiled once.

    Attributes:
        pairs: pairs of one class, every leaf with the leading axis (m,); without infinite losses.
        weights (m,): their probabilities, each right to fourteen roundings.
    """

    pairs: DominatingPair
    weights: Float[ArrayLike, " m"]

    def _weights(self) -> Array:
        return as_float64(self.weights)

    def _rounding(self) -> float:
        """Returns a bound on the relative error of a weighted sum: of weights, products and additions."""
        return (16 + len(self._weights())) * roundoff()

    def is_valid(self) -> Array:
        w = self._weights()
        proper = jnp.all((w >= 0) & (w <= 1)) & (jnp.abs(jnp.sum(w) - 1) < scale_error(1e-12))
        return proper & jnp.all(jax.vmap(lambda pair: pair.is_valid())(self.pairs))

    def loss_range(self) -> tuple[Array, Array]:
        # A pair of weight 0 is never drawn: its losses do not count.
        lowest, highest = jax.vmap(lambda pair: pair.loss_range())(self.pairs)
        drawn = self._weights() > 0
        return jnp.min(jnp.where(drawn, lowest, jnp.inf)), jnp.max(jnp.where(drawn, highest, -jnp.inf))

    def supremum(self) -> tuple[Array, Array]:
        lowest, highest = jax.vmap(lambda pair: pair.supremum())(self.pairs)
        drawn = self._weights() > 0
        return jnp.max(jnp.where(drawn, lowest, -jnp.inf)), jnp.max(jnp.where(drawn, highest, -jnp.inf))

    def one_run(self, epsilon: Array) -> tuple[Array, Array]:
        w = self._weights()
        # One pair a step: XLA compiles its code once, however many pairs there are.
        lower, upper = jax.lax.map(lambda pair: pair.one_run(epsilon), self.pairs)
        rounding = self._rounding()
        return jnp.sum(w * lower) * (1 - rounding), jnp.sum(w * upper) * (1 + rounding)

    def discretize(self, cells: int, nats: Array) -> Atoms:
        """Returns the atoms of all pairs, each with as many as the pairs have a share of ``cells``."""
        w, rounding = self._weights(), self._rounding()
        each = max(2 * (cells // (2 * len(w))), 16)
        parts = jax.vmap(lambda pair: pair.discretize(each, nats))(self.pairs)
        weights = jnp.stack([w * (1 + rounding), w * (1 - rounding)])
        masses = jnp.swapaxes(parts.masses, 0, 1) * weights[..., None]
        masses = masses.at[0].add(TINY * jnp.where(w > 0, 1.0, 0.0)[:, None])  # a product may be flushed to zero
        losses = jnp.swapaxes(parts.losses, 0, 1)
        summed = (4 * roundoff() * len(w)) * jnp.asarray([1.0, -1.0])
        infinite = jnp.sum(weights * parts.infinite.T, 1) * (1 + summed)
        return atoms_in_order(losses.reshape(2, -1), masses.reshape(2, -1), (infinite[0], infinite[1]), self.is_valid())

    def central_loss(self) -> Array:
        w = self._weights()
        heaviest = jnp.arange(len(w)) == first_index(w == jnp.max(w))
        return jnp.sum(jnp.where(heaviest, jax.vmap(lambda pair: pair.central_loss())(self.pairs), 0.0))

    def cell_masses(self, boundaries: Float[Array, " n"]) -> CellMasses:
        # One pair a step, here and for cumulants: XLA compiles its code once, however many pairs there are.
        weighted = jax.lax.map(
            lambda row: jax.tree.map(lambda mass: row[0] * mass, row[1].cell_masses(boundaries)),
            (self._weights(), self.pairs),
        )
        p, q, p_error, q_error = (jnp.sum(masses, axis=0) for masses in weighted)
        rounding = self._rounding()
        return CellMasses(p=p, q=q, p_error=p_error + rounding * p, q_error=q_error + rounding * q)

    def boundary_error(self, largest: Array) -> Array:
        return jnp.max(jax.vmap(lambda pair: pair.boundary_error(largest))(self.pairs))

    def cumulant(self, order: ArrayLike) -> Array:
        """Returns ``log E_P[exp(order Y)]``; a small one comes from the moments' distances from 1."""
        logs = jax.lax.map(lambda pair: pair.cumulant(order), self.pairs)
        w = self._weights().reshape(-1, *(1,) * (logs.ndim - 1))
        excess = jnp.sum(jnp.where(w > 0, w * jnp.expm1(jnp.minimum(logs, 1.0)), 0.0), axis=0)
        near = jnp.max(jnp.where(w > 0, logs, -jnp.inf), axis=0) < 1.0
        # A pair that is never drawn does not count.
        mixed = jax.nn.logsumexp(jnp.where(w > 0, jnp.log(w) + logs, -jnp.inf), axis=0)
        return jnp.where(near, jnp.log1p(excess), mixed)
