"""How the library's own programs are compiled: fast for a first answer, and well where they are asked often.

A first answer is all compilation: XLA takes some twenty milliseconds for each loop that it makes of a program, and runs
it in a microsecond. So what a single call on plain numbers runs is compiled fast at first, and well once it is called
often; either is kept on the disk (:mod:`jaxacct.program_cache`). What is traced by someone else (``jax.jit``,
``jax.vmap``, ``jax.grad``), batches and sweeps are compiled by JAX, as it compiles everything.

Bounds hold for either: they assume of arithmetic and of elementary functions only what :mod:`jaxacct.elementary` asks
of a code generator before the first program that it made is run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

import jax
import numpy as np

from jaxacct import elementary, program_cache
from jaxacct.arithmetic import arithmetic

Result = TypeVar("Result")

OFTEN = 4
"""The answer with whose arguments, in their shapes, a program is compiled well. That is then kept, so that it is done
once on a machine. Earlier, scripts that ask two or three questions would wait for it."""

_answers = {"begun": 0}


def note_answer() -> None:
    """Notes that what is run from now on is for another answer: one may run a program many times."""
    _answers["begun"] += 1


_programs: WeakSet[Program[Any]] = WeakSet()


@overload
def compiled(function: Callable[..., Result]) -> Program[Result]: ...


@overload
def compiled(
    function: None = None, *, static: tuple[str, ...] = (), in_pieces: bool = False
) -> Callable[[Callable[..., Result]], Program[Result]]: ...


def compiled(function: Any = None, *, static: tuple[str, ...] = (), in_pieces: bool = False) -> Any:
    """Returns ``function`` as a :class:`Program`; to be used where ``jax.jit`` would be, as a decorator.

    Args:
        function: of arrays and of what is static.
        static: names of the arguments that are part of the program, hashable; the first ones.
        in_pieces: at first it is not compiled but run as it is, for its pieces are programs that are used elsewhere.
    """
    if function is None:
        return functools.partial(Program, static=static, in_pieces=in_pieces)
    return Program(function, static, in_pieces=in_pieces)


def forget() -> None:
    """Drops every program from memory, as ``jax.clear_caches`` does those of JAX."""
    for program in _programs:
        program.forget()


class Program(Generic[Result]):
    """A function that is compiled at its first call with arguments of a shape; inside a trace, what ``jax.jit`` is."""

    def __init__(
        self,
        function: Callable[..., Result],
        static: tuple[str, ...] = (),
        *,
        often: int | None = None,
        in_pieces: bool = False,
    ) -> None:
        """``often``: with the answer of this number it is compiled well, in place of :data:`OFTEN`."""
        functools.update_wrapper(self, function)
        self.function = function
        self.jitted: Any = jax.jit(function, static_argnames=static)
        self._signature = inspect.signature(function)
        self._static = tuple(i for i, name in enumerate(self._signature.parameters) if name in static)
        self._often, self._in_pieces = often, in_pieces
        self._versions: dict[Any, _Version] = {}
        _programs.add(self)

    def forget(self) -> None:
        """Drops what is in memory."""
        self._versions.clear()
        self.jitted.clear_cache()

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        device = program_cache.cpu()
        if device is None:
            return self._as_jax_does(args, kwargs)
        if kwargs:
            args, kwargs = self._signature.bind(*args, **kwargs).args, {}
        fixed = tuple(args[i] for i in self._static if i < len(args))
        numbers = tuple(arg for i, arg in enumerate(args) if i not in self._static) if fixed else args
        leaves, structure = jax.tree.flatten(numbers)
        config: Any = jax.config
        kinds: list[Any] = [device, arithmetic().name, config.jax_default_matmul_precision]
        for leaf in leaves:
            if isinstance(leaf, (np.ndarray, np.generic)):
                kinds.append((leaf.shape, leaf.dtype))
            elif isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and leaf.device == device:
                kinds.append((leaf.shape, leaf.dtype, leaf.aval.weak_type))
            elif isinstance(leaf, (bool, int, float)):
                kinds.append(type(leaf))
            else:
                return self._as_jax_does(args, {})
        key = structure, fixed, tuple(kinds)
        version = self._versions.get(key)
        if version is None:
            version = self._versions[key] = _Version()
        if version.answer != _answers["begun"]:
            version.answer = _answers["begun"]
            version.answers += 1
        often = OFTEN if self._often is None else self._often
        if version.run is None or (version.answers >= often and not version.is_full):
            self._prepare(version, version.answers >= often, args, numbers, key, device)
        if config.jax_enable_x64 and (version.is_full or version.is_fast):  # pieces do so themselves
            elementary.check(fast=version.is_fast)
        run: Any = version.run
        return run(*numbers)

    def _as_jax_does(self, args: Any, kwargs: Any) -> Any:
        if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
            elementary.check()
        return self.jitted(*args, **kwargs)

    def _prepare(self, version: _Version, is_full: bool, args: Any, numbers: Any, key: Any, device: Any) -> None:
        """Finds or compiles the better program that there is reason to have."""
        structure = jax.tree.structure((numbers, {}))

        def compile_(options: Any) -> Any:
            return self.jitted.lower(*args).compile(options)

        well, fast = (program_cache.place_of(self.function, *key, how) for how in (None, elementary.FAST))
        run = None if well is None else program_cache.load(well, structure, device)
        if run is None and self._in_pieces and not is_full:
            version.run = functools.partial(self.function, *key[1])
            return
        if run is None and fast is not None and not is_full:
            run = program_cache.load(fast, structure, device)
        else:
            is_full = is_full or run is not None
        if run is None:
            is_full = is_full or not _knows_fast()
            if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
                # By this very compiler: what it makes may be kept for others.
                elementary.check(fast=not is_full, anew=True)
            run = compile_(None if is_full else elementary.FAST)
            place = well if is_full else fast
            if place is not None:
                program_cache.save(place, run, device, numbers)
        version.run, version.is_full, version.is_fast = run, is_full, not is_full


class _Version:
    """One compiled program, for how many answers it was run, and for which last."""

    __slots__ = ("answer", "answers", "is_fast", "is_full", "run")

    def __init__(self) -> None:
        self.answer, self.answers, self.is_fast, self.is_full = -1, 0, False, False
        self.run: Callable[..., Any] | None = None


@functools.cache
def _knows_fast() -> bool:
    """Returns whether this version of XLA knows the options."""
    try:
        jax.jit(lambda: 0).lower().compile(elementary.FAST)
    except (RuntimeError, ValueError):
        return False
    return True
