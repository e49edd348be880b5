"""A bracket without composing: an inequality wherever the truth is known, and something where meshes say nothing."""

import jax
import mpmath
import numpy as np

import jaxacct as ja
from jaxacct.composition import ForDelta, ForEpsilon, directed_parts
from jaxacct.prv.accountant import without_composing


def gaussian_truth(mu, epsilon):
    with mpmath.workdps(60):
        mu, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)


def test_it_holds_for_plain_gaussians():
    rng = np.random.default_rng(0)
    useful = 0
    for _ in range(40):
        noise, steps = float(np.exp(rng.uniform(-1, 5))), int(np.exp(rng.uniform(0, 9)))
        mu = np.sqrt(steps) / noise
        epsilon = float(mu**2 / 2 * rng.uniform(0, 1.5))
        with jax.enable_x64(True):
            (parts,) = directed_parts(ja.Gaussian(noise), steps, "remove")
            lower, upper = map(float, without_composing(parts, ForDelta(np.float64(epsilon))))
            truth = gaussian_truth(mpmath.sqrt(steps) / mpmath.mpf(noise), epsilon)
            assert lower <= truth <= upper
            useful += lower > 0.5
            if 1e-300 < truth < 1 - 1e-6:  # where float64 tells it apart
                least, most = map(float, without_composing(parts, ForEpsilon(np.float64(float(truth)))))
                assert least <= epsilon * (1 + 1e-9) + 1e-12
                assert most >= epsilon * (1 - 1e-9) - 1e-12
    assert useful > 3


def test_it_says_nothing_of_what_is_no_mechanism():
    with jax.enable_x64(True):
        wrong = jax.tree.map(lambda _: np.float64(-1.0), ja.Gaussian(1.0))  # as JAX may rebuild it
        (parts,) = directed_parts(wrong, 3, "remove")
        assert tuple(map(float, without_composing(parts, ForDelta(np.float64(1.0))))) == (0, 1)
        assert tuple(map(float, without_composing(parts, ForEpsilon(np.float64(0.5))))) == (0, np.inf)
