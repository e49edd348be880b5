"""The check of a backend's arithmetic: this one passes, and each kind of wrong result is refused and named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.numerics import elementary
from jaxacct.numerics.arithmetic import UnsoundBackendError
from jaxacct.numerics.elementary import ASSUMED, OPERATIONS, failures


@pytest.fixture
def unchecked(monkeypatch):
    """No platform has passed yet."""
    monkeypatch.setattr(elementary, "_sound", {})


@pytest.fixture(params=elementary.By, ids=lambda by: by.name)
def computed(request):
    return elementary.compute(request.param)[request.param]


def test_this_backend_is_as_assumed(computed):
    assert failures(*computed) == []


@pytest.mark.parametrize("name", ASSUMED)
def test_a_function_with_one_wrong_value_is_named(computed, name):
    values, arithmetic = computed
    off = values[name].copy()
    off[-1] *= 1 + 1e-14  # 90 units
    assert [line.split("(")[0] for line in failures(values | {name: off}, arithmetic)] == [name]
    assert failures(values | {name: np.full_like(off, np.nan)}, arithmetic)


def test_arithmetic_that_does_not_round_to_nearest_is_named(computed):
    values, arithmetic = computed
    assert len(failures(values, np.nextafter(arithmetic, np.inf))) == len(OPERATIONS)
    assert len(failures(values, arithmetic * (1 + 2.0**-52))) == len(OPERATIONS)


def test_the_library_refuses_a_backend_that_fails(unchecked, monkeypatch):
    wrong = ASSUMED["exp"]._replace(function=lambda x: jnp.exp(x) * (1 + 1e-14))
    monkeypatch.setitem(elementary.ASSUMED, "exp", wrong)
    with pytest.raises(UnsoundBackendError, match=r"exp\(.*units of roundoff"):
        ja.delta(ja.Gaussian(1.0), 1, 1.0)
    assert not elementary._sound


def test_the_check_works_inside_traces_and_contexts(unchecked):
    def used(x):
        elementary._sound.clear()
        elementary.check()
        return x + 1

    assert jax.jit(used)(1.0) == 2
    assert jax.vmap(used)(jnp.ones(2)).tolist() == [2, 2]
    assert jax.lax.scan(lambda c, x: (used(c), x), 0.0, jnp.ones(2))[0] == 2
    elementary._sound.clear()
    with (
        jax.transfer_guard("disallow"),
        jax.debug_nans(True),
        jax.debug_infs(True),
        jax.numpy_dtype_promotion("strict"),
        jax.disable_jit(True),
    ):
        elementary.check()
    assert elementary._sound
