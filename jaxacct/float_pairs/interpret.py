"""Programs of float64, run in pairs of float32: each operation of a traced program becomes that of :class:`Wide`.

So a formula is written once, in ``jax.numpy``, and its certificate with it: only the unit of roundoff is another
(:mod:`jaxacct.arithmetic`), and it is asked for while the program is traced. Operations that nobody has written here
are refused by name: nothing falls back to the device's own float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jaxacct import arithmetic
from jaxacct.float_pairs import checked, conversions, rough, wide
from jaxacct.float_pairs.operations import COMPLEX, MOVING, REAL, WHOLE, Complex
from jaxacct.float_pairs.rough import ROUGH
from jaxacct.float_pairs.schedule import (
    CHEAP,
    SMALL,
    Known,
    Plan,
    Side,
    Step,
    alone,
    constant_of,
    in_turn,
    planned,
    together,
)
from jaxacct.float_pairs.wide import Wide
from jaxacct.jaxprs import scan_counts

NUMBERS = (Wide, Complex, rough.Rough)
ROUGHLY = "roughly_done"

FLOAT64, COMPLEX128 = np.dtype(np.float64), np.dtype(np.complex128)


def as_pairs(function: Callable[..., Any], *, stepwise: bool = False) -> Callable[..., Any]:
    """Returns ``function`` of arrays with all its float64 arithmetic done in pairs of float32.

    It is traced anew, in the context that makes its certificates count pairs' roundings. To be called with float64
    enabled; numbers come and go as float64, which is where a device that lacks it rounds once more
    (:func:`jaxacct.float_pairs.conversions.to_float64`).

    Args:
        function: of arrays, to a pytree of arrays.
        stepwise: whether operations are compiled one by one, and loops run by the host: for concrete arrays, where the
            whole program would take minutes to compile (XLA's CPU backend) and is not run often.

    Raises:
        UnsoundBackendError: the backend in use rounds in another way than pairs assume.
        NotImplementedError: ``function`` has an operation that is not written for pairs.
    """

    def run(*args: Any) -> Any:
        checked.check()
        with arithmetic.in_pairs():
            # Anew each time: what was traced for float64 has its constants.
            closed, shape = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        values = [_inward(jnp.asarray(leaf)) for leaf in jax.tree.leaves(args)]
        found = (_Stepwise() if stepwise else _Interpreter()).called(closed, values)
        return jax.tree.unflatten(jax.tree.structure(shape), [_outward(value) for value in found])

    return run


def _inward(value: Any) -> Any:
    """Returns an array or constant of the program as what stands for it."""
    if isinstance(value, NUMBERS):
        return value
    # Its own: that of a weakly typed one in an expression is float64, whatever it is itself.
    dtype = value.dtype if hasattr(value, "dtype") else jnp.result_type(value)
    if dtype == COMPLEX128:
        return Complex(_inward(jnp.real(value)), _inward(jnp.imag(value)))
    if dtype != FLOAT64:
        return value
    if isinstance(value, jax.core.Tracer):
        return conversions.of_array(value)
    return wide.constant(np.asarray(value, np.float64))


def _once(values: list[Any]) -> list[Any]:
    """Returns numbers that are computed once: a compiler would rather do it anew for each of their uses."""
    found: list[Any] = jax.lax.optimization_barrier(values)
    return found


def _outward(value: Any) -> Any:
    return _to_float64(value) if isinstance(value, Wide) else value


_to_float64 = jax.jit(conversions.to_float64)


def _dtype(atom: Any) -> Any:
    return getattr(atom.aval, "dtype", None)  # a token has none


def is_whole(equation: JaxprEqn) -> bool:
    """Returns whether an equation that is a program has a form of its own for pairs."""
    return (
        equation.primitive.name in ("jit", "pjit")
        and equation.params["name"] in WHOLE
        and all(_dtype(atom) == FLOAT64 or jnp.issubdtype(_dtype(atom), jnp.integer) for atom in equation.invars)
    )


def is_rough(equation: JaxprEqn) -> bool:
    """Returns whether an equation is a guess, :func:`jaxacct.arithmetic.roughly`."""
    return equation.primitive.name in ("jit", "pjit") and equation.params["name"] == ROUGHLY


class _Interpreter:
    """Replaces operations within a trace: what comes out is one program."""

    def __init__(self) -> None:
        self.plans: dict[int, tuple[Jaxpr, Plan]] = {}

    def is_whole(self, equation: JaxprEqn) -> bool:
        """Returns whether an equation that is a program is an operation here."""
        return is_rough(equation) or is_whole(equation)

    def roughly(self, program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """Returns what a guess comes to."""
        return [rough.to_wide(value) for value in _Rough().called(program, [rough.of_wide(arg) for arg in args])]

    def called(self, program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """Returns what a traced program comes to."""
        _, plan = self.plans.get(id(program.jaxpr), (None, None))
        if plan is None:
            plan = planned(program.jaxpr, self.is_whole)
            self.plans[id(program.jaxpr)] = program.jaxpr, plan
        values: dict[int, Any] = {number: self.inward(const) for number, const in plan.constants}
        values.update(zip(plan.arguments, [*map(self.inward, program.consts), *args], strict=True))

        def read(atom: Any) -> Any:
            if isinstance(atom, Known):
                return self.inward(atom.value)
            value = values[atom]
            if isinstance(value, Side):
                value = values[atom] = alone(value)
            return value

        self.work_off(plan, values, read)
        return [read(atom) for atom in plan.results]

    def inward(self, value: Any) -> Any:
        """Returns an array or constant of the program as what stands for it."""
        return _inward(value)

    def work_off(self, plan: Plan, values: dict[int, Any], read: Callable[[Any], Any]) -> None:
        """Adds the values of all steps."""
        for kind, steps in in_turn(plan):
            if len(steps) > 1:
                self.at_once(kind[0], steps, values)
                continue
            found = self.of_step(steps[0], read)
            is_dear = kind is not None and kind[0] not in CHEAP
            values.update(zip(steps[0].outputs, _once(found) if is_dear else found, strict=True))

    def of_step(self, step: Step, read: Callable[[Any], Any]) -> list[Any]:
        """Returns what a step comes to."""
        known = constant_of(step)
        if known is None:
            return self.result(step.equation, [read(atom) for atom in step.inputs])
        done, other = known
        return [done(read(other))]

    def at_once(self, name: str, steps: Sequence[Step], values: dict[int, Any]) -> None:
        """Adds the values of steps of one kind."""
        shapes = [step.shape for step in steps]
        is_small = math.prod(shapes[0]) <= SMALL
        row = () if is_small else shapes[0]
        rows = [math.prod(shape) if is_small else 1 for shape in shapes]

        def operand(step: Step, place: int) -> Any:
            atom, shape = step.inputs[place], step.shape
            value = atom if isinstance(atom, Known) else values[atom]
            if isinstance(value, Known):
                return Known(np.broadcast_to(value.value, shape))
            if step.operands[place].shape == shape:
                return value
            value = alone(value) if isinstance(value, Side) else value
            return jax.tree.map(lambda part: jnp.broadcast_to(part, shape), value)

        columns = [
            together([operand(step, place) for step in steps], row, _inward) for place in range(len(steps[0].inputs))
        ]
        rule = WHOLE[name] if name in WHOLE else functools.partial(REAL[name], steps[0].equation.params)
        found = rule(*columns)
        for place, among in enumerate(_once(found if isinstance(found, list) else [found])):
            first = 0
            for step, shape, count in zip(steps, shapes, rows, strict=True):
                values[step.outputs[place]] = Side(among, first, count, shape)
                first += count

    def result(self, equation: JaxprEqn, args: list[Any]) -> list[Any]:
        """Returns what one operation comes to."""
        name, params = equation.primitive.name, equation.params
        if is_rough(equation):
            return self.roughly(params["jaxpr"], args)
        if is_whole(equation):
            return self.computed(params["name"], {}, WHOLE[params["name"]], args)
        if name == "scan":
            return self.scan(params, args)
        if name == "while":
            return self.while_loop(params, args)
        if name == "cond":
            return self.cond(params, args)
        kinds = {_dtype(atom) for atom in (*equation.invars, *equation.outvars)}
        if not kinds & {FLOAT64, COMPLEX128}:
            found = equation.primitive.bind(*args, **params)
            return list(found) if equation.primitive.multiple_results else [found]
        if name in MOVING:
            return self.moved(equation, args)
        rule = (COMPLEX if COMPLEX128 in kinds else REAL).get(name)
        if rule is None:
            raise NotImplementedError(
                f"{name} of {', '.join(str(atom.aval) for atom in equation.invars)} is not written for pairs of "
                'float32: ask with arithmetic="float64" on a device that has it.'
            )
        return self.computed(name, params, functools.partial(rule, params), args)

    def computed(self, name: str, params: dict[str, Any], rule: Callable[..., Any], args: list[Any]) -> list[Any]:
        """Returns what a rule makes of numbers: it is traced once for numbers of a shape, not where it is met again."""
        is_complex = any(isinstance(arg, Complex) for arg in args)  # which has rules of its own by the same names
        key = name, is_complex, str(sorted(params.items(), key=lambda item: item[0]))
        if key not in _OPERATIONS:
            _OPERATIONS[key] = jax.jit(rule)
        found = _OPERATIONS[key](*args)
        return found if isinstance(found, list) else [found]

    def moved(self, equation: JaxprEqn, args: list[Any]) -> list[Any]:
        """Returns numbers that are only moved about."""
        return _moved(equation, args)

    def scan(self, params: dict[str, Any], args: list[Any]) -> list[Any]:
        """Returns what a loop over rows comes to."""
        consts, carry = scan_counts(params)
        fixed, first, rows = args[:consts], args[consts : consts + carry], args[consts + carry :]

        def body(state: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            found = self.called(params["jaxpr"], [*fixed, *state, *row])
            return found[:carry], found[carry:]

        last, each = self.over_rows(body, first, rows, params)
        return [*last, *each]

    def over_rows(self, body: Callable[..., Any], first: Any, rows: Any, params: dict[str, Any]) -> tuple[Any, Any]:
        """Returns what ``lax.scan`` does."""
        return jax.lax.scan(body, first, rows, length=params["length"], reverse=params["reverse"])

    def while_loop(self, params: dict[str, Any], args: list[Any]) -> list[Any]:
        """Returns what a loop under a condition comes to."""
        of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
        for_condition, for_body = args[:of_condition], args[of_condition : of_condition + of_body]

        # A batch of loops has a condition each: it goes on while one does, and those that are done stay as they are.
        axes = tuple(range(len(params["cond_jaxpr"].out_avals[0].shape)))

        def each(state: list[Any]) -> Any:
            return self.called(params["cond_jaxpr"], [*for_condition, *state])[0]

        def condition(state: list[Any]) -> Any:
            return jnp.any(each(state)) if axes else each(state)

        def body(state: list[Any]) -> list[Any]:
            found = self.called(params["body_jaxpr"], [*for_body, *state])
            if not axes:
                return found
            going = each(state)
            return jax.tree.map(
                lambda new, old: jnp.where(jnp.expand_dims(going, tuple(range(len(axes), jnp.ndim(new)))), new, old),
                found,
                state,
            )

        return self.repeated(condition, body, args[of_condition + of_body :])

    def repeated(self, condition: Callable[[Any], Any], body: Callable[[Any], Any], first: list[Any]) -> list[Any]:
        """Returns what ``lax.while_loop`` does."""
        found: list[Any] = jax.lax.while_loop(condition, body, first)
        return found

    def cond(self, params: dict[str, Any], args: list[Any]) -> list[Any]:
        """Returns what the branch comes to that is chosen."""
        which, *rest = args
        branches = [lambda *rest, branch=branch: self.called(branch, rest) for branch in params["branches"]]
        return list(jax.lax.switch(jnp.asarray(which, jnp.int32), branches, *rest))


class _Rough(_Interpreter):
    """Replaces operations by those of rough numbers, as far as there are some."""

    def is_whole(self, equation: JaxprEqn) -> bool:
        """Returns the same; a guess within a guess is part of it."""
        return is_whole(equation)

    def inward(self, value: Any) -> Any:
        """Returns constants as rough numbers."""
        return rough.of_wide(_inward(value))

    def work_off(self, plan: Plan, values: dict[int, Any], read: Callable[[Any], Any]) -> None:
        """Each step by itself: they are short."""
        for step in plan.steps:
            found = self.result(step.equation, [read(atom) for atom in step.inputs])
            values.update(zip(step.outputs, map(rough.of_wide, found), strict=True))

    def computed(self, name: str, params: dict[str, Any], rule: Callable[..., Any], args: list[Any]) -> list[Any]:
        """Returns what a rule makes of rough numbers; one of pairs, where there is none for them."""
        own = ROUGH.get(name)
        if own is None:
            return super().computed(name, params, rule, [rough.to_wide(arg) for arg in args])
        return [own(params, *args)]


class _Stepwise(_Interpreter):
    """Runs a program on concrete arrays, operation by operation."""

    def moved(self, equation: JaxprEqn, args: list[Any]) -> list[Any]:
        # As many results as the equation has, which one name does not tell.
        name = f"{equation.primitive.name} to {[str(_dtype(atom)) for atom in equation.outvars]}"
        return self.computed(name, equation.params, lambda *args: _moved(equation, args), args)

    def roughly(self, program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """In pairs as all else, of which the operations are compiled already."""
        return self.called(program, args)

    def work_off(self, plan: Plan, values: dict[int, Any], read: Callable[[Any], Any]) -> None:
        for step in plan.steps:
            found = self.result(step.equation, [read(atom) for atom in step.inputs])
            values.update(zip(step.outputs, found, strict=True))

    def over_rows(self, body: Callable[..., Any], first: Any, rows: Any, params: dict[str, Any]) -> tuple[Any, Any]:
        state, found = first, []
        order = range(params["length"])
        for i in reversed(order) if params["reverse"] else order:
            state, each = body(state, jax.tree.map(lambda leaf, i=i: leaf[i], rows))
            found.append(each)
        found = found[::-1] if params["reverse"] else found
        return state, jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *found)

    def repeated(self, condition: Callable[[Any], Any], body: Callable[[Any], Any], first: list[Any]) -> list[Any]:
        state = first
        while bool(condition(state)):
            state = body(state)
        return state

    def cond(self, params: dict[str, Any], args: list[Any]) -> list[Any]:
        which, *rest = args
        branches = params["branches"]
        return self.called(branches[min(max(int(which), 0), len(branches) - 1)], rest)


_OPERATIONS: dict[Any, Callable[..., Any]] = {}


def _moved(equation: JaxprEqn, args: Sequence[Any]) -> list[Any]:
    """Returns what an operation that only moves numbers about makes of each of their parts."""
    numbers = [arg for arg in args if isinstance(arg, NUMBERS)]
    structure: Any = jax.tree.structure(numbers[0])
    columns = [jax.tree.leaves(arg) if isinstance(arg, NUMBERS) else [arg] * structure.num_leaves for arg in args]
    rows = [equation.primitive.bind(*parts, **equation.params) for parts in zip(*columns, strict=True)]
    if not equation.primitive.multiple_results:
        return [jax.tree.unflatten(structure, rows)]
    return [
        jax.tree.unflatten(structure, [row[i] for row in rows]) if _dtype(atom) in (FLOAT64, COMPLEX128) else rows[0][i]
        for i, atom in enumerate(equation.outvars)
    ]
