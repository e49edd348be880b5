"""``jaxacct train`` as a user runs it: what it writes, what it prints, what it refuses."""

import contextlib
import io
import json

import pytest

from jaxacct.cli import main
from jaxacct.cli.training import DATASETS
from jaxacct.train.checkpoints import SPENDS, Checkpoints
from jaxacct_recipes.datasets import LOADERS

SHORT = ["train", "--epochs", "5", "--seed", "3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody interrupted, and what it printed in JSON."""
    pytest.importorskip("sklearn")
    out, printed = tmp_path_factory.mktemp("whole"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([*SHORT, "--out", str(out), "--json"]) == 0
    return out, json.loads(printed.getvalue())


def test_a_short_run_writes_its_report_and_picture(whole):
    pytest.importorskip("matplotlib")
    out, report = whole
    assert json.loads((out / "report.json").read_text()) == report
    assert report["final"]["steps"] == 8  # five passes of 1437 examples by 1024 at a time, not a part of one less
    assert report["history"][-1]["step"] == 8
    assert report["config"]["dataset"] == "digits"
    assert (out / "training.png").read_bytes()[1:4] == b"PNG"
    assert [path.name for path in out.iterdir() if path.is_dir()] == ["model"]


def interrupted(monkeypatch, arguments, steps, *, before_the_release):
    """Runs the command until Ctrl-C at ``steps`` updates, before they are written down or before they are shown."""
    finish = Checkpoints.finish

    def stop(keeper, trainer):
        if not before_the_release:
            finish(keeper, trainer)
        if trainer.steps >= steps:
            raise KeyboardInterrupt
        if before_the_release:
            finish(keeper, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "finish", stop)
        assert main(arguments) == 130


@pytest.mark.exhaustive
@pytest.mark.parametrize("before_the_release", [True, False])
def test_a_resumed_run_writes_the_report_of_an_uninterrupted_one(
    before_the_release, whole, tmp_path, monkeypatch, capsys
):
    kept = [*SHORT, "--out", str(tmp_path / "run"), "--checkpoint-every", "3"]
    interrupted(monkeypatch, kept, 5, before_the_release=before_the_release)
    assert "--resume" in capsys.readouterr().err
    assert not (tmp_path / "run" / "report.json").exists()
    assert main(kept) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*kept, "--resume", "--learning-rate", "0.3"]) == 2
    assert "learning_rate: 0.1 there, 0.3 here" in capsys.readouterr().err
    assert main([*kept, "--resume"]) == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report == whole[1]
    printed, final = capsys.readouterr().out, report["final"]
    assert max(map(len, printed.splitlines())) <= 80
    for words in (f"{final['test_accuracy']:.4f}", f"{final['epsilon_certified']['upper']:.4f}", "1e-05"):
        assert words in printed


@pytest.mark.exhaustive
def test_without_a_seed_lost_updates_show_in_the_report(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    kept = [
        "train", "--epochs", "5", "--out", str(tmp_path), "--checkpoint-every", "3", "--policy", "adaptive-noise",
        "--ledger", "odometer", "--trainable", "output/kernel", "--no-ghost", "--microbatch-size", "600",
    ]  # fmt: skip
    interrupted(monkeypatch, kept, 5, before_the_release=False)
    spent = json.loads((tmp_path / "checkpoints" / SPENDS).read_text().splitlines()[-1])
    assert spent["stop"] == 5
    assert main([*kept, "--resume"]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    steps, epsilons = ([entry[name] for entry in report["history"]] for name in ("step", "epsilon"))
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]
    assert epsilons[2] < spent["epsilon"] < epsilons[3]  # the fourth update again, with another key
    assert report["final"]["epsilon_certified"] is None
    assert report["config"]["policy"] == "AdaptiveNoise"
    assert "odometer" in capsys.readouterr().out


def test_all_data_sets_are_offered():
    assert sorted(DATASETS) == sorted(LOADERS)


def test_published_settings_are_elsewhere(capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "--recipe", "bu-mnist-1", "--dataset", "mnist"])
    assert end.value.code == 2
    assert "bench.papers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resume"], ["--checkpoint-every"]),
        (["--resume", "--checkpoint-every", "5"], ["nothing to resume"]),
        (["--checkpoint-every", "0"], ["every = 0"]),
        (["--trainable", "hidden"], ["trainable = 'hidden'", "output/kernel"]),
        (["--policy", "spend-remaining", "--ledger", "odometer"], ["filter"]),
        (["--policy", "adaptive-batch", "--query-noise", "0"], ["query_noise = 0.0"]),
        (["--policy", "adaptive-noise", "--policy-epochs", "-1"], ["policy_epochs = -1.0"]),
        (["--target-accuracy", "2"], ["target_accuracy = 2.0"]),
        (["--dataset", "mnist"], ["--data-dir", "MNIST"]),
        (["--dataset", "adult", "--data-dir", "/nowhere"], ["--data-dir", "/nowhere", "a9a"]),
        (["--delta", "2"], ["delta = 2.0"]),
        (["--epsilon", "nan"], ["epsilon = nan"]),
        (["--noise-multiplier", "0.01"], ["noise_multiplier = 0.01", "pays for no step"]),
        (["--batch-size", "1e6"], ["batch_size", "1437"]),
        (["--clip-norm", "0"], ["clip_norm = 0.0"]),
        (["--learning-rate", "-1"], ["learning_rate = -1.0"]),
        (["--epochs", "0"], ["epochs = 0.0"]),
        (["--seed", "-1"], ["seed = -1"]),
    ],
)
def test_bad_input_exits_with_2_and_says_why(arguments, words, tmp_path, capsys):
    if "--dataset" not in arguments:
        pytest.importorskip("sklearn")
    assert main(["train", "--out", str(tmp_path), *arguments]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert "Traceback" not in done.err
    assert all(word in done.err for word in words), done.err
    assert list(tmp_path.iterdir()) == []
