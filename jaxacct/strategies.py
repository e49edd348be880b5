"""The matrix mechanism's strategies: participation of examples, sensitivity, streamed noise, and error.

A strategy C correlates the noise of steps: step t releases x_t + (C^-1 z)_t. Its account depends on the noise
multiplier, on C's sensitivity and on how examples come to steps. In reading order:

- participation (:class:`SinglePass`, :class:`MinSeparation`, :class:`FixedEpochs`, :class:`CyclicPoisson`),
- patterns of participation, and upper bounds on sensitivities (:func:`of_toeplitz`, :func:`of_matrix`),
- :class:`Strategy`, a stream of noise, and :class:`BufferedStrategy`, a matrix whose rows make one,
- Toeplitz strategies, matrices, other libraries' streams, and tree aggregation,
- the error in a workload (:func:`squared_errors`).

An example added or removed must leave the steps of all others as they are: each of them has its steps by its own coins,
by its arrival, or by its place in a data set whose other places stay. Batches cut from a list of all examples do not:
there the relation is "replace", under which an example's place is taken by another one.

Balls-in-bins, each example in one step of every epoch at random, is a mechanism of its own: :class:`.BallsInBins`, or
:class:`.RandomAllocation` with independent noise. Of b-min-sep sampling only Monte Carlo estimates are known: it is
left out, and :class:`MinSeparation` bounds it, without amplification.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from jaxacct import validation
from jaxacct.numerics.precision import UNIT_ROUNDOFF, as_float64, is_concrete, kernel, leave_scope, scope
from jaxacct.numerics.pytrees import flag, register_dataclass, takes_python_values

__all__ = [
    "BandedToeplitz",
    "BufferedStrategy",
    "BufferedToeplitz",
    "CyclicPoisson",
    "Dense",
    "FixedEpochs",
    "HonakerTree",
    "MinSeparation",
    "NoiseState",
    "Participation",
    "Pattern",
    "Restarted",
    "SinglePass",
    "Strategy",
    "Streamed",
    "Workload",
    "identity",
    "square_root",
    "squared_errors",
]


class Unsampled(abc.ABC):
    """Participation by a pattern, whoever chooses among its sets, even adaptively. Nothing is amplified."""

    @property
    @abc.abstractmethod
    def pattern(self) -> Pattern:
        """The sets of steps that an example may take part in."""


@register_dataclass
@dataclass(frozen=True)
class SinglePass(Unsampled):
    """Each example takes part in at most one of ``steps`` steps.

    >>> SinglePass(steps=100).pattern
    Pattern(steps=100, separation=100, most=1, is_fixed=False)
    """

    steps: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        validation.check_count(self.steps, "steps", "the number of steps")

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.steps, self.steps, 1)


@register_dataclass
@dataclass(frozen=True)
class MinSeparation(Unsampled):
    """Each two participations of an example are at least ``separation`` steps apart.

    Attributes:
        steps: n, static as all of these.
        separation: b, at least 1, which allows any steps.
        most: k, the most participations; None for as many as fit. Epochs in orders of their own are b = 1, k epochs.

    >>> MinSeparation(steps=100, separation=30).pattern.most
    4
    """

    steps: int = field(metadata={"static": True})
    separation: int = field(metadata={"static": True})
    most: int | None = field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        validation.check_count(self.steps, "steps", "the number of steps")
        validation.check_count(self.separation, "separation", "the least distance of participations")
        if self.most is not None:
            validation.check_count(self.most, "most", "the most participations of an example")

    @property
    def pattern(self) -> Pattern:
        separation = min(self.separation, self.steps)
        fit = -(-self.steps // separation)
        return Pattern(self.steps, separation, fit if self.most is None else min(self.most, fit))


@register_dataclass
@dataclass(frozen=True)
class FixedEpochs(Unsampled):
    """Epochs in one order: an example takes part in the same step of each.

    >>> FixedEpochs(steps_per_epoch=10, epochs=3).pattern
    Pattern(steps=30, separation=10, most=3, is_fixed=True)
    """

    steps_per_epoch: int = field(metadata={"static": True})
    epochs: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        validation.check_count(self.steps_per_epoch, "steps_per_epoch", "the number of steps of an epoch")
        validation.check_count(self.epochs, "epochs", "the number of epochs")
        validation.check_count(self.steps_per_epoch * self.epochs, "steps_per_epoch * epochs", "the number of steps")

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.steps_per_epoch * self.epochs, self.steps_per_epoch, self.epochs, is_fixed=True)


@register_dataclass
@dataclass(frozen=True)
class CyclicPoisson:
    """Participation in groups that take turns: a step samples from its group by a coin of each example.

    Attributes:
        steps: n, static.
        groups: b, static: step t samples from group t mod b. As many as bands of the strategy, or more.
        sampling_rate (): probability of an example of the group to be in the batch. With batches of B out of m examples
            it is b B / m.
        equal_groups: whether the examples were divided such that the groups have one size, static. Then one example
            more or less may move others to another group: the only relation is "replace". Otherwise each example's
            group is drawn by itself, or is that of its place, once for all epochs.

    >>> CyclicPoisson(steps=100, groups=8, sampling_rate=0.1).cycles
    13
    """

    steps: int = field(metadata={"static": True})
    groups: int = field(metadata={"static": True})
    sampling_rate: ArrayLike
    equal_groups: bool = field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        validation.check_count(self.steps, "steps", "the number of steps")
        validation.check_count(self.groups, "groups", "the number of groups")
        validation.check_sampling_rate(self.sampling_rate, zero=True)

    @property
    def cycles(self) -> int:
        """Number of turns of the first group; the others have at most as many."""
        return -(-self.steps // self.groups)

    @property
    def pattern(self) -> Pattern:
        """The sets of steps of one turn."""
        return Pattern(self.steps, self.steps, 1)


Participation: TypeAlias = Unsampled | CyclicPoisson
"""Rules by which examples come to steps."""


# ----------------------------------------------------------------------------------------------------
# Patterns: the sets of steps that an example may take part in, for which sensitivities are bounded
# ----------------------------------------------------------------------------------------------------


class _Sets(NamedTuple):
    steps: int
    separation: int
    most: int
    is_fixed: bool = False


class Pattern(_Sets):
    """Sets of steps, at most ``most`` of them, each two at least ``separation`` apart; subsets belong to it as well.

    Attributes:
        steps: n, the number of steps; they are counted from 0.
        separation: b, at least 1.
        most: k, the most participations of one example; at most ceil(n / b).
        is_fixed: whether neighbouring ones are exactly ``separation`` apart.

    Raises TypeError or ValueError where a number is none from 1 to 2^31 - 1.
    """

    __slots__ = ()

    def __new__(cls, steps: int, separation: int, most: int, is_fixed: bool = False) -> Self:
        return super().__new__(
            cls,
            validation.check_count(steps, "steps", "the number of steps"),
            validation.check_count(separation, "separation", "the least distance of participations"),
            validation.check_count(most, "most", "the most participations of an example"),
            flag(is_fixed, "is_fixed"),
        )


# ----------------------------------------------------------------------------------------------------
# Sensitivity: upper bounds over a pattern, rounding included
#
# Let an example take part in the steps of a set T, with contributions g_t of norm at most 1. It moves C x by
# sum of C[:, t] g_t^T over T, whose squared norm is
#
#     sum over s, t in T of X[s, t] <g_s, g_t>  <=  sum over s, t in T of |X[s, t]|,    X = C^T C.
#
# The right-hand side is attained by equal contributions where X >= 0, so where C >= 0. It grows with T. Below are
# bounds on its maximum over a pattern's sets. With b the least distance, and at most k participations:
#
# *Toeplitz*, C[i, j] = c[i-j]: for s <= t, |X[s, t]| <= F(t - s, t) with F(d, m) = sum of |c[u] c[u+d]| over
# u < n - m, which does not increase in m. The i-th participation, counted from 0, is at step t_i >= i b, and
# t_j - t_i >= (j - i) b. So with H(d, m) = max of F(d', m) over d' >= d the sum is at most
#
#     sum over i, j < k of H(|i - j| b, max(i, j) b).
#
# Where |c| does not increase, neither does F in d: H = F, and the sum is the squared norm of the columns 0, b, 2b, ...
# of |C| added up. Thus for c >= 0 that does not increase it is exact (Kalinin and Lampert (2024), "Banded square root
# matrix factorization for differentially private model training", Theorem 2, with another proof). Where distances are
# exactly b no maximum over d' is needed, and c >= 0 suffices.
#
# *Any matrix*: let R[s] be the largest sum of |X[s, t]| over t in T, over the sets T of the pattern that hold s. Then
# the sum over s, t is at most the largest sum of R over a set of the pattern. Both maxima are found by dynamic
# programming (Choquette-Choo et al. (2023), "(Amplified) banded matrix factorization", Algorithms 3 and 4, where T in
# R[s] need not hold s). Where C has at most b bands, X[s, t] = 0 for all other steps of T: R[s] = X[s, s], and it is
# exact.
#
# *Rounding*: sums of m products of positive numbers err by at most (m + 1) units of roundoff u relatively, to first
# order and in any order of summation; where X has differences, the error is the same multiple of |C|^T |C|. Bounds are
# raised by four times that.
# ----------------------------------------------------------------------------------------------------


def check_dense(steps: int) -> None:
    """Raises ValueError where a matrix of so many steps is too large to be formed entry by entry."""
    # Most steps for which X is formed, which then takes 128 MiB. A limit of memory alone.
    most = 4096
    if steps > most:
        raise ValueError(
            f"steps = {steps} are too many for a matrix that is not Toeplitz: {most} at most; banded and "
            "buffered Toeplitz strategies are bounded for any number."
        )


def of_toeplitz(coefficients: np.ndarray, pattern: Pattern, error: float = 0.0) -> float:
    """Returns the bound for a Toeplitz matrix of these coefficients (steps,), each known up to a relative ``error``."""
    steps, separation, most, is_fixed = pattern
    c = np.abs(coefficients)
    if is_fixed or np.all(np.diff(c) <= 0):
        column = np.zeros(steps)
        # The squared norm of the columns 0, b, 2b, ... of |C| added up.
        for start in range(0, most * separation, separation):
            column[start:] += c[: steps - start]
        return _root(float(np.sum(column**2)), steps + 2 * most, error)
    length = int(np.flatnonzero(c)[-1]) + 1
    total = 0.0
    # The sum over pairs of participations, by the later one: its own term, and twice those with the earlier ones.
    for last in range(most):
        # F(d, last * separation) for every d, then its maximum over the distances from d on.
        products = np.correlate(c[:length], c[: min(length, steps - last * separation)], mode="full")
        products = products[min(length, steps - last * separation) - 1 :]
        largest = np.maximum.accumulate(products[::-1])[::-1]
        distances = np.arange(1, last + 1) * separation
        total += products[0] + 2 * float(np.sum(largest[distances[distances < length]]))
    return _root(total, length + 2 * most * most, error)


def of_matrix(matrix: np.ndarray, pattern: Pattern, error: float = 0.0) -> float:
    """Returns the bound for any matrix (rows, steps), whose entries are known up to a relative ``error``."""
    # Number of rows of X that go through the dynamic program side by side. Speed only.
    rows_at_once = 256
    steps, separation, most, is_fixed = pattern
    check_dense(steps)
    if most == 1:
        return _root(float(np.max(np.sum(matrix**2, axis=0))), len(matrix), error)
    gram = matrix.T @ matrix
    if np.all(matrix >= 0):
        weights = gram
    else:
        weights = np.abs(gram) + 4 * (len(matrix) + 1) * UNIT_ROUNDOFF * (np.abs(matrix).T @ np.abs(matrix))
    if is_fixed:
        chosen = (np.arange(start, steps, separation)[:most] for start in range(steps))
        best = max(float(np.sum(weights[np.ix_(steps_of, steps_of)])) for steps_of in chosen)
    else:
        rows = np.diagonal(weights).copy()
        if most > 1:
            # R[s]: its own entry and the best others, at least ``separation`` from it; blocks of rows at once.
            for start in range(0, steps, rows_at_once):
                block = weights[start : start + rows_at_once].copy()
                for row, values in enumerate(block, start):
                    values[max(row - separation + 1, 0) : row + separation] = 0.0
                rows[start : start + rows_at_once] += _best(block, separation, most - 1)
        best = float(_best(rows[None], separation, most)[0])
    return _root(best, len(matrix) + 2 * most * most, error)


def _best(weights: np.ndarray, separation: int, most: int) -> np.ndarray:
    """Returns for each row of weights, at least 0, the largest sum of at most ``most``, ``separation`` apart."""
    columns = np.ascontiguousarray(weights.T)
    # After each round ``best[step]`` is the largest sum of so many participations among the steps before ``step``.
    best = np.zeros((len(columns) + 1, columns.shape[1]))
    for _ in range(most):
        taken = np.empty_like(best)
        taken[0] = 0.0
        for step, values in enumerate(columns):
            np.maximum(taken[step], best[max(step - separation + 1, 0)] + values, out=taken[step + 1])
        best = taken
    return best[-1]


def _root(square: float, terms: int, error: float) -> float:
    """Returns an upper bound on the root of a square that was found by sums of so many terms."""
    raised = square * (1 + 4 * (terms + 8) * UNIT_ROUNDOFF) * (1 + error) ** 2
    return math.nextafter(math.sqrt(raised) * (1 + 4 * UNIT_ROUNDOFF), math.inf)


# ----------------------------------------------------------------------------------------------------
# The base of strategies: a lower-triangular matrix C whose inverse correlates the noise of steps, row by row
# ----------------------------------------------------------------------------------------------------

Step: TypeAlias = Int[Array, ""] | int
"""Number of a step, from 0; or a number of steps."""


@register_dataclass
@dataclass(frozen=True)
class NoiseState:
    """Memory of a stream of correlated noise between steps: a pytree for the trainer's state and checkpoints.

    Attributes:
        step (): number of rows streamed so far, int32.
        buffers: pytree like the parameters, with one more axis in front, that of the strategy's buffers; float32 at
            least. Sharded like the parameters, with the first axis whole.

    >>> from jaxacct.strategies import square_root
    >>> square_root(4).start(jnp.zeros(10)).buffers.shape
    (3, 10)
    """

    step: Int[Array, ""]
    buffers: PyTree


class Strategy(abc.ABC):
    """A strategy matrix C of the matrix mechanism: steps release ``x_t + (C^-1 z)_t`` in place of ``x_t + z_t``.

    x_t is the clipped sum of a step and z_t independent Gaussian noise. Everything released is a function of C x + z,
    row by row: a Gaussian mechanism whose sensitivity is that of C x (:meth:`sensitivity`). Prefix sums, and so the
    model after t steps, get the noise of A C^-1 in place of A, which may be far less (:func:`.squared_errors`).

    This is the interface of a stream of noise. :class:`BufferedStrategy` makes one of a matrix's rows.

    Source: Li et al. (2015), "The matrix mechanism"; adaptive inputs, Denisov et al. (2022), "Improved differential
    privacy for SGD via optimal private linear operators on adaptive streams", and :class:`.MatrixMechanism`.
    """

    def validate(self) -> None:  # noqa: B027 (a strategy of the caller's need not have any checks)
        """Raises where a concrete number is out of range, for JAX may have rebuilt the strategy."""

    @abc.abstractmethod
    def start(self, like: PyTree) -> NoiseState:
        """Returns the state before the first step, of noise like these arrays (or ``jax.ShapeDtypeStruct``)."""

    @abc.abstractmethod
    def correlate(self, noise: PyTree, state: NoiseState) -> tuple[PyTree, NoiseState]:
        """Returns the next row of C^-1 z and the state after it, ``noise`` being the next row of z."""

    @abc.abstractmethod
    def sensitivity(self, pattern: Pattern) -> float:
        """Returns an upper bound on the L2 sensitivity of C x, rounding included, for inputs with norms of at most 1.

        Raises TypeError where the strategy is traced: bounds are of numbers, found on the host.
        """

    def bands(self, steps: int) -> int:
        """Returns a number b with C[i, j] = 0 for i - j >= b: nearer steps share noise. By default it is all steps."""
        return steps

    def after(self, steps: Step, draw: Callable[[Array], PyTree], like: PyTree) -> NoiseState:
        """Returns the state after some steps, recomputed from the noise ``draw(step)`` of each: none is drawn anew."""

        def following(step: Array, state: NoiseState) -> NoiseState:
            return self.correlate(draw(step), state)[1]

        # The state is the stream's own, so that no noise but a step's own is in memory.
        return jax.lax.fori_loop(0, steps, following, self.start(like))

    def solve(self, noise: PyTree) -> PyTree:
        """Returns C^-1 z, for arrays (steps, ...): the rows that :meth:`correlate` gives one by one."""
        return jax.lax.scan(lambda state, row: self.correlate(row, state)[::-1], self._start_of(noise), noise)[1]

    def _start_of(self, rows: PyTree) -> NoiseState:
        """Returns the state before the first of these rows, arrays (steps, ...)."""
        return self.start(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows))


class BufferedStrategy(Strategy):
    """A strategy whose rows are known: it streams by :attr:`buffers` copies of the noise, never all steps.

    With y = C^-1 z, row t of C y = z says that z_t is y_t times one number plus a combination of buffers, which hold
    what later rows need of the rows before. A subclass gives the numbers, and the buffers after a row: :meth:`entries`
    and :meth:`keep`. All are pure functions of noise and state: a restart that draws the same noise for the same step
    (keys by ``jax.random.fold_in(key, step)``) goes on as if it had not stopped. Numbers are float32's, and are used as
    they are, so that the account is of the matrix that makes the noise, up to the rounding of the noise itself.
    """

    @property
    @abc.abstractmethod
    def buffers(self) -> int:
        """Number of copies of the noise that a stream remembers."""

    @abc.abstractmethod
    def entries(self, step: Step) -> tuple[Array, Array]:
        """Returns row ``step`` of C: its entry () on the diagonal, and the factors (buffers,) of the buffers."""

    @abc.abstractmethod
    def keep(self, kept: Array, row: Array, step: Step) -> Array:
        """Returns the buffers (buffers, ...) of one leaf after ``row`` (...)."""

    def start(self, like: PyTree) -> NoiseState:
        def empty(leaf: Any) -> Array:
            return jnp.zeros((self.buffers, *leaf.shape), jnp.promote_types(leaf.dtype, jnp.float32))

        return NoiseState(jnp.int32(0), jax.tree.map(empty, like))

    def correlate(self, noise: PyTree, state: NoiseState) -> tuple[PyTree, NoiseState]:
        own, factors = self.entries(state.step)

        def row(new: Array, kept: Array) -> Array:
            return (new.astype(kept.dtype) - combined(factors, kept)) / own.astype(kept.dtype)

        rows = jax.tree.map(row, noise, state.buffers)
        return rows, self.advance(state, rows)

    def advance(self, state: NoiseState, rows: PyTree) -> NoiseState:
        """Returns the state after one more row of y."""
        buffers = jax.tree.map(lambda kept, row: self.keep(kept, row, state.step), state.buffers, rows)
        return NoiseState(state.step + 1, buffers)

    def multiply(self, rows: PyTree) -> PyTree:
        """Returns C x, for arrays (steps, ...)."""

        def one(state: NoiseState, rows: PyTree) -> tuple[NoiseState, PyTree]:
            own, factors = self.entries(state.step)
            wide = jax.tree.map(lambda row, kept: row.astype(kept.dtype), rows, state.buffers)

            def undone(row: Array, kept: Array) -> Array:
                return own.astype(kept.dtype) * row + combined(factors, kept)

            return self.advance(state, wide), jax.tree.map(undone, wide, state.buffers)

        # As in the stream, the buffers hold what is needed of the rows before; here the rows are known.
        return jax.lax.scan(one, self._start_of(rows), rows)[1]


def combined(factors: Array, kept: Array) -> Array:
    """Returns the combination of the buffers, which no device may form by products of half precision."""
    # Not jnp.tensordot: it states its result's type, which is cut to float32 where vmap meets it out of the scope.
    over_first = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(factors.astype(kept.dtype), kept, over_first, precision=jax.lax.Precision.HIGHEST)


def as_float32(strategy: Any, *names: str) -> None:
    """Rounds concrete fields of a frozen dataclass to float32, in which noise is streamed.

    So the account, in float64, is of the very matrix that makes the noise.
    """
    # Values given are rounded once, when the strategy is made.
    for name in names:
        value = getattr(strategy, name)
        # What is no number stays: axes of jax.vmap may be given for a strategy.
        if is_concrete(value) and isinstance(value, (list, tuple, np.ndarray, jax.Array)):
            value = validation.as_array(value, name)
            object.__setattr__(strategy, name, np.asarray(value, np.float32))


def numbers(value: Any, name: str) -> np.ndarray:
    """Returns a concrete field as float64; raises TypeError where it is traced."""
    if not is_concrete(value):
        raise TypeError(
            f"{name} is traced: sensitivities are bounded on the host, by concrete numbers; make the strategy outside "
            "of jit and vmap."
        )
    return np.asarray(value, np.float64)


# ----------------------------------------------------------------------------------------------------
# Toeplitz strategies, which are alike at every step: banded ones, with independent noise and square roots, and buffered
# ----------------------------------------------------------------------------------------------------


class Toeplitz(BufferedStrategy):
    """A strategy whose entries depend on i - j alone, so that it is defined for any number of steps."""

    @abc.abstractmethod
    def coefficients(self, steps: int) -> np.ndarray:
        """Returns c (steps,), the first column, float64; :attr:`error` bounds its relative errors."""

    @property
    def error(self) -> float:
        """The bound on the relative error of a coefficient."""
        return 0.0

    def sensitivity(self, pattern: Pattern) -> float:
        return of_toeplitz(self.coefficients(pattern.steps), pattern, self.error)


@register_dataclass
@dataclass(frozen=True)
class BandedToeplitz(Toeplitz):
    """Banded Toeplitz strategy: C[i, j] = c[i-j] for i - j below the number of bands, 0 beyond.

    Attributes:
        first_column (bands,): c, finite with c[0] > 0; kept in float32. One number is independent noise.

    ``identity()`` and :func:`square_root` make some, :func:`jaxacct.factorize.banded_toeplitz` those of least error.
    Under cyclic Poisson sampling with as many groups as bands they are amplified (:class:`.CyclicPoisson`).

    Raises ValueError where a concrete column is out of range.

    Source: Choquette-Choo et al. (2023), "(Amplified) banded matrix factorization"; McKenna (2024), "Scaling up the
    banded matrix factorization mechanism for differentially private ML".

    >>> strategy = BandedToeplitz([1.0, 0.5])
    >>> strategy.solve(jnp.array([1.0, 0.0, 0.0, 0.0])).tolist()
    [1.0, -0.5, 0.25, -0.125]
    >>> strategy.multiply(jnp.array([1.0, -0.5, 0.25, -0.125])).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """

    first_column: Float[ArrayLike, " bands"]

    def __post_init__(self) -> None:
        as_float32(self, "first_column")
        self.validate()

    def validate(self) -> None:
        validation.check_finite(self.first_column, "first_column")
        seen = validation.concrete_value(self.first_column)
        if seen is not None and (seen.ndim != 1 or not seen.size or not seen[0] > 0):
            raise ValueError(f"first_column = {seen} is none of a strategy: give a vector that begins above 0.")

    @property
    def buffers(self) -> int:
        return len(self.first_column) - 1  # type: ignore[arg-type]

    def bands(self, steps: int) -> int:
        return min(self.buffers + 1, steps)

    def coefficients(self, steps: int) -> np.ndarray:
        column = numbers(self.first_column, "first_column")[:steps]
        return np.pad(column, (0, steps - len(column)))

    def entries(self, step: Step) -> tuple[Array, Array]:
        # The buffers are a ring: buffer i holds the last row whose number is i modulo their number, and each step
        # writes one row.
        column = jnp.asarray(self.first_column)
        lags = 1 + jnp.mod(step - 1 - jnp.arange(self.buffers), max(self.buffers, 1))
        return column[0], column[lags]

    def keep(self, kept: Array, row: Array, step: Step) -> Array:
        return kept.at[jnp.mod(step, self.buffers)].set(row) if self.buffers else kept

    def normalized(self) -> Self:
        """Returns the strategy over its column's norm: a single participation then has sensitivity 1, to float32."""
        column = numbers(self.first_column, "first_column")
        return replace(self, first_column=column / np.sqrt(np.sum(column**2)))


def identity() -> BandedToeplitz:
    """Returns the strategy of independent noise, which is that of DP-SGD.

    >>> identity().sensitivity(Pattern(steps=4, separation=2, most=2)) < 1.4142136
    True
    """
    return BandedToeplitz(np.ones(1))


@takes_python_values
def square_root(bands: int, momentum: float = 0.0, decay: float = 1.0) -> BandedToeplitz:
    """Returns the first ``bands`` diagonals of the square root of the workload, by its closed form.

    With as many bands as steps, and for plain prefix sums, no Toeplitz strategy has less maximal error in a single pass
    (Dvijotham et al. (2024), "Efficient and near-optimal noise generation for streaming differential privacy"); its
    coefficients are binomial(2k, k) / 4^k.

    Args:
        bands: number of diagonals kept.
        momentum: beta in [0, 1) of heavy-ball momentum.
        decay: alpha in (beta, 1], the share of the model that a step leaves: 1 less the learning rate times the weight
            decay.

    Source: Kalinin and Lampert (2024), "Banded square root matrix factorization for differentially private model
    training", Theorem 1: the generating function of the workload is 1 / ((1 - alpha x) (1 - beta x)).

    >>> square_root(3).first_column.tolist()
    [1.0, 0.5, 0.375]
    """
    validation.check_numbers(momentum=momentum, decay=decay)
    bands = validation.check_count(bands, "bands", "the number of diagonals that are kept")
    validation.check_decay(momentum, "momentum")
    if not momentum < decay <= 1:
        raise ValueError(f"decay = {decay} is not in (momentum, 1]: give what a step leaves of the model, 1 for all.")
    k = np.arange(1, bands)
    plain = np.concatenate([[1.0], np.cumprod(1 - 1 / (2 * k))])
    column = np.convolve(plain * float(decay) ** np.arange(bands), plain * float(momentum) ** np.arange(bands))[:bands]
    return BandedToeplitz(column)


@register_dataclass
@dataclass(frozen=True)
class BufferedToeplitz(Toeplitz):
    """Buffered linear Toeplitz strategy (BLT): c[0] = 1 and c[k] = sum of w_i r_i^(k-1); d buffers for any length.

    Attributes:
        weights (d,): w, at least 0; kept in float32.
        rates (d,): r, in [0, 1], the share of each buffer that a step leaves; kept in float32.

    Where the weights sum to at most 1 the coefficients do not increase, and sensitivities are exact.
    :func:`jaxacct.factorize.buffered_toeplitz` finds those of least error.

    Raises ValueError where a concrete attribute is out of range.

    Source: Dvijotham et al. (2024), "Efficient and near-optimal noise generation for streaming differential privacy";
    several participations, McMahan, Xu and Zhang (2024), "A hassle-free algorithm for strong differential privacy in
    federated learning systems".

    >>> BufferedToeplitz(weights=[0.5], rates=[0.5]).coefficients(4).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """

    weights: Float[ArrayLike, " d"]
    rates: Float[ArrayLike, " d"]

    def __post_init__(self) -> None:
        as_float32(self, "weights", "rates")
        self.validate()

    def validate(self) -> None:
        validation.check_finite(self.weights, "weights")
        validation.check_probability(self.rates, "rates")
        seen = validation.concrete_value(self.weights)
        if seen is not None and (seen.ndim != 1 or np.any(seen < 0) or np.shape(self.rates) != seen.shape):
            raise ValueError(
                f"weights = {seen} are none of a strategy: give a vector of numbers >= 0, as many as rates."
            )

    @property
    def buffers(self) -> int:
        return len(self.weights)  # type: ignore[arg-type]

    def coefficients(self, steps: int) -> np.ndarray:
        weights, rates = numbers(self.weights, "weights"), numbers(self.rates, "rates")
        tail = np.power(rates[None, :], np.arange(max(steps - 1, 0))[:, None]) @ weights
        column = np.concatenate([[1.0], tail])[:steps]
        # Coefficients that do not increase may still do so in the last place when they are computed.
        return np.maximum.accumulate(column[::-1])[::-1] if np.sum(weights) <= 1 else column

    @property
    def error(self) -> float:
        return (16 + 2 * self.buffers) * UNIT_ROUNDOFF

    def entries(self, step: Step) -> tuple[Array, Array]:
        weights = jnp.asarray(self.weights)
        return jnp.ones((), weights.dtype), weights

    def keep(self, kept: Array, row: Array, step: Step) -> Array:
        rates = jnp.asarray(self.rates).astype(kept.dtype)
        return rates.reshape(-1, *(1,) * row.ndim) * kept + row[None]


# ----------------------------------------------------------------------------------------------------
# Strategies made of others, given as a matrix, or as another library's stream of noise
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class Restarted(BufferedStrategy):
    """A strategy that begins anew every so many steps: its matrix is block diagonal, and no noise crosses blocks.

    With places that are drawn anew in every epoch, and an epoch's length, each epoch is a run of :class:`.BallsInBins`.

    Attributes:
        strategy: that of each block.
        every: length of a block, static.

    >>> Restarted(BandedToeplitz([1.0, 0.5]), every=2).multiply(jnp.ones(4)).tolist()
    [1.0, 1.5, 1.0, 1.5]
    """

    strategy: BufferedStrategy
    every: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        validation.check_type(self.strategy, "strategy", BufferedStrategy)
        validation.check_count(self.every, "every", "the number of steps of a block")

    def validate(self) -> None:
        self.strategy.validate()

    @property
    def buffers(self) -> int:
        return self.strategy.buffers

    def bands(self, steps: int) -> int:
        return self.strategy.bands(min(self.every, steps))

    def entries(self, step: Step) -> tuple[Array, Array]:
        return self.strategy.entries(jnp.mod(step, self.every))

    def keep(self, kept: Array, row: Array, step: Step) -> Array:
        place = jnp.mod(step, self.every)
        return jnp.where(place == self.every - 1, 0.0, self.strategy.keep(kept, row, place)).astype(kept.dtype)

    def sensitivity(self, pattern: Pattern) -> float:
        check_dense(pattern.steps)
        with scope():
            matrix = np.asarray(jax.jit(self.multiply)(jnp.eye(pattern.steps)), np.float64)
        return of_matrix(matrix, pattern, 64 * UNIT_ROUNDOFF)


@register_dataclass
@dataclass(frozen=True)
class Dense(BufferedStrategy):
    """Any lower-triangular matrix, for few steps: its stream holds all of them.

    Attributes:
        matrix (steps, steps): C, finite, lower-triangular, with a diagonal above 0; kept in float32.

    Raises ValueError where a concrete matrix is none of these.

    >>> strategy = Dense([[2.0, 0.0], [1.0, 2.0]])
    >>> strategy.solve(jnp.array([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """

    matrix: Float[ArrayLike, "steps steps"]

    def __post_init__(self) -> None:
        as_float32(self, "matrix")
        self.validate()

    def validate(self) -> None:
        validation.check_finite(self.matrix, "matrix")
        seen = validation.concrete_value(self.matrix)
        if seen is None:
            return
        square = seen.ndim == 2 and seen.shape[0] == seen.shape[1] and seen.size > 0
        if not square or np.any(np.triu(seen, 1)) or not np.all(np.diagonal(seen) > 0):
            raise ValueError(
                f"matrix of shape {seen.shape} is no strategy: give a square, lower-triangular one whose diagonal is "
                "above 0, so that noise can be streamed."
            )

    @property
    def buffers(self) -> int:
        return len(self.matrix)  # type: ignore[arg-type]

    def entries(self, step: Step) -> tuple[Array, Array]:
        row = jnp.asarray(self.matrix)[step]
        own = jnp.where(step < self.buffers, row[step], jnp.nan)  # there is no row beyond the last
        return own, jnp.where(jnp.arange(self.buffers) < step, row, 0.0)

    def keep(self, kept: Array, row: Array, step: Step) -> Array:
        return kept.at[step].set(row)

    def bands(self, steps: int) -> int:
        rows, columns = np.nonzero(numbers(self.matrix, "matrix"))
        return min(int(np.max(rows - columns)) + 1, steps)

    def sensitivity(self, pattern: Pattern) -> float:
        matrix = numbers(self.matrix, "matrix")
        if pattern.steps > len(matrix):
            raise ValueError(f"steps = {pattern.steps} are more than the matrix has, {len(matrix)}: give a larger one.")
        return of_matrix(matrix[: pattern.steps, : pattern.steps], pattern)


class StreamingMatrix(Protocol):
    """A stream that multiplies by C^-1, such as ``jax_privacy.matrix_factorization.streaming_matrix.StreamingMatrix``.

    Attributes:
        init_multiply: function from a pytree of arrays to a state.
        multiply_next: function from the next row and the state to the product's next row and the state after it.
    """

    init_multiply: Any
    multiply_next: Any


@dataclass(frozen=True, eq=False)
class Streamed(Strategy):
    """Another library's stream of noise, used unchanged; its sensitivity is found for up to 4096 steps.

    Attributes:
        stream: the object that multiplies by C^-1, as in jax_privacy's noise addition.

    Its state is held in :attr:`.NoiseState.buffers`. The sensitivity is of the matrix that the stream multiplies by,
    to the digits of its arithmetic. All of its steps count as sharing noise, as zeros of C come out of the inversion as
    small numbers: no band can be told. Let M be that matrix, N its computed inverse, and R = I - N M. Then
    C = M^-1 = (I - R)^-1 N, and so C x is at most N x over 1 - |R|, in Frobenius norm.
    """

    stream: StreamingMatrix

    def start(self, like: PyTree) -> NoiseState:
        return NoiseState(jnp.int32(0), self.stream.init_multiply(like))

    def correlate(self, noise: PyTree, state: NoiseState) -> tuple[PyTree, NoiseState]:
        row, following = self.stream.multiply_next(noise, state.buffers)
        return row, NoiseState(state.step + 1, following)

    def sensitivity(self, pattern: Pattern) -> float:
        check_dense(pattern.steps)
        with scope():
            inverse = np.asarray(jax.jit(self.solve)(jnp.eye(pattern.steps)), np.float64)
        if np.any(np.triu(inverse, 1)) or not np.all(np.diagonal(inverse) > 0):
            raise ValueError("stream is not lower-triangular with a diagonal above 0: it is no strategy's inverse.")
        matrix = np.tril(np.linalg.inv(inverse))
        left = np.abs(np.eye(pattern.steps) - matrix @ inverse)
        left += 4 * (pattern.steps + 2) * UNIT_ROUNDOFF * (np.abs(matrix) @ np.abs(inverse) + np.eye(pattern.steps))
        norm = float(np.linalg.norm(left)) * (1 + 1e-9)
        if not norm < 0.5:
            raise ValueError(f"stream cannot be inverted to more than {norm:.1g}: its sensitivity is not known.")
        return of_matrix(matrix, pattern) / (1 - norm) * (1 + 4 * UNIT_ROUNDOFF)


# ----------------------------------------------------------------------------------------------------
# Tree aggregation: a running sum estimated from noisy sums of blocks of 2^l steps
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class HonakerTree(BufferedStrategy):
    """The strategy of binary trees with Honaker's online estimate: the noise of DP-FTRL, a buffer for each level.

    :class:`.MatrixMechanism` accounts for it. For trees that something else has built, whose nodes are released one by
    one, the account is the mechanism :class:`jaxacct.TreeAggregation`.

    Attributes:
        steps: number of steps, static.

    A block of 2^l steps that ends now is estimated from its own noisy sum and the estimates of its halves, with the
    weights of least variance; a prefix sum is the sum of at most one block of each level. With v_0 = 1 and
    v_l = 2 v_(l-1) / (2 v_(l-1) + 1) the variance of such an estimate, its noise is

        e_l = v_l f_l + (1 - v_l) (s_(l-1) + e_(l-1)),   e_0 = f_0,

    where s_(l-1) is that of the left half, which was released before, e_(l-1) that of the right half, which ends with
    it, and the f_l are independent. Only e_l of the largest block that ends now is ever used again. So the noise of one
    step is as good as that of all blocks that end with it: with L the level of the largest,

        e_L = sum over l < L of b_(L,l) s_l + w_L z,   b_(L,l) = product of (1 - v_j) over l < j <= L,

    and w_L^2 = v_L^2 + (1 - v_L)^2 w_(L-1)^2. A step's noise is e_L less the sum of those s_l. This has the law of the
    tree's estimates, and is lower-triangular like all strategies: the sensitivity is that of *its* C, at most that of
    the tree, which releases the blocks' sums one by one. (For 2 steps its square is 1.8; the tree's is 2.)

    Source: Honaker (2015), "Efficient use of differentially private binary trees"; Kairouz et al. (2021), "Practical
    and private (deep) learning without sampling or shuffling".

    >>> bool(HonakerTree(steps=2).sensitivity(Pattern(2, 2, 1)) ** 2 < 1.8 + 1e-6)
    True
    """

    steps: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        validation.check_count(self.steps, "steps", "the number of steps")

    @property
    def buffers(self) -> int:
        return int(self.steps).bit_length()

    def entries(self, step: Step) -> tuple[Array, Array]:
        own, factors = map(jnp.asarray, _tables(self.buffers))
        level = self._level(step)
        # After the last step no block ends, and there is no level.
        return jnp.where(step < self.steps, own[level], jnp.nan), factors[level]

    def keep(self, kept: Array, row: Array, step: Step) -> Array:
        # The row is the block's noise less that of its left halves, so with theirs it is the block's own.
        level = self._level(step)
        below = (jnp.arange(self.buffers) < level).astype(kept.dtype)
        return kept.at[level].set(row + combined(below, kept))

    def sensitivity(self, pattern: Pattern) -> float:
        # Bound on the relative error of an entry, or of a column's norm by so many levels. Sensitivities rest on it: it
        # must not be lowered.
        error = 64 * UNIT_ROUNDOFF
        if pattern.most > 1:
            return of_matrix(self.matrix(pattern.steps), pattern, error)
        # One participation: the largest norm of a column, summed up over the levels.
        squares = np.zeros(self._check(pattern.steps))
        for level, starts in _largest_blocks(pattern.steps):
            # Blocks of a level do not overlap: an example is in at most one of them, and adds to one row.
            squares[starts[:, None] + np.arange(2**level)] += _entries_of_block(level, self.buffers) ** 2
        return of_matrix(np.sqrt(np.max(squares))[None, None], Pattern(1, 1, 1), error)

    def matrix(self, steps: int) -> np.ndarray:
        """Returns C (steps, steps), float64, with the numbers of the stream: a row for the block that ends there."""
        check_dense(self._check(steps))
        matrix = np.zeros((steps, steps))
        for level, starts in _largest_blocks(steps):
            for start in starts:
                matrix[start + 2**level - 1, start : start + 2**level] = _entries_of_block(level, self.buffers)
        return matrix

    def _check(self, steps: int) -> int:
        if steps > self.steps:
            raise ValueError(f"steps = {steps} are more than the tree's {self.steps}: make one of as many.")
        return steps

    def _level(self, step: Step) -> Array:
        """Returns the level of the largest block that ends with a step: the number of ones that its number ends in."""
        ends = jnp.mod(step + 1, 2 ** jnp.arange(1, self.buffers, dtype=jnp.int32)) == 0
        return jnp.sum(ends).astype(jnp.int32)


def _largest_blocks(steps: int) -> list[tuple[int, np.ndarray]]:
    """Returns for each level the starts of its blocks that are the largest to end where they do."""
    return [(level, np.arange(0, steps - 2**level + 1, 2 ** (level + 1))) for level in range(steps.bit_length())]


def _entries_of_block(level: int, levels: int) -> np.ndarray:
    """Returns the entries of C for the steps of a block, the last of which is its own."""
    own, factors = (table.astype(np.float64) for table in _tables(levels))
    halves = [np.repeat(factors[level, half], 2**half) for half in reversed(range(level))]
    return np.concatenate([*halves, own[level, None]])


@functools.cache
def _tables(levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns 1 / w (levels,), and (1 - b) / w (levels, levels) with 0 where there is no half; float32."""
    variance = 1 / (2 - 2.0 ** -np.arange(levels))
    deviations, factors = np.ones(levels), np.zeros((levels, levels))
    # Level by level, w_L from w_(L-1), and (1 - b_(L,l)) for each left half below.
    for level in range(1, levels):
        deviations[level] = np.hypot(variance[level], (1 - variance[level]) * deviations[level - 1])
        for half in range(level):
            factors[level, half] = (1 - np.prod(1 - variance[half + 1 : level + 1])) / deviations[level]
    return (1 / deviations).astype(np.float32), factors.astype(np.float32)


# ----------------------------------------------------------------------------------------------------
# Error: the noise that a strategy leaves in the sums of a workload, as the squared norms of the rows of A C^-1
# ----------------------------------------------------------------------------------------------------


@register_dataclass
@dataclass(frozen=True)
class Workload:
    """A linear rule from noisy gradients to iterates: x_t = decay x_(t-1) + rate_t m_t, m_t = momentum m_(t-1) + y_t.

    Attributes:
        momentum (): that of the heavy ball, in [0, 1). 0, the default, is plain SGD.
        decay (): share of the model that a step leaves, in [0, 1]; 1 less learning rate times weight decay.
        rates (steps,): the learning rate of each step; None for 1. With the defaults x is the prefix sums.

    >>> Workload(momentum=0.9).momentum
    0.9
    """

    momentum: ArrayLike = 0.0
    decay: ArrayLike = 1.0
    rates: Float[ArrayLike, " steps"] | None = None

    def __post_init__(self) -> None:
        validation.check_decay(self.momentum, "momentum")
        validation.check_probability(self.decay, "decay")
        if self.rates is not None:
            validation.check_finite(self.rates, "rates")


PREFIX_SUMS = Workload()
"""Workload of plain sums: each iterate is the sum of everything released so far."""


def squared_errors(strategy: Strategy, steps: int, workload: Workload = PREFIX_SUMS) -> Float[Array, " steps"]:
    """Returns the variance of the noise in each iterate of a workload, for z of variance 1; an estimate, float64.

    Args:
        strategy: C. May be traced: derivatives with respect to its numbers are those of the variance.
        steps: number of steps.
        workload: A, plain prefix sums by default.

    Their mean over steps, or their maximum, times the squared sensitivity measures the strategy at a given budget
    (:func:`jaxacct.factorize.error`). For Toeplitz strategies and equal rates it takes as long as streaming one number;
    otherwise as streaming ``steps`` of them.

    Raises ValueError where ``rates`` are not as many as steps.

    >>> from jaxacct.strategies import identity
    >>> squared_errors(identity(), steps=4).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    validation.check_type(strategy, "strategy", Strategy)
    steps = validation.check_count(steps, "steps", "the number of steps")
    rates = workload.rates
    if rates is not None and np.shape(rates) != (steps,):
        raise ValueError(f"rates of shape {np.shape(rates)} do not match {steps} steps: give one for each.")
    return leave_scope(_squared_errors(strategy, steps, workload))


@kernel
@functools.partial(jax.jit, static_argnums=1)
def _squared_errors(strategy: Strategy, steps: int, workload: Workload) -> Array:
    toeplitz = isinstance(strategy, Toeplitz) and workload.rates is None
    columns = jnp.arange(1 if toeplitz else steps)  # the first column of a Toeplitz matrix holds all of it
    rates = jnp.ones(steps) if workload.rates is None else as_float64(workload.rates)
    momentum, decay = as_float64(workload.momentum), as_float64(workload.decay)

    def one(carry: Any, inputs: Any) -> tuple[Any, Array]:
        state, velocity, iterate = carry
        step, rate = inputs
        row, state = strategy.correlate(jnp.where(columns == step, 1.0, 0.0), state)
        velocity = momentum * velocity + row
        iterate = decay * iterate + rate * velocity
        return (state, velocity, iterate), jnp.sum(iterate**2)

    # The state is the stream of the unit vectors' rows and the workload's own recursion. Each step gives a row of
    # A C^-1, or for Toeplitz matrices the next entry of its first column, whose squares then add up to the rows' norms.
    nothing = jnp.zeros(columns.shape)
    start = strategy.start(nothing), nothing, nothing
    _, squares = jax.lax.scan(one, start, (jnp.arange(steps), rates))
    return jnp.cumsum(squares) if toeplitz else squares
