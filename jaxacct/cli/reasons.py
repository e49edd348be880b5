"""Why no finite epsilon is known, or no delta below 1: always one of three reasons."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxacct.cli.runs import Run
from jaxacct.cli.shown import rounded


def why(run: Run, delta: float) -> str:
    """Returns why the upper bound on epsilon is inf at ``delta``; where that on delta is 1, ``delta`` is 1."""
    for one in _all(run.record):
        if min(np.min(one.get(name, 1.0)) for name in ("noise_multiplier", "scale")) == 0:
            return f"{one['type']} without noise gives away what it is applied to: give noise above 0"
    import jaxacct as ja

    sure = ja.delta(run.mechanism, run.steps, math.inf, relation=run.relation).lower
    if sure > (delta if delta < 1 else 0.0):
        return (
            f"with probability {rounded('lower', float(sure))} or more an output gives away who took part, which no "
            "epsilon covers: give a larger delta, or a mechanism that never fails"
        )
    return (
        "no accountant knows a bound: the losses are beyond what float64 and the meshes hold, or a Rényi curve alone "
        "is known and is infinite; epsilon may be finite, but nothing proves it: give more noise, or fewer steps"
    )


def _all(record: Any) -> list[dict[str, Any]]:
    """Returns the mechanisms of a record, those within others too."""
    if isinstance(record, list):
        return [inner for one in record for inner in _all(one)]
    return [record, *_all(record.get("mechanism", []))]
