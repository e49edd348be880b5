"""Programs of float64, run in pairs of float32: each operation of a traced program is replaced by that of :class:`Wide`.

So a formula is written once, in ``jax.numpy``, and its certificate with it: only the unit of roundoff is another
(:mod:`jaxacct.arithmetic`), and it is asked for while the program is traced. Operations that nobody has written here
are refused by name: nothing falls back to the device's own float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jaxacct import arithmetic
from jaxacct.float_pairs import conversions, wide
from jaxacct.float_pairs.operations import COMPLEX, MOVING, REAL, Complex
from jaxacct.float_pairs.wide import Wide


def in_pairs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function`` of arrays with all its float64 arithmetic done in pairs of float32.

    It is traced anew, in the context that makes its certificates count pairs' roundings. To be called with float64
    enabled; numbers come and go as float64, which is where a device that lacks it rounds once more
    (:func:`jaxacct.float_pairs.conversions.to_float64`).
    """

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        with arithmetic.in_pairs():
            # Anew each time: what was traced for float64 has its constants.
            closed, shape = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        found = evaluated(closed, [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)])
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return run


def evaluated(closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """Returns what a traced program comes to for arrays, in arrays."""
    values = [_inward(arg, var.aval.dtype) for arg, var in zip(args, closed.jaxpr.invars, strict=True)]
    found = _run(closed.jaxpr, [_inward(const) for const in closed.consts], values)
    return [conversions.to_float64(value) if isinstance(value, Wide) else value for value in found]


def _inward(value: Any, dtype: Any = None) -> Any:
    """Returns an array or constant of the program as what stands for it."""
    dtype = jnp.result_type(value) if dtype is None else dtype
    if dtype == jnp.complex128:
        return Complex(_inward(jnp.real(value)), _inward(jnp.imag(value)))
    if dtype != jnp.float64 or isinstance(value, Wide):
        return value
    if isinstance(value, jax.core.Tracer):
        return conversions.of_array(value)
    return wide.constant(np.asarray(value, np.float64))


def _run(program: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    values: dict[Var, Any] = {}

    def read(atom: Var | Literal) -> Any:
        return _inward(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else values[atom]

    values.update(zip(program.constvars, consts, strict=True))
    values.update(zip(program.invars, args, strict=True))
    last = _last_uses(program)
    for i, equation in enumerate(program.eqns):
        found = _result(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, found, strict=True))
        for atom in equation.invars:
            if isinstance(atom, Var) and last[atom] == i:
                values.pop(atom, None)
    return [read(atom) for atom in program.outvars]


def _last_uses(program: Jaxpr) -> dict[Var, int]:
    uses = {atom: i for i, equation in enumerate(program.eqns) for atom in equation.invars if isinstance(atom, Var)}
    return uses | {atom: len(program.eqns) for atom in program.outvars if isinstance(atom, Var)}


def _result(equation: JaxprEqn, args: list[Any]) -> list[Any]:
    name, params = equation.primitive.name, equation.params
    structured = _STRUCTURED.get(name)
    if structured is not None:
        return structured(params, args)
    kinds = {atom.aval.dtype for atom in (*equation.invars, *equation.outvars)}
    if not kinds & {np.dtype(np.float64), np.dtype(np.complex128)}:
        found = equation.primitive.bind(*args, **params)
        return list(found) if equation.primitive.multiple_results else [found]
    if name in MOVING:
        return _moved(equation, args)
    rules = COMPLEX if np.dtype(np.complex128) in kinds else REAL
    rule = rules.get(name)
    if rule is None:
        raise NotImplementedError(
            f"{name} of {', '.join(str(atom.aval) for atom in equation.invars)} is not written for pairs of float32: "
            'ask with arithmetic="float64" on a device that has it.'
        )
    found = rule(params, *args)
    return found if isinstance(found, list) else [found]


def _moved(equation: JaxprEqn, args: list[Any]) -> list[Any]:
    """Returns what an operation that only moves numbers about makes of each of their parts."""
    structures = [jax.tree.structure(arg) for arg in args]
    whole = max(structures, key=lambda structure: structure.num_leaves)
    columns = [
        jax.tree.leaves(arg) if structure == whole else [arg] * whole.num_leaves
        for arg, structure in zip(args, structures, strict=True)
    ]
    bind = functools.partial(equation.primitive.bind, **equation.params)
    rows = [bind(*parts) for parts in zip(*columns, strict=True)]
    if not equation.primitive.multiple_results:
        return [jax.tree.unflatten(whole, rows)]
    results = []
    for i, atom in enumerate(equation.outvars):
        is_real = atom.aval.dtype in (np.float64, np.complex128)
        results.append(jax.tree.unflatten(whole, [row[i] for row in rows]) if is_real else rows[0][i])
    return results


def _called(program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    return _run(program.jaxpr, [_inward(const) for const in program.consts], args)


def _jit(params: dict[str, Any], args: list[Any]) -> list[Any]:
    return _called(params["jaxpr"], args)


def _custom(params: dict[str, Any], args: list[Any]) -> list[Any]:
    return _called(params["call_jaxpr"] if "call_jaxpr" in params else params["call"], args)


def _scan(params: dict[str, Any], args: list[Any]) -> list[Any]:
    program, consts, carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    fixed, first, rows = args[:consts], args[consts : consts + carry], args[consts + carry :]

    def body(state: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        found = _called(program, [*fixed, *state, *row])
        return found[:carry], found[carry:]

    last, each = jax.lax.scan(
        body, first, rows, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*last, *each]


def _while(params: dict[str, Any], args: list[Any]) -> list[Any]:
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    for_condition, for_body = args[:of_condition], args[of_condition : of_condition + of_body]

    def condition(state: list[Any]) -> Any:
        return _called(params["cond_jaxpr"], [*for_condition, *state])[0]

    def body(state: list[Any]) -> list[Any]:
        return _called(params["body_jaxpr"], [*for_body, *state])

    return list(jax.lax.while_loop(condition, body, args[of_condition + of_body :]))


def _cond(params: dict[str, Any], args: list[Any]) -> list[Any]:
    which, *rest = args
    branches = [lambda *rest, branch=branch: _called(branch, rest) for branch in params["branches"]]
    return list(jax.lax.switch(jnp.asarray(which, jnp.int32), branches, *rest))


_STRUCTURED: dict[str, Callable[[dict[str, Any], list[Any]], list[Any]]] = {
    "jit": _jit,
    "pjit": _jit,
    "closed_call": _custom,
    "custom_jvp_call": _custom,
    "custom_vjp_call": _custom,
    "custom_vmap_call": _custom,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
