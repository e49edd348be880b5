"""The peer autodp: Rényi divergences, converted, or the characteristic function, integrated (``route="phi"``)."""

from __future__ import annotations

from typing import Any

from autodp import mechanism_zoo, transformer_zoo


def _gaussian(noise: float, rate: float) -> Any:
    gaussian = mechanism_zoo.GaussianMechanism(sigma=noise)
    if rate == 1:
        return gaussian
    gaussian.neighboring = "add_remove"
    return transformer_zoo.AmplificationBySampling(PoissonSampling=True)(gaussian, rate, improved_bound_flag=True)


def _by_phi(setting: dict[str, Any], side: str) -> float:
    """Returns the epsilon of one direction of the relation; its quadrature needs a SciPy before 1.14."""
    ((noise, rate, steps),) = setting["mechanisms"]
    gaussian = mechanism_zoo.GaussianMechanism(noise, phi_off=False, RDP_off=True)
    sampled = transformer_zoo.AmplificationBySampling_pld(PoissonSampling=True, neighboring=side)(gaussian, rate)
    return float(transformer_zoo.ComposeAFA()([sampled], [int(steps)]).get_approxDP(setting["delta"]))


def epsilon(setting: dict[str, Any]) -> dict[str, float]:
    if setting.get("route") == "phi":
        return {"estimate": max(_by_phi(setting, side) for side in ("add_only", "remove_only"))}
    mechanisms = [_gaussian(noise, rate) for noise, rate, _ in setting["mechanisms"]]
    composed = transformer_zoo.Composition()(mechanisms, [int(steps) for _, _, steps in setting["mechanisms"]])
    return {"upper": float(composed.get_approxDP(setting["delta"]))}


def curve(setting: dict[str, Any]) -> dict[str, Any]:
    return {
        "curves": [[float(_gaussian(*row).RenyiDP(order)) for order in setting["orders"]] for row in setting["rows"]]
    }
