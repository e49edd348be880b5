"""A decoder of GPT-2's shape under DP-SGD: time and memory beside plain steps, memory on a mesh, and what it learns.

Run: python -m bench.studies.language_model steps --size 2M --json bench/results/language_model.json
     python -m bench.studies.language_model compile --size 124M --devices 8
     python -m bench.studies.language_model compile --size 1.3B --topology v5e:2x4 --remat
     python -m bench.studies.language_model compile --size 124M --devices 8 --scanned
     python -m bench.studies.language_model steps --size 79M --only "full, float32" --batch 12 --microbatch 12 --most 0
     python -m bench.studies.language_model learn --size 0.2M

Not a test. ``steps`` times updates of one batch by adapters and in full, in float32, in bfloat16 and beside an int8
base, in turns; memory is what the compiler asks for beside the arguments. What takes more than ``--most`` is compiled
and not run; ``--torch`` names an interpreter that times Opacus on a torch twin. ``compile`` makes the program of a
shape for a mesh of so many simulated devices, without weights, and says what each device holds. ``learn`` trains on the
standard library's sources at (8, 1e-5), by rows and by users (a file is a user), without privacy, and not at all, and
gives the perplexity per byte of files held out.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

if __name__ == "__main__" and "--devices" in sys.argv:
    count = sys.argv[sys.argv.index("--devices") + 1]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count} " + os.environ.get("XLA_FLAGS", "")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from bench import report
from bench.studies.decoder import CONTEXT, SHAPES, Decoder, loaded, next_token_loss, text
from bench.timing import clock
from jaxacct import train
from jaxacct.train import DPTrainer, mean_over_examples, users_as_examples
from jaxacct.train.clipping import Flat, clip_and_sum
from jaxacct.train.models import merge_params, split_params
from jaxacct.train.noise import privatize
from jaxacct.train.placement import Layout
from jaxacct_recipes import lora

RANK, CLIP_NORM, NOISE_MULTIPLIER = 8, 1.0, 1.0
WANTED = {"time": 1.25, "memory": 1.3}
"""Most times a plain step of the same parameters."""

RULES = {
    "c_attn/kernel|c_fc/kernel": PartitionSpec("rows", "tensors"),
    "proj/kernel": PartitionSpec("tensors", "rows"),
    "c_attn/bias|c_fc/bias": PartitionSpec("tensors"),
    "wpe": PartitionSpec("rows", "tensors"),
    "wte": PartitionSpec(None, ("rows", "tensors")),  # GPT-2's words are divided by 29 and 1733 alone
}
"""Of a mesh with both axes: what goes into a block's inner width is divided by columns, what comes out by rows."""

STACKED_RULES = {
    **{name: spec if name in ("wpe", "wte") else PartitionSpec(None, *spec) for name, spec in RULES.items()},
    "down": PartitionSpec(None, "rows", "tensors"),
    "up": PartitionSpec(None, "tensors", "rows"),
    "ln_[12]|proj/bias": PartitionSpec(None, ("rows", "tensors")),
}
"""The same where blocks are scanned: the axis of layers stays whole, as a scan takes one of it after another. What no
rule is for may be divided along it, and then each layer's gradients are gathered."""


def model_of(
    size: str, *, adapters: bool = False, base: Any = None, dtype: Any = jnp.float32, **options: Any
) -> nnx.Module:
    """Returns a decoder that computes in ``dtype``, its adapters beside a base that is held in ``base`` or the same."""
    model = Decoder(SHAPES[size], dtype=dtype, rngs=nnx.Rngs(0), **options)
    return lora(model, RANK, 2.0 * RANK, base_dtype=base or dtype) if adapters else model


def parts_of(size: str, **options: Any) -> tuple[Any, Any, Any]:
    """Returns graph, shapes of what is trained, and of all else."""
    graph, params, rest = nnx.eval_shape(lambda: split_params(model_of(size, **options)))
    return graph, params, rest


OPTIMIZER = optax.adam(1e-3)


def step_of(
    graph: Any,
    way: str,
    *,
    microbatch_size: int | None = None,
    layout: Layout | None = None,
    optimizer: Any = OPTIMIZER,
) -> Callable[..., Any]:
    """Returns ``(params, opt_state, rest, key, tokens) -> (params, opt_state)``: plain, or private by ghost or vmap."""

    def step(params: Any, opt_state: Any, rest: Any, key: jax.Array, tokens: jax.Array) -> Any:
        def loss(params: Any, tokens: jax.Array) -> jax.Array:
            return next_token_loss(merge_params(graph, params, rest), tokens)

        if way == "plain":
            blocks = tokens.reshape(-1, microbatch_size or len(tokens), CONTEXT + 1)
            mean = lambda params, block: jnp.mean(jax.vmap(loss, in_axes=(None, 0))(params, block))  # noqa: E731

            def add(total: Any, block: jax.Array) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, total, jax.grad(mean)(params, block)), None

            total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), blocks)
            gradient = jax.tree.map(lambda leaf: leaf / len(blocks), total)
        else:
            shardings = None if layout is None else layout.of_variables(params)
            total, _ = clip_and_sum(
                loss, params, tokens, jnp.ones(len(tokens), bool), rule=Flat(CLIP_NORM), ghost=way == "ghost",
                microbatch_size=microbatch_size, sharding=None if layout is None else layout.rows,
                specs=jax.tree.map(lambda sharding: sharding.spec, shardings),
            )  # fmt: skip
            noisy = privatize(
                key, total, noise_multiplier=NOISE_MULTIPLIER, clip_norm=CLIP_NORM, expected_batch_size=len(tokens),
                shardings=shardings,
            )  # fmt: skip
            gradient = jax.tree.map(lambda entry, leaf: entry.astype(leaf.dtype), noisy, params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return step


def jax_privacy_step(graph: Any, microbatch_size: int) -> Callable[..., Any] | None:
    try:
        import jax_privacy
    except ImportError:
        return None

    def step(params: Any, opt_state: Any, rest: Any, key: jax.Array, tokens: jax.Array) -> Any:
        loss = lambda params, tokens: next_token_loss(merge_params(graph, params, rest), tokens)  # noqa: E731
        clipped = jax_privacy.clipped_grad(
            loss, l2_clip_norm=CLIP_NORM, batch_argnums=1, keep_batch_dim=False, microbatch_size=microbatch_size
        )
        noise = jax_privacy.noise_addition.gaussian_privatizer(
            stddev=NOISE_MULTIPLIER * clipped.sensitivity(), prng_key=key
        )
        noisy, _ = noise.update(clipped(params, tokens), noise.init(params))
        updates, opt_state = OPTIMIZER.update(jax.tree.map(lambda leaf: leaf / len(tokens), noisy), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return step


KINDS: dict[str, dict[str, Any]] = {
    "adapters, float32": {"adapters": True},
    "adapters, bfloat16": {"adapters": True, "dtype": jnp.bfloat16},
    "adapters, bfloat16, int8 base": {"adapters": True, "dtype": jnp.bfloat16, "base": jnp.int8},
    "in full, float32": {},
    "in full, bfloat16": {"dtype": jnp.bfloat16},
}


def kinds_of(arguments: argparse.Namespace) -> Iterator[tuple[str, Any, Any, tuple[Any, ...]]]:
    """Yields the name of each kind of training, its graph, what is trained, and the arguments of a step."""
    tokens = jnp.asarray(text()[0][: arguments.batch])
    for name, options in KINDS.items():
        if arguments.only in name:
            made = model_of(arguments.size, remat=arguments.remat, scanned=arguments.scanned, **options)
            graph, params, rest = split_params(made)
            yield name, graph, params, (params, OPTIMIZER.init(params), rest, jax.random.key(1), tokens)


def timed(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields, for each kind of training, seconds and bytes of a step of each way."""
    for name, graph, params, given in kinds_of(arguments):
        ways = {
            "plain": step_of(graph, "plain"),
            "plain by microbatches": step_of(graph, "plain", microbatch_size=arguments.microbatch),
            "ghost": step_of(graph, "ghost", microbatch_size=arguments.microbatch),
            "vmap": step_of(graph, "vmap", microbatch_size=arguments.microbatch),
            "jax-privacy": jax_privacy_step(graph, arguments.microbatch),
        }
        steps = {way: jax.jit(step).lower(*given).compile() for way, step in ways.items() if step is not None}
        memory = {way: step.memory_analysis().temp_size_in_bytes for way, step in steps.items()}
        taken: dict[str, list[float]] = {way: [] for way in steps}
        for turn in range(arguments.turns + 1):
            for way, step in steps.items():
                if memory[way] > arguments.most * 2**30:  # it would not fit
                    continue
                start = clock()
                jax.block_until_ready(step(*given))
                if turn:
                    taken[way].append(clock() - start)
        found = {
            "trained": sum(leaf.size for leaf in jax.tree.leaves(params)),
            "parameters": sum(leaf.nbytes for leaf in jax.tree.leaves((params, given[2]))),
            "seconds": {way: min(times) for way, times in taken.items() if times},
            "temporaries": memory,
        }
        if arguments.torch and "adapters" in name and "int8" not in name:
            found["torch"] = twin(arguments, name.split(", ")[1])
        yield name, found


def twin(arguments: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Returns the same of Opacus, in an interpreter of its own."""
    shape = SHAPES[arguments.size]._asdict() | {"batch": arguments.batch, "turns": arguments.turns}
    command = [arguments.torch, str(pathlib.Path(__file__).parent / "torch_decoder.py"), "--dtype", dtype]
    command += [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def laid(tree: Any, shardings: Any) -> Any:
    def at(leaf: Any, place: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    return jax.tree.map(at, tree, shardings)


def described(topology: str) -> Sequence[Any]:
    """Returns chips that are not there, for their compiler, which the wheel libtpu has."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices


def compiled(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields, for meshes of all devices, the bytes that a device holds, of what one device would."""
    devices = np.array(described(arguments.topology) if arguments.topology else jax.devices())
    of_both = STACKED_RULES if arguments.scanned else RULES
    meshes = {(len(devices),): None, (len(devices) // 2, 2): of_both} if len(devices) > 1 else {}
    kinds = [(sizes, rules, adapters) for sizes, rules in meshes.items() for adapters in (True, False)]
    for sizes, rules, adapters in kinds:
        name = f"{sizes}, {'adapters' if adapters else 'in full'}"
        if arguments.only not in name:
            continue
        mesh = Mesh(devices.reshape(sizes), ("rows", "tensors")[: len(sizes)])
        layout = Layout(mesh, ("rows",), rules)
        graph, params, rest = parts_of(
            arguments.size, dtype=jnp.dtype(arguments.dtype), remat=arguments.remat, scanned=arguments.scanned,
            adapters=adapters,
        )  # fmt: skip
        places = layout.of_variables(params)
        moments = (places, places)
        opt_state = jax.eval_shape(OPTIMIZER.init, params)
        held = (opt_state[0]._replace(count=layout.everywhere, mu=moments[0], nu=moments[1]), *opt_state[1:])

        key = jax.eval_shape(lambda: jax.random.key(0))
        tokens = jax.ShapeDtypeStruct((arguments.batch, CONTEXT + 1), jnp.uint8, sharding=layout.everywhere)
        given = (laid(params, places), laid(opt_state, held), laid(rest, layout.of_variables(rest)), key, tokens)
        step = step_of(graph, "ghost", microbatch_size=arguments.microbatch, layout=layout)
        start = time.perf_counter()
        lowered = jax.jit(step, out_shardings=(places, held), donate_argnums=(0, 1)).lower(*given)
        middle = time.perf_counter()
        found = lowered.compile()
        end = time.perf_counter()
        memory, text_of = found.memory_analysis(), str(found.as_text())
        assert memory is not None
        whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(given[:3]))
        yield (
            name,
            {
                "trained": sum(leaf.size for leaf in jax.tree.leaves(params)),
                "held by each": memory.argument_size_in_bytes - arguments.batch * (CONTEXT + 1),
                "share": (memory.argument_size_in_bytes - arguments.batch * (CONTEXT + 1)) / whole,
                "temporaries": memory.temp_size_in_bytes,
                "reduce-scatters": text_of.count(" reduce-scatter("),
                "lines before and after": (lowered.as_text().count("\n"), text_of.count("\n")),
                "seconds of lowering and compiling": (middle - start, end - middle),
            },
        )


def perplexity(model: nnx.Module, examples: np.ndarray) -> float:
    graph, state = nnx.split(model)
    of_all = jax.jit(lambda state, rows: jax.lax.map(lambda row: next_token_loss(nnx.merge(graph, state), row), rows))
    return math.exp(float(jnp.mean(of_all(state, jnp.asarray(examples)))))


def learned(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields perplexities of files held out."""
    examples, owner, held_out = text()
    held_out = held_out[:: max(1, len(held_out) // 512)]
    model: Any = model_of(arguments.size)
    if arguments.weights:
        model = loaded(model, arguments.weights)
    yield "untrained", {"perplexity": perplexity(model, held_out)}
    rate = optax.warmup_cosine_decay_schedule(0.0, arguments.rate, arguments.steps // 10, arguments.steps)
    records, weights = users_as_examples(examples, owner, arguments.most_of_user)
    of_users = (mean_over_examples(next_token_loss), (records, weights), arguments.most_of_user)
    for unit, (loss, data, gradients) in {"rows": (next_token_loss, (examples,), 1), "users": of_users}.items():
        trainer = DPTrainer(
            model, loss, optax.adam(rate), data, epsilon=8.0, delta=1e-5, steps=arguments.steps, clip_norm=0.3,
            expected_batch_size=arguments.batch / gradients, microbatch_size=arguments.microbatch // gradients, seed=0,
        )  # fmt: skip
        trainer.fit()
        yield f"epsilon = 8, by {unit}", {
            "perplexity": perplexity(trainer.model, held_out), "noise multiplier": trainer.noise_multiplier,
            unit: len(data[0]), "unit": train.build_report(trainer, [])["config"]["unit"],
        }  # fmt: skip
    graph, params, rest = split_params(model)
    opt_state, rng = (optimizer := optax.adam(rate)).init(params), np.random.default_rng(0)

    descend = jax.jit(step_of(graph, "plain", microbatch_size=arguments.microbatch, optimizer=optimizer))
    for _ in range(arguments.steps):
        rows = jnp.asarray(examples[rng.integers(0, len(examples), arguments.batch)])
        params, opt_state = descend(params, opt_state, rest, jax.random.key(0), rows)
    yield "epsilon = inf", {"perplexity": perplexity(merge_params(graph, params, rest), held_out)}


JOBS = {"steps": timed, "compile": compiled, "learn": learned}


def main() -> int:
    parser = report.arguments_of(__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--size", choices=SHAPES, default="2M")
    parser.add_argument("--devices", type=int, default=1, help="simulated ones")
    parser.add_argument("--topology", help="compile for such chips in place of simulated devices, as v5e:2x4")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--microbatch", type=int, default=4, help="on each device")
    parser.add_argument("--dtype", default="float32", help="of what is compiled")
    parser.add_argument("--remat", action="store_true", help="compute each block again for its derivative")
    parser.add_argument("--scanned", action="store_true", help="stack blocks and scan over them, not in learn")
    parser.add_argument("--only", default="", help="of what is printed: names with these letters")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--most", type=float, default=12.0, help="GiB that a step may take to be run")
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter that has torch and opacus")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--most-of-user", type=int, default=4, help="rows of a file whose mean gradient is clipped")
    parser.add_argument("--weights", type=pathlib.Path, help="GPT-2's, a safetensors file")
    arguments = parser.parse_args()
    shown = {name: value for name, value in vars(arguments).items() if name not in ("json", "weights")}
    found_peer = arguments.job == "steps" and importlib.util.find_spec("jax_privacy")
    peers = {"jax-privacy": importlib.metadata.version("jax-privacy")} if found_peer else {}
    numbers: dict[str, Any] = {}
    for name, found in JOBS[arguments.job](arguments):
        numbers[name] = found
        print(name, {key: value for key, value in found.items() if not isinstance(value, dict)}, flush=True)
        for kind in ("seconds", "temporaries"):
            if isinstance(ways := found.get(kind), dict):
                whole, blocks = (ways.get(way, math.nan) for way in ("plain", "plain by microbatches"))
                told = (f"{way} {value:.4g} ({value / whole:.2f}, {value / blocks:.2f})" for way, value in ways.items())
                print(f"  {kind} (over plain, and by microbatches): " + ", ".join(told), flush=True)
        report.write(arguments.json, {"setting": shown, "wanted": WANTED, "found": numbers}, peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
