"""Keys of a run.

A key comes from the operating system's entropy unless a seed is given, and is then never twice the same. It is secret:
whoever has it can redo the noise and subtract it. Nothing here shows one.

* :func:`run_key`, :func:`describe_seed`: a run's key, and what a report may say of it;
* :func:`as_threefry`: keys for a user's loss, and for noise of float64.
"""

from __future__ import annotations

import numbers
import secrets
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxacct.numerics.chacha20 import CHACHA20, KEY_WORDS
from jaxacct.numerics.precision import is_concrete

IMPLEMENTATION = "threefry2x32"
"""Name of the generator of seeds: fixed, so that a seed means the same run whatever default the process has set."""

ENTROPY = "operating system"
"""Description of the seed of an entropy-made key: nobody can make the same keys again."""


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
        seed: None, for 256 bits of the operating system's entropy; a typed scalar key or one derived, which is returned
            as it is; or a whole number in [0, 2^64). A known seed makes the noise known and voids the privacy
            guarantee: for experiments and tests only.

    Returns:
        A scalar key array: of ChaCha20 (:mod:`jaxacct.numerics.chacha20`), whose keys nobody guesses, and no two of
        which coincide; of Threefry for a whole number.

    Raises:
        ValueError, TypeError: a seed out of range or of another kind.

    >>> jax.random.key_data(run_key(7)).tolist(), jax.random.key_data(run_key()).shape
    ([0, 7], (8,))
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
        if not is_concrete(jnp.zeros(())):
            raise TypeError(
                "seed = None in a function that is traced, which would have one key for ever: call it outside."
            )
        words = np.frombuffer(secrets.token_bytes(4 * KEY_WORDS), np.uint32)
        return jax.random.wrap_key_data(jnp.array(words), impl=CHACHA20)
    if isinstance(seed, numbers.Integral) and not isinstance(seed, bool):
        number = int(seed)
    else:
        raise TypeError(
            f"seed is a {type(seed).__name__}: give a whole number, a typed key, or None for the system's entropy."
        )
    if not 0 <= number < 2**64:
        raise ValueError(f"seed = {number} is out of range: give a whole number from 0 to 2**64 - 1.")
    words = jnp.array(np.array([number >> 32, number & 0xFFFFFFFF], np.uint32))
    return jax.random.wrap_key_data(words, impl=IMPLEMENTATION)


def as_threefry(key: jax.Array) -> jax.Array:
    """Returns a Threefry key made from a typed key of any generator: the same under ``vmap`` as alone.

    With some generators (``rbg``) all draws of a batch follow from its first key: one example would change the others'.
    From ChaCha20's keys 64 bits are enough for what a loss draws, on which no guarantee depends: any law of it is
    private that is independent of the noise.

    >>> str(jax.random.key_impl(as_threefry(jax.random.key(0, impl="rbg"))))
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
