"""A guarantee of one direction is not one of its reverse: pairs, filters, curves, searches and attacks under "remove"
and "add", against brute force over finite pairs."""

import itertools

import jax
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import calibrate, certified, convert, rdp, tradeoff
from jaxacct.calibrate import targets
from jaxacct.composition import ForDelta

ONE_WAY = ("remove", "add")
TOLD = ja.DiscretePair([1.0, 0.0], [0.99, 0.01])
"""A pair whose first direction has a loss of 0.01 surely, and whose second one may tell everything."""
LOSS = -np.log(0.99)


def masses(mechanism, relation):
    """P, Q and the losses of the one pair under a relation."""
    (pair,) = mechanism.dominating_pairs(relation)
    return (np.asarray(x, np.float64) for x in (pair.p, pair.q, pair.losses))


def hockey_stick(p, q, factor):
    """sup over events of P - factor Q, of the factor's shape."""
    return np.sum(np.maximum(p - np.expand_dims(factor, -1) * q, 0.0), axis=-1)


def random_pair(random, epsilon, delta):
    """Masses P and Q of four outcomes with P(S) <= e^epsilon Q(S) + delta for all S, with equality for some S."""
    while True:
        p, q = random.dirichlet(np.full(4, 0.5), 2)
        excess = hockey_stick(p, q, np.exp(epsilon))
        if excess <= delta:
            return p, q
        # A mixture of Q with P has less of an excess; as much as it takes.
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            mixed = hockey_stick(p, (1 - middle) * q + middle * p, np.exp(epsilon)) <= delta
            low, high = (low, middle) if mixed else (middle, high)
        if high < 1:
            return p, (1 - high) * q + high * p


@pytest.mark.parametrize("count", [100, pytest.param(20_000, marks=pytest.mark.exhaustive)])
def test_the_pair_dominates_every_one_way_guarantee(count):
    """At every real epsilon, those below 0 among them, as compositions need; and randomized response does not."""
    random = np.random.default_rng(5)
    settings = [(e, d) for e in (0.01, 0.3, 2.0) for d in (0.0, 0.01, 0.4)]
    pairs = {(e, d): [list(masses(ja.ApproximateDP(e, d), r)) for r in (*ONE_WAY, "replace")] for e, d in settings}
    factors = np.exp(np.concatenate([np.linspace(-6, 6, 49), -np.geomspace(1e-6, 1, 20), [0.0]]))
    beaten = 0
    for _, (e, d) in zip(range(count), itertools.cycle(settings), strict=False):
        p, q = random_pair(random, e, d)
        found, *own = (hockey_stick(*each[:2], factors) for each in ((p, q), *pairs[e, d]))
        assert np.all(found <= own[0] + 1e-12)
        assert np.all(found <= own[1] + 1e-12)
        beaten += np.any(found > own[2] + 1e-9)
    assert beaten > 0


def test_the_pair_has_the_guarantee_itself():
    for epsilon, delta in [(0.0, 0.0), (1e-12, 0.0), (0.5, 0.25), (700.0, 1e-3), (1.0, 1.0)]:
        p, q, losses = masses(ja.ApproximateDP(epsilon, delta), "remove")
        np.testing.assert_allclose([p.sum(), q.sum()], 1.0, atol=1e-15)
        assert hockey_stick(p, q, np.exp(epsilon)) == pytest.approx(delta, abs=1e-15)
        assert np.all((q[p > 0] > 0) | np.isinf(losses[p > 0]))
    p, q, losses = masses(ja.PureDP(0.5), "add")
    assert (p.tolist(), losses.tolist()) == ([1.0, 0.0], [0.5, -np.inf])
    np.testing.assert_allclose(q, [np.exp(-0.5), -np.expm1(-0.5)], rtol=1e-15)


@pytest.mark.parametrize("relation", ONE_WAY)
def test_many_runs_cost_as_much_as_those_of_a_mechanism_that_has_the_guarantee(relation):
    told = ja.epsilon(TOLD, 100, 1e-6, relation="remove")
    stated = ja.epsilon(ja.PureDP(LOSS), 100, 1e-6, relation=relation)
    truth = 100 * LOSS + np.log1p(-1e-6)
    for found in (told, stated):
        assert found.lower <= truth * (1 + 1e-14)
        assert truth * (1 - 1e-14) <= found.upper < truth * (1 + 1e-9)
        assert found.converged
    found = ja.delta(ja.ApproximateDP(0.1, 1e-3), 10, 0.3, relation=relation)
    assert found.lower <= 1 - (1 - 1e-3) ** 10 * np.exp(-0.7) <= found.upper < found.lower * (1 + 1e-9)
    verdict = ja.verify.epsilon(ja.PureDP(LOSS), 100, 1e-6, (stated.lower, stated.upper), relation=relation)
    assert verdict.status == "PROVED"


FILTERS = [
    ja.filters.ApproximateDPFilter,
    *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in (ja.filters.ZCDPFilter, ja.filters.RenyiFilter)),
]
ODOMETERS = [
    ja.odometers.RogersOdometer,
    *(
        pytest.param(getattr(ja.odometers, f"{name}Odometer"), marks=pytest.mark.exhaustive)
        for name in ("Renyi", "Ville", "Filter", "Mixture", "Stitched")
    ),
]


@pytest.mark.parametrize("kind", FILTERS)
def test_filters_grant_no_more_than_the_losses_themselves(kind):
    """A hundred runs cost 1.005."""
    budget, stated = kind(0.5, 1e-6), ja.PureDP(LOSS)
    for relation in ONE_WAY:
        assert not budget.spend(stated, 100, relation=relation)[0]
        assert budget.remaining(stated, relation=relation) <= 0.5 / LOSS
    assert budget.remaining(stated) > 0.5 / LOSS  # both directions


@pytest.mark.parametrize("kind", ODOMETERS)
def test_odometers_read_the_losses_themselves(kind):
    for relation in ONE_WAY:
        _, spent = kind(1e-6).spend(ja.PureDP(LOSS), 100, relation=relation)
        assert spent.epsilon() >= 100 * LOSS


@pytest.mark.exhaustive
def test_divergences_of_one_direction_are_the_loss_at_every_order():
    for relation in ONE_WAY:
        found = np.asarray(rdp.curve(ja.PureDP(LOSS), [1.5, 2.0, 64.0], relation=relation))
        assert np.all((found >= LOSS) & (found <= LOSS * (1 + 1e-9)))


def test_single_numbers_of_one_direction():
    assert convert.mechanism_to_zcdp(ja.PureDP(0.1), relation="add")[0] >= 0.1  # a divergence of 0.1 at order 1
    assert convert.mechanism_to_zcdp(ja.ApproximateDP(0.1, 0.2), relation="remove")[1] == 0.2
    assert convert.mechanism_to_zcdp(ja.PureDP(0.1), relation="replace")[0] < 0.006
    assert convert.mechanism_to_zcdp(ja.Laplace(10.0), relation="add")[0] < 0.006
    with pytest.raises(ValueError, match="one direction"):
        convert.mechanism_to_gdp(ja.PureDP(0.1), relation="remove")
    with pytest.raises(ValueError, match="one direction"):
        ja.filters.GDPFilter(1.0, 1e-5).spend(ja.PureDP(0.1), relation="add")


@pytest.mark.parametrize("relation", ONE_WAY)
def test_a_search_takes_both_directions(relation):
    """The bound on the best of some runs in one direction uses how far the other one goes."""
    sampled = ja.PoissonSubsampledGaussian(0.7, 0.05)
    with pytest.raises(ValueError, match="relation"):
        calibrate.most_trials(sampled, 1, 1.0, 1e-3, relation=relation)
    with pytest.raises(ValueError, match="both directions"):
        certified.profile_of_one_run((sampled, 1), ForDelta(np.ones(1)), 1.0, relation)
    with pytest.raises(ValueError, match="relation"):
        ja.epsilon(ja.RepeatAndSelect(sampled, 1, ja.selection.Geometric(3.0)), 1, 1e-5, relation=relation)


def test_a_reverse_that_is_not_known_is_between_nothing_and_all():
    profile = tradeoff.Profile(*(np.array(x) for x in ([0.0, 1.0, 2.0], [0.3, 0.1, 0.0], [0.3, 0.1, 0.01])))
    with jax.enable_x64(True):
        found, known = (tradeoff._both_sides(profile, profile, is_one_way) for is_one_way in (True, False))
    np.testing.assert_allclose(found.upper[:2], 1.0)
    np.testing.assert_allclose(found.lower[:2], np.maximum(-np.expm1([-2.0, -1.0]), 0.3), rtol=1e-12)
    np.testing.assert_allclose(known.upper[1], 1 - np.exp(-1) * 0.9, rtol=1e-12)


@pytest.mark.parametrize(("tpr", "fpr", "second"), [(0.05, 0.01, False), (0.95, 0.9, True), (0.99, 0.5, True)])
def test_the_second_form_of_an_attack_asks_the_other_direction(monkeypatch, tpr, fpr, second):
    asked = []
    monkeypatch.setattr(targets, "tangent", lambda relation, rate, false, *_: asked.append((relation, rate, false)) or (
        np.float64(0.5), np.float64(0.1)))  # fmt: skip
    monkeypatch.setattr(targets, "_calibrate", lambda *given: given[2])
    for relation, other in (("remove", "add"), ("add", "remove"), ("add_or_remove", "add_or_remove")):
        assert calibrate.noise_multiplier_for_tpr(tpr, fpr, 0.01, 100, relation=relation) == (
            other if second else relation
        )
        rates = (1 - fpr, 1 - tpr) if second else (tpr, fpr)
        np.testing.assert_allclose(np.array(asked[-1][1:], np.float64), rates, rtol=1e-15)


@pytest.mark.exhaustive
@pytest.mark.parametrize("relation", ONE_WAY)
@pytest.mark.parametrize(("tpr", "fpr"), [(0.95, 0.9), (0.2, 0.05)])
def test_the_noise_for_an_attack_keeps_it_from_its_rate(relation, tpr, fpr):
    found = calibrate.noise_multiplier_for_tpr(tpr, fpr, 0.01, 100, relation=relation)
    sampled = ja.PoissonSubsampledGaussian(float(found.value), 0.01)
    reached = tradeoff.true_positive_rate(sampled, 100, fpr, relation=relation)
    assert reached.lower <= tpr
    # Under "add" sampling alone keeps an attack from a rate of 0.2: of next to no noise nothing more is known.
    assert reached.upper <= tpr + 1e-3 or found.value < 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize("relation", ONE_WAY)
def test_trade_off_curves_of_one_direction(relation):
    rates = np.array([0.0, 0.01, 0.1, 0.3, 0.5, 0.9])
    for mechanism, runs, delta, epsilon in (
        (ja.PureDP(LOSS), 30, 0.0, 30 * LOSS), (ja.ApproximateDP(0.05, 0.01), 5, 1 - 0.99**5, 0.25)
    ):  # fmt: skip
        truth = np.maximum(0.0, 1 - delta - np.exp(epsilon) * rates)
        found = tradeoff.curve(mechanism, runs, rates, relation=relation)
        assert np.all(found.lower <= truth + 1e-14)
        assert np.all(truth <= found.upper + 1e-14)
        np.testing.assert_allclose(found.lower, truth, atol=1e-4)
    told = tradeoff.curve(TOLD, 30, rates, relation="remove")
    assert np.all(tradeoff.curve(ja.PureDP(LOSS), 30, rates, relation=relation).lower <= told.upper)


@pytest.mark.exhaustive
def test_reconstruction_of_what_holds_both_ways():
    found = tradeoff.TradeOff(ja.PureDP(1.0), 1).reconstruction(0.1)
    assert found.lower <= 0.1 * np.e * (1 + 1e-12) <= found.upper * (1 + 2e-12)


def composed(parts):
    """P, Q of all outcomes of a product of finite pairs; the masses that Q has not come first."""
    p, q = np.ones(1), np.ones(1)
    for own_p, own_q, count in parts:
        for _ in range(count):
            p, q = np.outer(p, own_p).ravel(), np.outer(q, own_q).ravel()
    return p, q


@pytest.mark.exhaustive
@pytest.mark.parametrize("relation", ONE_WAY)
def test_random_compositions_against_brute_force(relation):
    """Pairs of the guarantees, and mechanisms that have them, composed with pairs of two very different directions."""
    random = np.random.default_rng(17)
    for _ in range(400):
        e, d, own = random.uniform(0.01, 1.0), random.choice([0.0, 1e-6, 0.05]), random.uniform(0.01, 0.5)
        told = ja.DiscretePair(np.array([1.0, 0.0]), np.array([1 - own, own]))
        stated = ja.ApproximateDP(e, d)
        counts = tuple(int(k) for k in random.integers(1, 4, 2))
        p, q = random_pair(random, e, d)
        (pair,) = told.dominating_pairs(relation)
        beside = np.asarray(pair.p, np.float64), np.asarray(pair.q, np.float64), counts[1]
        epsilon = random.uniform(0.0, 1.5)
        found = ja.delta((stated, told), counts, epsilon, relation=relation)
        actual = hockey_stick(*composed([(p, q, counts[0]), beside]), np.exp(epsilon))
        own_p, own_q, _ = masses(stated, relation)
        exact = hockey_stick(*composed([(own_p, own_q, counts[0]), beside]), np.exp(epsilon))
        assert actual <= found.upper * (1 + 1e-12) + 1e-15
        assert found.lower <= exact * (1 + 1e-12) + 1e-15
        assert exact <= found.upper * (1 + 1e-12) + 1e-15


@pytest.mark.exhaustive
@pytest.mark.parametrize("relation", ONE_WAY)
def test_random_single_losses_against_their_closed_form(relation):
    random = np.random.default_rng(23)
    for _ in range(1500):
        e, d, k = random.uniform(1e-4, 2.0), random.choice([0.0, 1e-9, 1e-3]), int(random.integers(1, 200))
        left, given = (1 - d) ** k, random.uniform(0.0, 1.0) * k * e
        found = ja.delta(ja.ApproximateDP(e, d), k, given, relation=relation)
        truth = 1 - left * np.exp(given - k * e)
        assert found.lower <= truth + 1e-13 * (1 + k * e)
        assert truth <= found.upper + 1e-13 * (1 + k * e)
        delta = 1 - left + left * random.uniform(0, 0.9)
        if 0 < delta < 1:
            found = ja.epsilon(ja.ApproximateDP(e, d), k, delta, relation=relation)
            truth = max(k * e + np.log((1 - delta) / left), 0.0)
            assert found.lower - 1e-11 <= truth <= found.upper + 1e-11
