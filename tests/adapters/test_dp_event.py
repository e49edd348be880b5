"""Events of dp_accounting: its own classes where it is installed, stand-ins of the same names where it is not."""

import math
from fractions import Fraction

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.adapters import from_dp_event

try:
    from dp_accounting import dp_event as real
except ImportError:
    real = None


def event(kind, **fields):
    """Returns the event of dp_accounting, or something that looks like it."""
    name = f"{kind}DpEvent"
    if hasattr(real, name):
        return getattr(real, name)(**fields)
    return type(name, (), fields)()


def gaussian(noise):
    return event("Gaussian", noise_multiplier=noise)


def poisson(rate, inner):
    return event("PoissonSampled", sampling_probability=rate, event=inner)


def fixed(batch, size, inner):
    return event("SampledWithoutReplacement", source_dataset_size=size, sample_size=batch, event=inner)


def many(inner, count):
    return event("SelfComposed", event=inner, count=count)


def together(*events):
    return event("Composed", events=list(events))


LAPLACE = event("Laplace", noise_multiplier=3.0)
NOTHING = event("NoOp")

DIRECT = {
    "gaussian": (gaussian(2.0), ja.Gaussian(2.0), 1),
    "laplace": (LAPLACE, ja.Laplace(3.0), 1),
    "dp-sgd": (many(poisson(0.25, gaussian(1.5)), 1000), ja.PoissonSubsampledGaussian(1.5, 0.25), 1000),
    "poisson laplace": (poisson(0.25, LAPLACE), ja.PoissonSubsampledLaplace(3.0, 0.25), 1),
    "fixed batches": (many(fixed(64, 256, gaussian(1.5)), 7), ja.GaussianWithoutReplacement(1.5, 0.25), 7),
    "fixed laplace": (fixed(64, 256, LAPLACE), ja.LaplaceWithoutReplacement(3.0, 0.25), 1),
    "nested counts": (many(many(gaussian(2.0), 3), np.int64(5)), ja.Gaussian(2.0), 15),
    "equal ones": (together(gaussian(2.0), NOTHING, many(gaussian(2.0), 3)), ja.Gaussian(2.0), 4),
    "poisson twice": (poisson(0.5, poisson(0.25, gaussian(1.0))), ja.PoissonSubsampledGaussian(1.0, 0.125), 1),
    "approximate": (event("EpsilonDelta", epsilon=0.5, delta=1e-6), ja.ApproximateDP(0.5, 1e-6), 1),
    "pure": (event("EpsilonDelta", epsilon=0.5, delta=0.0), ja.PureDP(0.5), 1),
    "nothing": (NOTHING, ja.PureDP(0.0), 1),
    "nothing sampled": (poisson(0.0, gaussian(1.0)), ja.PureDP(0.0), 1),
    "empty batches": (fixed(0, 10, gaussian(1.0)), ja.PureDP(0.0), 1),
    "no runs": (many(gaussian(1.0), 0), ja.PureDP(0.0), 1),
    "no truncated batch": (
        event(
            "TruncatedSubsampledGaussian",
            dataset_size=10,
            sampling_probability=0.1,
            truncated_batch_size=0,
            noise_multiplier=1.0,
        ),
        ja.PureDP(0.0),
        1,
    ),
    "not private": (together(gaussian(1.0), event("NonPrivate")), (ja.Gaussian(1.0), ja.PureDP(math.inf)), (1, 1)),
    "one bucket": (event("RandomizedResponse", noise_parameter=0.0, num_buckets=1), ja.PureDP(0.0), 1),
    "true answers": (event("RandomizedResponse", noise_parameter=0.0, num_buckets=2), ja.PureDP(math.inf), 1),
    "random answers": (
        event("RandomizedResponse", noise_parameter=1.0, num_buckets=4),
        ja.RandomizedResponse(0.0, 4),
        1,
    ),
}


@pytest.mark.parametrize("case", DIRECT)
def test_fields_mean_the_same(case):
    given, mechanisms, steps = DIRECT[case]
    if not isinstance(mechanisms, tuple):
        mechanisms, steps = (mechanisms,), (steps,)
    assert from_dp_event(given) == (mechanisms, steps)


def test_different_parameters_are_a_sequence():
    given = together(many(poisson(0.25, gaussian(1.0)), 10), LAPLACE, many(poisson(0.5, gaussian(2.0)), 20))
    (sampled, laplace), (counts, once) = from_dp_event(given)
    assert isinstance(sampled, ja.PoissonSubsampledGaussian)
    assert sampled.noise_multiplier.tolist() == [1.0, 2.0]
    assert sampled.sampling_rate.tolist() == [0.25, 0.5]
    assert (counts.tolist(), laplace, once) == ([10, 20], ja.Laplace(3.0), 1)


def test_mixtures_of_one_length_are_a_sequence():
    def mixture(*weights):
        return event(
            "MixtureOfGaussians", standard_deviation=1.0, sensitivities=[0.0, 1.0, 2.0], sampling_probs=list(weights)
        )

    (mechanism,), (counts,) = from_dp_event(together(mixture(0.5, 0.25, 0.25), many(mixture(0.25, 0.5, 0.25), 2)))
    assert mechanism.batch_shape == (2,)
    assert mechanism.probabilities.tolist() == [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]
    assert counts.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("noises", "counts"), [((1.0, 2.0), (1, 1)), ((0.3, 7.0, 1e-200), (3, 10**6, 2)), ((3.0,), (7,))]
)
def test_gaussians_on_one_sample_are_one_of_less_noise(noises, counts):
    inner = together(*(many(gaussian(noise), count) for noise, count in zip(noises, counts, strict=True)))
    (mechanism,), _ = from_dp_event(poisson(0.25, inner))
    assert isinstance(mechanism, ja.PoissonSubsampledGaussian)
    precision = sum(count / Fraction(noise) ** 2 for noise, count in zip(noises, counts, strict=True))
    squared = Fraction(mechanism.noise_multiplier) ** 2 * precision  # 1, were it not for rounding
    assert 1 - Fraction(1, 10**14) < squared <= 1


@pytest.mark.parametrize(("batch", "size"), [(1, 3), (512, 50_000), (7, 7), (2, 3)])
def test_rates_are_rounded_up(batch, size):
    (mechanism,), _ = from_dp_event(fixed(batch, size, gaussian(1.0)))
    above = Fraction(mechanism.sampling_rate) / Fraction(batch, size) - 1
    assert 0 <= above < Fraction(1, 10**15)
    assert mechanism.sampling_rate <= 1


def test_a_rate_of_two_samples_is_rounded_up():
    (mechanism,), _ = from_dp_event(poisson(0.1, poisson(0.3, gaussian(1.0))))
    assert 0 <= Fraction(mechanism.sampling_rate) - Fraction(0.1) * Fraction(0.3) < Fraction(1, 10**17)


@pytest.mark.parametrize(("noise", "buckets"), [(0.5, 2), (0.01, 10), (0.999, 3)])
def test_randomized_response_has_the_same_odds(noise, buckets):
    mpmath = pytest.importorskip("mpmath")
    (mechanism,), _ = from_dp_event(event("RandomizedResponse", noise_parameter=noise, num_buckets=buckets))
    assert mechanism.outcomes == buckets
    with mpmath.workdps(40):
        p = mpmath.mpf(noise)
        exact = mpmath.log((1 - p + p / buckets) / (p / buckets))
        assert 0 <= mechanism.epsilon / exact - 1 < 1e-14


@pytest.mark.parametrize("parameter", [0.1, 0.3, 3.0])
def test_discrete_laplace_is_not_wider(parameter):
    (mechanism,), _ = from_dp_event(event("DiscreteLaplace", noise_parameter=parameter, sensitivity=3))
    assert mechanism.sensitivity == 3
    assert 1 - Fraction(1, 10**15) < Fraction(mechanism.scale) * Fraction(parameter) <= 1


def test_truncation_counts_its_overflow():
    size, rate, capacity = 100, 0.1, 20
    truncated = event(
        "TruncatedSubsampledGaussian",
        dataset_size=size,
        sampling_probability=rate,
        truncated_batch_size=capacity,
        noise_multiplier=1.5,
    )
    (mechanism,), _ = from_dp_event(truncated)
    chance, other = Fraction(rate), 1 - Fraction(rate)
    exact = sum(math.comb(size, k) * chance**k * other ** (size - k) for k in range(capacity, size + 1))
    assert (mechanism.noise_multiplier, mechanism.sampling_rate) == (1.5, rate)
    assert exact <= Fraction(mechanism.overflow_probability) < exact * Fraction(1001, 1000)


REFUSED = {
    "laplace with replacement": (
        event("SampledWithReplacement", source_dataset_size=10, sample_size=2, event=LAPLACE),
        "without replacement",
    ),
    "best of less than one": (event("RepeatAndSelect", event=gaussian(1.0), mean=0.5, shape=1.0), "mean = 0.5"),
    "no tree": (event("SingleEpochTreeAggregation", noise_multiplier=1.0, step_counts=[]), "holds no tree"),
    "unsupported": (event("Unsupported"), "nobody has given"),
    "inside others": (together(gaussian(1.0), event("Unsupported")), "nobody has given"),
    "negative noise": (gaussian(-1.0), r"noise_multiplier = -1.0 is out of range"),
    "no number": (gaussian(math.nan), r"noise_multiplier = nan is out of range"),
    "percent": (poisson(25.0, gaussian(1.0)), r"sampling_probability = 25.0 is out of range"),
    "too large a batch": (fixed(11, 10, gaussian(1.0)), r"sample_size = 11 is out of range"),
    "too many": (many(many(gaussian(1.0), 2**40), 2**40), r"count = \d+ is out of range"),
    "unknown": (type("MyOwnDpEvent", (), {})(), "MyOwnDpEvent is not known: give events of ComposedDpEvent"),
    "no fields": (type("GaussianDpEvent", (), {})(), "has no noise_multiplier"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_counterpart_is_an_error_that_says_what_to_do(case):
    given, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        from_dp_event(given)


@pytest.mark.parametrize(
    "given", [None, 1.0, ja.Gaussian(1.0), gaussian("1.0"), gaussian(True), many(gaussian(1.0), 2.5)]
)
def test_what_is_no_event_or_no_number_is_a_type_error(given):
    with pytest.raises(TypeError, match="give"):
        from_dp_event(given)


def test_accountants_take_what_comes_back():
    given = together(gaussian(20.0), many(gaussian(10.0), 3), NOTHING)
    mechanisms, steps = from_dp_event(given)
    bounds = ja.epsilon(mechanisms, steps, delta=1e-5)
    exact = float(ja.gdp.gaussian_epsilon(math.sqrt(1 / 400 + 3 / 100), 1e-5))  # rounded up
    assert bounds.lower <= exact
    assert abs(bounds.upper - exact) < 1e-8


@pytest.mark.skipif(real is None, reason="dp_accounting is not installed")
def test_named_tuples_read_the_same():
    given = many(together(poisson(0.25, gaussian(1.5)), LAPLACE), 10)
    assert from_dp_event(given.to_named_tuple()) == from_dp_event(given)


@pytest.mark.exhaustive
@pytest.mark.skipif(real is None, reason="dp_accounting is not installed")
@pytest.mark.parametrize(
    "given",
    [together(gaussian(5.0), many(poisson(0.1, gaussian(2.0)), 20)), many(poisson(0.25, LAPLACE), 5)],
    ids=["gaussians", "laplace"],
)
def test_the_other_library_says_the_same(given):
    from dp_accounting import pld

    theirs = pld.PLDAccountant(value_discretization_interval=1e-3).compose(given).get_epsilon(1e-4)
    bounds = ja.epsilon(*from_dp_event(given), delta=1e-4)
    assert bounds.lower <= theirs <= bounds.upper + 2e-3
