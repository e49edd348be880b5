"""One step of every mechanism under each relation, against closed forms and sums in 60 digits."""

import mpmath
import pytest
from helpers.brackets import assert_holds, assert_inverts
from helpers.mechanisms import laplace_by_its_loss
from helpers.oracle import finite_delta, gaussian_delta, shifted_noise_delta, subsampled
from helpers.thorough import cases

import jaxacct as ja
from jaxacct.strategies import BandedToeplitz, CyclicPoisson

POINTS = 2**10
EPSILONS = cases([0.0, 2.5], [0.01, 0.3, 1.0, 7.0])


def pair_delta(scale, p, q, noise):
    return lambda epsilon: shifted_noise_delta(p, q, scale, epsilon, noise)


def without_replacement_delta(scale, rate, noise):
    """H(M || B) above epsilon = 0, M = (1-q) B + q A, with A two away from B."""
    rate = mpmath.mpf(rate)
    return pair_delta(scale, [(1 - rate, 0), (rate, 2)], [(1, 0)], noise)


def randomized_response(epsilon, outcomes):
    with mpmath.workdps(60):
        ratio = mpmath.exp(mpmath.mpf(epsilon))
        others = [1 / (ratio + outcomes - 1)] * (outcomes - 2)
        true, false = ratio / (ratio + outcomes - 1), 1 / (ratio + outcomes - 1)
        return [true, *others, false], [false, *others, true]


def approximate_dp(epsilon, delta):
    with mpmath.workdps(60):
        (true, false), delta = randomized_response(epsilon, 2)[0], mpmath.mpf(delta)
        p = [delta, (1 - delta) * true, (1 - delta) * false, mpmath.mpf(0)]
        return p, p[::-1]


def noise_on_integers(log_mass, reach, sensitivity):
    """Masses of integer noise moved by the sensitivity, and of the noise itself, on the same outcomes."""
    with mpmath.workdps(60):
        masses = {n: mpmath.exp(log_mass(n)) for n in range(-reach - sensitivity, reach + sensitivity + 1)}
        total = mpmath.fsum(masses.values())
        outcomes = range(-reach, reach + 1)
        return [masses[n - sensitivity] / total for n in outcomes], [masses[n] / total for n in outcomes]


def discrete_laplace(scale, sensitivity):
    return noise_on_integers(lambda n: -mpmath.mpf(abs(n)) / scale, int(150 * scale) + 10, sensitivity)


def discrete_gaussian(scale, sensitivity):
    return noise_on_integers(lambda n: -(mpmath.mpf(n) ** 2) / (2 * mpmath.mpf(scale) ** 2), 60, sensitivity)


def finite(pair):
    return lambda epsilon: finite_delta(*pair, 1, epsilon)


def poisson(mechanism, scale, rate, noise):
    return [
        (mechanism, relation, pair_delta(scale, *subsampled(rate, relation), noise))
        for relation in ("add", "remove", "replace")
    ]


def truncated(scale, rate, weight):
    """Delta for removing where a public coin, of ``weight``, tells that the example may move the sum by 2."""
    moves = [pair_delta(s, *subsampled(rate, "remove"), "gaussian") for s in (scale, scale / 2)]

    def delta(epsilon):
        with mpmath.workdps(60):
            return (1 - mpmath.mpf(weight)) * moves[0](epsilon) + mpmath.mpf(weight) * moves[1](epsilon)

    return delta


def one_way_masses(epsilon, delta):
    """Q of the worst guarantee in one direction: what is left of P's sure outcome, and the rest."""
    kept = (1 - mpmath.mpf(delta)) * mpmath.exp(-mpmath.mpf(epsilon))
    return [mpmath.mpf(0), kept, 1 - kept]


MIXTURE = ja.GaussianMixture(0.9, [1.0, 2.5], [0.75, 0.25])
MATRIX = ja.MatrixMechanism(BandedToeplitz([4.0, 3.0]), 3.5, CyclicPoisson(2, 2, 0.01))
THREE, OTHER_THREE = [0.5, 0.25, 0.25, 0.0], [0.125, 0.25, 0.5, 0.125]


def laplace(scale, relation, shift):
    return ja.Laplace(scale), relation, pair_delta(scale, [(1, shift)], [(1, 0)], "laplace")


def gaussian(scale, relation, shift):
    return ja.Gaussian(scale), relation, lambda epsilon: gaussian_delta(shift / mpmath.mpf(scale), epsilon)


CASES = [
    gaussian(0.4, "add_or_remove", 1),
    gaussian(3.0, "replace", 2),
    *poisson(ja.PoissonSubsampledGaussian(0.7, 0.01), 0.7, 0.01, "gaussian"),
    poisson(MATRIX, 0.7, 0.01, "gaussian")[1],
    laplace(0.2, "add_or_remove", 1),
    laplace(5.0, "replace", 2),
    *poisson(ja.PoissonSubsampledLaplace(1.5, 0.7), 1.5, 0.7, "laplace")[:2],
    (MIXTURE, "remove", pair_delta(0.9, [(0.75, 1), (0.25, 2.5)], [(1, 0)], "gaussian")),
    (MIXTURE, "add", pair_delta(0.9, [(1, 0)], [(0.75, -1), (0.25, -2.5)], "gaussian")),
    (ja.GaussianWithoutReplacement(1.0, 0.05), "replace", without_replacement_delta(1.0, 0.05, "gaussian")),
    (ja.LaplaceWithoutReplacement(0.8, 0.1), "replace", without_replacement_delta(0.8, 0.1, "laplace")),
    (ja.RandomizedResponse(1.5), "replace", finite(randomized_response(1.5, 2))),
    (ja.RandomizedResponse(3.0, outcomes=7), "add_or_remove", finite(randomized_response(3.0, 7))),
    (ja.PureDP(0.7), "add_or_remove", finite(randomized_response(0.7, 2))),
    (ja.ApproximateDP(1.2, 1e-4), "replace", finite(approximate_dp(1.2, 1e-4))),
    (ja.ApproximateDP(1.2, 1e-4), "remove", finite(([1e-4, 1 - 1e-4, 0.0], one_way_masses(1.2, 1e-4)))),
    (ja.DiscretePair(THREE, OTHER_THREE), "remove", finite((THREE, OTHER_THREE))),
    (ja.DiscretePair(THREE, OTHER_THREE), "add", finite((OTHER_THREE, THREE))),
    (ja.DiscreteLaplace(0.5, sensitivity=2), "add", finite(discrete_laplace(0.5, 2))),
    (ja.DiscreteGaussian(2.0, sensitivity=1), "remove", finite(discrete_gaussian(2.0, 1))),
    (ja.TruncatedPoissonGaussian(1.0, 0.02, 1e-3), "remove", truncated(1.0, 0.02, 1e-3)),
    (laplace_by_its_loss(2.0), "remove", pair_delta(2.0, [(1, 1)], [(1, 0)], "laplace")),
]

MORE = [
    *[gaussian(s, "add_or_remove", 1) for s in (1.0, 9.0)],
    gaussian(1.0, "replace", 2),
    *poisson(ja.PoissonSubsampledGaussian(2.0, 1e-4), 2.0, 1e-4, "gaussian"),
    *poisson(ja.PoissonSubsampledGaussian(1.0, 0.9), 1.0, 0.9, "gaussian"),
    *poisson(MATRIX, 0.7, 0.01, "gaussian")[::2],
    *[laplace(b, "add_or_remove", 1) for b in (1.0, 5.0)],
    *[laplace(b, "replace", 2) for b in (0.2, 1.0)],
    poisson(ja.PoissonSubsampledLaplace(1.5, 0.7), 1.5, 0.7, "laplace")[2],
    *poisson(ja.PoissonSubsampledLaplace(0.5, 0.02), 0.5, 0.02, "laplace"),
    (ja.GaussianWithoutReplacement(4.0, 1.0), "replace", without_replacement_delta(4.0, 1.0, "gaussian")),
    (ja.DiscreteLaplace(3.0, sensitivity=2), "add", finite(discrete_laplace(3.0, 2))),
]


def named(case):
    mechanism, relation, _ = case
    return f"{type(mechanism).__name__}-{relation}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", cases(CASES, MORE), ids=named)
def test_delta_of_one_step(case):
    mechanism, relation, truth = case
    for epsilon in EPSILONS:
        assert_holds(ja.prv.delta(mechanism, 1, epsilon, relation=relation, points=POINTS), truth(epsilon))


def test_every_mechanism_is_there():
    exported = [getattr(ja.mechanisms, name) for name in ja.mechanisms.__all__]
    classes = {one for one in exported if isinstance(one, type) and issubclass(one, ja.Mechanism)} - {ja.Mechanism}
    classes = {one for one in classes if not issubclass(one, ja.mechanisms.RenyiOnly)}  # those have no pairs
    # The pair of a random allocation is above the mechanism's own, which has no closed form; others have tests of their
    # own in tests/mechanisms, against enumeration.
    others = {
        *(ja.RandomAllocation, ja.PoissonSubsampledGroup, ja.WithoutReplacementGroup, ja.GaussianWithReplacement),
        *(ja.ExponentialMechanism, ja.TreeAggregation, ja.PoissonSubsampledDP, ja.DPWithoutReplacement),
        *(ja.AboveThreshold, ja.GaussianAboveThreshold, ja.DiscreteGaussianVector, ja.BallsInBins),
        *(ja.AllocatedMechanism, ja.PoissonSampledMechanism, ja.ShuffledGaussian, ja.ShuffledRandomizedResponse),
    }
    assert {type(mechanism) for mechanism, _, _ in CASES} == classes - others


PLAIN = [[case for case in some if isinstance(case[0], (ja.Laplace, ja.Gaussian))] for some in (CASES, MORE)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", cases(*PLAIN), ids=named)
def test_epsilon_of_one_step(case):
    mechanism, relation, truth = case
    for delta in (0.2, 1e-3, 1e-9):
        assert_inverts(ja.prv.epsilon(mechanism, 1, delta, relation=relation, points=POINTS), truth, delta)


@pytest.mark.parametrize("rate", [1e-290, 1e-296, 1e-300])
def test_delta_of_a_sample_that_hardly_anyone_is_in(rate):
    """Where (e^eps - 1)/q is beyond the range of float64, and epsilon is below 30."""
    noise, epsilon = 0.02, 20.0
    found = ja.delta(ja.PoissonSubsampledGaussian(noise, rate), 1, epsilon)
    with mpmath.workdps(60):
        mu, q = 1 / mpmath.mpf(noise), mpmath.mpf(rate)
        inner = mpmath.log1p(mpmath.expm1(epsilon) / q)
        truth = q * (mpmath.ncdf(mu / 2 - inner / mu) - mpmath.exp(inner) * mpmath.ncdf(-mu / 2 - inner / mu))
        assert found.lower <= truth <= found.upper
