"""The command ``jaxacct``: its parser, its error messages and its exit codes; each group of commands has its own file.

A command makes a :class:`~.arguments.Report`, which this file prints. Exit codes: 0 done, 1 an audit refutes its claim
or the arithmetic is unsound, 2 bad input (one line on standard error says what is wrong and how to mend it), 3 and 4 a
claim is refuted or undecided, 70 a defect or a failed device (with its trace), 130 interrupted, 141 the reader of the
output is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import platform
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from jaxacct import __version__
from jaxacct.cli import accounting, audit, calibration, doctor, release, sweep, training, verify
from jaxacct.cli.arguments import Parser, as_line
from jaxacct.cli.doctor import keep_compilations
from jaxacct.processes import Interrupts


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    interrupts, name, report = Interrupts(), "jaxacct", None
    try:
        with _as_a_command(interrupts), interrupts:
            parsed = build_parser().parse_args(arguments)
            keep_compilations()
            name = f"jaxacct {parsed.command}"
            report = parsed.run(parsed)
            report.show(parsed.json)
            sys.stdout.flush()
        return report.code
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or (interrupts.is_pending and isinstance(error, Exception)):
            # Another library's code may have turned the interrupt into an exception of its own.
            said = f": {error}" if isinstance(error, KeyboardInterrupt) and str(error) else ""
            print(f"{name}: interrupted{said}.", file=sys.stderr)
            return 130
        if isinstance(error, BrokenPipeError):
            # Python must not try to write the rest of the buffer when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        if report is not None and isinstance(error, (ValueError, OSError)):  # no wrong input: what was asked is done
            if isinstance(error, OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            why = getattr(error, "strerror", None) or error
            print(as_line(f"{name}: error: {report.done}, but cannot be printed: {why}."), file=sys.stderr)
            return 74
        if isinstance(error, (ValueError, OSError, ModuleNotFoundError)):  # wrong input raises these
            if os.environ.get("JAXACCT_TRACEBACK"):
                traceback.print_exc()
            print(as_line(f"{name}: error: {_in_words(error)}"), file=sys.stderr)
            return 2
        if isinstance(error, Exception):  # Python's own exit code, 1, would look like an audit's
            traceback.print_exc()
            return 70
        raise


@contextlib.contextmanager
def _as_a_command(interrupts: Interrupts) -> Iterator[None]:
    """Shows warnings as lines, and raises a Ctrl-C that a callback swallowed once more, without a trace."""
    unraisable, hook = sys.unraisablehook, sys.excepthook

    def note_unraisable(what: Any) -> None:
        """Called for an exception that a callback cannot raise."""
        if not (interrupts.is_pending and issubclass(what.exc_type, KeyboardInterrupt)):
            unraisable(what)
        else:
            interrupts.send_again()

    def note_printing(kind: type[BaseException], *rest: Any) -> None:
        """Called where C prints an error on its way to another one, as NumPy's import does."""
        if not (interrupts.is_pending and issubclass(kind, KeyboardInterrupt)):
            hook(kind, *rest)

    with warnings.catch_warnings():
        warnings.showwarning, sys.unraisablehook, sys.excepthook = _say, note_unraisable, note_printing
        try:
            yield
        finally:
            sys.unraisablehook, sys.excepthook = unraisable, hook


def _in_words(error: BaseException) -> str:
    """Returns an error's message; that of a file or folder has the remedy, too."""
    words = {
        errno.ENOENT: "is not there: check the name",
        errno.EACCES: "may not be read or written by this user: change its mode, or name another place",
        errno.EPERM: "may not be changed by this user: name another place",
        errno.EROFS: "is on a disk that cannot be written to: name another place",
        errno.EISDIR: "is a folder: name a file",
        errno.ENOTDIR: "has a file where a folder should be: name another place",
        errno.EEXIST: "is there already: name another",
        errno.ENAMETOOLONG: "is too long a name: give a shorter one",
        errno.ENOSPC: "finds no room on the disk: make some, or name another place",
    }
    if isinstance(error, OSError) and error.errno in words:
        return f"{'the disk' if error.filename is None else error.filename} {words[error.errno]}."
    return str(error)


def _say(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Shows a warning as a line, without its place in the library, which is of no use to the user of a command."""
    print(as_line(f"jaxacct: warning: {message}"), file=sys.stderr)


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
    for add in (
        *(accounting.add_parser, calibration.add_parser, sweep.add_parser, accounting.add_curve),
        *(verify.add_certify, verify.add_parser, training.add_parser, audit.add_parser),
        *(release.add_parser, doctor.add_parser),
    ):
        add(commands)
    return parser


class Version(argparse.Action):
    """The action of --version: it prints versions and devices, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Called by argparse."""
        import jax

        print(f"jaxacct {__version__}, jax {jax.__version__}, Python {platform.python_version()}")
        try:
            print(f"devices: {', '.join(str(device) for device in jax.devices())}")
        except RuntimeError as error:  # a platform that the environment names, and that is not there
            print(f"devices: none ({str(error).splitlines()[0]})")
        parser.exit()


class Completion(argparse.Action):
    """The action of --print-completion: it prints a shell's completion script, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, shell: Any, *_: Any) -> None:
        """Called by argparse."""
        try:
            import shtab
        except ModuleNotFoundError:
            parser.error('--print-completion needs shtab, which is missing: pip install "jaxacct[completion]"')
        print(shtab.complete(parser, shell=shell))
        parser.exit()
