"""A search within a budget: what its runs are given, what is kept of them, and what is refused."""

import json
import math
import pathlib

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers.pages import run, snippets

import jaxacct as ja
from jaxacct.selection import DRAWING, Binomial, Fixed, Geometric
from jaxacct.train import DPTrainer, noise_delta, tune

DATA = (np.ones((200, 2), np.float32), np.ones(200, np.float32))
BUDGET = {"epsilon": 2.0, "delta": 1e-4}


def make(setting, **run):
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    model.bias[...] = jnp.full(1, float(setting))
    options = {"steps": 3, "sampling_rate": 1.0, "clip_norm": 1.0} | run
    return DPTrainer(model, lambda m, x, y: jnp.sum((m(x) - y) ** 2), optax.sgd(0.1), DATA, **options)


@pytest.fixture
def search(monkeypatch):
    """Runs a search whose runs train nothing, whose settings come in turn, and says which trainers it made."""
    made = []

    def run(space, trials, make=make, **options):
        def recorded(setting, **given):
            made.append(make(setting, **given))
            return made[-1]

        turns = iter(range(100))
        monkeypatch.setattr("secrets.randbelow", lambda count: next(turns) % count)
        monkeypatch.setattr(DPTrainer, "fit", fit)
        return tune(recorded, space, lambda m: float(m.bias[...][0]), trials=trials, **(BUDGET | options)), made

    def fit(self):
        if self.model.bias[...][0] == 9.0:
            raise FloatingPointError

    return run


@pytest.mark.exhaustive
def test_the_winner_alone_is_kept_and_all_runs_are_paid_for(search):
    found, made = search([1.0, 4.0, math.nan, 9.0], Fixed(4))
    assert (found.setting, found.score) == (4.0, 4.0)
    assert found.model.bias[...][0] == 4.0
    noise = found.noise_multiplier
    assert [trainer.noise_multiplier for trainer in made[1:]] == [noise] * 4
    whole = ja.RepeatAndSelect(ja.PoissonSubsampledGaussian(noise, 1.0), 3, Fixed(4))
    assert 1.99 < ja.epsilon(whole, 1, BUDGET["delta"]).upper <= found.certified.upper <= 2.0
    noisy = sum(trainer.plan.samples * 3 for trainer in made[1:])
    cut = sum(trainer.sampler.overflow_delta(3, 2.0) for trainer in made[1:]) + noise_delta(noisy, 2.0, 1e-4)
    assert ja.delta(whole, 1, 2.0).upper + cut <= BUDGET["delta"]
    words = str(found.certificate)
    assert "Fixed(count=4" in words
    assert "4.0" not in words


def test_runs_that_fail_come_last_and_there_may_be_none(search, monkeypatch):
    monkeypatch.setattr("jaxacct.train.tuning.least_noise", lambda *_: ja.calibrate.Calibrated(3.0, BOUNDS, 2))
    found, _ = search([9.0], Fixed(2))
    assert (found.setting, found.score) == (9.0, -math.inf)
    monkeypatch.setattr(Binomial, "draw", lambda self: 0)
    found, made = search([9.0], Binomial(2, 0.5))
    assert (found.setting, found.model, found.score) == (None, None, None)
    assert len(made) == 3 + 1


BOUNDS = ja.Bounds(1.0, 1.5, 2.0)


def test_small_deltas_pay_for_the_drawing_of_trials(search, monkeypatch):
    paid = []
    monkeypatch.setattr(
        "jaxacct.train.tuning.least_noise",
        lambda *given: paid.append(given) or ja.calibrate.Calibrated(3.0, BOUNDS, 2),
    )
    found, _ = search(iter([9.0]), Fixed(2), epsilon=np.float32(8.0), delta=1e-7)
    assert json.loads(json.dumps(found.certificate))["budget"] == {"epsilon": 8.0, "delta": 1e-7}
    assert paid[0][3] <= 1e-7 * (1 - 1e-3) - DRAWING * (1 + math.exp(8.0))
    with pytest.raises(ValueError, match="how the number of trials is drawn costs 3e-09"):
        search([9.0], Fixed(2), epsilon=8.0, delta=5e-9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda setting, **run: make(setting, seed=0, **run), "make gives a seed"),
        (lambda setting, **run: make(setting, **run, ledger="filter", epsilon=20.0, steps=None), "is not planned"),
        (lambda setting, **run: make(setting, **run, steps=4 - int(setting)), "space has 1.0, a run of which"),
        (lambda setting, **run: make(setting, **(run | {"noise_multiplier": 2.0})), "space has 0.0, a run of which"),
    ],
)
def test_what_would_not_be_paid_for_is_refused(search, monkeypatch, wrong, message):
    monkeypatch.setattr("jaxacct.train.tuning.least_noise", lambda *_: ja.calibrate.Calibrated(3.0, BOUNDS, 2))
    with pytest.raises(ValueError, match=message):
        search([0.0, 1.0], Fixed(2), wrong)


def test_integer_noise_of_all_runs_expected_is_paid_for(search, monkeypatch):
    """Five values a step, two parameters' entries and two counts; the share has room for a thousandth of delta."""
    monkeypatch.setattr("jaxacct.train.tuning.least_noise", lambda *_: ja.calibrate.Calibrated(3.0, BOUNDS, 2))
    asked = []
    monkeypatch.setattr("jaxacct.train.tuning.noise_delta", lambda *run: asked.append(run) or 0.45 * 1e-3 * run[2])
    search([0.0], Fixed(2))
    assert asked == [(15, 2.0, 1e-4)] * 2
    with pytest.raises(ValueError, match="integer noise cost"):
        search([0.0], Fixed(3))


def test_a_score_that_is_no_number_is_found_before_anything_is_paid_for(monkeypatch):
    monkeypatch.setattr(DPTrainer, "fit", lambda self: pytest.fail("a run was paid for"))
    with pytest.raises(TypeError, match=r"score returned \(1, 2\): return one number"):
        tune(make, [1.0], lambda model: (1, 2), trials=Fixed(2), **BUDGET)


PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()


@pytest.mark.parametrize("solved", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_the_pages_search_runs(solved, tmp_path, monkeypatch):
    (program,) = [code for code in snippets(PAGE) if "train.tune(" in code]
    if not solved:
        least = ja.calibrate.Calibrated(3.0, ja.Bounds(2.9, 2.95, 2.99), 2)
        monkeypatch.setattr("jaxacct.train.tuning.least_noise", lambda *_: least)
    monkeypatch.setattr(Geometric, "draw", lambda self: 1)  # trainings take the time
    monkeypatch.chdir(tmp_path)
    assert run(program, {}) == 1
    assert json.loads((tmp_path / "certificate.json").read_text())["search"]["settings"] == 4
