"""The leaves of a pytree as NumPy arrays by their numbers, as text, and as a digest: bit for bit, keys included."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxacct.precision import scope

Arrays = dict[str, np.ndarray]

Leaf = tuple[str, tuple[int, ...], str]
"""An array as text: dtype, shape, and its bytes in hexadecimal digits."""

T = TypeVar("T")


def arrays_of(tree: Any) -> Arrays:
    """Returns the leaves by their numbers; keys as what they are made of.

    >>> arrays_of({"scale": np.float32(1.0)})
    {'00000': array(1., dtype=float32)}
    """
    data = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]
    return {f"{i:05d}": np.asarray(array) for i, array in enumerate(map(on_host, data))}


def on_host(leaf: Any) -> np.ndarray:
    """Returns an array, however it lies on devices; where some are other processes', all have to ask for it."""
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
    if {name: (array.dtype, array.shape) for name, array in arrays.items()} != {
        name: (array.dtype, array.shape) for name, array in expected.items()
    }:
        raise ValueError("the leaves are of another tree.")
    old, structure = jax.tree.flatten(like)
    placed: T = jax.tree.unflatten(
        structure, [_restored(arrays[name], leaf) for name, leaf in zip(expected, old, strict=True)]
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
    """Returns a digest of named arrays that is another where a bit of them is.

    >>> zero = digest({"a": np.zeros(2)})
    >>> zero == digest({"a": np.zeros(2)}), zero == digest({"a": -np.zeros(2)})
    (True, False)
    """
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()


def described(array: Any) -> str:
    """Returns dtype and shape.

    >>> described(np.zeros((2, 1)))
    'float64 (2, 1)'
    """
    return f"{array.dtype} {tuple(array.shape)}"  # of keys, too, whose dtype is none of NumPy's


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Returns where two descriptions differ, in words; nothing where they do not.

    >>> differences({"a": 1, "b": 2}, {"a": 1, "c": 3})
    'b: 2 there, none here; c: none there, 3 here'
    """
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return "; ".join(f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} here" for name in names)


def placed(leaf: Any, sharding: Any) -> jax.Array:
    """Returns an array that lies so, None: on the default device; of one that other processes share, their part."""
    if is_key(leaf):
        return jax.random.wrap_key_data(placed(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.jit(lambda values: values, out_shardings=sharding)(leaf)
    with scope():  # outside, a float64 leaf would be rounded
        if sharding is None or sharding.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)


def _restored(array: np.ndarray, like: jax.Array) -> jax.Array:
    lying = placed(array, like.sharding if like.committed else None)
    return jax.random.wrap_key_data(lying, impl=jax.random.key_impl(like)) if is_key(like) else lying


def is_key(leaf: Any) -> bool:
    """Returns whether an array is of typed keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
