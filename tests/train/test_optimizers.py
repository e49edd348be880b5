"""What is made of noisy gradients afterwards: averages of parameters, bias-corrected Adam, schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxacct.train import AdaptiveQuantile, DPTrainer, adam_bc, averaged, averaged_model, averaging

ENTRIES = 4


def trainer_of(optimizer, steps=None, **options):
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    settings = {"epsilon": 1.0, "delta": 1e-3, "noise_multiplier": 3.0, "expected_batch_size": 40, "clip_norm": 1.0}
    trainer = DPTrainer(
        nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda m, x: jnp.sum((m(x) - x[:1]) ** 2), optimizer, (x,), seed=1,
        **settings | options,
    )  # fmt: skip
    if steps:
        trainer.fit(steps, every=1)
    return trainer


def gradients(steps, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0.3, 1.0, (steps, ENTRIES)).astype(np.float32)


def run(optimizer, gradients, **extra):
    """The parameters after each update, from zero."""
    params, optimizer = jnp.zeros(ENTRIES), optax.with_extra_args_support(optimizer)

    def step(carry, gradient):
        params, state = carry
        updates, state = optimizer.update(gradient, state, params, **extra)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    (_, state), path = jax.jit(lambda g: jax.lax.scan(step, (params, optimizer.init(params)), g))(gradients)
    return np.asarray(path, np.float64), state


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9999])
def test_the_average_is_that_of_the_definition_from_the_first_update_on(decay):
    given = gradients(30)
    path, state = run(averaging(optax.adam(0.1), decay), given)
    np.testing.assert_array_equal(path, run(optax.adam(0.1), given)[0])
    weights = np.array([decay ** (29 - s) for s in range(30)])
    np.testing.assert_allclose(averaged(state), weights @ path / weights.sum(), rtol=2e-5, atol=1e-6)
    first, state = run(averaging(optax.adam(0.1), decay), given[:1])
    np.testing.assert_allclose(averaged(state), first[0], rtol=1e-6)


def test_narrow_parameters_are_averaged_in_float32():
    params = jnp.full(2, 256.0, jnp.bfloat16)
    optimizer = averaging(optax.set_to_zero(), 0.999)
    _, state = optimizer.update(params, optimizer.init(params), params)
    assert averaged(state).dtype == jnp.float32
    _, state = optimizer.update(params, state, params + 2)  # far below what bfloat16 tells apart, times a half
    assert averaged(state)[0] == pytest.approx(257.0, abs=0.01)


def test_a_trainer_gives_the_averaged_module_and_trains_as_without():
    trainer, plain = trainer_of(averaging(optax.sgd(0.5), 0.5)), trainer_of(optax.sgd(0.5), steps=3)
    kernels, seen = [], []
    trainer.fit(3, every=1, evaluate=lambda m: kernels.append(m.kernel[...]) or float(averaged_model(trainer).bias[0]),
                on_evaluation=lambda record: seen.append(record.accuracy))  # fmt: skip
    np.testing.assert_array_equal(trainer.model.kernel[...], plain.model.kernel[...])
    expected = (kernels[0] / 4 + kernels[1] / 2 + kernels[2]) / 1.75
    np.testing.assert_allclose(averaged_model(trainer).kernel[...], expected, rtol=1e-5)
    assert seen[-1] == averaged_model(trainer).bias[0] != trainer.model.bias[0]
    with pytest.raises(ValueError, match=r"0 averages.*averaging\(optimizer\)"):
        averaged_model(plain)


def by_the_paper(gradients, rate, deviation, floor, b1=0.9, b2=0.999):
    """Algorithm 1 of Tang et al. (2024), line by line, in float64."""
    params, mean, square, path = np.zeros(ENTRIES), np.zeros(ENTRIES), np.zeros(ENTRIES), []
    for t, gradient in enumerate(gradients.astype(np.float64), start=1):
        mean = b1 * mean + (1 - b1) * gradient
        square = b2 * square + (1 - b2) * gradient**2
        corrected = square / (1 - b2**t) - deviation**2
        params = params - rate * mean / (1 - b1**t) / np.sqrt(np.maximum(corrected, floor))
        path.append(params)
    return np.array(path)


@pytest.mark.parametrize(("deviation", "floor"), [(0.5, 1e-2), (1.0, 0.3), (0.0, 1e-8)])
def test_bias_corrected_adam_is_the_papers(deviation, floor):
    given = gradients(40)
    path, _ = run(adam_bc(0.1, floor=floor, noise_deviation=deviation), given)
    np.testing.assert_allclose(path, by_the_paper(given, 0.1, deviation, floor), rtol=1e-3, atol=1e-4)


def test_without_noise_it_is_adam():
    given = gradients(40)
    path, _ = run(adam_bc(0.1), given, noise_deviation=0.0)
    adam, _ = run(optax.adam(0.1), given)
    np.testing.assert_allclose(path, adam, rtol=1e-4, atol=1e-5)


def test_the_default_floor_is_the_deviation_of_what_noise_leaves():
    """Over many entries of nothing but noise, v - s^2 has mean 0 and the floor for its standard deviation."""
    b2, steps, entries = 0.9, 12, 20_000
    noise = np.random.default_rng(1).normal(0, 2.0, (steps, entries))
    weights = b2 ** np.arange(steps)[::-1]
    left = weights @ noise**2 / weights.sum() - 4.0
    last = np.zeros((steps, ENTRIES), np.float32)
    last[-1] = 1.0
    path, _ = run(adam_bc(1.0, b1=0.0, b2=b2, noise_deviation=2.0), last)  # so little that the floor decides
    assert (1 / path[-1, 0]) ** 2 == pytest.approx(left.std(), rel=0.03)
    assert abs(left.mean()) < 5 * left.std() / np.sqrt(entries)


def test_a_trainer_tells_how_much_noise_there_is():
    rule, norms = AdaptiveQuantile(clip_norm=1.0, count_noise=10.0), [1.0]
    trainer = trainer_of(optax.chain(deviations(), adam_bc(0.1)), clip_norm=None, clipping=rule)
    trainer.fit(3, every=1, on_evaluation=lambda _: norms.append(trainer.clip_norm))
    assert len(set(norms)) == 4
    expected = rule.gradient_noise_multiplier(3.0) * norms[2] / 40
    assert float(trainer.state.opt_state[0]) == pytest.approx(expected, rel=1e-5)


def deviations():
    """Keeps what it was told."""
    return optax.GradientTransformationExtraArgs(
        lambda params: jnp.zeros(()), lambda updates, state, params, *, noise_deviation, **_: (updates, noise_deviation)
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: averaging(optax.sgd(1.0), 1.0), "decay = 1.0 is no decay"),
        (lambda: averaging(optax.sgd(1.0)).update(jnp.zeros(1), None), "params = None"),
        (lambda: adam_bc(0.1, b1=-0.1), "b1 = -0.1"),
        (lambda: adam_bc(0.1, b2=1.0), "b2 = 1.0"),
        (lambda: adam_bc(0.1, floor=0.0), "floor = 0.0"),
        (lambda: adam_bc(0.1, noise_deviation=-1.0), "noise_deviation = -1.0"),
        (lambda: run(adam_bc(0.1), gradients(1)), "noise_deviation = None"),
    ],
)
def test_wrong_uses_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_schedule_ends_where_the_plan_does():
    """Warm-up and cosine over as many steps as are planned: the first rate and the one after the last are 0."""
    steps, rates = 5, []
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.5, warmup_steps=2, decay_steps=steps)
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)
    trainer = trainer_of(optimizer, noise_multiplier=None, epochs=1)
    assert trainer.plan.steps == steps
    trainer.fit(every=1, evaluate=lambda model: rates.append(used(trainer)) or 0.0)
    np.testing.assert_allclose(rates, [schedule(step) for step in range(steps)], rtol=1e-6)
    assert rates[0] == 0.0 < rates[1] < rates[2] > rates[3] > rates[4] > schedule(steps) == 0.0


def used(trainer):
    return float(trainer.state.opt_state.hyperparams["learning_rate"])
