"""Docstrings as the documentation shows them: Sphinx roles become code, doctests become fenced blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):`(~?)([^`]+)`")
DOCTEST = re.compile(r"^( *)>>> ")


def plain(text: str) -> str:
    """Returns a docstring in Markdown."""
    return fenced(ROLE.sub(_code, text))


def _code(match: re.Match[str]) -> str:
    short, name = match.groups()
    return f"`{name.split('.')[-1] if short else name.lstrip('.')}`"


def fenced(text: str) -> str:
    """Returns the text with every doctest, from its first prompt to the next empty line, in a fence."""
    lines, inside = [], None
    for line in text.splitlines():
        start = DOCTEST.match(line)
        if inside is None and start:
            inside = start.group(1)
            lines += [f"{inside}```pycon"]
        elif inside is not None and not line.strip():
            lines += [f"{inside}```"]
            inside = None
        lines.append(line)
    if inside is not None:
        lines.append(f"{inside}```")
    return "\n".join(lines)


class Roles(griffe.Extension):
    """Rewrites every docstring of a package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called by griffe for each package."""
        _rewrite(pkg)


def _rewrite(entry: griffe.Object) -> None:
    if entry.docstring is not None:
        entry.docstring.value = plain(entry.docstring.value)
    for member in entry.members.values():
        if not member.is_alias:
            _rewrite(member)
