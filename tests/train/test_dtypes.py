"""Examples of any dtype: the clipped sums are those of gradients formed one by one in float64, by every route."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.train.clipping import Flat, PerLayer, clip_and_sum, routes
from jaxacct.train.clipping.contributions import Looked, Outer, Stored, Summed

ROWS, WIDTH = 5, 24
RNG = np.random.default_rng(7)
PARAMS = {
    "mix": RNG.normal(size=(WIDTH, WIDTH)) / 5, "once": RNG.normal(size=(2 * WIDTH, 3)) / 5,
    "scale": RNG.normal(size=WIDTH), "table": RNG.normal(size=(9, WIDTH)),
}  # fmt: skip
KINDS = ("complex64", "bfloat16", "int8")
OTHERS = ("float16", "float32", "uint8", "int32", "bool", "complex128", "float64", "int64")
WIDE = ("complex128", "float64", "int64")


def loss(params, example):
    """Products of operands of two dtypes are single operations: JAX promotes neither."""
    rows, indices = example
    flat = jnp.dot(rows.reshape(-1), params["once"])
    found = jnp.dot(rows, params["mix"]) * params["scale"][None] + params["table"][indices]
    return sum(jnp.sum(part.real**2 + (part.imag - 0.5) ** 2) for part in (found, flat)).astype(params["mix"].dtype)


def examples_of(dtype):
    rows = RNG.normal(size=(ROWS, 2, WIDTH))
    if dtype.startswith("complex"):
        rows = rows + 1j * RNG.normal(size=rows.shape)
    elif "int" in dtype:
        rows = np.abs(3 * rows)
    elif dtype == "bool":
        rows = rows > 0
    return jnp.asarray(rows).astype(dtype), jnp.asarray(RNG.integers(0, 9, (ROWS, 2)), jnp.int8)


def rules():
    return Flat(2.0), PerLayer.of({"mix": 1.0, "once": 0.5, "scale": 1.0, "table": 0.1})


def clipped_one_by_one(examples, rule):
    """The sum by the definition, in NumPy, of gradients in float64."""
    rows, indices = examples
    wide = np.asarray(rows).astype(complex if jnp.iscomplexobj(rows) else float)
    with jax.enable_x64(True):
        params = {name: jnp.asarray(np.float32(leaf), float) for name, leaf in PARAMS.items()}
        found = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, (jnp.asarray(wide), indices))
        gradients = {name: np.asarray(leaf) for name, leaf in found.items()}
    norms = {name: np.sqrt((leaf.reshape(ROWS, -1) ** 2).sum(1)) for name, leaf in gradients.items()}
    if isinstance(rule, Flat):
        whole = np.sqrt(sum(norm**2 for norm in norms.values()))
        factors = dict.fromkeys(norms, np.minimum(1, rule.clip_norm / whole))
    else:
        by = {group[0]: norm for group, norm in zip(rule.groups, rule.clip_norms, strict=True)}
        factors = {name: np.minimum(1, by[name] / norm) for name, norm in norms.items()}
    return {name: np.tensordot(factors[name], leaf, 1) for name, leaf in gradients.items()}


@functools.cache
def compiled():
    """All routes at once: one program for a dtype."""
    ways = [
        (ghost, rule, size) for ghost in (True, False) for rule in (0, 1) for size in (None, 2) if rule == bool(size)
    ]

    def run(params, examples):
        sums = [
            clip_and_sum(
                loss, params, examples, np.ones(ROWS, bool), rule=rules()[rule], ghost=ghost, microbatch_size=size
            )[0]
            for ghost, rule, size in ways
        ]
        return list(zip([rule for _, rule, _ in ways], sums, strict=True))

    return jax.jit(run)


@pytest.mark.parametrize("dtype", [*KINDS, *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in OTHERS)])
def test_sums_are_those_of_gradients_one_by_one_in_float64(dtype):
    params = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in PARAMS.items()}
    with jax.enable_x64(dtype in WIDE):
        examples = examples_of(dtype)
        found = compiled()(params, examples)
        one = jax.tree.map(lambda part: part[0], examples)
        forms = {route.parameter: route.form for route in routes(loss, params, one)}
    held = {"mix": Stored, "once": Stored} if dtype.startswith("complex") else {"mix": Summed, "once": Outer}
    assert forms == held | {"scale": Stored, "table": Looked}
    for rule, total in found:
        for name, leaf in clipped_one_by_one(examples, rules()[rule]).items():
            np.testing.assert_allclose(total[name], leaf, rtol=2e-4, atol=2e-5, err_msg=f"{dtype} {name} {rule}")
            assert np.abs(leaf).max() > 1e-3


def test_complex_layers_get_their_whole_gradients():
    """A real kernel between complex numbers, where the imaginary part alone tells the way."""
    x = jnp.array([[3j, 3j, 3j], [3j, 3j, 3j]])
    total, _ = clip_and_sum(
        lambda w, x: jnp.dot(x, w).imag, jnp.zeros(3), x, np.ones(2, bool), rule=Flat(100.0), ghost=True
    )
    np.testing.assert_allclose(total, [6, 6, 6], rtol=1e-4)
