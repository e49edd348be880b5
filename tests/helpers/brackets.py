"""The claims of a bracket, as assertions."""

import numpy as np

from jaxacct import verify

MOVED = 1e-6
"""Relative distance off a bracket at which a claim is to be refuted."""


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


def assert_judged(quantity, mechanism, steps, given, *brackets, relation="add_or_remove", refutes=True):
    """The referee proves what the brackets say together, and refutes an upper end a part in 10^6 below the lower one.

    The latter, which asks for the truth itself, may be left out. ``quantity`` is "epsilon" at a delta or "delta" at an
    epsilon. That two brackets overlap follows: it proves neither.
    """
    judge, most = {"epsilon": (verify.epsilon, np.inf), "delta": (verify.delta, 1.0)}[quantity]
    for one in brackets:
        assert one.lower <= one.estimate <= one.upper or (np.isnan(one.estimate) and not one.converged), one
    lower, upper = max(float(one.lower) for one in brackets), min(float(one.upper) for one in brackets)
    verdict = judge(mechanism, steps, given, (lower, upper), relation=relation)
    assert verdict.status == "PROVED", (mechanism, steps, given, brackets, verdict)
    if refutes:
        moved = (0.0, lower * (1 - MOVED)) if lower > 0 else (upper * (1 + MOVED), most)
        assert judge(mechanism, steps, given, moved, relation=relation).status == "REFUTED", (mechanism, steps, moved)
