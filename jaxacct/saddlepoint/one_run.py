"""Brackets without a contour: one run of any mechanism, and any number of plain Gaussian ones, which are one.

A pair knows the profile of one run from below and from above (:meth:`.DominatingPair.one_run`); bounds on epsilon are
where these meet delta. Gaussian losses of a distance mu_i = 1/s_i of means add up to one of mu^2 = sum k_i mu_i^2.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import roundoff
from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, Once, Parts, facts_of
from jaxacct.dominating_pairs import DominatingPair, SubsampledGaussianPair
from jaxacct.precision import TINY, is_concrete
from jaxacct.programs import compiled
from jaxacct.question import ForEpsilon, Question

ROUNDS = 100
"""Halvings of an interval for epsilon; 52 make a float64 of it where epsilon is not far below its bounds."""

LARGEST = 1e300
"""Epsilons up to which one is sought."""


class OneRun(NamedTuple):
    """A single run: pairs (), of which one has the least loss that it may have and one the largest, and its facts."""

    below: DominatingPair
    above: DominatingPair
    facts: Facts


def closed_forms(directions: list[Parts], known: Once | None) -> list[OneRun]:
    """Returns every direction as a single run; none where one of them is no such, or in float32.

    ``known`` is what :func:`jaxacct.composition.once` said of the composition: then a traced count is 1, or 0.
    """
    if jax.dtypes.canonicalize_dtype(jnp.float64) != jnp.float64:
        return []
    found = [_as_one_run(parts, known) for parts in directions]
    return [run for run in found if run is not None] if None not in found else []


def _as_one_run(parts: Parts, known: Once | None) -> OneRun | None:
    """Returns what is composed as a single run, or None where it is not one, as far as can be seen."""
    is_known = known is not None and [len(counts) for _, counts in parts] == [1]
    if is_known or _runs_once(parts):
        rows = ((pairs, counts, i) for pairs, counts in parts for i in range(len(counts)))
        pair = next(_entry(pairs, i) for pairs, counts, i in rows if is_known or counts[i] == 1)
        # Whatever was known, another count than that is not answered.
        count, facts = sum(jnp.sum(counts) for _, counts in parts), facts_of(parts)
        return OneRun(pair, pair, facts._replace(is_valid=facts.is_valid & ((count == 1) | (count == 0))))
    if not all(_is_gaussian(pairs) for pairs, _ in parts):
        return None
    return _gaussian(parts)


def _runs_once(parts: Parts) -> bool:
    counts = [counts for _, counts in parts]
    return is_concrete(counts) and sum(int(np.sum(np.asarray(c) != 0)) for c in counts) == 1 == sum(map(np.sum, counts))


def _entry(pairs: DominatingPair, index: int) -> DominatingPair:
    return jax.tree.map(lambda leaf: leaf[index], pairs)


def _is_gaussian(pairs: DominatingPair) -> bool:
    return (
        isinstance(pairs, SubsampledGaussianPair)
        and is_concrete(pairs.sampling_rate)
        and bool(np.all(np.asarray(pairs.sampling_rate) == 1))
    )


@compiled
def _gaussian(parts: Parts) -> OneRun:
    """Returns the one Gaussian run that plain Gaussian ones come to."""
    noise = jnp.concatenate([pairs.noise_multiplier for pairs, _ in parts])  # type: ignore[attr-defined]
    counts = jnp.concatenate([counts for _, counts in parts])
    runs = (counts > 0) & (noise > 0)
    least = jnp.min(jnp.where(runs, noise, jnp.inf))
    # Over the least, so that neither squares nor their inverses leave the range of float64.
    share = jnp.sum(jnp.where(runs, counts * (least / noise) ** 2, 0.0))
    scale = least / jnp.sqrt(share)
    # A quotient, its square, its product with a count, a sum of so many terms, and the root, which halves all that.
    error = (len(counts) + 8) * roundoff()
    scale = jnp.where(jnp.isfinite(scale), scale, 1.0)  # nothing is run
    pair = [SubsampledGaussianPair(scale * (1 + side * error), jnp.ones_like(scale), True) for side in (1.0, -1.0)]
    return OneRun(pair[0], pair[1], facts_of(parts))


@compiled
def bounds_of(run: OneRun, question: Question) -> Bounds:
    """Returns the bracket that answers a question of one number."""
    if isinstance(question, ForEpsilon):
        lower, upper = _epsilon(run, question.delta)
    else:
        lower, upper = _profile(run, question.epsilon)
    nowhere = Bounds(lower=lower, estimate=jnp.full_like(upper, jnp.nan), upper=upper, converged=jnp.asarray(False))
    return question.close(nowhere, run.facts)


def _profile(run: OneRun, epsilon: Array) -> tuple[Array, Array]:
    """Returns bounds on delta at an epsilon, with the share of infinite losses."""
    least, most = run.facts.infinite
    lower, _ = run.below.one_run(epsilon)
    _, upper = run.above.one_run(epsilon)
    u = roundoff()
    lower, upper = (lower + least) * (1 - 2 * u), (upper + most) * (1 + 2 * u)
    # Below the supremum delta is positive, and float64 has no smaller bound for it: no epsilon does for a delta of 0.
    beyond = epsilon >= run.facts.supremum[1]
    upper = jnp.where(beyond, upper, jnp.maximum(upper, TINY))
    return jnp.where(jnp.isnan(lower), 0.0, lower), jnp.where(jnp.isnan(upper), 1.0, jnp.minimum(upper, 1.0))


def log_delta_at(run: OneRun, epsilon: Array, step: float) -> tuple[Array, Array]:
    """Returns about log delta(epsilon), and its derivative in epsilon by a central difference; NaN where it is 0."""

    def log_middle(epsilon: Array) -> Array:
        lower, upper = _profile(run, epsilon)
        return jnp.log(jnp.where(lower > 0, (lower + upper) / 2, jnp.nan))

    apart = step * jnp.maximum(epsilon, step)
    low, at, high = jax.lax.map(log_middle, jnp.maximum(epsilon + apart * jnp.arange(-1.0, 2.0), 0.0))
    return at, (high - low) / (jnp.minimum(apart, epsilon) + apart)


def _epsilon(run: OneRun, delta: Array) -> tuple[Array, Array]:
    """Returns bounds on epsilon at ``delta`` ().

    From above by any epsilon at which delta, from above, is small enough; from below by any at which it is, from below,
    still too large. Both are found by bisection, whose end on the safe side is returned.
    """
    zero = jnp.zeros_like(delta)

    def enough(side: Array, epsilon: Array) -> Array:
        lower, upper = _profile(run, epsilon)
        return jnp.where(side > 0, upper <= delta, ~(lower > delta))

    def sought(side: Array) -> Array:
        def grow(state: tuple[Array, Array]) -> tuple[Array, Array]:
            return state[1], 4 * state[1]

        def too_small(state: tuple[Array, Array]) -> Array:
            return ~enough(side, state[1]) & (state[1] < LARGEST)

        def shrink(state: tuple[Array, Array]) -> tuple[Array, Array]:
            return zero, state[1] / 16

        def too_large(state: tuple[Array, Array]) -> Array:
            return (state[0] == 0) & (state[1] > 16 * TINY) & enough(side, state[1] / 16)

        low, high = jax.lax.while_loop(too_small, grow, (zero, jnp.full_like(delta, 1e-3)))
        _, high = jax.lax.while_loop(too_large, shrink, (low, high))

        def halve(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            i, low, high = state
            middle = low + (high - low) / 2
            suffices = enough(side, middle)
            return i + 1, jnp.where(suffices, low, middle), jnp.where(suffices, middle, high)

        def apart(state: tuple[Array, Array, Array]) -> Array:
            i, low, high = state
            return (i < ROUNDS) & (high - low > 2 * roundoff() * high)

        _, low, high = jax.lax.while_loop(apart, halve, (jnp.int32(0), low, high))
        # Every end was seen to be on its side; asked again, in another program, its rounding might differ. What is
        # too large to be sought is not known to be enough.
        found = jnp.where(side > 0, jnp.where(high < LARGEST, high, jnp.inf), low)
        return jnp.where(enough(side, zero), 0.0, found)

    upper, lower = jax.lax.map(sought, jnp.asarray([1.0, -1.0]))
    return lower, upper
