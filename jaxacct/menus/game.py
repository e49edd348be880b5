"""What the worst adaptive use of a finite menu comes to: a dynamic program over the privacy loss.

The game. An adversary has a budget of R units and a menu of mechanisms, the j-th at a whole cost c_j. Round by round
it chooses an item that it can pay for, in view of all results so far, or stops. With L the privacy loss so far, drawn
under P, and Y that of an item's dominating pair (P_j, Q_j), let

    V_r(L) = max( (1 - e^(eps - L))+ ,  max over c_j <= r of E[V_(r - c_j)(L + Y_j)] ).

*Then delta(eps) <= V_R(0) on every path, whatever is chosen from earlier results, stopping included.* Write x = e^L and
F_r(x) = x V_r(log x). F_0 = (x - e^eps)+ is convex, and F_r is the maximum of F_0 and of the expectations of F(x e^Y)
under the Q_j (and of x P_j(Y = inf)): convex again, by induction. The likelihood ratio of a mechanism that (P_j, Q_j)
dominates is below e^Y in the convex order under Q (Blackwell), so that playing the pair in its place only raises the
expectation, after every history. What is left depends on the history through L and r alone. For a menu of one item the
maximum is that of composition.

*Blocks.* An item may be a block of n runs of one mechanism. All draws of a block's pairs may be thought of as revealed
when it is paid for: later decisions then know more, and each run, whenever it is made and in whatever order with runs
of other blocks, is a function of its draw and of independent randomness (Blackwell, given all that was released
before). So the runs of a block that has been paid for can be made at any later time, and the bound stands.

On a lattice. Each item is a measure above its loss (or below it, for a lower bound on the game) on the multiples of h,
in the order of :mod:`jaxacct.prv`, so the program above is exact there, and bounds the game on its side. What remains:

* Infinite losses, and mass counted as such, are added up apart: at most I_R over all paths (union bound). From here on
  V is that of the finite losses. From below they are put at the last point of the lattice.
* Window. F is convex, F(0) = 0 and F(x) <= x, so its slope is at most 1: above the window V(L) <= 1 - e^(b - L) (1 -
  V(b)), b its end; and F(x)/x rises: below it V(L) <= V(a). From below: the value of stopping, and 0.
* Tilt. The program runs on W = V e^(-t L), with weights p e^(t y), which makes a delta of 1e-12 as precise as any. With
  (1 - e^(eps - L))+ <= e^(t (L - eps)) t^t/(1 + t)^(1 + t), the true W is nowhere above G_r = max(that constant at L =
  0, max over j of T_j G_(r - c_j)), T_j the tilted mass of the true loss: the Rényi bound of order 1 + t.
* Errors. E of :class:`~jaxacct.prv.lattice.LossLattice`, of tilted mass s_j, changes an expectation of the true V,
  whose F is convex, by at most s_j G. A convolution by transforms of N points, each wrong by f =
  transform_error(N) in L2 (and entry by entry relative to M_j, the sum of the weights), errs in each entry by at most
  M_j |X|_2 (3 f + 16 u) to first order. Both are added at every level, and so go through all that follows.
  So is what float64 flushes to zero: a tilt that is too high for it makes the values infinite, not 0.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Int

from jaxacct.precision import FUNCTION, TINY, UNIT_ROUNDOFF, log_peak
from jaxacct.programs import compiled
from jaxacct.prv.compose import transform_error


class Losses(NamedTuple):
    """The losses of a menu's items on the lattice, for each direction (rows), above or below."""

    weights: Float[Array, "rows items n"]
    """Tilted masses; the loss k h is at index k, and at n + k for k < 0."""
    total: Float[Array, "rows items"]
    """Upper bound on the tilted mass of the true finite loss."""
    slack: Float[Array, "rows items"]
    """Tilted mass that the weights may be wrong by."""
    infinite: Float[Array, "rows items"]
    """Mass of infinite losses, and of what counts as such."""


class Window(NamedTuple):
    """The losses L that the program holds, on a circle of n points."""

    mesh: Float[Array, ""]
    """h, of so few digits that its multiples are exact."""
    start: Int[Array, ""]
    """The loss at index 0, in units of h."""
    first: Int[Array, ""]
    """Index where the window begins; before it lies what the items' least losses reach down to."""
    last: Int[Array, ""]
    """Index where it ends."""
    order: Float[Array, " rows"]
    """The tilt t of each direction."""


class Solved(NamedTuple):
    """A game's value for every budget, as far as it was asked for."""

    budget: Int[Array, ""]
    """The largest budget whose value is at most delta, or the largest asked about."""
    values: Float[Array, " levels"]
    """Bounds on V_r(0), the larger of the directions; infinite beyond the budget after that one."""


class _Past(NamedTuple):
    """The levels so far, of each direction."""

    spectra: Complex[Array, "rows ring half"]
    norms: Float[Array, "rows levels"]
    bounds: Float[Array, "rows levels"]
    """G."""
    infinite: Float[Array, "rows levels"]
    """I."""


class _State(NamedTuple):
    level: Array
    goes_on: Array
    stopped: Float[Array, "rows n"]
    """What stopping is worth, tilted, at the epsilon of the level before."""
    values: Float[Array, " levels"]
    past: _Past


@compiled(static=("ring",))
def solve(
    ring: int,
    losses: Losses,
    costs: Int[Array, " items"],
    epsilons: Float[Array, " levels"],
    window: Window,
    delta: Float[Array, ""],
    most: Int[Array, ""],
    is_upper: Array,
) -> Solved:
    """Returns the values of budgets 0, 1, ... up to the first whose value exceeds ``delta``.

    Args:
        ring: more than any cost; static.
        losses: of the items; all above, or all below.
        costs (items,): whole, at least 1.
        epsilons (levels,): the epsilon at which a path is judged that has this much of its budget left. The same for
            all is the filter's game.
        window: see there.
        delta: where to end.
        most: the largest budget asked about, below ``levels``.
        is_upper: whether the values are upper bounds, of losses above, or lower bounds.
    """
    n, levels = losses.weights.shape[-1], epsilons.shape[0]
    rows, items = losses.infinite.shape
    u, t = UNIT_ROUNDOFF, window.order[:, None]
    places = jnp.arange(n)[None, :]
    at = (window.start + places) * window.mesh
    before, after = places < window.first, places > window.last
    low, high = (window.start + window.first) * window.mesh, (window.start + window.last) * window.mesh
    beyond = jnp.maximum(at - high, 0.0)
    flushed = 8 * n * TINY
    # exp of an exponent that rounds, and a few products.
    relative = 4 * FUNCTION + 4 * u * t * jnp.max(jnp.abs(at))
    up = 1 + relative
    safe, sign = jnp.where(is_upper, up, 1 - relative), jnp.where(is_upper, 1.0, -1.0)
    masses = jnp.sum(losses.weights, axis=-1) * (1 + 2 * n * u)
    wrong = masses * (3 * transform_error(n) + 16 * u) * (1 + 1e-9)
    # What every level needs is made here: a loop that was compiled fast would make it again each time. From below there
    # is no ceiling, and nothing beyond the window but stopping.
    transforms = jnp.conj(jnp.fft.rfft(losses.weights)) * safe[..., None]
    decay = jnp.exp(-t * at)
    ceiling, raised = jnp.where(is_upper, decay * up, jnp.inf), jnp.where(is_upper, flushed, 0.0)
    higher = jnp.where(is_upper, decay * -jnp.expm1(-beyond) * up + flushed, 0.0)
    higher_by = jnp.where(is_upper, decay * jnp.exp(-beyond) * up, 0.0)
    steeper = jnp.where(is_upper, jnp.exp(t * (low - at)) * up, 0.0)
    peak = log_peak(t)

    def stopped_at(epsilon: Array) -> Array:
        return jnp.maximum(-jnp.expm1(epsilon - at), 0.0) * decay * safe

    def advance(state: _State) -> _State:
        r, past = state.level, state.past
        epsilon, index, can = epsilons[r], jnp.maximum(r - costs, 0), (costs <= r)[None, :]
        is_same = (r > 0) & (epsilon == epsilons[jnp.maximum(r - 1, 0)])
        stopped = jax.lax.cond(is_same, lambda: state.stopped, lambda: stopped_at(epsilon))
        bound = jnp.exp(peak - t * epsilon) * (1 + FUNCTION * (8 + t * jnp.abs(epsilon))) + flushed
        bounds = losses.total * past.bounds[:, index] * (1 + 4 * u)
        bound = jnp.maximum(bound, jnp.max(jnp.where(can, bounds, 0.0), axis=1, keepdims=True))
        infinite = jnp.max(jnp.where(can, past.infinite[:, index] + losses.infinite, 0.0), axis=1) * (1 + 4 * u)
        error = (wrong * past.norms[:, index] + losses.slack * past.bounds[:, index] + flushed) * up
        error = jnp.where(can, sign * error * (1 + 4 * u), -jnp.inf)
        spectra = [past.spectra[:, index[j] % ring] * transforms[:, j] for j in range(items)]
        played = jnp.fft.irfft(jnp.stack(spectra), n)
        best = stopped
        for j in range(items):  # one after the other, for loops over short axes are slow
            best = jnp.maximum(best, played[j] + error[:, j : j + 1])
        highest = jnp.where(is_upper, bound, jnp.inf)
        best = jnp.minimum(best, jnp.minimum(ceiling, highest)) + raised
        edge = jnp.minimum(best[:, window.last] / decay[:, window.last] * up[:, 0], 1.0)[:, None]
        above = jnp.maximum(stopped, higher + higher_by * edge)
        below = jnp.minimum(best[:, window.first][:, None] * steeper, highest)
        whole = jnp.where(before, below, jnp.where(after, above, best))
        value = jnp.max(whole[:, -window.start] + infinite) * (1 + sign * 4 * u)
        value = jnp.where(jnp.isnan(value), jnp.where(is_upper, jnp.inf, 0.0), value)
        # In units of about the largest entry, and with what is flushed of the squares.
        unit = jnp.maximum(bound, TINY)
        squares = jnp.sum((whole * (1 / unit)) ** 2, axis=1, keepdims=True) + n * TINY
        norms = unit * jnp.sqrt(squares) * (1 + 4 * n * u) + TINY
        past = _Past(
            past.spectra.at[:, r % ring].set(jnp.fft.rfft(whole)),
            past.norms.at[:, r].set(norms[:, 0]),
            past.bounds.at[:, r].set(bound[:, 0]),
            past.infinite.at[:, r].set(infinite),
        )
        return _State(r + 1, (value <= delta) & (r < most), stopped, state.values.at[r].set(value), past)

    zeros = jnp.zeros((rows, levels))
    past = _Past(jnp.zeros((rows, ring, n // 2 + 1), jnp.complex128), zeros, zeros, zeros)
    first = _State(jnp.int32(0), jnp.asarray(True), jnp.zeros((rows, n)), jnp.full(levels, jnp.inf), past)
    final = jax.lax.while_loop(lambda state: state.goes_on, advance, first)
    last = final.level - 1
    return Solved(jnp.where(final.values[last] <= delta, last, last - 1), final.values)
