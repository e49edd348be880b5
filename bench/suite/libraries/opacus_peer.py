"""Opacus: its Rényi and PRV accountants, and a private step of its optimizer on one batch. Needs PyTorch."""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers import DPOptimizer

warnings.simplefilter("ignore")


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
        # Processor time, as bench.train_step takes it.
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return statistics.median(times)


def step(setting: dict[str, Any]) -> dict[str, float]:
    """The MLP of :mod:`bench.train_step`: 784-128-10."""
    torch.manual_seed(0)
    images, labels = torch.rand(setting["batch"], 784), torch.randint(0, 10, (setting["batch"],))
    loss = torch.nn.CrossEntropyLoss()

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def stepper(model: torch.nn.Module, optimizer: Any) -> Any:
        def one() -> None:
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()

        return one

    plain = network()
    private = GradSampleModule(network())
    optimizer = DPOptimizer(
        torch.optim.SGD(private.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=setting["batch"],
    )  # fmt: skip
    budget = setting["seconds"] / 2
    plain_seconds = _seconds(stepper(plain, torch.optim.SGD(plain.parameters(), lr=0.1)), budget)
    seconds = _seconds(stepper(private, optimizer), budget)
    return {"seconds": seconds, "plain_seconds": plain_seconds, "ratio": seconds / plain_seconds}
