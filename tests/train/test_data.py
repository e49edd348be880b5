"""Loaders on small made-up files, sound and damaged."""

import gzip
import struct

import numpy as np
import pytest

from jaxacct.train.data import MNIST_FILES, Dataset, load, read_idx


def idx(array):
    return struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    rng = np.random.default_rng(0)
    for part, stem in MNIST_FILES.items():
        shape = (6, 28, 28) if part.endswith("inputs") else (6,)
        array = rng.integers(0, 10 if len(shape) == 1 else 256, shape, dtype=np.uint8)
        if part.startswith("train"):
            (tmp_path / f"{stem}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (tmp_path / stem).write_bytes(idx(array))
    return tmp_path


def test_mnist_plain_and_compressed(mnist):
    dataset = load("mnist", mnist)
    assert dataset.train_inputs.shape == (6, 28, 28, 1)
    assert dataset.train_inputs.dtype == np.float32
    assert 0 <= dataset.train_inputs.min() <= dataset.train_inputs.max() <= 1
    assert dataset.test_labels.dtype == np.int32


def test_mnist_missing_file(mnist):
    (mnist / MNIST_FILES["test_labels"]).unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte.*missing.*data-dir"):
        load("mnist", mnist)


def test_mnist_truncated_and_foreign_files(mnist):
    path = mnist / MNIST_FILES["test_inputs"]
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match=r"t10k-images.*cut short"):
        load("mnist", mnist)
    path.write_bytes(whole + b"x")
    with pytest.raises(ValueError, match=r"cut short or damaged"):
        load("mnist", mnist)
    path.write_bytes(b"\x00\x00\x0d\x03" + whole[4:])
    with pytest.raises(ValueError, match=r"not an IDX file of bytes with 3 dimensions"):
        load("mnist", mnist)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"starts with nothing"):
        load("mnist", mnist)
    path.write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(ValueError, match=r"damaged gzip"):
        read_idx(path, 3)


def test_adult_with_and_without_its_own_test_file(tmp_path):
    (tmp_path / "a9a").write_text("".join(f"{i % 2} 1:1 {i + 2}:0.5\n" for i in range(10)))
    dataset = load("adult", tmp_path)
    assert dataset.train_inputs.shape == (8, 123)
    assert dataset.test_inputs.shape == (2, 123)
    (tmp_path / "a9a.t").write_text("-1 3:1\n+1 4:1\n")
    dataset = load("adult", tmp_path)
    assert dataset.train_inputs.shape == (10, 123)
    assert dataset.test_labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 1:nan", r"line 2.*NaN"),
        ("0 1:inf", r"line 2.*NaN"),
        ("0 124:1", r"line 2.*feature 124"),
        ("zero 1:1", r"line 2"),
        ("0 1", r"line 2"),
        ("7 1:1", r"labels"),
    ],
)
def test_adult_damaged_lines(tmp_path, line, words):
    (tmp_path / "a9a").write_text(f"0 1:1\n{line}\n1 2:1\n1 2:1\n1 2:1\n")
    with pytest.raises(ValueError, match=words):
        load("adult", tmp_path)


def test_nan_in_the_data_is_found():
    inputs = np.zeros((4, 2), np.float32)
    inputs[2, 1] = np.nan
    labels = np.zeros(4, np.int32)
    with pytest.raises(ValueError, match=r"train_inputs.*NaN.*example 2"):
        Dataset("mine", inputs, labels, inputs[:1], labels[:1], num_classes=2)
    with pytest.raises(ValueError, match=r"train_labels\[0\] = 5"):
        Dataset("mine", inputs[:1], labels[:1] + 5, inputs[:1], labels[:1], num_classes=2)


def test_unknown_name_and_missing_folder(tmp_path):
    with pytest.raises(ValueError, match=r"dataset = 'cifar'.*digits"):
        load("cifar")
    with pytest.raises(ValueError, match=r"data-dir"):
        load("mnist")
    with pytest.raises(FileNotFoundError, match=r"not a folder"):
        load("adult", tmp_path / "nowhere")
