"""Tuples and sequences of many lengths share a few programs, and what fills them up to a length costs nothing."""

import jax
import jax.monitoring
import numpy as np
import pytest
from helpers.thorough import cases

import jaxacct as ja
from jaxacct.composition import directed_parts
from jaxacct.numerics import programs

NOISES = np.linspace(10.0, 17.0, 8)
ROUTES = {"exact": ja.saddlepoint.epsilon, "mesh": lambda *a, **options: ja.prv.epsilon(*a, points=2**10, **options)}


def some(count):
    """So many mechanisms, and how often each runs."""
    mechanisms = [
        ja.Gaussian(s) if i % 2 else ja.PoissonSubsampledGaussian(s, 1.0) for i, s in enumerate(NOISES[:count])
    ]
    return tuple(mechanisms), tuple(range(20, 20 + count))


def shapes(mechanism, steps):
    with jax.enable_x64(True):
        parts = directed_parts(mechanism, steps, "add_or_remove")
    return str([(jax.tree.structure(part), [np.shape(leaf) for leaf in jax.tree.leaves(part)]) for part in parts])


def test_few_lengths():
    assert len({shapes(*some(count)) for count in range(1, 9)}) == 4
    sequences = [(ja.Gaussian(np.full(count, 9.0)), np.full(count, 3)) for count in (3, 4, 5, 8, 9, 12)]
    assert len({shapes(*sequence) for sequence in sequences}) == 3
    mixed = (
        ja.Laplace(9.0),
        ja.Gaussian(9.0),
        ja.Laplace(8.0),
        ja.PoissonSubsampledGaussian(1.0, 0.1),
        ja.Laplace(3.0),
    )
    regrouped = tuple(mixed[i] for i in (4, 2, 0, 3, 1))
    assert shapes(mixed, (1, 2, 3, 4, 5)) == shapes(regrouped, (1, 2, 3, 4, 5))


@pytest.mark.first_tier("5-exact")
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("count", cases([5], [3, 7]))
def test_what_is_filled_in_costs_nothing(route, count):
    mechanisms, steps = some(count)
    bounds = ROUTES[route](mechanisms, steps, 1e-5, relation="remove")
    mu = float(np.sqrt(np.sum(np.array(steps) / NOISES[:count] ** 2)))
    truth = float(ja.convert.gdp_to_epsilon(mu, 1e-5))
    assert bounds.lower <= truth * (1 + 1e-12)
    assert truth * (1 - 1e-12) <= bounds.upper
    assert bounds.gap < 1e-2
    # One that is not run, named by the user, is the same.
    idle = ROUTES[route]((*mechanisms, ja.Gaussian(0.01)), (*steps, 0), 1e-5, relation="remove")
    assert np.isclose(idle.upper, bounds.upper, rtol=1e-9 if route == "exact" else 1e-3)
    assert idle.lower <= truth * (1 + 1e-12) <= idle.upper * (1 + 2e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("route", ROUTES)
def test_lengths_up_to_eight_compile_once(route):
    """Every shape of arguments that a program meets is compiled once."""
    programs.forget()
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    ROUTES[route](*some(5), 1e-5, relation="remove")
    assert compiled
    compiled.clear()
    for count in (6, 7, 8):
        ROUTES[route](*some(count), 1e-5, relation="remove")
    assert not compiled
