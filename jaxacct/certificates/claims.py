"""Claims: the privacy that is proved of a spec, in numbers and in words.

:func:`certify` makes the content of a certificate from a spec (:mod:`.specs`). Everything in it but the record of
its making follows from the spec, so that a check computes it anew by :func:`derive` and :func:`add_words`.

In reading order:

- :func:`certify` to :func:`code_digest`: claim, bracket, profile and risks from the accountants, and the referee's
  verdict on the bracket.
- :func:`assumptions` and :func:`statement`: the words.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib
import math
import pathlib
import platform
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from importlib import metadata
from typing import Any

import numpy as np

import jaxacct
from jaxacct import json_files, saddlepoint
from jaxacct.adapters.loaders import rule
from jaxacct.bounds import enclose
from jaxacct.certificates.specs import ANY, IntegerNoise, Release, Spec, all_of, parsed, sampling_of, unit_of
from jaxacct.choices import Ruling
from jaxacct.display import round_up, rounded_up
from jaxacct.mechanisms import AboveThreshold, DiscreteGaussianVector, GaussianAboveThreshold, RepeatAndSelect
from jaxacct.mechanisms.by_curve import has_renyi_only
from jaxacct.mechanisms.records import record_of

SCHEMA = "jaxacct.certificate/1"
"""The format's name and version; the number rises where a key is removed or changes its meaning."""

PACKAGES = ("jax", "jaxlib", "numpy", "python-flint")
"""The installed packages whose versions a certificate records."""


def certify(source: dict[str, Any]) -> dict[str, Any]:
    """Returns the certificate of a spec, without the files of its folder and its seal.

    Args:
        source: a spec, as :func:`jaxacct.specs.read` returns it, with one of ``delta`` and ``epsilon``.

    Returns:
        A JSON object: ``claim`` (epsilon, delta), ``bracket`` with the quantity's certified bounds, ``verdict`` of the
        referee on it, ``risks``, ``assumptions``, the ``statement`` in words, and more (certificate-1.schema.json).

    Formal guarantee: under the assumptions that are listed, the spec's composition is (epsilon, delta)-DP for its
    relation. ``epsilon`` is the upper end of :func:`jaxacct.epsilon` at delta; where batches may have been cut, at
    delta - (1 + e^epsilon) eta, with eta a bound on the probability that any batch was
    (:mod:`jaxacct.train.sampling.sampler`), to which the total variation of noise drawn in integers from what is
    composed is added (:mod:`jaxacct.train.integer_noise`). An attack's true-positive rate at a false-positive rate a
    is at most
    min(e^eps a + delta, 1 - e^-eps (1 - delta - a)) for every (eps, delta) of the profile.

    Raises:
        ValueError: no valid spec, one not fixed before the run, one that samples otherwise than it is accounted, or one
            without a known finite bound; a bracket that the referee refutes; an epsilon that is ``claimed`` and is
            REFUTED or UNDECIDED, with both bounds.
        ModuleNotFoundError: python-flint is missing.

    Source: Kairouz, Oh and Viswanath (2015), "The composition theorem for differential privacy", Theorem 2.1, for the
    attack.

    >>> made = certify({"parts": [{"type": "Gaussian", "noise_multiplier": 10.0, "count": 100}], "delta": 1e-5})
    >>> f"{made['claim']['epsilon']:.6f}", made["verdict"]["status"]
    ('4.377178', 'PROVED')
    """
    importlib.import_module("jaxacct.verify")  # from an extra: a missing package is reported before the long work
    spec, made = parsed(source), derive(source)
    verdict = ask_referee(spec, made["bracket"])
    if verdict["status"] == "REFUTED":
        raise ValueError(
            f"no certificate: the referee refutes {made['bracket']}, or its noise: {verdict['reason']} Report this."
        )
    versions = {"jaxacct": jaxacct.__version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in PACKAGES}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    hashes = {"spec": digest(source), "code": code_digest(), "files": {}}
    about = {"schema": SCHEMA, "made": now, "verdict": verdict, "versions": versions, "sha256": hashes}
    return add_words(about | made)


def _check_claimed(spec: Spec, bracket: dict[str, Any]) -> None:
    """Raises ValueError unless an epsilon that is claimed follows from the upper bound."""
    if spec.claimed is None or spec.delta is None:
        return
    if spec.distance:
        raise ValueError(
            f"claimed = {spec.claimed}: where delta pays for {_what_is_paid(spec)} no epsilon is judged: leave it out."
        )
    bounds = enclose(bracket["lower"], bracket["upper"], True)
    verdict = rule(spec.mechanisms, bounds, spec.claimed, spec.delta, spec.relation)
    if verdict.status == Ruling.PROVED:
        return
    from jaxacct import verify  # of an extra

    ends = None, spec.claimed
    also = verify.epsilon(spec.mechanisms, spec.steps, spec.delta, ends, relation=spec.relation).status
    said = " The referee refutes it, too." if also == verdict.status == Ruling.REFUTED else ""
    raise ValueError(f"no certificate: the claim is {verdict.status}: {verdict.reason}.{said}")


def add_words(made: dict[str, Any]) -> dict[str, Any]:
    """Returns a certificate with the words that follow from its numbers."""
    return made | {"assumptions": assumptions(parsed(made["spec"])), "statement": statement(made)}


def derive(source: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a certificate that follows from its spec by this version's accountants."""
    # False-positive rates at which the most successful attack is reported; the statement's words use 0.01 and 0.05.
    rates = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
    spec = parsed(source)
    epsilon_at = functools.partial(jaxacct.epsilon, spec.mechanisms, spec.steps, relation=spec.relation)
    distance, cost = spec.distance, Fraction(0)
    if spec.epsilon is not None:
        quantity, argument, cost = "delta", spec.epsilon, _cost(spec.epsilon, distance)
        bounds = jaxacct.delta(spec.mechanisms, spec.steps, argument, relation=spec.relation)
        claim = {"epsilon": argument, "delta": min(round_up(Fraction(float(bounds.upper)) + cost), 1.0)}
    elif spec.delta is None:
        raise ValueError("delta is missing: give it in the spec or as --delta; or epsilon, at which delta is asked.")
    else:
        quantity, argument = "epsilon", spec.delta
        bounds = epsilon_at(argument)
        paid_at = float(bounds.upper) if distance else math.inf
        # A distance eta costs (1 + e^epsilon) eta of delta, and the rest of delta decides epsilon. So delta pays the
        # cost at a guess a little above the last epsilon, until the epsilon of the rest is at most the guess. Each
        # round raises the guess; the loop ends there, or where the cost exceeds delta.
        while paid_at < math.inf:
            paid_at = paid_at * 1.001 + 0.001
            cost = _cost(paid_at, distance)
            argument = -round_up(cost - Fraction(spec.delta))
            if argument <= 0:
                raise ValueError(f"no certificate: {_what_is_paid(spec)} cost more than delta = {spec.delta}.")
            bounds = epsilon_at(argument)
            paid_at = math.inf if bounds.upper <= paid_at else float(bounds.upper)
        claim = {"epsilon": float(bounds.upper), "delta": spec.delta}
    if claim["epsilon"] == math.inf or claim["delta"] >= 1:
        raise ValueError(f"no certificate: no finite epsilon is known at a delta below 1: see jaxacct {quantity}.")
    bracket = {"quantity": quantity, "given": argument, "lower": float(bounds.lower), "upper": float(bounds.upper)}
    _check_claimed(spec, bracket)
    profile = _claimed_profile(spec, claim, cost)
    success = [_success(profile, rate, spec.relation) for rate in rates]
    releases = [
        {"mechanism": record_of(one.mechanism), "count": np.asarray(one.count).tolist(), "sampling": one.sampling}
        for one in spec.releases
    ]
    return {
        "claim": claim, "bracket": bracket, "route": _route(spec, quantity, argument, bool(bounds.converged)),
        "relation": spec.relation, "unit": unit_of(source), "group": spec.group, "releases": releases,
        "cut_probability": spec.cut_probability,
        **({"noise_distance": round_up(spec.distance - Fraction(spec.cut_probability))} if spec.noises else {}),
        "profile": profile,
        "risks": {"false_positive_rate": list(rates), "true_positive_rate": success}, "spec": source,
    }  # fmt: skip


def _what_is_paid(spec: Spec) -> str:
    """Returns in words what takes its cost off delta."""
    kinds = {"batches cut at capacity": spec.cut_probability, "the distance of integer noise": spec.noises}
    return " and ".join(name for name, there in kinds.items() if there)


def follows(spec: Spec, made: dict[str, Any]) -> bool:
    """Returns whether a claim follows from its bracket's upper end, in exact arithmetic on fractions."""
    claim, bracket = made["claim"], made["bracket"]
    argument, upper, delta = (Fraction(value) for value in (bracket["given"], bracket["upper"], claim["delta"]))
    cost = _cost(claim["epsilon"], spec.distance)
    if [values[-1] for values in made["profile"].values()] != list(claim.values()):
        return False
    if spec.epsilon is not None:
        return bool(argument == claim["epsilon"] == spec.epsilon and delta >= min(upper + cost, Fraction(1)))
    return bool(delta == spec.delta and claim["epsilon"] >= upper and argument + cost <= delta)


def _cost(epsilon: float, distance: Fraction) -> Fraction:
    """Returns an upper bound on (1 + e^epsilon) distance, as a fraction; 1 stands for a cost that is too large."""
    if not distance or epsilon > 700:
        return Fraction(bool(distance))
    return (1 + Fraction(math.exp(epsilon)) * (1 + Fraction(1, 2**40))) * distance


def _route(spec: Spec, quantity: str, argument: float, converged: bool) -> str:
    """Returns in words which accountant the bracket comes from."""
    if has_renyi_only(spec.mechanisms):
        return "Rényi divergences: an upper bound alone; a mechanism among them is known by its Rényi curve only"
    if any(isinstance(mechanism, DiscreteGaussianVector) for mechanism in spec.mechanisms):
        return "Gaussian noise near to discrete one: its guarantee, with what their total variation adds to delta"
    by_contour = saddlepoint.epsilon if quantity == "epsilon" else saddlepoint.delta
    if converged and by_contour(spec.mechanisms, spec.steps, argument, relation=spec.relation).converged:
        return "exact accountant: the characteristic function, inverted along a line, every error counted"
    return "mesh: transforms of discretized privacy losses, every error counted"


def _claimed_profile(spec: Spec, claim: dict[str, float], cost: Fraction) -> dict[str, list[float]]:
    """Returns pairs (epsilon, delta), the claim's last, for all of which the guarantee holds.

    At a delta above the claim's epsilon is smaller, so a distance costs no more there than it costs the claim.
    """
    # Several deltas together bound an attack more tightly; any values in (0, 1) do.
    deltas = (0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
    reduced = {delta: -round_up(cost - Fraction(delta)) for delta in deltas if delta > claim["delta"] + cost}
    arguments = np.array([*reduced.values(), 0.5])  # never an empty list
    curve = jaxacct.curve(spec.mechanisms, spec.steps, deltas=arguments, relation=spec.relation)
    epsilons = [*np.minimum(curve.upper[:-1], claim["epsilon"]).tolist(), claim["epsilon"]]
    return {"epsilon": epsilons, "delta": [*reduced, claim["delta"]]}


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
    crossings = {0.0, 1.0}
    # All pairs of lines. Rounding moves a place by some units of itself, and its bound by as many units of 1: less than
    # the 1e-12 that :func:`_success` adds.
    for i, (slope, at_0) in enumerate(lines):
        for other, other_at_0 in lines[:i]:
            place = (other_at_0 - at_0) / (slope - other) if slope != other else 0.0
            crossings |= {place} if 0 < place < 1 else set()
    rates = sorted(crossings)
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
    """Returns the referee's verdict on a bracket, and on noise that was drawn in integers.

    Where the referee states the mechanism itself and the accountants a pair that dominates it, the verdict is on the
    upper end alone.
    """
    from jaxacct import verify  # of an extra
    from jaxacct.verify.border import states_less
    from jaxacct.verify.drawn_noise import refute

    for noise in spec.noises:
        if why := refute(noise.record, noise.distance, noise.runs, noise.steps):
            return {"status": "REFUTED", "reason": why}
    judge = verify.epsilon if bracket["quantity"] == "epsilon" else verify.delta
    lower = 0.0 if states_less(spec.mechanisms) else bracket["lower"]
    verdict = judge(spec.mechanisms, spec.steps, bracket["given"], (lower, bracket["upper"]), relation=spec.relation)
    also = " The table of the noise and its distance are proved." if spec.noises else ""
    return {"status": verdict.status.value, "reason": verdict.reason + also}


def digest(value: Any) -> str:
    """Returns the SHA-256 of a JSON value's text."""
    return hashlib.sha256(json_files.dumps(value).encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    """Returns the SHA-256 of the package's Python files and pages, names and contents, with Unix line ends anywhere."""
    package = pathlib.Path(jaxacct.__file__).parent
    sha256 = hashlib.sha256()
    files = (path for path in package.rglob("*") if path.suffix in (".py", ".html"))
    for path in sorted(files, key=lambda path: path.relative_to(package).as_posix()):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        sha256.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return sha256.hexdigest()


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


ASSUMED = {
    "unit": (
        "What is protected is {unit}: {neighbours}{together}.",
        "What is protected contributed more than {records}.",
    ),
    "fixed": (
        "Noise, sampling and the number of releases were fixed before the first release, or without regard to the "
        "data.",
        "Settings, or when to stop, followed from results or from the data.",
    ),
    "mechanism": (
        "Each release is the mechanism that is listed: contributions are bounded record by record, and noise of "
        "the stated scale, relative to that bound, is drawn afresh.",
        "Contributions were bounded for several records at once or not at all, noise was left out or used twice, "
        "or its seed is known.",
    ),
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
    "shuffled": (
        "In every epoch, or for as many as are stated, the records are in one order, uniformly random and secret, and "
        "each is in one batch.",
        "Who knows the seed, or tries out the few that there are (0, 42, all of 32 bits), knows the order; indices, or "
        "losses of single steps, were shown; records came twice in an epoch; or the order was not uniform, as that of "
        "a buffer or of shards.",
    ),
    "known_order": (
        "In every epoch each record is in as many batches as runs are counted for one; nothing rests on the order.",
        "A record came more often, or what it is decided its place.",
    ),
    "search": (
        "How many runs a search made was drawn from the stated law, whatever data and results were; the best alone was "
        "released, and not how many there were.",
        "Other runs or their number were shown, or the best was chosen by looking at the data again.",
    ),
    "threshold": (
        "Of queries against a threshold only which was the first above was released; none moves by more than the "
        "stated sensitivity{monotone}, and noise is drawn for the threshold once a run, and for each query.",
        "The value of a query or of the noisy threshold was shown, or a run went on behind its first answer above.",
    ),
    "shared noise": (
        "Batches came by {sampler}, with noise that is {noise}: one release that is listed stands for many steps, and "
        "its rate is that within a turn.",
        "Records came to steps otherwise, or a step's noise was drawn again.",
    ),
    "seed": ("The random seed is secret.", "It is known, or was used again."),
    "cut": (
        "Batches were cut, or drawn from another law, with a probability of at most {probability} over all steps, "
        "which delta pays for.",
        "Another program drew the batches, or had less room for them.",
    ),
    "nothing else": (
        "Nothing else was released of the same data.",
        "Other runs, a choice of settings on these data, statistics, or intermediate values were shown to anyone.",
    ),
    "real noise": (
        "Noise is the real-valued noise of the theorem, or one whose distance from it is paid for elsewhere.",
        "The last bits of what was released are used to tell noise apart.",
    ),
    "integer noise": (
        "Noise is in integers, by {draws} draws of the table {table}: discrete Gaussian noise of variance {square}, up "
        "to a total variation of at most {distance} ({parts}) over {samples} values, for {entries} parameters and "
        "{counts} counts in each of {steps} steps, which delta pays for.",
        "Another program drew the noise, or more of it.",
    ),
    "generator": (
        "The noise is drawn by {generator}: a pseudorandom function, whose key is secret and was never used again with "
        "other data.",
        "The key was seen in memory or in checkpoints, or a copy of the run went on with it.",
    ),
    "machine": (
        "The compiler's operations on integers are right, clipping in floating point holds its norm, and nobody "
        "measures caches or time.",
        "A program is compiled wrongly, or was watched while it ran.",
    ),
}
"""The assumptions of a certificate, by kind: each in words, and what would void it."""


def assumptions(spec: Spec) -> list[dict[str, str]]:
    """Returns the assumptions that the statement rests on: each in words, who says so, and what would void it."""
    reports = [part["report"]["config"] for part in spec.source["parts"] if "report" in part]
    by_report, by_program = "the trainer's report", "nobody but the program that ran"
    assumed = [*_assume_spec(spec, by_report), _assume("mechanism", by_program)]
    for release in spec.releases:
        assumed += _assume_release(release, by_program)
    for config in reports:
        assumed += _assume_report(config, by_report)
    if spec.cut_probability:
        assumed.append(_assume("cut", by_report, probability=rounded_up(spec.cut_probability, ".3g")))
    assumed.append(_assume("nothing else", "nobody"))
    for noise in spec.noises:
        assumed += _assume_noise(noise, by_report)
    # Noise of anything else than a trainer's steps is not the trainer's.
    if len(spec.noises) < len(spec.source["parts"]) or any(len(one["composition"]["steps"]) > 1 for one in reports):
        assumed.append(_assume("real noise", "nobody: noise is drawn in floating point"))
    return [dict(zip(("text", "said_by", "void_if"), entry, strict=True)) for entry in dict.fromkeys(assumed)]


def _assume(kind: str, said_by: str, **words: str) -> tuple[str, str, str]:
    """Returns an assumption of a kind: its text, who says so, and what would void it."""
    text, void = ASSUMED[kind]
    return text.format(**words), said_by, void.format(**words)


def _assume_spec(spec: Spec, by_report: str) -> Iterator[tuple[str, str, str]]:
    """Yields what a spec's settings say: whose data one record is, and who fixed what ran."""
    unit, group, fixed = unit_of(spec.source), spec.group, spec.source.get("fixed")
    by_default = "nobody: a record is taken for the unit" if unit == ANY else by_report
    of_unit = "the spec" if "unit" in spec.source or group > 1 else by_default
    together = f"; up to {group} records change together" if group > 1 else ""
    yield _assume(
        "unit", of_unit, unit=unit, neighbours=NEIGHBOURS[spec.relation].format(unit=unit), together=together,
        records=f"{group} record{'s' * (group > 1)}",
    )  # fmt: skip
    has_report = any("report" in part for part in spec.source["parts"])
    of_settings = f"{by_report}, of its runs" if has_report else "nobody"
    yield _assume("fixed", f"the spec: {fixed}" if fixed else of_settings)


def _assume_release(release: Release, by_program: str) -> Iterator[tuple[str, str, str]]:
    """Yields what a release's mechanism adds, and each within it: the assumption of its sampling or its kind."""
    for mechanism in all_of(release.mechanism):
        sampling = release.sampling if mechanism is release.mechanism else sampling_of(mechanism)
        if sampling in ASSUMED:
            yield _assume(sampling, release.said_by)
        if isinstance(mechanism, RepeatAndSelect):
            yield _assume("search", "nobody")
        if isinstance(mechanism, (AboveThreshold, GaussianAboveThreshold)):
            monotone = " and none falls where a record is added" if mechanism.monotone else ""
            yield _assume("threshold", by_program, monotone=monotone)


def _assume_noise(noise: IntegerNoise, said_by: str) -> Iterator[tuple[str, str, str]]:
    """Yields what noise of integers adds: its law and distance, which are proved of the table, and what stays."""
    drawn = noise.record
    parts = ", ".join(f"{name} {rounded_up(value, '.2g')}" for name, value in drawn["total_variation"].items())
    yield _assume(
        "integer noise", said_by, draws=str(drawn["draws"]), table=drawn["table_sha256"], square=drawn["scale_squared"],
        distance=rounded_up(noise.distance, ".3g"), parts=parts,
        **{key: f"{drawn[key]:,}" for key in ("samples", "entries", "counts", "steps")},
    )  # fmt: skip
    yield _assume("generator", "nobody", generator=drawn["generator"])
    yield _assume("machine", "nobody")


def _assume_report(config: dict[str, Any], said_by: str) -> Iterator[tuple[str, str, str]]:
    """Yields what a trainer's report adds: what a release stands for where steps share their noise, and the seed."""
    sampler, noise = config["sampler"], config.get("noise", "independent")
    if noise != "independent" or sampler == "CyclicPoissonSampler":
        yield _assume("shared noise", said_by, sampler=sampler, noise=noise)
    if config.get("seed") == "given by the user":
        yield _assume("seed", said_by)


def statement(made: dict[str, Any]) -> str:
    """Returns the certified statement in words, for readers who know no formula, with numbers rounded up."""
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
