"""What a sweep is of: where two descriptions are equal, so are the results, to the last bit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from jaxacct import validation
from jaxacct.sweep.boxes import LARGEST, Boxes
from jaxacct.sweep.quantities import kinds_of
from jaxacct.sweep.settings import MECHANISM

MOST_BOXES = 2**24

QUANTITIES, LAYOUTS = ("epsilon", "delta", "noise_multiplier"), ("grid", "rows")


@dataclasses.dataclass(frozen=True)
class Description:
    """What was asked, of what and by what; its attributes are those of :class:`~jaxacct.sweep.Sweep`."""

    quantity: str
    mode: str
    relation: str
    tolerance: float
    arithmetic: str
    mechanisms: tuple[str, ...]
    layout: str
    constants: dict[str, float]
    columns: tuple[str, ...]
    boxes: Boxes
    digest: str
    versions: dict[str, str]

    @property
    def results(self) -> dict[str, np.dtype]:
        """Names and types of what an entry gives."""
        return kinds_of(self.quantity)

    @property
    def stored(self) -> dict[str, np.dtype]:
        """Names and types of what is kept for each entry: results, and of rows their settings."""
        rows = self.columns if self.layout == "rows" else ()
        return {name: kind_of_setting(name) for name in rows} | self.results

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the axes of the results."""
        return self.columns if self.layout == "grid" else ("row",)

    def difference(self, other: Description) -> str:
        """Returns in words how this one, which is "there", differs from another, "here"; nothing where it does not."""
        there, here = record_of(self), record_of(other)
        names = [name for name in there if there[name] != here[name]]
        told = [f"{name} {there[name]!r} there, {here[name]!r} here" for name in names if name != "digest"]
        return "; ".join(told or ["other values on an axis"] * len(names))


def record_of(description: Description) -> dict[str, Any]:
    """Returns a description as JSON has it."""
    record = {field.name: getattr(description, field.name) for field in dataclasses.fields(Description)}
    boxes = record.pop("boxes")
    return record | {"shape": boxes.shape, "chunk": boxes.box}


def description_of(record: dict[str, Any]) -> Description:
    """Returns the description in a record; raises ValueError, TypeError or KeyError where it holds none."""
    boxes = Boxes(_whole(record["shape"]), _whole(record["chunk"]))
    texts = ("quantity", "mode", "relation", "arithmetic", "layout", "digest")
    found = Description(
        **{name: _text(record[name]) for name in texts},
        tolerance=float(record["tolerance"]),
        constants={_text(name): float(value) for name, value in dict(record["constants"]).items()},
        versions={_text(name): _text(value) for name, value in dict(record["versions"]).items()},
        mechanisms=tuple(map(_text, record["mechanisms"])),
        columns=tuple(map(_text, record["columns"])),
        boxes=boxes,
    )
    validation.check_one_of(found.quantity, "quantity", QUANTITIES)
    validation.check_one_of(found.layout, "layout", LAYOUTS)
    # Names become files' names: none leads out of the folder, none is that of something else.
    settings, names = (*found.columns, *found.constants), (*found.columns, *found.constants, *found.results)
    if not all(map(str.isidentifier, settings)) or len(set(names)) < len(names):
        raise ValueError(f"its settings have the names {settings}.")
    if len(boxes) > MOST_BOXES or math.prod(boxes.box) > LARGEST:
        raise ValueError(f"it has {len(boxes)} chunks of {math.prod(boxes.box)} entries.")
    if len(boxes.shape) != len(boxes.box) or len(boxes.shape) != len(found.dimensions):
        raise ValueError(f"its shape {boxes.shape} is not that of its axes {found.columns}, in chunks {boxes.box}.")
    return found


def kind_of_setting(name: str) -> np.dtype:
    """Returns how an axis, or a column of rows, is stored."""
    return np.dtype(np.int8 if name == MECHANISM else np.float64)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a name should be.")
    return value


def _whole(values: Any) -> tuple[int, ...]:
    for value in values:
        validation.check_count(value, "shape", "a number of entries")
    return tuple(values)
