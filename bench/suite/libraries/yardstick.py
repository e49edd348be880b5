"""A program in C that does the arithmetic of the exact accountant, without its certificates: what one core allows.

``JAXACCT_BENCH_YARDSTICK`` names its source. Compiled, and called with a number of settings, it reads ``rows.bin``,
rows of (noise multiplier, sampling rate, steps) as float64, in the folder that it is started in; answers for delta 1e-5
to ``out.bin``, epsilon by removal and by addition; and prints the microseconds that a setting took.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "JAXACCT_BENCH_YARDSTICK"

if VARIABLE not in os.environ:
    raise ImportError(f"{VARIABLE} names no source in C.")

SOURCE = Path(os.environ[VARIABLE]).resolve()
DELTA = 1e-5
__version__ = SOURCE.stem


def batch(setting: dict[str, Any]) -> dict[str, Any]:
    if setting["delta"] != DELTA:
        raise ValueError(f"delta={setting['delta']}: the yardstick answers for {DELTA}.")
    rows = np.asarray(setting["rows"], np.float64)
    with tempfile.TemporaryDirectory(prefix="yardstick-") as folder:
        subprocess.run(["cc", "-O3", "-march=native", "-ffast-math", SOURCE, "-o", "program", "-lm"],
                       cwd=folder, check=True)  # fmt: skip
        rows.tofile(Path(folder, "rows.bin"))
        said = subprocess.run(["./program", f"{len(rows)}"], cwd=folder, check=True, capture_output=True, text=True)
        answers = np.fromfile(Path(folder, "out.bin")).reshape(-1, 2)
    found = re.search(r"us/setting ([\d.]+)", said.stdout)
    if found is None:
        raise ValueError(f"the yardstick does not say what a setting took: {said.stdout[:200]}")
    return {"estimates": answers.max(axis=1).tolist(), "seconds": float(found[1]) * 1e-6 * len(rows)}
