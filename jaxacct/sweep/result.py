"""What a sweep returns: named arrays over named axes."""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxacct import validation
from jaxacct.sweep import export
from jaxacct.sweep.quantities import Accountant

SUFFIXES = (".npz", ".csv", ".json")


@dataclass(frozen=True)
class Sweep:
    """Results of a sweep.

    Attributes:
        arrays: name to array of :attr:`shape`: "lower", "estimate", "upper" float64, as of
            :class:`~jaxacct.Bounds`; "converged" bool; "accountant" int8, an :class:`~jaxacct.sweep.Accountant`. A
            sweep for the least noise has "noise_multiplier" as well, and the bounds are of the epsilon reached with it.
        quantity: "epsilon", "delta" or "noise_multiplier".
        mode: "saddlepoint" or "certified".
        relation: neighbouring relation.
        tolerance: of the mesh, or of the calibration.
        mechanisms: names of the mechanism classes.
        layout: "grid" or "rows".
        axes: name to values (n,): a grid's axes in order, or the columns of rows.
        constants: name to the number that all entries share.
        seconds: what the call took.

    Formal guarantee: ``lower <= truth <= upper`` in every entry, converged or not, rounding included; ``upper`` is inf
    (1 for a delta) where nothing is known. ``estimate`` proves nothing, and is NaN where there is none.

    >>> names = {"lower": [2.0], "estimate": [2.1], "upper": [2.2], "converged": [True], "accountant": [Accountant.PRV]}
    >>> sweep = Sweep(
    ...     arrays={name: np.array(value) for name, value in names.items()},
    ...     quantity="epsilon", mode="certified", relation="add_or_remove", tolerance=1e-3, mechanisms=("Gaussian",),
    ...     layout="grid", axes={"steps": np.array([10.0])}, constants={"delta": 1e-5}, seconds=0.0,
    ... )
    >>> sweep.shape, sweep["upper"].tolist(), sweep.counts()["prv"]
    ((1,), [2.2], 1)
    """

    arrays: dict[str, np.ndarray]
    quantity: str
    mode: str
    relation: str
    tolerance: float
    mechanisms: tuple[str, ...]
    layout: str
    axes: dict[str, np.ndarray]
    constants: dict[str, float]
    seconds: float

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns the results of this name."""
        validation.check_one_of(name, "name", tuple(self.arrays))
        return self.arrays[name]

    @property
    def lower(self) -> np.ndarray:
        """Certified lower bounds."""
        return self.arrays["lower"]

    @property
    def estimate(self) -> np.ndarray:
        """Best guesses; they prove nothing."""
        return self.arrays["estimate"]

    @property
    def upper(self) -> np.ndarray:
        """Certified upper bounds: what to report."""
        return self.arrays["upper"]

    @property
    def converged(self) -> np.ndarray:
        """Whether an entry is as tight as was asked for."""
        return self.arrays["converged"]

    @property
    def accountant(self) -> np.ndarray:
        """Which accountant's an entry is, an :class:`~jaxacct.sweep.Accountant`."""
        return self.arrays["accountant"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes, or the number of rows."""
        return self.upper.shape

    def counts(self) -> dict[str, int]:
        """Returns how many entries there are, how many are flagged as not converged, and how many by accountant."""
        by = {entry.name.lower(): int(np.sum(self.accountant == entry)) for entry in Accountant}
        return {"entries": self.upper.size, "flagged": int(np.sum(~self.converged)), **by}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the results, whole or not at all; the suffix says how: .npz, .csv (a line an entry) or .json.

        Arrays in JSON are flat, the last axis moving fastest; infinite and NaN become the strings "inf" and "nan".
        """
        path = pathlib.Path(path)
        check_suffix(path)
        {".npz": export.write_npz, ".csv": export.write_csv, ".json": export.write_json}[path.suffix](self, path)

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame`` with a row for each entry; pandas must be installed."""
        return export.to_pandas(self)

    def to_xarray(self) -> Any:
        """Returns an ``xarray.Dataset`` over the axes; xarray must be installed."""
        return export.to_xarray(self)


def check_suffix(path: pathlib.Path) -> None:
    """Raises where the suffix names no format."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path = {path}: the suffix says the format: give one of {', '.join(SUFFIXES)}.")


def load(path: str | os.PathLike[str]) -> Sweep:
    """Returns a sweep that was saved as .npz, bit for bit as it was.

    Args:
        path: the file that :meth:`Sweep.save` wrote.

    Raises:
        ValueError: the file is no sweep's.

    >>> import tempfile
    >>> values = dict.fromkeys(("lower", "estimate", "upper"), np.ones(1)) | {"converged": np.ones(1, bool)}
    >>> saved = Sweep(values, "epsilon", "certified", "add_or_remove", 1e-3, ("Gaussian",), "grid", {}, {}, 0.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved.save(f"{folder}/sweep.npz")
    ...     load(f"{folder}/sweep.npz").upper.tolist()
    [1.0]
    """
    return Sweep(**export.read_npz(pathlib.Path(path)))
