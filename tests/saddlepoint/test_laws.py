"""The laws that the exact accountant inverts: moments, what they state of their errors, and of their decay."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers.brackets import assert_holds, assert_judged
from helpers.oracle import PI, gaussian_delta, integral
from helpers.thorough import THOROUGH, draws, program
from scipy.stats import binom

import jaxacct as ja
from jaxacct import saddlepoint
from jaxacct.mechanisms import CountedShiftsPair, ShiftedNoisePair, SubsampledGaussianPair, WithoutReplacementPair
from jaxacct.mechanisms.gaussian import STEEPEST
from jaxacct.mechanisms.pair import law_of, moments
from jaxacct.numerics.arithmetic import in_float32

FARTHER = np.array([1.0, 1.03, 1.3, 2.0, 7.0])
PIECES = 8


class Look(NamedTuple):
    """What a law says of one order and one frequency; ``transform`` is E_t[e^(iwY)] at w FARTHER."""

    largest_order: jax.Array
    log_moment: jax.Array
    slope: jax.Array
    curvature: jax.Array
    transform: jax.Array
    error: jax.Array
    log_envelope: jax.Array
    left_out: jax.Array


@program
def look(pair, order, w):
    law = law_of(pair)
    scan = law.scan()
    known = moments(scan, order)
    window = law.window(order, scan)
    pieces = jax.vmap(lambda i: law.piece(window, i, PIECES))(jnp.arange(PIECES))
    losses, log_p = pieces.losses.reshape(-1), pieces.log_p.reshape(-1)
    weights = jnp.exp(log_p + order * losses - known.value)
    angles = jax.vmap(lambda w: w * losses)(w * FARTHER)
    transform = jnp.matmul(jnp.cos(angles), weights) + 1j * jnp.matmul(jnp.sin(angles), weights)
    error = jnp.exp(jax.vmap(lambda w: law.log_quadrature_error(order, w, law.step(window, PIECES)))(w * FARTHER))
    envelope = law.log_envelope(order, w, law.piece(window, 0, 1))
    left_out = jnp.exp(law.log_quadrature_error(order, jnp.zeros_like(w), scan.places[1] - scan.places[0]))
    return Look(law.largest_order(), *known, transform, error, envelope, left_out)


def looked(pair, order, w):
    with jax.enable_x64(True):
        reals = jax.tree.map(lambda leaf: np.asarray(leaf) if np.asarray(leaf).dtype == bool else jnp.asarray(
            leaf, jnp.float64), pair)  # fmt: skip
        return jax.tree.map(np.asarray, look(reals, jnp.float64(order), jnp.float64(w)))


def three(scale, locations, p, q, noise):
    return ShiftedNoisePair(scale, *(np.asarray(v, np.float64) for v in (locations, p, q)), noise)


def counted(scale, unit, p, q):
    places = unit * np.arange(5.0)
    return CountedShiftsPair(scale, places, np.asarray(p), np.asarray(q), weight_units=1.0)


# All of one kind and noise have one shape, and so one program: locations without weight fill up.
PAIRS = {
    "gaussians-remove": three(0.9, [0, 1, 2.5], [0, 0.75, 0.25], [1, 0, 0], "gaussian"),
    "gaussians-rare": three(1.0, [0, 1, 2], [0.98, 0.015, 0.005], [1, 0, 0], "gaussian"),
    "gaussians-add": three(2.0, [0, -1, -3], [1, 0, 0], [0.8, 0.1, 0.1], "gaussian"),
    "gaussians-replace": three(1.0, [0, 1, -1], [0.9, 0.1, 0], [0.9, 0, 0.1], "gaussian"),
    "gaussians-all": three(3.0, [0, 1, -1], [0, 1, 0], [0, 0, 1], "gaussian"),
    "group-remove": counted(0.7, 1.0, binom.pmf(np.arange(5), 4, 0.05), np.eye(5)[0]),
    "group-add": counted(1.5, -1.0, np.eye(5)[0], binom.pmf(np.arange(5), 4, 0.3)),
    "laplace": three(1.0, [0, 1, 0], [0, 1, 0], [1, 0, 0], "laplace"),
    "laplace-remove": three(0.3, [0, 1, 0], [0.98, 0.02, 0], [1, 0, 0], "laplace"),
    "laplace-add": three(2.0, [0, -1, 0], [1, 0, 0], [0.7, 0.3, 0], "laplace"),
    "laplace-replace": three(0.7, [0, 1, -1], [0.95, 0.05, 0], [0.95, 0, 0.05], "laplace"),
    "fixed-gaussian": WithoutReplacementPair(1.0, 0.05, "gaussian"),
    "fixed-gaussian-wide": WithoutReplacementPair(4.0, 0.4, "gaussian"),
    "fixed-gaussian-all": WithoutReplacementPair(2.0, 1.0, "gaussian"),
    "fixed-laplace": WithoutReplacementPair(0.8, 0.1, "laplace"),
    "fixed-laplace-all": WithoutReplacementPair(2.0, 1.0, "laplace"),
    "poisson-remove": SubsampledGaussianPair(1.0, 0.01, True),
    "poisson-add": SubsampledGaussianPair(0.7, 0.3, False),
    "poisson-all": SubsampledGaussianPair(2.0, 1.0, True),
}


def exact_moment(pair, z):
    """E_P[e^(z Y)] in 19 digits, by integrals between the points where a density is not smooth."""
    if isinstance(pair, WithoutReplacementPair):
        return of_halves(np.longdouble(pair.scale), np.longdouble(pair.sampling_rate), pair.noise, z)
    if isinstance(pair, SubsampledGaussianPair):
        q = np.longdouble(pair.sampling_rate)
        sides = ([1 - q, q], [0, 1]), ([1], [0])
        return whole(pair.noise_multiplier, *(sides if pair.removes else sides[::-1]), z, "gaussian")
    sides = ((w[w > 0], pair.locations[w > 0]) for w in (pair.p_weights, pair.q_weights))
    return whole(pair.scale, *sides, z, pair.noise)


def density(x, side, s, noise):
    u = (np.longdouble(x)[..., None] - side[1]) / s
    heights = np.exp(-(u**2) / 2) / np.sqrt(2 * PI) if noise == "gaussian" else np.exp(-np.abs(u)) / 2
    return np.sum(heights * side[0], axis=-1) / s


def whole(s, p, q, z, noise):
    def tilted(x):
        above, below = density(x, p, s, noise), density(x, q, s, noise)
        return above * np.exp(z * np.log(above / below))

    s, knots = np.longdouble(s), np.union1d(p[1], q[1]).astype(np.longdouble)
    if noise == "laplace":
        return integral(tilted, knots, 8) + s * (tilted(knots[0]) + tilted(knots[-1]))
    low, high = knots[0] - 10 * s, knots[-1] + np.real(z) * (knots[-1] - knots[0]) + 10 * s
    return integral(tilted, [low, high], 200)


def of_halves(s, q, noise, z):
    """The mixture where it is above the base, its mirror image, and the atom between."""

    def both(x):
        above, below = density(x, ([1 - q, q], [0, 2]), s, noise), density(x, ([1], [0]), s, noise)
        log_ratio = np.log(above / below)
        return above * np.exp(z * log_ratio) + below * np.exp(-z * log_ratio)

    if noise == "laplace":
        return integral(both, [1, 2], 8) + s * both(2) - (1 - q) * np.expm1(-1 / s)
    atom = (1 - q) * np.longdouble(str(mpmath.erf(1 / (mpmath.mpf(float(s)) * mpmath.sqrt(2)))))
    return integral(both, [1, 2 * (1 + np.real(z)) + 10 * s], 200) + atom


@pytest.mark.first_tier("laplace-remove", "laplace-add", "laplace-replace", "fixed-laplace-all")
@pytest.mark.parametrize("name", PAIRS)
def test_moments_of_complex_order(name):
    pair = PAIRS[name]
    for order, turns in ((0.8, 1.5), (3.5, 6.0)):
        w = float(turns / np.sqrt(looked(pair, order, 1.0).curvature))
        found = looked(pair, order, w)
        whole_moment = exact_moment(pair, np.longdouble(order))
        transform = complex(exact_moment(pair, np.clongdouble(complex(order, w))) / whole_moment)
        log_moment = float(np.log(whole_moment))
        assert order < found.largest_order
        assert found.left_out < 1e-15
        assert found.log_moment == pytest.approx(log_moment, rel=1e-12, abs=1e-15)
        assert found.error[0] < 1e-9
        assert abs(found.transform[0] - transform) <= found.error[0] + 1e-13 * (1 + turns)


@pytest.mark.first_tier("gaussians-rare", "laplace-remove", "poisson-add", "poisson-all")
@pytest.mark.parametrize("name", PAIRS)
def test_the_envelope_bounds_all_frequencies_from_there_on(name):
    pair, random = PAIRS[name], np.random.default_rng(3)
    count, counted, ratios = draws(12, 40), 0, []
    for _ in range(count):
        order = random.uniform(0.02, 6.0)
        start = looked(pair, order, 1.0)
        if order > start.largest_order:
            continue
        w = float(np.exp(random.uniform(np.log(0.01), np.log(60))) / np.sqrt(start.curvature))
        found = looked(pair, order, w)
        known = found.error < 1e-9
        counted += np.sum(known)
        modulus = np.abs(found.transform)
        assert np.all((modulus <= np.exp(found.log_envelope) + found.error + 1e-13) | ~known)
        if known[0] and 0.02 < modulus[0] < 0.995:
            ratios.append(found.log_envelope / np.log(modulus[0]))
    assert counted >= 2.5 * count
    # Of use, and not only right.
    assert np.median(ratios) > 0.15
    assert np.max(ratios) > 0.8


def test_the_argument_of_a_turned_mixture():
    p = np.linspace(0.0, 1.0, 1001)[:, None]
    theta = np.linspace(0.0, STEEPEST, 500)[None, :]
    margin = np.angle(1 - p + p * np.exp(1j * theta)) - p * np.sin(theta)
    assert np.min(margin) >= -1e-15
    assert np.max(margin) > 0.4


CASES = [
    (ja.PoissonSubsampledLaplace, (0.5, 4.0), 1000),
    (ja.GaussianWithoutReplacement, (0.8, 4.0), 1000),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=["laplace", "fixed-gaussian"])
def test_brackets_are_right_by_the_referee(case):
    make, scales, enough = case
    random = np.random.default_rng(5)
    converged = 0
    for _ in range(draws(3, 8)):
        scale, rate = (np.exp(random.uniform(*np.log(ends))) for ends in (scales, (0.01, 0.5)))
        steps = round(np.exp(random.uniform(np.log(10), np.log(20_000))))
        mechanism = make(scale, rate)
        (pair,) = mechanism.dominating_pairs("replace")
        once = looked(pair, 1e-6, 1.0)
        epsilon = float(steps * once.slope + random.uniform(0.5, 4.0) * np.sqrt(steps * once.curvature))
        exact = saddlepoint.delta(mechanism, steps, epsilon, relation="replace")
        brackets = [exact]
        if THOROUGH:
            brackets.append(ja.prv.delta(mechanism, steps, epsilon, relation="replace", points=2**10))
        assert_judged("delta", mechanism, steps, epsilon, *brackets, relation="replace")
        assert exact.converged or steps < enough, (mechanism, steps)
        if exact.converged:
            converged += 1
            assert exact.upper - exact.lower <= 1e-8 * exact.upper
        else:
            assert np.isnan(exact.estimate)
    assert converged >= 2


@pytest.mark.exhaustive
def test_a_mixture_of_two_is_a_poisson_sample():
    for noise, rate, steps, epsilon in ((1.0, 0.01, 3000, 2.0), (2.0, 0.2, 50, 1.0), (0.7, 0.3, 20, 20.0)):
        mixture = ja.GaussianMixture(noise, [0.0, 1.0], [1 - rate, rate])
        bounds = saddlepoint.delta(mixture, steps, epsilon, relation="remove")
        assert bounds.converged
        assert bounds.upper - bounds.lower <= 1e-8 * bounds.upper
        assert_judged("delta", mixture, steps, epsilon, bounds, relation="remove")


@pytest.mark.exhaustive
def test_a_batch_of_everyone_is_the_mechanism_itself():
    """A rate of one: the halves and the atom of nothing make up Gaussian, or Laplace, noise of a shift of two."""
    for noise, steps in ((3.0, 100), (10.0, 3000)):
        with mpmath.workdps(40):
            mu = 2 * mpmath.sqrt(steps) / noise
            epsilon = float(mu**2 / 2 + mu)
            truth = gaussian_delta(mu, epsilon)
        bounds = saddlepoint.delta(ja.GaussianWithoutReplacement(noise, 1.0), steps, epsilon, relation="replace")
        assert bounds.converged
        assert_holds(bounds, truth)
        assert bounds.estimate == pytest.approx(float(truth), rel=1e-10)
    for scale, steps, epsilon in ((2.0, 300, 110.0), (10.0, 5000, 90.0)):
        batch = saddlepoint.delta(ja.LaplaceWithoutReplacement(scale, 1.0), steps, epsilon, relation="replace")
        assert batch.converged
        assert batch.upper - batch.lower <= 1e-8 * batch.upper
        assert_judged("delta", ja.Laplace(scale / 2), steps, epsilon, batch)


def test_few_steps_of_a_loss_with_atoms_say_so():
    bounds = saddlepoint.delta(ja.PoissonSubsampledLaplace(1.0, 0.1), 3, 0.2, relation="replace")
    assert not bounds.converged
    assert np.isnan(bounds.estimate)
    assert 0 <= bounds.lower < bounds.upper <= 1


@pytest.mark.exhaustive
def test_infinite_and_finite_atoms_beside_a_gaussian():
    """(epsilon, delta)-DP: everything is told with probability delta, else the loss is +-epsilon."""
    run = (ja.Gaussian(10.0), ja.ApproximateDP(0.3, 1e-4))
    with mpmath.workdps(40):
        told, mu = mpmath.mpf(1e-4), mpmath.mpf(1)
        true = 1 / (1 + mpmath.exp(-mpmath.mpf(0.3)))
        parts = [
            p * gaussian_delta(mu, 1.0 - loss) for p, loss in ((true, mpmath.mpf(0.3)), (1 - true, -mpmath.mpf(0.3)))
        ]
        truth = told + (1 - told) * mpmath.fsum(parts)
    assert_holds(saddlepoint.delta(run, (100, 1), 1.0), float(truth), 1e-14)


def test_where_there_is_no_law():
    (pair,) = ja.DiscreteGaussian(1.0).dominating_pairs()
    (laplace,) = ja.Laplace(1.0).dominating_pairs()
    assert pair.law() is None
    with in_float32():
        assert laplace.law() is None
    bounds = saddlepoint.epsilon(ja.Laplace(1.0), 1000, 1e-5, arithmetic="float32")
    assert (bounds.lower, bounds.upper, bool(bounds.converged)) == (0, np.inf, False)
    with pytest.raises(TypeError, match="no moments of complex order"):
        law_of(pair)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("noise", "rate", "order", "frequency"), [(0.4056, 0.999, 2.36916, 80.6113), (0.7015, 0.5, 6.66117, 100.4217)]
)
def test_an_envelope_counts_what_its_window_leaves_out(noise, rate, order, frequency):
    """Where a path is high its integrand may be largest outside of the window: the bound is not that of the inside."""
    with jax.enable_x64(True):
        law = SubsampledGaussianPair(noise, rate, True).law()
        nodes = law.piece(law.window(jnp.asarray(order), law.scan()), 0, 1)
        bound = float(law.log_envelope(jnp.asarray(order), jnp.asarray(frequency), nodes))
    with mpmath.workdps(45):
        step, power = mpmath.mpf(1) / 256, mpmath.mpc(order + 1, frequency)
        places = [step * i for i in range(-16 * 256, 26 * 256)]
        logs = [mpmath.log(1 - rate + rate * mpmath.exp((z - 0.5 / noise) / noise)) for z in places]
        waves = mpmath.fsum(mpmath.exp(-z * z / 2 + power * y) for z, y in zip(places, logs, strict=True))
        whole = mpmath.fsum(mpmath.exp(-z * z / 2 + power.real * y) for z, y in zip(places, logs, strict=True))
        truth = float(mpmath.log(abs(waves) / whole))
    assert -75 < truth <= bound
