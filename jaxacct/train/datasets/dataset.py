"""Data sets split into a private part to train on and a public one to test with, and data of users.

* :class:`Dataset`, :func:`hold_out` and checks of files;
* :func:`load_idx`: MNIST and Fashion-MNIST;
* :func:`load_digits`: scikit-learn's digits;
* :func:`bounded_contributions`, :func:`users_as_examples`: privacy of users who own several examples.
"""

from __future__ import annotations

import gzip
import math
import os
import pathlib
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, Int64, Num, PyTree

from jaxacct import validation

SPLIT_SEED = 20240229
"""Seed of the fixed permutations that hold out a test set; public, and no part of the training's randomness."""

MOST_TEXT = 2**28
"""Most bytes of a text file: ten times the longest one. A larger file is refused as damaged."""


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

CLASSES = 10
"""Number of classes of both data sets."""

MOST_BYTES = 2**30
"""Most bytes of one file's examples: twenty times MNIST's. A file whose header asks for more is refused as damaged."""


def load_idx(name: str, source: str, folder: pathlib.Path, test_size: int | None = None) -> Dataset:
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
# Data of users: a bound on how many examples each may own, and one record for each user in the place of its examples.
# ----------------------------------------------------------------------------------------------------


def bounded_contributions(
    owners: Sequence[Hashable | Iterable[Hashable]], most: int, *, order: Sequence[int] | None = None
) -> Int64[np.ndarray, " kept"]:
    """Returns the examples to train on, rising, such that no user owns more than ``most`` of them.

    One pass: an example is kept if none of its owners has ``most`` kept ones already. None of those left out could be
    added. With one owner each these are every user's first ``most``.

    Args:
        owners: of each example, one user, a string or a number, or several in a list or whatever has them; an
            example without owners is kept.
        most: k, at least 1; the size that :func:`jaxacct.group` is to be asked for.
        order: in which the examples are looked at, a permutation; as they stand by default. It must not depend on the
            examples' contents.

    Formal guarantee: a mechanism that is private for groups of k examples under "zero_out" or "replace" is so for
    users: for all examples of one user, owned alone or with others, whose contents become zero, or others. Which
    examples are kept depends on who owns what, which is taken as the same for both neighbours, and so as known. Where
    every example has one owner it is private for users added and removed as well, by "add_or_remove". With several
    owners it is not: with a user gone, examples of others may be kept that were not, and theirs left out in turn.

    Raises ValueError or TypeError where an argument is wrong.

    Source: Wu et al. (2025), "It's my data too: private ML for datasets with multi-user training examples", whose
    greedy baseline it is.

    >>> bounded_contributions(["a", "b", ("a", "b"), "a", ("b", "c")], 2).tolist()
    [0, 1, 2]
    """
    validation.check_count(most, "most", "how many examples a user may own")
    looked_at = range(len(owners)) if order is None else order
    if sorted(looked_at) != list(range(len(owners))):
        raise ValueError(f"order is no permutation of the {len(owners)} examples: give each of them once.")
    owned: Counter[Hashable] = Counter()
    kept = []
    # ``owned`` has how many kept examples each user owns, at most ``most``. Whether an example is kept follows from the
    # owners alone, never from its contents.
    for example in looked_at:
        users = _users(owners[example])
        if all(owned[user] < most for user in users):
            owned.update(users)
            kept.append(example)
    return np.array(sorted(kept), np.int64)


def _users(owner: Any) -> set[Hashable]:
    is_one = isinstance(owner, (str, bytes)) or not isinstance(owner, Iterable)
    users = {owner} if is_one else set(owner)
    for user in users:
        _check_user(user)
    return users


def _check_user(user: Any) -> None:
    """Raises ValueError where a user cannot be recognized: NaN differs from itself, and would be another each time."""
    if isinstance(user, Iterable) and not isinstance(user, (str, bytes, tuple, frozenset)):
        raise ValueError(f"owner {user!r} is told apart by what it is, not by whom it names: give a name or a number.")
    if user != user:
        raise ValueError(f"owner {user!r} is nobody: name whose example it is, or leave the example out.")


def users_as_examples(
    data: PyTree, owner: Sequence[Hashable] | np.ndarray, most: int
) -> tuple[PyTree, Float32[np.ndarray, "users most"]]:
    """Returns one record for each user: its first ``most`` examples, and their weights in the mean.

    A trainer that takes these for its examples samples users and clips the gradient of a user's mean once, with
    :func:`mean_over_examples` for a loss. Its accounting, as it stands, is then for users: one added or removed with
    all its examples.

    Args:
        data: a pytree of arrays with a common leading axis (n, ...).
        owner (n,): the one user of each example.
        most: m, at least 1.

    Returns:
        ``(records, weights)``: arrays (users, m, ...) in the order of a user's first example, and the weights, of sum 1
        for each user, 0 where it has fewer than m. Those places hold the user's own first example again: a record is
        made of nothing but its user's data.

    Raises ValueError or TypeError where an argument is wrong.

    >>> records, weights = users_as_examples(np.array([10, 20, 30]), ["a", "b", "a"], 2)
    >>> records.tolist(), weights.tolist()
    ([[10, 30], [20, 20]], [[0.5, 0.5], [1.0, 0.0]])
    """
    validation.check_count(most, "most", "how many examples of a user count")
    lengths = {len(leaf) for leaf in jax.tree.leaves(data)}
    if lengths != {len(owner)} or not len(owner):
        raise ValueError(f"owner names {len(owner)} users for arrays of {sorted(lengths)} examples: give one for each.")
    rows: dict[Hashable, list[int]] = {}
    # Each user's examples in their order, and users in the order of their first example.
    for example, user in enumerate(owner):
        _check_user(user)
        rows.setdefault(user, []).append(example)
    firsts = [own[:most] for own in rows.values()]
    places = np.array([[*own, *[own[0]] * (most - len(own))] for own in firsts])
    weights = np.array([[1 / len(own)] * len(own) + [0.0] * (most - len(own)) for own in firsts], np.float32)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[places], data), weights


@dataclass(frozen=True)
class LossOfUser:
    """The loss of a user's record, made of the loss of one example: :func:`mean_over_examples`."""

    of_example: Callable[..., Array]

    def __call__(self, model: Any, *record: Any) -> Array:
        *examples, weights = record
        losses = jax.vmap(lambda *example: self.of_example(model, *example))(*examples)
        # An infinite loss at weight 0 would be NaN in the product.
        return jnp.sum(jnp.where(weights > 0, weights * losses, 0.0))


def mean_over_examples(loss: Callable[..., Array]) -> LossOfUser:
    """Returns the loss of a record of :func:`users_as_examples`: the weighted mean of ``loss`` over its examples.

    A trainer of such a loss states its guarantee for users.

    Args:
        loss: of a model and one example, ``loss(model, *example)``.

    Returns:
        ``loss(model, *record, weights)``, the weights last. Its gradient is the mean of the examples' gradients.

    >>> record = np.array([1.0, 3.0]), np.array([0.25, 0.75])
    >>> float(mean_over_examples(lambda model, x: model * x)(2.0, *record))
    5.0
    """
    return LossOfUser(loss)
