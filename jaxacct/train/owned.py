"""Copies at the borders: what a guarantee speaks of belongs to the object that gives it, and to nobody else.

A Flax Variable is mutable, and whoever holds one of a module's writes into that module. ``nnx.split`` and ``nnx.merge``
hand the same Variables on. A NumPy array may be written to at any time, also while JAX still reads it: ``jnp.asarray``
shares its memory on a CPU, and ``jnp.array`` copies it some time later. A device's array cannot be written to, but it
can be deleted, or donated to a computation that writes into its memory. So each border copies everything; what passes
once it is inside needs no copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jaxacct.policies import Constant, Policy, Setting

T = TypeVar("T")


class Sealed:
    """An object whose public attributes are set once: what it guarantees is said of what it was made with."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name in self.__dict__:
            self._refuse(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if not name.startswith("_"):
            self._refuse(name)
        super().__delattr__(name)

    def _refuse(self, name: str) -> None:
        raise AttributeError(
            f"{name} of a {type(self).__name__} is what its guarantee speaks of, and stays as it was made: make "
            f"another one with another {name}."
        )


class Sole:
    """An object that there is one of: what it may still spend, and the keys that it has not used, cannot be copied.

    A copy would spend the same budget again, and answer with the same noise: from the two, that is told.
    """

    def __copy__(self) -> Any:
        raise self._refused()

    def __deepcopy__(self, _: Any) -> Any:
        raise self._refused()

    def __reduce_ex__(self, _: Any) -> Any:
        raise self._refused()

    def _refused(self) -> TypeError:
        return TypeError(
            f"a {type(self).__name__} cannot be copied: its copy would spend the same budget again, with the same "
            "noise. Share the object, or make another one."
        )


def owned(tree: T) -> T:
    """Returns a pytree like ``tree`` with nothing of it in common: new containers, new Variables, new memory.

    Arrays of NumPy become arrays of JAX; dtypes, and where arrays of JAX lie, stay.

    >>> given = {"mean": np.zeros(2, np.float32)}
    >>> kept = owned(given)
    >>> given["mean"][:] = 1.0
    >>> kept["mean"].tolist()
    [0.0, 0.0]
    """
    return jax.tree.map(_copied, tree)


def _copied(leaf: Any) -> Any:
    return owned_array(leaf) if isinstance(leaf, (np.ndarray, jax.Array)) else leaf


def owned_array(given: Any) -> jax.Array:
    """Returns a copy of an array of whatever kind as one of JAX; in memory there is one copy, and not two."""
    if isinstance(given, jax.Array):
        return given.copy()
    # jnp.asarray would compile a program for each shape. On a CPU the result may share the memory of the copy, which
    # nobody else has.
    return jax.device_put(np.array(given))


def fresh(tree: T) -> T:
    """Returns ``tree`` in new containers and new Variables around the same arrays: what is written into it stays there.

    Enough where no reference leaves the program: within a traced function, arrays are not copied.
    """
    return jax.tree.map(lambda leaf: leaf, tree)


def owned_settings(given: T, name: str) -> T:
    """Returns a copy of a policy, a sampler or a clipping rule; arrays that it holds are copied as well.

    Raises TypeError where it cannot be copied.
    """
    try:
        copied = copy.deepcopy(given)
    except Exception as error:  # a class of the caller's may raise whatever it likes
        raise TypeError(
            f"{name} = {type(given).__name__} cannot be copied ({type(error).__name__}: {error}): give one that "
            "copy.deepcopy copies, so that nothing changes it during the run."
        ) from None
    for value in getattr(copied, "__dict__", {}).values():
        if isinstance(value, np.ndarray):  # the trainer shows what it has
            value.flags.writeable = False
    return copied


def fixed_setting(policy: Policy, state: Any) -> Callable[[Any, Any], Setting]:
    """Returns ``policy.setting`` as it is now, whatever becomes of the arrays that its functions refer to.

    A step is charged in one compiled program, made in another, and certified in a third. Each is traced at a time of
    its own, and an array that a schedule looks up could be another by then. So it is lowered once, with the values that
    it has now; all of them call that.

    >>> from jaxacct.policies import Schedule
    >>> noise = np.array([2.0, 1.0], np.float32)
    >>> setting = fixed_setting(Schedule(lambda step: jnp.asarray(noise)[step], 0.5), ())
    >>> noise[:] = 9.0
    >>> float(setting((), jnp.int32(1)).noise_multiplier)
    1.0
    """
    if isinstance(policy, Constant):  # two numbers
        return policy.setting
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), state)
    platforms = tuple(dict.fromkeys((export.default_export_platform(), "cpu")))
    lowered = export.export(jax.jit(policy.setting), platforms=platforms)
    call = lowered(shapes, jax.ShapeDtypeStruct((), jnp.int32)).call
    # An exported program has no batching rule.
    return jax.custom_batching.sequential_vmap(lambda state, step: call(state, jnp.asarray(step, jnp.int32)))
