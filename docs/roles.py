"""Docstrings as the documentation shows them: Sphinx roles become code, doctests blocks, and packages show one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):`(~?)([^`]+)`")
DOCTEST = re.compile(r"^( *)>>> ")

SHOWN = {
    "adapters": "from_history", "audit": "epsilon_lower_bound", "calibrate": "noise_multiplier", "certificates":
    "certify", "convert": "rdp_to_epsilon", "factorize": "noise_multiplier",
    "filters": "RenyiFilter", "gdp": "certified_mu", "iteration": "stopped_rdp", "mechanisms":
    "ExponentialMechanism", "menus": "certify", "monte_carlo": "delta", "odometers": "VilleOdometer", "plot":
    "epsilon_over_steps", "policies": "SpendRemaining", "prv": "epsilon", "rdp": "epsilon", "saddlepoint":
    "epsilon", "selection": "Geometric", "strategies": "square_root", "sweep": "noise_multiplier", "tradeoff":
    "TradeOff", "verify": "epsilon",
}  # fmt: skip
"""Whose doctest a package's page begins with."""


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
        for room, name in SHOWN.items() if pkg.name == "jaxacct" else ():
            _show(pkg[room], name)


def _show(room: griffe.Object, name: str) -> None:
    """Puts the doctest of a public name behind the first paragraph of its package."""
    entry = next(found for found in _entries(room, name) if found.docstring and "```pycon" in found.docstring.value)
    lines = entry.docstring.value.split("```pycon\n")[1].split("```")[0]
    if not re.search(rf"import .*\b(ja|{name})\b", lines):
        lines = f">>> from {room.path} import {name}\n{lines}"
    first, _, rest = room.docstring.value.partition("\n\n")
    room.docstring.value = f"{first}\n\n```pycon\n{lines}```\n\n{rest}"


def _entries(room: griffe.Object, name: str) -> Iterator[griffe.Object]:
    """Yields what has a name in a room: in its module, in the modules of its package, or where it is taken from."""
    modules = [room, *(member for member in room.members.values() if not member.is_alias and member.is_module)]
    for found in (module.members[name] for module in modules if name in module.members):
        while found.is_alias:
            found = room.package[found.target_path.removeprefix(f"{room.package.path}.")]
        yield found


def _rewrite(entry: griffe.Object) -> None:
    if entry.docstring is not None:
        entry.docstring.value = plain(entry.docstring.value)
    for member in entry.members.values():
        if not member.is_alias:
            _rewrite(member)
