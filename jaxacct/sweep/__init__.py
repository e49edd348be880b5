"""Sweeps: privacy numbers of many configurations at once, over devices and jobs, streamed to disk.

* :mod:`.description`: the settings of a sweep as a grid or rows, from values, text and files; their cut into boxes; and
  the quantity that is computed for one entry.
* :mod:`.compute`: the computation of all entries by one compiled program, then by atoms for those that it leaves
  open.
* :mod:`.result`: results in memory or in a folder, shards put together, searches, and export files.
"""

from jaxacct.sweep.compute import delta, epsilon, noise_multiplier
from jaxacct.sweep.description import AccountantCode, Settings, grid, read_columns, read_values, rows
from jaxacct.sweep.result import Sweep, load, merge

__all__ = [
    "AccountantCode",
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
