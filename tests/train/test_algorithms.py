"""NoisySGD and NoisyAdam against direct transcriptions of the published algorithms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from bench.papers.algorithms import noisy_adam, noisy_sgd
from jaxacct.train import DPTrainer

pytestmark = pytest.mark.usefixtures("unsolved")

STEPS = 30


def falling(step):
    return 0.3 / (1 + step)


def algorithm_1(theta, gradients, rate):
    for t, v in enumerate(gradients):
        theta = theta - rate(t) * v
    return theta


def algorithm_2(theta, gradients, rate, b1, b2, xi):
    m = u = np.zeros_like(theta)
    for t, v in enumerate(gradients):
        m = b1 * m + (1 - b1) * v
        u = b2 * u + (1 - b2) * v * v
        theta = theta - rate(t) * m / (np.sqrt(u) + xi)
    return theta


def corrected(theta, gradients, rate, b1, b2, xi):
    """Kingma and Ba (2014), Algorithm 1."""
    m = u = np.zeros_like(theta)
    for t, v in enumerate(gradients):
        m = b1 * m + (1 - b1) * v
        u = b2 * u + (1 - b2) * v * v
        theta = theta - rate(t) * (m / (1 - b1 ** (t + 1))) / (np.sqrt(u / (1 - b2 ** (t + 1))) + xi)
    return theta


def optax_run(optimizer, theta, gradients):
    @jax.jit
    def step(carry, gradient):
        params, state = carry
        updates, state = optimizer.update({"w": gradient}, state, params)
        return (optax.apply_updates(params, updates), state), None

    params = {"w": jnp.asarray(theta, jnp.float32)}
    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), jnp.asarray(gradients, jnp.float32))
    return np.asarray(params["w"])


@pytest.fixture
def noisy():
    rng = np.random.default_rng(0)
    theta = rng.normal(size=4)
    gradients = rng.normal(size=(STEPS, 4)) * np.array([1.0, 1e-3, 10.0, 0.0])  # one entry has no gradient at all
    return theta.astype(np.float32).astype(np.float64), gradients.astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("rate", [0.25, falling])
def test_noisy_sgd_is_algorithm_1(noisy, rate):
    theta, gradients = noisy
    expected = algorithm_1(theta, gradients, rate if callable(rate) else lambda t: rate)
    np.testing.assert_allclose(optax_run(noisy_sgd(rate), theta, gradients), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rate", "b1", "b2", "xi"), [(0.02, 0.9, 0.999, 1e-8), (falling, 0.5, 0.9, 1e-3)])
def test_noisy_adam_is_algorithm_2(noisy, rate, b1, b2, xi):
    theta, gradients = noisy
    schedule = rate if callable(rate) else lambda t: rate
    for correction, transcription in ((False, algorithm_2), (True, corrected)):
        expected = transcription(theta, gradients, schedule, b1, b2, xi)
        found = optax_run(noisy_adam(rate, b1, b2, xi, bias_correction=correction), theta, gradients)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    different = np.abs(algorithm_2(theta, gradients, schedule, b1, b2, xi) - expected).max()
    assert different > 0.02  # so that one could not pass for the other


def test_steps_without_correction_are_as_long_as_the_docstring_says():
    gradients = np.ones((30, 1))
    travelled = [algorithm_2(np.zeros(1), gradients[:t], lambda t: 1.0, 0.9, 0.999, 1e-8)[0] for t in range(30)]
    lengths = -np.diff(travelled)
    assert lengths[0] == pytest.approx(3.16, abs=0.01)
    assert lengths.max() == pytest.approx(6.57, abs=0.01)
    assert lengths.argmax() + 1 == 12


@pytest.mark.first_tier("noisy_adam-0.05-0.5-<lambda>")
@pytest.mark.parametrize(
    ("make", "rate", "clip_norm", "transcription"),
    [
        (noisy_sgd, 0.5, 1.0, algorithm_1),
        (noisy_adam, 0.05, 0.5, lambda theta, v, rate: algorithm_2(theta, v, rate, 0.9, 0.999, 1e-8)),
    ],
)
def test_a_whole_run_of_the_trainer(make, rate, clip_norm, transcription):
    """With p = 1 the expected batch is the realized one, so that the trainer is the published algorithm; with next to
    no noise the run is determined. The clipping is done here by the published formula."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=40).astype(np.float32)
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    start = np.concatenate([np.asarray(model.bias[...]), np.asarray(model.kernel[...])[:, 0]]).astype(np.float64)
    trainer = DPTrainer(
        model, lambda m, x, y: jnp.square(m(x)[0] - y), make(rate), (x, y), epsilon=1e12, delta=1e-3,
        noise_multiplier=1e-5, sampling_rate=1.0, clip_norm=clip_norm, seed=2,
    )  # fmt: skip
    trainer.fit(steps=10)

    def run(theta):
        features = np.concatenate([np.ones((40, 1)), x], axis=1).astype(np.float64)
        seen = []
        for _ in range(10):
            now = transcription(theta, seen, lambda t: rate)
            each = 2 * (features @ now - y)[:, None] * features
            norms = np.linalg.norm(each, axis=1, keepdims=True)
            seen.append((each / np.maximum(1, norms / clip_norm)).sum(axis=0) / 40)
        assert (norms > clip_norm).any()
        assert (norms < clip_norm).any()
        return transcription(theta, seen, lambda t: rate)

    trained = trainer.model
    found = np.concatenate([np.asarray(trained.bias[...]), np.asarray(trained.kernel[...])[:, 0]])
    # Clipping stays 2^-15 below its bound, to cover its own rounding.
    np.testing.assert_allclose(found, run(start), atol=2e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: noisy_sgd(0.0), "learning_rate = 0.0"),
        (lambda: noisy_adam(float("nan")), "learning_rate = nan"),
        (lambda: noisy_adam(0.1, b1=1.0), "b1 = 1.0"),
        (lambda: noisy_adam(0.1, b2=-0.1), "b2 = -0.1"),
        (lambda: noisy_adam(0.1, xi=0.0), "xi = 0.0"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(ValueError, match=words):
        make()
