"""Is each rule's sensitivity a bound on what one example does, and does each rule scale as it says?"""

import functools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxacct.train.clipping import AdaptiveQuantile, Automatic, Flat, PerLayer, clip_and_sum

PARAMS = {"a": {"bias": jnp.zeros(()), "kernel": jnp.zeros((2, 3))}, "b": jnp.zeros(4)}
ROWS = 6


def dot(params, example):
    """A loss whose gradient is the example itself."""
    return sum(jnp.sum(p * x) for p, x in zip(jax.tree.leaves(params), jax.tree.leaves(example), strict=True))


@functools.partial(jax.jit, static_argnames="ghost")
def compiled(rule, rows, mask, ghost=False):
    return clip_and_sum(dot, PARAMS, rows, mask, rule=rule, ghost=ghost)


def flatten(tree):
    return np.concatenate([np.ravel(np.asarray(leaf)).astype(float) for leaf in jax.tree.leaves(tree)])


def random_rows(rng, magnitude):
    scales = magnitude * np.exp(2 * rng.standard_normal(ROWS))
    return jax.tree.map(
        lambda leaf: jnp.asarray(
            (scales * rng.standard_normal((*leaf.shape, ROWS))).transpose(leaf.ndim, *range(leaf.ndim)), jnp.float32
        ),
        PARAMS,
    )


RULES = {
    "flat": Flat(0.7),
    "automatic": Automatic(0.7, 0.02),
    "groups": PerLayer.of({"a": 0.3, "b": 0.4}),
    "leaves": PerLayer.of({"a/bias": 0.1, "a": {"kernel": 0.3}, "b": 0.4}),
    "adaptive": AdaptiveQuantile(0.7),
}


@pytest.mark.first_tier("False-adaptive", "True-automatic", "True-adaptive")
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("ghost", [False, True])
def test_one_row_moves_the_computed_sum_by_at_most_the_sensitivity(name, ghost):
    rule, rng = RULES[name], np.random.default_rng(7)
    most = 0.0
    for magnitude in (1e-12, 1e-3, 0.3, 1.0, 1e6, 1e15):
        rows = random_rows(rng, magnitude)
        whole = flatten(compiled(rule, rows, jnp.ones(ROWS, bool), ghost)[0])
        for row in range(3):
            # Taken away, with the rows behind it moved up, as a packed batch has them.
            others = jax.tree.map(lambda leaf, row=row: jnp.concatenate([leaf[:row], leaf[row + 1 :], leaf[:1]]), rows)
            rest = flatten(compiled(rule, others, jnp.arange(ROWS) < ROWS - 1, ghost)[0])
            moved = np.linalg.norm(whole - rest)
            assert moved <= rule.sensitivity
            most = max(most, moved)
    assert most >= rule.sensitivity * (1 - 1e-3)


@pytest.mark.parametrize("name", RULES)
def test_gradients_that_are_not_finite_contribute_nothing_and_count_as_clipped(name):
    rows = jax.tree.map(lambda leaf: jnp.full((ROWS, *leaf.shape), 1e-4, jnp.float32), PARAMS)
    good, count = compiled(RULES[name], rows, jnp.arange(ROWS) < 1)
    rows["a"]["bias"] = jnp.array([1e-4, jnp.nan, jnp.inf, 1e25, 1e-4, 1e-4], jnp.float32)
    total, bad_count = compiled(RULES[name], rows, jnp.arange(ROWS) < 4)
    np.testing.assert_array_equal(flatten(total), flatten(good))
    assert (float(count), float(bad_count)) == (0.5, 0.5 - 1.5)


def test_flat_clipping_counts_who_is_within():
    rows = jax.tree.map(lambda leaf: jnp.zeros((ROWS, *leaf.shape)), PARAMS)
    rows["b"] = rows["b"].at[:, 0].set(jnp.array([0.1, 0.5, 0.69, 0.71, 5.0, 0.1]))
    total, count = compiled(Flat(0.7), rows, jnp.arange(ROWS) < 5)
    assert float(count) == 0.5 * (3 - 2)
    assert float(total["b"][0]) == pytest.approx(0.1 + 0.5 + 0.69 + 0.7 + 0.7, rel=1e-4)


def test_automatic_clipping_normalizes_every_gradient():
    rows = jax.tree.map(lambda leaf: jnp.zeros((ROWS, *leaf.shape)), PARAMS)
    norms = np.array([1e-3, 0.02, 1.0, 100.0])
    for norm in norms:
        rows["b"] = rows["b"].at[0].set(jnp.array([0.6, 0.0, -0.8, 0.0]) * norm)
        total, _ = compiled(Automatic(0.7, 0.02), rows, jnp.arange(ROWS) < 1)
        assert np.linalg.norm(flatten(total)) == pytest.approx(0.7 * norm / (norm + 0.02), rel=1e-5)


def test_each_group_is_clipped_to_its_own_norm():
    rows = jax.tree.map(lambda leaf: jnp.full((ROWS, *leaf.shape), 2.0), PARAMS)
    total, _ = compiled(RULES["leaves"], rows, jnp.arange(ROWS) < 1)
    for value, norm in ((total["a"]["bias"], 0.1), (total["a"]["kernel"], 0.3), (total["b"], 0.4)):
        assert np.linalg.norm(np.asarray(value)) == pytest.approx(norm, rel=1e-4)
    rows["b"] = jnp.full((ROWS, 4), 0.01)
    total, count = compiled(RULES["leaves"], rows, jnp.arange(ROWS) < 1)
    np.testing.assert_allclose(np.asarray(total["b"]), 0.01, rtol=1e-6)
    assert float(count) == -0.5


def test_the_sensitivity_of_groups_is_their_root_sum_of_squares():
    assert 0.5 <= PerLayer.of({"a": 0.3, "b": 0.4}).sensitivity <= 0.5 * (1 + 1e-12)
    equal = PerLayer.equally(PARAMS, 2.0)
    assert equal.groups == (("a",), ("b",))
    assert 2.0 * (1 - 1e-12) <= equal.sensitivity <= 2.0
    traced = jax.jit(lambda rule: rule.sensitivity)(PerLayer.of({"a": 0.3, "b": 0.4}))
    assert float(traced) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Flat(-1.0), "clip_norm = -1.0"),
        (lambda: Automatic(float("inf")), "clip_norm = inf"),
        (lambda: Automatic(1.0, 0.0), "stability = 0.0"),
        (lambda: PerLayer.of({"a": 1.0, "b": 0.0}), "'b' = 0.0"),
        (lambda: PerLayer.of({}), "0 groups"),
        (lambda: AdaptiveQuantile(1.0, target_quantile=1.5), "target_quantile = 1.5"),
        (lambda: AdaptiveQuantile(1.0, count_noise=0.0), "count_noise = 0.0"),
        (lambda: AdaptiveQuantile(1.0, count_noise=0.5).gradient_noise_multiplier(1.0), "count_noise = 0.5"),
        (lambda: PerLayer.of({"a": 1.0}).factors(PARAMS), "'b' belongs to 0 groups"),
        (lambda: PerLayer.of({"a": 1.0, "a/bias": 1.0, "b": 1.0}).factors(PARAMS), "'a/bias' belongs to 2 groups"),
        (lambda: PerLayer.of({"a": 1.0, "b": 1.0, "c": 1.0}).factors(PARAMS), "group 'c' of PerLayer holds no"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("count_noise", [0.51, 3.0, 20.0, 1e4])
@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 1.0199999])
def test_the_pair_of_sum_and_count_costs_the_noise_multiplier_that_was_asked_for(count_noise, noise_multiplier):
    rule = AdaptiveQuantile(1.0, count_noise=count_noise)
    noise = rule.gradient_noise_multiplier(noise_multiplier)
    with mpmath.workdps(40):
        # The worst example moves the sum by one and the count by one half, in units of the noise on each.
        moved = mpmath.sqrt(1 / mpmath.mpf(noise) ** 2 + (mpmath.mpf("0.5") / mpmath.mpf(count_noise)) ** 2)
        cost = 1 / moved
        assert noise_multiplier <= cost <= noise_multiplier * (1 + 1e-14)
        effective = rule.effective_noise_multiplier(noise)
        assert cost * (1 - 1e-14) <= effective <= cost
    assert noise >= noise_multiplier


def test_other_rules_pay_for_no_count():
    for rule in (Flat(1.0), Automatic(1.0), RULES["groups"]):
        assert rule.gradient_noise_multiplier(1.1) == rule.effective_noise_multiplier(1.1) == 1.1
        assert rule.update(jax.random.key(0), 3.0, 10.0) is rule
    assert math.isinf(Flat(1.0).effective_noise_multiplier(math.inf))
    assert AdaptiveQuantile(1.0, count_noise=4.0).effective_noise_multiplier(math.inf) == 8.0


@pytest.mark.parametrize("start", [0.01, 50.0])
def test_the_adaptive_norm_finds_its_quantile_in_a_compiled_scan(start):
    size, quantile = 400, 0.75

    @jax.jit
    def run(rule, key):
        def step(carry, _):
            rule, key = carry
            key, rows_key, count_key = jax.random.split(key, 3)
            norms = jnp.exp(jax.random.normal(rows_key, (size, 1)))
            _, count = clip_and_sum(dot, jnp.zeros(1), norms, jnp.ones(size, bool), rule=rule)
            rule = rule.update(count_key, count, size)
            return (rule, key), rule.clip_norm

        return jax.lax.scan(step, (rule, key), None, length=150)[1]

    rule = AdaptiveQuantile(jnp.float32(start), target_quantile=quantile, learning_rate=0.3, count_noise=20.0)
    path = np.asarray(run(rule, jax.random.key(1)))
    assert path.dtype == np.float32
    assert np.log(path[-50:]).mean() == pytest.approx(0.6745, abs=0.1)  # the normal law's quartile


def test_the_update_is_the_geometric_one_and_its_noise_is_that_of_the_count():
    rule = AdaptiveQuantile(2.0, target_quantile=0.5, learning_rate=0.2, count_noise=10.0)
    keys = jax.random.split(jax.random.key(3), 2000)
    moved = np.log(np.asarray(jax.jit(jax.vmap(lambda key: rule.update(key, 15.0, 100.0).clip_norm))(keys)) / 2.0)
    assert moved.mean() == pytest.approx(-0.2 * (0.65 - 0.5), abs=3 * 0.02 / np.sqrt(2000))
    assert moved.std() == pytest.approx(0.2 * 10.0 / 100.0, rel=0.08)


def test_the_adaptive_norm_stays_where_float32_holds_it():
    wild = AdaptiveQuantile(1.0, learning_rate=1e3, count_noise=1e3)
    norms = [float(wild.update(jax.random.key(seed), 0.0, 1.0).clip_norm) for seed in range(4)]
    assert set(norms) == {2.0**-60, 2.0**60}
