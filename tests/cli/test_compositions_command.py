"""Tests of the command's compositions, by epochs and batches, by mechanisms and by specs, and of its progress lines."""

import itertools
import json
import pathlib
import re

import pytest
from helpers.command_line import EPSILON, TRUTH, answer, runner

import jaxacct as ja
from jaxacct import processes
from jaxacct.cli import main
from jaxacct.cli.arguments import Run, why

LAPLACE = ["--mechanism", "laplace:scale=2,count=10"]
DELTA = ["--delta", "1e-5"]


@pytest.fixture
def jaxacct(capsys, monkeypatch):
    return runner(capsys, monkeypatch)


@pytest.mark.parametrize(
    "run",
    [
        ["--batch-size", "64", "--examples", "6400", "--epochs", "100"],
        ["--sampling-rate", "64/6400", "--steps", "10000", "--relation", "zero_out"],
    ],
)
def test_batches_and_epochs_are_a_rate_and_steps(run, jaxacct):
    record = answer(jaxacct("epsilon", "--noise-multiplier", "1", *run, *DELTA, "--json"))
    assert record["lower"] <= TRUTH <= record["upper"] < TRUTH * (1 + 1e-9)
    assert (record["steps"], record["mechanism"]["sampling_rate"]) == (10_000, 0.01)


def test_a_calibration_takes_them_too(jaxacct):
    by_epochs = ["--batch-size", "64", "--examples", "6400", "--epochs", "100"]
    one = answer(jaxacct("calibrate", "--epsilon", "1", *DELTA, *by_epochs, "--json"))
    assert (one["sampling_rate"], one["steps"], f"{one['value']:.3f}") == (0.01, 10_000, "3.813")


@pytest.mark.exhaustive
def test_mechanisms_and_specs_compose_and_the_referee_takes_the_record(jaxacct, tmp_path):
    mechanisms = (ja.Laplace(2.0), ja.Gaussian(10.0))
    bounds = ja.epsilon(mechanisms, (10, 100), 1e-5)
    spec = str(pathlib.Path(__file__).parents[1] / "data" / "spec.json")
    done = jaxacct("epsilon", *LAPLACE, "--spec", spec, "--json")  # at the spec's delta
    record = answer(done)
    assert (record["lower"], record["upper"]) == (bounds.lower, bounds.upper)
    assert record["steps"] == [10, 100]
    gaussian = ["--noise-multiplier", "10", "--steps", "100"]
    again = answer(jaxacct("epsilon", *LAPLACE, *gaussian, *DELTA, "--json"))
    assert again["upper"] == pytest.approx(bounds.upper, rel=1e-9)
    (tmp_path / "claim.json").write_text(done.stdout)
    pytest.importorskip("flint")
    assert main(["verify", str(tmp_path / "claim.json"), "--json"]) == 0
    shown = jaxacct("epsilon", *LAPLACE, *DELTA).stdout
    assert "scale 2.0; 10 times" in shown


@pytest.mark.exhaustive
def test_a_group_is_a_noise_that_is_as_much_less(jaxacct):
    record = answer(jaxacct("epsilon", "--noise-multiplier", "20", "--steps", "100", "--group", "2", *DELTA, "--json"))
    assert 4.377178 < record["lower"] <= record["upper"] < 4.377179
    assert record["group"] == 2
    assert "2 examples together" in record["scope"]


def test_an_infinite_bound_says_why(jaxacct):
    failing = ["--mechanism", "approximate-dp:epsilon=1,delta=1e-3"]
    record = answer(jaxacct("epsilon", *failing, *DELTA, "--json"))
    assert record["upper"] == "inf"
    assert "with probability 0.001 or more" in record["why"]
    bare = {"type": "RepeatAndSelect", "mechanism": [{"type": "Gaussian", "noise_multiplier": 0.0}]}
    assert "Gaussian without noise" in why(Run(None, 1, "add", 1, bare), 1e-5)
    assert "why" not in answer(jaxacct(*EPSILON, "--json"))


def test_a_log_gets_a_line_now_and_then(capsys, monkeypatch):
    times = itertools.count(0.0, 4.0)
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(times))
    with processes.progress("epsilon", 1000, done=100) as show:
        for done in range(200, 1001, 100):
            show(done, "accuracy 0.9")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "epsilon: 400 of 1,000 (40%), 25 a second, 0:00:24 left, accuracy 0.9"
    assert len(rest) == 2


@pytest.mark.parametrize(
    ("pieces", "least", "most"),
    [
        # A mesh is compiled for its first piece, once the exact accountant has done many: then 129 are left, at 20 ms.
        ([(30.0, 123), (11.0, 1), *[(0.02, 1)] * 3], 2.0, 3.0),
        # Steps of a training, of which the second shape of batches is compiled anew.
        ([(20.0, 1), (1.0, 10), (9.0, 10), (1.0, 10), (1.0, 10)], 21.0, 23.0),
        ([(20.0, 1), (1.0, 10)], None, None),  # one wait tells nothing
        ([(20.0, 1), (45.0, 255)], None, None),
    ],
)
def test_the_time_left_leaves_compilation_out(pieces, least, most, monkeypatch):
    now = 0.0
    monkeypatch.setattr(processes.time, "monotonic", lambda: now)
    pace, done = processes._Pace(0), 0
    for wait, count in pieces:
        now, done = now + wait, done + count
        pace.note(done)
    left = re.search(r"(\d+):(\d+):(\d+) left", pace.left(256))
    if least is None:
        assert left is None
    else:
        hours, minutes, seconds = map(int, left.groups())
        assert least <= 3600 * hours + 60 * minutes + seconds <= most


def test_the_doctor_says_that_all_is_sound(jaxacct):
    record = json.loads(jaxacct("doctor", "--json").stdout)
    assert set(record["arithmetic"].values()) == {"sound"}
    assert record["installed"]["numpy"]
