"""What a certificate says: everything that follows from its spec, and what made it."""

from __future__ import annotations

import datetime
import functools
import hashlib
import math
import pathlib
import platform
from fractions import Fraction
from importlib import metadata
from typing import Any

import numpy as np

import jaxacct
from jaxacct import saddlepoint, strict_json, verify
from jaxacct.bounds import Bounds
from jaxacct.certificates import words
from jaxacct.mechanisms.records import record_of
from jaxacct.mechanisms.renyi_only import has_renyi_only
from jaxacct.rates import up
from jaxacct.specs import Spec, parsed

SCHEMA = "jaxacct.certificate/1"
"""The format; the number rises where a key goes or changes its meaning."""

DELTAS = (0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
"""Where the profile is asked, above the claim's delta: what an attack can do follows from several at once."""

RATES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
"""False-positive rates at which the most successful attack is told."""

PACKAGES = ("jax", "jaxlib", "numpy", "python-flint")


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
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made: dict[str, Any] = {"schema": SCHEMA, "made": now} | followed(given)
    spec = parsed(given)
    bracket = made["bracket"]
    made["verdict"] = judged(spec, bracket)
    if made["verdict"]["status"] == "REFUTED":
        raise ValueError(f"no certificate: the referee refutes {bracket}: {made['verdict']['reason']} Report this.")
    made["versions"] = {"jaxacct": jaxacct.__version__, "python": platform.python_version()}
    made["versions"] |= {name: metadata.version(name) for name in PACKAGES}
    made["sha256"] = {"spec": digest(given), "code": code_digest(), "files": {}}
    return worded(made)


def followed(given: dict[str, Any]) -> dict[str, Any]:
    """Returns what follows from a spec by this version's accountants."""
    spec = parsed(given)
    if spec.delta is None and spec.epsilon is None:
        raise ValueError("delta is missing: give it in the spec or as --delta; or epsilon, at which delta is asked.")
    claim, bracket, converged = _claimed(spec)
    left = bracket["given"] if bracket["quantity"] == "epsilon" else None
    profile = _profile(spec, claim, left)
    return {
        "claim": claim,
        "bracket": bracket,
        "route": _route(spec, bracket, converged),
        "relation": spec.relation,
        "unit": given.get("unit", "one record"),
        "group": spec.group,
        "releases": [
            {"mechanism": record_of(one.mechanism), "count": np.asarray(one.count).tolist(), "sampling": one.sampling}
            for one in spec.releases
        ],
        "cut_probability": spec.cut_probability,
        "profile": profile,
        "risks": {"false_positive_rate": list(RATES),
                  "true_positive_rate": [_success(profile, a, spec.relation) for a in RATES]},
        "spec": given,
    }  # fmt: skip


def worded(made: dict[str, Any]) -> dict[str, Any]:
    """Returns a certificate with the words that follow from its numbers."""
    return made | {"assumptions": words.assumptions(parsed(made["spec"])), "statement": words.statement(made)}


def _claimed(spec: Spec) -> tuple[dict[str, float], dict[str, Any], bool]:
    """Returns the claim, the bracket that it rests on, and whether that converged."""
    cut = Fraction(spec.cut_probability)
    if spec.epsilon is not None:
        found = jaxacct.delta(spec.mechanisms, spec.steps, spec.epsilon, relation=spec.relation)
        delta = min(up(Fraction(float(found.upper)) + _cost(spec.epsilon, cut)), 1.0) if cut else float(found.upper)
        if delta >= 1:
            raise ValueError(f"no certificate: delta at epsilon = {spec.epsilon} is not known to be below 1.")
        return {"epsilon": spec.epsilon, "delta": delta}, _bracket("delta", spec.epsilon, found), bool(found.converged)
    assert spec.delta is not None
    ask = functools.partial(jaxacct.epsilon, spec.mechanisms, spec.steps, relation=spec.relation)
    left = spec.delta
    found = ask(left)
    paid_at = float(found.upper)
    while cut and math.isfinite(paid_at):
        # Cut batches cost the more the larger epsilon is: pay for a little more than it, and see that it is no more.
        paid_at = paid_at * 1.001 + 0.001
        left = -up(_cost(paid_at, cut) - Fraction(spec.delta))
        if left <= 0:
            raise ValueError(f"no certificate: batches cut at capacity cost more than delta = {spec.delta}.")
        found = ask(left)
        if found.upper <= paid_at:
            break
        paid_at = float(found.upper)
    if not found.upper < math.inf:
        raise ValueError(f"no certificate: no finite epsilon is known at delta = {spec.delta}: see jaxacct epsilon.")
    return {"epsilon": float(found.upper), "delta": spec.delta}, _bracket("epsilon", left, found), bool(found.converged)


def _cost(epsilon: float, cut: Fraction) -> Fraction:
    """Returns (1 + e^epsilon) cut, rounded up."""
    return (1 + Fraction(math.exp(epsilon)) * (1 + Fraction(1, 2**40))) * cut


def _bracket(quantity: str, given: float, found: Bounds) -> dict[str, Any]:
    return {"quantity": quantity, "given": given, "lower": float(found.lower), "upper": float(found.upper)}


def _route(spec: Spec, bracket: dict[str, Any], converged: bool) -> str:
    if has_renyi_only(spec.mechanisms):
        return "Rényi divergences: an upper bound alone; a mechanism among them is known by its Rényi curve only"
    ask = saddlepoint.epsilon if bracket["quantity"] == "epsilon" else saddlepoint.delta
    if converged and ask(spec.mechanisms, spec.steps, bracket["given"], relation=spec.relation).converged:
        return "exact accountant: the characteristic function, inverted along a line, every error counted"
    return "mesh: transforms of discretized privacy losses, every error counted"


def _profile(spec: Spec, claim: dict[str, float], left: float | None) -> dict[str, list[float]]:
    """Returns pairs (epsilon, delta), the claim's among them, for all of which the guarantee holds.

    Above the claim's delta epsilon is less, so cut batches cost no more there than they do of the claim.
    """
    cost = Fraction(0) if left is None else Fraction(claim["delta"]) - Fraction(left)
    if left is None:
        cost = _cost(claim["epsilon"], Fraction(spec.cut_probability))
    deltas = [delta for delta in DELTAS if delta > claim["delta"]]
    at = [-up(cost - Fraction(delta)) for delta in deltas]
    kept = [(delta, own) for delta, own in zip(deltas, at, strict=True) if own > 0]
    found: list[float] = []
    if kept:
        asked = np.array([own for _, own in kept])
        found = jaxacct.curve(spec.mechanisms, spec.steps, deltas=asked, relation=spec.relation).upper.tolist()
    pairs = [(min(epsilon, claim["epsilon"]), delta) for (delta, _), epsilon in zip(kept, found, strict=True)]
    pairs.append((claim["epsilon"], claim["delta"]))
    return {"epsilon": [epsilon for epsilon, _ in pairs], "delta": [delta for _, delta in pairs]}


def _success(profile: dict[str, list[float]], rate: float, relation: str) -> float:
    """Returns a bound on the true-positive rate of any test at a false-positive rate, rounded up."""
    bounds = [1.0]
    for epsilon, delta in zip(profile["epsilon"], profile["delta"], strict=True):
        if relation != "add":
            bounds.append(math.exp(min(epsilon, 700.0)) * rate + delta)
        if relation != "remove":
            bounds.append(1 - math.exp(-epsilon) * (1 - delta - rate))
    return min(1.0, min(bounds) + 1e-12)


def judged(spec: Spec, bracket: dict[str, Any]) -> dict[str, Any]:
    """Returns what the referee says of a bracket."""
    judge = verify.epsilon if bracket["quantity"] == "epsilon" else verify.delta
    found = judge(
        spec.mechanisms, spec.steps, bracket["given"], (bracket["lower"], bracket["upper"]), relation=spec.relation
    )
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
