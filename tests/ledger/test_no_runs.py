"""No runs release nothing: they cost exactly 0 in every ledger, of whatever they are runs."""

import jax
import numpy as np
import pytest
from test_ledger_counts import EXAMPLES, LEDGERS, assert_identical

import jaxacct as ja


def test_in_the_renyi_accountant():
    traced = jax.jit(lambda noise, steps: ja.rdp.epsilon(ja.Gaussian(noise), steps, 1e-5))

    def ask(*given):
        return np.asarray(traced(*given))

    for noise in (np.nan, -1.0, 0.0):  # as in tests/certified/test_edges.py and tests/prv/test_transformations.py
        assert ask(np.float32(noise), 0) == 0
        assert ask(np.float32(noise), 1) == np.inf


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
