"""The grants of a menu's filter beside a plan and the Rényi filter, its time, recorded trainings, adaptive adversaries.

    python -m bench.studies.menus [--runs FILE] [--paths N] [--only NAME ...]

Writes bench/results/menus.json after each part. FILE holds recorded trainings, for each the noise, batch size and steps
of its epochs. Times are CPU seconds of this process, the first with compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import sys
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct as ja
from jaxacct import calibrate
from jaxacct.filters import MenuFilter, RenyiFilter
from jaxacct.menus import Menu, certify, limit
from jaxacct.train.report import write_report

RESULT = pathlib.Path(__file__).parents[1] / "results" / "menus.json"
EPSILON, DELTA, RATE = 3.0, 1e-5, 0.01
FOUR, SIX = (1.0, 1.2, 1.5, 2.0), (0.8, 1.0, 1.25, 1.6, 2.0, 3.0)
MENUS: dict[str, dict[str, Any]] = {
    "four, given costs": {"noises": FOUR, "block": 100, "costs": [108, 59, 32, 16]},
    "four": {"noises": FOUR, "block": 100},
    "six, given costs": {"noises": SIX, "block": 100, "costs": [391, 131, 64, 33, 19, 8]},
    "six": {"noises": SIX, "block": 100},
    "four, delta 1e-12": {"noises": FOUR, "block": 100, "delta": 1e-12},
    "sixteen": {"noises": tuple(np.linspace(1.0, 3.0, 16).round(3).tolist()), "block": 100},
    "four, each step": {"noises": (1.5, 1.6, 1.8, 2.0), "block": 1},
}
EXAMPLES = 50_000
"""Of the recorded trainings' data set."""


def step(noise: float, rate: float = RATE) -> ja.PoissonSubsampledGaussian:
    return ja.PoissonSubsampledGaussian(noise, rate)


def timed(ask: Any) -> tuple[Any, float]:
    started = time.process_time()
    return ask(), time.process_time() - started


def of_menu(noises: tuple[float, ...], block: int, costs: list[int] | None = None, delta: float = DELTA) -> Any:
    items = [(step(noise), block) for noise in noises]

    def certified() -> Menu:
        return certify(EPSILON, delta, items, costs=costs)

    menu, cold = timed(certified)
    _, warm = timed(certified)
    most, of_limit = timed(lambda: limit(menu))
    renyi = RenyiFilter(EPSILON, delta)
    rows = []
    for index, item in enumerate(menu.items):
        planned = calibrate.most_runs(item.mechanism, EPSILON, delta) / block
        blocks, of_renyi = menu.budget / item.cost, int(renyi.remaining(item.mechanism)) / block
        rows.append(
            {"noise": noises[index], "cost": item.cost, "blocks": blocks, "planned_blocks": planned,
             "share_of_plan": blocks / planned, "renyi_blocks": of_renyi,
             "over_renyi": blocks / of_renyi if of_renyi else None}
        )  # fmt: skip
    return {
        "delta": delta, "block": block, "budget": menu.budget, "value": menu.value, "limit": most,
        "price_of_adaptivity_known_to": most / menu.budget - 1, "items": rows,
        "least_share": min(row["share_of_plan"] for row in rows), "cpu_seconds_cold": cold, "cpu_seconds_warm": warm,
        "cpu_seconds_limit": of_limit, "peak_GiB_so_far": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }  # fmt: skip


def spending() -> Any:
    """Returns the microseconds of a spend in a jitted scan, less those of an empty one."""
    budget, number = MenuFilter(EPSILON, DELTA, [(step(noise), 100) for noise in FOUR]), 1_000_000
    indices = jnp.asarray(np.random.default_rng(0).integers(0, 4, number), jnp.int32)
    noises = jnp.asarray(FOUR, jnp.float32)

    def seconds(body: Any) -> float:
        run = jax.jit(lambda budget, indices: jax.lax.scan(body, budget, indices)[0])
        jax.block_until_ready(run(budget, indices))
        return min(timed(lambda: jax.block_until_ready(run(budget, indices)))[1] for _ in range(5))

    empty = seconds(lambda budget, index: (budget, None))
    by_index = seconds(lambda budget, index: (budget.spend(index)[1], None))
    by_noise = seconds(lambda budget, index: (budget.spend(step(noises[index]))[1], None))
    return {
        "microseconds_by_index": (by_index - empty) / number * 1e6,
        "microseconds_by_traced_noise": (by_noise - empty) / number * 1e6,
    }


def adversary(paths: int) -> Any:
    """Returns what a greedy adversary reaches on true losses, by simulation, beside the bracket of the game's delta.

    Greedy: below epsilon it plays the item of least noise that it can pay for, to come up; above it stops.
    """
    delta, rng = 1e-2, np.random.default_rng(0)
    menu = certify(1.0, delta, [(ja.Gaussian(noise), 1) for noise in (8.0, 12.0, 20.0)])
    costs = np.array([item.cost for item in menu.items])
    noises = np.array([item.mechanism.noise_multiplier for item in menu.items])
    loss, left = np.zeros(paths), np.full(paths, menu.budget)
    while True:
        affordable = (costs[None, :] <= left[:, None]) & (loss[:, None] < menu.epsilon + 0.5)
        if not affordable.any():
            break
        # Far below or with little left: the least noise; near epsilon: the most.
        near = loss > menu.epsilon - 0.1
        order = np.where(near[:, None], np.arange(3)[None, :], np.arange(3)[::-1][None, :])
        choice = np.argmax(np.where(affordable, order + 1, 0), axis=1)
        plays = affordable.any(axis=1)
        mu = 1 / noises[choice]
        loss += np.where(plays, mu**2 / 2 + mu * rng.standard_normal(paths), 0.0)
        left -= np.where(plays, costs[choice], 0)
    gains = np.maximum(-np.expm1(menu.epsilon - loss), 0.0)
    mean, error = gains.mean(), gains.std() / np.sqrt(paths)
    return {"paths": paths, "upper": menu.value, "mean": mean, "standard_error": error,
            "exceeds": bool(mean - 5 * error > menu.value)}  # fmt: skip


def replays(file: pathlib.Path) -> Any:
    """Returns the epochs of recorded schedules that each filter grants, at one budget.

    The menu has the settings that a schedule uses; one that ends before a filter refuses goes on as it ended.
    """
    found = {}
    for name, run in json.loads(file.read_text()).items():
        epochs = [
            (round(sigma, 6), batch / EXAMPLES, steps)
            for sigma, batch, steps in zip(run["sigma"], run["batch_size"], run["steps_in_epoch"], strict=True)
        ]
        kinds = sorted(set(epochs))
        items = [(step(sigma, rate), steps) for sigma, rate, steps in kinds]
        renyi: Any = RenyiFilter(EPSILON, DELTA)
        menu = MenuFilter(EPSILON, DELTA, items)

        def granted(budget: Any, key: Any, epochs: list[Any] = epochs) -> int:
            count = 0
            while True:
                sigma, rate, steps = epoch = epochs[min(count, len(epochs) - 1)]
                yes, budget = budget.spend(key(epoch) if key else step(sigma, rate), steps)
                if not yes:
                    return count
                count += 1

        by_renyi, by_menu = granted(renyi, None), granted(menu, kinds.index)
        found[name] = {"recorded": len(epochs), "renyi": by_renyi, "menu": by_menu, "ratio": by_menu / by_renyi,
                       "items": len(kinds)}  # fmt: skip
        print(name, found[name], flush=True)
    return {"epsilon": EPSILON, "delta": DELTA, "runs": found, "least_ratio": min(r["ratio"] for r in found.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=pathlib.Path, help="recorded trainings")
    parser.add_argument("--paths", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", help="parts; what is not named keeps its record")
    arguments = parser.parse_args()
    parts: dict[str, Any] = {name: lambda menu=menu: of_menu(**menu) for name, menu in MENUS.items()}
    parts |= {"spend": spending, "adversary": lambda: adversary(arguments.paths)}
    if arguments.runs:
        parts["replays"] = lambda: replays(arguments.runs)
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name, ask in parts.items():
        if not arguments.only or name in arguments.only:
            results[name] = ask()
            print(name, json.dumps(results[name], indent=1), flush=True)
            write_report(results, RESULT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
