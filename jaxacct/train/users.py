"""Data of users who own several examples: a bound on how many each may own, and one record a user in their place.

A guarantee for single examples becomes one for users in two ways. Where no user owns more than k examples
(:func:`bounded_contributions`), :func:`jaxacct.group` of k accounts for all that one user owns. Or a user's examples
become one record, which is sampled and clipped as a whole (:func:`users_as_examples`, :func:`mean_over_examples`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int64, PyTree

from jaxacct import validation


def bounded_contributions(
    owners: Sequence[Hashable | Iterable[Hashable]], most: int, *, order: Sequence[int] | None = None
) -> Int64[np.ndarray, " kept"]:
    """Returns the examples to train on, rising, such that no user owns more than ``most`` of them.

    One pass: an example is kept if none of its owners has ``most`` kept ones already. None of those left out could be
    added. With one owner each these are every user's first ``most``.

    Args:
        owners: of each example, one user, a string or a number, or several in a list or whatever has them; an
            example without owners is kept.
        most: k, at least 1; the size that :func:`jaxacct.group` is to be asked for.
        order: in which the examples are looked at, a permutation; as they stand by default. It must not depend on the
            examples' contents.

    Formal guarantee: a mechanism that is private for groups of k examples under "zero_out" or "replace" is so for
    users: for all examples of one user, owned alone or with others, whose contents become zero, or others. Which
    examples are kept depends on who owns what, which is taken as the same for both neighbours, and so as known. Where
    every example has one owner it is private for users added and removed as well, by "add_or_remove". With several
    owners it is not: with a user gone, examples of others may be kept that were not, and theirs left out in turn.

    Raises ValueError or TypeError where an argument is wrong.

    Source: Wu et al. (2025), "It's my data too: private ML for datasets with multi-user training examples", whose
    greedy baseline it is.

    >>> bounded_contributions(["a", "b", ("a", "b"), "a", ("b", "c")], 2).tolist()
    [0, 1, 2]
    """
    most = validation.check_count(most, "most", "how many examples a user may own")
    looked_at = range(len(owners)) if order is None else order
    if sorted(looked_at) != list(range(len(owners))):
        raise ValueError(f"order is no permutation of the {len(owners)} examples: give each of them once.")
    owned: Counter[Hashable] = Counter()
    kept = []
    # ``owned`` has how many kept examples each user owns, at most ``most``. Whether an example is kept follows from the
    # owners alone, never from its contents.
    for example in looked_at:
        users = _users(owners[example])
        if all(owned[user] < most for user in users):
            owned.update(users)
            kept.append(example)
    return np.array(sorted(kept), np.int64)


def _users(owner: Any) -> set[Hashable]:
    is_one = isinstance(owner, (str, bytes)) or not isinstance(owner, Iterable)
    users = {owner} if is_one else set(owner)
    for user in users:
        _check_user(user)
    return users


def _check_user(user: Any) -> None:
    """Raises ValueError where a user cannot be recognized: NaN differs from itself, and would be another each time."""
    if isinstance(user, Iterable) and not isinstance(user, (str, bytes, tuple, frozenset)):
        raise ValueError(f"owner {user!r} is an object that names nobody: give a name or a number.")
    if user != user:
        raise ValueError(f"owner {user!r} is nobody: name whose example it is, or leave the example out.")


def users_as_examples(
    data: PyTree, owner: Sequence[Hashable] | np.ndarray, most: int
) -> tuple[PyTree, Float32[np.ndarray, "users most"]]:
    """Returns one record for each user: its first ``most`` examples, and their weights in the mean.

    A trainer that takes these for its examples samples users and clips the gradient of a user's mean once, with
    :func:`mean_over_examples` for a loss. Its accounting, as it stands, is then for users: one added or removed with
    all its examples.

    Args:
        data: a pytree of arrays with a common leading axis (n, ...).
        owner (n,): the one user of each example.
        most: m, at least 1.

    Returns:
        ``(records, weights)``: arrays (users, m, ...) in the order of a user's first example, and the weights, of sum 1
        for each user, 0 where it has fewer than m. Those places hold the user's own first example again: a record is
        made of nothing but its user's data.

    Raises ValueError or TypeError where an argument is wrong.

    >>> records, weights = users_as_examples(np.array([10, 20, 30]), ["a", "b", "a"], 2)
    >>> records.tolist(), weights.tolist()
    ([[10, 30], [20, 20]], [[0.5, 0.5], [1.0, 0.0]])
    """
    most = validation.check_count(most, "most", "how many examples of a user count")
    lengths = {len(leaf) for leaf in jax.tree.leaves(data)}
    if lengths != {len(owner)} or not len(owner):
        raise ValueError(f"owner names {len(owner)} users for arrays of {sorted(lengths)} examples: give one for each.")
    rows: dict[Hashable, list[int]] = {}
    # Each user's examples in their order, and users in the order of their first example.
    for example, user in enumerate(owner):
        _check_user(user)
        rows.setdefault(user, []).append(example)
    firsts = [own[:most] for own in rows.values()]
    places = np.array([[*own, *[own[0]] * (most - len(own))] for own in firsts])
    weights = np.array([[1 / len(own)] * len(own) + [0.0] * (most - len(own)) for own in firsts], np.float32)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[places], data), weights


@dataclass(frozen=True)
class LossOfUser:
    """The loss of a user's record, made of the loss of one example: :func:`mean_over_examples`."""

    of_example: Callable[..., Array]

    def __call__(self, model: Any, *record: Any) -> Array:
        *examples, weights = record
        losses = jax.vmap(lambda *example: self.of_example(model, *example))(*examples)
        # An infinite loss at weight 0 would be NaN in the product.
        return jnp.sum(jnp.where(weights > 0, weights * losses, 0.0))


def mean_over_examples(loss: Callable[..., Array]) -> LossOfUser:
    """Returns the loss of a record of :func:`users_as_examples`: the weighted mean of ``loss`` over its examples.

    A trainer of such a loss states its guarantee for users.

    Args:
        loss: of a model and one example, ``loss(model, *example)``.

    Returns:
        ``loss(model, *record, weights)``, the weights last. Its gradient is the mean of the examples' gradients.

    >>> record = np.array([1.0, 3.0]), np.array([0.25, 0.75])
    >>> float(mean_over_examples(lambda model, x: model * x)(2.0, *record))
    5.0
    """
    return LossOfUser(loss)
