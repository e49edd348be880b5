"""Where examples come from: arrays on the device, or anything that is read by index and need not fit into memory.

A sampler draws the indices of a step from a key, padded to a fixed number of rows. Arrays in memory are gathered inside
the compiled step. Larger data are fetched outside it, for indices that the same sampler draws from the same key: the
batches, and with them the run, are the same bit for bit. Every row is fetched, whether it is real or padding, so that
no Python branch looks at the size that was drawn. (How long storage takes may still depend on the rows asked for.)
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, PyTree

from jaxacct import validation
from jaxacct.train.owned import owned_array
from jaxacct.train.readers import arguments, arrays_in, common_size, is_no_tree, is_object, reader_of
from jaxacct.train.sampling import Sampler, present_of


class Source(Protocol):
    """Examples, numbered from 0."""

    @property
    def example(self) -> tuple[PyTree, ...]:
        """Shapes and dtypes of one example, as the device sees them: a tuple pytree, the loss's arguments."""
        ...

    def __len__(self) -> int: ...

    def fetch(self, indices: Any) -> tuple[PyTree, ...]:
        """Returns the examples at ``indices`` (rows,), each array with the leading axis (rows,)."""
        ...


def source_of(data: Any) -> ArraySource | IndexedSource:
    """Returns the source that ``data`` are: on the device where all are arrays in memory, else read by index.

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
    return ArraySource(data) if all(map(_in_memory, jax.tree.leaves(data))) else IndexedSource(data)


def _in_memory(part: Any) -> bool:
    return hasattr(part, "__dlpack__") and not isinstance(part, np.memmap)


class ArraySource:
    """Arrays on the device with a common leading axis, the examples; :meth:`fetch` is traceable.

    Args:
        data: a pytree of arrays. A tuple is spread over the loss's arguments, any other is one argument.

    The arrays given are copied, once: they may be written to, deleted or donated afterwards. Data of which the device
    has no room for a second copy are to be given as NumPy arrays; data that memory has no room for, as an
    :class:`IndexedSource`.

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

    Nothing is copied but the rows of a batch, when it is drawn, and what is read is not compared with what was there
    before: that would mean to read all of it again. So do not change the data during a run. If they change by
    something other than the examples themselves (random augmentation), a guarantee is one for the example at an index,
    in all its versions. An item that is made of several records is protected as one, and a record in several items is
    not protected as one.

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
        self._reader = reader_of(data)

    def __len__(self) -> int:
        return self._reader.size

    @property
    def example(self) -> tuple[PyTree, ...]:
        """Shapes and dtypes of one example."""
        return self._reader.example

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
        return jax.tree.map(jnp.asarray, self._reader.read(rows))


class StepBatch(NamedTuple):
    """What one step works on.

    Attributes:
        step: number of the step.
        examples: tuple pytree of arrays (capacity, ...).
        mask (capacity,): which rows are real.
    """

    step: int
    examples: tuple[PyTree, ...]
    mask: Bool[Array, " capacity"]


def stream(
    source: Source, sampler: Sampler, key: jax.Array, steps: int, *, start: int = 0, prefetch: bool = True
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
    return _stream(source, sampler, key, range(start, start + int(steps)), prefetch)


def _stream(source: Source, sampler: Sampler, key: jax.Array, steps: range, prefetch: bool) -> Iterator[StepBatch]:
    sample = jax.jit(sampler.sample)

    def load(step: int, drawn: tuple[Array, Array]) -> StepBatch:
        indices, mask = drawn
        return StepBatch(step, source.fetch(indices), mask)

    if not prefetch:
        yield from (load(step, sample(key, step)) for step in steps)
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead: Future[StepBatch] | None = None
        for step in steps:
            ahead = pool.submit(load, step, sample(key, step)) if ahead is None else ahead
            # Before the step that the caller makes of this batch, behind which a device would have it wait.
            drawn = sample(key, step + 1) if step + 1 in steps else None
            batch = ahead.result()
            ahead = None if drawn is None else pool.submit(load, step + 1, drawn)
            yield batch
