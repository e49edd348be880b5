"""``jaxacct sweep`` as a user meets it: one process, several, and one that dies."""

import json
import os
import signal
import socket
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
FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


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


@pytest.fixture
def together():
    """Starts two processes of four devices; none outlives the test."""
    processes = []

    def start(out, *arguments):
        processes.extend(both(out, *arguments))
        return processes[-2:]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def both(out, *arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = [*AXES, "--out", out, "--coordinator", address, "--num-processes", 2, *arguments]
    return [started(*common, "--process-id", i, **FOUR_DEVICES) for i in range(2)]


def test_the_result_is_written_and_told(alone, tmp_path, capsys, monkeypatch):
    from jaxacct.cli import main

    monkeypatch.setenv("JAXACCT_CACHE_DIR", "")
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


def test_two_processes_of_four_devices_change_no_bit_and_a_death_loses_nothing(alone, together, tmp_path):
    out = tmp_path / "found.npz"
    parts = out.with_name("found.npz.parts")
    first, second = together(out, "--chunk", 2, "--patience", 8)
    while not list(parts.glob("chunk-*")):
        assert first.poll() is None, first.communicate()
        assert second.poll() is None, second.communicate()
        time.sleep(0.02)
    second.send_signal(signal.SIGKILL)
    second.communicate()
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 2, errors
    assert "Traceback" not in errors
    assert "process 1 has shown no sign of life for 8 s" in errors
    assert "--resume" in errors
    kept = {path.name for path in parts.glob("chunk-*")}
    assert kept
    assert not out.exists()

    processes = together(out, "--resume", "--json")
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert json.loads(outputs[0][0])["counts"]["entries"] == 20
    assert outputs[1][0] == ""
    found = sweep.load(out)
    for name, values in alone.arrays.items():
        assert values.tobytes() == found.arrays[name].tobytes(), name
    assert not parts.exists()


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
        (["--plot", "found.doc"], [".png", ".svg"]),
        (["--relation", "replace", "--mechanism", "DiscreteGaussian"], ["relation"]),
        (["--devices", "0"], ["devices"]),
        (["--coordinator", "here:1"], ["--num-processes"]),
        (["--coordinator", "here", "--num-processes", "2", "--process-id", "0"], ["coordinator", "port"]),
        (["--coordinator", "here:1", "--num-processes", "2", "--process-id", "2"], ["process_id"]),
        (["--coordinator", "here:1", "--num-processes", "2", "--process-id", "0"], ["--out"]),
    ],
)
def test_bad_input_exits_with_2_and_one_message(change, words, capsys, monkeypatch):
    from jaxacct.cli import main

    monkeypatch.setenv("JAXACCT_CACHE_DIR", "")
    assert main(["sweep", *AXES, *change]) == 2
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    assert all(word in errors for word in words), errors
    assert len(errors.splitlines()) == 1
    assert output == ""


def test_what_is_looked_for_is_what_is_not_given(capsys, monkeypatch):
    from jaxacct.cli import main

    monkeypatch.setenv("JAXACCT_CACHE_DIR", "")
    assert main(["sweep", "--steps", "10"]) == 2
    assert "--delta is missing" in capsys.readouterr().err
    assert main(["sweep", "--epsilon", "1", "--steps", "10", "--sampling-rate", "0.1"]) == 2
    assert "sweep over PoissonSubsampledGaussian: noise_multiplier missing" in capsys.readouterr().err
    assert main(["sweep", "--epsilon", "1", "--delta", "1e-5", "--steps", "10"]) == 2
    assert "sampling_rate missing" in capsys.readouterr().err
