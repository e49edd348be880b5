"""The Adult census data: LIBSVM's 123 binary features, or the table of the UCI repository, encoded here.

LIBSVM's file a9a has each number cut at quantiles of the data, by those who made it: a release that no budget of ours
covers, harmless for data that is public. The encoding of the UCI table is made of constants: the categories that the
repository's ``adult.names`` lists, and bounds on the numbers.
"""

from __future__ import annotations

import math
import os
import pathlib

import numpy as np

from jaxacct.train.datasets.dataset import Dataset, damaged, existing, hold_out, read_text

FEATURES = 123
LIBSVM_SOURCE = "the LIBSVM file a9a, from https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
UCI_SOURCE = "adult.data and adult.test, from https://archive.ics.uci.edu/dataset/2/adult"

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
"""In their order: the public bound of a number, or the names of the categories."""

LOGARITHMIC = ("capital-gain", "capital-loss")
"""Numbers that span several orders of magnitude."""

LABELS = {"<=50K": 0, ">50K": 1}
MISSING = "?"


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
    """Returns the 14 columns of the UCI table as 105 features in [0, 1]; a test part of its own, adult.test.

    Raises FileNotFoundError or ValueError for a missing or damaged file, with its path.
    """
    inputs, labels = read_uci(folder / "adult.data")
    if test_size is not None:
        return hold_out("adult-uci", inputs, labels, test_size, num_classes=2)
    return Dataset("adult-uci", inputs, labels, *read_uci(folder / "adult.test"), num_classes=2)


def read_uci(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the encoded rows (examples, 105), float32 in [0, 1], and the labels, int32: 1 for more than 50K.

    A number is divided by a public bound, and clipped to it; capital gains and losses by their logarithms. A category
    becomes one feature of its column's, and a missing one, ``?``, none of them: rows with missing values are kept, as
    dropping them would make the number of examples depend on their values.

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
            features.append(_scaled(name, value, kind))
            continue
        categories = kind.split()
        if value != MISSING and value not in categories:
            raise ValueError(f"{name} = {value!r} is not one of its categories")
        features.extend(float(value == category) for category in categories)
    label = label.removesuffix(".")  # adult.test ends its lines with one
    if label not in LABELS:
        raise ValueError(f"the label {label!r} is neither <=50K nor >50K")
    return features, LABELS[label]


def _scaled(name: str, text: str, bound: float) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} = {text} is not a number of at least 0")
    if name in LOGARITHMIC:
        value, bound = math.log1p(value), math.log1p(bound)
    return min(value / bound, 1.0)
