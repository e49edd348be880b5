"""Which arithmetic a program is made of, decided where it is lowered: for the platform that it will run on.

A TPU has no float64, though it takes programs of it: XLA makes them of pairs of float32, of which it promises nothing.
There a function is traced once more, for pairs of which the roundings are counted (:mod:`jaxacct.float_pairs`). Neither
the host that traces nor its devices are asked, so an export made on a CPU for a TPU is what a TPU would have made. What
no platform asked for is never traced; and single answers of a host need none of the modules that are imported late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxacct.arithmetic import FLOAT64, Chosen, arithmetic, float64_elsewhere, is_decided, platform, roundoff
from jaxacct.pytrees import is_concrete


def by_platform(
    function: Callable[..., Any],
    *args: Any,
    at_once: Callable[..., Any] | None = None,
    safe: Callable[[Any], Any] | None = None,
    result: Any = None,
) -> Any:
    """Returns ``function(*args)``, in pairs of float32 on a TPU and in float64 elsewhere. Inside the float64 scope.

    Where a program is traced for another arithmetic already, it is that.

    Args:
        function: of pytrees of arrays, to one.
        args: those.
        at_once: the same function in another form, for devices other than CPUs.
        safe: moves results to their safe side where they leave as a float64 that is none; :func:`outward` by default.
        result: of what shapes and types the result is. Where that is said nothing is traced before it is lowered.
    """
    if arithmetic() != FLOAT64 or (is_decided() and at_once is None):
        return (at_once or function)(*args)
    from jax.extend.core import jaxpr_as_fun

    from jaxacct.later import later

    given = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)]
    if result is None:
        with float64_elsewhere():
            closed, result = jax.make_jaxpr(function, return_shape=True)(*args)
        types, native = tuple(closed.out_avals), jaxpr_as_fun(closed)
    else:
        types = tuple(
            jax.make_jaxpr(lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), result))().out_avals
        )

        def native(*leaves: Any) -> Any:
            return later(_flat(function, args), types, *leaves)

    def elsewhere(*leaves: Any) -> tuple[Any, ...]:
        return tuple(native(*leaves) if at_once is None else later(_flat(at_once, args), types, *leaves))

    def pairs(*leaves: Any) -> tuple[Any, ...]:
        def moved(*args: Any) -> Any:
            return (safe or outward)((at_once or function)(*args))

        return tuple(later(_flat(moved, args), types, *leaves, pairs=True))

    forms = {} if is_decided() else {"tpu": pairs}
    if at_once is not None:
        forms["cpu"] = lambda *leaves: tuple(native(*leaves))
    found = jax.lax.platform_dependent(*given, default=elsewhere, **forms)
    return jax.tree.unflatten(jax.tree.structure(result), found)


def needs_pairs(chosen: Chosen, *args: Any) -> bool:
    """Returns whether pairs are asked for by name, or a number on a device that has no float64.

    A program that is traced needs no look at the device: :func:`by_platform`.
    """
    return chosen == "pair" or (platform() == "tpu" and is_concrete(args) and not is_decided())


def by_pairs(function: Callable[..., Any], *args: Any) -> Any:
    """Returns ``function(*args)`` in pairs of float32, on whatever device. Inside the float64 scope.

    Concrete arguments are worked off operation by operation; a trace is traced anew where it is lowered.
    """
    from jaxacct.float_pairs.interpret import as_pairs
    from jaxacct.later import later

    if is_concrete(args):
        return as_pairs(function, stepwise=True)(*args)
    types, result = jax.make_jaxpr(function, return_shape=True)(*args)
    given = map(jnp.asarray, jax.tree.leaves(args))
    found = later(_flat(function, args), tuple(types.out_avals), *given, pairs=True)
    return jax.tree.unflatten(jax.tree.structure(result), found)


def _flat(function: Callable[..., Any], args: Any) -> Callable[..., tuple[Any, ...]]:
    """Returns ``function`` as one of the leaves of such arguments, to the leaves of its result."""
    structure = jax.tree.structure(args)
    return lambda *leaves: tuple(jax.tree.leaves(function(*jax.tree.unflatten(structure, leaves))))


LEAST, LARGEST = 2.0**-100, 2.0**120
"""What float64 holds for certain where a device makes it of two float32 numbers."""

OUTWARD: dict[type, Callable[[Any], Any]] = {}
"""Nodes whose numbers have a side of their own, and what moves each to its side."""


def raised(value: Any) -> Any:
    """Returns upper bounds that stay some when they leave a program as such a float64, of 48 bits and little range.

    Inside the float64 scope. Reading and writing them errs by less than 4 units of roundoff of a pair, 2^-42, and by
    2^-126, below which the second of the two numbers is 0.
    """
    if value.dtype != jnp.float64:
        return value
    margin = 4 * roundoff() * jnp.abs(value) + jnp.where(value == 0, 0.0, 2.0**-125)
    moved = jnp.where(jnp.isinf(value), value, value + margin)
    moved = jnp.where((value > 0) & (moved < LEAST), LEAST, jnp.where(moved > LARGEST, jnp.inf, moved))
    moved = jnp.where((value < 0) & (moved > -LEAST), 0.0, moved)
    return jnp.where((value > -jnp.inf) & (moved < -LARGEST), -LARGEST, moved)


def lowered(value: Any) -> Any:
    """Returns lower bounds likewise."""
    return -raised(-value) if value.dtype == jnp.float64 else value


def as_it_is(found: Any) -> Any:
    """Returns results that are no bounds."""
    return found


def outward(found: Any) -> Any:
    """Returns a tree of results with every number moved to its safe side: up, where its node does not say otherwise."""

    def moved(node: Any) -> Any:
        return OUTWARD[type(node)](node) if type(node) in OUTWARD else raised(jnp.asarray(node))

    return jax.tree.map(moved, found, is_leaf=lambda node: type(node) in OUTWARD)
