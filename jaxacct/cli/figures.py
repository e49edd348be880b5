"""``jaxacct figures``: computes and draws the figures and tables of the papers that the library builds on."""

from __future__ import annotations

import argparse
from typing import Any

from jaxacct import strict_json
from jaxacct.cli.arguments import add_json, examples
from jaxacct.cli.shown import console


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = commands.add_parser(
        "figures",
        help="compute the figures and tables of the reference papers anew",
        description="Computes the figures and tables of the papers that the library builds on, and writes each as the "
        "CSV of its numbers and as a picture or a Markdown table.",
        epilog=examples("jaxacct figures --list", "jaxacct figures --out figures --only asoodeh-stopped-5"),
    )
    command.add_argument("--out", metavar="DIR", default="figures", help="where to write (default: figures)")
    command.add_argument(
        "--only", metavar="NAME", action="append", help="this figure or table alone; may be given several times"
    )
    command.add_argument("--list", action="store_true", help="name the figures and tables, and compute nothing")
    command.add_argument("--data-only", action="store_true", help="write numbers and tables, and no pictures")
    add_json(command, "print one JSON object: names and paths")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes or lists what was asked for, and returns the exit code."""
    from jaxacct import figures

    exhibits = figures.selected(arguments.only)
    if arguments.list:
        _print_list(exhibits, arguments.json)
        return 0
    if not arguments.data_only:
        figures.require_matplotlib()  # before the first figure is computed, not after it
    written = _write(exhibits, arguments)
    if arguments.json:
        print(strict_json.dumps({"written": {name: [str(path) for path in paths] for name, paths in written.items()}}))
    else:
        for paths in written.values():
            for path in paths:
                print(path)
    return 0


def _write(exhibits: list[Any], arguments: argparse.Namespace) -> dict[str, list[Any]]:
    """Writes the exhibits under a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from jaxacct import figures

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    written = {}
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("figures", total=len(exhibits))
        for exhibit in exhibits:
            progress.update(task, description=exhibit.name)
            written[exhibit.name] = figures.write(exhibit, arguments.out, pictures=not arguments.data_only)
            progress.advance(task)
    return written


def _print_list(exhibits: list[Any], as_json: bool) -> None:
    if as_json:
        entries = [{"name": e.name, "source": e.source, "summary": e.summary} for e in exhibits]
        print(strict_json.dumps({"figures": entries}))
        return
    from rich.table import Table

    table = Table(box=None)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("what", overflow="fold")
    for exhibit in exhibits:
        table.add_row(exhibit.name, f"{exhibit.source}: {exhibit.summary}")
    console().print(table)
