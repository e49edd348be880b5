"""Reports of runs: certified bounds on the epsilon of the steps made, and the words that say when they hold.

* :func:`certified_epsilon` to :func:`guarantee`: the numbers, the composition that they are of, and their meaning;
* :func:`build_report`, :func:`write_report`: ``report.json``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import pathlib
import platform
from collections.abc import Sequence
from fractions import Fraction
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct
from jaxacct import json_files
from jaxacct.bounds import Bounds
from jaxacct.display import round_up, rounded_up
from jaxacct.json_files import write_whole
from jaxacct.mechanisms import PoissonSubsampledGaussian, ShuffledGaussian
from jaxacct.mechanisms.records import record_of
from jaxacct.numerics.chacha20 import is_chacha20
from jaxacct.policies import Constant
from jaxacct.train.integer_noise import VARIANCES, bill, draws_of, noise_delta, table
from jaxacct.train.keys import ENTROPY
from jaxacct.train.ownership import entries_of
from jaxacct.train.planned import whole_steps_of
from jaxacct.train.progress import Evaluation
from jaxacct.train.sampling import PoissonSampler, runs_of
from jaxacct.train.sampling.correlated import Correlated, drawn_by
from jaxacct.train.trainer import DPTrainer
from jaxacct.train.users import LossOfUser


def certified_epsilon(trainer: DPTrainer) -> Bounds:
    """Returns certified bounds on the epsilon of a trainer's run so far, at its delta.

    Returns:
        :class:`~jaxacct.bounds.Bounds` of float64 scalars; zeros before the first step.

    Formal guarantee: ``upper`` holds for the sampler's relation, for settings that were fixed before training. It is
    that of the steps made, for a stopping time that depends on the settings alone
    (:attr:`~jaxacct.train.trainer.DPTrainer.stopping_was_planned`). If the run ended otherwise, ``upper`` holds even
    where what was released decided on the end: it is the epsilon of the whole plan (:mod:`jaxacct.train.planned`), a
    filter's budget, or an odometer's reading; ``lower`` is that of the steps made. An epoch that has begun, where it is
    the sampler's mechanism, counts in ``upper`` and not in ``lower``. Batches cut at capacity, and noise of integers,
    are paid for on both sides: ``upper`` is computed at delta less their cost, ``lower`` at delta plus it.
    ``lower`` bounds the epsilon of the worst gradients, not of those that occurred, at the noise multiplier that is
    accounted: integers are a little more noise, a thousandth mostly, as they pay for rounding.

    Raises ValueError for an adaptive policy: its settings were chosen from results, and no composition of what they
    happened to be bounds their privacy loss. The ledger does (:attr:`~jaxacct.train.trainer.DPTrainer.spent_epsilon`).

    >>> import optax
    >>> from flax import nnx
    >>> trainer = DPTrainer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), lambda m, x: jnp.sum(m(x) ** 2), optax.sgd(0.1),
    ...                     (np.ones((100, 1), np.float32),), epsilon=2.0, delta=1e-3, noise_multiplier=4.0,
    ...                     expected_batch_size=20, clip_norm=1.0)
    >>> _ = trainer.fit(steps=2)
    >>> bounds = certified_epsilon(trainer)
    >>> bool(0 < bounds.lower <= bounds.upper <= trainer.spent_epsilon)
    True
    """
    if trainer.policy.adaptive:
        raise ValueError(
            f"policy = {type(trainer.policy).__name__} chose its settings from results: the certified epsilon of the "
            "non-adaptive composition does not apply. Use the ledger's: trainer.spent_epsilon, or the budget."
        )
    # Lost updates may have been released: a plan covers them, a composition of the steps that were kept does not.
    lost = trainer.progress.lost_steps
    if trainer.plan is None and lost:
        raise ValueError(
            f"an interruption lost {lost} updates, which may have been released and stay paid for: the epsilon of "
            "those that were kept is too small. Use the ledger's: trainer.spent_epsilon, or the budget."
        )
    made = epsilon_after(trainer, trainer.steps)
    # First case: the length did not depend on what was released, so that the steps made count alone. Else the upper
    # bound is one that holds for any stopping rule; the lower bound stays that of the steps made.
    if trainer.steps + lost == 0 or (trainer.stopping_was_planned and not lost):
        return made
    if trainer.plan is not None:
        return dataclasses.replace(trainer.plan.certified, lower=made.lower)
    upper = trainer.spent_epsilon if trainer.ledger_kind == "odometer" else trainer.epsilon
    return Bounds(lower=min(float(made.lower), upper), estimate=upper, upper=upper, converged=False)


def epsilon_after(trainer: DPTrainer, steps: int) -> Bounds:
    """Returns :func:`certified_epsilon` of the first ``steps`` steps, of a trainer whose settings were fixed before."""
    mechanism, counts = _composition(trainer, steps)
    relation = trainer.sampler.relation
    left = trainer.delta_for_accounting
    above = jaxacct.epsilon(mechanism, counts, delta=left, relation=relation)
    if trainer.plan is not None:  # an epsilon that is certified for all steps holds for some of them
        upper = min(float(above.upper), float(trainer.plan.certified.upper))
        above = Bounds(min(float(above.lower), upper), min(float(above.estimate), upper), upper, above.converged)
    cost = trainer.sampler.overflow_delta(steps, trainer.epsilon)
    cost += noise_delta(samples_of(trainer), trainer.epsilon, trainer.delta)
    queries = () if trainer.plan is None else trainer.plan.queries
    steps_ended = whole_steps_of(trainer.sampler, steps)
    if cost == 0.0 and not queries and steps_ended == steps:
        return above
    more = math.nextafter(trainer.delta + cost, 1.0)
    if steps_ended < steps:  # nor more than was made of a run that has begun
        mechanism, counts = _composition(trainer, steps_ended)
    if queries:  # a lower bound must not count queries that nobody may have asked
        mechanism, counts = mechanism[0], counts[0]
    below = jaxacct.epsilon(mechanism, counts, delta=more, relation=relation)
    return Bounds(lower=below.lower, estimate=above.estimate, upper=above.upper)


def epsilon_so_far(trainer: DPTrainer, steps: int) -> float | None:
    """Returns :meth:`.Plan.epsilon_so_far` of the first ``steps`` steps and of those that an interruption lost.

    None without a plan, whose ledger reads what it has spent; and with correlated noise.
    """
    return None if trainer.plan is None else trainer.plan.epsilon_so_far(steps + trainer.progress.lost_steps)


def renyi_epsilon(trainer: DPTrainer) -> float:
    """Returns the epsilon of a trainer's run so far by Rényi divergences: the ledger's, or that of a planned run.

    Formal guarantee: an upper bound; for planned runs, on the epsilon that :func:`certified_epsilon` bounds.
    """
    if trainer.plan is None:
        return trainer.spent_epsilon
    made = trainer.steps + trainer.progress.lost_steps
    return trainer.plan.renyi_epsilon_after(made if trainer.stopping_was_planned or not made else trainer.plan.steps)


def composition(trainer: DPTrainer) -> dict[str, Any] | None:
    """Returns the composition whose certified epsilon is reported, for JSON.

    None where no settings fixed before training bound the run, or where it has a mechanism of the user's own, which
    JSON cannot hold.

    ``mechanisms`` and ``steps`` are of the steps made where their number was fixed before, else of the whole plan;
    ``cut_probability`` bounds the probability that one of their batches was cut, or was drawn by another law, and
    ``noise_distance`` the total variation of the noise that was drawn from theirs, 0 where nothing bounds it.
    """
    if trainer.policy.adaptive or (trainer.plan is None and not trainer.stopping_was_planned):
        return None
    is_of_plan = trainer.plan is not None and (not trainer.stopping_was_planned or trainer.progress.lost_steps > 0)
    steps = trainer.plan.steps if is_of_plan and trainer.plan is not None else trainer.steps
    mechanisms, counts = _composition(trainer, steps)
    parts, times = (mechanisms, counts) if isinstance(mechanisms, tuple) else ((mechanisms,), (counts,))
    parts, times = _cut_epoch(parts, times, steps % trainer.sampler.steps_per_run)
    try:
        records = [record_of(part) for part in parts]
    except ValueError:  # a mechanism of the user's own
        return None
    runs = runs_of(trainer.sampler, steps) * trainer.sampler.steps_per_run
    samples = samples_of(trainer)
    return {
        "mechanisms": records,
        "steps": [np.asarray(count).tolist() for count in times],
        "relation": trainer.sampler.relation,
        # Their cost in delta at an epsilon is 1 + e^epsilon times the probability: at epsilon 0, twice.
        "cut_probability": math.nextafter(trainer.sampler.overflow_delta(runs, 0.0) / 2, 1.0) if runs else 0.0,
        "noise_distance": round_up(sum(map(Fraction, bill(samples).values()), Fraction(0))) if samples else 0.0,
    }


def _cut_epoch(parts: tuple[Any, ...], times: tuple[Any, ...], left: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns parts and counts with the last epoch of shuffled batches as one that ended after ``left`` steps, if any.

    So a lower bound is of what was made. Elsewhere lower bounds are of the pairs, and a begun epoch is a whole one.
    """
    epochs, *others = parts
    if not (left and isinstance(epochs, ShuffledGaussian)):
        return parts, times
    return (epochs, dataclasses.replace(epochs, stop_after=left), *others), (times[0] - 1, 1, *times[1:])


def samples_of(trainer: DPTrainer) -> int:
    """Returns how many integer noise values the longest run allowed draws at most; 0 for noise of float64."""
    return trainer.budget.samples * _most_steps(trainer)


def _most_steps(trainer: DPTrainer) -> int:
    """Returns the steps of the longest run allowed, those of a run of the sampler's mechanism that is begun in full."""
    return runs_of(trainer.sampler, trainer.horizon) * trainer.sampler.steps_per_run


def drawn_noise_of(trainer: DPTrainer) -> dict[str, Any]:
    """Returns how a trainer draws its noise, for JSON: all that a referee needs to judge integers, and no key.

    ``draws`` and ``scale_squared``, the variance parameter s^2 as a fraction, are of the gradients' noise; that of
    counts and means may be of 2 draws, which are as near to their account. A step draws ``entries``, one for each of
    the parameters, and ``counts``, of rules, policies and means; ``samples`` are those of ``steps``, in runs of
    ``steps_per_run``. ``total_variation`` has the parts of what bounds the distance of all of them
    (:func:`.integer_noise.bill`), and ``delta`` is what that takes off delta.
    """
    if not is_chacha20(trainer.state.key):
        return {"arithmetic": "float64"}
    seeds = {
        ENTROPY: "256 bits of the operating system's entropy",
        "key given by the caller": "a key given by the user",
    }
    samples, noise = samples_of(trainer), trainer.program.gradient_noise
    rounding = trainer.program.door.rounding(trainer.state, trainer.state.params)
    entries = entries_of(trainer.state.params)
    draws = 3 if noise is None else draws_of(noise, entries if rounding is None else 0, rounding or 0.0)
    return {
        "arithmetic": "integer",
        "generator": f"ChaCha20, from {seeds.get(str(trainer.seed), 'a seed given by the user')}",
        "draws": draws,
        "scale_squared": str(VARIANCES[draws]),
        "table_sha256": hashlib.sha256(table().astype("<u4").tobytes()).hexdigest(),
        "entries": entries,
        "counts": trainer.budget.samples - entries,
        "samples_per_step": trainer.budget.samples,
        "steps": _most_steps(trainer),
        "steps_per_run": int(trainer.sampler.steps_per_run),
        "samples": samples,
        "total_variation": bill(samples),
        "delta": noise_delta(samples, trainer.epsilon, trainer.delta),
    }


def _composition(trainer: DPTrainer, steps: int) -> tuple[Any, Any]:
    """Returns the mechanisms of the first steps, and how often each of them ran."""
    if trainer.plan is not None:
        return trainer.plan.composition(steps)
    if isinstance(trainer.policy, Constant):
        return trainer.mechanism, runs_of(trainer.sampler, steps)
    # A schedule: its settings depend on the step alone. Equal noises are counted together.
    setting, state = trainer.program.setting, trainer.state.policy
    noises = jax.vmap(lambda step: setting(state, step).noise_multiplier)(jnp.arange(max(steps, 1)))
    distinct, counts = np.unique(np.asarray(noises, np.float64), return_counts=True)
    rates = np.full(len(distinct), trainer.sampler.sampling_rate)
    return PoissonSubsampledGaussian(distinct, rates), counts if steps else np.zeros_like(counts)


RELATIONS = {
    "add_or_remove": "{unit} added or removed",
    "replace": "{unit} replaced by another",
    "zero_out": "{unit} replaced by one that contributes nothing",
}
"""Neighbouring relations in words, by their names."""


def unit_of(trainer: DPTrainer) -> str:
    """Returns in words the unit of privacy: one example of the data, or one user."""
    return "one user with all its examples" if isinstance(trainer.program.loss.loss, LossOfUser) else "one example"


def _number_of(trainer: DPTrainer) -> str:
    """Returns in words whether the number of examples, which sets sums and rates, is public or protected."""
    size = trainer.sampler.num_examples
    if isinstance(trainer.sampler, PoissonSampler) and trainer.sampler.present is not None:
        return f" How many there are is protected, too: at most {size}, a number taken to be chosen without looking."
    return f" How many there are, {size}, is taken as public." if trainer.sampler.relation != "replace" else ""


def guarantee(trainer: DPTrainer) -> str:
    """Returns, in words, which of the run's epsilons holds and why, for which neighbours and which batches.

    The certified one holds where noise, rate and stopping time were fixed before training: that of the steps made, or
    of the whole plan if the run ended otherwise. Elsewhere the ledger's holds, a filter's budget or an odometer's
    running bound (:mod:`jaxacct.filters`, :mod:`jaxacct.odometers`). :func:`~jaxacct.train.build_report` puts these
    words into a report.
    """
    odometer = trainer.ledger_kind == "odometer"
    books = {"menu": "menu filter", "filter": "Rényi filter", "odometer": "odometer", "planned": "plan"}
    book = books[trainer.ledger_kind]
    if trainer.plan is not None and not trainer.stopping_was_planned:
        text = (
            f"The noise multiplier, the sampling rate and at most {trainer.plan.steps} steps were fixed "
            "before training. What was released is a part of what that plan releases, so the plan's certified "
            "epsilon holds, even if what was seen of the model decided when to stop."
        )
    elif trainer.stopping_was_planned:
        text = (
            "The noise multiplier and the sampling rate were fixed before training and the stopping time depends only "
            "on them, so the certified epsilon of the non-adaptive composition holds for the realized number of steps. "
        )
        text += (
            f"That of the whole plan, {rounded_up(trainer.epsilon)}, would hold even if the model had decided when to "
            "stop."
            if trainer.plan is not None
            else f"The {book}'s epsilon would also hold had they been chosen adaptively."
        )
    else:
        why = (
            f"The policy {type(trainer.policy).__name__} chose settings from what was released."
            if trainer.policy.adaptive
            else "Training was interrupted or continued, so its length may depend on what was seen of the model."
        )
        text = f"{why} The certified epsilon of the non-adaptive composition does not apply. "
        text += (
            "The odometer's epsilon of the steps made holds, whenever and why ever training stopped."
            if odometer
            else f"The {book}'s budget, epsilon = {rounded_up(trainer.epsilon)}, holds however everything was chosen."
        )
    if trainer.plan is not None and trainer.plan.queries:
        text += f" What the plan pays for beside the steps is included: {', '.join(trainer.plan.query_descriptions)}."
    sampler = type(drawn_by(trainer.sampler)).__name__
    batches = {
        "PoissonSampler": "Poisson sampled; those cut at capacity are paid for in delta",
        "TruncatedPoissonSampler": "Poisson sampled and cut at random, which the mechanism counts",
        "WithoutReplacementSampler": "of fixed size, drawn without replacement",
        "ShuffledSampler": "of fixed size, by an order that is drawn for each epoch and kept secret",
        "CyclicPoissonSampler": "Poisson sampled from groups that take turns; those cut at capacity are paid for in "
        "delta",
        "RandomAllocationSampler": "by random allocation, each example in equally many batches of every epoch",
        "BallsInBinsSampler": "by random allocation, each example in one batch, the same in all epochs of a run",
    }
    text += (
        f" Neighbours: {RELATIONS[trainer.sampler.relation].format(unit=unit_of(trainer))}.{_number_of(trainer)}"
        f" Batches: {batches.get(sampler, f'drawn by {sampler}')}."
    )
    if isinstance(trainer.sampler, Correlated):
        text += f" Noise: {trainer.sampler.noise}, fixed before training."
    if is_chacha20(trainer.state.key):
        text += " Noise is drawn in integers, of a law whose distance from that accounted for delta pays."
    if trainer.seed != ENTROPY:
        text += " The random seed was given by the user: the guarantee holds only against those who do not know it."
    return text


# ----------------------------------------------------------------------------------------------------
# Report of a run, ``report.json``: what was run, what it reached, what it cost, and which guarantee holds.
# ----------------------------------------------------------------------------------------------------


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
        that of the whole plan. A plan's entries also have ``epsilon_so_far``, the cost of the steps up to there
        (:attr:`.Evaluation.epsilon_so_far`). ``epsilon_certified`` is null where nothing certifies it: the
        run was not planned, and its stopping time not fixed in advance. Of a seed the report says only whether one was
        given, unless ``with_seed`` is True.

    Formal guarantee: ``epsilon_certified`` is that of :func:`~jaxacct.train.certified_epsilon`, and ``epsilon_renyi``
    an upper bound by the ledger, or by the Rényi accountant for a plan, both at ``delta``; ``guarantee`` says in words,
    by :func:`~jaxacct.train.guarantee`, which of them holds, for which neighbours and batches.
    """
    certified = None
    if trainer.plan is not None or trainer.stopping_was_planned:
        bounds = certified_epsilon(trainer)
        certified = {"lower": float(bounds.lower), "estimate": float(bounds.estimate), "upper": float(bounds.upper)}
    augment, metrics = trainer.augment, trainer.program.metrics
    settings = {
        "unit": unit_of(trainer),
        "num_examples": trainer.sampler.num_examples,
        "sampling_rate": trainer.sampler.expected_batch_size / trainer.sampler.num_examples,
        "sampler": type(drawn_by(trainer.sampler)).__name__,
        "noise": trainer.sampler.noise if isinstance(trainer.sampler, Correlated) else "independent",
        "noise_drawn": drawn_noise_of(trainer),
        "policy": type(trainer.policy).__name__,
        "ledger": trainer.ledger_kind,
        "menu": None if trainer.menu is None else trainer.menu.as_dict() | {"sha256": trainer.menu.fingerprint()},
        "clipping": type(trainer.state.rule).__name__,
        "expected_batch_size": trainer.sampler.expected_batch_size,
        "capacity": trainer.sampler.capacity,
        "noise_multiplier": trainer.noise_multiplier,
        "clip_norm": trainer.clip_norm,
        "microbatch_size": trainer.microbatch_size,
        "views": trainer.views,
        "augment": None if augment is None else getattr(augment, "__qualname__", type(augment).__name__),
        "metrics": metrics and {"means": list(metrics.names), "share": metrics.share},
        "budget": {"epsilon": trainer.epsilon, "delta": trainer.delta},
        "composition": composition(trainer),
        "delta_for_accounting": trainer.delta_for_accounting,
        "lost_steps": trainer.progress.lost_steps,
        "seed": trainer.seed if with_seed or trainer.seed == ENTROPY else "given by the user",
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
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in ("jaxacct", "jax", "flax", "optax", "numpy")},
    }


def _record(entry: Evaluation, so_far: float | None) -> dict[str, Any]:
    """Returns an evaluation as plain values, without what it has not."""
    plain = entry._asdict()
    means = dict(plain.pop("metrics"))
    known = {} if so_far is None else {"epsilon_so_far": so_far}
    return plain | known | ({"metrics": means} if means else {})


def _version(package: str) -> str:
    """Returns a package's version, in words where it is not installed."""
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
    write_whole(pathlib.Path(path), (json_files.dumps(report, indent=2) + "\n").encode())
