"""The sandwich on a lattice holds the truth, and closes on it by the square of the step."""

import math

import pytest
from flint import arb, ctx
from helpers.laws_in_balls import stated

import jaxacct as ja
from jaxacct import verify
from jaxacct.verify import cells, statements


@pytest.fixture(autouse=True)
def bits():
    with ctx.workprec(200):
        yield


SUBSAMPLED = ja.PoissonSubsampledGaussian(0.8, 0.1)
ONE_RUN = {
    "laplace": (ja.Laplace(4.0), "remove", 0.1),
    "laplace sampled": (ja.PoissonSubsampledLaplace(1.0, 0.3), "add", 0.1),
    "laplace without replacement": (ja.LaplaceWithoutReplacement(2.0, 0.01), "replace", 0.005),
    "gaussian sampled, no loss above a bound": (SUBSAMPLED, "add", 0.09),
    "gaussian sampled, no loss below a bound": (SUBSAMPLED, "remove", 0.5),
    "gaussian without replacement": (ja.GaussianWithoutReplacement(2.0, 0.1), "replace", 0.3),
    "normal": (ja.Gaussian(2.0), "remove", 0.7),
    "known coins": (ja.TruncatedPoissonGaussian.for_batches(0.8, 0.1, (100, 101), 12), "remove", 0.3),
    "finite": (ja.DiscreteLaplace(2.0, 2), "remove", 0.3),
}


@pytest.mark.first_tier("laplace", "laplace sampled", "finite")
@pytest.mark.parametrize("name", ONE_RUN)
def test_one_run_lies_between(name):
    mechanism, relation, epsilon = ONE_RUN[name]
    (law,) = stated(mechanism, relation)
    truth = law.single(arb(epsilon))
    widths = []
    for size in (100, 400):
        found = cells.Composed([(law, 1)], epsilon, size).delta(arb(epsilon))
        assert found.contains(truth)
        widths.append(float(found.rad() / truth))
    assert widths[1] < (widths[0] / 8 if name != "finite" else 1e-2)


@pytest.mark.parametrize("count", [2, 7, 1100])
def test_many_runs_lie_between(count):
    (law,) = stated(ja.Laplace(4.0), "remove")
    epsilon = 0.2 if count < 10 else 50.0
    truth = statements.delta_of_many_laplace(law.laplace, count, arb(epsilon)) if count < 10 else None
    found = [cells.Composed([(law, count)], epsilon, size).delta(arb(epsilon)) for size in (500, 4000)]
    assert found[0].contains(found[1])
    assert found[1].rad() < found[0].rad() / 10
    assert truth is None or found[1].contains(truth)


@pytest.mark.parametrize("name", ["laplace sampled", "gaussian sampled, no loss below a bound"])
def test_each_law_has_the_masses_that_its_side_asks_for(name):
    mechanism, relation, _ = ONE_RUN[name]
    (law,) = stated(mechanism, relation)
    points = cells.lattice(law, 0.01)
    above, below = (side(law, points, 1e-15, -50.0) for side in (cells.upper, cells.lower))
    p = sum(above.points.values(), arb(0)) + sum(above.left_out, arb(0))
    assert p.contains(1) or abs(p - 1) < 1e-40
    q = sum((mass * (-points.point(j)).exp() for j, mass in above.points.items()), arb(0))
    assert abs(q - 1) < 1e-11
    assert 0.999 < sum(below.points.values(), arb(0)) <= 1 + arb(1e-40)
    for epsilon in (-0.2, 0.0, 0.03, 0.2, 0.5):  # at every threshold, not at one alone
        value = law.single(arb(epsilon))
        over, under = (
            sum((m * (1 - (epsilon - points.point(j)).exp()).max(arb(0)) for j, m in side.points.items()), arb(0))
            for side in (above, below)
        )
        assert under <= value + arb(1e-30)
        assert value <= over + sum(above.left_out, arb(0)) + arb(1e-30)


@pytest.mark.exhaustive
def test_a_bracket_of_laws_with_atoms_is_decided():
    # Two different scales: the transform falls as 1/w alone.
    runs = (ja.Laplace(2.0), ja.Laplace(3.0)), (3, 4)
    for claim, status in (((2.7208, 2.7216), "PROVED"), ((0.0, 2.7208), "REFUTED"), ((2.7216, math.inf), "REFUTED")):
        assert verify.epsilon(*runs, 1e-3, claim).status == status
