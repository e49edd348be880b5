"""Discrete Gaussian noise on vectors: its distance from Gaussian noise in 60 digits, and its bounds by brute force."""

import json
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import draws

import jaxacct as ja
from jaxacct import certified
from jaxacct.cli import main
from jaxacct.mechanisms import discrete_gaussian as theory

DIGITS = mp.workdps(60)


def bell(x, s):
    return mp.exp(-(mp.mpf(x) ** 2) / (2 * mp.mpf(s) ** 2))


def normal(x, s):
    return bell(x, s) / (mp.mpf(s) * mp.sqrt(2 * mp.pi))


def discrete(s, reach):
    masses = {k: bell(k, s) for k in range(-reach, reach + 1)}
    total = mp.fsum(masses.values())
    return {k: mass / total for k, mass in masses.items()}


def chi_square(p, q):
    return mp.fsum((p[k] - q[k]) ** 2 / q[k] for k in q)


# ---------------------------------------------------------------------------------------------------- the theory


@pytest.mark.parametrize("v", [1.0, 1.25, 49 / 16, 10.0, 29.0])
def test_theta_is_an_upper_bound_and_near(v):
    with DIGITS:
        exact = 2 * mp.fsum(mp.exp(-2 * mp.pi**2 * m**2 * mp.mpf(v)) for m in range(1, 9))
        assert exact <= mp.mpf(float(theory.theta(v))) <= exact * mp.mpf("1.0003")


@pytest.mark.parametrize("s", [2.0, 2.5, 3.7])
def test_chi_square_of_rounded_noise(s):
    reach = int(14 * s)
    with DIGITS:
        near, root = mp.sqrt(mp.mpf(s) ** 2 - mp.mpf(1) / 12), mp.sqrt(2)

        def above(x):
            return mp.erfc(mp.mpf(x) / near / root) / 2

        rounded = {k: above(abs(k) - 0.5) - above(abs(k) + 0.5) for k in range(-reach, reach + 1)}
        exact = chi_square(rounded, discrete(s, reach))
        assert exact <= mp.mpf(float(theory.chi_square_of_rounding(s))) <= exact * mp.mpf("1.001")


@pytest.mark.parametrize(("s", "t_squared"), [(1.2, 1.0), (2.0, 1.25), (3.0, 2.0)])
def test_chi_square_of_dithered_noise(s, t_squared):
    reach, step = int(14 * s), mp.mpf(1) / 16
    with DIGITS:
        t = mp.sqrt(mp.mpf(t_squared))
        near = mp.sqrt(mp.mpf(s) ** 2 - t * t)
        # Sums over so fine a grid are the integrals, to some 60 digits: the integrands are entire and fall as e^(-y^2).
        places = [step * j for j in range(int(-14 * s / step), int(14 * s / step) + 1)]
        total = [mp.fsum(bell(k - step * i, t) for k in range(-25, 26)) for i in range(16)]
        weight = [step * normal(y, near) / total[int(y / step) % 16] for y in places]
        every = range(-reach, reach + 1)
        dithered = {k: mp.fsum(w * bell(k - y, t) for w, y in zip(weight, places, strict=True)) for k in every}
        exact = chi_square(dithered, discrete(s, reach))
        assert 0 < exact <= mp.mpf(float(theory.chi_square_of_dither(t_squared)))


@pytest.mark.parametrize(("first", "second", "step"), [(3.0, 2.0, 2), (4.0, 3.5, 3)])
def test_chi_square_of_sums(first, second, step):
    with DIGITS:
        s = mp.sqrt(mp.mpf(first) ** 2 + (step * mp.mpf(second)) ** 2)
        one, two = discrete(first, int(13 * first)), discrete(second, int(13 * second))
        ideal = discrete(s, int(9 * s))
        law = {z: mp.fsum(one.get(z - step * y, 0) * two[y] for y in two) for z in ideal}
        bound = theory.chi_square_of_dither(float((first * second / s) ** 2))
        assert 0 < chi_square(law, ideal) <= mp.mpf(float(bound))


@pytest.mark.parametrize(("s", "t_squared"), [(1.5, 2.0), (2.0, 3.0)])
def test_chi_square_of_discrete_noise_with_gaussian_noise_added(s, t_squared):
    with DIGITS:
        t = mp.sqrt(mp.mpf(t_squared))
        both, step, law = mp.sqrt(mp.mpf(s) ** 2 + t * t), mp.mpf(1) / 16, discrete(s, int(14 * s))
        total = mp.mpf(0)
        for j in range(int(-9 * both / step), int(9 * both / step) + 1):
            y = step * j
            mixed, ideal = mp.fsum(law[k] * normal(y - k, t) for k in law), normal(y, both)
            total += step * (mixed - ideal) ** 2 / ideal
        bound = theory.chi_square_of_dither(float((mp.mpf(s) * t / both) ** 2))
        assert 0 < total <= mp.mpf(float(bound))


def test_total_variation_of_many_samples_is_never_below_that_of_binomials():
    for p, q in ((0.5, 0.51), (0.3, 0.32), (0.1, 0.1001), (0.9, 0.5)):
        chi = (p - q) ** 2 / q + (p - q) ** 2 / (1 - q)
        for n in (1, 2, 10, 50):
            each = [[math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(n + 1)] for x in (p, q)]
            exact = sum(abs(a - b) for a, b in zip(*each, strict=True)) / 2
            assert exact <= theory.total_variation(float(n), chi) <= 1


def test_what_is_not_known_costs_everything():
    inf, nan = math.inf, math.nan
    assert [float(theory.theta(v)) for v in (0.99, -1.0, nan)] == [inf] * 3
    assert [float(theory.chi_square_of_dither(v)) for v in (0.5, nan)] == [inf] * 2
    assert [float(theory.chi_square_of_rounding(v)) for v in (1.99, -3.0, nan)] == [inf] * 3
    assert [float(theory.total_variation(*pair)) for pair in ((1.0, inf), (inf, 1e-9), (nan, 1e-9), (1.0, nan))] == [
        1
    ] * 4
    assert [float(theory.cost(*pair)) for pair in ((inf, 1e-300), (nan, 1e-9), (1.0, nan), (1e4, 1e-9))] == [1] * 4
    assert theory.total_variation(0.0, inf) == theory.cost(inf, 0.0) == 0
    assert min(theory.theta(inf), theory.chi_square_of_dither(1e300), theory.chi_square_of_rounding(inf)) > 0
    assert theory.total_variation(1.0, 0.0) > 0


# ---------------------------------------------------------------------------------------------------- brute force
#
# Noise k of two coordinates, moved by w: the likelihood ratio depends on the whole number <w, k> alone, so its laws are
# all that counts.


def law_of_ratio(scale, moves):
    """The law of <w, k>, as an array about 0."""
    k = np.arange(-int(11 * scale) - 2, int(11 * scale) + 3)
    one = np.exp(-(k**2) / (2 * scale**2))
    law = np.ones(1)
    for move in filter(None, moves):
        spread = np.zeros((len(k) - 1) * move + 1)
        spread[::move] = one / one.sum()
        law = np.convolve(law, spread)
    return law


def directed_laws(scale, moves, rate, relation):
    """The laws (P, Q) under a direction of the relation, on one axis."""
    base, far = law_of_ratio(scale, moves), int(np.dot(moves, moves))
    mid = np.pad(base, (far, far))
    right = (1 - rate) * mid + rate * np.pad(base, (2 * far, 0))
    left = (1 - rate) * mid + rate * np.pad(base, (0, 2 * far))
    return {"remove": (right, mid), "add": (mid, right), "replace": (right, left)}[relation]


class Truth:
    """The exact profile of a run of one or two steps."""

    def __init__(self, scale, moves, rate, steps, relation):
        ways = ("remove", "add") if relation == "add_or_remove" else (relation,)
        self.laws = []
        for way in ways:
            p, q = directed_laws(scale, moves, rate, way)
            if steps == 2:
                p, q = np.outer(p, p).ravel(), np.outer(q, q).ravel()
            seen = (p > 1e-30) & (q > 0)
            self.laws.append((p[seen], q[seen]))

    def delta(self, epsilon):
        return max(np.maximum(p - np.exp(epsilon) * q, 0).sum() for p, q in self.laws)


def draw_setting(seed):
    """A setting at random: scale, moves, rate, steps and relation."""
    rng = np.random.default_rng(seed)
    moves = tuple(int(move) for move in rng.integers(0, 4, rng.integers(1, 3)))
    moves = moves if any(moves) else (1,)
    steps = int(rng.integers(1, 3))
    relation = ("add_or_remove", "remove", "add", "replace")[rng.integers(4)]
    return float(rng.uniform(2, 12 if steps == 1 else 6)), moves, (1.0, 0.3, 0.05)[rng.integers(3)], steps, relation


def check_by_brute_force(seed):
    """Checks both ends of delta at some epsilons, and of epsilon at a delta; returns how many ends said something."""
    scale, moves, rate, steps, relation = draw_setting(seed)
    rng = np.random.default_rng((seed, 1))
    truth = Truth(scale, moves, rate, steps, relation)
    mechanism = ja.DiscreteGaussianVector(scale, float(np.sqrt(np.dot(moves, moves))), len(moves), rate)
    slack, told = 1e-12, 0
    for epsilon in (float(rng.uniform(0, 0.5)), float(rng.uniform(0.2, 3))):
        exact, bounds = truth.delta(epsilon), ja.delta(mechanism, steps, epsilon, relation=relation)
        assert bounds.lower * (1 - slack) - 1e-15 <= exact <= bounds.upper * (1 + slack) + 1e-15, (seed, epsilon)
        told += (bounds.upper < 1) + (bounds.lower > 0)
    delta = float(10 ** rng.uniform(-4, -1))
    bounds = ja.epsilon(mechanism, steps, delta, relation=relation)
    if bounds.upper < np.inf:
        assert truth.delta(bounds.upper) <= delta * (1 + slack), (seed, delta)
    if bounds.lower > 0:
        assert truth.delta(bounds.lower * (1 - 1e-9)) >= delta * (1 - slack), (seed, delta)
    return told + (bounds.upper < np.inf) + (bounds.lower > 0)


def test_a_few_settings_by_brute_force():
    assert sum(map(check_by_brute_force, range(2))) > 7


@pytest.mark.exhaustive
def test_many_settings_by_brute_force():
    count = draws(300, 3000)
    assert sum(map(check_by_brute_force, range(100, 100 + count))) > 3.5 * count


def test_a_query_need_not_be_a_sum():
    """Maps of batches of three others to integers, at random but for what one example may move, on a sample."""
    rng, scale, move, rate = np.random.default_rng(5), 3.0, 3, 0.4
    mechanism = ja.DiscreteGaussianVector(scale, float(move), 1, rate)
    epsilons = np.array([0.1, 0.5, 1.0])
    upper = ja.curve(mechanism, 1, epsilons=epsilons).upper
    base, near = law_of_ratio(scale, (1,)), 0.0
    for trial in range(draws(200, 5000)):
        without = rng.integers(-8, 9, 8) if trial else np.zeros(8, int)
        beside = without + (rng.integers(-move, move + 1, 8) if trial else move)
        chance = rate ** (size := np.array([bin(i).count("1") for i in range(8)])) * (1 - rate) ** (3 - size)
        p, q = np.zeros((2, len(base) + 40))
        for one, other, mass in zip(without, beside, chance, strict=True):
            here, there = (np.pad(base, (20 + place, 20 - place)) for place in (one, other))
            p, q = p + mass * ((1 - rate) * here + rate * there), q + mass * here
        for epsilon, most in zip(epsilons, upper, strict=True):
            exact = max(np.maximum(x - np.exp(epsilon) * y, 0).sum() for x, y in ((p, q), (q, p)))
            assert exact <= most
            near = max(near, exact / most)
    assert near > 0.9


KINK = {"scale": 3.0, "sensitivity": 5.0, "dimensions": 1}
"""Noise and a move at which tau is needed: the discrete noise exceeds its Gaussian by a fifth of tau at one epsilon."""


def test_every_part_of_the_bound_is_needed(monkeypatch):
    """At one epsilon the truth is above what is left without tau, without s' or with a smaller sensitivity."""
    truth, epsilon = Truth(3.0, (5,), 1.0, 1, "remove"), 5 * (2 * 3.5 - 5) / 18
    mechanism = ja.DiscreteGaussianVector(**KINK)

    def upper():
        return float(ja.delta(mechanism, 1, epsilon, relation="remove").upper)

    exact = truth.delta(epsilon)
    assert exact <= upper() <= exact * 1.01
    with monkeypatch.context() as broken:
        broken.setattr(certified, "total_variation", lambda samples, chi: 0.0 * samples)
        assert upper() < exact
    for wrong in (
        lambda *args, **how: (ja.Gaussian(3.0 / 5.0), theory.nearby(*args, **how)[1]),
        lambda _, *args, **how: theory.nearby(ja.DiscreteGaussianVector(3.0, 4.9, 1), *args, **how),
    ):
        with monkeypatch.context() as broken:
            broken.setattr(certified, "nearby", wrong)
            assert upper() < exact


def ways(scale, samples):
    """The (s', tau) that are proved, by formulas of the test's own."""
    rounded = 0.5 * math.sqrt(math.expm1(samples * 2.8949e-6 * scale**-8))
    yield math.sqrt(scale**2 - 1 / 12), rounded
    for t_squared in theory.VARIANCES[scale**2 > theory.VARIANCES]:
        off = 2 * math.exp(-2 * math.pi**2 * t_squared)
        yield math.sqrt(scale**2 - t_squared), 0.5 * math.sqrt(math.expm1(samples * (off / (1 - off)) ** 2))


SMALL = (5.0, 2.5, 2.0, 0.3), 5, 1e-3
"""A run whose tau costs a notable part of delta."""


@pytest.mark.parametrize("relation", ["remove", "replace"])
def test_what_is_answered_is_proved_by_one_of_the_ways(relation):
    """At the epsilon of the answer delta' + (1 + e^epsilon) tau is at most delta: converted first, and added last."""
    (scale, width, entries, rate), steps, delta = SMALL
    found = ja.epsilon(ja.DiscreteGaussianVector(*SMALL[0]), steps, delta, relation=relation)

    def upper():
        return ja.delta(ja.DiscreteGaussianVector(*SMALL[0]), steps, 1.0, relation=relation).upper

    least, sums = [], []
    for near, tau in ways(scale, entries * steps):
        gaussian = ja.PoissonSubsampledGaussian(near / width, rate)
        profile = ja.curve(gaussian, steps, epsilons=[found.upper, 1.0], relation=relation).lower
        least.append(profile[0] + (1 + math.exp(found.upper)) * tau)
        sums.append(profile[1] + (1 + math.e) * tau)
    assert min(least) * (1 - 1e-6) <= delta
    assert min(sums) * (1 - 1e-6) <= upper()
    with pytest.MonkeyPatch.context() as broken:  # a bill that does not grow with epsilon is caught
        broken.setattr(certified, "cost", lambda epsilon, tau: tau)
        assert min(sums) * (1 - 1e-6) > upper()


# ---------------------------------------------------------------------------------------------------- use


@pytest.mark.parametrize(("scale", "dimensions"), [(2.0**20, 1e4), (2.0**20, 1e9), (2.0**12, 1e4)])
def test_training_on_integers_costs_what_gaussian_noise_does(scale, dimensions):
    mechanism = ja.DiscreteGaussianVector(scale, scale / 8.438, dimensions, 0.1)
    bounds = ja.epsilon(mechanism, 500, 1e-5)
    assert bounds.converged
    assert 1.000016 <= bounds.lower <= bounds.upper <= 1.000017


def test_compositions_curves_and_sequences():
    vector = ja.DiscreteGaussianVector(2.0**16, 2.0**14, 1000)
    both = ja.epsilon((vector, ja.Laplace(4.0)), (3, 2), 1e-6)
    gaussian = ja.epsilon((ja.Gaussian(4.0), ja.Laplace(4.0)), (3, 2), 1e-6)
    assert gaussian.lower <= both.upper <= gaussian.upper + 1e-4
    curve = ja.curve(vector, 3, epsilons=[0.5, 2.0])
    assert np.all(np.abs(curve.upper - ja.curve(ja.Gaussian(4.0), 3, epsilons=[0.5, 2.0]).upper) < 1e-9)
    rows = ja.DiscreteGaussianVector(2.0**16, 2.0 ** np.array([13.0, 14.0]), 1000)
    parts = ja.epsilon((ja.Gaussian(8.0), ja.Gaussian(4.0)), (2, 3), 1e-6)
    assert abs(ja.epsilon(rows, np.array([2, 3]), 1e-6).upper - parts.upper) < 1e-6
    assert ja.epsilon((vector, ja.ZeroConcentratedDP(0.1)), (1, 1), 1e-6).upper < 5
    group = ja.epsilon(ja.group(ja.DiscreteGaussianVector(2.0**16, 2.0**12, 1000), 4), 3, 1e-6)
    assert abs(group.upper - ja.epsilon(ja.Gaussian(4.0), 3, 1e-6).upper) < 1e-6


def falling(scale):
    return ja.DiscreteGaussianVector(2.0**20, 2.0**20 / scale, 1000, 0.1)


def test_a_scale_is_calibrated():
    found = ja.calibrate.scale(falling, 1.0, 1e-5, 500)
    assert found.reached.upper <= 1
    assert abs(found.value - 8.4381301) < 1e-4


def test_a_spec_and_the_command_line_take_it_by_its_name(capsys):
    fields = "scale=1048576,sensitivity=262144,dimensions=1000,sampling_rate=0.1,steps=20"
    assert main(["epsilon", "--mechanism", f"discrete-gaussian-vector:{fields}", "--delta", "1e-5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    gaussian = ja.epsilon(ja.PoissonSubsampledGaussian(4.0, 0.1), 20, 1e-5)
    assert gaussian.lower <= found["upper"] <= gaussian.upper * (1 + 1e-6)


def test_little_is_left_or_nothing_at_all():
    tiny = ja.DiscreteGaussianVector(0.5, 1.0, 10)
    assert ja.epsilon(tiny, 1, 1e-5).upper == math.inf
    assert ja.delta(tiny, 1, 1.0).upper == 1
    # tau passes delta: a refusal, and no number below the truth.
    assert ja.epsilon(ja.DiscreteGaussianVector(3.0, 0.05, 1.0), 1, 1e-300).upper == math.inf
    assert ja.epsilon(ja.DiscreteGaussianVector(8.0, 1.0, 10), 1, 0.0).upper == math.inf
    assert ja.delta(ja.DiscreteGaussianVector(8.0, 1.0, 10), 1, math.inf).upper == 1
    for free in (ja.DiscreteGaussianVector(math.inf, 1.0, 10), ja.DiscreteGaussianVector(1.0, 1.0, 10, 0.0)):
        assert ja.epsilon(free, 5, 1e-5).upper == 0
    assert ja.epsilon(ja.DiscreteGaussianVector(8.0, 1.0, 10), 0, 1e-5).upper == 0


@pytest.mark.exhaustive
def test_traced_numbers_are_one_program_and_invalid_ones_cost_everything():
    @jax.jit
    def upper(scale, width, entries, rate):
        traces.append(1)
        return ja.delta(ja.DiscreteGaussianVector(scale, width, entries, rate), 20, 1.0).upper

    traces = []
    good = 50.0, 10.0, 100.0, 0.1
    eager = ja.delta(ja.DiscreteGaussianVector(*good), 20, 1.0)
    assert abs(float(upper(*good)) / eager.upper - 1) < 1e-2
    assert float(upper(*good)) >= eager.lower
    for place, wrongs in enumerate(
        [(math.nan, -1.0, 0.5), (math.nan, -1.0, 0.0), (math.nan, 0.0, 1.5), (math.nan, -0.1, 1.1)]
    ):
        for wrong in wrongs:
            assert upper(*good[:place], wrong, *good[place + 1 :]) == 1, (place, wrong)
    assert upper(math.inf, *good[1:]) == 0
    assert len(traces) == 1
    batch = jax.vmap(lambda s: ja.epsilon(ja.DiscreteGaussianVector(s, 1.0, 10), 1, 1e-5).upper)(jnp.array([40.0, 0.5]))
    assert batch[0] < 1
    assert batch[1] == math.inf


REFUSED = {
    "rdp": lambda m: ja.rdp.epsilon(m, 1, 1e-5),
    "curve of Rényi divergences": lambda m: ja.rdp.curve(m, [2.0]),
    "prv": lambda m: ja.prv.epsilon(m, 1, 1e-5),
    "saddlepoint": lambda m: ja.saddlepoint.epsilon(m, 1, 1e-5),
    "tradeoff": lambda m: ja.tradeoff.advantage(m, 1),
    "gdp": lambda m: ja.gdp.mu(m, 1),
    "zCDP": ja.convert.mechanism_to_zcdp,
    "GDP": ja.convert.mechanism_to_gdp,
    "(epsilon, delta)": ja.convert.mechanism_to_dp,
    "a Rényi filter": lambda m: ja.filters.RenyiFilter(1.0, 1e-5).remaining(m),
    "a GDP filter": lambda m: ja.filters.GDPFilter(1.0, 1e-5).remaining(m),
    "a search": lambda m: ja.epsilon(ja.RepeatAndSelect(m, 1, ja.selection.Geometric(5.0)), 1, 1e-5),
    "a sample of it": lambda m: ja.epsilon(ja.PoissonSubsampled(m, 1, 0.1), 1, 1e-5),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_claims_are_refused_by_name_and_reason(what):
    with pytest.raises(ValueError, match=r"DiscreteGaussianVector has no .*in total variation alone") as refused:
        REFUSED[what](ja.DiscreteGaussianVector(100.0, 10.0, 10))
    assert len(str(refused.value)) <= 600


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ((0.0, 1.0, 1), "scale = 0"), ((8.0, 0.0, 1), "sensitivity = 0"), ((8.0, math.inf, 1), "sensitivity = inf"),
        ((8.0, 1.0, 1.5), "dimensions = 1.5"), ((8.0, 1.0, 0), "dimensions = 0"), ((8.0, 1.0, 1, 2.0), "sampling_rate"),
    ],
)  # fmt: skip
def test_fields_out_of_range_are_named(fields, named):
    with pytest.raises(ValueError, match=named):
        ja.DiscreteGaussianVector(*fields)
    with pytest.raises(ValueError, match="groups of 3"):
        ja.group(ja.DiscreteGaussianVector(8.0, 1.0, 1, 0.1), 3)
