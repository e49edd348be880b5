"""Why a bound is what it is: the choices made and the size of each allowance."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Array, Bool, Float

from jaxacct.prv.compose import Stages
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """How a bracket came about, for the direction of the relation that decides it. Scalars unless shapes are given.

    Attributes:
        method: "recursive", "two_stage" or "fixed"; of concrete arguments mostly one mesh for all steps, composed by
            its frequencies: "recursive" with a single stage, that mesh and as many copies as there are runs.
        points: mesh points of every stage.
        order: the tilt; truncation and rounding count relative to the mass tilted by exp(order * loss).
        stages: mesh, window and copies of each stage; of a heterogeneous composition, those of its first mechanism.
        mesh, start: of the final lattice, which covers the losses ``[start, start + points * mesh]``.
        slack (2,): truncated and rounded mass of the upper and the lower lattice, relative to their tilted mass.
        slack_delta (2,): what that mass adds to delta in the upper bound, and takes off it in the lower one, at most.
        shift (2,): what rounding of the losses' positions adds to epsilon, and takes off it, at most.
        infinite_mass: probability of an infinite loss, rounded up; a part of delta at every epsilon.
        lost: probability of losses beyond the meshes, which the upper bound counts as infinite.
        converged: that of the bracket: whether it is as tight as was asked.

    What is left of the gap between the bounds is the loss of discretizing and coarsening, which falls with the square
    of the mesh.
    """

    method: str = field(metadata={"static": True})
    points: int = field(metadata={"static": True})
    order: Float[Array, ""]
    stages: Stages
    mesh: Float[Array, ""]
    start: Float[Array, ""]
    slack: Float[Array, " 2"]
    slack_delta: Float[Array, " 2"]
    shift: Float[Array, " 2"]
    infinite_mass: Float[Array, ""]
    lost: Float[Array, ""]
    converged: Bool[Array, ""] | np.ndarray
