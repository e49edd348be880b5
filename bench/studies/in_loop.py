"""The cost of accounting in a training step: the trainer's own compiled step with and without its ledger.

    python -m bench.studies.in_loop [--json FILE]

Not a test. Steps of DP-SGD on an MLP of 784-128-10 with batches of 256, many in one compiled loop, as a run makes them;
one core, medians of turns taken one after the other. Wanted: at most 2 % with a plan, with the filter, with the
odometer, and with a schedule, whose Rényi curve is computed anew at every step. Exits 1 where the target is missed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench import report
from bench.timing import clock
from jaxacct.policies import Constant, Policy, Schedule
from jaxacct.train import DPTrainer
from jaxacct.train.models import cross_entropy
from jaxacct.train.step import StepProgram
from jaxacct_recipes import MLP

EXAMPLES, BATCH, STEPS, NOISE_MULTIPLIER = 10_000, 256, 20, 1.0
"""Steps of one timed call: the start of a call is no part of a step."""

PAYMENTS = 2000
"""Steps of a call that pays only."""

TARGET = 0.02

FREE = "without a ledger"


class Free(StepProgram):
    """The same program without its payments."""

    def step(self, state: Any, curve: Any, constants: Any, data: Any) -> tuple[Any, Any]:
        indices, mask = self.draw(state)
        return jnp.array(True), self.update(state, constants, tuple(part[indices] for part in data), mask)


@functools.cache
def data() -> tuple[jax.Array, jax.Array]:
    """Of all trainers: the same buffers, since copies would be in a cache for one and not for the next."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.random((EXAMPLES, 784)), jnp.float32), jnp.asarray(rng.integers(0, 10, EXAMPLES), jnp.int32)


def trainer_with(policy: Policy, ledger: str) -> DPTrainer:
    return DPTrainer(
        MLP((784,), 10, width=128, rngs=nnx.Rngs(0)), cross_entropy, optax.sgd(0.1), data(), epsilon=50.0,
        delta=1e-5, policy=policy, clip_norm=1.0, ledger=ledger, ghost=True, seed=0,
    )  # fmt: skip


def program_of(trainer: DPTrainer, kind: type[StepProgram], sampler: Any) -> StepProgram:
    """Returns the trainer's program, drawing batches of as many rows as the others do."""
    fields = {field.name: getattr(trainer.program, field.name) for field in dataclasses.fields(StepProgram)}
    return kind(**fields | {"door": dataclasses.replace(trainer.program.door, sampler=sampler)})


def call_of(trainer: DPTrainer, sampler: Any, kind: type[StepProgram] = StepProgram) -> Callable[[], Any]:
    run = jax.jit(program_of(trainer, kind, sampler).run)
    state, constants = trainer.state, trainer.constants
    curve = trainer.program.curve(state)
    return lambda: run(state, curve, constants, trainer.data, STEPS)


def payment_seconds(trainer: DPTrainer) -> float:
    """Returns the time of one step's payment by itself: a loop of them, without the updates."""
    pay = jax.jit(trainer.program.foresee)
    state = trainer.state
    curve = trainer.program.curve(state)
    _, step = pay(state, curve, PAYMENTS)
    assert int(step) == PAYMENTS
    times = []
    for _ in range(9):
        start = clock()
        jax.block_until_ready(pay(state, curve, PAYMENTS))
        times.append(clock() - start)
    return statistics.median(times) / PAYMENTS


def interleaved(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Returns the seconds of a step in every turn; the first call of each kind compiles and is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        state, refused = call()
        assert not refused
        assert int(state.step) == STEPS
    end = time.perf_counter() + seconds
    order = list(calls.items())
    while time.perf_counter() < end:
        order = order[1:] + order[:1]  # whoever follows whom finds the caches as that one left them
        for name, call in order:
            start = clock()
            jax.block_until_ready(call())
            taken[name].append((clock() - start) / STEPS)
    return taken


def measured(seconds: float) -> dict[str, Any]:
    """Returns seconds of a step without and with each kind of accounting, what each adds, and what it takes alone."""
    rate = BATCH / EXAMPLES
    constant = Constant(NOISE_MULTIPLIER, rate)
    schedule = Schedule(lambda step: NOISE_MULTIPLIER + step / 1024, rate)
    trainers = {
        "planned": trainer_with(constant, "planned"),
        "filter": trainer_with(constant, "filter"),
        "odometer": trainer_with(constant, "odometer"),
        "filter, schedule": trainer_with(schedule, "filter"),
    }
    sampler = trainers["filter"].sampler
    calls = {FREE: call_of(trainers["filter"], sampler, Free)}
    calls |= {name: call_of(trainer, sampler) for name, trainer in trainers.items()}
    taken = interleaved(calls, seconds)
    added = {
        name: statistics.median(own / free for own, free in zip(times, taken[FREE], strict=True)) - 1
        for name, times in taken.items()
    }
    return {
        "batch": BATCH,
        "seconds": {name: statistics.median(times) for name, times in taken.items()},
        "added": added,
        "payment_seconds": {name: payment_seconds(trainer) for name, trainer in trainers.items()},
        "turns": len(taken[FREE]),
    }


def main() -> int:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    found = measured(arguments.seconds)
    for name, seconds in found["seconds"].items():
        alone = "" if name == FREE else f"; payment by itself {1e6 * found['payment_seconds'][name]:.1f} us"
        print(f"{name:18s} {1000 * seconds:8.3f} ms a step, {100 * found['added'][name]:+6.2f} %{alone}")
    met = all(added <= TARGET for added in found["added"].values())
    print(f"wanted: plan, filter, odometer and schedule add at most {100 * TARGET:g} %: {'yes' if met else 'NO'}")
    report.write(arguments.json, found)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
