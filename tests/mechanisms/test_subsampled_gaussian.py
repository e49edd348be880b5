"""Tests of the claims of the subsampled Gaussian pair, against 40-digit arithmetic: error bounds are inequalities."""

import jax
import mpmath
import numpy as np
import pytest
from helpers.normal import exact_mass
from helpers.thorough import program

from jaxacct.mechanisms import SubsampledGaussianPair
from jaxacct.mechanisms.gaussian import _log_ratio

# Each as one program, as accountants compile them.
cells_of = program(lambda pair, boundaries: pair.cell_masses(boundaries))
error_of = program(lambda pair, loss: pair.boundary_error(loss))

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


@pytest.mark.first_tier("1.0-0.01-False", "20.0-0.0001-False", "2.0-1.0-False", "0.7-0.999-True")
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


@pytest.mark.parametrize(
    ("noise", "rate"), [(0.625242, 1.0), (0.48966670141, 0.1), (1.1, 0.01), (11.3, 0.5), (0.3, 1e-6)]
)
def test_the_log_ratio_is_right_to_units_of_itself_and_of_its_terms(noise, rate):
    """Its zero is at 1/(2 s), where it is the difference of two terms of 1/(2 s^2)."""
    with jax.enable_x64(True):
        zero = 0.5 / noise
        z = np.concatenate([np.linspace(-9, 12, 22), zero + zero * np.array([-0.1, -1e-3, 1e-6, 1e-3, 0.01, 0.1])])
        found = np.asarray(_log_ratio(*(jax.numpy.asarray(v) for v in (noise, rate, z))))
    for value, at in zip(found, z, strict=True):
        truth = exact_loss(noise, rate, mpmath.mpf(float(at)) * mpmath.mpf(noise))
        assert abs(mpmath.mpf(float(value)) - truth) <= mpmath.mpf(2) ** -53 * (16 * abs(truth) + noise**-2), at
