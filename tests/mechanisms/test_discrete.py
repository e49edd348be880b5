"""Mechanisms with finitely or countably many losses, against their definitions in 40 digits."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from helpers.thorough import cases

from jaxacct import rdp
from jaxacct.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    DiscretePair,
    Mechanism,
    PureDP,
    RandomizedResponse,
)
from jaxacct.mechanisms.discrete_gaussian import SELF_DUAL, _log_off_center
from jaxacct.mechanisms.mechanism import sequence
from jaxacct.numerics.precision import UNIT_ROUNDOFF, kernel

mp.mp.dps = 40


def response(epsilon, outcomes=2, delta=0):
    """(P, Q, loss) of randomized response after saying everything with probability delta."""
    e, k, d = mp.exp(mp.mpf(epsilon)), outcomes, mp.mpf(delta)
    high, low = (1 - d) * e / (e + k - 1), (1 - d) / (e + k - 1)
    return [
        (d, mp.mpf(0), mp.inf), (high, low, mp.mpf(epsilon)), (low, high, -mp.mpf(epsilon)), (mp.mpf(0), d, -mp.inf),
        ((1 - d) * (k - 2) / (e + k - 1), (1 - d) * (k - 2) / (e + k - 1), mp.mpf(0)),
    ]  # fmt: skip


def on_integers(mass, log_ratio, shift, reach):
    total = mp.fsum(mass(mp.mpf(n)) for n in range(-reach, reach + 1))
    return [
        (mass(mp.mpf(n - shift)) / total, mass(mp.mpf(n)) / total, log_ratio(mp.mpf(n)))
        for n in range(-reach, reach + shift + 1)
    ]


def laplace(scale, shift=1):
    b, reach = mp.mpf(scale), int(100 * scale) + 10 * shift
    return on_integers(lambda n: mp.exp(-abs(n) / b), lambda n: (abs(n) - abs(n - shift)) / b, shift, reach)


def gaussian(scale, shift=1):
    v, reach = 2 * mp.mpf(scale) ** 2, int(45 * scale) + 8 * shift + 2
    return on_integers(lambda n: mp.exp(-(n**2) / v), lambda n: shift * (2 * n - shift) / v, shift, reach)


CASES = {
    "pure": (PureDP(0.7), response(0.7)),
    "tiny": (PureDP(1e-6), response(1e-6)),
    "large": (PureDP(90.0), response(90.0)),
    "approximate": (ApproximateDP(1.5, 1e-7), response(1.5, delta=1e-7)),
    "loose": (ApproximateDP(0.2, 0.3), response(0.2, delta=0.3)),
    "binary": (RandomizedResponse(2.0), response(2.0)),
    "many": (RandomizedResponse(3.0, 1000), response(3.0, 1000)),
    "laplace": (DiscreteLaplace(1.7), laplace(1.7)),
    "wide laplace": (DiscreteLaplace(12.0, 7), laplace(12.0, 7)),
    "gaussian": (DiscreteGaussian(1.1), gaussian(1.1)),
    "narrow gaussian": (DiscreteGaussian(0.25, 2), gaussian(0.25, 2)),
    "wide gaussian": (DiscreteGaussian(14.0, 3), gaussian(14.0, 3)),
}


cells_of = jax.jit(lambda pair, boundaries: (pair.cell_masses(boundaries), pair.infinite_mass(), pair.is_valid()))
cumulants_of = jax.jit(lambda pair, orders: pair.cumulant(orders))
places_of = jax.jit(lambda pair: (*pair.loss_range(), pair.central_loss()))


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request):
    return CASES[request.param]


def only_pair(mechanism):
    (pair,) = mechanism.dominating_pairs()
    return pair


def spread(atoms):
    """The range of losses that carry mass, and cells over it whose edges are no atoms."""
    losses = [float(y) for p, _, y in atoms if p > 1e-20 and abs(y) < mp.inf]
    low, high = min(losses), max(losses)
    width = max(high - low, 1e-9)
    return np.linspace(low - 0.0513 * width, high + 0.0517 * width, 300)


@pytest.mark.first_tier("tiny", "large", "loose", "binary")
def test_masses_and_the_hockey_stick_divergence(case):
    mechanism, atoms = case
    mesh = spread(atoms)
    boundaries = np.concatenate([[-np.inf], mesh, [np.inf]])
    with jax.enable_x64(True):
        pair = only_pair(mechanism)
        cells, infinite, valid = jax.tree.map(np.asarray, cells_of(pair, boundaries))
    assert valid
    infinite = float(infinite)
    exact = [[mp.mpf(0), mp.mpf(0)] for _ in boundaries[1:]]
    for p, q, y in atoms:
        if abs(y) < mp.inf:
            cell = exact[int(np.searchsorted(boundaries, float(y))) - 1]
            cell[0], cell[1] = cell[0] + p, cell[1] + q
    for i, (p, q) in enumerate(exact):
        assert abs(mp.mpf(float(cells.p[i])) - p) <= mp.mpf(float(cells.p_error[i])) + mp.mpf(10) ** -307
        assert abs(mp.mpf(float(cells.q[i])) - q) <= mp.mpf(float(cells.q_error[i])) + mp.mpf(10) ** -307
        assert cells.p_error[i] <= 1e-12 * cells.p[i] + 1e-300
    true_infinite = mp.fsum(p for p, _, y in atoms if y == mp.inf)
    assert abs(infinite - true_infinite) <= 2 * UNIT_ROUNDOFF * true_infinite
    for epsilon in (0.0, float(np.median(np.abs(mesh)))):
        truth = mp.fsum(max(p - mp.exp(epsilon) * q, 0) for p, q, _ in atoms)
        lower = infinite + np.maximum(cells.p - np.exp(epsilon) * cells.q, 0).sum()
        upper = infinite + cells.p[-1] + np.sum(cells.p[:-1] * np.maximum(-np.expm1(epsilon - mesh), 0))
        assert lower - 1e-14 <= truth <= upper + 1e-14


@pytest.mark.first_tier("tiny", "large", "loose", "binary")
def test_cumulants(case):
    mechanism, atoms = case
    orders = np.array([-2.5, -0.4, 0.01, 0.5, 3.0])
    with jax.enable_x64(True):
        found = np.asarray(cumulants_of(only_pair(mechanism), orders))
    for order, value in zip(orders, found, strict=True):
        truth = mp.log(mp.fsum(p * mp.exp(mp.mpf(order) * y) for p, _, y in atoms if p > 0 and abs(y) < mp.inf))
        assert abs(mp.mpf(float(value)) - truth) <= 1e-12 * abs(truth)


def test_range_and_centre(case):
    mechanism, atoms = case
    finite = sorted((y, p) for p, _, y in atoms if abs(y) < mp.inf and p > 1e-300)
    with jax.enable_x64(True):
        pair = only_pair(mechanism)
        low, high, centre = (float(v) for v in places_of(pair))
    slack = 1e-14 * max(abs(float(finite[0][0])), abs(float(finite[-1][0])))
    assert low <= finite[0][0] + slack
    assert finite[-1][0] <= high + slack
    total, below = mp.fsum(p for _, p in finite), mp.fsum(p for y, p in finite if y <= centre + slack)
    above = mp.fsum(p for y, p in finite if y >= centre - slack)
    assert min(below, above) >= total * 0.5 - 1e-12


def test_closed_forms_of_the_divergence():
    orders = np.array([1.1, 2.0, 7.5, 128.0])
    for mechanism in (PureDP(0.3), RandomizedResponse(0.3), PureDP(5.0), RandomizedResponse(5.0)):
        e = mp.mpf(mechanism.epsilon)
        for a, value in zip(map(mp.mpf, orders), rdp.curve(mechanism, orders), strict=True):
            truth = mp.log((mp.exp(a * e) + mp.exp((1 - a) * e)) / (1 + mp.exp(e))) / (a - 1)
            assert truth <= value <= truth * (1 + 1e-9)
    # Canonne, Kamath and Steinke (2020), Proposition 5: at most the Gaussian's, and equal at whole orders.
    values = rdp.curve(DiscreteGaussian(0.4, 2), [2.0, 2.25, 64.0])
    np.testing.assert_allclose(values[[0, 2]], np.array([2.0, 64.0]) * 4 / (2 * 0.16), rtol=1e-9)
    assert values[1] < 2.25 * 4 / (2 * 0.16) * (1 - 1e-3)


def test_divergence_is_infinite_with_infinite_losses():
    assert np.all(np.isinf(rdp.curve(ApproximateDP(0.5, 1e-9), [2.0, 30.0])))
    assert np.all(np.isfinite(rdp.curve(ApproximateDP(0.5, 0.0), [2.0, 30.0])))
    np.testing.assert_allclose(rdp.curve(ApproximateDP(0.5, 0.0), [2.0]), rdp.curve(PureDP(0.5), [2.0]))
    assert np.all(np.isinf(rdp.curve(DiscretePair([0.5, 0.5], [1.0, 0.0]), [2.0])))


def test_cumulants_add_over_a_composition():
    epsilon, k = 0.1, 5
    p = np.array([float(response(epsilon)[1][0])])
    cumulant = jax.jit(lambda mechanism: mechanism.dominating_pairs("remove")[0].cumulant(3.0))
    with jax.enable_x64(True):
        single = float(cumulant(RandomizedResponse(epsilon)))
    high, low = p[0], 1 - p[0]
    binomial = np.array([float(mp.binomial(k, j)) for j in range(k + 1)])
    j = np.arange(k + 1)
    product = DiscretePair(binomial * high**j * low ** (k - j), binomial * low**j * high ** (k - j))
    with jax.enable_x64(True):
        together = float(cumulant(product))
    assert together == pytest.approx(k * single, rel=1e-12)


def test_extremes():
    @jax.jit
    def seen(mechanism):
        pair = only_pair(mechanism)
        finite = pair.cell_masses(jnp.array([-np.inf, 0.0, np.inf])), pair.loss_range()
        return pair.is_valid(), pair.infinite_mass(), pair.cumulant(5.0), finite

    with jax.enable_x64(True):
        found = [seen(one) for one in (PureDP(0.0), ApproximateDP(1.0, 1.0), PureDP(np.inf), PureDP(2000.0))]
    (_, _, cumulant, _), *extremes = jax.tree.map(np.asarray, found)
    assert cumulant == 0
    for valid, _, _, finite in extremes:
        assert valid
        assert not any(np.any(np.isnan(leaf)) for leaf in jax.tree.leaves(finite))
    # e^-2000 is 0 in float64, and yet no loss is infinite.
    assert [infinite for _, infinite, *_ in extremes] == [1, 1, 0]


INVALID = {
    "negative epsilon": lambda x: PureDP(-x),
    "nan": lambda x: RandomizedResponse(x * np.nan),
    "delta": lambda x: ApproximateDP(x, x + 1),
    "scale": lambda x: DiscreteLaplace(-x),
    "gaussian": lambda x: DiscreteGaussian(x - 1),
    "beyond reach": lambda x: DiscreteGaussian(x * 60),
    "sum": lambda x: DiscretePair(x * np.array([0.5, 0.4]), np.array([0.5, 0.5])),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_traced_fields_make_no_valid_pair(name):
    run = kernel(lambda x: INVALID[name](x).dominating_pairs("remove")[0].is_valid())
    assert not jax.jit(lambda x: run(x))(np.float32(1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PureDP(-1.0), "epsilon = -1.0 is not an epsilon: give a number of at least 0"),
        (lambda: ApproximateDP(1.0, 1.5), r"delta = 1.5 is not a probability: give a number in \[0, 1\]"),
        (lambda: RandomizedResponse(1.0, 1), "outcomes = 1 is out of range: give the number of possible values"),
        (lambda: DiscreteLaplace(0.0), "scale = 0.0 is no scale of noise on the integers: give a number above 0"),
        (lambda: DiscreteLaplace(1.0, 0), "sensitivity = 0 is out of range: give the largest change"),
        (lambda: DiscreteGaussian(1e5), "needs sums over more than 65536 integers on either side: give reach = "),
        (lambda: DiscretePair([0.5, 0.4], [0.5, 0.5]), "p sums to one only within 0.1: give float64"),
        (lambda: DiscretePair([0.5, 0.5], [1.5, -0.5]), r"q = 1.5 is not a probability in \[0, 1\]"),
        (lambda: DiscretePair([1.0], [0.5, 0.5]), r"p of shape \(1,\) and q of shape \(2,\) differ"),
        (lambda: DiscretePair([1.0, 1e-310], [0.5, 0.5]), "p = 1e-310 is not a probability"),
        (lambda: DiscretePair(0.5, [0.5, 0.5]), "p = 0.5 has no axis of outcomes"),
    ],
)
def test_validation_names_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_static_fields_are_whole_numbers():
    with pytest.raises(TypeError, match=r"sensitivity = 1.5 of type float: give the largest change"):
        DiscreteGaussian(1.0, 1.5)
    with pytest.raises(TypeError, match="outcomes = True of type bool"):
        RandomizedResponse(1.0, True)


def test_relations():
    for mechanism in (PureDP(1.0), ApproximateDP(1.0, 0.1), RandomizedResponse(1.0)):
        for relation in ("add_or_remove", "add", "remove", "replace"):
            assert len(mechanism.dominating_pairs(relation)) == 1
        assert isinstance(mechanism, Mechanism)
    pair = DiscretePair([0.25, 0.75], [0.5, 0.5])
    assert [len(pair.dominating_pairs(name)) for name in ("add_or_remove", "replace", "add", "remove")] == [2, 2, 1, 1]
    np.testing.assert_array_equal(pair.dominating_pairs("add")[0].p, pair.q)
    for mechanism in (DiscreteLaplace(1.0), DiscreteGaussian(1.0)):
        with pytest.raises(ValueError, match="relation = 'replace' is not supported by Discrete"):
            mechanism.dominating_pairs("replace")


TRACED = {
    "pure": lambda x: PureDP(x),
    "approximate": lambda x: ApproximateDP(x, x / 8),
    "response": lambda x: RandomizedResponse(x, 5),
    "laplace": lambda x: DiscreteLaplace(x, 3),
    "gaussian": lambda x: DiscreteGaussian(x, 2, reach=64),
    "pair": lambda x: DiscretePair(jnp.stack([x / 4, 1 - x / 4]), jnp.stack([1 - x / 2, x / 2])),
}


@pytest.mark.first_tier("response")
@pytest.mark.parametrize("name", TRACED)
def test_jit_and_vmap_inside_a_float32_trace(name):
    def everything(x):
        pair = TRACED[name](x).dominating_pairs("remove")[0]
        cells = pair.cell_masses(jnp.array([-np.inf, -0.3, 0.0, 0.6, np.inf]))
        return cells, pair.central_loss(), pair.cumulant(2.0), pair.is_valid()

    values = np.array([0.5, 1.25], np.float32)
    run = kernel(lambda x: everything(jnp.asarray(x, jnp.float64)))
    batch = jax.jit(jax.vmap(lambda x: run(x)))(values)
    # A batch is the more of what can go wrong: one kind is enough without.
    alone = name in cases(["gaussian"], TRACED)
    jitted, in_float64_throughout = jax.jit(lambda x: run(x)), jax.jit(everything)
    for i, value in enumerate(values):
        with jax.enable_x64(True):
            expected = in_float64_throughout(np.float64(value))
        rows = [jax.tree.map(lambda leaf, i=i: leaf[i], batch), *([jitted(value)] if alone else [])]
        for found in rows:
            for leaf, plain in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
                assert leaf.dtype in (np.float64, np.bool_)
                np.testing.assert_allclose(leaf, plain, rtol=1e-14)


def test_sequences_have_a_leading_axis():
    mechanism = ApproximateDP(np.array([0.1, 0.2, 0.3]), 1e-6)
    assert mechanism.batch_shape == (3,)
    with jax.enable_x64(True):
        batched = jax.jit(jax.vmap(only_pair))(sequence(mechanism, 3))
        assert batched.p.shape == (3, 4)
        direct = jax.jit(only_pair)(mechanism)
        np.testing.assert_array_equal(batched.p, direct.p)
        np.testing.assert_array_equal(batched.losses, direct.losses)
        steps = jax.jit(only_pair)(DiscreteLaplace(np.array([1.0, 2.0])))
        assert steps.p.shape == (2, 2)
    assert DiscretePair(np.full((3, 2), 0.5), np.full((3, 2), 0.5)).batch_shape == (3,)
    composed = rdp.composed_curve(PureDP(np.array([0.1, 0.2])), np.array([3.0, 4.0]), [2.0])
    apart = 3 * rdp.curve(PureDP(0.1), [2.0]) + 4 * rdp.curve(PureDP(0.2), [2.0])
    np.testing.assert_allclose(composed, apart, rtol=1e-12)


@pytest.mark.parametrize("scale", [0.03, 0.1, np.nextafter(SELF_DUAL, 0), np.nextafter(SELF_DUAL, 1), 0.7, 3.0])
def test_a_sum_off_its_center_is_right_to_units_of_one_and_of_its_exponent(scale):
    places = np.array([0.0, 1e-8, 0.1, 0.25, 0.4999, 0.5, 0.5 + 1e-9, 3.3])
    with jax.enable_x64(True):
        found = np.asarray(_log_off_center(jnp.asarray(scale), jnp.asarray(places)))
    with mp.workdps(60):
        s, numbers = mp.mpf(float(scale)), range(-60, 64)

        def bell(center):
            return mp.fsum(mp.exp(-((mp.mpf(n) - center) ** 2) / (2 * s * s)) for n in numbers)

        for value, at in zip(found, places, strict=True):
            truth = mp.log(bell(mp.mpf(float(at))) / bell(mp.mpf(0)))
            assert value <= 0
            assert abs(mp.mpf(float(value)) - truth) <= (16 + 4 / (8 * s**2)) * mp.mpf(2) ** -53, at
