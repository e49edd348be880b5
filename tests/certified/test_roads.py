"""Ways to ask for one number (called, traced with all fields, batched, by each accountant) never contradict each other.

What differs between these roads is what Python can see. A traced program has one structure for all values of its
arguments, an eager call the one that fits its own: both must come to the same number.
"""

import functools
import inspect
import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.mechanisms import EXAMPLES
from helpers.thorough import THOROUGH, cases
from helpers.thorough import program as thorough_program
from jaxtyping import ArrayLike

import jaxacct as ja
from jaxacct import rdp, selection
from jaxacct.mechanisms.by_curve import RenyiOnly
from jaxacct.mechanisms.mechanism import Mechanism
from jaxacct.numerics.pytrees import register_dataclass


def program(function):
    """Returns a traced function of float64 numbers, which without the scope would be rounded before they are asked."""
    traced = thorough_program(function)

    def asked(*args):
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, traced(*args))

    return asked


MECHANISMS = EXAMPLES | {name: [] for name in ("MatrixMechanism", "PrivacyLoss")}
"""One or more of every public class. Of these two are taken apart, or have functions for fields."""

COUNTS = (0.0, 1.0, 2.0, 7.0)
DELTA, EPSILON = 1e-4, 0.7
SLACK = 1e-12


def test_no_mechanism_is_forgotten():
    public = {
        name for name in ja.__all__ if inspect.isclass(getattr(ja, name)) and issubclass(getattr(ja, name), Mechanism)
    }
    assert public - {"Mechanism", "RenyiOnly"} == set(MECHANISMS)


class Told:
    """What several roads say of one number: brackets, of which every two must share a point."""

    def __init__(self, question, slack=SLACK):
        self.question, self.slack, self.brackets, self.pairs = question, slack, {}, 0

    def add(self, road, lower, upper):
        lower, upper = float(lower), float(upper)
        assert lower <= upper, (self.question, road)
        for other, (low, high) in self.brackets.items():
            self.pairs += 1
            assert lower <= high * (1 + self.slack) + 1e-300, (self.question, road, other, lower, high)
            assert low <= upper * (1 + self.slack) + 1e-300, (self.question, other, road, low, upper)
        self.brackets[road] = lower, upper


@functools.cache
def traced(structure, relation):
    """Both questions with everything traced, as programs of the leaves and the count."""

    def asked(leaves, steps):
        mechanism = jax.tree.unflatten(structure, leaves)
        epsilon = ja.saddlepoint.epsilon(mechanism, steps, DELTA, relation=relation)
        delta = ja.saddlepoint.delta(mechanism, steps, EPSILON, relation=relation)
        return epsilon.lower, epsilon.upper, delta.lower, delta.upper

    return program(asked)


@functools.cache
def everything(structure, relation):
    """The top level's own verbs, compiled and batched over counts."""

    def asked(leaves, steps):
        mechanism = jax.tree.unflatten(structure, leaves)
        epsilon = ja.epsilon(mechanism, steps, DELTA, relation=relation)
        delta = ja.delta(mechanism, steps, EPSILON, relation=relation)
        return epsilon.lower, epsilon.upper, delta.lower, delta.upper

    batched = jax.jit(jax.vmap(asked, in_axes=(None, 0)))

    def within(*args):
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, batched(*args))

    return within


def compared(mechanism, relation, counts=COUNTS, shape=()):
    """Asks all roads; returns how many pairs of brackets were compared."""
    leaves, structure = jax.tree.flatten(mechanism)
    leaves = [np.asarray(leaf, np.float64) for leaf in leaves]
    pairs = 0
    rows = np.stack([np.full(shape, count) for count in counts])
    batch = everything(structure, relation)(leaves, rows) if THOROUGH else None
    for row, count in enumerate(counts):
        # Of bounded ranges pairs and curves are two theorems: brackets hold the pairs' cost, and the curves' is taken
        # where it is less by a ten-thousandth.
        slack = 1e-4 if isinstance(mechanism, ja.ExponentialMechanism) else SLACK
        epsilon, delta = (Told((mechanism, relation, count, name), slack) for name in ("epsilon", "delta"))
        # Of a sequence each is run so often.
        runs = np.full(shape, count)
        steps = runs.astype(int) if runs.ndim else int(count)
        low, high, least, most = traced(structure, relation)(leaves, runs)
        epsilon.add("traced", low, high)
        delta.add("traced", least, most)
        if batch is not None:
            epsilon.add("batched", batch[0][row], batch[1][row])
            delta.add("batched", batch[2][row], batch[3][row])
        found = ja.epsilon(mechanism, steps, DELTA, relation=relation)
        epsilon.add("called", found.lower, found.upper)
        found = ja.delta(mechanism, steps, EPSILON, relation=relation)
        delta.add("called", found.lower, found.upper)
        # Concrete fields beside a traced question, which keeps what can be seen of the fields.
        if count == 1:
            asked = functools.partial(ja.saddlepoint.epsilon, mechanism, steps, relation=relation)
            found = jax.vmap(asked)(np.array([DELTA]))
            epsilon.add("traced question", found.lower[0], found.upper[0])
        if THOROUGH or count == 2:
            found = ja.prv.epsilon(mechanism, steps, DELTA, relation=relation, tolerance=1e-2)
            epsilon.add("mesh", found.lower, found.upper)
        if count and relation in ("add_or_remove", "replace"):
            epsilon.add("Rényi", 0.0, rdp.epsilon(mechanism, steps, DELTA, relation=relation))
        pairs += epsilon.pairs + delta.pairs
    return pairs


NO_PAIRS = RenyiOnly, ja.DiscreteGaussianVector
EVERY = [
    (name, mechanism) for name, some in MECHANISMS.items() for mechanism in some if not isinstance(mechanism, NO_PAIRS)
]
LATER = (
    "AboveThreshold",
    "AllocatedMechanism",
    "ApproximateDP",
    "BallsInBins",
    "DiscreteLaplace",
    "DiscretePair",
    "GaussianAboveThreshold",
    "GaussianMixture",
    "GaussianWithReplacement",
    "GaussianWithoutReplacement",
    "LaplaceWithoutReplacement",
    "MatrixMechanism",
    "PoissonSampledMechanism",
    "PoissonSubsampledGroup",
    "ShuffledGaussian",
    "ShuffledRandomizedResponse",
    "WithoutReplacementGroup",
)
"""Mechanisms whose traced roads take up to a minute of a core to compile, and whose kinds of losses others have.

They are asked in thorough runs, as second forms of a mechanism are; test_composers.py has all of them, by two roads."""
FORMS = [pytest.param(name, each, id=f"{name}{MECHANISMS[name].index(each)}") for name, each in EVERY]


def is_late(form):
    name = form.values[0]
    return name in LATER or form is not next(other for other in FORMS if other.values[0] == name)


@pytest.mark.first_tier("Gaussian0", "TreeAggregation0")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "mechanism"),
    cases(*([form for form in FORMS if is_late(form) is late] for late in (False, True))),
)
def test_no_road_contradicts_another(name, mechanism):
    relations = mechanism.relations if THOROUGH else mechanism.relations[:1]
    for relation in relations:
        assert compared(mechanism, relation) >= 2 * len(COUNTS)


# ----------------------------------------------------------------------------------------------------
# Everything: each mechanism and relation, counts and types of numbers, called, compiled, mapped and scanned, by all
# accountants and ledgers. Two programs serve all counts of a mechanism and relation: a batch, and a scan.
# ----------------------------------------------------------------------------------------------------

MANY = (0, 1, 2, 7, 60)
TYPES = (np.float32, np.float16, jnp.bfloat16, np.int8, np.uint8, np.int64)
POINTS = 512


def brackets(mechanism, relation, steps):
    """The verbs' brackets of epsilon and of delta, as JAX and NumPy arrays: four numbers."""
    epsilon = ja.epsilon(mechanism, steps, DELTA, relation=relation, points=POINTS)
    delta = ja.delta(mechanism, steps, EPSILON, relation=relation, points=POINTS)
    return epsilon.lower, epsilon.upper, delta.lower, delta.upper


def compiled_roads(mechanism, relation):
    """Yields the names of compiled roads, with the four numbers of each count, (counts,) each."""
    leaves, structure = jax.tree.flatten(mechanism)
    given = [np.asarray(leaf, np.float64) for leaf in leaves], np.array(MANY, np.float64)

    def asked(leaves, steps):
        return brackets(jax.tree.unflatten(structure, leaves), relation, steps)

    yield "mapped", program(lambda leaves, counts: jax.vmap(asked, (None, 0))(leaves, counts))(*given)
    one_after_the_other = program(
        lambda leaves, counts: jax.lax.scan(lambda _, k: (0.0, asked(leaves, k)), 0.0, counts)
    )
    yield "scanned", one_after_the_other(*given)[1]


def of_other_types(mechanism, count):
    """Yields names, mechanisms and counts that are the same numbers in other types, where these hold them."""
    leaves, structure = jax.tree.flatten(mechanism)
    for kind in TYPES:
        with np.errstate(invalid="ignore"):
            other = [np.asarray(leaf).astype(kind) for leaf in leaves]
            runs = np.asarray(count).astype(kind)
        same = all(np.array_equal(np.asarray(x, np.float64), y) for x, y in zip(other, leaves, strict=True))
        if float(runs) == count:
            yield np.dtype(kind).name, jax.tree.unflatten(structure, other) if same else mechanism, runs[()]


def accountants(mechanism, relation, count):
    """Yields roads by name with their four numbers; what bounds from above alone has 0 below."""
    rooms = {} if isinstance(mechanism, NO_PAIRS) else {"mesh": ja.prv, "contour": ja.saddlepoint}
    for name, room in rooms.items():
        options = {"points": POINTS} if name == "mesh" else {}
        epsilon = room.epsilon(mechanism, count, DELTA, relation=relation, **options)
        delta = room.delta(mechanism, count, EPSILON, relation=relation, **options)
        yield name, (epsilon.lower, epsilon.upper, delta.lower, delta.upper)
    if count and not isinstance(mechanism, ja.DiscreteGaussianVector):
        upper = rdp.epsilon(mechanism, count, DELTA, relation=relation)
        yield "Rényi", (0.0, upper, 0.0, rdp.delta(mechanism, count, EPSILON, relation=relation))
    curve = ja.curve(mechanism, count, epsilons=[EPSILON], relation=relation)
    yield "profile", (0.0, np.inf, curve.lower[0], curve.upper[0])


LEDGERS = {
    "Rényi filter": lambda: ja.filters.RenyiFilter(1e4, DELTA),
    "Gaussian filter": lambda: ja.filters.GDPFilter(1e4, DELTA),
    "zCDP filter": lambda: ja.filters.ZCDPFilter(1e4, DELTA),
    "approximate filter": lambda: ja.filters.ApproximateDPFilter(1e4, DELTA),
    "Rényi odometer": lambda: ja.odometers.RenyiOdometer(DELTA),
    "Ville odometer": lambda: ja.odometers.VilleOdometer(DELTA),
    "filter odometer": lambda: ja.odometers.FilterOdometer(DELTA),
    "mixture odometer": lambda: ja.odometers.MixtureOdometer(1.0, DELTA),
}


def ledgers(mechanism, relation, count):
    """Yields what ledgers read after so many runs: upper bounds, of those that take the mechanism and relation."""
    for name, make in LEDGERS.items():
        try:
            granted, ledger = make().spend(mechanism, count, relation=relation)
        except (TypeError, ValueError):  # it takes mechanisms of one parameter, or relations that it has a proof for
            continue
        if granted:
            yield name, (0.0, ledger.epsilon(), 0.0, 1.0)


def pairs_of_roads(mechanism, relation):
    """The number of pairs of roads that were compared, and those that contradict each other."""
    several = dict(compiled_roads(mechanism, relation))
    compared, wrong = 0, []
    for row, count in enumerate(MANY):
        roads = {name: tuple(numbers[row] for numbers in found) for name, found in several.items()}
        roads["called"] = brackets(mechanism, relation, count)
        for name, same, runs in of_other_types(mechanism, count):
            roads[f"called with {name}"] = brackets(same, relation, runs)
        roads |= dict(accountants(mechanism, relation, count)) | dict(ledgers(mechanism, relation, count))
        for (one, first), (other, second) in itertools.combinations(roads.items(), 2):
            for question, low in (("epsilon", 0), ("delta", 2)):
                compared += 1
                lower, upper = max(first[low], second[low]), min(first[low + 1], second[low + 1])
                if not lower <= upper * (1 + SLACK) + 1e-300:
                    wrong.append((question, count, one, other, *map(float, (*first, *second))))
    return compared, wrong


EACH = [
    pytest.param(mechanism, relation, id=f"{name}{i}-{relation}")
    for name, some in MECHANISMS.items()
    for i, mechanism in enumerate(some)
    for relation in mechanism.relations
]
SOON = ("Gaussian", "PureDP", "ZeroConcentratedDP")
"""Mechanisms of which all roads are compiled in seconds; of the others they take an hour of one core."""


def is_soon(param):
    return param.id.rstrip("-abcdefghijklmnopqrstuvwxyz_").rstrip("0123456789") in SOON


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("mechanism", "relation"), cases(list(filter(is_soon, EACH)), [each for each in EACH if not is_soon(each)])
)
def test_all_roads_of_all_mechanisms(mechanism, relation, record_property):
    compared, wrong = pairs_of_roads(mechanism, relation)
    record_property("pairs compared", compared)
    record_property("contradictions", len(wrong))
    print(f"{type(mechanism).__name__}, {relation}: {compared} pairs compared, {len(wrong)} contradictions")
    assert not wrong
    assert compared >= 2 * 10 * len(MANY)


SHAPES = [
    ("sequence", ja.PoissonSubsampledGaussian(np.array([1.2, 0.8]), np.array([0.1, 0.02]))),
    ("allocations", ja.RandomAllocation(np.array([0.7, 2.0]), np.array([2.0, 1.0]), points=64)),
    ("group", ja.group(ja.PoissonSubsampledGaussian(2.0, 0.05), 3)),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "mechanism"), SHAPES, ids=[name for name, _ in SHAPES])
def test_sequences_and_groups(name, mechanism):
    assert compared(mechanism, "add_or_remove", (1.0, 7.0), () if name == "group" else (2,)) >= 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("counts", cases([(1, 2)], [(0, 1), (1, 0), (7, 7)]))
def test_tuples(counts):
    mechanisms = ja.RandomAllocation(1.0, 3.0, points=64), ja.Gaussian(2.0)

    @program
    def asked(noise, batches, other, steps):
        some = ja.RandomAllocation(noise, batches, points=64), ja.Gaussian(other)
        found = ja.saddlepoint.epsilon(some, (steps[0], steps[1]), DELTA)
        return found.lower, found.upper

    told = Told(counts)
    told.add("traced", *asked(*(np.float64(x) for x in (1.0, 3.0, 2.0)), np.array(counts, float)))
    called = ja.epsilon(mechanisms, counts, DELTA)
    told.add("called", called.lower, called.upper)
    assert told.pairs == 1


@pytest.mark.exhaustive
def test_within_a_search():
    for batches in (1.0, 2.0):
        mechanism = ja.RandomAllocation(1.5, batches, points=64)
        search = ja.RepeatAndSelect(mechanism, 1, selection.Geometric(5.0))
        told = Told(batches)
        called = ja.epsilon(search, 1, DELTA)
        told.add("profile", called.lower, called.upper)
        told.add("Rényi", 0.0, rdp.epsilon(search, 1, DELTA))
        single = ja.epsilon(mechanism, 1, DELTA)
        assert called.upper >= single.lower  # a search costs no less than one run of it
        assert told.pairs == 1


@register_dataclass
@dataclass(frozen=True)
class Twice(Mechanism):
    """A user's own: two runs, of which what can be seen of the noise decides how they are taken apart."""

    noise: ArrayLike
    relations = ("add_or_remove", "replace")

    def validate(self):
        pass

    def dominating_pairs(self, relation="add_or_remove"):
        raise AssertionError("it has none of its own")

    def decompose(self, steps):
        # Either as two runs of one Gaussian, or as one of it and one of its twin: with a placeholder where traced.
        halves = [(ja.Gaussian(self.noise), steps), (ja.Gaussian(self.noise), steps)]
        return halves if isinstance(self.noise, jax.core.Tracer) else [(ja.Gaussian(self.noise), 2 * steps)]


@pytest.mark.exhaustive
def test_a_users_own_mechanism_that_is_two_runs():
    exact = ja.epsilon(ja.Gaussian(3.0), 2, DELTA)
    called = ja.epsilon(Twice(3.0), 1, DELTA)
    told = Told("twice")
    told.add("gaussian", exact.lower, exact.upper)
    told.add("called", called.lower, called.upper)

    @program
    def asked(noise):
        found = ja.saddlepoint.epsilon(Twice(noise), 1, DELTA)
        return found.lower, found.upper

    told.add("traced", *asked(np.float64(3.0)))
    told.add("Rényi", 0.0, rdp.epsilon(Twice(3.0), 1, DELTA))
    assert told.pairs == 6
    curves = [rdp.curve(each, [2.0, 8.0]) for each in (Twice(3.0), ja.Gaussian(3.0))]
    np.testing.assert_allclose(curves[0], 2 * curves[1], rtol=1e-9)
    one, two = ja.filters.ZCDPFilter(1.0, DELTA), ja.filters.RenyiFilter(1.0, DELTA)
    for each in (one, two):
        assert each.remaining(Twice(30.0)) == each.remaining(ja.Gaussian(30.0)) // 2 > 0


def test_the_values_that_were_found_wrong():
    """One epoch of several batches, traced; and all batches, whose closed form is a Gaussian of sensitivity sqrt(2)."""
    found = [ja.epsilon(ja.RandomAllocation(0.5, t), 1, 1e-5) for t in (1, 2)]

    @program
    def asked(batches):
        bounds = ja.saddlepoint.epsilon(ja.RandomAllocation(0.5, batches), 1, 1e-5)
        return bounds.lower, bounds.upper

    for t, eager in zip((1.0, 2.0), found, strict=True):
        lower, upper = asked(np.float64(t))
        assert lower <= eager.upper
        assert eager.lower <= upper
    bounds = ja.delta(ja.RandomAllocation(2.0, 2, participations=2), 1, 1.5)
    exact = ja.delta(ja.Gaussian(np.sqrt(2.0)), 1, 1.5)
    assert bounds.lower <= exact.upper * (1 + 1e-12)
    assert exact.lower <= bounds.upper * (1 + 1e-12)
    assert bounds.upper == pytest.approx(0.008683, rel=1e-4)


@pytest.mark.exhaustive
def test_profiles_of_an_epoch_in_all_of_its_batches():
    """What is asked at many numbers at once takes the same road: a Gaussian of sensitivity sqrt(2)."""
    epoch, exact = ja.RandomAllocation(2.0, 2, participations=2), ja.Gaussian(np.sqrt(2.0))
    found, expected = (ja.curve(each, 1, epsilons=[0.5, 1.5]) for each in (epoch, exact))
    assert np.all(found.lower <= expected.upper * (1 + SLACK))
    assert np.all(expected.lower <= found.upper * (1 + SLACK))
    curves = [ja.tradeoff.curve(each, 1, np.array([0.05, 0.3])) for each in (epoch, exact)]
    assert np.all(curves[0].lower <= curves[1].upper + 1e-12)
    assert np.all(curves[1].lower <= curves[0].upper + 1e-12)
    mus = [ja.gdp.certified_mu(each, 1).mu for each in (epoch, exact)]
    assert float(mus[0]) == pytest.approx(float(mus[1]), rel=1e-3)
