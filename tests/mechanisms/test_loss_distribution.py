"""Pairs given by the law of their loss, against the closed forms of a Laplace mechanism and of a cut Gaussian."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import program
from jax.scipy.special import ndtr

from jaxacct import rdp
from jaxacct.mechanisms import PrivacyLoss
from jaxacct.numerics.precision import as_float64, kernel

cells_of = program(lambda pair, boundaries: pair.cell_masses(boundaries))

mp.mp.dps = 40


# Laplace noise of scale b, moved by 1: the loss is (2x - 1)/b, cut off at 1/b, with masses 1/2 and e^(-1/b)/2 there.
def laplace_cdf_p(y, b):
    return jnp.where(y < -1 / b, 0.0, jnp.where(y >= 1 / b, 1.0, jnp.exp((y - 1 / b) / 2) / 2))


def laplace_survival_p(y, b):
    return jnp.where(y < -1 / b, 1.0, jnp.where(y >= 1 / b, 0.0, 1 - jnp.exp((y - 1 / b) / 2) / 2))


def laplace_survival_q(y, b):
    return jnp.where(y < -1 / b, 1.0, jnp.where(y >= 1 / b, 0.0, jnp.exp(-(y + 1 / b) / 2) / 2))


def laplace_cdf_q(y, b):
    return 1 - laplace_survival_q(y, b)


def laplace(b, survival=True):
    return PrivacyLoss(
        laplace_cdf_p, laplace_cdf_q, lowest=-1 / b, highest=1 / b, parameters=b,
        survival_p=laplace_survival_p if survival else None, survival_q=laplace_survival_q if survival else None,
        atoms=(-1 / b, 1 / b),
    )  # fmt: skip


# A Gaussian of mean m: the loss is N(m^2/2, m^2) under P and N(-m^2/2, m^2) under Q; cut at ``cut`` deviations.
def gaussian_cdf_p(y, m):
    return ndtr((y - m**2 / 2) / m)


def gaussian_cdf_q(y, m):
    return ndtr((y + m**2 / 2) / m)


def gaussian_survival_p(y, m):
    return ndtr(-(y - m**2 / 2) / m) - ndtr(-CUT)


def gaussian_survival_q(y, m):
    return ndtr(-(y + m**2 / 2) / m) - ndtr(-(CUT + m))


CUT = 12.0


def gaussian(m):
    return PrivacyLoss(
        gaussian_cdf_p, gaussian_cdf_q, lowest=m**2 / 2 - CUT * m, highest=m**2 / 2 + CUT * m, parameters=m,
        infinite_mass=float(mp.ncdf(-CUT)), survival_p=gaussian_survival_p, survival_q=gaussian_survival_q,
        value_error=1e-14,
    )  # fmt: skip


def exact_laplace(b):
    """P(Y <= y), or Q(Y <= y) where the sign is negative, exactly for the double b."""
    edge = 1 / mp.mpf(b)

    def below(y, sign):
        if y < -edge:
            return mp.mpf(0)
        if y >= edge:
            return mp.mpf(1)
        return mp.exp((y - edge) / 2) / 2 if sign > 0 else 1 - mp.exp(-(y + edge) / 2) / 2

    return below


@pytest.mark.parametrize("survival", [True, False])
@pytest.mark.parametrize("b", [0.2, 3.0])
def test_cell_masses_are_right_to_the_error_they_state(b, survival):
    below = exact_laplace(b)
    inner = np.linspace(-1 / b, 1 / b, 30)[1:-1]
    boundaries = np.concatenate([[-np.inf, -2 / b], inner, [2 / b, np.inf]])
    with jax.enable_x64(True):
        (pair,) = laplace(b, survival).dominating_pairs()
        cells = jax.tree.map(np.asarray, cells_of(pair, boundaries))
    for i in range(len(boundaries) - 1):
        for mass, error, sign in ((cells.p, cells.p_error, 1), (cells.q, cells.q_error, -1)):
            truth = below(boundaries[i + 1], sign) - below(boundaries[i], sign)
            assert abs(mp.mpf(float(mass[i])) - truth) <= mp.mpf(float(error[i]))
            assert error[i] <= 3e-15
    if survival:
        # The upper tail of Q is known to its own digits.
        assert cells.q_error[-3] <= 2e-14 * np.exp(-1 / b)


def test_cells_bracket_the_hockey_stick_divergence():
    b = 0.7
    mesh = np.linspace(-1.5, 1.5, 3001)
    with jax.enable_x64(True):
        (pair,) = laplace(b).dominating_pairs()
        boundaries = np.concatenate([[-np.inf], mesh, [np.inf]])
        cells = jax.tree.map(np.asarray, cells_of(pair, boundaries))
    for epsilon in (0.0, 0.5, 1.2):
        truth = -mp.expm1((epsilon - 1 / mp.mpf(b)) / 2)
        lower = np.maximum(cells.p - np.exp(epsilon) * cells.q, 0).sum()
        upper = cells.p[-1] + np.sum(cells.p[:-1] * np.maximum(-np.expm1(epsilon - mesh), 0))
        assert lower - 1e-12 <= truth <= upper + 1e-12
        assert upper - lower < 2e-3


@pytest.mark.parametrize("b", [0.05, 0.7, 30.0])
def test_laplace_divergence_is_bounded_closely(b):
    orders = np.array([1.01, 1.5, 2.0, 8.0, 64.0, 500.0])
    # Without survival functions Q's mass at the largest losses is known to 1e-15 only, and e^20 times that tells.
    for survival, gap in ((True, 1e-6), (False, 1e-4)):
        values = rdp.curve(laplace(b, survival), orders)
        for a, value in zip(map(mp.mpf, orders), values, strict=True):
            x = 1 / mp.mpf(b)  # Mironov (2017), Table II
            truth = mp.log(a / (2 * a - 1) * mp.exp((a - 1) * x) + (a - 1) / (2 * a - 1) * mp.exp(-a * x)) / (a - 1)
            assert truth <= value
            # The sums of 4096 rounded masses stand out where the cumulant is small.
            assert value <= float(truth) * (1 + gap) + 2e-11 / float(a - 1)


def test_cut_gaussian():
    m = 1.3
    with jax.enable_x64(True):
        (pair,) = gaussian(m).dominating_pairs()
        orders = np.array([0.5, 2.0, 5.0])
        seen = program(lambda: (pair.is_valid(), pair.infinite_mass(), pair.central_loss(), pair.cumulant(orders)))
        valid, infinite, central, found = map(np.asarray, seen())
        assert valid
        assert infinite == pytest.approx(float(mp.ncdf(-CUT)), rel=1e-12)
        assert central == pytest.approx(m**2 / 2)
        for t, value in zip(orders, found, strict=True):
            reach = mp.mpf(CUT) - t * m
            truth = t * (t + 1) * mp.mpf(m) ** 2 / 2 + mp.log(mp.ncdf(reach))
            assert truth <= value <= truth * (1 + 1e-4)


def test_mass_above_the_highest_loss_must_be_counted():
    with jax.enable_x64(True):
        lost = PrivacyLoss(gaussian_cdf_p, gaussian_cdf_q, lowest=-10.0, highest=3.0, parameters=1.0)
        assert not lost.dominating_pairs()[0].is_valid()
    assert np.all(np.isinf(rdp.curve(lost, [2.0])))


@pytest.mark.exhaustive
def test_reverse_is_the_other_direction():
    forward, backward = laplace(2.0), laplace(3.0)
    mechanism = PrivacyLoss(
        laplace_cdf_p, laplace_cdf_q, lowest=-0.5, highest=0.5, parameters=2.0, reverse=backward,
        survival_p=laplace_survival_p, survival_q=laplace_survival_q,
    )  # fmt: skip
    curves = {name: rdp.curve(mechanism, [3.0], relation=name) for name in mechanism.relations}
    np.testing.assert_allclose(curves["remove"], rdp.curve(forward, [3.0]))
    np.testing.assert_allclose(curves["add"], rdp.curve(backward, [3.0]))
    assert curves["add_or_remove"] == curves["replace"] == max(curves["add"], curves["remove"])


def test_validation_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"highest = inf is out of range: give a finite number"):
        PrivacyLoss(laplace_cdf_p, laplace_cdf_q, lowest=0.0, highest=np.inf)
    with pytest.raises(ValueError, match=r"lowest = 2.0 is not below highest = 1.0"):
        PrivacyLoss(laplace_cdf_p, laplace_cdf_q, lowest=2.0, highest=1.0)
    with pytest.raises(ValueError, match=r"infinite_mass = 1.5 is not a probability"):
        PrivacyLoss(laplace_cdf_p, laplace_cdf_q, lowest=0.0, highest=1.0, infinite_mass=1.5)


@pytest.mark.exhaustive
def test_one_compilation_serves_all_parameters_inside_a_float32_trace():
    traces = []

    def everything(b):
        traces.append(b)
        (pair,) = laplace(as_float64(b)).dominating_pairs()
        cells = pair.cell_masses(jnp.asarray([-np.inf, -0.2, 0.1, np.inf], jnp.float64))
        return cells, pair.cumulant(2.0), pair.central_loss(), pair.is_valid()

    run = kernel(everything)
    jitted = jax.jit(lambda b: run(b))
    scales = np.array([2.0, 4.0], np.float32)
    batch = jax.jit(jax.vmap(lambda b: run(b)))(scales)
    for i, b in enumerate(scales):
        found = jitted(b)
        for leaf, row in zip(jax.tree.leaves(found), jax.tree.leaves(batch), strict=True):
            assert leaf.dtype in (np.float64, np.bool_)
            np.testing.assert_allclose(leaf, row[i], rtol=1e-12)
    assert len(traces) == 1, "a batch is of the program that single numbers have"
