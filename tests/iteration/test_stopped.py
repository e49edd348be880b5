"""Projected noisy SGD, stopped at random or at the end: bounds against exact chains, one another and arithmetic."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.chains import hockey_stick, interval_kernel
from scipy.special import logsumexp

from jaxacct.iteration import (
    METHODS,
    ProjectedNoisySGD,
    highest_order,
    last_iterate_delta,
    last_iterate_rdp,
    stopped_delta,
    stopped_epsilon,
    stopped_rdp,
)

EPSILONS = np.array([0.0, 0.1, 0.4, 1.0, 2.0])
REFERENCE = [(0.05, 5.0), (0.1, 3.0)]
"""Learning rate and noise of the reference's two figures; there L = 1 and T = 100."""


def printed_corollary(epsilon, rate, noise, steps, diameter=1.0, lipschitz=1.0):
    """The reference's display, by arithmetic of 40 digits."""
    with mp.workdps(40):
        tail = lambda x: mp.erfc(x / mp.sqrt(2)) / 2  # noqa: E731
        e, rate, noise = mp.mpf(float(epsilon)), mp.mpf(rate), mp.mpf(noise)
        theta = lambda r: tail(e / r - r / 2) - mp.exp(e) * tail(e / r + r / 2)  # noqa: E731
        ratio = (diameter + 2 * rate * lipschitz) / (rate * noise)
        return theta(2 * lipschitz / noise) / (steps * (1 - theta(ratio)))


@pytest.mark.parametrize(("rate", "noise"), REFERENCE)
def test_contraction_is_the_corollary_as_printed(rate, noise):
    ours = stopped_delta(ProjectedNoisySGD(rate, 1.0, noise, 100), EPSILONS, method="contraction")
    for epsilon, value in zip(EPSILONS, ours, strict=True):
        exact = printed_corollary(epsilon, rate, noise, 100)
        assert 0 <= float(mp.mpf(float(value)) / exact - 1) <= 1e-12


@pytest.mark.exhaustive
@pytest.mark.parametrize(("diameter", "rate", "noise"), [(1.0, 0.2, 2.0), (0.5, 0.3, 0.7), (2.0, 1.0, 1.0)])
def test_bounds_are_above_exact_chains_on_an_interval(diameter, rate, noise):
    """Losses x w with x in [-1, 1], the first record replaced; K an interval: every law is known to quadrature."""
    steps = 5
    sgd = ProjectedNoisySGD(rate, 1.0, noise, steps, diameter=diameter, smoothness=0.0)
    points, away = interval_kernel(diameter, rate, rate * noise)
    _, back = interval_kernel(diameter, -rate, rate * noise)
    _, later = interval_kernel(diameter, 0.3 * rate, rate * noise)
    start = np.argmin(np.abs(points - diameter / 2))
    first, other, stopped, stopped_other = away[start], back[start], 0.0, 0.0
    for count in range(1, steps + 1):
        exact = np.array([hockey_stick(first, other, e) for e in EPSILONS])
        for method in ("contraction", "recursive", "renyi", "shifted", "best"):
            bound = last_iterate_delta(sgd, EPSILONS, position=float(steps + 1 - count), method=method)
            assert np.all(exact <= bound * (1 + 1e-4) + 1e-12), method  # 1e-4: kinks under the quadrature
        stopped, stopped_other = stopped + first / steps, stopped_other + other / steps
        first, other = first @ later, other @ later
    exact = np.array([hockey_stick(stopped, stopped_other, e) for e in EPSILONS])
    for method in METHODS:
        assert np.all(exact <= stopped_delta(sgd, EPSILONS, method=method) * (1 + 1e-4) + 1e-12), method


@pytest.mark.parametrize("noise", [1.0, 3.0, 10.0])
def test_bounds_are_above_the_exact_mixture_of_a_linear_process(noise):
    """No projection: stopping after k, w is N(+-L, k noise^2); deltas and divergences of the mixture on a fine grid."""
    steps, orders = 4, np.array([1.1, 1.3])
    x = np.linspace(-1 - 30 * noise, 1 + 30 * noise, 200_001)
    deviation = noise * np.sqrt(np.arange(1, steps + 1))[:, None]
    log_laws = [
        logsumexp(-(((x - mean) / deviation) ** 2) / 2 - np.log(deviation * np.sqrt(2 * np.pi) * steps), axis=0)
        for mean in (1.0, -1.0)
    ]
    p, q = (np.exp(law) * (x[1] - x[0]) for law in log_laws)
    sgd = ProjectedNoisySGD(1.0, 1.0, noise, steps, diameter=np.inf, smoothness=0.0)
    exact = np.array([hockey_stick(p, q, e) for e in EPSILONS])
    for method in ("shifted", "renyi", "feldman", "best"):
        assert np.all(exact <= stopped_delta(sgd, EPSILONS, method=method) * (1 + 1e-9) + 1e-14), method
    exact = [np.log(np.sum(np.exp(a * log_laws[0] + (1 - a) * log_laws[1])) * (x[1] - x[0])) / (a - 1) for a in orders]
    assert np.all(exact <= stopped_rdp(sgd, orders) * (1 + 1e-9))
    assert np.all(exact <= stopped_rdp(sgd, orders, method="feldman") * (1 + 1e-9))


def test_moments_by_hand():
    sgd = ProjectedNoisySGD(0.1, 1.0, 2.0, 3, smoothness=1.0)
    orders = np.array([1.001, 2.0, 30.0, 3000.0])
    exponents = 2 * orders[:, None] * (orders[:, None] - 1) / 4 / np.arange(1, 4)
    exact = (logsumexp(exponents, axis=1) - np.log(3)) / (orders - 1)
    assert stopped_rdp(sgd, orders) == pytest.approx(exact, rel=1e-11)
    one = ProjectedNoisySGD(0.1, 1.0, 2.0, 1, smoothness=1.0)
    assert stopped_rdp(one, orders) == pytest.approx(orders / 2, rel=1e-12)
    assert last_iterate_rdp(one, orders) == pytest.approx(orders / 2, rel=1e-12)


def test_the_logarithm_of_the_display_is_proved_from_three_steps_on():
    """log(mean of e^(1/k), k to T) <= 2 log T / T fails for T = 1 and 2 and holds after: the module's comment."""
    steps = np.arange(1, 2001)
    moment = np.log1p(np.cumsum(np.expm1(1 / steps)) / steps)
    assert (moment > 2 * np.log(steps) / steps)[:2].all()
    assert (moment <= 2 * np.log(steps) / steps)[2:].all()
    assert (np.e - 1) * np.sum(1 / np.arange(1, 38)) <= 2 * np.log(37)


def test_order_of_the_bounds():
    rng = np.random.default_rng(3)
    noise, rate = 10 ** rng.uniform(-0.5, 1.5, 5), 10 ** rng.uniform(-2, 0.3, 5)
    sgd = ProjectedNoisySGD(rate, 1.0, noise, 20, diameter=rng.exponential(size=5), smoothness=0.9)
    delta = {method: stopped_delta(sgd, EPSILONS, method=method) for method in METHODS}
    slack = 1 + 1e-11
    assert np.all(delta["recursive"] <= delta["contraction"] * slack)
    assert np.all(delta["shifted"] <= delta["renyi"] * slack)
    assert np.all(np.stack(list(delta.values())) * slack >= delta["best"])


@pytest.mark.parametrize(("lipschitz", "noise"), [(1.0, 2.0), (1e-12, 1e6), (1e3, 1.0)])
def test_no_bound_exceeds_one_noisy_gradient(lipschitz, noise):
    sgd = ProjectedNoisySGD(0.1, lipschitz, noise, 10, smoothness=1.0)
    one = last_iterate_delta(sgd, EPSILONS)
    for method in ("contraction", "recursive", "shifted", "best"):
        assert np.all(stopped_delta(sgd, EPSILONS, method=method) <= one * (1 + 1e-12))


@pytest.mark.first_tier("feldman")
@pytest.mark.parametrize("method", ["contraction", "feldman", "best"])
def test_epsilon_is_the_safe_end_of_delta(method):
    sgd = ProjectedNoisySGD(0.05, 1.0, 5.0, 100, smoothness=1.0)
    target = np.array([1e-2, 1e-5, 1e-9, 1e-30, 1e-4])
    epsilon = stopped_epsilon(sgd, target, method=method)
    assert np.all(stopped_delta(sgd, epsilon, method=method) <= target)
    nearer = stopped_delta(sgd, np.maximum(epsilon * (1 - 1e-6), 0), method=method)
    assert np.all((nearer > target) | (epsilon == 0))


@pytest.mark.parametrize("method", ["contraction", "feldman"])
def test_epsilon_of_large_deltas(method):
    sgd = ProjectedNoisySGD(0.05, 2.0, 1.0, 100, smoothness=1.0)
    target = np.array([0.3, 0.5, 0.7, 0.9, 1 - 1e-9])
    epsilon = stopped_epsilon(sgd, target, method=method)
    assert np.all(stopped_delta(sgd, epsilon, method=method) <= target)


def test_logarithms_go_on_where_float64_ends():
    sgd = ProjectedNoisySGD(0.05, 1.0, 5.0, 100)
    epsilons = np.array([0.0, 1.0, 5.0, 10.0, 20.0])
    logs = stopped_delta(sgd, epsilons, method="contraction", log=True)
    assert np.exp(logs[:4]) == pytest.approx(stopped_delta(sgd, epsilons, method="contraction")[:4], rel=1e-12)
    assert -2000 < logs[4] < -745


def test_convexity_helps_and_its_absence_is_no_claim():
    plain = ProjectedNoisySGD(0.1, 1.0, 3.0, 100)
    convex = ProjectedNoisySGD(0.1, 1.0, 3.0, 100, smoothness=1.0)
    assert np.all(stopped_delta(plain, EPSILONS) == stopped_delta(plain, EPSILONS, method="recursive"))
    assert np.all(stopped_delta(convex, EPSILONS) < stopped_delta(plain, EPSILONS))


def test_traced_values_in_a_float32_program():
    def delta(noise, rate, steps):
        return stopped_delta(ProjectedNoisySGD(rate, 1.0, noise, steps, smoothness=1.0), 0.5)

    noise, rate = jnp.array([5.0, 5.0, 0.0, -1.0, jnp.nan]), jnp.array([0.25, 3.0, 0.25, 0.25, 0.25])
    values = np.asarray(jax.jit(jax.vmap(delta))(noise, rate, jnp.full(5, 10)))
    assert values.dtype == np.float64
    eager = [ProjectedNoisySGD(0.25, 1.0, 5.0, 10, smoothness=1.0), ProjectedNoisySGD(3.0, 1.0, 5.0, 10)]
    # A rate above 2 / smoothness leaves the bounds that do not need convexity.
    expected = [float(stopped_delta(sgd, np.full(5, 0.5))[0]) for sgd in eager]
    assert values[:2] == pytest.approx(expected, rel=1e-14)
    assert values[2:].tolist() == [1, 1, 1]


def test_traced_values_that_break_a_precondition_promise_nothing():
    def both(noise, steps):
        sgd = ProjectedNoisySGD(0.1, 1.0, noise, steps, smoothness=1.0)
        return stopped_rdp(sgd, [2.0, 9.0], method="feldman"), stopped_rdp(sgd, [2.0, 9.0])

    run = jax.jit(both)
    feldman, moments = run(3.0, 9.0)
    assert np.isinf(feldman).tolist() == [False, True]
    assert np.isfinite(np.asarray(moments)).all()
    assert np.isinf(run(3.0, 2.0)[0]).all()
    assert np.isinf(np.asarray(run(0.0, 9.0))).all()
    fast = jax.jit(lambda r: stopped_rdp(ProjectedNoisySGD(r, 1.0, 3.0, 9.0, smoothness=1.0), [2.0, 9.0]))
    assert np.isinf(np.asarray(fast(2.5))).all()


SMOOTH = ProjectedNoisySGD(0.1, 1.0, 3.0, 100, smoothness=1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ProjectedNoisySGD(0.0, 1.0, 3.0, 100), ["learning_rate"]),
        (lambda: ProjectedNoisySGD(0.1, -1.0, 3.0, 100), ["lipschitz", "-1"]),
        (lambda: ProjectedNoisySGD(0.1, 1.0, -3.0, 100), ["noise", "-3"]),
        (lambda: ProjectedNoisySGD(0.1, 1.0, 3.0, 0), ["steps", "at least 1"]),
        (lambda: ProjectedNoisySGD(0.1, 1.0, 3.0, 10, diameter=-1.0), ["diameter"]),
        (lambda: stopped_delta(ProjectedNoisySGD(0.1, 1.0, 3.0, 9), 1.0, method="feldman"), ["smoothness", "convex"]),
        (
            lambda: stopped_delta(ProjectedNoisySGD(0.5, 1.0, 3.0, 9, smoothness=5.0), 1.0, method="renyi"),
            ["learning_rate", "0.4"],
        ),
        (
            lambda: stopped_epsilon(ProjectedNoisySGD(0.5, 1.0, 3.0, 2, smoothness=1.0), 0.1, method="feldman"),
            ["steps", "3", "renyi"],
        ),
        (lambda: stopped_rdp(SMOOTH, [2.0, 3.0], method="feldman"), ["orders", "2.67", "noise^2"]),
        (lambda: stopped_rdp(SMOOTH, [1.0]), ["orders", "above 1"]),
        (lambda: stopped_delta(SMOOTH, 1.0, method="magic"), ["method", "magic", "shifted"]),
        (lambda: stopped_delta(SMOOTH, -1.0), ["epsilon"]),
        (lambda: stopped_epsilon(SMOOTH, 2.0), ["delta"]),
        (lambda: last_iterate_delta(SMOOTH, 1.0, position=101.0), ["position", "101", "100"]),
        (lambda: last_iterate_rdp(ProjectedNoisySGD(0.1, 1.0, 3.0, 9), [2.0]), ["smoothness"]),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_highest_order_meets_its_condition():
    lipschitz, noise = np.array([1.0, 1.0, 2.0, 1e-3]), np.array([5.0, 3.0, 0.1, 7.0])
    order = highest_order(lipschitz, noise)
    condition = 2 * order * (order - 1) * lipschitz**2
    assert np.all(condition <= noise**2)
    assert condition == pytest.approx(noise**2, rel=1e-6)
