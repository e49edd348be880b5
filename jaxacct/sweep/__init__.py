"""Sweeps: privacy numbers of many configurations at once, over devices and jobs, streamed to disk.

* :mod:`.settings`: grid or rows; :mod:`.ranges`: their values as text and files; :mod:`.boxes`: how they are cut.
* :mod:`.quantities`: what is computed for one entry; :mod:`.program`: for all by one compiled program; :mod:`.compute`:
  and by the mesh where that leaves them open; :mod:`.run`: the loop.
* :mod:`.folder`: results on disk, in the files of :mod:`.zarr_files`; :mod:`.store`: there or in memory;
  :mod:`.description`: what they are of; :mod:`.merge`: shards put together.
* :mod:`.result`: what comes out; :mod:`.query`: what is asked of it; :mod:`.export`: files for others.
"""

from jaxacct.sweep.calls import delta, epsilon, noise_multiplier
from jaxacct.sweep.merge import merge
from jaxacct.sweep.quantities import Accountant
from jaxacct.sweep.ranges import read_columns, read_values
from jaxacct.sweep.result import Sweep, load
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
    "read_columns",
    "read_values",
    "rows",
]
