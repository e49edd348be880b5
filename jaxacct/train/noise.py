"""The noise of what training releases: of clipped sums, and of answers between steps.

* :func:`privatize_step`, :func:`privatize`: the mechanism of a step: Gaussian noise on a clipped sum, independent or
  correlated over steps, divided by the expected batch size;
* :class:`SparseVector`: questions about private examples, of which only "above" costs.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, ArrayLike, Float32, PyTree

from jaxacct import validation
from jaxacct.mechanisms import AboveThreshold, GaussianAboveThreshold
from jaxacct.numerics.chacha20 import is_chacha20
from jaxacct.numerics.precision import as_float64, is_concrete, kernel, scope
from jaxacct.strategies import BufferedStrategy, NoiseState, Strategy
from jaxacct.train.clipping.rules import check_finite_clip_norm
from jaxacct.train.integer_noise import VARIANCES, add_correlated, add_noise, drawn_like, draws_of, grid_of
from jaxacct.train.keys import DerivedKey, as_threefry, run_key
from jaxacct.train.ownership import Sealed, copy_tree, owned_settings
from jaxacct.train.planned import SideQuery


def privatize(
    key: jax.Array,
    total: PyTree,
    *,
    noise_multiplier: ArrayLike,
    clip_norm: ArrayLike,
    expected_batch_size: ArrayLike,
    shardings: PyTree | None = None,
) -> PyTree:
    """Returns ``(total + noise) / expected_batch_size``: a private estimate of the mean clipped gradient.

    Args:
        key: typed scalar key, used for nothing else: :func:`run_key` gives one. A ChaCha20 key draws integers on a
            grid, whose law is known; another one, of a seed, normal numbers of float64, for experiments.
        total: pytree of float64 arrays, the :func:`~jaxacct.train.clipping.clipped_sum`.
        noise_multiplier: standard deviation of the noise over ``clip_norm``, the same on every entry. ``inf``: nothing
            is released, which costs 0, and zeros are returned.
        clip_norm: sensitivity of ``total``, at most 2^60: a rule's ``sensitivity``.
        expected_batch_size: a public number. The realized size would leak who takes part.
        shardings: pytree like ``total`` of ``NamedSharding``: how it lies on a mesh. Each device then draws the noise
            of its own shards, the same bits as one device would. None: as XLA likes.

    Returns:
        Pytree like ``total``, float64. Whatever is done with it later is post-processing.

    Formal guarantee: if one example moves ``total`` by at most ``clip_norm`` in L2, this is a post-processing of the
    Gaussian mechanism with that noise multiplier, up to a total variation that ``epsilon`` and delta pay for
    (:func:`jaxacct.train.integer_noise.bill`), the generator being a pseudorandom function. With a key of another
    generator the last bits of the result may tell ``total``. A traced multiplier for which there is no grid gives NaN.

    Raises ValueError where a concrete argument is out of range; TypeError for integer noise on sums of float32.

    >>> noisy = privatize(jax.random.key(0), jnp.ones(3), noise_multiplier=0.0, clip_norm=1.0, expected_batch_size=4.0)
    >>> noisy.tolist()
    [0.25, 0.25, 0.25]
    """
    noisy, _ = privatize_step(
        key, total, None, None, noise_multiplier=noise_multiplier, clip_norm=clip_norm,
        expected_batch_size=expected_batch_size, shardings=shardings,
    )  # fmt: skip
    return noisy


def check_release(noise_multiplier: ArrayLike, clip_norm: ArrayLike, expected_batch_size: ArrayLike) -> None:
    """Raises where one of the numbers that a noisy mean is made by is no single number, or concrete and out of range.

    An array would give some entries other noise than is accounted.
    """
    numbers = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "expected_batch_size": expected_batch_size}
    for name, value in numbers.items():
        validation.check_scalar(value, name)
    validation.check_noise_multiplier(noise_multiplier)
    check_finite_clip_norm(clip_norm)
    validation.check_positive(expected_batch_size, "expected_batch_size")


def start(strategy: Strategy, like: PyTree) -> NoiseState:
    """Returns the state of correlated noise before the first step: float64, as the noise that it cancels is.

    The state remembers the noise of earlier steps, which later steps take off again. In float32 its rounding would move
    with the gradients: one example that moves d entries would differ from none by up to sqrt(d) of their last bits
    more than the sensitivity says.
    """
    with scope():
        return strategy.start(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float64), like))


def privatize_step(
    key: jax.Array,
    total: PyTree,
    strategy: Strategy | None,
    state: NoiseState | None,
    *,
    noise_multiplier: ArrayLike,
    clip_norm: ArrayLike,
    expected_batch_size: ArrayLike,
    shardings: PyTree | None = None,
    rounding: float | None = None,
) -> tuple[PyTree, NoiseState | None]:
    """Returns :func:`privatize` with the next row of C^-1 z in place of z, and the state after it.

    z is the noise that ``privatize`` adds with this key, in units of the clipping norm: the norm may change on the way.
    Without a strategy there is no state. ``rounding`` is what integers take of correlated noise
    (:func:`.rounding_of_rows`), for a ChaCha20 key; other keys draw it in float64.

    Raises TypeError where numbers of the state are not float64 as :func:`start` makes them; ValueError where it is of
    other parameters, or of another strategy.
    """
    if strategy is not None:
        _check_state(strategy, state, total)
    check_release(noise_multiplier, clip_norm, expected_batch_size)
    for leaf in jax.tree.leaves(total):
        if not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            raise TypeError(f"total has a leaf of dtype {jnp.asarray(leaf).dtype}: give sums of real gradients.")
    if is_concrete(noise_multiplier) and np.isinf(np.asarray(noise_multiplier)):
        if strategy is not None:
            raise ValueError("noise_multiplier = inf with a strategy, whose noise later steps take off: give a number.")
        with scope():
            return jax.tree.map(lambda leaf: jnp.zeros(np.shape(leaf), jnp.float64), total), state
    lying = jax.tree.leaves(shardings)
    places = None if all(place.is_fully_replicated for place in lying) else tuple(lying)
    return _add(key, total, strategy, state, (noise_multiplier, clip_norm, expected_batch_size), places, rounding)


def _check_state(strategy: Strategy, state: NoiseState | None, total: PyTree) -> None:
    """Raises where the memory of correlated noise is not that of this strategy and these sums, bit for bit."""
    made = jax.tree.leaves(jax.eval_shape(lambda: start(strategy, total)))
    shapes, wanted = [np.shape(leaf) for leaf in jax.tree.leaves(state)], [like.shape for like in made]
    if shapes != wanted:
        raise ValueError(
            f"the state of correlated noise has shapes {str(shapes)[:200]}, where this sum and strategy need "
            f"{str(wanted)[:200]}: start it with the parameters that are trained."
        )
    # A state may have been saved and restored: rounded numbers would no longer cancel earlier noise.
    for leaf, like in zip(jax.tree.leaves(state), made, strict=True):
        if jnp.issubdtype(like.dtype, jnp.floating) and leaf.dtype != like.dtype:
            raise TypeError(
                f"the state of correlated noise has {leaf.dtype} in the place of {like.dtype}: what saved or "
                "copied it rounded it, and noise that was released would not cancel. Restore it bit for bit."
            )


@kernel(own_float64=True)
def _add(
    key: jax.Array,
    total: PyTree,
    strategy: Strategy | None,
    state: NoiseState | None,
    numbers: tuple[ArrayLike, ArrayLike, ArrayLike],
    places: tuple[NamedSharding, ...] | None,
    rounding: float | None,
) -> tuple[PyTree, NoiseState | None]:
    """Returns the noisy mean in float64, and the strategy's state."""
    multiplier, norm, size = numbers
    if not is_chacha20(key):
        total = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(jnp.float64), total)
    if strategy is None:
        noisy = add_noise(key, total, noise_multiplier=multiplier, sensitivity=norm, places=places)
    else:
        assert state is not None  # never independent noise in the place of the correlated noise that is accounted
        if is_chacha20(key):
            if rounding is None or not isinstance(strategy, BufferedStrategy):
                raise TypeError(f"{type(strategy).__name__} has no account with integer noise: give a Threefry key.")
            noisy, state = add_correlated(
                key, total, strategy, state, noise_multiplier=multiplier, sensitivity=norm, rounding=rounding,
                places=places,
            )  # fmt: skip
        else:
            rows, state = strategy.correlate(drawn_like(key, total, 0, places), state)
            deviation = as_float64(multiplier) * as_float64(norm)
            noisy = jax.tree.map(lambda leaf, row: leaf + deviation * row, total, rows)
    return jax.tree.map(lambda leaf: leaf / as_float64(size), noisy), state


@kernel(own_float64=True)
def deviation_of_mean(
    noise_multiplier: ArrayLike, clip_norm: ArrayLike, expected_batch_size: ArrayLike, entries: int = 0
) -> Float32[Array, ""]:
    """Returns the standard deviation of the noise in each entry of what :func:`privatize` returns, to nearest float32.

    Public wherever the three are; for optimizers that know of the noise. ``entries`` of all leaves together, where the
    noise is in integers: it is a little larger, for it pays for the rounding of all of them; 0 for float64.

    >>> float(deviation_of_mean(2.0, 0.5, 4.0))
    0.25
    """
    multiplier, norm, size = map(as_float64, (noise_multiplier, clip_norm, expected_batch_size))
    if entries == 0 or (is_concrete(noise_multiplier) and np.asarray(noise_multiplier) in (0.0, np.inf)):
        return (multiplier * norm / size).astype(jnp.float32)
    draws = draws_of(noise_multiplier, entries)
    grid = grid_of(noise_multiplier, clip_norm, entries, draws)
    return (math.sqrt(VARIANCES[draws]) * grid / size).astype(jnp.float32)


# ----------------------------------------------------------------------------------------------------
# Sparse vector technique between steps of training.
# ----------------------------------------------------------------------------------------------------


class SparseVector(Sealed):
    """A noisy threshold that noisy queries are compared with, until its runs are spent: to stop training early, say.

    A run ends with its first "above", and with Gaussian noise after ``mechanism.queries`` questions. The next question
    begins another run, with a threshold drawn anew; where no run is left, the question is refused.

    Args:
        mechanism: the mechanism of one run: :class:`jaxacct.AboveThreshold` or
            :class:`jaxacct.GaussianAboveThreshold`, a single one.
        threshold: public, in the queries' units.
        sensitivity: the most that one example moves any query, finite; 1 for the number of validation examples that are
            classified rightly. (An accuracy is that over the number of examples, which has to be public.)
        runs: number of runs that it may begin, at least 1.
        seed: as :func:`run_key` takes it; None outside of experiments.

    Formal guarantee: all answers are those of ``runs`` adaptive runs of the mechanism, for its relations, if each query
    has the sensitivity; with noise of float64 for noise on the real line, which is assumed and not proved (answers show
    one bit each, no digits of the noise). Count them with what else is released:
    ``ja.epsilon((steps_mechanism, stop.mechanism), (steps, stop.runs), delta)``, or :meth:`side_query` in a planned
    run, whose certificate has them. A new object, made after an interruption for example, makes runs of its own; no
    object can be copied, and several threads that ask one are answered one after another.

    Raises ValueError where an argument is out of range or is no single number, TypeError for another mechanism.

    >>> stop = SparseVector(AboveThreshold(2.0, 4.0), threshold=900.0, sensitivity=1.0)
    >>> stop.above(100.0), stop.above(2000.0), stop.left
    (False, True, 0)
    """

    def __init__(
        self,
        mechanism: AboveThreshold | GaussianAboveThreshold,
        threshold: float,
        *,
        sensitivity: float,
        runs: int = 1,
        seed: int | jax.Array | DerivedKey | None = None,
    ) -> None:
        if not isinstance(mechanism, (AboveThreshold, GaussianAboveThreshold)):
            raise TypeError(f"mechanism = {mechanism!r} is no sparse vector: give a jaxacct.AboveThreshold.")
        mechanism.check_numbers()
        mechanism.validate()
        if mechanism.batch_shape:
            raise ValueError(f"mechanism = {mechanism} is a sequence: give one, of numbers.")
        validation.check_finite(threshold, "threshold")
        validation.check_positive(sensitivity, "sensitivity")
        runs = validation.check_count(runs, "runs", "the number of runs")
        for name, value in (("threshold", threshold), ("sensitivity", sensitivity)):
            validation.check_scalar(value, name)
        self.mechanism, self.runs = owned_settings(mechanism, "mechanism"), int(runs)
        self._threshold, self._sensitivity = float(threshold), float(sensitivity)
        key = as_threefry(run_key(seed))
        self._key, self._begun, self._asked, self._noisy = copy_tree(key), 0, 0, math.nan
        self._answering = threading.Lock()

    @property
    def left(self) -> int:
        """Number of runs left, the one in progress included."""
        return self.runs - self._begun + (self._asked > 0)

    def above(self, value: float) -> bool:
        """Returns whether ``value`` plus noise reaches the threshold plus noise; ends the run where it does.

        Raises RuntimeError where all runs are spent, and ValueError where ``value`` is not finite: no such query has a
        sensitivity.
        """
        if not abs(value) <= sys.float_info.max:
            raise ValueError(f"value = {value} is not finite: clip what is summed to a range, and count a NaN as 0.")
        kept = self.mechanism
        most = int(np.asarray(kept.queries)) if isinstance(kept, GaussianAboveThreshold) else math.inf
        with self._answering:  # one question after the other, whoever asks
            if self.left == 0:
                raise RuntimeError(
                    f"all {self.runs} runs are spent: a further answer is not paid for. Stop, or plan more."
                )
            if self._asked == 0:
                self._begun += 1
                self._noisy = self._threshold + self._noise(self._scales[0])
            self._asked += 1
            reached = float(value) + self._noise(self._scales[1]) >= self._noisy
            if reached or self._asked >= most:
                self._asked = 0
            return bool(reached)

    def side_query(self, steps: int) -> SideQuery:
        """Returns what a planned run of so many steps pays for all runs: an entry of ``DPTrainer(queries=...)``.

        Raises ValueError for fewer steps than runs.
        """
        steps = validation.check_whole(
            steps, "steps", self.runs, validation.MOST_COUNT, "steps of a plan, at least runs"
        )
        return SideQuery(self.mechanism, steps // self.runs)

    @property
    def _scales(self) -> tuple[Any, Any]:
        """Scales of the threshold's and of a query's noise, in units of the sensitivity."""
        kept = self.mechanism
        if isinstance(kept, AboveThreshold):
            return kept.threshold_scale, kept.query_scale
        return kept.threshold_noise, kept.query_noise

    def _noise(self, scale: Any) -> float:
        self._key, key = jax.random.split(self._key)
        with scope():
            z = np.asarray(drawn_like(key, jnp.zeros(4), 0, None))
        # Half the sum of two squared normals is exponential, and the difference of two exponentials is Laplace noise.
        noise = (z @ (z * [1, 1, -1, -1])) / 2 if isinstance(self.mechanism, AboveThreshold) else z[0]
        return float(scale) * self._sensitivity * float(noise)
