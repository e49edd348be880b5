"""``report.json``: what was run, what it reached, what it cost, and which guarantee holds."""

from __future__ import annotations

import os
import pathlib
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from jaxacct import strict_json
from jaxacct.train.claims import certified_epsilon, composition, epsilon_so_far, guarantee, renyi_epsilon, unit_of
from jaxacct.train.keys import ENTROPY
from jaxacct.train.sampling.correlated import Correlated, drawn_by
from jaxacct.train.state import Evaluation
from jaxacct.train.trainer import DPTrainer
from jaxacct.whole_file import write_whole

PACKAGES = ("jaxacct", "jax", "flax", "optax", "numpy")

GIVEN = "given by the user"
"""What a report says of a seed that it does not tell."""


def build_report(
    trainer: DPTrainer,
    history: Sequence[Evaluation],
    config: dict[str, Any] | None = None,
    *,
    with_seed: bool = False,
) -> dict[str, Any]:
    """Returns the report of a run as plain Python values.

    Args:
        trainer: the trainer after its ``fit``.
        history: its records; the last one gives the test accuracy.
        config: what else the reader should know, such as the data set's name; the trainer's own settings are added.
        with_seed: whether to tell a seed that was given: True for runs on public data, to be repeated. Whoever knows
            the seed can subtract the noise.

    Returns:
        ``{"config": {...}, "history": [{"step", "accuracy", "epsilon"}, ...], "final": {"steps", "test_accuracy",
        "epsilon_certified": {"lower", "estimate", "upper"}, "epsilon_renyi", "delta", "guarantee"}, "versions":
        {...}}``. ``history`` has the ledger's epsilon: that of a filter or an odometer, which decided on the stop, or
        that of the whole plan; and of a plan ``epsilon_so_far`` besides, what its steps cost up to there
        (:func:`~jaxacct.train.claims.epsilon_so_far`). ``epsilon_certified`` is null where nothing certifies it: the
        run was not planned, and its stopping time not fixed in advance. Of a seed only whether one was given, unless it
        is asked for.

    Formal guarantee: ``epsilon_certified`` is that of :func:`~jaxacct.train.certified_epsilon`, and ``epsilon_renyi``
    an upper bound by the ledger, or by the Rényi accountant for a plan, both at ``delta``; ``guarantee`` says in words,
    by :func:`~jaxacct.train.guarantee`, which of them holds, for which neighbours and batches.
    """
    certified = None
    if trainer.plan is not None or trainer.stopping_was_planned:
        bounds = certified_epsilon(trainer)
        certified = {name: float(getattr(bounds, name)) for name in ("lower", "estimate", "upper")}
    augment, metrics = trainer.augmentation.augment, trainer.program.metrics
    settings = {
        "unit": unit_of(trainer),
        "num_examples": trainer.sampler.num_examples,
        "sampling_rate": trainer.sampler.expected_batch_size / trainer.sampler.num_examples,
        "sampler": type(drawn_by(trainer.sampler)).__name__,
        "noise": trainer.sampler.noise if isinstance(trainer.sampler, Correlated) else "independent",
        "policy": type(trainer.policy).__name__,
        "ledger": trainer.ledger_kind,
        "menu": None if trainer.menu is None else trainer.menu.as_dict() | {"sha256": trainer.menu.fingerprint()},
        "clipping": type(trainer.state.rule).__name__,
        "expected_batch_size": trainer.sampler.expected_batch_size,
        "capacity": trainer.sampler.capacity,
        "noise_multiplier": trainer.noise_multiplier,
        "clip_norm": trainer.clip_norm,
        "microbatch_size": trainer.microbatch_size,
        "views": trainer.augmentation.views,
        "augment": None if augment is None else getattr(augment, "__qualname__", type(augment).__name__),
        "metrics": metrics and {"means": list(metrics.names), "share": metrics.share},
        "budget": {"epsilon": trainer.epsilon, "delta": trainer.delta},
        "composition": composition(trainer),
        "delta_for_accounting": trainer.delta_after_overflow,
        "lost_steps": trainer.progress.lost_steps,
        "seed": trainer.seed if with_seed or trainer.seed == ENTROPY else GIVEN,
    }
    return {
        "config": {**(config or {}), **settings},
        "history": [_record(entry, epsilon_so_far(trainer, entry.step)) for entry in history],
        "final": {
            "steps": trainer.steps,
            "test_accuracy": history[-1].accuracy if history else None,
            "epsilon_certified": certified,
            "epsilon_renyi": renyi_epsilon(trainer),
            "delta": trainer.delta,
            "guarantee": guarantee(trainer),
        },
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
    }


def _record(entry: Evaluation, so_far: float | None) -> dict[str, Any]:
    plain = entry._asdict()
    means = dict(plain.pop("metrics"))
    known = {} if so_far is None else {"epsilon_so_far": so_far}
    return plain | known | ({"metrics": means} if means else {})


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from a source tree
        return "not installed"


def write_report(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a report as strict JSON, whole or not at all: a reader never sees half a file.

    Infinite and NaN numbers, which JSON lacks, become the strings "inf", "-inf" and "nan". Missing folders are made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report({"epsilon": float("inf")}, f"{folder}/run/report.json")
    ...     print(pathlib.Path(f"{folder}/run/report.json").read_text().split())
    ['{', '"epsilon":', '"inf"', '}']
    """
    write_whole(pathlib.Path(path), (strict_json.dumps(report, indent=2) + "\n").encode())
