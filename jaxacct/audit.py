"""Audits of the trainer: how much its releases show of examples that were put in to be found, and what that proves.

Canaries are put into the data set or left out by coins; the trainer runs as it is; an auditor who sees the noisy sums
of every step guesses which canaries were in. Many right guesses are improbable if the mechanism is as private as
claimed: so they become lower bounds, which meet an accountant's upper bound from the other side. The audit cannot show
that a trainer is private: a low bound may be a weak audit. A bound above the claim shows that it is not as private as
claimed.

In reading order:

* :func:`p_value_of_pair` and :func:`epsilon_lower_bound`: right guesses against (epsilon, delta), for any mechanism;
* :func:`p_value`: against a whole profile of (epsilon, delta(epsilon)); :func:`combined`: several runs together;
  :func:`mu_lower_bound`: against mu-GDP;
* :func:`scores` and :func:`guess`; the canaries (:class:`WithCanaries`); trainers that break a promise (``FAULTS``);
  the whole audit (:func:`run`).
"""

from __future__ import annotations

import jaxacct.train  # isort: skip  (first, as it says what to install where Flax is missing)

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
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
from jaxacct.composition import ForDelta, query_of
from jaxacct.convert import gdp_to_delta
from jaxacct.mechanisms.discrete_gaussian import cost
from jaxacct.numerics.pytrees import register_dataclass, takes_python_values
from jaxacct.numerics.root_search import bisect, geometric_mean
from jaxacct.train.clipping import ClippingRule, Flat
from jaxacct.train.integer_noise import bill
from jaxacct.train.keys import run_key
from jaxacct.train.report import epsilon_after
from jaxacct.train.sampling import PoissonSampler, log_binomial_tail
from jaxacct.train.sampling.sampler import Batch
from jaxacct.train.trainer import DPTrainer

__all__ = [
    "FAULTS",
    "Audit",
    "AuditSettings",
    "combined",
    "epsilon_lower_bound",
    "guess",
    "mu_lower_bound",
    "p_value",
    "run",
    "scores",
]


# ----------------------------------------------------------------------------------------------------
# Right guesses against (epsilon, delta), for any mechanism.
#
# The game. There are m canaries. Each is put into the data set or left out by a fair coin of its own, S_i; the
# mechanism runs once and gives Y; an auditor who sees Y alone makes exactly r guesses about the S_i and abstains from
# the others. W of them are right. The mechanism is (epsilon, delta)-DP for adding or removing one canary. Let q =
# e^epsilon / (1 + e^epsilon), B(n) a binomial number of n trials of probability q, and M(n) the largest probability of
# one value of B(n).
#
# Theorem. P(W >= v) <= P(B(r) >= v) + (m / r) delta (1 - q) sum of M(n) over n < r.
#
# Proof. Take one i, with S_j known for j in a set A without i, and let P1, P0 be the laws of Y, those S_j given, for
# S_i = 1 and 0; the S_j outside A are averaged out, by the same law for both, so P1 and P0 are (epsilon, delta)-close.
# Write c for the chance, given Y and the S_j, that the guess about i is right, and b = (c - q)+, 0 where the auditor
# abstains. Where the guess is "in", c = P1 / (P1 + P0), so (c - q) (P1 + P0) = (P1 - e^epsilon P0) / (1 + e^epsilon).
# Hence E[b; "in"] = int (P1 - e^epsilon P0)+ / 2 / (1 + e^epsilon) <= delta (1 - q) / 2, and the same for "out":
#
#     (1)  E[b] <= delta (1 - q), for every i and A.
#
# Now tell the S_i one after another, in an order that was drawn uniformly, and count right guesses. With k guesses to
# come and x right ones so far, let F = P(B(k) >= v - x). A guess that is right with chance c changes the mean of F by
# (c - q) P(B(k - 1) = v - x - 1) <= b M(k - 1); an abstention leaves it. At the end F says whether W >= v. Adding up,
# P(W >= v) <= P(B(r) >= v) + sum over i of E[b_i M(K_i)], K_i the guesses to come after i. Given Y and the order, K_i
# is fixed, and the mean of b_i grows with A, since (c - q)+ is convex and c a martingale: it is at most that for A =
# all others, which depends on Y alone and obeys (1). Given Y, K_i is uniform on 0, ..., r - 1. So E[b_i M(K_i)] <=
# delta (1 - q) times the mean of the M(n), and there are m of them.
#
# For delta = 0 this is the theorem of Steinke, Nasr and Jagielski (2023), "Privacy auditing with one (1) training run";
# for delta > 0 theirs adds 2 m delta max over i of P(v > B(r) >= v - i) / i, and the term above takes its place: it is
# the smaller one for p-values around 0.05, theirs is for much smaller ones.
#
# Nothing is assumed of the mechanism: all canaries may be released with correlated errors. That has a price. To show
# epsilon at confidence 95 % takes at least 3 e^epsilon guesses, all right. (epsilon, delta) alone allows every guess to
# be right with chance q; the Gaussian noise of DP-SGD is far from that, so the bound stays far below the true epsilon.
# :func:`p_value` uses the whole of what a run claims, and sees more.
# ----------------------------------------------------------------------------------------------------


@takes_python_values
def p_value_of_pair(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Returns an upper bound on the probability of so many right guesses about an (epsilon, delta)-DP mechanism.

    Args:
        correct: guesses that were right.
        guesses: number of guesses, fixed in advance; from 1 to ``canaries``.
        canaries: examples that a fair coin each put in or left out. Those of independent runs may be added up.
        epsilon: at least 0.
        delta: in [0, 1).

    Formal guarantee: whatever the mechanism and the auditor, the probability of at least ``correct`` right guesses is
    at most the returned number, if the mechanism is (epsilon, delta)-DP for adding or removing a canary. Rounding is
    counted. Proof and source: see above.

    Raises ValueError where an argument is out of range.

    >>> round(p_value_of_pair(50, 50, 100, 2.0, 1e-5), 5)
    0.00179
    """
    correct, guesses, canaries = check_counts(correct, guesses, canaries)
    validation.check_epsilon(epsilon)
    validation.check_probability(delta, "delta")
    chance = min(math.nextafter(1 / (1 + math.exp(-epsilon)), 2.0), 1.0)
    tail = math.exp(log_binomial_tail(guesses, chance, correct))
    extra = canaries / guesses * delta * (1 - chance) * float(np.sum(_modes(guesses, chance))) if delta else 0.0
    # The term with delta, whose log-factorials err by some 1e-12, rounds by less than 1e-9: less would break the bound.
    return min((tail + extra) * (1 + 1e-9), 1.0)


@takes_python_values
def epsilon_lower_bound(correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """Returns a lower bound on epsilon at ``delta``, of any mechanism: 0 where nothing is shown.

    Arguments are those of :func:`p_value_of_pair`, and the ``confidence``, in (0, 1).

    Formal guarantee: with probability at least ``confidence`` over the coins and the mechanism, the mechanism is not
    (e, delta)-DP for any e below the returned number. Every e whose p-value is below 1 - confidence will do, and
    whether p-values fall with e does not matter: for each e it takes at least some number w(e) of right guesses to get
    there, so that any bound above the true epsilon needs at least the least w(e) of the e above it, and those e hold of
    the mechanism, too. The bound is found by bisection, to 1e-12.

    Source: Steinke, Nasr and Jagielski (2023), "Privacy auditing with one (1) training run"; see above.

    >>> round(epsilon_lower_bound(250, 250, 500, 1e-5), 2), epsilon_lower_bound(130, 250, 500, 1e-5)
    (4.42, 0.0)
    """
    validation.check_numbers(delta=delta, confidence=confidence)
    check_confidence(confidence)
    level = 1 - confidence

    def is_refuted(epsilon: float) -> bool:
        return p_value_of_pair(correct, guesses, canaries, epsilon, delta) < level

    # No number of canaries reaches an epsilon of 100; 60 halvings. Any numbers are sound: the end returned is refuted.
    return bisect(is_refuted, 0.0, 100.0, steps=60) if is_refuted(0.0) else 0.0


def _modes(trials: int, chance: float) -> np.ndarray:
    """Returns the largest probability of one value of n trials, for n from 0 to ``trials - 1``."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    n = np.arange(trials)
    # The mode is the whole part of (n + 1) q; next to a whole number its neighbour is as likely, up to rounding.
    mode = np.minimum(np.floor((n + 1) * chance).astype(int), n)
    logs = log_factorial[n] - log_factorial[mode] - log_factorial[n - mode] + mode * math.log(chance)
    failures = n - mode
    return np.exp(logs + np.where(failures > 0, failures * math.log(max(1 - chance, 1e-300)), 0.0))


def check_counts(correct: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    """Returns the numbers of right guesses, guesses and canaries; raises where they do not fit each other."""
    canaries = validation.check_whole(canaries, "canaries", 1, 10**7, "a number of canaries")
    guesses = validation.check_whole(
        guesses, "guesses", 1, canaries, "a number of guesses, at most one for each canary"
    )
    correct = validation.check_whole(correct, "correct", 0, guesses, "how many of the guesses were right")
    return correct, guesses, canaries


def check_confidence(confidence: float) -> None:
    """Raises where a confidence is no probability of being right."""
    validation.check_scalar(confidence, "confidence")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence} is not in (0, 1): give 0.95 for one wrong bound in twenty.")


# ----------------------------------------------------------------------------------------------------
# Whole profiles: right guesses against every (epsilon, delta(epsilon)) at once, hence f-DP.
#
# The game is that above. The mechanism is (e_l, d_l)-DP for every line l of a profile,
# as DP-SGD claims to be. For r in [0, 1] let
#
#     g(r) = max of 0, (r - d_l) e^-e_l and 1 - d_l - e^e_l (1 - r) over all l.
#
# Lemma. Let E be an event that Y and the coins of the others decide, in which i is guessed. Then g(P(i right, E)) <=
# P(i wrong, E). For, the others' coins given, with A1, A0 the outcomes of E in which the guess is "in" and "out",
# P(right, E) = P1(A1)/2 + P0(A0)/2 and P(wrong, E) = P0(A1)/2 + P1(A0)/2. By P1(A) <= e^e P0(A) + d and the same with
# P1 and P0 exchanged, P(right, E) <= e^e P(wrong, E) + d; by both for the complements, 1 - P(wrong, E) <= e^e (1 -
# P(right, E)) + d. Both are linear, so they survive the average over the others' coins.
#
# Theorem. Let Q_j = P(W >= j), of exactly k guesses about m canaries. For j = 1, ..., k
#
#     (k - j + 1) Q_(j-1) >= Q_j + ... + Q_k + m g((j Q_j + Q_(j+1) + ... + Q_k) / m).
#
# Proof. For E_i = "i is guessed, and at least j - 1 others are right", i is right in E_i if and only if it is right and
# W >= j: summed over i, P(i right, E_i) is E[W; W >= j] = j Q_j + Q_(j+1) + ... + Q_k. It is wrong in E_i if it is
# wrong and W >= j - 1: the sum is E[k - W; W >= j - 1] = (k - j + 1) Q_(j-1) - Q_j - ... - Q_k. g is convex, so the
# average of g over the i is at least g of the average.
#
# So if Q_v is at least x, the right-hand sides, which grow with every Q, bound Q_(v-1), Q_(v-2), ..., Q_0 from below
# one after another; Q_j >= 0 for j > v, and Q falls with j. Where that gives Q_0 > 1, Q_v < x. The least such x is the
# p-value.
#
# The idea of a recursion over the numbers of right guesses is that of Mahloujifar, Melis and Chaudhuri (2024),
# "Auditing f-differential privacy in one run"; statement and proof here are for what is computed here.
#
# Limits. A mechanism of the claimed profile may be loose in one run out of twenty and tight in the others,
# and one run cannot tell: that, not the number of canaries, limits one run. Independent runs add up by Fisher's method
# (:func:`combined`).
# ----------------------------------------------------------------------------------------------------

MARGIN = 1e-9
"""Relative allowance for the rounding of p-values, and the amount by which Q_0 has to pass 1: the recursion's sums of
at most 10^5 positive terms err by less than 1e-10. Less than that would break the bound."""

EPSILONS = np.concatenate([[0.0], np.geomspace(0.02, 50.0, 40)])
"""Epsilons at which profiles are compared: from far below to far above what canaries can refute, neighbours 22 % apart.
They are always the same, so that p-values fall with the profile."""


@takes_python_values
def p_value(
    correct: int,
    guesses: int,
    canaries: int,
    epsilons: ArrayLike | Sequence[float],
    deltas: ArrayLike | Sequence[float],
) -> float:
    """Returns an upper bound on the probability of so many right guesses about a mechanism with a whole profile.

    Args:
        correct: guesses of one run that were right.
        guesses: number of guesses, fixed in advance.
        canaries: examples that a fair coin each put in or left out.
        epsilons (n,): at least 0.
        deltas (n,): in [0, 1]; what the mechanism claims at each of them. Upper bounds are safe: they claim less.

    Formal guarantee: the probability of at least ``correct`` right guesses is at most the returned number, at least
    1e-12, for every mechanism that is (epsilon, delta)-DP at all of the pairs, for adding or removing one canary.
    Rounding is counted. The number is within 2 % of the least that the theorem gives. Proof and source: see above.

    Raises ValueError where an argument is out of range.

    >>> p_value(95, 100, 100, [1.0], [0.0]) < 1e-6, p_value(70, 100, 100, [1.0], [0.0])
    (True, 1.0)
    """
    correct, guesses, canaries = check_counts(correct, guesses, canaries)
    e, d = np.asarray(epsilons, np.float64), np.asarray(deltas, np.float64)
    validation.check_epsilon(e)
    validation.check_probability(d, "deltas")
    if e.ndim != 1 or e.shape != d.shape or not e.size:
        raise ValueError(f"epsilons and deltas of shapes {e.shape} and {d.shape}: give two lists of one length.")
    # Two rounds of 64 candidates at once, from 1e-12 up (any numbers are sound), the second between the last one not
    # refuted and the first one that is. The one returned was refuted itself: P(W >= correct) is below it.
    low, high = math.log(1e-12), 0.0
    for _ in range(2):
        candidates = np.linspace(low, high, 64)
        refuted = _impossible(np.exp(candidates), correct, guesses, canaries, e, d)
        if not refuted.any():
            return min(math.exp(high), 1.0)
        first = int(np.argmax(refuted))
        low, high = candidates[max(first - 1, 0)], candidates[first]
    return min(math.exp(high) * (1 + MARGIN), 1.0)


def _impossible(
    starts: np.ndarray, correct: int, guesses: int, canaries: int, epsilons: np.ndarray, deltas: np.ndarray
) -> np.ndarray:
    """Returns whether the recursion from each P(W >= correct) in ``starts`` passes 1 on its way to P(W >= 0)."""
    falling, rising, deltas = np.exp(-epsilons)[:, None], np.exp(epsilons)[:, None], deltas[:, None]
    last, total = starts, starts  # Q_j, and the sum of Q_j, ..., Q_k
    # One step of the theorem bounds Q_(j-1) from below by Q_j, ..., Q_k. From ``correct`` on the bounds go down to Q_0,
    # for all starts at once.
    for j in range(correct, 0, -1):
        right = (j * last + (total - last)) / canaries
        least = np.maximum((right - deltas) * falling, 1 - deltas - rising * (1 - right)).max(axis=0)
        bound = (total + canaries * np.maximum(least, 0.0)) / (guesses - j + 1)
        # A bound beyond 1 is enough: it is kept at 2, so that the sums stay finite.
        last = np.minimum(np.maximum(last, bound), 2.0)
        total = total + last
    return last > 1 + MARGIN


def combined(p_values: Sequence[float]) -> float:
    """Returns the p-value of independent runs together: Fisher's method.

    Formal guarantee: if each is at most x with probability at most x, for every x, so is the result. The product of n
    independent uniform numbers is at most y with probability y times the sum of (-log y)^j / j! over j < n.

    Source: Fisher (1925), "Statistical methods for research workers", section 21.1.

    >>> round(combined([0.05, 0.05]), 4), combined([0.3])
    (0.0175, 0.3)
    """
    if not isinstance(p_values, (list, tuple, np.ndarray)):
        raise TypeError(f"p_values = {validation.shorten(p_values)}: give a list of one for each run.")
    for value in p_values:
        validation.check_probability(value, "p_values")
    if not len(p_values):
        raise ValueError("p_values is empty: give one for each run.")
    if min(p_values) == 0:
        return 0.0
    if len(p_values) == 1:
        return float(p_values[0])
    log = math.fsum(math.log(value) for value in p_values)
    terms = [
        math.exp(log + j * math.log(-log) - math.lgamma(j + 1)) if log else float(j == 0) for j in range(len(p_values))
    ]
    return min(math.fsum(terms) * (1 + MARGIN), 1.0)


# ----------------------------------------------------------------------------------------------------
# Gaussian differential privacy: right guesses against mu-GDP, whose profile is refuted or not.
# ----------------------------------------------------------------------------------------------------


@takes_python_values
def mu_lower_bound(correct: Sequence[int], guesses: int, canaries: int, confidence: float = 0.95) -> float:
    """Returns a lower bound on the mu of a mechanism that is mu-GDP for some mu: 0 where nothing is shown.

    Args:
        correct: right guesses, of each of several independent runs.
        guesses: guesses of each run, fixed in advance.
        canaries: of each run, put in or left out by a fair coin each.
        confidence: in (0, 1).

    Formal guarantee: with probability at least ``confidence``, no run's mechanism is mu-GDP, for adding or removing one
    canary, for any mu below the returned number. It is the largest mu whose profile is refuted
    (:func:`p_value`), found to 1.1 % from below. A larger mu has larger deltas and so a larger p-value: if
    any mu of at least the true one is refuted, so is the true one. The epsilon of this mu by
    :func:`jaxacct.convert.gdp_to_epsilon` is that of Gaussian mechanisms only: others have the same mu and less
    epsilon.

    Source: the profile is Corollary 2.13 of Dong, Roth and Su (2022), "Gaussian differential privacy".

    Raises ValueError where an argument is out of range.

    >>> mu_lower_bound([50], 100, 100), round(mu_lower_bound([99, 98], 100, 100), 1)
    (0.0, 1.5)
    """
    if not isinstance(correct, (list, tuple, np.ndarray)):
        raise TypeError(f"correct = {validation.shorten(correct)}: give a list, of one number for each run.")
    check_confidence(confidence)
    for right in correct:
        check_counts(right, guesses, canaries)

    def is_refuted(mu: float) -> bool:
        deltas = np.asarray(gdp_to_delta(mu, EPSILONS))
        each = [p_value(right, guesses, canaries, EPSILONS, deltas) for right in correct]
        return combined(each) < 1 - confidence

    # The bound is looked for in this range; ten halvings of its logarithm leave 1.1 %. Any numbers are sound.
    smallest, largest = 2.0**-10, 2.0**6
    if not is_refuted(smallest):
        return 0.0
    return largest if is_refuted(largest) else bisect(is_refuted, smallest, largest, steps=10, middle=geometric_mean)


# ----------------------------------------------------------------------------------------------------
# Scores and guesses: how likely it is, by the noisy sums, that a canary was in.
#
# The score. With x_t the noisy sum in a canary's coordinate over the clipping norm, and s the noise multiplier, a batch
# with the canary in it and one without have the likelihood ratio e^(l_t), l_t = (2 x_t - 1) / (2 s^2). How the ratios
# of the steps belong together depends on how batches are drawn. The score is the logarithm of the mean of three
# likelihood ratios, each the best test of its own way: Poisson samples, prod (1 - q + q e^l); a new order of the data
# in every epoch of b = 1/q batches, the product over epochs of the mean over their batches; and one fixed order, the
# mean over the b places of the product over epochs. Any score gives valid bounds; this one is hardly weaker than the
# best of the three, since a mean is at least a third of its largest term.
# ----------------------------------------------------------------------------------------------------


def scores(
    noisy: Float[np.ndarray, "steps canaries"], noise_multiplier: float, sampling_rate: float
) -> Float[np.ndarray, " canaries"]:
    """Returns how likely it is that each canary was in, as a log-likelihood ratio: see above.

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


@takes_python_values
def guess(values: Float[np.ndarray, " canaries"], guesses: int) -> Int[np.ndarray, " canaries"]:
    """Returns 1 ("in") for the highest scores, -1 ("out") for the lowest, half of the guesses each, 0 between.

    >>> guess(np.array([0.3, -2.0, 5.0, 0.1]), 2).tolist()
    [0, -1, 1, 0]
    """
    guesses = validation.check_whole(
        guesses, "guesses", 1, len(values), "a number of guesses, at most one for each canary"
    )
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
# drew the canary: the worst case that the accounting is for. The trainer runs as it is, on the private examples and all
# canaries. A canary that is left out has the gradient zero and adds nothing to any sum, so that the releases have the
# law of a training without it, except for cut batches and the distance of integer noise, which delta pays for.
# ----------------------------------------------------------------------------------------------------


class WithCanaries(nnx.Module):
    """Model with canaries: a model and, beside it, one parameter for each canary, all zero at the start.

    >>> WithCanaries(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), 3).canaries.shape
    (3,)
    """

    def __init__(self, inner: nnx.Module, canaries: int) -> None:
        canaries = validation.check_whole(canaries, "canaries", 1, 10**6, "a number of canaries")
        self.inner = inner
        self.canaries = nnx.Param(jnp.zeros(canaries))


@takes_python_values
def with_canaries(loss: Callable[..., Array], size: float) -> Callable[..., Array]:
    """Returns the loss on rows of :func:`rows`: ``loss`` of the model inside, or a canary's, of gradient norm ``size``.

    The returned function takes a :class:`WithCanaries`, the canary's number (-1: an example), whether it is in, and
    what ``loss`` takes after the model.
    """

    def extend(model: WithCanaries, number: Array, included: Array, *example: Array) -> Array:
        ordinary = loss(model.inner, *example)
        pushed = jnp.where(included, size * model.canaries[...][number], 0.0)
        return jnp.where(number < 0, ordinary, pushed)

    return extend


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
        ones, bounds = super().factors(squares)
        return jax.tree.map(jnp.ones_like, ones), bounds


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


# ----------------------------------------------------------------------------------------------------
# The audit from start to end: trainings with canaries, guesses, and the bounds that follow.
# ----------------------------------------------------------------------------------------------------

CLIP_NORM = 1.0
"""Clipping norm of the audited trainer. No guarantee depends on it."""
LEARNING_RATE = 0.5
"""Learning rate of the audited trainer. No guarantee depends on it."""

Watch = Callable[[jax.Array, tuple[Any, ...]], Float[np.ndarray, "moments canaries"]]
"""Type of a function from a run's key and rows to the canaries' parameters at the start and after each step."""


@takes_python_values
@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Settings of an audit: the training, and the guesses made about it.

    Attributes:
        noise_multiplier, sampling_rate, steps: of the audited trainer, as it claims them.
        canaries: of each run; more show more, at the cost of as many more rows.
        guesses: of each run, about the canaries that look most and least like members; fixed in advance. Fewer guesses
            count only the clearest.
        runs: independent trainings; the bound rises with their number, and so does the time.
        delta: at which epsilon is claimed.
        confidence: of the bounds, in (0, 1).

    Raises ValueError where a field is out of range.

    >>> AuditSettings(steps=100, runs=1).guesses
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
        validation.check_numbers(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)
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

    settings: AuditSettings
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
    settings: AuditSettings | None = None,
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
    settings = settings or AuditSettings()
    trainer = make_trainer(model, loss, data, settings, fault)
    return play(trainer, watch_canaries(trainer, settings.steps), data, settings, seed)


def play(
    trainer: DPTrainer, watch: Watch, data: tuple[Array | np.ndarray, ...], settings: AuditSettings, seed: int | None
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
    settings: AuditSettings,
    fault: str | None = None,
    seed: int | jax.Array | None = None,
    included: Bool[np.ndarray, " canaries"] | None = None,
) -> DPTrainer:
    """Returns the trainer of ``data`` and canaries, whose plan is what the settings claim.

    ``included`` says which canaries are in its own data (None: none); :func:`watch_canaries` is given rows of each run.
    """
    size = len(data[0]) + settings.canaries
    mechanism = jaxacct.PoissonSubsampledGaussian(settings.noise_multiplier, settings.sampling_rate)
    epsilon = float(jaxacct.epsilon(mechanism, settings.steps, settings.delta).upper)
    if not math.isfinite(epsilon):
        raise ValueError(f"noise_multiplier = {settings.noise_multiplier} has no finite epsilon to be audited.")
    kind = FixedOrderSampler if fault == "shuffling" else PoissonSampler
    sampler = kind.for_budget(size, settings.sampling_rate, epsilon=epsilon, delta=settings.delta, steps=settings.steps)
    return DPTrainer(
        WithCanaries(model, settings.canaries),
        # A canary's gradient is a thousand times the clipping norm: a trainer that does not clip shows it. Any value
        # above 1 will do.
        with_canaries(loss, 1e3 * CLIP_NORM),
        optax.sgd(LEARNING_RATE),
        rows(data, np.zeros(settings.canaries, bool) if included is None else included),
        delta=settings.delta,
        steps=settings.steps,
        noise_multiplier=settings.noise_multiplier,
        sampler=sampler,
        clip_norm=rule(CLIP_NORM, fault),
        seed=seed,
    )


def watch_canaries(trainer: DPTrainer, steps: int) -> Watch:
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


def judge(trainer: DPTrainer, settings: AuditSettings, correct: tuple[int, ...]) -> Audit:
    """Returns the audit that the right guesses of each run amount to."""
    p_value_at = functools.lru_cache(lambda noise: _p_value(trainer, settings, correct, noise))
    noise = _least_refuted(lambda noise: p_value_at(noise) < 1 - settings.confidence, settings.noise_multiplier)
    epsilon = 0.0
    if math.isfinite(noise):
        # The cost of batches that were cut, and of integer noise, counts against the bound.
        delta = settings.delta + _extra_cost(trainer, settings, trainer.epsilon)
        if delta < 1:
            epsilon = float(jaxacct.epsilon(trainer.sampler.mechanism(noise), settings.steps, delta).lower)
    return Audit(
        settings=settings,
        claim=float(epsilon_after(trainer, settings.steps).upper),
        correct=correct,
        p_value=p_value_at(settings.noise_multiplier),
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


def _p_value(trainer: DPTrainer, settings: AuditSettings, correct: tuple[int, ...], noise: float) -> float:
    """Returns the p-value of the claimed mechanism at a noise multiplier, from all runs together."""
    extra = [_extra_cost(trainer, settings, float(epsilon)) for epsilon in EPSILONS]
    deltas = np.minimum(np.add(_deltas(noise, trainer.sampler.sampling_rate, settings.steps), extra), 1.0)
    each = {right: p_value(right, settings.guesses, settings.canaries, EPSILONS, deltas) for right in set(correct)}
    return combined([each[right] for right in correct])


def _extra_cost(trainer: DPTrainer, settings: AuditSettings, epsilon: float) -> float:
    """Returns what a run costs beside its mechanism: that batches may be cut, and how far integer noise is from it."""
    distance = sum(bill(trainer.budget.samples * settings.steps).values())
    return trainer.sampler.overflow_delta(settings.steps, epsilon) + float(cost(epsilon, distance))


@functools.lru_cache(maxsize=256)
def _deltas(noise: float, rate: float, steps: int) -> tuple[float, ...]:
    """Returns upper bounds on delta at ``EPSILONS``; 1 where the exact accountant does not converge."""
    mechanism = jaxacct.PoissonSubsampledGaussian(noise, rate)
    profile = saddlepoint.accountant.curve(query_of(mechanism, steps, ForDelta(EPSILONS), "add_or_remove"))
    return tuple(np.asarray(profile.upper).tolist())


def _least_refuted(refuted: Callable[[float], bool], claimed: float) -> float:
    """Returns about the least noise multiplier that is refuted, within a factor of 8; inf where none is."""
    # Eight halvings of the factor find it to 1 %, on the side that makes the bound on epsilon smaller. Any numbers are
    # sound: the result is refuted.
    if refuted(claimed):
        least = claimed / 8
        return least if refuted(least) else bisect(refuted, claimed, least, steps=8, middle=geometric_mean)
    most = claimed * 8
    return bisect(refuted, most, claimed, steps=8, middle=geometric_mean) if refuted(most) else math.inf
