"""A transformer with dropout, from its first step to its export: keys are part of its state, on every road."""

import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxacct.train import (
    Checkpoints,
    DPTrainer,
    export_inference,
    load_model,
    save_model,
)
from jaxacct_recipes import lora, merge_lora

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, 11, (60, 6)).astype(np.int32)
LABELS = (TOKENS[:, 0] > 5).astype(np.int32)


class Transformer(nnx.Module):
    """One layer of attention and a small network, with dropout behind both."""

    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, dropout_rate=0.2, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.head = nnx.Linear(8, 2, rngs=rngs)
        self.train()

    def __call__(self, tokens):
        hidden = self.embed(tokens)
        hidden = hidden + self.drop(self.attention(self.norm(hidden)))
        return self.head(hidden.mean(axis=0))


def loss(model, tokens, label):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens), label)


def trainer(model=None):
    return DPTrainer(
        Transformer() if model is None else model, loss, optax.adam(1e-2), (TOKENS, LABELS), epsilon=8.0, delta=1e-3,
        steps=6, expected_batch_size=20, clip_norm=1.0, seed=0,
    )  # fmt: skip


def values(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]


@pytest.fixture(scope="module")
def whole():
    """The run, never interrupted."""
    found = trainer()
    found.fit()
    return found


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from test_dropout import Checkpoints, trainer
made = trainer()
keeper = Checkpoints(sys.argv[1], every=2)
made.fit(every=1, on_evaluation=lambda at: at.step == 3 and os.kill(os.getpid(), signal.SIGKILL), keeper=keeper)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal")
def test_a_killed_run_goes_on_as_if_nothing_had_happened(whole, tmp_path):
    here = os.path.dirname(__file__)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "run"), here, os.path.dirname(here)], check=False
    )
    assert ended.returncode == -signal.SIGKILL
    again = trainer()
    keeper = Checkpoints(tmp_path / "run", every=2)
    left = keeper.resume(again)
    assert 0 < again.steps < 6
    again.fit(left, keeper=keeper)
    keeper.close()
    assert again.steps == 6
    for one, other in zip(values(whole.model), values(again.model), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.exhaustive
def test_it_is_saved_loaded_and_exported(whole, tmp_path):
    whole.save(tmp_path / "model")
    loaded = load_model(Transformer(seed=7), tmp_path / "model")
    for one, other in zip(values(whole.model), values(loaded), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_model(loaded, tmp_path / "model")
    save_model(loaded, tmp_path / "model", overwrite=True)
    blob = export_inference(loaded, jax.ShapeDtypeStruct((6,), jnp.int32))
    called = jax.export.deserialize(bytearray(blob)).call(TOKENS[:3])
    loaded.eval()
    np.testing.assert_allclose(called, jax.vmap(loaded)(TOKENS[:3]), rtol=1e-5)


@pytest.mark.exhaustive
def test_its_adapters_are_trained_kept_and_merged(whole, tmp_path):
    adapted = lora(whole.model, 2, targets="head|attention")
    made = trainer(adapted)
    keeper = Checkpoints(tmp_path / "run", every=3)
    made.fit(3, keeper=keeper)
    keeper.close()
    again = trainer(lora(whole.model, 2, targets="head|attention"))
    keeper = Checkpoints(tmp_path / "run", every=3)
    keeper.resume(again)
    again.fit(1, keeper=keeper)
    keeper.close()
    assert again.steps == 4
    merged = merge_lora(again.model)
    merged.eval()
    save_model(merged, tmp_path / "merged")
    loaded = load_model(Transformer(), tmp_path / "merged")
    loaded.eval()
    np.testing.assert_allclose(jax.vmap(loaded)(TOKENS[:3]), jax.vmap(merged)(TOKENS[:3]), rtol=1e-5)
