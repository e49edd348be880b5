"""``jaxacct explore``: an interactive page of certified bounds on epsilon over a grid of runs, as one HTML file."""

from __future__ import annotations

import argparse
from typing import Any

from jaxacct.cli.arguments import (
    GUARANTEES,
    add_json,
    add_overwrite,
    add_relation,
    file_to_write,
    new_command,
    print_facts,
    scope_of,
    show,
)

AXES = {
    "noise-multiplier": ("noise_multipliers", "0.5:8:25:log"),
    "sampling-rate": ("sampling_rates", "1e-4 to 0.1"),
    "epochs": ("epochs", "1 to 100"),
    "delta": ("deltas", "1e-8 to 1e-4"),
}
"""Axes of the grid: the argument of :func:`jaxacct.plot.explorer.page`, and its default in the help's words."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = new_command(
        commands, "explore", run, "a page with sliders for noise, rate, epochs and delta, for any browser, offline",
        "Writes one HTML file that shows certified bounds on epsilon for a grid of runs, and for what lies "
        "between its points those of the cell around it. VALUES are as of sweep.",
        "jaxacct explore --out page.html",
        "jaxacct explore --noise-multiplier 1:4:16:log --epochs 5:50:10:log --sampling-rate 0.01 --delta 1e-6",
    )  # fmt: skip
    command.add_argument("--out", metavar="FILE", default="explore.html", help="the page (default: explore.html)")
    add_overwrite(command, "replace the page that is there")
    for name, (_, default) in AXES.items():
        command.add_argument(f"--{name}", metavar="VALUES", help=f"of the grid (default: {default})")
    add_relation(command)
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    """Computes and writes the page, and returns the exit code."""
    import numpy as np

    from jaxacct import __version__
    from jaxacct.json_files import write_whole
    from jaxacct.plot import explorer
    from jaxacct.sweep.description import parsed

    path = file_to_write(arguments.out, (".html",), arguments)
    given = {name: vars(arguments)[name.replace("-", "_")] for name in AXES}
    grid: dict[str, Any] = {
        AXES[name][0]: np.atleast_1d(parsed(text, name)) for name, text in given.items() if text is not None
    }
    relation = arguments.relation or "add_or_remove"
    page = explorer.page(**grid, relation=relation, show_progress=True)
    write_whole(path, page.encode())
    data = explorer.data_of(page)
    record = {
        "out": str(path),
        "entries": len(data["upper"]),
        "unknown": data["upper"].count(None),
        "relation": relation,
        "guarantee": GUARANTEES["best"],
        "scope": scope_of(relation),
        "version": __version__,
    }
    facts = [
        ("written to", record["out"]),
        ("entries", f"{record['entries']:,}, {record['unknown']:,} of them unknown"),
        ("guarantee", record["guarantee"]),
        ("holds for", record["scope"]),
    ]
    show(record, arguments.json, lambda: print_facts("", facts))
    return 0
