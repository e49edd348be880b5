"""The peer prv-accountant: privacy random variables by FFT. Of the relation, the removal of an example only."""

from __future__ import annotations

from typing import Any

from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant


def epsilon(setting: dict[str, Any]) -> dict[str, float]:
    mechanisms = [
        GaussianMechanism(noise)
        if rate == 1
        else PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=noise)
        for noise, rate, _ in setting["mechanisms"]
    ]
    steps = [int(k) for _, _, k in setting["mechanisms"]]
    accountant = PRVAccountant(
        prvs=mechanisms,
        max_self_compositions=steps,
        eps_error=setting["eps_error"],
        delta_error=setting.get("delta_error", setting["delta"] / 1000),
    )
    lower, estimate, upper = accountant.compute_epsilon(setting["delta"], steps)
    return {"lower": float(lower), "estimate": float(estimate), "upper": float(upper)}


def batch(setting: dict[str, Any]) -> dict[str, Any]:
    return {"uppers": [epsilon(setting | {"mechanisms": [row]})["upper"] for row in setting["rows"]]}
