"""``jaxacct sweep`` as a user meets it: one process, several jobs, and one that dies."""

import json
import os
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
        [sys.executable, "-m", "jaxacct.cli", "sweep", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "80"} | environment,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone():
    """What one process with one device finds."""
    axes = {"noise_multiplier": np.geomspace(0.8, 8, 5), "sampling_rate": [0.01, 0.1], "steps": [100, 10_000]}
    return sweep.epsilon(sweep.grid(**axes, delta=1e-5), mode="saddlepoint", relation="remove", show_progress=False)


def test_the_result_is_written_and_told(alone, tmp_path, capsys, monkeypatch):
    from jaxacct.cli import main

    out = tmp_path / "sub" / "found.npz"
    assert main(["sweep", *AXES, "--out", str(out), "--json"]) == 0
    output, errors = capsys.readouterr()
    record, found = json.loads(output), sweep.load(out)
    assert errors == ""
    assert record["shape"] == [5, 2, 2]
    assert record["counts"]["entries"] == 20
    assert record["out"] == str(out)
    assert "results" not in record
    assert found.upper.tobytes() == alone.upper.tobytes()
    assert [path.name for path in out.parent.iterdir()] == ["found.npz"]
    assert main(["sweep", *AXES]) == 0
    output, _ = capsys.readouterr()
    assert max(map(len, output.splitlines())) <= 80
    assert "20 in " in output


def test_jobs_of_four_devices_change_no_bit_and_a_death_loses_nothing(alone, tmp_path, capsys, monkeypatch):
    from jaxacct.cli import main

    arguments = [*AXES, "--out", tmp_path / "found.npz", "--chunk", 2]
    out, parts = tmp_path / "found-0-of-2.npz", tmp_path / "found-0-of-2.npz.parts"
    first = started(*arguments, "--shard", "0/2", **FOUR_DEVICES)
    try:
        while len(list(parts.glob("chunk-*"))) < 2 and not out.exists():
            assert first.poll() is None or out.exists(), first.communicate()
            time.sleep(0.005)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    if out.exists():
        pytest.skip("it was done before it could be killed")
    assert main(["sweep", *map(str, arguments), "--shard", "0/2"]) == 2
    assert "chunks of this sweep: give resume" in capsys.readouterr().err
    kept = {path: path.stat().st_mtime_ns for path in parts.glob("chunk-*")}
    again = started(*arguments, "--shard", "0/2", "--resume", "--json", **FOUR_DEVICES)
    output, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert len(kept) >= 2
    assert json.loads(output)["counts"]["entries"] == 10
    assert not parts.exists()
    merging = ["sweep", *map(str, arguments), "--merge", str(out)]
    assert main(merging) == 2
    assert "is none of 1 shards" in capsys.readouterr().err
    assert main(["sweep", *map(str, arguments), "--shard", "1/2"]) == 0
    assert main([*merging, str(tmp_path / "found-1-of-2.npz")]) == 0
    found = sweep.load(tmp_path / "found.npz")
    for name, values in alone.arrays.items():
        assert values.tobytes() == found.arrays[name].tobytes(), name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found-0-of-2.npz", "found-1-of-2.npz", "found.npz"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--noise-multiplier", "1:2"], ["noise_multiplier", "LOW:HIGH:COUNT"]),
        (["--sampling-rate", "0.1,1.5"], ["sampling_rate", "1.5"]),
        (["--mechanism", "Gaussian"], ["sampling_rate", "not used"]),
        (["--mechanism", "Magic"], ["mechanism", "Magic"]),
        (["--epsilon", "1"], ["--noise-multiplier", "leave out"]),
        (["--out", "found.xlsx"], [".npz", ".csv"]),
        (["--resume"], ["--resume", "--out"]),
        (["--relation", "replace", "--mechanism", "DiscreteGaussian"], ["relation"]),
        (["--devices", "0"], ["devices"]),
        (["--shard", "3"], ["shard", "0/8"]),
        (["--shard", "0/2"], ["--out NAME.npz"]),
        (["--shard", "0/2", "--out", "found.csv"], ["--out NAME.npz"]),
        (["--shard", "2/2", "--out", "found.npz"], ["index = 2"]),
        (["--shard", "0/100", "--out", "found.npz"], ["count = 100"]),
        (["--merge", "none.npz"], ["none.npz"]),
    ],
)
def test_bad_input_exits_with_2_and_one_message(change, words, capsys, monkeypatch):
    from jaxacct.cli import main

    assert main(["sweep", *AXES, *change]) == 2
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    assert all(word in errors for word in words), errors
    assert len(errors.splitlines()) == 1
    assert output == ""


def test_what_is_looked_for_is_what_is_not_given(capsys, monkeypatch):
    from jaxacct.cli import main

    assert main(["sweep", "--steps", "10"]) == 2
    assert "--delta is missing" in capsys.readouterr().err
    assert main(["sweep", "--epsilon", "1", "--steps", "10", "--sampling-rate", "0.1"]) == 2
    assert "sweep over PoissonSubsampledGaussian: noise_multiplier missing" in capsys.readouterr().err
    assert main(["sweep", "--epsilon", "1", "--delta", "1e-5", "--steps", "10"]) == 2
    assert "sampling_rate missing" in capsys.readouterr().err
