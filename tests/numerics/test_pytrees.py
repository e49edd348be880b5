"""Are classes with as many fields told apart, wherever JAX compares what it has compiled?"""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.registered import blank, registered
from helpers.thorough import draws

import jaxacct as ja
from jaxacct.composition import ForDelta, ForEpsilon
from jaxacct.menus import MenuFilter


def test_no_two_classes_of_the_package_have_one_structure():
    kinds = registered()
    assert {ForDelta, ForEpsilon, ja.Gaussian, ja.PureDP, ja.Bounds} <= set(kinds)
    assert len(kinds) > 50
    structures = [jax.tree.structure(blank(kind)) for kind in kinds]
    same = [
        (a.__name__, b.__name__)
        for i, a in enumerate(kinds)
        for j, b in enumerate(kinds)
        if i < j and structures[i] == structures[j]
    ]
    assert not same


@pytest.mark.exhaustive
def test_a_compiled_function_of_one_class_is_never_run_on_another():
    """By JAX's own decorator one class in seven is: of 50 given to one function, none with probability 5e-4."""
    kinds = [
        ja.register_dataclass(dataclasses.make_dataclass("Same", ["scale"], frozen=True)) for _ in range(draws(50, 100))
    ]
    traced = []
    scale = jax.jit(lambda tree: traced.append(type(tree)) or tree.scale)  # what is run untraced is another's
    for kind in kinds:
        scale(kind(1.0))
    assert traced == kinds


def test_a_mechanism_that_could_be_taken_for_another_is_refused():
    def of(register):
        @register
        @dataclasses.dataclass(frozen=True)
        class NoisyCount(ja.Mechanism):
            deviation: float
            relations = ("add_or_remove", "remove", "add")

            def validate(self):
                ja.Gaussian(self.deviation)

            def dominating_pairs(self, relation="add_or_remove"):
                return ja.Gaussian(self.deviation).dominating_pairs(relation)

        return NoisyCount(10.0)

    confusable = of(jax.tree_util.register_dataclass)
    calls = [
        lambda m: ja.epsilon(m, 4, 1e-5),
        lambda m: ja.rdp.curve(m, [2.0]),
        lambda m: ja.filters.RenyiFilter(1.0, 1e-5).spend(m),
        lambda m: MenuFilter(1.0, 1e-5, [m]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"NoisyCount.*@jaxacct.register_dataclass"):
            call(confusable)
    assert float(ja.epsilon(of(ja.register_dataclass), 4, 1e-5).upper) > 0


def test_a_dataclass_is_rebuilt_with_its_static_fields():
    @ja.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Tree:
        name: str = dataclasses.field(metadata={"static": True})
        leaf: float = 0.0

    doubled = jax.tree.map(lambda x: 2 * x, Tree("a", np.float64(1.5)))
    assert (doubled.name, doubled.leaf) == ("a", 3.0)
    assert jax.tree.structure(Tree("a", 1.0)) != jax.tree.structure(Tree("b", 1.0))
    (path, _), *_ = jax.tree_util.tree_leaves_with_path(Tree("a", 1.0))
    assert jax.tree_util.keystr(path) == ".leaf"


def test_a_field_that_the_constructor_fills_in_travels_with_the_rest():
    @ja.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Rate:
        batch: float
        size: int = dataclasses.field(metadata={"static": True})
        rate: float = dataclasses.field(init=False)
        kind: str = dataclasses.field(default="a rate", init=False)

        def __post_init__(self):
            object.__setattr__(self, "rate", self.batch / self.size)

    made = Rate(10.0, np.int16(100))
    assert jax.tree.leaves(made) == [10.0, 0.1]
    doubled = jax.tree.map(lambda x: 2 * x, made)
    assert (doubled.batch, doubled.size, doubled.rate, doubled.kind) == (20.0, 100, 0.2, "a rate")
    ja.numerics.pytrees.check_compared_by_class(made)
