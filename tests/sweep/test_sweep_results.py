"""What a sweep returns: honest, flagged, the same however it was cut up, and the same from a file."""

import csv
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.sweep import Accountant, checkpoint, compute, grid, rows
from jaxacct.sweep.quantities import Quantity

SETTINGS = grid(
    noise_multiplier=[0.0, 0.8, 1.0, 10.0], sampling_rate=[0.001, 0.01, 0.1], steps=[100, 10_000], delta=1e-5
)
QUIET = {"mode": "saddlepoint", "relation": "remove", "show_progress": False}


@pytest.fixture(scope="module")
def found():
    return ja.sweep.epsilon(SETTINGS, **QUIET)


def same(one, other):
    return all(values.tobytes() == other.arrays[name].tobytes() for name, values in one.arrays.items())


def test_entries_are_where_their_axes_say(found):
    assert found.shape == (4, 3, 2)
    for i, j, k in [(1, 1, 1), (2, 1, 1), (3, 2, 0)]:
        mechanism = ja.PoissonSubsampledGaussian(found.axes["noise_multiplier"][i], found.axes["sampling_rate"][j])
        direct = ja.saddlepoint.epsilon(mechanism, found.axes["steps"][k], 1e-5, relation="remove")
        assert found.converged[i, j, k]
        assert found.lower[i, j, k] <= direct.upper
        assert direct.lower <= found.upper[i, j, k]
        assert found.estimate[i, j, k] == pytest.approx(direct.estimate, rel=1e-9)


def test_what_is_not_known_is_flagged_on_the_safe_side(found):
    flagged = ~found.converged
    assert np.all(np.isinf(found.upper[0]))  # no noise
    assert np.all(flagged[0])
    assert flagged[1, 0, 0]  # few steps of a small sampling rate
    assert np.isinf(found.upper[1, 0, 0])
    assert np.isnan(found.estimate[1, 0, 0])
    assert found.accountant[1, 0, 0] == Accountant.NONE
    assert not np.any(np.isnan(found.upper))
    assert not np.any(np.isnan(found.lower))
    assert np.all(found.lower <= found.upper)
    assert found.counts()["flagged"] == np.sum(flagged)


@pytest.mark.parametrize("chunk", [7, 24])
def test_chunks_change_no_bit(found, chunk):
    assert same(found, ja.sweep.epsilon(SETTINGS, chunk=chunk, **QUIET))


def test_one_setting_is_a_grid_without_axes(found, tmp_path):
    one = ja.sweep.epsilon(grid(noise_multiplier=1.0, sampling_rate=0.01, steps=100, delta=1e-5), **QUIET)
    assert one.shape == ()
    assert one.upper == found.upper[2, 1, 0]
    one.save(tmp_path / "one.csv")
    one.save(tmp_path / "one.npz")
    assert (tmp_path / "one.csv").read_text().count("\n") == 2
    assert ja.sweep.load(tmp_path / "one.npz").upper.shape == ()


def test_a_row_is_what_the_same_entry_of_a_grid_is(found):
    columns = SETTINGS.columns(np.arange(SETTINGS.size)[::-1])
    reversed_rows = ja.sweep.epsilon(rows(**columns), **QUIET)
    for name, values in found.arrays.items():
        assert values.ravel()[::-1].tobytes() == reversed_rows[name].tobytes()


def fake_mesh(monkeypatch, answer):
    """Puts ``answer`` in the mesh's place: what is tested here is what becomes of its answers."""
    calls = []

    def by_mesh(mechanism, steps, question, relation, tolerance):
        calls.append((mechanism.noise_multiplier, mechanism.sampling_rate, steps, question.delta, relation, tolerance))
        return answer()

    monkeypatch.setattr(ja.prv.accountant, "answer", by_mesh)
    return calls


def test_the_mesh_is_asked_for_what_is_open_and_for_nothing_else(found, monkeypatch):
    calls = fake_mesh(monkeypatch, lambda: ja.Bounds(np.float64(1.0), np.float64(1.5), np.float64(2.0), True))
    certified = ja.sweep.epsilon(SETTINGS, **QUIET | {"mode": "certified"})
    assert len(calls) == found.counts()["flagged"]
    assert (0.8, 0.001, 100.0, 1e-5, "remove", 1e-3) in calls
    assert np.all(certified.converged)
    by_mesh = ~found.converged
    assert np.all(certified.accountant[by_mesh] == Accountant.PRV)
    assert np.all(certified.upper[by_mesh] == 2.0)
    for name, values in found.arrays.items():
        np.testing.assert_array_equal(values[found.converged], certified[name][found.converged])


def test_one_failure_flags_one_entry_and_ends_nothing(found, monkeypatch):
    def broken():
        raise RuntimeError("out of memory")

    fake_mesh(monkeypatch, broken)
    certified = ja.sweep.epsilon(SETTINGS, **QUIET | {"mode": "certified"})
    assert np.all(certified.accountant[~found.converged] == Accountant.FAILED)
    assert certified.upper.tobytes() == found.upper.tobytes()
    assert certified.counts()["failed"] == found.counts()["flagged"]


def test_an_interrupted_sweep_goes_on_where_it_stopped(found, tmp_path, monkeypatch):
    folder, done = tmp_path / "kept", []
    original = compute.program_of

    def until(count):
        def program(*arguments):
            if len(done) >= count:
                raise KeyboardInterrupt
            done.append(1)
            return original(*arguments)

        monkeypatch.setattr(compute, "program_of", program)

    until(2)
    with pytest.raises(KeyboardInterrupt):
        ja.sweep.epsilon(SETTINGS, checkpoint=folder, chunk=5, **QUIET)
    assert sorted(path.name for path in folder.glob("chunk-*")) == ["chunk-000000.npz", "chunk-000001.npz"]
    (folder / "chunk-000001.npz").write_bytes(b"half a fi")  # done again
    done.clear()
    until(4)
    # Chunks have the size that the first run gave them.
    resumed = ja.sweep.epsilon(SETTINGS, checkpoint=folder, resume=True, chunk=1000, **QUIET)
    assert len(done) == 4
    assert same(found, resumed)
    done.clear()
    assert same(found, ja.sweep.epsilon(SETTINGS, checkpoint=folder, resume=True, **QUIET))
    assert not done


def test_another_sweeps_checkpoint_is_refused(found, tmp_path):
    folder = tmp_path / "kept"
    ja.sweep.epsilon(SETTINGS, checkpoint=folder, **QUIET)
    with pytest.raises(ValueError, match=r"1 of 1 chunks.*--resume"):
        ja.sweep.epsilon(SETTINGS, checkpoint=folder, **QUIET)
    with pytest.raises(ValueError, match=r"another sweep \(mode 'saddlepoint' there, 'certified' here\)"):
        ja.sweep.epsilon(SETTINGS, checkpoint=folder, resume=True, **QUIET | {"mode": "certified"})
    other = grid(**{name: value * 1.0 for name, value in SETTINGS.values.items()} | {"delta": 1e-6})
    with pytest.raises(ValueError, match="other values on an axis"):
        ja.sweep.epsilon(other, checkpoint=folder, resume=True, **QUIET)
    (folder / checkpoint.DESCRIPTION).write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        ja.sweep.epsilon(SETTINGS, checkpoint=folder, resume=True, **QUIET)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="something else"):
        ja.sweep.epsilon(SETTINGS, checkpoint=tmp_path / "mine", **QUIET)


@pytest.fixture(scope="module")
def shards():
    return [ja.sweep.epsilon(SETTINGS.shard(i, 5), **QUIET) for i in range(5)]


def test_shards_make_the_whole_sweep_to_the_last_bit_in_any_order_and_from_files(found, shards, tmp_path):
    assert [part.upper.size for part in shards] == [5, 5, 5, 5, 4]
    for i, part in enumerate(shards):
        part.save(tmp_path / f"{i}.npz")
    whole = ja.sweep.merge(SETTINGS, [ja.sweep.load(tmp_path / f"{i}.npz") for i in (3, 0, 4, 2, 1)])
    assert same(found, whole)
    assert (whole.shape, whole.layout, whole.constants) == (found.shape, found.layout, found.constants)
    for name, values in found.axes.items():
        np.testing.assert_array_equal(whole.axes[name], values, strict=True)
    assert whole.seconds == sum(part.seconds for part in shards)


def test_only_all_shards_of_one_sweep_are_merged(shards, found):
    cuts = {
        "are missing, and others are given twice": [*shards[:4], shards[3]],
        "is none of 4 shards": shards[:4],
        "are none": [],
        "is none of 1 shards": [found],
        "several values of mode": [*shards[:4], dataclasses.replace(shards[4], mode="certified")],
        "is none of 5 shards": [*shards[:4], dataclasses.replace(shards[4], constants={"delta": 1e-6})],
        "count = 25 is out of range": shards * 5,
    }
    for words, parts in cuts.items():
        with pytest.raises(ValueError, match=words):
            ja.sweep.merge(SETTINGS, parts)


def test_shards_of_several_mechanisms_keep_their_names(tmp_path):
    settings = rows([ja.Gaussian, ja.Laplace, ja.Gaussian], noise_multiplier=[1.0, 2.0, 3.0], steps=1, delta=1e-5)
    values = np.arange(3.0)
    made = []
    for i in range(2):
        share = settings.shard(i, 2)
        arrays = dict.fromkeys(("lower", "estimate", "upper"), values[i::2]) | {"converged": np.ones(share.size, bool)}
        names = tuple(mechanism.__name__ for mechanism in share.mechanisms)
        made.append(
            ja.sweep.Sweep(arrays, "epsilon", "certified", "add", 1e-3, names, "rows", share.axes, share.constants, 1.0)
        )
        made[-1].save(tmp_path / f"{i}.npz")
    whole = ja.sweep.merge(settings, [ja.sweep.load(tmp_path / f"{i}.npz") for i in range(2)])
    assert whole.upper.tolist() == values.tolist()
    assert whole.axes["mechanism"].tolist() == ["Gaussian", "Laplace", "Gaussian"]


@pytest.mark.parametrize(("index", "count"), [(0, 0), (24, 24), (-1, 2), (0, 25), (0.5, 2), (0, True)])
def test_what_is_no_shard_is_refused(index, count):
    with pytest.raises((ValueError, TypeError), match=r"index|count"):
        SETTINGS.shard(index, count)


def test_files_say_the_same(found, tmp_path):
    for name in ("found.npz", "found.csv", "found.json"):
        found.save(tmp_path / name)
    loaded = ja.sweep.load(tmp_path / "found.npz")
    assert same(found, loaded)
    assert loaded.constants == found.constants
    np.testing.assert_array_equal(loaded.axes["steps"], found.axes["steps"])
    table = list(csv.DictReader((tmp_path / "found.csv").open()))
    assert len(table) == found.upper.size
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
    np.savez(tmp_path / "other.npz", upper=np.zeros(3))
    with pytest.raises(ValueError, match="not a sweep"):
        ja.sweep.load(tmp_path / "other.npz")


def test_pandas(found):
    pandas = pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["upper"].tolist() == found.upper.ravel().tolist()


def test_xarray(found):
    xarray = pytest.importorskip("xarray")
    data = found.to_xarray()
    assert isinstance(data, xarray.Dataset)
    assert float(data["upper"].sel(noise_multiplier=1.0, sampling_rate=0.01, steps=100)) == found.upper[2, 1, 0]


def test_memory_that_no_program_fits_is_refused():
    with pytest.raises(ValueError, match="memory = 1 bytes"):
        ja.sweep.epsilon(SETTINGS, memory=1, **QUIET)


def test_one_program_serves_all_modes_and_tolerances():
    one = Quantity("epsilon", "certified", "add", 1e-4).exact
    assert one == Quantity("epsilon", "saddlepoint", "add", 1e-3).exact
    assert one != Quantity("epsilon", "saddlepoint", "remove", 1e-3).exact
    assert Quantity("noise_multiplier", "certified", "add", 1e-4).exact.tolerance == 1e-4


@dataclasses.dataclass(frozen=True)
class Toy:
    """In a quantity's place: arithmetic that depends on the mechanism, and takes no time to compile."""

    mode: str = "saddlepoint"
    worst: float = 1.0
    arrays = Quantity("delta", "saddlepoint", "add", 1.0).arrays

    @property
    def exact(self):
        return self

    def compiled(self, mechanism, entry):
        value = entry["noise_multiplier"] * (2.0 if mechanism is ja.Gaussian else 3.0)
        return {name: value for name in ("lower", "estimate", "upper")} | {
            "converged": value > 0,
            "accountant": jnp.int8(1),
        }


@pytest.mark.parametrize("size", [1, 127, 128, 129, 300])
def test_entries_keep_their_places_whatever_the_blocks(size):
    classes = [ja.Gaussian if i % 3 else ja.GaussianMixture for i in range(size)]
    settings = rows(classes, noise_multiplier=np.arange(size) + 1.0, steps=1, delta=1e-5)
    done = []
    found = compute.computed(Toy(), settings, tuple(jax.devices()), 2**20, slice(0, size), done.append)
    want = [(i + 1.0) * (2.0 if i % 3 else 3.0) for i in range(size)]
    assert found["upper"].tolist() == want
    assert sum(done) == size


def test_what_is_no_number_becomes_the_worst():
    settings = rows([ja.Gaussian] * 3, noise_multiplier=[1.0, np.nan, 3.0], steps=1, delta=1e-5)
    found = compute.computed(Toy(), settings, tuple(jax.devices()), 2**20, slice(0, 3), lambda count: None)
    assert found["upper"].tolist() == [2.0, 1.0, 6.0]
    assert found["lower"].tolist() == [2.0, 0.0, 6.0]
    assert found["converged"].tolist() == [True, False, True]
    assert found["accountant"].tolist() == [Accountant.SADDLEPOINT, Accountant.NONE, Accountant.SADDLEPOINT]


def test_deltas():
    settings = grid(noise_multiplier=1.0, sampling_rate=0.01, steps=1000, epsilon=[0.5, 1.0, 2.0])
    found = ja.sweep.delta(settings, **QUIET)
    assert np.all(found.converged)
    assert np.all(np.diff(found.upper) < 0)
    back = ja.sweep.epsilon(rows(noise_multiplier=1.0, sampling_rate=0.01, steps=1000, delta=found.estimate), **QUIET)
    np.testing.assert_allclose(back.estimate, [0.5, 1.0, 2.0], rtol=1e-7)


def test_nothing_global_changes(found):
    assert not jax.config.jax_enable_x64
    assert found.upper.dtype == np.float64
