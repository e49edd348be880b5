"""Files that were damaged, or made to do harm: one clear error, and no more memory than a file of that size needs."""

import io
import json
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.sweep.archive import Archive
from jaxacct.sweep.checkpoint import DESCRIPTION, Checkpoint

VALUES = dict.fromkeys(("lower", "estimate", "upper"), np.ones(3)) | {
    "converged": np.ones(3, bool), "accountant": np.ones(3, np.int8),
}  # fmt: skip
SWEEP = ja.sweep.Sweep(
    VALUES, "epsilon", "certified", "add_or_remove", 1e-3, ("Gaussian",), "grid", {"steps": np.arange(3.0)},
    {"delta": 1e-5}, 0.0,
)  # fmt: skip
NAMES = {name: value.dtype for name, value in VALUES.items()}


def npy(shape="(3,)", kind="<f8", content=b"\0" * 24):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def changed(path, **entries):
    """A sweep's file with other entries: bytes, or None for one that is missing."""
    SWEEP.save(path)
    with zipfile.ZipFile(path) as archive:
        old = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (old | entries).items():
            if content is not None:
                archive.writestr(f"{name}.npy", content)
    return path.read_bytes()


def about(path, text=None, **entries):
    SWEEP.save(path)
    if text is None:
        text = json.dumps(json.loads(str(np.load(path)["about"])) | entries)
    content = io.BytesIO()
    np.save(content, np.array(text))
    return changed(path, about=content.getvalue())


def plain(array):
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


GARBAGE = {
    "nothing": lambda path: b"",
    "text": lambda path: b"not a file of arrays",
    "one array": lambda path: plain(np.zeros(3)),
    "half": lambda path: changed(path)[:-200],
    "a header of 2^40 entries": lambda path: changed(path, upper=npy("(1099511627776,)")),
    "a header of a negative length": lambda path: changed(path, upper=npy("(-3,)")),
    "a header of no dtype": lambda path: changed(path, upper=npy(kind="<x8")),
    "a header that is code": lambda path: changed(path, upper=npy("__import__('os')")),
    "a deep header": lambda path: changed(path, upper=npy("(" * 3000 + ")" * 3000)),
    "an unknown format": lambda path: changed(path, upper=npy().replace(b"\x01\x00", b"\x09\x00", 1)),
    "objects": lambda path: changed(path, upper=plain(np.array([{}, 1, 2], object))),
    "what expands": lambda path: changed(path, upper=npy("(400000000,)", content=bytes(3))),
    "another length": lambda path: changed(path, upper=npy("(2,)", content=b"\0" * 16)),
    "another dtype": lambda path: changed(path, upper=npy(kind="<i8")),
    "no upper": lambda path: changed(path, upper=None),
    "no about": lambda path: changed(path, about=None),
    "bounds that cross": lambda path: changed(path, upper=npy(content=b"\0" * 24)),
    "bounds that are none": lambda path: changed(path, upper=npy(content=np.full(3, np.nan).tobytes())),
    "deep JSON": lambda path: about(path, "[" * 100_000),
    "a list": lambda path: about(path, "[1, 2]"),
    "no list of names": lambda path: about(path, axes=3),
    "names that are none": lambda path: about(path, arrays=[["upper"]]),
    "constants that are none": lambda path: about(path, constants={"delta": "many"}),
    "too much": lambda path: about(path, more=1),
    "a huge number": lambda path: about(path, '{"tolerance": ' + "1" * 5000 + "}"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_what_is_no_sweep_is_one_value_error(kind, tmp_path):
    path = tmp_path / "sweep.npz"
    path.write_bytes(GARBAGE[kind](path))
    with pytest.raises(ValueError, match="is not a sweep's file"):
        ja.sweep.load(path)


def test_a_sweep_is_read_back_as_it_was(tmp_path):
    SWEEP.save(tmp_path / "sweep.npz")
    loaded = ja.sweep.load(tmp_path / "sweep.npz")
    for name, values in VALUES.items():
        np.testing.assert_array_equal(loaded[name], values, strict=True)
    assert loaded.axes["steps"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(FileNotFoundError):
        ja.sweep.load(tmp_path / "none.npz")


def test_what_expands_is_not_unpacked(tmp_path, monkeypatch):
    """True to its header, and refused before it takes room; the limit of a gigabyte and more is lowered here."""
    monkeypatch.setattr("jaxacct.sweep.archive.FREE_BYTES", 2**20)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("upper.npy", npy(f"({2**21},)", content=bytes(2**24)))
    tracemalloc.start()
    try:
        with Archive(path) as stored, pytest.raises(ValueError, match="expands to more"):
            stored.read("upper")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_chunk_that_cannot_be_read_is_computed_again(kind, tmp_path):
    path = tmp_path / "chunk-000000.npz"
    path.write_bytes(GARBAGE[kind](path))
    found = Checkpoint(tmp_path, {}).read(0, NAMES, 3)
    of_another_kind = {"no about", "bounds that cross", "bounds that are none"}  # a chunk has no description
    unread = kind in of_another_kind or "about" in GARBAGE[kind].__code__.co_names
    assert (found is not None) == unread


@pytest.mark.parametrize(
    "text", [b"{", b"7", b"[]", b"[" * 100_000, b'{"chunk": NaN}', b'{"chunk": 0}', b'{"chunk": "8"}', b"{}", b"\xff"]
)
def test_a_damaged_description_is_one_value_error(text, tmp_path):
    (tmp_path / DESCRIPTION).write_bytes(text)
    with pytest.raises(ValueError, match="missing or damaged"):
        Checkpoint(tmp_path, {}).verified()
