"""The command that computes the papers' figures and tables: its list, its files, and numbers against arithmetic."""

import csv
import sys

import mpmath as mp
import numpy as np
import pytest

from bench import papers
from bench.papers.__main__ import main
from bench.papers.exhibits import Table, write_markdown
from jaxacct.plot import Chart, Series, write_csv


def corollary(epsilon, rate, noise):
    """Delta of the corollary as printed, T = 100, L = 1, by arithmetic of 40 digits."""
    with mp.workdps(40):
        tail = lambda x: mp.erfc(x / mp.sqrt(2)) / 2  # noqa: E731
        e, rate, noise = mp.mpf(epsilon), mp.mpf(rate), mp.mpf(noise)
        theta = lambda r: tail(e / r - r / 2) - mp.exp(e) * tail(e / r + r / 2)  # noqa: E731
        return float(theta(2 / noise) / (100 * (1 - theta((1 + 2 * rate) / (rate * noise)))))


@pytest.mark.exhaustive
def test_one_figure_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["papers", "--out", str(tmp_path / "new"), "--only", "asoodeh-stopped-5"])
    assert main() == 0
    numbers, picture = capsys.readouterr().out.splitlines()
    with open(numbers, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 50
    for row in rows[::10]:
        exact = corollary(float(row["epsilon"]), 0.05, 5.0)
        assert float(row["delta_contraction"]) == pytest.approx(exact, rel=1e-11)
        assert float(row["delta_best"]) <= float(row["delta_recursive"]) <= float(row["delta_contraction"])
        assert float(row["delta_best"]) <= float(row["delta_moments"]) <= float(row["delta_feldman"])
    # The reference: for large epsilon e^-O(epsilon) against e^-O(epsilon^2).
    feldman, contraction = (
        np.array([float(row[f"delta_{name}"]) for row in rows]) for name in ("feldman", "contraction")
    )
    assert contraction[-1] < 1e-6 * feldman[-1]
    with open(picture, "rb") as file:
        assert file.read(4) == b"\x89PNG"


@pytest.mark.exhaustive
def test_odometers_in_the_papers_order_and_above_planning():
    # The comparison's claim: both new odometers improve on the original one, each best at another time.
    chart = papers.EXHIBITS["whitehouse-odometers"].build()
    values = {curve.name: np.asarray(curve.values) for curve in chart.curves}
    for name in ("stitched", "mixture", "filter", "ville"):
        assert np.all(values[name][59:] < values["rogers"][59:])
    assert values["stitched"][0] < values["mixture"][0]
    assert values["mixture"][-1] < values["stitched"][-1]
    late = slice(40, None)  # for few algorithms the sum of the epsilons is the least bound
    assert all(np.all(values[name][late] > values["planned"][late]) for name in values if name != "planned")


def test_list_names_every_exhibit_in_80_columns(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["papers", "--list"])
    assert main() == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in papers.EXHIBITS)
    assert max(map(len, printed.splitlines())) <= 80


def test_an_unknown_name_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["papers", "--only", "figure-99"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert "figure-99" in errors
    assert "asoodeh-stopped-5" in errors


def test_numbers_read_back_exactly_and_tables_round_bounds_up(tmp_path):
    chart = Chart("t", "x", "x", "y", np.array([0.1, 2.0]), [Series("a", "a", np.array([1 / 3, np.inf]))])
    write_csv(chart.header, chart.rows, tmp_path / "c.csv")
    assert (tmp_path / "c.csv").read_text() == "x,a\n0.1,0.3333333333333333\n2.0,inf\n"
    table = Table(
        "T", ("name", "upper", "mu"), [("m", 1.23401, 0.12349), (None, np.inf, 2.0)], {"upper": 2, "mu": 2}, ("upper",)
    )
    write_markdown(table, tmp_path / "t.md")
    assert "| m | 1.24 | 0.12 |" in (tmp_path / "t.md").read_text()
    assert "|  | inf | 2.00 |" in (tmp_path / "t.md").read_text()


def test_printed_readings_of_the_odometer_by_its_base():
    printed, text, _, quarter, *_ = (np.array(row[1:]) for row in papers.EXHIBITS["lecuyer-bases"].build().rows)
    np.testing.assert_allclose(quarter, printed, rtol=0.05)
    assert np.round(text / printed - 1, 2).tolist() == [0.02, 0.35, 0.66]


def test_rules_for_one_order_are_in_order():
    rules = {curve.name: curve.values for curve in papers.EXHIBITS["asoodeh-order-2"].build().curves}
    for least, most in (("optimal", "closed"), ("closed", "improved"), ("improved", "mironov")):
        assert np.all(rules[f"epsilon_{least}"] <= rules[f"epsilon_{most}"] * (1 + 1e-12))
