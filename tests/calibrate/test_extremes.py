"""Budgets at the ends of sensible ranges: answers that make sense, after few questions."""

import numpy as np
import pytest

import jaxacct as ja
from jaxacct import calibrate, certified
from jaxacct.calibrate import Status


@pytest.fixture
def asked(monkeypatch):
    """Yields the list of questions that the accountants of the top level have been asked."""
    questions, answer = [], certified.answer

    def counted(*args, **named):
        questions.append(args)
        return answer(*args, **named)

    monkeypatch.setattr(certified, "answer", counted)
    return questions


@pytest.mark.exhaustive
@pytest.mark.first_tier("steps")
@pytest.mark.parametrize("unknown", ["noise_multiplier", "sampling_rate", "steps", "scale"])
def test_a_budget_beyond_all_bounds_does_not_bind(asked, unknown):
    search, end = {
        "noise_multiplier": (lambda: calibrate.noise_multiplier(1e300, 1e-5, 1.0, 1000), 1e-6),
        "sampling_rate": (lambda: calibrate.sampling_rate(1e300, 1e-5, 1.0, 1000), 1.0),
        "steps": (lambda: calibrate.steps(1e300, 1e-5, 1.0, 1.0), 2.0**53),
        "scale": (lambda: calibrate.scale(ja.Laplace, 1e300, 1e-5, 3), 1e-2),
    }[unknown]
    found = search()
    assert found.status == Status.NOT_BINDING
    assert found.value == pytest.approx(end)
    assert found.reached.upper <= 1e300
    assert len(asked) <= 2


@pytest.mark.exhaustive
def test_what_delta_covers_is_not_searched(asked):
    found = calibrate.noise_multiplier_for_advantage(0.1, sampling_rate=0.01, steps=3)
    assert (found.value, found.status, len(asked)) == (0.0, Status.NOT_BINDING, 0)
    assert 1 - 0.99**3 <= found.reached.upper <= 0.1


@pytest.mark.exhaustive
@pytest.mark.parametrize("epsilon", [0.0, 1e-9])
@pytest.mark.parametrize(("noise", "steps", "delta"), [(1.0, 1000, 1e-5), (0.8, 10, 1e-3)])
def test_an_epsilon_of_next_to_nothing(asked, epsilon, noise, steps, delta):
    """By the mesh, which the search does not ask: what is found meets the budget, and little more does not."""
    found = calibrate.sampling_rate(epsilon, delta, noise, steps)
    assert found.reached.upper <= epsilon
    assert len(asked) <= 12

    def delta_of(rate):
        return ja.prv.delta(ja.PoissonSubsampledGaussian(noise, rate), steps, epsilon, points=2**15)

    assert delta_of(found.value).lower <= delta
    assert delta_of(1.01 * found.value).lower > delta


@pytest.mark.exhaustive
def test_little_noise_is_searched_where_it_is(asked):
    """The least noise for 10^5, of which brackets say little: within a tenth of what they refute."""
    found = calibrate.noise_multiplier(1e5, 1e-5, 0.01, 1000)
    assert found.satisfied
    assert len(asked) <= 8
    assert ja.epsilon(ja.PoissonSubsampledGaussian(0.8 * float(found.value), 0.01), 1000, 1e-5).lower > 1e5
    assert np.isfinite(found.reached.upper)
