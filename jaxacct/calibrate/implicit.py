"""Derivatives of a calibrated setting, by the implicit function.

The setting x satisfies F(x, g) = T for the budgeted quantity F, the target T and what is given, g. Where all moves,
dx = (dT - (dF/dg) dg) / (dF/dx), with the accountant's own derivatives. They are of the exact setting; the one that is
returned is within the tolerance of it, on the safe side.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.batching import one_by_one
from jaxacct.bounds import Bounds
from jaxacct.calibrate.result import Calibrated, Status
from jaxacct.calibrate.solve import Config, Given, calibrated, composition
from jaxacct.precision import as_float64, is_concrete, within_scope
from jaxacct.saddlepoint.accountant import answer

Answer = tuple[Calibrated, Array]
"""The result, and the setting u that was guessed."""


KNOWN = Given(epsilon=1.0, delta=1e-5, noise_multiplier=10.0, sampling_rate=0.5, steps=100.0)
"""A run whose derivatives exist."""


def solved(config: Config, given: Given) -> Answer:
    """Returns the result of one target, and the setting that was guessed; inside a trace it has derivatives.

    Those of ``value`` are NaN where the search has not converged, and 0 at the end of a range and for whole steps.
    """
    return calibrated(config, given) if is_concrete(given) else _traced(config, given)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _traced(config: Config, given: Given) -> Answer:
    return one_by_one(calibrated, config)(given)


@_traced.defjvp
@within_scope
def _traced_jvp(config: Config, primals: Any, tangents: Any) -> tuple[Answer, Answer]:
    (given,), (moves,) = primals, tangents
    given = Given(*map(as_float64, given))
    # A tangent of a whole number is nothing at all.
    moved = [getattr(move, "dtype", None) != jax.dtypes.float0 for move in moves]
    moves = Given(*(as_float64(move) if is_move else jnp.zeros(()) for move, is_move in zip(moves, moved, strict=True)))
    found, start = solved(config, given)
    # What is looked for is no argument of its own search, nor is the target of the accountant.
    still = moves._replace(**{config.unknown: jnp.zeros(()), config.budget.name: jnp.zeros(())})

    def reached(given: Given, value: Array) -> Array:
        mechanism, steps = composition(config, given, value)
        return jnp.asarray(answer(mechanism, steps, given.asked(config.budget), config.relation).estimate)

    is_fixed = found.status == Status.NOT_BINDING if config.unknown != "steps" else jnp.asarray(True)
    # Slopes there are multiplied by 0, which must not meet a NaN: they are taken of a run that has them.
    at = jax.tree.map(lambda known, number: jnp.where(is_fixed, known, number), KNOWN, given)
    _, change = jax.linearize(reached, at, jnp.where(is_fixed, KNOWN._asdict()[config.unknown], found.value))
    by_value, by_given = change(jax.tree.map(jnp.zeros_like, at), jnp.ones(())), change(still, jnp.zeros(()))
    sought = moves.allowed(config.budget)
    slope = jnp.where(found.status == Status.CONVERGED, 1 / by_value, jnp.nan)
    move = jnp.where(is_fixed, 0.0, slope) * (sought - by_given)
    flat = np.zeros(np.shape(found.status), jax.dtypes.float0)
    tangent = Calibrated(move, Bounds(sought, sought, sought, flat), flat)
    return (found, start), (tangent, jnp.zeros(()))
