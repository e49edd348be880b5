"""The check of what pairs assume: this backend passes, and each kind of wrong arithmetic is refused."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxacct.numerics.arithmetic import UnsoundBackendError
from jaxacct.numerics.float_pairs import functions
from jaxacct.numerics.float_pairs.functions import Operations


def truncated(a, b):
    """The sum, rounded toward 0."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    return jnp.where((error != 0) & ((error < 0) == (total > 0)), lax.nextafter(total, jnp.zeros_like(total)), total)


def by_bfloat16(a, b):
    return lax.reduce_precision(a * b, 8, 7)


class Simplified(Operations):
    """(a + b) - a is b."""

    def __new__(cls):
        sums = {}

        def plus(a, b):
            total = a + b
            sums[id(total)] = (total, a, b)
            return total

        def minus(a, b):
            _, first, second = sums.get(id(a), (None, None, None))
            return second if first is b else a - b

        return super().__new__(cls, plus, minus, lax.mul)


def test_this_backend_is_as_assumed():
    assert functions.failures(functions.compute()) == []


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (Operations(plus=truncated, minus=lambda a, b: truncated(a, -b)), "x + y"),
        (Operations(times=by_bfloat16), "x y of 12 bits each"),
        (Simplified(), "(x + y) - x"),
    ],
    ids=["truncates", "multiplies in bfloat16", "simplifies"],
)
def test_wrong_arithmetic_is_named(wrong, named):
    assert [line for line in functions.failures(functions.compute(wrong)) if line.startswith(named + " is")]


def test_a_backend_that_fails_is_refused(monkeypatch):
    monkeypatch.setattr(functions, "_sound", set())
    right = functions.compute
    monkeypatch.setattr(functions, "compute", lambda: right(Operations(times=by_bfloat16)))
    with pytest.raises(UnsoundBackendError, match="12 bits"):
        functions.check()
    assert not functions._sound


def test_the_check_works_inside_traces(monkeypatch):
    monkeypatch.setattr(functions, "_sound", set())

    def used(x):
        functions.check()
        return x + 1

    assert jax.jit(used)(1.0) == 2
    assert functions._sound
