"""What other libraries call a run, as mechanisms and steps of this one. None of those libraries is imported.

* :mod:`.dp_event`: the events of ``dp_accounting``, which jax-privacy and TensorFlow Privacy make too.
"""

from jaxacct.adapters.dp_event import from_dp_event

__all__ = ["from_dp_event"]
