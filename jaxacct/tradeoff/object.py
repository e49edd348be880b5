"""The trade-off of a composition as an object: what attacks of each kind can reach, by the functions of this room."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import ArrayLike

from jaxacct.bounds import Bounds
from jaxacct.composition import check
from jaxacct.mechanisms.mechanism import Mechanisms, Relation, Steps
from jaxacct.tradeoff import composed


@dataclass(frozen=True)
class TradeOff:
    """What telling a data set from its neighbour by the results of a composition costs in errors: f-DP.

    Attributes:
        mechanism, steps, relation: as of :func:`jaxacct.epsilon`; concrete numbers.

    Guarantee: every method returns certified :class:`~jaxacct.bounds.Bounds`, rounding included, for the dominating
    pairs' composition. Which end protects is said of each. (epsilon, delta) are :func:`jaxacct.epsilon` and
    :func:`jaxacct.curve`; those of several examples at once, those of :func:`jaxacct.group`.

    Raises ValueError or TypeError as :func:`jaxacct.epsilon` does.

    >>> from jaxacct import Gaussian
    >>> run = TradeOff(Gaussian(noise_multiplier=10.0), 100)
    >>> [f"{found:.4f}" for found in (run.beta(0.5).lower, run.advantage().upper, run.bayes_risk(0.5).lower)]
    ['0.1587', '0.3829', '0.3085']
    """

    mechanism: Mechanisms
    steps: Steps
    relation: Relation = "add_or_remove"

    def __post_init__(self) -> None:
        check(self.mechanism, self.steps)

    def beta(self, alpha: ArrayLike) -> Bounds:
        """Returns the least false-negative rate at false-positive rates (...); ``lower`` protects: :func:`.curve`."""
        rates = np.asarray(alpha, np.float64)
        found = composed.curve(self.mechanism, self.steps, rates.reshape(-1), relation=self.relation)
        return _shaped(found, rates)

    def advantage(self) -> Bounds:
        """Returns :func:`.advantage`, the total variation; ``upper`` protects."""
        return composed.advantage(self.mechanism, self.steps, relation=self.relation)

    def bayes_risk(self, prior: ArrayLike = 0.5) -> Bounds:
        """Returns :func:`.bayes_risk`, the least error of whoever knows the prior; ``lower`` protects.

        By how much two mechanisms' differ at most, over all priors, is what is lost by taking one for the other
        (Kaissis et al. 2024, "Beyond the calibration point").
        """
        return composed.bayes_risk(self.mechanism, self.steps, prior, relation=self.relation)

    def reconstruction(self, baseline: ArrayLike) -> Bounds:
        """Returns the largest probability that an example is reconstructed; ``upper`` protects.

        Args:
            baseline (...): kappa in [0, 1], that of the best guess without any result: of the prior of examples, the
                largest probability that any one guess is near enough.

        Guarantee: 1 - f(kappa), f the trade-off whose null hypothesis is the data without the example, whatever else
        the attack knows, for any prior and any notion of being near. *Proof.* The results from which example z is
        reconstructed have probabilities p_z with it and q_z without; q_z has a mean of at most kappa, for without it
        results tell nothing of z; p_z <= 1 - f(q_z), which is concave. ``lower`` is for the worst prior, and pairs
        that are attained.

        Raises ValueError under the relation "add", whose null hypothesis is the data with the example.

        Source: Balle, Cherubin and Hayes (2022), "Reconstructing training data with informed adversaries", Theorem 2;
        in this form Hayes, Mahloujifar and Balle (2023), "Bounding training data reconstruction in DP-SGD", Theorem 2.
        """
        if self.relation == "add":
            raise ValueError('relation = "add" has the example under the null hypothesis: give "remove".')
        relation: Relation = "remove" if self.relation == "add_or_remove" else self.relation
        rates = np.asarray(baseline, np.float64)
        found = composed.true_positive_rate(self.mechanism, self.steps, rates.reshape(-1), relation=relation)
        return _shaped(found, rates)


def _shaped(found: Bounds, like: np.ndarray) -> Bounds:
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(like.shape)[()], found)
