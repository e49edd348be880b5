"""How examples are read by their numbers: arrays on storage together, items of a data set one by one or as it offers.

An example is a pytree. A tuple is spread over the loss's arguments, anything else is one argument: the tuple of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxacct.validation import MOST_COUNT

WHY_BY_INDEX = (
    "Poisson sampling draws each example anew at every step, and needs those that it drew by their numbers; batches of "
    "a stream, shuffled or not, are another mechanism, whose guarantee is weaker and not the one that is accounted; "
    "of shuffled batches no tight bound is known, jaxacct.train.RandomAllocationSampler uses every example as evenly"
)
REMEDY = "give arrays, or an object with __len__ and __getitem__"


class Reader(Protocol):
    """Examples by their numbers, in memory of NumPy.

    Attributes:
        size: how many.
        example: shapes and dtypes of one, a tuple pytree.
    """

    size: int
    example: tuple[Any, ...]

    def read(self, rows: np.ndarray) -> tuple[Any, ...]:
        """Returns the examples at ``rows``, whole numbers in range, with a leading axis, in memory of their own."""
        ...


def reader_of(data: Any) -> Reader:
    """Returns how ``data`` are read: an array or a pytree of arrays together, any other object by its items."""
    return Items(data) if isinstance(data, list) or is_object(data) else StoredArrays(data)


def is_object(data: Any) -> bool:
    """Returns whether ``data`` are neither an array nor a pytree of arrays."""
    return hasattr(data, "__next__") or (jax.tree_util.all_leaves([data]) and not _is_array(data))


def arguments(example: Any) -> tuple[Any, ...]:
    """Returns what a loss gets after the model.

    >>> arguments(({"x": 1}, 2)), arguments({"x": 1, "y": 2})
    (({'x': 1}, 2), ({'x': 1, 'y': 2},))
    """
    return example if isinstance(example, tuple) else (example,)


def arrays_in(data: Any) -> Any:
    """Returns a pytree with the arrays of data frames and series in their place; their rows are not found by number.

    Raises TypeError where a leaf is no array, or one of NumPy that does not hold numbers, and names it.
    """
    data = jax.tree.map(lambda leaf: leaf.to_numpy() if hasattr(leaf, "to_numpy") else leaf, data, is_leaf=is_no_tree)
    for path, leaf in jax.tree_util.tree_leaves_with_path(data, is_leaf=is_no_tree):
        if not _is_array(leaf):
            raise TypeError(
                f"part {_name(path)} of data is a {type(leaf).__name__}: give arrays with shape and dtype, or one "
                "object whose items are examples."
            )
        if isinstance(leaf, np.ndarray):
            _check_numbers(path, leaf)
    return data


def common_size(parts: list[Any]) -> int:
    """Returns the arrays' common number of examples; raises ValueError where there is none."""
    shapes = [tuple(part.shape) for part in parts]
    if not shapes or any(len(shape) == 0 for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
        raise ValueError(f"data has parts of shapes {shapes}: give arrays with one common leading axis, the examples.")
    if shapes[0][0] == 0:
        raise ValueError("data has no examples.")
    return int(shapes[0][0])


class StoredArrays:
    """Arrays with a common leading axis, such as those of ``numpy.memmap``, h5py and zarr: a :class:`Reader`.

    Each row is asked for once, in increasing order: h5py reads no others, and storage does so faster.
    """

    def __init__(self, data: Any) -> None:
        data = arrays_in(data)
        parts, self._structure = jax.tree.flatten(arguments(data))
        self._parts = [np.asarray(part) if isinstance(part, jax.Array) else part for part in parts]
        self.size = common_size(self._parts)
        first = [np.asarray(part[0]) for part in self._parts]
        for (path, _), part in zip(jax.tree_util.tree_leaves_with_path(data), first, strict=True):
            _check_numbers(path, part)
        self.example = jax.tree.unflatten(self._structure, [_shape_of(part) for part in first])

    def read(self, rows: np.ndarray) -> tuple[Any, ...]:
        unique, place = np.unique(rows, return_inverse=True)
        parts = [np.asarray(part[unique])[place] for part in self._parts]  # a copy: storage may reuse its memory
        return jax.tree.unflatten(self._structure, parts)


class Items:
    """A data set of examples that is read by index: a :class:`Reader`.

    Items are read by ``__getitems__`` where the data set has it (PyTorch, Hugging Face), which takes a list of numbers
    and returns a list of examples; one after the other where not. A list within an example is an array of its entries.
    """

    def __init__(self, data: Any) -> None:
        self.size = _length(data)
        self._data = data
        first = _first(data)
        self._structure, parts = _parts(first)
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(_as_tuple(first), is_leaf=_is_value)]
        for path, part in zip(paths, parts, strict=True):
            _check_numbers(path, part)
        self._first = [(part.shape, part.dtype) for part in parts]
        self._names = [_name(path) for path in paths]
        self.example = jax.tree.unflatten(self._structure, [_shape_of(part) for part in parts])

    def read(self, rows: np.ndarray) -> tuple[Any, ...]:
        numbers = [int(row) for row in rows]
        examples = [self._checked(*pair) for pair in zip(numbers, _items(self._data, numbers), strict=True)]
        parts = [
            np.stack([example[i] for example in examples]) if examples else np.zeros((0, *shape), dtype)
            for i, (shape, dtype) in enumerate(self._first)
        ]
        return jax.tree.unflatten(self._structure, parts)

    def _checked(self, index: int, item: Any) -> list[np.ndarray]:
        structure, parts = _parts(item)
        if len(parts) != len(self._first):
            raise ValueError(f"example {index} has {len(parts)} parts, the first one {len(self._first)}.")
        if structure != self._structure:
            raise ValueError(f"example {index} is {structure}, the first one {self._structure}.")
        for name, part, (shape, dtype) in zip(self._names, parts, self._first, strict=True):
            if part.shape != shape or part.dtype != dtype:
                raise ValueError(
                    f"example {index} has a part {name} of shape {part.shape} and dtype {part.dtype}, the first one "
                    f"of shape {shape} and dtype {dtype}: a compiled step needs the same for all; pad or cut them."
                )
        return parts


def _length(data: Any) -> int:
    kind = type(data).__name__
    if isinstance(data, Mapping):
        raise TypeError(
            f"data of type {kind} cannot be read by index, for its entries have names: give one of them, or a dict of "
            "arrays with a common leading axis."
        )
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        streams = hasattr(data, "__iter__") or hasattr(data, "__next__")
        raise TypeError(f"data of type {kind} cannot be read by index{_stream(streams)}: {REMEDY}.")
    size = len(data)
    if size == 0:
        raise ValueError("data has no examples.")
    if size > MOST_COUNT:
        raise ValueError(f"data has {size} examples, more than {MOST_COUNT}: give each one once, without repetitions.")
    return size


def _items(data: Any, numbers: list[int]) -> Iterable[Any]:
    if not hasattr(data, "__getitems__"):
        return (data[number] for number in numbers)
    items: list[Any] = data.__getitems__(numbers)
    if len(items) != len(numbers):
        raise ValueError(f"data.__getitems__ returned {len(items)} examples for {len(numbers)} numbers.")
    return items


def _first(data: Any) -> Any:
    """Returns the first item, read as a batch is: Hugging Face's single items may have other dtypes."""
    try:
        return next(iter(_items(data, [0])))
    except (KeyError, TypeError, NotImplementedError) as error:  # the last one by PyTorch's data sets that are streams
        raise TypeError(
            f"data of type {type(data).__name__} cannot be read by index{_stream(hasattr(data, '__iter__'))}: "
            f"data[0] raised {type(error).__name__}({error}); {REMEDY}."
        ) from error


def _stream(is_one: bool) -> str:
    return f", it is a stream ({WHY_BY_INDEX})" if is_one else ""


def _is_array(leaf: Any) -> bool:
    return all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__")) or hasattr(leaf, "to_numpy")


def is_no_tree(node: Any) -> bool:
    """Returns whether a node of data is a list of something else than arrays."""
    return isinstance(node, list) and not all(_is_array(entry) for entry in node)


def _as_tuple(item: Any) -> Any:
    return tuple(item) if isinstance(item, list) else item


def _parts(item: Any) -> tuple[Any, list[np.ndarray]]:
    """Returns the structure and the arrays of an item."""
    leaves, structure = jax.tree.flatten(arguments(_as_tuple(item)), is_leaf=_is_value)
    return structure, [_as_array(leaf) for leaf in leaves]


def _is_value(node: Any) -> bool:
    return node is None or isinstance(node, list)


def _as_array(leaf: Any) -> np.ndarray:
    try:
        return np.asarray(leaf)
    except ValueError:  # a list of lists of several lengths
        return np.asarray(None)


def _check_numbers(path: Any, part: np.ndarray) -> None:
    if not (jnp.issubdtype(part.dtype, jnp.number) or part.dtype == bool):
        raise TypeError(
            f"part {_name(path)} of data is of dtype {part.dtype}, and not of numbers: leave it out, or encode it by "
            "public rules (tokens, categories, a padded length)."
        )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "0"


def _shape_of(part: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(part.shape, jax.dtypes.canonicalize_dtype(part.dtype))
