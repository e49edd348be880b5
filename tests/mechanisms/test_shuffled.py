"""Tests that bounds on shuffled batches enclose what exact sums over all orders find, and reference values."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.mechanisms import shuffled
from jaxacct.mechanisms.allocation import join_rare
from jaxacct.numerics.precision import leave_scope, scope


def profile(p, q, epsilon):
    return np.maximum(p - np.exp(epsilon) * q, 0.0).sum()


def most(pairs, epsilon):
    """Returns the delta of the larger direction of the most telling of some pairs."""
    return max(max(profile(each.p, each.q, epsilon), profile(each.q, each.p, epsilon)) for each in pairs)


def upper(mechanism, epsilon, relation="zero_out"):
    return most(mechanism.dominating_pairs(relation), epsilon)


def lower(mechanism, epsilon, relation="zero_out"):
    return min(most(case, epsilon) for case in mechanism.attained(relation))


# ----------------------------------------------------------------------------------------------------
# Exact values: all orders, and quadrature over the results.
# ----------------------------------------------------------------------------------------------------

RULES = {
    "opposite": lambda lead: np.full_like(lead, -1.0),
    "nothing": np.zeros_like,
    "adaptive": lambda lead: np.where(lead > 0, 1.0, -1.0),
    "adaptive, other way": lambda lead: np.where(lead > 0, -1.0, 1.0),
}
"""What all others contribute, given by how much what is seen so far speaks for P."""


def exact(s, weights, epsilon, rule, sign=1, without=0.0, apart=0.0, size=700):
    """Returns delta of P to Q, or back, for one example in one of the batches, which has these probabilities.

    P has it contribute 1, Q ``without``. With the probability ``apart`` it is in none.
    """
    points = size if len(weights) == 2 else 100
    y, a, t = np.linspace(-2 - 8 * s, 2 + 8 * s, points), np.exp(epsilon), len(weights)

    def normal(distance):
        return np.exp(-((distance / s) ** 2) / 2) * (y[1] - y[0]) / (s * np.sqrt(2 * np.pi))

    with_it, without_it, none = np.zeros(()), np.zeros(()), np.ones(())
    # After each step: the densities of its results and the example's being in one so far; and of the results alone.
    for i, weight in enumerate(weights):
        ahead, behind = (with_it, without_it)[::sign]
        others = rule(ahead - a * behind + (1 - a) * none * (apart + sum(weights[i + 1 :])))[..., None]
        with_it, without_it = (
            sofar[..., None] * normal(y - others) + weight * none[..., None] * normal(y - own)
            for sofar, own in ((with_it, 1.0), (without_it, without))
        )
        none = none[..., None] * normal(y - others)
    p, q = (each + apart * none for each in (with_it, without_it)[::sign])
    assert t == none.ndim
    return np.maximum(p - a * q, 0.0).sum()


def worst(*args, rules=tuple(RULES), **more):
    return max(exact(*args, RULES[rule], sign, **more) for rule, sign in itertools.product(rules, (1, -1)))


SMALL = [(2, 1.0, 2.0), (2, 1.0, 0.5), (2, 4.0, 0.1), (2, 8.0, 0.03), (3, 1.0, 2.0), (3, 4.0, 0.1), (3, 8.0, 0.03)]
"""Batches, noise and epsilon."""

QUADRATURE = {2: 1e-3, 3: 2e-2}
"""Relative errors of the exact values."""


@pytest.mark.first_tier("2-1.0-2.0", "2-4.0-0.1")
@pytest.mark.parametrize(("t", "s", "epsilon"), SMALL)
def test_the_bracket_encloses_exact_sums_over_all_orders(t, s, epsilon):
    mechanism = ja.ShuffledGaussian(s, t, remainder="even")
    off = 1 + QUADRATURE[t]
    truth = worst(s, [1 / t] * t, epsilon)
    assert lower(mechanism, epsilon) <= truth * off
    assert truth <= upper(mechanism, epsilon) * off
    # Each data set from below is what it says: all others contribute the opposite, or nothing.
    with scope():
        allocation = leave_scope(shuffled._contracted_allocation(*map(jnp.float64, (s, t, 1.0))))
    for pairs, rule in (mechanism.attained("zero_out")[0], "opposite"), ((allocation,), "nothing"):
        assert most(pairs, epsilon) <= worst(s, [1 / t] * t, epsilon, rules=[rule]) * off


def test_two_batches_with_little_noise_nearly_attain_the_bound():
    truth = worst(1.0, [0.5, 0.5], 2.0)
    assert 0.95 < truth / upper(ja.ShuffledGaussian(1.0, 2), 2.0) <= 1


@pytest.mark.first_tier("4.0-0.1")
@pytest.mark.parametrize(("s", "epsilon"), [(4.0, 0.1), (1.0, 0.5), (2.0, 1.0)])
def test_a_remainder_that_is_small_dropped_or_not_known_has_lower_ends_below_exact_ones(s, epsilon):
    # Five examples in batches of two: the third batch has one of them, or nobody.
    small, dropped = [0.4, 0.4, 0.2], [0.4, 0.4]
    truths = {
        "small": worst(s, small, epsilon),
        "dropped": worst(s, dropped, epsilon, apart=0.2),
        "even": worst(s, [0.5, 0.5], epsilon),
    }
    ends = {remainder: lower(ja.ShuffledGaussian(s, 2, remainder=remainder), epsilon) for remainder in truths}
    assert ends["even"] > ends["small"] > ends["dropped"]
    free = lower(ja.ShuffledGaussian(s, 2), epsilon)
    for remainder, truth in truths.items():
        assert free * (1 - 1e-12) <= ends[remainder] <= truth * (1 + 1e-3)
        assert truth * (1 - 1e-3) <= upper(ja.ShuffledGaussian(s, 2, remainder=remainder), epsilon)
    if s == 4.0:  # a lower end for no remainder would refute true claims
        assert lower(ja.ShuffledGaussian(s, 2, remainder="even"), epsilon) > 1.1 * max(
            truths["small"], truths["dropped"]
        )


def test_a_last_epoch_that_stops_early_tells_no_more_than_its_batches():
    s, epsilon = 2.0, 0.3
    part = ja.ShuffledGaussian(s, 4, remainder="even", stop_after=2)
    truth = worst(s, [0.25, 0.25], epsilon, apart=0.5)
    assert 0.5 * truth < lower(part, epsilon) <= truth * (1 + 1e-3)
    assert lower(ja.ShuffledGaussian(s, 4, stop_after=2), epsilon) <= lower(part, epsilon)
    assert lower(part, epsilon) < lower(ja.ShuffledGaussian(s, 4, remainder="even"), epsilon)
    assert truth <= upper(part, epsilon) * (1 + 1e-3)


def test_replacing_one_is_between_allocation_with_half_the_noise_and_the_pair():
    mechanism = ja.ShuffledGaussian(4.0, 2, remainder="even")
    truth = worst(4.0, [0.5, 0.5], 0.1, without=-1.0)
    assert lower(mechanism, 0.1, "replace") <= truth * (1 + 1e-3) <= upper(mechanism, 0.1, "replace") * (1 + 2e-3)
    # The optimum of all others, and the bound, as found by backward maximization.
    assert 0.1 < lower(mechanism, 0.1, "replace") <= 0.1117 <= upper(mechanism, 0.1, "replace") <= 0.145


def test_one_order_for_two_epochs_is_nearly_the_unsampled_mechanism():
    mechanism = ja.ShuffledGaussian(1.0, 2, epochs_per_shuffle=2, remainder="even")
    gaussian = float(ja.delta(ja.Gaussian(np.sqrt(0.5)), 1, 1.0).upper)
    assert 0.9 * gaussian < lower(mechanism, 1.0)
    assert 0.99 * gaussian < upper(mechanism, 1.0) <= gaussian * (1 + 1e-3)
    # Two epochs of one order: the sum of an example's results is one result of less noise.
    truth = worst(np.sqrt(0.5), [0.5, 0.5], 1.0)
    assert lower(mechanism, 1.0) <= truth * (1 + 1e-3) <= upper(mechanism, 1.0) * (1 + 2e-3)


@pytest.mark.exhaustive
def test_two_epochs_afresh_are_above_the_optimum_of_all_others():
    bracket = ja.delta(ja.ShuffledGaussian(4.0, 2, remainder="even"), 2, 0.2, relation="zero_out")
    assert bracket.lower <= 0.0410 <= bracket.upper < 0.06


# ----------------------------------------------------------------------------------------------------
# Reference values, found by other programs with laws that are larger and smaller in convex order.
# ----------------------------------------------------------------------------------------------------

COINS = [
    (0.08, 2.0, 20, 1.0, (0.00164534, 0.00164551), (0.00157608, 0.00157618)),
    (0.25, 4.0, 30, 0.2, (0.00075622, 0.00075655), (0.00074154, 0.00074178)),
    (0.02, 1.0, 8, 2.0, (0.0188432, 0.0188435), (0.0184992, 0.0184994)),
]


@pytest.mark.parametrize(("p", "s", "t", "epsilon", "removing", "adding"), COINS)
def test_the_bound_for_a_coin_meets_its_bracket(p, s, t, epsilon, removing, adding):
    with scope():
        numbers = (np.float64(s), np.float64(t), np.array([epsilon]), -np.log([p]))
        (bounds,) = np.asarray(jax.jit(shuffled.bound_by_coins)(*numbers))
    for bound, (least, largest) in zip(bounds[:, 0], (removing, adding), strict=True):
        assert least - 1e-8 <= bound <= largest * (1 + 5e-3)


LARGEST = {
    (0.4, 10_000): 13.206686,
    (0.5, 1000): 9.996625,
    (0.6, 100): 8.002087,
    (1.0, 100): 4.063154,
    (1.0, 1000): 2.882096,
    (1.0, 10_000): 1.133592,
    (2.0, 100): 0.483712,
}
"""Epsilons at 1e-5 of the largest result, the example's at 2 or 1 and all others' at 0."""


def test_the_largest_result_in_cells_tells_nearly_what_it_does_unrounded():
    with scope():
        pairs = {place: shuffled._largest_result(*map(jnp.float64, (*place, 1.0))) for place in LARGEST}
        laws = {place: leave_scope((pair.p, pair.q)) for place, pair in pairs.items()}
    for place, epsilon in LARGEST.items():
        assert profile(*laws[place], epsilon + 1e-6) <= 1e-5 <= profile(*laws[place], epsilon * (1 - 5e-4))
    assert 0.226056 * (1 - 1e-3) <= profile(*laws[0.4, 10_000], 4.0) <= 0.226056 + 1e-6


ONE_EPOCH = {
    (1.0, 100): (4.0632, 4.31097),
    (1.0, 1000): (2.8821, 3.64015),
    (1.0, 10_000): (1.1336, 1.28686),
    (2.0, 100): (0.4837, 0.91363),
    (4.0, 1000): (0.02175, 0.04599),
}
"""Lower ends, and the epsilons of the bound's own formula, at 1e-5."""

SEVERAL = {
    (1.0, 938, 10, 1e-5): (4.572, 6.2950),
    (2.0, 20, 5, 1e-5): (1.912, 3.0877),
    (0.8, 100, 3, 1e-6): (11.108, 11.705),
    (1.5, 98, 90, 1e-5): (6.804, 13.123),
    (1.3, 240, 15, 1e-5): (3.201, 5.257),
    (3.0, 13, 80, 1e-5): (4.340, 7.036),
    (0.6, 1000, 1, 1e-6): (8.833, 8.839),
    (0.5, 36_000, 1, 1e-7): (11.904, 11.907),
    (2.0, 1000, 1, 1e-6): (0.115, 0.304),
    (4.0, 100, 20, 1e-5): (0.431, 0.729),
}


@pytest.mark.first_tier("2.0-100")
@pytest.mark.parametrize(("s", "t"), ONE_EPOCH)
def test_one_epoch_is_bracketed_within_a_percent_of_its_formulas(s, t):
    mechanism = ja.ShuffledGaussian(s, t, remainder="even")
    least, largest = ONE_EPOCH[s, t]
    assert upper(mechanism, largest * 1.01) <= 1e-5 <= upper(mechanism, largest * 0.999)
    assert lower(mechanism, least * 0.995) >= 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize(("runs", "wanted"), SEVERAL.items())
def test_epochs_afresh_are_bracketed_no_wider_than_by_a_percent(runs, wanted):
    s, t, epochs, delta = runs
    bracket = ja.epsilon(ja.ShuffledGaussian(s, t, remainder="even"), epochs, delta, relation="zero_out")
    assert wanted[0] * 0.995 <= bracket.lower <= bracket.upper <= wanted[1] * 1.01


# ----------------------------------------------------------------------------------------------------
# Parameters.
# ----------------------------------------------------------------------------------------------------


def test_a_single_batch_of_all_examples_is_the_gaussian_mechanism():
    (run,) = ja.ShuffledGaussian(2.0, 1, remainder="even", epochs_per_shuffle=3).decompose(5)
    assert isinstance(run[0], ja.Gaussian)
    assert run == (ja.Gaussian(2.0), 15)
    counts = jax.jit(lambda epochs: ja.ShuffledGaussian(2.0, 1, epochs, "even").decompose(2)[0][1])
    np.testing.assert_array_equal([counts(epochs) for epochs in (3.0, 0.0, 0.5, -1.0)], [6.0, *[np.nan] * 3])
    ((whole, steps),) = ja.ShuffledGaussian(2.0, 1).decompose(5)
    assert isinstance(whole, ja.ShuffledGaussian)
    assert steps == 5


def test_other_relations_are_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"all batches after its place are cut elsewhere.*'zero_out', 'replace'"):
        ja.epsilon(ja.ShuffledGaussian(2.0, 10), 1, 1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batches": 0}, "batches = 0"),
        ({"batches": 2.5}, r"batches = 2\.5"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier = -1\.0"),
        ({"epochs_per_shuffle": 1.5}, r"epochs_per_shuffle = 1\.5"),
        ({"remainder": "kept"}, "remainder = 'kept'.*'even', 'small', 'dropped'"),
        ({"stop_after": 11}, "stop_after = 11"),
        ({"stop_after": 0}, "stop_after = 0"),
    ],
)
def test_fields_out_of_range_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        ja.ShuffledGaussian(**{"noise_multiplier": 2.0, "batches": 10} | fields)


@pytest.mark.exhaustive
def test_traced_numbers_out_of_range_are_no_pair_and_tell_nothing_from_below():
    @jax.jit
    @jax.vmap
    def ask(s, t):
        mechanism = ja.ShuffledGaussian(s, t)
        pair = mechanism.dominating_pairs("zero_out")[0]
        return pair.p.sum(), [abs(each.p - each.q).max() for each in mechanism.attained("zero_out")[0]]

    sums, apart = ask(np.array([2.0, -1.0, np.nan, 0.01, 2.0, 2.0]), np.array([20.0, 20.0, 20.0, 20.0, 0.0, 20.5]))
    assert abs(sums[0] - 1) < 1e-6
    assert np.all(np.isnan(sums[1:]))
    for each in apart:
        assert each[0] > 1e-5
        np.testing.assert_array_equal(np.asarray(each)[[1, 2, 4, 5]], 0.0)


def test_rare_outcomes_join_the_likeliest_though_that_is_rare_itself():
    """So it is of little noise: laws that are nearly disjoint have no outcome that both give often."""
    for q, likeliest in (([0.0, 0.6, 0.4], 1), ([0.3, 0.6, 0.1], 1)):
        p, found = join_rare(np.array([0.7, 0.0, 0.3]), np.array(q), 0.2)
        assert p.sum() == found.sum() == pytest.approx(1.0)
        assert p[likeliest] > 0
        assert found[likeliest] >= 0.6


@pytest.mark.exhaustive
@pytest.mark.parametrize("s", [0.0, 1e-8, 0.03, 0.06])
def test_hardly_any_noise_hides_hardly_anything(s):
    found = ja.delta(ja.ShuffledGaussian(s, 10, remainder="even"), 1, 1.0, relation="zero_out")
    assert found.lower > 0.999
    assert found.upper == 1


@pytest.mark.exhaustive
def test_a_sequence_attains_what_its_mechanisms_do():
    several = ja.ShuffledGaussian(np.array([2.0, 1.0]), 20).attained("zero_out")[0]
    for i, noise in enumerate((2.0, 1.0)):
        largest = ja.ShuffledGaussian(noise, 20).attained("zero_out")[0][0]
        np.testing.assert_allclose(several[0].p[i], largest.p, rtol=1e-9, atol=1e-15)


@pytest.mark.exhaustive
@pytest.mark.parametrize("s", [1e15, 1e16, 1e200])
def test_lower_ends_are_below_one_step_where_rounding_is_all_that_differs(s):
    attained = ja.ShuffledGaussian(s, 20).attained("zero_out")[0]
    one_step = ja.delta(ja.Gaussian(s), 1, 0.0, relation="zero_out").upper
    assert max(ja.delta(each, 1, 0.0, relation="zero_out").lower for each in attained) <= one_step


@pytest.mark.exhaustive
def test_more_batches_are_no_worse_however_many():
    with scope():
        few, many = (shuffled.bound_profile(jnp.float64(4.0), jnp.float64(t)) for t in (2.0**20, 2.0**30))
    # Epsilons differ: at the first of them, 0, all is known.
    assert np.all(np.stack(many[1:])[:, 0] <= np.stack(few[1:])[:, 0])


def test_parts_of_a_shuffle_are_no_whole_number_of_runs():
    counts = [count for _, count in ja.ShuffledGaussian(2.0, 1, 2, remainder="even").decompose(1.5)]
    assert np.isnan(counts).any()
