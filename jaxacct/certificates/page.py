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
    claim, bracket = made["claim"], made["bracket"]
    text = escaping.escape
    shown = ""
    if picture is not None:
        data = base64.b64encode(picture).decode()
        shown = f'<img alt="The most successful attack" src="data:image/png;base64,{data}">'
    facts = {
        "epsilon, delta": f"{claim['epsilon']!r}, {claim['delta']!r}",
        f"bracket of {bracket['quantity']} at {bracket['given']!r}": f"{bracket['lower']!r} to {bracket['upper']!r}",
        "by": made["route"],
        "referee": f"{made['verdict']['status']}: {made['verdict']['reason']}",
        "relation, unit, group": f"{made['relation']}, {made['unit']}, {made['group']}",
        "made": f"{made['made']}, " + ", ".join(f"{name} {version}" for name, version in made["versions"].items()),
    }
    rows = "".join(f"<tr><th>{text(name)}</th><td>{text(fact)}</td></tr>\n" for name, fact in facts.items())
    releases = "".join(
        f"<tr><td>{text(str(one['count']))}</td><td>{text(strict_json.dumps(one['mechanism']))}</td></tr>\n"
        for one in made["releases"]
    )
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
<p><small>spec {made["sha256"]["spec"]}, code {made["sha256"]["code"]}. Check this folder: jaxacct certify --check
FOLDER.</small></p>
</body></html>
"""


def without_picture(text: str) -> str:
    """Returns a page as it is without its picture."""
    return PICTURE.sub("", text, count=1)
