"""The characteristic function of the tilted sum at the nodes of a line, less what is known of it in closed form.

With X = Y - E_t Y it is summed as E_t[e^(iwX) - 1], which is small where w is, and so keeps its digits when it is
raised to the power of the steps. Nodes come in pieces, as many as the highest frequency asks for. Frequencies come in
tiles: e^(i(a+b)) - 1 is made of e^(ia) - 1 and e^(ib) - 1, a the tile's first and b one of few offsets, in one product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxacct import by_work
from jaxacct.arithmetic import roughly, roundoff, with_pair_form
from jaxacct.composition import Parts
from jaxacct.dominating_pairs.law import HasLaw, Moments, Nodes, law_of
from jaxacct.dominating_pairs.turns import turned
from jaxacct.float_pairs import few_digits
from jaxacct.saddlepoint.sums import is_alone

FREQUENCIES = 2048
"""Most nodes on one half of the line."""

TILE = 8
"""Frequencies that share one turn of all nodes."""

TILES_OF_STEP = 16
"""Tiles for which nodes are made at a time where lanes are side by side."""

BLOCK = 64
"""Frequencies that are worked on at a time."""

NODE_ROUNDING = 150.0
"""Units of roundoff by which the log of a characteristic function errs relative to the mean of |w X|.

Weights are exponentials of logs as large as cut + 14, off by that many units and a few for the loss in them, 130 in
all; angles, of which two are put together, the one of a few products, err by up to eight units of themselves
(tests/saddlepoint/test_tiles.py).
"""

Sums = tuple[Array, ...]


def frequencies(spacing: Array) -> Array:
    """Returns the frequencies (blocks, BLOCK) of all blocks."""
    return spacing * jnp.asarray(np.arange(1.0, FREQUENCIES + 1).reshape(-1, BLOCK), spacing.dtype)


def blocks_of(tiles: Array) -> Array:
    """Returns how many blocks of frequencies so many tiles fill, the last perhaps in part."""
    return -(-tiles * TILE // BLOCK)


class Transforms(NamedTuple):
    """Of each row, if there are several with an axis for them, after that of the blocks.

    Attributes:
        sums (blocks, [m,] 2, BLOCK): real and imaginary parts of E_t[e^(iwX) - 1] at the frequencies.
        spread ([m,] n), missed ([m]): what bounds their errors.
        steps ([m]): runs.
    """

    sums: Array
    spread: Array
    missed: Array
    steps: Array


def transforms(
    parts: Parts,
    scans: list[Nodes],
    windows: list[tuple[Array, Array]],
    known: list[tuple[Moments, Array | None]],
    order: Array,
    spacing: Array,
    tiles: Array,
) -> Transforms:
    """Returns the sums of all rows at (1 ... FREQUENCIES) spacing, of which only the first ``tiles`` tiles are filled.

    ``known`` has the moments of each row at that order, and the errors of their slopes.
    """
    found: list[Transforms] = []
    for (pairs, steps), *more in zip(parts, scans, windows, known, strict=True):
        run = (pairs, *more, steps)
        if is_alone(parts):
            return _row(run, order, spacing, tiles)
        if jnp.ndim(steps) == 0:
            found.append(jax.tree.map(lambda leaf: leaf[None], _row(run, order, spacing, tiles)))
        else:  # one after the other: each takes as many pieces as it needs
            found.append(jax.lax.map(lambda row: _row(row, order, spacing, tiles), run))
    rows: Transforms = jax.tree.map(lambda *each: jnp.concatenate(each), *found)
    return rows._replace(sums=jnp.swapaxes(rows.sums, 0, 1))


def _row(run: Any, order: Array, spacing: Array, tiles: Array) -> Transforms:
    """Returns the sums of one loss."""
    pair, scan, window, known, steps = run
    moments, _ = known
    law = law_of(pair)
    end = spacing * TILE * tiles
    # What so many pieces miss is bounded below.
    pieces = roughly(lambda *args: law_of(args[0]).pieces(*args[1:]))(pair, order, end, window)
    # What is not run takes no time.
    taken = jnp.where(steps > 0, pieces, 0)
    given = pair, window, pieces, (moments.value, moments.slope), order, spacing, tiles
    sums, spread = _all_pieces(given, taken)
    # What is not run has no errors either.
    missed = jnp.where(steps > 0, 2 * jnp.exp(law.log_quadrature_error(order, end, law.step(window, pieces))), 0.0)
    spread = _with_doubt(spread, law, order, scan, window, pieces, known)
    return Transforms(jnp.swapaxes(sums.reshape(2, -1, BLOCK), 0, 1), spread, missed, steps)


@with_pair_form(traced=few_digits.with_doubt)
def _with_doubt(spread: Array, *_: Any) -> Array:
    """Returns spreads, with what else they are to be taken with."""
    return spread


def _group_by_group(given: Any, taken: Array) -> Sums:
    """Returns :func:`_all_pieces` some tiles at a time, those of all lanes in one list; lanes have few or hundreds."""
    *_, tiles = given
    alone = by_work.as_lanes(turned_sums)

    def of_group(group: Array, _: Array, given: Any) -> Sums:
        *rest, tiles, taken = given
        first = group * TILES_OF_STEP
        wanted = jnp.minimum(tiles - first, TILES_OF_STEP)
        add = lambda *args: jnp.stack(alone(*args[:-1], *args[-1]))  # noqa: E731
        return _pieces_added((*rest, first, wanted, taken), TILE * TILES_OF_STEP, add, longest_first=taken, share=2)

    groups = jnp.where(taken > 0, -(-tiles // TILES_OF_STEP), 0)
    every = jnp.arange(FREQUENCIES // (TILE * TILES_OF_STEP))
    sums, spread = by_work.map_rows(groups, of_group, every, (*given, taken))
    return jnp.swapaxes(sums, 0, 1).reshape(2, -1), spread[0]


@with_pair_form(traced=_group_by_group)
def _all_pieces(given: Any, taken: Array) -> Sums:
    """Returns the sums of so many pieces, and their spreads: of a lane by itself."""
    *_, tiles = given
    return _pieces_added((*given[:-1], jnp.int32(0), tiles, taken), FREQUENCIES, _sums, longest_first=tiles)


def _pieces_added(given: Any, frequencies: int, add: Callable[..., Array], **how: Any) -> Sums:
    """Returns what ``add`` makes of the pieces at so many frequencies, (2, frequencies), and their spreads."""
    *_, order, _, _, _, taken = given

    def piece(state: Sums, given: Any) -> Sums:
        (i, sums, spread), (*rest, first, tiles, _) = state, given
        weights, angles, more = _of_piece(i, *rest)
        return i + 1, add(weights, angles, first, tiles, sums), spread + more

    one = jax.ShapeDtypeStruct((1,), order.dtype)
    none = jnp.zeros(jax.eval_shape(_spreads, one, one, one, one).shape, order.dtype)
    start: Sums = (jnp.zeros_like(taken), jnp.zeros((2, frequencies), order.dtype), none)
    return by_work.while_loop(lambda state, given: state[0] < given[-1], piece, start, given, **how)[1:]


def _of_piece(i: Array, pair: HasLaw, window: Any, pieces: Array, known: Any, order: Array, spacing: Array) -> Sums:
    """Returns the weights of one piece of the nodes, their angles at the first frequency, and their spreads."""
    nodes = law_of(pair).piece(window, i, pieces)
    value, slope = known
    weights = jnp.exp(nodes.log_p + order * nodes.losses - value)
    deviations = nodes.losses - slope
    angles = spacing * deviations
    sizes = jnp.abs(deviations) + 0.1 * jnp.abs(nodes.losses)
    return weights, angles, _spreads(weights, sizes, deviations, angles)


@with_pair_form(traced=few_digits.spreads)
def _spreads(weights: Array, sizes: Array, deviations: Array, angles: Array) -> Array:
    """Returns the spread of nodes (n,), by which what is made of their weights errs."""
    return jnp.stack([jnp.sum(weights * sizes)])


def log_characteristic(rows: Transforms, w: Array, spacing: Array) -> Sums:
    """Returns log modulus, phase and error of E_t[e^(iw(S - E_t S))] at the frequencies of a block, of all that is run.

    The error is a bound on that of both together: phi is off by at most |phi| (e^bound - 1), for if each factor b is
    off by e |b|, e >= 0, a product of k of them is off by ((1 + e)^k - 1) |b|^k.
    """
    if jnp.ndim(rows.steps) == 0:
        return _to_the_steps(rows, w, spacing)
    found = jax.vmap(lambda *row: _to_the_steps(Transforms(*row), w, spacing))(*rows)
    return tuple(jnp.sum(part, axis=0) for part in found)


def _to_the_steps(row: Transforms, w: Array, spacing: Array) -> Sums:
    """Returns log modulus, phase and error of a block, of all the steps, from E_t[e^(iwX) - 1]."""
    ((x, y), spread, missed, steps), u = row, roundoff()
    y, off = _imaginary_and_error(y, w, spacing, spread, NODE_ROUNDING)
    # The square of the modulus: less 1 where it is near 1, for that cancels, and itself where it is near 0.
    real = 1 + x
    excess, square = x * (1 + real) + y * y, jnp.maximum(real * real + y * y, u**2)
    log_modulus = 0.5 * jnp.where(excess > -0.25, jnp.log1p(jnp.maximum(excess, -0.25)), jnp.log(square))
    # At least 75 u where the square was raised to u^2: 1 - |phi| is at most w times the spread.
    error = jnp.log1p((off + missed) * jnp.exp(-log_modulus))
    return steps * log_modulus, steps * jnp.arctan2(y, real), steps * error


@with_pair_form(traced=few_digits.imaginary_and_error)
def _imaginary_and_error(y: Array, w: Array, _: Array, spread: Array, units: float) -> tuple[Array, Array]:
    """Returns imaginary parts of E_t[e^(iwX) - 1], and the errors of these sums, as complex numbers."""
    return y, w * (units * roundoff() * spread[0])


_turned = jax.jit(turned)


@with_pair_form
def turned_sums(weights: Array, angles: Array, begun: Array, tiles: Array, real: Array, imaginary: Array) -> Sums:
    """Returns :func:`_sums` of lanes, of which pairs have a form of their own."""
    sums = jax.vmap(_sums)(weights, angles, begun, tiles, jnp.stack([real, imaginary], axis=1))
    return sums[:, 0], sums[:, 1]


def _sums(weights: Array, angles: Array, begun: Array, tiles: Array, sums: Array) -> Array:
    """Returns ``sums`` (2, n), real and imaginary parts, with those of the sum of weights (e^(iwX) - 1) added.

    Tile by tile, each by one product; ``angles`` are w X at the first frequency, ``begun`` is the tile that the sums
    begin with.
    """
    # A CPU's compiler vectorizes one axis, and makes scalar code of two: so row by row. Barriers keep it from doing
    # anew for each use what it is made of.
    weights, angles = jax.lax.optimization_barrier((weights, angles))
    # Of e^(i(a+b)) - 1 = (e^(ia) - 1) e^(ib) + (e^(ib) - 1) the latter is the same for all tiles: b is one of TILE
    # offsets. Full precision: some devices multiply matrices in fewer bits by default.
    c, s = jax.lax.optimization_barrier(jax.lax.map(lambda b: _turned(b * angles), np.arange(TILE, dtype=angles.dtype)))
    own = jnp.matmul(jnp.concatenate([c, s]), weights, precision="highest")
    table = jnp.stack([jnp.concatenate([1 + c, -s], axis=1), jnp.concatenate([s, 1 + c], axis=1)]).reshape(2 * TILE, -1)
    table, both = jax.lax.optimization_barrier((table, jnp.concatenate([weights, weights])))

    def tile(i: Array, sums: Array) -> Array:
        first = _turned((TILE * (begun + i) + 1).astype(angles.dtype) * angles)
        first = jnp.concatenate(jax.lax.optimization_barrier(first))
        added = own + jnp.matmul(table, both * first, precision="highest")
        at = jnp.int32(0), TILE * i
        old = jax.lax.dynamic_slice(sums, at, (2, TILE), allow_negative_indices=False)
        return jax.lax.dynamic_update_slice(sums, old + added.reshape(2, TILE), at, allow_negative_indices=False)

    return jax.lax.fori_loop(0, by_work.of_all_lanes(tiles), tile, sums)
