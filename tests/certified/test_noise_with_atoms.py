"""Losses with atoms, which the exact accountant leaves to the mesh: never wider by default than a lattice of others."""

import pytest

import jaxacct as ja

LATTICE = [(50.0, 3000, 1e-6, 5.397911864315109), (5.0, 100, 1e-6, 10.276481123866905)]
"""Scale, steps, delta, and the upper bound of dp-accounting 0.6 by its own defaults."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scale", "steps", "delta", "peer"), LATTICE)
def test_laplace_noise(scale, steps, delta, peer):
    found = ja.epsilon(ja.Laplace(scale), steps, delta)
    assert found.lower <= found.upper <= peer
    assert found.gap < 1e-7
