"""Composition on an evolving mesh: constant memory, and time logarithmic in the steps.

A stage takes the law of n losses to that of n 2^b: one transform, b squarings of the spectrum, one inverse transform,
on as many mesh points as there are. b is as large as the window allows. When not even two squarings fit, the mesh
doubles, and with it the window: for a bulk that grows like the square root of n that is once for every four-fold growth
(the recursive algorithm of Ghazi, Kamath, Kumar and Manurangsi 2022, "Faster privacy accounting via evolving
discretization"). A step of mesh h costs at most h^2/4 in variance, and the number of summands falls by four as the
squared mesh grows by four, so each coarsening costs about the same and their sum grows like log(steps).

The bits of the number of steps are taken from the lowest: an accumulator of the powers met so far is kept on the mesh
of the next, so that like is merged with like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxacct.arithmetic import roundoff
from jaxacct.programs import compiled
from jaxacct.prv.lattice import LossLattice, coarsen, identity_like
from jaxacct.prv.spectrum import Spectrum, heaviest, invert, multiply, offset_to, transform
from jaxacct.prv.windows import log_moments, reach
from jaxacct.pytrees import register_dataclass

METHODS = ("recursive", "two_stage", "fixed")

STAGES = 32
"""Most stages of which a record is kept; 2^53 steps take 27."""

MARGIN = 4
"""Points kept free of what the window must hold, for its placing by whole points."""

DOUBLINGS = 200
"""Most doublings of the mesh in one go: where that is not enough nothing is finite, and nothing is claimed."""

BITS = 53
"""Bits of the greatest number of steps."""


@register_dataclass
@dataclass(frozen=True)
class Stages:
    """What happened at each stage; entries beyond ``count`` are zero.

    Attributes:
        count (): stages done.
        mesh (STAGES,), start (STAGES,): mesh and window of each stage's result.
        copies (STAGES,): losses summed in the power after each stage.
        slack (STAGES,): tilted mass, relative to the whole, allowed for truncation and rounding so far.
    """

    count: Int[Array, ""]
    mesh: Float[Array, " stages"]
    start: Float[Array, " stages"]
    copies: Float[Array, " stages"]
    slack: Float[Array, " stages"]


class _Progress(NamedTuple):
    remaining: Array
    """Steps still to take, in units of ``power``."""
    copies: Array
    """Losses in ``power``."""
    power: LossLattice
    accumulated: LossLattice
    """The sum of the losses of the bits met, on the mesh of ``power``."""
    stages: Stages


def truncation(points: Any) -> Any:
    """Returns the share of the final tilted mass that all stages together may let go on each side.

    A finer mesh aims at a smaller error. Chosen by bench/prv_accuracy.py: delta moves by this times e^8 at most.
    """
    return 2.0**-12 / points**2


def self_compose(step: LossLattice, steps: Array, method: Array, log_tail: Array) -> tuple[LossLattice, Stages]:
    """Returns the lattice of the sum of ``steps`` independent copies of a loss, and the record of the stages.

    Args:
        step: lattices of one step on one mesh, with a leading axis: (rows, n).
        steps: nonnegative int64 scalar, may be traced.
        method: index in :data:`METHODS`, may be traced: "recursive", stages of about four-fold; "two_stage", one of
            about sqrt(steps) and one of the rest; "fixed", one stage. They differ in when the mesh may double; the mesh
            of ``step`` should suit.
        log_tail: log of the tilted mass of one step that a stage may let go on each side, see :func:`truncation`.
    """
    empty = jnp.zeros(STAGES)
    stages = Stages(count=jnp.int64(0), mesh=empty, start=empty, copies=empty, slack=empty)
    steps = jnp.maximum(steps, 0).astype(jnp.int64)
    first = _Progress(steps, jnp.int64(1), step, jax.vmap(identity_like)(step), stages)
    total_bits = jnp.log2(jnp.maximum(steps, 1).astype(jnp.float64))

    def advance(progress: _Progress) -> _Progress:
        wanted, most = _bits_of_stage(progress, total_bits, method)
        return _stage(progress, wanted, most, log_tail)

    final = jax.lax.while_loop(lambda progress: progress.remaining > 0, advance, first)
    return final.accumulated, final.stages


def _bits_of_stage(progress: _Progress, total_bits: Array, method: Array) -> tuple[Array, Array]:
    """Returns the least number of squarings for which the mesh need not double, and the most to be done."""
    every = jnp.int64(BITS + 1)
    first = jnp.maximum(jnp.ceil(total_bits / 2), 1).astype(jnp.int64)
    halfway = (method == METHODS.index("two_stage")) & (progress.stages.count == 0)
    most = jnp.where(halfway, first, every)
    return jnp.where(method == METHODS.index("recursive"), 2, most), most


class _Fit(NamedTuple):
    power: LossLattice
    accumulated: LossLattice
    bits: Array
    """Squarings for which all windows hold what they must."""
    lows: tuple[Array, Array]
    """Losses where the windows of power and accumulator begin after ``bits`` squarings, the same for all rows."""


def _stage(progress: _Progress, wanted: Array, most: Array, log_tail: Array) -> _Progress:
    """Squares the power as often as fits, at most ``most`` times, and takes in the bits of the remaining steps."""
    remaining, copies = progress.remaining, progress.copies
    left = _bit_length(remaining)
    wanted = jnp.minimum(wanted, left)

    def fit(power: LossLattice, accumulated: LossLattice) -> _Fit:
        return _fit(power, accumulated, remaining, jnp.minimum(most, left), log_tail, copies)

    def widen(state: _Fit) -> _Fit:
        return fit(_on_twice_the_mesh(state.power), _on_twice_the_mesh(state.accumulated))

    fitted, _ = jax.lax.while_loop(
        lambda state: (state[0].bits < wanted) & (state[1] < DOUBLINGS),
        lambda state: (widen(state[0]), state[1] + 1),
        (fit(progress.power, progress.accumulated), jnp.int64(0)),
    )
    bits = jnp.maximum(fitted.bits, wanted)
    unknown = jnp.where(fitted.bits < wanted, jnp.inf, 0.0)
    power, accumulated = _spectra(fitted.power), _spectra(fitted.accumulated)

    def square(state: tuple[Array, Array, Spectrum, Spectrum]) -> tuple[Array, Array, Spectrum, Spectrum]:
        done, rest, power, accumulated = state
        odd = rest % 2 == 1
        accumulated = jax.lax.cond(odd, lambda a: jax.vmap(multiply)(a, power), lambda a: a, accumulated)
        rest = rest // 2
        power = jax.lax.cond(rest > 0, lambda p: jax.vmap(multiply)(p, p), lambda p: p, power)
        return done + 1, rest, power, accumulated

    _, rest, power, accumulated = jax.lax.while_loop(
        lambda state: state[0] < bits, square, (jnp.int64(0), remaining, power, accumulated)
    )
    copies = copies * 2 ** jnp.minimum(bits, 62)
    # Twice the tail: both sides. What one power loses is lost as often as there are powers still to be summed.
    tail = 2 * jnp.exp(log_tail)
    lost = tail * copies.astype(jnp.float64) + unknown
    last = rest == 0
    new_power = jax.lax.cond(last, lambda: fitted.power, lambda: _inverted(power, fitted.lows[0], lost))
    new_accumulated = _inverted(accumulated, fitted.lows[1], lost)
    shown = jax.tree.map(lambda a, b: jnp.where(last, a, b)[0], new_accumulated, new_power)
    stages = progress.stages
    at = jnp.minimum(stages.count, STAGES - 1)
    stages = Stages(
        count=stages.count + 1,
        mesh=stages.mesh.at[at].set(shown.mesh),
        start=stages.start.at[at].set(shown.start),
        copies=stages.copies.at[at].set(copies.astype(jnp.float64)),
        slack=stages.slack.at[at].set(shown.slack),
    )
    return _Progress(rest, copies, new_power, new_accumulated, stages)


def _on_twice_the_mesh(lattices: LossLattice) -> LossLattice:
    """Returns the lattices (rows, n) coarsened alike, so that the heaviest point of the first stays where it is."""
    return jax.vmap(coarsen, in_axes=(0, None))(lattices, heaviest(lattices) % 2 == 1)


def _spectra(lattices: LossLattice) -> Spectrum:
    """Returns the spectra of lattices (rows, n) that are alike; turned alike, for each its own turn would be slow."""
    return jax.vmap(transform, in_axes=(0, None))(lattices, heaviest(lattices))


def _inverted(spectra: Spectrum, low: Array, tail: Array) -> LossLattice:
    """Returns the lattices (rows, n) of spectra on the window that begins at about ``low``."""
    offset = offset_to(low, jax.tree.map(lambda leaf: leaf[0], spectra.lattice))
    return jax.vmap(invert, in_axes=(0, None, None))(spectra, offset, tail)


def _bit_length(number: Array) -> Array:
    return jnp.sum(number >= 2 ** jnp.arange(BITS + 1, dtype=jnp.int64))


def _fit(
    power: LossLattice, accumulated: LossLattice, remaining: Array, most: Array, log_tail: Array, copies: Array
) -> _Fit:
    """Returns how many squarings fit the windows of all rows, which are one, and where those begin.

    After b squarings the power is the sum of 2^b of the present ones, and the accumulator has taken in the lowest b
    bits of ``remaining``.

    *Rounding.* Windows are placed by losses, whose differences to the first point of a circle are whole numbers of mesh
    points. In lengths of the mesh, for 2^b copies: :func:`~jaxacct.prv.windows.log_moments` is padded by 16u of each
    rate, so the ends by 16u 2^b, of which moments, ends and places round away at most 15. What rounds in units of the
    starts themselves, eight times those of the power, and of the accumulator and a length once for each of 53 bits, is
    kept free on both sides.
    """
    bits = jnp.arange(BITS + 1, dtype=jnp.int64)
    factors = 2**bits
    digits = remaining % factors
    length = power.mesh[0] * power.points
    starts = 8 * factors.astype(jnp.float64) * jnp.abs(power.start[0]) + 64 * (jnp.abs(accumulated.start[0]) + length)
    room = (power.points - MARGIN) / power.points - 2 * roundoff() * (starts / length)
    of_power, of_accumulated = jax.vmap(log_moments)(power), jax.vmap(log_moments)(accumulated)
    tails = log_tail + jnp.log((copies * factors).astype(jnp.float64))

    def ranges(row_power: Array, row_accumulated: Array) -> tuple[Array, ...]:
        def of(factor: Array, digit: Array, tail: Array) -> tuple[Array, ...]:
            f, d = factor.astype(jnp.float64), digit.astype(jnp.float64)
            return (*reach(f * row_power, tail), *reach(row_accumulated + d * row_power, tail))

        return jax.vmap(of)(factors, digits, tails)

    low_p, high_p, low_a, high_a = jax.vmap(ranges)(of_power, of_accumulated)
    low_p, high_p = jnp.min(low_p, axis=0), jnp.max(high_p, axis=0)
    low_a, high_a = jnp.min(low_a, axis=0), jnp.max(high_a, axis=0)
    # Once all bits are in, the power is no longer needed.
    power_fits = (high_p - low_p <= room) | (factors > remaining)
    fits = power_fits & (high_a - low_a <= room) & (bits <= most)
    best = jnp.max(jnp.where(fits, bits, 0))

    def begins(low: Array, high: Array, first: Array) -> Array:
        return first + length * ((low[best] + high[best]) / 2 - 0.5)

    factor, digit = factors[best].astype(jnp.float64), digits[best].astype(jnp.float64)
    lows = (
        begins(low_p, high_p, factor * power.start[0]),
        begins(low_a, high_a, accumulated.start[0] + digit * power.start[0]),
    )
    return _Fit(power, accumulated, best, lows)


@compiled
def merge(first: LossLattice, second: LossLattice, log_tail: Array) -> LossLattice:
    """Returns the lattice of the sum of two losses, each (rows, n), on meshes that are one another's doubles.

    The finer is brought to the mesh of the coarser, and both to one that holds the sum.
    """

    def doubled(first: LossLattice, second: LossLattice, needed: Any, *, both: bool) -> tuple[LossLattice, LossLattice]:
        """Doubles the mesh of the first, or of both, as long as that is needed."""

        def double(state: tuple[LossLattice, LossLattice, Array]) -> tuple[LossLattice, LossLattice, Array]:
            a, b, count = state
            return _on_twice_the_mesh(a), _on_twice_the_mesh(b) if both else b, count + 1

        a, b, _ = jax.lax.while_loop(
            lambda s: needed(s[0], s[1]) & (s[2] < DOUBLINGS), double, (first, second, jnp.int64(0))
        )
        return a, b

    def width(a: LossLattice, b: LossLattice) -> tuple[Array, Array]:
        low, high = reach(jax.vmap(log_moments)(a) + jax.vmap(log_moments)(b), log_tail)
        return jnp.min(low), jnp.max(high)

    def is_finer(a: LossLattice, b: LossLattice) -> Array:
        return a.mesh[0] < 0.75 * b.mesh[0]

    def is_too_narrow(a: LossLattice, b: LossLattice, low: Array, high: Array) -> Array:
        # Rounding as of _fit.
        length = a.mesh[0] * a.points
        starts = 8 * (jnp.abs(a.start[0]) + jnp.abs(b.start[0])) + 64 * length
        # Not a number, too.
        return ~(high - low <= (a.points - MARGIN) / a.points - 2 * roundoff() * (starts / length))

    first, second = doubled(first, second, is_finer, both=False)
    second, first = doubled(second, first, is_finer, both=False)
    first, second = doubled(first, second, lambda a, b: is_too_narrow(a, b, *width(a, b)), both=True)
    low, high = width(first, second)
    fits = ~is_too_narrow(first, second, low, high) & jnp.all(first.mesh == second.mesh)
    tail = jnp.where(fits, 2 * jnp.exp(log_tail), jnp.inf)
    begin = first.start[0] + second.start[0] + first.mesh[0] * first.points * ((low + high) / 2 - 0.5)
    product = jax.vmap(multiply)(_spectra(first), _spectra(second))
    return _inverted(product, begin, tail)
