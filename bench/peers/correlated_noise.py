"""Correlated noise beside jax_privacy: sensitivities, calibrated noise, errors, and trees beside dp_accounting.

    python -m bench correlated_noise [--settings 30] [--interval 1e-4] [--steps 1024 16384] [--out FILE]

Runs where jax-privacy is installed (``pip install jax-privacy jaxtyping``). Times are CPU seconds of one process; what
is compiled is compiled by a first call that is not counted, for both.

* sensitivities: banded, buffered and dense strategies, to 4,096 steps; ours are bounds, with their rounding.
* noise: least noise of BandMFExecutionPlanConfig's own calibration, by its accountant at an interval.
* errors: squared errors of prefix sums at sensitivity 1, of both libraries' optimized strategies.
* trees: epsilon of SingleEpochTreeAggregationDpEvent, by dp_accounting's Rényi accountant, beside ours.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import pld, rdp
from jax_privacy.batch_selection import PartitionType
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig
from jax_privacy.matrix_factorization import buffered_toeplitz, sensitivity, toeplitz

import jaxacct as ja
from jaxacct import factorize, strategies

RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


def sensitivities() -> list[dict]:
    rng = np.random.default_rng(0)
    found = []
    for steps in (64, 1024, 4096):
        for separation, most in ((steps, 1), (steps // 8, 8), (steps // 16, 3)):
            pattern = strategies.MinSeparation(steps, separation, most).pattern
            cases = {
                "square root": strategies.square_root(steps),
                "banded square root": strategies.square_root(16),
                "buffered": strategies.BufferedToeplitz([0.25, 0.125, 0.0625], [0.5, 0.9, 0.99]),
            }
            for name, strategy in cases.items():
                with jax.enable_x64(True):
                    column = jnp.asarray(strategy.coefficients(steps))
                    theirs = float(jnp.sqrt(toeplitz.minsep_sensitivity_squared(column, separation, most)))
                found.append(
                    {"strategy": name, "pattern": pattern, "ours": strategy.sensitivity(pattern), "theirs": theirs}
                )
            if steps > 1024:
                continue
            matrix = np.tril(rng.random((steps, steps)).astype(np.float32)) + np.eye(steps, dtype=np.float32)
            with jax.enable_x64(True):
                dense = jnp.asarray(matrix, jnp.float64)
                theirs = float(sensitivity.get_min_sep_sensitivity_upper_bound(dense, separation, most))
            ours = strategies.Dense(matrix).sensitivity(pattern)
            found.append({"strategy": "dense", "pattern": pattern, "ours": ours, "theirs": theirs})
        epochs = strategies.FixedEpochs(steps // 4, 4).pattern
        if steps <= 1024:
            signed = np.tril(rng.normal(size=(steps, steps)).astype(np.float32), -1) + np.eye(steps, dtype=np.float32)
            with jax.enable_x64(True):
                theirs = float(sensitivity.fixed_epoch_sensitivity(jnp.asarray(signed, jnp.float64), 4))
            ours = strategies.Dense(signed).sensitivity(epochs)
            found.append({"strategy": "dense, signed", "pattern": epochs, "ours": ours, "theirs": theirs})
    return found


def noise(count: int, interval: float) -> list[dict]:
    rng = np.random.default_rng(1)
    strategy_of = {bands: strategies.square_root(bands).normalized() for bands in (1, 2, 4, 8, 16, 32)}
    found = []
    for setting in range(-1, count):
        bands = int(rng.choice(list(strategy_of)))
        steps = int(rng.integers(200, 4000))
        rate = float(np.exp(rng.uniform(np.log(0.002), np.log(0.3))))
        epsilon, delta = float(np.exp(rng.uniform(np.log(0.5), np.log(8)))), float(10 ** rng.uniform(-8, -5))
        strategy, sampling = strategy_of[bands], strategies.CyclicPoisson(steps, bands, rate)
        start = time.process_time()
        ours = factorize.noise_multiplier(strategy, sampling, epsilon, delta)
        mine = time.process_time() - start
        over = float(ours.value) / strategy.sensitivity(sampling.pattern)
        start = time.process_time()
        config = BandMFExecutionPlanConfig(
            iterations=steps, strategy=np.asarray(strategy.first_column), epsilon=epsilon, delta=delta,
            sampling_prob=rate, accountant=pld.PLDAccountant(RELATION, interval),
            partition_type=PartitionType.INDEPENDENT,
        )  # fmt: skip
        theirs = config.plan.dp_event.event.event.noise_multiplier
        seconds = time.process_time() - start
        if setting >= 0:
            found.append({
                "bands": bands, "steps": steps, "rate": rate, "epsilon": epsilon, "delta": delta, "ours": over,
                "theirs": float(theirs), "satisfied": bool(ours.satisfied), "seconds": mine, "their_seconds": seconds,
            })  # fmt: skip
            print(found[-1], flush=True)
    return found


def errors(lengths: list[int]) -> list[dict]:
    found = []
    for steps in lengths:
        single = strategies.SinglePass(steps)
        for worst in (False, True):
            kind = "largest" if worst else "mean"

            def of(strategy, single=single, worst=worst):
                return factorize.error(strategy, single)[worst]

            best = of(strategies.square_root(steps)) if steps <= 2048 else None
            log = (math.log(steps) + np.euler_gamma + math.log(16)) / math.pi
            found.append({"steps": steps, "error": kind, "strategy": "square root", "ours": best, "its square": log**2})
            found.append({"steps": steps, "error": kind, "strategy": "independent", "ours": of(strategies.identity())})
            for bands in (4, 16, 64):
                start = time.process_time()
                strategy = factorize.banded_toeplitz(bands, single, worst=worst)
                mine = time.process_time() - start
                start = time.process_time()
                with jax.enable_x64(True):
                    reduction = jnp.max if worst else jnp.mean
                    column = toeplitz.optimize_banded_toeplitz(steps, bands, reduction_fn=reduction)
                    theirs = float(toeplitz.loss(column, n=steps, reduction_fn=reduction))
                seconds = time.process_time() - start
                row = {"strategy": f"{bands} bands", "ours": of(strategy), "theirs": theirs}
                found.append({"steps": steps, "error": kind} | row | {"seconds": mine, "their_seconds": seconds})
                print(found[-1], flush=True)
            for buffers in (1, 2, 3, 4, 5):
                start = time.process_time()
                strategy = factorize.buffered_toeplitz(buffers, single, worst=worst)
                mine = time.process_time() - start
                start = time.process_time()
                blt = buffered_toeplitz.optimize(
                    n=steps, error="max" if worst else "mean", min_buffers=buffers, max_buffers=buffers
                )
                with jax.enable_x64(True):
                    theirs_strategy = toeplitz.per_query_error(strategy_coef=blt.toeplitz_coefs(steps), n=steps)
                    square = float(jnp.sum(blt.toeplitz_coefs(steps) ** 2))
                    theirs = square * float(jnp.max(theirs_strategy) if worst else jnp.mean(theirs_strategy))
                seconds = time.process_time() - start
                row = {"strategy": f"{buffers} buffers", "ours": of(strategy), "theirs": theirs}
                found.append({"steps": steps, "error": kind} | row | {"seconds": mine, "their_seconds": seconds})
                print(found[-1], flush=True)
    return found


def trees() -> list[dict]:
    found = []
    for steps in (1, 10, 100, 1000, 3000, 100_000):
        for sigma in (2.0, 5.0, 20.0):
            event = dp_accounting.SingleEpochTreeAggregationDpEvent(sigma, steps)
            accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
            theirs = accountant.compose(event).get_epsilon(1e-5)
            mechanism = ja.MatrixMechanism(strategies.HonakerTree(steps), sigma, strategies.SinglePass(steps))
            ours = float(ja.epsilon(mechanism, 1, 1e-5).upper)
            found.append({"steps": steps, "noise": sigma, "ours": ours, "theirs": float(theirs)})
    return found


def main() -> None:
    """Prints each figure, and what the worst of each kind is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=30)
    parser.add_argument("--interval", type=float, default=1e-4)
    parser.add_argument("--steps", type=int, nargs="*", default=[1024, 16384])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    record = {"sensitivities": sensitivities()}
    off = [row["ours"] / row["theirs"] - 1 for row in record["sensitivities"]]
    print(f"sensitivities: {len(off)}, ours over theirs {min(off):.1e} to {max(off):.1e}")
    record["trees"] = trees()
    print(f"trees: epsilon over theirs at most {max(row['ours'] / row['theirs'] for row in record['trees']):.4f}")
    if arguments.settings:
        record["noise"] = noise(arguments.settings, arguments.interval)
        off = [row["ours"] / row["theirs"] - 1 for row in record["noise"]]
        times = [row["their_seconds"] / row["seconds"] for row in record["noise"]]
        print(f"noise: ours over theirs {min(off):.1e} to {max(off):.1e}; {np.median(times):.0f} times faster (median)")
    if arguments.steps:
        record["errors"] = errors(arguments.steps)
        off = [row["ours"] / row["theirs"] - 1 for row in record["errors"] if row.get("theirs")]
        print(f"errors: ours over theirs {min(off):.1e} to {max(off):.1e}")
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
