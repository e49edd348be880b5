"""Tests that public names and arguments of functions stay public, against a list that is part of a release.

``python tests/project/test_public_api.py`` writes the list anew. A line that goes or changes is a promise broken: say
so in CHANGELOG.md, and keep the old name with a warning for one minor version (CONTRIBUTING.md, "Versions").
"""

import enum
import importlib
import inspect
import pathlib
import sys
import typing

LIST = pathlib.Path(__file__).parents[1] / "data" / "public_api.txt"
ROOMS = (
    "adapters", "audit", "calibrate", "certificates", "convert", "factorize", "filters", "gdp", "iteration", "menus",
    "monte_carlo", "odometers", "plot", "policies", "prv", "rdp", "release", "saddlepoint", "selection", "specs",
    "strategies", "sweep", "tradeoff", "train", "verify",
)  # fmt: skip


def arguments_of(value):
    """Returns the names of arguments, with = where there is a default and * before those that are named."""
    if typing.get_origin(value) is not None or (inspect.isclass(value) and issubclass(value, enum.Enum)):
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    names = []
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and "*" not in names and not any(name.startswith("*") for name in names):
            names.append("*")
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        names.append(star + p.name + ("" if p.default is p.empty else "="))
    return f"({', '.join(names)})"


def public():
    lines = []
    for name in ("jaxacct", *(f"jaxacct.{room}" for room in ROOMS), "jaxacct_recipes"):
        module = importlib.import_module(name)
        for entry in sorted(getattr(module, "__all__", None) or dir(module)):
            value = getattr(module, entry)
            if entry.startswith("_") or inspect.ismodule(value):
                continue
            lines.append(f"{name}.{entry}{arguments_of(value) if callable(value) else ''}")
    return lines


def test_nothing_that_was_public_is_gone_or_called_otherwise():
    was, is_now = LIST.read_text().splitlines(), public()
    assert not sorted(set(was) - set(is_now)), __doc__
    assert not sorted(set(is_now) - set(was)), (
        "new names: python tests/project/test_public_api.py, and a line in CHANGELOG.md"
    )


if __name__ == "__main__":
    LIST.write_text("\n".join(public()) + "\n")
    sys.stdout.write(f"{LIST}: {len(public())} names\n")
