"""Compositions on the evolving mesh beside the exact accountant: many settings, bad plans, sequences, laws of sums."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import cases, draws

import jaxacct as ja
from jaxacct.composition import directed_parts
from jaxacct.numerics import programs
from jaxacct.numerics.precision import leave_scope, scope
from jaxacct.prv import evolving
from jaxacct.prv.accountant import sum_each

POINTS = 512
RUNS = np.random.default_rng(5).uniform([-0.4, -8.0, 0.0, -16.0], [1.2, -1.5, 15.0, -7.0], (draws(8, 60), 4))


@pytest.mark.parametrize("run", np.exp(RUNS).tolist())
def test_brackets_hold_the_exact_ones(run):
    noise, rate, steps, delta = run
    mechanism, steps = ja.PoissonSubsampledGaussian(noise, rate), int(np.ceil(steps))
    exact = ja.saddlepoint.epsilon(mechanism, steps, delta, relation="remove")
    bounds = ja.prv.epsilon(mechanism, steps, delta, relation="remove", points=POINTS)
    assert bounds.lower <= exact.upper
    assert bounds.upper >= exact.lower


def test_cost_does_not_grow_with_the_steps():
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.01)
    for steps in (10**4, 10**6, 10**8):
        bounds = ja.prv.epsilon(mechanism, steps, 1e-5, relation="remove", points=2**13)
        exact = ja.saddlepoint.epsilon(mechanism, steps, 1e-5, relation="remove")
        assert bounds.lower <= exact.upper
        assert bounds.upper >= exact.lower
        assert bounds.gap < 3e-3


@pytest.mark.parametrize("steps", [(100, 0, 0), (0, 100, 0), (0, 0, 100), (0, 7, 100)])
def test_what_is_not_run_changes_nothing_wherever_it_stands(steps):
    """A sum of nothing has no mesh: it may come first, last, or more than once."""
    noises = (10.0, 10.0, 10.0)
    mechanism = ja.Gaussian(np.array(noises))
    runs = sum(steps)
    for verb, exact, at in ((ja.prv.epsilon, ja.epsilon, 1e-5), (ja.prv.delta, ja.delta, 1.0)):
        bounds = verb(mechanism, np.array(steps), at, points=2**13)
        truth = exact(ja.Gaussian(10.0), runs, at)
        assert bounds.lower <= truth.upper
        assert bounds.upper >= truth.lower
        assert bounds.gap < 1e-2


@pytest.fixture
def nothing_kept():
    """What is compiled with one plan is not to be met with another."""
    programs.forget()
    yield
    programs.forget()


ABSURD = [(np.nan, "order"), (np.inf, "order"), (1e300, "nats")]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize(
    ("absurd", "field"),
    cases(
        ABSURD, [(value, field) for value in (np.inf, 0.0, -1.0, 1e300, np.nan) for field in evolving.MeshPlan._fields]
    ),
)
def test_an_absurd_plan_makes_a_wide_bracket_and_never_a_wrong_one(absurd, field):
    made = evolving.plan_sum

    def wrong(*args, **kwargs):
        plan = made(*args, **kwargs)
        return plan._replace(**{field: jnp.full_like(getattr(plan, field), absurd)})

    run = ja.PoissonSubsampledGaussian(1.0, 0.1), 100, 1e-5
    truth = ja.saddlepoint.epsilon(*run, relation="remove")
    with mock.patch.object(evolving, "plan_sum", wrong):
        bounds = ja.prv.epsilon(*run, relation="remove", points=256)
    assert bounds.lower <= truth.upper
    assert bounds.upper >= truth.lower
    assert not np.isnan(bounds.upper)


@pytest.mark.exhaustive
def test_sums_of_their_own_hold_the_compositions():
    """Their masses, with error and shift, lie on either side of delta of many epsilons, and share one tilt."""
    items = [(ja.PoissonSubsampledGaussian(1.1, 0.05), 30), (ja.Gaussian(4.0), 1)]
    with scope():
        compositions = [directed_parts(*item, "remove")[0] for item in items]
        found = [leave_scope(one) for one in sum_each(compositions, [2.0, 5.0], 1.0, 2**13)]
        for item, one in zip(items, found, strict=True):
            assert one.order == found[0].order
            for e in (0.0, 0.2, 0.9, 1.6):
                exact = ja.saddlepoint.delta(*item, e, relation="remove")
                lower, upper = evolving.bound_delta(jax.tree.map(jnp.asarray, one), jnp.asarray(e))
                assert lower <= exact.upper
                assert upper >= exact.lower
                if e <= 1:  # for which the tilt was chosen
                    assert (upper - lower) / upper < 0.05


SEQUENCES = np.random.default_rng(6).uniform([-0.3, -7.0, 2.0], [2.0, -1.5, 8.0], (5, 3, 3))


@pytest.mark.exhaustive
def test_different_mechanisms_are_composed_together():
    """The third is run once, with a window as wide as that of all the others together, or few times."""
    for index, rows in enumerate(np.exp(SEQUENCES).tolist()):
        noise, rate, steps = map(np.array, zip(*rows, strict=True))
        steps = np.floor(steps)
        noise[2], rate[2], steps[2] = [(1.5, 1.0, 1), (40.0, 1.0, 3), (noise[2], rate[2], 20)][index % 3]
        mechanism = ja.PoissonSubsampledGaussian(noise, rate)
        bounds = ja.prv.epsilon(mechanism, steps, 1e-5, tolerance=1e-2, relation="remove")
        exact = ja.saddlepoint.epsilon(mechanism, steps, 1e-5, relation="remove")
        assert bounds.lower <= exact.upper
        assert bounds.upper >= exact.lower
        assert bounds.converged
