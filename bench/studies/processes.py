"""Two processes of four simulated devices make one run, one of them is killed, and both take it up again.

Run: python -m bench.studies.processes [--kill-after 5] [--steps 9] [--json FILE]

Not a test. The run is of eight devices on a mesh (4, 2), by data read by index, with a seed and checkpoints. Checked:

* parameters and epsilon of two processes that nobody kills are those of one with eight devices, to the bit;
* no process reads all rows;
* when one is killed the other ends by itself, and ``spends.json`` has at least what was released;
* taken up again, the run ends in the same bits.

Exits 0 if all of it holds, 1 otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench import report

EXAMPLES, PATIENCE = 203, 300


def work(processes: int, index: int, port: int, steps: int, folder: str) -> None:
    """Makes the run, or takes it up, and says each release and what it ends in."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={8 // processes}"
    import jax

    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", processes, index, heartbeat_timeout_seconds=10)
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx
    from jax.sharding import Mesh

    from jaxacct.train import Checkpoints, DPTrainer, IndexedSource, PoissonSampler, averaging
    from jaxacct.train.ownership import arrays_of, digest

    x, read = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype(np.float32), set()

    class Rows:
        def __len__(self) -> int:
            return EXAMPLES

        def __getitem__(self, row: int) -> Any:
            read.add(row)
            return x[row]

    model = nnx.Sequential(nnx.Linear(3, 64, rngs=nnx.Rngs(0)), jnp.tanh, nnx.Linear(64, 5, rngs=nnx.Rngs(1)))
    trainer = DPTrainer(
        model, lambda model, x: jnp.sum(model(x) ** 2), averaging(optax.adam(0.1)), IndexedSource(Rows()), epsilon=2.0,
        delta=1e-3, noise_multiplier=3.0, clip_norm=0.5, seed=4, sampler=PoissonSampler(EXAMPLES, 0.2, 99),
        ledger="filter", mesh=Mesh(np.array(jax.devices()).reshape(4, 2), ("rows", "tensors")),
    )  # fmt: skip
    keeper = Checkpoints(folder, every=4)
    steps = (keeper.resume(trainer) or 0) if keeper.holds_run else steps
    trainer.fit(steps, every=1, keeper=keeper, on_evaluation=lambda look: print(look.step, look.epsilon, flush=True))
    state = trainer.state
    bits = digest(arrays_of((state.params, state.opt_state, state.key, state.ledger)))
    print(json.dumps({"bits": bits, "epsilon": trainer.spent_epsilon, "read": len(read)}), flush=True)


def started(processes: int, steps: int, folder: pathlib.Path) -> list[subprocess.Popen[str]]:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bench.studies.processes", "--work"]
    return [
        subprocess.Popen(
            [*command, *map(str, (processes, index, port, steps, folder))],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for index in range(processes)
    ]  # fmt: skip


def ended(workers: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Returns what each said last."""
    said = [worker.communicate(timeout=PATIENCE)[0].splitlines() for worker in workers]
    return [json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {} for lines in said]


def main() -> int:
    if "--work" in sys.argv:
        processes, index, port, steps, folder = sys.argv[sys.argv.index("--work") + 1 :]
        work(int(processes), int(index), int(port), int(steps), folder)
        return 0
    parser = report.arguments_of(__doc__)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--kill-after", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (one,) = ended(started(1, arguments.steps, folder / "one"))
        both = ended(started(2, arguments.steps, folder / "two"))
        workers = started(2, arguments.steps, folder / "killed")
        released = 0.0
        assert workers[1].stdout is not None
        for line in workers[1].stdout:
            released = max(released, epsilon_in(line))
            if line.startswith(f"{arguments.kill_after} "):
                break
        workers[1].send_signal(signal.SIGKILL)
        begun = time.monotonic()
        rest = workers[0].communicate(timeout=PATIENCE)[0].splitlines()
        took = time.monotonic() - begun
        released = max([released, *map(epsilon_in, rest)])
        spends = json.loads((folder / "killed" / "spends.json").read_text())
        again = ended(started(2, arguments.steps, folder / "killed"))
    checks = {
        "two are one, to the bit": all(of.get("bits") == one["bits"] for of in both),
        "neither reads all rows": all(0 < of["read"] < one["read"] for of in both),
        "the survivor ends by itself": workers[0].returncode != 0,
        "the record is not behind": _epsilon(spends) >= released > 0,
        "taken up, the same bits": all(of.get("bits") == one["bits"] for of in again),
    }
    print(json.dumps(checks, indent=1), f"\nsurvivor ended after {took:.1f} s; rows read: {one['read']}, of two:",
          [of["read"] for of in both])  # fmt: skip
    report.write(arguments.json, {"checks": checks, "seconds of the survivor": took, "rows read": [one, *both]})
    return 0 if all(checks.values()) else 1


def epsilon_in(line: str) -> float:
    """Returns what a worker says of a release; 0 where it says something else."""
    words = line.split()
    return float(words[1]) if len(words) == 2 and words[0].isdigit() else 0.0


def _epsilon(record: Any) -> float:
    """Returns the epsilon in a record, wherever its format keeps it."""
    if isinstance(record, dict):
        return float(record["epsilon"]) if "epsilon" in record else max(map(_epsilon, record.values()), default=0.0)
    return max(map(_epsilon, record), default=0.0) if isinstance(record, list) else 0.0


if __name__ == "__main__":
    sys.exit(main())
