"""What a run of Opacus was, after the fact: its history, and its checkpoints. Neither Opacus nor torch is imported."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.adapters.events import MOST_STEPS, Part, Parts, made
from jaxacct.mechanisms import Mechanism, PoissonSubsampledGaussian

__all__ = ["checkpoint_history", "from_history"]


def from_history(history: Iterable[tuple[float, float, int]]) -> tuple[tuple[Mechanism, ...], tuple[ArrayLike, ...]]:
    """Returns the mechanisms of a history of Opacus, and how often each ran: for every accountant.

    Args:
        history: entries (noise_multiplier, sample_rate, steps): ``accountant.history``, that of a state dict, or what
            :func:`checkpoint_history` read.

    Formal guarantee: an upper bound of an accountant on the result holds for the run if its loader drew Poisson
    samples, as Opacus does unless ``poisson_sampling=False``, under "add_or_remove".

    Raises ValueError or TypeError where a number is out of range.

    >>> import jaxacct as ja
    >>> mechanisms, steps = from_history([(1.0, 0.01, 600), (1.5, 0.01, 400)])
    >>> f"{ja.epsilon(mechanisms, steps, delta=1e-5).upper:.4f}"
    '1.5506'
    """
    parts: Parts = {}
    for noise_multiplier, rate, count in history:
        validation.check_whole(count, "steps", 0, MOST_STEPS, "the number of steps")
        PoissonSubsampledGaussian(noise_multiplier, rate)
        part = Part(PoissonSubsampledGaussian, (float(noise_multiplier), float(rate)))
        parts[part] = parts.get(part, 0) + int(count)
    return made(parts)


def checkpoint_history(path: str | os.PathLike[str]) -> list[tuple[float, float, int]]:
    """Returns the history in a checkpoint that ``PrivacyEngine.save_checkpoint`` wrote; torch is not needed.

    Args:
        path: the file.

    Nothing of the file is run: of what is pickled there only dicts, lists and numbers are read, not even tensors.

    Raises ValueError where the file is no such checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as file:
            (name,) = (name for name in file.namelist() if name.endswith("/data.pkl"))
            state = _Plain(io.BytesIO(file.read(name))).load()["privacy_accountant_state_dict"]
        history = [(noise, rate, count) for noise, rate, count in state["history"]]
    except (zipfile.BadZipFile, pickle.UnpicklingError, AttributeError, LookupError, OverflowError, TypeError,
            ValueError, EOFError) as wrong:  # fmt: skip
        raise ValueError(
            f"path = {path} is no checkpoint of PrivacyEngine.save_checkpoint: {wrong}; give one."
        ) from wrong
    for run in history:
        if not all(isinstance(value, (int, float)) for value in run) or run[2] != int(run[2]):
            raise ValueError(f"path = {path} has a run {run}, which is no (noise, rate, whole number of steps).")
    return [(float(noise), float(rate), int(count)) for noise, rate, count in history]


class _Nothing:
    """What is read in the place of tensors and of whatever else is no plain value: takes anything, does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Nothing:
        return super().__new__(cls)

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def __setstate__(self, _: Any) -> None: ...

    def __setitem__(self, _: Any, __: Any) -> None: ...


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Nothing

    def persistent_load(self, _: Any) -> Any:
        return _Nothing()
