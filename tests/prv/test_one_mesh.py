"""One mesh for all steps, by the few frequencies that are left: brackets against exact ones, and bounds of parts."""

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.composition import directed_parts
from jaxacct.precision import scope
from jaxacct.prv import chernoff, frequencies
from jaxacct.prv.placing import positions_of
from jaxacct.question import ForDelta, ForEpsilon

RUNS = np.random.default_rng(5).uniform([-0.4, -8.0, 4.5, -16.0], [1.2, -1.5, 15.0, -7.0], (6, 4))


@pytest.mark.parametrize("run", np.exp(RUNS).tolist())
def test_brackets_hold_the_exact_ones(run):
    noise, rate, steps, delta = run
    mechanism, steps = ja.PoissonSubsampledGaussian(noise, rate), int(steps)
    exact = ja.saddlepoint.epsilon(mechanism, steps, delta, relation="remove")
    bounds = ja.prv.epsilon(mechanism, steps, delta, relation="remove", tolerance=1e-2)
    assert bounds.lower <= exact.upper
    assert bounds.upper >= exact.lower
    assert bounds.converged


def test_cost_does_not_grow_with_the_steps():
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.8e-4)
    bounds, record = ja.prv.epsilon(mechanism, 10**8, 1e-5, relation="remove", return_diagnostics=True)
    exact = ja.saddlepoint.epsilon(mechanism, 10**8, 1e-5, relation="remove")
    assert bounds.lower <= exact.upper
    assert bounds.upper >= exact.lower
    assert record.stages.count == 1


def test_spectra_fall_as_the_overlaps_say():
    """|phi(w)| <= sum of the weights - (1 - cos mw) H_m, at any w and for any weights."""
    generator = np.random.default_rng(3)
    spacing = 2.0 ** np.sort(generator.integers(0, 4, frequencies.BLOCKS))
    with scope():
        positions = np.asarray(positions_of(spacing, 256))
        weights = generator.dirichlet(np.full(256, 0.3), 2)
        overlaps = np.asarray(frequencies._overlaps(weights, positions))
    angles = generator.uniform(0, np.pi, 200)
    moduli = np.abs(np.exp(1j * angles[:, None] * positions) @ weights.T)
    falls = (1 - np.cos(angles[:, None] * 2.0 ** np.arange(frequencies.RUNGS)))[..., None] * overlaps.T
    assert np.all(moduli <= 1 - np.max(falls, axis=1) + 1e-12)
    assert np.max(overlaps) > 0.01


SEQUENCES = np.random.default_rng(6).uniform([-0.3, -7.0, 2.0], [2.0, -1.5, 8.0], (5, 3, 3))


def test_different_mechanisms_go_by_one_mesh():
    """The third is run once, with a window as wide as that of all the others together, or few times."""
    taken = []
    for index, rows in enumerate(np.exp(SEQUENCES).tolist()):
        noise, rate, steps = map(np.array, zip(*rows, strict=True))
        steps = np.floor(steps)
        noise[2], rate[2], steps[2] = [(1.5, 1.0, 1), (40.0, 1.0, 3), (noise[2], rate[2], 20)][index % 3]
        mechanism = ja.PoissonSubsampledGaussian(noise, rate)
        bounds, record = ja.prv.epsilon(
            mechanism, steps, 1e-5, tolerance=1e-2, relation="remove", return_diagnostics=True
        )
        exact = ja.saddlepoint.epsilon(mechanism, steps, 1e-5, relation="remove")
        assert bounds.lower <= exact.upper
        assert bounds.upper >= exact.lower
        assert bounds.converged
        taken.append(record.stages.count == 1)
    assert sum(taken) >= 3


@pytest.mark.parametrize("relation", ["add", "remove"])
def test_bounds_without_a_mesh_hold_at_any_order(relation):
    generator = np.random.default_rng(8)
    for noise, rate, steps, delta in np.exp(RUNS).tolist():
        mechanism = ja.PoissonSubsampledGaussian(noise, rate)
        exact = ja.saddlepoint.epsilon(mechanism, int(steps), delta, relation=relation)
        at = float(exact.estimate)
        with scope():
            (parts,) = directed_parts(mechanism, int(steps), relation)
            for order in generator.uniform(0.3, 3, 4) * np.log(1 / delta) / at:
                asked = np.float64(delta), np.bool_(True), np.float64(1e3)
                found = float(chernoff.largest(parts, np.float64(order), asked, ForEpsilon(np.float64(delta))))
                assert found >= exact.lower
                found = float(chernoff.largest(parts, np.float64(order), asked, ForDelta(np.float64(at))))
                assert found >= delta * (1 - 1e-6)
            order = np.float64(2 * np.log(1 / delta) / at)
            assert float(chernoff.largest(parts, order, asked, ForEpsilon(np.float64(delta)))) < 1.5 * at
