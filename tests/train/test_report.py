"""Tests of a run's report: strict, whole, and no more than holds."""

import itertools
import json
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers.shared import SGD, sharing
from helpers.thorough import cases

from jaxacct import plot, specs
from jaxacct.mechanisms import Gaussian
from jaxacct.policies import Schedule
from jaxacct.strategies import square_root
from jaxacct.train import (
    Checkpoints,
    CyclicPoissonSampler,
    DPTrainer,
    Metrics,
    SideQuery,
    build_report,
    integer_noise,
    run_key,
    write_report,
)
from jaxacct.verify import drawn_noise


def far_from_one(model, x):
    return jnp.sum((model(x) - 1.0) ** 2)


def make(seed=1, optimizer=None, **options):
    x = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
    settings = {"epsilon": 1.0, "delta": 1e-3, "noise_multiplier": 3.0, "expected_batch_size": 30, "clip_norm": 1.0}
    model, options = nnx.Linear(2, 1, rngs=nnx.Rngs(0)), settings | options
    return sharing(DPTrainer(model, far_from_one, SGD if optimizer is None else optimizer, (x,), seed=seed, **options))


def test_the_report_has_the_promised_shape(tmp_path):
    trainer = make()
    history = trainer.fit(steps=4, every=2, evaluate=lambda model: 0.5)
    write_report(build_report(trainer, history, {"dataset": "mine"}), tmp_path / "a" / "report.json")

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    report = json.loads((tmp_path / "a" / "report.json").read_text(), parse_constant=refuse)
    assert set(report) == {"config", "history", "final", "versions"}
    assert [entry["step"] for entry in report["history"]] == [2, 4]
    assert set(report["history"][0]) - {"epsilon_so_far"} == {"step", "accuracy", "epsilon"}
    final = report["final"]
    assert set(final) == {
        "steps", "test_accuracy", "epsilon_certified", "epsilon_renyi", "delta", "guarantee",
    }  # fmt: skip
    assert (final["steps"], final["test_accuracy"], final["delta"]) == (4, 0.5, 1e-3)
    certified = final["epsilon_certified"]
    assert 0 < certified["lower"] <= certified["estimate"] <= certified["upper"] <= final["epsilon_renyi"]
    assert report["config"]["dataset"] == "mine"
    assert report["config"]["sampling_rate"] == trainer.mechanism.sampling_rate
    assert "fixed before training" in final["guarantee"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["report.json"]


def test_the_report_tells_of_views_and_of_what_measures_cost():
    def turned(key, example):
        return (example[0] * jax.random.rademacher(key, ()),)

    told = build_report(make(augment=turned, views=3, metrics=Metrics(share=0.02)), [])["config"]
    assert (told["views"], told["augment"].rpartition(".")[2]) == (3, "turned")
    assert told["metrics"] == {"means": ["clipped"], "share": 0.02}
    plain = build_report(make(), [])["config"]
    assert (plain["views"], plain["augment"], plain["metrics"]) == (1, None, None)


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "report.json"
    write_report({"epsilon": [float("inf"), float("nan"), -float("inf")]}, path)
    before = path.read_text()
    assert json.loads(before) == {"epsilon": ["inf", "nan", "-inf"]}
    with pytest.raises(TypeError):
        write_report({"epsilon": object()}, path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_from_entropy_is_in_the_files_of_states_alone(tmp_path, capsys):
    trainer, folder = make(seed=None), tmp_path / "run"
    report = json.dumps(build_report(trainer, trainer.fit(steps=1, keeper=Checkpoints(folder, every=1), progress=True)))
    assert '"seed": "operating system"' in report
    data = np.asarray(trainer.state.key)
    words = [int(word) for word in data]
    assert len(set(words)) > 4
    numbers = [*words, *((one << 32) + other for one, other in itertools.pairwise(words))]
    printed = capsys.readouterr()
    shown = [report, printed.out, printed.err, *map(repr, (trainer, trainer.state, trainer.plan, trainer.program))]
    files = [path for path in folder.rglob("*") if path.is_file()]
    outside = [path.read_bytes() for path in files if folder / "states" not in path.parents]
    assert len(outside) >= 3
    for one in (*(text.encode() for text in shown), *outside):
        assert not any(str(secret).encode() in one or f"{secret:08x}".encode() in one for secret in numbers)
        assert data.tobytes() not in one
    # States hold the key, so the folder is for its owner alone.
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_report_says_by_which_noise_and_how_far_it_is_from_the_account():
    trainer = make(seed=None)
    report = build_report(trainer, trainer.fit(steps=2))
    told, made = report["config"]["noise_drawn"], report["config"]["composition"]
    assert (told["arithmetic"], told["draws"], told["scale_squared"]) == ("integer", 2, str(2**40))
    assert told["generator"] == "ChaCha20, from 256 bits of the operating system's entropy"
    # Two entries of a kernel and a bias, and two counts, over the whole plan.
    assert (told["entries"], told["counts"], told["samples_per_step"]) == (3, 2, 5)
    assert (told["steps"], told["steps_per_run"], told["samples"]) == (trainer.plan.steps, 1, 5 * trainer.plan.steps)
    assert told["delta"] == trainer.plan.noise_delta > 0
    parts = sum(map(Fraction, told["total_variation"].values()))
    assert parts <= Fraction(made["noise_distance"]) <= parts * Fraction(1 + 2.0**-51)
    assert "drawn in integers" in report["final"]["guarantee"]
    given = build_report(make(seed=2, noise_arithmetic="integer"), [])["config"]["noise_drawn"]
    assert given["generator"] == "ChaCha20, from a seed given by the user"
    key = build_report(make(seed=run_key()), [])["config"]["noise_drawn"]
    assert (told["generator"], key["generator"], given["generator"]) == drawn_noise.GENERATORS
    of_floats = build_report(make(), [])
    assert of_floats["config"]["noise_drawn"] == {"arithmetic": "float64"}
    assert of_floats["config"]["composition"]["noise_distance"] == 0.0
    assert "integers" not in of_floats["final"]["guarantee"]


@pytest.mark.exhaustive
def test_the_draws_that_are_told_are_those_that_are_made(monkeypatch):
    """A policy's noise is known in the compiled step only: three draws serve any."""
    asked = []
    kept = integer_noise.noise_of_leaves
    monkeypatch.setattr(
        integer_noise, "noise_of_leaves", lambda key, shapes, draws, places: asked.append(draws) or kept(
            key, shapes, draws, places)
    )  # fmt: skip
    x = (np.ones((120, 2), np.float32),)
    schedule = Schedule(lambda step: 3.0 + step, 0.25)
    for options, draws in (({"noise_multiplier": 3.0, "expected_batch_size": 30}, 2), ({"policy": schedule}, 3)):
        asked.clear()
        trainer = DPTrainer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), far_from_one, SGD, x, epsilon=1.0, delta=1e-3,
                            clip_norm=1.0, **options)  # fmt: skip
        trainer.fit(steps=1)
        assert set(asked) == {draws} == {build_report(trainer, [])["config"]["noise_drawn"]["draws"]}


def test_a_given_seed_limits_the_guarantee():
    trainer = make(seed=77)
    report = build_report(trainer, trainer.fit(steps=1), with_seed=True)
    assert report["config"]["seed"] == 77
    assert "77" not in str(build_report(trainer, [])["config"]["seed"])
    assert "do not know it" in report["final"]["guarantee"]
    assert "do not know it" not in build_report(make(seed=None), [])["final"]["guarantee"]


def test_a_length_that_may_depend_on_results_is_not_certified():
    continued, interrupted = make(ledger="filter"), make(ledger="filter")
    continued.fit(steps=2)
    assert continued.stopping_was_planned
    history = continued.fit(steps=2)

    def enough(entry):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted.fit(steps=4, every=2, on_evaluation=enough)
    assert interrupted.steps == 2
    for trainer, entries in ((continued, history), (interrupted, [])):
        assert not trainer.stopping_was_planned
        final = build_report(trainer, entries)["final"]
        assert final["epsilon_certified"] is None
        assert "does not apply" in final["guarantee"]


def test_a_cut_batch_is_paid_for_in_delta():
    trainer = make(ledger="filter")
    cost = trainer.sampler.overflow_delta(trainer.horizon, trainer.epsilon)
    assert 0 < cost <= 1e-3 * trainer.delta
    assert trainer.delta_for_accounting + cost <= trainer.delta
    assert trainer.horizon >= trainer.remaining_steps
    assert float(jnp.exp(-trainer.state.ledger.state.log_inverse_delta.high)) == pytest.approx(
        trainer.delta_for_accounting, 1e-5
    )


def test_chunks_of_all_lengths_share_one_compilation():
    trainer = make()
    trainer.fit(steps=2)
    programs = trainer._programs["run"]._cache_size()  # shared with trainers of other keys
    trainer.fit(steps=3, every=2)
    trainer.fit(steps=1)
    assert trainer._programs["run"]._cache_size() == programs


@pytest.mark.exhaustive
def test_with_next_to_no_noise_and_clipping_it_is_gradient_descent():
    trainer = make(sampling_rate=1.0, expected_batch_size=None, noise_multiplier=1e-9, clip_norm=1e3, epsilon=1e25)
    model, (x,) = trainer.model, trainer.data
    trainer.fit(steps=3)
    plain = nnx.jit(nnx.grad(lambda model: jnp.mean(jax.vmap(lambda row: far_from_one(model, row))(x))))
    for _ in range(3):
        gradient = plain(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), gradient))
    for got, expected in zip(jax.tree.leaves(trainer.state.params), jax.tree.leaves(nnx.state(model)), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    cases([optax.adamw(1e-2)], [optax.inject_hyperparams(optax.sgd)(learning_rate=0.1), optax.lion(1e-3)]),
)
def test_any_optimizer_fits_the_loop(optimizer):
    trainer = make(optimizer=optimizer)
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.state.params)]
    trainer.fit(steps=2)
    after = [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.state.params)]
    assert all(np.isfinite(new).all() and not np.array_equal(new, old) for old, new in zip(before, after, strict=True))


def test_a_loss_of_the_wrong_shape_is_named():
    x = np.zeros((10, 2), np.float32)
    with pytest.raises(ValueError, match="floating-point scalar"):
        DPTrainer(
            nnx.Linear(2, 1, rngs=nnx.Rngs(0)), lambda model, x: model(x), optax.sgd(0.1), (x,),
            epsilon=1.0, delta=1e-3, noise_multiplier=3.0, sampling_rate=0.5, clip_norm=1.0,
        )  # fmt: skip


def test_seeds_and_keys():
    assert np.array_equal(jax.random.key_data(run_key(2**40 + 5)), [2**8, 5])
    key = jax.random.key(3)
    assert run_key(key) is key
    for bad, kind in ((2**64, ValueError), (1.5, TypeError), (True, TypeError), (jnp.zeros(2, jnp.uint32), TypeError)):
        with pytest.raises(kind, match="seed"):
            run_key(bad)


def test_the_picture_is_drawn_without_touching_matplotlibs_state(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    trainer = make()
    report = build_report(trainer, trainer.fit(steps=3, every=1, evaluate=lambda model: 0.5))
    plot.training(report, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 5000
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(ValueError, match="no history"):
        plot.training(report | {"history": []}, tmp_path / "none.png")


def test_a_report_is_enough_for_a_certificate():
    from jaxacct.certificates.claims import derive

    trainer = make()
    report = json.loads(json.dumps(build_report(trainer, trainer.fit(steps=4))))
    found, certified = derive({"parts": [{"report": report}]}), report["final"]["epsilon_certified"]
    assert found["claim"]["delta"] == 1e-3
    assert certified["upper"] == pytest.approx(found["claim"]["epsilon"], rel=1e-3)
    assert found["releases"][0]["count"] == 4
    assert found["cut_probability"] > 0
    assert found["relation"] == "add_or_remove"


RUNS = {
    "cycles, one of them begun": {"sampler": CyclicPoissonSampler(120, 5, 0.5, 60)},
    "cycles and queries": {"sampler": CyclicPoissonSampler(120, 5, 0.5, 60), "queries": (SideQuery(Gaussian(50.0)),)},
    "correlated over the whole run": {
        "sampler": CyclicPoissonSampler(120, 4, 1.0, 60), "noise": square_root(12),
    },
    "queries": {"expected_batch_size": 30, "queries": (SideQuery(Gaussian(50.0), every=1),)},
    "means": {"expected_batch_size": 30, "metrics": Metrics(share=0.02)},
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.exhaustive
def test_the_referee_proves_the_noise_of_a_run(name):
    """Runs whose mechanism covers several steps, or that pay for more than steps; and none of more steps than told."""
    x = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
    trainer = DPTrainer(
        nnx.Linear(2, 1, rngs=nnx.Rngs(0)), far_from_one, SGD, (x,), epsilon=2.0, delta=1e-3, steps=12, clip_norm=1.0,
        **RUNS[name],
    )  # fmt: skip
    history = trainer.fit(steps=7)
    (noise,) = specs.parsed({"parts": [{"report": json.loads(json.dumps(build_report(trainer, history)))}]}).noises
    told = noise.record
    assert told["steps"] >= 12
    assert drawn_noise.refute(told, noise.distance, noise.runs, noise.steps) == ""
    # A record of fewer runs than were made is refused.
    fewer = (noise.runs - 1) * told["steps_per_run"]
    less = told | {"steps": fewer, "samples": fewer * told["samples_per_step"]}
    assert drawn_noise.refute(less, noise.distance, noise.runs, noise.steps) != ""
