"""A user's own mechanisms, given by the probabilities of the outcomes or by the law of the privacy loss.

The pair is taken as given: that it dominates the mechanism is for the user to prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool, Float, PyTree

from jaxacct import validation
from jaxacct.dominating_pairs import DominatingPair, FinitePair, LossDistributionPair
from jaxacct.dominating_pairs.finite import SUM_TOLERANCE, VALUE_ERROR, Distribution
from jaxacct.mechanisms.mechanism import DIRECTIONS, Mechanism, Relation, directions
from jaxacct.numerics.precision import as_float64, is_concrete
from jaxacct.numerics.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class DiscretePair(Mechanism):
    """A mechanism dominated by a pair of distributions on m outcomes, which the caller has to know and to prove.

    Attributes:
        p (..., m), q (..., m): probabilities of the outcomes without and with the change, in float64; each sums to one.
            A list is taken for an array. An outcome with q = 0 < p is an infinite loss of probability p. The numbers
            given are taken for exact.

    Relations: "remove" is (p, q) and "add" is (q, p); "add_or_remove" (default), "replace" and "zero_out" take both.
    Whether the pair dominates the mechanism under the relation asked for is the caller's to prove.

    Raises ValueError where concrete probabilities are out of range, of different shapes or do not sum to one; traced
    ones cannot raise and cost inf instead. JAX arrays made with ``jax_enable_x64`` off are float32, and hardly ever sum
    to one in float64: give NumPy arrays.

    Source: dominating pairs, Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via
    characteristic function", Definition 7.

    >>> from jaxacct import rdp
    >>> mechanism = DiscretePair(p=[0.5, 0.5, 0.0], q=[0.25, 0.5, 0.25])
    >>> round(float(rdp.curve(mechanism, [2.0], relation="remove")[0]), 6)  # log(0.5^2/0.25 + 0.5^2/0.5)
    0.405465
    >>> float(rdp.curve(mechanism, [2.0], relation="add")[0])  # (q, p) has an infinite loss
    inf
    """

    p: Float[ArrayLike, "*batch m"] | Sequence[float]
    q: Float[ArrayLike, "*batch m"] | Sequence[float]

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)
    may_fail: ClassVar[bool] = True
    tight: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("p", "q"):
            # A list would be a pytree with a leaf for each number.
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
        self.validate()

    def validate(self) -> None:
        for name in ("p", "q"):
            value = getattr(self, name)
            validation.check_probabilities(value, name, SUM_TOLERANCE + 2.0**-52 * np.size(value))
        if hasattr(self.p, "shape") and hasattr(self.q, "shape") and self.p.shape != self.q.shape:
            raise ValueError(
                f"p of shape {self.p.shape} and q of shape {self.q.shape} differ: give a probability of each for every "
                "outcome."
            )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the fields: all but the last."""
        return np.shape(self.p)[:-1]

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        if is_concrete(self.p, self.q):
            return np.all(np.asarray(self.p, np.float64) == np.asarray(self.q, np.float64), axis=-1)
        # A traced law that is no law at all costs inf, so it has to be valid before it counts as releasing nothing.
        p, q = as_float64(self.p), as_float64(self.q)
        valid = jnp.vectorize(lambda p, q: FinitePair(p, q).is_valid(), signature="(m),(m)->()")(p, q)
        return valid & jnp.all(p == q, axis=-1)

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns (p, q) for "remove", (q, p) for "add", and both for the other relations."""
        directions(self, relation)
        p, q = cast(ArrayLike, self.p), cast(ArrayLike, self.q)
        pairs = {"remove": (FinitePair(p, q),), "add": (FinitePair(q, p),)}
        return pairs.get(relation, pairs["remove"] + pairs["add"])


@register_dataclass
@dataclass(frozen=True)
class PrivacyLoss(Mechanism):
    """A mechanism given by the law of its privacy loss Y = log P/Q under a dominating pair (P, Q).

    The callables take an array of losses and ``parameters``, and return probabilities in float64. They are part of the
    structure and the parameters are data: write them as functions at module level, and one compilation serves all
    parameters. They are called at finite losses up to ``highest``, and have to be right there, 0 below the infimum.

    Attributes:
        cdf_p, cdf_q: P(Y <= y) and Q(Y <= y), the latter with Q's mass at -inf.
        lowest (...), highest (...): finite losses. Hardly any mass of P may lie below ``lowest``, and no finite loss
            above ``highest``: if the loss is unbounded, choose a highest one and count P(Y > highest) as infinite.
        parameters: pytree of numbers and arrays; in a sequence of mechanisms each array has its leading axis.
        infinite_mass (...): P(Y = inf), with what was cut off above ``highest``. Default 0.
        survival_p, survival_q: P(y < Y < inf) and Q(y < Y < inf). Optional; giving both is recommended, for their error
            is relative to small values, while 1 - cdf says nothing of a tail below 1e-15, which a delta of 1e-10 needs.
        value_error (...): bound on the absolute error of the CDFs' values, and on a survival value S's over
            S (1 + |log S|). Default: four ulps of one. The bounds of the accountants rest on it: raise it for a CDF
            that comes of a quadrature or a series.
        atoms: two neighbouring losses of positive probability, the lower first, which meshes then contain; NaN if any
            mesh will do (default). A jump has to be within 8 rounding errors of its loss.
        reverse: the same for (Q, P), if that is another law; None where the pair is its own mirror image.

    Relations: "remove" is this law and "add" the reverse; "add_or_remove" (default), "replace" and "zero_out" take
    both. Whether the pair dominates the mechanism under the relation asked for is the caller's to prove.

    Raises ValueError where a concrete field is out of range; traced ones cannot raise and cost inf, as does a ``cdf_p``
    that does not come to 1 - infinite_mass at ``highest``. The Rényi divergence is an upper bound, by a fixed mesh of
    4096 pieces: within 1e-5 for a loss range of ten standard deviations.

    Source: dominating pairs, Zhu, Dong and Wang (2022), "Optimal accounting of differential privacy via
    characteristic function", Definition 7; moments, Doroshenko et al. (2022), "Connect the dots".

    Laplace noise of scale b on a query of sensitivity 1, P at 1 and Q at 0: the loss is (2x - 1)/b, cut off at 1/b.

    >>> import jax.numpy as jnp
    >>> def cdf_p(y, b):
    ...     return jnp.where(y < -1 / b, 0.0, jnp.where(y >= 1 / b, 1.0, jnp.exp((y - 1 / b) / 2) / 2))
    >>> def survival_p(y, b):
    ...     return 1 - cdf_p(y, b)
    >>> def survival_q(y, b):
    ...     return jnp.where(y < -1 / b, 1.0, jnp.where(y >= 1 / b, 0.0, jnp.exp(-(y + 1 / b) / 2) / 2))
    >>> def cdf_q(y, b):
    ...     return 1 - survival_q(y, b)
    >>> laplace = PrivacyLoss(cdf_p, cdf_q, lowest=-0.5, highest=0.5, parameters=2.0, survival_p=survival_p,
    ...     survival_q=survival_q, atoms=(-0.5, 0.5))
    >>> from jaxacct import rdp
    >>> import math
    >>> divergence = math.log(2 / 3 * math.exp(1 / 2) + 1 / 3 * math.exp(-2 / 2))  # of order 2: Mironov (2017)
    >>> 0 <= float(rdp.curve(laplace, [2.0])[0]) - divergence < 1e-6
    True
    """

    cdf_p: Distribution = field(metadata={"static": True})
    cdf_q: Distribution = field(metadata={"static": True})
    lowest: ArrayLike
    highest: ArrayLike
    parameters: PyTree = ()
    infinite_mass: ArrayLike = 0.0
    survival_p: Distribution | None = field(default=None, metadata={"static": True}, kw_only=True)
    survival_q: Distribution | None = field(default=None, metadata={"static": True}, kw_only=True)
    value_error: ArrayLike = field(default=VALUE_ERROR, kw_only=True)
    atoms: tuple[ArrayLike, ArrayLike] = field(default=(np.nan, np.nan), kw_only=True)
    reverse: PrivacyLoss | None = field(default=None, kw_only=True)

    relations: ClassVar[tuple[Relation, ...]] = tuple(DIRECTIONS)
    may_fail: ClassVar[bool] = True
    tight: ClassVar[bool] = True

    def validate(self) -> None:
        validation.check_probability(self.infinite_mass, "infinite_mass")
        validation.check_probability(self.value_error, "value_error")
        for name in ("lowest", "highest"):
            validation.check_finite(getattr(self, name), name)
        low, high = (validation.concrete_value(bound) for bound in (self.lowest, self.highest))
        if low is not None and high is not None and not np.all(low < high):
            raise ValueError(f"lowest = {self.lowest} is not below highest = {self.highest}: give a range of losses.")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of ``lowest`` and ``highest``."""
        return np.broadcast_shapes(np.shape(self.lowest), np.shape(self.highest))

    def check_numbers(self) -> None:
        """Checks nothing: the parameters are the callables' own, and the fields after them are optional."""

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pair for "remove", its reverse for "add", and both, if they differ, for the other relations."""
        directions(self, relation)
        pair = LossDistributionPair(
            lowest=self.lowest,
            highest=self.highest,
            parameters=self.parameters,
            infinite_mass_p=self.infinite_mass,
            value_error=self.value_error,
            atoms=self.atoms,
            cdf_p=self.cdf_p,
            cdf_q=self.cdf_q,
            survival_p=self.survival_p,
            survival_q=self.survival_q,
        )
        if self.reverse is None or relation == "remove":
            return (pair,)
        reverse = self.reverse.dominating_pairs("remove")
        return reverse if relation == "add" else (pair, *reverse)
