"""The decoder of :mod:`bench.studies.decoder` in torch, with adapters: Opacus's steps beside plain ones.

Run by an interpreter that has torch and opacus, which needs nothing of this library:

    python bench/studies/torch_decoder.py --words 256 --width 192 --layers 4 --heads 6 --batch 8

Prints JSON: seconds of the processor, the least of steps taken in turns, and bytes by which a process grew that made
steps of one way alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pathlib
import time
from collections.abc import Callable
from typing import Any

import opacus
import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn
from torch.nn import functional

CONTEXT, RANK = 256, 8


class Adapted(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside).requires_grad_(False)
        self.down, self.up = nn.Linear(inside, RANK, bias=False), nn.Linear(RANK, outside, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, held: torch.Tensor) -> torch.Tensor:
        return self.base(held) + 2.0 * self.up(self.down(held))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = (nn.LayerNorm(width).requires_grad_(False) for _ in range(2))
        self.c_attn, self.attn_proj = Adapted(width, 3 * width), Adapted(width, width)
        self.c_fc, self.mlp_proj = Adapted(width, 4 * width), Adapted(4 * width, width)
        self.register_buffer("mask", torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool)))

    def forward(self, held: torch.Tensor) -> torch.Tensor:
        size, count, width = held.shape
        parts = self.c_attn(self.ln_1(held)).reshape(size, count, 3 * self.heads, -1).transpose(1, 2)
        query, key, value = parts.chunk(3, dim=1)
        scores = (query @ key.transpose(-1, -2)).float() / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~self.mask, -1e9)
        mixed = (scores.softmax(-1).to(value.dtype) @ value).transpose(1, 2).reshape(size, count, width)
        held = held + self.attn_proj(mixed)
        return held + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(held)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(words, width).requires_grad_(False)
        self.wpe = nn.Embedding(CONTEXT, width).requires_grad_(False)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width).requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        held = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            held = block(held)
        return (self.ln_f(held) @ self.wte.weight.T).float()


class NextToken:
    """The mean over an example's tokens; Opacus sets ``reduction`` to have one number an example."""

    reduction = "mean"

    def __call__(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        of_each = functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none").mean(1)
        return of_each if self.reduction == "none" else of_each.mean()


def step_of(way: str, arguments: argparse.Namespace) -> Callable[[], None]:
    torch.manual_seed(0)
    model: Any = Decoder(arguments.words, arguments.width, arguments.layers, arguments.heads)
    model = model.to(getattr(torch, arguments.dtype))
    tokens = torch.randint(min(arguments.words, 256), (arguments.batch, CONTEXT + 1))
    trained = [leaf for leaf in model.parameters() if leaf.requires_grad]
    optimizer: Any = torch.optim.Adam(trained, lr=1e-3)
    loss: Any = NextToken()
    private = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": arguments.batch}
    if way == "Opacus":
        model, optimizer = GradSampleModule(model), DPOptimizer(optimizer, **private)
    if way == "Opacus, ghost":
        model = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(optimizer, **private)
        loss = DPLossFastGradientClipping(model, optimizer, loss)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()

    return step


def grown(way: str, arguments: argparse.Namespace) -> int:
    """Returns bytes by which this process grew at most over two steps."""
    step = step_of(way, arguments)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = held("VmRSS")
    step(), step()
    return held("VmHWM") - before


def held(name: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(name))
    return 1024 * int(line.split()[1])


WAYS = "plain", "Opacus, ghost", "Opacus"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("words", "width", "layers", "heads", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    steps = {way: step_of(way, arguments) for way in WAYS}
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(arguments.turns + 1):
        for way, step in steps.items():
            start = time.process_time()
            step()
            if turn:
                taken[way].append(time.process_time() - start)
    context = multiprocessing.get_context("spawn")
    memory = {}
    for way in WAYS:
        with context.Pool(1) as pool:
            memory[way] = pool.apply(grown, (way, arguments))
    found = {"seconds": {way: min(times) for way, times in taken.items()}, "grown": memory}
    print(json.dumps(found | {"opacus": opacus.__version__, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
