"""One private step on one core beside the plain one: ratios of interleaved times, padding paid for, and memory.

Run: python -m bench.studies.train_step --json bench/results/train_step.json

Not a test. A step is the gradient of 256 examples and an SGD update; the private ones clip and add noise, and work on
the padded batches of a Poisson sampler. Where jax-privacy is installed, its step runs in the same process on the same
loss. One core, chosen here, and XLA without threads of its own, since threads of other jobs would decide otherwise.
"""

from __future__ import annotations

import functools
import itertools
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
from flax import nnx

from bench import report
from bench.studies.networks import NETWORKS, Network, cross_entropy
from bench.timing import clock
from jaxacct.train.clipping import Flat, clip_and_sum
from jaxacct.train.models import merge_params, split_params
from jaxacct.train.noise import privatize
from jaxacct.train.sampling import PoissonSampler

EXAMPLES, BATCH, MICROBATCH = 60_000, 256, 32
"""Of the data set that batches are drawn from, as many as are expected in one, and what ours work on at a time."""

BY = ("", f" by {MICROBATCH}")
"""In the names of steps: all rows at once, or in microbatches."""

RATE, CLIP_NORM, NOISE_MULTIPLIER = 0.1, 1.0, 1.0
COUNTED = 3
"""Calls of each step that are timed in one turn."""

TARGETS = {"MLP": 3.5, "MLP 670k": 3.2, "CNN": 1.2, "ResNet": 1.7, "transformer": 1.25, "LSTM": 2.2}


def steps_of(network: Network) -> tuple[Any, dict[str, Callable[..., Any]]]:
    """Returns the parameters and the compiled steps ``(params, key, counted, inputs, labels) -> params``, by name.

    The first ``counted`` rows are examples, for private steps of ours; all of them are for the others.
    """
    graph, params, rest = split_params(network.make(nnx.Rngs(0)))

    def loss(params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        inputs, labels = example
        return cross_entropy(merge_params(graph, params, rest)(inputs), labels)

    def descend(params: Any, gradient: Any) -> Any:
        return jax.tree.map(lambda leaf, slope: leaf - RATE * slope.astype(leaf.dtype), params, gradient)

    def plain(params: Any, key: jax.Array, counted: jax.Array, *batch: jax.Array) -> Any:
        def mean(params: Any) -> jax.Array:
            return jnp.mean(jax.vmap(loss, in_axes=(None, 0))(params, batch))

        return descend(params, jax.grad(mean)(params))

    def private(ghost: bool, noise: bool = True, microbatch_size: int | None = None) -> Callable[..., Any]:
        def step(params: Any, key: jax.Array, counted: jax.Array, *batch: jax.Array) -> Any:
            rule, size = Flat(CLIP_NORM), len(batch[0])
            total, _ = clip_and_sum(
                loss, params, batch, jnp.arange(size) < counted, rule=rule, ghost=ghost, microbatch_size=microbatch_size
            )
            if not noise:
                return descend(params, jax.tree.map(lambda leaf: leaf.astype(jnp.float32) / size, total))
            scale = {"noise_multiplier": NOISE_MULTIPLIER, "clip_norm": CLIP_NORM, "expected_batch_size": size}
            return descend(params, privatize(key, total, **scale))

        return step

    steps = {
        "plain": plain,
        "ghost": private(True),
        "ghost, no noise": private(True, noise=False),
        f"ghost by {MICROBATCH}": private(True, microbatch_size=MICROBATCH),
        "vmap": private(False),
        f"vmap by {MICROBATCH}": private(False, microbatch_size=MICROBATCH),
    }
    for name, microbatch_size in (("jax-privacy", None), ("jax-privacy by 16", 16)):
        peer = jax_privacy_step(loss, descend, microbatch_size)
        if peer is not None:
            steps[name] = peer
    return params, {name: jax.jit(step) for name, step in steps.items()}


def jax_privacy_step(
    loss: Callable[..., Any], descend: Callable[..., Any], microbatch_size: int | None
) -> Callable[..., Any] | None:
    try:
        import jax_privacy
    except ImportError:
        return None
    clipped = jax_privacy.clipped_grad(
        loss, l2_clip_norm=CLIP_NORM, batch_argnums=1, keep_batch_dim=False, microbatch_size=microbatch_size
    )

    def step(params: Any, key: jax.Array, counted: jax.Array, *batch: jax.Array) -> Any:
        privatizer = jax_privacy.noise_addition.gaussian_privatizer(
            stddev=NOISE_MULTIPLIER * clipped.sensitivity(), prng_key=key
        )
        noisy, _ = privatizer.update(clipped(params, batch), privatizer.init(params))
        return descend(params, jax.tree.map(lambda leaf: leaf / len(batch[0]), noisy))

    return step


def arguments_of(network: Network, params: Any, rows: int) -> tuple[Any, ...]:
    """Returns a step's arguments, with all rows counted."""
    return params, jax.random.key(1), jnp.int32(rows), *map(jnp.asarray, network.examples(rows))


def calls_of(network: Network, params: Any, steps: dict[str, Callable[..., Any]]) -> dict[str, Callable[[], Any]]:
    """Returns a call of each step, as a run makes it: of as many rows as its sampler has, of which those drawn count.

    Ours pay for padding: they get the sampler's capacity, and sizes of batches that were drawn, in turn. The plain step
    and other libraries get full batches of the expected size.
    """
    sampler = PoissonSampler.for_budget(EXAMPLES, BATCH / EXAMPLES, epsilon=3.0, delta=1e-5, steps=3000)
    full, padded = (arguments_of(network, params, rows) for rows in (BATCH, sampler.capacity))
    drawn = np.random.default_rng(0).binomial(EXAMPLES, BATCH / EXAMPLES, 64)

    def call(step: Callable[..., Any]) -> Callable[[], Any]:
        sizes = itertools.cycle(jnp.asarray(drawn, jnp.int32))
        return lambda: step(params, padded[1], next(sizes), *padded[3:])

    ours = [name for name in steps if name.startswith(("ghost", "vmap"))]
    return {name: call(step) if name in ours else functools.partial(step, *full) for name, step in steps.items()}


def interleaved(steps: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Returns the mean seconds of each step, the slowest tenth left out, in turns: what else runs hits all alike.

    The first call of a turn is not counted: it finds the caches as another step left them.
    """
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        jax.block_until_ready(step())
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, step in steps.items():
            jax.block_until_ready(step())
            for _ in range(COUNTED):
                start = clock()
                jax.block_until_ready(step())
                taken[name].append(clock() - start)
    return {name: statistics.mean(sorted(times)[: -(len(times) // 10) or None]) for name, times in taken.items()}


def temporary_bytes(step: Callable[..., Any], network: Network, params: Any, size: int) -> int:
    return step.lower(*arguments_of(network, params, size)).compile().memory_analysis().temp_size_in_bytes


def main() -> int:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="to spend on each network")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    arguments = parser.parse_args()
    numbers: dict[str, Any] = {}
    missed = 0
    for name in arguments.networks:
        network = NETWORKS[name]
        params, steps = steps_of(network)
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        taken = interleaved(calls_of(network, params, steps), arguments.seconds)
        memory = {step: temporary_bytes(steps[step], network, params, BATCH) for step in steps}
        print(f"{name}, {size:,} parameters, batches of {BATCH} expected, padding in ours")
        for step, seconds in taken.items():
            ratio, temporary = seconds / taken["plain"], memory[step] / 2**20
            print(f"  {step:18s} {report.seconds(seconds):>10s}  {ratio:6.2f} times plain  {temporary:8.1f} MiB")
        ours = f"ghost by {MICROBATCH}"
        peers = [seconds for step, seconds in taken.items() if step.startswith("jax-privacy")]
        met = {
            f"at most {TARGETS[name]} times plain": taken[ours] <= TARGETS[name] * taken["plain"],
            "no slower than jax-privacy": all(taken[ours] <= seconds for seconds in peers),
            "no more memory than vmap": all(memory[f"ghost{by}"] <= memory[f"vmap{by}"] for by in BY),
        }
        missed += not all(met.values())
        print("  wanted of ours: " + "; ".join(f"{what}: {'yes' if true else 'NO'}" for what, true in met.items()))
        numbers[name] = {"parameters": size, "seconds": taken, "temporary_bytes": memory, "met": met}
    report.write(arguments.json, {"batch": BATCH, "networks": numbers})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
