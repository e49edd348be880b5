"""Writes each figure and table of the papers: the CSV of its numbers, and a picture or a Markdown table.

python -m bench.papers [--list] [--only NAME ...] [--out DIR] [--data-only]
"""

from __future__ import annotations

import argparse
import sys
import textwrap

from bench import papers
from jaxacct.plot import require_matplotlib


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.papers", description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="DIR", default="figures", help="where to write (default: figures)")
    parser.add_argument("--only", metavar="NAME", action="append", help="this one alone; may be given several times")
    parser.add_argument("--list", action="store_true", help="name the figures and tables, and compute nothing")
    parser.add_argument("--data-only", action="store_true", help="write numbers and tables, and no pictures")
    arguments = parser.parse_args()
    try:
        exhibits = papers.selected(arguments.only)
        if not (arguments.list or arguments.data_only):
            require_matplotlib()  # before the first figure is computed, not after it
    except (ValueError, ModuleNotFoundError) as error:
        parser.error(str(error))
    for exhibit in exhibits:
        if arguments.list:
            print(exhibit.name)
            print(textwrap.indent(textwrap.fill(f"{exhibit.source}: {exhibit.summary}", 76), "    "))
            continue
        for path in papers.write(exhibit, arguments.out, pictures=not arguments.data_only):
            print(path, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
