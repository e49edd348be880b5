"""The fixtures that tests of training share: plans, of which most of what it takes to make a trainer is the solving."""

import functools

import pytest

import jaxacct as ja
from jaxacct.train import Plan, PoissonSampler, config


@pytest.fixture(autouse=True, scope="session")
def solved_once():
    """A plan whose sampler is equal is that of the trainer before, as is one of numbers alone."""
    solve = config._plan
    once = functools.lru_cache(typed=True)(solve)

    def planned(*given):
        try:
            hash(given)
        except TypeError:  # arrays are among what it is made of
            return solve(*given)
        return once(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "_plan", planned)
        yield


@pytest.fixture(scope="module")
def unsolved():
    """Plans of a hundred steps unless more are asked for, for tests that ask nothing of a budget."""

    def planned(sampler, strategy, size, queries, rate, delta, epsilon, noise, steps, samples):
        steps = steps or 100
        sampler = sampler or PoissonSampler.for_budget(size, rate, epsilon=1.0, delta=delta, steps=steps)
        nothing = ja.Bounds(0.0, 0.0, epsilon)
        return Plan(
            sampler=sampler, noise_multiplier=noise, steps=steps, epsilon=epsilon, delta=delta, certified=nothing
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "_plan", planned)
        patch.setattr(config, "_planned_once", planned)
        yield
