"""The extent of the suite: in minutes what finds a mistake, and with ``JAXACCT_TESTS=thorough`` as much as it can."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Case = TypeVar("Case")

THOROUGH = os.environ.get("JAXACCT_TESTS") == "thorough"


def draws(usual: int, thorough: int) -> int:
    """How many random settings (or examples, or steps) a test asks for."""
    return thorough if THOROUGH else usual


def cases(usual: Sequence[Case], more: Sequence[Case]) -> list[Case]:
    """The settings that a test is parametrized over: ``more`` are asked in thorough runs alone."""
    return [*usual, *more] if THOROUGH else list(usual)


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays as one program, where it is not ``jax.jit`` that is asked about: compiled fast, but in
    thorough runs."""
    import jax

    from jaxacct.numerics.programs import Program

    return jax.jit(function) if THOROUGH else Program(function)
