"""Contributions of a batch's examples to the sum by one parameter: upper bounds on their norms, and their sum.

A gradient is held in the cheapest way that its layer allows (Goodfellow, 2015; Rochette et al., 2019; Bu et al., 2022):
stored (:class:`Stored`), as the outer product of an activation a and a cotangent b (:class:`Outer`), as a sum of such
products over positions (:class:`Summed`), or as the few rows of a table that were looked up (:class:`Looked`;
:class:`Tied` where the table is a matrix as well). :class:`Stacked` has copies of one of these, and :class:`Together`
the sums of all parameters while rows are added.

The sensitivity has to hold for the computed numbers. The roundoff of float32 is 2^-24, that of float64 2^-53; n are the
rows of the batch.

* Norms are never taken too small. Float32 sums of d squares can err by d roundoffs, which for a large model is no small
  number: they are taken by halves, which costs one roundoff for each halving, and the last of them in float64.
  Squares that float32 flushes to zero are paid for by FLUSHED an entry.
* Sums of numbers that were rounded before they were clipped are sums of those rounded numbers: only the rounding of the
  sum itself counts. Adding or removing one example shifts the rows behind it and with it every partial sum, so twice
  the whole error of a sum has to fit into the margin. A sum of m terms in roundoff w is off by at most
  m w / (1 - m w) times the sum of their magnitudes, in whatever order (Higham, 2002, section 3.1), entry by entry, so
  in norm by that times the sum of the norms, n clipping norms. ``margin`` is twice that number; norms are raised by
  it before they are clipped.

Computing in half precision (bfloat16, float16) changes none of this. Let a and b be a layer's input and the cotangent
of its output, as computed, with all that half precision rounded in them. They are float32 numbers exactly, and so is
each product of entries of bfloat16. The gradient in question is a function of these a and b (or is itself stored), and
no step behind them is in half precision: the norm that is clipped by, and the sum, are taken of the same float32
numbers, the norm from above. So each example's term is at most the clipping norm long for *any* a and b, right or
wrong; half precision costs accuracy of the gradient's direction, never its sensitivity. Entries that overflow are
infinite, and their example counts as zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float32, Float64, Int32

from jaxacct.numerics.pytrees import register_dataclass
from jaxacct.train.clipping.rows import WHOLE, by_shards, lay_out
from jaxacct.train.ownership import group_neighbours

LANES = 128
"""Number of partial sums that are left to float64: few enough to take no time, and enough to keep the halves wide.
Fewer would add float32 roundoffs, which NORM_MARGIN has to cover."""

PIECE = 32
"""Number of entries of the pieces that small gradients are padded to, side by side: less to compile. Speed only, except
that a piece's entries are added by halves twice in float32: a multiple of four."""

NORM_MARGIN = 2.0**-18
"""Relative margin by which a computed norm may be too small. A squared norm has at most 3 + log2(d / LANES) < 28
float32 roundoffs, a norm half of them, and a product of two norms twice that, 1.7e-6. The rest, as much again, is for
scaling in float32, for the roundings in float64, and for what products of float32 lose by flushing: at most 2^-125 an
entry and row, nothing against a clipping norm of LEAST_CLIP_NORM. A smaller margin would break the sensitivity."""

FLUSHED = 2.0**-125
"""Amount added to a squared norm for each entry, above what one square loses where float32 has no normal number for it.
Less would break the bound."""

LEAST_CLIP_NORM = 2.0**-60
"""Least clipping norm of sums of float32 products: NORM_MARGIN's part for flushing rests on it."""

CANCELLING = 2.0**-20
"""Part of (sum of |a_t| |b_t|)^2 that raises the squared norm of a sum over positions: below it, a norm may be all
rounding. Sound for any value, for the margin is made from it: a smaller one gives a larger margin."""

HIGHEST = jax.lax.Precision.HIGHEST
"""Precision of all matrix products: by default an accelerator rounds float32 operands to ten bits, which breaks the
bounds."""


class Contributions(Protocol):
    """The gradients of a batch by one parameter, in some form. All methods are called inside the float64 scope."""

    def squares(self) -> Float64[Array, " batch"]:
        """Returns, up to NORM_MARGIN, upper bounds on the squared norms; not finite where a gradient is not."""

    def sum(self, kept: Bool[Array, " batch"], factor: Float64[Array, " batch"], rows: int) -> Float64[Array, ...]:
        """Returns the sum over the kept rows of factor times gradient, of ``rows`` in the whole batch."""

    def margin(self, rows: int) -> float:
        """Returns a bound on the errors of two such sums over ``rows`` rows together, in units of the clipping norm."""


@register_dataclass
@dataclass(frozen=True)
class Stored:
    """Gradients held entry by entry.

    Attributes:
        gradients (batch, ...): as computed.
        spec: how each lies over a mesh's axes of tensors.
    """

    gradients: Array
    spec: PartitionSpec = field(default=WHOLE, metadata={"static": True})

    @classmethod
    def of(cls, gradients: Array, spec: PartitionSpec) -> Self:
        """Returns gradients that lie as ``spec`` says from when they are made.

        They are in at least single precision, and made once: a compiler may leave out the rounding to half precision in
        one of two uses, and the norm would be of other numbers than the sum.
        """
        if jnp.issubdtype(gradients.dtype, jnp.floating) and gradients.dtype.itemsize < 4:
            gradients = jax.lax.optimization_barrier(gradients.astype(jnp.float32))
        return cls(lay_out(gradients, spec), spec)

    def squares(self) -> Float64[Array, " batch"]:
        return by_shards(squared_norms, self.gradients, self.spec)

    def sum(self, kept: Bool[Array, " batch"], factor: Float64[Array, " batch"], rows: int) -> Float64[Array, ...]:
        start = lay_out(jnp.zeros((1, *self.gradients.shape[1:]), jnp.float64), self.spec)[0]
        return add_rows([start], [self.gradients], kept, [factor])[0]

    def margin(self, rows: int) -> float:
        return double_margin(rows, rows)


class Outer(NamedTuple):
    """Gradients ``a_i b_i^T``, of norm ``|a_i| |b_i|``, that are never formed.

    Attributes:
        activations (batch, k), cotangents (batch, n): a and b.
    """

    activations: Float32[Array, "batch k"]
    cotangents: Float32[Array, "batch n"]

    def squares(self) -> Float64[Array, " batch"]:
        return squared_norms(self.activations) * squared_norms(self.cotangents)

    def sum(self, kept: Bool[Array, " batch"], factor: Float64[Array, " batch"], rows: int) -> Float64[Array, "k n"]:
        left = jnp.where(kept[:, None], self.activations, 0)
        right = jnp.where(kept[:, None], self.cotangents * factor[:, None], 0)
        block = block_rows(rows)
        if block == 0:
            return _product(left.astype(jnp.float64), right)
        # Rounded here, each row is a b^T for a slightly different b: of the norm that was clipped, up to a roundoff.
        right = right.astype(jnp.float32)
        # Blocks of rows in float32, their sums in float64: so the float32 error grows with the block and not with the
        # batch.
        count = -(-len(left) // block)
        if count <= 4:  # as those of a microbatch; speed only
            blocks = zip(jnp.array_split(left, count), jnp.array_split(right, count), strict=True)
            return sum(_product(*pair).astype(jnp.float64) for pair in blocks)  # type: ignore[return-value]
        missing = -len(left) % block
        left, right = (
            jnp.pad(part, ((0, missing), (0, 0))).reshape(-1, block, part.shape[1]) for part in (left, right)
        )

        # The state is the float64 sum of the blocks so far; the last block is filled up by rows of zeros.
        def add_block(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
            return total + _product(*pair).astype(jnp.float64), None

        start = jnp.zeros((left.shape[-1], right.shape[-1]), jnp.float64)
        return jax.lax.scan(add_block, start, (left, right))[0]

    def margin(self, rows: int) -> float:
        block = block_rows(rows)
        return double_margin(rows, rows) + (rows * (block + 4) * 2.0**-23 if block else 0.0)


class Summed(NamedTuple):
    """Gradients ``sum_t a_it b_it^T`` over positions t, that are never formed.

    Their squared norm is the sum over s, t of (a_s . a_t)(b_s . b_t), in which everything may cancel. It is computed in
    float64, and raised by CANCELLING, so that the terms of the sum below are at most 2^10 times what they are clipped
    by.

    Attributes:
        activations (batch, positions, k), cotangents (batch, positions, n): a and b.
    """

    activations: Float32[Array, "batch positions k"]
    cotangents: Float32[Array, "batch positions n"]

    def squares(self) -> Float64[Array, " batch"]:
        # Two Gram matrices, positions by positions, in the place of the gradient. ``most`` bounds the sum's magnitude
        # if nothing cancelled.
        wide = [part.astype(jnp.float64) for part in self]
        grams = [_gram(part) for part in wide]
        lengths = [jnp.sqrt(jnp.square(part).sum(axis=-1)) for part in wide]
        most = jnp.square((lengths[0] * lengths[1]).sum(axis=-1))
        return jnp.maximum((grams[0] * grams[1]).sum(axis=(1, 2)), 0.0) + 2 * CANCELLING * most

    def sum(self, kept: Bool[Array, " batch"], factor: Float64[Array, " batch"], rows: int) -> Float64[Array, "k n"]:
        used = kept[:, None, None]
        left = jnp.where(used, self.activations, 0).astype(jnp.float64)
        right = jnp.where(used, self.cotangents * factor[:, None, None], 0.0)
        return _product(left.reshape(-1, left.shape[-1]), right.reshape(-1, right.shape[-1]))

    def margin(self, rows: int) -> float:
        return double_margin(rows * self.activations.shape[1], rows) / math.sqrt(CANCELLING)


@register_dataclass
@dataclass(frozen=True)
class Looked:
    """Gradients of a table of which each example looked up a few rows; no row twice in one example.

    Attributes:
        indices (batch, positions): rows of the table.
        gradients (batch, positions, width): their gradients; zero where a position holds none.
        size: rows of the table.
    """

    indices: Int32[Array, "batch positions"]
    gradients: Float32[Array, "batch positions width"]
    size: int = field(metadata={"static": True})

    def squares(self) -> Float64[Array, " batch"]:
        return squared_norms(self.gradients)

    def sum(self, kept: Bool[Array, " batch"], factor: Float64[Array, " batch"], rows: int) -> Float64[Array, "v w"]:
        terms = jnp.where(kept[:, None, None], self.gradients * factor[:, None, None], 0.0)
        table = jnp.zeros((self.size, terms.shape[-1]), jnp.float64)
        return table.at[self.indices.reshape(-1)].add(terms.reshape(-1, terms.shape[-1]))

    def margin(self, rows: int) -> float:
        return double_margin(rows, rows)


class Tied(NamedTuple):
    """Gradients of a table whose rows are looked up and which is a matrix as well: one for reading and writing words.

    A gradient is the sum of e_i b_p^T over lookups p of row i, and of c_t d_t^T over positions t. All are outer
    products, so that norms and margins are those of :class:`Summed`, with (e_i . c_t)(b_p . d_t) between the two kinds.

    Attributes:
        indices (batch, lookups), looked (batch, lookups, width): i and b.
        left (batch, positions, rows), right (batch, positions, width): c and d.
    """

    indices: Int32[Array, "batch lookups"]
    looked: Float32[Array, "batch lookups width"]
    left: Float32[Array, "batch positions rows"]
    right: Float32[Array, "batch positions width"]

    def squares(self) -> Float64[Array, " batch"]:
        # Three parts: lookups with lookups of the same row, positions with positions, and twice lookups with positions,
        # for which e_i . c_t is the entry of c_t at row i.
        looked, left, right = (part.astype(jnp.float64) for part in self[1:])
        same = self.indices[:, :, None] == self.indices[:, None, :]
        chosen = jnp.take_along_axis(left, self.indices[:, None, :], axis=2)
        crossed = jax.lax.dot_general(right, looked, (((2,), (2,)), ((0,), (0,))), precision=HIGHEST)
        total = jnp.where(same, _gram(looked), 0.0).sum(axis=(1, 2)) + (_gram(left) * _gram(right)).sum(axis=(1, 2))
        lengths = [jnp.sqrt(jnp.square(part).sum(axis=-1)) for part in (looked, left, right)]
        most = jnp.square(lengths[0].sum(axis=-1) + (lengths[1] * lengths[2]).sum(axis=-1))
        return jnp.maximum(total + 2 * (chosen * crossed).sum(axis=(1, 2)), 0.0) + 2 * CANCELLING * most

    def sum(self, kept: Bool[Array, " batch"], factor: Float64[Array, " batch"], rows: int) -> Float64[Array, "v w"]:
        dense = Summed(self.left, self.right).sum(kept, factor, rows)
        terms = jnp.where(kept[:, None, None], self.looked * factor[:, None, None], 0.0)
        return dense.at[self.indices.reshape(-1)].add(terms.reshape(-1, terms.shape[-1]))

    def margin(self, rows: int) -> float:
        return double_margin(rows * (self.looked.shape[1] + self.left.shape[1]), rows) / math.sqrt(CANCELLING)


class Stacked(NamedTuple):
    """Gradients by copies of a matrix, one for each step of a loop, computed one copy after another.

    Norms are of all copies together, |g_i|^2 = sum_l |g_il|^2. Let the sum over i of what belongs to copy l be off by
    at most m sum_i f_i |g_il|. Then all are off by at most m sum_i f_i |g_i|, by the triangle inequality: the margin is
    that of one copy.

    Attributes:
        copies: contributions whose arrays have an axis of copies in front.
    """

    copies: Contributions

    # Loops over copies have no state: memory for one copy's squares or sum at a time.
    def squares(self) -> Float64[Array, " batch"]:
        return jax.lax.map(lambda copy: copy.squares(), self.copies).sum(axis=0)

    def sum(self, kept: Bool[Array, " batch"], factor: Float64[Array, " batch"], rows: int) -> Float64[Array, ...]:
        return jax.lax.map(lambda copy: copy.sum(kept, factor, rows), self.copies)

    def margin(self, rows: int) -> float:
        first: Contributions = jax.tree.map(lambda part: part[0], self.copies)
        return first.margin(rows)


@dataclass(frozen=True)
class Together:
    """The sums of all parameters while rows are added, in which small stored gradients share one array.

    A model has many biases and scales, and each would be a few loops of its own to compile. Side by side, in pieces of
    PIECE entries of which the last is filled up by zeros, they are one array.

    Attributes:
        shapes: shape of each parameter's sum, as its contributions hold it.
        small: numbers of the parameters that are side by side; the shortest first, so that those of equally many pieces
            are neighbours.
    """

    shapes: tuple[tuple[int, ...], ...]
    small: tuple[int, ...]

    @classmethod
    def of(cls, shapes: Sequence[tuple[int, ...]], stored: Sequence[bool]) -> Self:
        """Returns the layout for sums of these shapes; ``stored``: whose gradients are held by entry in float32."""
        small = [
            place for place, shape in enumerate(shapes) if stored[place] and math.prod(shape) <= 2048
        ]  # speed only
        small.sort(key=lambda place: math.prod(shapes[place]))
        return cls(tuple(shapes), tuple(small) if len(small) > 1 else ())

    @property
    def others(self) -> list[int]:
        """Numbers of the parameters that have sums of their own."""
        return [place for place in range(len(self.shapes)) if place not in self.small]

    @property
    def pieces(self) -> list[int]:
        """Number of pieces of each small parameter."""
        return [-(-math.prod(self.shapes[place]) // PIECE) for place in self.small]

    def zeros(self) -> list[Float64[Array, ...]]:
        """Returns the sums over no rows: those of the others, and then the small ones'."""
        shapes = [self.shapes[place] for place in self.others] + [(sum(self.pieces), PIECE)] * bool(self.small)
        return [jnp.zeros(shape, jnp.float64) for shape in shapes]

    def side_by_side(self, parts: Sequence[Contributions]) -> Float32[Array, "batch pieces PIECE"] | None:
        """Returns the small gradients; None where there are none."""
        if not self.small:
            return None
        rows = [parts[place].gradients for place in self.small]  # type: ignore[attr-defined]
        flat = [row.reshape(len(row), -1) for row in rows]
        filled = [jnp.pad(row, ((0, 0), (0, -row.shape[1] % PIECE))) for row in flat]
        return jnp.concatenate(filled, axis=1).reshape(len(filled[0]), -1, PIECE)

    def squares(self, parts: Sequence[Contributions], packed: Array | None) -> list[Float64[Array, " batch"]]:
        """Returns :meth:`Contributions.squares` of each parameter."""
        by_parameter = {place: parts[place].squares() for place in self.others}
        if packed is not None:
            sums = jnp.square(packed)
            # Two halvings in float32, two roundoffs; the eight sums that remain of a piece are added in float64.
            for half in (PIECE // 2, PIECE // 4):
                sums = sums[..., :half] + sums[..., half:]
            of_pieces = sums.astype(jnp.float64).sum(axis=-1)
            # One pass per group of parameters of equally many pieces, which are neighbours: ``first`` to ``last`` are
            # the pieces of the group.
            first = 0
            for pieces, group in itertools.groupby(zip(self.pieces, self.small, strict=True), key=lambda pair: pair[0]):
                places = [place for _, place in group]
                last = first + pieces * len(places)
                norms = of_pieces[:, first:last].reshape(len(of_pieces), len(places), pieces).sum(axis=-1)
                for column, place in enumerate(places):
                    by_parameter[place] = norms[:, column] + math.prod(self.shapes[place]) * FLUSHED
                first = last
        return [by_parameter[place] for place in range(len(parts))]

    def sums(
        self, parts: Sequence[Contributions], packed: Array | None, kept: Array, factors: Sequence[Array], rows: int,
        starts: list[Array],
    ) -> list[Array]:  # fmt: skip
        """Returns ``starts``, sums in the order of :meth:`zeros`, with the kept rows of a block added to them.

        Row by row all blocks are one sum, of no more terms and roundings than ``margin`` pays for.
        """
        # Shared loops below add the gradients held by entry; all others add their block here.
        totals, stored = list(starts), list[int]()
        gradients, scales = list[Array](), list[Array]()
        for number, place in enumerate(self.others):
            part, factor = parts[place], factors[place]
            if isinstance(part, Stored):
                stored.append(number)
                gradients.append(part.gradients)
                scales.append(factor)
            else:
                totals[number] = starts[number] + part.sum(kept, factor, rows)
        if packed is not None:
            # One factor for all where the rule gives one, as flat clipping does; else each piece gets its parameter's.
            by = [factors[place] for place in self.small]
            stored.append(len(starts) - 1)
            gradients.append(packed)
            same = all(factor is by[0] for factor in by)
            scales.append(by[0] if same else jnp.stack(by, axis=1)[:, np.repeat(np.arange(len(by)), self.pieces), None])
        # One loop over the rows adds each group of held gradients.
        most = 2**17  # entries that stay in a core's cache: speed only
        for group in group_neighbours([starts[number].size for number in stored], most):
            numbers = [stored[i] for i in group]
            new = add_rows(
                [starts[n] for n in numbers], [gradients[i] for i in group], kept, [scales[i] for i in group]
            )
            for number, total in zip(numbers, new, strict=True):
                totals[number] = total
        return totals

    def split(self, sums: list[Array]) -> list[Array]:
        """Returns the sums of each parameter, as its contributions hold it."""
        # The last sum, where there are small parameters, holds all of them: it has no place of its own.
        by_parameter = dict(zip(self.others, sums[: len(self.others)], strict=True))
        if self.small:
            flat, first = sums[-1].reshape(-1), 0
            for place, pieces in zip(self.small, self.pieces, strict=True):
                shape = self.shapes[place]
                by_parameter[place] = flat[first : first + math.prod(shape)].reshape(shape)
                first += pieces * PIECE
        return [by_parameter[place] for place in range(len(self.shapes))]


def add_rows(
    starts: list[Array], gradients: list[Array], kept: Array, factors: list[Array]
) -> list[Float64[Array, ...]]:
    """Returns ``starts`` with the kept rows of gradients added to them, each times its factor; (batch,) or wider."""

    def term(gradient: Array, kept: Array, factor: Array) -> Array:
        used, by = (value.reshape(value.shape + (1,) * (gradient.ndim - value.ndim)) for value in (kept, factor))
        return jnp.where(used, gradient.astype(jnp.float64) * by, 0.0)

    def one_by_one(starts: list[Array], gradients: list[Array], kept: Array, factors: list[Array]) -> list[Array]:
        # The state is the sums so far; a step adds one row to all of them.
        def add_one(totals: list[Array], row: Any) -> tuple[list[Array], None]:
            gradients, kept, factors = row
            parts = zip(totals, gradients, factors, strict=True)
            return [total + term(gradient, kept, factor) for total, gradient, factor in parts], None

        return jax.lax.scan(add_one, starts, (gradients, kept, factors))[0]

    def at_once(starts: list[Array], gradients: list[Array], kept: Array, factors: list[Array]) -> list[Array]:
        parts = zip(starts, gradients, factors, strict=True)
        return [start + term(gradient, kept, factor).sum(axis=0) for start, gradient, factor in parts]

    # XLA's CPU reduction over the leading axis in float64 is twenty times slower than adding row by row.
    return jax.lax.platform_dependent(starts, gradients, kept, factors, cpu=one_by_one, default=at_once)


def squared_norms(rows: Array) -> Float64[Array, " batch"]:
    """Returns the squared norm of each row, at most NORM_MARGIN too small; to be called inside the float64 scope."""
    rows = rows.reshape(rows.shape[0], -1).astype(jnp.float32)
    entries = rows.shape[1]
    if entries <= 2048:  # above, a CPU squares one row after the other: speed and memory only
        return _sums_of_squares(rows) + entries * FLUSHED

    def one_by_one(rows: Array) -> Array:
        return jax.lax.map(_sums_of_squares, rows)

    # Halving all rows at once would leave a CPU's caches, and take as much memory again.
    return jax.lax.platform_dependent(rows, cpu=one_by_one, default=_sums_of_squares) + entries * FLUSHED


def _sums_of_squares(rows: Array) -> Float64[Array, ...]:
    """Returns the sums over the last axis of squares, by halves."""
    sums = jnp.square(rows)
    # Each pass adds the second half to the first, and keeps an odd last entry, until LANES are left: one float32
    # roundoff a pass, about log2(d / LANES) in all.
    while sums.shape[-1] > LANES:
        half = sums.shape[-1] // 2
        sums = jnp.concatenate([sums[..., :half] + sums[..., half : 2 * half], sums[..., 2 * half :]], axis=-1)
    return sums.astype(jnp.float64).sum(axis=-1)


def double_margin(terms: int, rows: int) -> float:
    """Returns the margin of a float64 sum of ``terms`` terms an entry, carried over at most ``rows`` blocks."""
    return rows * (terms + rows + 4) * 2.0**-52


def block_rows(rows: int) -> int:
    """Returns how many rows to sum in float32 at a time for a margin of `single_margin`, 0 where float64 is better.

    >>> block_rows(8), block_rows(256), block_rows(100_000)
    (8, 64, 0)
    """
    # Largest share of the clipping norm that may be given for summing blocks in float32, at three times the speed of
    # float64. Sound for any value, for norms are raised by it; a larger one clips more.
    single_margin = 0.0025
    most = int(single_margin * 2.0**23 / rows) - 4
    if most < min(rows, 16):  # a smaller product in float32 does not beat float64: speed only
        return 0
    return math.ceil(rows / math.ceil(rows / most))


def _product(left: Array, right: Array) -> Array:
    """Returns ``left^T right``. HIGHEST: an accelerator would round float32 operands to ten bits."""
    return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())), precision=HIGHEST)


def _gram(rows: Array) -> Array:
    """Returns the inner products of all pairs of an example's rows: (batch, rows, rows)."""
    return jax.lax.dot_general(rows, rows, (((2,), (2,)), ((0,), (0,))), precision=HIGHEST)
