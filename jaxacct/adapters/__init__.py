"""What other libraries call a run, as mechanisms and steps of this one.

Nothing here imports those libraries but the modules of their names, which are not imported unless asked for.

* :mod:`.events`: the events of ``dp_accounting``, which jax-privacy and TensorFlow Privacy make too, as mechanisms;
  :mod:`.events` says what each one is, and :mod:`.events` counts them.
* :mod:`.dp_accounting`: accountants of its kind, to be given wherever it takes one. It has to be installed.
* :mod:`.opacus`: accountants for its engine, which has to be installed; :mod:`.events`: what it wrote, without.
* :mod:`.dp_accounting`: the one call of TensorFlow Privacy, and of Flower.
"""

from jaxacct.adapters.dp_accounting import compute_dp_sgd_privacy, flower_privacy
from jaxacct.adapters.events import from_dp_event

__all__ = ["compute_dp_sgd_privacy", "flower_privacy", "from_dp_event"]
