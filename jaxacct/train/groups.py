"""What a user gives the trainer beside model and data, by idea: the budget, the batches, and where they are computed.

Each has a short form: its fields, given to the trainer by themselves, say the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

import jax

from jaxacct import validation
from jaxacct.train.sampling import Sampler

Ledger = Literal["filter", "odometer"]
LEDGERS = ("filter", "odometer")

T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """What a run may spend.

    Attributes:
        epsilon: of the whole run; above 0. Raise it where more steps or less noise are worth a weaker guarantee.
        delta: probability that the guarantee leaves open, in (0, 1). Well below one over the number of examples; what
            batches cut at capacity cost is taken off it.
        ledger: "filter", a Rényi filter over the budget, gets the most steps out of it; "odometer", a
            :class:`~jaxacct.odometers.VilleOdometer` that ends the run before it reads more than ``epsilon``, is for
            runs that may stop early: its reading then is what was spent.

    Raises ValueError where a field is out of range.

    >>> Budget(2.0, 1e-5)
    Budget(epsilon=2.0, delta=1e-05, ledger='filter')
    """

    epsilon: float
    delta: float
    ledger: Ledger = "filter"

    def __post_init__(self) -> None:
        validation.check_epsilon(self.epsilon)
        validation.check_delta(self.delta)
        validation.check_one_of(self.ledger, "ledger", LEDGERS)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))


@dataclass(frozen=True)
class Batches:
    """How large batches are and how they are drawn: exactly one of the three.

    Attributes:
        sampling_rate: probability of each example to be in a Poisson sampled batch, in (0, 1].
        expected_batch_size: the same times the number of examples. Larger batches make better steps and fewer of them.
        sampler: of :mod:`jaxacct.train.sampling`: for batches that are truncated, of a fixed size or allocated by
            epochs; other neighbours may come with it.

    >>> Batches(expected_batch_size=256).expected_batch_size
    256
    """

    sampling_rate: float | None = None
    expected_batch_size: float | None = None
    sampler: Sampler | None = None


@dataclass(frozen=True)
class Placement:
    """Where and in which order a batch's gradients are computed: changes time and memory, and no guarantee.

    Attributes:
        microbatch_size: examples whose gradients are held in memory at a time, on each device; the default is for a
            CPU's caches. Lower it where memory runs out, raise it for an accelerator. Blocks of padding alone are left
            out, so that a step's time tells how many examples were drawn, in blocks; the guarantee does not speak of
            time. None: the whole batch, padding included.
        ghost: whether to leave out the gradients of single examples where norms follow without them: the same sums up
            to rounding, in less time and memory (:func:`~jaxacct.train.clip_and_sum`). False where a layer's rule is
            doubted, to compare.
        devices: over which a batch's rows are dealt. None: one. Noise is added once, to the sum over all of them.

    >>> Placement()
    Placement(microbatch_size=64, ghost=True, devices=None)
    """

    microbatch_size: int | None = 64
    ghost: bool = True
    devices: Sequence[jax.Device] | None = None


class Short(TypedDict, total=False):
    """The fields of :class:`Budget`, :class:`Batches` and :class:`Placement`, and the norm of flat clipping."""

    epsilon: float
    delta: float
    ledger: Ledger
    sampling_rate: float | None
    expected_batch_size: float | None
    sampler: Sampler | None
    clip_norm: float | None
    microbatch_size: int | None
    ghost: bool
    devices: Sequence[jax.Device] | None


def group_of(kind: type[T], given: T | None, name: str, short: dict[str, Any]) -> T:
    """Returns the group as given, or made of those of its fields that are in ``short``, which are taken out there.

    Raises ValueError where both are given, TypeError where a field is missing.

    >>> group_of(Budget, None, "budget", {"epsilon": 1.0, "delta": 1e-5}).epsilon
    1.0
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    found = {field.name: short.pop(field.name) for field in fields if field.name in short}
    found = {field: value for field, value in found.items() if value is not None}
    if given is not None:
        if found:
            raise ValueError(f"{name} and {', '.join(found)} are both given: give the one or the other.")
        if not isinstance(given, kind):
            raise TypeError(f"{name} is a {type(given).__name__}: give a jaxacct.train.{kind.__name__}.")
        return given
    needed = [field.name for field in fields if field.default is dataclasses.MISSING and field.name not in found]
    if needed:
        raise TypeError(f"{' and '.join(needed)} missing: give {name}={kind.__name__}(...), or by itself.")
    return kind(**found)
