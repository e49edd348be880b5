"""What trainers of tests share: an optimizer, and programs that are compiled once for all trainers whose are equal."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

ADAM, SGD, WHOLE = optax.adam(0.1), optax.sgd(0.1), optax.sgd(1.0)
"""One of each: an optimizer that is made again is another, and so would be the program."""


def cosines(leaf):
    """Numbers of the shape of a leaf of adapters, that are not zero as they begin."""
    return jnp.asarray(np.cos(np.arange(leaf.size)).reshape(leaf.shape) / 4, leaf.dtype)


_programs: dict[Any, tuple[Any, ...]] = {}


def sharing(trainer):
    """Returns the trainer, with the compiled programs of the first one whose program equals its own.

    Equal programs are of the same functions and numbers, by identity and by value; what was traced of one is what would
    be traced of the other. Keys, data, parameters and ledgers are arguments.
    """
    key = dataclasses.replace(trainer.program, setting=None)  # the policy's
    names = ("_run", "_step_on", "_adapt", "_foresee")
    try:
        mine = _programs.setdefault(key, tuple(getattr(trainer, name) for name in names))
    except TypeError:  # arrays are among what it is made of
        return trainer
    for name, program in zip(names, mine, strict=True):
        setattr(trainer, name, program)
    return trainer
