"""A process that was forked after JAX had started says so, where it would hang; one that was forked before does not."""

import subprocess
import sys

import pytest

SCRIPT = """
import os
import jaxacct as ja
from jaxacct.processes import check_not_forked
from jaxacct.train import DPTrainer

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

def told(*calls):
    child = os.fork()
    if child == 0:
        os._exit(sum(says(call) for call in calls))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

before = told(check_not_forked)
ja.rdp.curve(ja.Gaussian(1.0), [2.0])
after = told(check_not_forked, train, sweep)
check_not_forked()  # the parent goes on
print(before, after)
"""


@pytest.mark.exhaustive
def test_a_fork_is_told_where_it_hurts():
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["0", "3"], done.stderr
