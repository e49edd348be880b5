"""Are numbers of NumPy and JAX taken for the numbers that they are, whatever their type, and before they could wrap?"""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers.registered import MECHANISMS, registered
from helpers.thorough import cases

import jaxacct as ja
from jaxacct import audit, calibrate, monte_carlo, policies, rdp, selection, strategies
from jaxacct.adapters import events
from jaxacct.mechanisms.discrete_gaussian import DiscreteGaussianPair
from jaxacct.mechanisms.mechanism import parts_of
from jaxacct.train import Metrics, sampling, settings
from jaxacct.train.clipping import AdaptiveQuantile, Automatic, Flat, PerLayer
from jaxacct.train.planned import PlannedLedger

WHOLE = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "float32", "float64", ml_dtypes.bfloat16)


def forms(value, dtypes=WHOLE):
    """Yields a number in each type that holds it: as a scalar of NumPy, and as arrays of NumPy and of JAX."""
    for dtype in dtypes:
        with np.errstate(over="ignore"):
            array = np.asarray(value).astype(dtype)
        if float(array) == value:
            yield array[()]
            yield array
            if jnp.asarray(array).dtype == array.dtype:
                yield jnp.asarray(array)


def kinds_of(cls, *, static):
    """Returns the names of the fields annotated as whole numbers, as floats and as flags."""
    found = {"int": [], "float": [], "bool": []}
    for field in dataclasses.fields(cls):
        kind = field.type.split(" |")[0] if isinstance(field.type, str) else field.type.__name__
        if field.init and kind in found and (not static or field.metadata.get("static")):
            found[kind].append(field.name)
    return found


STATIC = [
    *(made for name, made in MECHANISMS.items() if not name.startswith("MatrixMechanism")),
    *(strategies.SinglePass(8), strategies.MinSeparation(8, 2, 3), strategies.FixedEpochs(4, 2)),
    *(strategies.CyclicPoisson(8, 4, 0.1), strategies.HonakerTree(4), AdaptiveQuantile(1.0)),
    strategies.Restarted(strategies.identity(), 100),
    *(PlannedLedger(np.int32(0), 4, 2.0), DiscreteGaussianPair(1.0), ja.RandomAllocation(1.0, 200, 128, 100)),
    *(ja.DiscreteGaussian(3000.0, 2**16, 2**17), ja.RandomizedResponse(0.5, 100)),
]
"""Instances of every class with static numbers that users make."""

INTERNAL = {"SearchAim", "Diagnostics", "Looked", "Query", "Weight", "MatrixMechanism", "NestedAllocation"}
INTERNAL |= {"AllocatedFromBelow", "HistogramsFromBelow"}
"""Classes whose static numbers are never a user's: the code makes them."""

PLAIN = [
    *(sampling.PoissonSampler(100, 0.1, 60, 90), sampling.TruncatedPoissonSampler(100, 0.1, 20)),
    *(sampling.WithoutReplacementSampler(100, 10), sampling.CyclicPoissonSampler(100, 4, 0.5, 60)),
    *(sampling.RandomAllocationSampler(100, 10, 60, 2), Metrics()),
    *(policies.Constant(1.1, 0.01), policies.Schedule(lambda step: 1.0, 0.01)),
    policies.SpendRemaining(sampling_rate=0.01, steps=100, period=10),
    policies.AdaptiveNoise(sampling_rate=0.01, initial=2.0, increment=0.1, least=1.0, period=97),
    policies.AdaptiveBatchSize(noise_multiplier=1.0, num_examples=50_000, increment=128.0, period=97),
    policies.EarlyStopping(policies.Constant(1.0, 0.01), period=98, target=4.0, patience=3),
    *(audit.AuditSettings(), sampling.BallsInBinsSampler(100, 10, 60, 1, 2)),
]
"""Instances of the dataclasses of settings that users make, which are no pytrees."""


def check_conversions(made, *, static):
    names = kinds_of(type(made), static=static)
    count = 0
    for kind, dtypes in (("int", WHOLE), ("float", FLOATS)):
        for name in names[kind]:
            value = getattr(made, name)
            if value is None:
                continue
            for given in forms(value, dtypes):
                stored = getattr(dataclasses.replace(made, **{name: given}), name)
                assert type(stored) is {"int": int, "float": float}[kind], (type(made), name, given)
                assert stored == value
                count += 1
            for flag in (True, np.True_, np.array(True), jnp.array(True)):
                with pytest.raises(TypeError, match=name):
                    dataclasses.replace(made, **{name: flag})
    for name in names["bool"]:
        for given in (np.True_, np.array(True), jnp.array(True)):
            assert getattr(dataclasses.replace(made, **{name: given}), name) is True
    return count


def test_static_fields_become_numbers_of_python():
    """One hash, one program: what equals is the same number of Python, and its kind is the field's."""
    with_static = {
        kind.__name__ for kind in registered() if any(kinds_of(kind, static=True).values()) and kind.__name__[0] != "_"
    }
    assert with_static <= {type(made).__name__ for made in STATIC} | INTERNAL
    count = sum(check_conversions(made, static=True) for made in STATIC)
    assert count > 600
    for name in ("sensitivity", "reach"):
        with pytest.raises(TypeError, match=f"{name} = 2.0"):
            ja.DiscreteGaussian(2.0, **{name: 2.0})
    with pytest.raises(TypeError, match="monotone = 'no'"):
        ja.AboveThreshold(4.0, 8.0, monotone="no")
    with pytest.raises(TypeError, match="size = a traced number"):
        jax.eval_shape(lambda size: ja.PoissonSubsampledGroup(1.0, 0.1, size).scale, 3)


def test_settings_that_are_no_pytrees_become_numbers_of_python():
    count = sum(check_conversions(made, static=False) for made in PLAIN)
    assert count > 500


def test_numbers_of_mechanisms_become_float64_or_whole_numbers_of_python():
    """Of a number of few digits the value that it holds counts: what is stored is that, with nothing lost."""
    count = 0
    for made in (*MECHANISMS.values(), selection.Binomial(20, 0.5), selection.TruncatedNegativeBinomial(10.0, 0.5),
                 selection.Poisson(10.0), Flat(0.5), Automatic(1.0)):  # fmt: skip
        if isinstance(made, ja.MatrixMechanism):
            continue
        for field in dataclasses.fields(made):
            value = getattr(made, field.name)
            if not field.init or field.metadata.get("static") or not isinstance(value, (int, float)):
                continue
            for given in forms(value, (*FLOATS, *WHOLE)):
                stored = getattr(dataclasses.replace(made, **{field.name: given}), field.name)
                is_whole = jnp.issubdtype(given.dtype, jnp.integer)
                assert type(stored) is (int if is_whole else np.float64), (type(made), field.name, given.dtype)
                assert stored == value
                count += 1
            if field.name == "parameters":  # of a user's functions: anything, until an accountant is asked
                continue
            for flag in (True, np.True_, np.array(True), jnp.array(True)):
                with pytest.raises(TypeError):
                    dataclasses.replace(made, **{field.name: flag})
    assert count > 500
    for dtype in FLOATS:
        rounded = np.asarray(0.1).astype(dtype)
        assert ja.Gaussian(rounded).noise_multiplier == np.float64(rounded)
        strategy = ja.strategies.identity()
        matrix = ja.MatrixMechanism(strategy, rounded, ja.strategies.SinglePass(4))
        assert matrix == ja.MatrixMechanism(strategy, float(rounded), ja.strategies.SinglePass(4))
    many = ja.Gaussian(jnp.array([1, 200], jnp.uint8)).noise_multiplier
    assert (many.dtype, many.tolist()) == (np.float64, [1.0, 200.0])
    assert PerLayer((np.float16(0.5), np.int8(2)), (("a",), ("b",))).clip_norms == (0.5, 2)
    assert ja.RepeatAndSelect((ja.Gaussian(5.0),), (np.uint8(200),), selection.Geometric(10.0)).steps == (200,)


def spelled(function, *args, **kwargs):
    """Returns a result as text, all digits of it."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), function(*args, **kwargs))


CALLS = {
    "group": (lambda size: ja.group(ja.DiscreteLaplace(10.0, 3), size), 200),
    "group of a sampled sum": (lambda size: ja.group(ja.PoissonSubsampledGaussian(1.0, 0.01), size), 100),
    "group of a group": (lambda size: ja.group(ja.group(ja.DiscreteLaplace(10.0), size), size), 100),
    "group of a Gaussian": (lambda size: ja.group(ja.Gaussian(4.0), size), 100),
    "group of a pure guarantee": (lambda size: ja.group(ja.PureDP(0.1), size), 100),
    "square root": (lambda bands: strategies.square_root(bands), 100),
    "pattern": (lambda steps: strategies.FixedEpochs(steps, steps).pattern, 100),
    "cycles": (lambda steps: strategies.CyclicPoisson(steps, 3, 0.1).cycles, 100),
    "sensitivity": (
        lambda steps: ja.MatrixMechanism(strategies.square_root(8), 1.0, strategies.MinSeparation(steps, 9)), 100
    ),
    "batches without replacement": (
        lambda n: ja.GaussianWithReplacement.for_batches(1.5, 1000, n), 100
    ),
    "truncated batches": (
        lambda n: ja.TruncatedPoissonGaussian.for_batches(1.0, 0.5, n, n), 100
    ),
    "guesses": (lambda n: audit.guess(np.arange(200.0), n), 100),
    "masses of a group in a batch": (lambda n: ja.WithoutReplacementGroup(1.5, 1000, n, 3).masses(), 100),
    "apart": (
        lambda n: [count for _, count in parts_of(ja.RandomAllocation(1.0, 100, participations=n), n)], 100
    ),
    "apart, batches": (lambda n: parts_of(ja.RandomAllocation(300.0, n, participations=3), 100), 101),
    "law": (lambda n: selection.Binomial(n, 0.5).mean, 200),
    "overflow": (lambda n: sampling.PoissonSampler(n, 0.5, n).overflow_probability, 100),
    "budget": (
        lambda n: sampling.PoissonSampler.for_budget(n, 0.1, epsilon=1.0, delta=1e-5, steps=n), 100
    ),
    "history": (lambda n: events.from_history([(1.0, 0.01, n), (1.0, 0.01, n)]), 100),
}  # fmt: skip
"""Calls of a count that compile next to nothing, with a value that its square does not fit into 8 bits."""


@pytest.mark.parametrize("name", CALLS)
def test_a_count_gives_one_result_in_every_type(name):
    call, value = CALLS[name]
    expected = spelled(call, value)
    for given in forms(value):
        assert spelled(call, given) == expected, type(given)
    for flag in (True, np.True_):
        with pytest.raises(TypeError):
            call(flag)


def test_floats_give_one_result_in_every_type():
    """Python divides: in half precision 100 of 70,000 examples would be none."""
    for dtype in FLOATS:
        number = np.asarray(100.0).astype(dtype)
        assert settings.drawn_rate(None, number, 70_000) == 1 / 700
        assert sampling.PoissonSampler(70_000, np.asarray(0.5).astype(dtype), 50_000).expected_batch_size == 35_000


def test_public_functions_take_the_types_of_python_they_name():
    """Functions that name an int or a float among their arguments convert it, but for those that compute in float64."""
    for function in (calibrate.user_level, monte_carlo.delta, ja.train.DPTrainer.__init__, ja.train.tune):
        named = [p.annotation for p in inspect.signature(function).parameters.values()]
        assert any(str(kind).split(" |")[0] in ("int", "float") for kind in named)
        assert inspect.unwrap(function) is not function


STEPS = [np.uint8(64), np.int8(64), np.uint16(64), ml_dtypes.bfloat16(64), np.float16(64), jnp.uint8(64), np.array(64)]


@pytest.mark.first_tier("uint8-uint8")
@pytest.mark.parametrize(
    "steps",
    cases(STEPS[:2] + STEPS[3:4], STEPS[2:3] + STEPS[4:]),
    ids=lambda steps: f"{type(steps).__name__}-{steps.dtype}",
)
def test_numbers_of_runs_are_multiplied_as_numbers(steps):
    """An example in all four batches of an epoch takes part 256 times in 64 epochs, and not 0 times."""
    epochs = ja.RandomAllocation(1.0, 4, participations=4)
    for count in (steps, 64):
        assert str(ja.epsilon(epochs, count, 1e-5)) == "[195.3524, 195.3525]"
    assert rdp.composed_curve(epochs, steps, [2.0]) == rdp.composed_curve(epochs, 64, [2.0]) > 255


def test_a_filter_multiplies_runs_as_numbers():
    granted, spent = ja.filters.GDPFilter(1.0, 1e-5).spend(ja.RandomAllocation(1.0, 4, participations=4), np.uint8(64))
    assert not bool(granted)
    assert float(spent.spent) == 0


def test_a_plan_does_not_take_many_runs_for_one():
    """In 32 bits 2^32 + 1 is 1."""
    ledger = PlannedLedger.of(np.int8(2), certified=np.float32(0.5))
    for runs in (2**32 + 1, np.int64(2**32 + 1), np.uint64(2**32 + 1), 2.0**32 + 1, np.uint32(2**32 - 1)):
        assert not bool(ledger.spend(runs)[0])
    with jax.enable_x64(True):
        assert not bool(jax.jit(ledger.spend)(np.int64(2**32 + 1))[0])
    for runs in forms(2, (*WHOLE, *FLOATS)):
        granted, after = ledger.spend(runs)
        assert (bool(granted), int(after.made), after.made.dtype) == (True, 2, np.int32)


def test_a_pattern_of_narrow_numbers_is_the_same_pattern():
    """The third participation is at step 200, and not at 200 - 256."""
    strategy = strategies.square_root(4)
    expected = strategy.sensitivity(strategies.Pattern(250, 100, 3))
    for dtype in ("uint8", "int16", "uint64"):
        assert strategy.sensitivity(strategies.Pattern(*np.array([250, 100, 3], dtype))) == expected


def test_a_wrapped_number_leaves_no_program_behind():
    """np.int32(65536) equals 65536, and once made JAX's caches run its wrapped program for it."""
    first = ja.DiscreteGaussian(3000.0, sensitivity=np.int32(65536), reach=2**17)
    then = ja.DiscreteGaussian(3000.0, sensitivity=65536, reach=2**17)
    exact = 2.0 * 65536**2 / (2 * 3000.0**2)  # of continuous noise, which discrete noise is nearly here
    assert [float(rdp.curve(made, [2.0])[0]) for made in (first, then)] == [pytest.approx(exact, rel=1e-9)] * 2


def test_traced_numbers_of_narrow_types_do_not_wrap():
    """Under jit Python sees no value, and the numbers of batches and runs are multiplied by the program."""

    def blocks(batches, steps):
        return [
            (part.batches if isinstance(part, ja.RandomAllocation) else 0, count)
            for part, count in ja.RandomAllocation(300.0, batches, participations=3).decompose(steps)
        ]

    counted = [(int(size), int(count)) for size, count in blocks(250, 200) if count]
    for dtype in ("uint8", "float16", "int16", ml_dtypes.bfloat16):
        found = jax.jit(blocks)(np.asarray(250).astype(dtype), np.asarray(200).astype(dtype))
        assert [(int(size), int(count)) for size, count in found if count] == counted, dtype


# The narrow ones are those in which a product of two such numbers does not fit.
NARROW = ("uint8", "int8", "float16", ml_dtypes.bfloat16, "float32")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", cases(NARROW, [each for each in (*WHOLE, *FLOATS) if each not in NARROW]), ids=str)
def test_traced_numbers_of_every_type(dtype):
    def divergence(batches, steps):
        return rdp.composed_curve(ja.RandomAllocation(300.0, batches, participations=3), steps, [2.0])

    value = 120
    expected = divergence(value, value)
    with jax.enable_x64(True):
        given = jnp.asarray(value, dtype)
        assert jax.jit(divergence)(given, given) == pytest.approx(expected, rel=1e-6)
        granted, spent = jax.jit(lambda steps: ja.filters.ZCDPFilter(1e6, 1e-5).spend(ja.Gaussian(0.5), steps))(given)
    assert bool(granted)
    assert float(spent.spent) == pytest.approx(0.5 * 4 * value, rel=1e-5)


ASKED = {
    "epsilon": lambda m, k, relation: ja.epsilon(m, k, 1e-5, relation=relation),
    "prv": lambda m, k, relation: ja.prv.epsilon(m, k, 1e-5, points=4096, relation=relation),
    "rdp": lambda m, k, relation: rdp.epsilon(m, k, 1e-5, relation=relation),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("verb", cases(["rdp"], [verb for verb in ASKED if verb != "rdp"]))
def test_every_mechanism_counts_alike_in_every_type(verb, name):
    """First in one type and then in Python's, and the other way round: one number, digit by digit."""
    mechanism, value = MECHANISMS[name], 100
    relation = mechanism.relations[0]

    def answer(steps):
        try:
            return spelled(lambda: ASKED[verb](mechanism, steps, relation))
        except ValueError as error:  # the same one in every type: no pair, or no epsilon
            return str(error).replace(f"{steps}", "steps")

    first = answer(np.int8(value))
    expected = answer(value)
    assert first == expected
    for given in forms(value, (*WHOLE, *FLOATS)):
        assert answer(given) == expected, given.dtype
