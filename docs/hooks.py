"""The hooks of the pages' build: the notebooks as pages, and the version in the footer."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[1]


NOTEBOOKS = (
    *("quickstart", "certified_bounds", "calibration", "adaptive_training", "menus", "correlated_noise", "sweeps"),
    "papers",
)
"""In the order of the navigation."""


def on_config(config: Any) -> None:
    """Says which version the pages are of, and puts the notebooks before the API."""
    version = re.search(r'^__version__ = "(.*)"', (ROOT / "jaxacct" / "__init__.py").read_text(), re.M)
    assert version is not None
    config.copyright = f"jaxacct {version[1]}"
    titles = [{name.capitalize().replace("_", " "): f"notebooks/{name}.md"} for name in NOTEBOOKS]
    config.nav.insert(len(config.nav) - 1, {"Notebooks": titles})


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Lets links to notebooks lead to their pages, and links to records of benchmarks to what :func:`on_files` adds."""
    markdown = re.sub(r"\(\.\./notebooks/(\w+)\.ipynb\)", r"(notebooks/\1.md)", markdown)
    return re.sub(r"\(\.\./(bench/results/[\w-]+\.(?:md|png))\)", r"(\1)", markdown)


def on_files(files: Files, config: Any) -> None:
    """Adds a page for each notebook, with the outputs that it is kept with, and the benchmarks' record and pictures."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        content = page_of(json.loads(path.read_text()))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    results = ROOT / "bench" / "results"
    for path in (results / "suite.md", *sorted(results.glob("*.png"))):
        files.append(File.generated(config, f"bench/results/{path.name}", abs_src_path=str(path)))


def page_of(notebook: dict[str, Any]) -> str:
    """Returns a notebook in Markdown, pictures inside."""
    parts = []
    for cell in notebook["cells"]:
        source = re.sub(r"\(\.\./docs/", "(../", "".join(cell["source"]))
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> str:
    """Returns one output of a cell."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![What the lines above draw](data:image/png;base64,{''.join(data['image/png']).strip()})"
    if "text/html" in data:
        return "".join(data["text/html"])
    return f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```"
