"""A data set split into a private part to train on and a public one to test with."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Num

SPLIT_SEED = 20240229
"""Seed of the fixed permutations that hold out a test set; public, and no part of the training's randomness."""

MOST_TEXT = 2**28
"""Bytes of a text file: ten times the longest one."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification data set, split: the training part is the private one.

    Attributes:
        name: as the command line calls it.
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
    if not 0 < test_size < len(inputs):
        raise ValueError(
            f"test_size = {test_size} of the {len(inputs)} examples of {name}: give a whole number from 1 to "
            f"{len(inputs) - 1}, so that both parts have examples."
        )
    order = np.random.default_rng(SPLIT_SEED).permutation(len(inputs))
    train, test = order[:-test_size], order[-test_size:]
    return Dataset(name, inputs[train], labels[train], inputs[test], labels[test], num_classes)


def existing(path: pathlib.Path, source: str) -> pathlib.Path:
    """Returns ``path``; raises FileNotFoundError, which says where to get the file, where there is none."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: --data-dir needs {source}.")
    return path


def damaged(path: pathlib.Path, wrong: str, source: str) -> ValueError:
    """Returns the error to raise for a file that cannot be what it should be.

    >>> str(damaged(pathlib.Path("a.bin"), "is empty", "it from example.org"))
    'a.bin is empty: get it from example.org again.'
    """
    return ValueError(f"{path} {wrong}: get {source} again.")


def read_text(path: pathlib.Path, encoding: str, source: str) -> str:
    """Returns a text file's content; raises ValueError with the path and the place where it is not ``encoding``."""
    if path.stat().st_size > MOST_TEXT:
        raise damaged(path, f"has {path.stat().st_size} bytes, and no file of its kind has {MOST_TEXT}", source)
    content = path.read_bytes()
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise damaged(
            path, f"is not {encoding.upper()} text (byte {error.start} is {content[error.start]:#04x})", source
        ) from None
