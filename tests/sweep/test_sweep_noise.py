"""Sweeps for the least noise: what is returned keeps its budget; what is not known is infinite and flagged."""

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.sweep import AccountantCode, grid

SETTINGS = grid(epsilon=[1e-9, 1.0, 4.0], delta=1e-5, sampling_rate=[1e-8, 0.01], steps=[10, 10_000])
OPTIONS = {"relation": "remove", "tolerance": 1e-6, "show_progress": False}


@pytest.mark.exhaustive
def test_every_noise_keeps_its_budget(monkeypatch):
    found = ja.sweep.noise_multiplier(SETTINGS, mode="saddlepoint", **OPTIONS)
    noise, budget = found["noise_multiplier"], found.axes["epsilon"][:, None, None]
    finite = np.isfinite(noise)
    assert found.shape == (3, 2, 2)
    assert np.all((found.upper <= budget)[finite])
    assert np.all(found.upper[~finite] == 0)  # of noise without end, which is what stands there
    assert not np.any(found.converged[~finite])
    assert np.all(noise[:, 0, 0] == 0)  # the example is in no batch but with probability 1e-7: no noise is needed
    assert np.all(found.converged[1:, 1, 1])
    assert np.all(found.lower[1:, 1, 1] > budget[1:, 0, 0] * (1 - 1e-4))
    assert noise[1, 1, 1] > noise[2, 1, 1] > 0

    # The rest is answered one by one, as a single call would be.
    asked = []

    def single(epsilon, delta, sampling_rate, steps, *, relation, tolerance):
        asked.append((epsilon, delta, sampling_rate, steps, relation, tolerance))
        if epsilon < 1e-6:
            raise ValueError("cannot be met by any noise")
        bounds = ja.Bounds(0.9 * epsilon, epsilon, epsilon)
        return ja.calibrate.Calibrated(np.float64(7.0), bounds, int(ja.calibrate.Status.CONVERGED))

    monkeypatch.setattr(ja.calibrate, "noise_multiplier", single)
    certified = ja.sweep.noise_multiplier(SETTINGS, mode="certified", **OPTIONS)
    assert len(asked) == found.counts()["flagged"] > 0
    for place in zip(*np.nonzero(~found.converged), strict=True):
        if place[0] == 0:
            assert certified["noise_multiplier"][place] == noise[place]
            assert not certified.converged[place]
        else:
            assert certified["noise_multiplier"][place] == 7.0
            assert certified.accountant[place] == AccountantCode.ATOMS
    np.testing.assert_array_equal(certified["noise_multiplier"][found.converged], noise[found.converged])
