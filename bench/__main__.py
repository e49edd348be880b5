"""The benchmark suite as one command.

    python -m bench [NAME ...] [--quick] [--list] [--out DIR] [--peers-python [LIBRARY=]PATH] [--cores N]

Runs the named cases, all by default, of every library that is installed, each in a process of its own on the same
cores, and writes DIR/suite.json, suite.md and pictures; where DIR is bench/results, the README's headlines as
well. Cases that are not named keep the records of an earlier run on the same kind of machine. The peers are looked for
in the interpreters that --peers-python, or JAXACCT_BENCH_PEERS_PYTHON, names: one for all, or LIBRARY=PATH for one of
them (Opacus needs PyTorch), comma-separated in the variable. What is not installed, takes too long or raises is a row
that says so.

    python -m bench SCRIPT [OPTION ...]

runs a script of this folder, of bench/peers or of bench/studies by its name, with options of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import report
from bench.suite import claims, plots, readme, runner, tables
from bench.suite.cases import CASES, QUICK
from bench.suite.libraries import LIBRARIES

HERE = Path(__file__).parent
RESULTS = (HERE / "results").resolve()
FOLDERS = ("", "peers", "studies")
"""Folders of scripts: the project's own instruments, comparisons with one library, and studies of one question."""

NO_SCRIPTS = ("__init__", "__main__", "report", "timing", "decoder", "networks", "torch_decoder")
"""Modules that scripts share, and what another interpreter runs."""
VARIABLE = "JAXACCT_BENCH_PEERS_PYTHON"


def scripts() -> dict[str, str]:
    """Returns the names of the benchmarks that are modules of their own, in order, with the modules' full names."""
    found = {
        path.stem: ".".join(filter(None, ("bench", folder, path.stem)))
        for folder in FOLDERS
        for path in (HERE / folder).glob("*.py")
        if path.stem not in NO_SCRIPTS
    }
    return dict(sorted(found.items()))


def pythons_of(words: list[str]) -> dict[str, str]:
    """Returns interpreters by library; "*" for those not named."""
    pythons = {}
    for word in words:
        library, _, path = word.rpartition("=")
        if library and library not in LIBRARIES:
            raise ValueError(f"--peers-python {word}: {library!r} is not one of {', '.join(LIBRARIES)}.")
        pythons[library or "*"] = path
    return pythons


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    made.add_argument("--quick", action="store_true", help="small cases, one to two minutes of one core")
    made.add_argument("--list", action="store_true", help="show what can be run, and run nothing")
    made.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    made.add_argument("--peers-python", action="append", default=[], metavar="[LIBRARY=]PATH")
    made.add_argument("--cores", type=int, default=1, help="for each library; 1 by default")
    made.add_argument("--seconds", type=float, help="time limit of one setting of one library")
    return made


def listed() -> str:
    lines = ["Cases:"]
    for name, make in CASES.items():
        case = make(False)
        lines += [f"  {name:14s} {case.title}", f"  {'':14s}   by {', '.join(one.name for one in case.contenders)}"]
    return "\n".join([*lines, "Scripts, with options of their own:", f"  {', '.join(scripts())}"])


def versions_of(cases: dict[str, Any]) -> dict[str, str]:
    rows = [row for case in cases.values() for row in case["rows"] if "version" in row]
    return {row["library"]: row["version"] for row in rows}


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if words and words[0] in scripts():
        module = scripts()[words[0]]
        sys.argv = [module, *words[1:]]
        runpy.run_module(module, run_name="__main__")
        return 0
    arguments = parser().parse_args(words)
    if arguments.list:
        print(listed())
        return 0
    unknown = [name for name in arguments.names if name not in CASES]
    if unknown:
        parser().error(f"{unknown[0]!r} is neither a case ({', '.join(CASES)}) nor a script ({', '.join(scripts())}).")
    try:
        pythons = pythons_of([*filter(None, os.environ.get(VARIABLE, "").split(",")), *arguments.peers_python])
    except ValueError as error:
        parser().error(str(error))
    limits = (runner.QUICK if arguments.quick else runner.Limits())._replace(cores=arguments.cores)
    if arguments.seconds:
        limits = limits._replace(seconds=arguments.seconds)
    runner.set_cores(arguments.cores)
    cases = kept(arguments.out) if arguments.names and not arguments.quick else {}
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
        for name in arguments.names or (QUICK if arguments.quick else CASES):
            case = CASES[name](arguments.quick)
            print(f"{name}: {case.title}", flush=True)
            case_limits = limits._replace(cache=cache)
            cases[name] = runner.run_case(case, pythons, case_limits, lambda line: print(line, flush=True))
            cases[name] |= {"commit": report.commit(), "load": os.getloadavg()[0]}
            save(arguments.out, cases, quick=arguments.quick, limits=limits)
    for path in save(arguments.out, cases, quick=arguments.quick, limits=limits, pictures=True):
        print(path)
    return 0


def kept(out: Path) -> dict[str, Any]:
    """Returns the cases of an earlier run on such a machine: running some anew leaves the others as they were."""
    path = out / "suite.json"
    earlier = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    known = earlier.get("machine", {}).get("processor") == report.machine()["processor"]
    return {name: case for name, case in earlier["cases"].items() if name in CASES} if known else {}


def save(out: Path, cases: dict[str, Any], *, quick: bool, limits: runner.Limits, pictures: bool = False) -> list[Path]:
    """Writes what there is, after each case: a run that is stopped keeps what it has."""
    out.mkdir(parents=True, exist_ok=True)
    name = "suite-quick" if quick else "suite"
    ordered = {case: cases[case] for case in CASES if case in cases} | cases
    numbers = {"quick": quick, "cores": limits.cores, "limits": limits._asdict(), "cases": ordered}
    if not quick:
        numbers["claims"] = claims.judge(cases)
    results = report.write(out / f"{name}.json", numbers, versions_of(cases))
    page = out / f"{name}.md"
    page.write_text(tables.markdown(results))
    if pictures and not quick and out.resolve() == RESULTS:
        readme.update(results)
    return [out / f"{name}.json", page, *(plots.draw(results, out) if pictures and not quick else [])]


if __name__ == "__main__":
    sys.exit(main())
