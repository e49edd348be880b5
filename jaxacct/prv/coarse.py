"""A bracket without composing, for where a mesh says nothing: few rare losses, or a delta next to 1.

*From above.* The total variation of a composition is at most one less the product of one less those of its runs (a run
that goes unnoticed in both data sets changes nothing), and delta falls: delta(eps) <= 1 - prod (1 - delta_i(0))^k_i.

A single run is what its pair says of it.

*From below.* 1 - delta(eps) is the integral of min(P, e^eps Q), which for any 0 < a < 1 is at most that of P^a (e^eps
Q)^(1-a): of a product of laws, a product. By Hölder's inequality a cell contributes at most P(cell)^a Q(cell)^(1-a), so

    delta(eps) >= 1 - e^((1-a) eps) prod (sum over cells P^a Q^(1-a))^k_i.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct.arithmetic import arithmetic
from jaxacct.composition import Facts, Parts, facts_of
from jaxacct.dominating_pairs import DominatingPair
from jaxacct.precision import TINY, log_complement
from jaxacct.programs import compiled
from jaxacct.pytrees import of_each
from jaxacct.question import ForEpsilon, Question

POWERS = np.array([1e-3, 1e-2, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 0.99, 0.999])
"""Values of a."""

EDGES = np.concatenate([-np.exp2(np.arange(12.0, -40.0, -0.25)), np.exp2(np.arange(-40.0, 12.25, 0.25))])
"""Losses between which cells lie, about a loss amid the bulk."""


@compiled
def logs_of(pairs: DominatingPair, epsilon: Array) -> tuple[Array, Array, Array]:
    """Returns, of pairs (m,), upper bounds on -log(1 - delta(0)) of one run, (m,), and on the logs of the sums, (m, a).

    And bounds (m, 2) on delta of one run at ``epsilon``.

    A sum of n terms, each two functions of an exponent that is at most 750 in size, is right to 16 F (n + 750).
    """

    def of(pair: DominatingPair) -> tuple[Array, Array, Array]:
        infinity = jnp.full(1, jnp.inf)
        cells = pair.cell_masses(jnp.concatenate([-infinity, pair.central_loss() + jnp.asarray(EDGES), infinity]))
        log_p, log_q = jnp.log(cells.p + cells.p_error + TINY), jnp.log(cells.q + cells.q_error + TINY)
        sums = jax.vmap(lambda a: jax.nn.logsumexp(a * log_p + (1 - a) * log_q))(jnp.asarray(POWERS))
        sums = sums + arithmetic().function * 16 * (len(EDGES) + 750)
        _, unnoticed = pair.one_run(jnp.zeros(()))
        noticed = jnp.minimum(unnoticed + pair.infinite_mass(), 1.0)
        return -log_complement(noticed) * (1 + 2 * arithmetic().function), sums, jnp.stack(pair.one_run(epsilon))

    return of_each(of)(pairs)


def without_composing(parts: Parts, question: Question) -> tuple[Array, Array]:
    """Returns bounds (lower, upper) that answer a question, for one direction."""
    epsilon = np.float64(0.0) if isinstance(question, ForEpsilon) else question.epsilon
    every = [logs_of(pairs, epsilon) for pairs, _ in parts]
    return _bracket([steps for _, steps in parts], every, facts_of(parts), question)


@compiled
def _bracket(
    counts: list[Array], every: list[tuple[Array, Array, Array]], facts: Facts, question: Question
) -> tuple[Array, Array]:
    run = [steps > 0 for steps in counts]
    noticed = [jnp.sum(jnp.where(r, k * log, 0.0)) for r, k, (log, *_) in zip(run, counts, every, strict=True)]
    sums = [
        jnp.sum(jax.vmap(lambda r, k, row: jnp.where(r, k * row, 0.0))(r, k, logs), axis=0)
        for r, k, (_, logs, _) in zip(run, counts, every, strict=True)
    ]
    # Sums and products, which round once a term, and the function.
    rounding = arithmetic().function * (4 + sum(map(len, counts)))
    most = jnp.minimum(-jnp.expm1(-sum(noticed, jnp.zeros(()))) * (1 + rounding), 1.0)
    log_overlap = sum(sums, jnp.zeros(len(POWERS)))
    log_overlap = log_overlap + rounding * jnp.abs(log_overlap)
    rest = 1 - POWERS
    if isinstance(question, ForEpsilon):
        # delta exceeds its value as long as e^((1-a) eps) times the overlap is below one less it.
        lower = jnp.max((log_complement(question.delta) - log_overlap) / rest)
        lower, upper = lower - rounding * jnp.abs(lower), jnp.where(most <= question.delta, 0.0, jnp.inf)
    else:
        log_missed = jnp.min(rest * question.epsilon + log_overlap)
        # What is missed may be less than a unit of 1.
        lower = -jnp.expm1(log_missed + rounding * (jnp.abs(log_missed) + question.epsilon))
        lower = lower * (1 - 2 * arithmetic().function)
        # Of a single run, with all of the infinite mass or none.
        alone = [jnp.sum(jnp.where(r[:, None], own, 0.0), axis=0) for r, (*_, own) in zip(run, every, strict=True)]
        is_alone = sum(map(jnp.sum, counts), jnp.zeros(())) == 1
        least, greatest = sum(alone, jnp.zeros(2)) + jnp.stack(facts.infinite) * (1 + jnp.array([-rounding, rounding]))
        lower = jnp.where(is_alone, jnp.maximum(lower, least * (1 - rounding)), lower)
        upper = jnp.where(is_alone, jnp.minimum(most, greatest * (1 + rounding)), most)
    known = facts.is_valid & ~jnp.isnan(lower)
    return jnp.where(known, jnp.maximum(lower, 0.0), 0.0), jnp.where(facts.is_valid, upper, question.worst)
