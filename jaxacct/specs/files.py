"""Specs in files, and what stands for one by itself."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import sys
import tomllib
import zipfile
from collections.abc import Callable
from typing import Any

from jaxacct import strict_json
from jaxacct.adapters.opacus_runs import checkpoint_history
from jaxacct.specs.parts import READERS

BY_KEY = {"parts": "", "final": "report", "history": "opacus", "class_name": "dp_event", "type": "type"}
"""What an object is, by a key that it has."""


def read(name: str) -> dict[str, Any]:
    """Returns the spec in a file, ``-`` for standard input, with what it names read into it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "spec.toml").write_text('delta = 1e-5')
    ...     _ = pathlib.Path(folder, "history.json").write_text("[[1.0, 0.01, 600]]")
    ...     read(f"{folder}/history.json")
    {'parts': [{'opacus': [[1.0, 0.01, 600]]}]}
    """
    path = pathlib.Path(name)
    spec = _as_spec(strict_json.loads(sys.stdin.buffer.read()) if name == "-" else _loaded(path), name)
    parts = spec["parts"]
    return spec | {"parts": [_embedded(part, path.parent) for part in parts] if isinstance(parts, list) else parts}


def _as_spec(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, list):
        return {"parts": [{"opacus": value}]}
    kind = next((kind for key, kind in BY_KEY.items() if isinstance(value, dict) and key in value), None)
    if kind is None:
        raise ValueError(
            f"{name} is no spec: give an object with parts, a report.json of jaxacct train, a history of Opacus "
            "[[noise, rate, steps], ...], or a dp_event with its class_name."
        )
    if kind == "":
        return dict(value)
    return {"parts": [value if kind == "type" else {kind: value["history"] if kind == "opacus" else value}]}


def _embedded(part: Any, folder: pathlib.Path) -> Any:
    """Returns a part with what it names as a file in its place, and without the course of a training."""
    for reader in READERS if isinstance(part, dict) else ():
        if isinstance(part.get(reader), str):
            file = folder / part[reader]
            (inner,) = _as_spec(_loaded(file), str(file))["parts"]
            if reader not in inner:
                raise ValueError(f"{file} is no {reader}: give one.")
            part = part | inner
    if isinstance(part, dict) and isinstance(part.get("report"), dict):
        part = part | {"report": {key: value for key, value in part["report"].items() if key != "history"}}
    return part


def _loaded(path: pathlib.Path) -> Any:
    """Returns what a file holds; raises ValueError, with the file's name, where nothing can be read of it."""
    if zipfile.is_zipfile(path):
        return [list(run) for run in checkpoint_history(path)]
    loaders: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".yaml": _yaml, ".yml": _yaml}
    load = loaders.get(path.suffix.lower(), strict_json.loads)
    try:
        return strict_json.loads(strict_json.dumps(load(path.read_text(encoding="utf-8"))))
    except (ValueError, TypeError) as error:
        kind = path.suffix or "JSON"
        raise ValueError(f"{path} is not read as {kind} ({error}): mend that; dates in quotes.") from None


def _yaml(text: str) -> Any:
    if importlib.util.find_spec("yaml") is None:
        raise ModuleNotFoundError("YAML needs PyYAML, which is missing: pip install pyyaml, or give JSON or TOML.")
    yaml = importlib.import_module("yaml")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
