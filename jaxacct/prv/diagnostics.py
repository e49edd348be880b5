"""Why a bound is what it is: the choices made and the size of each allowance."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Array, Bool, Float

from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """How a bracket came about, for the direction of the relation that decides it. Scalars unless shapes are given.

    Attributes:
        points: points of the lattice of each loss.
        order: the tilt; truncation and rounding count relative to the mass tilted by exp(order * loss).
        mesh: least distance between points.
        start: the least loss of the sum's window.
        length: points of the circle on which the sum lives: it covers the losses ``[start, start + length * mesh]``.
        slack (2,): truncated and rounded mass above and below, relative to the tilted mass.
        slack_delta (2,): what that mass adds to delta in the upper bound, and takes off it in the lower one, at most.
        shift (2,): what rounding of the losses' positions adds to epsilon, and takes off it, at most.
        infinite_mass: probability of an infinite loss, rounded up; a part of delta at every epsilon.
        lost: probability of losses beyond the lattices, which the upper bound counts as infinite.
        converged: that of the bracket: whether it is as tight as was asked.

    What is left of the gap between the bounds is the loss of discretizing, which falls with the square of the mesh.
    """

    points: int = field(metadata={"static": True})
    order: Float[Array, ""]
    mesh: Float[Array, ""]
    start: Float[Array, ""]
    length: Float[Array, ""]
    slack: Float[Array, " 2"]
    slack_delta: Float[Array, " 2"]
    shift: Float[Array, " 2"]
    infinite_mass: Float[Array, ""]
    lost: Float[Array, ""]
    converged: Bool[Array, ""] | np.ndarray
