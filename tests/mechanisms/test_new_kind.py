"""A new kind of loss in this one file, by docs/design/new-mechanism.md: all routes to a number hold the truth.

The toy: noise whose variance one example lowers, P = N(0, v) against Q = N(0, 1). The loss -log(v)/2 - (1/v - 1) x^2/2
is bounded above and not below, and a sum of k of them is one of the chi-square law with k degrees of freedom.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.brackets import assert_holds
from jaxtyping import Array, ArrayLike

import jaxacct as ja
from jaxacct import saddlepoint
from jaxacct.mechanisms.mechanism import directions
from jaxacct.mechanisms.normal import normal_cells
from jaxacct.mechanisms.pair import (
    BEYOND,
    RULE,
    CellMasses,
    DominatingPair,
    Nodes,
    TrapezoidLaw,
    in_float64_only,
    log_left_out,
)
from jaxacct.numerics.arithmetic import arithmetic
from jaxacct.numerics.precision import UNIT_ROUNDOFF, as_float64, scope


@ja.register_dataclass
@dataclass(frozen=True)
class VariancePair(DominatingPair):
    """N(0, v) against N(0, 1), v in (0, 1): with top = -log(v)/2 and bend = 1/v - 1 the loss is top - bend x^2/2."""

    variance: ArrayLike

    def _parts(self):
        v = as_float64(self.variance)
        return v, -jnp.log(v) / 2, (1 - v) / v

    def is_valid(self):
        v, _, _ = self._parts()
        return (v > 0) & (v < 1)

    def loss_range(self):
        _, top, _ = self._parts()
        return jnp.full_like(top, -jnp.inf), top

    def central_loss(self):
        v, top, bend = self._parts()
        return top - bend * v * 0.2275  # at the median of x^2

    def _radius(self, loss):
        """The |x| whose loss it is, 0 from the supremum on."""
        _, top, bend = self._parts()
        return jnp.sqrt(jnp.maximum(2 * (top - loss) / bend, 0.0))

    def cell_masses(self, boundaries):
        v, _, _ = self._parts()
        x = self._radius(boundaries)
        (p, p_error), (q, q_error) = (normal_cells(x, jnp.zeros(()), scale) for scale in (jnp.sqrt(v), jnp.ones(())))
        return CellMasses(2 * p, 2 * q, 2 * p_error, 2 * q_error)

    def boundary_error(self, largest):
        # The top is right to 4u of itself, its distance from the loss to 2u, the quotient and the root to 4u.
        _, top, _ = self._parts()
        return 16 * UNIT_ROUNDOFF * (largest + top)

    def cumulant(self, order):
        # E_P[e^(tY)] = v^(-t/2) (1 + t (1 - v))^(-1/2).
        (v, top, _), t = self._parts(), as_float64(order)
        return t * top - jnp.log1p(t * (1 - v)) / 2

    def law(self):
        return in_float64_only(VarianceLaw(self))


@dataclass(frozen=True)
class VarianceLaw(TrapezoidLaw):
    """A trapezoid rule in x. Of order z = t + iw the integrand is e^(-c x^2), c = (1 + z (1 - v))/(2 v).

    *Quadrature.* By Poisson's formula a rule of spacing h adds e^(-(pi n/h)^2/c) of the moment for each n other than 0:
    at most 3 e^(-(pi/h)^2 Re 1/c) in all where that is below 1/2. Re 1/c falls with w, and so do the moments.

    *Decay.* |E_t[e^(iwY)]| is |1 + iw b|^(-1/2), b = (1 - v)/(1 + t (1 - v)).
    """

    pair: VariancePair

    most_pieces = 8

    def _steepness(self, order: Array, w: Array) -> Array:
        """Re 1/c."""
        v, _, _ = self.pair._parts()
        real, imaginary = 1 + order * (1 - v), w * (1 - v)
        return 2 * v * real / (real**2 + imaginary**2)

    def largest_order(self) -> Array:
        v, _, _ = self.pair._parts()
        most = 2 * v * (jnp.pi * RULE / (2 * arithmetic().reach)) ** 2 / (arithmetic().cut + BEYOND)
        return (most - 1) / (1 - v)

    def scan(self) -> Nodes:
        reach = as_float64(arithmetic().reach)  # of Q, whose noise is the wider
        return self.nodes(-reach, 2 * reach / RULE)

    def nodes(self, low: Array, step: Array) -> Nodes:
        v, top, bend = self.pair._parts()
        x = low + step * (jnp.arange(RULE) + 0.5)
        log_q = -(x**2) / 2 + jnp.log(step) - jnp.log(2 * jnp.pi) / 2
        losses, nothing = top - bend * x**2 / 2, jnp.zeros_like(v)
        return Nodes(losses, log_q + losses, log_q, nothing, nothing, x)

    def widest_step(self, order: Array, w: Array) -> Array:
        return jnp.pi * jnp.sqrt(self._steepness(order, w) / (arithmetic().cut + BEYOND))

    def log_quadrature_error(self, order: Array, w: Array, step: Array) -> Array:
        return jnp.logaddexp(jnp.log(3.0) - (jnp.pi / step) ** 2 * self._steepness(order, w), log_left_out())

    def log_envelope(self, order: Array, w: Array, nodes: Nodes) -> Array:
        v, _, _ = self.pair._parts()
        return -jnp.log1p((w * (1 - v) / (1 + order * (1 - v))) ** 2) / 4


@ja.register_dataclass
@dataclass(frozen=True)
class LoweredVariance(ja.Mechanism):
    variance: ArrayLike

    relations: ClassVar[tuple[str, ...]] = ("remove",)

    def validate(self):
        pass

    def dominating_pairs(self, relation="remove"):
        directions(self, relation)
        return (VariancePair(self.variance),)


SETTINGS = [(0.9, 400, 3.0), (0.5, 30, 2.0), (0.98, 5000, 4.0), (0.7, 1, 0.1)]


def delta_of(v, steps, epsilon):
    """The sum of so many losses is above epsilon where the sum of squares is below a radius."""
    with mp.workdps(40):
        v, k = mp.mpf(v), mp.mpf(steps)
        square = 2 * (-k * mp.log(v) / 2 - epsilon) / (1 / v - 1)
        p, q = (mp.gammainc(k / 2, 0, square / (2 * scale), regularized=True) for scale in (v, 1))
        return p - mp.exp(epsilon) * q


@pytest.mark.exhaustive
@pytest.mark.parametrize(("v", "steps", "epsilon"), SETTINGS)
def test_both_accountants_hold_the_truth(v, steps, epsilon):
    mechanism, truth = LoweredVariance(v), delta_of(v, steps, epsilon)
    mesh = ja.prv.delta(mechanism, steps, epsilon, relation="remove")
    exact = saddlepoint.delta(mechanism, steps, epsilon, relation="remove")
    for bounds in (mesh, exact):
        assert_holds(bounds, truth)
    assert exact.converged
    assert exact.upper - exact.lower < 1e-8 * exact.upper
    assert mesh.upper - mesh.lower < 1e-3 * mesh.upper


@pytest.mark.exhaustive
def test_the_top_level_takes_the_exact_one():
    v, steps, epsilon = SETTINGS[0]
    bounds = ja.epsilon(LoweredVariance(v), steps, float(delta_of(v, steps, epsilon)), relation="remove")
    assert bounds.converged
    assert bounds.estimate == pytest.approx(epsilon, rel=1e-9)


def test_renyi_orders_are_the_closed_form():
    orders = np.array([1.25, 2.0, 17.0, 300.0])
    for v, steps, _ in SETTINGS:
        found = ja.rdp.composed_curve(LoweredVariance(v), steps, orders, relation="remove")
        for a, value in zip(map(mp.mpf, orders), found, strict=True):
            truth = steps * (-mp.log(v) / 2 - mp.log(1 + (a - 1) * (1 - mp.mpf(v))) / (2 * (a - 1)))
            assert truth <= value <= truth * (1 + 1e-9)
        highest = float(ja.rdp.composed_curve(LoweredVariance(v), steps, [np.inf], relation="remove")[0])
        assert highest == pytest.approx(-steps * np.log(v) / 2, rel=1e-9)


@pytest.mark.parametrize("v", [0.01, 0.7, 0.999])
def test_its_masses_make_two_laws_about_it(v):
    """The profiles of both hold that of one run, in 40 digits, and are near it."""
    with scope():
        program = jax.jit(lambda v: VariancePair(v).discretize(256, jnp.asarray(30.0)))
        above, below = zip(*(np.asarray(part) for part in program(v)[:3]), strict=True)
    with mp.workdps(40):
        for epsilon in np.linspace(0.0, -np.log(v) / 2, 6)[:-1]:
            low, high = (
                mp.mpf(infinite)
                + mp.fsum(
                    m * -mp.expm1(mp.mpf(epsilon) - y) for y, m in zip(losses, masses, strict=True) if y > epsilon
                )
                for losses, masses, infinite in (below, above)
            )
            truth = delta_of(v, 1, mp.mpf(epsilon))
            assert low <= truth <= high
            assert high - low < 2e-3 * truth


def test_wrong_parameters_cost_infinity():
    assert saddlepoint.epsilon(LoweredVariance(1.5), 10, 1e-5, relation="remove").upper == np.inf
