"""Tests that every file states the same version and the same requirements."""

import json
import pathlib
import re
import tomllib

import jaxacct

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def listed(text, title):
    """The entries of a list of YAML."""
    return re.findall(r"^ +- (.*)$", re.search(rf"^ *{title}:\n((?: +- .*\n)+)", text, re.M)[1], re.M)


def test_citation_changelog_and_recipe_are_of_this_version():
    version = re.escape(jaxacct.__version__)
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert re.search(rf"^  version: {version}$", (ROOT / "packaging" / "recipe.yaml").read_text(), re.M)
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] in (jaxacct.__version__, "Unreleased")


def test_an_entry_of_the_changelog_is_a_line():
    body = (ROOT / "CHANGELOG.md").read_text().split("\n## ", 1)[1]
    entries = [line for line in body.splitlines() if line.startswith("- ")]
    assert len(entries) > 200
    assert not [entry for entry in entries if len(entry) > 200]
    assert not re.findall(r"^- .*\n[ \t]+\S", body, re.M), "an entry goes on in a second line"


def test_the_recipe_needs_what_the_package_needs():
    recipe = (ROOT / "packaging" / "recipe.yaml").read_text()
    wanted = ["python" + PROJECT["project"]["requires-python"], *PROJECT["project"]["dependencies"]]
    assert [entry.replace(" ", "") for entry in listed(recipe, "run")] == wanted
    (backend,) = PROJECT["build-system"]["requires"]
    assert backend in [entry.replace(" ", "") for entry in listed(recipe, "host")]
    assert listed(recipe, "entry_points") == [f"jaxacct = {PROJECT['project']['scripts']['jaxacct']}"]


def test_the_locked_environment_satisfies_the_floors():
    locked = dict(re.findall(r"^([\w.-]+)==([\d.]+)", (ROOT / ".ci" / "requirements.lock").read_text(), re.M))
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [
        *PROJECT["project"]["dependencies"],
        *(line for extra in ("train", "test", "docs") for line in extras[extra]),
    ]
    for name, floor in (re.match(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)", line).groups() for line in asked if ">=" in line):
        numbers = ([int(part) for part in text.split(".")] for text in (locked[name.lower()], floor))
        assert next(numbers) >= next(numbers), name


def test_the_container_is_locked():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert ".ci/requirements.lock" in container["postCreateCommand"]
