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
from jaxtyping import Array, Bool, Int32

from jaxacct import validation
from jaxacct.train.owned import owned_array
from jaxacct.train.sampling import Sampler

Example = tuple[jax.ShapeDtypeStruct, ...]
"""Shape and dtype of each part of one example, as the device sees them."""


class Source(Protocol):
    """Examples, numbered from 0."""

    @property
    def example(self) -> Example:
        """What one example looks like."""
        ...

    def __len__(self) -> int: ...

    def fetch(self, indices: Any) -> tuple[Array, ...]:
        """Returns the examples at ``indices`` (rows,), each part with the leading axis (rows,)."""
        ...


class ArraySource:
    """Arrays on the device with a common leading axis, the examples; :meth:`fetch` is traceable.

    The arrays given are copied, once: they may be written to, deleted or donated afterwards. Data of which the device
    has no room for a second copy are to be given as NumPy arrays; data that memory has no room for, as an
    :class:`IndexedSource`.

    Raises ValueError where the arrays have no examples, or not the same number.

    >>> source = ArraySource((np.arange(6.0).reshape(3, 2), np.arange(3)))
    >>> len(source), [part.shape for part in source.fetch(jnp.array([2, 0, 0, 1]))]
    (3, [(4, 2), (4,)])
    """

    def __init__(self, data: tuple[Any, ...]) -> None:
        self.data: tuple[Array, ...] = tuple(owned_array(part) for part in data)
        self._size = _common_size(self.data)

    def __len__(self) -> int:
        return self._size

    @property
    def example(self) -> Example:
        """Shape and dtype of each part of one example."""
        return tuple(jax.ShapeDtypeStruct(part.shape[1:], part.dtype) for part in self.data)

    def fetch(self, indices: Int32[Array, " rows"]) -> tuple[Array, ...]:
        """Returns the examples at ``indices``; inside ``jit`` a gather."""
        return tuple(part[indices] for part in self.data)


class IndexedSource:
    """Examples read by index: memory-mapped arrays, or any object with ``__len__`` and ``__getitem__``.

    Args:
        data: a tuple of arrays with a common leading axis, such as ``numpy.memmap``, of which the rows asked for are
            read together; or an object whose ``__getitem__`` takes a whole number and returns one example, a tuple of
            arrays or numbers (or a single one), and whose examples are read one after the other. All examples have the
            shapes and dtypes of the first.

    Nothing is copied but the rows of a batch, when it is drawn, and what is read is not compared with what was there
    before: that would mean to read all of it again. So do not change the data during a run. If they change by
    something other than the examples themselves, a guarantee is one for the example at an index, in all its versions.

    :meth:`fetch` runs outside of ``jit``; what it returns has a static shape and the dtypes that ``jax.numpy.asarray``
    gives, as if the data had been put on the device whole.

    Raises ValueError where there are no examples or the parts' lengths differ; TypeError where ``data`` has no length
    or cannot be read by index.

    >>> source = IndexedSource((np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(3)))
    >>> [part.tolist() for part in source.fetch(np.array([2, 0]))]
    [[[4.0, 5.0], [0.0, 1.0]], [2, 0]]
    """

    def __init__(self, data: Any) -> None:
        self._parts = data if isinstance(data, tuple) else None
        if self._parts is not None:
            for place, part in enumerate(self._parts):
                if not hasattr(part, "shape") or not hasattr(part, "dtype"):
                    raise TypeError(
                        f"part {place} of data is a {type(part).__name__}: give arrays with shape and dtype, or one "
                        "object whose items are examples."
                    )
            self._size = _common_size(self._parts)
        elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            self._size = len(data)
            if self._size == 0:
                raise ValueError("data has no examples.")
        else:
            raise TypeError(
                f"data of type {type(data).__name__} cannot be read by index: give arrays, or an object with __len__ "
                "and __getitem__."
            )
        self._data = data
        first = [np.asarray(part[0]) for part in self._parts] if self._parts is not None else _as_example(data[0])
        self._example = tuple((part.shape, part.dtype) for part in first)

    def __len__(self) -> int:
        return self._size

    @property
    def example(self) -> Example:
        """Shape and dtype of each part of one example."""
        return tuple(jax.ShapeDtypeStruct(s, jax.dtypes.canonicalize_dtype(dtype)) for s, dtype in self._example)

    def fetch(self, indices: Any) -> tuple[Array, ...]:
        """Returns the examples at concrete ``indices`` (rows,), on the device.

        Raises IndexError for an index that is none, and ValueError for an example unlike the first; both name it.
        """
        if isinstance(indices, jax.core.Tracer):
            raise TypeError("indices are traced: an IndexedSource is read outside of jit; see jaxacct.train.stream.")
        rows = np.asarray(indices)
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise ValueError(f"indices of shape {rows.shape} and dtype {rows.dtype}: give whole numbers, one a row.")
        outside = rows[(rows < 0) | (rows >= self._size)]
        if outside.size:
            raise IndexError(f"index {outside[0]} is outside of the {self._size} examples of this source.")
        if self._parts is not None:
            # Copied at once: the next batch is fetched early, and may come in the same memory.
            return tuple(owned_array(part[rows]) for part in self._parts)
        examples = [self._checked(int(row)) for row in rows]
        return tuple(
            jnp.asarray(np.stack([example[i] for example in examples]) if examples else np.zeros((0, *shape), dtype))
            for i, (shape, dtype) in enumerate(self._example)
        )

    def _checked(self, index: int) -> list[np.ndarray]:
        example = _as_example(self._data[index])
        if len(example) != len(self._example):
            raise ValueError(f"example {index} has {len(example)} parts, the first one {len(self._example)}.")
        for place, (part, (shape, dtype)) in enumerate(zip(example, self._example, strict=True)):
            if part.shape != shape or part.dtype != dtype:
                raise ValueError(
                    f"example {index} has a part {place} of shape {part.shape} and dtype {part.dtype}, the first one "
                    f"of shape {shape} and dtype {dtype}: a compiled step needs the same for all."
                )
        return example


class StepBatch(NamedTuple):
    """What one step works on.

    Attributes:
        step: number of the step.
        examples: each part (capacity, ...).
        mask (capacity,): which rows are real.
    """

    step: int
    examples: tuple[Array, ...]
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
    if len(source) != sampler.num_examples:
        raise ValueError(
            f"the source has {len(source)} examples and the sampler {sampler.num_examples}: its rate would not be "
            "the one that is accounted."
        )
    validation.check_steps(steps)
    validation.check_steps(start, "start")
    return _stream(source, sampler, key, range(start, start + int(steps)), prefetch)


def _stream(source: Source, sampler: Sampler, key: jax.Array, steps: range, prefetch: bool) -> Iterator[StepBatch]:
    sample = jax.jit(sampler.sample)

    def load(step: int) -> StepBatch:
        indices, mask = sample(key, step)
        return StepBatch(step, source.fetch(indices), mask)

    if not prefetch:
        yield from map(load, steps)
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead: Future[StepBatch] | None = None
        for step in steps:
            batch = (pool.submit(load, step) if ahead is None else ahead).result()
            ahead = pool.submit(load, step + 1) if step + 1 in steps else None
            yield batch


def _as_example(item: Any) -> list[np.ndarray]:
    return [np.asarray(part) for part in (item if isinstance(item, (tuple, list)) else (item,))]


def _common_size(parts: tuple[Any, ...]) -> int:
    shapes = [tuple(part.shape) for part in parts]
    if not shapes or any(len(shape) == 0 for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
        raise ValueError(f"data has parts of shapes {shapes}: give arrays with one common leading axis, the examples.")
    if shapes[0][0] == 0:
        raise ValueError("data has no examples.")
    return int(shapes[0][0])
