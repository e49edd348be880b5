"""Correlated noise with each example in one bin of every epoch, drawn at random: bounds from both sides.

An epoch has b steps, or *bins*; an example's bin j is drawn once, and it takes part in the steps j, j + b, ... of all
epochs. With the matrix |C| of the strategy, let M_j be the sum of its columns j, j + b, ..., and K = M'M/s^2. The
pair P = mean over j of N(M_j, s^2 I), Q = N(0, s^2 I) dominates (proof: :class:`BallsInBins`). Its likelihood ratio is

    L = mean over j of e^(G_j - K_jj/2),   G ~ N(0, K) under Q,

and the profiles are expectations of convex functions of L. So a law that is larger in convex order bounds them from
above, and one that is smaller from below. Two facts are used: the mean of a convex function of a sum of lognormal
variables of mean 1 grows with each covariance (Kahane 1986), and with a mean-preserving spread of an independent part.

*From above.* Where C has p <= b bands, bins that are p or more apart, modulo b, share no row, and K is 0 there. Take
blocks of m neighbouring bins, with p - 1 unused ones between, as often as they fit: N = floor(b/(m + p - 1)). L is the
mean over the b rotations of the blocks of the means L_o over their bins, so E F(L) <= max E F(L_o) (Jensen). In L_o the
blocks are independent. Within one, raise every diagonal entry to k, the largest of K, and every other one to r, the
largest of bins less than m apart (Kahane). So, in convex order,

    L <= mean of N independent copies of  e^N(-r/2, r) x mean of m independent e^N(-(k-r)/2, k-r).

Any m is sound. That of :data:`BLOCKS` is taken whose fifth moment is least, which was within 0.4 % of the best epsilon
in twenty settings of 2 to 32 bands. With as many bands as bins, or more, nothing is amplified: the account is that of
the Gaussian mechanism of the largest |M_j|, by convexity in the mixture.

*From below.* Data sets where the example adds the same vector to all steps of a bin, in a direction of its own for each
block of 2^d neighbouring bins, and nothing in bins that are of no block, are neighbours of those where it adds nothing.
Their Gram matrix has the entries of M'M for C itself, with signs, within blocks, and else 0. Within blocks lower it to
nested means: with r_i the least entry within parts of 2^i bins, and r_(d+1) = 0,

    V_0 = e^N(-v_0/2, v_0),   V_i = e^N(-v_i/2, v_i) x mean of 2 independent V_(i-1),   v_i = r_i - r_(i+1).

If B blocks are used, L >= w V + 1 - w in convex order, V the mean of B independent V_d and w = B 2^d/b. This needs
entries of at least 0 within the blocks, for d > 0 (Kahane), and as many dimensions as blocks. The bins used are of
nearly full norm: those whose steps the end of the training cuts are left out. The depth d is that whose fourth moment
is largest, which was the best, or within a ten-thousandth, in those settings.

Sums and products of laws that are spread, or contracted, are so ordered themselves: :mod:`.allocation` has the laws on
finitely many points and their roundings. We know of no source of either bound. That the pair dominates, and the scheme:
Choquette-Choo et al. (2024), "Near-exact privacy amplification for matrix mechanisms".
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxacct import validation
from jaxacct.mechanisms.allocation import (
    VALUE_ERROR,
    Grid,
    MovedPair,
    RandomAllocation,
    RatioLaw,
    average,
    coarsen,
    count_bits,
    law_of_one_term,
    multiply_laws,
    outcomes_of,
)
from jaxacct.mechanisms.finite import surely_seen
from jaxacct.mechanisms.gaussian import Gaussian
from jaxacct.mechanisms.mechanism import (
    Mechanism,
    NoisyMechanism,
    Relation,
    by_numpy_if_concrete,
    choose,
    directions,
    is_infinite,
)
from jaxacct.mechanisms.pair import DominatingPair
from jaxacct.numerics.arithmetic import roundoff, scale_error
from jaxacct.numerics.precision import as_float64, leave_scope, scope, within_scope
from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.strategies import BufferedStrategy, Toeplitz, check_dense

BLOCKS = (1, 2, 4)
"""Lengths of blocks, among which one is chosen. Any are sound."""

DEPTHS = 6
"""Number of lower bounds, with blocks of 1, 2, 4, ... bins. Any is sound."""

LEAST_NOISE = 0.085
"""Smallest noise over the largest norm: below it products of values leave float64. It costs inf."""


class Nested(NamedTuple):
    """Several nested means: the numbers of a :class:`NestedAllocation` besides its noise, each with a leading axis."""

    share: Any
    variances: Any
    counts: Any


class Kernel(NamedTuple):
    """The numbers that the bounds need of M'M, found on the host.

    Attributes:
        square (): the largest |M_j|^2, from above.
        above: nested means with the blocks of BLOCKS that fit; there are none with more bands than bins.
        below: nested means for each depth whose products are nowhere negative.
    """

    square: ArrayLike
    above: Nested
    below: Nested


@register_dataclass
@dataclass(frozen=True)
class NestedPair(MovedPair):
    """The spread pair of a nested mean.

    Attributes:
        order_one (): bound on the Rényi divergence of order 1, which the Gaussian mechanism has of the same norm.
    """

    order_one: ArrayLike = np.inf

    def largest_loss(self) -> Array:
        return jnp.full((), jnp.inf)

    def divergence(self, orders: Array) -> Array:
        """Returns the divergence of the Gaussian mechanism; that of the pair, as spread, is infinite."""
        return orders * as_float64(self.order_one)


@register_dataclass
@dataclass(frozen=True)
class NestedAllocation(NoisyMechanism):
    """The pair of a nested mean of lognormal likelihood ratios; :class:`BallsInBins` is bounded by such.

    Attributes:
        noise_multiplier (): s.
        share (): w, that of the mean; the rest of the ratio is 1.
        variances (levels,): v_i s^2. counts (levels,): of independent copies. V_0 = X_0, V_i = X_i x mean of counts[i]
            copies of V_(i-1), X_i lognormal of mean 1 and variance v_i of its logarithm; counts[0] is 1.
        is_larger: whether the pair's ratio is larger in convex order, or smaller; static.
        points: of its law; static.
    """

    noise_multiplier: ArrayLike
    share: ArrayLike
    variances: Float[ArrayLike, " levels"]
    counts: Float[ArrayLike, " levels"]
    is_larger: bool = field(metadata={"static": True})
    points: int = field(default=512, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = RandomAllocation.relations
    may_fail: ClassVar[bool] = True
    vectors: ClassVar[tuple[str, ...]] = ("variances", "counts")

    noiseless_pairs = surely_seen

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)

    @within_scope
    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs (P, Q) for "remove" and (Q, P) for "add"."""
        numbers = map(as_float64, (self.noise_multiplier, self.share, self.variances, self.counts))
        both = _nested_pairs(*numbers, points=self.points, contracts=not self.is_larger)
        return tuple(leave_scope(both[way]) for way in directions(self, relation))


@functools.partial(jax.jit, static_argnames=("points", "contracts"))
def _nested_pairs(
    s: Array, share: Array, variances: Array, counts: Array, points: int, contracts: bool
) -> dict[str, NestedPair]:
    """Returns the pairs of a nested mean for both directions, by Q's law of its ratio."""
    valid = (s >= LEAST_NOISE * jnp.sqrt(jnp.sum(variances))) & (s < jnp.inf)
    # Least variance that is a factor of its own: a smaller one is raised to it, or left out where the law is to be
    # smaller. Any is sound.
    least = 1e-12
    v = jnp.where(valid, variances / s**2, 0.5)
    v = jnp.where(v >= least, v, jnp.where((v > 0) & (not contracts), least, 0.0))

    def times(law: RatioLaw, variance: Array) -> tuple[RatioLaw, Array]:
        one, ends, infinite, _ = law_of_one_term(1 / jnp.sqrt(variance), jnp.ones(()), points, contracts)
        low, high = _ends(law)
        deviation = jnp.sqrt(jnp.expm1(jnp.minimum(variance, 40.0)) + _variance(law))
        grid = Grid(low + ends[0], high + ends[1], jnp.clip(deviation / 2, 1e-9, 1.0))
        return coarsen(grid.logs(), multiply_laws(law, one, grid, contracts), 1.0, points, contracts), infinite

    def level(carry: tuple[RatioLaw, Array], entry: tuple[Array, Array]) -> tuple[tuple[RatioLaw, Array], None]:
        (law, failing), (variance, count) = carry, entry
        law = average(law, count.astype(jnp.int32), _ends(law), jnp.sqrt(_variance(law)), points, contracts)
        law, more = jax.lax.cond(variance > 0, times, lambda law, _: (law, jnp.zeros(())), law, variance)
        return (law, failing + more - failing * more), None

    first, _, failing, _ = law_of_one_term(1 / jnp.sqrt(jnp.maximum(v[0], least)), counts[-1], points, contracts)
    if contracts:
        first = first._replace(values=jnp.where(v[0] > 0, first.values, 1.0))
    # Level by level from the inside: the mean of copies, then a factor that they share.
    (law, failing), _ = jax.lax.scan(level, (first, failing), (v[1:], counts[1:]))
    if contracts:
        law = law._replace(values=1 - share + share * law.values)
    merges = 2 * jnp.sum(jax.vmap(count_bits)(counts)) + 3 * len(counts)
    if contracts:
        # Twice for each merge values come to means, and each of these is off by up to 2 eta more.
        theta, failing = scale_error(2e-12) + 4 * merges * law.eta, jnp.zeros(())
    else:
        largest = 2 + jnp.max(jnp.abs(jnp.log(law.values[1:])))
        theta, failing = 2 * merges * largest * scale_error(VALUE_ERROR), failing * (1 + scale_error(1e-12))
    infinite = jnp.where(valid, failing, jnp.nan)
    alone = jnp.where(s > 0, jnp.sum(variances) / (2 * s**2), jnp.nan)
    return {
        way: NestedPair(*outcomes_of(law, theta, infinite, way == "remove", contracts), alone)
        for way in ("remove", "add")
    }


def _ends(law: RatioLaw) -> tuple[Array, Array]:
    """Returns the logs of the least positive and of the largest value."""
    least = jnp.where(law.values[0] > 0, law.values[0], law.values[1])
    return jnp.log(least), jnp.log(law.values[-1])


def _variance(law: RatioLaw) -> Array:
    """Returns about the variance of a law of mean 1, without what is far out."""
    return jnp.sum(law.masses * (jnp.minimum(law.values, 1e6) - 1) ** 2)


@register_dataclass
@dataclass(frozen=True)
class BallsInBins(Mechanism):
    """Training with correlated noise, each example in one bin of b, the same in all epochs of a run.

    One run is ``epochs`` epochs of b steps: noise starts anew with it, and each example draws its bin j, uniformly and
    independently of all others; it takes part in the steps j, j + b, ... of the run. Places that are drawn afresh in
    every epoch are ``epochs=1`` and as many runs as epochs, *if* the strategy begins anew with each of them. Without
    that, bands of neighbouring epochs overlap, for one example as well: no amplification is known, and the account is
    :class:`.MatrixMechanism` with :class:`.MinSeparation`.

    Attributes:
        strategy: C, concrete (:mod:`jaxacct.strategies`), at least for the steps of a run.
        noise_multiplier (): standard deviation s of the noise z over the clipping norm, as of
            :class:`.MatrixMechanism`; it may be traced. Its ratio to the norms of the columns of C counts alone.
        batches: b, the number of bins, and of steps of an epoch; static.
        epochs: E, of a run, with the same places; static.

    Relations: "add_or_remove" (default), "remove", "add", "zero_out". Batches of equal size, cut from one order, are
    *not* this mechanism.

    Formal guarantee: the pair P = mean over j of N(m_j, s^2 I), Q = N(0, s^2 I) dominates all steps, adaptively chosen,
    m_j the sum of the columns j, j + b, ... of |C|. *Proof.* Given the results so far, row i moves by d_j, the sum of
    C[i, r] g_r over the steps r of place j, whose products <d_j, d_l> are at most those of |C| in place of C g. The
    weights of places, multiplied by lognormal variables of mean 1 with these covariances over s^2, go into a function
    whose second derivatives, mixed ones as well, are nowhere negative: the mean of a convex function of a sum of
    products. Its mean grows with each covariance (Kahane 1986, "Une inégalité du type de Slepian et Gordon sur les
    processus gaussiens"), and as a function of the weights before the row it is of the same kind. So one goes back from
    the last row to the first. Bounds on this pair, from above, are what accountants compose; a ``lower`` of
    :func:`jaxacct.epsilon` is that of data sets of :meth:`attained`, and so of the mechanism itself, in as many
    dimensions as there are blocks of bins, at most one for each bin: for both see
    :mod:`jaxacct.mechanisms.balls_in_bins`. :func:`jaxacct.monte_carlo.delta` estimates what lies between.

    Raises TypeError or ValueError where a field is out of range; traced noise cannot raise and costs inf, as does noise
    below 0.085 of the largest norm.

    Source of the mechanism: Choquette-Choo et al. (2024), "Near-exact privacy amplification for matrix mechanisms".

    >>> from jaxacct import epsilon, strategies
    >>> bins = BallsInBins(strategies.square_root(bands=4).normalized(), noise_multiplier=1.0, batches=64)
    >>> found = epsilon(bins, steps=1, delta=1e-3)
    >>> f"{found.lower:.2f} to {found.upper:.2f}"
    '0.51 to 0.87'
    """

    strategy: BufferedStrategy
    noise_multiplier: ArrayLike
    batches: int = field(metadata={"static": True})
    epochs: int = field(default=1, metadata={"static": True})
    kernel: Kernel = field(init=False, repr=False, compare=False)
    bands: int = field(init=False, repr=False, compare=False, metadata={"static": True})

    relations: ClassVar[tuple[Relation, ...]] = RandomAllocation.relations
    may_fail: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, BufferedStrategy):
            raise TypeError(f"strategy = {self.strategy!r} has no rows: give one of jaxacct.strategies but Streamed.")
        validation.check_count(self.batches, "batches", "the batches of an epoch")
        validation.check_count(self.epochs, "epochs", "the number of epochs")
        self.strategy.validate()
        object.__setattr__(self, "bands", self.strategy.bands(self.batches * self.epochs))
        object.__setattr__(self, "kernel", _kernel_of(self))
        super().__post_init__()

    def validate(self) -> None:
        validation.check_noise_multiplier(self.noise_multiplier)
        validation.check_scalar(self.noise_multiplier, "noise_multiplier")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def composed(self) -> bool:
        return True

    def with_noise(self, noise_multiplier: ArrayLike) -> Self:
        """Returns the same training at another noise multiplier, without looking at the strategy again."""
        made = copy.copy(self)
        object.__setattr__(made, "noise_multiplier", noise_multiplier)
        made.convert()
        made.validate()
        return made

    @property
    def sensitivity(self) -> float:
        """The largest norm of what an example adds to all rows, an upper bound; of a concrete mechanism."""
        return math.nextafter(math.sqrt(float(np.asarray(self.kernel.square))), math.inf)

    def releases_nothing(self) -> Bool[ArrayLike, "*batch"]:
        return is_infinite(self.noise_multiplier)

    def with_unit_parameters(self, nothing: Bool[ArrayLike, "*batch"]) -> Self:
        return self.with_noise(choose(nothing, 1.0, self.noise_multiplier))

    def shifts(self) -> np.ndarray:
        """Returns how far each place moves each row, m_j: float64 (batches, batches * epochs)."""
        return _columns_of(self, np.abs)

    def decompose(self, steps: ArrayLike) -> list[tuple[Mechanism, ArrayLike]]:
        """Returns the mechanism whose pair bounds a run from above: a nested mean, or a Gaussian mechanism."""
        if self.bands >= self.batches:
            return [(by_numpy_if_concrete(_skip_sampling, self.noise_multiplier, self.kernel.square), steps)]
        return [(by_numpy_if_concrete(_least_above, self.noise_multiplier, *self.kernel.above), steps)]

    def dominating_pairs(self, relation: Relation = "add_or_remove") -> tuple[DominatingPair, ...]:
        """Returns the pairs of :meth:`decompose`, spread over finitely many losses."""
        return self.decompose(1)[0][0].dominating_pairs(relation)

    def attained(self, relation: Relation) -> tuple[tuple[Mechanism, ...], ...]:
        """Returns what neighbouring data sets attain, of the depth whose fourth moment is largest."""
        directions(self, relation)
        return ((by_numpy_if_concrete(_largest_below, self.noise_multiplier, *self.kernel.below),),)


def _skip_sampling(xp: Any, noise: Any, square: Any) -> Mechanism:
    """Returns the Gaussian mechanism of the largest norm, its noise rounded down; infinite only where it was so."""
    over = xp.minimum(noise / xp.sqrt(square) * (1 - 8 * roundoff()), np.finfo(np.float64).max)
    return Gaussian(xp.where(noise == xp.inf, noise, over))


def _least_above(xp: Any, noise: Any, *numbers: Any) -> Mechanism:
    """Returns the nested mean with the least fifth moment."""
    nested = Nested(*numbers)
    chosen = _first_least(xp, _moment(xp, noise, nested, 5), nested)
    return NestedAllocation(noise, chosen.share, chosen.variances, chosen.counts, is_larger=True)


def _largest_below(xp: Any, noise: Any, *numbers: Any) -> Mechanism:
    """Returns the nested mean with the largest fourth moment."""
    nested = Nested(*numbers)
    chosen = _first_least(xp, -_moment(xp, noise, nested, 4), nested)
    return NestedAllocation(noise, chosen.share, chosen.variances, chosen.counts, is_larger=False)


def _first_least(xp: Any, costs: Any, nested: Nested) -> Nested:
    """Returns the first of several nested means that has the least cost."""
    cost, chosen = costs[0], Nested(*(numbers[0] for numbers in nested))
    for i in range(1, len(costs)):
        pairs = zip(nested, chosen, strict=True)
        chosen = Nested(*(xp.where(costs[i] < cost, numbers[i], old) for numbers, old in pairs))
        cost = xp.minimum(cost, costs[i])
    return chosen


def _moment(xp: Any, noise: Any, nested: Nested, order: int) -> Any:
    """Returns E[L^n] of nested means, over one number that keeps it in float64: which of them is largest, or least."""
    # Out of its range the noise may be any; variances above 30 would leave float64.
    v = xp.minimum(nested.variances.T / xp.where((noise > 0) & (noise < 1e100), noise, 1.0) ** 2, 30.0)
    k, unit = np.arange(order + 1.0)[:, None], xp.exp(-order / 2 * xp.max(xp.sum(v, axis=0)))
    moments = unit**k / np.array([[float(math.factorial(i))] for i in range(order + 1)])
    rest = moments[::-1] * (1 - nested.share[None]) ** k[::-1]
    # Level by level: the moments over k! of a sum of copies are those of the power of a series; then the factor's.
    for variance, count in zip(v, nested.counts.T, strict=True):
        power = [xp.ones_like(count)]
        for n in range(1, order + 1):
            power.append(sum((count * i - (n - i)) * moments[i] * power[n - i] for i in range(1, n + 1)) / n)
        moments = xp.stack(power) / count[None] ** k * xp.exp(variance[None] * (k * (k - 1) / 2))
    return xp.sum(moments * nested.share[None] ** k * rest, axis=0)


# ----------------------------------------------------------------------------------------------------
# The kernel M'M of a strategy, with rounding: sums of n products of positive numbers are right to n roundings, and the
# entries of C to a few for each step of the recursion that streams them.
# ----------------------------------------------------------------------------------------------------


def _columns_of(bins: BallsInBins, of_entries: Any) -> np.ndarray:
    """Returns the sums over epochs of the columns of C, or of a function of its entries: (batches, steps), float64."""
    steps = bins.batches * bins.epochs
    if isinstance(bins.strategy, Toeplitz):
        # All are parts of one column, which moves down with the bin.
        padded = np.concatenate([np.zeros(bins.batches - 1), _first_column_of(bins.strategy, bins, of_entries)])
        return np.lib.stride_tricks.sliding_window_view(padded, steps)[::-1]
    check_dense(steps)
    with scope():
        matrix = np.asarray(bins.strategy.multiply(jnp.eye(steps, dtype=jnp.float64)), np.float64)
    if not np.all(np.isfinite(matrix)):
        raise ValueError(f"strategy has fewer than {steps} steps, those of a run: make one of as many.")
    return of_entries(matrix).reshape(steps, bins.epochs, bins.batches).sum(axis=1).T


def _first_column_of(strategy: Toeplitz, bins: BallsInBins, of_entries: Any) -> np.ndarray:
    """Returns the sum (steps,) of the columns of the first bin over epochs."""
    # Most steps of a run. A limit of time and memory alone.
    steps, most = bins.batches * bins.epochs, 2**24
    if steps > most:
        raise ValueError(f"batches * epochs = {steps} steps of a run are too many: give {most} at most.")
    column, coefficients = np.zeros(steps), of_entries(strategy.coefficients(steps))
    for start in range(0, steps, bins.batches):
        column[start:] += coefficients[: steps - start]
    return column


def _products_of(bins: BallsInBins, of_entries: Any) -> Callable[[int], np.ndarray]:
    """Returns a function that gives, for a lag, the products (batches,) of bins with those so much later, modulo b."""
    if isinstance(bins.strategy, Toeplitz):
        column = _first_column_of(bins.strategy, bins, of_entries)

        # The later the bin, the earlier the products end.
        def ahead(lag: int) -> np.ndarray:
            return np.cumsum(column[: len(column) - lag] * column[lag:])[::-1]

    else:
        columns = _columns_of(bins, of_entries)

        def ahead(lag: int) -> np.ndarray:
            return np.einsum("ij,ij->i", columns[: bins.batches - lag], columns[lag:])

    return lambda lag: np.concatenate([ahead(lag)[: bins.batches - lag], ahead(bins.batches - lag)[:lag]])


def _kernel_of(bins: BallsInBins) -> Kernel:
    """Returns the numbers of M'M: from above those of |C|, from below those of C itself."""
    b, p = bins.batches, bins.bands
    error = 16 * (b * bins.epochs + 4 * bins.epochs + 64) * 2.0**-53
    magnitudes, products = (_products_of(bins, of_entries) for of_entries in (np.abs, np.asarray))
    # With more bands than bins no block fits, and none is asked for (:meth:`BallsInBins.decompose`).
    sizes = [size for size in BLOCKS if size + p - 1 <= b] or [1]
    largest = [np.max(magnitudes(lag)) * (1 + error) for lag in range(max(sizes))]
    square, shared = largest[0], [max(largest[1:size], default=0.0) for size in sizes]
    above = [
        (1.0, [square - r, r, 0.0], [1.0, size, max(b // (size + p - 1), 1)])
        for size, r in zip(sizes, shared, strict=True)
    ]
    lags = range(min(2 ** (DEPTHS - 1), b))
    least = [products(lag) - error * magnitudes(lag) for lag in lags]
    # The bins of nearly full norm: any share is sound.
    full = least[0] >= 0.999 * np.max(least[0])
    below = [_nested_below(least, full, depth) for depth in range(DEPTHS) if 2**depth <= b]
    below = [nested for nested in below if nested is not None]
    return Kernel(_round(square, np.inf), _stack(above, np.inf), _stack(below, -np.inf))


def _stack(options: list[Any], towards: float) -> Nested:
    """Returns several nested means with a leading axis, of shapes (options,) and (options, levels)."""
    shares, variances, counts = zip(*options, strict=True)
    return Nested(_round(shares, towards), _round(variances, towards), np.array(counts, np.float64))


def _round(values: Any, towards: float) -> np.ndarray:
    """Returns values rounded up, or down, to numbers of float32, which a caller's own program may round them to."""
    values = np.asarray(values, np.float64)
    near = values.astype(np.float32)
    is_beyond = near < values if towards > 0 else near > values
    return np.where(is_beyond, np.nextafter(near, np.float32(towards)), near).astype(np.float64)


def _nested_below(least: list[np.ndarray], full: np.ndarray, depth: int) -> tuple[Any, ...] | None:
    """Returns the nested mean of blocks of 2^depth neighbouring bins; None where a product in one is negative.

    ``least`` has the products of bins by their distance, from below.
    """
    size = 2**depth
    used = full[: len(full) // size * size].reshape(-1, size).all(axis=1)
    places = np.flatnonzero(np.repeat(used, size))
    # r_i: over the pairs of bins that are in one part of 2^i of a block that is used; then 0.
    nested = [
        min(np.min(least[lag][places[places % part + lag < part]], initial=np.inf) for lag in range(part))
        for part in (2**i for i in range(depth + 1))
    ]
    if not 0 <= nested[-1] < np.inf:
        return None
    # All depths have as many levels, so that they are one program: levels of one copy, and without a factor.
    variances, counts = np.zeros(DEPTHS + 1), np.ones(DEPTHS + 1)
    variances[: depth + 1] = -np.diff([*nested, 0.0])
    counts[1 : depth + 1], counts[-1] = 2.0, np.sum(used)
    return np.sum(used) * size / len(full), variances, counts
