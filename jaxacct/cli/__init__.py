"""The command ``jaxacct``: one file for each group of commands; this one takes the arguments and reports errors.

Exit codes: 0 done, 1 an audit refutes its claim, 2 bad input (one line on standard error says what and how to mend it),
130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

from jaxacct.cli import accounting, audit, calibration, figures, sweep, training

USER_ERRORS = (ValueError, OSError, ModuleNotFoundError)
"""What wrong input raises, in this library and in the standard one; anything else is a defect and shows its trace."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = build_parser()
    parsed = parser.parse_args(arguments)
    _keep_compilations()
    try:
        return parsed.run(parsed)
    except USER_ERRORS as error:
        if os.environ.get("JAXACCT_TRACEBACK"):
            raise
        print(f"jaxacct {parsed.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"jaxacct {parsed.command}: interrupted.", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="jaxacct",
        description="Differential-privacy accounting and private training in JAX.",
        epilog="JAXACCT_CACHE_DIR sets where compiled programs are kept (empty: nowhere); "
        "JAXACCT_TRACEBACK=1 shows the trace of an error.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    accounting.add_parser(commands)
    calibration.add_parser(commands)
    sweep.add_parser(commands)
    training.add_parser(commands)
    audit.add_parser(commands)
    figures.add_parser(commands)
    return parser


def _keep_compilations() -> None:
    """Keeps compiled programs between runs of the command: the first call of a kind takes seconds, the next ones less.

    Only here: a library must leave the process's JAX settings alone, an application may choose them.
    """
    import jax

    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "jaxacct"
    folder = os.environ.get("JAXACCT_CACHE_DIR", str(default))
    if folder and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
