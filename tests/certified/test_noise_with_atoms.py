"""Losses with atoms, which the exact accountant leaves open: by default as tight as a lattice of others."""

import pytest

import jaxacct as ja

LATTICE = [(50.0, 3000, 1e-6, 5.397911864315109, 0.0), (5.0, 100, 1e-6, 10.276481123866905, 2e-9)]
"""Scale, steps, delta, the upper bound of dp-accounting 0.6 by its own defaults, and the share of it by which ours may
be above: losses of few runs lie on its lattice to all of its digits."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scale", "steps", "delta", "peer", "share"), LATTICE)
def test_laplace_noise(scale, steps, delta, peer, share):
    found = ja.epsilon(ja.Laplace(scale), steps, delta)
    assert found.lower <= found.upper <= peer * (1 + share)
    assert found.gap < 1e-7
