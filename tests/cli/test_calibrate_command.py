"""Calibrations on the command line: of one mechanism beside others, and of groups."""

import json

import pytest
from helpers.command_line import answer, runner

import jaxacct as ja
from jaxacct.cli import build_parser
from jaxacct.cli.calibration import _split_parts
from jaxacct.cli.verify import read_claims

BUDGET = ["--epsilon", "3", "--delta", "1e-5"]


@pytest.fixture
def jaxacct(capsys, monkeypatch):
    return runner(capsys, monkeypatch)


def test_what_is_left_beside_a_spec(jaxacct, tmp_path):
    """Squares of mu add up: 12 runs at noise 8, and 4 more, have the mu of the budget."""
    spec = {"parts": [{"type": "gaussian", "noise_multiplier": 8.0, "count": 12}], "delta": 1e-5}
    (tmp_path / "year.json").write_text(json.dumps(spec))
    run = ["calibrate", "--epsilon", "3", "--mechanism", "gaussian", "--spec", tmp_path / "year.json", "--count", "4"]
    record = answer(jaxacct(*run, "--json"))
    whole = float(ja.calibrate.noise_multiplier(3.0, 1e-5, 1.0, 1).value)
    least = (4 / (whole**-2 - 12 / 64)) ** 0.5
    assert least * (1 - 1e-5) <= record["value"] <= least * 1.002
    assert record["looked_for"] == {"type": "Gaussian", "noise_multiplier": record["value"]}
    assert (record["steps"], record["count"], record["solve_for"]) == ([12, 4], 4, "noise_multiplier")
    (claim,) = read_claims(record)
    assert ja.epsilon(claim.mechanism, claim.steps, 1e-5).upper <= 3.0
    shown = jaxacct(*run).stdout
    assert "beside Gaussian" in shown
    assert "Gaussian; 4 times" in shown


def test_a_budget_that_is_spent_says_so(jaxacct):
    done = jaxacct("calibrate", *BUDGET, "--mechanism", "gaussian:noise_multiplier=1", "--mechanism", "gaussian")
    assert done.returncode == 2
    assert "is spent: what is composed already costs 4.37" in done.stderr


@pytest.mark.parametrize(
    ("text", "noise"),
    [
        ("gaussian", "noise_multiplier"),
        ("dp-sgd:sampling_rate=0.1", "noise_multiplier"),
        ("laplace", "scale"),
        ("exponential-mechanism", "epsilon"),
    ],
)
def test_the_noise_of_each_kind_is_looked_for(text, noise):
    given = ["calibrate", *BUDGET, "--mechanism", text, "--mechanism", "laplace:scale=2", "--count", "3"]
    part, field, others = _split_parts(build_parser().parse_args(given))
    assert (field, part[noise], part["count"]) == (noise, 1.0, 3.0)
    assert [other["type"] for other in others] == ["laplace"]


def test_a_group_is_calibrated_as_in_python(jaxacct):
    run = ["--sampling-rate", "1", "--steps", "10", "--group", "4"]
    record = answer(jaxacct("calibrate", *BUDGET, *run, "--json"))
    assert record["value"] == ja.calibrate.noise_multiplier(3.0, 1e-5, 1.0, 10, group=4).value
    assert record["value"] == pytest.approx(4 * ja.calibrate.noise_multiplier(3.0, 1e-5, 1.0, 10).value, rel=2e-6)
    assert (record["status"], record["group"]) == ("converged", 4)
