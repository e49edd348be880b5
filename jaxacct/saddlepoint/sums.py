"""Moments of the sum of all losses at real orders: those of each loss, times its runs; and their errors."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxacct import by_work
from jaxacct.arithmetic import PAIR, arithmetic
from jaxacct.composition import Part
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.dominating_pairs.law import Moments, Nodes, cumulant_above, law_of, moments, moments_and_errors
from jaxacct.pytrees import of_each
from jaxacct.saddlepoint.rare import Kept

VALUE_ROUNDING = 700.0
"""Units of roundoff by which a cumulant errs relative to itself.

Weights are exponentials of logs as large as cut + 14, off by that many units and a few for the loss in them; moments
are sums of positive terms, taken directly where they are above 1/4 only.
"""

Tree = TypeVar("Tree")


def total(parts: tuple[Part, ...], nodes: list[Nodes], order: Array) -> Moments:
    """Returns the moments of the sum at ``order`` (), from nodes with a leading axis for each part."""
    return summed(parts, [of_each(moments, (0, None))(rows, order) for rows in nodes])


class Row(NamedTuple):
    """Moments of a row, and how far rounding may have moved the slope."""

    moments: Moments
    slope_error: Array


def total_and_error(parts: tuple[Part, ...], nodes: list[Nodes], order: Array) -> tuple[Moments, Array, list[Row]]:
    """Returns the moments of the sum, a bound on the error of its K(order), and the moments of each row.

    The error is that of rounding and quadrature.
    """
    of_rows, each = [], []
    for (pairs, _), rows in zip(parts, nodes, strict=True):
        found, value_error, slope_error = of_each(_moments_and_errors, (0, 0, None))(pairs, rows, order)
        missed = of_each(log_moment_error, (0, 0, None))(pairs, rows, order)
        marks = of_each(_error_of_marks, (0, None))(pairs, order) if isinstance(pairs, Kept) else jnp.zeros_like(missed)
        of_rows.append(Row(found, slope_error + marks))
        error = VALUE_ROUNDING * arithmetic().roundoff * jnp.abs(found.value)
        if arithmetic() == PAIR:
            error = jnp.fmin(error, value_error)
        each.append((found, error + marks + jnp.exp(missed)))
    return *summed(parts, each), of_rows


def _error_of_marks(pair: Kept, order: Array) -> Array:
    """Returns what the masses that are left out add to the error of a cumulant, and of its slope.

    Near 1 a moment is formed from sums of one sign, and these masses, by which the sums may exceed it.
    """
    marked = pair.marked
    return 1.3 * (order + 1) * (marked.p + marked.q) * (marked.error + 2 * VALUE_ROUNDING * arithmetic().roundoff)


def _moments_and_errors(pair: DominatingPair, nodes: Nodes, order: Array) -> tuple[Moments, Array, Array]:
    """Returns the moments of a row, and bounds on what rounding does to value and slope; inf if nodes are not close."""
    found, *errors = moments_and_errors(nodes, order)
    of_value, of_slope = (error if law_of(pair).is_close else jnp.full_like(error, jnp.inf) for error in errors)
    return found, of_value, of_slope


def summed(parts: tuple[Part, ...], each: list[Tree]) -> Tree:
    """Returns the sum of what each run of each row comes to."""

    def summed(*rows: Array) -> Array:
        return sum(jnp.sum(jnp.where(steps > 0, steps * m, 0.0)) for (_, steps), m in zip(parts, rows, strict=True))  # type: ignore[return-value]

    return jax.tree.map(summed, *each)


def log_moment_error(pair: DominatingPair, scan: Nodes, order: Array) -> Array:
    """Returns a bound on the log of the relative error of a moment by quadrature."""
    return law_of(pair).log_moment_error(order, scan.places[1] - scan.places[0])


def largest_order(parts: tuple[Part, ...]) -> Array:
    """Returns the largest order at which moments of all that is run are known."""
    largest = [
        jnp.min(jnp.where(steps > 0, of_each(lambda p: law_of(p).largest_order())(pairs), jnp.inf))
        for pairs, steps in parts
    ]
    return jnp.min(jnp.stack(largest))


def cumulants_above(parts: tuple[Part, ...], scans: list[Nodes], orders: Array, wanted: Array | bool) -> Array:
    """Returns upper bounds on the sum's K at several orders; zeros where they are not ``wanted``."""

    def one(_: Array, order: Array, given: Any) -> Array:
        parts, scans = given
        each = [
            of_each(lambda p, n: cumulant_above(n, order) + jnp.exp(log_moment_error(p, n, order)), (0, 0))(pairs, rows)
            for (pairs, _), rows in zip(parts, scans, strict=True)
        ]
        above: Array = summed(parts, each)
        return above

    return by_work.map_rows(jnp.where(wanted, orders.shape[0], 0), one, orders, (parts, scans))


def log_factor(order: Array) -> Array:
    """Returns log c(a) = a log a - (1 + a) log(1 + a)."""
    return -order * jnp.log1p(1 / order) - jnp.log1p(order)
