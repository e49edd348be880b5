"""Every public function under the settings that JAX programs are debugged with, in threads, and in forked processes."""

import concurrent.futures
import contextlib
import doctest
import inspect
import subprocess
import sys
import threading

import jax
import jax.monitoring
import numpy as np
import pytest
from helpers.public_names import NAMES
from helpers.thorough import cases

import jaxacct as ja

CONTEXTS = {
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no transfers": lambda: jax.transfer_guard("disallow"),
    "no NaN": lambda: jax.debug_nans(True),
    "no inf": lambda: jax.debug_infs(True),
    "no jit": lambda: jax.disable_jit(True),
}

TOGETHER = [name for name in CONTEXTS if name != "no jit"], ["no jit"]
"""Settings that are asked at once: none of them hides what another one finds. What is traced once is traced under the
first of these."""

ROOMS = (
    *("adapters", "convert", "filters", "gdp", "iteration", "mechanisms"),
    *("odometers", "prv", "rdp", "saddlepoint", "tradeoff"),
)

ELSEWHERE = {
    "jaxacct.prv.curve": "the mesh is here by epsilon and delta",
    "jaxacct.tradeoff.advantage": "the profile is here by curve",
    "jaxacct.tradeoff.bayes_risk": "likewise",
    "jaxacct.tradeoff.TradeOff": "likewise",
    "jaxacct.gdp.certified_mu": "likewise",
    "jaxacct.RandomAllocation": "what it computes is here by rdp.curve",
}
"""Left out for their cost."""

AMBIENT = {f"jaxacct.rdp.{name}" for name in ("epsilon_mironov", "epsilon_improved", "log_delta_improved")}
"""Formulas in the precision, and on the device, of the caller's own arrays: Python numbers given to them are transfers
of the caller's, and JAX says so."""


def examples(name):
    """The doctests of a public name, its methods' too."""
    found = doctest.DocTestFinder(exclude_empty=True).find(NAMES[name], name)
    return [test for test in found if test.examples]


TABLE = [
    name
    for name, entry in NAMES.items()
    if ((name.startswith("jaxacct.") and name.count(".") == 1) or name.split(".")[1] in ROOMS)
    and callable(entry)
    and name not in ELSEWHERE
    and not (isinstance(entry, type) and issubclass(entry, ja.DominatingPair))  # asked in a scope of the caller's
    and examples(name)
]


def run(name):
    """Runs the doctests of a name here and now; returns what went wrong."""
    wrong = []
    for test in examples(name):
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        runner.run(test, out=wrong.append)
    return "".join(wrong)


def settings(name):
    """What the examples of a public name are asked under, each time: names of settings."""
    if name in AMBIENT:
        alone = ["no transfers"]
        return [*([each for each in several if each not in alone] for several in TOGETHER), alone]
    return cases(TOGETHER, [[each] for each in TOGETHER[0]])


@pytest.mark.parametrize("name", TABLE)
def test_public_functions_answer_the_same_in_every_context(name):
    for several in settings(name):
        with contextlib.ExitStack() as stack:
            for setting in several:
                stack.enter_context(CONTEXTS[setting]())
            wrong = run(name)
        if name in AMBIENT and several == ["no transfers"]:
            assert "Disallowed host-to-device transfer" in wrong
        else:
            assert not wrong, f"under {several}: {wrong}"


def test_the_table_has_every_room():
    assert {name.split(".")[1] for name in TABLE if name.count(".") > 1} >= {*ROOMS} - {"mechanisms"}
    assert len(TABLE) > 80
    assert not set(ELSEWHERE) - set(NAMES)
    assert all(not inspect.ismodule(NAMES[name]) for name in TABLE)


def test_contexts_compile_nothing_anew():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    mechanism = ja.Gaussian(10.0)

    def call():
        ledger = ja.filters.RenyiFilter(2.0, 1e-5)
        return ja.epsilon(mechanism, 100, 1e-5).upper, ledger.spend(mechanism, 3)[1].epsilon()

    first = call()
    assert first == call()
    compiled.clear()
    for context in CONTEXTS.values():
        with context():
            assert call() == first
    assert not compiled


def test_first_calls_of_several_threads():
    """Shapes that nothing else has, so that all threads compile at once; each has its own setting."""
    orders = np.linspace(2.0, 9.0, 13)
    barrier = threading.Barrier(len(CONTEXTS))

    def work(setting):
        with CONTEXTS[setting]():
            barrier.wait()
            curve = ja.rdp.curve(ja.Laplace(2.0), orders)
            ledger = ja.filters.RenyiFilter(2.0, 1e-5, orders=tuple(orders))
            granted, after = ledger.spend(ja.Gaussian(20.0), 5)
            bounds = ja.epsilon(ja.Gaussian(10.0), 100, 1e-5)
            return curve.tobytes(), bool(granted), float(after.epsilon()), float(bounds.upper)

    with concurrent.futures.ThreadPoolExecutor(len(CONTEXTS)) as pool:
        answers = list(pool.map(work, CONTEXTS))
    assert len(set(answers)) == 1
    assert answers[0][1]


FORKS = """
import os, sys, warnings
import jaxacct as ja

warnings.simplefilter("ignore")  # JAX warns of any fork

def in_a_child():
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = repr(float(ja.convert.zcdp_to_epsilon(0.1, 1e-5)))
        except RuntimeError as error:
            answer = str(error)
        os.write(write, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(read, 1000).decode()

early = in_a_child()
own = repr(float(ja.convert.zcdp_to_epsilon(0.1, 1e-5)))
print(early == own, "spawn" in in_a_child(), repr(float(ja.convert.zcdp_to_epsilon(0.1, 1e-5))) == own)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
def test_a_process_forked_after_the_first_call_says_so():
    shown = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=300, check=True)
    assert shown.stdout.split() == ["True", "True", "True"]
