"""Wrong uses of the command line as people make them: each ends with code 2 and one line, which says what to do.

One row: the arguments, and what the line has to say. Nothing here is computed.
"""

import json
import os

import pytest
from helpers.command_line import CALIBRATE, EPSILON, RUN, runner

NOISE, RATE, STEPS = (RUN[i : i + 2] for i in (0, 2, 4))
DELTA = ["--delta", "1e-5"]
BUDGET = ["--epsilon", "1", *DELTA]
SWEEP = ["sweep", *RUN, *DELTA]
TRAIN = ["train", "--out", "new"]
CERTIFY = ["certify", "spec.json", "--out", "new"]

MEANT = {
    "--sigma": "--noise-multiplier", "--noise": "--noise-multiplier", "--noise_multiplier": "--noise-multiplier",
    "--noise-std": "--noise-multiplier", "--sigma=2": "--noise-multiplier", "--noise-scale": "--noise-multiplier",
    "--sample-rate": "--sampling-rate", "--q": "--sampling-rate", "--sampling_probability": "--sampling-rate",
    "--lot-size": "--batch-size", "--batch_size": "--batch-size", "--batch": "--batch-size",
    "--num-examples": "--examples", "--dataset-size": "--examples", "--n": "--examples", "--num_samples": "--examples",
    "--iterations": "--steps", "--num-steps": "--steps", "--compositions": "--steps", "--T": "--steps",
    "--num-epochs": "--epochs", "--target-delta": "--delta", "--target_delta": "--delta",
    "--neighboring-relation": "--relation", "--adjacency": "--relation", "--group-size": "--group",
    "--method": "--accountant", "--format": "--json", "--tol": "--tolerance", "--spce": "--spec",
    "--mechanisms": "--mechanism",
}  # fmt: skip
MEANT_IN_TRAINING = {
    "--lr": "--learning-rate", "--max-grad-norm": "--clip-norm", "--l2_norm_clip": "--clip-norm",
    "--target-epsilon": "--epsilon", "--eps": "--epsilon", "--output-dir": "--out", "--random-seed": "--seed",
    "--sigma": "--noise-multiplier", "--max-physical-batch-size": "--microbatch-size", "--force": "--overwrite",
    "--num_epochs": "--epochs", "--csv": "--data", "--expected-batch-size": "--batch-size", "--polcy": "--policy",
}  # fmt: skip

ROWS = [
    *((["epsilon", *NOISE, *RATE, *STEPS, *DELTA, word, "1"], [word, f"did you mean {right}?"])
      for word, right in MEANT.items()),
    *(([*TRAIN, word, "1"], [word, f"did you mean {right}?"]) for word, right in MEANT_IN_TRAINING.items()),
    # What is missing, and what is said twice.
    (["epsilon"], ["--noise-multiplier is missing", "--spec"]),
    (["epsilon", *NOISE, *DELTA], ["--steps, or --epochs with a rate, is missing"]),
    (["epsilon", *STEPS, *DELTA], ["--noise-multiplier is missing"]),
    (["epsilon", *RUN], ["--delta is missing", "epsilon"]),
    (["delta", *RUN], ["--epsilon is missing", "delta"]),
    (["epsilon", "--sigma", "1", *STEPS, *DELTA], ["--sigma", "--noise-multiplier?"]),
    ([*EPSILON, "--epochs", "3"], ["--epochs and --steps", "leave one out"]),
    ([*EPSILON, "--batch-size", "64"], ["--batch-size and --sampling-rate", "leave one out"]),
    (["epsilon", *NOISE, *STEPS, *DELTA, "--batch-size", "64"], ["--batch-size needs --examples"]),
    (["epsilon", *NOISE, *STEPS, *DELTA, "--examples", "64"], ["--examples goes with --batch-size"]),
    (["epsilon", *NOISE, *DELTA, "--epochs", "3"], ["--epochs needs a rate", "--batch-size"]),
    (["epsilon", *NOISE, *STEPS, *DELTA, "--batch-size", "64", "--examples", "10"], ["64", "10", "not the larger"]),
    (["epsilon", *NOISE, *RATE, *DELTA, "--epochs", "-3"], ["epochs = -3", "above 0"]),
    (["epsilon", *NOISE, *STEPS, *DELTA, "--sampling-rate", "64/0"], ["'64/0'", "64/1000"]),
    (["epsilon", *NOISE, *STEPS, *DELTA, "--sampling-rate", "64/x"], ["'64/x'", "64/1000"]),
    (["epsilon", *NOISE, *STEPS, *DELTA, "--sampling-rate", "1000/64"], ["sampling_rate = 15.6", "fraction"]),
    ([*EPSILON, "--relation", "zero-out"], ["'zero-out'", "did you mean zero_out?"]),
    ([*EPSILON, "--relation", "substitute"], ["'substitute'", "give one of add_or_remove"]),
    ([*EPSILON, "--group", "0"], ["--group", "'0'", "at least 1"]),
    ([*EPSILON, "--group", "two"], ["--group", "'two'", "whole"]),
    ([*EPSILON, "10"], ["'10'", "--NAME VALUE"]),
    # Compositions.
    (["epsilon", *DELTA, "--mechanism", "laplac:scale=2"], ["laplac", "did you mean Laplace?"]),
    (["epsilon", *DELTA, "--mechanism", "laplace:2"], ["'2'", "laplace:scale=2"]),
    (["epsilon", *DELTA, "--mechanism", "laplace:sigma=2"], ["no field 'sigma'", "give scale"]),
    (["epsilon", *DELTA, "--mechanism", "laplace"], ["Laplace needs scale"]),
    (["epsilon", *DELTA, "--mechanism", "laplace:scale=two"], ["scale", "'two'", "64/1000"]),
    (["epsilon", *DELTA, "--mechanism", "laplace:scale=2,count=1.5"], ["count = 1.5", "whole number"]),
    (["epsilon", *DELTA, "--mechanism", "gaussian:noise_multiplier=1,sampling_rate=0.1"], ["sampling = 'poisson'"]),
    (["epsilon", *DELTA, "--mechanism", "gaussian:noise_multiplier=1,sampling_rate=.1,sampling=shuffled"],
     ["shuffled batches are no Poisson samples", "zero_out"]),
    (["epsilon", *DELTA, "--mechanism", "laplace:scale=2,scale=9"], ["scale twice", "leave one out"]),
    (["epsilon", *NOISE, *DELTA, "--sampling-rate", "1e-300", "--epochs", "9"], ["too many steps", "fewer"]),
    (["epsilon", *DELTA, *STEPS, "--mechanism", "laplace:scale=2"], ["--noise-multiplier is missing"]),
    (["epsilon", *DELTA, "--mechanism", "gaussian-without-replacement:noise_multiplier=1,sampling_rate=.1"],
     ["add_or_remove", "not supported", "replace"]),
    (["epsilon", *DELTA, "--spec", "nowhere.json"], ["nowhere.json", "not there", "check the name"]),
    (["epsilon", *DELTA, "--spec", "folder"], ["folder", "is a folder", "name a file"]),
    (["epsilon", *DELTA, "--spec", "broken.json"], ["broken.json", "not read as .json"]),
    (["epsilon", *DELTA, "--spec", "broken.toml"], ["broken.toml", "not read as .toml"]),
    (["epsilon", *DELTA, "--spec", "list.json"], ["'report.json' is no part", "opacus"]),
    (["epsilon", *DELTA, "--spec", "number.json"], ["number.json is no spec", "report.json"]),
    # Files and folders.
    (["curve", *RUN, "--out", "there.csv"], ["there.csv is there", "--overwrite"]),
    (["curve", *RUN, "--plot", "there.png"], ["there.png is there", "--overwrite"]),
    (["curve", *RUN, "--out", "folder.csv"], ["folder.csv is a folder", "name a file"]),
    (["curve", *RUN, "--out", "there.csv/a.csv"], ["there.csv", "name another"]),
    (["verify", "nowhere.json"], ["nowhere.json", "not there"]),
    (["verify", "folder"], ["is a folder"]),
    (["verify", "number.json"], ["no JSON object"]),
    (["sweep", "best", "nowhere", "--epsilon", "1"], ["nowhere", "no folder of a sweep"]),
    (["sweep", "export", "nowhere", "there.csv"], ["there.csv is there", "--overwrite"]),
    (["sweep", "plot", "nowhere", "there.png"], ["there.png is there", "--overwrite"]),
    ([*SWEEP, "--rows", "nowhere.csv"], ["nowhere.csv", "not there"]),
    ([*SWEEP[:-2], "--delta", "@nowhere.txt"], ["nowhere.txt", "not there"]),
    ([*TRAIN, "--data", "nowhere.csv", "--label", "y", "--classes", "2"], ["nowhere.csv is missing"]),
    # Sweeps.
    ([*SWEEP, "--batch-size", "64"], ["--batch-size and --examples", "give both"]),
    ([*SWEEP, "--epochs", "3"], ["--epochs stands in for --steps"]),
    (["sweep", *NOISE, "--sampling-rate", "0.1,0.2", *DELTA, "--epochs", "3"], ["a single one", "--steps"]),
    ([*SWEEP, "--group", "2"], ["--group", "epsilon and calibrate"]),
    ([*SWEEP, "--resume"], ["--out"]),
    ([*SWEEP, "--sigma", "1"], ["did you mean --noise-multiplier?"]),
    # Budgets.
    ([*CALIBRATE, "--epochs", "1"], ["--epochs and --steps"]),
    ([*CALIBRATE, "--sigma", "1"], ["did you mean --noise-multiplier?"]),
    ([*CALIBRATE[:5], "--solve-for", "sampling-rate", "--noise-multiplier", "1", "--epochs", "3"],
     ["--epochs is of no use", "--steps"]),
    ([*CALIBRATE[:5], *STEPS, "--solve-for", "noise"], ["'noise'", "did you mean noise-multiplier?"]),
    (["calibrate", *CALIBRATE[3:], "--advantage", "0.1", "--group", "2"], ["--advantage"]),
    # Budgets of compositions.
    (["calibrate", "--spec", "spec.json", "--mechanism", "gaussian"], ["--epsilon is missing"]),
    (["calibrate", "--spec", "bare.json", "--mechanism", "gaussian", "--epsilon", "1"], ["--delta is missing"]),
    (["calibrate", *BUDGET, "--mechanism", "gaussian:noise_multiplier=3"], ["without its noise = none", "laplace:"]),
    (["calibrate", *BUDGET, "--spec", "spec.json"], ["without its noise = none"]),
    (["calibrate", *BUDGET, "--mechanism", "gaussian", "--mechanism", "laplace"], ["gaussian and laplace", "give one"]),
    (["calibrate", *BUDGET, "--mechanism", "gaussian", "--steps", "3"], ["--steps is of a run", "count=1000"]),
    (["calibrate", *BUDGET, "--mechanism", "gaussian:count=2", "--count", "3"], ["--count", "leave one out"]),
    (["calibrate", *BUDGET, "--mechanism", "gaussian", "--solve-for", "steps"], ["--solve-for steps"]),
    ([*CALIBRATE, "--count", "3"], ["--count", "--mechanism"]),
    (["calibrate", *CALIBRATE[5:], "--tpr", "0.1", "--fpr", "0.01", "--group", "2"], ["--tpr", "--group"]),
    # Messages are short, however long the input is.
    (["epsilon", *NOISE, *DELTA, "--steps", "9" * 3000], ["steps"]),
    (["epsilon", *DELTA, "--mechanism", "laplace:scale=" + "x" * 5000], ["scale", "64/1000"]),
    (["epsilon", *DELTA, "--" + "x" * 5000], ["--xxx", "--help)"]),
    (["epsilon", *DELTA, "--spec", "n" * 2000 + ".json"], ["error: nnn", "shorter"]),
    (["epsilon", *DELTA, "year.toml"], ["give --spec year.toml"]),
    # Training.
    ([*TRAIN, "--sampling-rate", "0.1"], ["--sampling-rate", "--batch-size"]),
    ([*TRAIN, "--steps", "10"], ["--steps", "--epochs"]),
    ([*TRAIN, "--examples", "10"], ["--examples", "--dataset"]),
    ([*TRAIN, "--dataset", "cifar10"], ["'cifar10'", "give one of digits"]),
    ([*TRAIN, "--policy", "adaptive"], ["'adaptive'", "adaptive-"]),
    ([*TRAIN, "--resume", "--overwrite", "--checkpoint-every", "5"], ["one of them"]),
    # Certificates.
    (["certify"], ["SPEC is missing", "--check FOLDER"]),
    (["certify", "nowhere.json"], ["nowhere.json", "not there"]),
    (["certify", "spec.json", "--check", "folder"], ["leave out SPEC"]),
    (["certify", "--check", "folder", "--delta", "1e-6"], ["all settings"]),
    (["certify", "--check"], ["one FOLDER"]),
    (["certify", "number.json", "--check"], ["no certificate", "ask for the folder again"]),
    (["certify", "spec.json", "--out", "new", "other.json"], ["delta", "one for all"]),
    (["certify", "--check", "nowhere"], ["nowhere", "not there"]),
    (["certify", "--check", "folder"], ["certificate.json", "not there"]),
    (["certify", "--check", "number.json"], ["no certificate", "ask for the folder again"]),
    ([*CERTIFY, "--delta", "1e-5", "--epsilon", "1"], ["--epsilon", "--delta"]),
    (["certify", "spec.json", "--out", "there.csv"], ["there.csv is there", "name another folder"]),
    (["certify", "spec.json", "--out", "full"], ["full is there", "name another folder"]),
    (["certify", "bare.json", "--out", "new"], ["delta is missing", "--delta"]),
    (["certify", "spec.json", "other.json", "--out", "new"], ["delta", "one for all"]),
    ([*CERTIFY, "--sigma", "3"], ["--sigma is unknown"]),
    # Commands.
    (["epsilons"], ["did you mean epsilon?"]),
    (["certificate"], ["did you mean certify?"]),
    (["docter"], ["did you mean doctor?"]),
    (["--epsilon", "1"], ["COMMAND"]),
    (["doctor", "now"], ["'now'", "--NAME VALUE"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with files to stumble over."""
    place = tmp_path_factory.mktemp("place")
    spec = {"parts": [{"type": "laplace", "scale": 2.0}]}
    files = {"broken.json": "{", "broken.toml": "= 1", "number.json": "1", "there.csv": "mine", "there.png": "mine",
             "spec.json": json.dumps(spec | {"delta": 1e-5}), "other.json": json.dumps(spec | {"delta": 1e-6}),
             "bare.json": json.dumps(spec), "list.json": json.dumps({"parts": ["report.json"]}),
             "full/mine": "mine"}  # fmt: skip
    for name in ("folder", "folder.csv", "full"):
        (place / name).mkdir()
    for name, text in files.items():
        (place / name).write_text(text)
    return place


def test_there_are_many():
    assert len({json.dumps(arguments) for arguments, _ in ROWS}) == len(ROWS) >= 120


@pytest.mark.parametrize(("arguments", "words"), ROWS, ids=lambda value: " ".join(value)[:60])
def test_a_wrong_use_is_answered_with_what_to_do(arguments, words, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    done = runner(capsys, monkeypatch)(*arguments)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert len(done.stderr.rstrip("\n")) <= 600
    assert "Errno" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert done.stdout == ""
    assert sorted(os.listdir(place / "full")) == ["mine"]
    assert not (place / "new").exists()
