"""Runs cases: every contender in a process of its own, judged by the same truths; failures are kept as records."""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench.report import seconds
from bench.suite import peers, truths
from bench.suite.cases import Case, Contender

Record = dict[str, Any]
Show = Callable[[str], None]

OPTIONS = (
    "route", "points", "tolerance", "interval", "eps_error", "tol", "precision", "kind", "kernel", "size", "batch",
)  # fmt: skip
"""What a record says of its setting; the rest is the same for all contenders."""


class Limits(NamedTuple):
    seconds: float = 300.0
    """Of one setting, and of one truth."""
    gib: float = 16.0
    repeats: int = 5
    cores: int = 1
    truth_points: int = 2**16
    """Mesh points of the brackets that answers are judged by; 0: the exact accountant's alone, where it converges."""
    cache: str | None = None
    """Where programs that truths need are kept, to be compiled once."""
    cold: bool = True
    """Whether contenders compile all they need, rather than find what others have compiled."""


QUICK = Limits(seconds=120.0, repeats=1, truth_points=0, cold=False)


def python_for(library: str, pythons: Mapping[str, str]) -> str:
    """Returns the interpreter of ``library``: its own, or else that of all peers ("*"), or else this one."""
    return sys.executable if library == "jaxacct" else pythons.get(library, pythons.get("*", sys.executable))


def run_case(case: Case, pythons: Mapping[str, str], limits: Limits, show: Show = lambda _: None) -> Record:
    """Returns what each contender answered, how far from the truth, and at what price."""

    def ask(task: str, settings: list[Record]) -> list[Record]:
        return peers.run(
            sys.executable, "jaxacct", settings, task=task, seconds=4 * limits.seconds, repeats=0, gib=limits.gib,
            cores=limits.cores, cache=limits.cache,
        )  # fmt: skip

    known: dict[str, list[list[truths.Bracket]]] = {}
    failure = None
    try:
        # All contenders have the same questions; the one with the most entries stands for them.
        known["all"] = getattr(truths, case.truth)(case.contenders[0].settings, ask, limits.truth_points)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        show(f"  no truth: {failure}")
    rows = []
    for contender in case.contenders:
        answers = peers.run(
            python_for(contender.library, pythons), contender.library, contender.settings, task=case.task,
            seconds=limits.seconds, repeats=limits.repeats, gib=limits.gib, cores=limits.cores,
            cache=None if limits.cold else limits.cache,
        )  # fmt: skip
        for number, (setting, answer) in enumerate(zip(contender.settings, answers, strict=True)):
            truth = known["all"][0 if case.same_question else number] if "all" in known else []
            row = _row(contender, setting, answer, truth)
            rows.append(row)
            show(f"  {contender.name}: {row.get('error') or describe(row)}")
    truth = {"error": failure} if failure else {"brackets": known["all"]}
    return {"title": case.title, "task": case.task, "truth": truth, "rows": rows}


def describe(row: Record) -> str:
    shown = seconds(row["seconds_each"])
    if row["items"] > 1:
        shown += f" each of {row['items']}"
    return shown + (f", error {row['error_above']:.1e}" if "error_above" in row else "")


def _row(contender: Contender, setting: Record, answer: Record, truth: list[truths.Bracket]) -> Record:
    row: Record = {"contender": contender.name, "library": contender.library}
    row |= {name: setting[name] for name in OPTIONS if name in setting}
    if "mechanisms" in setting:
        row["steps"], row["delta"] = sum(steps for _, _, steps in setting["mechanisms"]), setting["delta"]
    kept = {name: value for name, value in answer.items() if name not in ("uppers", "estimates", "curves", "compiles")}
    row |= kept
    if "error" in answer:
        return row
    row["items"] = len(setting.get("rows", setting.get("targets", [0])))
    row["seconds_each"] = answer["seconds"] / row["items"]
    if "compile_seconds" not in answer:
        row["compile_seconds"] = max(answer["first"] - answer["seconds"], 0.0) if answer.get("compiles") else None
    return row | judge(answer, truth)


def judge(answer: Record, truth: list[truths.Bracket]) -> Record:
    """Returns how far claims are from the truth, relative: bounds on their own side, estimates on either.

    ``wrong`` counts bounds on the wrong side of the truth, ``silent`` answers that are no number.
    """
    curves = [value for curve in answer.get("curves", []) for value in curve]
    claims = {
        "upper": answer.get("uppers") or answer.get("noises") or curves or _listed(answer, "upper"),
        "lower": _listed(answer, "lower"),
        "estimate": answer.get("estimates") or _listed(answer, "estimate"),
    }
    result: Record = {}
    wrong = silent = 0
    for kind, values in claims.items():
        if not values or not truth:
            continue
        # Where more was asked of one contender than of the others, its first answers are judged.
        pairs = [(v, low, high) for v, (low, high) in zip(values, truth, strict=False) if math.isfinite(high)]
        finite = [pair for pair in pairs if pair[0] is not None and math.isfinite(pair[0])]
        silent += len(pairs) - len(finite)
        if not finite:
            continue
        errors = [value / ((low + high) / 2) - 1 for value, low, high in finite]
        if kind == "upper":
            wrong += sum(value < low for value, low, _ in finite)
            result |= {"error_above": max(errors), "error_above_median": statistics.median(errors)}
            result["error_least"] = min(errors)
        elif kind == "lower":
            wrong += sum(value > high for value, _, high in finite)
            result["error_below"] = max(-error for error in errors)
        else:
            result["error_of_estimate"] = max(map(abs, errors))
    return result | ({"wrong": wrong, "silent": silent} if truth else {})


def _listed(answer: Record, name: str) -> list[float]:
    return [answer[name]] if name in answer else []


def set_cores(cores: int) -> list[int] | None:
    """Gives this process, and so its children, the first ``cores`` of its processor cores; returns which."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    os.sched_setaffinity(0, chosen)
    return chosen
