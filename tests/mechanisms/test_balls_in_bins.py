"""Balls in bins: brackets against the pair by quadrature and draws, random strategies, and reference values."""

import functools
import math

import jax
import numpy as np
import pytest
from scipy import linalg, stats

import jaxacct as ja
from jaxacct.mechanisms import balls_in_bins
from jaxacct.mechanisms.balls_in_bins import NestedAllocation
from jaxacct.mechanisms.mechanism import parts_of
from jaxacct.strategies import (
    BandedToeplitz,
    BufferedToeplitz,
    Dense,
    HonakerTree,
    Restarted,
    Streamed,
    Toeplitz,
    identity,
    square_root,
)

EPSILONS = np.array([0.1, 0.5, 1.0, 2.0])
WAYS = ("remove", "add")


def depths(bins):
    """All lower bounds of a mechanism, and not only the one that is chosen."""
    return [
        NestedAllocation(bins.noise_multiplier, *(numbers[i] for numbers in bins.kernel.below), is_larger=False)
        for i in range(len(bins.kernel.below.share))
    ]


def blocks(bins):
    return [
        NestedAllocation(bins.noise_multiplier, *(numbers[i] for numbers in bins.kernel.above), is_larger=True)
        for i in range(len(bins.kernel.above.share))
    ]


def profiles(nested):
    """delta of one run at the epsilons, straight from the masses, for both directions."""
    found = {}
    for way, pair in zip(WAYS, nested.dominating_pairs(), strict=True):
        p, q = np.asarray(pair.p), np.asarray(pair.q)
        found[way] = np.maximum(p - np.exp(EPSILONS)[:, None] * q, 0.0).sum(axis=1)
    return found


def drawn(columns, noise, count, seed):
    """delta of the mixture of N(m_j, s^2) over the rows of ``columns``, by draws, with five standard errors."""
    generator = np.random.default_rng(seed)
    z = generator.standard_normal((count, columns.shape[1])) * noise
    at = {"add": z, "remove": z + columns[generator.integers(0, len(columns), count)]}
    found = {}
    for way, y in at.items():
        scores = (y @ columns.T - np.sum(columns**2, axis=1) / 2) / noise**2
        most = scores.max(axis=1)
        loss = (most + np.log(np.mean(np.exp(scores - most[:, None]), axis=1))) * (1 if way == "remove" else -1)
        gains = np.maximum(-np.expm1(EPSILONS[:, None] - loss[None]), 0.0)
        found[way] = gains.mean(axis=1), 5 * gains.std(axis=1) / math.sqrt(count) + 5 / count
    return found


def matrix_of(bins):
    """|C| summed over epochs, column by column, and C itself: (batches, steps) of both."""
    steps, strategy = bins.batches * bins.epochs, bins.strategy
    if isinstance(strategy, Toeplitz):
        matrix = linalg.toeplitz(strategy.coefficients(steps), np.zeros(steps))
    else:
        with jax.enable_x64(True):
            matrix = np.asarray(strategy.multiply(np.eye(steps)), np.float64)
    return [f(matrix).reshape(steps, bins.epochs, bins.batches).sum(axis=1).T for f in (np.abs, np.asarray)]


def test_the_bracket_of_64_bins_and_2_bands_is_that_of_the_references():
    found = ja.epsilon(ja.BallsInBins(square_root(2).normalized(), 1.0, 64), 1, 1e-3)
    assert 0.446 < found.lower < 0.448
    assert 0.588 < found.upper < 0.589


def gaussian(part):
    """The profiles of a Gaussian mechanism, which are the same both ways."""
    mu = 1 / float(part.noise_multiplier)
    below = stats.norm.cdf(-mu / 2 - EPSILONS / mu)
    return dict.fromkeys(WAYS, stats.norm.cdf(mu / 2 - EPSILONS / mu) - np.exp(EPSILONS) * below)


def check_brackets(bins, seed, count=40_000):
    """Upper ends against draws of the pair; lower ends against draws of data sets with a direction for each block."""
    magnitudes, columns = matrix_of(bins)
    noise, steps = float(bins.noise_multiplier), columns.shape[1]
    truth = drawn(magnitudes, noise, count, seed)
    above = blocks(bins) if bins.bands < bins.batches else bins.decompose(1)[0][:1]
    for nested in above:
        found = profiles(nested) if isinstance(nested, NestedAllocation) else gaussian(nested)
        for way, (value, error) in truth.items():
            assert np.all(found[way] >= value - error)
    squares = np.sum(columns**2, axis=1)
    for nested in depths(bins):
        size, used = 2 ** int(np.sum(nested.counts[:-1] == 2)), 0
        # Rows of bins in blocks of full norm, each block in coordinates of its own; the others are 0.
        rows = np.zeros((bins.batches, steps * bins.batches))
        for start in range(0, bins.batches - size + 1, size):
            block = slice(start, start + size)
            if np.all(squares[block] >= 0.999 * squares.max()):
                rows[block, start * steps : (start + 1) * steps] = columns[block]
                used += 1
        assert used == nested.counts[-1]
        found, truth = profiles(nested), drawn(rows[:, np.any(rows, axis=0)], noise, count, seed + 1)
        for way, (value, error) in truth.items():
            assert np.all(found[way] <= value + error)


# Few bins, and random strategies.


@functools.cache
def of_two_bins(k, r, epsilon, way):
    """The profile of two places of kernel [[k, r], [r, k]], by a quadrature of step 0.01 over what they do not share.

    L = e^(x - k/2) cosh-like: the common part, N(0, (k + r)/2), is in closed form given the difference.
    """
    d = np.arange(-14, 14, 0.01)  # (G_1 - G_2) over its deviation
    weight = stats.norm.pdf(d) * 0.01
    half = math.sqrt((k - r) / 2) * d
    log_factor, v = np.logaddexp(half, -half) - math.log(2) - (k - r) / 4, (k + r) / 2
    # L = factor * e^N(-v/2, v): a call or a put on a lognormal variable.
    strike = (epsilon if way == "remove" else -epsilon) - log_factor
    up = stats.norm.cdf((v / 2 - strike) / math.sqrt(v)), stats.norm.cdf((-v / 2 - strike) / math.sqrt(v))
    if way == "remove":
        gains = np.exp(log_factor) * (up[0] - np.exp(strike) * up[1])
    else:
        gains = 1 - up[1] - np.exp(epsilon + log_factor) * (1 - up[0])
    return float(np.sum(weight * gains))


@pytest.mark.parametrize("way", WAYS)
def test_two_bins_with_shared_noise_are_met_from_both_sides(way):
    """3 bins of 2 bands are one block of two; and two bins of one direction are the nested mean of depth 1."""
    bins = ja.BallsInBins(BandedToeplitz([1.0, 0.5]), 1.0, 3)
    assert blocks(bins)[1].counts.tolist() == [1.0, 2.0, 1.0]
    truth = [of_two_bins(1.25, 0.5, epsilon, way) for epsilon in EPSILONS]
    above = profiles(blocks(bins)[1])[way]
    assert np.all(above >= truth)
    assert above == pytest.approx(truth, rel=2e-3)
    pair, _ = blocks(bins)[1].dominating_pairs()
    for masses in (pair.p, pair.q):
        assert abs(np.sum(masses) - 1) < 1e-12
    assert 1e-31 < pair.p[-1] < 1e-29  # what is far out is spread to infinity, and counts
    below = NestedAllocation(1.0, 1.0, [0.75, 0.5, 0, 0, 0, 0, 0], [1, 2, 1, 1, 1, 1, 1], is_larger=False)
    below = profiles(below)[way]
    assert np.all(below <= truth)
    assert below == pytest.approx(truth, rel=2e-3)


CASES = {
    "three bins": (BandedToeplitz([1.0, 0.7]), 3, 1),
    "b no multiple of p": (square_root(3), 11, 1),
    "more bands than bins": (square_root(6), 4, 1),
    "one block": (square_root(4), 5, 2),
    "signs": (BandedToeplitz([1.0, -0.6, 0.3]), 9, 2),
    "buffers": (BufferedToeplitz([0.4], [0.8]), 8, 1),
    "tree": (HonakerTree(12), 6, 2),
    "restarted": (Restarted(square_root(3), 8), 8, 1),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_every_end_is_on_its_side_of_draws(case, noise):
    strategy, batches, epochs = CASES[case]
    check_brackets(ja.BallsInBins(strategy, noise, batches, epochs), len(case))


@pytest.mark.exhaustive
def test_random_strategies_are_bracketed():
    generator = np.random.default_rng(7)
    for trial in range(6):
        bands, epochs, batches = (int(generator.integers(low, high)) for low, high in ((1, 7), (1, 4), (4, 20)))
        column = generator.uniform(-0.3 if trial % 2 else 0.0, 1.0, bands)
        column[0] = 1.0
        check_brackets(ja.BallsInBins(BandedToeplitz(column), generator.uniform(0.7, 4.0), batches, epochs), trial)


# The kernel: signs, cut columns, blocks and gaps.


def test_negative_products_within_a_block_refuse_its_depth_and_leave_the_upper_end():
    signs, plain = (ja.BallsInBins(BandedToeplitz(column), 1.0, 16) for column in ([1.0, -0.5], [1.0, 0.5]))
    assert [len(one.kernel.below.share) for one in (signs, plain)] == [1, 4]
    for numbers, others in zip(signs.kernel.above, plain.kernel.above, strict=True):
        np.testing.assert_array_equal(numbers, others)
    # Between blocks a product may be negative: here it is at distance 2 alone, so that two bins are a block and not 4.
    far = ja.BallsInBins(BandedToeplitz([1.0, 0.5, -0.1]), 1.0, 16)
    assert len(far.kernel.below.share) == 2


def test_bins_whose_steps_are_cut_are_no_part_of_a_lower_bound():
    """Of 16 bins of 4 bands the last three lack rows: 13 are full, of which 12 make blocks of 2 and of 4."""
    bins = ja.BallsInBins(square_root(4), 1.0, 16)
    assert bins.kernel.below.share.tolist() == [13 / 16, 12 / 16, 12 / 16, 8 / 16][: len(bins.kernel.below.share)]
    assert bins.kernel.below.counts[:, -1].tolist() == [13, 6, 3, 1]
    columns = matrix_of(bins)[1]
    for i, nested in enumerate(depths(bins)):
        assert np.sum(nested.variances) <= np.min(np.sum(columns[:13] ** 2, axis=1))
        assert np.sum(nested.variances[: i + 1]) == pytest.approx(np.sum(columns[0] ** 2), rel=1e-6)


@pytest.mark.parametrize("bands", [1, 3, 8])
def test_blocks_leave_gaps_and_take_the_largest_product(bands):
    bins = ja.BallsInBins(square_root(bands), 1.0, 16, 2)
    magnitudes, _ = matrix_of(bins)
    gram = magnitudes @ magnitudes.T
    for size, variances, counts in zip(balls_in_bins.BLOCKS, bins.kernel.above.variances, bins.kernel.above.counts,
                                       strict=False):  # fmt: skip
        assert counts.tolist() == [1.0, size, 16 // (size + bands - 1)]
        assert variances.sum() >= gram.diagonal().max()
        near = [gram[i, (i + d) % 16] for i in range(16) for d in range(1, size)]
        assert variances[1] >= max(near, default=0.0)
        assert variances.sum() == pytest.approx(gram.diagonal().max(), rel=1e-6)
        assert variances[1] == pytest.approx(max(near, default=0.0), rel=1e-6)


def test_more_bands_than_bins_are_not_amplified():
    bins = ja.BallsInBins(square_root(6), 2.0, 4)
    ((part, count),) = parts_of(bins, 3)
    assert (type(part), float(count)) == (ja.Gaussian, 3.0)
    assert float(part.noise_multiplier) == pytest.approx(2.0 / np.linalg.norm(square_root(4).first_column), rel=1e-6)
    assert float(part.noise_multiplier) <= 2.0 / np.linalg.norm(np.asarray(square_root(4).first_column, np.float64))


def test_what_is_no_training_is_refused():
    with pytest.raises(TypeError, match="has no rows"):
        ja.BallsInBins(Streamed(None), 1.0, 4)
    with pytest.raises(ValueError, match="steps of a run are too many"):
        ja.BallsInBins(identity(), 1.0, 2**20, 32)
    with pytest.raises(ValueError, match="noise_multiplier of shape"):
        ja.BallsInBins(identity(), np.ones(2), 4)
    with pytest.raises(ValueError, match="relation"):
        ja.BallsInBins(identity(), 1.0, 4).attained("replace")
    assert ja.monte_carlo.BallsInBins is ja.BallsInBins


@pytest.mark.exhaustive
def test_a_matrix_of_fewer_steps_is_refused():
    with pytest.raises(ValueError, match="strategy has fewer than 8 steps"):
        ja.BallsInBins(Dense(np.eye(4)), 1.0, 4, 2)


# The mechanism in accountants.


@pytest.mark.exhaustive
def test_one_band_is_random_allocation():
    bins, allocated = ja.BallsInBins(identity(), 1.0, 64), ja.RandomAllocation(1.0, 64)
    found, known = profiles(bins.decompose(1)[0][0]), profiles(allocated)
    for way in WAYS:
        assert found[way] == pytest.approx(known[way], rel=1e-2)


REFERENCES = {
    "R8": (square_root(2).normalized(), 64, 1, 1.0, 1e-3, (0.615628, 0.588653, 0.658039),
           (0.393912, 0.446963, 0.441647, 0.430454)),
    "R9": (square_root(4).normalized(), 64, 1, 1.0, 1e-3, (0.935789, 0.873775, 0.879272),
           (0.389038, 0.469919, 0.512663, 0.500593)),
    "R10": (square_root(8).normalized(), 64, 1, 1.0, 1e-3, (1.367728, 1.219975, 1.291548),
            (0.378815, 0.475648, 0.564113, 0.602852)),
    "R11": (BandedToeplitz([1.0, 0.5]), 20, 3, None, 1e-4, (1.168306, 1.175710, 1.196145),
            (0.775381, 0.864821, 0.843666, 0.843727)),
}  # fmt: skip
"""Strategy, bins, epochs, noise (for R11 1.2 over the norm of all turns), delta; epsilons from above and from below."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", REFERENCES)
def test_reference_values_are_met(name):
    strategy, batches, epochs, noise, delta, above, below = REFERENCES[name]
    bins = ja.BallsInBins(strategy, 1.0, batches, epochs)
    bins = bins.with_noise(noise or 1.2 * bins.sensitivity)
    found = ja.epsilon(bins, 1, delta)
    assert min(above) - 2e-3 <= found.upper <= min(above) + 1e-3
    assert max(below) - 2e-4 <= found.lower <= max(below) + 1e-3
    for nested, values, end in ((blocks(bins), above, "upper"), (depths(bins), below, "lower")):
        for one, value in list(zip(nested, values, strict=False))[name == "R8" :]:
            assert float(getattr(ja.epsilon(one, 1, delta), end)) == pytest.approx(value, abs=2e-3)


SETTINGS = [
    (4, 100, 1, 0.8, 1e-4, (1.029, 1.616), None),
    (4, 500, 1, 0.6, 1e-4, (1.267, 1.825), None),
    (4, 100, 10, 2.0, 1e-4, (2.213, 2.910), (0.690, 1.055)),
    (8, 100, 10, 2.0, 1e-4, (2.283, 3.457), (0.814, 1.520)),
    (16, 125, 16, 4.0, 1e-4, (0.659, 1.659), (0.469, 1.137)),
    (16, 500, 4, 1.5, 1e-4, (0.595, 1.593), (0.349, 0.775)),
    (2, 20, 5, 1.5, 1e-4, (3.201, 3.543), (1.389, 1.836)),
    (8, 50, 20, 5.0, 1e-4, (0.771, 1.586), (0.571, 1.187)),
    (32, 256, 4, 2.0, 1e-4, (0.473, 1.588), (0.365, 1.137)),
]
"""Bands, bins, epochs, noise over the sensitivity of one turn, delta; brackets at fixed places, and afresh."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s[0]}-{s[1]}-{s[2]}")
def test_brackets_are_as_narrow_as_those_of_the_sketch(setting):
    bands, batches, epochs, noise, delta, fixed, afresh = setting
    strategy = square_root(bands).normalized()
    runs = [(ja.BallsInBins(strategy, noise, batches, epochs), 1, fixed)]
    runs += [(ja.BallsInBins(strategy, noise, batches), epochs, afresh)] if afresh else []
    for bins, steps, (lower, upper) in runs:
        found = ja.epsilon(bins, steps, delta)
        assert lower - 1e-3 <= found.lower <= found.upper <= upper * 1.004
        assert found.lower < lower * 1.4


@pytest.mark.exhaustive
def test_estimates_of_monte_carlo_are_between_the_ends():
    bins = ja.BallsInBins(square_root(4).normalized(), 1.0, 64)
    for relation in WAYS:
        found = ja.monte_carlo.delta(bins, 1, 0.6, draws=10**5, relation=relation, key=jax.random.key(0))
        bounds = ja.delta(bins, 1, 0.6, relation=relation)
        assert found.lower < bounds.upper
        assert bounds.lower < found.upper


@pytest.mark.exhaustive
def test_traced_noise_has_the_pairs_of_concrete_noise_and_invalid_noise_has_none():
    def masses(noise):
        bins = ja.BallsInBins(square_root(2).normalized(), noise, 8)
        return [bins.dominating_pairs("remove")[0].p, bins.attained("remove")[0][0].dominating_pairs("remove")[0].p]

    noises = np.array([1.0, 2.0, 0.01, np.nan, -1.0], np.float32)
    above, below = jax.jit(jax.vmap(masses))(noises)
    for i, noise in enumerate(noises[:2]):
        for found, known in zip((above[i], below[i]), masses(float(noise)), strict=True):
            np.testing.assert_allclose(found, known, atol=1e-6)
    assert np.all(np.isnan(above[2:]).any(axis=1))
    assert np.all(np.isnan(below[2:]).any(axis=1))


def test_a_program_that_takes_the_mechanism_rounds_nothing_to_the_wrong_side():
    """Outside of the scope JAX makes float32 of what it is given."""
    kernel = ja.BallsInBins(square_root(3).normalized(), 1.0, 8).kernel
    for numbers in jax.tree.leaves(kernel):
        np.testing.assert_array_equal(np.float32(numbers), numbers)


@pytest.mark.exhaustive
def test_noise_of_none_and_of_infinity():
    bins = ja.BallsInBins(square_root(2), 0.0, 8)
    assert ja.epsilon(bins, 1, 1e-3).upper == np.inf
    assert ja.epsilon(bins.with_noise(np.inf), 3, 1e-3).upper == 0
    assert ja.epsilon(bins.with_noise(1e308), 3, 1e-3).upper >= 0


@pytest.mark.exhaustive
def test_rényi_orders_bound_the_pair():
    bins = ja.BallsInBins(square_root(4).normalized(), 1.0, 64)
    assert ja.rdp.curve(bins, [2.0]) >= math.log(1 + (math.exp(1.0) - 1) / 64)
    assert ja.rdp.epsilon(bins, 1, 1e-3) >= ja.epsilon(bins, 1, 1e-3).lower
