"""Correlated integer noise: by what two neighbours' noise differs for one release, step by step, and the account."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.thorough import cases
from helpers.thorough import draws as so_many

from jaxacct.numerics.chacha20 import CHACHA20
from jaxacct.numerics.precision import scope
from jaxacct.strategies import BandedToeplitz, BufferedToeplitz, Dense, HonakerTree, Pattern, square_root
from jaxacct.train import integer_noise as noise
from jaxacct.train.integer_noise import add_correlated, rounding_of_rows
from jaxacct.train.noise import start

STEPS, ENTRIES, NORM = 24, 6, 0.7


def dense():
    rng = np.random.default_rng(0)
    return Dense(np.tril(rng.normal(size=(STEPS, STEPS)) * 0.3, -1) + np.diag(rng.uniform(0.4, 2.0, STEPS)))


STRATEGIES = {
    "banded": BandedToeplitz([0.7, 0.4, -0.3, 0.2]),
    "square root": square_root(STEPS),
    "buffered": BufferedToeplitz([0.4, 0.2], [0.97, 0.5]),
    "buffered, all kept": BufferedToeplitz([0.4], [1.0]),
    "dense": dense(),
    "tree": HonakerTree(STEPS),
}
FEW = Pattern(STEPS, 5, 3)
"""One takes part every five steps at most, three times in all."""


class Run:
    """Steps whose noise Z is given, so that two neighbours can be compared at the same release."""

    def __init__(self, strategy, sigma, pattern=FEW):
        self.strategy = strategy
        self.sensitivity = strategy.sensitivity(pattern)
        self.rounding = rounding_of_rows(strategy, self.sensitivity, STEPS, ENTRIES)
        # At most half of the noise may pay for roundings.
        sigma = self.sigma = sigma or 0.48 * noise.deviation_below(3) / self.rounding
        self.draws = noise.draws_of(sigma, 0, self.rounding)
        key = jax.random.wrap_key_data(jnp.zeros(8, jnp.uint32), impl=CHACHA20)

        def step(z, total, state):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(noise, "drawn_like", lambda *_: z)
                return add_correlated(
                    key, total, strategy, state, noise_multiplier=sigma, sensitivity=NORM, rounding=self.rounding
                )

        self._step = jax.jit(step)
        with scope():
            own = jax.vmap(lambda t: strategy.entries(t)[0])(jnp.arange(STEPS, dtype=jnp.int32))
            self.own = np.asarray(own, np.float64)
            self.grid = float(noise.grid_of(sigma, NORM, 0, self.draws, self.rounding)) / self.own
            self.matrix = np.asarray(strategy.multiply(jnp.eye(STEPS, dtype=jnp.float64)))
            self.state = start(strategy, jnp.zeros(ENTRIES))

    def step(self, z, total, state):
        """The release in units of the step's grid, and the state after it."""
        with scope():
            noisy, after = self._step(jnp.asarray(z), jnp.asarray(total), state)
            t = int(state.step)
            multiples = np.asarray(noisy) / self.grid[t]
        assert np.abs(multiples - np.rint(multiples)).max() < 1e-3
        return np.rint(multiples), after


def follow(run, sums, neighbours, rng):
    """Z and Z' of two neighbours that release the same; and the roundings x and x' of their sums."""
    first, second, made = run.state, run.state, []
    for t in range(STEPS):
        z = np.rint(rng.normal(size=ENTRIES) * 2.0 ** (20 if run.draws == 2 else 25))
        o, after = run.step(z, sums[t], first)
        # With no noise of its own the neighbour would show this; what is missing is its noise.
        silent, _ = run.step(np.zeros(ENTRIES), neighbours[t], second)
        other = o - silent
        again, following = run.step(other, neighbours[t], second)
        assert (again == o).all()  # the same release, to the bit
        x, y = (np.rint(np.clip(s / run.grid[t], -(2.0**40), 2.0**40)) for s in (sums[t], neighbours[t]))
        made.append((z, other, x, y))
        first, second = after, following
    return (np.array(column) for column in zip(*made, strict=True))


def neighbouring(run, rng, scale=30.0):
    """Sums of two neighbours: the example takes part at most as the pattern says, and moves a sum by up to the norm.

    All moves have the signs by which the strategy adds them up, or random ones, or sums are at midpoints of the grid.
    """
    sums = rng.normal(size=(STEPS, ENTRIES)) * scale * NORM
    first = rng.integers(0, 5)
    steps = np.arange(first, STEPS, 5)[:3]
    kind = rng.integers(3)
    along = np.ones(ENTRIES) / math.sqrt(ENTRIES) if kind == 0 else rng.normal(size=ENTRIES)
    moves = np.zeros((STEPS, ENTRIES))
    moves[steps] = along / np.linalg.norm(along) * NORM
    if kind == 1:
        moves[steps] *= rng.choice([-1, 1], (len(steps), 1))
    if kind == 2:
        grid = run.grid[:, None]
        sums = (np.rint(sums / grid) + 0.5) * grid - moves / 2
    return sums, sums + moves, moves


CHOSEN = cases(["banded", "buffered", "dense", "tree"], ["square root", "buffered, all kept"])


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.exhaustive
@pytest.mark.parametrize("sigma", [1.0, None], ids=["usual", "coarse"])
def test_neighbours_noise_differs_by_no_more_than_is_accounted(name, sigma):
    strategy = STRATEGIES[name]
    run = Run(strategy, sigma)
    rng = np.random.default_rng(len(name))
    scale, largest, roundings = 30.0 if sigma else 3.0, 0.0, 0.0
    for _ in range(so_many(3, 60)):
        sums, neighbours, _moves = neighbouring(run, rng, scale)
        z, other, x, y = follow(run, sums, neighbours, rng)
        e = other - z
        # e = C1 (x - x') + rho, by the strategy's matrix: each entry of rho is the error of two roundings.
        rho = e - (run.matrix / run.own) @ (x - y)
        assert np.abs(rho).max() <= 1 + 2.0**-3
        assert np.abs(rho).max() <= 1 + 1e-4  # as it is measured
        roundings = max(roundings, np.abs(rho).max())
        # The account: a Gaussian mechanism of multiplier sigma / sensitivity, that is s' / E.
        most = noise.deviation_below(run.draws) * run.sensitivity / run.sigma
        norm = np.linalg.norm(e)
        assert norm <= most
        largest = max(largest, norm / most)
    assert roundings > 0.5
    assert largest > 0.3


@pytest.mark.exhaustive
def test_without_what_roundings_add_the_account_would_be_too_small():
    """Where the grid is coarse roundings are most of what neighbours differ by."""
    run = Run(STRATEGIES["banded"], None)
    rng = np.random.default_rng(0)
    beyond = 0
    for _ in range(6):
        sums, neighbours, _ = neighbouring(run, rng, 3.0)
        z, other, _, _ = follow(run, sums, neighbours, rng)
        clipped = run.sensitivity * NORM / (run.grid * run.own)[0]
        beyond += np.linalg.norm(other - z) > clipped
    assert beyond


def test_what_roundings_add_is_that_of_the_proof():
    for strategy in (STRATEGIES["banded"], STRATEGIES["dense"]):
        sensitivity = strategy.sensitivity(FEW)
        own = (
            np.diagonal(np.asarray(strategy.matrix, np.float64))
            if strategy is STRATEGIES["dense"]
            else [np.float32(0.7)]
        )
        exact = (1 + 2**-2) * math.sqrt(ENTRIES) * (1 / float(min(own)) + math.sqrt(STEPS) / sensitivity)
        assert rounding_of_rows(strategy, sensitivity, STEPS, ENTRIES) == pytest.approx(exact, rel=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", STRATEGIES)
def test_rows_are_whole_and_their_product_with_the_matrix_is_the_noise(name):
    """C1 w differs from Z by a rounding for each step; and a step beyond the strategy's last has no number."""
    run = Run(STRATEGIES[name], 1.0)
    rng = np.random.default_rng(2)
    state, rows, zs = run.state, [], []
    for _ in range(STEPS):
        z = np.rint(rng.normal(size=ENTRIES) * 2.0**20)
        row, state = run.step(z, np.zeros(ENTRIES), state)
        rows.append(row)
        zs.append(z)
    off = (run.matrix / run.own) @ np.array(rows) - np.array(zs)
    assert np.abs(off).max() <= 0.5 + 1e-4
    if name in ("dense", "tree"):
        with scope():
            noisy, _ = run._step(jnp.zeros(ENTRIES), jnp.zeros(ENTRIES), state)
        assert np.isnan(np.asarray(noisy)).all()


@pytest.mark.exhaustive
def test_a_restored_state_gives_the_same_bits():
    strategy = STRATEGIES["buffered"]
    run = Run(strategy, 1.0)
    rng = np.random.default_rng(3)
    zs, sums = np.rint(rng.normal(size=(STEPS, ENTRIES)) * 2.0**20), rng.normal(size=(STEPS, ENTRIES))
    state, through = run.state, []
    for t in range(STEPS):
        if t == 10:
            kept = jax.tree.map(lambda leaf: np.asarray(leaf).copy(), state)
        o, state = run.step(zs[t], sums[t], state)
        through.append(o)
    with scope():
        state = jax.tree.map(jnp.asarray, kept)
    for t in range(10, STEPS):
        o, state = run.step(zs[t], sums[t], state)
        np.testing.assert_array_equal(o, through[t])
