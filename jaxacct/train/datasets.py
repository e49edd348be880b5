"""The former place of data sets, now in :mod:`jaxacct_recipes`: its names warn, and go with the next minor version."""

import importlib
import warnings
from typing import Any

_PLACES = dict.fromkeys(("LOADERS", "Dataset", "load"), "jaxacct_recipes") | dict.fromkeys(
    ("bounded_contributions", "mean_over_examples", "users_as_examples"), "jaxacct.train"
)
"""The modules that hold the names now."""


def __getattr__(name: str) -> Any:
    """Returns what :mod:`jaxacct_recipes`, or the trainer's room, holds now."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"{__name__}.{name} is {_PLACES[name]}.{name} now: import it from there."
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
