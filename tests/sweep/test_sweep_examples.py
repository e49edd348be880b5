"""The examples of the pages on sweeps, run: schedulers and computing are played, so Dask and Ray need not be there."""

import contextlib
import pathlib
import re
import shlex
import subprocess
import sys
import types

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.cli import main

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sweeps.md").read_text()
MACHINES = (DOCS / "sweeps-on-many-machines.md").read_text()
TITLED = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', MACHINES, re.M | re.S))
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


class Client(contextlib.nullcontext):
    """Dask's client, as far as the page uses it; a worker is lost, and its shard is computed by another one."""

    def __init__(self, address):
        assert address == "scheduler:8786"
        super().__init__(self)

    def map(self, function, items, *, retries):
        assert retries > 0
        return [(function, item) for item in items for _ in range(1 + (item == 1))]

    def gather(self, futures):
        return list(dict.fromkeys(function(item) for function, item in futures))


def ray():
    """Ray, as far as the page uses it."""
    return {
        "remote": lambda **options: lambda function: types.SimpleNamespace(remote=function),
        "get": list,
    }


@pytest.mark.parametrize(
    ("script", "modules"),
    [("ray_sweep.py", {"ray": ray()}), ("dask_sweep.py", {"dask": {}, "dask.distributed": {"Client": Client}})],
    ids=["ray", "dask"],
)
def test_schedulers_of_python(script, modules, computed, tmp_path, monkeypatch, capsys):
    for name, entries in modules.items():
        module = types.ModuleType(name)
        vars(module).update(entries)
        monkeypatch.setitem(sys.modules, name, module)
    text = re.sub(r"^(SHARDS.* = )64", r"\g<1>3", TITLED[script], flags=re.M)
    text = re.sub(r", 1(000|00)\)", ", 2)", text.replace("/shared", str(tmp_path)))
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(text, script, "exec"), names)
    assert names["SHARDS"] == 3
    np.testing.assert_array_equal(names["results"].upper.ravel(), np.arange(8.0))


@pytest.mark.parametrize("words", re.findall(r"^jaxacct (sweep (?:best|plot|export) .*)$", PAGE, re.M))
def test_what_the_page_asks_of_a_folder(words, computed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    axes = {"noise_multiplier": [1.0, 2.0], "sampling_rate": [0.01, 0.02], "steps": [1000, 2000]}
    ja.sweep.epsilon(ja.sweep.grid(**axes, delta=1e-5), out="grid", show_progress=False)
    if "plot" in words:
        pytest.importorskip("matplotlib")
    assert main(shlex.split(words)) == 0
