"""Sums of a stream by noisy binary trees, each example in it once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool

from jaxacct import validation
from jaxacct.arithmetic import roundoff
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.mechanisms.gaussian import Gaussian
from jaxacct.mechanisms.mechanism import Mechanism, Relation, directions, is_endless
from jaxacct.precision import as_float64, is_concrete, outside, within_scope
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class TreeAggregation(Mechanism):
    """The mechanism of binary trees with Gaussian noise at the nodes, each example at most once in all of them.

    An account alone, of prefix sums of a stream whose nodes are all told. What makes noise of that kind for training
    is the strategy :class:`jaxacct.strategies.TreeAggregation`, in a :class:`.MatrixMechanism`, whose online estimate
    tells less and costs less.

    Attributes:
        noise_multiplier (...): standard deviation of a node's noise over the norm of one example's contribution.
        depth (...): most nodes that one example is in: levels of the largest tree, ceil(log2(steps + 1)) of them.

    Relations: "replace" (default), and "zero_out" where :class:`.Gaussian` knows it. Not "add_or_remove": without an
    example the others would move up in the stream.

    Formal guarantee: the pair is that of the Gaussian of noise_multiplier / sqrt(depth), and is attained. The nodes'
    sums are one vector query of the stream with independent noise; an example in d nodes moves it by the norm of its
    contribution times sqrt(d). That later examples depend on what came out is adaptivity, which Gaussian noise allows.

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

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_batches(self.depth, 2**10, "depth")

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_endless(self.noise_multiplier)

    @within_scope
    def dominating_pairs(self, relation: Relation = "replace") -> tuple[DominatingPair, ...]:
        """Returns those of the Gaussian that it is."""
        directions(self, relation)
        xp: Any = np if is_concrete(self.noise_multiplier, self.depth) else jnp
        noise, depth = as_float64(self.noise_multiplier), as_float64(self.depth)
        lowered = xp.where(depth >= 1, noise / xp.sqrt(depth), 0.0) * (1 - 4 * roundoff())
        return outside(Gaussian(xp.where(depth == 1, noise, lowered)).dominating_pairs(relation))
