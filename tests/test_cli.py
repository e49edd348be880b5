"""The command line as a user meets it: a process, its output and its exit code."""

import json
import os
import subprocess
import sys

import pytest

EPSILON = ["epsilon", "--noise-multiplier", "1.0", "--sampling-rate", "0.01", "--steps", "10000", "--delta", "1e-5"]


def jaxacct(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "jaxacct.cli", *arguments],
        capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "80"} | environment,
    )  # fmt: skip


def test_epsilon_as_json():
    done = jaxacct(*EPSILON, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["lower"] <= 6.1877 + 5e-5
    assert 6.1877 - 5e-5 <= record["upper"] <= 6.1877 + 0.01
    assert record["accountant"] == "best"
    assert record["steps"] == 10_000


def test_epsilon_as_a_table_of_80_columns():
    done = jaxacct(*EPSILON)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "certified" in done.stdout
    assert "6.18" in done.stdout
    assert done.stderr == ""


def test_renyi_epsilon_is_above_the_certified_one():
    done = jaxacct(*EPSILON, "--accountant", "rdp", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["upper"] > 6.1877


def test_no_noise_costs_everything():
    done = jaxacct("epsilon", "--noise-multiplier", "0", "--steps", "1", "--delta", "1e-5", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["upper"] == "inf"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--noise-multiplier", "-1"], ["noise_multiplier", "-1"]),
        (["--sampling-rate", "0"], ["sampling_rate", "(0, 1]"]),
        (["--sampling-rate", "1.5"], ["sampling_rate", "fraction"]),
        (["--steps", "-3"], ["steps", "whole number"]),
        (["--steps", "2.5"], ["steps", "whole number"]),
        (["--delta", "0"], ["delta", "(0, 1)"]),
        (["--delta", "2"], ["delta", "(0, 1)"]),
        (["--delta", "nan"], ["delta", "nan"]),
        (["--steps", "many"], ["--steps", "many"]),
        (["--accountant", "rdp", "--tolerance", "1e-3"], ["tolerance", "prv"]),
        (["--tolerance", "0"], ["tolerance"]),
    ],
)
def test_bad_input_exits_with_2_and_one_message(change, words):
    done = jaxacct(*EPSILON, *change)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert done.stdout == ""


CALIBRATE = ["calibrate", "--epsilon", "1", "--delta", "1e-5", "--sampling-rate", "0.01", "--steps", "10000"]


def test_delta_by_the_exact_accountant():
    done = jaxacct("delta", *EPSILON[1:7], "--epsilon", "6.1877", "--accountant", "saddlepoint", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["lower"] <= record["estimate"] <= record["upper"]
    assert abs(record["estimate"] / 1e-5 - 1) < 1e-3
    assert record["accountant"] == "saddlepoint"


def test_calibrate_as_json():
    done = jaxacct(*CALIBRATE, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["solve_for"] == "noise_multiplier"
    assert 3.8128 < record["value"] < 3.8129
    assert record["status"] == "converged"
    assert 0.9999 < record["reached"]["upper"] <= 1


def test_calibrate_as_a_table_whose_noise_is_rounded_up():
    done = jaxacct(*CALIBRATE)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "3.8128" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*CALIBRATE, "--advantage", "0.1"], ["--epsilon", "--advantage"]),
        (["calibrate", "--epsilon", "1"], ["--delta"]),
        ([*CALIBRATE[:5], "--steps", "5"], ["--sampling-rate", "missing"]),
        ([*CALIBRATE, "--noise-multiplier", "1"], ["--noise-multiplier", "--solve-for"]),
        ([*CALIBRATE[:5], "--delta", "7"], ["--sampling-rate"]),
        ([*CALIBRATE, "--delta", "7"], ["delta", "(0, 1)"]),
        (["calibrate", "--tpr", "0.1", "--fpr", "0.2", *CALIBRATE[5:]], ["tpr", "fpr", "blindly"]),
        (["calibrate", "--tpr", "0.1", "--fpr", "0.2", "--solve-for", "steps"], ["noise-multiplier"]),
    ],
)
def test_calibrate_says_what_is_wrong_with_its_input(arguments, words):
    done = jaxacct(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_help_names_every_command():
    done = jaxacct("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("epsilon", "delta", "calibrate", "train", "figures"))
