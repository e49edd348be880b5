"""The composition as accountants take it: dominating pairs and counts for each direction, its facts, and the question.

An accountant is given mechanisms and numbers of steps, and a number, epsilon or delta, at which the other is wanted.
In reading order:

- :func:`directed_parts`, from mechanisms and steps to pairs with a leading axis and their counts, for each direction;
- :func:`laws_of` and :func:`laws_for`, from these to the discrete laws of their losses, one row for each pair;
- :class:`Facts`, the facts of a composition that need no composing: whether all is in range, the mass of infinite
  losses, and the largest finite loss, which is at most the sum of the losses' suprema;
- :class:`ForEpsilon` and :class:`ForDelta`, the questions, which close brackets by these facts;
- :class:`Query`, a composition and the question asked of it: the one value that accountants take.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves_with_path
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.bounds import Bounds
from jaxacct.choices import Certified
from jaxacct.mechanisms import bounded_range
from jaxacct.mechanisms.approximate_dp import ExponentialMechanism
from jaxacct.mechanisms.atoms import Atoms
from jaxacct.mechanisms.by_curve import RenyiOnly
from jaxacct.mechanisms.discrete_gaussian import DiscreteGaussianVector
from jaxacct.mechanisms.finite import FinitePair
from jaxacct.mechanisms.gaussian import Gaussian
from jaxacct.mechanisms.mechanism import (
    Mechanism,
    Relation,
    check_mechanism,
    counts_of,
    directions,
    is_count,
    sequence,
    without_noops,
)
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.precision import TINY, is_concrete, log_complement, log_peak
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import check_compared_by_class, of_each, register_dataclass

Part: TypeAlias = tuple[DominatingPair, Any]
"""Pairs of one class, every leaf with the leading axis (m,), and the number of runs of each, (m,)."""

Parts: TypeAlias = tuple[Part, ...]
"""A whole composition, for one direction."""


def check(mechanism: Any, steps: Any) -> None:
    """Raises ValueError where mechanisms and steps do not match, or a concrete one is out of range."""
    if isinstance(mechanism, (tuple, list)):
        if not mechanism:
            raise ValueError("mechanism = () holds nothing to compose: give at least one mechanism.")
        for part in mechanism:
            if not isinstance(part, (tuple, list)):
                check_mechanism(part)
        if not isinstance(steps, (tuple, list)) or len(steps) != len(mechanism):
            raise ValueError(
                f"steps = {validation.shorten(steps)} do not match {len(mechanism)} mechanisms: give a tuple with "
                "one number for each."
            )
        for part, count in zip(mechanism, steps, strict=True):
            check(part, count)
        return
    check_mechanism(mechanism)
    validation.check_number(steps, "steps")
    validation.check_steps(steps)
    shape = mechanism.batch_shape
    if len(shape) > 1 or np.shape(steps) not in ((), shape):
        raise ValueError(
            f"steps of shape {np.shape(steps)} do not match a mechanism of shape {shape}: scalars are one mechanism "
            "run steps times, one leading axis is a sequence composed together; use jax.vmap for batches."
        )


class SingleRun(enum.Enum):
    """The reason why a composition is a single run of one pair, known before numbers are traced.

    ``DIRECT``: it is one run of the mechanism's own pair. ``DECOMPOSED``: it is one run of the mechanism that
    :meth:`.Mechanism.decompose` gives, and gives by the mechanism's class alone, or of one block of ranges.
    """

    DIRECT = enum.auto()
    DECOMPOSED = enum.auto()


def single_run(mechanism: Any, steps: Any) -> SingleRun | None:
    """Returns why a composition is seen to be a single run of one pair; None where that is not seen.

    The mechanisms that are actually composed decide: a mechanism that is run once may amount to several runs, of itself
    or of others.
    """
    if isinstance(mechanism, (tuple, list)) or mechanism.batch_shape or mechanism.composed or not is_concrete(steps):
        return None
    if isinstance(mechanism, ExponentialMechanism) and bounded_range.is_block(mechanism, steps):
        return SingleRun.DECOMPOSED
    if steps != 1:
        return None
    leaves, structure = jax.tree.flatten(mechanism)
    seen: list[SingleRun | None] = []

    def look(leaves: list[Any]) -> None:
        mechanism = jax.tree.unflatten(structure, leaves)
        entries = mechanism.decompose(steps)
        if len(entries) == 1 and is_concrete(entries[0][1]) and entries[0][1] == 1:
            seen.append(SingleRun.DIRECT if _is_same(entries[0][0], mechanism) else SingleRun.DECOMPOSED)

    without_computing(look, leaves)
    return seen[0] if seen else None


def without_computing(look: Callable[[list[Any]], None], leaves: Sequence[Any]) -> None:
    """Calls ``look`` with ``leaves``, of which traced ones are traced anew: nothing is computed, or compiled.

    Under jax.grad or jax.vmap of concrete numbers each operation would be.
    """
    traced = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]

    def of_traced(moving: list[Any]) -> None:
        every = iter(moving)
        look([next(every) if moves else leaf for moves, leaf in zip(traced, leaves, strict=True)])

    moving = [leaf for moves, leaf in zip(traced, leaves, strict=True) if moves]
    if moving:
        jax.eval_shape(of_traced, moving)
    else:
        of_traced(moving)


def _is_same(first: Any, second: Any) -> bool:
    """Returns whether two mechanisms are seen to be the same."""
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=False)
    return len({jax.tree.structure(each) for each in (first, second)}) == 1 and all(
        x is y or (is_concrete(x, y) and np.array_equal(x, y)) for x, y in leaves
    )


def directed_parts(mechanism: Any, steps: Any, relation: Relation, known: SingleRun | None = None) -> list[Parts]:
    """Returns, for each direction of ``relation``, the parts of a composition, in the precision of the scope.

    If ``known`` says that all is one run of the mechanism itself, the result is one part with one row.
    """
    if known is SingleRun.DIRECT:
        return _direct(*without_noops(mechanism, counts_of(steps)), relation)
    nested: list[list[Parts]] = []
    ranges: list[tuple[ExponentialMechanism, Any]] = []
    # Mechanism by mechanism: each is what it is composed of, and ranges stay together.
    for part, count in flat_runs(mechanism, steps):
        if isinstance(part, ExponentialMechanism):
            ranges.append((part, counts_of(count)))
            continue
        part, count = without_noops(part, counts_of(count))
        nested += [_direct(one, each, relation) for one, each in part.decompose(count)]
    # Runs of exponential mechanisms cost less together than each by its own pair, wherever they stand.
    if ranges:
        together = bounded_range.together(ranges) if known is None else [bounded_range.block(*ranges[0])]
        nested += [_direct(one, each, relation) for one, each in together]
    return _join_all(nested)


def _join_all(nested: list[list[Parts]]) -> list[Parts]:
    """Returns, for each direction, the parts of several compositions together."""
    if len(nested) == 1:
        return nested[0]
    count = max(len(directions) for directions in nested)
    # A symmetric mechanism has a single direction, which stands for all of them.
    return [_gather(sum((parts[min(i, len(parts) - 1)] for parts in nested), ())) for i in range(count)]


def flat_runs(mechanism: Any, steps: Any) -> list[tuple[Mechanism, Any]]:
    """Returns the mechanisms of tuples within tuples, with their numbers of runs."""
    if not isinstance(mechanism, (tuple, list)):
        return [(mechanism, steps)]
    return [run for part, count in zip(mechanism, steps, strict=True) for run in flat_runs(part, count)]


def _direct(mechanism: Mechanism, steps: Any, relation: Relation) -> list[Parts]:
    """Returns, for each direction, the pairs of one mechanism, or of a sequence, with their counts."""
    directions(mechanism, relation)  # a class may make its pairs of another's, which knows more relations than it does
    if np.any(mechanism.lacks_noise()):
        return _without_noise(mechanism, steps, relation)
    if mechanism.batch_shape:
        length = mechanism.batch_shape[0]
        pairs = jax.vmap(lambda m: m.dominating_pairs(relation))(sequence(mechanism, length))
        counts = jnp.broadcast_to(_real(steps), (length,))
        return [_gather(((pair, counts),)) for pair in pairs]
    counts = _real(steps)[None]
    pairs = mechanism.dominating_pairs(relation)
    for pair in pairs:
        check_compared_by_class(pair)
    return [((jax.tree.map(lambda leaf: _real(leaf)[None], pair), counts),) for pair in pairs]


def _without_noise(mechanism: Mechanism, steps: Any, relation: Relation) -> list[Parts]:
    """Returns :func:`_direct` of a mechanism that is seen to have no noise, in all or some rows of a sequence."""
    if not mechanism.batch_shape:
        pairs, row = mechanism.noiseless_pairs(relation), _real(steps)[None]
        return [((jax.tree.map(lambda leaf: _real(leaf)[None], pair), row),) for pair in pairs]
    length = mechanism.batch_shape[0]
    counts = np.broadcast_to(steps, (length,)) if is_concrete(steps) else jnp.broadcast_to(steps, (length,))
    bare = np.broadcast_to(np.asarray(mechanism.lacks_noise()), (length,))
    # Fields without the leading axis stay as they are; those that have it, with an axis of their own or not, are cut.
    leaves, structure = tree_leaves_with_path(mechanism), jax.tree.structure(mechanism)
    own = [np.ndim(leaf) > any(key.name in mechanism.vectors for key in path) for path, leaf in leaves]

    def cut(rows: Any) -> Mechanism:
        cuts = [np.asarray(leaf)[rows] if has else leaf for (_, leaf), has in zip(leaves, own, strict=True)]
        return jax.tree.unflatten(structure, cuts)

    nested = [_direct(cut(i), counts[i], relation) for i in np.flatnonzero(bare)]
    if not np.all(bare):
        nested.append(_direct(cut(~bare), counts[~bare], relation))
    return _join_all(nested)


def runs_nothing(directions: list[Parts]) -> bool:
    """Returns whether it is seen that nothing is run at all: then every epsilon and delta is 0."""
    counts = [counts for parts in directions for _, counts in parts]
    return is_concrete(counts) and not any(map(np.any, counts))


def _gather(parts: Parts) -> Parts:
    """Returns pairs of one class as one part; concrete ones filled up to one of few lengths.

    Each number of parts, and each length of a part, is compiled on its own, which takes seconds and a hundred
    megabytes. Parts are filled up with the last pair with no runs, which no accountant counts.
    """
    groups: dict[Any, list[Part]] = {}
    for part in parts:
        shapes = tuple((np.shape(leaf)[1:], np.dtype(leaf.dtype)) for leaf in jax.tree.leaves(part))
        groups.setdefault((jax.tree.structure(part), shapes), []).append(part)
    library: Any = np if is_concrete(parts) else jnp
    gathered: list[Part] = [
        group[0] if len(group) == 1 else jax.tree.map(lambda *rows: library.concatenate(rows), *group)
        for group in groups.values()
    ]
    return tuple(map(_fill, gathered)) if library is np else tuple(gathered)


def _fill(part: Part) -> Part:
    """Returns a part of concrete numbers whose length is a class of lengths; what is added has no runs."""
    pairs, counts = part
    missing = length_class(len(counts)) - len(counts)
    if not missing:
        return part

    def fill(leaf: Any) -> np.ndarray:
        return np.concatenate([leaf, np.repeat(np.asarray(leaf)[-1:], missing, axis=0)])

    return jax.tree.map(fill, pairs), np.concatenate([counts, np.zeros(missing, counts.dtype)])


def length_class(length: int) -> int:
    """Returns the least of 1, 2, 4, 8, 12, 16, 24, 32, ... that is not below a length."""
    power = 1 << (length - 1).bit_length()
    return 3 * power // 4 if length > 8 and length <= 3 * power // 4 else power


def _real(leaf: ArrayLike) -> Any:
    """Returns real numbers in the scope's precision, others as they are; concrete ones as NumPy arrays, for speed."""
    real = jax.dtypes.canonicalize_dtype(jnp.float64)
    if isinstance(leaf, jax.core.Tracer):
        return leaf.astype(real) if jnp.issubdtype(leaf.dtype, jnp.number) else leaf
    values = np.asarray(leaf)
    return values if values.dtype == bool else values.astype(real)


@compiled(static=("cells",))
def laws_of(cells: int, parts: Parts, nats: Array) -> tuple[Atoms, Array]:
    """Returns the laws (m, 2, n) of all pairs of a direction, and their numbers of runs (m,).

    Pairs of different classes have different numbers of atoms; atoms of no mass fill up the shorter laws. So a composer
    is one program for all mechanisms of a size.

    Args:
        cells: about how many atoms a law has; static.
        parts: as :func:`directed_parts` returns them.
        nats (): as :meth:`.DominatingPair.discretize` takes it.
    """
    laws = [of_each(lambda pair: pair.discretize(cells, nats))(pairs) for pairs, _ in parts]
    longest = max(law.losses.shape[-1] for law in laws)

    rows = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(law.fill(longest) for law in laws))
    counts = jnp.concatenate([counts for _, counts in parts])
    misses = [of_each(lambda p: p.surplus()[0])(p) if isinstance(p, FinitePair) else None for p, _ in parts]
    return _with_missed(rows, counts, _bound_missed(misses, [counts for _, counts in parts])), counts


def _bound_missed(each: Sequence[Array | None], counts: Sequence[Array]) -> Array | None:
    """Returns w such that the product of the sums of P, over all runs, is within w of 1; None where it is 1.

    A sum S that misses 1 by d < 1/100 has a logarithm of at most 1.01 d, and so the product is e^x with |x| at most the
    sum of 1.01 k d over the pairs. Another hundredth covers the roundings.
    """
    rows = [jnp.where(k > 0, k * d, 0.0) for d, k in zip(each, counts, strict=True) if d is not None]
    return 1.01 * jnp.expm1(1.01 * jnp.sum(_row(rows))) if rows else None


def _with_missed(laws: Atoms, counts: Array, missed: Array | None) -> Atoms:
    """Returns laws whose infinite losses are those of pairs whose masses miss 1, by w of :func:`_bound_missed`.

    The numbers of a pair are the truth: an outcome of several runs has the product of their masses. With S the sum of
    P, and m the mass of infinite losses, the outcomes with an infinite loss thus have S^k - (S - m)^k, and in general
    the product of all S^k times 1 - i', with i' = 1 - prod (1 - m/S)^k. Composers of laws count i = 1 - prod (1 - m)^k.
    With m/S in place of m it grows, or falls, by a share of w at most, as it is concave in a common factor of all m,
    and 0 with it; the product of all S^k is within w of 1. So the truth is within 2w + w^2 < 3w of i, relative to it.
    To move i by so much, all logarithms log(1 - m) are multiplied by one number.
    """
    if missed is None:
        return laws
    sides = np.array([[1.0, -1.0]])
    share = jnp.clip(3 * missed, 0.0, 1.0) * sides
    logs = log_complement(jnp.minimum(laws.infinite, 1.0))
    total = jnp.sum(jnp.where(counts[:, None] > 0, counts[:, None] * logs, 0.0), 0, keepdims=True)
    moved = log_complement(jnp.clip(-jnp.expm1(total) * (1 + share), 0.0, 1.0))
    factor = jnp.where((total < 0) & (total > -jnp.inf), moved / total, 1.0)
    # Three functions, each of 8 units, a sum, a quotient and a product, either way.
    moved_mass = -jnp.expm1(jnp.where(laws.infinite > 0, logs * factor, 0.0))
    moved_mass = moved_mass * (1 + (40 + 2 * counts.size) * roundoff() * sides)
    return laws._replace(infinite=jnp.where(missed == 0, laws.infinite, jnp.clip(moved_mass, 0.0, 1.0)))


@compiled(static=("cells",))
def laws_for(cells: int, parts: Parts, question: Question) -> tuple[Atoms, Array]:
    """Returns :func:`laws_of`, resolved as far as a question needs.

    Losses count that are about as likely as delta. For a question for delta this makes the laws twice: the first ones
    resolve all that numbers hold, and tell how small delta may be.
    """
    # Nats beyond delta, and the most nats to which laws resolve tails: float64 ends at 708. Tightness only.
    few, most = 12.0, 690.0
    runs = sum((jnp.sum(counts) for _, counts in parts), jnp.zeros(()))
    more = few + jnp.log(jnp.maximum(runs, 1.0))
    if isinstance(question, ForEpsilon):
        return laws_of(cells, parts, jnp.minimum(more - jnp.log(jnp.maximum(question.delta, TINY)), most))

    def make(_: Any, state: tuple[Array, tuple[Atoms, Array]]) -> tuple[Array, tuple[Atoms, Array]]:
        laws, counts = laws_of(cells, parts, state[0])
        return jnp.clip(more - _chernoff(laws, counts, question.epsilon), more, most), (laws, counts)

    first = jnp.asarray(most)
    shapes = jax.eval_shape(lambda: laws_of(cells, parts, first))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    # Twice: for all that numbers hold, and for what is left of it beside delta.
    _, laws_and_counts = jax.lax.fori_loop(0, 2, make, (first, nothing))
    return laws_and_counts


def _chernoff(laws: Atoms, counts: Array, epsilon: Array) -> Array:
    """Returns about the log of delta at an epsilon, by moments. It only steers."""
    orders = jnp.asarray(2.0 ** np.linspace(-20.0, 20.0, 61))
    losses, masses = laws.losses[:, 0], laws.masses[:, 0]
    terms = jnp.where(masses > 0, jnp.log(masses), -jnp.inf)[:, None] + orders[None, :, None] * losses[:, None]
    cumulants = jax.nn.logsumexp(terms, -1)
    total = jnp.sum(jnp.where(counts[:, None] > 0, counts[:, None] * cumulants, 0.0), 0)
    logs = total + log_peak(orders) - orders * epsilon
    return jnp.min(jnp.where(jnp.isnan(logs), 0.0, logs))


class Known(NamedTuple):
    """The facts of a pair, or of several with a leading axis."""

    is_valid: Bool[Array, ""]
    """Whether the pair's parameters are in range."""
    mass: tuple[Array, Array] | None
    """P(Y = inf), and a bound on its relative error; None where the class has no infinite losses."""
    supremum: tuple[Array, Array]
    """Bounds (lower, upper) on the supremum of the finite losses."""
    infimum: Array | None
    """A lower bound on the infimum of the finite losses; None where the class gives none."""
    missed: Array | None = None
    """Bound on the distance of P's sum from one; None where P is a law."""


class Facts(NamedTuple):
    """The facts of a composition that need no composing; bounds are pairs (lower, upper).

    None stands for a value that the classes imply without numbers, so that no program computes it.
    """

    is_valid: Bool[Array, ""]
    """Whether all counts, and the pairs that are run, are in range."""
    is_idle: Bool[Array, ""]
    """Whether nothing is run at all."""
    runs: Array
    """The number of runs, of whatever pair."""
    masses: tuple[Array, Array] | None
    """Bounds on the probability of an infinite loss; None is 0."""
    suprema: tuple[Array, Array] | None
    """Bounds, at least 0, on the supremum of the finite losses' sum; None is infinity."""
    infimum: Array | None = None
    """A lower bound on the infimum of the finite losses' sum; None is minus infinity."""
    missed: Array | None = None
    """Bound on the distance from one of the product of P's sums over all runs; None is 0."""

    @property
    def infinite(self) -> tuple[Array, Array]:
        """Bounds on the probability of an infinite loss, as numbers."""
        return (jnp.zeros(()), jnp.zeros(())) if self.masses is None else self.masses

    def in_numbers(self) -> Facts:
        """Returns the same facts with numbers for what the classes imply without any."""
        endless = jnp.full_like(self.runs, jnp.inf)
        suprema = (jnp.zeros_like(endless), endless) if self.suprema is None else self.suprema
        infimum = -endless if self.infimum is None else self.infimum
        missed = jnp.zeros_like(endless) if self.missed is None else self.missed
        return self._replace(masses=self.infinite, suprema=suprema, infimum=infimum, missed=missed)


def known_of(pair: DominatingPair) -> Known:
    """Returns the facts of one pair."""
    never = type(pair).infinite_mass is DominatingPair.infinite_mass
    mass = None if never else (pair.infinite_mass(), pair.infinite_mass_error())
    missed = pair.surplus()[0] if isinstance(pair, FinitePair) else None
    return Known(pair.is_valid(), mass, pair.supremum(), pair.infimum(), missed)


@compiled
def facts_of(parts: Parts) -> Facts:
    """Returns the facts of a composition, by one program."""
    return combined([of_each(known_of)(pairs) for pairs, _ in parts], [steps for _, steps in parts])


def is_out_of_range(directions: list[Parts]) -> bool:
    """Returns whether it is seen that in no direction all counts, and all pairs that are run, are in range."""
    if not is_concrete(directions):
        return False
    is_any_valid = _is_any_valid(directions)
    return is_concrete(is_any_valid) and not is_any_valid


@compiled
def _is_any_valid(directions: list[Parts]) -> Array:
    def is_valid(pairs: DominatingPair, counts: Array) -> Array:
        return jnp.all((of_each(lambda pair: pair.is_valid())(pairs) | (counts == 0)) & is_count(counts))

    return jnp.any(jnp.stack([jnp.all(jnp.stack([is_valid(*part) for part in parts])) for parts in directions]))


def combined(known: Sequence[Known], counts: Sequence[Array]) -> Facts:
    """Returns the facts of a composition from those of the pairs of each part, (m,), and their counts, (m,)."""
    steps = _row(counts)
    valid = _row([of_pairs.is_valid for of_pairs in known])
    missed = _bound_missed([of_pairs.missed for of_pairs in known], counts)
    return Facts(
        jnp.all((valid | (steps == 0)) & is_count(steps)),
        jnp.all(steps == 0),
        jnp.sum(steps),
        _infinite_mass(known, counts, missed),
        _supremum(_row([jnp.stack(of_pairs.supremum) for of_pairs in known]), steps),
        _infimum(known, counts),
        missed,
    )


def _row(rows: Sequence[Any]) -> Array:
    return rows[0] if len(rows) == 1 else jnp.concatenate(list(rows), axis=-1)


def _infinite_mass(known: Sequence[Known], counts: Sequence[Array], missed: Array | None) -> tuple[Array, Array] | None:
    """Returns bounds on the probability of an infinite loss; None where no class has one.

    Where sums of P miss one it is within 3w of itself (:func:`_with_missed`). That of a single run is a given number.
    """
    seen = [(of_pairs.mass, steps) for of_pairs, steps in zip(known, counts, strict=True) if of_pairs.mass is not None]
    if not seen:
        return None
    of_pairs, own = zip(*(mass for mass, _ in seen), strict=True)
    mass, error, steps = _row(of_pairs), _row(own), _row([steps for _, steps in seen])
    run = steps > 0
    total = -jnp.expm1(jnp.sum(jnp.where(run, steps * log_complement(mass), 0.0)))
    # The relative error is that of the masses, their logarithms, products and sum, all of positive terms. For a single
    # run it is the given one.
    single = jnp.sum(jnp.where(run, steps, 0.0)) == 1
    total = jnp.where(single, jnp.sum(jnp.where(run, mass, 0.0)), total)
    off = jnp.max(jnp.where(run, error, 0.0)) * (1 + 1e-9)
    rounding = (40 + 2 * len(steps)) * roundoff()
    off = off + jnp.where(single, 0.0, rounding if missed is None else rounding + 3 * missed)
    return jnp.maximum(total * (1 - off), 0.0), jnp.minimum(total * (1 + off), 1.0)


def _supremum(each: Array, steps: Array) -> tuple[Array, Array]:
    """Returns bounds on the sum of suprema, at least 0, from bounds (2, m) on each; NaN or -inf is not known.

    A supremum is not negative where P and Q both sum to one, but may be where given masses miss that: then all losses
    may be negative, and take something from the others' sum. From above 0 in its place does no harm.
    """
    none, least = np.array([[0.0], [np.inf]]), np.array([[-np.inf], [0.0]])
    steps = steps[None]
    terms = jnp.where(steps > 0, jnp.where(each > -jnp.inf, jnp.maximum(each, least), none) * steps, 0.0)
    # Products and sum round once each, relative to the terms.
    off = np.array([-2.0, 2.0]) * (steps.size * roundoff())
    total = jnp.sum(terms, axis=-1)
    moved = jnp.where(jnp.isinf(total), total, jnp.maximum(total + off * jnp.sum(jnp.abs(terms), axis=-1), 0.0))
    return moved[0], moved[1]


def _infimum(known: Sequence[Known], counts: Sequence[Array]) -> Array | None:
    """Returns a lower bound on the sum of the infima; None where a pair gives none."""
    rows = [of_pairs.infimum for of_pairs in known if of_pairs.infimum is not None]
    if len(rows) < len(known):
        return None
    each, steps = _row(rows), _row(counts)
    terms = jnp.where(steps > 0, each * steps, 0.0)
    return jnp.sum(terms) - 2 * steps.size * roundoff() * jnp.sum(jnp.abs(terms))


# ----------------------------------------------------------------------------------------------------
# The questions to a composition: epsilon at a delta, or delta at an epsilon.
#
# A question is a pytree with one leaf, the number that it gives, so it passes through ``jit``, ``vmap`` and ``jvp``;
# its type, which is static, tells which of the two it is. It knows the shape of its answers: the worst one, the gap at
# which one has converged, and how the facts of a composition (:class:`Facts`) close a bracket at the ends of the range.
# Accountants know how an answer is found.
#
# The loss of a composition is at most the sum S of its losses' suprema, if it is finite. So for a mass m of infinite
# losses delta(eps) = m from eps = S on, delta(inf) = m, and epsilon(delta) <= S for every delta >= m. At delta = 0, if
# m = 0, epsilon is S itself: the pure guarantee. Below S delta is above 0, however little float64 can hold of it.
#
# Beside the infinite losses, delta(eps) is the mean of (1 - e^(eps - Y))+ over finite losses Y, of mass 1 - m at most.
# So it is at most m + (1 - m) (1 - e^(eps - S)), and with I the sum of the losses' infima at least the same with I in
# the place of S. Where all finite losses are one, as under a guarantee of one direction, the two are equal. Where P's
# sums miss one, 1 - m is 1 + w - m from above, and 1 - w - m from below.
# ----------------------------------------------------------------------------------------------------

NEGLIGIBLE = 1e-9
"""Relative width below which a bracket has converged by any standard, and its middle is an estimate.

A bracket below :data:`RAISED` times its runs has converged, too: there numbers are as good as 0. Brackets hold for
any value.
"""


RAISED = 8 * TINY
"""Amount a run, of epsilon in nats or of delta, by which lower bounds are lowered in the end.

XLA takes numbers below TINY for 0, so mechanisms raise them to it, and a run may cost less than it is counted for by as
much for each of its numbers, of which no mechanism has eight. A smaller amount would break lower bounds near TINY."""


@register_dataclass
@dataclass(frozen=True)
class ForEpsilon:
    """The question for epsilon at ``delta`` (), in [0, 1); 0 asks for the pure epsilon."""

    delta: Any

    name: ClassVar[str] = "epsilon"
    argument: ClassVar[str] = "delta"
    worst: ClassVar[float] = math.inf
    tolerance: ClassVar[float] = 1e-3
    """Relative gap that is aimed at where the caller gives none."""

    @property
    def value(self) -> Any:
        """The number given."""
        return self.delta

    def at(self, value: Any) -> ForEpsilon:
        """Returns the same question at another number."""
        return ForEpsilon(value)

    def check(self) -> None:
        """Raises where the value is no number, or is concrete and out of range."""
        validation.check_delta(self.delta, pure=True)

    def close(self, bounds: Bounds, facts: Facts, is_inside: bool = False) -> Bounds:
        """Returns a bracket of epsilon closed by the supremum, and exact where nothing is run.

        ``is_inside`` says that delta is known to be in (0, 1). With the supremum s of finite losses, and the mass m of
        infinite ones, eps is at most s + log((1 - delta)/(1 - m)); with their infimum it is at least that.
        """
        delta = self.delta
        lower, upper = jnp.asarray(bounds.lower), jnp.asarray(bounds.upper)
        valid = facts.is_valid if is_inside else facts.is_valid & (delta >= 0) & (delta < 1)
        least, most = facts.masses or (0.0, 0.0)
        missed = 0.0 if facts.missed is None else facts.missed
        upper = upper if is_inside else jnp.where(delta == 0, jnp.inf, upper)
        pure = jnp.full_like(lower, jnp.inf)
        if facts.suprema is not None:
            low, high = facts.suprema
            pure = jnp.maximum(lower, low)
            room = _room(delta, most, 1 + missed) if facts.masses else jnp.clip(delta, 0.0, 1.0)
            below = high + log_complement(room * (1 - 8 * roundoff()))
            below = jnp.maximum(below + 16 * roundoff() * (high + jnp.abs(below)), 0.0)
            below = jnp.where(room > 0, jnp.minimum(below, high), high)
            upper = jnp.where(delta >= most, jnp.minimum(upper, below), upper)
        if facts.infimum is not None:
            taken = log_complement(jnp.minimum(_room(delta, least, 1 - missed) * (1 + 8 * roundoff()), 1.0))
            above = facts.infimum + taken - 16 * roundoff() * (jnp.abs(facts.infimum) + jnp.abs(taken))
            lower = jnp.maximum(lower, jnp.where(above > 0, above, 0.0))
        if arithmetic().has_short_range:  # a delta of 0 may have been one below all normal numbers
            pure = jnp.zeros_like(lower)
        lower = lower if is_inside else jnp.where(delta == 0, pure, lower)
        if facts.masses is not None:
            lower = jnp.where(delta < least, jnp.inf, lower)
        return _close_bracket(bounds, lower, upper, valid, facts, self)


@register_dataclass
@dataclass(frozen=True)
class ForDelta:
    """The question for delta at ``epsilon`` (), at least 0; ``inf`` asks for the mass of infinite losses."""

    epsilon: Any

    name: ClassVar[str] = "delta"
    argument: ClassVar[str] = "epsilon"
    worst: ClassVar[float] = 1.0
    tolerance: ClassVar[float] = 1e-2
    """Relative gap that is aimed at where the caller gives none: delta moves about ten times faster than epsilon."""

    @property
    def value(self) -> Any:
        """The number given."""
        return self.epsilon

    def at(self, value: Any) -> ForDelta:
        """Returns the same question at another number."""
        return ForDelta(value)

    def check(self) -> None:
        """Raises where the value is no number, or is concrete and out of range."""
        validation.check_epsilon(self.epsilon)

    def close(self, bounds: Bounds, facts: Facts, is_inside: bool = False) -> Bounds:
        """Returns a bracket of delta closed by the mass of infinite losses, and exact where nothing is run.

        ``is_inside`` says that epsilon is known to be in (0, inf). With the supremum s of finite losses, and the mass m
        of infinite ones, delta is at most m + (1 - m) (1 - e^(eps - s)); with their infimum at least that. The upper
        end is not below the smallest normal float64 unless delta is 0: a positive delta below that would be flushed to
        0.
        """
        epsilon = self.epsilon
        lower, upper = jnp.asarray(bounds.lower), jnp.asarray(bounds.upper)
        valid = facts.is_valid if is_inside else facts.is_valid & (epsilon >= 0)
        least, most = facts.masses or (0.0, 0.0)
        missed = 0.0 if facts.missed is None else facts.missed
        beyond = epsilon == jnp.inf
        lower = jnp.where(beyond, least, lower if facts.masses is None else jnp.maximum(lower, least))
        if facts.suprema is not None:
            past = epsilon - facts.suprema[1]
            beyond = (past >= 0) | beyond
            # The difference errs by a unit of itself, and one less its exponential by eight units.
            below = most - (1 + missed - most) * jnp.expm1(jnp.minimum(past, 0.0)) * (1 + 16 * roundoff())
            upper = jnp.minimum(upper, below * (1 + 4 * roundoff()))
        if facts.infimum is not None:
            past = jnp.minimum(epsilon - facts.infimum, 0.0)
            above = least - jnp.maximum(1 - missed - least, 0.0) * jnp.expm1(past) * (1 - 16 * roundoff())
            lower = jnp.maximum(lower, jnp.where(past < 0, above * (1 - 4 * roundoff()), 0.0))
        upper = jnp.where(beyond, jnp.minimum(most, 1.0), jnp.maximum(upper, TINY))
        return _close_bracket(bounds, jnp.minimum(lower, upper), upper, valid, facts, self)


def _room(delta: Any, mass: Any, full_mass: Any = 1.0) -> Any:
    """Returns the delta that is left of the whole beside a mass of infinite losses, of the finite ones: in [0, 1]."""
    return jnp.clip((delta - mass) / jnp.where(mass < full_mass, full_mass - mass, 1.0), 0.0, 1.0)


Question: TypeAlias = ForEpsilon | ForDelta
"""A question, with its number."""

Kind: TypeAlias = type[ForEpsilon] | type[ForDelta]
"""The kind of a question, before its number is known."""


def check_asked(mechanism: Any, steps: Any, question: Question) -> None:
    """Raises where an accountant is not given a composition and a single number, or concrete ones are out of range."""
    question.check()
    validation.check_scalar(question.value, question.argument)
    check(mechanism, steps)


def bracket_of(lower: Array, upper: Array, question: Question, facts: Facts) -> Bounds:
    """Returns the bracket that two bounds on a question's answer make with the facts of a composition.

    Bounds that contradict each other say nothing: then it is the trivial one. Its middle is the estimate, and it has
    converged where it is as narrow as the question asks.
    """
    is_known = lower <= upper
    lower, upper = jnp.where(is_known, lower, 0.0), jnp.where(is_known, upper, question.worst)
    bounds = Bounds(lower=lower, estimate=(lower + upper) / 2, upper=upper, converged=jnp.asarray(False))
    bounds = question.close(bounds, facts)
    return replace(bounds, converged=bounds.converged | (bounds.gap <= question.tolerance))


def unknown(question: Question) -> Bounds:
    """Returns the trivial bracket, of the shape of the question."""
    nothing = jnp.zeros_like(question.value)
    return Bounds(nothing, nothing + jnp.nan, nothing + question.worst, nothing > 0)


def _close_bracket(
    bounds: Bounds, lower: Array, upper: Array, valid: Array, facts: Facts, question: Question
) -> Bounds:
    """Returns the bracket with these ends, 0 where nothing is run, and the whole range where arguments are wrong."""
    worst, tolerance = question.worst, question.tolerance
    idle = facts.is_idle
    valid = valid & (idle | (lower <= upper))  # false for NaN, too
    raised = jnp.where(valid, RAISED * facts.runs, 0.0)
    # The absolute value turns -0 into 0.
    lower = jnp.abs(jnp.where(valid & ~idle, lower, 0.0))
    upper = jnp.where(valid, jnp.abs(jnp.where(idle, 0.0, upper)), worst)
    # The flag judges the bracket that this returns.
    lower = jnp.maximum(lower - raised, 0.0)
    if arithmetic().has_short_range:  # a finite epsilon may overflow: 2^60 nats are enough from below
        lower = jnp.minimum(lower, 2.0**60)
    closed = valid & (((1 - NEGLIGIBLE) * upper <= lower) | (upper <= raised))
    is_narrow = (1 - tolerance) * upper <= lower
    estimate = jnp.where(closed & jnp.isnan(bounds.estimate), 0.5 * (lower + upper), bounds.estimate)
    estimate = jnp.clip(estimate, lower, upper)
    return replace(
        bounds, lower=lower, estimate=estimate, upper=upper, converged=valid & (bounds.converged & is_narrow | closed)
    )


# ----------------------------------------------------------------------------------------------------
# The query: a composition and the question asked of it, which travels from the verbs to the accountants.
#
# It is a pytree. Its leaves are the numbers of mechanism, steps and question; all else is static, so that a query
# passes through ``jit``, ``vmap`` and ``jvp`` as one argument, and one program serves all numbers.
# ----------------------------------------------------------------------------------------------------


class StaticFacts(NamedTuple):
    """The facts that Python sees of a query before its numbers are traced, so that no program has to check them."""

    single: SingleRun | None = None
    """Why all comes to one run of one pair, which traced counts do not tell; None where that is not seen."""
    is_gaussian: bool = False
    """Whether all runs are plain Gaussian ones by their class; the next two facts are those of such runs."""
    has_runs: bool = False
    """Whether all numbers of runs are seen to be above 0."""
    is_inside: bool = False
    """Whether the number asked about is seen to be inside of its range, not at an end."""
    has_curves_only: bool = False
    """Whether a mechanism is known by its Rényi curve alone."""
    has_ranges: bool = False
    """Whether exponential mechanisms may be run several times."""
    has_integer_vectors: bool = False
    """Whether discrete Gaussian noise on vectors is among them, which is known by mechanisms near to it alone."""
    has_attained: bool = False
    """Whether one is among them whose lower ends are those of other mechanisms (:meth:`.Mechanism.attained`)."""


def static_facts(mechanism: Any, steps: Any, question: Question) -> StaticFacts:
    """Returns the facts that Python sees of checked arguments."""
    parts = mechanism if isinstance(mechanism, (tuple, list)) else (mechanism,)
    if all(type(part) is Gaussian and not np.any(part.lacks_noise()) for part in parts):
        has_runs = is_concrete(steps) and all(np.all(np.asarray(count) > 0) for count in jax.tree.leaves(steps))
        value, most = question.value, 1.0 if isinstance(question, ForEpsilon) else np.inf
        is_inside = is_concrete(value) and bool(np.all((np.asarray(value) > 0) & (np.asarray(value) < most)))
        return StaticFacts(is_gaussian=True, has_runs=has_runs, is_inside=is_inside)
    has_curves_only, has_integer_vectors, has_attained, ranges = False, False, False, 0.0
    # Traced numbers of runs of exponential mechanisms may be any, and so may be several.
    for part, count in flat_runs(mechanism, steps):
        has_curves_only = has_curves_only or isinstance(part, RenyiOnly)
        has_integer_vectors = has_integer_vectors or isinstance(part, DiscreteGaussianVector)
        has_attained = has_attained or type(part).attained is not Mechanism.attained
        if isinstance(part, ExponentialMechanism):
            ranges += float(np.sum(np.broadcast_to(count, np.shape(part.epsilon)))) if is_concrete(count) else 2.0
    known = single_run(mechanism, steps)
    return StaticFacts(
        known,
        has_curves_only=has_curves_only,
        has_ranges=ranges > 1,
        has_integer_vectors=has_integer_vectors,
        has_attained=has_attained,
    )


AS_IT_IS = {"static": True, "as_it_is": True}
"""Static fields of a query: their values have been converted."""


@register_dataclass
@dataclass(frozen=True)
class Query:
    """A composition, and what is asked of it; arguments are not checked (:func:`check_asked`)."""

    mechanism: Any
    """One mechanism, a sequence by a leading axis, or a tuple of mechanisms."""
    steps: Any
    """The numbers of runs."""
    question: Question
    """Epsilon at a delta, or delta at an epsilon; at one number, or at several (n,) where an accountant takes these."""
    relation: Relation = field(metadata=AS_IT_IS)
    """The relation of neighbouring data sets."""
    facts: StaticFacts = field(default=StaticFacts(), metadata=AS_IT_IS)
    """The facts that were seen of the numbers, which may be traced by now."""
    tolerance: Any = field(default=None, metadata=AS_IT_IS)
    """The relative gap that is wanted, of concrete arguments only, a float; None: the question's own."""
    points: Any = field(default=None, metadata=AS_IT_IS)
    """Points of the evolving mesh, an integer, where one is composed; or None."""
    arithmetic: Certified = field(default="auto", metadata=AS_IT_IS)
    """The arithmetic that the caller wants."""

    @property
    def run(self) -> tuple[Any, Any, Question]:
        """The arguments that have numbers to compute with."""
        return self.mechanism, self.steps, self.question

    @property
    def gap(self) -> float:
        """The relative gap at which a bracket is narrow enough."""
        return self.tolerance or self.question.tolerance

    @functools.cached_property
    def is_concrete(self) -> bool:
        """Whether Python sees all numbers."""
        return is_concrete(self.run)

    @functools.cached_property
    def directions(self) -> list[Parts]:
        """The pairs of the composition for each direction, made once: those of blocks of ranges take time."""
        return directed_parts(self.mechanism, self.steps, self.relation, self.facts.single)

    def at(self, value: Any) -> Query:
        """Returns the same query at another number, or at other numbers (n,)."""
        return replace(self, question=self.question.at(value))

    def counts_runs(self) -> tuple[bool, ...]:
        """Returns, for each leaf, whether it is a number of runs: they stand between the mechanism's and the value."""
        first, last = len(jax.tree.leaves(self.mechanism)), len(jax.tree.leaves(self))
        return tuple(first <= i < last - 1 for i in range(last))


def query_of(
    mechanism: Any,
    steps: Any,
    question: Question,
    relation: Relation,
    tolerance: float | None = None,
    points: int | None = None,
    arithmetic: Certified = "auto",
) -> Query:
    """Returns the query of checked arguments; a tuple of one mechanism is that mechanism."""
    if isinstance(mechanism, (tuple, list)) and len(mechanism) == 1:
        return query_of(mechanism[0], steps[0], question, relation, tolerance, points, arithmetic)
    facts = static_facts(mechanism, steps, question)
    return Query(mechanism, steps, question, relation, facts, tolerance, points, arithmetic)
