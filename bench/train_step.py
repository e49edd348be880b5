"""One private step on one core beside the plain one: times as ratios of interleaved medians, and memory by batch size.

Run: python -m bench.train_step --json FILE

Not a test. A step is the gradient of 256 examples and an SGD update; the private ones clip and add noise. Where
jax-privacy is installed, its step runs in the same process on the same loss. One core, chosen here, and XLA without
threads of its own, since threads of other jobs would decide otherwise.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bench import report
from bench.timing import clock
from jaxacct.train.clipping import Flat, clip_and_sum
from jaxacct.train.noise import privatize

BATCH, RATE, CLIP_NORM, NOISE_MULTIPLIER = 256, 0.1, 1.0, 1.0
MEMORY_BATCHES = (64, 256, 1024)
COUNTED = 3
"""Calls of each step that are timed in one turn."""

TARGETS = {"MLP": 3.5, "CNN": 1.5}


class MLP(nnx.Module):
    """784-128-10, rectified: 101,770 parameters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(784, 128, rngs=rngs)
        self.output = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        return self.output(nnx.relu(self.hidden(image.reshape(-1))))


class CNN(nnx.Module):
    """The convolutional net that tutorials of DP-SGD train on MNIST: 26,010 parameters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 16, (8, 8), strides=2, padding="SAME", rngs=rngs)
        self.second = nnx.Conv(16, 32, (4, 4), strides=2, padding="VALID", rngs=rngs)
        self.hidden = nnx.Linear(512, 32, rngs=rngs)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        for layer in (self.first, self.second):
            image = nnx.max_pool(nnx.relu(layer(image)), (2, 2), (1, 1))
        return self.output(nnx.relu(self.hidden(image.reshape(-1))))


MODELS = {"MLP": MLP, "CNN": CNN}


def steps_of(model: nnx.Module) -> tuple[Any, dict[str, Callable[..., Any]]]:
    """Returns the parameters and the compiled steps ``(params, key, images, labels) -> params``, by name."""
    graph, params = nnx.split(model)

    def loss(params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = example
        return -jax.nn.log_softmax(nnx.merge(graph, params)(image))[label]

    def descend(params: Any, gradient: Any) -> Any:
        return jax.tree.map(lambda leaf, slope: leaf - RATE * slope.astype(leaf.dtype), params, gradient)

    def plain(params: Any, key: jax.Array, *batch: jax.Array) -> Any:
        def mean(params: Any) -> jax.Array:
            return jnp.mean(jax.vmap(loss, in_axes=(None, 0))(params, batch))

        return descend(params, jax.grad(mean)(params))

    def private(ghost: bool, noise: bool = True, microbatch_size: int | None = None) -> Callable[..., Any]:
        def step(params: Any, key: jax.Array, *batch: jax.Array) -> Any:
            rule, size = Flat(CLIP_NORM), len(batch[0])
            total, _ = clip_and_sum(
                loss, params, batch, jnp.ones(size, bool), rule=rule, ghost=ghost, microbatch_size=microbatch_size
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
        "ghost by 64": private(True, microbatch_size=64),
        "vmap": private(False),
        "vmap by 16": private(False, microbatch_size=16),
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

    def step(params: Any, key: jax.Array, *batch: jax.Array) -> Any:
        privatizer = jax_privacy.noise_addition.gaussian_privatizer(
            stddev=NOISE_MULTIPLIER * clipped.sensitivity(), prng_key=key
        )
        noisy, _ = privatizer.update(clipped(params, batch), privatizer.init(params))
        return descend(params, jax.tree.map(lambda leaf: leaf / len(batch[0]), noisy))

    return step


def batch_of(size: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.random((size, 28, 28, 1)), jnp.float32), jnp.asarray(rng.integers(0, 10, size), jnp.int32)


def interleaved(steps: dict[str, Callable[..., Any]], arguments: tuple[Any, ...], seconds: float) -> dict[str, float]:
    """Returns the median seconds of each step, taken in turns, so that what else the machine does hits all alike.

    The first call of a turn is not counted: it finds the caches as another step left them.
    """
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        jax.block_until_ready(step(*arguments))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, step in steps.items():
            jax.block_until_ready(step(*arguments))
            for _ in range(COUNTED):
                start = clock()
                jax.block_until_ready(step(*arguments))
                taken[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def temporary_bytes(step: Callable[..., Any], params: Any, size: int) -> int:
    return step.lower(params, jax.random.key(0), *batch_of(size)).compile().memory_analysis().temp_size_in_bytes


def main() -> int:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="to spend on each model")
    arguments = parser.parse_args()
    numbers: dict[str, Any] = {}
    missed = 0
    for name, model in MODELS.items():
        params, steps = steps_of(model(nnx.Rngs(0)))
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        taken = interleaved(steps, (params, jax.random.key(1), *batch_of(BATCH)), arguments.seconds)
        print(f"{name}, {size:,} parameters, batch {BATCH}")
        for step, seconds in taken.items():
            print(f"  {step:18s} {report.seconds(seconds):>10s}  {seconds / taken['plain']:6.2f} times plain")
        memory = {
            step: {batch: temporary_bytes(steps[step], params, batch) for batch in MEMORY_BATCHES}
            for step in ("plain", "ghost", "ghost by 64", "vmap")
        }
        for step, sizes in memory.items():
            cells = "  ".join(f"{batch}: {size / 2**20:8.2f} MiB" for batch, size in sizes.items())
            print(f"  temporary memory, {step:11s} batch {cells}")
        ratio = taken["ghost"] / taken["plain"]
        peers = [seconds for step, seconds in taken.items() if step.startswith("jax-privacy")]
        met = ratio <= TARGETS[name] and all(taken["ghost"] < seconds for seconds in peers)
        missed += not met
        said = "yes" if met else "NO"
        print(f"  wanted: ghost at most {TARGETS[name]} times plain, and faster than jax-privacy: {said}")
        numbers[name] = {"parameters": size, "seconds": taken, "temporary_bytes": memory}
    report.write(arguments.json, {"batch": BATCH, "models": numbers})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
