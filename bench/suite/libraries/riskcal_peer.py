"""The peer riskcal: dp-accounting's distributions behind an accountant, and calibration to a budget or an attack."""

from __future__ import annotations

from typing import Any

from riskcal.accountants.ctd import CTDAccountant


def epsilon(setting: dict[str, Any]) -> dict[str, float]:
    accountant = CTDAccountant()
    # A step at a time is what its interface offers; the history that this builds is set at once.
    accountant.history = [(noise, rate, int(steps)) for noise, rate, steps in setting["mechanisms"]]
    return {"upper": float(accountant.get_epsilon(delta=setting["delta"], grid_step=setting["interval"]))}


def noise(setting: dict[str, Any]) -> dict[str, Any]:
    from riskcal.calibration.blackbox import find_noise_multiplier_for_epsilon_delta

    found = [
        find_noise_multiplier_for_epsilon_delta(
            CTDAccountant, sample_rate=rate, num_steps=int(steps), epsilon=epsilon, delta=setting["delta"],
            eps_error=1e-3, mu_error=setting["tol"],
        )
        for epsilon, rate, steps in setting["targets"]
    ]  # fmt: skip
    return {"noises": [float(value) for value in found]}
