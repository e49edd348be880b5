"""Private means of a batch: their share of a step, their sensitivity, their values."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxacct.train import DPTrainer, Metrics

pytestmark = pytest.mark.usefixtures("unsolved")

SIZE = 8.0
MASK = jnp.array([True] * 5 + [False] * 3)


BOUND = 4.0

METRICS = Metrics({"value": (lambda model, x: model(x), BOUND)})


@jax.jit
def released(key, values, unclipped, mask, noise_multiplier):
    return METRICS.after(
        METRICS.start(), jax.random.key(key), lambda: lambda x: x, (values,), mask, unclipped,
        noise_multiplier=noise_multiplier, expected_batch_size=SIZE,
    )  # fmt: skip


def means(values, unclipped=0.5, mask=MASK, noise_multiplier=0.0, key=0):
    found = released(key, jnp.asarray(values, jnp.float32), unclipped, mask, noise_multiplier)
    return {name: float(mean) for name, mean in found.items()}


@pytest.mark.parametrize("share", [1e-3, 0.1, 0.9])
@pytest.mark.parametrize("count", [1, 3])
def test_a_step_with_its_metrics_costs_what_it_is_accounted_at(share, count):
    """In L2, one example moves gradient and centred sums, each over its noise, by 1 / z, and never by more."""
    measures = {f"m{i}": (lambda model, x: x, 1.0) for i in range(count)}
    metrics = Metrics(measures, clipped=False, share=share)
    for z in (0.3, 1.0, 17.0):
        moved = 1 / metrics.gradient_noise_multiplier(z) ** 2 + count * (0.5 / metrics.deviation(z)) ** 2
        assert moved <= 1 / z**2
        assert moved == pytest.approx(1 / z**2, rel=1e-12)


def test_without_noise_they_are_the_centred_means():
    found = means(np.array([1.0, 2.0, 6.0, -4.0, np.nan, 2.0, np.nan, 14.0]))
    expected = BOUND * (np.sum(np.array([0.25, 0.5, 1.0, 0.0, 1.0]) - 0.5) / SIZE + 0.5)
    assert found["value"] == pytest.approx(expected, abs=1e-6)
    assert found["clipped"] == pytest.approx(0.5 - 0.5 / SIZE)


def test_one_example_moves_a_sum_by_half_at_most():
    rng = np.random.default_rng(0)
    apart = MASK.at[2].set(False)
    for scale in (1.0, 1e-12, 1e12, np.inf):
        values = rng.normal(2.0, 4.0, 8) * scale
        moved = abs(means(values)["value"] - means(values, mask=apart)["value"]) / BOUND * SIZE
        assert 0 < moved <= 0.5 * (1 + 1e-6)  # as float32 shows it


def test_the_noise_has_its_scale_and_is_another_for_each_mean():
    draws = [means(np.zeros(8), unclipped=0.0, noise_multiplier=2.0, key=key) for key in range(2000)]
    clipped, value = (np.array([draw[name] for draw in draws]) for name in METRICS.names)
    deviation = METRICS.deviation(2.0) / SIZE
    assert clipped.mean() == pytest.approx(0.5, abs=5 * deviation / np.sqrt(2000))
    assert value.mean() == pytest.approx(BOUND * (0.5 - 2.5 / SIZE), abs=5 * BOUND * deviation / np.sqrt(2000))
    assert clipped.std() == pytest.approx(deviation, rel=0.08)
    assert value.std() == pytest.approx(BOUND * deviation, rel=0.08)
    assert abs(np.corrcoef(clipped, value)[0, 1]) < 5 / np.sqrt(2000)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Metrics(share=0.0), "share = 0.0"),
        (lambda: Metrics(share=1.0), "share = 1.0"),
        (lambda: Metrics(clipped=False), "nothing is asked"),
        (lambda: Metrics({"clipped": (abs, 1.0)}), "rename it"),
        (lambda: Metrics({"loss": (abs, np.inf)}), "bound of 'loss' = inf"),
    ],
)
def test_wrong_uses_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_measure_is_a_pair():
    with pytest.raises(TypeError, match=r"give a pair, \(function, bound\)"):
        Metrics({"loss": abs})


def loss(model, x):
    return jnp.sum((model(x) - 1.0) ** 2)


@pytest.mark.parametrize("shape", [(1,), (3,)])
def test_a_measure_of_several_numbers_is_refused(shape):
    """Each of them would count, and with the mask of the rows each of them for every row."""
    with pytest.raises(ValueError, match=r"measure 'loss' returned an array of shape \(.,\).*a scalar"):
        DPTrainer(
            nnx.Linear(2, 1, rngs=nnx.Rngs(0)), loss, optax.sgd(0.0), (np.ones((400, 2), np.float32),), epsilon=40.0,
            delta=1e-3, noise_multiplier=0.5, sampling_rate=1.0, clip_norm=3.0, seed=1,
            metrics=Metrics({"loss": (lambda model, x: jnp.zeros(shape), 3.0)}),
        )  # fmt: skip
    metrics = Metrics({"loss": (lambda model, x: jnp.zeros(shape), 3.0)})
    with pytest.raises(ValueError, match="a scalar"):
        metrics.after(
            metrics.start(), jax.random.key(0), lambda: None, (jnp.zeros(8),), MASK, 0.0, noise_multiplier=1.0,
            expected_batch_size=SIZE,
        )  # fmt: skip


def test_records_have_the_means_over_the_updates_since_the_one_before():
    """All examples in each batch, and parameters that stay: what the means are is known."""
    x = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    model, metrics = nnx.Linear(2, 1, rngs=nnx.Rngs(0)), Metrics({"loss": (loss, 3.0)}, share=0.5)
    trainer = DPTrainer(
        model, loss, optax.sgd(0.0), (x,), epsilon=40.0, delta=1e-3, noise_multiplier=0.5, sampling_rate=1.0,
        clip_norm=3.0, seed=1, metrics=metrics,
    )  # fmt: skip
    assert trainer.program.gradient_noise == pytest.approx(0.5 * np.sqrt(2))
    first, second = trainer.fit(5, every=3)
    errors = np.asarray(model(x))[:, 0] - 1.0
    clipped = 2 * np.abs(errors) * np.sqrt(1 + np.square(x).sum(axis=1)) > 3.0
    assert 0.1 < clipped.mean() < 0.9
    for record, updates in ((first, 3), (second, 2)):
        deviation = metrics.deviation(0.5) / 400 / np.sqrt(updates)
        assert record.metrics["clipped"] == pytest.approx(clipped.mean(), abs=5 * deviation)
        assert record.metrics["loss"] == pytest.approx(np.minimum(errors**2, 3.0).mean(), abs=5 * 3 * deviation)
    assert first.metrics["loss"] != second.metrics["loss"]
