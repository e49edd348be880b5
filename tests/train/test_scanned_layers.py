"""Are layers that a scan takes off stacked parameters each held by itself, and the same as layers one by one?"""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers.shared import cosines

from jaxacct.numerics import precision
from jaxacct.train.clipping import Flat, clip_and_sum
from jaxacct.train.clipping.contributions import Looked, Outer, Stored, Summed, Tied
from jaxacct.train.clipping.ghost import GhostLoss
from jaxacct.train.clipping.query import StoredLoss
from jaxacct.train.models import merge_params, split_params
from jaxacct_recipes import lora, merge_lora

BATCH, WIDTH = 5, 24
ROWS = jnp.asarray(np.random.default_rng(0).standard_normal((BATCH, 4, WIDTH)), jnp.float32)
WORDS = jnp.asarray([[1, 2, 1, 6], [0, 0, 0, 0], [3, 4, 250, 6], [6, 1, 6, 1], [2, 2, 5, 0]], jnp.int32)


def drawn(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[-2]), jnp.float32)


def decoder(params, words):
    """Words read and written by one table, layers turned before the scan and cast inside, one matrix that all share."""

    def layer(held, own):
        kernel, down, bias = own

        @jax.checkpoint
        def run(kernel, held):
            return jnp.tanh(held @ kernel.astype(jnp.float32).T + bias[None]) @ params["shared"]

        return held + run(kernel, held) + jnp.tile(jnp.sin(held @ down), 2), None

    stacks = params["kernel"].transpose(2, 0, 1), params["down"], params["bias"]
    held, _ = jax.lax.scan(layer, params["table"][words], stacks, reverse=True)
    return jnp.sum(jnp.tanh(held @ params["table"].T) ** 2)


def nested(params, rows):
    """Layers of layers; a copy that an inner scan hands to all its steps; a stack sliced in and out of a scan."""
    twice = params["twice"].reshape(2, WIDTH, WIDTH)

    def inner(held, own):
        return jnp.tanh(held @ own), None

    def outer(held, own):
        deep, fixed = own
        held, _ = jax.lax.scan(inner, held, deep)
        held = jax.lax.fori_loop(0, 2, lambda _, held: jnp.tanh(held @ fixed), held)
        return jax.lax.scan(inner, held, twice)[0], None

    held, _ = jax.lax.scan(outer, rows[0], (params["deep"], params["fixed"]))
    return jnp.sum(jax.lax.scan(inner, held, twice, reverse=True)[0] ** 2)


def kinds(params, rows):
    """Layers that look up rows, convolve, and are a vector for one position."""

    def layer(held, own):
        table, kernel, vector = own
        image = jax.lax.conv(held[None, None], kernel, (1, 1), "SAME")[0, 0]
        return jnp.tanh(image + table[jnp.int32(jnp.abs(held[:, 0]) * 3)]) * (held[0] @ vector).sum(), held.sum()

    held, sums = jax.lax.scan(layer, rows, (params["table"], params["image"], params["vector"]))
    return jnp.sum(held**2) + sums.sum()


def not_understood(params, rows):
    """A stack that is used as a whole as well; one turned end for end; one that the scan carries."""

    def layer(held, own):
        held, carried = held
        whole, turned = own
        return (jnp.tanh(held @ whole @ turned @ carried[0]), carried.transpose(0, 2, 1)), None

    stacks = params["whole"], params["turned"][::-1]
    (held, _), _ = jax.lax.scan(layer, (rows[0], params["carried"]), stacks)
    return jnp.sum(held**2) + jnp.sum(jnp.tanh(jnp.einsum("k,lkn->ln", held, params["whole"])))


CASES = {
    "decoder": (
        decoder,
        {
            "table": drawn(0, 300, WIDTH), "kernel": drawn(1, 80, WIDTH, 2).astype(jnp.float16),
            "bias": drawn(2, 2, 80), "shared": drawn(3, 80, WIDTH), "down": drawn(4, 2, WIDTH, 12),
        },
        WORDS, {"table": Tied, "kernel": Summed, "bias": None, "shared": Summed, "down": Stored},
    ),
    "nested": (
        nested,
        {"deep": drawn(1, 3, 2, WIDTH, WIDTH), "fixed": drawn(2, 3, WIDTH, WIDTH), "twice": drawn(3, WIDTH, 2 * WIDTH)},
        ROWS, {"deep": Outer, "fixed": Summed, "twice": Summed},
    ),
    "kinds": (
        kinds,
        {"table": drawn(1, 2, 7, WIDTH), "image": drawn(2, 2, 1, 1, 3, 3), "vector": drawn(3, 2, WIDTH, 30)},
        ROWS, {"table": Looked, "image": None, "vector": Outer},
    ),
    "not understood": (
        not_understood,
        {"whole": drawn(1, 2, WIDTH, WIDTH), "turned": drawn(2, 2, WIDTH, WIDTH), "carried": drawn(3, 1, WIDTH, WIDTH)},
        ROWS, {"whole": None, "turned": None, "carried": None},
    ),
}  # fmt: skip


@precision.kernel
def squares_of(parts):
    return [part.squares() for part in parts]


@pytest.mark.first_tier("not understood")
@pytest.mark.parametrize("name", CASES)
def test_norms_and_sums_are_those_of_vmap(name):
    """By the forms meant for them, None: by vmap; of what is never formed, the program has no example's gradient."""
    loss, params, examples, forms = CASES[name]
    ghost, stored = GhostLoss(loss, params, examples[0]), StoredLoss(loss, params, examples[0])
    found = {leaf: ghost.taps[place].form if place in ghost.taps else None for place, leaf in enumerate(sorted(params))}
    assert found == forms

    @jax.jit
    def both(params, examples, mask):
        norms = [squares_of(way.contributions(params, examples)) for way in (ghost, stored)]
        sums = [clip_and_sum(loss, params, examples, mask, rule=Flat(0.7), ghost=way)[0] for way in (True, False)]
        return norms, list(map(jax.tree.leaves, sums))

    norms, sums = both(params, examples, jnp.arange(BATCH) != 1)
    for ours, theirs in zip(*norms, strict=True):
        np.testing.assert_allclose(np.sqrt(ours), np.sqrt(theirs), rtol=1e-4)
    for ours, theirs in zip(*sums, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())

    for leaf, form in forms.items():
        if form in (Outer, Summed, Tied):
            gradient = Counter((BATCH, *sorted(params[leaf].shape)[-2:]))
            found = [any(shape >= gradient for shape in shapes_in(way, params, examples)) for way in (ghost, stored)]
            assert found == [False, True], leaf


def shapes_in(way, params, examples):
    text = str(jax.make_jaxpr(lambda *given: squares_of(way.contributions(*given)))(params, examples))
    return [Counter(map(int, shape.split(","))) for shape in re.findall(r"f\d+\[([\d,]+)\]", text)]


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.up, self.down = nnx.Linear(8, 40, rngs=rngs), nnx.LinearGeneral((4, 10), 8, axis=(-2, -1), rngs=rngs)

    @nnx.remat
    def __call__(self, held):
        return held + self.down(nnx.gelu(self.up(self.norm(held))).reshape(-1, 4, 10))


class Layers(nnx.Module):
    """Blocks of a list, or one of stacked parameters."""

    def __init__(self, blocks):
        self.blocks = blocks

    def __call__(self, held):
        if isinstance(self.blocks, Block):
            return nnx.scan(Block.__call__, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.blocks, held)
        for block in self.blocks:
            held = block(held)
        return held


@pytest.mark.exhaustive
@pytest.mark.parametrize("base_dtype", [None, jnp.int8], ids=["in full", "adapters"])
def test_a_scanned_module_is_clipped_as_its_layers_one_by_one(base_dtype):
    model = Layers(nnx.vmap(Block)(nnx.Rngs(0).split(3)))
    if base_dtype is not None:
        model = lora(model, 2, base_dtype=base_dtype)
        state = nnx.state(model, nnx.LoRAParam)
        nnx.update(model, jax.tree.map(cosines, state))
    graph, stack = nnx.split(model.blocks)
    layers = [nnx.merge(graph, jax.tree.map(lambda rows, i=i: rows[i], stack)) for i in range(3)]
    scanned, unrolled = split_params(model), split_params(Layers(nnx.List(layers)))

    @jax.jit
    def summed(examples):
        totals = []
        for (graph, params, rest), ghost in ((scanned, True), (unrolled, False)):
            loss = lambda params, x, graph=graph, rest=rest: jnp.sum(merge_params(graph, params, rest)(x) ** 2)  # noqa: E731
            mask = jnp.ones(BATCH, bool)
            totals.append(clip_and_sum(loss, params, examples, mask, rule=Flat(0.5), ghost=ghost)[0])
        return totals, [merge_params(*parts)(examples[0]) for parts in (scanned, without)]

    without = scanned if base_dtype is None else split_params(merge_lora(model))
    (together, apart), outputs = summed(ROWS[:, :, :8])
    blocks = [apart["blocks"][i] for i in range(3)]
    for ours, *theirs in zip(*map(jax.tree.leaves, (together["blocks"], *blocks)), strict=True):
        np.testing.assert_allclose(ours, np.stack(theirs), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-4)


def test_adapters_are_for_stacks_along_first_axes():
    stack = nnx.vmap(lambda rngs: nnx.Linear(4, 5, rngs=rngs), out_axes=1)(nnx.Rngs(0).split(3))
    with pytest.raises(ValueError, match="kernels \\(4, 3, 5\\): stack them along first axes"):
        lora(stack, 2)


def test_layers_that_never_run_add_nothing():
    """A scan over no layers, one of no steps, and layers of no positions: with gradients of zero, beside others."""

    def loss(params, rows):
        def layer(held, own):
            return jnp.tanh(held @ own), None

        held, _ = jax.lax.scan(layer, rows[0], params["none"])
        held, _ = jax.lax.scan(lambda held, _: layer(held, params["idle"]), held, None, length=0)
        return jnp.sum(layer(held, params["used"])[0] ** 2) + jnp.sum(
            jax.lax.scan(layer, rows[:0], params["idle"][None])[0]
        )

    params = {"none": jnp.zeros((0, WIDTH, WIDTH)), "idle": drawn(1, WIDTH, WIDTH), "used": drawn(2, WIDTH, WIDTH)}
    mask = jnp.ones(BATCH, bool)
    both = jax.jit(lambda mask: [
        clip_and_sum(loss, params, ROWS, mask, rule=Flat(0.7), ghost=way)[0] for way in (True, False)
    ])  # fmt: skip
    ours, theirs = jax.tree.map(np.asarray, both(mask))
    assert ours["none"].shape == (0, WIDTH, WIDTH)
    assert not ours["idle"].any()
    np.testing.assert_allclose(ours["used"], theirs["used"], rtol=1e-4, atol=1e-6)
