"""Tests of a sweep's results: honest, flagged, and the same however it was cut up."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.small_sweep import QUIET, SETTINGS, same

import jaxacct as ja
from jaxacct import certified
from jaxacct.composition import ForDelta
from jaxacct.sweep import AccountantCode, compute, grid, rows
from jaxacct.sweep.description import Quantity


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
    assert np.all(np.isnan(found.estimate[0]))
    assert np.all(found.accountant[0] == AccountantCode.NONE)
    assert not np.any(np.isnan(found.upper))
    assert not np.any(np.isnan(found.lower))
    assert np.all(found.lower <= found.upper)
    assert found.counts()["flagged"] == np.sum(flagged)


@pytest.mark.parametrize("chunk", [7, 24])
def test_chunks_change_no_bit(found, chunk):
    assert same(found, ja.sweep.epsilon(SETTINGS, chunk=chunk, **QUIET))


@pytest.mark.exhaustive
def test_one_setting_is_a_grid_without_axes(found, tmp_path):
    one = ja.sweep.epsilon(grid(noise_multiplier=1.0, sampling_rate=0.01, steps=100, delta=1e-5), **QUIET)
    assert one.shape == ()
    assert one.upper == found.upper[2, 1, 0]
    one.save(tmp_path / "one.csv")
    one.save(tmp_path / "one")
    assert (tmp_path / "one.csv").read_text().count("\n") == 2
    assert ja.sweep.load(tmp_path / "one").upper.shape == ()


def test_a_row_is_what_the_same_entry_of_a_grid_is(found):
    columns = SETTINGS.columns(np.arange(SETTINGS.size)[::-1])
    reversed_rows = ja.sweep.epsilon(rows(**columns), **QUIET)
    for name, values in found.arrays.items():
        assert values.ravel()[::-1].tobytes() == reversed_rows[name].tobytes()


def fake_calls(monkeypatch, answer):
    """Puts ``answer`` in the place of calls: what is tested here is what becomes of their answers."""
    calls = []

    def single(mechanism, steps, question, relation, *, tolerance, arithmetic):
        calls.append((mechanism.noise_multiplier, mechanism.sampling_rate, steps, question.delta, relation, tolerance))
        return answer()

    monkeypatch.setattr(certified, "answer", single)
    return calls


def test_a_call_is_made_for_what_is_open_and_for_nothing_else(found, monkeypatch):
    calls = fake_calls(monkeypatch, lambda: ja.Bounds(np.float64(1.0), np.float64(1.5), np.float64(2.0), True))
    refined = ja.sweep.epsilon(SETTINGS, **QUIET | {"mode": "certified"})
    assert len(calls) == found.counts()["flagged"]
    assert (0.0, 0.001, 100.0, 1e-5, "remove", 1e-3) in calls
    assert np.all(refined.converged)
    by_calls = ~found.converged
    assert np.all(refined.accountant[by_calls] == AccountantCode.ATOMS)
    assert np.all(refined.upper[by_calls] == 2.0)
    for name, values in found.arrays.items():
        np.testing.assert_array_equal(values[found.converged], refined[name][found.converged])


def test_one_failure_flags_one_entry_and_ends_nothing(found, monkeypatch):
    def broken():
        raise RuntimeError("out of memory")

    fake_calls(monkeypatch, broken)
    refined = ja.sweep.epsilon(SETTINGS, **QUIET | {"mode": "certified"})
    assert np.all(refined.accountant[~found.converged] == AccountantCode.FAILED)
    assert refined.upper.tobytes() == found.upper.tobytes()
    assert refined.counts()["failed"] == found.counts()["flagged"]


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
    arithmetic: str = "auto"
    name: str = "delta"
    question = ForDelta

    @property
    def exact(self):
        return self

    def compiled(self, mechanism, entry):
        value = entry["noise_multiplier"] * (2.0 if mechanism is ja.Gaussian else 3.0)
        return {name: value for name in ("lower", "estimate", "upper")} | {
            "converged": value > 0,
            "accountant": jnp.int8(1),
        }


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1, 127, 128, 129, 300])
def test_entries_keep_their_places_whatever_the_blocks(size):
    classes = [ja.Gaussian if i % 3 else ja.GaussianMixture for i in range(size)]
    settings = rows(classes, noise_multiplier=np.arange(size) + 1.0, steps=1, delta=1e-5)
    done = []
    found = compute.compute(Toy(), settings, tuple(jax.devices()), 2**20, slice(0, size), done.append)
    want = [(i + 1.0) * (2.0 if i % 3 else 3.0) for i in range(size)]
    assert found["upper"].tolist() == want
    assert sum(done) == size


@pytest.mark.parametrize("arithmetic", ["float32", "float64"])
def test_the_arithmetic_reaches_both_accountants(arithmetic, monkeypatch):
    quantity = Quantity("epsilon", "certified", "add", 1e-3, arithmetic)
    asked = []

    def answer(*args, tolerance, arithmetic):
        assert tolerance == (None if arithmetic == "float32" else 1e-3)  # float32 takes none
        asked.append(arithmetic)
        return ja.Bounds(np.float64(1.0), np.float64(1.5), np.float64(2.0), True)

    exact = ja.Bounds(np.float64(0.0), np.float64(np.nan), np.float64(np.inf), False)
    monkeypatch.setattr(ja.saddlepoint.accountant, "answer", lambda *args: asked.append(args[-1]) or exact)
    monkeypatch.setattr(certified, "answer", answer)
    entry = {"noise_multiplier": 1.0, "steps": 1.0, "delta": 1e-5}
    before = quantity.compiled(ja.Gaussian, entry)
    assert quantity.by_calls(ja.Gaussian, entry, before)["upper"] == 2.0
    assert asked == [arithmetic, arithmetic]
    with pytest.raises(ValueError, match="arithmetic = 'pair'"):
        ja.sweep.epsilon(SETTINGS, arithmetic="pair", **QUIET)


def test_what_is_no_number_becomes_the_worst():
    settings = rows([ja.Gaussian] * 3, noise_multiplier=[1.0, np.nan, 3.0], steps=1, delta=1e-5)
    found = compute.compute(Toy(), settings, tuple(jax.devices()), 2**20, slice(0, 3), lambda count: None)
    assert found["upper"].tolist() == [2.0, 1.0, 6.0]
    assert found["lower"].tolist() == [2.0, 0.0, 6.0]
    assert found["converged"].tolist() == [True, False, True]
    assert found["accountant"].tolist() == [AccountantCode.SADDLEPOINT, AccountantCode.NONE, AccountantCode.SADDLEPOINT]


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
