"""Sums over atoms in float32: their bounds as inequalities, and what the bounds are narrow enough to show."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxacct.numerics import sums_float32 as sums
from jaxacct.numerics.elementary_float32 import UNIT
from tests.helpers.thorough import draws
from tests.numerics.test_elementary_float32 import less_than_two_terms, sin_less


@pytest.mark.parametrize("count", [1, 2, 7, 64, 100, 1024, 4096])
def test_totals_are_within_their_bound(count):
    rng = np.random.default_rng(count)
    hard = np.full(count, UNIT)
    hard[0] = 1.0  # added to it one by one, the other terms would vanish
    rows = np.array([hard, rng.normal(size=count), np.exp(rng.uniform(-20, 20, count)), np.ones(count)], np.float32)
    found = np.asarray(sums.total(rows), np.float64)
    error = np.abs(found - [math.fsum(row) for row in rows.astype(np.float64)])
    most = sums.units_of_total(count) * UNIT * np.abs(rows.astype(np.float64)).sum(-1)
    assert (error <= most).all()


def test_no_compiler_merges_the_sums_of_a_total():
    compiled = jax.jit(sums.total).lower(np.ones((4, 1024), np.float32)).compile()
    assert compiled.as_text().count(" reduce(") == 3


transform_remainder = jax.jit(sums.transform_remainder, static_argnames="tile")
moment_remainder = jax.jit(sums.moment_remainder)


def laws(seed, count=1024):
    """Masses, places, of four laws: a bulk and a rare far part of random size, scales from 1e-4 to 10."""
    rng = np.random.default_rng(seed)
    masses = rng.dirichlet(np.full(count, 0.3), 4)
    rare = rng.random((4, count)) < 0.05
    masses = np.where(rare, masses * 10.0 ** rng.uniform(-12, 0, (4, 1)), masses).astype(np.float32)
    places = rng.normal(size=(4, count)) * np.where(rare, 10.0, 1.0) * 10.0 ** rng.uniform(-4, 0.5, (4, 1))
    return masses, places.astype(np.float32)


def frequencies_of(places):
    """Frequencies from where all of a law is of second order to where its angles are thousands."""
    return (np.geomspace(1e-4, 300.0, 64) / places.std(-1, keepdims=True)).astype(np.float32)


def transform(masses, places, frequencies):
    """The transform's real and imaginary part in float64."""
    p, x, w = (v.astype(np.float64) for v in (masses, places, frequencies))
    a = w[..., :, None] * x[..., None, :]
    return (p[..., None, :] * (-2 * np.sin(a / 2) ** 2)).sum(-1), (p[..., None, :] * sin_less(a)).sum(-1)


def misses(found, truth):
    """How far values are from the truth, over the error that they state, at most."""
    real, imaginary, error = (np.asarray(v, np.float64) for v in found)
    return max(np.max(np.abs(real - truth[0]) / error), np.max(np.abs(imaginary - truth[1]) / error))


@pytest.mark.parametrize("seed", range(draws(3, 100)))
def test_transforms_are_within_their_errors(seed):
    masses, places = laws(seed)
    w = frequencies_of(places)
    found = transform_remainder(masses, places, w)
    truth = transform(masses, places, w)
    assert misses(found, truth) <= 1
    # Errors are of second order, at the smallest frequency too, where the linear part is 10^4 times as large.
    size = (w[:, 0].astype(float) ** 2) * (masses.astype(float) * places.astype(float) ** 2).sum(-1) / 2
    assert (np.asarray(found.error)[:, 0] <= 40 * UNIT * size).all()
    one = transform_remainder(masses[1], places[1], w[1], tile=64)
    assert np.array_equal(one.real, found.real[1])
    assert np.array_equal(one.imaginary, found.imaginary[1])
    mapped = jax.jit(jax.vmap(sums.transform_remainder))(masses, places, w)
    assert all(np.array_equal(a, b) for a, b in zip(mapped, found, strict=True))


def test_the_errors_are_narrow_enough_to_show_mistakes():
    """Masses and places of a few digits less, and a linear part that is summed with the rest, are outside."""
    masses, places = laws(0)
    w = frequencies_of(places)
    truth = transform(masses, places, w)
    coarse = np.asarray(jax.lax.reduce_precision(masses, 8, 11))
    assert misses(transform_remainder(coarse, places, w), truth) > 1
    near = np.asarray(jax.lax.reduce_precision(places, 8, 11))
    assert misses(transform_remainder(masses, near, w), truth) > 1
    # The linear part summed: e^(iwx) - 1, less w times the mean, which is exact here.
    found = transform_remainder(masses, places, w)
    a = w[..., :, None] * places[..., None, :]
    mean = (masses.astype(np.float64) * places).sum(-1, keepdims=True)
    with_linear = np.asarray(sums.total(masses[..., None, :] * jnp.sin(a)), np.float64) - w * mean
    assert misses(found._replace(imaginary=with_linear), truth) > 1
    # And 1 - cos by subtraction.
    assert misses(found._replace(real=sums.total(masses[..., None, :] * (jnp.cos(a) - 1))), truth) > 1


def test_transforms_of_infinite_places_say_nothing():
    found = transform_remainder(np.float32([0.5, 0.5]), np.float32([1.0, np.inf]), np.ones(16, np.float32))
    assert np.isinf(found.error).all()


@pytest.mark.parametrize("seed", range(draws(3, 100)))
def test_moments_are_within_their_errors(seed):
    masses, places = laws(seed)
    orders = np.concatenate([np.geomspace(1e-3, 20, 16), -np.geomspace(1e-3, 20, 16)])
    orders = (orders / np.abs(places).max(-1, keepdims=True)).astype(np.float32)
    found = moment_remainder(masses, places, orders)
    p, x, t = (v.astype(np.float64) for v in (masses, places, orders))
    truth = (p[:, None, :] * less_than_two_terms(t[..., None] * x[:, None])).sum(-1)
    error = np.asarray(found.error, np.float64)
    assert (np.abs(np.asarray(found.value, np.float64) - truth) <= error).all()
    assert (error <= 65 * UNIT * truth + 1e-33).all()
    with_linear = np.asarray(sums.total(masses[:, None] * jnp.expm1(orders[..., None] * places[:, None])), np.float64)
    with_linear = with_linear - t * (p * x).sum(-1, keepdims=True)
    assert (np.abs(with_linear - truth) > error).any()


def test_programs_hold_no_other_types_or_functions():
    """In a scope of float64, too, and lowered for a device without: matrix products would be of bfloat16 there."""
    x, w = np.ones(100, np.float32), np.ones(32, np.float32)
    functions = sums.total, lambda x: sums.transform_remainder(x, x, w), lambda x: sums.moment_remainder(x, x, w)
    for function in functions:
        with jax.enable_x64(True):
            text = jax.jit(function).trace(x).lower(lowering_platforms=("tpu",)).as_text()
        assert "f64" not in text
        assert not re.search(r"stablehlo\.(divide|sqrt|rsqrt|exponential|log|sine|cosine|dot|power)", text)
