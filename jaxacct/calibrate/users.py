"""Privacy of people and not of rows: the noise of the two ways of sampling a user's examples, and which needs less."""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxacct import certified, validation
from jaxacct.bounds import Bounds
from jaxacct.calibrate.secants import least
from jaxacct.mechanisms import Mechanism, PoissonSubsampledGaussian, group

CLOSE = 1e-6
"""Relative distance of the epsilon reached from the budget at which the search for the noise ends."""

ROUNDS = 40
"""Most looks of it; six are usual."""


class Sampling(NamedTuple):
    """A way of sampling, with the noise that makes it private for users.

    Attributes:
        mechanism: one step, for the accountants: its epsilon is that of a user.
        noise_multiplier: standard deviation of the noise over the clipping norm, of an example or of a user's mean.
        sampling_rate: probability of each example, or of each user, to be in a batch.
        deviation: standard deviation of the noise in the mean gradient, over the clipping norm.
        reached: certified bounds on the epsilon of all steps.
    """

    mechanism: Mechanism
    noise_multiplier: float
    sampling_rate: float
    deviation: float
    reached: Bounds


class UserLevel(NamedTuple):
    """Both ways of sampling for one budget and the same number of gradients a step.

    Attributes:
        by_example: each example independently, its gradient clipped; accounted for the group of a user's examples.
        by_user: each user independently, the mean of the gradients of some of its examples clipped once.
    """

    by_example: Sampling
    by_user: Sampling

    @property
    def crossover(self) -> float:
        """By how much larger a user's clipping norm may be than an example's for sampling by user to add less noise.

        Above 1 it does at equal norms; the mean of diverse gradients is short, and may be clipped at a smaller norm.
        """
        return self.by_example.deviation / self.by_user.deviation

    @property
    def by_user_is_better(self) -> bool:
        """Whether sampling by user adds less noise to the mean gradient at equal clipping norms."""
        return self.crossover > 1


def user_level(
    epsilon: float,
    delta: float,
    *,
    users: int,
    examples_per_user: int,
    batch_size: float,
    steps: int,
    sampled_per_user: int | None = None,
) -> UserLevel:
    """Returns what the noise has to be for a guarantee for users, sampled by example and by user.

    Args:
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        users: N, the number of users, public.
        examples_per_user: m, the most examples that a user owns (:func:`jaxacct.train.bounded_contributions` sees to
            it), and what each is taken to own.
        batch_size: gradients a step, expected; at most N m.
        steps: number of steps, fixed in advance.
        sampled_per_user: h, how many of its examples a sampled user's mean is over, at most m; m by default. Few mean
            more users a step.

    Returns:
        :class:`UserLevel`. By example the rate is ``batch_size / (N m)`` and the mechanism
        :class:`.PoissonSubsampledGroup` of size m; by user ``batch_size / (N h)`` and
        :class:`.PoissonSubsampledGaussian`, of which a user is the one example. What is divided by is the expected
        number of gradients, or of users, which depends on public numbers only.

    Formal guarantee: each way satisfies (epsilon, delta) for one user added, removed or zeroed out with all examples,
    by a certified upper bound: ``reached.upper <= epsilon``. Which of a sampled user's examples are taken may depend on
    that user's data alone: then what one user adds to the sum is a vector of norm 1 at most, or none, and all others'
    are as before. That noise is less says nothing of how well a mean over few users stands for all.

    Raises ValueError or TypeError where an argument is out of range, or no noise below 10^6 suffices.

    Source: Charles et al. (2024), "Fine-tuning large language models with user-level differential privacy".

    >>> found = user_level(2.0, 1e-6, users=100, examples_per_user=4, batch_size=40, steps=20)
    >>> f"{found.by_example.noise_multiplier:.3f} {found.by_user.noise_multiplier:.3f} {found.crossover:.3f}"
    '4.444 1.504 0.738'
    """
    validation.check_positive(epsilon, "epsilon")
    validation.check_delta(delta)
    validation.check_count(users, "users", "the number of users")
    validation.check_count(examples_per_user, "examples_per_user", "the most examples of a user")
    per_user = examples_per_user if sampled_per_user is None else sampled_per_user
    validation.check_whole(per_user, "sampled_per_user", 1, examples_per_user, "the examples of a sampled user's mean")
    validation.check_count(steps, "steps", "the number of steps")
    validation.check_positive(batch_size, "batch_size")
    if batch_size > users * per_user:
        raise ValueError(
            f"batch_size = {batch_size} is above the {users * per_user} gradients of all users: give the expected "
            "number of gradients a step."
        )

    def sampled(rate: float, size: int, sums: float) -> Sampling:
        def mechanism(log_noise: float) -> Mechanism:
            return group(PoissonSubsampledGaussian(math.exp(log_noise), rate), size)

        def reached(log_noise: float) -> Bounds:
            return certified.epsilon(mechanism(log_noise), steps, delta)

        # About the noise of a Gaussian of that sensitivity on average; a hundred times as much suffices in the end.
        start = math.log(max(size * rate * math.sqrt(steps * math.log(1 / delta)) / epsilon, 0.3 * math.sqrt(size)))
        found = least(lambda u: float(reached(u).upper) / epsilon, start, close=CLOSE, rounds=ROUNDS)
        if not found < math.log(1e6):
            raise ValueError(f"epsilon = {epsilon} at delta = {delta} was not met by any noise: give a larger budget.")
        noise = math.exp(found)
        return Sampling(mechanism(found), noise, rate, noise / sums, reached(found))

    rate = batch_size / (users * examples_per_user)
    by_example = sampled(rate, examples_per_user, float(batch_size))
    return UserLevel(by_example, sampled(batch_size / (users * per_user), 1, batch_size / per_user))
