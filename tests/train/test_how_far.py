"""Tests of a run's messages while it goes: what is compiled, how far it is, and what its steps cost so far."""

import pickle

import numpy as np
import optax
import pytest
from flax import nnx

from jaxacct.processes import progress
from jaxacct.train import DPTrainer, Evaluation, build_report
from jaxacct.train.report import epsilon_so_far

X = np.ones((60, 3), np.float32)


@pytest.fixture(scope="module")
def told():
    """A planned run, and what it said."""
    trainer = DPTrainer(
        nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda model, x: model(x)[0] ** 2, optax.sgd(0.1), (X,), epsilon=3.0,
        delta=1e-3, steps=6, expected_batch_size=20, clip_norm=1.0, seed=0,
    )  # fmt: skip
    said = []
    history = trainer.fit(every=2, progress=lambda step, words: said.append((step, words)))
    return trainer, history, said


def test_what_is_compiled_is_said_before(told):
    _, _, said = told
    assert [words for _, words in said[:2]] == ["compiling a look at made-up examples", "compiling the update"]
    assert [step for step, words in said[2:] if not words] == sorted(step for step, _ in said[2:])
    assert said[-1] == (6, "")


def test_it_is_silent_where_nobody_looks(told, capsys):
    trainer, _, _ = told
    with pytest.warns(UserWarning, match="its plan is of 6"):
        trainer.fit(1)
    assert capsys.readouterr().err == ""


def test_a_plan_shows_what_its_steps_cost_so_far(told):
    trainer, history, _ = told
    report = build_report(trainer, history)
    found = [entry["epsilon_so_far"] for entry in report["history"]]
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] <= 3.0
    assert found[-1] == pytest.approx(float(trainer.plan.certified.upper), rel=1e-5)
    assert epsilon_so_far(trainer, 4) == found[1]
    # A record has the same number, beside the plan's; computed when it is asked for, and after it was pickled.
    assert [pickle.loads(pickle.dumps(entry)).epsilon_so_far for entry in history] == found
    assert {entry.epsilon for entry in history} == {trainer.spent_epsilon}
    assert Evaluation(2, None, 0.5).epsilon_so_far == 0.5  # a filter's or an odometer's own


def test_a_second_display_is_none(monkeypatch):
    """A terminal shows one: a caller's own stays, and nothing is raised."""
    from rich.console import Console
    from rich.errors import LiveError
    from rich.progress import Progress

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

    def busy(self):
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr(Progress, "start", busy)
    with progress("steps", 3) as show:
        show(1, "so far")
    assert Console is not None


def test_a_log_says_what_is_compiled_and_its_rate_does_not_count_that(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 50.0, 58.0, 66.0])
    monkeypatch.setattr("jaxacct.processes.time.monotonic", lambda: next(clock))
    with progress("steps", 100) as show:
        show(0, "compiling")
        for done in (10, 20, 30):
            show(done)
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "steps: compiling"
    assert rest[0].startswith("steps: 10 of 100 (10%)")
    assert "a second" not in rest[0]
    assert "1.25 a second, 0:00:56 left" in rest[1]


def test_a_name_of_another_library_is_answered_with_the_one_meant():
    settings = {"epsilon": 3.0, "delta": 1e-3, "steps": 6, "expected_batch_size": 20}
    with pytest.raises(TypeError, match="'max_grad_norm': clip_norm is meant"):
        DPTrainer(
            nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda model, x: model(x)[0], optax.sgd(0.1), (X,), max_grad_norm=1.0,
            **settings,
        )  # fmt: skip


def test_a_module_that_does_not_know_whether_it_trains_is_told_how():
    model = nnx.MultiHeadAttention(2, in_features=4, decode=False, dropout_rate=0.1, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="deterministic") as raised:
        DPTrainer(
            model, lambda model, x: model(x).sum(), optax.sgd(0.1), (np.ones((60, 3, 4), np.float32),), epsilon=3.0,
            delta=1e-3, steps=6, expected_batch_size=20, clip_norm=1.0,
        )  # fmt: skip
    assert any("model.train()" in note for note in raised.value.__notes__)
