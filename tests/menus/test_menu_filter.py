"""Spending from a menu: whole numbers, under every transformation, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.filters import MenuFilter
from jaxacct.menus.menu import Item, Menu

NOISES = (1.0, 1.5, 2.0)


def step(noise):
    return ja.PoissonSubsampledGaussian(noise, 0.01)


def filter_of(budget=100, costs=(20, 7, 3), counts=(10, 10, 5), free=False):
    """Returns a filter of given prices, which certify nothing: what is asked here is how it counts."""
    items = [
        Item(step(noise), count, cost, budget / cost) for noise, count, cost in zip(NOISES, counts, costs, strict=True)
    ]
    if free:
        items.append(Item(ja.Gaussian(jnp.inf), 1, 0, np.inf))
    return MenuFilter.of(Menu(3.0, 1e-5, "add_or_remove", tuple(items), budget, 9e-6))


def same(left, right):
    return all(np.array_equal(*leaves) for leaves in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))


class Plain:
    """The same by plain integers."""

    def __init__(self, budget, costs, counts):
        self.left, self.costs, self.counts, self.paid = budget, costs, counts, [0] * len(costs)

    def spend(self, index, runs):
        blocks = -(-max(runs - self.paid[index], 0) // self.counts[index])
        if blocks * self.costs[index] > self.left:
            return False
        self.left -= blocks * self.costs[index]
        self.paid[index] += blocks * self.counts[index] - runs
        return True


@pytest.mark.exhaustive
def test_a_scan_of_random_spends_counts_as_plain_integers_do():
    rng = np.random.default_rng(0)
    indices, runs = rng.integers(0, 3, (4, 60)), rng.integers(0, 25, (4, 60))
    budget = filter_of()

    @jax.jit
    @jax.vmap
    def played(indices, runs):
        def body(state, spend):
            granted, new = state.spend(*spend)
            return new, (granted, state.would_grant(*spend), new.state)

        return jax.lax.scan(body, budget, (indices, runs))

    _, (granted, would, states) = played(indices, runs)
    for row in range(4):
        plain = Plain(100, (20, 7, 3), (10, 10, 5))
        for i in range(60):
            assert plain.spend(indices[row, i], runs[row, i]) == granted[row, i] == would[row, i]
            assert plain.left == states.left[row, i]
            assert plain.paid == states.paid[row, i].tolist()
    assert 0 < granted.sum() < granted.size


@pytest.mark.exhaustive
def test_what_remains_is_what_is_granted():
    for budget in (filter_of(), filter_of().spend(1, 33)[1]):
        for index in range(3):
            most = int(budget.remaining(index))
            assert budget.would_grant(index, most)
            assert not budget.would_grant(index, most + 1)
            each = budget
            for _ in range(most):
                granted, each = each.spend(index)
                assert granted
            granted, refused = each.spend(index)
            assert not granted
            assert same(refused, each)
            assert each.remaining(index) == 0


def test_runs_of_paid_blocks_may_be_made_in_any_order():
    budget = filter_of(27, (20, 7, 3))
    for index, granted in ((0, True), (1, True), (2, False), (0, True), (1, True)):
        was, budget = budget, budget.spend(index, 5)[1]
        assert same(was, budget) is not granted
    assert budget.state.left == 0
    assert budget.state.paid.tolist() == [0, 0, 0]


def test_counts_of_every_type_do_not_wrap():
    budget = filter_of()
    for count in (2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**33 + 1, 2**53, float(2**32), np.int64(2**32 + 1), 1e15):
        granted, after = budget.spend(2, count)
        assert not granted
        assert same(after, budget)
    for count in (1, 1.0, np.int64(1), np.uint8(1), jnp.int32(1), jnp.float32(1)):
        granted, after = budget.spend(2, count)
        assert granted
        assert after.state.paid.tolist() == [0, 0, 4]
    spend = jax.jit(lambda runs: budget.spend(2, runs))
    for count in (np.float32(2**31), np.float32(2**33), np.float32(np.nan), np.float32(-1), np.float32(0.5)):
        granted, after = spend(count)
        assert not granted
        assert same(after, budget)
    for count in (-1, 0.5, float("nan"), float("inf"), 2**53 + 2):
        with pytest.raises(ValueError, match="steps"):
            budget.spend(2, count)
    huge = filter_of(2**31 - 1, (1, 2, 3), (2**31 - 1, 2**30, 1))
    assert huge.spend(0, 2**31 - 1)[1].state.left == 2**31 - 2
    granted, after = huge.spend(0, 5)[1].spend(0, 2**31 - 1)
    assert granted
    assert after.state.left == 2**31 - 3
    assert after.state.paid[0] == 2**31 - 1 - 5
    assert not huge.spend(2, 2**31 - 1)[0]
    for runs in (2**24 + 1, 2**29 + 1):  # more digits than float32 has
        granted, after = huge.spend(2, runs)
        assert granted
        assert after.state.left == 2**31 - 1 - 3 * runs
        assert same(after, jax.jit(lambda runs: huge.spend(2, runs)[1])(np.int32(runs)))


def test_indices_may_be_traced_and_out_of_range():
    budget = filter_of()
    spend = jax.jit(lambda index: budget.spend(index))
    for index in (np.int32(0), np.int8(1), np.uint32(2)):
        granted, after = spend(index)
        assert granted
        assert same(after, budget.spend(int(index))[1])
    for index in (np.int32(-1), np.int32(3), np.int32(2**31 - 1), np.uint32(2**32 - 1), np.int8(-128)):
        granted, after = spend(index)
        assert not granted
        assert same(after, budget)
    assert budget.spend(jnp.int32(1))[0]
    for index in (-1, 3, 2**32, 2**32 + 1):
        with pytest.raises(ValueError, match="item"):
            budget.spend(index)
    for index in (0.0, True, "0", None, np.float32(1)):
        with pytest.raises(TypeError, match="item"):
            budget.spend(index)
    for index in (np.float32(0.0), np.float32(np.nan)):
        with pytest.raises(TypeError, match="item"):
            spend(index)
    for index in (jnp.array([0, 1]), np.array([0, 1])):
        with pytest.raises(TypeError, match="item"):
            budget.spend(index)


@pytest.mark.exhaustive
def test_noise_between_items_is_paid_as_the_cheapest_that_dominates_it():
    budget = filter_of()

    @jax.jit
    def index_of(noise, rate):
        return budget.cost(ja.PoissonSubsampledGaussian(noise, rate))

    for noise, place in ((1.0, 0), (1.2, 0), (1.4999999, 0), (1.5, 1), (1.9, 1), (2.0, 2), (1e30, 2), (np.inf, 2)):
        assert index_of(np.float32(noise), np.float32(0.01)) == place == budget.cost(step(np.float32(noise)))
    for noise in (0.999999, 0.0, -1.5, -np.inf, np.nan):
        assert index_of(np.float32(noise), np.float32(0.01)) == -1
        granted, after = jax.jit(lambda noise: budget.spend(step(noise)))(np.float32(noise))
        assert not granted
        assert same(after, budget)
    for rate, place in ((0.0, 2), (0.005, 2), (0.0100001, -1), (-0.01, -1), (np.nan, -1), (1.0, -1)):
        assert index_of(np.float32(3.0), np.float32(rate)) == place


def test_what_releases_nothing_is_free():
    budget = filter_of(free=True)
    granted, after = budget.spend(3, 2**31 - 1)
    assert granted
    assert same(after, budget)
    assert budget.cost(ja.Gaussian(jnp.inf)) == 3
    assert budget.remaining(3) == 2**31 - 1
    assert budget.epsilon() == 0.0
    assert budget.spend(0)[1].epsilon() == 3.0
    with pytest.raises(ValueError, match="dominated by nothing"):
        budget.spend(ja.Gaussian(1e30))


def test_bad_uses_say_what_is_wrong():
    budget = filter_of()
    with pytest.raises(ValueError, match="relation = 'replace'"):
        budget.spend(0, relation="replace")
    with pytest.raises(ValueError, match="dominated by nothing on the menu"):
        budget.spend(ja.Laplace(1.0))
    with pytest.raises(ValueError, match="dominated by nothing on the menu"):
        budget.spend(step(0.9))
    alike = MenuFilter.of(Menu(1.0, 1e-5, "add_or_remove", (Item(ja.Gaussian(20.0), 1, 2, 5.0),), 10, 9e-6))
    with pytest.raises(ValueError, match="dominated by nothing on the menu"):
        alike.spend(ja.PureDP(20.0))  # the same numbers in a dataclass of another name
    for several in ((step(1.0), step(1.5)), [step(1.0)], ja.PoissonSubsampledGaussian(np.array([1.0, 2.0]), 0.01)):
        with pytest.raises(ValueError, match="one by one"):
            budget.spend(several)
    for runs in ((1, 2), np.array([1, 2]), [3]):
        with pytest.raises(ValueError, match="one by one"):
            budget.spend(0, runs)
    with pytest.raises(ValueError, match="noise_multiplier"):
        budget.spend(ja.PoissonSubsampledGaussian(-1.0, 0.01))


def test_finite_pairs_of_other_sizes_are_other_mechanisms():
    pair, other = ja.DiscretePair([0.75, 0.25], [0.25, 0.75]), ja.DiscretePair([0.5, 0.25, 0.25], [0.25, 0.25, 0.5])
    budget = MenuFilter.of(Menu(1.0, 1e-5, "add_or_remove", (Item(pair, 1, 2, 5.0),), 10, 9e-6))
    assert budget.spend(pair)[0]
    with pytest.raises(ValueError, match="dominated by nothing"):
        budget.spend(other)


def test_stacked_filters_are_spent_by_vmap_alone():
    first = filter_of()
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, first.spend(0, 50)[1], first.spend(1, 13)[1])
    assert jax.vmap(lambda budget: budget.spend(0)[0])(stacked).tolist() == [True, False, True]
    assert jax.vmap(lambda budget: budget.remaining(0))(stacked).tolist() == [50, 0, 40]
    for use in (stacked.spend, stacked.would_grant, stacked.remaining, jax.jit(stacked.spend)):
        with pytest.raises(ValueError, match="stacked"):
            use(0)
