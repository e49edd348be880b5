"""Small public data sets as arrays: bundled digits, and MNIST and Adult from files the user has.

Pixels and features are scaled by public constants of the format, never by statistics of the data: those would be a
release of their own.
"""

from __future__ import annotations

import gzip
import os
import pathlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32

SPLIT_SEED = 20240229
"""Seed of the fixed permutations that hold out a test set; public, and no part of the training's randomness."""

DIGITS_TEST_SIZE = 360
ADULT_FEATURES = 123

MNIST_FILES = {
    "train_inputs": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_inputs": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
MNIST_SOURCE = "the four MNIST files (plain or .gz), e.g. from https://ossci-datasets.s3.amazonaws.com/mnist/"
ADULT_SOURCE = "the LIBSVM file a9a, from https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification data set, split: the training part is the private one.

    Attributes:
        name: as the command line calls it.
        train_inputs, test_inputs (examples, ...): float32.
        train_labels, test_labels (examples,): int32, in [0, num_classes).
        num_classes: number of classes.

    Raises ValueError where a part is empty, sizes do not match, an input is infinite or NaN, or a label out of range.

    >>> x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 1], np.int32)
    >>> Dataset("mine", x, y, x[:1], y[:1], num_classes=2).train_inputs.shape
    (3, 2)
    """

    name: str
    train_inputs: Float32[np.ndarray, "train ..."]
    train_labels: Int32[np.ndarray, " train"]
    test_inputs: Float32[np.ndarray, "test ..."]
    test_labels: Int32[np.ndarray, " test"]
    num_classes: int

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            inputs, labels = getattr(self, f"{part}_inputs"), getattr(self, f"{part}_labels")
            if len(inputs) == 0 or labels.shape != (len(inputs),):
                raise ValueError(
                    f"{self.name}: {part}_inputs has {len(inputs)} examples and {part}_labels has shape "
                    f"{labels.shape}: give one label for each example, and at least one example."
                )
            bad = ~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1)
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


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Returns a data set by its name: ``"digits"``, ``"mnist"`` or ``"adult"``.

    Args:
        name: "digits" needs no files; the others read ``data_dir``.
        data_dir: folder of the files.

    Raises:
        ValueError: an unknown name, no ``data_dir`` where one is needed, or a damaged file.
        FileNotFoundError: a missing file; the message says which, and where to get it.
        ModuleNotFoundError: "digits" without scikit-learn.

    >>> load("digits").train_inputs.shape
    (1437, 8, 8, 1)
    """
    if name not in LOADERS:
        raise ValueError(f"dataset = {name!r} is not known: give one of {', '.join(LOADERS)}.")
    if name == "digits":
        return _digits()
    loader, source = LOADERS[name]
    if data_dir is None:
        raise ValueError(f"dataset {name} is read from files: give --data-dir (data_dir), a folder with {source}.")
    folder = pathlib.Path(data_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"--data-dir (data_dir) = {folder} is not a folder: give one with {source}.")
    return loader(folder)


def _digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'the digits data set comes with scikit-learn, which is missing: pip install "jaxacct[train]".'
        ) from None
    raw = load_digits()
    inputs = (raw.data.astype(np.float32) / 16).reshape(-1, 8, 8, 1)  # pixels are counts from 0 to 16
    return _hold_out("digits", inputs, raw.target.astype(np.int32), DIGITS_TEST_SIZE, num_classes=10)


def _hold_out(name: str, inputs: np.ndarray, labels: np.ndarray, test_size: int, num_classes: int) -> Dataset:
    """Returns the data split by a fixed permutation, its last ``test_size`` examples held out."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(inputs))
    train, test = order[:-test_size], order[-test_size:]
    return Dataset(name, inputs[train], labels[train], inputs[test], labels[test], num_classes)


def _mnist(folder: pathlib.Path) -> Dataset:
    parts: dict[str, np.ndarray] = {}
    for part, stem in MNIST_FILES.items():
        raw = read_idx(_find(folder, stem), dimensions=3 if part.endswith("inputs") else 1)
        parts[part] = (raw[..., None] / np.float32(255)).astype(np.float32) if raw.ndim == 3 else raw.astype(np.int32)
    return Dataset("mnist", num_classes=10, **parts)


def _find(folder: pathlib.Path, stem: str) -> pathlib.Path:
    for name in (stem, f"{stem}.gz"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{folder / stem} (or {stem}.gz) is missing: --data-dir needs {MNIST_SOURCE}.")


def read_idx(path: str | os.PathLike[str], dimensions: int) -> np.ndarray:
    """Returns the bytes of an IDX file, plain or gzip, as a uint8 array with ``dimensions`` axes.

    Raises ValueError where the file is no such thing, is cut short or is too long; the message names the path.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix="-idx1-ubyte") as file:
    ...     _ = file.write(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])) and file.flush()
    ...     read_idx(file.name, dimensions=1).tolist()
    [7, 9]
    """
    path = pathlib.Path(path)
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file ({error}): get {MNIST_SOURCE} again.") from None
    expected = bytes([0, 0, 8, dimensions])
    if content[:4] != expected:
        raise ValueError(
            f"{path} is not an IDX file of bytes with {dimensions} dimensions: "
            f"it starts with {content[:4].hex() or 'nothing'}, "
            f"expected {expected.hex()}. Get {MNIST_SOURCE}."
        )
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
    size = int(np.prod(shape, dtype=np.int64))
    if len(content) != start + size:
        raise ValueError(
            f"{path} has {len(content)} bytes after decompression, but its header, shape {shape}, "
            f"asks for {start + size}: "
            f"the file is cut short or damaged. Get {MNIST_SOURCE} again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _adult(folder: pathlib.Path) -> Dataset:
    path = folder / "a9a"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: --data-dir needs {ADULT_SOURCE}.")
    inputs, labels = read_libsvm(path, ADULT_FEATURES)
    held_out = folder / "a9a.t"
    if held_out.is_file():
        return Dataset("adult", inputs, labels, *read_libsvm(held_out, ADULT_FEATURES), num_classes=2)
    if len(inputs) < 5:
        raise ValueError(f"{path} has {len(inputs)} examples: too few to hold out a fifth for testing.")
    return _hold_out("adult", inputs, labels, len(inputs) // 5, num_classes=2)


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
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file: expected {ADULT_SOURCE}.") from None
    for number, line in enumerate(lines, start=1):
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
                f"{path}, line {number}: {error}; expected 'label index:value ...': {ADULT_SOURCE}."
            ) from None
        if not np.isfinite(row).all():
            raise ValueError(f"{path}, line {number}: infinite or NaN value: clean the data before training.")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} has no examples: expected {ADULT_SOURCE}.")
    found = np.array(labels)
    if not (np.isin(found, (0, 1)).all() or np.isin(found, (-1, 1)).all()):
        raise ValueError(f"{path} has labels {sorted(set(labels))[:5]}: expected 0 and 1, or -1 and +1.")
    return np.stack(rows), (found > 0).astype(np.int32)


LOADERS: dict[str, tuple[Callable[..., Dataset], str]] = {
    "digits": (_digits, ""),
    "mnist": (_mnist, MNIST_SOURCE),
    "adult": (_adult, ADULT_SOURCE),
}
