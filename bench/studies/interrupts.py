"""Presses Ctrl-C at random moments of commands, from their first import on: exit 130, one line, nothing lost.

    python -m bench.studies.interrupts [--moments 40] [--commands train,sweep,certify] [--seed N]

Each command is run once without; then ``moments`` times a SIGINT at a moment drawn uniformly from its duration. It must
end with code 130 and one line on standard error without a trace (or with 0, where it was done); where something was on
the disk by then, going on with it, or running anew where it says no --resume, must come to the same result. Exits 0 if
all of it holds, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from jaxacct import sweep

START = 0.1
"""Seconds in which Python itself starts: nothing of ours is imported yet, and its own trace is not ours."""

SPEC = {"parts": [{"type": "dp-sgd", "noise_multiplier": 1.0, "sampling_rate": 0.01, "count": 1000}], "delta": 1e-5}


class Command(NamedTuple):
    """A command, what is added to go on with it, and a reading of its result in a folder."""

    arguments: list[str]
    again: list[str]
    result: object


COMMANDS = {
    "train": Command(
        ["train", "--epochs", "15", "--seed", "3", "--checkpoint-every", "5"], ["--resume"],
        lambda out: json.loads((out / "report.json").read_text()),
    ),
    "sweep": Command(
        ["sweep", "--noise-multiplier", "0.8:8:40:log", "--sampling-rate", "0.01,0.1", "--steps", "100,1000,10000",
         "--delta", "1e-5", "--mode", "saddlepoint", "--chunk", "30"], ["--resume"],
        lambda out: sweep.load(out).upper.tolist(),
    ),
    "certify": Command(
        ["certify", "SPEC"], [], lambda out: json.loads((out / "certificate.json").read_text())["bracket"]
    ),
}  # fmt: skip


def started(arguments: list[str], out: pathlib.Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jaxacct", *arguments, "--out", str(out)], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )  # fmt: skip


def pressed(arguments: list[str], out: pathlib.Path, moment: float) -> tuple[int, str, float] | None:
    """Returns the exit code, standard error, and how long the end took after Ctrl-C; None where it came too late."""
    process = started(arguments, out)
    time.sleep(moment)
    if process.poll() is not None:
        process.communicate()
        return None
    process.send_signal(signal.SIGINT)
    at = time.monotonic()
    _, errors = process.communicate(timeout=600)
    return process.returncode, errors, time.monotonic() - at


def is_done(command: Command, out: pathlib.Path, expected: object) -> bool:
    """Whether all was done when the Ctrl-C was heard."""
    try:
        return command.result(out) == expected  # type: ignore[operator]
    except (OSError, ValueError):
        return False


def faults(
    command: Command, arguments: list[str], folder: pathlib.Path, moment: float, expected: object
) -> list[str] | None:
    """Returns what is wrong after a Ctrl-C at a moment; None where it came too late."""
    out = folder / "out"
    ended = pressed(arguments, out, moment)
    if ended is None:
        return None
    code, errors, after = ended
    lines = [line for line in errors.splitlines() if "warning" not in line and " a second, " not in line]
    found = [f"code {code}: {errors[-300:]}"] if code not in (0, 130) else []
    if code == 130 and (len(lines) != 1 or "interrupted" not in lines[0]):
        found.append(f"said {errors!r}")
    if "Traceback" in errors:
        found.append("a trace")
    begun = any(out.glob("*"))  # of nothing nothing is lost
    if code == 130 and begun and not is_done(command, out, expected):
        again = command.again if "--resume" in errors else []
        done = started([*arguments, *again], out)
        _, errors = done.communicate(timeout=600)
        if done.returncode:
            found.append(f"going on: code {done.returncode}: {errors}")
    if not found and (begun or code == 0) and command.result(out) != expected:  # type: ignore[operator]
        found.append("another result")
    left = [path.name for path in folder.iterdir() if path.name not in ("out", "spec.json")]
    print(
        f"  at {moment:6.2f} s: code {code}, {after:.2f} s later{'; ' + '; '.join(found) if found else ''}", flush=True
    )
    return found + [f"left behind: {left}" for _ in left[:1]]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--moments", type=int, default=40)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, wrong = random.Random(given.seed), 0
    for name in given.commands.split(","):
        command = COMMANDS[name]
        with tempfile.TemporaryDirectory() as place:
            root = pathlib.Path(place)
            spec = root / "spec.json"
            spec.write_text(json.dumps(SPEC))
            arguments = [str(spec) if word == "SPEC" else word for word in command.arguments]
            for out in ("warm", "whole"):  # the first one compiles
                begun = time.monotonic()
                whole = started(arguments, root / out)
                _, errors = whole.communicate(timeout=600)
                assert whole.returncode == 0, errors
            duration = time.monotonic() - begun
            expected = command.result(root / "whole")  # type: ignore[operator]
            print(f"{name}: {duration:.1f} s", flush=True)
            done = 0
            while done < given.moments:
                with tempfile.TemporaryDirectory() as folder:
                    found = faults(command, arguments, pathlib.Path(folder), rng.uniform(START, duration), expected)
                done += found is not None
                wrong += bool(found)
    print(f"{wrong} of {given.moments * len(given.commands.split(','))} moments were not as they should be")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
