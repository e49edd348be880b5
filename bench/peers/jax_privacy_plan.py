"""The plan of jax-privacy for banded matrix factorization, calibrated by its own accountant and by this library's.

    python -m bench.peers.jax_privacy_plan  # with jax-privacy installed; a minute

Prints noise multipliers and CPU seconds; fails where they differ by more than 1e-4 or ours does not satisfy the budget.
"""

import time

import numpy as np
from dp_accounting import NeighboringRelation, pld
from jax_privacy.batch_selection import PartitionType
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

import jaxacct as ja
from jaxacct.adapters.dp_accounting import ExactAccountant, calibrate

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
EPSILON, DELTA = 1.0, 1e-5


def planned(accountant, iterations, rate):
    """Returns the plan's noise multiplier, and its CPU seconds."""
    start = time.process_time()
    config = BandMFExecutionPlanConfig(
        strategy=np.array([1.0, 0.5, 0.25, 0.125]),
        iterations=iterations,
        epsilon=EPSILON,
        delta=DELTA,
        sampling_prob=rate,
        partition_type=PartitionType.INDEPENDENT,
        accountant=accountant,
    )
    event = config.plan.dp_event
    return event, event.event.event.noise_multiplier, time.process_time() - start


def main() -> None:
    for iterations, rate in ((400, 0.1), (4000, 0.02)):
        _, first, cold_seconds = planned(ExactAccountant(RELATION), iterations, rate)  # compiles, once for all rates
        event, ours, seconds = planned(ExactAccountant(RELATION), iterations, rate)
        _, theirs, their_seconds = planned(pld.PLDAccountant(RELATION), iterations, rate)
        assert ours == first
        assert abs(ours - theirs) <= 1e-4, (ours, theirs)
        assert ja.epsilon(*ja.adapters.from_dp_event(event), DELTA).upper <= EPSILON
        start = time.process_time()
        kind = type(event.event)
        inner = type(event.event.event)
        direct = calibrate(lambda noise: type(event)(kind(rate, inner(noise)), event.count), EPSILON, DELTA)  # noqa: B023
        direct_seconds = time.process_time() - start
        print(
            f"{iterations} iterations at rate {rate}: {ours:.6f} by ours, {theirs:.6f} by theirs, {direct:.6f} directly"
        )
        print(
            f"  CPU seconds {seconds:.3f} (first {cold_seconds:.1f}), {their_seconds:.1f}, {direct_seconds:.3f}: ",
            end="",
        )
        print(f"{their_seconds / seconds:.0f} and {their_seconds / direct_seconds:.0f} times as fast")


if __name__ == "__main__":
    main()
