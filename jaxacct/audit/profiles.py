r"""From right guesses about canaries to a whole claim: every (epsilon, delta(epsilon)) at once, hence f-DP.

The game is that of :mod:`jaxacct.audit.approximate`. The mechanism is (e_l, d_l)-DP for every line l of a profile, as
DP-SGD claims to be. For r in [0, 1] let

    g(r) = max of 0, (r - d_l) e^-e_l and 1 - d_l - e^e_l (1 - r) over all l.

Lemma. Let E be an event that Y and the coins of the others decide, in which i is guessed. Then g(P(i right, E)) <= P(i
wrong, E). For, the others' coins given, with A1, A0 the outcomes of E in which the guess is "in" and "out", P(right, E)
= P1(A1)/2 + P0(A0)/2 and P(wrong, E) = P0(A1)/2 + P1(A0)/2. By P1(A) <= e^e P0(A) + d and the same with P1 and P0
exchanged, P(right, E) <= e^e P(wrong, E) + d; by both for the complements, 1 - P(wrong, E) <= e^e (1 - P(right, E)) +
d. Both are linear, so they survive the average over the others' coins.

Theorem. Let Q_j = P(W >= j), of exactly k guesses about m canaries. For j = 1, ..., k

    (k - j + 1) Q_(j-1) >= Q_j + ... + Q_k + m g((j Q_j + Q_(j+1) + ... + Q_k) / m).

Proof. For E_i = "i is guessed, and at least j - 1 others are right", i is right in E_i if and only if it is right and
W >= j: summed over i, P(i right, E_i) is E[W; W >= j] = j Q_j + Q_(j+1) + ... + Q_k. It is wrong in E_i if it is
wrong and W >= j - 1: the sum is E[k - W; W >= j - 1] = (k - j + 1) Q_(j-1) - Q_j - ... - Q_k. g is convex, so the
average of g over the i is at least g of the average.

So if Q_v is at least x, the right-hand sides, which grow with every Q, bound Q_(v-1), Q_(v-2), ..., Q_0 from below one
after another; Q_j >= 0 for j > v, and Q falls with j. Where that gives Q_0 > 1, Q_v < x. The least such x is the
p-value.

The idea of a recursion over the numbers of right guesses is that of Mahloujifar, Melis and Chaudhuri (2024), "Auditing
f-differential privacy in one run"; statement and proof here are for what is computed here.

What it can show. A mechanism of the claimed profile may be loose in one run out of twenty and tight in the others, and
one run cannot tell: that, not the number of canaries, limits one run. Independent runs add up by Fisher's method
(:func:`combined`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import ArrayLike

from jaxacct import validation
from jaxacct.audit.approximate import check_counts

MARGIN = 1e-9
"""By how much Q_0 has to pass 1: the recursion's sums of at most 10^5 positive terms err by less than 1e-10."""

LEAST = 1e-12
"""No p-value below this is looked for."""

CANDIDATES = 64

EPSILONS = np.concatenate([[0.0], np.geomspace(0.02, 50.0, 40)])
"""Where profiles are compared: from far below to far above what canaries can refute, neighbours 22 % apart. Always the
same, so that p-values fall with the profile."""


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
    Rounding is counted. The number is within 2 % of the least that the theorem gives. Proof and source: see the module.

    Raises ValueError where an argument is out of range.

    >>> p_value(95, 100, 100, [1.0], [0.0]) < 1e-6, p_value(70, 100, 100, [1.0], [0.0])
    (True, 1.0)
    """
    check_counts(correct, guesses, canaries)
    e, d = np.asarray(epsilons, np.float64), np.asarray(deltas, np.float64)
    validation.check_epsilon(e)
    validation.check_probability(d, "deltas")
    if e.ndim != 1 or e.shape != d.shape or not e.size:
        raise ValueError(f"epsilons and deltas of shapes {e.shape} and {d.shape}: give two lists of one length.")
    low, high = math.log(LEAST), 0.0
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
    for j in range(correct, 0, -1):
        right = (j * last + (total - last)) / canaries
        least = np.maximum((right - deltas) * falling, 1 - deltas - rising * (1 - right)).max(axis=0)
        bound = (total + canaries * np.maximum(least, 0.0)) / (guesses - j + 1)
        # Beyond 1 all that counts is that it is beyond: kept at 2, the sums stay finite.
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
