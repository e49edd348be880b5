"""Examples from the device and from storage: the same batches for the same key, and a run that is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.train import clipped_sum, privatize
from jaxacct.train.sampling import PoissonSampler, RandomAllocationSampler
from jaxacct.train.sources import ArraySource, IndexedSource, stream

N, ROWS = 50, 30


@pytest.fixture(scope="module")
def arrays():
    generator = np.random.default_rng(0)
    return generator.normal(size=(N, 3)), generator.integers(0, 5, N)


@pytest.fixture(scope="module")
def mapped(arrays, tmp_path_factory):
    """The same arrays, on disk."""
    folder = tmp_path_factory.mktemp("examples")
    parts = []
    for name, part in zip(("x", "y"), arrays, strict=True):
        file = np.memmap(folder / name, part.dtype, "w+", shape=part.shape)
        file[:] = part
        file.flush()
        parts.append(np.memmap(folder / name, part.dtype, "r", shape=part.shape))
    return tuple(parts)


class Rows:
    """Examples one by one, and which of them were asked for."""

    def __init__(self, arrays, wrong=None):
        self.arrays, self.wrong, self.asked = arrays, wrong or {}, []

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(index)
        self.asked.append(index)
        return self.wrong.get(index, tuple(part[index] for part in self.arrays))


SAMPLERS = [PoissonSampler(N, 0.3, ROWS), RandomAllocationSampler(N, 4, ROWS)]


def privately(params, examples, mask, key):
    def loss(params, example):
        x, y = example
        return (jnp.dot(params, x) - y) ** 2

    total = clipped_sum(loss, params, examples, mask, clip_norm=1.0)
    mean = privatize(key, total, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=15.0)
    return params - 0.1 * mean.astype(params.dtype)


def run_in_memory(arrays, sampler, key, steps):
    source = ArraySource(arrays)

    @jax.jit
    def update(params, step):
        indices, mask = sampler.sample(key, step)
        return privately(params, source.fetch(indices), mask, jax.random.fold_in(key, 1000 + step))

    params = jnp.zeros(3)
    for step in range(steps):
        params = update(params, step)
    return params


def run_from(source, sampler, key, steps):
    update = jax.jit(lambda params, batch, step: privately(params, *batch, jax.random.fold_in(key, 1000 + step)))
    params = jnp.zeros(3)
    for step, examples, mask in stream(source, sampler, key, steps):
        params = update(params, (examples, mask), step)
    return params


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["poisson", "allocation"])
def test_the_run_is_that_of_arrays_in_memory_bit_for_bit(arrays, mapped, sampler):
    key = jax.random.key(3)
    expected = np.asarray(run_in_memory(arrays, sampler, key, 6))
    assert np.array_equal(run_from(IndexedSource(mapped), sampler, key, 6), expected)
    assert np.array_equal(run_from(IndexedSource(Rows(arrays)), sampler, key, 6), expected)
    other = run_from(IndexedSource(mapped), sampler, jax.random.key(4), 6)
    assert not np.array_equal(other, expected)


def test_every_row_is_fetched_padding_too(arrays):
    rows = Rows(arrays)
    source = IndexedSource(rows)
    rows.asked.clear()
    sizes = [int(batch.mask.sum()) for batch in stream(source, SAMPLERS[0], jax.random.key(0), 3)]
    assert len(set(sizes)) > 1
    assert len(rows.asked) == 3 * ROWS


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_stream_can_be_taken_up_again(mapped, prefetch):
    source, key = IndexedSource(mapped), jax.random.key(1)
    whole = [b for b in stream(source, SAMPLERS[0], key, 5, prefetch=prefetch)]
    rest = [b for b in stream(source, SAMPLERS[0], key, 2, start=3, prefetch=prefetch)]
    assert [b.step for b in rest] == [3, 4]
    for one, other in zip(whole[3:], rest, strict=True):
        assert np.array_equal(one.examples[0], other.examples[0])
    assert list(stream(source, SAMPLERS[0], key, 0, prefetch=prefetch)) == []


def test_shapes_and_dtypes_are_those_of_the_device(arrays, mapped):
    sources = ArraySource(arrays), IndexedSource(mapped), IndexedSource(Rows(arrays))
    assert len({source.example for source in sources}) == 1
    for source in sources:
        assert len(source) == N
        fetched = source.fetch(np.array([4, 0, 4, 49]))
        assert [part.shape for part in fetched] == [(4, 3), (4,)]
        assert [part.dtype for part in fetched] == [part.dtype for part in source.example]
        assert np.array_equal(fetched[1], arrays[1][[4, 0, 4, 49]])


@pytest.mark.parametrize("bad", [-1, N])
def test_an_index_that_is_none_is_named(mapped, bad):
    with pytest.raises(IndexError, match=f"index {bad} is outside of the {N} examples"):
        IndexedSource(mapped).fetch(np.array([0, bad]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((np.zeros(2), 1), r"example 7 has a part 0 of shape \(2,\) and dtype float64"),
        ((np.zeros(3, np.float32), 1), r"example 7 has a part 0 of shape \(3,\) and dtype float32"),
        ((np.zeros(3),), "example 7 has 1 parts, the first one 2"),
    ],
)
def test_an_example_unlike_the_first_is_named(arrays, wrong, message):
    source = IndexedSource(Rows(arrays, {7: wrong}))
    with pytest.raises(ValueError, match=message):
        source.fetch(np.array([6, 7]))


def test_errors_of_the_thread_reach_the_caller(arrays):
    source = IndexedSource(Rows(arrays, {index: (np.zeros(2), 1) for index in range(1, N)}))
    batches = stream(source, SAMPLERS[0], jax.random.key(0), 3)
    with pytest.raises(ValueError, match=r"has a part 0 of shape \(2,\)"):
        next(batches)


def test_bad_data_are_named(arrays):
    with pytest.raises(ValueError, match=r"parts of shapes \[\(50, 3\), \(49,\)\]"):
        IndexedSource((arrays[0], arrays[1][:-1]))
    with pytest.raises(ValueError, match="no examples"):
        ArraySource((np.zeros((0, 2)),))
    with pytest.raises(ValueError, match="no examples"):
        IndexedSource([])
    with pytest.raises(TypeError, match="cannot be read by index"):
        IndexedSource(iter([1]))
    with pytest.raises(TypeError, match="part 1 of data is a list"):
        IndexedSource((arrays[0], [1, 2]))
    with pytest.raises(TypeError, match="indices are traced"):
        jax.jit(IndexedSource(arrays).fetch)(jnp.arange(2))
    with pytest.raises(ValueError, match="indices of shape"):
        IndexedSource(arrays).fetch(np.array([0.5]))


def test_a_sampler_of_another_size_is_refused(mapped):
    with pytest.raises(ValueError, match="50 examples and the sampler 49"):
        stream(IndexedSource(mapped), PoissonSampler(49, 0.3, ROWS), jax.random.key(0), 1)
