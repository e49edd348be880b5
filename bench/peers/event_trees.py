"""Random trees of events, by this library's accountants and by dp-accounting's.

    python -m bench.peers.event_trees [200]  # minutes; dp-accounting's mesh of 1e-4 takes nearly all of them

For each tree: the bracket holds together, its upper end is at most dp-accounting's epsilon plus what its interval may
add, and the Rényi accountant's is no lower than the bracket's lower end and no more than dp-accounting's. Fails where
one does not. Depth 3, counts at every level; a tree's seed is its number.

Of 200, with dp-accounting 0.6: all checks hold, and all brackets have converged, the widest by 8e-4; theirs is above
ours by 1.4e-6 of epsilon in the median and 1.9e-3 at most, and nowhere below by more than 2.1e-5.
"""

import math
import sys
import time

import numpy as np
from dp_accounting import NeighboringRelation, dp_event, pld, rdp

import jaxacct as ja
from jaxacct.adapters.dp_accounting import ExactAccountant, RenyiAccountant

INTERVAL, DELTA = 1e-4, 1e-5
ADD_OR_REMOVE, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


def leaf(rng, relation):
    noise = float(rng.uniform(3.0, 20.0))
    rate = float(rng.uniform(0.01, 0.3))
    both = {
        0: lambda: dp_event.GaussianDpEvent(noise),
        1: lambda: dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise / 4)),
        2: lambda: dp_event.NoOpDpEvent(),
    }
    one = {
        3: lambda: dp_event.LaplaceDpEvent(noise),
        4: lambda: dp_event.DiscreteLaplaceDpEvent(1 / noise, int(rng.integers(1, 3))),
        5: lambda: dp_event.PoissonSampledDpEvent(rate, dp_event.LaplaceDpEvent(noise / 4)),
        6: lambda: dp_event.MixtureOfGaussiansDpEvent(noise / 2, [0.0, 1.0, 2.0], [1 - rate, rate / 2, rate / 2]),
    }
    kinds = both | one if relation is ADD_OR_REMOVE else both
    return kinds[int(rng.choice(list(kinds)))]()


def tree(rng, relation, depth=3):
    """Returns a random tree, and how many privacy losses dp-accounting rounds for it."""
    if depth == 0:
        return leaf(rng, relation), 1
    kind = int(rng.integers(3))
    if kind == 0:
        inner, losses = tree(rng, relation, depth - 1)
        count = int(rng.integers(1, 6))
        return dp_event.SelfComposedDpEvent(inner, count), count * losses
    inner = [tree(rng, relation, depth - 1) for _ in range(int(rng.integers(1, 4)))]
    return dp_event.ComposedDpEvent([event for event, _ in inner]), sum(losses for _, losses in inner)


def compared(seed, relation):
    """Returns (bracket, theirs, Rényi, theirs by Rényi, CPU seconds of ours and theirs), after all checks."""
    rng = np.random.default_rng(seed)
    event, losses = tree(rng, relation)
    count = int(rng.integers(1, 4))
    start = time.process_time()
    ours = ExactAccountant(relation).compose(event, count).get_epsilon(DELTA)
    middle = time.process_time()
    theirs = pld.PLDAccountant(relation, INTERVAL).compose(event, count).get_epsilon(DELTA)
    end = time.process_time()
    repeated = dp_event.SelfComposedDpEvent(event, count)
    relation_here = "replace" if relation is REPLACE else "add_or_remove"
    bounds = ja.epsilon(*ja.adapters.from_dp_event(repeated), DELTA, relation=relation_here)
    renyi = RenyiAccountant(relation).compose(event, count).get_epsilon(DELTA)
    assert bounds.lower <= bounds.upper, (seed, bounds)
    # The second answer may be by a program that was compiled anew, well: its roundings are others.
    assert abs(bounds.upper - ours) <= 1e-9 * ours, (seed, bounds.upper, ours)
    # Theirs is pessimistic, by up to its interval for each loss; below ours only by its rounding.
    assert ours <= theirs + INTERVAL, (seed, ours, theirs)
    assert bounds.lower >= theirs - INTERVAL * (losses * count + 1) - 1e-3 * theirs, (seed, bounds, theirs)
    assert renyi >= bounds.lower * (1 - 1e-12), (seed, renyi, bounds)
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    # Theirs counts a replaced record's value once, so that the sum moves half as far as it may.
    comparable = relation is ADD_OR_REMOVE and accountant.supports(event)
    by_theirs = accountant.compose(event, count).get_epsilon(DELTA) if comparable else math.nan
    assert not renyi > by_theirs * (1 + 1e-9), (seed, renyi, by_theirs)
    return bounds, theirs, renyi, by_theirs, middle - start, end - middle


def main(trees=200):
    rows = []
    for seed in range(trees):
        rows.append(compared(seed, REPLACE if seed % 4 == 3 else ADD_OR_REMOVE))
        print(f"tree {seed}: {rows[-1][0]}, theirs {rows[-1][1]:.5f}", flush=True)
    excess = np.array([(theirs - bounds.upper) / theirs for bounds, theirs, *_ in rows if theirs])
    renyi = np.array([theirs / ours for _, _, ours, theirs, _, _ in rows if ours > 0 and not math.isnan(theirs)])
    ours, theirs = (sum(row[i] for row in rows) for i in (4, 5))
    print(f"{trees} trees: all checks hold; {sum(bool(row[0].converged) for row in rows)} brackets have converged")
    print(f"theirs above ours by {np.median(excess):.2e} in the median, {excess.min():.2e} to {excess.max():.2e}")
    print(f"their Rényi epsilon over ours: {np.median(renyi):.4f} in the median, of {len(renyi)}")
    print(f"CPU seconds: {ours:.0f} ours, with compilation, {theirs:.0f} theirs")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
