"""Sweeps: privacy numbers of many configurations at once, over devices and hosts, with checkpoints.

* :mod:`.settings`: the grid or the rows; :mod:`.quantities`: what is computed for one entry.
* :mod:`.program`: all entries by one compiled program; :mod:`.compute`: and by the mesh where that leaves them open.
* :mod:`.run`: the loop; :mod:`.shared`, :mod:`.checkpoint`, :mod:`.hosts`: with files, and with other processes.
* :mod:`.result`, :mod:`.export`, :mod:`.draw`: what comes out, as arrays, files and pictures; :mod:`.progress`.
"""

from jaxacct.sweep.calls import delta, epsilon, noise_multiplier
from jaxacct.sweep.hosts import HostLostError
from jaxacct.sweep.quantities import Accountant
from jaxacct.sweep.result import Sweep, load
from jaxacct.sweep.settings import Settings, grid, rows

__all__ = [
    "Accountant",
    "HostLostError",
    "Settings",
    "Sweep",
    "delta",
    "epsilon",
    "grid",
    "load",
    "noise_multiplier",
    "rows",
]
