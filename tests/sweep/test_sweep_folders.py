"""Sweeps on disk: interrupted, in shards, merged, asked for the best, exported: the same numbers."""

import csv
import gc
import itertools
import json
import math
import shutil
import sys
import tracemalloc

import numpy as np
import pytest
from helpers.small_sweep import QUIET, SETTINGS, same
from helpers.thorough import draws

import jaxacct as ja
from jaxacct import json_files
from jaxacct.sweep import compute, grid, merge, rows
from jaxacct.sweep.description import Boxes
from jaxacct.sweep.result import Folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return ja.sweep.epsilon(SETTINGS, out=tmp_path_factory.mktemp("sweep") / "kept", chunk=5, **QUIET)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for i in range(4):
        ja.sweep.epsilon(SETTINGS, out=folder / f"{i}", chunk=5, shard=(i, 4), **QUIET)
    return [folder / f"{i}" for i in range(4)]


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_boxes_are_the_entries_in_their_order():
    random = np.random.default_rng(0)
    for _ in range(200):
        shape = tuple(random.integers(1, 7, size=random.integers(0, 4)).tolist())
        boxes, most = Boxes.of(shape, int(most := random.integers(1, 40))), most
        numbers = np.arange(math.prod(shape)).reshape(shape)
        joined = []
        for i in range(len(boxes)):
            corner = zip(boxes.box, boxes.place(i), strict=True)
            box = numbers[tuple(slice(width * at, width * (at + 1)) for width, at in corner)]
            assert box.shape == boxes.extent(i)
            assert box.size <= most
            joined += box.ravel().tolist()
            part = boxes.part(i)
            assert joined[part.start :] == list(range(part.start, part.stop))
        assert joined == list(range(numbers.size))
        count = int(random.integers(1, len(boxes) + 1))
        shares = [boxes.share(i, count) for i in range(count)]
        assert sorted(itertools.chain(*shares)) == list(range(len(boxes)))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shards_are_about_alike():
    for shape, count in (((100, 100, 100), 64), ((10**6,), 100), ((1000, 1000, 1000), 512), ((100, 100, 100), 7)):
        boxes = Boxes.of(shape, shards=count)
        sizes = [sum(math.prod(boxes.extent(i)) for i in boxes.share(k, count)) for k in (0, count // 2, count - 1)]
        assert max(sizes) < 1.15 * math.prod(shape) / count


@pytest.mark.exhaustive
def test_a_folder_holds_what_memory_does(found, stored):
    assert same(found, stored)
    assert stored.counts() == found.counts()
    assert json_files.dumps(stored.as_dict()) == json_files.dumps(found.as_dict())
    assert same(found, ja.sweep.load(stored.store.path))


def interrupted_after(count, monkeypatch):
    done, original = [], compute.program_of

    def program(*arguments):
        if len(done) >= count:
            raise KeyboardInterrupt
        done.append(1)
        return original(*arguments)

    monkeypatch.setattr(compute, "program_of", program)
    return done


@pytest.mark.exhaustive
def test_an_interrupted_sweep_goes_on_where_it_stopped(found, stored, tmp_path, monkeypatch):
    folder = tmp_path / "kept"
    interrupted_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        ja.sweep.epsilon(SETTINGS, out=folder, chunk=5, **QUIET)
    chunks = sorted(path.name for path in (folder / "upper").glob("c.*"))
    assert chunks == ["c.0.0.0", "c.0.1.0"]
    with pytest.raises(ValueError, match=r"8 of 8|6 of 8 chunks are missing.*--resume"):
        ja.sweep.load(folder)
    (folder / "lower" / chunks[1]).write_bytes(b"half a fi")  # done again
    monkeypatch.undo()
    done = interrupted_after(7, monkeypatch)
    # Chunks have the size that the first run gave them.
    resumed = ja.sweep.epsilon(SETTINGS, out=folder, resume=True, chunk=1000, **QUIET)
    assert len(done) == 7
    assert same(found, resumed)
    assert files(folder) == files(stored.store.path)
    done.clear()
    assert same(found, ja.sweep.epsilon(SETTINGS, out=folder, resume=True, **QUIET))
    assert not done


def test_another_sweeps_folder_is_refused(stored, tmp_path):
    folder = shutil.copytree(stored.store.path, tmp_path / "kept")
    with pytest.raises(ValueError, match=r"8 of 8 chunks.*--resume.*--overwrite"):
        ja.sweep.epsilon(SETTINGS, out=folder, **QUIET)
    with pytest.raises(ValueError, match=r"another sweep \(mode 'saddlepoint' there, 'certified' here\)"):
        ja.sweep.epsilon(SETTINGS, out=folder, resume=True, **QUIET | {"mode": "certified"})
    axes = {name: value * 1.0 for name, value in SETTINGS.values.items()}
    with pytest.raises(ValueError, match="constants"):
        ja.sweep.epsilon(grid(**axes | {"delta": 1e-6}), out=folder, resume=True, **QUIET)
    with pytest.raises(ValueError, match="other values on an axis"):
        ja.sweep.epsilon(grid(**axes | {"steps": [100, 10_001]}), out=folder, resume=True, **QUIET)
    with pytest.raises(ValueError, match=r"shape .*\(4, 3, 2\) there"):
        ja.sweep.epsilon(grid(**axes | {"steps": [100, 10_000, 20_000]}), out=folder, resume=True, **QUIET)
    with pytest.raises(ValueError, match="shard none there, 0/2 here"):
        ja.sweep.epsilon(SETTINGS, out=folder, resume=True, shard=(0, 2), **QUIET)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="something else"):
            ja.sweep.epsilon(SETTINGS, out=tmp_path / "mine", overwrite=overwrite, **QUIET)
    one = grid(**axes | {"noise_multiplier": 1.0})
    assert ja.sweep.epsilon(one, out=folder, overwrite=True, **QUIET).shape == (3, 2)
    assert ja.sweep.load(folder).shape == (3, 2)
    assert not (folder / "noise_multiplier").exists()


@pytest.mark.exhaustive
def test_shards_make_the_whole_sweep_to_the_last_bit_in_any_order(found, stored, shards, tmp_path, monkeypatch):
    assert sorted(itertools.chain(*(Folder.open(path).held for path in shards))) == list(range(8))
    assert same(found, merge(tmp_path / "whole", [shards[i] for i in (3, 0, 2, 1)]))
    assert files(tmp_path / "whole") == files(stored.store.path)
    # Across disks, and after a merge that was interrupted.
    monkeypatch.setattr("os.link", lambda *paths: (_ for _ in ()).throw(OSError("another device")))
    (tmp_path / "whole" / "upper" / "c.0.0.0").unlink()
    assert same(found, merge(tmp_path / "whole", shards))


def test_a_shard_is_a_sweep_of_what_it_holds(shards):
    part = ja.sweep.load(shards[1])
    assert part.counts()["entries"] == sum(len(piece["upper"]) for piece in part.pieces()) == 6
    with pytest.raises(ValueError, match="holds shard 1/4 of a sweep: merge"):
        _ = part.upper


def test_only_all_shards_of_one_sweep_are_merged(stored, shards, tmp_path):
    def other(i, **change):
        path = shutil.copytree(shards[i], tmp_path / "-".join(change))
        record = json.loads((path / "zarr.json").read_text())
        record["attributes"] |= change
        (path / "zarr.json").write_text(json.dumps(record))
        return path

    damaged = shutil.copytree(shards[2], tmp_path / "damaged")
    next((damaged / "lower").glob("c.*")).write_bytes(b"half a fi")
    cuts = {
        r"1/4, 3/4 missing": [shards[0], shards[2]],
        r"are both shard 1/4": [*shards, shards[1]],
        r"are none": [],
        r"is a whole sweep": [*shards, stored.store.path],
        r"is one of 3, and .*0 is not": [*shards[:3], other(3, shard=[2, 3])],
        r"another sweep than .*\(mode 'certified' there": [*shards[:3], other(3, mode="certified")],
        r"damaged: 1 of its 2 chunks.*--resume": [shards[0], shards[1], damaged, shards[3]],
    }
    for words, parts in cuts.items():
        with pytest.raises(ValueError, match=words):
            merge(tmp_path / "whole", parts)
    assert not (tmp_path / "whole").exists()
    with pytest.raises(ValueError, match="another sweep"):  # what is there is not written over
        merge(shards[0], shards)


@pytest.mark.parametrize("shard", [(0, 0), (24, 24), (-1, 2), (0, 25), (0.5, 2), (0, True)])
def test_what_is_no_shard_is_refused(shard, tmp_path):
    with pytest.raises((ValueError, TypeError), match="shard"):
        ja.sweep.epsilon(SETTINGS, out=tmp_path / "kept", shard=shard, **QUIET)
    assert not (tmp_path / "kept").exists()
    with pytest.raises(ValueError, match="give out"):
        ja.sweep.epsilon(SETTINGS, shard=(0, 2), **QUIET)


def test_rows_and_classes_keep_their_places(computed, tmp_path):
    columns = {"noise_multiplier": np.arange(6) + 1.0, "sampling_rate": 0.1, "steps": 1, "delta": 1e-5}
    settings = rows([ja.PoissonSubsampledGaussian, ja.GaussianWithoutReplacement] * 3, **columns)
    options = {"chunk": 2, "relation": "replace", "show_progress": False}
    for i in range(2):
        ja.sweep.epsilon(settings, out=tmp_path / f"{i}", shard=(i, 2), **options)
    whole = merge(tmp_path / "whole", [tmp_path / "0", tmp_path / "1"])
    for sweep in (whole, ja.sweep.epsilon(settings, **options)):
        assert sweep.upper.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert sweep.axes["noise_multiplier"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        assert sweep.axes["mechanism"].tolist() == ["PoissonSubsampledGaussian", "GaussianWithoutReplacement"] * 3
        assert [piece["mechanism"].tolist() for piece in sweep.pieces()] == [sweep.axes["mechanism"][:2].tolist()] * 3
    with pytest.raises(ValueError, match="layout = 'rows'"):
        whole.downsampled()


def test_the_best_are_those_that_a_look_at_all_finds(stored, found):
    table = {name: np.concatenate([piece[name] for piece in found.pieces()]) for name in found.names}
    for sweep in (stored, found):
        for by, sign in (("noise_multiplier", 1), ("steps", -1), ("sampling_rate", -1), ("upper", 1)):
            best = sweep.best(2.0, **{"least" if sign > 0 else "most": by}, count=3, steps=(1000, None))
            fits = np.flatnonzero((table["upper"] <= 2.0) & (table["steps"] >= 1000))
            want = fits[np.lexsort((-table["upper"][fits], sign * table[by][fits]))][:3]
            assert {name: values.tolist() for name, values in best.items()} == {
                name: values[want].tolist() for name, values in table.items()
            }
    assert stored.best(2.0)["noise_multiplier"].tolist() == sorted(stored.best(2.0)["noise_multiplier"])
    assert stored.best(1e-9) == {}
    for wrong in ({"least": "epoch"}, {"epoch": (1, 2)}, {"least": "accountant"}, {"least": "steps", "most": "steps"}):
        with pytest.raises(ValueError, match=r"epoch|accountant|steps"):
            stored.best(2.0, **wrong)
    with pytest.raises(ValueError, match="count = 0"):
        stored.best(2.0, count=0)


def test_what_is_out_of_range_by_its_settings_is_not_read(stored, monkeypatch):
    read, original = [], Folder.read
    monkeypatch.setattr(Folder, "read", lambda self, name, i: read.append(i) or original(self, name, i))
    stored.best(2.0, noise_multiplier=(5, None), sampling_rate=(None, 0.05))
    assert set(read) == {6}
    read.clear()
    stored.downsampled(2, steps=100)
    assert set(read) == {0, 1, 6, 7}


def test_a_part_of_the_grid_is_a_grid_of_the_same_numbers(stored, found, tmp_path):
    for sweep in (stored, found):
        part = sweep.downsampled(2, steps=100)
        assert part.shape == (2, 2)
        assert part.constants == {"delta": 1e-5, "steps": 100.0}
        np.testing.assert_array_equal(part.upper, found.upper[::3, ::2, 0])
        np.testing.assert_array_equal(part.axes["sampling_rate"], [0.001, 0.1])
        part.save(tmp_path / "part", overwrite=True)
        assert same(part, ja.sweep.load(tmp_path / "part"))
    with pytest.raises(ValueError, match="steps = 101 is no value of this axis: the nearest is"):
        stored.downsampled(2, steps=101)
    with pytest.raises(ValueError, match="axis = 'delta'"):
        stored.downsampled(2, delta=1e-5)


def test_files_say_the_same(found, stored, tmp_path):
    for name in ("found.csv", "found.json"):
        stored.save(tmp_path / name)
    table = list(csv.DictReader((tmp_path / "found.csv").open()))
    assert len(table) == 24
    assert [float(row["upper"]) for row in table] == found.upper.ravel().tolist()
    assert [row["converged"] == "True" for row in table] == found.converged.ravel().tolist()
    assert table[-1]["noise_multiplier"] == "10.0"
    assert table[-1]["accountant"] == "saddlepoint"
    record = json.loads((tmp_path / "found.json").read_text())
    assert record["shape"] == [4, 3, 2]
    assert [float(value) for value in record["results"]["upper"]] == found.upper.ravel().tolist()
    assert record["results"]["upper"][0] == "inf"
    with pytest.raises(ValueError, match="suffix"):
        found.save(tmp_path / "found.xlsx")
    with pytest.raises(ValueError, match="read from"):
        stored.save(stored.store.path, overwrite=True)


def test_parquet(stored, found, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    stored.save(tmp_path / "found.parquet")
    table = parquet.read_table(tmp_path / "found.parquet")
    assert table["upper"].to_pylist() == found.upper.ravel().tolist()
    assert table["accountant"].to_pylist()[-1] == "saddlepoint"


def test_pandas(found, stored):
    pandas = pytest.importorskip("pandas")
    for sweep in (found, stored):
        frame = sweep.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert frame["upper"].tolist() == found.upper.ravel().tolist()


def test_xarray(found, stored, monkeypatch):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr", minversion="3")
    for sweep in (found, stored):
        data = sweep.to_xarray()
        assert isinstance(data, xarray.Dataset)
        assert float(data["upper"].sel(noise_multiplier=1.0, sampling_rate=0.01, steps=100)) == found.upper[2, 1, 0]
        assert data.attrs["quantity"] == "epsilon"


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("pandas", lambda sweep, folder: sweep.to_pandas()),
        ("xarray", lambda sweep, folder: sweep.to_xarray()),
        ("zarr", lambda sweep, folder: sweep.to_xarray()),
        ("pyarrow", lambda sweep, folder: sweep.save(folder / "found.parquet")),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_remedy(package, use, stored, tmp_path, monkeypatch):
    pytest.importorskip("xarray")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf'needs {package}, .* pip install "jaxacct\[sweep\]"'):
        use(stored, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_settings(computed, tmp_path):
    def peak(count):
        gc.collect()
        tracemalloc.start()
        try:
            axes = {"noise_multiplier": np.linspace(1, 2, count), "sampling_rate": np.linspace(0.1, 0.2, 250)}
            found = ja.sweep.epsilon(grid(**axes, steps=10, delta=1e-5), out=tmp_path / f"{count}", chunk=2500, **QUIET)
            assert found.counts()["entries"] == 250 * count
            assert len(found.best(1e9)["upper"]) == 10
            assert found.downsampled(16).shape == (16, 16)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = draws(20, 40), draws(120, 400)
    peak(16)  # imports what there is to import
    assert 33 * 250 * (many - few) > 3 * 2**18  # bytes of the results that the larger one has more
    assert peak(many) < peak(few) + 2**18
