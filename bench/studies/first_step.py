"""The first step of a run, taken apart: processor seconds of tracing, lowering and compiling, by part of the trainer.

Run: python -m bench.studies.first_step [CASE ...] [--json FILE]

Each case is a process of its own with nothing cached: a transformer of two layers and 107,264 parameters, and the same
with adapters of rank 4, with and without privacy. Seconds are those of the process, so other jobs lengthen them little;
beside other work they are up to a third more. What JAX reports as it ends tracing, lowering or compiling something is
given the seconds since what it reported before: "traced" has all Python on the way, "ran" what was reported by nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

KINDS = {
    "/jax/core/compile/jaxpr_trace_duration": "traced",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowered",
    "/jax/core/compile/backend_compile_duration": "compiled",
}
COLUMNS = (*KINDS.values(), "ran")

CASES = {
    "transformer": 15.0,
    "transformer, not private": None,
    "adapters": 15.0,
    "adapters, not private": None,
}
"""What is trained, and how many seconds its first step may take."""

EXAMPLES, BATCH, WORDS, VOCABULARY, WIDTH = 2000, 64, 32, 80, 64
REPEATS = 5


class Meter:
    """Processor seconds by part and kind; each is given to what ends next."""

    def __init__(self) -> None:
        import jax

        self.seconds: dict[str, Counter[str]] = defaultdict(Counter)
        self.programs: Counter[str] = Counter()
        self.part, self._last = "import", time.process_time()
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration: float, **_: Any) -> None:
        if event in KINDS:
            self.credit(KINDS[event])
            self.programs[self.part] += KINDS[event] == "compiled"

    def credit(self, kind: str) -> None:
        now = time.process_time()
        self.seconds[self.part][kind] += now - self._last
        self._last = now

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Gives what is done within to that part."""
        self.credit("ran")
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.credit("ran")
            self.part = before

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Has what ``owner`` calls by that name given to that part."""
        plain = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.of(part):
                return plain(*args, **kwargs)

        setattr(owner, name, timed)


def measured(case: str) -> dict[str, Any]:
    """Returns the parts of the first step of a case, in this process, and the median of later ones."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx

    from bench.studies.networks import Transformer, cross_entropy
    from jaxacct.train import DPTrainer, PlannedRun
    from jaxacct.train.models import ExampleLoss, merge_params, split_params
    from jaxacct.train.step import StepProgram
    from jaxacct_recipes import lora

    model: Any = Transformer(nnx.Rngs(0), vocabulary=VOCABULARY, words=WORDS, width=WIDTH)
    size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    if case.startswith("adapters"):
        model = lora(model, 4)
    text = np.random.default_rng(0).integers(0, VOCABULARY, (EXAMPLES, WORDS + 1)).astype(np.int32)
    data = text[:, :-1], text[:, 1:]
    optimizer = optax.adam(1e-3)

    def loss(model: Any, words: Any, following: Any) -> Any:
        return cross_entropy(model(words), following)

    jnp.zeros(3) + 1  # a first program
    meter = Meter()
    if case.endswith("not private"):
        with meter.of("the step"):
            graph, params, rest = split_params(model)
            state = optimizer.init(params)

            def mean(params: Any, batch: Any) -> Any:
                one = lambda example: loss(merge_params(graph, params, rest), *example)  # noqa: E731
                return jnp.mean(jax.vmap(one)(batch))

            @jax.jit
            def update(params: Any, state: Any, key: Any, data: Any) -> Any:
                rows = jax.random.randint(key, (BATCH,), 0, EXAMPLES)
                gradient = jax.grad(mean)(params, jax.tree.map(lambda part: part[rows], data))
                updates, state = optimizer.update(gradient, state, params)
                return optax.apply_updates(params, updates), state

            key = jax.random.key(0)
            again = lambda: jax.block_until_ready(update(params, state, key, data))  # noqa: E731
            again()
        first = sum(sum(part.values()) for part in meter.seconds.values())
        steps = [_seconds(again) for _ in range(REPEATS)]
    else:
        for owner, name, part in (
            (PlannedRun, "resolve", "the plan"),
            (ExampleLoss, "of", "the loss, once"),
            (StepProgram, "check_gradients", "made-up rows"),
        ):
            meter.wrap(owner, name, part)
        with meter.of("the trainer"):
            made = DPTrainer(
                model, loss, optimizer, data, epsilon=3.0, delta=1e-5, epochs=1, expected_batch_size=BATCH,
                clip_norm=1.0, seed=0,
            )  # fmt: skip
        with meter.of("the step"):
            made.fit(1)
        first = sum(sum(part.values()) for part in meter.seconds.values())
        steps = [_seconds(lambda: made.fit(1)) for _ in range(REPEATS)]
    parts = {name: {**part, "programs": meter.programs[name]} for name, part in meter.seconds.items()}
    return {"case": case, "parameters": size, "first": first, "step": sorted(steps)[REPEATS // 2], "parts": parts}


def _seconds(call: Any) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def table(found: dict[str, Any]) -> str:
    """Returns the parts of a first step as lines."""
    aim = CASES[found["case"]]
    lines = [
        f"{found['case']}: {found['first']:.1f} CPU s" + (f" (aim {aim:g})" if aim else "")
        + f", then {1000 * found['step']:.0f} ms a call of one step"
    ]  # fmt: skip
    lines.append(f"  {'part':<16}" + "".join(f"{kind:>10}" for kind in (*COLUMNS, "in all", "programs")))
    for name, part in found["parts"].items():
        row = [part.get(kind, 0.0) for kind in COLUMNS]
        if sum(row) >= 0.005:
            cells = "".join(f"{value:10.2f}" for value in (*row, sum(row)))
            lines.append(f"  {name:<16}{cells}{part['programs']:>10}")
    return "\n".join(lines)


def main() -> None:
    from bench import report

    parser = report.arguments_of(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--here", action="store_true", help="in this process, as JSON")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measured(given.cases[0])))
        return
    bare = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    found = []
    for case in given.cases or CASES:
        words = [sys.executable, "-m", "bench.studies.first_step", case, "--here"]
        done = subprocess.run(words, env=bare, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(table(found[-1]), flush=True)
    report.write(given.json, {"cases": found})


if __name__ == "__main__":
    main()
