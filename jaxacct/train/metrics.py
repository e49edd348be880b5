"""Private means over a step's batch, paid for by a share of its noise, and checks of whether a run still learns.

* :class:`Metrics`: means that are released with the gradient;
* :func:`all_finite` to :func:`check_gradients`: a run that learns nothing ends with its budget unspent, by what may be
  looked at for nothing.

Why a step costs no more. Let z be the noise multiplier that the step is accounted at, share in (0, 1), and k the number
of means. Each example has a value in [0, 1] for each of them, from which 1/2 is taken away, so that it adds at most 1/2
in magnitude to the centred sum T_i. The step releases (S + C z_g N, T_1 + s N_1, ..., T_k + s N_k), S the clipped sum
of sensitivity C, with

    z_g = z / sqrt(1 - share),  s = (z / 2) sqrt(k / share).

Divided by the constants C z_g and s, that is one Gaussian mechanism of unit noise, on a vector that adding or removing
an example moves by at most sqrt(1 / z_g^2 + k (1/2)^2 / s^2) = sqrt((1 - share) / z^2 + share / z^2) = 1 / z in L2, and
replacing one by at most twice that: no more than a Gaussian mechanism of noise multiplier z on the same batch, however
that is drawn. Where the clipping rule asks for a count of its own, it divides z_g likewise among its sum and its count
(:class:`.AdaptiveQuantile`). Values are rounded to multiples of 2^-20 and summed exactly, as whole numbers are in
float64, so that no rounding adds to the 1/2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float32, PyTree

from jaxacct import validation
from jaxacct.numerics.precision import kernel
from jaxacct.numerics.pytrees import takes_python_values
from jaxacct.train.clipping.rows import make_up, map_rows
from jaxacct.train.integer_noise import add_noise
from jaxacct.train.models import check_one_number
from jaxacct.train.ownership import entries_of, on_host

CLIPPED = "clipped"
"""Name of the share of examples whose gradients are clipped."""

UNIT = 2.0**-20
"""Unit of which counted values are multiples. Sound as long as sums of whole numbers of it are exact in float64: at
2^-20, for up to 2^33 rows. A coarser one costs precision of the means."""

ROUNDED_UP = 1 + 2.0**-49
"""Factor of 1 and 16 units of roundoff, which rounds a noise multiplier up: the formulas that it closes lose less than
four. A factor below that would break the proof above."""


@takes_python_values
@dataclass(frozen=True)
class Metrics:
    """Private means of a run's batches, and the share of each step that pays for them.

    Attributes:
        measures: by name, a pair of a function and a bound: ``function(model, *example)`` of one example, a scalar,
            which is cut to [0, bound] (NaN counts as the bound). Their means appear in :attr:`.Evaluation.metrics`.
            Examples are the loss with a bound it rarely passes, or 1 for a right answer and 0 for a wrong one.
        clipped: whether the share of examples whose gradients are clipped is one of the means.
        share: part of what each step costs, in (0, 1): the gradients' noise rises by a factor 1 / sqrt(1 - share),
            0.5 % for 0.01. Raise it where the means are too noisy, or record more rarely.

    A record is the mean over the updates since the record before. With expected batch size B and noise multiplier z,
    its noise has the standard deviation ``bound z sqrt(k / share) / (2 B sqrt(updates))`` for k means in all. Since
    batches are larger or smaller than B, a mean is unbiased but may leave [0, bound]. :class:`.AdaptiveQuantile`
    follows, and pays for, a quantile of the gradients' norms: the trainer's ``clip_norm``.

    Formal guarantee: a step costs what it costs without them (see the module).

    Raises ValueError or TypeError where a bound or ``share`` is out of range, or nothing is asked.

    >>> metrics = Metrics({"loss": (lambda model, x: model(x)[0] ** 2, 4.0)})
    >>> metrics.names, round(metrics.gradient_noise_multiplier(1.0), 4), round(metrics.deviation(1.0), 2)
    (('clipped', 'loss'), 1.005, 7.07)
    """

    measures: Mapping[str, tuple[Callable[..., Array], float]] = field(default_factory=dict)
    clipped: bool = True
    share: float = 0.01

    def __post_init__(self) -> None:
        validation.check_number(self.share, "share")
        if not 0 < self.share < 1:
            raise ValueError(f"share = {self.share} is no part of a step: give a number between 0 and 1.")
        if not isinstance(self.measures, Mapping):
            raise TypeError(f"measures = {self.measures!r}: give a dictionary of names and pairs, (function, bound).")
        if not self.measures and not self.clipped:
            raise ValueError("measures = {} and clipped = False: nothing is asked; leave metrics out.")
        if CLIPPED in self.measures:
            raise ValueError(
                f"measures has {CLIPPED!r}, the name of the share of gradients that are clipped: rename it."
            )
        # A measure without a public bound has no sensitivity, and no noise would protect it.
        for name, measure in self.measures.items():
            if not (isinstance(measure, tuple) and len(measure) == 2):
                raise TypeError(f"measures has {measure!r} for {name!r}: give a pair, (function, bound).")
            function, bound = measure
            if not callable(function):
                raise TypeError(f"measures has {function!r} for {name!r}, which is no function of a model and example.")
            validation.check_positive(bound, f"bound of {name!r}")
        object.__setattr__(self, "measures", dict(self.measures))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all means, in the order in which they get their noise."""
        return (CLIPPED,) * self.clipped + tuple(self.measures)

    @takes_python_values
    def gradient_noise_multiplier(self, noise_multiplier: float) -> float:
        """Returns ``z_g``, rounded up: what is left for the gradients of a step that costs ``noise_multiplier``."""
        return noise_multiplier / math.sqrt(1 - self.share) * ROUNDED_UP

    @takes_python_values
    def deviation(self, noise_multiplier: float) -> float:
        """Returns ``s``, rounded up: the standard deviation of the noise on each centred sum, in examples."""
        return noise_multiplier * 0.5 * math.sqrt(len(self.names) / self.share) * ROUNDED_UP

    def start(self) -> dict[str, Float32[Array, ""]]:
        """Returns the sums of the steps' means before the first step."""
        return {name: jnp.zeros((), jnp.float32) for name in self.names}

    def fractions(self, model: Callable[[], object], example: PyTree) -> list[Float32[Array, ""]]:
        """Returns what each measure says of one example, as a part of its bound; traceable.

        Raises ValueError where it is not one number: an example would count once for each of them.
        """
        values = [
            (one_number(of(model(), *example), f"measure {name!r}"), bound)
            for name, (of, bound) in self.measures.items()
        ]
        return [jnp.where(value < bound, jnp.maximum(value, 0.0) / bound, 1.0) for value, bound in values]

    def after(
        self,
        sums: Mapping[str, Array],
        key: jax.Array,
        model: Callable[[], object],
        examples: PyTree,
        mask: Bool[Array, " rows"],
        unclipped: ArrayLike,
        *,
        noise_multiplier: float,
        expected_batch_size: float,
        microbatch_size: int | None = None,
    ) -> dict[str, Float32[Array, ""]]:
        """Returns ``sums`` with the noisy means of a batch added.

        Args:
            sums: of the steps before.
            key: typed scalar key, used for nothing else.
            model: makes what the measures take, anew for each example: what they write into it is dropped.
            examples: tuple of arrays, with the leading axis ``rows``.
            mask: which rows count.
            unclipped: the centred count of :func:`~jaxacct.train.clipping.clip_and_sum` on the same batch.
            noise_multiplier: what the step is accounted at.
            expected_batch_size: a public number.
            microbatch_size: examples that are measured at a time: memory and time only. None: all.
        """
        fractions: list[Array] = []
        if self.measures:
            fractions = map_rows(functools.partial(self.fractions, model), examples, microbatch_size)
        means = self._means(key, fractions, mask, unclipped, noise_multiplier, expected_batch_size)
        return {name: sums[name] + mean.astype(jnp.float32) for name, mean in zip(self.names, means, strict=True)}

    @kernel(own_float64=True)
    def _means(
        self, key: jax.Array, fractions: list[Array], mask: Array, unclipped: ArrayLike, multiplier: float, size: float
    ) -> list[Array]:
        units = (jnp.round(jnp.clip(values.astype(jnp.float64), 0.0, 1.0) / UNIT) for values in fractions)
        sums = [jnp.where(mask, value * UNIT - 0.5, 0.0).sum() for value in units]
        if self.clipped:
            sums = [-jnp.asarray(unclipped, jnp.float64), *sums]
        bounds = (1.0,) * self.clipped + tuple(float(bound) for _, bound in self.measures.values())
        # One example moves each sum by 1/2.
        sensitivity = math.sqrt(len(sums)) / 2
        noisy = add_noise(
            key, jnp.stack(sums), noise_multiplier=self.deviation(multiplier) / sensitivity, sensitivity=sensitivity
        )
        return [bound * (total / size + 0.5) for bound, total in zip(bounds, noisy, strict=True)]


def one_number(value: ArrayLike, source: str) -> Float32[Array, ""]:
    """Returns one example's value in float32; raises ValueError where it is no scalar.

    >>> float(one_number(True, "correct"))
    1.0
    """
    check_one_number(value, source)
    return jnp.asarray(value, jnp.float32)


# ----------------------------------------------------------------------------------------------------
# Checks of whether a run still learns, by what may be looked at for nothing. A run that learns nothing ends with its
# budget unspent.
#
# Free to look at, being post-processing or public: parameters after a noisy update and whatever is computed of them,
# the settings and the ledger, examples that are nobody's. Not free: the data, its losses, its gradients, and whether
# one of them is NaN. Gradients that are not finite add nothing to the sum (:mod:`jaxacct.train.clipping`), which nobody
# may see without noise. So gradients are checked on made-up examples, before anything is paid for, and parameters after
# updates.
# ----------------------------------------------------------------------------------------------------


def all_finite(params: PyTree, *, on_one_device: bool = False) -> Bool[Array, ""]:
    """Returns whether no parameter is infinite or NaN; traceable. ``on_one_device``: none lies over several."""
    # Parameters of few entries are checked together: less to compile. Speed only.
    few, leaves = 2**16, jax.tree.leaves(params)
    small = [leaf for leaf in leaves if on_one_device and leaf.size <= few]
    joined = [
        jnp.concatenate([leaf.reshape(-1) for leaf in small if leaf.dtype == dtype])
        for dtype in dict.fromkeys(leaf.dtype for leaf in small)
    ]
    others = [leaf for leaf in leaves if not on_one_device or leaf.size > few]
    return jnp.array([jnp.isfinite(leaf).all() for leaf in joined + others], bool).all()


def root_mean_square(params: PyTree) -> float:
    """Returns the root mean square of all entries together; inf or NaN where one is.

    >>> root_mean_square({"kernel": jnp.array([3.0, 4.0]), "bias": jnp.zeros(2)})
    2.5
    """
    leaves = [on_host(leaf).astype(np.float64) for leaf in jax.tree.leaves(params)]
    return float(np.sqrt(sum(np.square(leaf).sum() for leaf in leaves) / entries_of(leaves)))


def check_parameters(params: PyTree, before: float, steps: int) -> None:
    """Raises FloatingPointError where parameters are not finite, or out of all proportion to ``before``.

    Args:
        params: after ``steps`` updates.
        before: their :func:`root_mean_square` when the call of ``fit`` began.
        steps: for the message.
    """
    # Growth is measured from 1 where parameters start below, as layers do; where targets are standardized they stay
    # near it. Only a learning rate beyond use makes them 10,000 times larger. Sound for any value: post-processing.
    after, most_growth = root_mean_square(params), 1e4
    if math.isfinite(after) and after <= most_growth * max(1.0, before):
        return
    spent = f"The run ends after {steps} updates and spends no more:"
    if not math.isfinite(after):
        raise FloatingPointError(
            f"{spent} not all of its parameters are finite, and no gradient would be. Lower the learning rate, or look "
            "for what overflows in the optimizer; clipping bounds the gradients."
        )
    raise FloatingPointError(
        f"{spent} the root mean square of its parameters went from {before:.3g} to {after:.3g}, which noise does where "
        "the learning rate is too large. Lower it, or standardize targets of that size; fit called again goes on from "
        "here."
    )


def check_gradients(loss: Callable[[PyTree, Any], Array], params: PyTree, example: Any) -> None:
    """Raises FloatingPointError where the loss has no finite gradient at any of some made-up examples.

    Every example of the data would then most likely count as zero, and the budget would buy noise.

    Args:
        loss: ``loss(params, example)``, a scalar.
        params: where training is to begin.
        example: pytree of ``jax.ShapeDtypeStruct``, one example without a batch axis.
    """
    random = np.random.default_rng(0)
    finite = jax.jit(lambda params, example: all_finite(jax.grad(loss)(params, example)))
    # The first is mostly enough, and one program does for all. Where zeros have no finite gradient the next ones may.
    draws = (np.zeros, np.ones, random.random, random.standard_normal)
    if not any(bool(finite(params, make_up(example, draw))) for draw in draws):
        raise no_finite_gradient()


def no_finite_gradient() -> FloatingPointError:
    """Returns the error of a loss that has no finite gradient at any made-up example."""
    return FloatingPointError(
        "the gradient of loss is infinite or NaN at the initial parameters, for examples of zeros, of ones, and of "
        "uniform and of normal numbers: nothing would be learned, and the budget would be spent on noise. Look for "
        "0 / 0, log(0), or a norm or root whose argument is 0, and for initial parameters that are not finite."
    )
