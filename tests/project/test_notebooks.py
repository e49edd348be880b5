"""The notebooks as they are kept: executed, small, and without traces of the machine they ran on.

That they still run is checked by ``.ci/run``, which executes each.
"""

import ast
import importlib
import inspect
import json
import pathlib
import re

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 300_000
PRIVATE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|usr)/\w")


def test_they_are_there():
    assert {path.stem for path in NOTEBOOKS} >= {
        "quickstart", "certified_bounds", "calibration", "adaptive_training", "sweeps", "papers", "menus",
    }  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_kept_outputs(path):
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run it from top to bottom"
    assert outputs, "run it, and keep what it shows"
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < MOST_BYTES
    for output in outputs:
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]
    texts = [cell["source"] for cell in notebook["cells"]]
    texts += [output.get("text", "") for output in outputs]
    texts += [text for output in outputs for kind, text in output.get("data", {}).items() if kind != "image/png"]
    for text in texts:
        assert not PRIVATE.search("".join(text)), text


def _value(node: ast.expr, names: dict) -> object:
    """The library's object that an expression of dotted names refers to; None: it is something else's."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := _value(node.value, names)) is not None:
        return getattr(owner, node.attr)
    return None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_names_and_keywords_exist(path):
    """Names of the library in the cells, and the keywords that they are called by, are those of today."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in cells))
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("jaxacct"):
                    names[alias.asname or alias.name] = importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxacct"):
            module = importlib.import_module(node.module)
            names |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        function = _value(node.func, names) if isinstance(node, ast.Call) else None
        if function is not None:
            keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(function).bind_partial(**keywords)
