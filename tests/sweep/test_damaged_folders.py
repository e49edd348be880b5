"""Folders that were damaged, or made to do harm: one clear error, and no more memory than what is asked for needs."""

import errno
import gzip
import json
import os
import tracemalloc

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.sweep import merge, result
from jaxacct.sweep.description import Boxes
from jaxacct.sweep.result import Folder, Memory

VALUES = {name: np.arange(1.0, 7.0) for name in ("lower", "estimate", "upper")} | {
    "converged": np.arange(6) > 0, "accountant": np.arange(6, dtype=np.int8) % 3,
}  # fmt: skip
BOXES = Boxes((3, 2), (1, 2))
SWEEP = ja.sweep.Sweep(
    quantity="epsilon", mode="certified", relation="add_or_remove", tolerance=1e-3, arithmetic="auto",
    mechanisms=("Gaussian", "Laplace"), layout="grid", constants={"delta": 1e-5, "noise_multiplier": np.inf},
    columns=("steps", "mechanism"), boxes=BOXES, digest="0", versions={"jax": "0"},
    grid={"steps": np.arange(1.0, 4.0), "mechanism": np.arange(2)},
    store=Memory(BOXES, {name: values.reshape(3, 2) for name, values in VALUES.items()}),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    SWEEP.save(tmp_path / "sweep")
    return tmp_path / "sweep"


def test_a_sweep_is_read_back_as_it_was(folder):
    found = ja.sweep.load(folder)
    for name, values in VALUES.items():
        np.testing.assert_array_equal(found[name], values.reshape(3, 2), strict=True)
    assert found.describe() == SWEEP.describe()
    assert {name: values.tolist() for name, values in found.axes.items()} == {
        "steps": [1.0, 2.0, 3.0], "mechanism": ["Gaussian", "Laplace"],
    }  # fmt: skip
    for read, made in zip(found.pieces(), SWEEP.pieces(), strict=True):
        assert {name: values.tolist() for name, values in read.items()} == {
            name: values.tolist() for name, values in made.items()
        }
    with pytest.raises(FileNotFoundError, match="no folder of a sweep"):
        ja.sweep.load(folder / "none")


def test_a_store_that_lacks_a_chunk_says_nothing_wrong(folder):
    """What Zarr's readers show of chunks that are not there is true of every epsilon."""
    fills = {name: json.loads((folder / name / "zarr.json").read_text())["fill_value"] for name in VALUES}
    assert fills == {"lower": 0, "estimate": "NaN", "upper": "Infinity", "converged": False, "accountant": 0}


def test_readers_of_zarr_read_it(folder):
    zarr = pytest.importorskip("zarr", minversion="3")
    group = zarr.open_group(folder, mode="r")
    for name, values in VALUES.items():
        np.testing.assert_array_equal(group[name][...], values.reshape(3, 2), strict=True)
    (folder / "upper" / "c.1.0").unlink()
    np.testing.assert_array_equal(group["upper"][1], [np.inf, np.inf])


def of(store):
    return ja.sweep.Sweep(**vars(store.description), grid=store.axes(), store=store)


RECORDS = {
    "no JSON": b"{",
    "no object": b"7",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "no text": b"\xff",
    "another group": b'{"zarr_format": 3, "node_type": "group", "attributes": {}}',
    "a huge number": b'{"attributes": {"jaxacct_sweep": ' + b"1" * 5000 + b"}}",
}
CHANGES = [
    {"jaxacct_sweep": 2}, {"shape": [2**60, 2]}, {"shape": 3}, {"shape": [2**30, 2], "chunk": [2**30, 2]},
    {"chunk": [0, 2]}, {"chunk": [1]}, {"tolerance": "many"},
    {"columns": ["../../etc", "mechanism"]}, {"columns": ["upper", "mechanism"]}, {"columns": [["steps"], "mechanism"]},
    {"constants": {"delta": "many"}}, {"constants": 3}, {"quantity": "pi"}, {"layout": "heap"}, {"shard": [3, 2]},
    {"shard": 7}, {"shape": [2**60, 2], "chunk": [1, 2], "shard": [0, 2]}, {"mechanisms": 3},
]  # fmt: skip


@pytest.mark.parametrize("change", [*RECORDS, *CHANGES], ids=str)
def test_a_damaged_description_is_one_value_error(change, folder):
    file = folder / "zarr.json"
    if isinstance(change, str):
        file.write_bytes(RECORDS[change])
    else:
        record = json.loads(file.read_text())
        record["attributes"] |= change
        file.write_text(json.dumps(record))
    for use in (ja.sweep.load, lambda path: merge(path.with_name("merged"), [path])):
        with pytest.raises(ValueError, match=r"zarr\.json is damaged, or not that of a sweep"):
            use(folder)


def damaged(content, change):
    return {
        "nothing": b"",
        "text": b"not numbers",
        "half": content[:-9],
        "a changed bit": content[:12] + bytes([content[12] ^ 4]) + content[13:],
        "more behind it": content + b"x",
        "another length": gzip.compress(bytes(8)),
        "what expands": gzip.compress(bytes(2**26)),
    }[change]


DAMAGES = ("nothing", "text", "half", "a changed bit", "more behind it", "another length", "what expands")


@pytest.mark.first_tier("missing", "bounds that cross", "bounds that are none")
@pytest.mark.parametrize("change", [*DAMAGES, "missing", "bounds that cross", "bounds that are none"])
def test_a_damaged_chunk_is_never_a_number_and_is_computed_again(change, folder):
    file = folder / "upper" / "c.1.0"
    store = Folder.open(folder)
    if change == "missing":
        file.unlink()
    elif change.startswith("bounds"):
        file.write_bytes(result.pack(np.full(2, np.nan if change.endswith("none") else 0.5)))
    else:
        file.write_bytes(damaged(file.read_bytes(), change))
    assert [store.holds(i) for i in range(3)] == [True, False, True]
    if not change.startswith("bounds"):
        for read in (lambda: of(store).upper, lambda: list(of(store).pieces())):
            with pytest.raises(ValueError, match=r"c\.1\.0 is (missing|damaged).*--resume"):
                read()
    if change == "missing":
        with pytest.raises(ValueError, match=r"1 of 3 chunks are missing.*--resume"):
            ja.sweep.load(folder)


def test_what_expands_is_not_unpacked(folder):
    file = folder / "upper" / "c.1.0"
    file.write_bytes(gzip.compress(bytes(2**26)))
    tracemalloc.start()
    try:
        assert not Folder.open(folder).holds(1)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_disk_that_is_full_is_told_and_leaves_nothing_half(folder, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = Folder(folder.with_name("other"), SWEEP.describe())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"chunk 1 cannot be written.*No space left.*--resume"):
        store.write(1, {name: values[:2] for name, values in VALUES.items()})
    assert not [path for path in store.path.rglob("*") if path.is_file()]


def test_files_of_an_earlier_version_are_named_as_such(tmp_path):
    np.savez(tmp_path / "old.npz", upper=np.zeros(3))
    with pytest.raises(ValueError, match=r"earlier version.*sweep again"):
        ja.sweep.load(tmp_path / "old.npz")
