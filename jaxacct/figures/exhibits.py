"""What a figure or a table is made of: named columns of numbers, and how they are written."""

from __future__ import annotations

import csv
import decimal
import math
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Cell = str | int | float | None


@dataclass(frozen=True)
class Curve:
    """A column of numbers that is drawn.

    Attributes:
        name: the column's name in the CSV.
        label: what the legend calls it; it says whether it is a bound or an estimate.
        values (points,): float64, NumPy's or JAX's; what is not finite is written, and left out of the picture.
        style: "bound" (solid), "estimate" (dotted), "reference" (dashed; a formula of the paper as printed) or "band"
            (the lower edge of a band whose upper edge is the next curve).
    """

    name: str
    label: str
    values: Any
    style: str = "bound"


@dataclass(frozen=True)
class Chart:
    """A figure: curves over one abscissa.

    Attributes:
        title: what it shows, with its setting.
        x_name: the abscissa's column; ``x_label`` and ``y_label`` stand at the axes.
        x (points,): its values.
        curves: what is drawn and written.
        notes: sentences below the picture: what was chosen, what a curve is not.
        log_x: whether the abscissa is logarithmic; ``log_y`` likewise.
    """

    title: str
    x_name: str
    x_label: str
    y_label: str
    x: np.ndarray
    curves: Sequence[Curve]
    notes: Sequence[str] = ()
    log_x: bool = False
    log_y: bool = False

    @property
    def header(self) -> list[str]:
        """The names of the CSV's columns."""
        return [self.x_name, *(curve.name for curve in self.curves)]

    @property
    def rows(self) -> list[list[Cell]]:
        """The CSV's lines."""
        columns = [np.asarray(self.x, np.float64), *(np.asarray(curve.values, np.float64) for curve in self.curves)]
        return [[float(value) for value in line] for line in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: what it shows.
        header: names of its columns.
        rows: its lines; numbers in full.
        digits: decimal places in Markdown, by column name; other numbers are shown to six digits.
        rounded_up: columns that hold upper bounds: they are rounded up in Markdown; ``rounded_down`` likewise.
        notes: sentences below it.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: dict[str, int] = field(default_factory=dict)
    rounded_up: Sequence[str] = ()
    rounded_down: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Exhibit:
    """An entry of the registry.

    Attributes:
        name: what ``--only`` takes, and the stem of its files.
        source: paper and number of the figure or table.
        summary: one line.
        build: computes it; nothing is computed before.
    """

    name: str
    source: str
    summary: str
    build: Callable[[], Chart | Table]


def write_csv(content: Chart | Table, path: pathlib.Path) -> None:
    """Writes the numbers, floats so that they read back exactly."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(content.header)
        for row in content.rows:
            writer.writerow(["" if cell is None else repr(cell) if isinstance(cell, float) else cell for cell in row])


def write_markdown(table: Table, path: pathlib.Path) -> None:
    """Writes the table as it is read, with its notes."""
    lines = [f"# {table.title}", "", _line(table.header), _line(["---"] * len(table.header))]
    lines += [
        _line(_shown(table, name, cell) for name, cell in zip(table.header, row, strict=True)) for row in table.rows
    ]
    lines += ["", *(f"{note}\n" for note in table.notes)]
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(table: Table, name: str, cell: Cell) -> str:
    if not isinstance(cell, float):
        return "" if cell is None else str(cell)
    if name not in table.digits or not math.isfinite(cell):
        return f"{cell:.6g}"
    toward = {
        **dict.fromkeys(table.rounded_up, decimal.ROUND_CEILING),
        **dict.fromkeys(table.rounded_down, decimal.ROUND_FLOOR),
    }
    place = decimal.Decimal(1).scaleb(-table.digits[name])
    return str(decimal.Decimal(cell).quantize(place, toward.get(name, decimal.ROUND_HALF_EVEN)))
