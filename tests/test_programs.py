"""The library's own programs: one answer however they are compiled, and what is on the disk is never in the way."""

import functools
import hashlib
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.scipy.special import ndtr

from jaxacct import elementary, program_cache, programs
from jaxacct.bounds import Bounds
from jaxacct.elementary import By
from jaxacct.precision import scope
from jaxacct.saddlepoint.solve import larger as _larger

FIRST, SECOND = (Bounds(*np.float64((low, low + 1, low + 2)), np.bool_(True)) for low in (1.0, 2.0))
SCRIPT = """
import json, os, sys
import jax, numpy as np
counted = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **about: counted.append(name) if name.endswith(("compile_duration", "trace_duration")) else None)
from jaxacct import programs
from jaxacct.bounds import Bounds
from jaxacct.precision import scope
from jaxacct.saddlepoint.solve import larger as _larger
first, second = (Bounds(*np.float64((low, low + 1, low + 2)), np.bool_(True)) for low in (1.0, 2.0))

def told(asked):
    programs.PATIENCE = asked["patience"]
    os.environ["JAXACCT_CACHE"] = asked["cache"]
    jax.config.update("jax_enable_compilation_cache", asked["jax"] is not None)
    jax.config.update("jax_compilation_cache_dir", asked["jax"])
    with scope(by_programs=True):
        return float(_larger(first, second)[0].upper), len(counted)

for line in sys.stdin:
    asked, ends = json.loads(line), []
    for _ in range(asked["processes"]):
        read, write = os.pipe()
        if not os.fork():
            os.write(write, json.dumps(told(asked)).encode())
            os._exit(0)
        os.close(write)
        ends.append(read)
    print(json.dumps([json.loads(os.read(end, 1000)) for end in ends]), flush=True)
"""
"""Has imported all that an answer needs, and forks the processes that give one: starting one costs as many seconds."""

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True, params=[0, 500], ids=["compiled", "by NumPy"])
def cache(request, tmp_path, monkeypatch):
    """An empty cache, and no program in memory; programs are compiled at once, or not yet."""
    where = tmp_path / "programs"
    for by in (_larger._compiler(), By.NUMPY):  # once for all tests, and kept nowhere
        elementary.check(by, anew=True)
    monkeypatch.setattr(programs, "PATIENCE", request.param)
    monkeypatch.setenv("JAXACCT_CACHE", str(where))
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    programs.forget()
    yield where
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()
    programs.forget()


def answer():
    """Returns what a new process would, asked for the first time, but that code generators found sound are trusted."""
    programs.forget()
    with scope(by_programs=True):
        bounds, decides = _larger(FIRST, SECOND)
    return float(bounds.upper), int(decides)


def kept(where):
    return sorted(where.iterdir())


@pytest.fixture(scope="module")
def families():
    """Two processes that fork others, in which Python orders sets differently."""
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stdin=pipe,
            stdout=pipe,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    yield started
    for parent in started:
        parent.communicate()


def in_processes(parent, count, cache, by_jax=None):
    """Returns the answer of each of so many new processes at a time, and how often it traced or compiled."""
    asked = {"processes": count, "patience": programs.PATIENCE, "cache": str(cache), "jax": by_jax}
    parent.stdin.write(json.dumps(asked) + "\n")
    parent.stdin.flush()
    return json.loads(parent.stdout.readline())


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_second_process_compiles_nothing_and_two_at_a_time_do_not_meet(cache, families):
    together = in_processes(families[0], 2, cache)
    (after,) = in_processes(families[1], 1, cache)
    assert [told[0] for told in [*together, after]] == [4.0] * 3
    # Which of the two compiled is not ours to say: one may be through before the other is given a core.
    assert max(told[1] for told in together) > 0
    assert after[1] == 0
    assert not list(cache.glob(".new-*"))
    assert cache.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in cache.iterdir()} == {0o600}


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_what_jax_itself_has_from_the_disk_is_kept_whole_or_not_at_all(cache, tmp_path, families):
    by_jax = str(tmp_path / "jax")
    assert in_processes(families[0], 1, cache, by_jax)[0][0] == 4.0
    assert bool(list((tmp_path / "jax").glob("*"))) == (programs.PATIENCE == 0)
    shutil.rmtree(cache)
    # From JAX's own cache, and then from what was kept of that.
    for parent in families:
        assert in_processes(parent, 1, cache, by_jax)[0][0] == 4.0


def sealed(payload):
    return program_cache.MAGIC + hashlib.sha256(payload).digest() + payload


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        lambda content: b"nothing of ours",
        lambda content: sealed(b"no pickle"),
        lambda content: sealed(pickle.dumps((b"no program", jax.tree.structure(0)))),
    ],
    ids=["cut short", "empty", "one bit", "foreign", "no pickle", "no program"],
)
def test_what_is_not_whole_is_as_if_it_were_not_there(cache, damage):
    expected = answer()
    whole = {path: path.read_bytes() for path in kept(cache)}
    assert whole
    for path, content in whole.items():
        path.write_bytes(damage(content))
    assert answer() == expected
    # And is replaced: what follows finds it.
    assert all(path.read_bytes().startswith(program_cache.MAGIC) for path in whole)
    assert all(path.read_bytes() != damage(content) for path, content in whole.items())


class Bomb:
    """Leaves a mark when it is read by pickle."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return pathlib.Path.touch, (self.mark,)


@pytest.mark.skipif(sys.platform == "win32", reason="folders of a user are private there")
@pytest.mark.parametrize(("mode", "is_read"), [(0o600, True), (0o620, False), (0o602, False)])
def test_what_somebody_else_may_write_is_not_read(cache, tmp_path, mode, is_read):
    expected = answer()
    mark = tmp_path / "mark"
    for path in kept(cache):
        path.write_bytes(sealed(pickle.dumps(Bomb(mark))))
        path.chmod(mode)
    assert answer() == expected
    assert mark.exists() == is_read


@pytest.mark.skipif(sys.platform == "win32", reason="folders of a user are private there")
def test_a_folder_that_others_may_write_to_is_refused_in_words(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("JAXACCT_CACHE", str(shared))
    with pytest.warns(UserWarning, match=r"JAXACCT_CACHE = .*chmod 700"):
        assert answer() == (4.0, 1)
    assert not list(shared.iterdir())


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("JAXACCT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setenv("HOME", str(file))
    monkeypatch.setenv("LOCALAPPDATA", str(file))
    assert answer() == (4.0, 1)


def test_a_disk_that_is_full_leaves_nothing_behind(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert answer() == (4.0, 1)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("word", ["off", "OFF", "0"])
def test_it_can_be_turned_off(word, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXACCT_CACHE", word)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert program_cache.folder() is None
    assert answer() == (4.0, 1)
    assert not list(tmp_path.iterdir())


def test_nothing_is_kept_after_an_upgrade_that_keeps_times_of_files(cache, tmp_path, monkeypatch):
    package = tmp_path / "jaxacct"
    shutil.copytree(program_cache.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(program_cache, "PACKAGE", package)
    assert answer() == (4.0, 1)
    as_imported = kept(cache)
    assert as_imported
    for path in as_imported:
        path.unlink()
    changed = package / "bounds.py"
    times = changed.stat()
    changed.write_text(changed.read_text(encoding="utf-8") + "# Another release.\n", encoding="utf-8")
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert answer() == (4.0, 1)
    assert not kept(cache)


def test_what_was_not_used_for_longest_goes_first(cache, monkeypatch):
    answer()
    old, new = cache / ("0" * 40), cache / ("1" * 40)
    for path, used in ((old, 1e9), (new, 2e9)):
        path.write_bytes(bytes(10_000))
        os.utime(path, (used, used))
    monkeypatch.setattr(program_cache, "MOST_BYTES", sum(path.stat().st_size for path in cache.iterdir()) - 1)
    left = cache / ".new-left"
    left.touch()
    os.utime(left, (1e9, 1e9))
    program_cache._keep_within(cache)
    assert not old.exists()
    assert new.exists()
    assert not left.exists()


class Own:
    """A class that this package does not know."""


@pytest.mark.parametrize("value", [lambda x: x, Own, Own(), jax.tree.structure({"a": [jax.tree_util.Partial(answer)]})])
def test_what_other_code_decides_is_not_kept(value):
    assert program_cache.place_of(_larger, value) is None


def test_what_makes_another_program_makes_another_name(cache):
    shapes = [np.zeros(2), np.zeros(3), np.zeros(2, np.float32), np.zeros((2, 1))]
    structures = [jax.tree.structure(tree) for tree in (FIRST, (0, 0), [0, 0], {"a": 0}, {"b": 0}, None)]
    others = [1, 1.0, True, "1", None, ("a", "b"), ("ab",), Bounds, *elementary.By]
    places = [program_cache.place_of(_larger, value) for value in (*shapes, *structures, *others)]
    places += [program_cache.place_of(elementary.computed, shapes[0])]
    assert None not in places
    assert len(set(places)) == len(places)


def test_once_enough_was_done_it_is_compiled_and_answers_the_same(monkeypatch):
    monkeypatch.setattr(programs, "PATIENCE", 3)
    expected = answer()
    (version,) = _larger._versions.values()
    runs = 1
    with scope(by_programs=True):
        while version.code is not None and runs < 10:
            bounds, decides = _larger(FIRST, SECOND)
            assert (float(bounds.upper), int(decides)) == expected
            runs += 1
    assert 1 < runs < 10
    # From now on that is what is found.
    assert answer() == expected
    assert [version.code for version in _larger._versions.values()] == [None]


def test_inside_a_trace_it_is_what_jax_makes_of_it():
    with scope():
        batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), FIRST, SECOND)
        bounds, decides = jax.jit(jax.vmap(_larger, in_axes=(0, None)))(batch, SECOND)
    np.testing.assert_array_equal(bounds.upper, [4.0, 4.0])
    np.testing.assert_array_equal(decides, [1, 0])
    assert not _larger._versions


def test_a_code_generator_that_fails_is_refused_each_time(monkeypatch):
    by, other = (By.XLA, By.NUMPY) if programs.PATIENCE == 0 else (By.NUMPY, By.XLA)
    monkeypatch.setattr(elementary, "_sound", {(jax.default_backend(), other): True})
    monkeypatch.setattr(elementary, "failures", lambda *_: ["exp(1.0) is off"])
    for _ in range(2):
        with (
            pytest.raises(elementary.UnsoundBackendError, match=rf"{by.value}\).*exp\(1.0\) is off"),
            scope(by_programs=True),
        ):
            _larger(FIRST, SECOND)


def of_another_name(function, scale):
    """A user's function that bears the name of the library's, as ``functools.wraps`` has it."""

    @functools.wraps(function)
    def scaled(x):
        return function(x / scale)

    return scaled


@pytest.mark.parametrize(
    "function",
    [of_another_name(ndtr, 2.0), jax.grad(ndtr), jax.jit(of_another_name(ndtr, 2.0)), functools.partial(ndtr)],
    ids=["wraps", "grad", "jit of wraps", "partial"],
)
def test_what_only_bears_a_name_of_the_library_is_not_kept(cache, function):
    assert program_cache.place_of(elementary.computed, ndtr) is not None
    assert program_cache.place_of(elementary.computed, function) is None
    assert program_cache.place_of(function, np.zeros(2)) is None


def test_a_function_of_no_module_is_not_kept(cache):
    made: dict = {"__name__": None}
    exec("def tail(x):\n    return x", made)
    assert program_cache.place_of(elementary.computed, made["tail"]) is None


@pytest.mark.parametrize("flags", ["--xla_cpu_enable_fast_math=true", "--xla_dump_to=/nowhere", "flags.txt"])
def test_nothing_is_kept_under_flags_that_came_later_or_relax_arithmetic(cache, monkeypatch, flags):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert program_cache.place_of(elementary.computed, np.zeros(2)) is None
    monkeypatch.setattr(program_cache, "_flags", flags)
    assert (program_cache.place_of(elementary.computed, np.zeros(2)) is not None) == ("dump" in flags)
