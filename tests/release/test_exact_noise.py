"""The samplers have the law that they say: enumerated exactly from all bits they may see, and by chi-square."""

import functools
import heapq
import math
import random
from collections import Counter
from fractions import Fraction

import pytest
from helpers.mutants import mutant
from helpers.thorough import draws
from scipy import stats

from jaxacct import release


class MoreBits(Exception):
    """A sampler asks for a choice that its script does not have."""


class Script:
    """A source of uniform integers and of coins that gives what is written, and then asks for more."""

    def __init__(self, choices):
        self.choices, self.asked = iter(choices), ()

    def __call__(self, n):
        return self.choose((1 / n,) * n)

    def choose(self, probabilities):
        if (choice := next(self.choices, None)) is None:
            self.asked = probabilities
            raise MoreBits
        return choice


def enumerated(sample, rest):
    """Returns the exact probability of each result that comes soon, and the probability of all others together.

    ``sample(script)`` is run on every script of choices, the likeliest scripts first.
    """
    found, ahead, left = Counter(), [(-1.0, ())], 1.0
    while left > rest:
        weight, choices = heapq.heappop(ahead)
        script = Script(choices)
        try:
            result = sample(script)
        except MoreBits:
            for choice, probability in enumerate(script.asked):
                if probability:
                    heapq.heappush(ahead, (weight * probability, (*choices, choice)))
        else:
            found[result] -= weight
            left += weight
    return found, left


def laplace(n, scale):
    return math.tanh(1 / (2 * scale)) * math.exp(-abs(n) / scale)


@functools.cache
def gaussian(n, scale):
    reach = range(-60 * math.ceil(scale), 60 * math.ceil(scale) + 1)
    return math.exp(-(n**2) / (2 * scale**2)) / sum(math.exp(-(k**2) / (2 * scale**2)) for k in reach)


def check_law(module, sampler, parameter, law, results, rest=1e-3):
    """Asserts that each result's probability is between what was enumerated, and that and all that was not.

    Coins of exponentials, and Laplace proposals, which have tests of their own, are one choice each.
    """

    def coin(x, script):
        return script.choose((1 - math.exp(-x), math.exp(-x))) == 1

    def proposal(scale, script):
        return script.choose([laplace(n, scale) for n in range(-6, 7)]) - 6

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_bernoulli_exp", coin)
        if sampler == "_discrete_gaussian":
            patch.setattr(module, "_discrete_laplace", proposal)
        found, left = enumerated(lambda script: vars(module)[sampler](*parameter, script), rest)
    for result in results:
        assert found[result] - 1e-12 <= law(result) <= found[result] + left + 1e-12, (result, found[result], left)


def check_coin(module, x):
    found, left = enumerated(lambda script: module._bernoulli_exp(x, script), 1e-5)
    assert found[True] - 1e-12 <= math.exp(-x) <= found[True] + left + 1e-12


COINS = (Fraction(0), Fraction(1, 3), Fraction(1), Fraction(7, 5))


@pytest.mark.parametrize("x", COINS)
def test_a_coin_of_an_exponential(x):
    check_coin(release, x)


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(1), Fraction(3, 2)])
def test_discrete_laplace_noise_exactly(scale):
    check_law(release, "_discrete_laplace", (scale,), lambda n: laplace(n, scale), range(-4, 5), 0.03)


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(4, 5)])
def test_discrete_gaussian_noise_exactly(scale):
    check_law(release, "_discrete_gaussian", (scale,), lambda n: gaussian(n, scale), range(-3, 4), 0.1)


def test_the_exponential_mechanism_exactly():
    scores, rate = [0, -1, -3], Fraction(1, 2)
    total = sum(math.exp(rate * score) for score in scores)
    check_law(release, "_choose", (scores, rate), lambda i: math.exp(rate * scores[i]) / total, range(3))


@pytest.mark.parametrize(
    ("sampler", "old", "new"),
    [
        ("_discrete_laplace", "if size or not is_negative:", "if True:"),
        ("_discrete_laplace", "(u + t * v) // s", "(u + t * v + 1) // s"),
        ("_discrete_laplace", "if not _bernoulli_exp(Fraction(u, t), below):", "if False:"),
        ("_discrete_laplace", "t, s = scale.numerator, scale.denominator", "t, s = math.ceil(scale), 1"),
        ("_discrete_gaussian", "(abs(n) - square / t)", "(n - square / t)"),
        ("_discrete_gaussian", "** 2 / (2 * square), below)", "** 2 / (9 * square), below)"),
        ("_choose", "(best - scores[i])", "(best - 2 * scores[i])"),
    ],
)
def test_a_sampler_with_a_mistake_is_noticed(sampler, old, new):
    scale, scores = Fraction(4, 5) if sampler == "_discrete_gaussian" else Fraction(3, 2), [0, -1, -3]
    cases = {
        "_discrete_laplace": ((scale,), lambda n: laplace(n, scale)),
        "_discrete_gaussian": ((scale,), lambda n: gaussian(n, scale)),
        "_choose": ((scores, Fraction(1)), lambda i: math.exp(scores[i]) / sum(map(math.exp, scores))),
    }
    with pytest.raises(AssertionError):
        check_law(mutant("jaxacct.release", (old, new)), sampler, *cases[sampler], range(4), 0.02 if scale > 1 else 0.1)


@pytest.mark.parametrize(("old", "new"), [("k % 2 == 1", "k % 2 == 0"), ("x -= 1", "x -= 2"), ("k = 1\n", "k = 2\n")])
def test_a_coin_with_a_mistake_is_noticed(old, new):
    module = mutant("jaxacct.release", (old, new))
    with pytest.raises(AssertionError):
        [check_coin(module, x) for x in COINS]


@pytest.mark.parametrize("scale", [0.3, 2.7, 9.3])
@pytest.mark.parametrize(
    ("sample", "law"), [(release._discrete_laplace, laplace), (release._discrete_gaussian, gaussian)]
)
def test_noise_by_chi_square(sample, law, scale):
    """Scales as they are given: float64, whose fractions have denominators of 2^50."""
    count = draws(4000, 100_000)
    below = random.Random(f"{sample.__name__} {scale}").randrange
    found = Counter(sample(Fraction(scale), below) for _ in range(count))
    reach = [n for n in range(-120, 121) if law(n, scale) * count > 8]
    expected = [law(n, scale) * count for n in reach]
    seen = [found[n] for n in reach]
    rest = count - sum(expected)
    if rest > 8:
        expected, seen = [*expected, rest], [*seen, count - sum(seen)]
    statistic = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    assert 1e-6 < stats.chi2.sf(statistic, len(expected) - (rest > 8)) < 1 - 1e-6


def test_large_scales_stay_integers():
    below = random.Random(1).randrange
    scale = Fraction(1e12)
    sizes = sorted(abs(release._discrete_gaussian(scale, below)) / 1e12 for _ in range(101))
    assert 0.4 < sizes[50] < 1.0  # the median of a normal number's size is 0.67
    assert isinstance(release._discrete_laplace(scale, below), int)


def test_a_uniform_choice_among_many_ends():
    below = random.Random(2).randrange
    scores = [-(10**30) * (i != 777) for i in range(1000)]
    assert release._choose(scores, Fraction(1, 10), below) == 777
