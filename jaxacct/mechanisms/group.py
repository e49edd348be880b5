"""Groups of examples: everything that one person owns, say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool

from jaxacct import validation
from jaxacct.arithmetic import roundoff
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.dominating_pairs.counted_shifts import CountedShiftsPair, binomial_masses
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, nothing_sampled
from jaxacct.platforms import lowered
from jaxacct.precision import TINY, as_float64, exact_float64, in_float64, is_concrete, is_zero, outside, scope
from jaxacct.pytrees import register_dataclass

MOST_EXAMPLES = 512
"""Largest group whose number of sampled examples is taken by its exact law: each has a place on the noise's axis."""

LEAST_PLACES = 16
"""Groups up to this size have as many places, all but theirs without weight, and larger ones up to twice, four times as
many: one program serves all of them."""


def group(mechanism: Mechanism, size: int) -> Mechanism:
    """Returns the mechanism that dominates another one where up to ``size`` examples change at once.

    Its epsilon is the guarantee of a group: of a user who owns that many examples of the data, or fewer.

    Args:
        mechanism: accounted for one example.
        size: g, the largest group, whole and at least 1; static.

    Returns:
        A mechanism for every accountant, of the same relations, which then speak of g examples: added, removed, zeroed
        out, or replaced by g others. For g = 1 ``mechanism`` itself. Sums of Gaussian and Laplace noise move by g: the
        same with 1/g of the noise. On Poisson samples a :class:`PoissonSubsampledGroup`. An epsilon becomes g epsilon,
        with its delta times 1 + e^epsilon + ... + e^((g - 1) epsilon).

    Formal guarantee: the pairs dominate all neighbours that differ in at most g examples; of sums they are tight, those
    of g examples whose gradients are one vector. What is known by its epsilon and delta alone becomes all that is known
    to be so for g examples: a ``lower`` is theirs, and not that of such a group. Divisions and products are rounded to
    the safe side.

    Raises ValueError for mechanisms without a proof: batches of fixed size have :class:`WithoutReplacementGroup`, which
    asks for the number of examples. TypeError or ValueError where an argument is wrong.

    Source: Dwork and Roth (2014), "The algorithmic foundations of differential privacy", Theorem 2.2, for what is known
    by its epsilon and delta alone; :class:`PoissonSubsampledGroup`.

    >>> from jaxacct import Gaussian, PoissonSubsampledGaussian
    >>> group(PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01), 8).size
    8
    >>> group(Gaussian(4.0), 2)
    Gaussian(noise_multiplier=np.float64(2.0))
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"mechanism = {mechanism!r} is no mechanism: give one, and make a tuple of the groups of several."
        )
    validation.check_whole(size, "size", 1, 2**31 - 1, "the number of examples of a group")
    return mechanism if size == 1 else mechanism.of_group(size)


@register_dataclass
@dataclass(frozen=True)
class PoissonSubsampledGroup(Mechanism):
    """A noisy sum over a Poisson sample, for groups of examples; what :func:`group` makes of one for single examples.

    Attributes:
        scale (...): s, the noise multiplier of Gaussian noise, or the scale of Laplace noise over an example's L1 norm.
        sampling_rate (...): q, probability of each example to be in the batch, independently; shapes broadcast.
        size: g, the most examples of a group, from 1 to 512; static.
        noise: "gaussian" (default) or "laplace"; static.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out", "replace", each of up to g examples.

    Formal guarantee: with K binomial, of g trials at the rate q, and B the noise, the pair is (B + K, B) for "remove",
    its reverse for "add", and (B + K, B - K) for "replace". They dominate, and g equal gradients of norm 1 attain them.

    Proof. Fix who of all others is sampled, and let a set S of the group be. The sum then moves by v_S, of norm at most
    |S|, or in the other data set by w_S. With mu_v the noise moved by v and f_k(a) the greatest mu_v-probability of an
    event of mu_0-probability a, |v| <= k, which by Neyman and Pearson is that of a half-line moved by k,

        P(A) - c Q(A) = sum_S P(S) (mu_(v_S)(A) - c mu_(w_S)(A)) <= sum_k P(K = k) (f_k(a) - c (1 - f_k(1 - a))),

    or with a in the place of the one that does not move. One half-line attains all k at once, so the right side is the
    pair's at it. Fewer than g examples are a smaller K, and f_k rises with k. In several dimensions f_k is that of one:
    for normal noise by its symmetry, for Laplace noise in the L1 norm as for :class:`.Laplace`.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf instead. The exact
    accountant takes Gaussian noise only; Laplace noise is for the mesh.

    Source: Ganesh (2024), "Tight group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians
    mechanisms"; Charles et al. (2024), "Fine-tuning large language models with user-level differential privacy".

    >>> import jaxacct as ja
    >>> print(ja.delta(PoissonSubsampledGroup(1.0, 0.01, size=8), steps=1, epsilon=1.0))
    [0.0002410248, 0.0002410249]
    """

    scale: ArrayLike
    sampling_rate: ArrayLike
    size: int = field(metadata={"static": True})
    noise: Literal["gaussian", "laplace"] = field(default="gaussian", metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "remove", "add", "zero_out", "replace")
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        if self.noise == "laplace":
            validation.check_noise_scale(self.scale)
        else:
            validation.check_noise_multiplier(self.scale, "scale")
        validation.check_sampling_rate(self.sampling_rate, zero=True)
        validation.check_whole(self.size, "size", 1, MOST_EXAMPLES, "the number of examples of a group")
        validation.check_one_of(self.noise, "noise", ("gaussian", "laplace"))

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return nothing_sampled(self.scale, self.sampling_rate)

    def of_group(self, size: int) -> Mechanism:
        return PoissonSubsampledGroup(self.scale, self.sampling_rate, self.size * size, self.noise)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (B + K, B) for "remove" and (B, B - K) for "add"; for "replace" (B + K, B - K)."""
        asked = directions(self, relation)
        if is_concrete(self.scale, self.sampling_rate):
            scale, rate = (np.asarray(value, np.float64) for value in (self.scale, self.sampling_rate))
            return self._pairs(np, scale, rate, asked)
        with scope():
            return self._pairs(jnp, as_float64(self.scale), as_float64(self.sampling_rate), asked)

    def _pairs(self, xp: Any, scale: Any, rate: Any, asked: tuple[str, ...]) -> tuple[DominatingPair, ...]:
        s, q = xp.broadcast_arrays(scale, rate)
        most = LEAST_PLACES << max(0, math.ceil(math.log2(self.size / LEAST_PLACES)))
        drawn, units = binomial_masses(self.size, q)
        drawn = xp.concatenate([drawn, xp.zeros((*q.shape, most - self.size))], axis=-1)
        counts = xp.arange(most + 1.0)

        def pair(places: Any, p: Any, q: Any) -> CountedShiftsPair:
            return CountedShiftsPair(s, xp.broadcast_to(places, p.shape), p, q, self.noise, units)

        if "replace" in asked:
            some, none = drawn[..., 1:], xp.zeros_like(drawn[..., 1:])
            p, q = (xp.concatenate([drawn[..., :1], *rest], axis=-1) for rest in ((some, none), (none, some)))
            return (pair(xp.concatenate([counts, -counts[1:]]), p, q),)
        nobody = xp.broadcast_to(np.where(np.arange(most + 1) == 0, 1.0, 0.0), drawn.shape)
        return tuple(
            pair(counts, drawn, nobody) if each == "remove" else pair(-counts, nobody, drawn) for each in asked
        )


def less_noise(scale: ArrayLike, size: int) -> Any:
    """Returns noise divided by the size of a group, not above the quotient."""
    if not is_concrete(scale):
        return _less_noise(scale, size)
    quotient = np.asarray(scale, np.float64) / size
    is_exact = np.isinf(quotient) | (size & (size - 1) == 0)
    return np.where(is_exact, quotient, np.nextafter(quotient, 0.0))[()]


@in_float64(safe=lowered)
def _less_noise(scale: ArrayLike, size: int) -> Array:
    noise = as_float64(scale)
    return jnp.where(noise < jnp.inf, noise / size * (1 - 4 * roundoff()), noise)


@in_float64
def more_of_a_group(epsilon: ArrayLike, delta: ArrayLike, size: int) -> tuple[Array, Array]:
    """Returns (g epsilon, delta (e^(g epsilon) - 1)/(e^epsilon - 1)), not below; see :func:`group`."""
    each, once = exact_float64(epsilon), exact_float64(delta)
    total = each * size * (1 + 4 * roundoff())
    least = jnp.maximum(each, TINY)
    factor = jnp.maximum(jnp.expm1(total) / jnp.expm1(least), size) * (1 + 64 * roundoff() * (1 + total))
    most = jnp.where(is_zero(once), once, jnp.minimum(jnp.nan_to_num(once * factor, nan=jnp.inf), 1.0))
    return outside((total, most))
