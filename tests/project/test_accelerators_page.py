"""The table of docs/accelerators.md, made of what functions are lowered to; and what a TPU's compiler says of that."""

import collections
import importlib.util
import os
import pathlib
import re

import jax
import jax.experimental.topologies
import numpy as np
import pytest
from helpers.platform_calls import NUMBER, Call, groups, operations

import jaxacct as ja
from jaxacct.numerics.precision import as_float64, within_scope

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "accelerators.md"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

PASSING = {
    *("copy", "convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "slice", "concatenate", "transpose"),
}
"""What is done with results that have left a program."""

GROUPS = groups()


def arithmetics_of(call):
    """Returns what a call is made of on each platform."""
    jaxpr = jax.make_jaxpr(call.function)(*call.arguments).jaxpr
    found = [set(operations(jaxpr, platform, collections.Counter())) - PASSING for platform in PLATFORMS]
    *wide, tpu = ("float32" if kinds == {"float32"} else "float64 of its own" for kinds in found)
    assert not any("float32" in kinds for kinds in found[:-1])
    return *("float64" if kinds else "" for kinds in wide), tpu


def row(group):
    of_calls = {arithmetics_of(call) for call in group.calls.values()}
    assert len(of_calls) == 1, (group.title, of_calls)
    cpu, cuda, rocm, tpu = of_calls.pop()
    assert cuda == rocm
    names = ", ".join(f"`{name}`" for name in group.calls)
    return f"| {group.title}: {names} | {cpu} | {cuda} | {tpu} | {group.guarantee} |"


@pytest.mark.first_tier(
    "`ja.convert` lower bound: budgets",
    "`ja.iteration` lower bound",
    "`ja.filters`: `epsilon` upper bound",
    "`ja.odometers`: `epsilon` upper bound",
)
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.title} {group.guarantee}")
def test_the_page_says_what_each_function_is_lowered_to(group):
    assert row(group) in PAGE.read_text().splitlines()


def test_what_is_float64_on_a_tpu_is_seen():
    uncertified = Call(within_scope(lambda x: 1 - as_float64(x)), (NUMBER,))
    assert arithmetics_of(uncertified)[-1] == "float64 of its own"


def test_every_public_function_has_a_row():
    rows = collections.defaultdict(set)
    for group in GROUPS:
        rows[group.title.split(":")[0].strip("`")] |= set(group.calls)
    plain = {"epsilon_mironov", "epsilon_improved", "log_delta_mironov", "log_delta_improved"}
    """Formulas in the arithmetic of their arguments, which say that they count no rounding."""
    on_the_host = {"most_runs", "pair", "bounded_range_to_delta", "bounded_range_to_epsilon", "user_level"}
    on_the_host |= {"most_trials", "noise_multiplier_for_search", "most_certified"}
    """Of concrete arguments only."""
    for room in (ja.rdp, ja.convert, ja.gdp, ja.tradeoff, ja.iteration, ja.calibrate):
        name = room.__name__.replace("jaxacct", "ja")
        public = {each for each in room.__all__ if callable(getattr(room, each)) and each[0].islower()}
        same = {"gaussian_delta", "gaussian_epsilon", "gaussian_mu"} if room is ja.gdp else set()
        assert rows[name] == public - plain - on_the_host - same
    for room in (ja.filters, ja.odometers):
        classes = {each for each in room.__all__ if (each[0].isupper() and each[1].islower()) or each.startswith("GDP")}
        classes |= {"ZCDPFilter"} & set(room.__all__)
        assert rows[room.__name__.replace("jaxacct", "ja")] == classes - {"MenuFilter", "MenuOdometer"}


LEAVING = {"convert", "return", "broadcast_in_dim", "reshape", "slice", "constant"}
"""How a float32 number becomes what a TPU has for float64: nothing is computed."""

LOWERED = {
    "ja.rdp": "composed_curve",
    "ja.convert": "dp_to_gdp",
    "ja.tradeoff": "from_delta",
    "ja.iteration": "theta",
    "ja.filters": "GDPFilter",
    "ja.odometers": "VilleOdometer",
    "ja.train": "privatize",
}
"""A function of each room that is lowered and not only traced, and compiled; all of them take a minute."""


def lowered_calls(without=""):
    for group in GROUPS:
        for name, call in group.calls.items():
            room = group.title.split(":")[0].strip("`")
            if LOWERED.get(room) == name and room != without:
                yield pytest.param(call, id=f"{group.title}: {name}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", [*lowered_calls(without="ja.train")])
def test_an_export_for_a_tpu_does_no_arithmetic_in_float64(call):
    text = jax.export.export(jax.jit(call.function), platforms=("tpu",))(*call.arguments).mlir_module()
    done = {name for line in text.splitlines() if "f64>" in line for name in re.findall(r"stablehlo\.(\w+)", line)}
    assert done <= LEAVING
    assert "complex<f64>" not in text
    assert "custom_call" not in text


@pytest.mark.tpu_compiler
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.skipif("xla_cpu" in os.environ.get("XLA_FLAGS", ""), reason="libtpu ends a process with flags of CPUs")
@pytest.mark.parametrize("call", [*lowered_calls()])
def test_a_tpus_compiler_takes_it(call):
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no machine is asked what it is
    topology = jax.experimental.topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    mesh = jax.sharding.Mesh(np.array(topology.devices[:1]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    leaves, structure = jax.tree.flatten(call.arguments)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding) for leaf in leaves]
    program = jax.jit(lambda *leaves: call.function(*jax.tree.unflatten(structure, leaves)))
    # Of what it makes of float64 its own text says nothing: that is for the exports above.
    memory = program.lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2**24
