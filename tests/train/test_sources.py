"""Examples from the device and from storage: the same batches for the same key, and a run that is the same."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers.shared import SGD, sharing
from helpers.thorough import cases

from jaxacct.train import DPTrainer
from jaxacct.train.clipping import clipped_sum
from jaxacct.train.noise import privatize
from jaxacct.train.sampling import PoissonSampler, RandomAllocationSampler
from jaxacct.train.sources import ArraySource, IndexedSource, source_of, stream

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


@jax.jit
def update_on(params, batch, key, step):
    return privately(params, *batch, jax.random.fold_in(key, 1000 + step))


def run_from(source, sampler, key, steps):
    params = jnp.zeros(3)
    for step, examples, mask in stream(source, sampler, key, steps):
        params = update_on(params, (examples, mask), key, step)
    return params


@pytest.mark.parametrize("sampler", cases(SAMPLERS[:1], SAMPLERS[1:]))
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


# What users have. Stand-ins in the shapes of other libraries, which are no dependencies.


class HuggingFace:
    """``datasets.Dataset``: a dict of columns for a list, and a single item in other dtypes than a batch's."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns["y"])

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        if isinstance(key, list):
            return {name: column[key] for name, column in self.columns.items()}
        return {name: column[key].tolist() for name, column in self.columns.items()}

    def __getitems__(self, keys):
        batch = self[keys]
        return [{name: column[i] for name, column in batch.items()} for i in range(len(keys))]


class Grain(HuggingFace):
    """A random-access source of Grain: items by whole numbers, one at a time."""

    __getitems__ = property()

    def __getitem__(self, key):
        return {name: column[int(key)] for name, column in self.columns.items()}


class PyTorch:
    """A ``Dataset``: items that are lists of what NumPy reads."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns["y"])

    def __getitem__(self, key):
        return [column[key] for column in self.columns.values()]


class PyTorchStream(PyTorch):
    """An ``IterableDataset`` with a length: it inherits a ``__getitem__`` that is not implemented."""

    def __getitem__(self, key):
        raise NotImplementedError

    def __iter__(self):
        return iter(())


class OnDisk:
    """An array of h5py: rows in increasing order, each once."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, rows):
        if np.ndim(rows) and not (np.diff(rows) > 0).all():
            raise TypeError("Indexing elements must be in increasing order")
        return self.array[rows]


class Frame:
    """A series or frame of pandas: its ``[]`` goes by labels."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __getitem__(self, label):
        raise KeyError(label)

    def to_numpy(self):
        return self.array


COLUMNS = {
    "x": np.random.default_rng(1).normal(size=(N, 3)).astype(np.float32),
    "y": np.random.default_rng(2).integers(0, 2, N).astype(np.int32),
}


def spread(model, x, y):
    return optax.losses.softmax_cross_entropy_with_integer_labels(model(x), y)


def whole(model, example):
    return spread(model, **example)


def trained(data, loss):
    trainer = sharing(DPTrainer(
        nnx.Linear(3, 2, rngs=nnx.Rngs(0)), loss, SGD, data,
        epsilon=2.0, delta=1e-3, noise_multiplier=2.0, expected_batch_size=15, clip_norm=1.0, seed=0,
    ))  # fmt: skip
    trainer.fit(steps=2)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(trainer.state.params)])


def mapped_columns(folder):
    for name, column in COLUMNS.items():
        np.save(folder / f"{name}.npy", column)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in COLUMNS}


@pytest.mark.parametrize(
    ("data", "kind", "in_order"),
    [
        (COLUMNS, ArraySource, "xy"),
        ({name: jnp.asarray(column) for name, column in COLUMNS.items()}, ArraySource, "xy"),
        (({"label": [COLUMNS["y"]]}, COLUMNS["x"]), ArraySource, "yx"),
        (list(COLUMNS.values()), ArraySource, "xy"),
        ((Frame(COLUMNS["x"]), Frame(COLUMNS["y"])), ArraySource, "xy"),
        (COLUMNS["x"], ArraySource, "x"),
        (mapped_columns, IndexedSource, "xy"),
        ({name: OnDisk(column) for name, column in COLUMNS.items()}, IndexedSource, "xy"),
        ((OnDisk(COLUMNS["y"]), COLUMNS["x"]), IndexedSource, "yx"),
        (HuggingFace(COLUMNS), IndexedSource, "xy"),
        (Grain(COLUMNS), IndexedSource, "xy"),
        (PyTorch(COLUMNS), IndexedSource, "xy"),
        (IndexedSource([{"x": x, "y": y} for x, y in zip(*COLUMNS.values(), strict=True)]), IndexedSource, "xy"),
    ],
)
def test_examples_are_the_same_whatever_they_are_in(data, kind, in_order, tmp_path):
    source = source_of(data(tmp_path) if callable(data) else data)
    assert isinstance(source, kind)
    assert len(source) == N
    rows = np.array([7, 0, 7, 49])
    fetched = source.fetch(rows)
    assert jax.tree.structure(fetched) == jax.tree.structure(source.example)
    for part, like, name in zip(*map(jax.tree.leaves, (fetched, source.example)), in_order, strict=True):
        assert np.array_equal(part, COLUMNS[name][rows])
        assert (part.shape[1:], part.dtype) == (like.shape, like.dtype)


@pytest.mark.exhaustive
def test_a_dict_is_one_argument_of_the_loss_and_a_tuple_several():
    assert np.array_equal(trained(COLUMNS, whole), trained(tuple(COLUMNS.values()), spread))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ((example for example in ()), TypeError, "generator cannot be read by index, it is a stream.*Poisson"),
        (PyTorchStream(COLUMNS), TypeError, "PyTorchStream cannot be read by index, it is a stream.*Poisson"),
        (types.MappingProxyType(COLUMNS), TypeError, "entries have names.*a dict of arrays"),
        (object(), TypeError, "object cannot be read by index: give arrays"),
        ([COLUMNS], TypeError, r"IndexedSource\(list\)"),
        ({"x": COLUMNS["x"], "y": [0, 1]}, TypeError, "part y of data is a list"),
        ({"x": COLUMNS["x"], "y": OnDisk(np.array(["a"] * N))}, TypeError, "part y of data is of dtype <U1"),
        ((COLUMNS["x"], Frame(np.array(["a"] * N))), TypeError, "part 1 of data is of dtype <U1"),
        (IndexedSource, TypeError, "cannot be read by index"),
    ],
)
def test_data_that_cannot_be_sampled_are_refused_with_the_reason(data, error, words):
    with pytest.raises(error, match=words):
        source_of(data)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([{"x": None}], "part x of data is of dtype object"),
        ([{"x": [[1], [1, 2]]}], "part x of data is of dtype object"),
        ([{"x": 1}, {"z": 1}], "example 1 is .*'z'.*the first one .*'x'"),
        ([{"x": [1]}, {"x": [1, 2]}], r"example 1 has a part x of shape \(2,\).*pad or cut"),
        (range(2**31), "2147483648 examples.*without repetitions"),
    ],
)
def test_items_that_do_not_fit_are_named(items, words):
    with pytest.raises((TypeError, ValueError), match=words):
        IndexedSource(items).fetch(np.array([0, 1]))
