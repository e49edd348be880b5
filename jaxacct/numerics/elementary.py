"""The assumptions on float64 arithmetic and on elementary functions, and a check that a backend meets them.

A bound counts roundings. It takes +, -, *, / and sqrt to be rounded to nearest, and each of :data:`ASSUMED` to be
within so many units of roundoff of the truth. No standard promises that of the functions, and devices differ in them.
So when the library first enters float64 on a backend, one small program computes a fixed table of arguments there,
compiled in every way that its own programs, single operations and its users' programs are (:class:`By`), and the
results are compared with references from Python's own integers and decimals, which share nothing with any device's
library. A backend that fails is refused: nothing that it computes would be a bound. A table proves nothing for the
arguments between its entries; it does detect another algorithm, an arithmetic of less than float64, and flags that
trade accuracy for speed. Over the largest errors measured, on up to 10^7 arguments each and as either of its compilers
makes the functions (XLA on x86-64), the assumptions have a margin of 1.4 at least, which is that of expm1.

Subnormal numbers may be flushed to zero, and the bounds allow for it.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Iterator
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr
from jaxtyping import Array

from jaxacct.numerics.arithmetic import is_decided, platform, refuse


class By(enum.Enum):
    """The ways in which a program is compiled; each is checked by the same table."""

    XLA = "XLA"
    """JAX's default: that of single operations, and of what users compile."""
    XLA_FAST = "XLA, compiling fast"
    """The options :data:`FAST`: another code generator, which makes machine code of loops without LLVM's passes."""

    @property
    def options(self) -> dict[str, str | bool] | None:
        """The options that XLA is given."""
        return FAST if self is By.XLA_FAST else None


FAST: dict[str, str | bool] = {
    **({"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}),  # later there is no other
    "xla_backend_optimization_level": "0",
    "xla_disable_hlo_passes": "while-loop-invariant-code-motion,while-loop-trip-count-annotator,simplify-while-loops",
}
"""Options of XLA on a CPU for programs that take longer to compile than to run: compiling takes a third of the time,
running two or three times as long. The passes left out copy the body of a loop again and again to look at it, and move,
note and drop what it carries in vain, but change no operation. No option relaxes floating point. Speed only."""

DIGITS = 30
"""Decimal digits of the references. Any number well above float64's 16 will do."""

_CONTEXT = Context(prec=DIGITS + 20, Emin=-999999, Emax=999999)
"""Decimals of which 1 + x and 1 - x may cancel 20 digits."""


class Assumption(NamedTuple):
    """A function, and a bound on its error.

    Attributes:
        function: function of float64 arrays.
        truth: the same function of a decimal, to about ``DIGITS`` digits.
        arguments: the table's arguments.
        units: bound on the relative error, in units of roundoff u = 2^-53; for ndtr at z it is times 1 + z^2.
    """

    function: Callable[[Array], Array]
    truth: Callable[[Decimal], Decimal]
    arguments: tuple[float, ...]
    units: float


def _spread(*ends: tuple[float, float], about_zero: bool = False) -> tuple[float, ...]:
    """Returns twelve numbers between each two ends, evenly by their logarithms where those are positive.

    With ``about_zero``, intervals on either side of 0 come last.
    """
    if about_zero:
        ends += (1e-17, 1e-9), (1e-5, 0.24), (-1e-17, -1e-9), (-0.24, -1e-5)
    parts = [np.geomspace(*pair, 12) if min(pair) > 0 else np.linspace(*pair, 12) for pair in ends]
    return tuple(float(v) for v in np.concatenate(parts))


def _series(x: Decimal, first: Decimal, sign: int, step: Callable[[int], int]) -> Decimal:
    """Returns a sum of terms, each the one before times ``sign x^2 / step(n)``, until the terms are negligible."""
    total, term, n = first, first, 0
    while abs(term) > abs(total) * Decimal(10) ** -DIGITS:
        n += 1
        term = sign * term * x * x / step(n)
        total += term
    return total


@functools.cache
def _pi() -> Decimal:
    """Returns pi by Machin's formula, 16 arctan(1/5) - 4 arctan(1/239), in whole numbers."""
    # Whole numbers over 10^(DIGITS + 20): the 20 further digits take the rounding of each term.
    one = 10 ** (DIGITS + 20)

    def arctan_of_inverse(n: int) -> int:
        total, power, k = 0, one // n, 1
        # Gregory's series: the next power of 1/n^2 at each step, until it is below a unit of the last digit.
        while power:
            total, power, k = total + (power // k if k % 4 == 1 else -(power // k)), power // (n * n), k + 2
        return total

    return Decimal(16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)) / one


def _normal_center(z: Decimal) -> Decimal:
    """Returns Phi(z) - 1/2 = phi(z) (z + z^3/3 + z^5/(3 5) + ...), whose terms have one sign."""
    return (-z * z / 2).exp() / (2 * _pi()).sqrt() * _series(z, z, 1, lambda n: 2 * n + 1)


def _normal_tail(z: Decimal) -> Decimal:
    """Returns Phi(z) for z <= 0; far out by Mills' continued fraction."""
    if z > -3:
        return Decimal("0.5") + _normal_center(z)
    ratio = -z
    # The continued fraction, from its far end inward: as many terms as reach the digits at this z.
    for n in range(int(3200 / z**2) + 40, 0, -1):
        ratio = -z + n / ratio
    return (-z * z / 2).exp() / (2 * _pi()).sqrt() / ratio


ASSUMED: dict[str, Assumption] = {
    "exp": Assumption(lax.exp, Decimal.exp, _spread((-708.0, 709.0), (-1.0, 1.0), (1e-17, 1e-3)), 4.0),
    "expm1": Assumption(
        lax.expm1, lambda x: x.exp() - 1, _spread((-700.0, 700.0), (0.25, 2.0), (-2.0, -0.25), about_zero=True), 8.0
    ),
    "log": Assumption(lax.log, Decimal.ln, _spread((3e-308, 1e308), (0.5, 2.0), (1.0 + 1e-15, 1.0 + 1e-3)), 4.0),
    "log1p": Assumption(lax.log1p, lambda x: (1 + x).ln(), _spread((0.25, 1e300), (0.3, 1.0), about_zero=True), 5.0),
    "sqrt": Assumption(lax.sqrt, Decimal.sqrt, _spread((3e-308, 1e308), (0.5, 2.0)), 1.0),
    "sin": Assumption(
        lax.sin, lambda x: _series(x, x, -1, lambda n: 2 * n * (2 * n + 1)), _spread((-9.0, 9.1), (1e-9, 3.0)), 4.0
    ),
    "cos": Assumption(
        lax.cos,
        lambda x: _series(x, Decimal(1), -1, lambda n: 2 * n * (2 * n - 1)),
        _spread((-9.0, 9.1), (1e-9, 1.5)),
        4.0,
    ),
    "tanh": Assumption(
        lax.tanh, lambda x: ((2 * x).exp() - 1) / ((2 * x).exp() + 1), _spread((-20.0, 20.1), (1e-9, 1.0)), 16.0
    ),
    "erf": Assumption(
        lax.erf, lambda x: 2 * _normal_center(x * Decimal(2).sqrt()), _spread((1e-9, 0.5), (0.5, 5.0)), 6.0
    ),
    "ndtr": Assumption(ndtr, _normal_tail, _spread((-37.5, -8.0), (-8.0, -1.2), (-1.5, -1e-3)), 8.0),
}
"""Functions that certificates use, with the bounds that they assume. No bound may be lowered. log1p is assumed from
-1/4 up only: XLA's on a CPU is 240 units off near -0.41 (:func:`~jaxacct.numerics.precision.log_complement`)."""

OPERANDS = tuple(
    (float(a), float(b))
    for a in (1.0, 1 / 3, 0.1, 2.0**-300 / 3, 1e100 / 7, 1 + 2.0**-52)
    for b in (2.0**-53 * 1.5, 3.0, 1 - 2.0**-53, -1 / 3, 2.0**-30 / 7)
)
"""Pairs of numbers whose sum, difference, product and quotient tell rounding to nearest from any other rounding."""

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "x / y": lambda x, y: x / y,
    # A compiler that rewrites as in exact arithmetic, or as if nothing were infinite, gives y for the first, 0 for the
    # second.
    "(x + y) - x": lambda x, y: (x + y) - x,
    "isnan(x inf - y inf)": lambda x, y: 1.0 * jnp.isnan(abs(x) * jnp.inf - abs(y) * jnp.inf),
    "x + 1/3": lambda x, _: x + 1 / 3,
    "1/3 - y": lambda _, y: 1 / 3 - y,
    "x * 1/3": lambda x, _: x * (1 / 3),
}
"""Operations whose results for :data:`OPERANDS` have to be those of IEEE 754, to the bit.

A compiler knows constants, and may use what it knows. Two things that it does with them no bound may rest on: XLA's
x / 3 is the product by a rounded 1/3, two roundings, and its (1 + x) - 1 is x.
"""


@functools.cache
def expect() -> tuple[dict[str, list[Decimal]], np.ndarray]:
    """Returns what functions should give for their arguments, and operations (rows) for the operands.

    All are finite and normal, and made of Python's whole numbers and decimals alone; once a process, in some 10 ms.
    """
    with localcontext(_CONTEXT):
        references = {name: [a.truth(Decimal(x)) for x in a.arguments] for name, a in ASSUMED.items()}
    pairs = [(Fraction(a), Fraction(b)) for a, b in OPERANDS]
    # Python rounds a fraction to the nearest float64, ties to even.
    exact = [
        [
            *(float(v) for v in (a + b, a - b, a * b, a / b)),
            *(float(Fraction(float(a + b)) - a), 1.0),
            *(float(v) for v in (a + Fraction(1 / 3), Fraction(1 / 3) - b, a * Fraction(1 / 3))),
        ]
        for a, b in pairs
    ]
    return references, np.asarray(exact).T


LANES = 4
"""Operands of one turn of the table's loop: a vector of most machines, as in any program; for one operand XLA makes
other code for the normal law."""


def _side_by_side(operations: list[Callable[..., Any]], x: Array, y: Array) -> Array:
    """Returns the result of the first operation in the first lane, of the second in the second, and so on."""
    results = operations[0](x, y)
    for lane, operation in enumerate(operations[1:], 1):
        results = lax.select(np.arange(LANES) == lane, operation(x, y), results)
    return results


def _together(which: Array, x: Array, y: Array) -> Array:
    """Returns in each row the ``which``-th function of x; beyond the functions, the operations of x and y.

    The rows run one after the other, one function each: so a compiler makes short code for each function, once. A loop
    over all functions of all operands, which the compiler unrolls, took it four times as long.
    """
    functions: list[Callable[..., Any]] = [lambda x, _, a=a: a.function(x) for a in ASSUMED.values()]
    operations = list(OPERATIONS.values())
    functions += [functools.partial(_side_by_side, operations[i : i + LANES]) for i in range(0, len(operations), LANES)]

    def one(state: tuple[Array, Array]) -> tuple[Array, Array]:
        row, results = state
        values = lax.switch(which[row], functions, x[row], y[row])
        return row + 1, lax.dynamic_update_index_in_dim(results, values, row, 0)

    # Every row of x is overwritten, and nothing else needs a kernel of its own: those take longest to compile.
    results: Array = lax.while_loop(lambda state: state[0] < len(which), one, (jnp.int32(0), x))[1]
    return results


def _operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the numbers of the functions (n,), and their operands (n, LANES) and (n, LANES).

    Rows are filled up by their last operands; those of operations have one pair in all lanes.
    """
    rows: list[Any] = [(assumption.arguments,) * 2 for assumption in ASSUMED.values()]
    rows += [np.repeat(np.transpose(OPERANDS), LANES, axis=1)] * -(-len(OPERATIONS) // LANES)
    filled = [[np.pad(x, (0, -len(x) % LANES), mode="edge").reshape(-1, LANES) for x in row] for row in rows]
    x, y = (np.concatenate(column) for column in zip(*filled, strict=True))
    return np.repeat(np.arange(len(rows), dtype=np.int32), [len(x) for x, _ in filled]), x, y


@contextlib.contextmanager
def without_debugging() -> Iterator[None]:
    """While it lasts, the settings that users debug a program with are JAX's defaults."""
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.transfer_guard("allow"),
    ):
        yield


def ways() -> tuple[By, ...]:
    """Returns the ways in which programs are compiled for the platform in use."""
    return tuple(By) if platform() == "cpu" else (By.XLA,)


def compute(*by: By) -> dict[By, tuple[dict[str, np.ndarray], np.ndarray]]:
    """Returns the results of the device in use for the table's arguments, by one program, compiled in each way.

    A way is left out whose options this version of XLA does not know.
    """
    operands, computed = _operands(), {}
    with jax.enable_x64(True), without_debugging(), jax.core.eval_context():
        # A new function object: JAX must not reuse a program that was traced for another table.
        lowered = jax.jit(functools.partial(_together)).lower(*operands)
        for each in by:
            try:
                program = lowered.compile(each.options)
            except (RuntimeError, ValueError):
                if each is By.XLA:
                    raise
                continue
            table = np.asarray(program(*operands))
            rows = [table[operands[0] == i] for i in range(operands[0][-1] + 1)]
            values = {n: row.ravel()[: len(a.arguments)] for (n, a), row in zip(ASSUMED.items(), rows, strict=False)}
            computed[each] = values, np.concatenate([row.T for row in rows[len(ASSUMED) :]])[: len(OPERATIONS)]
    return computed


def failures(values: dict[str, np.ndarray], arithmetic: np.ndarray) -> list[str]:
    """Returns a line for each assumption that the values for the table's arguments break."""
    references, results = expect()
    lines = []
    # Functions: the worst argument of each is compared with the units of roundoff that it is allowed.
    for name, assumption in ASSUMED.items():
        worst, at = 0.0, 0.0
        with localcontext(_CONTEXT):  # a float is a decimal: the comparison itself rounds at the references' last digit
            for x, value, truth in zip(assumption.arguments, values[name], references[name], strict=True):
                scale = 1 + x**2 if name == "ndtr" else 1.0
                off = float(abs(Decimal(float(value)) / truth - 1)) * 2.0**53 / scale if np.isfinite(value) else np.inf
                worst, at = max((worst, at), (off, x))
        if worst > assumption.units:
            lines.append(f"{name}({at!r}) is {worst:.3g} units of roundoff off, more than {assumption.units:g}")
    # Operations: results have to be the nearest float64, bit for bit.
    for operation, row, exact in zip(OPERATIONS, arithmetic, results, strict=True):
        wrong = np.flatnonzero(row != exact)
        if wrong.size:
            x, y = OPERANDS[wrong[0]]
            lines.append(
                f"{operation} at x = {x!r}, y = {y!r} is not what IEEE 754 says, rounded to the nearest float64"
            )
    return lines


_sound: dict[str, frozenset[By]] = {}
"""Platforms that have passed, and the ways of compiling for them."""


def check() -> frozenset[By]:
    """Computes the table on the backend in use, once a process, in each way that programs are compiled for it.

    It does so inside a caller's trace, too. It does not see a trace that is compiled for another backend elsewhere.

    Returns:
        The ways of compiling that are sound: By.XLA, and By.XLA_FAST where this version of XLA knows it.

    Raises:
        UnsoundBackendError: the backend breaks an assumption.
    """
    # A TPU needs no check where the arithmetic is decided: it then computes in float32, which has a check of its own,
    # or not at all.
    name = platform()
    if name == "tpu" and is_decided():
        return frozenset()
    if name not in _sound:
        computed = compute(*ways())
        for by, results in computed.items():
            if broken := failures(*results):
                refuse(f"{name!r} ({by.value})", "as the certificates assume", broken)
        _sound[name] = frozenset(computed)
    return _sound[name]
