"""The arithmetics that programs are traced for, and what certificates may assume of their operations.

A bound counts roundings, in units of the relative error of one operation. The size of a unit depends on the device:
float64 as IEEE 754 has it; pairs of float32 where there is none (:mod:`jaxacct.numerics.float_pairs`, on a TPU);
float32 alone, for estimates. Everything else in a certificate is the same for all of them. So a program asks for the
unit where it is traced, and a program traced for one arithmetic is never taken for another: the arithmetic is part of
the key of JAX's caches.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar, get_args, overload

import jax
import jax.numpy as jnp

from jaxacct.choices import Certified

Result = TypeVar("Result")
Name = Literal["float64", "pair", "float32"]
"""Names of the arithmetics."""


class UnsoundBackendError(RuntimeError):
    """The arithmetic of the device breaks an assumption of the certificates."""


def refuse(backend: str, assumed: str, broken: list[str]) -> NoReturn:
    """Raises :class:`UnsoundBackendError`, with the assumptions that a backend breaks."""
    raise UnsoundBackendError(
        f"the backend {backend} does not compute {assumed}: {'; '.join(broken)}. No number would be a bound there: run "
        "the accounting on another one, under jax.default_device(jax.devices('cpu')[0])"
    )


Chosen = Certified | Literal["float32"]
"""Arithmetics that a caller may ask for: those that give bounds, and one for estimates."""

CERTIFIED: tuple[Chosen, ...] = get_args(Certified)
"""Choices that give bounds."""

CHOICES: tuple[Chosen, ...] = (*CERTIFIED, "float32")
"""All choices; float32 gives estimates."""


@dataclass(frozen=True)
class Arithmetic:
    """One arithmetic of real numbers, by the errors that certificates assume of it.

    Attributes:
        name: its name.
        roundoff: bound on the relative error of ``+ - * /`` and sqrt.
        cut: nats; a truncation may leave out a share of e^-cut.
        reach: standard deviations beyond which a normal law has less than e^-cut of its mass, and some to spare.
        largest_exponent: exponent beyond which an exponential is kept as its exponent.
        of_close: error, in units of roundoff, of a difference of numbers within a factor of two of one another: none
            by IEEE 754 (Sterbenz). A value below the true one breaks bounds.
        of_level: error, in units of roundoff, of each of the log2(n) levels of a Fourier transform, relative to the sum
            of magnitudes (:func:`jaxacct.prv.evolving.transform_error`). Too few would break a bound.
        has_transforms: whether meshes are composed in it, by Fourier transforms.
        is_certified: whether the errors of functions are known to be as stated, so that there are bounds and not
            estimates.
        has_quick_loops: whether a loop of 10^8 operations takes less than a second. No bound depends on it.
        leaves_out_rare: whether an integral leaves out rare losses, which makes programs twice as long. No bound
            depends on it.
    """

    name: Name
    roundoff: float
    cut: float
    reach: float
    largest_exponent: float
    of_close: float = 0.0
    of_level: float = 12.0
    has_transforms: bool = True
    is_certified: bool = True
    has_quick_loops: bool = True
    leaves_out_rare: bool = False

    @property
    def function(self) -> float:
        """The bound on the relative error of exp, expm1, log, and of log1p from -1/4 up; tanh may err by twice that.

        Where a result is below the smallest normal float64, it may be 0.
        """
        return 8 * self.roundoff

    def of_sum(self, count: Any) -> Any:
        """The error of a sum of so many terms, in units of roundoff, over the sum of their sizes.

        Pairs are summed in whole numbers: n by n 2^-52, n/256 units (:mod:`jaxacct.numerics.float_pairs.sums`).
        """
        return 1 + count / 256 if self.name == "pair" else count


FLOAT64 = Arithmetic("float64", 2.0**-53, 36.0, 10.0, 600.0, leaves_out_rare=True)
"""IEEE 754's double, with the functions' errors that :mod:`jaxacct.numerics.elementary` asks for: four units in the
last place. Bounds rest on its numbers."""

PAIR = Arithmetic(
    "pair", 2.0**-44, 36.0, 10.0, 600.0, of_close=1.0, of_level=2.5, has_transforms=False, has_quick_loops=False
)
"""Pairs of float32: sums of two float32 numbers with an exponent of their own beside them, so with a wider range than
float64's. Bounds rest on its numbers."""

FLOAT32 = Arithmetic("float32", 2.0**-24, 16.0, 6.5, 80.0, is_certified=False)
"""Float32 alone, for estimates only."""

_traced_for: Any = jax.make_user_context(default_value=None)
"""Arithmetic that is traced for, a part of the key of JAX's caches; None while nothing has decided it."""


def arithmetic() -> Arithmetic:
    """Returns the arithmetic that is traced for here; outside the float64 scope it is float32, whatever was chosen."""
    if jax.dtypes.canonicalize_dtype(jnp.float64) != jnp.float64:
        return FLOAT32
    return PAIR if _traced_for.value == "pair" else FLOAT64


def roundoff() -> float:
    """Returns the relative error of one rounded operation, in the arithmetic that is traced for."""
    return arithmetic().roundoff


def scale_error(error: float) -> float:
    """Returns an error of rounding in the arithmetic that is traced for, given the same error in float64.

    Errors of rounding are proportional to the unit of roundoff; those of truncation are not, and may not be given here.

    >>> scale_error(1e-14) >= 1e-14
    True
    """
    return error * (roundoff() / FLOAT64.roundoff)


def in_pairs() -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which programs are traced for pairs of float32."""
    return _traced_for("pair")


def float64_elsewhere() -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which programs are traced for float64, for a device that has it or for none."""
    return _traced_for("float64")


def is_decided() -> bool:
    """Returns whether the arithmetic is settled here; if so, it is not float64 on a device that has none."""
    return _traced_for.value is not None


@overload
def with_pair_form(
    function: Callable[..., Result], *, traced: Callable[..., Any] | None = None
) -> Callable[..., Result]: ...


@overload
def with_pair_form(
    function: None = None, *, traced: Callable[..., Any]
) -> Callable[[Callable[..., Result]], Callable[..., Result]]: ...


def with_pair_form(function: Any = None, *, traced: Callable[..., Any] | None = None) -> Any:
    """Returns ``function`` with another form for pairs. For float64 nothing changes.

    By default the function is of arrays, and pairs know it by its name (:mod:`jaxacct.numerics.float_pairs.tiles`). A
    derivative has another form, and no name: JAX would give the derivative of a jitted function the same name. The form
    for pairs knows nothing but the shapes of its arguments: so an axis of a batch has to come out where it goes in,
    which it does unless arrays without it, as ``jnp.zeros_like`` makes, meet it first.

    Args:
        function: any.
        traced: the form for pairs, of the same arguments, which is traced as everything else is. It is for functions
            whose steps differ in pairs, and not their numbers.
    """
    if function is None:
        return functools.partial(with_pair_form, traced=traced)
    if traced is not None:
        return _where_pairs(traced, function)
    named: Any = jax.custom_jvp(jax.jit(function))

    @named.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        return jax.jvp(function, primals, tangents)

    return _where_pairs(named, function)


def roughly(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns ``function`` of pytrees of arrays such that pairs need not compute it in pairs: six digits will do.

    It is for guesses that decide where, or how finely, something is computed that is a bound wherever it is computed. A
    NaN, or a wrong number, may only make a bracket wide. For float64 nothing changes.
    """

    def roughly_done(*args: Any) -> Result:
        return function(*args)

    return _where_pairs(jax.jit(roughly_done), function)


def _where_pairs(named: Callable[..., Result], function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns ``function``, with ``named`` called in its place where a program is traced for pairs."""

    @functools.wraps(function)
    def choose_form(*args: Any) -> Result:
        return named(*args) if arithmetic() == PAIR else function(*args)

    return choose_form


def platform() -> str:
    """Returns the name of the platform in use."""
    config: Any = jax.config
    chosen = config.jax_default_device
    return jax.default_backend() if chosen is None else getattr(chosen, "platform", str(chosen))
