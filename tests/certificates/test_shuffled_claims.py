"""Claims on runs whose loader shuffled: what becomes of them in specs, certificates, adapters and the referee."""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, ctx
from scipy.special import ndtr

import jaxacct as ja
from jaxacct import certificates, specs, verify
from jaxacct.adapters import ShuffledBatches, judge_dp_event, judge_history
from jaxacct.adapters.loaders import judge
from jaxacct.adapters.opacus import from_history
from jaxacct.verify import statements

LOADER = ShuffledBatches(examples=1000, batch_size=100)
NOISE, STEPS, DELTA = 1.0, 30, 1e-5
PART = {"type": "gaussian", "noise_multiplier": NOISE, "sampling": "shuffled", "examples": 1000, "batch_size": 100,
        "epochs": 3}  # fmt: skip
SPEC = {"delta": DELTA, "relation": "zero_out", "parts": [PART]}


@pytest.fixture(scope="module")
def poisson():
    return float(ja.epsilon(ja.PoissonSubsampledGaussian(NOISE, 0.1), STEPS, DELTA).upper)


@pytest.fixture(scope="module")
def verdict(poisson):
    return LOADER.judge(NOISE, STEPS, poisson, DELTA)


# ----------------------------------------------------------------------------------------------------
# The referee's statement, against enumeration.
# ----------------------------------------------------------------------------------------------------


def by_enumeration(noise, sizes, examples, cut, replaces):
    """P and Q of the event that a batch's result, raised by its size, is at least a cut: all places of the example."""
    p = q = 0.0
    for place in range(examples):
        ends = np.cumsum(sizes)
        mine = int(np.searchsorted(ends, place, side="right"))  # a place beyond the last batch is left out
        for is_p in (True, False):
            # All others contribute -1 each; the example 1 under P, and under Q 0, or -1 where it is replaced.
            own = 1.0 if is_p else -1.0 if replaces else 0.0
            means = [-(size - (i == mine)) + (own if i == mine else 0.0) + size for i, size in enumerate(sizes)]
            seen = 1 - np.prod([ndtr((cut - mean) / noise) for mean in means])
            p, q = (p + seen / examples, q) if is_p else (p, q + seen / examples)
    return p, q


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize(("remainder", "sizes"), [("even", (2, 2)), ("small", (2, 2, 1)), ("dropped", (2, 2))])
def test_an_events_delta_is_never_above_that_of_the_data_sets(remainder, sizes, replaces):
    """A mutant with as many batches in the exponent, or with floor(n/b) for all remainders, is above somewhere."""
    examples = 4 if remainder == "even" else 5
    record = {"noise_multiplier": 4.0, "batches": 2, "epochs_per_shuffle": 1, "remainder": remainder}
    law = statements.shuffled_gaussian("replace" if replaces else "remove", **record)
    for runs, epsilon in ((1, 0.1), (2, 0.2), (3, 0.0)):
        most = 0.0
        for cut in np.linspace(-6, 18, 400):
            p, q = by_enumeration(4.0, sizes, examples, cut, replaces)
            happened = [
                (math.prod(p if x else 1 - p for x in seen), math.prod(q if x else 1 - q for x in seen))
                for seen in itertools.product([False, True], repeat=runs)
            ]
            most = max(most, sum(max(a - math.exp(epsilon) * b, 0.0) for a, b in happened))
        with ctx.workprec(192):
            ball = law.together(runs)(arb(epsilon))
        lower, upper = verify.verdict.float_below(ball), verify.verdict.float_above(ball)
        assert 0.5 * most < lower <= most * (1 + 3e-4)  # the grid of cuts
        assert lower < upper <= 1


@pytest.mark.parametrize(
    ("noise", "batches", "epsilon"),
    [(0.4, 10**4, 13.206686), (0.5, 10**3, 9.996625), (1.0, 100, 4.063154), (2.0, 100, 0.483712)],
)
def test_the_event_is_the_best_one(noise, batches, epsilon):
    run = ja.ShuffledGaussian(noise, batches, remainder="even")
    assert verify.epsilon(run, 1, 1e-5, (None, epsilon - 2e-6), relation="zero_out").status == "REFUTED"
    assert verify.epsilon(run, 1, 1e-5, (None, epsilon + 2e-6), relation="zero_out").status == "UNDECIDED"
    unknown = ja.ShuffledGaussian(noise, batches)  # as small as that of any remainder
    assert verify.epsilon(unknown, 1, 1e-5, (None, epsilon + 2e-6), relation="zero_out").status == "UNDECIDED"


def test_the_referee_bounds_by_gaussian_noise_from_above():
    run = ja.ShuffledGaussian(1.0, 100, 4)
    gaussian = ja.epsilon(ja.Gaussian(1.0), 12, 1e-5)
    for relation, bounds in (("zero_out", gaussian), ("replace", ja.epsilon(ja.Gaussian(0.5), 12, 1e-5))):
        above = verify.epsilon(run, 3, 1e-5, (None, bounds.upper * (1 + 1e-9)), relation=relation)
        below = verify.epsilon(run, 3, 1e-5, (None, bounds.lower * (1 - 1e-9)), relation=relation)
        assert (above.status, below.status) == ("PROVED", "UNDECIDED")
        assert "between" in below.reason
    mixed = verify.epsilon((run, ja.ShuffledGaussian(1.0, 100, stop_after=3)), (1, 1), 1e-5, (None, 1.0),
                           relation="zero_out")  # fmt: skip
    assert mixed.status == "UNDECIDED"
    early = verify.epsilon(ja.ShuffledGaussian(1.0, 100, 4, stop_after=3), 1, 1e-5, (None, 0.1), relation="zero_out")
    assert early.status == "UNDECIDED"  # several epochs with one order that stop early have no lower end


# ----------------------------------------------------------------------------------------------------
# Verdicts: refuted with the number that is right, undecided inside, and never amplified where the order is known.
# ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_poissons_number_is_refuted_with_the_right_one(poisson, verdict):
    bounds = ja.epsilon(ja.ShuffledGaussian(NOISE, 10, remainder="even"), 3, DELTA, relation="zero_out")
    assert verdict.status == "REFUTED"
    assert verdict.truth == (bounds.lower, bounds.upper)
    assert bounds.upper < AMPLIFIED < ja.epsilon(ja.Gaussian(NOISE), 3, DELTA).lower
    assert poisson < bounds.lower < bounds.upper < ja.epsilon(ja.Gaussian(NOISE), 3, DELTA).lower
    assert "two data sets" in verdict.reason


@pytest.mark.exhaustive
def test_inside_the_bracket_nothing_is_decided(verdict):
    low, high = verdict.truth
    for claimed, status in ((low, "UNDECIDED"), ((low + high) / 2, "UNDECIDED"), (high, "PROVED"),
                            (low * (1 - 1e-12), "REFUTED"), (high * (1 - 1e-12), "UNDECIDED")):  # fmt: skip
        found = LOADER.judge(NOISE, STEPS, claimed, DELTA)
        assert (found.status, found.truth) == (status, (low, high))


AMPLIFIED = 8.3
"""Above the upper bound of a secret order, and below the epsilon of a known one."""


@pytest.mark.parametrize("seed", [0, 42, 2**31])
def test_a_known_order_amplifies_nothing(seed):
    gaussian = ja.epsilon(ja.Gaussian(NOISE), 3, DELTA)
    known = ShuffledBatches(1000, 100, seed=seed)
    found = known.judge(NOISE, STEPS, AMPLIFIED, DELTA)
    assert (found.status, found.truth) == ("REFUTED", (gaussian.lower, gaussian.upper))
    one_order = ShuffledBatches(1000, 100, seed=seed, reshuffles=False)
    assert one_order.compose(NOISE, STEPS) == known.compose(NOISE, STEPS)
    assert specs.parsed(SPEC | {"parts": [PART | {"seed": seed}]}).mechanisms == (ja.Gaussian(NOISE),)


@pytest.mark.exhaustive
def test_one_order_for_all_epochs_amplifies_next_to_nothing(verdict):
    gaussian = ja.epsilon(ja.Gaussian(NOISE), 3, DELTA)
    found = ShuffledBatches(1000, 100, reshuffles=False).judge(NOISE, STEPS, verdict.truth[1], DELTA)
    assert found.status == "REFUTED"
    assert 0.97 * gaussian.lower < found.truth[0] <= found.truth[1] <= gaussian.upper * (1 + 1e-3)


@ja.register_dataclass
@dataclasses.dataclass(frozen=True)
class Loose(ja.Mechanism):
    """What noise of a scale dominates; what data sets attain nobody knows."""

    scale: float
    relations = ("zero_out",)

    def validate(self):
        ja.Gaussian(self.scale)

    def dominating_pairs(self, relation="zero_out"):
        return ja.Gaussian(self.scale).dominating_pairs(relation)


@ja.register_dataclass
@dataclasses.dataclass(frozen=True)
class Between(Loose):
    """The same, where data sets attain twice the noise."""

    def attained(self, relation):
        return ((ja.Gaussian(2 * self.scale),),)


def test_what_is_not_attained_refutes_nothing():
    """As in shuffled batches the lower end is of what data sets attain; a pair that is not tight has none."""
    low, high = (ja.epsilon(ja.Gaussian(scale), 3, DELTA) for scale in (2.0, 1.0))
    for claimed, status in ((low.lower * 0.999, "REFUTED"), (low.upper * 1.001, "UNDECIDED"), (high.upper, "PROVED")):
        found = judge(Between(1.0), 3, claimed, DELTA, "zero_out")
        assert found.status == status
        assert found.truth == pytest.approx((low.lower, high.upper), rel=1e-6)
    unknown = judge(Loose(1.0), 3, low.lower * 0.5, DELTA, "zero_out")
    assert (unknown.status, unknown.truth[0]) == ("UNDECIDED", 0.0)


@pytest.mark.parametrize(
    ("loader", "steps", "runs"),
    [
        (ShuffledBatches(10, 5), 4, [("even", None, 2)]),
        (ShuffledBatches(10, 5), 3, [("even", None, 1), ("even", 1, 1)]),
        (ShuffledBatches(11, 5), 6, [("small", None, 2)]),
        (ShuffledBatches(11, 5, drop_last=True), 4, [("dropped", None, 2)]),
        (ShuffledBatches(10, 5, drop_last=True), 4, [("even", None, 2)]),
        (ShuffledBatches(10, 5), 1, [("even", 1, 1)]),
        (ShuffledBatches(10, 5), 0, [("even", None, 0)]),
    ],
)
def test_what_a_loader_did_is_what_is_composed(loader, steps, runs):
    mechanisms, counts = loader.compose(1.0, steps)
    found = [(m.remainder, m.stop_after, count) for m, count in zip(mechanisms, counts, strict=True)]
    assert found == runs
    assert {float(m.batches) for m in mechanisms} == {2.0}


@pytest.mark.parametrize("name", ["drop_last", "reshuffles", "is_padded"])
@pytest.mark.parametrize("value", ["False", 0.5, 2, None])
def test_what_is_neither_true_nor_false_is_refused(name, value):
    """Else an order that is the same in all epochs, by reshuffles = "False", would be taken for a new one in each."""
    with pytest.raises(TypeError, match=f"{name} = .*give a bool"):
        ShuffledBatches(11, 5, **{name: value})


@pytest.mark.parametrize(("epochs", "stops"), [(0.1, [1]), (2.1, [None, 1]), (5 / 3, [None, 7]), (2, [None])])
def test_epochs_of_a_spec_are_the_steps_that_they_print_as(epochs, stops):
    """A step more, for 0.1 is above one tenth, would refute what holds of the run."""
    part = {"type": "gaussian", "noise_multiplier": 1.0, "sampling": "shuffled", "epochs": epochs, "batch_size": 100}
    spec = specs.parsed({"parts": [part | {"examples": 1000}], "delta": DELTA, "relation": "zero_out"})
    assert [one.stop_after for one in spec.mechanisms] == stops


def test_seeds_of_64_bits_are_known_ones():
    assert ShuffledBatches(10, 5, seed=2**64 - 1).compose(1.0, 4) == ((ja.Gaussian(1.0),), (2,))


def test_padded_orders_are_refused_unless_they_are_known():
    """Noise less by sqrt(3) bounds them; the noise itself does not: 3 examples, 2 in a batch."""
    with pytest.raises(ValueError, match=r"3\*\*0.5.*2\*\*0.5"):
        ShuffledBatches(11, 5, is_padded=True).compose(1.0, 6)
    assert ShuffledBatches(10, 5, is_padded=True).compose(1.0, 4)[0][0].remainder == "even"  # nothing to fill
    known = ShuffledBatches(11, 5, is_padded=True, reshuffles=False, seed=0)
    assert known.compose(1.0, 7) == ((ja.Gaussian(1.0),), (5,))
    with pytest.raises(ValueError, match="give one of them"):
        ShuffledBatches(11, 5, is_padded=True, drop_last=True)
    with pytest.raises(ValueError, match=r"5 runs of Gaussian"):  # no example need come twice in each epoch
        ShuffledBatches(11, 5, is_padded=True, seed=0).compose(1.0, 7)


def test_known_orders_that_leave_out_examples_have_a_lower_end_while_one_came_each_time():
    """With 11 examples in two batches of 5 there is one that is never left out in 10 epochs, but maybe not in 11."""
    dropped = ShuffledBatches(11, 5, drop_last=True, seed=0)
    assert dropped.compose(1.0, 20) == ((ja.Gaussian(1.0),), (10,))
    with pytest.raises(ValueError, match=r"11 runs of Gaussian"):
        dropped.compose(1.0, 22)


def worst_padded(noise, epsilon, points=161):
    """Delta of the worst adaptive others, 3 examples in batches of 2: backwards from the last result, by quadrature.

    The places are a row of two and one beside a repetition of the first. Others contribute -1 or 1 in the second batch,
    by what the first one's result was: the better for each.
    """
    y = np.linspace(-8 * noise - 3, 8 * noise + 3, points * 8)
    width, total = y[1] - y[0], 0.0
    density = lambda mean: np.exp(-(((y - mean) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))  # noqa: E731
    orders = list(itertools.permutations(range(3)))
    for start in (-1.0, 1.0):
        pasts = []
        for order in orders:
            first, second = order[:2], (order[2], order[0])
            mean = {who: sum((own if i == 0 else start) for i in first) for who, own in (("p", 1.0), ("q", 0.0))}
            pasts.append((mean, second))
        one = {who: np.array([density(mean[who]) for mean, _ in pasts]) for who in "pq"}  # (orders, y1)
        best = np.zeros_like(y)
        for then in (-1.0, 1.0):
            two = {
                who: np.array([density(sum((own if i == 0 else then) for i in second)) for _, second in pasts])
                for who, own in (("p", 1.0), ("q", 0.0))
            }
            both = {who: one[who].T @ two[who] / len(orders) for who in "pq"}  # (y1, y2)
            best = np.maximum(best, np.maximum(both["p"] - math.exp(epsilon) * both["q"], 0).sum(1) * width)
        total = max(total, best.sum() * width)
    return total


@pytest.mark.exhaustive
def test_padding_breaks_the_bound_of_the_noise_itself():
    worst = worst_padded(8.0, 0.03)
    plain, safe = (
        float(ja.delta(ja.ShuffledGaussian(noise, 2), 1, 0.03, relation="zero_out").upper)
        for noise in (8.0, 8 / 3**0.5)
    )
    assert plain < worst < safe


@pytest.mark.parametrize("relation", ["add_or_remove", "remove", "add"])
@pytest.mark.parametrize("seed", [None, 42])
def test_neighbours_with_one_example_less_are_refused_with_the_reason(relation, seed):
    loader = ShuffledBatches(1000, 100, seed=seed)
    with pytest.raises(ValueError, match="all later batches hold other examples"):
        loader.judge(NOISE, STEPS, 1.0, DELTA, relation)
    with pytest.raises(ValueError, match="all later batches hold other examples"):
        specs.parsed(SPEC | {"relation": relation, "parts": [PART | ({} if seed is None else {"seed": seed})]})


# ----------------------------------------------------------------------------------------------------
# Specs and certificates.
# ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_claim_is_certified_refuted_or_left_open_with_both_ends(poisson, verdict):
    low, high = (f"{end:.3g}" for end in verdict.truth)
    with pytest.raises(ValueError, match=f"REFUTED.*{low[:3]}.*{high[:3]}.*referee refutes it, too"):
        certificates.certify(SPEC | {"claimed": poisson})
    with pytest.raises(ValueError, match=f"UNDECIDED.*{low[:3]}.*{high[:3]}"):
        certificates.certify(SPEC | {"claimed": verdict.truth[0]})
    made = certificates.certify(SPEC | {"claimed": verdict.truth[1]})
    assert made["claim"] == {"epsilon": verdict.truth[1], "delta": DELTA}
    assert made["verdict"]["status"] == "UNDECIDED"
    assert [one["sampling"] for one in made["releases"]] == ["shuffled"]
    assert any("secret" in one["text"] and "0, 42" in one["void_if"] for one in made["assumptions"])


def test_an_order_that_is_known_is_certified_as_such(tmp_path):
    with pytest.raises(ValueError, match=r"REFUTED.*referee refutes it, too"):
        certificates.certify(SPEC | {"claimed": AMPLIFIED, "parts": [PART | {"seed": 42}]})
    made = certificates.certify(SPEC | {"parts": [PART | {"seed": 42}]})
    assert made["verdict"]["status"] == "PROVED"
    assert [one["sampling"] for one in made["releases"]] == ["known_order"]
    assert any("nothing rests on the order" in one["text"] for one in made["assumptions"])
    certificates.write(tmp_path / "new", made, {})
    assert certificates.check(tmp_path / "new").status == "PROVED"


def test_records_of_poisson_samples_become_what_ran():
    where = {"sampling": "shuffled", "examples": 1000, "batch_size": 100}
    event = {
        "class_name": "SelfComposedDpEvent", "count": STEPS,
        "event": {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.1,
                  "event": {"class_name": "GaussianDpEvent", "noise_multiplier": NOISE}},
    }  # fmt: skip
    whole = specs.parsed(SPEC)
    for part in ({"opacus": [[NOISE, 0.1, STEPS]]}, {"dp_event": event}):
        found = specs.parsed(SPEC | {"parts": [part | where]})
        assert (found.mechanisms, found.steps) == (whole.mechanisms, whole.steps)


WRONG = {
    "no size": ({"examples": None}, "give the number of examples"),
    "a rate": ({"sampling_rate": 0.1}, "No key sampling_rate"),
    "epochs and steps": ({"count": 30}, "one of epochs and count"),
    "a fraction of an example": ({"examples": 10.5}, "examples = 10.5"),
    "batches beyond the data": ({"batch_size": 1001}, "batch_size = 1001"),
    "Laplace noise": ({"type": "laplace"}, "no Poisson samples"),
    "no noise": ({"noise_multiplier": None}, "noise_multiplier"),
}


@pytest.mark.parametrize(("change", "why"), WRONG.values(), ids=WRONG)
def test_what_does_not_say_how_batches_came_is_refused(change, why):
    with pytest.raises(ValueError, match=why) as error:
        specs.parsed(SPEC | {"parts": [PART | change]})
    assert len(str(error.value)) <= 700


def test_a_claim_needs_its_delta():
    with pytest.raises(ValueError, match="give the delta"):
        specs.parsed({"epsilon": 1.0, "relation": "zero_out", "claimed": 1.0, "parts": [PART]})


# ----------------------------------------------------------------------------------------------------
# Adapters.
# ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_history_of_opacus_is_judged(poisson, verdict):
    history = [(NOISE, 0.1, 10), (NOISE, 0.1, 20)]
    assert ja.epsilon(*from_history(history), DELTA).upper == pytest.approx(poisson, rel=1e-9)
    found = judge_history(history, LOADER, DELTA)
    assert (found.status, found.truth) == ("REFUTED", verdict.truth)
    for wrong, why in (
        ([(NOISE, 0.1, 10), (2.0, 0.1, 20)], "2 kinds of steps"),
        ([(NOISE, 0.01, 30)], "not of 1000 examples"),
        ([(NOISE, 0.0, 30)], "not of 1000 examples"),
        ([], "0 kinds of steps"),
    ):
        with pytest.raises(ValueError, match=why):
            judge_history(wrong, LOADER, DELTA)


@pytest.mark.exhaustive
def test_an_event_of_dp_accounting_is_judged(verdict):
    dp_accounting = pytest.importorskip("dp_accounting")
    from jaxacct.adapters.dp_accounting import ExactAccountant

    accountant = ExactAccountant()
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(NOISE))
    accountant.compose(sampled, STEPS)
    found = judge_dp_event(accountant.ledger, LOADER, DELTA)
    assert (found.status, found.truth) == ("REFUTED", verdict.truth)
    with pytest.raises(ValueError, match="kinds of steps"):
        judge_dp_event(dp_accounting.GaussianDpEvent(1.0), LOADER, DELTA)


def test_fractions_of_examples_left_out_are_exact():
    """The least probability to be in a batch is that of the fewest examples that leave a batch's size less one over."""
    assert statements.shuffled_gaussian("remove", 1.0, 4.0, 1.0, "dropped").key[2] == ((4, Fraction(4, 5)),)
