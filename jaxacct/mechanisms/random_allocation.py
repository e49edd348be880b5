"""Random allocation with Gaussian noise: each example is in a fixed number of an epoch's batches, drawn at random.

One epoch is one run. Its dominating pair is a spread of the mixture over the places of one example
(:mod:`jaxacct.dominating_pairs.allocation`); more than two participations are a composition of blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.dominating_pairs.allocation import LEAST_NOISE, MOST_BATCHES, allocation_pairs, paired_allocation_pairs
from jaxacct.mechanisms.custom import DiscretePair
from jaxacct.mechanisms.fixed_batches import Gaussian
from jaxacct.mechanisms.mechanism import Mechanism, Relation, choose, directions, is_endless
from jaxacct.numerics.precision import is_concrete, outside, within_scope
from jaxacct.numerics.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class RandomAllocation(Mechanism):
    """One epoch of noisy sums over batches by random allocation, also called balls-in-bins sampling.

    Each example goes to exactly one of ``batches`` batches, or to ``participations`` of them, all different, drawn
    uniformly and independently of all others; one after the other their sums of clipped contributions get Gaussian
    noise, each step free to depend on all results before. E epochs, each allocated afresh, are ``steps=E`` of this
    mechanism.

    Attributes:
        noise_multiplier (...): standard deviation of the noise of one step over the clipping norm.
        batches (...): t, the number of batches, and steps, of the epoch; whole, from 1 to 2**30. Shapes broadcast.
        points: number of points of the law that the pair is made of, static; from 64 to 4096. Take more where an epoch
            has very many batches. With 512, the default, delta of an epoch was 0.02 % to 1.5 % too large for t = 2 and
            delta above 1e-8, and up to 8 % for t = 1000, which is 0.6 % of epsilon; twice as many divide the excess by
            about four, and take about three times as long: 0.43 s for t = 1000.
        participations: k, the batches that an example is in, static; from 1 to t. Epsilons at a delta of 1e-4, for
            removing an example, with the exact ones by sampling, and those of Poisson samples of the same size:

            ===== === ===== ===== ========= ======= =======
            t     k   noise upper k epochs  sampled Poisson
            ===== === ===== ===== ========= ======= =======
            100   5   0.6   7.860 8.085     7.36    9.546
            100   5   1.0   2.466 2.490     2.41    2.87
            400   8   0.7   4.449 4.516     4.28    4.99
            ===== === ===== ===== ========= ======= =======

    Relations: "add_or_remove" (default), "remove", "add", "zero_out". Batches of equal size, from one shuffle of the
    data, are *not* this mechanism: there the others' places tell of an example's own, and no tight bound is known.

    Formal guarantee: the pair dominates, so the upper bounds of accountants hold. A single batch is accounted for as
    the :class:`.Gaussian` that it is, exactly. For several the pair is larger in convex order than the tight one
    (it is not :attr:`~.Mechanism.tight`): a lower bound on the epsilon of an epoch itself is that of :meth:`summed`.
    Rényi orders are bounded apart from the pair: :mod:`jaxacct.dominating_pairs.allocation`.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead, as does
    noise below 0.05, or 0.085 with several participations.

    *Several participations.* Let the steps be divided at random into blocks, and the example be in two steps of each
    block, any two, or in one of a last block where k is odd: these are any k steps. A mixture over divisions diverges
    no more than its worst part, for divergences are jointly convex and Q is the same for all; and given the division
    the epoch is a composition of the blocks. So it is accounted for as that composition, of blocks of one length or
    longer by one step, each by the pair :class:`~.allocation.PairedAllocationPair`. Blocks with one step each are the
    reduction of Feldman and Shenfeld (2026), "k epochs" above, which also gives the Rényi orders.

    Source: Chua et al. (2024), "Balls-and-bins sampling for DP-SGD"; Feldman and Shenfeld (2025), "Privacy
    amplification by random allocation". That the pair P = sum over j of N(e_j, s^2 I)/t, Q = N(0, s^2 I) dominates all
    adaptive steps is a matter of post-processing: let y be drawn from P or Q. At step i the results so far fix the
    example's contribution v and the sum m of the others; with a unit vector u along v, independent noise Z = N(0, s^2)
    and noise N' in the other directions, the released value is distributed as

        m + (|v| y_i + (1 - |v|^2)^(1/2) Z) u + N',

    for y_i is N(0, s^2), or N(1, s^2) where i is the example's own step, and |v| <= 1. The places of the other examples
    are independent of it and may be given away. :mod:`jaxacct.dominating_pairs.allocation` computes the pair.

    >>> from jaxacct import PoissonSubsampledGaussian, prv
    >>> epochs = RandomAllocation(noise_multiplier=1.0, batches=100)
    >>> allocated = prv.epsilon(epochs, steps=10, delta=1e-5, tolerance=1e-2)
    >>> sampled = prv.epsilon(PoissonSubsampledGaussian(1.0, 0.01), steps=1000, delta=1e-5)
    >>> bool(allocated.upper < sampled.lower)
    True
    """

    noise_multiplier: ArrayLike
    batches: ArrayLike
    points: int = field(default=512, metadata={"static": True})
    participations: int = field(default=1, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out")

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_batches(self.batches, MOST_BATCHES)
        validation.check_whole(self.points, "points", 64, 4096, "the number of points of the law")
        batches = validation.concrete_value(self.batches)
        least = MOST_BATCHES if batches is None else int(np.min(batches))
        validation.check_whole(
            self.participations, "participations", 1, least, "how many of the batches hold an example"
        )

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.noise_multiplier)

    def ordinary(self, nothing: Bool[ArrayLike, "*batch"]) -> Self:
        noise, batches = choose(nothing, 1.0, self.noise_multiplier), choose(nothing, self.participations, self.batches)
        return replace(self, noise_multiplier=noise, batches=batches)

    @property
    def composed(self) -> bool:
        return self.participations > 2

    def apart(self, steps: ArrayLike) -> list[tuple[Mechanism, ArrayLike]]:
        """Returns mechanisms and numbers of runs that together are ``steps`` runs of this one, or dominate them.

        For a single batch, or an example in all batches, they are runs of the Gaussian mechanism, whose own pair is
        tight; for more than two participations they are blocks with two, or one. Traced numbers, and several with a
        leading axis, may be of either kind: then all mechanisms are listed, with 0 runs of those that do not apply.
        """
        k = self.participations
        full = self.batches == k
        runs: list[tuple[Mechanism, ArrayLike]] = [
            (Gaussian(choose(full, self.noise_multiplier, 1.0)), choose(full, k * steps, 0))
        ]
        if k <= 2:
            runs.append((replace(self, batches=choose(full, k + 1, self.batches)), choose(full, 0, steps)))
        else:
            pairs, t = k // 2, choose(full, k + 1, self.batches)
            if not is_concrete(t) and jnp.issubdtype(t.dtype, jnp.inexact):
                t = jnp.where(t == jnp.floor(t), t, jnp.nan)  # the parts of a fraction could be whole
            alone = t // k if k % 2 else 0
            block, longer = (t - alone) // pairs, (t - alone) % pairs
            sizes = (block, 2, pairs - longer), (block + 1, 2, longer), (alone, 1, 1)
            # One part for each size of block; a size that occurs nowhere gets 0 runs.
            for size, number, count in sizes[: 2 + k % 2]:
                part = replace(self, batches=size, participations=number)
                runs += part.apart(choose(full | (count == 0), 0, count * steps))
        if not is_concrete(full, steps):
            return runs
        return [(part, count) for part, count in runs if np.any(count)] or runs[:1]

    def summed(self, levels: int = 64) -> DiscretePair:
        """Returns a mechanism that releases no more than one epoch: its ``lower`` is a lower bound for the epoch, too.

        It releases a sum over steps of the rounded loss that a Poisson sample's result y would have, log(1 - k/t + k/t
        e^((2y - 1)/(2 s^2))): a function of the results of two data sets for which the pair of the epoch is tight.

        Args:
            levels: values of a rounded loss besides the least; more lose less. At most 2^15 for all steps together.

        Formal guarantee: a lower bound, up to a relative 1e-10 of probabilities, which are products of normal masses.
        At a delta of 1e-4 those of the table above were 7.14, 2.37 and 4.22 with 64 levels. Concrete scalars only.

        Raises ValueError where the fields are no numbers, or ``levels`` is out of range.

        >>> told = RandomAllocation(noise_multiplier=1.0, batches=10, participations=2).summed()
        >>> round(float(np.maximum(told.p - np.exp(2) * told.q, 0).sum()), 4)  # delta(2), 0.0032 by sampling
        0.0027
        """
        if not is_concrete(self.noise_multiplier, self.batches) or self.batch_shape:
            raise ValueError(f"{self} is traced or a sequence: give numbers, for what is summed is found on the host.")
        s, t = (np.asarray(value).item() for value in (self.noise_multiplier, self.batches))
        s, t, k = float(s), int(t), self.participations
        validation.check_whole(levels, "levels", 1, max(2**15 // t, 1), "the levels of a loss, of all steps 2^15")
        if not LEAST_NOISE <= s < np.inf:
            raise ValueError(
                f"noise_multiplier = {s}: a lower bound is made from {LEAST_NOISE} on, and of finite noise."
            )
        # The loss of a Poisson sample with the example's rate, rounded to one of ``levels`` values or the least: any
        # function of an epoch's results gives a lower bound.
        rate = min(k / t, 0.5)
        most = np.logaddexp(np.log1p(-rate), 4 / s + 0.5 / s**2 + np.log(rate))
        losses = np.linspace(np.log1p(-rate), most, levels + 1)[1:]
        # The loss's inverse is the logarithm of (e^loss - 1 + rate)/rate.
        ends = s**2 * (losses + np.log1p(-(1 - rate) * np.exp(-losses)) - np.log(rate)) + 0.5
        without, within = _normal_masses(ends / s), _normal_masses((ends - 1) / s)
        q = _power(without, t)
        p = np.convolve(_power(within, k), _power(without, t - k))
        # Outcomes that float64 hardly holds join the likeliest one. This is post-processing and reveals nothing more.
        least = (p < 1e-290) | (q < 1e-290)
        for masses in (p, q):
            masses[np.argmax(q)] += np.sum(masses[least])
            masses[least] = 0.0
        return DiscretePair(p=p / np.sum(p), q=q / np.sum(q))

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (P, Q) for "remove" and (Q, P) for "add", both spread over finitely many losses.

        Raises ValueError for more than two participations, which accountants take apart.
        """
        asked = directions(self, relation)
        if self.composed:
            raise ValueError(
                f"participations = {self.participations} are accounted for as a composition of blocks with two, not by "
                "one pair: give this to what composes (jaxacct.epsilon), or take mechanism.apart(steps)."
            )
        removes = [direction == "remove" for direction in asked]
        pairs = allocation_pairs if self.participations == 1 else paired_allocation_pairs
        return tuple(map(outside, pairs(self.noise_multiplier, self.batches, self.points, removes)))


def _normal_masses(ends: np.ndarray) -> np.ndarray:
    """Returns the standard normal law's masses between -inf, the increasing ends, and inf."""
    below = np.array([math.erfc(-end / math.sqrt(2)) / 2 for end in (-np.inf, *ends, np.inf)])
    above = np.array([math.erfc(end / math.sqrt(2)) / 2 for end in (-np.inf, *ends, np.inf)])
    return np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))


def _power(masses: np.ndarray, count: int) -> np.ndarray:
    """Returns the law of a sum of independent values, by direct products: small masses are as right as large ones."""
    result = np.ones(1)
    # Binary powers: ``masses`` is the law of 2^i values at bit i of the count, and ``result`` that of the bits so far.
    while count:
        if count & 1:
            result = np.convolve(result, masses)
        count >>= 1
        masses = np.convolve(masses, masses) if count else masses
    return result
