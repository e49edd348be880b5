"""Groups of the trainer's arguments: budget, batches, placement on devices, and augmentation.

Each group has a short form: its fields, given to the trainer by themselves, say the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from jaxacct import validation
from jaxacct.menus.menu import Items
from jaxacct.train.planned import SideQuery
from jaxacct.train.sampling import Sampler
from jaxacct.train.state import Layout, Rules, layout_of

Ledger = Literal["planned", "menu", "filter", "odometer"]
"""Kinds of ledgers, as :class:`Budget` explains them."""

LEDGERS = ("planned", "menu", "filter", "odometer")
"""Names of the kinds of ledgers, for messages."""

T = TypeVar("T")
"""Type of a group."""


@dataclass(frozen=True)
class Budget:
    """A privacy budget: what a run may spend, and the ledger that keeps to it.

    A planned run takes two of epsilon, noise multiplier and length (``steps`` or ``epochs``), and the third is solved
    for by the certified accountant, so that all of the budget is spent (:mod:`jaxacct.train.planned`). Noise alone with
    epsilon asks for the most steps.

    Attributes:
        epsilon: of the whole run; above 0. Raise it where more steps or less noise are worth a weaker guarantee; None
            where a planned run's noise and length are given.
        delta: probability that the guarantee leaves open, in (0, 1). Well below one over the number of examples; what
            batches cut at capacity cost is taken off it.
        ledger: "planned", for settings that do not change, spends all of the budget on a length that is known
            before, and may stop earlier at any time; "menu", a :class:`~jaxacct.filters.MenuFilter`, is for settings
            that are chosen on the way among finitely many, at a few per cent more than a plan; "filter", a Rényi
            filter, for whatever is chosen; "odometer" ends the run before it reads more than ``epsilon``, where a run
            that stops early is to be charged less than its budget: a :class:`~jaxacct.odometers.MenuOdometer` where a
            ``menu`` is given, else a :class:`~jaxacct.odometers.VilleOdometer`. None: "planned" for constant settings,
            "menu" for policies that know their choices or where ``menu`` is given, "filter" for others.
        steps: of a planned run. More steps take more noise each; mostly that pays until training has converged.
        epochs: the same as expected passes over the data.
        menu: what may be spent, as :class:`~jaxacct.filters.MenuFilter` takes it: mechanisms of single runs, those of
            queries beside the steps among them. Empty: the policy's choices and its query.
        queries: of a planned run: all else that is released of the data, by whomever (:class:`.SideQuery`); the plan
            pays for it with the steps.

    Raises ValueError where a field is out of range.

    >>> Budget(2.0, 1e-5, epochs=20)
    Budget(epsilon=2.0, delta=1e-05, ledger=None, steps=None, epochs=20, queries=(), menu=())
    """

    epsilon: float | None = None
    delta: float = math.nan
    ledger: Ledger | None = None
    steps: int | None = None
    epochs: float | None = None
    queries: tuple[SideQuery, ...] = ()
    menu: Items = ()

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_one(self.epsilon, "epsilon")
            validation.check_epsilon(self.epsilon)
            object.__setattr__(self, "epsilon", float(self.epsilon))
        check_one(self.delta, "delta")
        if self.delta != self.delta:
            raise TypeError("delta missing, or NaN: give budget=Budget(...), or by itself.")
        validation.check_delta(self.delta)
        object.__setattr__(self, "delta", float(self.delta))
        if self.ledger is not None:
            validation.check_one_of(
                self.ledger if isinstance(self.ledger, str) else repr(self.ledger), "ledger", LEDGERS
            )
        if not isinstance(self.menu, (tuple, list)):
            raise TypeError(f"menu = {self.menu!r} is a {type(self.menu).__name__}: give pairs of mechanism and count.")
        if self.menu and self.ledger in ("planned", "filter"):
            raise ValueError(f"menu is given, and the ledger is {self.ledger!r}: give 'menu' or 'odometer', or none.")
        if self.steps is not None:
            validation.check_count(self.steps, "steps", "the steps of a run")
        if self.epochs is not None:
            check_one(self.epochs, "epochs")
            validation.check_positive(self.epochs, "epochs")
            if self.steps is not None:
                raise ValueError(f"steps = {self.steps} and epochs = {self.epochs} are both given: give one.")
        for query in self.queries:
            if not isinstance(query, SideQuery):
                raise TypeError(f"queries has a {type(query).__name__}: give a tuple of jaxacct.train.SideQuery.")
            validation.check_count(query.every, "every", "the steps for one release")


@dataclass(frozen=True)
class Batches:
    """Size of batches and the way they are drawn: exactly one of the first three is given.

    Attributes:
        sampling_rate: probability of each example to be in a Poisson sampled batch, in (0, 1].
        expected_batch_size: the same times the number of examples. Larger batches make better steps and fewer of them.
        sampler: one of :mod:`jaxacct.train.sampling`: for batches that are truncated, of a fixed size, drawn by turns
            or allocated by epochs; other neighbours may come with it.
        most_examples: a public number, chosen without looking, that the data has at most. Rate, size of a batch (what
            sums are divided by) and noise then follow from it, and how many examples there are is protected like
            anything else: a missing example is one whose gradient is zero. The noise is that of ``most_examples``:
            choose it a little too large. None: the number of examples is taken as public.

    >>> Batches(expected_batch_size=256).expected_batch_size
    256
    """

    sampling_rate: float | None = None
    expected_batch_size: float | None = None
    sampler: Sampler | None = None
    most_examples: int | None = None

    def __post_init__(self) -> None:
        for name in ("sampling_rate", "expected_batch_size"):
            if getattr(self, name) is not None:
                check_one(getattr(self, name), name)
        if self.sampler is not None and not hasattr(self.sampler, "expected_batch_size"):
            raise TypeError(f"sampler is a {type(self.sampler).__name__}: give one of jaxacct.train.sampling.")

    def size_for(self, present: int) -> int:
        """Returns the public number of examples; raises ValueError where it is less than there are."""
        if self.most_examples is None:
            return present
        validation.check_count(self.most_examples, "most_examples", "a public number that the data has at most")
        if self.sampler is not None:
            raise ValueError("most_examples and sampler are both given: give PoissonSampler(..., present=...).")
        if self.most_examples < present:
            raise ValueError(
                f"most_examples = {self.most_examples} is less than data has: leave examples out, at random, or give "
                "a larger number without looking at the data."
            )
        return int(self.most_examples)


@dataclass(frozen=True)
class Placement:
    """Placement of a batch's gradients: the devices and the order of computation. No guarantee depends on it.

    Attributes:
        microbatch_size: examples whose gradients are held in memory at a time, on each device; the default is for a
            CPU's caches. Lower it where memory runs out, raise it for an accelerator. Blocks of padding alone are left
            out, so that a step's time tells how many examples were drawn, in blocks; the guarantee does not speak of
            time. None: the whole batch, padding included.
        ghost: whether to leave out the gradients of single examples where norms follow without them: the same sums up
            to rounding, in less time and memory (:func:`~jaxacct.train.clip_and_sum`). False where a layer's rule is
            doubted, to compare.
        devices: over which a batch's rows are dealt. None: one. Noise is added once, to the sum over all of them.
        mesh: the same, and parameters, what the optimizer keeps of them, their sums and their noise lie in shards on
            it (:mod:`jaxacct.train.state`): for models that one device has no room for. Rows are dealt over
            ``row_axes``; along the mesh's other axes the compiler divides the layers' products. The noise is the same
            to the bit on any mesh.
        rules: how parameters lie on it: ``PartitionSpec`` by regular expressions that are searched in their paths, the
            first that fits. A parameter that none fits lies as the model's own metadata says, else as evenly as it can.
        row_axes: names of the mesh's axes. None: the first.

    Raises ValueError or TypeError where a field is out of range.

    >>> Placement()
    Placement(microbatch_size=32, ghost=True, devices=None, mesh=None, rules=None, row_axes=None)
    """

    microbatch_size: int | None = 32
    ghost: bool = True
    devices: Sequence[jax.Device] | None = None
    mesh: jax.sharding.Mesh | None = None
    rules: Rules | None = None
    row_axes: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.microbatch_size is not None:
            meaning = "the examples of a microbatch, or None for the whole batch"
            validation.check_count(self.microbatch_size, "microbatch_size", meaning)
        if not isinstance(self.ghost, (bool, np.bool_)):
            raise TypeError(f"ghost = {self.ghost!r} is a {type(self.ghost).__name__}: give True or False.")
        if self.mesh is not None and not isinstance(self.mesh, jax.sharding.Mesh):
            raise TypeError(
                f"mesh is a {type(self.mesh).__name__}: give a jax.sharding.Mesh, as jax.make_mesh makes it."
            )
        if self.devices is not None and (
            isinstance(self.devices, int) or not len(self.devices) or not isinstance(self.devices[0], jax.Device)
        ):
            raise ValueError(f"devices = {self.devices!r} are no devices: give some of jax.devices(), or None for one.")
        self.layout()

    def layout(self) -> Layout | None:
        """Returns how a run lies on several devices; None for one."""
        return layout_of(self.devices, self.mesh, self.rules, self.row_axes)


@dataclass(frozen=True)
class Augmentation:
    """Views of an example whose gradients are averaged before clipping ("augmentation multiplicity").

    One example still moves the sum by at most the clipping norm, so that more views cost time and no privacy.

    Attributes:
        augment: ``augment(key, example)`` returns another view of an example, a tuple as ``loss`` takes it, as random
            as its typed key makes it. It must look at that example alone. None: as it is; views then differ by what
            the loss draws.
        views: number of views. Raise it, to 8 or 16, as far as time allows.

    Source: De et al. (2022), "Unlocking high-accuracy differentially private image classification through scale",
    section 3.2.

    Raises ValueError where views is no number of views.

    >>> Augmentation(views=8).views
    8
    """

    augment: Callable[[jax.Array, PyTree], PyTree] | None = None
    views: int = 1

    def __post_init__(self) -> None:
        if self.augment is not None and not callable(self.augment):
            raise TypeError(f"augment is a {type(self.augment).__name__}: give a function of a key and an example.")
        if not isinstance(self.views, int) or self.views < 1:
            raise ValueError(f"views = {self.views!r} is not a number of views: give a whole number of at least 1.")


class Short(TypedDict, total=False):
    """The fields of the groups above, and the norm of flat clipping."""

    epsilon: float | None
    delta: float
    ledger: Ledger | None
    menu: Items
    steps: int | None
    epochs: float | None
    queries: tuple[SideQuery, ...]
    sampling_rate: float | None
    expected_batch_size: float | None
    sampler: Sampler | None
    most_examples: int | None
    clip_norm: float | None
    microbatch_size: int | None
    ghost: bool
    devices: Sequence[jax.Device] | None
    mesh: jax.sharding.Mesh | None
    rules: Rules | None
    row_axes: str | Sequence[str] | None
    augment: Callable[[jax.Array, PyTree], PyTree] | None
    views: int


def check_one(value: Any, name: str) -> None:
    """Raises where a setting is an array with axes, or no number."""
    if np.ndim(value):
        raise ValueError(f"{name} = {value!r} has shape {np.shape(value)}, and a run has one: give a single number.")
    validation.check_scalar(value, name)


def group_of(kind: type[T], given: T | None, name: str, short: dict[str, Any]) -> T:
    """Returns the group as given, or made of its fields in ``short``, which are removed from there.

    Raises ValueError where both are given, TypeError where a field is missing.

    >>> group_of(Budget, None, "budget", {"epsilon": 1.0, "delta": 1e-5}).epsilon
    1.0
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    found = {field.name: short.pop(field.name) for field in fields if field.name in short}
    # None counts as not given, except where it is a value of the field that is not its default.
    telling = {field.name for field in fields if field.default is not None and "None" in str(field.type)}
    found = {name: value for name, value in found.items() if value is not None or name in telling}
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
