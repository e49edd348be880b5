"""Tests of moments, and of characteristic functions without linear parts, in float32: each bound is an inequality."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.single import in_single
from helpers.thorough import draws, program

from jaxacct.mechanisms import SubsampledGaussianPair
from jaxacct.mechanisms.pair import careful_moments, law_of
from jaxacct.numerics.arithmetic import FLOAT32
from jaxacct.saddlepoint.contour import BLOCK, FREQUENCIES, TILE, _careful_piece, _error_of_sums

U = FLOAT32.roundoff


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


# ----------------------------------------------------------------------------------------------------
# In float32, beside the same sums over the same places in 64 bits: nodes that round, weights, and linear parts
# ----------------------------------------------------------------------------------------------------

KINDS = [(1.1, 0.01, True, 3.0), (0.7, 1e-3, False, 8.0), (3.0, 0.4, True, 1.5), (0.5, 1e-4, True, 2.0)]


@in_single
def of_law(s, q, removes, order, spacing):
    """The nodes, their moments with errors, and the sums of one piece with their errors."""
    law = law_of(SubsampledGaussianPair(s, q, removes > 0))
    scan = law.scan()
    known = careful_moments(scan, order, law.roundings(scan))
    nothing = jnp.zeros((2, FREQUENCIES))
    sums, spread = _careful_piece(law, scan, known, order, spacing, jnp.int32(BLOCK // TILE), nothing)
    w = spacing * jnp.arange(1.0, BLOCK + 1)
    error = _error_of_sums(w, jnp.append(spread, known.slope_error))
    return scan, known, sums[:, :BLOCK], w, error


def truth(s, q, removes, places):
    """Losses, and logs of P's masses but for a constant, in 64 bits."""
    s, q = np.longdouble(s), np.longdouble(q)
    z = places
    v = (z - 0.5 / s) / s
    ratio = np.log1p(q * np.expm1(v))
    return (ratio if removes else -ratio), -z * z / 2 + (ratio if removes else 0)


@pytest.mark.parametrize(("s", "q", "removes", "order"), KINDS)
def test_float32_errs_by_no_more_than_it_says(s, q, removes, order):
    s, q, order = (np.float32(value) for value in (s, q, order))
    scan, known, sums, w, error = of_law(s, q, removes, order, np.float32(2.0**-4 / max(order, 1)))
    places = scan.places.astype(np.longdouble)
    steps = places / (places[1] - places[0])
    assert np.all(steps * 2 == np.round(steps * 2)), "nodes that round err in the first order"
    losses, logs = truth(s, q, removes, places)
    logs = logs + np.log(np.longdouble(places[1] - places[0])) - np.log(2 * np.pi) / 2
    mass = np.exp(logs)
    # The moment less 1 as the sum of terms of one sign that it is, as E_P[e^-Y] is 1 of the law and not of nodes.
    t = np.longdouble(order)
    phi = lambda x: np.where(np.abs(x) < 0.1, sum(x**n / math.factorial(n) for n in range(2, 16)), np.expm1(x) - x)  # noqa: E731
    value = np.log1p(np.sum(mass * (phi(t * losses) + t * phi(-losses))))
    slope = np.sum(mass * (losses * np.expm1(t * losses) + phi(-losses))) / np.exp(value)
    assert abs(known.moments.value - value) <= known.value_error < 3e-4 * value
    assert abs(known.moments.slope - slope) <= known.slope_error < 3e-4 * slope
    weights = np.exp(logs + t * losses - value)
    angles = w[:, None] * (losses - np.longdouble(known.moments.slope))
    real = np.sum(weights * -2 * np.sin(angles / 2) ** 2, axis=1)
    # With the linear part, which the sums in float32 leave out: it is within the slope's error.
    imaginary = np.sum(weights * np.sin(angles), axis=1)
    off = np.hypot((sums[0] - real).astype(float), (sums[1] - imaginary).astype(float))
    assert np.all(off <= error)
    # Of second order: where angles are small, far below some units of them.
    spread = np.sum(weights * np.abs(losses - slope))
    assert np.all(error[:2] < w[:2] * (2.0 * known.slope_error + 600 * U * spread))


def test_moments_move_by_no_more_than_is_said():
    """Where losses and masses are off by all that they may be, all on one side."""

    @in_single
    def moved(s, q, order, side):
        law = law_of(SubsampledGaussianPair(s, q, True))
        scan, told = law.scan(), law.roundings(law.scan())
        at = careful_moments(scan, order, told)
        off = side * U * (told.loss * jnp.abs(scan.losses) + told.shift)
        moved = scan._replace(losses=scan.losses + off, log_p=scan.log_p + side * U * told.mass)
        return careful_moments(moved, order, told).moments, at

    for side in (-0.9, 0.9):
        found, at = moved(np.float32(1.1), np.float32(0.01), np.float32(3.0), np.float32(side))
        assert abs(found.value - at.moments.value) <= 2 * at.value_error
        # So bounds in a unit that is 32 times too small would be broken.
        assert abs(found.value - at.moments.value) >= 0.05 * at.value_error
        assert abs(found.slope - at.moments.slope) <= 2 * at.slope_error
