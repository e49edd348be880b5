"""The pages as a whole: the first leads to all others, and every public name stands on one, in code."""

import pathlib
import re
from collections import Counter

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*") if path.suffix in (".md", ".html"))
NAMES = [
    line.split("(")[0].rpartition(".")[::2]
    for line in (ROOT / "tests" / "data" / "public_api.txt").read_text().splitlines()
]
"""Modules with what is public of them."""

COUNTS = Counter(name for _, name in NAMES)


def code_of(text):
    """Returns what stands in code on a page, in blocks and in lines, apart from what builds a page of docstrings."""
    blocks = re.findall(r"^```(?:python|sh|bash|pycon).*?\n(.*?)^```", text, re.M | re.S)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))])


WRITTEN = {path: code_of(path.read_text()) for path in [*PAGES, ROOT / "README.md"] if path.suffix == ".md"}


def is_named(module, name):
    """Whether a page has a name: with its room, or alone if no other room has it, or on the room's own page."""
    room = module.rpartition(".")[2]
    called = "ja" if module == "jaxacct" else room
    own = "\n".join(WRITTEN.get(DOCS / "api" / f"{page}.md", "") for page in ROOMS.get(room, (room,)))
    alone, within = re.compile(rf"(?<![\w-]){name}\b"), re.compile(rf"\b{called}\.{name}\b")
    return alone.search(own) or any(
        within.search(code) or (COUNTS[name] == 1 and alone.search(code)) for code in WRITTEN.values()
    )


ROOMS = {"jaxacct": ("top", "mechanisms"), "jaxacct_recipes": ("recipes",), "specs": ("certificates",)}
"""Rooms on pages of another name."""


def test_the_first_page_leads_to_every_other():
    links = set(re.findall(r"\]\(([^)#\s]+)", (DOCS / "index.md").read_text()))
    pages = {str(path.relative_to(DOCS)) for path in PAGES} - {"index.md"}
    assert len(pages) > 40
    assert not pages - links


def test_every_public_name_stands_on_a_page():
    assert len(NAMES) > 300
    assert not [f"{module}.{name}" for module, name in NAMES if not is_named(module, name)]


@pytest.mark.parametrize(("module", "name"), [("jaxacct.rdp", "no_such_name"), ("jaxacct.gdp", "load")])
def test_a_name_of_another_room_is_no_mention(module, name):
    assert not is_named(module, name)
