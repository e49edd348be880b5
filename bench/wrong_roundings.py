"""Brackets whose every operation is off by as much as pairs of float32 may be: how many miss the truth. None may.

Run: taskset -c 1 python -m bench.wrong_roundings --seeds 3

A certificate is traced for pairs, and its program is run in float64, operation by operation, each result off by the
whole of what :data:`jaxacct.numerics.arithmetic.PAIR` allows, to a side that a hash of its bits chooses. What pairs
keep exact is left as it is: whole numbers, powers of two, sums with 0. Pairs themselves are far better: a bracket that
misses rests on more than they promise. Sums are off by what pairs promise of theirs, of the sum of sizes. The truth is
float64's own bracket.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

import jaxacct as ja
from jaxacct.numerics.arithmetic import PAIR, in_pairs

UNITS = {"exp": 4, "expm1": 8, "log": 4, "sin": 4, "cos": 4, "tanh": 8, "erf": 6, "atan2": 8, "logistic": 8, "sinh": 8}
"""What functions may be off by, relatively; of others see :func:`_error`."""

KINDS: dict[str, tuple[Callable[..., ja.Mechanism], tuple[float, ...]]] = {
    "gaussian": (ja.PoissonSubsampledGaussian, (1.1, 0.01)),
    "laplace": (ja.PoissonSubsampledLaplace, (1.5, 0.1)),
    "fixed-size": (ja.GaussianWithoutReplacement, (1.5, 0.02)),
}


def _whole(x: Any) -> Any:
    return (x == jnp.floor(x)) & (jnp.abs(x) < 2.0**46)


def _is_power(x: Any) -> Any:
    return jax.lax.bitcast_convert_type(x, jnp.uint64) & jnp.uint64(2**52 - 1) == 0


def _error(equation: Any, given: list[Any], out: Any) -> Any:
    """Returns what a result may be off by, in units of roundoff."""
    name, params, size = equation.primitive.name, equation.params, jnp.abs(out)
    if name in ("add", "sub"):
        exact = (given[0] == 0) | (given[1] == 0) | (_whole(given[0]) & _whole(given[1]))
        return jnp.where(exact, 0.0, size)
    if name in ("mul", "div"):
        exact = _is_power(given[1]) | (name == "mul") & (_is_power(given[0]) | _whole(given[0]) & _whole(given[1]))
        return jnp.where(exact, 0.0, size)
    if name in ("integer_pow", "square"):
        return jnp.where(_whole(given[0]), 0.0, abs(params.get("y", 2)) * size)
    if name == "sqrt":
        return size
    if name == "log1p":
        return jnp.where(given[0] < -0.2500001, 500.0, 5.0) * size
    if name == "erfc":
        return 8 * (1 + jnp.minimum(given[0] ** 2, 1e4)) * size
    if name == "reduce_sum":
        terms = jnp.sum(given[0] != 0, axis=params["axes"])
        size = jnp.sum(jnp.abs(given[0]), axis=params["axes"])
        return jnp.where(terms > 1, PAIR.of_sum(terms) * size, 0.0)
    if name == "cumsum":
        return given[0].shape[params["axis"]] * size
    if name == "dot_general":
        terms = int(np.prod([given[0].shape[axis] for axis in params["dimension_numbers"][0][0]]))
        return terms * equation.primitive.bind(*map(jnp.abs, given), **params)
    return UNITS.get(name, 0) * size


class Wrong:
    """Runs traced programs with errors; ``seed`` says to which sides."""

    def __init__(self, seed: int) -> None:
        self.seed, self.count = seed, 0

    def moved(self, equation: Any, given: list[Any], out: Any) -> Any:
        """Returns a result with its error."""
        return self.off_by(out, _error(equation, [jnp.asarray(value) for value in given], out) * PAIR.roundoff)

    def off_by(self, out: Any, error: Any) -> Any:
        """Returns a result with an error of that size, to a side of its own."""
        self.count += 1
        salt = jnp.uint64((self.seed * 7919 + self.count * 104729) % 2**32)
        bits = (jax.lax.bitcast_convert_type(out, jnp.uint64) ^ salt) * jnp.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> 29)) * jnp.uint64(0xBF58476D1CE4E5B9)
        return jnp.where(jnp.isfinite(error), out + jnp.where(bits >> 63 == 1, error, -error), out)

    def turned_sums(self, sums: list[Any], weights: Any, angles: Any, before: list[Any]) -> list[Any]:
        """Returns sums of turns (lanes, frequencies), off by 19 units of their terms' angles, and one where added."""
        frequencies = 1 + jnp.arange(sums[0].shape[1])
        error = 19 * frequencies * jnp.sum(weights * jnp.abs(angles), axis=1, keepdims=True) * PAIR.roundoff
        return [
            self.off_by(part, error / np.sqrt(2) + jnp.where(old != 0, jnp.abs(part), 0.0) * PAIR.roundoff)
            for part, old in zip(sums, before, strict=True)
        ]

    def run(self, program: Any, *given: Any) -> list[Any]:
        """Returns the results of a closed program, the programs within it likewise."""
        known = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        known |= dict(zip(program.jaxpr.invars, given, strict=True))

        def read(variable: Any) -> Any:
            return variable.val if hasattr(variable, "val") else known[variable]

        for equation in program.jaxpr.eqns:
            values = [read(v) for v in equation.invars]
            known |= dict(zip(equation.outvars, self.results(equation, values), strict=True))
        return [read(v) for v in program.jaxpr.outvars]

    def results(self, equation: Any, given: list[Any]) -> Any:
        """Returns the results of one equation."""
        name, params = equation.primitive.name, equation.params
        if params.get("name") == "turned_sums":
            return self.turned_sums(jaxpr_as_fun(params["jaxpr"])(*given), *given[:2], given[4:6])
        if params.get("name") == "turned":
            # Both together by 90 u^2 of the angle, u that of float32.
            error = 90 / 16 * jnp.abs(given[0]) * PAIR.roundoff / np.sqrt(2)
            return [self.off_by(part, error) for part in jaxpr_as_fun(params["jaxpr"])(*given)]
        inner = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vmap_call": "call"}
        if name in inner:
            return self.run(params[inner[name]], *given)
        if name == "cond":
            ways = [lambda *values, way=way: tuple(self.run(way, *values)) for way in params["branches"]]
            return jax.lax.switch(given[0], ways, *given[1:])
        if name == "while":
            ends = np.cumsum([params["cond_nconsts"], params["body_nconsts"]])
            asks, does, state = given[: ends[0]], given[ends[0] : ends[1]], given[ends[1] :]
            return jax.lax.while_loop(
                lambda now: self.run(params["cond_jaxpr"], *asks, *now)[0],
                lambda now: tuple(self.run(params["body_jaxpr"], *does, *now)),
                tuple(map(jnp.asarray, state)),
            )
        if name == "scan":
            ends = np.cumsum([params["num_consts"], params["num_carry"]])
            constant, start, rows = given[: ends[0]], given[ends[0] : ends[1]], given[ends[1] :]

            def step(carry: Any, row: Any) -> Any:
                found = self.run(params["jaxpr"], *constant, *carry, *row)
                return tuple(found[: len(carry)]), tuple(found[len(carry) :])

            how = {key: params[key] for key in ("length", "reverse")}
            carry, found = jax.lax.scan(step, tuple(map(jnp.asarray, start)), tuple(rows), **how)
            return [*carry, *found]
        out = equation.primitive.bind(*given, **params)
        if equation.primitive.multiple_results:
            return out
        return [self.moved(equation, given, out) if out.dtype == jnp.float64 else out]


def both(function: Callable[..., Any], given: tuple[Any, ...], seed: int) -> tuple[Any, Any]:
    """Returns what a function of floats returns in float64, and as traced for pairs with errors."""
    with jax.enable_x64(True):
        exact = jax.tree.map(np.asarray, jax.jit(function)(*given))
        with in_pairs():
            program, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
            wrong = jax.jit(lambda *leaves: Wrong(seed).run(program, *leaves))(*jax.tree.leaves(given))
    return exact, jax.tree.unflatten(jax.tree.structure(shapes), [np.asarray(leaf) for leaf in wrong])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--steps", type=float, default=1000.0)
    options = parser.parse_args()
    missed = 0
    for kind in options.kinds:
        make, fields = KINDS[kind]
        for verb, asked in ((ja.saddlepoint.delta, 1.0), (ja.saddlepoint.epsilon, 1e-6)):

            def bracket(fields: Any, steps: Any, asked: Any, make: Any = make, verb: Any = verb) -> ja.Bounds:
                mechanism = make(*fields)
                return verb(mechanism, steps, asked, relation=mechanism.relations[-1])

            for seed in range(options.seeds):
                given = [np.float64(value) for value in fields], np.float64(options.steps), np.float64(asked)
                exact, wrong = both(bracket, given, seed)
                holds = wrong.lower <= exact.upper and wrong.upper >= exact.lower
                missed += not holds
                off = abs(wrong.estimate - exact.estimate) / (wrong.upper - wrong.lower)
                print(f"{kind} {verb.__name__} {seed}: {exact} in {wrong} {bool(holds)}, off by {off:.3f} widths")
    print(f"{missed} missed")


if __name__ == "__main__":
    main()
