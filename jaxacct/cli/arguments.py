"""What the commands' arguments share: one-line errors that say what was meant, numbers, a run of DP-SGD, examples."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

RELATIONS = ("add_or_remove", "add", "remove")

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of pictures."""


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, with the nearest word where one is not known; the usage is in ``--help``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Help} | settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what it does not know here, where the options are known that may have been meant."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
            known = [name for action in shown for name in action.option_strings if name.startswith("--")]
            self.error(f"{rest[0]} is unknown{nearest(rest[0].split('=')[0], known)}")
        return found, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse calls it for every argument with choices, commands included; its own says no nearest word.
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value!r} is unknown{nearest(value, list(action.choices))}")

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} ({self.prog} --help)\n")


class Help(argparse.HelpFormatter):
    """Wraps what is prose, and leaves examples as they are: to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


def nearest(word: str, known: Sequence[str]) -> str:
    """Returns a question about the word that was meant, or all words that there are.

    >>> nearest("epsilno", ["epsilon", "delta"]), nearest("x", ["epsilon", "delta"])
    (': did you mean epsilon?', ': give one of epsilon, delta.')
    """
    close = difflib.get_close_matches(word, known, 1)
    return f": did you mean {close[0]}?" if close else f": give one of {', '.join(known)}."


def examples(*lines: str) -> str:
    """Returns a help text's last part: commands on a line each."""
    return "\n  ".join(["examples:" if len(lines) > 1 else "example:", *lines])


def number(text: str) -> float:
    """Returns the number that an argument says.

    >>> number("1e-5")
    1e-05
    """
    try:
        return float(text)
    except ValueError:
        remedy = "give a fraction, 0.01 for 1 %" if "%" in text else "give one such as 0.01, 1e-5 or 10000"
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: {remedy}") from None


class Elsewhere(argparse.Action):
    """An argument that other programs have: an error that says what to give in its place; ``const`` is the remedy."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str) -> None:
        super().__init__(option_strings, dest, nargs="?", const=const, help=argparse.SUPPRESS)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Called by argparse."""
        parser.error(f"{option} is no argument here: {self.const}")


def add_run(command: argparse.ArgumentParser) -> None:
    """Adds what describes a run of DP-SGD."""
    command.add_argument(
        "--noise-multiplier", type=number, required=True, metavar="S",
        help="standard deviation of the noise over the clipping norm",
    )  # fmt: skip
    command.add_argument(
        "--sampling-rate", type=number, default=1.0, metavar="Q",
        help="probability of each example to be in a batch, a fraction in (0, 1] (default 1: no sampling)",
    )  # fmt: skip
    command.add_argument("--steps", type=number, required=True, metavar="K", help="number of noisy updates")
    add_relation(command)
    command.add_argument("--epochs", action=Elsewhere, const="give --steps, the epochs over the sampling rate")
    command.add_argument(
        "--batch-size", action=Elsewhere, const="give --sampling-rate, the batch size over the number of examples"
    )


def add_relation(command: argparse.ArgumentParser, relations: Sequence[str] = RELATIONS) -> None:
    """Adds the neighbouring relation."""
    command.add_argument(
        "--relation", choices=relations, default=RELATIONS[0], help="neighbouring relation (default: add_or_remove)"
    )


def add_json(command: argparse.ArgumentParser, what: str = "print one JSON object instead of a table") -> None:
    """Adds the choice of the output."""
    command.add_argument("--json", action="store_true", help=what)
