r"""Which canaries were in, guessed from the noisy sums of every step.

With x_t the noisy sum in a canary's coordinate over the clipping norm, and s the noise multiplier, a batch with the
canary in it and one without have the likelihood ratio e^(l_t), l_t = (2 x_t - 1) / (2 s^2). How the ratios of the
steps belong together depends on how batches are drawn. The score is the logarithm of the mean of three likelihood
ratios, each the best test of its own way: Poisson samples, prod (1 - q + q e^l); a new order of the data in every epoch
of b = 1/q batches, the product over epochs of the mean over their batches; and one fixed order, the mean over the b
places of the product over epochs. Any score gives valid bounds; this one is hardly weaker than the best of the three,
since a mean is at least a third of its largest term.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int

from jaxacct import validation


def scores(
    noisy: Float[np.ndarray, "steps canaries"], noise_multiplier: float, sampling_rate: float
) -> Float[np.ndarray, " canaries"]:
    """Returns how likely it is that each canary was in, as a log-likelihood ratio: see the module.

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
