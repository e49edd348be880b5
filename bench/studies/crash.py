"""Kills a training run at random instants, takes it up each time, and compares it with one that nobody killed.

    python -m bench.studies.crash [--kills 20] [--steps 30] [--ledger planned] [--seed N] [--json]

A process that has imported everything forks one child for each life of the run, so that a life costs no start. The
child trains a small model with a given seed and checkpoints, and says each result as it is released. A third of the
lives are killed by SIGKILL at an instant drawn uniformly from the time that it takes to resume, the others at one drawn
from that of three releases, after a number of releases that is drawn as well. Checked:

* at each kill the record in spends.json, or in its copy, is at least what any life has released so far;
* at the end every bit of the state, keys included, is that of the run that nobody killed, and so are the results.

Exits 0 if all of it holds, 1 otherwise.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # so that a life compiles nothing
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(tempfile.gettempdir()) / "jaxacct-crash"))

import flax.nnx as nnx
import jax
import numpy as np
import optax
import orbax.checkpoint  # noqa: F401  here, and not in each life

from jaxacct.train import AdaptiveQuantile, DPTrainer, certified_epsilon
from jaxacct.train.checkpoints import SPENDS, Checkpoints, WriteAhead
from jaxacct.train.ownership import digest

EVALUATE_EVERY, CHECKPOINT_EVERY = 2, 6

PATIENCE = 120
"""Seconds that a life may take to release what is waited for."""


LEDGERS = {
    "planned": {"steps": 100_000, "noise_multiplier": 6.0},
    "odometer": {"epsilon": 8.0, "noise_multiplier": 6.0, "ledger": "odometer"},
}
"""What is given of each ledger; the plan is longer than any run here, which stops early."""


def make_trainer(ledger: str) -> DPTrainer:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    return DPTrainer(
        nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda model, x, y: ((model(x) - y) ** 2).sum(), optax.adam(0.1),
        (x, x[:, :1]), delta=1e-3, expected_batch_size=20, clip_norm=AdaptiveQuantile(1.0, count_noise=8.0), seed=7,
        **LEDGERS[ledger],
    )  # fmt: skip


def live(folder: pathlib.Path, log: pathlib.Path, steps: int, ledger: str) -> None:
    """One life: resumes the run, if there is one, and trains to its end; says what it releases."""
    with log.open("a") as out:

        def say(**entry: Any) -> None:
            out.write(json.dumps(entry | {"time": time.monotonic()}) + "\n")
            out.flush()

        trainer = make_trainer(ledger)
        keeper = Checkpoints(folder, every=CHECKPOINT_EVERY)
        left = keeper.resume(trainer) if keeper.holds_run else steps
        kernel = lambda model: float(model.kernel[0, 0])  # noqa: E731
        say(resumed=trainer.steps, epsilon=trainer.spent_epsilon, lost=trainer.progress.lost_steps)
        trainer.fit(
            left, every=EVALUATE_EVERY, evaluate=kernel, keeper=keeper,
            on_evaluation=lambda entry: say(step=entry.step, result=entry.accuracy, epsilon=entry.epsilon),
        )  # fmt: skip
        leaves = jax.tree.leaves(trainer.state)
        data = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in leaves]
        bits = digest({str(i): np.asarray(array) for i, array in enumerate(data)})
        say(
            bits=bits,
            steps=trainer.steps,
            epsilon=trainer.spent_epsilon,
            planned=trainer.stopping_was_planned,
            certified=float(certified_epsilon(trainer).upper),
        )


def fork(folder: pathlib.Path, log: pathlib.Path, steps: int, ledger: str) -> int:
    """Starts a life and returns the process's number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        live(folder, log, steps, ledger)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def entries(log: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def without_time(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "time"}


def released(log: pathlib.Path) -> list[dict[str, Any]]:
    return [entry for entry in entries(log) if "result" in entry]


def uninterrupted(folder: pathlib.Path, steps: int, ledger: str) -> tuple[list[dict[str, Any]], float, float]:
    """Returns what a run says that nobody kills, the seconds until its first release, and those from there on."""
    log, start = pathlib.Path(f"{folder}.log"), time.monotonic()
    if os.waitpid(fork(folder, log, steps, ledger), 0)[1] != 0:
        raise SystemExit("the run that nobody killed failed")
    first, last = released(log)[0], released(log)[-1]
    return entries(log), first["time"] - start, last["time"] - first["time"]


def check(kills: int, steps: int, seed: int, folder: pathlib.Path, ledger: str) -> dict[str, Any]:
    """Returns the figures of one experiment, of a run of so many steps for each kill."""
    steps *= kills
    uninterrupted(folder / "first", EVALUATE_EVERY, ledger)  # compiles
    start = time.monotonic()
    whole, resuming, training = uninterrupted(folder / "whole", steps, ledger)
    one, most = training / (steps // EVALUATE_EVERY), max(1, steps // kills // EVALUATE_EVERY // 2)
    draw, log, run = random.Random(seed), folder / "killed.log", folder / "killed"
    log.touch()
    behind = killed = 0
    where = []
    while killed < kills:
        child, begun = fork(run, log, steps, ledger), time.monotonic()
        wanted = len(released(log)) + (draw.randint(1, most) if draw.random() < 2 / 3 else 0)
        delay = draw.uniform(0.0, 3 * one if wanted > len(released(log)) else resuming)
        while len(released(log)) < wanted and time.monotonic() - begun < PATIENCE:
            time.sleep(one / 10)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            raise SystemExit(f"a life ended by itself after {killed} kills, with status {status}: give more steps")
        killed += 1
        shown = max(released(log), key=lambda entry: entry["step"], default={"step": 0, "epsilon": 0.0})
        spends = WriteAhead(run / SPENDS)
        last = spends.read() if spends.exists() else None
        where.append((shown["step"], last.stop if last else 0))
        behind += shown["step"] > 0 and (last is None or last.stop < shown["step"] or last.epsilon < shown["epsilon"])
    if os.waitpid(fork(run, log, steps, ledger), 0)[1] != 0:
        raise SystemExit("the last life failed")
    first = {entry["step"]: (entry["result"], entry["epsilon"]) for entry in whole if "result" in entry}
    others = [entry for entry in released(log) if first.get(entry["step"]) != (entry["result"], entry["epsilon"])]
    return {
        "kills": killed,
        "steps": steps,
        "seed": seed,
        "ledger": ledger,
        "ledger_behind_what_was_released": behind,
        "released_and_recorded_steps_at_the_kills": where,
        "same_bits_at_the_end": without_time(entries(log)[-1]) == without_time(whole[-1]),
        "releases": len(released(log)),
        "releases_of_the_whole_run": len(first),
        "releases_that_differ": len(others),
        "final": without_time(whole[-1]),
        "seconds_uninterrupted": round(resuming + training, 2),
        "seconds": round(time.monotonic() - start, 2),
        "seconds_to_resume": round(resuming, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30, help="of the run, for each kill")
    parser.add_argument("--seed", type=int, default=None, help="of the instants; default: drawn")
    parser.add_argument("--ledger", choices=sorted(LEDGERS), default="planned")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    gc.disable()  # lives are short, and compile
    with tempfile.TemporaryDirectory() as folder:
        figures = check(arguments.kills, arguments.steps, seed, pathlib.Path(folder), arguments.ledger)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name}: {value}")
    wrong = figures["ledger_behind_what_was_released"] + figures["releases_that_differ"]
    return 0 if figures["same_bits_at_the_end"] and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
