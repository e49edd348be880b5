"""The digits of scikit-learn: 1797 images of 8 x 8, which need no files."""

from __future__ import annotations

import pathlib

import numpy as np

from jaxacct.train.datasets.dataset import Dataset, hold_out

TEST_SIZE = 360


def load(folder: pathlib.Path, test_size: int | None = None) -> Dataset:
    """Returns the digits, ``test_size`` of them (None: 360) held out; the folder is not looked at.

    Raises ModuleNotFoundError without scikit-learn.

    >>> load(pathlib.Path(), test_size=1000).train_inputs.shape
    (797, 8, 8, 1)
    """
    del folder
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'the digits data set comes with scikit-learn, which is missing: pip install "jaxacct[train]".'
        ) from None
    raw = load_digits()
    inputs = (raw.data.astype(np.float32) / 16).reshape(-1, 8, 8, 1)  # pixels are counts from 0 to 16
    test_size = TEST_SIZE if test_size is None else test_size
    return hold_out("digits", inputs, raw.target.astype(np.int32), test_size, num_classes=10)
