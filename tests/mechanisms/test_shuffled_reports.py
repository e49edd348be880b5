"""Shuffled randomized response against all data sets of few users, by enumeration, and exact ends for many."""

import collections
import functools
import itertools
import math

import jax
import numpy as np
import pytest
from scipy import special, stats

import jaxacct as ja
from jaxacct.mechanisms import shuffled_reports
from jaxacct.mechanisms.shuffled_reports import HistogramsFromBelow

EPSILONS = (0.0, 0.2, 0.5, 1.0, 1.7)


def report(value, epsilon, k):
    """Probabilities of a user's reports."""
    q = 1 / (math.exp(epsilon) + k - 1)
    return np.where(np.arange(k) == value, math.exp(epsilon) * q, q)


def histograms(values, epsilon, k):
    """Probability of every histogram of the reports of users with these values."""
    law = {(0,) * k: 1.0}
    for value in values:
        chances, more = report(value, epsilon, k), collections.defaultdict(float)
        for counts, mass in law.items():
            for y in range(k):
                more[(*counts[:y], counts[y] + 1, *counts[y + 1 :])] += mass * chances[y]
        law = more
    return law


@functools.cache
def exact(others, epsilon, k, back=False):
    """The deltas of one user whose value becomes 1 in place of 0, at EPSILONS, with these others."""
    p, q = (histograms((own, *others), epsilon, k) for own in ((1, 0) if back else (0, 1)))
    return np.array([sum(max(p[h] - math.exp(e) * q[h], 0.0) for h in p) for e in EPSILONS])


def profile(pair, back=False):
    p, q = (np.asarray(masses) for masses in ((pair.q, pair.p) if back else (pair.p, pair.q)))
    return np.array([np.maximum(p - math.exp(e) * q, 0).sum() for e in EPSILONS])


def by_gains(epsilon, k, n, below=False):
    """The formula of either bound, over the numbers of messages of each kind: (a, 1), (1, a) and equal ones."""
    a, q = math.exp(epsilon), 1 / (math.exp(epsilon) + k - 1)
    # Above: other messages of the blanket, and none. Below: those of the value that all others hold, and others.
    kinds = ((a * q, 1 / a), ((k - 3) * q, 1.0)) if below else (((k - 2) * q, 1.0), (max(1 - k * q, 0.0), 0.0))
    found = np.zeros(len(EPSILONS))
    for n0, n1, n2 in itertools.product(range(n + 1), repeat=3):
        left = n - n0 - n1 - n2
        if left >= 0:
            ways = math.factorial(n) / math.prod(map(math.factorial, (n0, n1, n2, left)))
            mass = ways * q ** (n0 + n1) * kinds[0][0] ** n2 * kinds[1][0] ** left
            shared = kinds[0][1] * n2 + kinds[1][1] * left
            gains = [(a * n0 + n1 + shared - math.exp(e) * (n0 + a * n1 + shared)) / n for e in EPSILONS]
            found += mass * np.maximum(gains, 0)
    return found


@pytest.mark.first_tier("2-4-1.5")
@pytest.mark.parametrize("epsilon", [0.4, 1.5, 4.0])
@pytest.mark.parametrize("n", [1, 3, 4, 5])
@pytest.mark.parametrize("k", [2, 3, 4])
def test_no_data_set_is_above_the_bound_and_the_lower_end_is_that_of_one(k, n, epsilon):
    (upper,) = ja.ShuffledRandomizedResponse(epsilon, k, n).dominating_pairs("replace")
    lower = HistogramsFromBelow(epsilon, k, n).dominating_pairs("replace")
    bound = profile(upper)
    for others in itertools.combinations_with_replacement(range(k), n - 1):
        for back in (False, True):
            assert np.all(exact(others, epsilon, k, back) <= bound + 1e-12)
    same = (1 if k == 2 else 2,) * (n - 1)
    for pair, back in zip(lower, (False, True), strict=False):
        np.testing.assert_array_less(profile(pair), exact(same, epsilon, k, back) + 1e-12)
        np.testing.assert_allclose(profile(pair), exact(same, epsilon, k, back), atol=1e-5)
    np.testing.assert_allclose(bound, by_gains(epsilon, k, n), atol=1e-5)
    np.testing.assert_array_less(by_gains(epsilon, k, n), bound + 1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", [(16, 768, 384), (2048, 9, 384), (2048, 768, 8)], ids=["rows", "columns", "layers"])
def test_few_points_of_each_lattice_keep_both_orders(monkeypatch, sizes):
    """With many users the numbers of reports fall on lattices; here they do with few, and coarsely."""
    for name, size in zip(("ROWS", "COLUMNS", "LAYERS"), sizes, strict=True):
        monkeypatch.setattr(shuffled_reports, name, size)
    if sizes[0] < 2048:  # where so few users have rows so far apart, densities of a few are below 0, and refused
        monkeypatch.setattr(shuffled_reports, "KNOWN_SUM", 1.0)
    shuffled_reports._pair.clear_cache()
    kinds = ja.ShuffledRandomizedResponse, HistogramsFromBelow
    try:
        (upper,), (lower,) = (kind(1.5, 4, 40).dominating_pairs("replace") for kind in kinds)
    finally:
        shuffled_reports._pair.clear_cache()
    above, below = by_gains(1.5, 4, 40), by_gains(1.5, 4, 40, below=True)
    for back in (False, True):
        assert np.all(profile(upper, back) >= above - 1e-12)
        assert np.all(profile(lower, back) <= below + 1e-12)
    assert profile(lower)[1] > 0.5 * below[1]
    assert profile(upper)[1] < 2.2 * above[1]


EXACT = {
    (3.0, 10, 10**3): (0.663125, 0.66336027),
    (3.0, 10, 10**5): (0.0552025, 0.05520317),
    (1.0, 4, 10**3): (0.117686, 0.11782414),
    (1.0, 4, 10**6): (0.00276721, 0.002767208),
    (2.0, 3, 10**4): (0.107663, 0.10767032),
}
"""Lower ends, which a bound may only exceed, and exact upper ones at a delta of 1e-6. With the gains of the third value
and of all others as one, the first lower end is .661983."""


@pytest.mark.exhaustive
def test_ten_million_users_have_a_narrow_bracket():
    bounds = ja.epsilon(ja.ShuffledRandomizedResponse(3.0, 10, 10**7), 1, 1e-6, relation="replace")
    assert 0.999 * bounds.upper < bounds.lower < bounds.upper


@pytest.mark.first_tier("3.0-10-1000")
@pytest.mark.parametrize("setting", EXACT, ids=lambda setting: "-".join(map(str, setting)))
def test_brackets_of_many_users_meet_the_exact_ends(setting):
    least, most = EXACT[setting]
    found = ja.epsilon(ja.ShuffledRandomizedResponse(*setting), 1, 1e-6, relation="replace")
    assert most - 1e-8 <= found.upper <= most + 1e-6
    assert least - 1e-6 <= found.lower <= most


@pytest.mark.exhaustive
@pytest.mark.parametrize(("epsilon", "k", "n"), [(2.0, 5, 300), (0.5, 2, 400), (5.0, 30, 500)])
def test_the_bound_of_hundreds_by_another_sum(epsilon, k, n):
    """Given n0 + n1 and n2, the n0 are binomial, and a call on them is in closed form."""
    a, q = math.exp(epsilon), 1 / (math.exp(epsilon) + k - 1)
    w = np.arange(n + 1.0)[:, None]
    m = np.arange(n + 1.0)[None, :]

    def pmf(x, count, p):
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = special.gammaln(count + 1) - special.gammaln(x + 1) - special.gammaln(count - x + 1)
            logs = logs + special.xlogy(x, p) + special.xlog1py(count - x, -p)
        return np.where((x >= 0) & (x <= count), np.exp(logs), 0.0)

    masses = pmf(w, float(n), 2 * q) * pmf(m, n - w, (k - 2) * q / (1 - 2 * q))
    found = ja.epsilon(ja.ShuffledRandomizedResponse(epsilon, k, n), 1, 1e-5, relation="replace")
    for e, side in ((found.upper, 1), (found.upper * (1 - 1e-5), -1)):
        c = math.exp(float(e))
        # The gain is (1 - c) (m + w) + (a - 1) (n0 - c n1) = base + slope n0, n1 = w - n0.
        base, slope = (1 - c) * m + (1 - a * c) * w, (a - 1) * (1 + c)
        least = np.ceil(-base / slope)
        above, shifted = (stats.binom.sf(least - 1 - i, np.maximum(w - i, 0), 0.5) for i in (0, 1))
        above = np.where(least <= 0, 1.0, np.where(least > w, 0.0, above))
        shifted = np.where(least <= 1, 1.0, np.where(least > w, 0.0, shifted))
        delta = (masses * np.maximum(base * above + slope * w / 2 * shifted, 0)).sum() / n
        assert (delta <= 1e-5 * (1 + 1e-6)) if side > 0 else (delta >= 1e-5 * (1 - 1e-4))


def test_what_it_is_not_is_refused():
    with pytest.raises(ValueError, match="relation = 'add_or_remove' is not supported"):
        ja.epsilon(ja.ShuffledRandomizedResponse(1.0, 3, 100), 1, 1e-6)
    with pytest.raises(ValueError, match="choices = 1 is out of range"):
        ja.ShuffledRandomizedResponse(1.0, 1, 100)
    with pytest.raises(ValueError, match=r"users = 2\.5 is not a number of users"):
        ja.ShuffledRandomizedResponse(1.0, 3, 2.5)
    with pytest.raises(ValueError, match=r"epsilon = 20\.0 is above"):
        ja.ShuffledRandomizedResponse(20.0, 3, 100)


@pytest.mark.exhaustive
def test_traced_numbers_have_the_same_pair_and_none_out_of_range():
    @jax.jit
    def ask(epsilon, users):
        return ja.ShuffledRandomizedResponse(epsilon, 4, users).dominating_pairs("replace")[0]

    (pair,) = ja.ShuffledRandomizedResponse(1.0, 4, 1000).dominating_pairs("replace")
    np.testing.assert_allclose(profile(ask(1.0, 1000.0)), profile(pair), rtol=1e-4, atol=1e-7)
    for numbers in ((-1.0, 100.0), (1.0, 2.5), (np.nan, 100.0)):
        assert np.all(np.isnan(ask(*numbers).p))
    assert ja.epsilon(ja.ShuffledRandomizedResponse(0.0, 4, 10), 3, 1e-6, relation="replace").upper == 0


@pytest.mark.exhaustive
def test_runs_compose():
    """Four runs of one epsilon each are at least twice, by the square root, and less than four times as much."""
    mechanism = ja.ShuffledRandomizedResponse(2.0, 5, 1000)
    one, many = (ja.prv.epsilon(mechanism, steps, 1e-6, relation="replace") for steps in (1, 4))
    assert 1.8 * one.lower < many.lower <= many.upper < 3 * one.upper
    assert many.upper - many.lower < 1e-3 * many.upper
