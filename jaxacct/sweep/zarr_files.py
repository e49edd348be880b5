"""Files of a Zarr store, version 3 of the format: what an array is, and its chunks, which are gzipped.

Source: the specification, https://zarr-specs.readthedocs.io/en/latest/v3/core/v3.0.html. Where an array has codes for
names, attributes say so as the CF conventions do.
"""

from __future__ import annotations

import gzip
import os
import pathlib
import zlib
from typing import Any

import numpy as np

from jaxacct import strict_json

METADATA = "zarr.json"

LEVEL = 1
"""Of gzip: the last bits of bounds do not compress, all else does at once."""


Metadata = dict[str, Any]


def group(attributes: Metadata, arrays: dict[str, Metadata]) -> Metadata:
    """Returns what is said of a folder of arrays, and once more of these, so that readers need one file."""
    once = {"kind": "inline", "must_understand": False, "metadata": arrays}
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes, "consolidated_metadata": once}


def array(
    kind: np.dtype,
    shape: tuple[int, ...],
    box: tuple[int, ...],
    empty: float,
    dimensions: tuple[str, ...],
    codes: dict[str, int],
) -> Metadata:
    """Returns what is said of an array in chunks of shape ``box``; ``empty`` is what missing ones hold."""
    order = {"configuration": {"endian": "little"}} if kind.itemsize > 1 else {}
    words = {"inf": "Infinity", "nan": "NaN"}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": kind.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": box}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "codecs": [{"name": "bytes", **order}, {"name": "gzip", "configuration": {"level": LEVEL}}],
        "fill_value": words.get(str(empty), bool(empty) if kind == np.dtype(bool) else empty),
        "dimension_names": dimensions,
        "attributes": {"flag_values": list(codes.values()), "flag_meanings": " ".join(codes)} if codes else {},
        "storage_transformers": [],
    }


def said(metadata: Metadata) -> bytes:
    """Returns the file of metadata."""
    return (strict_json.dumps(metadata, indent=1) + "\n").encode()


def key(place: tuple[int, ...]) -> str:
    """Returns the name of the file of a chunk, which is so many chunks from the corner along each axis."""
    return ".".join(["c", *map(str, place)])


def packed(values: np.ndarray) -> bytes:
    """Returns the file of a chunk."""
    return gzip.compress(values.astype(values.dtype.newbyteorder("<")).tobytes(), LEVEL, mtime=0)


def unpacked(file: pathlib.Path, kind: np.dtype, count: int) -> np.ndarray:
    """Returns the ``count`` values that a chunk's file holds; one made to do harm takes no more memory than these.

    Raises ValueError where it is damaged, OSError as files do.
    """
    size = count * kind.itemsize
    try:
        with file.open("rb") as opened:
            most = size + size // 64 + 1024  # what does not compress grows by less
            content = opened.read(min(most, os.fstat(opened.fileno()).st_size))
        unpacker = zlib.decompressobj(wbits=31)  # gzip's, which compares checksum and length
        found = unpacker.decompress(content, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(found) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"it does not hold the {size} bytes that it should")
    if kind == np.dtype(bool):
        return np.frombuffer(found, np.uint8) != 0
    return np.frombuffer(found, kind.newbyteorder("<")).astype(kind)
