"""Certificates: the proved privacy of a composition, in words and in numbers, for somebody else to check.

:func:`certify` makes the content of a certificate from a spec (:mod:`jaxacct.specs`), :func:`write` writes it to a
folder, and :func:`check` reads a folder elsewhere: it compares every byte with the seal, has the referee
(:mod:`jaxacct.verify`) judge the bracket, and computes everything else anew from the spec inside. The format is that of
``certificate-1.schema.json`` beside this file, a JSON Schema.

*A check proves this.* The bracket is the referee's theorem, or the accountants' where the referee has no statement of a
mechanism; words and pictures follow from it. No theorem says that the run was the one in the spec: the assumptions are
listed one by one. The seal is a hash and no signature: it reveals careless changes, and identifies a certificate by 64
letters that are handed over on another channel. Whoever makes a new seal can change the date, the versions and the code
that made it, the picture, and the files beside the page, which the seal alone covers; and numbers other than the
bracket and the claim, by a millionth. A check refuses every other change.

Everything in a certificate but the record of its making follows from its spec. So a check computes the content anew by
the functions that made it, and compares.

In reading order:

- :func:`certify` to :func:`code_digest`: claim, bracket, profile and risks from the accountants, and the referee's
  verdict on the bracket.
- :func:`assumptions` and :func:`statement`: the words.
- :func:`html` to :func:`without_picture`: the page, of the template ``certificate.html``, and that for paper.
- :func:`write` to :func:`text_of`: the sealed folder.
- :func:`check`: the check of a folder.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import html as escaping
import importlib
import importlib.resources
import math
import os
import pathlib
import platform
import re
import secrets
import shutil
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from importlib import metadata
from typing import Any

import numpy as np

import jaxacct
from jaxacct import json_files, saddlepoint
from jaxacct.display import round_up, rounded_down, rounded_up, spell_count
from jaxacct.json_files import synchronize, write_whole
from jaxacct.mechanisms import AboveThreshold, GaussianAboveThreshold, RepeatAndSelect
from jaxacct.mechanisms.by_curve import has_renyi_only
from jaxacct.mechanisms.records import record_of
from jaxacct.specs import ANY, Spec, all_of, parsed, sampling_of, unit_of

__all__ = ["CERTIFICATE", "Checked", "certify", "check", "write"]

SCHEMA = "jaxacct.certificate/1"
"""The format's name and version; the number rises where a key is removed or changes its meaning."""


PACKAGES = ("jax", "jaxlib", "numpy", "python-flint")
"""The installed packages whose versions a certificate records."""


def certify(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the certificate of a spec, without the files of its folder and its seal.

    Args:
        given: a spec, as :func:`jaxacct.specs.read` returns it, with one of ``delta`` and ``epsilon``.

    Returns:
        A JSON object: ``claim`` (epsilon, delta), ``bracket`` with the quantity's certified bounds, ``verdict`` of the
        referee on it, ``risks``, ``assumptions``, the ``statement`` in words, and more (certificate-1.schema.json).

    Formal guarantee: under the assumptions that are listed, the spec's composition is (epsilon, delta)-DP for its
    relation. ``epsilon`` is the upper end of :func:`jaxacct.epsilon` at delta; where batches may have been cut, at
    delta - (1 + e^epsilon) eta, with eta a bound on the probability that any batch was
    (:mod:`jaxacct.train.sampling.sampler`). An attack's true-positive rate at a false-positive rate a is at most
    min(e^eps a + delta, 1 - e^-eps (1 - delta - a)) for every (eps, delta) of the profile.

    Raises:
        ValueError: no valid spec, one not fixed before the run, one that samples otherwise than it is accounted, or one
            without a known finite bound; a bracket that the referee refutes.
        ModuleNotFoundError: python-flint is missing.

    Source: Kairouz, Oh and Viswanath (2015), "The composition theorem for differential privacy", Theorem 2.1, for the
    attack.

    >>> made = certify({"parts": [{"type": "Gaussian", "noise_multiplier": 10.0, "count": 100}], "delta": 1e-5})
    >>> f"{made['claim']['epsilon']:.6f}", made["verdict"]["status"]
    ('4.377178', 'PROVED')
    """
    importlib.import_module("jaxacct.verify")  # from an extra: a missing package is reported before the long work
    spec, made = parsed(given), derive(given)
    verdict = ask_referee(spec, made["bracket"])
    if verdict["status"] == "REFUTED":
        raise ValueError(f"no certificate: the referee refutes {made['bracket']}: {verdict['reason']} Report this.")
    versions = {"jaxacct": jaxacct.__version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in PACKAGES}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    hashes = {"spec": digest(given), "code": code_digest(), "files": {}}
    about = {"schema": SCHEMA, "made": now, "verdict": verdict, "versions": versions, "sha256": hashes}
    return add_words(about | made)


def add_words(made: dict[str, Any]) -> dict[str, Any]:
    """Returns a certificate with the words that follow from its numbers."""
    return made | {"assumptions": assumptions(parsed(made["spec"])), "statement": statement(made)}


def derive(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a certificate that follows from its spec by this version's accountants."""
    # False-positive rates at which the most successful attack is reported; the statement's words use 0.01 and 0.05.
    rates = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
    spec = parsed(given)
    ask = functools.partial(jaxacct.epsilon, spec.mechanisms, spec.steps, relation=spec.relation)
    cut, cost = Fraction(spec.cut_probability), Fraction(0)
    if spec.epsilon is not None:
        quantity, asked, cost = "delta", spec.epsilon, _cost(spec.epsilon, cut)
        found = jaxacct.delta(spec.mechanisms, spec.steps, asked, relation=spec.relation)
        claim = {"epsilon": asked, "delta": min(round_up(Fraction(float(found.upper)) + cost), 1.0)}
    elif spec.delta is None:
        raise ValueError("delta is missing: give it in the spec or as --delta; or epsilon, at which delta is asked.")
    else:
        quantity, asked = "epsilon", spec.delta
        found = ask(asked)
        paid_at = float(found.upper) if cut else math.inf
        # Cut batches cost (1 + e^epsilon) eta of delta, and the rest of delta decides epsilon. So the cost is paid for
        # a guess a little above the last epsilon, until the epsilon found is at most the guess. Each round raises the
        # guess; the loop ends there, or where the cost exceeds delta.
        while paid_at < math.inf:
            paid_at = paid_at * 1.001 + 0.001
            cost = _cost(paid_at, cut)
            asked = -round_up(cost - Fraction(spec.delta))
            if asked <= 0:
                raise ValueError(f"no certificate: batches cut at capacity cost more than delta = {spec.delta}.")
            found = ask(asked)
            paid_at = math.inf if found.upper <= paid_at else float(found.upper)
        claim = {"epsilon": float(found.upper), "delta": spec.delta}
    if claim["epsilon"] == math.inf or claim["delta"] >= 1:
        raise ValueError(f"no certificate: no finite epsilon is known at a delta below 1: see jaxacct {quantity}.")
    bracket = {"quantity": quantity, "given": asked, "lower": float(found.lower), "upper": float(found.upper)}
    profile = _claimed_profile(spec, claim, cost)
    success = [_success(profile, rate, spec.relation) for rate in rates]
    releases = [
        {"mechanism": record_of(one.mechanism), "count": np.asarray(one.count).tolist(), "sampling": one.sampling}
        for one in spec.releases
    ]
    return {
        "claim": claim, "bracket": bracket, "route": _route(spec, quantity, asked, bool(found.converged)),
        "relation": spec.relation, "unit": unit_of(given), "group": spec.group, "releases": releases,
        "cut_probability": spec.cut_probability, "profile": profile,
        "risks": {"false_positive_rate": list(rates), "true_positive_rate": success}, "spec": given,
    }  # fmt: skip


def follows(spec: Spec, made: dict[str, Any]) -> bool:
    """Returns whether a claim follows from its bracket's upper end, in exact arithmetic on fractions."""
    claim, bracket = made["claim"], made["bracket"]
    given, upper, delta = (Fraction(value) for value in (bracket["given"], bracket["upper"], claim["delta"]))
    cost = _cost(claim["epsilon"], Fraction(spec.cut_probability))
    if [values[-1] for values in made["profile"].values()] != list(claim.values()):
        return False
    if spec.epsilon is not None:
        return bool(given == claim["epsilon"] == spec.epsilon and delta >= min(upper + cost, Fraction(1)))
    return bool(delta == spec.delta and claim["epsilon"] >= upper and given + cost <= delta)


def _cost(epsilon: float, cut: Fraction) -> Fraction:
    """Returns an upper bound on (1 + e^epsilon) cut, as a fraction; 1 stands for a cost that is too large."""
    if not cut or epsilon > 700:
        return Fraction(bool(cut))
    return (1 + Fraction(math.exp(epsilon)) * (1 + Fraction(1, 2**40))) * cut


def _route(spec: Spec, quantity: str, asked: float, converged: bool) -> str:
    """Returns in words which accountant the bracket comes from."""
    if has_renyi_only(spec.mechanisms):
        return "Rényi divergences: an upper bound alone; a mechanism among them is known by its Rényi curve only"
    ask = saddlepoint.epsilon if quantity == "epsilon" else saddlepoint.delta
    if converged and ask(spec.mechanisms, spec.steps, asked, relation=spec.relation).converged:
        return "exact accountant: the characteristic function, inverted along a line, every error counted"
    return "mesh: transforms of discretized privacy losses, every error counted"


def _claimed_profile(spec: Spec, claim: dict[str, float], cost: Fraction) -> dict[str, list[float]]:
    """Returns pairs (epsilon, delta), the claim's last, for all of which the guarantee holds.

    At a delta above the claim's epsilon is smaller, so cut batches cost no more there than they cost the claim.
    """
    # Several deltas together bound an attack more tightly. Sound for any values in (0, 1).
    deltas = (0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
    left = {delta: -round_up(cost - Fraction(delta)) for delta in deltas if delta > claim["delta"] + cost}
    asked = np.array([*left.values(), 0.5])  # never an empty list
    found = jaxacct.curve(spec.mechanisms, spec.steps, deltas=asked, relation=spec.relation).upper[:-1]
    epsilons = [*np.minimum(found, claim["epsilon"]).tolist(), claim["epsilon"]]
    return {"epsilon": epsilons, "delta": [*left, claim["delta"]]}


def attack_curve(made: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Returns the curve of the most successful attack that a certificate's profile allows, to be drawn.

    The curve is the minimum of some straight lines, so it is straight between the places where two of them meet. The
    chords through all of these places are the curve itself, and nowhere below it.

    Returns:
        False-positive rates from 0 to 1 in ascending order, and bounds on the true-positive rates there, rounded up.

    >>> made = {"profile": {"epsilon": [0.0], "delta": [0.25]}, "relation": "replace"}
    >>> attack_curve(made)
    ([0.0, 0.75, 1.0], [0.250000000001, 1.0, 1.0])
    """
    lines = [(0.0, 1.0), *_lines(made["profile"], made["relation"])]
    meet = {0.0, 1.0}
    # All pairs of lines. Rounding moves a place by some units of itself, and its bound by as many units of 1: less than
    # the 1e-12 that :func:`_success` adds.
    for i, (slope, at_0) in enumerate(lines):
        for other, other_at_0 in lines[:i]:
            place = (other_at_0 - at_0) / (slope - other) if slope != other else 0.0
            meet |= {place} if 0 < place < 1 else set()
    rates = sorted(meet)
    return rates, [_success(made["profile"], rate, made["relation"]) for rate in rates]


def _lines(profile: dict[str, list[float]], relation: str) -> list[tuple[float, float]]:
    """Returns lines, by slope and value at 0, each of which bounds the true-positive rate of any test."""
    lines = []
    # Each point of the profile bounds an attack by two lines, one for each order of the neighbours.
    for epsilon, delta in zip(profile["epsilon"], profile["delta"], strict=True):
        if relation != "add":
            lines.append((math.exp(min(epsilon, 700.0)), delta))
        if relation != "remove":
            lines.append((math.exp(-epsilon), 1 - math.exp(-epsilon) * (1 - delta)))
    return lines


def _success(profile: dict[str, list[float]], rate: float, relation: str) -> float:
    """Returns a bound on the true-positive rate of any test at a false-positive rate, rounded up."""
    return min(1.0, 1e-12 + min(at_0 + slope * rate for slope, at_0 in _lines(profile, relation)))


def ask_referee(spec: Spec, bracket: dict[str, Any]) -> dict[str, Any]:
    """Returns the referee's verdict on a bracket.

    Where the referee states the mechanism itself and the accountants a pair that dominates it, only the upper end is
    judged.
    """
    from jaxacct import verify  # of an extra
    from jaxacct.verify.border import states_less

    judge = verify.epsilon if bracket["quantity"] == "epsilon" else verify.delta
    lower = 0.0 if states_less(spec.mechanisms) else bracket["lower"]
    found = judge(spec.mechanisms, spec.steps, bracket["given"], (lower, bracket["upper"]), relation=spec.relation)
    return {"status": found.status.value, "reason": found.reason}


def digest(value: Any) -> str:
    """Returns the SHA-256 of a JSON value's text."""
    return hashlib.sha256(json_files.dumps(value).encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    """Returns the SHA-256 of the package's Python files and pages, names and contents, with Unix line ends anywhere."""
    package = pathlib.Path(jaxacct.__file__).parent
    found = hashlib.sha256()
    files = (path for path in package.rglob("*") if path.suffix in (".py", ".html"))
    for path in sorted(files, key=lambda path: path.relative_to(package).as_posix()):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        found.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


# ----------------------------------------------------------------------------------------------------
# The words of a certificate: its statement, its assumptions, and the events that would void it.
# ----------------------------------------------------------------------------------------------------

NEIGHBOURS = {
    "add_or_remove": "the data with and without {unit}",
    "remove": "the data with and without {unit}, told apart one way: that it was there",
    "add": "the data with and without {unit}, told apart one way: that it was not there",
    "replace": "the data with {unit} and with another in its place",
    "zero_out": "the data with {unit} and with one that contributes nothing in its place",
}
"""The neighbouring relations in words, with a place for the unit of privacy."""


def assumptions(spec: Spec) -> list[dict[str, str]]:
    """Returns the assumptions that the statement rests on: each in words, who says so, and what would void it."""
    # The assumption on a private search: the text, who says so, and what would void it.
    search = (
        "How many runs a search made was drawn from the stated law, whatever data and results were; the best alone was "
        "released, and not how many there were.",
        "nobody",
        "Other runs or their number were shown, or the best was chosen by looking at the data again.",
    )
    # The assumption on each way of sampling, and what would void it.
    samples = {
        "poisson": (
            "Each batch is a Poisson sample: every record is in it with the stated probability, independently.",
            "Batches were shuffled, of a fixed size or taken in order, or who was in them was seen.",
        ),
        "without_replacement": (
            "Each batch is a sample of a fixed size, drawn uniformly without replacement and anew for every step.",
            "Batches were taken in order or from one shuffling of the data, or who was in them was seen.",
        ),
        "with_replacement": (
            "Each batch is a fixed number of records, drawn independently and uniformly with replacement.",
            "Batches were drawn otherwise, or who was in them was seen.",
        ),
        "random_allocation": (
            "In every epoch each record is put into the stated number of its batches at random, independently.",
            "Batches were shuffled to equal sizes or taken in order, or who was in them was seen.",
        ),
    }
    # The assumption on above-threshold mechanisms: the text, who says so, and what would void it.
    above = (
        "Of queries against a threshold only which was the first above was released; none moves by more than the "
        "stated sensitivity{monotone}, and noise is drawn for the threshold once a run, and for each query.",
        "nobody but the program that ran",
        "The value of a query or of the noisy threshold was shown, or a run went on behind its first answer above.",
    )
    given = spec.given
    unit = unit_of(given)
    fixed, has_report = given.get("fixed", ""), any("report" in part for part in given["parts"])
    found = [
        (
            f"What is protected is {unit}: " + NEIGHBOURS[spec.relation].format(unit=unit)
            + (f"; up to {spec.group} records change together." if spec.group > 1 else "."),
            "the spec" if "unit" in given or spec.group > 1
            else "nobody: a record is taken for the unit" if unit == ANY else "the trainer's report",
            f"What is protected contributed more than {spec.group} record{'s' * (spec.group > 1)}.",
        ),
        (
            "Noise, sampling and the number of releases were fixed before the first release, or without regard to the "
            "data.",
            f"the spec: {fixed}" if fixed else "the trainer's report, of its runs" if has_report else "nobody",
            "Settings, or when to stop, followed from results or from the data.",
        ),
        (
            "Each release is the mechanism that is listed: contributions are bounded record by record, and noise of "
            "the stated scale, relative to that bound, is drawn afresh.",
            "nobody but the program that ran",
            "Contributions were bounded for several records at once or not at all, noise was left out or used twice, "
            "or its seed is known.",
        ),
    ]  # fmt: skip
    # Each mechanism, and each within another, adds the assumption of its sampling or its kind. Equal ones are dropped
    # at the end.
    for release in spec.releases:
        for mechanism in all_of(release.mechanism):
            if (sampling := sampling_of(mechanism)) in samples:
                text, void = samples[sampling]
                found.append((text, release.said_by, void))
            if isinstance(mechanism, RepeatAndSelect):
                found.append(search)
            if isinstance(mechanism, (AboveThreshold, GaussianAboveThreshold)):
                text, said_by, void = above
                rising = " and none falls where a record is added" if mechanism.monotone else ""
                found.append((text.format(monotone=rising), said_by, void))
    # A report of the trainer says what a release stands for where steps share their noise.
    for config in (part["report"]["config"] for part in given["parts"] if "report" in part):
        sampler, noise = config["sampler"], config.get("noise", "independent")
        if noise != "independent" or sampler == "CyclicPoissonSampler":
            found.append((
                f"Batches came by {sampler}, with noise that is {noise}: one release that is listed stands "
                "for many steps, and its rate is that within a turn.",
                "the trainer's report", "Records came to steps otherwise, or a step's noise was drawn again.",
            ))  # fmt: skip
        if config.get("seed") == "given by the user":
            found.append(("The random seed is secret.", "the trainer's report", "It is known, or was used again."))
    if spec.cut_probability:
        found.append((
            "Batches were cut, or drawn from another law, with a probability of at most "
            f"{rounded_up(spec.cut_probability, '.3g')} over all steps, which delta pays for.",
            "the trainer's report", "Another program drew the batches, or had less room for them.",
        ))  # fmt: skip
    found += [
        (
            "Nothing else was released of the same data.",
            "nobody",
            "Other runs, a choice of settings on these data, statistics, or intermediate values were shown to anyone.",
        ),
        (
            "Noise is the real-valued noise of the theorem, or one whose distance from it is paid for elsewhere.",
            "nobody: noise is drawn in floating point",
            "The last bits of what was released are used to tell noise apart.",
        ),
    ]
    return [dict(zip(("text", "said_by", "void_if"), one, strict=True)) for one in dict.fromkeys(found)]


def statement(made: dict[str, Any]) -> str:
    """Returns the certified statement in words, for readers who know no formula; numbers are rounded up."""
    claim, risks, status = made["claim"], made["risks"], made["verdict"]["status"]
    success = dict(zip(risks["false_positive_rate"], risks["true_positive_rate"], strict=True))
    changed = made["unit"] if made["group"] == 1 else f"{made['unit']} (up to {made['group']} records)"
    proof = {
        "PROVED": "An independent program has proved the bracket that this rests on, in exact arithmetic.",
        "UNDECIDED": "The independent program has not decided on the bracket that this rests on; its reason is below.",
    }[status]
    neighbours = NEIGHBOURS[made["relation"]].format(unit=changed)
    return (
        f"The results listed here are differentially private with epsilon = {rounded_up(claim['epsilon'])} and delta = "
        f"{rounded_up(claim['delta'])}, if the assumptions below hold. Compared are {neighbours}. Whoever sees all the "
        "results, knows everything about everybody else and has unlimited means can tell the two apart only so well: "
        f"accusing wrongly in 1 of 100 cases, they are right in at most {_percent(success[0.01])} of 100; accusing "
        f"wrongly in 5 of 100 cases, in at most {_percent(success[0.05])} of 100. By guessing they would be right in 1 "
        f"and in 5. {proof} This is a statement about the method that ran, not about what the results say; and it does "
        "not say that a person cannot be harmed by what is true of many."
    )


def _percent(rate: float) -> str:
    """Returns a rate in percent with at most one decimal, rounded up."""
    return rounded_up(100 * Decimal(rate), ".1f").removesuffix(".0")


# ----------------------------------------------------------------------------------------------------
# The page of a certificate: one HTML file for a browser, which loads nothing from elsewhere.
# ----------------------------------------------------------------------------------------------------

HTML = "certificate.html"
"""The page's name in a folder."""


def html(made: dict[str, Any], picture: bytes | None) -> str:
    """Returns the page; ``picture`` is a PNG, or None for a page without one."""
    template = (importlib.resources.files("jaxacct") / "certificate.html").read_text(encoding="utf-8")
    shown = ""
    if picture is not None:
        data = base64.b64encode(picture).decode()
        shown = f'<img alt="The most successful attack" src="data:image/png;base64,{data}">'
    assumed = [(one["text"], one["said_by"], one["void_if"]) for one in made["assumptions"]]
    return string.Template(template).substitute(
        statement=escaping.escape(made["statement"]),
        picture=shown,
        releases=_rows(releases_of(made)),
        assumptions=_rows(assumed),
        facts=_rows(facts(made), first="th"),
        hashes=escaping.escape(hashes(made)),
    )


def _rows(table: Iterable[Sequence[str]], first: str = "td") -> str:
    """Returns the rows of a table of texts, whose first cell in each may be a head."""
    found = []
    for row in table:
        kinds = [first, *["td"] * (len(row) - 1)]
        cells = (f"<{kind}>{escaping.escape(cell)}</{kind}>" for kind, cell in zip(kinds, row, strict=True))
        found.append(f"<tr>{''.join(cells)}</tr>\n")
    return "".join(found)


def facts(made: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the proved facts and their grounds, as names and texts."""
    claim, bracket, verdict = made["claim"], made["bracket"], made["verdict"]
    return [
        ("epsilon, delta", f"{claim['epsilon']!r}, {claim['delta']!r}"),
        (f"bracket of {bracket['quantity']} at {bracket['given']!r}", f"{bracket['lower']!r} to {bracket['upper']!r}"),
        ("by", made["route"]),
        ("referee", f"{verdict['status']}: {verdict['reason']}"),
        ("relation, unit, group", f"{made['relation']}, {made['unit']}, {made['group']}"),
        ("made", ", ".join([made["made"], *(f"{name} {version}" for name, version in made["versions"].items())])),
    ]


def releases_of(made: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the releases: how often each was made, and the mechanism."""
    return [(str(one["count"]), json_files.dumps(one["mechanism"])) for one in made["releases"]]


def hashes(made: dict[str, Any]) -> str:
    """Returns the sentence that names the hashes, and the command that checks a folder."""
    known = made["sha256"]
    return f"spec {known['spec']}, code {known['code']}. Check this folder: jaxacct certify --check FOLDER."


MOST_SHOWN = 12
"""Most mechanisms that the page for paper lists: :data:`CERTIFICATE` has all. No number depends on it."""


def for_print(made: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a page for paper, but for its picture: its texts, and its tables as their fields.

    Mechanisms stand there in words; of more than :data:`MOST_SHOWN` the first ones, and a word on the others.
    """
    claim, verdict, bracket = made["claim"], made["verdict"], made["bracket"]
    releases = [
        (_times(one["count"]), (said := in_words(one["mechanism"]))[0].upper() + said[1:]) for one in made["releases"]
    ]
    if (more := len(releases) - MOST_SHOWN + 1) > 1:
        releases = [*releases[: MOST_SHOWN - 1], ("", f"and {more} more mechanisms, which {CERTIFICATE} lists.")]
    group = f", up to {made['group']} records" if made["group"] > 1 else ""
    proof = "proved by an independent program" if verdict["status"] == "PROVED" else "not proved independently"
    assumed: list[tuple[str, ...]] = []
    notes: list[tuple[str, str]] = []
    # A sentence of the table ends with one full stop, whoever wrote it; long words of the spec stand in full width.
    for one in made["assumptions"]:
        cells = [f"{one[name].rstrip().removesuffix('.')}." for name in ("text", "said_by", "void_if")]
        for i, cell in enumerate(cells):
            if len(cell) > 240:
                notes.append((f"note {len(notes) + 1}", cell))
                cells[i] = (
                    f"{cell.partition(':')[0][:40]}: note {len(notes)}, below." if i == 1 else f"Note {len(notes)}."
                )
        assumed.append(tuple(cells))
    noted = [{"heading": "Notes", "shares": (0.16, 0.84), "rows": notes}] if notes else []
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return {
        "title": "Certificate of differential privacy",
        "date": f"made {made['made'][:10]}",
        "headline": f"epsilon = {rounded_up(claim['epsilon'])} at delta = {rounded_up(claim['delta'])}",
        "subtitle": f"for {made['unit']}{group}; neighbours: {made['relation'].replace('_', ' ')}; {proof}",
        "text": made["statement"],
        "sections": [
            {"heading": "What was released", "shares": (0.16, 0.84), "rows": releases},
            {
                "heading": "What this assumes, who says so, and what would void it", "shares": (0.42, 0.22, 0.36),
                "rows": assumed, "names": ("assumed", "said by", "void if"),
            },
            *noted,
            {
                "heading": "What is proved, and how", "shares": (0.16, 0.84),
                "rows": [
                    (bracket["quantity"], f"between {rounded_down(bracket['lower'], '.12g')} and "
                     f"{rounded_up(bracket['upper'], '.12g')}, at {bracket['given']!r}"),
                    ("by", made["route"]),
                    ("referee", f"{verdict['status']}: {verdict['reason']}"),
                    ("programs", versions),
                ],
            },
        ],
        "footer": hashes(made),
    }  # fmt: skip


def _times(count: Any) -> str:
    """Returns a number of runs in words; of a sequence, that of all."""
    return spell_count(sum(count), "time") + ", in turn" if isinstance(count, list) else spell_count(count, "time")


def in_words(record: Any) -> str:
    """Returns a mechanism, or a value of one, in words: the kind, and its fields; of long lists the first few.

    >>> in_words({"type": "PoissonSubsampledGaussian", "noise_multiplier": 1.0, "sampling_rate": 64 / 6000})
    'Poisson subsampled Gaussian, noise multiplier 1, sampling rate 0.0106666666667'
    >>> in_words({"type": "RepeatAndSelect", "mechanism": [{"type": "PureDP", "epsilon": 0.5}], "steps": [3]})
    'repeat and select, mechanism (pure DP, epsilon 0.5), steps 3'
    """
    if isinstance(record, dict):
        names = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", record["type"]).split()
        kind = " ".join(name if name in ("Gaussian", "Laplace", "Poisson", "DP") else name.lower() for name in names)
        return ", ".join([kind, *(f"{name.replace('_', ' ')} {_inner(value)}"
                                  for name, value in record.items() if name != "type")])  # fmt: skip
    if isinstance(record, list):
        shown = ", ".join(map(_inner, record[:4]))
        return shown if len(record) <= 4 else f"{shown} ... ({len(record):,} in all)"
    return f"{record:.12g}" if isinstance(record, (int, float)) and not isinstance(record, bool) else str(record)


def _inner(value: Any) -> str:
    """Returns what stands within another: mechanisms and laws in brackets."""
    return f"({in_words(value)})" if isinstance(value, dict) else in_words(value)


def without_picture(text: str) -> str:
    """Returns a page without its picture, which no check compares, since drawing programs differ."""
    return re.sub(r'<img [^>]*src="data:image/png;base64,[^"]*">', "", text, count=1)


# ----------------------------------------------------------------------------------------------------
# The folder of a certificate: sealed, and written whole or not at all.
# ----------------------------------------------------------------------------------------------------

CERTIFICATE = "certificate.json"
"""The name of the sealed file, by which all others in a folder are checked."""


def write(
    folder: str | os.PathLike[str], made: dict[str, Any], files: dict[str, bytes], *, overwrite: bool = False
) -> str:
    """Writes a certificate with its other files, all of it or nothing, and returns its seal.

    Args:
        folder: the folder to write; it is created, with the folders above it.
        made: what :func:`certify` returned.
        files: further files by their names; the certificate holds their hashes.
        overwrite: whether to replace a certificate that is there.

    Raises ValueError where the folder exists and is not to be replaced, or holds no certificate.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     seal = write(f"{place}/new", {"sha256": {"files": {}}}, {"note.txt": b"note"})
    ...     len(seal), sorted(os.listdir(f"{place}/new"))
    (64, ['certificate.json', 'note.txt'])
    """
    path = pathlib.Path(folder)
    check_free(path, overwrite=overwrite)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    whole = made | {"sha256": made["sha256"] | {"files": hashes}}
    sealed = whole | {"seal": digest(whole)}
    new, old = (path.with_name(f".{path.name}.{secrets.token_hex(8)}") for _ in range(2))
    # All files are written to a new folder beside the target, which takes its place by renaming. An old certificate is
    # renamed first, and comes back if the second renaming fails.
    try:
        for name, content in ({CERTIFICATE: text_of(sealed)} | files).items():
            write_whole(new / name, content)
        if path.exists():
            os.replace(path, old)
        os.replace(new, path)
        synchronize(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
    return str(sealed["seal"])


def check_free(path: pathlib.Path, *, overwrite: bool) -> None:
    """Raises ValueError where a certificate cannot be written to a folder."""
    if (path / CERTIFICATE).exists():
        if not overwrite:
            raise ValueError(f"--out {path} holds a certificate: give --overwrite, or name another folder.")
    elif path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ValueError(f"--out {path} is there, and no certificate: name another folder.")


def text_of(sealed: dict[str, Any]) -> bytes:
    """Returns the text of a certificate, the only one whose bytes a check accepts."""
    return (json_files.dumps(sealed, indent=1) + "\n").encode()


# ----------------------------------------------------------------------------------------------------
# The check of a folder, on another machine and later.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Attributes:
        status: "PROVED" or "UNDECIDED", the referee's verdict on a certificate that holds in all else; or "REFUTED".
        reason: the referee's reason.
        certificate: the content that was checked.
        same_code: whether the package that made the certificate and the one that checked it are the same.

    >>> Checked("REFUTED", "upper = 1.0 is below the truth.", {}, True).status
    'REFUTED'
    """

    status: str
    reason: str
    certificate: dict[str, Any]
    same_code: bool


def check(folder: str | os.PathLike[str]) -> Checked:
    """Checks a certificate's folder: every byte by the seal, the bracket by the referee, and all else computed anew.

    Args:
        folder: what ``jaxacct certify`` wrote, or its ``certificate.json`` alone, which leaves other files unchecked.

    Raises ValueError where anything is not as it was sealed, or does not follow from the spec inside; OSError where
    there is nothing to read.

    >>> import tempfile
    >>> from jaxacct.certificates import certify, write
    >>> spec = {"parts": [{"type": "Gaussian", "noise_multiplier": 10.0, "count": 100}], "delta": 1e-5}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = write(f"{place}/new", certify(spec), {})
    ...     check(f"{place}/new").status
    'PROVED'
    """
    path = pathlib.Path(folder)
    file = path / CERTIFICATE if path.is_dir() else path
    content = file.read_bytes()
    try:
        sealed = json_files.loads(content)
        whole = {key: value for key, value in sealed.items() if key != "seal"}
        intact = text_of(sealed) == content and sealed["seal"] == digest(whole)
        files = whole["sha256"]["files"] | {}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{file} is no certificate, or a damaged one: ask for the folder again.") from None
    if not intact:
        raise ValueError(f"{file} is not as it was sealed: somebody changed it. Ask for the folder again.")
    if whole["schema"] != SCHEMA:
        raise ValueError(f"{file} is of the format {whole['schema']!r}, and {SCHEMA} is known here: update jaxacct.")
    if path.is_dir():
        for name in sorted({CERTIFICATE, *files}.symmetric_difference(entry.name for entry in path.iterdir())):
            raise ValueError(f"{path / name} is {'missing' if name in files else 'no part of it'}: ask for it again.")
        for name, expected in files.items():
            if hashlib.sha256((path / name).read_bytes()).hexdigest() != expected:
                raise ValueError(f"{path / name} is not as it was sealed: ask for the folder again.")
    same = whole["sha256"]["code"] == code_digest()
    try:
        spec = parsed(whole["spec"])
        verdict = ask_referee(spec, whole["bracket"])
        if verdict["status"] == "REFUTED":
            return Checked("REFUTED", verdict["reason"], sealed, same)
        about = {"schema": SCHEMA, "made": whole["made"], "verdict": verdict}
        about["versions"] = {name: str(whole["versions"][name]) for name in ("jaxacct", "python", *PACKAGES)}
        about["sha256"] = {"spec": digest(whole["spec"]), "code": whole["sha256"]["code"], "files": files}
        anew = add_words(about | derive(whole["spec"]))
        # The statement's words are made from the numbers that stand in the file, which may differ in their last digits.
        _compare(whole, anew | {"statement": add_words(whole)["statement"]}, "")
        if not follows(spec, whole):
            raise ValueError(f"claim = {whole['claim']} is not implied by the bracket")
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", whole["made"]):
            raise ValueError(f"made = {whole['made']!r} is no time")
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"{file} has not what a certificate has ({error!r}): ask for the folder again.") from None
    except ValueError as error:
        raise ValueError(f"{file} does not follow from its spec: {error}") from None
    if path.is_dir() and HTML in files:
        shown = without_picture((path / HTML).read_text("utf-8"))
        if shown != html(whole, None):
            raise ValueError(f"{path / HTML} does not say what {CERTIFICATE} says: ask for the folder again.")
    return Checked(verdict["status"], verdict["reason"], sealed, same)


def _compare(there: Any, here: Any, where: str) -> None:
    """Raises ValueError where two values differ: texts at all, computed numbers by a millionth."""
    if isinstance(there, dict) and isinstance(here, dict) and list(there) == list(here):
        for key in here:
            _compare(there[key], here[key], f"{where}.{key}".lstrip("."))
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for i, (one, other) in enumerate(zip(there, here, strict=True)):
            _compare(one, other, f"{where}[{i}]")
    elif isinstance(there, float) and isinstance(here, float) and not where.startswith("spec"):
        # Two machines agree on numbers within that. The bracket, which the referee judges, and the step from it to the
        # claim are exact, whatever this is.
        if not math.isclose(there, here, rel_tol=1e-6, abs_tol=0.0):
            raise ValueError(f"{where} is {there!r} there, and {here!r} computed here")
    elif type(there) is not type(here) or there != here:
        raise ValueError(f"{where or 'the certificate'} is {there!r:.120} there, and {here!r:.120} here")
