"""The peer jax-privacy: dp-accounting behind its own interface, and its private step."""

from __future__ import annotations

from typing import Any

from jax_privacy.accounting import accountants, analysis

EXAMPLES = 10**7
"""Of the imagined data set: it asks for a batch size, not for a rate."""


def epsilon(setting: dict[str, Any]) -> dict[str, float]:
    ((noise, rate, steps),) = setting["mechanisms"]
    if round(rate * EXAMPLES) != rate * EXAMPLES:
        raise ValueError(f"sampling rate {rate} is no whole batch of {EXAMPLES} examples")
    if setting.get("route") == "renyi":
        config = accountants.RdpAccountantConfig()
    else:
        config = accountants.PldAccountantConfig(value_discretization_interval=setting["interval"])
    parameters = analysis.DpParams(
        noise_multipliers=noise, num_samples=EXAMPLES, delta=setting["delta"], batch_size=round(rate * EXAMPLES)
    )
    accountant = analysis.DpsgdTrainingAccountant(dp_accountant_config=config)
    return {"upper": float(accountant.compute_epsilon(int(steps), parameters))}


def step(setting: dict[str, Any]) -> dict[str, Any]:
    """As :mod:`bench.studies.train_step` runs it, which needs jaxacct's requirements in the same environment."""
    from bench.suite.libraries import training

    return training.step(setting.get("kind", "jax-privacy"), setting)
