"""Gaussian noise on a clipped sum, and the division by the expected batch size."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike, Float32, Float64, PyTree

from jaxacct import validation
from jaxacct.platforms import as_it_is
from jaxacct.precision import in_float64, scope, within_scope
from jaxacct.strategies import NoiseState, Strategy

MOST_ENTRIES = 2**30
"""Values from one key: Threefry's counter has 32 bits for two values' words."""

SMALL = 2**12
"""Entries of an array up to which padding costs less than a program of its own."""

TURNS, PARITY = ((13, 15, 26, 6), (17, 29, 16, 24)), 0x1BD11BDA
"""Threefry's: by how many bits words are turned in each round, four by four, and the third word of its schedule."""

SINE = (
    1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800, 1 / 6227020800, -1 / 1307674368000,
)  # fmt: skip
"""Taylor series, in x^2, of sin(x)/x. On |x| <= pi/4 what is left out is below (pi/4)^16 / 17! = 6e-17."""

COSINE = (
    1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600, -1 / 87178291200, 1 / 20922789888000,
)  # fmt: skip
"""The same of cos(x): below (pi/4)^18 / 18! = 2e-18."""


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
        noise_multiplier: standard deviation of the noise over ``clip_norm``, the same on every entry.
        clip_norm: sensitivity of ``total``, finite: a rule's ``sensitivity``.
        expected_batch_size: a public number. The realized size would leak who takes part.
        shardings: pytree like ``total`` of ``NamedSharding``: how it lies on a mesh. Each device then draws the noise
            of its own shards, the same bits as one device would. None: as XLA likes.

    Returns:
        Pytree like ``total``, float64. What is done with it later is post-processing.

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

    What is kept is what is known of the noise of steps before. In float32 its rounding would move with the gradients:
    one example that moves d entries would be told from none by up to sqrt(d) of their last bits more than the
    sensitivity says.
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

    z is the noise that ``privatize`` adds with this key, in units of the clipping norm: that may change on the way.
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
    validation.check_noise_multiplier(noise_multiplier)
    validation.check_positive(clip_norm, "clip_norm")
    validation.check_positive(expected_batch_size, "expected_batch_size")
    leaves = jax.tree.leaves(total)
    keys = jax.random.split(key, max(len(leaves), 1))
    places = jax.tree.leaves(shardings) if jax.random.key_impl(keys) == "threefry2x32" else []
    words = {
        i: sharded_words(keys[i], leaves[i].shape, place)
        for i, place in enumerate(places)
        if not place.is_fully_replicated
    }
    return _privatized(keys, total, words, strategy, state, noise_multiplier, clip_norm, expected_batch_size)


@in_float64(safe=as_it_is)
def _privatized(
    keys: jax.Array,
    total: PyTree,
    words: dict[int, Any],
    strategy: Strategy | None,
    state: NoiseState | None,
    *numbers: ArrayLike,
) -> tuple[PyTree, NoiseState | None]:
    leaves, structure = jax.tree.flatten(total)
    drawn = {i: _transformed(*of_shards) for i, of_shards in words.items()}
    noise = jax.tree.unflatten(structure, _standard_normals(keys, [leaf.shape for leaf in leaves], drawn))
    if strategy is not None:
        assert state is not None  # never independent noise in the place of what is accounted
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


def sharded_words(key: jax.Array, shape: tuple[int, ...], sharding: NamedSharding) -> tuple[tuple[Array, ...], Array]:
    """Returns the four words of each entry of :func:`standard_normal`, and which of its pair's values that is.

    Each device hashes for what lies there as ``sharding`` says. An entry is a function of the key and its place; that a
    pair's two values lie on different devices, as a rule, is why each hashes the pair by itself.

    >>> mesh = jax.make_mesh((1,), ("rows",))
    >>> draw = jax.jit(lambda key: sharded_words(key, (3,), NamedSharding(mesh, PartitionSpec("rows"))))
    >>> words, is_sine = draw(jax.random.key(1))
    >>> is_sine.tolist(), bool((words[0][:2] == _words(jax.random.key(1), 2)[0]).all())
    ([False, False, True], True)
    """
    size, mesh = math.prod(shape), sharding.mesh
    if size > MOST_ENTRIES:
        raise ValueError(f"shape = {shape} has {size} entries: draw at most {MOST_ENTRIES} from one key.")
    spec, part = (*sharding.spec, *(None,) * (len(shape) - len(sharding.spec))), sharding.shard_shape(shape)

    def on_each(key: Array) -> tuple[tuple[Array, ...], Array]:
        place, stride = jnp.zeros(part, jnp.uint32), 1
        for axis in reversed(range(len(shape))):
            first = jax.lax.axis_index(spec[axis]) * part[axis] if spec[axis] is not None else 0
            steps = jax.lax.broadcasted_iota(jnp.uint32, part, axis) + jnp.asarray(first, jnp.uint32)
            place, stride = place + steps * jnp.uint32(stride), stride * shape[axis]
        pairs = jnp.uint32((size + 1) // 2)
        is_sine = place >= pairs
        return _hashes(key, pairs, jnp.where(is_sine, place - pairs, place)), is_sine

    spread = jax.shard_map(on_each, mesh=mesh, in_specs=PartitionSpec(), out_specs=sharding.spec, check_vma=False)
    return spread(jax.random.key_data(key))


def _standard_normals(keys: jax.Array, shapes: list[tuple[int, ...]], drawn: dict[int, Array]) -> list[Array]:
    """Returns :func:`standard_normal` by each key: of small shapes together, padded, from the same words.

    Of a model's many small parameters each would be some 0.15 s of compiling. ``drawn``: those that are there already.
    """
    sizes = [math.prod(shape) for shape in shapes]
    small = [i for i, size in enumerate(sizes) if size <= SMALL and i not in drawn]
    if len(small) < 2 or jax.random.key_impl(keys) != "threefry2x32":
        small = []
    pairs = [(sizes[i] + 1) // 2 for i in small]
    if small:
        words = jax.vmap(_threefry, (0, 0, None))(
            jax.random.key_data(keys)[jnp.array(small)], jnp.array(pairs, jnp.uint32), max(pairs)
        )
        values = jax.vmap(_box_muller)(words)
        for row, (i, count) in enumerate(zip(small, pairs, strict=True)):
            drawn |= {i: _first(values[row, :, :count], sizes[i], shapes[i])}
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

    In quarters, of each the entries at ``place``, below ``pairs``.

    ``jax.random.bits`` keeps one word of the two that it hashes. The bits are those of
    ``jax.extend.random.threefry_2x32``, four times as fast on a CPU: words are turned by constants and not by what a
    loop looks up. Twice through a loop they go nevertheless. It ends in memory, where XLA would otherwise hash again
    for each use of a word, at half the speed beside float64.

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

    count = place[None] + jnp.stack([jnp.uint32(0), pairs]).reshape(2, *(1,) * place.ndim)
    start = four_rounds(count + schedule[0], count + 2 * pairs + schedule[1], TURNS[0], 0)
    left, right = jax.lax.fori_loop(0, 2, eight_rounds, start)
    return left[0], left[1], right[0], right[1]


@within_scope
def _first(values: Array, size: int, shape: tuple[int, ...]) -> Array:
    return values.reshape(-1)[:size].reshape(shape)


def _box_muller(words: Sequence[Array]) -> Array:
    """Returns (2, pairs): the cosine's and the sine's values."""
    return _transformed([word[None] for word in words], jnp.arange(2)[:, None] == 1)


@within_scope
def _transformed(words: Sequence[Array], is_sine: Array) -> Array:
    """Returns the sine's values or the cosine's, by polynomials, for XLA's own take ten times as long."""
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
    odd, radius = (axis & 1) == 1, jnp.where(axis >= 2, -radius, radius)
    # Chosen entry by entry: two arrays joined would be a branch for each, which no vector instruction takes.
    return radius * jnp.where(odd ^ is_sine, jnp.where(is_sine, sine, -sine), cosine)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value
