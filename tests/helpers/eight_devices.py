"""Programs of tests that need eight devices, each in a process of its own."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

ALL = """
import gc
gc.disable()  # it is a short life
import json, sys
answers = []
for script in json.load(sys.stdin):
    names = {}
    exec(script, names)
    answers.append(names["answer"])
print(json.dumps(answers))
"""


def answers_of(*scripts: str) -> list[Any]:
    """Runs scripts in one process on eight virtual devices, from the top level; returns what each calls ``answer``.

    A process takes seconds before it has imported all there is.
    """
    # First: XLA reads flags up to the first word that is none.
    flags = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")
    done = subprocess.run(
        [sys.executable, "-c", ALL],
        input=json.dumps(scripts),
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
