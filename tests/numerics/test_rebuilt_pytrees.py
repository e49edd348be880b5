"""May JAX, Optax, Orbax and pickle put anything into a pytree, and do accountants still refuse what is no number?"""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.registered import MECHANISMS, others, registered

import jaxacct as ja
from jaxacct.mechanisms.mechanism import check_mechanism
from jaxacct.train.clipping import Automatic
from jaxacct.train.settings import rule_of

RUBBISH = {
    "str": "a name", "bool": True, "tuple": (1.0, 2.0), "None": None, "negative": -1.0, "object": object(),
    "shape": jax.ShapeDtypeStruct((3,), np.float32), "sharding": jax.sharding.PartitionSpec("x"), "NaN": np.nan,
}  # fmt: skip
"""What pytrees of names, masks, axes, gradients and shapes hold."""


@pytest.fixture(scope="module")
def pytrees():
    return MECHANISMS | others()


@pytest.fixture(scope="module")
def all_pytrees():
    return MECHANISMS | others(ledgers=True)


def fill_with(made, value):
    return jax.tree.map(lambda _: value, made)


def check_filled(made, value):
    filled = fill_with(made, value)
    assert type(filled) is type(made)
    assert repr(filled)
    assert jax.tree.structure(jax.tree.map(lambda leaf: leaf, made)) == jax.tree.structure(made)


@pytest.mark.parametrize("name", RUBBISH)
def test_anything_may_stand_in_a_pytree(pytrees, name):
    for made in pytrees.values():
        check_filled(made, RUBBISH[name])


@pytest.mark.exhaustive
def test_the_examples_are_all_public_pytrees_and_anything_may_stand_in_them(all_pytrees):
    rooms = ("bounds", "filters", "mechanisms", "odometers", "selection", "strategies")
    public = {
        kind
        for kind in registered()
        if kind.__module__.split(".")[1] in rooms
        and not kind.__name__.startswith("_")
        and not kind.__name__.endswith(("State", "Pair", "Block", "Run", "FromBelow", "NestedAllocation"))
    }
    public |= {ja.DiscretePair}
    assert public <= {type(made) for made in all_pytrees.values()}
    for made in all_pytrees.values():
        for value in RUBBISH.values():
            check_filled(made, value)


@pytest.mark.parametrize("name", RUBBISH)
def test_accountants_refuse_a_mechanism_of_anything_but_its_numbers(name):
    """Nothing that is no parameter is accounted for; these checks come before anything is computed."""
    for made in MECHANISMS.values():
        filled = fill_with(made, RUBBISH[name])
        with pytest.raises((TypeError, ValueError)):
            check_mechanism(filled)


def test_a_constructor_refuses_what_jax_may_put_there():
    for value in ("2.0", True, np.True_, np.array(True), jnp.array(True), (1.0, 2.0), 2j):
        with pytest.raises(TypeError, match="noise_multiplier"):
            ja.Gaussian(value)
    with pytest.raises(ValueError, match="noise_multiplier"):
        dataclasses.replace(ja.Gaussian(2.0), noise_multiplier=-1.0)


def test_a_rule_that_was_rebuilt_is_checked_where_it_is_given():
    with pytest.raises(ValueError, match="stability"):
        rule_of(
            jax.tree.map(lambda leaf: -leaf, Automatic(1.0)) and dataclasses.replace(Automatic(1.0), stability=-1.0)
        )
    spoiled = jax.tree_util.tree_map_with_path(
        lambda path, leaf: -0.9 if "stability" in jax.tree_util.keystr(path) else leaf, Automatic(1.0)
    )
    with pytest.raises(ValueError, match="stability"):
        rule_of(spoiled)
    with jax.enable_x64(True):
        factors, _ = spoiled.factors({"w": jnp.array([1.0])})
    assert float(factors["w"][0]) <= 1.0, "a gradient of norm 1 stays within the clipping norm"


def test_a_strategy_that_was_rebuilt_is_checked_where_it_is_accounted_for():
    spoiled = jax.tree.map(np.zeros_like, ja.strategies.square_root(2))
    with pytest.raises(ValueError, match="first_column"):
        ja.MatrixMechanism(spoiled, 1.0, ja.strategies.SinglePass(4))
    made = ja.MatrixMechanism(ja.strategies.square_root(2), 1.0, ja.strategies.SinglePass(4))
    without = jax.tree_util.tree_map_with_path(
        lambda path, leaf: 0.0 if "sensitivity" in jax.tree_util.keystr(path) else leaf, made
    )
    with pytest.raises(ValueError, match="sensitivity"):
        ja.epsilon(without, 1, 1e-5)


def test_a_gradient_with_respect_to_a_mechanism_is_a_mechanism():
    found = jax.grad(lambda mechanism: ja.epsilon(mechanism, 10, 1e-5).upper)(ja.Gaussian(2.0))
    up, down = (float(ja.epsilon(ja.Gaussian(2.0 + h), 10, 1e-5).upper) for h in (1e-4, -1e-4))
    assert float(found.noise_multiplier) == pytest.approx((up - down) / 2e-4, rel=1e-5)
    with pytest.raises(ValueError, match="noise_multiplier"):
        ja.epsilon(found, 10, 1e-5)


def test_optax_masks_a_mechanism():
    mechanism = ja.PoissonSubsampledGaussian(2.0, 0.1)
    mask = jax.tree_util.tree_map_with_path(lambda path, _: "noise" in jax.tree_util.keystr(path), mechanism)
    rule = optax.masked(optax.sgd(0.5), mask)
    update, _ = rule.update(jax.tree.map(jnp.ones_like, mechanism), rule.init(mechanism), mechanism)
    assert (float(update.noise_multiplier), float(update.sampling_rate)) == (-0.5, 1.0)


def same(found, made):
    return jax.tree.structure(found) == jax.tree.structure(made) and all(
        jnp.issubdtype(getattr(a, "dtype", np.float64), jax.dtypes.prng_key) or np.array_equal(a, b, equal_nan=True)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(made), strict=True)
    )


def check_copies(pytrees):
    for name, made in pytrees.items():
        if name.startswith("PrivacyLoss") or "PrivateState" in name:  # functions, and a typed key, which no pickle has
            continue
        assert same(pickle.loads(pickle.dumps(made)), made), name
        assert same(copy.deepcopy(made), made), name


def test_pickle_and_copy_restore_pytrees(pytrees):
    check_copies(pytrees)


@pytest.mark.exhaustive
def test_pickle_and_copy_restore_every_ledger(all_pytrees):
    check_copies(all_pytrees)


def by_orbax(made, folder):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, made)
        checkpointer.wait_until_finished()
        as_it_is = checkpointer.restore(folder, made)
        by_shapes = checkpointer.restore(folder, jax.tree.map(ocp.utils.to_shape_dtype_struct, made))
    return as_it_is, by_shapes


def test_orbax_restores_the_state_of_a_loop_and_a_filter(pytrees, tmp_path):
    made = {
        name: made for name, made in pytrees.items() if name.startswith(("PrivateState", "RenyiFilter", "Gaussian["))
    }
    made["bounds"] = ja.Bounds(1.0, 1.5, 2.0)
    assert len(made) == 4
    assert all(same(found, made) for found in by_orbax(made, tmp_path / "state"))


@pytest.mark.exhaustive
def test_orbax_restores_every_pytree(all_pytrees, tmp_path):
    for i, (name, made) in enumerate(all_pytrees.items()):
        if jax.tree.leaves(made):  # without numbers there is nothing to write
            assert all(same(found, made) for found in by_orbax(made, tmp_path / str(i))), name
