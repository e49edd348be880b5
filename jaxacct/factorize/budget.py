"""Noise for a budget, and how many bands it is best spent on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxacct import calibrate, validation
from jaxacct.calibrate import Calibrated
from jaxacct.factorize.optimize import banded_toeplitz, error
from jaxacct.mechanisms import MatrixMechanism, Relation
from jaxacct.strategies.strategy import PREFIX_SUMS, BandedToeplitz, CyclicPoisson, Participation, Strategy, Workload

SLACK = 2.0**-49
"""What is added to the noise, relatively, for the roundings of it that :class:`.MatrixMechanism` takes off."""


def noise_multiplier(
    strategy: Strategy,
    participation: Participation,
    epsilon: float,
    delta: float,
    *,
    relation: Relation = "add_or_remove",
) -> Calibrated:
    """Returns the least noise multiplier of a :class:`.MatrixMechanism` for (epsilon, delta)-DP of the whole training.

    Args:
        strategy: C, concrete.
        participation: how examples come to steps.
        epsilon (): budget.
        delta (): budget.
        relation: neighbouring relation.

    Returns, guarantee, errors as of :func:`jaxacct.calibrate.noise_multiplier`, which is asked for the noise over the
    sensitivity: that of a Gaussian mechanism, or of DP-SGD of as many steps as groups have turns.

    >>> from jaxacct.strategies import SinglePass, square_root
    >>> found = noise_multiplier(square_root(16), SinglePass(steps=16), epsilon=1.0, delta=1e-5)
    >>> bool(found.satisfied), f"{found.value:.4f}"
    (True, '5.2014')
    """
    mechanism = MatrixMechanism(strategy, 1.0, participation)
    if mechanism.equal_groups and relation != "replace":
        raise ValueError(f"relation = {relation!r} is not supported by groups of equal size: give 'replace'.")
    found = calibrate.noise_multiplier(epsilon, delta, mechanism.sampling_rate, mechanism.cycles, relation=relation)
    # The little that is added may take something from epsilon.
    reached = replace(found.reached, lower=found.reached.lower * (1 - 1e-9))
    value = np.asarray(found.value) * np.asarray(mechanism.sensitivity) * (1 + SLACK)
    return replace(found, value=value[()], reached=reached)


class Bands(NamedTuple):
    """What a number of bands makes of a budget.

    Attributes:
        strategy: of about the least error.
        participation: how the examples are sampled for it.
        noise_multiplier: of :class:`.MatrixMechanism`; it satisfies the budget.
        error: mean squared error of the workload in each coordinate, over the squared clipping norm.
    """

    strategy: BandedToeplitz
    participation: CyclicPoisson
    noise_multiplier: float
    error: float


def best_bands(
    steps: int,
    sampling_rate: float,
    epsilon: float,
    delta: float,
    *,
    bands: Sequence[int] = (1, 2, 4, 8, 16, 32),
    workload: Workload = PREFIX_SUMS,
    relation: Relation = "add_or_remove",
) -> list[Bands]:
    """Returns what each number of bands makes of a budget, the best first: correlation is paid for by amplification.

    Args:
        steps: number of steps.
        sampling_rate: expected batch size over the number of examples: with b bands an example is sampled at b times
            that, in one of b steps. Numbers of bands for which that is above 1 are left out.
        epsilon: budget.
        delta: budget.
        bands: numbers that are tried. One band is DP-SGD.
        workload: what becomes of noisy gradients.
        relation: neighbouring relation.

    Raises as :func:`banded_toeplitz` and :func:`noise_multiplier` do.

    Source: Choquette-Choo et al. (2023), "(Amplified) banded matrix factorization", section 4.

    >>> found = best_bands(64, 0.1, epsilon=8.0, delta=1e-5, bands=(1, 4))
    >>> [entry.strategy.bands(64) for entry in found]
    [4, 1]
    """
    validation.check_sampling_rate(sampling_rate)
    found = []
    for count in bands:
        if count * sampling_rate > 1 or count > steps:
            continue
        participation = CyclicPoisson(steps, count, count * sampling_rate)
        strategy = banded_toeplitz(count, participation, workload)
        noise = float(noise_multiplier(strategy, participation, epsilon, delta, relation=relation).value)
        over = noise / strategy.sensitivity(participation.pattern)
        found.append(Bands(strategy, participation, noise, error(strategy, participation, workload)[0] * over**2))
    if not found:
        raise ValueError(f"bands = {tuple(bands)} holds none with bands * sampling_rate <= 1: give 1, for one.")
    return sorted(found, key=lambda entry: np.nan_to_num(entry.error, nan=np.inf))
