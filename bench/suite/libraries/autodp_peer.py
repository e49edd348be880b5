"""autodp: Rényi divergences composed and converted, or the characteristic function integrated (``route="phi"``)."""

from __future__ import annotations

from typing import Any

from autodp import mechanism_zoo, transformer_zoo


def _gaussian(noise: float, rate: float) -> Any:
    gaussian = mechanism_zoo.GaussianMechanism(sigma=noise)
    if rate == 1:
        return gaussian
    gaussian.neighboring = "add_remove"
    return transformer_zoo.AmplificationBySampling(PoissonSampling=True)(gaussian, rate, improved_bound_flag=True)


def epsilon(setting: dict[str, Any]) -> dict[str, float]:
    if setting.get("route") == "phi":
        ((noise, rate, steps),) = setting["mechanisms"]
        run = {"prob": rate, "sigma": noise, "coeff": int(steps)}
        sides = [
            mechanism_zoo.SubsampleGaussianMechanism(run, phi_off=False, RDP_off=True, neighboring=side)
            for side in ("add_only", "remove_only")
        ]
        return {"estimate": max(float(side.get_approxDP(setting["delta"])) for side in sides)}
    mechanisms = [_gaussian(noise, rate) for noise, rate, _ in setting["mechanisms"]]
    composed = transformer_zoo.Composition()(mechanisms, [int(steps) for _, _, steps in setting["mechanisms"]])
    return {"upper": float(composed.get_approxDP(setting["delta"]))}


def curve(setting: dict[str, Any]) -> dict[str, Any]:
    return {
        "curves": [[float(_gaussian(*row).RenyiDP(order)) for order in setting["orders"]] for row in setting["rows"]]
    }
