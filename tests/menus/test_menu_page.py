"""The programs of the page on adaptive menus: short, whole, and what they print is what their comments say."""

import pathlib

import pytest
from helpers.pages import run, snippets

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "adaptive-menus.md"

MOST_LINES = 25

PROGRAMS = snippets(PAGE.read_text())


@pytest.mark.first_tier("along the path")
@pytest.mark.parametrize("code", PROGRAMS, ids=["first use", "along the path"])
def test_each_program_runs_by_itself(code):
    assert len([line for line in code.splitlines() if line.strip()]) <= MOST_LINES
    assert run(code, {}) >= 1
