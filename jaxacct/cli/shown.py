"""How results look as text: bounds rounded outward, tables that never cut a number, and what the guarantees are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxacct import strict_json
from jaxacct.outward import rounded_down, rounded_up

if TYPE_CHECKING:
    from rich.console import Console

GUARANTEES = {
    "best": "certified: lower <= truth <= upper, rounding included",
    "prv": "certified: lower <= truth <= upper, rounding included",
    "rdp": "upper bound, by Rényi divergences",
    "saddlepoint": "certified: lower <= truth <= upper, rounding included; inf (delta: 1) where not converged",
}

WIDTH = 80
"""Columns of a table of facts, at most."""

LEAST = 24
"""Columns of a fact; where there are fewer, each fact gets lines of its own."""


def scope_of(relation: str, group: int = 1, sampling: str = "Poisson sampling") -> str:
    """Returns what a guarantee is about."""
    together = f", {group} examples together" if group > 1 else ""
    return f"noise, rate and steps fixed in advance; {sampling}; neighbours: {relation.replace('_', ' ')}{together}"


def show(record: Any, as_json: bool, table: Callable[[], None]) -> None:
    """Prints a record as one JSON object, or what ``table`` prints."""
    if as_json:
        print(strict_json.dumps(record))
    else:
        table()


def rounded(name: str, value: float, digits: int = 6) -> str:
    """Returns ``value`` to some significant digits, a bound rounded outward.

    >>> rounded("upper", 1 / 3), rounded("lower", 1 / 3), rounded("upper", float("inf"))
    ('0.333334', '0.333333', 'inf')
    """
    if name == "estimate":
        return f"{value:.{digits}g}"
    return (rounded_up if name == "upper" else rounded_down)(value, f".{digits}g")


def console(width: int | None = None) -> Console:
    """Returns where results go: standard output; plain text where that is no terminal, no colour with NO_COLOR."""
    from rich.console import Console

    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Prints names and what they are: as a table of at most 80 columns, or in lines where that is too wide."""
    from rich.table import Table

    out = console()
    names = max(len(name) for name, _ in facts)
    if out.width < names + LEAST + 7:  # 7: the frame
        if title:
            out.print(title)
        for name, fact in facts:
            out.print(f"{name}: {fact}", overflow="fold")
        return
    table = Table(show_header=False, title=title or None, title_justify="left", width=min(out.width, WIDTH))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts:
        table.add_row(name, fact)
    out.print(table)


def print_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows under their names, as wide as their longest words: a number is never cut, nor a column left out."""
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name.replace("_", " "), justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out = console()
    least = Measurement.get(out, out.options.update(width=10**4), table).minimum
    (out if least <= out.width else console(least)).print(table)
