"""ChaCha20 as a generator of JAX's typed keys: 256 bits each, and every key derived from one has 256 bits as well.

* :func:`blocks`: the block function, for any shape of counters;
* :data:`CHACHA20`: the generator, for ``jax.random.key(seed, impl=CHACHA20)`` and all of :mod:`jax.random`.

A key of 64 bits is too short to stand for a whole run: of n keys that are folded from one, two coincide with
probability n^2 / 2^65, and equal keys draw equal noise. Here it is n^2 / 2^257.

Assumed of it: the block function with a secret key is a pseudorandom function of counter and nonce. All that is drawn
from a key is a block at a counter and a nonce of its own, whose first word says what it is for: so is a key that is
derived from it, and a tree of keys is as good as independent ones, up to the generator's advantage for each key used.

Source: Nir and Langley (2018), "ChaCha20 and Poly1305 for IETF protocols", RFC 8439, section 2.3; Goldreich, Goldwasser
and Micali (1986), "How to construct random functions", for the tree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jaxtyping import Array, ArrayLike, UInt32

NOISE, SUFFIX, NORMAL, FOLD, SPLIT, BITS = range(6)
"""First words of nonces: what a block is for. Any distinct numbers are sound; others change what a key gives."""

KEY_WORDS, BLOCK_WORDS = 8, 16
"""Words of 32 bits of a key, and of a block: RFC 8439's."""

MOST_BLOCKS = 2**32
"""Most blocks of one key and nonce, the values of the counter: beyond it blocks would repeat."""

CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
"""First words of the state, RFC 8439's. With others it is another function, which nobody has examined."""


def blocks(key: ArrayLike, counter: Array, nonce: Sequence[ArrayLike]) -> list[UInt32[Array, ...]]:
    """Returns the 16 words of the block function, each of the counter's shape.

    Args:
        key (8,): uint32.
        counter (...): uint32; each is one block.
        nonce: three words, uint32, whose shapes broadcast to the counter's.

    >>> from jax import numpy as jnp
    >>> zero = jnp.zeros((), jnp.uint32)
    >>> [hex(int(word)) for word in blocks(jnp.zeros(8, jnp.uint32), zero, (0, 0, 0))[:2]]
    ['0xade0b876', '0x903df1a0']
    """
    words = [*map(np.uint32, CONSTANTS), *jnp.asarray(key, jnp.uint32), counter, *nonce]
    start = tuple(jnp.broadcast_to(jnp.asarray(word, jnp.uint32), counter.shape) for word in words)

    # The state is the sixteen words; ten double rounds, each of four columns and then of four diagonals.
    def double_round(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        x = list(state)
        for shift in (0, 1):
            for i in range(4):
                a, b, c, d = i, 4 + (i + shift) % 4, 8 + (i + 2 * shift) % 4, 12 + (i + 3 * shift) % 4
                for target, added, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    x[target] = x[target] + x[added]
                    mixed = x[turned] ^ x[target]
                    x[turned] = mixed << jnp.uint32(bits) | mixed >> jnp.uint32(32 - bits)
        return tuple(x)

    return [a + b for a, b in zip(jax.lax.fori_loop(0, 10, double_round, start), start, strict=True)]


def _words(key: Array, count: int, purpose: int) -> Array:
    """Returns the first ``count`` words of a key's stream for a purpose."""
    needed = -(-count // BLOCK_WORDS)
    if needed > MOST_BLOCKS:
        raise ValueError(f"{count} words of one key are more than {MOST_BLOCKS} blocks: split the key first.")
    stream = blocks(key, jnp.arange(needed, dtype=jnp.uint32), (purpose, 0, 0))
    return jnp.stack(stream, axis=-1).reshape(-1)[:count]


def _seed(seed: Array) -> Array:
    """Returns the key of an integer seed: its words, with zeros before them. Known seeds are for experiments."""
    low = seed.astype(jnp.uint32)
    high = (seed >> 32).astype(jnp.uint32) if seed.dtype.itemsize > 4 else jnp.zeros_like(low)
    return jnp.zeros(KEY_WORDS, jnp.uint32).at[-2].set(high).at[-1].set(low)


@functools.partial(jax.jit, static_argnums=1)
def _split(key: Array, shape: tuple[int, ...]) -> Array:
    """Returns the keys (*shape, 8) that a key splits into: half a block of each."""
    return _words(key, math.prod(shape) * KEY_WORDS, SPLIT).reshape(*shape, KEY_WORDS)


@jax.jit
def _fold_in(key: Array, data: Any) -> Array:
    """Returns the key of a key and a number below 2^32: half of the block at that counter."""
    return jnp.stack(blocks(key, jnp.asarray(data, jnp.uint32), (FOLD, 0, 0))[:KEY_WORDS])


@functools.partial(jax.jit, static_argnums=(1, 2))
def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Returns random unsigned numbers of so many bits."""
    size = math.prod(shape)
    if bit_width == 64:
        high, low = _words(key, 2 * size, BITS).reshape(2, size).astype(jnp.uint64)
        return (high << jnp.uint64(32) | low).reshape(shape)
    words = _words(key, -(-size * bit_width // 32), BITS)
    if bit_width < 32:
        dtype = {8: jnp.uint8, 16: jnp.uint16}[bit_width]
        words = jax.lax.bitcast_convert_type(words, dtype).reshape(-1)[:size]
    return words.reshape(shape)


CHACHA20: Any = define_prng_impl(
    key_shape=(KEY_WORDS,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in,
    name="chacha20", tag="cc20",
)  # fmt: skip
"""The generator, as :func:`jax.random.key` and :func:`jax.random.wrap_key_data` take it for ``impl``."""


def is_chacha20(key: Array) -> bool:
    """Returns whether a key is one of :data:`CHACHA20`: a typed one, or its words as a state stores them.

    >>> is_chacha20(jax.random.key(0, impl=CHACHA20)), is_chacha20(jax.random.key(0))
    (True, False)
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return bool(key.dtype == jnp.uint32)
    return bool(jax.random.key_impl(key) == CHACHA20)


def as_chacha20(key: Array) -> Array:
    """Returns a key of :data:`CHACHA20` made from a typed key of any generator: itself where it is one."""
    if is_chacha20(key):
        return as_typed(key)
    return jax.random.wrap_key_data(jax.random.bits(key, (KEY_WORDS,), jnp.uint32), impl=CHACHA20)


def as_stored(key: Array) -> Array:
    """Returns a typed key as a state stores it: words (8,) of one of :data:`CHACHA20`, which no file knows by name."""
    return jax.random.key_data(key) if is_chacha20(key) else key


def as_typed(key: Array) -> Array:
    """Returns a key that a state stored as a typed one.

    >>> as_typed(as_stored(jax.random.key(7, impl=CHACHA20))) == jax.random.key(7, impl=CHACHA20)
    Array(True, dtype=bool)
    """
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key, impl=CHACHA20)
