"""The figures, tables and trainings of the papers that the library builds on, computed anew.

Each paper has a file with a tuple ``EXHIBITS``; a new one is added to :data:`PAPERS`. ``python -m bench.papers`` writes
figures and tables, ``python -m bench.papers.train`` trains the recipes of ``recipes.py``.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from bench.papers import asoodeh, bu, ghazi, lecuyer, whitehouse
from bench.papers.exhibits import Exhibit, Table, write_markdown
from jaxacct import validation
from jaxacct.plot import draw, require_matplotlib, write_csv

PAPERS = (bu, asoodeh, ghazi, lecuyer, whitehouse)

EXHIBITS: dict[str, Exhibit] = {exhibit.name: exhibit for paper in PAPERS for exhibit in paper.EXHIBITS}
"""Every figure and table, by name."""


def selected(names: Sequence[str] | None = None) -> list[Exhibit]:
    """Returns the exhibits of these names, or all; raises ValueError where one is unknown.

    >>> [exhibit.name for exhibit in selected(["asoodeh-stopped-5"])]
    ['asoodeh-stopped-5']
    """
    for name in names or ():
        validation.check_one_of(name, "name", tuple(EXHIBITS))
    return [EXHIBITS[name] for name in names] if names else list(EXHIBITS.values())


def write(exhibit: Exhibit, folder: str | os.PathLike[str], *, pictures: bool = True) -> list[pathlib.Path]:
    """Computes an exhibit, writes its files into ``folder``, which is made if missing, and returns their paths.

    The files are ``NAME.csv``, and ``NAME.md`` for a table, ``NAME.png`` for a figure where ``pictures`` are wanted.

    Raises ModuleNotFoundError, before anything is computed, where a picture is wanted and matplotlib is missing.

    >>> import tempfile
    >>> squares = Exhibit("squares", "", "", lambda: Table("Squares", ("x", "x^2"), [(1, 1), (2, 4)]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write(squares, folder, pictures=False)]
    ['squares.csv', 'squares.md']
    """
    folder = pathlib.Path(folder)
    if pictures:
        require_matplotlib()
    content = exhibit.build()
    folder.mkdir(parents=True, exist_ok=True)
    numbers = folder / f"{exhibit.name}.csv"
    write_csv(content.header, content.rows, numbers)
    if isinstance(content, Table):
        text = folder / f"{exhibit.name}.md"
        write_markdown(content, text)
        return [numbers, text]
    if not pictures:
        return [numbers]
    picture = folder / f"{exhibit.name}.png"
    draw(content, picture)
    return [numbers, picture]
