"""This library itself, and the certified brackets that every answer is judged by."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct as ja
from jaxacct.prv import ToleranceWarning

warnings.simplefilter("ignore", ToleranceWarning)

COMPILED = {"compiles": True}
"""The first call compiles: it is no measure of the ones after it, however long it took."""


def _composition(rows: list[list[float]]) -> tuple[Any, Any]:
    noise, rate, steps = np.asarray(rows, np.float64).T
    if len(rows) == 1:
        noise, rate, steps = float(noise[0]), float(rate[0]), float(steps[0])
    mechanism = ja.Gaussian(noise) if np.all(rate == 1) else ja.PoissonSubsampledGaussian(noise, rate)
    return mechanism, steps


def epsilon(setting: dict[str, Any]) -> dict[str, Any]:
    mechanism, steps = _composition(setting["mechanisms"])
    delta, route = setting["delta"], setting.get("route", "best")
    if route == "renyi":
        return {"upper": float(ja.rdp.epsilon(mechanism, steps, delta))} | COMPILED
    if route == "clt":
        return {"estimate": float(ja.gdp.epsilon(mechanism, steps, delta))} | COMPILED
    options = {name: setting[name] for name in ("points", "tolerance") if name in setting}
    call = {"best": ja.epsilon, "mesh": ja.prv.epsilon, "exact": ja.saddlepoint.epsilon}[route]
    bounds = call(mechanism, steps, delta, **options)
    return {
        "lower": float(bounds.lower),
        "estimate": float(bounds.estimate),
        "upper": float(bounds.upper),
        "converged": bool(bounds.converged),
    } | COMPILED


def reference(setting: dict[str, Any]) -> dict[str, Any]:
    """Returns a bracket that the referee proves; where that cannot decide, what two accountants prove together."""
    if not setting["points"]:
        return epsilon({"mechanisms": setting["mechanisms"], "delta": setting["delta"]})
    mechanism, steps = _composition(setting["mechanisms"])
    found = ja.epsilon(mechanism, steps, setting["delta"])
    bracket = float(found.lower), float(found.upper)
    verdict = ja.verify.epsilon(mechanism, steps, setting["delta"], bracket)
    if verdict.status == "REFUTED":
        raise AssertionError(f"the referee refutes {bracket}: {verdict}")
    if verdict.status == "PROVED":
        return {"lower": bracket[0], "upper": bracket[1]} | COMPILED
    # They are independent, and must not disagree.
    exact = ja.saddlepoint.epsilon(mechanism, steps, setting["delta"])
    mesh = ja.prv.epsilon(mechanism, steps, setting["delta"], points=setting["points"])
    lower, upper = max(float(exact.lower), float(mesh.lower)), min(float(exact.upper), float(mesh.upper))
    if not lower <= upper:
        raise AssertionError(f"the exact accountant's bracket {exact} and the mesh's {mesh} do not meet")
    return {"lower": lower, "upper": upper} | COMPILED


@functools.cache
def _vmapped(precision: str) -> Any:
    def one(noise: Any, rate: Any, steps: Any, delta: Any) -> Any:
        mechanism = ja.PoissonSubsampledGaussian(noise, rate)
        return ja.saddlepoint.epsilon(mechanism, steps, delta, arithmetic=precision)

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None)))


def batch(setting: dict[str, Any]) -> dict[str, Any]:
    """One vmapped call; a row that has not converged has an infinite upper bound and is counted as such."""
    precision = setting.get("precision", "float64")
    with jax.enable_x64(precision == "float64"):
        columns = [jnp.asarray(column) for column in np.asarray(setting["rows"], np.float64).T]
        found = jax.tree.map(np.asarray, _vmapped(precision)(*columns, setting["delta"]))
    answers = {"estimates": found.estimate.tolist()}
    if precision == "float64":
        answers["uppers"] = found.upper.tolist()
    return answers | {"converged_share": float(np.mean(found.converged)), "precision": precision} | COMPILED


@functools.cache
def _curves(orders: tuple[float, ...]) -> Any:
    return jax.jit(jax.vmap(lambda noise, rate: ja.rdp.curve(ja.PoissonSubsampledGaussian(noise, rate), orders)))


def curve(setting: dict[str, Any]) -> dict[str, Any]:
    with jax.enable_x64(True):
        columns = [jnp.asarray(column) for column in np.asarray(setting["rows"], np.float64).T]
        return {"curves": np.asarray(_curves(tuple(setting["orders"]))(*columns)).tolist()} | COMPILED


@functools.cache
def _calibrated(tolerance: float) -> Any:
    def one(target: Any, delta: Any) -> Any:
        return ja.calibrate.noise_multiplier(target[0], delta, target[1], target[2], tolerance=tolerance)

    return jax.jit(jax.vmap(one, in_axes=(0, None)))


def noise(setting: dict[str, Any]) -> dict[str, Any]:
    """One vmapped call, or a plain one for a single target."""
    if len(setting["targets"]) == 1:
        ((budget, rate, steps),) = setting["targets"]
        alone = ja.calibrate.noise_multiplier(budget, setting["delta"], rate, steps, tolerance=setting["tol"])
        return {"noises": [float(alone.value)]} | COMPILED
    with jax.enable_x64(True):
        found = _calibrated(setting["tol"])(jnp.asarray(np.asarray(setting["targets"], np.float64)), setting["delta"])
    return {"noises": np.asarray(found.value).tolist()} | COMPILED


def least_noise(setting: dict[str, Any]) -> dict[str, Any]:
    """Returns brackets on the least noise: below, epsilon is certainly above the budget; above, certainly within."""

    def bracket(budget: float, rate: float, steps: float) -> list[float]:
        def bounds(noise: float) -> Any:
            return ja.epsilon(ja.PoissonSubsampledGaussian(noise, rate), steps, setting["delta"])

        low, high = 0.1, 1.0
        while bounds(high).upper > budget:
            low, high = high, 2 * high
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            found = bounds(middle)
            if found.lower > budget:
                low = middle
            elif found.upper <= budget:
                high = middle
            else:
                break
        return [low, high]

    return {"brackets": [bracket(*row) for row in setting["targets"]]} | COMPILED


def mu(setting: dict[str, Any]) -> dict[str, Any]:
    found = ja.gdp.certified_mu(*_composition(setting["mechanisms"])).mu
    return {"lower": float(found.lower), "upper": float(found.upper)} | COMPILED


def step(setting: dict[str, Any]) -> dict[str, Any]:
    from bench.suite.libraries import training

    return training.step(setting.get("kind", "ghost"), setting)


def in_loop(setting: dict[str, Any]) -> dict[str, Any]:
    from bench.studies import in_loop as trainers

    found = trainers.measured(setting["seconds"])
    free = found["seconds"].pop(trainers.FREE)
    return {"seconds": free, "added": {name: found["added"][name] for name in found["seconds"]}}


def roofline(setting: dict[str, Any]) -> dict[str, Any]:
    from bench.suite import roofline as kernels

    return kernels.measured(setting["kernel"], setting["size"])
