"""Runs that are interrupted and taken up again, for the tests of checkpoints."""

import json
import pathlib

import jax
import numpy as np
import pytest
from flax import nnx

from helpers.shared import ADAM, sharing
from jaxacct.policies import AdaptiveNoise
from jaxacct.train import AdaptiveQuantile, Checkpoints, DPTrainer, RandomAllocationSampler
from jaxacct.train.checkpoints import SPENDS

BUDGET = {"epsilon": 4.0, "delta": 1e-3}


def squared_error(model, x, y):
    return ((model(x) - y) ** 2).sum()


def make(*, seed=1, loss=squared_error, examples=200, width=3, optimizer=None, **options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, width)).astype(np.float32)
    settings = BUDGET | {"noise_multiplier": 3.0, "expected_batch_size": 40, "clip_norm": 1.0} | options
    settings = {name: value for name, value in settings.items() if value is not None}
    model = nnx.Linear(width, 1, rngs=nnx.Rngs(0))
    return sharing(DPTrainer(model, loss, optimizer or ADAM, (x, x[:, :1]), seed=seed, **settings))


ADAPTIVE = {
    "ledger": "filter",
    "noise_multiplier": None, "expected_batch_size": None, "correct": lambda model, x, y: (model(x)[0] - y[0]) ** 2 < 1,
    "policy": AdaptiveNoise(sampling_rate=0.2, initial=3.0, increment=0.5, least=1.0, period=3, query_noise=20.0),
}  # fmt: skip
QUANTILE = {
    "clip_norm": AdaptiveQuantile(1.0, count_noise=8.0), "ledger": "odometer",
    "epsilon": 8.0, "noise_multiplier": 6.0, "expected_batch_size": 20,
}  # fmt: skip
"""As in bench/studies/crash.py, whose compiled programs are then these."""
EPOCHS = {"expected_batch_size": None, "sampler": RandomAllocationSampler(200, 5, 110)}


def state_bits(trainer):
    """All of the state, key included."""
    leaves = jax.tree.leaves(trainer.state)
    return [
        np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in leaves
    ]


def assert_same(first, second):
    for old, new in zip(state_bits(first), state_bits(second), strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(old, new)
    assert first.spent_epsilon == second.spent_epsilon


class Killed(Exception):
    """Stands for the end of the process."""


def killed_at(step):
    def look(entry):
        if entry.step >= step:
            raise Killed

    return look


def run_until_killed(trainer, folder, step, *, steps=12, every=4, evaluations=2, in_the_middle=False):
    """Trains and dies after the evaluation at ``step``, or within the updates that follow."""
    keeper = Checkpoints(folder, every=every)
    if in_the_middle:
        finish = keeper.finish
        keeper.finish = lambda trainer: _die() if trainer.steps > step else finish(trainer)
        look = None
    else:
        look = killed_at(step)
    with pytest.raises(Killed):
        trainer.fit(steps, every=evaluations, on_evaluation=look, keeper=keeper)
    keeper.close()


def _die():
    raise Killed


def resumed(trainer, folder, **options):
    """Takes the run up and goes to its planned end."""
    keeper = Checkpoints(folder, **({"every": 4} | options))
    left = keeper.resume(trainer)
    history = trainer.fit(left, every=2, keeper=keeper)
    keeper.close()
    return history


def spends(folder):
    return json.loads((pathlib.Path(folder) / SPENDS).read_text())
