"""The order in which a traced program is worked off: what is the same of many numbers is done to all of them at once.

A sum of two pairs is sixty operations of float32, and a logarithm two hundred; a device compiles them anew at every
place. So a program is first made one list of steps: calls are taken apart, what is done twice is done once, what rests
on numbers of the host alone is computed there. Then steps wait for others of their kind as long as something else can
be done, and those that have met are one step, of their numbers side by side. The numbers are the same to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from jaxacct.float_pairs.operations import beside_constant

FLOAT64 = np.dtype(np.float64)

CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "closed_call": "call_jaxpr", "custom_vmap_call": "call",
}  # fmt: skip
"""Operations that are programs within a program, and the parameters that those are."""

FOLDED: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "sqrt": np.sqrt,
    "log": np.log, "exp": np.exp,
}  # fmt: skip
"""Of single numbers of the host, right to a unit of float64."""

COSTS = {
    "mul": 54, "add": 57, "sub": 59, "div": 126, "sqrt": 195, "log": 200, "exp": 245, "exp2": 245, "log1p": 280,
    "expm1": 290, "exp_remainder": 360, "sin": 477, "cos": 477, "pow": 520, "sine_and_cosine": 610, "atan2": 680,
    "turned": 720, "erf": 810, "erfc": 820, "lower_tail": 820,
}  # fmt: skip
"""What is done to many at once, and how many operations it takes, about."""

CHEAP = ("mul", "add", "sub")
"""Of these what costs no more than moving many numbers: only few are done at once."""

SMALL = 64
"""Numbers up to which shapes do not matter: what is longer is done at once with what has its shape."""


class Known(NamedTuple):
    """Numbers of the host."""

    value: np.ndarray


class Step(NamedTuple):
    """One operation."""

    equation: JaxprEqn
    name: str
    inputs: tuple[Any, ...]
    """Each the number of a value, or :class:`Known`."""
    outputs: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return _typed(self.equation.outvars[0]).shape

    @property
    def operands(self) -> list[Any]:
        """Shapes and types of what the inputs are."""
        return [_typed(variable) for variable in self.equation.invars]


def _typed(variable: Any) -> Any:
    return variable.aval


class Plan(NamedTuple):
    """A program without programs within it, but for loops and branches."""

    steps: list[Step]
    constants: list[tuple[int, Any]]
    """Numbers of values, and what these are."""
    arguments: list[int]
    results: list[Any]


def planned(program: Jaxpr, whole: Callable[[JaxprEqn], bool]) -> Plan:
    """Returns a program as a list; its own constants come first among the arguments.

    Args:
        program: any.
        whole: of an equation that is a program, whether it is one operation all the same.
    """
    plan = _Planning(whole)
    arguments = [plan.fresh() for _ in (*program.constvars, *program.invars)]
    results = plan.inlined(program, arguments)
    needed, kept = {atom for atom in results if isinstance(atom, int)}, []
    for step in reversed(plan.steps):
        if step.equation.effects or not needed.isdisjoint(step.outputs):
            needed.update(atom for atom in step.inputs if isinstance(atom, int))
            kept.append(step)
    constants = [(number, value) for number, value in plan.constants if number in needed]
    return Plan(kept[::-1], constants, arguments, results)


class _Planning:
    def __init__(self, whole: Callable[[JaxprEqn], bool]) -> None:
        self.whole, self.numbers = whole, itertools.count()
        self.steps: list[Step] = []
        self.constants: list[tuple[int, Any]] = []
        self.done: dict[Any, tuple[int, ...]] = {}

    def fresh(self) -> int:
        return next(self.numbers)

    def inlined(self, program: Jaxpr, arguments: Sequence[Any]) -> list[Any]:
        """Appends the steps of a program of known arguments, its constants first; returns its results."""
        values: dict[Var, Any] = dict(zip((*program.constvars, *program.invars), arguments, strict=True))

        def read(atom: Any) -> Any:
            return Known(np.asarray(atom.val, _typed(atom).dtype)) if isinstance(atom, Literal) else values[atom]

        for equation in program.eqns:
            inputs = tuple(map(read, equation.invars))
            inner = CALLS.get(equation.primitive.name)
            if inner is not None and not self.whole(equation):
                closed, constants = equation.params[inner], []
                for const in closed.consts:
                    constants.append(self.fresh())
                    self.constants.append((constants[-1], const))
                found = self.inlined(closed.jaxpr, [*constants, *inputs])
            else:
                found = list(self.step(equation, inputs))
            values.update(zip(equation.outvars, found, strict=True))
        return [read(atom) for atom in program.outvars]

    def step(self, equation: JaxprEqn, inputs: tuple[Any, ...]) -> Sequence[Any]:
        """Returns the results of one operation, done only if it was not before and is not the host's."""
        name = equation.params["name"] if equation.primitive.name in CALLS else equation.primitive.name
        shape, dtype = (getattr(equation.outvars[0].aval, key, None) for key in ("shape", "dtype"))
        folded = FOLDED.get(name)
        if folded and shape == () and dtype == FLOAT64 and all(isinstance(atom, Known) for atom in inputs):
            with np.errstate(all="ignore"):
                return [Known(np.asarray(folded(*(atom.value for atom in inputs)), FLOAT64))]
        # Programs, of loops and branches, are told apart by their identity.
        key = name, tuple(sorted(equation.params.items())), tuple(map(_key, inputs))
        is_known = not equation.effects and _is_hashable(key)
        if is_known and key in self.done:
            return self.done[key]
        outputs = tuple(self.fresh() for _ in equation.outvars)
        self.steps.append(Step(equation, name, inputs, outputs))
        if is_known:
            self.done[key] = outputs
        return outputs


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _key(atom: Any) -> Any:
    return (str(atom.value.dtype), atom.value.shape, atom.value.tobytes()) if isinstance(atom, Known) else atom


class Side(NamedTuple):
    """Where a value stands among others of its kind: from one row on so many rows of ``among``."""

    among: Any
    first: int
    rows: int
    shape: tuple[int, ...]


def alone(side: Side) -> Any:
    """Returns the value by itself."""

    def cut(part: Any) -> Any:
        return jax.lax.slice_in_dim(part, side.first, side.first + side.rows).reshape(side.shape)

    return jax.tree.map(cut, side.among)


def together(values: Sequence[Any], shape: tuple[int, ...], inward: Callable[[Any], Any]) -> Any:
    """Returns values of one kind as rows; those of small ones are their numbers.

    Args:
        values: each a :class:`Side`, :class:`Known`, or numbers by themselves.
        shape: of one row.
        inward: makes numbers of the host numbers of this arithmetic.
    """
    pieces: list[Any] = []
    for value in values:
        last = pieces[-1] if pieces else None
        if isinstance(value, Known):
            rows = Known(value.value.reshape(-1, *shape))
            pieces[len(pieces) - isinstance(last, Known) :] = [
                Known(np.concatenate([last.value, rows.value])) if isinstance(last, Known) else rows
            ]
        elif isinstance(value, Side) and isinstance(last, Side) and last.among is value.among:
            if last.first + last.rows == value.first:
                pieces[-1] = last._replace(rows=last.rows + value.rows)
            else:
                pieces.append(value)
        else:
            pieces.append(value)

    def rows_of(piece: Any) -> Any:
        if isinstance(piece, Known):
            return inward(piece.value)
        if isinstance(piece, Side):
            first, last = piece.first, piece.first + piece.rows
            whole = first == 0 and last == jax.tree.leaves(piece.among)[0].shape[0]
            return piece.among if whole else jax.tree.map(
                lambda part: jax.lax.slice_in_dim(part, first, last), piece.among
            )  # fmt: skip
        return jax.tree.map(lambda part: part.reshape(-1, *shape), piece)

    found = [rows_of(piece) for piece in pieces]
    return found[0] if len(found) == 1 else jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)


def constant_of(step: Step) -> tuple[Callable[[Any], Any], Any] | None:
    """Returns what a step of two operands does with the one that is no constant, and that one, where that is known."""
    if len(step.inputs) != 2 or getattr(step.operands[0], "dtype", None) != FLOAT64:
        return None
    for place, atom in enumerate(step.inputs):
        other = step.inputs[1 - place]
        if isinstance(atom, Known) and atom.value.size == 1 and not isinstance(other, Known):
            done = beside_constant(step.name, float(atom.value.reshape(())), place == 1)
            if done is not None and step.operands[1 - place].shape == step.shape:
                return done, other
    return None


def kind_of(step: Step) -> Any:
    """Returns what steps that can be done at once have in common, None where a step is done by itself."""
    name, shape = step.name, step.shape
    if name not in COSTS or any(getattr(operand, "dtype", None) != FLOAT64 for operand in step.operands):
        return None
    size = math.prod(shape)
    if not size or constant_of(step) is not None or (name in CHEAP and size > SMALL):
        return None
    of_calls = "" if step.equation.primitive.name in CALLS else str(step.equation.params)
    return name, of_calls, () if size <= SMALL else shape


def in_turn(plan: Plan) -> Any:
    """Yields the steps of a plan as lists that are done at once, each after what it needs.

    What can be done at once waits for others as long as anything else can be done: first for what cannot, then for all
    of a kind to be ready, then for what is cheaper.
    """
    kinds = [kind_of(step) for step in plan.steps]
    left, makers = Counter(kinds), {out: i for i, step in enumerate(plan.steps) for out in step.outputs}
    users: list[list[int]] = [[] for _ in plan.steps]
    missing = []
    for i, step in enumerate(plan.steps):
        needed = {makers[atom] for atom in step.inputs if isinstance(atom, int) and atom in makers}
        missing.append(len(needed))
        for maker in needed:
            users[maker].append(i)
    single: list[int] = []
    ready: dict[Any, list[int]] = {}

    def enter(i: int) -> None:
        single.append(i) if kinds[i] is None else ready.setdefault(kinds[i], []).append(i)

    def after(done: Sequence[int]) -> None:
        for i in done:
            for user in users[i]:
                missing[user] -= 1
                if not missing[user]:
                    enter(user)

    for i, count in enumerate(missing):
        if not count:
            enter(i)
    while single or ready:
        if single:
            chosen, single[:] = sorted(single), []
            for i in chosen:
                yield None, [plan.steps[i]]
        else:
            kind = min(ready, key=lambda kind: (len(ready[kind]) < left[kind], COSTS[kind[0]], kind[1:]))
            chosen = ready.pop(kind)
            left[kind] -= len(chosen)
            yield kind, [plan.steps[i] for i in chosen]
        after(chosen)
