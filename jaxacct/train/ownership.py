"""Ownership of what a guarantee speaks of: copies at the borders, sealed objects, and pytrees of arrays as bits.

An object that gives a guarantee shares nothing that the guarantee depends on. A Flax Variable is mutable, and whoever
holds one of a module's writes into that module. ``nnx.split`` and ``nnx.merge`` hand the same Variables on. A NumPy
array may be written to at any time, also while JAX still reads it: ``jnp.asarray`` shares its memory on a CPU, and
``jnp.array`` copies it some time later. A device's array cannot be written to, but it can be deleted, or donated to a
computation that writes into its memory. So each border copies everything; what passes once it is inside needs no
copies.

* :class:`Sealed`, :func:`copy_tree`, :func:`fixed_setting`: what nobody else changes;
* :func:`arrays_of` to :func:`is_key`: leaves by their numbers, as text and as a digest.
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jaxacct.numerics.precision import scope
from jaxacct.policies import Constant, Policy, Setting

T = TypeVar("T")
"""Type of a pytree."""


class Sealed:
    """An object that gives a guarantee: its public attributes are set once, and it cannot be copied.

    Its guarantee speaks of what it was made with, and the budget that it has left and the keys that it has not used
    exist once. A copy would spend the same budget again, and answer with the same noise: two answers would tell that
    noise.
    """

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

    def __reduce_ex__(self, _: Any) -> Any:  # of pickle, and of both functions of the module copy
        raise TypeError(
            f"a {type(self).__name__} cannot be copied: its copy would spend the same budget again, with the same "
            "noise. Share the object, or make another one."
        )


def copy_tree(tree: T) -> T:
    """Returns a pytree like ``tree`` with nothing of it in common: new containers, new Variables, new memory.

    Arrays of NumPy become arrays of JAX; dtypes, and where arrays of JAX lie, stay.

    >>> given = {"mean": np.zeros(2, np.float32)}
    >>> kept = copy_tree(given)
    >>> given["mean"][:] = 1.0
    >>> kept["mean"].tolist()
    [0.0, 0.0]
    """
    return jax.tree.map(lambda leaf: owned_array(leaf) if isinstance(leaf, (np.ndarray, jax.Array)) else leaf, tree)


def owned_array(array: Any) -> jax.Array:
    """Returns a copy of an array of whatever kind as an array of JAX; memory holds one copy, not two."""
    if isinstance(array, jax.Array):
        return array.copy()
    # jnp.asarray would compile a program for each shape. On a CPU the result may share the memory of the copy, which
    # nobody else has.
    return jax.device_put(np.array(array))


def fresh(tree: T) -> T:
    """Returns ``tree`` in new containers and new Variables around the same arrays: what is written into it stays there.

    That is enough within a traced function, whose arrays nobody else can write to.
    """
    return jax.tree.map(lambda leaf: leaf, tree)


def owned_settings(setting: T, name: str) -> T:
    """Returns a copy of a policy, a sampler or a clipping rule; arrays that it holds are copied as well.

    Raises TypeError where it cannot be copied.
    """
    try:
        copied = copy.deepcopy(setting)
    except Exception as error:  # a class of the caller's may raise whatever it likes
        raise TypeError(
            f"{name} = {type(setting).__name__} cannot be copied ({type(error).__name__}: {error}): give one that "
            "copy.deepcopy copies, so that nothing changes it during the run."
        ) from None
    for value in getattr(copied, "__dict__", {}).values():
        if isinstance(value, np.ndarray):  # the trainer shows what it has
            value.flags.writeable = False
    return copied


def fixed_setting(policy: Policy, state: Any) -> Callable[[Any, Any], Setting]:
    """Returns ``policy.setting`` as it is now, whatever becomes of the arrays that its functions refer to.

    A step is charged in one compiled program, made in another, and certified in a third. Each is traced at a time of
    its own, and an array that a schedule looks up could have changed by then. So ``policy.setting`` is lowered once,
    with the values that it has now, and all three programs call the lowered one.

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


# ----------------------------------------------------------------------------------------------------
# Leaves of a pytree as NumPy arrays by their numbers, as text, and as a digest: bit for bit, keys included.
# ----------------------------------------------------------------------------------------------------


def path_of(path: Any) -> str:
    """Returns the names on the way to a leaf of a pytree, as ``blocks/0/kernel``.

    >>> path_of(jax.tree_util.tree_leaves_with_path({"a": [1]})[0][0])
    'a/0'
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")


def entries_of(tree: Any) -> int:
    """Returns the number of entries of all leaves of a pytree together, arrays or their shapes.

    >>> entries_of({"a": np.zeros((2, 3)), "b": 1.0})
    7
    """
    return sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(tree))


Arrays = dict[str, np.ndarray]
"""Leaves of a pytree by their numbers, as five digits."""

Leaf = tuple[str, tuple[int, ...], str]
"""An array as text: dtype, shape, and its bytes in hexadecimal digits."""


def arrays_of(tree: Any) -> Arrays:
    """Returns the leaves by their numbers; keys as their words.

    >>> arrays_of({"scale": np.float32(1.0)})
    {'00000': array(1., dtype=float32)}
    """
    data = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]
    return {f"{i:05d}": np.asarray(array) for i, array in enumerate(map(on_host, data))}


def group_neighbours(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields the numbers of neighbours that have at most ``most`` entries together, or of one that has more.

    >>> list(group_neighbours([3, 1, 9, 2, 2], 4))
    [[0, 1], [2], [3, 4]]
    """
    # ``group`` is open while the next one fits; it is never empty when it is yielded.
    group, size = list[int](), 0
    for number, more in enumerate(sizes):
        if group and size + more > most:
            yield group
            group, size = [], 0
        group.append(number)
        size += more
    if group:
        yield group


def on_host(leaf: Any) -> np.ndarray:
    """Returns an array on the host, wherever its shards lie; where other processes hold some, all have to call this."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return np.asarray(leaf)
    from jax.experimental import multihost_utils

    with scope():
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))


def tree_of(arrays: Arrays, like: T) -> T:
    """Returns a pytree like ``like`` with these leaves, where those of ``like`` lie.

    Raises ValueError where they are not of its dtypes and shapes.
    """
    expected = arrays_of(like)
    if differences(*({name: describe(array) for name, array in some.items()} for some in (arrays, expected))):
        raise ValueError("the leaves are of another tree.")
    old, structure = jax.tree.flatten(like)
    placed: T = jax.tree.unflatten(
        structure, [_restore(arrays[name], leaf) for name, leaf in zip(expected, old, strict=True)]
    )
    return placed


def as_text(arrays: Arrays) -> tuple[Leaf, ...]:
    """Returns the arrays in order, to be written into JSON.

    >>> as_text(arrays_of(np.float32(1.0)))
    (('float32', (), '0000803f'),)
    """
    return tuple((str(array.dtype), array.shape, array.tobytes().hex()) for array in arrays.values())


def of_text(leaves: Sequence[Leaf]) -> Arrays:
    """Returns the arrays again.

    >>> of_text((("float32", (), "0000803f"),))
    {'00000': array(1., dtype=float32)}
    """
    arrays = (np.frombuffer(bytes.fromhex(digits), dtype).reshape(shape) for dtype, shape, digits in leaves)
    return {f"{i:05d}": array for i, array in enumerate(arrays)}


def digest(arrays: Arrays) -> str:
    """Returns a SHA-256 digest of the names, dtypes, shapes and bytes of named arrays: it differs where a bit does.

    >>> zero = digest({"a": np.zeros(2)})
    >>> zero == digest({"a": np.zeros(2)}), zero == digest({"a": -np.zeros(2)})
    (True, False)
    """
    total = hashlib.sha256()
    # The order of a dictionary must not count; dtype and shape distinguish equal bytes.
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()


def as_words(setting: Any) -> str:
    """Returns a setting's printed form without addresses in memory, which differ between processes.

    >>> as_words(describe).startswith("<function describe")
    True
    """
    return re.sub(r" at 0x[0-9a-f]+", "", str(setting))


def describe(array: Any) -> str:
    """Returns dtype and shape.

    >>> describe(np.zeros((2, 1)))
    'float64 (2, 1)'
    """
    return f"{array.dtype} {tuple(array.shape)}"  # keys have these too, though their dtype is none of NumPy's


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Returns where two descriptions differ, in words; nothing where they do not.

    >>> differences({"a": 1, "b": 2}, {"a": 1, "c": 3})
    'b: 2 there, none here; c: none there, 3 here'
    """
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return "; ".join(f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} here" for name in names)


def place(leaf: Any, sharding: Any) -> jax.Array:
    """Returns an array that lies as ``sharding`` says (None: on the default device).

    Where other processes have devices of the sharding, each makes the part of its own.
    """
    if is_key(leaf):
        return jax.random.wrap_key_data(place(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.jit(lambda values: values, out_shardings=sharding)(leaf)
    with scope():  # outside, a float64 leaf would be rounded
        if sharding is None or sharding.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _restore(array: np.ndarray, like: jax.Array) -> jax.Array:
    lying = place(array, like.sharding if like.committed else None)
    return jax.random.wrap_key_data(lying, impl=jax.random.key_impl(like)) if is_key(like) else lying


def is_key(leaf: Any) -> bool:
    """Returns whether an array is of typed keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
