"""The results of a sweep as files for others: a line for each entry (.csv, .parquet), or one JSON object."""

from __future__ import annotations

import csv
import io
import pathlib
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from jaxacct import strict_json
from jaxacct.whole_file import write_whole

if TYPE_CHECKING:
    from jaxacct.sweep.result import Sweep

SUFFIXES = (".csv", ".parquet", ".json")


def write(sweep: Sweep, path: pathlib.Path) -> None:
    """Writes what the suffix says: whole or not at all, and but for JSON no more than a chunk is in memory."""
    check_suffix(path)
    if path.suffix == ".csv":
        write_whole(path, lambda file: _csv(sweep, file))
    elif path.suffix == ".parquet":
        parquet, table = _arrow()
        write_whole(path, lambda file: _parquet(sweep, file, parquet, table))
    else:
        write_whole(path, (strict_json.dumps(sweep.as_dict()) + "\n").encode())


def check_suffix(path: pathlib.Path, known: tuple[str, ...] = SUFFIXES) -> None:
    """Raises where the suffix names no format."""
    if path.suffix not in known:
        raise ValueError(f"path = {path}: the suffix says the format: give one of {', '.join(known)}.")


def _csv(sweep: Sweep, file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    lines = csv.writer(text, lineterminator="\n")
    for i, piece in enumerate(sweep.pieces()):
        if i == 0:
            lines.writerow(piece)
        lines.writerows(zip(*(values.tolist() for values in piece.values()), strict=True))
    text.detach()


def _parquet(sweep: Sweep, file: BinaryIO, parquet: Any, table: Any) -> None:
    writer = None
    for piece in sweep.pieces():
        rows = table(piece)
        writer = writer or parquet.ParquetWriter(file, rows.schema)
        writer.write_table(rows)
    if writer is not None:
        writer.close()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ModuleNotFoundError('.parquet needs pyarrow, which is missing: pip install "jaxacct[sweep]".') from None

    def table(piece: dict[str, np.ndarray]) -> Any:
        # Texts as numbers of a list of them: they are few.
        arrays = {name: pyarrow.array(values) for name, values in piece.items()}
        return pyarrow.table(
            {name: a.dictionary_encode() if piece[name].dtype.kind == "U" else a for name, a in arrays.items()}
        )

    return pyarrow.parquet, table
