"""Sweeps: privacy numbers of many configurations at once, over devices and jobs, with checkpoints.

* :mod:`.settings`: the grid or the rows, and shares of them; :mod:`.quantities`: what is computed for one entry.
* :mod:`.program`: all entries by one compiled program; :mod:`.compute`: and by the mesh where that leaves them open.
* :mod:`.run`: the loop; :mod:`.checkpoint`: what of it is kept on disk, so that it can go on.
* :mod:`.result`: what comes out, also of several jobs together; :mod:`.export`, :mod:`.archive`: files of it.
"""

from jaxacct.sweep.calls import delta, epsilon, noise_multiplier
from jaxacct.sweep.quantities import Accountant
from jaxacct.sweep.result import Sweep, load, merge
from jaxacct.sweep.settings import Settings, grid, rows

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
    "rows",
]
