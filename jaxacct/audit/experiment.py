"""An audit of the trainer: gradient canaries, guesses from the noisy sums of every step, and the bounds that follow.

Canaries are put into the data set or left out by coins; the trainer runs as it is; an auditor who sees the noisy sums
guesses which canaries were in. The guesses become lower bounds by :mod:`jaxacct.audit.lower_bounds`.

In reading order: :func:`scores` and :func:`guess`; the canaries (:class:`WithCanaries`); trainers that break a promise
(``FAULTS``); the whole audit (:func:`run`).

The score. With x_t the noisy sum in a canary's coordinate over the clipping norm, and s the noise multiplier, a batch
with the canary in it and one without have the likelihood ratio e^(l_t), l_t = (2 x_t - 1) / (2 s^2). How the ratios of
the steps belong together depends on how batches are drawn. The score is the logarithm of the mean of three likelihood
ratios, each the best test of its own way: Poisson samples, prod (1 - q + q e^l); a new order of the data in every epoch
of b = 1/q batches, the product over epochs of the mean over their batches; and one fixed order, the mean over the b
places of the product over epochs. Any score gives valid bounds; this one is hardly weaker than the best of the three,
since a mean is at least a third of its largest term.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

import jaxacct
from jaxacct import saddlepoint, validation
from jaxacct.audit import lower_bounds
from jaxacct.audit.lower_bounds import check_confidence, check_counts, epsilon_lower_bound, mu_lower_bound
from jaxacct.composition import ForDelta
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.train.clipping import ClippingRule, Flat
from jaxacct.train.keys import run_key
from jaxacct.train.report import epsilon_after
from jaxacct.train.sampling import PoissonSampler
from jaxacct.train.sampling.sampler import Batch
from jaxacct.train.trainer import DPTrainer


def scores(
    noisy: Float[np.ndarray, "steps canaries"], noise_multiplier: float, sampling_rate: float
) -> Float[np.ndarray, " canaries"]:
    """Returns how likely it is that each canary was in, as a log-likelihood ratio: see the module's docstring.

    Args:
        noisy (steps, canaries): noisy sums over the clipping norm.
        noise_multiplier: above 0, the claimed one.
        sampling_rate: in (0, 1], the claimed one.

    >>> [round(float(score), 6) for score in scores(np.array([[2.0, 1.0]]), 1.0, 1.0)]
    [1.5, 0.5]
    """
    validation.check_positive(noise_multiplier, "noise_multiplier")
    validation.check_sampling_rate(sampling_rate)
    single = (2 * np.asarray(noisy, np.float64) - 1) / (2 * noise_multiplier**2)
    batches = max(1, round(1 / sampling_rate))
    absent = math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf
    poisson = np.logaddexp(absent, math.log(sampling_rate) + single).sum(axis=0)
    # The last epoch may be cut short: the steps it lacks say nothing, a ratio of 1.
    missing = -len(single) % batches
    epochs = np.concatenate([single, np.zeros((missing, single.shape[1]))]).reshape(-1, batches, single.shape[1])
    reordered = _log_mean(epochs, 1).sum(axis=0)
    fixed = _log_mean(epochs.sum(axis=0), 0)
    return _log_mean(np.stack([poisson, reordered, fixed]), 0)


def _log_mean(logs: np.ndarray, axis: int) -> np.ndarray:
    return np.logaddexp.reduce(logs, axis=axis) - math.log(logs.shape[axis])


def guess(values: Float[np.ndarray, " canaries"], guesses: int) -> Int[np.ndarray, " canaries"]:
    """Returns 1 ("in") for the highest scores, -1 ("out") for the lowest, half of the guesses each, 0 between.

    >>> guess(np.array([0.3, -2.0, 5.0, 0.1]), 2).tolist()
    [0, -1, 1, 0]
    """
    validation.check_whole(guesses, "guesses", 1, len(values), "a number of guesses, at most one for each canary")
    order = np.argsort(values, kind="stable")
    said = np.zeros(len(values), int)
    said[order[: guesses // 2]] = -1
    said[order[len(values) - (guesses - guesses // 2) :]] = 1
    return said


# ----------------------------------------------------------------------------------------------------
# Gradient canaries: examples that each push one parameter of their own, as hard as clipping lets them.
#
# A canary's gradient has one entry, in a coordinate that nothing else touches. So canaries do not interfere, and what
# the noisy sum holds in that coordinate is noise of the claimed deviation, plus the clipping norm in the steps that
# drew the canary: the worst case that the accounting is for. The trainer is run as it is, on the private examples and
# all canaries. One that is left out has the gradient zero: it adds nothing to any sum, so that what is released has the
# law of a training without it (a cut batch apart, which the sampler's ``overflow_delta`` pays for).
# ----------------------------------------------------------------------------------------------------

STRENGTH = 1e3
"""Norm of a canary's gradient over the clipping norm: a trainer that does not clip shows it. Any value above 1 will do.
"""


class WithCanaries(nnx.Module):
    """Model with canaries: a model and, beside it, one parameter for each canary, all zero at the start.

    >>> WithCanaries(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), 3).canaries.shape
    (3,)
    """

    def __init__(self, inner: nnx.Module, canaries: int) -> None:
        validation.check_whole(canaries, "canaries", 1, 10**6, "a number of canaries")
        self.inner = inner
        self.canaries = nnx.Param(jnp.zeros(canaries))


def with_canaries(loss: Callable[..., Array], size: float) -> Callable[..., Array]:
    """Returns the loss on rows of :func:`rows`: ``loss`` of the model inside, or a canary's, of gradient norm ``size``.

    The returned function takes a :class:`WithCanaries`, the canary's number (-1: an example), whether it is in, and
    what ``loss`` takes after the model.
    """

    def extended(model: WithCanaries, number: Array, included: Array, *example: Array) -> Array:
        ordinary = loss(model.inner, *example)
        pushed = jnp.where(included, size * model.canaries[...][number], 0.0)
        return jnp.where(number < 0, ordinary, pushed)

    return extended


def rows(data: tuple[Array | np.ndarray, ...], included: Bool[np.ndarray, " canaries"]) -> tuple[np.ndarray, ...]:
    """Returns ``data`` (n, ...) and the canaries as n + m rows of ``(number, included, *example)``.

    A canary's row repeats the first example, which its loss ignores.

    >>> number, there, x = rows((np.array([7.0, 8.0]),), np.array([True]))
    >>> number.tolist(), there.tolist(), x.tolist()
    ([-1, -1, 0], [True, True, True], [7.0, 8.0, 7.0])
    """
    examples = [np.asarray(part) for part in data]
    size, canaries = len(examples[0]), len(included)
    number = np.concatenate([np.full(size, -1, np.int32), np.arange(canaries, dtype=np.int32)])
    there = np.concatenate([np.ones(size, bool), np.asarray(included, bool)])
    return (number, there, *(np.concatenate([part, np.repeat(part[:1], canaries, axis=0)]) for part in examples))


def sums(
    positions: Float[np.ndarray, "moments canaries"], learning_rate: float, expected_batch_size: float, clip_norm: float
) -> Float[np.ndarray, "steps canaries"]:
    """Returns the noisy sums over the clipping norm, read off the canaries' parameters at all moments, from the start.

    Plain SGD moves a parameter by -learning_rate times the noisy sum over the expected batch size.

    >>> sums(np.array([[0.0], [-0.5]]), 0.1, 10.0, 2.0).round(6).tolist()
    [[25.0]]
    """
    moved = -np.diff(np.asarray(positions, np.float64), axis=0)
    return moved * (expected_batch_size / (learning_rate * clip_norm))


# ----------------------------------------------------------------------------------------------------
# Faults: trainers that break one promise each, to show that an audit notices. Not for training.
#
# Each fault goes in where a user's own rule or sampler would: the trainer itself is untouched.
# ----------------------------------------------------------------------------------------------------

FAULTS = ("noise", "clipping", "shuffling")
"""Faults that :func:`~jaxacct.audit.run` can make: half the noise, no clipping, a fixed order taken for Poisson
samples."""


@register_dataclass
@dataclass(frozen=True)
class HalfNoise(Flat):
    """Fault that adds half of the noise that is accounted."""

    def gradient_noise_multiplier(self, noise_multiplier: float) -> float:
        return super().gradient_noise_multiplier(noise_multiplier) / 2


@register_dataclass
@dataclass(frozen=True)
class NoClipping(Flat):
    """Fault that leaves gradients as they are, and adds noise for clipped ones."""

    def factors(self, squares: PyTree) -> tuple[PyTree, Bool[Array, " batch"]]:
        ones, within = super().factors(squares)
        return jax.tree.map(jnp.ones_like, ones), within


@dataclass(frozen=True)
class FixedOrderSampler(PoissonSampler):
    """Fault that shuffles the data once and goes through them in that order, accounted as Poisson samples.

    Every example is in exactly one batch of each epoch, the same one in every epoch.
    """

    def sample(self, key: jax.Array, step: ArrayLike | None = None) -> Batch:
        batches = max(1, round(1 / self.sampling_rate))
        size = -(-self.num_examples // batches)
        order = jax.random.permutation(key, self.num_examples)
        places = jnp.asarray(0 if step is None else step, jnp.int32) % batches * size + jnp.arange(self.capacity)
        real = (jnp.arange(self.capacity) < size) & (places < self.num_examples)
        return jnp.where(real, order[jnp.minimum(places, self.num_examples - 1)], 0).astype(jnp.int32), real


def rule(clip_norm: float, fault: str | None) -> ClippingRule:
    """Returns flat clipping, or the rule that takes its place in a trainer that breaks ``fault``."""
    if fault is not None:
        validation.check_one_of(fault, "fault", FAULTS)
    kinds: dict[Any, Any] = {"noise": HalfNoise, "clipping": NoClipping}
    return kinds.get(fault, Flat)(clip_norm)


def faulty_sampler(fault: str | None) -> type[PoissonSampler]:
    """Returns Poisson sampling, or the sampler that takes its place in a trainer that breaks ``fault``."""
    return FixedOrderSampler if fault == "shuffling" else PoissonSampler


# ----------------------------------------------------------------------------------------------------
# The audit from start to end: trainings with canaries, guesses, and the bounds that follow.
# ----------------------------------------------------------------------------------------------------

CLIP_NORM = 1.0
"""Clipping norm of the audited trainer. No guarantee depends on it."""
LEARNING_RATE = 0.5
"""Learning rate of the audited trainer. No guarantee depends on it."""

SPAN = 8.0
"""Factor up to which the noise that would explain the guesses is looked for, above and below the claimed noise
multiplier. Sound for any value."""

HALVINGS = 8
"""Bisections of that factor: the noise is found to 1 %, on the side that makes the bound on epsilon smaller. Sound for
any value."""


Watch = Callable[[jax.Array, tuple[Any, ...]], Float[np.ndarray, "moments canaries"]]
"""Type of a function from a run's key and rows to the canaries' parameters at the start and after each step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of an audit: the training, and the guesses made about it.

    Attributes:
        noise_multiplier, sampling_rate, steps: of the audited trainer, as it claims them.
        canaries: of each run; more show more, at the cost of as many more rows.
        guesses: of each run, about the canaries that look most and least like members; fixed in advance. Fewer where
        guesses: of each run, about the canaries that look most and least like members; fixed in advance. Fewer guesses
            count only the clearest.
        runs: independent trainings; the bound rises with their number, and so does the time.
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
    """Result of an audit.

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
    """Trains with gradient canaries, guesses which of them were in, and returns what that proves of epsilon.

    Args:
        model: a Flax module, as :class:`~jaxacct.train.DPTrainer` takes it.
        loss: ``loss(model, *example)``, likewise.
        data: tuple of arrays, the private examples, likewise.
        settings: of trainer and audit.
        fault: None, or one of "noise" (half of it), "clipping" (none) and "shuffling" (one fixed order of the data,
            accounted as Poisson samples): what to break, to see whether the audit notices.
        seed: makes the audit repeatable; None: the system's entropy.

    The audit observes what the trainer releases: its parameters after every step of plain SGD. Its compiled step runs
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
    # Each run has coins of its own. They decide the rows alone: the program that watches is the same for all.
    for key in keys:
        included = coins.random(settings.canaries) < 0.5
        positions = watch(key, rows(data, included))
        noisy = sums(positions, LEARNING_RATE, trainer.sampler.expected_batch_size, CLIP_NORM)
        said = guess(scores(noisy, settings.noise_multiplier, settings.sampling_rate), settings.guesses)
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
    sampler = faulty_sampler(fault).for_budget(
        size, settings.sampling_rate, epsilon=epsilon, delta=settings.delta, steps=settings.steps
    )
    return DPTrainer(
        WithCanaries(model, settings.canaries),
        with_canaries(loss, STRENGTH * CLIP_NORM),
        optax.sgd(LEARNING_RATE),
        rows(data, np.zeros(settings.canaries, bool) if included is None else included),
        delta=settings.delta,
        steps=settings.steps,
        noise_multiplier=settings.noise_multiplier,
        sampler=sampler,
        clip_norm=rule(CLIP_NORM, fault),
        seed=seed,
    )


def watched(trainer: DPTrainer, steps: int) -> Watch:
    """Returns a function of a run's key and rows: the canaries' parameters at the start and after each of its steps.

    One compiled program serves all runs. Their states are the watcher's alone: the trainer stays where it is.
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
    """Returns the audit that the right guesses of each run amount to."""
    found = functools.lru_cache(lambda noise: _p_value(trainer, settings, correct, noise))
    noise = _least_refuted(lambda noise: found(noise) < 1 - settings.confidence, settings.noise_multiplier)
    epsilon = 0.0
    if math.isfinite(noise):
        # The cost of batches that were cut counts against the bound.
        delta = settings.delta + trainer.sampler.overflow_delta(settings.steps, trainer.epsilon)
        if delta < 1:
            epsilon = float(jaxacct.epsilon(trainer.sampler.mechanism(noise), settings.steps, delta).lower)
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
    """Returns the p-value of the claimed mechanism at a noise multiplier, from all runs together."""
    # Batches that are cut are part of the run as it is: their cost adds to each delta.
    cut = [trainer.sampler.overflow_delta(settings.steps, float(epsilon)) for epsilon in lower_bounds.EPSILONS]
    deltas = np.minimum(np.add(_deltas(noise, trainer.sampler.sampling_rate, settings.steps), cut), 1.0)
    each = {
        right: lower_bounds.p_value_of_profile(
            right, settings.guesses, settings.canaries, lower_bounds.EPSILONS, deltas
        )
        for right in set(correct)
    }
    return lower_bounds.combined([each[right] for right in correct])


@functools.lru_cache(maxsize=256)
def _deltas(noise: float, rate: float, steps: int) -> tuple[float, ...]:
    """Returns upper bounds on delta at ``lower_bounds.EPSILONS``; 1 where the exact accountant does not converge."""
    mechanism = jaxacct.PoissonSubsampledGaussian(noise, rate)
    found = saddlepoint.accountant.curve(mechanism, steps, ForDelta(lower_bounds.EPSILONS), "add_or_remove")
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
    # ``high`` was refuted and ``low`` was not: the end that is returned is proved.
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high
