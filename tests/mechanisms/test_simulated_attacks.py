"""Lower ends by attacks: who watches runs on two neighbouring data sets attains what a mechanism says they tell."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

import jaxacct as ja

pytestmark = pytest.mark.exhaustive

RUNS = 400_000
"""Runs on each data set: one half chooses an event, the other counts how often it occurs."""

ROUNDED = 1.02
"""What a score that is not rounded as the mechanism's is may tell more, or less."""


def advantage(p, q, epsilon):
    """Returns an interval for P(S) - e^epsilon Q(S), from scores of runs on both data sets: S is a score above a value.

    Every such event is an attack; the value is the best one for the first halves, and the second ones are counted.
    """
    (p, p_counted), (q, q_counted) = np.split(p, 2), np.split(q, 2)
    values = np.unique(np.quantile(p, np.linspace(0, 1, 2000)))
    above = [1 - np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (p, q)]
    value = values[np.argmax(above[0] - math.exp(epsilon) * above[1])]
    least, most = zip(
        *(
            stats.binomtest(int(np.sum(each > value)), len(each)).proportion_ci(0.9999, "exact")
            for each in (p_counted, q_counted)
        ),
        strict=True,
    )
    return least[0] - math.exp(epsilon) * most[1], most[0] - math.exp(epsilon) * least[1]


def told(mechanism, epsilon, relation, direction):
    """Returns delta of what is attained, in one direction, for each of the pairs of each case."""
    return [
        [
            max(0.0, np.maximum(np.asarray(pair.p) - math.exp(epsilon) * np.asarray(pair.q), 0).sum())
            for pair in (each.dominating_pairs(direction)[0] for each in case)
        ]
        for case in mechanism.attained(relation)
    ]


class Epoch(NamedTuple):
    """An epoch of shuffled data as it is run: examples, batches, what is left of them, steps with the same order."""

    noise: float
    batch: int
    examples: int
    dropped: bool = False
    same: int = 1
    stop: int | None = None

    @property
    def weights(self):
        """Probabilities that an example is in a step's batch."""
        full, rest = divmod(self.examples, self.batch)
        sizes = [self.batch] * full + [rest] * (rest > 0 and not self.dropped)
        return np.array(sizes[: self.stop]) / self.examples

    def results(self, generator, own, others, runs):
        """Returns (runs, steps) results less what all others contribute, the example's place being that in an order."""
        weights = self.weights
        noise = generator.standard_normal((self.same, runs, len(weights))).mean(axis=0) * self.noise
        place = generator.permuted(np.arange(runs) % self.examples) // self.batch
        return noise + (own - others) * (place[:, None] == np.arange(len(weights)))

    def scores(self, results, own, without, others):
        """Returns the logarithms of likelihood ratios, of all results and of the largest; and sums over the steps."""
        weights, variance = self.weights, self.noise**2 / self.same
        present, absent = (
            1 - weights.sum() + np.exp((2 * shift * results - shift**2) / (2 * variance)) @ weights
            for shift in (own - others, without - others)
        )
        # Densities of the largest result over what both have in common: one step's is moved, if any is.
        largest, deviation, t = results.max(axis=1), variance**0.5, len(weights)
        here, below = stats.norm.pdf(largest / deviation), stats.norm.cdf(largest / deviation)
        two, one = (
            weights.sum()
            * (
                stats.norm.pdf((largest - shift) / deviation) * below
                + (t - 1) * here * stats.norm.cdf((largest - shift) / deviation)
            )
            + (1 - weights.sum()) * t * here * below
            for shift in (own - others, without - others)
        )
        found = {"all": np.log(present / absent), "largest": np.log(two / one)}
        for name, rate in (("sum", 1), ("sum, often", 8)):
            two, one = (
                np.log1p(min(rate / len(weights), 0.5) * np.expm1((2 * shift * results - shift**2) / (2 * variance)))
                for shift in (own - others, without - others)
            )
            found[name] = (two - one).sum(axis=1)
        return found


# At a delta of some tenths an interval is a percent or two wide.
EPOCHS = {
    "even": (Epoch(1.0, 5, 20), 0.3),
    "even, little noise": (Epoch(0.6, 5, 40), 1.0),
    "small": (Epoch(1.0, 3, 11), 0.3),
    "dropped": (Epoch(1.0, 3, 11, dropped=True), 0.3),
    "stops": (Epoch(0.7, 5, 25, stop=3), 0.5),
    "one order": (Epoch(1.5, 5, 20, same=3), 0.3),
}


def mechanism_of(epoch, remainder=""):
    kind = "even" if epoch.examples % epoch.batch == 0 else "dropped" if epoch.dropped else "small"
    return ja.ShuffledGaussian(
        epoch.noise, epoch.examples // epoch.batch, epoch.same, kind if remainder == "" else remainder, epoch.stop
    )


@pytest.mark.parametrize("name", EPOCHS)
def test_each_lower_end_of_a_shuffle_is_attained(name):
    epoch, epsilon = EPOCHS[name]
    generator = np.random.default_rng(len(name))
    mechanism = mechanism_of(epoch)
    for direction, sign in (("remove", 1), ("add", -1)):
        (ends,) = told(mechanism, epsilon, "zero_out", direction)
        # All others contribute the opposite. The first pair is of the largest result, the others of sums of scores.
        seen = [
            {key: sign * score for key, score in epoch.scores(results, 1.0, 0.0, -1.0).items()}
            for results in (epoch.results(generator, own, -1.0, RUNS) for own in (1.0, 0.0))
        ][::sign]
        for end, score in zip(ends, ("largest", "sum", "sum, often"), strict=True):
            _, most = advantage(seen[0][score], seen[1][score], epsilon)
            assert end <= most * ROUNDED, (direction, score)
        # Who looks at everything is told no less than any of them says, and so where the remainder is not known.
        least, most = advantage(seen[0]["all"], seen[1]["all"], epsilon)
        assert max(ends) <= most
        (unknown,) = told(mechanism_of(epoch, None), epsilon, "zero_out", direction)
        assert max(unknown) <= most
        if sign == 1 and name.startswith("even"):
            assert least * 0.9 <= max(ends)


@pytest.mark.parametrize("name", EPOCHS)
@pytest.mark.parametrize("relation", ["zero_out", "replace"])
def test_each_lower_end_of_an_allocation_is_attained(name, relation):
    """All others contribute nothing, or under "replace" the opposite, as the example does without its own."""
    epoch, epsilon = EPOCHS[name]
    generator = np.random.default_rng(len(name))
    others = -1.0 if relation == "replace" else 0.0
    # Sums of scores tell more than random allocation does, which so is known for several settings alone.
    mechanism = mechanism_of(epoch._replace(noise=np.full(2, epoch.noise)) if relation == "zero_out" else epoch)
    epsilon *= 2 if relation == "replace" else 0.25
    for direction, sign in (("remove", 1), ("add", -1)):
        pair = mechanism.attained(relation)[0][-1].dominating_pairs(direction)[0]
        p, q = (np.atleast_2d(np.asarray(masses))[0] for masses in (pair.p, pair.q))
        end = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        seen = [
            sign * epoch.scores(epoch.results(generator, own, others, RUNS), 1.0, others, others)["all"]
            for own in (1.0, others)
        ][::sign]
        least, most = advantage(*seen, epsilon)
        assert end <= most, direction
        if name.startswith("even"):
            assert least <= end * ROUNDED, direction


@pytest.mark.parametrize("epoch", [Epoch(2.0, 5, 50), Epoch(3.0, 3, 31)])
def test_a_bracket_of_epochs_afresh_has_a_lower_end_that_is_attained(epoch):
    generator, epsilon, epochs = np.random.default_rng(3), 0.7, 4
    found = ja.delta(mechanism_of(epoch), epochs, epsilon, relation="zero_out")
    seen = [
        sum(epoch.scores(epoch.results(generator, own, -1.0, RUNS // 2), 1.0, 0.0, -1.0)["all"] for _ in range(epochs))
        for own in (1.0, 0.0)
    ]
    least, most = advantage(*seen, epsilon)
    assert 0.9 * least <= found.lower <= most
    assert least < found.upper


@pytest.mark.parametrize("relation", ["remove", "add"])
def test_brackets_of_any_noise_that_is_allocated_or_sampled_are_attained(relation):
    scale, number, epsilon, runs = 0.7, 5, 0.4, RUNS
    generator = np.random.default_rng(5)

    def losses(noise):
        """Logarithms of a step's likelihood ratio, the example contributing 1 or 0."""
        return (np.abs(noise) - np.abs(noise - 1)) / scale

    noise = generator.laplace(size=(2, runs, number)) * scale
    noise[0, np.arange(runs), generator.integers(number, size=runs)] += 1
    allocated = [np.log(np.exp(losses(each)).mean(axis=1)) for each in noise]
    noise = generator.laplace(size=(2, runs)) * scale
    noise[0] += generator.random(runs) < 1 / number
    sampled = [np.log1p(np.expm1(losses(each)) / number) for each in noise]
    for mechanism, (p, q) in (
        (ja.AllocatedMechanism(ja.Laplace(scale), number), allocated),
        (ja.PoissonSampledMechanism(ja.Laplace(scale), 1 / number), sampled),
    ):
        at = epsilon if mechanism == ja.AllocatedMechanism(ja.Laplace(scale), number) else 0.2
        found = ja.delta(mechanism, 1, at, relation=relation)
        least, most = advantage(p, q, at) if relation == "remove" else advantage(-q, -p, at)
        assert least <= found.upper
        assert found.lower <= most
        assert found.upper <= found.lower * 1.001


@pytest.mark.parametrize(("k", "local"), [(2, 1.0), (5, 2.0)])
def test_brackets_of_shuffled_reports_are_attained(k, local):
    users, epsilon = 50, 0.3
    generator = np.random.default_rng(k)
    kept = math.exp(local) / (math.exp(local) + k - 1)
    found = ja.delta(ja.ShuffledRandomizedResponse(local, k, users), 1, epsilon, relation="replace")
    # One user's value is 0 or 1. All others' is another one, or 1 where there is none; the shuffler shows counts.
    other = 2 if k > 2 else 1

    def counts(value):
        shares = np.full((2, k), (1 - kept) / (k - 1))
        shares[0, other] = shares[1, value] = kept
        return sum(generator.multinomial(n, share, size=RUNS) for n, share in zip((users - 1, 1), shares, strict=True))

    def scores(seen):
        """Logarithms of likelihood ratios: of whose value the user's could be among the counts, by what others give."""
        shares = np.full(k, (1 - kept) / (k - 1))
        shares[other] = kept
        ways = seen / shares
        own = np.full((2, k), (1 - kept) / (k - 1))
        own[0, 0] = own[1, 1] = kept
        return np.log(ways @ own[0]) - np.log(ways @ own[1])

    seen = scores(counts(0)), scores(counts(1))
    ends = advantage(*seen, epsilon), advantage(-seen[1], -seen[0], epsilon)
    assert max(least for least, _ in ends) <= found.upper
    assert found.lower <= max(most for _, most in ends)
    assert max(least for least, _ in ends) <= found.lower * 1.001
