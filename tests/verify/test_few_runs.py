"""Few runs at small rates: what no one sees is left out, within the ball, and what is left is decided."""

import numpy as np
import pytest
from flint import acb, arb, ctx
from helpers.laws_in_balls import stated

import jaxacct as ja
from jaxacct import verify
from jaxacct.verify import contour, statements
from jaxacct.verify.contour import Piece, Tilt, total
from jaxacct.verify.verdict import _all, _any


@pytest.fixture(autouse=True)
def bits():
    with ctx.workprec(192):
        yield


RARE = ja.PoissonSubsampledGaussian(4.552, 0.002404)
ENDLESS = [
    (RARE, "remove"), (RARE, "replace"), (ja.GaussianWithoutReplacement(4.3, 0.00133), "replace"),
    (ja.GaussianMixture(1.3, [0.0, 1.0, 2.0], [0.99, 0.006, 0.004]), "remove"),
    (ja.TruncatedPoissonGaussian.for_batches(0.8, 0.03, (100, 101), 5), "remove"),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(ENDLESS)))
def test_outcomes_left_out_add_at_most_their_mass(i):
    (law,) = stated(*ENDLESS[i])
    draw = np.random.default_rng(i)
    for _ in range(12):
        epsilon, reach = arb(float(draw.normal(0, 0.3))), float(draw.uniform(0, 6))
        cut, beyond = statements.drop_tail(law, reach)
        missed = law.single(epsilon) - cut.single(epsilon)
        assert missed >= -arb(1e-40)
        assert missed <= beyond + arb(1e-40)
        # All of it at epsilon = -inf, and no more than the noise has there.
        assert abs(law.single(arb(-200)) - cut.single(arb(-200)) - beyond) < 1e-40
        assert beyond <= arb(2 * np.exp(-(reach**2) / 2))


@pytest.mark.parametrize("t", [1.0, 10.0, 40.0])
def test_a_law_that_is_cut_far_below_its_tilted_centre_has_its_moment(t):
    # N(1, 1) against N(0, 1): E[e^(tY); x < c] = e^((t^2 + t) / 2) P(N < c - 1 - t).
    cut, _ = statements.drop_tail(
        statements.mixtures("gaussian", arb(1), [(arb(1), arb(1))], [(arb(1), arb(0))], arb(1)), 3.0
    )
    place = cut.pieces[0].high
    moment = ((arb(t) ** 2 + t) / 2).exp() * (-(place - 1 - t) / arb(2).sqrt()).erfc() / 2
    found = contour.nodes(cut, arb(t), 0.0, moment, 80)
    whole = sum(found.weights, arb(0)) + arb(0, found.error)
    assert whole.contains(moment)
    assert whole.rad() < 1e-18 * moment
    assert abs(contour.cumulants(cut, t)[0] - float(moment.log())) < 0.1


@pytest.mark.parametrize("wanted", [2.0, 5.0, 8.0])
def test_a_line_without_them_holds_the_truth_and_is_as_narrow_as_was_wanted(wanted):
    (law,) = stated(RARE, "remove")
    runs, epsilon = [(law, 2)], 0.01
    truth = statements.delta_of_two_runs(law, law, arb(epsilon))
    cut, beyond = statements.likely(runs, epsilon, wanted)
    assert beyond > 0
    assert contour.sketched_saddle(cut, epsilon) > statements.WORTH * contour.sketched_saddle(runs, epsilon)
    found = contour.line(cut, epsilon, wanted).delta(arb(epsilon)) + arb(0).union(beyond)
    assert found.contains(truth)
    assert found.rad() < np.exp(5 - wanted) * truth


def test_many_runs_at_large_rates_keep_all_outcomes():
    (law,) = stated(ja.PoissonSubsampledGaussian(1.0, 0.1), "remove")
    runs = [(law, 1000)]
    assert statements.likely(runs, 20.0, 44.0) == (runs, arb(0))


def test_a_density_grows_off_the_line_by_no_more_than_its_bound():
    draw = np.random.default_rng(5)
    for _ in range(40):
        size = int(draw.integers(1, 4))
        weights, places = draw.exponential(size=size) ** 4, draw.normal(size=size)
        q = tuple((arb(c), arb(a)) for c, a in zip(weights.tolist(), places.tolist(), strict=True))
        tilt = Tilt(Piece(arb(1), ((arb(1), arb(5)),), q), arb(float(draw.exponential(20))))
        v = min(3.0, float(draw.uniform(0, 2.8)) / max(1e-3, float(np.ptp(places))))
        low = float(draw.normal(0, 5))
        high = low + float(draw.exponential())
        bound = tilt.growth(arb(v), arb(low), arb(high))
        assert bound <= tilt.growth(arb(v)) * (1 + arb(1e-40))
        for x, u in zip(draw.uniform(low, high, 8).tolist(), draw.uniform(-v, v, 8).tolist(), strict=True):
            ratio = abs(total(q, acb(x, u))) / total(q, arb(x))
            assert (arb(u) ** 2 / 2).exp() * ratio**-tilt.t <= bound * (1 + arb(1e-40))


def test_a_ratio_turns_off_the_line_by_no_more_than_its_bound():
    draw = np.random.default_rng(6)

    def terms(low, high):
        size = int(draw.integers(1, 4))
        return tuple(
            (arb(c), arb(a))
            for c, a in zip((draw.exponential(size=size) ** 4).tolist(), draw.uniform(low, high, size), strict=True)
        )

    for _ in range(40):
        over, under = terms(0.0, 2.0), terms(-2.0, 0.0)
        p, q = (over, under) if draw.uniform() < 0.5 else (under, over)
        v = float(draw.exponential(0.3))  # the terms' arguments lie within 2.8 if v is at most 1.4
        low = float(draw.normal(0, 3))
        high = low + float(draw.exponential())
        bound = Tilt(Piece(arb(1), p, q), arb(1)).argument(arb(low), arb(high), arb(min(v, 1.4)))
        for x, u in zip(draw.uniform(low, high, 8).tolist(), draw.uniform(0, min(v, 1.4), 8).tolist(), strict=True):
            turned = [sum((c * ((a - s[0][1]) * acb(x, u)).exp() for c, a in s), acb(0)).arg() for s in (p, q)]
            assert abs(turned[0] - turned[1] + u * (p[0][1] - q[0][1])) <= bound * (1 + arb(1e-40))


def test_what_is_proved_of_a_transform_takes_the_place_of_its_estimate():
    (law,) = stated(ja.LaplaceWithoutReplacement(17.534, 0.04331), "replace")
    t = arb(2.1)
    table = contour.table(law, 2.1)
    top = arb(contour.cumulants(law, 2.1)[0]).exp()
    row = table.at(150.0)[1]
    proved = table.prove(law, t, 150.0, top)
    assert abs(float((proved.bounds[row] / top).log()) - min(table.logs[row], 0.0)) > 1e-3
    assert np.all(np.delete(proved.logs - table.logs, row) == 0)
    assert proved.logs[row] == min(0.0, float((proved.bounds[row] / top).log()))


@pytest.mark.parametrize(("mechanism", "relation"), [(RARE, "remove"), (RARE, "add"), (ja.Laplace(4.0), "remove")])
def test_chernoffs_bound_is_above_delta(mechanism, relation):
    (law,) = stated(mechanism, relation)
    for epsilon in (1e-4, 1e-3, 2e-3):
        truth, bound = law.single(arb(epsilon)), contour.chernoff([(law, 1)], arb(epsilon))
        assert truth < bound < (30 if relation == "add" else 1e4) * truth


SETTINGS = [
    (ja.PoissonSubsampledGaussian(9.515, 0.001912), 3, "replace", 1.662e-10, 0.0033264506888030505),
    (RARE, 8, "add_or_remove", 3.816e-12, 0.010624700109080017),
    # So many runs that a bound on the transform which is a hundredth too low would say nothing.
    ((ja.GaussianWithoutReplacement(6.78, 0.004096), ja.LaplaceWithoutReplacement(17.534, 0.04331)), (1831, 406400),
     "replace", 1.337e-11, 25.67646087127638),
]  # fmt: skip


@pytest.mark.first_tier("0")
@pytest.mark.parametrize("i", range(len(SETTINGS)))
def test_few_runs_at_small_rates_are_decided_to_a_part_in_a_billion(i):
    mechanism, steps, relation, delta, truth = SETTINGS[i]
    for low, high, status in ((-1e-9, 1e-9, "PROVED"), (-1e-3, -1e-9, "REFUTED"), (1e-9, 1e-3, "REFUTED")):
        claim = truth * (1 + low), truth * (1 + high)
        assert verify.epsilon(mechanism, steps, delta, claim, relation=relation).status == status


def test_a_refuted_delta_says_the_largest_of_both_directions():
    # Of one direction alone it is far from the claim, and far below the other's.
    mechanism, epsilon = ja.PoissonSubsampledGaussian(1.0, 0.1), 0.5
    deltas = [stated(mechanism, side)[0].single(arb(epsilon)) for side in ("add", "remove")]
    verdict = verify.delta(mechanism, 1, epsilon, (0.0, 1e-9))
    assert verdict.status == "REFUTED"
    assert verdict.truth[0] <= max(map(float, deltas)) <= verdict.truth[1]
    assert verdict.truth[1] - verdict.truth[0] < 1e-12


def test_answers_are_asked_for_until_one_decides():
    answers = (True, False, None)
    for first in answers:
        for second in answers:
            both, either = _all((first, second)), _any((first, second))
            assert both is (False if False in (first, second) else None if None in (first, second) else True)
            assert either is (True if True in (first, second) else None if None in (first, second) else False)


@pytest.mark.exhaustive
def test_two_runs_of_a_law_with_many_places_of_noise_are_left_to_the_contour():
    # The integral over two runs knows three places: a group of three examples makes four.
    group = ja.PoissonSubsampledGroup(2.0, 0.1, 3, "gaussian")
    verdict = verify.delta(group, 2, 0.7, (0.0, 1e-9), relation="remove")
    assert verdict.status == "REFUTED"
    upper = float(np.max(ja.prv.delta(group, 2, 0.7, relation="remove", points=4096).upper))
    assert verify.delta(group, 2, 0.7, (0.0, upper), relation="remove").status == "PROVED"
