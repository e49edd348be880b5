"""Are draws what their mechanisms account for? Fixed sizes, cut samples, random allocation; wrong ones are rejected."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import stats

from jaxacct import GaussianWithoutReplacement, RandomAllocation, TruncatedPoissonGaussian, rdp
from jaxacct.train.sampling import (
    PoissonSampler,
    RandomAllocationSampler,
    TruncatedPoissonSampler,
    WithoutReplacementSampler,
    log_binomial_tail,
    runs_of,
)

ACCEPT, REJECT = 1e-3, 1e-9
"""Keys are fixed, so neither test flickers; what is to be rejected is rejected beyond doubt."""

SAMPLERS = {
    "poisson": PoissonSampler(40, 0.2, 20),
    "truncated": TruncatedPoissonSampler(40, 0.2, 9),
    "without replacement": WithoutReplacementSampler(40, 8),
    "allocation": RandomAllocationSampler(40, 5, 20),
}


def draws(sampler, steps, seed=0):
    key = jax.random.key(seed)
    indices, masks = jax.jit(jax.vmap(lambda step: sampler.sample(key, step)))(np.arange(steps))
    return np.asarray(indices), np.asarray(masks)


def uniform(counts):
    return stats.chisquare(counts).pvalue


def subset_counts(indices, masks, n):
    """How often each subset of n examples was drawn."""
    members = np.zeros((len(indices), n), bool)
    for column in range(indices.shape[1]):
        members[np.arange(len(indices))[masks[:, column]], indices[masks[:, column], column]] = True
    return np.bincount(members @ (1 << np.arange(n)), minlength=2**n)


@pytest.mark.parametrize("name", SAMPLERS)
def test_batches_are_well_formed_and_one_program_serves_all(name):
    sampler = SAMPLERS[name]
    sample, key = jax.jit(sampler.sample), jax.random.key(5)
    for step in range(12):
        indices, mask = (np.asarray(part) for part in sample(key, step))
        assert indices.shape == mask.shape == (sampler.capacity,)
        assert indices.dtype == np.int32
        real = indices[mask]
        assert len(set(real.tolist())) == len(real)
        assert np.all((indices >= 0) & (indices < sampler.num_examples))
        assert np.all(indices[~mask] == 0)
        assert np.all(mask[:-1] >= mask[1:])
    assert sample._cache_size() == 1
    again = sample(key, 11)
    assert np.array_equal(again[0], indices)
    assert not np.array_equal(sample(key, 10)[0], indices)


def test_poisson_batches_of_a_step_are_those_of_its_key():
    sampler, key = SAMPLERS["poisson"], jax.random.key(2)
    by_step, by_key = sampler.sample(key, 7), sampler.sample(jax.random.fold_in(key, 7))
    assert np.array_equal(by_step[0], by_key[0])


def test_subsets_of_fixed_size_are_uniform():
    """All 56 subsets of 3 out of 8."""
    indices, masks = draws(WithoutReplacementSampler(8, 3), 20_000)
    assert masks.all()
    counts = subset_counts(indices, masks, 8)
    sizes = np.array([bin(s).count("1") for s in range(256)])
    assert counts[sizes != 3].sum() == 0
    assert uniform(counts[sizes == 3]) > ACCEPT


def test_the_subset_test_rejects_shuffled_batches_and_a_favourite():
    generator = np.random.default_rng(0)
    # Three batches of three from one shuffle of nine: each is uniform, together they are not.
    shuffled = np.concatenate([generator.permutation(9).reshape(3, 3) for _ in range(4000)])
    meetings = np.array([len(set(a) & set(b)) for a, b in itertools.pairwise(shuffled)])[::3]
    fresh, _ = draws(WithoutReplacementSampler(9, 3), 8000)
    apart = np.array([len(set(a) & set(b)) for a, b in itertools.pairwise(fresh)])[::2]
    law = stats.hypergeom(9, 3, 3).pmf(np.arange(4))
    assert stats.chisquare(np.bincount(apart, minlength=4), law * len(apart)).pvalue > ACCEPT
    assert stats.chisquare(np.bincount(meetings, minlength=4), law * len(meetings)).pvalue < REJECT
    favourite = np.sort(np.argsort(generator.random((20_000, 8)) - 0.1 * (np.arange(8) == 0))[:, :3])
    counts = subset_counts(favourite, np.ones_like(favourite, bool), 8)
    assert uniform(counts[np.array([bin(s).count("1") for s in range(256)]) == 3]) < REJECT


def test_cut_samples_are_poisson_below_the_cut_and_uniform_at_it():
    n, q, most = 6, 0.5, 3
    indices, masks = draws(TruncatedPoissonSampler(n, q, most), 20_000)
    counts = subset_counts(indices, masks, n)
    sizes = np.array([bin(s).count("1") for s in range(2**n)])
    law = np.where(sizes < most, q**n, stats.binom.sf(most - 1, n, q) / math.comb(n, most))
    allowed = sizes <= most
    assert counts[~allowed].sum() == 0
    assert stats.chisquare(counts[allowed], law[allowed] * len(indices)).pvalue > ACCEPT
    # Cut at the first ones in the order of the data instead, as rows of a table would be.
    everyone, some = draws(PoissonSampler(n, q, n + 1), 20_000)
    cut = subset_counts(everyone[:, :most], some[:, :most], n)
    assert stats.chisquare(cut[allowed], law[allowed] * len(indices)).pvalue < REJECT


def test_every_example_goes_to_one_batch_of_an_epoch():
    sampler = RandomAllocationSampler(30, 7, 31)
    indices, masks = draws(sampler, 7 * 40)
    for epoch in range(40):
        rows = slice(7 * epoch, 7 * epoch + 7)
        assert sorted(indices[rows][masks[rows]].tolist()) == list(range(30))


def test_places_are_uniform_and_independent_of_each_other_and_of_the_epoch():
    sampler = RandomAllocationSampler(60, 6, 61)
    places = np.asarray(jax.jit(jax.vmap(lambda e: sampler.places(jax.random.key(1), e)))(np.arange(3000)))
    assert uniform(np.bincount(places.ravel(), minlength=6)) > ACCEPT
    pairs = 6 * places[:, :-1:2] + places[:, 1::2]
    assert uniform(np.bincount(pairs.ravel(), minlength=36)) > ACCEPT
    epochs = 6 * places[:-1:2] + places[1::2]
    assert uniform(np.bincount(epochs.ravel(), minlength=36)) > ACCEPT
    # A shuffle into batches of ten: places of two examples agree too rarely.
    generator = np.random.default_rng(0)
    shuffled = np.stack([generator.permutation(np.repeat(np.arange(6), 10)) for _ in range(3000)])
    assert uniform(np.bincount((6 * shuffled[:, :-1:2] + shuffled[:, 1::2]).ravel(), minlength=36)) < REJECT


def test_places_of_several_participations_are_all_subsets_alike():
    """All 10 subsets of 3 out of 5 batches, of two examples and two epochs independently."""
    sampler = RandomAllocationSampler(60, 5, 61, participations=3)
    places = np.asarray(jax.jit(jax.vmap(lambda e: sampler.places(jax.random.key(1), e)))(np.arange(2000)))
    subsets = (1 << places).sum(axis=1)
    assert set(map(int.bit_count, subsets.ravel().tolist())) == {3}
    _, index = np.unique(subsets, return_inverse=True)
    index = index.reshape(subsets.shape)
    assert uniform(np.bincount(index.ravel(), minlength=10)) > ACCEPT
    assert uniform(np.bincount((10 * index[:, :-1:2] + index[:, 1::2]).ravel(), minlength=100)) > ACCEPT
    assert uniform(np.bincount((10 * index[:-1:2] + index[1::2]).ravel(), minlength=100)) > ACCEPT
    indices, masks = draws(sampler, 10)
    for epoch in range(2):
        rows = slice(5 * epoch, 5 * epoch + 5)
        assert sorted(indices[rows][masks[rows]].tolist()) == sorted(3 * list(range(60)))


def test_several_participations_are_accounted_for():
    sampler = RandomAllocationSampler.for_budget(60_000, 100, epsilon=3.0, delta=1e-5, steps=2000, participations=4)
    assert sampler.mechanism(2.0) == RandomAllocation(2.0, 100, participations=4)
    assert (sampler.expected_batch_size, sampler.steps_per_run) == (2400.0, 100)
    exact = stats.binom.sf(sampler.capacity, 60_001, 0.04)
    assert 2000 * exact * (1 + math.exp(3.0)) <= sampler.overflow_delta(2000, 3.0) <= 1.001e-8


@pytest.mark.parametrize("t", [1, 3, 65_535, 65_536])
def test_places_are_64_bits_modulo_the_number_of_batches(t):
    sampler = RandomAllocationSampler(100, t, 101)
    key = jax.random.key(9)
    words = np.asarray(jax.random.bits(jax.random.fold_in(key, 4), (2, 100), np.uint32)).astype(object)
    assert np.asarray(sampler.places(key, 4)).tolist() == [int(v) for v in (words[0] * 2**32 + words[1]) % t]


def test_each_sampler_knows_its_mechanism():
    assert SAMPLERS["without replacement"].mechanism(2.0) == GaussianWithoutReplacement(2.0, 0.2)
    assert SAMPLERS["without replacement"].relation == "replace"
    assert SAMPLERS["allocation"].mechanism(2.0) == RandomAllocation(2.0, 5)
    truncated = SAMPLERS["truncated"].mechanism(2.0)
    assert truncated.overflow_probability >= stats.binom.sf(8, 40, truncated.sampling_rate)
    for sampler in SAMPLERS.values():
        assert sampler.relation in sampler.mechanism(2.0).relations
        assert sampler.expected_batch_size == pytest.approx(8.0)
    assert [runs_of(SAMPLERS["allocation"], steps) for steps in (0, 1, 5, 6)] == [0, 1, 1, 2]


@pytest.mark.parametrize("n", [10, 300, 20_000])
@pytest.mark.parametrize("q", [0.001, 0.1, 0.6])
def test_the_binomial_tail_is_above_the_exact_one_and_near(n, q):
    mean, deviation = n * q, math.sqrt(n * q * (1 - q))
    for distance in (0.1, 1, 3, 7, 12):
        least = math.floor(mean + distance * deviation) + 1
        if least > n:
            assert log_binomial_tail(n, q, least) == -math.inf
            continue
        exact = stats.binom.logsf(least - 1, n, q)
        assert exact - 1e-12 * (1 + abs(exact)) <= log_binomial_tail(n, q, least) <= exact + 1e-5
    assert log_binomial_tail(n, q, math.floor(mean)) == 0.0


def test_what_is_not_accounted_is_paid_for():
    sampler = RandomAllocationSampler.for_budget(60_000, 100, epsilon=3.0, delta=1e-5, steps=2000)
    exact = stats.binom.sf(sampler.capacity, 60_001, 0.01)
    assert 2000 * exact * (1 + math.exp(3.0)) <= sampler.overflow_delta(2000, 3.0) <= 1.001e-8
    whole = RandomAllocationSampler(60_000, 100, 60_001)
    assert 0 < whole.overflow_delta(2000, 3.0) < 1e-12
    for name in ("truncated", "without replacement"):
        assert 0 < SAMPLERS[name].overflow_delta(10**6, 3.0) < 1e-15


def test_full_batches():
    everyone = np.arange(5)
    for sampler in (TruncatedPoissonSampler(5, 1.0, 6), WithoutReplacementSampler(5, 5)):
        indices, mask = sampler.sample(jax.random.key(0), 0)
        assert np.array_equal(np.sort(np.asarray(indices)[np.asarray(mask)]), everyone)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TruncatedPoissonSampler(0, 0.1, 3), "num_examples = 0"),
        (lambda: TruncatedPoissonSampler(10, 1.5, 3), "sampling_rate = 1.5"),
        (lambda: TruncatedPoissonSampler(10, 0.1, 0), "capacity = 0"),
        (lambda: WithoutReplacementSampler(10, 11), "batch_size = 11"),
        (lambda: RandomAllocationSampler(10, 0, 11), "batches = 0"),
        (lambda: RandomAllocationSampler(1000, 10, 90), "capacity = 90"),
        (lambda: RandomAllocationSampler(1000, 10, 190, 2), "capacity = 190"),
        (lambda: RandomAllocationSampler(10, 3, 11, 4), "participations = 4"),
        (lambda: RandomAllocationSampler.for_budget(10, 2, epsilon=1.0, delta=1e-5, steps=3, allowance=2), "allowance"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def mixture(weights, centers, x, s):
    return sum(w * stats.norm.pdf(x, c, s) for w, c in zip(weights, centers, strict=True))


@pytest.mark.parametrize("s", [0.7, 1.5])
@pytest.mark.parametrize(("others", "q", "most"), [(1, 0.5, 1), (3, 0.5, 2), (6, 0.3, 2)])
def test_a_cut_sample_is_dominated_by_its_mechanism(others, q, most, s):
    """The others contribute -1 each and the example 1, exactly: its output's law, by the size of the sample."""
    law = [stats.binom.pmf(size, others, q) for size in range(others + 1)]
    without = {-min(size, most): 0.0 for size in range(others + 1)}
    present = dict.fromkeys(range(-most, 2), 0.0)
    for size, probability in enumerate(law):
        without[-min(size, most)] += probability
        enters = q * (1 if size < most else most / (size + 1))
        present[-min(size, most)] += probability * (1 - enters)
        present[1 - min(size, most - 1)] += probability * enters
    x = np.linspace(-most - 12 * s, 2 + 12 * s, 20_001)
    p = mixture(present.values(), present.keys(), x, s)
    r = mixture(without.values(), without.keys(), x, s)
    overflow = stats.binom.sf(most - 1, others, q)
    broken = False
    for epsilon in (0.0, 0.2, 0.5, 1.0, 2.0):
        for forward in (True, False):
            one, other = (p, r) if forward else (r, p)
            exact = np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0.0), x)
            bounds = {}
            grid = np.linspace(-14, 14 + 2 / s, 40_001)
            for name, noise in (("one", s), ("two", s / 2)):
                base, moved = stats.norm.pdf(grid), stats.norm.pdf(grid, 1 / noise)
                mixed = (1 - q) * base + q * moved
                a, b = (mixed, base) if forward else (base, mixed)
                bounds[name] = np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0.0), grid)
            bound = (1 - overflow) * bounds["one"] + overflow * bounds["two"]
            assert exact <= bound * (1 + 1e-6) + 1e-9
            broken |= exact > bounds["one"] * (1 + 1e-3) + 1e-9
    # Accounted as a plain Poisson sample some of these would be under-reported.
    assert broken or (others, q, most) != (1, 0.5, 1)


def test_the_curve_of_cut_samples_lies_between_its_two_pairs():
    orders = (2.0, 5.0, 20.0)

    def curve(overflow, noise=1.2):
        return rdp.curve(TruncatedPoissonGaussian(noise, 0.1, overflow), orders)

    none, some, always, doubled = curve(0.0), curve(1e-3), curve(1.0), curve(0.0, 0.6)
    assert np.all(none < some)
    assert np.all(some < always)
    assert np.allclose(always, doubled, rtol=1e-9)
    moments = {name: np.exp((np.array(orders) - 1) * value) for name, value in (("none", none), ("always", always))}
    mixed = np.log(0.999 * moments["none"] + 1e-3 * moments["always"]) / (np.array(orders) - 1)
    assert np.allclose(some, mixed, rtol=1e-8)
    assert np.all(np.isinf(jax.jit(lambda v: rdp.curve(TruncatedPoissonGaussian(1.2, 0.1, v), orders))(1.5)))
