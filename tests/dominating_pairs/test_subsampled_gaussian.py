"""What a pair claims of itself, against 40-digit arithmetic: every error bound is an inequality."""

import jax
import mpmath
import numpy as np
import pytest
from helpers.oracle import PI, integral
from helpers.thorough import program

from jaxacct.dominating_pairs import SubsampledGaussianPair
from jaxacct.dominating_pairs.normal import log_upper_tail, normal_cells

# Each as one program, as accountants compile them.
normal_cells, log_upper_tail = program(normal_cells), program(log_upper_tail)
cells_of = program(lambda pair, boundaries: pair.cell_masses(boundaries))
error_of = program(lambda pair, loss: pair.boundary_error(loss))
tail_of = program(lambda pair, order, loss: pair.log_tail(order, loss))

mpmath.mp.dps = 40
SETTINGS = [(1.0, 0.01), (0.3, 0.2), (20.0, 1e-4), (2.0, 1.0), (0.7, 0.999)]


def exact_loss(noise, rate, x):
    noise, rate, x = map(mpmath.mpf, (noise, rate, x))
    return mpmath.log(1 + rate * mpmath.expm1((2 * x - 1) / (2 * noise**2)))


def exact_threshold(noise, rate, log_ratio):
    """The x at which the log ratio is ``log_ratio``, or -inf."""
    noise, rate = mpmath.mpf(noise), mpmath.mpf(rate)
    excess = mpmath.expm1(mpmath.mpf(log_ratio)) + rate
    return noise**2 * mpmath.log(excess / rate) + mpmath.mpf("0.5") if excess > 0 else -mpmath.inf


def exact_mass(low, high, center, scale):
    low, high = (mpmath.mpf(v) - center for v in (low, high))
    if low > 0:
        low, high = -high, -low
    return mpmath.ncdf(high / scale) - mpmath.ncdf(low / scale)


def test_normal_cells_are_right_to_the_error_they_state():
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        for scale in (0.3, 1.0, 250.0):
            for center in (0.0, 1.0):
                x = np.sort(
                    np.concatenate([rng.normal(size=40) * 6 * scale, 2.5 * scale + 1e-7 * rng.random(20) * scale])
                )
                x = np.concatenate([[-np.inf], x, [np.inf]])
                masses, errors = normal_cells(x, center, scale)
                for i, (mass, error) in enumerate(zip(np.asarray(masses), np.asarray(errors), strict=True)):
                    truth = exact_mass(x[i], x[i + 1], center, mpmath.mpf(scale))
                    assert abs(mpmath.mpf(float(mass)) - truth) <= mpmath.mpf(float(error)) + mpmath.mpf(10) ** -300
                    assert error <= 1e-12 * max(float(truth), 1e-3)


def test_upper_tail_is_one():
    with jax.enable_x64(True):
        for z in np.concatenate([np.linspace(-3, 8, 45), [20.0, 100.0, 1e4]]):
            truth = mpmath.log(mpmath.erfc(mpmath.mpf(z) / mpmath.sqrt(2)) / 2)
            bound = float(log_upper_tail(z))
            assert truth <= bound
            assert bound <= truth + 0.7


@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize(("noise", "rate"), SETTINGS)
def test_cell_masses_and_their_edges(noise, rate, removes):
    pair = SubsampledGaussianPair(noise, rate, removes)
    rng = np.random.default_rng(5)
    with jax.enable_x64(True):
        x = np.sort(rng.normal(size=30) * 4 * noise)
        losses = np.sort([float(exact_loss(noise, rate, v)) * (1 if removes else -1) for v in x])
        losses = np.unique(losses)
        cells = jax.tree.map(np.asarray, cells_of(pair, losses))
        reach = mpmath.mpf(float(error_of(pair, np.max(np.abs(losses)))))
        assert reach < 1e-11
        for i in range(len(losses) - 1):
            # The masses are those of a cell whose edges are within ``reach`` of the ones asked for.
            wide = (losses[i] - reach, losses[i + 1] + reach)
            narrow = (losses[i] + reach, losses[i + 1] - reach)
            for (low, high), side in ((wide, 1), (narrow, -1)):
                ends = [exact_threshold(noise, rate, v if removes else -v) for v in (low, high)]
                left, right = ends if removes else ends[::-1]
                if right < left:
                    continue
                base = exact_mass(left, right, 0, mpmath.mpf(noise))
                mixture = (1 - mpmath.mpf(rate)) * base + rate * exact_mass(left, right, 1, mpmath.mpf(noise))
                p, q = (mixture, base) if removes else (base, mixture)
                slack = mpmath.mpf(10) ** -300
                assert side * (p + side * mpmath.mpf(float(cells.p_error[i])) - float(cells.p[i])) >= -slack
                assert side * (q + side * mpmath.mpf(float(cells.q_error[i])) - float(cells.q[i])) >= -slack


@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize(("noise", "rate"), SETTINGS)
def test_tail_bounds_the_tilted_mass_above_a_loss(noise, rate, removes):
    pair = SubsampledGaussianPair(noise, rate, removes)
    sign = 1 if removes else -1
    with jax.enable_x64(True):
        for order in (0.5, 3.0):
            for deviations in (1.0, 3.0):
                edge = deviations * noise + (1.0 if removes else 0.0)
                loss = sign * exact_loss(noise, rate, sign * edge)

                def density(x, order=order):
                    x, s, q = sign * x, np.longdouble(noise), np.longdouble(rate)
                    base = np.exp(-((x / s) ** 2) / 2) / (s * np.sqrt(2 * PI))
                    ratio = 1 + q * np.expm1((2 * x - 1) / (2 * s**2))
                    return base * ratio ** (order + 1 if removes else -order)

                truth = integral(density, [edge, (40 + (order + 1) / noise) * noise + 1], 100)
                bound = float(tail_of(pair, order, float(loss)))
                assert np.log(truth) <= bound + 1e-12


@pytest.mark.parametrize(("noise", "rate"), [(4.2, 1.2e-3), (3.1, 2.2e-4), (1.0, 0.01), (0.5, 0.1), (20.0, 1e-4)])
def test_tail_of_a_removal_is_close_at_large_orders(noise, rate):
    """Windows of small losses are cut by it, and what it claims beyond them is paid in delta.

    Of a whole order t the mass is a sum: of 0 <= k <= t + 1, by the binomial theorem, each a normal tail.
    """
    pair = SubsampledGaussianPair(noise, rate, True)
    with jax.enable_x64(True):
        for order in (0.0, 2.0, 16.0, 64.0, 400.0):
            for deviations in (1.0, 5.0, 9.0):
                edge = mpmath.mpf(deviations * noise)
                loss = float(exact_loss(noise, rate, edge))
                edge = exact_threshold(noise, rate, loss)

                n, s, q = int(order) + 1, mpmath.mpf(noise), mpmath.mpf(rate)
                terms = [
                    mpmath.binomial(n, k) * (1 - q) ** (n - k) * q**k
                    * mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * s**2)) * mpmath.ncdf((k - edge) / s)
                    for k in range(n + 1)
                ]  # fmt: skip
                truth = mpmath.log(mpmath.fsum(terms))
                bound = float(tail_of(pair, order, loss))
                assert truth <= bound + 1e-12
                assert bound <= truth + 1.0


def test_invalid_fields_make_no_valid_pair():
    with jax.enable_x64(True):
        for noise, rate in [
            (0.0, 0.1),
            (-1.0, 0.1),
            (np.nan, 0.1),
            (np.inf, 0.1),
            (1.0, 0.0),
            (1.0, 1.1),
            (1.0, np.nan),
        ]:
            assert not SubsampledGaussianPair(noise, rate, True).is_valid()
        assert SubsampledGaussianPair(1.0, 1.0, False).is_valid()
