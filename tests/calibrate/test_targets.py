"""Every setting keeps its budget by either accountant, is near the best, and says how it came about."""

import jax
import numpy as np
import pytest
from helpers.thorough import cases, program

import jaxacct as ja
from jaxacct import calibrate, saddlepoint
from jaxacct.calibrate import Status

# epsilon, delta, rate, steps: (a), and (b) what needs no noise or is no target at all.
TARGETS = np.array(
    [
        [1.0, 1e-5, 0.01, 10_000],
        [0.3, 1e-6, 0.004, 50_000],
        [8.0, 1e-5, 0.1, 300],
        [8.0, 1e-5, 0.002, 90_000],
        [0.5, 1e-3, 1.0, 7],
        [3.0, 1e-5, 0.03, 2_000],
    ]
)
OTHERS = np.array(
    [
        [1.0, 1e-5, 0.01, 0],
        [1.0, 1e-2, 1e-6, 100],
        [np.nan, 1e-5, 0.01, 100],
        [1.0, -1.0, 0.01, 100],
        [0.0, 1e-30, 1.0, 1],
    ]
)


def value_and_result(*row):
    result = calibrate.noise_multiplier(*row)
    return result.value, result


with_slopes = jax.value_and_grad(value_and_result, argnums=(0, 1, 2, 3), has_aux=True)


@pytest.fixture(scope="module")
def found():
    """Returns the results of all targets, by one program."""
    with jax.enable_x64(True):
        each = jax.vmap(calibrate.noise_multiplier)
        return jax.tree.map(np.asarray, program(each)(*np.concatenate([TARGETS, OTHERS]).T))


def epsilons(noise):
    """Returns the bounds on epsilon of the targets' runs with the given noise."""
    runs = [
        saddlepoint.epsilon(ja.PoissonSubsampledGaussian(s, q), k, d)
        for s, (_, d, q, k) in zip(noise, TARGETS, strict=True)
    ]
    return np.array([run.lower for run in runs]), np.array([run.upper for run in runs])


@pytest.mark.exhaustive
def test_a_batch_in_a_program_of_float32():
    """As a user calls it, outside any float64 scope; traced only, for what could fail is a dtype within."""
    rows = TARGETS.astype(np.float32)
    (value, _), slopes = jax.eval_shape(jax.vmap(with_slopes), *rows.T)
    assert value.dtype == np.float64
    assert {slope.dtype for slope in slopes} == {np.dtype(np.float32)}


@pytest.mark.exhaustive
def test_targets_are_met_and_nearly_least(found):
    n = len(TARGETS)
    target, noise = TARGETS[:, 0], found.value[:n]
    np.testing.assert_array_equal(found.status[:n], Status.CONVERGED)
    assert np.all(found.reached.upper[:n] <= target)
    assert np.all(found.reached.lower[:n] <= found.reached.upper[:n])
    assert np.all(epsilons(noise)[1] <= target)
    # Certified from below: with 4e-6 less noise no accountant could show the budget kept.
    assert np.all(epsilons(noise * (1 - 4e-6))[0] > target)


@pytest.mark.exhaustive
def test_the_mesh_accountant_agrees(found):
    e, d, q, k = TARGETS[0]
    at, less = (ja.PoissonSubsampledGaussian(found.value[0] * share, q) for share in (1.0, 0.99))
    assert ja.prv.epsilon(at, k, d, points=1024).lower <= e
    assert ja.prv.epsilon(less, k, d, points=1024).lower > e


@pytest.mark.exhaustive
def test_the_known_answer_of_a_peer(found):
    # dp-accounting's calibration gives 3.8132, by pessimistic rounding a little above the least.
    assert 3.8132 * (1 - 2e-4) < found.value[0] <= 3.8132


@pytest.mark.exhaustive
def test_no_noise_where_none_is_needed_and_infinite_noise_for_no_target(found):
    zero, rare, *invalid, unreached = range(len(TARGETS), len(TARGETS) + len(OTHERS))
    for i in (zero, rare):
        assert found.status[i] == Status.NOT_BINDING
        assert found.value[i] == 0
        assert found.reached.upper[i] == 0
    for i in invalid:
        assert found.status[i] >= Status.INFEASIBLE
        assert found.value[i] == np.inf
        assert found.reached.upper[i] == np.inf
    # Beyond the noises searched, whose last is proved to cost more: what is given instead is no-op noise, which costs
    # nothing.
    assert found.status[unreached] == Status.INFEASIBLE
    assert found.value[unreached] == np.inf
    assert found.reached.upper[unreached] == 0


def test_one_target_is_as_in_a_batch(found):
    alone = calibrate.noise_multiplier(*TARGETS[0])
    assert isinstance(alone.value, np.float64)
    assert alone.value == pytest.approx(found.value[0], rel=1e-9)
    assert alone.satisfied


def test_steps_are_the_most_whole_number(found):
    e, d, q, k = TARGETS[0]
    back = calibrate.steps(e, d, found.value[0], q)
    assert back.value == k
    less = calibrate.steps(e, d, found.value[0] * (1 - 1e-5), q)
    assert less.value == k - 1
    assert less.reached.upper <= e


def test_rates_invert_noises_and_end_at_one(found):
    e, d, q, k = TARGETS[0]
    back = calibrate.sampling_rate(e, d, found.value[0], k)
    assert back.value == pytest.approx(q, rel=1e-5)
    assert back.reached.upper <= e
    everyone = calibrate.sampling_rate(e, d, 500.0, 10)
    assert everyone.value == 1
    assert everyone.status == Status.NOT_BINDING


@pytest.mark.exhaustive
def test_the_mesh_takes_over_where_the_exact_accountant_fails():
    # One step of a small rate: the characteristic function does not decay.
    one = calibrate.noise_multiplier(2.0, 1e-6, 0.001, 1)
    assert one.status == Status.CONVERGED
    assert one.reached.upper <= 2.0
    less = ja.prv.epsilon(ja.PoissonSubsampledGaussian(one.value * (1 - 2e-4), 0.001), 1, 1e-6, tolerance=2e-5)
    assert less.lower > 2.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: calibrate.noise_multiplier(-1.0, 1e-5, 0.01, 10), ["epsilon", "-1"]),
        (lambda: calibrate.noise_multiplier(1.0, 2.0, 0.01, 10), ["delta", "2.0"]),
        (lambda: calibrate.noise_multiplier(1.0, 1e-5, 1.5, 10), ["sampling_rate", "1.5"]),
        (lambda: calibrate.noise_multiplier(1.0, 1e-5, 0.01, 2.5), ["steps", "2.5"]),
        (lambda: calibrate.noise_multiplier(np.ones(2), 1e-5, 0.01, 10), ["epsilon", "vmap"]),
        (lambda: calibrate.noise_multiplier(1.0, 1e-5, 0.01, 10, relation="swap"), ["relation", "swap"]),
        (lambda: calibrate.noise_multiplier(1.0, 1e-5, 0.01, 10, tolerance=0.0), ["tolerance"]),
        (lambda: calibrate.sampling_rate(1.0, 1e-5, -1.0, 10), ["noise_multiplier", "-1"]),
        (lambda: calibrate.noise_multiplier_for_advantage(1.0, 0.01, 10), ["advantage", "1.0"]),
        (lambda: calibrate.noise_multiplier_for_tpr(0.1, 0.2, 0.01, 10), ["tpr", "fpr", "0.2"]),
        (lambda: calibrate.scale(ja.Gaussian, 1.0, 1e-5, 1, least=2.0, most=1.0), ["least", "most"]),
        (lambda: calibrate.steps(0.01, 1e-5, 0.5, 1.0), ["epsilon = 0.01", "steps", "single step"]),
    ],
)
def test_messages(call, words):
    with pytest.raises(ValueError) as raised:
        call()
    assert all(word in str(raised.value) for word in words), raised.value


def schedule(scale):
    return ja.PoissonSubsampledGaussian(scale * np.array([1.2, 1.0, 0.8]), 0.01)


@pytest.mark.exhaustive
def test_mechanisms_known_by_curves_alone_are_scaled():
    """Nothing refutes a smaller scale, so it is LOOSE; it meets the budget, and a smaller one does not."""

    def make(scale):
        return ja.ZeroConcentratedDP(1 / scale)

    found = calibrate.scale(make, 1.0, 1e-5, 3)
    assert found.status == Status.LOOSE
    assert ja.epsilon(make(found.value), 3, 1e-5).upper <= 1.0
    assert ja.epsilon(make(found.value * (1 - 3e-6)), 3, 1e-5).upper > 1.0
    assert calibrate.scale(make, 1.0, 1e-5, 3, least=200.0).status == Status.NOT_BINDING
    with pytest.raises(ValueError, match="any scale up to most = 50"):
        calibrate.scale(make, 1.0, 1e-5, 3, most=50.0)


def test_a_schedule_is_scaled_as_a_whole():
    counts = np.array([3000, 2000, 1000])
    found = calibrate.scale(schedule, 2.0, 1e-5, counts)
    assert found.status == Status.CONVERGED
    assert found.reached.upper <= 2.0
    assert saddlepoint.epsilon(schedule(found.value), counts, 1e-5).lower <= 2.0
    assert saddlepoint.epsilon(schedule(found.value * (1 - 4e-6)), counts, 1e-5).lower > 2.0


@pytest.mark.exhaustive
def test_attacks_fail_as_often_as_was_asked_for():
    # The Gaussian's own trade-off: mu = Phi^-1(tpr) - Phi^-1(fpr), and advantage 2 Phi(mu/2) - 1.
    rates = cases([(0.05, 0.001), (0.99, 0.9)], [(0.9, 0.2)])
    values = np.array([calibrate.noise_multiplier_for_tpr(*rate, 1.0, 100).value for rate in rates])
    # Phi^-1(0.05) = -1.6448536, Phi^-1(0.001) = -3.0902323, Phi^-1(0.9) = 1.2815516, Phi^-1(0.2) = -0.8416212,
    # Phi^-1(0.99) = 2.3263479
    mu = np.array(cases([3.0902323 - 1.6448536, 2.3263479 - 1.2815516], [1.2815516 + 0.8416212]))
    assert np.all(values >= 10 / mu * (1 - 1e-7))
    np.testing.assert_allclose(values, 10 / mu, rtol=1e-4)
    advantage = calibrate.noise_multiplier_for_advantage(0.5, 1.0, 100)
    # Phi^-1(0.75) = 0.6744897502
    assert advantage.value == pytest.approx(10 / (2 * 0.6744897502), rel=1e-5)
    assert advantage.reached.upper <= 0.5


def one_after_the_other(*columns):
    return [with_slopes(*map(float, row)) for row in zip(*columns, strict=True)]


def at_once(*columns):
    (_, _), slopes = jax.jit(jax.vmap(with_slopes))(*columns)
    return [(None, row) for row in zip(*slopes, strict=True)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", cases([one_after_the_other], [at_once]))
def test_derivatives_of_the_least_noise(way):
    """By the implicit function, beside differences of searches; 0 where no noise is needed, NaN for no target."""
    rows = np.concatenate([TARGETS[cases([0, 3], [1, 2, 4, 5])], OTHERS[1:3]])
    with jax.enable_x64(True):
        slopes = np.array([row for _, row in way(*rows.T)])
    for i, slope in enumerate(slopes[0]):
        at, moved = TARGETS[0], 1e-3 * TARGETS[0, i] * (np.arange(4) == i)
        up, down = (calibrate.noise_multiplier(*row, tolerance=1e-10).value for row in (at + moved, at - moved))
        # Differences of 1e-3 err by their square, some twenty times.
        assert slope == pytest.approx((up - down) / (2 * moved[i]), rel=2e-4)
    assert np.all(np.isfinite(slopes[:-2]))
    np.testing.assert_array_equal(slopes[-2], 0.0)
    assert np.all(np.isnan(slopes[-1]))


@pytest.mark.exhaustive
def test_a_batch_of_derivatives_is_lowered_in_a_program_of_float32():
    def least(epsilon, steps):
        return calibrate.noise_multiplier(epsilon, 1e-5, 0.01, steps).value

    each = jax.vmap(jax.value_and_grad(least, argnums=(0, 1)))
    assert jax.jit(each).lower(np.array([1.0, 2.0]), np.array([100.0, 1000.0])).as_text()


@pytest.mark.exhaustive
def test_a_group_keeps_its_budget_and_has_the_least_noise():
    """What is found for groups of 8 is certified for them, and a little less noise is refuted."""
    found = calibrate.noise_multiplier(3.0, 1e-5, 0.01, 1000, group=8)
    assert found.status == Status.CONVERGED

    def bounds(noise):
        return ja.epsilon(ja.group(ja.PoissonSubsampledGaussian(noise, 0.01), 8), 1000, 1e-5)

    assert bounds(found.value).upper <= 3.0
    assert bounds(found.value * (1 - 2e-6)).lower > 3.0


def test_a_group_in_every_batch_needs_as_many_times_the_noise():
    one, four = (calibrate.noise_multiplier(1.0, 1e-5, 1.0, 10, group=size).value for size in (1, 4))
    assert four == pytest.approx(4 * one, rel=2e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1, 3, 8])
def test_rates_and_steps_of_groups(size):
    noise = float(calibrate.noise_multiplier(3.0, 1e-5, 0.01, 1000, group=size).value)
    assert calibrate.steps(3.0, 1e-5, noise, 0.01, group=size).value == 1000
    assert calibrate.sampling_rate(3.0, 1e-5, noise, 1000, group=size).value == pytest.approx(0.01, rel=2e-6)
    # What delta covers by the sampling alone: none of the group is ever in a batch.
    assert calibrate.steps(0.0, 1e-2, 0.0, 1e-4, group=size).value == 100 // size
    rate = float(calibrate.sampling_rate(0.0, 1e-2, 0.0, 10, group=size).value)
    assert 0.999e-2 < -np.expm1(10 * size * np.log1p(-rate)) <= 1e-2


@pytest.mark.parametrize(("group", "kind"), [(0, ValueError), (513, ValueError), (1.5, TypeError), (True, TypeError)])
def test_groups_that_are_none(group, kind):
    said = "True of type bool: give a whole" if group is True else ".*the number of examples that change together"
    with pytest.raises(kind, match=f"group = {said}"):
        calibrate.noise_multiplier(1.0, 1e-5, 0.01, 100, group=group)
