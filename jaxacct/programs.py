"""How the library's own programs are run: by NumPy for a first answer, and compiled where they are asked often.

A first answer would be all compilation: XLA takes about two milliseconds for each operation of a program, and NumPy
runs it in a microsecond (:mod:`jaxacct.numpy_programs`). So what calls on plain numbers run is not compiled until it
has done enough work for that to pay, and is then kept on the disk (:mod:`jaxacct.program_cache`), as the list of
NumPy's operations is. What is traced by someone else (``jax.jit``, ``jax.scan``) is compiled by JAX, as it compiles
everything.

Bounds hold for either: they assume of arithmetic and of elementary functions only what :mod:`jaxacct.elementary` asks
of NumPy, and of a compiler before the first program that it made is run.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet

import jax
import numpy as np

from jaxacct import elementary, program_cache
from jaxacct.arithmetic import arithmetic
from jaxacct.elementary import By
from jaxacct.numpy_programs.code import Code, WorkError, run

Result = TypeVar("Result")

PATIENCE = 500
"""Operations that NumPy runs in a program, for each that would be compiled, before it is: a fifth of the time that
compiling takes."""

_programs: WeakSet[Program[Any]] = WeakSet()


@overload
def compiled(function: Callable[..., Result]) -> Program[Result]: ...


@overload
def compiled(
    function: None = None, *, static: tuple[str, ...] = ()
) -> Callable[[Callable[..., Result]], Program[Result]]: ...


def compiled(function: Any = None, *, static: tuple[str, ...] = ()) -> Any:
    """Returns ``function`` as a :class:`Program`; to be used where ``jax.jit`` would be, as a decorator.

    Args:
        function: of arrays and of what is static.
        static: names of the arguments that are part of the program, hashable; the first ones.
    """
    return functools.partial(Program, static=static) if function is None else Program(function, static)


def forget() -> None:
    """Drops every program from memory, as ``jax.clear_caches`` does those of JAX."""
    for program in _programs:
        program.forget()


class Program(Generic[Result]):
    """A function that is one program for arguments of a shape; inside a trace, what ``jax.jit`` is."""

    def __init__(
        self,
        function: Callable[..., Result],
        static: tuple[str, ...] = (),
        *,
        patience: float = 1.0,
        by: By = By.XLA,
    ) -> None:
        """``patience``: a share of :data:`PATIENCE`; 0 for what is compiled at once. ``by``: what compiles it."""
        functools.update_wrapper(self, function)
        self.function = function
        self.jitted: Any = jax.jit(function, static_argnames=static)
        self._signature = inspect.signature(function)
        if any(p.kind == p.KEYWORD_ONLY for p in self._signature.parameters.values()):
            raise TypeError(f"{function} has arguments that are named only, which programs have not")
        self._static = tuple(i for i, name in enumerate(self._signature.parameters) if name in static)
        self._patience, self._by = patience, by
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
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, {}
        fixed = tuple(args[i] for i in self._static if i < len(args))
        numbers = tuple(arg for i, arg in enumerate(args) if i not in self._static) if fixed else args
        leaves, structure = jax.tree.flatten(numbers)
        config: Any = jax.config
        kinds: list[Any] = [
            *(type(value).__name__ for value in fixed),
            device,
            arithmetic().name,
            config.jax_default_matmul_precision,
        ]
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
            version = self._versions[key] = self._found(args, numbers, key, device)
        code = version.code  # which another thread may take away
        if code is not None:
            if config.jax_enable_x64:
                elementary.check(By.NUMPY)
            try:
                # Arrays of JAX's, on no device for good, as a compiled program's are: NumPy's float64 would be narrowed
                # by what is done with it outside of a scope.
                found: Result = jax.device_put(version.by_numpy(code, leaves))
                return found
            except WorkError:
                version.compiled = self._compile(args, numbers, key, device)
                version.code = None
        if config.jax_enable_x64:
            elementary.check(self._compiler())
        return version.compiled(*numbers)

    def _as_jax_does(self, args: Any, kwargs: Any) -> Any:
        if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
            elementary.check()
        return self.jitted(*args, **kwargs)

    def _compiler(self) -> By:
        return self._by if self._by is By.XLA or _knows_fast() else By.XLA

    def _found(self, args: Any, numbers: Any, key: Any, device: Any) -> _Version:
        """Returns the best version that there is, on the disk or to be had without a compiler."""
        place = program_cache.place_of(self.function, *key, self._by)
        found = program_cache.load(place, jax.tree.structure((numbers, {})), device)
        if found is not None:
            return _Version(compiled=found)
        patience = PATIENCE * self._patience
        listed = program_cache.place_of(self.function, *key, By.NUMPY)
        version = program_cache.read(listed, _understood) if patience else None
        if version is None and patience:
            from jaxacct.numpy_programs.translate import translated  # not needed where all is on the disk

            try:
                with elementary.left_to_the_caller():
                    traced = self.jitted.trace(*args)
                    code = translated(traced.jaxpr)
            except NotImplementedError:
                patience = 0
            else:
                dtypes = [np.dtype(kind.dtype) for kind in traced.jaxpr.in_avals]
                version = code, dtypes, jax.tree.structure(traced.out_info)
                program_cache.write(listed, lambda: pickle.dumps(version))
        if version is None:
            return _Version(compiled=self._compile(args, numbers, key, device))
        code, dtypes, results = version
        return _Version(code=code, dtypes=dtypes, results=results, left=patience * code.length)

    def _compile(self, args: Any, numbers: Any, key: Any, device: Any) -> Callable[..., Any]:
        if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
            # By this very compiler: what it makes may be kept for others.
            elementary.check(self._compiler(), anew=True)
        run: Callable[..., Any] = self.jitted.lower(*args).compile(self._compiler().options)
        program_cache.save(program_cache.place_of(self.function, *key, self._by), run, device, numbers)
        return run


class _Version:
    """One program: as NumPy's operations until their work is done, and compiled."""

    __slots__ = ("code", "compiled", "dtypes", "left", "results")

    def __init__(
        self, code: Code | None = None, dtypes: Any = (), results: Any = None, left: float = 0.0, compiled: Any = None
    ) -> None:
        self.code, self.dtypes, self.results, self.left, self.compiled = code, dtypes, results, left, compiled

    def by_numpy(self, code: Code, leaves: list[Any]) -> Any:
        """Returns the results; raises :class:`WorkError` where this is asked too often."""
        given = [np.asarray(leaf, dtype)[()] for leaf, dtype in zip(leaves, self.dtypes, strict=True)]
        found, work = run(code, given, self.left)
        self.left -= work
        # What is the caller's own is not given away; a program's constants are read-only.
        arrays = [value for value in given if isinstance(value, np.ndarray)]
        owned = [value.copy() if any(np.may_share_memory(value, one) for one in arrays) else value for value in found]
        return jax.tree.unflatten(self.results, owned)


def _understood(content: bytes) -> tuple[Code, list[Any], Any]:
    code, dtypes, results = pickle.loads(content)
    if not isinstance(code, Code) or len(code.inputs) != len(dtypes) or len(code.outputs) != results.num_leaves:
        raise TypeError
    return code, dtypes, results


@functools.cache
def _knows_fast() -> bool:
    """Returns whether this version of XLA knows the options."""
    try:
        jax.jit(lambda: 0).lower().compile(elementary.FAST)
    except (RuntimeError, ValueError):
        return False
    return True
