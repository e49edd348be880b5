"""The referee's laws and its formulas for delta, against quadrature in mpmath and against each other."""

import itertools
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from flint import arb, ctx
from helpers.laws_in_balls import stated

import jaxacct as ja
from jaxacct.verify import cells, contour, statements
from jaxacct.verify.contour import Loss
from jaxacct.verify.verdict import Direction


@pytest.fixture(autouse=True)
def bits():
    with ctx.workprec(200), mp.workdps(30):
        yield


def density(kind, scale, weights):
    """The density of noise around places, in mpmath, from its definition."""
    s = mp.mpf(scale)

    def at(x):
        if kind == "laplace":
            return mp.fsum(w * mp.exp(-abs(x - c) / s) / (2 * s) for c, w in weights)
        return mp.fsum(w * mp.npdf(x, c, s) for c, w in weights)

    return at


def hockey_stick(p, q, epsilon, places):
    """The integral of (p - e^eps q)+, between the places where the integrand has kinks."""
    gap = lambda x: p(x) - mp.exp(epsilon) * q(x)  # noqa: E731
    zeros = []
    grid = mp.linspace(places[0], places[-1], 400)
    for a, b in itertools.pairwise(grid):
        if gap(a) * gap(b) < 0:
            zeros.append(mp.findroot(gap, (a, b), solver="anderson", tol=1e-20, verify=False))
    return mp.quad(lambda x: max(gap(x), 0), sorted({*places, *zeros}))


def assert_contains(ball, value, digits=18):
    assert abs(float(ball) / float(value) - 1) < 1e-12
    wider = arb(ball.mid(), ball.rad() + abs(ball.mid()) * arb(10) ** -digits)
    assert wider.contains(arb(mp.nstr(value, 28)))


Q = mp.mpf(0.1)
ONE = [(0, 1)]
MIXED = [(0, 1 - Q), (1, Q)]
GAUSSIANS = {
    "remove": (ja.PoissonSubsampledGaussian(0.8, 0.1), "remove", 0.8, MIXED, ONE, 0.3),
    "add": (ja.PoissonSubsampledGaussian(0.8, 0.1), "add", 0.8, ONE, [(0, 1 - Q), (-1, Q)], 0.04),
    "replace": (ja.PoissonSubsampledGaussian(0.8, 0.1), "replace", 0.8, MIXED, [(0, 1 - Q), (-1, Q)], 0.3),
    "plain": (ja.Gaussian(0.8), "remove", 0.8, [(1, 1)], ONE, 0.7),
    "replaced": (ja.Gaussian(1.6), "replace", 0.8, [(1, 1)], ONE, 0.7),
    "mixture": (ja.GaussianMixture(1.0, [0.0, 1.0, 2.0], [0.5, 0.25, 0.25]), "remove", 1.0,
                [(0, 0.5), (1, 0.25), (2, 0.25)], ONE, 0.5),
    "mixture added": (ja.GaussianMixture(1.0, [0.0, 1.0, 2.0], [0.5, 0.25, 0.25]), "add", 1.0, ONE,
                      [(0, 0.5), (-1, 0.25), (-2, 0.25)], 0.5),
}  # fmt: skip
LAPLACES = {
    "laplace": (ja.Laplace(1.5), "remove", 1.5, [(1, 1)], ONE, 0.2),
    "laplace replaced": (ja.Laplace(3.0), "replace", 1.5, [(1, 1)], ONE, 0.2),
    "removed": (ja.PoissonSubsampledLaplace(0.7, 0.1), "remove", 0.7, MIXED, ONE, 0.1),
    "added": (ja.PoissonSubsampledLaplace(0.7, 0.1), "add", 0.7, ONE, [(0, 1 - Q), (-1, Q)], 0.03),
    "both": (ja.PoissonSubsampledLaplace(0.7, 0.1), "replace", 0.7, MIXED, [(0, 1 - Q), (-1, Q)], 0.1),
}


@pytest.mark.first_tier("laplace-laplace", "laplace-laplace replaced", "laplace-removed", "laplace-added")
@pytest.mark.parametrize(("kind", "name"), [("gaussian", n) for n in GAUSSIANS] + [("laplace", n) for n in LAPLACES])
def test_one_run_is_the_hockey_stick_of_the_mixtures(kind, name):
    mechanism, relation, scale, p, q, epsilon = (GAUSSIANS | LAPLACES)[name]
    (law,) = stated(mechanism, relation)
    p, q = density(kind, scale, p), density(kind, scale, q)
    edge = 16 if kind == "gaussian" else 50
    truth = hockey_stick(p, q, mp.mpf(epsilon), [-edge, -2, -1, 0, 1, 2, 3, edge])
    assert_contains(law.single(arb(epsilon)), truth, 13 if kind == "gaussian" else 12)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_without_replacement_is_one_mixture_above_zero_and_the_other_below(kind):
    mechanism = (
        ja.GaussianWithoutReplacement(2.0, 0.1) if kind == "gaussian" else ja.LaplaceWithoutReplacement(2.0, 0.1)
    )
    (law,) = stated(mechanism, "replace")
    mixed, base = density(kind, 2, [(0, 1 - Q), (2, Q)]), density(kind, 2, ONE)
    edge = 40 if kind == "gaussian" else 140
    truth = hockey_stick(mixed, base, mp.mpf(0.05), [-edge, -2, 0, 1, 2, 4, edge])
    assert_contains(law.single(arb(0.05)), truth, 12)
    # Below 0, H(A || (1-q) A + q B): delta(-e) = 1 - e^-e + e^-e delta(e), for the pair is its own mirror image.
    below = law.single(arb(-0.05))
    mirrored = 1 - (-arb(0.05)).exp() + (-arb(0.05)).exp() * law.single(arb(0.05))
    assert below.overlaps(mirrored)
    assert abs(below - mirrored) < 1e-40


def test_a_truncated_batch_is_a_known_coin():
    (law,) = stated(ja.TruncatedPoissonGaussian(0.8, 0.1, 0.01), "remove")
    one, two = (
        hockey_stick(density("gaussian", s, MIXED), density("gaussian", s, ONE), mp.mpf(0.3), [-14, 0, 1, 2, 14])
        for s in (0.8, 0.4)
    )
    w = mp.mpf(0.01)
    assert_contains(law.single(arb(0.3)), (1 - w) * one + w * two, 12)


@pytest.mark.exhaustive
def test_a_known_number_of_examples_makes_a_coin_of_three_sides():
    # Half the noise at the rate r with probability v, at the rate q with e' = w - v < e; else all of it.
    mechanism = ja.TruncatedPoissonGaussian(0.8, 0.1, 0.25, 0.125, 0.0625, 0.5)
    for direction, sign in (("remove", 1), ("add", -1)):
        (law,) = stated(mechanism, direction)
        truth = mp.mpf(0)
        for weight, s, rate in ((0.125, 0.4, 0.0625), (0.125, 0.4, Q), (0.75, 0.8, Q)):
            mixed = density("gaussian", s, [(0, 1 - mp.mpf(rate)), (sign, mp.mpf(rate))])
            pair = (mixed, density("gaussian", s, ONE))
            p, q = pair if sign > 0 else pair[::-1]
            truth += weight * hockey_stick(p, q, mp.mpf(0.03), [-14, -2, -1, 0, 1, 2, 14])
        assert_contains(law.single(arb(0.03)), truth, 12)
    everywhere = ja.TruncatedPoissonGaussian(0.8, 0.1, 0.25, 0.25, 0.1, 0.5)  # no slack is left
    whole = ja.TruncatedPoissonGaussian(0.8, 0.1, 0.25)  # nor is any known to overflow: the same pair
    one, other = (stated(m, "remove")[0].single(arb(0.3)) for m in (everywhere, whole))
    assert abs(one - other) < 1e-40


def test_discrete_noise_is_summed_over_the_integers():
    s, epsilon = mp.mpf(1.25), mp.mpf(0.5)
    masses = {n: mp.exp(-mp.mpf(n * n) / (2 * s * s)) for n in range(-60, 61)}
    whole = mp.fsum(masses.values())
    truth = mp.fsum(max(masses[n - 2] - mp.exp(epsilon) * masses[n], mp.mpf(0)) / whole for n in range(-50, 50))
    (law,) = stated(ja.DiscreteGaussian(1.25, 2), "remove")
    assert_contains(law.single(arb(0.5)), truth)
    a = mp.exp(-1 / s)
    truth = (
        (1 - a)
        / (1 + a)
        * mp.fsum(max(a ** abs(n - 2) - mp.exp(epsilon) * a ** abs(n), mp.mpf(0)) for n in range(-200, 200))
    )
    (law,) = stated(ja.DiscreteLaplace(1.25, 2), "remove")
    assert_contains(law.single(arb(0.5)), truth)


def test_finite_pairs_are_listed_by_fractions():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.125, 0.25, 0.625])
    (law,) = stated(ja.DiscretePair(p, q), "remove")
    truth = mp.mpf(0)
    for outcome in itertools.product(range(3), repeat=5):
        a, b = (np.prod([Fraction(side[i]) for i in outcome]) for side in (p, q))
        truth += max(mp.mpf(a.numerator) / a.denominator - mp.exp(1) * mp.mpf(b.numerator) / b.denominator, mp.mpf(0))
    assert_contains(cells.delta([(law, 5)], arb(1), 1.0), truth)


@pytest.mark.parametrize(
    ("mechanism", "steps", "epsilon"),
    [
        (ja.RandomizedResponse(0.3), 200, 8.0),
        (ja.RandomizedResponse(0.25, 4), 60, 2.0),
        (ja.DiscreteLaplace(4.0, 3), 30, 3.0),
        (ja.DiscreteGaussian(3.0), 20, 4.0),
    ],
)
def test_powers_in_windows_and_the_list_agree(mechanism, steps, epsilon):
    (law,) = stated(mechanism, "remove")
    runs = [(law, steps)]
    listed = cells.delta(runs, arb(epsilon), contour.sketched_saddle(runs, epsilon))
    windowed = cells.Composed(runs, epsilon, 0, cells.common(runs)).delta(arb(epsilon))
    assert listed.overlaps(windowed)
    assert windowed.rad() < 1e-14 * windowed


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("epsilon", [-0.4, 0.0, 0.6])
def test_laplace_in_closed_form(count, epsilon):
    (law,) = stated(ja.Laplace(4.0), "remove")
    closed = statements.delta_of_many_laplace(law.laplace, count, arb(epsilon))
    if count == 1:
        assert closed.overlaps(law.single(arb(epsilon)))
    else:  # one run more, by its law: atoms, and Gauss's rule in float64 between them
        nodes, weights = np.polynomial.legendre.leggauss(60)
        a = 0.25
        y = a * nodes
        edges = sorted({-a, a, *(x for x in (epsilon - a * (2 * n - count + 1) for n in range(count)) if -a < x < a)})
        total = 0.0
        for low, high in itertools.pairwise(edges):
            y = (low + high) / 2 + (high - low) / 2 * nodes
            found = [float(statements.delta_of_many_laplace(law.laplace, count - 1, arb(epsilon - x))) for x in y]
            total += float(np.sum(weights * (high - low) / 2 * np.exp((y - a) / 2) / 4 * found))
        for p, x in law.atoms:
            total += float(p * statements.delta_of_many_laplace(law.laplace, count - 1, arb(epsilon) - x))
        assert abs(float(closed) - total) < 1e-12


def test_the_contour_of_a_piece_is_that_of_the_normal_law():
    # A Gaussian as a piece with one exponent takes the route of quadrature and moved paths.
    law = statements.mixtures("gaussian", arb(5), [(arb(1), arb(1))], [(arb(1), arb(0))], arb(1))
    for epsilon in (0.5, 3.0):
        by_piece = contour.line([(law, 30)], epsilon).delta(arb(epsilon))
        closed = Loss((), normal=arb(30) / 25).single(arb(epsilon))
        assert by_piece.overlaps(closed)
        assert by_piece.rad() < 1e-16 * closed


@pytest.mark.parametrize("mechanism", [ja.Laplace(2.0), ja.PoissonSubsampledLaplace(1.0, 0.3)])
def test_the_contour_of_laws_with_atoms(mechanism):
    (law,) = stated(mechanism, "remove")
    direction = Direction([(law, 300)])
    line = contour.line(direction.runs, 20.0).delta(arb(20))
    if law.laplace is not None:
        closed = statements.delta_of_many_laplace(law.laplace, 300, arb(20))
        assert line.overlaps(closed)
    assert line.rad() < 1e-14 * line


def test_terms_that_are_left_out_are_inside_the_ball():
    # A coarse line: few frequencies, few bits; the ball is wide and still holds the value.
    (law,) = stated(ja.PoissonSubsampledGaussian(2.715, 0.124), "remove")
    truth = 0.0016752030373993552
    for accuracy in (3.0, 8.0, 20.0):
        ball = contour.line([(law, 419)], 2.893, accuracy).delta(arb(2.893))
        assert ball.contains(truth) or abs(ball - truth) < 1e-18
        assert ball.rad() < 30 * np.exp(-accuracy) * truth
