"""The first of some queries above a threshold, against the law of that by quadrature over the threshold's noise."""

import math
import pathlib
import re

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import stats

import jaxacct as ja
from jaxacct import mechanisms
from jaxacct.mechanisms.sparse_vector import first_above_pair, worst_tails_pair
from jaxacct.train import SideQuery, SparseVector

NOISES = {ja.AboveThreshold: stats.laplace, ja.GaussianAboveThreshold: stats.norm}


def law(noise, s, b, values, often=None):
    """Probabilities (..., m + 1) of each of the values (..., m) to be the first above 0, and of none.

    Each is asked ``often`` times; s and b scale the noise of the threshold and of the queries.
    """
    z = np.linspace(*noise.ppf([1e-13, 1 - 1e-13]), 1501) * s
    weight = noise.pdf(z / s) / s * (z[1] - z[0])
    often = np.ones(values.shape[-1]) if often is None else often
    below = often[:, None] * noise.logcdf((z - values[..., None]) / b)
    before = np.exp(np.cumsum(below, axis=-2) - below)
    first = np.sum(weight * before * -np.expm1(below), axis=-1)
    return np.concatenate([first, np.sum(weight * np.exp(np.sum(below, axis=-2)), axis=-1)[..., None]], axis=-1)


def divergence(p, q, epsilon):
    return np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0), axis=-1)


def moves(rng, kind, shape):
    return rng.choice([0.0, 1.0] if kind else [-1.0, 1.0], shape)


@pytest.mark.first_tier("AboveThreshold-True")
@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("kind", NOISES)
def test_few_queries_and_blocks_of_many_are_never_above_the_profile(kind, monotone):
    rng, worst = np.random.default_rng(monotone), 0.0
    for often in (np.ones(2), np.ones(4), np.array([1.0, 40.0, 1000.0]), np.array([1e6, 1.0])):
        s, b = rng.uniform(0.6, 5.0, 2)
        fields = (s, b) if kind is ja.AboveThreshold else (s, b, float(np.sum(often)))
        mechanism = kind(*fields, monotone=monotone)
        # Adding raises what is monotone: P has the more.
        values = b * (rng.normal(size=(60, len(often))) - np.log(often) / 2)
        added = law(NOISES[kind], s, b, values + moves(rng, monotone, values.shape), often)
        without = law(NOISES[kind], s, b, values, often)
        for p, q, relation in ((added, without, "remove"), (without, added, "add")):
            pair = mechanism.dominating_pairs(relation)[0]
            for epsilon in np.array([0.0, 0.2, 0.6]) * (1 / s + 2 / b):
                bound = profile(pair, epsilon)
                assert np.all(divergence(p, q, epsilon) <= bound + 1e-9)
                worst = max(worst, np.max(divergence(p, q, epsilon)) / max(bound, 1e-9))
    assert worst > 0.2  # or nothing was asked
    print(f"{kind.__name__}, monotone {monotone}: the worst at random has {worst:.3f} of the bound")


def profile(pair, epsilon):
    """delta of a pair at an epsilon, from the numbers that it is made of."""
    if hasattr(pair, "p"):
        return float(divergence(np.asarray(pair.p), np.asarray(pair.q), epsilon))
    with jax.enable_x64(True):
        above = [float(f(np.float64(epsilon), pair.parameters)) for f in (pair.survival_p, pair.survival_q)]
    return above[0] - math.exp(epsilon) * above[1]


@pytest.mark.parametrize("monotone", [False, True])
def test_the_largest_loss_of_laplace_noise_is_approached(monotone):
    """Many queries far below, which an example lifts by 1, show that the threshold is high, of one that it does not."""
    s, b = 2.0, 3.0
    often, move = np.array([1e12, 1.0]), np.array([1.0, 0.0 if monotone else -1.0])
    values = np.array([8.0 - b * math.log(1e12), -40.0])
    p, q = (law(stats.laplace, s, b, values + move * present, often)[1] for present in (0, 1))
    most = float(ja.epsilon(ja.AboveThreshold(s, b, monotone=monotone), 1, 0.0, relation="add").upper)
    assert most == pytest.approx(1 / s + (1 if monotone else 2) / b, rel=1e-6)
    assert most >= 1 / s + (1 if monotone else 2) / b
    assert most * 0.99 <= math.log(p / q) <= most + 1e-9


def test_gaussian_tails_are_those_of_n_events():
    mpmath = pytest.importorskip("mpmath")
    mechanism = ja.GaussianAboveThreshold(4.0, 8.0, queries=99)
    (pair,) = mechanism.dominating_pairs()
    reach, count, least = (float(value) for value in pair.parameters)
    assert reach == pytest.approx(math.hypot(1 / 4, 2 / 8), rel=1e-14)
    assert count == 100
    with jax.enable_x64(True):
        losses = np.array([-2.0, -1.001, -1.0, 0.0, 0.999, 1.0, 1.001, 2.0, 12.0]) * least
        functions = {
            "survival_p": pair.survival_p,
            "survival_q": pair.survival_q,
            "cdf_p": pair.cdf_p,
            "cdf_q": pair.cdf_q,
        }
        found = {name: np.asarray(function(losses, pair.parameters)) for name, function in functions.items()}
    error = float(pair.value_error)
    assert error < 1e-13
    with mpmath.workdps(40):
        for i, y in enumerate(losses):
            tails = [100 * mpmath.ncdf(-mpmath.mpf(max(abs(y), least)) / reach + sign * reach / 2) for sign in (1, -1)]
            p, q = tails if y > -least else [1 - tail for tail in tails[::-1]]
            for name, exact in (("p", p), ("q", q)):
                slack = error * exact * (1 + abs(mpmath.log(exact)))
                assert abs(found[f"survival_{name}"][i] - exact) <= slack + 1e-300
                assert abs(found[f"cdf_{name}"][i] - (1 - exact)) <= error
    for epsilon in (1.0, 1.5):
        single = ja.delta(ja.Gaussian(1 / reach), 1, epsilon)
        bounds = ja.delta(mechanism, 1, epsilon)
        assert bounds.lower <= 100 * single.upper
        assert 100 * single.lower <= bounds.upper <= 100 * single.upper * (1 + 1e-4)


@pytest.mark.exhaustive
def test_one_composition_with_training():
    steps, sparse = ja.PoissonSubsampledGaussian(1.0, 0.01), ja.AboveThreshold(10.0, 20.0)
    alone, both, dp = (
        float(ja.epsilon(*run, 1e-5).upper)
        for run in ((steps, 1000), ((steps, sparse), (1000, 1)), ((steps, ja.PureDP(0.2)), (1000, 1)))
    )
    assert alone < both < dp < alone + 0.2
    assert ja.group(sparse, 2) == ja.AboveThreshold(5.0, 10.0)
    for kind, more in zip(NOISES, ((), (5,)), strict=True):
        assert kind(math.inf, math.inf, *more).releases_nothing()
        assert ja.rdp.epsilon(kind(0.0, 1.0, *more), 1, 1e-3) == math.inf


@pytest.mark.exhaustive
def test_questions_are_refused_once_all_runs_are_spent():
    stop = SparseVector(ja.AboveThreshold(0.1, 0.2), 10.0, sensitivity=1.0, runs=2)
    assert [stop.above(value) for value in (0.0, 50.0, 0.0, 50.0)] == [False, True, False, True]
    with pytest.raises(RuntimeError, match="all 2 runs are spent"):
        stop.above(0.0)
    capped = SparseVector(ja.GaussianAboveThreshold(0.1, 0.2, queries=3), 10.0, sensitivity=1.0)
    assert [capped.above(0.0) for _ in range(3)] == [False] * 3
    with pytest.raises(RuntimeError, match="spent"):
        capped.above(0.0)
    for runs, steps in ((1, 100), (3, 100), (7, 7)):
        query = SparseVector(ja.AboveThreshold(1.0, 2.0), 0.0, sensitivity=1.0, runs=runs).side_query(steps)
        assert isinstance(query, SideQuery)
        assert query.count(steps) >= runs


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", NOISES)
def test_questions_have_the_law_that_is_accounted(kind):
    """How often the first, the second or neither of two is above; by chance 5 deviations off once in a million."""
    mechanism = kind(2.0, 4.0, *[2] * (kind is ja.GaussianAboveThreshold))
    firsts = []
    for i in range(100):
        stop = SparseVector(mechanism, 100.0, sensitivity=10.0, seed=i)
        firsts.append(next((j for j, value in enumerate((90.0, 120.0)) if stop.above(value)), 2))
    expected = law(NOISES[kind], 20.0, 40.0, np.array([-10.0, 20.0]))
    off = (np.bincount(firsts, minlength=3) / 100 - expected) / np.sqrt(expected * (1 - expected) / 100)
    assert np.all(np.abs(off) < 5)


def test_the_page_says_of_which_mechanisms_a_lower_end_is_of_the_pair_alone():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "accountants.md").read_text()
    table = page.split("| not tight |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`[,| ]", "".join(line.split("|")[1] + "|" for line in table.splitlines()[2:])))
    kinds = [kind for kind in vars(mechanisms).values() if isinstance(kind, type) and issubclass(kind, ja.Mechanism)]
    assert named == {kind.__name__ for kind in kinds if not kind.tight} - {"Mechanism"}


SPARSE = ja.AboveThreshold(1.0, 2.0)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ja.GaussianAboveThreshold(1.0, 2.0, 0), ValueError, "queries = 0 .* give the most that a run asks"),
        (lambda: ja.AboveThreshold(-1.0, 2.0), ValueError, "threshold_scale = -1.0 .* at least 0"),
        (lambda: SparseVector(ja.Gaussian(1.0), 0.0, sensitivity=1.0), TypeError, "give a jaxacct.AboveThreshold"),
        (lambda: SparseVector(SPARSE, math.nan, sensitivity=1.0), ValueError, "threshold = nan .* give a finite"),
        (lambda: SparseVector(SPARSE, 0.0, sensitivity=1.0).above(math.nan), ValueError, "value = nan .* clip what is"),
        (lambda: SparseVector(SPARSE, 0.0, sensitivity=1.0, runs=3).side_query(2), ValueError, "steps = 2 .* give"),
    ],
)
def test_says_what_is_wrong_and_what_to_do(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_gains_by_hazards_are_never_above_the_closed_form():
    """Choices of rates, in steps of any size, against g; and g against the numbers of the pair."""
    (pair,) = ja.AboveThreshold(2.0, 5.0).dominating_pairs()
    most, log_ratio = (float(value) for value in pair.parameters)
    x = np.concatenate([-np.geomspace(1e-3, 200, 800), np.linspace(0, 1, 4001), np.geomspace(1, 200, 800)])
    ratios = stats.laplace.logcdf((x - 1) / 5) / stats.laplace.logcdf(x / 5)
    assert np.max(ratios) <= math.exp(log_ratio) <= np.max(ratios) * 1.001
    rng, ratio = np.random.default_rng(3), np.exp(log_ratio)

    def g(u):
        folded = (ratio - 1) / (ratio + 1) * np.maximum(u, 1 / u) ** (-1 / (ratio - 1))
        return np.where(u >= 1, folded, 1 - u + u * folded)

    for u in (0.9, 1.0, 1.02, 1.1, 1.3):
        p, q, gained = np.ones(4000), np.full(4000, u), np.zeros(4000)
        size, stay = rng.choice([0.01, 0.1, 0.5, 2.0], 4000), rng.uniform(0.98, 1.2, 4000)
        for _ in range(60):  # towards a level, each its own: the best chatter there
            rates = np.where(q / p < stay, 1 / ratio, ratio) ** rng.choice([0.9, 1.0, 1.0], 4000)
            ends = np.exp(-size), np.exp(-size * rates)
            gained += np.maximum(p * (1 - ends[0]) - q * (1 - ends[1]), 0.0)
            p, q = p * ends[0], q * ends[1]
        gained += np.maximum(p - q, 0.0)
        assert 0.6 * g(u) <= np.max(gained) <= g(u) * (1 + 1e-12)
    for y in np.linspace(0.0, most - log_ratio, 5):
        assert profile(pair, y) == pytest.approx(float(g(math.exp(y))), rel=1e-12)
    with jax.enable_x64(True):
        losses = np.array([-2.0, -1.0, -0.5, 0.0, 0.3, 0.999, 1.0, 2.0]) * most
        sums = [f(losses, pair.parameters) + h(losses, pair.parameters) for f, h in
                ((pair.cdf_p, pair.survival_p), (pair.cdf_q, pair.survival_q))]  # fmt: skip
    np.testing.assert_allclose(sums, 1.0, rtol=1e-14)
    assert profile(pair, most * 0.9) == pytest.approx(  # on the tangent, which meets 0 at the largest loss
        profile(pair, most - log_ratio) * (math.exp(most) - math.exp(0.9 * most)) / (math.exp(most) * (1 - 1 / ratio)),
        rel=1e-12,
    )


def tails_of_first_above(pair, y, side):
    """P(Y > y), or for the other side Q(Y > y), for the pair's parameters."""
    most, log_ratio = (mp.mpf(float(v)) for v in pair.parameters)

    def beyond(size, side):
        rate = 1 / mp.expm1(log_ratio) + (0 if side > 0 else 1)
        return mp.exp(-rate * min(max(size, 0), most - log_ratio)) / (1 + mp.exp(-side * log_ratio))

    return beyond(y, side) if y >= 0 else 1 - beyond(-y, -side)


def tails_of_worst(pair, y, side):
    reach, count, least = (mp.mpf(float(v)) for v in pair.parameters)
    above = count * mp.ncdf(side * reach / 2 - max(y, least) / reach)
    below = 1 - count * mp.ncdf(-side * reach / 2 - max(-y, least) / reach)
    return min(max(below if y <= -least else above, mp.mpf(0)), mp.mpf(1))


@pytest.mark.first_tier(
    "first_above_pair-tails_of_first_above-arguments1", "first_above_pair-tails_of_first_above-arguments3"
)
@pytest.mark.parametrize(
    ("make", "tails", "arguments"),
    [(first_above_pair, tails_of_first_above, a) for a in [(0.2, 20.0), (5.0, 1.0), (40.0, 0.05), (700.0, 0.01)]]
    + [(worst_tails_pair, tails_of_worst, a) for a in [(0.01, 11.0), (1.0, 1e9), (4.0, 782.0), (20.0, 2.0)]],
)
def test_distribution_functions_err_by_what_their_pair_says(make, tails, arguments):
    """Survival functions from 0 on relative to themselves, below 0 absolutely, and next to the jumps."""
    with jax.enable_x64(True):
        pair = make(*map(jnp.asarray, arguments))
        most = float(pair.highest)
        inner = float(pair.parameters[2]) if make is worst_tails_pair else most - float(pair.parameters[1])
        size = np.concatenate([most * np.array([1e-9, 0.01, 0.3, 0.8, 0.999]), inner * np.array([1 - 1e-9, 1 + 1e-9])])
        y = np.concatenate([size, -size, [0.0]])
        y = y[np.abs(y) < most]
        functions = [(pair.cdf_p, pair.survival_p, 1), (pair.cdf_q, pair.survival_q, -1)]
        found = [[np.asarray(f(jnp.asarray(y), pair.parameters)) for f in pair_of[:2]] for pair_of in functions]
        error = float(pair.value_error)
    with mp.workdps(400):
        for (_, _, side), (below, above) in zip(functions, found, strict=True):
            for i, at in enumerate(y):
                truth = tails(pair, mp.mpf(float(at)), side)
                assert abs(mp.mpf(float(below[i])) - (1 - truth)) <= error, (at, side, "cdf")
                if truth > 1e-300:
                    allowed = error * truth * (1 + abs(mp.log(truth))) if at >= 0 else error
                    assert abs(mp.mpf(float(above[i])) - truth) <= allowed, (at, side, "survival")
