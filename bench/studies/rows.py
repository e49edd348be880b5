"""The most that one example moves the sum of clipped gradients, in clipping norms, over many kinds of models.

``python -m bench.studies.rows [--models N] [--first I]``. Each model is a body and a loss: dense layers, convolutions
(grouped, dilated, strided, turned), recurrences, attention, norms, tables, sorts, scans and branches; losses that are
smooth, and such with kinks where examples are put on purpose. For blocks of 20, 32, 37 rows and whole batches: the sum
with and without one row, at the end of the batch, in the middle and where rows behind it move up, of ordinary numbers,
of zeros, NaN, infinities and numbers near the end of float32. Printed are the most that the sum moved, in clipping
norms, and what the look at made-up rows took beyond its compilation.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxacct.train.clipping import clipped_sum, query

ROWS, BLOCKS = 61, (20, 32, 37, None)
DIMENSIONS = ("NHWC", "HWIO", "NHWC")
Loss = Callable[[jax.Array], jax.Array]
Body = tuple[tuple[int, ...], dict[str, tuple[int, ...]], Callable[[Any, Any], jax.Array]]


def convolution(groups: int = 1, stride: int = 1, dilation: int = 1) -> Callable[[Any, Any], jax.Array]:
    """Returns a body of one convolution."""

    def body(p: Any, x: jax.Array) -> jax.Array:
        y = jax.lax.conv_general_dilated(
            x[None], p["k"], (stride, stride), "SAME", rhs_dilation=(dilation, dilation),
            dimension_numbers=DIMENSIONS, feature_group_count=groups,
        )  # fmt: skip
        return jnp.tanh(y).mean(axis=(0, 1, 2)) @ p["o"]

    return body


def turned(p: Any, x: jax.Array) -> jax.Array:
    """A transposed convolution."""
    y = jax.lax.conv_transpose(x[None], p["k"], (2, 2), "SAME", dimension_numbers=DIMENSIONS)
    return jnp.tanh(y).mean(axis=(0, 1, 2)) @ p["o"]


def recurrent(p: Any, x: jax.Array) -> jax.Array:
    """A recurrence by a scan."""
    h, _ = jax.lax.scan(lambda h, u: (jnp.tanh(h @ p["h"] + u @ p["u"]), None), jnp.zeros(len(p["h"])), x)
    return h @ p["o"]


def attention(p: Any, x: jax.Array) -> jax.Array:
    """One head of causal attention."""
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    scores = jnp.where(jnp.tri(len(x), dtype=bool), q @ k.T / 4, -jnp.inf)
    return (jax.nn.softmax(scores) @ v).mean(axis=0) @ p["o"]


def normed(p: Any, x: jax.Array) -> jax.Array:
    """Layer normalization between two dense layers."""
    h = x @ p["a"]
    return (h - h.mean()) / jnp.sqrt(h.var() + 1e-6) * p["s"] @ p["o"]


BODIES: dict[str, Body] = {
    "linear": ((17,), {"o": (17, 3)}, lambda p, x: x @ p["o"]),
    "one output": ((17,), {"o": (17, 1)}, lambda p, x: jnp.repeat(x @ p["o"], 3)),
    "wide": ((40,), {"a": (40, 33), "o": (33, 3)}, lambda p, x: jnp.tanh(x @ p["a"]) @ p["o"]),
    "relu": ((17,), {"a": (17, 33), "o": (33, 3)}, lambda p, x: jax.nn.relu(x @ p["a"]) @ p["o"]),
    "deep": ((9,), {"a": (9, 9), "b": (9, 9), "o": (9, 3)},
             lambda p, x: jnp.sin(jnp.sin(x @ p["a"]) @ p["b"]) @ p["o"]),
    "normed": ((17,), {"a": (17, 33), "s": (33,), "o": (33, 3)}, normed),
    "scaled": ((17,), {"s": (17,), "o": (17, 3)}, lambda p, x: (x * p["s"] / (1e-3 + jnp.linalg.norm(x))) @ p["o"]),
    "einsum": ((5, 7), {"a": (5, 7, 3), "o": (3, 3)}, lambda p, x: jnp.einsum("ij,ijk->k", x, p["a"]) @ p["o"]),
    "bilinear": ((7,), {"a": (7, 7, 3), "o": (3, 3)}, lambda p, x: jnp.einsum("i,ijk,j->k", x, p["a"], x) @ p["o"]),
    "conv": ((8, 8, 4), {"k": (3, 3, 4, 6), "o": (6, 3)}, convolution()),
    "strided": ((8, 8, 4), {"k": (3, 3, 4, 6), "o": (6, 3)}, convolution(stride=2)),
    "dilated": ((8, 8, 4), {"k": (3, 3, 4, 6), "o": (6, 3)}, convolution(dilation=2)),
    "grouped": ((8, 8, 4), {"k": (3, 3, 2, 6), "o": (6, 3)}, convolution(groups=2)),
    "depthwise": ((8, 8, 4), {"k": (3, 3, 1, 8), "o": (8, 3)}, convolution(groups=4)),
    "grouped, strided": ((8, 8, 6), {"k": (3, 3, 2, 6), "o": (6, 3)}, convolution(groups=3, stride=2)),
    "turned": ((4, 4, 3), {"k": (3, 3, 3, 5), "o": (5, 3)}, turned),
    "recurrent": ((6, 5), {"h": (9, 9), "u": (5, 9), "o": (9, 3)}, recurrent),
    "attention": ((7, 16), {"q": (16, 8), "k": (16, 8), "v": (16, 8), "o": (8, 3)}, attention),
    "pooled": ((12, 5), {"o": (5, 3)}, lambda p, x: jnp.max(x, axis=0) @ p["o"]),
    "sorted": ((17,), {"o": (17, 3)}, lambda p, x: jnp.sort(x) @ p["o"]),
    "looked up": ((17,), {"t": (11, 6), "o": (6, 3)},
                  lambda p, x: p["t"][jnp.clip(jnp.nan_to_num(x), 0, 10).astype(int)].mean(axis=0) @ p["o"]),
    "fourier": ((16,), {"f": (9,), "o": (16, 3)}, lambda p, x: jnp.fft.irfft(jnp.fft.rfft(x) * p["f"]) @ p["o"]),
    "branched": ((17,), {"a": (17, 3), "o": (17, 3)},
                 lambda p, x: jax.lax.cond(x[0] > 0, lambda: x @ p["a"], lambda: jnp.tanh(x @ p["o"]))),
    "remat": ((17,), {"a": (17, 20), "o": (20, 3)}, jax.checkpoint(lambda p, x: jnp.tanh(x @ p["a"]) @ p["o"])),
}  # fmt: skip

LOSSES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "square": lambda y: jnp.sum(y**2),
    "cross-entropy": lambda y: -jax.nn.log_softmax(y)[0],
    "kink": lambda y: jnp.sum(jnp.abs(y - 0.25)),
    "hinge": lambda y: jnp.sum(jax.nn.relu(y)),
    "largest": lambda y: jnp.max(y),
}


def models() -> list[tuple[str, Body, Callable[[jax.Array], jax.Array]]]:
    """Returns all models by their names."""
    return [(f"{body}, {loss}", BODIES[body], LOSSES[loss]) for body, loss in itertools.product(BODIES, LOSSES)][:118]


def distance(one: Any, other: Any) -> float:
    """Returns the L2 norm of a difference."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(a) - np.asarray(b))) for a, b in pairs)))


def moved(body: Body, loss: Loss, random: np.random.Generator) -> tuple[float, float, float]:
    """Returns the most that one row moves a sum, in clipping norms, and what a look takes, compiled before and not."""
    shape, sizes, run = body
    params = {name: jnp.asarray(random.normal(size=size) / 2, jnp.float32) for name, size in sizes.items()}
    of_one = lambda p, x: loss(run(p, x))  # noqa: E731
    example = jax.ShapeDtypeStruct(shape, jnp.float32)
    took = []
    for _ in range(2):
        begun = time.perf_counter()
        query.check_loss(of_one, params, example, ROWS, microbatch_size=None, ghost=True)
        took.append(time.perf_counter() - begun)
    most, x = 0.0, random.normal(size=(ROWS, *shape)).astype(np.float32)
    x[: ROWS // 2] = 0.0
    for microbatch_size in BLOCKS:
        # As traced for a step, with what is public alone fixed.
        settings: Any = {"clip_norm": 1.0, "microbatch_size": microbatch_size}
        total = jax.jit(lambda x, mask, settings=settings: clipped_sum(of_one, params, x, mask, **settings))
        for place, value in itertools.product((0, 7, ROWS // 2, ROWS - 1), (None, 0.0, np.nan, np.inf, 3e38)):
            with_it, mask = x.copy(), np.ones(ROWS, bool)
            if value is not None:
                with_it[place] = value
            whole = total(with_it, mask)
            left, gone = mask.copy(), mask.copy()
            left[place] = False
            gone[-1] = False
            fewer = np.concatenate([np.delete(with_it, place, axis=0), with_it[:1]])
            most = max(most, distance(whole, total(with_it, left)), distance(whole, total(fewer, gone)))
    return most, took[1], took[0]


def main() -> None:
    """Prints a line for each model, and the worst."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=118)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    # What was compiled once is found again: a second look at rows takes what it takes beyond its compilation.
    cache = tempfile.TemporaryDirectory()
    jax.config.update("jax_compilation_cache_dir", cache.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    random, worst, slowest, refused = np.random.default_rng(0), 0.0, 0.0, 0
    asked = models()[arguments.first : arguments.first + arguments.models]
    for name, body, loss in asked:
        try:
            most, beyond, together = moved(body, loss, random)
        except ValueError as error:
            refused += 1
            print(f"{name:32s} refused: {error}", flush=True)
            continue
        worst, slowest = max(worst, most), max(slowest, beyond)
        print(f"{name:32s} {most:.9f}  {beyond:.2f} s beyond compilation, {together:.2f} s with it", flush=True)
    print(f"{len(asked)} models, {refused} refused: at most {worst:.9f} clipping norms; {slowest:.2f} s at most")


if __name__ == "__main__":
    main()
