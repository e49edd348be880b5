"""The programs of the page for one's own models: short, whole, and what they print is what their comments say."""

import pathlib
import re

import pytest
from helpers.pages import run, snippets

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "train-your-own-model.md"

MOST_LINES = 30

PROGRAMS = dict(zip(re.findall(r"^## (.*)$", PAGE.read_text(), re.M), snippets(PAGE.read_text()), strict=True))


@pytest.mark.first_tier(*(title for title in PROGRAMS if title != "Settings chosen on the way"))
@pytest.mark.parametrize("title", PROGRAMS)
def test_each_program_runs_by_itself(title, tmp_path, monkeypatch):
    code = PROGRAMS[title]
    for package in {"equinox", "tensorboardX"} & set(re.findall(r"^(?:import|from) (\w+)", code, re.M)):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # some write files
    assert len([line for line in code.splitlines() if line.strip()]) <= MOST_LINES
    assert run(code, {}) >= 1
