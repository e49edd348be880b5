"""What a certificate says: everything that follows from its spec, and what made it."""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib
import math
import pathlib
import platform
from fractions import Fraction
from importlib import metadata
from typing import Any

import numpy as np

import jaxacct
from jaxacct import saddlepoint, strict_json
from jaxacct.certificates import words
from jaxacct.mechanisms.records import record_of
from jaxacct.mechanisms.renyi_only import has_renyi_only
from jaxacct.rates import up
from jaxacct.specs import Spec, parsed
from jaxacct.specs.spec import unit_of

SCHEMA = "jaxacct.certificate/1"
"""The format; the number rises where a key goes or changes its meaning."""

DELTAS = (0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
"""Where the profile is asked, above the claim's delta: what an attack can do follows from several at once."""

RATES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
"""False-positive rates at which the most successful attack is told."""

PACKAGES = ("jax", "jaxlib", "numpy", "python-flint")

MAKERS = ("jaxacct", "python", *PACKAGES)
"""The programs whose versions a certificate tells."""


def certify(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the certificate of a spec, without the files of its folder and its seal.

    Args:
        given: a spec, as :func:`jaxacct.specs.read` returns it, with one of ``delta`` and ``epsilon``.

    Returns:
        A JSON object: ``claim`` (epsilon, delta), ``bracket`` with the quantity's certified bounds, ``verdict`` of the
        referee on it, ``risks``, ``assumptions``, the ``statement`` in words, and more (certificate-1.schema.json).

    Formal guarantee: under the assumptions that are listed, what the spec composes is (epsilon, delta)-DP for its
    relation: ``epsilon`` is the upper end of :func:`jaxacct.epsilon` at what is left of delta where batches may have
    been cut, (1 + e^epsilon) eta less, eta bounding the probability that any was
    (:mod:`jaxacct.train.sampling.poisson`). An attack's true-positive rate at a false-positive rate a is at most
    min(e^eps a + delta, 1 - e^-eps (1 - delta - a)) for every (eps, delta) of the profile.

    Raises:
        ValueError: a spec that is none, is not fixed before, samples otherwise than it is accounted, or of which no
            finite bound is known; a bracket that the referee refutes.
        ModuleNotFoundError: python-flint is missing.

    Source: Kairouz, Oh and Viswanath (2015), "The composition theorem for differential privacy", Theorem 2.1, for the
    attack.

    >>> made = certify({"parts": [{"type": "Gaussian", "noise_multiplier": 10.0, "count": 100}], "delta": 1e-5})
    >>> f"{made['claim']['epsilon']:.6f}", made["verdict"]["status"]
    ('4.377178', 'PROVED')
    """
    importlib.import_module("jaxacct.verify")  # of an extra: what is missing is said before all that takes long
    spec, made = parsed(given), followed(given)
    verdict = judged(spec, made["bracket"])
    if verdict["status"] == "REFUTED":
        raise ValueError(f"no certificate: the referee refutes {made['bracket']}: {verdict['reason']} Report this.")
    versions = {"jaxacct": jaxacct.__version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in PACKAGES}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    hashes = {"spec": digest(given), "code": code_digest(), "files": {}}
    about = {"schema": SCHEMA, "made": now, "verdict": verdict, "versions": versions, "sha256": hashes}
    return worded(about | made)


def worded(made: dict[str, Any]) -> dict[str, Any]:
    """Returns a certificate with the words that follow from its numbers."""
    return made | {"assumptions": words.assumptions(parsed(made["spec"])), "statement": words.statement(made)}


def followed(given: dict[str, Any]) -> dict[str, Any]:
    """Returns what follows from a spec by this version's accountants."""
    spec = parsed(given)
    ask = functools.partial(jaxacct.epsilon, spec.mechanisms, spec.steps, relation=spec.relation)
    cut, cost = Fraction(spec.cut_probability), Fraction(0)
    if spec.epsilon is not None:
        quantity, asked, cost = "delta", spec.epsilon, _cost(spec.epsilon, cut)
        found = jaxacct.delta(spec.mechanisms, spec.steps, asked, relation=spec.relation)
        claim = {"epsilon": asked, "delta": min(up(Fraction(float(found.upper)) + cost), 1.0)}
    elif spec.delta is None:
        raise ValueError("delta is missing: give it in the spec or as --delta; or epsilon, at which delta is asked.")
    else:
        quantity, asked = "epsilon", spec.delta
        found = ask(asked)
        paid_at = float(found.upper) if cut else math.inf
        # Cut batches cost the more the larger epsilon is: pay for a little more than it, and see that it is no more.
        while paid_at < math.inf:
            paid_at = paid_at * 1.001 + 0.001
            cost = _cost(paid_at, cut)
            asked = -up(cost - Fraction(spec.delta))
            if asked <= 0:
                raise ValueError(f"no certificate: batches cut at capacity cost more than delta = {spec.delta}.")
            found = ask(asked)
            paid_at = math.inf if found.upper <= paid_at else float(found.upper)
        claim = {"epsilon": float(found.upper), "delta": spec.delta}
    if claim["epsilon"] == math.inf or claim["delta"] >= 1:
        raise ValueError(f"no certificate: no finite epsilon is known at a delta below 1: see jaxacct {quantity}.")
    bracket = {"quantity": quantity, "given": asked, "lower": float(found.lower), "upper": float(found.upper)}
    profile = _profile(spec, claim, cost)
    success = [_success(profile, rate, spec.relation) for rate in RATES]
    releases = [
        {"mechanism": record_of(one.mechanism), "count": np.asarray(one.count).tolist(), "sampling": one.sampling}
        for one in spec.releases
    ]
    return {
        "claim": claim, "bracket": bracket, "route": _route(spec, quantity, asked, bool(found.converged)),
        "relation": spec.relation, "unit": unit_of(given), "group": spec.group, "releases": releases,
        "cut_probability": spec.cut_probability, "profile": profile,
        "risks": {"false_positive_rate": list(RATES), "true_positive_rate": success}, "spec": given,
    }  # fmt: skip


def follows(spec: Spec, made: dict[str, Any]) -> bool:
    """Returns whether a claim follows from its bracket's upper end, exactly."""
    claim, bracket = made["claim"], made["bracket"]
    given, upper, delta = (Fraction(value) for value in (bracket["given"], bracket["upper"], claim["delta"]))
    cost = _cost(claim["epsilon"], Fraction(spec.cut_probability))
    if [values[-1] for values in made["profile"].values()] != list(claim.values()):
        return False
    if spec.epsilon is not None:
        return bool(given == claim["epsilon"] == spec.epsilon and delta >= min(upper + cost, Fraction(1)))
    return bool(delta == spec.delta and claim["epsilon"] >= upper and given + cost <= delta)


def _cost(epsilon: float, cut: Fraction) -> Fraction:
    """Returns (1 + e^epsilon) cut, rounded up."""
    if not cut or epsilon > 700:
        return Fraction(bool(cut))
    return (1 + Fraction(math.exp(epsilon)) * (1 + Fraction(1, 2**40))) * cut


def _route(spec: Spec, quantity: str, asked: float, converged: bool) -> str:
    if has_renyi_only(spec.mechanisms):
        return "Rényi divergences: an upper bound alone; a mechanism among them is known by its Rényi curve only"
    ask = saddlepoint.epsilon if quantity == "epsilon" else saddlepoint.delta
    if converged and ask(spec.mechanisms, spec.steps, asked, relation=spec.relation).converged:
        return "exact accountant: the characteristic function, inverted along a line, every error counted"
    return "mesh: transforms of discretized privacy losses, every error counted"


def _profile(spec: Spec, claim: dict[str, float], cost: Fraction) -> dict[str, list[float]]:
    """Returns pairs (epsilon, delta), the claim's last, for all of which the guarantee holds.

    Above the claim's delta epsilon is less, so cut batches cost no more there than they do of the claim.
    """
    left = {delta: -up(cost - Fraction(delta)) for delta in DELTAS if delta > claim["delta"] + cost}
    asked = np.array([*left.values(), 0.5])  # never an empty list
    found = jaxacct.curve(spec.mechanisms, spec.steps, deltas=asked, relation=spec.relation).upper[:-1]
    epsilons = [*np.minimum(found, claim["epsilon"]).tolist(), claim["epsilon"]]
    return {"epsilon": epsilons, "delta": [*left, claim["delta"]]}


def attack_curve(made: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Returns the curve of the most successful attack that a certificate's profile leaves room for, to be drawn.

    It is the least of some straight lines, so it is straight between the places where two of them meet: through all of
    these, chords are the curve itself, nowhere below it.

    Returns:
        False-positive rates from 0 to 1 in ascending order, and bounds on the true-positive rates there, rounded up.

    >>> made = {"profile": {"epsilon": [0.0], "delta": [0.25]}, "relation": "replace"}
    >>> attack_curve(made)
    ([0.0, 0.75, 1.0], [0.250000000001, 1.0, 1.0])
    """
    lines = [(0.0, 1.0), *_lines(made["profile"], made["relation"])]
    meet = {0.0, 1.0}
    for i, (slope, at_0) in enumerate(lines):
        for other, other_at_0 in lines[:i]:
            place = (other_at_0 - at_0) / (slope - other) if slope != other else 0.0
            # Rounding moves a place by some units of itself, and its bound by as many units of 1: less than is added.
            meet |= {place} if 0 < place < 1 else set()
    rates = sorted(meet)
    return rates, [_success(made["profile"], rate, made["relation"]) for rate in rates]


def _lines(profile: dict[str, list[float]], relation: str) -> list[tuple[float, float]]:
    """Returns the lines, each by its slope and its value at 0, that bound the true-positive rate of any test."""
    lines = []
    for epsilon, delta in zip(profile["epsilon"], profile["delta"], strict=True):
        if relation != "add":
            lines.append((math.exp(min(epsilon, 700.0)), delta))
        if relation != "remove":
            lines.append((math.exp(-epsilon), 1 - math.exp(-epsilon) * (1 - delta)))
    return lines


def _success(profile: dict[str, list[float]], rate: float, relation: str) -> float:
    """Returns a bound on the true-positive rate of any test at a false-positive rate, rounded up."""
    return min(1.0, 1e-12 + min(at_0 + slope * rate for slope, at_0 in _lines(profile, relation)))


def judged(spec: Spec, bracket: dict[str, Any]) -> dict[str, Any]:
    """Returns what the referee says of a bracket."""
    from jaxacct import verify  # of an extra
    from jaxacct.verify.statements import states_less

    judge = verify.epsilon if bracket["quantity"] == "epsilon" else verify.delta
    lower = 0.0 if states_less(spec.mechanisms) else bracket["lower"]
    found = judge(spec.mechanisms, spec.steps, bracket["given"], (lower, bracket["upper"]), relation=spec.relation)
    return {"status": found.status.value, "reason": found.reason}


def digest(value: Any) -> str:
    """Returns the SHA-256 of a JSON value's text."""
    return hashlib.sha256(strict_json.dumps(value).encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    """Returns the SHA-256 of the package's Python files, names and contents."""
    package = pathlib.Path(jaxacct.__file__).parent
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix()):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        found.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()
