"""Lécuyer: "Practical privacy filters and odometers with Rényi differential privacy"."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bench.papers.exhibits import Exhibit
from jaxacct import rdp
from jaxacct.certified import epsilon
from jaxacct.mechanisms import Gaussian, PoissonSubsampledGaussian
from jaxacct.odometers import RenyiOdometer, VilleOdometer
from jaxacct.plot import Chart, Curve

ORDERS = (*(2 + i / 4 for i in range(1, 33)), 16.0, 32.0)
"""The orders of the authors' code for these figures."""

DELTA, SAMPLING_RATE, STEPS = 1e-6, 512 / 50_000, 98
EPOCHS = 50
COUNT_NOISE = 100.0

LOWERED_AFTER = (5, 6, 8, 9, 11, 12, 13, 15, 16, 17)
"""Epochs, from 0, after which a recorded adaptive fine-tuning lowered its noise by 0.1, from 2 to 1."""


def _epochs(noises: np.ndarray, odometer: Any, *, counts: bool) -> np.ndarray:
    """Returns the odometer's readings after each epoch, 0 before the first."""
    readings = [0.0]
    for noise in noises:
        _, odometer = odometer.spend(PoissonSubsampledGaussian(float(noise), SAMPLING_RATE), STEPS)
        if counts:
            _, odometer = odometer.spend(Gaussian(COUNT_NOISE))
        readings.append(float(odometer.epsilon()))
    return np.array(readings)


def _odometers() -> dict[str, tuple[str, Any]]:
    default = math.log(2 * len(ORDERS) / DELTA)
    return {
        "text": ("doubling odometer, base as in the text", RenyiOdometer(DELTA, ORDERS)),
        "quarter": ("the same, a quarter of that base", RenyiOdometer(DELTA, ORDERS, base=default / 4)),
        "ville": ("mixture over Rényi orders", VilleOdometer(DELTA)),
    }


def filter_and_odometer() -> Chart:
    """What planning, a filter and odometers say over epochs of constant noise."""
    epochs = np.arange(EPOCHS + 1)
    step = PoissonSubsampledGaussian(1.0, SAMPLING_RATE)
    filtered = [
        float(rdp.epsilon(step, int(n) * STEPS, DELTA, orders=list(ORDERS), conversion="mironov")) for n in epochs
    ]
    exact = [float(epsilon(step, int(n) * STEPS, DELTA).upper) for n in epochs]
    noises = np.ones(EPOCHS)
    return Chart(
        title=f"Noise 1, batches of 512 of 50,000, delta = {DELTA:g}: filter and odometers",
        x_name="epoch",
        x_label="epochs of 98 steps",
        y_label="epsilon",
        x=epochs,
        curves=(
            Curve("filter", "Rényi filter filling up", np.array(filtered)),
            *(Curve(name, label, _epochs(noises, each, counts=False)) for name, (label, each) in _odometers().items()),
            Curve("planned", "length fixed in advance, certified", np.array(exact), "reference"),
        ),
        notes=("A filter's curve may not be stopped at: its budget at the planned end is what holds.",),
    )


def fine_tuning() -> Chart:
    """The same for a recorded fine-tuning that lowers its noise from 2 to 1."""
    epochs = np.arange(EPOCHS + 1)
    noises = 2 - 0.1 * np.array([sum(after < epoch for after in LOWERED_AFTER) for epoch in range(EPOCHS)])
    return Chart(
        title=f"Adaptive fine-tuning, noise 2 to 1, batches of 512 of 50,000, delta = {DELTA:g}",
        x_name="epoch",
        x_label="epochs of 98 steps",
        y_label="odometer's epsilon",
        x=epochs,
        curves=tuple(
            Curve(f"{name}_{kind}", f"{label}, {kind} noise", _epochs(each, odometer, counts=kind == "adaptive"), style)
            for name, (label, odometer) in _odometers().items()
            for kind, each, style in (("adaptive", noises, "bound"), ("constant", np.ones(EPOCHS), "reference"))
        ),
        notes=("The adaptive run pays for a count of correct examples with noise 100 after each epoch.",),
    )


SOURCE = "Lécuyer (2021)"

EXHIBITS = (
    Exhibit("lecuyer-odometer", f"{SOURCE}, figure 2(b)", "filter against odometers over epochs", filter_and_odometer),
    Exhibit("lecuyer-fine-tuning", f"{SOURCE}, figure 2(d)", "odometers of an adaptive fine-tuning", fine_tuning),
)
