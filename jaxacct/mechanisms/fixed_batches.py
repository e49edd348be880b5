"""Mechanisms with Gaussian noise, alone or on sampled batches, and the pairs of shifted noise that dominate them.

A dominating pair is here the law of the noise moved by a random shift against that of the noise. Batch axes stand in
front of the axis of shifts. In reading order:

- pairs of shifted noise (:func:`shifted_pair`, :func:`subsampled_pair`, :func:`mixture_pair`), for Laplace noise, too,
- the Gaussian mechanism, alone and on Poisson samples,
- a random sensitivity (:class:`GaussianMixture`),
- batches of fixed size, without replacement, with Gaussian or Laplace noise,
- batches drawn with replacement,
- Poisson samples that are cut at a largest batch size.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.dominating_pairs import (
    DominatingPair,
    FinitePair,
    ShiftedNoisePair,
    SubsampledGaussianPair,
    WithoutReplacementPair,
)
from jaxacct.dominating_pairs.finite import PublicCoinPair
from jaxacct.mechanisms.group import PoissonSubsampledGroup, less_noise
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, is_endless, nothing_sampled
from jaxacct.numerics.arithmetic import with_pair_form
from jaxacct.numerics.precision import TINY, UNIT_ROUNDOFF, as_float64, is_concrete, outside, scope, within_scope
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.rounded_sum import binomial_tail


def shifted_pair(scale: ArrayLike, shift: float, noise: str) -> ShiftedNoisePair:
    """Returns noise around ``shift`` against noise around 0."""
    if is_concrete(scale):  # by NumPy: JAX compiles operations outside of programs one by one
        s: Any = np.asarray(scale, np.float64)
    else:
        with scope():
            s = as_float64(scale)
    # Made by NumPy, the weights are concrete within a trace, too.
    p, q = (np.broadcast_to(weights, (*s.shape, 2)) for weights in ([0.0, 1.0], [1.0, 0.0]))
    return ShiftedNoisePair(s, shift * p, p, q, noise)


def subsampled_pair(scale: ArrayLike, rate: ArrayLike, direction: str, noise: str) -> ShiftedNoisePair:
    """Returns the pair of a Poisson sample: an example of norm 1 is removed, added, or replaced by its opposite."""
    if is_concrete(scale, rate):
        return _subsampled_pair(np, np.asarray(scale, np.float64), np.asarray(rate, np.float64), direction, noise)
    with scope():
        return _subsampled_pair(jnp, as_float64(scale), as_float64(rate), direction, noise)


def _subsampled_pair(xp: Any, scale: Any, rate: Any, direction: str, noise: str) -> ShiftedNoisePair:
    s, q = xp.broadcast_arrays(scale, rate)
    none, one = xp.zeros_like(q), xp.ones_like(q)
    chosen = {
        "remove": ((none, one), (1 - q, q), (one, none)),
        "add": ((none, -one), (one, none), (1 - q, q)),
        "replace": ((none, one, -one), (1 - q, q, none), (1 - q, none, q)),
    }[direction]
    locations, p, q_weights = (xp.stack(values, axis=-1) for values in chosen)
    return ShiftedNoisePair(s, locations, p, q_weights, noise)


@within_scope
def mixture_pair(
    scale: ArrayLike,
    sensitivities: ArrayLike | Sequence[float],
    probabilities: ArrayLike | Sequence[float],
    direction: str,
) -> ShiftedNoisePair:
    """Returns the Gaussian pair of a random sensitivity against none ("remove"), or mirrored ("add").

    The base stands first, apart from a sensitivity of 0, so that P - Q is formed from the probabilities of the others.
    """
    s, shifts, weights = as_float64(scale), as_float64(sensitivities), as_float64(probabilities)
    batch = jnp.broadcast_shapes(s.shape, shifts.shape[:-1], weights.shape[:-1])
    shifts, weights = (jnp.broadcast_to(v, (*batch, v.shape[-1])) for v in (shifts, weights))
    # Probabilities given in float32, say, sum to one only nearly.
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    first = jnp.zeros((*batch, 1))
    locations = jnp.concatenate([first, shifts], axis=-1)
    mixture = jnp.concatenate([first, weights], axis=-1)
    base = jnp.concatenate([first + 1, jnp.zeros_like(weights)], axis=-1)
    s = jnp.broadcast_to(s, batch)
    if direction == "remove":
        return ShiftedNoisePair(s, locations, mixture, base)
    return ShiftedNoisePair(s, -locations, base, mixture)


# ----------------------------------------------------------------------------------------------------
# The Gaussian mechanism, and one step of DP-SGD
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian mechanism: a query of sensitivity 1 plus noise of the given standard deviation.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the query's L2 sensitivity. 0 means no noise, and
            every accountant answers with an infinite epsilon.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", one pair for all of them by symmetry; "replace",
    under which the query moves by up to 2, so that the pair is that of half the noise multiplier.

    >>> Gaussian(noise_multiplier=2.0).relations
    ('add_or_remove', 'remove', 'add', 'replace', 'zero_out')
    """

    noise_multiplier: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "replace", "zero_out")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.noise_multiplier)

    def of_group(self, size: int) -> Gaussian:
        return Gaussian(less_noise(self.noise_multiplier, size))

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the one pair ``N(1, s^2)`` against ``N(0, s^2)``; the opposite direction is its mirror image."""
        noise = self.noise_multiplier
        if "replace" in directions(self, relation):
            with scope():  # halving is exact in float64, but not in the type that it may have come in
                noise = as_float64(noise) / 2
        return (SubsampledGaussianPair(noise, 1.0, removes=True),)


@register_dataclass
@dataclass(frozen=True)
class PoissonSubsampledGaussian(Mechanism):
    """Gaussian mechanism on a Poisson sample: one step of DP-SGD.

    Each example takes part independently with probability ``sampling_rate``; the sum of the sampled examples' clipped
    contributions gets Gaussian noise.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the clipping norm.
        sampling_rate (...): probability of each example to be in the batch, in (0, 1]; shapes broadcast.

    Relations: "add_or_remove" (default), "remove", "add", "replace", and "zero_out", whose pairs are those of adding
    and removing: an example that contributes nothing is as good as none, and the others are sampled independently of
    it. Batches of fixed size, and shuffled ones, are *not* this mechanism.

    Source: dominating pairs, Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via
    characteristic function", Theorem 11. Replacement: the pair (1-q) N(0, s^2) + q N(1, s^2) against
    (1-q) N(0, s^2) + q N(-1, s^2). Let mu_v be the law of the output if the example at issue takes part and contributes
    v, given what else is sampled, and mu_0 if it does not. For c >= 1 and an event of mu_0-probability a,

        P - c Q = (1-q) (1-c) a + q (mu_v - c mu_w).

    By Neyman and Pearson mu_v is at most Phi(Phi^-1(a) + |v|/s) and mu_w at least Phi(Phi^-1(a) - |w|/s), with norms of
    at most 1; for v = -w of norm 1 one half-space attains both for every a, and so the pair's supremum is an upper
    bound. For c < 1 exchange the two. Other examples sampled shift all three laws alike; the divergence is convex.

    >>> PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01).sampling_rate
    0.01
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "replace", "zero_out")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return nothing_sampled(self.noise_multiplier, self.sampling_rate)

    def of_group(self, size: int) -> PoissonSubsampledGroup:
        return PoissonSubsampledGroup(self.noise_multiplier, self.sampling_rate, size)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (mixture, base) for "remove" and (base, mixture) for "add"; for "replace" two mixtures."""
        asked = directions(self, relation)
        if "replace" in asked:
            return (subsampled_pair(self.noise_multiplier, self.sampling_rate, "replace", "gaussian"),)
        return tuple(
            SubsampledGaussianPair(self.noise_multiplier, self.sampling_rate, removes=direction == "remove")
            for direction in asked
        )


# ----------------------------------------------------------------------------------------------------
# Gaussian noise on a random sensitivity
# ----------------------------------------------------------------------------------------------------

SUM_TOLERANCE = 1e-6
"""Largest distance from 1 of the sum of concrete probabilities: as much as float32 may cause. They are normalized, so
it is sound for any value."""


@register_dataclass
@dataclass(frozen=True)
class GaussianMixture(Mechanism):
    """Mixture-of-Gaussians mechanism: an example moves the query by a random amount, to which Gaussian noise is added.

    It covers a Poisson sample, an example that takes part a random number of times, and one row of a matrix mechanism
    with sampling.

    Attributes:
        noise_multiplier (...): standard deviation of the noise, in the units of the sensitivities.
        sensitivities (..., m): what the example may add to the query, at least 0 each, not all 0.
        probabilities (..., m): their probabilities, fixed beforehand; sum 1 (to 1e-6; they are normalized).

    A sequence of n mechanisms has sensitivities and probabilities of shape (n, m); the noise may stay a scalar.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out".

    Raises ValueError where a concrete field is out of range or shapes do not match; traced ones cannot raise and cost
    inf instead.

    Source: Choquette-Choo, Ganesh, Steinke and Thakurta (2024), "Privacy amplification for matrix mechanisms", whose
    mixture-of-Gaussians mechanisms these are. Sensitivities that are vectors are dominated by their norms there.

    >>> GaussianMixture(1.0, sensitivities=[0.0, 1.0, 2.0], probabilities=[0.9, 0.09, 0.01]).batch_shape
    ()
    """

    noise_multiplier: ArrayLike
    sensitivities: Float[ArrayLike, "*batch m"] | Sequence[float]
    probabilities: Float[ArrayLike, "*batch m"] | Sequence[float]

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out")
    tight: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("sensitivities", "probabilities"):
            value = getattr(self, name)
            if isinstance(value, (list, tuple)):  # which as a pytree would have a leaf for each number
                object.__setattr__(self, name, np.asarray(value, np.float64))
        self.validate()

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sensitivities(self.sensitivities)
        validation.check_probabilities(self.probabilities, "probabilities", SUM_TOLERANCE)
        if not all(hasattr(value, "shape") for value in (self.sensitivities, self.probabilities)):
            return  # JAX has put other things into the fields
        shape, other, noise = (
            np.shape(value) for value in (self.sensitivities, self.probabilities, self.noise_multiplier)
        )
        if shape != other:
            raise ValueError(
                f"sensitivities of shape {shape} do not match probabilities of shape {other}: give one probability for "
                "each sensitivity."
            )
        if noise not in ((), shape[:-1]):
            raise ValueError(
                f"noise_multiplier of shape {noise} does not match sensitivities of shape {shape}: give a scalar, or "
                "one noise multiplier for each row."
            )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields, without that of the sensitivities."""
        return np.shape(self.probabilities)[:-1]

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.noise_multiplier)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (mixture, base) for "remove" and (base, mixture) for "add"."""
        return tuple(
            mixture_pair(self.noise_multiplier, self.sensitivities, self.probabilities, direction)
            for direction in directions(self, relation)
        )


# ----------------------------------------------------------------------------------------------------
# Batches of fixed size, sampled without replacement
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class GaussianWithoutReplacement(Mechanism):
    """Gaussian mechanism on a batch of fixed size, drawn uniformly without replacement, afresh for every step.

    Attributes:
        noise_multiplier (...): standard deviation of the noise over the clipping norm. (Replacing an example changes
            the sum of a batch by up to twice that norm: the pair counts this.)
        sampling_rate (...): batch size over the number of examples, in (0, 1]; shapes broadcast.

    Relations: "replace" (default), under which the number of examples is public; "zero_out", which is a case of it and
    has the same pair, larger than need be: a record of zeros still takes another's place in the batch. Batches from one
    shuffle of the data are *not* this mechanism.

    Source: Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via characteristic function",
    Theorem 11; Balle, Barthe and Gaboardi (2018), "Privacy amplification by subsampling", Theorem 9.

    >>> GaussianWithoutReplacement(noise_multiplier=2.0, sampling_rate=0.01).relations
    ('replace', 'zero_out')
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = ("replace", "zero_out")

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return nothing_sampled(self.noise_multiplier, self.sampling_rate)

    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        return (WithoutReplacementPair(self.noise_multiplier, self.sampling_rate, noise="gaussian"),)


@register_dataclass
@dataclass(frozen=True)
class LaplaceWithoutReplacement(Mechanism):
    """Laplace mechanism on a batch of fixed size, drawn uniformly without replacement, afresh for every step.

    Attributes:
        scale (...): scale of the Laplace noise over the L1 norm of one example's contribution. (Replacing an example
            changes the sum by up to twice that norm: the pair counts this.)
        sampling_rate (...): batch size over the number of examples, in (0, 1]; shapes broadcast.

    Relations: "replace" (default), under which the number of examples is public; "zero_out" as a case of it.

    Source: as for :class:`GaussianWithoutReplacement`; many coordinates as for :class:`.Laplace`.

    >>> len(LaplaceWithoutReplacement(scale=2.0, sampling_rate=0.01).dominating_pairs())
    1
    """

    scale: ArrayLike
    sampling_rate: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = ("replace", "zero_out")

    def validate(self) -> None:
        validation.check_noise_scale(self.scale)
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return nothing_sampled(self.scale, self.sampling_rate)

    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        return (WithoutReplacementPair(self.scale, self.sampling_rate, noise="laplace"),)


# ----------------------------------------------------------------------------------------------------
# Batches drawn with replacement, in which an example may be several times
#
# The pair is found on the host, once for each mechanism: the law of an example's number of copies, a bound on the
# privacy profile at finitely many c, and the masses of a pair with a profile that is nowhere less.
# ----------------------------------------------------------------------------------------------------

NEGLIGIBLE = 1e-30
"""Probability, given that an example is drawn, of the numbers of copies, and of the losses, that are not told apart:
they count as infinite losses. Sound for any value."""

DIGITS, MOST_COPIES = 60, 512
"""Decimal digits of the copies' law, and most copies that are counted. Fewer digits would make the law inexact; the
second is a limit of work alone."""

LEAST_NOISE = 0.1
"""Smallest noise multiplier; with less, losses are too large to be told apart."""

POINTS = 1024
"""Number of points above c = 1 at which the profile is bounded, and so of the pair's losses above 0. Sound for any
value; twice as many cost twice as much."""

LARGEST_LOSS = 600.0
"""Largest loss of the pair that is finite, in nats: its exponential has to be a float64 number. Larger losses count as
infinite, so it is sound for any value below that."""

ROUNDING = 1e-13
"""Bound on the relative error of a normal tail, and of sums of them: a few units of erfc, the error of its argument,
and some hundred terms. The proof rests on it: it must not be lowered."""

SLACK = 1e-11
"""Relative amount by which the profile is raised, for the rounding of the masses made of it. Chosen by measuring;
:func:`_masses` checks that it was enough, and raises otherwise."""


@register_dataclass
@dataclass(frozen=True)
class GaussianWithReplacement(Mechanism):
    """Gaussian mechanism on a batch of B draws from n examples, each draw uniform and independent of the others.

    :meth:`for_batches` makes one from n and B; noise is relative to the norm of one example's contribution.

    Attributes:
        losses (..., m): privacy losses of the pair, including the infinite ones.
        p (..., m): their probabilities under P.
        q (..., m): their probabilities under Q.

    Relations: "replace" (default), under which n is public.

    Formal guarantee: the pair dominates. It is above that of the worst data sets by the little that the proof gives
    away (it is not :attr:`~.Mechanism.tight`).

    Proof. Let x be replaced by x', c >= 1, and H_c the hockey-stick divergence. Each of the B draws is the example with
    probability 1/n, independently, and else another, y_j: given all y_j, the sum is that of the y_j, moved by x - y_j,
    or x' - y_j, for each draw that is the example. With probability 1 - p = (1 - 1/n)^B no draw is the example; then
    the law is R either way, and else P' or Q'. By advanced joint convexity, with a = 1 + (c-1)/p and b = c/a =
    (1-p)/a + p,

        H_c((1-p) R + p P', (1-p) R + p Q') = p H_a(P', (1-b) R + b Q') <= p ((1-b) H_a(P', R) + b H_a(P', Q')).

    P' is a mixture of R moved by vectors of norm 2K at most, K the number of copies given that there is one. Of all
    events of one probability under R a half-space has the most under each part of it, by Neyman and Pearson: so
    H_a(P', R) is at most S(a), that of the mixture of N(2K, s^2) against N(0, s^2) on a line. Given which draws are the
    example, P' and Q' are K |x - x'| apart: H_a(P', Q') is at most V(a), the mean of H_a(N(2K, s^2), N(0, s^2)).
    Therefore H_c <= p ((1-p) (S + (V - S)/a) + p V). The divergence is convex in c, and for c < 1 it is that of x and
    x' exchanged. So it is at most the greatest convex function below this bound at finitely many c, which is the
    profile of a pair of as many losses and their mirror images.

    Source: advanced joint convexity, Balle, Barthe and Gaboardi (2018), "Privacy amplification by subsampling",
    Theorem 2, and Theorem 10 for p V, which this bound replaces; mixtures of vectors, Choquette-Choo, Ganesh, Steinke
    and Thakurta (2024), "Privacy amplification for matrix mechanisms"; finitely many losses, Doroshenko et al. (2022),
    "Connect the dots".

    >>> from jaxacct import epsilon
    >>> drawn = GaussianWithReplacement.for_batches(2.0, num_examples=1000, batch_size=10)
    >>> bool(epsilon(drawn, steps=100, delta=1e-5, relation="replace", points=1024).upper < 0.9)
    True
    """

    losses: Float[ArrayLike, "*batch m"] | Sequence[float]
    p: Float[ArrayLike, "*batch m"] | Sequence[float]
    q: Float[ArrayLike, "*batch m"] | Sequence[float]

    relations: ClassVar[tuple[Relation, ...]] = ("replace",)
    may_fail: ClassVar[bool] = True

    @classmethod
    def for_batches(cls, noise_multiplier: float, num_examples: int, batch_size: int) -> GaussianWithReplacement:
        """Returns the mechanism of B = ``batch_size`` draws from n = ``num_examples``.

        Args:
            noise_multiplier: standard deviation s of the noise over the norm of one example's contribution, a number of
                at least 0.1. (Replacing a draw changes the sum by up to twice that norm: the pair counts this.)
            num_examples: n, at least 2.
            batch_size: B, at least 1.

        Raises ValueError or TypeError where an argument is out of range, or an example may be drawn too often.

        >>> bool(GaussianWithReplacement.for_batches(2.0, num_examples=2, batch_size=1).q.sum() <= 1)
        True
        """
        s = float(noise_multiplier)
        if not LEAST_NOISE <= s < math.inf:
            raise ValueError(f"noise_multiplier = {noise_multiplier} is out of range: give a number of at least 0.1.")
        rate, copies, beyond = _copies(num_examples, batch_size)
        above, losses, profile = _profile(s, rate, copies, beyond)
        q, infinite = _masses(above, profile)
        losses, p = losses[1:], q * (1 + above[1:])
        middle = max(1.0 - float(np.sum(p + q)) - infinite, 0.0)
        ends = [np.inf], [-np.inf]
        return cls(
            np.concatenate([ends[0], losses, [0.0], -losses[::-1], ends[1]]),
            np.concatenate([[infinite], p, [middle], q[::-1], [0.0]]),
            np.concatenate([[0.0], q, [middle], p[::-1], [infinite]]),
        )

    def __post_init__(self) -> None:
        for name in ("losses", "p", "q"):
            if isinstance(getattr(self, name), (list, tuple)):  # which as a pytree would have a leaf for each number
                object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
        self.validate()

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields: all but the last."""
        return np.shape(self.p)[:-1]

    def validate(self) -> None:
        for name in ("p", "q"):
            validation.check_probabilities(getattr(self, name), name, 1e-9)

    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns the one pair, which is its own mirror image."""
        directions(self, relation)
        losses, p, q = (cast(ArrayLike, value) for value in (self.losses, self.p, self.q))
        return (FinitePair(p, q, losses, np.full(np.shape(p), 16 * UNIT_ROUNDOFF)),)


def _copies(n: int, draws: int) -> tuple[float, np.ndarray, float]:
    """Returns p, rounded up; the law of K from 1 up, given that it is above 0; and a bound on the mass left out."""
    validation.check_whole(n, "num_examples", 2, 2**53, "the number of examples, of which one is replaced")
    validation.check_whole(draws, "batch_size", 1, 2**53, "the number of draws")
    with decimal.localcontext(prec=DIGITS):
        size, chance = decimal.Decimal(draws), 1 / decimal.Decimal(n)
        law = [(size * (1 - chance).ln()).exp()]
        some = 1 - law[0]
        # Binomial masses, each from the one before, until the rest is negligible or no draws are left.
        for k in range(draws):
            law.append(law[-1] * (size - k) / ((k + 1) * (n - 1)))
            # From four times the mean on each mass is at most half of the one before, so all that follow sum to at most
            # the last one.
            if k > 4 * size * chance and law[-1] < decimal.Decimal(NEGLIGIBLE) * some:
                break
            if k > MOST_COPIES:
                raise ValueError(
                    f"batch_size = {draws} draws from num_examples = {n} may hold one more than {MOST_COPIES} times: "
                    "give a smaller batch."
                )
        beyond = float(law[-1] / some) if len(law) <= draws else 0.0
        return min(float(some) * (1 + 2.0**-52), 1.0), np.array([float(w / some) for w in law[1:]]), beyond


def _tail(z: np.ndarray) -> np.ndarray:
    """Returns P(N(0, 1) > z)."""
    return np.vectorize(math.erfc, otypes=[float])(z / math.sqrt(2.0)) / 2


def _profile(s: float, rate: float, copies: np.ndarray, beyond: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns c - 1, log c and an upper bound on the profile there, at c = 1 and at POINTS c above it.

    Each c belongs to a point x of the line, at which the mixture's density is a times that of N(0, s^2).
    """
    k = np.arange(1.0, len(copies) + 1)[:, None]
    weights = copies[:, None]

    def log_a(x: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce(np.log(np.maximum(weights, 1e-300)) + (2 * k * x - 2 * k**2) / s**2, axis=0)

    def where(falls: bool, target: float, low: float, high: float) -> float:
        # Bisection, to the last bit, for the x at which the mixture's tail falls, or log a rises, to the target.
        for _ in range(200):
            middle = (low + high) / 2
            x = np.array([middle])
            value = float(np.sum(weights * _tail((x - 2 * k) / s))) if falls else float(log_a(x)[0])
            low, high = (middle, high) if (value > target) == falls else (low, middle)
        return (low + high) / 2

    first = where(False, 0.0, 0.0, 2.0 * len(copies))
    # The last point is where the tail is negligible, or where c is as large as is counted, whichever comes first.
    last = min(
        where(True, NEGLIGIBLE, first, first + 2.0 * len(copies) + 40 * s),
        where(False, LARGEST_LOSS - math.log(rate), first, first + LARGEST_LOSS * s**2 + 2.0 * len(copies)),
    )
    x = np.linspace(first, last, POINTS + 1)
    log_ratio = log_a(x)
    log_ratio[0] = 0.0
    a = np.exp(log_ratio)
    # S(a), of the half-line from x on, and V(a), of the best half-line for each number of copies; both rounded up.
    own, base = weights * _tail((x - 2 * k) / s), _tail(x / s)
    secret = np.sum(own, axis=0) * (1 + ROUNDING) - a * base * (1 - ROUNDING)
    edges = (s**2 * log_ratio + 2 * k**2) / (2 * k)
    each = _tail((edges - 2 * k) / s) * (1 + ROUNDING) - a * _tail(edges / s) * (1 - ROUNDING)
    known = np.sum(weights * np.clip(each, 0.0, 1.0), axis=0)
    secret = np.clip(np.minimum(secret, known), 0.0, 1.0)
    bound = rate * ((1 - rate) * (secret + (known - secret) / a) + rate * known) + rate * beyond
    bound = np.minimum(bound * (1 + SLACK), 1.0)
    return rate * (a - 1), np.log1p(rate * (a - 1)), bound


def _masses(above: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns Q's masses at c > 1, and the infinite loss's, of a pair whose profile is no less than ``bound`` at all c.

    The masses are the increases of the slopes of the greatest convex function below the points. Where its slope at
    c = 1 is too steep for a mass at loss 0 to be left beside the mirror images, the points are first raised to the
    steepest line that leaves one.
    """
    bound = np.maximum.accumulate(bound[::-1])[::-1]
    bound = np.maximum(bound, bound[0] - above * (1 - bound[0]) / 2 * (1 - SLACK))
    kept = [0]
    # The lower convex hull, from left to right: a point leaves when it is above the chord from the one before to a new
    # one.
    for i in range(1, len(above)):
        while len(kept) > 1 and (bound[kept[-1]] - bound[kept[-2]]) * (above[i] - above[kept[-2]]) >= (
            bound[i] - bound[kept[-2]]
        ) * (above[kept[-1]] - above[kept[-2]]):
            kept.pop()
        kept.append(i)
    slopes = np.append(np.diff(bound[kept]) / np.diff(above[kept]), 0.0)
    q = np.zeros(len(above))
    q[kept[1:]] = np.maximum(np.diff(slopes), 0.0)
    q[q < 1e-300] = 0.0
    infinite = float(bound[-1])
    # The profile that is found: the sum over j > i of q_j (c_j - c_i), with the infinite mass.
    mass, moment = (np.cumsum(values[::-1])[::-1] for values in (q, q * above))
    found = moment - above * mass + infinite
    if not np.all(found >= bound * (1 - SLACK / 2)):
        raise ValueError("noise_multiplier is too small for the masses of its privacy losses: give more.")
    return q[1:], infinite


# ----------------------------------------------------------------------------------------------------
# Poisson samples that are cut at a largest batch size
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class TruncatedPoissonGaussian(Mechanism):
    """Gaussian mechanism on a Poisson sample that is cut: if it exceeds B examples, B of them at random are used.

    Attributes:
        noise_multiplier (...): s, standard deviation of the noise over the clipping norm.
        sampling_rate (...): q, probability of each example to be sampled, before the cut, in (0, 1].
        overflow_probability (...): w, upper bound on the probability that B or more *others* are sampled, for a given
            example of any of the data sets; shapes broadcast. :class:`.TruncatedPoissonSampler` knows it.
        least_overflow_probability (...): v, lower bound on the same, at most w.
        overflow_rate (...): r, in (0, 1], and
        overflow_slack (...): e, in [0, 1]: with p the probability that B or more others are sampled, and t the
            probability that moreover the example is in the batch, t <= v r + q min(e, p - v) for all data sets at
            issue.

    With the defaults of the last three a full batch counts at the rate q. :meth:`for_batches` makes one from the number
    of examples and B.

    Relations: "add_or_remove" (default), "remove", "add".

    Formal guarantee: let D(s, q) be the pair of :class:`.PoissonSubsampledGaussian`, (1 - q) N(0, s^2) + q N(1, s^2)
    and N(0, s^2), and e' = min(e, w - v). The pair of this mechanism is D(s/2, r) with probability v,
    D(s/2, q) with probability e' and D(s, q) with the rest; which of the three is known, and costs nothing by itself.

    Proof. Let S be the sampled others. Its law does not depend on the example at issue; give away whether its size K
    is at least B. If not, give away S, too: the batch is S, or with probability q S and the example, so the sum moves
    by a vector of norm at most 1: D(s, q). If K >= B, let T be a uniform B-subset of S, the batch without the example,
    and z uniform in T. With the example at hand, given K, the batch is T with z exchanged for it with probability
    q B / (K + 1), else T: a uniform B-subset of S and the example holds it with probability B / (K + 1), and then a
    uniform (B - 1)-subset of S. Given K >= B, the law of T and z is that of a uniform B-subset of the others and one of
    its members, whatever K is; so it is independent of K and of the exchange. Give T and z away, but not K: the sum
    moves by a vector of norm at most 2 with probability t/p = E[q B / (K + 1) | K >= B] < q: D(s/2, t/p).

    Write D also for the hockey-stick divergence at any one epsilon. It is convex in the rate, and falls neither as the
    rate nor as the norm rises, so p D(s/2, t/p) <= v D(s/2, r) + x D(s/2, q) + (p - v - x) D(s/2, 0) for x =
    min(e, p - v), as t <= v r + x q. With (1 - p) D(s, q) added and D(s, q) in place of D(s/2, 0), and as
    D(s/2, q) >= D(s, q) and x <= e', this is at most the divergence of the pair.

    Source: Ganesh (2025), "Tighter privacy analysis for truncated Poisson sampling", with the pair of a replaced
    example in place of D(s/2, t/p); an overflow as a failure, Chua et al. (2024), "Scalable DP-SGD".

    >>> TruncatedPoissonGaussian(1.0, 0.01, overflow_probability=1e-3).relations
    ('add_or_remove', 'remove', 'add')
    """

    noise_multiplier: ArrayLike
    sampling_rate: ArrayLike
    overflow_probability: ArrayLike
    least_overflow_probability: ArrayLike = 0.0
    overflow_rate: ArrayLike = 1.0
    overflow_slack: ArrayLike = 1.0

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add")

    @classmethod
    def for_batches(
        cls, noise_multiplier: ArrayLike, sampling_rate: float, num_examples: int | Sequence[int], capacity: int
    ) -> TruncatedPoissonGaussian:
        """Returns the mechanism of data sets of a known size and batches of at most ``capacity``.

        Args:
            noise_multiplier (...): as that of the class; may be traced.
            sampling_rate: a number in (0, 1], before the cut.
            num_examples: n, of the larger of two neighbouring data sets; taken as public. Several numbers where it may
                be any of them: (n, n + 1) for all neighbours of a data set of n.
            capacity: B, the largest batch, at least 1.

        Formal guarantee: that of the class. With m = n - 1 others K is binomial, and p_m and t_m are sums over its law
        (:func:`jaxacct.rounded_sum.binomial_tail`), rounded to their safe sides. For one n, v and w bound p_m,
        r is t_m over v and e is 0. For several, v and r are those of the least m, and e is the amount by which the
        largest t exceeds t_m, over q. Then t <= v r + q e for each; and t_k <= v r + q (p_k - v) for a k above m, since
        one more sampled example adds to t at most where it fills the batch, so at most q (p_(m + 1) - p_m). Where
        t_m / v is above q, r is q, and v r + q (p_m - v) is p_m q, which is not below t_m either.

        Raises ValueError or TypeError where an argument is out of range.

        >>> mechanism = TruncatedPoissonGaussian.for_batches(1.0, 0.01, num_examples=1000, capacity=10)
        >>> [round(float(value), 4) for value in jax.tree.leaves(mechanism)]
        [1.0, 0.01, 0.5414, 0.5414, 0.0077, 0.0]
        """
        validation.check_scalar(sampling_rate, "sampling_rate")
        validation.check_sampling_rate(sampling_rate)
        sizes = tuple(num_examples) if isinstance(num_examples, Sequence) else (num_examples,)
        for size in sizes:
            validation.check_whole(size, "num_examples", 1, 2**53, "the number of examples")
        validation.check_whole(capacity, "capacity", 1, 2**53, "the largest batch")
        rate, up = float(sampling_rate), 1 + 4 * UNIT_ROUNDOFF
        tails = [binomial_tail(size - 1, rate, capacity) for size in sorted(sizes)]
        entered = [max(rate * capacity * tail.inverse * up, TINY) for tail in tails]
        least, covered = tails[0].least, entered[0]
        overflow_rate = covered / least * up if least > 0 else math.inf
        if overflow_rate > rate:
            overflow_rate, covered = rate, least * rate / up
        slack = min(max(max(entered) - covered, 0.0) / rate * up, 1.0)
        return cls(noise_multiplier, rate, max(tail.most for tail in tails), least, overflow_rate, slack)

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate, zero=True)
        validation.check_probability(self.overflow_probability, "overflow_probability")
        validation.check_probability(self.least_overflow_probability, "least_overflow_probability")
        validation.check_sampling_rate(self.overflow_rate, "overflow_rate")
        validation.check_probability(self.overflow_slack, "overflow_slack")
        least, most = (
            validation.concrete_value(v) for v in (self.least_overflow_probability, self.overflow_probability)
        )
        if least is not None and most is not None and np.any(least > most):
            raise ValueError(
                f"least_overflow_probability = {self.least_overflow_probability} is above overflow_probability = "
                f"{self.overflow_probability}: give a lower and an upper bound on one probability."
            )

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return nothing_sampled(self.noise_multiplier, self.sampling_rate)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the mixed pairs of (mixture, base) for "remove" and of (base, mixture) for "add"."""
        s, q, most, least, r, slack = (as_float64(v) for v in jax.tree.leaves(self))
        slack = jnp.minimum(slack, most - least)
        rest = jnp.where(most <= 1, jnp.maximum(remaining_weight(least, slack), 0.0), jnp.nan)
        noises, rates = jnp.stack([s, s / 2, s / 2]), jnp.stack([q, r, q])
        weights = jnp.stack([rest, least, slack])

        def pair(removes: bool) -> DominatingPair:
            return outside(PublicCoinPair(SubsampledGaussianPair(noises, rates, np.full(3, removes)), weights))

        return tuple(pair(direction == "remove") for direction in directions(self, relation))


@with_pair_form
def remaining_weight(least: Array, slack: Array) -> Array:
    """Returns 1 - least - slack: in float64 right to a few roundings however near to 0 it is.

    In other arithmetic it is right to fourteen, or not above the truth by any, and below it by ten of slack at most:
    the pair in which slack takes what is missing is the larger one.
    """
    rest = 1 - least
    return (rest - slack) + ((1 - rest) - least)
