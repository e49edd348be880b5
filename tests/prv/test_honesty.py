"""Tests that lower <= truth <= upper, apart from tightness: no tolerance beyond the truth's own error."""

import json
import pathlib

import mpmath
import numpy as np
import pytest
from helpers.brackets import assert_holds, assert_inverts, assert_judged
from helpers.oracle import gaussian_delta, gaussian_epsilon
from helpers.thorough import cases, draws
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxacct as ja

DATA = pathlib.Path(__file__).parent.parent / "data"
TRUTHS = json.loads((DATA / "delta_truth.json").read_text())
PUBLISHED = json.loads((DATA / "prv_published.json").read_text())


@pytest.mark.exhaustive
@pytest.mark.parametrize("points", cases([2**10], [2**8]))
def test_values_known_to_160_bits(points):
    for row in TRUTHS:
        mechanism = ja.PoissonSubsampledGaussian(row["sigma"], row["q"])
        options = {"relation": row["direction"], "points": points}
        assert_holds(ja.prv.delta(mechanism, row["k"], row["eps"], **options), row["delta"], 1e-15)
        # The table's delta is rounded to a double; epsilon moves by less than that relative to its own size.
        assert_holds(ja.prv.epsilon(mechanism, row["k"], row["delta"], **options), row["eps"], 1e-14)


@pytest.mark.parametrize("noise_multiplier", cases([1.0, 1e4], [0.1, 37.0, 100.0]))
def test_gaussian_against_the_closed_form(noise_multiplier):
    for steps in (1, 3, 1000, 10**6 + 1, 10**8):
        with mpmath.workdps(60):
            mu = mpmath.sqrt(steps) / mpmath.mpf(noise_multiplier)
        if mu > 300:
            continue
        for deviations in cases([0.0, 3.0, 21.0], [0.3, 8.0]):  # delta from 0.5 down to 1e-99
            epsilon = float(mu**2 / 2 + deviations * mu)
            bounds = ja.prv.delta(ja.Gaussian(noise_multiplier), steps, epsilon, points=2**10)
            assert_holds(bounds, gaussian_delta(mu, epsilon))
            wanted = float(gaussian_delta(mu, epsilon))
            inverse = ja.prv.epsilon(ja.Gaussian(noise_multiplier), steps, wanted, points=2**10)
            assert_inverts(inverse, lambda e, mu=mu: gaussian_delta(mu, e), wanted)


@given(
    noise=st.floats(0.6, 8.0),
    log_rate=st.floats(-2.2, -0.7),
    log_steps=st.floats(3.0, 6.0),
    deviations=st.floats(0.5, 6.0),
    direction=st.sampled_from(["add", "remove"]),
    points=st.sampled_from(cases([2**10], [2**8])),
)
@settings(max_examples=draws(5, 12), deadline=None, derandomize=True)
def test_random_subsampled_gaussians(noise, log_rate, log_steps, deviations, direction, points):
    rate, steps = 10**log_rate, int(10**log_steps)
    mu = rate * np.sqrt(steps * np.expm1(1 / noise**2))
    epsilon = mu**2 / 2 + deviations * mu
    mechanism = ja.PoissonSubsampledGaussian(noise, rate)
    bounds = ja.prv.delta(mechanism, steps, epsilon, relation=direction, points=points)
    # Refutations are of bench/studies/referee.py, by the thousand, and of what else is judged here.
    assert_judged("delta", mechanism, steps, epsilon, bounds, relation=direction, refutes=False)


@pytest.mark.exhaustive
def test_a_size_of_three_times_a_power_of_two():
    points = 768
    for epsilon in (0.0, 5.0, 20.0):  # delta from 0.38 down to 1e-89
        truth = gaussian_delta(1, epsilon)
        assert_holds(ja.prv.delta(ja.Gaussian(10.0), 100, epsilon, points=points), truth)
        inverse = ja.prv.epsilon(ja.Gaussian(10.0), 100, float(truth), points=points)
        assert_inverts(inverse, lambda e: gaussian_delta(1, e), float(truth))
    assert inverse.gap < 2 * (192 / points) ** 2
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.01)
    bounds = ja.prv.delta(mechanism, 10_000, 6.0, relation="remove", points=points)
    assert_judged("delta", mechanism, 10_000, 6.0, bounds, relation="remove")


@pytest.mark.exhaustive
def test_published_values():
    for row in PUBLISHED:
        mechanism = ja.PoissonSubsampledGaussian(row["noise_multiplier"], row["sampling_rate"])
        options = {"relation": row["relation"], "points": 2**10}
        if row["quantity"] == "epsilon":
            bounds = ja.prv.epsilon(mechanism, row["steps"], row["delta"], **options)
        else:
            bounds = ja.prv.delta(mechanism, row["steps"], row["epsilon"], **options)
        if row["kind"] == "mpmath_ground_truth":
            assert_holds(bounds, row["value"])
        elif row["kind"] == "prv_upper_bound_regression":
            # Another library's upper end, which aims 0.01 above the truth.
            assert bounds.lower <= row["value"]
            assert row["value"] <= bounds.upper + 0.015
        else:
            # Point estimates of windows of fixed length: F055 is 2.4e-4 too small, as the contour integral confirms.
            assert bounds.lower <= row["value"] * (1 + 1e-3)
            assert row["value"] * (1 - 1e-3) <= bounds.upper


def test_disputed_published_value():
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.02)
    bounds = ja.prv.epsilon(mechanism, 10_000, 1e-6, relation="remove", points=2**10)
    assert_judged("epsilon", mechanism, 10_000, 1e-6, bounds, relation="remove")


def test_tiny_delta_where_absolute_errors_would_swamp_it():
    truth = gaussian_epsilon(1.0, 1e-120)
    bounds = ja.prv.epsilon(ja.Gaussian(10.0), 100, 1e-120)
    assert_holds(bounds, truth, 1e-13)
    assert bounds.gap < 1e-3


@pytest.mark.parametrize(
    ("mechanism", "steps"),
    [
        (ja.PoissonSubsampledGaussian(1e-3, 0.01), 2),
        (ja.PoissonSubsampledGaussian(1.0, 0.01), 2**53),
    ],
)
def test_what_cannot_be_bounded_costs_everything(mechanism, steps):
    bounds = ja.prv.epsilon(mechanism, steps, 1e-5, points=2**10)
    assert bounds.upper > 100
    assert bounds.lower >= 0
    assert ja.prv.delta(mechanism, steps, 1.0, points=2**10).upper > 0.01
