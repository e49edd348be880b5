"""The interactive page: a certified sweep in one HTML file, which answers every setting by a cell of its grid.

The answers between grid points rest on this theorem: epsilon of a Poisson-subsampled Gaussian falls in the noise and in
delta, and grows in the sampling rate and in the steps, each with the other three fixed.

* Noise: N(0, s'^2) is N(0, s^2) and independent noise on top for s' >= s: post-processing.
* Rate: for q <= q' the pair at q is the mixture, q/q' to 1 - q/q', of the pair at q' and of (Q, Q), which reveals
  nothing. The hockey-stick divergence is convex in the pair, so the pair at q' dominates, and composition keeps
  domination (Zhu, Dong and Wang 2022, Theorem 10).
* Steps: whoever sees more results may ignore some. Delta: by definition.

At fixed *epochs* epsilon need not grow in the rate, since there are fewer steps; so cells are of steps, not of epochs.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Sequence
from typing import Any

import jax  # noqa: F401  (whole, before jaxtyping asks for a part of it)
import numpy as np
from jaxtyping import ArrayLike

from jaxacct import sweep, validation
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.outward import steps_of

LEAST = 1e-4
"""Least epsilon shown; smaller ones are shown as this one, which is an upper bound, too."""

NOISE = np.geomspace(0.5, 8.0, 25).round(3)
"""Default noise multipliers of the grid."""
RATES, EPOCHS = (
    np.array([*(float(f"{digit}e{power}") for power in range(low, high) for digit in (1, 1.5, 2, 3, 5, 7)), 10.0**high])
    for low, high in ((-4, -1), (0, 2))
)
"""Default sampling rates and epochs of the grid."""


def page(
    *,
    noise_multipliers: ArrayLike = NOISE,
    sampling_rates: ArrayLike = RATES,
    epochs: ArrayLike = EPOCHS,
    deltas: ArrayLike | Sequence[float] = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4),
    relation: Relation = "add_or_remove",
    mode: str = "certified",
    show_progress: bool = False,
) -> str:
    """Returns an HTML page with sliders for noise, rate, epochs and delta of DP-SGD: one file, no network, no server.

    Args:
        noise_multipliers (n,): at least 0; the grid's axes are sorted. More values make cells smaller, and the page
            larger: six bytes for each combination.
        sampling_rates (q,): of Poisson sampling, in (0, 1].
        epochs (e,): positive; the steps are epochs / rate, rounded up.
        deltas (d,): in (0, 1).
        relation: neighbouring relation.
        mode: as for :func:`jaxacct.sweep.epsilon`: "saddlepoint" leaves out entries that only the mesh can answer.
        show_progress: whether to show a bar on standard error.

    Formal guarantee: every epsilon that the page shows is an upper bound, and every bracket holds the truth. On the
    grid they are the certified sweep's, rounded outward to a tenth of a percent. Between its points the upper bound is
    that of the enclosing cell's corner of less noise, higher rate, more steps and smaller delta, the lower one that of
    the opposite corner: epsilon is monotone in each, as the module proves; nothing is interpolated. Beyond the
    grid it is inf, or 0 from below.

    Raises ValueError where a setting is out of range.

    >>> text = page(noise_multipliers=[1.0, 2.0], sampling_rates=[0.01], epochs=[1, 10], deltas=[1e-5])
    >>> data = data_of(text)
    >>> data["steps"], bool(10 ** (data["upper"][1] / data["unit"]) < 2.2)
    ([[100, 1000]], True)
    """
    axes = [np.unique(np.asarray(each, np.float64)) for each in (noise_multipliers, sampling_rates, epochs, deltas)]
    noise, rates, many, small = axes
    validation.check_sampling_rate(rates, "sampling_rates")
    validation.check_positive(many, "epochs")
    steps = np.vectorize(steps_of, otypes=[float])(many, rates[:, None])
    shape = tuple(map(len, axes))
    columns = np.broadcast_arrays(
        noise[:, None, None, None], rates[:, None, None], steps[:, :, None], small, np.empty(shape)
    )
    names = ("noise_multiplier", "sampling_rate", "steps", "delta")
    over: dict[str, Any] = {name: column.ravel() for name, column in zip(names, columns, strict=False)}
    settings = sweep.rows(**over)
    found = sweep.epsilon(settings, mode=mode, relation=relation, show_progress=show_progress)
    # The page has whole multiples of 1/2000 of log10 epsilon, a tenth of a percent. Upper bounds are rounded up to one,
    # so a coarser unit costs tightness alone.
    unit = 2000
    # The millionth of a unit covers the rounding of the logarithm here, and of the power on the page. A lower bound is
    # implied by the upper one where the bracket is within about a unit; other entries are listed as without one.
    upper = np.ceil(unit * np.log10(np.maximum(found.upper, LEAST)) + 1e-6)
    is_tight = (upper > unit * np.log10(LEAST) + 1) & (found.lower >= 10 ** ((upper - 1.01) / unit))
    data = {
        **{name: axis.tolist() for name, axis in zip(("noise", "rate", "epochs", "delta"), axes, strict=True)},
        "steps": steps.astype(int).tolist(),
        "unit": unit,
        "upper": [int(value) if np.isfinite(value) else None for value in upper],
        "without_lower": np.flatnonzero(~is_tight & np.isfinite(upper)).tolist(),
        "relation": relation.replace("_", " "),
    }
    return page_of(data)


BEGIN, END = '<script type="application/json" id="data">', "</script><!-- data -->"
"""Marks around the page's data."""


def page_of(data: dict[str, Any]) -> str:
    """Returns the page with the given data."""
    template = (importlib.resources.files("jaxacct.plot") / "explorer.html").read_text(encoding="utf-8")
    return template.replace(f"{BEGIN}{END}", f"{BEGIN}{json.dumps(data, separators=(',', ':'))}{END}")


def data_of(page: str) -> dict[str, Any]:
    """Returns the data that a page holds."""
    return json.loads(page.split(BEGIN)[1].split(END)[0])
