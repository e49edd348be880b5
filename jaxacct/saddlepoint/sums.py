"""Moments of the sum of all losses at real orders: those of each loss, times its runs; and their errors.

What is composed is a list of parts: pairs of one class with their numbers of runs. Here most are of a single pair, and
such a one is taken without its axis (:func:`jaxacct.pytrees.without_axes`): an operation on an axis of length 1 is
several.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic
from jaxacct.composition import Parts
from jaxacct.dominating_pairs.law import Moments, Nodes, Rungs, law_of, moments_and_errors, rungs
from jaxacct.pytrees import each
from jaxacct.saddlepoint.rare import Kept

VALUE_ROUNDING = 700.0
"""Units of roundoff by which a cumulant errs relative to itself.

Weights are exponentials of logs as large as cut + 14, off by that many units and a few for the loss in them; moments
are sums of positive terms, taken directly where they are above 1/4 only.
"""

Tree = TypeVar("Tree")


def scanned(parts: Parts) -> list[Nodes]:
    """Returns the nodes of all parts for real orders."""
    return [each(part, lambda pair: law_of(pair).scan()) for part in parts]


def is_alone(parts: Parts) -> bool:
    """Returns whether one pair is all there is: where that is not run, all is idle, whatever is said of it."""
    return len(parts) == 1 and jnp.ndim(parts[0][1]) == 0


def summed(parts: Parts, found: list[Tree]) -> Tree:
    """Returns the sum of what each run of each row comes to."""
    if is_alone(parts):
        return jax.tree.map(lambda row: parts[0][1] * row, found[0])

    def of_part(steps: Array, rows: Array) -> Array:
        runs = jnp.reshape(steps, jnp.shape(steps) + (1,) * (jnp.ndim(rows) - jnp.ndim(steps)))
        terms = jnp.where(runs > 0, runs * rows, 0.0)
        return jnp.sum(terms, axis=0) if jnp.ndim(steps) else terms

    def of_all(*found: Array) -> Array:
        terms = [of_part(steps, rows) for (_, steps), rows in zip(parts, found, strict=True)]
        return sum(terms[1:], terms[0])

    return jax.tree.map(of_all, *found)


def rungs_of(parts: Parts, nodes: list[Nodes], orders: Array) -> tuple[Moments, list[Rungs]]:
    """Returns about the moments of the sum at orders (n,), and those of each row."""
    rows = [each(part, lambda _, rows: rungs(rows, orders), rows) for part, rows in zip(parts, nodes, strict=True)]
    return summed(parts, [Moments(row.value, row.slope, row.curvature) for row in rows]), rows


def above_at(parts: Parts, nodes: list[Nodes], orders: Array, rows: list[Array]) -> tuple[Array, list[Array]]:
    """Returns upper bounds on the sum's values at orders (n,), and what quadrature misses of each row's, (n,).

    ``rows`` are upper bounds on what the nodes say of each row.
    """

    def missed(pair: Any, nodes: Nodes) -> Array:
        step = nodes.places[1] - nodes.places[0]
        return jnp.exp(law_of(pair).log_scan_errors(orders, step))

    found = [each(part, missed, row) for part, row in zip(parts, nodes, strict=True)]
    return summed(parts, [above + more for above, more in zip(rows, found, strict=True)]), found


class Row(NamedTuple):
    """Moments of a row, and how far rounding may have moved the slope; only pairs ask for that."""

    moments: Moments
    slope_error: Array | None


def total_and_error(
    parts: Parts, nodes: list[Nodes], missed: list[Array], order: Array
) -> tuple[Moments, Array, list[Row]]:
    """Returns the moments of the sum, a bound on the error of its value, and the moments of each row.

    The error is that of rounding, and of quadrature, which is given.
    """

    def of_row(pair: Any, nodes: Nodes, missed: Array) -> tuple[Moments, Array, Array | None]:
        law, u = law_of(pair), arithmetic().roundoff
        found, value_error, slope_error = moments_and_errors(nodes, order)
        error = VALUE_ROUNDING * u * jnp.abs(found.value)
        if value_error is not None and slope_error is not None:
            error = jnp.fmin(error, value_error) if law.is_close else error
            slope_error = slope_error if law.is_close else jnp.full_like(slope_error, jnp.inf)
        if isinstance(pair, Kept):
            # Near 1 a moment is formed from sums of one sign, and these masses, by which the sums may exceed it.
            marked = pair.marked
            missed = missed + 1.3 * (order + 1) * (marked.p + marked.q) * (marked.error + 2 * VALUE_ROUNDING * u)
        return found, error + missed, slope_error

    found = [each(part, of_row, *row) for part, *row in zip(parts, nodes, missed, strict=True)]
    return *summed(parts, [(row[0], row[1]) for row in found]), [Row(row[0], row[2]) for row in found]


def largest_order(parts: Parts) -> Array:
    """Returns the largest order at which moments of all that is run are known."""
    largest = [each(part, lambda pair: law_of(pair).largest_order()) for part in parts]
    if is_alone(parts):
        return largest[0]
    run = [jnp.min(jnp.where(k > 0, most, jnp.inf)) for (_, k), most in zip(parts, largest, strict=True)]
    return jnp.min(jnp.stack(run))
