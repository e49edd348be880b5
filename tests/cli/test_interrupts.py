"""Ctrl-C from the first import on: code 130, one line, no trace, and what is on the disk is whole."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import pytest

SCRIPT = """
import os, signal, sys

seen = set()

def press(event, arguments):
    if event == "import" and arguments[0] == {moment!r} and not seen:
        seen.add(1)
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(press)
sys.argv = ["jaxacct", "certify", {spec!r}, "--out", "certificate"]
{run}
"""
CONSOLE = "from jaxacct.__main__ import console; console()"
MAIN = "from jaxacct.cli import main; code = main(); print('jaxacct.composition' in sys.modules); sys.exit(code)"
"""The latter shows that the process goes on: the import was not torn in two, and nothing ended the process."""

MOMENTS = {
    "argparse": (CONSOLE, "jaxacct", ""), "jax": (CONSOLE, "jaxacct", ""),
    "jaxacct.composition": (MAIN, "jaxacct certify", "True\n"),
}  # fmt: skip
"""Modules at whose import the signal comes; what runs then, who says that it was interrupted, and what is printed."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_an_import(moment, tmp_path):
    run, name, printed = MOMENTS[moment]
    spec = str(pathlib.Path(__file__).parents[1] / "data" / "spec.json")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(moment=moment, spec=spec, run=run)], capture_output=True, text=True,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()) == (130, [f"{name}: interrupted."])
    assert done.stdout == printed
    assert not list(tmp_path.iterdir())


def test_a_ctrl_c_that_somebody_swallows_is_heard(capsys, monkeypatch):
    from jaxacct import certificates
    from jaxacct.cli import main

    def swallows(_):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("made into something else") from None

    monkeypatch.setattr(certificates, "check", swallows)
    assert main(["certify", "--check", "folder"]) == 130
    assert capsys.readouterr().err == "jaxacct certify: interrupted.\n"

    def prints(_):  # as C does by PyErr_Print, and in callbacks
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            sys.excepthook(type(error), error, error.__traceback__)
            sys.unraisablehook(types.SimpleNamespace(exc_type=type(error)))
        time.sleep(60)

    monkeypatch.setattr(certificates, "check", prints)
    assert main(["certify", "--check", "folder"]) == 130
    assert capsys.readouterr().err == "jaxacct certify: interrupted.\n"
    monkeypatch.setattr(certificates, "check", lambda _: json.loads("{"))
    assert main(["certify", "--check", "folder"]) == 2
