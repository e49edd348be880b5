"""Which arithmetic a program is made of is decided for the platform that it is lowered for, wherever that is done."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.arithmetic import PAIR, UnsoundBackendError, arithmetic, roundoff
from jaxacct.batching import one_by_one
from jaxacct.float_pairs import checked
from jaxacct.platforms import by_platform
from jaxacct.precision import as_float64, in_float64

FLOAT64_FUNCTION = re.compile(r"stablehlo\.(exponential|log|fft|divide|sqrt|reduce)\b.*f64")


def growth(x):
    """A function with a certificate: an exponential and how far it may be off."""
    value = jnp.exp(as_float64(x))
    return value / 3, value * roundoff()


def directly(x):
    return by_platform(growth, x)


def one_after_the_other(x):
    return one_by_one(growth)(x)


def lowered(function, platform, shape=()):
    exported = jax.export.export(jax.jit(function), platforms=(platform,))
    return exported(jax.ShapeDtypeStruct(shape, jnp.float32)).mlir_module()


@pytest.mark.parametrize("function", [directly, one_after_the_other])
def test_a_tpu_gets_pairs_and_other_platforms_float64(function):
    function = in_float64(function)
    for platform in ("cpu", "cuda"):
        assert FLOAT64_FUNCTION.search(lowered(function, platform))
    text = lowered(function, "tpu")
    assert not FLOAT64_FUNCTION.search(text)
    assert "custom_call" not in text


def test_a_batch_for_a_device_that_is_not_here_is_done_at_once():
    batched = jax.vmap(in_float64(one_after_the_other))
    assert "stablehlo.while" in lowered(batched, "cpu", (5,)), "entry by entry"
    assert "stablehlo.while" not in lowered(batched, "cuda", (5,))
    assert "tensor<5xf32>" in lowered(batched, "tpu", (5,))


def test_nothing_is_traced_for_a_platform_that_nobody_asked_for():
    seen = []

    def watched(x):
        seen.append(arithmetic())
        return growth(x)

    jax.jit(in_float64(lambda x: by_platform(watched, x)))(0.5)
    assert PAIR not in seen
    lowered(in_float64(lambda x: by_platform(watched, x)), "tpu")
    assert PAIR in seen


def test_pairs_asked_for_by_name_bracket_the_truth():
    mechanism = ja.Gaussian(2.0)
    pairs, native = ja.delta(mechanism, 1, 1.0, arithmetic="pair"), ja.delta(mechanism, 1, 1.0, arithmetic="float64")
    # They count more rounding, of the same truth.
    assert pairs.lower <= native.lower
    assert pairs.upper >= native.upper
    assert pairs.gap < 1e-9
    # So many digits that the bracket is narrower than float32 could say.
    assert np.float32(pairs.lower) == np.float32(pairs.upper)


def test_numbers_on_a_tpu_are_worked_off_in_pairs(monkeypatch):
    monkeypatch.setattr("jaxacct.platforms.platform", lambda: "tpu")
    assert ja.delta(ja.Gaussian(2.0), 1, 1.0) == ja.delta(ja.Gaussian(2.0), 1, 1.0, arithmetic="pair")


def test_they_are_refused_where_the_backend_rounds_otherwise(monkeypatch):
    monkeypatch.setattr(checked, "failures", lambda values: ["x + y is cut off"])
    monkeypatch.setattr(checked, "_sound", set())
    with pytest.raises(UnsoundBackendError, match="cut off"):
        ja.delta(ja.Gaussian(2.0), 1, 1.0, arithmetic="pair")


@pytest.mark.parametrize("ask", [ja.epsilon, ja.prv.epsilon, ja.saddlepoint.epsilon])
def test_an_unknown_arithmetic_is_refused(ask):
    with pytest.raises(ValueError, match="arithmetic"):
        ask(ja.Gaussian(2.0), 1, 1e-5, arithmetic="double")


def test_a_tolerance_is_nothing_for_pairs():
    with pytest.raises(ValueError, match="tolerance"):
        ja.epsilon(ja.Gaussian(2.0), 1, 1e-5, tolerance=1e-3, arithmetic="pair")
