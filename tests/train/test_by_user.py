"""Tests of owners of examples: bounded contributions, and users in the place of examples."""

import itertools

import jax
import numpy as np
import pytest

from jaxacct.train.users import bounded_contributions, mean_over_examples, users_as_examples


def owned(owners, kept):
    return {user: sum(user in owners[i] for i in kept) for user in "abc"}


def test_nobody_owns_more_and_none_could_be_added():
    """All ways in which three users may own four examples, in any order; and random ones of six."""
    sets = [set(some) for size in (1, 2, 3) for some in itertools.combinations("abc", size)]
    rng = np.random.default_rng(0)
    small = itertools.product(sets, repeat=4)
    large = (tuple(rng.choice(sets) for _ in range(6)) for _ in range(300))
    for owners in itertools.chain(small, large):
        for most in (1, 2):
            kept = bounded_contributions(owners, most, order=rng.permutation(len(owners)))
            counts = owned(owners, kept)
            assert max(counts.values()) <= most
            left = set(range(len(owners))) - set(kept.tolist())
            assert all(any(counts[user] == most for user in owners[i]) for i in left)


def test_of_several_owners_one_that_leaves_may_change_what_is_kept_of_others():
    """Why several owners are accounted for by "zero_out" alone: more than the user's own examples would change."""
    owners = [("a", "b"), ("b", "c"), ("c",)]
    assert bounded_contributions(owners, 1).tolist() == [0, 2]
    without = [who for who in owners if "a" not in who]
    assert bounded_contributions(without, 1).tolist() == [0]  # that of b and c, and so c's own no longer
    alone = ["a", "b", "b", "c", "a", "b"]
    kept, rest = bounded_contributions(alone, 2), [i for i, who in enumerate(alone) if who != "a"]
    again = bounded_contributions([alone[i] for i in rest], 2)
    assert [rest[i] for i in again] == [i for i in kept if alone[i] != "a"]


def test_a_record_is_made_of_its_user_alone():
    """The gradient of a record is the mean over its user's examples, whatever all others hold, NaN included."""
    rng = np.random.default_rng(1)
    owner = np.array([0, 1, 0, 2, 0, 1])
    x, y = rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    x[owner == 1] = np.nan
    (inputs, targets), weights = users_as_examples((x, y), owner, 4)
    assert inputs.shape == (3, 4, 3)

    def loss(w, a, b):
        return (a @ w - b) ** 2

    gradient = jax.grad(mean_over_examples(loss))
    w = np.array([0.3, -1.0, 0.5], np.float32)
    for user, record in ((0, 0), (2, 2)):
        own = [jax.grad(loss)(w, x[i], y[i]) for i in np.flatnonzero(owner == user)]
        np.testing.assert_allclose(
            gradient(w, inputs[record], targets[record], weights[record]), np.mean(own, axis=0), rtol=1e-5
        )


def test_messages():
    with pytest.raises(ValueError, match="order is no permutation of the 2 examples"):
        bounded_contributions(["a", "b"], 1, order=[0, 0])
    with pytest.raises(ValueError, match="most = 0 is out of range"):
        bounded_contributions(["a"], 0)
    with pytest.raises(ValueError, match="owner names 1 users for arrays of"):
        users_as_examples(np.zeros(2), ["a"], 1)


def test_owners_are_known_again():
    assert bounded_contributions([iter(["a"]) for _ in range(4)], 1).tolist() == [0]
    assert bounded_contributions([range(2), range(1)], 1).tolist() == [0]
    for nobody in ([float("nan")] * 2, np.full(2, np.nan)):
        with pytest.raises(ValueError, match="is nobody"):
            bounded_contributions(nobody, 1)
        with pytest.raises(ValueError, match="is nobody"):
            users_as_examples(np.arange(2), nobody, 1)
