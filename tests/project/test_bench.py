"""The benchmark suite: what it lists, one tiny case to its end, and that failures stay in the results."""

import importlib.util
import json
import math
import sys

import numpy as np
import pytest

from bench import __main__ as command
from bench import report
from bench.suite import claims, peers, readme, runner, tables, truths
from bench.suite.cases import CASES, QUICK, Case, Contender
from bench.suite.libraries import LIBRARIES

TASKS = {"single": "epsilon", "batch": "batch", "renyi": "curve", "least-noise": "noise", "mu": "mu", "step": "step"}


def test_the_list_names_every_case_and_script(capsys):
    assert command.main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*CASES, *command.scripts()))
    assert {"calibration", "prv_tightness", "train_step"} <= set(command.scripts())
    assert not set(CASES) & set(command.scripts())
    assert set(QUICK) <= set(CASES)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_cases_are_jobs(name, quick):
    case = CASES[name](quick)
    assert TASKS.get(name, case.task) == case.task
    assert hasattr(truths, case.truth)
    assert {contender.library for contender in case.contenders} <= set(LIBRARIES)
    assert len({contender.name for contender in case.contenders}) == len(case.contenders)
    if case.same_question:
        asked = [(s["mechanisms"], s["delta"]) for contender in case.contenders for s in contender.settings]
        assert all(question == asked[0] for question in asked)
    else:
        assert len({len(contender.settings) for contender in case.contenders}) == 1
    json.dumps([contender.settings for contender in case.contenders], allow_nan=False)


def test_bad_names_are_refused(capsys):
    for words in (["nothing"], ["--list", "--peers-python", "nobody=/bin/true"]):
        if "--list" in words:
            with pytest.raises(ValueError, match="nobody"):
                command.pythons_of([words[-1]])
        else:
            with pytest.raises(SystemExit):
                command.main(words)
            assert "nothing" in capsys.readouterr().err


def test_interpreters_by_library():
    pythons = command.pythons_of(["/all/python", "opacus=/its/own/python"])
    assert runner.python_for("opacus", pythons) == "/its/own/python"
    assert runner.python_for("gdpnum", pythons) == "/all/python"
    assert runner.python_for("jaxacct", pythons) == sys.executable


@pytest.mark.exhaustive
def test_a_tiny_case_with_failures(tmp_path):
    """Ours answers; one peer is not installed, one interpreter does not exist, and one setting of ours raises."""
    run = {"mechanisms": [[100.0, 1.0, 10_000]], "delta": 1e-12}
    case = Case(
        "tiny",
        "epsilon",
        [
            Contender("ours", "jaxacct", [run | {"route": "clt"}, run | {"route": "nowhere"}]),
            Contender("not there", "opacus", [run | {"route": "renyi"}]),
            Contender("nowhere", "gdpnum", [run]),
        ],
        "gaussians",
    )
    missing = str(tmp_path / "python")
    shown = []
    record = runner.run_case(case, {"gdpnum": missing}, runner.QUICK, shown.append)
    ours, raises, absent, nowhere = record["rows"]
    low, high = record["truth"]["brackets"][0][0]
    assert 7.2384 < low < high < 7.2386
    assert ours["error_of_estimate"] < 1e-6
    assert ours["wrong"] == 0
    assert ours["first"] >= ours["seconds"] > 0
    assert ours["peak_mib"] > ours["imported_mib"] > 0
    assert "nowhere" in raises["error"]
    assert raises["version"] == ours["version"]
    assert "does not start" in nowhere["error"]
    if importlib.util.find_spec("opacus") is None:
        assert "opacus is not there" in absent["error"]
    assert len(shown) == 4

    command.save(tmp_path, {"tiny": record}, quick=True, limits=runner.QUICK)
    results = json.loads((tmp_path / "suite-quick.json").read_text())
    assert results["machine"]["cores"] >= 1
    assert set(results["versions"]) >= {"jaxacct", "jax", "numpy"}
    assert results["commit"]
    assert [row["contender"] for row in results["cases"]["tiny"]["rows"]] == ["ours", "ours", "not there", "nowhere"]
    page = (tmp_path / "suite-quick.md").read_text()
    assert page.count("failed: ") == sum("error" in row for row in record["rows"]) >= 2
    assert "| ours |" in page


def interpreter(folder, body):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_library_that_takes_too_long_or_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "IMPORT_SECONDS", 0.1)
    slow = peers.run(interpreter(tmp_path, "exec sleep 60"), "gdpnum", [{}, {}], seconds=0.1)
    assert [record["error"] for record in slow] == ["more than 0.1 s, or after a setting that took more"] * 2
    body = "cat > /dev/null; echo '{\"ready\": true}'; echo '{\"upper\": 1.0}'; echo killed >&2; exit 3"
    first, second = peers.run(interpreter(tmp_path, body), "gdpnum", [{}, {}], seconds=30.0)
    assert first == {"upper": 1.0}
    assert second == {"error": "ended with status 3: killed"}


def test_judging():
    truth = [(1.0, 1.0 + 1e-9)]
    assert runner.judge({"upper": 1.1}, truth)["error_above"] == pytest.approx(0.1)
    assert runner.judge({"upper": 1.1}, truth)["wrong"] == 0
    assert runner.judge({"upper": 0.999}, truth)["wrong"] == 1
    assert runner.judge({"lower": 1.001, "upper": 2.0}, truth)["wrong"] == 1
    assert runner.judge({"uppers": [math.inf]}, truth) == {"wrong": 0, "silent": 1}
    # JSON has no word for infinity in some libraries' answers: null is no answer either.
    assert runner.judge({"uppers": [None]}, truth) == {"wrong": 0, "silent": 1}


def test_results_are_strict_json(tmp_path):
    report.write(tmp_path / "numbers.json", {"rows": [{"upper": math.inf, "seconds": np.float32(0.5)}]})
    text = (tmp_path / "numbers.json").read_text()
    rows = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["rows"]
    assert rows == [{"upper": "inf", "seconds": 0.5}]


def test_divergences_by_quadrature_and_by_the_sum():
    """At whole orders the moment is a finite sum of positive terms."""
    for noise, rate, order in ((1.0, 0.01, 2), (0.7, 0.1, 5), (4.0, 1e-3, 32)):
        terms = (
            math.comb(order, j) * (1 - rate) ** (order - j) * rate**j * math.expm1(j * (j - 1) / (2 * noise**2))
            for j in range(2, order + 1)
        )
        exact = math.log1p(math.fsum(terms)) / (order - 1)
        assert truths.divergence(noise, rate, float(order)) == pytest.approx(exact, rel=1e-10)


def test_pages_show_what_there_is():
    page = tables.markdown({
        "machine": {"processor": "P", "load": 0.0}, "versions": {}, "commit": "c", "cores": 1, "quick": False,
        "cases": {
            "step": {"title": "t", "task": "step", "truth": {"brackets": []}, "rows": [
                {"contender": "a", "library": "opacus", "error": "took | too long"},
                {"contender": "b", "library": "opacus", "seconds": 2.0, "plain_seconds": 1.0, "ratio": 2.0,
                 "peak_mib": 1.0, "version": "1"},
            ]},
        },
    })  # fmt: skip
    assert "took \\| too long" in page
    assert "| 2.00 |" in page


def test_claims_are_of_cases_that_run():
    for claim in claims.CLAIMS:
        names = {contender.name for contender in CASES[claim.case](False).contenders}
        assert any(
            name in names for name in ("jaxacct", "jaxacct, mesh", "jaxacct, ghost", "jaxacct, one vmapped call")
        )
    assert all(record["verdict"] == "not measured" for record in claims.judge({}))
    assert all(record["measured"] is None for record in claims.judge({name: {"rows": []} for name in CASES}))


def row(contender, seconds, error, **more):
    library = "jaxacct" if contender.startswith("jaxacct") else contender
    return {
        "contender": contender,
        "library": library,
        "seconds_each": seconds,
        "error_above": error,
        "items": 1,
    } | more


def test_claims_compare_at_equal_error_and_say_what_is_missed():
    rows = [
        row("jaxacct, mesh", 1.0, 5e-3),
        row("jaxacct, mesh", 2.0, 5e-4),
        row("jaxacct, mesh", 1e-3, -1e-3),  # below the truth: no answer, however fast
        row("dp-accounting", 8.5, 9e-3),
        row("dp-accounting", 18.0, 9e-4),
        row("dp-accounting", 1e-3, -1e-2),
        {"contender": "prv-accountant", "library": "prv-accountant", "error": "not there"},
    ]
    found = {record["claim"]: record for record in claims.judge({"accuracy": {"rows": rows}})}
    by_level = {level: f"time to reach error {level:g}, 10^4 steps: dp-accounting / `ja.prv`" for level in (1e-2, 1e-3)}
    assert found[by_level[1e-2]]["measured"] == pytest.approx(8.5)
    assert found[by_level[1e-2]]["verdict"] == "met"
    assert found[by_level[1e-3]]["measured"] == pytest.approx(9.0)
    assert found[by_level[1e-3]]["verdict"] == "missed"
    peer = "the same: prv-accountant / `ja.prv`, error 0.01"
    assert found[peer]["verdict"] == "not measured"

    many = [row("jaxacct, mesh", 1.0, 1e-5), row("dp-accounting", 8.0, 1e-3, interval=1e-3)]
    many.append(row("dp-accounting", 60.0, 1e-4, interval=1e-4))
    records = claims.judge({"heterogeneous": {"rows": many}})
    (missed,) = (record for record in records if record["verdict"] == "missed")
    (met,) = (record for record in records if record["verdict"] == "met")
    assert missed["measured"] == pytest.approx(8.0)
    assert missed["reason"] == claims.FIRST_CALLS
    assert met["measured"] == pytest.approx(60.0)
    lines = claims.table(records)
    assert any("missed: " + claims.FIRST_CALLS in line for line in lines)
    assert len(lines) == 2 + len(claims.CLAIMS)


def test_a_page_cites_every_record():
    root = command.RESULTS.parents[1]
    paths = [root / "README.md", root / "bench" / "README.md", *(root / "docs").glob("**/*.md")]
    pages = "\n".join(path.read_text() for path in paths)
    kept = {path.name for path in command.RESULTS.iterdir()} - {"suite.json"}  # suite.md and the README show that one
    drawn = {f"suite-{name}.png" for name in CASES}
    assert len(kept - drawn) > 10
    assert not {name for name in kept - drawn if f"bench/results/{name}" not in pages}
    assert len(drawn & kept) >= 2


def test_every_script_has_its_line_in_the_readme():
    text = (command.HERE / "README.md").read_text()
    assert not {name for name in command.scripts() if f"`{name}`" not in text}


def test_the_readme_shows_the_last_results(tmp_path):
    """The table is that of bench/results, word for word; the command that measures writes both."""
    results = json.loads((command.RESULTS / "suite.json").read_text())
    _, shown, _ = readme.split(readme.README.read_text())
    assert shown == readme.block(results)
    assert [record["claim"] for record in results["claims"]] == [claim.text for claim in claims.CLAIMS]
    copy = tmp_path / "README.md"
    copy.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    readme.update(results, copy)
    assert copy.read_text() == f"before\n{readme.BEGIN}\n{readme.block(results)}\n{readme.END}\nafter\n"
    with pytest.raises(ValueError, match="no place for the claims"):
        readme.split("nothing")
