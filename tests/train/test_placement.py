"""Runs on several devices are those on one: batches, ledger, sums, clip, noise; of work and memory each has a share."""

import json
import math
import re

import numpy as np
import pytest
from flax import nnx
from helpers.eight_devices import answers_of
from helpers.thorough import cases
from jax.sharding import PartitionSpec

from jaxacct.train.placement import Layout, layout_of

SHARDS = """
import tempfile
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxacct.numerics.precision import scope
from jaxacct.train import Checkpoints, DPTrainer, IndexedSource, averaging
from jaxacct.train.clipping import Flat, clip_and_sum
from jaxacct.train.noise import privatize, privatize_step, start
from jaxacct.strategies import square_root
from jaxacct.train.sampling import CyclicPoissonSampler

ROWS = 43
rng = np.random.default_rng(0)
# Two kernels, a table that is read and written, and a vector that nothing divides.
shapes = {"up": (16, 64), "down": (64, 16), "table": (64, 16), "odd": (3,)}
specs = {"up": P("data", "model"), "down": P("model", "data"), "table": P("model", "data"), "odd": P()}
params = {name: jnp.asarray(rng.normal(size=shape) / 4, jnp.float32) for name, shape in shapes.items()}
words = jnp.asarray(rng.integers(0, 64, size=(ROWS, 3)), jnp.int32)

def loss(params, words):
    held = params["table"][words]
    held = held + jnp.tanh(held @ params["up"]) @ params["down"]
    return jnp.sum((jax.nn.logsumexp(held @ params["table"].T, axis=-1) - jnp.log(64)) * params["odd"])

def release(mesh, ghost):
    sharding = None if mesh is None else NamedSharding(mesh, P("data"))
    here = specs if mesh is None or "model" in mesh.axis_names else {
        name: P(*("data" if axis == "data" else None for axis in spec)) for name, spec in specs.items()}
    places = None if mesh is None else {name: NamedSharding(mesh, spec) for name, spec in here.items()}
    def run(params, words, mask, key):
        total, count = clip_and_sum(loss, params, words, mask, rule=Flat(0.5), ghost=ghost, microbatch_size=4,
                                    sharding=sharding, specs=None if mesh is None else here)
        noise = privatize(key, jax.tree.map(jnp.zeros_like, total), noise_multiplier=1.0, clip_norm=1.0,
                          expected_batch_size=1.0, shardings=places)
        return total, count, noise
    with scope():
        given = params if mesh is None else jax.device_put(params, places)
        compiled = jax.jit(run, out_shardings=None if mesh is None else (places, None, places)).lower(
            given, words, jnp.arange(ROWS) < 37, jax.random.key(5)).compile()
        total, count, noise = compiled(given, words, jnp.arange(ROWS) < 37, jax.random.key(5))
        return {"sums": {name: np.asarray(leaf).tolist() for name, leaf in total.items()}, "count": float(count),
                "noise": {name: np.asarray(leaf).tobytes().hex() for name, leaf in noise.items()},
                "text": "" if mesh is None else compiled.as_text()}

def mesh_of(*sizes):
    return Mesh(np.array(jax.devices()).reshape(sizes), ("data", "model")[: len(sizes)])

answer = {"releases": {"one": release(None, True)}}
sizes = {"8": (8,), "4, 2": (4, 2), "2, 4 by vmap": (2, 4)}
for name in MESHES:
    answer["releases"][name] = release(mesh_of(*sizes[name]), "vmap" not in name)

# A sum that lies on one device, on a mesh of the axes that JAX makes; and the third row of correlated noise.
def rows(mesh, strategy):
    spec = P("data", None)
    place = None if mesh is None else NamedSharding(mesh, spec)
    total = jnp.ones((64, 5))
    step = jax.jit(lambda key, state: privatize_step(key, total, strategy, state, noise_multiplier=1.3, clip_norm=0.7,
                                                 expected_batch_size=13.0, shardings=place))
    with scope():
        state = None if strategy is None else start(strategy, total)
        for key in jax.random.split(jax.random.key(6), 1 if strategy is None else 3):
            row, state = step(key, state)
        return np.asarray(row).tobytes().hex()

made = jax.make_mesh((4, 2), ("data", "model"))
answer["rows"] = [[rows(mesh, strategy) for mesh in meshes] for meshes, strategy in
                  [((None, made), None), ((None, mesh_of(4, 2)), square_root(3))]]

x = rng.normal(size=(203, 8)).astype(np.float32)

def trainer(data, **options):
    model = nnx.Linear(8, 64, rngs=nnx.Rngs(0))
    optimizer = averaging(optax.sgd(0.1, momentum=0.9))
    return DPTrainer(model, lambda model, x: jnp.sum(model(x) ** 2), optimizer, data, epsilon=2.0, delta=1e-3,
                     noise_multiplier=9.0, clip_norm=0.5, seed=4, ledger="filter", noise=square_root(3),
                     sampler=CyclicPoissonSampler(203, 3, 0.6, 99), **options)

with tempfile.TemporaryDirectory() as folder:
    many = trainer(IndexedSource((x,)), mesh=mesh_of(4, 2))
    keeper = Checkpoints(f"{folder}/run", every=3)
    many.fit(2, keeper=keeper)
    keeper.close()
    one = trainer((x,))
    Checkpoints(f"{folder}/run", every=3).resume(one)
equal = [bool((np.asarray(a) == np.asarray(b)).all()) for a, b in zip(*map(jax.tree.leaves, (many.state, one.state)))
         if a.dtype in (np.float32, np.float64)]
many.fit(1)
one.fit(1)
leaves = [jax.tree.leaves((run._state.params, run._state.opt_state, run._state.noise)) for run in (one, many)]
answer["trained"] = {
    "equal": equal, "steps": [one.steps, many.steps], "epsilons": [one.spent_epsilon, many.spent_epsilon],
    "errors": [float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(*leaves)],
    "whole": sum(leaf.nbytes for leaf in leaves[0]),
    "held": [sum(shard.data.nbytes for leaf in leaves[1] for shard in leaf.addressable_shards if shard.device == device)
             for device in jax.devices()],
    "on": [len(leaf.devices()) for leaf in leaves[0]],
}
"""


ALONE_AND_TOGETHER = """
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from jaxacct.train import DPTrainer
from jaxacct.train.sampling import PoissonSampler

EXAMPLES, WIDTH, STEPS = 203, 20_000, 2
rng = np.random.default_rng(0)
x = rng.normal(size=(EXAMPLES, 3)).astype(np.float32)

# One column is trained; of the others nothing is asked, and they are noise alone.
def squared_error(model, x, y):
    return jnp.sum((model(x)[0] - y) ** 2)

def with_key(model, x, y, key):
    return squared_error(model, x, y) + jax.random.normal(key) * model(x)[0]

def run(loss, devices, **options):
    model = nnx.Linear(3, WIDTH, use_bias=False, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    trainer = DPTrainer(model, loss, optax.sgd(1.0), (x, x[:, :1]), epsilon=2.0, delta=1e-3, noise_multiplier=3.0,
                        clip_norm=0.5, seed=4, devices=devices, ledger="filter", **options)
    trainer.fit(STEPS)
    (kernel,) = jax.tree.leaves(trainer.state.params)
    return trainer, np.asarray(kernel), len(kernel.devices())

answer = {"devices": len(jax.devices())}
# Rows are filled up to a multiple of eight, and what fills them up must count for nothing.
uneven, even = PoissonSampler(EXAMPLES, 0.2, 99), PoissonSampler(EXAMPLES, 0.2, 96)
ways = {
    "stored": {"ghost": False, "sampler": uneven},
    "by five": {"ghost": True, "sampler": uneven, "microbatch_size": 5},
    "with key, by five": {"ghost": True, "sampler": uneven, "microbatch_size": 5},
    "with key": {"ghost": True, "sampler": even},
}
for name in WAYS:
    loss = with_key if "with key" in name else squared_error
    one, kernel, on_one = run(loss, None, **ways[name])
    many, spread, on_many = run(loss, jax.devices(), **ways[name])
    alone, noise = kernel[:, 1:], spread[:, 1:]
    answer[name] = {
        "kernels": [kernel[:, 0].tolist(), spread[:, 0].tolist()], "on": [on_one, on_many],
        "steps": [one.steps, many.steps], "epsilons": [one.spent_epsilon, many.spent_epsilon],
        "deviation": float(noise.std() * EXAMPLES * 0.2 / 0.5 / STEPS**0.5),
        "same noise": float(np.abs(noise - alone).max() / noise.std()),
    }

from jaxacct.train.clipping import Flat, clip_and_sum
from jaxacct.train.placement import layout_of

ROWS = 64
weights = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, 5), (5, 2))]
rows = jnp.asarray(rng.normal(size=(ROWS, 3)), jnp.float32)

def two_layers(weights, row):
    return jnp.sum((jnp.tanh(row @ weights[0]) @ weights[1]) ** 2)

def compiled(devices, microbatch_size):
    layout = layout_of(jax.devices()[:devices], None, None, None)
    def run(weights, rows, mask):
        return clip_and_sum(two_layers, weights, rows, mask, rule=Flat(0.5), ghost=True,
                            microbatch_size=microbatch_size, sharding=layout and layout.rows)
    return jax.jit(run).lower(weights, rows, jnp.ones(ROWS, bool)).compile()

answer["programs"] = {}
settings = {"one": (1, None), "four": (4, None), "four by 16": (4, 16), "four by 4": (4, 4)}
for name in ("one", *PROGRAMS):
    program = compiled(*settings[name])
    sums, count = program(weights, rows, jnp.arange(ROWS) < 37)
    answer["programs"][name] = {
        "text": program.as_text(), "sums": [leaf.tolist() for leaf in sums], "count": float(count)}
"""


WAYS = cases(["with key, by five"], ["by five", "with key", "stored"])
PROGRAMS = cases(["four by 4"], ["four", "four by 16"])  # blocks of 16 are all that a device has
MESHES = cases(["4, 2"], ["2, 4 by vmap", "8"])


@pytest.fixture(scope="module")
def answers():
    return answers_of(f"MESHES = {MESHES}" + SHARDS, f"WAYS, PROGRAMS = {WAYS}, {PROGRAMS}" + ALONE_AND_TOGETHER)


@pytest.fixture(scope="module")
def answer(answers):
    return answers[0]


@pytest.fixture(scope="module")
def runs(answers):
    assert answers[1]["devices"] == 8
    return answers[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh", MESHES)
def test_sums_and_clip_are_those_of_one_device(answer, mesh):
    one, many = answer["releases"]["one"], answer["releases"][mesh]
    assert many["count"] == one["count"]
    assert abs(one["count"]) < 37 / 2  # some are clipped, and some are not
    for name, total in one["sums"].items():
        np.testing.assert_allclose(many["sums"][name], total, rtol=2e-5, atol=2e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh", MESHES)
def test_noise_is_the_same_to_the_bit(answer, mesh):
    assert answer["releases"][mesh]["noise"] == answer["releases"]["one"]["noise"]


@pytest.mark.exhaustive
def test_so_it_is_for_sums_that_lie_elsewhere_and_for_correlated_rows(answer):
    for one, many in answer["rows"]:
        assert many == one


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh", MESHES)
def test_gradients_of_single_examples_do_not_travel(answer, mesh):
    """What is gathered is smaller than four gradients of the smallest matrix; sums leave in shards."""
    text = answer["releases"][mesh]["text"]
    found = re.findall(r"= f\d+\[([\d,]+)\]\S* all-gather(?:-start)?\(", text)
    assert found
    assert max(math.prod(json.loads(f"[{dims}]")) for dims in found) < 4 * 16 * 64
    assert "reduce-scatter" in text
    assert not re.search(r"= f\d+\[43,[\d,]*\]", text)  # no device works on all rows


def test_a_run_on_a_mesh_goes_on_without_one(answer):
    trained = answer["trained"]
    assert all(trained["equal"])  # what correlated noise remembers among them
    assert trained["steps"] == [3, 3]
    assert set(trained["on"]) == {1}
    assert trained["epsilons"][0] == trained["epsilons"][1] > 0
    assert max(trained["errors"]) < 1e-5


def test_each_device_holds_its_eighth(answer):
    trained = answer["trained"]
    assert max(trained["held"]) <= (1 / 8 + 0.05) * trained["whole"]


@pytest.fixture(scope="module")
def mesh():
    class Mesh:  # of which nothing but names and sizes is asked
        axis_names, shape = ("data", "model"), {"data": 4, "model": 2}

    return Mesh()


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((16, 64), ("model", "data")),  # the longest by rows, the other by tensors
        ((64,), (("data", "model"),)),
        ((3, 6), (None, "model")),  # 4 divides neither
        ((5,), (None,)),
        ((), ()),
    ],
)
def test_what_no_rule_names_is_divided_evenly(mesh, shape, spec):
    assert Layout(mesh, ("data",))._even(shape) == PartitionSpec(*spec)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (PartitionSpec("modl"), "modl"),
        (PartitionSpec("data", "data"), "axis twice"),
        (PartitionSpec("data"), "divides 3 by 4"),
        (PartitionSpec(None, None, "data"), "more entries"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(mesh, spec, said):
    model = nnx.Linear(3, 8, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=said):
        Layout(mesh, ("data",), {"ker": spec}).of_variables(nnx.state(model))


@pytest.mark.parametrize("wrong", [(None, None, {}, None), (None, None, None, "data")])
def test_rules_need_a_mesh(wrong):
    with pytest.raises(ValueError, match="give mesh"):
        layout_of(*wrong)


@pytest.mark.parametrize("way", WAYS)
def test_eight_devices_train_as_one_does(runs, way):
    run = runs[way]
    assert run["on"] == [1, 8]
    assert run["steps"] == [2, 2]
    assert run["epsilons"][0] == run["epsilons"][1] > 0
    one, many = (np.array(kernel) for kernel in run["kernels"])
    assert np.abs(one).max() > 0.1
    np.testing.assert_allclose(many, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_noise_is_added_once_and_not_by_every_device(runs, way):
    """Eight independent noises would have 2.8 times the deviation, a copy on each device eight times."""
    assert runs[way]["deviation"] == pytest.approx(3.0, rel=5 / np.sqrt(2 * 60_000))
    assert runs[way]["same noise"] < 1e-5


def multiplications(text):
    """Returns the multiplications of all dots of a compiled program, for one device, read off their shapes."""
    shapes = {name: json.loads(f"[{dims}]") for name, dims in re.findall(r"%([\w.-]+) = f\d+\[([\d,]*)\]", text)}
    shapes |= {name: json.loads(f"[{dims}]") for name, dims in re.findall(r"([\w.-]+): f\d+\[([\d,]*)\]", text)}
    found = re.findall(r"= f\d+\[([\d,]*)\]\S* dot\(%([\w.-]+), .*?lhs_contracting_dims=\{(\d)\}", text)
    assert len(found) == 5
    return sum(math.prod(json.loads(f"[{dims}]")) * shapes[left][int(axis)] for dims, left, axis in found)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_of_four_devices_makes_a_quarter_of_the_products(runs, name):
    whole, shared = runs["programs"]["one"], runs["programs"][name]
    blocks = 4 if name == "four by 4" else 1
    assert "all-reduce" not in whole["text"]
    assert shared["text"].count(" all-reduce(") == 1
    assert multiplications(shared["text"]) * blocks * 4 == multiplications(whole["text"])
    # A device's own rows, and no others, are what its blocks are cut from.
    assert ("f32[16,3]" in shared["text"]) or ("f32[16,1,3]" in shared["text"])
    for ours, theirs in zip(shared["sums"], whole["sums"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert shared["count"] == whole["count"]
