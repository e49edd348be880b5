"""``jaxacct sweep`` as a user meets it: one process, several jobs, and one that dies."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxacct import sweep

AXES = [
    "--noise-multiplier", "0.8:8:5:log", "--sampling-rate", "0.01,0.1", "--steps", "100,10000", "--delta", "1e-5",
    "--mode", "saddlepoint", "--relation", "remove",
]  # fmt: skip
FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4 " + os.environ.get("XLA_FLAGS", "")}


def started(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "jaxacct", "sweep", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "80"} | environment,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone():
    """What one process with one device finds."""
    axes = {"noise_multiplier": np.geomspace(0.8, 8, 5), "sampling_rate": [0.01, 0.1], "steps": [100, 10_000]}
    return sweep.epsilon(sweep.grid(**axes, delta=1e-5), mode="saddlepoint", relation="remove", show_progress=False)


def test_the_result_is_written_and_told(alone, tmp_path, capsys, monkeypatch):
    from jaxacct.cli import main

    out = tmp_path / "sub" / "found"
    assert main(["sweep", *AXES, "--out", str(out), "--json"]) == 0
    output, errors = capsys.readouterr()
    record, found = json.loads(output), sweep.load(out)
    assert errors == ""
    assert record["shape"] == [5, 2, 2]
    assert record["counts"]["entries"] == 20
    assert record["out"] == str(out)
    assert "results" not in record
    assert found.upper.tobytes() == alone.upper.tobytes()
    assert [path.name for path in out.parent.iterdir()] == ["found"]
    assert main(["sweep", *AXES]) == 0
    output, _ = capsys.readouterr()
    assert max(map(len, output.splitlines())) <= 80
    assert "20 in " in output


@pytest.mark.exhaustive
def test_four_devices_change_no_bit_and_a_death_loses_nothing(alone, tmp_path, capsys, monkeypatch):
    from jaxacct.cli import main

    arguments = [*AXES, "--out", tmp_path / "found", "--chunk", 2]
    out = tmp_path / "found-0-of-2"
    first = started(*arguments, "--shard", "0/2", **FOUR_DEVICES)
    try:
        while len(list(out.glob("accountant/c.*"))) < 2:
            assert first.poll() in (None, 0), first.communicate()
            time.sleep(0.005)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert main(["sweep", *map(str, arguments), "--shard", "0/2"]) == 2
    assert "chunks of this sweep: give resume" in capsys.readouterr().err
    kept = {path: path.stat().st_mtime_ns for path in out.glob("accountant/c.*")}
    assert main(["sweep", *map(str, arguments), "--shard", "0/2", "--resume", "--json"]) == 0  # and on one device
    assert len(kept) >= 2
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in out.glob("accountant/c.*")}.items()
    assert json.loads(capsys.readouterr().out)["counts"]["entries"] == 10
    merging = ["sweep", "merge", str(tmp_path / "found"), str(out)]
    assert main(merging) == 2
    assert "1/2 missing" in capsys.readouterr().err
    assert main(["sweep", *map(str, arguments), "--shard", "1/2"]) == 0
    assert main([*merging, str(tmp_path / "found-1-of-2")]) == 0
    found = sweep.load(tmp_path / "found")
    for name, values in alone.arrays.items():
        assert values.tobytes() == found.arrays[name].tobytes(), name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found", "found-0-of-2", "found-1-of-2"]


@pytest.fixture
def folder(alone, tmp_path):
    alone.save(tmp_path / "found")
    return tmp_path / "found"


def test_what_is_asked_of_a_folder(alone, folder, capsys):
    from jaxacct.cli import main

    assert main(["sweep", "best", str(folder), "--epsilon", "2", "--steps-min", "1000", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["results"]
    want = alone.best(2.0, steps=(1000, None))
    assert best == {name: values.tolist() for name, values in want.items()}
    assert main(["sweep", "best", str(folder), "--epsilon", "2", "--most", "steps", "--count", "1"]) == 0
    assert "10000" in capsys.readouterr().out
    assert main(["sweep", "best", str(folder), "--epsilon", "0"]) == 0
    assert "none" in capsys.readouterr().out
    assert main(["sweep", "export", str(folder), str(folder.parent / "found.csv")]) == 0
    assert len((folder.parent / "found.csv").read_text().splitlines()) == 21
    pytest.importorskip("matplotlib")
    for name, at in (
        ("two.png", ["--at", "steps=100"]),
        ("one.png", ["--at", "steps=100", "--at", "sampling-rate=0.1"]),
    ):
        assert main(["sweep", "plot", str(folder), str(folder.parent / name), *at]) == 0
        assert (folder.parent / name).read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["best", "none", "--epsilon", "2"], ["none", "no folder of a sweep"]),
        (["best", "found"], ["give --epsilon"]),
        (["best", "found", "--delta", "1e-5"], ["give --epsilon"]),
        (["best", "found", "--epsilon", "2", "--least", "epoch"], ["epoch", "noise_multiplier"]),
        (["export", "found", "found.xlsx"], [".csv", ".parquet"]),
        (["plot", "found", "found.xlsx"], [".png"]),
        (["plot", "found", "found.png"], ["one or two axes", "--at"]),
        (["plot", "found", "found.png", "--at", "steps"], ["--at steps", "steps=1000"]),
        (["plot", "found", "found.png", "--at", "steps=7"], ["steps = 7", "nearest"]),
        (["merge", "whole", "found"], ["whole sweep"]),
    ],
)
def test_what_cannot_be_asked_of_a_folder(words, told, folder, capsys, monkeypatch):
    from jaxacct.cli import main

    monkeypatch.chdir(folder.parent)
    assert main(["sweep", *words]) == 2
    output, errors = capsys.readouterr()
    assert all(word in errors for word in told), errors
    assert len(errors.splitlines()) == 1
    assert output == ""


def test_rows_and_files(alone, tmp_path, capsys, monkeypatch):
    pytest.importorskip("flint")
    from jaxacct.cli import main
    from jaxacct.cli.verify import read_claims

    monkeypatch.chdir(tmp_path)
    pathlib.Path("runs.csv").write_text("noise_multiplier,sampling_rate,steps\n0.8,0.01,100\n8.0,0.1,10000\n")
    pathlib.Path("noise.txt").write_text("0.8\n8\n")
    np.save("steps.npy", [100, 10_000])
    options = ["--delta", "1e-5", "--mode", "saddlepoint", "--relation", "remove", "--json"]
    columns = [
        "--noise-multiplier",
        "@noise.txt",
        "--sampling-rate",
        "@runs.csv:sampling_rate",
        "--steps",
        "@steps.npy",
    ]
    for given in (["--rows", "runs.csv"], [*columns, "--rows"]):
        assert main(["sweep", *given, *options]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["layout"] == "rows"
        assert found["results"]["upper"] == [alone.upper[0, 0, 0], alone.upper[4, 1, 1]]
        assert [(claim.mechanism.noise_multiplier, claim.steps, claim.upper) for claim in read_claims(found)] == [
            (0.8, 100, alone.upper[0, 0, 0]), (8.0, 10_000, alone.upper[4, 1, 1]),
        ]  # fmt: skip
    for given, words in (
        (["--rows", "runs.csv", "--steps", "1"], "has a column steps"),
        (["--rows", "none.csv"], "none.csv"),
        (["--rows", "noise.txt"], "0.8 not used"),
        ([*columns[:4], "--steps", "@runs.csv:epochs"], "no column 'epochs'"),
        ([*columns[:4], "--steps", "@runs.csv"], "runs.csv cannot be read"),
    ):
        assert main(["sweep", *given, *options]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--noise-multiplier", "1:2"], ["noise_multiplier", "LOW:HIGH:COUNT"]),
        (["--sampling-rate", "0.1,1.5"], ["sampling_rate", "1.5"]),
        (["--mechanism", "Gaussian"], ["sampling_rate", "not used"]),
        (["--mechanism", "Magic"], ["mechanism", "Magic"]),
        (["--epsilon", "1"], ["--noise-multiplier", "leave out"]),
        (["--out", "found.csv"], ["--out found,", "export"]),
        (["--resume"], ["resume", "--out"]),
        (["--overwrite"], ["overwrite", "--out"]),
        (["--arithmetic", "float32", "--epsilon", "1"], ["--noise-multiplier"]),
        (["--relation", "replace", "--mechanism", "DiscreteGaussian"], ["relation"]),
        (["--devices", "0"], ["devices"]),
        (["--shard", "3"], ["shard", "0/8"]),
        (["--shard", "0/2"], ["give out (--out)"]),
        (["--shard", "2/2", "--out", "found"], ["shard's number = 2"]),
        (["--shard", "0/100", "--out", "found"], ["shard's count = 100"]),
    ],
)
def test_bad_input_exits_with_2_and_one_message(change, words, tmp_path, capsys, monkeypatch):
    from jaxacct.cli import main

    monkeypatch.chdir(tmp_path)

    assert main(["sweep", *AXES, *change]) == 2
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    assert all(word in errors for word in words), errors
    assert len(errors.splitlines()) == 1
    assert output == ""
    assert not list(tmp_path.iterdir())


def test_what_is_looked_for_is_what_is_not_given(capsys, monkeypatch):
    from jaxacct.cli import main

    assert main(["sweep", "--steps", "10"]) == 2
    assert "--delta is missing" in capsys.readouterr().err
    assert main(["sweep", "--epsilon", "1", "--steps", "10", "--sampling-rate", "0.1"]) == 2
    assert "sweep over PoissonSubsampledGaussian: noise_multiplier missing" in capsys.readouterr().err
    assert main(["sweep", "--epsilon", "1", "--delta", "1e-5", "--steps", "10"]) == 2
    assert "sampling_rate missing" in capsys.readouterr().err
