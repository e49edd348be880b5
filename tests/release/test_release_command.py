"""``jaxacct release``: tables in, budgets kept, and one line for each mistake."""

import json
import os
import pathlib
import sys

import numpy as np
import pytest
from helpers.command_line import answer, runner
from helpers.mutants import mutant

import jaxacct as ja
from jaxacct import release
from jaxacct.cli import main
from jaxacct.cli import release as command
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


def check_rows(module, path):
    """Asserts that a row takes no row of others into its own, and that each row is counted."""
    people = [*["A,1"] * 100, 'B,"y', *["A,1"] * 300, 'A,x"', *["A,1"] * 8]
    for ends in ("\n", "\r\n"):
        for wrong in (people, ["A,1", "A,\r2", "A,1"], [*people[:101]], ['A,"a', 'b"'], ['A,"b"c']):
            path.write_bytes(ends.join(["ward,days", *wrong]).encode())
            with pytest.raises(ValueError, match=r"is no CSV in line \d+ .*each row is one line") as caught:
                module._read_column(path, "ward")
            assert len(str(caught.value)) <= 600 + len(str(path))
        path.write_bytes(ends.join(["days", "3", "", "5", ""]).encode())
        assert module._read_column(path, "days") == ["3", None, "5"]
        assert len(module._read_column(path, None)) == 3
        path.write_bytes(ends.join(["ward,days", "A,3", "", 'B,"4, ""5"""', ""]).encode())
        assert module._read_column(path, "days") == ["3", '4, "5"']
        assert len(module._read_column(path, None)) == 2


def test_a_row_takes_no_rows_of_others(tmp_path):
    check_rows(command, tmp_path / "people.csv")


@pytest.mark.parametrize(
    ("old", "new"), [("csv.reader([line], strict=True)", "csv.reader([line])"), ('newline="\\n"', 'newline=""'),
                     (" or len(names) == 1]", "]")],
)  # fmt: skip
def test_rows_of_several_lines_are_noticed(tmp_path, old, new):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_rows(mutant("jaxacct.cli.release", (old, new)), tmp_path / "people.csv")


def test_no_message_shows_a_person(tmp_path):
    (tmp_path / "none.csv").write_text("Miller,123456\nSmith,7\n")
    with pytest.raises(ValueError, match="has the names of columns") as caught:
        _read_column(tmp_path / "none.csv", "days")
    assert "Miller" not in str(caught.value)
    assert "123456" not in str(caught.value)
    (tmp_path / "empty.csv").write_text("")
    assert _read_column(tmp_path / "empty.csv", None) == []


def test_a_long_text_and_a_zero_byte_take_no_row(jaxacct, year, exact):
    """A cell of NUL bytes is a text of its own, and one that is empty or long changes no other."""
    for more in ("", '""', "x" * 100_000):
        pathlib.Path("people.csv").write_text("ward\n" + "A\0\n" * 50 + more + "\n")
        done = jaxacct("release", "histogram", "people.csv", "--budget", year, "--column", "ward", "--categories",
                       "A", "A\0", "--scale", 90, "--json")  # fmt: skip
        assert answer(done)["value"] == [0, 50]


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no disk that is always full")
@pytest.mark.parametrize("as_json", [True, False])
def test_what_is_paid_and_cannot_be_printed_is_said(year, capsys, monkeypatch, as_json):
    asked = ["release", "count", "people.csv", "--budget", str(year), "--scale", "20", *["--json"] * as_json]
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        code = main(asked)
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (74, 1)
    assert "count is paid for as release 1, but cannot be printed" in said
    assert len(release.Budget(year).read().releases) == 1


def test_a_text_that_cannot_be_printed(year, capsys, monkeypatch):
    asked = ["release", "count", "people.csv", "--budget", str(year), "--scale", "20", "--name", "Münster", "--json"]
    with open(os.devnull, "w", encoding="ascii") as narrow, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", narrow)
        assert main(asked) == 74
    assert "is paid for as release 1" in capsys.readouterr().err


def test_columns_of_truth_values(tmp_path, jaxacct, year, exact):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"ill": [True, False, None, True]}), "people.parquet")
    asked = ["people.parquet", "--budget", year, "--column", "ill", "--scale", 20]
    assert answer(jaxacct("release", "sum", *asked, "--bounds", 0, 1, "--json"))["value"] == 2
    assert answer(jaxacct("release", "count", *asked, "--equals", "True", "--json"))["value"] == 2


def test_a_pure_budget_is_offered(jaxacct, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = jaxacct("release", "begin", "pure.jsonl", "--epsilon", 1, "--delta", 0, "--unit", "u", "--json")
    assert answer(begun)["delta"] == 0
    assert "or 0, which pays for" in " ".join(jaxacct("release", "begin", "--help").stdout.split())


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
