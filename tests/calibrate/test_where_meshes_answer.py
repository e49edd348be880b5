"""Calibration at the ends: budgets of which a little noise is the best, and compositions that the mesh answers."""

import warnings

import numpy as np
import pytest

import jaxacct as ja


def test_little_noise_is_no_floor():
    found = ja.calibrate.noise_multiplier(1e6, 1e-6, 1.0, 75)
    assert found.status == ja.calibrate.Status.CONVERGED
    assert ja.epsilon(ja.Gaussian(found.value), 75, 1e-6).upper <= 1e6
    assert ja.epsilon(ja.Gaussian(found.value * (1 - 1e-5)), 75, 1e-6).lower > 1e6


def schedule(scale):
    return ja.PureDP(1 / scale), ja.PureDP(np.float64(0.2))


@pytest.mark.exhaustive
def test_settings_that_are_only_tried_warn_nobody():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ja.calibrate.scale(schedule, 1.0, 1e-6, (9, 2))
    assert found.satisfied
    assert ja.epsilon(schedule(found.value), (9, 2), 1e-6, tolerance=1e-5).upper <= 1 + 1e-5
    assert ja.epsilon(schedule(found.value * (1 - 1e-3)), (9, 2), 1e-6, tolerance=1e-5).lower > 1
