"""What a bracket claims, as assertions."""

import numpy as np


def assert_holds(bounds, truth, error=0.0):
    """The truth, known up to a relative ``error``, lies inside."""
    assert bounds.lower <= truth * (1 + error), (bounds, truth)
    assert truth * (1 - error) <= bounds.upper, (bounds, truth)
    assert bounds.lower <= bounds.estimate <= bounds.upper


def assert_inverts(bounds, delta_at, delta):
    """The epsilon at which a decreasing function takes the value ``delta`` lies inside."""
    assert delta_at(float(bounds.upper)) <= delta, bounds
    assert bounds.lower == 0 or delta_at(float(bounds.lower)) >= delta, bounds
    assert bounds.lower <= bounds.estimate <= bounds.upper


def assert_overlap(*brackets):
    """All of the brackets may hold one truth."""
    for one in brackets:
        assert not any(np.any(np.isnan(end)) or np.any(end < 0) for end in (one.lower, one.estimate, one.upper)), one
        assert np.all(one.lower <= one.upper), one
    lower = np.max([one.lower for one in brackets], axis=0)
    upper = np.min([one.upper for one in brackets], axis=0)
    assert np.all(lower <= upper), brackets
