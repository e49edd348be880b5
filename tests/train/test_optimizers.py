"""Tests of the post-processing of noisy gradients: averages of parameters, bias-corrected Adam, schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxacct.train import AdaptiveQuantile, DPTrainer, adam_bc, averaged, averaged_model, averaging, settings
from jaxacct.train.models import check_module

ENTRIES = 4


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


@pytest.mark.exhaustive
def test_all_of_it_in_a_planned_run_of_a_trainer():
    """One run: warm-up and cosine over the plan's steps, the noise told as the clipping norm moves, and the average."""
    steps, rule, norms, rates, kernels = 5, AdaptiveQuantile(clip_norm=1.0, count_noise=10.0), [1.0], [], []
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.5, warmup_steps=2, decay_steps=steps)
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    trainer = DPTrainer(
        nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda m, x: jnp.sum((m(x) - x[:1]) ** 2),
        averaging(optax.chain(deviations(), optax.inject_hyperparams(adam_bc)(learning_rate=schedule)), 0.5), (x,),
        epsilon=1.0, delta=1e-3, epochs=1, expected_batch_size=40, clip_norm=rule, seed=1,
    )  # fmt: skip

    def look(record):
        told, inner = trainer.state.opt_state.inner
        noise = rule.gradient_noise_multiplier(trainer.noise_multiplier)
        assert float(told) == pytest.approx(noise * norms[-1] / 40, rel=1e-5)
        norms.append(trainer.clip_norm)
        rates.append(float(inner.hyperparams["learning_rate"]))
        kernels.append(trainer.model.kernel[...])

    trainer.fit(every=1, on_evaluation=look)
    assert trainer.plan.steps == trainer.steps == len(set(norms)) - 1 == steps
    np.testing.assert_allclose(rates, [schedule(step) for step in range(steps)], rtol=1e-6)
    assert rates[0] == 0.0 < rates[1] < rates[2] > rates[3] > rates[4] > schedule(steps) == 0.0
    expected = sum(kernel * 2.0**step for step, kernel in enumerate(kernels)) / (2.0**steps - 1)
    np.testing.assert_allclose(averaged_model(trainer).kernel[...], expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"0 averages.*averaging\(optimizer\)"):
        averaged(optax.sgd(0.1).init(jnp.zeros(1)))


@pytest.mark.parametrize(
    "optimizer",
    [optax.lbfgs(), optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())],
    ids=["lbfgs", "reduce_on_plateau"],
)
def test_an_optimizer_that_asks_for_a_loss_is_refused_for_that(optimizer):
    params = {"kernel": jnp.zeros((3, 2))}
    with pytest.raises(ValueError, match=r"optimizer asks for 'value'.* private data, and no noise") as caught:
        settings.check_optimizer(optimizer, params, optimizer.init(params))
    assert len(str(caught.value)) <= 600
    for fine in (optax.adam(1e-3), optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9))):
        settings.check_optimizer(fine, params, fine.init(params))


def test_spectral_norm_is_refused_for_its_power_iteration():
    norm = nnx.SpectralNorm(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"nnx.SpectralNorm at the top: .* power iteration") as caught:
        check_module(norm)
    assert "private data" not in str(caught.value)
