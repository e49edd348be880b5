"""The top level: the narrower of two brackets, by itself, concrete or traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import THOROUGH, cases

import jaxacct as ja


@pytest.mark.exhaustive
def test_the_exact_accountant_answers_where_it_has_converged():
    bounds = ja.epsilon(ja.PoissonSubsampledGaussian(1.0, 0.01), 10_000, 1e-5)
    assert bounds.converged
    assert bounds.lower <= 6.187712389971 <= bounds.upper
    assert bounds.gap < 1e-11


def test_the_mesh_answers_where_it_has_not():
    mechanism = ja.PoissonSubsampledGaussian(0.65, 0.001)
    assert not ja.saddlepoint.epsilon(mechanism, 10, 1e-5, relation="remove").converged
    bounds = ja.epsilon(mechanism, 10, 1e-5, relation="remove", points=256)
    mesh = ja.prv.epsilon(mechanism, 10, 1e-5, relation="remove", points=256)
    assert bounds.upper <= mesh.upper
    assert bounds.lower >= mesh.lower
    assert bounds.lower <= bounds.estimate <= bounds.upper


@pytest.mark.exhaustive
def test_a_traced_batch_takes_either_route_and_has_derivatives_by_both():
    def upper(noise_multiplier, sampling_rate, steps):
        mechanism = ja.PoissonSubsampledGaussian(noise_multiplier, sampling_rate)
        return ja.epsilon(mechanism, steps, 1e-5, relation="remove").upper

    batch = jnp.array([1.0, 0.65]), jnp.array([0.01, 0.001]), jnp.array([10_000.0, 10.0])
    if THOROUGH:
        values, slopes = jax.jit(jax.vmap(jax.value_and_grad(upper)))(*batch)
    else:  # compiling the derivatives as well takes as long again
        values = jax.jit(jax.vmap(upper))(*batch)
        slopes = [jax.grad(upper)(*row) for row in zip(*batch, strict=True)]
    # The rates and noises above are those of float32.
    for i, value in enumerate(values):
        mechanism = ja.PoissonSubsampledGaussian(*(x[i] for x in batch[:2]))
        one = ja.epsilon(mechanism, batch[2][i], 1e-5, relation="remove", tolerance=1e-3)
        assert float(value) == pytest.approx(one.upper, rel=1e-6)
    assert float(slopes[0]) == pytest.approx(-11.906753, rel=1e-5)
    near = [ja.epsilon(ja.PoissonSubsampledGaussian(s, 0.001), 10, 1e-5, relation="remove", tolerance=1e-6).upper
            for s in (0.645, 0.655)]  # fmt: skip
    assert float(slopes[1]) == pytest.approx((near[1] - near[0]) / 0.01, rel=0.02)


@pytest.mark.parametrize("options", [{"tolerance": 1e-3, "points": 512}, {"points": 100}, {"tolerance": -1.0}])
def test_options_are_checked_by_either_route(options):
    with pytest.raises(ValueError, match=r"tolerance|points"):
        ja.epsilon(ja.Gaussian(1.0), 1, 1e-5, **options)


BOUNDED = [
    ja.PoissonSubsampledLaplace(0.5, 0.2),
    ja.Laplace(0.5),
    ja.LaplaceWithoutReplacement(0.5, 0.2),
    ja.RandomizedResponse(0.5, outcomes=3),
    ja.PureDP(0.5),
    ja.PoissonSubsampledDP(0.5, 0.0, 0.2),
    ja.ExponentialMechanism(0.5),
    ja.AboveThreshold(4.0, 8.0),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mechanism", cases(BOUNDED[:2] + BOUNDED[6:7], BOUNDED), ids=lambda m: type(m).__name__)
def test_just_below_the_supremum_of_a_bounded_loss(mechanism):
    """There a mesh cannot tell the last of the mass; 1 - e^(eps - S) can, which falls to 0 at the supremum S."""
    # A tolerance takes the finest mesh, for ten seconds a question.
    points = 4096 if isinstance(mechanism, (ja.PoissonSubsampledLaplace, ja.Laplace)) and not THOROUGH else None
    relation = mechanism.relations[0]
    supremum = ja.epsilon(mechanism, 3, 0.0, relation=relation).upper
    for below in (1e-2, 2e-6, 1e-9):
        bounds = ja.delta(mechanism, 3, supremum * (1 - below), relation=relation, points=points)
        assert 0 <= bounds.lower <= bounds.upper <= -np.expm1(-supremum * below) * (1 + 1e-6)
    for delta in (1e-12, 1e-100, 1e-300):
        bounds = ja.epsilon(mechanism, 100, delta, relation=relation, points=points)
        assert bounds.lower <= bounds.upper <= 100 / 3 * supremum * (1 + 1e-12)
        assert bounds.upper <= ja.rdp.epsilon(mechanism, 100, delta, relation=relation) * (1 + 1e-12)


@pytest.mark.exhaustive
def test_what_stood_wide_below_a_supremum():
    assert ja.epsilon(ja.ExponentialMechanism(0.1), 100, 1e-100).upper < 8.99
    assert ja.epsilon(ja.ExponentialMechanism(0.1), 100, 0.0).lower == pytest.approx(10.0)
