"""Public data sets as arrays: scikit-learn's digits, and others from files that the user has.

Nothing here is computed from the examples: pixels and numbers are scaled by constants of the format, categories and
sizes are those that the format's documentation lists. A mean or a number of users would be a release of its own,
outside the budget.

>>> sorted(LOADERS)
['adult', 'adult-uci', 'digits', 'fashion-mnist', 'mnist']
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from functools import partial

from jaxacct.train.datasets import dataset, table
from jaxacct.train.datasets.dataset import Dataset, bounded_contributions, mean_over_examples, users_as_examples

__all__ = ["LOADERS", "Dataset", "bounded_contributions", "load", "mean_over_examples", "users_as_examples"]

Loader = tuple[Callable[[pathlib.Path, int | None], Dataset], str]
"""Reader of a data set from a folder, given a number of examples to hold out; and where to get its files, or ""."""

LOADERS: dict[str, Loader] = {
    "mnist": (partial(dataset.load_idx, "mnist", dataset.MNIST_SOURCE), dataset.MNIST_SOURCE),
    "fashion-mnist": (partial(dataset.load_idx, "fashion-mnist", dataset.FASHION_SOURCE), dataset.FASHION_SOURCE),
    "adult": (table.load_libsvm, table.LIBSVM_SOURCE),
    "adult-uci": (table.load_uci, table.UCI_SOURCE),
    "digits": (dataset.load_digits, ""),
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
