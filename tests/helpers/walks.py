"""Exact probabilities for randomized response, whose privacy loss is a random walk: +-epsilon_i at each release.

Under P the loss of an epsilon-DP randomized response is +epsilon with probability e^epsilon/(1 + e^epsilon). What an
adversary can reach who chooses each epsilon_i from the walk so far is a maximum over choices: dynamic programming.
"""

import numpy as np


def up(epsilon):
    """Probability of a loss of +epsilon."""
    return 1 / (1 + np.exp(-epsilon))


FAINT = 1e-60
"""Mass that is let go at the ends of a walk: of 10,000 steps less than 1e-55 in all, beside deltas of 1e-6."""


def crossing_constant(epsilon, readings):
    """Probability that the walk of steps epsilon ever exceeds readings[..., n - 1] after n steps, for any n.

    Each row of ``readings`` has a walk of its own.
    """
    shape = np.shape(readings)[:-1]
    readings = np.reshape(readings, (-1, np.shape(readings)[-1]))
    p, whole = up(epsilon), np.arange(readings.shape[1] + 1)
    # mass[:, i]: the walks stand at (2k - n) epsilon for k = lowest + i and have never crossed.
    lowest, mass, crossed = 0, np.ones((len(readings), 1)), np.zeros(len(readings))
    for n, reading in enumerate(readings.T[:, :, None], 1):
        new = np.zeros((len(mass), mass.shape[1] + 1))
        new[:, 1:] += p * mass
        new[:, :-1] += (1 - p) * mass
        over = (2 * whole[lowest : lowest + new.shape[1]] - n) * epsilon > reading
        crossed += np.sum(new, axis=1, where=over)
        new[over] = 0.0
        (alive,) = np.nonzero(np.max(new, axis=0) >= FAINT)
        if not len(alive):
            break
        lowest, mass = lowest + alive[0], new[:, alive[0] : alive[-1] + 1]
    return crossed.reshape(shape)


def best_adversary(unit, multiples, counts, value):
    """Returns the largest expected value that choosing the epsilons adaptively and stopping at any time reaches.

    Args:
        unit: the epsilons are ``unit`` times one of two ``multiples``.
        multiples: two whole numbers.
        counts: the most uses of each, (m, n).
        value: ``value(i, j)`` of stopping after i uses of the first and j of the second, an array over the walk's
            position -reach..reach in units; -inf where those uses are not granted.
    """
    reach = multiples[0] * counts[0] + multiples[1] * counts[1]
    best = {}
    chances = [up(unit * multiple) for multiple in multiples]
    for i in range(counts[0], -1, -1):
        for j in range(counts[1], -1, -1):
            here = value(i, j).copy()
            for choice, (a, b) in enumerate(((i + 1, j), (i, j + 1))):
                if a > counts[0] or b > counts[1]:
                    continue
                later, step = best[a, b], multiples[choice]
                go_on = np.full_like(here, -np.inf)
                # Positions out of reach after so few uses hold nothing of meaning; the start is in the middle.
                go_on[step:-step] = chances[choice] * later[2 * step :] + (1 - chances[choice]) * later[: -2 * step]
                here = np.maximum(here, go_on)
            best[i, j] = here
        for j in range(counts[1] + 1):
            best.pop((i + 1, j), None)
    return best[0, 0][reach]


def positions(unit, multiples, counts):
    """The walk's positions, in units of loss, as ``best_adversary`` numbers them."""
    reach = multiples[0] * counts[0] + multiples[1] * counts[1]
    return unit * np.arange(-reach, reach + 1)
