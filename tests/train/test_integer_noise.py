"""Integer noise: its table, its draws entry by entry, how leaves lie, and its law."""

import functools
import hashlib
import math

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.eight_devices import answers_of
from helpers.integer_draws import FACTORS, block, entry, look_up
from helpers.thorough import draws as so_many
from scipy import stats

from jaxacct.mechanisms.discrete_gaussian import chi_square_of_dither
from jaxacct.numerics.chacha20 import CHACHA20
from jaxacct.strategies import BandedToeplitz, square_root
from jaxacct.train import AdaptiveQuantile, run_key
from jaxacct.train import integer_noise as noise
from jaxacct.train.integer_noise import LeafWindow, bill, draw, law_of, masses, noise_of_leaves, table
from jaxacct.train.noise import privatize

KEY = np.random.default_rng(3).integers(0, 2**32, 8, dtype=np.uint32)
WORDS = tuple(KEY.tolist())

# ----------------------------------------------------------------------------------------------------
# The table.
# ----------------------------------------------------------------------------------------------------

ROWS, FRACTION = 2**14, 2**113
VARIANCE = (2**40, 765**2 + 1)
"""Of one draw, as numerator and denominator."""

SHA256 = "7770e52678b22e4ca6a74940429f2632bf40f1c14cc0143faf4c8945fc2aa688"


@functools.cache
def weights():
    """Balls around exp(-m^2 / 2 s1^2), and their sum over all integers, up to 1e-500."""
    flint.ctx.prec = 400
    scale = -flint.arb(VARIANCE[1]) / (2 * VARIANCE[0])
    rho = [(scale * m * m).exp() for m in range(4 * ROWS)]
    return rho, rho[0] + 2 * sum(rho[1:])


def test_the_words_of_the_table_have_the_law_of_its_masses():
    words = table()
    assert (words.shape, words.dtype) == ((ROWS, 4), np.uint32)
    law = law_of(words)
    assert law == masses()
    assert sum(law) == 2**127
    assert min(law) >= 0
    # By a way of its own: what each row gives to itself and to its alias.
    again = [0] * ROWS
    for row, (head, *rest) in enumerate(words.tolist()):
        cut = int.from_bytes(b"".join(word.to_bytes(4, "big") for word in (head & 2**17 - 1, *rest)), "big")
        assert 0 <= cut <= FRACTION
        again[row] += cut
        again[head >> 17] += FRACTION - cut
    assert tuple(again) == law


def test_the_masses_are_the_discrete_gaussians():
    """Those of the rows, to half a unit but for the one at 0; and all of the law to 6.29e-33, the tail."""
    rho, total = weights()
    law = law_of(table())
    inside = rho[0] + 2 * sum(rho[1:ROWS])
    units = flint.arb(2**127)
    for m in [1, 2, 1370, ROWS - 1, *np.random.default_rng(0).integers(1, ROWS, so_many(500, 5000)).tolist()]:
        assert abs(2 * rho[m] / inside * units - law[m]) < 0.5 + 1e-9
    assert abs(rho[0] / inside * units - law[0]) < 2**13
    off = sum(abs((r if m == 0 else 2 * r) / total - (law[m] / units if m < ROWS else 0)) for m, r in enumerate(rho))
    distance = off / 2
    assert distance < 6.29e-33
    assert distance < bill(1.0)["table"] / 3


def test_the_table_is_the_one_that_was_looked_at():
    assert hashlib.sha256(table().astype("<u4").tobytes()).hexdigest() == SHA256


DRAW = jax.jit(lambda words, own, shared: draw(words, own, shared))


def drawn(words, bits):
    """What the program draws from numbers of 128 bits."""
    own = [np.array([bit >> shift & 0xFFFFFFFF for bit in bits], np.uint32) for shift in (96, 64, 32, 0)]
    return np.asarray(DRAW(words, tuple(own[:2]), tuple(own[2:])))


def cut_of(row):
    head, *rest = (int(word) for word in row)
    return (head & 2**17 - 1) << 96 | rest[0] << 64 | rest[1] << 32 | rest[2]


MOVES = (-(2**96), -(2**64), -(2**32), -1, 0, 1, 2**32, 2**64, 2**96)


def numbers_about_cuts(words):
    """For each row, fractions at its cut and moved from it by one unit in each word, of both signs."""
    for row in range(ROWS):
        cut = cut_of(words[row])
        for move in MOVES:
            for sign in (0, 1):
                yield sign, row, min(max(cut + move, 0), FRACTION - 1)


def test_draws_at_the_cuts_of_all_rows():
    """Random draws never see a tie of their own bits, where the shared ones decide."""
    words = table()
    cuts = [cut_of(row) for row in words]
    cases = list(numbers_about_cuts(words))
    found = drawn(words, [sign << 127 | row << 113 | fraction for sign, row, fraction in cases])
    alias = (words[:, 0] >> 17).tolist()
    expected = [(row if f < cuts[row] else alias[row]) * (1 - 2 * sign) for sign, row, f in cases]
    np.testing.assert_array_equal(found, expected)
    aliased = sum(row != alias[row] for row in range(ROWS))
    assert aliased > ROWS / 2  # ties decide between two numbers


def test_draws_of_random_bits_are_the_reference_and_zero_has_no_sign():
    rng = np.random.default_rng(0)
    bits = [int.from_bytes(rng.bytes(16), "big") for _ in range(so_many(2000, 20_000))]
    found = drawn(table(), bits + [0] * (len(MOVES) * 2 * ROWS - len(bits)))[: len(bits)]  # one program
    assert found.tolist() == [look_up(table(), one) for one in bits]
    assert {one > 0 for one in found.tolist()} == {True, False}


# ----------------------------------------------------------------------------------------------------
# Entries.
# ----------------------------------------------------------------------------------------------------

SHAPES = ((), (3,), (0, 4), (5, 27), (64 * 256 + 70,), (64,))
"""The fifth crosses the border of a chunk, and all of them do so together."""


@functools.cache
def leaves(draws):
    return [np.asarray(leaf) for leaf in noise_of_leaves(KEY, SHAPES, draws)]


@pytest.mark.parametrize("draws", [2, 3])
def test_entries_are_those_of_the_reference(draws):
    rng = np.random.default_rng(1)
    for number, (leaf, shape) in enumerate(zip(leaves(draws), SHAPES, strict=True)):
        assert (leaf.shape, leaf.dtype) == (shape, np.int32)
        flat = leaf.ravel()
        places = {*range(0, min(9, flat.size)), *range(max(0, flat.size - 9), flat.size)}
        places |= {p for p in (63, 64, 127, 128, 64 * 252 - 1, 64 * 252, 64 * 256 - 1, 64 * 256) if p < flat.size}
        places |= set(rng.integers(0, max(flat.size, 1), so_many(12, 300)).tolist()) if flat.size else set()
        for place in places:
            assert int(flat[place]) == entry(table(), WORDS, number, place, draws)


@pytest.mark.parametrize("draws", [3, 2])
@pytest.mark.first_tier("3")
def test_all_four_words_of_a_draw_are_its_own_or_its_groups(draws, monkeypatch):
    """The shared words decide next to never, so here they are all looked at, in the place of a draw."""

    def mixed(words, own, shared):
        own, shared = ([jnp.broadcast_to(word, own[0].shape) for word in pair] for pair in (own, shared))
        return (own[0] * 3 + own[1] * 5 + shared[0] * 7 + shared[1] * 11).astype(jnp.int32)

    monkeypatch.setattr(noise, "draw", mixed)
    leaf, unit = np.array([0, 9], np.uint32), np.array([0, 5], np.uint32)
    found = np.asarray(jax.jit(noise.OF_UNITS[draws])(KEY, leaf, unit))
    for row in range(2):
        for entry_of_unit in range(64):
            group, lane, z = int(unit[row]) * 8 + entry_of_unit // 8, entry_of_unit % 8, 0
            for i, factor in enumerate(FACTORS[draws]):
                own = block(WORDS, group * draws + i, (0, int(leaf[row]), 0))[2 * lane : 2 * lane + 2]
                pair = 2 * (group % 8)
                shared = block(WORDS, int(unit[row]) * draws + i, (1, int(leaf[row]), 0))[pair : pair + 2]
                z += factor * (own[0] * 3 + own[1] * 5 + shared[0] * 7 + shared[1] * 11)
            assert (int(found[row, entry_of_unit]) - z) % 2**32 == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("draws", [2, 3])
def test_entries_of_the_last_units_are_those_of_the_reference(draws):
    units = np.array([2**26 - 1, 2**26 - 2, 2**25, 0], np.uint32)
    leaf = np.array([0, 7, 2**31, 2**32 - 1], np.uint32)
    found = np.asarray(jax.jit(noise.OF_UNITS[draws])(KEY, leaf, units))
    for row in range(4):
        for place in (0, 31, 63):
            expected = entry(table(), WORDS, int(leaf[row]), 64 * int(units[row]) + place, draws)
            assert int(found[row, place]) == expected
    # Of a leaf's most entries no counter repeats: the last is below 2^32, which the reference cannot reach.
    assert ((noise.MOST_ENTRIES // 64 + 1) * 8 + 7) * 3 + 2 < 2**32


@pytest.mark.exhaustive
def test_entries_are_the_same_however_they_are_asked_for():
    """Under vmap, in the float64 scope, inside a program, without the leaves around, in chunks of another size."""
    keys = np.stack([KEY, KEY + np.uint32(1)])
    shapes = ((), (3,), (130,))
    alone = [noise_of_leaves(key, shapes, 2) for key in keys]
    together = jax.vmap(lambda key: noise_of_leaves(key, shapes, 2))(keys)
    with jax.enable_x64(True):
        wide = noise_of_leaves(KEY, shapes, 2)
        inside = jax.jit(lambda key: noise_of_leaves(key, shapes, 2))(KEY)
    longer = noise_of_leaves(KEY, ((), (3,), (2, 300), (9,)), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "MOST_UNITS", 2)
        small = jax.jit(lambda key: noise_of_leaves.__wrapped__(key, shapes, 2))(KEY)
    for i in range(3):
        for row in range(2):
            np.testing.assert_array_equal(together[i][row], alone[row][i])
        for other in (wide, inside, small):
            assert other[i].dtype == jnp.int32
            np.testing.assert_array_equal(other[i], alone[0][i])
        np.testing.assert_array_equal(np.ravel(longer[i])[: alone[0][i].size], np.ravel(alone[0][i]))
    assert not np.array_equal(alone[0][2], alone[1][2])


def test_leaves_of_too_many_entries_are_refused():
    assert jax.eval_shape(lambda: noise_of_leaves(KEY, ((2**32 - 1,),), 2))[0].shape == (2**32 - 1,)
    with pytest.raises(ValueError, match="several parameters"):
        jax.eval_shape(lambda: noise_of_leaves(KEY, ((2**16, 2**16),), 2))


# ----------------------------------------------------------------------------------------------------
# Leaves on a mesh. What a device draws of a leaf is its window, here of a leaf that counts its places.
# ----------------------------------------------------------------------------------------------------

A, B, BOTH, TURNED = ("a",), ("b",), ("a", "b"), ("b", "a")
SIZES = {"a": 4, "b": 2}
LAYOUTS = [
    ((), ()), ((0, 8), (None, A)), ((8,), (BOTH,)), ((8,), (TURNED,)), ((24,), (BOTH,)), ((5,), ()), ((4, 3), (A,)),
    ((64, 16), (A,)), ((64, 16), (None, A)), ((16, 64), (B, A)), ((16, 64), (A, B)), ((16, 64), (TURNED, None)),
    ((16, 64), (None, BOTH)), ((16, 8), (None, TURNED)), ((16, 5, 7), (A,)), ((5, 16, 7), (None, A)),
    ((5, 7, 16), (None, None, BOTH)), ((4, 2, 33), (A, B)), ((2, 130, 4), (B, None, A)), ((8, 1, 1), (BOTH,)),
    ((1, 8, 1), (None, TURNED)), ((4, 100, 2), (A, None, B)), ((8, 64), (BOTH,)), ((8, 128), (BOTH,)),
    ((8, 65), (BOTH,)), ((2, 4, 65), (B, A)), ((3, 4, 70), (None, A)), ((3, 2, 4, 20), (None, B, A)),
    ((2, 3, 256), (B, None, A)), ((128,), (A,)), ((520,), (BOTH,)), ((4, 4, 2, 2), (A, None, B)),
    ((63, 4), (None, A)), ((4, 63), (A,)),
]  # fmt: skip
"""Shapes, and by which axes of the mesh theirs are cut: ragged rows, shards of one entry, later axes, both axes."""


def part_of(shape, spec, at):
    """Slices of a shape that the device ``at`` holds: of several names the first counts most."""
    cut = []
    for side, names in zip(shape, (*spec, *(None,) * (len(shape) - len(spec))), strict=True):
        index, parts = 0, 1
        for name in names or ():
            index, parts = index * SIZES[name] + at[name], parts * SIZES[name]
        cut.append(slice(index * side // parts, (index + 1) * side // parts))
    return tuple(cut)


def window_of(shape, spec):
    part = tuple(one.stop for one in part_of(shape, spec, dict.fromkeys(SIZES, 0)))
    return LeafWindow(shape, part, (*spec, *(None,) * (len(shape) - len(spec))))


@jax.jit
def all_windows():
    def on_each(_, __):
        found = []
        for shape, spec in LAYOUTS:
            window = window_of(shape, spec)
            if math.prod(shape) == 0:
                found.append(jnp.zeros(window.part, jnp.uint32))
                continue
            starts = window.starts()
            units = (starts // 64)[:, None] + jnp.arange(window.units, dtype=jnp.uint32)[None]
            places = units.reshape(-1, 1) * 64 + jnp.arange(64, dtype=jnp.uint32)[None]
            found.append(window.cut(places, starts))
        return found

    inner = jax.vmap(on_each, (None, 0), axis_name="b", axis_size=2)
    return jax.vmap(inner, (0, None), axis_name="a", axis_size=4)(jnp.arange(4), jnp.arange(2))


def test_windows_are_the_shards_of_a_leaf_that_counts_its_places():
    for (shape, spec), found in zip(LAYOUTS, map(np.asarray, all_windows()), strict=True):
        places = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
        for a in range(4):
            for b in range(2):
                np.testing.assert_array_equal(found[a][b], places[part_of(shape, spec, {"a": a, "b": b})], str(spec))


def test_windows_draw_little_more_than_their_shards():
    """A device draws at most a unit more at either end of each run of neighbours, and long leaves have long runs."""
    for shape, spec in [*LAYOUTS, ((4096, 64), (A,)), ((4096, 4096), (None, BOTH)), ((512, 1000), (B, A))]:
        window = window_of(shape, spec)
        if math.prod(shape) < 4096:
            continue
        drawn = 64 * window.units * math.prod(window.drawn) // window.run
        assert drawn <= math.prod(window.part) * 2 + 64
        assert window.run >= 64


ON_DEVICES = """
import hashlib
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxacct.numerics.precision import scope
from jaxacct.train.integer_noise import noise_of_leaves
from jaxacct.train.noise import privatize
from jaxacct.numerics.chacha20 import CHACHA20

key = jnp.asarray(KEY, jnp.uint32)
typed = jax.random.wrap_key_data(key, impl=CHACHA20)
shapes = tuple(shape for shape, _ in LAYOUTS)

def digests(leaves):
    return [hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in leaves]

answer = {"devices": len(jax.devices())}
with scope():
    for draws in DRAWS:
        for name, sizes in {"none": None, "4, 2": (4, 2), "2, 1": (2, 1), "1, 2": (1, 2), "1, 1": (1, 1)}.items():
            places = None
            if sizes:
                mesh = Mesh(np.array(jax.devices()[: sizes[0] * sizes[1]]).reshape(sizes), ("a", "b"))
                places = tuple(NamedSharding(mesh, P(*spec)) for _, spec in LAYOUTS)
            leaves = noise_of_leaves(key, shapes, draws, places)
            if sizes:
                for leaf, place, layout in zip(leaves, places, LAYOUTS):
                    assert leaf.size == 0 or leaf.sharding.is_equivalent_to(place, leaf.ndim), (layout, leaf.sharding)
            answer[f"{draws} draws, {name}"] = digests(leaves)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
    total = {"one": np.arange(64.0).reshape(16, 4) / 7, "two": np.ones((3,)), "zero": np.float64(0.25)}
    places = {name: NamedSharding(mesh, P("a", "b") if name == "one" else P()) for name in total}
    release = lambda places, total: jax.tree.leaves(privatize(
        typed, total, noise_multiplier=1.0, clip_norm=0.3, expected_batch_size=7.0, shardings=places))
    alone = digests(jax.jit(lambda total: release(None, total))(total))
    spread = digests(jax.jit(lambda total: release(places, total))(jax.device_put(total, places)))
    answer["released"] = [alone, spread]
"""


@pytest.mark.exhaustive
def test_the_bits_on_a_mesh_are_those_of_one_device():
    script = f"KEY, LAYOUTS, DRAWS = {WORDS}, {LAYOUTS}, {so_many((0, 2), (0, 2, 3))}" + ON_DEVICES
    (answer,) = answers_of(script)
    assert answer.pop("devices") == 8
    alone, spread = answer.pop("released")
    assert spread == alone
    for name, found in answer.items():
        assert found == answer[name.split(",")[0] + ", none"], name
    whole = noise_of_leaves(KEY, tuple(shape for shape, _ in LAYOUTS), 2)
    assert [hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in whole] == answer["2 draws, none"]
    for number, leaf in enumerate(whole):
        flat = np.ravel(leaf)
        for place in {0, len(flat) // 2, len(flat) - 1} if len(flat) else ():
            assert int(flat[place]) == entry(table(), WORDS, number, place, 2)


# ----------------------------------------------------------------------------------------------------
# Blocks of a run.
# ----------------------------------------------------------------------------------------------------

RECORD = """
import tempfile
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from jaxacct.numerics import chacha20

seen, true = [], chacha20.blocks

def blocks(key, counter, nonce):
    given = [jnp.asarray(words, jnp.uint32) for words in (key, counter, *nonce)]
    jax.debug.callback(lambda *found: seen.append([np.array(one) for one in found]), *given)
    return true(key, counter, nonce)

chacha20.blocks = blocks
from jaxacct.train import integer_noise

integer_noise.blocks = blocks
from jaxacct.policies import AdaptiveNoise
from jaxacct.train import AdaptiveQuantile, Checkpoints, DPTrainer, Metrics, PoissonSampler

class Two(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 3, rngs=rngs)
        self.second = nnx.Linear(3, 3, rngs=rngs)
    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))

def loss(model, x, y, key):
    return jnp.sum((model(x) - y + jax.random.normal(key, (3,))) ** 2)

def correct(model, x, y):
    return jnp.sum((model(x) - y) ** 2) < 1

rng = np.random.default_rng(0)
x = rng.normal(size=(200, 3)).astype(np.float32)
policy = AdaptiveNoise(sampling_rate=0.2, initial=6.0, increment=0.5, least=3.0, period=2, query_noise=20.0)

WITH_POLICY = {"policy": policy, "correct": correct, "clip_norm": 1.0}
WITH_METRICS = {"noise_multiplier": 6.0, "expected_batch_size": 40, "metrics": Metrics({"error": (correct, 1.0)}),
                "clip_norm": AdaptiveQuantile(1.0, count_noise=8.0)}

def trainer(options):
    return DPTrainer(Two(nnx.Rngs(0)), loss, optax.sgd(0.1), (x, x), epsilon=8.0, delta=1e-3, ledger="filter",
                     microbatch_size=16, **options)

exec(MISTAKE)
steps, same = [], []
for options in (WITH_POLICY, WITH_METRICS)[BEGIN:]:
    with tempfile.TemporaryDirectory() as folder:
        first = trainer(options)
        keeper = Checkpoints(f"{folder}/run", every=1)
        first.fit(4, keeper=keeper)
        keeper.close()
        again = trainer(options)
        Checkpoints(f"{folder}/run", every=1).resume(again)
        same.append(bool(np.array_equal(*(one._state.key for one in (first, again)))))
        again.fit(3)
        jax.effects_barrier()
        steps.append([first.steps, again.steps])

uses, keys = {}, {}
for key, counter, *nonce in seen:
    words = np.broadcast_arrays(counter, *nonce)
    purposes = {int(one) for one in np.ravel(words[1])}
    keys.setdefault(tuple(key.tolist()), set()).update(purposes)
    for row in zip(*(np.ravel(one).tolist() for one in words)):
        use = (*key.tolist(), *row)
        uses[use] = uses.get(use, 0) + 1
drawing = {use: times for use, times in uses.items() if use[9] in (0, 1)}
answer = {
    "calls": len(seen), "steps": steps, "same key": same,
    "drawn": len(drawing), "most": max(drawing.values()),
    "keys that draw": sum(bool(purposes & {0, 1}) for purposes in keys.values()),
    "mixed": sum(bool(purposes & {0, 1}) and not purposes <= {0, 1} for purposes in keys.values()),
    "purposes": sorted({purpose for one in keys.values() for purpose in one}),
    "words": len(first._state.key),
}
"""


@pytest.mark.exhaustive
def test_no_block_serves_two_draws_of_a_run():
    """Of two runs with all that draws noise, taken up again after a checkpoint: each block of each key once."""
    (answer,) = answers_of("MISTAKE, BEGIN = '', 0" + RECORD)
    assert answer["words"] == 8
    assert answer["steps"] == [[4, 7], [4, 7]]
    assert answer["drawn"] > 1000
    assert answer["most"] == 1
    # A key for the gradient of each of seven steps and for three counts; and for a rule's count and the means.
    assert answer["keys that draw"] == 7 + 3 + 3 * 7
    assert answer["mixed"] == 0  # a key that noise is drawn from serves nothing else
    assert set(answer["purposes"]) <= {0, 1, 3, 4, 5}


FORGETS_STEPS = """
from jaxacct.numerics.chacha20 import as_typed
from jaxacct.train import gradients, step
key_of = lambda state, purpose: jax.random.fold_in(jax.random.fold_in(as_typed(state.key), purpose), 0)
gradients.key_of = step.key_of = key_of
"""


@pytest.mark.exhaustive
def test_a_key_that_is_the_same_at_all_steps_is_seen():
    (found,) = answers_of(f"MISTAKE, BEGIN = {FORGETS_STEPS!r}, 1" + RECORD)
    assert found["most"] > 1


# ----------------------------------------------------------------------------------------------------
# The law of what is drawn.
# ----------------------------------------------------------------------------------------------------

ACCEPT = 1e-4
S = {2: 2.0**20, 3: math.sqrt(2.0**50 + VARIANCE[0] / VARIANCE[1])}


def check_law(z, draws, accept=ACCEPT):
    """Of whole numbers of deviation S: cells, quantiles, moments, last digits; and nothing of neighbours."""
    n, u = z.size, z / S[draws]
    assert stats.kstest(u, "norm").pvalue > accept
    cells = max(8, min(1000, n // 50))
    assert stats.chisquare(np.histogram(u, stats.norm.ppf(np.linspace(0, 1, cells + 1)))[0]).pvalue > accept
    far = stats.norm.sf(3)
    assert stats.binomtest(int(np.sum(np.abs(u) > 3)), n, 2 * far).pvalue > accept
    for modulus in (2, 5, 32, 765):  # the last digits are uniform
        assert stats.chisquare(np.bincount(z % modulus, minlength=modulus)).pvalue > accept
    errors = {1: 1.0, 2: 2.0, 3: 15.0, 4: 96.0}  # variances of u^k, once k = 1 to 4
    for power, mean in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert abs(np.mean(u**power) - mean) < 5 * math.sqrt(errors[power] / n)
    check_independent(u, [u[lag:] for lag in (1, 2, 4, 8, 16, 64, 512)])


def check_independent(u, others):
    """No correlation of x, of x^2, of parities."""
    for v in others:
        n = min(len(u), len(v))
        for of in (lambda x: x, lambda x: x**2 - 1, np.sign, lambda x: np.abs(x) - math.sqrt(2 / math.pi)):
            a, b = of(u[:n]), of(v[:n])
            assert abs(np.mean(a * b)) < 5 * math.sqrt(np.mean(a**2) * np.mean(b**2) / n)


def parity(z):
    return (z & 1) * 2.0 - 1


@pytest.mark.parametrize("draws", [2, 3])
def test_the_law_is_the_gaussian_of_its_variance(draws):
    """The program of the test above, with keys of its own: three leaves, seven steps."""
    made = [leaves_of_step(step, draws) for step in range(7)]
    whole = np.concatenate([np.concatenate([leaf.ravel() for leaf in step]) for step in made])
    assert whole.size > 10**5
    check_law(whole.astype(np.int64), draws)
    long = [step[4] for step in made]
    for first, second in ((long[0], long[1]), (long[2], long[3]), (long[0][:64], made[0][5]), (made[0][3], long[0])):
        first, second = np.ravel(first), np.ravel(second)
        n = min(first.size, second.size)
        check_independent(first / S[draws], [second / S[draws]])
        assert abs(np.mean(parity(first[:n]) * parity(second[:n]))) < 5 / math.sqrt(n)


def leaves_of_step(step, draws):
    key = np.array([*WORDS[:7], step], np.uint32)
    return [np.asarray(leaf).astype(np.int64) for leaf in noise_of_leaves(key, SHAPES, draws)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("draws", [2, 3])
def test_the_law_of_ten_million_draws(draws):
    n = so_many(10**7, 10**8) // 64 * 64
    first, second = (np.asarray(leaf).astype(np.int64) for leaf in noise_of_leaves(KEY, ((n // 2,), (n // 2,)), draws))
    check_law(np.concatenate([first, second]), draws)
    check_independent(first / S[draws], [second / S[draws]])
    # Slots: the eight entries of a group, the eight groups of a unit.
    lanes = (first / S[draws]).reshape(-1, 8, 8)
    for axis in (1, 2):
        rows = np.moveaxis(lanes, axis, 0).reshape(8, -1)
        for of in (lambda x: x, lambda x: x**2, np.abs):
            correlation = np.corrcoef(of(rows)) - np.eye(8)
            assert np.abs(correlation).max() < 5.5 / math.sqrt(rows.shape[1])
        tails = np.abs(rows) > 2.5
        joint = tails.astype(float) @ tails.T.astype(float) / rows.shape[1]
        p = 2 * stats.norm.sf(2.5)
        assert np.abs(joint - p * p)[~np.eye(8, dtype=bool)].max() < 6 * math.sqrt(p * p / rows.shape[1])


def test_the_bill_is_above_its_parts():
    """Against the formulas in balls: the bridge, the two sums, the tail and the roundings, and the shared suffixes."""
    rho, total = weights()

    def chi_square(variance):
        flint.ctx.prec = 400
        off = 2 * sum((-2 * flint.arb.pi() ** 2 * m * m * variance).exp() for m in range(1, 8))
        return (off / (1 - off)) ** 2

    s1, quarter = flint.arb(VARIANCE[0]) / VARIANCE[1], flint.arb(49) / 16
    taus = s1 / VARIANCE[1], s1 * 2**50 / (s1 + 2**50)
    for samples in (1.0, 64.0, 1e6, 1e10, 1e13, 1e16):
        parts = bill(samples)

        def distance(variance, samples=samples):
            return ((flint.arb(samples) * chi_square(variance)).expm1()).sqrt() / 2

        assert distance(quarter) <= parts["bridge"] * (1 + 1e-12)
        assert sum(map(distance, taus)) <= parts["sums"] * (1 + 1e-12)
        tail = 2 * sum(rho[ROWS:]) / total
        assert 3 * samples * (tail + flint.arb(2) ** -114) <= parts["table"]
        assert 3 * samples / 8 * 28 * 2.0**-98 <= parts["suffix"] * (1 + 1e-12)
        assert sum(parts.values()) < 4e-29 * samples + 3e-26 * math.sqrt(samples)  # of use
    assert float(chi_square_of_dither(49 / 16)) >= float(chi_square(quarter).upper())


def test_eight_draws_share_a_suffix_and_no_more():
    """What the bill's part rests on: of two draws at most those of one group and one of the draws of Z do."""
    sharing = {}
    for place in range(3 * 64):
        for i in range(3):
            block = (place // 64) * 3 + i, (place // 8) % 8
            sharing.setdefault(block, set()).add((place, i))
    assert {len(draws) for draws in sharing.values()} == {8}
    assert all(len({i for _, i in draws}) == 1 for draws in sharing.values())


def test_float32_sums_are_refused():
    key = jax.random.wrap_key_data(jnp.asarray(KEY), impl=CHACHA20)
    for total in (jnp.ones(3, jnp.float32), np.ones(3, np.float32), {"a": np.ones(3), "b": np.ones(3, np.float16)}):
        with pytest.raises(TypeError, match="float64"):
            privatize(key, total, noise_multiplier=1.0, clip_norm=1.0, expected_batch_size=1.0)


def test_correlated_noise_that_grows_is_refused():
    """Rows that double from step to step leave float64's whole numbers, and nothing would bound their rounding."""
    growing, steps = BandedToeplitz([1.0, 1.5]), 110
    with pytest.raises(ValueError, match=r"rows of .* times its noise"):
        noise.rounding_of_rows(growing, 1.0, steps, 3)
    assert noise.rounding_of_rows(square_root(4), 1.0, steps, 3) > 0


def test_a_count_is_the_same_in_a_trace():
    """The count's noise is known before: the same integers, and no narrower clip, inside of jit."""
    rule, key = AdaptiveQuantile(1.0, count_noise=1.0), jax.random.key(3, impl=CHACHA20)
    with jax.enable_x64(True):
        unclipped = jnp.float64(5e4)
        eager = rule.update(key, unclipped, 1e5).clip_norm
        assert eager == jax.jit(lambda count: rule.update(key, count, 1e5).clip_norm)(unclipped)


def test_a_key_is_not_made_in_a_trace():
    with pytest.raises(TypeError, match="one key for ever"):
        jax.jit(lambda: jax.random.key_data(run_key()))()


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("samples", -1, ValueError), ("samples", math.inf, ValueError), ("samples", math.nan, ValueError),
        ("samples", "5", TypeError), ("samples", np.ones(2), ValueError), ("epsilon", -1e9, ValueError),
        ("epsilon", math.nan, ValueError), ("epsilon", "5", TypeError), ("delta", 2.0, ValueError),
        ("delta", math.inf, ValueError), ("delta", 0.0, ValueError), ("delta", None, TypeError),
    ],
)  # fmt: skip
def test_what_is_no_guarantee_costs_nothing_that_is_said(name, value, kind):
    given = {"samples": 1e6, "epsilon": 1.0, "delta": 1e-5}
    for samples in (1e6, 0):
        with pytest.raises(kind, match=name):
            noise.noise_delta(**(given | {"samples": samples} | {name: value}))
    assert noise.noise_delta(**given) > 0
