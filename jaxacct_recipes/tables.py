"""A table of one's own (CSV, npz, Parquet) as a classification data set, encoded by public rules.

A mean, a least value or a list of the categories that occur would be a release of its own, outside the budget. So
bounds, categories and classes are given; each row is encoded by them alone, without a look at the others, and every row
stays: how many there are is public, and must not depend on what is in them. Whoever knows neither bounds nor categories
has to leave the column out.
"""

from __future__ import annotations

import csv
import math
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxacct_recipes.datasets import Dataset, hold_out

Bounds = tuple[float, float]
"""Bounds of a column of numbers: what lies outside is clipped to them, and they become -1 and 1."""

Rule = Bounds | Sequence[str]
"""Rule by which a column is encoded: bounds, or the names of its categories, one feature each."""

Columns = dict[str, np.ndarray]
"""Arrays with a common leading axis, by name; of numbers or of text."""


def load(
    path: pathlib.Path,
    label: str,
    rules: Mapping[str, Rule],
    classes: int | Sequence[str],
    *,
    bounds: Bounds | None = None,
    drop: Sequence[str] = (),
    test: pathlib.Path | None = None,
    test_size: int = 0,
) -> tuple[Dataset, dict[str, Rule]]:
    """Returns a table as a data set, and the rules of its columns in the order of its features.

    Args:
        path: .csv with names in its first line, .npz, or .parquet (needs pyarrow). Arrays of an npz file may have more
            axes; a single one besides the labels keeps its shape.
        label: the column of classes.
        rules: rules of columns, by name.
        classes: names of all classes, or how many there are: labels are whole numbers from 0 then.
        bounds: bounds of the columns without a rule.
        drop: columns that are left out.
        test: a table with the same columns, whose rows are public.
        test_size: rows that a fixed permutation of their numbers holds out in place of that; they are treated as
            public. With neither there is no test part.

    A missing number (empty, NaN) becomes the middle of its bounds, a missing category none of them.

    Raises ValueError where a column has no rule, a category or class is not listed, bounds are none, or a file is
    damaged; ModuleNotFoundError for a Parquet file without pyarrow; FileNotFoundError.
    """
    columns = read(path)
    rules = _complete(columns, path, label, rules, bounds, drop)
    inputs, labels = encode(columns, path, label, rules, classes)
    count = classes if isinstance(classes, int) else len(classes)
    if test_size:
        return hold_out(path.stem, inputs, labels, test_size, count), rules
    held_out = inputs[:0], labels[:0]
    if test is not None:
        held_out = encode(read(test), test, label, rules, classes)
    return Dataset(path.stem, inputs, labels, *held_out, num_classes=count), rules


def read(path: pathlib.Path) -> Columns:
    """Returns the columns of a file."""
    readers = {".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise ValueError(f"{path} is of no known kind: give one of {', '.join(readers)}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing.")
    try:
        columns = readers[path.suffix](path)
    except (UnicodeDecodeError, OSError, csv.Error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged: {error}.") from None
    if not columns or len({np.shape(column)[:1] for column in columns.values()}) != 1:
        shapes = {name: np.shape(column) for name, column in columns.items()}
        raise ValueError(f"{path} has columns of shapes {shapes}: give at least one, all with one row an example.")
    if not len(next(iter(columns.values()))):
        raise ValueError(f"{path} has no rows, only the columns {', '.join(columns)}: give at least one example.")
    return columns


def _read_csv(path: pathlib.Path) -> Columns:
    with path.open(newline="\n", encoding="utf-8-sig") as file:
        # Each row is one line, and is read by itself: a quote that does not end takes no rows of others into its own.
        lines = (next(csv.reader([line], skipinitialspace=True, strict=True)) for line in file)
        names = [name.strip() for name in next(lines, [])]
        if len(set(names)) < len(names) or not all(names):
            raise ValueError(f"{path} has the names {names} in its first line: give each column one of its own.")
        rows = []
        for number, row in enumerate(lines, start=2):
            if row and len(row) != len(names):
                raise ValueError(f"{path}, line {number}: {len(row)} fields, expected {len(names)}.")
            rows.extend([row] if row else [])
    return {name: np.array([row[i].strip() for row in rows], object) for i, name in enumerate(names)}


def _read_npz(path: pathlib.Path) -> Columns:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _read_parquet(path: pathlib.Path) -> Columns:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path} needs pyarrow, which is missing: pip install pyarrow.") from None
    table = pyarrow.parquet.read_table(path)

    def array(column: Any) -> np.ndarray:
        # Whole numbers with a missing one among them would become float64, and large ones others than they are.
        is_exact = pyarrow.types.is_integer(column.type) and column.null_count
        return np.array(column.to_pylist(), object) if is_exact else column.to_numpy()

    return {name: array(table[name]) for name in table.column_names}


def encode(
    columns: Columns, path: pathlib.Path, label: str, rules: Mapping[str, Rule], classes: int | Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs, float32, with the columns in the order of their rules; and the labels, int32."""
    _check_there(columns, path, label, *rules)
    features = [_features(name, columns[name], rule) for name, rule in rules.items()]
    inputs = (
        features[0] if len(features) == 1 else np.concatenate([part.reshape(len(part), -1) for part in features], 1)
    )
    return inputs, _labels(label, columns[label], classes)


def _complete(
    columns: Columns,
    path: pathlib.Path,
    label: str,
    rules: Mapping[str, Rule],
    bounds: Bounds | None,
    drop: Sequence[str],
) -> dict[str, Rule]:
    """Returns the rule of each column that is used, in the order of the file."""
    _check_there(columns, path, label, *rules, *drop)
    for name in (name for name in rules if name == label or name in drop):
        raise ValueError(f"column {name!r} has a rule, and is {'the label' if name == label else 'left out'}.")
    used = [name for name in columns if name != label and name not in drop]
    if not used:
        raise ValueError(f"{path} has no column besides the label and those left out.")
    without = [name for name in used if name not in rules]
    if bounds is not None:
        return {name: rules.get(name, bounds) for name in used}
    if without:
        raise ValueError(
            f"{path} has columns without a rule: {', '.join(without)}. Give public bounds (--bounds NAME=LOW:HIGH, or "
            "LOW:HIGH for all), public categories (--categories NAME=A,B,C), or leave them out (--drop NAME): what "
            "would be computed from the data is private."
        )
    return {name: rules[name] for name in used}


def _check_there(columns: Columns, path: pathlib.Path, *names: str) -> None:
    for name in names:
        if name not in columns:
            raise ValueError(f"{path} has no column {name!r}: it has {', '.join(columns)}.")


def _features(name: str, column: np.ndarray, rule: Any) -> np.ndarray:
    if isinstance(rule, tuple) and len(rule) == 2 and not isinstance(rule[0], str):
        return _scale(name, column, *map(float, rule))
    return (_places(name, column, list(rule), "--categories")[:, None] == np.arange(len(rule))).astype(np.float32)


def _scale(name: str, column: np.ndarray, low: float, high: float) -> np.ndarray:
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"bounds of {name!r} are {low:g}:{high:g}: give two numbers, the lower one first.")
    try:
        if column.dtype.kind in "UO":
            column = np.array([float(text or "nan") for text in _texts(column)])
        numbers = column.astype(np.float64)
    except ValueError as error:
        raise ValueError(
            f"column {name!r} has bounds, and is not of numbers ({error}): give its --categories, or --drop it."
        ) from None
    middle, half = (low + high) / 2, (high - low) / 2
    numbers = np.where(np.isnan(numbers), middle, np.clip(numbers, low, high))
    return ((numbers - middle) / half).astype(np.float32)


def _labels(name: str, column: np.ndarray, classes: int | Sequence[str]) -> np.ndarray:
    if isinstance(classes, int):
        classes = [str(number) for number in range(classes)]
    places = _places(name, column, list(classes), "--classes")
    if (places < 0).any():
        raise ValueError(f"label {name!r} is missing in row {int(np.argmin(places)) + 1}: every example needs one.")
    return places.astype(np.int32)


def _places(name: str, column: np.ndarray, known: list[str], option: str) -> np.ndarray:
    """Returns the places of a column's texts in a public list; -1 for a missing one."""
    if column.ndim != 1:
        raise ValueError(f"column {name!r} has shape {column.shape}: categories and classes need one value a row.")
    if len(set(known)) < len(known) or len(known) < 2:
        raise ValueError(f"{option} of {name!r} are {', '.join(known) or 'none'}: give at least two names, each once.")
    places = {"": -1} | {text: i for i, text in enumerate(known)}
    texts = _texts(column)
    unlisted = [(row, text) for row, text in enumerate(texts, start=1) if text not in places]
    if unlisted:
        row, text = unlisted[0]
        raise ValueError(
            f"column {name!r} has {text!r} in row {row}, which is not one of {', '.join(known[:9])}: list all that can "
            f"occur in {option}, by public knowledge."
        )
    return np.array([places[text] for text in texts], np.int64)


def _texts(column: np.ndarray) -> list[str]:
    """Returns values as text; whole numbers without a fraction, and nothing for a missing one."""

    def text(value: Any) -> str:
        if value is None or value != value:
            return ""
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

    return [text(value) for value in column.tolist()]
