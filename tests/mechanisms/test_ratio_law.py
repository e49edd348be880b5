"""Allocation and Poisson sampling of any pair, against enumeration, exact values and the classes for known noise."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest
from helpers.mechanisms import EXAMPLES, laplace_by_its_loss

import jaxacct as ja
from jaxacct import mechanisms
from jaxacct.mechanisms.ratio_law import AllocatedFromBelow, PoissonSampledFromBelow

EPSILONS = np.array([-1.0, -0.3, 0.0, 0.2, 0.7, 1.5])
P = np.array([0.1, 0.4, 0.3, 0.2, 0.0])
Q = np.array([0.0, 0.15, 0.35, 0.45, 0.05])


def profile(pair):
    p, q = np.asarray(pair.p), np.asarray(pair.q)
    return np.array([np.maximum(p - math.exp(e) * q, 0).sum() for e in EPSILONS])


def check(mechanism, below, p, q, slack=1e-12):
    """Asserts that exact laws lie between both pairs, in both directions, and near to them."""
    for direction, one, other in (("remove", p, q), ("add", q, p)):
        exact = np.array([np.maximum(one - math.exp(e) * other, 0).sum() for e in EPSILONS])
        (upper,), (lower,) = (each.dominating_pairs(direction) for each in (mechanism, below))
        np.testing.assert_array_less(exact, profile(upper) + slack)
        np.testing.assert_array_less(profile(lower), exact + slack)
        np.testing.assert_allclose(profile(upper), exact, atol=2e-5)
        np.testing.assert_allclose(profile(lower), exact, atol=2e-5)


def allocated(p, q, t):
    """The laws of t runs, of which one, drawn at random, is of p and the others of q."""
    places = [functools.reduce(np.multiply.outer, [p if i == j else q for j in range(t)]).ravel() for i in range(t)]
    return np.mean(places, axis=0), functools.reduce(np.multiply.outer, [q] * t).ravel()


@pytest.mark.first_tier("3")
@pytest.mark.parametrize("t", [1, 2, 3, 5])
def test_allocation_of_outcomes_by_enumeration(t):
    pair = ja.DiscretePair(P, Q)
    check(ja.AllocatedMechanism(pair, t), AllocatedFromBelow(pair, t), *allocated(P, Q, t))


@pytest.mark.exhaustive
def test_sampling_of_outcomes_is_exact_and_both_go_on_top_of_each_other():
    pair = ja.DiscretePair(P, Q)
    sampled = ja.PoissonSampledMechanism(pair, 0.3)
    p = 0.7 * Q + 0.3 * P
    check(sampled, PoissonSampledFromBelow(pair, 0.3), p, Q, 1e-14)
    below = AllocatedFromBelow(PoissonSampledFromBelow(pair, 0.3), 3)
    check(ja.AllocatedMechanism(sampled, 3), below, *allocated(p, Q, 3))
    p3, q3 = allocated(P, Q, 3)
    below = PoissonSampledFromBelow(AllocatedFromBelow(pair, 3), 0.3)
    check(ja.PoissonSampledMechanism(ja.AllocatedMechanism(pair, 3), 0.3), below, 0.7 * q3 + 0.3 * p3, q3)


@pytest.mark.exhaustive
def test_accountants_take_both_on_top_of_each_other():
    """Each pair has to be one of two laws for the next one: with losses moved by their error alone it is not."""
    pair, laplace = ja.DiscretePair(P, Q), ja.Laplace(1.0)
    p2, q2 = allocated(P, Q, 2)
    for rate in (0.5, 0.9):
        found = ja.delta(ja.PoissonSampledMechanism(ja.AllocatedMechanism(pair, 2), rate), 1, 0.2, relation="remove")
        exact = np.maximum(rate * p2 + (1 - rate - math.exp(0.2)) * q2, 0).sum()
        assert exact * (1 - 1e-4) < found.lower <= exact <= found.upper < exact * (1 + 1e-4)
    for inner in (pair, laplace):
        whole, again = (
            ja.delta(kind, 1, 0.2, relation="add")
            for kind in (ja.AllocatedMechanism(inner, 4), ja.AllocatedMechanism(ja.AllocatedMechanism(inner, 2), 2))
        )
        assert whole.upper * (1 - 1e-4) < again.lower <= whole.upper
        assert whole.lower <= again.upper < whole.lower * (1 + 1e-4)


@pytest.mark.exhaustive
def test_mass_at_infinity_is_kept_by_allocation_and_scaled_by_sampling():
    kinds = ja.ApproximateDP(0.5, 0.01), ja.DiscretePair(P, Q)
    for inner, infinite in zip(kinds, (0.01, 0.1), strict=True):
        pair, _ = ja.AllocatedMechanism(inner, 7).dominating_pairs()
        assert float(pair.p[np.asarray(pair.losses) == np.inf].sum()) == pytest.approx(infinite, abs=1e-12)
        pair, _ = ja.PoissonSampledMechanism(inner, 0.25).dominating_pairs()
        assert float(pair.p[np.asarray(pair.losses) == np.inf].sum()) == pytest.approx(infinite / 4, abs=1e-12)


def laplace_cells(scale, n, far):
    """P- and Q-masses of Laplace noise at 1 and at 0, between n places from -far to 1 + far and beyond."""
    z = np.concatenate([[-np.inf], np.linspace(0, 1, n), [np.inf]])

    def below(x):
        return np.where(x < 0, np.exp(-np.abs(x) / scale) / 2, 1 - np.exp(-np.abs(x) / scale) / 2)

    return np.diff(below(z - 1)), np.diff(below(z))


@pytest.mark.exhaustive
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_allocation_of_noise_to_two_runs_by_quadrature(scale, direction):
    """Cells of both results are post-processing, whose profile is below the exact one by the square of their width."""
    p, q = laplace_cells(scale, 1200, 0)
    ratio = (p / q)[:, None] / 2 + (p / q)[None] / 2
    both = q[:, None] * q[None]
    laws = (ratio * both, both) if direction == "remove" else (both, ratio * both)
    inner = ja.Laplace(scale)
    (upper,), (lower,) = (
        kind(inner, 2).dominating_pairs(direction) for kind in (ja.AllocatedMechanism, AllocatedFromBelow)
    )
    exact = np.array([np.maximum(laws[0] - math.exp(e) * laws[1], 0).sum() for e in EPSILONS])
    np.testing.assert_array_less(exact, profile(upper) + 1e-12)
    np.testing.assert_allclose(profile(upper), exact, atol=2e-5)
    np.testing.assert_array_less(profile(lower), exact + 2e-6)
    np.testing.assert_allclose(profile(lower), exact, atol=2e-5)


EXACT = {
    ("allocated", 0.5, 10): (1.1405904, 1.8407620),
    ("allocated", 1.0, 3): (0.9463333, 0.9921080),
    ("sampled", 0.5, 0.1): (0.48501624, 0.08849310),
}
"""Epsilons of removing and adding an example at a delta of 1e-3, by quadrature."""
WIDTHS = {("allocated", 0.5, 10): 1.3e-4, ("allocated", 1.0, 3): 1.4e-5, ("sampled", 0.5, 0.1): 1e-6}


@pytest.mark.first_tier("allocated-1.0-3")
@pytest.mark.parametrize("setting", EXACT, ids=lambda setting: "-".join(map(str, setting)))
def test_brackets_of_laplace_noise_meet_the_exact_values(setting):
    kind, scale, number = setting
    mechanism = (ja.AllocatedMechanism if kind == "allocated" else ja.PoissonSampledMechanism)(
        ja.Laplace(scale), number
    )
    for relation, exact in zip(("remove", "add"), EXACT[setting], strict=True):
        found = ja.epsilon(mechanism, 1, 1e-3, relation=relation)
        assert found.lower - 1e-7 <= exact <= found.upper + 1e-7
        assert found.upper - found.lower < WIDTHS[setting]


@pytest.mark.exhaustive
def test_the_general_road_of_sampled_laplace_noise_is_at_its_own_class():
    for scale, rate in ((0.5, 0.1), (2.0, 0.7), (1.0, 1.0)):
        known = ja.PoissonSubsampledLaplace(scale, rate)
        general = ja.PoissonSampledMechanism(ja.Laplace(scale), rate)
        for direction in ("remove", "add"):
            (pair,) = general.dominating_pairs(direction)
            found = ja.delta(ja.DiscretePair(np.asarray(pair.p), np.asarray(pair.q)), 1, 0.1, relation="remove")
            exact = ja.delta(known, 1, 0.1, relation=direction)
            assert exact.lower <= found.upper * (1 + 1e-9)
            assert found.lower <= exact.upper * (1 + 1e-5) + 1e-12  # what rounding gives away, where delta is 0


def test_kinds_with_a_class_of_their_own_are_taken_for_it():
    gauss, laplace = ja.Gaussian(1.5), ja.Laplace(2.0)
    for mechanism, own in (
        (ja.AllocatedMechanism(gauss, 10), ja.RandomAllocation(1.5, 10, points=1024)),
        (ja.PoissonSampledMechanism(gauss, 0.1), ja.PoissonSubsampledGaussian(1.5, 0.1)),
        (ja.PoissonSampledMechanism(laplace, 0.1), ja.PoissonSubsampledLaplace(2.0, 0.1)),
    ):
        assert mechanism.composed
        assert mechanism.decompose(3) == own.decompose(3)
    assert not ja.AllocatedMechanism(laplace, 10).composed


def test_what_fixes_no_pair_is_refused_with_the_reason():
    for kind, number in ((ja.AllocatedMechanism, 10), (ja.PoissonSampledMechanism, 0.1)):
        with pytest.raises(TypeError, match="PrivacyLoss is a distribution of losses"):
            kind(laplace_by_its_loss(2.0), number)
        with pytest.raises(TypeError, match="ZeroConcentratedDP is known by its Rényi curve alone"):
            kind(ja.ZeroConcentratedDP(0.1), number)
        with pytest.raises(TypeError, match="RandomAllocation is accounted for as a composition"):
            kind(ja.RandomAllocation(1.0, 10, participations=3), number)
        with pytest.raises(TypeError, match="is no mechanism"):
            kind(1.0, number)
        with pytest.raises(ValueError, match="the pair's second law has to be the run without the example"):
            kind(ja.DiscreteLaplace(1.0), number).dominating_pairs("replace")
        with pytest.raises(ValueError, match="a guarantee of one direction alone"):
            kind(ja.PureDP(1.0), number).dominating_pairs("remove")
        with pytest.raises(ValueError, match="relation = 'zero_out' is not supported by TruncatedPoissonGaussian"):
            kind(ja.TruncatedPoissonGaussian(1.2, 0.1, 1e-7), number).dominating_pairs("zero_out")
        # Where who takes part is seen, an example that contributes nothing is not one that is not there.
        for inner in (ja.PureDP(1.0), ja.ShuffledGaussian(1.0, 10), ja.RandomizedResponse(1.0)):
            with pytest.raises(ValueError, match="would show where it takes part"):
                kind(inner, number).dominating_pairs("zero_out")
        for relation in ("zero_out", "remove"):
            with pytest.raises(ValueError, match=f"relation = '{relation}' is not supported by .* of PureDP"):
                kind(ja.PoissonSampledMechanism(ja.PureDP(1.0), 0.5), number).dominating_pairs(relation)
    with pytest.raises(TypeError, match=r"is AllocatedMechanism\(mechanism, batches\)"):
        ja.RandomAllocation(ja.Laplace(1.0), 10)
    with pytest.raises(ValueError, match="is PoissonSampledMechanism"):
        ja.PoissonSubsampled(ja.Laplace(1.0), 1, 0.1).dominating_pairs()


@pytest.mark.exhaustive
def test_pairs_that_are_taken_are_reverses_of_each_other():
    """Both ways are needed of the one pair: the reverse of that for removing an example has to serve for adding one."""
    taken = []
    for example in itertools.chain(*EXAMPLES.values()):
        if isinstance(example, mechanisms.PrivacyLoss) or example.composed or "add" not in example.relations:
            continue
        if isinstance(example, (mechanisms.RenyiOnly, ja.DiscreteGaussianVector)) or example.one_way:
            continue
        taken.append(type(example).__name__)
        (remove,), (add,) = (example.dominating_pairs(way) for way in ("remove", "add"))
        edges = np.array([-np.inf, -1.23, -0.31, -0.07, 0.0301, 0.171, 0.917, np.inf])
        with jax.enable_x64(True):
            there, back = remove.cell_masses(edges), add.cell_masses(-edges[::-1])
        np.testing.assert_allclose(there.p, back.q[::-1], rtol=1e-7, atol=1e-12, err_msg=taken[-1])
        np.testing.assert_allclose(there.q, back.p[::-1], rtol=1e-7, atol=1e-12, err_msg=taken[-1])
    assert {"Laplace", "DiscreteGaussian", "RandomAllocation", "PoissonSubsampledGroup"} <= set(taken)


@pytest.mark.exhaustive
def test_traced_numbers_have_the_same_pair_and_none_out_of_range():
    @jax.jit
    def ask(scale, number):
        laplace = ja.Laplace(scale)
        (allocated,) = ja.AllocatedMechanism(laplace, number, points=256).dominating_pairs("remove")
        (sampled,) = ja.PoissonSampledMechanism(laplace, 1 / number).dominating_pairs("remove")
        return allocated, sampled

    (pair,) = ja.AllocatedMechanism(ja.Laplace(0.5), 10, points=256).dominating_pairs("remove")
    np.testing.assert_allclose(profile(ask(0.5, 10.0)[0]), profile(pair), rtol=1e-5)
    for scale, number in ((-1.0, 10.0), (1.0, 2.5), (1.0, 0.5), (np.nan, 10.0)):
        allocated, sampled = ask(scale, number)
        assert np.any(np.isnan(allocated.p))
        assert np.any(np.isnan(sampled.p)) == (number != 2.5)


@pytest.mark.exhaustive
def test_traced_fields_out_of_range_cost_inf_where_nothing_would_be_sampled():
    @jax.jit
    def ask(epsilon, rate):
        return ja.epsilon(ja.PoissonSampledMechanism(ja.PureDP(epsilon), rate), 1, 1e-3).upper

    for numbers in ((np.nan, 0.0), (-1.0, 0.0), (0.0, np.nan), (0.0, 2.0)):
        assert ask(*numbers) == np.inf
    assert ask(1.0, 0.0) < 1e-9
    assert ask(0.0, 0.5) == 0


@pytest.mark.exhaustive
def test_noise_that_is_nothing_or_endless():
    nothing, all_of_it = ja.Laplace(0.0), ja.Laplace(np.inf)
    assert np.asarray(ja.AllocatedMechanism(nothing, 3).noiseless_pairs("remove")[0].p)[-1] == pytest.approx(1.0)
    seen = ja.DiscretePair([1.0, 0.0], [0.0, 1.0])
    assert ja.delta(ja.PoissonSampledMechanism(seen, 0.1), 1, 1.0).upper == pytest.approx(0.1)
    for mechanism in (
        ja.AllocatedMechanism(all_of_it, 3),
        ja.PoissonSampledMechanism(ja.DiscreteLaplace(1.0), 0.0),
    ):
        assert ja.epsilon(mechanism, 5, 1e-3).upper == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_divergences_cover_what_masses_and_losses_may_err_by(direction):
    """Random masses within their rounding, and losses within half of it, have no larger divergence."""
    mechanism = ja.AllocatedMechanism(ja.DiscreteLaplace(10.0), 1e5)
    (pair,) = mechanism.dominating_pairs(direction)
    orders = np.array([1.001, 1.01, 1.5, 2.0, 4.0, 32.0])
    found = np.asarray(ja.rdp.curve(mechanism, orders, relation=direction))
    rng, r = np.random.default_rng(3), float(np.max(pair.rounding))
    known = (np.asarray(pair.p) > 0) & (np.asarray(pair.q) > 0)
    p, q = np.asarray(pair.p)[known], np.asarray(pair.q)[known]
    assert r > 1e-7
    # Rounding is twice what is needed. Errors that follow the loss's sign are the worst ones.
    errors = [rng.uniform(-1, 1, (2, len(p))) for _ in range(20)] + [np.stack([np.sign(p - q), np.sign(q - p)])]
    for of_p, of_q in errors:
        one, other = p * (1 + r / 2 * of_p), q * (1 + r / 2 * of_q)
        one, other = one / one.sum(), other / other.sum()
        for order, bound in zip(orders, found, strict=True):
            b = order - 1
            moment = np.sum(one * np.expm1(b * np.log(one / other)))
            assert np.log1p(moment) / b <= bound
    # What a sum of moved losses misses counts in cumulants, too.
    assert pair.surplus()[1] >= abs(1 - np.sum(p * np.exp(-np.asarray(pair.losses)[known])))
