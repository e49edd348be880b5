"""The arithmetics that programs are traced for, and what certificates may assume of their operations.

A bound counts roundings, in units of the relative error of one operation. The size of a unit depends on the device:
float64 as IEEE 754 has it, and float32 where there is none (:mod:`jaxacct.numerics.float32`, on a TPU). Everything else
in a certificate is the same for both, but where float32 has too few digits for it. So a program asks for the unit where
it is traced, and JAX never runs a program of one arithmetic for another: the arithmetic is part of the key of
JAX's caches.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar, get_args

import jax

from jaxacct.choices import Certified

Result = TypeVar("Result")
Name = Literal["float64", "float32"]
"""Names of the arithmetics."""


class UnsoundBackendError(RuntimeError):
    """The arithmetic of the device breaks an assumption of the certificates."""


def refuse(backend: str, assumed: str, broken: list[str]) -> NoReturn:
    """Raises :class:`UnsoundBackendError`, with the assumptions that a backend breaks."""
    raise UnsoundBackendError(
        f"the backend {backend} does not compute {assumed}: {'; '.join(broken)}. No number would be a bound there: run "
        "the accounting on another one, under jax.default_device(jax.devices('cpu')[0])"
    )


CHOICES: tuple[Certified, ...] = get_args(Certified)
"""Choices of the arithmetic that a caller has."""


@dataclass(frozen=True)
class Arithmetic:
    """One arithmetic of real numbers, by the errors that certificates assume of it.

    Attributes:
        name: its name.
        roundoff: bound on the relative error of ``+ - * /`` and sqrt.
        tiny: smallest normal number, below which numbers are flushed to 0.
        cut: nats; a truncation may leave out a share of e^-cut.
        reach: standard deviations beyond which a normal law has less than e^-cut of its mass, and some to spare.
        largest_exponent: exponent beyond which an exponential is kept as its exponent.
        of_level: error, in units of roundoff, of each of the log2(n) levels of a Fourier transform, relative to the sum
            of magnitudes (:func:`jaxacct.prv.evolving.transform_error`). Too few would break a bound.
        has_transforms: whether laws are composed in it, by meshes or atoms: their certificates are absolute errors, to
            the power of the steps.
        has_few_digits: whether certificates spend work to keep digits: sums without their linear parts, and errors
            counted term by term.
        has_short_range: whether deltas that people ask about may be below its normal numbers, and epsilons beyond its
            largest.
        leaves_out_rare: whether an integral leaves out rare losses, which makes programs twice as long. No bound
            depends on it.
    """

    name: Name
    roundoff: float
    tiny: float
    cut: float
    reach: float
    largest_exponent: float
    of_level: float = 12.0
    has_transforms: bool = True
    has_few_digits: bool = False
    has_short_range: bool = False
    leaves_out_rare: bool = True

    @property
    def function(self) -> float:
        """The bound on the relative error of exp, expm1, log, and of log1p from -1/4 up; tanh may err by twice that.

        Where a result is below the smallest normal number, it may be 0.
        """
        return 8 * self.roundoff

    def of_sum(self, count: float) -> float:
        """The error of a sum of so many terms, in units of roundoff, over the sum of their sizes.

        In float32 three sums are nested, whose sides are powers of two (:func:`.sums_float32.units_of_total`).
        """
        if not self.has_few_digits:
            return count
        bits = (math.ceil(count) - 1).bit_length()
        return sum(2 ** ((bits + more) // 3) - 1 for more in (2, 1, 0)) * (1 + 2.0**-12)


FLOAT64 = Arithmetic("float64", 2.0**-53, 2.0**-1022, 36.0, 10.0, 600.0)
"""IEEE 754's double, with the functions' errors that :mod:`jaxacct.numerics.elementary` asks for: four units in the
last place."""

FLOAT32 = Arithmetic(
    "float32", 2.0**-24, 2.0**-126, 17.0, 8.0, 80.0,
    has_transforms=False, has_few_digits=True, has_short_range=True, leaves_out_rare=False,
)  # fmt: skip
"""IEEE 754's single, with the functions of :mod:`jaxacct.numerics.elementary_float32`."""

_traced_for: Any = jax.make_user_context(default_value=None)
"""Arithmetic that is traced for, a part of the key of JAX's caches; None while nothing has decided it."""


def arithmetic() -> Arithmetic:
    """Returns the arithmetic that is traced for here."""
    return FLOAT32 if _traced_for.value == "float32" else FLOAT64


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


def in_float32() -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which programs are traced for float32."""
    return _traced_for("float32")


def float64_elsewhere() -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which programs are traced for float64, for a device that has it or for none."""
    return _traced_for("float64")


def is_decided() -> bool:
    """Returns whether the arithmetic is settled here; if so, it is not float64 on a device that has none."""
    return _traced_for.value is not None


OWN = "jaxacct_own_form_of_"
"""Beginning of the names of functions with a form of their own in float32: a user's function has no such name."""


def with_own_form(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns ``function`` of arrays, for which float32 has a form of its own; for float64 nothing changes.

    Programs in float32 know it by its name (:data:`jaxacct.numerics.float32.FORMS`), behind :data:`OWN`. A derivative
    is that of the function itself, and has no name: JAX would give the derivative of a jitted function the same one.
    """

    def own_form(*args: Any) -> Result:
        return function(*args)

    own_form.__name__ = OWN + getattr(function, "__name__", "")
    named: Any = jax.custom_jvp(jax.jit(own_form))

    @named.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        return jax.jvp(function, primals, tangents)

    @functools.wraps(function)
    def choose_form(*args: Any) -> Result:
        result: Result = named(*args) if arithmetic() == FLOAT32 else function(*args)
        return result

    return choose_form


def platform() -> str:
    """Returns the name of the platform in use."""
    config: Any = jax.config
    chosen = config.jax_default_device
    return jax.default_backend() if chosen is None else getattr(chosen, "platform", str(chosen))
