"""A batch as a map over its rows: the results of one example have the same bits whatever its neighbours are.

Clipping bounds what one example adds. That bounds what it changes only if it changes nothing of what the others add,
down to the last bit: a loss with a kink makes a large difference of a last bit. ``jax.vmap`` promises this of real
numbers. For numbers as computed four things break it, each of which is met here.

* *Remainders.* Code for whole tiles of rows and code for the remaining rows add in different orders, so a row's last
  bits depend on its place. Blocks are therefore whole tiles (:func:`rows_at_once`), filled up by rows that do not
  count.
* *Masks of zeros.* XLA:CPU writes the derivative of a grouped convolution by its kernel as a dense convolution, times
  zeros where groups of several examples meet: one NaN or overflow reaches every example. Each example therefore gets a
  convolution of its own (:func:`separate_rows`).
* *Narrow indices.* JAX joins the number of a row to the indices that a lookup uses, in their own dtype: with
  tokens of eight bits, row 128 becomes another one. Such indices are widened (:func:`separate_rows`, too).
* *Operations that look at the batch*, as callbacks and batching rules of users do: they are refused by name
  (:func:`refuse`).

The rest is a property of compilers, which nobody promises. It is therefore checked before training, on made-up rows
(:func:`check_rows`). The check cannot show a dependence that these rows, or these parameters, do not bring to light.

The second part, :class:`Shards`, says how rows and parameters lie on a mesh while gradients are clipped and summed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from jaxacct.numerics.precision import is_concrete

TILE = 8
"""Number of rows of a tile of XLA's CPU code, which divides that of other compilers. Sound for any value: the result is
checked."""


def rows_at_once(rows: int, microbatch_size: int | None) -> int:
    """Returns the rows of a block, at most ``microbatch_size``: whole tiles, or fewer rows than one has.

    Without a microbatch size, or where all rows fit, these are as many as there are, with their last tile completed.

    >>> rows_at_once(500, 37), rows_at_once(500, 5), rows_at_once(500, None)
    (32, 5, 504)
    """
    tiled = rows if rows <= TILE else -(-rows // TILE) * TILE
    if microbatch_size is None or microbatch_size >= tiled:
        return tiled
    return microbatch_size if microbatch_size < TILE else microbatch_size // TILE * TILE


def filled_places(rows: int, multiple: int) -> np.ndarray:
    """Returns the numbers of ``rows`` rows, and the last again and again until they are a multiple of a number.

    >>> filled_places(5, 4).tolist()
    [0, 1, 2, 3, 4, 4, 4, 4]
    """
    return np.minimum(np.arange(-(-rows // multiple) * multiple), rows - 1)


def fill_up(tree: PyTree, rows: int, multiple: int) -> PyTree:
    """Returns arrays of ``rows`` rows filled up to a multiple by copies of the last, which must not count."""
    if rows % multiple == 0:
        return tree
    return jax.tree.map(lambda part: jnp.asarray(part)[filled_places(rows, multiple)], tree)


def map_rows(function: Callable[[Any], Any], tree: PyTree, block: int | None) -> Any:
    """Returns ``function`` of each row, computed in blocks of whole tiles, so that all rows are treated alike.

    >>> map_rows(lambda x: x + 1, jnp.arange(3), 512).tolist()
    [1, 2, 3]
    """
    rows = len(jax.tree.leaves(tree)[0])
    size = rows_at_once(rows, block)
    filled = fill_up(tree, rows, size)
    together = jax.vmap(separate_rows(function, "what is counted"))
    # A loop over blocks without a state: all have the same shape, and the last is filled up.
    results = jax.lax.map(together, jax.tree.map(lambda part: part.reshape(-1, size, *part.shape[1:]), filled))
    return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:])[:rows], results)


def operations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """Yields all operations of a traced function, those inside of others as well."""
    for step in jaxpr.eqns:
        yield step
        for inner in _inside(step):
            yield from operations(inner)


def refuse(jaxpr: core.Jaxpr, what: str = "loss") -> None:
    """Raises ValueError where ``what``, traced for one example, has an operation that would look at a whole batch."""
    callbacks = ("pure_callback", "io_callback", "ffi_call")
    by_rows = ("sequential", "sequential_unrolled")  # a callback's ways of batching that call it for each row
    generators = ("rng_bit_generator", "rng_uniform")  # they draw the numbers of a whole batch at once
    # Every operation is looked at, within calls and branches as well.
    for step in operations(jaxpr):
        name = step.primitive.name
        if name == "custom_vmap_call" and not _calls_each_row(step.params["rule"]):
            used, instead = "jax.custom_batching.custom_vmap, whose rule is given all examples", "sequential_vmap"
        elif name in callbacks and step.params.get("vmap_method", "sequential") not in by_rows:
            used = f"a callback, {name}, with vmap_method={step.params.get('vmap_method')!r}"
            instead = 'vmap_method="sequential"'
        elif name in generators or any("rbg" in str(getattr(atom.aval, "dtype", "")) for atom in step.invars):
            used = "random keys of the kind rbg, whose numbers depend on the batch"
            instead = 'keys of impl="threefry2x32"'
        else:
            continue
        raise ValueError(
            f"{what} uses {used}: one example's gradient could depend on the others, and clipping would bound nothing. "
            f"Use {instead} instead."
        )
    if axes := [effect for effect in jaxpr.effects if type(effect).__name__ == "NamedAxisEffect"]:
        raise ValueError(
            f"{what} refers to an axis of devices ({axes[0]}), by lax.pmean or lax.axis_index, say: one example's "
            "gradient could depend on those of other devices, and clipping would bound nothing. Leave it out."
        )


def _calls_each_row(rule: Any) -> bool:
    """Returns whether a batching rule is that of ``sequential_vmap``: JAX's, and no function of the same name."""
    return "sequential_vmap" in rule.__qualname__ and str(rule.__module__).startswith("jax.")


def need_care(jaxpr: core.Jaxpr) -> bool:
    """Returns whether there are operations that mix rows if JAX batches them, for :func:`separate_rows`."""
    return any(_is_grouped(step) or _narrow_indices(step) for step in operations(jaxpr))


def separate_rows(function: Callable[..., Any], what: str = "loss") -> Callable[..., Any]:
    """Returns ``function`` so that in a batch grouped convolutions are computed one by one, and indices are wide.

    Derivatives of the result are not covered: a loss is differentiated first. The trace of its derivative also shows
    what users' derivative rules do, unlike a trace of the loss: :func:`refuse` examines it.
    """

    def run(*args: Any) -> Any:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        refuse(traced.jaxpr, what)
        if not need_care(traced.jaxpr):
            return function(*args)
        results = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def check_rows(look: Callable[[PyTree, PyTree], list[Array]], params: PyTree, example: PyTree, size: int) -> bool:
    """Raises ValueError where a row of a block has other bits at another place, or among other rows.

    Args:
        look: ``look(params, examples)``, the arrays (rows, ...) that are computed from the examples of a block.
        params: parameters, concrete, or only their shapes, for which numbers are made up as well.
        example: shapes and dtypes of one example.
        size: rows of a block.

    Returns whether the arrays were finite for any of the made-up rows.
    """
    random = np.random.default_rng(0)
    if not is_concrete(params) or any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(params)):
        params = jax.tree.map(lambda leaf: _make_up(leaf, 0.3 * random.standard_normal(leaf.shape)), params)

    draws = (random.random, random.standard_normal, np.zeros, np.ones)
    kinds = [make_up(example, draw) for draw in draws]
    # Near the end of float32: a sum of two such numbers overflows.
    kinds += [make_up(example, functools.partial(np.full, fill_value=value)) for value in (np.nan, 3e38, -3e38)]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *kinds)
    looked = jax.jit(lambda params, kinds, chosen: look(params, jax.tree.map(lambda kind: kind[chosen], kinds)))
    alone: dict[int, tuple[list[np.ndarray], bool]] = {}
    # Each pass computes one arrangement of kinds and compares every row of a finite kind with that kind's first result,
    # kept in ``alone``. First each finite kind fills all places; then kinds are mixed.
    for chosen in (*(np.full(size, kind) for kind in range(len(draws))), *_mixtures(size, random)):
        arrays = [np.asarray(part).reshape(size, -1) for part in looked(params, stacked, chosen.astype(np.int32))]
        # Whatever its neighbours are, a row of a kind has to give the bits of that kind's first result.
        for kind in {*chosen.tolist()} & {*range(len(draws))}:
            if kind not in alone:
                first = [part[:1].copy() for part in arrays]
                alone[kind] = first, bool(_finite(first)[0])
            reference, is_finite = alone[kind]
            places = np.flatnonzero(chosen == kind)
            rows = arrays if len(places) == size else [part[places] for part in arrays]
            # The sum leaves a gradient that is not finite out, whatever its bits: it must be so among all other rows.
            if not (right := _same(rows, reference) if is_finite else ~_finite(rows)).all():
                raise ValueError(
                    f"the gradient of one example depends on what stands beside it, or where: of {size} rows computed "
                    f"together, made-up ones, row {places[np.argmin(right)]} has other bits than the same row "
                    "elsewhere. Clipping would not bound what one example changes. Give microbatch_size=1, which "
                    "computes each by itself; or look for what mixes examples in the loss, and please report it."
                )
    return any(is_finite for _, is_finite in alone.values())


def _mixtures(size: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Yields the kind at each place of a block: 0 and 1 at half of the places, 2 to 6 (:func:`check_rows`) elsewhere.

    Kinds 0 and 1 stand at even places and at odd ones, each of the others next to them, also in blocks of two rows; in
    longer blocks they stand at random places as well, so that rows meet at all distances.
    """
    others = np.array([4, 5, 6, 2, 3])
    turns = 2 * len(others)  # each of them once at each of two places; fewer check less
    # Kinds 0 and 1 have the even places in one turn and the odd ones in the next, and each time other neighbours.
    for turn in range(turns if size > 1 else 0):
        is_own = np.arange(size) % 2 == turn % 2
        is_own = random.permutation(is_own) if turn >= turns // 2 and size > 2 else is_own
        rank, number = np.cumsum(is_own) - 1, np.cumsum(~is_own) - 1
        yield np.where(is_own, (rank + turn // 2) % 2, others[(number + turn // 2) % len(others)])


def make_up(example: PyTree, draw: Callable[[tuple[int, ...]], Any]) -> PyTree:
    """Returns an example of made-up numbers, which ``draw`` gives for a shape."""
    return jax.tree.map(lambda part: _make_up(part, draw(part.shape)), example)


def _make_up(like: Any, values: Any) -> Array:
    """Returns made-up numbers of a shape and dtype; for a whole dtype their magnitudes, cut to its range."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0, impl=jax.random.key_impl(jnp.empty((), like.dtype))), like.shape)
    if jnp.issubdtype(like.dtype, jnp.inexact):
        most = float(jnp.finfo(like.dtype).max)
        real = np.clip(values, -most, most)
        return jnp.asarray(real if _is_real(like) else real * (1 - 0.5j), like.dtype)
    largest = 1 if like.dtype == bool else int(min(jnp.iinfo(like.dtype).max, 2**53))
    return jnp.asarray(np.clip(np.nan_to_num(np.abs(values)), 0, largest).astype(np.int64), like.dtype)


def _is_real(part: Any) -> bool:
    return bool(jnp.issubdtype(part.dtype, jnp.floating))


def _same(rows: list[np.ndarray], one: list[np.ndarray]) -> np.ndarray:
    """Returns whether each row has the bits of ``one``; zeros may differ in sign, and NaNs in anything."""
    right = np.ones(len(rows[0]), bool)
    for part, like in zip(rows, one, strict=True):
        if not (equal := part == like).all():
            right &= (equal | ((part != part) & (like != like))).all(axis=1)
    return right


def _finite(rows: list[np.ndarray]) -> np.ndarray:
    """Returns which rows have finite real numbers only."""
    right = np.ones(len(rows[0]), bool)
    for part in filter(_is_real, rows):
        right &= np.isfinite(part if part.dtype.itemsize > 2 else part.astype(np.float32)).all(axis=1)
    return right


def _is_grouped(step: core.JaxprEqn) -> bool:
    if step.primitive.name != "conv_general_dilated":
        return False
    return bool(step.params["feature_group_count"] > 1 or step.params["batch_group_count"] > 1)


def _narrow_indices(step: core.JaxprEqn) -> range:
    """Returns the places of an operation's indices among its operands, if some have less than 32 bits."""
    name = step.primitive.name
    if name == "gather" or name.startswith("scatter"):
        places = range(1, 2)
    elif name in ("dynamic_slice", "dynamic_update_slice"):
        places = range(2 if name == "dynamic_update_slice" else 1, len(step.invars))
    else:
        return range(0)
    kinds: list[Any] = [step.invars[place].aval for place in places]
    return places if any(kind.dtype.itemsize < 4 for kind in kinds) else range(0)


def _inside(step: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    """Yields the traced functions that an operation has in its parameters."""
    for value in step.params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, core.ClosedJaxpr):
                yield part.jaxpr
            elif isinstance(part, core.Jaxpr):
                yield part


def interpret(
    jaxpr: core.Jaxpr, consts: Any, inputs: Any, run: Callable[[int, core.JaxprEqn, list[Any]], Sequence[Any]]
) -> list[Any]:
    """Returns the results of a traced function, each operation of which is evaluated by ``run(place, step, given)``."""
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))

    def read(atoms: Sequence[Any]) -> list[Any]:
        return [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in atoms]

    # ``values`` has the results so far; each pass evaluates one operation, in the order of the trace.
    for place, step in enumerate(jaxpr.eqns):
        values.update(zip(step.outvars, run(place, step, read(step.invars)), strict=True))
    return read(jaxpr.outvars)


def _with_care(jaxpr: core.Jaxpr, _: int, step: core.JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    """Returns the results of an operation, grouped convolutions by themselves in a batch, and indices wide.

    Operations with traced functions inside are rewritten only where those need care, all others run as they are.
    """
    if _is_grouped(step):
        return [_by_itself(functools.partial(_bound, step))(*operands)]
    if narrow := _narrow_indices(step):
        return [_bound(step, *(jnp.asarray(x, jnp.int32) if i in narrow else x for i, x in enumerate(operands)))]
    if any(map(need_care, _inside(step))):
        step = step.replace(params={name: _rewrite(value) for name, value in step.params.items()})
    return run_alone(jaxpr, step, operands)


def _evaluate(jaxpr: core.Jaxpr, consts: Any, inputs: Any) -> list[Any]:
    """Returns the results of a traced function whose operations are all evaluated :func:`_with_care`."""
    return interpret(jaxpr, consts, inputs, functools.partial(_with_care, jaxpr))


def _bound(step: core.JaxprEqn, *operands: Array) -> Array:
    result: Array = step.primitive.bind(*operands, **step.params)
    return result


def _by_itself(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Returns a convolution that is batched, on a CPU, by a loop, where both its operands are an example's own.

    With a kernel that all examples share, they are images of one batch, and no masked zeros are in between.
    """
    own = jax.custom_batching.custom_vmap(function)

    @own.def_vmap
    def batch(axis_size: int, in_batched: list[bool], *operands: Array) -> tuple[Array, bool]:
        together = jax.vmap(function, in_axes=tuple(0 if each else None for each in in_batched))
        if not all(in_batched):
            return together(*operands), True
        # A loop over examples without a state: one example's numbers never meet another's, not even times zero.
        one_by_one = lambda *operands: jax.lax.map(lambda pair: function(*pair), operands)  # noqa: E731
        return jax.lax.platform_dependent(*operands, cpu=one_by_one, default=together), True

    return own


def _rewrite(value: Any) -> Any:
    """Returns an operation's parameter with the traced functions in it evaluated as :func:`_evaluate` does."""
    if isinstance(value, (tuple, list)) and any(isinstance(part, (core.ClosedJaxpr, core.Jaxpr)) for part in value):
        parts = list(map(_rewrite, value))
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)  # a NamedTuple takes each
    is_open = isinstance(value, core.Jaxpr)
    if not is_open and not isinstance(value, core.ClosedJaxpr):
        return value
    jaxpr, consts = (value, ()) if is_open else (value.jaxpr, value.consts)
    types: list[Any] = [atom.aval for atom in jaxpr.invars]
    shapes = [jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type) for kind in types]
    made = jax.make_jaxpr(lambda *inputs: _evaluate(jaxpr, consts, inputs))(*shapes)
    return made.jaxpr if is_open else made


def run_alone(jaxpr: core.Jaxpr, step: core.JaxprEqn, operands: list[Any]) -> list[Array]:
    """Returns the results of one operation of ``jaxpr``, run as a function of its own."""
    # Literals stay in the operation; a variable that stands at several places becomes one input.
    places = [place for place, atom in enumerate(step.invars) if not isinstance(atom, core.Literal)]
    inputs = dict(zip((step.invars[place] for place in places), (operands[place] for place in places), strict=True))
    alone = jaxpr.replace(constvars=[], invars=list(inputs), outvars=list(step.outvars), eqns=[step])
    return core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*inputs.values())


# ----------------------------------------------------------------------------------------------------
# Layout of a batch's rows and of the parameters on a mesh while gradients are clipped and summed.
#
# A mesh has axes of two kinds. Over *row axes* the rows are dealt: each device clips its own (:func:`jax.shard_map`),
# and their sums are scattered to where the parameter's shard lies, so that no device holds the whole sum over all rows.
# Over the other axes, of *tensors*, the compiler divides each layer's products as the parameters are divided. A
# gradient of one example is then held in shards, each of which adds its own squares: one number for each row crosses
# devices.
# ----------------------------------------------------------------------------------------------------

WHOLE = PartitionSpec()
"""Spec of an array that is whole on every device."""


def _scatter(part: Array, names: Any, axis: int) -> Array:
    """Returns on each device its shard of the sum over the devices along ``names``, cut along ``axis``."""

    def exchange(part: Array) -> Array:
        before, after = part.shape[:axis], part.shape[axis + 1 :]
        pieces = part.reshape(*before, jax.lax.axis_size(names), -1, *after)
        return jax.lax.all_to_all(pieces, names, axis, axis).sum(axis)

    def reduce(part: Array) -> Array:
        return jax.lax.psum_scatter(part, names, scatter_dimension=axis, tiled=True)

    # A TPU's compiler cannot add up float64 between devices, but can move it. As much is sent either way.
    return jax.lax.platform_dependent(part, tpu=exchange, default=reduce)


@dataclass(frozen=True)
class Shards:
    """The mesh, its row axes, and how each parameter lies on it.

    Attributes:
        rows: a sharding whose first entry names the row axes.
        specs: spec of each parameter; empty specs where all are whole on every device.
    """

    rows: NamedSharding
    specs: tuple[PartitionSpec, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The row axes."""
        return axes_of(self.rows.spec[0])

    @property
    def devices(self) -> int:
        """Number of parts over which the rows are dealt."""
        return math.prod(self.rows.mesh.shape[axis] for axis in self.axes)

    @property
    def meet(self) -> bool:
        """Whether devices exchange sums block by block, and therefore have to go through equally many blocks."""
        return any(map(names_in, self.specs))

    @property
    def by_rows(self) -> list[PartitionSpec]:
        """Specs of the parameters over the row axes."""
        return [_restrict(spec, self.axes) for spec in self.specs]

    @property
    def by_tensors(self) -> list[PartitionSpec]:
        """Specs of the parameters over the axes of tensors."""
        tensors = [axis for axis in self.rows.mesh.axis_names if axis not in self.axes]
        return [_restrict(spec, tensors) for spec in self.specs]

    def scatter(self, leaf: int, total: Array) -> Array:
        """Returns, on each device, its shard of the sum of all ``total`` over the row axes that divide the parameter.

        Float64 sums are added in another order, which their margins allow for.
        """
        rows, tensors = self.by_rows[leaf], self.by_tensors[leaf]
        total = _lay_out(total, tensors)
        divided = [axis for axis, entry in enumerate(rows) if entry is not None]

        # One exchange for each axis that rows divide, after which a device has its part along that axis.
        def scatter(part: Array) -> Array:
            for axis in divided:
                part = _scatter(part, rows[axis], axis)
            return part

        # An array axis that both kinds divide is divided by rows first, and each part again by tensors.
        if not names_in(tensors) or any(axis < len(tensors) and tensors[axis] is not None for axis in divided):
            return _lay_out(scatter(total), tensors)
        # Without this, XLA would first gather the shards of the tensor.
        names = set(names_in(tensors))
        return jax.shard_map(scatter, in_specs=tensors, out_specs=tensors, axis_names=names, check_vma=False)(total)

    def zeros(self, params: Sequence[Array]) -> list[Array]:
        """Returns zeros of the shapes of what :meth:`scatter` returns, to add it to; inside the float64 scope."""
        lying = [NamedSharding(self.rows.mesh, spec) for spec in self.by_rows]
        return [jnp.zeros(lies.shard_shape(leaf.shape), jnp.float64) for lies, leaf in zip(lying, params, strict=True)]

    def added_up(self, totals: Sequence[Array], count: Array) -> tuple[list[Array], Array]:
        """Returns, on each device, the sums and the count added up over the row axes that do not divide them."""
        # One reduction for each set of axes that some sums are missing, the count with those that miss all of them: as
        # few collectives as possible, in the same order on every device.
        missing = [tuple(axis for axis in self.axes if axis not in names_in(spec)) for spec in self.specs]
        sums, (rest,) = list(totals), [count]
        for axes in dict.fromkeys((*missing, self.axes)):
            places = [leaf for leaf, other in enumerate(missing) if other == axes]
            here = [sums[leaf] for leaf in places] + ([rest] if axes == self.axes else [])
            if not axes:
                continue
            here = self._sum(here, axes, [self.by_tensors[leaf] for leaf in places])
            rest = here.pop() if axes == self.axes else rest
            for leaf, total in zip(places, here, strict=True):
                sums[leaf] = total
        return sums, rest

    def _sum(self, values: list[Array], axes: tuple[str, ...], tensors: list[PartitionSpec]) -> list[Array]:
        """Returns sums over row axes of arrays that lie over the other axes as ``tensors`` says, the rest whole."""
        specs = [*tensors, *[WHOLE] * (len(values) - len(tensors))]
        summed = functools.partial(jax.lax.psum, axis_name=axes)
        others = set(self.rows.mesh.axis_names) - set(self.axes)
        if not others:
            return list(summed(values))
        # A TPU's compiler adds up float64 between devices only where it divides no axis by itself.
        shards = jax.shard_map(summed, in_specs=(specs,), out_specs=specs, axis_names=others, check_vma=False)
        return list(shards(values))


def axes_of(entry: Any) -> tuple[str, ...]:
    """Returns the names in an entry of a PartitionSpec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def names_in(spec: PartitionSpec) -> tuple[str, ...]:
    """Returns all names in a PartitionSpec."""
    return tuple(axis for entry in spec for axis in axes_of(entry))


def side(spec: PartitionSpec, axes: Sequence[int], shape: tuple[int, ...]) -> Any:
    """Returns the entry of an axis that ``axes`` of a parameter are merged into: None where shards would not be whole.

    >>> side(PartitionSpec(None, "model"), (1, 2), (8, 4, 16)), side(PartitionSpec(None, "model"), (0, 1), (8, 4, 16))
    ('model', None)
    """
    wide = [axis for axis in axes if shape[axis] > 1]
    divided = [axis for axis in wide if axis < len(spec) and spec[axis] is not None]
    return spec[divided[0]] if divided and divided == wide[:1] else None


def lay_out(values: Array, spec: PartitionSpec) -> Array:
    """Returns ``values`` (batch, ...), each of which lies as ``spec`` says."""
    return _lay_out(values, PartitionSpec(None, *spec))


def by_shards(norms: Callable[[Array], Array], values: Array, spec: PartitionSpec) -> Array:
    """Returns ``norms(values)`` (batch,), sums over the other axes, which lie as ``spec`` says: shard by shard.

    The shards' sums are added up in float64, whose roundings NORM_MARGIN has room for.
    """
    axes = names_in(spec)
    if not axes:
        return norms(values)
    spread = jax.shard_map(
        lambda part: jax.lax.psum(norms(part), axes),
        in_specs=PartitionSpec(None, *spec), out_specs=WHOLE, axis_names=set(axes), check_vma=False,
    )  # fmt: skip
    return spread(values)


def deal(rows: Array, devices: int) -> Array:
    """Returns rows (turns, devices, ...) dealt in turns, so that all devices share the padding, which comes last."""
    filled: Array = fill_up(rows, len(rows), devices)
    return filled.reshape(-1, devices, *rows.shape[1:])


def _lay_out(values: Array, spec: PartitionSpec) -> Array:
    return jax.lax.with_sharding_constraint(values, spec) if names_in(spec) else values


def _restrict(spec: PartitionSpec, axes: Sequence[str]) -> PartitionSpec:
    """Returns the part of a spec that names some axes of the mesh."""
    entries = [tuple(axis for axis in axes_of(entry) if axis in axes) for entry in spec]
    return PartitionSpec(*(entry[0] if len(entry) == 1 else entry or None for entry in entries))
