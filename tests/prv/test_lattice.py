"""The moves on measures, each as an inequality on random inputs in the order of the bounds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from thorough import program

from jaxacct.batching import stack
from jaxacct.prv.evaluate import delta_of, epsilon_of
from jaxacct.prv.lattice import LossLattice, coarsen, identity_like, normalize
from jaxacct.prv.spectrum import heaviest, invert, multiply, offset_to, transform

RANDOM = np.random.default_rng(7)
DELTAS = jax.jit(jax.vmap(delta_of, in_axes=(None, 0)))
DELTA, EPSILON = program(delta_of), program(epsilon_of)
COARSEN, MULTIPLY, NORMALIZE = program(coarsen), program(multiply), program(normalize)


def random_lattice(points, order, mesh, *, is_upper, start=None):
    """A lattice with random weights over ten orders of magnitude, some of them zero."""
    weights = np.exp(RANDOM.uniform(-23, 0, points)) * (RANDOM.random(points) > 0.1)
    weights[-1] = 0.0  # as convolution leaves it
    start = -points * mesh / 3 if start is None else start
    return lattice_of(*map(jnp.asarray, (weights, float(start), float(mesh), float(order), is_upper)))


@program
def lattice_of(weights, start, mesh, order, is_upper):
    zero = jnp.asarray(0.0)
    lattice = LossLattice(
        weights=weights, log_mass=zero, start=start, mesh=mesh, order=order, slack=zero, shift=zero, log_total=zero,
        is_upper=is_upper,
    )  # fmt: skip
    lattice = normalize(lattice)
    mass = jnp.sum(lattice.weights * jnp.exp(-order * lattice.losses))
    return replace(lattice, log_mass=-jnp.log(mass), log_total=-jnp.log(mass), slack=zero)


@program
def turned(lattice):
    return transform(lattice, heaviest(stack(lattice)))


@program
def inverted(spectrum, low, tail):
    return invert(spectrum, offset_to(jnp.asarray(low), spectrum.lattice), jnp.asarray(tail))


LOSSES = program(lambda lattice: lattice.losses)


def exact_delta(lattice, epsilon):
    """delta of the weights alone, no allowance, in long doubles."""
    losses = np.asarray(LOSSES(lattice), dtype=np.longdouble)
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
            epsilons = np.linspace(float(lattice.start) - mesh, float(LOSSES(lattice)[-1]) + mesh, 41)
            after = np.asarray(DELTAS(COARSEN(lattice), epsilons))
            before = np.array([exact_delta(lattice, epsilon) for epsilon in epsilons])
            assert np.all(side * (after - before) >= 0)


@pytest.mark.parametrize("is_upper", [True, False])
def test_coarsening_loses_the_square_of_the_mesh(is_upper):
    errors = []
    with jax.enable_x64(True):
        for points in (128, 256):
            losses = np.linspace(-4, 4, points, endpoint=False)
            lattice = random_lattice(points, 1.0, losses[1] - losses[0], is_upper=is_upper, start=-4.0)
            weights = np.append(np.exp(-(losses[:-1] ** 2)), 0.0)
            lattice = NORMALIZE(replace(lattice, weights=jnp.asarray(weights)))
            # Between two points: at a point that stays the upper reading loses nothing, at one that goes the lower one
            # next to nothing.
            epsilon = 1.0 + (losses[1] - losses[0]) / 2
            errors.append(abs(exact_delta(COARSEN(lattice), epsilon) / exact_delta(lattice, epsilon) - 1))
    assert 3.0 < errors[0] / errors[1] < 5.5
    assert errors[1] < 10 * (8 / 256) ** 2


def circular(a, b):
    """Cyclic convolution in long doubles, of which every product is formed."""
    n = len(a)
    whole = np.convolve(np.asarray(a, np.longdouble), np.asarray(b, np.longdouble))
    return whole[:n] + np.append(whole[n:], 0)


@pytest.mark.parametrize("points", [64, 192, 1024])
def test_errors_of_a_product_of_spectra_are_bounded(points):
    with jax.enable_x64(True):
        for _ in range(5):
            a, b = (random_lattice(points, 1.0, 0.1, is_upper=True) for _ in range(2))
            product = MULTIPLY(turned(a), turned(b))
            # Index 0 of either circle is the largest weight.
            exact = circular(*(np.roll(w, -int(np.argmax(w))) for w in (np.asarray(a.weights), np.asarray(b.weights))))
            frequencies = np.arange(points // 2 + 1)[:, None] * np.arange(points)
            phases = 2 * np.pi * np.asarray(frequencies % points, np.longdouble) / points
            values = np.sum(exact * np.cos(phases), axis=1) - 1j * np.sum(exact * np.sin(phases), axis=1)
            errors = np.abs(np.asarray(product.values, np.clongdouble) - values)
            assert errors.max() <= float(product.uniform_error)
            assert np.sqrt(2 * np.sum(errors**2)) <= float(product.l2_error)


@pytest.mark.parametrize("points", [64, 192, 1024])
def test_slack_of_a_convolution_covers_its_rounding(points):
    with jax.enable_x64(True):
        for _ in range(5):
            a, b = (random_lattice(points, 1.0, 0.1, is_upper=True) for _ in range(2))
            start = a.start + b.start
            found = inverted(MULTIPLY(turned(a), turned(b)), start, 0.0)
            offset = round(float((found.start - start) / a.mesh))
            exact = np.roll(circular(np.asarray(a.weights), np.asarray(b.weights)), -offset)
            shares = np.exp(np.longdouble(found.log_mass) - np.longdouble(a.log_mass) - np.longdouble(b.log_mass))
            error = np.sum(np.abs(np.asarray(found.weights, np.longdouble) * shares - exact))
            assert error <= float(found.slack)
            assert found.slack < 1e-11


def test_wrapped_mass_is_a_window_away():
    """What the window cuts off appears inside, a window's length off; no mass is lost."""
    with jax.enable_x64(True):
        a, b = (random_lattice(64, 0.5, 0.1, is_upper=True) for _ in range(2))
        for low in (-6.0, 0.0, 5.0):
            found = inverted(MULTIPLY(turned(a), turned(b)), low, 0.01)
            assert abs(float(found.start) - low) <= 2 * 0.1
            steps = float((found.start - a.start - b.start) / a.mesh)
            assert steps == pytest.approx(round(steps), abs=1e-9)
            exact = np.roll(circular(np.asarray(a.weights), np.asarray(b.weights)), -round(steps))
            np.testing.assert_allclose(np.asarray(found.weights), np.asarray(exact, float), atol=1e-13)
            assert found.slack >= 0.01


@pytest.mark.parametrize("is_upper", [True, False])
def test_identity_leaves_a_lattice_as_it_is(is_upper):
    side = 1 if is_upper else -1
    with jax.enable_x64(True):
        lattice = random_lattice(64, 1.0, 0.1, is_upper=is_upper)
        product = MULTIPLY(turned(lattice), turned(identity_like(lattice)))
        same = inverted(product, lattice.start, 0.0)
        # The window begins at an even distance from the largest weight: a point lower, or not.
        offset = round(float((same.start - lattice.start) / lattice.mesh))
        assert offset in (-1, 0)
        np.testing.assert_allclose(np.roll(same.weights, offset), lattice.weights, atol=1e-14)
        epsilons = np.linspace(-2, 4, 13)
        before = np.array([exact_delta(lattice, epsilon) for epsilon in epsilons])
        assert np.all(side * (np.asarray(DELTAS(same, epsilons)) - before) >= 0)


@pytest.mark.parametrize("is_upper", [True, False])
def test_coarsening_keeps_the_number_of_points(is_upper):
    with jax.enable_x64(True):
        lattice = random_lattice(64, 2.0, 0.1, is_upper=is_upper)
        coarse = COARSEN(lattice)
        assert coarse.points == 64
        assert float(coarse.mesh) == 0.2
        assert float(coarse.start) == float(lattice.start)
        assert np.all(np.asarray(coarse.weights)[33:] == 0)
        assert np.all(np.asarray(coarse.weights) >= 0)


@pytest.mark.parametrize("is_upper", [True, False])
def test_epsilon_inverts_delta_on_the_safe_side(is_upper):
    with jax.enable_x64(True):
        for _ in range(10):
            lattice = random_lattice(128, 1.5, 0.05, is_upper=is_upper)
            for delta in (0.3, 1e-2, 1e-4):
                epsilon = EPSILON(lattice, jnp.asarray(delta))
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
            gained = float(DELTA(loose, epsilon) - DELTA(lattice, epsilon))
            # A measure of that tilted mass, anywhere above epsilon.
            losses = epsilon + np.linspace(1e-3, 10, 2000)
            effects = 1e-3 * np.exp(float(lattice.log_mass) - 2.0 * losses) * -np.expm1(epsilon - losses)
            assert gained >= 0.999 * effects.max()
            assert gained <= 1.01 * effects.max() or gained + float(DELTA(lattice, epsilon)) == 1.0


@pytest.mark.parametrize("is_upper", [True, False])
def test_either_half_of_the_points_may_stay(is_upper):
    side = 1 if is_upper else -1
    with jax.enable_x64(True):
        for order, mesh in ((0.5, 0.2), (3.0, 0.05), (20.0, 0.01), (1.0, 1.0)) * 5:
            lattice = random_lattice(64, order, mesh, is_upper=is_upper)
            epsilons = np.linspace(float(lattice.start) - mesh, float(LOSSES(lattice)[-1]) + mesh, 41)
            coarse = COARSEN(lattice, True)
            assert float(coarse.start) == float(lattice.start) - float(lattice.mesh)
            before = np.array([exact_delta(lattice, epsilon) for epsilon in epsilons])
            assert np.all(side * (np.asarray(DELTAS(coarse, epsilons)) - before) >= 0)
