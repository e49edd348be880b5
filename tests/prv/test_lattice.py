"""The moves on measures, each as an inequality on random inputs in the order of the bounds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.prv.convolve import convolve, fft_error
from jaxacct.prv.evaluate import delta_of, epsilon_of
from jaxacct.prv.lattice import LossLattice, coarsen, cut, normalize

RANDOM = np.random.default_rng(7)


def random_lattice(points, order, mesh, *, is_upper, start=None):
    """A lattice with random weights over ten orders of magnitude, some of them zero."""
    weights = np.exp(RANDOM.uniform(-23, 0, points)) * (RANDOM.random(points) > 0.1)
    start = -points * mesh / 3 if start is None else start
    zero = jnp.asarray(0.0)
    lattice = LossLattice(
        weights=jnp.asarray(weights), log_mass=zero, start=jnp.asarray(start), mesh=jnp.asarray(mesh),
        order=jnp.asarray(order), slack=zero, shift=zero, log_total=zero, is_upper=jnp.asarray(is_upper),
    )  # fmt: skip
    lattice = normalize(replace(lattice, weights=lattice.weights.at[-1].set(0.0)))  # as convolution leaves it
    mass = jnp.sum(lattice.weights * jnp.exp(-order * lattice.losses))
    return replace(lattice, log_mass=-jnp.log(mass), log_total=-jnp.log(mass), slack=zero)


def exact_delta(lattice, epsilon):
    """delta of the weights alone, no allowance, in long doubles."""
    losses = np.asarray(lattice.losses, dtype=np.longdouble)
    masses = np.asarray(lattice.weights, dtype=np.longdouble) * np.exp(
        np.longdouble(lattice.log_mass) - np.longdouble(lattice.order) * losses
    )
    return np.sum(masses * np.where(losses > epsilon, -np.expm1(epsilon - losses), 0))


@pytest.mark.parametrize("is_upper", [True, False])
@pytest.mark.parametrize(("order", "mesh"), [(0.5, 0.2), (3.0, 0.05), (20.0, 0.01), (1.0, 1.0)])
def test_coarsening_moves_delta_one_way(order, mesh, is_upper):
    side = 1 if is_upper else -1
    with jax.enable_x64(True):
        for _ in range(20):
            lattice = random_lattice(64, order, mesh, is_upper=is_upper)
            coarse = coarsen(lattice)
            for epsilon in np.linspace(float(lattice.start) - mesh, float(lattice.losses[-1]) + mesh, 41):
                before, after = exact_delta(lattice, epsilon), float(delta_of(coarse, jnp.asarray(epsilon)))
                assert side * (after - before) >= 0


@pytest.mark.parametrize("is_upper", [True, False])
def test_coarsening_loses_the_square_of_the_mesh(is_upper):
    errors = []
    with jax.enable_x64(True):
        for points in (128, 256):
            losses = np.linspace(-4, 4, points, endpoint=False)
            lattice = random_lattice(points, 1.0, losses[1] - losses[0], is_upper=is_upper, start=-4.0)
            lattice = normalize(replace(lattice, weights=jnp.asarray(np.exp(-(losses**2))).at[-1].set(0.0)))
            errors.append(abs(exact_delta(coarsen(lattice), 1.0) / exact_delta(lattice, 1.0) - 1))
    assert 3.0 < errors[0] / errors[1] < 5.5
    assert errors[1] < 10 * (8 / 256) ** 2


def test_cutting_is_paid_for():
    with jax.enable_x64(True):
        for is_upper in (True, False):
            lattice = random_lattice(64, 2.0, 0.1, is_upper=is_upper)
            part = cut(lattice, jnp.asarray(20), 16)
            for epsilon in np.linspace(float(lattice.start), float(lattice.losses[-1]), 23):
                bound = float(delta_of(part, jnp.asarray(epsilon)))
                whole = exact_delta(lattice, epsilon)
                assert (bound >= whole) if is_upper else (bound <= whole)


def test_fft_error_is_bounded():
    with jax.enable_x64(True):
        for points in (64, 1024):
            a, b = (random_lattice(points, 1.0, 0.1, is_upper=True) for _ in range(2))
            computed, bound = convolve(a, b)
            exact = np.convolve(np.asarray(a.weights, np.longdouble), np.asarray(b.weights, np.longdouble))
            error = np.sum(np.abs(np.asarray(computed.weights)[:-1] - exact))
            assert error <= float(bound)
            norms = [np.sqrt(np.sum(np.asarray(v, float) ** 2)) for v in (a.weights, b.weights, exact)]
            assert float(bound) == pytest.approx(float(fft_error(2 * points, *norms)), rel=1e-6)


@pytest.mark.parametrize("is_upper", [True, False])
def test_epsilon_inverts_delta_on_the_safe_side(is_upper):
    with jax.enable_x64(True):
        for _ in range(10):
            lattice = random_lattice(128, 1.5, 0.05, is_upper=is_upper)
            for delta in (0.3, 1e-2, 1e-4):
                epsilon = epsilon_of(lattice, jnp.asarray(delta))
                if not 0 < epsilon < np.inf:
                    continue
                exact = exact_delta(lattice, float(epsilon))
                assert (exact <= delta) if is_upper else (exact >= delta)
                assert exact == pytest.approx(delta, rel=1e-9)


def test_slack_widens_by_its_largest_effect():
    with jax.enable_x64(True):
        lattice = random_lattice(64, 2.0, 0.1, is_upper=True)
        loose = replace(lattice, slack=jnp.asarray(1e-3))
        for epsilon in (-1.0, 0.0, 1.5):
            gained = float(delta_of(loose, jnp.asarray(epsilon)) - delta_of(lattice, jnp.asarray(epsilon)))
            # A measure of that tilted mass, anywhere above epsilon.
            losses = epsilon + np.linspace(1e-3, 10, 2000)
            effects = 1e-3 * np.exp(float(lattice.log_mass) - 2.0 * losses) * -np.expm1(epsilon - losses)
            assert gained >= 0.999 * effects.max()
            assert gained <= 1.01 * effects.max() or gained + float(delta_of(lattice, jnp.asarray(epsilon))) == 1.0
