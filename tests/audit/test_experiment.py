"""Audits of the trainer: the honest one passes, each broken one is caught, and what is watched is what it releases."""

import dataclasses
import json
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from helpers.thorough import draws

from jaxacct import audit
from jaxacct.cli import main
from jaxacct.display import rounded_up
from jaxacct.train import cross_entropy, integer_noise, run_key
from jaxacct_recipes import Linear

SMALL = audit.AuditSettings(noise_multiplier=1.5, steps=200, canaries=400, guesses=100)
FEATURES, CLASSES = 6, 3


def problem(size=150):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(size, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, size).astype(np.int32)
    return Linear((FEATURES,), CLASSES, rngs=nnx.Rngs(0)), cross_entropy, data


@pytest.fixture(scope="module")
def honest():
    model, loss, data = problem()
    trainer = audit.make_trainer(model, loss, data, SMALL)
    return trainer, audit.watch_canaries(trainer, SMALL.steps), data


@pytest.fixture(scope="module")
def found(honest):
    trainer, watch, data = honest
    return audit.play(trainer, watch, data, SMALL, 0)


@pytest.mark.exhaustive
def test_the_honest_trainer_is_not_accused(honest, found):
    trainer, watch, data = honest
    others = [audit.play(trainer, watch, data, SMALL, seed) for seed in range(1, draws(1, 3))]
    for one in (found, *others):
        assert 0 < one.epsilon <= one.claim
        assert not one.exceeded
        assert one.p_value > 0.5
        assert 0.5 < one.epsilon_of_any_mechanism < one.claim


@pytest.mark.exhaustive
def test_a_seed_repeats_the_guesses(honest, found, monkeypatch):
    trainer, watch, data = honest
    monkeypatch.setattr(audit, "judge", lambda trainer, settings, correct: correct)
    again, other = (audit.play(trainer, watch, data, SMALL, seed) for seed in (0, 1))
    assert again == found.correct != other


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["noise", "shuffling"])
def test_a_broken_trainer_is_caught(fault):
    # With 4 runs the fixed order was caught in 6 of 8 seeds; with 12 the largest p-value of 8 seeds was 0.002.
    found = audit.run(*problem(), dataclasses.replace(SMALL, runs=12), fault=fault, seed=4)
    assert found.exceeded
    assert found.epsilon > found.claim
    assert found.p_value < 0.05
    assert found.noise_multiplier < SMALL.noise_multiplier


@pytest.mark.exhaustive
def test_what_is_watched_is_what_fit_releases(honest):
    # The ordinary way to train, with the same key and data, moves the canaries through the same places.
    _, watch, data = honest
    model, loss, _ = problem()
    included = np.arange(400) % 2 == 0
    fitted = audit.make_trainer(model, loss, data, SMALL, seed=7, included=included)
    seen = [np.zeros(400)]
    fitted.fit(6, every=1, evaluate=lambda model: seen.append(np.asarray(model.canaries[...])) or 0.0)
    np.testing.assert_array_equal(np.stack(seen), watch(run_key(7), audit.rows(data, included))[:7])


@pytest.mark.exhaustive
def test_the_sums_are_noise_and_one_clipping_norm_where_a_canary_was_drawn(honest):
    trainer, watch, data = honest
    included = np.arange(400) < 200
    size = trainer.sampler.expected_batch_size
    with_some, with_none = (
        audit.sums(positions, audit.LEARNING_RATE, size, audit.CLIP_NORM)
        for positions in (watch(run_key(1), audit.rows(data, there)) for there in (included, np.zeros(400, bool)))
    )
    # One key, so one noise and one choice of batches: the difference is the canaries themselves.
    drawn = with_some - with_none
    # Clipping keeps a little off its norm for roundings; sums are read off float32 parameters.
    np.testing.assert_allclose(drawn, np.round(drawn), atol=5e-3)
    assert set(np.unique(np.round(drawn))) == {0, 1}
    assert drawn.max() <= 1 + 1e-5
    assert not np.round(drawn)[:, ~included].any()
    assert abs(np.mean(drawn[:, included]) - 0.1) < 5 * np.sqrt(0.09 / (200 * 200))
    assert np.std(with_none) == pytest.approx(1.5, rel=0.0125)  # 80,000 values: five deviations


def test_the_score_is_the_likelihood_ratio_of_three_ways_to_draw():
    rng = np.random.default_rng(3)
    x, s, q = rng.normal(size=(7, 5)), 1.3, 0.5  # three and a half epochs of two batches
    ratio = np.exp((2 * x - 1) / (2 * s**2))
    padded = np.concatenate([ratio, np.ones((1, 5))]).reshape(4, 2, 5)
    wanted = (
        np.prod(1 - q + q * ratio, axis=0)
        + np.prod(padded.mean(axis=1), axis=0)
        + np.mean(np.prod(padded, axis=0), axis=0)
    )
    np.testing.assert_allclose(audit.scores(x, s, q), np.log(wanted / 3), rtol=1e-12)


def test_guesses_go_to_the_extremes():
    values = np.array([3.0, -1.0, 0.0, 9.0, -7.0])
    assert audit.guess(values, 3).tolist() == [1, 0, 0, 1, -1]
    assert audit.guess(values, 5).tolist() == [1, -1, 1, 1, -1]


def test_the_fixed_order_uses_every_example_once_an_epoch_and_always_in_the_same_batch():
    sampler = audit.FixedOrderSampler(num_examples=23, sampling_rate=0.25, capacity=24)
    sample, epochs = jax.jit(sampler.sample), []
    for epoch in range(2):
        batches = [sample(jax.random.key(0), 4 * epoch + step) for step in range(4)]
        epochs.append([np.asarray(indices)[np.asarray(mask)].tolist() for indices, mask in batches])
    assert epochs[0] == epochs[1]
    order = [index for batch in epochs[0] for index in batch]
    assert sorted(order) == list(range(23))
    assert sorted(order) != order


@pytest.mark.exhaustive
def test_the_command_returns_its_verdict(capsys):
    settings = ["--steps=200", "--noise-multiplier=1.5", "--canaries=400", "--guesses=100", "--runs=2", "--seed=5"]
    assert main(["audit", *settings, "--break", "clipping", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["exceeded"]
    assert record["lower_bound"] > record["claim"]
    assert record["correct"] == [100, 100]
    assert (record["break"], record["runs"]) == ("clipping", 2)


@pytest.mark.exhaustive
def test_the_command_prints_what_was_found_of_the_honest_trainer(found, monkeypatch, capsys):
    monkeypatch.setattr(audit, "run", lambda *arguments, **options: found)
    assert main(["audit"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for words in ("no contradiction", ", ".join(map(str, found.correct)), rounded_up(found.p_value, ".3g")):
        assert words in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--noise-multiplier", "0"], "noise_multiplier = 0.0"),
        (["--sampling-rate", "10"], "sampling_rate = 10.0"),
        (["--guesses", "501"], "guesses = 501"),
        (["--confidence", "95"], "confidence = 95.0"),
        (["--runs", "0"], "runs = 0"),
        (["--delta", "2"], "delta = 2.0"),
        (["--seed", "-1"], "seed = -1"),
    ],
)
def test_bad_settings_exit_with_2_and_say_why(arguments, words, capsys):
    assert main(["audit", *arguments]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert words in done.err


def test_the_distance_of_integer_noise_counts_against_a_bound(honest):
    """At least (1 + e^epsilon) times its total variation, over all steps of a run."""
    trainer, _, _ = honest
    budgets = {samples: dataclasses.replace(trainer.budget, samples=samples) for samples in (0, 10**9, 10**12)}
    runs = {samples: SimpleNamespace(sampler=trainer.sampler, budget=budget) for samples, budget in budgets.items()}
    for samples, epsilon in ((10**9, 5.0), (10**12, 8.0)):
        tau = sum(integer_noise.bill(samples * SMALL.steps).values())
        added = audit._extra_cost(runs[samples], SMALL, epsilon) - audit._extra_cost(runs[0], SMALL, epsilon)
        assert added >= (1 + math.exp(epsilon)) * tau * (1 - 1e-3)
