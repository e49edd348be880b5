"""MNIST and Fashion-MNIST: images and labels in IDX files, plain or compressed."""

from __future__ import annotations

import gzip
import math
import os
import pathlib
import zlib
from typing import BinaryIO, cast

import numpy as np

from jaxacct.train.datasets.dataset import Dataset, damaged, hold_out

MNIST_SOURCE = "the four MNIST files (plain or .gz), e.g. from https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_SOURCE = (
    "the four Fashion-MNIST files (plain or .gz), which are named like MNIST's, e.g. from "
    "https://github.com/zalandoresearch/fashion-mnist"
)
FILES = {
    "train_inputs": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_inputs": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
CLASSES = 10

MOST_BYTES = 2**30
"""Of one file's examples: twenty times MNIST's."""


def load(name: str, source: str, folder: pathlib.Path, test_size: int | None = None) -> Dataset:
    """Returns the images, float32 in [0, 1] with one channel, and their labels. Both data sets have the same format.

    Raises FileNotFoundError or ValueError for a missing or damaged file, with its path and ``source``.
    """
    parts: dict[str, np.ndarray] = {}
    for part in ("train", "test") if test_size is None else ("train",):
        images_path, labels_path = (_find(folder, FILES[f"{part}_{kind}"], source) for kind in ("inputs", "labels"))
        images, labels = read_idx(images_path, 3, source), read_idx(labels_path, 1, source)
        if len(images) != len(labels):
            raise damaged(
                labels_path, f"has {len(labels)} labels for the {len(images)} images of {images_path}", source
            )
        if len(labels) and labels.max() >= CLASSES:
            at = int(np.argmax(labels >= CLASSES))
            raise damaged(labels_path, f"has the label {labels[at]} at example {at}, above {CLASSES - 1}", source)
        parts[f"{part}_inputs"] = (images[..., None] / np.float32(255)).astype(np.float32)
        parts[f"{part}_labels"] = labels.astype(np.int32)
    if test_size is not None:
        return hold_out(name, parts["train_inputs"], parts["train_labels"], test_size, CLASSES)
    return Dataset(name, num_classes=CLASSES, **parts)


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
        with _opened(path) as file:
            header = file.read(start)
            if header[:4] != expected:
                raise damaged(
                    path,
                    f"is not an IDX file of bytes with {dimensions} dimensions (it starts with "
                    f"{header[:4].hex() or 'nothing'}, expected {expected.hex()})",
                    source,
                )
            if len(header) < start:
                raise damaged(path, f"is cut short within its header, at {len(header)} bytes of {start}", source)
            shape = tuple(int.from_bytes(header[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
            size = math.prod(shape)
            if size > MOST_BYTES:
                raise damaged(
                    path, f"is cut short or damaged: its header, shape {shape}, asks for {size} bytes", source
                )
            content = file.read(size + 1)  # no more than the header asks for, whatever it expands to
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"is a damaged gzip file ({error})", source) from None
    if len(content) != size:
        there = f"{start + len(content)} bytes" if len(content) < size else "more bytes"
        raise damaged(
            path,
            f"is cut short or damaged: it has {there} after decompression, and its header, shape {shape}, "
            f"asks for {start + size}",
            source,
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _opened(path: pathlib.Path) -> BinaryIO:
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if compressed else path.open("rb")
