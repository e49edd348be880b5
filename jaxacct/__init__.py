"""JAX-accelerated accounting of differential privacy, and a Flax trainer that asks it for its budget.

Errors are alike everywhere: a concrete argument out of range raises ValueError, with its name, its value and what to
do; a traced one cannot raise, and what comes out is on the safe side: inf for an epsilon, 1 for a delta, nothing
granted.

>>> import jaxacct as ja
>>> mechanism = ja.PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01)
>>> bool(ja.epsilon(mechanism, steps=1000, delta=1e-5).upper < 2.2)
True
"""

import importlib as _importlib
import sys as _sys
import typing as _typing
from importlib.util import find_spec as _find_spec

if _typing.TYPE_CHECKING:
    from jaxacct import (
        adapters,
        audit,
        calibrate,
        certificates,
        convert,
        factorize,
        filters,
        gdp,
        iteration,
        mechanisms,
        menus,
        monte_carlo,
        odometers,
        plot,
        policies,
        prv,
        rdp,
        release,
        saddlepoint,
        selection,
        specs,
        strategies,
        sweep,
        tradeoff,
        train,
        verify,
    )
    from jaxacct.bounds import Bounds
    from jaxacct.certified import curve, delta, epsilon
    from jaxacct.mechanisms import *  # noqa: F403
    from jaxacct.mechanisms import group
    from jaxacct.numerics.pytrees import register_dataclass

__version__ = "0.2.0"

__all__ = [
    "Bounds",
    "adapters",
    "audit",
    "calibrate",
    "certificates",
    "convert",
    "curve",
    "delta",
    "epsilon",
    "factorize",
    "filters",
    "gdp",
    "group",
    "iteration",
    "mechanisms",
    "menus",
    "monte_carlo",
    "odometers",
    "plot",
    "policies",
    "prv",
    "rdp",
    "register_dataclass",
    "release",
    "saddlepoint",
    "selection",
    "specs",
    "strategies",
    "sweep",
    "tradeoff",
    "train",
    "verify",
]

_HOMES = {"Bounds": "bounds", "curve": "certified", "delta": "certified", "epsilon": "certified",
          "group": "mechanisms", "register_dataclass": "numerics.pytrees"}  # fmt: skip
"""Homes of the names that are neither mechanisms' and pairs' classes nor submodules."""

_OWN = frozenset(__all__)
"""All public names but the classes of mechanisms and pairs: those that :mod:`jaxacct.mechanisms` exports."""

_NEED = {"audit": "flax", "train": "flax", "verify": "flint"}
"""Submodules that say what to install where this package is missing."""

if not _typing.TYPE_CHECKING:
    del __all__  # __getattr__ makes it, with the mechanisms, for whoever asks


def __getattr__(name: str) -> _typing.Any:
    """Imports what is asked for when it is: an epsilon need not wait for Flax, nor a help text for JAX."""
    if name == "__all__":  # ``from jaxacct import *`` is of what is there
        there = {name for name in _OWN if name not in _NEED or _find_spec(_NEED[name])}
        return sorted(there | set(_importlib.import_module("jaxacct.mechanisms").__all__))
    if name in _OWN or name[:1].isupper():
        # Python lets threads meet in the parts of a package that one of them still imports; for a whole one they wait.
        _importlib.import_module("numpy")
    if name in _OWN and name not in _HOMES:
        return _importlib.import_module(f"jaxacct.{name}")
    # A mechanism is a class. Other names are asked for by imports of submodules as well, which must not wait for JAX.
    if name in _HOMES or name[:1].isupper():
        home = _importlib.import_module(f"jaxacct.{_HOMES.get(name, 'mechanisms')}")
        if name in _HOMES or name in home.__all__:
            globals()[name] = value = getattr(home, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), "__version__"]


if "jax" in _sys.modules:
    # What tells JAX's traces apart has to be known before one begins: else its program would be compiled twice.
    _importlib.import_module("jaxacct.numerics.arithmetic")
