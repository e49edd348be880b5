"""The parts of private training, for a loop of one's own: batches, noisy gradients, and the count that bounds them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from jaxacct.precision import is_concrete
from jaxacct.pytrees import register_dataclass
from jaxacct.train.clipping import ClippingRule, clip_and_sum
from jaxacct.train.clipping.query import check_rows
from jaxacct.train.example_loss import takes_key
from jaxacct.train.groups import Batches, Budget
from jaxacct.train.keys import run_key, threefry
from jaxacct.train.noise import deviation_of_mean, privatize
from jaxacct.train.planned import Plan
from jaxacct.train.planned_ledger import PlannedLedger
from jaxacct.train.sampling import Correlated
from jaxacct.train.sampling.packing import Batch
from jaxacct.train.sampling.sampler import check_num_examples
from jaxacct.train.settings import rule_of
from jaxacct.train.spending import spending
from jaxacct.train.step import LOSS, NOISE, RULE, SAMPLE, strongly_typed


@register_dataclass
@dataclass(frozen=True, kw_only=True, repr=False)
class PrivateState:
    """What changes from one gradient to the next.

    Attributes:
        ledger: counts the plan's steps.
        rule: the clipping rule; an adaptive one carries its norm.
        step (): noisy gradients so far, which the key is folded with.
        key (): typed key of the run. Secret, as the noise can be redone from it.
    """

    ledger: PlannedLedger
    rule: ClippingRule
    step: Int32[Array, ""]
    key: jax.Array

    def __repr__(self) -> str:
        return f"<PrivateState: step {self.step}>"


@dataclass(frozen=True)
class PrivateGradients:
    """Private gradients of any loss of a pytree of parameters, as many as a plan has; made by :meth:`planned`.

    Attributes:
        loss: ``loss(params, *example)``, the scalar loss of one example without a batch axis; or
            ``loss(params, *example, key=...)``, which gets a key of its own for each example and step.
        plan: what is drawn, how much noise there is, how many steps, and what all of it costs.
        rule: how gradients are clipped, at the start.
        microbatch_size: as :func:`~jaxacct.train.clip_and_sum` takes it.
        ghost: likewise.

    A loop: :meth:`start` once, and then for each step :meth:`batch`, the examples at its indices from wherever they
    are, :meth:`gradient`, any optimizer. All but :meth:`start` work under ``jit`` and in ``lax.scan``.

    Formal guarantee: the gradients of one :meth:`start`, and all that is made of them, are (epsilon, delta)-DP for the
    addition or removal of one example, wherever the loop ends and whatever was chosen from what they gave
    (:mod:`jaxacct.train.planned`), if each state is used for one gradient, with the examples of its batch, and the loss
    reaches the data in no other way. :class:`.DPTrainer` sees to all of that by itself. That examples are worked off
    one by one is looked at before the first gradient, on made-up ones (:mod:`jaxacct.train.clipping.rows`).

    >>> private = PrivateGradients.planned(lambda w, x: jnp.sum((w - x) ** 2), 1000, epsilon=2.0, delta=1e-5,
    ...                                    epochs=4, expected_batch_size=100, clip_norm=1.0)
    >>> private.plan.steps, bool(1.99 < private.plan.certified.upper <= 2.0)
    (40, True)
    >>> state = private.start()
    >>> indices, mask = private.batch(state)
    >>> indices.shape == mask.shape == (private.plan.sampler.capacity,), state
    (True, <PrivateState: step 0>)
    """

    loss: Callable[..., Array]
    plan: Plan
    rule: ClippingRule
    microbatch_size: int | None = None
    ghost: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.plan.sampler, Correlated):
            raise ValueError(
                "plan is of correlated noise, and these gradients have independent noise: give it to DPTrainer as "
                "noise; or, in a loop of one's own, to add_noise as strategy."
            )

    @classmethod
    def planned(
        cls,
        loss: Callable[..., Array],
        num_examples: int,
        *,
        epsilon: float,
        delta: float,
        epochs: float,
        expected_batch_size: float,
        clip_norm: float | None = None,
        clipping: ClippingRule | None = None,
        microbatch_size: int | None = None,
        ghost: bool = True,
        most_examples: int | None = None,
    ) -> PrivateGradients:
        """Returns the gradients with the least noise that the certified accountant allows for so many epochs.

        Args:
            loss: ``loss(params, *example)``, or with ``key=`` besides.
            num_examples: size of the data set; public without ``most_examples``.
            epsilon: of all gradients together.
            delta: likewise; what batches cut at capacity cost is paid from it.
            epochs: expected passes over the data; steps are whole.
            expected_batch_size: of the Poisson sampled batches.
            clip_norm: bound on the L2 norm of each example's gradient, or
            clipping: a rule of :mod:`jaxacct.train.clipping`.
            microbatch_size: examples whose gradients are held in memory at a time; None: all.
            ghost: whether norms are taken without gradients where that is possible.
            most_examples: a public number, chosen without looking, that the data has at most: it protects
                ``num_examples``, as :class:`.Batches` says. Indices are then below ``num_examples``, and all else that
                is made of it speaks of ``most_examples``.

        Raises ValueError where an argument is out of range, or there is no such plan.
        """
        check_num_examples(num_examples)
        rule = rule_of(clip_norm, clipping)
        budget = Budget(epsilon, delta, epochs=epochs)
        batches = Batches(expected_batch_size=expected_batch_size, most_examples=most_examples)
        made = spending(budget, None, None, batches, num_examples).plan
        assert made is not None
        return cls(loss, made, rule, microbatch_size, ghost)

    @property
    def steps(self) -> int:
        """Of the plan: :meth:`gradient` makes no more."""
        return self.plan.steps

    @property
    def gradient_noise(self) -> float:
        """Noise multiplier of the gradients, which a rule that counts as well has raised."""
        return self.rule.gradient_noise_multiplier(self.plan.noise_multiplier)

    def start(self, seed: int | jax.Array | None = None) -> PrivateState:
        """Returns the state before the first gradient.

        ``seed`` as :func:`~jaxacct.train.run_key` takes it; None outside of experiments.
        """
        ledger = PlannedLedger.of(self.plan.runs, certified=float(self.plan.certified.upper))
        rule = jax.tree.map(strongly_typed, self.rule)
        return PrivateState(ledger=ledger, rule=rule, step=jnp.zeros((), jnp.int32), key=run_key(seed))

    def batch(self, state: PrivateState) -> Batch:
        """Returns the indices of the step's examples, in a fixed number of rows, and which rows are real."""
        return self.plan.sampler.sample(jax.random.fold_in(state.key, SAMPLE), state.step)

    def noise_deviation(self, state: PrivateState) -> Float32[Array, ""]:
        """Returns the standard deviation of the noise in each entry of the next gradient, for :func:`.adam_bc`."""
        return deviation_of_mean(self.gradient_noise, state.rule.sensitivity, self.plan.sampler.expected_batch_size)

    def gradient(
        self, params: PyTree, state: PrivateState, examples: tuple[PyTree, ...], mask: Bool[Array, " rows"]
    ) -> tuple[PyTree, PrivateState]:
        """Returns the noisy mean of the batch's clipped gradients, and the state after it.

        Args:
            params: pytree of floating-point arrays: what is trained.
            state: used once.
            examples: the parts of the examples at the indices of :meth:`batch`, each with the leading axis ``rows``.
            mask (rows,): which rows are real, as :meth:`batch` gave it.

        Returns:
            A pytree like ``params``, in their dtypes. When the plan's steps are made: zeros, without a look at the
            data, and the state as it was; ValueError where that is known before (outside ``jit``).
        """
        granted, ledger = state.ledger.spend(1)
        if is_concrete(granted) and not granted:
            raise ValueError(f"state has made all {self.steps} steps of its plan: plan more epochs to begin with.")
        rows = self.plan.sampler.capacity
        if np.shape(mask) != (rows,) or any(np.shape(part)[:1] != (rows,) for part in jax.tree.leaves(examples)):
            shapes = [np.shape(part) for part in jax.tree.leaves(examples)]
            raise ValueError(
                f"mask has shape {np.shape(mask)} and examples {shapes}: give the mask of batch(state), and the "
                f"{rows} examples at its indices."
            )
        loss, given = _of_rows(self.loss, examples, state, self)
        _check_once(self, *_shapes((params, examples)))

        def release(state: PrivateState) -> tuple[PyTree, PrivateState]:
            size = self.plan.sampler.expected_batch_size
            total, unclipped = clip_and_sum(
                loss, params, given, mask, rule=state.rule, microbatch_size=self.microbatch_size, ghost=self.ghost
            )
            noise, sensitivity = self.gradient_noise, state.rule.sensitivity
            noisy = privatize(
                _key(state, NOISE), total, noise_multiplier=noise, clip_norm=sensitivity, expected_batch_size=size
            )
            rule = state.rule.update(_key(state, RULE), unclipped, size)
            after = dataclasses.replace(state, ledger=ledger, rule=rule, step=state.step + 1)
            return jax.tree.map(lambda entry, leaf: entry.astype(leaf.dtype), noisy, params), after

        if is_concrete(granted):
            return release(state)
        return jax.lax.cond(granted, release, lambda state: (jax.tree.map(jnp.zeros_like, params), state), state)


def _of_rows(
    loss: Callable[..., Array], examples: tuple[PyTree, ...], state: PrivateState, private: PrivateGradients
) -> tuple[Callable[[PyTree, Any], Array], Any]:
    """Returns the loss by parameters and a row, and the rows: examples, with what their keys are made from."""
    if not takes_key(loss, len(examples)):
        return lambda params, row: loss(params, *row), examples
    key = threefry(_key(state, LOSS))

    def keyed(params: PyTree, row: Any) -> Array:
        return loss(params, *row[0], key=jax.random.fold_in(key, row[1]))

    return keyed, (examples, private.batch(state)[0])


def _shapes(tree: PyTree) -> tuple[Any, tuple[Any, ...]]:
    """Returns the structure of a pytree of arrays, and their shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves)


@functools.lru_cache(maxsize=64)
def _check_once(private: PrivateGradients, structure: Any, kinds: tuple[Any, ...]) -> None:
    """Raises ValueError where made-up examples are not worked off one by one, by parameters that are made up as well.

    Also where all of it is traced: nothing that is looked at has anything to do with what is. Where the loss itself
    refers to what is traced, it cannot be looked at.
    """
    params, examples = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*kind) for kind in kinds])
    one = jax.tree.map(lambda part: jax.ShapeDtypeStruct(part.shape[1:], part.dtype), examples)
    with jax.core.eval_context():
        loss, rows = _of_rows(private.loss, one, private.start(0), private)
        row = rows if rows is one else (one, jax.ShapeDtypeStruct((), jnp.int32))
        with contextlib.suppress(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
            check_rows(
                loss, params, row, private.plan.sampler.capacity, microbatch_size=private.microbatch_size,
                ghost=private.ghost,
            )  # fmt: skip


def _key(state: PrivateState, purpose: int) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(state.key, purpose), state.step)
