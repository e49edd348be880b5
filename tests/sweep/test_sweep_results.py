"""What a sweep returns: honest, flagged, the same however it was cut up, and the same from a file."""

import csv
import dataclasses
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.sweep import Accountant, checkpoint, compute, grid, hosts, rows
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


def test_what_process_0_refuses_the_others_refuse(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(hosts, "agreed", lambda values: told.append(values.tolist()) or values)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="something else"):
        ja.sweep.epsilon(SETTINGS, checkpoint=tmp_path, **QUIET)
    assert told == [[0]]  # before it gives up, so that nobody waits for it
    monkeypatch.setattr(hosts, "index_and_count", lambda: (1, 2))
    monkeypatch.setattr(hosts, "agreed", lambda values: np.array(told[0]))
    with pytest.raises(ValueError, match="process 0 refuses"):
        ja.sweep.epsilon(SETTINGS, checkpoint=tmp_path, **QUIET)
    with pytest.raises(ValueError, match="checkpoint = None with 2 processes"):
        ja.sweep.epsilon(SETTINGS, **QUIET)


def watch(presence, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        presence.check()
        time.sleep(0.01)


def test_signs_of_life(tmp_path):
    one, other = (hosts.Presence(tmp_path, i, 2, patience=3.0) for i in range(2))
    with one.shown(), other.shown():
        watch(one, 1.0)
        assert not one.all_done()
    assert one.all_done()
    assert other.all_done()
    with pytest.raises(RuntimeError, match="no memory"), other.shown():
        raise RuntimeError("no memory")
    with pytest.raises(hosts.HostLostError, match=r"process 1 has failed \(RuntimeError: no memory\)"):
        watch(one)
    hosts.forget_signs(tmp_path)
    with pytest.raises(hosts.HostLostError, match=r"process 1 has shown no sign of life for 0\.2 s"):
        watch(hosts.Presence(tmp_path, 0, 2, patience=0.2))


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


def test_pictures(found, tmp_path):
    pytest.importorskip("matplotlib")
    from jaxacct.sweep import draw

    draw.picture(found, tmp_path / "sub" / "found.png")
    assert (tmp_path / "sub" / "found.png").read_bytes()[1:4] == b"PNG"
    axes = {"noise_multiplier": np.geomspace(1, 8, 5), "sampling_rate": np.geomspace(0.001, 0.1, 4)}
    upper = np.divide.outer(1 / axes["noise_multiplier"], 1 / axes["sampling_rate"])
    upper[0, 0] = np.inf
    arrays = {"lower": upper, "estimate": upper, "upper": upper, "converged": np.isfinite(upper)}
    draw.picture(dataclasses.replace(found, axes=axes, arrays=arrays), tmp_path / "map.svg")
    assert "<svg" in (tmp_path / "map.svg").read_text()
    # Upper bounds of flagged entries may be enormous: the colours are those of the others.
    upper[0, 0] = 1e264
    flagged = dataclasses.replace(found, axes=axes, arrays=arrays | {"converged": upper < 1e264})
    assert draw._norm(draw._settled(flagged, upper)).vmax < 2000
    draw.picture(flagged, tmp_path / "flagged.png")
    with pytest.raises(ValueError, match="rows"):
        draw.check("rows", (24,), "a.png")
    with pytest.raises(ValueError, match="12 values"):
        draw.check("grid", (13, 14, 20), "a.png")
    with pytest.raises(ValueError, match="suffix"):
        draw.check("grid", (14, 20), "a.doc")


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
    told = []
    found = compute.computed(Toy(), settings, tuple(jax.devices()), 2**20, slice(0, size), told.append)
    want = [(i + 1.0) * (2.0 if i % 3 else 3.0) for i in range(size)]
    assert found["upper"].tolist() == want
    assert sum(told) == size


def test_what_is_no_number_becomes_the_worst():
    settings = rows([ja.Gaussian] * 3, noise_multiplier=[1.0, np.nan, 3.0], steps=1, delta=1e-5)
    found = compute.computed(Toy(), settings, tuple(jax.devices()), 2**20, slice(0, 3), lambda count: None)
    assert found["upper"].tolist() == [2.0, 1.0, 6.0]
    assert found["lower"].tolist() == [2.0, 0.0, 6.0]
    assert found["converged"].tolist() == [True, False, True]
    assert found["accountant"].tolist() == [Accountant.SADDLEPOINT, Accountant.NONE, Accountant.SADDLEPOINT]


def test_chunks_that_vanish_are_an_error_and_no_endless_wait(tmp_path, monkeypatch):
    folder = tmp_path / "kept"
    ja.sweep.epsilon(SETTINGS, checkpoint=folder, **QUIET)
    read = checkpoint.Checkpoint.read

    def read_once(*arguments):
        monkeypatch.setattr(checkpoint.Checkpoint, "read", lambda *_: None)
        return read(*arguments)

    monkeypatch.setattr(checkpoint.Checkpoint, "read", read_once)
    with pytest.raises(OSError, match=r"chunks \[0\] are gone"):
        ja.sweep.epsilon(SETTINGS, checkpoint=folder, resume=True, patience=0.1, **QUIET)


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
