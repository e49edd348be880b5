"""Mechanisms with Laplace noise, mixtures and batches of fixed size: fields, relations, Rényi curves."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers.thorough import cases

from jaxacct import rdp
from jaxacct.mechanisms import (
    Gaussian,
    GaussianMixture,
    GaussianWithoutReplacement,
    Laplace,
    LaplaceWithoutReplacement,
    Mechanism,
    PoissonSubsampledGaussian,
    PoissonSubsampledLaplace,
)

MECHANISMS = [
    Gaussian(2.0),
    PoissonSubsampledGaussian(1.0, 0.01),
    Laplace(2.0),
    PoissonSubsampledLaplace(1.0, 0.01),
    GaussianMixture(1.0, [0.0, 1.0, 2.0], [0.9, 0.09, 0.01]),
    GaussianWithoutReplacement(2.0, 0.05),
    LaplaceWithoutReplacement(2.0, 0.05),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
def test_is_a_mechanism(mechanism):
    assert isinstance(mechanism, Mechanism)
    assert mechanism.batch_shape == ()
    leaves, structure = jax.tree.flatten(mechanism)
    assert jax.tree.structure(structure.unflatten(leaves)) == structure
    for relation in mechanism.relations:
        assert len(mechanism.dominating_pairs(relation)) in (1, 2)
        with jax.enable_x64(True):
            assert all(pair.is_valid() for pair in mechanism.dominating_pairs(relation))
    with pytest.raises(ValueError, match="relation = 'swap' is not supported by"):
        mechanism.dominating_pairs("swap")


def test_fixed_size_batches_know_replacement_only():
    for mechanism in MECHANISMS[-2:]:
        with pytest.raises(ValueError, match="give one of 'replace'"):
            mechanism.dominating_pairs("add_or_remove")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Laplace(-1.0), r"scale = -1.0 is not a scale .*: give"),
        (lambda: Laplace(float("nan")), "scale = nan"),
        (lambda: PoissonSubsampledLaplace(1.0, 1.5), r"sampling_rate = 1.5 is not a probability .*: give"),
        (lambda: LaplaceWithoutReplacement(1.0, -0.5), "sampling_rate = -0.5"),
        (lambda: GaussianWithoutReplacement(-2.0, 0.1), "noise_multiplier = -2.0"),
        (lambda: GaussianMixture(1.0, [0.0, -1.0], [0.5, 0.5]), r"sensitivities = -1.0 is not .*: give"),
        (lambda: GaussianMixture(1.0, [0.0, 0.0], [0.5, 0.5]), "one above 0"),
        (lambda: GaussianMixture(1.0, [0.0, 1.0], [0.5, 0.6]), "probabilities sums to one only within 0.1"),
        (lambda: GaussianMixture(1.0, [0.0, 1.0], [1.0]), "one probability for each sensitivity"),
        (lambda: GaussianMixture(np.ones(3), np.ones((2, 1)), np.ones((2, 1))), "noise_multiplier of shape"),
    ],
)
def test_messages_name_the_argument_the_value_the_reason_and_the_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_laplace_curve_is_the_closed_form():
    # Mironov (2017), Table II.
    orders = np.array([1.01, 1.5, 2.0, 8.0, 64.0])  # five in each test: one program serves all of a kind
    for scale, shift, relation in ((0.5, 1, "add_or_remove"), (3.0, 1, "remove"), (40.0, 2, "replace")):
        values = rdp.curve(Laplace(scale), orders, relation=relation)
        for order, value in zip(orders, values, strict=True):
            a, t = mpmath.mpf(float(order)), shift / mpmath.mpf(scale)
            moment = a / (2 * a - 1) * mpmath.exp((a - 1) * t) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * t)
            truth = mpmath.log(moment) / (a - 1)
            assert 0 <= value / truth - 1 < 2e-10


@pytest.mark.exhaustive
def test_mixture_of_two_is_the_subsampled_gaussian():
    orders = [1.05, 2.0, 8.0, 32.0, 512.0]
    for s, q in ((0.6, 0.1), (4.0, 1e-6)):
        for relation in ("remove", "add"):
            mixture = rdp.curve(GaussianMixture(s, [0.0, 1.0], [1 - q, q]), orders, relation=relation)
            closed = rdp.curve(PoissonSubsampledGaussian(s, q), orders, relation=relation)
            np.testing.assert_allclose(mixture, closed, rtol=1e-10)


@pytest.mark.exhaustive
def test_replacement_costs_at_least_what_it_must():
    orders = [1.5, 4.0, 8.0, 16.0, 32.0]
    for removing, replacing in (
        (PoissonSubsampledGaussian(1.0, 0.02), PoissonSubsampledGaussian(1.0, 0.02)),
        (PoissonSubsampledLaplace(1.0, 0.02), PoissonSubsampledLaplace(1.0, 0.02)),
    ):
        least = rdp.curve(removing, orders, relation="remove")
        most = rdp.curve(replacing, orders, relation="replace")
        assert np.all(most >= least)
    np.testing.assert_allclose(rdp.curve(Gaussian(2.0), orders, relation="replace"), rdp.curve(Gaussian(1.0), orders))
    whole = rdp.curve(GaussianWithoutReplacement(2.0, 1.0), orders, relation="replace")
    np.testing.assert_allclose(whole, rdp.curve(Gaussian(1.0), orders), rtol=1e-10)
    # A fixed batch hides less than a Poisson sample: both its contributions may be of norm 1 and opposite.
    fixed = rdp.curve(LaplaceWithoutReplacement(1.0, 0.02), orders, relation="replace")
    assert np.all(fixed > rdp.curve(PoissonSubsampledLaplace(1.0, 0.02), orders, relation="remove"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mechanism", cases(MECHANISMS[6:], MECHANISMS[2:6]), ids=lambda m: type(m).__name__)
def test_works_under_jit_and_vmap(mechanism):
    relation = mechanism.relations[0]
    orders = [2.0, 3.0, 4.0, 8.0, 16.0]
    alone = rdp.curve(mechanism, orders, relation=relation)

    def of_scaled(factor):
        first, *others = jax.tree.leaves(mechanism)
        scaled = jax.tree.unflatten(jax.tree.structure(mechanism), [first * factor, *others])
        return rdp.curve(scaled, orders[::4], relation=relation)

    # Without noise quadrature takes all the nodes that it may, for each order.
    batch = jax.jit(jax.vmap(of_scaled))(jnp.asarray([1.0, 1.5, 0.0, jnp.nan]))
    np.testing.assert_allclose(batch[0], alone[::4], rtol=1e-6)
    assert np.all(np.asarray(batch[1]) < alone[::4])
    assert np.all(np.isinf(batch[2:]))


@pytest.mark.exhaustive
def test_sequences():
    orders = [1.5, 2.0, 4.0, 8.0, 16.0]
    mixtures = GaussianMixture(1.0, np.array([[0.0, 1.0], [0.0, 2.0]]), np.array([[0.9, 0.1], [0.5, 0.5]]))
    assert mixtures.batch_shape == (2,)
    total = rdp.composed_curve(mixtures, np.array([3, 1]), orders)
    parts = [rdp.curve(GaussianMixture(1.0, [0.0, c], [1 - q, q]), orders) for c, q in ((1.0, 0.1), (2.0, 0.5))]
    np.testing.assert_allclose(total, 3 * parts[0] + parts[1], rtol=1e-9)
    several = Laplace(np.array([1.0, 2.0]))
    assert several.batch_shape == (2,)
    total = rdp.composed_curve(several, np.array([1, 1]), orders)
    np.testing.assert_allclose(total, sum(rdp.curve(Laplace(scale), orders) for scale in (1.0, 2.0)), rtol=1e-9)
