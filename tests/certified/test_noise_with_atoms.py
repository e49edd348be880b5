"""Losses with atoms, which the exact accountant leaves open: by default as tight as a lattice of others."""

import mpmath as mp
import numpy as np
import pytest

import jaxacct as ja

LATTICE = [(50.0, 3000, 1e-6, None, 5.397911864315109, 0.0), (5.0, 100, 1e-6, 1e-8, 10.276481123866905, 2e-9)]
"""Scale, steps, delta, the tolerance that is asked for, the upper bound of dp-accounting 0.6 by its own defaults, and
the share of it by which ours may be above: losses of few runs lie on its lattice to all of its digits."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scale", "steps", "delta", "tolerance", "peer", "share"), LATTICE)
def test_laplace_noise(scale, steps, delta, tolerance, peer, share):
    found = ja.epsilon(ja.Laplace(scale), steps, delta, tolerance=tolerance)
    assert found.lower <= found.upper <= peer * (1 + share)
    assert found.gap < (tolerance or 1e-7)


def worst(p: list, q: list, runs: int, epsilon: float) -> mp.mpf:
    """Returns delta of runs of two outcomes, the sum over how often the first one came."""
    factor = mp.exp(mp.mpf(epsilon))
    each = (
        mp.binomial(runs, n) * (p[0] ** n * p[1] ** (runs - n) - factor * q[0] ** n * q[1] ** (runs - n))
        for n in range(runs + 1)
    )
    return sum(max(term, mp.mpf(0)) for term in each)


FEW = {
    "response": (ja.RandomizedResponse(0.3), 0.3, None, 10, 1e-5),
    "small response": (ja.RandomizedResponse(0.07), 0.07, None, 14, 0.08),
    "three runs": (ja.RandomizedResponse(1.0), 1.0, None, 3, 1e-6),
    "rare": (ja.DiscretePair(p=[2.0**-13, 1 - 2.0**-13], q=[2.0**-38, 1 - 2.0**-38]), None, 2.0**-13, 9, 1e-5),
}
"""Mechanism, epsilon of a response or mass of a rare loss of 25 log 2, runs, delta."""


@pytest.mark.exhaustive
@pytest.mark.first_tier("response")
@pytest.mark.parametrize("name", FEW)
def test_few_runs_of_few_losses(name):
    """Few, or rare, losses on a lattice: exact sums in 60 digits lie within brackets of seven digits."""
    mechanism, loss, mass, runs, delta = FEW[name]
    with mp.workdps(60):
        if loss is not None:
            high = 1 / (1 + mp.exp(-mp.mpf(loss)))
            p, q = [high, 1 - high], [1 - high, high]
        else:
            p, q = ([mp.mpf(x), 1 - mp.mpf(x)] for x in (mass, mass * 2.0**-25))
        relation = "remove" if mass else "add_or_remove"
        found = ja.epsilon(mechanism, runs, delta, relation=relation)
        assert worst(p, q, runs, float(found.upper)) <= delta <= worst(p, q, runs, float(found.lower))
        assert found.gap < 1e-7
        epsilons = np.linspace(0.0, 1.2 * float(found.upper), 5)
        profile = ja.curve(mechanism, runs, epsilons=epsilons, relation=relation)
        at = ja.delta(mechanism, runs, epsilons[2], relation=relation)
        for epsilon, low, high in zip(epsilons, profile.lower, profile.upper, strict=True):
            assert low <= worst(p, q, runs, epsilon) <= high
        assert at.lower <= worst(p, q, runs, epsilons[2]) <= at.upper
        assert at.gap < 1e-6


@pytest.mark.exhaustive
def test_a_tolerance_is_asked_of_all():
    """The exact accountant's own standard is wider than what was asked for."""
    run = ja.PoissonSubsampledGaussian(1.0, 1e-6), 369
    assert ja.delta(*run, 1e-9).gap > 1e-3
    assert ja.delta(*run, 1e-9, tolerance=1e-5).gap < 1e-5
