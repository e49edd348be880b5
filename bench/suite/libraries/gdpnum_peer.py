"""The peer gdpnum: mu of Gaussian differential privacy from dp-accounting's distributions."""

from __future__ import annotations

from typing import Any

from gdpnum import CTDAccountant


def _accountant(setting: dict[str, Any]) -> CTDAccountant:
    accountant = CTDAccountant()
    # A step at a time is what its interface offers; the history that this builds is set at once.
    accountant.history = [(noise, rate, int(steps)) for noise, rate, steps in setting["mechanisms"]]
    return accountant


def epsilon(setting: dict[str, Any]) -> dict[str, float]:
    return {"upper": float(_accountant(setting).get_epsilon(delta=setting["delta"], grid_step=setting["interval"]))}


def mu(setting: dict[str, Any]) -> dict[str, float]:
    found, regret = _accountant(setting).get_mu_and_regret(grid_step=setting["interval"])
    return {"upper": float(found), "regret": float(regret)}
