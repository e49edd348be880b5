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
from jaxacct.adapters.opacus import checkpoint_history
from jaxacct.specs.parts import READERS


def read(name: str) -> dict[str, Any]:
    """Returns the spec in a file, ``-`` for standard input, with the files that it names read into it."""
    path = pathlib.Path(name)
    value = strict_json.loads(sys.stdin.buffer.read()) if name == "-" else _loaded(path)
    return _whole(_as_spec(value, name), path.parent, name)


def _loaded(path: pathlib.Path) -> Any:
    """Returns what a file holds; raises ValueError, with the file's name, where nothing can be read of it."""
    if zipfile.is_zipfile(path):
        return [list(run) for run in checkpoint_history(path)]
    loaders: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".yaml": _yaml, ".yml": _yaml}
    load = loaders.get(path.suffix.lower(), strict_json.loads)
    try:
        return strict_json.loads(strict_json.dumps(load(path.read_text(encoding="utf-8"))))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is not read as {path.suffix or 'JSON'} ({error}): mend that; dates in quotes."
        ) from None


def _yaml(text: str) -> Any:
    if importlib.util.find_spec("yaml") is None:
        raise ModuleNotFoundError("YAML needs PyYAML, which is missing: pip install pyyaml, or give JSON or TOML.")
    yaml = importlib.import_module("yaml")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _as_spec(value: Any, name: str) -> dict[str, Any]:
    """Returns a spec, or what stands for one by itself."""
    if isinstance(value, list):
        return {"parts": [{"opacus": value}]}
    if isinstance(value, dict):
        kinds = {"parts": None, "final": "report", "history": "opacus", "class_name": "dp_event", "type": "mechanism"}
        kind = next((kind for key, kind in kinds.items() if key in value), "")
        if kind is None or kind == "mechanism":
            return value if kind is None else {"parts": [value]}
        if kind:
            return {"parts": [{kind: value["history"] if kind == "opacus" else value}]}
    raise ValueError(
        f"{name} is no spec: give an object with parts, a report.json of jaxacct train, a history of Opacus "
        "[[noise, rate, steps], ...], or a dp_event with its class_name."
    )


def _whole(spec: dict[str, Any], folder: pathlib.Path, name: str) -> dict[str, Any]:
    """Returns a spec with what its parts name as files in their places, and without the course of a training."""

    def embedded(part: Any) -> Any:
        for reader in READERS if isinstance(part, dict) else ():
            if isinstance(part.get(reader), str):
                (inner,) = _as_spec(_loaded(folder / part[reader]), str(folder / part[reader]))["parts"]
                if reader not in inner:
                    raise ValueError(f"{folder / part[reader]} is no {reader}, as {name} says: give one.")
                part = part | inner
        if isinstance(part, dict) and isinstance(part.get("report"), dict):
            part = part | {"report": {key: value for key, value in part["report"].items() if key != "history"}}
        return part

    parts = spec["parts"]
    return spec | {"parts": [embedded(part) for part in parts] if isinstance(parts, list) else parts}
