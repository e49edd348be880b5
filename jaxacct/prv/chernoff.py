"""A bound without a mesh that is mostly sharp enough to tell which direction of a relation decides: Chernoff's.

With P and Q of a sketch's cells the loss is raised to their edges ("connect the dots", :mod:`.discretize`), so that
M(t), the sum of the raised masses times e^(ty) and a bound on the tail beyond, is at least E[e^(tY)]. A unit of mass
tilted by t counts in delta(eps) at most e^(-t eps) t^t / (1+t)^(1+t), so for every t > 0

    log delta(eps) <= sum of k_i log M_i(t) - t eps + t log t - (1 + t) log(1 + t), but for infinite losses.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic, roundoff
from jaxacct.composition import Parts, combined
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.precision import TINY
from jaxacct.programs import compiled
from jaxacct.prv.discretize import raised
from jaxacct.prv.parseval import log_peak
from jaxacct.prv.sketch import Sketch, side_by_side, sketches_of
from jaxacct.question import ForEpsilon, Question

ORDERS = np.exp2(np.linspace(-0.75, 0.75, 9))
"""Orders that are tried, over the one given."""


@compiled
def largest(parts: Parts, order: Array, asked: tuple[Array, Array, Array], question: Question) -> Array:
    """Returns an upper bound on what a question's answer is, inf (or 1) where none is known.

    ``order`` is about where the bound is least, ``asked`` as :func:`~jaxacct.prv.sketch.sketched` takes it.
    """
    counts = [steps for _, steps in parts]
    total = sum((steps.sum() for steps in counts), jnp.zeros(()))
    sketches = [sketches_of(part, total, *asked) for part in parts]
    orders, k = order * jnp.asarray(ORDERS), jnp.concatenate(counts)
    rows = [
        side_by_side(lambda row, orders: _log_moments(row[0], row[1], orders), steps, (pairs, sketch), orders)
        for (pairs, steps), sketch in zip(parts, sketches, strict=True)
    ]
    terms = jnp.where(k[:, None] > 0, k[:, None] * jnp.concatenate(rows), 0.0)
    facts = combined([sketch.known for sketch in sketches], counts)
    peak = log_peak(orders)
    # Each product rounds once, and their sum as often as it has terms.
    exponents = jnp.sum(terms, axis=0) + (len(k) + 8) * roundoff() * jnp.sum(jnp.abs(terms), axis=0)
    exponents = exponents + peak + 16 * arithmetic().function * (1 + jnp.abs(exponents) + jnp.log1p(orders))
    if isinstance(question, ForEpsilon):
        left = question.delta - facts.infinite[1] * (1 + 4 * roundoff())
        log_left = jnp.log(jnp.maximum(left, TINY))
        bounds = (exponents - log_left + 16 * arithmetic().function * (1 + jnp.abs(log_left))) / orders
        least = jnp.maximum(jnp.min(jnp.where(jnp.isnan(bounds), jnp.inf, bounds)), 0.0) * (1 + 8 * roundoff())
        is_known = facts.is_valid & (left > TINY)
    else:
        at = exponents - orders * question.epsilon * (1 - 16 * arithmetic().function)
        least = jnp.exp(jnp.min(jnp.where(jnp.isnan(at), jnp.inf, at))) * (1 + 32 * roundoff())
        least = jnp.minimum(least + facts.infinite[1] * (1 + 4 * roundoff()) + 4 * TINY, 1.0)
        is_known = facts.is_valid
    return jnp.where(is_known, least, question.worst)


def _log_moments(pair: DominatingPair, sketch: Sketch, orders: Array) -> Array:
    """Returns upper bounds on log E[e^(tY)] over the finite losses at ``orders`` (n,)."""
    edges, infinity = sketch.edges, jnp.full(1, jnp.inf)
    largest = jnp.maximum(jnp.abs(edges[0]), jnp.abs(edges[-1]))
    shift = pair.boundary_error(largest) + 4 * roundoff() * largest
    cells = pair.cell_masses(jnp.concatenate([-infinity, edges, infinity]))
    # What was flushed to zero is below the smallest normal number.
    masses = raised(cells, edges, edges[1:] - edges[:-1], shift) + 4 * TINY
    exponents = jnp.log(masses)[None, :] + orders[:, None] * (edges + shift)[None, :]
    beyond = jax.vmap(lambda t: pair.log_tail(t, edges[-1] - shift))(orders)
    found = jax.nn.logsumexp(jnp.concatenate([exponents, beyond[:, None]], axis=1), axis=1)
    # Of exponents that are sums of a logarithm and a product, of a sum, and of its logarithm.
    units = 64 + len(edges) + 8 * (750 + orders * largest) + 8 * jnp.abs(found)
    return found + arithmetic().function * units
