"""Sensitivities by brute force: what a row changes over neighbouring tables is what the mechanism is accounted with."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from helpers.mutants import mutant
from helpers.thorough import draws

import jaxacct as ja
from jaxacct import release

NAN, INF = float("nan"), float("inf")
ROWS = (NAN, -INF, INF, -3.0, -1.0, -0.5, -0.25, 0.0, -0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 2.25, 7.0, 5e-324, 1e308)
"""Values within and beyond bounds, on the grid and between its points, and none."""


class Purse:
    """A budget that pays for everything."""

    def __init__(self, relation):
        self.relation, self.paid = relation, []

    def pay(self, name, mechanism, runs=1):
        self.paid.append((mechanism, runs))
        return len(self.paid)


@pytest.fixture
def quiet(monkeypatch):
    """Returns what makes a module's releases exact: no noise, and any budget."""

    def silence(module):
        monkeypatch.setattr(module, "_discrete_laplace", lambda scale, below: 0)
        monkeypatch.setattr(module, "_discrete_gaussian", lambda scale, below: 0)
        monkeypatch.setattr(module, "Budget", Purse)
        return module

    return silence


def neighbours(relation, rows, table):
    """Yields pairs of tables that differ by one row, which is added, or put in another one's place."""
    for row in rows:
        if relation == "add_or_remove":
            yield [*table], [*table, row]
        else:
            yield from (([*table, other], [*table, row]) for other in rows)


def check_sums(module, relation, lower, upper, granularity, noise=ja.DiscreteLaplace, size=None, tables=((), (0.5,))):
    """Asserts that no neighbours' sums differ by more steps than the sensitivity, and that some differ by as many."""
    largest = 0
    for table in tables:
        for pair in neighbours(relation, ROWS, table):
            purse, values = Purse(relation), []
            for rows in pair:
                options = {"lower": lower, "upper": upper, "granularity": granularity, "scale": 5.0, "noise": noise}
                if size is None:
                    values.append(module.sum(np.array(rows), purse, **options).value)
                else:
                    values.append(module.mean(np.array(rows), purse, size=size, **options).value)
            (mechanism, runs), _ = purse.paid
            step = (max(abs(lower), abs(upper)) / 1000 if granularity is None else granularity) / (size or 1)
            largest = max(largest, abs(values[1] - values[0]) / step)
            assert runs == 1
            assert abs(values[1] - values[0]) / step <= mechanism.sensitivity * (1 + 1e-9)
    assert largest >= mechanism.sensitivity * (1 - 1e-9)
    assert mechanism.scale == pytest.approx(5.0 / step)


@pytest.mark.parametrize("relation", ["add_or_remove", "replace"])
@pytest.mark.parametrize(
    ("lower", "upper", "granularity"),
    [(-1.0, 2.0, 0.5), (0.0, 2.0, 0.5), (1.0, 2.0, 0.25), (-3.0, -1.0, 1.0), (-1.0, 2.0, None), (-0.9, 1.7, 0.3)],
)
def test_sums(quiet, relation, lower, upper, granularity):
    check_sums(quiet(release), relation, lower, upper, granularity)


@pytest.mark.parametrize("relation", ["add_or_remove", "replace"])
def test_means(quiet, relation):
    check_sums(quiet(release), relation, -1.0, 2.0, 0.5, ja.DiscreteGaussian, size=7)


def test_random_bounds(quiet):
    rng = random.Random(5)
    module = quiet(release)
    for _ in range(draws(30, 2000)):
        lower, upper = sorted(rng.choice((0.0, rng.uniform(-3, 3), rng.randint(-3, 3))) for _ in range(2))
        granularity = rng.choice((0.1, 0.5, 1.0, rng.uniform(0.01, 1)))
        if round(Fraction(lower) / Fraction(granularity)) < round(Fraction(upper) / Fraction(granularity)):
            check_sums(module, rng.choice(("add_or_remove", "replace")), lower, upper, granularity, tables=((),))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("else max(abs(low), abs(high))\n", "else high - low\n"),
        ("= high - low if", "= max(abs(low), abs(high)) if"),
        ("np.where(np.isnan(column), 0.0, column)", "np.where(np.isnan(column), 9.0, column)"),
        ("np.clip(steps, low, high)", "np.clip(steps, low - 1, high)"),
        ("np.rint(", "np.ceil(0.5 + "),
        ("own = float(ratio) if", "own = float(scale) if"),
    ],
)
def test_a_wrong_sensitivity_is_noticed(quiet, old, new):
    module = quiet(mutant("jaxacct.release", (old, new)))

    def ask():
        for relation in ("add_or_remove", "replace"):
            check_sums(module, relation, -1.0, 2.0, 0.5)
            check_sums(module, relation, 1.0, 2.0, 0.5)
            for value, rounded in ((0.7, 0.5), (NAN, 0.0)):
                released = module.sum([value], Purse(relation), lower=0.0, upper=2.0, granularity=0.5, scale=1.0)
                assert released.value == rounded

    with pytest.raises(AssertionError):
        ask()


def test_what_is_missing_counts_as_the_nearest_to_zero(quiet):
    module = quiet(release)

    def total(lower, upper):
        return module.sum([NAN], Purse("replace"), lower=lower, upper=upper, granularity=0.5, scale=1.0).value

    assert (total(-1.0, 2.0), total(1.0, 2.0), total(-2.0, -1.5)) == (0, 1.0, -1.5)


@pytest.mark.parametrize("relation", ["add_or_remove", "replace"])
def test_counts_and_histograms(quiet, relation):
    module, rows = quiet(release), ("a", "b", "c", None, 1, 1.0, True, NAN)
    changed = 0
    for pair in neighbours(relation, rows, ["a", 1]):
        purse = Purse(relation)
        first, second = (
            module.histogram(np.array(each, object), purse, categories=["a", "b", 1], scale=3.0).value for each in pair
        )
        differences = [abs(one - other) for one, other in zip(first, second, strict=True)]
        mechanism, runs = purse.paid[0]
        assert mechanism == ja.DiscreteLaplace(3.0, 1)
        assert max(differences) <= mechanism.sensitivity
        assert sum(differences) <= runs
        changed = max(changed, sum(differences))
    assert changed == runs
    for pair in neighbours(relation, (True, False), [True]):
        purse = Purse(relation)
        first, second = (module.count(each, purse, scale=3.0).value for each in pair)
        assert abs(first - second) <= purse.paid[0][0].sensitivity == 1


class OfNoHash(list):
    pass


MIXED = (
    1, True, 2**53 + 1, 2**64, 0.5, "x", "1", b"1", "A\0", "A", None, NAN, np.float32(0.1), 0.1, np.uint64(2**63 + 1),
    np.int64(-1), np.datetime64("2020-01-01", "D"), np.datetime64("2020-01-01", "s"), Fraction(1, 2), (1, []),
    np.array([1]), OfNoHash(),
)  # fmt: skip
"""Rows of which each would choose another type for an array of them all."""


def check_types(module):
    """Asserts that whatever the type of a row, it moves no other one's category, number or truth value."""
    hashed = [row for row in MIXED if not isinstance(row, (tuple, list, np.ndarray))]
    categories = list(dict.fromkeys(each.item() if isinstance(each, np.generic) else each for each in hashed))

    def cells(rows):
        return module.histogram(rows, Purse("add_or_remove"), categories=categories, scale=1.0).value

    alone = [cells([row]) for row in MIXED]
    for (one, first), (other, second) in itertools.product(zip(MIXED, alone, strict=True), repeat=2):
        assert sum(first) <= 1
        assert cells([one] * 3 + [other]) == tuple(3 * a + b for a, b in zip(first, second, strict=True))
    numbers = [row for row in hashed if row not in ("x", "A", "A\0")]
    for one, other in itertools.product(numbers, repeat=2):
        both, *each = (module._numbers(rows, "values") for rows in ([one, other], [one], [other]))
        np.testing.assert_array_equal(both, np.concatenate(each))


def test_a_row_chooses_no_type_for_others(quiet):
    check_types(quiet(release))


def test_a_type_for_all_rows_is_noticed(quiet):
    with pytest.raises((AssertionError, ValueError)):
        check_types(quiet(mutant("jaxacct.release", ("else list(values)", "else np.asarray(values).tolist()"))))


def test_a_long_text_takes_no_memory_of_others(quiet):
    rows = ["a"] * 200_000 + ["b" * 130_000]
    assert quiet(release).histogram(rows, Purse("replace"), categories=["a"], scale=1.0).value == (200_000,)


def test_a_row_of_few_digits_is_in_one_cell():
    """In float32 these two categories are equal; a row is looked up as the number that it is."""
    values = np.full(3, 0.1, np.float32)
    purse = Purse("add_or_remove")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "_discrete_laplace", lambda scale, below: 0)
        patch.setattr(release, "Budget", Purse)
        found = release.histogram(values, purse, categories=[0.1, float(np.float32(0.1))], scale=1.0).value
    assert found == (0, 3)


@pytest.mark.parametrize("relation", ["add_or_remove", "replace"])
@pytest.mark.parametrize("level", [0.5, 0.1, 0.9, 1 / 3])
def test_quantiles(quiet, monkeypatch, relation, level):
    """e^(rate score) changes by a factor of at most e^(epsilon/2), and by that for some."""
    quiet(release)
    asked, epsilon, largest = [], 0.7, 0
    monkeypatch.setattr(release, "_choose", lambda scores, rate, below: asked.append((scores, rate)) or 0)
    for table in ((), (1.0, 2.0), (0.5, NAN, INF)):
        for pair in neighbours(relation, ROWS, table):
            asked.clear()
            purse = Purse(relation)
            for rows in pair:
                release.quantile(rows, purse, level=level, candidates=[-1.0, 0.5, 2.0, 3.0], epsilon=epsilon)
            assert purse.paid == [(ja.ExponentialMechanism(epsilon), 1)] * 2
            (first, rate), (second, _) = asked
            assert all(isinstance(score, int) for score in first)
            change = rate * max(abs(one - other) for one, other in zip(first, second, strict=True))
            assert change <= Fraction(epsilon) / 2
            largest = max(largest, change)
    assert largest == Fraction(epsilon) / 2


def test_a_quantile_is_near_where_it_should_be(quiet, monkeypatch):
    quiet(release)
    monkeypatch.setattr(release, "_choose", lambda scores, rate, below: scores.index(max(scores)))
    values, purse = np.arange(1000.0), Purse("add_or_remove")
    for level in (0.05, 0.5, 0.9):
        found = release.quantile(values, purse, level=level, candidates=range(0, 1000, 10), epsilon=1.0)
        assert abs(found.value - 1000 * level) <= 10
        assert found.deviation is None


@pytest.mark.parametrize("scale", [0.7, 20.0, 480.0, 1e5])
@pytest.mark.parametrize("noise", [ja.DiscreteLaplace, ja.DiscreteGaussian])
def test_the_law_that_is_drawn_is_the_one_that_is_accounted(monkeypatch, noise, scale):
    drawn = []
    monkeypatch.setattr(release, "_discrete_laplace", lambda scale, below: drawn.append(scale) or 1)
    monkeypatch.setattr(release, "_discrete_gaussian", lambda scale, below: drawn.append(scale) or 1)
    monkeypatch.setattr(release, "Budget", Purse)
    made = release.sum([1.0], Purse("add_or_remove"), lower=0.0, upper=3.0, scale=scale, granularity=0.1, noise=noise)
    (own,), mechanism = drawn, made.mechanism
    assert float(own) == pytest.approx(scale / 0.1)
    if isinstance(mechanism, ja.ZeroConcentratedDP):
        exact = Fraction(30) ** 2 / (2 * own**2)
        assert own > 1700
        assert exact <= Fraction(mechanism.rho) <= exact * (1 + Fraction(1, 2**52))
    else:
        assert isinstance(mechanism, noise)
        assert (Fraction(mechanism.scale), mechanism.sensitivity) == (own, 30)
    own_deviation = float(own) * (math.sqrt(2) if noise is ja.DiscreteLaplace else 1)
    assert made.deviation == pytest.approx(0.1 * own_deviation, rel=0.02 if scale > 1 else 0.3)


@pytest.mark.parametrize("scale", [0.4, 1.0, 7.5])
def test_deviations(scale):
    for noise, law in ((ja.DiscreteLaplace, lambda n: math.exp(-abs(n) / scale)),
                       (ja.DiscreteGaussian, lambda n: math.exp(-(n**2) / (2 * scale**2)))):  # fmt: skip
        reach = range(-500, 501)
        exact = math.sqrt(sum(n**2 * law(n) for n in reach) / sum(map(law, reach)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(release, "Budget", Purse)
            said = release.count([True], Purse("replace"), scale=scale, noise=noise).deviation
        assert exact * (1 - 1e-9) <= said
        assert said == pytest.approx(exact, rel=1e-6 if noise is ja.DiscreteLaplace or scale >= 1 else 0.5)


WRONG = {
    "scale 0": (lambda b: release.count([True], b, scale=0.0), "scale"),
    "scale NaN": (lambda b: release.count([True], b, scale=NAN), "scale"),
    "scale that a granularity makes infinite": (
        lambda b: release.sum([1.0], b, lower=0, upper=1e-300, scale=1e300), "scale",
    ),
    "numbers for truth values": (lambda b: release.count([1, 0], b, scale=1.0), "truth values"),
    "a table for a column": (lambda b: release.count([[True]], b, scale=1.0), "column"),
    "no categories": (lambda b: release.histogram(["a"], b, categories=[], scale=1.0), "categories"),
    "a text for categories": (lambda b: release.histogram(["a"], b, categories="abc", scale=1.0), "categories"),
    "a text for rows": (lambda b: release.histogram("abc", b, categories=["a"], scale=1.0), "values"),
    "a category twice": (lambda b: release.histogram(["a"], b, categories=[1, 1.0], scale=1.0), "each once"),
    "bounds that are one": (lambda b: release.sum([1.0], b, lower=1.0, upper=1.0, scale=1.0), "lower"),
    "bounds that are 0": (lambda b: release.sum([1.0], b, lower=0.0, upper=0.0, scale=1.0), "below the upper one"),
    "bounds upside down": (lambda b: release.sum([1.0], b, lower=2.0, upper=1.0, scale=1.0), "lower"),
    "bounds without end": (lambda b: release.sum([1.0], b, lower=0.0, upper=INF, scale=1.0), "upper"),
    "too fine": (lambda b: release.sum([1.0], b, lower=0.0, upper=1.0, granularity=1e-6, scale=1.0), "65536"),
    "bounds far from 0": (
        lambda b: release.sum([1.0], b, lower=1e300, upper=1.1e300, granularity=1e299, scale=1.0), None,
    ),
    "text": (lambda b: release.sum(["x"], b, lower=0.0, upper=1.0, scale=1.0), "numbers"),
    "size 0": (lambda b: release.mean([1.0], b, lower=0.0, upper=1.0, size=0, scale=1.0), "size"),
    "a law that is none": (lambda b: release.count([True], b, scale=1.0, noise=ja.Gaussian), "noise"),
    "level 1": (lambda b: release.quantile([1.0], b, level=1.0, candidates=[1.0], epsilon=1.0), "level"),
    "no candidates": (lambda b: release.quantile([1.0], b, level=0.5, candidates=[], epsilon=1.0), "candidates"),
    "a candidate that is none": (
        lambda b: release.quantile([1.0], b, level=0.5, candidates=[NAN], epsilon=1.0), "candidates",
    ),
    "epsilon 0": (lambda b: release.quantile([1.0], b, level=0.5, candidates=[1.0], epsilon=0.0), "epsilon"),
}  # fmt: skip


@pytest.mark.parametrize("budget", ["year.jsonl", None, ja.filters.RenyiFilter(1.0, 1e-6)])
def test_a_wrong_budget_is_said(budget):
    for call in (
        lambda: release.count([True], budget, scale=1.0),
        lambda: release.histogram([1], budget, categories=[1], scale=1.0),
        lambda: release.sum([1.0], budget, lower=0.0, upper=1.0, scale=1.0),
        lambda: release.mean([1.0], budget, lower=0.0, upper=1.0, size=1, scale=1.0),
        lambda: release.quantile([1.0], budget, level=0.5, candidates=[1.0], epsilon=1.0),
    ):
        with pytest.raises(TypeError, match=r"budget = .*give a Budget"):
            call()


@pytest.mark.parametrize("noise", [-3, 0, 3])
@pytest.mark.parametrize("law", [ja.DiscreteLaplace, ja.DiscreteGaussian])
def test_what_is_paid_comes_out_however_large(quiet, monkeypatch, law, noise):
    module = quiet(release)
    for draw in ("_discrete_laplace", "_discrete_gaussian"):
        monkeypatch.setattr(module, draw, lambda scale, below: noise * math.ceil(scale))
    most = {"lower": 0.0, "upper": 1.7e308, "scale": 1.7e308}
    released = module.sum([1e308] * 2, Purse("replace"), noise=law, **most)
    assert released.value == (INF if noise >= 0 else -INF)
    assert str(released)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_cost_nothing(monkeypatch, case):
    monkeypatch.setattr(release, "Budget", Purse)
    monkeypatch.setattr(release.secrets, "randbelow", lambda n: pytest.fail("something was drawn"))
    call, word = WRONG[case]
    purse = Purse("add_or_remove")
    if word is None:
        monkeypatch.undo()
        monkeypatch.setattr(release, "Budget", Purse)
        assert call(purse).value > 0
        return
    with pytest.raises((ValueError, TypeError), match=word) as caught:
        call(purse)
    assert len(str(caught.value)) <= 600
    assert purse.paid == []


def test_no_message_shows_the_data():
    for call in (
        lambda: release.count(np.array([123456.5]), Purse("replace"), scale=1.0),
        lambda: release.sum(["secret 123456"], Purse("replace"), lower=0.0, upper=1.0, scale=1.0),
        lambda: release.count(np.full((2, 2), 123456.5), Purse("replace"), scale=1.0),
    ):
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        assert "123456" not in str(caught.value)


def test_pairs_of_rows_are_all_there():
    assert len(list(itertools.chain(neighbours("replace", ROWS, ())))) == len(ROWS) ** 2
