"""Tests that a program's arithmetic is decided for the platform that it is lowered for, wherever that is done."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.platform_calls import operations
from helpers.single import in_single
from helpers.thorough import THOROUGH

import jaxacct as ja
from jaxacct.mechanisms.normal import turn
from jaxacct.numerics import elementary_float32
from jaxacct.numerics.arithmetic import FLOAT32, UnsoundBackendError, arithmetic, roundoff
from jaxacct.numerics.batched_loops import one_by_one
from jaxacct.numerics.float32 import as_float32
from jaxacct.numerics.precision import as_float64, kernel
from jaxacct.numerics.programs import by_float32, by_platform

FLOAT64_FUNCTION = re.compile(r"stablehlo\.(exponential|log|fft|divide|sqrt|reduce)\b.*f64")


def growth(x):
    """A function with a certificate: an exponential and how far it may be off."""
    value = jnp.exp(as_float64(x))
    return value / 3, value * roundoff()


def directly(x):
    return by_platform(growth, x)


def one_after_the_other(x):
    return one_by_one(growth)(x)


def module_of(function, platform, shape=(), count=1):
    exported = jax.export.export(jax.jit(function), platforms=(platform,))
    return exported(*[jax.ShapeDtypeStruct(shape, jnp.float32)] * count).mlir_module()


@pytest.mark.parametrize("function", [directly, one_after_the_other])
def test_a_tpu_gets_float32_and_other_platforms_float64(function):
    function = kernel(function)
    for platform in ("cpu", "cuda"):
        assert FLOAT64_FUNCTION.search(module_of(function, platform))
    text = module_of(function, "tpu")
    assert not FLOAT64_FUNCTION.search(text)
    assert "custom_call" not in text
    # Each of the two results is converted, exactly.
    assert set(re.findall(r"stablehlo\.(\w+) .*f64", text)) <= {"convert", "return"}


def test_a_batch_for_a_device_that_is_not_here_is_done_at_once():
    batched = jax.vmap(kernel(one_after_the_other))
    assert "stablehlo.while" in module_of(batched, "cpu", (5,)), "entry by entry"
    assert "stablehlo.while" not in module_of(batched, "cuda", (5,))
    assert "tensor<5xf32>" in module_of(batched, "tpu", (5,))


def test_nothing_is_traced_for_a_platform_that_nobody_asked_for():
    seen = []

    def watched(x):
        seen.append(arithmetic())
        return growth(x)

    jax.jit(kernel(lambda x: by_platform(watched, x)))(0.5)
    assert FLOAT32 not in seen
    module_of(kernel(lambda x: by_platform(watched, x)), "tpu")
    assert FLOAT32 in seen


def test_float32_asked_for_by_name_brackets_the_truth():
    mechanism = ja.Gaussian(2.0)
    single, native = ja.delta(mechanism, 1, 1.0, arithmetic="float32"), ja.delta(mechanism, 1, 1.0)
    # It counts more rounding, of the same truth.
    assert single.lower <= native.lower
    assert single.upper >= native.upper
    assert single.gap < 1e-4


def test_programs_are_refused_where_the_backend_rounds_otherwise(monkeypatch):
    monkeypatch.setattr("jaxacct.numerics.arithmetic.platform", lambda: "tpu")
    monkeypatch.setattr(elementary_float32, "compute", lambda by: ())
    monkeypatch.setattr(elementary_float32, "failures", lambda: ["x + y is cut off"])
    monkeypatch.setattr(elementary_float32, "_sound", set())
    with jax.enable_x64(True), pytest.raises(UnsoundBackendError, match="cut off"):
        as_float32(jnp.exp)(jnp.float64(1.0))


@pytest.mark.parametrize("ask", [ja.epsilon, ja.prv.epsilon, ja.saddlepoint.epsilon])
def test_an_unknown_arithmetic_is_refused(ask):
    with pytest.raises(ValueError, match="arithmetic"):
        ask(ja.Gaussian(2.0), 1, 1e-5, arithmetic="double")


def test_a_tolerance_is_nothing_for_float32():
    with pytest.raises(ValueError, match="tolerance"):
        ja.epsilon(ja.Gaussian(2.0), 1, 1e-5, tolerance=1e-3, arithmetic="float32")


@kernel
def twice_decided(x):
    return kernel(growth)(x)


def test_what_is_called_within_is_part_of_one_program():
    text = str(jax.make_jaxpr(twice_decided)(0.5))
    assert text.count("later[") == 1


def test_derivatives_are_those_of_the_formula_in_float32():
    def formula(x):
        return jnp.sum(jnp.expm1(as_float64(x)) * jnp.arange(3.0)) / 2

    def narrow(x):
        with jax.enable_x64(True):
            return by_float32(formula, x, result=jax.ShapeDtypeStruct((), np.float64))

    x = jnp.float32(0.3)
    truth = 3 * np.exp(np.float64(x)) / 2
    with jax.enable_x64(True):
        value, slope = jax.jit(lambda x: jax.jvp(narrow, (x,), (jnp.ones_like(x),)))(x)
        assert value == pytest.approx(3 * np.expm1(np.float64(x)) / 2, rel=1e-6)
        assert slope == pytest.approx(truth, rel=1e-6)
        assert jax.jit(jax.vmap(jax.grad(narrow)))(x[None]) == pytest.approx(truth, rel=1e-6)


def test_slopes_of_an_answer_are_made_in_float32_as_it_is():
    slope = jax.grad(lambda noise: ja.saddlepoint.epsilon(ja.Gaussian(noise), 1, 1e-5).estimate)
    traced = jax.make_jaxpr(slope)(jnp.float32(1.0)).jaxpr
    gpu, tpu = (operations(traced, platform, collections.Counter()) for platform in ("cuda", "tpu"))
    assert tpu["float32"]
    assert not gpu["float32"]
    assert not {"exp", "log", "div", "sqrt", "expm1", "log1p"} & set(tpu)
    if not THOROUGH:  # lowering it takes four times as long
        return
    done = set(re.findall(r"stablehlo\.(\w+) .*f64", module_of(slope, "tpu")))
    assert not done & {"exponential", "log", "divide", "sqrt", "exponential_minus_one", "log_plus_one"}


def test_an_own_form_is_not_taken_for_its_derivative():
    value, slope = in_single(jax.value_and_grad(lambda x: turn(x)[1]))(0.3)
    assert float(value) == pytest.approx(np.sin(0.3) - 0.3, rel=1e-4)
    assert float(slope) == pytest.approx(np.cos(0.3) - 1, rel=1e-5)


def test_a_filter_in_a_step_has_no_float64_but_constants():
    def spend_each(ledger, noise):
        return jax.lax.scan(lambda ledger, s: ledger.spend(ja.Gaussian(s))[::-1], ledger, noise)

    arguments = ja.filters.GDPFilter(3.0, 1e-5), jax.ShapeDtypeStruct((4,), jnp.float32)
    text = jax.export.export(jax.jit(spend_each), platforms=("tpu",))(*arguments).mlir_module()
    done = {name for line in text.splitlines() if "f64>" in line for name in re.findall(r"stablehlo\.(\w+)", line)}
    assert done <= {"constant", "convert"}


def test_devices_share_what_is_mapped():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    each = jax.shard_map(jax.vmap(ja.convert.pure_to_zcdp), mesh=mesh, in_specs=spec, out_specs=spec)
    exported = jax.export.export(jax.jit(each), platforms=("tpu",))(jax.ShapeDtypeStruct((2,), jnp.float32))
    assert not FLOAT64_FUNCTION.search(exported.mlir_module())


def test_numbers_on_a_tpus_host_are_left_to_its_cpu(monkeypatch):
    expected = ja.convert.pure_to_zcdp(1.0)

    def default_device():
        return jax.config.jax_default_device

    monkeypatch.setattr("jaxacct.numerics.precision.platform", lambda: "cpu" if default_device() else "tpu")
    kinds = kernel(lambda value: (default_device().platform, type(value)))(jax.device_put(1.0, jax.devices()[0]))
    assert kinds == ("cpu", np.ndarray)  # an array that is bound to a device would be computed there
    assert ja.convert.pure_to_zcdp(1.0) == expected


ORDERS = (4.0, 16.0)

CASES = {
    "pure_to_rdp": (1, lambda e, d, s: ja.convert.pure_to_rdp(e, ORDERS[:1])),
    "theta": (1, lambda e, d, s: ja.iteration.theta(e, 1 / s)),
    "rdp_to_epsilon": (1, lambda e, d, s: ja.convert.rdp_to_epsilon(jnp.stack([e, 2 * e]), ORDERS, d, "closed")),
    "least_rdp": (-1, lambda e, d, s: ja.convert.least_rdp(e, d, ORDERS, "g")),
    "mixture reading": (1, lambda e, d, s: ja.odometers.MixtureOdometer(d).spend(ja.Gaussian(s), 3)[1].epsilon()),
    "rogers spent": (1, lambda e, d, s: ja.odometers.RogersOdometer(d).spend(ja.PureDP(1 / s), 3)[1].spent),
    "budget": (-1, lambda e, d, s: ja.filters.RenyiFilter(e, d, orders=ORDERS).state.budget.value()),
    "runs left": (-1, lambda e, d, s: ja.filters.ApproximateDPFilter(e, d).remaining(ja.PureDP(1 / s))),
    "granted": (-1, lambda e, d, s: ja.filters.ZCDPFilter(e, d, 0.0, "mironov").spend(ja.Gaussian(s), 4)[0] * 1),
}
"""The side on which a result may be off, and how it is made of an epsilon, a delta and a noise multiplier."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_float32_is_on_the_safe_side_of_float64(name):
    side, function = CASES[name]
    random = np.random.default_rng(1)
    given = [
        np.exp(random.uniform(*np.log(ends), 64)).astype(np.float32) for ends in ((0.01, 9), (1e-12, 0.1), (1, 50))
    ]
    single = in_single(lambda *rows: jax.lax.map(lambda row: function(*row), rows))(*given)
    with jax.enable_x64(True):
        arguments = [jnp.asarray(value, jnp.float64) for value in given]
        native = np.asarray(jax.jit(jax.vmap(kernel(function)))(*arguments))
    single = np.asarray(single, np.float64)
    assert np.all(side * (single - native) >= 0)
    loose = 0.02 if name in ("runs left", "granted") else 2e-3
    np.testing.assert_allclose(single, native, rtol=loose, atol=1.0 if name in ("runs left", "granted") else 1e-30)


def test_results_that_are_constants_have_the_type_of_others():
    """As those of ``ja.prv``, which says nothing in float32."""

    def one_and_two(x):
        return jnp.where(arithmetic() == FLOAT32, 0.0, as_float64(x)), jnp.zeros(2), jnp.ones((), bool)

    assert "tensor<2xf64>" in module_of(kernel(one_and_two), "tpu")
    text = module_of(lambda s, d: ja.prv.epsilon(ja.Gaussian(s), 4, d, points=256).upper, "tpu", count=2)
    assert "stablehlo.fft" not in text
