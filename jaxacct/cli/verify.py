"""``jaxacct verify`` and ``jaxacct certify``: the referee's verdicts on brackets, and certificates that carry one.

The referee judges in ball arithmetic, without the accountants' code. A certificate is a folder, written or checked.
"""

from __future__ import annotations

import argparse
import io
import itertools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxacct import __version__, json_files
from jaxacct.choices import Relation
from jaxacct.cli.arguments import (
    Report,
    add_overwrite,
    add_relation,
    count,
    new_command,
    number,
    round_to,
)
from jaxacct.display import spell_count

CODES = {"PROVED": 0, "REFUTED": 3, "UNDECIDED": 4}
"""Exit codes, by verdict."""

JUDGED = {"epsilon": "delta", "delta": "epsilon"}
"""Quantities that can be judged, with the quantity that is known of each."""


class Claim(NamedTuple):
    """A claimed bracket, with its quantity, the delta or epsilon that is ``known`` of it, and its composition."""

    quantity: str
    known: float
    lower: float
    upper: float
    mechanism: Any
    steps: Any
    relation: Relation


def add_parser(commands: Any) -> None:
    """Adds the command to the parser's subcommands."""
    command = new_command(
        commands, "verify", run, "whether a bracket of an epsilon or a delta is true, in ball arithmetic",
        "Proves or refutes the brackets in a JSON file that epsilon, delta, calibrate, curve or sweep "
        "wrote, without the accountants' code. Ends with code 0 if all are PROVED, 3 if one is REFUTED, else 4. "
        'Needs python-flint: pip install "jaxacct[verify]".',
        "jaxacct verify claim.json", "jaxacct verify claim.json --json",
    )  # fmt: skip
    command.add_argument("file", metavar="FILE", help="what a command wrote with --json; - for standard input")


def run(arguments: argparse.Namespace) -> Report:
    """Judges the claims of a file, and returns the report on the verdicts; the worst one decides the exit code."""
    from jaxacct import verify
    from jaxacct.verify.border import states_less

    claims = list(read_claims(read(arguments.file)))
    if not claims:
        raise ValueError(f"{arguments.file} claims nothing: give a record with at least one bracket.")
    judges = {"epsilon": verify.epsilon, "delta": verify.delta}
    verdicts: list[dict[str, Any]] = []
    # A claim that the referee cannot judge is undecided, and the others go on.
    for claim in claims:
        bracket = 0.0 if states_less(claim.mechanism) else claim.lower, claim.upper
        try:
            verdict = judges[claim.quantity](
                claim.mechanism, claim.steps, claim.known, bracket, relation=claim.relation
            )
        except (TypeError, OverflowError) as error:
            raise ValueError(f"{arguments.file} has a value of a wrong type: {error}") from None
        verdicts.append({
            "quantity": claim.quantity, "given": claim.known, "lower": claim.lower, "upper": claim.upper,
            "status": verdict.status.value, "truth": list(verdict.truth), "reason": verdict.reason,
        })  # fmt: skip
    statuses = [str(verdict["status"]) for verdict in verdicts]
    status = max(statuses, key=("PROVED", "UNDECIDED", "REFUTED").index)  # that of the worst
    counts = {name.lower(): statuses.count(name) for name in CODES}
    record = {"status": status, "counts": counts, "claims": verdicts, "version": __version__}
    if len(claims) > 1:
        names = ["quantity", "given", "lower", "upper", "status"]
        rows = [[_show(name, verdict[name]) for name in names] for verdict in verdicts]
        reasons = [
            f"{verdict['quantity']} at {verdict['given']:.12g}: {verdict['reason']}"
            for verdict in verdicts
            if verdict["status"] != "PROVED"
        ]
        return Report(record, columns=(names, rows), remarks=[*reasons, status], code=CODES[status])
    (claim,), (entry,) = claims, verdicts
    facts = [
        (JUDGED[claim.quantity], f"{claim.known:.12g}"),
        ("claimed", f"{claim.lower!r} to {claim.upper!r}"),
        ("truth", f"{entry['truth'][0]!r} to {entry['truth'][1]!r}"),
        ("verdict", f"{status}: {entry['reason']}"),
    ]
    of = spell_count(claim.steps, "step") if isinstance(claim.steps, (int, float)) else f"steps {claim.steps}"
    return Report(record, facts, f"{claim.quantity} of {of}", code=CODES[status])


def _show(name: str, value: Any) -> str:
    """Returns a value as text, a bound to 12 digits rounded outward."""
    if not isinstance(value, float):
        return str(value)
    return round_to(name, value, 12) if name in ("lower", "upper") else f"{value:.12g}"


def read(name: str) -> Any:
    """Returns the JSON object of a file; raises ValueError where there is none."""
    try:
        record = json_files.loads(sys.stdin.read() if name == "-" else pathlib.Path(name).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # bytes that are no text, too
        raise ValueError(f"{name} is not JSON ({error}): give what a command printed with --json.") from None
    if not isinstance(record, dict):
        raise ValueError(f"{name} holds no JSON object: give what a command printed with --json.")
    return record


def read_claims(record: dict[str, Any]) -> Iterator[Claim]:
    """Yields the brackets in a command's output; raises ValueError where there are none that can be judged."""
    try:
        if "axes" in record:
            yield from _of_sweep(record)
        elif "reached" in record:
            bounds = record["reached"]
            mechanism = record["mechanism"] if "looked_for" in record else _of_training(record)
            yield from _of(bounds["quantity"], [bounds | record["target"]], mechanism, record)
        elif "kind" in record:
            if record["kind"] != "profile":
                raise ValueError(f"a curve of kind {record['kind']!r} is no epsilon and no delta: give a profile.")
            columns = record["results"]
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            yield from _of(record["quantity"], rows, record["mechanism"], record)
        else:
            yield from _of(record["quantity"], [record], record["mechanism"], record)
    except (KeyError, TypeError) as missing:
        what = f"no key {missing}" if isinstance(missing, KeyError) else f"a value of a wrong type: {missing}"
        raise ValueError(
            f"the record has {what}: give what jaxacct epsilon, delta, calibrate, curve or sweep printed with --json."
        ) from None


def _of(quantity: str, rows: list[dict[str, Any]], mechanism: Any, record: dict[str, Any]) -> Iterator[Claim]:
    """Yields the claims of rows with bounds and the value that is known with them, all for one composition."""
    if quantity not in JUDGED:
        raise ValueError(f"quantity = {quantity!r} cannot be judged: give the bracket of an epsilon or a delta.")
    from jaxacct.mechanisms.records import mechanism_of

    steps = record["steps"]
    for row in rows:
        lower = 0.0 if row.get("lower") is None else float(row["lower"])
        yield Claim(
            quantity, float(row[JUDGED[quantity]]), lower, float(row["upper"]), mechanism_of(mechanism),
            tuple(steps) if isinstance(steps, list) else steps, record["relation"],
        )  # fmt: skip


def _of_training(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the mechanism of a calibration's record: a Poisson-subsampled Gaussian, or that for groups."""
    if (size := record.get("group", 1)) > 1:
        noise, rate = record["noise_multiplier"], record["sampling_rate"]
        return {"type": "PoissonSubsampledGroup", "scale": noise, "sampling_rate": rate, "size": size}
    names = ("noise_multiplier", "sampling_rate")
    return {"type": "PoissonSubsampledGaussian"} | {name: record[name] for name in names}


def _of_sweep(record: dict[str, Any]) -> Iterator[Claim]:
    """Yields the claims of a sweep of one mechanism class; a sweep for noise claims the epsilon that it reached."""
    if "results" not in record or len(record["mechanisms"]) != 1:
        raise ValueError("a sweep with its results, of one mechanism, can be judged: leave out --out.")
    kind = record["mechanisms"][0]
    columns = record["results"]
    axes = record["axes"].values()
    # Results lie in the order of the axes' product, or of their rows; each is a claim of its own.
    for i, place in enumerate(zip(*axes, strict=True) if record.get("layout") == "rows" else itertools.product(*axes)):
        entry = record["constants"] | dict(zip(record["axes"], place, strict=True))
        bounds = {name: columns[name][i] for name in ("lower", "upper")}
        fields = {name: value for name, value in entry.items() if name not in ("steps", "delta", "epsilon")}
        steps = {"steps": int(entry["steps"]), "relation": record["relation"]}
        yield from _of(record["quantity"], [entry | bounds], {"type": kind} | fields, steps)


# ----------------------------------------------------------------------------------------------------
# Certificates of a spec's composition, written to a folder or checked there.
# ----------------------------------------------------------------------------------------------------


def add_certify(commands: Any) -> None:
    """Adds ``jaxacct certify``."""
    command = new_command(
        commands, "certify", certify, "a certificate of a run or a composition, or whether one holds",
        "Writes a folder: certificate.json, sealed; a page for readers, certificate.html; and "
        "certificate.pdf where matplotlib is installed. SPEC is JSON, TOML or YAML, or a report.json of jaxacct train, "
        "an Opacus history or checkpoint, or a dp_event; several are composed. --check ends with code 0 where a folder "
        "holds, 3 where its bracket is refuted, 4 where the referee has not decided, and 2 where it was changed. Needs "
        'python-flint: pip install "jaxacct[verify]".',
        "jaxacct certify runs/digits/report.json --out certificate",
        'jaxacct certify spec.toml --delta 1e-6 --unit "one person\'s visits" --group 8',
        "jaxacct certify --check certificate",
        json="print the certificate as one JSON object",
    )  # fmt: skip
    command.add_argument("spec", metavar="SPEC", nargs="*", help="what is certified; - for standard input")
    command.add_argument(
        "--check", nargs="?", const="", metavar="FOLDER", help="check what this command wrote, elsewhere or later"
    )
    at = command.add_mutually_exclusive_group()
    at.add_argument("--delta", type=number, metavar="D", help="at which epsilon is certified, in place of the spec's")
    at.add_argument("--epsilon", type=number, metavar="E", help="at which delta is certified")
    add_relation(command, ", in place of the spec's")
    command.add_argument("--unit", metavar="WORDS", help="whose data is protected: one person's visits, say")
    command.add_argument("--group", type=count, metavar="G", help="records of one unit, which change together")
    command.add_argument("--fixed", metavar="WORDS", help="who fixed noise, sampling and steps, and when")
    command.add_argument("--out", metavar="FOLDER", help="where to write (default certificate)")
    add_overwrite(command, "replace the certificate in FOLDER")


def certify(arguments: argparse.Namespace) -> Report:
    """Writes a certificate, or checks one, and returns the report on it."""
    settings = {name: vars(arguments)[name] for name in ("delta", "epsilon", "relation", "unit", "group", "fixed")}
    if arguments.check is not None:
        # FOLDER may stand before --check as well as behind it.
        folders = [*filter(None, [arguments.check]), *arguments.spec]
        if len(folders) != 1 or arguments.out or arguments.overwrite or set(settings.values()) != {None}:
            raise ValueError("--check is of one FOLDER that is there: leave out SPEC, --out and all settings.")
        return _check_folder(folders[0])
    if not arguments.spec:
        raise ValueError("SPEC is missing: give a file of a spec, a report, a history or an event; or --check FOLDER.")
    folder = pathlib.Path(arguments.out or "certificate")
    from jaxacct import certificates, specs
    from jaxacct.certificates.folders import HTML, check_free, html

    check_free(folder, overwrite=arguments.overwrite)
    certificate = certificates.certify(specs.combined([specs.read(name) for name in arguments.spec], **settings))
    png, pdf = _pictures(certificate)
    files = {HTML: html(certificate, png).encode()} | ({} if pdf is None else {"certificate.pdf": pdf})
    seal = certificates.write(folder, certificate, files, overwrite=arguments.overwrite)
    facts = _facts_of_certificate(certificate, seal, certificate["verdict"]["status"])
    return Report(certificate | {"seal": seal}, [*facts, ("written to", str(folder))], "certificate")


def _check_folder(folder: str) -> Report:
    """Checks a folder, and returns the report on it."""
    from jaxacct import certificates
    from jaxacct.certificates.folders import HTML

    result = certificates.check(folder)
    certificate = result.certificate
    seal, files = certificate["seal"], certificate["sha256"]["files"]
    by = "the code that made it" if result.same_code else "other code than made it, to the same result"
    facts = [
        *_facts_of_certificate(certificate, seal, result.status),
        ("checked by", by),
        ("reason", result.reason),
        ("sealed, not read", ", ".join(sorted(files.keys() - {HTML})) or "nothing"),
    ]
    record = {"status": result.status, "reason": result.reason, "same_code": result.same_code, "seal": seal}
    return Report(record, facts, "certificate", code=CODES[result.status])


def _pictures(certificate: dict[str, Any]) -> tuple[bytes | None, bytes | None]:
    """Returns the picture (PNG) and the page for paper (PDF); None for both where matplotlib is missing."""
    import numpy as np

    from jaxacct import plot
    from jaxacct.certificates.claims import attack_curve
    from jaxacct.certificates.folders import for_print

    try:
        plot.require_matplotlib()
    except ModuleNotFoundError:
        return None, None
    rates, success = attack_curve(certificate)
    chart = plot.Chart(
        title="The most successful attack", x_name="false_positive_rate", x_label="wrong accusations",
        y_label="right accusations, at most", x=np.array(rates),
        curves=[plot.Series("true_positive_rate", "certified", success),
                plot.Series("guessing", "guessing", rates, "reference")],
    )  # fmt: skip
    png, pdf = io.BytesIO(), io.BytesIO()
    plot.draw(chart, png)
    texts = for_print(certificate)
    sections = [plot.Section(**section) for section in texts.pop("sections")]
    plot.write(plot.Document(chart=chart, sections=sections, **texts), pdf)
    return png.getvalue(), pdf.getvalue()


def _facts_of_certificate(certificate: dict[str, Any], seal: str, status: str) -> list[tuple[str, str]]:
    """Returns a certificate's main numbers, and the assumptions for which nobody vouches, as names and texts."""
    claim, assumptions = certificate["claim"], certificate["assumptions"]
    unvouched = [one["text"] for one in assumptions if one["said_by"].startswith("nobody")]
    count = "this one" if len(unvouched) == 1 else f"these {len(unvouched)}"
    rest = f"nobody vouches for {count}:" if unvouched else "each said"
    return [
        ("epsilon", round_to("upper", claim["epsilon"])),
        ("delta", round_to("upper", claim["delta"])),
        ("relation, unit", f"{certificate['relation'].replace('_', ' ')}, {certificate['unit']}"),
        ("referee", status if status == "PROVED" else f"{status}: {certificate['verdict']['reason']}"),
        ("by", certificate["route"]),
        ("assumes", f"{spell_count(len(assumptions), 'thing')}; {rest}"),
        *(("", f"{i}. {text}") for i, text in enumerate(unvouched, 1)),
        ("seal", seal),
    ]
