"""Randomness of a run: its keys, and normal values in float64 that are drawn from them.

A key comes from the operating system's entropy unless a seed is given, and is then never twice the same. It is secret:
whoever has it can redo the noise and subtract it. Nothing here shows one.

* :func:`run_key`, :func:`describe_seed`: a run's key, and what a report may say of it;
* :func:`standard_normal`: Box and Muller's transform of Threefry's words, with its guarantee;
* :func:`standard_normals`: the same values for many small arrays in one program;
* :func:`noisy_on_mesh`: the same values, added where each device draws those of its own shards.

Every way of drawing gives the same bits: an entry is a function of its leaf's key and of its place in the leaf.
"""

from __future__ import annotations

import functools
import math
import numbers
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, Float64

from jaxacct.numerics.precision import kernel, within_scope
from jaxacct.train.ownership import group_neighbours

IMPLEMENTATION = "threefry2x32"
"""Name of the generator: fixed, so that a seed means the same run whatever default the process has set."""

ENTROPY = "operating system"
"""Description of the seed of an entropy-made key: nobody can make the same keys again."""


MOST_ENTRIES = 2**30
"""Most values from one key. A pair of values takes four inputs of Threefry's 32-bit counter: beyond 2^31 values inputs
would repeat, and the noise with them."""


class DerivedKey(NamedTuple):
    """A key made from a seed, and what the reader of a report knows: the seed, and not the key.

    Attributes:
        key: typed scalar key.
        description: what :func:`describe_seed` says of the seed.
    """

    key: jax.Array
    description: int | str

    def __repr__(self) -> str:
        return f"<DerivedKey: {self.description}>"  # not the key


def run_key(seed: int | jax.Array | DerivedKey | None = None) -> jax.Array:
    """Returns the typed key that a whole run is derived from.

    Args:
        seed: a whole number in [0, 2^64), a typed scalar key or one derived, which is returned as it is, or None: 64
            bits of the operating system's entropy. A known seed makes the noise known and voids the privacy guarantee:
            for experiments and tests only.

    Returns:
        A scalar key array.

    Raises:
        ValueError, TypeError: a seed out of range or of another kind.

    >>> bool(jax.random.key_data(run_key(7))[1] == 7)
    True
    >>> bool((jax.random.key_data(run_key()) == jax.random.key_data(run_key())).all())
    False
    """
    if isinstance(seed, DerivedKey):
        return run_key(seed.key)
    if isinstance(seed, jax.Array):
        if not jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) or seed.shape != ():
            raise TypeError(
                f"seed has dtype {seed.dtype} and shape {seed.shape}: give one typed key, jax.random.key(...)."
            )
        return seed
    if seed is None:
        number = secrets.randbits(64)  # all of a Threefry key: guessing it costs 2^64 tries
    elif isinstance(seed, numbers.Integral) and not isinstance(seed, bool):
        number = int(seed)
    else:
        raise TypeError(f"seed = {seed!r} is not a seed: give a whole number, or None for the system's entropy.")
    if not 0 <= number < 2**64:
        raise ValueError(f"seed = {number} is out of range: give a whole number from 0 to 2**64 - 1.")
    words = jnp.array(np.array([number >> 32, number & 0xFFFFFFFF], np.uint32))
    return jax.random.wrap_key_data(words, impl=IMPLEMENTATION)


def threefry(key: jax.Array) -> jax.Array:
    """Returns a Threefry key made from a typed key of any generator: the same under ``vmap`` as alone.

    With some generators (``rbg``) all draws of a batch follow from its first key: one example would change the others'.

    >>> str(jax.random.key_impl(threefry(jax.random.key(0, impl="rbg"))))
    'threefry2x32'
    """
    if jax.random.key_impl(key) == IMPLEMENTATION:
        return key
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl=IMPLEMENTATION)


def describe_seed(seed: int | jax.Array | DerivedKey | None) -> int | str:
    """Returns what a report may say of the seed: an entropy-made key is never shown, or its noise could be redone.

    >>> describe_seed(None), describe_seed(3)
    ('operating system', 3)
    """
    if isinstance(seed, DerivedKey):
        return seed.description
    if seed is None:
        return ENTROPY
    if isinstance(seed, jax.Array):
        return "key given by the caller"
    if np.ndim(seed):
        raise TypeError(f"seed of shape {np.shape(seed)}: give a whole number, or a typed key, jax.random.key(...).")
    return int(seed)


# ----------------------------------------------------------------------------------------------------
# Normal values in float64 from Threefry's words.
# ----------------------------------------------------------------------------------------------------


@kernel(own_float64=True)
def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> Float64[Array, ...]:
    """Returns independent standard normal float64 values, whatever the ambient precision is.

    Args:
        key: typed scalar key, used for nothing else. Threefry keys are the fast ones here; others work, too.
        shape: of at most 2^30 entries.

    Formal guarantee: were the generator's bits truly random, each value would be Box and Muller's transform of two
    independent uniform numbers on a grid of 2^-64, up to a few float64 roundoffs (on a TPU, of 48 bits, for whose
    logarithm and root XLA promises no error). Its distribution function is within
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
    return _cut_to_shape(_box_muller(_words(key, (size + 1) // 2)), size, shape)


@within_scope
def noisy_on_mesh(
    keys: jax.Array, total: list[Array], places: list[NamedSharding], numbers: tuple[ArrayLike, ...]
) -> list[Array]:
    """Returns ``(total + multiplier * norm * standard_normal) / size`` of each leaf, each device of its own shards.

    One loop goes over chunks of all leaves, so that a program has the operations of a value once.
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
    chunk = 2 ** min(max(int(counts.mean() / 4).bit_length(), 8), 14)  # values at a time: speed and memory only
    chunks, rank = -(-counts // chunk), max(map(len, shapes))
    leaf_shapes, part = (
        np.array([(1,) * (rank - len(shape)) + shape for shape in some], np.uint32) for some in (shapes, parts)
    )
    stride = np.array([[math.prod(row[axis + 1 :]) for axis in range(rank)] for row in leaf_shapes.tolist()], np.uint32)
    owner, start = np.repeat(np.arange(len(total)), chunks), np.concatenate([np.arange(n) * chunk for n in chunks])

    def first(place: NamedSharding, part: tuple[int, ...]) -> Array:
        entries = (*(None,) * (rank - len(part)), *place.spec, *(None,) * (len(part) - len(place.spec)))
        sides = (1,) * (rank - len(part)) + part
        starts = [0 if e is None else jax.lax.axis_index(e) * side for e, side in zip(entries, sides, strict=True)]
        return jnp.stack([jnp.asarray(value, jnp.uint32) for value in starts])

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
    lying = [jax.device_put(leaf, place) for leaf, place in zip(total, places, strict=True)]
    return spread(jax.random.key_data(keys), jnp.stack([jnp.asarray(n, jnp.float64) for n in numbers]), *lying)


@kernel(own_float64=True)
def _of_chunks(numbers: Array, *rows: Array) -> Array:
    """Returns :func:`noisy_on_mesh` of chunks, given by their start in the shard, their leaf's table and the total.

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
        return (total + deviation * _transform(words, is_sine)) / size

    # A loop over chunks without a state: memory for one chunk's words at a time, and one body to compile.
    return jax.lax.map(noisy, rows)


def standard_normals(keys: jax.Array, shapes: list[tuple[int, ...]]) -> list[Array]:
    """Returns :func:`standard_normal` by each key; many small arrays are drawn in one program, from the same words.

    One program for each would take some 0.15 s of compiling. Pairs are laid out in rows, each of which belongs to
    one array; an array's last row is filled up by pairs that nobody looks at.
    """
    sizes = [math.prod(shape) for shape in shapes]
    drawn = dict[int, Array]()
    width = 64  # pairs of values in a row: speed only

    def words_of_row(key: Array, pairs: Array, row: Array) -> tuple[Array, ...]:
        return _hashes(key, pairs, row * jnp.uint32(width) + jnp.arange(width, dtype=jnp.uint32))

    # Entries of a small array, and of a group of them: speed only. A group of one gains nothing.
    most, together = 2**16, 2**20
    small = [i for i, size in enumerate(sizes) if size <= most] if jax.random.key_impl(keys) == IMPLEMENTATION else []
    groups = [[small[i] for i in group] for group in group_neighbours([sizes[i] for i in small], together)]
    # One pass per group of small arrays; what no group has is drawn by itself below. ``owner`` is the array of each
    # row, ``place`` the row's number within its array.
    for group in (group for group in groups if len(group) > 1):
        pairs = np.array([(sizes[i] + 1) // 2 for i in group])
        rows = -(-pairs // width)
        owner, ends = np.repeat(np.arange(len(group)), rows), np.cumsum(rows)
        place = np.arange(len(owner)) - np.repeat(ends - rows, rows)
        data = jax.random.key_data(keys)[np.array(group)[owner]]
        words = jax.vmap(words_of_row)(data, jnp.asarray(pairs[owner], jnp.uint32), jnp.asarray(place, jnp.uint32))
        # A loop writes its result to memory. Without it the transform would be compiled again for each use, and an
        # optimizer has three.
        values = jax.lax.map(functools.partial(_transform, words), jnp.arange(2) == 1)
        for i, count, end, own in zip(group, pairs.tolist(), ends.tolist(), rows.tolist(), strict=True):
            halves = values[:, end - own : end].reshape(2, -1)[:, :count]
            drawn |= {i: _cut_to_shape(halves, sizes[i], shapes[i])}
    return [drawn[i] if i in drawn else standard_normal(keys[i], shape) for i, shape in enumerate(shapes)]


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
    without it XLA would hash again for each use of a word, at half the speed when float64 follows.

    Source: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3".
    """
    # Threefry's constants: by how many bits words are turned in each round, four by four, and the third word of the
    # schedule. With other numbers it is another generator, whose bits nobody has examined.
    first_turns, second_turns, parity = (13, 15, 26, 6), (17, 29, 16, 24), 0x1BD11BDA
    schedule = jnp.stack([key[0], key[1], key[0] ^ key[1] ^ parity])

    def four_rounds(left: Array, right: Array, turns: tuple[int, ...], done: Any) -> tuple[Array, Array]:
        for turn in turns:
            left += right
            right = left ^ (right << jnp.uint32(turn) | right >> jnp.uint32(32 - turn))
        return left + schedule[(done + 1) % 3], right + schedule[(done + 2) % 3] + jnp.uint32(done + 1)

    def eight_rounds(i: Array, words: tuple[Array, Array]) -> tuple[Array, Array]:
        return four_rounds(*four_rounds(*words, second_turns, 2 * i + 1), first_turns, 2 * i + 2)

    # Twenty rounds: four before the loop, eight in each of its passes. The state is the pair of words, and a pass's
    # number gives the schedule's words to add.
    count = place[None] + jnp.stack([jnp.uint32(0), pairs]).reshape(2, *(1,) * place.ndim)
    start = four_rounds(count + schedule[0], count + 2 * pairs + schedule[1], first_turns, 0)
    left, right = jax.lax.fori_loop(0, 2, eight_rounds, start)
    return left[0], left[1], right[0], right[1]


@within_scope
def _cut_to_shape(values: Array, size: int, shape: tuple[int, ...]) -> Array:
    """Returns the first ``size`` values in that shape: of an odd number, the last sine's value is dropped."""
    return values.reshape(-1)[:size].reshape(shape)


def _box_muller(words: Sequence[Array]) -> Array:
    """Returns an array (2, pairs): the cosines' values and the sines'."""
    return _transform([word[None] for word in words], jnp.arange(2)[:, None] == 1)


@within_scope
def _transform(words: Sequence[Array], is_sine: Array) -> Array:
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
    # Taylor's coefficients in x^2. On |x| <= pi/4 the remainders are below (pi/4)^18 / 18! = 2e-18 for cos(x), and
    # (pi/4)^16 / 17! = 6e-17 for sin(x) / x. Fewer would break the bound of standard_normal.
    cosine = _polynomial(tuple((-1) ** n / math.factorial(2 * n) for n in range(9)), square)
    sine = angle * _polynomial(tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(8)), square)
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
