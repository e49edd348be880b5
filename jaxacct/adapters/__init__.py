"""Adapters to other libraries: their records of a run as mechanisms and steps, and accountants of their own kind.

Importing this package imports none of these libraries.

* :mod:`.events`: the events of ``dp_accounting``, which jax-privacy and TensorFlow Privacy make too, the histories and
  checkpoints of Opacus, as mechanisms and steps; and the functions of TensorFlow Privacy and Flower that account for a
  run in one call. It imports none of them.
* :mod:`.loaders`: batches as loaders really draw them, and the verdict on an epsilon that was claimed of such a run.
* :mod:`.dp_accounting`: accountants to be given wherever dp_accounting takes one, which need it installed.
* :mod:`.opacus`: accountants for Opacus's engine, which need it installed.
* :mod:`.prv_accountant`: the classes of prv-accountant, which is no longer maintained, without it.
"""

from jaxacct.adapters import prv_accountant
from jaxacct.adapters.events import (
    compute_dp_sgd_privacy,
    flower_privacy,
    from_dp_event,
    judge_dp_event,
    judge_history,
)
from jaxacct.adapters.loaders import ShuffledBatches

__all__ = [
    "ShuffledBatches",
    "compute_dp_sgd_privacy",
    "flower_privacy",
    "from_dp_event",
    "judge_dp_event",
    "judge_history",
    "prv_accountant",
]
