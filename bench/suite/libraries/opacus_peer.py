"""Opacus: its Rényi and PRV accountants, and a private step of its optimizer on one batch. Needs PyTorch."""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer

warnings.simplefilter("ignore")

VOCABULARY, WORDS, WIDTH = 1000, 32, 128
"""As in :mod:`bench.studies.networks`, which needs Flax."""


def epsilon(setting: dict[str, Any]) -> dict[str, float]:
    by_renyi = setting.get("route") == "renyi"
    accountant = RDPAccountant() if by_renyi else PRVAccountant()
    # A step at a time is what its interface offers; the history that this builds is set at once.
    accountant.history = [(noise, rate, int(steps)) for noise, rate, steps in setting["mechanisms"]]
    options = {} if by_renyi else {"eps_error": setting["eps_error"]}
    return {"upper": float(accountant.get_epsilon(setting["delta"], **options))}


def noise(setting: dict[str, Any]) -> dict[str, Any]:
    found = [
        get_noise_multiplier(
            target_epsilon=epsilon, target_delta=setting["delta"], sample_rate=rate, steps=int(steps),
            accountant="rdp", epsilon_tolerance=1e-3,
        )
        for epsilon, rate, steps in setting["targets"]
    ]  # fmt: skip
    return {"noises": [float(value) for value in found]}


def _seconds(step: Any, budget: float) -> float:
    step()
    times: list[float] = []
    end = time.perf_counter() + budget
    while not times or time.perf_counter() < end:
        # Processor time, as bench.studies.train_step takes it.
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return statistics.median(times)


class _Flat(torch.nn.Module):
    """The last step of a recurrent layer."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.layer = DPLSTM(inside, outside, batch_first=True)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows)[0][:, -1]


class _Residual(torch.nn.Module):
    def __init__(self, inside: torch.nn.Module, shortcut: torch.nn.Module, after: torch.nn.Module) -> None:
        super().__init__()
        self.inside, self.shortcut, self.after = inside, shortcut, after

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.after(self.inside(values) + self.shortcut(values))


class _Attention(torch.nn.Module):
    """Of dense layers, for Opacus takes the first axis of its own attention's layers for the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        heads = [part(values).unflatten(-1, (4, -1)).transpose(1, 2) for part in self.parts[:3]]
        found = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.parts[3](found.transpose(1, 2).flatten(-2))


class _Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(WORDS, WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.table(words) + self.places(torch.arange(WORDS).expand(len(words), -1))


def _residual(inside: int, outside: int, stride: int) -> torch.nn.Module:
    nn = torch.nn
    parts = [
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.GroupNorm(4, outside), nn.ReLU(),
        nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.GroupNorm(4, outside),
    ]  # fmt: skip
    shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if stride > 1 else nn.Identity()
    return _Residual(nn.Sequential(*parts), shortcut, nn.ReLU())


def _network(name: str) -> torch.nn.Module:
    """The networks of :mod:`bench.studies.networks`; a transformer's output has weights of its own, as Opacus asks."""
    nn = torch.nn
    if name in ("MLP", "MLP 670k"):
        widths = [784, *([128] if name == "MLP" else [512, 512])]
        hidden = [part for pair in itertools.pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], 10))
    if name == "CNN":
        return nn.Sequential(
            nn.ZeroPad2d(3), nn.Conv2d(1, 16, 8, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
        )  # fmt: skip
    if name == "ResNet":
        stem = (nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.GroupNorm(4, 16), nn.ReLU())
        blocks = (_residual(16, 16, 1), _residual(16, 32, 2), _residual(32, 64, 2))
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    if name == "LSTM":
        return nn.Sequential(_Flat(64, WIDTH), nn.Linear(WIDTH, 10))
    blocks = []
    for _ in range(2):
        dense = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        for parts in ((nn.LayerNorm(WIDTH), _Attention()), dense):
            blocks.append(_Residual(nn.Sequential(*parts), nn.Identity(), nn.Identity()))
    return nn.Sequential(_Words(), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))


def _batch(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "transformer":
        text = torch.randint(0, VOCABULARY, (size, WORDS + 1))
        return text[:, :-1], text[:, 1:]
    shape = (WORDS, 64) if name == "LSTM" else (1, 28, 28)
    return torch.rand(size, *shape), torch.randint(0, 10, (size,))


def step(setting: dict[str, Any]) -> dict[str, float]:
    """A network of :mod:`bench.studies.networks`, on a full batch."""
    torch.manual_seed(0)
    name = setting["model"]
    inputs, labels = _batch(name, setting["batch"])
    entropy = torch.nn.CrossEntropyLoss()

    def stepper(model: torch.nn.Module, optimizer: Any) -> Any:
        def one() -> None:
            optimizer.zero_grad()
            outputs = model(inputs)
            if name == "transformer":
                # The mean over an example's words, and over examples: as the hooks take the loss to be.
                entropy(outputs.transpose(1, 2), labels).backward()
            else:
                entropy(outputs, labels).backward()
            optimizer.step()

        return one

    plain = _network(name)
    private = GradSampleModule(_network(name))
    optimizer = DPOptimizer(
        torch.optim.SGD(private.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=setting["batch"],
    )  # fmt: skip
    budget = setting["seconds"] / 2
    plain_seconds = _seconds(stepper(plain, torch.optim.SGD(plain.parameters(), lr=0.1)), budget)
    seconds = _seconds(stepper(private, optimizer), budget)
    return {"seconds": seconds, "plain_seconds": plain_seconds, "ratio": seconds / plain_seconds}
