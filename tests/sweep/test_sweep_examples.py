"""The examples of docs/sweeps.md, run: what schedulers do is played, and what computes is not what is asked here."""

import pathlib
import re
import shlex
import subprocess
import types

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.cli import main

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
TITLED = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGE, re.M | re.S))
SMALL = "settings=(--noise-multiplier 1:2:3 --sampling-rate 0.1,0.2 --steps 10 --delta 1e-5 --chunk 1)"


def called(script, program, **environment):
    """The arguments of each call of a program in a script, as bash makes them."""
    played = f"{program}() {{ printf '%q ' \"$@\"; echo; }}\n{script}"
    done = subprocess.run(["bash", "-eu", "-c", played], capture_output=True, text=True, env=environment, check=True)
    return [shlex.split(line) for line in done.stdout.splitlines()]


def test_slurm(computed, tmp_path, capsys):
    assert "#SBATCH --array=0-63" in TITLED["sweep.sbatch"]
    script = re.sub(r"^settings=.*$", SMALL, TITLED["sweep.sbatch"], flags=re.M)
    task = {"SCRATCH": str(tmp_path), "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_CPUS_PER_TASK": "1"}
    for i in range(4):
        (words,) = called(script, "jaxacct", SLURM_ARRAY_TASK_ID=f"{i}", **task)
        assert main(words) == 0
        assert main(words) == 0  # put back into the queue
    (submitted,) = called(TITLED["submit.sh"], "sbatch", **task)  # what the first printed is the number of its job
    assert submitted[:2] == ["--dependency=afterok:--parsable sweep.sbatch ", "--wrap"]
    (words,) = called(submitted[2].replace("of-64", "of-4"), "jaxacct", **task)
    assert main(words) == 0
    assert ja.sweep.load(tmp_path / "grid").upper.ravel().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_ray(computed, tmp_path, monkeypatch):
    ray = types.ModuleType("ray")
    ray.remote = lambda **options: lambda function: types.SimpleNamespace(remote=function)
    ray.get = list
    monkeypatch.setitem(__import__("sys").modules, "ray", ray)
    script = TITLED["ray_sweep.py"].replace("SHARDS = 64", "SHARDS = 3").replace("/shared", str(tmp_path))
    names: dict[str, object] = {}
    exec(compile(re.sub(r", 1(000|00)\)", ", 2)", script), "ray_sweep.py", "exec"), names)
    np.testing.assert_array_equal(names["found"].upper.ravel(), np.arange(8.0))


@pytest.mark.parametrize("words", re.findall(r"^jaxacct (sweep (?:best|plot|export) .*)$", PAGE, re.M))
def test_what_the_page_asks_of_a_folder(words, computed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    axes = {"noise_multiplier": [1.0, 2.0], "sampling_rate": [0.01, 0.02], "steps": [1000, 2000]}
    ja.sweep.epsilon(ja.sweep.grid(**axes, delta=1e-5), out="grid", show_progress=False)
    if "plot" in words:
        pytest.importorskip("matplotlib")
    assert main(shlex.split(words)) == 0
