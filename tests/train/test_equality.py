"""Without noise and without clipping, a private update is the plain one, in whatever pieces it is computed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers.shared import WHOLE
from helpers.thorough import cases

from jaxacct.train import DPTrainer
from jaxacct.train.clipping import AdaptiveQuantile, Automatic, Flat
from jaxacct.train.models import cross_entropy
from jaxacct.train.sampling import PoissonSampler
from jaxacct_recipes import MLP

pytestmark = pytest.mark.usefixtures("unsolved")

EXAMPLES, CAPACITY, EXPECTED = 60, 61, 24.0
HUGE = 1e6
"""Of a clipping norm that clips nothing; an infinite one has no noise to go with."""

rng = np.random.default_rng(1)
INPUTS = rng.normal(size=(EXAMPLES, 7)).astype(np.float32)
LABELS = rng.integers(0, 3, EXAMPLES).astype(np.int32)


@functools.cache
def trainer():
    return DPTrainer(
        MLP((7,), 3, width=8, rngs=nnx.Rngs(0)), cross_entropy, WHOLE, (INPUTS, LABELS), epsilon=5.0,
        delta=1e-3, noise_multiplier=5.0, sampler=PoissonSampler(EXAMPLES, 0.4, CAPACITY), clip_norm=HUGE, seed=2,
    )  # fmt: skip


def shift(shape):
    return (0.1 * np.arange(np.prod(shape, dtype=int)) % 0.7).reshape(shape).astype(np.float32)


def start(rule):
    """A state whose output layer is not zero, so that all gradients are there."""
    state = trainer().state
    shifted = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf) + shift(leaf.shape)), state.params)
    return dataclasses.replace(state, params=shifted, rule=rule)


@functools.cache
def batch():
    indices, mask = trainer().program.draw(trainer().state)
    assert 5 < int(mask.sum()) < CAPACITY
    return (INPUTS[indices], LABELS[indices]), np.asarray(mask)


@functools.cache
def compiled(microbatch_size=None, ghost=False, noise=0.0):
    program = trainer().program
    door = dataclasses.replace(program.door, microbatch_size=microbatch_size, ghost=ghost)
    return jax.jit(dataclasses.replace(program, gradient_noise=noise, door=door).update)


def updated(rule, **way):
    """What one update takes off the parameters: with the learning rate 1, the privatized gradient."""
    state = start(rule)
    after = compiled(**way)(state, trainer().constants, *batch())
    return jax.tree.map(lambda old, new: np.asarray(old) - np.asarray(new), state.params, after.params)


@functools.cache
def plain_gradient():
    """The gradient of the summed loss over the real rows, divided by the expected batch size."""
    state, (examples, mask) = start(Flat(HUGE)), batch()
    graph, _, rest = nnx.split(trainer().model, nnx.Param, ...)

    def mean(params):
        model = nnx.merge(graph, params, rest)
        losses = jax.vmap(lambda *example: cross_entropy(model, *example))(*examples)
        return jnp.where(mask, losses, 0.0).sum() / EXPECTED

    return jax.tree.map(np.asarray, jax.jit(jax.grad(mean))(state.params))


def distance(first, second):
    """Of two gradients, relative to the first, in L2."""
    pairs = list(zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))
    return np.sqrt(sum(np.sum((a - b) ** 2) for a, b in pairs) / sum(np.sum(a**2) for a, _ in pairs))


WAYS = {
    "whole": {},
    "microbatches": {"microbatch_size": 7},
    "ghost": {"ghost": True},
    "ghost in microbatches": {"ghost": True, "microbatch_size": 7},
}

ROUNDING = 2e-6
"""Some tens of float32 roundings: of the parameters, of which the update is a difference, and of the gradients."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS)
def test_without_noise_and_clipping_it_is_the_plain_gradient(way):
    assert distance(plain_gradient(), updated(Flat(HUGE), **WAYS[way])) < ROUNDING


# Both cuts in pieces at once, of a rule that multiplies all rows; the flat one clips some.
PIECES = [(Flat(0.5), way) for way in WAYS] + [(Automatic(0.5), "ghost in microbatches")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rule", "way"), cases(PIECES, [(Automatic(0.5), way) for way in [*WAYS][:-1]]))
def test_clipped_sums_are_the_same_in_all_pieces(rule, way):
    """Each way raises norms by a margin of its own for the roundings of its sum, of at most 0.25 % (SINGLE_MARGIN)."""
    plain = plain_gradient()
    reference = updated(rule)
    assert distance(plain, reference) > 0.1
    assert distance(reference, updated(rule, **WAYS[way])) < (0.003 if "ghost" in WAYS[way] else ROUNDING)


@pytest.mark.exhaustive
def test_an_update_with_noise_is_the_one_without_plus_noise_of_the_right_size():
    quiet, noisy = updated(Flat(0.5)), updated(Flat(0.5), noise=2.0)
    added = np.concatenate(
        [np.ravel(a - b) for a, b in zip(jax.tree.leaves(noisy), jax.tree.leaves(quiet), strict=True)]
    )
    assert np.std(added) * EXPECTED == pytest.approx(2.0 * 0.5, rel=5 / np.sqrt(2 * added.size))


@pytest.mark.exhaustive
def test_microbatches_change_no_count():
    """The count that an adaptive norm follows is that of the real rows."""
    rule = AdaptiveQuantile(0.5, count_noise=3.0)

    def norm(**way):
        after = compiled(**way)(start(rule), trainer().constants, *batch())
        return float(after.rule.clip_norm)

    assert norm() == norm(microbatch_size=7) != rule.clip_norm
