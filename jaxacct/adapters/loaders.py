"""Batches as loaders really draw them: shuffled and cut, and the verdict on an epsilon that was claimed of such a run.

In reading order:

- :class:`ShuffledBatches`: what a loader did, the mechanisms that it is, and :meth:`ShuffledBatches.judge`.
- :func:`judge`, :func:`rule`: whether an epsilon holds of a composition, by its bracket.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxacct import certified, validation
from jaxacct.bounds import Bounds, enclose
from jaxacct.choices import Ruling, Verdict
from jaxacct.display import rounded_up
from jaxacct.mechanisms import Gaussian, Mechanism, Relation, ShuffledGaussian
from jaxacct.mechanisms.mechanism import Mechanisms, Steps
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.validation import MOST_STEPS

RELATIONS: tuple[Relation, ...] = ("zero_out", "replace")
"""Relations under which the number of examples is the same, and with it the places of all others."""


@takes_python_values
@dataclass(frozen=True)
class ShuffledBatches:
    """The batches of a loader that shuffles: in every epoch the data in some order, cut into batches.

    Attributes:
        examples: number of examples.
        batch_size: number of examples in a batch, over all processes that share a step.
        drop_last: whether the examples that fill no batch are left out of an epoch; by default the last batch of an
            epoch is smaller.
        reshuffles: whether each epoch has an order of its own; False for one order in all epochs, as of data that were
            shuffled once, of a cache behind the shuffling, or of a sampler whose epoch is never set.
        is_padded: whether examples come twice in an epoch to fill the last batch or the last process, as PyTorch's
            distributed sampler and Accelerate's even batches do by default. The former does where the processes do not
            divide ``examples``: else give False, or lower ends are too high.
        seed: the seed of the orders where anybody knows it: a loader's default, one that was written down, one that is
            tried out. None stands for an order that is uniformly random and secret.

    Formal guarantee: that of :class:`jaxacct.ShuffledGaussian` for secret orders. A known order amplifies nothing: then
    an epoch is one :class:`jaxacct.Gaussian` run, for in every epoch an example is in one batch (of a padded order in
    two: two runs). Either is for noise of one scale throughout, for gradients that are clipped by
    example, and for the relations "zero_out" and "replace": with one example less all cuts would move.

    Raises ValueError where a number is out of range.

    >>> opacus = ShuffledBatches(examples=60_000, batch_size=64)
    >>> opacus.steps_per_epoch
    938
    >>> ShuffledBatches(60_000, 64, seed=42).compose(1.0, 9380)
    ((Gaussian(noise_multiplier=1.0),), (10,))
    """

    examples: int
    batch_size: int
    drop_last: bool = False
    reshuffles: bool = True
    is_padded: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        validation.check_whole(self.examples, "examples", 1, MOST_STEPS, "the number of examples")
        validation.check_whole(self.batch_size, "batch_size", 1, self.examples, "the size of a batch, of all examples")
        for name in ("drop_last", "reshuffles", "is_padded"):
            validation.check_type(getattr(self, name), name, bool)
        if self.is_padded and self.drop_last:
            raise ValueError("is_padded and drop_last: an epoch repeats examples or leaves some out: give one of them.")
        if self.seed is not None:
            validation.check_whole(self.seed, "seed", 0, 2**128, "the seed of the orders, or None if it is secret")

    @property
    def full_batches(self) -> int:
        """Number of batches of full size in an epoch."""
        return self.examples // self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return self.full_batches if self.drop_last else -(-self.examples // self.batch_size)

    def compose(self, noise_multiplier: float, steps: int) -> tuple[tuple[Mechanism, ...], tuple[int, ...]]:
        """Returns the mechanisms that a run of so many steps is, and the number of runs of each.

        What accountants say of them holds under :data:`RELATIONS` alone, also where they know others.

        Raises ValueError where no lower bound is known, or a number is out of range.
        """
        epochs, left = divmod(validation.check_whole(steps, "steps", 0, MOST_STEPS, "the steps"), self.steps_per_epoch)
        fills = self.examples % self.batch_size == 0
        if self.seed is not None:
            twice = self.is_padded and not fills
            most = epochs * (1 + twice) + (left > 0)
            # Some example comes as often as the mean. With one order it is one of the first batch, which always comes.
            places = (
                steps * self.batch_size if twice or self.drop_last else epochs * self.examples + left * self.batch_size
            )
            if self.reshuffles and most > -(-places // self.examples):
                raise ValueError(
                    f"steps = {steps}: of known orders that differ, and leave out or repeat examples, an upper bound "
                    f"alone is known, that of {most} runs of Gaussian(noise_multiplier): account for that. It need not "
                    "be that any example came so often."
                )
            return (Gaussian(noise_multiplier),), (most,)
        if self.is_padded and not fills:
            raise ValueError(
                "is_padded = True: of a secret order that repeats examples an upper bound alone is known, that of "
                "ShuffledGaussian(noise_multiplier / 3**0.5, batches), or of Gaussian(noise_multiplier / 2**0.5) where "
                "that is smaller. Drop what fills no batch (drop_last), or take examples that fill all."
            )
        remainder = "even" if fills else "dropped" if self.drop_last else "small"
        one = ShuffledGaussian(noise_multiplier, self.full_batches, remainder=remainder)
        if not self.reshuffles:
            if left or not epochs:
                raise ValueError(
                    f"steps = {steps} are no whole epochs of {self.steps_per_epoch} steps, in one order for all: give "
                    "whole epochs, rounded up for an upper bound and down for a lower one."
                )
            return (replace(one, epochs_per_shuffle=epochs),), (1,)
        parts = [(one, epochs)] if epochs or not left else []
        parts += [(replace(one, stop_after=left), 1)] if left else []
        return tuple(part for part, _ in parts), tuple(count for _, count in parts)

    @takes_python_values
    def judge(
        self, noise_multiplier: float, steps: int, epsilon: float, delta: float, relation: Relation = "zero_out"
    ) -> Verdict:
        """Returns whether the epsilon that somebody claims at ``delta`` holds for such a run.

        Args:
            noise_multiplier: standard deviation of the noise over the clipping norm.
            steps: number of steps of the run.
            epsilon: the claim, an accountant's for Poisson samples say.
            delta: failure probability in (0, 1).
            relation: "zero_out" or "replace".

        Formal guarantee: PROVED where the certified upper bound is at most ``epsilon``, REFUTED where two neighbouring
        data sets are told apart better than ``epsilon`` allows (the certified lower bound of :func:`jaxacct.epsilon`),
        else UNDECIDED. ``truth`` of the verdict has both bounds, the upper one of which may be claimed.

        Raises ValueError where :meth:`compose` does, and for another relation.

        >>> public = ShuffledBatches(examples=60_000, batch_size=64, seed=42)
        >>> verdict = public.judge(1.0, 9380, epsilon=0.494, delta=1e-5)  # Poisson's; of a secret order [4.57, 6.23]
        >>> verdict.status.value, f"{verdict.truth[0]:.2f}"
        ('REFUTED', '17.86')
        """
        check_shuffled(relation)
        return judge(*self.compose(noise_multiplier, steps), epsilon, delta, relation)


def check_shuffled(relation: Relation) -> None:
    """Raises ValueError for a relation under which nothing is known of batches that are cut from one order."""
    if relation not in RELATIONS:
        raise ValueError(
            f"relation = {relation!r}: of batches that are cut from one order of the data nothing is known under it: "
            "with one example less all later batches hold other examples, and there may be a step less. Give "
            "'zero_out' (an example contributes nothing, and keeps its place) or 'replace'."
        )


def judge(mechanism: Mechanisms, steps: Steps, epsilon: float, delta: float, relation: Relation) -> Verdict:
    """Returns whether a composition is (``epsilon``, ``delta``)-DP, as far as :func:`jaxacct.epsilon` knows."""
    return rule(mechanism, certified.epsilon(mechanism, steps, delta, relation=relation), epsilon, delta, relation)


def rule(mechanism: Mechanisms, bounds: Bounds, epsilon: float, delta: float, relation: Relation) -> Verdict:
    """Returns the verdict on an epsilon that follows from a composition's bracket at ``delta``.

    A bracket's lower end says nothing of a mechanism that is neither tight nor tells what data sets attain.
    """
    validation.check_epsilon(epsilon)
    parts = mechanism if isinstance(mechanism, (tuple, list)) else (mechanism,)
    is_known = all(part.tight or part.attained(relation) for part in parts)
    lower, upper = float(bounds.lower) if is_known else 0.0, float(bounds.upper)
    status = Ruling.PROVED if upper <= epsilon else Ruling.REFUTED if epsilon < lower else Ruling.UNDECIDED
    said = {
        Ruling.PROVED: "is not below the upper bound",
        Ruling.REFUTED: "is below what two data sets attain",
        Ruling.UNDECIDED: "lies between the bounds"
        if is_known
        else "is below the upper bound, and no lower one is known",
    }[status]
    claim = f"epsilon = {rounded_up(epsilon)} at delta = {rounded_up(delta)}"
    return Verdict(status, (lower, upper), f"{claim} {said}: the truth is in {enclose(lower, upper, True)}")
