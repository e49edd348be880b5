"""The audit's bounds over many seeds: at most the claim for the honest trainer, above it for each broken one.

Run: python -m bench.studies.audit --json FILE [--seeds N]

Not a test. Claims are certified upper bounds; a bound above the claim of the honest trainer may happen once in twenty
seeds. The bounds of the single runs of each audit show what one training can prove.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import numpy as np
from flax import nnx

from bench import report
from jaxacct import audit
from jaxacct.train import cross_entropy
from jaxacct_recipes import Linear

EXAMPLES, FEATURES, CLASSES = 1000, 8, 4
SEEDS = 20


def problem() -> tuple[nnx.Module, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    labels = np.argmax(inputs[:, :CLASSES], axis=1).astype(np.int32)
    return Linear((FEATURES,), CLASSES, rngs=nnx.Rngs(0)), (inputs, labels)


def audits(fault: str | None, settings: audit.AuditSettings, seeds: int) -> list[dict[str, float]]:
    """Returns what each seed finds: with all of its runs, and with the first one alone."""
    model, data = problem()
    trainer = audit.make_trainer(model, cross_entropy, data, settings, fault)
    watch = audit.watch_canaries(trainer, settings.steps)
    alone = dataclasses.replace(settings, runs=1)
    records = []
    for seed in range(seeds):
        start = time.process_time()
        found = audit.play(trainer, watch, data, settings, seed)
        seconds = time.process_time() - start
        first = audit.judge(trainer, alone, found.correct[:1])
        records.append(
            {
                "claim": found.claim,
                "bound": found.epsilon,
                "p_value": found.p_value,
                "any_mechanism": found.epsilon_of_any_mechanism,
                "bound_of_one_run": first.epsilon,
                "p_value_of_one_run": first.p_value,
                "seconds": seconds,
            }
        )
    return records


def main() -> int:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    settings = audit.AuditSettings()
    numbers, missed = {}, 0
    for fault in (None, *audit.FAULTS):
        records = audits(fault, settings, arguments.seeds)
        bounds, singles, others = (
            np.array([record[name] for record in records]) for name in ("bound", "bound_of_one_run", "any_mechanism")
        )
        claim = records[0]["claim"]
        above, alone = int(np.sum(bounds > claim)), int(np.sum(singles > claim))
        wanted = 0 if fault is None else len(records)
        missed += above != wanted
        print(
            f"{fault or 'honest':10s} claim {claim:.3f}  bound {bounds.min():.2f} to {bounds.max():.2f}, above the "
            f"claim {above} of {len(records)} times (wanted {wanted})"
        )
        print(
            f"{'':10s} one run: {singles.min():.2f} to {singles.max():.2f}, above {alone} times;  any mechanism: "
            f"{others.min():.2f} to {others.max():.2f};  {np.median([r['seconds'] for r in records]):.1f} s an audit",
            flush=True,
        )
        numbers[fault or "honest"] = records
    report.write(arguments.json, {"settings": dataclasses.asdict(settings), "audits": numbers})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
