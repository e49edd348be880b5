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
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxacct.arithmetic import roundoff
from jaxacct.batching import stack
from jaxacct.programs import compiled
from jaxacct.prv.lattice import LossLattice, coarsen, identity_like
from jaxacct.prv.spectrum import Spectrum, heaviest, invert, multiply, offset_to, transform
from jaxacct.prv.windows import log_moments, reach
from jaxacct.pytrees import register_dataclass

Tree = TypeVar("Tree")

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
    """Losses in the power."""
    both: LossLattice
    """The power, and the sum of the losses of the bits met, on one mesh: (2, rows, n)."""
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
    first = _Progress(steps, jnp.int64(1), stack(step, jax.vmap(identity_like)(step)), stages)
    total_bits = jnp.log2(jnp.maximum(steps, 1).astype(jnp.float64))

    def advance(progress: _Progress) -> _Progress:
        wanted, most = _bits_of_stage(progress, total_bits, method)
        return _stage(progress, wanted, most, log_tail)

    final = jax.lax.while_loop(lambda progress: progress.remaining > 0, advance, first)
    return _of(final.both, 1), final.stages


def _bits_of_stage(progress: _Progress, total_bits: Array, method: Array) -> tuple[Array, Array]:
    """Returns the least number of squarings for which the mesh need not double, and the most to be done."""
    every = jnp.int64(BITS + 1)
    first = jnp.maximum(jnp.ceil(total_bits / 2), 1).astype(jnp.int64)
    halfway = (method == METHODS.index("two_stage")) & (progress.stages.count == 0)
    most = jnp.where(halfway, first, every)
    return jnp.where(method == METHODS.index("recursive"), 2, most), most


class _Fit(NamedTuple):
    both: LossLattice
    bits: Array
    """Squarings for which all windows hold what they must."""
    lows: Array
    """Losses (2,) where the windows begin after ``bits`` squarings, the same for all rows."""
    tries: Array


def _of(tree: Tree, index: int) -> Tree:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _stage(progress: _Progress, wanted: Array, most: Array, log_tail: Array) -> _Progress:
    """Squares the power as often as fits, at most ``most`` times, and takes in the bits of the remaining steps.

    The power and the sum are worked on one after the other, by the same code.
    """
    remaining, copies = progress.remaining, progress.copies
    left = _bit_length(remaining)
    wanted = jnp.minimum(wanted, left)

    def fit(state: _Fit) -> _Fit:
        """On the mesh that there is at first, then on ever wider ones."""
        widened = jax.lax.cond(
            state.tries > 0, lambda both: jax.lax.map(_on_twice_the_mesh, both), lambda both: both, state.both
        )
        bits, lows = _fit(widened, remaining, jnp.minimum(most, left), log_tail, copies)
        return _Fit(widened, bits, lows, state.tries + 1)

    fitted = jax.lax.while_loop(
        lambda state: (state.tries == 0) | ((state.bits < wanted) & (state.tries <= DOUBLINGS)),
        fit,
        _Fit(progress.both, jnp.int64(0), jnp.zeros(2), jnp.int64(0)),
    )
    bits = jnp.maximum(fitted.bits, wanted)
    unknown = jnp.where(fitted.bits < wanted, jnp.inf, 0.0)

    def square(state: tuple[Array, Array, Spectrum]) -> tuple[Array, Array, Spectrum]:
        done, rest, both = state
        counts, power = jnp.stack([rest >= 2, rest % 2 == 1]), _of(both, 0)

        def times_power(row: tuple[Array, Spectrum]) -> Spectrum:
            return jax.lax.cond(row[0], lambda one: jax.vmap(multiply)(one, power), lambda one: one, row[1])

        return done + 1, rest // 2, jax.lax.map(times_power, (counts, both))

    _, rest, spectra = jax.lax.while_loop(
        lambda state: state[0] < bits, square, (jnp.int64(0), remaining, jax.lax.map(_spectra, fitted.both))
    )
    copies = copies * 2 ** jnp.minimum(bits, 62)
    # Twice the tail: both sides. What one power loses is lost as often as there are powers still to be summed.
    tail = 2 * jnp.exp(log_tail)
    lost = tail * copies.astype(jnp.float64) + unknown
    last = rest == 0

    def inverted(row: tuple[Array, LossLattice, Spectrum, Array]) -> LossLattice:
        is_over, lattices, spectrum, low = row
        return jax.lax.cond(is_over, lambda: lattices, lambda: _inverted(spectrum, low, lost))

    over = jnp.stack([last, jnp.asarray(False)])
    both = jax.lax.map(inverted, (over, fitted.both, spectra, fitted.lows))
    shown = jax.tree.map(lambda leaf: jnp.where(last, leaf[1, 0], leaf[0, 0]), both)
    stages = progress.stages
    at = jnp.minimum(stages.count, STAGES - 1)
    stages = Stages(
        count=stages.count + 1,
        mesh=stages.mesh.at[at].set(shown.mesh),
        start=stages.start.at[at].set(shown.start),
        copies=stages.copies.at[at].set(copies.astype(jnp.float64)),
        slack=stages.slack.at[at].set(shown.slack),
    )
    return _Progress(rest, copies, both, stages)


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


def _fit(both: LossLattice, remaining: Array, most: Array, log_tail: Array, copies: Array) -> tuple[Array, Array]:
    """Returns how many squarings fit the windows of all rows, which are one, and where those begin, (2,).

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
    power, accumulated = _of(both, 0), _of(both, 1)
    length = power.mesh[0] * power.points
    starts = 8 * factors.astype(jnp.float64) * jnp.abs(power.start[0]) + 64 * (jnp.abs(accumulated.start[0]) + length)
    room = (power.points - MARGIN) / power.points - 2 * roundoff() * (starts / length)
    of_power, of_accumulated = jax.vmap(jax.vmap(log_moments))(both)
    tails = log_tail + jnp.log((copies * factors).astype(jnp.float64))
    # So many of the power make each of the two, (2, bits), beside what has been accumulated.
    counts = jnp.stack([factors, digits]).astype(jnp.float64)
    kappas = jnp.stack([jnp.zeros_like(of_power), of_accumulated])[:, None] + counts[..., None, None] * of_power
    low, high = reach(kappas, jnp.broadcast_to(tails[None, :, None], kappas.shape[:-1]))
    low, high = jnp.min(low, axis=2), jnp.max(high, axis=2)
    # Once all bits are in, the power is no longer needed.
    fits = (high - low <= room).at[0].set((high[0] - low[0] <= room) | (factors > remaining))
    best = jnp.max(jnp.where(fits[0] & fits[1] & (bits <= most), bits, 0))
    first = counts[:, best] * power.start[0] + jnp.stack([jnp.zeros_like(length), accumulated.start[0]])
    return best, first + length * ((low[:, best] + high[:, best]) / 2 - 0.5)


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
