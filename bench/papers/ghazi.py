"""Ghazi, Kamath, Kumar and Manurangsi: "Faster privacy accounting via evolving discretization"."""

from __future__ import annotations

import time

import numpy as np

from bench.papers.exhibits import Exhibit
from jaxacct import prv, rdp
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.plot import Chart, Series

NOISE, SAMPLING_RATE, DELTA = 1.0, 0.01, 1e-5
"""A common setting of DP-SGD; the reference's is not in its text."""

STEPS = 2 ** np.arange(4, 21, 2)
REPEATS = 5
TOLERANCE = 0.01

SIZES = [2**i for i in range(7, 14)]
"""Points of a step's mesh that are tried."""


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
        curves=(Series("relative_width", "prv accountant, default tolerance", (upper - lower) / upper),),
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
        curves=(Series("seconds", f"prv accountant, both bounds, best of {REPEATS}", np.array(seconds)),),
        notes=("Both directions and both bounds, on the machine that drew this.",),
    )


def buckets() -> Chart:
    """Points of a step's mesh that reach one relative tolerance against steps, and those of the circle of the sum."""
    mechanism = PoissonSubsampledGaussian(NOISE, SAMPLING_RATE)
    points, circle = np.full((2, len(STEPS)), np.nan)
    for i, steps in enumerate(STEPS):
        # The fewest powers of two that do; no point where none does.
        for size in SIZES:
            bounds, record = prv.epsilon(mechanism, int(steps), DELTA, points=size, return_diagnostics=True)
            if bounds.gap <= TOLERANCE:
                points[i], circle[i] = size, record.length
                break
    return Chart(
        title=f"Points of a mesh for a bracket of {TOLERANCE:.0%}, s = {NOISE:g}, q = {SAMPLING_RATE:g}",
        x_name="steps",
        x_label="steps",
        y_label="points",
        x=STEPS,
        log_x=True,
        log_y=True,
        curves=(
            Series("points_of_circle", "the circle that holds the sum, of which few frequencies are formed", circle),
            Series("points_gopi", "the count of Gopi et al., at the same error", _by_theorem(mechanism), "estimate"),
            Series("points_of_step", "a step's mesh", points),
        ),
        notes=(
            f"Of {SIZES[0]} to {SIZES[-1]} points the fewest whose certified bracket is within the tolerance.",
            "The theorem's count is 2 L / h, mesh h = e / sqrt(k log(12/d)/2) for an error e of epsilon and d of delta "
            "(the tolerance of epsilon, and 1 % of delta), L by Rényi divergences at d/4.",
        ),
    )


def _by_theorem(mechanism: PoissonSubsampledGaussian) -> np.ndarray:
    """Returns the numbers of points of Gopi et al. (2021), Theorem 5.5, for the tolerance."""
    small = DELTA / 100
    counts = []
    for steps in STEPS:
        error = TOLERANCE * float(rdp.epsilon(mechanism, int(steps), DELTA))
        reach = error + float(rdp.epsilon(mechanism, int(steps), small / 4))
        counts.append(2 * reach * np.sqrt(steps * np.log(12 / small) / 2) / error)
    return np.array(counts)


SOURCE = "Ghazi et al. (2022)"

EXHIBITS = (
    Exhibit("ghazi-width", f"{SOURCE}, delta estimates", "width of the certified bracket against steps", width),
    Exhibit("ghazi-buckets", f"{SOURCE}, numbers of buckets", "points of the mesh against steps, and Gopi's", buckets),
    Exhibit("ghazi-time", f"{SOURCE}, running times", "processor time against steps", run_time),
)
