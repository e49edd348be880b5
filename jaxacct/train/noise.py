"""Gaussian noise on a clipped sum, divided by the expected batch size, and the float64 normal generator behind it.

* :func:`privatize`, :func:`privatized`: the mechanism of a step, with independent or correlated noise;
* :func:`standard_normal`: Box and Muller's transform of Threefry's words, with its guarantee;
* :func:`_on_mesh`: the same values where each device draws those of its own shards;
* :func:`_standard_normals`: the same values for many small arrays in one program.

Every way of drawing gives the same bits: an entry is a function of its leaf's key and of its place in the leaf.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, Float32, Float64, PyTree

from jaxacct import validation
from jaxacct.numerics.precision import in_float64, is_concrete, scope, within_scope
from jaxacct.numerics.programs import as_it_is
from jaxacct.strategies import NoiseState, Strategy
from jaxacct.train.clipping.query import check_finite_clip_norm

MOST_ENTRIES = 2**30
"""Most values from one key. A pair of values takes four inputs of Threefry's 32-bit counter: beyond 2^31 values inputs
would repeat, and the noise with them."""

SMALL, TOGETHER, ROW = 2**16, 2**20, 64
"""Most entries of an array whose noise is drawn together with others', most entries of all arrays of such a group, and
pairs of values in a row of it. Larger arrays are worth a program each. Speed only."""

LEAST_CHUNK, MOST_CHUNK = 8, 14
"""Least and most binary logarithm of the number of values of a mesh's noise that a device makes at a time. Speed and
memory only."""

TURNS, PARITY = ((13, 15, 26, 6), (17, 29, 16, 24)), 0x1BD11BDA
"""Threefry's constants: by how many bits words are turned in each round, four by four, and the third word of its
schedule. With other numbers it is another generator, whose bits nobody has examined."""

SINE = (
    1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800, 1 / 6227020800, -1 / 1307674368000,
)  # fmt: skip
"""Taylor coefficients, in x^2, of sin(x)/x. On |x| <= pi/4 the remainder is below (pi/4)^16 / 17! = 6e-17. Fewer of
them would break the bound of :func:`standard_normal`."""

COSINE = (
    1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600, -1 / 87178291200, 1 / 20922789888000,
)  # fmt: skip
"""Taylor coefficients, in x^2, of cos(x). On |x| <= pi/4 the remainder is below (pi/4)^18 / 18! = 2e-18."""


def privatize(
    key: jax.Array,
    total: PyTree,
    *,
    noise_multiplier: ArrayLike,
    clip_norm: ArrayLike,
    expected_batch_size: ArrayLike,
    shardings: PyTree | None = None,
) -> PyTree:
    """Returns ``(total + noise) / expected_batch_size``: a private estimate of the mean clipped gradient.

    Args:
        key: typed scalar key, used for nothing else.
        total: pytree of arrays, the :func:`~jaxacct.train.clipping.clipped_sum`.
        noise_multiplier: standard deviation of the noise over ``clip_norm``, the same on every entry. ``inf``: nothing
            is released, which costs 0, and zeros are returned.
        clip_norm: sensitivity of ``total``, at most 2^60: a rule's ``sensitivity``.
        expected_batch_size: a public number. The realized size would leak who takes part.
        shardings: pytree like ``total`` of ``NamedSharding``: how it lies on a mesh. Each device then draws the noise
            of its own shards, the same bits as one device would. None: as XLA likes.

    Returns:
        Pytree like ``total``, float64. Whatever is done with it later is post-processing.

    Formal guarantee: if one example moves ``total`` by at most ``clip_norm`` in L2, this is the Gaussian mechanism with
    that noise multiplier, up to the generator (:func:`standard_normal`), and with float64 for the real line. Traced
    settings that are out of range are not caught.

    Raises ValueError where a concrete argument is out of range.

    >>> noisy = privatize(jax.random.key(0), jnp.ones(3), noise_multiplier=0.0, clip_norm=1.0, expected_batch_size=4.0)
    >>> noisy.tolist()
    [0.25, 0.25, 0.25]
    """
    noisy, _ = privatized(
        key, total, None, None, noise_multiplier=noise_multiplier, clip_norm=clip_norm,
        expected_batch_size=expected_batch_size, shardings=shardings,
    )  # fmt: skip
    return noisy


def start(strategy: Strategy, like: PyTree) -> NoiseState:
    """Returns the state of correlated noise before the first step: float64, as the noise that it cancels is.

    The state remembers the noise of earlier steps, which later steps take off again. In float32 its rounding would move
    with the gradients: one example that moves d entries would be told from none by up to sqrt(d) of their last bits
    more than the sensitivity says.
    """
    with scope():
        return strategy.start(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float64), like))


def privatized(
    key: jax.Array,
    total: PyTree,
    strategy: Strategy | None,
    state: NoiseState | None,
    *,
    noise_multiplier: ArrayLike,
    clip_norm: ArrayLike,
    expected_batch_size: ArrayLike,
    shardings: PyTree | None = None,
) -> tuple[PyTree, NoiseState | None]:
    """Returns :func:`privatize` with the next row of C^-1 z in place of z, and the state after it.

    z is the noise that ``privatize`` adds with this key, in units of the clipping norm: the norm may change on the way.
    Without a strategy there is no state.

    Raises TypeError where numbers of the state are not float64 as :func:`start` makes them.
    """
    if strategy is not None:
        made = jax.tree.leaves(jax.eval_shape(lambda: start(strategy, total)))
        for leaf, like in zip(jax.tree.leaves(state), made, strict=True):
            if jnp.issubdtype(like.dtype, jnp.floating) and leaf.dtype != like.dtype:
                raise TypeError(
                    f"the state of correlated noise has {leaf.dtype} in the place of {like.dtype}: what saved or "
                    "copied it rounded it, and noise that was released would not cancel. Restore it bit for bit."
                )
    given = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "expected_batch_size": expected_batch_size}
    for name, value in given.items():  # an array would give some entries other noise than is accounted
        validation.check_scalar(value, name)
    validation.check_noise_multiplier(noise_multiplier)
    check_finite_clip_norm(clip_norm)
    validation.check_positive(expected_batch_size, "expected_batch_size")
    leaves, structure = jax.tree.flatten(total)
    for leaf in leaves:
        if not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            raise TypeError(f"total has a leaf of dtype {jnp.asarray(leaf).dtype}: give sums of real gradients.")
    if is_concrete(noise_multiplier) and np.isinf(np.asarray(noise_multiplier)):
        if strategy is not None:
            raise ValueError("noise_multiplier = inf with a strategy, whose noise later steps take off: give a number.")
        with scope():
            return jax.tree.map(lambda leaf: jnp.zeros(np.shape(leaf), jnp.float64), total), state
    keys = jax.random.split(key, max(len(leaves), 1))
    numbers = noise_multiplier, clip_norm, expected_batch_size
    places = jax.tree.leaves(shardings) if jax.random.key_impl(keys) == "threefry2x32" else []
    drawn: list[Array] = []
    if not all(place.is_fully_replicated for place in places):
        if strategy is None:
            return jax.tree.unflatten(structure, _on_mesh(keys, leaves, places, numbers)), state
        # Correlated noise needs z by itself: the mesh's loop adds it, with deviation 1, to sums of zero.
        drawn = _on_mesh(keys, [jnp.zeros_like(leaf) for leaf in leaves], places, (1.0, 1.0, 1.0))
    return _privatized(keys, total, drawn, strategy, state, *numbers)


@in_float64(safe=as_it_is)
def _privatized(
    keys: jax.Array,
    total: PyTree,
    drawn: list[Array],
    strategy: Strategy | None,
    state: NoiseState | None,
    *numbers: ArrayLike,
) -> tuple[PyTree, NoiseState | None]:
    """Returns the noisy mean in float64, and the strategy's state; ``drawn`` is the noise where a mesh drew it."""
    leaves, structure = jax.tree.flatten(total)
    noise = jax.tree.unflatten(structure, drawn or _standard_normals(keys, [leaf.shape for leaf in leaves]))
    if strategy is not None:
        assert state is not None  # never independent noise in the place of the correlated noise that is accounted
        noise, state = strategy.correlate(noise, state)
    multiplier, norm, size = (jnp.asarray(number, jnp.float64) for number in numbers)
    deviation = multiplier * norm
    noisy = jax.tree.map(lambda leaf, row: (leaf.astype(jnp.float64) + deviation * row) / size, total, noise)
    return noisy, state


@in_float64
def deviation_of_mean(
    noise_multiplier: ArrayLike, clip_norm: ArrayLike, expected_batch_size: ArrayLike
) -> Float32[Array, ""]:
    """Returns the standard deviation of the noise in each entry of what :func:`privatize` returns, to nearest float32.

    Public wherever the three are; for optimizers that know of the noise.

    >>> float(deviation_of_mean(2.0, 0.5, 4.0))
    0.25
    """
    multiplier, clip_norm, divisor = (
        jnp.asarray(value, jnp.float64) for value in (noise_multiplier, clip_norm, expected_batch_size)
    )
    return (multiplier * clip_norm / divisor).astype(jnp.float32)


@in_float64(safe=as_it_is)
def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> Float64[Array, ...]:
    """Returns independent standard normal float64 values, whatever the ambient precision is.

    Args:
        key: typed scalar key, used for nothing else. Threefry keys are the fast ones here; others work, too.
        shape: of at most 2^30 entries.

    Formal guarantee: were the generator's bits truly random, each value would be Box and Muller's transform of two
    independent uniform numbers on a grid of 2^-64, up to a few float64 roundoffs. Its distribution function is within
    2^-50 of the normal one everywhere, and it reaches 9.4, which fewer than one in 2^64 pairs exceed. Float32 would not
    do: its normal values end at 5.4, an event of probability 7e-8 for each entry, which for a large model is no smaller
    than delta, and their last bits do not cover those of a float64 sum (Mironov, 2012, "On significance of the least
    significant bits for differential privacy").

    Source: Box and Muller (1958), "A note on the generation of random normal deviates".

    >>> standard_normal(jax.random.key(1), (2,)).dtype
    dtype('float64')
    """
    size = math.prod(shape)
    if size > MOST_ENTRIES:
        raise ValueError(f"shape = {shape} has {size} entries: draw at most {MOST_ENTRIES} from one key.")
    return _first(_box_muller(_words(key, (size + 1) // 2)), size, shape)


@within_scope
def _on_mesh(
    keys: jax.Array, total: list[Array], places: list[NamedSharding], numbers: tuple[ArrayLike, ...]
) -> list[Array]:
    """Returns ``(total + multiplier * norm * standard_normal) / size`` of each leaf, each device of its own shards.

    One loop goes over chunks of all leaves, for in pairs of float32 a value is thousands of operations. A program with
    these operations for each of 32 leaves was not compiled for a TPU in nine minutes; this one is in 12 seconds.
    """
    # ``counts``: entries of each leaf's shard. A chunk is a fixed number of entries of one shard, the last one padded;
    # ``owner`` and ``start`` tell the leaf and the first entry of each chunk. ``stride`` gives an entry's place in the
    # whole leaf from its coordinates, leaves of lower rank having leading axes of length 1.
    shapes, parts = (
        [leaf.shape for leaf in total],
        [place.shard_shape(leaf.shape) for leaf, place in zip(total, places, strict=True)],
    )
    sizes, counts = (np.array([math.prod(shape) for shape in some]) for some in (shapes, parts))
    if max(sizes) > MOST_ENTRIES:
        raise ValueError(f"total has a leaf of {max(sizes)} entries: draw at most {MOST_ENTRIES} from one key.")
    chunk = 2 ** min(max(int(counts.mean() / 4).bit_length(), LEAST_CHUNK), MOST_CHUNK)
    chunks, rank = -(-counts // chunk), max(map(len, shapes))
    whole, part = (
        np.array([(1,) * (rank - len(shape)) + shape for shape in some], np.uint32) for some in (shapes, parts)
    )
    stride = np.array([[math.prod(row[axis + 1 :]) for axis in range(rank)] for row in whole.tolist()], np.uint32)
    owner, start = np.repeat(np.arange(len(total)), chunks), np.concatenate([np.arange(n) * chunk for n in chunks])

    def first(place: NamedSharding, part: tuple[int, ...]) -> Array:
        entries = (*(None,) * (rank - len(part)), *place.spec, *(None,) * (len(part) - len(place.spec)))
        sides = (1,) * (rank - len(part)) + part
        found = [0 if e is None else jax.lax.axis_index(e) * side for e, side in zip(entries, sides, strict=True)]
        return jnp.stack([jnp.asarray(value, jnp.uint32) for value in found])

    def on_each(key: Array, numbers: Array, *total: Array) -> list[Array]:
        filled = zip(total, chunks * chunk - counts, strict=True)
        flat = jnp.concatenate(
            [jnp.pad(leaf.astype(jnp.float64).reshape(-1), (0, missing)) for leaf, missing in filled]
        )
        origin = jnp.stack([first(place, part) for place, part in zip(places, parts, strict=True)])
        tables = key, jnp.asarray((sizes + 1) // 2, jnp.uint32), jnp.asarray(part), jnp.asarray(stride), origin
        rows = jax.tree.map(lambda table: table[owner], tables)
        noisy = _of_chunks(numbers, jnp.asarray(start, jnp.uint32), *rows, flat.reshape(-1, chunk)).reshape(-1)
        ends = np.cumsum(chunks * chunk)
        return [
            noisy[end - n * chunk :][:count].reshape(shape)
            for end, n, count, shape in zip(ends.tolist(), chunks.tolist(), counts.tolist(), parts, strict=True)
        ]

    specs = [place.spec for place in places]
    spread = jax.shard_map(
        on_each, mesh=places[0].mesh, in_specs=(PartitionSpec(), PartitionSpec(), *specs), out_specs=specs,
        check_vma=False,
    )  # fmt: skip
    # A mesh of explicit axes, as jax.make_mesh makes it, accepts only arrays that lie as the specs say.
    given = [jax.device_put(leaf, place) for leaf, place in zip(total, places, strict=True)]
    return spread(jax.random.key_data(keys), jnp.stack([jnp.asarray(n, jnp.float64) for n in numbers]), *given)


@in_float64(safe=as_it_is)
def _of_chunks(numbers: Array, *rows: Array) -> Array:
    """Returns :func:`_on_mesh` of chunks, given by their start in the shard, what tells their leaf, and their total.

    An entry is a function of the leaf's key and its place. A pair's two values mostly lie on different devices, so that
    each hashes the pair by itself.
    """
    deviation, size = numbers[0] * numbers[1], numbers[2]

    def noisy(row: tuple[Array, ...]) -> Array:
        start, key, pairs, part, stride, origin, total = row
        rest = start + jnp.arange(total.size, dtype=jnp.uint32)
        place = jnp.zeros_like(rest)
        # From the entry's number in the shard to its place in the leaf: one coordinate a pass, the last axis first.
        for axis in reversed(range(part.size)):
            place += (origin[axis] + rest % part[axis]) * stride[axis]
            rest //= part[axis]
        is_sine = place >= pairs
        words = _hashes(key, pairs, jnp.where(is_sine, place - pairs, place))
        return (total + deviation * _transformed(words, is_sine)) / size

    # A loop over chunks without a state: memory for one chunk's words at a time, and one body to compile.
    return jax.lax.map(noisy, rows)


def _standard_normals(keys: jax.Array, shapes: list[tuple[int, ...]]) -> list[Array]:
    """Returns :func:`standard_normal` by each key; many small arrays are drawn in one program, from the same words.

    One program for each would take some 0.15 s of compiling. Pairs are laid out in rows of ROW, each of which belongs
    to one array; an array's last row is filled up by pairs that nobody looks at.
    """
    sizes = [math.prod(shape) for shape in shapes]
    drawn = dict[int, Array]()
    # One pass per group of small arrays; what no group has is drawn by itself below. ``owner`` is the array of each
    # row, ``place`` the row's number within its array.
    for group in _groups(sizes) if jax.random.key_impl(keys) == "threefry2x32" else []:
        pairs = np.array([(sizes[i] + 1) // 2 for i in group])
        rows = -(-pairs // ROW)
        owner, ends = np.repeat(np.arange(len(group)), rows), np.cumsum(rows)
        place = np.arange(len(owner)) - np.repeat(ends - rows, rows)
        data = jax.random.key_data(keys)[np.array(group)[owner]]
        words = jax.vmap(_row_of_words)(data, jnp.asarray(pairs[owner], jnp.uint32), jnp.asarray(place, jnp.uint32))
        # A loop writes its result to memory. Without it the transform would be compiled again for each use, and an
        # optimizer has three.
        values = jax.lax.map(functools.partial(_transformed, words), jnp.arange(2) == 1)
        for i, count, end, own in zip(group, pairs.tolist(), ends.tolist(), rows.tolist(), strict=True):
            halves = values[:, end - own : end].reshape(2, -1)[:, :count]
            drawn |= {i: _first(halves, sizes[i], shapes[i])}
    return [drawn[i] if i in drawn else standard_normal(keys[i], shape) for i, shape in enumerate(shapes)]


def _row_of_words(key: Array, pairs: Array, row: Array) -> tuple[Array, ...]:
    """Returns the words of the ROW pairs of one row of an array of ``pairs`` pairs."""
    return _hashes(key, pairs, row * jnp.uint32(ROW) + jnp.arange(ROW, dtype=jnp.uint32))


def _groups(sizes: list[int]) -> list[list[int]]:
    """Returns which arrays to draw together: those up to SMALL entries, of TOGETHER in all at most."""
    groups, room = list[list[int]](), 0
    # In the arrays' order: ``room`` is how many entries still fit the last group. A group of one gains nothing.
    for number, size in enumerate(sizes):
        if size <= SMALL:
            if size > room:
                groups.append([])
                room = TOGETHER
            groups[-1].append(number)
            room -= size
    return [group for group in groups if len(group) > 1]


def _words(key: jax.Array, pairs: int) -> tuple[Array, ...]:
    """Returns four arrays (pairs,) of random 32-bit words: a 64-bit number each for the radius and the turn."""
    if jax.random.key_impl(key) != "threefry2x32":
        return tuple(jax.random.bits(key, (4, pairs), jnp.uint32))
    return _threefry(jax.random.key_data(key), jnp.uint32(pairs), pairs)


@functools.partial(jax.jit, static_argnums=2)
def _threefry(key: Array, pairs: Array, most: int) -> tuple[Array, ...]:
    """Returns :func:`_hashes` of all pairs, (most,) each, of which the first ``pairs`` entries count."""
    return _hashes(key, pairs, jnp.arange(most, dtype=jnp.uint32))


def _hashes(key: Array, pairs: Array, place: Array) -> tuple[Array, ...]:
    """Returns the hashes of 0 to 4 pairs - 1, the first half's each with one of the second: no two inputs are alike.

    They are four quarters, and each is returned at ``place`` alone, whose entries are below ``pairs``.

    ``jax.random.bits`` keeps one word of the two that it hashes; here both count. The bits are those of
    ``jax.extend.random.threefry_2x32``, four times as fast on a CPU: words are turned by constants, not by numbers that
    a loop looks up. Sixteen of the twenty rounds still go through a loop of two passes. It writes its result to memory;
    without it XLA would hash again for each use of a word, at half the speed beside float64.

    Source: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3".
    """
    schedule = jnp.stack([key[0], key[1], key[0] ^ key[1] ^ PARITY])

    def four_rounds(left: Array, right: Array, turns: tuple[int, ...], done: Any) -> tuple[Array, Array]:
        for turn in turns:
            left += right
            right = left ^ (right << jnp.uint32(turn) | right >> jnp.uint32(32 - turn))
        return left + schedule[(done + 1) % 3], right + schedule[(done + 2) % 3] + jnp.uint32(done + 1)

    def eight_rounds(i: Array, words: tuple[Array, Array]) -> tuple[Array, Array]:
        return four_rounds(*four_rounds(*words, TURNS[1], 2 * i + 1), TURNS[0], 2 * i + 2)

    # Twenty rounds: four before the loop, eight in each of its passes. The state is the pair of words, and a pass's
    # number gives the schedule's words to add.
    count = place[None] + jnp.stack([jnp.uint32(0), pairs]).reshape(2, *(1,) * place.ndim)
    start = four_rounds(count + schedule[0], count + 2 * pairs + schedule[1], TURNS[0], 0)
    left, right = jax.lax.fori_loop(0, 2, eight_rounds, start)
    return left[0], left[1], right[0], right[1]


@within_scope
def _first(values: Array, size: int, shape: tuple[int, ...]) -> Array:
    """Returns the first ``size`` values in that shape: of an odd number, the last sine's value is dropped."""
    return values.reshape(-1)[:size].reshape(shape)


def _box_muller(words: Sequence[Array]) -> Array:
    """Returns an array (2, pairs): the cosines' values and the sines'."""
    return _transformed([word[None] for word in words], jnp.arange(2)[:, None] == 1)


@within_scope
def _transformed(words: Sequence[Array], is_sine: Array) -> Array:
    """Returns the sines' values or the cosines', by polynomials, for XLA's own functions take ten times as long."""
    high, low = words[0].astype(jnp.float64), words[1].astype(jnp.float64)
    uniform = (high * 2.0**32 + low + 0.5) * 2.0**-64  # above 0 always; rounds to 1 at most, whose logarithm is 0
    radius = jnp.sqrt(-2 * jnp.log(uniform))
    # An eighth of a turn on, the top two bits tell the axis that is nearest, and the others the angle from it: all
    # exact but the rounding of that angle to 53 bits.
    shifted = words[2] + jnp.uint32(2**29)
    axis, rest = shifted >> 30, (shifted & jnp.uint32(2**30 - 1)).astype(jnp.float64)
    angle = ((rest * 2.0**32 + words[3].astype(jnp.float64)) * 2.0**-62 - 0.5) * (jnp.pi / 2)
    square = angle * angle
    cosine, sine = _polynomial(COSINE, square), angle * _polynomial(SINE, square)
    # Selected entry by entry: joining two arrays would branch at each entry, which vector instructions cannot do.
    value = radius * jnp.where(((axis & 1) == 1) ^ is_sine, jnp.where(is_sine, sine, -sine), cosine)
    # The sign comes last: a compiler that sees this product added to something would leave out its rounding (a fused
    # multiply-add), on one device and not on a mesh, where the values come from a loop.
    return jnp.where(axis >= 2, -value, value)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Returns a polynomial by Horner's rule, coefficients of the lowest power first."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value
