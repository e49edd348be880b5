"""Sparse vector technique between steps of training: questions about private examples, of which only "above" costs."""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import jax
import numpy as np

from jaxacct import validation
from jaxacct.mechanisms import AboveThreshold, GaussianAboveThreshold
from jaxacct.train.keys import DerivedKey, run_key
from jaxacct.train.noise import standard_normal
from jaxacct.train.owned import Sealed, Sole, owned, owned_settings
from jaxacct.train.planned import SideQuery


class SparseVector(Sole, Sealed):
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
    has the sensitivity; up to the generator, and with float64 for the real line. Count them with what else is released:
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
        if mechanism.batch_shape:
            raise ValueError(f"mechanism = {mechanism} is a sequence: give one, of numbers.")
        validation.check_finite(threshold, "threshold")
        validation.check_positive(sensitivity, "sensitivity")
        validation.check_count(runs, "runs", "the number of runs")
        for name, value in (("threshold", threshold), ("sensitivity", sensitivity)):
            validation.check_scalar(value, name)
        self.mechanism, self.runs = owned_settings(mechanism, "mechanism"), int(runs)
        self._threshold, self._sensitivity = float(threshold), float(sensitivity)
        self._key, self._begun, self._asked, self._noisy = owned(run_key(seed)), 0, 0, math.nan
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
        with self._answering:  # one question after the other, whoever asks
            return self._above(float(value))

    def _above(self, value: float) -> bool:
        if self.left == 0:
            raise RuntimeError(f"all {self.runs} runs are spent: a further answer is not paid for. Stop, or plan more.")
        if self._asked == 0:
            self._begun += 1
            self._noisy = self._threshold + self._noise(self._scales[0])
        self._asked += 1
        reached = value + self._noise(self._scales[1]) >= self._noisy
        capped = isinstance(self.mechanism, GaussianAboveThreshold) and self._asked >= int(
            np.asarray(self.mechanism.queries)
        )
        if reached or capped:
            self._asked = 0
        return bool(reached)

    def side_query(self, steps: int) -> SideQuery:
        """Returns what a planned run of so many steps pays for all runs: an entry of ``DPTrainer(queries=...)``.

        Raises ValueError for fewer steps than runs.
        """
        validation.check_whole(steps, "steps", self.runs, validation.MOST_COUNT, "steps of a plan, at least runs")
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
        z = np.asarray(standard_normal(key, (4,)))
        # Half the sum of two squared normals is exponential, and the difference of two exponentials is Laplace noise.
        noise = (z @ (z * [1, 1, -1, -1])) / 2 if isinstance(self.mechanism, AboveThreshold) else z[0]
        return float(scale) * self._sensitivity * float(noise)
