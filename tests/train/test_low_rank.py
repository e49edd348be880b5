"""Adapters compute what their model does at first, are all that is trained, and are merged away."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers.shared import ADAM, cosines, sharing
from jax import export

from jaxacct.train import Checkpoints, DPTrainer, PoissonSampler, export_inference, load_model
from jaxacct.train.clipping import Flat, clip_and_sum
from jaxacct.train.models import merge_params, split_params
from jaxacct_recipes import lora, merge_lora

pytestmark = pytest.mark.usefixtures("unsolved")


class Attentive(nnx.Module):
    """A layer used twice, which Flax calls by its first name, "again", and attention, whose layers have more axes."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first = self.again = nnx.Linear(8, 8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=2, in_features=8, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)

    def __call__(self, x):
        return self.again(self.attention(self.norm(jnp.tanh(self.first(x)))))


def loss(model, x):
    return jnp.sum(model(x) ** 2)


X = np.random.default_rng(0).normal(size=(6, 5, 8)).astype(np.float32)


def spread(model):
    """The adapters of a model with entries that are not zero."""
    state = nnx.state(model, nnx.LoRAParam)
    nnx.update(model, jax.tree.map(cosines, state))
    return model


@nnx.jit
def call(model, x):
    return model(x)


@pytest.mark.exhaustive
def test_adapters_change_nothing_at_first_and_are_merged_away():
    model = Attentive()
    adapted = lora(model, 2, 4.0)
    before = call(model, X[0])
    np.testing.assert_array_equal(call(adapted, X[0]), before)
    assert adapted.first is adapted.again
    trained = spread(adapted)
    plain = merge_lora(trained)
    assert jax.tree.structure(nnx.split(plain)[1]) == jax.tree.structure(nnx.split(model)[1])
    after = call(plain, X[0])
    np.testing.assert_allclose(after, call(trained, X[0]), rtol=1e-5, atol=1e-5)
    assert np.abs(after - before).max() > 0.1


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_ghost_norms_are_exact_and_only_adapters_have_them(dtype):
    adapted = spread(lora(Attentive(), 2, targets=("again", "attention/(query|out)"), base_dtype=dtype))
    graph, params, rest = split_params(adapted)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 3 * 2 * (8 + 8)
    if dtype is not None:
        kernels = jax.tree.leaves(nnx.state(merge_params(graph, params, rest), nnx.Not(nnx.LoRAParam)))
        assert all(leaf.dtype == dtype for leaf in kernels if leaf.size > 1)

    def one(params, x):
        return loss(merge_params(graph, params, rest), x)

    mask = jnp.ones(len(X), bool)

    @jax.jit
    def both(params, x):
        return [clip_and_sum(one, params, x, mask, rule=Flat(0.5), ghost=way)[0] for way in (True, False)]

    ghost, stored = both(params, X)
    for found, expected in zip(jax.tree.leaves(ghost), jax.tree.leaves(stored), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


@pytest.mark.exhaustive
def test_a_step_beside_an_int8_base_is_that_beside_the_floats_that_it_stands_for():
    model, targets = Attentive(), ("again", "attention/(query|out)")
    rounded = spread(lora(model, 2, targets=targets, base_dtype=jnp.int8))
    kernel, steps = rounded.again.base.kernel[...], rounded.again.steps[...]
    assert (kernel.dtype, steps.dtype, rounded.norm.scale.dtype) == (jnp.int8, jnp.float32, jnp.bfloat16)
    assert np.abs(model.first.kernel[...] - kernel * steps).max() <= steps.max() * 0.501
    assert kernel.max(axis=0).max() == 127 or kernel.min(axis=0).min() == -127
    with_zeros = lora(model, 2, targets=targets, base_dtype=jnp.int8)
    plain = merge_lora(with_zeros)
    assert plain.first.kernel.dtype == jnp.float32
    np.testing.assert_array_equal(plain.first.kernel[...], kernel * steps)
    floats = spread(lora(plain, 2, targets=targets))

    def summed(adapted):
        graph, params, rest = split_params(adapted)
        one = lambda params, x: loss(merge_params(graph, params, rest), x)  # noqa: E731
        mask = jnp.ones(len(X), bool)
        run = jax.jit(lambda params: clip_and_sum(one, params, X, mask, rule=Flat(0.5), ghost=True)[0])
        return jax.tree.leaves(run(params))

    for found, expected in zip(summed(rounded), summed(floats), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(call(merge_lora(rounded), X[0]), call(rounded, X[0]), rtol=1e-5, atol=1e-5)


def trainer_of(model, **options):
    return sharing(DPTrainer(
        lora(model, 2, targets="again", **options), loss, ADAM, (X,), epsilon=2.0, delta=1e-2, noise_multiplier=4.0,
        clip_norm=1.0, seed=0, sampler=PoissonSampler(6, 0.5, 7),
    ))  # fmt: skip


@pytest.mark.exhaustive
def test_a_trainer_trains_and_saves_adapters_alone(tmp_path):
    trainer, keeper = trainer_of(Attentive()), Checkpoints(tmp_path / "run", every=1, keep=1)
    before = trainer.constants
    trainer.fit(1, keeper=keeper)
    keeper.close()
    again = trainer_of(Attentive())
    assert Checkpoints(tmp_path / "run", every=1).resume(again) == 0
    np.testing.assert_array_equal(call(again.model, X[0]), call(trainer.model, X[0]))
    other = Attentive()
    other.first.kernel[...] += 1.0
    with pytest.raises(ValueError, match="frozen parameters"):
        Checkpoints(tmp_path / "run", every=1).resume(trainer_of(other))
    assert sum(leaf.size for leaf in jax.tree.leaves(trainer.state.opt_state)) == 2 * 2 * (8 + 8) + 1
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(trainer.constants), strict=True):
        np.testing.assert_array_equal(old, new)
    trainer.save(tmp_path / "adapted")
    loaded = load_model(lora(Attentive(), 2, targets="again"), tmp_path / "adapted")
    np.testing.assert_array_equal(call(loaded, X[0]), call(trainer.model, X[0]))


@pytest.mark.exhaustive
def test_a_run_beside_an_int8_base_is_taken_up_saved_and_exported(tmp_path):
    def made(dtype=jnp.int8):
        return trainer_of(Attentive(), base_dtype=dtype)

    trainer, keeper = made(), Checkpoints(tmp_path / "run", every=1, keep=1)
    trainer.fit(1, keeper=keeper)
    keeper.close()
    with pytest.raises(ValueError, match="frozen again/base/kernel: int8"):
        Checkpoints(tmp_path / "run", every=1).resume(made(jnp.bfloat16))
    again = made()
    Checkpoints(tmp_path / "run", every=1).resume(again)
    trainer.save(tmp_path / "adapted")
    loaded = load_model(lora(Attentive(), 2, targets="again", base_dtype=jnp.int8), tmp_path / "adapted")
    assert loaded.again.base.kernel.dtype == jnp.int8
    expected = call(trainer.model, X[0])
    for model in (again.model, loaded):
        np.testing.assert_array_equal(call(model, X[0]), expected)
    inferred = export.deserialize(bytearray(export_inference(loaded, X[0]))).call(X)
    np.testing.assert_allclose(inferred[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rank": 0}, "rank = 0"),
        ({"alpha": -1.0}, "alpha = -1.0"),
        ({"base_dtype": jnp.int32}, "int32.* is not supported"),
        ({"targets": ()}, "leaves the model without adapters"),
        ({"targets": ("again", "atention")}, "'atention' fits no linear layer"),
    ],
)
def test_what_makes_no_adapters_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        lora(Attentive(), **({"rank": 2} | wrong))


def test_there_must_be_adapters_to_merge():
    with pytest.raises(ValueError, match="no adapters"):
        merge_lora(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
