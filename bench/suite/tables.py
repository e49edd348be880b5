"""The results as Markdown."""

from __future__ import annotations

import math
from typing import Any

from bench.report import seconds
from bench.suite import claims

Record = dict[str, Any]
SETTINGS = ("route", "points", "interval", "eps_error", "tol", "precision", "size", "batch")


def _error(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1e}" if math.isfinite(value) else str(value)


def _setting(row: Record) -> str:
    words = [f"{name} {row[name]}" for name in SETTINGS if name in row]
    if "steps" in row:
        words.insert(0, f"{row['steps']:,} steps")
    return ", ".join(words)


def _cells(row: Record) -> list[str]:
    verdict = "-"
    if "wrong" in row:
        verdict = f"{row['wrong']} on the wrong side" if row["wrong"] else "holds"
        verdict += f", {row['silent']} without answer" if row["silent"] else ""
    errors = [_error(row.get(name)) for name in ("error_above", "error_below", "error_of_estimate")]
    return [
        *errors, verdict, seconds(row.get("seconds_each")), seconds(row.get("compile_seconds")),
        f"{row['peak_mib']:.0f} MiB",
    ]  # fmt: skip


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _accountants(case: Record) -> list[str]:
    head = ["library", "version", "setting", "error above", "error below", "of the estimate", "bounds", "time each"]
    head += ["compilation", "peak memory"]
    rows = []
    for row in case["rows"]:
        start = [row["contender"], row.get("version", "-"), _setting(row)]
        rows.append(
            [*start, f"failed: {row['error']}", *["-"] * 6] if "error" in row else [*start, *_cells(row)]
        )  # fmt: skip
    return _table(head, rows)


def _steps(case: Record) -> list[str]:
    head = ["library", "version", "private step", "plain step", "ratio", "compilation", "peak memory"]
    rows = []
    for row in case["rows"]:
        start = [row["contender"], row.get("version", "-")]
        if "error" in row:
            rows.append([*start, f"failed: {row['error']}", *["-"] * 4])
        else:
            compilation = seconds(row["first"]) if row["library"] == "jaxacct" else "-"
            times = [seconds(row.get("seconds")), seconds(row.get("plain_seconds")), f"{row['ratio']:.2f}", compilation]
            rows.append([*start, *times, f"{row['peak_mib']:.0f} MiB"])
    return _table(head, rows)


def _limit(row: Record) -> str:
    """Returns what the counts say of what a kernel waits for; half of the roofline is as near as kernels come."""
    by_operations = row["counted_operations"] / row["peak_operations_a_second"]
    nearer = "operations" if by_operations > row["counted_bytes"] / row["peak_bytes_a_second"] else "bytes"
    if row["roofline_share_at_least"] >= 0.5:
        return nearer
    return (
        f"small operations, one after the other, in {row['loops']} loops" if row["loops"] else f"latency; {nearer} next"
    )


def _roofline(case: Record) -> list[str]:
    head = ["kernel", "device", "precision", "time", "compilation", "counted Gflop/s (peak)", "counted GB/s (peak)"]
    head += ["share of the roofline, at least", "loops", "in Fourier transforms", "limited by"]
    rows = []
    for row in case["rows"]:
        if "error" in row:
            rows.append([row["contender"], f"failed: {row['error']}", *["-"] * 9])
            continue
        rates = [
            f"{row[name] / 1e9:.2g} ({row['peak_' + name] / 1e9:.0f})"
            for name in ("operations_a_second", "bytes_a_second")
        ]
        transforms = "cannot be told" if row["fft_share"] is None else f"{row['fft_share']:.0%}"
        rows.append([
            f"{row['kernel']}, {row['size']}", str(row["device"]), row["precision"], seconds(row.get("run_seconds")),
            seconds(row["compile_seconds"]), *rates, f"{100 * row['roofline_share_at_least']:.2g} %", str(row["loops"]),
            transforms, _limit(row),
        ])  # fmt: skip
    return _table(head, rows)


def _in_loop(case: Record) -> list[str]:
    rows = []
    for row in case["rows"]:
        if "error" in row:
            rows.append([row["contender"], f"failed: {row['error']}", "-"])
            continue
        rows += [[kind, seconds(row["seconds"]), f"{share:+.2%}"] for kind, share in row["added"].items()]
    return _table(["ledger", "step without it", "added"], rows)


TABLES = {"step": _steps, "in_loop": _in_loop, "roofline": _roofline}


def markdown(results: Record) -> str:
    """Returns a page: where it ran, then a table for each case."""
    machine, versions = results["machine"], results["versions"]
    rows = [row for case in results["cases"].values() for row in case["rows"]]
    devices = sorted({row["device"] for row in rows if row["library"] == "jaxacct" and row.get("device")})
    lines = [
        "# Benchmarks",
        "",
        f"{machine['processor']}, {results['cores']} core(s) for each library, JAX on "
        f"{', '.join(devices) or '-'}, load {machine['load']:.1f} at the end; "
        f"commit {results['commit'][:12]}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
        "",
        "Errors are relative, the largest of the case, beside a closed form, a quadrature, or a bracket that two of "
        "jaxacct's accountants prove; a bound on the wrong side of it is counted. The least noise and mu are judged by "
        "jaxacct's own certified brackets. Times are medians after a first call, which is "
        "the compilation of JAX programs; peak memory is the process's, imports included.",
    ]
    if results["quick"]:
        lines += [
            "",
            "A quick run: small, with coarse settings of the peers, and programs compiled once for all cases, so that "
            "only the first compilation of each counts. Brackets are those of jaxacct's exact accountant alone, so "
            "that its own rows are not judged by anything else. It shows that all works, no more.",
        ]
    if results.get("claims"):
        lines += ["", "## Claims", "", *claims.table(results["claims"])]
    for name, case in results["cases"].items():
        lines += ["", f"## {name}: {case['title']}", ""]
        if "commit" in case:
            lines += [f"Commit {case['commit'][:12]}, load {case['load']:.1f} at the end.", ""]
        if "error" in case["truth"]:
            lines += [f"Not judged: {case['truth']['error']}", ""]
        lines += TABLES.get(case["task"], _accountants)(case)
    return "\n".join(lines) + "\n"
