"""CIFAR-10 in its binary version: records of a label and 3 x 32 x 32 bytes. The pickled version is not read.

Unpickling runs what the file says. The binary version holds the same images and nothing else.
"""

from __future__ import annotations

import os
import pathlib

import numpy as np

from jaxacct_recipes.datasets import Dataset, damaged, existing, hold_out

SOURCE = (
    "data_batch_1.bin to data_batch_5.bin and test_batch.bin (CIFAR-10, binary version), from "
    "https://www.cs.toronto.edu/~kriz/cifar.html"
)
FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
RECORDS = 10_000
"""Of each file."""

CLASSES = 10
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32


def load(folder: pathlib.Path, test_size: int | None = None) -> Dataset:
    """Returns the images, float32 in [0, 1] of shape (32, 32, 3), and their labels.

    ``folder`` may be the one that the archive makes, or the one above it.

    Raises FileNotFoundError or ValueError for a missing or damaged file, with its path.
    """
    folder = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    parts = [read_cifar(folder / name) for name in TRAIN_FILES]
    inputs, labels = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    if test_size is not None:
        return hold_out("cifar10", inputs, labels, test_size, CLASSES)
    return Dataset("cifar10", inputs, labels, *read_cifar(folder / TEST_FILE), num_classes=CLASSES)


def read_cifar(path: str | os.PathLike[str], records: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images (records, 32, 32, 3), float32 in [0, 1], and the labels, int32, of one binary file.

    Args:
        path: of the file.
        records: how many it must hold. None: 10,000.

    Raises ValueError where the file has another length or a label above 9; FileNotFoundError where there is none.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".bin") as file:
    ...     _ = file.write(bytes([7]) + bytes(3072)) and file.flush()
    ...     images, labels = read_cifar(file.name, records=1)
    >>> images.shape, labels.tolist()
    ((1, 32, 32, 3), [7])
    """
    path = existing(pathlib.Path(path), SOURCE)
    records = RECORDS if records is None else records
    content = np.fromfile(path, np.uint8, count=records * RECORD)
    if path.stat().st_size != records * RECORD:
        raise damaged(
            path,
            f"is cut short or damaged: it has {path.stat().st_size} bytes, and {records} records of {RECORD} bytes are "
            f"{records * RECORD}",
            SOURCE,
        )
    rows = content.reshape(records, RECORD)
    labels = rows[:, 0].astype(np.int32)
    if (labels >= CLASSES).any():
        at = int(np.argmax(labels >= CLASSES))
        raise damaged(path, f"has the label {labels[at]} at record {at}, above {CLASSES - 1}", SOURCE)
    images = rows[:, 1:].reshape(records, *SHAPE).transpose(0, 2, 3, 1)
    return (images / np.float32(255)).astype(np.float32), labels
