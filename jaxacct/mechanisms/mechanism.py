"""What an accountant needs of a mechanism, and the neighbouring relations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.precision import as_float64, as_real, exact_float64, exact_real, is_concrete, is_zero

Relation: TypeAlias = Literal["add_or_remove", "remove", "add", "replace"]
"""Which data sets are neighbours: one example more or less, one less, one more, or one replaced by another."""

Direction: TypeAlias = Literal["remove", "add", "replace"]
"""One of the ways a relation is walked: from the data set with the example to the one without, or back."""

DIRECTIONS: dict[str, tuple[Direction, ...]] = {
    "add_or_remove": ("remove", "add"),
    "remove": ("remove",),
    "add": ("add",),
    "replace": ("replace",),
}
"""Which directed pairs a neighbouring relation asks for; the larger privacy loss of them counts."""


@runtime_checkable
class Mechanism(Protocol):
    """What an accountant needs of a mechanism.

    Attributes:
        relations: the neighbouring relations that :meth:`dominating_pairs` knows pairs for.
    """

    relations: ClassVar[tuple[str, ...]]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields: () for one mechanism, (n,) for a sequence of n."""
        ...

    def dominating_pairs(self, relation: str = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns one pair for each direction of ``relation``."""
        ...

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        ...

    def releases_nothing(self) -> Any:
        """Returns where the fields say that a run releases nothing: a boolean, or several, of ``batch_shape``."""
        ...


Mechanisms: TypeAlias = Mechanism | Sequence[Mechanism]
"""What accountants compose: one mechanism (whose fields may have a leading axis), or several."""

Steps: TypeAlias = ArrayLike | Sequence[ArrayLike]
"""How often each is run: one number, an array of them beside a leading axis, or one entry for each mechanism."""


def without_noops(mechanism: Any, steps: Any) -> tuple[Any, Any]:
    """Returns the mechanism and its steps with 0 runs of an ordinary one in place of runs that release nothing.

    Noise without end, or a sampling rate of 0: the privacy loss is 0 whatever comes out, so any number of runs costs
    nothing, exactly. Accountants leave out what has 0 runs. Ordinary are numbers of 1, and vectors as they are.
    """
    # In the scope's own precision first: a batch of float64 numbers may have come in from outside.
    mechanism = jax.tree.map(lambda leaf: leaf if is_concrete(leaf) else exact_real(leaf), mechanism)
    nothing = mechanism.releases_nothing()
    if is_concrete(nothing) and not np.any(nothing):
        return mechanism, steps
    scalars = len(mechanism.batch_shape)
    ordinary = jax.tree.map(lambda leaf: leaf if np.ndim(leaf) > scalars else choose(nothing, 1.0, leaf), mechanism)
    # What is no number of runs stays what it is.
    return ordinary, choose(nothing & is_count(steps), 0.0, steps)


def is_count(steps: Any) -> Any:
    """Returns where a number is one of runs: whole, at least 0, and at most what float64 holds every one of."""
    floor = np.floor(steps) if is_concrete(steps) else jnp.floor(steps)
    return (steps >= 0) & (steps == floor) & (steps <= float(validation.MOST_STEPS))


def choose(condition: Any, first: Any, second: Any) -> Any:
    """Returns ``where``, of what Python can see by NumPy: so that it stays visible, and float64 outside the scope."""
    if is_concrete(condition, first, second):
        return np.where(condition, first, second)
    return jnp.where(condition, first, as_real(second))


def is_none(value: Any) -> Any:
    """Returns where a number is 0 to the bit; as numbers XLA takes subnormal ones for 0, and they are some."""
    return np.asarray(value, np.float64) == 0 if is_concrete(value) else is_zero(exact_float64(value))


def is_endless(value: Any) -> Any:
    """Returns where a number is infinite: noise in which everything drowns."""
    return np.asarray(value, np.float64) == np.inf if is_concrete(value) else as_float64(value) == jnp.inf


def nothing_sampled(noise: Any, sampling_rate: Any) -> Any:
    """Returns where noise without end, or a sampling rate of 0, leaves nothing of an example, the other being valid."""
    proper = (noise >= 0) & (sampling_rate >= 0) & (sampling_rate <= 1)
    return (is_endless(noise) | is_none(sampling_rate)) & proper


def directions(mechanism: Mechanism, relation: str) -> tuple[str, ...]:
    """Returns the directions of ``relation``; raises ValueError, naming those supported, where it is not one."""
    validation.check_one_of(relation, "relation", mechanism.relations, f" by {type(mechanism).__name__}")
    return DIRECTIONS[relation]


def check_mechanism(mechanism: Any) -> None:
    """Raises where an accountant is given no mechanism, or one whose fields are no numbers or out of range."""
    if isinstance(mechanism, type) or not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"mechanism = {mechanism!r} is no mechanism: give one of jaxacct.mechanisms, such as Gaussian(2.0), "
            "or a tuple of them."
        )
    mechanism.validate()
    if isinstance(mechanism, ScalarFields):
        for path, leaf in jax.tree_util.tree_leaves_with_path(mechanism, is_leaf=lambda value: value is None):
            validation.check_number(leaf, f"{type(mechanism).__name__}{jax.tree_util.keystr(path)}")


def sequence(mechanism: Any, length: int) -> Any:
    """Returns a mechanism whose every field has the leading axis ``length``, for ``jax.vmap``; scalars are repeated."""
    return jax.tree.map(lambda leaf: leaf if np.ndim(leaf) else jnp.broadcast_to(as_float64(leaf), length), mechanism)


class ScalarFields:
    """A mechanism whose fields are scalars, or arrays that broadcast: it is checked when it is made."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raises ValueError where a concrete field is out of range."""
        raise NotImplementedError

    def releases_nothing(self) -> Any:
        """Returns where a run releases nothing: nowhere, unless a mechanism says otherwise."""
        return False

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields."""
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(self)]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(
                f"{type(self).__name__} has fields of shapes {', '.join(map(str, shapes))}, which do not go together: "
                "give scalars, and arrays of one length for a sequence."
            ) from None
