"""Public data sets as arrays: scikit-learn's digits, and others from files that the user has.

Nothing here is computed from the examples: pixels and numbers are scaled by constants of the format, categories and
sizes are those that the format's documentation lists, words are numbered by a hash. A mean, a list of the words that
occur, a number of users would be a release of its own, outside the budget.

>>> sorted(LOADERS)
['adult', 'adult-uci', 'cifar10', 'digits', 'fashion-mnist', 'imdb', 'mnist', 'movielens']
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from functools import partial

from jaxacct.train.datasets import adult, cifar, digits, idx, ratings, reviews
from jaxacct.train.datasets.dataset import Dataset

__all__ = ["LOADERS", "Dataset", "load"]

LOADERS: dict[str, tuple[Callable[[pathlib.Path, int | None], Dataset], str]] = {
    "mnist": (partial(idx.load, "mnist", idx.MNIST_SOURCE), idx.MNIST_SOURCE),
    "fashion-mnist": (partial(idx.load, "fashion-mnist", idx.FASHION_SOURCE), idx.FASHION_SOURCE),
    "cifar10": (cifar.load, cifar.SOURCE),
    "adult": (adult.load_libsvm, adult.LIBSVM_SOURCE),
    "adult-uci": (adult.load_uci, adult.UCI_SOURCE),
    "imdb": (reviews.load, reviews.SOURCE),
    "movielens": (ratings.load, ratings.SOURCE),
    "digits": (digits.load, ""),
}
"""What reads each data set from a folder, and where to get its files."""


def load(name: str, data_dir: str | os.PathLike[str] | None = None, *, test_size: int | None = None) -> Dataset:
    """Returns a data set by its name.

    Args:
        name: one of :data:`LOADERS`. "digits" needs no files; the others read ``data_dir``.
        data_dir: folder of the files.
        test_size: examples to hold out of the training files by a fixed permutation; test files are then not read.
            None: the data set's own test files, and where it has none, 360 digits, or a fifth of the others.

    Raises:
        ValueError: an unknown name, no ``data_dir`` where one is needed, a ``test_size`` that leaves a part empty, or a
            damaged file; the message names it, what is wrong, and where to get it.
        FileNotFoundError: a missing file; the message says which, and where to get it.
        ModuleNotFoundError: "digits" without scikit-learn.

    >>> load("digits").train_inputs.shape
    (1437, 8, 8, 1)
    """
    if name not in LOADERS:
        raise ValueError(f"dataset = {name!r} is not known: give one of {', '.join(sorted(LOADERS))}.")
    loader, source = LOADERS[name]
    if not source:
        return loader(pathlib.Path(), test_size)
    if data_dir is None:
        raise ValueError(f"dataset {name} is read from files: give --data-dir (data_dir), a folder with {source}.")
    folder = pathlib.Path(data_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"--data-dir (data_dir) = {folder} is not a folder: give one with {source}.")
    return loader(folder, test_size)
