"""Mechanisms of a whole training with Gaussian noise that is correlated over steps: DP-FTRL, the matrix mechanism.

Without sampling such a training is one Gaussian mechanism; under cyclic Poisson sampling it is a composition of
Poisson-subsampled Gaussian mechanisms, one for each cycle. Binary trees of noisy sums stand last.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool

from jaxacct import validation
from jaxacct.mechanisms.finite import surely_seen
from jaxacct.mechanisms.gaussian import Gaussian, PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import (
    Mechanism,
    NoisyMechanism,
    Relation,
    choose,
    directions,
    is_infinite,
    nothing_sampled,
)
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import roundoff
from jaxacct.numerics.precision import as_float64, as_real, exact_real, is_concrete, leave_scope, within_scope
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.strategies import CyclicPoisson, Participation, Strategy, Unsampled


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False)
class MatrixMechanism(Mechanism):
    """A whole training with correlated noise: one run of it is every step of the training, each released as it comes.

    Args:
        strategy: C, concrete: step t gets the row t of C^-1 z (:class:`.Strategy`).
        noise_multiplier (): standard deviation of z over the clipping norm. The cost depends only on its ratio to the
            sensitivity, so scaling C and this by one number changes nothing.
        participation: :class:`.SinglePass`, :class:`.MinSeparation`, :class:`.FixedEpochs` or :class:`.CyclicPoisson`.

    Attributes:
        noise_multiplier: as given.
        sensitivity: the strategy's, float64, an upper bound: that of all steps that an example takes part in, or under
            cyclic Poisson sampling that of one turn.
        sampling_rate: that of :class:`.CyclicPoisson`; 1 without.
        cycles: most turns that a group has; 1 without cyclic sampling.

    Formal guarantee, for steps whose inputs depend on everything released before, and for clipped contributions:

    *Unsampled.* The rows of C x + z are released one after the other. Given those before, row t moves by
    d_t = sum over s of C[t, s] g_s, where g_s is what the example adds to step s, fixed by then. Along every course of
    events the squares of the |d_t| sum to at most the squared sensitivity, by its definition. Gaussian mechanisms
    chosen adaptively with such a sum are, together, one Gaussian mechanism of that sensitivity (Denisov et al. (2022),
    Theorem 2.1; Smith and Thakurta (2022), "Fully adaptive composition for Gaussian differential privacy"). The steps
    that the example takes part in may depend on earlier releases, too. Under "replace" the example's steps stay, and
    contributions move by up to 2.

    *Cyclic Poisson.* C has at most b bands, and groups take turns every b steps. So the columns of the steps of a group
    have no row in common: the rows from one of its turns to before the next one hold one sampled contribution, along
    C[:, t], and, given the past and the other examples' coins, which may be told, noise. Projected on that direction
    these rows are the Poisson-subsampled Gaussian mechanism of sensitivity |C[:, t]|, and the rest of them is noise
    that depends on nothing: they cost at most as much as those of the largest column. Turns are composed adaptively, at
    most ceil(n / b) of them (Choquette-Choo et al. (2023), Theorem 4). Whichever the group is, divergences of a mixture
    over groups drawn apart are at most the largest. Settings (rate, noise, strategy) are fixed for the whole training;
    only its end may be chosen, between cycles: a filter grants :attr:`cycle`, once for each.

    Relations: those of :class:`.PoissonSubsampledGaussian`; with ``equal_groups`` "replace" alone. The assumptions of
    :mod:`jaxacct.strategies` about examples added and removed are made here, too.

    Raises:
        TypeError: a strategy or a participation that is none, or strategies that are traced.
        ValueError: a concrete argument out of range, or more bands than groups.

    Sampling schemes that are neither of these are refused: balls-in-bins is :class:`.BallsInBins`, and nothing is known
    of b-min-sep.

    >>> from jaxacct import epsilon, strategies
    >>> noise = strategies.square_root(bands=4).normalized()
    >>> sampling = strategies.CyclicPoisson(steps=1000, groups=4, sampling_rate=0.04)
    >>> print(epsilon(MatrixMechanism(noise, 2.0, sampling), steps=1, delta=1e-5))
    [1.371239, 1.371240]
    """

    noise_multiplier: ArrayLike
    sensitivity: ArrayLike
    sampling_rate: ArrayLike
    cycles: ArrayLike
    is_sampled: bool = field(metadata={"static": True})
    equal_groups: bool = field(metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = PoissonSubsampledGaussian.relations

    def __init__(self, strategy: Strategy, noise_multiplier: ArrayLike, participation: Participation) -> None:
        if not isinstance(strategy, Strategy):
            raise TypeError(
                f"strategy = {validation.shorten(strategy)} is none: give one of jaxacct.strategies, such as "
                "square_root(8); a stream of another library's goes into Streamed."
            )
        if not isinstance(participation, (Unsampled, CyclicPoisson)):
            raise TypeError(
                f"participation = {validation.shorten(participation)} has no certified account with correlated "
                "noise: give SinglePass, MinSeparation, FixedEpochs or CyclicPoisson of jaxacct.strategies. "
                "Balls-in-bins is the mechanism jaxacct.BallsInBins; of b-min-sep sampling only Monte Carlo estimates "
                "are known, and MinSeparation bounds it, without amplification."
            )
        strategy.validate()
        sampled = participation if isinstance(participation, CyclicPoisson) else None
        if sampled and (bands := strategy.bands(sampled.steps)) > sampled.groups:
            raise ValueError(
                f"groups = {sampled.groups} are fewer than the strategy's {bands} bands: turns of a group would share "
                "noise, and are not amplified; give as many groups as bands, or fewer bands."
            )
        self._fill(
            noise_multiplier,
            np.float64(strategy.sensitivity(participation.pattern)),
            sampled.sampling_rate if sampled else np.float64(1.0),
            np.float64(sampled.cycles if sampled else 1.0),
            sampled is not None,
            sampled is not None and sampled.equal_groups,
        )
        self.convert()
        self.validate()

    @property
    def composed(self) -> bool:
        return True

    @property
    def cycle(self) -> Mechanism:
        """The mechanism of one turn of every group, which a filter grants before each cycle of b steps.

        Raises ValueError where the steps have no cycles that could be accounted for one by one.
        """
        if not self.is_sampled:
            raise ValueError(
                "without cyclic Poisson sampling correlated noise is one Gaussian mechanism from the first step to the "
                "last, which has no parts: ask the filter for the whole training, once, before it begins."
            )
        return (_OfEqualGroups if self.equal_groups else PoissonSubsampledGaussian)(self._noise(), self.sampling_rate)

    def with_noise(self, noise_multiplier: ArrayLike) -> MatrixMechanism:
        """Returns the same training at another noise multiplier, without bounding the sensitivity again."""
        numbers = noise_multiplier, self.sensitivity, self.sampling_rate, self.cycles
        made = self.tree_unflatten((self.is_sampled, self.equal_groups), numbers)
        made.convert()
        made.validate()
        return made

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_sampling_rate(self.sampling_rate, zero=True)
        validation.check_positive(self.sensitivity, "sensitivity")
        validation.check_steps(self.cycles, "cycles")
        for value, name in ((self.noise_multiplier, "noise_multiplier"), (self.sampling_rate, "sampling_rate")):
            if np.ndim(value):
                raise ValueError(f"{name} of shape {np.shape(value)}: give a number, and use jax.vmap for batches.")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        if not self.is_sampled:
            return is_infinite(self.noise_multiplier)
        return nothing_sampled(self.noise_multiplier, self.sampling_rate)

    def as_gaussian(self) -> Gaussian:
        """Returns the Gaussian mechanism that a training without sampling is; its noise is rounded down."""
        assert not self.is_sampled
        return Gaussian(self._noise())

    def decompose(self, steps: ArrayLike) -> list[tuple[Mechanism, ArrayLike]]:
        """Returns the Gaussian mechanism that the training is, or the cycles that it is composed of."""
        if not self.is_sampled:
            return [(self.as_gaussian(), steps)]
        validation.check_scalar(steps, "steps")
        if is_concrete(steps, self.cycles):
            return [(self.cycle, np.asarray(steps, np.float64) * np.asarray(self.cycles, np.float64))]
        return [(self.cycle, exact_real(steps) * exact_real(self.cycles))]

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs of the whole training; raises ValueError where it is a composition of cycles."""
        if not self.is_sampled:
            return self.as_gaussian().dominating_pairs(relation)
        raise ValueError(
            "a training under cyclic Poisson sampling is a composition of cycles, not one pair: give this to what "
            "composes (jaxacct.epsilon), or mechanism.cycle, of which it is mechanism.cycles runs."
        )

    def _noise(self) -> Any:
        """Returns the noise over the sensitivity, rounded down; infinite, which costs nothing, only where it was so."""
        # Largest finite float64 number, the bound of a ratio that overflows: only infinite noise costs nothing.
        largest = np.finfo(np.float64).max
        if is_concrete(self.noise_multiplier, self.sensitivity):
            noise: Any = np.asarray(self.noise_multiplier, np.float64)
            with np.errstate(over="ignore"):
                over = np.minimum(noise / self.sensitivity * (1 - 2.0**-51), largest)
        else:
            noise = as_real(self.noise_multiplier)
            sensitivity = as_real(self.sensitivity)
            over = noise / jnp.where(sensitivity > 0, sensitivity, jnp.nan) * (1 - 4 * roundoff())
            over = jnp.minimum(over, jnp.finfo(over.dtype).max)
        return choose(is_infinite(noise), np.inf, over)

    def _fill(self, *values: Any) -> Self:
        # The constructor derives the fields of the frozen class from its arguments.
        for entry, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, entry.name, value)
        if self.equal_groups:
            object.__setattr__(self, "relations", _OfEqualGroups.relations)
        return self

    def tree_flatten_with_keys(
        self,
    ) -> tuple[tuple[tuple[jax.tree_util.GetAttrKey, ArrayLike], ...], tuple[bool, bool]]:
        """Returns the numbers, and what is static: for JAX."""
        # The first four fields are numbers, the other two static.
        names = [entry.name for entry in fields(self)[:4]]
        children = tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names)
        return children, (self.is_sampled, self.equal_groups)

    @classmethod
    def tree_unflatten(cls, static: tuple[bool, bool], children: tuple[ArrayLike, ...]) -> Self:
        """Returns the mechanism of these numbers: for JAX."""
        return object.__new__(cls)._fill(*children, *static)


@register_dataclass
@dataclass(frozen=True)
class _OfEqualGroups(PoissonSubsampledGaussian):
    """The mechanism of one cycle where examples were divided into groups of one size: "replace" alone."""

    relations: ClassVar[tuple[Relation, ...]] = ("replace",)


# ----------------------------------------------------------------------------------------------------
# Binary trees: prefix sums of a stream that holds each example once
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class TreeAggregation(NoisyMechanism):
    """Binary trees with Gaussian noise at the nodes, each example at most once in all of them.

    This is an account alone, of prefix sums of a stream, all of whose nodes are released. To make noise of that kind
    for training take the strategy :class:`jaxacct.strategies.HonakerTree` in a :class:`.MatrixMechanism`; its
    online estimate releases less and costs less.

    Attributes:
        noise_multiplier (...): standard deviation of a node's noise over the norm of one example's contribution.
        depth (...): most nodes that one example is in: the levels of the largest tree, ceil(log2(steps + 1)).

    Relations: "replace" (default), and "zero_out" where :class:`.Gaussian` knows it. "add_or_remove" is none of them:
    without an example the others would move up in the stream.

    Formal guarantee: the pair is that of the Gaussian of noise_multiplier / sqrt(depth), and is attained. The nodes'
    sums are one vector query of the stream with independent noise; an example in d nodes moves it by the norm of its
    contribution times sqrt(d). Later examples may depend on earlier releases, since Gaussian noise allows adaptivity.

    Source: Kairouz et al. (2021), "Practical and private (deep) learning without sampling or shuffling", Theorem 4.1
    and appendix D; adaptivity: Denisov et al. (2022), "Improved differential privacy for SGD via optimal private linear
    operators on adaptive streams", Theorem 2.1.

    >>> from jaxacct import Gaussian, epsilon
    >>> tree = epsilon(TreeAggregation(noise_multiplier=6.0, depth=9), 1, 1e-5, relation="replace")
    >>> f"{tree.upper:.6f}", f"{epsilon(Gaussian(2.0), 1, 1e-5, relation='replace').upper:.6f}"
    ('4.377178', '4.377178')
    """

    noise_multiplier: ArrayLike
    depth: ArrayLike

    relations: ClassVar[tuple[Relation, ...]] = tuple(r for r in ("replace", "zero_out") if r in Gaussian.relations)
    tight: ClassVar[bool] = True

    noiseless_pairs = surely_seen

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_batches(self.depth, 2**10, "depth")

    @within_scope
    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns the pairs of the Gaussian mechanism that it is."""
        directions(self, relation)
        return leave_scope(self.as_gaussian().dominating_pairs(relation))

    @within_scope
    def as_gaussian(self) -> Gaussian:
        """Returns the Gaussian mechanism that the tree is; its noise is rounded down."""
        xp: Any = np if is_concrete(self.noise_multiplier, self.depth) else jnp
        noise, depth = as_float64(self.noise_multiplier), as_float64(self.depth)
        # Rounded down, for less noise costs more; a depth of 1 needs no division.
        lowered = xp.where(depth >= 1, noise / xp.sqrt(depth), 0.0) * (1 - 4 * roundoff())
        return leave_scope(Gaussian(xp.where(depth == 1, noise, lowered)))
