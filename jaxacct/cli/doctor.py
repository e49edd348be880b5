"""``jaxacct doctor``: what computes here, whether it computes right, and what is installed."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from typing import Any

from jaxacct.cli.arguments import add_json, examples
from jaxacct.cli.cache import folder
from jaxacct.cli.shown import print_facts, show

PACKAGES = {
    "numpy": "", "jax": "", "jaxlib": "", "flax": "train", "optax": "train", "orbax-checkpoint": "train",
    "matplotlib": "plot", "zarr": "sweep", "pyarrow": "sweep", "python-flint": "verify", "shtab": "completion",
    "pyyaml": "", "dp-accounting": "", "opacus": "",
}  # fmt: skip
"""What is of use here, and the extra that brings it."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = commands.add_parser(
        "doctor",
        help="versions, devices, arithmetic, cache: what a report of a defect needs",
        description="Says what computes here, asks it for a table of functions whose values are known, and lists what "
        "is installed. Ends with code 1 where the arithmetic is not what certificates assume.",
        epilog=examples("jaxacct doctor", "jaxacct doctor --json"),
    )
    add_json(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Looks, prints what it found, and returns the exit code."""
    record = _found()
    show(record, arguments.json, lambda: _print(record))
    return 0 if all(verdict == "sound" for verdict in record["arithmetic"].values()) else 1


def _found() -> dict[str, Any]:
    import jax

    from jaxacct import __version__, elementary
    from jaxacct.arithmetic import UnsoundBackendError

    record: dict[str, Any] = {
        "version": __version__, "python": platform.python_version(), "system": platform.platform(),
    }  # fmt: skip
    try:
        record["devices"] = [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
    except RuntimeError as error:  # a platform that is asked for and not there
        return record | {"devices": [], "arithmetic": {"none": str(error).splitlines()[0]}} | _around()
    arithmetic = {}
    for by in elementary.By:
        try:
            elementary.check(by)
            arithmetic[by.value] = "sound"
        except UnsoundBackendError as error:
            arithmetic[by.value] = str(error)
    return record | {"arithmetic": arithmetic} | _around()


def _around() -> dict[str, Any]:
    kept = folder()
    files = [] if kept is None else [path for path in kept.rglob("*") if path.is_file()]
    installed = {name: next((one.version for one in metadata.distributions(name=name)), None) for name in PACKAGES}
    return {
        "cache": None if kept is None else str(kept),
        "cache_bytes": sum(path.stat().st_size for path in files),
        "installed": installed,
    }


def _print(record: dict[str, Any]) -> None:
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
    print_facts("", facts)
