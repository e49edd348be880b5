"""Tests of a run's exports: arrays that come back bit for bit, and a function that needs JAX alone."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxacct.train import export_inference, load_model, save_model


class Mixed(nnx.Module):
    """Of two dtypes, with a list, a statistic and random state."""

    def __init__(self, seed, width=4):
        rngs = nnx.Rngs(seed)
        self.layers = nnx.List(
            [nnx.Linear(3, width, rngs=rngs), nnx.Linear(width, 2, rngs=rngs, param_dtype=jnp.bfloat16)]
        )
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.mean = nnx.BatchStat(jnp.full(width, float(seed)))

    def __call__(self, example):
        return self.layers[1](self.drop(self.layers[0](example["x"]) - self.mean[...]))


def test_a_model_comes_back_bit_for_bit_without_its_random_state(tmp_path):
    import orbax.checkpoint

    saved, other = Mixed(0), Mixed(1)
    save_model(saved, tmp_path / "model")
    loaded = load_model(other, tmp_path / "model")
    kept = nnx.Not(nnx.RngState)
    assert jax.tree.all(jax.tree.map(np.array_equal, nnx.state(loaded, kept), nnx.state(saved, kept)))
    assert float(other.mean[0]) == 1.0
    key = jax.random.key_data
    assert np.array_equal(key(loaded.drop.rngs.key[...]), key(other.drop.rngs.key[...]))
    there = orbax.checkpoint.StandardCheckpointer().restore(tmp_path / "model")  # as anybody reads it
    assert sorted(there) == ["layers/0/bias", "layers/0/kernel", "layers/1/bias", "layers/1/kernel", "mean"]


def test_a_folder_is_not_overwritten_unasked_nor_loaded_into_another_model(tmp_path):
    save_model(Mixed(0), tmp_path / "model")
    with pytest.raises(FileExistsError, match="overwrite"):
        save_model(Mixed(1), tmp_path / "model")
    save_model(Mixed(1), tmp_path / "model", overwrite=True)
    assert float(load_model(Mixed(0), tmp_path / "model").mean[0]) == 1.0
    with pytest.raises(ValueError, match=r"layers/0/kernel: float32 \(3, 4\) there, float32 \(3, 5\) here"):
        load_model(Mixed(0, width=5), tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="holds no model"):
        load_model(Mixed(0), tmp_path / "none")


READ_BACK = """
import sys
sys.modules["jaxacct"] = sys.modules["flax"] = None
import numpy as np
from jax import export
call = export.deserialize(bytearray(open(sys.argv[1], "rb").read())).call
for rows in (1, 5):
    np.save(f"{sys.argv[1]}.{rows}.npy", call({"x": np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)}))
"""


@pytest.mark.exhaustive
def test_an_exported_function_needs_neither_jaxacct_nor_flax(tmp_path):
    model = Mixed(0)
    path = tmp_path / "inference"
    path.write_bytes(export_inference(
        model, {"x": jax.ShapeDtypeStruct((3,), np.float32)}, lambda model, example: jax.nn.softmax(model(example)),
        platforms=("cpu",),
    ))  # fmt: skip
    assert not model.drop.deterministic
    subprocess.run([sys.executable, "-c", READ_BACK, str(path)], check=True)
    model.eval()
    for rows in (1, 5):
        batch = {"x": jnp.arange(rows * 3, dtype=jnp.float32).reshape(rows, 3)}
        np.testing.assert_allclose(np.load(f"{path}.{rows}.npy"), jax.nn.softmax(jax.vmap(model)(batch)), rtol=1e-2)


def test_without_flatbuffers_the_package_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("jax._src.export.serialization")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ModuleNotFoundError, match="pip install flatbuffers"):
        export_inference(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), np.zeros(1, np.float32), platforms=("cpu",))
