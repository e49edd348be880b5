"""A traced program as a list of NumPy's operations, which needs no compiler.

Compiling a program of ten thousand operations takes seconds, and NumPy runs them in as many microseconds: so what is
asked a few times is best not compiled at all. A :class:`.code.Code` is what one part of it comes to (parts that are
used twice are one), with what no result needs left out and what depends on constants alone computed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jaxacct.arithmetic import float64_elsewhere
from jaxacct.jaxprs import scan_counts
from jaxacct.numpy_programs.code import Code, Scan, Switch, Value, While
from jaxacct.numpy_programs.operations import MAKERS

SHORT = 6
"""Operations that are done where they are needed, in place of a call."""

LARGE = 2048
"""Elements of an array that is let go of once it is not needed."""


KINDS = "biufc"
"""Types of NumPy's own: truth values, whole numbers, real and complex ones."""

BY_COMPILERS = ("sign", "sqrt", "expm1", "log1p", "pow", "integer_pow", "tanh")
"""What NumPy does in another way at the ends of the complex numbers."""


def translated(program: ClosedJaxpr) -> Code:
    """Returns a traced program as NumPy's operations.

    Raises:
        NotImplementedError: for an operation that is not written here.
    """
    if any(not isinstance(_type(variable).dtype, np.dtype) for variable in program.jaxpr.invars):
        raise NotImplementedError("random keys are JAX's")
    whole = _Translation()
    code = whole.code_of(program)
    code.length = max(sum(len(part.steps) for _, part in whole.codes.values()), 1)
    return code


_PARTS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr",
    "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call",
}  # fmt: skip
"""Operations that are programs, and where these are."""


class _Translation:
    """Codes of the parts of one program, each made once for the results that are asked of it."""

    def __init__(self) -> None:
        # With each the program whose number is its key: numbers are given again.
        self.codes: dict[Any, tuple[ClosedJaxpr, Code]] = {}

    def code_of(self, program: ClosedJaxpr | Jaxpr, wanted: tuple[bool, ...] | None = None) -> Code:
        closed = program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, ())
        wanted = (True,) * len(closed.jaxpr.outvars) if wanted is None else wanted
        key = id(closed.jaxpr), wanted
        if key not in self.codes:
            self.codes[key] = closed, _Part(self).made(closed, wanted)
        return self.codes[key][1]


class _Part:
    """One code while it is made."""

    def __init__(self, whole: _Translation) -> None:
        self.whole = whole
        self.template: list[Value] = []
        self.is_known: list[bool] = []
        self.size: list[int] = []
        self.steps: list[tuple[Any, tuple[int, ...], Any]] = []
        self.weight = 1

    def place(self, value: Value = None, *, is_known: bool = False, size: int = 1) -> int:
        self.template.append(value)
        self.is_known.append(is_known)
        self.size.append(size)
        return len(self.template) - 1

    def constant(self, value: Any, dtype: Any) -> int:
        found = np.asarray(value, dtype)
        if found.ndim:
            found = found.view()
            found.flags.writeable = False
        return self.place(found[()], is_known=True, size=found.size)

    def made(self, program: ClosedJaxpr, wanted: tuple[bool, ...]) -> Code:
        inputs = [self.place(size=_size(atom)) for atom in program.jaxpr.invars]
        outputs = self.add(program, inputs, wanted)
        last: dict[int, int] = {}
        for i, (_, taken, given) in enumerate(self.steps):
            for place in (*taken, *((given,) if isinstance(given, int) else given)):
                last[place] = i
        dropped: dict[int, list[int]] = {}
        for place, i in last.items():
            if self.size[place] >= LARGE and not self.is_known[place] and place not in outputs:
                dropped.setdefault(i, []).append(place)
        steps = [(*step, tuple(dropped.get(i, ()))) for i, step in enumerate(self.steps)]
        return Code(self.template, tuple(inputs), steps, tuple(outputs), self.weight)

    def add(self, program: ClosedJaxpr, args: Sequence[int], wanted: tuple[bool, ...]) -> list[int]:
        """Adds the steps of a program of what is at some places; returns where its wanted results are."""
        jaxpr = program.jaxpr
        places: dict[Any, int] = dict(zip(jaxpr.invars, args, strict=True))
        places.update(
            (variable, self.constant(value, _type(variable).dtype))
            for variable, value in zip(jaxpr.constvars, program.consts, strict=True)
        )

        def place_of(atom: Any) -> int:
            if isinstance(atom, Literal):
                return self.constant(atom.val, _type(atom).dtype)
            return places[atom]

        asked = [atom for atom, is_wanted in zip(jaxpr.outvars, wanted, strict=True) if is_wanted]
        for equation, live in _needed(jaxpr, asked):
            self.step(equation, [place_of(atom) for atom in equation.invars], live, places)
        return [place_of(atom) for atom in asked]

    def step(self, equation: JaxprEqn, taken: list[int], live: tuple[bool, ...], places: dict[Any, int]) -> None:
        """Adds one operation; notes where its results are."""
        name, params = equation.primitive.name, equation.params
        operands, results = [_type(atom) for atom in equation.invars], [_type(atom) for atom in equation.outvars]
        kept = [atom for atom, is_live in zip(equation.outvars, live, strict=True) if is_live]
        if name in _PARTS or name == "later":
            part = _later(equation) if name == "later" else params[_PARTS[name]]
            places.update(zip(kept, self.part(part, taken, live), strict=True))
            return
        if name == "platform_index":
            names = [None if group is None else tuple(group) for group in params["platforms"]]
            which = next(i for i, group in enumerate(names) if group is None or "cpu" in group)
            places[equation.outvars[0]] = self.constant(which, np.int32)
            return
        if name == "cond":
            if self.is_known[taken[0]]:
                which = min(max(int(self.template[taken[0]]), 0), len(params["branches"]) - 1)
                found = self.part(params["branches"][which], taken[1:], live)
                places.update(zip(kept, found, strict=True))
                return
            operation: Any = Switch([self.whole.code_of(branch, live) for branch in params["branches"]])
            given: Any = tuple(self.place(size=_size(atom)) for atom in kept)
            places.update(zip(kept, given, strict=True))
            self.steps.append((operation, tuple(taken), given))
            return
        if name == "while":
            operation = While(
                self.whole.code_of(params["cond_jaxpr"]), self.whole.code_of(params["body_jaxpr"]),
                params["cond_nconsts"], params["body_nconsts"],
            )  # fmt: skip
        elif name == "scan":
            rows = [(aval.shape[1:], np.dtype(aval.dtype)) for aval in results[scan_counts(params)[1] :]]
            operation = Scan(
                self.whole.code_of(params["jaxpr"]), scan_counts(params), int(params["length"]), params["reverse"], rows
            )
        elif name in MAKERS:
            if any(_kind(kind) not in KINDS for kind in (*operands, *results)):
                raise NotImplementedError(f"{name} of types that NumPy has not")
            if name in BY_COMPILERS and any(_kind(kind) == "c" for kind in operands):
                raise NotImplementedError(f"{name} of complex numbers")
            operation = MAKERS[name](params, operands, results)
        else:
            raise NotImplementedError(f"{name} has not been written for NumPy")
        is_one = not equation.primitive.multiple_results
        if (
            name in MAKERS
            and all(self.is_known[place] for place in taken)
            and sum(map(_size, equation.outvars)) < LARGE
        ):
            with np.errstate(all="ignore"):
                found = operation(*[self.template[place] for place in taken])
            values = [found] if is_one else list(found)
            for atom, value in zip(equation.outvars, values, strict=True):
                places[atom] = self.constant(value, _type(atom).dtype)
            return
        where = [self.place(size=_size(atom)) for atom in equation.outvars]
        places.update(zip(equation.outvars, where, strict=True))
        self.weight += 1 + sum(map(_size, equation.outvars)) // 256
        self.steps.append((operation, tuple(taken), where[0] if is_one else tuple(where)))

    def part(self, program: ClosedJaxpr, taken: Sequence[int], live: tuple[bool, ...]) -> list[int]:
        """Adds a program as a part: its steps where it is short or nothing in it is unknown, else a call."""
        if len(program.jaxpr.eqns) <= SHORT or all(self.is_known[place] for place in taken):
            return self.add(program, taken, live)
        code = self.whole.code_of(program, live)
        asked = [atom for atom, is_live in zip(program.jaxpr.outvars, live, strict=True) if is_live]
        given = [self.place(size=_size(atom)) for atom in asked]
        self.steps.append((code, tuple(taken), tuple(given)))
        return given


def _later(equation: JaxprEqn) -> ClosedJaxpr:
    """Returns what is traced where it is lowered: here."""
    params = equation.params
    if params["pairs"]:
        raise NotImplementedError("pairs of float32 are a compiler's")
    function: Callable[..., Any] = params["function"]
    with jax.enable_x64(True), float64_elsewhere():
        return jax.make_jaxpr(function)(*map(_type, equation.invars))


def _type(atom: Any) -> Any:
    return atom.aval


def _kind(type_: Any) -> str:
    return getattr(type_.dtype, "kind", "")


def _size(atom: Any) -> int:
    return math.prod(_type(atom).shape)


def _needed(jaxpr: Jaxpr, asked: Sequence[Any]) -> list[tuple[JaxprEqn, tuple[bool, ...]]]:
    """Returns the equations that the results asked for need, and which results of each."""
    needed = {atom for atom in asked if not isinstance(atom, Literal)}
    found = []
    for equation in reversed(jaxpr.eqns):
        live = tuple(variable in needed for variable in equation.outvars)
        if any(live):
            found.append((equation, live))
            needed.update(atom for atom in equation.invars if not isinstance(atom, Literal))
    return found[::-1]
