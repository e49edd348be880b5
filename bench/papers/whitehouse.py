"""Whitehouse, Ramdas, Rogers and Wu: "Improved privacy filters and odometers: time-uniform bounds"."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bench.papers.exhibits import Exhibit
from jaxacct import convert
from jaxacct.mechanisms import PureDP
from jaxacct.odometers import (
    FilterOdometer,
    MixtureOdometer,
    RenyiOdometer,
    RogersOdometer,
    StitchedOdometer,
    VilleOdometer,
)
from jaxacct.plot import Chart, Series

EPSILON, ALGORITHMS = 0.1, 100
DELTA, EXAMPLES = 1e-6, 1000
"""Not in the text of the reference; the original odometer depends on the size of a data set."""


def comparison() -> Chart:
    """Odometers on algorithms of (0.1, 0)-DP."""
    runs = np.arange(1, ALGORITHMS + 1)

    def readings(odometer) -> np.ndarray:
        def after(steps):
            return odometer.spend(PureDP(EPSILON), steps)[1].epsilon()

        return np.asarray(jax.jit(jax.vmap(after))(jnp.asarray(runs)))

    planned = [float(convert.zcdp_to_epsilon(n * float(convert.pure_to_zcdp(EPSILON)), DELTA)) for n in runs]
    odometers = {
        "rogers": ("original (Rogers et al.)", RogersOdometer(DELTA, EXAMPLES)),
        "stitched": ("stitched", StitchedOdometer(DELTA)),
        "mixture": ("conjugate mixture", MixtureOdometer(DELTA)),
        "filter": ("filter odometer, tightest at its end", FilterOdometer(DELTA, 5.76)),
        "lecuyer": ("doubling Rényi filters (Lécuyer)", RenyiOdometer(DELTA)),
        "ville": ("mixture over Rényi orders", VilleOdometer(DELTA)),
    }
    return Chart(
        title=f"Odometers on algorithms of ({EPSILON:g}, 0)-DP, delta = {DELTA:g}",
        x_name="algorithms",
        x_label="algorithms composed",
        y_label="bound on the privacy loss",
        x=runs,
        curves=(
            *(Series(name, label, readings(odometer)) for name, (label, odometer) in odometers.items()),
            Series("basic", "sum of the epsilons", EPSILON * runs, "reference"),
            Series("planned", "composition fixed in advance", np.array(planned), "reference"),
        ),
        notes=(
            "The first six hold at all times at once and for adaptively chosen parameters, the drift of half the sum "
            "of squares included; the last holds at one time that is fixed in advance.",
        ),
    )


EXHIBITS = (
    Exhibit(
        "whitehouse-odometers",
        "Whitehouse et al., odometer comparison",
        "odometers on 100 algorithms of (0.1, 0)-DP",
        comparison,
    ),
)
