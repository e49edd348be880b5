"""Upper bounds on cumulants: never below what the nodes say exactly, whatever cancels, and hardly above it."""

import jax
import mpmath
import numpy as np
import pytest
from helpers.thorough import program

from jaxacct.mechanisms.pair import Nodes, cumulant_above

above = program(cumulant_above)


def exactly(losses, log_p, order):
    with mpmath.workdps(60):
        terms = [mpmath.exp(mpmath.mpf(float(a)) + mpmath.mpf(order) * mpmath.mpf(float(y)))
                 for a, y in zip(log_p, losses, strict=True) if np.isfinite(a)]  # fmt: skip
        return mpmath.log(mpmath.fsum(terms))


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 30.0, 1000.0])
def test_it_is_above_what_nodes_say_by_some_roundings(scale):
    random = np.random.default_rng(int(1e6 * scale))
    for order in np.exp(random.uniform(-8, 4, 8)):
        losses = scale * random.normal(size=256)
        # Tilted back, so that what counts is a small difference of large numbers.
        log_p = -order * losses - random.exponential(20.0, 256) if scale > 1 else -random.exponential(20.0, 256)
        log_p[random.integers(0, 256, 5)] = -np.inf
        with jax.enable_x64(True):
            nodes = Nodes(losses, log_p, log_p, *np.zeros(2), np.arange(256.0))
            found = float(above(nodes, np.float64(order)))
        exact = exactly(losses, log_p, order)
        sizes = np.where(np.isfinite(log_p), np.abs(log_p), 0.0).max() + order * np.abs(losses).max()
        assert exact <= found <= exact + 2.0**-53 * (300 + 24 * sizes)


def test_what_overflows_is_no_bound_from_below():
    with jax.enable_x64(True):
        losses = np.linspace(0.0, 1e308, 256)
        found = above(Nodes(losses, np.full(256, -5.0), losses, *np.zeros(2), np.arange(256.0)), np.float64(10.0))
    assert not np.asarray(found) < np.inf
