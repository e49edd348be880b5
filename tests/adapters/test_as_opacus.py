"""Histories of Opacus without torch, and its registry where it is installed; bench/peers/opacus_engine.py trains."""

import io
import pathlib
import pickle
import zipfile
from collections import OrderedDict

import pytest

import jaxacct as ja
from jaxacct.adapters import opacus as adapter

HISTORY = [(1.0, 0.05, 40), (1.0, 0.05, 20), (2.0, 0.05, 5)]


class Tensor:
    """Stands for what a checkpoint holds besides numbers, which torch keeps in other files."""

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("run-by-the-pickle"),)


class Writer(pickle.Pickler):
    def persistent_id(self, value):
        return "storage" if isinstance(value, bytes) else None


def written(path, checkpoint):
    pickled = io.BytesIO()
    Writer(pickled, protocol=2).dump(checkpoint)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickled.getvalue())
        file.writestr("archive/data/0", b"numbers")
    return path


def test_a_history_is_one_sequence():
    (mechanism,), (steps,) = adapter.from_history(HISTORY)
    assert isinstance(mechanism, ja.PoissonSubsampledGaussian)
    assert mechanism.noise_multiplier.tolist() == [1.0, 2.0]
    assert mechanism.sampling_rate.tolist() == [0.05, 0.05]
    assert steps.tolist() == [60, 5]
    assert adapter.from_history([]) == ((ja.PureDP(0.0),), (1,))


@pytest.mark.parametrize("entry", [(-1.0, 0.1, 3), (1.0, 1.1, 3), (1.0, 0.1, -3), (1.0, float("nan"), 3)])
def test_entries_out_of_range_are_errors(entry):
    with pytest.raises(ValueError, match="give"):
        adapter.from_history([entry])


def test_a_checkpoint_is_read_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = OrderedDict(history=HISTORY, mechanism="rdp")
    checkpoint = {"module_state_dict": {"w": Tensor(), "b": b"numbers"}, "privacy_accountant_state_dict": state}
    assert adapter.checkpoint_history(written(tmp_path / "run.pt", checkpoint)) == HISTORY
    assert not pathlib.Path("run-by-the-pickle").exists()


def test_other_files_are_errors(tmp_path):
    text = tmp_path / "text.pt"
    text.write_text("no archive")
    for path in (text, written(tmp_path / "other.pt", {"module_state_dict": {}})):
        with pytest.raises(ValueError, match="is no checkpoint of PrivacyEngine"):
            adapter.checkpoint_history(path)


def test_says_what_to_install():
    if adapter.register_accountant is None:
        with pytest.raises(ImportError, match="pip install opacus"):
            adapter.OpacusExactAccountant()


@pytest.mark.parametrize("name", ["jaxacct", "jaxacct-rdp"])
def test_registered_there(name):
    pytest.importorskip("opacus")
    from opacus.accountants import create_accountant

    accountant, other = create_accountant(name), create_accountant(name)
    assert accountant.get_epsilon(1e-5) == 0.0
    for _ in range(3):
        accountant.step(noise_multiplier=1.0, sample_rate=0.05)
    assert (accountant.history, len(accountant)) == ([(1.0, 0.05, 3)], 3)
    other.load_state_dict(accountant.state_dict())
    assert other.get_epsilon(1e-5) == accountant.get_epsilon(1e-5) > 0
