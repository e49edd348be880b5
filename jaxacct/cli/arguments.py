"""What the commands' arguments share: one-line errors that say what was meant, numbers, a run of DP-SGD, examples."""

from __future__ import annotations

import argparse
import difflib
import pathlib
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxacct import rates

RELATIONS = ("add_or_remove", "add", "remove", "replace", "zero_out")

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of pictures."""

OTHER_WORDS = {
    "--noise-multiplier": "sigma noise noise-scale noise-std noise-stddev std stddev z noise-level",
    "--sampling-rate": "q p rate sample-rate sampling-prob sampling-probability subsampling-rate poisson-rate",
    "--batch-size": "b batch expected-batch-size lot lot-size minibatch-size logical-batch-size",
    "--examples": "n m num-examples n-examples dataset-size data-size num-samples num-records population-size",
    "--epochs": "e epoch num-epochs n-epochs max-epochs training-epochs",
    "--steps": "t k iterations iters num-steps n-steps num-iterations compositions num-compositions max-steps rounds",
    "--epsilon": "eps target-epsilon target-eps budget privacy-budget epsilon-budget",
    "--delta": "target-delta delta-budget",
    "--clip-norm": "c clip clipping-norm max-grad-norm l2-norm-clip clipping-threshold l2-clip max-norm",
    "--learning-rate": "lr step-size",
    "--microbatch-size": "microbatches num-microbatches physical-batch-size max-physical-batch-size",
    "--relation": "neighbors neighbours neighboring-relation neighbouring-relation adjacency",
    "--group": "group-size examples-per-user user-size",
    "--accountant": "method accounting backend",
    "--out": "o output output-dir out-dir output-file folder save",
    "--seed": "random-seed rng-seed rng",
    "--overwrite": "force f clobber",
    "--resume": "continue restart",
    "--data": "dataset-file csv input file",
    "--json": "format output-format",
    "--tolerance": "tol eps-error precision",
    "--scale": "laplace-scale laplace-noise",
}
"""What others call the arguments."""


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, with the word that is meant where one is not known; the usage is in ``--help``.

    A name is given in full: what begins like another today may be a third one tomorrow.
    """

    given: Sequence[str] = ()

    def __init__(self, **settings: Any) -> None:
        given: dict[str, Any] = {"formatter_class": Help, "allow_abbrev": False} | settings
        super().__init__(**given)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what it does not know here, where the options are known that may have been meant."""
        self.given = args or ()
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self._refuse(rest[0])
        return found, rest

    def _refuse(self, word: str) -> NoReturn:
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        known = [name for action in shown for name in action.option_strings if name.startswith("--")]
        name = word.partition("=")[0]
        plain = name.lstrip("-").replace("_", "-").casefold()
        meant = [right for right, others in OTHER_WORDS.items() if plain in others.split() and right in known]
        if not name.startswith("-"):
            self._end(f"{word!r} belongs to no argument: give --NAME VALUE")
        self._end(f"{word} is unknown{f': did you mean {meant[0]}?' if meant else nearest(f'--{plain}', known)}")

    def _end(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} ({self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse calls it for every argument with choices, commands included; its own says no nearest word.
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value!r} is unknown{nearest(str(value), list(action.choices))}")

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2."""
        known = [name for action in self._actions for name in action.option_strings]
        if "required" in message or " " in self.prog:  # a word that is not known is why
            for word in self.given:
                if word.startswith("--") and word.partition("=")[0] not in known:
                    self._refuse(word)
        self._end(message)


class Help(argparse.HelpFormatter):
    """Wraps what is prose, and leaves examples as they are: to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


def nearest(word: str, known: Sequence[str]) -> str:
    """Returns a question about the word that was meant, or all words that there are.

    >>> nearest("epsilno", ["epsilon", "delta"]), nearest("x", ["epsilon", "delta"])
    (': did you mean epsilon?', ': give one of epsilon, delta.')
    """
    begun = [name for name in known if len(word) > 2 and name.startswith(word)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(word, known, 1)
    return f": did you mean {close[0]}?" if close else f": give one of {', '.join(known)}."


def examples(*lines: str) -> str:
    """Returns a help text's last part: commands on a line each."""
    return "\n  ".join(["examples:" if len(lines) > 1 else "example:", *lines])


def number(text: str) -> float:
    """Returns the number that an argument says.

    >>> number("1e-5"), number("64/1000")
    (1e-05, 0.064)
    """
    try:
        return rates.number(text)
    except ValueError:
        remedy = "give a fraction, 0.01 for 1 %" if "%" in text else "give one such as 0.01, 64/1000, 1e-5 or 10000"
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: {remedy}") from None


def count(text: str) -> int:
    """Returns the number of examples that an argument says, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of examples: give a whole one, at least 1")
    return int(text)


class Elsewhere(argparse.Action):
    """An argument that other programs have: an error that says what to give in its place; ``const`` is the remedy."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str) -> None:
        super().__init__(option_strings, dest, nargs="?", const=const, help=argparse.SUPPRESS)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Called by argparse."""
        parser.error(f"{option} is no argument here: {self.const}")


def add_relation(command: argparse.ArgumentParser) -> None:
    """Adds the neighbouring relation."""
    command.add_argument(
        "--relation", choices=RELATIONS, default=None, help="neighbouring relation (default: add_or_remove)"
    )


def add_json(command: argparse.ArgumentParser, what: str = "print one JSON object instead of a table") -> None:
    """Adds the choice of the output."""
    command.add_argument("--json", action="store_true", help=what)


def add_overwrite(command: argparse.ArgumentParser, what: str = "replace files that are there") -> None:
    """Adds the leave to overwrite."""
    command.add_argument("--overwrite", action="store_true", help=what)


def check_free(path: pathlib.Path, arguments: argparse.Namespace) -> None:
    """Raises ValueError where a file is there that is not to be overwritten."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it.")
    if path.exists() and not arguments.overwrite:
        raise ValueError(f"{path} is there: give --overwrite to replace it, or another name.")
