"""The base class of mechanisms, the neighbouring relations, and the checks that accountants make of both.

A mechanism is a dataclass of numbers that gives a dominating pair for each direction of a neighbouring relation. In
reading order:

- the relations and their directions,
- :class:`Mechanism`, and the types of a composition,
- runs that release nothing (:func:`without_noops`),
- a composition as a list of runs, and its checks.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.choices import Relation as Relation
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import (
    TINY,
    Result,
    as_float64,
    as_real,
    exact_float64,
    exact_real,
    is_concrete,
    is_zero,
    kernel,
    leave_scope,
    scope,
)
from jaxacct.numerics.pytrees import check_compared_by_class, widen_fields

Direction: TypeAlias = Literal["remove", "add", "replace"]
"""A direction of a relation: from the data set with the example to the one without, back, or by a replacement."""

DIRECTIONS: dict[Relation, tuple[Direction, ...]] = {
    "add_or_remove": ("remove", "add"),
    "remove": ("remove",),
    "add": ("add",),
    "replace": ("replace",),
    "zero_out": ("remove", "add"),
}
"""Directed pairs that each neighbouring relation asks for; the largest privacy loss of them counts."""

REVERSE: dict[Relation, Relation] = {"remove": "add", "add": "remove"}
"""Relations that hold in one order of two neighbours alone, with the one of the other order. A guarantee that is stated
for one of them says nothing of the other. Every other relation, "replace" among them, holds in both orders."""


class Fields:
    """The base of dataclasses whose fields are numbers, or arrays that broadcast.

    The constructor converts them (:func:`.pytrees.wide`), and checks them. JAX rebuilds instances without it.
    """

    vectors: ClassVar[tuple[str, ...]] = ()
    """Names of fields that have one axis more than the rest, their last; a list given for one becomes an array."""

    def __post_init__(self) -> None:
        self.convert()
        self.validate()

    def convert(self) -> None:
        """Widens the numbers of a new instance, once: what Python computes of them neither wraps nor loses digits."""
        for name in self.vectors:
            value = getattr(self, name)
            if isinstance(value, (list, tuple)):  # which as a pytree would have a leaf for each number
                object.__setattr__(self, name, validation.as_array(value, name))
        widen_fields(self)

    @abc.abstractmethod
    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range; one that is traced cannot raise."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields: () for one, (n,) for a sequence of n."""
        if self.vectors:
            return np.shape(getattr(self, self.vectors[-1]))[:-1]
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(self)]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(
                f"{type(self).__name__} has fields of shapes {', '.join(map(str, shapes))}, which do not go together: "
                "give scalars, and arrays of one length for a sequence."
            ) from None

    def check_numbers(self) -> None:
        """Raises TypeError where a field is no number: accountants ask this, for JAX may have rebuilt the pytree."""
        if jax.tree_util.all_leaves([self]):
            name = type(self).__name__
            raise TypeError(f"{name} is no pytree: put @jaxacct.register_dataclass above its @dataclass.")
        check_compared_by_class(self)
        for path, leaf in jax.tree_util.tree_leaves_with_path(self, is_leaf=lambda value: value is None):
            validation.check_number(leaf, f"{type(self).__name__}{jax.tree_util.keystr(path)}")


class Mechanism(Fields, abc.ABC):
    """The base class of all mechanisms, and of a user's own: it describes one run, and what that releases.

    Fields that are arrays with one leading axis are a sequence of mechanisms, which are composed together. They are not
    a batch: ``jax.vmap`` makes batches.

    It is a class and not a protocol, so that a type checker and a check at run time refuse by name what is no
    mechanism, and so that most methods are inherited. Write a frozen dataclass, registered by
    :func:`jaxacct.register_dataclass`, whose fields are numbers or arrays, with :attr:`relations`, :meth:`validate` and
    :meth:`dominating_pairs`; override the rest where fields are vectors or a run can release nothing. Every accountant,
    filter and trainer then takes it.

    Making one raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead.

    Attributes:
        relations: the neighbouring relations that :meth:`dominating_pairs` knows pairs for, the default one first.
        may_fail: whether pairs may have infinite losses of a probability below one. Rényi accountants then count these
            beside the divergences; otherwise they answer inf.
        tight: whether two data sets attain the pairs, under every relation of these: then a ``lower`` of accountants is
            below the mechanism's own epsilon. Otherwise, and by default, it is below that of the pairs alone, which may
            be larger than the mechanism's, unless :meth:`attained` says more. An ``upper`` holds either way.
        one_way: whether what is known is a guarantee stated for the relation in use, so that under "remove" or "add"
            it is one of that direction alone (:class:`.PureDP`). By default the pairs under "remove" and "add", where
            both are supported, are those of one mechanism in its two directions.
        unknown: why no other relations are known, as a clause for the message that refuses them.

    A noisy count in which one person may count several times:

    >>> import dataclasses
    >>> import jaxacct as ja
    >>> @ja.register_dataclass
    ... @dataclasses.dataclass(frozen=True)
    ... class NoisyCount(ja.Mechanism):
    ...     deviation: float
    ...     most: float
    ...     relations = ("add_or_remove", "remove", "add")
    ...     def validate(self):
    ...         ja.Gaussian(self.deviation)
    ...     def dominating_pairs(self, relation="add_or_remove"):
    ...         return ja.Gaussian(self.deviation / self.most).dominating_pairs(relation)
    >>> print(ja.epsilon(NoisyCount(deviation=20.0, most=2.0), steps=100, delta=1e-5))
    [4.377178, 4.377179]
    """

    relations: ClassVar[tuple[Relation, ...]]

    may_fail: ClassVar[bool] = False

    tight: ClassVar[bool] = False

    one_way: ClassVar[bool] = False

    unknown: ClassVar[str] = ""

    @abc.abstractmethod
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns one pair for each direction of ``relation``, or one for all; raises ValueError for no such relation.

        A pair dominates if its hockey-stick divergence is, for every epsilon, at least that of the releases on any two
        neighbouring data sets.
        """

    def attained(self, relation: Relation) -> tuple[tuple[Mechanism, ...], ...]:
        """Returns mechanisms that release no more than a run of this one does on two neighbouring data sets.

        They have pairs that data sets attain, or that are made of those by post-processing: :func:`jaxacct.epsilon`
        takes its ``lower`` from them. There is an entry for each *case* that the fields leave open, of which the least
        lower bound holds; in it are *alternatives*, of which the greatest does. By default there is none, and ``lower``
        is that of the pairs.
        """
        return ()

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        """Returns where a run releases nothing, and so costs nothing: nowhere, unless a mechanism says otherwise."""
        return False

    def with_unit_parameters(self, nothing: Bool[ArrayLike, "*batch"]) -> Self:
        """Returns this with valid parameters where ``nothing`` is released: numbers of 1, and vectors as they are."""
        scalars = len(self.batch_shape)
        return jax.tree.map(lambda leaf: leaf if np.ndim(leaf) > scalars else choose(nothing, 1.0, leaf), self)

    def lacks_noise(self) -> Bool[np.ndarray, "*batch"] | bool:
        """Returns where numbers that Python sees leave no noise at all, so that :meth:`noiseless_pairs` has the pairs.

        By default, and of traced numbers, nowhere: there :meth:`dominating_pairs` gives pairs that are out of range,
        and cost inf.
        """
        return False

    def noiseless_pairs(self, relation: Relation) -> tuple[DominatingPair, ...]:
        """Returns what :meth:`dominating_pairs` does, of one run without noise."""
        raise NotImplementedError

    def of_group(self, size: int) -> Mechanism:
        """Returns the mechanism that dominates this one where ``size`` examples change at once: see
        :func:`jaxacct.group`.

        Raises ValueError by default: nothing is known of a mechanism's groups unless its class says so.
        """
        raise ValueError(
            f"{type(self).__name__} has no dominating pair for groups of {size} here: account for one example of it, "
            "or write its of_group."
        )

    @property
    def composed(self) -> bool:
        """Whether all accountants treat a run of it as the mechanisms of :meth:`decompose`.

        This is so where a class overrides :meth:`decompose`. A class that decomposes some of its runs alone overrides
        this as well.
        """
        return type(self).decompose is not Mechanism.decompose

    def decompose(self, steps: ArrayLike) -> list[tuple[Mechanism, ArrayLike]]:
        """Returns mechanisms and numbers of runs that come to ``steps`` runs of this one; by default just itself.

        A class that lists itself among others overrides :attr:`composed`, too.
        """
        return [(self, steps)]


class NoisyMechanism(Mechanism):
    """The base of mechanisms whose first field is the scale of their noise: infinite noise hides all."""

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_infinite(jax.tree.leaves(self)[0])

    def lacks_noise(self) -> Bool[np.ndarray, "*batch"] | bool:
        noise, *others = jax.tree.leaves(self)
        return np.asarray(noise, np.float64) == 0 if is_concrete(noise, *others) else False


class SampledNoise(NoisyMechanism):
    """The base of those on a sample of the examples, of which a sampling rate of 0 shows nothing either."""

    sampling_rate: ArrayLike

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return nothing_sampled(jax.tree.leaves(self)[0], self.sampling_rate)


Mechanisms: TypeAlias = Mechanism | Sequence[Mechanism]
"""Mechanisms that an accountant composes: one (whose fields may have a leading axis), or several."""

Steps: TypeAlias = ArrayLike | Sequence[ArrayLike]
"""Numbers of runs: one number, an array of them beside a leading axis, or one entry for each mechanism."""


def without_noops(mechanism: Any, steps: Any) -> tuple[Any, Any]:
    """Returns the mechanism and its steps with 0 runs of an ordinary one in place of runs that release nothing.

    With infinite noise, or a sampling rate of 0, the privacy loss is 0 whatever comes out, so any number of runs costs
    exactly nothing. Accountants leave out mechanisms with 0 runs.
    """
    # A batch of float64 numbers may have come in from outside: first into the scope's own precision.
    mechanism = jax.tree.map(lambda leaf: leaf if is_concrete(leaf) else exact_real(leaf), mechanism)
    nothing = mechanism.releases_nothing()
    if is_concrete(nothing) and not np.any(nothing):
        return mechanism, steps
    # A value that is no valid number of runs stays as it is, so that the accountant can refuse it.
    return mechanism.with_unit_parameters(nothing), choose(nothing & is_count(steps), 0.0, steps)


def counts_of(steps: Any) -> Any:
    """Returns numbers of runs in float64, or the scope's precision if traced: Python and programs may multiply them.

    Traced ones that rounding would make valid are NaN. Numbers between whole ones stay, because derivatives ask for
    them; brackets refuse them (:func:`.composition.facts_of`).
    """
    if is_concrete(steps):
        return np.asarray(steps, np.float64)[()]
    counts = exact_real(steps)
    if jnp.issubdtype(steps.dtype, jnp.integer):
        most = validation.MOST_STEPS
        return jnp.where(steps > most, jnp.nan, counts) if steps.dtype.itemsize == 8 else counts
    # XLA may take a subnormal number for 0, which would be a valid number of runs.
    return jnp.where((counts == 0) & ~is_zero(counts), jnp.nan, counts)


def is_count(steps: Any) -> Any:
    """Returns where a number can count runs: whole, at least 0, and so small that float64 holds all whole numbers up to
    it.
    """
    floor = np.floor(steps) if is_concrete(steps) else jnp.floor(steps)
    return (steps >= 0) & (steps == floor) & (steps <= float(validation.MOST_STEPS))


def choose(condition: Any, first: Any, second: Any) -> Any:
    """Returns ``where``, by NumPy if all values are concrete: so they stay concrete, and float64 outside the scope."""
    if is_concrete(condition, first, second):
        return np.where(condition, first, second)
    return jnp.where(condition, first, second if jnp.result_type(second) == jnp.bool_ else as_real(second))


def is_exact_zero(value: Any) -> Any:
    """Returns where a number is 0 to the bit. XLA takes subnormal numbers for 0, but they are above it."""
    return np.asarray(value, np.float64) == 0 if is_concrete(value) else is_zero(exact_float64(value))


def is_infinite(value: Any) -> Any:
    """Returns where a number is infinite, as that of noise under which nothing can be seen."""
    return np.asarray(value, np.float64) == np.inf if is_concrete(value) else as_float64(value) == jnp.inf


def by_numpy_if_concrete(make: Callable[..., Result], *numbers: ArrayLike) -> Result:
    """Returns ``make(xp, *numbers)`` of float64: by NumPy where all are concrete, as JAX compiles each operation."""
    if is_concrete(*numbers):
        return make(np, *(np.asarray(number, np.float64) for number in numbers))
    with scope():
        return make(jnp, *map(as_float64, numbers))


def nothing_sampled(noise: Any, sampling_rate: Any) -> Any:
    """Returns where infinite noise, or a sampling rate of 0, leaves nothing of an example, the other being valid."""
    # With proper rates that are concrete the noise alone decides, and the answer stays concrete where the noise is.
    if is_concrete(sampling_rate) and np.all((np.asarray(sampling_rate) > 0) & (np.asarray(sampling_rate) <= 1)):
        return is_infinite(noise)
    proper = (noise >= 0) & (sampling_rate >= 0) & (sampling_rate <= 1)
    return (is_infinite(noise) | is_exact_zero(sampling_rate)) & proper


def less_noise(scale: ArrayLike, size: int) -> Any:
    """Returns noise divided by the size of a group, rounded down."""
    if not is_concrete(scale):
        return _less_noise(scale, size)
    quotient = np.asarray(scale, np.float64) / size
    # Division by a power of two is exact; every other quotient moves one float down, to the side of less noise.
    is_exact = np.isinf(quotient) | (size & (size - 1) == 0)
    return np.where(is_exact, quotient, np.nextafter(quotient, 0.0))[()]


@kernel
def _less_noise(scale: ArrayLike, size: int) -> Array:
    noise = as_float64(scale)
    return jnp.where(noise < jnp.inf, noise / size * (1 - 4 * roundoff()), noise)


@kernel
def more_of_a_group(epsilon: ArrayLike, delta: ArrayLike, size: int) -> tuple[Array, Array]:
    """Returns (g epsilon, delta (e^(g epsilon) - 1)/(e^epsilon - 1)), rounded up; see :func:`.group`."""
    each, once = exact_float64(epsilon), exact_float64(delta)
    # The factor (e^(g epsilon) - 1)/(e^epsilon - 1) tends to g as epsilon falls to 0, so g is its floor; an overflow
    # counts as a delta of 1.
    total = each * size * (1 + 4 * roundoff())
    least = jnp.maximum(each, TINY)
    factor = jnp.maximum(jnp.expm1(total) / jnp.expm1(least), size) * (1 + 64 * roundoff() * (1 + total))
    most = jnp.where(is_zero(once), once, jnp.minimum(jnp.nan_to_num(once * factor, nan=jnp.inf), 1.0))
    return leave_scope((total, most))


def directions(mechanism: Mechanism, relation: Relation) -> tuple[Direction, ...]:
    """Returns the directions of ``relation``; raises ValueError, naming those supported, where it is not one."""
    why = f" by {type(mechanism).__name__}{mechanism.unknown}"
    validation.check_one_of(relation, "relation", mechanism.relations, why)
    return DIRECTIONS[relation]


def holds_one_way(mechanism: Mechanism, relation: Relation) -> bool:
    """Returns whether what is known of a mechanism under ``relation`` is a guarantee of one direction alone."""
    return mechanism.one_way and relation in REVERSE


def knows_both_ways(mechanism: Mechanisms, steps: Steps) -> bool:
    """Returns whether the pairs of a composition under "remove" and "add" are those of its two directions."""
    parts = [part for part, _ in parts_of(mechanism, steps)]
    return all(set(REVERSE) <= set(part.relations) and not part.one_way for part in parts)


def check_mechanism(mechanism: object) -> None:
    """Raises where an accountant is given no mechanism, or one whose fields are no numbers or out of range."""
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"mechanism = {validation.shorten(mechanism)} is no mechanism: give one of jaxacct.mechanisms, such as "
            "Gaussian(2.0), or a tuple of them; one of your own derives from jaxacct.Mechanism."
        )
    mechanism.check_numbers()
    mechanism.validate()


def parts_of(mechanism: Mechanisms, steps: Steps) -> list[tuple[Mechanism, ArrayLike]]:
    """Returns each mechanism of a composition with its steps; raises ValueError where they are not as many.

    A mechanism that is composed of others is listed as those.
    """
    if isinstance(mechanism, Mechanism) and mechanism.composed:
        validation.check_number(steps, "steps")
        validation.check_steps(steps)
        return mechanism.decompose(counts_of(steps))
    if not isinstance(mechanism, (tuple, list)):
        return [(cast(Mechanism, mechanism), cast(ArrayLike, steps))]
    for part in mechanism:
        if not isinstance(part, (Mechanism, tuple, list)):
            check_mechanism(part)
    if not isinstance(steps, (tuple, list)) or len(steps) != len(mechanism):
        raise ValueError(
            f"steps = {validation.shorten(steps)} do not match {len(mechanism)} mechanisms: give one number for each."
        )
    return [run for part, count in zip(mechanism, steps, strict=True) for run in parts_of(part, count)]


def check_count(mechanism: Mechanism, steps: ArrayLike) -> None:
    """Raises where a concrete number of steps is none, or there is not one for each mechanism of a sequence."""
    validation.check_number(steps, "steps")
    validation.check_steps(steps)
    shape = mechanism.batch_shape
    if len(shape) > 1 or np.shape(steps) != shape:
        raise ValueError(
            f"steps of shape {np.shape(steps)} do not match a mechanism of shape {shape}: give one number of steps for "
            "each mechanism of a sequence; batches are jax.vmap."
        )


def check_parts(mechanism: Mechanisms, steps: Steps) -> None:
    """Raises where the parts of a mechanism that is made of others are no composition."""
    # Parts are mechanisms that stay whole: what is composed is listed as what it is composed of.
    for part, count in parts_of(mechanism, steps):
        check_mechanism(part)
        check_count(part, count)


def sequence(mechanism: Any, length: int) -> Any:
    """Returns a mechanism whose every field has the leading axis ``length``, for ``jax.vmap``; scalars are repeated."""
    return jax.tree.map(lambda leaf: leaf if np.ndim(leaf) else jnp.broadcast_to(as_float64(leaf), length), mechanism)
