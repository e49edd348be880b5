"""Wrong uses as people make them: each is an error that names what was given and says what to give instead.

One row: what is called, the exception, and what its message has to say. Nothing here gets as far as a compilation.
"""

import fractions
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja

SAMPLED = ja.PoissonSubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.01)
PLAIN = ja.Gaussian(noise_multiplier=1.0)
FIXED = ja.GaussianWithoutReplacement(noise_multiplier=1.0, sampling_rate=0.01)
MANY = ja.Gaussian(np.array([1.0, 2.0, 3.0]))


def traced(function, value):
    """Runs a function on a tracer."""
    return jax.eval_shape(function, value)


def tuned(space, trials):
    return ja.train.tune(lambda: None, space, len, trials=trials, epsilon=1.0, delta=1e-5)


WRONG = {
    # Which number goes where, and in which unit.
    "delta and epsilon swapped": (lambda: ja.epsilon(SAMPLED, 1000, 3.0), ValueError, "often an epsilon in delta's"),
    "no delta": (lambda: ja.filters.GDPFilter(3.0, 0), ValueError, r"delta = 0 is not in \(0, 1\).*1e-5, say"),
    "negative delta": (lambda: ja.epsilon(SAMPLED, 1000, -1e-5), ValueError, r"delta = -1e-05 is not in \(0, 1\)"),
    "NaN delta": (lambda: ja.rdp.epsilon(SAMPLED, 1000, np.nan), ValueError, r"delta = nan is not in \(0, 1\)"),
    "negative epsilon": (lambda: ja.delta(SAMPLED, 1000, -1.0), ValueError, "epsilon = -1.0 .* at least 0"),
    "percent for a rate": (
        lambda: ja.PoissonSubsampledGaussian(1.0, 1.5),
        ValueError,
        r"sampling_rate = 1.5 .* \(a fraction, not a percentage\)",
    ),
    "batch size for a rate": (
        lambda: ja.PoissonSubsampledGaussian(1.0, np.int64(512)),
        ValueError,
        "sampling_rate = 512 .* expected batch size over the number of examples",
    ),
    "rate 0": (
        lambda: ja.train.PoissonSampler(num_examples=100, sampling_rate=0.0, capacity=10),
        ValueError,
        r"sampling_rate = 0.0 .* \(0, 1\]",
    ),
    "batch larger than the data, in a picture": (
        lambda: ja.plot.least_noise(3.0, 1e-5, 100, epochs=[1.0], batch_sizes=[512]),
        ValueError,
        r"batch_sizes / num_examples = .*5.12.* \(0, 1\]",
    ),
    "no epochs, in a picture": (
        lambda: ja.plot.least_noise(3.0, 1e-5, 100, epochs=[0.0], batch_sizes=[10]),
        ValueError,
        "epochs = .*0.0",
    ),
    "negative rate": (lambda: ja.PoissonSubsampledLaplace(1.0, -0.1), ValueError, r"sampling_rate = -0.1 .* \[0, 1\]"),
    "epochs for steps": (
        lambda: ja.epsilon(SAMPLED, 2.5, 1e-5),
        ValueError,
        r"steps = 2.5 .* \(epochs times the number of batches an epoch\)",
    ),
    "epochs for steps, calibrating": (
        lambda: ja.calibrate.noise_multiplier(1.0, 1e-5, 0.01, 2.5),
        ValueError,
        "steps = 2.5 .* give a whole number",
    ),
    "negative steps": (lambda: ja.gdp.mu(SAMPLED, np.int32(-1)), ValueError, "steps = -1 .* at least 0"),
    "endless steps": (lambda: ja.epsilon(SAMPLED, np.inf, 1e-5), ValueError, "steps = inf .* give a whole number"),
    "steps beyond float64": (
        lambda: ja.epsilon(SAMPLED, 2**53 + 1, 1e-5),
        ValueError,
        r"steps = 9007199254740993 .* at most 2\*\*53",
    ),
    "steps beyond float64 of NumPy": (
        lambda: ja.rdp.epsilon(SAMPLED, np.int64(2**53 + 1), 1e-5),
        ValueError,
        r"steps = 9007199254740993 .* at most 2\*\*53",
    ),
    "steps beyond float64, calibrating": (
        lambda: ja.calibrate.noise_multiplier(1.0, 1e-5, 0.01, np.uint64(2**53 + 1)),
        ValueError,
        r"steps = 9007199254740993 .* at most 2\*\*53",
    ),
    "steps beyond 64 bits": (
        lambda: ja.epsilon(SAMPLED, 2**64, 1e-5),
        ValueError,
        "steps: .*64 bits do not hold: give",
    ),
    "an epsilon beyond 64 bits": (lambda: ja.PureDP(2**64), ValueError, "epsilon: .*64 bits do not hold: give a float"),
    "negative noise": (lambda: ja.Gaussian(-1.0), ValueError, "noise_multiplier = -1.0 .* over the clipping norm"),
    "one bad noise of many": (
        lambda: ja.Gaussian(jnp.array([1.0, -2.0])),
        ValueError,
        "noise_multiplier = -2.0 .* give the standard deviation",
    ),
    "calibrating with both swapped": (
        lambda: ja.calibrate.noise_multiplier(1e-5, 1.0, 0.01, 10),
        ValueError,
        r"delta = 1.0 is not in \(0, 1\)",
    ),
    "a filter with both swapped": (lambda: ja.filters.RenyiFilter(1e-5, 3.0), ValueError, "delta = 3.0 .* give the"),
    "an impossible false-positive rate": (
        lambda: ja.tradeoff.curve(SAMPLED, 10, 1.5),
        ValueError,
        r"fpr = 1.5 .* give a number in \[0, 1\]",
    ),
    "a Rényi order below 1": (lambda: ja.rdp.curve(SAMPLED, [0.5, 2.0]), ValueError, "orders .* 1"),
    "no orders": (lambda: ja.rdp.curve(SAMPLED, []), ValueError, "orders .* give a vector"),
    "batches beyond the data": (
        lambda: ja.train.PoissonSampler(num_examples=100, sampling_rate=50.0, capacity=101),
        ValueError,
        r"sampling_rate = 50.0 .*\(a fraction",
    ),
    "more bands than groups": (
        lambda: ja.train.sampling.Correlated(
            ja.train.CyclicPoissonSampler(100, 4, 0.5, 60), ja.strategies.square_root(5), steps=8
        ),
        ValueError,
        "groups = 4 are fewer than the strategy's 5 bands.* give as many groups as bands",
    ),
    "correlated noise on samples of all": (
        lambda: ja.train.sampling.Correlated(
            ja.train.PoissonSampler(100, 0.1, 60), ja.strategies.square_root(2), steps=8
        ),
        ValueError,
        "PoissonSampler may take an example into any steps.* give a CyclicPoissonSampler",
    ),
    "noise that is no strategy": (
        lambda: ja.train.sampling.Correlated(ja.train.CyclicPoissonSampler(100, 4, 0.5, 60), 8, steps=8),
        TypeError,
        "strategy = 8 is none: give one of jaxacct.strategies",
    ),
    # What is no number.
    "text for delta": (lambda: ja.epsilon(SAMPLED, 1000, "1e-5"), TypeError, "delta: expected a number, got '1e-5'"),
    "None for delta": (lambda: ja.epsilon(SAMPLED, 1000, None), TypeError, "delta = None .* give a number"),
    "None for epsilon": (lambda: ja.delta(SAMPLED, 1000, None), TypeError, "epsilon = None .* give a number"),
    "None for steps": (lambda: ja.epsilon(SAMPLED, None, 1e-5), TypeError, "steps = None .* give a number"),
    "None for steps of a curve": (lambda: ja.rdp.epsilon(SAMPLED, None, 1e-5), TypeError, "steps = None .* give a"),
    "None for noise": (
        lambda: ja.epsilon(ja.Gaussian(None), 1, 1e-5),
        TypeError,
        r"Gaussian.noise_multiplier = None .* give a number",
    ),
    "a set for noise": (
        lambda: ja.rdp.curve(ja.Gaussian({1.0}), [2.0]),
        TypeError,
        r"Gaussian.noise_multiplier = \{1.0\} .* give a number",
    ),
    "a complex delta": (lambda: ja.epsilon(SAMPLED, 1, 1e-5j), TypeError, "delta = 1e-05j .* give a number"),
    "a complex noise": (lambda: ja.Gaussian(1 + 1j), TypeError, r"noise_multiplier = \(1\+1j\) .* give a number"),
    "a complex noise of NumPy": (
        lambda: ja.Gaussian(np.complex64(1)),
        TypeError,
        "noise_multiplier: expected a number, got one of dtype complex",
    ),
    "a complex rate of JAX": (
        lambda: ja.PoissonSubsampledGaussian(1.0, jnp.array([0.1 + 0j])),
        TypeError,
        "sampling_rate: expected a number, got one of dtype complex",
    ),
    "a complex number of steps": (lambda: ja.epsilon(SAMPLED, 2 + 0j, 1e-5), TypeError, r"steps = \(2\+0j\) .* give"),
    "complex steps of NumPy": (
        lambda: ja.filters.ZCDPFilter(1.0, 1e-5).spend(PLAIN, np.complex128(2)),
        TypeError,
        "steps: expected a number, got one of dtype complex128",
    ),
    "a traced complex epsilon": (
        lambda: traced(lambda e: ja.PureDP(e).epsilon, 1j),
        TypeError,
        "epsilon: expected a number, got one of dtype complex",
    ),
    "text in an array": (lambda: ja.Laplace(np.array(["1"])), TypeError, "scale: expected a number, got one of dtype"),
    "a fraction object for steps": (
        lambda: ja.filters.GDPFilter(1.0, 1e-5).spend(PLAIN, fractions.Fraction(4)),
        TypeError,
        r"steps = Fraction\(4, 1\) .* give a number",
    ),
    "yes for noise": (lambda: ja.Gaussian(True), TypeError, "noise_multiplier: expected a number, got True"),
    "text for a rate": (lambda: ja.PoissonSubsampledGaussian(1.0, "1%"), TypeError, "sampling_rate: expected a number"),
    "a list for noise": (lambda: ja.Gaussian([1.0, 2.0]), TypeError, r"noise_multiplier: .* give numpy.array"),
    "a list for steps": (lambda: ja.epsilon(MANY, [1, 2, 3], 1e-5), TypeError, r"steps: .* give numpy.array"),
    "text for a tolerance": (
        lambda: ja.prv.epsilon(SAMPLED, 10, 1e-5, tolerance="1e-3"),
        TypeError,
        "tolerance: expected a number",
    ),
    "a fraction of an outcome": (
        lambda: ja.RandomizedResponse(1.0, outcomes=2.5),
        TypeError,
        "outcomes = 2.5 .* as a Python integer",
    ),
    "half a sensitivity": (
        lambda: ja.DiscreteLaplace(1.0, sensitivity=0.5),
        TypeError,
        "sensitivity = 0.5 .* as a Python integer",
    ),
    # What is no mechanism.
    "a number for a mechanism": (lambda: ja.epsilon(1.0, 1000, 1e-5), TypeError, "mechanism = 1.0 .* give one of"),
    "a name for a mechanism": (lambda: ja.prv.delta("gaussian", 1, 1.0), TypeError, "'gaussian' .* give one of"),
    "a class for a mechanism": (lambda: ja.epsilon(ja.Gaussian, 1, 1e-5), TypeError, "Gaussian.* give one of"),
    "a number spent": (lambda: ja.filters.RenyiFilter(3.0, 1e-5).spend(1.0), TypeError, "mechanism = 1.0 .* give one"),
    "no mechanisms": (lambda: ja.epsilon((), (), 1e-5), ValueError, "nothing to compose: give at least one"),
    # Shapes.
    "several deltas": (
        lambda: ja.epsilon(SAMPLED, 10, np.array([1e-5, 1e-6])),
        ValueError,
        r"of shape \(2,\): give a scalar, and use jax.vmap",
    ),
    "steps for one mechanism": (
        lambda: ja.epsilon(SAMPLED, np.array([10, 20]), 1e-5),
        ValueError,
        r"steps of shape \(2,\) do not match a mechanism of shape \(\): .* use jax.vmap",
    ),
    "steps of another length": (
        lambda: ja.epsilon(MANY, np.array([10, 20]), 1e-5),
        ValueError,
        r"steps of shape \(2,\) do not match a mechanism of shape \(3,\)",
    ),
    "a table of mechanisms": (lambda: ja.epsilon(ja.Gaussian(np.ones((2, 2))), 1, 1e-5), ValueError, "use jax.vmap"),
    "fields of different lengths": (
        lambda: ja.epsilon(ja.PoissonSubsampledGaussian(np.ones(3), np.full(2, 0.1)), 1, 1e-5),
        ValueError,
        r"fields of shapes \(3,\), \(2,\), .* give scalars",
    ),
    "one number of steps for two": (lambda: ja.epsilon((PLAIN, SAMPLED), 3, 1e-5), ValueError, "give a tuple with one"),
    "too few steps": (lambda: ja.epsilon([PLAIN, SAMPLED], [3], 1e-5), ValueError, "do not match 2 .* give a tuple"),
    "a filter of two budgets": (
        lambda: ja.filters.RenyiFilter(np.array([1.0, 2.0]), 1e-5),
        ValueError,
        r"epsilon of shape \(2,\): give a scalar",
    ),
    "weights of another length": (
        lambda: ja.GaussianMixture(1.0, [1.0, 2.0], [1.0]),
        ValueError,
        "do not match .* give one probability for each",
    ),
    "outcomes of another length": (
        lambda: ja.DiscretePair([0.5, 0.5], [0.5, 0.25, 0.25]),
        ValueError,
        "differ: give a probability of each",
    ),
    "probabilities that miss some": (
        lambda: ja.DiscretePair([0.5, 0.4], [0.5, 0.5]),
        ValueError,
        "p sums to one only within 0.1: give",
    ),
    # Neighbours.
    "another library's word": (
        lambda: ja.epsilon(SAMPLED, 1, 1e-5, relation="substitute"),
        ValueError,
        "relation = 'substitute' .* give one of 'add_or_remove', 'remove', 'add', 'replace'",
    ),
    "a relation that has no proof": (
        lambda: ja.prv.epsilon(FIXED, 1, 1e-5),
        ValueError,
        "'add_or_remove' is not supported by GaussianWithoutReplacement: give one of 'replace'",
    ),
    "relations that do not mix": (
        lambda: ja.epsilon((SAMPLED, FIXED), (1, 1), 1e-5),
        ValueError,
        "'add_or_remove' is not supported by GaussianWithoutReplacement: give one of 'replace'",
    ),
    "several relations": (
        lambda: ja.rdp.epsilon(SAMPLED, 1, 1e-5, relation=["add", "remove"]),
        ValueError,
        "relation .* give one of 'add_or_remove'",
    ),
    # Options, and what may be traced.
    "a mesh of any size": (lambda: ja.prv.epsilon(SAMPLED, 1, 1e-5, points=1000), ValueError, "give a power of two"),
    "a mesh in floating point": (
        lambda: ja.prv.epsilon(SAMPLED, 1, 1e-5, points=1024.0),
        TypeError,
        "points = 1024.0 .* as a Python integer",
    ),
    "tolerance and mesh": (
        lambda: ja.epsilon(SAMPLED, 1, 1e-5, tolerance=1e-3, points=1024),
        ValueError,
        "both given: give the gap wanted, or",
    ),
    "an unknown method": (
        lambda: ja.prv.epsilon(SAMPLED, 1, 1e-5, method="fft"),
        ValueError,
        "give one of 'recursive'",
    ),
    "an unknown conversion": (
        lambda: ja.rdp.epsilon(SAMPLED, 1, 1e-5, conversion="moments"),
        ValueError,
        "give one of 'optimal'",
    ),
    "a traced mesh": (
        lambda: traced(lambda points: ja.prv.epsilon(SAMPLED, 1, 1e-5, points=points), 1024),
        TypeError,
        "points .* as a Python integer",
    ),
    "a traced tolerance": (
        lambda: traced(lambda gap: ja.prv.epsilon(SAMPLED, 1, 1e-5, tolerance=gap), 1e-3),
        ValueError,
        "tolerance .* cannot be used inside jit.*give points",
    ),
    "a tolerance inside a trace": (
        lambda: traced(lambda s: ja.epsilon(ja.Gaussian(s), 1, 1e-5, tolerance=1e-3), 1.0),
        ValueError,
        "tolerance = 0.001 cannot be used inside jit.*give points",
    ),
    "more participations than batches": (
        lambda: ja.RandomAllocation(1.0, 10, participations=11),
        ValueError,
        "participations = 11 .* give how many of the batches hold an example, from 1 to 10",
    ),
    "several participations as one pair": (
        lambda: ja.RandomAllocation(1.0, 10, participations=3).dominating_pairs(),
        ValueError,
        "participations = 3 .* give this to what composes",
    ),
    "draws of what has a bracket": (
        lambda: ja.monte_carlo.delta(PLAIN, 1, 1.0),
        TypeError,
        "is not drawn here: give RandomAllocation or monte_carlo.BallsInBins",
    ),
    "draws with next to no noise": (
        lambda: ja.monte_carlo.delta(ja.RandomAllocation(0.01, 10), 1, 1.0),
        ValueError,
        "noise_multiplier = 0.01 .* give one mechanism",
    ),
    "draws of sums that float64 does not hold": (
        lambda: ja.monte_carlo.delta(ja.RandomAllocation(20.0, 1200, participations=600), 1, 0.5),
        ValueError,
        "participations = 600 of 1200 batches .* beyond float64",
    ),
    "balls in bins replaced": (
        lambda: ja.monte_carlo.delta(
            ja.monte_carlo.BallsInBins(ja.strategies.square_root(bands=2), 1.0, 4), 1, 1.0, relation="replace"
        ),
        ValueError,
        "relation = 'replace' is not supported by BallsInBins",
    ),
    "reconstruction where the example is known": (
        lambda: ja.tradeoff.TradeOff(PLAIN, 1, "add").reconstruction(0.01),
        ValueError,
        'relation = "add" .* give "remove"',
    ),
    "traced outcomes": (
        lambda: traced(lambda k: ja.RandomizedResponse(1.0, k).epsilon, 3),
        TypeError,
        "outcomes .* as a Python integer",
    ),
    "a traced relation": (
        lambda: traced(lambda r: ja.epsilon(SAMPLED, 1, 1e-5, relation=r), 1.0),
        ValueError,
        "relation .* give one of 'add_or_remove'",
    ),
    "a number for a law": (
        lambda: ja.epsilon(ja.RepeatAndSelect(PLAIN, 1, 10.0), 1, 1e-5),
        TypeError,
        "trials = 10.0 is no law: give one of jaxacct.selection",
    ),
    "two laws of trials": (
        lambda: ja.epsilon(ja.RepeatAndSelect(PLAIN, 1, ja.selection.Poisson(np.array([3.0, 4.0]))), 1, 1e-5),
        ValueError,
        "has arrays, and is one law",
    ),
    "half a trial": (lambda: ja.selection.Poisson(0.5), ValueError, "mean = 0.5 is not an .* give one from 1"),
    "trials that are not whole": (lambda: ja.selection.Fixed(2.5), ValueError, "count = 2.5 .* give a whole one"),
    "a search for nothing": (lambda: tuned([], ja.selection.Fixed(2)), ValueError, "space is empty: give at least one"),
    "so many trials": (lambda: tuned([1], 10), TypeError, "trials = 10 is no law: give one of jaxacct.selection"),
    "several traced deltas": (
        lambda: traced(lambda d: ja.epsilon(SAMPLED, 1, d), np.array([1e-5, 1e-6])),
        ValueError,
        r"of shape \(2,\): give a scalar, and use jax.vmap",
    ),
}


@pytest.mark.parametrize("wide", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("case", WRONG)
def test_says_what_is_wrong_and_what_to_do(case, wide):
    call, kind, message = WRONG[case]
    with jax.enable_x64(wide), pytest.raises(kind, match=f"(?s){message}") as caught:
        call()
    assert type(caught.value) is kind  # an error of this library, not a subclass that JAX raises
    assert re.search(r"\bgive\b|\buse jax.vmap\b|\bexpected a number\b", str(caught.value))


def test_placeholders_of_jax_stay_allowed():
    """Only what is called asks for numbers: JAX fills pytrees with axes, None and objects of its own."""
    assert jax.tree.map(lambda leaf: None, SAMPLED, is_leaf=lambda leaf: False) == ja.PoissonSubsampledGaussian(
        None, None
    )
    axes = ja.PoissonSubsampledGaussian(noise_multiplier=0, sampling_rate=None)
    doubled = jax.vmap(lambda mechanism: 2 * mechanism.noise_multiplier, in_axes=(axes,))(
        ja.PoissonSubsampledGaussian(np.array([1.0, 2.0]), 0.01)
    )
    assert doubled.tolist() == [2.0, 4.0]
