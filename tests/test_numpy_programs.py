"""Programs that NumPy runs: operation by operation what JAX gives, and what is unknown is left to a compiler."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from thorough import cases

import jaxacct as ja
from jaxacct import programs
from jaxacct.numpy_programs.code import WorkError, run
from jaxacct.numpy_programs.translate import translated
from jaxacct.programs import Program

X = np.array([[-1.5, 0.25, 3.0], [2.5, -np.inf, np.nan]])
Y = np.array([[2.0, -0.5, 1.0], [0.0, 1.0, 4.0]])
V = np.array([0.5, -0.0, 0.0, np.nan, -2.5, 1.5])
N = np.array([[7, -7, 3], [-9, 2, 0]])
M = np.array([[2, 2, -2], [-4, 5, 3]])
Z = X[:1] + 1j * Y[:1]


def elementwise():
    yield from (X + Y, X - Y, X * Y, X / Y, lax.rem(X, Y), lax.max(X, Y), lax.min(X, Y), lax.pow(abs(X), Y))
    yield from (-X, abs(X), lax.sign(X), jnp.square(X), jnp.sqrt(abs(Y)), jnp.floor(X), jnp.ceil(X), jnp.isfinite(X))
    yield from (jnp.round(X), lax.round(X), lax.integer_pow(X, 5), lax.integer_pow(Y, -3), lax.clamp(-1.0, X, 1.0))
    yield from (X < Y, X <= Y, X > Y, X >= Y, X == Y, X != Y, lax.nextafter(X, Y))
    yield from ((X < Y) & (Y > 1), (X < Y) | (Y > 1), (X < Y) ^ (Y > 1), ~(X < Y), ~N)
    yield from (lax.div(N, M), lax.rem(N, M), N & 6, N | 1, N ^ M)
    yield from (jnp.where(X < Y, X, Y), lax.select_n(np.array([2, 0, 1]), *np.arange(9.0).reshape(3, 3)))
    yield from (
        jnp.exp(Y),
        jnp.exp2(Y),
        jnp.expm1(Y),
        jnp.log(abs(Y)),
        jnp.log2(abs(Y)),
        jnp.log1p(abs(Y)),
        jax.nn.sigmoid(Y),
    )
    yield from (jnp.sin(Y), jnp.cos(Y), jnp.tan(Y), jnp.tanh(Y), jnp.sinh(Y), jnp.cosh(Y), jnp.arctan2(Y, abs(X)))
    yield jax.grad(lambda y: jnp.tanh(y).sum())(Y)
    yield from (lax.erf(Y), lax.erfc(Y), Z.real, Z.imag, lax.complex(X, Y), jnp.conj(Z), abs(Z))
    yield from (X.astype(jnp.float32), Y.astype(jnp.int32), (X < Y).astype(jnp.float64), N.astype(jnp.float32))
    huge = np.array([1e300, -1e300, np.nan, 2.0**31, 9.3e18, -9.9])
    yield from (lax.convert_element_type(huge, jnp.int32), lax.convert_element_type(huge, jnp.int64))
    yield from (lax.convert_element_type(abs(huge), jnp.uint8), lax.bitcast_convert_type(V, jnp.int64))
    yield from (lax.shift_left(N, M), lax.shift_right_logical(N, abs(M)), lax.shift_left(N, N * 0 + 70))


def moving():
    yield from (jnp.broadcast_to(Y[:, :1], (2, 3)), jnp.broadcast_to(Y[0, 0], (2, 2)), Y.reshape(3, 2), Y[None, 0])
    yield from (jnp.squeeze(Y[:1]), jnp.squeeze(Y[:1, :1]), Y.T, Y[:, ::2], Y[::-1], jnp.concatenate([X, Y], 1))
    yield from (*jnp.unstack(Y), *jnp.unstack(Y, axis=1), jax.scipy.special.ndtri(abs(Y) / 8))
    yield from (jnp.stack([X, Y], 1), jnp.tile(Y, (2, 3)), *jnp.split(Y, [1], 1), jnp.repeat(Y, 2, axis=1))
    yield from (lax.pad(Y, 9.0, ((1, 2, 1), (-1, 1, 0))), lax.pad(Y, 9.0, ((0, 0, 2), (-1, -1, 0))))
    yield from (lax.dynamic_slice(Y, (5, 1), (1, 2)), lax.dynamic_update_slice(Y, X[:1, :2], (1, -3)))
    for mode in ("clip", "fill", "promise_in_bounds"):
        places = np.array([[1, 0], [1, 1]]) if mode == "promise_in_bounds" else np.array([[1, -1], [5, 0]])
        yield from (Y.at[places].get(mode=mode), Y.at[:, places].get(mode=mode), Y.at[places, 1].get(mode=mode))
        yield from (N.at[places[0]].get(mode=mode), Y.at[places[0], places[1]].get(mode=mode))
    for mode in ("clip", "drop"):
        places = np.array([1, 5, 0])
        yield from (Y.at[places].set(7.0, mode=mode), Y.at[:, places].add(X[:, :3], mode=mode))
        yield from (Y.at[0, places].add(1.0, mode=mode), Y.at[places, places].set(-1.0, mode=mode))
    yield from (jnp.take_along_axis(Y, jnp.argsort(Y, 1), 1), jax.vmap(lambda row, i: row[i])(Y, np.array([2, 0])))
    yield jax.vmap(lambda row, i, x: row.at[i].set(x))(Y, np.array([2, 7]), np.array([8.0, 9.0]))
    yield jax.vmap(lambda row, i: lax.dynamic_slice(row, (i,), (2,)))(Y, np.array([0, 9]))


def reducing():
    yield from (jnp.sum(Y), jnp.sum(Y, 0), jnp.prod(Y, 1), jnp.max(X), jnp.min(X, 0), jnp.max(Y, 1))
    yield from (jnp.all(Y > 0, 0), jnp.any(Y > 3, 1), jnp.argmax(Y, 1), jnp.argmin(Y, 0), jnp.argmax(X, 1))
    yield from (lax.cumsum(Y, 1), lax.cumsum(Y, 0, reverse=True), lax.cumprod(Y, 1), lax.cummax(Y, 1), lax.cummin(Y, 0))
    yield from (Y @ Y.T, jnp.einsum("ij,kj->ik", Y, Y), jnp.einsum("bij,bjk->bik", Y[None], Y.T[None]))
    yield from (jnp.einsum("abc,dcb->ad", Y[None], Y.T[None]), Y[0] @ Y[1], jnp.einsum("bij,bk->bkij", Y[:, None], Y))
    yield from (jnp.sort(V), jnp.argsort(V), *lax.sort((V, np.arange(6.0)), num_keys=1), jnp.sort(Y, 0))
    yield from lax.sort((np.array([1.0, 0.0, 1.0, 0.0]), np.array([2.0, 3.0, 1.0, 2.0]), np.arange(4)), num_keys=2)
    yield from (jnp.fft.rfft(Y[0]), jnp.fft.irfft(jnp.fft.rfft(V[4:], 8), 8), jnp.fft.fft(Z), jnp.fft.ifft(Z))
    yield jnp.searchsorted(np.array([0.0, 1.0, 2.0]), Y)


def looping():
    yield lax.fori_loop(0, 5, lambda i, c: c * 1.5 + i, Y)
    yield jax.vmap(lambda x: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2 + 1, x))(Y[0])
    yield from jax.vmap(lambda x: lax.while_loop(lambda c: c[0] < 9.0, lambda c: (c[0] * 2 + 1, c[1] + x), (x[0], x)))(
        Y[:, ::2]
    )
    yield from lax.scan(lambda c, x: (c + x, c * x), 1.0, Y[0])
    yield from lax.scan(lambda c, x: (c + x, (c, x)), 0.0, V[:2], reverse=True)[1]
    yield lax.scan(lambda c, _: (c, c), 1.0, length=0)[1]
    for which in (0, 1, 9):
        yield lax.switch(jnp.asarray(which) + jnp.asarray(0), [lambda x: x, lambda x: -x, lambda x: 2 * x], Y)
    yield jax.vmap(lambda p, x: lax.cond(p > 0, jnp.exp, jnp.negative, x))(np.array([1, 0]), Y)
    yield lax.platform_dependent(Y, tpu=lambda x: x, cpu=lambda x: x + 1)
    yield jax.grad(lambda x: jnp.sum(jax.nn.softplus(x)))(Y)


@pytest.mark.parametrize("family", [elementwise, moving, reducing, looping])
def test_operations_are_those_of_jax(family, monkeypatch):
    """All of a family as one program, of its arrays as arguments, for constants would be computed beforehand."""
    names = ("X", "Y", "V", "N", "M", "Z")
    values = [globals()[name] for name in names]

    def every(*given):
        for name, value in zip(names, given, strict=True):
            monkeypatch.setitem(globals(), name, value)
        return list(family())

    with jax.enable_x64(True):
        traced = jax.jit(every).trace(*values)
        expected = traced.lower().compile()(*values)
        found, _ = run(translated(traced.jaxpr), values, 1e9)
        expected = [np.asarray(value) for value in expected]
    assert len(found) == len(expected) > 10
    for ours, theirs in zip(found, expected, strict=True):
        assert (np.shape(ours), ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-14, atol=1e-14)
        if ours.dtype.kind == "f" and ours.dtype.itemsize == 8 and np.size(ours) == 6:
            np.testing.assert_array_equal(np.signbit(ours[ours == 0]), np.signbit(theirs[theirs == 0]))


def test_what_is_not_needed_is_not_done_and_parts_are_made_once():
    @jax.jit
    def part(x):
        total = x
        for _ in range(20):
            total = jnp.sin(total)
        return total, jnp.cumsum(x)

    code = translated(jax.make_jaxpr(lambda x: part(part(x)[0])[0])(X))
    assert len(code.steps) == 2
    assert code.length == 2 + 20
    again = pickle.loads(pickle.dumps(code))
    np.testing.assert_array_equal(run(again, [X], 1e9)[0][0], run(code, [X], 1e9)[0][0])


def test_what_depends_on_nothing_is_not_compiled():
    class Refused(Program):
        def _compile(self, *_):
            raise AssertionError

    @Refused
    def fixed(x):
        return 2.0 * jnp.ones(3)

    assert fixed(X).tolist() == [2.0] * 3


def test_work_ends_where_it_is_allowed_to():
    code = translated(jax.make_jaxpr(lambda x: lax.while_loop(lambda c: c > -1, lambda c: c * 1.0, x))(1.0))
    with pytest.raises(WorkError):
        run(code, [np.float32(1.0)], 1000)


def test_what_is_unknown_is_compiled_and_so_is_what_is_asked_often(monkeypatch):
    compiled = []
    monkeypatch.setattr(Program, "_compile", lambda self, *args: compiled.append(1) or self.jitted)
    drawn = Program(lambda key: jax.random.uniform(jax.random.wrap_key_data(key), (3,)))
    np.testing.assert_array_equal(
        drawn(np.uint32([1, 2])), jax.random.uniform(jax.random.wrap_key_data(np.uint32([1, 2])), (3,))
    )
    assert compiled == [1]
    twice = Program(lambda x: jnp.sin(x) * 2, patience=0.02)
    for _ in range(20):
        assert float(twice(0.5)) == pytest.approx(2 * np.sin(0.5))
    assert compiled == [1, 1]


def test_results_are_not_views_of_constants_that_a_caller_could_change():
    table = Program(lambda x: (jnp.arange(3.0), x))
    first, _ = table(1.0)
    with pytest.raises((ValueError, TypeError)):
        np.asarray(first)[0] = 9.0
    assert table(1.0)[0].tolist() == [0.0, 1.0, 2.0]


COARSE = functools.partial(ja.prv.epsilon, points=256, relation="remove")
"""A mesh of few stages: each is a program to compile."""


INTEGRAL = functools.partial(ja.saddlepoint.epsilon, relation="remove")
SAMPLED, PLAIN = ja.PoissonSubsampledGaussian(0.9, 0.02), ja.Gaussian(20.0)


# Eager and traced answers of the others are compared in tests/test_certified.py and tests/test_rdp.py.
@pytest.mark.parametrize(
    ("ask", "mechanism"), cases([(INTEGRAL, SAMPLED)], [(COARSE, PLAIN), (ja.rdp.epsilon, SAMPLED)])
)
def test_numpys_brackets_and_a_compilers_overlap(ask, mechanism, monkeypatch):
    """Whichever computes, the truth is within both."""

    def answer():
        programs.forget()
        return ask(mechanism, 300, 1e-6)

    numpys = answer()
    monkeypatch.setattr(programs, "PATIENCE", 0)
    compilers = answer()
    programs.forget()
    if isinstance(numpys, ja.Bounds):
        assert max(numpys.lower, compilers.lower) <= min(numpys.upper, compilers.upper)
        assert numpys.upper == pytest.approx(compilers.upper, rel=1e-9)
    else:
        assert float(numpys.epsilon if hasattr(numpys, "epsilon") else numpys) == pytest.approx(
            float(compilers.epsilon if hasattr(compilers, "epsilon") else compilers), rel=1e-12
        )
