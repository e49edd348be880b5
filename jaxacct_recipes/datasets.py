"""Public data sets as arrays, split into a part to train on and one to test with: MNIST, Adult, scikit-learn's digits.

Nothing here is computed from the examples: pixels and numbers are scaled by constants of the format, categories and
sizes are those that the format's documentation lists. A mean or a number of users would be a release of its own,
outside the budget.

* :class:`Dataset`, :func:`hold_out`, and checks of files;
* :func:`load_idx`: MNIST and Fashion-MNIST; :func:`load_digits`: scikit-learn's digits;
* :func:`load_libsvm`, :func:`load_uci`: the Adult census data;
* :data:`LOADERS`, :func:`load`: all of them by name.

>>> sorted(LOADERS)
['adult', 'adult-uci', 'digits', 'fashion-mnist', 'mnist']
"""

from __future__ import annotations

import gzip
import math
import os
import pathlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, cast

import numpy as np
from jaxtyping import Int32, Num


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification data set, split: the training part is the private one.

    Attributes:
        name: the name that the command line has for it.
        train_inputs, test_inputs (examples, ...): float32 features, or int32 numbers of what is embedded.
        train_labels, test_labels (examples,): int32, in [0, num_classes).
        num_classes: number of classes.

    The test part may be empty: nothing is measured then.

    Raises ValueError where there is nothing to train on, sizes do not match, an input is infinite or NaN, or a label
    out of range.

    >>> x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 1], np.int32)
    >>> Dataset("mine", x, y, x[:1], y[:1], num_classes=2).train_inputs.shape
    (3, 2)
    """

    name: str
    train_inputs: Num[np.ndarray, "train ..."]
    train_labels: Int32[np.ndarray, " train"]
    test_inputs: Num[np.ndarray, "test ..."]
    test_labels: Int32[np.ndarray, " test"]
    num_classes: int

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            inputs, labels = getattr(self, f"{part}_inputs"), getattr(self, f"{part}_labels")
            if (part == "train" and len(inputs) == 0) or labels.shape != (len(inputs),):
                raise ValueError(
                    f"{self.name}: {part}_inputs has {len(inputs)} examples and {part}_labels has shape "
                    f"{labels.shape}: give one label for each example, and at least one example to train on."
                )
            bad = ~np.isfinite(inputs).all(axis=tuple(range(1, inputs.ndim)))
            if bad.any():
                raise ValueError(
                    f"{self.name}: {part}_inputs has an infinite or NaN value in example {int(np.argmax(bad))} "
                    f"({int(bad.sum())} such examples): clean the data before training."
                )
            wrong = (labels < 0) | (labels >= self.num_classes)
            if wrong.any():
                at = int(np.argmax(wrong))
                raise ValueError(
                    f"{self.name}: {part}_labels[{at}] = {labels[at]} is no class: labels go from 0 to "
                    f"{self.num_classes - 1}."
                )


def hold_out(name: str, inputs: np.ndarray, labels: np.ndarray, test_size: int, num_classes: int) -> Dataset:
    """Returns the data split by a fixed permutation, its last ``test_size`` examples held out.

    Raises ValueError where that leaves nothing to train on or to test with.

    >>> hold_out("mine", np.zeros((5, 1), np.float32), np.zeros(5, np.int32), 2, num_classes=2).train_inputs.shape
    (3, 1)
    """
    # Seed of the fixed permutations that hold out a test set; public, and no part of the training's randomness.
    split_seed = 20240229
    if not 0 < test_size < len(inputs):
        raise ValueError(
            f"test_size = {test_size} of the {len(inputs)} examples of {name}: give a whole number from 1 to "
            f"{len(inputs) - 1}, so that both parts have examples."
        )
    order = np.random.default_rng(split_seed).permutation(len(inputs))
    train, test = order[:-test_size], order[-test_size:]
    return Dataset(name, inputs[train], labels[train], inputs[test], labels[test], num_classes)


def existing(path: pathlib.Path, source: str) -> pathlib.Path:
    """Returns ``path``; raises FileNotFoundError, which says where to get the file, where there is none."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: --data-dir needs {source}.")
    return path


def damage(path: pathlib.Path, wrong: str, source: str) -> ValueError:
    """Returns the error to raise for a file that cannot be what it should be.

    >>> str(damage(pathlib.Path("a.bin"), "is empty", "it from example.org"))
    'a.bin is empty: get it from example.org again.'
    """
    return ValueError(f"{path} {wrong}: get {source} again.")


def read_text(path: pathlib.Path, encoding: str, source: str) -> str:
    """Returns a text file's content; raises ValueError with the path and the place where it is not ``encoding``."""
    # Most bytes of a text file: ten times the longest one. A larger file is refused as damaged.
    most_text = 2**28
    if path.stat().st_size > most_text:
        raise damage(path, f"has {path.stat().st_size} bytes, and no file of its kind has {most_text}", source)
    content = path.read_bytes()
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise damage(
            path, f"is not {encoding.upper()} text (byte {error.start} is {content[error.start]:#04x})", source
        ) from None


# ----------------------------------------------------------------------------------------------------
# MNIST and Fashion-MNIST: images and labels in IDX files, plain or compressed.
# ----------------------------------------------------------------------------------------------------

MNIST_SOURCE = "the four MNIST files (plain or .gz), e.g. from https://ossci-datasets.s3.amazonaws.com/mnist/"
"""Source of MNIST's files, for messages."""

FASHION_SOURCE = (
    "the four Fashion-MNIST files (plain or .gz), which are named like MNIST's, e.g. from "
    "https://github.com/zalandoresearch/fashion-mnist"
)
"""Source of Fashion-MNIST's files, for messages."""

FILES = {
    "train_inputs": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_inputs": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
"""Names of the files, without .gz, by the parts of the data set."""

MOST_BYTES = 2**30
"""Most bytes of one file's examples: twenty times MNIST's. A file whose header asks for more is refused as damaged."""


def load_idx(name: str, source: str, folder: pathlib.Path, test_size: int | None = None) -> Dataset:
    """Returns the images, float32 in [0, 1] with one channel, and their labels. Both data sets have the same format.

    Raises FileNotFoundError or ValueError for a missing or damaged file, with its path and ``source``.
    """
    # Number of classes of both data sets.
    classes = 10
    parts: dict[str, np.ndarray] = {}
    for part in ("train", "test") if test_size is None else ("train",):
        images_path, labels_path = (_find(folder, FILES[f"{part}_{kind}"], source) for kind in ("inputs", "labels"))
        images, labels = read_idx(images_path, 3, source), read_idx(labels_path, 1, source)
        if len(images) != len(labels):
            raise damage(labels_path, f"has {len(labels)} labels for the {len(images)} images of {images_path}", source)
        if len(labels) and labels.max() >= classes:
            at = int(np.argmax(labels >= classes))
            raise damage(labels_path, f"has the label {labels[at]} at example {at}, above {classes - 1}", source)
        parts[f"{part}_inputs"] = (images[..., None] / np.float32(255)).astype(np.float32)
        parts[f"{part}_labels"] = labels.astype(np.int32)
    if test_size is not None:
        return hold_out(name, parts["train_inputs"], parts["train_labels"], test_size, classes)
    return Dataset(name, num_classes=classes, **parts)


def _find(folder: pathlib.Path, stem: str, source: str) -> pathlib.Path:
    for name in (stem, f"{stem}.gz"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{folder / stem} (or {stem}.gz) is missing: --data-dir needs {source}.")


def read_idx(path: str | os.PathLike[str], dimensions: int, source: str = MNIST_SOURCE) -> np.ndarray:
    """Returns the bytes of an IDX file, plain or gzip, as a uint8 array with ``dimensions`` axes.

    Raises ValueError where the file is no such thing, is cut short or is too long; the message names the path and the
    ``source`` of a sound one.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix="-idx1-ubyte") as file:
    ...     _ = file.write(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])) and file.flush()
    ...     read_idx(file.name, dimensions=1).tolist()
    [7, 9]
    """
    path = pathlib.Path(path)
    expected, start = bytes([0, 0, 8, dimensions]), 4 + 4 * dimensions
    try:
        with _open(path) as file:
            header = file.read(start)
            if header[:4] != expected:
                raise damage(
                    path,
                    f"is not an IDX file of bytes with {dimensions} dimensions (it starts with "
                    f"{header[:4].hex() or 'nothing'}, expected {expected.hex()})",
                    source,
                )
            if len(header) < start:
                raise damage(path, f"is cut short within its header, at {len(header)} bytes of {start}", source)
            shape = tuple(int.from_bytes(header[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
            size = math.prod(shape)
            if size > MOST_BYTES:
                raise damage(path, f"is cut short or damaged: its header, shape {shape}, asks for {size} bytes", source)
            content = file.read(size + 1)  # no more than the header asks for, whatever it expands to
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damage(path, f"is a damaged gzip file ({error})", source) from None
    if len(content) != size:
        there = f"{start + len(content)} bytes" if len(content) < size else "more bytes"
        raise damage(
            path,
            f"is cut short or damaged: it has {there} after decompression, and its header, shape {shape}, "
            f"asks for {start + size}",
            source,
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _open(path: pathlib.Path) -> BinaryIO:
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if compressed else path.open("rb")


# ----------------------------------------------------------------------------------------------------
# The digits of scikit-learn: 1797 images of 8 x 8, which need no files.
# ----------------------------------------------------------------------------------------------------

TEST_SIZE = 360
"""Number of digits that are held out by default: a fifth."""


def load_digits(folder: pathlib.Path, test_size: int | None = None) -> Dataset:
    """Returns the digits, ``test_size`` of them (None: 360) held out; the folder is not looked at.

    Raises ModuleNotFoundError without scikit-learn.

    >>> load_digits(pathlib.Path(), test_size=1000).train_inputs.shape
    (797, 8, 8, 1)
    """
    del folder
    try:
        from sklearn import datasets
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'the digits data set comes with scikit-learn, which is missing: pip install "jaxacct[train]".'
        ) from None
    raw = datasets.load_digits()
    inputs = (raw.data.astype(np.float32) / 16).reshape(-1, 8, 8, 1)  # pixels are counts from 0 to 16
    test_size = TEST_SIZE if test_size is None else test_size
    return hold_out("digits", inputs, raw.target.astype(np.int32), test_size, num_classes=10)


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

LABELS = {"<=50K": 0, ">50K": 1}
"""Labels as the table writes them, and their numbers."""


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
        raise damage(path, "has no examples", LIBSVM_SOURCE)
    signs = np.array(labels)
    if not (np.isin(signs, (0, 1)).all() or np.isin(signs, (-1, 1)).all()):
        raise damage(path, f"has labels {sorted(set(labels))[:5]}, expected 0 and 1, or -1 and +1", LIBSVM_SOURCE)
    return np.stack(rows), (signs > 0).astype(np.int32)


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
            raise damage(path, f"has a damaged line {number} ({error})", UCI_SOURCE) from None
        rows.append(features)
        labels.append(label)
    if not rows:
        raise damage(path, "has no examples", UCI_SOURCE)
    return np.array(rows, np.float32), np.array(labels, np.int32)


def encode_uci(line: str) -> tuple[list[float], int]:
    """Returns the features and the label of one line of the table.

    Raises ValueError where it has not 15 fields, a number is none or negative, or a category is not listed.

    >>> features, label = encode_uci("50, ?, 300000, HS-grad, 8, Divorced, Sales, Husband, White, Male, 0, 0, 40, Cuba, >50K.")
    >>> len(features), features[0], sum(features[1:9]), label
    (105, 0.5, 0.0, 1)
    """  # noqa: E501
    # Mark of a missing category.
    missing = "?"
    *fields, label = (field.strip() for field in line.split(","))
    if len(fields) != len(COLUMNS):
        raise ValueError(f"{len(fields) + 1} fields, expected {len(COLUMNS) + 1}")
    features: list[float] = []
    for (name, kind), value in zip(COLUMNS.items(), fields, strict=True):
        if isinstance(kind, float):
            features.append(_scaled_adult(name, value, kind))
            continue
        categories = kind.split()
        if value != missing and value not in categories:
            raise ValueError(f"{name} = {value!r} is not one of its categories")
        features.extend(float(value == category) for category in categories)
    label = label.removesuffix(".")  # adult.test ends its lines with one
    if label not in LABELS:
        raise ValueError(f"the label {label!r} is neither <=50K nor >50K")
    return features, LABELS[label]


def _scaled_adult(name: str, text: str, bound: float) -> float:
    # Columns of numbers that span several orders of magnitude, scaled by their logarithms.
    logarithmic = ("capital-gain", "capital-loss")
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} = {text} is not a number of at least 0")
    if name in logarithmic:
        value, bound = math.log1p(value), math.log1p(bound)
    return min(value / bound, 1.0)


# ----------------------------------------------------------------------------------------------------
# Data sets by name.
# ----------------------------------------------------------------------------------------------------

Loader = tuple[Callable[[pathlib.Path, int | None], Dataset], str]
"""Reader of a data set from a folder, given a number of examples to hold out; and where to get its files, or ""."""

LOADERS: dict[str, Loader] = {
    "mnist": (partial(load_idx, "mnist", MNIST_SOURCE), MNIST_SOURCE),
    "fashion-mnist": (partial(load_idx, "fashion-mnist", FASHION_SOURCE), FASHION_SOURCE),
    "adult": (load_libsvm, LIBSVM_SOURCE),
    "adult-uci": (load_uci, UCI_SOURCE),
    "digits": (load_digits, ""),
}
"""Loaders of the data sets, by name."""


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    test_size: int | None = None,
    loaders: Mapping[str, Loader] = LOADERS,
) -> Dataset:
    """Returns a data set by its name.

    Args:
        name: one of ``loaders``. "digits" needs no files; the others read ``data_dir``.
        data_dir: folder of the files.
        test_size: examples to hold out of the training files by a fixed permutation; test files are then not read.
            None: the data set's own test files, and where it has none, 360 digits, or a fifth of the others.
        loaders: loaders by name; give more of them where you have data sets of your own.

    Raises:
        ValueError: an unknown name, no ``data_dir`` where one is needed, a ``test_size`` that leaves a part empty, or a
            damaged file; the message names it, what is wrong, and where to get it.
        FileNotFoundError: a missing file; the message says which, and where to get it.
        ModuleNotFoundError: "digits" without scikit-learn.

    >>> load("digits").train_inputs.shape
    (1437, 8, 8, 1)
    """
    if name not in loaders:
        raise ValueError(f"dataset = {name!r} is not known: give one of {', '.join(sorted(loaders))}.")
    loader, source = loaders[name]
    if not source:
        return loader(pathlib.Path(), test_size)
    if data_dir is None:
        raise ValueError(f"dataset {name} is read from files: give --data-dir (data_dir), a folder with {source}.")
    folder = pathlib.Path(data_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"--data-dir (data_dir) = {folder} is not a folder: give one with {source}.")
    return loader(folder, test_size)
