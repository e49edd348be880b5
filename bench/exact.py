"""The exact composer over nodes beside the exact accountant: sizes of programs, and brackets at random settings.

    python -m bench.exact [--settings N] [--seed N] [--kinds KIND ...]
    python -m bench.frozen compare --evaluator bench.exact:nodes [--only WORD] [--sample N]

The second puts it beside the frozen brackets, of mechanisms whose pairs give nodes. Sizes are lines of StableHLO and
CPU seconds to lower and to compile, in one process, by JAX's default options and by those of eager calls. A
contradiction is a bracket that shares no number with the accountant's, or does not hold a known value: one of the two
is wrong. A width is that of the bracket over its upper end; it is 1 where nothing is known from above. Single runs are
left out of the accountant's comparison: it has a closed form of these.
"""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import jaxacct as ja
from bench import report
from bench.composers import VERBS, close
from bench.frozen import Setting, build
from jaxacct.bounds import Bounds
from jaxacct.composition import ForEpsilon, directed_parts, facts_of
from jaxacct.mechanisms.by_curve import has_renyi_only
from jaxacct.mechanisms.gaussian import SubsampledGaussianPair
from jaxacct.mechanisms.nodes import Nodes, Wishes
from jaxacct.numerics.elementary import FAST
from jaxacct.numerics.precision import leave_scope, scope
from jaxacct.numerics.programs import compiled
from jaxacct.numerics.pytrees import of_each
from jaxacct.saddlepoint import exact

TRUTHS = Path(__file__).parents[1] / "tests" / "data" / "delta_truth.json"
"""Values of delta that are known to 160 bits."""

CLOSE = 1e-9
"""Width of a bracket that counts as exact."""

NOISE, RATE, STEPS, DELTA = (0.4, 8.0), (1e-4, 0.9), (1.0, 1e6), (1e-12, 0.1)
KINDS = {
    "sampled": (NOISE, RATE, STEPS, DELTA),
    "gaussian": ((0.4, 80.0), (1.0, 1.0), STEPS, DELTA),
    "hostile": ((0.06, 100.0), (1e-5, 1.0), (1.0, 1e8), (1e-40, 0.5)),
}
"""Ranges of noise, rate, steps and delta, from which logs are uniform."""


class Found(NamedTuple):
    """A bracket and the number of rounds that it took."""

    lower: float
    upper: float
    rounds: int


def law_of(s: Any, q: Any, removes: Any, ask: Wishes) -> Nodes:
    """Returns the one row of nodes of a direction."""
    return jax.tree.map(lambda leaf: leaf[None], SubsampledGaussianPair(s, q, removes).nodes(exact.NODES, ask))


law, improve_epsilon, improve_delta = jax.jit(law_of), jax.jit(exact.improve_epsilon), jax.jit(exact.improve_delta)
start_epsilon, start_delta = jax.jit(exact.epsilon_state), jax.jit(exact.delta_state)


def solve(improve: Any, start: Any, s: float, q: float, removes: bool, steps: float, value: float) -> Found:
    """Returns a bracket by rounds of two programs."""
    counts, value = jnp.array([steps]), jnp.float64(value)
    state = start(counts, value)
    # Each round lays nodes as the one before asks, until the bracket is close.
    while exact.goes_on(state):
        state = improve(law(jnp.float64(s), jnp.float64(q), removes, state.ask), counts, value, state)
    return Found(float(state.lower), float(state.upper), int(state.round))


@compiled
def rows_of(parts: Any, ask: Wishes) -> Nodes:
    """Returns the rows of nodes of a direction."""
    rows = [of_each(lambda pair: pair.nodes(exact.NODES, ask))(pairs) for pairs, _ in parts]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)


def nodes(setting: Setting) -> Bounds | None:
    """Evaluates a frozen setting, or returns None where a pair gives no nodes or something else is asked."""
    kind = VERBS.get(setting.verb)
    mechanism, steps = setting.run()
    if kind is None or has_renyi_only(mechanism):
        return None
    improve, start = (improve_epsilon, start_epsilon) if kind is ForEpsilon else (improve_delta, start_delta)
    every = []
    with scope():
        question = kind(np.float64(build(setting.at)))
        # Each direction has pairs of its own.
        for parts in directed_parts(mechanism, steps, setting.relation):
            if not all(hasattr(pairs, "nodes") for pairs, _ in parts):
                return None
            counts, value = jnp.concatenate([counts for _, counts in parts]), jnp.float64(question.value)
            state = start(counts, value)
            while exact.goes_on(state):
                state = improve(rows_of(parts, state.ask), counts, value, state)
            every.append(leave_scope(close(state.lower, state.upper, question, facts_of(parts))))
    lower, estimate, upper = (max(float(getattr(b, end)) for b in every) for end in ("lower", "estimate", "upper"))
    return Bounds(np.float64(lower), np.float64(estimate), np.float64(upper), np.bool_(False))


def sizes() -> dict[str, Any]:
    """Returns lines, seconds to lower, and seconds to compile by both sets of options, of each program."""
    s, q, counts, delta = jnp.float64(1.0), jnp.float64(0.01), jnp.array([1e4]), jnp.float64(1e-5)
    state = start_epsilon(counts, delta)
    nodes = law(s, q, True, state.ask)

    def whole(s: Any, q: Any, counts: Any, delta: Any) -> Any:
        return exact.epsilon(lambda ask: law_of(s, q, True, ask), counts, delta)

    def accountant(s: Any, q: Any, counts: Any, delta: Any) -> Any:
        mechanism = ja.PoissonSubsampledGaussian(s, q)
        return ja.saddlepoint.epsilon(mechanism, counts[0], delta, relation="remove").upper

    programs = {
        "law": (law_of, (s, q, True, state.ask)),
        "composer: epsilon": (exact.improve_epsilon, (nodes, counts, delta, state)),
        "composer: delta": (exact.improve_delta, (nodes, counts, delta, start_delta(counts, delta))),
        "both, one direction": (whole, (s, q, counts, delta)),
        "accountant, one direction": (accountant, (s, q, counts, delta)),
    }
    found = {}
    for name, (function, arguments) in programs.items():
        begin = time.process_time()
        lowered = jax.jit(lambda *given, of=function: of(*given)).lower(*arguments)
        middle = time.process_time()
        lowered.compile()
        end = time.process_time()
        lowered.compile(FAST)
        last = time.process_time()
        lines = lowered.as_text().count(" = ")
        found[name] = {"lines": lines, "lower": middle - begin, "compile": end - middle, "fast": last - end}
    return found


def width(lower: float, upper: float) -> float:
    """Returns the width of a bracket over its upper end."""
    return 0.0 if upper <= lower else (upper - lower) / upper if upper < np.inf else 1.0


def compare(ranges: tuple[tuple[float, float], ...], number: int, seed: int) -> dict[str, Any]:
    """Returns contradictions, shares of exact brackets and times, for both directions of random settings."""
    random, wrong, rows, lost = np.random.default_rng(seed), [], [], []
    for _ in range(number):
        s, q, steps, delta = (float(np.exp(random.uniform(*np.log(ends)))) for ends in ranges)
        steps = float(round(steps))
        for direction in ("remove", "add"):
            known = ja.saddlepoint.epsilon(ja.PoissonSubsampledGaussian(s, q), steps, delta, relation=direction)
            begin = time.process_time()
            found = solve(improve_epsilon, start_epsilon, s, q, direction == "remove", steps, delta)
            taken = time.process_time() - begin
            # Both have rounding inside.
            if found.lower > float(known.upper) or found.upper < float(known.lower) or found.lower > found.upper:
                wrong.append([s, q, steps, delta, direction, found[:2], float(known.lower), float(known.upper)])
            widths = width(*found[:2]), width(float(known.lower), float(known.upper))
            if widths[1] <= CLOSE < widths[0] and steps > 1:
                lost.append([s, q, steps, delta, direction, widths[0]])
            rows.append([steps > 1, *widths, found.rounds, taken])
    several, new, old, rounds, taken = np.array(rows).T
    chosen = several > 0
    return {
        "brackets": len(rows),
        "wrong": wrong,
        "close": float(np.mean(new[chosen] <= CLOSE)),
        "close, accountant": float(np.mean(old[chosen] <= CLOSE)),
        "close, this alone": float(np.mean((new <= CLOSE) & (old > CLOSE) & chosen)),
        "close, accountant alone": len(lost) / len(rows),
        "lost": lost[:10],
        "median": float(np.median(new)),
        "one round": float(np.mean(rounds == 1)),
        "ms": float(np.median(taken) * 1e3),
    }


def oracle() -> dict[str, Any]:
    """Returns the known values outside of their brackets, of delta and of epsilon, and widths of delta's."""
    wrong, widths = [], []
    for row in json.loads(TRUTHS.read_text()):
        numbers = row["sigma"], row["q"], row["direction"] == "remove", float(row["k"])
        of_delta = solve(improve_delta, start_delta, *numbers, row["eps"])
        of_epsilon = solve(improve_epsilon, start_epsilon, *numbers, row["delta"])
        # The file has the nearest float64.
        for found, truth in ((of_delta, row["delta"]), (of_epsilon, row["eps"])):
            if not found.lower * (1 - 1e-14) <= truth <= found.upper * (1 + 1e-14):
                wrong.append([*numbers, truth, *found])
        widths.append(width(of_delta.lower, of_delta.upper))
    return {"brackets": 2 * len(widths), "wrong": wrong, "widths of delta": np.quantile(widths, [0.5, 0.9, 1]).tolist()}


def main() -> None:
    parser = report.arguments_of(__doc__)
    parser.add_argument("--settings", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS, "oracle", "sizes"], default=[*KINDS, "oracle", "sizes"])
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    with scope():
        for name in arguments.kinds:
            ask = {"oracle": oracle, "sizes": sizes}.get(name)
            found[name] = ask() if ask else compare(KINDS[name], arguments.settings, arguments.seed)
            table = Table(name, "")
            for key, value in found[name].items():
                table.add_row(key, str(value))
            Console(width=150).print(table)
    report.write(arguments.json, {"nodes": exact.NODES, "side": exact.SIDE, "kinds": found})


if __name__ == "__main__":
    main()
