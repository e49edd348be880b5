"""The command ``jaxacct``: one file for each group of commands; this one takes the arguments and reports errors.

Exit codes: 0 done, 1 an audit refutes its claim, 2 bad input (one line on standard error says what and how to mend it),
3 and 4 a claim is refuted or undecided,
70 a defect or a device that failed (with its trace), 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from jaxacct.cli import accounting, audit, calibration, curve, explore, sweep, training, verify
from jaxacct.cli.arguments import Parser
from jaxacct.processes import Interrupts

USER_ERRORS = (ValueError, OSError, ModuleNotFoundError)
"""What wrong input raises, in this library and in the standard one."""

BY_THE_LIBRARY = ("epsilon", "delta", "calibrate", "verify")
"""Commands all of whose programs the library keeps by itself (:mod:`jaxacct.program_cache`)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = build_parser()
    parsed = parser.parse_args(arguments)
    if parsed.command not in BY_THE_LIBRARY:
        _keep_compilations()
    try:
        with warnings.catch_warnings(), Interrupts():
            warnings.showwarning = _say
            code = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is left in the buffer must not be tried again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except USER_ERRORS as error:
        if os.environ.get("JAXACCT_TRACEBACK"):
            traceback.print_exc()
        print(f"jaxacct {parsed.command}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"jaxacct {parsed.command}: interrupted.", file=sys.stderr)
        return 130
    except Exception:  # not Python's own code, 1, which is an audit's
        traceback.print_exc()
        return 70


def _say(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Shows a warning as a line: where in the library it arose is of no use to whoever runs a command."""
    print(f"jaxacct: warning: {message}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    parser = Parser(
        prog="jaxacct",
        description="Differential-privacy accounting and private training in JAX. "
        "jaxacct COMMAND --help has each command's arguments and examples.",
        epilog="JAXACCT_CACHE sets where compiled programs are kept (off: nowhere); JAX_PLATFORMS=cpu keeps off "
        "a GPU or TPU; NO_COLOR=1 leaves colour out; JAXACCT_TRACEBACK=1 shows the trace of an error.",
    )
    parser.add_argument("--version", action=Version, nargs=0, help="versions and devices, for a report of a defect")
    parser.add_argument(
        "--print-completion", action=Completion, metavar="SHELL", choices=("bash", "zsh", "tcsh"),
        help="print what makes bash, zsh or tcsh complete the commands and their arguments",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in (accounting, calibration, sweep, curve, explore, verify, training, audit):
        group.add_parser(commands)
    return parser


class Version(argparse.Action):
    """Prints what computes, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Called by argparse."""
        import jax

        from jaxacct import __version__

        print(f"jaxacct {__version__}, jax {jax.__version__}, Python {platform.python_version()}")
        try:
            print(f"devices: {', '.join(str(device) for device in jax.devices())}")
        except RuntimeError as error:  # a platform that is asked for and not there
            print(f"devices: none ({str(error).splitlines()[0]})")
        parser.exit()


class Completion(argparse.Action):
    """Prints a shell's completion script, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, shell: Any, *_: Any) -> None:
        """Called by argparse."""
        try:
            import shtab
        except ModuleNotFoundError:
            parser.error('--print-completion needs shtab, which is missing: pip install "jaxacct[completion]"')
        print(shtab.complete(parser, shell=shell))
        parser.exit()


def _keep_compilations() -> None:
    """Lets JAX keep what it compiles between runs of the command, beside the library's own programs.

    Only here: a library must leave the process's JAX settings alone, an application may choose them.
    """
    import jax

    from jaxacct import program_cache

    folder = program_cache.folder()
    if folder is not None and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(folder / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
