"""A decoder of GPT-2's shape, text that every machine has, and weights of a file for who has them."""

from __future__ import annotations

import json
import pathlib
import sysconfig
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

CONTEXT = 256
"""Tokens of an example, each of which is predicted from those before it."""


class Shape(NamedTuple):
    """Words, width, layers and heads."""

    words: int
    width: int
    layers: int
    heads: int


SHAPES = {
    "0.2M": Shape(256, 64, 3, 2),
    "2M": Shape(256, 192, 4, 6),
    "30M": Shape(8192, 512, 8, 8),
    "79M": Shape(256, 2560, 1, 20),  # one layer, as wide as those of models of billions
    "124M": Shape(50257, 768, 12, 12),
    "1.3B": Shape(50257, 2048, 24, 32),
}
"""Tokens are bytes, of which larger vocabularies leave most words unused: time and memory are those of the shape."""


class Block(nnx.Module):
    """Causal attention and a layer of four times the width, each beside a shortcut and behind a norm."""

    def __init__(self, shape: Shape, *, dtype: Any, rngs: nnx.Rngs) -> None:
        width, options = shape.width, {"dtype": dtype, "rngs": rngs}
        self.heads = shape.heads
        self.ln_1, self.ln_2 = (nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs) for _ in range(2))
        self.c_attn, self.attn_proj = nnx.Linear(width, 3 * width, **options), nnx.Linear(width, width, **options)
        self.c_fc, self.mlp_proj = nnx.Linear(width, 4 * width, **options), nnx.Linear(4 * width, width, **options)

    def __call__(self, held: jax.Array) -> jax.Array:
        count = len(held)
        query, key, value = jnp.split(self.c_attn(self.ln_1(held)).reshape(count, 3 * self.heads, -1), 3, axis=1)
        scores = jnp.einsum("thd,shd->hts", query, key).astype(jnp.float32) / np.sqrt(query.shape[-1])
        scores = jnp.where(np.tril(np.ones((1, count, count), bool)), scores, -1e9)
        mixed = jnp.einsum("hts,shd->thd", jax.nn.softmax(scores, axis=-1).astype(value.dtype), value)
        held = held + self.attn_proj(mixed.reshape(count, -1))
        return held + self.mlp_proj(nnx.gelu(self.c_fc(self.ln_2(held))))


class Decoder(nnx.Module):
    """Logits of the next token at each position; words are read and written by one table.

    Args:
        shape: sizes.
        dtype: that layers compute in.
        remat: whether each block is computed again for its derivative.
        scanned: whether blocks are one, of stacked parameters, that a scan runs: a program of one block, whatever their
            number. Weights of a file are for blocks that are not.
    """

    def __init__(
        self, shape: Shape, *, dtype: Any = jnp.float32, remat: bool = False, scanned: bool = False, rngs: nnx.Rngs
    ) -> None:
        small = nnx.initializers.normal(0.02)
        self.wte = nnx.Embed(shape.words, shape.width, embedding_init=small, dtype=dtype, rngs=rngs)
        self.wpe = nnx.Embed(CONTEXT, shape.width, embedding_init=small, dtype=dtype, rngs=rngs)
        if scanned:
            stack = nnx.vmap(lambda rngs: Block(shape, dtype=dtype, rngs=rngs))
            self.h: Any = stack(rngs.split(shape.layers))
        else:
            self.h = nnx.List(Block(shape, dtype=dtype, rngs=rngs) for _ in range(shape.layers))
        self.ln_f, self.remat = nnx.LayerNorm(shape.width, epsilon=1e-5, rngs=rngs), remat

    def __call__(self, tokens: jax.Array) -> jax.Array:
        held = self.wte(tokens) + self.wpe(jnp.arange(len(tokens)))
        run = nnx.remat(Block.__call__) if self.remat else Block.__call__
        if isinstance(self.h, Block):
            held = nnx.scan(run, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.h, held)
        else:
            for block in self.h:
                held = run(block, held)
        return self.wte.attend(self.ln_f(held)).astype(jnp.float32)


def next_token_loss(model: Any, tokens: jax.Array) -> jax.Array:
    """Returns the mean negative log-likelihood, in nats, of CONTEXT tokens from those before each."""
    tokens = tokens.astype(jnp.int32)
    log_p = jax.nn.log_softmax(model(tokens[:-1]))
    return -jnp.mean(jnp.take_along_axis(log_p, tokens[1:, None], axis=1))


def text() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns examples (n, CONTEXT + 1), uint8, of the standard library; the file of each; those of files held out."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    apart = {"site-packages", "test", "tests", "__pycache__"}
    files = sorted(path for path in library.rglob("*.py") if not apart & set(path.relative_to(library).parts))

    def examples(chosen: list[pathlib.Path]) -> tuple[np.ndarray, np.ndarray]:
        size = CONTEXT + 1
        files = [np.frombuffer(path.read_bytes(), np.uint8) for path in chosen]
        rows = [file[: len(file) // size * size].reshape(-1, size) for file in files]
        return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(some) for some in rows])

    held_out = files[::10]
    return *examples([path for path in files if path not in set(held_out)]), examples(held_out)[0]


def loaded(model: Decoder, path: pathlib.Path) -> Decoder:
    """Returns the model with GPT-2's weights of a safetensors file, as its authors publish them; positions are cut."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()
    there = np.memmap(path, np.uint8, mode="r", offset=start)
    moved = {"attn_proj": "attn.c_proj", "c_attn": "attn.c_attn", "mlp_proj": "mlp.c_proj", "c_fc": "mlp.c_fc"}
    kinds = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}
    for path_of, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        parts = [moved.get(str(part), str(part)) for part in path_of]
        entry = header[".".join([*parts[:-1], kinds[parts[-1]]])]
        first, last = entry["data_offsets"]
        array = there[first:last].view(np.dtype({"F32": np.float32, "F16": np.float16}[entry["dtype"]]))
        variable[...] = jnp.asarray(array.reshape(entry["shape"])[: variable.shape[0]], variable.dtype)
    return model
