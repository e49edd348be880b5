"""Sources of examples, read by their numbers: arrays on the device, arrays on storage, or items of a data set.

An example is a pytree. A tuple is spread over the loss's arguments, anything else is one argument: the tuple of one.

* :func:`reading_of_arrays`, :func:`reading_of_items`: how rows are read into memory of NumPy;
* :class:`ArraySource`, :class:`IndexedSource`, :func:`source_of`: sources, which return them on the device;
* :func:`stream`: the batches of a run whose data is read by index.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, PyTree

from jaxacct import validation
from jaxacct.train.ownership import owned_array, path_of
from jaxacct.train.placement import Layout
from jaxacct.train.sampling import Sampler, present_of
from jaxacct.validation import MOST_COUNT

REMEDY = "give arrays, or an object with __len__ and __getitem__"
"""Remedy that such messages give."""


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
    """Returns a pytree in which data frames and series, whose rows have no numbers, are replaced by their arrays.

    Raises TypeError where a leaf is no array, or one of NumPy that does not hold numbers, and names it.
    """
    data = jax.tree.map(lambda leaf: leaf.to_numpy() if hasattr(leaf, "to_numpy") else leaf, data, is_leaf=is_no_tree)
    # The first leaf that cannot be an array of numbers is named by its path.
    for path, leaf in jax.tree_util.tree_leaves_with_path(data, is_leaf=is_no_tree):
        if not _is_array(leaf):
            raise TypeError(
                f"part {path_of(path) or '0'} of data is a {type(leaf).__name__}: give arrays with shape and dtype, or "
                "one object whose items are examples."
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


Reading = tuple[int, tuple[Any, ...], Callable[[np.ndarray], tuple[Any, ...]]]
"""Reading of a data set into memory of NumPy: the number of its examples, shapes and dtypes of one, and a function that
returns those at some numbers in range, with a leading axis, in memory of their own."""


def reading_of_arrays(data: Any) -> Reading:
    """Returns how to read arrays with a common leading axis, such as those of ``numpy.memmap``, h5py and zarr.

    Each row is asked for once, in increasing order: h5py accepts no other order, and storage is faster so.
    """
    data = arrays_in(data)
    leaves, structure = jax.tree.flatten(arguments(data))
    parts = [np.asarray(part) if isinstance(part, jax.Array) else part for part in leaves]
    size = common_size(parts)
    first = [np.asarray(part[0]) for part in parts]
    for (path, _), part in zip(jax.tree_util.tree_leaves_with_path(data), first, strict=True):
        _check_numbers(path, part)

    def read(rows: np.ndarray) -> tuple[Any, ...]:
        unique, place = np.unique(rows, return_inverse=True)
        values = [np.asarray(part[unique])[place] for part in parts]  # a copy: storage may reuse its memory
        return jax.tree.unflatten(structure, values)

    return size, jax.tree.unflatten(structure, map(_shape_of, first)), read


def reading_of_items(data: Any) -> Reading:
    """Returns how to read a data set item by item.

    Items are read by ``__getitems__`` where the data set has it (PyTorch, Hugging Face), which takes a list of numbers
    and returns a list of examples; one after the other where not. A list within an example is an array of its entries.
    """
    size, item = _length(data), _first_item(data)
    structure, first = _structure_and_arrays(item)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(_as_tuple(item), is_leaf=_is_value)]
    for path, part in zip(paths, first, strict=True):
        _check_numbers(path, part)

    def parts_of(index: int, item: Any) -> list[np.ndarray]:
        own_structure, parts = _structure_and_arrays(item)
        if len(parts) != len(first):
            raise ValueError(f"example {index} has {len(parts)} parts, the first one {len(first)}.")
        if own_structure != structure:
            raise ValueError(f"example {index} is {own_structure}, the first one {structure}.")
        for path, part, like in zip(paths, parts, first, strict=True):
            if part.shape != like.shape or part.dtype != like.dtype:
                raise ValueError(
                    f"example {index} has a part {path_of(path) or '0'} of shape {part.shape} and dtype {part.dtype}, "
                    f"the first one of shape {like.shape} and dtype {like.dtype}: a compiled step needs the same for "
                    "all; pad or cut them."
                )
        return parts

    def read(rows: np.ndarray) -> tuple[Any, ...]:
        numbers = [int(row) for row in rows]
        examples = [parts_of(*pair) for pair in zip(numbers, _items(data, numbers), strict=True)]
        parts = [
            np.stack([example[i] for example in examples]) if examples else np.zeros((0, *like.shape), like.dtype)
            for i, like in enumerate(first)
        ]
        return jax.tree.unflatten(structure, parts)

    return size, jax.tree.unflatten(structure, map(_shape_of, first)), read


def _length(data: Any) -> int:
    kind = type(data).__name__
    if isinstance(data, Mapping):
        raise TypeError(
            f"data of type {kind} cannot be read by index, for its entries have names: give one of them, or a dict of "
            "arrays with a common leading axis."
        )
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        streams = hasattr(data, "__iter__") or hasattr(data, "__next__")
        raise TypeError(f"data of type {kind} cannot be read by index{_stream_of_rows(streams)}: {REMEDY}.")
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


def _first_item(data: Any) -> Any:
    """Returns the first item, read as a batch is: Hugging Face's single items may have other dtypes."""
    try:
        return next(iter(_items(data, [0])))
    except (KeyError, TypeError, NotImplementedError) as error:  # the last one by PyTorch's data sets that are streams
        raise TypeError(
            f"data of type {type(data).__name__} cannot be read by index{_stream_of_rows(hasattr(data, '__iter__'))}: "
            f"data[0] raised {type(error).__name__}({error}); {REMEDY}."
        ) from error


def _stream_of_rows(is_one: bool) -> str:
    why = (
        "Poisson sampling draws each example anew at every step, and needs those that it drew by their numbers; batches"
        " of a stream, shuffled or not, are another mechanism, whose guarantee is weaker and not the one that is "
        "accounted; of shuffled batches no tight bound is known, jaxacct.train.RandomAllocationSampler uses every "
        "example as evenly"
    )
    return f", it is a stream ({why})" if is_one else ""


def _is_array(leaf: Any) -> bool:
    return all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__")) or hasattr(leaf, "to_numpy")


def is_no_tree(node: Any) -> bool:
    """Returns whether a node of data is a list of something else than arrays."""
    return isinstance(node, list) and not all(_is_array(entry) for entry in node)


def _as_tuple(item: Any) -> Any:
    return tuple(item) if isinstance(item, list) else item


def _structure_and_arrays(item: Any) -> tuple[Any, list[np.ndarray]]:
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
            f"part {path_of(path) or '0'} of data is of dtype {part.dtype}, and not of numbers: leave it out, or "
            "encode it by public rules (tokens, categories, a padded length)."
        )


def _shape_of(part: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(part.shape, jax.dtypes.canonicalize_dtype(part.dtype))


# ----------------------------------------------------------------------------------------------------
# Sources of examples: arrays on the device, or anything that is read by index and need not fit into memory.
#
# A sampler draws the indices of a step from a key, padded to a fixed number of rows. Arrays in memory are gathered
# inside the compiled step. Larger data are fetched outside it, for indices that the same sampler draws from the same
# key: the batches, and with them the run, are the same bit for bit. Every row is fetched, whether it is real or
# padding, so that no Python branch looks at the size that was drawn. (How long storage takes may still depend on the
# rows asked for.)
# ----------------------------------------------------------------------------------------------------


def source_of(data: Any) -> ArraySource | IndexedSource:
    """Returns the source of ``data``: on the device where all are arrays in memory, else read by index.

    >>> type(source_of({"x": np.ones((3, 2)), "y": np.ones(3)})).__name__, type(source_of(range(3))).__name__
    ('ArraySource', 'IndexedSource')
    """
    if isinstance(data, (ArraySource, IndexedSource)):
        return data
    if isinstance(data, list) and not is_no_tree(data):
        data = tuple(data)
    if isinstance(data, list):
        raise TypeError("data is a list: give arrays as a tuple or a dict, a list of examples as IndexedSource(list).")
    if is_object(data):
        return IndexedSource(data)
    data = arrays_in(data)
    in_memory = lambda part: hasattr(part, "__dlpack__") and not isinstance(part, np.memmap)  # noqa: E731
    return ArraySource(data) if all(map(in_memory, jax.tree.leaves(data))) else IndexedSource(data)


class ArraySource:
    """Arrays on the device with a common leading axis, the examples; :meth:`fetch` is traceable.

    Args:
        data: a pytree of arrays. A tuple is spread over the loss's arguments, any other is one argument.

    The arrays given are copied, once: they may be written to, deleted or donated afterwards. Where the device has no
    room for a second copy, give NumPy arrays; where memory has no room for the data, an :class:`IndexedSource`.

    Raises ValueError where the arrays have no examples, or not the same number.

    >>> source = ArraySource((np.arange(6.0).reshape(3, 2), np.arange(3)))
    >>> len(source), [part.shape for part in source.fetch(jnp.array([2, 0, 0, 1]))]
    (3, [(4, 2), (4,)])
    """

    def __init__(self, data: Any) -> None:
        self.data: tuple[PyTree, ...] = jax.tree.map(owned_array, arguments(data))
        self._size = common_size(jax.tree.leaves(self.data))

    def __len__(self) -> int:
        return self._size

    @property
    def example(self) -> tuple[PyTree, ...]:
        """Shapes and dtypes of one example."""
        return jax.tree.map(lambda part: jax.ShapeDtypeStruct(part.shape[1:], part.dtype), self.data)

    def fetch(self, indices: Int32[Array, " rows"]) -> tuple[PyTree, ...]:
        """Returns the examples at ``indices``; inside ``jit`` a gather."""
        return jax.tree.map(lambda part: part[indices], self.data)


class IndexedSource:
    """Examples read by index: memory-mapped arrays, or any object with ``__len__`` and ``__getitem__``.

    Args:
        data: an array or a pytree of arrays with a common leading axis, such as ``numpy.memmap`` or those of h5py and
            zarr, of which the rows asked for are read together; or an object whose ``__getitem__`` takes a whole number
            and returns one example, a pytree of arrays or numbers: a list, a data set of PyTorch, Hugging Face or
            Grain. Its examples are read by ``__getitems__`` where it has that, else one after the other. All have the
            shapes and dtypes of the first. A tuple (an item that is a list, too) is spread over the loss's arguments,
            anything else is one argument.

    Nothing is copied but the rows of a batch, when it is drawn, and rows are not compared with what was there before,
    which would take reading all of it again. So do not change the data during a run. If they change by something other
    than the examples themselves (random augmentation), a guarantee is one for the example at an index, in all its
    versions. An item that is made of several records is protected as one, and a record in several items is not
    protected as one.

    :meth:`fetch` runs outside of ``jit``; what it returns has a static shape and the dtypes that ``jax.numpy.asarray``
    gives, as if the data had been put on the device whole.

    Raises ValueError where there are no examples or the parts' lengths differ; TypeError where ``data`` has no length
    or cannot be read by index, as a stream cannot, or has parts that are not numbers.

    >>> source = IndexedSource((np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(3)))
    >>> [part.tolist() for part in source.fetch(np.array([2, 0]))]
    [[[4.0, 5.0], [0.0, 1.0]], [2, 0]]
    >>> IndexedSource([{"x": [1, 2], "y": 0}, {"x": [3, 4], "y": 1}]).fetch(np.array([1]))[0]["x"].tolist()
    [[3, 4]]
    """

    def __init__(self, data: Any) -> None:
        # Arrays, or a pytree of them, are read together, any other object by its items.
        by_items = isinstance(data, list) or is_object(data)
        self._size, self._example, self._read = (reading_of_items if by_items else reading_of_arrays)(data)

    def __len__(self) -> int:
        return self._size

    @property
    def example(self) -> tuple[PyTree, ...]:
        """Shapes and dtypes of one example."""
        return self._example

    def fetch(self, indices: Any) -> tuple[PyTree, ...]:
        """Returns the examples at concrete ``indices`` (rows,), on the device.

        Raises IndexError for an index that is none, and ValueError for an example unlike the first; both name it.
        """
        if isinstance(indices, jax.core.Tracer):
            raise TypeError("indices are traced: an IndexedSource is read outside of jit; see jaxacct.train.stream.")
        rows = np.asarray(indices)
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise ValueError(f"indices of shape {rows.shape} and dtype {rows.dtype}: give whole numbers, one a row.")
        outside = rows[(rows < 0) | (rows >= len(self))]
        if outside.size:
            raise IndexError(f"index {outside[0]} is outside of the {len(self)} examples of this source.")
        return jax.tree.map(jnp.asarray, self._read(rows))


class StepBatch(NamedTuple):
    """The batch of one step.

    Attributes:
        step: number of the step.
        examples: tuple pytree of arrays (capacity, ...).
        mask (capacity,): which rows are real.
    """

    step: int
    examples: tuple[PyTree, ...]
    mask: Bool[Array, " capacity"]


def stream(
    source: ArraySource | IndexedSource,
    sampler: Sampler,
    key: jax.Array,
    steps: int,
    *,
    start: int = 0,
    prefetch: bool = True,
    layout: Layout | None = None,
) -> Iterator[StepBatch]:
    """Yields the batches of the steps from ``start`` to ``start + steps - 1``, all of one shape.

    Args:
        source: where examples are fetched, outside of the compiled step.
        sampler: draws the indices; of as many examples as the source has.
        key: typed key of the run's sampling, as in ``sampler.sample(key, step)`` inside a compiled step, whose indices
            these are.
        steps: how many batches.
        start: the first step, for a run that is taken up again.
        prefetch: whether the next batch is fetched in a thread while the present one is used; its errors are raised
            when that batch is asked for.
        layout: over which devices the rows are spread; None: one.

    Raises ValueError where source and sampler do not match; what :meth:`IndexedSource.fetch` raises.

    >>> from jaxacct.train.sampling import PoissonSampler
    >>> sampler = PoissonSampler(num_examples=10, sampling_rate=0.5, capacity=11)
    >>> source = IndexedSource((np.arange(10.0),))
    >>> [(batch.step, batch.examples[0].shape) for batch in stream(source, sampler, jax.random.key(0), 2)]
    [(0, (11,)), (1, (11,))]
    """
    if len(source) != present_of(sampler):
        raise ValueError(
            f"the source has {len(source)} examples and the sampler {present_of(sampler)}: its rate would not be "
            "the one that is accounted."
        )
    validation.check_steps(steps)
    validation.check_steps(start, "start")
    fetch = source.fetch if layout is None else functools.partial(layout.fetch, source)
    return _stream(fetch, jax.jit(sampler.sample), key, range(start, start + int(steps)), prefetch)


def _stream(
    fetch: Callable[[Any], tuple[PyTree, ...]], sample: Callable[..., Any], key: jax.Array, steps: range, prefetch: bool
) -> Iterator[StepBatch]:

    def load(step: int, drawn: tuple[Array, Array]) -> StepBatch:
        indices, mask = drawn
        return StepBatch(step, fetch(indices), mask)

    if not prefetch:
        yield from (load(step, sample(key, step)) for step in steps)
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead: Future[StepBatch] | None = None
        # ``ahead`` is the batch that the thread is fetching. Each pass waits for it, starts the next and hands it out;
        # the indices are drawn here, so that only storage is used in the thread.
        for step in steps:
            ahead = pool.submit(load, step, sample(key, step)) if ahead is None else ahead
            # Drawn now: after the caller's step on this batch, the draw would wait behind it on the device.
            drawn = sample(key, step + 1) if step + 1 in steps else None
            batch = ahead.result()
            ahead = None if drawn is None else pool.submit(load, step + 1, drawn)
            yield batch
