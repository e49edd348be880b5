"""A process that was forked after JAX had started says so, where it would hang; one that was forked before does not."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import jaxacct as ja
from jaxacct.processes import check_not_forked
from jaxacct.train import DPTrainer

if sys.argv[1] == "after":
    ja.rdp.curve(ja.Gaussian(1.0), [2.0])

def sweep():
    ja.sweep.epsilon(ja.sweep.grid(ja.Gaussian, noise_multiplier=[1.0], steps=1, delta=1e-5), show_progress=False)

def says(call):
    try:
        call()
    except RuntimeError as error:
        return "spawn" in str(error)
    return False

def train():
    DPTrainer(None, None, None, None, epsilon=1.0, delta=0.1)

child = os.fork()
if child == 0:
    os._exit(sum(says(call) for call in (check_not_forked, train, sweep)[: 3 if sys.argv[1] == "after" else 1]))
told = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
check_not_forked()  # the parent goes on
print(told)
"""


@pytest.mark.parametrize(("when", "told"), [("before", "0"), ("after", "3")])
def test_a_fork_is_told_where_it_hurts(when, told):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, when], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == [told], done.stderr
