"""What a sweep returns: named arrays over named axes, in memory or in a folder."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from jaxacct import validation
from jaxacct.sweep import export, query
from jaxacct.sweep.description import Description, record_of
from jaxacct.sweep.folder import Folder
from jaxacct.sweep.quantities import Accountant
from jaxacct.sweep.settings import MECHANISM
from jaxacct.sweep.store import Arrays, Columns, Memory, Store


@dataclass(frozen=True, eq=False)
class Sweep(Description):
    """Results of a sweep. Those of a sweep with ``out`` stay in its folder, and are read when they are asked for.

    Attributes:
        quantity: "epsilon", "delta" or "noise_multiplier".
        mode: "saddlepoint" or "certified".
        relation: neighbouring relation.
        tolerance: of the mesh, or of the calibration.
        arithmetic: as given.
        mechanisms: names of the mechanism classes.
        layout: "grid" or "rows".
        constants: name to the number that all entries share.
        columns: names of a grid's axes in order, or of the columns of rows.
        boxes: shape of the results, and of the chunks that they are cut into.
        digest: text that differs where any setting does.
        versions: platform, and the versions of jaxacct and JAX.
        grid: name to values (n,) of a grid's axes; classes by their numbers.
        store: where the results are.

    Formal guarantee: ``lower <= truth <= upper`` in every entry, converged or not, rounding included; ``upper`` is inf
    (1 for a delta) where nothing is known. ``estimate`` proves nothing, and is NaN where there is none.

    >>> from jaxacct.sweep import epsilon, grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=0.01, steps=10_000, delta=1e-5)
    >>> found = epsilon(settings, relation="remove")
    >>> found.shape, found["upper"].round(4).tolist(), found.counts()["saddlepoint"]
    ((2,), [6.1877, 2.1627], 2)
    """

    grid: Mapping[str, np.ndarray]
    store: Store

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns the results of this name."""
        validation.check_one_of(name, "name", tuple(self.results))
        return self.store.whole(name)

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The results by name.

        They are arrays of :attr:`shape`: "lower", "estimate", "upper" float64, as of :class:`~jaxacct.Bounds`;
        "converged" bool; "accountant" int8, an :class:`~jaxacct.sweep.Accountant`. A sweep for the least noise has
        "noise_multiplier" as well, and the bounds are of the epsilon reached with it. Of a folder each is read, whole,
        whenever it is asked for: 8 bytes an entry; :meth:`pieces` and what is made of it take no more than a chunk.
        """
        return Columns(self.store, tuple(self.results))

    @property
    def axes(self) -> Mapping[str, np.ndarray]:
        """Name to values (n,): a grid's axes in order, or the columns of rows; classes by their names."""
        return self.shown(self.grid if self.layout == "grid" else Columns(self.store, self.columns))

    @property
    def lower(self) -> np.ndarray:
        """Certified lower bounds."""
        return self["lower"]

    @property
    def estimate(self) -> np.ndarray:
        """Best guesses; they prove nothing."""
        return self["estimate"]

    @property
    def upper(self) -> np.ndarray:
        """Certified upper bounds: what to report."""
        return self["upper"]

    @property
    def converged(self) -> np.ndarray:
        """Whether an entry is as tight as was asked for."""
        return self["converged"]

    @property
    def accountant(self) -> np.ndarray:
        """Which accountant's an entry is, an :class:`~jaxacct.sweep.Accountant`."""
        return self["accountant"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes, or the number of rows."""
        return self.boxes.shape

    def counts(self) -> dict[str, int]:
        """Returns how many entries there are, how many are flagged as not converged, and how many by accountant."""
        names = [entry.name.lower() for entry in Accountant]
        counts = dict.fromkeys(["entries", "flagged", *names], 0)
        for i in self.store.held:
            converged, accountant = self.store.read("converged", i), self.store.read("accountant", i)
            counts["entries"] += len(converged)
            counts["flagged"] += int(np.sum(~converged))
            for name, entry in zip(names, Accountant, strict=True):
                counts[name] += int(np.sum(accountant == entry))
        return counts

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what there is of an entry: settings, those that all share, and results."""
        return tuple(dict.fromkeys((MECHANISM, *self.columns, *self.constants, *self.results)))

    def column(self, name: str, i: int) -> np.ndarray:
        """Returns a setting or result of the entries of chunk ``i``: classes and accountants by their numbers."""
        validation.check_one_of(name, "name", self.names)
        if name in self.stored:
            return self.store.read(name, i)
        extent = self.boxes.extent(i)
        if name not in self.columns:
            return np.full(math.prod(extent), self.constants.get(name, 0))
        axis = self.columns.index(name)
        start = self.boxes.place(i)[axis] * self.boxes.box[axis]
        along = self.grid[name][start : start + extent[axis]]
        return np.broadcast_to(along.reshape(-1, *[1] * (len(extent) - axis - 1)), extent).ravel()

    def shown(self, columns: Mapping[str, np.ndarray]) -> Arrays:
        """Returns columns with classes and accountants by their names."""
        accountants = {int(entry): entry.name.lower() for entry in Accountant}
        texts = {MECHANISM: dict(enumerate(self.mechanisms)), "accountant": accountants}
        found = dict(columns)
        for name in texts.keys() & columns.keys():
            codes = columns[name].astype(int)
            found[name] = np.array([*texts[name].values()])[np.searchsorted([*texts[name]], codes)]
        return found

    def pieces(self) -> Iterator[Arrays]:
        """Yields the entries in C order, a chunk at a time: settings and results by column.

        ``map(pandas.DataFrame, found.pieces())`` are frames that follow each other.
        """
        for i in self.store.held:
            yield self.shown({name: self.column(name, i) for name in self.names})

    def best(
        self,
        at_most: float,
        *,
        least: str | None = None,
        most: str | None = None,
        count: int = 10,
        **ranges: tuple[float | None, float | None],
    ) -> Arrays:
        """Returns the best entries whose ``upper`` is at most a budget, by column, the best first.

        Args:
            at_most: the budget: what ``upper`` may be.
            least: the setting or result of which less is better; by default the noise, where it varies, else "upper".
                Between equals those come first that use more of the budget.
            most: the one of which more is better, in its place.
            count: how many at most.
            ranges: name of a setting or result to the least and the largest that it may be; None: no limit.

        Works its way through the chunks: in memory are one of them and what is returned. Raises ValueError for a name
        that there is not.

        >>> from jaxacct.sweep import epsilon, grid
        >>> settings = grid(noise_multiplier=[1.0, 2.0, 3.0], sampling_rate=0.01, steps=10_000, delta=1e-5)
        >>> found = epsilon(settings, relation="remove")
        >>> found.best(3.5, steps=(10_000, None), count=2)["noise_multiplier"].tolist()
        [2.0, 3.0]
        """
        return query.best(self, at_most, least, most, count, ranges)

    def downsampled(self, most: int = 256, **at: float | str) -> Sweep:
        """Returns a part of a grid in memory: at most so many values of each axis, both ends among them.

        Args:
            most: values of an axis.
            at: name of an axis to the value that it is fixed at, for pictures of fewer dimensions; it becomes one of
                the constants.

        Every number is one of the sweep's, at its own settings: nothing is averaged, so bounds remain bounds. Only the
        chunks that hold some of it are read.

        Raises:
            ValueError: rows, which have no axes; an axis that there is not, or a value that it does not have.

        >>> from jaxacct.sweep import epsilon, grid
        >>> settings = grid(noise_multiplier=[1.0, 2.0, 3.0], sampling_rate=0.01, steps=[10_000], delta=1e-5)
        >>> found = epsilon(settings, relation="remove")
        >>> found.downsampled(2, steps=10_000).axes["noise_multiplier"].tolist()
        [1.0, 3.0]
        """
        description, grid, arrays = query.downsampled(self, most, at)
        return Sweep(**_fields(description), grid=grid, store=Memory(description.boxes, arrays, full=True))

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as plain Python values, as a JSON file has it."""
        about = ("quantity", "mode", "relation", "tolerance", "arithmetic", "mechanisms", "layout", "constants")
        results = self.shown({name: values.ravel() for name, values in self.arrays.items()})
        return {name: getattr(self, name) for name in about} | {
            "axes": {name: values.tolist() for name, values in self.axes.items()},
            "shape": list(self.shape),
            "counts": self.counts(),
            "results": {name: values.tolist() for name, values in results.items()},
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the results: a folder as of ``out``, or what the suffix says: .csv, .parquet (a line an entry), .json.

        Arrays in JSON are flat, the last axis moving fastest; infinite and NaN become the strings "inf" and "nan".
        Files are whole or not there, and but for JSON made chunk by chunk. ``overwrite`` is about folders.
        """
        path = pathlib.Path(path)
        if path.suffix:
            export.write(self, path)
            return
        if isinstance(self.store, Folder) and path.resolve() == self.store.path.resolve():
            raise ValueError(f"path = {path} is where these results are read from: name another folder.")
        folder = Folder.begun(path, self.described(), self.grid, overwrite=overwrite)
        for i in self.store.held:
            folder.write(i, {name: self.store.read(name, i) for name in folder.kinds})

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame`` with a row for each entry, of :meth:`pieces`; pandas must be installed."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                'to_pandas needs pandas, which is missing: pip install "jaxacct[sweep]".'
            ) from None
        return pandas.concat(map(pandas.DataFrame, self.pieces()), ignore_index=True)

    def to_xarray(self, **options: Any) -> Any:
        """Returns an ``xarray.Dataset`` over the axes; xarray, and zarr for a folder, must be installed.

        A folder is opened, and read where it is indexed; ``options`` are those of ``xarray.open_zarr``, as
        ``chunks={}`` for arrays of dask. Arrays draw themselves: ``sweep.to_xarray()["upper"].plot()`` is a heat map,
        or a curve over a single axis.
        """
        try:
            import xarray  # type: ignore[import-not-found]

            if isinstance(self.store, Folder):
                import zarr  # type: ignore[import-not-found] # noqa: F401
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f'to_xarray needs {error.name}, which is missing: pip install "jaxacct[sweep]".'
            ) from None
        if isinstance(self.store, Folder):
            data = xarray.open_zarr(self.store.path, **{"chunks": None} | options)
            data = data.set_coords(self.columns)
        else:
            results = {name: (self.dimensions, values) for name, values in self.arrays.items()}
            over = {name: (name if self.layout == "grid" else "row", values) for name, values in self.axes.items()}
            data = xarray.Dataset(results, over, record_of(self))
        if MECHANISM in self.grid:
            data = data.assign_coords({MECHANISM: self.axes[MECHANISM]})
        return data

    def described(self) -> Description:
        """Returns what the sweep is of, apart from its results."""
        return Description(**_fields(self))


def _fields(description: Description) -> dict[str, Any]:
    return {field.name: getattr(description, field.name) for field in fields(Description)}


def load(path: str | os.PathLike[str]) -> Sweep:
    """Returns the sweep in a folder that ``out``, :meth:`Sweep.save` or ``jaxacct sweep --out`` wrote.

    Args:
        path: the folder; of a shard, the results are those that are in it.

    Its results stay there, and are read when they are asked for.

    Raises:
        ValueError: the folder is no sweep's, is damaged, or the sweep is not finished.
        FileNotFoundError: there is none.

    >>> import tempfile
    >>> from jaxacct.sweep import epsilon, grid
    >>> settings = grid(noise_multiplier=[1.0, 2.0], sampling_rate=0.01, steps=10_000, delta=1e-5)
    >>> found = epsilon(settings, relation="remove")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found.save(f"{folder}/sweep")
    ...     load(f"{folder}/sweep").upper.round(4).tolist()
    [6.1877, 2.1627]
    """
    folder = Folder.opened(pathlib.Path(path))
    if missing := folder.missing():
        raise ValueError(
            f"path = {path}: {len(missing)} of {len(folder.held)} chunks are missing: give resume (--resume) to the "
            "sweep that made it, to have them computed."
        )
    return Sweep(**_fields(folder.description), grid=folder.axes(), store=folder)
