"""What is read off a dominating pair before anything is discretized; all that is chosen beforehand rests on it.

A sketch of a loss has a few hundred cells, narrow about the bulk and wide far out, with the mean loss of each. Sums,
tilts and truncations of the sketch cost next to nothing. What is made of it no longer depends on the kind of pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct import by_work
from jaxacct.arithmetic import roughly
from jaxacct.composition import Known, Part, known_of
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.programs import compiled
from jaxacct.pytrees import of_each

Tree = TypeVar("Tree")

OCTAVE = 6
"""Cells of the sketch for each halving of the distance from the bulk."""

DISTANCES = np.concatenate([[0.0], np.exp2(-np.arange(150)[::-1] / OCTAVE)])
"""Edges of the sketch's cells on one side of the bulk, over the distance of its end: 25 octaves."""

EVEN = 160
"""Most cells by which the distance upwards may be divided evenly, where the octaves' are wider.

A delta of 1e-300 is made of losses far out, within one over the order of the tilt, some 1/40 of a distance of about as
much; in wider cells no order would see that any loss exceeds epsilon.
"""

CLOSE = DISTANCES[DISTANCES * (2 ** (1 / OCTAVE) - 1) < 1 / EVEN]
UPWARD = np.concatenate([CLOSE, np.arange(np.floor(CLOSE[-1] * EVEN) + 1, EVEN + 1) / EVEN])
"""Edges above the bulk, likewise."""


class Sketch(NamedTuple):
    """A loss in brief."""

    edges: Float[Array, " edges"]
    p: Float[Array, " cells"]
    """Masses of the cells."""
    losses: Float[Array, " cells"]
    """Their mean losses."""
    anchors: Float[Array, " 2"]
    """Those of the pair, where a mesh should have points; NaN where any will do."""
    known: Known
    """What is known of the pair without looking at masses."""


@compiled
def sketched(pairs: DominatingPair, steps: Array, value: Array, is_epsilon: Array, points: Array) -> Sketch:
    """Returns the sketches of pairs (m,), each up to where what lies beyond may count as infinite.

    Args:
        pairs (m,): of one class.
        steps (): number of losses summed in all.
        value (): the delta asked about, or the epsilon where ``is_epsilon`` is false.
        is_epsilon (): whether it is epsilon that is wanted.
        points (): mesh points of the lattices.
    """

    def guessed(pairs: DominatingPair, steps: Array, value: Array, points: Array) -> tuple[Array, Array, Array]:
        log_copies = jnp.log(jnp.maximum(steps, 1.0))

        def of(pair: DominatingPair) -> tuple[Array, Array, Array]:
            log_delta = pair.log_tail(jnp.zeros(()), jnp.where(is_epsilon, 0.0, value)) - 3.0
            known = jnp.where(is_epsilon, jnp.log(value) - log_copies, log_delta)
            return _cells(pair, jnp.clip(known, -2000.0, 0.0) - jnp.log(16.0 * points))

        return of_each(of)(pairs)

    # No bound depends on what the cells hold. Atoms are to lie on the mesh, to the last digit.
    cells = roughly(guessed)(pairs, steps, value, points)
    return Sketch(*cells, *of_each(lambda pair: (jnp.stack(pair.anchors()), known_of(pair)))(pairs))


def sketches_of(part: Part, total: Array, value: Array, is_epsilon: Array, points: Array) -> Sketch:
    """Returns the same of pairs that are run, ``total`` in all; of others nothing."""
    pairs, steps = part

    def one(pair: DominatingPair, given: tuple[Array, ...]) -> Sketch:
        found = sketched(jax.tree.map(lambda leaf: leaf[None], pair), *given)
        return jax.tree.map(lambda leaf: leaf[0], found)

    return side_by_side(one, steps, pairs, (total, value, is_epsilon, points))


SIDE_BY_SIDE = 16
"""Losses that are worked on at once: what they take is to fit into a cache."""


def joined(sketches: Sequence[Sketch]) -> Any:
    """Returns the sketches of several parts, (m_i, ...), as those of all their losses, (m, ...).

    What is known of pairs is left out: of some classes more is known before there are numbers than of others.
    """
    nothing: Any = None
    bare = [sketch._replace(known=nothing) for sketch in sketches]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *bare)


def side_by_side(function: Callable[[Any, Any], Tree], steps: Array, rows: Any, given: Any) -> Tree:
    """Returns ``function(row, given)`` of rows (m,), as many as that at once; 0 beyond those that are run."""
    together = min(len(steps) & -len(steps), SIDE_BY_SIDE)

    def some(_: Any, rows: Any, given: Any) -> Tree:
        return of_each(function, (0, None))(rows, given)

    if len(steps) == together:
        return some(None, rows, given)
    groups = jax.tree.map(lambda leaf: leaf.reshape(-1, together, *leaf.shape[1:]), rows)
    used = jnp.max(jnp.where(steps > 0, np.arange(len(steps)) // together + 1, 1))
    found = by_work.map_rows(used, some, groups, given)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)


def _cells(pair: DominatingPair, log_cut: Array) -> tuple[Array, Array, Array]:
    """Returns edges, masses and mean losses of cells, up to where at most e^log_cut of the probability lies beyond."""
    center = pair.central_loss()
    infimum, supremum = pair.loss_range()

    def reach_of(is_beyond) -> Array:
        """Bisects the binary logarithm of the distance from the centre, to 1 %."""

        def halve(_, interval):
            low, high = interval
            middle = (low + high) / 2
            beyond = is_beyond(jnp.exp2(middle))
            return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

        ends = -70.0 * jnp.ones_like(center), 58.0 * jnp.ones_like(center)
        return jnp.exp2(jax.lax.fori_loop(0, 13, halve, ends)[1])

    up = reach_of(lambda d: pair.log_tail(jnp.zeros_like(center), center + d) <= log_cut)
    # Tilting upwards only makes the lower tail smaller.
    down = reach_of(lambda d: pair.log_head(center - d) <= jnp.minimum(log_cut, -80.0))
    # A loss of a single value still needs a window.
    up = jnp.maximum(jnp.minimum(up, supremum - center), 1e-30)
    down = jnp.maximum(jnp.minimum(down, center - infimum), 1e-30)
    distances = jnp.asarray(DISTANCES)
    edges = jnp.concatenate([center - down * distances[::-1], center + up * jnp.asarray(UPWARD)[1:]])
    # The ends themselves belong to the outer cells, with whatever rounding left beyond them: next to a loss that is
    # never passed that may be the bulk.
    wrong = 2 * pair.boundary_error(jnp.maximum(jnp.abs(edges[0]), jnp.abs(edges[-1])))
    outer = edges.at[0].add(-1e-9 * down - wrong).at[-1].add(1e-9 * up + wrong)
    cells = pair.cell_masses(outer)
    ratio = jnp.log(cells.p) - jnp.log(cells.q)
    middles = (edges[1:] + edges[:-1]) / 2
    losses = jnp.clip(jnp.where(jnp.isfinite(ratio), ratio, middles), edges[:-1], edges[1:])
    return edges, cells.p, losses
