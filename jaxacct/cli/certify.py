"""``jaxacct certify``: a certificate of a spec's composition, written to a folder or checked there."""

from __future__ import annotations

import argparse
import io
import pathlib
from typing import Any

from jaxacct.cli.arguments import (
    RELATIONS,
    add_json,
    add_overwrite,
    count,
    examples,
    number,
    print_facts,
    rounded,
    show,
)
from jaxacct.cli.verify import CODES

PDF = "certificate.pdf"
"""Name of the page for paper in a certificate's folder."""


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = commands.add_parser(
        "certify",
        help="a certificate of a run or a composition, or whether one holds",
        description="Writes a folder: certificate.json, sealed; a page for readers, certificate.html; and "
        "certificate.pdf where matplotlib is installed. SPEC is JSON, TOML or YAML, or a report.json of jaxacct train, "
        "an Opacus history or checkpoint, or a dp_event; several are composed. --check ends with code 0 where a folder "
        "holds, 3 where its bracket is refuted, 4 where the referee has not decided, and 2 where it was changed. Needs "
        'python-flint: pip install "jaxacct[verify]".',
        epilog=examples(
            "jaxacct certify runs/digits/report.json --out certificate",
            'jaxacct certify spec.toml --delta 1e-6 --unit "one person\'s visits" --group 8',
            "jaxacct certify --check certificate",
        ),
    )
    command.add_argument("spec", metavar="SPEC", nargs="*", help="what is certified; - for standard input")
    command.add_argument("--check", metavar="FOLDER", help="check what this command wrote, elsewhere or later")
    at = command.add_mutually_exclusive_group()
    at.add_argument("--delta", type=number, metavar="D", help="at which epsilon is certified, in place of the spec's")
    at.add_argument("--epsilon", type=number, metavar="E", help="at which delta is certified")
    command.add_argument("--relation", choices=RELATIONS, help="neighbouring relation, in place of the spec's")
    command.add_argument("--unit", metavar="WORDS", help="whose data is protected: one person's visits, say")
    command.add_argument("--group", type=count, metavar="G", help="records of one unit, which change together")
    command.add_argument("--fixed", metavar="WORDS", help="who fixed noise, sampling and steps, and when")
    command.add_argument("--out", metavar="FOLDER", help="where to write (default certificate)")
    add_overwrite(command, "replace the certificate in FOLDER")
    add_json(command, "print the certificate as one JSON object")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes a certificate, or checks one, prints it, and returns the exit code."""
    settings = {name: vars(arguments)[name] for name in ("delta", "epsilon", "relation", "unit", "group", "fixed")}
    if arguments.check is not None:
        if (
            arguments.spec
            or arguments.out
            or arguments.overwrite
            or any(setting is not None for setting in settings.values())
        ):
            raise ValueError("--check is of a folder that is there: leave out SPEC, --out and all settings.")
        return _check(arguments)
    if not arguments.spec:
        raise ValueError("SPEC is missing: give a file of a spec, a report, a history or an event; or --check FOLDER.")
    folder = pathlib.Path(arguments.out or "certificate")
    from jaxacct import certificates, specs
    from jaxacct.certificates import HTML, check_free, html

    check_free(folder, overwrite=arguments.overwrite)
    made = certificates.certify(specs.combined([specs.read(name) for name in arguments.spec], **settings))
    png, pdf = _pictures(made)
    files = {HTML: html(made, png).encode()} | ({} if pdf is None else {PDF: pdf})
    seal = certificates.write(folder, made, files, overwrite=arguments.overwrite)
    status = made["verdict"]["status"]
    show(made | {"seal": seal}, arguments.json, lambda: _print(made, seal, status, [("written to", str(folder))]))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    """Checks a folder, prints the result, and returns the exit code."""
    from jaxacct import certificates
    from jaxacct.certificates import HTML

    found = certificates.check(arguments.check)
    made = found.certificate
    by = "the code that made it" if found.same_code else "other code than made it, to the same result"
    unread = sorted(made["sha256"]["files"].keys() - {HTML})
    facts = [("checked by", by), ("reason", found.reason), ("sealed, not read", ", ".join(unread) or "nothing")]
    record = {"status": found.status, "reason": found.reason, "same_code": found.same_code, "seal": made["seal"]}
    show(record, arguments.json, lambda: _print(made, made["seal"], found.status, facts))
    return CODES[found.status]


def _pictures(made: dict[str, Any]) -> tuple[bytes | None, bytes | None]:
    """Returns the picture (PNG) and the page for paper (PDF); None for both where matplotlib is missing."""
    import numpy as np

    from jaxacct import plot
    from jaxacct.certificates import attack_curve, printed

    try:
        plot.require_matplotlib()
    except ModuleNotFoundError:
        return None, None
    rates, success = attack_curve(made)
    chart = plot.Chart(
        title="The most successful attack", x_name="false_positive_rate", x_label="wrong accusations",
        y_label="right accusations, at most", x=np.array(rates),
        curves=[plot.Curve("true_positive_rate", "certified", success),
                plot.Curve("guessing", "guessing", rates, "reference")],
    )  # fmt: skip
    png, pdf = io.BytesIO(), io.BytesIO()
    plot.draw(chart, png)
    plot.document("Certificate of differential privacy", made["statement"], chart, printed(made), pdf)
    return png.getvalue(), pdf.getvalue()


def _print(made: dict[str, Any], seal: str, status: str, facts: list[tuple[str, str]]) -> None:
    """Prints a certificate's main numbers, and further facts, as a table."""
    claim = made["claim"]
    print_facts(
        "certificate",
        [
            ("epsilon", rounded("upper", claim["epsilon"])),
            ("delta", rounded("upper", claim["delta"])),
            ("relation, unit", f"{made['relation'].replace('_', ' ')}, {made['unit']}"),
            ("referee", status if status == "PROVED" else f"{status}: {made['verdict']['reason']}"),
            ("by", made["route"]),
            ("assumes", f"{len(made['assumptions'])} things, which it lists"),
            ("seal", seal),
            *facts,
        ],
    )
