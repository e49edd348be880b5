"""Random allocation and Poisson sampling of any pair, by the law of its likelihood ratio.

Let (P, Q) dominate one run of a mechanism with an example against the run without it, at every epsilon and both ways,
and let L be the ratio P/Q, drawn under Q. By Blackwell's theorem there is a channel that maps P to the run with the
example and Q to the run without it, whatever came before. So several steps, of which the example takes part in one
that is drawn at random, are these channels, one after the other, of P at the drawn step and Q at the others: they are
dominated, both ways, by the pair whose ratio is the mean of t independent copies of L. On a Poisson sample it is the
pair of the ratio 1 - q + q L. Both are pairs of the same kind, so that allocation and sampling go on top of each other.

Both profiles of a pair are expectations of convex functions of the ratio under Q. So a law of L that is larger in
convex order bounds them from above, and a smaller one from below (:mod:`.allocation`, which has the means of copies).
The outcomes of a finite pair are such a law, exactly. Of other pairs the masses p and q of cells of the loss are known,
and the ratio's ends x < y in each: the larger law has the Q-mass (p - x q)/(y - x) at y and the rest at x, the smaller
one q at p/q ("connect the dots"). Both keep E_Q[L] and P's mass at infinity, which a list of losses that were rounded
up does not: it fixes no Q.

*Rounding.* Of a larger law each mass is lowered by the bound on its error. What is missing under Q is put at the ratio
0, and what is missing under P at infinity: that is, it is given away. For a smaller law cells that are not known to a
relative 1e-9 are joined to the likeliest one, which is post-processing. What is left are relative errors of masses and
of values; losses are moved by the latter, and the pair's ``rounding`` is the sum of both.

Sources. Blackwell's theorem for pairs: Kairouz, Oh and Viswanath (2015), Theorem 2.5. Sampling: Zhu, Dong and Wang
(2022), Theorem 11. Spreads: Doroshenko et al. (2022), "Connect the dots". Allocation of one Gaussian step: see
:mod:`.allocation`; of any pair that dominates both ways we know of no other proof.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.mechanisms.allocation import (
    MOST_BATCHES,
    VALUE_ERROR,
    Grid,
    MovedPair,
    RandomAllocation,
    RatioLaw,
    add_laws,
    average,
    coarsen,
    count_bits,
    outcomes_of,
)
from jaxacct.mechanisms.approximate_dp import RandomizedResponse
from jaxacct.mechanisms.by_curve import has_renyi_only
from jaxacct.mechanisms.finite import FinitePair, PrivacyLoss
from jaxacct.mechanisms.gaussian import Gaussian, PoissonSubsampledGaussian
from jaxacct.mechanisms.laplace import Laplace, PoissonSubsampledLaplace
from jaxacct.mechanisms.mechanism import Mechanism, Relation, check_mechanism, choose, directions, is_exact_zero
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import roundoff, scale_error
from jaxacct.numerics.precision import as_float64, first_index, is_concrete, leave_scope, within_scope
from jaxacct.numerics.pytrees import register_dataclass

KNOWN = 1e-9
"""Relative error up to which a cell of a smaller law stands for itself. Any value is sound."""


@register_dataclass
@dataclass(frozen=True)
class RatioPair(MovedPair):
    """The outcomes of a ratio's law, whose masses and losses are right to ``rounding`` alone.

    Let r be ``rounding``, which is twice what the logarithms of masses may err by. They change E_Q[(P/Q)^a] by a factor
    of e^((2a - 1) r) at most, and so the divergence by (2 + 1/(a - 1)) r. Near order 1 this is too much: the moment
    less 1 is the mean of x^a - 1 - a (x - 1) under Q, x the ratio, whose slope is a (x^(a-1) - 1). With E_P[Y-] <= 1/e,
    as E_P[e^-Y] <= 1, the mean of |x^(a-1) - 1| under P is at most the moment less 1 and 2 (a - 1)/e. Over a - 1 and
    the moment that is the divergence D and 2/e; up to order 2 so all changes by less than (8 D + 4) r.
    """

    def divergence(self, orders: Array) -> Array:
        """Returns an upper bound on the divergence of the laws that are meant."""
        r, divergences = jnp.max(as_float64(self.rounding)), super().divergence(orders)
        near_one = jnp.where(orders <= 2, 8 * divergences + 4, jnp.inf)
        risen = divergences + r * jnp.minimum(2.1 + 1 / (orders - 1), near_one)
        return jnp.where(r < 0.01, risen, jnp.nan)


class Ratio(NamedTuple):
    """A law of a likelihood ratio under Q, larger or smaller than the true one in convex order.

    Attributes:
        law: the values, in any order, and Q's masses.
        theta (): bound on the relative error of the values.
        infinite (): P's mass at infinity.
    """

    law: RatioLaw
    theta: Array
    infinite: Array

    def ends(self) -> tuple[Array, Array]:
        """Returns the logs of the least positive value and of the largest, less and more than these."""
        values, masses, _ = self.law
        logs = jnp.where((values > 0) & (masses > 0), jnp.log(values), jnp.nan)
        margin = 1e-9  # a single value needs a grid, too
        return jnp.nan_to_num(jnp.nanmin(logs)) - margin, jnp.nan_to_num(jnp.nanmax(logs)) + margin

    def pair(self, removes: bool, contracts: bool) -> RatioPair:
        """Returns the pair (P, Q) with this law, or (Q, P)."""
        return RatioPair(*outcomes_of(self.law, self.theta, self.infinite, removes, contracts))


def ratio_of(pair: DominatingPair, cells: int, contracts: bool = False) -> Ratio:
    """Returns a law of a pair's ratio, inside the float64 scope: the outcomes of a finite pair, or of many cells.

    Args:
        pair: dominates at every epsilon, both ways.
        cells: about how many values there are, where the pair is not finite; static.
        contracts: whether the law is to be smaller in convex order, and not larger; static.
    """
    ratio = _of_outcomes(pair) if isinstance(pair, FinitePair) else _of_cells(pair, cells, contracts)
    return jax.tree.map(lambda leaf: jnp.where(pair.is_valid(), leaf, jnp.nan), ratio)


def _of_outcomes(pair: FinitePair) -> Ratio:
    p, q, losses, finite = pair._atoms()
    # The numbers given may sum to one but for rounding; their law does.
    rounding = jnp.max(as_float64(pair.rounding)) + sum(pair.surplus()) + pair.infinite_mass_error()
    # Q's mass where P has none has the ratio 0. Losses may have been moved by their error: then with them E_Q[L], with
    # what is at infinity, would not be one.
    masses = jnp.where(finite, q, jnp.where(pair._losses() == -jnp.inf, as_float64(pair.q), 0.0))
    law = RatioLaw(jnp.where(finite & (q > 0), p / jnp.where(q > 0, q, 1.0), 0.0), masses, rounding)
    theta = roundoff() * (8 + 16 * jnp.max(jnp.abs(losses))) + 2 * rounding
    return Ratio(law, theta, pair.infinite_mass())


def _of_cells(pair: DominatingPair, cells: int, contracts: bool) -> Ratio:
    sign = -1.0 if contracts else 1.0
    infinite = pair.infinite_mass() * (1 + sign * (pair.infinite_mass_error() + 4 * roundoff()))
    # Any boundaries are sound: those of the pair's own two laws are dense where P has its mass.
    nats, u = 60.0, roundoff()
    lowest, highest = pair.loss_range()
    edges = jnp.sort(jnp.clip(pair.discretize(cells, jnp.asarray(nats)).losses[0], lowest, highest))
    endless = jnp.full(1, jnp.inf)
    p, q, p_error, q_error = pair.cell_masses(jnp.concatenate([-endless, edges, endless]))
    x = jnp.exp(edges)
    doubt = pair.boundary_error(jnp.max(jnp.abs(edges))) + u * (8 + 2 * jnp.max(jnp.abs(edges)))
    if contracts:
        known = (p_error <= KNOWN * p) & (q_error <= KNOWN * q) & (q > 0)
        most = jnp.where(known, q, 0.0)
        likeliest = jnp.arange(len(q)) == first_index(most == jnp.max(most))
        p, q, p_error, q_error = (
            jnp.where(likeliest, jnp.sum(jnp.where(likeliest | ~known, each, 0.0)), jnp.where(known, each, 0.0))
            for each in (p, q, p_error, q_error)
        )
        seen = q > 0
        value = jnp.where(seen, p / jnp.where(seen, q, 1.0), 1.0)
        eta = jnp.max(jnp.where(seen, (p_error / jnp.maximum(p, 1e-300) + q_error / jnp.maximum(q, 1e-300)), 0.0))
        eta = 2 * eta + u * (len(q) + 8)
        return Ratio(RatioLaw(value, q, eta), eta, infinite)
    width = x[:-1] * jnp.expm1(edges[1:] - edges[:-1])
    inner, lower = slice(1, -1), x[:-1]
    open_cell = width > 0
    width = jnp.where(open_cell, width, 1.0)
    excess = p[inner] - lower * q[inner]
    rises = jnp.where(open_cell, jnp.clip(excess / width, 0.0, q[inner]), 0.0)
    # The mass that moves up is known to the error of the difference, over the width; where a cell is an atom it is not
    # needed. What is above the last edge goes there and to infinity, and what is below the first there and to 0.
    error = p_error[inner] + lower * q_error[inner] + (doubt + 8 * u) * (p[inner] + lower * q[inner])
    error = jnp.where(open_cell, jnp.minimum(error / width * (1 + 8 * u), q[inner]), 0.0) + q_error[inner]
    first = jnp.minimum(p[0] / x[0], q[0])
    first_error = (p_error[0] + doubt * p[0]) / x[0] + 8 * u * first
    masses = jnp.append(q[inner] - rises, q[-1]) + jnp.append(0.0, rises) + jnp.append(first, jnp.zeros(len(x) - 1))
    errors = jnp.append(error, q_error[-1]) + jnp.append(0.0, error) + jnp.append(first_error, jnp.zeros(len(x) - 1))
    errors = jnp.minimum(errors + 8 * u * masses, masses)
    masses = masses - errors
    beyond = jnp.maximum(p[-1] - x[-1] * q[-1], 0.0) + p_error[-1] + x[-1] * q_error[-1] + doubt * p[-1]
    given_away = beyond + jnp.sum(x * errors) + jnp.sum(p_error) * (1 + 8 * u)
    missing = jnp.maximum(1 - jnp.sum(masses), 0.0)
    law = RatioLaw(jnp.append(0.0, x), jnp.append(missing, masses), jnp.asarray(8 * u))
    return Ratio(law, doubt, infinite + given_away)


def allocate_ratio(ratio: Ratio, batches: Array, points: int, contracts: bool) -> Ratio:
    """Returns the law of the mean of so many independent copies, on so many points; inside the float64 scope."""
    valid = (batches >= 1) & (batches <= MOST_BATCHES) & (batches == jnp.floor(batches))
    t = jnp.where(valid, batches, 1.0).astype(jnp.int32)
    values, masses, eta = ratio.law
    low, high = ratio.ends()
    deviation = jnp.sqrt(jnp.sum(masses * jnp.minimum((values - 1) ** 2, 1e15)))
    if len(values) <= points:
        values, masses = jax.lax.sort((values, masses), num_keys=1)
        extra = points - len(values)
        first = RatioLaw(jnp.pad(values, (0, extra), "edge"), jnp.pad(masses, (0, extra)), eta)
    else:
        one = RatioLaw(jnp.zeros(1), jnp.ones(1), jnp.zeros(()))
        grid = Grid(low, high, jnp.clip(deviation / 2, 1e-9, 1.0))
        fine = add_laws(one, 0.0, ratio.law, 1.0, grid, contracts)
        first = coarsen(grid.logs(), fine, 1 / t, points, contracts)
    law = average(first, t, (low, high), deviation, points, contracts)
    merges = 2 * count_bits(t) + 2
    # A mean of a cell errs by as much as two masses and a value; a value that is spread by that of its place.
    largest = 2 + jnp.maximum(jnp.abs(low) + jnp.log(t.astype(jnp.float64)), jnp.abs(high))
    each = 4 * (law.eta + 8 * roundoff()) if contracts else largest * scale_error(VALUE_ERROR)
    ratio = Ratio(law, ratio.theta + merges * each, ratio.infinite)
    return jax.tree.map(lambda leaf: jnp.where(valid, leaf, jnp.nan), ratio)


def sample_ratio(ratio: Ratio, rate: Array) -> Ratio:
    """Returns the law of 1 - q + q L; inside the float64 scope."""
    rate = jnp.where((rate >= 0) & (rate <= 1), rate, jnp.nan)
    law = ratio.law._replace(values=1 - rate + rate * ratio.law.values)
    return ratio._replace(law=law, infinite=rate * ratio.infinite)


@dataclass(frozen=True)
class ByRatio(Mechanism):
    """The base of mechanisms whose pair is known by the law of the ratio of another's pair."""

    mechanism: Mechanism

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out")
    may_fail: ClassVar[bool] = True

    contracts: ClassVar[bool] = False
    """Whether the law is smaller in convex order than the true one, and the pair one that data sets attain."""

    def validate(self) -> None:
        check_mechanism(self.mechanism)
        inner = type(self.mechanism).__name__
        if has_renyi_only(self.mechanism):
            raise TypeError(
                f"mechanism = {inner} is known by its Rényi curve alone, which fixes no pair: give a mechanism with "
                "pairs; of Rényi curves on a Poisson sample there is PoissonSubsampled."
            )
        if isinstance(self.mechanism, PrivacyLoss):
            raise TypeError(
                f"mechanism = {inner} is a distribution of losses. If these were rounded up they fix no law without "
                "the example, of which the ratio is needed: give DiscretePair(p, q), with both laws of one pair."
            )
        if self.mechanism.composed and not self._has_own_class():
            raise TypeError(
                f"mechanism = {inner} is accounted for as a composition of several, not by one pair: give a mechanism "
                "of one run, and make several of it by steps."
            )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the mechanism and of the numbers beside it, together."""
        others = (np.shape(getattr(self, name)) for name in self._numbers)
        return np.broadcast_shapes(self.mechanism.batch_shape, *others)

    _numbers: ClassVar[tuple[str, ...]] = ()

    def _has_own_class(self) -> bool:
        """Returns whether the result is a mechanism that has a class of its own, as which it is accounted for."""
        return False

    @property
    def composed(self) -> bool:
        return self._has_own_class()

    def with_unit_parameters(self, nothing: Bool[ArrayLike, "*batch"]) -> Self:
        numbers = {name: choose(nothing, 1.0, getattr(self, name)) for name in self._numbers}
        return replace(self, mechanism=self.mechanism.with_unit_parameters(nothing), **numbers)

    def _ratio(self, ratio: Ratio) -> Ratio:
        """Returns the law of this mechanism's ratio from that of the other's."""
        raise NotImplementedError

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return self.mechanism.releases_nothing()

    def lacks_noise(self) -> Bool[np.ndarray, "*batch"] | bool:
        return self.mechanism.lacks_noise()

    def _check_relation(self, relation: Relation) -> Relation:
        """Returns the relation of the other mechanism, whose first pair is the one needed; raises ValueError."""
        name, inner = type(self).__name__, self.mechanism
        if relation == "replace":
            raise ValueError(
                f"relation = 'replace' is not supported by {name}: the pair's second law has to be the run without the "
                "example. Give 'add_or_remove': one removed and one added have (2 epsilon, (1 + e^epsilon) delta)."
            )
        directions(self, relation)
        if relation == "add_or_remove":
            directions(inner, relation)
            return relation
        if inner.one_way and relation in ("remove", "add"):
            raise ValueError(
                f"relation = {relation!r} is not supported by {name} of {type(inner).__name__}, a guarantee "
                "of one direction alone: it needs one of both. Give 'add_or_remove'."
            )
        if relation == "zero_out":
            directions(inner, relation)
            if inner.one_way or isinstance(inner, RandomizedResponse) or "add_or_remove" not in inner.relations:
                raise ValueError(
                    f"relation = 'zero_out' is not supported by {name} of {type(inner).__name__}: where an example "
                    "takes no part it is not there, which need not be the same to that mechanism as one that "
                    "contributes nothing, and would show where it takes part."
                    + (" Give 'add_or_remove'." if "add_or_remove" in inner.relations else "")
                )
        if isinstance(inner, ByRatio):
            inner._check_relation(relation)
        directions(inner, "add_or_remove")
        return "add_or_remove"

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (P, Q) for "remove" and (Q, P) for "add", with finitely many losses."""
        return self._pairs(relation, self.mechanism.dominating_pairs(self._check_relation(relation))[0])

    @within_scope
    def noiseless_pairs(self, relation: Relation) -> tuple[DominatingPair, ...]:
        return self._pairs(relation, self.mechanism.noiseless_pairs(self._check_relation(relation))[0])

    def _pairs(self, relation: Relation, pair: DominatingPair) -> tuple[DominatingPair, ...]:
        both = _both_ways(self, pair)
        return leave_scope(tuple(both[direction] for direction in directions(self, relation)))

    def _below(self, relation: Relation, kind: type[ByRatio]) -> tuple[tuple[Mechanism, ...], ...]:
        """Returns the same of what data sets attain of the other mechanism: of its pair, or of what it says."""
        inner = self.mechanism.attained(self._check_relation(relation))
        if self.mechanism.tight:
            inner = ((self.mechanism,),)
        others = [getattr(self, name) for name in self._numbers]
        return tuple(tuple(kind(each, *others) for each in case) for case in inner)


@jax.jit
def _both_ways(mechanism: ByRatio, pair: DominatingPair) -> dict[str, FinitePair]:
    ratio = mechanism._ratio(ratio_of(pair, CELLS, mechanism.contracts))
    return {"remove": ratio.pair(True, mechanism.contracts), "add": ratio.pair(False, mechanism.contracts)}


CELLS = 2**12
"""Cells of the loss of a pair that is not finite. Any number is sound."""


@register_dataclass
@dataclass(frozen=True)
class AllocatedMechanism(ByRatio):
    """Random allocation of any mechanism: each example takes part in one of several runs, drawn uniformly.

    Every example goes to one of ``batches`` runs, independently of all others; the mechanism is run on the examples of
    each, one run after the other, and each may depend on all results before. E epochs, each allocated afresh, are
    ``steps=E`` of this mechanism.

    Attributes:
        mechanism: what is run, with pairs: noise, a discrete mechanism, a guarantee, a :class:`.DiscretePair`, or
            another of this kind. Of a :class:`.Gaussian` this is :class:`.RandomAllocation`, and is taken for it.
        batches (...): t, the number of runs; whole, from 1 to 2**30.
        points: number of points of the law that the pair is made of, static; from 64 to 4096. Twice as many divide the
            excess by about four.

    Relations: "add_or_remove" (default), "remove", "add"; "zero_out" of a mechanism to which an example that
    contributes nothing is one that is not there, as noise on sums: guarantees stated for the relation in use, and
    mechanisms without "add_or_remove", are refused. "replace" is not covered: the pair's second law has to be the run
    without the example.

    Formal guarantee: the pairs dominate, so upper bounds hold, if the mechanism's pair for removing an example, and
    its reverse for adding one, dominate. That is so for all mechanisms here. P's mass at infinity is kept. Lower
    bounds are those of the same data sets at every run, if the mechanism is :attr:`~.Mechanism.tight`, or says what
    data sets attain: proofs in :mod:`jaxacct.mechanisms.ratio_law`.

    Raises TypeError for a mechanism without one pair (Rényi curves, several runs, losses without both laws), and
    ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead.

    Source: :mod:`jaxacct.mechanisms.ratio_law`. We know of no source for adaptive runs of any pair.

    >>> from jaxacct import Laplace, epsilon
    >>> print(epsilon(AllocatedMechanism(Laplace(1.0), batches=3), 1, delta=1e-3, relation="remove"))
    [0.9463308, 0.9463353]
    """

    batches: ArrayLike
    points: int = field(default=1024, metadata={"static": True})

    _numbers: ClassVar[tuple[str, ...]] = ("batches",)

    def validate(self) -> None:
        super().validate()
        validation.check_batches(self.batches, MOST_BATCHES)
        validation.check_whole(self.points, "points", 64, 4096, "the number of points of the law")

    def _has_own_class(self) -> bool:
        return type(self.mechanism) is Gaussian

    def decompose(self, steps: ArrayLike) -> list[tuple[Mechanism, ArrayLike]]:
        """Returns runs of :class:`.RandomAllocation`, where that is what this is."""
        if not self._has_own_class():
            return [(self, steps)]
        noise_multiplier, *_ = jax.tree.leaves(self.mechanism)
        return RandomAllocation(noise_multiplier, self.batches, self.points).decompose(steps)

    def _ratio(self, ratio: Ratio) -> Ratio:
        return allocate_ratio(ratio, as_float64(self.batches), self.points, self.contracts)

    def attained(self, relation: Relation) -> tuple[tuple[Mechanism, ...], ...]:
        return self._below(relation, AllocatedFromBelow)


@register_dataclass
@dataclass(frozen=True)
class AllocatedFromBelow(AllocatedMechanism):
    """An :class:`AllocatedMechanism` of which cells of the results are released."""

    contracts: ClassVar[bool] = True
    tight: ClassVar[bool] = True
    attained = Mechanism.attained


@register_dataclass
@dataclass(frozen=True)
class PoissonSampledMechanism(ByRatio):
    """Any mechanism on a Poisson sample: each example takes part independently with probability ``sampling_rate``.

    Attributes:
        mechanism: what is run on the sample, with pairs, as for :class:`AllocatedMechanism`. Of a :class:`.Gaussian` or
            a :class:`.Laplace` this is :class:`.PoissonSubsampledGaussian` or :class:`.PoissonSubsampledLaplace`, and
            is taken for it.
        sampling_rate (...): q, the probability of each example to be in the sample, in [0, 1].

    Relations, formal guarantee and errors: those of :class:`AllocatedMechanism`; P's mass at infinity is multiplied by
    the rate.

    Source: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function",
    Theorem 11, for the pair.

    >>> from jaxacct import DiscreteLaplace, epsilon
    >>> print(epsilon(PoissonSampledMechanism(DiscreteLaplace(1.0), sampling_rate=0.1), 10, delta=1e-5))
    [1.324065, 1.324066]
    """

    sampling_rate: ArrayLike

    _numbers: ClassVar[tuple[str, ...]] = ("sampling_rate",)

    def validate(self) -> None:
        super().validate()
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        rate: Any = self.sampling_rate
        nothing = self.mechanism.releases_nothing() & (rate >= 0) & (rate <= 1)
        # Traced fields of the mechanism may be out of range: then its pair says so, at a rate of 0 as at any other.
        return nothing | is_exact_zero(rate) if is_concrete(*jax.tree.leaves(self.mechanism)) else nothing

    def _has_own_class(self) -> bool:
        return type(self.mechanism) in OWN_CLASSES

    def decompose(self, steps: ArrayLike) -> list[tuple[Mechanism, ArrayLike]]:
        """Returns runs of the class for Gaussian or Laplace noise, where that is what this is."""
        own: Any = OWN_CLASSES.get(type(self.mechanism))
        return [(own(jax.tree.leaves(self.mechanism)[0], self.sampling_rate) if own else self, steps)]

    def _ratio(self, ratio: Ratio) -> Ratio:
        return sample_ratio(ratio, as_float64(self.sampling_rate))

    def attained(self, relation: Relation) -> tuple[tuple[Mechanism, ...], ...]:
        return self._below(relation, PoissonSampledFromBelow)


OWN_CLASSES: dict[type[Mechanism], type[Mechanism]] = {
    Gaussian: PoissonSubsampledGaussian,
    Laplace: PoissonSubsampledLaplace,
}
"""Mechanisms whose Poisson sample has a class, with a pair that is known exactly."""


@register_dataclass
@dataclass(frozen=True)
class PoissonSampledFromBelow(PoissonSampledMechanism):
    """A :class:`PoissonSampledMechanism` of which cells of the results are released."""

    contracts: ClassVar[bool] = True
    tight: ClassVar[bool] = True
    attained = Mechanism.attained
