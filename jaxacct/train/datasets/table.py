"""Tables as classification data sets, encoded by public rules: a user's own (CSV, npz, Parquet), and the Adult census.

A mean, a least value or a list of the categories that occur would be a release of its own, outside the budget. So
bounds, categories and classes are given; each row is encoded by them alone, without a look at the others, and every row
stays: how many there are is public, and must not depend on what is in them. Whoever knows neither bounds nor categories
has to leave the column out.

* :func:`load`, :func:`read`, :func:`encoded`: a user's own table;
* :func:`load_libsvm`, :func:`load_uci`: the Adult census data.
"""

from __future__ import annotations

import csv
import math
import os
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxacct.train.datasets.dataset import Dataset, damaged, existing, hold_out, read_text

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
    inputs, labels = encoded(columns, path, label, rules, classes)
    count = classes if isinstance(classes, int) else len(classes)
    if test_size:
        return hold_out(path.stem, inputs, labels, test_size, count), rules
    held_out = inputs[:0], labels[:0]
    if test is not None:
        held_out = encoded(read(test), test, label, rules, classes)
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
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, skipinitialspace=True)
        names = [name.strip() for name in next(lines, [])]
        if len(set(names)) < len(names) or not all(names):
            raise ValueError(f"{path} has the names {names} in its first line: give each column one of its own.")
        rows = []
        for row in lines:
            if row and len(row) != len(names):
                raise ValueError(f"{path}, line {lines.line_num}: {len(row)} fields, expected {len(names)}.")
            rows.extend([row] if row else [])
    return {name: np.array([row[i].strip() for row in rows], dtype=np.str_) for i, name in enumerate(names)}


def _read_npz(path: pathlib.Path) -> Columns:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _read_parquet(path: pathlib.Path) -> Columns:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path} needs pyarrow, which is missing: pip install pyarrow.") from None
    table = pyarrow.parquet.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def encoded(
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
        return _scaled(name, column, *map(float, rule))
    return (_places(name, column, list(rule), "--categories")[:, None] == np.arange(len(rule))).astype(np.float32)


def _scaled(name: str, column: np.ndarray, low: float, high: float) -> np.ndarray:
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"bounds of {name!r} are {low:g}:{high:g}: give two numbers, the lower one first.")
    try:
        if column.dtype.kind in "UO":
            column = np.array(["nan" if text == "" else text for text in _texts(column)])
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


# ----------------------------------------------------------------------------------------------------
# Adult census data: LIBSVM's 123 binary features, or the table of the UCI repository, encoded here.
#
# In LIBSVM's file a9a each number is cut at quantiles of the data, by those who made it: a release that no budget of
# ours covers, harmless for data that is public. The encoding of the UCI table is made of constants: the categories that
# the repository's ``adult.names`` lists, and bounds on the numbers.
# ----------------------------------------------------------------------------------------------------

FEATURES = 123
"""Number of binary features of LIBSVM's file."""

LIBSVM_SOURCE = "the LIBSVM file a9a, from https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
"""Source of LIBSVM's file, for messages."""

UCI_SOURCE = "adult.data and adult.test, from https://archive.ics.uci.edu/dataset/2/adult"
"""Source of the UCI table's files, for messages."""

COLUMNS: dict[str, float | str] = {
    "age": 100.0,
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "fnlwgt": 1.5e6,
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
    "1st-4th 10th Doctorate 5th-6th Preschool",
    "education-num": 16.0,
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "capital-gain": 99_999.0,
    "capital-loss": 99_999.0,
    "hours-per-week": 100.0,
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
    "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland "
    "France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
    "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}
"""Columns of the UCI table in their order: the public bound of a number, or the names of the categories."""

LOGARITHMIC = ("capital-gain", "capital-loss")
"""Columns of numbers that span several orders of magnitude, scaled by their logarithms."""

LABELS = {"<=50K": 0, ">50K": 1}
"""Labels as the table writes them, and their numbers."""

MISSING = "?"
"""Mark of a missing category."""


def load_libsvm(folder: pathlib.Path, test_size: int | None = None) -> Dataset:
    """Returns the 123 binary features of a9a; the test part is a9a.t where it is there and ``test_size`` is None.

    Raises FileNotFoundError or ValueError for a missing or damaged file, with its path.
    """
    path = existing(folder / "a9a", LIBSVM_SOURCE)
    inputs, labels = read_libsvm(path, FEATURES)
    held_out = folder / "a9a.t"
    if test_size is None and held_out.is_file():
        return Dataset("adult", inputs, labels, *read_libsvm(held_out, FEATURES), num_classes=2)
    if test_size is None and len(inputs) < 5:
        raise ValueError(f"{path} has {len(inputs)} examples: too few to hold out a fifth for testing.")
    return hold_out("adult", inputs, labels, len(inputs) // 5 if test_size is None else test_size, num_classes=2)


def read_libsvm(path: str | os.PathLike[str], features: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Returns the inputs (examples, features), float32, and the labels, int32, of a binary LIBSVM text file.

    Labels are 0 or 1, or -1 or +1, which become 0 and 1. Features count from 1; those a line leaves out are 0.

    Raises ValueError with path and line number where a line cannot be read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     _ = file.write("-1 1:0.5 3:2\n+1 2:1\n") and file.flush()
    ...     inputs, labels = read_libsvm(file.name, features=3)
    >>> inputs.tolist(), labels.tolist()
    ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [0, 1])
    """
    path = pathlib.Path(path)
    rows: list[np.ndarray] = []
    labels: list[float] = []
    for number, line in enumerate(read_text(path, "ascii", LIBSVM_SOURCE).splitlines(), start=1):
        if not line.strip():
            continue
        label, *entries = line.split()
        row = np.zeros(features, np.float32)
        try:
            labels.append(float(label))
            for entry in entries:
                index, value = entry.split(":")
                if not 1 <= int(index) <= features:
                    raise ValueError(f"feature {index} is not in 1 to {features}")
                row[int(index) - 1] = float(value)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: {error}; expected 'label index:value ...': {LIBSVM_SOURCE}."
            ) from None
        if not np.isfinite(row).all():
            raise ValueError(f"{path}, line {number}: infinite or NaN value: clean the data before training.")
        rows.append(row)
    if not rows:
        raise damaged(path, "has no examples", LIBSVM_SOURCE)
    found = np.array(labels)
    if not (np.isin(found, (0, 1)).all() or np.isin(found, (-1, 1)).all()):
        raise damaged(path, f"has labels {sorted(set(labels))[:5]}, expected 0 and 1, or -1 and +1", LIBSVM_SOURCE)
    return np.stack(rows), (found > 0).astype(np.int32)


def load_uci(folder: pathlib.Path, test_size: int | None = None) -> Dataset:
    """Returns the 14 columns of the UCI table as 105 features in [0, 1]; the test part is the file adult.test.

    Raises FileNotFoundError or ValueError for a missing or damaged file, with its path.
    """
    inputs, labels = read_uci(folder / "adult.data")
    if test_size is not None:
        return hold_out("adult-uci", inputs, labels, test_size, num_classes=2)
    return Dataset("adult-uci", inputs, labels, *read_uci(folder / "adult.test"), num_classes=2)


def read_uci(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the encoded rows (examples, 105), float32 in [0, 1], and the labels, int32: 1 for more than 50K.

    A number is divided by a public bound, and clipped to it; capital gains and losses are so by their logarithms. A
    category becomes one of its column's features, and a missing one, ``?``, none of them: rows with missing values are
    kept, for dropping them would make the number of examples depend on their values.

    Raises ValueError with path and line number where a line cannot be read; FileNotFoundError where there is no file.
    """
    path = existing(pathlib.Path(path), UCI_SOURCE)
    rows: list[list[float]] = []
    labels: list[int] = []
    for number, line in enumerate(read_text(path, "ascii", UCI_SOURCE).splitlines(), start=1):
        if not line.strip() or line.startswith("|"):  # adult.test begins with a remark
            continue
        try:
            features, label = encode_uci(line)
        except ValueError as error:
            raise damaged(path, f"has a damaged line {number} ({error})", UCI_SOURCE) from None
        rows.append(features)
        labels.append(label)
    if not rows:
        raise damaged(path, "has no examples", UCI_SOURCE)
    return np.array(rows, np.float32), np.array(labels, np.int32)


def encode_uci(line: str) -> tuple[list[float], int]:
    """Returns the features and the label of one line of the table.

    Raises ValueError where it has not 15 fields, a number is none or negative, or a category is not listed.

    >>> features, label = encode_uci("50, ?, 300000, HS-grad, 8, Divorced, Sales, Husband, White, Male, 0, 0, 40, Cuba, >50K.")
    >>> len(features), features[0], sum(features[1:9]), label
    (105, 0.5, 0.0, 1)
    """  # noqa: E501
    *fields, label = (field.strip() for field in line.split(","))
    if len(fields) != len(COLUMNS):
        raise ValueError(f"{len(fields) + 1} fields, expected {len(COLUMNS) + 1}")
    features: list[float] = []
    for (name, kind), value in zip(COLUMNS.items(), fields, strict=True):
        if isinstance(kind, float):
            features.append(_scaled_adult(name, value, kind))
            continue
        categories = kind.split()
        if value != MISSING and value not in categories:
            raise ValueError(f"{name} = {value!r} is not one of its categories")
        features.extend(float(value == category) for category in categories)
    label = label.removesuffix(".")  # adult.test ends its lines with one
    if label not in LABELS:
        raise ValueError(f"the label {label!r} is neither <=50K nor >50K")
    return features, LABELS[label]


def _scaled_adult(name: str, text: str, bound: float) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} = {text} is not a number of at least 0")
    if name in LOGARITHMIC:
        value, bound = math.log1p(value), math.log1p(bound)
    return min(value / bound, 1.0)
