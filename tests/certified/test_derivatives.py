"""Derivatives of every verb, however they are asked for: those of differences of answers, or an error in words."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.mechanisms import P, Q
from helpers.thorough import cases

import jaxacct as ja
from jaxacct import prv, rdp, saddlepoint

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
"""With float64 off JAX says so of each sum of float64 numbers that it transposes."""

DELTA, EPSILON = 1e-5, 0.7

WAYS = {
    "grad": lambda f, x: np.array([jax.grad(f)(each) for each in x]),
    "jacfwd": lambda f, x: np.array([jax.jacfwd(f)(each) for each in x]),
    "vmap of grad": lambda f, x: jax.vmap(jax.grad(f))(x),
    "vmap of jacfwd": lambda f, x: jax.vmap(jax.jacfwd(f))(x),
    "grad of the sum": lambda f, x: jax.grad(lambda x: jnp.sum(jax.vmap(f)(x)))(x),
}
COMPILED = {
    "jit of vmap of grad": lambda f, x: jax.jit(jax.vmap(jax.grad(f)))(x),
    "grad of jit": lambda f, x: np.array([jax.grad(jax.jit(f))(each) for each in x]),
}
INPUTS = {
    "NumPy": lambda x: np.asarray(x, np.float64),
    "JAX": lambda x: jnp.asarray(x, jnp.float32),
    "Python": list,
}


class Case(NamedTuple):
    """A verb as a function of one number, and two values of it."""

    verb: Any
    at: tuple[float, float]
    is_count: bool = False


VERBS = {
    "ja.epsilon": lambda m, k=7, d=DELTA, **o: ja.epsilon(m, k, d, **o).upper,
    "ja.delta": lambda m, k=7, e=EPSILON, **o: ja.delta(m, k, e, **o).upper,
    "prv.epsilon": lambda m, k=7, d=DELTA, **o: prv.epsilon(m, k, d, **o).upper,
    "prv.delta": lambda m, k=7, e=EPSILON, **o: prv.delta(m, k, e, **o).upper,
    "rdp.epsilon": lambda m, k=7, d=DELTA, **o: rdp.epsilon(m, k, d, **o),
    "rdp.delta": lambda m, k=7, e=EPSILON, **o: rdp.delta(m, k, e, **o),
}
FIELDS = {
    "Gaussian": (ja.Gaussian, (3.0, 5.0)),
    "sampled noise": (lambda s: ja.PoissonSubsampledGaussian(s, 0.1), (0.9, 1.3)),
    "sampling rate": (lambda q: ja.PoissonSubsampledGaussian(1.2, q), (0.1, 0.2)),
    "Laplace": (ja.Laplace, (4.0, 6.0)),
    "sampled Laplace": (lambda b: ja.PoissonSubsampledLaplace(b, 0.1), (1.0, 1.5)),
    "discrete Laplace": (ja.DiscreteLaplace, (4.0, 6.0)),
    "discrete Gaussian": (ja.DiscreteGaussian, (4.0, 6.1)),
    "randomized response": (lambda e: ja.RandomizedResponse(e, outcomes=3), (0.2, 0.33)),
    "pure": (ja.PureDP, (0.2, 0.33)),
    "delta of a guarantee": (lambda d: ja.ApproximateDP(0.3, d), (1e-7, 3e-7)),
    "zCDP": (ja.ZeroConcentratedDP, (0.01, 0.02)),
}
CASES = {
    f"{verb}, {field}": Case(lambda x, verb=VERBS[verb], make=make: verb(make(x)), at)
    for verb, (field, (make, at)) in itertools.product(VERBS, FIELDS.items())
}
CASES |= {
    "ja.epsilon, rare": Case(
        lambda s: ja.epsilon(ja.PoissonSubsampledGaussian(s, 0.001), 5, DELTA, relation="remove").upper, (0.8, 0.9)
    ),
    "ja.epsilon, without replacement": Case(
        lambda s: ja.epsilon(ja.GaussianWithoutReplacement(s, 0.1), 7, DELTA, relation="replace").upper, (4.0, 5.0)
    ),
    "saddlepoint.epsilon": Case(
        lambda s: saddlepoint.epsilon(ja.PoissonSubsampledGaussian(s, 0.1), 300, DELTA).upper, (0.9, 1.3)
    ),
    "saddlepoint.delta": Case(
        lambda s: saddlepoint.delta(ja.PoissonSubsampledGaussian(s, 0.1), 300, 5.0).upper, (0.9, 1.3)
    ),
    "rdp.curve": Case(lambda s: rdp.curve(ja.PoissonSubsampledGaussian(s, 0.1), [4.0])[0], (0.9, 1.3)),
    "rdp.composed_curve": Case(lambda b: rdp.composed_curve(ja.Laplace(b), 7, [4.0])[0], (1.0, 2.0)),
    "ja.curve": Case(lambda b: ja.curve(ja.Laplace(b), 7, epsilons=[0.5]).upper[0], (4.0, 6.0)),
    "prv.curve": Case(lambda b: prv.curve(ja.Laplace(b), 7, [0.5]).delta.upper[0], (4.0, 6.0)),
    "delta given": Case(lambda d: ja.epsilon(ja.Laplace(4.0), 7, d).upper, (1e-4, 1e-3)),
    "delta given to rdp": Case(lambda d: rdp.epsilon(ja.Laplace(4.0), 7, d), (1e-4, 1e-3)),
    "epsilon given": Case(lambda e: ja.delta(ja.Laplace(4.0), 7, e).upper, (0.3, 0.6)),
    "steps": Case(lambda k: ja.epsilon(ja.Laplace(4.0), k, DELTA).upper, (7.0, 9.0), True),
    "steps of rdp": Case(lambda k: rdp.epsilon(ja.Laplace(4.0), k, DELTA), (7.0, 9.0), True),
    "steps of prv": Case(lambda k: prv.epsilon(ja.Laplace(4.0), k, DELTA).upper, (7.0, 9.0), True),
}


def by_differences(case):
    """Slopes from eager answers beside the point, and how far they may be from those of a function with kinks."""
    slopes = []
    for x in map(float, case.at):
        step = 1.0 if case.is_count else 2e-4 * x
        at = [float(case.verb(each)) for each in (x - step, x, x + step)]
        sides = [(at[1] - at[0]) / step, (at[2] - at[1]) / step]
        # A sum of finitely many losses has kinks: either side's slope is one there.
        slopes.append(((at[2] - at[0]) / (2 * step), abs(sides[1] - sides[0])))
    return np.array(slopes).T


def agree(found, case, kind):
    slopes, apart = by_differences(case)
    # Numbers of float32 are others by 6e-8 of themselves, and differences of answers of 1e-9 err by 1e-5.
    np.testing.assert_allclose(np.asarray(found, float), slopes, rtol=2e-3, atol=np.max(apart) + 1e-9, err_msg=kind)


CHEAP = {"Gaussian": CASES["ja.epsilon, Gaussian"], "rdp": CASES["rdp.epsilon, Gaussian"]}


@pytest.mark.exhaustive
@pytest.mark.first_tier("Gaussian-False", "rdp-False")
@pytest.mark.parametrize(("name", "x64"), [("Gaussian", False), ("Gaussian", True), ("rdp", False)])
def test_batches_of_numpy_numbers_have_derivatives(name, x64):
    with jax.enable_x64(x64):
        for way in ("vmap of grad", "vmap of jacfwd", "grad of the sum"):
            agree(WAYS[way](CHEAP[name].verb, INPUTS["NumPy"](CHEAP[name].at)), CHEAP[name], way)


def test_where_the_exact_accountant_has_none_derivatives_are_the_meshs():
    laplace = Case(lambda b: ja.epsilon(ja.Laplace(b), 7, DELTA, points=512).upper, (4.0, 6.0))
    agree(WAYS["grad"](laplace.verb, laplace.at), laplace, "grad")


def test_what_has_no_derivative_says_so_in_words():
    with pytest.raises(ValueError, match=r"no derivatives there: differentiate jaxacct\.epsilon"):
        jax.grad(lambda b: saddlepoint.epsilon(ja.Laplace(b), 7, DELTA).upper)(2.0)
    for verb in (CHEAP["Gaussian"].verb, CHEAP["rdp"].verb):
        with pytest.raises(TypeError, match="derivatives of first order only"):
            jax.hessian(verb)(2.0)


SOON = ["ja.epsilon, Gaussian", "ja.delta, zCDP", "rdp.epsilon, sampled noise", "rdp.delta, Laplace"]
"""Cases that compile in seconds; all of them, both ways, take two hours of a core."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", cases(SOON, [name for name in CASES if name not in SOON]))
@pytest.mark.parametrize("x64", cases([False], [True]), ids=lambda x64: "float64" if x64 else "float32")
def test_every_derivative_however_it_is_asked_for(name, x64):
    case = CASES[name]
    with jax.enable_x64(x64):
        for (way, derive), (kind, give) in itertools.product(WAYS.items(), INPUTS.items()):
            if kind != "Python" or way in ("grad", "jacfwd"):
                agree(derive(case.verb, give(case.at)), case, f"{way}, {kind}")
        for way, derive in COMPILED.items():
            agree(derive(case.verb, INPUTS["NumPy"](case.at)), case, way)


@pytest.mark.exhaustive
def test_what_does_not_move_alone_has_no_derivative_and_says_so():
    with pytest.raises(ValueError, match="has to be whole"):
        jax.grad(lambda b: ja.epsilon(ja.RandomAllocation(0.7, b, points=64), 2, DELTA).upper)(2.0)
    with pytest.raises(ValueError, match=r"sums? to (1|one)"):
        jax.grad(lambda q: ja.delta(ja.DiscretePair(P, q), 3, 0.1, relation="remove").upper)(jnp.asarray(Q))
