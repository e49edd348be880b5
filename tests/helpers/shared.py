"""The parts that trainers of tests share: an optimizer, and programs compiled once for all trainers whose are equal."""

import contextlib
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


_programs: dict[Any, dict[str, Any]] = {}


def sharing(trainer):
    """Returns the trainer, with the compiled programs of the first one whose program equals its own.

    Equal programs are of the same functions and numbers, by identity and by value; what was traced of one is what would
    be traced of the other. Keys, data, parameters and ledgers are arguments.
    """
    key = dataclasses.replace(trainer.program, setting=None)  # the policy's
    with contextlib.suppress(TypeError):  # arrays are among what it is made of
        trainer._programs = _programs.setdefault(key, trainer._programs)
    return trainer
