"""Sweeps: privacy numbers of many configurations at once, over devices and jobs, streamed to disk.

* :mod:`.description` says what a sweep is of: a grid or rows, their values as text and files, how they are cut into
  boxes, and what is computed for one entry.
* :mod:`.compute` computes all entries by one compiled program, and by the mesh those that it leaves open.
* :mod:`.search` keeps results in memory or in a folder, puts shards together, answers what is asked of them, and writes
  files for others.
"""

from jaxacct.sweep.compute import delta, epsilon, noise_multiplier
from jaxacct.sweep.description import Accountant, Settings, grid, read_columns, read_values, rows
from jaxacct.sweep.result import Sweep, load, merge

__all__ = [
    "Accountant",
    "Settings",
    "Sweep",
    "delta",
    "epsilon",
    "grid",
    "load",
    "merge",
    "noise_multiplier",
    "read_columns",
    "read_values",
    "rows",
]
