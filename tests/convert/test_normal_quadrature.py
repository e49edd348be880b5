"""What the Gaussian curve's margins are proved from: the rule's error, its nodes, and quantiles that it certifies."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np

from jaxacct import PureDP
from jaxacct.convert import mechanism_to_gdp
from jaxacct.dominating_pairs.gaussian_profile import NODES, REACH, WEIGHTS, quantile


def test_the_rule_errs_by_what_the_ellipse_allows():
    """The theorem's bound, over Bernstein's ellipses, for integrands between the ends of t."""
    points, weights = np.polynomial.legendre.leggauss(300)
    circle = np.exp(1j * np.linspace(0, np.pi, 801))
    radii = np.linspace(2, 5, 25)[:, None]
    ellipses = ((radii * circle + 1 / (radii * circle)) / 2 + 1) / 2
    worst = 0.0
    for linear in np.linspace(-4.7, REACH, 30):
        for growth in (None, 1e-6, 2.0, REACH / 2):

            def integrand(w, linear=linear, growth=growth):
                falls = 1.0 if growth is None else (1 - np.exp(-growth * w**2)) / growth
                return 2 * w * np.exp(-linear * w**2 - (REACH - linear) * w**4) * falls

            whole = np.sum(weights / 2 * integrand((points + 1) / 2))
            largest = np.max(np.abs(integrand(ellipses)), axis=1)
            bounds = 32 / 15 * largest * radii[:, 0] ** -64 / (1 - radii[:, 0] ** -2) / whole
            worst = max(worst, np.min(bounds))
    assert worst < 1.7e-15


def test_nodes_and_weights_are_near_enough_to_legendres():
    mp.mp.dps = 40
    points, _ = np.polynomial.legendre.leggauss(32)
    exact = [mp.findroot(lambda x: mp.legendre(32, x), mp.mpf(point)) for point in points]
    slopes = [32 * (x * mp.legendre(32, x) - mp.legendre(31, x)) / (x**2 - 1) for x in exact]
    nodes = [((x + 1) / 2) ** 2 for x in exact]
    weights = [(x + 1) / ((1 - x**2) * slope**2) for x, slope in zip(exact, slopes, strict=True)]
    for linear in (-4.7, 0.0, 10.0, REACH):

        def integrand(s, linear=linear):
            return mp.exp(-linear * s - (REACH - linear) * s**2)

        terms = [weight * integrand(node) for node, weight in zip(nodes, weights, strict=True)]
        given = [mp.mpf(weight) * integrand(mp.mpf(node)) for node, weight in zip(NODES[0], WEIGHTS[0], strict=True)]
        assert sum(abs(one - other) for one, other in zip(terms, given, strict=True)) < 24 * 2.0**-53 * sum(terms)


def test_quantiles_are_within_their_error():
    mp.mp.dps = 60
    tails = np.concatenate([np.geomspace(1e-300, 0.4, 20), 0.5 - np.geomspace(1e-15, 0.1, 10)])
    rates = np.concatenate([tails, 1 - tails[tails > 1e-12]])
    with jax.enable_x64(True):
        places, errors = (np.asarray(v) for v in jax.jit(jax.vmap(quantile))(jnp.asarray(rates)))
    for rate, place, error in zip(rates, places, errors, strict=True):
        below, above = (mp.ncdf(mp.mpf(float(place)) + side * mp.mpf(float(error))) for side in (-1, 1))
        assert below <= mp.mpf(rate) <= above
        assert error < 3e-13 * max(1, abs(place))


def test_the_gdp_of_a_pure_epsilon_is_bounded_closely():
    mp.mp.dps = 60
    for epsilon in (1e-12, 1e-4, 0.3, 0.5, 1.0, 30.0, 600.0):
        mu = mp.mpf(float(mechanism_to_gdp(PureDP(epsilon))))
        x = mp.mpf(epsilon)
        assert mp.ncdf(-mu / 2) <= 1 / (1 + mp.exp(x))
        assert mp.ncdf(-mu * (1 - mp.mpf(1e-8)) / 2) > 1 / (1 + mp.exp(x))
