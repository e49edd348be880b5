"""Bounds count roundings in the unit of the arithmetic that is traced for: wider for float32, as the unit is."""

import ast
import pathlib
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import program

import jaxacct as ja
from jaxacct import saddlepoint
from jaxacct.mechanisms import ShiftedNoisePair
from jaxacct.numerics.arithmetic import FLOAT32, FLOAT64, in_float32

PACKAGE = pathlib.Path(ja.__file__).parent
RATIO = FLOAT32.roundoff / FLOAT64.roundoff


def cdf_p(y, b):
    return jnp.where(y < -1 / b, 0.0, jnp.where(y >= 1 / b, 1.0, jnp.exp((y - 1 / b) / 2) / 2))


def cdf_q(y, b):
    return jnp.where(y < -1 / b, 0.0, jnp.where(y >= 1 / b, 1.0, 1 - jnp.exp(-(y + 1 / b) / 2) / 2))


KINDS = {
    "gaussian": ja.PoissonSubsampledGaussian(1.5, 0.1),
    "laplace": ja.PoissonSubsampledLaplace(1.5, 0.1),
    "without-replacement": ja.LaplaceWithoutReplacement(2.0, 0.3),
    "finite": ja.ApproximateDP(0.4, 1e-4),
    "truncated": ja.TruncatedPoissonGaussian(1.0, 0.1, 1e-3, 1e-4),
    "cdf": ja.PrivacyLoss(cdf_p, cdf_q, lowest=-0.5, highest=0.5, parameters=2.0),
}


def errors(mechanism):
    """What a pair says of its own rounding, all of it at least 0, and whether it is valid."""
    (pair, *_) = mechanism.dominating_pairs()
    cells = pair.cell_masses(jnp.linspace(-0.45, 0.4, 5))
    lower, upper = pair.one_run(jnp.float64(0.25))
    supremum = pair.supremum()
    off = [cells.p_error, cells.q_error, pair.boundary_error(jnp.float64(0.5)), (upper - lower) / upper]
    bounded = jnp.where(jnp.isfinite(supremum[1]), supremum[1] - supremum[0], 0.0)
    return jnp.concatenate([jnp.ravel(part) for part in (*off, bounded)]), pair.is_valid()


@pytest.mark.first_tier("finite", "cdf")
@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_s_own_bounds_grow_with_the_unit(kind):
    leaves, structure = jax.tree.flatten(KINDS[kind])

    def found():
        with jax.enable_x64(True):
            ask = program(lambda leaves: errors(jax.tree.unflatten(structure, leaves)))
            return [np.asarray(part) for part in ask([np.float64(leaf) for leaf in leaves])]

    narrow, valid = found()
    with in_float32():
        wide, still = found()
    assert valid
    assert still
    counts = np.isfinite(narrow) & (narrow > 0)
    assert np.sum(counts) > 4
    assert np.all(wide[counts] >= narrow[counts])
    # Where more than rounding is counted the ratio is less; where the sampled weights may err by more, it is more.
    assert np.all(wide[counts] <= 2.5 * RATIO * narrow[counts])
    assert np.median(wide[counts] / narrow[counts]) > 0.5 * RATIO


@pytest.mark.first_tier("one run")
@pytest.mark.parametrize("steps", [1, 300], ids=["one run", "contour"])
def test_brackets_grow_with_the_unit(steps):
    def found():
        with jax.enable_x64(True):
            return saddlepoint.delta(ja.PoissonSubsampledGaussian(1.1, 0.05), steps, 0.5)

    narrow = found()
    with in_float32():
        wide = found()
    assert narrow.converged
    assert wide.lower <= narrow.lower <= narrow.upper <= wide.upper
    grown = (wide.upper - wide.lower) / (narrow.upper - narrow.lower)
    assert 0.2 * RATIO < grown < 1.2 * RATIO


def test_edges_are_within_their_bound_where_a_moderate_loss_is_negative():
    """Laplace noise alone: between the locations the loss is (2 x - 1) / scale, in rational numbers."""
    scale, losses = 1.5, np.linspace(-0.6, 0.6, 401)
    with jax.enable_x64(True):
        pair = ShiftedNoisePair(scale, np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([1.0, 0.0]), "laplace")
        x, allowed = program(lambda y: (pair._threshold(y), pair.boundary_error(jnp.abs(y))))(losses)
    for edge, loss, bound in zip(np.asarray(x), losses, np.asarray(allowed), strict=True):
        off = (2 * Fraction(float(edge)) - 1) / Fraction(scale) - Fraction(float(loss))
        assert abs(off) <= Fraction(float(bound)) / 2


TRACED = [
    *(path for room in ("mechanisms", "saddlepoint") for path in (PACKAGE / room).glob("*.py")),
    *(PACKAGE / f"{name}.py" for name in ("composition", "bounds")),
]

OF_THE_HOST = {
    "finite.PrivacyLoss": "of a user's functions in float64; what is traced scales it",
    "gaussian.TruncatedPoissonGaussian.for_batches": "Python's own floats, before anything is traced",
    "fixed_batches.GaussianWithReplacement.dominating_pairs": "of NumPy's numbers, before anything is traced",
    "groups.WithoutReplacementGroup.dominating_pairs": "of functions in float64; what is traced scales it",
    "finite.noiseless_pairs": "of NumPy's numbers, before anything is traced",
}

NO_ROUNDING = {
    "bounded_range._worst_profile": "a slack of a logarithm that is rounded down to a whole number",
    "bounded_range.STEP_ERROR": "scaled where it is used",
    "allocation._pair_laws": "the least width of a grid",
    "allocation._with_part": "the least bend of a grid's rows, and of a logarithm",
    "allocation.VALUE_ERROR": "scaled where it is used",
    "allocation.step": "the least width of a grid",
    "balls_in_bins.times": "the least width of a grid",
    "balls_in_bins._nested_pairs": "a variance that counts as none, on the safe side",
    "by_profile.MARGIN": "scaled where it is used",
    "ratio_law.KNOWN": "the error above which masses are joined to others",
    "ratio_law.Ratio.ends": "the distance of a grid's end from the last value",
    "ratio_law.allocate_ratio": "the least width of a grid",
    "shuffled.SLACK": "scaled where it is used",
    "shuffled._grid_of_mean": "the least width of a grid",
    "shuffled._summed_scores": "of NumPy's numbers, before anything is traced",
    "normal.cosm1_and_sin": "pi, and a coefficient of a sine",
    "fixed_batches._profile_above": "of NumPy's numbers, before anything is traced",
    "fixed_batches.SLACK": "likewise",
    "fixed_batches.GaussianWithReplacement.validate": "what a user's probabilities may miss",
    "finite.DiscretePair.validate": "likewise",
    "solve.CONVERGED": "what counts as converged",
    "composition.NEGLIGIBLE": "what counts as converged",
    "composition._infinite_mass": "far above the rounding of the product that it covers, in any unit",
}


class Units(ast.NodeVisitor):
    """Collects, each with where it stands: uses of float64's unit, small numbers that nothing scales, early calls."""

    def __init__(self, module):
        self.module, self.owner, self.places = module, [], []
        self.float64, self.unscaled, self.early, self.scaled = set(), set(), set(), set()

    def place(self):
        return ".".join([self.module, *self.owner, *self.places[-1:]])

    def visit_ClassDef(self, node):
        self.owner.append(node.name)
        self.generic_visit(node)
        self.owner.pop()

    def visit_FunctionDef(self, node):
        # Defaults and decorators are evaluated where the function is defined.
        for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(part)
        self.places.append(node.name)
        for part in node.body:
            self.visit(part)
        self.places.pop()

    def visit_Assign(self, node):
        if self.places:
            return self.generic_visit(node)
        self.places.append("/" + ast.unparse(node.targets[0]))
        self.generic_visit(node)
        self.places.pop()

    def visit_Call(self, node):
        name = ast.unparse(node.func)
        if name in ("roundoff", "scale_error", "arithmetic"):
            if not self.places or self.places[-1].startswith("/"):
                self.early.add(self.place())
            self.scaled |= {id(part) for part in ast.walk(node)}
        self.generic_visit(node)

    def visit_Name(self, node):
        if node.id in ("UNIT_ROUNDOFF", "FUNCTION"):
            self.float64.add(self.place().replace("/", ""))

    def visit_Attribute(self, node):
        if ast.unparse(node) in ("FLOAT64.roundoff", "FLOAT64.function"):
            self.float64.add(self.place().replace("/", ""))
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, float) and 1e-16 < abs(node.value) < 1e-8 and id(node) not in self.scaled:
            self.unscaled.add(self.place().replace("/", ""))


def units(path):
    found = Units(path.stem)
    found.visit(ast.parse(path.read_text()))
    return found


def test_no_traced_module_keeps_a_unit():
    every = [units(path) for path in TRACED]
    assert set().union(*(found.float64 for found in every)) == set(OF_THE_HOST)
    assert set().union(*(found.unscaled for found in every)) == set(NO_ROUNDING)
    assert not set().union(*(found.early for found in every))
    for name in NO_ROUNDING:
        module, *_, constant = name.split(".")
        if "scale" in NO_ROUNDING[name]:
            text = "".join(path.read_text() for path in TRACED if path.stem == module)
            assert f"scale_error({constant})" in text
            # It is defined once, and used nowhere else.
            names = [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
            assert names.count(constant) == 1 + text.count(f"scale_error({constant})")
