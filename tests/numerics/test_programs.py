"""The library's own programs: one answer however often and wherever it is asked, and what the command keeps of them."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.bounds import Bounds
from jaxacct.cli import doctor
from jaxacct.numerics import elementary, programs
from jaxacct.numerics.arithmetic import UnsoundBackendError
from jaxacct.numerics.elementary import By
from jaxacct.numerics.precision import scope
from jaxacct.saddlepoint.solve import larger as _larger

FIRST, SECOND = (Bounds(*np.float64((low, low + 1, low + 2)), np.bool_(True)) for low in (1.0, 2.0))

pytestmark = pytest.mark.filterwarnings("error")


def test_a_call_is_one_program_that_is_compiled_once_for_all_values():
    counted = []

    def doubled(x):
        counted.append(x)
        return 2 * x

    program = programs.Program(doubled)
    with scope():
        assert [float(program(np.float64(x))) for x in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
    assert len(counted) == 1


@pytest.mark.parametrize("by", By)
@pytest.mark.parametrize("sound", [set(By), {By.XLA}])
def test_a_program_is_compiled_as_it_says_where_that_is_sound(by, sound, monkeypatch):
    monkeypatch.setattr(elementary, "check", lambda: frozenset(sound))
    program = programs.Program(lambda x: x + 1, by=by)
    with scope():
        program(np.float64(1.0))
    assert program._fast._cache_size() == (by is By.XLA_FAST and by in sound)
    assert program._fast._cache_size() + program._default._cache_size() == 1


@pytest.mark.exhaustive
def test_digits_do_not_depend_on_how_often_one_asks():
    mechanism = ja.PoissonSubsampledGaussian(0.9, 0.02)
    first = ja.saddlepoint.epsilon(mechanism, 500, 1e-6)
    again = [ja.saddlepoint.epsilon(mechanism, 500, 1e-6) for _ in range(150)]
    programs.forget()
    anew = ja.saddlepoint.epsilon(mechanism, 500, 1e-6)
    numbers = {(float(b.lower), float(b.estimate), float(b.upper)) for b in (first, anew, *again)}
    assert len(numbers) == 1


def test_inside_a_trace_it_is_part_of_what_is_traced():
    with scope():
        batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), FIRST, SECOND)
        larger = programs.Program(_larger)
        bounds, decides = jax.jit(jax.vmap(larger, in_axes=(0, None)))(batch, SECOND)
    np.testing.assert_array_equal(bounds.upper, [4.0, 4.0])
    np.testing.assert_array_equal(decides, [1, 0])


@pytest.mark.parametrize("by", By)
def test_a_code_generator_that_fails_is_refused_each_time(by, monkeypatch):
    monkeypatch.setattr(elementary, "_sound", {})
    monkeypatch.setattr(elementary, "ways", lambda: tuple(By))
    monkeypatch.setattr(elementary, "compute", lambda *ways: {each: (each,) for each in ways})
    monkeypatch.setattr(elementary, "failures", lambda each: ["exp(1.0) is off"] if each is by else [])
    program = programs.Program(lambda x: x + 1)
    for enter in 2 * [scope, lambda: jax.enable_x64(True)]:
        with pytest.raises(UnsoundBackendError, match=rf"{by.value}\).*exp\(1.0\) is off"), enter():
            program(np.float64(1.0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("asked", [lambda s: ja.filters.GDPFilter(1.0, 1e-5).spend(ja.Gaussian(s), 1)[0], ja.Gaussian])
def test_what_a_user_compiles_and_what_the_library_does_is_checked_once(asked, monkeypatch):
    def upper(s):
        found = asked(s)
        return ja.epsilon(found, 10, 1e-5).upper if isinstance(found, ja.Gaussian) else found

    checked = []
    monkeypatch.setattr(elementary, "_sound", {})
    monkeypatch.setattr(elementary, "compute", lambda *ways: (checked.extend(ways), dict.fromkeys(ways, ()))[1])
    monkeypatch.setattr(elementary, "failures", lambda *_: [])
    for compute in (lambda: jax.jit(lambda s: upper(s))(1.0), lambda: ja.epsilon(ja.Gaussian(1.5), 10, 1e-5)):
        checked.clear()
        elementary._sound.clear()
        programs.forget()
        compute()
        assert checked == list(elementary.ways())


SCRIPT = """
import jax
compiled = []
jax.monitoring.register_event_listener(
    lambda name, **_: compiled.append(name) if name == "/jax/compilation_cache/cache_misses" else None)
from jaxacct.cli import main
code = main(["epsilon", "--noise-multiplier", "2", "--sampling-rate", "1", "--steps", "3", "--delta", "1e-5"])
print(len(compiled))
raise SystemExit(code)
"""


@pytest.mark.exhaustive
def test_a_second_process_of_the_command_finds_its_programs_and_prints_the_same(tmp_path):
    environment = os.environ | {"JAXACCT_CACHE": str(tmp_path / "kept")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    environment.pop("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", None)
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines())
    *first, compiled_first = found[0]
    *second, compiled_second = found[1]
    assert first == second
    assert int(compiled_second) < int(compiled_first)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="folders of a user are private there")
@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_folder_that_others_may_write_to_is_refused_in_words(tmp_path, monkeypatch, mode):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setenv("JAXACCT_CACHE", str(shared))
    with pytest.warns(UserWarning, match=r"JAXACCT_CACHE = .*chmod 700"):
        assert doctor.folder() is None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("JAXACCT_CACHE", "")
    for name in ("XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(file))
    assert doctor.folder() is None


@pytest.mark.parametrize("word", ["off", "OFF", "0"])
def test_it_can_be_turned_off(word, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXACCT_CACHE", word)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor.folder() is None
    assert not list(tmp_path.iterdir())


def test_the_oldest_files_go_first(tmp_path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    for path, used in ((old, 1e9), (new, 2e9)):
        path.write_bytes(bytes(10_000))
        os.utime(path, (used, used))
    monkeypatch.setattr(doctor, "MOST_BYTES", 15_000)
    doctor._trim(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
