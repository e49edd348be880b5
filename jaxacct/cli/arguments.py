"""The common parts of all commands: text output, reasons for infinite bounds, arguments, and runs.

In reading order:

- :data:`GUARANTEES` to :func:`console`: reports as JSON and tables, with bounds rounded outward and no number cut.
- :func:`why`: the reason for an infinite epsilon.
- :class:`Parser` to :func:`file_to_write`: the parser, its one-line errors, and arguments that several commands take.
- :class:`Run` to :func:`run_of`: a run of DP-SGD, or a composition, from the arguments.
"""

from __future__ import annotations

import argparse
import difflib
import math
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, get_args

import jaxacct as ja
from jaxacct import display, json_files
from jaxacct.choices import Relation
from jaxacct.display import rounded_down, rounded_up, spell_count

if TYPE_CHECKING:
    from rich.console import Console


GUARANTEES = {
    "best": "certified: lower <= truth <= upper, rounding included",
    "prv": "certified: lower <= truth <= upper, rounding included",
    "rdp": "upper bound, by Rényi divergences",
    "saddlepoint": "certified: lower <= truth <= upper, rounding included; inf (delta: 1) where not converged",
}
"""Guarantees in words, by accountant."""


def scope_of(relation: str, group: int = 1, sampling: str = "Poisson sampling") -> str:
    """Returns in words the conditions under which a guarantee holds."""
    together = f", {group} examples together" if group > 1 else ""
    return f"noise, rate and steps fixed in advance; {sampling}; neighbours: {relation.replace('_', ' ')}{together}"


@dataclass(frozen=True)
class Report:
    """The result of a command: a record, which ``--json`` prints, the same in tables, and the exit code.

    Attributes:
        record: a JSON object.
        facts: names and texts, the last of the tables.
        title: that of the facts.
        columns: names, and rows of as many texts, which come first.
        remarks: lines between the two.
        code: exit code of the command.
        done: what is done, for a message where nothing can be printed.
    """

    record: Any = None
    facts: Sequence[tuple[str, str]] = ()
    title: str = ""
    columns: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None
    remarks: Sequence[str] = ()
    code: int = 0
    done: str = "the result is there"

    def show(self, as_json: bool) -> None:
        """Prints the record as one JSON object, or the tables."""
        if as_json:
            print(json_files.dumps(self.record))
            return
        if self.columns is not None:
            self._print_columns(*self.columns)
        for line in self.remarks:
            print(line)
        if self.facts:
            self._print_facts()

    def _print_facts(self) -> None:
        """Prints the facts as a table of at most 80 characters, or in lines where the terminal is too narrow."""
        from rich.table import Table

        screen = console()
        # The frame takes 7 characters; with fewer than 24 left for its text, each fact gets lines of its own.
        if screen.width < max(len(name) for name, _ in self.facts) + 7 + 24:
            if self.title:
                screen.print(self.title)
            for name, fact in self.facts:
                screen.print(f"{name}: {fact}", overflow="fold")
            return
        table = Table(show_header=False, title=self.title or None, title_justify="left", width=min(screen.width, 80))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, fact in self.facts:
            table.add_row(name, fact)
        screen.print(table)

    def _print_columns(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Prints rows under their names, as wide as their longest words: no number is cut, and no column left out."""
        from rich.measure import Measurement
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in names:
            table.add_column(name.replace("_", " "), justify="right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        screen = console()
        least = Measurement.get(screen, screen.options.update(width=10**4), table).minimum
        (screen if least <= screen.width else console(least)).print(table)


def round_to(name: str, value: float, digits: int = 6) -> str:
    """Returns ``value`` to some significant digits, a bound rounded outward.

    >>> round_to("upper", 1 / 3), round_to("lower", 1 / 3), round_to("upper", float("inf"))
    ('0.333334', '0.333333', 'inf')
    """
    if name == "estimate":
        return f"{value:.{digits}g}"
    return (rounded_up if name == "upper" else rounded_down)(value, f".{digits}g")


def console(width: int | None = None) -> Console:
    """Returns the console on standard output: plain text where that is no terminal, no colour with NO_COLOR."""
    from rich.console import Console

    return Console(width=width, highlight=False, markup=False, emoji=False)


# ----------------------------------------------------------------------------------------------------
# Reasons for an infinite upper bound on epsilon, or one of 1 on delta: always one of three.
# ----------------------------------------------------------------------------------------------------


def why(run: Run, delta: float) -> str:
    """Returns the reason why the upper bound on epsilon is inf at ``delta``; 1 asks why the bound on delta is 1."""

    def least(numbers: Any) -> float:
        """Returns the least of a number or of nested lists of them."""
        return min(map(least, numbers)) if isinstance(numbers, list | tuple) else float(numbers)

    for one in _every_mechanism(run.record):
        if min(least(one.get(name, 1.0)) for name in ("noise_multiplier", "scale")) == 0:
            return f"{one['type']} without noise gives away what it is applied to: give noise above 0"

    infinite_mass = ja.delta(run.mechanism, run.steps, math.inf, relation=run.relation).lower
    if infinite_mass > (delta if delta < 1 else 0.0):
        probability = round_to("lower", float(infinite_mass))
        return (
            f"with probability {probability} or more an output gives away who took part, which no "
            "epsilon covers: give a larger delta, or a mechanism that never fails"
        )
    return (
        "no accountant knows a bound: the losses are beyond what float64 and the meshes hold, or a Rényi curve alone "
        "is known and is infinite; epsilon may be finite, but nothing proves it: give more noise, or fewer steps"
    )


def _every_mechanism(record: Any) -> list[dict[str, Any]]:
    """Returns the mechanisms of a record and, at any depth, those within others."""
    if isinstance(record, list):
        return [inner for one in record for inner in _every_mechanism(one)]
    return [record, *_every_mechanism(record.get("mechanism", []))]


# ----------------------------------------------------------------------------------------------------
# Arguments of the commands: one-line errors that suggest the word that was meant, numbers, and common options.
# ----------------------------------------------------------------------------------------------------

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of picture files."""


def as_line(message: str, end: str = "") -> str:
    r"""Returns a message as one line of at most 600 characters, ``end`` included.

    A longer one loses its middle: a message begins with what is wrong, and ends with what to do.

    >>> as_line("steps = 3\n  is out of range."), len(as_line("9" * 5000, " (jaxacct --help)"))
    ('steps = 3 is out of range.', 600)
    """
    text, room = " ".join(message.split()), 600 - len(end)
    if len(text) > room:
        text = f"{text[: room - 205]} ... {text[-200:]}"
    return text + end


class Parser(argparse.ArgumentParser):
    """A parser whose errors take one line and suggest the word that was meant; the usage is left to ``--help``.

    Abbreviations of names are refused: a new argument would change what they mean.
    """

    words: Sequence[str] = ()
    _is_intermixed = False

    def __init__(self, **settings: Any) -> None:
        options: dict[str, Any] = {"formatter_class": Help, "allow_abbrev": False} | settings
        super().__init__(**options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses, and refuses unknown words here, where the options of this very command are at hand to suggest.

        Options may stand between files and behind them; argparse alone gives a list of files the first ones only.
        """
        if self._is_intermixed:  # parse_known_intermixed_args calls this for the options, and then for the files
            return super().parse_known_args(args, namespace)
        self.words = args or ()
        if self._subparsers is not None:
            arguments, rest = super().parse_known_args(args, namespace)
        else:
            self._is_intermixed = True
            try:
                arguments, rest = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._is_intermixed = False
        if rest:
            self._refuse(rest[0])
        return arguments, rest

    def _refuse(self, word: str) -> NoReturn:
        """Ends with an error about an unknown word: the argument of another program's name, else the nearest one."""
        # Names of the arguments in other programs, by the name here.
        other_words = {
            "--noise-multiplier": "sigma noise noise-scale noise-std noise-stddev std stddev z noise-level",
            "--sampling-rate": "q p rate sample-rate sampling-prob sampling-probability subsampling-rate poisson-rate",
            "--batch-size": "b batch expected-batch-size lot lot-size minibatch-size logical-batch-size",
            "--examples": "n m num-examples n-examples dataset-size data-size num-samples num-records population-size",
            "--epochs": "e epoch num-epochs n-epochs max-epochs training-epochs",
            "--steps": "t k iterations iters num-steps n-steps num-iterations compositions num-compositions max-steps "
            "rounds",
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
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        known = [name for action in shown for name in action.option_strings if name.startswith("--")]
        name = word.partition("=")[0]
        plain = name.lstrip("-").replace("_", "-").casefold()
        meant = [right for right, others in other_words.items() if plain in others.split() and right in known]
        if not name.startswith("-"):
            is_spec = "--spec" in known and pathlib.Path(word).suffix in (".toml", ".json", ".yaml", ".yml")
            self._end(f"{word!r} belongs to no argument: give {f'--spec {word}' if is_spec else '--NAME VALUE'}")
        self._end(f"{word} is unknown{f': did you mean {meant[0]}?' if meant else nearest(f'--{plain}', known)}")

    def _end(self, message: str) -> NoReturn:
        """Ends the process with a message of one line and exit code 2."""
        self.exit(2, f"{as_line(f'{self.prog}: error: {message}', f' ({self.prog} --help)')}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse calls this for every argument with choices, commands included; its own message suggests nothing.
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value!r} is unknown{nearest(str(value), list(action.choices))}")

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2."""
        known = [name for action in self._actions for name in action.option_strings]
        # An unknown word is most often the cause of argparse's complaint, so the message names it first.
        # But a command that has further commands and no options cannot know theirs.
        if len(known) > 2 and ("required" in message or " " in self.prog):
            for word in self.words:
                if word.startswith("--") and word.partition("=")[0] not in known:
                    self._refuse(word)
        self._end(message)


class Help(argparse.HelpFormatter):
    """A formatter of help that wraps prose and leaves examples as they are, to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


def nearest(word: str, known: Sequence[str]) -> str:
    """Returns a question about the word that was meant, or the list of all known words.

    >>> nearest("epsilno", ["epsilon", "delta"]), nearest("x", ["epsilon", "delta"])
    (': did you mean epsilon?', ': give one of epsilon, delta.')
    """
    begun = [name for name in known if len(word) > 2 and name.startswith(word)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(word, known, 1)
    return f": did you mean {close[0]}?" if close else f": give one of {', '.join(known)}."


def new_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], Report],
    summary: str,
    description: str,
    *examples: str,
    json: str = "print one JSON object instead of a table",
) -> argparse.ArgumentParser:
    """Returns a new subcommand, of which ``run`` makes the report.

    ``examples`` are commands, which end its help; ``json`` is the help on --json, an empty text for a command that
    prints nothing.
    """
    epilog = "\n  ".join(["examples:" if len(examples) > 1 else "example:", *examples])
    command: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=description, epilog=epilog)
    command.set_defaults(run=run, json=False)
    if json:
        command.add_argument("--json", action="store_true", help=json)
    return command


def number(text: str) -> float:
    """Returns the number that an argument stands for.

    >>> number("1e-5"), number("64/1000")
    (1e-05, 0.064)
    """
    try:
        return display.parse_number(text)
    except ValueError:
        remedy = "give a fraction, 0.01 for 1 %" if "%" in text else "give one such as 0.01, 64/1000, 1e-5 or 10000"
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: {remedy}") from None


def count(text: str) -> int:
    """Returns the number of examples that an argument stands for, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of examples: give a whole one, at least 1")
    return int(text)


class Elsewhere(argparse.Action):
    """The action of an argument that only other programs have: an error with ``const``, what to give in its place."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str) -> None:
        super().__init__(option_strings, dest, nargs="?", const=const, help=argparse.SUPPRESS)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Called by argparse."""
        parser.error(f"{option} is no argument here: {self.const}")


def add_relation(command: argparse.ArgumentParser, default: str = " (default: add_or_remove)") -> None:
    """Adds the neighbouring relation."""
    command.add_argument("--relation", choices=get_args(Relation), help=f"neighbouring relation{default}")


def add_overwrite(command: argparse.ArgumentParser, what: str = "replace files that are there") -> None:
    """Adds the permission to overwrite."""
    command.add_argument("--overwrite", action="store_true", help=what)


def file_to_write(name: str, suffixes: tuple[str, ...], arguments: argparse.Namespace) -> pathlib.Path:
    """Returns the path of a file; raises ValueError for another suffix, and where one is there that is to stay."""
    from jaxacct.sweep.result import check_suffix

    path = pathlib.Path(name)
    check_suffix(path, suffixes)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it.")
    if path.exists() and not arguments.overwrite:
        raise ValueError(f"{path} is there: give --overwrite to replace it, or another name.")
    return path


# ----------------------------------------------------------------------------------------------------
# Runs: a run of DP-SGD by its noise, rate and steps or batches and epochs, and compositions.
# ----------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A composition, as the accountants take it and, in ``record``, its mechanisms as JSON has them."""

    mechanism: Any
    steps: Any
    relation: Relation
    group: int
    record: Any

    @property
    def title(self) -> str:
        """The run in a few words, for a table's title."""
        if isinstance(self.steps, tuple):
            return spell_count(len(self.steps), "mechanism")
        return spell_count(self.steps, "step")

    def describe(self) -> dict[str, Any]:
        """Returns the part of a result's record that describes the run."""
        composed = isinstance(self.steps, tuple)
        return {
            "mechanism": self.record,
            "steps": [count if isinstance(count, int) else count.tolist() for count in self.steps]
            if composed
            else int(self.steps),
            "relation": self.relation,
            "group": self.group,
            "scope": scope_of(self.relation, self.group, *(["samples as listed"] if composed else [])),
            "version": ja.__version__,
        }


def add_rate(
    command: argparse.ArgumentParser,
    kind: Callable[[str], Any] = number,
    metavar: str = "",
    default: str = "1: no sampling",
) -> None:
    """Adds the sampling rate, and the batch size and number of examples that it follows from."""
    command.add_argument(
        "--sampling-rate", type=kind, metavar=metavar or "Q",
        help=f"probability of each example to be in a batch, a fraction in (0, 1], 64/1000 say (default {default})",
    )  # fmt: skip
    expected = "in place of the rate: expected batches, with --examples"
    command.add_argument("--batch-size", type=kind, metavar=metavar or "B", help=expected)
    command.add_argument("--examples", type=number, metavar="N", help="number of examples that batches are drawn from")


def add_steps(
    command: argparse.ArgumentParser, kind: Callable[[str], Any] = number, metavar: str = "", default: str = ""
) -> None:
    """Adds the number of steps, and the epochs that it follows from."""
    command.add_argument("--steps", type=kind, metavar=metavar or "K", help=f"number of noisy updates{default}")
    command.add_argument(
        "--epochs", type=kind, metavar=metavar or "E",
        help="in place of steps: expected passes over the data, as ceil(E / sampling rate) steps",
    )  # fmt: skip


def add_noise(command: argparse.ArgumentParser, more: str = "") -> None:
    """Adds the noise multiplier; its help ends with ``more``."""
    meaning = f"standard deviation of the noise over the clipping norm{more}"
    command.add_argument("--noise-multiplier", type=number, metavar="S", help=meaning)


def add_group(command: argparse.ArgumentParser) -> None:
    """Adds the number of examples that change together."""
    command.add_argument(
        "--group", type=count, metavar="G", help="examples of one person, which change together (default 1)"
    )


def add_run(command: argparse.ArgumentParser) -> None:
    """Adds the arguments that describe a run of DP-SGD, and other mechanisms."""
    add_noise(command)
    add_rate(command)
    add_steps(command)
    command.add_argument(
        "--mechanism", action="append", metavar="NAME:FIELD=VALUE,...",
        help="composed as well, or alone: laplace:scale=2,count=10; may be given again",
    )  # fmt: skip
    command.add_argument("--spec", metavar="FILE", help="composed as well, or alone: what jaxacct certify takes")
    add_relation(command)
    add_group(command)


def rate_given(arguments: argparse.Namespace) -> float | None:
    """Returns the sampling rate that the arguments give, or None; raises ValueError where they give two."""
    rate, batch, examples = arguments.sampling_rate, arguments.batch_size, arguments.examples
    if batch is None:
        if examples is not None:
            raise ValueError("--examples goes with --batch-size: give both, or --sampling-rate.")
        return rate
    if rate is not None:
        raise ValueError("--batch-size and --sampling-rate are both given: leave one out.")
    if examples is None:
        raise ValueError("--batch-size needs --examples, the number that batches are drawn from; or --sampling-rate.")
    return display.rate_of(batch, examples)


def steps_given(arguments: argparse.Namespace, rate: float | None) -> float | None:
    """Returns the number of steps that the arguments give, or None; raises ValueError where they give two."""
    if arguments.epochs is None:
        return arguments.steps
    if arguments.steps is not None:
        raise ValueError("--epochs and --steps are both given: leave one out.")
    if rate is None:
        raise ValueError("--epochs needs a rate: give --batch-size and --examples, or --sampling-rate.")
    return float(display.steps_of(arguments.epochs, rate))


def run_of(arguments: argparse.Namespace) -> Run:
    """Returns the run or composition that the arguments describe.

    A spec's own epsilon and delta go to ``arguments.spec_asks``.
    """
    from jaxacct.mechanisms.records import record_of

    rate, noise = rate_given(arguments), arguments.noise_multiplier
    steps, is_composed = steps_given(arguments, rate), arguments.mechanism or arguments.spec
    if is_composed and noise is None:
        if (rate, steps) != (None, None):
            raise ValueError(
                "--noise-multiplier is missing: a rate and steps are of a run of DP-SGD; give it, or neither."
            )
        return _composition(arguments, [])
    for name, value in (("--noise-multiplier", noise), ("--steps, or --epochs with a rate,", steps)):
        if value is None:
            raise ValueError(f"{name} is missing: give it, or compose by --mechanism or --spec.")
    rate, size = 1.0 if rate is None else rate, arguments.group or 1
    if is_composed:
        training = {"type": "dp-sgd", "noise_multiplier": noise, "sampling_rate": rate, "count": steps}
        return _composition(arguments, [training])
    mechanism = ja.group(ja.PoissonSubsampledGaussian(noise, rate), size)
    return Run(mechanism, steps, arguments.relation or "add_or_remove", size, record_of(mechanism))


def _composition(arguments: argparse.Namespace, training: list[dict[str, Any]]) -> Run:
    """Returns what --mechanism and --spec compose, with the spec's part of a run of DP-SGD, if there is one."""
    from jaxacct import specs
    from jaxacct.mechanisms.records import record_of

    parts = [*map(specs.part_of, arguments.mechanism or ()), *training]
    files = [specs.read(arguments.spec)] if arguments.spec else []
    spec = specs.parsed(specs.combined([{"parts": parts}, *files], relation=arguments.relation, group=arguments.group))
    if spec.distance:
        raise ValueError(
            "--spec has a report whose delta pays for more, cut batches or integer noise: use jaxacct certify."
        )
    arguments.spec_asks = {"epsilon": spec.epsilon, "delta": spec.delta}
    return Run(spec.mechanisms, spec.steps, spec.relation, spec.group, [record_of(one) for one in spec.mechanisms])
