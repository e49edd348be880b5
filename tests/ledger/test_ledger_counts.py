"""Numbers of runs of every size and type, in every ledger: never granted and uncharged.

What is granted is charged at least count times cost, in rationals; everything else is refused, and leaves no trace, or
raises an error that says why. A count is what its type holds: float32(2^32 + 1) is 2^32.
"""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import filters, odometers, validation

NOISE, EPSILON = 2.0**14, 2.0**-20
NOISY, PURE = ja.Gaussian(NOISE), ja.PureDP(EPSILON)
HALF_SQUARE = fractions.Fraction(1) / fractions.Fraction(NOISE) ** 2 / 2
SQUARE = fractions.Fraction(EPSILON) ** 2
EXAMPLES = 2

LEDGERS = {
    "RenyiFilter": (lambda: filters.RenyiFilter(1e30, 1e-5), NOISY, HALF_SQUARE),
    "IndividualRenyiFilter": (
        lambda: filters.IndividualRenyiFilter.create(EXAMPLES, 1e30, 1e-5),
        ja.Gaussian(np.full(EXAMPLES, NOISE)),
        HALF_SQUARE,
    ),
    "ZCDPFilter": (lambda: filters.ZCDPFilter(1e30, 1e-5, conversion="mironov"), NOISY, HALF_SQUARE),
    "ApproximateDPFilter": (lambda: filters.ApproximateDPFilter(1e30, 1e-5), PURE, SQUARE / 2),
    "GDPFilter": (lambda: filters.GDPFilter(1e30, 1e-5), NOISY, 2 * HALF_SQUARE),
    "RenyiOdometer": (lambda: odometers.RenyiOdometer(1e-5), NOISY, HALF_SQUARE),
    "VilleOdometer": (lambda: odometers.VilleOdometer(1e-5), NOISY, HALF_SQUARE),
    "FilterOdometer": (lambda: odometers.FilterOdometer(1e-5), NOISY, 2 * HALF_SQUARE),
    "MixtureOdometer": (lambda: odometers.MixtureOdometer(1e-5), NOISY, 2 * HALF_SQUARE),
    "StitchedOdometer": (lambda: odometers.StitchedOdometer(1e-5), NOISY, 2 * HALF_SQUARE),
    "RogersOdometer": (lambda: odometers.RogersOdometer(1e-5), PURE, SQUARE),
}
"""Each with a budget that covers 2^53 runs of a mechanism, and the cost of one exactly; at order 1 of Rényi ones."""

COUNTS = (0, 1, 7, 2**24 + 1, 2**31, 2**32, 2**32 + 1, 2**53, 2**53 + 1, 2**63, 2**64 + 1, -1, -(2**32))
BROKEN = (0.5, 2.5, 2.0**-140, -0.5, math.nan, math.inf, -math.inf)
NUMPY = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "longdouble")
NARROW, WIDE = ("int32", "uint32", "bfloat16", "float32"), ("int64", "uint64", "float64")


def held(count, dtype):
    """The count as an array of a dtype, or None where that does not hold anything like it."""
    kind = jnp.dtype(dtype)
    if not jnp.issubdtype(kind, jnp.integer):
        with np.errstate(over="ignore"):
            return np.asarray(count if isinstance(count, float) else float(count)).astype(kind)
    limits = jnp.iinfo(kind)
    return np.asarray(count, kind) if isinstance(count, int) and limits.min <= count <= limits.max else None


def python_counts():
    yield from (*COUNTS, *BROKEN)
    yield from map(float, COUNTS)


def numpy_counts():
    for dtype in NUMPY:
        yield from (value[()] for count in (*COUNTS, *BROKEN) if (value := held(count, dtype)) is not None)


def jax_counts():
    for dtype in NARROW:
        yield from (jnp.asarray(each) for count in (*COUNTS, *BROKEN) if (each := held(count, dtype)) is not None)


def whole(count):
    """The number that a count stands for, or None where it is no number of runs up to 2^53."""
    if isinstance(count, int):
        exact = count
    elif jnp.issubdtype(count.dtype if hasattr(count, "dtype") else float, jnp.integer):
        exact = int(count)
    else:
        wide = np.asarray(count).astype(np.longdouble)
        exact = int(wide) if np.isfinite(wide) and wide == np.floor(wide) else -1
    return exact if 0 <= exact <= 2**53 else None


def charged(ledger):
    """What has been spent by whom it was spent least, in units of the cost at order 1."""
    inner = ledger.filters if isinstance(ledger, filters.IndividualRenyiFilter) else ledger
    orders = getattr(inner, "orders", (1.0,))
    spent = jax.vmap(lambda each: each.spent)(inner) if inner is not ledger else inner.spent
    spent = np.asarray(spent, np.float64).reshape(-1, len(orders))
    return min(
        fractions.Fraction(float(value)) / fractions.Fraction(order)
        for row in spent
        for value, order in zip(row, orders, strict=True)
    )


def assert_identical(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.array_equal(a, b)


def check(name, count, granted, before, after):
    """Granted and charged for that many runs, or refused and unchanged."""
    runs = whole(count)
    assert bool(np.all(granted)) == (runs is not None), (name, count)
    if runs is None:
        assert_identical(after, before)
    else:
        assert charged(after) >= runs * LEDGERS[name][2], (name, count)
        assert charged(after) <= runs * LEDGERS[name][2] * (1 + fractions.Fraction(1, 10**8)), (name, count)


@pytest.mark.first_tier(
    "RenyiFilter-python_counts", "GDPFilter-python_counts", "VilleOdometer-jax_counts", "StitchedOdometer-python_counts"
)
@pytest.mark.parametrize("counts", [python_counts, numpy_counts, jax_counts])
@pytest.mark.parametrize("name", LEDGERS)
def test_concrete_counts(name, counts):
    make, mechanism, _ = LEDGERS[name]
    ledger = make()
    for count in counts():
        if whole(count) is None:
            with pytest.raises(ValueError, match=r"steps.*(give a whole number|64 bits)"):
                ledger.spend(mechanism, count)
            with pytest.raises(ValueError, match="steps"):
                ledger.would_grant(mechanism, count)
        else:
            check(name, count, *(granted_new := ledger.spend(mechanism, count))[:1], ledger, granted_new[1])
            assert np.all(ledger.would_grant(mechanism, count))


@pytest.mark.parametrize("name", LEDGERS)
def test_arrays_of_counts(name):
    make, mechanism, _ = LEDGERS[name]
    ledger, several = make(), jax.tree.map(lambda leaf: np.full(EXAMPLES, np.ravel(leaf)[0]), mechanism)
    for dtype in NUMPY:
        for count in COUNTS:
            value = held(count, dtype)
            if value is None:
                continue
            counts = np.array([value, value])
            if whole(value) is None:
                with pytest.raises(ValueError, match="steps"):
                    ledger.spend(several, counts)
                continue
            granted, after = ledger.spend(several, counts)
            together = 1 if name == "IndividualRenyiFilter" else EXAMPLES
            assert np.all(granted)
            assert charged(after) >= together * whole(value) * LEDGERS[name][2], (dtype, count)


@pytest.mark.parametrize("wide", [False, True], ids=["x32", "x64"])
def test_traced_counts_are_read_in_float64_or_are_nan(wide):
    """What all ledgers count by, for every type that a traced number can have."""
    with jax.enable_x64(wide):
        values = {
            dtype: np.stack([each for count in (*COUNTS, *BROKEN) if (each := held(count, dtype)) is not None])
            for dtype in (*NARROW, *(WIDE if wide else ()))
        }
        read = jax.jit(lambda values: jax.tree.map(validation.exact_steps, values))(values)
        for dtype, counts in values.items():
            exact = [whole(count) for count in counts]
            assert read[dtype].dtype == jnp.float64
            have = [None if math.isnan(value) else int(value) for value in np.asarray(read[dtype]).tolist()]
            assert have == exact, dtype


@pytest.mark.parametrize("name", LEDGERS)
def test_traced_counts_and_constants_of_a_program(name):
    make, mechanism, _ = LEDGERS[name]
    ledger, constant = make(), np.int64(2**32 + 1)
    counts = np.array([1, -1, 2**31 - 1], np.int32)

    @jax.jit
    def run(counts):
        return jax.vmap(lambda count: ledger.spend(mechanism, count))(counts), ledger.spend(mechanism, constant)

    (granted, after), fixed = run(counts)
    check(name, constant, fixed[0], ledger, fixed[1])
    for i, count in enumerate(counts):
        check(name, count, granted[i], ledger, jax.tree.map(lambda leaf, i=i: leaf[i], after))


@pytest.mark.parametrize("name", LEDGERS)
def test_counts_of_a_cost(name):
    """The way past the mechanism, for a step of a loop, counts alike."""
    make, mechanism, _ = LEDGERS[name]
    ledger = make()
    cost = ledger.cost(mechanism)
    for count in numpy_counts():
        if whole(count) is None:
            with pytest.raises(ValueError, match="steps"):
                ledger.spend_cost(cost, count)
        else:
            granted, after = ledger.spend_cost(cost, count)
            check(name, count, granted, ledger, after)


@pytest.mark.parametrize("name", LEDGERS)
def test_what_a_cost_spends_is_what_its_mechanism_does_eagerly_and_compiled(name):
    make, mechanism, _ = LEDGERS[name]
    ledger = make()
    cost = ledger.cost(mechanism)
    wanted = ledger.spend(mechanism, 3)
    for found in (ledger.spend_cost(cost, 3), jax.jit(lambda ledger, cost: ledger.spend_cost(cost, 3))(ledger, cost)):
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["ZCDPFilter", "FilterOdometer", "RenyiFilter"])
def test_several_costs_or_counts_at_once_are_refused(name):
    ledger = LEDGERS[name][0]()
    with pytest.raises(ValueError, match="shape"):
        ledger.spend_cost(jax.tree.map(lambda leaf: np.stack([leaf, leaf]), ledger.cost(NOISY)))
    for counts in ([1, 2], [1] * len(getattr(ledger, "orders", "1"))):
        with pytest.raises(ValueError, match="several"):
            ledger.spend_cost(ledger.cost(NOISY), np.array(counts))


def test_one_relation_is_meant_where_none_is_given():
    for make, mechanism, _ in LEDGERS.values():
        ledger = make()
        told, meant = (ledger.spend(mechanism, 2, relation=relation) for relation in ("add_or_remove", None))
        for ours, theirs in zip(jax.tree.leaves(told), jax.tree.leaves(meant), strict=True):
            np.testing.assert_array_equal(ours, theirs)
