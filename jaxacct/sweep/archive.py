"""Arrays of a .npz file that may be damaged, or made to do harm: what it says is believed after it was compared.

NumPy makes room for as many entries as an array's header names, which may be 2^40 in a file of a hundred bytes, and
unpacks what expands a thousandfold. Here an archive's entry is unpacked only where its header, the size that the
archive gives for it and what is expected of it agree, and only as far as that.
"""

from __future__ import annotations

import math
import pathlib
import zipfile
import zlib
from types import TracebackType
from typing import IO, Self

import numpy as np

KINDS = "biufU"
"""Kinds of arrays: truth values, numbers and text."""

FREE_BYTES, MOST_EXPANSION = 2**30, 100
"""An archive unpacks to at most so many bytes and that many times its own size."""


class Archive:
    """The arrays of a .npz file by name; a context. Raises ValueError for all that is none, OSError as files do."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self._left = FREE_BYTES + MOST_EXPANSION * self.path.stat().st_size
        try:
            self._zip = zipfile.ZipFile(self.path)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, MemoryError) as error:
            raise self._damaged(f"it is no archive ({error})") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._zip.close()

    def read(self, name: str, dtype: np.dtype | None = None, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Returns the array of this name, of this dtype and shape where they are given."""
        try:
            with self._zip.open(f"{name}.npy") as file:
                found, fortran, kind = self._header(file)
                size = self._zip.getinfo(f"{name}.npy").file_size - file.tell()
                if kind.kind not in KINDS or (dtype is not None and kind != dtype):
                    raise ValueError(f"its dtype is {kind}")
                if shape is not None and found != shape:
                    raise ValueError(f"its shape is {found}")
                if size != math.prod(found) * kind.itemsize:
                    raise ValueError(f"it has {size} bytes for a shape {found} of {kind}")
                self._left -= size
                if self._left < 0:
                    raise ValueError("it expands to more than a file of this size may")
                content = file.read(size)
            # A copy: an array of what was read could not be written to.
            return np.frombuffer(content, kind).reshape(found, order="F" if fortran else "C").copy()
        except KeyError:
            raise self._damaged(f"it has no {name}") from None
        except (
            *(ValueError, TypeError, SyntaxError, EOFError, OverflowError, RecursionError, MemoryError, RuntimeError),
            *(zipfile.BadZipFile, zlib.error, NotImplementedError),  # and what unpacking raises
        ) as error:
            raise self._damaged(f"{name}: {error}") from None

    def _header(self, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"its format {version} is not known")
        return read(file)

    def _damaged(self, why: str) -> ValueError:
        return ValueError(f"path = {self.path} is damaged, or no file of arrays: {str(why)[:200]}.")
