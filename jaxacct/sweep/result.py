"""What a sweep returns: named arrays over named axes; and the results of many shards put together."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxacct import strict_json, validation
from jaxacct.sweep import export
from jaxacct.sweep.quantities import Accountant
from jaxacct.sweep.settings import Settings
from jaxacct.whole_file import write_whole

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

    def table(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns settings and results of the entries with these numbers, in C order, by column."""
        in_grid = self.layout == "grid" and self.axes
        places = np.unravel_index(numbers, self.shape) if in_grid else [numbers] * len(self.axes)
        settings = {name: values[at] for (name, values), at in zip(self.axes.items(), places, strict=True)}
        constants = {name: np.full(len(numbers), value) for name, value in self.constants.items()}
        if len(self.mechanisms) == 1 and "mechanism" not in self.axes:
            settings = {"mechanism": np.full(len(numbers), self.mechanisms[0])} | settings
        return settings | constants | {name: values[numbers] for name, values in self._flat().items()}

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as plain Python values, as a JSON file has it."""
        return self._about() | {
            "axes": {name: values.tolist() for name, values in self.axes.items()},
            "shape": list(self.shape),
            "counts": self.counts(),
            "results": {name: values.tolist() for name, values in self._flat().items()},
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the results, whole or not at all; the suffix says how: .npz, .csv (a line an entry) or .json.

        Arrays in JSON are flat, the last axis moving fastest; infinite and NaN become the strings "inf" and "nan".
        """
        path = pathlib.Path(path)
        check_suffix(path)
        if path.suffix == ".npz":
            export.write_npz(path, self._about(), self.axes, self.arrays)
        elif path.suffix == ".csv":
            export.write_csv(path, self.table, self.upper.size)
        else:
            write_whole(path, (strict_json.dumps(self.as_dict()) + "\n").encode())

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame`` with a row for each entry; pandas must be installed."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise ModuleNotFoundError("to_pandas needs pandas, which is missing: pip install pandas.") from None
        return pandas.DataFrame(self.table(np.arange(self.upper.size)))

    def to_xarray(self) -> Any:
        """Returns an ``xarray.Dataset`` over the axes; xarray must be installed.

        Its arrays draw themselves: ``sweep.to_xarray()["upper"].plot()`` is a heat map, or a curve over a single axis.
        """
        try:
            import xarray  # type: ignore[import-not-found]
        except ModuleNotFoundError:
            raise ModuleNotFoundError("to_xarray needs xarray, which is missing: pip install xarray.") from None
        names = list(self.axes) if self.layout == "grid" else ["row"]
        coordinates = {name: (name if self.layout == "grid" else "row", values) for name, values in self.axes.items()}
        data = {name: (names, values) for name, values in self.arrays.items()}
        head = {name: value for name, value in self._about().items() if name != "constants"}
        return xarray.Dataset(data, coords=coordinates, attrs=head | self.constants)

    def _about(self) -> dict[str, Any]:
        """Returns what is not an array."""
        texts = ("quantity", "mode", "relation", "tolerance", "mechanisms", "layout", "constants", "seconds")
        return {name: getattr(self, name) for name in texts}

    def _flat(self) -> dict[str, np.ndarray]:
        """Returns the results in C order, with the accountants by their names."""
        flat = {name: values.ravel() for name, values in self.arrays.items()}
        if "accountant" in flat:
            names = np.array([entry.name.lower() for entry in sorted(Accountant)])
            flat["accountant"] = names[np.searchsorted(sorted(Accountant), flat["accountant"])]
        return flat


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


def merge(settings: Settings, shards: Iterable[Sweep]) -> Sweep:
    """Returns the sweep over ``settings`` that its shards make together, to the last bit what one sweep would give.

    Args:
        settings: what was cut into shards.
        shards: the results of ``settings.shard(i, n)`` for each i below n, in any order.

    Returns:
        :class:`Sweep` over all settings; its ``seconds`` are those of the shards together.

    Raises:
        ValueError: shards that are missing, twice there, of other settings, or computed in another way.

    >>> from jaxacct.sweep import epsilon, grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=0.01, steps=10_000, delta=1e-5)
    >>> parts = [epsilon(settings.shard(i, 2), relation="remove") for i in (1, 0)]
    >>> merge(settings, parts).upper.round(4).tolist()
    [6.1877, 2.1627]
    """
    parts = list(shards)
    count = len(parts)
    if count == 0:
        raise ValueError("shards are none: give the results of all shards.")
    numbers = {_identity(settings.shard(i, count)): i for i in range(count)}
    found: dict[int, Sweep] = {}
    for place, part in enumerate(parts):
        number = numbers.get(_identity(part))
        if number is None:
            raise ValueError(f"shards[{place}] is none of {count} shards of these settings: give all of one cut, once.")
        found[number] = part
    if missing := sorted(set(range(count)) - set(found)):
        raise ValueError(
            f"shards {missing} of {count} are missing, and others are given twice: give each of them once."
        )
    first = found[0]
    whole = {name: np.empty(settings.size, values.dtype) for name, values in first.arrays.items()}
    for number, part in found.items():
        for name in ("quantity", "mode", "relation", "tolerance", "mechanisms"):
            if getattr(part, name) != getattr(first, name):
                raise ValueError(
                    f"shards have several values of {name}: {getattr(first, name)}, {getattr(part, name)}."
                )
        for name, values in whole.items():
            values[number::count] = part[name]
    arrays = {name: values.reshape(settings.shape) for name, values in whole.items()}
    seconds = sum(part.seconds for part in parts)
    return replace(first, arrays=arrays, layout=settings.layout, axes=settings.axes, seconds=seconds)


def _identity(part: Settings | Sweep) -> tuple[Any, ...]:
    """Returns what is equal for the settings of a shard and for its results."""
    axes = ((name, values.dtype.kind, values.tobytes()) for name, values in part.axes.items())
    return tuple(axes), tuple(sorted(part.constants.items()))
