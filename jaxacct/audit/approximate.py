r"""From right guesses about canaries to (epsilon, delta): what is proved, and the bound on epsilon that follows.

The game. There are m canaries. Each is put into the data set or left out by a fair coin of its own, S_i; the mechanism
runs once and gives Y; an auditor who sees Y alone makes exactly r guesses about the S_i and abstains from the others.
W of them are right. The mechanism is (epsilon, delta)-DP for adding or removing one canary. Let q = e^epsilon / (1 +
e^epsilon), B(n) a binomial number of n trials of probability q, and M(n) the largest probability of one value of B(n).

Theorem. P(W >= v) <= P(B(r) >= v) + (m / r) delta (1 - q) sum of M(n) over n < r.

Proof. Take one i, with S_j known for j in a set A without i, and let P1, P0 be the laws of Y, those S_j given, for S_i
= 1 and 0; the S_j outside A are averaged out, by the same law for both, so P1 and P0 are (epsilon, delta)-close.
Write c for the chance, given Y and the S_j, that the guess about i is right, and b = (c - q)+, 0 where the auditor
abstains. Where the guess is "in", c = P1 / (P1 + P0), so (c - q) (P1 + P0) = (P1 - e^epsilon P0) / (1 + e^epsilon).
Hence E[b; "in"] = int (P1 - e^epsilon P0)+ / 2 / (1 + e^epsilon) <= delta (1 - q) / 2, and the same for "out":

    (1)  E[b] <= delta (1 - q), for every i and A.

Now tell the S_i one after another, in an order that was drawn uniformly, and count right guesses. With k guesses to
come and x right ones so far, let F = P(B(k) >= v - x). A guess that is right with chance c changes the mean of F by
(c - q) P(B(k - 1) = v - x - 1) <= b M(k - 1); an abstention leaves it. At the end F says whether W >= v. Adding up,
P(W >= v) <= P(B(r) >= v) + sum over i of E[b_i M(K_i)], K_i the guesses to come after i. Given Y and the order, K_i is
fixed, and the mean of b_i grows with A, since (c - q)+ is convex and c a martingale: it is at most that for A = all
others, which depends on Y alone and obeys (1). Given Y, K_i is uniform on 0, ..., r - 1. So E[b_i M(K_i)] <= delta
(1 - q) times the mean of the M(n), and there are m of them.

For delta = 0 this is the theorem of Steinke, Nasr and Jagielski (2023), "Privacy auditing with one (1) training run";
for delta > 0 theirs adds 2 m delta max over i of P(v > B(r) >= v - i) / i, and the term above takes its place: it is
the smaller one for p-values around 0.05, theirs is for much smaller ones.

Nothing is assumed of the mechanism: all canaries may be released with correlated errors. That has a price. To show
epsilon at confidence 95 % takes at least 3 e^epsilon guesses, all right. (epsilon, delta) alone allows every guess to
be right with chance q; the Gaussian noise of DP-SGD is far from that, so the bound stays far below the true epsilon.
:mod:`jaxacct.audit.profiles` uses the whole of what a run claims, and sees more.
"""

from __future__ import annotations

import math

import numpy as np

from jaxacct import validation
from jaxacct.train.sampling import log_binomial_tail

ROUNDING = 1e-9
"""Relative allowance for the rounding of the term with delta, whose log-factorials err by some 1e-12."""

LARGEST_EPSILON = 100.0
"""Bounds are looked for up to here; no number of canaries reaches it."""

HALVINGS = 60


def p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Returns an upper bound on the probability of so many right guesses about an (epsilon, delta)-DP mechanism.

    Args:
        correct: guesses that were right.
        guesses: number of guesses, fixed in advance; from 1 to ``canaries``.
        canaries: examples that a fair coin each put in or left out. Those of independent runs may be added up.
        epsilon: at least 0.
        delta: in [0, 1).

    Formal guarantee: whatever the mechanism and the auditor, the probability of at least ``correct`` right guesses is
    at most the returned number, if the mechanism is (epsilon, delta)-DP for adding or removing a canary. Rounding is
    counted. Proof and source: see the module.

    Raises ValueError where an argument is out of range.

    >>> round(p_value(50, 50, 100, 2.0, 1e-5), 5)
    0.00179
    """
    check_counts(correct, guesses, canaries)
    validation.check_epsilon(epsilon)
    validation.check_probability(delta, "delta")
    chance = min(math.nextafter(1 / (1 + math.exp(-epsilon)), 2.0), 1.0)
    tail = math.exp(log_binomial_tail(guesses, chance, correct))
    extra = canaries / guesses * delta * (1 - chance) * float(np.sum(_modes(guesses, chance))) if delta else 0.0
    return min((tail + extra) * (1 + ROUNDING), 1.0)


def epsilon_lower_bound(correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """Returns a lower bound on epsilon at ``delta``, of any mechanism: 0 where nothing is shown.

    Arguments are those of :func:`p_value`, and the ``confidence``, in (0, 1).

    Formal guarantee: with probability at least ``confidence`` over the coins and the mechanism, the mechanism is not
    (e, delta)-DP for any e below the returned number. Every e whose p-value is below 1 - confidence will do, and
    whether p-values fall with e does not matter: for each e it takes at least some number w(e) of right guesses to get
    there, so that any bound above the true epsilon needs at least the least w(e) of the e above it, and those e hold of
    the mechanism, too. The bound is found by bisection, to 1e-12.

    Source: Steinke, Nasr and Jagielski (2023), "Privacy auditing with one (1) training run"; see the module.

    >>> round(epsilon_lower_bound(250, 250, 500, 1e-5), 2), epsilon_lower_bound(130, 250, 500, 1e-5)
    (4.42, 0.0)
    """
    check_confidence(confidence)
    level = 1 - confidence
    low, high = 0.0, LARGEST_EPSILON
    if p_value(correct, guesses, canaries, 0.0, delta) >= level:
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if p_value(correct, guesses, canaries, middle, delta) < level:
            low = middle
        else:
            high = middle
    return low


def _modes(trials: int, chance: float) -> np.ndarray:
    """Returns the largest probability of one value of n trials, for n from 0 to ``trials - 1``."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    n = np.arange(trials)
    # The mode is the whole part of (n + 1) q; next to a whole number its neighbour is as likely, up to rounding.
    mode = np.minimum(np.floor((n + 1) * chance).astype(int), n)
    logs = log_factorial[n] - log_factorial[mode] - log_factorial[n - mode] + mode * math.log(chance)
    failures = n - mode
    return np.exp(logs + np.where(failures > 0, failures * math.log(max(1 - chance, 1e-300)), 0.0))


def check_counts(correct: int, guesses: int, canaries: int) -> None:
    """Raises where the numbers of right guesses, guesses and canaries do not fit each other."""
    validation.check_whole(canaries, "canaries", 1, 10**7, "a number of canaries")
    validation.check_whole(guesses, "guesses", 1, canaries, "a number of guesses, at most one for each canary")
    validation.check_whole(correct, "correct", 0, guesses, "how many of the guesses were right")


def check_confidence(confidence: float) -> None:
    """Raises where a confidence is no probability of being right."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence} is not in (0, 1): give 0.95 for one wrong bound in twenty.")
