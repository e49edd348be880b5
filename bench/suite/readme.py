"""The headlines of bench/results in the README, put there by the command that measures them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.suite import claims

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- claims: written by python -m bench -->", "<!-- claims: end -->"


def block(results: dict[str, Any]) -> str:
    """Returns what stands between the marks."""
    machine = results["machine"]
    head = f"On {results['cores']} core(s) of an {machine['processor']}, commit {results['commit'][:12]}:"
    return "\n".join([head, "", *claims.summary(results["claims"])])


def split(text: str) -> tuple[str, str, str]:
    """Returns the README before, between and after the marks."""
    before, begin, rest = text.partition(BEGIN)
    between, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no place for the claims: it needs the lines {BEGIN!r} and {END!r}.")
    return before + begin, between.strip("\n"), end + after


def update(results: dict[str, Any], readme: Path = README) -> None:
    """Writes the claims of ``results`` into the README."""
    before, _, after = split(readme.read_text())
    readme.write_text(f"{before}\n{block(results)}\n{after}")
