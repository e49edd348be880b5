"""The figures and tables of papers: charts, or tables of named columns, and the writing of tables."""

from __future__ import annotations

import decimal
import math
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxacct.plot import Chart

Cell = str | int | float | None


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
