"""Tests of the claims of pairs of shifted noise, against 40-digit arithmetic: every error bound is an inequality."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers.thorough import draws, program

from jaxacct.mechanisms import (
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSubsampledGaussian,
    PoissonSubsampledLaplace,
    ShiftedNoisePair,
    SubsampledGaussianPair,
)
from jaxacct.mechanisms.shifted_noise import LaplaceNoise, subsampled_pair

masses_of_cells = program(lambda pair, boundaries: pair.cell_masses(boundaries))
cumulants = program(lambda pair, orders: pair.cumulant(orders))
error_of = program(lambda pair, loss: pair.boundary_error(loss))
laplace_cells = program(LaplaceNoise().cells)
MOST_CELLS = 2048
SLACK = mpmath.mpf("1e-300")
GAUSS = np.polynomial.legendre.leggauss(20)

MECHANISMS = [
    (Laplace(1.0), "remove"),
    (Laplace(0.05), "replace"),
    (PoissonSubsampledLaplace(0.7, 0.01), "remove"),
    (PoissonSubsampledLaplace(20.0, 1e-4), "add"),
    (PoissonSubsampledLaplace(1.0, 0.3), "replace"),
    (PoissonSubsampledGaussian(1.0, 0.01), "replace"),
    (PoissonSubsampledGaussian(0.3, 1.0), "replace"),
    (GaussianMixture(0.8, [0.0, 1.0, 3.0], [0.9, 0.09, 0.01]), "remove"),
    (GaussianMixture(10.0, [1.0, 0.5], [0.25, 0.75]), "add"),
]
IDS = [f"{type(mechanism).__name__}-{relation}-{i}" for i, (mechanism, relation) in enumerate(MECHANISMS)]


@pytest.fixture(autouse=True)
def _digits():
    with mpmath.workdps(40):
        yield


def cell_masses(pair, boundaries):
    """Returns the masses of cells, by one program for any number of them: empty ones fill up."""
    count = len(boundaries) - 1
    padded = np.pad(np.asarray(boundaries), (0, MOST_CELLS - count), mode="edge")
    return jax.tree.map(lambda values: np.asarray(values)[:count], masses_of_cells(pair, padded))


def cumulant(pair, orders):
    """Likewise, of up to six orders."""
    return np.asarray(cumulants(pair, np.pad(np.asarray(orders), (0, 6 - len(orders)), mode="edge")))[: len(orders)]


class Exact:
    """A pair of shifted noises in 40 digits."""

    def __init__(self, pair):
        self.s = mpmath.mpf(float(pair.scale))
        self.locations, self.p, self.q = (
            [mpmath.mpf(float(v)) for v in np.asarray(field)]
            for field in (pair.locations, pair.p_weights, pair.q_weights)
        )
        self.laplace = pair.noise == "laplace"
        counts = [m for m, p, q in zip(self.locations, self.p, self.q, strict=True) if p or q]
        self.low, self.high = min(counts), max(counts)

    def density(self, x, weights):
        z = [(mpmath.mpf(x) - m) / self.s for m in self.locations]
        heights = [mpmath.exp(-abs(v)) / 2 if self.laplace else mpmath.npdf(v) for v in z]
        return mpmath.fsum(w * h for w, h in zip(weights, heights, strict=True)) / self.s

    def loss(self, x):
        return mpmath.log(self.density(x, self.p) / self.density(x, self.q))

    def threshold(self, loss):
        reach = 0 if self.laplace else 60 * self.s
        low, high = self.low - reach, self.high + reach
        if self.loss(low) > loss:
            return -mpmath.inf
        if self.loss(high) <= loss:
            return mpmath.inf
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self.loss(middle) <= loss else (low, middle)
        return low

    def above(self, x, weights):
        def one(z):
            if not self.laplace:
                return mpmath.ncdf(-z)
            return mpmath.exp(-z) / 2 if z > 0 else 1 - mpmath.exp(z) / 2

        return mpmath.fsum(w * one((x - m) / self.s) for w, m in zip(weights, self.locations, strict=True))

    def delta(self, epsilon):
        x = self.threshold(mpmath.mpf(epsilon))
        return self.above(x, self.p) - mpmath.exp(epsilon) * self.above(x, self.q)

    def law(self, order):
        """Losses and P-masses that stand for the law, up to this order, as a Gauss rule of 20 nodes a panel."""
        pairs = []
        if self.laplace:
            knots = sorted({self.low, self.high, *(m for m in self.locations if self.low < m < self.high)})
            pairs.append((self.loss(self.high), self.above(self.high, self.p)))
            pairs.append((self.loss(self.low), 1 - self.above(self.low, self.p)))
            ends, panel = knots, self.s
        else:
            ends = [self.low - 15 * self.s, self.high + order * (self.high - self.low) + 15 * self.s]
            panel = 2 * self.s * min(1, 2 * self.s / (self.high - self.low))
        for a, b in itertools.pairwise(ends):
            count = max(1, int(mpmath.ceil((b - a) / panel)))
            for i in range(count):
                for node, weight in zip(*GAUSS, strict=True):
                    x = a + (b - a) * (i + (1 + mpmath.mpf(float(node))) / 2) / count
                    p = self.density(x, self.p)
                    ratio = p / self.density(x, self.q)
                    pairs.append((mpmath.log(ratio), p * (b - a) / count * mpmath.mpf(float(weight)) / 2))
        return pairs


def pair_of(mechanism, relation):
    """Returns the pair, with four locations: those without weight let one program serve all of one noise."""
    (pair,) = mechanism.dominating_pairs(relation)
    if not isinstance(pair, ShiftedNoisePair):
        return pair
    missing = 4 - len(pair.locations)
    p, q = (np.pad(np.asarray(weights), (0, missing)) for weights in (pair.p_weights, pair.q_weights))
    locations = np.pad(np.asarray(pair.locations), (0, missing), mode="edge")
    return replace(pair, locations=locations, p_weights=p, q_weights=q)


def sample_losses(pair, count, seed=7):
    exact = Exact(pair)
    rng = np.random.default_rng(seed)
    low, high = float(exact.low), float(exact.high)
    spread = 0 if exact.laplace else 4 * float(exact.s)
    x = rng.uniform(low - spread, high + spread, size=count)
    return np.unique([float(exact.loss(v)) for v in x])


def test_laplace_cells_are_right_to_the_error_they_state():
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        for scale in (0.01, 1.0, 300.0):
            x = np.concatenate([rng.normal(size=20) * 9 * scale, 1 + 1e-9 * rng.random(9) * scale, [1.0]])
            x = np.concatenate([[-np.inf, -np.inf], np.sort(x), [np.inf]])
            masses, errors = laplace_cells(x, 1.0, scale)
            mirrored, _ = laplace_cells(x[::-1], 1.0, scale)
            np.testing.assert_allclose(np.asarray(mirrored)[::-1], masses, rtol=1e-14)
            s = mpmath.mpf(scale)
            for i, (mass, error) in enumerate(zip(np.asarray(masses), np.asarray(errors), strict=True)):
                a, b = ((mpmath.mpf(v) - 1) / s for v in (x[i], x[i + 1]))
                if a > 0:
                    a, b = -b, -a
                lower = mpmath.exp(a) / 2
                truth = (mpmath.exp(b) / 2 if b < 0 else 1 - mpmath.exp(-b) / 2) - lower
                assert abs(mpmath.mpf(float(mass)) - truth) <= mpmath.mpf(float(error)) + SLACK
                assert error <= 1e-12 * float(truth)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("mechanism", "relation"), MECHANISMS, ids=IDS)
def test_cell_masses_and_their_edges(mechanism, relation):
    pair = pair_of(mechanism, relation)
    exact = Exact(pair)
    losses = sample_losses(pair, draws(5, 9))
    with jax.enable_x64(True):
        cells = cell_masses(pair, losses)
        reach = mpmath.mpf(float(error_of(pair, np.max(np.abs(losses)))))
    assert reach < 2e-12
    wide = [(exact.threshold(v - reach), exact.threshold(v + reach)) for v in losses]
    for i in range(len(losses) - 1):
        for weights, mass, error in ((exact.p, cells.p[i], cells.p_error[i]), (exact.q, cells.q[i], cells.q_error[i])):
            most = exact.above(wide[i][0], weights) - exact.above(wide[i + 1][1], weights)
            least = exact.above(wide[i][1], weights) - exact.above(wide[i + 1][0], weights)
            assert least - float(error) - SLACK <= mpmath.mpf(float(mass)) <= most + float(error) + SLACK
            assert float(error) <= 1e-12 * max(float(most), 1e-3)


@pytest.mark.first_tier("Laplace-replace-1", "PoissonSubsampledLaplace-add-3", "PoissonSubsampledLaplace-replace-4")
@pytest.mark.parametrize(("mechanism", "relation"), MECHANISMS, ids=IDS)
def test_delta_lies_between_the_sums_over_fine_cells(mechanism, relation):
    pair = pair_of(mechanism, relation)
    exact = Exact(pair)
    with jax.enable_x64(True):
        low, high = (float(v) for v in pair.loss_range())
        epsilons = [0.3 * float(exact.loss(exact.high)), float(exact.loss(exact.low)) / 2]
        for epsilon in epsilons:
            top = high if np.isfinite(high) else float(exact.loss(exact.high + 12 * exact.s))
            edges = np.concatenate([np.linspace(epsilon, top, 2000)[:-1], [top, np.inf]])
            cells = cell_masses(pair, edges)
            p, q = np.asarray(cells.p), np.asarray(cells.q)
            # P - e^epsilon Q of all cells is delta; within a cell Q lies between P e^-upper and P e^-lower.
            truth = float(exact.delta(epsilon))
            reach = float(error_of(pair, max(abs(epsilon), top)))
            slack = np.sum(cells.p_error + np.exp(epsilon) * cells.q_error) + 4 * reach
            assert abs(np.sum(p) - np.exp(epsilon) * np.sum(q) - truth) <= slack + 1e-15
            upper = np.sum(p * -np.expm1(epsilon - edges[1:])) + slack
            lower = np.sum(p * -np.expm1(epsilon - edges[:-1])) - slack
            assert lower <= truth <= upper
    assert low < high


@pytest.mark.exhaustive
@pytest.mark.parametrize(("mechanism", "relation"), MECHANISMS, ids=IDS)
def test_cumulant_against_quadrature(mechanism, relation):
    pair = pair_of(mechanism, relation)
    orders = [-1.5, -0.7, -0.3, 0.01, 1.0, 5.0]
    with jax.enable_x64(True):
        values = cumulant(pair, orders)
    law = Exact(pair).law(order=5)
    for order, value in zip(orders, np.asarray(values), strict=True):
        # The same second-order form, in 40 digits: the nodes of the rule are doubles, and err by 1e-16 of the whole.
        excess = mpmath.fsum(
            mass * (mpmath.expm1(order * y) - order * y + order * (mpmath.expm1(-y) + y)) for y, mass in law
        )
        # Where a moment of order in (-1, 0) is nearly 0 its distance from 1 says little of its logarithm.
        tolerance = 1e-11 if excess > -0.9 else 1e-9
        assert float(value) == pytest.approx(float(mpmath.log1p(excess)), rel=tolerance)


def test_atoms_land_whole_in_one_cell():
    with jax.enable_x64(True):
        pair = pair_of(PoissonSubsampledLaplace(0.5, 0.1), "remove")
        exact = Exact(pair)
        low, high = (float(v) for v in pair.loss_range())
        assert low == pytest.approx(float(exact.loss(exact.low)), abs=1e-15)
        assert high == pytest.approx(float(exact.loss(exact.high)), abs=1e-15)
        top, bottom = float(exact.above(exact.high, exact.p)), 1 - float(exact.above(exact.low, exact.p))
        for off in (-1e-13, 0.0, 1e-13):
            edges = [-np.inf, low - 1e-3, low + off, low + 1e-9, high - 1e-9, high + off, high + 1, np.inf]
            cells = cell_masses(pair, edges)
            # {y_i < Y <= y_i+1}: an edge at the atom keeps it below.
            assert float(cells.p[0]) == 0
            assert float(cells.p[1 if off >= 0 else 2]) == pytest.approx(bottom, rel=1e-7)
            assert float(cells.p[5 if off < 0 else 4]) >= top
            assert float(cells.p[4 if off < 0 else 5]) <= 1e-7
            assert float(np.sum(cells.p)) == pytest.approx(1, abs=1e-15)
            assert float(np.sum(cells.q)) == pytest.approx(1, abs=1e-15)


@pytest.mark.exhaustive
def test_agrees_with_the_closed_form_of_the_subsampled_gaussian():
    with jax.enable_x64(True):
        for s, q in ((0.5, 0.2), (3.0, 1e-5)):
            mixture = GaussianMixture(s, [0.0, 1.0], [1 - q, q])
            orders = np.asarray([0.01, 1.0, 31.0, 511.0])
            for relation, removes in (("remove", True), ("add", False)):
                pair = pair_of(mixture, relation)
                other = SubsampledGaussianPair(s, q, removes)
                np.testing.assert_allclose(cumulant(pair, orders), cumulant(other, orders), rtol=1e-12)
                center = float(other.central_loss())
                edges = center + np.abs(center) * np.linspace(-0.9, 0.9, 50)
                mine, theirs = cell_masses(pair, edges), cell_masses(other, edges)
                np.testing.assert_allclose(mine.p, theirs.p, rtol=1e-7, atol=1e-13)
                np.testing.assert_allclose(mine.q, theirs.q, rtol=1e-7, atol=1e-13)
                for mine, theirs in zip(pair.loss_range(), other.loss_range(), strict=True):
                    np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def test_replacement_at_rate_one_is_the_gaussian_at_half_the_noise():
    with jax.enable_x64(True):
        pair, closed = pair_of(PoissonSubsampledGaussian(1.4, 1.0), "replace"), pair_of(Gaussian(1.4), "replace")
        orders = np.asarray([0.5, 7.0])
        np.testing.assert_allclose(cumulant(pair, orders), cumulant(closed, orders), rtol=1e-13)
        edges = np.linspace(-3.0, 5.0, 20)
        np.testing.assert_allclose(cell_masses(pair, edges).p, cell_masses(closed, edges).p, rtol=1e-12)


def test_replacement_is_its_own_mirror_image():
    with jax.enable_x64(True):
        for mechanism in (PoissonSubsampledGaussian(0.9, 0.05), PoissonSubsampledLaplace(0.9, 0.05)):
            pair = pair_of(mechanism, "replace")
            low, high = pair.loss_range()
            np.testing.assert_allclose(low, -high)
            edges = np.asarray([0.0, 0.01, 0.1, 0.2])
            cells, mirrored = cell_masses(pair, edges), cell_masses(pair, -edges[::-1])
            np.testing.assert_allclose(cells.p, mirrored.q[::-1], rtol=1e-12)


def test_invalid_fields_make_no_valid_pair():
    with jax.enable_x64(True):
        line, p, q = jnp.asarray([0.0, 1.0]), jnp.asarray([0.9, 0.1]), jnp.asarray([1.0, 0.0])
        for fields in (
            (0.0, line, p, q),
            (jnp.inf, line, p, q),
            (jnp.nan, line, p, q),
            (1.0, line * jnp.nan, p, q),
            (1.0, line * 0, p, q),
            (1.0, line, p * 0.99, q),
            (1.0, line, jnp.asarray([1.1, -0.1]), q),
        ):
            assert not ShiftedNoisePair(*fields).is_valid()
        assert ShiftedNoisePair(1.0, line, p, q).is_valid()


HARDLY_ANYONE_IS_OUT = [
    ("gaussian", 0.2, 1 - 1e-4),
    ("gaussian", 0.2, 1 - 1e-6),
    ("gaussian", 0.05, 1 - 1e-12),
    ("gaussian", 1.0, 1 - 1e-12),
    ("laplace", 0.05, 0.999),
    ("laplace", 0.1, 1 - 1e-6),
    ("laplace", 0.05, 1 - 1e-12),
    ("laplace", 1.0, 0.3),
]


@pytest.mark.first_tier("laplace-1.0-0.3")
@pytest.mark.parametrize(("noise", "scale", "rate"), HARDLY_ANYONE_IS_OUT)
def test_losses_and_edges_of_a_replacement_err_by_what_the_pair_says(noise, scale, rate):
    """Amid the two places of the example, where its terms in P and in Q may be alike in all their digits."""
    pair = subsampled_pair(scale, rate, "replace", noise)
    x = np.concatenate([np.linspace(-0.3, 0.3, 61), [3.3700450557414083e-4, 0.004570345727762013]])
    asked = np.array([0.0, 5.3e-13, 1.6e-7, 1e-3, 0.1, -5.7e-9, -7.6e-6])
    with jax.enable_x64(True):
        found, (units, _) = jax.jit(lambda pair, x: (pair.log_densities(x)[0], pair._rounding()))(pair, x)
        edges = jax.jit(lambda pair, y: pair._threshold(y))(pair, asked)
        error = float(pair.boundary_error(jnp.asarray(0.1)))

    def loss(at):
        s, q, at = map(mpmath.mpf, (scale, rate, float(at)))
        power = (lambda m: -((at - m) ** 2) / (2 * s**2)) if noise == "gaussian" else (lambda m: -abs(at - m) / s)
        base = (1 - q) * mpmath.exp(power(0))
        return mpmath.log((base + q * mpmath.exp(power(1))) / (base + q * mpmath.exp(power(-1))))

    with mpmath.workdps(250):
        for value, at in zip(np.asarray(found), x, strict=True):
            assert abs(mpmath.mpf(float(value)) - loss(at)) <= float(units) * mpmath.mpf(2) ** -53, at
        for edge, at in zip(np.asarray(edges), asked, strict=True):
            assert abs(loss(edge) - mpmath.mpf(float(at))) <= error, at
