"""``jaxacct doctor``: a check of devices, arithmetic and installed packages."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from typing import Any

from jaxacct import __version__
from jaxacct.cli.arguments import (
    Report,
    add_json,
    new_command,
)
from jaxacct.cli.program_cache import folder

PACKAGES = {
    "numpy": "", "jax": "", "jaxlib": "", "flax": "train", "optax": "train", "orbax-checkpoint": "train",
    "matplotlib": "plot", "zarr": "sweep", "pyarrow": "sweep", "python-flint": "verify", "shtab": "completion",
    "pyyaml": "", "dp-accounting": "", "opacus": "",
}  # fmt: skip
"""Packages that the library can use, with the extra that installs each; "" where no extra does or none is needed."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = new_command(
        commands, "doctor", run, "versions, devices, arithmetic, cache: what a report of a defect needs",
        "Says what computes here, asks it for a table of functions whose values are known, and lists what "
        "is installed. Ends with code 1 where the arithmetic is not what certificates assume.",
        "jaxacct doctor", "jaxacct doctor --json",
    )  # fmt: skip
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    """Examines the machine, prints the findings, and returns the exit code."""
    record = _examine()
    _report(record).show(arguments.json)
    return 0 if all(verdict == "sound" for verdict in record["arithmetic"].values()) else 1


def _examine() -> dict[str, Any]:
    """Returns versions, devices, the verdict on each way of computing float64, and the folder of compiled programs."""
    import jax

    from jaxacct.numerics import elementary

    devices, arithmetic = [], {}
    try:
        devices = [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
    except RuntimeError as error:  # a platform that is asked for and not there
        arithmetic["none"] = str(error).splitlines()[0]
    # Each compiler is checked by itself: one may be sound where another is not.
    for by, results in elementary.compute(*elementary.ways()).items() if devices else ():
        arithmetic[by.value] = "; ".join(elementary.failures(*results)) or "sound"
    versions = {name: [found.version for found in metadata.distributions(name=name)] for name in PACKAGES}
    kept = folder()
    files = [] if kept is None else [path for path in kept.rglob("*") if path.is_file()]
    return {
        "version": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "devices": devices,
        "arithmetic": arithmetic,
        "cache": None if kept is None else str(kept),
        "cache_bytes": sum(path.stat().st_size for path in files),
        "installed": {name: next(iter(found), None) for name, found in versions.items()},
    }


def _report(record: dict[str, Any]) -> Report:
    """Returns the findings with their table."""
    missing = [f"{name} ([{extra}])" if extra else name
               for name, extra in PACKAGES.items() if record["installed"][name] is None]  # fmt: skip
    cache = "off" if record["cache"] is None else f"{record['cache']}, {record['cache_bytes'] / 2**20:.1f} MB"
    facts = [
        ("jaxacct", f"{record['version']}, Python {record['python']}, {record['system']}"),
        ("devices", ", ".join(record["devices"]) or "none"),
        *((f"float64 by {by}", verdict) for by, verdict in record["arithmetic"].items()),
        ("programs kept in", cache),
        ("installed", ", ".join(f"{name} {version}" for name, version in record["installed"].items() if version)),
        ("not installed", ", ".join(missing) or "nothing"),
    ]
    return Report(record, facts)
