"""An audit from start to end: trainings with canaries, guesses, and the bounds that follow."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float

import jaxacct
from jaxacct import saddlepoint, validation
from jaxacct.audit import attack, canaries, faults, profiles
from jaxacct.audit.approximate import check_confidence, check_counts, epsilon_lower_bound
from jaxacct.audit.gaussian import mu_lower_bound
from jaxacct.question import ForDelta
from jaxacct.train.claims import epsilon_after
from jaxacct.train.keys import run_key
from jaxacct.train.trainer import DPTrainer

CLIP_NORM = 1.0
LEARNING_RATE = 0.5
"""No guarantee depends on either."""

SPAN = 8.0
"""How far from the claimed noise multiplier, as a factor, the noise that would explain the guesses is looked for."""

HALVINGS = 8
"""Bisections of that factor: the noise is found to 1 %, on the side that makes the bound on epsilon smaller."""


Watch = Callable[[jax.Array, tuple[Any, ...]], Float[np.ndarray, "moments canaries"]]
"""From a run's key and rows to the canaries' parameters at the start and after each step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is trained, and how it is audited.

    Attributes:
        noise_multiplier, sampling_rate, steps: of the audited trainer, as it claims them.
        canaries: of each run; more show more, at the cost of as many more rows.
        guesses: of each run, about the canaries that look most and least like members; fixed in advance. Fewer where
            only the clearest are to count.
        runs: independent trainings; the bound rises with their number, the time likewise.
        delta: at which epsilon is claimed.
        confidence: of the bounds, in (0, 1).

    Raises ValueError where a field is out of range.

    >>> Settings(steps=100, runs=1).guesses
    125
    """

    noise_multiplier: float = 2.0
    sampling_rate: float = 0.1
    steps: int = 400
    canaries: int = 500
    guesses: int = 125
    runs: int = 4
    delta: float = 1e-5
    confidence: float = 0.95

    def __post_init__(self) -> None:
        validation.check_positive(self.noise_multiplier, "noise_multiplier")
        validation.check_sampling_rate(self.sampling_rate)
        validation.check_whole(self.steps, "steps", 1, 10**6, "a number of steps")
        check_counts(0, self.guesses, self.canaries)
        validation.check_whole(self.runs, "runs", 1, 1000, "a number of independent runs")
        validation.check_delta(self.delta)
        check_confidence(self.confidence)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found.

    Attributes:
        settings: of the audit.
        claim: the certified epsilon of one run at ``delta``.
        correct: right guesses of each run.
        p_value: upper bound on the probability of so many right guesses, were the claimed profile true.
        noise_multiplier: the least noise multiplier that is refuted, to 1 %; inf where none is.
        epsilon: lower bound on epsilon, from it; 0 where none is refuted.
        epsilon_of_any_mechanism: lower bound on epsilon that assumes nothing of the mechanism.
        mu: lower bound on the mu of Gaussian differential privacy, for whatever the runs are mu-GDP for.

    Formal guarantee: if each run has the privacy profile of the mechanism that is claimed, at *some* noise multiplier,
    then with probability at least ``confidence`` the ``epsilon`` of that mechanism at ``delta`` is at least
    ``epsilon``; and a trainer whose claim is true has a bound above its claim with probability at most 1 - confidence.
    So a bound above the claim refutes the claimed profile, whatever the trainer does. As a number it is an epsilon of
    the claimed kind of mechanism. ``epsilon_of_any_mechanism`` has the guarantee of
    :func:`~jaxacct.audit.epsilon_lower_bound`, by itself, ``mu`` that of :func:`~jaxacct.audit.mu_lower_bound`.

    Why the noise may be chosen after the guesses: p-values fall with the noise multiplier, since deltas do, at fixed
    epsilons. If any noise multiplier of at most the true one is refuted, so is the true one.
    """

    settings: Settings
    claim: float
    correct: tuple[int, ...]
    p_value: float
    noise_multiplier: float
    epsilon: float
    epsilon_of_any_mechanism: float
    mu: float

    @property
    def exceeded(self) -> bool:
        """Whether the bound is above the claim: the trainer is broken, or its accountant."""
        return self.epsilon > self.claim


def run(
    model: nnx.Module,
    loss: Callable[..., Array],
    data: tuple[Array | np.ndarray, ...],
    settings: Settings | None = None,
    *,
    fault: str | None = None,
    seed: int | None = None,
) -> Audit:
    """Trains with gradient canaries, guesses which of them were in, and returns what that says of epsilon.

    Args:
        model: a Flax module, as :class:`~jaxacct.train.DPTrainer` takes it.
        loss: ``loss(model, *example)``, likewise.
        data: tuple of arrays, the private examples, likewise.
        settings: of trainer and audit.
        fault: None, or one of "noise" (half of it), "clipping" (none) and "shuffling" (one fixed order of the data,
            accounted as Poisson samples): what to break, to see whether the audit notices.
        seed: makes the audit repeatable; None: the system's entropy.

    What is observed is what the trainer releases: its parameters after every step of plain SGD. Its compiled step runs
    as it is, ledger, sampler, clipping, noise and optimizer; canaries come in as examples of the data set.

    Formal guarantee: that of :class:`Audit`: lower bounds, each by itself with probability at least the settings'
    ``confidence``. No audit bounds a privacy loss from above.

    Raises ValueError where an argument is out of range.
    """
    settings = settings or Settings()
    trainer = make_trainer(model, loss, data, settings, fault)
    return play(trainer, watched(trainer, settings.steps), data, settings, seed)


def play(
    trainer: DPTrainer, watch: Watch, data: tuple[Array | np.ndarray, ...], settings: Settings, seed: int | None
) -> Audit:
    """Returns :func:`run` of a trainer that is made, with the program that watches it: for many seeds of one audit."""
    source = np.random.SeedSequence(seed)
    coins = np.random.default_rng(source.spawn(1)[0])
    keys = [run_key(int(word)) for word in source.generate_state(settings.runs, np.uint64)]
    correct = []
    for key in keys:
        included = coins.random(settings.canaries) < 0.5
        positions = watch(key, canaries.rows(data, included))
        noisy = canaries.sums(positions, LEARNING_RATE, trainer.sampler.expected_batch_size, CLIP_NORM)
        said = attack.guess(attack.scores(noisy, settings.noise_multiplier, settings.sampling_rate), settings.guesses)
        correct.append(int(np.sum(said == np.where(included, 1, -1))))
    return judge(trainer, settings, tuple(correct))


def make_trainer(
    model: nnx.Module,
    loss: Callable[..., Array],
    data: tuple[Array | np.ndarray, ...],
    settings: Settings,
    fault: str | None = None,
    seed: int | jax.Array | None = None,
    included: Bool[np.ndarray, " canaries"] | None = None,
) -> DPTrainer:
    """Returns the trainer of ``data`` and canaries, whose plan is what the settings claim.

    ``included`` says which canaries are in its own data (None: none); :func:`watched` is given rows of each run.
    """
    size = len(data[0]) + settings.canaries
    mechanism = jaxacct.PoissonSubsampledGaussian(settings.noise_multiplier, settings.sampling_rate)
    epsilon = float(jaxacct.epsilon(mechanism, settings.steps, settings.delta).upper)
    if not math.isfinite(epsilon):
        raise ValueError(f"noise_multiplier = {settings.noise_multiplier} has no finite epsilon to be audited.")
    sampler = faults.sampler(fault).for_budget(
        size, settings.sampling_rate, epsilon=epsilon, delta=settings.delta, steps=settings.steps
    )
    return DPTrainer(
        canaries.WithCanaries(model, settings.canaries),
        canaries.with_canaries(loss, canaries.STRENGTH * CLIP_NORM),
        optax.sgd(LEARNING_RATE),
        canaries.rows(data, np.zeros(settings.canaries, bool) if included is None else included),
        delta=settings.delta,
        steps=settings.steps,
        noise_multiplier=settings.noise_multiplier,
        sampler=sampler,
        clipping=faults.rule(CLIP_NORM, fault),
        seed=seed,
    )


def watched(trainer: DPTrainer, steps: int) -> Watch:
    """Returns a function of a run's key and rows: the canaries' parameters at the start and after each of its steps.

    One compiled program for all runs, which are the watcher's alone: the trainer stays where it is.
    """
    program, start, constants = trainer.program, trainer.state, trainer.constants
    curve = program.curve(start)

    @jax.jit
    def advance(state: Any, rows: tuple[Array, ...]) -> tuple[Any, tuple[Bool[Array, " steps"], Array]]:
        def one(state: Any, _: None) -> tuple[Any, tuple[Array, Array]]:
            granted, state = program.step(state, curve, constants, rows)
            return state, (granted, state.params["canaries"][...])

        return jax.lax.scan(one, state, length=steps)

    def watch(key: jax.Array, rows: tuple[Any, ...]) -> Float[np.ndarray, "moments canaries"]:
        _, (granted, positions) = advance(dataclasses.replace(start, key=key), rows)
        if not bool(granted.all()):
            raise RuntimeError("the budget did not pay for all steps of the audit.")
        return np.concatenate([np.asarray(start.params["canaries"][...])[None], np.asarray(positions)])

    return watch


def judge(trainer: DPTrainer, settings: Settings, correct: tuple[int, ...]) -> Audit:
    """Returns what the right guesses of each run say of the trainer."""
    found = functools.lru_cache(lambda noise: _p_value(trainer, settings, correct, noise))
    noise = _least_refuted(lambda noise: found(noise) < 1 - settings.confidence, settings.noise_multiplier)
    epsilon = 0.0
    if math.isfinite(noise):
        # What cut batches may cost counts against the bound.
        delta = settings.delta + trainer.sampler.overflow_delta(settings.steps, trainer.epsilon)
        epsilon = float(jaxacct.epsilon(trainer.sampler.mechanism(noise), settings.steps, min(delta, 0.5)).lower)
    return Audit(
        settings=settings,
        claim=float(epsilon_after(trainer, settings.steps).upper),
        correct=correct,
        p_value=found(settings.noise_multiplier),
        noise_multiplier=noise,
        epsilon=epsilon,
        epsilon_of_any_mechanism=epsilon_lower_bound(
            sum(correct),
            settings.runs * settings.guesses,
            settings.runs * settings.canaries,
            settings.delta,
            settings.confidence,
        ),
        mu=mu_lower_bound(correct, settings.guesses, settings.canaries, settings.confidence),
    )


def _p_value(trainer: DPTrainer, settings: Settings, correct: tuple[int, ...], noise: float) -> float:
    """Returns the p-value of the claimed mechanism at a noise multiplier: of all runs together."""
    # Cut batches are part of the truth: they add to each delta.
    cut = [trainer.sampler.overflow_delta(settings.steps, float(epsilon)) for epsilon in profiles.EPSILONS]
    deltas = np.minimum(np.add(_deltas(noise, trainer.sampler.sampling_rate, settings.steps), cut), 1.0)
    each = {
        right: profiles.p_value(right, settings.guesses, settings.canaries, profiles.EPSILONS, deltas)
        for right in set(correct)
    }
    return profiles.combined([each[right] for right in correct])


@functools.lru_cache(maxsize=256)
def _deltas(noise: float, rate: float, steps: int) -> tuple[float, ...]:
    """Returns upper bounds on delta at ``profiles.EPSILONS``; 1 where the exact accountant does not converge."""
    mechanism = jaxacct.PoissonSubsampledGaussian(noise, rate)
    found = saddlepoint.accountant.curve(mechanism, steps, ForDelta(profiles.EPSILONS), "add_or_remove")
    return tuple(np.asarray(found.upper).tolist())


def _least_refuted(refuted: Callable[[float], bool], claimed: float) -> float:
    """Returns about the least noise multiplier that is refuted, within a factor of ``SPAN``; inf where none is."""
    if refuted(claimed):
        low, high = claimed / SPAN, claimed
        if refuted(low):
            return low
    else:
        low, high = claimed, claimed * SPAN
        if not refuted(high):
            return math.inf
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high
