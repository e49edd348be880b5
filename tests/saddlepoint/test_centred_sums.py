"""Tests of characteristic functions whose linear part is taken out, as pairs do: each error bound is an inequality."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import draws, program

from jaxacct.dominating_pairs import SubsampledGaussianPair
from jaxacct.mechanisms.pair import Nodes, law_of, moments_and_errors
from jaxacct.numerics.arithmetic import PAIR, in_pairs
from jaxacct.saddlepoint.contour import BLOCK, NODE_ROUNDING, Transforms, _to_the_steps

U = PAIR.roundoff
STEPS = 1e4


@program
def nodes_of(s, q, removes, low, step):
    return law_of(SubsampledGaussianPair(s, q, removes)).nodes(low, step)


@program
def of_rule(s, q, removes, order, low, step):
    """Slope and value by a rule of wide steps, and by the scan; the bound on how far the former is off."""
    law = law_of(SubsampledGaussianPair(s, q, removes))
    scan, wide = law.scan(), law.nodes(low, step)

    def slope(nodes):
        logs = nodes.log_p + order * nodes.losses
        return jnp.sum(jax.nn.softmax(logs) * nodes.losses), jax.nn.logsumexp(logs)

    fine, value = slope(scan)
    apart = jnp.maximum(step, scan.places[1] - scan.places[0])
    return slope(wide)[0] - fine, law.slope_error(order, scan, value, apart), law.largest_order()


def test_the_slope_s_quadrature_error_is_bounded():
    random, seen, told = np.random.default_rng(1), 0, 0
    with jax.enable_x64(True):
        for _ in range(draws(60, 600)):
            s, q = np.exp(random.uniform(np.log([0.5, 1e-3]), np.log([4.0, 0.5])))
            removes, order = bool(random.integers(2)), random.uniform(0.1, 4)
            step = random.uniform(0.5, 1.6) * min(s, 1.0)
            off, bound, largest = map(float, of_rule(s, q, removes, order, -100 * step - random.uniform(0, step), step))
            if order < largest:
                assert abs(off) <= bound + 1e-14
                seen, told = seen + (abs(off) > 1e-12), told + (bound < 1)
    assert seen > 10  # there was something to bound
    assert told > 10


@pytest.mark.parametrize(("s", "q", "order"), [(1.84, 1.9e-3, 33.0), (2.23, 1.4e-3, 51.0)])
def test_it_is_bounded_closely_where_large_losses_are_rare(s, q, order):
    # A quarter of the order farther out moments are e^20 and more times as large.
    with jax.enable_x64(True):
        for step in s * np.array([0.3, 0.5, 0.6, 0.8, 1.0, 1.2]):
            off, bound, _ = map(float, of_rule(s, q, True, order, -50.3 * step, step))
            assert abs(off) <= bound + 1e-14
            assert bound < 1e-12 or step > 0.3 * s


@pytest.fixture(scope="module")
def law():
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, nodes_of(1.1, 0.01, True, -10.0, 30 / 256))


@pytest.fixture(scope="module")
def with_errors():
    with jax.enable_x64(True), in_pairs():
        ask = jax.jit(moments_and_errors)
        ask(Nodes(*(np.zeros(n) if n else np.float64(0) for n in (256, 256, 256, 0, 0, 256))), np.float64(1))
        return ask


def test_moments_move_by_no_more_than_is_said(law, with_errors):
    random, largest = np.random.default_rng(2), 0.0
    with jax.enable_x64(True), in_pairs():
        for _ in range(draws(40, 400)):
            order = random.uniform(0.2, 6.0)
            found, of_value, of_slope = with_errors(law, order)
            # Up or down all alike, and each as it likes.
            sides = random.choice([-1.0, 1.0], (2, 256)) if random.integers(2) else np.ones((2, 1))
            log_p, losses = (x * (1 + 16 * U * side) for x, side in zip((law.log_p, law.losses), sides, strict=True))
            moved, *_ = with_errors(law._replace(log_p=log_p, losses=losses), order)
            off = np.abs([moved.value - found.value, moved.slope - found.slope])
            assert np.all(off <= [of_value, of_slope])
            largest = max(largest, float(off[0] / of_value))
    assert largest > 0.2  # and not far more


@pytest.mark.parametrize("spacing", [0.002, 0.02, 0.2])
def test_weights_that_err_by_all_they_may_leave_the_transform_within_its_bound(law, spacing):
    order, random = 3.0, np.random.default_rng(3)
    logs = (law.log_p + order * law.losses).astype(np.longdouble)
    exact = np.exp(logs - logs.max())
    exact /= exact.sum()
    slope = np.sum(exact * law.losses)
    deviations = law.losses - slope
    frequencies = np.arange(1, BLOCK + 1)
    with jax.enable_x64(True), in_pairs():
        ask = jax.jit(_to_the_steps)
        aligned = np.sign(deviations)
        for sides in (aligned, random.choice([-1.0, 1.0], 256), np.ones(256)):
            weights = exact * (1 + (NODE_ROUNDING - 20) * U * sides)
            angles = spacing * deviations
            turned = frequencies[:, None] * angles
            turns = -2 * np.sin(turned / 2) ** 2 + 1j * np.sin(turned)
            sums = turns @ weights
            sizes = np.abs(deviations) + 0.1 * np.abs(law.losses)
            spread = [np.sum(weights * part) for part in (sizes, sizes * np.abs(deviations), angles)]
            given = np.array([*spread, 0.0], float), 0.0, STEPS
            both = np.stack([sums.real, sums.imag]).astype(float)
            found = ask(Transforms(both, *given), spacing * frequencies, spacing)
            log_modulus, phase, error = (np.asarray(part, np.longdouble) for part in found)
            true = STEPS * np.log1p(turns @ exact)
            off = np.abs(np.expm1(log_modulus - true.real + 1j * (phase - true.imag)))
            assert np.all(off <= np.expm1(error) + 1e-14)
            plain = STEPS * NODE_ROUNDING * U * spacing * frequencies * spread[0]
            assert np.all(error[:2] < 0.5 * plain[:2])
            shift = np.abs(STEPS * frequencies * spread[2])
            if sides is aligned:  # the bound would not hold of the linear part as it is
                assert np.all(shift[:2] > 2 * error[:2])
