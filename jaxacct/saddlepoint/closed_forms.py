"""Brackets without a contour: for one run of any mechanism, and for any number of plain Gaussian runs.

A pair bounds the privacy profile of one run from below and from above (:meth:`.DominatingPair.one_run`); bounds on
epsilon lie where these bounds meet delta. Plain Gaussian runs amount to one: Gaussian losses with means mu_i = 1/s_i
apart add up to one with mu^2 = sum k_i mu_i^2, whose profile and its inverse are closed forms
(:mod:`.mechanisms.normal`).

In reading order: the four closed forms, :class:`OneRun`, :class:`PlainGaussian`, :class:`SampledGaussianRun` and
:class:`PlainLaplace`; :func:`find_closed_forms`, which recognizes them in a composition; :func:`of_plain`, from the
user's Gaussian mechanisms to a bracket; :func:`bounds_of_each` and :func:`log_delta_at`, the answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.bounds import Bounds
from jaxacct.composition import Facts, ForEpsilon, Parts, Question, SingleRun, StaticFacts, facts_of
from jaxacct.mechanisms.gaussian import SubsampledGaussianPair
from jaxacct.mechanisms.mechanism import Relation, counts_of, is_count, parts_of
from jaxacct.mechanisms.normal import (
    SIDES,
    bounds_of_log_delta,
    epsilon_bounds,
    sampled_delta,
    sampled_epsilon,
)
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.mechanisms.shifted_noise import ShiftedNoisePair
from jaxacct.numerics.arithmetic import arithmetic, roundoff
from jaxacct.numerics.batched_loops import stack
from jaxacct.numerics.precision import TINY, as_float64, exact_float64, is_concrete, log_complement
from jaxacct.numerics.programs import compiled

FIRST, GROWTH = 1e-3, 16.0
"""First positive epsilon tried, and the factor from one to the next until there is one on either side. Speed only."""


class OneRun(NamedTuple):
    """A single run of a pair, and its facts."""

    pair: DominatingPair
    facts: Facts

    def profile(self, epsilon: Array) -> Array:
        """Returns bounds (2,), below and above, on delta at an epsilon (), infinite losses included."""
        # A pair's profile counts finite losses only; infinite ones add their mass at every epsilon.
        found = jnp.stack(self.pair.one_run(epsilon))
        if self.facts.masses is not None:
            found = (found + jnp.stack(self.facts.masses)) * (1 + 2 * roundoff() * SIDES)
        return _proper(found, epsilon, self.facts)

    def epsilon(self, delta: Array) -> Array:
        """Returns bounds (2,), below and above, on epsilon at a delta ().

        An upper bound is any epsilon at which the bound on delta from above is small enough; a lower bound is any at
        which the bound on delta from below is still too large. Both ends are found in one loop, by bisection between
        the largest epsilon that was seen to be too small and the least that was seen to be enough. The epsilon
        returned was itself evaluated in the loop: evaluated again in another program, it might round differently.
        """
        # Epsilon, in nats, beyond which the search ends. Sound for any value.
        largest = 1e300
        # Largest number of evaluations of a profile in search of an epsilon. Sound for any number. Some 250 reach the
        # ends of float64, and 60 more are halvings.
        rounds = 400
        zero, side = jnp.zeros((2,)), SIDES > 0

        def halve(state: Any) -> Any:
            count, x, low, high = state
            found = jax.vmap(self.profile)(x)
            # NaN says nothing: from above it counts as too large a delta, and from below as one that is small enough.
            enough = jnp.where(side, found[:, 1] <= delta, ~(found[:, 0] > delta))
            low, high = jnp.where(enough, low, x), jnp.where(enough, x, high)
            # Geometric steps as long as an end is missing, or the lower one is 0 and far off; halvings from then on.
            outer = jnp.where(high < jnp.inf, high / GROWTH, jnp.maximum(low * GROWTH, FIRST))
            apart = (low == 0) & (high > GROWTH * TINY) | (high == jnp.inf)
            return count + 1, jnp.where(apart, outer, low + (high - low) / 2), low, high

        def is_open(state: tuple[Array, ...]) -> Array:
            count, _, low, high = state
            return (count < rounds) & jnp.any((low < (1 - 2 * roundoff()) * high) & (high > TINY) & (low < largest))

        # The state is the count and, for both sides, the epsilon to evaluate and the ends of the interval. Epsilon 0
        # comes first, as it is not known to be too small. The loop ends when the ends are neighbours, or after as many
        # evaluations as ``rounds`` says.
        *_, low, high = jax.lax.while_loop(is_open, halve, (jnp.int32(0), zero, zero, zero + jnp.inf))
        return jnp.where(side, high, low)


class PlainGaussian(NamedTuple):
    """Plain Gaussian runs: N(mu, 1) against N(0, 1)."""

    mu: Array
    """Distance of the means; replaced by 1 where it is not in (0, inf)."""
    error: float
    """Bound on the relative error of ``mu``; known without tracing."""
    facts: Facts

    def profile(self, epsilon: Array) -> Array:
        """Returns bounds (2,), below and above, on delta at an epsilon ()."""
        # Delta grows with mu, so the ends of mu give the ends of delta.
        mu = self.mu * (1 + self.error * SIDES)
        found = jnp.exp(bounds_of_log_delta(mu, jnp.broadcast_to(epsilon, (2,))))
        return _proper(found * (1 + arithmetic().function * SIDES), epsilon, self.facts)

    def epsilon(self, delta: Array) -> tuple[Array, Array]:
        """Returns bounds, below and above, on epsilon at a delta ()."""
        return epsilon_bounds(self.mu, delta, self.error)


class SampledGaussianRun(NamedTuple):
    """One Gaussian run on a Poisson sample, from which the example is removed."""

    noise: Array
    sampling_rate: Array
    facts: Facts

    def profile(self, epsilon: Array) -> Array:
        """Returns bounds (2,), below and above, on delta at an epsilon ()."""
        return _proper(jnp.stack(sampled_delta(1 / self.noise, self.sampling_rate, epsilon, True)), epsilon, self.facts)

    def epsilon(self, delta: Array) -> tuple[Array, Array]:
        """Returns bounds, below and above, on epsilon at a delta ()."""
        return sampled_epsilon(1 / self.noise, self.sampling_rate, delta)


class PlainLaplace(NamedTuple):
    """One run of Laplace noise, shifted against not shifted.

    With c the shift over the scale, delta is 1 - e^((eps - c)/2) for eps below c, and 0 above.
    """

    shift: Array
    facts: Facts

    def profile(self, epsilon: Array) -> Array:
        """Returns bounds (2,), below and above, on delta at an epsilon ()."""
        # The shift is right to 2 roundings, and so is its distance from epsilon.
        past = epsilon - self.shift * (1 + 4 * roundoff() * SIDES)
        found = -jnp.expm1(jnp.minimum(past / 2, 0.0)) * (1 + 2 * arithmetic().function * SIDES)
        return _proper(found, epsilon, self.facts)

    def epsilon(self, delta: Array) -> tuple[Array, Array]:
        """Returns bounds, below and above, on epsilon at a delta ()."""
        less = -2 * log_complement(delta)
        error = 4 * roundoff() * self.shift + 2 * arithmetic().function * less
        ends = jnp.maximum(self.shift - less + error * SIDES, 0.0)
        return ends[0], ends[1]


Closed: TypeAlias = OneRun | PlainGaussian | SampledGaussianRun | PlainLaplace
"""A composition in closed form."""


def _proper(found: Array, epsilon: Array, facts: Facts) -> Array:
    """Returns bounds on a delta made proper: NaN becomes a trivial bound, and an upper bound is not below the range."""
    found = jnp.where(jnp.isnan(found), np.array([0.0, 1.0]), jnp.minimum(found, 1.0))
    # For epsilon below the largest loss delta is positive, and TINY is the least upper bound that is not flushed to 0.
    # So no such epsilon passes for a delta of 0.
    least = np.array([0.0, TINY])
    return jnp.maximum(found, least if facts.suprema is None else jnp.where(epsilon < facts.suprema[1], least, 0.0))


def find_closed_forms(directions: list[Parts], known: SingleRun | None) -> list[Closed]:
    """Returns every direction as a closed form; none at all where one direction has none.

    ``known`` is what :func:`jaxacct.composition.single_run` says of the composition: if anything, a traced count is 1
    or 0.
    """
    found = [_as_one_run(parts, known) for parts in directions]
    runs = [run for run in found if run is not None]
    if len(runs) < len(found):
        return []
    # The profiles of a sampled run with the example added and removed differ by a share, and the removal has the larger
    # one (:func:`.normal.sampled_delta`): it alone decides.
    removed: list[Closed] = [run for run in runs if isinstance(run, SampledGaussianRun)]
    return removed if len(removed) == 1 and all(map(_is_sampled, runs)) else runs


def _is_sampled(run: Closed) -> bool:
    """Returns whether a closed form is one run of a sampled Gaussian mechanism, removed or added."""
    return isinstance(run, SampledGaussianRun) or (
        isinstance(run, OneRun) and isinstance(run.pair, SubsampledGaussianPair)
    )


def _as_one_run(parts: Parts, known: SingleRun | None) -> Closed | None:
    """Returns a composition as a closed form, or None where it is not seen to have one."""
    if all(_is_gaussian(pairs) for pairs, _ in parts):
        return _gaussian(parts)
    is_known = known is not None and [len(counts) for _, counts in parts] == [1]
    if is_known or _runs_once(parts):
        # The row that is run once; where counts are traced there is only one row.
        rows = ((pairs, counts, i) for pairs, counts in parts for i in range(len(counts)))
        pair = next(_entry(pairs, i) for pairs, counts, i in rows if is_known or counts[i] == 1)
        # ``known`` may have promised too much: a count other than 0 or 1 makes the answer invalid.
        count, facts = sum(jnp.sum(counts) for _, counts in parts), facts_of(parts)
        facts = facts._replace(is_valid=facts.is_valid & ((count == 1) | (count == 0)))
        if _is_plain_laplace(pair):
            return _laplace(pair, facts)
        if isinstance(pair, SubsampledGaussianPair) and is_concrete(pair.removes) and np.all(np.asarray(pair.removes)):
            return SampledGaussianRun(jnp.asarray(pair.noise_multiplier), jnp.asarray(pair.sampling_rate), facts)
        return OneRun(pair, facts)
    return None


def _is_plain_laplace(pair: DominatingPair) -> bool:
    """Returns whether a pair is seen to be Laplace noise around one location against another."""
    return (
        isinstance(pair, ShiftedNoisePair)
        and pair.noise == "laplace"
        and is_concrete(pair.p_weights, pair.q_weights)
        and np.array_equal(pair.p_weights, [0.0, 1.0])
        and np.array_equal(pair.q_weights, [1.0, 0.0])
    )


@compiled
def _laplace(pair: DominatingPair, facts: Facts) -> PlainLaplace:
    known: Any = pair
    locations = jnp.asarray(known.locations)
    return PlainLaplace(jnp.abs(locations[1] - locations[0]) / known.scale, facts)


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
def _gaussian(parts: Parts) -> PlainGaussian:
    """Returns the one Gaussian run that plain Gaussian runs amount to."""
    noises = [jnp.asarray(pairs.noise_multiplier) for pairs, _ in parts]  # type: ignore[attr-defined]
    return plain([*zip(noises, (jnp.asarray(counts) for _, counts in parts), strict=True)])


def plain(rows: list[tuple[Array, Array]], is_counted: bool = False) -> PlainGaussian:
    """Returns the one run that Gaussian runs amount to, given noise multipliers and counts, () or (m,).

    Infinite noise, or no run, costs nothing: mu is 0. ``is_counted`` says that counts are known to be in range.
    """
    columns = zip(*rows, strict=True)
    noise, counts = rows[0] if len(rows) == 1 else (jnp.concatenate([jnp.ravel(x) for x in each]) for each in columns)
    if noise.size == counts.size == 1:  # without an axis the program is shorter
        noise, counts = (x.reshape(()) if x.ndim else x for x in (noise, counts))
        mu = _kept_above(jnp.sqrt(counts) / noise, noise)
        if not is_counted:
            mu = jnp.where(counts == 0, 0.0, jnp.where(is_count(counts), mu, jnp.nan))
    else:
        # A row that is not run counts as infinite noise, whatever its own is.
        noise = jnp.where(counts == 0, jnp.inf, noise)
        # Noise is taken relative to the least, so that neither squares nor their inverses leave the range of float64.
        least = jnp.min(noise)
        share = jnp.where(noise < jnp.inf, least / noise, 0.0)
        mu = _kept_above(jnp.sqrt(jnp.sum(counts * share**2)) / least, least)
        mu = jnp.where(jnp.all(is_count(counts)), mu, jnp.nan)
    ordinary = (mu > 0) & (mu < jnp.inf)
    # Roundings: a quotient, its square, its product with a count, a sum of so many terms, then the root, which halves
    # the relative error of all these, and a quotient again.
    error = (counts.size + 8) / 2 * roundoff()
    return PlainGaussian(
        jnp.where(ordinary, mu, 1.0), error, Facts(ordinary | (mu == 0), mu == 0, jnp.ones(()), None, None)
    )


def _kept_above(mu: Array, noise: Array) -> Array:
    """Returns mu, which may be flushed to 0 below the smallest normal number, as above 0 where noise is finite.

    Its bounds on delta do not tell: deltas of so small a mu are below that number themselves.
    """
    return jnp.where((noise > 0) & (noise < jnp.inf), jnp.maximum(mu, TINY), mu)


def from_user(relation: Relation, facts: StaticFacts, mechanism: Any, steps: Any) -> PlainGaussian:
    """Returns the one run that plain Gaussian mechanisms amount to."""
    rows = []
    for part, count in parts_of(mechanism, steps):
        pair: Any = part.dominating_pairs(relation)[0]
        noise, count = exact_float64(pair.noise_multiplier), as_float64(count if facts.has_runs else counts_of(count))
        rows.append((noise, count if noise.shape == count.shape else jnp.broadcast_to(count, noise.shape)))
    return plain(rows, is_counted=facts.has_runs)


@compiled(static=("relation", "facts"))
def of_plain(relation: Relation, facts: StaticFacts, mechanism: Any, steps: Any, question: Question) -> Bounds:
    """Returns the bracket of plain Gaussian runs from the user's arguments, by one program."""
    run = from_user(relation, facts, mechanism, steps)
    return _bounds_of(run, question.at(as_float64(question.value)), is_inside=facts.is_inside)


def _bounds_of(run: Closed, question: Question, is_inside: bool = False) -> Bounds:
    """Returns the bracket that answers a question of one number, which may be known to be inside of its range."""
    ends = run.epsilon(question.delta) if isinstance(question, ForEpsilon) else run.profile(question.epsilon)
    lower, upper = ends
    # Without an estimate: ``close`` takes the middle where the bracket is narrow enough.
    nowhere = Bounds(lower=lower, estimate=jnp.full_like(upper, jnp.nan), upper=upper, converged=jnp.asarray(False))
    return question.close(nowhere, run.facts, is_inside)


bounds_of = compiled(_bounds_of)


@compiled
def bounds_of_each(runs: list[Closed], question: Question) -> list[Bounds]:
    """Returns the bracket of each direction."""
    if len(runs) == 1 or len({jax.tree.structure(run) for run in runs}) > 1:
        return [bounds_of(run, question) for run in runs]
    # Two closed forms of one kind are evaluated by one loop, which halves the code to compile.
    both = jax.lax.map(lambda run: bounds_of(run, question), stack(*runs))
    return [jax.tree.map(lambda leaf, i=i: leaf[i], both) for i in range(len(runs))]


def log_delta_at(run: Closed, epsilon: Array, step: Array) -> tuple[Array, Array]:
    """Returns about log delta(epsilon), and its derivative in epsilon by a central difference; NaN where it is 0."""

    def log_middle(epsilon: Array) -> Array:
        lower, upper = run.profile(epsilon)
        return jnp.log(jnp.where(lower > 0, (lower + upper) / 2, jnp.nan))

    # Points below epsilon 0 are moved to it, and the quotient is over the distance that is left.
    apart = step * jnp.maximum(epsilon, step)
    low, at, high = jax.lax.map(log_middle, jnp.maximum(epsilon + apart * jnp.arange(-1.0, 2.0), 0.0))
    return at, (high - low) / (jnp.minimum(apart, epsilon) + apart)
