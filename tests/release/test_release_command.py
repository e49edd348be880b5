"""``jaxacct release``: tables in, budgets kept, and one line for each mistake."""

import json
import sys

import numpy as np
import pytest
from helpers.command_line import answer, runner

import jaxacct as ja
from jaxacct import release
from jaxacct.cli.release import _read_column

TABLE = 'ward,days,"a, b"\nA,3,x\nB,,x\nA,75,\nA,none,y\nC\n'


@pytest.fixture
def jaxacct(capsys, monkeypatch):
    return runner(capsys, monkeypatch)


@pytest.fixture
def year(jaxacct, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text(TABLE)
    begun = answer(
        jaxacct("release", "begin", "year.jsonl", "--epsilon", 3, "--delta", "1e-6", "--unit", "u", "--json")
    )
    assert (begun["epsilon"], begun["delta"], begun["spent"], "releases" in begun) == (3.0, 1e-6, 0.0, False)
    return tmp_path / "year.jsonl"


@pytest.fixture
def exact(monkeypatch):
    """No noise, and the best candidate."""
    monkeypatch.setattr(release, "_discrete_laplace", lambda scale, below: 0)
    monkeypatch.setattr(release, "_discrete_gaussian", lambda scale, below: 0)
    monkeypatch.setattr(release, "_choose", lambda scores, rate, below: scores.index(max(scores)))


ASKED = {
    "count --scale 20": (5, ja.DiscreteLaplace(20.0)),
    "count --column ward --equals A --scale 20 --noise gaussian": (3, ja.DiscreteGaussian(20.0)),
    "histogram --column ward --categories B A D --scale 20": ([1, 3, 0], ja.DiscreteLaplace(20.0)),
    "sum --column days --bounds 0 60 --granularity 0.5 --scale 600": (63.0, ja.DiscreteLaplace(1200.0, 120)),
    "mean --column days --bounds 1 60 --granularity 1 --size 10 --scale 60 --noise gaussian": (
        6.6, ja.DiscreteGaussian(600.0, 60),
    ),
    "quantile --column days --level 0.5 --candidates 0:80:9 --epsilon 0.1": (10.0, ja.ExponentialMechanism(0.1)),
}  # fmt: skip


@pytest.mark.parametrize("command", ASKED)
def test_what_is_released_and_accounted(jaxacct, year, exact, command):
    verb, *rest = command.split()
    value, mechanism = ASKED[command]
    record = answer(jaxacct("release", verb, "people.csv", "--budget", year, *rest, "--json"))
    assert record["value"] == value
    assert record["mechanism"] == ja.mechanisms.records.record_of(mechanism)
    shown = answer(jaxacct("release", "show", year, "--json"))
    assert [paid["mechanism"] for paid in shown["releases"]] == [record["mechanism"]]
    assert shown["spent"] == record["spent"] > 0
    table = jaxacct("release", "show", year)
    assert record["name"] in table.stdout
    assert type(mechanism).__name__ in table.stdout


def test_the_table_says_value_noise_and_guarantee(jaxacct, year, exact):
    done = jaxacct("release", "histogram", "people.csv", "--budget", year, "--column", "ward", "--categories", "A", "B",
                   "--scale", "20", COLUMNS="80")  # fmt: skip
    for word in ("histogram of ward A", "28.28", "DiscreteLaplace: scale 20.0", "(3,", "add"):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


WRONG = {
    "count --scale 0.01": "is refused, and nothing was drawn",
    "count --scale -1": "scale",
    "count --column ward --scale 20": "--equals",
    "count --equals A --scale 20": "--column",
    "histogram --column wards --categories A --scale 20": "did you mean ward?",
    "histogram --column ward --categories A A --scale 20": "each once",
    "histogram --column ward --scale 20": "--categories",
    "mean --column days --bounds 0 60 --scale 20": "--size",
    "mean --column days --bounds 0 60 --size 1.5 --scale 20": "whole one",
    "sum --column days --bounds 60 0 --scale 20": "lower = 60",
    "quantile --column days --level 2 --candidates 1,2 --epsilon 0.1": "level = 2",
    "count --scale 20 --noise cauchy": "laplace",
    "counts --scale 20": "did you mean count?",
}


@pytest.mark.parametrize("command", WRONG)
def test_a_mistake_is_one_line_and_costs_nothing(jaxacct, year, command):
    before = year.read_bytes()
    verb, *rest = command.split()
    done = jaxacct("release", verb, "people.csv", "--budget", year, *rest)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert WRONG[command] in done.stderr
    assert done.stdout == ""
    assert year.read_bytes() == before


def test_mistakes_with_files(jaxacct, year, tmp_path):
    (tmp_path / "open.csv").write_text('ward\nA\n"B\nC\n')
    (tmp_path / "x.txt").write_text("")
    for table, budget, word in (
        ("none.csv", year, "is not there"),
        ("x.txt", year, ".csv or .parquet"),
        ("open.csv", year, "is no CSV in line"),
        ("people.csv", "none.jsonl", "is not there"),
        ("people.csv", "people.csv", "is damaged in line 1"),
    ):
        done = jaxacct("release", "count", table, "--budget", budget, "--scale", 20)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert word in done.stderr
    again = jaxacct("release", "begin", year, "--epsilon", 9, "--delta", "1e-6", "--unit", "u")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert "epsilon" in jaxacct("release", "begin", "y", "--epsilon", -1, "--delta", "1e-6", "--unit", "u").stderr
    assert len(answer(jaxacct("release", "show", year, "--json"))["releases"]) == 0


def test_columns_of_csv(tmp_path):
    path = tmp_path / "people.csv"
    path.write_bytes(b"\xef\xbb\xbf" + TABLE.encode())
    assert _read_column(path, "ward") == ["A", "B", "A", "A", "C"]
    assert _read_column(path, "days") == ["3", None, "75", "none", None]
    assert _read_column(path, "a, b") == ["x", "x", None, "y", None]
    assert len(_read_column(path, None)) == 5


def test_columns_of_parquet(tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"ward": ["A", None, "C"], "days": [3.0, float("nan"), None]})
    path = tmp_path / "people.parquet"
    parquet.write_table(table, path)
    assert _read_column(path, "ward") == ["A", None, "C"]
    assert _read_column(path, "days") == ["3.0", "nan", None]
    assert len(_read_column(path, None)) == 3
    with pytest.raises(ValueError, match="did you mean days"):
        _read_column(path, "day")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet")
    with pytest.raises(ModuleNotFoundError, match=r"jaxacct\[sweep\]"):
        _read_column(path, "ward")


def test_real_noise_moves_and_is_paid(jaxacct, year):
    values = [answer(jaxacct("release", "count", "people.csv", "--budget", year, "--scale", 20, "--json"))["value"]
              for _ in range(6)]  # fmt: skip
    assert len(set(values)) > 1
    assert np.all(np.abs(values) < 2000)
    assert len(json.loads(year.read_bytes().splitlines()[-1])["digest"]) == 64
