"""Named recipes: that they are complete, mean what their sources print, and make trainers that keep to their plan."""

import dataclasses
import math

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct_recipes
from bench.papers import ratings, recipes, reviews
from bench.papers.networks import PooledEmbedding, root_mean_squared_error
from jaxacct.train import accuracy
from jaxacct_recipes import Dataset, planned_epsilon
from jaxacct_recipes.datasets import LOADERS

RECIPES = jaxacct_recipes.RECIPES | recipes.RECIPES

SHAPES = {
    "digits": ((8, 8, 1), jnp.float32, 10),
    "mnist": ((28, 28, 1), jnp.float32, 10),
    "fashion-mnist": ((28, 28, 1), jnp.float32, 10),
    "adult": ((123,), jnp.float32, 2),
    "adult-uci": ((105,), jnp.float32, 2),
    "cifar10": ((32, 32, 3), jnp.float32, 10),
    "imdb": ((reviews.LENGTH,), jnp.int32, 2),
    "movielens": ((2,), jnp.int32, ratings.STARS),
}
"""Of one example of each data set, and its number of classes."""

TRAINING = {"mnist": 60_000, "adult": 29_305, "imdb": 25_000, "movielens": 800_167, "cifar10": 50_000}

# Bu et al. (2020), Tables 1 to 4: noise multiplier, expected batch, epochs, and the mu printed, from (3.1).
PRINTED = {
    "bu-mnist-1": (1.3, 256, 15, 0.23),
    "bu-mnist-2": (1.1, 256, 60, 0.57),
    "bu-mnist-3": (0.7, 256, 45, 1.13),
    "bu-mnist-4": (0.6, 256, 62, 2.00),
    "bu-mnist-5": (0.55, 256, 68, 2.76),
    "bu-mnist-6": (0.5, 256, 100, 4.78),
    "bu-adult": (0.55, 256, 18, 2.03),
    "bu-imdb": (0.56, 512, 9, 2.07),
    "bu-movielens": (0.6, 800_167 / 80, 20, 1.94),
}


def test_every_data_set_has_a_recipe_of_its_own_name():
    assert set(LOADERS) == set(jaxacct_recipes.RECIPES)
    assert set(recipes.LOADERS) <= set(RECIPES)
    for name in recipes.LOADERS:
        assert RECIPES[name].dataset == name


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_module_fits_its_data(name):
    recipe = RECIPES[name]
    shape, dtype, classes = SHAPES[recipe.dataset]
    outputs = jax.eval_shape(
        lambda example: recipe.module(shape, classes, nnx.Rngs(0))(example), jax.ShapeDtypeStruct(shape, dtype)
    )
    assert outputs.shape == (classes,)
    if isinstance(recipe, recipes.Recipe):
        stars = recipe.dataset == "movielens"
        assert (recipe.metric, recipe.measure) == (
            ("rmse", root_mean_squared_error) if stars else ("accuracy", accuracy)
        )


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_settings_give_the_printed_mu(name):
    """mu = p sqrt(T (e^(1/sigma^2) - 1)), (3.1), of the recipe's own numbers and to the digits printed."""
    recipe, (noise, batch, epochs, printed) = RECIPES[name], PRINTED[name]
    assert (recipe.noise_multiplier, recipe.batch_size, recipe.epochs) == (noise, pytest.approx(batch), epochs)
    rate = recipe.batch_size / TRAINING[recipe.dataset]
    steps = recipe.epochs / rate
    mu = rate * math.sqrt(steps * math.expm1(noise**-2))
    assert mu == pytest.approx(printed, abs=0.0101)


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_planned_budget_pays_for_the_plan(name):
    recipe = RECIPES[name]
    size = TRAINING[recipe.dataset]
    rate = recipe.batch_size / size
    steps = round(recipe.epochs / rate)
    epsilon = planned_epsilon(size, rate, recipe.noise_multiplier, steps=steps, delta=recipe.delta)
    less = planned_epsilon(size, rate, recipe.noise_multiplier, steps=steps - 1, delta=recipe.delta)
    assert 0 < less < epsilon < math.inf


def small(name, examples=300, test=20):
    rng = np.random.default_rng(0)
    shape, dtype, classes = SHAPES[name]
    if dtype == jnp.int32:
        inputs = rng.integers(0, 1000, (examples, *shape)).astype(np.int32)
    else:
        inputs = rng.random((examples, *shape), np.float32)
    labels = rng.integers(0, classes, examples).astype(np.int32)
    return Dataset(name, inputs[test:], labels[test:], inputs[:test], labels[:test], classes)


def test_a_recipe_splits_its_data_as_its_source_does(tmp_path):
    (tmp_path / "a9a").write_text("".join(f"{i % 2} {i % 100 + 1}:1\n" for i in range(4000)))
    dataset = RECIPES["bu-adult"].load(tmp_path)
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (744, 3256)
    assert len(jaxacct_recipes.load("adult", tmp_path).test_labels) == 800


@pytest.mark.exhaustive
def test_a_trainer_by_name_keeps_to_its_plan():
    dataset = small("adult")
    trainer, steps = recipes.make_trainer(dataset, recipe="bu-adult", batch_size=20, epochs=2, seed=0)
    assert steps == 28  # two passes of 280 examples, 20 at a time
    assert trainer.remaining_steps in (steps, steps + 1)
    assert (trainer.noise_multiplier, trainer.clip_norm, trainer.delta) == (0.55, 1.0, 1e-5)
    history = trainer.fit(steps, every=14, evaluate=lambda model: RECIPES["bu-adult"].evaluate(model, dataset))
    assert trainer.steps == steps
    assert 0 <= history[-1].accuracy <= 1
    assert trainer.spent_epsilon <= trainer.epsilon


@pytest.mark.exhaustive
def test_a_budget_stops_short_of_the_recipes_epochs():
    dataset = small("adult")
    _, whole = recipes.make_trainer(dataset, recipe="bu-adult", batch_size=20, seed=0)
    trainer, fewer = recipes.make_trainer(dataset, recipe="bu-adult", batch_size=20, epsilon=20.0, seed=0)
    assert 0 < fewer < whole == 252
    assert trainer.epsilon == 20.0


@pytest.mark.exhaustive
def test_words_train():
    """Whole numbers as inputs, and Algorithm 2, on a vocabulary small enough for a test."""
    recipe = dataclasses.replace(
        RECIPES["bu-imdb"], module=lambda shape, classes, rngs: PooledEmbedding(1000, classes, width=4, rngs=rngs)
    )
    dataset = small("imdb")
    trainer, steps = recipes.make_trainer(dataset, recipe=recipe, batch_size=20, epochs=0.05, seed=0)
    assert steps == 1
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.state.params)]
    trainer.fit(steps)
    after = [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.state.params)]
    # The first step of Algorithm 2 is (1 - b1)/sqrt(1 - b2) rates long, and shorter only for a gradient of xi's size.
    length = 0.02 * 0.1 / math.sqrt(0.001)
    for old, new in zip(before, after, strict=True):
        assert (np.abs(new - old) <= length * (1 + 1e-4)).all()
        assert np.median(np.abs(new - old)) == pytest.approx(length, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recipe": "bu-mnst"}, "recipe = 'bu-mnst' is not known.*bu-mnist-1"),
        ({"recipe": "bu-mnist-1"}, "recipe is for the data set mnist, not for adult"),
        ({}, "epsilon = None, delta = None.*Give delta"),
        ({"delta": 1e-3}, "epsilon = None, delta = 0.001, epochs = None"),
        ({"epsilon": 1.0, "delta": 1e-3, "epochs": -1}, "epochs = -1"),
        ({"recipe": "bu-adult", "learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"recipe": "bu-adult"}, "expected_batch_size|batch"),
    ],
)
def test_bad_input(options, words):
    dataset = small("adult", examples=30, test=10)
    if options == {"recipe": "bu-adult"}:  # a batch above the data is cut to it by default, not where it is given
        options = {**options, "batch_size": 21}
    with pytest.raises(ValueError, match=words):
        (recipes if "recipe" in options else jaxacct_recipes).make_trainer(dataset, **options)
