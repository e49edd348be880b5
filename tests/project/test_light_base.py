"""The base is light: accountants and their command without what the extras bring, and a word on what is missing."""

import json
import pathlib
import subprocess
import sys
import tomllib

import pytest

import jaxacct

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

EXTRAS = ("flax", "optax", "orbax", "sklearn", "matplotlib", "flint", "shtab")
"""What is not there without an extra."""

SCRIPT = f"""
import json, sys

sys.modules.update(dict.fromkeys({EXTRAS!r}))  # None: as if it were not installed
import jax
before = set(sys.modules)
import jaxacct as ja
ja.epsilon
found = {{"imported": sorted({{name.split(".")[0] for name in set(sys.modules) - before}}), "refused": {{}}}}
exec("from jaxacct import *")  # what is there
for name in (*ja.__all__, "train", "audit", "verify"):
    try:
        getattr(ja, name)
    except ModuleNotFoundError as error:
        found["refused"][name] = str(error)
print(json.dumps(found))
"""


@pytest.mark.exhaustive
def test_what_is_imported_and_what_is_refused_without_the_extras():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    # The last is what jaxtyping prints its types by.
    expected = {"jaxacct", "jax", "jaxlib", "numpy", "jaxtyping", "wadler_lindig"}
    assert set(found["imported"]) - sys.stdlib_module_names <= expected
    assert set(found["refused"]) == {"train", "audit", "verify"}
    for name, message in found["refused"].items():
        assert f'pip install "jaxacct[{"verify" if name == "verify" else "train"}]"' in message


@pytest.mark.exhaustive
def test_a_program_in_which_all_is_first_imported_is_traced_once():
    script = (
        "import jax, jaxacct as ja\n"
        "@jax.jit\n"
        "def curve(noise):\n"
        "    print('traced')\n"
        "    return ja.rdp.curve(ja.Gaussian(noise), (2.0,))\n"
        "curve(1.0), curve(2.0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["traced"]


@pytest.mark.exhaustive
def test_a_command_says_what_to_install():
    script = (
        "import sys; sys.modules['flax'] = None; from jaxacct.cli import main; print(main(['train']), main(['audit']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2", "2"], done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all('pip install "jaxacct[train]"' in line for line in lines)


def test_the_base_depends_on_four_packages_and_says_that_it_is_typed():
    names = {line.split(">=")[0] for line in PROJECT["dependencies"]}
    assert names == {"jax", "jaxlib", "numpy", "jaxtyping", "rich"}
    assert {"train", "plot", "verify", "completion"} <= set(PROJECT["optional-dependencies"])
    assert (pathlib.Path(jaxacct.__file__).parent / "py.typed").exists()


THREADS = """
import importlib, random, sys, threading
import jaxacct as ja

names = ("epsilon Gaussian adapters audit calibrate certificates convert factorize filters gdp iteration menus "
         "monte_carlo odometers plot policies prv rdp saddlepoint selection strategies sweep tradeoff train "
         "verify").split()
random.Random(int(sys.argv[1])).shuffle(names)
together, errors = threading.Barrier(len(names)), []

def first_use(name):
    together.wait()
    try:
        importlib.import_module(f"jaxacct.{name}") if sys.argv[2] == "import" and name.islower() and name != "epsilon" \
            else getattr(ja, name)
    except Exception as error:
        errors.append(f"{name}: {error!r}")

threads = [threading.Thread(target=first_use, args=(name,)) for name in names]
sys.setswitchinterval(1e-5)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(errors[:3])
sys.exit(len(errors))
"""


def use_first_in_threads(seed, spelling):
    command = [sys.executable, "-c", THREADS, str(seed), spelling]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_use_may_be_that_of_many_threads_at_once():
    """A circle of imports that two threads enter from two sides gives one of them a half-made module."""
    use_first_in_threads(1, "import")


@pytest.mark.exhaustive
@pytest.mark.parametrize("spelling", ["import", "attribute"])
@pytest.mark.parametrize("seed", range(2, 8))
def test_the_first_use_may_be_that_of_many_threads_in_any_order(seed, spelling):
    use_first_in_threads(seed, spelling)
