"""Loaders of images on small made-up files, sound and damaged, and what every data set has to be."""

import gzip
import pathlib
import struct
import tracemalloc

import numpy as np
import pytest

from bench.papers import cifar
from bench.papers.cifar import read_cifar
from bench.papers.ratings import read_ratings
from bench.papers.recipes import LOADERS, load
from jaxacct_recipes import Dataset
from jaxacct_recipes.datasets import FILES, hold_out, read_idx, read_libsvm

REAL = pathlib.Path(__file__).parents[3] / "shared" / "data"


def idx(array):
    return struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    rng = np.random.default_rng(0)
    for part, stem in FILES.items():
        shape = (6, 28, 28) if part.endswith("inputs") else (6,)
        array = rng.integers(0, 10 if len(shape) == 1 else 256, shape, dtype=np.uint8)
        if part.startswith("train"):
            (tmp_path / f"{stem}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (tmp_path / stem).write_bytes(idx(array))
    return tmp_path


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_images_plain_and_compressed(mnist, name):
    dataset = load(name, mnist)
    assert dataset.name == name
    assert dataset.train_inputs.shape == (6, 28, 28, 1)
    assert dataset.train_inputs.dtype == np.float32
    raw = read_idx(mnist / FILES["test_inputs"], 3)
    np.testing.assert_allclose(dataset.test_inputs[..., 0] * 255, raw, atol=1e-4)
    assert dataset.test_labels.dtype == np.int32


def test_held_out_of_the_training_files(mnist):
    for part in ("test_inputs", "test_labels"):
        (mnist / FILES[part]).unlink()
    dataset = load("mnist", mnist, test_size=2)
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (4, 2)
    with pytest.raises(ValueError, match=r"test_size = 6 of the 6 examples"):
        load("mnist", mnist, test_size=6)
    with pytest.raises(ValueError, match=r"test_size = 0"):
        load("mnist", mnist, test_size=0)


def test_a_missing_file(mnist):
    (mnist / FILES["test_labels"]).unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte.*missing.*data-dir.*ossci-datasets"):
        load("mnist", mnist)
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte.*zalandoresearch"):
        load("fashion-mnist", mnist)


def resized(whole, shape):
    return whole[:4] + struct.pack(">3I", *shape) + whole[16:]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda whole: whole[:-5], r"cut short"),
        (lambda whole: whole + b"x", r"cut short or damaged"),
        (lambda whole: whole[:7], r"cut short within its header"),
        (lambda whole: b"\x00\x00\x0d\x03" + whole[4:], r"not an IDX file of bytes with 3 dimensions"),
        (lambda whole: b"", r"starts with nothing"),
        (lambda whole: gzip.compress(whole)[:-20], r"damaged gzip"),
        (lambda whole: resized(whole, (2**32 - 1,) * 3), r"cut short or damaged"),  # whose size leaves 64 bits
        (lambda whole: resized(whole[: 16 + 5 * 784], (5, 28, 28)), r"6 labels for the 5 images"),
    ],
)
def test_damaged_images(mnist, damage, words):
    path = mnist / FILES["test_inputs"]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=words) as raised:
        load("mnist", mnist)
    assert "t10k-images" in str(raised.value)
    assert "https://" in str(raised.value)


def test_a_label_that_is_no_digit(mnist):
    (mnist / FILES["test_labels"]).write_bytes(idx(np.array([0, 1, 2, 11, 4, 5], np.uint8)))
    with pytest.raises(ValueError, match=r"t10k-labels.*label 11 at example 3.*https"):
        load("mnist", mnist)


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "RECORDS", 3)
    folder = tmp_path / cifar.FOLDER
    folder.mkdir()
    rng = np.random.default_rng(1)
    for name in (*cifar.TRAIN_FILES, cifar.TEST_FILE):
        records = rng.integers(0, 256, (3, cifar.RECORD), dtype=np.uint8)
        records[:, 0] = rng.integers(0, 10, 3)
        (folder / name).write_bytes(records.tobytes())
    return tmp_path


def test_cifar(cifar10):
    dataset = load("cifar10", cifar10)
    assert dataset.train_inputs.shape == (15, 32, 32, 3)
    assert dataset.test_inputs.shape == (3, 32, 32, 3)
    raw = (cifar10 / cifar.FOLDER / "data_batch_2.bin").read_bytes()[:3073]
    assert dataset.train_labels[3] == raw[0]
    # Planes of red, green and blue, each row by row.
    for row, column, channel in ((0, 0, 0), (0, 5, 1), (31, 2, 2)):
        value = raw[1 + 1024 * channel + 32 * row + column]
        assert dataset.train_inputs[3, row, column, channel] * 255 == pytest.approx(value, abs=1e-4)
    inside = load("cifar10", cifar10 / cifar.FOLDER, test_size=4)
    assert (len(inside.train_labels), len(inside.test_labels)) == (11, 4)


def test_cifar_damaged(cifar10):
    path = cifar10 / cifar.FOLDER / "data_batch_4.bin"
    whole = path.read_bytes()
    for damage in (whole[:-1], whole[: 2 * 3073], whole + b"x"):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match=r"data_batch_4.bin is cut short or damaged.*cs.toronto.edu"):
            load("cifar10", cifar10)
    path.write_bytes(whole[:3073] + bytes([10]) + whole[3074:])
    with pytest.raises(ValueError, match=r"data_batch_4.bin has the label 10 at record 1"):
        load("cifar10", cifar10)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_4.bin is missing.*cs.toronto.edu"):
        load("cifar10", cifar10)


def test_a_split_is_fixed_and_keeps_every_example():
    inputs = np.arange(20, dtype=np.float32)[:, None]
    first, second = (hold_out("mine", inputs, np.zeros(20, np.int32), 5, 1) for _ in range(2))
    np.testing.assert_array_equal(first.test_inputs, second.test_inputs)
    assert sorted(np.concatenate([first.train_inputs, first.test_inputs])[:, 0]) == list(range(20))


def test_nan_in_the_data_is_found():
    inputs = np.zeros((4, 2), np.float32)
    inputs[2, 1] = np.nan
    labels = np.zeros(4, np.int32)
    with pytest.raises(ValueError, match=r"train_inputs.*NaN.*example 2"):
        Dataset("mine", inputs, labels, inputs[:1], labels[:1], num_classes=2)
    with pytest.raises(ValueError, match=r"train_labels\[0\] = 5"):
        Dataset("mine", inputs[:1], labels[:1] + 5, inputs[:1], labels[:1], num_classes=2)
    with pytest.raises(ValueError, match=r"test_labels has shape \(2,\)"):
        Dataset("mine", inputs[:1], labels[:1], inputs[:1], labels[:2], num_classes=2)


@pytest.mark.parametrize("name", sorted(set(LOADERS) - {"digits"}))
def test_no_folder_and_an_empty_one(name, tmp_path):
    with pytest.raises(ValueError, match=r"data-dir.*https://"):
        load(name)
    with pytest.raises(FileNotFoundError, match=r"not a folder.*https://"):
        load(name, tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"--data-dir needs.*https://"):
        load(name, tmp_path)


def test_an_unknown_name():
    with pytest.raises(ValueError, match=r"dataset = 'cifar'.*digits"):
        load("cifar")


@pytest.mark.exhaustive
@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
def test_the_real_files():
    digits = load("mnist", REAL / "mnist")
    assert digits.train_inputs.shape == (60_000, 28, 28, 1)
    assert np.bincount(digits.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    adult = load("adult", REAL / "adult", test_size=3256)
    assert adult.test_inputs.shape == (3256, 123)
    assert 0.75 < 1 - adult.train_labels.mean() < 0.77


def test_an_idx_file_is_read_as_far_as_its_header_says(tmp_path):
    """A small file that expands to three gigabytes."""
    small, path = idx(np.zeros((2, 3, 3), np.uint8)), tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(small) + gzip.compress(bytes(2**24)) * (3 * 2**6))  # members follow each other
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"it has more bytes after decompression, and its header.*asks for 34"):
            read_idx(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    huge = small[:4] + b"\xff" * 12
    for content in (huge, gzip.compress(huge)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"is cut short or damaged: its header.*asks for"):
            read_idx(path, 3)


def test_files_far_too_long_are_not_read(tmp_path):
    for name, read in (
        ("a9a", lambda path: read_libsvm(path, 3)),
        ("ratings.dat", read_ratings),
        ("b.bin", read_cifar),
    ):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**40)  # a hole, which takes no room on the disk
        with pytest.raises(ValueError, match=str(2**40)):
            read(tmp_path / name)
