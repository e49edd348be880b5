"""The command line run in the tests' own process, and the settings that several tests share."""

import json
import types

from jaxacct.cli import main

RUN = ["--noise-multiplier", "1.0", "--sampling-rate", "0.01", "--steps", "10000"]
EPSILON = ["epsilon", *RUN, "--delta", "1e-5"]
CALIBRATE = ["calibrate", "--epsilon", "1", "--delta", "1e-5", "--sampling-rate", "0.01", "--steps", "10000"]
TRUTH = 6.187712389971
"""Epsilon at 1e-5 of the run, which tests/data/delta_truth.json confirms to 160 bits."""

COMMANDS = (
    *("epsilon", "delta", "calibrate", "sweep", "curve", "certify", "verify", "train", "audit", "release", "doctor"),
)


def runner(capsys, monkeypatch):
    """Returns what runs the command in this process, in an environment without its variables."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "JAXACCT_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, **environment):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            try:
                code = main(list(map(str, arguments)))
            except SystemExit as end:
                code = end.code
        printed = capsys.readouterr()
        return types.SimpleNamespace(returncode=code, stdout=printed.out, stderr=printed.err)

    return run


def answer(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
