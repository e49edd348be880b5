"""ChaCha20: RFC 8439's numbers, those of a reference in Python's integers, and that no block serves two purposes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.integer_draws import block
from helpers.thorough import draws

from jaxacct.numerics import chacha20
from jaxacct.numerics.chacha20 import BITS, CHACHA20, FOLD, SPLIT, _words, as_chacha20, blocks, is_chacha20
from jaxacct.train.keys import run_key

KEY = tuple(int(word) for word in np.random.default_rng(7).integers(0, 2**32, 8))


def key_of(words=KEY):
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=CHACHA20)


def words_of(key):
    return tuple(jax.random.key_data(key).tolist())


def stream(count, purpose):
    """The first words of a key's stream, by the reference."""
    return [word for i in range(-(-count // 16)) for word in block(KEY, i, (purpose, 0, 0))][:count]


COMPILED = jax.jit(lambda *given: blocks(*given))


def words_of_blocks(key, counter, nonce):
    return np.stack(COMPILED(key, counter, tuple(np.broadcast_to(np.uint32(word), counter.shape) for word in nonce)))


SECTION_2_3_2 = (
    "e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3 "
    "466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2"
)
APPENDIX_A_1 = {  # (last byte of the key, counter, last byte of the nonce), and the first and the last word
    (0, 0, 0): ("ade0b876", "8665eeb2"),
    (0, 1, 0): ("bee7079f", "6f4d794b"),
    (1, 1, 0): ("2452eb3a", "a0136c00"),
    (0, 0, 2): ("374dc6c2", "6ded1b53"),
}


def test_blocks_are_those_of_the_standard():
    key, nonce = np.frombuffer(bytes(range(32)), np.uint32), (0x09000000, 0x4A000000, 0)
    (found,) = words_of_blocks(key, jnp.ones(1, jnp.uint32), nonce).T
    assert " ".join(f"{word:08x}" for word in found) == SECTION_2_3_2
    assert " ".join(f"{word:08x}" for word in block(tuple(key.tolist()), 1, nonce)) == SECTION_2_3_2
    for (last_of_key, counter, last_of_nonce), ends in APPENDIX_A_1.items():
        key = np.frombuffer(bytes(31) + bytes([last_of_key]), np.uint32)
        (found,) = words_of_blocks(key, jnp.full(1, counter, jnp.uint32), (0, 0, last_of_nonce << 24)).T
        assert (f"{found[0]:08x}", f"{found[15]:08x}") == ends


def test_blocks_are_those_of_the_reference_to_the_last_counter():
    rng = np.random.default_rng(0)
    counters = [0, 1, 2**31, 2**32 - 2, 2**32 - 1, *rng.integers(0, 2**32, draws(4, 500)).tolist()]
    nonces = rng.integers(0, 2**32, (len(counters), 3)).tolist()
    nonce = tuple(np.array(nonces, np.uint32).T)
    found = words_of_blocks(np.array(KEY, np.uint32), jnp.array(counters, jnp.uint32), nonce)
    for row, counter, nonce in zip(found.T.tolist(), counters, nonces, strict=True):
        assert tuple(row) == block(KEY, counter, tuple(nonce))


def test_keys_are_derived_by_blocks_of_their_own():
    key = key_of()

    @jax.jit
    def derived(key, data):
        return jax.random.key_data(jax.random.fold_in(key, data)), jax.random.key_data(jax.random.split(key, (2, 3)))

    for data in (0, 1, 5, 2**31, 2**32 - 1):
        folded, split = derived(key, jnp.uint32(data))
        assert tuple(folded.tolist()) == block(KEY, data, (3, 0, 0))[:8]
    assert split.reshape(-1).tolist() == stream(48, 4)
    assert (FOLD, SPLIT, BITS) == (3, 4, 5)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 50])
@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.first_tier("32-17")
@pytest.mark.exhaustive
def test_random_bits_are_the_key_stream(width, size):
    with jax.enable_x64(True):
        found = jax.random.bits(key_of(), (size,), f"uint{width}")
    count = -(-size * width // 32)
    words = stream(count, 5)
    if width == 64:
        assert found.tolist() == [words[i] << 32 | words[size + i] for i in range(size)]
    else:
        assert np.asarray(found).tobytes() == np.array(words, "<u4").tobytes()[: size * width // 8]


def test_it_is_the_same_under_vmap_and_jit():
    draw = functools.partial(jax.random.normal, shape=(5,))

    @jax.jit
    def both(key):
        keys = jax.random.split(key, 3)
        together = jax.vmap(draw)(jax.vmap(jax.random.fold_in, (0, None))(keys, 9))
        return together, [draw(jax.random.fold_in(keys[i], jnp.int32(9))) for i in range(3)]

    together, alone = both(key_of())
    np.testing.assert_array_equal(together, np.stack(alone))
    assert len(np.unique(together)) == 15


@pytest.mark.exhaustive
def test_a_seed_is_the_end_of_its_key():
    assert words_of(jax.random.key(5, impl=CHACHA20)) == (0, 0, 0, 0, 0, 0, 0, 5)
    with jax.enable_x64(True):
        assert words_of(jax.random.key(2**40 + 5, impl=CHACHA20)) == (0, 0, 0, 0, 0, 0, 2**8, 5)


def test_other_keys_are_made_into_one_of_256_bits_and_ours_are_kept():
    key = key_of()
    assert as_chacha20(key) is key
    made = as_chacha20(jax.random.key(3))
    assert is_chacha20(made)
    assert len(set(words_of(made))) == 8
    assert words_of(made) != words_of(as_chacha20(jax.random.key(4)))
    assert not is_chacha20(jax.random.key(3))
    assert not is_chacha20(jax.random.key(3, impl="rbg"))


def test_a_key_of_entropy_has_eight_words_of_it(monkeypatch):
    asked = []

    def token_bytes(count):
        asked.append(count)
        return bytes(range(count))

    monkeypatch.setattr("jaxacct.train.keys.secrets.token_bytes", token_bytes)
    key = run_key()
    assert asked == [32]
    assert np.asarray(jax.random.key_data(key)).tobytes() == bytes(range(32))
    assert is_chacha20(key)


def test_purposes_are_distinct_and_so_are_the_keys_of_a_run():
    """A tree of purposes and steps, as the trainer folds it: no two keys are equal, nor do they meet the root's."""
    purposes = {name: value for name, value in vars(chacha20).items() if name.isupper() and isinstance(value, int)}
    firsts = [purposes[name] for name in ("NOISE", "SUFFIX", "NORMAL", "FOLD", "SPLIT", "BITS")]
    assert len(set(firsts)) == 6
    steps = jnp.arange(draws(300, 20_000), dtype=jnp.uint32)
    tree = jax.jit(jax.vmap(jax.vmap(lambda p, s: jax.random.fold_in(jax.random.fold_in(key_of(), p), s), (None, 0)),
                            (0, None)))  # fmt: skip
    keys = np.asarray(jax.random.key_data(tree(jnp.arange(6, dtype=jnp.uint32), steps))).reshape(-1, 8)
    assert len({one.tobytes() for one in keys} | {np.array(KEY, np.uint32).tobytes()}) == 6 * len(steps) + 1


def test_more_words_than_a_key_has_are_refused():
    assert jax.eval_shape(lambda: _words(np.array(KEY, np.uint32), 2**36, BITS)).shape == (2**36,)
    with pytest.raises(ValueError, match="split the key"):
        jax.eval_shape(lambda: _words(np.array(KEY, np.uint32), 2**36 + 1, BITS))
