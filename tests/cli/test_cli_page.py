"""The page of the command line: its tables of keys are those of what the commands print as JSON."""

import pathlib
import re

import pytest
from helpers.command_line import CALIBRATE, COMMANDS, EPSILON, RUN, answer, runner

from jaxacct import DiscreteLaplace, release

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "command-line.md"


@pytest.fixture
def jaxacct(capsys, monkeypatch):
    return runner(capsys, monkeypatch)


ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)
KINDS = {
    "number": lambda v: type(v) in (int, float) or v in ("inf", "-inf", "nan"),
    "integer": lambda v: type(v) is int,
    "string": lambda v: type(v) is str,
    "boolean": lambda v: type(v) is bool,
    "object": lambda v: type(v) is dict,
    "null": lambda v: v is None,
}


def documented(title):
    """Returns the keys that the page documents for a command, each with its type."""
    sections = re.split(r"^### `jaxacct ([^`]+)`\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(ROW.findall(dict(zip(sections[1::2], sections[2::2], strict=True))[title]))


def fits(value, kind):
    """Whether a value is of a type as the page says it."""
    if kind.startswith("list of ") and " or " not in kind:
        return type(value) is list and all(
            fits(entry, kind.removeprefix("list of ").removesuffix("s")) for entry in value
        )
    if " or " in kind:
        return any(fits(value, one) for one in kind.split(" or "))
    return KINDS[kind](value)


def check(value, keys, prefix=""):
    """Asserts that a record has the documented keys, all of them and no others, of the documented types."""
    here = {name.removeprefix(prefix): kind for name, kind in keys.items() if name.startswith(prefix)}
    own = {name: kind for name, kind in here.items() if not re.search(r"\.|\[\]", name)}
    assert set(value) <= set(own), prefix
    assert {name for name, kind in own.items() if not kind.endswith(", optional")} <= set(value), prefix
    for name, entry in value.items():
        kind = own[name].removesuffix(", optional")
        assert fits(entry, kind), (prefix + name, entry, kind)
        if any(key.startswith(f"{name}.") for key in here) and entry is not None:
            check(entry, keys, f"{prefix}{name}.")
        if any(key.startswith(f"{name}[].") for key in here):
            assert entry
            for one in entry:
                check(one, keys, f"{prefix}{name}[].")


# Settings of other tests, where there are such: their programs are there already.
SWEEP = ["--noise-multiplier", "0.8:8:5:log", "--sampling-rate", "0.01,0.1", "--steps", "100,10000", "--delta", "1e-5",
         "--mode", "saddlepoint", "--relation", "remove"]  # fmt: skip
RECORDS = {
    "epsilon": EPSILON,
    "delta": ["delta", *RUN, "--epsilon", "4", "--accountant", "rdp"],
    "calibrate": CALIBRATE,
    "sweep": ["sweep", *SWEEP],
    "curve": ["curve", *RUN, "--kind", "tradeoff", "--fpr", "0:1:5"],
    "certify": ["certify", str(pathlib.Path(__file__).parents[1] / "data" / "spec.json")],
    "verify": ["verify", str(pathlib.Path(__file__).parents[1] / "verify" / "claim.json")],
    "train": ["train", "--epochs", "5", "--seed", "3", "--out", "run"],
    "audit": ["audit", "--runs", "1", "--steps", "20", "--canaries", "20", "--guesses", "4"],
    "release show": ["release", "show", "year.jsonl"],
    "release count": ["release", "count", "people.csv", "--budget", "year.jsonl", "--scale", "20"],
    "doctor": ["doctor"],
}


@pytest.mark.parametrize("title", RECORDS)
def test_json_has_the_documented_keys(title, jaxacct, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if title == "train":
        pytest.importorskip("sklearn")
    if title.startswith("release"):
        budget = release.Budget.begin("year.jsonl", epsilon=1.0, delta=1e-6, unit="one person")
        budget.pay("count", DiscreteLaplace(20.0))
        pathlib.Path("people.csv").write_text("ward\nA\n")
    check(answer(jaxacct(*RECORDS[title], "--json")), documented(title))


@pytest.mark.exhaustive
def test_json_of_bands_has_the_documented_keys(jaxacct):
    run = ["--epsilon", 8, "--delta", 1e-5, "--sampling-rate", 0.1, "--steps", 64, "--bands", "4"]
    record = answer(jaxacct("calibrate", *run, "--json"))
    check(record, documented("calibrate"))
    assert (record["bands"], record["rate_in_group"], len(record["first_column"])) == (4, 0.4, 4)
    assert record["error_over_independent"] < 1
    assert "cyclic Poisson" in record["scope"]


def test_no_page_rounds_a_bound_to_the_nearest():
    """A bound that is cut is none: pages format ``Bounds`` themselves, which rounds outward."""
    pages = [*PAGE.parent.glob("*.md"), PAGE.parents[1] / "README.md"]
    assert len(pages) > 15
    for page in pages:
        assert not re.search(r"\.(upper|lower):|\.(upper|lower)\[[^]]*\]:|\| *(cut|head) -c", page.read_text()), page


def test_json_of_a_composition_has_the_documented_keys(jaxacct):
    run = ["--epsilon", 1, "--delta", 1e-5, "--mechanism", "gaussian"]
    check(answer(jaxacct("calibrate", *run, "--json")), documented("calibrate"))


def test_the_page_documents_every_command_and_a_wrong_key_is_noticed():
    assert {title.split()[0] for title in RECORDS} == set(COMMANDS)
    keys = {"a": "object", "a.b": "number", "c": "list of strings, optional"}
    check({"a": {"b": "inf"}}, keys)
    check({"a": {"b": 1.5}, "c": ["x"]}, keys)
    for wrong in ({}, {"a": {}}, {"a": {"b": 1, "d": 1}}, {"a": {"b": "x"}}, {"a": {"b": 1}, "c": "x"}):
        with pytest.raises(AssertionError):
            check(wrong, keys)
