"""Monte Carlo estimates of delta, with intervals that may fail, for mechanisms whose bounds leave a gap.

Of both mechanisms :func:`jaxacct.delta` has bounds, from above and from below; draws say where between them the
dominating pair lies. The result is neither a bracket nor certified. An :class:`Interval` holds the truth except with a
probability that it carries: over the draws, which are fresh from the operating system, and as far as the generator's
bits pass for random ones. Draws are made in float64, in blocks, on JAX's device: what rounding does to them, a relative
1e-10 or so, is not counted.

*The interval.* For a dominating pair (P, Q) with the likelihood ratio L, delta(epsilon) is the mean of
(1 - e^epsilon / L)+ under P, and for adding an example that of (1 - e^epsilon L)+ under Q. Both variables lie in
[0, 1]. If such a variable has the mean mu, the mean of n draws is as far from it as m or farther with a probability of
at most e^(-n kl(m, mu)) on either side, kl the divergence of two coins (Hoeffding 1963, "Probability inequalities for
sums of bounded random variables", Theorem 1). An end of an interval is where this is the probability to miss it: for
rare events nearly that of Clopper and Pearson.

*What may be released.* Fix epsilon and delta. Draw once, and train if the upper end is at most delta, else release
nothing. All of it is (epsilon, max(delta, eta))-DP, eta the failure probability: the draws know nothing of the data, so
that the profile is the mechanism's times the probability to go ahead. That is at most eta where the mechanism's own
exceeds delta, and the profile is at most delta where it does not. Drawing again until it passes adds eta up.
Source: Wang et al. (2023), "A randomized approach for tight privacy accounting", and arXiv 2605.07072.
"""

from __future__ import annotations

import functools
import math
import secrets
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct import validation
from jaxacct.mechanisms import BallsInBins, RandomAllocation
from jaxacct.mechanisms.mechanism import DIRECTIONS, Relation, check_mechanism
from jaxacct.numerics.precision import as_float64, scope
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.numerics.root_search import bisect

__all__ = ["BallsInBins", "Interval", "delta"]


Kind: TypeAlias = tuple[int, int, int]
"""Type of the static numbers of a program: runs, batches, and participations, 0 of these for :class:`BallsInBins`."""


@dataclass(frozen=True)
class Interval:
    """Confidence interval of delta: an estimate, and not a bound.

    Attributes:
        lower, upper: hold the truth except with the failure probability.
        estimate: the mean.
        failure_probability: eta, of both ends together; of each it is half.
        draws: how many were made, for each direction.

    >>> Interval(lower=0.0, estimate=1e-6, upper=8e-6, failure_probability=1e-7, draws=10**6).verifies(1e-5)
    True
    """

    lower: float
    estimate: float
    upper: float
    failure_probability: float
    draws: int

    @takes_python_values
    def verifies(self, delta: float) -> bool:
        """Returns whether a mechanism may go ahead as (epsilon, max(delta, failure_probability))-DP.

        Guarantee: that of estimate, verify, release (:mod:`jaxacct.monte_carlo`), for one set of draws and a delta, an
        epsilon and a failure probability that were fixed before.
        """
        validation.check_delta(delta)
        return self.upper <= delta


@takes_python_values
def delta(
    mechanism: RandomAllocation | BallsInBins,
    steps: int,
    epsilon: float,
    *,
    draws: int = 10**6,
    failure_probability: float = 1e-7,
    relation: Relation = "add_or_remove",
    key: jax.Array | None = None,
) -> Interval:
    """Returns a confidence interval of delta at an epsilon, of the pair that dominates all steps.

    Args:
        mechanism: one epoch by random allocation, whatever its participations, or a run of balls in bins.
        steps: how many of it are composed, drawn apart: epochs, or runs.
        epsilon: at least 0.
        draws: how many, rounded up to whole blocks; it should be 100 over delta or more. 10^6 of 100 batches take some
            10 s of one CPU core for each direction.
        failure_probability: eta, in (0, 1). Put it inside the delta that is promised: :meth:`Interval.verifies`.
        relation: "add_or_remove", "remove", "add" or "zero_out".
        key: a typed key, for tests; by default one from the operating system, without which nothing is promised.

    Guarantee: an estimate with an interval that misses the truth with at most the failure probability, and never a
    :class:`~jaxacct.bounds.Bounds`: :mod:`jaxacct.monte_carlo` says how a release may rest on it.

    Raises TypeError or ValueError where an argument is out of range, or products of likelihood ratios are too large.

    >>> epoch = RandomAllocation(noise_multiplier=1.0, batches=10, participations=2)
    >>> found = delta(epoch, 1, epsilon=1.0, draws=10**4, relation="remove", key=jax.random.key(0))
    >>> 0.02 < found.lower < found.estimate < found.upper < 0.08
    True
    """
    validation.check_numbers(epsilon=epsilon)
    _check_arguments(mechanism, steps, epsilon, draws, failure_probability)
    validation.check_one_of(relation, "relation", RandomAllocation.relations, f" by {type(mechanism).__name__}")
    if key is None:
        words = jnp.asarray(np.frombuffer(secrets.token_bytes(8), np.uint32))
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
    if isinstance(mechanism, BallsInBins):
        shifts, kind = mechanism.shifts(), (steps, mechanism.batches, 0)
        width = shifts.shape[1]
    else:
        shifts, kind = np.zeros((0, 0)), (steps, int(np.asarray(mechanism.batches)), mechanism.participations)
        width = 4 * (mechanism.participations + 1)
    # A block of draws holds 2^21 numbers. Memory and speed only.
    rows = min(max(2**21 // width, 1), draws)
    blocks = -(-draws // rows)
    noise = float(np.asarray(mechanism.noise_multiplier))
    means = []
    with scope():
        for direction in DIRECTIONS[relation]:
            key, own = jax.random.split(key)
            total = _total(own, blocks, noise, shifts, float(epsilon), rows, kind, direction == "remove")
            means.append(float(total) / (rows * blocks))
    # The larger delta is at most the larger upper end, and at least every lower end. So only one upper end may fail,
    # that of the larger delta, but any of the lower ones: these share their half of the probability.
    lower = max(end(mean, rows * blocks, failure_probability / 2 / len(means), is_upper=False) for mean in means)
    upper = max(end(mean, rows * blocks, failure_probability / 2, is_upper=True) for mean in means)
    return Interval(lower, max(means), upper, failure_probability, rows * blocks)


def _check_arguments(mechanism: object, steps: int, epsilon: float, draws: int, failure_probability: float) -> None:
    if not isinstance(mechanism, (RandomAllocation, BallsInBins)):
        raise TypeError(
            f"mechanism = {mechanism!r} is not drawn here: give RandomAllocation or monte_carlo.BallsInBins; of others "
            "jaxacct.delta has certified bounds."
        )
    steps = validation.check_count(steps, "steps", "how many are composed")
    validation.check_epsilon(epsilon)
    draws = validation.check_count(draws, "draws", "the number of draws")
    validation.check_delta(failure_probability, "failure_probability")
    check_mechanism(mechanism)
    noise = np.asarray(mechanism.noise_multiplier)
    if noise.ndim or not 0.05 <= noise < math.inf or np.ndim(mechanism.batches):
        raise ValueError(f"noise_multiplier = {noise} is out of range: give one mechanism, with noise from 0.05 on.")
    if isinstance(mechanism, RandomAllocation):
        t, k = int(np.asarray(mechanism.batches)), mechanism.participations
        # Sums of products of an epoch's likelihood ratios are to stay below e^600; float64 ends at e^709. Draws that
        # are not finite count as 1, so that a larger value could break the lower end.
        if k * 8 / noise + math.log(math.comb(t, k)) > 600.0:
            raise ValueError(
                f"participations = {k} of {t} batches with a noise multiplier of {noise}: sums of products of "
                "likelihood ratios are beyond float64: give fewer, or take jaxacct.delta for an upper bound."
            )


@functools.partial(jax.jit, static_argnames=("rows", "kind", "removed"))
def _total(
    key: Array, blocks: Array, noise: Array, shifts: Array, epsilon: Array, rows: int, kind: Kind, removed: bool
) -> Array:
    """Returns the sum of all draws' values in [0, 1]; one that is not finite counts as 1."""
    steps, t, k = kind

    def losses(key: Array) -> Array:
        if not k:
            return _of_places(key, noise, shifts, rows, removed)
        return _of_allocation(key, noise, t, k, rows, removed)

    # A block's key is folded from its number: no draw depends on how many blocks there are. Losses of one draw are
    # added up over the composed steps, and the values of a block enter the sum.
    def block(i: Array, total: Array) -> Array:
        keys = jax.random.split(jax.random.fold_in(key, i), steps)
        loss, _ = jax.lax.scan(lambda loss, own: (loss + losses(own), None), jnp.zeros(rows), keys)
        beyond = jnp.minimum(epsilon - loss if removed else epsilon + loss, 0.0)
        return total + jnp.sum(jnp.where(jnp.isfinite(loss), -jnp.expm1(beyond), 1.0))

    return jax.lax.fori_loop(0, blocks, block, as_float64(0.0))


def _of_allocation(key: Array, s: Array, t: int, k: int, rows: int, removed: bool) -> Array:
    """Returns draws of log e_k(X_1, ..., X_t) - log C(t, k): by symmetry the example is in the first k steps.

    All X are scaled by one factor, so that products of k stay numbers.
    """
    scale = 0.5 / s**2 if removed else 3 / s - 0.5 / s**2

    # Elementary symmetric sums: after i factors ``sums[j]`` is e_j of them. One factor is drawn at a time, so that only
    # k + 1 rows are held, whatever t is.
    def step(sums: Array, i: Array) -> tuple[Array, None]:
        z = jax.random.normal(jax.random.fold_in(key, i), (rows,), jnp.float64)
        moved = jnp.where(removed & (i < k), 1 / s**2, 0.0)
        x = jnp.exp(z / s + moved - 0.5 / s**2 - scale)
        return sums.at[1:].add(sums[:-1] * x[None]), None

    sums, _ = jax.lax.scan(step, jnp.zeros((k + 1, rows)).at[0].set(1.0), jnp.arange(t))
    return jnp.log(sums[-1]) + k * scale - math.log(math.comb(t, k))


def _of_places(key: Array, s: Array, shifts: Array, rows: int, removed: bool) -> Array:
    """Returns draws of the loss of the mixture over places: log of the mean likelihood ratio."""
    of_place, of_noise = jax.random.split(key)
    z = jax.random.normal(of_noise, (rows, shifts.shape[1]), jnp.float64) * s
    if removed:
        z += shifts[jax.random.randint(of_place, (rows,), 0, len(shifts))]
    scores = (z @ shifts.T - jnp.sum(shifts**2, axis=1)[None] / 2) / s**2
    return jax.nn.logsumexp(scores, axis=1) - np.log(len(shifts))


def end(mean: float, draws: int, probability: float, *, is_upper: bool) -> float:
    """Returns the end of the interval above or below a mean: where draws kl(mean, end) is log(1/probability)."""
    m, most = min(max(mean, 0.0), 1.0), -math.log(probability) / draws

    def kl(u: float) -> float:
        one = m * math.log(m / u) if m > 0 else 0.0
        return one + ((1 - m) * math.log((1 - m) / (1 - u)) if m < 1 else 0.0)

    # The divergence is beyond the level at the end returned, and within it at the mean: the wider end of a bracket.
    return bisect(lambda u: kl(u) > most, 1.0 if is_upper else 0.0, m, steps=200)
