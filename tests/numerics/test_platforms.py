"""Tests that a program's arithmetic is decided for the platform that it is lowered for, wherever that is done."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.platform_calls import operations
from helpers.thorough import THOROUGH, cases

import jaxacct as ja
from jaxacct.mechanisms.pair import exp_remainder
from jaxacct.numerics.arithmetic import PAIR, UnsoundBackendError, arithmetic, in_pairs, roundoff
from jaxacct.numerics.float_pairs import functions
from jaxacct.numerics.float_pairs.interpret import as_pairs
from jaxacct.numerics.precision import as_float64, in_float64
from jaxacct.numerics.programs import by_pairs, by_platform, lower_bound, outward, raise_bound
from jaxacct.numerics.vmapped_loops import one_by_one

FLOAT64_FUNCTION = re.compile(r"stablehlo\.(exponential|log|fft|divide|sqrt|reduce)\b.*f64")


def growth(x):
    """A function with a certificate: an exponential and how far it may be off."""
    value = jnp.exp(as_float64(x))
    return value / 3, value * roundoff()


def directly(x):
    return by_platform(growth, x)


def one_after_the_other(x):
    return one_by_one(growth)(x)


def module_of(function, platform, shape=()):
    exported = jax.export.export(jax.jit(function), platforms=(platform,))
    return exported(jax.ShapeDtypeStruct(shape, jnp.float32)).mlir_module()


@pytest.mark.parametrize("function", [directly, one_after_the_other])
def test_a_tpu_gets_pairs_and_other_platforms_float64(function):
    function = in_float64(function)
    for platform in ("cpu", "cuda"):
        assert FLOAT64_FUNCTION.search(module_of(function, platform))
    text = module_of(function, "tpu")
    assert not FLOAT64_FUNCTION.search(text)
    assert "custom_call" not in text
    # Each of the two results is put together by one exact sum.
    done = re.findall(r"stablehlo\.(\w+) .*f64", text)
    assert set(done) <= {"convert", "add", "select", "constant", "broadcast_in_dim", "return"}
    assert done.count("add") <= 2


def test_a_batch_for_a_device_that_is_not_here_is_done_at_once():
    batched = jax.vmap(in_float64(one_after_the_other))
    assert "stablehlo.while" in module_of(batched, "cpu", (5,)), "entry by entry"
    assert "stablehlo.while" not in module_of(batched, "cuda", (5,))
    assert "tensor<5xf32>" in module_of(batched, "tpu", (5,))


def test_nothing_is_traced_for_a_platform_that_nobody_asked_for():
    seen = []

    def watched(x):
        seen.append(arithmetic())
        return growth(x)

    jax.jit(in_float64(lambda x: by_platform(watched, x)))(0.5)
    assert PAIR not in seen
    module_of(in_float64(lambda x: by_platform(watched, x)), "tpu")
    assert PAIR in seen


@pytest.mark.exhaustive
def test_pairs_asked_for_by_name_bracket_the_truth():
    mechanism = ja.Gaussian(2.0)
    pairs, native = ja.delta(mechanism, 1, 1.0, arithmetic="pair"), ja.delta(mechanism, 1, 1.0, arithmetic="float64")
    # They count more rounding, of the same truth.
    assert pairs.lower <= native.lower
    assert pairs.upper >= native.upper
    assert pairs.gap < 1e-9
    # So many digits that the bracket is narrower than float32 could say.
    assert np.float32(pairs.lower) == np.float32(pairs.upper)


@pytest.mark.exhaustive
def test_numbers_on_a_tpu_are_worked_off_in_pairs(monkeypatch):
    monkeypatch.setattr("jaxacct.numerics.programs.platform", lambda: "tpu")
    assert ja.delta(ja.Gaussian(2.0), 1, 1.0) == ja.delta(ja.Gaussian(2.0), 1, 1.0, arithmetic="pair")


def test_they_are_refused_where_the_backend_rounds_otherwise(monkeypatch):
    monkeypatch.setattr(functions, "failures", lambda values: ["x + y is cut off"])
    monkeypatch.setattr(functions, "_sound", set())
    with pytest.raises(UnsoundBackendError, match="cut off"):
        ja.delta(ja.Gaussian(2.0), 1, 1.0, arithmetic="pair")


@pytest.mark.parametrize("ask", [ja.epsilon, ja.prv.epsilon, ja.saddlepoint.epsilon])
def test_an_unknown_arithmetic_is_refused(ask):
    with pytest.raises(ValueError, match="arithmetic"):
        ask(ja.Gaussian(2.0), 1, 1e-5, arithmetic="double")


def test_a_tolerance_is_nothing_for_pairs():
    with pytest.raises(ValueError, match="tolerance"):
        ja.epsilon(ja.Gaussian(2.0), 1, 1e-5, tolerance=1e-3, arithmetic="pair")


def read_by_a_tpu(value):
    """What float64 is where it is two float32 numbers: of 48 bits, and without subnormal or larger ones."""
    with np.errstate(over="ignore", invalid="ignore"):
        high = np.float32(value)
        low = np.where(np.isfinite(high), np.float32(value - high.astype(np.float64)), np.float32(0.0))
    kept = [np.where(np.abs(part) < 2.0**-126, 0.0, part.astype(np.float64)) for part in (high, low)]
    return sum(kept)


def test_bounds_leave_for_such_a_float64_on_their_side():
    random = np.random.default_rng(0)
    # Half of them where the second of two float32 numbers is at the end of the range.
    size = np.exp(np.concatenate([random.uniform(-700, 700, 2000), random.uniform(-102, -80, 2000) * np.log(2)]))
    value = size * random.choice([-1, 1], 4000)
    value = np.concatenate([value, [0.0, np.inf, -np.inf, 1.0, 1 + 2.0**-52, 2.0**-1022, 2.0**-126 / 3]])
    with jax.enable_x64(True), in_pairs():
        up, down = np.asarray(raise_bound(jnp.asarray(value))), np.asarray(lower_bound(jnp.asarray(value)))
    assert np.all(read_by_a_tpu(up) >= value)
    assert np.all(read_by_a_tpu(down) <= value)
    ordinary = (np.abs(value) > 2.0**-99) & (np.abs(value) < 2.0**119)
    # Beside that by what such a float64 lacks next to its least numbers.
    np.testing.assert_allclose(up[ordinary], value[ordinary], rtol=2.0**-41, atol=2.0**-124)
    np.testing.assert_allclose(down[ordinary], value[ordinary], rtol=2.0**-41, atol=2.0**-124)


def test_a_bracket_is_moved_outward_at_both_ends():
    with jax.enable_x64(True), in_pairs():
        moved = outward(ja.Bounds(*map(jnp.float64, (1.0, 1.5, 2.0)), jnp.asarray(True)))
    assert float(moved.lower) < 1.0
    assert float(moved.upper) > 2.0
    assert moved.converged


@in_float64
def twice_decided(x):
    return in_float64(growth)(x)


def test_what_is_called_within_is_part_of_one_program():
    text = str(jax.make_jaxpr(twice_decided)(0.5))
    assert text.count("later[") == 1


def test_derivatives_are_those_of_the_formula_in_pairs():
    def formula(x, n):
        return jnp.sum(jnp.expm1(as_float64(x)) * jnp.arange(3.0)) / n, n + 1

    def in_pairs_of(x):
        with jax.enable_x64(True):
            return by_pairs(formula, x, jnp.int32(2))[0]

    x = jnp.float32(0.3)
    truth = 3 * np.exp(np.float64(x)) / 2
    with jax.enable_x64(True):
        value, slope = jax.jit(lambda x: jax.jvp(in_pairs_of, (x,), (jnp.ones_like(x),)))(x)
        assert value == pytest.approx(3 * np.expm1(np.float64(x)) / 2, rel=1e-12)
        assert slope == pytest.approx(truth, rel=1e-12)
        assert jax.jit(jax.vmap(jax.grad(in_pairs_of)))(x[None]) == pytest.approx(truth, rel=1e-6)


def test_slopes_of_an_answer_are_made_in_pairs_as_it_is():
    slope = jax.grad(lambda noise: ja.saddlepoint.epsilon(ja.Gaussian(noise), 1, 1e-5).estimate)
    traced = jax.make_jaxpr(slope)(jnp.float32(1.0)).jaxpr
    gpu, tpu = (operations(traced, platform, collections.Counter()) for platform in ("cuda", "tpu"))
    assert tpu["pairs"]
    assert not gpu["pairs"]
    assert not {"exp", "log", "div", "sqrt", "expm1", "log1p"} & set(tpu)
    if not THOROUGH:  # lowering it takes four times as long
        return
    done = set(re.findall(r"stablehlo\.(\w+) .*f64", module_of(slope, "tpu")))
    assert not done & {"exponential", "log", "divide", "sqrt", "exponential_minus_one", "log_plus_one"}


def test_a_form_for_pairs_is_not_taken_for_its_derivative():
    x = jnp.float32(0.3)
    with jax.enable_x64(True):
        remainder = lambda x: exp_remainder(x, jnp.expm1(x))  # noqa: E731
        value, slope = by_pairs(jax.value_and_grad(lambda x: remainder(as_float64(x))), x)
    assert float(value) == pytest.approx(np.expm1(np.float64(x)) - np.float64(x), rel=1e-12)
    assert float(slope) == pytest.approx(np.expm1(np.float64(x)), rel=1e-6)


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
    kinds = in_float64(lambda value: (default_device().platform, type(value)))(jax.device_put(1.0, jax.devices()[0]))
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

DEAR = ("theta", "mixture reading")
"""Which take seconds to trace in pairs."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", cases([name for name in CASES if name not in DEAR], [*DEAR]))
def test_pairs_are_on_the_safe_side_of_float64(name):
    side, function = CASES[name]
    random = np.random.default_rng(1)
    given = [
        np.exp(random.uniform(*np.log(ends), 64)).astype(np.float32) for ends in ((0.01, 9), (1e-12, 0.1), (1, 50))
    ]
    with jax.enable_x64(True):
        arguments = [jnp.asarray(value) for value in given]
        pairs = np.asarray(as_pairs(jax.vmap(function), stepwise=True)(*arguments))
        native = np.asarray(jax.jit(jax.vmap(in_float64(function)))(*arguments))
    assert np.all(side * (pairs - native) >= 0)
    np.testing.assert_allclose(pairs, native, rtol=1e-6, atol=1e-300)
