"""No runs release nothing: they cost exactly 0 in every accountant and ledger, of whatever they are runs."""

import jax
import numpy as np
import pytest
from test_ledger_counts import EXAMPLES, LEDGERS, assert_identical

import jaxacct as ja

NOISES = np.array([np.nan, -1.0, 0.0, 2.0], np.float32)
"""Traced: invalid, invalid, without noise, ordinary."""

EPSILONS = {
    "exact": lambda *a: ja.saddlepoint.epsilon(*a).upper,
    "mesh": lambda *a: ja.prv.epsilon(*a, points=2**10).upper,
    "rdp": ja.rdp.epsilon,
}


@pytest.mark.parametrize("accountant", EPSILONS)
def test_in_every_accountant(accountant):
    def ask(noise, steps):
        return EPSILONS[accountant](ja.Gaussian(noise), steps, 1e-5)

    ask = jax.jit(jax.vmap(ask, in_axes=(0, None)))
    assert ask(NOISES, 0).tolist() == [0.0] * 4
    run = ask(NOISES, 1)
    assert np.all(np.isinf(run[:3]))
    assert 0 < run[3] < np.inf
    # What is no number of runs is none of no runs either.
    assert np.all(np.isinf(ask(NOISES, np.float32(np.nan))))


@pytest.mark.parametrize("name", LEDGERS)
def test_in_every_ledger(name):
    make, mechanism, _ = LEDGERS[name]
    kind = type(mechanism)
    ledger = make()
    wide = (lambda value: value * np.ones(EXAMPLES, np.float32)) if name == "IndividualRenyiFilter" else lambda v: v
    spend = jax.jit(lambda value, steps: ledger.spend(kind(wide(value)), steps))
    for value in (np.float32(np.nan), np.float32(-1.0)):
        granted, after = spend(value, 0)
        assert np.all(granted)
        assert_identical(after, ledger)
        assert not np.any(spend(value, 1)[0])
