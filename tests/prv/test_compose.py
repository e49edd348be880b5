"""The parts of a composition, as inequalities: masses, positions, moments, spectra, what is read off, lattices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import draws

import jaxacct as ja
from jaxacct.composition import ForDelta, ForEpsilon, directed_parts, facts_of
from jaxacct.numerics.precision import scope
from jaxacct.prv import accountant, compose, plan

POINTS = 512
RUNS = np.random.default_rng(5).uniform([-0.4, -8.0, 0.0, -16.0], [1.2, -1.5, 15.0, -7.0], (draws(8, 60), 4))

KINDS = {
    "remove": (ja.PoissonSubsampledGaussian(0.8, 0.01), "remove"),
    "rare": (ja.PoissonSubsampledGaussian(1.5, 1e-5), "remove"),
    "add": (ja.PoissonSubsampledGaussian(0.8, 0.3), "add"),
    "gaussian": (ja.Gaussian(5.0), "remove"),
    "laplace": (ja.Laplace(3.0), "remove"),
    "sampled laplace": (ja.PoissonSubsampledLaplace(0.7, 0.05), "remove"),
    "integers": (ja.DiscreteGaussian(3.0), "remove"),
    "outcomes": (ja.RandomizedResponse(0.7), "remove"),
    "without replacement": (ja.GaussianWithoutReplacement(1.3, 0.01), "replace"),
}


def asked_of(parts, value=1e-6, is_epsilon=True):
    question = ForEpsilon(jnp.asarray(value)) if is_epsilon else ForDelta(jnp.asarray(value))
    return accountant.asked_of(facts_of(parts), question, accountant.aimed_at(type(question), POINTS))


@pytest.mark.parametrize("run", np.exp(RUNS).tolist())
def test_brackets_hold_the_exact_ones(run):
    noise, rate, steps, delta = run
    mechanism, steps = ja.PoissonSubsampledGaussian(noise, rate), int(np.ceil(steps))
    exact = ja.saddlepoint.epsilon(mechanism, steps, delta, relation="remove")
    bounds = ja.prv.epsilon(mechanism, steps, delta, relation="remove", points=POINTS)
    assert bounds.lower <= exact.upper
    assert bounds.upper >= exact.lower


def test_cost_does_not_grow_with_the_steps():
    mechanism = ja.PoissonSubsampledGaussian(1.0, 0.8e-4)
    for steps in (10**4, 10**6, 10**8):
        bounds = ja.prv.epsilon(mechanism, steps, 1e-5, relation="remove", points=POINTS)
        exact = ja.saddlepoint.epsilon(mechanism, steps, 1e-5, relation="remove")
        assert bounds.lower <= exact.upper
        assert bounds.upper >= exact.lower
        assert bounds.gap < 3e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
def test_masses_lie_above_and_below_the_pair(name):
    """At every epsilon, negative ones too: delta of the masses is on its side of that of the pair."""
    mechanism, relation = KINDS[name]
    with scope():
        ((pairs, counts),) = directed_parts(mechanism, 3, relation)[0]

        @jax.jit
        def found(pairs, counts):
            parts = ((pairs, counts),)
            chosen, _, masses = compose.masses_of(parts, asked_of(parts), POINTS)
            return chosen, masses, compose.losses_of(chosen)

        chosen, masses, losses = jax.device_get(found(pairs, counts))
        pair = jax.tree.map(lambda leaf: leaf[0], pairs)
        assert np.all(chosen.positions == np.round(chosen.positions))
        assert np.all(np.diff(chosen.positions[0]) >= 1)
        upper, lower, y = masses.upper[0], masses.lower[0], losses[0]
        lost, shift = float(masses.lost[0]), float(masses.wrong[0] + masses.relaxed[0])
        inside = y[(upper > 0) | (lower > 0)]
        generator = np.random.default_rng(3)
        at = np.sort(np.concatenate([generator.choice(inside, 12), generator.uniform(inside[0], inside[-1], 12)]))

        def true(e):
            cells = pair.cell_masses(jnp.stack([e, jnp.full_like(e, jnp.inf)]))
            return cells.p[0] - jnp.exp(e) * cells.q[0]

        truth = np.asarray(jax.jit(jax.vmap(true))(jnp.asarray(at)))

    def delta(masses, e, moved):
        over = y + moved - e
        return np.sum(np.where(over > 0, masses * -np.expm1(-np.maximum(over, 0)), 0.0))

    for e, t in zip(at, truth, strict=True):
        rounding = 1e-13 * (1 + np.exp(e))
        assert delta(upper, e, shift) + lost + rounding >= t
        assert delta(lower, e, -shift) - rounding <= t
    # And near it: what a step's masses are for.
    near = [delta(upper, e, 0) + lost - delta(lower, e, 0) for e in at]
    assert np.max(near) < 0.02


def test_a_table_of_powers_is_exact():
    with scope():
        found = np.asarray(plan.power_of_two(jnp.arange(-1022.0, 1024.0)))
    assert np.all(found == np.ldexp(1.0, np.arange(-1022, 1024)))


def random_step(generator, points=256):
    spacing = 2.0 ** generator.integers(0, 5, points)
    positions = np.concatenate([[0.0], np.cumsum(spacing)[:-1]])
    return positions - positions[points // 2], generator.dirichlet(np.full(points, 0.3), 2)


def test_spectra_fall_as_the_overlaps_say():
    """|phi(w)| <= sum of the weights - (1 - cos mw) H_m, at any w and for any weights."""
    generator = np.random.default_rng(3)
    positions, weights = random_step(generator)
    with scope():
        overlaps = np.asarray(jax.jit(compose.overlaps_of)(weights, positions))
    angles = generator.uniform(0, np.pi, 200)
    moduli = np.abs(np.exp(1j * angles[:, None] * positions) @ weights.T)
    falls = (1 - np.cos(angles[:, None] * compose.RUNGS))[..., None] * overlaps.T
    assert np.all(moduli <= 1 - np.max(falls, axis=1) + 1e-12)
    assert np.max(overlaps) > 0.01
    # No more than all pairs of points that are so far apart have.
    a, b = weights[:, :, None], weights[:, None, :]
    pairs, apart = a * b / (a + b) / 2, positions[None, :] - positions[:, None]
    every = np.stack([np.sum(pairs * (apart == m), axis=(1, 2)) for m in compose.RUNGS], axis=1)
    assert np.all(overlaps <= every * (1 + 1e-9))
    # Between the ends of intervals of frequencies one of the distances gains 3/2 everywhere.
    least = np.min(np.max(np.where(compose.ENDS[:, None] * compose.RUNGS < 2 * np.pi, np.minimum(
        1 - np.cos(compose.ENDS[:, None] * compose.RUNGS),
        1 - np.cos(np.append(compose.ENDS[1:], 0.0)[:, None] * compose.RUNGS)), 0.0), axis=1)[:-1])  # fmt: skip
    assert least > 1.4


@pytest.mark.exhaustive
def test_overlaps_are_those_of_nearly_all_pairs_of_a_lattice_as_it_is_laid():
    points = 512
    with scope():
        parts = directed_parts(ja.PoissonSubsampledGaussian(1.0, 0.01), 1000, "remove")[0]
        asked = plan.Asked(*map(jnp.asarray, (1e-5, True, 1e-3, 0.0)))
        chosen, _, masses = jax.jit(lambda parts: compose.masses_of(parts, asked, points))(parts)
        weights = np.stack([masses.upper[0], masses.lower[0]])
        weights = weights * np.exp(float(chosen.order) * np.asarray(compose.losses_of(chosen))[0])
        weights, positions = weights / weights.sum(axis=1, keepdims=True), np.asarray(chosen.positions[0])
        overlaps = np.asarray(jax.jit(compose.overlaps_of)(weights, positions))
    a, b = weights[:, :, None], weights[:, None, :]
    pairs = np.divide(a * b / 2, a + b, out=np.zeros((2, points, points)), where=a + b > 0)
    apart = positions[None, :] - positions[:, None]
    every = np.stack([np.sum(pairs * (apart == m), axis=(1, 2)) for m in compose.RUNGS], axis=1)
    assert np.all(overlaps <= every * (1 + 1e-9))
    assert np.all(overlaps[:, :9] >= 0.9 * every[:, :9])


@pytest.mark.parametrize("is_whole", [True, False])
def test_errors_of_spectra_hold(is_whole):
    generator = np.random.default_rng(7)
    positions, weights = random_step(generator)
    length = compose.CIRCLE * 256 if is_whole else 123_457.0
    numbers = [jnp.zeros(())] * 11
    with scope():
        chosen = plan.Plan(*numbers)._replace(is_whole=jnp.asarray(is_whole), length=jnp.asarray(length))
        (real, imaginary), error, _ = jax.device_get(
            jax.jit(lambda w, p: compose.spectrum_of(256, w, p, chosen))(weights, positions)
        )
    known = real.shape[1] if is_whole else plan.frequencies_for(256)
    turns = (np.arange(known)[:, None] * positions[None]) % length / np.longdouble(length)
    exact = np.exp(2j * np.pi * turns.astype(np.clongdouble)) @ weights.T.astype(np.clongdouble)
    off = np.abs((real + 1j * imaginary)[:, :known] - exact.T)
    assert np.max(off) <= error
    assert np.max(off) > 1e-19


def test_moments_are_bounds():
    generator = np.random.default_rng(9)
    positions, weights = random_step(generator)
    weights[:, :40] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    for rate in (1e-5, 1e-3):
        with scope():
            found = np.asarray(jax.jit(compose.log_moments)(weights, positions, rate, np.zeros(2)))
        rates = np.concatenate([plan.RATES, -plan.RATES]) * rate
        exponents = rates[None, :, None].astype(np.longdouble) * positions
        exact = np.log(np.sum(weights[:, None].astype(np.longdouble) * np.exp(exponents), axis=2))
        assert np.all(found >= exact - 1e-18)
        assert np.all(found <= exact + 1e-9 * (1 + np.abs(exact)))


def lattice_of(mechanism, steps, epsilon, order):
    with scope(by_programs=True):
        (parts,) = directed_parts(mechanism, steps, "remove")
        return jax.device_get(accountant.lattice(POINTS, parts, ForDelta(np.float64(epsilon)), np.float64(order)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", [1, 3, 40])
def test_what_is_read_off_is_that_of_the_lattice(steps):
    """Parseval's sums and sums over the lattice, each with its own allowances, on either side."""
    mechanism, epsilon = ja.PoissonSubsampledGaussian(0.9, 0.1), 1.0
    found = lattice_of(mechanism, steps, epsilon, 3.0)
    y = found.start + found.mesh * np.arange(found.weights.shape[1])
    with scope():
        (parts,) = directed_parts(mechanism, steps, "remove")

        @jax.jit
        def read(parts, at):
            asked = asked_of(parts, epsilon, is_epsilon=False)
            asked = asked._replace(relative=jnp.asarray(accountant.NARROW), order=jnp.asarray(3.0), is_whole=True)
            sum_ = compose.compose(parts, asked, POINTS)
            return jax.lax.map(lambda e: compose.bounds_on_delta(sum_, jnp.zeros(2), e), at)

        at = np.array([0.3, 1.0, 1.7])
        bounds = np.asarray(read(parts, at))
    for e, (upper, lower) in zip(at, bounds, strict=True):
        over = y - e
        terms = np.where(over > 0, found.weights * np.exp(found.log_mass[:, None] - 3.0 * y) * -np.expm1(-over), 0.0)
        sums = np.sum(terms, axis=1)
        assert upper >= sums[0] * (1 - 1e-9)
        assert lower <= sums[1] * (1 + 1e-9)
        assert (upper - lower) / upper < 0.1


@pytest.mark.exhaustive
def test_slack_and_errors_widen_what_is_read_off():
    """A measure of so much tilted mass, and an error of the sum, count in full on either side."""
    with scope():
        (parts,) = directed_parts(ja.Gaussian(4.0), 3, "remove")

        @jax.jit
        def read(parts, slack, error):
            sum_ = compose.compose(parts, asked_of(parts, 1.0, is_epsilon=False), POINTS)
            sum_ = sum_._replace(slack=sum_.slack + slack, error=sum_.error + error)
            effect = compose.slack_effect(sum_._replace(slack=jnp.full(2, slack)), jnp.asarray(1.0))
            scale = jnp.exp(sum_.log_mass - sum_.order)
            return compose.bounds_on_delta(sum_, jnp.zeros(2), jnp.asarray(1.0)), effect, scale * error

        plain, *_ = jax.device_get(read(parts, 0.0, 0.0))
        for slack, error in ((1e-3, 0.0), (0.0, 1e-4)):
            wide, effect, of_error = jax.device_get(read(parts, slack, error))
            moved = (effect + of_error) * np.array([1.0, -1.0])
            np.testing.assert_allclose(wide - plain, moved, rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("run", [(0.8, 0.01, 500), (0.5, 3e-5, 10), (3.0, 0.5, 20)])
def test_errors_of_the_spectrum_count_in_full(run):
    """Of all spectra within the errors, the one that changes most what is read off at an epsilon is found by linearity.

    No epsilon's change exceeds what is allowed for, and some come near.
    """
    noise, rate, steps = run
    with scope():
        (parts,) = directed_parts(ja.PoissonSubsampledGaussian(noise, rate), steps, "remove")

        @jax.jit
        def worst(parts, share):
            sum_ = compose.compose(parts, asked_of(parts), POINTS)
            number = sum_.spectrum.shape[2]
            kernel_ = compose.kernels_of(2 * np.pi / sum_.length * np.arange(number), sum_.mesh, sum_.order)
            half = (np.arange(number) > 0) & ((np.arange(number) < number - 1) | (sum_.length > 4 * POINTS))
            twice = (1.0 + half) / sum_.length

            def sum_at(spectrum, epsilon):
                """The sum that is read off of the upper side, without allowances, of this spectrum."""
                (a, b), (real, imaginary) = (twice * spectrum)[:, None], kernel_
                series = jnp.stack([a * real - b * imaginary, a * imaginary + b * real])
                reader = jax.tree.map(lambda leaf: leaf[0], compose.reader_of(sum_))._replace(series=series)
                value, _ = compose.log_delta(reader, sum_, epsilon, 0.0)
                return jnp.exp(value - reader.log_mass + sum_.order * epsilon)

            def change(share):
                epsilon = sum_.start + share * sum_.length * sum_.mesh
                slopes = jax.grad(sum_at)(sum_.spectrum[:, 0], epsilon)
                return jnp.sum(jnp.hypot(*slopes) * sum_.off[0])

            return jax.lax.map(change, share), sum_.error[0]

        shares = np.concatenate([np.linspace(0.0, 0.99, 40), [1e-9, 0.3000001]])
        with jax.numpy_rank_promotion("allow"):
            changes, allowed = jax.device_get(worst(parts, shares))
    known = np.isfinite(changes)  # where something is read off
    assert np.mean(known) > 0.5
    assert np.all(changes[known] <= allowed)
    assert np.max(changes[known]) > 0.03 * allowed


@pytest.mark.exhaustive
def test_a_lattice_holds_the_composition():
    """Its masses, with slack and shift, lie on either side of delta of many epsilons."""
    mechanism, order = ja.PoissonSubsampledGaussian(1.1, 0.05), 5.0
    found = lattice_of(mechanism, 30, 1.0, order)
    y = found.start + found.mesh * np.arange(found.weights.shape[1])
    peak = np.exp(order * np.log(order) - (1 + order) * np.log1p(order))
    for e in (0.2, 0.9, 1.6):
        exact = ja.saddlepoint.delta(mechanism, 30, e, relation="remove")
        allowed = found.slack * np.exp(found.log_mass - order * e) * peak
        moved = y[None] + np.array([[1.0], [-1.0]]) * found.shift[:, None] - e
        masses = found.weights * np.exp(found.log_mass[:, None] - order * y)
        sums = np.sum(np.where(moved > 0, masses * -np.expm1(-moved), 0.0), axis=1)
        assert sums[0] + allowed[0] + found.infinite[0] >= exact.lower
        assert sums[1] - allowed[1] <= exact.upper
        assert (sums[0] - sums[1]) / sums[0] < 0.05


SEQUENCES = np.random.default_rng(6).uniform([-0.3, -7.0, 2.0], [2.0, -1.5, 8.0], (5, 3, 3))


@pytest.mark.exhaustive
def test_different_mechanisms_are_composed_together():
    """The third is run once, with a window as wide as that of all the others together, or few times."""
    for index, rows in enumerate(np.exp(SEQUENCES).tolist()):
        noise, rate, steps = map(np.array, zip(*rows, strict=True))
        steps = np.floor(steps)
        noise[2], rate[2], steps[2] = [(1.5, 1.0, 1), (40.0, 1.0, 3), (noise[2], rate[2], 20)][index % 3]
        mechanism = ja.PoissonSubsampledGaussian(noise, rate)
        bounds = ja.prv.epsilon(mechanism, steps, 1e-5, tolerance=1e-2, relation="remove")
        exact = ja.saddlepoint.epsilon(mechanism, steps, 1e-5, relation="remove")
        assert bounds.lower <= exact.upper
        assert bounds.upper >= exact.lower
        assert bounds.converged
