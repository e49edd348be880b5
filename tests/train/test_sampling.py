"""Is it Poisson sampling? Sizes, frequencies, packing, and what an overflow may cost."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import cases
from scipy import stats

from jaxacct.train.sampling import PoissonSampler, log_overflow_bound, pack

ACCEPT, REJECT = 1e-3, 1e-9
"""Keys are fixed, so neither test flickers; what is to be rejected is rejected beyond doubt."""


def binomial_fit(sizes, n, q):
    """P-value of a chi-square test that ``sizes`` are Binomial(n, q): bins of about equal probability."""
    edges = np.unique(stats.binom.ppf(np.linspace(0, 1, 13)[1:-1], n, q))
    bounds = np.concatenate([[-1], edges, [n]])
    expected = np.diff(stats.binom.cdf(bounds, n, q)) * len(sizes)
    observed = np.histogram(sizes, bins=bounds + 0.5)[0]
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


def draws(sampler, number, seed=0):
    keys = jax.random.split(jax.random.key(seed), number)
    return jax.jit(jax.vmap(sampler.sample))(keys)


@pytest.mark.first_tier("50-0.7")
@pytest.mark.parametrize(("n", "q"), cases([(1000, 0.02), (50, 0.7)], [(400, 0.1)]))
def test_batch_sizes_are_binomial(n, q):
    _, masks = draws(PoissonSampler(n, q, n + 1), 4000)
    sizes = np.asarray(masks.sum(axis=1))
    assert binomial_fit(sizes, n, q) > ACCEPT
    assert binomial_fit(sizes, n, 1.1 * q) < REJECT


def test_the_size_test_rejects_batches_of_fixed_size():
    assert binomial_fit(np.full(4000, 40), 400, 0.1) < REJECT
    _, masks = draws(PoissonSampler(400, 0.11, 401), 4000)
    assert binomial_fit(np.asarray(masks.sum(axis=1)), 400, 0.1) < REJECT


def test_every_example_appears_with_the_sampling_rate():
    n, q, number = 300, 0.05, 5000
    indices, masks = draws(PoissonSampler(n, q, n + 1), number, seed=1)
    counts = np.bincount(np.asarray(indices)[np.asarray(masks)], minlength=n)

    def p_value(rate):
        return stats.chi2.sf(((counts - number * rate) ** 2 / (number * rate * (1 - rate))).sum(), n)

    assert p_value(q) > ACCEPT
    assert p_value(1.1 * q) < REJECT
    assert counts[0] > 0
    assert counts[-1] > 0


def test_examples_are_drawn_independently_of_each_other():
    sampler = PoissonSampler(40, 0.3, 41)
    drawn = np.asarray(jax.vmap(sampler.draw)(jax.random.split(jax.random.key(2), 20_000)), float)
    correlation = np.corrcoef(drawn.T)[np.triu_indices(40, 1)]
    assert np.abs(correlation).max() < 5 / math.sqrt(20_000)


def test_a_batch_packs_what_was_drawn():
    sampler = PoissonSampler(500, 0.1, 120)
    both = jax.jit(lambda key: (*sampler.sample(key), sampler.draw(key)))
    for seed in range(20):
        indices, mask, present = map(np.asarray, both(jax.random.key(seed)))
        drawn = np.flatnonzero(present)
        assert np.array_equal(indices[mask], drawn)
        assert mask.tolist() == [True] * len(drawn) + [False] * (120 - len(drawn))


def test_packing_cuts_at_capacity_and_takes_nothing_from_nothing():
    indices, mask = pack(jnp.ones(10, bool), 4)
    assert indices.tolist() == [0, 1, 2, 3]
    assert bool(mask.all())
    assert not bool(pack(jnp.zeros(10, bool), 4)[1].any())


def test_one_compilation_serves_all_batch_sizes():
    sampler = PoissonSampler(100, 0.1, 60)
    sample = jax.jit(sampler.sample)
    sizes = {int(sample(jax.random.key(seed))[1].sum()) for seed in range(10)}
    assert len(sizes) > 1
    assert sample._cache_size() == 1


@pytest.mark.parametrize("n", [10, 300, 20_000])
@pytest.mark.parametrize("q", [0.001, 0.1, 0.6])
def test_the_overflow_bound_is_above_the_exact_tail_and_not_far(n, q):
    mean, deviation = (n + 1) * q, math.sqrt((n + 1) * q * (1 - q))
    for distance in (1, 3, 7, 12):
        capacity = math.ceil(mean + distance * deviation)
        if capacity > n:
            continue
        exact = stats.binom.logsf(capacity, n + 1, q)
        bound = log_overflow_bound(n, q, capacity)
        assert exact <= bound
        assert bound <= exact + 5 + 0.01 * abs(exact)


def test_the_overflow_bound_at_the_edges():
    assert log_overflow_bound(10, 0.5, 11) == -math.inf
    assert log_overflow_bound(10, 0.5, 3) == 0.0
    exact = 11 * math.log(0.5)  # all eleven
    assert exact <= log_overflow_bound(10, 0.5, 10) <= exact * (1 - 1e-5)


@pytest.mark.parametrize(
    ("n", "q", "steps", "epsilon"), [(60_000, 0.01, 2000, 3.0), (1437, 0.7, 66, 1.0), (30, 0.5, 9, 8.0)]
)
def test_the_capacity_is_the_least_that_the_allowance_pays_for(n, q, steps, epsilon):
    sampler = PoissonSampler.for_budget(n, q, epsilon=epsilon, delta=1e-5, steps=steps)
    assert sampler.overflow_delta(steps, epsilon) <= 1e-8
    exact = stats.binom.sf(sampler.capacity, n + 1, sampler.sampling_rate)
    assert steps * exact * (1 + math.exp(epsilon)) <= sampler.overflow_delta(steps, epsilon)
    smaller = log_overflow_bound(n, sampler.sampling_rate, sampler.capacity - 1)
    assert math.exp(smaller) * steps * (1 + math.exp(epsilon)) > 1e-8


def test_a_huge_epsilon_asks_for_room_for_everyone():
    assert PoissonSampler.for_budget(100, 0.1, epsilon=1e6, delta=1e-5, steps=10).capacity == 101


def test_full_batches_hold_everyone_and_one_more():
    sampler = PoissonSampler.for_budget(20, 1.0, epsilon=1.0, delta=1e-5, steps=10)
    assert sampler.capacity == 21
    assert int(sampler.sample(jax.random.key(0))[1].sum()) == 20
    assert sampler.overflow_delta(10, 1.0) == 0.0


@pytest.mark.parametrize("rate", [1e-9, 0.1, 1 / 3, 1e-4, 0.9999999999, 1.0])
def test_the_accounted_rate_is_the_drawn_one(rate):
    sampler = PoissonSampler(10, rate, 11)
    assert sampler.mechanism(1.5).sampling_rate == sampler.sampling_rate
    assert (sampler.sampling_rate * 2**32).is_integer()
    assert abs(sampler.sampling_rate - rate) <= 2.0**-33
    assert PoissonSampler(10, sampler.sampling_rate, 11) == sampler


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0.1, 10), "num_examples = 0"),
        ((10, 0.0, 10), "sampling_rate = 0.0"),
        ((10, 20.0, 10), "sampling_rate = 20.0"),
        ((10, 1e-11, 10), "nothing would ever be drawn"),
        ((1000, 0.1, 90), "capacity = 90"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PoissonSampler(*arguments)


def test_a_bad_allowance_is_named():
    with pytest.raises(ValueError, match="allowance = 2"):
        PoissonSampler.for_budget(10, 0.1, epsilon=1.0, delta=1e-5, steps=3, allowance=2)
