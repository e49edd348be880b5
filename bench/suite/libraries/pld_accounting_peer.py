"""PLD_accounting: subsampling applied to a privacy-loss distribution, which dp-accounting then composes."""

from __future__ import annotations

from typing import Any

from dp_accounting.pld import privacy_loss_distribution
from PLD_accounting import subsample_pld


def epsilon(setting: dict[str, Any]) -> dict[str, float]:
    total = None
    for noise, rate, steps in setting["mechanisms"]:
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            noise, value_discretization_interval=setting["interval"], use_connect_dots=True
        )
        if rate < 1:
            loss = subsample_pld(pld=loss, sampling_probability=rate)
        loss = loss.self_compose(int(steps))
        total = loss if total is None else total.compose(loss)
    return {"upper": float(total.get_epsilon_for_delta(setting["delta"]))}
