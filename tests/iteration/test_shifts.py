"""Amplification by iteration with given shifts: against linear processes, which are Gaussian, and other paths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.iteration import amplified_mu, amplified_rdp

LENGTH = 7


def test_linear_processes_cost_at_most_the_bound():
    """X_t = p_t X_{t-1} + c_t + Z_t against X'_t = p_t X'_{t-1} + Z_t: normal laws of equal variance: mu is known."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        lipschitz = rng.uniform(-1, 1, LENGTH) ** rng.choice([1, 9])
        shifts = rng.exponential(size=LENGTH) * rng.choice([0.0, 1.0], LENGTH)
        noise = 10 ** rng.uniform(-1, 1, LENGTH)
        apart = variance = 0.0
        for p, c, s in zip(lipschitz, shifts, noise, strict=True):
            apart, variance = p * apart + c, p * p * variance + s * s
        assert abs(apart) / np.sqrt(variance) <= amplified_mu(shifts, noise)


def test_exact_where_only_the_first_iteration_differs():
    noise = np.array([1.0, 0.5, 2.0, 1.0, 1.0, 3.0, 0.1])
    shifts = np.eye(LENGTH)[0] * 0.7
    exact = 0.7 / np.sqrt(np.sum(noise**2))
    assert exact <= amplified_mu(shifts, noise) <= exact * (1 + 1e-13)
    assert amplified_mu(shifts[::-1].copy(), noise) == pytest.approx(0.7 / 0.1, rel=1e-13)  # none after it to hide it


def test_no_admissible_path_has_less_energy():
    rng = np.random.default_rng(1)
    for _ in range(30):
        shifts, noise = rng.exponential(size=LENGTH) ** 2, 10 ** rng.uniform(-1, 1, LENGTH)
        least = amplified_mu(shifts, noise)
        # Random splits of each shift over its own iteration and the later ones: every admissible a is one of these.
        concentration = rng.choice([0.1, 1.0, 10.0], size=200)
        splits = np.zeros((200, LENGTH))
        for t in range(LENGTH):
            later = noise[t:] ** 2 / np.sum(noise[t:] ** 2)
            shares = rng.gamma(concentration[:, None] * later * 10 + 1e-3)
            splits[:, t:] += shifts[t] * shares / np.sum(shares, axis=1, keepdims=True)
        assert np.all(np.sqrt(np.sum((splits / noise) ** 2, axis=1)) * (1 + 1e-12) >= least)


def test_the_optimum_is_attained():
    # Two blocks, by hand: slopes 1/2 over the first two iterations, 3 at the last.
    assert amplified_mu([1.0, 0.0, 3.0], 1.0) == pytest.approx(np.sqrt(2 * 0.25 + 9), rel=1e-13)
    # A small shift behind a huge one, itself under huge noise, still counts.
    assert amplified_mu([1e20, 1.0], [1e20, 1e-3]) == pytest.approx(1e3, rel=1e-6)


def test_renyi_form_and_traced_values():
    shifts = np.array([1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0])
    mu = amplified_mu(shifts, 2.0)
    assert amplified_rdp([1.5, 8.0], shifts, 2.0) == pytest.approx(np.array([1.5, 8.0]) * mu**2 / 2, rel=1e-14)
    run = jax.jit(jax.vmap(lambda s: amplified_mu(jnp.asarray(shifts, jnp.float32), s)))
    assert np.asarray(run(jnp.array([2.0, 0.0, -1.0]))).tolist() == [mu, np.inf, np.inf]
    assert np.isinf(np.asarray(jax.jit(lambda o: amplified_rdp(o, shifts, 2.0))(jnp.array([0.5, 1.0])))).all()


@pytest.mark.parametrize(
    ("shifts", "noise", "words"),
    [
        ([1.0, -1.0], 1.0, ["shifts"]),
        ([1.0, 1.0], 0.0, ["noise", "above 0"]),
        ([1.0, 1.0], [1.0, 1.0, 1.0], ["(2,)", "(3,)"]),
        (1.0, 1.0, ["()"]),
    ],
)
def test_bad_input_is_named(shifts, noise, words):
    with pytest.raises(ValueError) as caught:
        amplified_mu(shifts, noise)
    assert all(word in str(caught.value) for word in words)
