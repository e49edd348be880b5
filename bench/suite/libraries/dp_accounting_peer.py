"""The peer dp-accounting: privacy-loss distributions by connecting the dots, and Rényi divergences."""

from __future__ import annotations

import logging
from typing import Any

import dp_accounting
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

logging.disable(logging.CRITICAL)


def _step(noise: float, rate: float) -> Any:
    gaussian = dp_accounting.GaussianDpEvent(noise)
    return gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)


def _loss(mechanisms: list[list[float]], interval: float, pessimistic: bool) -> Any:
    total = None
    for noise, rate, steps in mechanisms:
        distribution = privacy_loss_distribution.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=interval,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        ).self_compose(int(steps))
        total = distribution if total is None else total.compose(distribution)
    return total


def epsilon(setting: dict[str, Any]) -> dict[str, float]:
    if setting.get("route") == "renyi":
        accountant = RdpAccountant()
        for noise, rate, steps in setting["mechanisms"]:
            accountant.compose(_step(noise, rate), int(steps))
        return {"upper": float(accountant.get_epsilon(setting["delta"]))}
    pessimistic = setting.get("pessimistic", True)
    total = _loss(setting["mechanisms"], setting["interval"], pessimistic)
    return {"upper" if pessimistic else "lower": float(total.get_epsilon_for_delta(setting["delta"]))}


def batch(setting: dict[str, Any]) -> dict[str, Any]:
    delta, interval = setting["delta"], setting["interval"]
    losses = (_loss([row], interval, True) for row in setting["rows"])
    return {"uppers": [float(loss.get_epsilon_for_delta(delta)) for loss in losses]}


def curve(setting: dict[str, Any]) -> dict[str, Any]:
    """Asks for the accumulated curve, which is offered under a private name only."""
    curves = [RdpAccountant(setting["orders"]).compose(_step(*row))._rdp for row in setting["rows"]]
    return {"curves": [[float(value) for value in row] for row in curves]}


def noise(setting: dict[str, Any]) -> dict[str, Any]:
    def least(epsilon: float, rate: float, steps: float) -> float:
        def event(noise: float) -> Any:
            return dp_accounting.SelfComposedDpEvent(_step(noise, rate), int(steps))

        return dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, epsilon, setting["delta"], tol=setting["tol"])

    return {"noises": [float(least(*row)) for row in setting["targets"]]}
