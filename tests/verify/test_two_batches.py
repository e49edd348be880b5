"""The referee on random allocation over two batches: against quadrature, and what it says of wrong numbers."""

import mpmath
import pytest
from flint import arb, ctx

import jaxacct as ja
from jaxacct import verify
from jaxacct.verify import statements


def by_quadrature(direction, noise, epsilon):
    """E[(L - e^eps)+], or e^eps E[(e^-eps - L)+], by the density of the one and the law of the other."""
    sigma = mpmath.mpf(1) / noise
    bound = 2 * mpmath.exp(epsilon if direction == "remove" else -epsilon)

    def inner(x):
        k = bound - mpmath.exp(sigma * x - sigma**2 / 2)
        if k <= 0:
            return (1 - k) * mpmath.npdf(x) if direction == "remove" else mpmath.mpf(0)
        d = sigma / 2 - mpmath.log(k) / sigma
        if direction == "remove":
            return (mpmath.ncdf(d) - k * mpmath.ncdf(d - sigma)) * mpmath.npdf(x)
        return (k * mpmath.ncdf(sigma - d) - mpmath.ncdf(-d)) * mpmath.npdf(x)

    last = mpmath.log(bound) / sigma + sigma / 2
    value = mpmath.quad(inner, [-30, -5, last - 1, last, last + 1, 30 + sigma])
    return value / 2 if direction == "remove" else value * mpmath.exp(epsilon) / 2


@pytest.mark.first_tier("add-3.0")
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_balls_hold_the_integral(direction, noise):
    with ctx.workprec(192):
        for epsilon in (0.0, 0.5, 2.0):
            ball = statements.delta_of_two_batches(direction, arb(noise), arb(epsilon))
            expected = by_quadrature(direction, noise, epsilon)
            assert ball.rad() < 1e-20
            assert abs(float(ball.mid()) - float(expected)) <= 1e-9 * float(expected) + 1e-15


@pytest.mark.exhaustive
def test_what_was_claimed_of_a_traced_epoch_is_refuted():
    epoch = ja.RandomAllocation(0.5, 2)
    assert verify.epsilon(epoch, 1, 1e-5, (0.0, 4.377)).status == "REFUTED"
    for relation in ("remove", "add", "add_or_remove"):
        upper = float(ja.epsilon(epoch, 1, 1e-5, relation=relation).upper)
        assert verify.epsilon(epoch, 1, 1e-5, (0.0, upper), relation=relation).status == "PROVED"
        assert verify.epsilon(epoch, 1, 1e-5, (0.0, upper * (1 - 1e-3)), relation=relation).status == "REFUTED"
    assert verify.epsilon(epoch, 2, 1e-5, (0.0, 20.0)).status == "UNDECIDED"
    assert verify.epsilon((epoch, ja.PureDP(0.1)), (1, 1), 1e-5, (0.0, 20.0)).status == "UNDECIDED"
