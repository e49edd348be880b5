"""A certificate as one page: for a browser, with nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import html as escaping
import re
from typing import Any

from jaxacct import strict_json

HTML = "certificate.html"

PICTURE = re.compile(r'<img [^>]*src="data:image/png;base64,[^"]*">')

STYLE = """body{font:16px/1.5 system-ui,sans-serif;color:#26323f;max-width:46rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:1.4rem 0 .3rem}table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;border-top:1px solid #d9dee3;padding:.3rem .6rem .3rem 0}
td{overflow-wrap:anywhere}
.big{font-size:1.2rem}img{max-width:100%}small{color:#5a6672;overflow-wrap:anywhere}
@media print{body{margin:0;font-size:11px}}"""


def html(made: dict[str, Any], picture: bytes | None) -> str:
    """Returns the page; ``picture`` is a PNG."""
    text = escaping.escape
    shown = ""
    if picture is not None:
        data = base64.b64encode(picture).decode()
        shown = f'<img alt="The most successful attack" src="data:image/png;base64,{data}">'
    rows = "".join(f"<tr><th>{text(name)}</th><td>{text(fact)}</td></tr>\n" for name, fact in facts(made))
    releases = "".join(f"<tr><td>{text(count)}</td><td>{text(what)}</td></tr>\n" for count, what in released(made))
    assumed = "".join(
        f"<tr><td>{text(one['text'])}</td><td>{text(one['said_by'])}</td><td>{text(one['void_if'])}</td></tr>\n"
        for one in made["assumptions"]
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Certificate of differential privacy</title><style>{STYLE}</style></head><body>
<h1>Certificate of differential privacy</h1>
<p class="big">{text(made["statement"])}</p>
{shown}
<h2>What was released</h2><table><tr><th>times</th><th>mechanism</th></tr>
{releases}</table>
<h2>What this assumes, who says so, and what would void it</h2>
<table><tr><th>assumed</th><th>said by</th><th>void if</th></tr>
{assumed}</table>
<h2>What is proved, and how</h2><table>
{rows}</table>
<p><small>{text(hashes(made))}</small></p>
</body></html>
"""


def facts(made: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns what is proved, and how, as names and texts."""
    claim, bracket, verdict = made["claim"], made["bracket"], made["verdict"]
    return [
        ("epsilon, delta", f"{claim['epsilon']!r}, {claim['delta']!r}"),
        (f"bracket of {bracket['quantity']} at {bracket['given']!r}", f"{bracket['lower']!r} to {bracket['upper']!r}"),
        ("by", made["route"]),
        ("referee", f"{verdict['status']}: {verdict['reason']}"),
        ("relation, unit, group", f"{made['relation']}, {made['unit']}, {made['group']}"),
        ("made", ", ".join([made["made"], *(f"{name} {version}" for name, version in made["versions"].items())])),
    ]


def released(made: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns what was released: how often, and the mechanism."""
    return [(str(one["count"]), strict_json.dumps(one["mechanism"])) for one in made["releases"]]


def hashes(made: dict[str, Any]) -> str:
    """Returns the sentence of what was hashed, and of how a folder is checked."""
    known = made["sha256"]
    return f"spec {known['spec']}, code {known['code']}. Check this folder: jaxacct certify --check FOLDER."


def printed(made: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Returns what the page says below its statement and picture, for paper: headings, and the texts below each."""
    return [
        ("What was released", [f"{count} times {what}" for count, what in released(made)]),
        (
            "What this assumes, who says so, and what would void it",
            [f"{i}. {one['text']} Said by: {one['said_by']}. Void if: {one['void_if']}"
             for i, one in enumerate(made["assumptions"], 1)],
        ),
        ("What is proved, and how", [*(f"{name}: {fact}" for name, fact in facts(made)), hashes(made)]),
    ]  # fmt: skip


def without_picture(text: str) -> str:
    """Returns a page as it is without its picture."""
    return PICTURE.sub("", text, count=1)
