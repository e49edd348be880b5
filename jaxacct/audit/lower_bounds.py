"""Lower bounds on privacy parameters from right guesses about canaries: on epsilon, on a whole profile, and on mu.

An auditor guesses which canaries were in the data set. If a mechanism is as private as claimed, many right guesses are
improbable; the p-value bounds their probability, and claims of small p-values are refuted. In reading order:
:func:`p_value` and :func:`epsilon_lower_bound`, against (epsilon, delta), with the theorem here;
:func:`p_value_of_profile`, against every (epsilon, delta(epsilon)) at once; :func:`combined`, several runs together;
:func:`mu_lower_bound`, against mu-GDP.

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
:func:`p_value_of_profile` uses the whole of what a run claims, and sees more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.convert import gdp_to_delta
from jaxacct.train.sampling import log_binomial_tail

ROUNDING = 1e-9
"""Relative allowance for the rounding of the term with delta, whose log-factorials err by some 1e-12: less would break
the bound."""

LARGEST_EPSILON = 100.0
"""Largest epsilon up to which bounds are looked for; no number of canaries reaches it. Sound for any value."""

HALVINGS = 60
"""Bisections of the interval of epsilon. Sound for any value."""


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
    counted. Proof and source: see the module's docstring.

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

    Source: Steinke, Nasr and Jagielski (2023), "Privacy auditing with one (1) training run"; see the module's
    docstring.

    >>> round(epsilon_lower_bound(250, 250, 500, 1e-5), 2), epsilon_lower_bound(130, 250, 500, 1e-5)
    (4.42, 0.0)
    """
    check_confidence(confidence)
    level = 1 - confidence
    low, high = 0.0, LARGEST_EPSILON
    if p_value(correct, guesses, canaries, 0.0, delta) >= level:
        return 0.0
    # ``low`` is an epsilon whose p-value was below the level, or 0: it is proved wherever the loop ends.
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


# ----------------------------------------------------------------------------------------------------
# Whole profiles: right guesses against every (epsilon, delta(epsilon)) at once, hence f-DP.
#
# The game is that of the module's docstring. The mechanism is (e_l, d_l)-DP for every line l of a profile,
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
"""Amount by which Q_0 has to pass 1: the recursion's sums of at most 10^5 positive terms err by less than 1e-10. Less
than that would break the bound."""

LEAST = 1e-12
"""Least p-value that is looked for. Sound for any value."""

CANDIDATES = 64
"""Number of p-values that are tried at once, in each of two rounds. Sound for any value."""

EPSILONS = np.concatenate([[0.0], np.geomspace(0.02, 50.0, 40)])
"""Epsilons at which profiles are compared: from far below to far above what canaries can refute, neighbours 22 % apart.
They are always the same, so that p-values fall with the profile."""


def p_value_of_profile(
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

    >>> p_value_of_profile(95, 100, 100, [1.0], [0.0]) < 1e-6, p_value_of_profile(70, 100, 100, [1.0], [0.0])
    (True, 1.0)
    """
    check_counts(correct, guesses, canaries)
    e, d = np.asarray(epsilons, np.float64), np.asarray(deltas, np.float64)
    validation.check_epsilon(e)
    validation.check_probability(d, "deltas")
    if e.ndim != 1 or e.shape != d.shape or not e.size:
        raise ValueError(f"epsilons and deltas of shapes {e.shape} and {d.shape}: give two lists of one length.")
    low, high = math.log(LEAST), 0.0
    # Two rounds of candidates, the second between the last one not refuted and the first one that is. The one returned
    # was refuted itself: P(W >= correct) is below it.
    for _ in range(2):
        candidates = np.linspace(low, high, CANDIDATES)
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
    for value in p_values:
        validation.check_probability(value, "p_values")
    if not p_values:
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

SMALLEST, LARGEST = 2.0**-10, 2.0**6
"""Values of mu between which the bound is looked for. Sound for any values."""

HALVINGS_OF_MU = 10
"""Bisections of the logarithm of the ratio of both: mu is found to 1.1 %. Sound for any value."""


def mu_lower_bound(correct: Sequence[int], guesses: int, canaries: int, confidence: float = 0.95) -> float:
    """Returns a lower bound on the mu of a mechanism that is mu-GDP for some mu: 0 where nothing is shown.

    Args:
        correct: right guesses, of each of several independent runs.
        guesses: guesses of each run, fixed in advance.
        canaries: of each run, put in or left out by a fair coin each.
        confidence: in (0, 1).

    Formal guarantee: with probability at least ``confidence``, no run's mechanism is mu-GDP, for adding or removing one
    canary, for any mu below the returned number. It is the largest mu whose profile is refuted
    (:func:`p_value_of_profile`), found to 1.1 % from below. A larger mu has larger deltas and so a larger p-value: if
    any mu of at least the true one is refuted, so is the true one. The epsilon of this mu by
    :func:`jaxacct.convert.gdp_to_epsilon` is that of Gaussian mechanisms only: others have the same mu and less
    epsilon.

    Source: the profile is Corollary 2.13 of Dong, Roth and Su (2022), "Gaussian differential privacy".

    Raises ValueError where an argument is out of range.

    >>> mu_lower_bound([50], 100, 100), round(mu_lower_bound([99, 98], 100, 100), 1)
    (0.0, 1.5)
    """
    check_confidence(confidence)

    def refuted(mu: float) -> bool:
        deltas = np.asarray(gdp_to_delta(mu, EPSILONS))
        each = [p_value_of_profile(right, guesses, canaries, EPSILONS, deltas) for right in correct]
        return combined(each) < 1 - confidence

    if not refuted(SMALLEST):
        return 0.0
    if refuted(LARGEST):
        return LARGEST
    low, high = SMALLEST, LARGEST
    # ``low`` was refuted and ``high`` was not, at every step.
    for _ in range(HALVINGS_OF_MU):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
