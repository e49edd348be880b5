"""``jaxacct train`` as a user runs it: what it writes, what it prints, what it refuses."""

import json

import pytest

from jaxacct.cli import main


@pytest.fixture(autouse=True)
def _no_cache_folder(monkeypatch):
    monkeypatch.setenv("JAXACCT_CACHE_DIR", "")


def test_a_short_run_writes_its_report_and_picture(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    assert main(["train", "--epochs", "5", "--seed", "3", "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    final = report["final"]
    assert final["steps"] == 7  # five passes of 1437 examples by 1024 at a time
    assert report["history"][-1]["step"] == 7
    for words in (f"{final['test_accuracy']:.4f}", f"{final['epsilon_certified']['upper']:.4f}", "1e-05"):
        assert words in printed
    assert report["config"]["dataset"] == "digits"
    assert (tmp_path / "run" / "training.png").read_bytes()[1:4] == b"PNG"

    assert main(["train", "--epochs", "5", "--seed", "3", "--out", str(tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
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
