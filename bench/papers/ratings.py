"""MovieLens 1M (Harper and Konstan, 2016): a million ratings of movies, from one to five stars.

One example is one rating. A guarantee for one example more or less is one for a single rating, not for a person, who
has given 20 ratings at least and 166 on average.
"""

from __future__ import annotations

import os
import pathlib

import numpy as np

from jaxacct_recipes.datasets import Dataset, damaged, existing, hold_out, read_text

SOURCE = "ratings.dat of MovieLens 1M, from https://grouplens.org/datasets/movielens/1m/"
FOLDER = "ml-1m"
USERS, MOVIES, STARS = 6040, 3952, 5
"""Ranges of the numbers, which start at 1, from the README of the data set; 246 movies have no rating."""

FIELDS = ("UserID", "MovieID", "Rating", "Timestamp")
MOST = (USERS, MOVIES, STARS, 2**63 - 1)


def load(folder: pathlib.Path, test_size: int | None = None) -> Dataset:
    """Returns pairs of a user and a movie (ratings, 2), int32 from 0, and the stars less one as five classes.

    ``folder`` may be the one that the archive makes, or the one above it. A fifth of the ratings, or ``test_size`` of
    them, is held out by a fixed permutation.

    Raises FileNotFoundError or ValueError for a missing or damaged file, with its path.
    """
    path = (folder / FOLDER if (folder / FOLDER).is_dir() else folder) / "ratings.dat"
    pairs, stars = read_ratings(path)
    if test_size is None and len(pairs) < 5:
        raise ValueError(f"{path} has {len(pairs)} ratings: too few to hold out a fifth for testing.")
    return hold_out("movielens", pairs, stars, len(pairs) // 5 if test_size is None else test_size, STARS)


def read_ratings(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray]:
    r"""Returns the pairs (ratings, 2), int32, user and movie counted from 0, and the stars less one, int32.

    Raises ValueError with path and line number where a line cannot be read or a number is out of range;
    FileNotFoundError where there is no file.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".dat") as file:
    ...     _ = file.write("1::1193::5::978300760\n") and file.flush()
    ...     pairs, stars = read_ratings(file.name)
    >>> pairs.tolist(), stars.tolist()
    ([[0, 1192]], [4])
    """
    path = existing(pathlib.Path(path), SOURCE)
    content = read_text(path, "ascii", SOURCE)
    if not content.strip():
        raise damaged(path, "is empty", SOURCE)
    if not content.endswith("\n"):
        raise damaged(path, "is cut short: its last line has no end", SOURCE)
    rows: list[list[int]] = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            rows.append(_numbers(line))
        except ValueError as error:
            raise damaged(path, f"has a damaged line {number} ({error})", SOURCE) from None
    table = np.array(rows, np.int32) - 1
    return table[:, :2], table[:, 2]


def _numbers(line: str) -> list[int]:
    fields = line.split("::")
    if len(fields) != len(FIELDS):
        raise ValueError(f"{len(fields)} fields, expected {'::'.join(FIELDS)}")
    numbers = [int(field) for field in fields]
    for name, value, most in zip(FIELDS, numbers, MOST, strict=True):
        if not 1 <= value <= most:
            raise ValueError(f"{name} = {value} is not in 1 to {most}")
    return numbers[:3]
