"""Ghazi, Kamath, Kumar and Manurangsi: "Faster privacy accounting via evolving discretization"."""

from __future__ import annotations

import time

import numpy as np

from bench.papers.exhibits import Exhibit
from jaxacct import prv
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.plot import Chart, Curve

NOISE, SAMPLING_RATE, DELTA = 1.0, 0.01, 1e-5
"""A common setting of DP-SGD; the reference's is not in its text."""

STEPS = 2 ** np.arange(4, 21, 2)
REPEATS = 5


def _brackets() -> list:
    mechanism = PoissonSubsampledGaussian(NOISE, SAMPLING_RATE)
    return [prv.epsilon(mechanism, int(steps), DELTA) for steps in STEPS]


def width() -> Chart:
    """Certified bracket of epsilon against steps."""
    bounds = _brackets()
    lower, upper = (np.array([float(getattr(each, end)) for each in bounds]) for end in ("lower", "upper"))
    return Chart(
        title=f"Relative width of the certified bracket, s = {NOISE:g}, q = {SAMPLING_RATE:g}, delta = {DELTA:g}",
        x_name="steps",
        x_label="steps",
        y_label="(upper - lower) / upper",
        x=STEPS,
        log_x=True,
        log_y=True,
        curves=(Curve("relative_width", "prv accountant, default tolerance", (upper - lower) / upper),),
        notes=("The tolerance asked for is 1e-3 of epsilon, whatever the number of steps.",),
    )


def run_time() -> Chart:
    """Time of a certified bracket of epsilon against steps, on this machine, compiled beforehand."""
    mechanism = PoissonSubsampledGaussian(NOISE, SAMPLING_RATE)
    _brackets()  # compiles
    seconds = []
    for steps in STEPS:
        times = []
        for _ in range(REPEATS):
            start = time.process_time()
            prv.epsilon(mechanism, int(steps), DELTA)
            times.append(time.process_time() - start)
        seconds.append(min(times))
    return Chart(
        title=f"Processor time of one certified epsilon, s = {NOISE:g}, q = {SAMPLING_RATE:g}, delta = {DELTA:g}",
        x_name="steps",
        x_label="steps",
        y_label="seconds of processor time",
        x=STEPS,
        log_x=True,
        curves=(Curve("seconds", f"prv accountant, both bounds, best of {REPEATS}", np.array(seconds)),),
        notes=("Both directions and both bounds, on the machine that drew this.",),
    )


SOURCE = "Ghazi et al. (2022)"

EXHIBITS = (
    Exhibit("ghazi-width", f"{SOURCE}, delta estimates", "width of the certified bracket against steps", width),
    Exhibit("ghazi-time", f"{SOURCE}, running times", "processor time against steps", run_time),
)
