"""The fixtures that tests of sweeps share."""

import numpy as np
import pytest
from helpers.small_sweep import QUIET, SETTINGS

import jaxacct as ja


@pytest.fixture(scope="package")
def found():
    """The small sweep, in memory."""
    return ja.sweep.epsilon(SETTINGS, **QUIET)


@pytest.fixture
def computed(monkeypatch):
    """In place of what computes: the number of the entry."""

    def computed(quantity, settings, devices, memory, part, advance):
        numbers = np.arange(part.start, part.stop, dtype=float)
        found = dict.fromkeys(("lower", "estimate", "upper"), numbers)
        return found | {"converged": numbers >= 0, "accountant": np.ones(len(numbers), np.int8)}

    monkeypatch.setattr(ja.sweep.compute, "compute", computed)
