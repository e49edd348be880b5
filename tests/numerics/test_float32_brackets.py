"""Brackets in float32 beside float64's, whatever mechanism has an exact law or a closed form: none may miss the other.

``python -m bench.studies.float32`` has the same questions, of ten thousand settings.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.single import in_single
from helpers.thorough import draws

import jaxacct as ja
from bench.studies.float32 import KINDS, OFF, brackets, compared, settings_of, wrong
from jaxacct.numerics.precision import kernel

NARROW = {"sampled Gaussian": 2e-4, "Gaussian": 1e-4, "one sampled Laplace": 1e-3, "Rényi curves": 1e-4}
"""Kinds whose median width is known to be below so much."""


@pytest.mark.exhaustive
@pytest.mark.first_tier("sampled Gaussian")
@pytest.mark.parametrize("kind", KINDS)
def test_no_bracket_misses_that_of_float64(kind):
    rows = settings_of(kind, draws(40, 400), seed=7)
    found = compared(kind, brackets(kind, rows, narrow=True), brackets(kind, rows, narrow=False))
    assert found["violations"] == 0
    assert found["median"] <= NARROW.get(kind, np.inf)


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", OFF)
def test_what_is_wrong_is_seen(what):
    """Functions that are as wrong as a device's own break brackets."""
    # A factor of all weights alike, as a wrong exp makes it, cancels in a contour.
    kind = "Gaussian, delta" if what == "exp" else "sampled Gaussian"
    rows = settings_of(kind, draws(60, 400), seed=8)
    truth = brackets(kind, rows, narrow=False)
    with wrong(what):
        assert compared(kind, brackets(kind, rows, narrow=True), truth)["violations"] > 0


LEDGERS = {
    "RenyiFilter": (ja.filters.RenyiFilter(3.0, 1e-5, orders=(4.0, 16.0)), ja.Gaussian),
    "ZCDPFilter": (ja.filters.ZCDPFilter(3.0, 1e-5, conversion="mironov"), ja.Gaussian),
    "ApproximateDPFilter": (ja.filters.ApproximateDPFilter(3.0, 1e-5), ja.PureDP),
    "RenyiOdometer": (ja.odometers.RenyiOdometer(1e-5, orders=(4.0, 16.0)), ja.Gaussian),
    "RogersOdometer": (ja.odometers.RogersOdometer(1e-5), ja.PureDP),
}


@pytest.mark.exhaustive
@pytest.mark.first_tier("RenyiFilter")
@pytest.mark.parametrize("name", LEDGERS)
def test_sums_of_many_spends_are_never_below_the_exact_ones(name):
    ledger, mechanism = LEDGERS[name]
    scale = 40.0 if mechanism is ja.Gaussian else 1 / 40
    settings = np.float32(scale * np.random.default_rng(3).uniform(0.5, 2, 300))

    def spend(settings):
        def one(ledger, setting):
            granted, ledger = ledger.spend(mechanism(setting))
            return ledger, granted

        last, granted = jax.lax.scan(one, ledger, settings)
        return jnp.sum(granted), last.epsilon()

    single, reading = in_single(spend)(settings)
    with jax.enable_x64(True):
        native, exact = jax.jit(kernel(spend))(jnp.asarray(settings, jnp.float64))
    assert single <= native
    assert single >= 0.98 * native
    if single == native:
        assert exact <= reading <= 1.01 * exact + 1e-3


def test_the_bracket_is_that_of_traced_and_of_concrete_numbers_alike():
    run = ja.PoissonSubsampledGaussian(1.5, 0.25), 64, 2.0**-17
    bounds = ja.epsilon(*run, arithmetic="float32")
    traced = jax.jit(lambda s, k, d: ja.epsilon(ja.PoissonSubsampledGaussian(s, 0.25), k, d, arithmetic="float32"))
    again = traced(1.5, 64, 2.0**-17)
    assert (bounds.lower, bounds.upper) == (float(again.lower), float(again.upper))
    exact = ja.epsilon(*run)
    assert bounds.lower <= exact.lower <= exact.upper <= bounds.upper
    assert bounds.gap < 5e-4


def test_what_has_no_certificate_in_float32_is_bounded_by_curves():
    bounds = ja.epsilon(ja.Laplace(2.0), 20, 1e-5, arithmetic="float32")
    curves = ja.rdp.epsilon(ja.Laplace(2.0), 20, 1e-5)
    assert bounds.lower == 0
    assert curves <= bounds.upper <= 1.06 * curves
    assert not bounds.converged
    with pytest.raises(ValueError, match="arithmetic"):
        ja.prv.epsilon(ja.Laplace(2.0), 20, 1e-5, arithmetic="float32")


def _mixture(noise, rate):
    return ja.GaussianMixture(noise, np.array([0.0, 1.0, 2.0]), jnp.stack([1 - 0.75 * rate, rate / 2, rate / 4]))


QUADRATURES = {
    "fixed size": (ja.GaussianWithoutReplacement, "replace"),
    "Laplace of fixed size": (ja.LaplaceWithoutReplacement, "replace"),
    "group": (lambda s, q: ja.PoissonSubsampledGroup(s, q, 2), "remove"),
    "mixture": (_mixture, "remove"),
    "mixture added": (_mixture, "add"),
    "sampled Laplace": (ja.PoissonSubsampledLaplace, "add"),
}
ORDERS = np.array([1.5, 8.0, 32.5, 256.0, 10_000.0])


@pytest.mark.exhaustive
@pytest.mark.first_tier("fixed size")
@pytest.mark.parametrize("kind", QUADRATURES)
def test_curves_of_little_noise_are_not_below_those_of_float64(kind):
    """Integrands whose logarithms round by nats have no window, and no value."""
    make, relation = QUADRATURES[kind]
    random, known = np.random.default_rng(5), 0

    def curve(s, q):
        return ja.rdp.curve(make(s, q), ORDERS, relation=relation)

    narrow, wide = in_single(curve), jax.jit(curve)
    for _ in range(draws(20, 300)):
        s, q = (float(np.float32(10.0 ** random.uniform(*ends))) for ends in ((-4, 1.5), (-6, -0.01)))
        with jax.enable_x64(True):
            truth = np.asarray(wide(s, q))
        found = np.asarray(narrow(s, q))
        assert np.all((found >= truth * (1 - 1e-9)) | ~np.isfinite(truth)), (s, q)
        known += np.sum(np.isfinite(found))
    assert known > 20


@pytest.mark.exhaustive
def test_what_overflows_is_not_known_from_below():
    found = ja.epsilon(ja.Gaussian(1e-26), 217, 3.5e-6, arithmetic="float32")
    assert found.lower <= 1e54
    assert found.upper == np.inf
    found = ja.epsilon(ja.PoissonSubsampledGaussian(2.98, 0.5), 7195, 4e-40, arithmetic="float32")
    assert (found.lower, found.upper) == (0, np.inf)
