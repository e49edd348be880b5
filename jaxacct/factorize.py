"""Matrix factorization: from a workload, a participation and a budget to the correlated noise of least error.

A strategy C correlates the noise of steps, so that it cancels in the workload; its sensitivity decides the noise that a
budget asks for. :func:`noise_multiplier` and :func:`best_bands` calibrate the noise of a strategy; then come the
searches by L-BFGS (Optax, of the extra "train"), :func:`banded_toeplitz` (McKenna 2024) and :func:`buffered_toeplitz`
(McMahan, Xu and Zhang 2024), and :func:`error`, by which strategies are compared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct import calibrate, validation
from jaxacct.calibrate import Calibrated
from jaxacct.mechanisms import MatrixMechanism, Relation
from jaxacct.numerics.precision import kernel
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.strategies import (
    PREFIX_SUMS,
    BandedToeplitz,
    BufferedToeplitz,
    CyclicPoisson,
    Participation,
    Pattern,
    Strategy,
    Toeplitz,
    Unsampled,
    Workload,
    square_root,
    squared_errors,
)

__all__ = ["Bands", "banded_toeplitz", "best_bands", "buffered_toeplitz", "error", "noise_multiplier"]


@takes_python_values
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

    Returns, guarantee, errors as of :func:`jaxacct.calibrate.noise_multiplier`. That function finds the noise over the
    sensitivity: for a Gaussian mechanism, or for DP-SGD of as many steps as groups have turns.

    >>> from jaxacct.strategies import SinglePass, square_root
    >>> found = noise_multiplier(square_root(16), SinglePass(steps=16), epsilon=1.0, delta=1e-5)
    >>> bool(found.satisfied), f"{found.value:.4f}"
    (True, '5.2014')
    """
    mechanism = MatrixMechanism(strategy, 1.0, participation)
    if mechanism.equal_groups and relation != "replace":
        raise ValueError(f"relation = {relation!r} is not supported by groups of equal size: give 'replace'.")
    least = calibrate.noise_multiplier(epsilon, delta, mechanism.sampling_rate, mechanism.cycles, relation=relation)
    # What is added to the noise, relative to it, is for the roundings that :class:`.MatrixMechanism` takes off: less
    # would break the bound. It may take a little from epsilon.
    value = np.asarray(least.value) * np.asarray(mechanism.sensitivity) * (1 + 2.0**-49)
    reached = replace(least.reached, lower=least.reached.lower * (1 - 1e-9))
    return replace(least, value=value[()], reached=reached)


class Bands(NamedTuple):
    """Result of a number of bands for a budget.

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


@takes_python_values
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
    """Returns the results of each number of bands for a budget, the best first: correlation costs amplification.

    Args:
        steps: number of steps.
        sampling_rate: expected batch size over the number of examples: with b bands an example is sampled at b times
            that, in one of b steps. Numbers of bands for which that is above 1 are left out.
        epsilon: budget.
        delta: budget.
        bands: numbers that are tried. One band is DP-SGD.
        workload: the sums that noisy gradients enter.
        relation: neighbouring relation.

    Raises as :func:`banded_toeplitz` and :func:`noise_multiplier` do.

    Source: Choquette-Choo et al. (2023), "(Amplified) banded matrix factorization", section 4.

    >>> found = best_bands(64, 0.1, epsilon=8.0, delta=1e-5, bands=(1, 4))
    >>> [entry.strategy.bands(64) for entry in found]
    [4, 1]
    """
    validation.check_numbers(sampling_rate=sampling_rate, epsilon=epsilon, delta=delta)
    validation.check_count(steps, "steps", "the number of steps")
    validation.check_sampling_rate(sampling_rate)
    results = []
    # The rate and the number of steps rule out some numbers of bands.
    for count in bands:
        if count * sampling_rate > 1 or count > steps:
            continue
        participation = CyclicPoisson(steps, count, count * sampling_rate)
        strategy = banded_toeplitz(count, participation, workload)
        noise = float(noise_multiplier(strategy, participation, epsilon, delta, relation=relation).value)
        over = noise / strategy.sensitivity(participation.pattern)
        results.append(Bands(strategy, participation, noise, error(strategy, participation, workload)[0] * over**2))
    if not results:
        raise ValueError(f"bands = {tuple(bands)} holds none with bands * sampling_rate <= 1: give 1, for one.")
    return sorted(results, key=lambda entry: np.nan_to_num(entry.error, nan=np.inf))


# ----------------------------------------------------------------------------------------------------
# Strategies of least error: L-BFGS on their few numbers.
# ----------------------------------------------------------------------------------------------------

ITERATIONS = 200
"""Most iterations of L-BFGS. Sound for any value: any strategy is private at its own sensitivity."""


@takes_python_values
def banded_toeplitz(
    bands: int,
    participation: Participation,
    workload: Workload = PREFIX_SUMS,
    *,
    worst: bool = False,
    iterations: int = ITERATIONS,
) -> BandedToeplitz:
    """Returns the banded Toeplitz strategy of about the least squared error at a budget, with sensitivity near 1.

    Args:
        bands: number of diagonals; as many copies of the noise are remembered, less one.
        participation: steps, and how examples come to them. Sampled, the sensitivity of one turn is what counts.
        workload: the sums that noisy gradients enter; prefix sums by default.
        worst: whether the largest error over steps is made small, rather than the mean.
        iterations: most steps of L-BFGS.

    Returns:
        The strategy, an estimate of the best. Wherever the search ended, its error and its sensitivity are those of its
        own numbers (:func:`.squared_errors`, :meth:`.Strategy.sensitivity`).

    Raises:
        ModuleNotFoundError: without Optax, which the extra "train" brings.
        ValueError: an argument out of range.

    Source: McKenna (2024), "Scaling up the banded matrix factorization mechanism for differentially private ML".

    >>> from jaxacct.strategies import SinglePass
    >>> strategy = banded_toeplitz(2, SinglePass(steps=16))
    >>> best = np.mean(squared_errors(strategy, 16)) * strategy.sensitivity(SinglePass(16).pattern) ** 2
    >>> root = square_root(2)
    >>> bool(best < np.mean(squared_errors(root, 16)) * root.sensitivity(SinglePass(16).pattern) ** 2)
    True
    """
    pattern = _pattern_of(participation, iterations)
    bands = validation.check_whole(
        bands, "bands", 1, pattern.steps, "the number of diagonals, at most one for each step"
    )
    start: Any = square_root(
        bands, float(np.asarray(workload.momentum)), float(np.asarray(workload.decay))
    ).first_column
    free = _least_product(_make_banded, pattern, worst, iterations, np.asarray(start, np.float64)[1:], workload)
    column = np.concatenate([[1.0], free])
    return BandedToeplitz(column / BandedToeplitz(column).sensitivity(pattern))


@takes_python_values
def buffered_toeplitz(
    buffers: int,
    participation: Participation,
    workload: Workload = PREFIX_SUMS,
    *,
    worst: bool = False,
    iterations: int = ITERATIONS,
) -> BufferedToeplitz:
    """Returns the buffered linear Toeplitz strategy (BLT) of about the least squared error at a budget.

    Args:
        buffers: copies of the noise that are remembered, for any number of steps: 2 to 5 come near the best.
        participation: steps, and how examples come to them; not sampled, for all steps share noise.
        workload: as of :func:`banded_toeplitz`.
        worst: likewise.
        iterations: likewise.

    Returns, errors as of :func:`banded_toeplitz`.

    Source: McMahan, Xu and Zhang (2024), "A hassle-free algorithm for strong differential privacy in federated
    learning systems"; the start is a quadrature of binomial(2k, k) / 4^k, the mean of r^k over the arcsine law.

    >>> from jaxacct.strategies import SinglePass
    >>> strategy = buffered_toeplitz(2, SinglePass(steps=64))
    >>> bool(np.all(np.diff(strategy.coefficients(64)) <= 0))
    True
    """
    pattern = _pattern_of(participation, iterations)
    buffers = validation.check_whole(buffers, "buffers", 1, 64, "the number of copies of the noise")
    strategies = []
    # L-BFGS runs from two starts, relative distances between the buffers' lifetimes at first, and the strategy of less
    # error wins: from a single start two of the lifetimes may come to be the same. Sound for any values.
    for spread in (1.0, 0.7):
        width = spread * math.log(4 * pattern.steps + 4) / 2 / buffers
        roots = np.exp(-width * (np.arange(buffers) + 0.5))  # s, of r = 1 - s^2
        weights = 2 / math.pi * np.sqrt(1 - roots**2) * roots * width
        weights *= min(1.0, 0.5 / weights.sum())
        start = np.concatenate([np.log(weights), np.log((1 - roots**2) / roots**2)])
        free = _least_product(_make_buffered, pattern, worst, iterations, start, workload)
        strategies.append(_make_buffered(jnp.asarray(free)))
    return min(strategies, key=lambda strategy: error(strategy, participation, workload)[worst])


def _make_banded(free: Array) -> BandedToeplitz:
    return BandedToeplitz(jnp.concatenate([jnp.ones(1, free.dtype), free]))


def _make_buffered(free: Array) -> BufferedToeplitz:
    weights, rates = jnp.split(free, 2)
    return BufferedToeplitz(jnp.exp(weights), jax.nn.sigmoid(rates))


def _squared_sensitivity(strategy: Toeplitz, pattern: Pattern) -> Array:
    """Returns the value of :func:`.strategies.of_toeplitz` for coefficients that do not increase; differentiable."""
    impulse = jnp.eye(pattern.steps, 1)[:, 0]
    column = jnp.abs(strategy.multiply(impulse))
    starts = range(0, pattern.most * pattern.separation, pattern.separation)
    total = sum(jnp.pad(column[: pattern.steps - start], (start, 0)) for start in starts)
    return jnp.sum(total**2)


@kernel
@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _least_product(
    make: Callable[[Array], Toeplitz],
    pattern: Pattern,
    worst: bool,
    iterations: int,
    start: Array,
    workload: Workload,
) -> Array:
    """Returns the numbers of the strategy with the least product found of squared sensitivity and squared error."""
    try:
        import optax
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'strategies of least error are found by optax, which is missing: pip install "jaxacct[train]"; '
            "jaxacct.strategies.square_root needs none.",
            name=missing.name,
        ) from missing

    def loss(free: Array) -> Array:
        strategy = make(free)
        errors = squared_errors(strategy, pattern.steps, workload)
        error = jnp.max(errors) if worst else jnp.mean(errors)
        return jnp.log(_squared_sensitivity(strategy, pattern)) + jnp.log(error)

    search = optax.lbfgs()
    look = optax.value_and_grad_from_state(loss)

    # One step is one of L-BFGS. The search ends at a gradient of 1e-6, from where the error may fall by a share of some
    # 1e-9 yet, after the most iterations, or where a step would leave the finite numbers: then it sets the slope to 0,
    # and keeps the numbers before.
    def goes_on(carry: Any) -> Array:
        _, _, count, slope = carry
        return (count < iterations) & (slope > 1e-6)

    def step(carry: Any) -> Any:
        free, state, count, _ = carry
        value, slopes = look(free, state=state)
        move, state = search.update(slopes, state, free, value=value, grad=slopes, value_fn=loss)
        moved = optax.apply_updates(free, move)
        better = jnp.all(jnp.isfinite(moved))
        slope = jnp.where(better, jnp.max(jnp.abs(slopes), initial=0.0), 0.0)
        return jnp.where(better, moved, free), state, count + 1, slope

    start = jnp.asarray(start)
    return jax.lax.while_loop(goes_on, step, (start, search.init(start), 0, jnp.inf))[0]


def _pattern_of(participation: Participation, iterations: int = ITERATIONS) -> Pattern:
    """Returns the steps that an example may take part in; raises TypeError where an argument is of another kind."""
    if not isinstance(participation, (Unsampled, CyclicPoisson)):
        raise TypeError(
            f"participation = {validation.shorten(participation)} is none: give SinglePass, MinSeparation, "
            "FixedEpochs or CyclicPoisson of jaxacct.strategies."
        )
    validation.check_whole(iterations, "iterations", 0, validation.MOST_COUNT, "the steps of the search")
    return participation.pattern


def error(strategy: Strategy, participation: Participation, workload: Workload = PREFIX_SUMS) -> tuple[float, float]:
    """Returns the mean and the largest squared error of a workload at sensitivity 1: comparable at equal budgets.

    The squared noise multiplier of a Gaussian mechanism of sensitivity 1 times them is the variance of each coordinate.

    >>> from jaxacct.strategies import SinglePass, identity
    >>> error(identity(), SinglePass(steps=3))[1] < 3 * (1 + 1e-12)
    True
    """
    validation.check_type(strategy, "strategy", Strategy)
    pattern = _pattern_of(participation)
    squares = squared_errors(strategy, pattern.steps, workload) * strategy.sensitivity(pattern) ** 2
    return float(np.mean(squares)), float(np.max(squares))
